"""Labels of classes as class codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Integers
from flwr_flynn.errors import ConfigError, DataError, with_rows
from flwr_flynn.tables.cells import each_once, meaning, plain_values
from flwr_flynn.tables.row_wise import raw_columns

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""

Codes = Integers
"""Class codes, 0 to L - 1."""


Codebook = dict[float | str | None, int]
"""Codes of the classes by what their labels mean."""


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> Codes:
    """The class code, 0 to L - 1, of every label.

    A `DataError` for labels that are none of the classes.
    """
    if np.ndim(y) != 1:
        raise DataError("y", "shape (samples,)", f"{np.ndim(y)} dimensions")
    codes = codes_in(codebook(classes), y)
    unknown = (codes < 0).sum()
    if unknown:
        kind = f"{len(classes)} integers"
        if isinstance(classes[0], str):
            kind = f"{len(classes)} strings"
        text = (
            f"y: some labels are not in the class list ({kind}; y has dtype "
            f"{np.asarray(y).dtype})"
        )
        error = DataError("y", f"labels among {kind}", "some that are not", text=text)
        raise with_rows(error, f"{unknown} of {len(codes)} labels")
    return codes


def codebook(classes: Sequence[Label]) -> Codebook:
    """The class code of every label as `meaning` gives it.

    All must be different, whatever container they come in.
    """
    book = {meaning(label): code for code, label in enumerate(classes)}
    if len(book) < len(classes) or None in book:
        raise DataError(
            "classes", "texts, or real numbers, that mean different labels", "others"
        )
    return book


def codes_in(book: Codebook, y: Any) -> Codes:
    """The class code of every label, -1 for those of no class.

    No label has a part in how another one is read.
    """

    def code(label: object) -> int:
        try:
            return book.get(meaning(label), -1)
        except Exception:  # noqa: BLE001 - what has no text is no label, whatever keeps it
            return -1

    if getattr(getattr(y, "dtype", None), "kind", "") == "m":
        y = raw_columns(np.asarray(y)[:, None])[1][0]
    if isinstance(y, np.ndarray):
        y = plain_values(y)
    elif hasattr(y, "tolist"):
        y = y.tolist()
    return np.array(each_once(code, y), np.int64)


def checked_classes(classes: object) -> tuple[Label, ...]:
    """A class list as a tuple of different strings or different integers."""
    is_unordered = isinstance(classes, str | bytes | Mapping | Set)
    if is_unordered or not isinstance(classes, Iterable):
        raise ConfigError(
            "classes", "a list of strings or integers", type(classes).__name__
        )
    labels = [_plain(label) for label in classes]
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ConfigError("classes", "only strings or only integers", got)
    if len(set(labels)) < len(labels):
        raise ConfigError(
            "classes",
            "different labels",
            f"{len(labels) - len(set(labels))} duplicates",
        )
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ConfigError("classes", "integers within int64", "one outside")
    # NumPy drops a trailing NUL, which would make two labels one.
    if kinds == {str} and any("\0" in label for label in labels):
        raise ConfigError("classes", "labels without NUL", "one with NUL")
    if kinds == {str}:
        longest = max(map(len, labels))
        if longest > 1024:
            raise ConfigError(
                "classes", "labels of at most 1024 characters", f"one of {longest}"
            )
    return tuple(labels)


def _plain(label: Any) -> Any:
    """Python's value of a scalar of NumPy, or the value itself."""
    if isinstance(label, np.generic):
        return label.item()
    return label
