"""A federation's file: read as it was written, or refused whole; one run at a time."""

from __future__ import annotations

import errno
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.cli import main
from flwr_flynn.errors import ConfigError, ModelFileError, WriteError
from flwr_flynn.federated.federation_file import Federation, exclusive, summary
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs
from flwr_flynn.model.gram import LearnedGram
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.fakes import CLASSES, HASHER, RUN, SPEC, counts_of, federation_of, points
from tests.raising import raises

COUNTS = {name: counts_of(*points(n, seed=n)) for name, n in (("Basel", 5), ("Ulm", 8), ("Bern", 0))}
MEMBERS = tuple(
    Member(name, str(i), "ab" * 32 if i else "", tuple(counts.n_per_class.tolist()), (counts.sha256(),), "77")
    for i, (name, counts) in enumerate(COUNTS.items())
)
READOUT = ScoringRule("balanced", 0.25, 0.5)
TOTAL = COUNTS["Basel"] + COUNTS["Ulm"] + COUNTS["Bern"]
FEDERATION = federation_of(RUN, CountsOfSpecs((TOTAL,)), MEMBERS, (READOUT,))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    for phase in ("", "counts", "selection", "evaluation", "a phase of one's own"):
        replace(FEDERATION, phase=phase).save(tmp_path / "f.npz")
        loaded = Federation.load(tmp_path / "f.npz")
        assert (loaded.run_spec, loaded.totals, loaded.members) == (RUN, FEDERATION.totals, FEDERATION.members)
        assert (loaded.shared.members[0].scoring, loaded.phase, loaded.counts) == (READOUT, phase, TOTAL)
        assert [str(member) for member in loaded.members] == ["Basel", "Bern", "Ulm"]
        loaded.save(tmp_path / "again.npz")
        assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "f.npz").read_bytes()


def test_the_order_in_which_members_came_does_not_show(tmp_path: Path) -> None:
    replace(FEDERATION, members=MEMBERS[::-1]).save(tmp_path / "1.npz")
    FEDERATION.save(tmp_path / "2.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_the_sums_of_several_specs_are_kept_before_the_selection(tmp_path: Path) -> None:
    specs = [SPEC, replace(SPEC, seed=8)]
    X, y = points(9)
    parts = tuple(ClassCounts.from_data(FlyHash(spec), X, RUN.codes(y), 3) for spec in specs)
    totals = CountsOfSpecs(parts)
    member = Member("a", "1", sizes=tuple(parts[0].n_per_class.tolist()), sha256=totals.sha256)
    made = federation_of(RunSpec(specs, CLASSES), totals, [member], (READOUT,) * 2, (), "selection", 3)
    made.save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert (loaded.run_spec, loaded.totals, loaded.members) == (made.run_spec, totals, (member,))
    assert (loaded.is_selected, loaded.max_members) == (False, 3)
    assert [each.scoring for each in loaded.shared.members] == [READOUT] * 2
    for wrong in (made.shared.members[:1], made.shared.members[::-1]):
        with raises(ModelFileError, field="model"):
            replace(made, shared=replace(made.shared, members=wrong))
    with raises(ModelFileError, field="sha256"):
        replace(made, members=[replace(member, sha256=member.sha256[:1])])


def test_a_committee_is_kept_with_its_scorings_and_weights(tmp_path: Path) -> None:
    specs = [SPEC, replace(SPEC, seed=8)]
    X, y = points(9)
    totals = CountsOfSpecs(tuple(ClassCounts.from_data(FlyHash(spec), X, RUN.codes(y), 3) for spec in specs))
    member = Member("a", "1", sizes=tuple(totals.parts[0].n_per_class.tolist()), sha256=totals.sha256)
    scorings = (READOUT, ScoringRule("balanced", 0.5, 2.0))
    made = federation_of(RunSpec(specs, CLASSES), totals, [member], scorings, (0.75, 0.25))
    made.save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert [each.scoring for each in loaded.shared.members] == list(scorings)
    assert loaded.is_selected
    assert loaded.model.model_.sha256() == FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256()
    assert [each.weight for each in loaded.model.model_.members] == [0.75, 0.25]


PAIRS = LearnedGram.of([replace(SPEC, hash_dim=16)], points(60)[0], RUN.codes(points(60)[1]), 3).scoring
assert PAIRS is not None
PAIRED = replace(FEDERATION.shared, gram=PAIRS)


@pytest.mark.parametrize("phase", ["", "evaluation"])
def test_the_gram_matrix_is_kept(phase: str, tmp_path: Path) -> None:
    made = replace(FEDERATION, phase=phase, shared=PAIRED)
    made.save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert PAIRS is not None
    gram = loaded.shared.gram
    assert gram is not None
    assert gram.sha256() == PAIRS.sha256()
    assert (loaded.run_spec, loaded.totals, loaded.members, loaded.phase) == (RUN, made.totals, made.members, phase)
    model = loaded.model.model_
    assert model.sha256() == made.model.model_.sha256() == FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256()
    assert model.sha256() != FEDERATION.model.model_.sha256()
    loaded.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "f.npz").read_bytes()


