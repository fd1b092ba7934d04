"""The settings of a site about its own file, and the file `site.toml` that has them.

Each is a map of one cell, one name or one column, so that private parties have them,
too. They hold no path, policy, budget or secret.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flwr_flynn._validation import listed
from flwr_flynn.app.data.csv_file import ENCODINGS, SEPARATOR_NAMES
from flwr_flynn.app.data.source import Dialect
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.settings_parser import Rule, Settings, floats, key_of, setting
from flwr_flynn.errors import ConfigError
from flwr_flynn.tables.cells import Scale, level_of
from flwr_flynn.tables.remarks import PLACEHOLDERS, Remark
from flwr_flynn.tables.schema import in_toml
from flwr_flynn.tables.table import form_of
from flwr_flynn.tables.texts import (
    DATE_FORMATS,
    as_name,
    quantity_of,
    unit_form,
    unit_in,
)

_PAIR = "^()([^=]+)=(.+)$"
_MAPS: dict[str, tuple[str, Callable[[str], str | None], str]] = {
    "label_map": (_PAIR, level_of, "ja=yes"),
    "rename": (_PAIR, form_of, "kreatinin=creatinine"),
    "convert": (r"^([^:]+):(.*)\*([^*]+)$", unit_form, "crp:mg/dl*10"),
    "synonyms": ("^([^:]+):([^=]+)=(.+)$", level_of, "sex:weiblich=female"),
}
"""Settings that are maps: form of an entry, how its texts are compared, an example."""

_DIGITS = r"[0-9.]+(?:[eE][+-]?[0-9]+)?"
_SCALE = re.compile(rf"([+-]?{_DIGITS})([+-]{_DIGITS})?")
"""A factor, and what is added."""

_LISTS = ("ignore", "keep", "accept", "gap_texts")
_LARGEST = 2**20  # bytes of a file


@dataclass(frozen=True)
class SiteSettings(Settings):
    """Settings of a site about its own file, which the file at `site` may have, too."""

    foreign = frozenset()

    label: str = setting(
        "", "its label column; not given: `label` (CSV, Parquet) or `y` (NPZ)"
    )
    label_map: str = setting(
        "", "its labels as the others write them, such as `ja=yes,nein=no`"
    )
    ignore: str = setting(
        "", "columns of the file that are not used, with commas between, or a JSON list"
    )
    keep: str = setting("", "columns that are no ids or names, although they look so")
    accept: str = setting("", "columns in which nothing that looks wrong stops a run")
    separator: str = setting(
        "",
        "separator of a CSV file; not given: detected",
        choices=tuple(SEPARATOR_NAMES),
    )
    decimal: str = setting(
        "", "decimal mark in a CSV file; not given: detected", choices=(".", ",")
    )
    encoding: str = setting(
        "", "encoding of a CSV file; not given: detected", choices=ENCODINGS
    )
    gap_texts: str = setting(
        "",
        "texts of missing values beside empty cells, `NA`, `?` and the like, as a list",
    )
    date_format: str = setting(
        "", "form of the dates in a CSV file; not given: detected", choices=DATE_FORMATS
    )
    held_out_key: str = setting(
        "",
        "column of ids, no feature; rows of one id are held out together, else each "
        "row",
    )
    rename: str = setting(
        "",
        "its columns by the names that the others use: `kreatinin=creatinine`; all "
        "other settings have these names",
    )
    convert: str = setting(
        "",
        "factors of units, nothing for none, and what is added: "
        "`crp:mg/dl*10,crp:*1,temperature:f*0.5556-17.78`; other units of the column "
        "are no numbers then",
    )
    synonyms: str = setting(
        "", "its texts as the others write them: `sex:weiblich=female`"
    )

    def entries_of(self, name: str) -> list[tuple[str, str, str]]:
        """The entries of a map: column ("" for none), text, and what it stands for."""
        form, compared, example = _MAPS[name]
        text = getattr(self, name)
        if text.startswith("{"):
            given = _in_json(text)
        else:
            given = (re.findall(form, entry) for entry in self.names(name))
        has_column = form != _PAIR
        entries = []
        n_bad = 0
        for triples in given:
            n_bad += not triples
            for triple in triples:
                column, own, common = map(str.strip, triple)
                entries.append((column, own, common))
                is_whole = common and (own or name == "convert")
                is_whole = is_whole and PLACEHOLDERS.isdisjoint((own, common))
                n_bad += not is_whole or bool(column) != has_column
        if n_bad:
            expected = f"entries such as {example}, filled in, or a table of texts"
            raise self.refused(name, expected, f"{n_bad} others")
        times = Counter((form_of(own[0]), compared(own[1])) for own in entries)
        unclear = [
            own
            for column, own, _ in entries
            if times[form_of(column), compared(own)] > 1 or compared(own) is None
        ]
        if unclear:
            expected = "texts of different meanings, none of them a missing value"
            raise self.refused(name, expected, listed(unclear))
        return entries

    def _scales(self) -> dict[str, dict[str, Scale]]:
        """Factors of numbers, and what is added then, by column and unit.

        The unit in a name that is another one now is that of numbers alone.
        """
        scales: dict[str, dict[str, Scale]] = {}
        wrong = []
        for column, unit, text in self.entries_of("convert"):
            form = unit_form(unit)
            match = _SCALE.fullmatch(text)
            numbers = []
            if match is not None:
                numbers = floats(f"{match[1]},{match[2] or 0}", ",")
            # Behind a number no other text is taken for a unit.
            is_unit = quantity_of(f"1 {unit}".rstrip())[1] == form
            if not (numbers and numbers[0] and is_unit):
                wrong.append(f"{unit}*{text}")
                continue
            factor, added = numbers
            scales.setdefault(as_name(column), {})[form] = (factor, added)
        if wrong:
            expected = (
                "units without blanks, each with a factor that is a number, not 0, and "
                "with what is added then, if anything"
            )
            raise self.refused("convert", expected, listed(wrong))
        missing = []
        accepted = {form_of(as_name(name)) for name in self.names("accept")}
        for _, own, common in self.entries_of("rename"):
            unit = unit_in(as_name(own))
            of_column = scales.get(as_name(common), {})
            if unit in of_column:
                of_column.setdefault("", of_column[unit])
            elif unit != unit_in(as_name(common)) and form_of(common) not in accepted:
                missing.append(f"convert={common}:{unit}*... or accept={common}")
        if missing:
            expected = "a factor where a renamed column has a unit, or another one"
            raise self.refused("convert", expected, f"none: {', '.join(missing)}")
        return scales

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        labels = (self.label or "label", self.label or "y")
        yield (
            "held_out_key",
            self.held_out_key in labels,
            "another column than that of the labels",
        )

    def check(self) -> None:
        super().check()
        self.dialect()
        for name in _LISTS:
            self.names(name)

    def dialect(self) -> Dialect:
        """Names, labels, cells and form of the file, as far as the settings give it."""
        synonyms: dict[str, dict[str, str]] = {}
        for column, own, common in self.entries_of("synonyms"):
            synonyms.setdefault(as_name(column), {})[level_of(own) or ""] = common
        names = self.entries_of("rename")
        labels = self.entries_of("label_map")
        return Dialect(
            separator=SEPARATOR_NAMES.get(self.separator, ""),
            decimal=self.decimal,
            encoding=self.encoding,
            gap_texts=self.names("gap_texts"),
            date_format=self.date_format,
            rename={as_name(own): as_name(common) for _, own, common in names},
            label_map={own: common for _, own, common in labels},
            convert=self._scales(),
            synonyms=synonyms,
        )

    def facts(self) -> dict[str, Any]:
        """All that decides how a row is read, as values for JSON."""
        return {
            **asdict(self.dialect()),
            "label": self.label,
            "ignore": self.names("ignore"),
            "held_out_key": self.held_out_key,
        }


def _in_json(text: str) -> Iterator[list[tuple[str, str, str]]]:
    """The entries of a JSON object, or of one for each column; [] for anything else."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        yield []
        return
    for key, value in pairs:
        of_key = [("", key, value)]
        if isinstance(value, tuple):
            of_key = [(key, *pair) for pair in value]
        for column, own, common in of_key:
            if isinstance(common, str | int | float):
                yield [(column, own, str(common))]
            else:
                yield []


