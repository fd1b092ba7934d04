"""Numbers and dates that stand for missing values: far outside all others, and often."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.tables.texts import plain_date

_SIBLINGS = [
    sign * 10**k - sign * i for sign in (-1, 1) for k in (2, 3, 4, 5) for i in (1, 2, 3)
]
_SIBLINGS += [-9, -8, -7, -6, 7, 8, 777, 888, 7777, 8888, -66, -77, -88]
_NINES = re.compile(r"-?(?:9+|9+\.9+|8{2,}|7{2,})|-[1-9]")


def missing_codes(values: Array) -> dict[str, int]:
    """Values far outside all others that stand in many rows, with their rows.

    `values` are numbers, or dates, without gaps.
    """
    is_date = values.dtype.kind == "M"
    if len(values) < 20:
        return {}
    numbers = values
    if is_date:
        numbers = values.astype("datetime64[D]").astype(np.float64)
    codes = dict[str, int]()
    for _ in range(6):
        code = _outermost(numbers, is_date, codes)
        if code is None:
            break
        is_code = numbers == code
        text = f"{code:.15g}"
        if is_date:
            text = str(np.datetime64(int(code), "D"))
        codes[text] = int(is_code.sum())
        numbers = numbers[~is_code]
    return codes


def codes_among_dates(levels: Mapping[str | None, int]) -> dict[str, int]:
    """One or two texts of many rows that are no dates, where all others are: 9999-99-99."""
    odd = dict[str, int]()
    for text, n in levels.items():
        if text is not None and plain_date(text) is None:
            odd[text] = n
        if len(odd) > 2:
            return {}
    if len(levels) < 10 or min(odd.values(), default=0) < 3:
        return {}
    return odd


def code_texts(values: Array, codes: Iterable[str]) -> list[str]:
    """The code that each value is, "" for none."""
    texts = np.full(len(values), "", object)
    for code in codes:
        if values.dtype.kind == "M":
            texts[values.astype("datetime64[D]") == np.datetime64(code)] = code
        else:
            texts[values == float(code)] = code
    each: list[str] = texts.tolist()
    return each


def _outermost(numbers: Array, is_date: bool, codes: Mapping[str, int]) -> float | None:
    """The least or the greatest value, if it is often, and far outside or beside one of
    the codes; else None.
    """
    for sign in (-1, 1):
        if not len(numbers):
            return None
        code = (sign * numbers).max() * sign
        rest = numbers[numbers != code]
        n = len(numbers) - len(rest)
        # Several codes stand side by side, such as -9 and -8.
        is_beside = code != 0 and f"{code + sign:.15g}" in codes
        rest = rest[~np.isin(rest, _SIBLINGS)]
        if n < max(3, len(numbers) / 500) or len(rest) < 10:
            continue
        if is_beside or _is_far(float(code), n, rest, is_date):
            return float(code)
    return None


def _is_far(code: float, n: int, rest: Array, is_date: bool) -> bool:
    least = rest.min()
    most = rest.max()
    if np.isinf([code, least, most]).any():
        return False
    distance = max(least - code, code - most)
    width = most - least
    if is_date:
        return bool(distance > max(width, 3650))
    n_different = len(np.unique(rest[:1000]))
    if not code:
        # Often 0 is the least of all values, which begin near it, or means none.
        usual = float(np.ptp(np.quantile(rest, [0.25, 0.75])))
        return n_different > 9 and n < 0.8 * len(rest) and bool(least > usual)
    is_nines = _NINES.fullmatch(f"{code:.15g}") is not None
    is_usual = is_nines or code in _SIBLINGS
    if is_usual and code < 0 <= least:
        # Two or three codes of a category may be negative: -1, 0, 1.
        return n_different > 3 or (n_different > 1 and code < -5)
    if is_usual and n_different > 1:
        return bool(distance > max(width, 4))
    is_far = distance > 3 * width or code < 0 <= least
    return n_different > 9 and n >= len(rest) / 50 and bool(is_far)
