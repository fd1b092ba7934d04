"""A file of the verb `try` as a party, with its faults and what mends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr_flynn._validation import listed
from flwr_flynn.app.console import print_table, say
from flwr_flynn.app.data.own_file import (
    columns_of,
    counter_of_file,
    existing,
    opened_own,
    reading_of,
)
from flwr_flynn.app.data.source import ending, stem
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.site_file import site_settings
from flwr_flynn.errors import FlyNNError, full_text
from flwr_flynn.tables.remarks import (
    MOST,
    UNKNOWN,
    Remark,
    lines_of,
    of_table,
    quoted,
)
from flwr_flynn.tables.table import by_name
from flwr_flynn.tables.table_summary import TableCounter
from flwr_flynn.tables.texts import as_name

Given = dict[str, Any]
"""Settings by their keys, as they are typed."""


class Site:
    """A party, its file, and faults, each with the setting that mends it."""

    def __init__(self, path: Path, raw: Given) -> None:
        self.path = path
        self.raw = raw  # its node config
        self.name = f"{raw['party-id']}{path.name.removeprefix(stem(path))}"
        self.faults = list[str]()
        self.columns = list[str]()
        self.labels = Counter[str]()
        self.counter: TableCounter | None = None
        self.remarks = list[Remark]()
        self.file: TableFile | None = None
        self.is_sound = False  # the file by itself

    @contextmanager
    def noting(self, mend: str = "") -> Iterator[None]:
        """Note an error in the block, and the setting that mends it."""
        try:
            yield
        except FlyNNError as error:
            self.refuse(error, mend)

    def refuse(self, error: FlyNNError, mend: str) -> None:
        """Note an error, and the setting that mends it."""
        self.note(
            full_text(error)
            .removeprefix(f"{self.path.name}: ")
            .removeprefix(f"{self.path.name!r}: "),
            mend,
        )

    def note(self, fault: str, *mends: str) -> None:
        """Note a fault, and the settings that mend it.

        A setting behind a colon is one of this party.
        """
        settings = []
        own = [mend for mend in mends if mend.startswith(":")]
        remark = Remark("", fault, own)
        for mend in filter(None, mends):
            party = self.raw["party-id"] if mend.startswith(":") else ""
            settings.append(f"--set {quoted(f'{party}{mend}')}")
        if settings:
            fault = f"{fault}; {' or '.join(settings)}"
        if fault not in self.faults:
            self.faults.append(fault)
            self.remarks.append(remark)

    def head(self) -> None:
        """Read the settings, and the names of the columns."""
        if "site" in self.raw:
            own = site_settings(self.raw["site"])
            keys = sorted(key for key in own if self.raw.get(key, own[key]) != own[key])
            if keys:
                say(f"{self.name}: --set replaces {listed(keys)} of its site file")
        self.node = NodeConfig.parse(self.raw)
        self.columns = columns_of(existing(self.path), reading_of(self.node)) or []

    def look(self, others: set[str]) -> None:
        """Note the faults of the file by itself, and its labels.

        `others` are columns of other files.
        """
        label = as_name(self.node.label or "label")
        is_missing = by_name(self.columns, [label]) == [None]
        if self.columns and is_missing and ending(self.path) != ".npz":
            own = [name for name in self.columns if name not in others]
            self._note_label(label, own)
            if len(own) != 1:
                return
            # It is probably the label, and the file may have further faults.
            self.node = replace(self.node, label=own[0])
        file = opened_own(self.node)
        self.file = file
        n_faults = len(self.faults)
        say(f"{self.name}: {file.described().removeprefix(f'{self.path.name}: ')}")
        for error, mend in file.faults():
            self.refuse(error, mend and f":{mend}")
        if not file.n_rows:
            self.note("expected at least one row, got none")
        self.is_sound = len(self.faults) == n_faults
        self.labels = Counter(file.classes)
        rows = [f"{label} {n}" for label, n in sorted(self.labels.items())]
        say(f"{self.name}: rows of each class: {listed(rows)}")
        if self.is_sound:
            self.counter = counter_of_file(file, self.node.min_examples)
            print_table(lines_of(self.counter.everything))
            remarks = of_table(self.counter.everything)[:MOST]
            self.remarks += remarks
            for remark in remarks:
                say(f"NOTICED: {self.name}: {remark.text(self.raw['party-id'])}")

    def _note_label(self, label: str, own: list[str]) -> None:
        """Note that the label column is missing; `own` are columns of no other file."""
        got = f"others: {in_quotes(self.columns)}"
        if own:
            got = f"those of no other file: {in_quotes(own)}"
        name = UNKNOWN
        if len(own) == 1:
            name = own[0]
        self.note(f"expected a column {label!r}, got {got}", f":label={name}")


def in_quotes(names: Iterable[str]) -> str:
    """Texts of a file in words, the first of them."""
    return listed([repr(name[:60]) for name in names])
