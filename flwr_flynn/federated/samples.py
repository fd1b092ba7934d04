"""Samples and labels of a party, as the numbers and class codes that a run asks for.

Where exact figures leave the party, samples are refused as a whole if one does not fit.
Where counts are private, rows are read one by one, see `private_rows`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn._types import Array, Floats, Integers
from flwr_flynn.errors import ConfigError, DataError, PayloadError, with_rows
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, is_frame, names_of, places

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""


Codes = Integers
"""Class codes, 0 to L - 1."""


# -------- labels and names


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> Codes:
    """The class code, 0 to L - 1, of every label."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError("y", "shape (samples,)", f"{labels.ndim} dimensions")
    code_of = codebook(classes)
    try:
        codes = np.fromiter(
            (code_of.get(label, -1) for label in labels.tolist()), np.int64, len(labels)
        )
    except TypeError:
        raise DataError(
            "y", "strings or integers as labels", "unhashable objects"
        ) from None
    unknown = int((codes < 0).sum())
    if unknown:
        kind = f"{len(classes)} integers"
        if isinstance(classes[0], str):
            kind = f"{len(classes)} strings"
        text = (
            f"y: some labels are not in the class list ({kind}; y has dtype "
            f"{labels.dtype})"
        )
        error = DataError("y", f"labels among {kind}", "some that are not", text=text)
        raise with_rows(error, f"{unknown} of {len(codes)} labels")
    return codes


def codebook(classes: Sequence[Label]) -> dict[Label, int]:
    """The code of every form in which a label of the class list may come."""
    code_of: dict[Label, int] = {}
    for code, label in enumerate(classes):
        if isinstance(label, int):
            code_of |= {label: code, str(label): code, f"{label}.0": code}
        else:
            code_of[label] = code
            if PLAIN_INTEGER.fullmatch(label):
                code_of[int(label)] = code
    return code_of


def checked_classes(classes: object) -> tuple[Label, ...]:
    """A class list as a tuple of different strings or different integers."""
    is_unordered = isinstance(classes, str | bytes | Mapping | Set)
    if is_unordered or not isinstance(classes, Iterable):
        raise ConfigError(
            "classes", "a list of strings or integers", type(classes).__name__
        )
    labels = [_plain(label) for label in classes]
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ConfigError("classes", "only strings or only integers", got)
    if len(set(labels)) < len(labels):
        raise ConfigError(
            "classes",
            "different labels",
            f"{len(labels) - len(set(labels))} duplicates",
        )
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ConfigError("classes", "integers within int64", "one outside")
    # NumPy drops a trailing NUL, which would make two labels one.
    if kinds == {str} and any("\0" in label for label in labels):
        raise ConfigError("classes", "labels without NUL", "one with NUL")
    if kinds == {str}:
        longest = max(map(len, labels))
        if longest > 1024:
            raise ConfigError(
                "classes", "labels of at most 1024 characters", f"one of {longest}"
            )
    return tuple(labels)


def _plain(label: Any) -> Any:
    """Python's value of a scalar of NumPy, or the value itself."""
    if isinstance(label, np.generic):
        return label.item()
    return label


Features = tuple[str, ...] | Schema
"""Names of the columns that are hashed as they stand, or the schema by which columns
become numbers."""


def checked_names(names: object, n_features: int) -> Features:
    """Names as a tuple of `n_features` strings, or a schema of as many numbers.

    A `ConfigError` for anything else.
    """
    if isinstance(names, Schema):
        if names.width != n_features:
            raise ConfigError(
                "feature_names",
                f"a schema of {n_features} numbers a row (n_features)",
                names.width,
            )
        return replace(names, label="", classes=())
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ConfigError(
            "feature_names", f"{n_features} strings", type(names).__name__
        )
    given = tuple(names)
    if len(given) != n_features or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            "feature_names",
            f"{n_features} strings (n_features)",
            f"{len(given)} entries",
        )
    # str() makes Python's strings of NumPy's.
    return tuple(str(name) for name in given)


# -------- samples as a whole


