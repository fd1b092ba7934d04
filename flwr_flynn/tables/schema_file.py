"""Schema file: a schema in TOML, that one site drafts from its own file and all sites read.

At the top are `label`, `classes` and the `gap-texts` of all columns, then a table ``[[column]]`` for each
column with `name`, `kind`, `levels`, `gaps`, `low`, `high`, `unit` and `gap-texts`; see `Column` for their meaning. It
comes from anybody: it is read whole or refused.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_flynn.errors import FlyNNError, SchemaError
from flwr_flynn.tables.schema import Schema

LARGEST = 2**23
"""Bytes of a schema file, at most: room for the drafts of files with thousands of columns."""

_TOP = ("label", "classes", "is-named", "gap-texts", "column")


def to_toml(schema: Schema, comments: Mapping[tuple[str, str], str] | None = None) -> str:
    """The text of the file; `comments` stand in front of an entry, by column (or "") and key.

    >>> from flwr_flynn.tables.column import Column
    >>> print(to_toml(Schema([Column("age", "number", low=0.0)]), {("age", "low"): "public"}))
    [[column]]
    name = "age"
    kind = "number"
    gaps = true
    # public
    low = 0.0
    <BLANKLINE>
    """
    notes = dict(comments or {})
    top = {
        "label": schema.label or None,
        "classes": list(schema.classes) or None,
        "is-named": None if schema.is_named else False,
    }
    lines = _entries("", top, notes)
    for column in schema.columns:
        values = {"name": column.name, "kind": column.kind, "gaps": column.gaps, **column.to_dict()}
        lines += [*([""] if lines else []), "[[column]]", *_entries(column.name, values, notes)]
    return "\n".join(lines) + "\n"


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in a file; a `SchemaError` with the file's name for anything else, an `OSError` without a file."""
    name = Path(path).name
    with open(path, "rb") as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise SchemaError(name, f"at most {LARGEST // 2**20} MiB", "a larger file")
    try:
        return parsed(text.decode("utf-8"))
    except FlyNNError as error:
        raise SchemaError(f"{name}: {error.field}", error.expected, error.got) from None
    except (ValueError, RecursionError) as error:
        # The text of a parser's error may hold a part of the file.
        where = f" ({str(error).rpartition('(')[2].rstrip(')')})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise SchemaError(name, "a schema in TOML", f"{type(error).__name__}{where}"[:120]) from None


def parsed(text: str) -> Schema:
    """The schema in a text; a `SchemaError`, a `ValueError` or a `RecursionError` for anything else."""
    values = tomllib.loads(text.removeprefix("\ufeff"))
    if unknown := sorted(set(values) - set(_TOP)):
        raise SchemaError(f"key {unknown[0][:60]!r}", f"one of {', '.join(_TOP)}", "an unknown key")
    columns, gap_texts = values.pop("column", None), values.pop("gap-texts", [])
    if not isinstance(columns, list) or not all(isinstance(column, dict) for column in columns):
        raise SchemaError("column", "tables [[column]]", type(columns).__name__)
    columns = [{key.replace("-", "_"): value for key, value in column.items()} for column in columns]
    for column in columns if gap_texts else ():  # of all columns
        own = column.get("gap_texts", [])
        column["gap_texts"] = [*gap_texts, *own] if isinstance(gap_texts, list) and isinstance(own, list) else gap_texts
    return Schema.from_dict({"columns": columns, **{key.replace("-", "_"): value for key, value in values.items()}})


def _entries(column: str, values: Mapping[str, Any], notes: Mapping[tuple[str, str], str]) -> list[str]:
    """Lines of the values that are not None, and of all comments."""
    lines = []
    for key, value in values.items():
        lines += [f"# {line}" for line in notes.get((column, key), "").splitlines()]
        if value is not None:
            lines.append(f"{key.replace('_', '-')} = {_in_toml(value)}")
    lines += [f"# {line}" for line in notes.get((column, ""), "").splitlines()]
    return lines


def _in_toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_in_toml, value))}]"
    if isinstance(value, str):
        # TOML takes JSON's escapes, but no pairs of surrogates, and the last control character of ASCII not as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
