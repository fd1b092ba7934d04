"""Samples and labels of a party: as the numbers that a run asks for, and looked up in
its list of classes.

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

from flwr_flynn.errors import ConfigError, DataError, PayloadError, with_rows
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, is_frame, names_of, places

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""


Codes = npt.NDArray[np.int64]


# -------- labels and names


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> npt.NDArray[np.int64]:
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
        kind = (
            f"{len(classes)} {'strings' if isinstance(classes[0], str) else 'integers'}"
        )
        text = (
            f"y: some labels are not in the class list ({kind}; y has dtype "
            f"{labels.dtype})"
        )
        error = DataError("y", f"labels among {kind}", "some that are not", text=text)
        raise with_rows(error, f"{unknown} of {len(codes)} labels")
    return codes


def codebook(classes: Sequence[Label]) -> dict[Any, int]:
    """The code of every form in which a label of the class list may come."""
    code_of: dict[Any, int] = {}
    for code, label in enumerate(classes):
        if isinstance(label, int):
            code_of |= {label: code, str(label): code, f"{label}.0": code}
        else:
            code_of[label] = code
            if PLAIN_INTEGER.fullmatch(label):
                code_of[int(label)] = code
    return code_of


def checked_classes(classes: Any) -> tuple[Label, ...]:
    """A class list as a tuple of different strings or different integers."""
    if isinstance(classes, str | bytes | Mapping | Set) or not isinstance(
        classes, Iterable
    ):
        raise ConfigError(
            "classes", "a list of strings or integers", type(classes).__name__
        )
    # item() makes Python's values of NumPy's scalars.
    labels = [
        label.item() if isinstance(label, np.generic) else label for label in classes
    ]
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
    if kinds == {str} and (longest := max(map(len, labels))) > 1024:
        raise ConfigError(
            "classes", "labels of at most 1024 characters", f"one of {longest}"
        )
    return tuple(labels)


Features = tuple[str, ...] | Schema
"""Names of the columns that are hashed as they stand, or the schema by which columns
become numbers."""


def checked_names(names: Any, n_features: int) -> Features:
    """Names as a tuple of `n_features` strings, or a schema of as many numbers; a
    `ConfigError` for anything else.
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
    # str() makes Python's strings of NumPy's.
    checked = tuple(str(name) if isinstance(name, str) else name for name in names)
    if len(checked) != n_features or not all(isinstance(name, str) for name in checked):
        raise ConfigError(
            "feature_names",
            f"{n_features} strings (n_features)",
            f"{len(checked)} entries",
        )
    return checked


# -------- samples as a whole


@dataclass(frozen=True)
class Samples:
    """Samples of one party."""

    X: Any  # (n, d) array-like or scipy sparse
    y: Any  # (n,) labels
    X_test: Any = None  # held-out samples for the evaluation
    y_test: Any = None
    # of the columns of arrays that were read from a file with names
    names: Sequence[str] | None = None

    def tables(self) -> list[Any]:
        """The samples and those held out, as they are or, with `names`, as tables."""
        if self.names is None or not isinstance(self.X, np.ndarray):
            return [self.X, self.X_test]
        return [
            None if X is None else Table(self.names, [*X.T.astype(np.float64)])
            for X in (self.X, self.X_test)
        ]


def labelled(
    samples: Samples,
    codes_of: Callable[[Any], Codes],
    n_features: int,
    *,
    with_gaps: bool = False,
) -> tuple[Any, Codes]:
    """Samples in a form that can be sliced, and the codes of their labels; refused as a
    whole if one does not fit.
    """
    if sp.issparse(samples.X):
        X: Any = samples.X.tocsr()
    else:
        X = np.asarray(samples.X)
    if X.ndim != 2:
        raise DataError("X", "shape (samples, features)", f"{X.ndim} dimension(s)")
    check_width(X.shape[1], n_features)
    codes = codes_of(samples.y)
    if len(codes) != X.shape[0]:
        error = DataError("y", "one label for every sample", "more or fewer")
        raise with_rows(error, f"{len(codes)} of {X.shape[0]}")
    if sp.issparse(X):
        values = X.data
    else:
        values = X
    if (
        not with_gaps
        and values.dtype.kind == "f"
        and np.isnan(np.sum(values))
        and np.isnan(values).any()
    ):
        raise DataError("X", "no gaps in a run without a schema", "NaN")
    return X, codes


