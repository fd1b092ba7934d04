"""A party's share of samples, in memory or in files without a name, and its labels."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.dialect import objects
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.settings_parser import whole_numbers
from flwr_flynn.errors import DataError, with_rows
from flwr_flynn.federated.samples import Samples, log
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.kinds_and_levels import TableSummary
from flwr_flynn.tables.schema import Schema

_WIDEST = 256  # bytes of a label in an array of NumPy
_LONGEST = 1024  # characters, as in a list of classes


def labels_of(classes: Sequence[str | int], codes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The label of every code."""
    labels = np.asarray(classes)
    # In a text type of NumPy each label is as wide as the longest.
    return (labels if labels.dtype.itemsize <= _WIDEST else objects(classes))[codes]


def coded_labels(y: npt.NDArray[Any], name: str) -> tuple[list[str | int], npt.NDArray[np.int64]]:
    """The different labels of a file in their order, and the index of each row's among them."""
    if y.dtype.kind == "f":
        if n_missing := int((~np.isfinite(y)).sum()):
            raise with_rows(DataError(name, "a label in each row", "rows without one"), f"{n_missing} rows")
        if (y == np.floor(y)).all():
            if (np.abs(y) >= 2**63).any():
                raise DataError(name, "labels within int64", "labels beyond")
            y = y.astype(np.int64)
    if y.dtype.kind in "iu":
        values, codes = np.unique(y, return_inverse=True)
        return values.tolist(), codes.astype(np.int64).reshape(-1)
    index: dict[Any, int] = {}
    codes = np.fromiter((index.setdefault(label, len(index)) for label in y.tolist()), np.int64, len(y))
    if any(isinstance(label, bytes) for label in index):
        raise DataError(name, "strings or integers as labels", "bytes")
    texts = [str(label) for label in index]
    if longest := sum(len(text) > _LONGEST for text in texts):
        error = DataError(name, f"labels of at most {_LONGEST} characters", "some that are longer")
        raise with_rows(error, f"{longest} labels")
    found = whole_numbers(texts)
    labels: list[Any] = sorted(set(texts if found is None else found))
    place = {label: code for code, label in enumerate(labels)}
    return labels, np.array([place[label] for label in (texts if found is None else found)], np.int64)[codes]


LARGE = 2**28
"""Bytes of a file's numbers above which they are in files without a name."""

_MOST_TEXTS = 2**20
"""Different texts of a column that are counted; beyond, those that occurred once are dropped."""


@dataclass(frozen=True)
class Share(Samples):
    """Samples of one party, from its file or from a simulation's data set."""

    left_out: tuple[str, ...] = ()


def encoded(file: TableFile, schema: Schema, memory: int = 2**32) -> Share:
    """The rows of a file as the numbers of a schema, with at most a fourth of so many bytes of them in memory."""
    file.check()
    most = min(LARGE, memory // 4)
    in_memory, step = 8 * file.n_rows * schema.width <= most, max(1, most // (64 * schema.width))
    labels, tests = [np.zeros(0, object)], [np.zeros(0, np.bool_)]
    remarks: set[str] | None = None  # that hold for all rows
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(0 if in_memory else 2)]
            parts = [[np.empty((0, schema.width))] for _ in range(2)]
            for table, some, is_test in file.tables():
                is_test = np.zeros(len(table), np.bool_) if is_test is None else is_test
                for rows in batches(len(table), step):
                    numbers = schema.encode(table[rows])
                    found = {*schema.remarks(table[rows], numbers)}
                    remarks = found if remarks is None else remarks & found
                    for side, chosen in enumerate((~is_test[rows], is_test[rows])):
                        if files:
                            files[side].write(numbers[chosen].data)
                        else:
                            parts[side].append(numbers[chosen])
                labels += [] if some is None else [some]
                tests.append(is_test)
            X, X_test = [_mapped(file, schema.width) for file in files] or map(np.concatenate, parts)
        except OSError as error:
            expected = f"room for {file.n_rows * schema.width * 8 / 2**30:.3g} GiB in the folder of temporary files"
            raise DataError(file.name, expected, error.strerror or type(error).__name__) from None
    for remark in sorted(remarks or ()):
        log.warning("FlyNN: %s", remark)
    classes, codes = coded_labels(np.concatenate(labels[1:] or labels), file.name)
    names, test = labels_of(classes, codes), np.concatenate(tests)
    return Share(X, names[~test], X_test, names[test], left_out=file.left_out)


def _mapped(file: IO[bytes], width: int) -> npt.NDArray[Any]:
    """Rows of a file. A map keeps its file open; writing to it would change memory alone."""
    file.flush()
    return np.memmap(file, np.float64, "c").reshape(-1, width) if file.tell() else np.empty((0, width))


def counted(file: TableFile) -> TableSummary:
    """Kinds, gaps and levels of the features in the rows that are not held out."""
    total = TableSummary({}, 0)
    for table, _, is_test in file.tables():
        total += TableSummary.counted(table if is_test is None else table[~is_test])
        for name, each in total.columns.items():
            if len(each.levels) > _MOST_TEXTS:
                kept = {text: n for text, n in each.levels.items() if n > 1}
                total = replace(total, columns={**total.columns, name: replace(each, levels=kept)})
    return total
