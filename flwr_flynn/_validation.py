"""Checks of single values.

An error names the field, the expected values and the actual one.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Floats, Integers
from flwr_flynn.errors import ConfigError, FlyNNError

LARGEST = 2**63 - 1
"""The largest integer of 64 bits, and the default bound."""


def integer(
    field: str,
    value: object,
    least: int = 1,
    most: int = LARGEST,
    error: type[FlyNNError] = ConfigError,
) -> int:
    """`value` as an integer of Python, if it is within bounds.

    Integers of NumPy are integers, booleans are not.
    """
    number = None
    with suppress(TypeError):
        if not isinstance(value, bool):
            number = operator.index(value)  # type: ignore[arg-type]
    if number is None or not least <= number <= most:
        bounds = f" from {least} to {most}"
        if most == LARGEST:
            bounds = f" of at least {least}"
        if (least, most) == (-LARGEST, LARGEST):
            bounds = ""
        raise error(field, f"an integer{bounds}", value)
    return number


def number(
    field: str,
    value: object,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    error: type[FlyNNError] = ConfigError,
) -> float:
    """`value` as a float of Python, if it is finite, from `least` to `most`, more than
    `above`, less than `below`.
    """
    figure = math.nan
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool | str | bytes):
            figure = float(value)  # type: ignore[arg-type]
    if not (
        math.isfinite(figure) and least <= figure <= most and above < figure < below
    ):
        from_least = "of at least"
        if min(most, below) < math.inf:
            from_least = "from"
        bounds = (("above", above), (from_least, least), ("to", most), ("below", below))
        words = [f" {word} {bound:g}" for word, bound in bounds if math.isfinite(bound)]
        raise error(field, "a number" + "".join(words), value)
    return figure


def one_of(
    field: str,
    value: object,
    known: tuple[str, ...],
    error: type[FlyNNError] = ConfigError,
) -> str:
    """`value`, if it is one of the known strings."""
    if not isinstance(value, str) or value not in known:
        raise error(field, f"one of {', '.join(known)}", value)
    return value


def boolean(field: str, value: object, error: type[FlyNNError] = ConfigError) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise error(field, "True or False", value)
    return value


Shape = tuple[int | None, ...]
"""Shape of an array; a length of None is any length."""


def finite_floats(
    field: str, value: object, shape: Shape, expected: str, error: type[FlyNNError]
) -> Floats:
    """`value` as float64, if it is an array or nested sequences of finite numbers."""
    floats = _array(field, value, shape, "iuf", expected, error).astype(np.float64)
    bad = np.argwhere(~np.isfinite(floats))
    if len(bad):
        raise error(field, expected, f"NaN or infinity at index {bad[0].tolist()}")
    return floats


def integers(
    field: str,
    value: object,
    shape: Shape,
    least: int,
    most: int,
    error: type[FlyNNError],
) -> Integers:
    """`value` as int64, if it is an array or nested sequences of integers within
    bounds.
    """
    expected = f"integers from {least} to {most} of shape {shape}"
    array = _array(field, value, shape, "iu", expected, error)
    if array.size and not least <= int(array.min()) <= int(array.max()) <= most:
        raise error(field, expected, "some outside")
    return array.astype(np.int64, order="C")


def _array(
    field: str,
    value: object,
    shape: Shape,
    kinds: str,
    expected: str,
    error: type[FlyNNError],
) -> Array:
    """`value` as an array, if it has this shape and one of these kinds."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in kinds:
        raise error(field, expected, f"{type(value).__name__} of another shape or type")
    if array.ndim != len(shape) or any(
        n not in (None, m) for n, m in zip(shape, array.shape, strict=True)
    ):
        raise error(field, expected, f"shape {array.shape}")
    return array


def checked_fields(
    field: str,
    values: object,
    needed: Set[str],
    optional: Set[str] = frozenset(),
    error: type[FlyNNError] = ConfigError,
) -> Mapping[str, Any]:
    """`values`, if it is a mapping of these fields with all that are needed."""
    known = needed | optional
    expected = f"the fields {', '.join(sorted(known))}"
    if not isinstance(values, Mapping):
        raise error(field, expected, type(values).__name__)
    names = {str(name)[:40] for name in values}
    faults = {"unknown": names - known, "none named": needed - names}
    for fault, wrong in faults.items():
        if wrong:
            raise error(field, expected, f"{fault} {', '.join(sorted(wrong)[:5])}")
    return values


def n_threads(n_jobs: int | None) -> int:
    """Number of threads: 1 for None, all processors of this process for -1, all but one
    for -2, and so on.

    The processors of a process are those of its affinity mask, but no more than
    OMP_NUM_THREADS, in which Ray gives its workers their number.
    """
    if n_jobs is None:
        return 1
    asked = integer("n_jobs", n_jobs, least=-LARGEST)
    if asked == 0:
        raise ConfigError("n_jobs", "None or an integer other than 0", 0)
    if asked > 0:
        return asked
    if hasattr(os, "sched_getaffinity"):
        mine = len(os.sched_getaffinity(0))
    else:
        mine = os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdecimal() and int(given) > 0:
        mine = min(mine, int(given))
    return max(1, mine + 1 + asked)


def freeze(owner: object, **values: object) -> None:
    """Set checked fields of a frozen value; arrays among them become read-only."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        object.__setattr__(owner, name, value)


def listed(names: list[str], most: int = 5) -> str:
    """Join at most so many names, with the number of the others."""
    shown = ", ".join(names[:most])
    if len(names) <= most:
        return shown
    return f"{shown} and {len(names) - most} more"
