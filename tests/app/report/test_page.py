"""The page of a run: its figures, its markup, and names that come from anybody."""

from __future__ import annotations

import copy
import csv
import re
import shlex
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn._markup import NONE, figure, tag
from flwr_flynn.app.report.accuracy_sections import as_csv
from flwr_flynn.app.report.page import SECTIONS, page
from tests.app.report.example import REPORT, metrics

LOADING = {"src", "srcset", "data", "poster", "action", "formaction", "background", "cite", "ping"}
HOSTILE = (
    "<script>alert(1)</script>",
    "\" onload=\"alert(1)' x='",
    "]]>--></style><svg/onload=alert(1)>&amp;",
    "a\0\x1b[31m\x85\ud800\uffff\u202eb",
    "x" * 10**6,
)


def tree(text: str) -> ElementTree.Element:
    """The page as XML; checks that it is one file, for everybody."""
    root = ElementTree.fromstring(text.encode())
    assert root.get("lang") == "en"
    assert len(list(root.iter("h1"))) == len(list(root.iter("main"))) == len(list(root.iter("nav"))) == 1
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    for each in root.iter():
        assert each.tag not in ("script", "link", "iframe", "object", "embed", "img", "base", "form")
        assert not {name for name in each.attrib if name in LOADING or name.startswith("on")}
        assert each.get("href", "#")[:1] == "#"
        assert "url(" not in (each.get("style") or "")
        if each.tag == "svg":
            assert each.get("role") == "img"
            assert [child.tag for child in each[:2]] == ["title", "desc"]
        if each.tag == "table":
            assert each[0].tag == "caption"
            assert all(head.get("scope") for head in each.iter("th"))
    style = root.find("head/style")
    assert style is not None
    assert not re.search(r"url\(|@import|expression", style.text or "")
    regions = [each.get("aria-label") for each in root.iter() if each.get("role") == "region"]
    assert len(regions) == len(set(regions))
    return root


def rows(root: ElementTree.Element) -> dict[str, list[list[str]]]:
    """The tables of a page, by their captions."""
    return {
        "".join(each[0].itertext()): [["".join(cell.itertext()) for cell in row] for row in each.iter("tr")]
        for each in root.iter("table")
    }


def test_the_page_has_the_figures_of_metrics_json() -> None:
    made = metrics()
    root = tree(page(made))
    assert [each.text for each in root.iter("h2")] == [make(made).title for make in SECTIONS]
    found, evaluation = rows(root), made["evaluation"]
    sites = {row[0]: row[1:] for row in found["Figures by party"][1:]}
    assert {name: float(cells[1].split()[0]) for name, cells in sites.items()} == {
        party["name"]: party["accuracy"] for party in evaluation["parties"]
    }
    shown = dict(row for row in found["Figures"])
    for name, key in (("AUROC", "auroc"), ("log-loss", "log_loss"), ("calibration intercept", "calibration_intercept")):
        value, low, high = evaluation["figures"]["overall"][key]
        assert shown[name].replace("\xa0", " ") == f"{figure(value)} ({figure(low)} to {figure(high)})"
    table = [[int(cell) for cell in row[1:]] for row in found["Test samples by true and predicted class"][1:]]
    assert table == evaluation["confusion"]
    by_party = {row[0]: list(map(int, row[1:])) for row in found["Training samples by party and class"][2:]}
    assert by_party == made["class_sizes"]
    distances = [abs(np.array(sizes) / sum(sizes) - pooled_mix(made)).sum() for sizes in by_party.values()]
    assert distances == pytest.approx(sorted(distances, reverse=True))
    absent = [row for row in found["Who took part"] if "left out" in row[0]]
    steps = ("counts", "Harbour"), ("evaluation", "Clinic 3"), ("saving the model", "Clinic 5")
    assert [row[0] for row in absent] == [f"  left out of {step}: {party}" for step, party in steps]
    assert absent[0][1] == made["missing"]["Harbour"]
    made["messages"]["counts"]["fields"] *= 6
    messages = [row for row in rows(tree(page(made)))["Messages"] if row[0] == "counts"]
    assert [[*row[2:3], *row[4:5]] for row in messages] == [["6 times counts", "54.0 kB / 60.0 kB / 72.0 kB"]]


