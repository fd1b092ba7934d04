"""The fruit-fly hash: a specification every party expands to the same sparse matrix, and the hash it defines.

h(x) = the `hash_nnz` largest entries of M x, higher value first, then lower row index (paper, Equation 2). M has
`hash_dim` rows; each is a uniform `row_nnz`-subset of the `n_features` columns, of ones or, if `signed`, of +1 and -1.

>>> import numpy as np
>>> hasher = FlyHash(HashSpec(n_features=4, hash_dim=12, row_nnz=2, hash_nnz=3, seed=7))
>>> hasher.active(np.array([[4, 0, 0, 1], [0, 5, 2, 0]]))
array([[1, 2, 5],
       [3, 4, 7]], dtype=int32)

How the rows are drawn is described in `hashing.philox`, what waves are in `hashing.wave_features`.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.batching import Preparation, chunk_size, dense
from flwr_flynn.hashing.compiling import first_call
from flwr_flynn.hashing.philox import draw_rows, draw_signs
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.hashing.wave_features import Waves

Array = npt.NDArray[Any]


class FlyHash:
    """The hash that a specification defines.

    Parameters
    ----------
    spec : HashSpec

    Notes
    -----
    Arithmetic is part of the hash, since it decides between sums that are close. A point is added up exactly, in
    integers, if the spec has neither centre nor scale, all its values are whole, and `row_nnz` times the power of two
    at or above the largest magnitude is below 2**63. Every other point becomes (x - center) * scale in float64, is
    rounded once to float32, and added up in float32 over a row's columns in ascending order. Floats wider than float64
    are rounded to it first. So the result does not depend on the dtype, and a point times a power of two has the same
    hash, unless that makes a point whole that was not (or the reverse) whose sums float32 cannot hold.

    The result is the same on every machine, for float values below 1e-38 only if the process does not flush subnormal
    numbers to zero (some libraries built with -ffast-math switch that on).

    Attributes
    ----------
    spec : HashSpec or None
        None if the rows came from elsewhere (`from_rows`).
    n_features, hash_dim, row_nnz, hash_nnz : int
    rows : (hash_dim, row_nnz) int32 array
        Column indices of the non-zero entries of M, each row ascending. Read-only.
    signs : (hash_dim, row_nnz) int8 array or None
        The entries themselves, +1 and -1, if signed. Read-only.
    fingerprint : str
        SHA-256, in hexadecimal, over the specification and the rows.
    """

    def __init__(self, spec: HashSpec) -> None:
        if not isinstance(spec, HashSpec):
            raise SpecError(f"spec: expected a HashSpec, got {type(spec).__name__}")
        with first_call(("rows", spec.signed)):
            rows = draw_rows(np.uint64(spec.seed), spec.hash_dim, spec.n_inputs, spec.row_nnz)
            signs = draw_signs(np.uint64(spec.seed), spec.hash_dim, spec.row_nnz) if spec.signed else None
        self._set(spec, rows, signs, spec.n_features, spec.hash_nnz)

    @classmethod
    def from_rows(
        cls, rows: npt.ArrayLike, n_features: int, hash_nnz: int, signs: npt.ArrayLike | None = None
    ) -> FlyHash:
        """The hash of somebody else's lifting matrix. It has no seed, so it cannot be sent as a specification.

        Parameters
        ----------
        rows : (m, s) integers
            Column indices of the non-zero entries, each row strictly ascending, 0 <= index < n_features.
        n_features, hash_nnz : int
        signs : (m, s) of +1 and -1, optional
            The entries; all ones if left out.

        Raises
        ------
        SpecError
            The rows do not describe such a matrix.
        """
        columns = np.array(rows)
        if columns.ndim != 2 or columns.dtype.kind not in "iu" or 0 in columns.shape:
            raise SpecError(f"rows: expected an (m, s) array of integers, got {columns.dtype} of shape {columns.shape}")
        m, s = columns.shape
        HashSpec(n_features, m, s, hash_nnz, seed=0)  # the same bounds hold
        if int(columns.min()) < 0 or int(columns.max()) >= n_features:
            raise SpecError(f"rows: expected column indices 0 to {n_features - 1}")
        columns = columns.astype(np.int32)
        if not (np.diff(columns, axis=1) > 0).all():
            raise SpecError("rows: expected each row strictly ascending")
        entries = None
        if signs is not None:
            entries = np.array(signs)
            if entries.shape != columns.shape or entries.dtype.kind not in "iuf" or not np.isin(entries, (-1, 1)).all():
                raise SpecError(
                    f"signs: expected +1 and -1 of shape {columns.shape}, got {entries.dtype} of shape {entries.shape}"
                )
            entries = entries.astype(np.int8)
        hasher = cls.__new__(cls)
        hasher._set(None, columns, entries, n_features, hash_nnz)
        return hasher

    def _set(self, spec: HashSpec | None, rows: Array, signs: Array | None, n_features: int, hash_nnz: int) -> None:
        self.spec = spec
        self.rows, self.signs = rows, signs
        self.n_features, self.hash_nnz = int(n_features), int(hash_nnz)
        self.hash_dim, self.row_nnz = rows.shape
        rows.flags.writeable = False
        n_inputs = self.n_features if spec is None else spec.n_inputs
        # Unsigned spares the kernels Numba's wrap-around checks; half the width is half the memory traffic.
        reach = n_inputs * (1 if signs is None else 2)
        self._columns = rows.astype(np.uint16 if reach <= 2**16 else np.uint32)
        if signs is not None:
            signs.flags.writeable = False
            np.add(self._columns, n_inputs, out=self._columns, where=signs < 0)  # where negated columns stand
        self._center, self._scale = (
            None if spec is None or vector is None else np.array(vector)
            for vector in (None if spec is None else spec.center, None if spec is None else spec.scale)
        )
        self._waves = None
        center, scale = self._center, self._scale
        if spec is not None and spec.n_waves:
            self._waves = Waves(spec.seed, spec.n_waves, spec.wave_frequency, center, scale, spec.n_features)
            center = scale = None  # the waves see to both
        self._preparation = Preparation(n_inputs, self.row_nnz, signs is not None, center, scale)
        self.fingerprint = self._fingerprint()

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(b"flynn hash 1")
        seed = b"" if self.spec is None else struct.pack("<Q", self.spec.seed)
        digest.update(
            struct.pack("<4Q2B", self.n_features, *self.rows.shape, self.hash_nnz, self.signs is not None, len(seed))
        )
        digest.update(seed)
        for vector in (self._center, self._scale):
            digest.update(struct.pack("<B", vector is not None))
            if vector is not None:
                digest.update((vector + 0.0).astype("<f8").tobytes())  # -0.0 + 0.0 is 0.0
        digest.update(self.rows.astype("<i4").data)
        if self.signs is not None:
            digest.update(self.signs.data)
        if self.spec is not None and self.spec.n_waves:
            digest.update(struct.pack("<Qd", self.spec.n_waves, self.spec.wave_frequency))
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"FlyHash({self.spec!r})" if self.spec is not None else f"<FlyHash of given rows, m={self.hash_dim}>"

    def __reduce__(self) -> tuple[Callable[..., FlyHash], tuple[Any, ...]]:
        if self.spec is not None:
            return flynn_hash, (self.spec,)
        return FlyHash.from_rows, (self.rows, self.n_features, self.hash_nnz, self.signs)

    def active(self, X: npt.ArrayLike | sp.sparray | sp.spmatrix, n_jobs: int | None = None) -> npt.NDArray[np.int32]:
        """Active bits of each point.

        Parameters
        ----------
        X : (n, n_features) array or scipy sparse
            Any real dtype; finite.
        n_jobs : int, optional
            Threads: None for one, -1 for all that this process may use. The result does not depend on it.

        Returns
        -------
        (n, hash_nnz) int32 array
            The bits that are one, ascending.

        Raises
        ------
        DataError
            Wrong shape or type, NaN, infinity, or sums that would overflow float32.
        """
        points = self._points(X)
        out = np.empty((points.shape[0], self.hash_nnz), np.int32)

        def work(first: int, last: int) -> None:
            self._winners(points[first:last], out[first:last])

        self._over_chunks(points.shape[0], work, n_jobs)
        return out

    def fits(self, X: npt.NDArray[Any] | sp.csr_array) -> npt.NDArray[np.bool_]:
        """Which points `active` can hash; it refuses all of them because of one that it cannot.

        Each point is judged by its own values alone, and in the same time whatever they are.

        Parameters
        ----------
        X : (n, n_features) array or CSR matrix
            Of a real dtype; finite.
        """
        if self._waves is not None:
            return self._waves.fits(dense(X))
        return self._preparation.fits(X)

    def count(
        self,
        X: npt.ArrayLike | sp.sparray | sp.spmatrix,
        y: npt.ArrayLike,
        n_classes: int,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> npt.NDArray[np.int64]:
        """How often each bit fires per class: the training of Algorithm 1, without keeping the hashes.

        Parameters
        ----------
        X, n_jobs
            As for `active`.
        y : (n,) integers
            Class of each point, 0 <= y < n_classes.
        n_classes : int
        progress : callable, optional
            Called with the number of points of each chunk once they are counted, by one thread at a time.

        Returns
        -------
        (n_classes, hash_dim) int64 array
        """
        points = self._points(X)
        if isinstance(n_classes, bool) or not isinstance(n_classes, int | np.integer) or n_classes < 1:
            raise DataError(f"n_classes: expected a positive whole number, got {n_classes!r}")
        labels = np.asarray(y)
        if labels.shape != (points.shape[0],) or (labels.dtype.kind not in "iu" and labels.size):
            raise DataError(f"y: expected {points.shape[0]} class numbers, got {labels.dtype} of shape {labels.shape}")
        if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
            raise DataError(f"y: expected class numbers 0 to {n_classes - 1}")
        labels = labels.astype(np.int64)
        counts = np.zeros((n_classes, self.hash_dim), np.int64)
        one_at_a_time = threading.Lock()  # integer sums have no order, so threads may take turns as they come

        def work(first: int, last: int) -> None:
            active = np.empty((last - first, self.hash_nnz), np.int32)
            self._winners(points[first:last], active)
            with one_at_a_time:
                _add_counts(counts, labels[first:last], active)
                if progress is not None:
                    progress(last - first)

        self._over_chunks(points.shape[0], work, n_jobs)
        return counts

    def _points(self, X: Any) -> Any:
        """X as a two-dimensional array or CSR matrix of a real dtype."""
        if sp.issparse(X):
            points: Any = sp.csr_array(X)
        else:
            try:
                points = np.asarray(X)
            except ValueError:
                raise DataError(f"X: expected (n, {self.n_features}) points, got rows of different lengths") from None
        if points.ndim != 2 or points.shape[1] != self.n_features:
            raise DataError(f"X: expected (n, {self.n_features}) points, got shape {points.shape}")
        if points.dtype.kind not in "biuf":
            raise DataError(f"X: expected real numbers, got dtype {points.dtype}")
        return points

    def _winners(self, chunk: Any, out: npt.NDArray[np.int32]) -> None:
        if self._waves is not None:
            chunk = self._waves(dense(chunk))
        self._preparation.winners(chunk, self._columns, self.hash_nnz, out)

    def _over_chunks(self, n: int, work: Callable[[int, int], None], n_jobs: int | None) -> None:
        threads = n_threads(n_jobs)
        # Whole blocks, and several chunks for each thread, so that none of them waits long for another's last one.
        fitting = min(self._preparation.chunk_size, chunk_size(self.n_features))  # waves may be fewer than features
        step = min(fitting, -(-n // (256 * threads)) * 64) or 64
        chunks: Iterator[tuple[int, int]] = ((first, min(first + step, n)) for first in range(0, n, step))
        threads = min(threads, -(-n // step))
        if threads <= 1:
            for first, last in chunks:
                work(first, last)
            return
        with ThreadPoolExecutor(threads) as pool:
            try:
                for _ in pool.map(lambda chunk: work(*chunk), chunks):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@lru_cache(maxsize=8)
def flynn_hash(spec: HashSpec) -> FlyHash:
    """`FlyHash(spec)`, kept: a process that meets the same specification again does not draw it again."""
    return FlyHash(spec)


def n_threads(n_jobs: int | None) -> int:
    """Threads to use: None is one; -1 is every processor this process may use, -2 all but one, and so on.

    The processors a process may use are those of its affinity mask, but no more than OMP_NUM_THREADS, by which Ray
    tells its workers how many they were given.
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise ValueError(f"n_jobs: expected None or a whole number other than 0, got {n_jobs!r}")
    if n_jobs > 0:
        return int(n_jobs)
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdecimal() and int(given) > 0:
        mine = min(mine, int(given))
    return max(1, mine + 1 + int(n_jobs))


@njit(nogil=True, cache=True)
def _add_counts(counts, labels, active):  # type: ignore[no-untyped-def]
    for point in range(active.shape[0]):
        row = counts[labels[point]]
        for k in range(active.shape[1]):
            row[np.uint64(active[point, k])] += 1
