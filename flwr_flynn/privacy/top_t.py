"""The paper's private mechanism (Algorithm 2): the largest counts, selected and released with noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import integer
from flwr_flynn.privacy.mechanisms import LARGEST_SIZE, Mechanism, laplace_sd, rounded_up
from flwr_flynn.privacy.samplers import Sampler


class TopTLaplace(Mechanism):
    """The paper's mechanism (Algorithm 2, lines 12-24): T counts drawn by size, with Laplace noise; the others are 0.

    T entries are drawn without replacement, each with probability proportional to exp(a * count): the T largest of
    counts with Gumbel noise of scale 1 / a, which is the same in law. Their counts get discrete Laplace noise of scale
    b. Half of epsilon goes into each step. Under "add-remove" a record changes all counts in the same direction, so
    that one draw costs a, not 2 a; a record changes at most min(T, rho) of the T counts. (`simulations.paper_privacy`
    has the paper's own accounting.)

    Parameters
    ----------
    epsilon : float
    n_released : int
        T.
    **common
        `hash_nnz`, `n_classes`, `neighbours` and `records_per_person`, as for `Mechanism`.

    Examples
    --------
    >>> mechanism = TopTLaplace(1.0, n_released=100, hash_nnz=16, n_classes=2)
    >>> mechanism.scale, mechanism.exponent, mechanism.epsilon()
    (32.0, 0.005, 1.0)
    """

    kind = "top-t"
    selects = True

    def __init__(self, epsilon: float, n_released: int, **common: Any) -> None:
        super().__init__(epsilon, **common)
        self.n_released = integer("n_released", n_released, most=LARGEST_SIZE)

    @property
    def exponent(self) -> float:
        """Exponent a: an entry is drawn with probability proportional to exp(a * count)."""
        return 1 / self.gumbel_scale

    @property
    def gumbel_scale(self) -> float:
        """1 / a, the scale that the sampler is given: of the two, the one that must not be rounded down."""
        return rounded_up(2 * self._selection_loss, self.target_epsilon)

    @property
    def scale(self) -> float:
        """Scale b: noise of a released count has probability proportional to exp(-abs(x) / b)."""
        return rounded_up(2 * self._released_change, self.target_epsilon)

    @property
    def _selection_loss(self) -> int:
        """Loss of T draws in units of a: for each draw the range of the changes by one person."""
        both_ways = 1 if self.neighbours == "add-remove" else 2
        return self.n_released * self.records_per_person * both_ways

    @property
    def _released_change(self) -> int:
        """Largest change of T counts together by one person."""
        return min(self.n_released, self.n_changed) * self.records_per_person

    @property
    def noise_sd(self) -> float:
        return laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        return self._selection_loss / self.gumbel_scale + self._released_change / self.scale

    def _noise(self) -> str:
        return (
            f"{self.n_released} counts of one party, drawn with odds exp({self.exponent:.4g}) for each sample, with "
            f"discrete Laplace noise of scale {self.scale:.5g}, no others"
        )

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        flat = array.ravel()
        n_drawn = min(self.n_released, flat.size)
        entries = np.arange(flat.size) if n_drawn == flat.size else sampler.top(flat, n_drawn, self.gumbel_scale)
        released = np.zeros_like(flat)
        released[entries] = flat[entries] + sampler.laplace(n_drawn, self.scale)
        return released.reshape(array.shape)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"n_released": self.n_released}
