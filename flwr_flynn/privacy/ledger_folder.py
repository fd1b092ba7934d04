"""The folder of a ledger, and what lies beside it: a marker that there is one, a lock, and a secret of the party."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr_flynn._files import lock, settle, writing
from flwr_flynn.errors import PrivacyError, WriteError

LEDGER = "ledger.json"
OWN = re.compile(r"ledger\.json|[0-9a-f]{32}\.npz|\.(ledger\.json|[0-9a-f]{32}\.npz)\.partial(\.[0-9a-f]{32})?")


class LedgerFolder:
    """The files of a ledger at a path, for one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # By one name only: through two names, such as links, two processes would not wait for each other.
        self.path = Path(os.path.realpath(path))
        self._marker = self.path.with_name(self.path.name + ".exists")
        self._lock, self._secret = self._marker.with_suffix(".lock"), self._marker.with_suffix(".secret")

    def has(self, path: str | os.PathLike[str]) -> bool:
        """True if this path is the ledger's folder, in it, or its marker, lock or secret."""
        found = Path(os.path.realpath(path))
        return found in (self.path, self._marker, self._lock, self._secret) or self.path in found.parents

    def secret(self) -> bytes:
        """A secret of the party, 32 bytes beside the ledger, made at first; a reset of the ledger leaves it."""
        with self._alone():
            try:
                found = self._secret.read_bytes()
            except FileNotFoundError:
                found = secrets.token_bytes(32)
                with self._writing():
                    write(self._secret, found)
            except OSError as error:
                raise self._trouble("not read", f": its secret cannot be read ({error.strerror})") from None
        if len(found) != 32:
            raise self._trouble("secret", ": its secret was altered")
        return found

    @property
    def is_begun(self) -> bool:
        """True if there is a ledger, or was one."""
        return self.path.exists() or self._marker.exists()

    def reset(self) -> None:
        """Delete the ledger and start anew; what was released stays released.

        Only the party itself can decide that its records have changed, so that earlier releases no longer matter.
        """
        self._own_files()  # before anything is made beside a folder that is no ledger
        with self._alone(), self._writing("removed"):
            self._remove()

    def _remove(self) -> None:
        for file in self._own_files():
            file.unlink()
        if self.path.exists():
            self.path.rmdir()
        self._marker.with_name(f".{self._marker.name}.partial").unlink(missing_ok=True)
        self._marker.unlink(missing_ok=True)  # last: until then the ledger counts as lost

    def _own_files(self) -> list[Path]:
        """The files in the ledger's folder, all of which must be its own."""
        try:
            files = list(self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._trouble("not read", f": cannot be read ({error.strerror})") from None
        if others := sum(OWN.fullmatch(file.name) is None for file in files):
            what = f"{others} of the files there are not a ledger's; none is removed"
            text = f"ledger {self.path.name}: {what}"
            raise PrivacyError("ledger", "its own files", f"{others} others", text=text)
        return files

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one process at a time go on."""
        try:
            _make_folders(self.path.parent)
            held = lock(self._lock)
        except OSError as error:
            raise self._trouble("not opened", f": cannot be opened ({error.strerror})") from None
        with held as self._held:
            yield

    @contextmanager
    def _writing(self, what: str = "written") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.got if isinstance(error, WriteError) else error.strerror
            raise self._trouble(f"not {what}", f": cannot be {what} ({reason})") from None

    def _trouble(self, what: str, text: str) -> PrivacyError:
        """An error without the ledger's folder, because errors travel to the server; a note has the folder."""
        error = PrivacyError("ledger", got=what, text=f"ledger {self.path.name}{text}")
        error.add_note(f"python -m flwr_flynn.privacy.ledger reset {shlex.quote(str(self.path))}")
        return error


def write(path: Path, content: bytes) -> None:
    with writing(path, mode=0o600) as stream:
        stream.write(content)


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents, and sync them to the disk: a ledger must not vanish with a new folder."""
    if not folder.exists():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        settle(folder.parent)
