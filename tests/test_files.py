"""Files are written whole or not at all, by one process at a time.

No array that somebody wrote harms its reader.
"""

from __future__ import annotations

import errno
import io
import os
import resource
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn._files import npy_header, npz_array, writing
from flwr_flynn.errors import DataError, FlyNNError, PayloadError, WriteError
from tests.raising import raises

MODEL = FlyNNClassifier(HashSpec(3, 20, 2, 3, seed=1)).fit(np.eye(3), ["a", "b", "c"])


OLD = b"old"


def write(path: Path, content: bytes = b"new", mode: int | None = None) -> None:
    with writing(path, mode) as stream:
        stream.write(content)


def is_untouched(path: Path) -> bool:
    """True if a folder has this file alone, as it was before."""
    return (path.read_bytes(), names(path.parent)) == (OLD, [path.name])


def is_saved(path: Path) -> bool:
    """True if a folder has the model's file alone."""
    return FlyNNClassifier.load(path).counts_ == MODEL.counts_ and names(
        path.parent
    ) == [path.name]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file of this process gets longer than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


# -------- what is kept


@pytest.mark.parametrize("before", [0o600, 0o640, 0o444, 0o666, 0o400])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, before, umask):
    path = tmp_path / "model.npz"
    path.write_bytes(OLD)
    path.chmod(before)
    MODEL.save(path)
    assert mode(path) == before
    assert is_saved(path)


def test_a_new_file_has_the_mode_of_the_umask_or_the_one_given(tmp_path, umask):
    write(tmp_path / "a")
    write(tmp_path / "b", mode=0o600)
    assert mode(tmp_path / "a") == 0o640
    assert mode(tmp_path / "b") == 0o600


