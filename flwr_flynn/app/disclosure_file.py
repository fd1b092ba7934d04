"""A party's record of the messages that left it, and a page beside it to read.

The record is a file of one JSON line for each message. A line is on the disk before its
message leaves. The page follows from the lines; it may be deleted.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from flwr_flynn._files import settle, writing
from flwr_flynn.app.report.markup import (
    in_bytes,
    joined,
    plural,
    shortened,
    table,
    tag,
    whole_page,
)
from flwr_flynn.federated import plan as plan  # makes the requests of its phases known
from flwr_flynn.federated import request
from flwr_flynn.federated.disclosure import Disclosure
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE

ENDING = ".jsonl"
# The page has the latest messages, so that its cost does not grow with the file.
_MOST_ROWS = 1000
_MOST_BYTES = 2**22

Record = dict[str, Any]
"""One line of the file."""

KINDS = {
    EXACT: "exact figures, in clear",
    NOISY: "counts with noise, in clear",
    SECURE: "a summand of a secure sum, masked",
    RESULTS: "exact results of models on samples, in clear",
    NOTHING: "nothing about the samples",
}
"""Kinds of disclosure in plain words."""

DUTIES = {
    "taking rows out": (
        "a node setting that names the file as it was counted (for some rows), or leave "
        "(for all), has the counts subtracted exactly in a later run; hashes, schema, "
        "models that were sent before and backups keep their traces"
    ),
    "not covered": (
        "a sum is not anonymous: whoever has the model can test whether a given row fits "
        "it; Flower adds ids and lengths of messages; other apps of a SuperNode write "
        "no record"
    ),
    "to send less": (
        "in the node config of a site: min-examples, ignore, test-fraction=0, "
        "products=false and table-one=false (both are the default), secure or "
        "max-epsilon"
    ),
}
"""Questions of a data-protection officer, and answers that are the same in every run."""


def recorder(
    path: Path, run_id: int, rows: Mapping[str, int]
) -> Callable[[Disclosure], None]:
    """A function that adds a line, and makes the page again.

    It is for the option `on_answer` of a party. A line has the numbers of `rows` of
    then.
    """

    def record(disclosure: Disclosure) -> None:
        line = disclosure.to_json(run=str(run_id), **rows).encode() + b"\n"
        is_new = not path.exists()
        # Unbuffered, so that a line is one write of the system.
        for_owner = partial(os.open, mode=0o600)
        with open(path, "a+b", buffering=0, opener=for_owner) as stream:
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                # A process may have been killed within its last line.
                if stream.read(1) != b"\n":
                    line = b"\n" + line
            if stream.write(line) != len(line):
                raise OSError("a line was cut off")
            os.fsync(stream.fileno())
        if is_new:
            settle(path.parent)
        try:
            with writing(path.with_suffix(".html"), 0o600) as html:
                html.write(page(lines(path, _MOST_BYTES), path.name).encode())
        except Exception as error:  # noqa: BLE001 - the line is written, and the page may wait
            log(
                logging.WARNING,
                "FlyNN: the page of what left this party is not up to date",
                exc_info=error,
            )

    return record


def lines(path: Path, most: int | None = None) -> list[Record]:
    """The lines of a record, or those in its last `most` bytes.

    Lines that are cut off are not among them.
    """
    with path.open("rb") as stream:
        if most is not None:
            stream.seek(max(path.stat().st_size - most, 0))
        text = stream.read().decode(errors="replace")
    records = []
    for line in text.splitlines():
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


# ---- the page


def page(records: list[Record], name: str) -> str:
    """The page of some lines, by the name of their file."""
    latest = records[-_MOST_ROWS:]
    n_bytes = sum(record["bytes"] for record in latest)
    introduction = (
        f"The latest {plural(len(latest), 'message')}, {in_bytes(n_bytes)}. Each is a "
        f"line of {name}, written before "
        "the message left; earlier ones are in the file alone. File and page have "
        "exact figures about this site: they "
        "stay here."
    )
    sentences = Counter(map(sentence_of, latest)).most_common(8)
    first = [tag("li", f"{plural(n, 'message')}: {text}") for text, n in sentences]
    heads = "time (UTC)", "run", "phase", "what left", "bytes"
    rows = [*map(_row, reversed(latest))]
    shown = table("Messages, the latest first", heads, rows)
    duties = [tag("p", tag("b", about), f": {text}.") for about, text in DUTIES.items()]
    parts = tag("p", introduction), tag("ul", first), *duties, shown
    return whole_page("What left this site", *parts)


def sentence_of(record: Record) -> str:
    """One message in a sentence."""
    if record["refused"] is not None:
        return (
            "A refusal with its reason, without a figure about the rows: nobody is "
            "singled out."
        )
    return request.sentence_of(record["phase"], record["kind"])


def _row(record: Record) -> tuple[object, ...]:
    """One message as a row of the table."""
    sentences = [
        f"{KINDS.get(record['kind'], record['kind'])}; number of samples sent along: "
        f"{record['examples']}"
    ]
    for array in record["arrays"]:
        size = " x ".join(map(str, array["shape"]))
        fields = ", ".join(array["fields"])
        sentences.append(f"{fields}: {size} {array['dtype']}, {array['bytes']} bytes")
    if record["entries"]:
        sentences.append(f"entries: {', '.join(record['entries'])}")
    reason = record["refused"]
    if reason:
        reason = tag("p", f"Refused: {shortened(reason, 2000)}")
    fitting = None
    if "rows_read" in record:
        numbers = f"{record['rows_fitting']} of {record['rows_read']}"
        fitting = tag("p", f"Of this site's rows {numbers} fitted the request.")
    shown = [tag("div", shortened(sentence, 2000)) for sentence in sentences]
    fold = tag("details", tag("summary", "types and shapes"), shown)
    content = joined(tag("p", sentence_of(record)), fitting, reason, fold)
    run = str(record["run"])
    return record["time"], run, record["phase"], content, record["bytes"]
