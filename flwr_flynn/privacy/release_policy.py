"""A party's policy: a bound on its releases, and the account by which they add up.

A server asks for one release after the other, and has seen the earlier ones. Two
accounts hold for such adaptive requests. A ledger is made for one of them and keeps to
it:

- "basic": epsilons add up, and deltas add up, for all mechanisms.
- "zcdp": every release has a parameter rho of zero-concentrated differential privacy
  (`Mechanism.zcdp_rho`). These parameters add up, and the sum is converted once, at the
  policy's `max_delta`. Many noisy releases cost less than by basic sums.

The second account is a privacy filter: while the sum of rho stays below a bound that
was fixed before, adaptively chosen releases, rho included, have that Renyi divergence
at every order (Feldman and Zrnic 2021, "Individual privacy accounting via a Renyi
filter"; Whitehouse et al. 2023, "Fully-adaptive composition in differential privacy").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flwr_flynn._validation import boolean, freeze, integer, number, one_of
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.privacy.accounting import shown_bound, zcdp_epsilon
from flwr_flynn.privacy.mechanism import NEIGHBOURS, Mechanism, SimulatedRelease
from flwr_flynn.privacy.noise_mechanisms import MECHANISMS

COMPOSITIONS = ("basic", "zcdp")

# Releases of a ledger, at most: epsilon bounds what they tell, and this the size of the
# ledger.
MOST_RELEASES = 1000

_ROUNDING = 1 + 1e-9  # of a total: ten releases of a tenth must fit


@dataclass(frozen=True)
class Cost:
    """The cost of one release.

    Only by "zcdp" it has a `rho`; after a cost that `closes` there is no other release.
    """

    epsilon: float
    delta: float
    rho: float | None = None
    closes: bool = False


@dataclass(frozen=True)
class Account:
    """The account by which costs add up.

    `delta` is that of all releases together by "zcdp".
    """

    composition: str = "basic"
    delta: float = 0.0

    def cost(self, mechanism: Mechanism) -> Cost:
        """The cost of one release, of a simulated one as if its noise were secret."""
        rho = None
        inner = unseeded(mechanism)
        if self.composition == "zcdp":
            rho = inner.zcdp_rho
        return Cost(inner.epsilon(inner.delta), inner.delta, rho)

    def total(self, costs: Sequence[Cost]) -> tuple[float, float]:
        """Epsilon and delta of some releases together."""
        if not costs:
            return 0.0, 0.0
        if self.composition == "basic" or costs[0].closes:
            return math.fsum(cost.epsilon for cost in costs), math.fsum(
                cost.delta for cost in costs
            )
        return zcdp_epsilon(
            math.fsum(cost.rho or 0.0 for cost in costs), self.delta
        ), self.delta


@dataclass(frozen=True)
class Policy:
    """Bounds on the releases of a party.

    Parameters
    ----------
    max_epsilon, max_delta : float
        Bounds on all releases together.
    mechanisms : sequence of str, default=("gaussian", "laplace", "top-t")
        Kinds of noise that are allowed. "simulated" protects nobody; it costs as if it
        did.
    neighbours : {"add-remove", "replace-one"}, default="add-remove"
        Least protection of a release; "replace-one" is the stronger.
    records_per_person : int, default=1
        Records of one person that a release must protect at least.
    secure_sum : bool, default=False
        True if a release may carry a share of the noise, for a secure sum (`n_honest`
        of `GaussianCounts`). The bounds are then on the epsilon of the sum, while
        `n_honest` parties are honest. A server that invents parties breaks that. A
        share alone has a larger epsilon.
    composition : {"basic", "zcdp"}, default="basic"
        Account by which releases add up, fixed when a ledger is made. "zcdp" needs a
        `max_delta` above 0, the delta of all releases together; the deltas of requests
        determine their noise, and do not add up.
    """

    max_epsilon: float
    max_delta: float = 0.0
    mechanisms: Sequence[str] = tuple(MECHANISMS)
    neighbours: str = "add-remove"
    records_per_person: int = 1
    secure_sum: bool = False
    composition: str = "basic"

    def __post_init__(self) -> None:
        for name in ("max_epsilon", "max_delta"):
            number(name, getattr(self, name), least=0)
        known = (*MECHANISMS, SimulatedRelease.kind)
        if isinstance(self.mechanisms, str) or any(
            kind not in known for kind in self.mechanisms
        ):
            raise ConfigError(
                "mechanisms", f"some of {', '.join(known)}", self.mechanisms
            )
        freeze(self, mechanisms=tuple(self.mechanisms))
        one_of("neighbours", self.neighbours, NEIGHBOURS)
        integer("records_per_person", self.records_per_person)
        boolean("secure_sum", self.secure_sum)
        if one_of("composition", self.composition, COMPOSITIONS) == "zcdp":
            number("max_delta", self.max_delta, above=0, below=1)

    @property
    def account(self) -> Account:
        """The account of a ledger that is made by this policy."""
        delta = 0.0
        if self.composition == "zcdp":
            delta = self.max_delta
        return Account(self.composition, delta)

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism that this policy does not allow at all."""
        if mechanism.kind not in self.mechanisms:
            raise PrivacyError(
                "policy mechanisms", ", ".join(self.mechanisms), mechanism.kind
            )
        self.check_strength(mechanism)
        if mechanism.is_share and not self.secure_sum:
            text = "policy secure-sum off: asked for a share of the noise only"
            raise PrivacyError("policy secure-sum", got="off", text=text)

    def check_strength(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism that protects less than this policy requires: weaker
        neighbours, or fewer records.
        """
        if NEIGHBOURS.index(mechanism.neighbours) < NEIGHBOURS.index(self.neighbours):
            raise PrivacyError(
                "policy neighbours", self.neighbours, mechanism.neighbours
            )
        if mechanism.records_per_person < self.records_per_person:
            raise PrivacyError(
                "policy records-per-person",
                str(self.records_per_person),
                mechanism.records_per_person,
            )

    def admit(self, mechanism: Mechanism, earlier: Sequence[Cost]) -> Cost:
        """The cost of one more release, if it fits.

        It depends on the requests alone, never on a release.
        """
        inner = unseeded(mechanism)
        account = self.account
        if earlier and earlier[0].closes:
            raise self._refusal(
                "max-epsilon", "the one release before this took all of it"
            )
        if len(earlier) >= MOST_RELEASES:
            raise PrivacyError(
                "ledger", f"at most {MOST_RELEASES} releases", text="ledger: it is full"
            )
        # This refuses by the request alone, as accounting takes up to seconds.
        if self.composition == "basic":
            self._require_room(
                *account.total([*earlier, Cost(inner.target_epsilon, inner.delta)])
            )
        inner.require_feasible()
        cost = account.cost(mechanism)
        epsilon, delta = account.total([*earlier, cost])
        # A mechanism without a guarantee of its own has none by any account.
        if cost.epsilon == math.inf:
            epsilon = math.inf
        # The rho of Gaussian noise converts back to more than its epsilon: one release
        # of all that the policy allows would not fit. It may be the first, and is then
        # the last. Policy and first request decide about this branch; they are the same
        # for neighbouring data, and the guarantee holds in both branches.
        most_epsilon = self.max_epsilon * _ROUNDING
        most_delta = self.max_delta * _ROUNDING
        is_first = self.composition == "zcdp" and not earlier
        if (
            is_first
            and epsilon > most_epsilon >= cost.epsilon
            and cost.delta <= most_delta
        ):
            self._require_room(cost.epsilon, cost.delta)
            return replace(cost, closes=True)
        self._require_room(epsilon, delta)
        return cost

    def _require_room(self, epsilon: float, delta: float) -> None:
        for name, most, total in (
            ("epsilon", self.max_epsilon, epsilon),
            ("delta", self.max_delta, delta),
        ):
            if total > most * _ROUNDING:
                raise self._refusal(
                    f"max-{name}",
                    f"{most:.4g}; with this release it would be {shown_bound(total)}",
                )

    def _refusal(self, name: str, figures: str) -> PrivacyError:
        field = f"policy {name}"
        error = PrivacyError(field, text=f"{field}: this release would exceed it")
        error.add_note(f"policy {name}: {figures} (composition {self.composition})")
        return error


def unseeded(mechanism: Mechanism) -> Mechanism:
    """The mechanism behind a `SimulatedRelease`; any real mechanism as it is."""
    if isinstance(mechanism, SimulatedRelease):
        return mechanism.mechanism
    return mechanism
