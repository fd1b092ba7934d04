"""Options of a party, which decide what may leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

from flwr_flynn._validation import boolean, freeze, integer, n_threads, number
from flwr_flynn.errors import ConfigError, PayloadError, PrivacyError, with_rows
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.privacy.ledger import Budget

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.federated.disclosure import Disclosure


@dataclass(frozen=True)
class PartyOptions:
    """Permissions and resources of a party.

    A wrong one is the field of a `ConfigError`.

    Parameters
    ----------
    name : str, optional
        Its name in the server's log and report; by default its node id.
    member : str, default=""
        Proof that it is a member of the federation, for the server alone, which keeps
        its SHA-256: without it a party whose node id is another one by now cannot
        leave, or change its counts. At most 256 characters.
    memory_limit : int, default=4 GiB
        Bytes that the hash, the counts and the confusion matrix may need, beside the
        samples; checked before anything is allocated.
    min_examples : int, default=5
        Disclosure floor, which no request changes. Classes of fewer samples are left
        out of the histograms of columns; they are counted. Above 1 histograms tell
        order statistics alone, see `ColumnHistograms.from_data`. 2 and 3 are taken as
        4.
    keep : sequence of str, default=()
        Columns that are no ids or names, although they look so: what they have leaves
        for the schema as that of other columns does.
    n_jobs : int, optional
        Threads for hashing: None for one, -1 for all.
    budget : Budget, optional
        Ledger and policy. With one, nothing but noisy counts within the policy leaves
        the party, and samples that do not fit are left out; without one, requests for
        noisy counts are refused.
    evaluates : bool, default=False
        With `budget` or `secure`: let exact results on held-out samples leave all the
        same, and on no others. A server that chooses its models can learn counts of the
        held-out samples from them.
    secure : bool, default=False
        Let figures leave in secure sums only, see `flwr_flynn.secagg`.
    products : bool, default=False
        Let sums of products of columns, and sums over the leaves of trees, leave in
        clear, see `model.gram` and `model.growth`: they tell far more than counts. The
        total of products goes on to all sites, see `phases.evaluation`. Classes of
        which one of their two folds has fewer than `min_examples` samples stay out of
        products. In a secure sum they need no consent.
    table_one : bool, default=False
        Let reports show quartiles, levels and gaps of the party's columns, as it tells
        them to the server. With `min_examples` 1 they do.
    class_prior : bool, default=True
        Give the party's copy of the model its own class frequencies, see `own_prior`,
        and prediction sets that lean on its own samples. Not with a budget.
    related_rows : bool, default=False
        Several samples may be of one person: prediction sets follow from held-out
        samples then, as the others know too much of a training sample.
    leaves : bool, default=False
        Leave a federation: answer runs of action withdraw only, with the counts sent
        before.
    previous : Samples or callable, optional
        The training samples as they were counted, of a party whose samples have
        changed: it answers runs of action update. Of any kind that `load` may be.
    response_seconds : float, default=0
        With a budget: seconds that every answer takes, so that its time tells nothing.
        0: as long as it takes.
    on_model : callable, optional
        Called with the federated `FlyNNClassifier` when it arrived and was tried.
    on_answer : callable, optional
        Called with the `Disclosure` of each answer before it leaves, see
        `federated.disclosure`. If it raises, a refusal without data leaves instead.
    """

    name: str | None = None
    memory_limit: int = 4 * 2**30
    min_examples: int = 5
    keep: Sequence[str] = ()
    n_jobs: int | None = None
    budget: Budget | None = None
    evaluates: bool = False
    secure: bool = False
    products: bool = False
    table_one: bool = False
    class_prior: bool = True
    related_rows: bool = False
    leaves: bool = False
    previous: Samples | Callable[[Features], Samples] | None = None
    response_seconds: float = 0.0
    on_model: Callable[[FlyNNClassifier], object] | None = None
    on_answer: Callable[[Disclosure], object] | None = None
    member: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise ConfigError("budget", "a Budget", type(self.budget).__name__)
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError("name", "a string", type(self.name).__name__)
        if not isinstance(self.member, str) or len(self.member) > 256:
            raise ConfigError(
                "member",
                "a string of at most 256 characters",
                type(self.member).__name__,
            )
        n_threads(self.n_jobs)
        freeze(
            self,
            memory_limit=integer("memory_limit", self.memory_limit),
            min_examples=integer("min_examples", self.min_examples),
        )
        for option in fields(self):
            if isinstance(option.default, bool):
                boolean(option.name, getattr(self, option.name))
        number("response_seconds", self.response_seconds, least=0)

    @property
    def keeps_exact(self) -> bool:
        """True if exact figures stay at home: a refusal may then tell nothing of them."""
        return self.budget is not None or self.secure

    def check_memory(self, needed: int, what: str, is_of_request: bool = True) -> None:
        """Raise a `PayloadError` unless the party allows so many bytes.

        The number is told where the request decides it.
        """
        if needed <= self.memory_limit:
            return
        most = f"{self.memory_limit / 2**20:.1f}"
        got = f"{needed / 2**20:.1f}"
        text = f"memory: {what} need about {got} MiB, this party allows {most}"
        if is_of_request:
            raise PayloadError("memory", f"at most {most} MiB", f"{got} MiB", text=text)
        error = PayloadError("memory", f"at most {most} MiB for {what}", "more")
        raise with_rows(error, text)


class SiteSetting(NamedTuple):
    """A setting of a site's node config that a run looks at."""

    name: str
    value: object
    """The value that the run needs; None where the site has one of its own."""
    reason: str

    @property
    def key(self) -> str:
        """The setting in messages."""
        return f"node-config {self.name.replace('_', '-')}"


FLOOR_OF_SITE = SiteSetting(
    "min_examples", None, "classes and levels of fewer samples stay at home"
)


class Asked(NamedTuple):
    """Facts of a request by which it is answered or refused."""

    kind: str
    """Kind of disclosure of an answer, see `protocol`."""
    phase: str
    stays: bool = True
    """True if a party that answers is in the sum afterwards."""
    consent: str = ""
    """Name of an option that must be set for an answer in clear."""


def decide(options: PartyOptions, asked: Asked) -> None:
    """Raise unless the options allow an answer.

    Nothing else has a part in it: no sample, and no earlier request.
    """
    kind = asked.kind
    if kind not in (EXACT, NOISY, SECURE, RESULTS, NOTHING):
        raise ConfigError(
            "discloses", "a kind of disclosure that this party knows", kind
        )
    if asked.stays == options.leaves and kind != NOTHING:
        expected = "no run with action=withdraw"
        if options.leaves:
            expected = "only runs with action=withdraw"
        raise ConfigError(
            "node-config leave",
            expected,
            text=f"node-config leave: this party answers {expected}",
        )
    if options.secure and kind in (EXACT, NOISY):
        raise ConfigError(
            "node-config secure",
            "a secure sum, in which alone counts leave this party",
            kind,
        )
    if options.budget is not None and kind == EXACT:
        text = (
            f"policy max-epsilon set: only noisy counts leave this party, not phase "
            f"{asked.phase}"
        )
        raise PrivacyError("policy max-epsilon", NOISY, kind, text=text)
    if kind == EXACT and asked.consent and not getattr(options, asked.consent):
        raise PrivacyError(
            f"node-config {asked.consent}",
            f"true (FlyNNClient: {asked.consent}=True) to let it leave in clear",
            False,
        )
