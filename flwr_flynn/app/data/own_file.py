"""Files of parties, opened in the one way, and their rows as samples.

Samples are in memory, or in files without a name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.app.data.csv_file import CsvLines, check_quotes, csv_text
from flwr_flynn.app.data.held_out import KNOWN, HeldOut, id_keys
from flwr_flynn.app.data.source import (
    ALL,
    ENDINGS,
    LARGE,
    MOST_ROWS,
    Reading,
    Source,
    Wanted,
    decoding,
    ending,
    read_once,
    stem,
)
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.data.typed_files import ArrayColumns, ParquetColumns
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.settings_parser import whole_numbers
from flwr_flynn.errors import ConfigError, DataError, with_rows
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.private_rows import Block, RowReader
from flwr_flynn.federated.samples import Samples
from flwr_flynn.hashing.batching import batches
from flwr_flynn.tables.cells import objects
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import RawColumns
from flwr_flynn.tables.table_summary import TableCounter
from flwr_flynn.tables.texts import as_name


def opened(path: Path, reading: Reading = ALL) -> TableFile:
    """A file whose columns are known, from a first pass over it.

    Its rows are still to be checked (`check`).
    """
    schema = reading.schema
    features = reading.features
    if schema is not None and schema.is_named and not features:
        features = schema
    reading = replace(reading, label=label_of(path, reading.label), features=features)
    source = source_of(path, reading)
    with decoding(path):
        file = TableFile(source, reading)
    if ending(path) == ".csv":
        check_quotes(file)
    return file


def label_of(path: Path, label: str | None) -> str | None:
    """The label column of a file, where it may not be given."""
    if label != "":
        return label
    if ending(path) == ".npz":
        return "y"
    return "label"


def source_of(path: Path, reading: Reading, *, is_private: bool = False) -> Source:
    """A file with the names of columns that others use."""
    with decoding(path):
        if ending(path) == ".csv" and is_private:
            source: Source = CsvLines(path, reading.dialect)
        elif ending(path) == ".csv":
            source = csv_text(path, reading.dialect)
        elif ending(path) == ".npz":
            source = ArrayColumns(path, reading.label, reading.group)
        else:
            source = ParquetColumns(path)
        source.rename(reading.renames(source.columns))
    return source


_OFFICE = "Excel and LibreOffice save a sheet as CSV UTF-8"
_PANDAS = "in Python: pandas.%s('{}').to_csv('{}', index=False)"
_HINTS = {
    ".xlsx": _OFFICE,
    ".xls": _OFFICE,
    ".ods": _OFFICE,
    ".sav": _PANDAS % "read_spss",
    ".dta": _PANDAS % "read_stata",
    ".sas7bdat": _PANDAS % "read_sas",
}
"""Programs that save other files as CSV, by their endings."""


def existing(source: str | Path, field: str = "", place: str = "") -> Path:
    """The path of a file that is there and has a known ending.

    For other paths there is a `ConfigError` about the `field`.
    """
    name = repr(Path(source).name[:80])
    try:
        path = Path(source).expanduser()
        is_there = path.is_file()
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a NUL
        is_there = False
    if not is_there:
        raise ConfigError(field or name, f"a file {place or name}", "no such file")
    if ending(path) not in ENDINGS:
        expected = f"a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file"
        hint = _HINTS.get(ending(path))
        if hint is not None:
            out = f"{stem(path)}.csv"
            expected = f"{expected}; {hint.format(path.name, out)}"
        raise ConfigError(field or name, expected, name)
    return path


def columns_of(path: Path, reading: Reading = ALL) -> list[str] | None:
    """The names of all columns of a file, None without names."""
    source = source_of(path, replace(reading, label=None, group=""))
    return [*map(as_name, source.columns)] or None


# ---- samples of a party


def reading_of(node: NodeConfig) -> Reading:
    """The reading of a party's file that its settings ask for."""
    return Reading(
        node.label,
        node.held_out_key,
        dialect=node.dialect(),
        ignore=node.names("ignore"),
        keep=node.names("keep"),
        accept=node.names("accept"),
    )


