"""The paper's two accountings of its private mechanism (Algorithm 2), for its figures.

The paper divides epsilon among the parties, although a record is at one party only, and
lets the noise grow with the number of entries that are released.
`flwr_flynn.privacy.TopTLaplace` draws noise of the same kinds, no more than the promise
takes.
"""

from __future__ import annotations

from typing import Any

from flwr_flynn._validation import integer, one_of
from flwr_flynn.privacy import TopTLaplace
from flwr_flynn.privacy.accounting import rounded_up

ACCOUNTINGS = ("code", "paper")


class PaperTopT(TopTLaplace):
    """`TopTLaplace` with the noise that the paper, or the authors' programs, give it.

    Each party gets e = epsilon / n_parties. Counts are drawn with probabilities
    proportional to exp(a * count), and get Laplace noise of scale b = 2 T / e.

    - "paper": a = e / 4 T, as printed.
    - "code": a = e / 2 T, as in the authors' programs and figures.

    Neither takes account of `neighbours` and `records_per_person`; `epsilon()` is the
    bound that holds in truth.

    Parameters
    ----------
    epsilon : float
    n_released : int
        T.
    accounting : {"code", "paper"}
    n_parties : int
        tau.
    hash_nnz, n_classes, neighbours, records_per_person
        As for `TopTLaplace`.

    Examples
    --------
    >>> paper = PaperTopT(
    ...     1.0, 100, accounting="paper", n_parties=2, hash_nnz=16, n_classes=2
    ... )
    >>> paper.scale, paper.epsilon()
    (400.0, 0.165)
    """

    def __init__(
        self,
        epsilon: float,
        n_released: int,
        *,
        accounting: str,
        n_parties: int,
        **common: Any,
    ) -> None:
        super().__init__(epsilon, n_released, **common)
        self.accounting = one_of("accounting", accounting, ACCOUNTINGS)
        self.n_parties = integer("n_parties", n_parties)

    @property
    def gumbel_scale(self) -> float:
        """See `TopTLaplace`: 1 / a."""
        times = 2
        if self.accounting == "paper":
            times = 4
        return rounded_up(times * self.n_released * self.n_parties, self.target_epsilon)

    @property
    def scale(self) -> float:
        """See `TopTLaplace`: b."""
        return rounded_up(2 * self.n_released * self.n_parties, self.target_epsilon)

    def to_dict(self) -> dict[str, Any]:
        """See `Mechanism.to_dict`. No request to a party can hold this description."""
        return super().to_dict() | {
            "accounting": self.accounting,
            "n_parties": self.n_parties,
        }

    def __repr__(self) -> str:
        # The seeds of the figures' noise are made from this text, as it was when the
        # figures were drawn.
        return super().__repr__().replace(type(self).__name__, TopTLaplace.__name__, 1)
