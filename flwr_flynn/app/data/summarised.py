"""Summary of a file of any size, as `TableSummary.of` makes it of a table in memory."""

from dataclasses import replace

from flwr_flynn.app.data.partition import held_out
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.tables.summary import TableSummary

_MOST_TEXTS = 2**20
"""Different texts of a column that are counted; beyond, those that occurred once are dropped."""


def counted(file: TableFile, test_fraction: float = 0.0, split_seed: int = 0) -> TableSummary:
    """Kinds, gaps and levels of the features in the rows that are not held out."""
    total, first = TableSummary.empty(), 0
    for table, _ in file.tables():
        total += TableSummary.counted(table[~held_out(len(table), test_fraction, split_seed, first)])
        first += len(table)
        for name, each in total.columns.items():
            if len(each.levels) > _MOST_TEXTS:
                kept = {text: n for text, n in each.levels.items() if n > 1}
                total = replace(total, columns={**total.columns, name: replace(each, levels=kept)})
    return total
