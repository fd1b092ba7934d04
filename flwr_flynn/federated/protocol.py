"""The wire protocol: keys, entries, replies and answers.

Every key that this package sends begins with ``flynn-``.

In each phase of a run the server announces one `request.Request` to the parties, and
every party answers with one statistic of its samples::

    request  flynn-phase = its name; its own fields, as ``key("...")``; arrays
    answer   arrays; num_examples; flynn-party, flynn-seconds, or flynn-refused with the reason
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flwr_flynn._types import Array
from flwr_flynn._validation import integer
from flwr_flynn.errors import (
    ConfigError,
    CountsError,
    DataError,
    PayloadError,
    SchemaError,
    SpecError,
    clean,
)

Scalar = bool | int | float | str | bytes
Scalars = dict[str, Scalar]
"""Config or metrics entries as they are sent."""

Entries = Mapping[str, Any]
"""Config or metrics entries, of any type as long as they are not checked."""

PREFIX = "flynn-"


def key(name: str) -> str:
    """The config or metrics key of a field.

    ``key("n_classes")`` is ``"flynn-n-classes"``.
    """
    return PREFIX + name.replace("_", "-")


def sent(**fields: Scalar | None) -> Scalars:
    """Config entries of the fields of a request, without those that are None."""
    return {key(name): value for name, value in fields.items() if value is not None}


PHASE = key("phase")
"""Key of a request: the name of its phase."""

VERSION = key("version")
"""Key of a request: the version of the server's package. A party of another minor
version declines."""

PARTY = key("party")
SECONDS = key("seconds")
REFUSED = key("refused")
UNKEPT = key("unkept")
"""Keys of an answer: the party's name, its seconds, the reason of a refusal, the reason
why the model was not kept."""

MEMBER = key("member")
"""Key of an answer with counts: the party's proof that it is a member, of which the
server keeps the SHA-256."""

FLOOR = key("floor")
"""Key of an answer with histograms of columns: the disclosure floor of a party that
agrees to a table of its columns in the report."""

STATISTIC = key("statistic")
"""Key of an answer of the evaluate channel, whose replies carry no arrays: the arrays,
joined by `codec.join`."""

TRAIN = "train"
EVALUATE = "evaluate"
"""Flower's two channels; each phase uses one."""

EXACT = "exact"
NOISY = "noisy"
SECURE = "secure"
RESULTS = "results"
NOTHING = "nothing"
"""Disclosures by an answer: exact figures in clear, noisy counts, a summand of a secure
sum, results on held-out and other samples, or nothing. A party admits or refuses by
them, see `federated.party`."""


NOISY_EXAMPLES = 1
"""`num_examples` beside noisy and secure counts: the same for every party, so that it
tells nothing."""


@dataclass(frozen=True)
class Entry:
    """An entry that a request declares: its type, and its bound.

    Parameters
    ----------
    kind : type
        str, bytes, int or bool.
    most : int, default=0
        Characters of a text or bytes, at most; or the largest integer.
    least : int, default=0
        The smallest integer.
    is_needed : bool, default=True
        False for an entry that a request may lack.
    """

    kind: type
    most: int = 0
    least: int = 0
    is_needed: bool = True

    def check(self, name: str, value: object) -> None:
        """Raise a `PayloadError` unless a value is one of this entry."""
        if value is None:
            raise PayloadError(name, _KINDS[self.kind], "nothing")
        if type(value) is not self.kind:
            raise PayloadError(name, _KINDS[self.kind], type(value).__name__)
        if type(value) is int:
            integer(name, value, self.least, self.most, PayloadError)
        if isinstance(value, str | bytes) and len(value) > self.most:
            raise PayloadError(name, f"at most {self.most} characters", len(value))


_KINDS = {str: "a string", bytes: "bytes", bool: "True or False", int: "an integer"}

MAX_LISTS = 2**20
"""Lists and mappings in a text of JSON, at most: each takes as long to read as several
numbers."""


