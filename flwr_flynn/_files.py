"""Files: written whole or not at all, and arrays read from files that are not trusted."""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import FlyNNError, Refusal, WriteError

_OLD = 24 * 3600  # seconds after which a partial file is one that a killed process left


# -------- writing


@contextmanager
def writing(
    path: str | os.PathLike[str], mode: int | None = None
) -> Iterator[IO[bytes]]:
    """Write a file whole or not at all: after a crash there is the old file or the new
    one.

    The bytes go to a file ``.<name>.partial.<random>`` of the same folder, which
    replaces the file in one step when the block ends. Saves at the same time do not
    disturb each other: the last to end stays. A later save removes what a killed
    process left a day ago.
    """
    try:
        target = os.path.realpath(path)
        present = _mode_of(target)
        if mode is None:
            mode = present
        folder, name = os.path.split(target)
        partial = os.path.join(folder, f".{name}.partial.{secrets.token_hex(8)}")
        permissions = 0o666
        if mode is not None:
            permissions = mode & 0o777 | 0o600
        try:
            with open(
                partial,
                "xb",
                opener=lambda path, flags: os.open(path, flags, permissions),
            ) as stream:
                yield stream
                stream.flush()
                if mode is not None and os.chmod in os.supports_fd:
                    with suppress(PermissionError):  # a disk without permissions
                        os.chmod(stream.fileno(), mode)
                os.fsync(stream.fileno())
            os.replace(partial, target)  # Windows renames no open file
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        settle(folder)
        _remove_old(folder, name)
    except FlyNNError:
        raise
    except OSError as error:
        raise _write_error(path, error) from error


def write_together(
    folder: Path, contents: Mapping[str, bytes], mode: int | None
) -> None:
    """Write files of a folder that belong together.

    All are on the disk before the first, the last of `contents`, replaces an old one;
    a full disk leaves all old ones.
    """
    with ExitStack() as stack:
        for name, content in contents.items():
            stream = stack.enter_context(writing(folder / name, mode))
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())


def _remove_old(folder: str, name: str) -> None:
    """Remove the partial files of a name that nobody has written to for a day."""
    partial = re.compile(rf"\.{re.escape(name)}\.partial(\.[0-9a-f]+)?")
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (
                partial.fullmatch(entry.name)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD
            ):
                os.unlink(entry)


def settle(folder: str | os.PathLike[str]) -> None:
    """Sync the names in a folder to the disk, where the system can do that."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network disks do not know how
            raise
    finally:
        os.close(opened)


def _mode_of(target: str) -> int | None:
    """The permissions of a regular file, None without a file.

    Anything else is an error.
    """
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "expected a regular file, got a folder or a device")
    return stat.S_IMODE(mode)


def _write_error(path: str | os.PathLike[str], cause: OSError) -> WriteError:
    name = os.path.basename(os.fspath(path))[:80]
    if cause.errno not in (None, errno.EINVAL):
        reason = os.strerror(cause.errno)
    else:
        reason = cause.strerror or str(cause)
    error = WriteError(name, got=reason, text=f"{name!r} cannot be written ({reason})")
    error.errno = cause.errno
    error.add_note(f"in {os.path.dirname(os.path.abspath(path))}")
    return error


# -------- arrays of files that are not trusted

# A pattern reads the header, and not NumPy, whose reader gives it to Python's tokenizer
# and parser. NumPy writes it with one space after each comma and colon; other writers
# with none, or with more.
_LONGEST_HEADER = 1024
_HEADER = re.compile(
    rb"\{ *['\"]descr['\"] *: "
    rb"*['\"]([<>|=]?[biufcmMSUV]\d{1,10}(?:\[\w{1,20}\])?)['\"] *,"
    rb" *['\"]fortran_order['\"] *: *(True|False) *,"
    rb" *['\"]shape['\"] *: *\( *((?:\d{1,10}L? *(?:, *\d{1,10}L? *){0,31},? *)?)\) "
    rb"*,? *\} *\n?"
)


class NpyHeader(NamedTuple):
    """Header of an .npy file, with a shape and a type that NumPy can have."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def n_bytes(self) -> int:
        """The size of the entries."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, entries: bytes | bytearray, offset: int = 0) -> Array:
        """The array over the bytes from the offset on, without a copy."""
        flat: Array = np.frombuffer(entries, self.dtype, offset=offset)
        if self.fortran:
            return flat.reshape(self.shape, order="F")
        return flat.reshape(self.shape)


def npy_header(
    stream: IO[bytes], what: str, error: type[Refusal], types: str = ".*"
) -> NpyHeader:
    """Read the header of a plain array in .npy format, up to its entries.

    Its ``dtype.str`` must match `types`.

    An error about a malformed header has the class `error` and the field `what`. No
    size in the header is allocated.
    """
    magic = stream.read(8)
    wide = 4
    if magic[6:7] == b"\x01":
        wide = 2
    length = stream.read(wide)
    if (
        magic[:6] != b"\x93NUMPY"
        or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0")
        or len(length) < wide
    ):
        raise error(what, "the bytes of numpy.save", magic[:8])
    size = int.from_bytes(length, "little")
    text = b""
    if size <= _LONGEST_HEADER:
        text = stream.read(size)
    header = _HEADER.fullmatch(text)
    if header is None or len(text) < size:
        raise error(what, "the header of a plain array", f"{size} bytes that are none")
    try:
        dtype = np.dtype(header[1].decode())
    except (TypeError, ValueError, OverflowError):
        dtype = np.dtype("V0")
    if not dtype.itemsize or not re.fullmatch(types, dtype.str):
        raise error(what, f"an array of type {types}", header[1].decode()[:20])
    shape = tuple(
        int(number.strip(b" L")) for number in header[3].split(b",") if number.strip()
    )
    # NumPy does not limit the other numbers if one of them is 0.
    if math.prod(max(number, 1) for number in shape) * dtype.itemsize >= 2**63:
        raise error(what, "a shape that NumPy can have", str(shape)[:60])
    return NpyHeader(shape, dtype, header[2] == b"True")


def npz_array(
    archive: zipfile.ZipFile,
    member: str,
    what: str,
    error: type[Refusal],
    types: str = ".*",
    max_bytes: int | None = None,
) -> Array:
    """Read one array of an open .npz file.

    Its size is checked before anything is allocated.

    By default `max_bytes` is the most that a file of this size can hold. Damaged files
    raise errors of `zipfile`.
    """
    info = archive.getinfo(member)
    # These are NumPy's. Other methods allocate by sizes in the file, and deflate makes
    # of a byte 1032 at most.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise error(
            what,
            "a stored or deflated array",
            f"compression method {info.compress_type}",
        )
    most = 1032 * os.fstat(archive.fp.fileno()).st_size  # type: ignore[union-attr]
    with archive.open(info) as stream:
        header = npy_header(stream, what, error, types)
        n_bytes = info.file_size - stream.tell()
        if header.n_bytes != n_bytes:
            raise error(what, f"{header.n_bytes} bytes as its header declares", n_bytes)
        if max_bytes is not None:
            most = min(most, max_bytes)
        if header.n_bytes > most:
            raise error(what, f"at most {max_bytes or most} bytes", header.n_bytes)
        entries = bytearray(header.n_bytes)
        view = memoryview(entries)
        start = 0
        while start < len(view):
            got = stream.readinto(view[start : start + 2**18])  # type: ignore[attr-defined]
            if not got:
                raise error(what, f"{len(view)} bytes", start)
            start += got
        if stream.read(1):  # reads on to where zipfile compares the checksum
            raise error(what, f"{len(view)} bytes", "more")
    return header.array(entries)
