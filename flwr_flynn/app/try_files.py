"""The verb `try`: a federation of files in this process, with the code of a SuperNode
and that of `flwr run`.

Each file is a party with a node config of its own. All files are looked at first, and
every fault is printed with the setting that mends it. The parties then answer the
messages of the server one after another.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import reduce
from importlib import import_module
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from flwr_flynn._validation import listed
from flwr_flynn.app import client_app, server_app
from flwr_flynn.app.cli_verbs import MOST_CLASSES
from flwr_flynn.app.data.csv_file import SEPARATOR_NAMES, codec, opened_csv
from flwr_flynn.app.data.own_file import (
    check_apart,
    coded_labels,
    columns_of,
    counted,
    existing,
    full_text,
    opened_own,
)
from flwr_flynn.app.data.source import Reading, ending, objects, unlabelled
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import own_schema
from flwr_flynn.errors import ConfigError, DataError, FlyNNError
from flwr_flynn.federated.samples import PLAIN_INTEGER
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import by_name
from flwr_flynn.tables.texts import as_name

_MOST_PARTS = 1000
_MANY_LEVELS = 20
_OWN = ("action", "federation", "min-available", "nodes-at-a-time", "output-dir")
"""Run settings that follow from the files."""


def run_files(
    paths: list[str],
    node: dict[str, Any],
    by: str = "",
    out: str = "",
    settings: Sequence[str] = (),
) -> int:
    """Run a federation of files, with node settings of all parties, as `run` does.

    With `by` one file is split into parties by the values of this column, which is no
    feature then. `settings` are ``KEY=VALUE`` for a run setting, ``PARTY:KEY=VALUE``
    for a node setting of one party.
    """
    log = logging.getLogger("flwr")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.WARNING)
        parts, found = (
            _split(paths, by, node, Path(folder)) if by else ([*map(Path, paths)], {})
        )
        node = found | node  # each part is read as the whole file was
        sites = [
            Site(path, {"data-path": str(path), "party-id": name, **node})
            for name, path in _named(parts)
        ]
        given = _settings(settings, {site.raw["party-id"]: site.raw for site in sites})
        given |= {
            "min-available": len(sites),
            "nodes-at-a-time": len(sites),
            "output-dir": out or "flwr-flynn-try",
        }
        config = _inspected(sites, RunConfig.parse(given).resolved(), is_split=bool(by))
        if config is None:
            return 1
        if config.dry_run:
            written: tuple[str, ...] = ("plan.json",)
        else:
            written = ("report.html", "figures.csv", "model.npz", "metrics.json")
        files = server_app.RunFiles(
            server_app.output_folder(config, 1), Path(folder) / "federation.npz"
        )
        check_apart([files.folder / name for name in written], paths)
        grid = FilesGrid([site.raw for site in sites])
        context = Context(1, 0, {}, RecordDict(), given)
        server_app.carry_out(config, files, grid, context)
    for name in written:
        print(files.folder / name)
    return 0


class FilesGrid(Grid):
    """A grid whose nodes are deployed parties in this process, for the strategy of the
    Message API.

    Parameters
    ----------
    nodes : sequence of mappings
        The node config of each party.
    """

    # which the strategy does not use
    run = set_run = create_message = push_messages = pull_messages = cast(Any, None)

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        # before Flower 1.38, in which a grid names the sender
        with suppress(ImportError):
            identity: Any = import_module("flwr.supercore.task_identity").TaskIdentity
            identity.run_id = identity.node_id = identity.task_id = 1
        self._contexts = {
            i: Context(1, i, dict(node), RecordDict(), {})
            for i, node in enumerate(nodes, 2)
        }

    def get_node_ids(self) -> list[int]:
        """The ids of all parties."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield the reply of each party, which is computed when it is asked for."""
        for message in messages:
            yield client_app.app(message, self._contexts[message.metadata.dst_node_id])


# ---- settings and parties


