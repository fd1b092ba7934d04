"""Summary of a file of any size, as `TableSummary.of` makes it of a table in memory."""

from __future__ import annotations

from collections import Counter

from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.tables.schema import MOST_LEVELS, is_nameable
from flwr_flynn.tables.summary import ColumnSummary, TableSummary

_MOST_TEXTS = 2**20
"""Different texts of a column that are counted; beyond, those that occurred once are dropped."""


def summary_of(file: TableFile, min_examples: int = 1) -> TableSummary:
    """Kinds, gaps and levels of the features, without what fewer than `min_examples` rows have."""
    counts: list[Counter[str]] = [Counter() for _ in file.reports]
    names = file.names or tuple(map(str, range(len(file.reports))))
    gaps = [report.gaps for report in file.reports]
    if any(report.kind == "category" for report in file.reports):
        gaps = [0 if report.kind == "category" else report.gaps for report in file.reports]
        for table, _ in file.tables():
            for index, values in enumerate(table.columns):
                if values.dtype.kind == "O":
                    counts[index].update(values.tolist())
                    if len(counts[index]) > _MOST_TEXTS:
                        counts[index] = Counter({text: n for text, n in counts[index].items() if n > 1})
    columns = {}
    for index, (name, report) in enumerate(zip(names, file.reports, strict=True)):
        n_gaps = counts[index].pop(None, 0) if report.kind == "category" else gaps[index]  # type: ignore[call-overload]
        if n_gaps == file.n_rows:
            columns[name] = ColumnSummary({}, 0)
            continue
        named = {text: n for text, n in counts[index].items() if n >= min_examples and is_nameable(text)}
        most = sorted(named, key=lambda text: (-named[text], text))[:MOST_LEVELS]
        told = n_gaps if n_gaps >= min_examples else 0
        columns[name] = ColumnSummary({report.kind: file.n_rows}, told, {text: named[text] for text in sorted(most)})
    n_tables = dict.fromkeys(names, int(file.n_rows > 0))
    return TableSummary(columns, file.n_rows, n_tables, file.is_named)
