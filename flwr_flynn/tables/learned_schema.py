"""The schema that follows from summed summaries of tables, and of samples in one place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flwr_flynn._validation import listed
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.column_encoding import Column, is_nameable
from flwr_flynn.tables.column_summary import (
    LEFT_OUT,
    ColumnSummary,
    _by_rows,
    most_frequent,
)
from flwr_flynn.tables.schema import MOST_NUMBERS, Schema
from flwr_flynn.tables.table import RawColumns, form_of
from flwr_flynn.tables.table_summary import TableSummary
from flwr_flynn.tables.texts import (
    BESIDE,
    CONVERTED,
    as_name,
    forms_of_level,
    is_beside,
)

LEARNED_LEVELS = 64


def schema_of(
    tables: TableSummary, ignore: Sequence[str] = (), keep: Sequence[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """The schema of these tables, and columns that are left out, with the reasons.

    It has the columns that more than half of the rows have, in the order of their
    names, the most frequent `LEARNED_LEVELS` of each category in the order of their
    texts, and bits for gaps where there are any. Left out are columns to `ignore`,
    columns without values, and, but for those to `keep`, columns in which nearly
    all values differ: texts, and integers that are no measurements. Names that
    differ in capitals are one.
    """
    columns: Mapping[str, ColumnSummary] = tables.columns
    if tables.is_named:
        columns = _by_form(tables)
    _check_known(columns, (*ignore, *keep))
    ignored = {form_of(as_name(name)) for name in ignore}
    forced = {form_of(as_name(name)) for name in keep}
    in_schema: list[Column] = []
    left_out: dict[str, str] = {}
    width = 0
    # Parties have their columns in orders of their own.
    in_order = sorted(columns)
    if not tables.is_named:
        in_order.sort(key=int)
    for name in in_order:
        summary = columns[name]
        form = form_of(name)
        reason = _reason(name, summary, tables.n_rows, columns, form in forced)
        if form in ignored:
            left_out[name] = "ignored"
            continue
        # Without names all columns are needed.
        if tables.is_named and reason:
            left_out[name] = reason
            continue
        column = _column_of(name, summary)
        width += column.width
        if width > MOST_NUMBERS and tables.is_named:
            left_out[name] = f"beyond {MOST_NUMBERS} numbers a row"
        else:
            in_schema.append(column)
    if not in_schema:
        ids = [name for name, why in left_out.items() if why == LEFT_OUT["id"]]
        if ids:
            # A table of ids alone is rather one of measurements.
            return schema_of(tables, ignore, [*keep, *ids])
        raise _no_column(left_out)
    known = [
        name
        for name in left_out
        if 2 * columns[name].n_rows > tables.n_rows and is_nameable(name)
    ]
    return Schema(in_schema, tables.is_named, ignore=known), left_out


def _by_form(tables: TableSummary) -> dict[str, ColumnSummary]:
    """The columns, with names that differ in capitals as one, under that of most
    rows.
    """
    columns: dict[str, ColumnSummary] = {}
    n_rows = {name: summary.n_rows for name, summary in tables.columns.items()}
    for names in _alike(n_rows, form_of):
        total = ColumnSummary(0, {})
        for name in names:
            total += tables.columns[name]
        if len(names) > 1 and total.n_rows > tables.n_rows:  # a table has both
            columns |= {name: tables.columns[name] for name in names}
        else:
            columns[names[0]] = total
    return columns


def learned(
    X: Any, min_examples: int, ignore: Sequence[str] = (), keep: Sequence[str] = ()
) -> tuple[Any, Any]:
    """X as it is and None, if it is of plain numbers; else as raw columns, with their schema.

    A warning names the columns that are left out, a `SchemaError` is raised where all
    are.
    """
    columns = RawColumns.of(X)
    is_plain = columns is not X and columns.is_plain
    if is_plain and not columns.is_named:
        if ignore or keep:
            raise SchemaError(
                "ignore, keep", "none for samples whose columns have no names", "names"
            )
        return X, None
    schema, left_out = schema_of(
        TableSummary.of(columns, min_examples, keep=keep), ignore, keep
    )
    chosen = {name: reason for name, reason in left_out.items() if reason != "ignored"}
    if chosen:
        warnings.warn(f"columns are left out: {_reasons(chosen)}", stacklevel=4)
    if is_plain and not left_out:
        return X, None
    return columns, schema


def _check_known(columns: Iterable[str], names: Iterable[str]) -> None:
    """Raise a `SchemaError` for names that no column has."""
    forms = {*map(form_of, columns)}
    unknown = [repr(name[:60]) for name in names if form_of(as_name(name)) not in forms]
    if unknown:
        raise SchemaError(
            "ignore, keep", "names of columns", f"others: {listed(unknown)}"
        )


def _no_column(left_out: Mapping[str, str]) -> SchemaError:
    """An error about tables of which no column can be used."""
    return SchemaError(
        "columns",
        "at least one that can be used (keep names columns to use all the same)",
        f"{len(left_out)} that cannot: {_reasons(left_out)}",
    )


def _reasons(left_out: Mapping[str, str]) -> str:
    return listed([f"{name[:60]!r} ({reason})" for name, reason in left_out.items()])


def _reason(
    name: str,
    summary: ColumnSummary,
    n_rows: int,
    names: Iterable[str],
    is_forced: bool,
) -> str:
    """The reason to leave a column out; "" for one that is used."""
    if not is_beside(name, names) and 2 * summary.n_rows <= n_rows:
        return f"only {summary.n_rows} of {n_rows} rows have it"
    if summary.kind is None:
        return "no values"
    if summary.kind in LEFT_OUT and not is_forced:
        return LEFT_OUT[summary.kind]
    if summary.kind in ("name", "outcome"):
        return f"{LEFT_OUT[summary.kind]} (a site's own setting keep alone tells it)"
    if (
        summary.kind in ("category", "text")
        and max(summary.levels.values(), default=0) < 2
    ):
        return "no text occurs twice, or often enough to be told"
    if is_nameable(name):
        return ""
    return "a name that is long or not printable"


def _column_of(name: str, summary: ColumnSummary) -> Column:
    """The column of a schema that follows from a summary."""
    has_gaps = summary.gaps > 0 and not name.endswith(BESIDE)
    kind = summary.kind or "number"
    if kind in ("category", "text", "name"):
        levels = most_frequent(_of_one_form(summary.levels), LEARNED_LEVELS)
        return Column(name, "category", sorted(levels), has_gaps)
    if kind == "id":
        kind = "number"
    units = summary.units.keys() - {"", CONVERTED}
    unit = ""
    if len(units) == 1:
        unit = units.pop()
    return Column(name, kind, (), has_gaps, unit=unit)


def _of_one_form(levels: Mapping[str, int]) -> dict[str, int]:
    """The levels, of those that differ in form alone the most frequent with the rows of
    all.
    """
    alike = _alike(levels, lambda level: forms_of_level(level)[-1])
    return {names[0]: sum(levels[name] for name in names) for names in alike}


def _alike(n_rows: Mapping[str, int], form: Callable[[str], str]) -> list[list[str]]:
    """Names of the same form together, those of more rows first."""
    alike: dict[str, list[str]] = {}
    for name in _by_rows(n_rows):
        alike.setdefault(form(name), []).append(name)
    return [*alike.values()]
