"""Phase "schema": kinds, levels and gaps of the parties' columns.

The server derives the schema of the run from them.

A party names no level, and tells of no gaps, that fewer of its rows have than its
floor, `min_examples`. It tells the names and the kinds of all its columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn._validation import listed
from flwr_flynn.errors import AggregationError, PayloadError
from flwr_flynn.federated.announced_specs import MAX_CHARS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.labels import Label, checked_classes, codes_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import Context, Description, Phase, RunState
from flwr_flynn.federated.protocol import (
    TRAIN,
    Config,
    Entry,
    Scalar,
    from_json,
    key,
    refusing,
)
from flwr_flynn.federated.reply_fields import NUMBERS, Field, Sizes
from flwr_flynn.federated.request import Measured, Request, register
from flwr_flynn.federated.roster import missing_text, require_samples
from flwr_flynn.federated.subgroups import subgroup_names
from flwr_flynn.federated.tally import AnnouncedTally, Facts
from flwr_flynn.federated.views import View
from flwr_flynn.model.candidates import placeholder_specs
from flwr_flynn.tables.column_summary import MOST_ROWS, ColumnSummary
from flwr_flynn.tables.learned_schema import schema_of
from flwr_flynn.tables.remarks import (
    MOST,
    Remark,
    briefly,
    of_parties,
    raise_stops,
)
from flwr_flynn.tables.schema import LEARNED_LEVELS
from flwr_flynn.tables.table import form_of
from flwr_flynn.tables.table_summary import TableSummary

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

    def to_config(self) -> dict[str, Scalar]:
        return {key("classes"): json.dumps(self.classes)}

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> SchemaRequest:
        with refusing():
            return cls(checked_classes(config.json("classes")))

    def measured(self, view: View) -> Measured[TableSummary]:
        summary = view.table_summary(partial(codes_of, self.classes))
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
    remarks = of_parties(
        {context.names.get(cid, cid): part[1] for cid, part in batch.parts.items()}
    )
    raise_stops(remarks)
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
    result = LearnedSchema(left_out, held, tables, remarks)
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


_CONTENT = "names, kinds, levels and gaps of the columns"
_learns = attrgetter("learn_schema")
SCHEMA = Phase(
    "schema",
    TRAIN,
    _ask,
    _fold,
    derives_specs=True,
    content=_CONTENT,
    applies=_learns,
    describe=_describe,
)
