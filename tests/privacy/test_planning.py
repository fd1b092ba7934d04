"""The plan before epsilon is spent: constants as measured, ratios that follow the noise, settings of the run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.cli_privacy import page
from flwr_flynn.errors import ConfigError
from flwr_flynn.privacy import GaussianCounts, SimulatedRelease, TopTLaplace, plan, planning, suggest_spec
from flwr_flynn.privacy.planning import CURVES, Expected, expected, relative
from tests.docs.pages import text_of
from tests.raising import raises

pytest.importorskip("dp_accounting")

PUBLIC = {"n_examples": 3000, "n_features": 20, "n_classes": 8, "n_parties": 10, "epsilon": 1.0}


def test_the_constants_are_those_of_the_page() -> None:
    last = text_of("docs/results/plan.md").rpartition("## Constants of the package")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in last.splitlines() if line[:1] == "|"][2:]
    found = {row[0]: tuple(tuple(map(float, re.split(", ", cell))) for cell in row[1:]) for row in rows}
    assert found == CURVES
    assert CURVES.keys() == {"gaussian", "gaussian-rounds", "laplace"}
    assert all(low < middle < high for entry in CURVES.values() for low, middle, high in entry[1:])


@given(kind=st.sampled_from(["gaussian", "gaussian-rounds", "laplace"]), n_classes=st.integers(2, 200))
def test_a_ratio_is_between_that_of_a_guess_and_1_and_falls_with_noise(kind: str, n_classes: int) -> None:
    curve = CURVES[kind][0]
    ratios = [float(relative(curve, 0.0, 100.0, noise, n_classes)) for noise in (1e-30, 0.1, 1.0, 10.0, 1e30)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(1)
    assert ratios[-1] == pytest.approx(1 / n_classes / planning.TYPICAL)
    # The oracle: odds of what is kept, by hand.
    middle, slope, classes = curve
    odds = (100 / 10 * n_classes**classes / math.exp(middle)) ** slope
    assert ratios[3] == pytest.approx((1 / n_classes + odds / (1 + odds) * (0.85 - 1 / n_classes)) / 0.85)


def test_noise_counts_by_what_the_sum_has_of_it() -> None:
    spec = suggest_spec(1.0, 1e-5, 20, 3000, 8, 1)
    one = GaussianCounts.for_spec(spec, 8, 1.0, delta=1e-5)
    share = GaussianCounts.for_spec(spec, 8, 1.0, delta=1e-5, n_honest=10)
    alone, shared, own = (planning.unit_noise(each, n) for each, n in ((one, 1), (share, 10), (one, 10)))
    assert shared == pytest.approx(alone, rel=0.001)
    assert own == pytest.approx(alone * math.sqrt(10))
    assert expected(SimulatedRelease(one, 1), 3000, 1) == expected(one, 3000, 1)
    assert expected(TopTLaplace(1.0, 5, hash_nnz=16, n_classes=8), 3000, 1) is None


@pytest.mark.parametrize("more", [{}, {"rounds": 24}, {"delta": 0.0}, {"honest_parties": 7}], ids=str)
def test_a_plan_orders_choices_as_their_noise(more: dict[str, float]) -> None:
    found = plan(**PUBLIC | more)
    ratios = dict(found.others)
    by_epsilon = [ratios[f"epsilon {e:g}"].ratio for e in (0.25, 0.5)] + [found.expected.ratio]
    by_epsilon += [ratios[f"epsilon {e:g}"].ratio for e in (2, 4)]
    assert by_epsilon == sorted(by_epsilon)
    assert all(each.low <= each.ratio <= each.high for _, each in found.rows)
    assert ratios["40 parties of this kind"].ratio > found.expected.ratio
    if "delta" in more:
        assert not any("noise" in name or "rounds" in name for name in ratios)
    elif "honest_parties" in more:
        assert ratios["noise of its own at each party"].ratio < found.expected.ratio
    else:
        assert ratios["one noise for all, honest-parties 7"].ratio > found.expected.ratio
    assert found.mechanism.kind in found.settings
    assert all(f"{each}" in str(found) for _, each in found.rows)


def test_small_classes_have_a_line_and_a_warning() -> None:
    uneven = plan(**PUBLIC, class_sizes=[900, 800, 700, 200, 200, 160, 20, 20])
    assert uneven.smallest is not None
    assert uneven.smallest.ratio < 0.5
    assert uneven.warning in str(uneven)
    even = plan(**PUBLIC | {"epsilon": 50.0}, class_sizes=[375] * 8)
    assert "smallest quarter" in str(even)
    assert not even.warning
    assert plan(**PUBLIC).smallest is None
    sizes = [500, 400, 400, 400, 400, 400, 300, 200]
    told = [plan(**PUBLIC | {"epsilon": 50.0, "rounds": rounds}, class_sizes=sizes).warning for rounds in (0, 24)]
    assert (told[0], told[1][:19]) == ("", "Rounds weigh sample")


def test_choices_that_no_run_can_have_are_left_out() -> None:
    found = plan(**PUBLIC | {"n_parties": 400000, "honest_parties": 300000})
    assert not any("parties of this kind" in name for name, _ in found.others)
    assert not any("one noise" in name for name, _ in plan(**PUBLIC | {"n_parties": 2 * 10**6}).others)


def test_a_plan_is_html_with_a_picture() -> None:
    found = plan(**PUBLIC)
    (body,) = re.findall(r"<html.*</html>", page(found), re.DOTALL)
    assert len(ElementTree.fromstring(body).findall(".//circle")) == len(found.rows)
    assert ElementTree.fromstring(found._repr_html_()).get("class") == "flynn"
    assert str(Expected(0.5, 0.25, 1.0)) == "0.50 (0.25 to 1.00)"
    assert replace(found, smallest=Expected(0.1, 0.0, 0.2)).warning in page(
        replace(found, smallest=Expected(0.1, 0, 0.2))
    )


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"n_examples": 0}, "n_examples"),
        ({"n_features": 2**40}, "n_features"),
        ({"n_classes": 1}, "n_classes"),
        ({"n_parties": 0}, "n_parties"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.9}, "delta"),
        ({"delta": 0.0, "rounds": 3}, "n_rounds"),
        ({"rounds": 10**6}, "n_rounds"),
        ({"delta": 0.0, "honest_parties": 7}, "honest_parties"),
        ({"honest_parties": 11}, "honest_parties"),
        ({"honest_parties": 2, "n_parties": 2}, "honest_parties"),
        ({"class_sizes": [1, 2]}, "class_sizes"),
        ({"class_sizes": [0] * 8}, "class_sizes"),
        ({"class_sizes": [20, 30, 10, 10, 10, 10, 5, 5]}, "class_sizes"),  # percent
        ({"honest_parties": 10**6 + 1, "n_parties": 2 * 10**6}, "honest_parties"),
    ],
    ids=str,
)
def test_figures_that_cannot_be_are_refused(wrong: dict[str, float], field: str) -> None:
    with raises(ConfigError, field=field):
        plan(**PUBLIC | wrong)
