"""Columns of a party's file: found by the names that the run announces, and named in messages.

>>> by_name(["weight", "bottle", "age"], ["age", "weight"], "a.csv")
([2, 0], ('bottle',))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_flynn.errors import DataError, with_names
from flwr_flynn.model.column_checks import listed

_NONE: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their use.

    Parameters
    ----------
    label, group : int
        Indices of the columns of labels and of ids; `group` may be None.
    order : list of int
        Indices of the features.
    names : tuple of str
        Names of the features.
    left_out : tuple of str
        The other columns.
    """

    label: int
    group: int | None
    order: list[int]
    names: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, name: str, columns: Sequence[str], label: str, group: str, features: Sequence[str]) -> Layout:
        """The layout of a file's columns: the features asked for, or every column but the label and the group.

        Raises
        ------
        DataError
            Columns have the same name, or one is not there. Names of the file's own columns are a note of the error.
        """
        if n_same := len(columns) - len(set(columns)):
            raise DataError(name, "columns of different names", f"{len(columns)} columns, {n_same} of them named again")
        for role, column in (("label", label), ("partition-by", group)):
            if column and column not in columns:
                error = DataError(f"{name}: no column {column!r} for the {role} among {len(columns)}")
                raise with_names(error, columns)
        rest = [index for index, column in enumerate(columns) if column != label and (column != group or not group)]
        order, left_out = list(range(len(rest))), _NONE
        if features:
            order, left_out = by_name([columns[index] for index in rest], features, name)
        chosen = [rest[index] for index in order]
        return cls(
            columns.index(label),
            columns.index(group) if group else None,
            chosen,
            tuple(columns[index] for index in chosen),
            left_out,
        )


def by_name(columns: Sequence[str], wanted: Sequence[str], source: str) -> tuple[list[int], tuple[str, ...]]:
    """Find the features that a run announces among the columns of a file.

    Parameters
    ----------
    columns : sequence of str
        Columns of the file beside the label, in any order. Further columns are left out.
    wanted : sequence of str
        Features of the run.
    source : str
        Name of the file in messages.

    Returns
    -------
    indices : list of int
        Indices of the wanted columns, in the run's order.
    left_out : tuple of str
        The other columns.

    Raises
    ------
    DataError
        Wanted columns are missing, or there more than once. The message names these, and no other column of the file.

    Examples
    --------
    >>> by_name(["weight", "bottle", "age"], ["age", "weight"], "a.csv")
    ([2, 0], ('bottle',))
    >>> by_name(["weight", "bottle", "age"], ["age", "height"], "a.csv")
    Traceback (most recent call last):
    ...
    flwr_flynn.errors.DataError: a.csv: 1 of the run's 2 features are not among its 3 columns beside the label: height
    """
    indices: dict[str, list[int]] = {name: [] for name in wanted}
    if len(indices) < len(wanted):
        raise DataError(source, "features of different names", f"{len(wanted) - len(indices)} of the run's again")
    for index, name in enumerate(columns):
        if name in indices:
            indices[name].append(index)
    for trouble, bad in (
        ("are not", [name for name in wanted if not indices[name]]),
        ("stand more than once", [name for name in wanted if len(indices[name]) > 1]),
    ):
        if bad:
            raise DataError(
                f"{source}: {len(bad)} of the run's {len(wanted)} features {trouble} among its {len(columns)} columns "
                f"beside the label: {listed([name[:60] for name in bad])}"
            )
    return [indices[name][0] for name in wanted], tuple(name for name in columns if name not in indices)


def where(
    bad: Sequence[int], per_column: Sequence[int], n_columns: int, n_samples: int, names: Sequence[str] | None = None
) -> str:
    """Name at most five columns of a file for a message: by names that everybody knows, or else by position.

    Parameters
    ----------
    bad : sequence of int
        Indices of the columns.
    per_column : sequence of int
        Number of samples concerned, for each of `bad`.
    n_columns, n_samples : int
        Columns and samples of the file.
    names : sequence of str, optional
        Names of all columns.

    Returns
    -------
    str

    Examples
    --------
    >>> where([1], [3], 2, 50)
    '1 of 2 features: number 2 (3 of 50 samples)'
    >>> where([0, 1], [3, 4], 2, 50, ["age", "weight"])
    '2 of 2 features: age (3 of 50 samples), weight (4 of 50 samples)'
    """
    called = [f"number {index + 1}" if names is None else names[index][:60] for index in bad]
    each = [f"{name} ({number} of {n_samples} samples)" for name, number in zip(called, per_column, strict=True)]
    return f"{len(bad)} of {n_columns} features: {listed(each)}"
