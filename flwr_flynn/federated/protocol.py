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
from flwr_flynn.errors import (
    ConfigError,
    CountsError,
    DataError,
    PayloadError,
    SchemaError,
    SpecError,
)

Scalar = bool | int | float | str | bytes
Entries = Mapping[str, Any]
"""Config or metrics entries, of any type as long as they are not checked."""

PREFIX = "flynn-"


def key(name: str) -> str:
    """The config or metrics key of a field.

    ``key("n_classes")`` is ``"flynn-n-classes"``.
    """
    return PREFIX + name.replace("_", "-")


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
sum, results on held-out samples, or nothing. A party admits or refuses by them, see
`federated.party`."""


NOISY_EXAMPLES = 1
"""`num_examples` beside noisy and secure counts: the same for every party, so that it
tells nothing."""


class Config:
    """Fields of a request as they arrived.

    Each read checks type and size, or raises a `PayloadError`.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries

    def __contains__(self, name: str) -> bool:
        return key(name) in self.entries

    def text(self, name: str, longest: int) -> str:
        """A string of at most `longest` characters."""
        value = self.entries.get(key(name))
        if value is None:
            raise PayloadError(key(name), "a string", "nothing")
        if not isinstance(value, str):
            raise PayloadError(key(name), "a string", type(value).__name__)
        if len(value) > longest:
            raise PayloadError(key(name), f"at most {longest} characters", len(value))
        return value

    def json(self, name: str, longest: int) -> Any:
        """The value that a string of at most `longest` characters holds as JSON."""
        text = self.text(name, longest)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise PayloadError(
                key(name), "JSON", f"{len(text)} characters that are none"
            ) from None

    def integer(self, name: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """An integer within bounds."""
        return _integer(key(name), self.entries.get(key(name)), least, most)

    def integers(self, name: str, n: int, least: int, most: int) -> list[int]:
        """A list of `n` integers within bounds, as JSON."""
        values = self.json(name, 22 * n + 2)
        if not isinstance(values, list) or len(values) != n:
            raise PayloadError(key(name), f"{n} integers", type(values).__name__)
        return [_integer(key(name), value, least, most) for value in values]

    def boolean(self, name: str) -> bool:
        """True or False."""
        value = self.entries.get(key(name))
        if not isinstance(value, bool):
            raise PayloadError(key(name), "True or False", type(value).__name__)
        return value


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


def _integer(field: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        if type(value) is int:
            got = str(value)[:40]
        else:
            got = type(value).__name__
        raise PayloadError(field, f"an integer from {least} to {most}", got)
    return value


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
        return _integer("num_examples", self.n_examples, 0, 2**63 - 1)


@dataclass(frozen=True)
class Answer:
    """A party's answer before it travels."""

    arrays: list[Array] = field(default_factory=list)
    """The statistic as it travels."""
    n_examples: int = 0
    """Samples in it, or a constant where the number would tell something."""
    metrics: dict[str, Scalar] = field(default_factory=dict)
    """Further entries, such as ``accuracy``."""
    statistic: Any = None
    """The statistic that the arrays are of, for the party's own record."""


def merged(users: Entries, ours: Entries) -> dict[str, Any]:
    """Our config entries beside the user's, none of which may begin as ours do."""
    reserved = sorted(str(name) for name in users if str(name).startswith(PREFIX))
    if reserved:
        raise ConfigError(
            "config", f"keys that do not begin with {PREFIX}", ", ".join(reserved[:5])
        )
    return {**users, **ours}
