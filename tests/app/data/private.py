"""The rows of a private party's file as its runs read them, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_flynn.app.data.own_file import private_rows
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.labels import Label
from flwr_flynn.federated.private_rows import (
    Dropped,
    GivenRows,
    RowReader,
    as_numbers,
    check_columns,
    each_part,
    fitting,
)
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.tables.schema import Schema


def private_share(
    node: NodeConfig,
    features: Features = (),
    secret: bytes = b"secret",
    n_rows: int = 2**14,
) -> Samples:
    """Training and held-out rows as numbers, without a label where they do not fit."""
    return share_of(private_rows(node, lambda: secret), features, n_rows)


def share_of(rows: RowReader, features: Features = (), n_rows: int = 2**14) -> Samples:
    """The same of rows that are open already."""
    width = rows.width
    if isinstance(features, Schema):
        width = features.width
    elif features:
        width = len(features)
    check_columns(rows, features, width)

    def read(X: Any, y: Any) -> tuple[Any, Any]:
        numbers, fits = as_numbers(X, features)
        y = y.copy()
        if isinstance(features, Schema):
            y[~fits] = None
        return numbers, y

    sides = []
    for held_out in (False, True):
        X = []
        y = []
        for block in rows.blocks(n_rows, held_out):
            for part in each_part(block, read):
                if not isinstance(part, Dropped):
                    X.append(part[0])
                    y.append(part[1])
        sides.append(joined(X, np.zeros((0, rows.width))))
        sides.append(joined(y, np.zeros(0, object)))
    return Samples(*sides)


def joined(arrays: list[Any], nothing: Any) -> Any:
    """The rows of all arrays, or of none."""
    if not arrays:
        return nothing
    return np.concatenate(arrays)


def count(
    hasher: FlyHash, classes: Sequence[Label], X: Any, y: Any, n_rows: int = 2**14
) -> tuple[ClassCounts, int]:
    """Counts of the samples that fit, and how many do not."""
    rows = GivenRows(Samples(X, y))
    active = []
    check_columns(rows, (), hasher.n_features)
    for _, parts in fitting(
        rows,
        [hasher],
        classes,
        (),
        memory=256 * n_rows * max(X.shape[1], hasher.hash_nnz, len(classes)),
        of=hasher.active,
    ):
        active += parts
    no_bits = np.zeros((0, hasher.hash_nnz), np.int32)
    bits = joined([bits for _, _, bits in active], no_bits)
    codes = joined([codes for _, codes, _ in active], np.zeros(0, np.int64))
    counts = ClassCounts.from_active(hasher, bits, codes, len(classes))
    return counts, len(y) - len(codes)