def test_the_command_on_the_page_has_the_settings_of_the_run() -> None:
    made = metrics()
    settings = {"alpha": 0.3, "seed": 7, "classes": 'a b,"c",d\'e\\f $x', "center": "\u00fc\tx", "decay": "0.5"}
    made["settings"] = {"dataset": "digits", "output-dir": "out", **settings}
    pre = tree(page(made)).find(".//pre")
    assert pre is not None
    *start, config = shlex.split(pre.text or "")
    assert start == ["flwr", "run", ".", "--federation-config", "num-supernodes=11", "--run-config"]
    assert parse_config_args([config]) == settings


def test_a_binary_outcome_is_shown_once_for_the_rarer_class() -> None:
    made = metrics(3, 2)
    classes = made["evaluation"]["figures"]["classes"]
    for rare in (0, 1):
        classes[rare] |= {"examples": 16, "others": 184}
        classes[1 - rare] |= {"examples": 184, "others": 16}
        row = {
            "threshold": 0.2,
            "sensitivity": [0.75, 0.5, 0.9],
            "specificity": [0.9, 0.8, 1],
            "ppv": None,
            "npv": None,
        }
        classes[rare]["thresholds"] = [row]
        root = tree(page(made))
        titles = [each[0].text for each in root.iter("svg") if "urve of" in (each[0].text or "")]
        assert titles == [f"{kind} of {classes[rare]['label']}" for kind in ("ROC curve", "Reliability curve")]
        (shown,) = rows(root)["What thresholds of the probability would do"][1:]
        # 8 % are of the class: 6 of 8 are found, and 9.2 of 92 are false alarms
        assert [shown[:2], re.findall(r"\d+", shown[2])] == [[classes[rare]["label"], "0.2"], ["100", "15", "6", "2"]]
        classes[rare]["thresholds"][0] |= {"sensitivity": None}
        assert rows(tree(page(made)))["What thresholds of the probability would do"][1][2] == NONE


def pooled_mix(made: dict[str, Any]) -> Any:
    """Frequencies of the classes among the samples of all parties."""
    sizes = np.sum([*made["class_sizes"].values()], axis=0)
    return sizes / sizes.sum()


def test_the_figures_of_the_page_are_a_csv_file_without_formulas() -> None:
    made = metrics(3, 2)
    made["evaluation"]["parties"][0]["name"] = "=1+1"
    text = as_csv(made)
    head, *lines = csv.reader(text.splitlines())
    assert head == ["figure", "value", "low", "high"]
    found = {name: list(map(float, values)) for name, *values in lines}
    figures = made["evaluation"]["figures"]
    assert found["figures / overall / auroc"] == figures["overall"]["auroc"]
    assert (
        found["figures / classes / malignant / thresholds / 0.5 / ppv"] == figures["classes"][1]["thresholds"][1]["ppv"]
    )
    assert found["confusion / benign / malignant"] == made["evaluation"]["confusion"][0][1:]
    x, y = figures["classes"][0]["roc"][1]
    assert found[f"figures / classes / benign / roc / {x:g}"] == [y]
    assert not any(line.startswith(("=", "+", "-", "@")) for line in text.splitlines())
    for number, of in enumerate(figures["classes"]):
        of["label"] = number  # which is no figure
    assert not any(line.split(",")[0].endswith("/ label") for line in as_csv(made).splitlines())
    made["evaluation"]["figures"]["overall"]["auroc"] = None  # hidden figures are in neither
    assert "figures / overall / auroc" not in as_csv(made)
    assert as_csv(REPORT).splitlines() == ["figure,value,low,high"]


