"""The notebooks run as they stand, and were committed with what they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

FOLDER = Path(__file__).parents[2] / "simulations" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {
    "non_iid": ["flwr_datasets"],
    "privacy": ["opendp", "dp_accounting"],
    "your_own_data": ["pandas"],
}


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell.outputs]


def printed(notebook):
    return "".join(
        output.text for output in outputs(notebook) if output.output_type == "stream"
    )


def test_all_are_there():
    assert [path.stem for path in NOTEBOOKS] == sorted(NEEDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(path):
    assert path.stem in NEEDS
    notebook = read(path)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(
        range(1, len(code(notebook)) + 1)
    )
    assert printed(notebook)
    assert not [
        each
        for each in outputs(notebook)
        if each.output_type == "error" or each.get("name") == "stderr"
    ]
    # Of no machine: no path that starts at the root, but for those of the examples.
    roots = set(re.findall(r"(?<![\w.:/])/(\w+)/", path.read_text(encoding="utf-8")))
    assert roots.isdisjoint({"tmp", "home", "root", "work", "usr", "Users", "opt"})


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_the_same_checksums(path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for package in ["matplotlib", *NEEDS[path.stem]]:
        pytest.importorskip(package)
    committed = read(path)
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=500, kernel_name="python3", coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )  # fmt: skip
    client.execute()
    before, after = (
        re.findall(r"\b[0-9a-f]{64}\b", printed(each)) for each in (committed, notebook)
    )
    assert before == after
    # Bytes too; what FedAvg learns may differ in the last place between machines,
    # FlyNN's counts do not.
    sizes = [
        re.findall(r"^.*\d (?:kB|bytes)\b.*$", printed(each), re.MULTILINE)
        for each in (committed, notebook)
    ]
    assert sizes[0] == sizes[1]
    if path.stem == "non_iid":
        assert len(after) == 2
        assert after[0] == after[1]
