"""Class counts: the whole model of FlyNN, as integers that add.

`ClassCounts` is what training makes (paper, Algorithm 1), what parties send and what the server sums. Counting the
points of several parties and adding gives the counts of all points together, exactly; taking points out again is
subtraction.

>>> import numpy as np
>>> from flwr_flynn import FlyHash, HashSpec
>>> hasher = FlyHash(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=1))
>>> here = ClassCounts.from_data(hasher, [[1.0, 0.0], [0.0, 1.0]], [0, 1], n_classes=2)
>>> there = ClassCounts.from_data(hasher, [[2.0, 0.0]], [0], n_classes=2)
>>> both = ClassCounts.from_data(hasher, [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [0, 1, 0], n_classes=2)
>>> here + there == both, both - there == here
(True, True)
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, CountsError, DataError
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import noise_record, scoring

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, eq=False, repr=False)
class ClassCounts:
    """How often each hash bit was active, per class. Immutable.

    Parameters
    ----------
    array : (L, m) integers
        array[l, i] is the number of training points of class l whose hash has bit i. Copied.
    hash_nnz : int
        Active bits per point, rho.
    spec_fingerprint : str
        `FlyHash.fingerprint` of the hash that made them: 64 hexadecimal digits.
    noise : sequence of noise_record.Release, optional
        What a privacy mechanism added, see `model.noise_record`. Noisy counts are signed and have no such row sums.

    Attributes
    ----------
    array : (L, m) int64 array
        Read-only, C-contiguous.
    n_per_class : (L,) int64 array
        Training points of each class, n_l. Read-only. Of noisy counts an estimate, float64 and maybe below zero; None
        where only selected entries were released.

    Raises
    ------
    CountsError
        No set of hashes makes this array. Those of n_l points sum to rho * n_l, with 0 <= array[l, i] <= n_l, and every
        matrix of which that is true can be made.

    Examples
    --------
    >>> counts = ClassCounts([[1, 2, 1], [0, 0, 0]], hash_nnz=2, spec_fingerprint=64 * "0")
    >>> counts.n_per_class
    array([2, 0])
    """

    array: npt.NDArray[np.int64]
    hash_nnz: int = field(kw_only=True)
    spec_fingerprint: str = field(kw_only=True)
    noise: noise_record.Noise = field(default=(), kw_only=True)
    n_per_class: Any = field(init=False)  # int64 or float64 array, or None

    __array_ufunc__ = None  # counts + array is an error, not an array of errors

    def __post_init__(self) -> None:
        rho = self.hash_nnz
        if isinstance(rho, bool) or not isinstance(rho, int | np.integer) or rho < 1:
            raise CountsError(f"hash_nnz: expected a positive whole number, got {rho!r}")
        fingerprint = self.spec_fingerprint
        if not isinstance(fingerprint, str) or len(fingerprint) != 64 or set(fingerprint) - set("0123456789abcdef"):
            raise CountsError("spec_fingerprint: expected 64 hexadecimal digits in lower case, got something else")
        if self.noise != ():
            self._set_noisy()
            return
        array = _frozen(_int64_matrix(self.array))
        sums = array.sum(axis=1)
        if (sums % rho).any():
            label = int(np.flatnonzero(sums % rho)[0])
            raise CountsError(f"row {label} sums to {sums[label]}, expected a multiple of hash_nnz, {rho}")
        sizes = sums // rho
        if (array.max(axis=1) > sizes).any():
            label = int(np.flatnonzero(array.max(axis=1) > sizes)[0])
            raise CountsError(f"row {label} is of {sizes[label]} points, but has a count of {array[label].max()}")
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "hash_nnz", int(rho))
        object.__setattr__(self, "n_per_class", _frozen(sizes))

    def _set_noisy(self) -> None:
        noise = noise_record.checked_noise(self.noise)
        array = _frozen(_int64_matrix(self.array, signed=True))
        sizes = noise_record.sizes(array, int(self.hash_nnz), noise)
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "hash_nnz", int(self.hash_nnz))
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "n_per_class", None if sizes is None else _frozen(sizes))

    @classmethod
    def zeros(cls, hasher: FlyHash, n_classes: int) -> ClassCounts:
        """Counts of no points.

        Parameters
        ----------
        hasher : FlyHash
        n_classes : int
        """
        return cls._of(hasher, np.zeros((n_classes, hasher.hash_dim), np.int64))

    @classmethod
    def from_data(
        cls,
        hasher: FlyHash,
        X: Any,
        y: npt.ArrayLike,
        n_classes: int,
        n_jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ClassCounts:
        """Counts of labelled points: the training of Algorithm 1.

        Parameters
        ----------
        hasher : FlyHash
        X : (n, n_features) array or scipy sparse
            n may be 0.
        y : (n,) integers
            Class of each point, 0 <= y < n_classes.
        n_classes : int
        n_jobs : int, optional
            Threads: None for one, -1 for all that this process may use. The result does not depend on it.
        progress : callable, optional
            Called with numbers of points just counted, see `FlyHash.count`.

        Raises
        ------
        DataError
            `FlyHash.count` refuses the points or the classes.
        """
        return cls._of(hasher, hasher.count(X, y, n_classes, n_jobs=n_jobs, progress=progress))

    @classmethod
    def from_active(cls, hasher: FlyHash, active: npt.ArrayLike, y: npt.ArrayLike, n_classes: int) -> ClassCounts:
        """Counts of points whose active bits are at hand.

        Parameters
        ----------
        hasher : FlyHash
        active : (n, rho) integers
            What ``hasher.active(X)`` gave.
        y, n_classes
            As for `from_data`.

        Raises
        ------
        DataError
            Wrong shape or type, or a bit or class out of range.
        """
        bits = scoring.checked_active(active, hasher.hash_dim, hasher.hash_nnz)
        labels = _labels(y, bits.shape[0], n_classes)
        rows = [np.bincount(bits[labels == label].ravel(), minlength=hasher.hash_dim) for label in range(n_classes)]
        return cls._of(hasher, np.array(rows, np.int64))

    @classmethod
    def _of(cls, hasher: FlyHash, array: npt.NDArray[np.int64]) -> ClassCounts:
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
        """Training points of all classes; of noisy counts an estimate, 0 where there is none."""
        return 0 if self.n_per_class is None else max(round(sum(self.n_per_class.tolist())), 0)

    @property
    def without_points(self) -> npt.NDArray[np.bool_]:
        """(L,) which classes have no points; of noisy counts nobody knows, and none."""
        result: npt.NDArray[np.bool_] = self._readable()[1] == 0
        return result

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in one entry: 0.0 without, and it adds where independent releases do."""
        return noise_record.variance(self.noise)

    def __repr__(self) -> str:
        points = f"about {self.n_examples}" if self.noise else f"{self.n_examples}"
        noise = f", noise sd {math.sqrt(self.noise_variance):.4g}" if self.noise else ""
        return (
            f"<ClassCounts of {points} points, {self.n_classes} classes, hash_dim={self.hash_dim}, "
            f"spec {self.spec_fingerprint[:12]}{noise}>"
        )

    def __reduce__(self) -> tuple[Callable[..., ClassCounts], tuple[Any, ...]]:
        return _restore, (np.asarray(self.array), self.hash_nnz, self.spec_fingerprint, self.noise)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassCounts):
            return NotImplemented
        same = self._kind() == other._kind() and self.noise == other.noise
        return same and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self.sha256())

    def sha256(self) -> str:
        """SHA-256 in hexadecimal, the same for equal counts on every machine.

        Of the fingerprint's 32 bytes, L, m and rho as unsigned 64-bit, and the array as signed 64-bit integers row by
        row, all little-endian. For noisy counts, then their releases by name: its 32 bytes, variance as a 64-bit float,
        times as signed and selected as unsigned 64-bit integer.
        """
        digest = hashlib.sha256(bytes.fromhex(self.spec_fingerprint))
        digest.update(struct.pack("<3Q", self.n_classes, self.hash_dim, self.hash_nnz))
        digest.update(self.array.astype("<i8", copy=False).data)
        for release in self.noise:
            digest.update(bytes.fromhex(release.name))
            digest.update(struct.pack("<dqQ", release.variance, release.times, release.selected))
        return digest.hexdigest()

    def __add__(self, other: ClassCounts) -> ClassCounts:
        """Counts of the points of both.

        Raises
        ------
        CountsError
            They are of different hashes or numbers of classes.
        """
        if not isinstance(other, ClassCounts):
            return NotImplemented
        return self._combine(other, 1, "sum")

    def __radd__(self, other: object) -> ClassCounts:
        # `sum` starts from 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: ClassCounts) -> ClassCounts:
        """Counts without the points of `other`.

        Of noisy counts: a release that is in both cancels, exactly; noise that is in one of them only adds up.

        Raises
        ------
        CountsError
            They are of different hashes or numbers of classes, or the points of `other` cannot all be among these.
        """
        if not isinstance(other, ClassCounts):
            return NotImplemented
        return self._combine(other, -1, "difference")

    def _kind(self) -> tuple[object, ...]:
        return self.spec_fingerprint, self.hash_nnz, self.array.shape

    def _combine(self, other: ClassCounts, sign: int, what: str) -> ClassCounts:
        names = ("spec_fingerprint", "hash_nnz", "shape")
        for name, mine, theirs in zip(names, self._kind(), other._kind(), strict=True):
            if mine != theirs:
                raise CountsError(f"{what}: {name} differs, {mine} and {theirs}")
        try:
            array = self.array + other.array if sign > 0 else self.array - other.array
            noise = noise_record.combine(self.noise, other.noise, sign)
            return ClassCounts(array, hash_nnz=self.hash_nnz, spec_fingerprint=self.spec_fingerprint, noise=noise)
        except CountsError as error:
            raise CountsError(f"{what}: {error}") from None

    def scores(self, active: npt.ArrayLike, decay: float, rule: str = "balanced") -> scoring.Scores:
        """How well points fit each class; see `readout` for the rules.

        Parameters
        ----------
        active : (n, rho) integers
            What ``hasher.active(X)`` gave, X being other points than those counted.
        decay : float
            gamma, 0 <= decay < 1. Rule "bayes" does not use it.
        rule : {"balanced", "novelty", "bayes"}, default="balanced"

        Returns
        -------
        (n, L) float64 array
            Higher is better, finite; of equal scores, the first class wins.

        Raises
        ------
        DataError, ConfigError
            `active` is not of such hashes; `decay` or `rule` is not as described.

        Examples
        --------
        >>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
        >>> counts.scores([[0, 1]], decay=0.5, rule="novelty").round(4)
        array([[ 0.6931, -0.4055]])
        """
        bits = scoring.checked_active(active, self.hash_dim, self.hash_nnz)
        check_readout(rule, decay)
        return scoring.class_scores(*self._readable(), bits, decay, rule)

    def _readable(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Counts and class sizes as read-outs take them."""
        return noise_record.denoised(self.array, self.n_per_class) if self.noise else (self.array, self.n_per_class)

    def novelty(self, active: npt.ArrayLike, decay: float) -> scoring.Scores:
        """Novelty of points to each class, f_l(x) / rho (paper, Algorithm 1).

        Parameters
        ----------
        active, decay
            As for `scores`.

        Returns
        -------
        (n, L) float64 array
            Between 0 and 1: 1 where a class saw none of a point's active bits.
        """
        bits = scoring.checked_active(active, self.hash_dim, self.hash_nnz)
        check_readout("novelty", decay)
        return scoring.class_novelty(self._readable()[0], bits, decay)

    def leave_one_out(
        self, active: npt.ArrayLike, y: npt.ArrayLike, decays: Sequence[float], rule: str = "balanced"
    ) -> npt.NDArray[np.int64]:
        """What models would predict for counted points, each model trained without the point it is asked about.

        Exact: the point's active bits, its class's size and the mean class size are taken out, in one pass for all
        points.

        Parameters
        ----------
        active : (n, rho) integers
            Active bits of points that are in these counts; all of them, or some.
        y : (n,) integers
            Their classes.
        decays : sequence of D floats
        rule : str, default="balanced"

        Returns
        -------
        (D, L, L) int64 array
            A confusion matrix for each decay, entry [true, predicted].

        Raises
        ------
        DataError, ConfigError
            As for `scores`, or a point cannot have been counted.
        CountsError
            The counts are noisy.
        """
        bits, labels = self._counted(active, y)
        for decay in decays:
            check_readout(rule, decay)
        return scoring.leave_one_out(self.array, self.n_per_class, bits, labels, decays, rule)

    def leave_one_out_hits(
        self, active: npt.ArrayLike, y: npt.ArrayLike, decays: Sequence[float], rule: str = "balanced"
    ) -> npt.NDArray[np.int64]:
        """How many points of each class `leave_one_out` gets right, (D, L): the diagonals of its matrices."""
        bits, labels = self._counted(active, y)
        for decay in decays:
            check_readout(rule, decay)
        return scoring.leave_one_out_hits(self.array, self.n_per_class, bits, labels, decays, rule)

    def leave_one_out_losses(
        self,
        active: npt.ArrayLike,
        y: npt.ArrayLike,
        decay: float,
        rule: str = "balanced",
        temperatures: Sequence[float] = (1.0,),
    ) -> npt.NDArray[np.int64]:
        """Log-loss of the same models, with probabilities proportional to exp(`scoring.log_odds` / temperature).

        Parameters
        ----------
        active, y, decay, rule
            As for `leave_one_out`.
        temperatures : sequence of T floats
            Positive.

        Returns
        -------
        (T,) int64 array
            Sums over the points in units of 2 ** -20; a point's loss is rounded to that, and at most 64.
        """
        bits, labels = self._counted(active, y)
        check_readout(rule, decay)
        return scoring.leave_one_out_losses(
            self.array, self.n_per_class, bits, labels, float(decay), rule, temperatures
        )

    def _counted(self, active: npt.ArrayLike, y: npt.ArrayLike) -> tuple[scoring.Active, npt.NDArray[np.int64]]:
        """Active bits and classes of points, if they can be in these counts."""
        if self.noise:
            raise CountsError("leave_one_out: expected counts without noise, got noisy ones")
        bits = scoring.checked_active(active, self.hash_dim, self.hash_nnz)
        labels = _labels(y, len(bits), self.n_classes)
        for label in range(self.n_classes):
            own = bits[labels == label]
            if len(own) > self.n_per_class[label] or (self.array[label, own] == 0).any():
                raise DataError(f"active, y: expected points that are in the counts, got others in class {label}")
        return bits, labels

    def suggest_decay(self, rule: str = "balanced") -> float:
        """A decay from the counts alone, for when no training points are at hand.

        gamma = exp(-lambda / c), where c is the count that a training point typically finds at its active bits in its
        own class (of size-scaled counts under rule "balanced"), so that lambda is the exponent it typically meets. The
        more clearly counts tell classes apart, the better a large one does: lambda = 5 (c - c0) / sqrt(c), at least
        3/4, where c0 is what c would be if classes differed by chance only. See `scoring.typical_counts`.

        Parameters
        ----------
        rule : {"balanced", "novelty", "bayes"}, default="balanced"

        Returns
        -------
        float

        Notes
        -----
        The 5 and the 3/4 were chosen by leave-one-out on 36 data sets, at most 6000 points of each: balanced accuracy
        comes within .009 of that of the best of 33 decays on average (a constant lambda: .018), within .06 on all.
        """
        return self.decay_grid(rule)[0]

    def decay_grid(self, rule: str = "balanced") -> list[float]:
        """Decays worth trying: `suggest_decay`, then those of 2, 1/2, 4, 1/4, ... 16, 1/16 times its lambda.

        Parameters
        ----------
        rule : {"balanced", "novelty", "bayes"}, default="balanced"

        Returns
        -------
        list of float
        """
        if self.noise:
            typical, exponent = noise_record.exponent(self.array, self.n_per_class, self.noise_variance, rule)
        else:
            typical, alike = scoring.typical_counts(self.array, self.n_per_class, rule)
            typical = max(typical, 1.0)  # less only where there are no points, and any decay will do
            exponent = max(5 * (typical - alike) / math.sqrt(typical), 0.75)
        below_one = math.nextafter(1.0, 0.0)
        return [min(math.exp(-multiple * exponent / typical), below_one) for multiple in _MULTIPLES]

    def suggest_temperature(self, rule: str = "balanced") -> float:
        """A temperature for probabilities where no training points are at hand: 0.2, or rho / 2 under rule "bayes".

        The median of what leave-one-out chooses on 47 data sets; on most it lies within a factor of two.
        """
        return self.hash_nnz / 2 if rule == "bayes" else 0.2


_MULTIPLES = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625)


def _restore(
    array: npt.NDArray[np.int64], hash_nnz: int, spec_fingerprint: str, noise: noise_record.Noise = ()
) -> ClassCounts:
    return ClassCounts(array, hash_nnz=hash_nnz, spec_fingerprint=spec_fingerprint, noise=noise)


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def _int64_matrix(array: npt.ArrayLike, signed: bool = False) -> npt.NDArray[np.int64]:
    """A copy of `array`, if it is a matrix of counts small enough to be added up."""
    given = np.asarray(array)
    if given.ndim != 2 or 0 in given.shape:
        raise CountsError(f"array: expected shape (classes, bits), got {given.shape}")
    if given.dtype.kind not in "iu":
        raise CountsError(f"array: expected integers, got {given.dtype}")
    if int(given.min()) < 0 and not signed:
        label = int(np.flatnonzero((given < 0).any(axis=1))[0])
        raise CountsError(f"row {label} has a negative count")
    # A sum of a row beyond int64 could come out as anything, even as something that looks right.
    largest = _INT64_MAX // given.shape[1]
    if signed:  # and those of a sum of two have no row sum that would tell
        largest //= 2
    if int(given.max()) > largest or int(given.min()) < -largest:
        raise CountsError(f"array: expected counts of at most {largest}, got one above that")
    return np.array(given, np.int64, order="C")


def _labels(y: npt.ArrayLike, n_points: int, n_classes: int) -> npt.NDArray[np.int64]:
    labels = np.asarray(y)
    if labels.shape != (n_points,) or (labels.dtype.kind not in "iu" and n_points):
        raise DataError(f"y: expected {n_points} class numbers, got {labels.dtype} of shape {labels.shape}")
    if n_points and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes:
        raise DataError(f"y: expected class numbers 0 to {n_classes - 1}")
    return labels.astype(np.int64)


def memory_needed(spec: HashSpec, n_classes: int) -> int:
    """About how many bytes a hash and the counts of one model need, points not included.

    To be asked before a specification from elsewhere is drawn.

    Parameters
    ----------
    spec : HashSpec
    n_classes : int

    Returns
    -------
    int
        24 for every entry of the rows (the rows, the form in which the kernels read them, their signs, and what drawing
        them takes), 24 for every count (the sum, a copy, a message or file) and 8 for every feature and
        for every slope of a wave, and what the waves of a block of points take.

    Examples
    --------
    >>> memory_needed(HashSpec(n_features=64, hash_dim=16384, row_nnz=19, hash_nnz=32, seed=7), n_classes=10)
    11403776
    """
    waves = 8 * spec.n_waves * (spec.n_features + 128)  # slopes, phases, and the waves of a few points
    return 24 * spec.hash_dim * (spec.row_nnz + n_classes) + 8 * spec.n_features + waves


def check_readout(rule: object, decay: object, temperature: object = 1.0) -> None:
    """Refuse what is not a rule and a decay that `ClassCounts.scores` takes, or no temperature, with a ConfigError."""
    if rule not in scoring.RULES:
        raise ConfigError(f"rule: expected one of {', '.join(scoring.RULES)}, got {str(rule)[:40]!r}")
    if isinstance(decay, bool) or not isinstance(decay, float | int | np.floating) or not 0 <= decay < 1:
        raise ConfigError(f"decay: expected a number of at least 0 and below 1, got {str(decay)[:40]}")
    if isinstance(temperature, bool) or not isinstance(temperature, float | int | np.floating):
        raise ConfigError(f"temperature: expected a number, got {type(temperature).__name__}")
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature: expected a finite number above 0, got {temperature}")