def site_settings(path: str) -> dict[str, object]:
    """The settings in a file, checked, as a node config has them."""
    name = Path(path).name
    try:
        with Path(path).expanduser().open("rb") as stream:
            content = stream.read(_LARGEST + 1)
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a NUL
        expected = "a file of settings in TOML"
        raise ConfigError("node-config site", expected, "no such file") from None
    if len(content) > _LARGEST:
        raise ConfigError(name, f"at most {_LARGEST} bytes", "a larger file")
    try:
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        # The text of a parser's error may hold a part of the file.
        where = re.findall(r"\(at [^()]*\)", str(error))
        expected = 'settings in TOML, names and texts in quotes: "männlich" = "male"'
        raise ConfigError(name, expected, " ".join(["others", *where])) from None
    given = {key: _in_one(key, value) for key, value in tables.items()}
    table: Any = type("SiteFile", (SiteSettings,), {"source": name})
    table.parse(given)
    return given


def _in_one(key: str, value: Any) -> object:
    """A list or a table of TOML as the text of a setting that is one."""
    if isinstance(value, list) and key in map(key_of, (*_LISTS, *_MAPS)):
        return json.dumps([str(entry) for entry in value])
    if isinstance(value, dict) and key in map(key_of, _MAPS):
        return json.dumps(value, default=str)
    return value


