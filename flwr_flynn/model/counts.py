"""Class counts: the model of FlyNN, as integers that add, with a record of the noise in
them.

A mechanism (`flwr_flynn.privacy`) turns exact counts into a release: counts plus noise
of a known variance. Noisy counts carry the record of their releases, so that their
variance is known after any additions and subtractions.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Array, Floats, Integers, Mask, Matrix
from flwr_flynn._validation import (
    boolean,
    checked_fields,
    freeze,
    integer,
    integers,
    number,
)
from flwr_flynn.errors import CountsError, DataError
from flwr_flynn.hashing.flyhash import FlyHash, add_counts, class_indices
from flwr_flynn.hashing.spec import HashSpec

SIZE_ENTRIES = 16
"""Entries of mirrored counts, the last of a class, that count each of its samples."""

_LARGEST_VARIANCE = 2.0**120
_LARGEST_TIMES = 2**31
_SHA256 = re.compile("[0-9a-f]{64}")


def is_sha256(value: object) -> bool:
    """True for 64 hexadecimal digits in lower case."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


class Additive(ABC):
    """Statistics that add, exactly; what was added can be taken out again."""

    def __add__(self, other: Self) -> Self:
        """Sum of both; an error if they are of different kinds, or do not fit int64."""
        if isinstance(other, type(self)):
            return self._combined(other, 1)
        return NotImplemented

    def __sub__(self, other: Self) -> Self:
        """This without the samples of `other`.

        Raises an error if these cannot be among its own.
        """
        if isinstance(other, type(self)):
            return self._combined(other, -1)
        return NotImplemented

    @abstractmethod
    def _combined(self, other: Self, sign: int) -> Self:
        """Sum of both (`sign` 1), or difference (-1)."""


@dataclass(frozen=True)
class Release:
    """Record of one draw of noise in some counts, named by 64 hexadecimal digits
    (`release_name`).

    `variance` is that of one entry, in samples squared, above 0. `times` is the
    multiplicity of the draw, -1 after a subtraction, not 0. `selected`: only selected
    entries were released; the others are 0 and have no noise. `mirrored`: counts less
    those of the mirror images of the samples, see `class_means.add_mirrored`.
    """

    name: str
    variance: float
    times: int = 1
    selected: bool = False
    mirrored: bool = False

    def __post_init__(self) -> None:
        if not is_sha256(self.name):
            raise CountsError(
                "release name", "64 hexadecimal digits in lower case", self.name
            )
        variance = number(
            "release variance",
            self.variance,
            most=_LARGEST_VARIANCE,
            above=0,
            error=CountsError,
        )
        freeze(self, variance=variance)
        if not integer(
            "release times",
            self.times,
            -_LARGEST_TIMES,
            _LARGEST_TIMES,
            error=CountsError,
        ):
            raise CountsError("release times", "an integer other than 0", 0)
        for name in ("selected", "mirrored"):
            boolean(f"release {name}", getattr(self, name), error=CountsError)

    @classmethod
    def from_dict(cls, values: object) -> Release:
        """Release from its fields, of which nothing is assumed."""
        names = {"name", "variance", "times", "selected"}
        before = {"mirrored"}  # which files of before lack
        return cls(**checked_fields("release", values, names, before, CountsError))


def release_name(array: npt.ArrayLike, spec_fingerprint: str) -> str:
    """Name of a release, as anybody who has it can compute: SHA-256 of fingerprint,
    shape and int64 noisy counts.
    """
    given = np.asarray(array)
    if given.ndim != 2 or given.dtype.kind not in "iu":
        raise CountsError(
            "array", "a matrix of integers", f"{given.dtype} of shape {given.shape}"
        )
    digest = hashlib.sha256(
        f"flynn release 1 {spec_fingerprint} {given.shape} ".encode()
    )
    digest.update(np.ascontiguousarray(given, "<i8").data)
    return digest.hexdigest()


def _checked_noise(noise: object) -> tuple[Release, ...]:
    """Return releases in the order of their names.

    Refuse anything else, and a name that occurs twice.
    """
    if not isinstance(noise, Sequence) or not all(
        isinstance(release, Release) for release in noise
    ):
        raise CountsError("noise", "a sequence of Release", type(noise).__name__)
    n_names = len({release.name for release in noise})
    if n_names < len(noise):
        raise CountsError(
            "noise",
            "releases of different names",
            f"{n_names} names of {len(noise)} releases",
        )
    return tuple(sorted(noise, key=lambda release: release.name))


