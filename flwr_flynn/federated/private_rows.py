"""Rows of a private party: a fold over rows of a function that cannot fail.

A refusal, or an answer of another size, would answer an exact question about the row
that caused it, at no cost. So whatever a row raises between its cells and its active
bits drops that row and nothing else, and whatever can be refused is refused by the
request, the party's options, and the names and number of the columns (`check_columns`).
A value that is missing, infinite, no number or beyond the hash drops its row, as an
unknown label does. No row changes how another is read: types are not inferred from all
of them together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from flwr_flynn._types import Array, Mask, T
from flwr_flynn.errors import DataError, FlyNNError, full_text, with_rows
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Codes, Label, codebook, codes_in
from flwr_flynn.federated.samples import Features, Samples, check_width
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.row_wise import PLAIN, CellSettings, encode_rows
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import RawColumns, is_frame, names_of, places

VALUE_BYTES = 64
"""Memory of a value of a row while it is read and hashed: its text, its number, and
what the hash makes of it."""

LEAST_ROWS = 64
ROW_BYTES = 32
INPUT_BYTES = 8
"""Rows that the hash has in memory at least, of whatever width, and bytes of each of
their numbers and inputs."""

_MOST_ROWS = 2**14

STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a process or a generator. Every other one is a failure, also a
panic of polars, which is no `Exception`."""
Fitting = tuple[Array, Codes, Array]
"""Numbers of some rows that fit, their class codes, and values of a function of the
numbers."""


@dataclass(frozen=True)
class Block:
    """Some rows that nobody has looked at.

    `read` gives the values and labels of a slice of them, and may raise.
    """

    n: int
    read: Callable[[slice], tuple[Any, Any]]


@dataclass(frozen=True)
class Dropped:
    """A row that failed, with the kind of its error."""

    kind: str


class RowReader(ABC):
    """Samples of a private party as rows, some at a time.

    Nothing but names and number of the columns is known of it before a request is paid
    for. What is wrong with all of it, such as a file that cannot be decoded, is an
    error of its constructor.
    """

    names: Sequence[str] | None
    """Names of the features; None for an array, whose columns are known by position."""
    width: int
    """Number of the features."""
    settings: CellSettings = PLAIN
    """The party's own settings about cells."""
    on_read: Callable[[Mapping[str, int]], object] = dict
    """Called with the numbers of rows that were read and that fitted, for the party
    alone."""

    @abstractmethod
    def blocks(self, n_rows: int, held_out: bool = False) -> Iterator[Block]:
        """The training rows, or those that are held out, at most so many at a time."""


class GivenRows(RowReader):
    """Samples in memory.

    A `DataError` unless they have the form of samples, which no single one decides.
    """

    def __init__(self, samples: Samples) -> None:
        check_form(samples.X, samples.y)
        X, X_test = samples.tables(are_raw=True)
        self._training = (X, samples.y)
        self._held_out = (X_test, samples.y_test)
        self.width = X.shape[1]
        if is_frame(X):
            self.names = names_of(X)
        elif isinstance(X, RawColumns) and X.is_named:
            self.names = X.names
        else:
            self.names = None

    def blocks(self, n_rows: int, held_out: bool = False) -> Iterator[Block]:
        """The training rows, or those that are held out, at most so many at a time."""
        X, y = self._training
        if held_out:
            X, y = self._held_out
        if X is None or y is None:
            return
        check_form(X, y)
        if sp.issparse(X):
            X = X.tocsr()
        for rows in batches(len(y), n_rows):
            yield Block(rows.stop - rows.start, partial(_read, X, y, rows.start))


def _read(X: Any, y: Any, start: int, rows: slice) -> tuple[Any, Any]:
    rows = slice(start + rows.start, start + rows.stop)
    return _sliced(X, rows), _sliced(y, rows)


def _sliced(values: Any, rows: slice) -> Any:
    if hasattr(values, "iloc"):
        chosen = values.iloc[rows]
    else:
        chosen = values[rows]
    if sp.issparse(chosen):
        return chosen.toarray()
    return chosen


def check_form(X: Any, y: Any) -> None:
    """Refuse samples and labels by their dimensions and number.

    No single sample decides these.
    """
    if len(getattr(X, "shape", ())) != 2:
        raise DataError(
            "X",
            "a two-dimensional array, sparse matrix or data frame",
            type(X).__name__,
        )
    if len(getattr(y, "shape", (0,))) != 1 or not hasattr(y, "__len__"):
        raise DataError("y", "a sequence of labels", type(y).__name__)
    if len(y) != X.shape[0]:
        raise DataError("y", "one label for every sample", "more or fewer")


def check_columns(rows: RowReader, features: Features, n_features: int) -> None:
    """Refuse rows without the columns that a run asks for.

    They are tried with no rows. The server learns no more than that they are not all
    there; a note, which stays in this machine's log, has the reason.
    """
    if isinstance(features, tuple) and len({*features}) < len(features):
        raise DataError("features", "features of different names", "some named again")
    X: Any = np.empty((0, rows.width), object)
    try:
        if rows.names is not None:
            X = RawColumns(rows.names, [*X.T])
        numbers, _ = as_numbers(X, features)
        check_width(numbers.shape[1], n_features)
    except FlyNNError as error:
        refusal = DataError("columns", "all columns of the request", "other columns")
        raise with_rows(refusal, full_text(error)) from None


