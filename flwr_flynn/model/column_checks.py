"""Checks of columns that cannot be hashed: text, NaN and infinity, told by name and number, never by value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError

_LISTED = 5  # columns in a message


def check_columns(X: Any) -> None:
    """Refuse a data frame (an object with `columns` and `dtypes`) with columns of text, categories or times."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None or not hasattr(X, "columns"):
        return
    bad = [
        str(name)[:60]
        for index, (name, dtype) in enumerate(zip(X.columns, dtypes, strict=True))
        if _is_text(X, index, dtype)
    ]
    if bad:
        expected = "numbers (encode text first, for example by OneHotEncoder in a ColumnTransformer)"
        raise DataError("X", expected, f"{len(bad)} of {len(X.columns)} columns that are not: {listed(bad)}")


def check_finite(X: Any, names: Iterable[Any] | None = None) -> None:
    """Refuse NaN and infinity in X, (n, d), dense or sparse; `names` default to the indices of the columns."""
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind != "f" or np.isfinite(np.sum(values)) or np.isfinite(values).all():
        return
    bad = _per_column(X)
    labels = [f"column {j}" for j in range(len(bad))] if names is None else [str(name)[:60] for name in names]
    named = [f"{labels[j]} ({bad[j]} of {X.shape[0]} samples)" for j in np.flatnonzero(bad)]
    expected = "finite numbers (fill in or drop the others)"
    raise DataError("X", expected, f"NaN or infinity in {len(named)} of {len(bad)} columns: {listed(named)}")


def _per_column(X: Any) -> npt.NDArray[np.int64]:
    """Number of entries of each column that are NaN or infinite, (d,) int64."""
    if not sp.issparse(X):
        return np.asarray((~np.isfinite(X)).sum(axis=0), np.int64)
    entries = sp.coo_array(X)
    return np.bincount(entries.col[~np.isfinite(entries.data)], minlength=X.shape[1]).astype(np.int64)


def _is_text(X: Any, index: int, dtype: Any) -> bool:
    """True if a column is known not to hold numbers; scikit-learn judges dtypes that are not of pandas or NumPy."""
    kind = getattr(dtype, "kind", None)
    if kind is None or kind in "biuf":
        return False
    if kind == "O" and hasattr(X, "iloc") and str(dtype) == "object":  # may hold numbers
        return any(isinstance(value, str | bytes) for value in X.iloc[:, index])
    return True


def listed(names: list[str]) -> str:
    """Join at most five names, with the number of the others."""
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
