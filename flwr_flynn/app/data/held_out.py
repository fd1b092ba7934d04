"""The rows of a party's file that are held out: by what stands in the row, or by a column of ids that the site names.

No request, no order of columns or rows, and no other row has a part in it: a row of a file is held out for ever or
never. With a column of ids, such as patients, rows of one id stay together, and a corrected cell moves none.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.tables.raw_column import is_gap_text, plain_numbers
from flwr_flynn.tables.row_wise import real_of
from flwr_flynn.tables.texts import GAP_TEXTS

_GAP = struct.pack("<d", np.nan)


@dataclass(frozen=True)
class HeldOut:
    """The rule of a party.

    Parameters
    ----------
    fraction : float
        Expected share of the rows that are held out.
    secret : bytes
        At most 64; who knows it and a row knows if the row is held out.
    """

    fraction: float
    secret: bytes

    def mask(self, keys: Iterable[bytes]) -> npt.NDArray[np.bool_]:
        """(n,) mask of the rows that are held out, by the key of each."""
        most = self.fraction * 2.0**64
        digests = (hashlib.blake2b(key, digest_size=8, key=self.secret).digest() for key in keys)
        return np.fromiter((int.from_bytes(digest, "big") < most for digest in digests), np.bool_)


def row_keys(columns: Sequence[Any], ids: Any = None, names: Sequence[str] | None = None) -> list[bytes]:
    """Keys of rows: by their ids; without, or where an id is missing, by all of their cells, in the order of the names.

    Columns are arrays or lists. A number is the same in whatever form it comes.
    """
    order = range(len(columns)) if names is None else sorted(range(len(columns)), key=names.__getitem__)
    if ids is None:
        floats = [_floats(columns[index]) for index in order]
        if floats and not any(each is None for each in floats):
            return _bytes(np.stack(floats, axis=1))  # type: ignore[arg-type]
        return [*map(b"".join, zip(*(_cells(columns[index]) for index in order), strict=True))]
    by_id = _cells(ids)
    if _GAP in by_id:
        rows = row_keys(columns, None, names)
        return [rows[index] if key == _GAP else key for index, key in enumerate(by_id)]
    return by_id


def _floats(column: Any) -> npt.NDArray[np.float64] | None:
    """The numbers of a column, with one NaN and no -0.0; None where it has other values."""
    numbers = plain_numbers(column, GAP_TEXTS) if isinstance(column, list) else column
    if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "biufmM":
        return None
    if numbers.dtype.kind in "mM":
        numbers = numbers.astype(np.int64)
    return np.asarray(np.where(np.isnan(numbers), np.nan, numbers).astype("<f8") + 0.0)


def _bytes(rows: npt.NDArray[np.float64]) -> list[bytes]:
    """The bytes of each row."""
    found: list[bytes] = rows.view(f"V{8 * rows.shape[1]}")[:, 0].tolist()
    return found


def _cells(column: Any) -> list[bytes]:
    """A key for each value: 8 bytes of a number or a gap, the text of anything else."""
    floats = _floats(column)
    if floats is not None:
        return _bytes(floats[:, None])
    values = column if isinstance(column, list) else column.tolist()
    known: dict[Any, bytes] = {value: _cell(value) for value in {*values}}
    return [known[value] for value in values]


def _cell(value: Any) -> bytes:
    """The key of one value, the same as among others."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if text is None or (isinstance(text, str) and is_gap_text(text, GAP_TEXTS)):
        return _GAP
    number: Any = real_of(text)
    if isinstance(number, Real) or (isinstance(number, str) and "_" not in number):
        with suppress(ValueError, OverflowError):
            found = float(number)
            return struct.pack("<d", found + 0.0) if found == found else _GAP
    return f"{str(text).strip()}\x1f".encode("utf-8", "surrogatepass")
