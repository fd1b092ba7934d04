"""A party's record of what left it: a file of one JSON line for each message, and a
page beside it to read.

A line is on the disk before its message leaves. The page follows from the lines; it may
be deleted.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from flwr_flynn._files import settle, writing
from flwr_flynn.app.report.markup import (
    count,
    in_bytes,
    joined,
    shortened,
    table,
    tag,
    whole_page,
)
from flwr_flynn.federated import plan as plan  # makes the requests of its phases known
from flwr_flynn.federated import request
from flwr_flynn.federated.permissions import Disclosure
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE

ENDING = ".jsonl"
# of the page: the latest messages, so that its cost does not grow with the file
_MOST_ROWS = 1000
_MOST_BYTES = 2**22

KINDS = {
    EXACT: "exact figures, in clear",
    NOISY: "counts with noise, in clear",
    SECURE: "a summand of a secure sum, masked",
    RESULTS: "exact results on held-out samples, in clear",
    NOTHING: "nothing about the samples",
}
"""Kinds of disclosure in plain words."""


def recorder(path: Path, run_id: int) -> Callable[[Disclosure], None]:
    """A function for the option `on_answer` of a party: it adds a line, and makes the
    page again.
    """

    def record(disclosure: Disclosure) -> None:
        line = disclosure.to_json(run=str(run_id)).encode() + b"\n"
        is_new = not path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            cut_off = (
                os.fstat(descriptor).st_size
                and os.lseek(descriptor, -1, os.SEEK_END) is not None
            )
            # the last line of a process that was killed meanwhile
            if cut_off and os.read(descriptor, 1) != b"\n":
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
                stream.write(page(lines(path, _MOST_BYTES), path.name).encode())
        except Exception as error:  # noqa: BLE001 - the line is written, and the page may wait
            log(
                logging.WARNING,
                "FlyNN: the page of what left this party is not up to date",
                exc_info=error,
            )

    return record


def lines(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """The lines of a record, or those in its last `most` bytes, without those that are
    cut off.
    """
    with path.open("rb") as stream:
        if most is not None:
            stream.seek(max(path.stat().st_size - most, 0))
        text = stream.read().decode(errors="replace")
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]


# ---- the page


def page(records: list[dict[str, Any]], name: str) -> str:
    """The page of some lines, by the name of their file."""
    latest = records[-_MOST_ROWS:]
    n_bytes = sum(each["bytes"] for each in latest)
    told = (
        f"The latest {count(len(latest), 'message')}, {in_bytes(n_bytes)}. Each is a "
        f"line of {name}, written before "
        "the message left; earlier ones are in the file alone. File and page have "
        "exact figures about this site: they "
        "stay here."
    )
    sentences = Counter(map(sentence_of, latest)).most_common(8)
    first = [tag("li", f"{count(n, 'message')}: {text}") for text, n in sentences]
    heads = "time (UTC)", "run", "phase", "what left", "bytes"
    shown = table(
        "Messages, the latest first", heads, [_row(each) for each in reversed(latest)]
    )
    return whole_page("What left this site", tag("p", told), tag("ul", first), shown)


def sentence_of(record: dict[str, Any]) -> str:
    """One message in a sentence."""
    if record["refused"] is not None:
        return (
            "A refusal with its reason, without a figure about the rows: nobody is "
            "singled out."
        )
    return request.sentence_of(record["phase"], record["kind"])


def _row(record: dict[str, Any]) -> tuple[Any, ...]:
    """One message as a row of the table."""
    told = [
        f"{KINDS.get(record['kind'], record['kind'])}; number of samples sent along: "
        f"{record['examples']}"
    ]
    for array in record["arrays"]:
        size = " x ".join(map(str, array["shape"]))
        told.append(
            f"{', '.join(array['fields'])}: {size} {array['dtype']}, {array['bytes']} "
            "bytes"
        )
    if record["entries"]:
        told.append(f"entries: {', '.join(record['entries'])}")
    reason = record["refused"] and tag(
        "p", f"Refused: {shortened(record['refused'], 2000)}"
    )
    fold = tag(
        "details",
        tag("summary", "types and shapes"),
        [tag("div", shortened(each, 2000)) for each in told],
    )
    what = joined(tag("p", sentence_of(record)), reason, fold)
    return record["time"], str(record["run"]), record["phase"], what, record["bytes"]
