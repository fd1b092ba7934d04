"""Phase "schema": kinds, levels and gaps of the parties' columns.

The server derives the schema of the run from them.

A party names no level, and tells of no gaps, that fewer of its rows have than its
floor, `min_examples`. It tells the names and the kinds of all its columns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn._validation import listed
from flwr_flynn.errors import AggregationError, PayloadError
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Label, checked_classes, codes_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import FLOOR_OF_SITE, PartyOptions, SiteSetting
from flwr_flynn.federated.phase import Context, Description, Phase, RunState, Section
from flwr_flynn.federated.protocol import (
    EXACT,
    TRAIN,
    Config,
    Entry,
    Scalars,
    from_json,
    refusing,
    sent,
)
from flwr_flynn.federated.reply_fields import NUMBERS, Field, Sizes
from flwr_flynn.federated.request import Measured, Request, register
from flwr_flynn.federated.roster import missing_text, require_samples
from flwr_flynn.federated.subgroups import subgroup_names
from flwr_flynn.federated.tally import AnnouncedTally, Facts
from flwr_flynn.federated.views import View
from flwr_flynn.model.candidates import placeholder_specs
from flwr_flynn.tables import remarks
from flwr_flynn.tables.column_summary import MOST_ROWS, ColumnSummary
from flwr_flynn.tables.learned_schema import LEARNED_LEVELS, schema_of
from flwr_flynn.tables.remarks import (
    MOST,
    Remark,
    briefly,
    lines_of,
    noticed,
    of_parties,
    raise_stops,
)
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import KINDS, Table, form_of
from flwr_flynn.tables.table_summary import TableCounter, TableSummary

MOST_BYTES = 2**22
"""Bytes of a summary, at most."""


_ENTRIES = {"classes": Entry(str, MAX_CHARS)}


@register
@dataclass(frozen=True)
class SchemaRequest(Request[TableSummary]):
    """Ask for the summary of the party's columns, as JSON in the form of bytes.

    A party with labels that are none of the classes declines here, before it has told
    anything.
    """

    classes: Sequence[Label]

    phase = "schema"
    sentence = (
        "Columns; of min-examples rows texts, units, values far outside: also of one "
        "person, unless held-out-key."
    )

    entries = _ENTRIES

    def to_config(self) -> Scalars:
        return sent(classes=json.dumps(self.classes))

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> SchemaRequest:
        with refusing():
            return cls(checked_classes(config.json("classes")))

    def measured(self, view: View) -> Measured[TableSummary]:
        """Summary of the raw columns of the training samples, above the floor.

        Labels of no class are refused first.
        """
        view.require(EXACT)
        samples = view.loader.raw()
        codes_of(self.classes, samples.y)
        summary = samples.tables()[0]
        least = view.options.min_examples
        if isinstance(summary, TableSummary):
            _log_remarks(summary)
            summary = summary.floored(least)
        else:
            counter = TableCounter(least, view.options.keep)
            counter.add(Table.of(summary), samples.ids, samples.y)
            # A site that was deployed loads its own file.
            if callable(view.loader.source):
                _log_remarks(counter.everything)
            summary = counter.summary()
        return Measured(summary, summary.n_rows)

    def fields(self, sizes: Sizes) -> list[Field]:
        return [Field("summary", (MOST_BYTES,), 255, NUMBERS, is_open=True)]

    def parts(self, statistic: TableSummary) -> list[Array]:
        text = json.dumps(statistic.to_dict()).encode()
        # Of many columns with many levels only the most frequent levels are sent.
        if len(text) > MOST_BYTES:
            text = json.dumps(statistic.floored(1, LEARNED_LEVELS).to_dict()).encode()
        if len(text) > MOST_BYTES:
            raise PayloadError(
                "summary", f"at most {MOST_BYTES} bytes of names and levels", len(text)
            )
        return [np.frombuffer(text, np.uint8).astype(np.int64)]

    def of_parts(self, parts: list[Array], n_parties: int) -> TableSummary:
        text = parts[0].astype(np.uint8).tobytes().decode(errors="replace")
        with refusing("summary"):
            return TableSummary.from_dict(from_json("summary", text))


def _log_remarks(table: TableSummary) -> None:
    """Log the columns of a table on this machine, and what looks wrong with them."""
    for line in lines_of(table):
        log.info("FlyNN: %s", "  ".join(line))
    for text in noticed(table):
        log.info("FlyNN: %s", text)


@dataclass(frozen=True, eq=False)
class SchemaTally(AnnouncedTally[TableSummary]):
    """Summaries that are added up."""

    what = "summary"
    capacity = MOST_ROWS

    @property
    def start(self) -> TableSummary:
        return TableSummary({}, 0)

    def load(self, statistic: TableSummary) -> int:
        return statistic.n_rows

    def facts(self, statistic: TableSummary, n_before: int) -> Facts:
        held = frozenset(
            form_of(name)
            for name, column in statistic.columns.items()
            if 2 * (column.n_rows - column.gaps) >= statistic.n_rows
        )
        return Facts(result=(held, briefly(statistic)))


@dataclass(frozen=True)
class LearnedSchema:
    """The result of the phase."""

    left_out: dict[str, str]
    """Reasons of columns that are not in the schema, by name."""
    held: dict[str, frozenset[str]]
    """Forms of names of columns that a party has for half of its rows, by cid."""
    tables: dict[str, dict[str, ColumnSummary]]
    """Summaries of the parties' columns, by cid and form of the name."""
    remarks: list[Remark]
    """Remarks on the columns, and on differences between the parties."""


