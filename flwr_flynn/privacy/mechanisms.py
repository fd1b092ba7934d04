"""The base class of mechanisms, and mechanisms that put noise on all counts; `flwr_flynn.privacy` has them all."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import integer, number, one_of
from flwr_flynn.errors import ConfigError, CountsError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.noise_record import Release, release_name
from flwr_flynn.privacy import accounting
from flwr_flynn.privacy.samplers import OpenDPNoise, Sampler, SeededNoise

NEIGHBOURS = ("add-remove", "replace-one")

LARGEST_SIZE = 2**31 - 1
_LARGEST_SD = 2.0**40
_LEAST_EPSILON = 1e-3


class Mechanism(ABC):
    """Base class of the mechanisms. Immutable by convention; equal descriptions make equal mechanisms.

    Parameters
    ----------
    epsilon : float
        Bound on what one release gives away, .001 <= epsilon <= 100.
    hash_nnz : int
        rho of the counts' hash.
    n_classes : int
    neighbours : {"add-remove", "replace-one"}, default="add-remove"
        Data sets that must be hard to tell apart: with or without one record, or with one replaced.
    records_per_person : int, default=1
        Records of one person, at most, that the promise is to hold for together.
    """

    kind: ClassVar[str]
    selects: ClassVar[bool] = False  # True: some entries are left out
    n_honest: int | None = None  # parties that share the noise of one, in a secure sum

    def __init__(
        self,
        epsilon: float,
        *,
        hash_nnz: int,
        n_classes: int,
        neighbours: str = "add-remove",
        records_per_person: int = 1,
    ) -> None:
        self.target_epsilon = number("epsilon", epsilon, least=_LEAST_EPSILON, most=100.0)
        self.hash_nnz = integer("hash_nnz", hash_nnz, most=LARGEST_SIZE)
        self.n_classes = integer("n_classes", n_classes, most=LARGEST_SIZE)
        self.neighbours = one_of("neighbours", neighbours, NEIGHBOURS)
        self.records_per_person = integer("records_per_person", records_per_person, most=10**6)

    @classmethod
    def for_spec(cls, spec: HashSpec, n_classes: int, epsilon: float, **parameters: Any) -> Mechanism:
        """The mechanism for counts of this hash; `parameters` are those of the class."""
        return cls(epsilon, hash_nnz=spec.hash_nnz, n_classes=n_classes, **parameters)

    @property
    def delta(self) -> float:
        """The probability with which the promise may fail: 0.0 where it never does."""
        return 0.0

    @property
    def n_changed(self) -> int:
        """Entries that one record changes by one, at most: rho, or 2 rho where it is replaced."""
        return self.hash_nnz * (1 if self.neighbours == "add-remove" else 2)

    @property
    def l1_sensitivity(self) -> int:
        """Largest change of all counts together by one person."""
        return self.n_changed * self.records_per_person

    @property
    @abstractmethod
    def noise_sd(self) -> float:
        """Standard deviation of the noise in a released entry."""

    @abstractmethod
    def epsilon(self, delta: float = 0.0) -> float:
        """The privacy map: the most that one release gives away but with probability `delta`; infinite for no bound."""

    @property
    def zcdp_rho(self) -> float:
        """The zCDP parameter of one release, never below the true one. No relation of rho, `hash_nnz`."""
        return accounting.pure_rho(self.epsilon())

    @abstractmethod
    def _noise(self) -> str:
        """The noise in words, for the middle of a sentence."""

    @abstractmethod
    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        """(L, m) noisy counts."""

    def release(self, counts: ClassCounts, *, sampler: Sampler | None = None) -> ClassCounts:
        """Counts that may leave their party. Every call gives away epsilon anew."""
        if counts.noise:
            raise CountsError("release", "counts without noise", "noisy ones")
        for name in ("hash_nnz", "n_classes"):
            if getattr(counts, name) != getattr(self, name):
                raise CountsError(f"release {name}", str(getattr(self, name)), getattr(counts, name))
        self.require_feasible()
        # Far bounds, so that no sum overflows and none is refused; clipping brings no two counts further apart.
        limit = (2**63 - 1) // counts.hash_dim // 4
        noisy = np.clip(self._draw(np.minimum(counts.array, limit), sampler or OpenDPNoise()), -limit, limit)
        return self.received(noisy, counts.spec_fingerprint)

    @property
    def is_share(self) -> bool:
        """True if a release carries a share of the noise only, and must not be seen outside a secure sum."""
        return self.n_honest is not None

    def require_feasible(self) -> None:
        """Raise a `ConfigError` where the noise would be beyond all measure."""
        if not self.noise_sd <= _LARGEST_SD:
            raise ConfigError("epsilon", f"a larger number for hash_nnz {self.hash_nnz}", f"{self.target_epsilon:g}")

    def received(self, array: npt.NDArray[np.int64], spec_fingerprint: str, n_releases: int = 1) -> ClassCounts:
        """A release as noisy counts again, where only its array has travelled."""
        variance = self.noise_sd**2 * integer("n_releases", n_releases, most=LARGEST_SIZE)
        release = Release(release_name(array, spec_fingerprint), variance, selected=self.selects)
        counts = ClassCounts(array, hash_nnz=self.hash_nnz, spec_fingerprint=spec_fingerprint, noise=(release,))
        if counts.n_classes != self.n_classes:
            raise CountsError("release n_classes", str(self.n_classes), counts.n_classes)
        return counts

    def guarantee(self) -> str:
        """The promise, and its limits, in words."""
        people = "one record"
        if self.records_per_person > 1:
            people = f"all records of one person, who has at most {self.records_per_person} at all parties together,"
        what = "added or removed" if self.neighbours == "add-remove" else "replaced by others"
        epsilon = self.epsilon(self.delta)
        promise = f"epsilon {shown_bound(epsilon)}" + (f" and delta {shown_bound(self.delta)}" if self.delta else "")
        return (
            f"Differential privacy with {promise}: {self._noise()}. Whether {people} had been {what} changes the "
            f"probability of any outcome of one release by at most a factor of {_factor(epsilon)}"
            + (f", and by {shown_bound(self.delta)} more" if self.delta else "")
            + ". Not covered: what else a party lets be known (that it takes part, a centre or scale learned from its "
            "data, logs, results on its own samples), and what is true of everybody and can be learned without any one "
            "record. Further releases from the same records add their epsilon and delta to these."
        )

    def to_dict(self) -> dict[str, Any]:
        """The description that `mechanism_from_dict` needs, as plain values that JSON can hold."""
        return {
            "mechanism": self.kind,
            "epsilon": self.target_epsilon,
            "hash_nnz": self.hash_nnz,
            "n_classes": self.n_classes,
            "neighbours": self.neighbours,
            "records_per_person": self.records_per_person,
        }

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Mechanism) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((name, str(value)) for name, value in self.to_dict().items()))

    def __repr__(self) -> str:
        given = {name: value for name, value in self.to_dict().items() if name != "mechanism"}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class GaussianCounts(Mechanism):
    """Discrete Gaussian noise on every count: the default of the private mode.

    Sigma is the smallest that keeps the promise (see `privacy.accounting`).

    Parameters
    ----------
    epsilon : float
    delta : float
        1e-12 <= delta <= .5; it should be much below one over the number of people.
    n_honest : int, optional
        For a secure sum: each party adds a share, so that those of any `n_honest` parties together carry the noise. The
        promise is then about the sum, and holds while that many parties added their noise and keep it to themselves.
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for `Mechanism`.

    Examples
    --------
    >>> mechanism = GaussianCounts(epsilon=1.0, delta=1e-5, hash_nnz=16, n_classes=10)
    >>> round(mechanism.sigma, 1), round(mechanism.epsilon(1e-5), 3), round(mechanism.epsilon(1e-7), 2)
    (14.9, 1.0, 1.27)
    >>> round(GaussianCounts(1.0, 1e-5, hash_nnz=16, n_classes=10, n_honest=4).sigma, 2)
    7.46
    """

    kind = "gaussian"

    def __init__(self, epsilon: float, delta: float, *, n_honest: int | None = None, **common: Any) -> None:
        super().__init__(epsilon, **common)
        self._delta = number("delta", delta, least=accounting.SMALLEST_DELTA, most=0.5)
        self.n_honest = None if n_honest is None else integer("n_honest", n_honest, most=10**6)

    @property
    def delta(self) -> float:
        return self._delta

    @property
    def sigma(self) -> float:
        """Parameter of the discrete Gaussian distribution of one party's noise; above 1 its standard deviation, too."""
        sigma = accounting.gaussian_sigma(self.target_epsilon, self._delta, self.n_changed, self.records_per_person)
        if self.n_honest is None:
            return sigma
        share = max(sigma / math.sqrt(self.n_honest), 3.0)
        while self._sum_epsilon(share, self._delta) > self.target_epsilon:  # the gap of a sum is next to nothing
            share *= 1.0005
        return share

    @property
    def noise_sd(self) -> float:
        return self.sigma

    def epsilon(self, delta: float = 0.0) -> float:
        if delta < accounting.SMALLEST_DELTA:
            return math.inf
        if self.n_honest is not None:
            return self._sum_epsilon(self.sigma, delta)
        return accounting.gaussian_epsilon(self.sigma, delta, self.n_changed, self.records_per_person)

    @property
    def zcdp_rho(self) -> float:
        return accounting.gaussian_rho(self.sigma, self.n_changed, self.records_per_person, self.n_honest or 1)

    def _sum_epsilon(self, share: float, delta: float) -> float:
        n_honest = self.n_honest or 1
        # Probabilities of the sum are within exp(+-gap) of those of one discrete Gaussian, in the entries that change.
        gap = accounting.sum_of_gaussians_gap(share, n_honest) * self.n_changed * self.records_per_person
        whole = share * math.sqrt(n_honest)
        within = delta * math.exp(-gap)
        if within < accounting.SMALLEST_DELTA:
            return math.inf
        return accounting.gaussian_epsilon(whole, within, self.n_changed, self.records_per_person) + 2 * gap

    def _noise(self) -> str:
        noise = f"discrete Gaussian noise of standard deviation {self.sigma:.5g} on every count"
        if self.n_honest is None:
            return f"{noise} of one party's release"
        return (
            f"{noise} of every party, of which nobody learns more than the securely computed sum, while at least "
            f"{self.n_honest} parties added theirs and keep it to themselves"
        )

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return array + sampler.gaussian(array.size, self.sigma).reshape(array.shape)

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict() | {"delta": self._delta}
        return values if self.n_honest is None else values | {"n_honest": self.n_honest}


