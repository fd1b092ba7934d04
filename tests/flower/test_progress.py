"""Lines about work that takes long."""

from __future__ import annotations

import threading

from flwr_flynn.flower import progress
from flwr_flynn.flower.progress import Progress


def test_a_long_step_has_lines_while_it_goes_on(
    monkeypatch,
):
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "LATER", 0.01)
    lines = list[str]()
    is_written = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        is_written.set()

    with Progress(write) as steps:
        steps.step("counts: Ulm", 0, 4)
        assert is_written.wait(10)
        steps.step("counts: Bern", 3, 4)
        steps._first = steps._latest - 60
        line = steps.line(steps._latest + 5)
        assert line == "counts: Bern (3 of 4 done), about 15 s left"
    assert lines[0] == "counts: Ulm (0 of 4 done)"


def test_a_short_run_has_none():
    lines = list[str]()
    with Progress(lines.append) as steps:
        steps.step("counts: Ulm", 0, 1)
    assert lines == []
