"""Experiments leave the files that they promise."""

from __future__ import annotations

import argparse
import multiprocessing
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel, wilcoxon
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from flwr_flynn import FlyHash, FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError
from simulations import __main__ as command
from simulations import bench, data, methods, results, study
from simulations.baselines import CENTRALISED, Settings
from simulations.data import folded, load
from simulations.lean import lean_count, lean_matrix, lean_rows
from simulations.methods import FLYNN
from simulations.study import Study
from tests.docs.pages import PAGES, text_of
from tests.raising import raises
from tests.simulations.tables import read, shown
from tests.snapshots import assert_refused_as_on_record


def test_the_lean_baseline_counts_what_we_count_where_nothing_ties():
    X = np.random.default_rng(0).random((150, 40)).astype(np.float32)
    y = np.arange(150) % 3
    hasher = FlyHash(HashSpec(40, 500, 8, 9, seed=1))
    counts = lean_count(lean_matrix(hasher), X, y, 3, 9)
    # SciPy adds in another order; sums that it rounds differently may swap places at
    # the very edge.
    assert np.abs(counts - hasher.count(X, y, 3)).sum() <= 4
    rows = np.sort(lean_rows(10, 50, 4), axis=1)
    assert rows.shape == (50, 4)
    assert (np.diff(rows, axis=1) > 0).all()


def test_wrong_options_are_refused_as_it_is_on_record(tmp_path, capsys):
    """By the name that stands last."""
    for package in ("flwr_datasets", "xgboost", "dp_accounting"):
        pytest.importorskip(package)

    def told(name, wrong):
        with pytest.raises(SystemExit):
            command.main([name, "--quick", "--out", str(tmp_path), *wrong.split()])
        *_, last = capsys.readouterr().err.splitlines()
        return next(word for word in (wrong.split()[-1], "pieces") if word in last)

    record = Path(__file__).parent / "wrong_options.txt"
    takes = {
        name: partial(told, name)
        for name in command.EXPERIMENTS
        if f"{name} " in record.read_text("utf-8")
    }
    assert_refused_as_on_record(record, takes)


def test_an_unknown_experiment_is_answered_with_the_list(capsys):
    assert command.main(["nothing"]) == 2
    assert "bench" in capsys.readouterr().out


@pytest.mark.slow
def test_bench_writes_its_files(tmp_path):
    assert command.main(["bench", "--quick", "--output", str(tmp_path)]) == 0
    rows = {row["shape"]: row for row in read(tmp_path / "bench.csv")}
    assert list(rows) == [shape.name for shape in bench.SHAPES]
    assert {
        rows[name]["m"] + " " + rows[name]["rho"]
        for name in ("Digits 64k", "MNIST 64k")
    } == {"65536 256"}
    assert {"x lean", "float32 x lean", "x kNN"} <= rows["Digits"].keys()
    shown(tmp_path, "bench")


def test_bench_measures_a_shape():
    tiny = bench.Shape("tiny", "none", 16, 3, 256, 0.3, 8)
    row = bench.hashing(tiny, argparse.Namespace(quick=True, data=None))
    assert min(row["x lean"], row["narrow roofline ns"]) > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tiny sets: an official split and whole numbers, and labels that are words."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = (
        (4 * generator.normal(size=(3, 6))[y] + generator.normal(size=(90, 6)))
        .round()
        .astype(np.int16)
    )
    np.savez(folder / "split.npz", X=X[:60], y=y[:60], X_test=X[60:], y_test=y[60:])
    words = np.array(["no", "yes"])[(generator.random(70) < 0.3).astype(int)]
    np.savez(
        folder / "words.npz",
        X=generator.normal(size=(70, 4)).astype(np.float32),
        y=words,
    )
    return folder


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    """The folder of a finished quick run."""
    out = tmp_path_factory.mktemp("out")
    assert (
        command.main(["accuracy", "--quick", "--data", str(folder), "--out", str(out)])
        == 0
    )
    return out