def _noise_of_both(
    mine: Sequence[Release], theirs: Sequence[Release], sign: int
) -> tuple[Release, ...]:
    """Releases in a sum (sign 1) or difference (sign -1) of counts.

    Different releases were drawn independently, so their variances add whatever the
    sign. The same release on both sides is the same noise twice: it adds before it is
    squared, and cancels in a difference.
    """
    total = {release.name: release for release in mine}
    for release in theirs:
        known = total.pop(release.name, None)
        times = sign * release.times
        if known is not None:
            if replace(known, times=release.times) != release:
                field = f"release {release.name[:12]}"
                raise CountsError(field, f"{known} as before", release)
            times += known.times
        if times:
            total[release.name] = replace(release, times=times)
    return tuple(total.values())


@dataclass(frozen=True, eq=False, repr=False)
class ClassCounts(Additive):
    """Number of samples of each class with each hash bit active (paper, Algorithm 1).

    Immutable.

    The sum of the counts of several parties equals the counts of all samples together;
    subtraction takes samples out.

    Parameters
    ----------
    array : (L, m) integers
        array[l, i] is the number of training samples of class l whose hash has bit i
        active. Copied to int64, read-only.
    hash_nnz : int
        Active bits of a sample, rho.
    spec_fingerprint : str
        `FlyHash.fingerprint` of the hash, 64 hexadecimal digits.
    noise : sequence of Release, optional
        Releases of a privacy mechanism that are in the counts. Noisy counts are signed,
        and their row sums are not multiples of rho.

    Attributes
    ----------
    n_per_class : (L,) int64 array, float64 array or None
        Training samples of each class, n_l. Read-only. For noisy counts the row sum
        over rho, of mirrored ones the mean of the last entries: a float64 estimate,
        possibly negative; None where only selected entries were released.

    Raises
    ------
    CountsError
        No set of hashes makes this array. Row l of an exact matrix sums to rho * n_l,
        with 0 <= array[l, i] <= n_l, and every matrix with that property is the matrix
        of some set of hashes.

    Examples
    --------
    >>> counts = ClassCounts([[1, 2, 1], [0, 0, 0]], hash_nnz=2, spec_fingerprint=64 * "0")
    >>> counts.n_per_class, (counts + counts - counts) == counts
    (array([2, 0]), True)
    """

    array: Integers
    hash_nnz: int = field(kw_only=True)
    spec_fingerprint: str = field(kw_only=True)
    noise: tuple[Release, ...] = field(default=(), kw_only=True)
    n_per_class: Any = field(init=False)  # int64 or float64 array, or None

    __array_ufunc__ = None  # counts + array is an error, not an array of errors

    def __post_init__(self) -> None:
        rho = integer("hash_nnz", self.hash_nnz, error=CountsError)
        fingerprint = self.spec_fingerprint
        if not is_sha256(fingerprint):
            raise CountsError(
                "spec_fingerprint", "64 hexadecimal digits in lower case", fingerprint
            )
        noise = _checked_noise(self.noise)
        array = _int64_matrix(self.array, signed=bool(noise))
        sums = array.sum(axis=1)
        sizes: Integers | Floats | None = None
        if not noise:
            sizes = _exact_sizes(array, sums, rho)
        elif all(release.mirrored for release in noise):
            sizes = array[:, -SIZE_ENTRIES:].mean(axis=1)
        elif not any(release.selected or release.mirrored for release in noise):
            sizes = sums / rho
        freeze(self, hash_nnz=rho, array=array, noise=noise, n_per_class=sizes)

    @classmethod
    def zeros(cls, hasher: FlyHash, n_classes: int) -> ClassCounts:
        """Counts of no samples."""
        return cls._of(hasher, np.zeros((n_classes, hasher.hash_dim), np.int64))

    @classmethod
    def from_data(
        cls,
        hasher: FlyHash,
        X: Matrix,
        y: npt.ArrayLike,
        n_classes: int,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ClassCounts:
        """Counts of labelled samples: the training of Algorithm 1, by `FlyHash.count`,
        which has the parameters.
        """
        if hasher.remembers(np.size(y)):
            return cls.from_active(hasher, hasher.remembered(X, n_jobs), y, n_classes)
        return cls._of(
            hasher, hasher.count(X, y, n_classes, n_jobs=n_jobs, progress=progress)
        )

    @classmethod
    def from_active(
        cls, hasher: FlyHash, active: npt.ArrayLike, y: npt.ArrayLike, n_classes: int
    ) -> ClassCounts:
        """Counts of samples with known active bits, (n, rho), from `FlyHash.active`.

        A `DataError` refuses others.
        """
        bits = active_bits(active, hasher.hash_dim, hasher.hash_nnz)
        labels = class_indices(y, len(bits), n_classes)
        counts = np.zeros((n_classes, hasher.hash_dim), np.int64)
        add_counts(counts, labels, bits)
        return cls._of(hasher, counts)

    @classmethod
    def _of(cls, hasher: FlyHash, array: Integers) -> ClassCounts:
        return cls(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)

    @property
    def n_classes(self) -> int:
        """Number of classes, L."""
        return int(self.array.shape[0])

    @property
    def hash_dim(self) -> int:
        """Number of bits, m."""
        return int(self.array.shape[1])

    @property
    def n_examples(self) -> int:
        """Training samples of all classes.

        For noisy counts it is an estimate, or 0 where there is none.
        """
        if self.n_per_class is None:
            return 0
        total: float = sum(self.n_per_class.tolist())
        return max(round(total), 0)

    @property
    def empty_classes(self) -> Mask:
        """Mask of the classes without samples, (L,) bool.

        All False for noisy counts, which do not show it.
        """
        if self.noise:
            return np.zeros(self.n_classes, np.bool_)
        return np.asarray(self.n_per_class == 0)

    @property
    def are_mirrored(self) -> bool:
        """True for counts less those of the mirror images of the samples."""
        return any(release.mirrored for release in self.noise)

    @property
    def size_variance(self) -> float:
        """Variance of the noise in `n_per_class`."""
        if self.are_mirrored:
            return self.noise_variance / SIZE_ENTRIES
        return self.noise_variance * self.hash_dim / self.hash_nnz**2

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in one entry, 0.0 without noise.

        It is an upper bound where only selected entries were released.
        """
        return math.fsum(release.times**2 * release.variance for release in self.noise)

    def nonnegative(self) -> tuple[Integers, Integers | Floats]:
        """Counts, (L, m), and class sizes, (L,), as the decision rules take them.

        Noisy counts are clipped at 0, after all sums. A class of them has at least 1
        sample. Where sizes are unknown, all classes have the same: rule "balanced" is
        then rule "novelty".
        """
        if not self.noise:
            return self.array, self.n_per_class
        counts = np.maximum(self.array, 0)
        if self.n_per_class is None:
            mean = float(counts.sum()) / self.n_classes
            return counts, np.full(self.n_classes, max(mean, 1.0))
        return counts, np.maximum(self.n_per_class, 1.0)

    def __repr__(self) -> str:
        samples = f"{self.n_examples}"
        noise = ""
        if self.noise:
            samples = f"about {self.n_examples}"
            noise = f", noise sd {math.sqrt(self.noise_variance):.4g}"
        shape = (
            f"{self.n_classes} classes, hash_dim={self.hash_dim}, spec "
            f"{self.spec_fingerprint[:12]}"
        )
        return f"<ClassCounts of {samples} samples, {shape}{noise}>"

    def __reduce__(self) -> tuple[Callable[..., ClassCounts], tuple[Array]]:
        fields = {
            name: getattr(self, name)
            for name in ("hash_nnz", "spec_fingerprint", "noise")
        }
        return partial(ClassCounts, **fields), (np.asarray(self.array),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassCounts):
            return NotImplemented
        same = self._kind() == other._kind() and self.noise == other.noise
        return same and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.sha256())

    def sha256(self) -> str:
        """SHA-256 of the counts, 64 hexadecimal digits, the same for equal counts on
        every machine.

        Hashed are the 32 bytes of the fingerprint, L, m and rho as unsigned 64-bit
        integers, and the array as signed 64-bit integers row by row, all little-endian.
        For noisy counts their releases follow, ordered by name: its 32 bytes, the
        variance as a 64-bit float, `times` as a signed and `selected` as an unsigned
        64-bit integer.
        """
        digest = hashlib.sha256(bytes.fromhex(self.spec_fingerprint))
        digest.update(struct.pack("<3Q", *self.array.shape, self.hash_nnz))
        digest.update(self.array.astype("<i8", copy=False).data)
        for release in self.noise:
            digest.update(bytes.fromhex(release.name))
            digest.update(
                struct.pack("<dqQ", release.variance, release.times, release.selected)
            )
            if release.mirrored:
                digest.update(b"mirrored")
        return digest.hexdigest()

    def __radd__(self, other: object) -> ClassCounts:
        # `sum` starts from 0.
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def _kind(self) -> tuple[object, ...]:
        return self.spec_fingerprint, self.hash_nnz, self.array.shape

    def _combined(self, other: ClassCounts, sign: int) -> ClassCounts:
        # A release that is in both cancels exactly in a difference. Noise that is in
        # only one of them adds up.
        what = "difference"
        if sign > 0:
            what = "sum"
        names = ("spec_fingerprint", "hash_nnz", "shape")
        for name, mine, theirs in zip(names, self._kind(), other._kind(), strict=True):
            if mine != theirs:
                raise CountsError(what, f"counts of {name} {mine}", theirs)
        try:
            noise = _noise_of_both(self.noise, other.noise, sign)
            return replace(self, array=self.array + sign * other.array, noise=noise)
        except CountsError as error:
            raise CountsError(what, error.expected, error.got) from None


def _exact_sizes(array: Integers, sums: Integers, rho: int) -> Integers:
    """Samples of each class, (L,), from the sums of the rows.

    Raises a `CountsError` for an array that no hashes make.
    """
    rests = sums % rho
    if rests.any():
        label = int(np.flatnonzero(rests)[0])
        raise CountsError(
            "array",
            f"row sums that are multiples of hash_nnz, {rho}",
            f"{sums[label]} in row {label}",
        )
    sizes: Integers = sums // rho
    is_above = array.max(axis=1) > sizes
    if is_above.any():
        label = int(np.flatnonzero(is_above)[0])
        expected = (
            f"counts of at most the samples of the class, {sizes[label]} in row {label}"
        )
        raise CountsError("array", expected, int(array[label].max()))
    return sizes


def _int64_matrix(array: npt.ArrayLike, signed: bool) -> Integers:
    """Copy `array` to int64, if it is a matrix of counts small enough to be added."""
    shape = np.shape(array)
    if len(shape) != 2 or 0 in shape:
        raise CountsError("array", "shape (classes, bits)", f"shape {shape}")
    # A row sum beyond int64 wraps around to any value, even to one that looks right;
    # and the sum of two noisy matrices has no row sum that would show an overflow.
    most = (2**63 - 1) // shape[1]
    least = 0
    if signed:
        most //= 2
        least = -most
    return integers("array", array, shape, least, most, CountsError)


def active_bits(
    active: npt.ArrayLike, hash_dim: int, hash_nnz: int
) -> npt.NDArray[np.int32]:
    """Return active bits, (n, rho), as C-contiguous int32 after a check: compiled loops
    trust them to be in range.
    """
    array = np.asarray(active)
    if array.ndim != 2 or array.shape[1] != hash_nnz or array.dtype.kind not in "iu":
        raise DataError(
            "active",
            f"(n, {hash_nnz}) integers",
            f"{array.dtype} of shape {array.shape}",
        )
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < hash_dim:
        raise DataError(
            "active",
            f"bits from 0 to {hash_dim - 1}",
            f"{int(array.min())} to {int(array.max())}",
        )
    return np.ascontiguousarray(array, np.int32)


def memory_needed(spec: HashSpec, n_classes: int) -> int:
    """Estimate the memory of a hash and the counts of one model, in bytes, samples not
    included.
    """
    # 24 for every entry of the rows (the rows, their form for the kernels, their signs,
    # the work space of drawing) and every count (the sum, a copy, a message or file),
    # and the codes of every rank (in two forms, and while centred). Waves have slopes,
    # phases, and the waves of a few samples.
    waves = 8 * spec.n_waves * (spec.n_features + 128)
    n_edges = 0
    if spec.edges is not None:
        n_edges = len(spec.edges[0])
    codes = spec.n_features * (
        10 * (2 * n_edges + 1) * spec.n_codes + n_edges * (n_edges + 32)
    )
    return (
        24 * spec.hash_dim * (spec.row_nnz + n_classes)
        + 8 * spec.n_features
        + waves
        + codes
    )


@dataclass(frozen=True, eq=False)
class Tables(Additive):
    """Tables of integers, such as confusion matrices, that add entry by entry, within
    int64.
    """

    tables: tuple[Integers, ...]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tables):
            return NotImplemented
        return len(self.tables) == len(other.tables) and all(
            map(np.array_equal, self.tables, other.tables)
        )

    def _combined(self, other: Self, sign: int) -> Self:
        shapes = (
            [table.shape for table in self.tables],
            [table.shape for table in other.tables],
        )
        if shapes[0] != shapes[1]:
            raise CountsError(
                "tables", f"shapes {shapes[0]} on both sides", str(shapes[1])
            )
        pairs = zip(self.tables, other.tables, strict=True)
        return replace(
            self,
            tables=tuple(_exact_sum(first, second, sign) for first, second in pairs),
        )


def _exact_sum(first: Integers, second: Integers, sign: int) -> Integers:
    """Return first + sign * second; a `CountsError` if an entry is beyond int64."""
    total: Integers = first + sign * second
    low = int(first.min(initial=0))
    high = int(first.max(initial=0))
    least, most = sorted(
        sign * int(end) for end in (second.min(initial=0), second.max(initial=0))
    )
    # What follows takes memory, and is hardly ever needed.
    if low + least < -(2**63) or high + most >= 2**63:
        exact = first.astype(object) + sign * second.astype(object)
        if (exact != total).any():
            raise CountsError("tables", "sums within int64", "larger ones")
    return total
