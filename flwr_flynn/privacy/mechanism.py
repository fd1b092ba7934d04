"""Integer noise, and the base class of mechanisms, with the simulated one.

`noise_mechanisms` has the kinds of noise.

OpenDP's samplers draw exactly, from the operating system's randomness, some 100 000
numbers a second. They need the extra `privacy`: ``pip install "flwr-flynn[privacy]"``;
`SeededNoise` does not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np

from flwr_flynn._types import Integers
from flwr_flynn._validation import integer, number, one_of
from flwr_flynn.errors import ConfigError, CountsError, PayloadError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_sums import largest_norm
from flwr_flynn.model.counts import SIZE_ENTRIES, ClassCounts, Release, release_name
from flwr_flynn.privacy import accounting
from flwr_flynn.privacy.accounting import privacy_extra, shown_bound

_CHUNK = 2**16  # numbers that stand as Python integers at a time


class Sampler(Protocol):
    """Source of a mechanism's randomness."""

    def gaussian(self, size: int, sigma: float) -> Integers:
        """Draw `size` integers with P(x) proportional to exp(-x ** 2 / (2 sigma ** 2))."""

    def laplace(self, size: int, scale: float) -> Integers:
        """Draw `size` integers with P(x) proportional to exp(-abs(x) / scale)."""

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        """The indices of the largest of score + Gumbel noise: in law the exponential
        mechanism, again and again.

        That is drawing without replacement by exp(score / scale) (Durfee and Rogers
        2019, Lemma 4.2).
        """


class OpenDPNoise:
    """Noise for real releases, from OpenDP."""

    def gaussian(self, size: int, sigma: float) -> Integers:
        return _draw("make_gaussian", "l2_distance", size, sigma)

    def laplace(self, size: int, scale: float) -> Integers:
        return _draw("make_laplace", "l1_distance", size, scale)

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        return np.array(_noisy_top(n_drawn, float(scale))(scores.tolist()), np.int64)


class SeededNoise:
    """Noise of the same distributions from NumPy, from a seed: anyone who knows the
    seed can take it away again.
    """

    def __init__(self, *seeds: int) -> None:
        self._generator = np.random.default_rng(seeds)

    def gaussian(self, size: int, sigma: float) -> Integers:
        unrounded = math.sqrt(max(sigma**2 - 1 / 12, 0.0))  # rounding adds the rest
        return np.rint(self._generator.normal(0.0, unrounded, size)).astype(np.int64)

    def laplace(self, size: int, scale: float) -> Integers:
        stop = -math.expm1(-1 / scale)
        difference: Integers = self._generator.geometric(
            stop, size
        ) - self._generator.geometric(stop, size)
        return difference

    def top(self, scores: Integers, n_drawn: int, scale: float) -> Integers:
        noisy = scores + self._generator.gumbel(0.0, scale, scores.size)
        return np.argsort(-noisy, kind="stable")[:n_drawn]


def _opendp() -> tuple[Any, Any]:
    """OpenDP, and its vectors of int64."""
    dp = privacy_extra("opendp.prelude")
    dp.enable_features("contrib")
    return dp, dp.vector_domain(dp.atom_domain(T="i64"))


@lru_cache(maxsize=8)
def _noisy_top(n_drawn: int, scale: float) -> Any:
    # Under zero-concentrated divergence OpenDP's noisy top k adds Gumbel noise; under
    # max-divergence exponential noise, of a different distribution (permute-and-flip).
    dp, domain = _opendp()
    divergence = dp.zero_concentrated_divergence()
    return dp.m.make_noisy_top_k(
        domain, dp.linf_distance(T="i64"), divergence, k=n_drawn, scale=scale
    )


def _draw(make: str, distance: str, size: int, scale: float) -> Integers:
    dp, domain = _opendp()
    add = getattr(dp.m, make)(
        domain, getattr(dp, distance)(T="i64"), scale=float(scale)
    )
    drawn = np.empty(size, np.int64)
    for first in range(0, size, _CHUNK):
        chunk = drawn[first : first + _CHUNK]
        chunk[:] = add([0] * len(chunk))
    return drawn


NEIGHBOURS = ("add-remove", "replace-one")

LARGEST_SIZE = 2**31 - 1
LARGEST_SUM = 2**52
"""Magnitude of a noisy sum of a column, at most."""
_LARGEST_SD = 2.0**40
_LEAST_EPSILON = 1e-3
# Parameters that all mechanisms have beside epsilon.
COMMON = ("hash_nnz", "n_classes", "neighbours", "records_per_person")


