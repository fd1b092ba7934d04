"""Files of version 0.1: a federation's file is read, joined and left as one of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ModelFileError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.statistics import CountsOfSpecs
from flwr_flynn.model.scoring import Readout
from tests.fakes import RUN, counts_of, points
from tests.fuzz_files import as_version_0_1
from tests.raising import raises


@pytest.fixture
def before() -> Federation:
    counts = counts_of(*points(20))
    member = Member("Basel", "17", "ab" * 32, tuple(counts.n_per_class.tolist()), (counts.sha256(),), "1")
    return Federation(RUN, CountsOfSpecs((counts,)), (member,), (Readout("novelty", 0.25, 2.0),))


def test_a_federation_of_version_0_1_is_read(before: Federation, tmp_path: Path) -> None:
    before.save(tmp_path / "new.npz")
    (tmp_path / "old.npz").write_bytes(as_version_0_1((tmp_path / "new.npz").read_bytes()))
    after = Federation.load(tmp_path / "old.npz")
    for name in ("run_spec", "totals", "members", "readouts", "weights", "phase"):
        assert getattr(after, name) == getattr(before, name)
    assert FlyNNClassifier.load(tmp_path / "old.npz").counts_ == before.counts


def test_a_model_without_a_roster_is_no_federation(before: Federation, tmp_path: Path) -> None:
    before.model.save(tmp_path / "model.npz")
    with raises(ModelFileError, field="roster", got="none"):
        Federation.load(tmp_path / "model.npz")
