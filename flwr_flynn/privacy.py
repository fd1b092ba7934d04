"""Differential privacy: mechanisms that turn counts into counts that may leave their party.

A mechanism is bound to the shape of the counts (rho and the number of classes) and to what is promised: epsilon, delta,
what neighbours are, how many records a person may have. `release` adds the noise; `epsilon` is the privacy map, what
one release gives away at most; `guarantee` says it in words; `to_dict` and `mechanism_from_dict` carry it in a run's
config, a model file or a ledger.

===================  ===========================================================  ======================
mechanism            what it releases                                             guarantee
===================  ===========================================================  ======================
`GaussianCounts`     all counts with discrete Gaussian noise                      (epsilon, delta)
`LaplaceCounts`      all counts with discrete Laplace noise                       epsilon
`TopTLaplace`        T selected counts with discrete Laplace noise, the others 0  epsilon (the paper's)
`SimulatedRelease`   as one of these, with noise from a seed                      none: for simulations
===================  ===========================================================  ======================

What a record changes: with neighbours "add-remove", rho counts of one class by one; with "replace-one", twice as many.
A person with up to k records changes k times as much. Parties hold different records, so what each releases with
epsilon is together still epsilon for every record (parallel composition). Releases of one party add up (`budget`).

Entries of a release are signed: clipping them before they are summed would bias the sum, and read-outs clip.

>>> from flwr_flynn import ClassCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> mechanism = LaplaceCounts(epsilon=1.0, hash_nnz=2, n_classes=2)
>>> mechanism.epsilon(), round(mechanism.noise_sd, 2)
(1.0, 2.8)
>>> release = SimulatedRelease(mechanism, seed=7).release(counts)
>>> round(release.noise_variance, 2), (counts + release - release) == counts
(7.84, True)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flwr_flynn import accounting
from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import ConfigError, CountsError
from flwr_flynn.noise import OpenDPNoise, Sampler, SeededNoise
from flwr_flynn.noisy import Release, release_name
from flwr_flynn.spec import HashSpec

NEIGHBOURS = ("add-remove", "replace-one")
ACCOUNTINGS = ("tight", "code", "paper")

_LARGEST_SD = 2.0**40
_LARGEST_SIZE = 2**31 - 1


class Mechanism(ABC):
    """What all mechanisms have in common. Immutable by convention; equal descriptions make equal mechanisms.

    Parameters
    ----------
    epsilon : float
        What one release may give away, 0 < epsilon <= 100.
    hash_nnz : int
        rho of the counts' hash.
    n_classes : int
    neighbours : {"add-remove", "replace-one"}, default="add-remove"
        Data sets that must be hard to tell apart: with or without one record, or with another in its place.
    records_per_person : int, default=1
        Records of one person, at most, that the promise is to hold for together.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.
    """

    kind: ClassVar[str]
    private: ClassVar[bool] = True

    def __init__(
        self,
        epsilon: float,
        *,
        hash_nnz: int,
        n_classes: int,
        neighbours: str = "add-remove",
        records_per_person: int = 1,
    ) -> None:
        self.target_epsilon = _number("epsilon", epsilon, above=0.0, most=100.0)
        self.hash_nnz = _whole("hash_nnz", hash_nnz)
        self.n_classes = _whole("n_classes", n_classes)
        self.neighbours = _one_of("neighbours", neighbours, NEIGHBOURS)
        self.records_per_person = _whole("records_per_person", records_per_person, most=10**6)

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
        """By how much one person changes all counts together, at most."""
        return self.n_changed * self.records_per_person

    @property
    @abstractmethod
    def noise_sd(self) -> float:
        """Standard deviation of the noise in a released entry."""

    @abstractmethod
    def epsilon(self, delta: float = 0.0) -> float:
        """The privacy map: what one release gives away at most, where the promise may fail with probability `delta`.

        Infinite where there is no such promise.
        """

    @abstractmethod
    def _noise(self) -> str:
        """What is done, as words in the middle of a sentence."""

    @abstractmethod
    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        """(L, m) noisy counts."""

    def release(self, counts: ClassCounts, *, processes: int = 1) -> ClassCounts:
        """Counts that may leave their party. Every call gives away epsilon anew.

        Parameters
        ----------
        counts : ClassCounts
            Without noise. Nothing is said about their values, whatever they are: no error depends on them.
        processes : int, default=1
            How many draw the noise; worth it above half a million counts.

        Returns
        -------
        ClassCounts
            Noisy.

        Raises
        ------
        CountsError
            The counts are noisy, or of another shape than the mechanism is for.
        MissingExtraError
            OpenDP or dp-accounting is missing.
        """
        return self._release(counts, OpenDPNoise(processes))

    def received(self, array: npt.NDArray[np.int64], spec_fingerprint: str, n_releases: int = 1) -> ClassCounts:
        """A release as noisy counts again, where only its array has travelled.

        Parameters
        ----------
        array : (n_classes, m) integers
        spec_fingerprint : str
        n_releases : int, default=1
            How many releases the array is a sum of, each with this mechanism's noise.

        Raises
        ------
        CountsError
            Not a release of this mechanism.
        """
        variance = self.noise_sd**2 * _whole("n_releases", n_releases)
        release = Release(release_name(array, spec_fingerprint), variance, selected=isinstance(self, TopTLaplace))
        counts = ClassCounts(array, hash_nnz=self.hash_nnz, spec_fingerprint=spec_fingerprint, noise=(release,))
        if counts.n_classes != self.n_classes:
            raise CountsError(f"release: expected {self.n_classes} classes, got {counts.n_classes}")
        return counts

    def _release(self, counts: ClassCounts, sampler: Sampler) -> ClassCounts:
        if counts.noise:
            raise CountsError("release: expected counts without noise, got noisy ones")
        for name in ("hash_nnz", "n_classes"):
            if getattr(counts, name) != getattr(self, name):
                raise CountsError(f"release: expected {name} {getattr(self, name)}, got {getattr(counts, name)}")
        # Bounds far from anything that occurs, so that no sum overflows and none is refused. Clipping counts changes
        # no two of them by more than they differ, and clipping what was released is done to what is public.
        limit = (2**63 - 1) // counts.hash_dim // 4
        noisy = np.clip(self._draw(np.minimum(counts.array, limit), sampler), -limit, limit)
        return self.received(noisy, counts.spec_fingerprint)

    def guarantee(self) -> str:
        """What is promised, to whom, and what is not, in words."""
        people = (
            "one record"
            if self.records_per_person == 1
            else f"all records of one person, who has at most {self.records_per_person} at all parties together"
        )
        what = "added or removed" if self.neighbours == "add-remove" else "replaced by others"
        epsilon = self.epsilon(self.delta)
        promise = f"epsilon {epsilon:.4g}" + (f" and delta {self.delta:.4g}" if self.delta else "")
        return (
            f"Differential privacy with {promise}: {self._noise()}. Whether {people} had been {what} changes the "
            f"probability of any outcome of one release by at most a factor of {_factor(epsilon)}"
            + (f", but for outcomes of probability {self.delta:.4g}" if self.delta else "")
            + ". Not covered: what else a party lets be known (that it takes part, a centre or scale learned from its "
            "data, logs, results on its own points), and what is true of everybody and can be learned without any one "
            "record. Further releases from the same records add their epsilon and delta to these."
        )

    def to_dict(self) -> dict[str, Any]:
        """What `mechanism_from_dict` needs, as plain values that JSON can hold."""
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

    Sigma is the smallest that keeps the promise, by the exact privacy loss of as many discrete Gaussians of sensitivity
    1 as a record changes entries (see `flwr_flynn.accounting`; for more than one record per person by a bound that
    holds however they overlap).

    Parameters
    ----------
    epsilon : float
    delta : float
        1e-12 <= delta < 1; much below one over the number of people.
    hash_nnz, n_classes, neighbours, records_per_person
        As for `Mechanism`.
    n_honest : int, optional
        Distributed noise, for parties whose releases nobody sees but in a secure sum: each adds its share only, so that
        those of any `n_honest` of them together carry the noise. The promise is then about the sum, and holds while
        that many parties added their noise and keep it to themselves. A share's sigma is at least 3.

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
        self._delta = _number("delta", delta, above=0.0, most=0.5)
        if self._delta < accounting.SMALLEST_DELTA:
            raise ConfigError(f"delta: expected at least {accounting.SMALLEST_DELTA:g}, got {self._delta:g}")
        self.n_honest = None if n_honest is None else _whole("n_honest", n_honest, most=10**6)

    @property
    def delta(self) -> float:
        """As given."""
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
        """Of one release; variances add in a sum."""
        return self.sigma

    def epsilon(self, delta: float = 0.0) -> float:
        """See `Mechanism.epsilon`; with `n_honest`, of the sum."""
        if delta < accounting.SMALLEST_DELTA:
            return math.inf
        if self.n_honest is not None:
            return self._sum_epsilon(self.sigma, delta)
        return accounting.gaussian_epsilon(self.sigma, delta, self.n_changed, self.records_per_person)

    def _sum_epsilon(self, share: float, delta: float) -> float:
        n_honest = self.n_honest or 1
        # Probabilities of the sum of shares are within exp(+-gap) of those of one discrete Gaussian, entry by entry;
        # entries that neighbours have in common do not matter.
        gap = accounting.sum_of_gaussians_gap(share, n_honest) * self.n_changed * self.records_per_person
        whole = share * math.sqrt(n_honest)
        within = max(delta * math.exp(-gap), accounting.SMALLEST_DELTA)
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
        """See `Mechanism.to_dict`."""
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
        return self.l1_sensitivity / self.target_epsilon

    @property
    def noise_sd(self) -> float:
        """See `Mechanism.noise_sd`."""
        return _laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        """See `Mechanism.epsilon`: the same for every delta."""
        return self.l1_sensitivity / self.scale

    def _noise(self) -> str:
        return f"discrete Laplace noise of scale {self.scale:.5g} on every count of one party's release"

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return array + sampler.laplace(array.size, self.scale).reshape(array.shape)


class TopTLaplace(Mechanism):
    """The paper's mechanism (Algorithm 2, lines 12-24): T counts drawn by size, with Laplace noise; the others are 0.

    T places are drawn one after the other without replacement, each with probability proportional to
    exp(a * count): the T largest of counts with Gumbel noise of scale 1 / a, which is the same in law and takes one
    pass. Their counts get Laplace noise of scale b. The noise is the discrete Laplace, which gives counts away no more
    than the paper's continuous one; entries are not clipped, which the paper does before it sums and read-outs do here.

    Parameters
    ----------
    epsilon : float
    n_released : int
        T.
    hash_nnz, n_classes, neighbours, records_per_person
        As for `Mechanism`.
    accounting : {"tight", "code", "paper"}, default="tight"
        How a and b follow from epsilon.

        - "paper": each party gets e = epsilon / n_parties; a = e / 4 T as printed, b = 2 T / e.
        - "code": as the authors' programs and figures: a = e / 2 T, b = 2 T / e.
        - "tight": each party gets epsilon, since a record is at one party only, and half of it goes into each step.
          Under "add-remove" a record changes all counts in the same direction, so that one draw costs a, not 2 a; one
          record changes at most min(T, rho) of the T counts, not T.

        Only "tight" takes account of `neighbours` and `records_per_person`; `epsilon()` says for all three what a
        release really gives away.
    n_parties : int, optional
        tau; needed for "paper" and "code".

    Examples
    --------
    >>> paper = TopTLaplace(1.0, n_released=100, hash_nnz=16, n_classes=2, accounting="paper", n_parties=2)
    >>> tight = TopTLaplace(1.0, n_released=100, hash_nnz=16, n_classes=2)
    >>> paper.scale, tight.scale
    (400.0, 32.0)
    >>> paper.epsilon(), tight.epsilon()
    (0.165, 1.0)
    """

    kind = "top-t"

    def __init__(
        self,
        epsilon: float,
        n_released: int,
        *,
        accounting: str = "tight",
        n_parties: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(epsilon, **common)
        self.n_released = _whole("n_released", n_released)
        self.accounting = _one_of("accounting", accounting, ACCOUNTINGS)
        if (n_parties is None) != (accounting == "tight"):
            raise ConfigError(
                'n_parties: is for accounting "paper" and "code", which divide epsilon by it, and needed there'
            )
        self.n_parties = None if n_parties is None else _whole("n_parties", n_parties)

    @property
    def exponent(self) -> float:
        """a: a place is drawn with probability proportional to exp(a * count)."""
        if self.n_parties is None:
            return self.target_epsilon / 2 / self._selection_loss
        share = self.target_epsilon / self.n_parties
        return share / ((4 if self.accounting == "paper" else 2) * self.n_released)

    @property
    def scale(self) -> float:
        """b: noise of a released count has probability proportional to exp(-abs(x) / b)."""
        if self.n_parties is None:
            return 2 * self._released_change / self.target_epsilon
        return 2 * self.n_released * self.n_parties / self.target_epsilon

    @property
    def _selection_loss(self) -> int:
        """What T draws give away, in units of a: each the range of what a person does to the counts."""
        both_ways = 1 if self.neighbours == "add-remove" else 2
        return self.n_released * self.records_per_person * both_ways

    @property
    def _released_change(self) -> int:
        """By how much a person changes T counts, at most."""
        return min(self.n_released, self.n_changed) * self.records_per_person

    @property
    def noise_sd(self) -> float:
        """Of a released entry."""
        return _laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        """See `Mechanism.epsilon`: the same for every delta."""
        return self.exponent * self._selection_loss + self._released_change / self.scale

    def _noise(self) -> str:
        return (
            f"{self.n_released} counts of one party, drawn with odds exp({self.exponent:.4g}) for each point, with "
            f"discrete Laplace noise of scale {self.scale:.5g}, no others"
        )

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        flat = array.ravel()
        how_many = min(self.n_released, flat.size)
        places = np.arange(flat.size) if how_many == flat.size else sampler.top(flat, how_many, 1 / self.exponent)
        released = np.zeros_like(flat)
        released[places] = flat[places] + sampler.laplace(how_many, self.scale)
        return released.reshape(array.shape)

    def to_dict(self) -> dict[str, Any]:
        """See `Mechanism.to_dict`."""
        values = super().to_dict() | {"n_released": self.n_released, "accounting": self.accounting}
        return values if self.n_parties is None else values | {"n_parties": self.n_parties}


class SimulatedRelease(Mechanism):
    """Another mechanism with noise from a seed. For simulations, where runs are to be repeated: it protects nobody.

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
    private = False

    def __init__(self, mechanism: Mechanism, seed: int) -> None:
        if not isinstance(mechanism, Mechanism) or isinstance(mechanism, SimulatedRelease):
            raise ConfigError(f"mechanism: expected one that is not simulated, got {type(mechanism).__name__}")
        self.mechanism, self.seed = mechanism, _whole("seed", seed, least=0, most=2**64 - 1)
        self.target_epsilon = math.inf
        for name in ("hash_nnz", "n_classes", "neighbours", "records_per_person"):
            setattr(self, name, getattr(mechanism, name))
        self._sampler = SeededNoise(self.seed)

    @property
    def noise_sd(self) -> float:
        """That of the mechanism."""
        return self.mechanism.noise_sd

    def epsilon(self, delta: float = 0.0) -> float:
        """Infinite."""
        return math.inf

    def guarantee(self) -> str:
        """That there is none."""
        return (
            f"No privacy: noise from seed {self.seed}, which anyone can draw again, for simulations only. "
            f"With noise that nobody knows this would be: {self.mechanism.guarantee()}"
        )

    def _noise(self) -> str:
        return self.mechanism._noise()

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return self.mechanism._draw(array, sampler)

    def release(self, counts: ClassCounts, *, processes: int = 1) -> ClassCounts:
        """See `Mechanism.release`; needs no extra for `LaplaceCounts` and `TopTLaplace`."""
        return self.mechanism._release(counts, self._sampler)

    def to_dict(self) -> dict[str, Any]:
        """See `Mechanism.to_dict`."""
        return {"mechanism": self.kind, "seed": self.seed, "of": self.mechanism.to_dict()}


MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism for mechanism in (GaussianCounts, LaplaceCounts, TopTLaplace)
}


def mechanism_from_dict(values: Any) -> Mechanism:
    """The mechanism that `Mechanism.to_dict` described, which may come from anybody.

    Raises
    ------
    ConfigError
        Not such a description; the message names the field.

    Examples
    --------
    >>> mechanism = LaplaceCounts(epsilon=1.0, hash_nnz=2, n_classes=2)
    >>> mechanism_from_dict(mechanism.to_dict()) == mechanism
    True
    """
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"mechanism: expected a mapping, got {type(values).__name__}")
    given = dict(values)
    kind = given.pop("mechanism", None)
    if kind == SimulatedRelease.kind:
        if set(given) != {"seed", "of"} or not isinstance(given["of"], Mapping):
            raise ConfigError("mechanism: expected seed and of for a simulated one, got other fields")
        if given["of"].get("mechanism") == SimulatedRelease.kind:
            raise ConfigError("mechanism: expected one that is not simulated, got one that is")
        return SimulatedRelease(mechanism_from_dict(given["of"]), given["seed"])
    if not isinstance(kind, str) or kind not in MECHANISMS:
        raise ConfigError(f"mechanism: expected one of {', '.join(MECHANISMS)}, got {str(kind)[:40]!r}")
    needed = {"epsilon", "hash_nnz", "n_classes", "neighbours", "records_per_person"}
    optional: set[str] = set()
    if kind == "gaussian":
        needed, optional = needed | {"delta"}, {"n_honest"}
    elif kind == "top-t":
        needed, optional = needed | {"n_released", "accounting"}, {"n_parties"}
    wrong = sorted(needed - set(given)) or sorted(set(given) - needed - optional)
    if wrong:
        what = "missing" if needed - set(given) else "unknown"
        raise ConfigError(f"mechanism {kind}: {what} field {', '.join(name[:40] for name in wrong[:5])}")
    return MECHANISMS[kind](**given)


