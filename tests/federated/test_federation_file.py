"""A federation's file: read as it was written, or refused whole; one run at a time."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.cli import main
from flwr_flynn.errors import ConfigError, ModelFileError
from flwr_flynn.federated.federation_file import Federation, exclusive, roster_rows
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts, SimulatedRelease
from tests.fakes import CLASSES, RUN, SPEC, counts_of, federation_of, make, points
from tests.raising import raises

COUNTS = {
    name: counts_of(*points(n, seed=n))
    for name, n in (("Basel", 5), ("Ulm", 8), ("Bern", 0))
}
MEMBERS = tuple(
    Member(
        name,
        str(i),
        "ab" * 32 if i else "",
        tuple(counts.n_per_class.tolist()),
        (counts.sha256(),),
        "77",
    )
    for i, (name, counts) in enumerate(COUNTS.items())
)
READOUT = ScoringRule("balanced", 0.25, 0.5)
TOTAL = COUNTS["Basel"] + COUNTS["Ulm"] + COUNTS["Bern"]
FEDERATION = federation_of(RUN, CountsOfSpecs((TOTAL,)), MEMBERS, (READOUT,))


def again(federation: Federation, folder: Path) -> Federation:
    """The federation as it is read from its file, which it writes again."""
    federation.save(folder / "f.npz")
    loaded = Federation.load(folder / "f.npz")
    loaded.save(folder / "again.npz")
    assert (folder / "again.npz").read_bytes() == (folder / "f.npz").read_bytes()
    facts = ("run_spec", "totals", "phase", "is_selected", "max_members")
    assert [getattr(loaded, name) for name in facts] == [
        getattr(federation, name) for name in facts
    ]
    assert loaded.members == tuple(sorted(federation.members, key=str))
    assert [member.scoring for member in loaded.shared.members] == [
        member.scoring for member in federation.shared.members
    ]
    return loaded


def test_the_order_in_which_members_came_does_not_show(tmp_path):
    assert [str(member) for member in again(FEDERATION, tmp_path).members] == [
        "Basel",
        "Bern",
        "Ulm",
    ]
    replace(FEDERATION, members=MEMBERS[::-1]).save(tmp_path / "other.npz")
    assert (tmp_path / "other.npz").read_bytes() == (tmp_path / "f.npz").read_bytes()


SPECS = [SPEC, replace(SPEC, seed=8)]
PARTS = tuple(
    ClassCounts.from_data(FlyHash(spec), points(9)[0], RUN.codes(points(9)[1]), 3)
    for spec in SPECS
)
ONE = Member(
    "a",
    "1",
    sizes=tuple(PARTS[0].n_per_class.tolist()),
    sha256=CountsOfSpecs(PARTS).sha256,
)


def of_two(
    scorings: Any, weights: Any = (), phase: str = "", most: int = 1
) -> Federation:
    return federation_of(
        RunSpec(SPECS, CLASSES),
        CountsOfSpecs(PARTS),
        [ONE],
        scorings,
        weights,
        phase,
        most,
    )


BEFORE = of_two((READOUT,) * 2, (), "selection", 3)
FEDERATIONS = {
    phase: replace(FEDERATION, phase=phase)
    for phase in ("", "counts", "selection", "a phase of one's own")
}
FEDERATIONS["before"] = BEFORE
FEDERATIONS["committee"] = of_two(
    (READOUT, ScoringRule("balanced", 0.5, 2.0)), (0.75, 0.25)
)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_what_is_saved_is_what_is_loaded(name, tmp_path):
    made = FEDERATIONS[name]
    loaded = again(made, tmp_path)
    assert (
        loaded.shared.sha256()
        == made.shared.sha256()
        == FlyNNClassifier.load(tmp_path / "f.npz").model_.sha256()
    )
    assert [member.weight for member in loaded.shared.members] == [
        member.weight for member in made.shared.members
    ]


def test_members_and_sums_are_those_of_the_specs():
    for wrong in (BEFORE.shared.members[:1], BEFORE.shared.members[::-1]):
        with raises(ModelFileError, field="model"):
            replace(BEFORE, shared=replace(BEFORE.shared, members=wrong))
    with raises(ModelFileError, field="sha256"):
        replace(BEFORE, members=[replace(ONE, sha256=ONE.sha256[:1])])


def rewritten(path: Path, roster: Any = (), **model: Any) -> None:
    """Write the file again with other entries of its roster and of its model."""
    with model_file.reading(path, 2**24) as (read, entries, further):
        extra = {**entries, **dict(roster)}
        model_file.write(path, replace(read, **model), extra=extra, further=further)


def test_a_private_federation_keeps_its_mechanism_and_guarantee(tmp_path):
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 1.0)
    released = [
        SimulatedRelease(mechanism, seed).release(counts)
        for seed, counts in enumerate(COUNTS.values())
    ]
    run = RunSpec(SPEC, CLASSES, mechanism)
    pairs = zip(MEMBERS, released, strict=True)
    members = [
        replace(member, sizes=None, sha256=(release.sha256(),))
        for member, release in pairs
    ]
    totals = CountsOfSpecs((released[0] + released[1] + released[2],))
    loaded = again(federation_of(run, totals, members, (READOUT,)), tmp_path)
    assert loaded.run_spec.mechanism == mechanism
    assert loaded.counts.noise == totals.parts[0].noise
    assert loaded.model.guarantee_ == mechanism.guarantee()
    for wrong in ((run, totals, members[:2]), (RUN, totals, members)):
        with raises(ModelFileError, field="roster"):
            federation_of(*wrong, (READOUT,))


@pytest.mark.parametrize(
    "noise", [None, GaussianCounts.for_spec(SPEC, 3, 1.0, delta=1e-5, n_honest=2)]
)
def test_members_of_a_secure_sum_are_kept_without_figures(noise, tmp_path):
    run = RunSpec(SPEC, CLASSES, noise, 256)
    if noise is None:
        totals = FEDERATION.totals
    else:
        totals = CountsOfSpecs((SimulatedRelease(noise, 1).release(TOTAL),))
    hidden = [replace(member, sizes=None, sha256=()) for member in MEMBERS]
    loaded = again(federation_of(run, totals, hidden, (READOUT,)), tmp_path)
    assert loaded.run_spec.is_secure
    assert [row["examples"] for row in roster_rows(loaded)] == ["hidden"] * 3
    with raises(ModelFileError, field="sha256"):
        federation_of(run, totals, MEMBERS, (READOUT,))
    given = {
        "min_parties": 3,
        "mechanism": noise,
        "secure_bound": 256,
        "federation": loaded,
    }
    for purpose in ("join", "withdraw", "resume"):  # of a sum nobody's part is known
        with raises(ConfigError, field="purpose", got=purpose):
            make(purpose=purpose, **given)
    assert Run(make(purpose="evaluate", **given)).model.counts_ == loaded.counts


def test_a_file_gives_the_model_no_other_prior_and_no_guarantee(tmp_path):
    """They follow from the counts and from the mechanism."""
    path = tmp_path / "f.npz"
    FEDERATION.save(path)
    rewritten(path, prior=np.log([0.98, 0.01, 0.01]), guarantee="epsilon 0.001")
    model = Federation.load(path).model.model_
    assert model.sha256() == FEDERATION.shared.sha256()
    np.testing.assert_allclose(
        np.exp(model.prior),
        FEDERATION.counts.n_per_class / FEDERATION.counts.n_examples,
    )
    assert model.guarantee == FEDERATION.run_spec.guarantee is None


def test_the_exported_model_leaves_the_parties_out(tmp_path):
    FEDERATION.save(tmp_path / "f.npz")
    FEDERATION.model.save(tmp_path / "model.npz")
    with zipfile.ZipFile(tmp_path / "model.npz") as archive:
        assert not [
            name for name in archive.namelist() if b"Basel" in archive.read(name)
        ]
    ours, theirs = (
        FlyNNClassifier.load(tmp_path / name) for name in ("f.npz", "model.npz")
    )
    assert ours.counts_ == theirs.counts_
    assert (
        ours.model_.member.scoring.decay == theirs.model_.member.scoring.decay == 0.25
    )
    with raises(ModelFileError, field="roster", got="none"):
        Federation.load(tmp_path / "model.npz")


HIDDEN = {"sha256": None, "sizes": None}
KEPT = ("name", "node", "key", "sizes", "sha256", "run")
FIRST, SECOND = (
    json.loads(json.dumps({name: asdict(member)[name] for name in KEPT}))
    for member in MEMBERS[:2]
)
ROSTER: dict[str, Any] = {
    "format": 3,
    "mode": "plain",
    "bound": None,
    "mechanism": None,
    "phase": "",
    "selected": True,
    "max_members": 1,
    "trees": 0,
    "calibrated": True,
    "members": [FIRST, SECOND],
}
MEMBERS_THAT_CANNOT_BE = [
    [FIRST],
    [FIRST, SECOND, 3],
    [FIRST | HIDDEN, SECOND],
    [FIRST | HIDDEN, SECOND | HIDDEN],
]
"""`refused.txt` has other rosters."""


def load_with(path: Path, roster: dict[str, Any]) -> Federation:
    """Load the file of a model of two members with this roster."""
    member = ModelMember(SPEC, COUNTS["Basel"] + COUNTS["Ulm"], READOUT)
    model_file.write(path, Model((member,), np.array(CLASSES)), extra=roster)
    return Federation.load(path)


@pytest.mark.parametrize("members", MEMBERS_THAT_CANNOT_BE)
def test_a_roster_that_cannot_be_is_refused(members, tmp_path):
    path = tmp_path / "f.npz"
    assert len(load_with(path, ROSTER).members) == 2
    with pytest.raises(ModelFileError) as caught:
        load_with(path, ROSTER | {"members": members})
    assert caught.value.field is not None
    assert str(caught.value).startswith(f"{path}: ")


def test_an_altered_roster_shows(tmp_path):
    FEDERATION.save(tmp_path / "f.npz")
    with zipfile.ZipFile(tmp_path / "f.npz") as archive:
        parts = {
            name: archive.read(name).replace(b"Basel", b"Paris")
            for name in archive.namelist()
        }
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with raises(ModelFileError, field="digest"):
        Federation.load(tmp_path / "f.npz")


def locked(path: Path, **facts: Any) -> None:
    with raises(ConfigError, field="federation", **facts), exclusive(path):
        pass


def test_one_run_at_a_time(tmp_path):
    path = tmp_path / "f.npz"
    with exclusive(path):
        locked(path, got="f.npz")
        with raises(ConfigError, field="run-config output-dir", got="f.npz") as error:
            exclusive(path, "run-config output-dir").__enter__()
        assert "wait until it ends, or give another" in str(error.value)
        with exclusive(tmp_path / "other.npz"):
            pass
    locked(tmp_path / "nowhere" / "f.npz", expected="a file that can be locked")


KILLED = """
import sys
from flwr_flynn.federated.federation_file import exclusive
with exclusive(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_process_that_was_killed_locks_nothing(tmp_path):
    path = tmp_path / "f.npz"
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], **pipes) as other:
        assert other.stdout.read(4) == b"held"
        locked(path, got="f.npz")
        other.kill()
    with exclusive(path):
        pass


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path, monkeypatch):
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    locked(
        tmp_path / "f.npz",
        expected="a file that can be locked",
        got="No locks available",
    )


def test_the_roster_is_shown(tmp_path, capsys):
    FEDERATION.save(tmp_path / "f.npz")
    assert main(["show", str(tmp_path / "f.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["parties"] == roster_rows(FEDERATION)
    assert [(row["party"], row["sha256"]) for row in roster_rows(FEDERATION)] == [
        (member.name, member.sha256[0][:16]) for member in FEDERATION.members
    ]
    assert main(["show", str(tmp_path / "no.npz")]) == 1
