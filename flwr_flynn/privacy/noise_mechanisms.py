"""Kinds of noise on counts, mechanisms from descriptions, and sizes of a hash that go
with the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_flynn._types import Integers
from flwr_flynn._validation import boolean, checked_fields, integer, number, one_of
from flwr_flynn.errors import ConfigError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import SIZE_ENTRIES
from flwr_flynn.privacy import accounting
from flwr_flynn.privacy.accounting import laplace_sd, rounded_up
from flwr_flynn.privacy.mechanism import (
    COMMON,
    LARGEST_SIZE,
    Mechanism,
    Sampler,
    SimulatedRelease,
)

MOST_HONEST = 10**6
SHARE_OF_SUMS = 0.1
"""Share of the budget for the sums of columns, of Gaussian noise; of Laplace noise it is
`PURE_SHARE_OF_SUMS`."""
PURE_SHARE_OF_SUMS = 0.2

MANY = 700
"""Samples of a class, in units of noise, from which many rows tell more than class means
do: so it was on ailerons, pol and two tasks of MNIST, the sets that have as many."""


class GaussianCounts(Mechanism):
    """Discrete Gaussian noise on every count, with the smallest sigma for the guarantee
    (`privacy.accounting`).

    Parameters
    ----------
    epsilon : float
    delta : float
        1e-12 <= delta <= .5; it should be much below one over the number of people.
    n_honest : int, optional
        For a secure sum: each party adds a share of the noise, and the shares of any
        `n_honest` parties add up to all of it. The guarantee is about the sum. It holds
        while `n_honest` parties add their share and keep it secret.
    n_columns : int, optional
        Release sums of so many columns and of their squares before the counts, see
        `model.column_sums`, at a tenth of the budget. Both together have the guarantee,
        by zero-concentrated differential privacy.
    mirrored : bool, default=False
        Counts of samples less those of their mirror images about the centre of the
        hash, with the sizes of the classes in the last `SIZE_ENTRIES` entries. Only
        with neighbours "add-remove".
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for
        `Mechanism`.

    Examples
    --------
    >>> mechanism = GaussianCounts(epsilon=1.0, delta=1e-5, hash_nnz=16, n_classes=10)
    >>> round(mechanism.sigma, 1)
    14.9
    >>> round(mechanism.epsilon(1e-5), 3), round(mechanism.epsilon(1e-7), 2)
    (1.0, 1.27)
    >>> round(GaussianCounts(1.0, 1e-5, hash_nnz=16, n_classes=10, n_honest=4).sigma, 2)
    7.46
    """

    kind = "gaussian"
    own = ("delta",)
    optional = ("n_honest", "n_columns", "mirrored")
    n_moments = 2

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        n_honest: int | None = None,
        n_columns: int | None = None,
        mirrored: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(epsilon, **common)
        self.delta = number("delta", delta, least=accounting.SMALLEST_DELTA, most=0.5)
        self.n_honest = _optional("n_honest", n_honest, MOST_HONEST)
        self.n_columns = _optional("n_columns", n_columns, LARGEST_SIZE)
        self.mirrored = boolean("mirrored", mirrored)
        if mirrored and self.neighbours != "add-remove":
            raise ConfigError("mirrored", "False beside replace-one", True)

    @property
    def noise_sd(self) -> float:
        return self.sigma

    @property
    def sigma(self) -> float:
        """Sigma of the discrete Gaussian noise of one party.

        Above 1 this is its standard deviation, too.
        """
        if self.n_columns is None:
            sigma = accounting.gaussian_sigma(
                self.target_epsilon, self.delta, self.n_changed, self.records_per_person
            )
        else:
            norm = self.records_per_person * math.sqrt(self.n_changed)
            sigma = self._sigma_of_part(norm, 1 - SHARE_OF_SUMS)
        if self.n_honest is None:
            return sigma
        share = max(sigma / math.sqrt(self.n_honest), 3.0)
        # The gap of a sum is next to nothing.
        while self._sum_epsilon(share, self.delta) > self.target_epsilon:
            share *= 1.0005
        return share

    def _sigma_of_part(self, norm: float, share: float) -> float:
        """Sigma of a change of this norm, for a share of the budget."""
        rho = accounting.zcdp_rho(self.target_epsilon, self.delta)
        return accounting.of_five_digits(norm / math.sqrt(2 * share * rho))

    @property
    def sums_sd(self) -> float:
        if self.n_columns is None:
            return 0.0
        whole = self._sigma_of_part(self.sums_norm(2), SHARE_OF_SUMS)
        return whole / math.sqrt(self.n_honest or 1)

    def epsilon(self, delta: float = 0.0) -> float:
        return self._sum_epsilon(self.sigma, delta)

    @property
    def zcdp_rho(self) -> float:
        return self._rho(self.sigma)

    def _rho(self, share: float) -> float:
        """The zCDP parameter of counts with this sigma and, before them, of the sums."""
        n_honest = self.n_honest or 1
        rho = accounting.gaussian_rho(
            share, self.n_changed, self.records_per_person, n_honest
        )
        if self.n_columns is not None:
            squared = math.ceil(self.sums_norm(2) ** 2)
            rho += accounting.gaussian_rho(self.sums_sd, squared, 1, n_honest)
        return rho

    def _sum_epsilon(self, share: float, delta: float) -> float:
        if self.n_columns is not None:
            if delta < accounting.SMALLEST_DELTA:
                return math.inf
            return accounting.zcdp_epsilon(self._rho(share), delta)
        n_honest = self.n_honest or 1
        # Probabilities of the sum are within exp(+-gap) of those of one discrete
        # Gaussian, in the entries that change.
        gap = (
            accounting.sum_of_gaussians_gap(share, n_honest)
            * self.n_changed
            * self.records_per_person
        )
        whole = share * math.sqrt(n_honest)
        within = delta * math.exp(-gap)
        if within < accounting.SMALLEST_DELTA:
            return math.inf
        return (
            accounting.gaussian_epsilon(
                whole, within, self.n_changed, self.records_per_person
            )
            + 2 * gap
        )

    def _noise(self) -> str:
        noise = (
            f"discrete Gaussian noise of standard deviation {self.sigma:.5g} on "
            "every count"
        )
        if self.n_columns is not None:
            noise += f", after {_of_sums(self)}"
        if self.n_honest is None:
            return f"{noise} of one party's release"
        return (
            f"{noise} of every party, of which nobody learns more than the securely "
            "computed sum, while at least "
            f"{self.n_honest} parties added theirs and keep it to themselves"
        )

    def _draw(self, array: Integers, sampler: Sampler) -> Integers:
        return array + sampler.gaussian(array.size, self.sigma).reshape(array.shape)

    def _draw_sums(self, sums: Integers, sampler: Sampler) -> Integers:
        return sums + sampler.gaussian(sums.size, self.sums_sd).reshape(sums.shape)


def _optional(field: str, number: int | None, most: int) -> int | None:
    """A checked number, or None."""
    if number is None:
        return None
    return integer(field, number, most=most)


def _of_sums(mechanism: Mechanism) -> str:
    """The noise of the sums of columns in words."""
    return (
        f"noise of standard deviation {mechanism.sums_sd:.5g} on sums of "
        f"{mechanism.n_columns} columns"
    )


class LaplaceCounts(Mechanism):
    """Discrete Laplace noise on every count, of scale L1 sensitivity / epsilon.

    Delta is 0.

    Parameters
    ----------
    epsilon : float
    n_columns : int, optional
        Release sums of so many columns before the counts, at a fifth of epsilon.
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for
        `Mechanism`.

    Examples
    --------
    >>> LaplaceCounts(epsilon=0.5, hash_nnz=16, n_classes=10, neighbours="replace-one").scale
    64.0
    """

    kind = "laplace"
    optional = ("n_columns",)
    n_moments = 1

    def __init__(
        self, epsilon: float, *, n_columns: int | None = None, **common: Any
    ) -> None:
        super().__init__(epsilon, **common)
        self.n_columns = _optional("n_columns", n_columns, LARGEST_SIZE)

    @property
    def scale(self) -> float:
        """P(x) is proportional to exp(-abs(x) / scale)."""
        return rounded_up(self.l1_sensitivity, self._epsilon_of_counts)

    @property
    def _epsilon_of_counts(self) -> float:
        if self.n_columns is None:
            return self.target_epsilon
        return self.target_epsilon * (1 - PURE_SHARE_OF_SUMS)

    @property
    def sums_scale(self) -> float:
        """The same of the sums of the columns."""
        rest = self.target_epsilon - self._epsilon_of_counts  # exactly
        return rounded_up(round(self.sums_norm(1)), rest)

    @property
    def noise_sd(self) -> float:
        return laplace_sd(self.scale)

    @property
    def sums_sd(self) -> float:
        if self.n_columns is None:
            return 0.0
        return laplace_sd(self.sums_scale)

    def epsilon(self, delta: float = 0.0) -> float:
        epsilon = self.l1_sensitivity / self.scale
        if self.n_columns is not None:
            epsilon += self.sums_norm(1) / self.sums_scale
        return epsilon

    def _noise(self) -> str:
        noise = f"discrete Laplace noise of scale {self.scale:.5g} on every count"
        if self.n_columns is not None:
            noise += f", after {_of_sums(self)},"
        return f"{noise} of one party's release"

    def _draw(self, array: Integers, sampler: Sampler) -> Integers:
        return array + sampler.laplace(array.size, self.scale).reshape(array.shape)

    def _draw_sums(self, sums: Integers, sampler: Sampler) -> Integers:
        noise = sampler.laplace(sums.size, self.sums_scale)
        return sums + noise.reshape(sums.shape)


class TopTLaplace(Mechanism):
    """T counts drawn by size, with Laplace noise.

    The others are 0: the paper's Algorithm 2, lines 12-24.

    T entries are drawn without replacement, each with probability proportional to exp(a
    * count). In law these are the T largest of the counts with Gumbel noise of scale 1
    / a. They get discrete Laplace noise of scale b. Each step takes half of epsilon.
    Under "add-remove" a record changes all counts in the same direction, so that one
    draw costs a, not 2 a. A record changes at most min(T, rho) of the T counts.
    `simulations.paper_privacy` has the paper's own accounting.

    Parameters
    ----------
    epsilon : float
    n_released : int
        T.
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for
        `Mechanism`.

    Examples
    --------
    >>> mechanism = TopTLaplace(1.0, n_released=100, hash_nnz=16, n_classes=2)
    >>> mechanism.scale, mechanism.exponent, mechanism.epsilon()
    (32.0, 0.005, 1.0)
    """

    kind = "top-t"
    own = ("n_released",)
    is_partial = True

    def __init__(self, epsilon: float, n_released: int, **common: Any) -> None:
        super().__init__(epsilon, **common)
        self.n_released = integer("n_released", n_released, most=LARGEST_SIZE)

    @property
    def exponent(self) -> float:
        """Exponent a: an entry is drawn with probability proportional to exp(a *
        count).
        """
        return 1 / self.gumbel_scale

    @property
    def gumbel_scale(self) -> float:
        """Scale 1 / a of the sampler's Gumbel noise, never rounded down."""
        return rounded_up(2 * self._selection_loss, self.target_epsilon)

    @property
    def scale(self) -> float:
        """Scale b of the noise on a released count."""
        return rounded_up(2 * self._released_change, self.target_epsilon)

    @property
    def _selection_loss(self) -> int:
        """Privacy loss of T draws in units of a: for each draw the range of the changes
        by one person.
        """
        both_ways = 2
        if self.neighbours == "add-remove":
            both_ways = 1
        return self.n_released * self.records_per_person * both_ways

    @property
    def _released_change(self) -> int:
        """L1 sensitivity of T counts."""
        return min(self.n_released, self.n_changed) * self.records_per_person

    @property
    def noise_sd(self) -> float:
        return laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        return (
            self._selection_loss / self.gumbel_scale
            + self._released_change / self.scale
        )

    def _noise(self) -> str:
        return (
            f"{self.n_released} counts of one party, drawn with odds "
            f"exp({self.exponent:.4g}) for each sample, with "
            f"discrete Laplace noise of scale {self.scale:.5g}, no others"
        )

    def _draw(self, array: Integers, sampler: Sampler) -> Integers:
        flat = array.ravel()
        n_drawn = min(self.n_released, flat.size)
        if n_drawn == flat.size:
            entries = np.arange(flat.size)
        else:
            entries = sampler.top(flat, n_drawn, self.gumbel_scale)
        released = np.zeros_like(flat)
        released[entries] = flat[entries] + sampler.laplace(n_drawn, self.scale)
        return released.reshape(array.shape)


MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism
    for mechanism in (GaussianCounts, LaplaceCounts, TopTLaplace)
}


def mechanism_from_dict(values: object) -> Mechanism:
    """Mechanism of an untrusted description, in the form of `Mechanism.to_dict`."""
    if not isinstance(values, Mapping) or not all(
        isinstance(name, str) for name in values
    ):
        raise ConfigError("mechanism", "a mapping", type(values).__name__)
    given = dict(values)
    kind = given.pop("mechanism", None)
    if kind == SimulatedRelease.kind:
        checked_fields("mechanism", given, {"seed", "of"})
        inner = given["of"]
        # Before the inner one is made: they may be nested deeply.
        if isinstance(inner, Mapping) and inner.get("mechanism") == kind:
            raise ConfigError("mechanism", "one that is not simulated", kind)
        return SimulatedRelease(mechanism_from_dict(inner), given["seed"])
    kind = one_of("mechanism", kind, tuple(MECHANISMS))
    made = MECHANISMS[kind]
    needed = {"epsilon", *COMMON, *made.own}
    return made(**checked_fields(f"mechanism {kind}", given, needed, {*made.optional}))


# -------- sizes that go with the noise


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
    **sizes: Any,
) -> HashSpec:
    """Sizes of a hash for counts with the noise of `GaussianCounts`, or of
    `LaplaceCounts` where delta is 0.

    Over columns with a centre, rows are few, and scores follow from class means: 528
    rows and a quarter of them as winners. Laplace noise grows with rho and not with its
    square root: then 128 rows, from four parties on 64, and a 16th of them as winners.
    But where a class has samples beyond `MANY` units of noise, and over columns as they
    are, sizes are those of `HashSpec.suggest` with the amount of noise, and of Laplace
    noise rho is m ** (1/2), at most 24, and m is n epsilon / 2.5 L for two parties, at
    least 64.

    Parameters
    ----------
    epsilon, delta : float
    n_features, n_examples, n_classes : int
        Public figures of all parties together; rough ones are enough.
    n_parties : int
        Each adds its own noise; 1 where all share one (`n_honest` of `GaussianCounts`).
    neighbours, records_per_person
        As for `Mechanism`.
    **sizes
        Further arguments of `HashSpec.suggest`, which must be public, too.

    Examples
    --------
    >>> sizes = dict(n_features=30, n_examples=10000, n_classes=2, hash_dim=9600)
    >>> suggest_spec(1.0, 1e-5, n_parties=2, **sizes).hash_nnz
    103
    >>> sizes = dict(n_features=2, n_examples=500, n_classes=2, center=(0.0, 0.0))
    >>> suggest_spec(1.0, 1e-5, n_parties=2, **sizes).hash_nnz
    132
    """
    n_parties = integer("n_parties", n_parties, most=LARGEST_SIZE)
    n_examples = integer("n_examples", n_examples, least=0, most=LARGEST_SIZE)
    common: dict[str, Any] = {
        "neighbours": neighbours,
        "records_per_person": records_per_person,
        "n_classes": n_classes,
    }
    given = {name: value for name, value in sizes.items() if value is not None}
    per_unit = None
    if delta:
        per_unit = GaussianCounts(epsilon, delta, hash_nnz=16, **common).unit_noise(
            n_parties
        )
        is_many = n_examples >= MANY * n_classes * per_unit
        if "center" in given and not is_many:
            return _of_few_rows(512 + SIZE_ENTRIES, 4, n_features, given)
    elif "center" in given:
        n_rows = 128
        if n_parties > 3:
            n_rows = 64
        return _of_few_rows(n_rows, 16, n_features, given)
    else:
        if "hash_dim" not in given:
            per_record = 1 / LaplaceCounts(epsilon, hash_nnz=1, **common).scale
            ideal = (
                n_examples * per_record * math.sqrt(2 / n_parties) / (2.5 * n_classes)
            )
            given["hash_dim"] = int(min(max(ideal, 64), 2**14))
        given.setdefault("hash_nnz", min(math.isqrt(given["hash_dim"]), 24))
    return HashSpec.suggest(n_features, n_examples, n_classes, per_unit, **given)


def _of_few_rows(
    n_rows: int, rows_of_winner: int, n_features: int, given: dict[str, Any]
) -> HashSpec:
    """Few rows over columns with a centre."""
    given = {"hash_dim": n_rows, "signed": True} | given
    given.setdefault("hash_nnz", max(given["hash_dim"] // rows_of_winner, 1))
    return HashSpec.suggest(n_features, **given)