def opened_own(
    node: NodeConfig, features: Sequence[str] = (), schema: Schema | None = None
) -> TableFile:
    """The file of an open party, as `opened`; the log describes it."""
    rule = None
    if node.test_fraction:
        rule = HeldOut(node.test_fraction, KNOWN)
    path = existing(node.data_path, "node-config data-path")
    asked = replace(reading_of(node), features=features, schema=schema, held_out=rule)
    file = opened(path, asked)
    log.info("FlyNN: data: %s", file.described())
    if file.left_out:
        others = ", ".join(repr(column[:60]) for column in file.left_out[:20])
        log.info(
            "FlyNN: %s columns are not among the run's features: %s",
            len(file.left_out),
            others,
        )
    return file


def own_share(node: NodeConfig, features: Wanted = ()) -> Samples:
    """The samples of an open party; a faulty row refuses the file.

    `HeldOut` decides if a row is held out. X is an array where all features are numbers
    without gaps, and else a Table; of a table above `LARGE` bytes its summary, from
    which a schema follows. By a schema X is its numbers. `names` are those of an
    array's columns, where no others were asked for.
    """
    path = existing(node.data_path, "node-config data-path")
    if isinstance(features, Schema):
        return read_once(path, encoded_share, node, features)
    return read_once(path, _share, node, tuple(features))


def _share(node: NodeConfig, features: Sequence[str]) -> Samples:
    file = opened_own(node, features)
    if file.needs_table and is_large(file):
        file.check()
        summary = counter_of_file(file, node.min_examples).summary()
        return Samples(summary, objects([*file.classes]))
    X, y, groups, test = file.whole()
    labels = labels_of(*coded_labels(y, file.name))
    names = None
    if file.is_named and not features:
        names = file.names
    ids = None
    if groups is not None:
        ids = id_keys(groups[~test])
    sides = (X[~test], labels[~test], X[test], labels[test])
    return Samples(*sides, names, ids, file.units)


def private_rows(node: NodeConfig, secret: Callable[[], bytes]) -> PrivateFile:
    """The rows of a private party's file.

    A secret of the party decides about the rows that are held out. Rows are held out
    only if results on them may leave the party.
    """
    rule = None
    if node.evaluate and node.test_fraction:
        rule = HeldOut(node.test_fraction, secret())
    path = existing(node.data_path, "node-config data-path")
    return private_file(path, replace(reading_of(node), held_out=rule))


def private_file(path: Path, reading: Reading = ALL) -> PrivateFile:
    """The rows of a private party's file.

    Its column of ids, for the held-out rule, is no feature.
    """
    reading = replace(reading, label=label_of(path, reading.label))
    with decoding(path):
        return PrivateFile(source_of(path, reading, is_private=True), reading)


class PrivateFile(RowReader):
    """Rows of a private party's file, which are read one by one.

    A file that no parser reads is an error of the constructor, which decodes all of it,
    whatever will be asked. After that no row decides about the file or about other
    rows: every line of a CSV file is a row by itself, and a text of a Parquet file that
    cannot be decoded is a missing value.
    """

    def __init__(self, source: Source, reading: Reading) -> None:
        layout = source.use(reading)
        self._source = source
        self.settings = reading.dialect
        self.names = layout.names or None
        self.width = len(layout.order)
        self.n_rows = sum(part.n for part in source.parts(MOST_ROWS))

    def blocks(self, n_rows: int, held_out: bool = False) -> Iterator[Block]:
        """The training rows, or those that are held out, at most so many at a time."""
        if held_out and self._source.reading.held_out is None:
            return
        for part in self._source.parts(n_rows):
            yield Block(part.n, partial(self._one_side, part.cells, held_out))

    def _one_side(
        self, read: Callable[[slice], Any], held_out: bool, part: slice
    ) -> tuple[RawColumns, Array]:
        """Samples and labels of some training rows, or of those that are held out."""
        cells = read(part)
        columns = [
            column if isinstance(column, np.ndarray) else objects(column)
            for column in (cells[index] for index in self._source.used.order)
        ]
        names = self.names or [*map(str, range(self.width))]
        X = RawColumns(names, columns, self.names is not None)
        y = objects(self._source.labels_in(cells))
        side = self._source.held_out(cells, len(y)) == held_out
        return X[side], y[side]


_WIDEST = 256  # bytes of a label in an array of NumPy
_LONGEST = 1024  # characters, as in a list of classes


def labels_of(classes: Sequence[str | int], codes: Integers) -> Array:
    """The label of every code."""
    labels = np.asarray(classes)
    # In a text type of NumPy each label is as wide as the longest.
    if labels.dtype.itemsize > _WIDEST:
        labels = objects(classes)
    return labels[codes]


