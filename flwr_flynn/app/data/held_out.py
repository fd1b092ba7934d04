"""Rows that are held out, by the row itself or by its id.

By what stands in the row, or by a column of ids that the site names: no request, no
order of columns or rows, and no other row has a part in it. A row of a file is held
out for ever or never. With a column of ids, such as patients, rows of one id stay
together, and a corrected cell moves none.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_flynn._types import Mask
from flwr_flynn.federated.labels import meaning
from flwr_flynn.tables.cells import CellReader, Cells, each_once, plain_values, text_of

KNOWN = b"flwr-flynn"
"""In the place of a secret, at a party without a budget."""

_GAP = struct.pack("<d", np.nan)
_READER = CellReader("number")


@dataclass(frozen=True)
class HeldOut:
    """The rule of a party, or of a simulation.

    Parameters
    ----------
    fraction : float
        Expected share of the rows that are held out.
    secret : bytes
        At most 64; who knows it and a row knows if the row is held out.
    has_ids : bool, default=True
        False where ids say to which party rows belong: the rows decide, without them.
    """

    fraction: float
    secret: bytes
    has_ids: bool = True

    def mask(self, keys: Iterable[bytes]) -> Mask:
        """(n,) mask of the rows that are held out, by the key of each."""
        most = self.fraction * 2.0**64
        digests = (
            hashlib.blake2b(key, digest_size=8, key=self.secret).digest()
            for key in keys
        )
        return np.fromiter(
            (int.from_bytes(digest, "big") < most for digest in digests), np.bool_
        )


def row_keys(
    columns: Cells, ids: Cells | None = None, names: Sequence[str] | None = None
) -> list[bytes]:
    """Keys of rows, by their ids.

    Without ids, or where an id is missing, a key is of all cells in the order of the
    names. Columns are arrays or lists. A number is the same in whatever form it comes.
    """
    if ids is not None:
        keys = id_keys(ids)
        if _GAP not in keys:
            return keys
        rows = row_keys(columns, None, names)
        return [rows[index] if key == _GAP else key for index, key in enumerate(keys)]
    if names is not None:
        order = sorted(range(len(columns)), key=names.__getitem__)
        columns = [columns[index] for index in order]
    runs: list[list[Cells]] = []
    was_typed = False
    for column in columns:
        is_typed = isinstance(column, np.ndarray) and column.dtype.kind in "biuf"
        # Numbers of a type are no texts, and as one they are read faster.
        if is_typed and was_typed:
            runs[-1].append(column)
        else:
            runs.append([column])
        was_typed = is_typed
    return [*map(b"".join, zip(*map(_keys, runs), strict=True))]


def id_keys(ids: Cells) -> list[bytes]:
    """The key of each id, by what it means in whatever form it comes."""
    return each_once(_id_key, plain_values(ids))


def _id_key(cell: Any) -> bytes:
    value = meaning(cell)
    if value is None:
        return _GAP
    # Beyond it float64 does not keep all digits.
    if isinstance(value, str) or abs(value) > 2**53:
        return _text_key(cell)
    # There is no -0.0.
    return struct.pack("<d", value + 0.0)


def _keys(columns: Sequence[Cells]) -> list[bytes]:
    """A key for each row of one column, or of some that are numbers alone.

    It has 8 bytes of a number or a gap, the text of anything else.
    """
    numbers = np.empty((len(columns[0]), len(columns)), "<f8")
    for place, column in enumerate(columns):
        numbers[:, place], good = _READER.column(column)
    # There is one NaN and no -0.0.
    numbers += 0.0
    numbers[np.isnan(numbers)] = np.nan
    keys: list[bytes] = numbers.view(f"V{8 * len(columns)}")[:, 0].tolist()
    others = np.flatnonzero(~good).tolist()
    if not others:
        return keys
    # Another date decides about the unit of an array of dates.
    values = plain_values(column)
    texts = each_once(_text_key, [values[index] for index in others])
    for index, text in zip(others, texts, strict=True):
        keys[index] = text
    return keys


def _text_key(value: Any) -> bytes:
    return f"{text_of(value)}\x1f".encode("utf-8", "surrogatepass")