class Mechanism(ABC):
    """Base class of the mechanisms.

    Immutable by convention; mechanisms of equal descriptions are equal.

    Mechanisms that have them set `delta`, the probability with which the guarantee may
    fail, and `n_honest`, parties that share the noise of one in a secure sum.

    Parameters
    ----------
    epsilon : float
        Bound on the privacy loss of one release, .001 <= epsilon <= 100.
    hash_nnz : int
        rho of the counts' hash.
    n_classes : int
    neighbours : {"add-remove", "replace-one"}, default="add-remove"
        Data sets that must be hard to distinguish: with or without one record, or with
        one record replaced.
    records_per_person : int, default=1
        Most records of one person; the guarantee covers them together.
    """

    kind: ClassVar[str]
    own: ClassVar[tuple[str, ...]] = ()  # further required fields of a description
    # Fields of a description that may be left out.
    optional: ClassVar[tuple[str, ...]] = ()
    is_partial: bool = False  # True: a release has some of the entries only
    n_moments: int = 0
    """Moments of a column in noisy sums before the counts, see `model.column_sums`."""
    sampler: Sampler = OpenDPNoise()
    delta: float = 0.0
    n_honest: int | None = None
    n_columns: int | None = None
    mirrored: bool = False

    def __init__(
        self,
        epsilon: float,
        *,
        hash_nnz: int,
        n_classes: int,
        neighbours: str = "add-remove",
        records_per_person: int = 1,
    ) -> None:
        self.target_epsilon = number(
            "epsilon", epsilon, least=_LEAST_EPSILON, most=100.0
        )
        self.hash_nnz = integer("hash_nnz", hash_nnz, most=LARGEST_SIZE)
        self.n_classes = integer("n_classes", n_classes, most=LARGEST_SIZE)
        self.neighbours = one_of("neighbours", neighbours, NEIGHBOURS)
        self.records_per_person = integer(
            "records_per_person", records_per_person, most=10**6
        )

    @classmethod
    def for_spec(
        cls, spec: HashSpec, n_classes: int, epsilon: float, **parameters: Any
    ) -> Mechanism:
        """The mechanism for counts of this hash; `parameters` are those of the class."""
        return cls(epsilon, hash_nnz=spec.hash_nnz, n_classes=n_classes, **parameters)

    @property
    def parts(self) -> tuple[str, ...]:
        """Answers that one charge pays for."""
        if self.n_columns is None:
            return ("counts",)
        return ("columns", "counts")

    @property
    def n_changed(self) -> int:
        """Entries that one record changes by one, at most: rho, or 2 rho where it is
        replaced; with those of its mirror image 2 rho and `SIZE_ENTRIES`.
        """
        if self.mirrored:
            return 2 * self.hash_nnz + SIZE_ENTRIES
        if self.neighbours == "add-remove":
            return self.hash_nnz
        return 2 * self.hash_nnz

    def sums_norm(self, order: int) -> float:
        """Largest change of the sums of the columns by one person, as a norm."""
        is_replaced = self.neighbours != "add-remove"
        n_columns = self.n_columns or 0
        norm = largest_norm(n_columns, self.n_moments, order, is_replaced)
        return norm * self.records_per_person

    @property
    def sums_sd(self) -> float:
        """Standard deviation of the noise in a sum of a column; 0 without sums."""
        return 0.0

    def released_sums(self, sums: Integers) -> Integers:
        """Noisy sums of columns, (n_moments, d), that may leave their party.

        With the counts they are paid for by one charge.
        """
        noisy = self._draw_sums(sums, self.sampler)
        return np.clip(noisy, -LARGEST_SUM, LARGEST_SUM)

    def _draw_sums(self, sums: Integers, sampler: Sampler) -> Integers:
        """Noisy sums of the columns."""
        raise ConfigError("mechanism", "one with n_columns", repr(self))

    @property
    def l1_sensitivity(self) -> int:
        """Largest change of all counts together by one person."""
        return self.n_changed * self.records_per_person

    @property
    @abstractmethod
    def noise_sd(self) -> float:
        """Standard deviation of the noise in a released entry."""

    def unit_noise(self, n_releases: float) -> float:
        """Standard deviation of the noise of so many releases together, for an L2 norm
        of 1 of a sample's counts.
        """
        active = self.hash_nnz
        if self.mirrored:
            active = 2 * self.hash_nnz
        return self.noise_sd * math.sqrt(n_releases / active)

    @abstractmethod
    def epsilon(self, delta: float = 0.0) -> float:
        """Epsilon of one release at this delta (its privacy map).

        It is infinite where there is no bound.
        """

    @property
    def zcdp_rho(self) -> float:
        """Upper bound of the zCDP parameter of one release.

        The rho of a hash is another figure.
        """
        return accounting.pure_rho(self.epsilon())

    @abstractmethod
    def _noise(self) -> str:
        """The noise in words, for the middle of a sentence."""

    @abstractmethod
    def _draw(self, array: Integers, sampler: Sampler) -> Integers:
        """(L, m) noisy counts."""

    def release(
        self, counts: ClassCounts, *, sampler: Sampler | None = None
    ) -> ClassCounts:
        """Noisy counts that may leave their party. Every call spends epsilon anew."""
        if counts.noise:
            raise CountsError("release", "counts without noise", "noisy ones")
        for name in ("hash_nnz", "n_classes"):
            if getattr(counts, name) != getattr(self, name):
                raise CountsError(
                    f"release {name}", str(getattr(self, name)), getattr(counts, name)
                )
        if self.mirrored:
            raise CountsError("release", "mirrored counts, by `noisy`", "plain ones")
        noisy = self.noisy(counts.array, sampler)
        return self.received(noisy, counts.spec_fingerprint)

    def noisy(self, array: Integers, sampler: Sampler | None = None) -> Integers:
        """Noisy counts that may leave their party, (L, m), of counts as the mechanism
        has them, mirrored or not.
        """
        self.require_feasible()
        # With these bounds no sum overflows. Clipping does not increase the
        # sensitivity.
        limit = (2**63 - 1) // array.shape[1] // 4
        drawn = self._draw(np.minimum(array, limit), sampler or self.sampler)
        return np.clip(drawn, -limit, limit)

    @property
    def is_share(self) -> bool:
        """True if a release carries a share of the noise only, and must not be seen
        outside a secure sum.
        """
        return self.n_honest is not None

    def check_mode(self, mode: str, is_secure: bool) -> None:
        """Raise unless the noise is shared in a secure sum, and whole in clear.

        In clear a share of it would not protect.
        """
        if self.is_share == is_secure:
            return
        expected = "one without n_honest"
        if is_secure:
            expected = "GaussianCounts with n_honest"
        raise ConfigError("mechanism", f"{expected} in mode {mode}", repr(self))

    def check_sum(self, n_certain: int) -> None:
        """Raise unless so many parties of a secure sum have all of the noise."""
        if self.n_honest is not None and self.n_honest > n_certain:
            expected = (
                f"noise of at most {n_certain} parties together (n_honest), as no "
                "more are certain to be in the sum"
            )
            raise PayloadError("secure sum", expected, self.n_honest)

    def require_feasible(self) -> None:
        """Raise a `ConfigError` where the noise would be larger than any count."""
        if not self.noise_sd <= _LARGEST_SD:
            raise ConfigError(
                "epsilon",
                f"a larger number for hash_nnz {self.hash_nnz}",
                f"{self.target_epsilon:g}",
            )

    def require_noise(self) -> None:
        """Raise where noise cannot be drawn, for want of a package for example, before
        anything is spent on it.
        """
        self._draw(np.zeros((1, 1), np.int64), self.sampler)

    def received(
        self, array: Integers, spec_fingerprint: str, n_releases: int = 1
    ) -> ClassCounts:
        """Noisy counts of a release from its array."""
        variance = self.noise_sd**2 * integer(
            "n_releases", n_releases, most=LARGEST_SIZE
        )
        release = Release(
            release_name(array, spec_fingerprint),
            variance,
            selected=self.is_partial,
            mirrored=self.mirrored,
        )
        counts = ClassCounts(
            array,
            hash_nnz=self.hash_nnz,
            spec_fingerprint=spec_fingerprint,
            noise=(release,),
        )
        if counts.n_classes != self.n_classes:
            raise CountsError(
                "release n_classes", str(self.n_classes), counts.n_classes
            )
        return counts

    def guarantee(self) -> str:
        """Privacy guarantee and its limits, in words."""
        people = "one record"
        if self.records_per_person > 1:
            people = (
                "all records of one person, who has at most "
                f"{self.records_per_person} at all parties together,"
            )
        what = "replaced by others"
        if self.neighbours == "add-remove":
            what = "added or removed"
        epsilon = self.epsilon(self.delta)
        if epsilon < 50:
            factor = shown_bound(math.exp(epsilon), 3)
        else:
            factor = f"exp({shown_bound(epsilon)})"
        bounds = f"epsilon {shown_bound(epsilon)}"
        if self.delta:
            bounds += f" and delta {shown_bound(self.delta)}"
            factor += f", and by {shown_bound(self.delta)} more"
        return (
            f"Differential privacy with {bounds}: {self._noise()}. Whether {people} "
            f"had been {what} changes the "
            "probability of any outcome of one release by at most a factor of "
            f"{factor}. Not covered: what else a party discloses (that it participates, a "
            "centre or scale learned from its "
            "data, logs, results on its own samples), and facts about people in "
            "general, which show without any one "
            "record. Further releases from the same records add their epsilon and "
            "delta to these."
        )

    def to_dict(self) -> dict[str, object]:
        """The description for `mechanism_from_dict`, as values that JSON can hold."""
        values = {
            name: getattr(self, name) for name in (*COMMON, *self.own, *self.optional)
        }
        given = {name: value for name, value in values.items() if value}
        return {"mechanism": self.kind, "epsilon": self.target_epsilon, **given}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mechanism):
            return self.to_dict() == other.to_dict()
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((name, str(value)) for name, value in self.to_dict().items()))

    def __repr__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name, value in self.to_dict().items()
            if name != "mechanism"
        ]
        return f"{type(self).__name__}({', '.join(given)})"