def test_nobody_else_can_read_a_private_file_while_it_is_written(
    tmp_path,
):
    path = tmp_path / "model.npz"
    write(path, mode=0o600)
    with writing(path) as stream:
        assert [mode(partial) for partial in tmp_path.glob(".model.npz.partial.*")] == [
            0o600
        ]
        stream.write(b"x")


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path, exists, relative):
    (tmp_path / "disk").mkdir()
    target = tmp_path / "disk" / "v1.npz"
    link = tmp_path / "model.npz"
    if exists:
        target.write_bytes(b"old")
    if relative:
        link.symlink_to(Path("disk", "v1.npz"))
    else:
        link.symlink_to(target)
    MODEL.save(link)
    assert link.is_symlink()
    assert not target.is_symlink()
    assert is_saved(target)
    assert names(tmp_path) == ["disk", "model.npz"]


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = names(tmp_path)
    for name in ("folder", "pipe", "loop", "missing/file", "pipe/file", "a" * 300):
        with raises(WriteError, field=name.rpartition("/")[2][:80]):
            MODEL.save(tmp_path / name)
    for name in ("folder", "pipe"):
        with raises(WriteError, field=name):
            write(tmp_path / name, mode=0o600)
    assert names(tmp_path) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with raises(WriteError, field="null"):
        MODEL.save(os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


# -------- disks that are full, broken or read-only


@pytest.mark.parametrize(
    "cause", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES]
)
@pytest.mark.parametrize("where", ["open", "fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, where, cause):
    path = tmp_path / "model.npz"
    write(path, OLD)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(cause, "whatever it says", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, where, fails)
        with raises(
            WriteError, field="model.npz", got=os.strerror(cause), errno=cause
        ) as error:
            MODEL.save(path)
    assert str(tmp_path) not in str(error.value)
    assert {FlyNNError, OSError} <= {*type(error.value).mro()}
    assert error.value.__notes__ == [f"in {tmp_path}"]
    assert is_untouched(path)


@pytest.mark.parametrize("room", [0, 10, 300])
def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(tmp_path, room):
    path = tmp_path / "model.npz"
    write(path, OLD)
    with full_after(room), raises(WriteError, field="model.npz", errno=errno.EFBIG):
        MODEL.save(path)
    assert is_untouched(path)


@pytest.mark.parametrize(
    "error", [KeyError("x"), DataError("y"), KeyboardInterrupt()], ids=repr
)
def test_an_error_in_the_block_is_raised_as_it_is(error, tmp_path):
    write(tmp_path / "a", OLD)

    def spoil() -> None:
        with writing(tmp_path / "a") as stream:
            stream.write(b"half")
            raise error

    with pytest.raises(type(error)) as raised:
        spoil()
    assert raised.value is error
    assert is_untouched(tmp_path / "a")


# -------- processes that are killed, or save at once

KILLED = """
import os, signal, sys
from flwr_flynn import _files
with _files.writing(sys.argv[1]) as stream:
    stream.write(b"x" * 10**6)
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_save_leaves_one_a_day_later_removes(tmp_path):
    path = tmp_path / "model.npz"
    write(path, OLD, mode=0o400)
    for number in (1, 2):
        assert (
            subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode
            == -signal.SIGKILL
        )
        assert path.read_bytes() == OLD
        assert len(names(tmp_path)) == 1 + number
    old, young = tmp_path.glob(".model.npz.partial.*")
    for other in (
        old,
        tmp_path / ".model.npy.partial.1",
        tmp_path / "model.npz.partial",
    ):
        other.touch()
        os.utime(other, (0, time.time() - 25 * 3600))
    MODEL.save(path)
    assert FlyNNClassifier.load(path).counts_ == MODEL.counts_
    assert names(tmp_path) == sorted(
        [".model.npy.partial.1", young.name, "model.npz", "model.npz.partial"]
    )


SAVER = """
import sys
from flwr_flynn import _files
for i in range(40):
    with _files.writing(sys.argv[1]) as stream:
        for _ in range(20):
            stream.write(sys.argv[2].encode() * 1000)
            stream.flush()
"""


@pytest.mark.parametrize("n_killed", [0, 2])
def test_processes_that_save_at_once_succeed_whoever_is_killed(n_killed, tmp_path):
    path = tmp_path / "model.npz"
    savers = [
        subprocess.Popen([sys.executable, "-c", SAVER, str(path), letter])
        for letter in "abcd"
    ]
    seen = set()
    while any(saver.poll() is None for saver in savers):
        if path.exists():
            content = path.read_bytes()
            assert content == content[:1] * 20_000
            seen.add(content[:1])
            for saver in savers[:n_killed]:
                saver.kill()
    assert [saver.returncode for saver in savers[n_killed:]] == [0] * (4 - n_killed)
    assert seen
    write(path)
    assert {
        name for name in names(tmp_path) if not name.startswith(".model.npz.partial.")
    } == {"model.npz"}


def test_threads_that_save_at_once_all_succeed(tmp_path):
    path = tmp_path / "model.npz"
    with ThreadPoolExecutor(4) as pool:
        for saved in [pool.submit(MODEL.save, path) for _ in range(80)]:
            saved.result()
    assert is_saved(path)


def test_a_save_waits_for_no_other_and_the_last_to_end_stays(tmp_path):
    with writing(tmp_path / "a") as stream:
        write(tmp_path / "a", b"second")
        stream.write(b"first")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


# -------- arrays


def npy(header: str, entries: bytes = b"", version: bytes = b"\1\0") -> bytes:
    n_bytes = 4
    if version == b"\1\0":
        n_bytes = 2
    size = len(header.encode()).to_bytes(n_bytes, "little")
    return b"\x93NUMPY" + version + size + header.encode() + entries


ARRAYS: list[Any] = [
    np.array(5),
    np.array(["ab", "c"]),
    np.array([b"ab"]),
    np.array([True]),
    np.zeros((0, 3)),
    np.zeros((1, 1, 1, 1, 2), complex),
    np.array(["2020-01-01"], "M8[ns]"),
    np.arange(6, dtype="<u2").reshape(2, 3),
    np.arange(6.0).reshape(2, 3, order="F"),
    np.arange(3, dtype=">f4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_that_numpy_wrote_are_read(tmp_path, array, version):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", stream.getvalue())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        read = npz_array(archive, "a.npy", "a", DataError)
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive, suppress(DataError):
        assert npz_array(archive, "a.npy", "a", DataError, max_bytes=1).nbytes <= 1


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n",
        "{'descr':'<f8','fortran_order':False,'shape':(2,3)}",
        '{"descr": "<f8", "fortran_order": False, "shape": (2, 3)} ' + " " * 30 + "\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2L, 3L), }\n",
    ],
)
def test_headers_of_other_writers_are_read(header):
    assert npy_header(io.BytesIO(npy(header)), "a", DataError) == (
        (2, 3),
        np.dtype("<f8"),
        False,
    )


PLAIN = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n"


OTHER_SHAPES = [
    "2, \0 3",
    "2 3",
    "-2, 3",
    "2, True",
    "1, " * 33,
    "1, " * 300,
    "1" * 900,
    "9" * 10 + ", " + "9" * 10,
]
OTHER_SHAPES += [
    OTHER_SHAPES[-1] + ", 0",
    "1" + " " * 900 + "x",
    "L" * 900,
    " , " * 300,
    "1 " * 300,
]
OTHER_TYPES = ["|O", "<f3", "<U0", "<U9999999999", "<M8[eons]"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\3\4",
        npy(PLAIN)[:-1],
        npy(PLAIN)[:9],
        npy(PLAIN, version=b"\4\0"),
        npy("(" * 900),
        # A tokenize.TokenError in NumPy's reader.
        npy(PLAIN.replace("'shape': (2, 3), }", "'shape': (2, 3")),
        *(npy(PLAIN.replace("2, 3", shape)) for shape in OTHER_SHAPES),
        *(npy(PLAIN.replace("<f8", dtype)) for dtype in OTHER_TYPES),
        npy(PLAIN.replace("'<f8'", "[('a', '<f8')]")),
        npy(PLAIN.replace("False", "exit()")),
        npy(PLAIN + " " * 2000),
        npy(PLAIN, version=b"\2\0").replace(b"\2\0<", b"\2\0\xff\xff\xff\xff<"),
    ],
)
@pytest.mark.parametrize("error", [DataError, PayloadError])
def test_headers_that_are_none_are_refused_by_the_error_asked_for(content, error):
    with raises(error, field="the array"):
        npy_header(io.BytesIO(content), "the array", error)
