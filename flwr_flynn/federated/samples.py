"""Samples of a party, as the numbers that a run asks for.

Where exact figures leave the party, samples are refused as a whole if one does not fit.
Where counts are private, rows are read one by one, see `private_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from flwr_flynn._types import Array, Floats
from flwr_flynn.errors import ConfigError, DataError, PayloadError, with_rows
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Codes
from flwr_flynn.model import model
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, is_frame, names_of, places

Features = tuple[str, ...] | Schema
"""Names of the columns that are hashed as they stand, or the schema by which columns
become numbers."""


def checked_names(names: object, n_features: int) -> Features:
    """Names as a tuple of `n_features` strings, or a schema of as many numbers.

    A `ConfigError` for anything else.
    """
    checked = model.checked_names(names, n_features, ConfigError)
    if isinstance(checked, Schema):
        return replace(checked, label="", classes=())
    return checked


@dataclass(frozen=True)
class Samples:
    """Samples of one party."""

    X: Any  # (n, d) array-like or scipy sparse
    y: Any  # (n,) labels
    X_test: Any = None  # held-out samples for the evaluation
    y_test: Any = None
    names: Sequence[str] | None = None
    """Names of the columns of arrays that were read from a file with names."""
    ids: Sequence[bytes] | None = None
    """Keys of the persons of the training samples, of which several may have one."""
    units: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """See `Table`."""

    def tables(self, *, are_raw: bool = False) -> list[Any]:
        """The samples and those held out, as they are or, with `names`, as tables.

        The columns of a table are numbers, unless they `are_raw`.
        """
        tables = [self.X, self.X_test]
        if self.names is None or not isinstance(self.X, np.ndarray):
            return tables
        for index, X in enumerate(tables):
            if X is None:
                continue
            if not are_raw:
                X = X.astype(np.float64)
            tables[index] = Table(self.names, [*X.T], units=self.units)
        return tables


def labelled(
    samples: Samples,
    codes_of: Callable[[Any], Codes],
    n_features: int,
    features: Features,
) -> tuple[Array, Codes]:
    """Samples in a form that can be sliced, and the codes of their labels.

    They are refused as a whole if one does not fit. Gaps fit by a schema alone.
    """
    if sp.issparse(samples.X):
        X = samples.X.tocsr()
    else:
        X = np.asarray(samples.X)
    if X.ndim != 2:
        raise DataError("X", "shape (samples, features)", f"{X.ndim} dimension(s)")
    check_width(X.shape[1], n_features)
    codes = codes_of(samples.y)
    if len(codes) != X.shape[0]:
        error = DataError("y", "one label for every sample", "more or fewer")
        raise with_rows(error, f"{len(codes)} of {X.shape[0]}")
    numbers = X
    if sp.issparse(X):
        numbers = X.data
    if not isinstance(features, Schema) and _has_gaps(numbers):
        raise DataError("X", "no gaps in a run without a schema", "NaN")
    return X, codes


def _has_gaps(numbers: Array) -> bool:
    """True if a number is NaN; their sum, which is one then, is faster to look at."""
    if numbers.dtype.kind != "f" or not np.isnan(np.sum(numbers)):
        return False
    return bool(np.isnan(numbers).any())


def check_width(n_columns: int, n_features: int) -> None:
    """Refuse samples of another number of columns than the server's."""
    if n_columns != n_features:
        raise PayloadError(
            "n_features",
            f"the run's {n_features} columns",
            f"{n_columns} at this party",
        )


def prepared(
    samples: Samples,
    features: Features,
    is_given: bool,
    check_memory: Callable[[int, str, bool], None],
) -> Samples:
    """Samples as a run asks for them.

    Samples that were loaded by a schema may be numbers already.
    """
    is_table = isinstance(samples.X, Table) or is_frame(samples.X)
    if isinstance(features, Schema):
        if not (is_given or is_table or samples.names):
            return samples
        n = sum(len(X) for X in samples.tables() if X is not None)
        check_memory(16 * n * features.width, f"{features.width} numbers a row", False)
    elif not (is_table or samples.names):
        return samples
    X, X_test = samples.tables()
    if X is not None:
        X = _as_numbers(X, features)
    if X_test is not None:
        X_test = _as_numbers(X_test, features)
    return replace(samples, X=X, X_test=X_test, names=None)


def _as_numbers(X: object, features: Features) -> Array:
    """The rows of a table as numbers; the log has the remarks of a schema."""
    if not isinstance(features, Schema):
        return as_plain(Table.of(X), features)
    numbers, remarks = features.encoded(X)
    for remark in remarks:
        log.warning("FlyNN: %s", remark)
    return numbers


def has_names(X: object) -> bool:
    """True if the columns of a table have names.

    It is a table, its summary, or what `Table.of` takes.
    """
    if is_frame(X):
        return names_of(X) is not None
    return bool(getattr(X, "is_named", False))


def as_plain(table: Table, names: Sequence[str]) -> Floats:
    """The columns of these names, or all, as numbers without gaps.

    They are for a run without a schema.
    """
    indices: Sequence[int] = range(len(table.names))
    if names and table.is_named:
        indices = places("columns", table.names, names, "the features of the run")
    columns = []
    # Columns without names are known by their position.
    for index, name in zip(indices, names or table.names, strict=False):
        column = table.columns[index]
        if table.kinds[index] != "number":
            raise DataError(
                f"column {name[:60]!r}",
                "numbers in a run without a schema",
                table.kinds[index],
            )
        n_gaps = int(np.isnan(column).sum())
        if n_gaps:
            error = DataError(
                f"column {name[:60]!r}", "no gaps in a run without a schema", "some"
            )
            raise with_rows(error, f"{n_gaps} of {len(table)} rows")
        columns.append(column.astype(np.float64))
    if columns:
        return np.column_stack(columns)
    return np.empty((len(table), 0))
