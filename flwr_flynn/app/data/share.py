"""A party's share of samples, in memory or in files without a name."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.labels import coded_labels, labels_of
from flwr_flynn.app.data.partition import held_out
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.errors import DataError
from flwr_flynn.federated.samples import Samples
from flwr_flynn.tables.kinds_and_levels import TableSummary
from flwr_flynn.tables.schema import Schema

LARGE = 2**28
"""Bytes of a file's numbers above which they are in files without a name."""

_MOST_TEXTS = 2**20
"""Different texts of a column that are counted; beyond, those that occurred once are dropped."""


@dataclass(frozen=True)
class Share(Samples):
    """Samples of one party, from its file or from a simulation's data set."""

    left_out: tuple[str, ...] = ()


def encoded(file: TableFile, schema: Schema, test_fraction: float, split_seed: int) -> Share:
    """The rows of a file as the numbers of a schema; the index of a row decides if it is held out."""
    file.check()
    in_memory = file.n_rows * schema.width * 8 <= LARGE
    labels: list[npt.NDArray[Any]] = []
    first = 0
    with ExitStack() as stack:
        try:
            train, held = (_Rows(schema, stack, in_memory) for _ in range(2))
            for table, some in file.tables():
                is_test = held_out(len(table), test_fraction, split_seed, first)
                numbers = schema.encode(table)
                train.add(numbers[~is_test])
                held.add(numbers[is_test])
                first += len(table)
                labels += [] if some is None else [some]
            X, X_test = train.array(), held.array()
        except OSError as error:
            expected = f"room for {file.n_rows * schema.width * 8 / 2**30:.3g} GiB in the folder of temporary files"
            raise DataError(file.name, expected, error.strerror or type(error).__name__) from None
    y = np.concatenate(labels) if labels else np.zeros(0, object)
    classes, codes = coded_labels(y, file.name)
    test = np.concatenate([held_out(len(part), test_fraction, split_seed, start) for start, part in _parts(len(y))])
    names = labels_of(classes, codes)
    return Share(X, names[~test], X_test, names[test], file.left_out)


def _parts(n: int, step: int = 2**20) -> list[tuple[int, range]]:
    return [(first, range(first, min(n, first + step))) for first in range(0, max(n, 1), step)]


class _Rows:
    """Rows of a schema's numbers that are added some at a time."""

    def __init__(self, schema: Schema, stack: ExitStack, in_memory: bool) -> None:
        self.width, self.n = schema.width, 0
        self._parts: list[npt.NDArray[Any]] = [np.empty((0, self.width))]
        self._file: IO[bytes] | None = None
        if not in_memory:
            self._file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Add some rows."""
        self.n += len(rows)
        if self._file is None:
            self._parts.append(rows)
        else:
            self._file.write(np.ascontiguousarray(rows).data)

    def array(self) -> npt.NDArray[Any]:
        """All rows. A map keeps its file open; writing to it would change memory alone."""
        if self._file is None or not self.n:
            return np.concatenate(self._parts)
        self._file.flush()
        return np.memmap(self._file, np.float64, "c", shape=(self.n, self.width))


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