@dataclass(frozen=True)
class Samples:
    """Samples of one party."""

    X: Any  # (n, d) array-like or scipy sparse
    y: Any  # (n,) labels
    X_test: Any = None  # held-out samples for the evaluation
    y_test: Any = None
    names: Sequence[str] | None = None
    """Names of the columns of arrays that were read from a file with names."""

    def tables(self) -> list[Any]:
        """The samples and those held out, as they are or, with `names`, as tables."""
        tables = [self.X, self.X_test]
        if self.names is None or not isinstance(self.X, np.ndarray):
            return tables
        for index, X in enumerate(tables):
            if X is not None:
                tables[index] = Table(self.names, [*X.T.astype(np.float64)])
        return tables


def labelled(
    samples: Samples,
    codes_of: Callable[[Any], Codes],
    n_features: int,
    *,
    with_gaps: bool = False,
) -> tuple[Array, Codes]:
    """Samples in a form that can be sliced, and the codes of their labels.

    They are refused as a whole if one does not fit.
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
    if not with_gaps and _has_gaps(numbers):
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


_MANY = 10
"""Values of a column whose place is no matter of chance, at least."""


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
    return Samples(X, samples.y, X_test, samples.y_test)


def _as_numbers(X: object, features: Features) -> Array:
    """The rows of a table as numbers; the log has the remarks of a schema."""
    table = Table.of(X)
    if not isinstance(features, Schema):
        return as_plain(table, features)
    numbers = features.encode(table)
    for remark in features.remarks(table, numbers):
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
        if column.dtype.kind != "f":
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
        columns.append(column)
    if columns:
        return np.column_stack(columns)
    return np.empty((len(table), 0))


def elsewhere(specs: Sequence[HashSpec], schema: Schema, X: Floats) -> list[str]:
    """Names of the columns whose values are all far from those of others.

    The values, numbers or dates, may have another unit. Between them and the edges
    beyond is a gap of three times the range of these edges, at least a quarter of all.
    """
    edges = next(
        (np.array(spec.edges) for spec in specs if spec.edges is not None), None
    )
    names: list[str] = []
    if edges is None:
        return names
    index = 0
    for column in schema.columns:
        if column.kind != "category":
            numbers = X[~np.isnan(X[:, index]), index]
            if len(numbers) >= _MANY and _are_far(numbers, edges[index]):
                names.append(column.name)
        index += column.width
    return names


def _are_far(numbers: Floats, edges: Floats) -> bool:
    low = numbers.min()
    high = numbers.max()
    few = len(edges) // 4
    below = edges[edges < low]
    if len(below) >= few and low - below[-1] > 3 * (below[-1] - below[0]) > 0:
        return True
    above = edges[edges > high]
    return bool(len(above) >= few and above[0] - high > 3 * (above[-1] - above[0]) > 0)


# -------- subgroups

OTHER = "(other)"
MISSING = "(missing)"
"""Names of the subgroups of no level."""


def subgroup_names(features: object, column: str) -> tuple[str, ...]:
    """Names of the subgroups by a column; () where it is no category of a schema."""
    placed = _category(features, column)
    if placed is None:
        return ()
    category, _ = placed
    return (*category.levels, OTHER, MISSING)


def subgroup_codes(features: object, column: str, X: Array) -> Codes:
    """Index of each sample among `subgroup_names`, (n,), from the numbers of the rows."""
    placed = _category(features, column)
    assert placed is not None  # else there are no names
    category, first = placed
    n_levels = len(category.levels)
    numbers = np.asarray(X[:, first : first + category.width])
    codes = np.full(len(numbers), n_levels, np.int64)
    is_level = numbers[:, :n_levels] > 0
    if n_levels:
        has_level = is_level.any(axis=1)
        codes[has_level] = is_level.argmax(axis=1)[has_level]
    if category.gaps:
        codes[numbers[:, -1] > 0] = n_levels + 1
    return codes


def _category(features: object, name: str) -> tuple[Column, int] | None:
    """The category of this name, and the index of its first number."""
    if not isinstance(features, Schema):
        return None
    first = 0
    for column in features.columns:
        if column.name == name:
            if column.kind == "category":
                return (column, first)
            return None
        first += column.width
    return None