def _settings(
    texts: Sequence[str], nodes: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Run settings among ``KEY=VALUE``; those of a party are added to its node config."""
    rows = [
        row
        for row in RunConfig.rows()
        if not (row.facts.simulation_only or row.key in _OWN)
    ]
    of_run = {
        row.key: row.default for row in rows if row.group not in ("privacy", "secure")
    }
    of_party = {row.key: row.default for row in NodeConfig.rows()}
    given = dict[str, Any]()
    for text in texts:
        left, _, value = text.partition("=")
        party, colon, key = left.strip().rpartition(":")
        if colon:
            known = of_party
        else:
            known = of_run
        if key not in known or (colon and party not in nodes):
            form = "KEY=VALUE with"
            if colon:
                form = f"PARTY:KEY=VALUE with a party of {', '.join(nodes)} and"
            raise ConfigError("--set", f"{form} a key of {', '.join(known)}", text)
        # a value of another type is refused with the settings
        with suppress(ValueError, RecursionError):
            if not (isinstance(known[key], str) and value[:1] != '"'):
                value = json.loads(value)
        (nodes[party] if colon else given)[key] = value
    return given


def _named(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Each file with a name of its own: its stem, behind that of its folder where
    several have the same.
    """
    stems = [path.stem for path in paths]
    names = list[str]()
    for path in paths:
        if stems.count(path.stem) == 1:
            name = path.stem
        else:
            name = f"{path.absolute().parent.name}-{path.stem}"
        names.append(f"{name}-{len(names) + 1}" if name in names else name)
        yield names[-1], path


def _split(
    paths: Sequence[str], by: str, node: Mapping[str, Any], folder: Path
) -> tuple[list[Path], dict[str, str]]:
    """Write the rows of one file in a part for each value of a column, without it;
    paths and what was detected.
    """
    path = existing(Path(paths[0]))
    if len(paths) > 1 or ending(path) != ".csv":
        raise ConfigError(
            "--by",
            "one CSV file",
            f"{len(paths)} files, the first a {ending(path)} file",
        )
    # The values of the column are read as labels are.
    file = opened_csv(
        path,
        Reading(
            by, dialect=NodeConfig.parse({"data-path": paths[0], **node}).dialect()
        ),
    )
    n_without = file.n_unlabelled
    file.n_unlabelled = 0
    file.check()
    (at,) = file.indices([by], f"a column {by!r}")
    dialect = file.reading.dialect
    rows_of: dict[str, list[Sequence[str]]] = {}
    for row in file.source.cells(range(len(file.columns))):
        rows_of.setdefault(row[at].strip(), []).append(row)
    rows_of = {
        value: rows
        for value, rows in rows_of.items()
        if not unlabelled(objects([value]))[0]
    }
    if not 1 <= len(rows_of) <= _MOST_PARTS:
        raise ConfigError(
            "--by", f"a column of 1 to {_MOST_PARTS} texts or numbers", len(rows_of)
        )
    if n_without:
        print(f"{path.name}: {n_without} rows without a value of {by!r} are left out")
    parts = list[Path]()
    for value, rows in sorted(rows_of.items()):
        name = re.sub(r"[^\w .+-]", "_", value)[:60]
        parts.append(folder / str(len(parts)) / f"{name}{path.suffix}")
        parts[-1].parent.mkdir()
        with parts[-1].open(
            "w", encoding=codec(dialect.encoding), newline=""
        ) as stream:
            head = file.columns, *rows
            csv.writer(stream, delimiter=dialect.separator).writerows(
                [*row[:at], *row[at + 1 :]] for row in head
            )
    mark = next(
        name for name, mark in SEPARATOR_NAMES.items() if mark == dialect.separator
    )
    return parts, {
        "separator": mark,
        "decimal": dialect.decimal,
        "encoding": dialect.encoding,
    }


# ---- faults before anything is counted


class Site:
    """A party, what its file has, and its faults, each with the setting that mends it."""

    def __init__(self, path: Path, raw: dict[str, Any]) -> None:
        # `raw` is its node config
        self.path = path
        self.raw = raw
        self.name = f"{raw['party-id']}{path.suffix}"
        self.faults = list[str]()
        self.columns = list[str]()
        self.labels = set[str]()
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

    def note(self, fault: str, mend: str = "") -> None:
        """Note a fault, and the setting that mends it; behind a colon one of this
        party.
        """
        if mend:
            text = (
                f"{fault}; --set {self.raw['party-id'] if mend[0] == ':' else ''}{mend}"
            )
        else:
            text = fault
        self.faults += [] if text in self.faults else [text]

    def head(self) -> None:
        """Read the settings, and the names of the columns."""
        self.node = NodeConfig.parse(self.raw)
        self.columns = columns_of(existing(self.path), self.node.dialect()) or []

    def look(self, others: set[str]) -> None:
        """Note the faults of the file by itself, and its labels; `others` are columns
        of other files.
        """
        label = as_name(self.node.label or "label")
        if (
            self.columns
            and by_name(self.columns, [label]) == [None]
            and ending(self.path) != ".npz"
        ):
            own = [name for name in self.columns if name not in others]
            if own:
                got = f"those of no other file: {_quoted(own)}"
            else:
                got = f"others: {_quoted(self.columns)}"
            self.note(
                f"expected a column {label!r}, got {got}",
                f":label={own[0] if len(own) == 1 else '...'}",
            )
            if len(own) != 1:
                return
            self.node = replace(self.node, label=own[0])  # for further faults
        self.file, n_faults = (file := opened_own(self.node)), len(self.faults)
        print(f"{self.name}: {file.described().removeprefix(f'{self.path.name}: ')}")
        for error, key in file.faults():
            self.refuse(error, f":{key}=...")
        if not file.n_rows:
            self.note("expected at least one row, got none")
        self.is_sound = len(self.faults) == n_faults
        self.labels = {
            _plain(label)
            for batch in file.batches()
            for label in batch.labels.tolist()  # type: ignore[union-attr]
        }


def _plain(label: Any) -> str:
    """A label as text, an integer without a point."""
    text = str(label)
    if text.endswith(".0") and PLAIN_INTEGER.fullmatch(text[:-2]):
        return text[:-2]
    return text


def _quoted(names: Iterable[str]) -> str:
    return listed([repr(name[:60]) for name in names])


def _inspected(
    sites: list[Site], config: RunConfig, is_split: bool
) -> RunConfig | None:
    """Print all faults, and return the settings with the classes of all files; None if
    too few can be counted.
    """
    for site in sites:
        with site.noting():
            site.head()
    for site in [site for site in sites if not site.faults]:
        with site.noting():
            site.look(
                {name for other in sites if other is not site for name in other.columns}
            )
    schema = own_schema(config)
    together = Site(Path(), {"party-id": "all files"})
    with together.noting():
        _compare_columns(sites, config, schema)
    known = {*map(_plain, config.class_list() or (schema.classes if schema else ()))}
    for site in sites:
        others = known or set[str]().union(
            *(other.labels for other in sites if other is not site)
        )
        if others and (odd := sorted(site.labels - others)):
            where = "those of the other files"
            if known:
                where = "the classes"
            text = (
                f"{len(odd)} of {len(site.labels)} label values are not among "
                f"{where}: {_quoted(odd)}"
            )
            # Classes that one site alone has are usual; a site that shares none has
            # probably another code for them.
            if known or (len(odd) == len(site.labels) and not is_split):
                site.note(
                    text,
                    f":label-map={','.join(f'{value[:60]}=...' for value in odd[:20])}",
                )
            else:
                print(f"{site.name}: note: {text}")
    ready = [site for site in sites if not site.faults]
    classes = sorted(set[str]().union(*(site.labels for site in ready)))
    with together.noting():
        if len(classes) > MOST_CLASSES:
            raise DataError(
                "label", f"at most {MOST_CLASSES} different labels", len(classes)
            )
        if not known:
            config = replace(
                config, classes=json.dumps(coded_labels(objects(classes), "label")[0])
            )
    for site in (*sites, together):
        for fault in site.faults:
            print(f"REFUSED: {site.name}: {fault}")
    if (
        len(ready) >= (needed := config.min_parties or len(sites))
        and not together.faults
    ):
        return config
    print(f"{len(ready)} of {len(sites)} parties can be counted; min-parties: {needed}")
    return None


def _compare_columns(
    sites: Sequence[Site], config: RunConfig, schema: Schema | None
) -> None:
    """Note what the columns of the run, given or learned as the run learns them, refuse
    of each file.
    """
    features = config.names("feature_names")
    if schema is None and not features:
        sound = [
            (site.file, site.node)
            for site in sites
            if site.file is not None and not site.faults
        ]
        if config.n_features or not sound:
            return
        total = reduce(add, (counted(file, node.min_examples) for file, node in sound))
        schema, left_out = total.schema(config.names("ignore"), config.names("keep"))
        for name, reason in left_out.items():
            print(f"column {name[:60]!r} is left out: {reason}")
        for column in schema.columns:
            # such as names of patients who came several times
            if len(column.levels) > _MANY_LEVELS:
                print(
                    f"column {column.name[:60]!r} tells {len(column.levels)} texts, "
                    "unless --set ignore=... names it"
                )
        if not schema.is_named:
            schema = None
    for site in sites:
        if site.file is not None:
            with site.noting("schema=FILE"):
                file = opened_own(site.node, features, schema)
                for error, key in file.faults() if site.is_sound else ():
                    site.refuse(error, f":{key}=...")
