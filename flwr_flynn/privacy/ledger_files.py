"""Files of a party's ledger: what is in them, and access to them, for one process at a
time.

The entries of the ledger form a hash chain; the marker beside its folder has their
number and the head of the chain. A request is an entry before its samples are looked
at, and the last one gets the SHA-256 of its release afterwards. The ledger is written
before the marker, so that it may be one of these steps ahead of it. Any other
difference means that one of them is an older copy. Beside them lie a lock, and a secret
of the party.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict
from uuid import uuid4

import numpy as np
from filelock import FileLock

from flwr_flynn._files import settle, writing
from flwr_flynn._types import Integers
from flwr_flynn.errors import PrivacyError, WriteError
from flwr_flynn.privacy.release_policy import COMPOSITIONS, Account, Cost

Array = Integers

_FORMAT = 2
_LARGEST = 1e300  # of an amount: sums of integers beyond floating point raise


class Entry(TypedDict):
    """One release of a ledger: its request, its cost, and the file of its counts."""

    request: Mapping[str, object]
    epsilon: float
    delta: float
    rho: float | None
    closes: bool
    file: str
    sha256: str


@dataclass(frozen=True)
class LedgerFile:
    """The content of a ledger. Immutable by convention."""

    composition: str = "basic"
    delta: float = 0.0
    data_path: str | None = None
    entries: Sequence[Entry] = ()

    @property
    def account(self) -> Account:
        """The account that the ledger was made for."""
        return Account(self.composition, self.delta)

    @property
    def costs(self) -> list[Cost]:
        """The costs of the releases."""
        return [
            Cost(entry["epsilon"], entry["delta"], entry["rho"], entry["closes"])
            for entry in self.entries
        ]

    def find(self, request: Mapping[str, object]) -> Entry | None:
        """The entry of an answered request.

        It is None for one that is new, or whose process died before its release.
        """
        for entry in self.entries:
            if entry["request"] == request and entry["sha256"]:
                return entry
        return None

    def with_entry(self, request: Mapping[str, object], cost: Cost) -> LedgerFile:
        """This ledger with one more request, without its release."""
        entry: Entry = {
            "request": request,
            **asdict(cost),  # type: ignore[typeddict-item]
            "file": f"{uuid4().hex}.npz",
            "sha256": "",
        }
        return replace(self, entries=[*self.entries, entry])

    def answered(self, sha256: str) -> LedgerFile:
        """This ledger with the SHA-256 of the release of the last request.

        An empty text takes it away.
        """
        last: Entry = {**self.entries[-1], "sha256": sha256}
        return replace(self, entries=[*self.entries[:-1], last])

    def head(self, n_entries: int | None = None) -> str:
        """The head of the hash chain over the first entries, or over all of them."""
        head = digest_of([self.composition, self.delta, self.data_path])
        for entry in self.entries[:n_entries]:
            head = digest_of([head, entry])
        return head

    def to_bytes(self) -> bytes:
        """Content of the ledger's file, with a digest against alterations."""
        content = {"format": _FORMAT, **asdict(self)}
        return json.dumps({**content, "sha256": digest_of(content)}).encode()

    def marker(self) -> bytes:
        """Content of the marker's file."""
        return json.dumps(
            {"format": _FORMAT, "entries": len(self.entries), "head": self.head()}
        ).encode()

    @classmethod
    def read(cls, raw: bytes, marker: bytes) -> tuple[LedgerFile, bool]:
        """A ledger from both files, and True if a process died before it wrote the last
        marker.
        """
        content = json.loads(raw)
        ledger = cls(
            content["composition"],
            content["delta"],
            content["data_path"],
            content["entries"],
        )
        # The form first: one malformed entry ends the check, however many there are.
        if not ledger._is_sound() or ledger.to_bytes() != json.dumps(content).encode():
            raise ValueError
        marked = json.loads(marker)
        if (
            marked.keys() != {"format", "entries", "head"}
            or marked["format"] != _FORMAT
        ):
            raise ValueError
        n_entries = marked["entries"]
        if type(n_entries) is not int or not 0 <= len(ledger.entries) - n_entries <= 1:
            raise ValueError
        if ledger.head(n_entries) == marked["head"]:
            return ledger, len(ledger.entries) > n_entries
        if (
            n_entries != len(ledger.entries)
            or not n_entries
            or ledger.answered("").head() != marked["head"]
        ):
            raise ValueError
        return ledger, True

    def _is_sound(self) -> bool:
        return (
            self.composition in COMPOSITIONS
            and type(self.delta) in (int, float)
            and 0 <= self.delta < 1
            and (self.delta > 0 or self.composition == "basic")
            and (self.data_path is None or isinstance(self.data_path, str))
            and isinstance(self.entries, list)
            and all(_is_entry(entry, self.composition) for entry in self.entries)
            and not (
                any(entry["closes"] for entry in self.entries) and len(self.entries) > 1
            )
        )


