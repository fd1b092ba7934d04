"""Texts on record: what the app prints, whole, and how each of many values is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr_flynn.errors import FlyNNError


def assert_on_record(path: Path, text: str) -> None:
    """Require the text on record, but for blanks at the ends.

    With RECORD=1 in the environment, tests write it anew.
    """
    text = "\n".join(line.rstrip(" ") for line in text.split("\n")).rstrip("\n") + "\n"
    if os.environ.get("RECORD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def assert_refused_as_on_record(
    path: Path, takes: Mapping[str, Callable[[Any], object]]
) -> None:
    """Give each value of a record to the function of its kind, which must refuse it.

    The error is the one on record.

    A line is `kind value -> type of the error, and its field`; the value is JSON. A
    function may return its own text; what else it returns was taken, which no record
    may say.
    """
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        case = line.partition(" ->")[0]
        kind, _, value = case.partition(" ")
        try:
            told = takes[kind](json.loads(value))
            assert isinstance(told, str), f"taken: {case}"
        except FlyNNError as error:
            told = f"{type(error).__name__} {error.field}"
        lines.append(f"{case} -> {told}\n")
    assert {line.partition(" ")[0] for line in lines} == takes.keys()
    assert_on_record(path, "".join(lines))
