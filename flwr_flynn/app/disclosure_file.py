"""A party's record of what left it: a file of one JSON line for each message, and a page beside it to read.

A line is on the disk before its message leaves. The page follows from the lines; it may be deleted.
"""

from __future__ import annotations

import html
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from flwr_flynn._files import settle, writing
from flwr_flynn.federated.disclosure import Disclosure
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE

ENDING = ".jsonl"
_MOST_ROWS = 1000  # of the page: the latest messages

KINDS = {
    EXACT: "exact figures, in clear",
    NOISY: "counts with noise, in clear",
    SECURE: "a summand of a secure sum, masked",
    RESULTS: "exact results on held-out samples, in clear",
    NOTHING: "nothing about the samples",
}
"""Kinds of disclosure in plain words."""

_STYLE = "body{font:15px sans-serif;margin:2em}td,th{padding:.3em .8em;text-align:left;vertical-align:top}"


def recorder(path: Path, run_id: int) -> Callable[[Disclosure], None]:
    """A function for the option `on_answer` of a party: it adds a line to the file, and makes the page again."""

    def record(disclosure: Disclosure) -> None:
        line = disclosure.to_json(run=str(run_id)).encode() + b"\n"
        is_new, flags = not path.exists(), os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            cut_off = os.fstat(descriptor).st_size and os.lseek(descriptor, -1, os.SEEK_END) is not None
            if cut_off and os.read(descriptor, 1) != b"\n":  # the last line of a process that was killed meanwhile
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise OSError("a line was cut off")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            settle(path.parent)
        try:
            with writing(path.with_suffix(".html"), 0o600) as stream:
                stream.write(page(lines(path), path.name).encode())
        except Exception as error:  # noqa: BLE001 - the line is written, and the page may wait
            log(logging.WARNING, "FlyNN: the page of what left this party is not up to date", exc_info=error)

    return record


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record, without those that a crash cut off."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


# ---- the page


def page(records: list[dict[str, Any]], name: str) -> str:
    """The page of some lines, by the name of their file."""
    heads = "<tr>" + "".join(f"<th>{each}" for each in ("Time (UTC)", "Run", "Phase", "What left", "Bytes")) + "\n"
    rows = [_row(each) for each in reversed(records[-_MOST_ROWS:])]
    total = sum(each["bytes"] for each in records)
    shown = f"; the latest {_MOST_ROWS} are below" if len(records) > _MOST_ROWS else ""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>What left this site</title>'
        f"<style>{_STYLE}</style>\n<h1>What left this site</h1>\n"
        f"<p>{len(records)} messages, {total} bytes{shown}. Each is a line of {_text(name)}, written before the "
        f"message left. File and page have exact figures about this site: they stay here.</p>\n"
        f"<table>\n{heads}{''.join(rows)}</table>\n</html>\n"
    )


def _row(record: dict[str, Any]) -> str:
    """One message as a row of the table."""
    if record["refused"] is not None:
        told = [f"Refused: {record['refused']}"]
    else:
        told = [f"{KINDS.get(record['kind'], record['kind'])}; number of samples sent along: {record['examples']}"]
    for array in record["arrays"]:
        least = "" if array["least"] is None else f", at least {array['least']} samples behind each figure"
        size = " x ".join(map(str, array["shape"]))
        told.append(f"{', '.join(array['fields'])}: {size} {array['dtype']}, {array['bytes']} bytes{least}")
    if record["entries"]:
        told.append(f"entries: {', '.join(record['entries'])}")
    cells = (record["time"], record["run"], record["phase"], "\n".join(told), record["bytes"])
    return "<tr>" + "".join(f"<td>{_text(cell)}" for cell in cells) + "\n"


def _text(value: object) -> str:
    """A value as text of a page, whatever it holds."""
    return html.escape(str(value)).replace("\n", "<br>")
