"""A federation's file: read as it was written, or refused whole; one run at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError, ModelFileError
from flwr_flynn.federated.federation_file import Federation, Member, exclusive, main
from flwr_flynn.federated.protocol import Terms
from flwr_flynn.model import model_file
from flwr_flynn.model.model import Model, ModelMember, Readout
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.fakes import CLASSES, SPEC, TERMS, ClassCounts, counts_of, points

COUNTS = {name: counts_of(*points(n, seed=n)) for name, n in (("Basel", 5), ("Ulm", 8), ("Bern", 0))}
MEMBERS = tuple(
    Member(name, str(i), "ab" * 32 if i else "", tuple(counts.n_per_class.tolist()), counts.sha256(), "77")
    for i, (name, counts) in enumerate(COUNTS.items())
)
FEDERATION = Federation(TERMS, COUNTS["Basel"] + COUNTS["Ulm"] + COUNTS["Bern"], MEMBERS, decay_=0.25)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert (loaded.terms, loaded.counts, loaded.members) == (TERMS, FEDERATION.counts, FEDERATION.members)
    assert (loaded.decay, loaded.decay_, loaded.rule, loaded.guarantee) == ("auto", 0.25, "balanced", None)
    assert [str(member) for member in loaded.members] == ["Basel", "Bern", "Ulm"]
    assert loaded.find("2", "", "") == [1]
    assert loaded.find("x", "ab" * 32, "") == [1, 2]
    assert loaded.find("x", "", "Basel") == [0]
    assert loaded.find("x", "", "") == []
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "f.npz").read_bytes()


def test_a_private_federation_keeps_its_mechanism_and_guarantee(tmp_path: Path) -> None:
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 1.0)
    released = [SimulatedRelease(mechanism, seed).release(counts) for seed, counts in enumerate(COUNTS.values())]
    terms = Terms([SPEC], CLASSES, "noisy", None, mechanism)
    members = [
        replace(member, sizes=None, sha256=release.sha256()) for member, release in zip(MEMBERS, released, strict=True)
    ]
    total = released[0] + released[1] + released[2]
    Federation(terms, total, members, guarantee="words").save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert (loaded.terms.mechanism, loaded.guarantee, loaded.counts.noise) == (mechanism, "words", total.noise)
    assert loaded.model.guarantee_ == "words"
    with pytest.raises(ModelFileError, match="expected 3 members, one for each release, got 2"):
        Federation(terms, total, members[:2])
    with pytest.raises(ModelFileError, match="expected a mechanism for noisy counts, got none in mode plain"):
        Federation(TERMS, total, members)


def test_the_exported_model_leaves_the_parties_out(tmp_path: Path) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    FEDERATION.model.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert sorted(file.files) == ["counts_0", "digest", "header"]
        assert b"Basel" not in file["header"].tobytes()
    ours, theirs = (FlyNNClassifier.load(tmp_path / name) for name in ("f.npz", "model.npz"))
    assert ours.counts_ == theirs.counts_
    assert ours.decay_ == theirs.decay_ == 0.25
    with pytest.raises(ModelFileError, match="a model without a ledger"):
        Federation.load(tmp_path / "model.npz")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: ledger.pop("members"),
        lambda ledger: ledger.pop("decay"),
        lambda ledger: ledger.update(format=2),
        lambda ledger: ledger.update(mode="loud"),
        lambda ledger: ledger.update(mode="secure", bound=3),
        lambda ledger: ledger.update(bound=4),
        lambda ledger: ledger.update(mechanism={"kind": "laplace"}),
        lambda ledger: ledger.update(members={}),
        lambda ledger: ledger.update(members=[]),
        lambda ledger: ledger.update(format=True),
        lambda ledger: ledger.update(format=1.0),
        lambda ledger: ledger["members"].pop(),
        lambda ledger: ledger["members"].append(3),
        lambda ledger: ledger["members"][0].pop("key"),
        lambda ledger: ledger["members"][0].update(name=5),
        lambda ledger: ledger["members"][0].update(name="a\nb"),
        lambda ledger: ledger["members"][0].update(name="a" * 65),
        lambda ledger: ledger["members"][0].update(key="AB" * 32),
        lambda ledger: ledger["members"][0].update(sha256="ab"),
        lambda ledger: ledger["members"][0].update(sizes=[1, 2]),
        lambda ledger: ledger["members"][0].update(sizes=[1, 2, True]),
        lambda ledger: ledger["members"][0].update(sizes=[-1, 2, 4]),
        lambda ledger: ledger["members"][0].update(sizes=[2**70, 2, 4]),
        lambda ledger: ledger["members"][0].update(sizes=None),
        lambda ledger: ledger["members"][0].update(sha256=None),
        lambda ledger: ledger["members"][0].update(sha256=None, sizes=None),
        lambda ledger: [member.update(sha256=None, sizes=None) for member in ledger["members"]],
        lambda ledger: ledger.update(mode="secure", bound=256),
        lambda ledger: ledger["members"][1].update(sizes=[100, 0, 0]),
    ],
)
def test_a_ledger_that_cannot_be_is_refused(change: Change, tmp_path: Path) -> None:
    ledger: dict[str, Any] = {
        "format": 1,
        "mode": "plain",
        "bound": None,
        "mechanism": None,
        "decay": "auto",
        "members": [json.loads(json.dumps(asdict(member))) for member in MEMBERS[:2]],
    }
    member = ModelMember(SPEC, COUNTS["Basel"] + COUNTS["Ulm"], Readout("balanced", 0.5, 0.2))
    model = Model((member,), np.array(CLASSES))
    model_file.write(tmp_path / "f.npz", model, ledger)
    assert len(Federation.load(tmp_path / "f.npz").members) == 2
    change(ledger)
    model_file.write(tmp_path / "f.npz", model, ledger)
    with pytest.raises(ModelFileError, match=r"f\.npz: "):
        Federation.load(tmp_path / "f.npz")


@pytest.mark.parametrize("decay", ["bogus", 5.0])
def test_a_decay_that_is_none_is_refused_with_the_file(decay: Any, tmp_path: Path) -> None:
    ledger = {"format": 1, "mode": "plain", "bound": None, "mechanism": None, "decay": decay, "members": []}
    nothing = ModelMember(SPEC, ClassCounts.zeros(TERMS.hasher, 3), Readout("balanced", 0.5))
    model_file.write(tmp_path / "f.npz", Model((nothing,), np.array(CLASSES)), ledger)
    with pytest.raises(ModelFileError, match=r"f\.npz: inconsistent: decay: expected a number from 0 below 1"):
        Federation.load(tmp_path / "f.npz")


def test_a_file_of_format_2_keeps_the_decay_of_the_user() -> None:
    federation = Federation.load(Path(__file__).with_name("federation-format-2.npz"))
    assert (federation.decay, federation.rule) == ("auto", "balanced")
    assert [(member.name, member.run) for member in federation.members] == [("Basel", "1")]
    assert federation.counts.sha256() == federation.members[0].sha256


def test_an_altered_ledger_shows(tmp_path: Path) -> None:
    import zipfile

    FEDERATION.save(tmp_path / "f.npz")
    with zipfile.ZipFile(tmp_path / "f.npz") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["extra.npy"] = parts["extra.npy"].replace(b"Basel", b"Paris")
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(ModelFileError, match="digest: expected the SHA-256"):
        Federation.load(tmp_path / "f.npz")


def test_a_crash_while_saving_leaves_the_file_that_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    FEDERATION.save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flwr_flynn.model.model_file.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        Federation(TERMS, ClassCounts.zeros(TERMS.hasher, 3), ()).save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["f.npz"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    with (
        exclusive(path),
        pytest.raises(ConfigError, match=r"^federation: another run has 'f\.npz'"),
        exclusive(path),
    ):
        pass
    with exclusive(path), exclusive(tmp_path / "other.npz"):
        pass
    with pytest.raises(ConfigError, match="cannot be locked"), exclusive(tmp_path / "nowhere" / "f.npz"):
        pass


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with (
        pytest.raises(ConfigError, match=r"^federation: 'f\.npz' cannot be locked \(No locks available\)"),
        exclusive(tmp_path / "f.npz"),
    ):
        pass


def test_the_ledger_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    assert main(["show", str(tmp_path / "f.npz")]) == 0
    out = capsys.readouterr().out
    assert "3 parties" in out
    assert "Basel" in out
    assert MEMBERS[0].sha256
    assert MEMBERS[0].sha256[:16] in out
    assert main(["show", str(tmp_path / "no.npz")]) == 1
    assert main(["drop"]) == 2
