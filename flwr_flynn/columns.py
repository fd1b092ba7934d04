"""Columns that cannot be hashed, told by name and number, never by value.

>>> check_finite(np.array([[1.0, 2.0], [np.nan, 3.0]]), names=["age", "height"])
Traceback (most recent call last):
...
flwr_flynn.errors.DataError: X: NaN or infinity in 1 of 2 columns: age (1 of 2 points); fill them in or leave them out
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError

_LISTED = 5  # columns in a message


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
        str(name)
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
    labels = [f"column {j}" for j in range(len(bad))] if names is None else [str(name) for name in names]
    where = [f"{labels[j]} ({bad[j]} of {X.shape[0]} points)" for j in np.flatnonzero(bad)]
    raise DataError(
        f"X: NaN or infinity in {len(where)} of {len(bad)} columns: {_listed(where)}; fill them in or leave them out"
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
    shown = ", ".join(name[:60] for name in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