class SimulatedRelease(Mechanism):
    """A mechanism with noise from a seed, for repeatable simulations: it protects
    nobody.

    Parameters
    ----------
    mechanism : Mechanism
    seed : int
        0 <= seed < 2**64. Successive releases differ; the same seed and order give the
        same ones.

    Examples
    --------
    >>> from flwr_flynn.privacy import LaplaceCounts
    >>> simulated = SimulatedRelease(LaplaceCounts(1.0, hash_nnz=2, n_classes=2), seed=1)
    >>> simulated.epsilon(), simulated.guarantee()[:27]
    (inf, 'No privacy: noise from seed')
    """

    kind = "simulated"

    def __init__(self, mechanism: Mechanism, seed: int) -> None:
        if not isinstance(mechanism, Mechanism) or isinstance(
            mechanism, SimulatedRelease
        ):
            raise ConfigError(
                "mechanism",
                "a Mechanism that is not simulated",
                type(mechanism).__name__,
            )
        super().__init__(
            mechanism.target_epsilon,
            **{name: getattr(mechanism, name) for name in COMMON},
        )
        self.target_epsilon = math.inf
        for name in ("is_partial", "n_moments", "n_honest", "n_columns", "mirrored"):
            setattr(self, name, getattr(mechanism, name))
        self.mechanism = mechanism
        self.seed = integer("seed", seed, least=0, most=2**64 - 1)
        self.sampler = SeededNoise(self.seed)
        self._of_sums = SeededNoise(self.seed, 1)  # not the noise of the counts again

    @property
    def noise_sd(self) -> float:
        return self.mechanism.noise_sd

    @property
    def sums_sd(self) -> float:
        return self.mechanism.sums_sd

    def _draw_sums(self, sums: Integers, sampler: Sampler) -> Integers:
        return self.mechanism._draw_sums(sums, self._of_sums)

    def unit_noise(self, n_releases: float) -> float:
        return self.mechanism.unit_noise(n_releases)

    def epsilon(self, delta: float = 0.0) -> float:
        return math.inf

    def guarantee(self) -> str:
        return (
            f"No privacy: noise from seed {self.seed}, which anyone can draw again, "
            "for simulations only. "
            f"With noise that nobody knows this would be: {self.mechanism.guarantee()}"
        )

    def _noise(self) -> str:
        return self.mechanism._noise()

    def _draw(self, array: Integers, sampler: Sampler) -> Integers:
        return self.mechanism._draw(array, sampler)

    def require_noise(self) -> None:
        return  # a draw would change those that follow

    def to_dict(self) -> dict[str, object]:
        return {
            "mechanism": self.kind,
            "seed": self.seed,
            "of": self.mechanism.to_dict(),
        }