# ---- drafts

_EXAMPLES = {
    "rename": '{ "name in this file" = "name of the others" }',
    "convert": '{ "crp" = { "mg/dl" = 10, "" = 1 } }',
    "synonyms": '{ "sex" = { "männlich" = "male", "weiblich" = "female" } }',
    "label_map": '{ "ja" = "yes", "nein" = "no" }',
    "ignore": '["column"]',
    "gap_texts": '["-9"]',
}
"""Values of TOML in comments of a draft."""


def site_toml(node: SiteSettings, file: TableFile, remarks: Sequence[Remark]) -> str:
    """A site's file with what is given, and what was detected in its data file.

    What was noticed, and the settings that mend it, are comments.
    """
    offered: dict[str, dict[str, None]] = {}
    for remark in remarks:
        for typed in remark.settings:
            key, _, value = typed.removeprefix(":").partition("=")
            offered.setdefault(key, {})[value] = None
    forms = {report.form for report in file.reports if report.kind == "date"}
    dialect = file.source.dialect
    detected = {"label": file.reading.label or ""}
    if dialect is not None:
        names = {mark: name for name, mark in SEPARATOR_NAMES.items()}
        detected |= {
            "separator": names[dialect.separator],
            "decimal": dialect.decimal,
            "encoding": dialect.encoding,
        }
        if len(forms) == 1:
            detected["date_format"] = forms.pop()
    lines = ["# How a site's own file is read. Nothing here is about single rows."]
    lines += [f"# NOTICED: {remark.described()}" for remark in remarks]
    for row in SiteSettings.rows():
        value = getattr(node, row.name)
        meaning = row.facts.meaning
        note = ""
        if value == "":
            value = detected.get(row.name, "")
            note = " Detected: is it right?"
        if value == "":
            lines.append(f"\n# {meaning}")
            if row.key in offered:
                texts = [*offered[row.key]]
                is_many = row.name in (*_LISTS, *_MAPS)
                if is_many and not any(text.startswith(("[", "{")) for text in texts):
                    texts = [",".join(texts)]
                lines += [f"# {row.key} = {in_toml(text)}" for text in texts]
            elif row.name in _EXAMPLES:
                lines.append(f"# {row.key} = {_EXAMPLES[row.name]}")
        else:
            if row.name in (*_LISTS, *_MAPS) and value[0] in "[{":
                value = json.loads(value)
            lines += [f"\n# {meaning}.{note}", f"{row.key} = {in_toml(value)}"]
    return "\n".join(lines) + "\n"