def _ask(state: RunState, context: Context) -> SchemaTally:
    return SchemaTally(SchemaRequest(state.run_spec.classes))


def _fold(state: RunState, batch: Batch[TableSummary], context: Context) -> RunState:
    """The state with the schema, and with placeholders of specs for its numbers."""
    options = context.options
    n_able = len(batch.passed) + len(context.missing) - len(batch.refused)
    # A party that has not answered yet may still do so.
    if batch.refused and n_able < options.min_parties:
        text = (
            f"{n_able} of {options.min_parties} required parties can go on: "
            f"{missing_text(context.missing)}"
        )
        raise AggregationError(text, 0, options.min_parties, dict(context.missing))
    if batch.passed:
        require_samples(batch.total.n_rows, len(batch.passed), options.min_parties)
    left_out: dict[str, str] = {}
    run = state.run_spec
    said = of_parties(
        {context.names.get(cid, cid): part[1] for cid, part in batch.parts.items()}
    )
    raise_stops(said)
    if batch.total.n_rows:
        schema, left_out = schema_of(batch.total, options.ignore, options.keep)
        assert options.plan is not None  # as the options require
        specs = placeholder_specs(replace(options.plan, n_features=schema.width))
        # Numbers without names and gaps are hashed as they stand.
        names = None
        if schema.is_named or not schema.is_plain:
            names = schema
        run = replace(run, specs=options.counted_specs(specs), feature_names=names)
    held = {cid: part[0] for cid, part in batch.parts.items()}
    tables = {
        cid: {form_of(name): column for name, column in part[1].columns.items()}
        for cid, part in batch.parts.items()
    }
    result = LearnedSchema(left_out, held, tables, said)
    return replace(state, run_spec=run).with_result(SCHEMA.name, result)


def _describe(state: RunState, options: RunOptions) -> Description:
    """Width of the numbers, columns that are left out, and remarks."""
    learned: LearnedSchema = state.results[SCHEMA.name]
    warnings = []
    if learned.left_out:
        columns = [
            f"{name[:60]!r} ({reason})" for name, reason in learned.left_out.items()
        ]
        warnings.append(f"columns are left out: {listed(columns)}")
    warnings += [remark.text() for remark in learned.remarks[:MOST]]
    column = options.group_column
    if column and not subgroup_names(state.run_spec.feature_names, column):
        warnings.append(
            f"no category {column[:60]!r} was learned, so there are no figures by its "
            "levels"
        )
    return Description(f"{state.run_spec.spec.n_features} numbers a row", warnings)


def coinciding(state: RunState) -> dict[str, str]:
    """Columns whose gaps tell the site, see `remarks.coinciding`.

    They are known of learned schemas and counts in clear alone.
    """
    learned: LearnedSchema | None = state.results.get(SCHEMA.name)
    schema = state.run_spec.feature_names
    if learned is None or not isinstance(schema, Schema):
        return {}
    sites = [
        (str(member), member.sizes, learned.held[member.node])
        for member in state.members or ()
        if member.sizes and member.node in learned.held
    ]
    return remarks.coinciding(schema.names, state.run_spec.classes, sites)


def _report(state: RunState, options: RunOptions) -> Section:
    """Columns of the schema, and those that a learned one leaves out."""
    schema = state.run_spec.feature_names
    learned = state.results.get("schema")
    if not isinstance(schema, Schema):
        return Section({"schema": None})
    left_out: Mapping[str, str] = {}
    said: Sequence[Remark] = ()
    source = "from the server's file"
    if learned is not None:
        left_out = learned.left_out
        said = learned.remarks
        source = "learned from the parties"
    sentences = coinciding(state)
    entries = {
        **schema.to_dict(),
        "is_learned": learned is not None,
        "left_out": left_out,
        "remarks": [remark.to_dict() for remark in said[:MOST]],
        "n_remarks": len(said),
        "coinciding": sentences,
    }
    of_kinds = Counter(column.kind for column in schema.columns)
    parts = [f"{of_kinds[kind]} {kind}" for kind in KINDS if kind in of_kinds]
    with_gaps = sum(column.gaps for column in schema.columns)
    facts = {"columns": f"{', '.join(parts)}; {with_gaps} with gaps; {source}"}
    facts |= {f"  tells the site: {name}": why for name, why in sentences.items()}
    facts |= {f"  left out: {name}": reason for name, reason in left_out.items()}
    return Section({"schema": entries}, facts)


_CONTENT = "names, kinds, levels and gaps of the columns"
_learns = attrgetter("learn_schema")


def _asks(options: RunOptions) -> list[SiteSetting]:
    why = (
        "the site's own file, with any columns; the run learns which, and of what kind"
    )
    return [SiteSetting("data_path", None, why), FLOOR_OF_SITE]


SCHEMA = Phase(
    "schema",
    TRAIN,
    _ask,
    _fold,
    content=_CONTENT,
    applies=_learns,
    describe=_describe,
    report=_report,
    asks=_asks,
)
