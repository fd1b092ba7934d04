"""`python -m simulations privacy`: files, what it may not look at, resumption."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyHash
from flwr_flynn.privacy import GaussianCounts
from simulations import __main__ as command
from simulations.paper import privacy
from simulations.paper.privacy import BEST, GAUSSIAN, LAPLACE, NONE, OLD_HASH, PAPER
from simulations.paper.privacy_settings import QUICK, DataError, Task, mnist
from simulations.paper.top_t import PaperTopT
from simulations.study import Cells
from tests.raising import raises
from tests.simulations.tables import read, run_again, shown

pytest.importorskip("dp_accounting")

PLAN = replace(QUICK, repetitions=2, epsilons=(1.0, 100.0), released=(8, 64))


def clusters(seed, n=400):
    """Three clusters that are far apart."""
    generator = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = (6 * np.eye(3, 8)[y] + generator.normal(size=(n, 8))).astype(np.float32)
    return Task("clusters", X[100:], y[100:], X[:100], y[:100], ((128, 3, 16),))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished quick run, and what it printed."""
    out = tmp_path_factory.mktemp("privacy")
    arguments = ["privacy", "--quick", "--repetitions", "2", "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr(
            "builtins.print",
            lambda *words, **_: lines.append(" ".join(map(str, words))),
        )
        assert command.main(arguments) == 0
    return out, "\n".join(lines)


def test_a_quick_run_writes_a_row_for_every_mechanism_epsilon_and_t(finished):
    rows = read(finished[0] / "privacy.csv")
    assert list(rows[0])[:8] == [
        "setting",
        "n",
        "mechanism",
        "epsilon",
        "T",
        "mean",
        "sd",
        "repetitions",
    ]
    settings = {row["setting"] for row in rows}
    assert settings == {"synthetic n=1e4"} | {
        f"synthetic n=1e4, m={m}, rho={rho}" for m in (300, 600) for rho in (15, 30)
    }
    assert Counter(row["mechanism"] for row in rows) == {
        PAPER: 4 * 4 * 5, BEST: 4 * 4, NONE: 5, GAUSSIAN: 4, LAPLACE: 4,
        GAUSSIAN + OLD_HASH: 4 * 4, LAPLACE + OLD_HASH: 4 * 4,
    }  # fmt: skip
    for row in rows:
        assert 0.4 < float(row["mean"]) < 1
        assert float(row["sd"]) < 0.2
        if row["mechanism"] == NONE:
            assert row["repetitions"] == "1"
        else:
            assert row["repetitions"] == "2"
            # A release never costs more than what was asked for.
            assert float(row["gives away"]) <= float(row["epsilon"])


def test_a_quick_run_tells_what_the_figures_are_and_its_cells_are_kept(finished):
    folder, printed = finished
    shown(folder, "figure7", "figure8")
    # The noise is from a seed, and private no more.
    for part in ("no privacy", "MNIST is left out", BEST, "paper, read off"):
        assert part in printed
    run_again(
        ["privacy", "--quick", "--repetitions", "2"],
        folder,
        (privacy, "private"),
        (privacy, "exact"),
    )


def test_the_data_are_those_of_the_paper(finished):
    rows = read(finished[0] / "privacy.csv")
    row = next(
        row
        for row in rows
        if (row["setting"], row["mechanism"])
        == ("synthetic n=1e4, m=300, rho=30", NONE)
    )
    assert float(row["mean"]) == pytest.approx(0.69, abs=0.03)
    row = next(
        row for row in rows if (row["mechanism"], row["epsilon"]) == (GAUSSIAN, "1.0")
    )
    assert float(row["mean"]) > 0.8


def test_new_mechanisms_are_read_out_without_the_test_labels(monkeypatch):
    task = clusters(0)
    seen = []
    monkeypatch.setattr(
        privacy,
        "balanced_accuracy",
        lambda y, predicted, n: seen.append(predicted) or 0.0,
    )
    for labels in (task.y_test, np.zeros_like(task.y_test)):
        given = Task(task.name, task.X, task.y, task.X_test, labels, task.sizes)
        privacy.private(
            GAUSSIAN, given, task.spec(1.0, 1e-5, 0), 1.0, replace(PLAN, repetitions=1)
        )
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("kind", [GAUSSIAN, LAPLACE])
def test_next_to_no_noise_costs_next_to_nothing(kind):
    task = clusters(0)
    spec = task.paper_specs(0)[0]
    assert np.mean(privacy.private(kind, task, spec, 100.0, PLAN)[0]["scores"]) > 0.97
    assert privacy.exact(task, spec, paper=True)[0]["scores"][0] > 0.97
    counts = privacy.counted(task, spec)[0]
    assert reduce(add, counts) == ClassCounts.from_data(
        FlyHash(spec), task.X, task.y, 3
    )
    assert [part.n_examples for part in counts] == [150, 150]


