"""Pages of the documentation: what their Python prints, and where their links lead.

`tests/integration/test_pages.py` runs the pages with shell commands from top to bottom.
"""

from __future__ import annotations

import re
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.docs.pages import PAGES, ROOT, all_blocks, blocks, run_python, text_of

COMMANDS_RUN_BY = {
    "README.md": (".ci/run",),
    "docs/contributing.md": (".ci/run",),
    "docs/how_to/deploy_tls.md": (
        "tests/integration/test_tls.py",
        "tests/integration/test_deployment.py",
    ),
    "docs/how_to/experiments.md": ("tests/integration/test_ray_cluster.py",),
    "docs/how_to/bedside.md": ("tests/app/test_cli.py",),
    "docs/how_to/files.md": ("tests/app/test_cli.py",),
    "docs/how_to/install.md": ("tests/integration/test_installed.py",),
    "docs/how_to/own_app.md": ("tests/integration/test_message.py",),
    "docs/tutorial/own_data.md": ("tests/integration/test_own_data.py",),
}
"""Pages whose shell commands need a test of their own;
`tests/integration/test_pages.py` runs all others."""

WITH_COMMANDS = [page for page in PAGES if blocks(page, "bash")]
INSTALLS = {"docs/contributing.md", "docs/index.md", "docs/tutorial/digits.md"}
"""Pages with blocks `sh`, as README's first command is one."""

PYTHON_ONLY = [
    page
    for page in PAGES
    if blocks(page, "python") and (page in COMMANDS_RUN_BY or page not in WITH_COMMANDS)
]


@pytest.mark.parametrize("page", PYTHON_ONLY)
def test_the_python_of_a_page_runs_and_prints_what_the_page_says(
    page, tmp_path, monkeypatch
):
    for package in ("flwr", "pandas", "opendp", "dp_accounting"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    # README imports this module of the reader's own app.
    theirs = types.ModuleType("my_app.task")
    theirs.load_data = lambda context: ([[0.0]], [0], [[0.0]], [0])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_app", types.ModuleType("my_app"))
    monkeypatch.setitem(sys.modules, "my_app.task", theirs)
    names: dict[str, Any] = {"__name__": "page"}
    for block in all_blocks(page):
        if block.language == "python":
            printed = run_python(block.text, page, names)
            assert block.output is None or printed == block.output


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(
        r"^#{1,6} (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    labels = re.findall(r"^\((\S+)\)=$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    } | set(labels)


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_inside_the_documentation_lead_somewhere(page):
    outside_blocks = re.sub(
        r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", outside_blocks):
        if re.match(r"(https?|mailto):", target):
            continue
        file, _, anchor = target.partition("#")
        if file:
            there = ((ROOT / page).parent / file).resolve()
        else:
            there = ROOT / page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


N_METHODS = 11  # lines of the first table of the pages of rivals, at most


def rows(text: str) -> list[list[str]]:
    """The rows of all tables of a page, as cells."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]


def by_method(page: str) -> dict[str, dict[str, str]]:
    """The lines of the first table of a page of results, by method and heading."""
    heads, _, *lines = rows(text_of(page))
    methods = [dict(zip(heads, line, strict=False)) for line in lines[:N_METHODS]]
    return {line["method"]: line for line in methods}


def test_the_results_are_those_that_the_experiments_wrote():
    written = rows(text_of("docs/results/rivals.md"))
    shown = rows(text_of("docs/index.md"))
    assert shown[0] == written[0]
    assert len(shown[2:]) > 5
    for row in shown[2:]:
        assert row in written[: 2 + N_METHODS]
    readme = " ".join(text_of("README.md").split())
    rivals = by_method("docs/results/rivals.md")
    for method, unit in {
        "FlyNN": "kB",
        "ridge": "kB",
        "boosting, 100 trees": "MB",
    }.items():
        line = rivals[method]
        amount = line["kB a party, median"]
        if unit == "MB":
            amount = f"{float(amount) / 1000:.2g}"
        spent = f"{amount} {unit} in {line['exchanges, median']}"
        assert f"{line['balanced accuracy']} at {spent}" in readme
    large = by_method("docs/results/large.md")
    for method in ("FlyNN", "FlyNN thorough", "boosting, early stopping"):
        accuracy = large[method]["balanced accuracy"]
        loss = large[method]["log-loss"]
        for page in (readme, " ".join(text_of("docs/index.md").split())):
            assert re.search(rf"{accuracy} \((log-loss )?{loss}\)", page)
    counts = rivals["boosting, 100 trees"]["FlyNN ahead / equal / behind"]
    ahead, _, behind = counts.split("/")
    assert int(ahead) < int(behind)
    assert f"boosting was ahead of the default on {behind} of those 36 tables" in readme


def test_the_gallery_has_the_hospitals_of_the_tutorial():
    made = blocks("docs/tutorial/own_data.md", "python")[0].partition("folder = Path()")
    assert made[2].strip() in text_of("docs/examples/plot_00_three_hospitals.py")


def test_every_page_with_commands_has_its_test():
    assert set(COMMANDS_RUN_BY) <= set(WITH_COMMANDS)
    for page, tests in COMMANDS_RUN_BY.items():
        for test in tests:
            assert page in (ROOT / test).read_text(encoding="utf-8"), test
    pages_with_sh = {page for page in PAGES if blocks(page, "sh")}
    assert pages_with_sh == INSTALLS | {"docs/how_to/deploy_tls.md"}
    for page in INSTALLS:
        for block in blocks(page, "sh"):
            assert block.startswith("python3 -m venv"), page


def test_ci_runs_the_commands_of_readme_and_of_the_page_for_contributors():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for page in (
        page for page, tests in COMMANDS_RUN_BY.items() if tests == (".ci/run",)
    ):
        for number, block in enumerate(blocks(page, "bash"), start=1):
            assert f"page_block {page} {number}" in script
            # The page has the only copy.
            for line in block.splitlines():
                assert line not in script


def test_the_tables_of_settings_are_those_of_the_package(
    monkeypatch,
):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    written = import_module("settings_tables")
    for path, settings in written.PAGES.items():
        assert path.read_text(encoding="utf-8") == written.page_with(
            path.read_text(encoding="utf-8"), settings
        )


def test_guides_open_with_a_question_by_which_their_index_lists_them():
    for page in PAGES:
        if re.match(r"docs/(how_to|tutorial|explanation)/(?!index)", page):
            folder, _, name = page.rpartition("/")
            assert "?" in text_of(page).split("\n\n")[1], page
            assert re.search(
                rf"^- .*\?.*\({name}\)", text_of(f"{folder}/index.md"), re.M
            )


def test_an_error_without_a_text_has_its_type_in_the_warning_of_a_formula(monkeypatch):
    pytest.importorskip("ziamath")
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    formulas = import_module("svg_formulas")
    monkeypatch.setattr(formulas, "svg", Mock(side_effect=KeyError))
    monkeypatch.setattr(formulas, "_log", Mock())
    formulas._formula(formulas.nodes.math("", "x"), True)
    assert formulas._log.warning.call_args.args[2] == "KeyError"


def test_guides_and_reference_stay_short():
    pages = [
        page
        for page in PAGES
        if re.match("docs/(how_to|reference|tutorial|explanation)/", page)
    ]
    prose = [
        re.sub(r"<!-- settings.*?<!-- end", "", text_of(page), flags=re.DOTALL)
        for page in pages
    ]
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    n_words = sum(len(code.sub("", text).split()) for text in prose)
    assert n_words <= 13_000
    assert 500 <= len(text_of("README.md").split()) <= 850
