"""Remarks on columns: what looks wrong in a table, and between tables, with the setting
that mends it.

They are functions of summaries, which a site has of all of its rows, and a server of
what was told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches

import numpy as np

from flwr_flynn._validation import listed
from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.column_encoding import is_nameable
from flwr_flynn.tables.column_summary import LEFT_OUT, ColumnSummary
from flwr_flynn.tables.table import form_of
from flwr_flynn.tables.table_summary import TableSummary
from flwr_flynn.tables.texts import (
    CONVERTED,
    forms_of_level,
    is_beside,
    is_value,
    without_unit,
)

MOST = 200
"""Remarks that are listed."""

UNKNOWN = "..."
_NUMBERS = ("A NUMBER", "ANOTHER")
PLACEHOLDERS = frozenset((UNKNOWN, *_NUMBERS))
"""Texts of a setting that somebody must replace."""

_MOST_LINES = 60  # columns that are shown

_MANY = 100  # samples
_APART = 10  # percentage points

_NEARLY_ALL = 0.8  # rows of a site whose levels no other site has


@dataclass(frozen=True)
class Remark:
    """A thing that looks wrong.

    Parameters
    ----------
    column : str
        "" for a remark on a file.
    what : str
        It has no value of a few rows.
    settings : sequence of str
        Node settings behind a colon: each mends it, at all of the parties.
    parties : sequence of str
        Names of the parties that it is about; () for the one that is looked at.
    stops : bool
        True where going on would be worthless.
    n_rows : int
        Rows that it is about, 0 for all.
    """

    column: str
    what: str
    settings: Sequence[str] = ()
    parties: Sequence[str] = ()
    stops: bool = False
    n_rows: int = 0

    def mends(self, party: str = "PARTY") -> list[str]:
        """The settings, of the party that it is about, or of each."""
        if len(self.parties) == 1:
            party = self.parties[0]
        return [party + setting for setting in self.settings]

    def described(self) -> str:
        """Column, and what looks wrong with it, in a line."""
        line = self.what
        if self.column:
            line = f"column {self.column[:60]!r}: {line}"
        if self.n_rows:
            line += f", in {self.n_rows} training rows"
        return line

    def text(self, party: str = "PARTY") -> str:
        """The remark in a line, with its settings as they are typed."""
        line = self.described()
        if self.parties:
            line += f" ({listed([*self.parties])})"
        mends = [f"--set {quoted(mend)}" for mend in self.mends(party)]
        return "; ".join(filter(None, [line, " or ".join(mends)]))

    def at_site(self) -> str:
        """The remark in a line, with the settings of the site that it is about."""
        settings = [setting.removeprefix(":") for setting in self.settings]
        return f"{self.described()}; setting {' or '.join(settings)}"

    def to_dict(self) -> dict[str, object]:
        """Plain Python values that JSON can hold."""
        return {
            "column": self.column,
            "what": self.what,
            "rows": self.n_rows,
            "settings": self.mends(),
            "parties": [*self.parties],
        }


def quoted(text: str) -> str:
    """A text as it is typed in a shell."""
    if re.search(r"[^\w@%+=:,./-]", text):
        return "'" + text.replace("'", "'\"'\"'") + "'"
    return text


def named(*names: str) -> str:
    """Names of columns as a setting has them, where names may have commas."""
    if any("," in name or name[:1] in '["' for name in names):
        return json.dumps(names, ensure_ascii=False)
    return ",".join(names)


def of_table(table: TableSummary) -> list[Remark]:
    """Remarks on the columns of one table, or of several together."""
    remarks = list[Remark]()
    for name, summary in table.columns.items():
        if is_nameable(name):
            remarks += _of_column(name, summary)
    return remarks


def _of_column(name: str, summary: ColumnSummary) -> Iterable[Remark]:
    kind = summary.kind
    own = named(name)
    units = sorted(summary.units, key=summary.units.__getitem__)[::-1]
    if len(units) > 1:
        at = [f"{unit or 'no unit'} in {summary.units[unit]} rows" for unit in units]
        text = f"numbers of several units: {listed(at)}"
        factors = dict.fromkeys(units, UNKNOWN) | {units[0]: "1"}
        yield Remark(name, text, [conversion(name, factors), f":ignore={own}"])
    elif kind in LEFT_OUT:
        settings = [f":ignore={own}", f":keep={own}"]
        if kind == "id":
            settings.insert(0, f":held-out-key={name}")
        elif kind == "text":
            settings.append(f":held-out-key={name}")
        yield Remark(name, f"{LEFT_OUT[kind]}: left out", settings)
    if summary.is_telling:
        text = "tells a class apart, by itself or its gaps; known before the outcome?"
        yield Remark(name, text, [f":ignore={own}", f":keep={own}"])
    if summary.codes:
        codes = ",".join(summary.codes)
        text = f"{codes} is far outside all others, as codes of missing values are"
        # They may be values of other columns, as 0 is, and as often are not.
        settings = [_synonyms(name, [(code, "NA") for code in summary.codes])]
        if "0" not in summary.codes:
            settings.append(f":gap-texts={codes}")
        settings.append(f":accept={own}")
        yield Remark(name, text, settings, n_rows=sum(summary.codes.values()))


def noticed(table: TableSummary) -> list[str]:
    """Remarks on the columns of a table, as lines for its site."""
    return [remark.at_site() for remark in of_table(table)[:MOST]]


def lines_of(table: TableSummary) -> list[list[str]]:
    """The columns of a table as lines of texts: name, kind, unit, gaps and levels.

    Of very many, those with remarks.
    """
    columns = table.columns
    if len(columns) > _MOST_LINES:
        noticed = {remark.column for remark in of_table(table)}
        columns = {name: columns[name] for name in columns if name in noticed}
    lines = [["column", "kind", "unit", "gaps", "levels"]]
    for name, summary in [*columns.items()][:_MOST_LINES]:
        n_levels = ""
        if summary.kind == "category":
            n_levels = str(len(summary.levels))
        units = " ".join(filter(None, summary.units))
        kind = summary.kind or "empty"
        lines.append([name[:40], kind, units, str(summary.gaps), n_levels])
    if len(table.columns) > len(lines) - 1:
        rest = len(table.columns) - len(lines) + 1
        lines.append([f"{rest} more columns", *[""] * 4])
    return lines


# ---- between parties

_PLAIN = ColumnSummary(1, {"number": 1}, units={"": 1})


def briefly(table: TableSummary) -> TableSummary:
    """A summary with what remarks need of it alone, so that many can be kept."""
    columns = {}
    for name, summary in table.columns.items():
        columns[name] = summary
        is_plain = summary.kind == "number" and [*summary.units] == [""]
        if is_plain and not summary.codes and not summary.gaps:
            columns[name] = _PLAIN
    return replace(table, columns=columns)


def raise_stops(remarks: Iterable[Remark]) -> None:
    """Raise a `SchemaError` for remarks that stop a run."""
    stops = [remark.text() for remark in remarks if remark.stops]
    if stops:
        got = listed(stops)
        expected = "columns of one unit at all parties"
        raise SchemaError("columns", expected, got)


def of_parties(tables: Mapping[str, TableSummary]) -> list[Remark]:
    """Remarks on the tables of parties by their names, those that are alike as one."""
    together: dict[tuple[object, ...], Remark] = {}
    for party, table in tables.items():
        for remark in of_table(table):
            key = (remark.column, remark.what)
            before = together.get(key, replace(remark, n_rows=0))
            together[key] = replace(
                before,
                parties=[*before.parties, party],
                n_rows=before.n_rows + remark.n_rows,
            )
    return [*compared(tables), *together.values()]


def compared(tables: Mapping[str, TableSummary]) -> list[Remark]:
    """Remarks on what differs between the tables of parties, by their names."""
    columns: dict[str, dict[str, ColumnSummary]] = {}
    names: dict[str, str] = {}
    for party, table in tables.items():
        if not table.is_named:
            continue
        for name, summary in table.columns.items():
            if is_nameable(name) and not is_beside(name, table.columns):
                form = form_of(name)
                names.setdefault(form, name)
                columns.setdefault(form, {})[party] = summary
    remarks = [*_unit_names(names, columns)]
    for form, summaries in columns.items():
        remarks += _units(names[form], summaries)
        remarks += _words(names[form], summaries)
    return remarks


def _unit_names(
    names: Mapping[str, str], columns: Mapping[str, Mapping[str, object]]
) -> Iterable[Remark]:
    """Remarks on columns of several parties whose names differ in the unit alone."""
    alike: dict[str, list[str]] = {}
    for form in sorted(columns, key=lambda form: -len(columns[form])):
        alike.setdefault(without_unit(names[form]), []).append(form)
    for usual, *others in alike.values():
        for form in others:
            if columns[form].keys().isdisjoint(columns[usual]):
                text = f"{names[usual]!r} elsewhere, which may have another unit"
                rename = f":rename={renamed({names[form]: names[usual]})}"
                yield Remark(names[form], text, [rename], [*columns[form]])


def _units(name: str, summaries: Mapping[str, ColumnSummary]) -> Iterable[Remark]:
    """A remark where the units of a column differ between parties."""
    at: dict[str, list[str]] = {}
    for party, summary in summaries.items():
        units = summary.units
        if summary.kind == "number" and units and CONVERTED not in units:
            # Numbers alone beside others with a unit are taken to have it, too.
            unit = max(units, key=lambda unit: (unit != "", units[unit], unit))
            at.setdefault(unit, []).append(party)
    if len(at) < 2:
        return
    usual, *others = sorted(at, key=lambda unit: (-len(at[unit]), unit))
    words = [f"{unit or 'no unit'} at {listed(at[unit])}" for unit in (usual, *others)]
    parties = [party for unit in others for party in at[unit]]
    own_units = {unit for party in parties for unit in summaries[party].units}
    factors = dict.fromkeys(sorted(own_units, reverse=True), UNKNOWN)
    settings = [conversion(name, factors), f":accept={named(name)}"]
    yield Remark(name, f"units differ: {'; '.join(words)}", settings, parties, True)


def _words(name: str, summaries: Mapping[str, ColumnSummary]) -> Iterable[Remark]:
    """Remarks on levels that one party alone has, with those that they may mean."""
    parties = [party for party in summaries if summaries[party].levels]
    forms = {
        party: {level: forms_of_level(level)[-1] for level in summaries[party].levels}
        for party in parties
    }
    times = Counter(form for own in forms.values() for form in {*own.values()})
    common = _common(summaries, parties)
    numbers = [party for party in summaries if summaries[party].kind == "number"]
    if parties and 2 * len(numbers) <= len(summaries):
        # 1 may be yes, and, beside 2, no.
        pairs = [*zip(_NUMBERS, common, strict=False)]
        for party in numbers:
            text = "numbers, where others have texts"
            yield Remark(name, text, [_synonyms(name, pairs)], [party])
    elif numbers:
        for party in parties:
            pairs = [(level, UNKNOWN) for level in summaries[party].levels]
            if not all(map(is_value, summaries[party].levels)):
                text = "texts, where others have numbers"
                yield Remark(name, text, [_synonyms(name, pairs)], [party])
    groups = [
        (words, {other for other in common if other.casefold() in words})
        for words in _SAME
    ]
    once: dict[str, list[str]] = {}
    for party in parties:
        levels = summaries[party].levels
        odd = [level for level, form in forms[party].items() if times[form] == 1]
        if len(parties) < 2 or not odd:
            continue
        n_odd = sum(levels[level] for level in odd)
        are_all = n_odd >= _NEARLY_ALL * sum(levels.values())
        pairs = paired(odd, common)
        if not are_all:
            pairs = [pair for pair in pairs if _are_same(*pair)]
        if not pairs:
            once[party] = [
                level
                for level in odd
                if not any(
                    level.casefold() in words and group - {level}
                    for words, group in groups
                )
            ]
            continue
        shown = [repr(level[:30]) for level in odd[:20]]
        text = f"levels that no other party has: {listed(shown)}"
        yield Remark(name, text, [_synonyms(name, pairs)], [party])
    n = sum(map(len, once.values()))
    if n:
        yield Remark(name, f"{n} levels at one party alone", (), [*once])


def coinciding(
    names: Sequence[str],
    classes: Sequence[object],
    sites: Sequence[tuple[str, Sequence[int], Collection[str]]],
) -> dict[str, str]:
    """Columns whose gaps tell the site, and so the mix of its classes, in words.

    That is where sites of at least `_MANY` samples lack more than half of the values,
    others have as many samples, and the shares of a class are over `_APART` apart.
    `sites` are names, samples of each class, and forms of the columns that are there.
    """
    sentences = dict[str, str]()
    if not sites:
        return sentences
    sizes = np.array([own for _, own, _ in sites])
    for name in [name for name in names if not is_beside(name, {*names})]:
        held = np.array([form_of(name) in forms for _, _, forms in sites])
        here = sizes[~held].sum(0)
        there = sizes[held].sum(0)
        if min(here.sum(), there.sum()) < _MANY:
            continue
        here = 100 * here / here.sum()
        there = 100 * there / there.sum()
        code = np.lexsort((here, abs(here - there).round(9)))[-1]
        if abs(here[code] - there[code]) > _APART:
            lacking = [
                site for (site, *_), has in zip(sites, held, strict=True) if not has
            ]
            shares = f"{here[code]:.0f} % in place of {there[code]:.0f} %"
            of = f"class {classes[code]} is {shares}"
            sentences[name] = f"mostly missing at {listed(lacking)}, where {of}"
    return sentences


def conversion(name: str, factors: Mapping[str, str]) -> str:
    """The setting that converts the units of a column."""
    entries = [f"{name}:{unit}*{factor}" for unit, factor in factors.items()]
    return ":convert=" + _entries({name: factors}, entries, [name, *factors])


def _synonyms(name: str, pairs: Iterable[tuple[str, str]]) -> str:
    levels = dict(pairs)
    entries = [f"{name}:{own}={other}" for own, other in levels.items()]
    texts = [name, *levels, *levels.values()]
    return ":synonyms=" + _entries({name: levels}, entries, texts)


def _entries(table: object, entries: Iterable[str], texts: Iterable[str]) -> str:
    """Entries of a setting that is a map, as a table where texts have its marks."""
    if any(mark in text for text in texts for mark in ",:=*"):
        return json.dumps(table, ensure_ascii=False)
    return ",".join(entries)


def renamed(pairs: Mapping[str, str]) -> str:
    """The setting by which names, or labels, stand for others."""
    entries = [f"{own}={other}" for own, other in pairs.items()]
    return _entries(dict(pairs), entries, [*pairs, *pairs.values()])


def _common(
    summaries: Mapping[str, ColumnSummary], parties: Iterable[str]
) -> list[str]:
    """The levels of some parties, those of most of them first, then of most rows."""
    times = Counter[str]()
    rows = Counter[str]()
    for party in parties:
        times.update([*summaries[party].levels])
        rows.update(summaries[party].levels)
    return sorted(times, key=lambda level: (-times[level], -rows[level], level))


_SAME = [
    {*words.split()}
    for words in (
        "yes y ja j oui si sì sí sim tak true t 1 wahr vrai positive positiv",
        "no n nein non não nie false f 0 falsch faux negative negativ",
        "male m männlich mann masculin maschio uomo homme masculino hombre",
        "female f w weiblich frau féminin femmina donna femme femenino mujer",
        "unknown unbekannt inconnu sconosciuto desconocido",
    )
]


def paired(own: Sequence[str], common: Sequence[str]) -> list[tuple[str, str]]:
    """Each level with the one that it probably means, "..." for none.

    Without those that the others probably should take.
    """
    pairs = []
    for level in own[:20]:
        # The end of another is often its opposite: normal, abnormal.
        others = [
            other
            for other in common[:50]
            if other not in own and not _ends_alike(level, other)
        ]
        same = [other for other in common[:50] if _are_same(level, other)]
        near = get_close_matches(level, others, 1, 0.8)
        best = next(iter(same or near), UNKNOWN)
        if best != level:
            pairs.append((level, best))
    return pairs


def _ends_alike(one: str, other: str) -> bool:
    """True where one text is the end of the other, which is longer."""
    return one != other and (one.endswith(other) or other.endswith(one))


def _are_same(one: str, other: str) -> bool:
    pair = {one.casefold(), other.casefold()}
    return any(pair <= words for words in _SAME)


def nearest(missing: Sequence[str], there: Sequence[str]) -> dict[str, str]:
    """For each missing name the nearest one of a file, of those that no other needs."""
    bare = {name: without_unit(name) for name in (*missing, *there)}
    pairs = sorted(
        (-SequenceMatcher(None, bare[name], bare[own]).ratio(), name, own)
        for name in missing
        for own in there
    )
    near: dict[str, str] = {}
    for share, name, own in pairs:
        if share <= -0.7 and name not in near and own not in near.values():
            near[name] = own
    return near
