"""The Ray cluster of docs/how_to/experiments.md: two nodes on this machine.

They are started by the commands that stand there.
"""

from __future__ import annotations

import csv
import shlex
import shutil
import tempfile

import pytest

from tests.docs.pages import blocks

from .conftest import Flower, free_ports
from .test_pages import checkout

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/how_to/experiments.md"


def test_experiments_on_two_nodes_give_the_counts_of_one_process(
    tmp_path,
):
    flower = Flower(tmp_path.resolve() / "cluster")
    flower.cwd = checkout(tmp_path / "flwr-flynn")
    (port,) = free_ports(1)
    head, other, experiments, end = (
        block.replace("29200", str(port)) for block in blocks(PAGE, "bash")
    )
    # This ends every Ray of the machine: here only our own processes are ended.
    assert end == "ray stop\n"
    short = tempfile.mkdtemp(prefix="ray")  # the path of a socket has at most 107 bytes
    flower.env["RAY_TMPDIR"] = short
    try:
        flower.shell(head)
        flower.shell(other)
        count = (
            f'import ray; ray.init("127.0.0.1:{port}"); print(len(ray.nodes()), '
            '"nodes")'
        )
        nodes = flower.shell(f"python -c {shlex.quote(count)}")
        assert "2 nodes" in nodes
        for line in experiments.splitlines():
            flower.shell(line)
    finally:
        flower.stop()
        shutil.rmtree(short, ignore_errors=True)
    with (flower.cwd / "results" / "scale" / "federations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["where"] for row in rows} == {"process", "ray"}
    assert {row["pooled"] for row in rows} == {"the same"}
