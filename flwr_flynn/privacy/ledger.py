"""A party's ledger of its releases, bounded by its policy.

Releases from the same records add up. The ledger, a folder of the party's own, keeps
every answered request with its release. The same request again gets the same release,
which discloses nothing new; a new request counts against the policy. A request is
charged on disk before its samples are looked at, and its release is there before it is
sent: a process that dies in between has spent all the same, and the request again is a
new one. While a ledger cannot be trusted, nothing is released until the party resets it
by hand::

    python -m flwr_flynn.privacy.ledger show /var/lib/flynn/state
    python -m flwr_flynn.privacy.ledger reset /var/lib/flynn/state

Costs add up by the account that the policy names when the ledger is made
(`privacy.release_policy`). Beside the folder lie ``<path>.exists``, the marker,
``<path>.lock`` and ``<path>.secret``; their folder must last as long. By the marker, a
ledger that is lost, altered, or an older copy is detected.

Two things are not detected: older copies of the folder *and* of the marker together (so
do not restore a backup: reset the ledger and lower the policy), and two ledgers for one
data file, each of which allows all of its policy.

>>> import tempfile
>>> from pathlib import Path
>>> from flwr_flynn.privacy import LaplaceCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> with tempfile.TemporaryDirectory() as folder:
...     budget = Budget(Path(folder, "state"), Policy(max_epsilon=1.0))
...     request = LaplaceCounts(0.6, hash_nnz=2, n_classes=2), counts.spec_fingerprint
...     first = budget.release(*request, lambda: counts)
...     again = budget.release(*request, lambda: counts)
...     print(first.counts == again.counts, again.repeated, budget.spent())
...     try:
...         budget.release(*request, lambda: counts, terms="a second run")
...     except PrivacyError as error:
...         print(error)
True True (0.6, 0.0)
policy max-epsilon: this release would exceed it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr_flynn._types import Integers
from flwr_flynn.errors import ConfigError, CountsError, FlyNNError, PrivacyError
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.privacy.ledger_files import Entry, LedgerFile, LedgerFolder
from flwr_flynn.privacy.mechanism import Mechanism
from flwr_flynn.privacy.noise_mechanisms import mechanism_from_dict
from flwr_flynn.privacy.release_policy import Account, Policy

__all__ = ["Budget", "Policy", "Released"]


@dataclass(frozen=True, eq=False)
class Released:
    """An answer from the ledger."""

    counts: ClassCounts
    repeated: bool


class Budget(LedgerFolder):
    """A party's ledger of releases.

    Parameters
    ----------
    path : path-like
        The party's own folder, made at the first release. A folder from before counts
        as a lost ledger.
    policy : Policy
    data_path : path-like, optional
        The data file of the releases. A ledger that is made with a data file serves no
        other; one that is made without serves any. Two ledgers for one file spend
        twice, which is not detected.
    reading : str
        Digest of the settings by which the file is read: with another one a request is
        a new one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Policy,
        data_path: str | os.PathLike[str] | None = None,
        reading: str = "",
    ) -> None:
        super().__init__(path)
        self.policy = policy
        self.reading = reading
        self.data_path = None
        if data_path is not None:
            self.data_path = os.path.realpath(os.fspath(data_path))

    def release(
        self,
        mechanism: Mechanism,
        spec_fingerprint: str,
        count: Callable[[], ClassCounts],
        *,
        terms: str = "",
        prepare: Callable[[], object] = lambda: None,
    ) -> Released:
        """Release for a request: the earlier one if there is one, else a new one,
        charged first.

        Request, policy, ledger and `prepare`, which looks at no sample, decide about a
        refusal; `count` is called after the charge. An earlier answer needs neither.
        """
        request = self._request(mechanism, spec_fingerprint, terms)
        with self._opened(self._new) as ledger:
            self._check_use(ledger)
            # A share of noise is drawn anew for each sum: the difference of two sums of
            # different parties would not have enough noise if both had the same share.
            if mechanism.is_share:
                entry = None
            else:
                entry = ledger.find(request)
            if entry is not None:
                return Released(self._received(entry, mechanism), True)
            self.policy.check(mechanism)
            cost = self.policy.admit(mechanism, ledger.costs)

            def measure() -> Integers:
                counts = count()
                if counts.spec_fingerprint != spec_fingerprint:
                    raise CountsError(
                        "spec_fingerprint",
                        "that of the hash asked for",
                        counts.spec_fingerprint,
                    )
                return mechanism.release(counts).array

            mechanism.require_noise()
            prepare()
            array = self._new_release(ledger, request, cost, measure)
            return Released(mechanism.received(array, spec_fingerprint), False)

    def recall(
        self, mechanism: Mechanism, spec_fingerprint: str, *, terms: str = ""
    ) -> ClassCounts:
        """Earlier release for a request, which a party withdraws from a sum.

        There is never a new one.
        """
        if mechanism.is_share:
            # Two sums, one with the share and one without, would differ by little more
            # than the exact counts.
            text = (
                "a share of the noise goes into one secure sum only: it cannot be "
                "taken out of it"
            )
            raise PrivacyError("share", text=text)
        with self._opened(self._new) as ledger:
            self._check_use(ledger)
            entry = ledger.find(self._request(mechanism, spec_fingerprint, terms))
            if entry is not None:
                return self._received(entry, mechanism)
        text = "this request was never answered: there is nothing to take out"
        raise PrivacyError("request", "one that was answered", "a new one", text=text)

    def spent(self) -> tuple[float, float]:
        """Epsilon and delta of all releases together, by the ledger's composition."""
        return self.account()[:2]

    def account(self) -> tuple[float, float, LedgerFile]:
        """The same, and the content of the ledger."""
        with self._opened(self._new) as ledger:
            if self.policy.composition == "zcdp":
                delta = self.policy.max_delta
            else:
                delta = ledger.delta
            return *Account(ledger.composition, delta).total(ledger.costs), ledger

    @property
    def _new(self) -> LedgerFile:
        account = self.policy.account
        return LedgerFile(account.composition, account.delta, self.data_path)

    def _check_use(self, ledger: LedgerFile) -> None:
        """Refuse a ledger that was made for a different account or data file."""
        if ledger.composition != self.policy.composition:
            mine = ledger.composition
            asked = self.policy.composition
            text = (
                f"ledger {self.path.name}: its composition is {mine} until a "
                f"reset; the policy's is {asked}"
            )
            raise PrivacyError("policy composition", mine, asked, text=text)
        if ledger.data_path is not None and ledger.data_path != self.data_path:
            text = f"ledger {self.path.name}: belongs to another data file"
            error = PrivacyError("ledger", got="another data file", text=text)
            error.add_note(
                f"it was made for {ledger.data_path}; this is "
                f"{self.data_path or 'not said'}"
            )
            raise error
        for entry in ledger.entries:
            try:
                self.policy.check_strength(
                    mechanism_from_dict(entry["request"]["mechanism"])
                )
            except (KeyError, ConfigError):
                why = (
                    ": an earlier release has a mechanism unknown to this version; "
                    "nothing is released until a reset"
                )
                raise self._trouble("mechanism", why) from None
            except PrivacyError as error:  # it was paid for by the weaker guarantee
                why = (
                    ": an earlier release protects less; nothing is released until "
                    f"it is reset ({error})"
                )
                raise self._trouble("weaker", why) from None

    def _request(
        self, mechanism: Mechanism, spec_fingerprint: str, terms: str
    ) -> dict[str, object]:
        request: dict[str, object] = {
            "mechanism": mechanism.to_dict(),
            "spec": spec_fingerprint,
            "terms": terms,
        }
        if self.reading:
            request["reading"] = self.reading
        return request

    def _received(self, entry: Entry, mechanism: Mechanism) -> ClassCounts:
        array = self._stored(entry)
        try:
            return mechanism.received(array, str(entry["request"]["spec"]))
        except FlyNNError:
            raise self._lost() from None


def main(arguments: Sequence[str]) -> int:
    """Show or reset a ledger, by the arguments of
    `python -m flwr_flynn.privacy.ledger`.
    """
    if len(arguments) != 2 or arguments[0] not in ("show", "reset"):
        print(
            "usage: python -m flwr_flynn.privacy.ledger show|reset PATH",
            file=sys.stderr,
        )
        return 2
    command = arguments[0]
    path = Path(arguments[1])
    budget = Budget(path, Policy(max_epsilon=0.0))
    if not budget.is_begun:
        print(f"no ledger at {path}", file=sys.stderr)
        return 1
    try:
        if command == "reset":
            budget.reset()
            print(f"{path}: reset. What was released stays released.")
            return 0
        epsilon, delta, ledger = budget.account()
    except PrivacyError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    costs = ledger.costs
    closed = ""
    if costs and costs[0].closes:
        closed = ", closed"
    spent = f"epsilon {shown_bound(epsilon, 6)}, delta {shown_bound(delta, 6)} spent"
    print(
        f"{path}: composition {ledger.composition}, releases {len(costs)}{closed}, "
        f"{spent}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
