"""Noisy counts and rounds of noisy gradients under one guarantee."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import integer, number
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.noisy_rounds import gradient_bound
from flwr_flynn.privacy import accounting
from flwr_flynn.privacy.mechanism import Mechanism, Sampler

MOST_ROUNDS = 200
MOST_HONEST = 10**6
_LEAST_SHARE, _LARGEST_SHARE = 0.1, 0.6  # of the counts
_LEAST_SIGMA = 16.0  # of a share of the noise of gradients: from there on a sum is a discrete Gaussian up to 1e-1000


class Gaussian(Mechanism):
    """Discrete Gaussian noise of `sigma` on every count, of one party alone or shared by those of a secure sum."""

    optional = ("n_honest",)

    @property
    @abstractmethod
    def sigma(self) -> float:
        """Sigma of one party's noise on each count."""

    def __init__(self, epsilon: float, delta: float, n_honest: int | None, **common: Any) -> None:
        super().__init__(epsilon, **common)
        self.delta = number("delta", delta, least=accounting.SMALLEST_DELTA, most=0.5)
        self.n_honest = None if n_honest is None else integer("n_honest", n_honest, most=MOST_HONEST)

    @property
    def noise_sd(self) -> float:
        return self.sigma

    def _of(self, noise: str, releases: str, sums: str) -> str:
        """The noise in words: of one party's releases, or of all parties that share it."""
        if self.n_honest is None:
            return f"{noise} of one party's {releases}"
        return (
            f"{noise} of every party, of which nobody learns more than the securely computed {sums}, while at least "
            f"{self.n_honest} parties added theirs and keep it to themselves"
        )

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        return array + sampler.gaussian(array.size, self.sigma).reshape(array.shape)


class GaussianRounds(Gaussian):
    """Discrete Gaussian noise on all counts, and on the gradients of the rounds that refine the model.

    The guarantee is about all releases of a run together: 1 of counts, `n_rounds` of gradients. Each is a Gaussian
    mechanism, for any weights that a server may ask with, so their zero-concentrated differential privacy adds up:
    counts get the share 2 / (n_rounds + 2) of it, from .1 to .6, and the gradients equal shares of the rest.

    Parameters
    ----------
    epsilon, delta : float
        As for `GaussianCounts`, for all releases together.
    n_rounds : int
        From 1 to 200.
    n_honest : int, optional
        As for `GaussianCounts`.
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for `Mechanism`.

    Examples
    --------
    >>> mechanism = GaussianRounds(1.0, 1e-5, n_rounds=18, hash_nnz=16, n_classes=10)
    >>> mechanism.sigma, round(mechanism.gradient_sigma), round(mechanism.epsilon(1e-5), 3)
    (51.168, 296400, 1.0)
    """

    kind = "gaussian-rounds"
    own = "delta", "n_rounds"

    def __init__(
        self, epsilon: float, delta: float, n_rounds: int, *, n_honest: int | None = None, **common: Any
    ) -> None:
        super().__init__(epsilon, delta, n_honest, **common)
        integer("n_classes", self.n_classes, least=2)  # the gradient of one class is 0
        self.n_rounds = integer("n_rounds", n_rounds, most=MOST_ROUNDS)
        self.covered = f"all {1 + self.n_rounds} releases of a run together"

    @property
    def counts_share(self) -> float:
        """Share of the counts in the budget."""
        return min(max(2 / (self.n_rounds + 2), _LEAST_SHARE), _LARGEST_SHARE)

    @property
    def gradient_sensitivity(self) -> int:
        """Largest L2 norm of the change of a sum of gradients by one person."""
        both_ways = 1 if self.neighbours == "add-remove" else 2
        return gradient_bound(self.hash_nnz) * self.records_per_person * both_ways

    @property
    def sigma(self) -> float:
        """Sigma of one party's noise on each count."""
        budget = accounting.zcdp_budget(self.target_epsilon, self.delta) * self.counts_share
        changed, honest = self.n_changed, self.n_honest or 1
        sigma = self.records_per_person * math.sqrt(changed / honest / (2 * budget))
        sigma = accounting.digits_up(sigma if self.n_honest is None else max(sigma, 3.0))
        while accounting.gaussian_rho(sigma, changed, self.records_per_person, honest) > budget:
            sigma = accounting.digits_up(sigma * 1.0001)
        return sigma

    @property
    def gradient_sigma(self) -> float:
        """Sigma of one party's noise on each entry of a gradient."""
        budget = accounting.zcdp_budget(self.target_epsilon, self.delta) * (1 - self.counts_share) / self.n_rounds
        sigma = self.gradient_sensitivity / math.sqrt(2 * budget * (self.n_honest or 1))
        return accounting.digits_up(max(sigma, _LEAST_SIGMA) * (1 + 1e-9))

    @property
    def zcdp_rho(self) -> float:
        honest = self.n_honest or 1
        counts = accounting.gaussian_rho(self.sigma, self.n_changed, self.records_per_person, honest)
        whole = self.gradient_sigma * math.sqrt(honest)
        return counts + self.n_rounds * accounting.vector_rho(whole, self.gradient_sensitivity)

    def epsilon(self, delta: float = 0.0) -> float:
        return math.inf if delta < accounting.SMALLEST_DELTA else accounting.zcdp_epsilon(self.zcdp_rho, delta)

    def noisy_gradient(self, gradient: npt.NDArray[np.int64], sampler: Sampler | None = None) -> npt.NDArray[np.int64]:
        """The release of a round, (m, L): the gradient of some samples with the noise of one party."""
        self.require_feasible()
        noise = (sampler or self.sampler).gaussian(gradient.size, self.gradient_sigma)
        return gradient + noise.reshape(gradient.shape)

    def unit_noise(self, n_releases: float) -> float:
        """Standard deviation that one gradient of unit vectors would have with the noise of so many whole budgets."""
        alone = self.gradient_sigma * math.sqrt(n_releases * (1 - self.counts_share) / self.n_rounds)
        return alone / gradient_bound(self.hash_nnz)

    def require_feasible(self) -> None:
        super().require_feasible()
        if self.gradient_sigma > 2.0**45:
            raise ConfigError("epsilon", f"a larger number for {self.n_rounds} rounds", f"{self.target_epsilon:g}")

    def _noise(self) -> str:
        noise = (
            f"discrete Gaussian noise of standard deviation {self.sigma:.5g} on every count, and of "
            f"{self.gradient_sigma:.5g} on every entry of {self.n_rounds} sums of gradients, to which a sample adds "
            f"integers of an L2 norm of at most {gradient_bound(self.hash_nnz)},"
        )
        return self._of(noise, "releases", "sums")
