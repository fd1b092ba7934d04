"""The verb `try`: a federation of files in this process.

It runs the code of a SuperNode and that of `flwr run`. Each file is a party with a node
config of its own. All files are looked at first, and every fault is printed with the
setting that mends it. The parties then answer the messages of the server one after
another.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import reduce
from importlib import import_module
from itertools import chain
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from flwr_flynn._files import writing
from flwr_flynn.app import client_app, server_app
from flwr_flynn.app.cli_verbs import MOST_CLASSES, check_apart
from flwr_flynn.app.console import note, say
from flwr_flynn.app.data.csv_file import SEPARATOR_NAMES, codec
from flwr_flynn.app.data.own_file import (
    coded_labels,
    existing,
    opened,
    opened_own,
)
from flwr_flynn.app.data.source import Reading, ending, named_files, reading_once
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import own_schema
from flwr_flynn.app.site_file import site_toml
from flwr_flynn.app.try_labels import (
    compare_labels,
    compare_shares,
    compare_sizes,
    spell_alike,
)
from flwr_flynn.app.try_site import Given, Site
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.protocol import PHASE
from flwr_flynn.flower import records
from flwr_flynn.flower.progress import Progress
from flwr_flynn.tables.cells import objects
from flwr_flynn.tables.column_summary import LEFT_OUT
from flwr_flynn.tables.learned_schema import schema_of
from flwr_flynn.tables.remarks import (
    MOST,
    UNKNOWN,
    compared,
    nearest,
    renamed,
)
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import by_name
from flwr_flynn.tables.texts import is_beside

_MOST_PARTS = 1000
_MOST_NAMES = 100
_FEW_NAMES = 5

_OWN = ("action", "federation", "min-available", "nodes-at-a-time", "output-dir")
"""Run settings that follow from the files."""


def run_files(
    paths: list[str],
    node: dict[str, object],
    by: str = "",
    out: str = "",
    settings: Sequence[str] = (),
    drafts: str = "",
    command: str = "",
) -> int:
    """Run a federation of files, with node settings of all parties, as `run` does.

    With `by` one file is split into parties by the values of this column, which is no
    feature then. `settings` are ``KEY=VALUE`` for a run setting, ``PARTY:KEY=VALUE``
    for a node setting of one party. In the folder `drafts` is a file of each party's
    settings then. The report has the `command` as it was typed.
    """
    log = logging.getLogger("flwr")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        stack.enter_context(reading_once())
        progress = stack.enter_context(Progress(note))
        log.setLevel(logging.WARNING)
        parts = [*map(Path, paths)]
        if by:
            parts, dialect = _split(paths, by, node, Path(folder))
            # Each part is read as the whole file was.
            node = dialect | node | {"rename": ""}
        sites = [
            Site(path, {"data-path": str(path), "party-id": name, **node})
            for name, path in named_files(parts)
        ]
        given = _settings(settings, {site.raw["party-id"]: site.raw for site in sites})
        given |= {
            "min-available": len(sites),
            "nodes-at-a-time": len(sites),
            "output-dir": out or "flwr-flynn-try",
        }
        asked = RunConfig.parse(given).resolved()
        paths_of_drafts = [
            Path(drafts, f"{site.raw['party-id']}.toml") for site in sites
        ]
        if drafts:
            _check_new(paths_of_drafts)
        config = _inspected(sites, asked, is_split=bool(by), progress=progress)
        for path, site in zip(paths_of_drafts, sites, strict=True):
            if drafts and site.file is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with writing(path, mode=0o600) as stream:
                    draft = site_toml(site.node, site.file, site.remarks)
                    stream.write(draft.encode())
                say(path)
        if config is None:
            return 1
        written: Sequence[str] = server_app.WRITTEN
        if config.dry_run:
            written = ["plan.json"]
        # The results are this person's alone.
        output = server_app.output_folder(config, 1, 0o700)
        files = server_app.RunFiles(output, Path(folder) / "federation.npz", 0o600)
        check_apart([output / name for name in written], paths)
        # Nobody's consent is asked for what stays in this process.
        consent = {"products": True, "table-one": True}
        grid = FilesGrid([{**consent, **site.raw} for site in sites], progress)
        run_id = int(time.time() * 1000)  # the results say to which run they belong
        context = Context(run_id, 0, {}, RecordDict(), given)
        server_app.carry_out(config, files, grid, context, command)
    for name in written:
        say(output / name)
    return 0


class FilesGrid(Grid):
    """A grid whose nodes are deployed parties in this process.

    It is for the strategy of the Message API.

    Parameters
    ----------
    nodes : sequence of mappings
        The node config of each party.
    progress : Progress
        It has a step for each party in each phase.
    """

    # The strategy does not use these.
    run = set_run = create_message = push_messages = pull_messages = cast(Any, None)

    def __init__(self, nodes: Sequence[Given], progress: Progress) -> None:
        # From Flower 1.38 on a grid names the sender.
        with suppress(ImportError):
            identity = import_module("flwr.supercore.task_identity").TaskIdentity
            for name in ("run_id", "node_id", "task_id"):
                setattr(identity, name, 1)
        self._contexts = {
            i: Context(1, i, dict(node), RecordDict(), {})
            for i, node in enumerate(nodes, 2)
        }
        self._progress = progress

    def get_node_ids(self) -> list[int]:
        """The ids of all parties."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the reply of each party, which is computed when it is asked for."""
        requests = list(messages)
        for index, message in enumerate(requests):
            context = self._contexts[message.metadata.dst_node_id]
            phase = records.config_of(message.content).get(PHASE)
            party = context.node_config["party-id"]
            self._progress.step(f"{phase}: {party}", index, len(requests))
            yield client_app.app(message, context)


