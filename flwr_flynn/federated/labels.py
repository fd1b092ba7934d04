"""Labels of classes as class codes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Integers
from flwr_flynn._validation import listed
from flwr_flynn.errors import ConfigError, DataError, with_rows
from flwr_flynn.tables.cells import each_once, plain_values, text_of
from flwr_flynn.tables.schema import MOST_CLASSES
from flwr_flynn.tables.table import form_of

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""

Codes = Integers
"""Class codes, 0 to L - 1."""


class Codebook(dict[float | str | None, int]):
    """Codes of the classes by what their labels mean.

    A text that is no class is the one that differs in capitals and blanks alone, if
    there is one.
    """

    def __init__(self, meanings: Sequence[float | str | None]) -> None:
        codes = {value: code for code, value in enumerate(meanings)}
        super().__init__(codes)
        forms = {value: form(value) for value in codes}
        times = Counter(forms.values())
        self._forms = {
            forms[value]: code
            for value, code in codes.items()
            if times[forms[value]] == 1
        }

    def code(self, label: Any) -> int:
        """The class code of a label, -1 for one of no class."""
        value = meaning(label)
        return self.get(value, self._forms.get(form(value), -1))


def form(value: float | str | None) -> float | str | None:
    """The meaning of a label; of a text its form without capitals and blanks."""
    if isinstance(value, str):
        return form_of(value)
    return value


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> Codes:
    """The class code, 0 to L - 1, of every label.

    A `DataError` for labels that are none of the classes.
    """
    if np.ndim(y) != 1:
        raise DataError("y", "shape (samples,)", f"{np.ndim(y)} dimensions")
    codes = codes_in(codebook(classes), y)
    unknown = (codes < 0).sum()
    if unknown:
        noun = "integers"
        if isinstance(classes[0], str):
            noun = "strings"
        kind = f"{len(classes)} {noun}"
        text = (
            f"y: some labels are not in the class list ({kind}; y has dtype "
            f"{np.asarray(y).dtype}); node-config label-map renames labels"
        )
        error = DataError("y", f"labels among {kind}", "some that are not", text=text)
        raise with_rows(error, f"{unknown} of {len(codes)} labels")
    return codes


def codebook(classes: Sequence[Label], field: str = "classes") -> Codebook:
    """The class code of every label as `meaning` gives it.

    A `ConfigError` names the labels that mean the same, in whatever container they
    come, or that mean nothing.
    """
    meanings = [*map(meaning, classes)]
    times = Counter(meanings)
    unclear = [
        repr(label)[:60]
        for label, value in zip(classes, meanings, strict=True)
        if value is None or times[value] > 1
    ]
    if unclear:
        raise ConfigError(
            field, "texts, or real numbers, that mean different labels", listed(unclear)
        )
    return Codebook(meanings)


def codes_in(book: Codebook, y: Any) -> Codes:
    """The class code of every label, -1 for those of no class.

    No label has a part in how another one is read.
    """

    def code(label: object) -> int:
        try:
            return book.code(label)
        except Exception:  # noqa: BLE001 - what has no text is no label, whatever keeps it
            return -1

    if isinstance(y, np.ndarray) and y.dtype.kind != "m":
        y = plain_values(y)
    return np.array(each_once(code, y), np.int64)


def meaning(value: Any) -> float | str | None:
    """The number or the text that a label or an id means, None for a gap.

    A number is one whose text is as Python writes it: 01 is a text.
    """
    if type(value) is int and abs(value) <= 2**53:  # much faster
        return float(value)
    text = text_of(value)
    with suppress(ValueError):
        number = float(text)
        if text_of(number) == text or str(int(text)) == text:
            return number
    return text or None


def checked_classes(classes: object, field: str = "classes") -> tuple[Label, ...]:
    """A class list as a tuple of strings or integers that mean different labels."""
    is_unordered = isinstance(classes, str | bytes | Mapping | Set)
    if is_unordered or not isinstance(classes, Iterable):
        raise ConfigError(
            field, "a list of strings or integers", type(classes).__name__
        )
    labels = [_plain(label) for label in classes]
    if len(labels) > MOST_CLASSES:
        raise ConfigError(field, f"at most {MOST_CLASSES} labels", len(labels))
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ConfigError(field, "only strings or only integers", got)
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ConfigError(field, "integers within int64", "one outside")
    # NumPy drops a trailing NUL, which would make two labels one.
    if kinds == {str} and any("\0" in label for label in labels):
        raise ConfigError(field, "labels without NUL", "one with NUL")
    if kinds == {str}:
        longest = max(map(len, labels))
        if longest > 1024:
            raise ConfigError(
                field, "labels of at most 1024 characters", f"one of {longest}"
            )
    codebook(labels, field)
    return tuple(labels)


def _plain(label: Any) -> Any:
    """Python's value of a scalar of NumPy, or the value itself."""
    if isinstance(label, np.generic):
        return label.item()
    return label
