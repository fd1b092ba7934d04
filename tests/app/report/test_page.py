"""The page of a run: its figures, its markup, and names that come from anybody."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.app.report.accuracy_sections import as_csv
from flwr_flynn.app.report.derived import derived, thresholds
from flwr_flynn.app.report.markup import NONE, tag
from flwr_flynn.app.report.page import left_page, page
from flwr_flynn.model.heterogeneity import heterogeneity
from flwr_flynn.model.metrics import GRID, THRESHOLDS
from tests.app.report.example import FOLDER, REPORT, metrics
from tests.snapshots import assert_on_record

LOADING = {
    "src",
    "srcset",
    "data",
    "poster",
    "action",
    "formaction",
    "background",
    "cite",
    "ping",
}
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
    for name in ("h1", "main", "nav"):
        assert len(list(root.iter(name))) == 1, name
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        assert element.tag not in (
            "script",
            "link",
            "iframe",
            "object",
            "embed",
            "img",
            "base",
            "form",
        )
        assert not {
            name for name in element.attrib if name in LOADING or name.startswith("on")
        }
        assert element.get("href", "#")[:1] == "#"
        assert "url(" not in (element.get("style") or "")
        if element.tag == "svg":
            assert element.get("role") == "img"
            assert [child.tag for child in element[:2]] == ["title", "desc"]
        if element.tag == "table":
            assert element[0].tag == "caption"
            assert all(head.get("scope") for head in element.iter("th"))
    style = root.find("head/style")
    assert style is not None
    assert not re.search(r"url\(|@import|expression", style.text or "")
    regions = [
        element.get("aria-label")
        for element in root.iter()
        if element.get("role") == "region"
    ]
    assert len(regions) == len(set(regions))
    return root


def shown(report: dict[str, Any]) -> str:
    """The text of a page, line by line: rows of tables, headings, paragraphs, titles."""
    lines = []
    root = tree(page(report))
    for element in root.iter():
        if element.tag == "tr":
            lines.append(" | ".join("".join(cell.itertext()) for cell in element))
        elif element.tag in ("h1", "h2", "caption", "title", "desc", "p", "summary"):
            lines.append("".join(element.itertext()))
    return "\n".join(lines)


def changed(changes: dict[str, Any], *sizes: int, **parts: Any) -> dict[str, Any]:
    """The example with other parts.

    A change within parts goes by their names with blanks between.
    """
    made = metrics(*sizes)
    for path, value in changes.items():
        *steps, last = map(step_of, path.split())
        at(made, tuple(steps))[last] = value
    return made | parts


def step_of(name: str) -> int | str:
    if name.isdigit():
        return int(name)
    return name


OF_CLASSES = "evaluation figures classes"
NOISY = {"guarantee": "(1, 1e-5)-DP < here", "epsilon": 1.0, "delta": 1e-5}
NOISY |= {
    "notes": ["Up to <2 may drop out."],
    "noise_sd": 3.0,
    "examples_estimate": None,
}
FEW = {"name": "few", "accuracy": 0.5, "examples": 4}
JOIN = {"action": "join", "missing": {"Clinic 1": "in the federation already"}}


def of_two(rare: int, share: float) -> dict[str, Any]:
    """A binary outcome, of whose classes one is rarer; thresholds find such a share."""
    own = 16
    rest = 184
    flagged = [[round(share * own * (1 - at)), 5] for at in GRID]
    changes = {
        "event": {"label": metrics()["classes"][rare], "index": rare, "why": "rarer"},
        f"{OF_CLASSES} {rare} examples": own,
        f"{OF_CLASSES} {rare} others": rest,
        f"{OF_CLASSES} {rare} flagged": flagged,
        f"{OF_CLASSES} {1 - rare} examples": rest,
        f"{OF_CLASSES} {1 - rare} others": own,
    }
    return changed(changes, 3, 2)


def test_pages_show_what_is_on_record():
    made = {
        "empty": REPORT,
        "three classes": metrics(),
        "the first class is rarer": of_two(0, 1.0),
        "the second class is rarer, and no threshold finds it": of_two(1, 0.0),
        "a join": changed(
            {"settings action": "join"},
            4,
            2,
            parties=metrics(4, 2)["parties"][3:],
            **JOIN,
        ),
        "secure": changed({"settings secure": True}, 3, 2),
        "private": changed({"settings secure": True}, 3, 2, privacy=NOISY),
        "seeded and unequal": changed(
            {"sha256 equal": False}, 3, 2, privacy=NOISY | {"epsilon": None}
        ),
        "a party below its floor": changed({"evaluation parties 0": FEW}, 3, 2),
    }
    assert_on_record(
        FOLDER / "pages.txt",
        "".join(f"# {name}\n{shown(report)}\n\n" for name, report in made.items()),
    )
    assert "6 times counts" in shown(
        changed(
            {"messages counts fields": metrics()["messages"]["counts"]["fields"] * 6}
        )
    )


def test_the_command_on_the_page_has_the_settings_of_the_run():
    made = metrics()
    settings = {
        "alpha": 0.3,
        "seed": 7,
        "classes": 'a b,"c",d\'e\\f $x',
        "center": "\u00fc\tx",
        "decay": "0.5",
    }
    made["settings"] = {"dataset": "digits", "output-dir": "out", **settings}
    pre = tree(page(made)).find(".//pre")
    assert pre is not None
    *start, config = shlex.split(pre.text or "")
    assert start == [
        "flwr",
        "run",
        ".",
        "--federation-config",
        "num-supernodes=11",
        "--run-config",
    ]
    assert parse_config_args([config]) == settings


def test_the_figures_of_the_page_are_a_csv_file_without_formulas():
    made = changed({"evaluation parties 0 name": "=1+1"}, 3, 2)
    text = as_csv(made)
    assert not any(line.startswith(("=", "+", "-", "@")) for line in text.splitlines())
    assert_on_record(FOLDER / "figures.csv.txt", text)
    # A label that is a number is no figure.
    of_numbers = changed(
        {f"{OF_CLASSES} {number} label": number for number in (0, 1)}, 3, 2
    )
    assert not any(
        line.split(",")[0].endswith("/ label")
        for line in as_csv(of_numbers).splitlines()
    )
    # Hidden figures are in neither.
    hidden = changed({"evaluation figures overall auroc": None})
    assert "figures / overall / auroc" not in as_csv(hidden)
    assert as_csv(REPORT).splitlines() == ["figure,value,low,high", "run,7"]


def test_the_size_is_bounded_and_classes_that_are_left_out_are_told():
    text = page(metrics(10, 100))
    tree(text)
    assert len(text.encode()) < 300_000
    assert "68 more classes are left out" in text
    assert "more parties are left out" not in text


def test_the_size_is_bounded_and_parties_that_are_left_out_are_told():
    text = page(metrics(1000, 100))
    tree(text)
    assert len(text.encode()) < 500_000
    assert "68 more classes are left out" in text
    assert "900 more parties are left out" in text


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all parts of a value; of a list's entries the first."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def at(made: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        made = made[step]
    return made


EXAMPLE = metrics(3, 2)
PLACES = list(places(EXAMPLE))
OWN = {"action", "kind"}  # of a fixed list of words
TEXTS = [
    path
    for path in PLACES
    if isinstance(at(EXAMPLE, path), str) and path[-1] not in OWN
]


def tags_of(text: str) -> set[str]:
    return {element.tag for element in tree(text).iter()}


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_party_writes_is_text(text):
    made = metrics(3, 2)
    plain = page(EXAMPLE)
    for path in TEXTS:
        at(made, path[:-1])[path[-1]] = text
    for key in (
        "missing",
        "class_sizes",
        "traffic",
        "messages",
        "settings",
        "versions",
    ):
        first, *_ = made[key]
        made[key][text] = copy.deepcopy(made[key][first])
    for count in range(2):
        made["classes"][count] = text
    hostile = page(made)
    assert tags_of(hostile) == tags_of(plain)
    assert len(hostile) < 2 * len(plain) + 50_000
    assert not re.search("[\0\x1b\x85\ud800\uffff\u202e]", hostile)


@given(st.text(), st.text())
def test_an_element_keeps_its_text_and_attributes(text, attribute):
    element = ElementTree.fromstring(tag("p", text, title=attribute).encode())
    assert len(element) == 0
    assert len(element.text or "") == len(text)
    assert set(element.attrib) == {"title"}


# ---- figures that follow


def heart() -> dict[str, Any]:
    """Two classes at four sites, of which the last validates only."""
    return changed({"settings thresholds": ".02, 0.05 .2"}, 4, 2)


def test_the_first_sentence_is_about_the_event_at_the_first_threshold():
    made = heart()
    of_event = made["evaluation"]["figures"]["classes"][0]
    own = of_event["examples"]
    rest = of_event["others"]
    found, wrong = of_event["flagged"][3]
    n = own + rest
    text = (
        f"Of 100 rows like these, flagging benign at 2 % finds {100 * found / n:.0f} of "
        f"{100 * own / n:.0f} and flags {100 * wrong / n:.0f} wrongly"
    )
    assert text in shown(made)
    _, low, high = derived(made)["heterogeneity"]["without"]["prediction"]
    assert f"expect an AUROC of {low:.2f} to {high:.2f}." in shown(made)
    assert "flagging benign at 20 %" in shown(metrics(4, 2))
    assert thresholds(made) == [0.02, 0.05, 0.2]
    assert thresholds(metrics()) == [*THRESHOLDS]


def test_two_sites_have_no_prediction_and_the_least_area_without_one_is_told():
    made = changed({}, 2, 2)
    least = min(site["without"]["auroc"][0] for site in made["sites"])
    assert derived(made)["heterogeneity"]["without"]["prediction"] is None
    text = f"at a site whose rows were taken out its AUROC was {least:.2f}, the lowest"
    assert text in shown(made)


@pytest.mark.parametrize(
    ("action", "mark"),
    [("train", ""), ("evaluate", ""), ("join", " (joined)"), ("update", " (updated)")],
)
def test_the_party_that_a_run_changes_is_marked(action, mark):
    made = metrics(4, 2) | {"action": action}
    change = {"examples": 40, "sha256": ["ab" * 32]}
    made["parties"] = made["parties"][1:2]
    if action == "update":
        made["updates"] = [{"party": "Clinic 1", "before": change, "now": change}]
    root = tree(page(made))
    names = {row[0].text for row in root.iter("tr")}
    assert {f"Clinic 1{mark}", "Clinic 3"} <= names


def test_figures_that_follow_are_those_of_the_report():
    made = heart()
    follows = derived(made)
    trained = [site for site in made["sites"] if not site["is_validation"]]
    assert len(trained) == len(made["sites"]) - 1
    areas = [site["held_out"]["auroc"] for site in trained]
    assert follows["heterogeneity"]["held_out"] == heterogeneity(areas)
    assert follows["heterogeneity"].keys() == {"held_out", "without"}
    of_event = made["evaluation"]["figures"]["classes"][0]
    n = of_event["examples"] + of_event["others"]
    assert len(follows["decision"]) == 99
    for row in follows["decision"]:
        price = row["threshold"] / (1 - row["threshold"])
        benefit = (row["found"] - price * row["false_alarms"]) / n
        assert row["net_benefit"] == pytest.approx(benefit)
    low, high = made["evaluation"]["figures"]["overall"]["auroc"][1:]
    assert follows["standard_errors"]["AUROC"] == pytest.approx(
        (high - low) / 3.92, rel=1e-4
    )
    # All levels have the same rates.
    assert follows["gaps"]["true positive rate"] == [0, 0.8, 0.8]
    assert follows["gaps"]["false positive rate"] == [0, 0.25, 0.25]
    for key in (
        "sites / Clinic 1 / alone / paired / only alone",
        "decision / 0.2 / found",
    ):
        assert re.search(f"^{re.escape(key)},", as_csv(made), re.MULTILINE), key


@pytest.mark.parametrize("missing", ["sites", "classes", "held_out"])
def test_a_report_with_less_has_a_page(missing):
    made = heart()
    figures = made["evaluation"]["figures"]
    if missing == "sites":
        made["sites"] = []
    elif missing == "classes":
        figures["classes"][0] |= {"examples": 0, "others": 0, "roc": []}
    else:
        for site in made["sites"]:
            site |= dict.fromkeys(("held_out", "without", "alone"))
    tree(page(made))
    assert as_csv(made)


def test_items_are_filled_or_named_blanks():
    root = tree(page(heart()))
    table = root.find(".//table[@class='items']/tbody")
    assert table is not None
    rows = [["".join(cell.itertext()) for cell in row] for row in table]
    numbers = {item.split()[0].strip("abcdefg") for item, _ in rows}
    assert numbers == {*map(str, range(1, 28)), "C1", "C2", "C3", "C4"}
    assert sum(not text.startswith("to be written: ") for _, text in rows) >= 12
    assert all(text for _, text in rows)


def test_no_part_of_a_page_is_wider_than_a_phone():
    for text in (page(heart()), left_page(LEFT)):
        root = tree(text)
        parents = {child: parent for parent in root.iter() for child in parent}
        for element in root.iter():
            if element.tag == "table":
                assert "scroll" in (parents[element].get("class") or "")
                is_stacked = "wide" in (element.get("class") or "")
                assert is_stacked == (len(list(element[1][0])) > 3)
                heads = {cell.get("data-head") for cell in element.iter("td")}
                names = ["".join(cell.itertext()) for cell in element[1][0]]
                assert heads <= {*names[1:], None}
            width = element.get("width") or "0"
            assert width.endswith("%") or float(width) <= 342
        for width in re.findall(r"(?<!max-)(?<!-)width:([\d.]+)(rem|px)", text):
            assert float(width[0]) * {"rem": 16, "px": 1}[width[1]] <= 342


# ---- the page about what left

COLUMNS = [
    {"name": "age", "kind": "number", "gaps": False},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
    {"name": "bmi", "kind": "number", "unit": "kg/m2", "gap_texts": ["-9"]},
]
SCHEMA = {"columns": COLUMNS, "is_learned": True, "remarks": []}
SCHEMA |= {"left_out": {"mrn": "ids"}, "n_remarks": 0, "coinciding": {}}
EDGES = [[30.0, 41.5, 41.5], *[[0.0]] * 3, [18.25, 31.0], [0.0]]
LEFT = changed({"members 0 spec": {"edges": EDGES}}, 3, 2, schema=SCHEMA)


def test_the_page_about_what_left_names_words_and_values():
    root = tree(left_page(LEFT))
    rows = {
        (table.findtext("caption"), row[0].text): [
            "".join(cell.itertext()) for cell in row[1:]
        ]
        for table in root.iter("table")
        for row in table.iter("tr")
    }
    words = "Names, levels and words"
    assert rows[words, "sex"] == ["category", "female, male", "", ""]
    assert rows[words, "bmi"] == ["number", NONE, "-9", "kg/m2"]
    assert rows[words, "mrn"][0] == "left out"
    assert rows["Values of columns", "age"] == ["at 30, 41.5"]
    assert rows["Values of columns", "bmi"] == ["at 18.25, 31"]
    assert rows["Recipients", "taking rows out"]
    tree(left_page(REPORT))