@pytest.mark.parametrize("phase", ["counts", "selection", "held-out", "gram", "one's own"])
def test_the_gram_matrix_of_a_run_that_has_not_had_them_are_refused(phase: str, tmp_path: Path) -> None:
    with raises(ModelFileError, field="phase"):
        replace(FEDERATION, phase=phase, shared=PAIRED)
    path = tmp_path / "f.npz"
    replace(FEDERATION, shared=PAIRED).save(path)
    with model_file.reading(path, 2**24) as (model, roster):
        model_file.write(path, model, extra={**roster, "phase": phase})
    with raises(ModelFileError, field="phase"):
        Federation.load(path)


def test_a_private_federation_keeps_its_mechanism_and_guarantee(tmp_path: Path) -> None:
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 1.0)
    released = [SimulatedRelease(mechanism, seed).release(counts) for seed, counts in enumerate(COUNTS.values())]
    run = RunSpec(SPEC, CLASSES, mechanism)
    members = [
        replace(member, sizes=None, sha256=(release.sha256(),))
        for member, release in zip(MEMBERS, released, strict=True)
    ]
    totals = CountsOfSpecs((released[0] + released[1] + released[2],))
    federation_of(run, totals, members, (READOUT,)).save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert (loaded.run_spec.mechanism, loaded.counts.noise) == (mechanism, totals.parts[0].noise)
    assert loaded.model.guarantee_ == mechanism.guarantee()
    for wrong in ((run, totals, members[:2]), (RUN, totals, members)):
        with raises(ModelFileError, field="roster"):
            federation_of(*wrong, (READOUT,))


def test_members_of_a_secure_sum_are_kept_without_figures(tmp_path: Path) -> None:
    run = RunSpec(SPEC, CLASSES, bound=256)
    hidden = [replace(member, sizes=None, sha256=()) for member in MEMBERS]
    federation_of(run, FEDERATION.totals, hidden, (READOUT,)).save(tmp_path / "f.npz")
    loaded = Federation.load(tmp_path / "f.npz")
    assert loaded.run_spec.is_secure
    assert [row["examples"] for row in summary(loaded)] == ["hidden"] * 3
    with raises(ModelFileError, field="sha256"):
        federation_of(run, FEDERATION.totals, MEMBERS, (READOUT,))


def test_a_file_gives_the_model_no_other_prior_and_no_guarantee(tmp_path: Path) -> None:
    """They follow from the counts and from the mechanism."""
    path = tmp_path / "f.npz"
    FEDERATION.save(path)
    with model_file.reading(path, 2**24) as (model, roster):
        forged = replace(model, prior=np.log([0.98, 0.01, 0.01]), guarantee="epsilon 0.001")
        model_file.write(path, forged, extra=roster)
    found = Federation.load(path).model.model_
    assert found.sha256() == FEDERATION.shared.sha256()
    np.testing.assert_allclose(np.exp(found.prior), FEDERATION.counts.n_per_class / FEDERATION.counts.n_examples)
    assert found.guarantee == FEDERATION.run_spec.guarantee is None


def test_the_exported_model_leaves_the_parties_out(tmp_path: Path) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    FEDERATION.model.save(tmp_path / "model.npz")
    assert b"Basel" not in b"".join(zipfile.ZipFile(tmp_path / "model.npz").read(name) for name in names(tmp_path))
    ours, theirs = (FlyNNClassifier.load(tmp_path / name) for name in ("f.npz", "model.npz"))
    assert ours.counts_ == theirs.counts_
    assert ours.model_.member.scoring.decay == theirs.model_.member.scoring.decay == 0.25
    with raises(ModelFileError, field="roster", got="none"):
        Federation.load(tmp_path / "model.npz")