def test_the_papers_mechanism_is_the_authors_and_clips():
    task = clusters(0)
    (t, first), (other_t, other) = privacy.mechanisms(
        PAPER, task, task.paper_specs(0)[0], 1.0, PLAN
    )
    assert (t, other_t) == (8, 64)
    expected = PaperTopT(
        1.0, 8, hash_nnz=16, n_classes=3, accounting="code", n_parties=2
    )
    assert first == expected
    release = next(privacy.releases(first_counts(), other, PLAN))
    assert release.array.min() < 0
    np.testing.assert_array_equal(
        privacy.clipped(release).array, np.maximum(release.array, 0)
    )
    common = {"setting": "a", "mechanism": PAPER, "epsilon": 1.0}
    rows = [
        common | {"T": t, "mean": mean} for t, mean in ((4, 0.5), (8, 0.7), (16, 0.6))
    ]
    rows.append(rows[0] | {"mechanism": GAUSSIAN, "mean": 0.9})
    assert privacy.best(rows) == [rows[1] | {"mechanism": BEST}]


def first_counts():
    """The counts of the first party."""
    return privacy.counted(clusters(0), clusters(0).paper_specs(0)[0])[0][0]


MECHANISM = GaussianCounts(1.0, 1e-5, hash_nnz=16, n_classes=3)


def test_simulated_noise_repeats_and_differs_between_parties_repetitions_and_mechanisms():
    counts = first_counts()
    first, second = privacy.releases(counts, MECHANISM, PLAN, "a", 0)
    assert [first, second] == list(privacy.releases(counts, MECHANISM, PLAN, "a", 0))
    other_party = next(privacy.releases(counts, MECHANISM, PLAN, "a", 1))
    other_seed = next(
        privacy.releases(counts, MECHANISM, replace(PLAN, seed=1), "a", 0)
    )
    assert len({first, second, other_party, other_seed}) == 4


def test_opendp_draws_the_noise_where_asked():
    pytest.importorskip("opendp")
    plan = replace(PLAN, noise="opendp")
    once, again = (
        next(privacy.releases(first_counts(), MECHANISM, plan, "a", 0))
        for _ in range(2)
    )
    assert once != again
    assert once.noise_variance == MECHANISM.sigma**2


def test_cells_of_other_noise_are_others(tmp_path):
    task = clusters(0)
    plan = replace(PLAN, epsilons=(1.0,), released=(8,))
    cells = Cells(tmp_path)
    rows = privacy.measure(task, plan, cells)
    n_pieces = len(set(tmp_path.rglob("output.pkl")))
    assert privacy.measure(task, plan, cells) == rows
    privacy.measure(task, replace(plan, seed=1), cells)
    assert len(set(tmp_path.rglob("output.pkl"))) == 2 * n_pieces


def write_digits(path, **changes):
    generator = np.random.default_rng(0)
    arrays = {}
    for end, n in (("", 60), ("_test", 30)):
        arrays |= {
            f"X{end}": generator.integers(0, 256, (n, 9), np.uint8),
            f"y{end}": np.arange(n) % 10,
        }
    np.savez(path, **(arrays | changes))


def test_mnist_is_cut_to_the_digits_asked_for(tmp_path):
    write_digits(tmp_path / "mnist.npz")
    task = mnist(tmp_path / "mnist.npz", (3, 8))
    assert (task.name, len(task.X), len(task.X_test), task.n_classes) == (
        "MNIST 3 v 8",
        12,
        6,
        2,
    )
    assert task.y.tolist() == [0, 1] * 6
    assert task.sizes == ((270, 1, 27),)
    assert mnist(tmp_path / "mnist.npz", tuple(range(10))).n_classes == 10


def test_a_file_that_is_no_mnist_is_refused(tmp_path, capsys):
    path = tmp_path / "mnist.npz"
    write_digits(path, y=np.arange(60) % 3, y_test=np.arange(30) % 3)
    with raises(
        DataError,
        field="mnist.npz",
        expected="training and test samples of the digits (3, 8)",
    ):
        mnist(path, (3, 8))
    path.write_bytes(b"nothing")
    with pytest.raises(SystemExit):
        command.main(
            [
                "privacy",
                "--sets",
                "mnist-3v8",
                "--data",
                str(tmp_path),
                "--out",
                str(tmp_path / "out"),
            ]
        )
    assert "mnist.npz: " in capsys.readouterr().err
