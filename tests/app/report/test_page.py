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
from flwr_flynn.app.report.markup import tag
from flwr_flynn.app.report.page import page
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
ROW = {
    "threshold": 0.2,
    "sensitivity": [0.75, 0.5, 0.9],
    "specificity": [0.9, 0.8, 1],
    "ppv": None,
    "npv": None,
}
SEES_NONE = ROW | {"sensitivity": None}
NOISY = {"guarantee": "(1, 1e-5)-DP < here", "epsilon": 1.0, "delta": 1e-5}
NOISY |= {
    "notes": ["Up to <2 may drop out."],
    "noise_sd": 3.0,
    "examples_estimate": None,
}
FEW = {"name": "few", "accuracy": 0.5, "examples": 4}
JOIN = {"action": "join", "missing": {"Clinic 1": "in the federation already"}}


def of_two(rare: int, row: dict[str, Any]) -> dict[str, Any]:
    """A binary outcome, of whose classes one is rarer."""
    sizes = {f"{OF_CLASSES} {rare} examples": 16, f"{OF_CLASSES} {rare} others": 184}
    sizes["event"] = {
        "label": metrics()["classes"][rare],
        "index": rare,
        "why": "rarer",
    }
    sizes |= {
        f"{OF_CLASSES} {1 - rare} examples": 184,
        f"{OF_CLASSES} {1 - rare} others": 16,
    }
    return changed(sizes | {f"{OF_CLASSES} {rare} thresholds": [row]}, 3, 2)


def test_pages_show_what_is_on_record():
    made = {
        "empty": REPORT,
        "three classes": metrics(),
        "the first class is rarer": of_two(0, ROW),
        "the second class is rarer, and no threshold finds it": of_two(1, SEES_NONE),
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
