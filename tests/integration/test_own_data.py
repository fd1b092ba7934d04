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


def test_three_hospitals_as_they_are(deployment):
    flower = deployment({})
    flower.call(sys.executable, "-c", blocks(PAGE, "python")[0])
    (trial,), processes, (train,), use = (
        block.splitlines() for block in blocks(PAGE, "bash")
    )
    flower.shell(trial)
    assert Path(flower.cwd, "tried", "report.html").exists()
    places = flower.places()
    for name, line in zip(
        ("hospital1", "hospital2", "hospital3"), processes[1:], strict=True
    ):
        flower.start(name, *command_of(line, places))
    done = flower.finished(flower.call(*command_of(train, places)))
    assert done.row("parties counted") == "3 of 3"
    assert (
        done.row("columns")
        == "2 number, 1 category, 1 date; 1 with gaps; learned from the parties"
    )
    assert float(done.row("accuracy").split()[0]) > 0.75
    (left_out,) = (
        block.text.strip() for block in all_blocks(PAGE) if block.language == "text"
    )
    assert left_out in done.output
    second = (flower.folder / "hospital2.log").read_text()
    assert "separator ';'" in second or "semicolon" in second
    assert Path(flower.cwd, "model1.npz").exists()
    shown = flower.shell("\n".join(use))
    assert shown.endswith(str([block.output for block in all_blocks(PAGE)][-1]))
    model = FlyNNClassifier.load(flower.cwd / "model1.npz").model_
    assert model.schema is not None
    assert model.schema.names == ("admitted", "age", "crp", "ward")
    assert "hospice" in model.schema.columns[-1].levels