# ---- settings and parties


def _check_new(paths: Sequence[Path]) -> None:
    """Refuse to replace a file, which somebody may have corrected."""
    there = [path.name for path in paths if path.exists()]
    if there:
        expected = f"a folder without {there[0]}"
        raise ConfigError("--write-sites", expected, f"{len(there)} such files")


def _settings(texts: Sequence[str], nodes: Mapping[str, Given]) -> Given:
    """Run settings among ``KEY=VALUE``.

    Settings of a party are added to its node config.
    """
    of_run = {
        row.key: row.default
        for row in RunConfig.rows()
        if row.group not in ("privacy", "secure")
        and not (row.facts.simulation_only or row.key in _OWN)
    }
    of_party = {row.key: row.default for row in NodeConfig.rows()}
    given = Given()
    seen = set[str]()
    for text in texts:
        left, _, typed = text.partition("=")
        party, colon, key = left.strip().rpartition(":")
        known = of_run
        settings = given
        if colon:
            known = of_party
            settings = nodes.get(party, {})
        if key not in known or (colon and party not in nodes):
            form = f"KEY=VALUE, or PARTY:KEY=VALUE with a party of {', '.join(nodes)},"
            raise ConfigError("--set", f"{form} a key of {', '.join(known)}", text)
        if left in seen:  # remedies of several faults
            typed = f"{settings[key]},{typed}"
        seen.add(left)
        settings[key] = typed
        is_text = isinstance(known[key], str) and typed[:1] != '"'
        # A setting of another type is refused with all settings.
        with suppress(ValueError, RecursionError):
            if not is_text:
                settings[key] = json.loads(typed)
    return given


def _split(
    paths: Sequence[str], by: str, node: Mapping[str, object], folder: Path
) -> tuple[list[Path], dict[str, str]]:
    """Write the rows of one file in a part for each text of a column, without it.

    Return the paths of the parts, and the node settings of their dialect.
    """
    path = existing(Path(paths[0]))
    if len(paths) > 1 or ending(path) != ".csv":
        got = f"{len(paths)} files, the first a {ending(path)} file"
        raise ConfigError("--by", "one CSV file", got)
    own = NodeConfig.parse({"data-path": paths[0], **node})
    # The column is read as labels are.
    file = opened(path, Reading(by, dialect=own.dialect()))
    n_without = file.n_unlabelled
    file.check(needs_labels=False)
    (at,) = file.indices([by], f"a column {by!r}")
    rows_of = _rows_by_text(file, at)
    if not 1 <= len(rows_of) <= _MOST_PARTS:
        expected = f"a column of 1 to {_MOST_PARTS} texts or numbers"
        raise ConfigError("--by", expected, len(rows_of))
    if n_without:
        say(f"{path.name}: {n_without} rows without a value of {by!r} are left out")
    dialect = file.reading.dialect
    paths_of_parts = list[Path]()
    for index, (text, rows) in enumerate(sorted(rows_of.items())):
        name = re.sub(r"[^\w .+-]", "_", text)[:60]
        part = folder / str(index) / f"{name}.csv"
        part.parent.mkdir()
        lines = ([*row[:at], *row[at + 1 :]] for row in (file.source.columns, *rows))
        with part.open("w", encoding=codec(dialect.encoding), newline="") as stream:
            csv.writer(stream, delimiter=dialect.separator).writerows(lines)
        paths_of_parts.append(part)
    names = {mark: name for name, mark in SEPARATOR_NAMES.items()}
    return paths_of_parts, {
        "separator": names[dialect.separator],
        "decimal": dialect.decimal,
        "encoding": dialect.encoding,
    }


def _rows_by_text(file: TableFile, at: int) -> dict[str, list[Sequence[str]]]:
    """The rows of a file by the text of a column, without those where it is missing."""
    rows_of: dict[str, list[Sequence[str]]] = {}
    for row in file.source.cells(range(len(file.source.columns))):
        rows_of.setdefault(row[at].strip(), []).append(row)
    gaps = file.reading.dialect.gaps()
    return {text: rows for text, rows in rows_of.items() if not gaps.has(text)}


