"""Valid inputs with faults, and the one law of whatever decodes input from outside.

The inputs are drawn by Hypothesis.

A decoder takes an input whole, or refuses it with one of the project's own errors, in
bounded time and memory.
"""

from __future__ import annotations

import json
import pickle
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from flwr_flynn.errors import FlyNNError
from tests.memory import traced

_EDGES = [2**bits + more for bits in (7, 8, 15, 16, 31, 32, 63, 64) for more in (-1, 0)]
EXTREMES = [0, 1, -1, 2, *_EDGES, 2**24 + 1, 2**53, 2**62]
EXTREMES += [-(2**bits) for bits in (7, 15, 31, 63)] + [-(2**63) - 1, 10**30, 10**400]
_TEXTS = [
    "",
    " ",
    "\0",
    "nan",
    "NaN",
    "[]",
    "{}",
    "-1",
    "1e999",
    "\ud800",
    "\u202e",
    "a" * 5000,
    "[" * 10000,
]
_TYPES = [
    "|u1",
    "<u2",
    "<u4",
    "<u8",
    "|i1",
    "<i2",
    "<i4",
    "<i8",
    "<f2",
    "<f4",
    "<f8",
    "|b1",
    ">i4",
    ">u8",
    "<c8",
    "O",
]
_SIZES = (1, 2, 4, 8)
_KINDS = st.sampled_from(
    ("flip", "cut", "twice", "junk", "splice", "integer", "number", "fill")
)

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(EXTREMES),
    st.sampled_from(_TEXTS),
    st.sampled_from([None, True, False, (), b"\xff\0"]),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
) | st.integers(50, 300).map(lambda depth: json.loads("[" * depth + "]" * depth))
HOW_OFTEN = st.sampled_from((0, 1, 1, 1, 1, 1, 2, 3, 6))
"""Number of faults of an input: most often one."""
ONCE = st.just(1)
HALF = st.booleans()
QUARTER = st.integers(0, 3).map(lambda n: n == 3)


@st.composite
def spoiled_bytes(
    draw: st.DrawFn, content: bytes, others: Sequence[bytes] = ()
) -> bytes:
    """Bytes with faults.

    They are flips, cuts, splices with `others`, integers at their limits, and other
    numbers in a text.
    """
    data = bytearray(content)
    for _ in range(draw(HOW_OFTEN)):
        numbers = [match.span() for match in re.finditer(rb"\d+", data)]
        start = draw(st.integers(0, len(data)))
        end = min(
            start + draw(st.sampled_from((0, 1, 1, 1, 4, 16, len(data)))), len(data)
        )
        old = bytes(data[start:end])
        kind = draw(_KINDS)
        if kind == "flip":
            new = (
                bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in old[:1]) + old[1:]
            )
        elif kind == "integer":
            size = draw(st.sampled_from(_SIZES))
            value = draw(st.sampled_from(EXTREMES))
            end = start + size
            new = (value % 2 ** (8 * size)).to_bytes(size, "little")
        elif kind == "number" and numbers:
            (start, end) = draw(st.sampled_from(numbers))
            new = str(draw(st.sampled_from(EXTREMES[:-1]))).encode()
        elif kind == "splice" and others:
            other = draw(st.sampled_from(others))
            end = len(data)
            new = other[draw(st.integers(0, len(other))) :]
        elif kind == "junk":
            new = draw(st.binary(max_size=20))
        else:
            new = {"cut": b"", "twice": 2 * old[:64]}.get(
                kind, draw(st.sampled_from((b"\0", b" ", b"\xff"))) * len(old[:64])
            )
        data[start:end] = new
    return bytes(data)


@st.composite
def spoiled_text(draw: st.DrawFn, text: str) -> str:
    """A text with faults; in JSON, in what it says or in its characters."""
    with suppress(ValueError, RecursionError):
        if text[:1] in ("{", "[", '"') and not draw(QUARTER):
            return json.dumps(draw(spoiled(json.loads(text))), default=repr)
    return draw(spoiled_bytes(text.encode("utf-8", "surrogatepass"))).decode(
        "utf-8", draw(st.sampled_from(("replace", "ignore")))
    )


