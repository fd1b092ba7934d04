"""Fruit-fly hash: a specification that every party expands to the same sparse matrix."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit

from flwr_flynn._types import Array, Integers, Mask
from flwr_flynn._validation import integer, integers, n_threads
from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.batching import BatchEncoder, batches, chunk_size, dense
from flwr_flynn.hashing.philox import (
    TriangleFeatures,
    draw_rows,
    draw_signs,
    draw_weighted_rows,
)
from flwr_flynn.hashing.rank_codes import RankCodes
from flwr_flynn.hashing.spec import HashSpec

MOST_REMEMBERED = 2**21
"""Active bits that a hash remembers, at most, 8 MiB."""

Samples: TypeAlias = npt.ArrayLike | sp.sparray | sp.spmatrix
# Called with the number of samples of each chunk that is done.
Progress = Callable[[int], object]


class FlyHash:
    """Fruit-fly hash: h(x) = the `hash_nnz` largest entries of M x, higher value first,
    then lower row index.

    Equation 2 of Ram & Sinha (AAAI 2022). Each of the `hash_dim` rows of M is a uniform
    `row_nnz`-subset of the columns, of ones or, if signed, of +1 and -1.
    `hashing.philox` draws the rows.

    Parameters
    ----------
    spec : HashSpec

    Attributes
    ----------
    spec : HashSpec or None
        None for given rows (`from_rows`).
    rows : (hash_dim, row_nnz) int32 array
        Column indices of the nonzero entries of M, each row ascending. Read-only.
    signs : (hash_dim, row_nnz) int8 array or None
        The entries, +1 and -1, if signed. Read-only.
    fingerprint : str
        SHA-256 over the specification and the rows, 64 hexadecimal digits.

    Raises
    ------
    SpecError
        `spec` is no HashSpec.

    Notes
    -----
    Arithmetic is part of the hash. A sample is summed exactly, in integers, if the spec
    has neither centre nor scale, all values are integers, and `row_nnz` times the power
    of two at or above the largest magnitude is below 2**63. Every other sample becomes
    (x - center) * scale in float64, is rounded once to float32, and is summed in
    float32 over the columns of a row in ascending order. So the dtype does not matter,
    and the result is the same on every machine whose process does not flush subnormal
    floats to zero.

    Examples
    --------
    >>> hasher = FlyHash(HashSpec(n_features=4, hash_dim=12, row_nnz=2, hash_nnz=3, seed=7))
    >>> hasher.active([[4, 0, 0, 1], [0, 5, 2, 0]])
    array([[1, 2, 5],
           [3, 4, 7]], dtype=int32)
    """

    def __init__(self, spec: HashSpec) -> None:
        if not isinstance(spec, HashSpec):
            raise SpecError("spec", "a HashSpec", type(spec).__name__)
        seed = np.uint64(spec.seed)
        if spec.row_weights is None:
            rows = draw_rows(seed, spec.hash_dim, spec.n_inputs, spec.row_nnz)
        else:
            up_to = np.cumsum(np.array(spec.row_weights, np.uint64))
            rows = draw_weighted_rows(
                seed, spec.hash_dim, up_to, max(spec.n_codes, 1), spec.row_nnz
            )
        rows.sort(axis=1)
        signs = None
        if spec.signed:
            signs = draw_signs(seed, spec.hash_dim, spec.row_nnz)
        self._set(spec, rows, signs, spec.n_features, spec.hash_nnz)

    @classmethod
    def from_rows(
        cls,
        rows: npt.ArrayLike,
        n_features: int,
        hash_nnz: int,
        signs: npt.ArrayLike | None = None,
    ) -> FlyHash:
        """Hash of a given lifting matrix.

        It has no seed, so it cannot be sent as a specification.

        Parameters
        ----------
        rows : (m, s) integers
            Column indices of the nonzero entries, each row strictly ascending, or a
            `SpecError`.
        n_features, hash_nnz : int
        signs : (m, s) integers, optional
            The nonzero entries, +1 or -1, or a `SpecError`. Default: all 1.
        """
        n_features = integer("n_features", n_features, error=SpecError)
        shape = (None, None)
        columns = integers("rows", rows, shape, 0, n_features - 1, SpecError)
        m, s = columns.shape
        HashSpec(n_features, m, s, hash_nnz, seed=0)  # the same bounds hold
        columns = columns.astype(np.int32)
        unordered = np.flatnonzero((np.diff(columns, axis=1) <= 0).any(axis=1))
        if len(unordered):
            raise SpecError(
                "rows",
                "strictly ascending indices in each row",
                f"row {int(unordered[0])} is not",
            )
        entries = None
        if signs is not None:
            entries = np.array(signs)
            if (
                entries.shape != columns.shape
                or entries.dtype.kind not in "iuf"
                or not np.isin(entries, (-1, 1)).all()
            ):
                expected = f"+1 and -1 of shape {columns.shape}"
                raise SpecError(
                    "signs", expected, f"{entries.dtype} of shape {entries.shape}"
                )
            entries = entries.astype(np.int8)
        hasher = cls.__new__(cls)
        hasher._set(None, columns, entries, n_features, hash_nnz)
        return hasher

    def _set(
        self,
        spec: HashSpec | None,
        rows: Array,
        signs: Array | None,
        n_features: int,
        hash_nnz: int,
    ) -> None:
        self.spec = spec
        self.rows = rows
        self.signs = signs
        self.n_features = int(n_features)
        self.hash_nnz = int(hash_nnz)
        self.hash_dim, self.row_nnz = rows.shape
        rows.flags.writeable = False
        if spec is None:
            n_inputs = self.n_features
        else:
            n_inputs = spec.n_inputs
        # Unsigned indices spare the kernels Numba's wrap-around checks; half the width
        # is half the memory traffic.
        n_columns = n_inputs
        if signs is not None:
            n_columns = 2 * n_inputs
        index_type: npt.DTypeLike = np.uint32
        if n_columns <= 2**16:
            index_type = np.uint16
        self._columns = rows.astype(index_type)
        if signs is not None:
            signs.flags.writeable = False
            # The negated columns follow.
            np.add(self._columns, n_inputs, out=self._columns, where=signs < 0)
        self._center: Array | None = None
        self._scale: Array | None = None
        if spec is not None and spec.center is not None:
            self._center = np.array(spec.center)
        if spec is not None and spec.scale is not None:
            self._scale = np.array(spec.scale)
        self._features: TriangleFeatures | RankCodes | None = None
        center = self._center
        scale = self._scale
        if spec is not None and spec.n_waves:
            frequency = spec.wave_frequency
            self._features = TriangleFeatures(
                spec.seed, spec.n_waves, frequency, center, scale, spec.n_features
            )
            # They are part of the features.
            center = None
            scale = None
        elif spec is not None and spec.coding:
            self._features = RankCodes(
                np.array(spec.edges), spec.n_codes, spec.coding, spec.signed
            )
        # In the place of a gap: nothing of a column is left at its centre, and rank
        # codes have none.
        if spec is not None and spec.coding:
            self._gaps: float | Array | None = np.nan
        else:
            self._gaps = self._center
        self._encoder = BatchEncoder(
            n_inputs, self.row_nnz, signs is not None, center, scale
        )
        self.fingerprint = self._fingerprint()
        self._recent: dict[bytes, npt.NDArray[np.int32]] = {}
        self._remembering = threading.Lock()

    @property
    def takes_gaps(self) -> bool:
        """True if NaN is a gap, and no error."""
        return self._gaps is not None

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(b"flynn hash 1")
        seed = b""
        if self.spec is not None:
            seed = struct.pack("<Q", self.spec.seed)
        sizes = (self.n_features, *self.rows.shape, self.hash_nnz)
        digest.update(
            struct.pack("<4Q2B", *sizes, self.signs is not None, len(seed)) + seed
        )
        for vector in (self._center, self._scale):
            digest.update(struct.pack("<B", vector is not None))
            if vector is not None:
                # -0.0 + 0.0 is 0.0
                digest.update((vector + 0.0).astype("<f8").tobytes())
        digest.update(self.rows.astype("<i4").data)
        if self.signs is not None:
            digest.update(self.signs.data)
        spec = self.spec
        if spec is not None:
            if spec.n_waves:
                digest.update(struct.pack("<Qd", spec.n_waves, spec.wave_frequency))
            if spec.edges is not None:
                edges = np.array(spec.edges, "<f8")
                digest.update(
                    f"{spec.coding} {spec.n_codes} {edges.shape} ".encode()
                    + edges.tobytes()
                )
            if spec.row_weights is not None:
                digest.update(b"weights " + np.array(spec.row_weights, "u1").tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        if self.spec is not None:
            return f"FlyHash({self.spec!r})"
        return f"<FlyHash of given rows, m={self.hash_dim}>"

    def __reduce__(self) -> tuple[Callable[..., FlyHash], tuple[Any, ...]]:
        if self.spec is not None:
            return flynn_hash, (self.spec,)
        return FlyHash.from_rows, (
            self.rows,
            self.n_features,
            self.hash_nnz,
            self.signs,
        )

    def active(self, X: Samples, n_jobs: int | None = None) -> npt.NDArray[np.int32]:
        """Compute the active bits of samples: (n, hash_nnz) int32, ascending in each
        row.

        Parameters
        ----------
        X : (n, n_features) array or scipy sparse
            Finite values of any real dtype; NaN is a gap, of which the hash sees
            nothing, where the spec has a centre or a coding.
        n_jobs : int, optional
            Threads: None for one, -1 for all that this process may use. The result does
            not depend on it.

        Raises
        ------
        DataError
            Wrong shape or type, NaN, infinity, or sums that overflow float32.
        """
        samples = self._checked(X)
        out = np.empty((samples.shape[0], self.hash_nnz), np.int32)

        def work(rows: slice) -> None:
            self._winners(samples[rows], out[rows])

        self._over_chunks(samples.shape[0], work, n_jobs)
        return out

    def remembers(self, n_samples: int) -> bool:
        """True if the active bits of so many samples are few enough to be remembered."""
        return n_samples * self.hash_nnz <= MOST_REMEMBERED

    def remembered(
        self, X: Samples, n_jobs: int | None = None
    ) -> npt.NDArray[np.int32]:
        """The same bits as `active`, read-only, of samples that come again.

        The last ones are known again by their content, so that the phases of a run hash
        them once. Too many samples, and sparse ones, are hashed each time.
        """
        samples = self._checked(X)
        key = self._content(samples)
        bits = self._recent.get(key)
        if bits is None:
            bits = self.active(samples, n_jobs)
            self._remember(key, bits)
        return bits

    def remember_rows(self, X: Array, rows: Mask, chosen: Array) -> None:
        """Remember the bits of the samples that a mask, (n,) bool, has `chosen`, where
        those of all are known.
        """
        bits = self._recent.get(self._content(X))
        if bits is not None:
            self._remember(self._content(chosen), bits[rows])

    def _content(self, X: Any) -> bytes:
        """Digest of samples; b"" of those that are not remembered."""
        if sp.issparse(X) or not self.remembers(X.shape[0]):
            return b""
        values = np.ascontiguousarray(X)
        digest = hashlib.blake2b(f"{values.dtype.str} {values.shape} ".encode())
        digest.update(values.data)
        return digest.digest()

    def _remember(self, key: bytes, bits: npt.NDArray[np.int32]) -> None:
        """Keep bits, and let go of the oldest where there are too many."""
        if not key:
            return
        bits.flags.writeable = False
        with self._remembering:
            self._recent[key] = bits
            n_bits = sum(known.size for known in self._recent.values())
            while n_bits > MOST_REMEMBERED:
                n_bits -= self._recent.pop(next(iter(self._recent))).size

    def fits(self, X: Array) -> Mask:
        """Mask of the samples that `active` can hash, (n,) bool, each by its own values
        and in the same time.

        False for a sample with NaN or infinity, unless NaN is a gap.
        """
        good: Mask = np.ones(len(X), np.bool_)
        if X.dtype.kind == "f":
            if self.takes_gaps:
                good = ~np.any(np.isinf(X), axis=1)
            else:
                good = np.all(np.isfinite(X), axis=1)
        if not good.all():
            X = X[good]
        if self._features is None:
            good[good] = self._encoder.fits(X)
        else:
            good[good] = self._features.fits(dense(X, self._gaps))
        return good

    def count(
        self,
        X: Samples,
        y: npt.ArrayLike,
        n_classes: int,
        n_jobs: int | None = None,
        progress: Progress | None = None,
    ) -> Integers:
        """Count the samples of each class with each bit active, (n_classes, hash_dim)
        int64: Algorithm 1.

        Parameters
        ----------
        X : (n, n_features) array-like or sparse matrix
            As for `active`.
        y : (n,) integers
            Class indices, 0 <= y < n_classes, or a `DataError`.
        n_classes : int
        n_jobs : int, optional
            As for `active`.
        progress : callable, optional
            Called with the number of samples of each chunk after it is counted, by one
            thread at a time.
        """
        samples = self._checked(X)
        n_classes = integer("n_classes", n_classes, error=DataError)
        labels = class_indices(y, samples.shape[0], n_classes)
        counts = np.zeros((n_classes, self.hash_dim), np.int64)
        # Integer sums do not depend on the order of the threads.
        one_at_a_time = threading.Lock()

        def work(rows: slice) -> None:
            own = labels[rows]
            active = np.empty((len(own), self.hash_nnz), np.int32)
            self._winners(samples[rows], active)
            with one_at_a_time:
                add_counts(counts, own, active)
                if progress is not None:
                    progress(len(own))

        self._over_chunks(samples.shape[0], work, n_jobs)
        return counts

    def _checked(self, X: Any) -> Any:
        """Return X as a two-dimensional array or CSR array of a real dtype."""
        if sp.issparse(X):
            samples: Any = sp.csr_array(X)
        else:
            try:
                samples = np.asarray(X)
            except ValueError:
                raise DataError(
                    "X", f"shape (n, {self.n_features})", "rows of different lengths"
                ) from None
        if samples.ndim != 2 or samples.shape[1] != self.n_features:
            raise DataError(
                "X", f"shape (n, {self.n_features})", f"shape {samples.shape}"
            )
        if samples.dtype.kind not in "biuf":
            raise DataError("X", "real numbers", f"dtype {samples.dtype}")
        return samples

    def _winners(self, chunk: Any, out: npt.NDArray[np.int32]) -> None:
        if self._features is not None:
            chunk = self._features(dense(chunk, self._gaps))
        self._encoder.winners(chunk, self._columns, out)

    def _over_chunks(
        self, n: int, work: Callable[[slice], None], n_jobs: int | None
    ) -> None:
        threads = n_threads(n_jobs)
        # Codes are more than the features, and waves may be fewer.
        widest = max(self._encoder.n_features, self.n_features)
        fitting = chunk_size(widest)
        # Whole blocks, and several chunks for each thread, so that no thread waits long
        # for the last chunk of another.
        step = min(fitting, -(-n // (256 * threads)) * 64) or 64
        chunks = batches(n, step)
        threads = min(threads, -(-n // step))
        if threads <= 1:
            for rows in chunks:
                work(rows)
            return
        with ThreadPoolExecutor(threads) as pool:
            try:
                list(pool.map(work, chunks))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


@lru_cache(maxsize=32)
def flynn_hash(spec: HashSpec) -> FlyHash:
    """Return `FlyHash(spec)`, cached: a process draws the rows of the same
    specification once.
    """
    return FlyHash(spec)


def class_indices(y: npt.ArrayLike, n_samples: int, n_classes: int) -> Integers:
    """Return `y`, (n,) integers from 0 to n_classes - 1, as int64.

    Where n is 0 it may have any dtype.
    """
    labels: object = y
    if not np.size(y):
        labels = np.zeros(np.shape(y), np.int64)
    return integers("y", labels, (n_samples,), 0, n_classes - 1, DataError)


@njit(nogil=True, cache=True)
def add_counts(counts, labels, active):  # type: ignore[no-untyped-def]
    """Add 1 to counts[label, bit] for each active bit of each sample."""
    for sample in range(active.shape[0]):
        row = counts[labels[sample]]
        for k in range(active.shape[1]):
            row[np.uint64(active[sample, k])] += 1