def suggest_spec(
    epsilon: float,
    delta: float,
    n_features: int,
    n_examples: int,
    n_classes: int,
    n_parties: int,
    *,
    neighbours: str = "add-remove",
    records_per_person: int = 1,
    secure_sum: bool = False,
    **sizes: Any,
) -> HashSpec:
    """Sizes of a hash for counts that get `GaussianCounts`' noise: `HashSpec.suggest`, told how much that will be.

    Parameters
    ----------
    epsilon, delta : float
    n_features, n_examples, n_classes : int
        Of all parties together. Public figures: rough ones will do, and exact ones would have to be public.
    n_parties : int
        Each adds noise of its own.
    neighbours, records_per_person
        As for `Mechanism`.
    secure_sum : bool, default=False
        Parties share one noise instead (`GaussianCounts`' `n_honest`).
    **sizes
        `hash_dim`, `row_nnz`, `hash_nnz`, `seed`, `signed`, `center`, `scale`, as for `HashSpec.suggest`. Centre and
        scale must be public, too.

    Returns
    -------
    HashSpec

    Examples
    --------
    >>> suggest_spec(1.0, 1e-5, n_features=30, n_examples=10000, n_classes=2, n_parties=2, hash_dim=9600).hash_nnz
    103
    """
    noise = GaussianCounts(
        epsilon, delta, hash_nnz=16, n_classes=n_classes, neighbours=neighbours, records_per_person=records_per_person
    )
    per_unit = noise.sigma / math.sqrt(16) * (1 if secure_sum else math.sqrt(_whole("n_parties", n_parties)))
    return HashSpec.suggest(n_features, n_examples, n_classes, per_unit, **sizes)


