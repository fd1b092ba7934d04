"""One noise that the parties of a secure sum share: what its guarantee assumes, and what happens to dropouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr_flynn.federated.run_spec import LEAST_PARTIES
from flwr_flynn.flower.secagg import LEAST_THRESHOLD
from flwr_flynn.privacy import Mechanism


@dataclass(frozen=True)
class SharedNoise:
    """Parties of a secure sum, and those of them whose shares of the noise are the noise of one.

    >>> shared = SharedNoise(10, 8)
    >>> shared.n_needed, round(shared.surplus, 2)
    (8, 1.12)
    """

    n_parties: int
    n_honest: int

    @classmethod
    def of(cls, mechanism: Mechanism | None, n_parties: int) -> SharedNoise | None:
        """The sharing of a run's mechanism; None where no noise is shared."""
        n_honest = None if mechanism is None else mechanism.n_honest
        return None if n_honest is None else cls(n_parties, n_honest)

    @property
    def n_needed(self) -> int:
        """Parties that must stay for a sum to be opened: as many in every sum of a run, however many are asked."""
        return max(LEAST_PARTIES, self.n_honest, round(LEAST_THRESHOLD * self.n_parties))

    @property
    def surplus(self) -> float:
        """Standard deviation of the noise if all parties stay, as a multiple of what the guarantee needs."""
        return math.sqrt(self.n_parties / self.n_honest)

    def __str__(self) -> str:
        n, honest, needed = self.n_parties, self.n_honest, self.n_needed
        spare = needed - honest
        told = f"; of those that stay, {spare} may then disclose their share" if spare else ""
        return (
            f"One noise is shared. Epsilon holds while at least {honest} of {n} parties follow the protocol, keep "
            "their share of the noise to themselves and stay to the end, and the server follows it, too. "
            f"Up to {n - needed} may drop out{told}. If more drop out, no sum is opened: nothing is revealed, but "
            "ledgers may be charged, and the run fails (a later round is left out). "
            f"If nobody does, the noise is {self.surplus:.2f} times what is needed; with noise of each party's own it "
            f"would be {math.sqrt(n):.2f} times."
        )
