"""Files of a party's ledger: a database and its marker, for one process at a time.

A step is one transaction of the database: a charge with the answer that is begun,
another answer that is begun in it, or an array. The marker beside the database has the
ledger's id, the number of steps, and the digest of all rows, where arrays stand by
their SHA-256. The database is written before the marker, and has the marker of the step
before, so that it may be one step ahead. Any other difference means that one of them is
lost, altered, older, or of another ledger. Beside them lie a lock, and a secret of the
party.

Ledgers of 0.8 are folders. One is carried over at its first use, and kept as
``<path>.before``.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from flwr_flynn._files import settle, writing
from flwr_flynn.errors import PrivacyError
from flwr_flynn.privacy.release_policy import Account, Cost

_APPLICATION = b"FlyL"  # application_id, in the header of the file
# Sums of larger amounts could be beyond floating point.
_SCHEMA = """
PRAGMA application_id = 0x466C794C;
PRAGMA user_version = 3;
CREATE TABLE ledger (
    id TEXT CHECK (typeof(id) = 'text'),
    before TEXT CHECK (typeof(before) = 'text'),
    composition TEXT NOT NULL CHECK (composition IN ('basic', 'zcdp')),
    delta REAL CHECK (typeof(delta) = 'real' AND delta >= 0 AND delta < 1),
    data_path TEXT CHECK (typeof(data_path) IN ('text', 'null')),
    CHECK (delta > 0 OR composition = 'basic')
);
CREATE TABLE charge (
    number INTEGER PRIMARY KEY,
    mechanism TEXT CHECK (typeof(mechanism) = 'text'),
    terms TEXT CHECK (typeof(terms) = 'text'),
    reading TEXT CHECK (typeof(reading) = 'text'),
    epsilon REAL CHECK (typeof(epsilon) = 'real' AND epsilon BETWEEN 0 AND 1e300),
    delta REAL CHECK (typeof(delta) = 'real' AND delta BETWEEN 0 AND 1e300),
    rho REAL CHECK (rho IS NULL OR typeof(rho) = 'real' AND rho BETWEEN 0 AND 1e300),
    closes INTEGER NOT NULL CHECK (closes IN (0, 1))
);
CREATE TABLE answer (
    charge INTEGER NOT NULL REFERENCES charge,
    part TEXT CHECK (typeof(part) = 'text'),
    fingerprint TEXT CHECK (typeof(fingerprint) = 'text'),
    sha256 TEXT CHECK (typeof(sha256) = 'text'),
    array BLOB CHECK (typeof(array) IN ('blob', 'null')),
    UNIQUE (charge, part)
);
"""
_OPEN = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = FULL;
PRAGMA trusted_schema = OFF;
BEGIN EXCLUSIVE;
COMMIT;
"""
"""An exclusive lock is kept until the file is closed, so that a process that does not
wait for the lock beside it is refused."""

_SOUND = (
    "PRAGMA application_id",
    "PRAGMA user_version",
    "SELECT sql FROM sqlite_master ORDER BY rowid",
    "PRAGMA integrity_check",
    "PRAGMA foreign_key_check",
    "SELECT count(*) FROM ledger",
    """SELECT number FROM charge, ledger WHERE (rho IS NULL) != (composition = 'basic')
        OR closes AND (rho IS NULL OR (SELECT count(*) FROM charge) > 1)""",
)
"""Queries that give of any sound ledger what they give of a new one, in this order: those
behind the schema see its tables alone."""

_CONTENT = (
    """SELECT id, (SELECT count(*) + count(nullif(sha256, '')) FROM answer), before,
        composition, delta, data_path FROM ledger""",
    "SELECT * FROM charge ORDER BY number",
    "SELECT charge, part, fingerprint, sha256 FROM answer ORDER BY charge, part",
)
_CHARGES = """SELECT mechanism, epsilon, charge.delta, rho, closes, group_concat(part)
    FROM charge LEFT JOIN answer ON charge = number AND sha256 != ''
    GROUP BY number ORDER BY number"""
BEGIN_CHARGE = """INSERT INTO charge VALUES
    (:number, :mechanism, :terms, :reading, :epsilon, :delta, :rho, :closes)"""
BEGIN_ANSWER = "INSERT INTO answer VALUES (:number, :part, :fingerprint, '', NULL)"
ANSWER = """UPDATE answer SET sha256 = :sha256, array = :array
    WHERE charge = :number AND part = :part"""


class Charge(NamedTuple):
    """A charge: its mechanism, as JSON, its cost, and the parts that it answered."""

    mechanism: str
    cost: Cost
    parts: str


