"""Faults around a message or a clock, and their outcome.

Faults of disks are in test_files, those of processes in integration/test_faults.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from tests.fakes import RUN, counts_of, good_reply, points, tally_of
from tests.flower.networks import Legacy, federation

ROOT = Path(__file__).parents[1]


# -------- replies

REPLY = good_reply("1", 9)
COUNTED = CountsOfSpecs((counts_of(*points(9)),))


def read(place: int, content: bytes) -> CountsOfSpecs | None:
    """The counts in a reply with other bytes at a place; None where `read` refuses it."""
    tensors = [*REPLY.tensors[:place], content, *REPLY.tensors[place + 1 :]]
    try:
        return tally_of(CountsRequest(RUN)).read(
            codec.read_tensors(tensors), replace(REPLY, tensors=tensors), None
        )
    except PayloadError:
        return None


@pytest.mark.parametrize("place", [0, 1])
def test_a_reply_that_is_truncated_or_has_a_flipped_bit_is_refused_or_says_the_same(
    place,
):
    tensor = REPLY.tensors[place]
    assert read(place, tensor) == COUNTED
    assert all(read(place, tensor[:length]) is None for length in range(len(tensor)))
    read_counts = []
    for bit in range(8 * len(tensor)):
        flipped = bytearray(tensor)
        flipped[bit // 8] ^= 1 << bit % 8
        read_counts.append(read(place, bytes(flipped)))
    assert all(counts in (None, COUNTED) for counts in read_counts)
    # Some bits say nothing, such as the minor version, which no reader looks at.
    assert 0 < sum(counts is not None for counts in read_counts) < 100


# -------- clocks and locales

SCRIPT = """
import hashlib, sys
from flwr.server import Server
from tests.fakes import CLASSES, SPEC, Proxy, manager, points
from flwr_flynn import FlyNNClient, FlyNNStrategy
from flwr_flynn.app.data import datasets
X, y = points(30)
proxies = [Proxy(str(i), FlyNNClient(X[i::3], y[i::3])) for i in range(3)]
strategy = FlyNNStrategy(spec=SPEC, classes=CLASSES, min_available_clients=3, min_parties=3)
Server(client_manager=manager(*proxies), strategy=strategy).fit(strategy.num_rounds, timeout=None)
strategy.model.save(sys.argv[1])
loaded = datasets.load_dataset(sys.argv[2])
labels = [loaded.classes[code] for code in loaded.y]
print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest(), loaded.X.tolist(), labels)
"""


def german(folder: Path) -> dict[str, str]:
    """An environment in which one half is 0,5."""
    made = None
    if shutil.which("localedef"):
        command = [
            "localedef",
            "-i",
            "de_DE",
            "-f",
            "UTF-8",
            str(folder / "de_DE.UTF-8"),
        ]
        made = subprocess.run(command, capture_output=True, check=False)
    if made is None or not (folder / "de_DE.UTF-8").exists():
        pytest.skip("this machine has no sources of locales")
    return {"LOCPATH": str(folder), "LC_ALL": "de_DE.UTF-8"}


@pytest.mark.slow
def test_locale_time_zone_and_encoding_make_no_difference(tmp_path):
    (tmp_path / "a.csv").write_text(
        "a,b,label\n0.5,1e-3,é\n1.5,-2,x\n", encoding="utf-8"
    )
    there = {
        "LC_ALL": "C",
        "TZ": "Pacific/Kiritimati",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    # The locale must be set by the process itself for C's functions to mind it.
    set_locale = (
        "import locale; locale.setlocale(locale.LC_ALL, ''); assert "
        "f'{0.5:n}' == '0,5'\n"
    )
    here = {"TZ": "UTC", "PYTHONIOENCODING": "utf-8"}
    printed = set()
    for place, (environment, prefix) in enumerate(
        [(here, ""), (there, ""), (german(tmp_path), set_locale)]
    ):
        command = [
            sys.executable,
            "-c",
            prefix + SCRIPT,
            str(tmp_path / f"{place}.npz"),
            str(tmp_path / "a.csv"),
        ]
        environment = os.environ | environment
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        printed.add(done.stdout)
    assert len(printed) == 1
    assert "[[0.5, 0.001], [1.5, -2.0]] ['é', 'x']" in printed.pop()


@pytest.mark.parametrize(
    "clock",
    [lambda: 0.0, lambda: -1e9, lambda: 2.0**40, iter(range(10**9, 0, -7)).__next__],
)
def test_a_wrong_clock_makes_no_difference(clock, tmp_path, monkeypatch):
    def run(path: Path) -> bytes:
        network = Legacy(federation(3))
        strategy = network.make(min_parties=3, fraction_evaluate=0.0)
        network.run(strategy, 1)
        assert all(
            party.seconds is None or party.seconds >= 0 for party in strategy.parties
        )
        strategy.model.save(path)
        return path.read_bytes()

    right = run(tmp_path / "right.npz")
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(time, name, clock)
    wrong = run(tmp_path / "wrong.npz")
    monkeypatch.undo()
    assert wrong == right
