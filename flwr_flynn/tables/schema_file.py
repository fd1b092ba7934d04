"""Schema file: a schema in TOML, that one site drafts from its own file and all sites read.

At the top are `label`, `classes` and `gap-texts`, then a table ``[[column]]`` for each column with `name`, `kind`,
`levels`, `gaps`, `low`, `high`, `unit` and `gap-texts`; see `Column` for their meaning. A file comes from anybody: it
is read whole or refused.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr_flynn.errors import FlyNNError, SchemaError
from flwr_flynn.tables.schema import LONGEST, MOST_LEVELS, Schema

LARGEST = 2**20
"""Bytes of a schema file, at most."""

_TOP = ("label", "classes", "is-named")
_GAP_TEXTS = "gap-texts"


@dataclass(frozen=True)
class SchemaFile:
    """A schema, with the texts that stand for missing values in files.

    Parameters
    ----------
    schema : Schema
    gap_texts : sequence of str
        In all columns.
    column_gap_texts : mapping of str to sequence of str
        In single columns, by their names.
    """

    schema: Schema
    gap_texts: Sequence[str] = ()
    column_gap_texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap_texts", _checked_texts(_GAP_TEXTS, self.gap_texts))
        own = {
            name: _checked_texts(f"column {name[:60]!r} {_GAP_TEXTS}", texts)
            for name, texts in self.column_gap_texts.items()
        }
        if unknown := len(set(own) - set(self.schema.names)):
            raise SchemaError(_GAP_TEXTS, "texts of columns of the schema", f"{unknown} other columns")
        object.__setattr__(self, "column_gap_texts", {name: texts for name, texts in own.items() if texts})

    def to_toml(self, comments: Mapping[tuple[str, str], str] | None = None) -> str:
        """The text of the file; `comments` stand in front of an entry, by column (or "") and key.

        >>> from flwr_flynn.tables.schema import Column
        >>> print(SchemaFile(Schema([Column("age", "number", low=0.0)])).to_toml({("age", "low"): "public"}))
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
            "label": self.schema.label or None,
            "classes": list(self.schema.classes) or None,
            "is-named": None if self.schema.is_named else False,
            _GAP_TEXTS: list(self.gap_texts) or None,
        }
        lines = _entries("", top, notes)
        for column in self.schema.columns:
            values = {"name": column.name, "kind": column.kind, "gaps": column.gaps, **column.to_dict()}
            values[_GAP_TEXTS] = list(self.column_gap_texts.get(column.name, ())) or None
            lines += [*([""] if lines else []), "[[column]]", *_entries(column.name, values, notes)]
        return "\n".join(lines) + "\n"


def read_schema(path: str | os.PathLike[str]) -> SchemaFile:
    """The schema in a file; a `SchemaError` with the file's name for anything else, an `OSError` without a file."""
    name = Path(path).name
    with open(path, "rb") as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise SchemaError(name, f"at most {LARGEST // 2**10} KiB", "a larger file")
    try:
        return parsed(text.decode("utf-8"))
    except FlyNNError as error:
        raise SchemaError(f"{name}: {error.field}", error.expected, error.got) from None
    except (ValueError, RecursionError) as error:
        # The text of a parser's error may hold a part of the file.
        where = f" ({str(error).rpartition('(')[2].rstrip(')')})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise SchemaError(name, "a schema in TOML", f"{type(error).__name__}{where}"[:120]) from None


def parsed(text: str) -> SchemaFile:
    """The schema in a text; a `SchemaError`, a `ValueError` or a `RecursionError` for anything else."""
    values = tomllib.loads(text.removeprefix("\ufeff"))
    known = (*_TOP, _GAP_TEXTS, "column")
    if unknown := sorted(set(values) - set(known)):
        raise SchemaError(f"key {unknown[0][:60]!r}", f"one of {', '.join(known)}", "an unknown key")
    columns = values.get("column")
    if not isinstance(columns, list) or not all(isinstance(column, dict) for column in columns):
        raise SchemaError("column", "tables [[column]]", type(columns).__name__)
    own: dict[str, Any] = {}
    for column in columns:
        if _GAP_TEXTS in column and isinstance(column.get("name"), str):
            own[column["name"]] = column.pop(_GAP_TEXTS)
    rest = {key.replace("-", "_"): values[key] for key in _TOP if key in values}
    return SchemaFile(Schema.from_dict({"columns": columns, **rest}), values.get(_GAP_TEXTS, []), own)


def _checked_texts(what: str, texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Sequence) or len(texts) > MOST_LEVELS:
        raise SchemaError(what, f"a list of at most {MOST_LEVELS} texts", type(texts).__name__)
    if bad := sum(not (isinstance(text, str) and text.isprintable() and len(text) <= LONGEST) for text in texts):
        raise SchemaError(what, f"printable texts of at most {LONGEST} characters", f"{bad} others")
    return tuple(texts)


def _entries(column: str, values: Mapping[str, Any], notes: Mapping[tuple[str, str], str]) -> list[str]:
    """Lines of the values that are not None, and of all comments."""
    lines = []
    for key, value in values.items():
        lines += [f"# {line}" for line in notes.get((column, key), "").splitlines()]
        if value is not None:
            lines.append(f"{key} = {_in_toml(value)}")
    lines += [f"# {line}" for line in notes.get((column, ""), "").splitlines()]
    return lines


def _in_toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_in_toml, value))}]"
    if isinstance(value, str):
        # TOML takes JSON's escapes, but no pairs of surrogates, and the last control character of ASCII not as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower() if isinstance(value, bool) else repr(value)
