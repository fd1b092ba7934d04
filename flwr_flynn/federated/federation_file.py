"""A federation's own file: the summed counts, how they are read, and who is in them.

What a server hands out, `model.npz`, tells nothing of single parties. Its own file does, so that parties can join
later and leave again: for each party under which identity it was counted, how many points of each class it has, and
the SHA-256 of the counts it sent. (The counts themselves are not kept. Who leaves sends them again.) It is a model file
with a ledger in it, of which `FlyNNClassifier.load` takes the model.

A party is told by the public key of its SuperNode, or its node id, or its `party-id`. Without SuperNode authentication
a node has another key and id after every start, and the `party-id` alone is left.

>>> import tempfile
>>> from pathlib import Path
>>> from flwr_flynn import FlyHash, HashSpec
>>> hasher = FlyHash(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7))
>>> counts = ClassCounts.from_data(hasher, [[0.0, 1.0], [1.0, 0.0]], [0, 1], n_classes=2)
>>> member = Member("Basel", "17", "", (1, 1), counts.sha256(), run="1")
>>> before = Federation(Terms(hasher.spec, ["cat", "dog"]), counts, (member,))
>>> with tempfile.TemporaryDirectory() as folder:
...     before.save(Path(folder, "federation.npz"))
...     after = Federation.load(Path(folder, "federation.npz"))
>>> after.counts == counts, [member.name for member in after.members]
(True, ['Basel'])

``python -m flwr_flynn.federated.federation_file show federation.npz`` prints a file's ledger.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from flwr_flynn.errors import ConfigError, FlyNNError, ModelFileError
from flwr_flynn.federated.codec import SECURE
from flwr_flynn.federated.protocol import Label, Terms
from flwr_flynn.model import model_file
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import ModelMember, Readout
from flwr_flynn.model.scoring import given_readout
from flwr_flynn.privacy import mechanism_from_dict

_FORMAT = 1
_LONGEST = {"name": 64, "node": 64, "run": 64}  # characters
_HEX = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Member:
    """A party that is in a federation's counts.

    Parameters
    ----------
    name : str
        Its `party-id`; "" if it has none.
    node : str
        The node id under which it was counted.
    key : str
        SHA-256 of its SuperNode's public key, in hexadecimal; "" if not known.
    sizes : tuple of L int, or None
        Points of each class; None where noise or a secure sum hides them.
    sha256 : str or None
        Of the counts that it sent, as `ClassCounts.sha256` has it; None after a secure sum, which shows nobody's.
    run : str
        The run that counted it.
    """

    name: str
    node: str
    key: str
    sizes: tuple[int, ...] | None
    sha256: str | None
    run: str

    @property
    def examples(self) -> int | None:
        """Points in all."""
        return None if self.sizes is None else sum(self.sizes)

    def __str__(self) -> str:
        return self.name or f"node {self.node}"

    @classmethod
    def from_dict(cls, values: Any, n_classes: int) -> Member:
        """A member as a file has it.

        Raises
        ------
        ModelFileError
            Anything in it is not as described above.
        """
        if not isinstance(values, dict) or set(values) != {each.name for each in fields(cls)}:
            raise ModelFileError("ledger: expected members with name, node, key, sizes, sha256 and run")
        for name, longest in _LONGEST.items():
            text = values[name]
            if not isinstance(text, str) or len(text) > longest or not text.isprintable():
                raise ModelFileError(f"ledger: expected a member's {name} of at most {longest} characters on one line")
        key, sizes, sha256 = values["key"], values["sizes"], values["sha256"]
        if key != "" and not _is_hex(key):
            raise ModelFileError("ledger: expected a member's key of 64 hexadecimal digits or none")
        if sha256 is not None and not _is_hex(sha256):
            raise ModelFileError("ledger: expected a member's sha256 of 64 hexadecimal digits or none")
        if sizes is not None:
            whole = isinstance(sizes, list) and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
            if not whole or len(sizes) != n_classes:
                raise ModelFileError(f"ledger: expected a member's sizes as {n_classes} whole numbers, or none")
            values = {**values, "sizes": tuple(sizes)}
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Federation:
    """Summed counts, their terms and read-out, and who is in them.

    Parameters
    ----------
    terms : Terms
        Of one spec.
    counts : ClassCounts
    members : sequence of Member
        Kept in the order of their names.
    decay : float or "auto"
        As the user asked for it.
    decay_, temperature_ : float, optional
        As they were chosen; what the counts suggest by default.
    rule : str
    guarantee : str, optional
        What protects the points, in words.

    Raises
    ------
    ConfigError
        There are several specs, or the read-out is none.
    ModelFileError
        The members are not those of the counts.
    """

    terms: Terms
    counts: ClassCounts
    members: Sequence[Member]
    decay: float | str = "auto"
    decay_: float | None = None
    temperature_: float | None = None
    rule: str = "balanced"
    guarantee: str | None = None

    def __post_init__(self) -> None:
        if len(self.terms.specs) > 1:
            raise ConfigError(f"spec: expected the one of the counts, got {len(self.terms.specs)}")
        given_readout(self.rule, self.decay)
        # In an order of their own: replies come in any.
        order = sorted(self.members, key=lambda member: (member.name, member.node))
        object.__setattr__(self, "members", tuple(order))
        self._check_members()

    def _check_members(self) -> None:
        if self.counts.noise and self.terms.mechanism is None:
            raise ModelFileError(f"ledger: expected a mechanism for noisy counts, got none in mode {self.terms.mode}")
        if any((member.sha256 is None) != self.is_secure for member in self.members):
            what = "without" if self.is_secure else "with"
            raise ModelFileError(f"ledger: expected members {what} a sha256 in mode {self.terms.mode}, got others")
        if self.is_secure:
            return
        if self.counts.noise:
            releases = sum(release.times for release in self.counts.noise)
            if len(self.members) != releases:
                raise ModelFileError(
                    f"ledger: expected {releases} members, one for each release, got {len(self.members)}"
                )
            return
        points = [0] * self.terms.n_classes
        for member in self.members:
            if member.sizes is None:
                raise ModelFileError(f"ledger: expected members with sizes in mode {self.terms.mode}, got one without")
            points = [have + more for have, more in zip(points, member.sizes, strict=True)]
        if self.counts.n_per_class.tolist() != points:
            raise ModelFileError("ledger: expected members with as many points of each class as the counts are of")

    @property
    def is_secure(self) -> bool:
        """Whether members were added by a secure sum, so that nobody knows their counts."""
        return self.terms.mode == SECURE

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier, without anything about single parties."""
        model = FlyNNClassifier.from_counts(
            self.terms.spec,
            self.counts,
            list(self.terms.classes),
            decay=self.decay,
            rule=self.rule,
            feature_names=self.terms.feature_names,
            guarantee=self.guarantee,
        )
        if self.decay_ is None and self.temperature_ is None:
            return model
        decay = model.decay_ if self.decay_ is None else self.decay_
        readout = Readout(self.rule, decay, self.temperature_ or model.temperature_)
        chosen = replace(model.model_, members=(ModelMember(self.terms.spec, self.counts, readout),))
        return FlyNNClassifier.from_model(chosen, decay=self.decay, temperature="auto")

    def find(self, node: str, key: str, name: str) -> list[int]:
        """The places of the members that a party with these may be: any one in common is enough."""
        return [
            place
            for place, member in enumerate(self.members)
            if member.node == node or (key and member.key == key) or (name and member.name == name)
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all: after a crash there is the old one or the new one."""
        mechanism = self.terms.mechanism
        ledger = {
            "format": _FORMAT,
            "mode": self.terms.mode,
            "bound": self.terms.bound,
            "mechanism": None if mechanism is None else mechanism.to_dict(),
            "decay": self.decay if isinstance(self.decay, str) else float(self.decay),
            "members": [asdict(member) for member in self.members],
        }
        model_file.write(path, self.model.model_, extra=ledger)

    @classmethod
    def load(cls, path: str | os.PathLike[str], max_bytes: int = 2**32) -> Federation:
        """A federation from a file that `save` wrote.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default=4 GiB
            Refuse files that would need more memory than that.

        Raises
        ------
        ModelFileError
            Not such a file, altered, too large, or a model without a ledger.
        OSError
            The file cannot be opened.
        """
        with model_file.reading(path, max_bytes) as (model, ledger):
            if not isinstance(ledger, dict):
                raise ModelFileError("a model without a ledger: nobody can join it or leave it")
            expected = {"format", "mode", "bound", "mechanism", "decay", "members"}
            if set(ledger) != expected or type(ledger["format"]) is not int or ledger["format"] != _FORMAT:
                raise ModelFileError(f"ledger: expected one of format {_FORMAT}, got another")
            mechanism = None if ledger["mechanism"] is None else mechanism_from_dict(ledger["mechanism"])
            classes: list[Label] = model.classes.tolist()
            member = model.member
            terms = Terms([member.spec], classes, ledger["mode"], model.feature_names, mechanism, ledger["bound"])
            if not isinstance(ledger["members"], list):
                raise ModelFileError("ledger: expected a list of members")
            return cls(
                terms,
                member.counts,
                [Member.from_dict(each, len(classes)) for each in ledger["members"]],
                decay=ledger["decay"],
                decay_=member.readout.decay,
                temperature_=member.readout.temperature,
                rule=member.readout.rule,
                guarantee=model.guarantee,
            )


def _is_hex(text: Any) -> bool:
    return isinstance(text, str) and _HEX.fullmatch(text) is not None


@contextmanager
def exclusive(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a federation's file from other runs for the block; a lock file beside it is left behind.

    Raises
    ------
    ConfigError
        Another run has it, or there can be no lock.
    """
    import fcntl  # not on Windows, which has no SuperLink either

    place = Path(path)
    try:
        lock = os.open(place.with_name(f".{place.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"federation: {place.name[:80]!r} cannot be locked ({error.strerror})") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"federation: another run has {place.name[:80]!r}") from None
        except OSError as error:
            raise ConfigError(f"federation: {place.name[:80]!r} cannot be locked ({error.strerror})") from None
        yield
    finally:
        os.close(lock)


def summary(federation: Federation) -> list[Mapping[str, Any]]:
    """What the ledger tells of each member, in words a table can hold."""
    return [
        {
            "party": str(member),
            "node": member.node,
            "key": member.key[:16] or "-",
            "examples": "hidden" if member.examples is None else member.examples,
            "sha256": "hidden" if member.sha256 is None else member.sha256[:16],
            "run": member.run,
        }
        for member in federation.members
    ]


def main(arguments: Sequence[str]) -> int:
    """What `python -m flwr_flynn.federated.federation_file` does with its arguments."""
    if len(arguments) != 2 or arguments[0] != "show":
        print("usage: python -m flwr_flynn.federated.federation_file show PATH", file=sys.stderr)
        return 2
    try:
        federation = Federation.load(arguments[1])
    except (FlyNNError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    rows = summary(federation)
    print(f"{arguments[1]}: {len(rows)} parties, SHA-256 of the counts {federation.counts.sha256()}")
    if federation.guarantee:
        print(federation.guarantee)
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]} if rows else {}
    for row in [{name: name for name in widths}, *rows] if rows else []:
        print("  ".join(f"{row[name]!s:<{width}}" for name, width in widths.items()).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
