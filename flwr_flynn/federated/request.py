"""Requests: what the server asks of the parties in a phase, and what they compute.

A new phase takes one module: a `Request` decorated with `register`, by whose phase name
parties find it, a `Phase`, and where the defaults do not fit a `tally.Tally`.

A request is closed: it declares its entries and arrays, and any other is refused. What it says
reaches the samples through the parsed request alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from flwr_flynn import __version__
from flwr_flynn._types import Array
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.announced_specs import check_fingerprints
from flwr_flynn.federated.layout import Layout
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.private_rows import (
    INPUT_BYTES,
    LEAST_ROWS,
    ROW_BYTES,
    inputs_of,
)
from flwr_flynn.federated.protocol import (
    EXACT,
    NOISY,
    NOISY_EXAMPLES,
    NOTHING,
    PHASE,
    RESULTS,
    SECURE,
    TRAIN,
    VERSION,
    Answer,
    Config,
    Declared,
    Entries,
    Entry,
    Scalar,
    Scalars,
)
from flwr_flynn.federated.reply_fields import Field, Sizes
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.samples import Features
from flwr_flynn.federated.secure_vector import largest_sum
from flwr_flynn.federated.views import View
from flwr_flynn.model.counts import memory_needed

SENTENCES = {
    NOISY: "Sums with noise: nobody is singled out beyond the bound epsilon, which "
    "max-epsilon keeps.",
    SECURE: "A masked summand: a server that follows the protocol (secure) reads sums "
    "alone; a known row shows there.",
    RESULTS: "Results on held-out rows and, without max-epsilon and secure, on all rows "
    "by the model without the site: only who knows all others can single one out; "
    "test-fraction=0 keeps them.",
    NOTHING: "Nothing about the rows: nobody is singled out.",
    EXACT: "Exact figures of another app about the rows: ask its authors whether a "
    "person is singled out.",
}
"""A sentence about a message, for a data-protection officer, by its kind of disclosure.
"""

S = TypeVar("S")
"""A statistic: a value of the party's samples that adds, exactly."""


class Measured(NamedTuple, Generic[S]):
    """A party's statistic, and what goes with it."""

    statistic: S
    n_examples: int
    """Samples in it, which travel in clear."""
    change: Entries | None = None
    """See `protocol.Answer.change`."""
    metrics: Mapping[str, Scalar] = MappingProxyType({})
    """Further entries that travel in clear."""


class Request(ABC, Generic[S]):
    """Message to the parties in one phase, and the statistic that a party answers with.

    Integers are asked for in clear or, with a `bound`, in a secure sum. `fields`
    declares them: their packing, their checks, the vector of a secure sum, its length
    and its memory follow.
    """

    phase: ClassVar[str]  # its name, on the wire as well
    sentence: ClassVar[str] = SENTENCES[EXACT]  # about an answer of exact figures
    channel: ClassVar[str] = TRAIN
    entries: ClassVar[Declared] = {}
    """Config entries, with type and bound: any other of this package is refused."""
    n_arrays: ClassVar[int] = 0
    """Arrays that go along with them, at most: more are refused."""
    consent: ClassVar[str] = ""
    """Name of a party's option without which nothing is answered in clear."""
    stays: ClassVar[bool] = True
    """True if a party that answers is in the sum afterwards."""
    proves: ClassVar[bool] = False
    """True if the server keeps who answered, by the `MEMBER` proof as well."""

    @abstractmethod
    def to_config(self) -> Scalars:
        """Config entries for a party, without `PHASE`."""

    def arrays(self) -> list[Array]:
        """Arrays that go along with the config entries."""
        return []

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> Request[S]:
        """The request that a server announced, with the declared entries.

        A `PayloadError` if it is malformed, or beyond the party's limits.
        """

    @abstractmethod
    def fields(self, sizes: Sizes) -> list[Field]:
        """The integers of an answer about samples of these sizes."""

    @abstractmethod
    def measured(self, view: View) -> Measured[S]:
        """The statistic of the samples that a party granted a view of."""

    def parts(self, statistic: S) -> list[Array]:
        """The integers of each field: by default those of `Tables`."""
        return [*statistic.tables]  # type: ignore[attr-defined]

    @abstractmethod
    def of_parts(self, parts: list[Array], n_parties: int) -> S:
        """The statistic with these integers, within their bounds, of so many parties.

        An error if there is none.
        """

    @property
    def bound(self) -> int | None:
        """The bound of the secure sum; None in clear."""
        return None

    @property
    def features(self) -> Features:
        """Names of the features, or their schema, by which samples are loaded."""
        return ()

    @property
    def discloses(self) -> str:
        """Kind of disclosure: `EXACT`, `NOISY`, `SECURE`, `RESULTS` or `NOTHING`."""
        if self.bound is None:
            return EXACT
        return SECURE

    @property
    def layout(self) -> Layout:
        """The integers of an answer, as they travel."""
        bound = self.bound or 0
        fields = self.fields(Sizes(bound, bound))
        capped = [field.capped(largest_sum(bound)) for field in fields]
        return Layout(capped, self.bound)

    def answer(self, view: View) -> Answer:
        """The party's answer.

        An error is a refusal: its text travels to the server and holds no value of the
        data.
        """
        statistic, n_examples, change, metrics = self.measured(view)
        n_announced = n_examples
        if self.bound is not None:
            # Checked in every phase, so that no phase has them in its sum.
            if n_examples > self.bound:
                raise PayloadError(
                    "secure sum",
                    f"at most {self.bound} samples (run-config max-examples)",
                    "more",
                )
            n_announced = NOISY_EXAMPLES
            change = None
        arrays = self.layout.packed(self.parts(statistic))
        return Answer(arrays, n_announced, dict(metrics), change)