@pytest.mark.parametrize(("kind", "method"), [(FLYNN, FLYNN), *CENTRALISED.items()])
def test_the_methods_of_the_table_are_the_default_classifier_and_scikit_learns(
    finished, folder, kind, method
):
    make = {
        FLYNN: FlyNNClassifier,
        "forest": lambda: RandomForestClassifier(
            200, class_weight="balanced", random_state=0
        ),
        "boosting": lambda: HistGradientBoostingClassifier(
            class_weight="balanced", random_state=0
        ),
        "logistic": lambda: make_pipeline(
            StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=9999)
        ),
    }[kind]
    problem = folded("split", *load(folder / "split.npz"), folds=3)
    rows = [
        row
        for row in read(finished / "folds.csv")
        if (row["set"], row["method"]) == ("split", method)
    ]
    for row, (train, test) in zip(rows, problem.splits, strict=True):
        predicted = (
            make().fit(problem.X[train], problem.y[train]).predict(problem.X[test])
        )
        assert float(row["balanced accuracy"]) == pytest.approx(
            balanced_accuracy_score(problem.y[test], predicted)
        )


def test_accuracy_writes_a_row_for_every_set_method_and_fold(finished):
    means = read(finished / "accuracy.csv")
    rows = read(finished / "folds.csv")
    names = {row["method"] for row in means}
    assert {
        FLYNN,
        *methods.OTHERS,
        "FlyNN paper",
        "kNN",
        "kNN L2",
        "kNN standardised, nested",
        "SBFC",
    } < names
    assert {(row["set"], row["n"], row["classes"]) for row in means} == {
        ("split", "90", "3"),
        ("words", "70", "2"),
    }
    assert (len(means), len(rows)) == (2 * len(names), 3 * len(means))
    assert {(row["folds"], row["seed"]) for row in means} == {("3", "0")}
    for mean in means:
        mine = [
            row
            for row in rows
            if (row["set"], row["method"]) == (mean["set"], mean["method"])
        ]
        assert [row["fold"] for row in mine] == ["0", "1", "2"]
        scores = [float(row["balanced accuracy"]) for row in mine]
        assert np.mean(scores) == pytest.approx(float(mean["mean"]))
        assert np.std(scores, ddof=1) == pytest.approx(float(mean["sd"]))
        assert sum(int(row["n_test"]) for row in mine) == int(mean["n"])
        for row in mine:
            assert int(row["n_train"]) + int(row["n_test"]) == int(mean["n"])
            assert (row["d"], row["classes"]) == (mean["d"], mean["classes"])
            timed = mean["method"] in (FLYNN, *methods.OTHERS)
            assert not timed or float(row["fit seconds"]) > 0 < float(
                row["predict seconds"]
            )
    shown(finished, "accuracy_baselines", "accuracy_variants")
    compared = {
        (row["FlyNN"], row["against"]) for row in read(finished / "comparison.csv")
    }
    assert compared > {("FlyNN", "kNN"), ("FlyNN paper", "MLP, one epoch")}


def test_bundled_sets_need_no_folder(tmp_path):
    small = ["--sets", "iris", "--max-examples", "60", "--folds", "2"]
    assert command.main(["ablation", "--quick", *small, "--out", str(tmp_path)]) == 0
    made = {name: make() for name, make in data.BUNDLED.items()}
    assert {name: len(X) for name, (X, *_) in made.items()} == {
        name: len(y) for name, (_, y, *_) in made.items()
    }


TABLE = np.zeros((30, 2))
CLASSES = np.arange(30) % 2
NINE = {"X": np.zeros((9, 2)), "y": np.zeros(9)}
NO_DATA_SETS = [
    {"X": TABLE},
    {"X": TABLE, "y": CLASSES, "X_test": TABLE[:3]},
    {"X": TABLE, "y": CLASSES[:29]},
    {"X": TABLE[:, 0], "y": CLASSES},
    {"X": TABLE * np.nan, "y": CLASSES},
    {"X": TABLE.astype(str), "y": CLASSES},
    {"X": TABLE, "y": np.array([{}] * 30)},
    {"X": TABLE, "y": np.zeros(30)},
    {"X": TABLE, "y": np.arange(30)},
    {"X": TABLE[:0], "y": CLASSES[:0]},
    NINE | {"X_test": np.zeros((9, 3)), "y_test": np.zeros(9)},
    NINE | {"X_test": np.zeros((9, 2)), "y_test": np.full(9, "a")},
]