def names(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "model.npz") as archive:
        return archive.namelist()


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda roster: roster.pop("members"),
        lambda roster: roster.update(format=4),
        lambda roster: roster.pop("selected"),
        lambda roster: roster.update(n_aligned=1, reference="00"),
        lambda roster: roster.update(selected=1),
        lambda roster: roster.update(selected=None),
        lambda roster: roster.pop("max_members"),
        lambda roster: roster.pop("thorough"),
        lambda roster: roster.update(thorough=1),
        lambda roster: roster.update(max_members=0),
        lambda roster: roster.update(max_members=True),
        lambda roster: roster.update(max_members="4"),
        lambda roster: roster.update(mode="loud"),
        lambda roster: roster.update(mode="secure", bound=3),
        lambda roster: roster.update(bound=4),
        lambda roster: roster.update(mechanism={"kind": "laplace"}),
        lambda roster: roster.update(phase=3),
        lambda roster: roster.update(phase="a\nb"),
        lambda roster: roster.update(phase="a" * 65),
        lambda roster: roster.pop("phase"),
        lambda roster: roster.update(members={}),
        lambda roster: roster.update(members=[]),
        lambda roster: roster.update(format=True),
        lambda roster: roster.update(format=1.0),
        lambda roster: roster["members"].pop(),
        lambda roster: roster["members"].append(3),
        lambda roster: roster["members"][0].pop("key"),
        lambda roster: roster["members"][0].update(name=5),
        lambda roster: roster["members"][0].update(name="a\nb"),
        lambda roster: roster["members"][0].update(name="a" * 65),
        lambda roster: roster["members"][0].update(key="AB" * 32),
        lambda roster: roster["members"][0].update(sha256=["ab"]),
        lambda roster: roster["members"][0].update(sizes=[1, 2]),
        lambda roster: roster["members"][0].update(sizes=[1, 2, True]),
        lambda roster: roster["members"][0].update(sizes=[-1, 2, 4]),
        lambda roster: roster["members"][0].update(sizes=[2**70, 2, 4]),
        lambda roster: roster["members"][0].update(sizes=None),
        lambda roster: roster["members"][0].update(sha256=None),
        lambda roster: roster["members"][0].update(sha256=None, sizes=None),
        lambda roster: [member.update(sha256=None, sizes=None) for member in roster["members"]],
        lambda roster: roster.update(mode="secure", bound=256),
        lambda roster: roster["members"][1].update(sizes=[100, 0, 0]),
    ],
)
def test_a_roster_that_cannot_be_is_refused(change: Change, tmp_path: Path) -> None:
    kept = ("name", "node", "key", "sizes", "sha256", "run")
    roster: dict[str, Any] = {
        "format": 3,
        "mode": "plain",
        "bound": None,
        "mechanism": None,
        "phase": "",
        "selected": True,
        "max_members": 1,
        "thorough": False,
        "members": [json.loads(json.dumps({name: asdict(each)[name] for name in kept})) for each in MEMBERS[:2]],
    }
    totals = COUNTS["Basel"] + COUNTS["Ulm"]
    model = Model((ModelMember(SPEC, totals, READOUT),), np.array(CLASSES), None, None)
    model_file.write(tmp_path / "f.npz", model, extra=roster)
    assert len(Federation.load(tmp_path / "f.npz").members) == 2
    change(roster)
    model_file.write(tmp_path / "f.npz", model, extra=roster)
    with pytest.raises(ModelFileError) as caught:
        Federation.load(tmp_path / "f.npz")
    assert caught.value.field is not None
    assert str(caught.value).startswith(f"{tmp_path / 'f.npz'}: ")


def test_an_altered_roster_shows(tmp_path: Path) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    with zipfile.ZipFile(tmp_path / "f.npz") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["extra.npy"] = parts["extra.npy"].replace(b"Basel", b"Paris")
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with raises(ModelFileError, field="digest"):
        Federation.load(tmp_path / "f.npz")


def test_a_crash_while_saving_leaves_the_file_that_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.npz"
    FEDERATION.save(path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flwr_flynn.model.model_file.os.fsync", full)
    with raises(WriteError, field="f.npz", errno=28):
        federation_of(RUN, CountsOfSpecs((ClassCounts.zeros(HASHER, 3),)), (), (READOUT,)).save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["f.npz"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    with exclusive(path), raises(ConfigError, field="federation", got="f.npz"), exclusive(path):
        pass
    with exclusive(path), exclusive(tmp_path / "other.npz"):
        pass
    with (
        raises(ConfigError, field="federation", expected="a file that can be locked"),
        exclusive(tmp_path / "nowhere" / "f.npz"),
    ):
        pass


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with (
        raises(ConfigError, field="federation", expected="a file that can be locked", got="No locks available"),
        exclusive(tmp_path / "f.npz"),
    ):
        pass


def test_the_roster_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FEDERATION.save(tmp_path / "f.npz")
    assert main(["show", str(tmp_path / "f.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["parties"] == summary(FEDERATION)
    assert [(row["party"], row["sha256"]) for row in summary(FEDERATION)] == [
        (member.name, member.sha256[0][:16]) for member in FEDERATION.members
    ]
    assert main(["show", str(tmp_path / "no.npz")]) == 1
