"""docs/tutorial/own_data.md from top to bottom.

There are three messy files, a schema that nobody wrote, and predictions.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flwr_flynn import FlyNNClassifier
from tests.docs.pages import all_blocks, blocks

from .conftest import command_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/tutorial/own_data.md"
SITES = ("basel", "bern", "chur")


def words_of(text: str) -> set[str]:
    """The lines of a text, whatever their blanks."""
    return {" ".join(line.split()) for line in text.splitlines()}


def test_three_hospitals_as_they_are(deployment):
    flower = deployment({})
    flower.call(sys.executable, "-c", blocks(PAGE, "python")[0])
    refused, mend, trial, processes, train, use = blocks(PAGE, "bash")
    faults, figures = blocks(PAGE, "text")
    *_, last = all_blocks(PAGE)
    assert words_of(faults) <= words_of(flower.call("bash", "-c", refused))
    assert not Path(flower.cwd, "flwr-flynn-try").exists()
    flower.shell(mend)
    assert words_of(figures) <= words_of(flower.shell(trial))
    assert Path(flower.cwd, "tried", "report.html").exists()
    places = flower.places()
    for name, line in zip(SITES, processes.splitlines()[1:], strict=True):
        flower.start(name, *command_of(line, places))
    done = flower.finished(flower.call(*command_of(train.strip(), places)))
    assert done.row("parties counted") == "3 of 3"
    assert (
        done.row("columns")
        == "3 number, 1 category, 1 date; 1 with gaps; learned from the parties"
    )
    assert float(done.row("accuracy").split()[0]) > 0.75
    assert "semicolon" in (flower.folder / "bern.log").read_text()
    assert Path(flower.cwd, "basel.html").exists()
    assert flower.shell(use).endswith(str(last.output))
    model = FlyNNClassifier.load(flower.cwd / "bern.npz").model_
    assert model.schema is not None
    assert model.schema.names == ("admitted", "age", "creatinine", "crp", "ward")
    assert model.schema.columns[-1].levels == ("internal medicine", "surgery")