def _is_entry(entry: object, composition: str) -> bool:
    """True if a value has the form of an entry; a digest alone does not show that."""
    return (
        isinstance(entry, dict)
        and entry.keys() == Entry.__annotations__.keys()
        and isinstance(entry["request"], dict)
        and isinstance(entry["request"].get("spec"), str)
        and all(_is_amount(entry[name]) for name in ("epsilon", "delta"))
        and (composition != "zcdp" or _is_amount(entry["rho"]))
        and (composition == "zcdp" or entry["rho"] is None)
        and isinstance(entry["closes"], bool)
        and (composition == "zcdp" or not entry["closes"])
        and all(isinstance(entry[name], str) for name in ("file", "sha256"))
        and re.fullmatch(r"[0-9a-f]{32}\.npz", entry["file"]) is not None
    )


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST  # type: ignore[operator]


def digest_of(value: object) -> str:
    """SHA-256 of a value as JSON with its keys in order, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


LEDGER = "ledger.json"
OWN = re.compile(
    r"ledger\.json|[0-9a-f]{32}\.npz|\.(ledger\.json|[0-9a-f]{32}\.npz)\.partial(\.[0-9a-f]+)?"
)


class LedgerFolder:
    """The files of a ledger at a path, for one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # By one name only: through two names, such as links, two processes would not
        # wait for each other.
        self.path = Path(os.path.realpath(path))
        self._marker = self.path.with_name(self.path.name + ".exists")
        self._lock = self._marker.with_suffix(".lock")
        self._secret = self._marker.with_suffix(".secret")

    def has(self, path: str | os.PathLike[str]) -> bool:
        """True if this path is the ledger's folder, in it, or its marker, lock or
        secret.
        """
        real = Path(os.path.realpath(path))
        own = (self.path, self._marker, self._lock, self._secret)
        return real in own or self.path in real.parents

    def secret(self) -> bytes:
        """A secret of the party, 32 bytes beside the ledger, made at first.

        A reset of the ledger leaves it.
        """
        with self._alone():
            try:
                secret = self._secret.read_bytes()
            except FileNotFoundError:
                secret = secrets.token_bytes(32)
                with self._access():
                    write(self._secret, secret)
            except OSError as error:
                raise self._trouble(
                    "not read", f": its secret cannot be read ({error.strerror})"
                ) from None
        if len(secret) != 32:
            raise self._trouble("secret", ": its secret was altered")
        return secret

    @property
    def is_begun(self) -> bool:
        """True if there is a ledger, or was one."""
        return self.path.exists() or self._marker.exists()

    def reset(self) -> None:
        """Delete the ledger and start anew; what was released stays released.

        Only the party itself can decide that its records have changed, so that earlier
        releases no longer matter.
        """
        self._own_files()  # before anything is made beside a folder that is no ledger
        with self._alone(), self._access("removed"):
            self._remove()

    def _remove(self) -> None:
        for file in self._own_files():
            file.unlink()
        if self.path.exists():
            self.path.rmdir()
        for partial in self._marker.parent.glob(
            f".{glob.escape(self._marker.name)}.partial*"
        ):
            partial.unlink()
        # The marker is last: until then the ledger counts as lost.
        self._marker.unlink(missing_ok=True)

    def _own_files(self) -> list[Path]:
        """The files in the ledger's folder, all of which must be its own."""
        files: list[Path] = []
        with self._access("read"), suppress(FileNotFoundError):
            files = list(self.path.iterdir())
        others = sum(OWN.fullmatch(file.name) is None for file in files)
        if others:
            what = f"{others} of the files there are not a ledger's; none is removed"
            text = f"ledger {self.path.name}: {what}"
            raise PrivacyError("ledger", "its own files", f"{others} others", text=text)
        return files

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time go on."""
        with self._access("opened"):
            _make_folders(self.path.parent)
            held = FileLock(self._lock, mode=0o600).acquire()
            self._held = os.lstat(self._lock)
        with held:
            yield

    @contextmanager
    def _opened(self, new: LedgerFile) -> Iterator[LedgerFile]:
        """The ledger, for one process at a time.

        Before the first release it is the new one, which is not on the disk yet.
        """
        with self._alone():
            if self.is_begun:
                new = self._read()
            yield new

    def _read(self) -> LedgerFile:
        try:
            ledger, died = LedgerFile.read(
                (self.path / LEDGER).read_bytes(), self._marker.read_bytes()
            )
        except FileNotFoundError:
            raise self._trouble(
                "lost", " is lost; nothing is released until it is reset"
            ) from None
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            what = " was rolled back or altered; nothing is released until it is reset"
            raise self._trouble("altered", what) from None
        if died:
            with self._access():
                write(self._marker, ledger.marker())
        # Files that a killed process left. Only now: they may be the releases of a
        # ledger newer than an older copy.
        known = {LEDGER, *(entry["file"] for entry in ledger.entries)}
        with suppress(OSError):
            for file in self.path.iterdir():
                if OWN.fullmatch(file.name) and file.name not in known:
                    file.unlink(missing_ok=True)
        return ledger

    def _make(self, ledger: LedgerFile) -> None:
        """Write a new ledger to the disk, whole or not at all."""
        if self.is_begun:
            return
        with self._access():
            try:
                # The marker first: of a folder without one nobody knows what was
                # released.
                write(self._marker, ledger.marker())
                self.path.mkdir(mode=0o700)
                write(self.path / LEDGER, ledger.to_bytes())
                settle(self.path.parent)
            except OSError:
                # such as a full disk; a process that is killed leaves a ledger that
                # counts as lost
                self._remove()
                raise

    def _write(self, ledger: LedgerFile) -> None:
        """Write the ledger, and then its marker, which may be a step behind where a
        process dies in between.
        """
        with self._access():
            # Another process may write meanwhile.
            if not os.path.samestat(self._held, os.lstat(self._lock)):
                raise self._trouble("lock", ": its lock was replaced meanwhile")
            write(self.path / LEDGER, ledger.to_bytes())
            write(self._marker, ledger.marker())

    def _new_release(
        self,
        ledger: LedgerFile,
        request: Mapping[str, object],
        cost: Cost,
        measure: Callable[[], Array],
    ) -> Array:
        """A release that `measure` gives: the request is on the disk before, and the
        release before it is sent.
        """
        self._make(ledger)
        charged = ledger.with_entry(request, cost)
        self._write(charged)
        released = measure()
        stream = io.BytesIO()
        np.savez_compressed(stream, counts=released)
        raw = stream.getvalue()
        with self._access():
            write(self.path / charged.entries[-1]["file"], raw)
        self._write(charged.answered(hashlib.sha256(raw).hexdigest()))
        return released

    def _stored(self, entry: Entry) -> Array:
        """The release of an entry."""
        try:
            raw = (self.path / entry["file"]).read_bytes()
            if hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                raise ValueError
            with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                array: Array = file["counts"]
                return array
        except Exception:  # noqa: BLE001
            # Zipfile, its decompressors and NumPy's parser raise a dozen kinds.
            raise self._lost() from None

    @contextmanager
    def _access(self, what: str = "written") -> Iterator[None]:
        """Refuse to go on where the block cannot read or write a file."""
        try:
            yield
        except OSError as error:
            if isinstance(error, WriteError):
                reason = error.got
            else:
                reason = error.strerror
            raise self._trouble(
                f"not {what}", f": cannot be {what} ({reason})"
            ) from None

    def _lost(self) -> PrivacyError:
        return self._trouble(
            "release", ": the stored release for this request is lost or altered"
        )

    def _trouble(self, what: str, text: str) -> PrivacyError:
        """An error without the ledger's folder, because errors travel to the server.

        A note has the folder.
        """
        error = PrivacyError("ledger", got=what, text=f"ledger {self.path.name}{text}")
        error.add_note(
            f"python -m flwr_flynn.privacy.ledger reset {shlex.quote(str(self.path))}"
        )
        return error


def write(path: Path, content: bytes) -> None:
    with writing(path, mode=0o600) as stream:
        stream.write(content)


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents, and sync them to the disk: a ledger must not
    vanish with a new folder.
    """
    if not folder.exists():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        settle(folder.parent)