def check_width(n_columns: int, n_features: int) -> None:
    """Refuse samples of another number of columns than the server's."""
    if n_columns != n_features:
        raise PayloadError(
            "n_features",
            f"the run's {n_features} columns",
            f"{n_columns} at this party",
        )


_MANY = 10  # values that are no matter of chance


def prepared(
    samples: Samples,
    features: Features,
    is_given: bool,
    check_memory: Callable[[int, str, bool], None],
) -> Samples:
    """Samples as a run asks for them; those that were loaded by a schema may be numbers
    already.
    """
    is_table = isinstance(samples.X, Table) or is_frame(samples.X)
    if isinstance(features, Schema):
        if not (is_given or is_table or samples.names):
            return samples
        n = sum(len(X) for X in samples.tables() if X is not None)
        check_memory(16 * n * features.width, f"{features.width} numbers a row", False)
    elif not (is_table or samples.names):
        return samples
    X, X_test = (
        None if X is None else _as_numbers(X, features) for X in samples.tables()
    )
    return Samples(X, samples.y, X_test, samples.y_test)


def _as_numbers(X: Any, features: Features) -> npt.NDArray[Any]:
    """The rows of a table as numbers; the log has what is remarkable about those of a
    schema.
    """
    table = Table.of(X)
    if not isinstance(features, Schema):
        return as_plain(table, features)
    numbers = features.encode(table)
    for remark in features.remarks(table, numbers):
        log.warning("FlyNN: %s", remark)
    return numbers


def has_names(X: Any) -> bool:
    """True for a table, its summary, or what `Table.of` takes, whose columns have
    names.
    """
    if is_frame(X):
        return names_of(X) is not None
    return bool(getattr(X, "is_named", False))


def as_plain(table: Table, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """The columns of these names, or all, as numbers without gaps, for a run without a
    schema.
    """
    indices: Sequence[int] = range(len(table.names))
    if names and table.is_named:
        indices = places("columns", table.names, names, "the features of the run")
    columns = []
    for index, name in zip(
        indices, names or table.names, strict=len(indices) == len(names)
    ):
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


def elsewhere(
    specs: Sequence[HashSpec], schema: Schema, X: npt.NDArray[np.float64]
) -> list[str]:
    """Names of the columns whose values, numbers or dates, are all far from those of
    the others: another unit?

    Between them and the edges beyond is a gap of three times the range of these edges,
    at least a quarter of all.
    """
    edges = next(
        (np.array(spec.edges) for spec in specs if spec.edges is not None), None
    )
    found = []
    index = 0
    if edges is None:
        return []
    for column in schema.columns:
        if (
            column.kind != "category"
            and len(values := X[~np.isnan(X[:, index]), index]) >= _MANY
        ):
            low = values.min()
            high = values.max()
            row = edges[index]
            below = row[row < low]
            above = row[row > high]
            is_far = (
                len(below) >= len(row) // 4
                and low - below[-1] > 3 * (below[-1] - below[0]) > 0
            )
            is_far |= (
                len(above) >= len(row) // 4
                and above[0] - high > 3 * (above[-1] - above[0]) > 0
            )
            found += [column.name] if is_far else []
        index += column.width
    return found


# -------- subgroups

OTHER = "(other)"
MISSING = "(missing)"
"""Names of the subgroups of no level."""


def subgroup_names(features: Any, column: str) -> tuple[str, ...]:
    """Names of the subgroups by a column; () where it is no category of a schema."""
    found = _found(features, column)
    if found is None:
        return ()
    return (*found[0].levels, OTHER, MISSING)


def subgroup_codes(features: Any, column: str, X: Any) -> npt.NDArray[np.int64]:
    """Index of each sample among `subgroup_names`, (n,) int64, from the numbers of the
    rows.
    """
    found = _found(features, column)
    assert found is not None  # else there are no names
    category, first = found
    n_levels = len(category.levels)
    numbers = np.asarray(X[:, first : first + category.width])
    is_level = numbers[:, :n_levels] > 0
    codes = np.where(
        is_level.any(axis=1), is_level.argmax(axis=1) if n_levels else 0, n_levels
    )
    if category.gaps:
        codes[numbers[:, -1] > 0] = n_levels + 1
    return codes.astype(np.int64, copy=False)


def _found(features: Any, name: str) -> tuple[Column, int] | None:
    """The category of this name, and the index of its first number."""
    first = 0
    for column in features.columns if isinstance(features, Schema) else ():
        if column.name == name:
            if column.kind == "category":
                return (column, first)
            return None
        first += column.width
    return None
