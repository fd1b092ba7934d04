"""No record of a private party decides about the kind of an answer; `python -m tests.neighbours` asks about all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyHash, FlyNNClient, HashSpec
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated import permissions, private_rows
from flwr_flynn.federated.private_rows import Block, GivenRows, each_part, fitting, rows_at_a_time
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.request import _REQUESTS
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.noisy_rounds import clipped_gradient
from flwr_flynn.privacy import GaussianRounds, LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests import neighbours
from tests.fakes import HASHER, SPEC, counting, points
from tests.raising import raises

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_all_requests_are_asked() -> None:
    phases = {request.phase for request in neighbours.requests().values()} | {"schema"}  # which is exact
    ours = {name for name, kind in _REQUESTS.items() if kind.__module__.startswith("flwr_flynn.")}
    assert ours <= phases


@pytest.mark.parametrize("part", range(4))
def test_neighbouring_files_get_answers_of_one_kind(part: int) -> None:
    pytest.importorskip("opendp")
    pytest.importorskip("pyarrow")
    n, different = neighbours.sweep(
        lambda index: index % 44 == 11 * part, lambda name: "plain" in name or "," not in name
    )
    assert n > 100
    assert different == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_request_about_every_pair(part: int) -> None:
    pytest.importorskip("opendp")
    pytest.importorskip("pyarrow")
    n, different = neighbours.sweep(lambda index: index % 4 == part)
    assert n > 2000
    assert different == []


def _raising(count: Callable[..., None]) -> Callable[..., None]:
    def add_counts(array: Any, codes: Any, active: Any) -> None:
        if len(codes) > neighbours.N_ROWS:  # because of one record
            raise ValueError
        count(array, codes, active)

    return add_counts


def _without_fold(block: Block, of: Callable[[Any, Any], Any]) -> Iterator[Any]:
    yield of(*block.read(slice(0, block.n)))


@pytest.mark.parametrize("mutant", ["a line behind the fold raises", "no fold"])
def test_a_line_that_raises_because_of_a_record_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    pytest.importorskip("pyarrow")
    if mutant == "no fold":
        monkeypatch.setattr(private_rows, "each_part", _without_fold)
        monkeypatch.setattr(FlyHash, "fits", lambda _, X: np.ones(len(X), bool))  # so that a row beyond it raises
    else:
        monkeypatch.setattr(permissions, "add_counts", _raising(permissions.add_counts))
    _, different = neighbours.sweep(lambda index: index % 16 == 0, lambda name: name.startswith("noisy, plain, ranges"))
    assert different


# ---- the fold


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_a_row_that_raises_drops_alone(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        bad = set(np.flatnonzero(rng.random(n) < 0.3).tolist())
        seen: list[int] = []

        def of(rows: range, _: Any, bad: set[int] = bad) -> range:
            if bad & set(rows):
                raise (ZeroDivisionError, MemoryError, AssertionError, RecursionError)[len(rows) % 4]
            return rows

        for part in each_part(Block(n, lambda part: (range(n)[part], None)), of):
            seen += part
        assert seen == [index for index in range(n) if index not in bad]


@pytest.mark.parametrize("n_rows", [1, 3, 50])
def test_rows_are_the_same_however_many_are_read_at_a_time(n_rows: int) -> None:
    X, y = points(50)
    X[::5, 1] = np.nan
    wanted = [(HASHER.active(X[rows]), y[rows]) for rows in ([i for i in range(50) if i % 5],)]
    blocks = GivenRows(Samples(X, y)).blocks(n_rows)
    assert sum(block.n for block in blocks) == 50
    memory = 256 * n_rows * 4
    assert rows_at_a_time([4], memory) == n_rows
    found = [
        part
        for _, parts in fitting(GivenRows(Samples(X, y)), [HASHER], ("ash", "birch", "cedar"), (), memory, of=_active)
        for part in parts
    ]
    assert np.array_equal(np.concatenate([bits for bits, _ in found]), wanted[0][0])


def _active(X: Any, codes: Any) -> tuple[Any, Any]:
    return HASHER.active(X), codes


# ---- rows that a hash does not take, and rounds of one class


@pytest.mark.parametrize("kind", ["plain", "centred", "codes", "waves"])
def test_fits_raises_for_no_row(kind: str) -> None:
    hasher = FlyHash(neighbours._spec(2, kind))
    X = np.array([[1, 2], [np.nan, 1], [np.inf, 1], [-np.inf, np.nan], [1e308, 1e308], [np.nan, np.nan]], np.float64)
    fits = hasher.fits(X)
    assert fits.tolist() == [hasher.fits(X[index : index + 1])[0] for index in range(len(X))]
    hasher.active(X[fits])
    assert fits[0]
    assert fits[1] == fits[5] == hasher.takes_gaps
    assert not fits[2:4].any()


def test_a_gap_of_the_server_s_choice_refuses_nothing(tmp_path: Path) -> None:
    """In 0.8 the exact salary of one record of 501 was found in 14 questions, at no cost."""
    from flwr_flynn.tables.column_encoding import Column
    from flwr_flynn.tables.schema import Schema

    pandas = pytest.importorskip("pandas")
    schema = Schema([Column("salary", "number", gaps=False, gap_texts=["73412"])])
    run = RunSpec(
        HashSpec(n_features=1, hash_dim=24, row_nnz=1, hash_nnz=3, seed=7),
        ("ash", "birch"),
        SimulatedRelease(LaplaceCounts(0.5, hash_nnz=3, n_classes=2), 1),
        feature_names=schema,
    )
    kinds = []
    for name, salaries in (("without", ["1000"] * 500), ("with", [*["1000"] * 500, "73412"])):
        frame = pandas.DataFrame({"salary": salaries})
        budget = Budget(tmp_path / name, Policy(1.0, mechanisms=("simulated",)))
        arrays, n_examples, metrics = FlyNNClient(frame, ["ash"] * len(frame), budget=budget).fit([], counting(run))
        kinds.append((len(arrays), n_examples, metrics, budget.spent()))
    assert kinds[0] == kinds[1]
    assert REFUSED not in kinds[0][2]
    assert kinds[0][3] == (0.5, 0.0)


def test_noisy_rounds_of_one_class_are_refused_whatever_the_samples_are() -> None:
    """In 0.8 a division by zero told if any record fits."""
    with raises(ConfigError, field="n_classes", got=1):
        GaussianRounds(1.0, 1e-5, 2, hash_nnz=3, n_classes=1)
    active = np.zeros((4, SPEC.hash_nnz), np.int32)
    gradient = clipped_gradient(
        np.ones((24, 1), np.int32), np.zeros(24, np.int64), SPEC.hash_nnz, [(active, np.zeros(4, np.int64))]
    )
    assert not gradient.gradient.any()