@st.composite
def spoiled(draw: st.DrawFn, value: Any) -> Any:
    """A value with one fault at some place in it.

    The place is in a mapping, a list, a JSON text or a deflated one, or a number.
    """
    if draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    if isinstance(value, Mapping) and value:
        return draw(_spoiled_mapping(value))
    if isinstance(value, list | tuple) and value:
        return draw(spoiled_list(value, spoiled, VALUES))
    if isinstance(value, str):
        return draw(spoiled_text(value))
    if isinstance(value, bytes):
        with suppress(zlib.error, UnicodeDecodeError):
            if not draw(QUARTER):
                return zlib.compress(
                    draw(spoiled_text(zlib.decompress(value).decode())).encode(
                        "utf-8", "surrogatepass"
                    )
                )
        return draw(spoiled_bytes(value))
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not draw(QUARTER)
    ):
        return draw(
            st.sampled_from(
                (
                    value + 1,
                    value - 1,
                    -value,
                    value * 2,
                    0.5 * (value % 2**60),
                    str(value),
                )
            )
        )
    return draw(VALUES)


@st.composite
def _spoiled_mapping(draw: st.DrawFn, value: Mapping[Any, Any]) -> dict[Any, Any]:
    values = dict(value)
    key = draw(st.sampled_from(list(value)))
    other = draw(st.sampled_from(list(value)))
    kind = draw(st.integers(0, 7))
    if kind == 0:
        del values[key]
    elif kind == 1:
        values[draw(st.sampled_from(("extra", "", f"{key} ", str(key).upper())))] = (
            draw(SCALARS)
        )
    elif kind == 2:
        values[key] = values[other]
    else:
        values[key] = draw(spoiled(values[key]))
    return values


@st.composite
def spoiled_list(
    draw: st.DrawFn,
    values: Sequence[Any],
    spoil: Callable[[Any], st.SearchStrategy[Any]],
    junk: st.SearchStrategy[Any] = SCALARS,
    faults: st.SearchStrategy[int] = ONCE,
) -> Any:
    """A list with faults in one of its values, or in which there are and in what order."""
    values = list(values)
    for _ in range(draw(faults)):
        place = draw(st.integers(0, max(len(values) - 1, 0)))
        kind = draw(st.integers(0, 11))
        if kind == 0:
            del values[place : place + 1]
        elif kind == 1:
            values[place:place] = values[place : place + 1] * draw(
                st.sampled_from((1, 40))
            )
        elif kind == 2:
            values = draw(st.permutations(values[:20])) + values[20:]
        elif kind == 3:
            values[place : place + 1] = [draw(junk)]
        elif values:
            values[place] = draw(spoil(values[place]))
    return values


@st.composite
def spoiled_mapping(draw: st.DrawFn, values: Mapping[str, Any]) -> dict[str, Any]:
    """A flat mapping with faults in the JSON texts and numbers that are its values."""
    for _ in range(draw(HOW_OFTEN)):
        if values:
            values = draw(_spoiled_mapping(values))
        else:
            values = {}
    return dict(values)


_RESHAPED: list[Callable[[np.ndarray], Any]] = [
    lambda a: a.tolist(),
    lambda a: a.T,
    lambda a: a.reshape(-1),
    lambda a: a[..., None],
    lambda a: a[1:],
    lambda a: a[:0],
    lambda a: np.concatenate([a, a]),
    lambda a: np.concatenate([a, a], -1),
    lambda a: np.asfortranarray(a)[::-1],
    lambda a: a.view("|u1"),
    lambda a: a.view("|b1"),
]


