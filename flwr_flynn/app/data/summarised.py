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
    counts: list[Counter[str | None]] = [Counter() for _ in file.reports]
    if any(report.kind == "category" for report in file.reports):
        for table, _ in file.tables():
            for index, values in enumerate(table.columns):
                if values.dtype.kind == "O":
                    counts[index].update(values.tolist())
                    if len(counts[index]) > _MOST_TEXTS:
                        counts[index] = Counter({text: n for text, n in counts[index].items() if n > 1})
    names, n = file.names or tuple(map(str, range(len(file.reports)))), file.n_rows
    columns = {}
    for name, report, found in zip(names, file.reports, counts, strict=True):
        n_gaps = found.pop(None, 0) if report.kind == "category" else report.gaps
        told = n_gaps if n_gaps >= min_examples else 0
        named = {text: k for text, k in found.items() if text is not None and k >= min_examples and is_nameable(text)}
        most = sorted(named, key=lambda text, named=named: (-named[text], text))[:MOST_LEVELS]  # type: ignore[misc]
        kinds = {} if n_gaps == n else {report.kind: n}
        columns[name] = ColumnSummary(n, kinds, told, {text: named[text] for text in sorted(most)})
    return TableSummary(columns, n, file.is_named)