@dataclass(frozen=True, eq=False)
class RunRequest(Request[S]):
    """A request about the party's samples as the specs of a run hash them."""

    run: RunSpec

    entries = RUN_ENTRIES

    @property
    def bound(self) -> int | None:
        return self.run.bound

    @property
    def features(self) -> Features:
        return self.run.features

    def to_config(self) -> Scalars:
        return self.run.to_config()


def announced_run(config: Config, options: PartyOptions) -> RunSpec:
    """The run that a server announced, if the party has the memory for it, and draws
    the same rows.
    """
    run = RunSpec.from_config(config)
    needed = 32 * run.n_classes**2  # two confusion matrices, and their message
    needed += sum(memory_needed(spec, run.n_classes) for spec in run.specs)
    inputs = max(map(inputs_of, run.specs))
    needed += LEAST_ROWS * (ROW_BYTES * run.spec.n_features + INPUT_BYTES * inputs)
    several = ""
    if len(run.specs) > 1:
        several = f", the first of {len(run.specs)} specs"
    sizes = (
        f"n_features {run.spec.n_features}, hash_dim {run.spec.hash_dim}, "
        f"row_nnz {run.spec.row_nnz}"
    )
    options.check_memory(needed, f"{sizes} and {run.n_classes} classes{several}")
    check_fingerprints(config, run.hashers)
    return run


AnyRequest = type[Request[Any]]
R = TypeVar("R", bound=AnyRequest)

_REQUESTS: dict[str, AnyRequest] = {}


def register(request: R) -> R:
    """Make a request known to the parties of this process.

    A `ConfigError` if its phase has the name of another request's.
    """
    known = _REQUESTS.setdefault(request.phase, request)
    if known is not request and known.__qualname__ != request.__qualname__:
        raise ConfigError(
            "phase", "a new name", f"{request.phase!r} of {known.__qualname__}"
        )
    _REQUESTS[request.phase] = request
    return request


def sentence_of(phase: str, kind: str) -> str:
    """A sentence about a message.

    It goes by the phase where the figures are exact, else by the kind of disclosure.
    """
    request = _REQUESTS.get(phase)
    if kind == EXACT and request is not None:
        return request.sentence
    return SENTENCES.get(kind, SENTENCES[EXACT])


_HEAD = {"phase": Entry(str, 64), "version": Entry(str, 40, is_needed=False)}


def kind_of(entries: Entries) -> AnyRequest:
    """The class of request that config entries from a server announce."""
    names = (PHASE, VERSION)
    head = Config({name: entries[name] for name in names if name in entries}, _HEAD)
    if "version" in head:
        _check_version(head["version"])
    if head["phase"] not in _REQUESTS:
        raise PayloadError(
            PHASE, f"one of {', '.join(sorted(_REQUESTS))}", head["phase"]
        )
    return _REQUESTS[head["phase"]]


def _check_version(server: str) -> None:
    """Refuse the requests of a server of another minor version."""
    if server.split(".")[:2] == __version__.split(".")[:2]:
        return
    both = f"this party runs flwr-flynn {__version__}, the server {server!r}"
    raise PayloadError(
        VERSION,
        __version__,
        server,
        text=f"version: {both}; the minor version must be the same",
    )
