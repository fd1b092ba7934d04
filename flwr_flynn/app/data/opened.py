"""The one way in which files of open parties are opened and read."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._text import clean
from flwr_flynn.app.data.csv_file import CsvFile, header_of
from flwr_flynn.app.data.dialect import ENDINGS, Dialect, check_shapes, detected, ending, unreadable
from flwr_flynn.app.data.held_out import HeldOut
from flwr_flynn.app.data.npz import array_keys, npz_names, read_npz
from flwr_flynn.app.data.parquet_file import ParquetFile, opened_parquet, parquet_columns
from flwr_flynn.app.data.table_file import Batch, ColumnReport, TableFile, Wanted, unlabelled
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, as_name

Array = npt.NDArray[Any]


class ArrayFile(TableFile):
    """Arrays in memory, from an NPZ file or elsewhere."""

    def __init__(
        self,
        name: str,
        X: Array,
        y: Array | None,
        names: Sequence[str] | None = None,
        groups: Array | None = None,
        left_out: tuple[str, ...] = (),
        announced: bool = False,
        test: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        check_shapes(name, X, np.zeros(len(X)) if y is None and X.ndim else y)  # type: ignore[arg-type]
        self.name, self.left_out, self.announced = name, left_out, announced
        self._X, self._y, self._groups, self._test = X, y, groups, test
        self.n_rows, n_columns = X.shape
        self.n_unlabelled = 0 if y is None else int(unlabelled(y).sum())
        self.names = tuple(map(as_name, names or ()))
        self.is_named = bool(names)
        self._columns = [X[:, index] for index in range(n_columns)]
        if X.dtype.kind in "biuf":
            self.reports = [ColumnReport("number", X.dtype) for _ in range(n_columns)]
        elif X.dtype.kind in "OUMm":
            try:
                table = Table.of(X)
            except DataError:
                raise DataError(name, "numbers, texts or dates", f"an array of type {X.dtype}") from None
            self._columns = list(table.columns)
            self.reports = [ColumnReport(kind, np.dtype(np.float64)) for kind in table.kinds]
        else:
            raise DataError(name, "numbers, texts or dates", f"an array of type {X.dtype}")
        for report, column in zip(self.reports, self._columns, strict=True):
            if column.dtype.kind == "f":
                report.gaps = int(np.isnan(column).sum())
                report.infinite = int(np.isinf(column).sum())

    def batches(self) -> Iterator[Batch]:
        """The rows of the file, all at once."""
        yield Batch(self._columns, self._y, self._groups, self._test)

    def whole(self) -> tuple[Any, Array, Array | None, npt.NDArray[np.bool_]]:
        """All rows in memory: an array or a table, labels, ids of groups or None, and the mask of those held out."""
        if self.needs_table or self.n_unlabelled:
            return super().whole()
        test = np.zeros(self.n_rows, np.bool_) if self._test is None else self._test
        return self._X, np.zeros(0, object) if self._y is None else self._y, self._groups, test

    def described(self) -> str:
        """The file in one line, for the log of this machine."""
        return f"{clean(self.name, 200)}: {super().described()}"


def opened(
    path: Path,
    label: str | None = "",
    group: str = "",
    features: Sequence[str] = (),
    dialect: Dialect | None = None,
    schema: Schema | None = None,
    held_out: HeldOut | None = None,
    ignore: Sequence[str] = (),
) -> TableFile:
    """A file whose columns are known, from a first pass over it; its rows are still to be checked (`check`).

    Parameters
    ----------
    path : Path
    label : str or None, default=""
        Column of the labels, "" for `label` (`y` of an NPZ file); None if there are none to read.
    group : str
        A column of ids, which is no feature.
    features : sequence of str
        The columns to read, in this order; () for all.
    dialect : Dialect, optional
        What is known of a CSV file; the rest is detected.
    schema : Schema, optional
        The columns that are wanted, instead of `features`. A CSV file is then read in the kinds of the schema: levels
        such as 01 stay texts.
    held_out : HeldOut, optional
        The rule by which rows are held out: by `group`, if it is given.
    ignore : sequence of str
        Columns that are no features.
    """
    if label == "":
        label = "y" if ending(path) == ".npz" else "label"
    wanted: Wanted = schema if schema is not None and schema.is_named and not features else tuple(features)
    gaps = {} if schema is None else {column.name: column.gap_texts for column in schema.columns}
    if ending(path) == ".npz":
        arrays = read_npz(path, label, group, wanted, ignore=ignore)
        test = None if held_out is None else held_out.mask(array_keys(arrays))
        columns = arrays.names, arrays.groups, arrays.left_out, bool(wanted), test
        return ArrayFile(path.name, arrays.X, arrays.y, *columns)
    if ending(path) == ".csv":
        return CsvFile(path, label, group, wanted, ignore, dialect, schema, gaps, held_out)
    return ParquetFile(path, label, group, wanted, ignore, dialect, gaps, held_out)


def existing(path: Path) -> Path:
    """The path of a file that is there and has a known ending; a `ConfigError` else."""
    if not path.is_file():
        raise ConfigError(repr(path.name[:80]), "a file", "no such file")
    if ending(path) not in ENDINGS:
        raise ConfigError(repr(path.name[:80]), f"a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file", "another ending")
    return path


def columns_of(path: Path, dialect: Dialect | None = None) -> list[str] | None:
    """The names of all columns of a file, None without names."""
    if ending(path) == ".csv":
        try:
            return [*map(as_name, header_of(path, detected(path, dialect)))]
        except (OSError, UnicodeError, csv.Error) as error:
            raise unreadable(path, error) from None
    if ending(path) == ".npz":
        names = npz_names(path)
        return None if names is None else list(names)
    with opened_parquet(path) as file:
        return [*map(as_name, parquet_columns(file.schema_arrow))]


def batches(path: Path, **options: Any) -> Iterator[tuple[Table, Array | None]]:
    """The rows of a file as tables with their labels, some at a time; `options` are those of `opened`.

    Nothing is read ahead of a check of the whole file, whose errors are `DataError`.
    """
    file = opened(path, **options)
    file.check()
    for table, labels, _ in file.tables():
        yield table, labels
