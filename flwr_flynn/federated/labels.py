"""Labels of classes as class codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Integers
from flwr_flynn.errors import ConfigError, DataError, with_rows

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""

Codes = Integers
"""Class codes, 0 to L - 1."""


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> Codes:
    """The class code, 0 to L - 1, of every label."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError("y", "shape (samples,)", f"{labels.ndim} dimensions")
    code_of = codebook(classes)
    try:
        codes = np.fromiter(
            (code_of.get(label, -1) for label in labels.tolist()), np.int64, len(labels)
        )
    except TypeError:
        raise DataError(
            "y", "strings or integers as labels", "unhashable objects"
        ) from None
    unknown = int((codes < 0).sum())
    if unknown:
        kind = f"{len(classes)} integers"
        if isinstance(classes[0], str):
            kind = f"{len(classes)} strings"
        text = (
            f"y: some labels are not in the class list ({kind}; y has dtype "
            f"{labels.dtype})"
        )
        error = DataError("y", f"labels among {kind}", "some that are not", text=text)
        raise with_rows(error, f"{unknown} of {len(codes)} labels")
    return codes


def codebook(classes: Sequence[Label]) -> dict[Label, int]:
    """The code of every form in which a label of the class list may come."""
    code_of: dict[Label, int] = {}
    for code, label in enumerate(classes):
        if isinstance(label, int):
            code_of |= {label: code, str(label): code, f"{label}.0": code}
        else:
            code_of[label] = code
            if PLAIN_INTEGER.fullmatch(label):
                code_of[int(label)] = code
    return code_of


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
