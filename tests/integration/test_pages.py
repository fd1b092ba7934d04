"""Pages of the documentation with shell commands, followed from top to bottom.

They run in a copy of the checkout.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, all_blocks, run_python
from tests.docs.test_pages import COMMANDS_RUN_BY, WITH_COMMANDS

# The commands run as readers run them.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


MAY_DIFFER = ("output folder",)
"""Rows of a report with a folder. Those with bytes, which the version of zlib may
change, may differ, too."""


def checkout(folder: Path) -> Path:
    """The checkout as a clone would have it, with what is not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        pytest.skip("the list of the checkout's files comes from git")
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if page not in COMMANDS_RUN_BY]
)
def test_the_commands_of_a_page(page, flower, tmp_path, monkeypatch):
    """Bash blocks and Python blocks run in their order.

    What Python prints is what the page says.

    Each page has a checkout of its own; one SuperLink does for all.
    """
    flower.cwd = checkout(tmp_path / "flwr-flynn")
    monkeypatch.chdir(flower.cwd)
    names: dict[str, Any] = {"__name__": "page"}
    output = ""
    for block in all_blocks(page):
        if block.language == "bash":
            output = flower.shell(block.text)
            if "flwr run" in block.text:
                flower.finished(output)
        elif block.language == "text" and block.text.startswith("FlyNN\n"):
            # This is the report of the run before.
            printed_rows = {" ".join(line.split()) for line in output.splitlines()}
            for row in (" ".join(line.split()) for line in block.text.splitlines()):
                assert (
                    row in printed_rows
                    or row.startswith(MAY_DIFFER)
                    or row.endswith(" down")
                ), row
        elif block.language == "python":
            printed = run_python(block.text, page, names)
            assert block.output is None or printed == block.output