def rows_at_a_time(widths: Sequence[int], memory: int) -> int:
    """Rows of so many values that are in memory at a time.

    They are at least 1, and take a fourth of the memory at most.
    """
    return max(1, min(_MOST_ROWS, memory // (4 * VALUE_BYTES * max(*widths, 1))))


def each_part(block: Block, of: Callable[[Any, Any], T]) -> Iterator[T | Dropped]:
    """A function of the values and labels of a block.

    It is of all rows of the block, or of parts where some row makes it fail. A row that
    fails by itself is dropped.
    """
    pending = [slice(0, block.n)]
    while pending:
        rows = pending.pop()
        try:
            figures = of(*block.read(rows))
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - it must not tell the row
            if rows.stop - rows.start > 1:
                middle = (rows.start + rows.stop) // 2
                pending += [slice(middle, rows.stop), slice(rows.start, middle)]
            else:
                yield Dropped(type(error).__name__)
            continue
        yield figures


def fitting(
    rows: RowReader,
    hashers: Sequence[FlyHash],
    classes: Sequence[Label],
    features: Features,
    memory: int,
    *,
    held_out: bool = False,
    of: Callable[[Array], Array],
) -> Iterator[tuple[int, list[Fitting]]]:
    """Rows that all hashes can hash, behind the number of rows that were read.

    They are numbers, class codes, and a function `of` numbers. The function has zeros
    in the place of the rows that do not fit, so that its time does not tell if there
    are any. Rows in which it raises are dropped, too.
    """
    book = codebook(classes)

    def chosen(X: Any, y: Any) -> tuple[int, Fitting]:
        numbers, fits = as_numbers(X, features, rows.settings)
        check_width(numbers.shape[1], hashers[0].n_features)
        codes = codes_in(book, y)
        fits = fits & (codes >= 0)
        numbers = _without(numbers, ~fits)
        for hasher in hashers:
            fits &= hasher.fits(numbers)
        values = of(_without(numbers, ~fits))
        return len(codes), (numbers[fits], codes[fits], values[fits])

    n_rows = rows_at_a_time([len(classes), *_widths(rows, hashers)], memory)
    total = Counter[str](rows_read=0, rows_fitting=0)
    for block in rows.blocks(n_rows, held_out):
        n_read = 0
        chunks: list[Fitting] = []
        errors: set[str] = set()
        for chunk in each_part(block, chosen):
            if isinstance(chunk, Dropped):
                n_read += 1
                errors.add(chunk.kind)
            else:
                n_chunk, fitting_rows = chunk
                n_read += n_chunk
                chunks.append(fitting_rows)
                total["rows_fitting"] += len(fitting_rows[1])
        total["rows_read"] += n_read
        if errors:
            log.warning(
                "FlyNN: reading a sample failed with %s", ", ".join(sorted(errors))
            )
        yield n_read, chunks
    try:
        rows.on_read(total)
    except STOPS:
        raise
    except BaseException as error:
        log.error("FlyNN: on_read failed", exc_info=error)


def _widths(rows: RowReader, hashers: Sequence[FlyHash]) -> list[int]:
    """Numbers of the values that a row has while it is read and hashed."""
    widths = [rows.width]
    for hasher in hashers:
        widths += [hasher.n_features, hasher.hash_nnz]
        if hasher.spec:
            widths.append(inputs_of(hasher.spec))
        else:
            widths.append(2 * hasher.n_features)
    return widths


def inputs_of(spec: HashSpec) -> int:
    """Numbers of a row that the lifting matrix takes, with those of the other sign."""
    if spec.signed:
        return 2 * spec.n_inputs
    return spec.n_inputs


def _without(numbers: Array, rows: Mask) -> Array:
    """The numbers with zeros in some rows."""
    return np.where(rows[:, None], np.zeros((), numbers.dtype), numbers)


# -------- values


def as_numbers(
    X: Any, features: Features, settings: CellSettings = PLAIN
) -> tuple[Array, Mask]:
    """Some rows as numbers, each by itself, and a mask of samples of these features."""
    if isinstance(X, np.ndarray) and X.dtype.kind == "m":
        # Numbers that stand beside one duration.
        X = np.where(np.isnat(X), np.nan, X.astype(np.int64))
    columns = RawColumns.of(X)
    if isinstance(features, Schema):
        return encode_rows(features, columns, settings)
    indices: Sequence[int] = range(len(columns.names))
    if columns.is_named and features:
        indices = places("columns", columns.names, features, "the features of the run")
    numbers = np.empty((X.shape[0], len(indices)))
    for place, index in enumerate(indices):
        reader = settings.reader("number", columns.names[index])
        numbers[:, place], _ = reader.column(columns.columns[index])
    return numbers, np.asarray(np.isfinite(numbers).all(axis=1))