def test_the_report_of_a_join_is_about_the_federation() -> None:
    made = metrics(4, 2)
    made |= {"action": "join", "parties": made["parties"][3:], "missing": {"Clinic 1": "in the federation already"}}
    made["settings"] |= {"action": "join", "federation": "kept.npz"}
    root = tree(page(made))
    shown = rows(root)["Members of the federation"][1:]
    assert [shown[0], {row[1] for row in shown[1:]}] == [["Clinic 3", "new"], {"already a member"}]
    assert not [row for row in rows(root)["Who took part"] if "Clinic 1" in row[0]]
    pre = root.find(".//pre")
    assert pre is not None
    config = parse_config_args([shlex.split(pre.text or "")[-1]])
    assert (config["action"], config["federation"]) == ("join", "kept.npz")


def test_without_noise_the_page_says_so_and_with_it_the_guarantee() -> None:
    made = metrics()
    assert "exact figures left the parties without noise" in page(made)
    made["settings"]["secure"] = True
    assert "a server that keeps to the protocol sees sums" in page(made)
    made["privacy"] = {"guarantee": "(1, 1e-5)-DP < here", "epsilon": 1.0, "delta": 1e-5, "covers_evaluation": False}
    made["privacy"] |= {"notes": ["Up to <2 may drop out."], "noise_sd": 3.0, "examples_estimate": None}
    assert "Up to &lt;2 may drop out." in page(made)
    assert "(1, 1e-5)-DP &lt; here" in page(made)
    assert ["  not covered", "the confusion matrices behind the figures above"] in rows(tree(page(made)))["Privacy"]
    made["privacy"]["epsilon"] = None
    assert "NONE: seeded noise" in page(made)
    made["sha256"]["equal"] = False
    assert "DIFFERS" in page(made)


def test_empty_sections_are_left_out() -> None:
    titles = [each.text for each in tree(page(REPORT)).iter("h2")]
    assert titles == ["Figures", "Who took part", "Privacy", "Equality", "Settings"]


@pytest.mark.parametrize(("n_parties", "most"), [(10, 300_000), (1000, 500_000)])
def test_the_size_is_bounded_and_what_is_left_out_is_told(n_parties: int, most: int) -> None:
    text = page(metrics(n_parties, 100))
    tree(text)
    assert len(text.encode()) < most
    assert "68 more classes are left out" in text
    assert ("900 more parties are left out" in text) == (n_parties == 1000)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all parts of a value; of a list's entries the first."""
    yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from places(each, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def at(made: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        made = made[step]
    return made


EXAMPLE = metrics(3, 2)
PLACES = list(places(EXAMPLE))
OWN = {"action", "kind"}  # of a fixed list of words
TEXTS = [path for path in PLACES if isinstance(at(EXAMPLE, path), str) and path[-1] not in OWN]


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_party_writes_is_text(text: str) -> None:
    made, plain = metrics(3, 2), page(EXAMPLE)
    for path in TEXTS:
        at(made, path[:-1])[path[-1]] = text
    for key in ("missing", "class_sizes", "traffic", "messages", "settings", "versions"):
        first, *_ = made[key]
        made[key][text] = copy.deepcopy(made[key][first])
    for count in range(2):
        made["classes"][count] = text
    found = page(made)
    root = tree(found)
    assert {each.tag for each in root.iter()} == {each.tag for each in tree(plain).iter()}
    assert len(found) < 2 * len(plain) + 50_000
    assert not re.search("[\0\x1b\x85\ud800\uffff\u202e]", found)


@given(st.text(), st.text())
def test_an_element_keeps_its_text_and_attributes(text: str, attribute: str) -> None:
    found = ElementTree.fromstring(tag("p", text, title=attribute).encode())
    assert len(found) == 0
    assert len(found.text or "") == len(text)
    assert set(found.attrib) == {"title"}


def test_a_party_below_its_floor_has_its_accuracy_with_an_interval() -> None:
    made = metrics()
    party = made["evaluation"]["parties"][0]
    party |= {"name": "few", "accuracy": 0.5, "examples": 4}
    shown = '<th scope="row">few</th><td class="n">4</td><td class="n">0.5000 (0.1500\xa0to\xa00.8500)</td>'
    assert shown in page(made)
