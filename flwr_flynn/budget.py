"""What a party has given away so far: a ledger of its releases, and a policy that bounds them.

Releases from the same records add up. The ledger, a folder of the party's own, keeps every request that was answered
with the release that answered it: the same request again gets the same release, which gives away nothing new; another
one counts against the policy. It is on disk before the release is handed out, so that a process that dies in between
has spent too much rather than too little. Where it cannot be trusted, nothing is released until the party resets it,
by its own hand::

    python -m flwr_flynn.budget show /var/lib/flynn/state
    python -m flwr_flynn.budget reset /var/lib/flynn/state

Epsilons and deltas add up (basic composition), whatever the mechanisms. Beside the folder lie ``<path>.exists``, which
tells a ledger that was lost from one that never was, and ``<path>.lock``: their folder must last as long. An older copy
of the folder that is put back looks like the ledger it was, and what was spent since is forgotten: do not restore it
from a backup, but reset it, and lower the policy.

>>> import tempfile
>>> from pathlib import Path
>>> from flwr_flynn.privacy import LaplaceCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> with tempfile.TemporaryDirectory() as folder:
...     budget = Budget(Path(folder, "state"), Policy(max_epsilon=1.0))
...     first = budget.release(LaplaceCounts(0.6, hash_nnz=2, n_classes=2), 64 * "0", lambda: counts)
...     again = budget.release(LaplaceCounts(0.6, hash_nnz=2, n_classes=2), 64 * "0", lambda: counts)
...     print(first.counts == again.counts, again.repeated, budget.spent())
...     budget.release(LaplaceCounts(0.5, hash_nnz=2, n_classes=2), 64 * "0", lambda: counts)
Traceback (most recent call last):
    ...
flwr_flynn.errors.PrivacyError: policy max-epsilon 1: with this release it would be 1.1
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.mechanisms import shown_bound
from flwr_flynn.privacy import MECHANISMS, NEIGHBOURS, GaussianCounts, Mechanism, SimulatedRelease

_FORMAT = 1
_LEDGER = "ledger.json"
_OWN = re.compile(r"(ledger\.json|[0-9a-f]{32}\.npz)|\.(ledger\.json|[0-9a-f]{32}\.npz)\.[0-9a-f]{32}")


@dataclass(frozen=True)
class Policy:
    """What a party will give away at most.

    Parameters
    ----------
    max_epsilon : float
        Of all releases together.
    max_delta : float, default=0.0
        Likewise.
    mechanisms : sequence of str, default=("gaussian", "laplace", "top-t")
        Kinds that may be asked for. "simulated" protects nobody; its epsilon is counted as if it did.
    neighbours : {"add-remove", "replace-one"}, default="add-remove"
        What a release must protect at least: "replace-one" is the stronger.
    records_per_person : int, default=1
        How many records of one person a release must protect at least.
    secure_sum : bool, default=False
        Whether releases may carry a share of the noise only, for a secure sum (`GaussianCounts`' `n_honest`).

    Raises
    ------
    ConfigError
        A parameter is not as described.
    """

    max_epsilon: float
    max_delta: float = 0.0
    mechanisms: Sequence[str] = tuple(MECHANISMS)
    neighbours: str = "add-remove"
    records_per_person: int = 1
    secure_sum: bool = False
    max_releases: int = 100
    composition: str = "basic"

    def __post_init__(self) -> None:
        for name, least in (("max_epsilon", 0.0), ("max_delta", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
                raise ConfigError(f"{name}: expected a finite number of at least 0, got {str(value)[:40]!r}")
        known = [*MECHANISMS, SimulatedRelease.kind]
        if isinstance(self.mechanisms, str) or any(kind not in known for kind in self.mechanisms):
            raise ConfigError(f"mechanisms: expected some of {', '.join(known)}, got {str(self.mechanisms)[:80]!r}")
        object.__setattr__(self, "mechanisms", tuple(self.mechanisms))
        if self.neighbours not in NEIGHBOURS:
            raise ConfigError(f"neighbours: expected one of {', '.join(NEIGHBOURS)}, got {str(self.neighbours)[:40]!r}")
        records = self.records_per_person
        if isinstance(records, bool) or not isinstance(records, int) or records < 1:
            raise ConfigError(f"records_per_person: expected a positive whole number, got {str(records)[:40]!r}")
        if not isinstance(self.secure_sum, bool):
            raise ConfigError(f"secure_sum: expected True or False, got {str(self.secure_sum)[:40]!r}")

    def check(self, mechanism: Mechanism) -> None:
        """Refuse a mechanism that this policy does not allow at all.

        Raises
        ------
        PrivacyError
            Naming what of the policy speaks against it.
        """
        if mechanism.kind not in self.mechanisms:
            raise PrivacyError(f"policy mechanisms {', '.join(self.mechanisms)}: {mechanism.kind} is not among them")
        if NEIGHBOURS.index(mechanism.neighbours) < NEIGHBOURS.index(self.neighbours):
            raise PrivacyError(f"policy neighbours {self.neighbours}: asked for {mechanism.neighbours}")
        if mechanism.records_per_person < self.records_per_person:
            raise PrivacyError(
                f"policy records-per-person {self.records_per_person}: asked for {mechanism.records_per_person}"
            )
        inner = _unseeded(mechanism)
        if isinstance(inner, GaussianCounts) and inner.n_honest is not None and not self.secure_sum:
            raise PrivacyError("policy secure-sum off: asked for a share of the noise only")


@dataclass(frozen=True, eq=False)
class Released:
    """An answer from the ledger.

    Parameters
    ----------
    counts : ClassCounts
        What may leave the party.
    repeated : bool
        The same request was answered before, and this is that answer: nothing was spent.
    """

    counts: ClassCounts
    repeated: bool


class Budget:
    """A party's ledger of releases.

    Parameters
    ----------
    path : path-like
        A folder of the party's own, made at the first release: one that is there already counts as a ledger that was
        lost.
    policy : Policy
    """

    def __init__(
        self, path: str | os.PathLike[str], policy: Policy, data_path: str | os.PathLike[str] | None = None
    ) -> None:
        # By one name only: through two, links among them, two processes would not wait for each other.
        self.path, self.policy = Path(os.path.realpath(path)), policy
        self._marker = self.path.with_name(self.path.name + ".exists")

    def release(
        self,
        mechanism: Mechanism,
        spec_fingerprint: str,
        count: Callable[[], ClassCounts],
        *,
        terms: str = "",
        processes: int = 1,
    ) -> Released:
        """What answers this request: what answered it before, or else a new release, recorded first.

        Whether a request is refused depends on it, the policy and the ledger, never on the counts' values.

        Parameters
        ----------
        mechanism : Mechanism
        spec_fingerprint : str
            Of the hash to count by.
        count : callable
            Makes the counts without noise. Called once the request is admitted, and only then.
        terms : str
            What else makes a request what it is: a digest of the run's terms.
        processes : int, default=1
            As for `Mechanism.release`.

        Raises
        ------
        PrivacyError
            It is beyond the policy, or the ledger is lost, altered or cannot be written.
        """
        self.policy.check(mechanism)
        request = {"mechanism": mechanism.to_dict(), "spec": spec_fingerprint, "terms": terms}
        with self._locked():
            entries = self._read()
            # A share of noise is drawn anew for each sum: the same one in two sums of different parties would leave too
            # little of it in their difference.
            for entry in [] if mechanism.is_share else entries:
                if entry["request"] == request:
                    return Released(self._stored(entry, mechanism), True)
            inner = _unseeded(mechanism)
            cost = {"epsilon": inner.epsilon(inner.delta), "delta": inner.delta}
            for name in ("epsilon", "delta"):
                most, total = getattr(self.policy, f"max_{name}"), math.fsum([*(e[name] for e in entries), cost[name]])
                if total > most * (1 + 1e-9):
                    raise PrivacyError(
                        f"policy max-{name} {most:.4g}: with this release it would be {shown_bound(total)}"
                    )
            released = mechanism.release(count(), processes=processes)
            stream = io.BytesIO()
            np.savez_compressed(stream, counts=released.array)
            raw = stream.getvalue()
            name = f"{uuid4().hex}.npz"
            entry = {"request": request, **cost, "data": "", "file": name, "sha256": hashlib.sha256(raw).hexdigest()}
            try:
                _write(self.path / name, raw)
                _write(self.path / _LEDGER, _ledger([*entries, entry]))
            except OSError as error:
                raise self._trouble(f": cannot be written ({error.strerror})") from None
            return Released(released, False)

    def recall(self, mechanism: Mechanism, spec_fingerprint: str, *, terms: str = "") -> ClassCounts:
        """What answered a request before, for whoever wants it taken out of a sum; never a new release.

        Parameters
        ----------
        mechanism, terms
            As for `release`.
        spec_fingerprint : str
            Of the hash that was counted by.

        Raises
        ------
        PrivacyError
            There is no such answer, or the ledger is lost or altered.
        """
        request = {"mechanism": mechanism.to_dict(), "spec": spec_fingerprint, "terms": terms}
        with self._locked():
            for entry in self._read():
                if entry["request"] == request:
                    return self._stored(entry, mechanism)
        raise PrivacyError("this request was never answered: there is nothing to take out")

    def spent(self) -> tuple[float, float]:
        """Epsilon and delta of all releases together.

        Raises
        ------
        PrivacyError
            The ledger is lost or altered.
        """
        with self._locked():
            entries = self._read()
        return math.fsum(entry["epsilon"] for entry in entries), math.fsum(entry["delta"] for entry in entries)

    @property
    def is_begun(self) -> bool:
        """Whether there is a ledger, or was one."""
        return self.path.exists() or self._marker.exists()

    def reset(self) -> None:
        """Forget everything that was released.

        For the party's own hand: what was given away is given away all the same, and only the party can judge that it
        no longer matters, because its records are others now.

        Raises
        ------
        PrivacyError
            Something else than a ledger lies there, or it cannot be removed.
        """
        self._own_files()  # before anything is made beside what is no ledger
        with self._alone():
            for file in self._own_files():
                file.unlink()
            if self.path.exists():
                self.path.rmdir()
            self._marker.unlink(missing_ok=True)  # last: until then the ledger counts as lost

    def _own_files(self) -> list[Path]:
        """The files of the ledger, if there are no others."""
        try:
            files = list(self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._trouble(f": cannot be read ({error.strerror})") from None
        if others := sum(_OWN.fullmatch(file.name) is None for file in files):
            raise PrivacyError(
                f"ledger {self.path.name}: {others} of the files there are not a ledger's; none is removed"
            )
        return files

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time."""
        try:
            import fcntl
        except ImportError:
            raise PrivacyError("a ledger needs file locks, which this system lacks") from None
        try:
            _make_folders(self.path.parent)
            lock = os.open(self._marker.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._trouble(f": cannot be opened ({error.strerror})") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise self._trouble(f": cannot be used ({error.strerror})") from None
        finally:
            os.close(lock)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone, with the folder made where there never was one."""
        with self._alone():
            if not self._marker.exists() and not self.path.exists():
                # The marker first: dying after it leaves a ledger that counts as lost, not one that counts as new.
                _write(self._marker, b"")
                self.path.mkdir(mode=0o700)
                _write(self.path / _LEDGER, _ledger([]))
                _settle(self.path.parent)
            yield

    def _read(self) -> list[dict[str, Any]]:
        try:
            content = json.loads((self.path / _LEDGER).read_bytes())
            entries: list[dict[str, Any]] = content["entries"]
            intact = _ledger(entries) == json.dumps(content).encode() and self._marker.exists()
            intact = intact and isinstance(entries, list) and all(map(_is_entry, entries))
        except FileNotFoundError:
            raise self._trouble(" is lost; nothing is released until it is reset") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            intact = False
        if not intact:
            raise self._trouble(" was altered; nothing is released until it is reset")
        return entries

    def _trouble(self, what: str) -> PrivacyError:
        """An error that names the ledger without its folder, which goes with a note: errors travel to the server."""
        error = PrivacyError(f"ledger {self.path.name}{what}")
        error.add_note(f"python -m flwr_flynn.budget reset {shlex.quote(str(self.path))}")
        return error

    def _stored(self, entry: dict[str, Any], mechanism: Mechanism) -> ClassCounts:
        try:
            raw = (self.path / entry["file"]).read_bytes()
            if hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                raise ValueError
            with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                return mechanism.received(file["counts"], entry["request"]["spec"])
        except Exception:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
            raise self._trouble(": the release that answered this request is lost or altered") from None


def _unseeded(mechanism: Mechanism) -> Mechanism:
    return mechanism.mechanism if isinstance(mechanism, SimulatedRelease) else mechanism


def _is_entry(entry: Any) -> bool:
    """Whether this has the form of an entry: a digest that fits is no promise of that."""
    return (
        isinstance(entry, dict)
        and entry.keys() == {"request", "epsilon", "delta", "data", "file", "sha256"}
        and isinstance(entry["request"], dict)
        and all(type(entry[name]) in (int, float) and 0 <= entry[name] < math.inf for name in ("epsilon", "delta"))
        and all(isinstance(entry[name], str) for name in ("data", "file", "sha256"))
        and re.fullmatch(r"[0-9a-f]{32}\.npz", entry["file"]) is not None
    )


def _ledger(entries: list[dict[str, Any]]) -> bytes:
    """The file, with a digest by which it notices that it was altered."""
    digest = hashlib.sha256(json.dumps(entries).encode()).hexdigest()
    return json.dumps({"format": _FORMAT, "sha256": digest, "entries": entries}).encode()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and on the disk when it returns."""
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
        _settle(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """See to it that the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _make_folders(folder: Path) -> None:
    """Make a folder and those above it, on the disk when it returns: a ledger must not vanish with a new folder."""
    if not folder.exists():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        _settle(folder.parent)


def main(arguments: Sequence[str]) -> int:
    """What `python -m flwr_flynn.budget` does with its arguments: show or reset a ledger."""
    if len(arguments) != 2 or arguments[0] not in ("show", "reset"):
        print("usage: python -m flwr_flynn.budget show|reset PATH", file=sys.stderr)
        return 2
    command, path = arguments[0], Path(arguments[1])
    budget = Budget(path, Policy(max_epsilon=0.0))
    if not budget.is_begun:
        print(f"no ledger at {path}", file=sys.stderr)
        return 1
    try:
        if command == "reset":
            budget.reset()
            print(f"{path}: reset. What was released is out all the same.")
            return 0
        epsilon, delta = budget.spent()
    except PrivacyError as error:
        print(error, *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    print(f"{path}: epsilon {shown_bound(epsilon, 6)}, delta {shown_bound(delta, 6)} spent")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