def from_json(field: str, text: str) -> Any:
    """The value that a text from anybody holds as JSON.

    A `PayloadError` refuses too many lists before any of them is read.
    """
    n_lists = text.count("[") + text.count("{")
    if n_lists > MAX_LISTS:
        raise PayloadError(field, f"at most {MAX_LISTS} lists", n_lists)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise PayloadError(
            field, "JSON", f"{len(text)} characters that are none"
        ) from None


Declared = Mapping[str, Entry]
"""Entries that a request declares, by their names without the prefix."""


class Config(dict[str, Any]):
    """Declared entries of a request as it arrived, of their types and within bounds.

    They are by their names without the prefix.

    A `PayloadError` refuses one that is missing or beyond its bound, and a key of this
    package that is not declared. Other keys are the user's, and are not looked at.
    """

    def __init__(self, entries: Entries, declared: Declared) -> None:
        names = {key(name): name for name in declared}
        unknown = sorted(
            str(name)
            for name in entries
            if str(name).startswith(PREFIX) and name not in (*names, PHASE, VERSION)
        )
        if unknown:
            expected = "no entries but those that the phase declares"
            raise PayloadError(
                clean(unknown[0], 80), expected, f"{len(unknown)} others"
            )
        for full_name, name in names.items():
            if full_name in entries or declared[name].is_needed:
                declared[name].check(full_name, entries.get(full_name))
                self[name] = entries[full_name]

    def __missing__(self, name: str) -> Any:
        raise PayloadError(key(name), "a value", "nothing")

    def json(self, name: str) -> Any:
        """The value that a text holds as JSON."""
        return from_json(key(name), self[name])

    def integers(
        self, name: str, n: int, least: int, most: int, n_more: int = 0
    ) -> list[int]:
        """A list of `n` integers within bounds, as JSON, or of `n_more` behind them."""
        if len(self[name]) > 22 * (n + n_more) + 2:
            raise PayloadError(key(name), f"{n} integers", "a longer text")
        values = self.json(name)
        if not isinstance(values, list) or len(values) not in (n, n + n_more):
            raise PayloadError(key(name), f"{n} integers", type(values).__name__)
        return [
            integer(key(name), value, least, most, PayloadError) for value in values
        ]


@contextmanager
def refusing(field: str | None = None) -> Iterator[None]:
    """Make a `PayloadError` of an error of the block, which is about what arrived.

    It has the field of that error by default.
    """
    try:
        yield
    except PayloadError:
        raise
    except (ConfigError, CountsError, DataError, SchemaError, SpecError) as error:
        name = field or error.field or "config"
        text = f"{field or 'config'}: {error}"
        raise PayloadError(name, error.expected, error.got, text=text) from None


@dataclass(frozen=True, slots=True)
class Reply:
    """One party's reply as it arrived.

    Only `cid` is set by the transport; all other fields are untrusted.
    """

    cid: str  # the sender's node id
    tensors: Sequence[bytes]  # arrays as `numpy.save` writes them
    n_examples: int
    metrics: Entries
    fault: str = ""  # the reason to refuse it, if its form alone is wrong
    content: Any = None  # what it came in, where a function of the user asks for that

    @property
    def n_bytes(self) -> int:
        """Size of the tensors."""
        return sum(map(len, self.tensors))

    @property
    def announced(self) -> int:
        """The number of samples that the sender gave, checked."""
        return integer("num_examples", self.n_examples, 0, error=PayloadError)


@dataclass(frozen=True)
class Answer:
    """A party's answer before it travels."""

    arrays: list[Array] = field(default_factory=list)
    """The statistic as it travels."""
    n_examples: int = 0
    """Samples in it, or a constant where the number would tell something."""
    metrics: Scalars = field(default_factory=dict)
    """Further entries, such as ``accuracy``."""
    change: Entries | None = None
    """Samples and SHA-256 of counts that an answer in clear replaces or takes out: those
    of "before", and of "now" or None."""


def merged(users: Entries, ours: Entries) -> dict[str, Any]:
    """Our config entries beside the user's, none of which may begin as ours do."""
    reserved = sorted(str(name) for name in users if str(name).startswith(PREFIX))
    if reserved:
        raise ConfigError(
            "config", f"keys that do not begin with {PREFIX}", ", ".join(reserved[:5])
        )
    return {**users, **ours}