class LaplaceCounts(Mechanism):
    """Discrete Laplace noise on every count, of scale L1 sensitivity / epsilon: nothing that may fail.

    The parameters are those of `Mechanism`.

    Examples
    --------
    >>> LaplaceCounts(epsilon=0.5, hash_nnz=16, n_classes=10, neighbours="replace-one").scale
    64.0
    """

    kind = "laplace"

    @property
    def scale(self) -> float:
        """P(x) is proportional to exp(-abs(x) / scale)."""
        return rounded_up(self.l1_sensitivity, self.target_epsilon)

    @property
    def noise_sd(self) -> float:
        return laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        return self.l1_sensitivity / self.scale

    def _noise(self) -> str:
        return f"discrete Laplace noise of scale {self.scale:.5g} on every count of one party's release"

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return array + sampler.laplace(array.size, self.scale).reshape(array.shape)


class SimulatedRelease(Mechanism):
    """A mechanism with noise from a seed, for simulations that are to be repeated: it protects nobody.

    Parameters
    ----------
    mechanism : Mechanism
    seed : int
        0 <= seed < 2**64. Successive releases differ; the same seed and order give the same ones.

    Examples
    --------
    >>> simulated = SimulatedRelease(LaplaceCounts(1.0, hash_nnz=2, n_classes=2), seed=1)
    >>> simulated.epsilon(), simulated.guarantee()[:27]
    (inf, 'No privacy: noise from seed')
    """

    kind = "simulated"

    def __init__(self, mechanism: Mechanism, seed: int) -> None:
        if not isinstance(mechanism, Mechanism) or isinstance(mechanism, SimulatedRelease):
            raise ConfigError("mechanism", "a Mechanism that is not simulated", type(mechanism).__name__)
        self.mechanism, self.seed = mechanism, integer("seed", seed, least=0, most=2**64 - 1)
        self.target_epsilon = math.inf
        for name in ("hash_nnz", "n_classes", "neighbours", "records_per_person", "n_honest", "selects"):
            setattr(self, name, getattr(mechanism, name))
        self._sampler = SeededNoise(self.seed)

    @property
    def noise_sd(self) -> float:
        return self.mechanism.noise_sd

    def epsilon(self, delta: float = 0.0) -> float:
        return math.inf

    def guarantee(self) -> str:
        return (
            f"No privacy: noise from seed {self.seed}, which anyone can draw again, for simulations only. "
            f"With noise that nobody knows this would be: {self.mechanism.guarantee()}"
        )

    def _noise(self) -> str:
        return self.mechanism._noise()

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return self.mechanism._draw(array, sampler)

    def release(self, counts: ClassCounts, *, sampler: Sampler | None = None) -> ClassCounts:
        return self.mechanism.release(counts, sampler=sampler or self._sampler)

    def to_dict(self) -> dict[str, Any]:
        return {"mechanism": self.kind, "seed": self.seed, "of": self.mechanism.to_dict()}


def laplace_sd(scale: float) -> float:
    """Standard deviation of the discrete Laplace distribution: variance 2 q / (1 - q) ** 2 with q = exp(-1 / scale)."""
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / -math.expm1(-1 / scale)


def rounded_up(dividend: int, divisor: float) -> float:
    """The quotient, never below the true one: a scale of noise that is the least too small breaks its promise."""
    quotient = dividend / divisor
    enough = Fraction(quotient) * Fraction(divisor) >= dividend
    return quotient if enough else math.nextafter(quotient, math.inf)


def shown_bound(bound: float, digits: int = 4) -> str:
    """A bound as text, rounded up, since the printed bound is promised."""
    shown = f"{bound:.{digits}g}"
    if 0 < bound < math.inf and float(shown) < bound:
        step = 10.0 ** (math.floor(math.log10(bound)) - digits + 1)
        shown = f"{float(shown) + step:.{digits}g}"
    return shown


def _factor(epsilon: float) -> str:
    return shown_bound(math.exp(epsilon), 3) if epsilon < 50 else f"exp({shown_bound(epsilon)})"