def _renames(
    site: Site, sites: Sequence[Site], wanted: Sequence[str] | Schema | None
) -> str:
    """The setting that mends missing columns: names of the file for those wanted.

    They are names that no other file has.
    """
    names: Sequence[str] = ()
    of_kind = dict[str, str]()
    if isinstance(wanted, Schema):
        names = wanted.names
        of_kind = {column.name: column.kind for column in wanted.columns}
    elif wanted is not None:
        names = wanted
    own = site.file.names if site.file is not None else ()
    indices = by_name(own, names)
    missing = [
        name
        for name, index in zip(names, indices, strict=True)
        if index is None and not is_beside(name, names)
    ]
    others = [other.columns for other in sites if other is not site]
    known = {*chain.from_iterable(others)}
    used = {*indices}
    kinds = dict[str, str | None]()
    if site.counter is not None:
        columns = site.counter.everything.columns
        kinds = {name: summary.kind for name, summary in columns.items()}
    there = [
        name
        for index, name in enumerate(own)
        if index not in used and name not in known and kinds.get(name) not in LEFT_OUT
    ]
    if not (missing and there):
        return "schema=FILE"
    near = nearest(missing[:_MOST_NAMES], there[:_MOST_NAMES])
    pairs = {own: name for name, own in sorted(near.items())}
    rest = [name for name in missing if name not in near]
    if rest:
        left = [own for own in there if own not in pairs]
        pairs |= dict.fromkeys(left[:_FEW_NAMES], UNKNOWN)
        is_left = len(rest) == len(left) == 1
        if is_left and kinds.get(left[0]) == of_kind.get(rest[0], ""):
            pairs[left[0]] = rest[0]
    return f":rename={renamed(pairs)}"


# ---- faults before anything is counted


def _inspected(
    sites: list[Site], config: RunConfig, is_split: bool, progress: Progress
) -> RunConfig | None:
    """Print all faults, and return the settings with the classes of all files.

    Return None if too few parties can be counted.
    """
    for site in sites:
        with site.noting():
            site.head()
    readable = [site for site in sites if not site.faults]
    for index, site in enumerate(readable):
        progress.step(f"reading {site.name}", index, len(readable))
        others = [other.columns for other in sites if other is not site]
        with site.noting():
            site.look({*chain.from_iterable(others)})
    schema = own_schema(config)
    together = Site(Path(), {"party-id": "all files"})
    with together.noting():
        _compare_columns(sites, config, schema, together)
    spell_alike(sites)
    classes: Sequence[str | int] = config.class_list()
    if schema is not None and not classes:
        classes = schema.classes
    compare_labels(sites, classes, is_split)
    if not classes:
        compare_sizes(sites)
    if not is_split:
        compare_shares(sites)
    ready = [site for site in sites if not site.faults]
    with together.noting():
        labels = sorted(set[str]().union(*(site.labels for site in ready)))
        if len(labels) > MOST_CLASSES:
            expected = f"at most {MOST_CLASSES} different labels"
            raise DataError("label", expected, len(labels))
        if not classes:
            own_classes, _ = coded_labels(objects(labels), "label")
            config = replace(config, classes=json.dumps(own_classes))
    for site in (*sites, together):
        for fault in site.faults:
            say(f"REFUSED: {site.name}: {fault}")
    n_needed = config.min_parties or len(sites)
    if len(ready) >= n_needed and not together.faults:
        return config
    n_ready = f"{len(ready)} of {len(sites)} parties"
    say(f"{n_ready} can be counted; min-parties: {n_needed}")
    return None


def _compare_columns(
    sites: Sequence[Site], config: RunConfig, schema: Schema | None, together: Site
) -> None:
    """Note the faults of each file beside the columns of the run.

    Where no columns are given, they are learned as the run learns them.
    """
    features = config.names("feature_names")
    if schema is None and not features:
        tables = {
            site.raw["party-id"]: site.counter.summary()
            for site in sites
            if site.counter is not None
        }
        if config.n_features or not tables:
            return
        for remark in compared(tables)[:MOST]:
            for site in sites:
                if site.raw["party-id"] in remark.parties:
                    site.remarks.append(remark)
            if remark.stops:
                together.note(remark.text())
            else:
                say(f"NOTICED: {remark.text()}")
        total = reduce(add, tables.values())
        schema, left_out = schema_of(
            total, config.names("ignore"), config.names("keep")
        )
        for name, reason in left_out.items():
            say(f"column {name[:60]!r} is left out: {reason}")
        if not schema.is_named:
            schema = None
    for site in sites:
        if site.file is None:
            continue
        with site.noting(_renames(site, sites, features or schema)):
            file = opened_own(site.node, features, schema)
            if site.is_sound:
                for error, mend in file.faults():
                    site.refuse(error, mend and f":{mend}")
