"""Columns of a party's file: found by the names that the run announces, and named in messages.

>>> by_name(["weight", "bottle", "age"], ["age", "weight"], "a.csv")
([2, 0], ('bottle',))
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr_flynn.errors import DataError
from flwr_flynn.model.column_checks import listed


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
        raise DataError(
            f"{source}: expected features of different names, the run has {len(wanted) - len(indices)} again"
        )
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
    bad: Sequence[int], per_column: Sequence[int], n_columns: int, n_points: int, names: Sequence[str] | None = None
) -> str:
    """Name at most five columns of a file for a message: by names that everybody knows, or else by position.

    Parameters
    ----------
    bad : sequence of int
        Indices of the columns.
    per_column : sequence of int
        Number of samples concerned, for each of `bad`.
    n_columns, n_points : int
        Columns and samples of the file.
    names : sequence of str, optional
        Names of all columns.

    Returns
    -------
    str

    Examples
    --------
    >>> where([1], [3], 2, 50)
    '1 of 2 features: number 2 (3 of 50 points)'
    >>> where([0, 1], [3, 4], 2, 50, ["age", "weight"])
    '2 of 2 features: age (3 of 50 points), weight (4 of 50 points)'
    """
    called = [f"number {index + 1}" if names is None else names[index][:60] for index in bad]
    each = [f"{name} ({number} of {n_points} points)" for name, number in zip(called, per_column, strict=True)]
    return f"{len(bad)} of {n_columns} features: {listed(each)}"
