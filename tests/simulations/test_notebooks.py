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
    for number, cell in enumerate(code(notebook), 1):
        assert cell.execution_count == number
    assert printed(notebook)
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
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
    before = printed(committed)
    after = printed(notebook)
    digests = re.findall(r"\b[0-9a-f]{64}\b", after)
    assert digests == re.findall(r"\b[0-9a-f]{64}\b", before)
    # Bytes too; what FedAvg learns may differ in the last place between machines,
    # FlyNN's counts do not.
    sizes = re.compile(r"^.*\d (?:kB|bytes)\b.*$", re.MULTILINE)
    assert sizes.findall(after) == sizes.findall(before)
    if path.stem == "non_iid":
        assert len(digests) == 2
        assert digests[0] == digests[1]
