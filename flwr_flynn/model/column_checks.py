"""Columns: found by name, and those that cannot be hashed told by name and number, never by value.

>>> check_finite(np.array([[1.0, 2.0], [np.nan, 3.0]]), names=["age", "height"])
Traceback (most recent call last):
...
flwr_flynn.errors.DataError: X: NaN or infinity in 1 of 2 columns: age (1 of 2 points); fill them in or leave them out
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError

_LISTED = 5  # columns in a message


def by_name(columns: Sequence[str], wanted: Sequence[str], source: str) -> tuple[list[int], tuple[str, ...]]:
    """Where the features that a run announces stand among the columns of a file.

    Parameters
    ----------
    columns : sequence of str
        What the file has beside the label, whatever their order; others than the wanted ones do no harm.
    wanted : sequence of str
    source : str
        How messages call the file.

    Returns
    -------
    places : list of int
        Of the wanted columns, in the run's order.
    left_out : tuple of str
        The other columns.

    Raises
    ------
    DataError
        Wanted columns are not there, or there more than once. The message names those, and none of the file's own.

    Examples
    --------
    >>> by_name(["weight", "bottle", "age"], ["age", "weight"], "a.csv")
    ([2, 0], ('bottle',))
    >>> by_name(["weight", "bottle", "age"], ["age", "height"], "a.csv")
    Traceback (most recent call last):
    ...
    flwr_flynn.errors.DataError: a.csv: 1 of the run's 2 features are not among its 3 columns beside the label: height
    """
    places: dict[str, list[int]] = {name: [] for name in wanted}
    if len(places) < len(wanted):
        raise DataError(
            f"{source}: expected features of different names, the run has {len(wanted) - len(places)} again"
        )
    for place, name in enumerate(columns):
        if name in places:
            places[name].append(place)
    for trouble, bad in (
        ("are not", [name for name in wanted if not places[name]]),
        ("stand more than once", [name for name in wanted if len(places[name]) > 1]),
    ):
        if bad:
            raise DataError(
                f"{source}: {len(bad)} of the run's {len(wanted)} features {trouble} among its {len(columns)} columns "
                f"beside the label: {_listed([name[:60] for name in bad])}"
            )
    return [places[name][0] for name in wanted], tuple(name for name in columns if name not in places)


def where(
    bad: Sequence[int], per_column: Sequence[int], n_columns: int, n_points: int, names: Sequence[str] | None = None
) -> str:
    """Which columns of a file are meant, at most five: by names that everybody knows, or else by position.

    Parameters
    ----------
    bad : sequence of int
        Their positions, from 0.
    per_column : sequence of int
        For each of `bad`, how many points it is about.
    n_columns, n_points : int
        All there are.
    names : sequence of str, optional
        Of all columns.

    Examples
    --------
    >>> where([1], [3], 2, 50)
    '1 of 2 features: number 2 (3 of 50 points)'
    >>> where([0, 1], [3, 4], 2, 50, ["age", "weight"])
    '2 of 2 features: age (3 of 50 points), weight (4 of 50 points)'
    """
    called = [f"number {place + 1}" if names is None else names[place][:60] for place in bad]
    each = [f"{name} ({number} of {n_points} points)" for name, number in zip(called, per_column, strict=True)]
    return f"{len(bad)} of {n_columns} features: {_listed(each)}"


def check_columns(X: Any) -> None:
    """Refuse a data frame with columns that are not numbers.

    Parameters
    ----------
    X : anything
        Only data frames are looked at: objects with `columns` and `dtypes`.

    Raises
    ------
    DataError
        Columns of text, categories or times; the message names them.
    """
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None or not hasattr(X, "columns"):
        return
    bad = [
        str(name)[:60]
        for place, (name, dtype) in enumerate(zip(X.columns, dtypes, strict=True))
        if _is_text(X, place, dtype)
    ]
    if bad:
        raise DataError(
            f"X: {len(bad)} of {len(X.columns)} columns are not numbers: {_listed(bad)}; encode them first, for "
            "instance by OneHotEncoder in a ColumnTransformer"
        )


def check_finite(X: Any, names: Iterable[Any] | None = None) -> None:
    """Refuse NaN and infinity.

    Parameters
    ----------
    X : (n, d) array or scipy sparse
    names : d names, optional
        Else columns are called by their number, from 0.

    Raises
    ------
    DataError
        The message names columns and how many points lack them.
    """
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind != "f" or np.isfinite(np.sum(values)) or np.isfinite(values).all():
        return
    bad = _per_column(X)
    labels = [f"column {j}" for j in range(len(bad))] if names is None else [str(name)[:60] for name in names]
    told = [f"{labels[j]} ({bad[j]} of {X.shape[0]} points)" for j in np.flatnonzero(bad)]
    raise DataError(
        f"X: NaN or infinity in {len(told)} of {len(bad)} columns: {_listed(told)}; fill them in or leave them out"
    )


def _per_column(X: Any) -> npt.NDArray[np.int64]:
    if not sp.issparse(X):
        return np.asarray((~np.isfinite(X)).sum(axis=0), np.int64)
    entries = sp.coo_array(X)
    return np.bincount(entries.coords[1][~np.isfinite(entries.data)], minlength=X.shape[1]).astype(np.int64)


def _is_text(X: Any, place: int, dtype: Any) -> bool:
    """Whether a column is known not to be numbers; of others than pandas' scikit-learn is the judge."""
    kind = getattr(dtype, "kind", None)
    if kind is None or kind in "biuf":
        return False
    if kind == "O" and hasattr(X, "iloc") and str(dtype) == "object":  # numbers may hide in there
        return any(isinstance(value, str | bytes) for value in X.iloc[:, place])
    return True


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
