"""`python -m simulations openml` in miniature, and where its data sets come from."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from flwr_flynn.errors import DataError
from simulations import __main__ as command
from simulations.data import load
from simulations.methods import FLYNN, OTHERS, PAPER
from simulations.paper import openml
from simulations.paper.sets import PAPER_SETS, file_ids, readers
from tests.raising import raises
from tests.simulations.tables import read, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sets with names of the paper's, and one without."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for name, n_classes in (("semeion", 3), ("pc3", 2), ("mine", 2)):
        y = np.arange(60) % n_classes
        X = 4 * generator.normal(size=(n_classes, 5))[y] + generator.normal(
            size=(60, 5)
        )
        np.savez(folder / f"{name}.npz", X=X.astype(np.float32), y=y)
    return folder


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("openml")
    assert (
        command.main(["openml", "--quick", "--data", str(folder), "--out", str(out)])
        == 0
    )
    return out


def test_the_comparison_has_the_papers_line_and_ours_for_each_baseline(finished):
    rows = read(finished / "comparison.csv")
    of = {}
    for label in openml.PRINTED:
        mine = [row for row in rows if row["against"] == label]
        assert [row["FlyNN"] for row in mine] == [
            "the paper, printed",
            *openml.VARIANTS.values(),
        ]
        assert sum(map(int, mine[0]["W/T/L"].split("/"))) == 71
        assert sum(map(int, mine[1]["W/T/L"].split("/"))) == 2
    assert rows[0]["improvement"] == "0.0035"
    assert {"random forest", "gradient boosting", "logistic regression"} < {
        row["against"] for row in rows
    }
    assert [row["against"] for row in read(finished / "against.csv")] == list(OTHERS)
    table = read(finished / "openml.csv")
    assert len(read(finished / "folds.csv")) == 3 * len(table)
    for row in table:
        of.setdefault(row["set"], {})[row["method"]] = float(row["mean"])
    assert of.keys() == {"semeion", "pc3"}  # the paper's sets of the folder
    for means in of.values():
        assert means["1-NN"] == max(means["1-NN L2"], means["1-NN standardised"])
    text = shown(finished, "openml_main", "openml_appendix", "openml_defaults")
    assert "39/2/30" in text
    assert "semeion" in text


def test_the_papers_table_of_sets_is_whole():
    assert len(PAPER_SETS) == len({one.openml_id for one in PAPER_SETS}) == 71
    assert all(
        20 <= one.d <= 1000 and 1000 <= one.n <= 20000 and 2 <= one.n_classes <= 30
        for one in PAPER_SETS
    )
    ids = file_ids()
    assert (ids["usps"], ids["mfeat_fourier"], ids["mfeat_fourier_971"]) == (
        41082,
        14,
        971,
    )
    assert (
        ids["steel_plates"],
        ids["steel_plates_1504"],
        ids["cardiotocography3"],
    ) == (40982, 1504, 1560)
    assert {PAPER, FLYNN} == set(openml.VARIANTS)


def test_openml_is_asked_where_there_is_no_folder_and_bundled_sets_remain_without_a_network(
    monkeypatch, capsys
):
    def fetch(data_id, **_):
        names = ["a", "b"]
        X = np.arange(12.0).reshape(6, 2)
        return sklearn.utils.Bunch(
            data=X, target=np.array(list("ababab"), dtype=object), feature_names=names
        )

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    known, source = readers(None)
    assert (source, len(known)) == ("OpenML", 71)
    X, y, n_test = known["USPS (41082)"]()
    assert (X.shape, y.tolist(), n_test) == ((6, 2), [0, 1] * 3, 0)
    monkeypatch.setattr(
        sklearn.datasets, "fetch_openml", lambda **_: Path("/nowhere").read_bytes()
    )
    known, source = readers(None)
    assert (source, "digits" in known) == ("bundled", True)
    assert "openml.org within reach" in capsys.readouterr().err
    with raises(DataError, field="openml:6", got="FileNotFoundError"):
        load("openml:6")


@pytest.mark.filterwarnings(
    "ignore:A network error:UserWarning", "ignore:Invalid cache:RuntimeWarning"
)
def test_openml_offline_says_what_is_missing(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    # Scikit-learn waits between its three attempts.
    monkeypatch.setattr("sklearn.datasets._openml.time.sleep", lambda _: None)
    # This is in place of the network, so that scikit-learn checks our arguments.
    monkeypatch.setattr("sklearn.datasets._openml.urlopen", refuse)
    with raises(DataError, field="openml:61", got="URLError") as caught:
        load("openml:61")
    assert len(str(caught.value).splitlines()) == 1
    # A data set that was fetched before would be here.
    assert str(tmp_path) in str(caught.value)
