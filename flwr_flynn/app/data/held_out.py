"""The rows of a party's file that are held out: by the raw row, or by a column of ids that the site names.

No request, no order and no other row has a part in it: a row of a file is held out for ever or never. With a column of
ids, such as patients, rows of one id stay together, and a corrected cell moves none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.federated.private_rows import meaning


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


def keys_of_ids(ids: Iterable[Any]) -> list[bytes]:
    """Keys of rows by their ids, in whatever form they come: 3 is 3.0 and "3"."""
    return [_encoded(str(meaning(value))) for value in ids]


def keys_of_texts(rows: Iterable[Iterable[str]]) -> list[bytes]:
    """Keys of rows by the texts of all of their fields: 3 is 3.0, as which another program may write it again."""
    return [_encoded("\x1f".join(map(_number_or_text, fields))) for fields in rows]


def _number_or_text(text: str) -> str:
    try:
        return repr(float(text))
    except ValueError:
        return text.strip()


def keys_of_values(columns: Iterable[npt.NDArray[Any] | list[Any]]) -> list[bytes]:
    """Keys of rows by all of their values: numbers by what they are in float64, whatever type their column has."""
    return [_encoded(repr(row)) for row in zip(*map(_plain, columns), strict=True)]


def array_keys(X: npt.NDArray[Any], y: Any, ids: Any = None) -> list[bytes]:
    """Keys of the rows of an array and its labels, of which their meaning counts, or of their ids where there are any.

    One missing label makes floats of all integers.
    """
    if ids is not None:
        return keys_of_ids(ids.tolist())
    labels: list[Any] = [] if y is None else [keys_of_ids(y.tolist())]
    return keys_of_values([*(X[:, index] for index in range(X.shape[1])), *labels])


def _plain(column: npt.NDArray[Any] | list[Any]) -> list[Any]:
    if not isinstance(column, np.ndarray):
        return [float(value) if isinstance(value, Real) else value for value in column]
    if column.dtype.kind in "biufmM":
        numbers: list[Any] = column.astype(np.int64 if column.dtype.kind in "mM" else np.float64).tolist()
        return numbers
    return [meaning(value) for value in column.tolist()]  # one text makes texts of all in an array


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
