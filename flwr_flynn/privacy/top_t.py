"""The paper's private mechanism (Algorithm 2): the largest counts, selected and released with noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError
from flwr_flynn.privacy.mechanisms import Mechanism, laplace_sd, one_of, rounded_up, whole
from flwr_flynn.privacy.samplers import Sampler

ACCOUNTINGS = ("tight", "code", "paper")


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
    selects = True

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
        self.n_released = whole("n_released", n_released)
        self.accounting = one_of("accounting", accounting, ACCOUNTINGS)
        if (n_parties is None) != (accounting == "tight"):
            raise ConfigError(
                'n_parties: is for accounting "paper" and "code", which divide epsilon by it, and needed there'
            )
        self.n_parties = None if n_parties is None else whole("n_parties", n_parties)

    @property
    def exponent(self) -> float:
        """a: a place is drawn with probability proportional to exp(a * count)."""
        return 1 / self._gumbel_scale

    @property
    def _gumbel_scale(self) -> float:
        """1 / a, which is what the sampler is given: the one of the two that must not be rounded down."""
        if self.n_parties is None:
            return rounded_up(2 * self._selection_loss, self.target_epsilon)
        times = 4 if self.accounting == "paper" else 2
        return rounded_up(times * self.n_released * self.n_parties, self.target_epsilon)

    @property
    def scale(self) -> float:
        """b: noise of a released count has probability proportional to exp(-abs(x) / b)."""
        if self.n_parties is None:
            return rounded_up(2 * self._released_change, self.target_epsilon)
        return rounded_up(2 * self.n_released * self.n_parties, self.target_epsilon)

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
        return laplace_sd(self.scale)

    def epsilon(self, delta: float = 0.0) -> float:
        """See `Mechanism.epsilon`: the same for every delta."""
        return self._selection_loss / self._gumbel_scale + self._released_change / self.scale

    def _noise(self) -> str:
        return (
            f"{self.n_released} counts of one party, drawn with odds exp({self.exponent:.4g}) for each point, with "
            f"discrete Laplace noise of scale {self.scale:.5g}, no others"
        )

    def _draw(self, array: npt.NDArray[np.int64], sampler: Sampler) -> npt.NDArray[np.int64]:
        flat = array.ravel()
        how_many = min(self.n_released, flat.size)
        places = np.arange(flat.size) if how_many == flat.size else sampler.top(flat, how_many, self._gumbel_scale)
        released = np.zeros_like(flat)
        released[places] = flat[places] + sampler.laplace(how_many, self.scale)
        return released.reshape(array.shape)

    def to_dict(self) -> dict[str, Any]:
        """See `Mechanism.to_dict`."""
        values = super().to_dict() | {"n_released": self.n_released, "accounting": self.accounting}
        return values if self.n_parties is None else values | {"n_parties": self.n_parties}