def coded_labels(y: Array, name: str) -> tuple[list[str | int], Integers]:
    """The different labels of a file in their order, and the index of each row's."""
    if y.dtype.kind == "f":
        n_missing = int((~np.isfinite(y)).sum())
        if n_missing:
            raise with_rows(
                DataError(name, "a label in each row", "rows without one"),
                f"{n_missing} rows",
            )
        if (y == np.floor(y)).all():
            if (np.abs(y) >= 2**63).any():
                raise DataError(name, "labels within int64", "labels beyond")
            y = y.astype(np.int64)
    own_labels = y.tolist()
    if any(isinstance(label, bytes) for label in own_labels):
        raise DataError(name, "strings or integers as labels", "bytes")
    values = [*map(str, own_labels)]  # 1 and True are equal
    texts = [*dict.fromkeys(values)]
    longest = sum(len(text) > _LONGEST for text in texts)
    if longest:
        error = DataError(
            name, f"labels of at most {_LONGEST} characters", "some that are longer"
        )
        raise with_rows(error, f"{longest} labels")
    own: Sequence[Any] = whole_numbers(texts) or texts
    labels = sorted(set(own))
    code = {label: code for code, label in enumerate(labels)}
    codes = {value: code[label] for value, label in zip(texts, own, strict=True)}
    return labels, np.array([*map(codes.__getitem__, values)], np.int64)


def encoded_share(node: NodeConfig, schema: Schema) -> Samples:
    """The samples of `own_share` as the numbers of a schema, float64 with NaN for gaps.

    Above `LARGE` bytes of numbers, or a fourth of the party's memory, these are memory
    maps of files without a name, which are gone with the share or with the process.
    """
    file = opened_own(node, (), schema)
    file.check()
    most = min(LARGE, int(node.memory_limit * 2**30 / 4))
    step = max(1, most // (64 * schema.width))
    most //= 2  # on each side
    labels = [(np.zeros(0, object), np.zeros(0, np.bool_))]
    remarks: list[set[str]] = []
    with ExitStack() as stack:
        try:
            sides = [
                stack.enter_context(tempfile.SpooledTemporaryFile(most))
                for _ in range(2)
            ]
            for batch in file.batches():
                for part in batches(len(batch.table), step):
                    rows = batch.of(part)
                    numbers, own_remarks = schema.encoded(rows.table)
                    remarks.append({*own_remarks})
                    for side, mask in zip(sides, (~rows.test, rows.test), strict=True):
                        side.write(numbers[mask].data)
                if batch.labels is not None:
                    labels.append((batch.labels, batch.test))
            X, X_test = (_mapped(side, most, schema.width) for side in sides)
        except OSError as error:
            expected = (
                f"room for {file.n_rows * schema.width * 8 / 2**30:.3g} GiB in "
                "the folder of temporary files"
            )
            raise DataError(
                file.name, expected, error.strerror or type(error).__name__
            ) from None
    for remark in sorted(set[str].intersection(*(remarks or [set()]))):
        log.warning("FlyNN: %s", remark)
    y, test = map(np.concatenate, zip(*(labels[1:] or labels), strict=True))
    names = labels_of(*coded_labels(y, file.name))
    return Samples(X, names[~test], X_test, names[test])


def _mapped(file: Any, most: int, width: int) -> Array:
    """Rows of a file, from so many bytes on as a map of it.

    A map keeps its file open; writing to it would change memory alone.
    """
    file.flush()
    if file.tell() > most:
        return np.memmap(file, np.float64, "c").reshape(-1, width)
    file.seek(0)
    return np.frombuffer(bytearray(file.read())).reshape(-1, width)


def is_large(file: TableFile) -> bool:
    """True for a file whose numbers are not held in memory."""
    return 8 * file.n_rows * len(file.reports) > LARGE


def counter_of_file(file: TableFile, least: int = 1) -> TableCounter:
    """Kinds, gaps and levels of the features.

    Rows that are held out are not counted. With a column of ids, levels and gaps need
    `least` different ids too.
    """
    counter = TableCounter(least, file.reading.keep)
    in_batches = file.batches() if is_large(file) else [file.in_one()]
    for rows in in_batches:
        training = rows.of(~rows.test)
        ids = None
        if training.ids is not None:
            ids = id_keys(training.ids)
        counter.add(training.table, ids, training.labels)
    return counter
