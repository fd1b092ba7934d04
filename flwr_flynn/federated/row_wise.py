"""Records one by one: what fits is hashed, what does not is left out, and none decides what becomes of another.

Where counts are to be private, a refusal because of one record would give that record away. So nothing here raises for
what a record holds: one with a missing or infinite value, with something that is no number, with numbers beyond what
can be hashed or with an unknown label is dropped. And no record changes how another is read: types are not inferred
from all of them together.

>>> import numpy as np
>>> from flwr_flynn import FlyHash, HashSpec
>>> hasher = FlyHash(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7))
>>> X = np.array([[0.0, 1.0], [np.nan, 1.0], [2.0, 1.0]])
>>> counts, dropped = count(hasher, ["cat", "dog"], X, ["cat", "dog", "owl"])
>>> counts.n_per_class, dropped
(array([1, 0]), 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError
from flwr_flynn.federated.protocol import Label, codebook
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts

Codes = npt.NDArray[np.int64]
Active = npt.NDArray[np.int32]

_HELD = 2**22  # values or active bits held at a time


def check_form(X: Any, y: Any) -> None:
    """Refuse points and labels of a form that no record decides: dimensions and numbers.

    Raises
    ------
    DataError
        Not a matrix with a label for each row. (A list of lists is no matrix: each of its records could make it none.)
    """
    if len(getattr(X, "shape", ())) != 2:
        raise DataError("X: expected a two-dimensional array, sparse matrix or data frame, got something else")
    if len(getattr(y, "shape", (0,))) != 1 or not hasattr(y, "__len__"):
        raise DataError("y: expected a sequence of labels, got something else")
    if len(y) != X.shape[0]:
        raise DataError("y: expected as many labels as points, got another number")


def count(
    hasher: FlyHash,
    classes: Sequence[Label],
    X: Any,
    y: Any,
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> tuple[ClassCounts, int]:
    """Counts of the records that fit, and how many do not.

    Parameters
    ----------
    hasher : FlyHash
        For as many features as `X` has columns.
    classes : sequence of str or of int
    X : (n, d) array, sparse matrix or data frame
    y : sequence of n labels
    n_jobs : int, optional
    progress : callable, optional
        Called with numbers of records just counted.

    Returns
    -------
    counts : ClassCounts
    n_dropped : int
    """
    array, n_counted = np.zeros((len(classes), hasher.hash_dim), np.int64), 0
    for active, codes in hashed(hasher, classes, X, y, n_jobs):
        np.add.at(array, (codes[:, None], active), 1)
        n_counted += len(codes)
        if progress is not None:
            progress(len(codes))
    counts = ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
    return counts, len(y) - n_counted


def hashed(
    hasher: FlyHash, classes: Sequence[Label], X: Any, y: Any, n_jobs: int | None = None
) -> Iterator[tuple[Active, Codes]]:
    """Active bits and class codes of the records that fit, some at a time."""
    codes = _codes(classes, y)
    points = X.tocsr() if sp.issparse(X) else X
    step = max(1, _HELD // max(hasher.hash_nnz, int(points.shape[1])))
    for first in range(0, len(codes), step):
        rows = slice(first, first + step)
        part, finite = _numbers(points, rows)
        keep = finite & (codes[rows] >= 0)
        yield from _hashed(hasher, part[keep], codes[rows][keep], n_jobs)


def _hashed(hasher: FlyHash, X: Any, codes: Codes, n_jobs: int | None) -> Iterator[tuple[Active, Codes]]:
    if not len(codes):
        return
    try:
        active = hasher.active(X, n_jobs=n_jobs)
    except Exception:  # noqa: BLE001 - one of them is too large for the hash, or whatever; which, halves tell
        middle = len(codes) // 2
        if middle:
            yield from _hashed(hasher, X[:middle], codes[:middle], n_jobs)
            yield from _hashed(hasher, X[middle:], codes[middle:], n_jobs)
        return
    yield active, codes


def _codes(classes: Sequence[Label], y: Any) -> Codes:
    """The class code of every label, -1 for those not in the class list."""
    code_of = codebook(classes)

    def code(label: Any) -> int:
        try:
            return code_of[label] if label in code_of else code_of.get(str(label), -1)
        except Exception:  # noqa: BLE001 - what cannot be looked up is no label, whatever keeps it
            return -1

    labels = y.tolist() if hasattr(y, "tolist") else y
    return np.fromiter((code(label) for label in labels), np.int64, len(y))


def _numbers(X: Any, rows: slice) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Some rows in a type that does not depend on other records, and which of them are finite."""
    if sp.issparse(X):
        part = X[rows]
        # Wider integers than these are not exact in the floats that other records would make of them.
        if part.dtype.kind not in "biuf" or (part.dtype.kind in "iu" and part.dtype.itemsize > 4):
            part = part.astype(np.float64)
        finite = np.ones(part.shape[0], bool)
        finite[np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))[~np.isfinite(part.data)]] = False
        return part, finite
    part = X.iloc[rows].to_numpy() if hasattr(X, "iloc") else np.asarray(X[rows])
    if part.dtype.kind not in "biuf":
        flat = (_number(value) for row in part.tolist() for value in row)
        part = np.fromiter(flat, np.float64, part.size).reshape(part.shape)
    elif (part.dtype.kind in "iu" and part.dtype.itemsize > 4) or part.dtype.itemsize > 8:
        part = part.astype(np.float64)
    return part, np.isfinite(part).all(axis=1)


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - what is no number is missing, whatever keeps it
        return np.nan