@pytest.mark.parametrize("arrays", NO_DATA_SETS)
def test_a_file_that_is_no_data_set_is_refused_by_name(arrays, tmp_path, capsys):
    np.savez(tmp_path / "odd.npz", **arrays)
    with pytest.raises(SystemExit):
        command.main(
            ["accuracy", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
        )
    assert ": error: odd" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_whole_archive_is_refused_by_name(folder, tmp_path):
    whole = (folder / "split.npz").read_bytes()
    cut = (whole[:length] for length in range(0, len(whole), 97))
    for content in (
        b"not an archive",
        b"PK\x03\x04 damaged",
        b"\x93NUMPY\x01\x00",
        *cut,
    ):
        (tmp_path / "odd.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"^odd\.npz"):
            load(tmp_path / "odd.npz")


def test_a_subsample_keeps_shares_and_rare_classes():
    y = np.repeat([5, 7, 9], [3000, 990, 10])
    problem = folded("", np.arange(4000)[:, None], y, most=400)
    assert np.bincount(problem.y).tolist()[2] == 2
    np.testing.assert_allclose(np.bincount(problem.y), [300, 99, 2], atol=1)
    assert len(problem.y) == 400
    np.testing.assert_array_equal(y[problem.X[:, 0]], np.array([5, 7, 9])[problem.y])
    assert (
        folded("", np.arange(4000)[:, None], y, most=400, seed=1).digest
        != problem.digest
    )


@pytest.mark.parametrize("d", [1, 2, 5, 50, 784])
def test_configurations_lie_in_the_ranges_and_suit_the_classifier(d):
    settings = Settings()
    for chosen in methods.paper_configurations(d, settings):
        assert 2 * d <= chosen["hash_dim"] <= min(2048 * d, settings.largest_dim)
        assert min(2, d) <= chosen["row_nnz"] <= max(2, d // 2)
        assert min(8, chosen["hash_dim"]) <= chosen["hash_nnz"] <= 256
        assert 0 <= chosen["decay"] <= 0.8
        FlyNNClassifier(**chosen)._validate_params()
    assert methods.paper_configurations(d, settings) == methods.paper_configurations(
        d, settings
    )


def test_the_comparison_of_a_small_known_case():
    ours = {"a": 0.9, "b": 0.6, "c": 0.5, "d": 0.8}
    theirs = {"a": 0.8, "b": 0.6, "c": 0.4, "d": 0.9, "e": 1.0}
    knn = {"a": 1.0, "b": 0.5, "c": 0.5, "d": 0.8, "e": 1.0}
    gains = [0.1 / 1.0, 0.0, 0.1 / 0.5, -0.1 / 0.8]
    losses = [1 - 0.9 / 0.8, 0.0, 1 - 0.5 / 0.4, 1 - 0.8 / 0.9]
    a, b = ([table[name] / knn[name] for name in ours] for table in (ours, theirs))
    expected = {
        "improvement": np.median(gains),
        "median loss": np.median(losses),
        "mean loss": np.mean(losses),
    }
    expected |= {
        "worst": max(losses),
        "t p": ttest_rel(a, b).pvalue,
        "Wilcoxon p": wilcoxon(gains).pvalue,
    }
    row = results.compare(ours, theirs, knn)
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert (row["sets"], row["won"], row["W/T/L"], row["worst set"]) == (
        4,
        0.5,
        "2/1/1",
        "d",
    )
    one = results.compare({"a": 0.5}, {"a": 0.4}, {"a": 0.4})
    assert np.isnan([one["t p"], one["Wilcoxon p"]]).all()
    same = results.compare(
        {"a": 0.5, "b": 0.3}, {"a": 0.5, "b": 0.3}, {"a": 1.0, "b": 1.0}
    )
    assert (same["W/T/L"], same["t p"], same["Wilcoxon p"]) == ("0/2/0", 1.0, 1.0)
    assert results.compare({"a": 0.5}, {"b": 0.5}, {"a": 1.0}) == {"sets": 0}


def test_cells_come_back_under_the_same_inputs_only(tmp_path):
    computed = []
    rows = [{"mean": 0.1, "scores": [0.1]}]

    def finish(folds, finished=False):
        def work():
            computed.append(folds)
            return rows

        return study.Cells(tmp_path, finished=finished).finish(
            "a/../b: kNN", {"folds": folds}, work
        )

    assert [finish(3), finish(3), finish(3, finished=True)] == [rows] * 3
    assert computed == [3]
    with pytest.raises(study.NotFinished):
        finish(4, finished=True)
    (file,) = tmp_path.rglob("output.pkl")
    file.write_bytes(file.read_bytes()[:-5])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        finish(3)
    assert finish(3) == rows
    assert computed == [3, 3]


def test_the_digest_of_code_is_of_modules_and_whole_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ROOT", tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    first, inner = (
        tmp_path / "package" / name for name in ("first.py", "inner/third.py")
    )
    digests = []
    for file, text in (
        (first, "x = 1\n"),
        (inner, "x = 1\n"),
        (inner, "x = 2\n"),
        (first, "x = 2\n"),
    ):
        file.write_text(text)
        digests.append(
            (study.code_digest("package"), study.code_digest("package.first"))
        )
    assert study.code_digest("package", "package.first") == digests[-1][0]
    assert len({whole for whole, _ in digests}) == 4
    assert [one == digests[0][1] for _, one in digests] == [True, True, True, False]


def test_a_table_keeps_the_kind_of_every_value(tmp_path):
    rows = [
        {"a": 1, "b": float("nan")},
        {"b": 0.1, "c": "x,y"},
        {"a": True, "b": float("inf"), "curve": [1]},
    ]
    study.Study("bench", "", "", ["--out", str(tmp_path)]).write("t", rows)
    assert [list(row.values()) for row in read(tmp_path / "t.csv")] == [
        ["1", "nan", ""], ["", "0.1", "x,y"], ["True", "inf", ""],
    ]  # fmt: skip
    printed = results.markdown_table(
        [{"set": "a", "mean": 0.12345}, {"set": "long", "more": 1e-5}]
    ).splitlines()
    assert printed == [
        "| set | mean | more |",
        "| :-- | --: | --: |",
        "| a | 0.123 |  |",
        "| long |  | 1.0e-05 |",
    ]


def test_a_failure_says_in_which_piece(tmp_path):
    def fail():
        raise ValueError("no")

    with raises(ValueError, args=("no",)) as caught:
        study.Cells(tmp_path).finish("mine: kNN", 0, fail)
    assert caught.value.__notes__ == ["in mine: kNN"]


@pytest.mark.slow
def test_processes_give_what_one_gives(folder, finished, tmp_path):
    arguments = [
        "accuracy",
        "--quick",
        "--data",
        str(folder),
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    others = set(multiprocessing.active_children())  # of other tests in this process
    assert command.main(arguments) == 0
    assert set(multiprocessing.active_children()) <= others
    one = {row["set"] + row["method"]: row for row in read(finished / "accuracy.csv")}
    two = {row["set"] + row["method"]: row for row in read(tmp_path / "accuracy.csv")}
    assert one.keys() == two.keys()
    for name, row in one.items():
        assert row["mean"] == two[name]["mean"], name
        assert row["sd"] == two[name]["sd"], name


def test_the_experiments_that_the_documentation_names_are_there():
    named = {
        name
        for page in PAGES
        for name in re.findall(r"python -m simulations\s+([a-z]+)", text_of(page))
    }
    assert len(named) >= 3
    assert named <= {*command.EXPERIMENTS, "publish", "all"}


def test_a_page_is_about_all_but_the_first_paragraph_of_its_module(tmp_path):
    text = "A sentence that stands on\ntwo lines.\n\nWhat was measured."
    study = Study("name", "Title", text, ["--out", str(tmp_path)])
    assert study.about == "What was measured."