def digest_of(value: object) -> str:
    """SHA-256 of a value as JSON with its keys in order, 64 hexadecimal digits."""
    return hashlib.sha256(as_json(value).encode()).hexdigest()


def as_json(value: object) -> str:
    """The value as JSON with its keys in order."""
    return json.dumps(value, sort_keys=True)


class LedgerFiles:
    """The files of a ledger at a path, for one process at a time."""

    _database: sqlite3.Connection  # while the ledger is open

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # By one name only: through two names, such as links, two processes would not
        # wait for each other.
        self.path = Path(os.path.realpath(path))
        self._marker = self._beside(".exists")
        self._lock = self._beside(".lock")
        self._secret = self._beside(".secret")
        self._journal = self._beside("-journal")
        self._before = self._beside(".before")

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def has(self, path: str | os.PathLike[str]) -> bool:
        """True if this path is one of the ledger's files, or in a ledger of 0.8."""
        real = Path(os.path.realpath(path))
        own = self.path, self._marker, self._lock, self._secret, self._journal
        return not {real, *real.parents}.isdisjoint(own)

    def secret(self) -> bytes:
        """A secret of the party, 32 bytes beside the ledger, made at first.

        A reset of the ledger leaves it.
        """
        with self._alone(), self._access("read"):
            try:
                secret = self._secret.read_bytes()
            except FileNotFoundError:
                secret = secrets.token_bytes(32)
                with self._access(), writing(self._secret, 0o600) as stream:
                    stream.write(secret)
        if len(secret) != 32:
            raise self._trouble("secret", ": its secret was altered")
        return secret

    @property
    def is_begun(self) -> bool:
        """True if there is a ledger, or was one."""
        return self.path.exists() or self._marker.exists()

    @property
    def is_known(self) -> bool:
        """True if the files at the path are those of a ledger, in whatever state."""
        header = b""
        with suppress(OSError), self.path.open("rb") as stream:
            header = stream.read(72)
        return (
            self._marker.exists()
            or header[68:] == _APPLICATION
            or (self.path / "ledger.json").exists()
        )

    def reset(self) -> None:
        """Delete the ledger and start anew; what was released stays released.

        Only the party itself can decide that its records have changed, so that earlier
        releases no longer matter.
        """
        if self.path.exists() and not self.is_known:
            text = f"ledger {self.path.name}: no ledger; nothing is removed"
            raise PrivacyError("ledger", got="none", text=text)
        with self._alone(), self._access("removed"):
            self._set_aside()
            self._remove()

    def _remove(self) -> None:
        # The marker is last: until then the ledger counts as lost.
        for file in (self.path, self._journal, self._marker):
            file.unlink(missing_ok=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time go on."""
        with self._access("opened"):
            _make_folders(self.path.parent)
            held = FileLock(self._lock, mode=0o600).acquire()
        with held:
            yield

    @contextmanager
    def _opened(self, account: Account, data_path: str | None) -> Iterator[None]:
        """Open the ledger, for one process at a time.

        Before the first release it is a new one, which is not on the disk yet.
        """
        with self._alone():
            self._database = _new_database(account, data_path, "")
            try:
                if self.is_begun:
                    self._read()
                yield
            finally:
                self._database.close()

    def _read(self) -> None:
        """Open the ledger on the disk, in place of the new one."""
        with self._access("read"), closing(self._database) as new:
            try:
                marker = self._marker.read_text()
                if not self.path.is_file():
                    self._carry_over(marker)
                self._connect()
                for query in _SOUND:
                    if self._rows(query) != new.execute(query).fetchall():
                        raise ValueError
                mark = self._mark()
                if marker not in (mark, *self._rows("SELECT before FROM ledger")[0]):
                    raise ValueError
            except FileNotFoundError:
                what = " is lost; nothing is released until it is reset"
                raise self._trouble("lost", what) from None
            except (PrivacyError, sqlite3.OperationalError):  # such as a locked file
                raise
            except Exception:  # noqa: BLE001
                # Hostile contents raise a dozen kinds.
                what = (
                    " was rolled back or altered; nothing is released until it is reset"
                )
                raise self._trouble("altered", what) from None
        if marker != mark:  # a process died
            with self._access():
                self._write_marker()

    def _carry_over(self, marker: str) -> None:
        """Make a database of a ledger of 0.8.

        A process that dies leaves the folder under one of its two names, and its marker
        as it was.
        """
        folder = self.path
        if not folder.exists():
            folder = self._before
        self._database = _of_0_8(folder, marker)
        with self._access():
            self._set_aside()
            self._make()

    def _set_aside(self) -> None:
        """Keep a folder of 0.8 under its other name."""
        if self.path.is_dir():
            self.path.rename(self._before)

    def _make(self) -> None:
        """Put the database, which is in memory, in its place, whole or not at all."""
        self._journal.unlink(missing_ok=True)  # of a ledger that was removed by hand
        with writing(self.path, 0o600) as stream, closing(self._database) as database:
            database.execute("VACUUM INTO ?", [stream.name])

    def _connect(self) -> None:
        uri = f"{self.path.as_uri()}?mode=rw"
        self._database = sqlite3.connect(uri, timeout=1, isolation_level=None, uri=True)
        self._database.executescript(_OPEN)

    def _write(self, *statements: str, **values: object) -> None:
        """Write a step: the database, and then the marker."""
        before = self._mark()
        ((is_new,),) = self._rows("SELECT before = '' FROM ledger")
        if is_new and self.is_begun:
            raise self._trouble("lock", ": another process made it meanwhile")
        with self._access():
            try:
                with self._database as database:
                    database.execute("BEGIN")
                    database.execute("UPDATE ledger SET before = ?", [before])
                    for statement in statements:
                        database.execute(statement, values)
                if is_new:
                    self._make()
                    self._connect()
                self._write_marker()
            except (OSError, sqlite3.Error):
                # such as a full disk; a process that is killed leaves a ledger that
                # counts as lost
                if is_new:
                    self._remove()
                raise

    def _rows(self, query: str, **values: object) -> list[Any]:
        return self._database.execute(query, values).fetchall()

    def _charges(self) -> list[Charge]:
        return [
            Charge(mechanism, Cost(epsilon, delta, rho, bool(closes)), parts or "")
            for mechanism, epsilon, delta, rho, closes, parts in self._rows(_CHARGES)
        ]

    def _mark(self) -> str:
        """Text of the marker: id, number of steps, and digest of the rows."""
        rows = [self._rows(query) for query in _CONTENT]
        name, n_steps, *_ = rows[0][0]
        return f"{name} {n_steps} {digest_of(rows)}"

    def _write_marker(self) -> None:
        with writing(self._marker, 0o600) as stream:
            stream.write(self._mark().encode())

    @contextmanager
    def _access(self, what: str = "written") -> Iterator[None]:
        """Refuse to go on where the block cannot read or write a file."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            refusal = self._trouble(f"not {what}", f": cannot be {what}")
            refusal.add_note(str(error))
            raise refusal from None

    def _trouble(self, what: str, text: str) -> PrivacyError:
        """An error without the ledger's folder, because errors travel to the server.

        A note has the folder.
        """
        error = PrivacyError("ledger", got=what, text=f"ledger {self.path.name}{text}")
        error.add_note(f"flwr-flynn reset {shlex.quote(str(self.path))}")
        return error


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents, and sync them to the disk: a ledger must not
    vanish with a new folder.
    """
    if not folder.exists():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        settle(folder.parent)


def _new_database(
    account: Account, data_path: str | None, before: str
) -> sqlite3.Connection:
    """A ledger that is not on the disk."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(_SCHEMA)
    facts = secrets.token_hex(16), before, *astuple(account), data_path
    database.execute("INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", facts)
    return database


def _of_0_8(folder: Path, marker: str) -> sqlite3.Connection:
    """The ledger in a folder of 0.8, by its marker.

    Its entries are a hash chain, of which the marker has the head; it may be a step
    behind.
    """
    content = json.loads((folder / "ledger.json").read_bytes())
    sha256 = content.pop("sha256")
    facts = [content[name] for name in ("composition", "delta", "data_path")]
    entries = content["entries"]
    begun = [{**entry, "sha256": ""} for entry in entries[-1:]]
    marks = [
        {
            "format": 2,
            "entries": len(step),
            "head": reduce(lambda *link: digest_of(link), step, digest_of(facts)),
        }
        for step in (entries, [*entries[:-1], *begun], entries[:-1])
    ]
    if sha256 != digest_of(content) or json.loads(marker) not in marks:
        raise ValueError
    composition, delta, data_path = facts
    database = _new_database(Account(composition, delta), data_path, marker)
    for number, entry in enumerate(entries, 1):
        row = {"reading": "", "part": "counts", **entry, **entry["request"]}
        row |= {"number": number, "fingerprint": row["spec"], "array": None}
        row["mechanism"] = as_json(row["mechanism"])
        with suppress(FileNotFoundError):  # which is noticed when it is asked for
            row["array"] = (folder / Path(row["file"]).name).read_bytes()
        for statement in (BEGIN_CHARGE, BEGIN_ANSWER, ANSWER):
            database.execute(statement, row)
    return database