@st.composite
def spoiled_array(draw: st.DrawFn, array: Any) -> Any:
    """An array with faults in its type, shape, order or entries, or no array."""
    if not isinstance(array, np.ndarray):
        return draw(SCALARS)
    kind = draw(st.integers(0, 7))
    if array.dtype == np.uint8 and array.ndim == 1 and draw(HALF):
        # Such an array has a form of its own in bytes.
        return np.frombuffer(draw(spoiled_bytes(array.tobytes())), np.uint8)
    # There is no room for some faults.
    with suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        if kind == 0:
            return draw(SCALARS)
        if kind == 1:
            return array.astype(draw(st.sampled_from(_TYPES)))
        if kind == 2:
            return draw(st.sampled_from(_RESHAPED))(array)
        return draw(spoiled_entries(array))
    return array


@st.composite
def spoiled_entries(draw: st.DrawFn, array: np.ndarray) -> np.ndarray:
    """An array of integers with other entries."""
    flat = np.array(array).ravel()
    if flat.size and flat.dtype.kind in "iu":
        bounds = np.iinfo(flat.dtype)
        for _ in range(draw(HOW_OFTEN)):
            place, other = (draw(st.integers(0, flat.size - 1)) for _ in range(2))
            near = [
                min(max(int(flat[place]) + by, bounds.min), bounds.max)
                for by in (-1, 1)
            ]
            flat[place] = draw(
                st.sampled_from(
                    (*near, *near, flat[other], bounds.min, bounds.max, 0, 1)
                )
            )
    return flat.reshape(array.shape)


def spoiled_arrays(arrays: Sequence[np.ndarray]) -> st.SearchStrategy[Any]:
    """A message of arrays with faults."""
    return spoiled_list(arrays, spoiled_array, faults=HOW_OFTEN)


def spoiled_tensors(tensors: Sequence[bytes]) -> st.SearchStrategy[Any]:
    """The same of arrays as Flower carries them."""
    junk = st.binary(max_size=200).map(
        lambda more: b"\x93NUMPY" + more
    ) | st.sampled_from((b"", "text", None))
    others = [tensor for tensor in tensors if isinstance(tensor, bytes)]

    def spoil(tensor: Any) -> st.SearchStrategy[Any]:
        if tensor in others:
            return spoiled_bytes(tensor, others)
        return junk

    return spoiled_list(tensors, spoil, junk, HOW_OFTEN)


@dataclass(frozen=True)
class Decoder:
    """Something that takes input from outside.

    Parameters
    ----------
    name : str
    inputs : strategy
    use : callable
        Decodes an input, and asserts what must be true of what it took. Raises
        `FlyNNError` where it refuses.
    share : float
        How many of the inputs it gets, relative to others.
    memory : int
        Bytes that one input may take at most, beside 64 times its own size.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    use: Callable[[Any], object]
    share: float = 1.0
    memory: int = 2**21


SECONDS = 2.0
"""CPU time that one input may take, beside 1 s for each MB of its own."""


@contextmanager
def taken() -> Iterator[None]:
    """A block about what was taken, in which a refusal is a failure."""
    try:
        yield
    except FlyNNError as error:
        raise AssertionError("refused after it was taken") from error


def fuzz(decoder: Decoder, n: int, number: int = 0) -> Counter[str]:
    """Throw `n` inputs at a decoder, and return how many it accepted and refused.

    An `AssertionError` names an input that was neither taken nor refused by the
    project's own errors, or took too long or too much memory.
    """
    outcomes: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=n,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(decoder.inputs)
    def throw(value: Any) -> None:
        size = len(pickle.dumps(value))
        bound = decoder.memory + 64 * size
        seconds = SECONDS + 1e-6 * size
        took, peak, outcome = _measured(decoder.use, value)
        # A first time takes imports and compilation, too.
        if took > seconds or peak > bound:
            took, peak, outcome = _measured(decoder.use, value)
        assert took <= seconds
        assert peak <= bound
        outcomes[outcome] += 1

    throw()
    return outcomes


def _measured(use: Callable[[Any], object], value: Any) -> tuple[float, int, str]:
    """CPU time and memory that an input takes, and its outcome."""
    outcome = "accepted"
    start = time.thread_time()
    with traced() as memory:
        try:
            use(value)
        except FlyNNError as error:
            assert 0 < len(str(error)) < 2000
            outcome = "refused"
    return time.thread_time() - start, memory.peak, outcome
