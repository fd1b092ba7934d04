"""Cost of a party to the server: memory does not depend on the number of parties."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulations import __main__ as command
from simulations import scale
from tests.simulations.tables import read


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True])
def test_memory_beside_the_replies_does_not_grow_with_the_parties(noisy):
    few = scale.at_once(4, noisy)
    many = scale.at_once(64, noisy)
    assert many["kept MiB"] < few["kept MiB"] + 0.5
    # Sums are in int64; packing wider counts takes some more.
    assert many["beside replies, peak MiB"] < 13 * 1.25
    few = scale.one_by_one(4, noisy)
    many = scale.one_by_one(64, noisy)
    for name in ("one by one, peak MiB", "one by one, kept MiB"):
        assert many[name] < few[name] + 0.5


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="Linux tells a process's share of memory",
)
def test_memory_of_processes_is_that_of_those_with_the_home(
    monkeypatch,
):
    def read(path: Path) -> bytes:
        if path.name == "environ":
            return b"FLWR_HOME=/here\0"
        return b""

    monkeypatch.setattr(Path, "read_bytes", read)
    assert scale.Watch(Path("/here")).sizes()[os.getpid()] > 2**20
    assert not scale.Watch(Path("/there")).sizes()


@pytest.mark.slow
def test_a_federation_has_the_counts_of_the_pooled_samples(tmp_path):
    assert (
        command.main(["scale", "--quick", "--where", "process", "--out", str(tmp_path)])
        == 0
    )
    rows = read(tmp_path / "federations.csv")
    assert [(row["where"], row["parties"], row["pooled"]) for row in rows] == [
        ("process", "10", "the same"), ("process", "100", "the same"),
    ]  # fmt: skip
    assert rows[0]["sha256"] in (tmp_path / "summary.md").read_text(encoding="utf-8")