def clamped(counts: ClassCounts, bound: int) -> ClassCounts:
    """Noisy counts with every entry in -bound to bound, for a sum that is computed modulo something larger.

    Never an error: whether an entry was beyond a bound must not show otherwise than in what is released anyway.

    Parameters
    ----------
    counts : ClassCounts
        Noisy.
    bound : int
        Public.

    Examples
    --------
    >>> noise = (Release(64 * "a", 4.0),)
    >>> clamped(ClassCounts([[-9, 2], [9, 0]], hash_nnz=1, spec_fingerprint=64 * "0", noise=noise), 5).array.tolist()
    [[-5, 2], [5, 0]]
    """
    if not counts.noise:
        raise CountsError("clamped: expected noisy counts, got exact ones")
    array = np.clip(counts.array, -_whole("bound", bound, most=2**62), bound)
    return ClassCounts(array, hash_nnz=counts.hash_nnz, spec_fingerprint=counts.spec_fingerprint, noise=counts.noise)


def _laplace_sd(scale: float) -> float:
    """Of the discrete Laplace distribution: variance 2 q / (1 - q) ** 2 with q = exp(-1 / scale)."""
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / -math.expm1(-1 / scale)


def _factor(epsilon: float) -> str:
    return f"{math.exp(epsilon):.3g}" if epsilon < 50 else f"exp({epsilon:.4g})"


def _whole(name: str, value: Any, least: int = 1, most: int = _LARGEST_SIZE) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ConfigError(f"{name}: expected a whole number from {least} to {most}, got {str(value)[:40]!r}")
    return int(value)


def _number(name: str, value: Any, above: float, most: float) -> float:
    whole = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not whole or not above < value <= most:
        raise ConfigError(f"{name}: expected a number above {above:g}, at most {most:g}, got {str(value)[:40]!r}")
    return float(value)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {str(value)[:40]!r}")
    return str(value)
