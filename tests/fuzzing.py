"""A small fuzzer: valid inputs, spoiled in seeded ways, and inputs made up from nothing.

Every input follows from the decoder's name, a seed and its number, so that a failure can be had again from what the
message says: ``python -m pytest tests/test_fuzz.py`` prints the three. What a `Decoder` must keep to is one law: it
takes an input whole, or refuses it with one of the project's own errors, in bounded time and memory.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_flynn.errors import FlyNNError

EXTREMES = [
    *(0, 1, -1, 2, 127, 128, 255, 256, -128, 32767, 65535, 65536, 2**24 + 1),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1),
    *(2**64 - 1, 2**64, 10**30, 10**400),
]
_SCALARS: list[Any] = [
    *(None, True, False, "", " ", "\0", "nan", "NaN", "[]", "{}", "-1", "1e999", "\ud800", "\u202e", "a" * 5000, "é"),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), b"", b"\xff\0", [], {}, [[]], ()),
]
_TYPES = ["|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "|b1", ">i4", ">u8", "<c8"]
_DIGITS = b"0123456789"


class Mutator:
    """A source of spoiled inputs; equal seeds make equal ones."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.choice = self.random.choice
        self.below = self.random.randrange

    def one_in(self, n: int) -> bool:
        """True once in `n` times."""
        return self.below(n) == 0

    def times(self) -> range:
        """Number of faults of an input: most often one."""
        return range(self.choice((1, 1, 1, 2, 3, 6)))

    # ---- bytes

    def junk(self, most: int = 200) -> bytes:
        """Bytes of no form."""
        return self.random.randbytes(self.below(most + 1))

    def raw(self, content: bytes, others: Sequence[bytes] = ()) -> bytes:
        """Bytes with faults: flips, cuts, splices with `others`, integers at their limits, edits of what is text."""
        if self.one_in(25):
            return content
        data = bytearray(content)
        for _ in self.times():
            place, end = (sorted((self.below(len(data) + 1), self.below(len(data) + 1)))) if data else (0, 0)
            kind = self.below(10)
            if kind == 0 and data:
                data[place % len(data)] ^= 1 << self.below(8)
            elif kind == 1 and data:
                data[place % len(data)] = self.choice((0, 1, 10, 0x7F, 0x80, 0xFE, 0xFF, self.below(256)))
            elif kind == 2:
                del data[place:]
            elif kind == 3:
                del data[place : min(end, place + 16)]
            elif kind == 4:
                data[place:place] = data[place : min(end, place + 64)]
            elif kind == 5:
                data[place:place] = self.junk(20)
            elif kind == 6 and others:
                other = self.choice(others)
                data[place:] = other[self.below(len(other) + 1) :]
            elif kind == 7:
                size = self.choice((1, 2, 4, 8))
                data[place : place + size] = (self.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, "little")
            elif kind == 8:
                self._edit_number(data)
            else:
                data[place:end] = bytes([self.choice((0, 32, 0xFF))]) * min(end - place, 64)
        return bytes(data)

    def _edit_number(self, data: bytearray) -> None:
        """Put another number in the place of one that stands in the bytes as text."""
        places = [i for i, byte in enumerate(data) if byte in _DIGITS]
        if places:
            start = self.choice(places)
            end = start
            while end < len(data) and data[end] in _DIGITS:
                end += 1
            data[start:end] = str(self.choice(EXTREMES[:-1])).encode()

    def text(self, content: str) -> str:
        """A text with faults."""
        return self.raw(content.encode("utf-8", "surrogatepass")).decode("utf-8", self.choice(("replace", "ignore")))

    # ---- Python values

    def scalar(self) -> Any:
        """A value of some type."""
        kind = self.below(3)
        return self.choice(EXTREMES) if kind == 0 else self.choice(_SCALARS) if kind == 1 else self.random.gauss(0, 10)

    def nested(self) -> Any:
        """A value made up from nothing, sometimes very deep."""
        value = self.scalar()
        for _ in range(self.choice((0, 1, 2, 3, 50, 300))):
            value = [value] if self.one_in(2) else {self.choice(("a", "spec", "format", "0")): value}
        return value

    def value(self, value: Any) -> Any:
        """A value with one fault at some place in it."""
        if isinstance(value, Mapping) and value and not self.one_in(6):
            return self._mapping(dict(value))
        if isinstance(value, list | tuple) and value and not self.one_in(6):
            return self._list(list(value))
        if isinstance(value, str) and self.one_in(2):
            return self.text(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and self.one_in(3):
            return self.choice((value + 1, value - 1, -value, value * 2, 0.5 * (value % 2**60), str(value)))
        return self.nested() if self.one_in(8) else self.scalar()

    def _mapping(self, values: dict[Any, Any]) -> Any:
        key = self.choice(list(values))
        kind = self.below(8)
        if kind == 0:
            del values[key]
        elif kind == 1:
            values[self.choice(("extra", "", key.upper() if isinstance(key, str) else "x"))] = self.scalar()
        elif kind == 2:
            values[key] = values[self.choice(list(values))]
        else:
            values[key] = self.value(values[key])
        return values

    def _list(self, values: list[Any]) -> Any:
        place = self.below(len(values))
        kind = self.below(8)
        if kind == 0:
            del values[place]
        elif kind == 1:
            values.insert(place, values[place])
        elif kind == 2:
            times = self.choice((2, 40))
            values = values * times if len(values) < 1000 else values  # forty times, and forty times that, and so on
        elif kind == 3:
            self.random.shuffle(values)
        else:
            values[place] = self.value(values[place])
        return values

    def json(self, text: str) -> str:
        """A JSON text whose value, or whose characters, have faults."""
        if self.one_in(3):
            return self.text(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # an earlier fault
            return self.text(text)
        for _ in self.times():
            value = self.value(value)
        if self.one_in(60):
            return self.choice("[{") * 10000
        try:
            return json.dumps(value, default=repr)
        except (ValueError, TypeError, RecursionError):
            return text[: self.below(len(text) + 1)]

    def deflated(self, content: bytes) -> bytes:
        """A deflated JSON text with faults in the text, or in the bytes."""
        if self.one_in(4):
            return self.raw(content)
        try:
            text = zlib.decompress(content).decode()
        except (zlib.error, UnicodeDecodeError):  # an earlier fault, or no such text
            return self.raw(content)
        return zlib.compress(self.json(text).encode("utf-8", "surrogatepass"))

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A flat mapping with faults in the JSON texts and numbers that are its values."""
        config = dict(values)
        for _ in self.times():
            if self.one_in(25) or not config:
                continue
            key = self.choice(list(config))
            kind = self.below(10)
            if kind == 0:
                del config[key]
            elif kind == 1:
                config[key] = self.scalar()
            elif kind == 2:
                config[key] = config[self.choice(list(config))]
            elif kind == 3:
                config[self.choice((key + " ", "flynn-extra", ""))] = self.scalar()
            elif isinstance(config[key], bytes):
                config[key] = self.deflated(config[key])
            elif isinstance(config[key], str) and config[key][:1] in ("{", "[", '"'):
                config[key] = self.json(config[key])
            else:
                config[key] = self.value(config[key])
        return config

    # ---- arrays

    def array(self, array: np.ndarray) -> Any:
        """An array with faults in its type, its shape, its order or its entries; or no array."""
        try:
            return self._array(array)
        except (TypeError, ValueError, OverflowError):  # a fault that an earlier one leaves no room for
            return array

    def _array(self, array: np.ndarray) -> Any:
        if array.dtype == np.uint8 and array.ndim == 1 and self.one_in(2):
            return np.frombuffer(self.raw(array.tobytes()), np.uint8)  # what has a form of its own in bytes
        kind = self.below(16)
        if kind == 0:
            return self.scalar()
        if kind == 1:
            return array.tolist()
        if kind == 2:
            return array.astype(object)
        with np.errstate(all="ignore"):
            if kind in (3, 4):
                return array.astype(self.choice(_TYPES)) if array.dtype.kind in "biufc" else array
        if kind == 5:
            return array.view(self.choice(("|u1", "|i1", "|b1"))) if array.flags.c_contiguous and array.ndim else array
        if kind == 6:
            return array.T
        if kind == 7:
            return array.reshape(-1)
        if kind == 8:
            return array[..., None]
        if kind == 9:
            return array[self.below(len(array) + 1) :] if array.ndim else array
        if kind == 10:
            return np.concatenate([array, array], axis=self.below(array.ndim)) if array.ndim else array
        if kind == 11:
            return np.asfortranarray(array)[::-1] if array.ndim else array
        spoiled = np.array(array)  # copied, and writeable
        for _ in self.times():
            if not spoiled.size or spoiled.dtype.kind not in "iu":
                continue
            bounds = np.iinfo(spoiled.dtype)
            flat = spoiled.reshape(-1)
            place, other = self.below(flat.size), self.below(flat.size)
            if self.one_in(4):
                flat[place], flat[other] = flat[other], flat[place]
            elif self.one_in(2):
                flat[place] = self.choice((bounds.min, bounds.max, 0, 1))
            else:
                flat[place] = min(max(int(flat[place]) + self.choice((-1, 1)), bounds.min), bounds.max)
        return spoiled

    def arrays(self, arrays: Sequence[np.ndarray]) -> Any:
        """A message of arrays with faults: in one of them, or in which there are and in what order."""
        message: list[Any] = list(arrays)
        if self.one_in(25):
            return message
        for _ in self.times():
            place = self.below(len(message)) if message else 0
            kind = self.below(12)
            if kind == 0:
                del message[place : place + 1]
            elif kind == 1:
                message[place:place] = message[place : place + 1]
            elif kind == 2:
                self.random.shuffle(message)
            elif kind == 3 and self.one_in(4):
                return self.scalar()
            elif message and isinstance(message[place], np.ndarray):
                message[place] = self.array(message[place])
        return message

    def tensors(self, tensors: Sequence[bytes]) -> list[Any]:
        """The same of arrays as Flower carries them."""
        message: list[Any] = list(tensors)
        if self.one_in(25):
            return message
        for _ in self.times():
            place = self.below(len(message)) if message else 0
            kind = self.below(12)
            if kind == 0:
                del message[place : place + 1]
            elif kind == 1:
                message[place:place] = message[place : place + 1]
            elif kind == 2:
                self.random.shuffle(message)
            elif kind == 3:
                message[place : place + 1] = [self.choice((self.junk(), b"\x93NUMPY" + self.junk(), "text", None))]
            elif message and isinstance(message[place], bytes):
                message[place] = self.raw(message[place], [other for other in message if isinstance(other, bytes)])
        return message


@dataclass(frozen=True)
class Decoder:
    """Something that takes input from outside.

    Parameters
    ----------
    name : str
    make : callable
        What a mutator makes an input of.
    use : callable
        Decodes an input, and asserts what must be true of what it took. Raises `FlyNNError` where it refuses.
    share : float
        How many of the inputs it gets, relative to others.
    seconds : float
        CPU time that one input may take, beside 1 s for each MB of its own.
    memory : int
        Bytes that one input may take at most, beside 64 times its own size.
    """

    name: str
    make: Callable[[Mutator], Any]
    use: Callable[[Any], object]
    share: float = 1.0
    seconds: float = 2.0
    memory: int = 2**21


@dataclass
class Totals:
    """Outcomes of a decoder's inputs."""

    name: str
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    peak: int = 0

    def __str__(self) -> str:
        return (
            f"{self.name:28} {self.accepted + self.refused:7} inputs: {self.accepted:6} accepted, {self.refused:7} "
            f"refused; at most {1000 * self.slowest:6.1f} ms and {self.peak / 2**10:7.0f} KiB"
        )


def fuzz(decoder: Decoder, n: int, seed: int = 0, first: int = 0) -> Totals:
    """Throw `n` inputs at a decoder.

    Raises
    ------
    AssertionError
        An input was neither taken nor refused by the project's own errors, or took too long or too much memory.
    """
    totals = Totals(decoder.name)
    with _traced():
        for i in range(first, first + n):
            where = f"{decoder.name}, seed {seed}, input {i}"
            given = decoder.make(Mutator(f"{decoder.name} {seed} {i}"))
            size = _size(given)
            bound, seconds = decoder.memory + 64 * size, decoder.seconds + 1e-6 * size
            took, peak, refused = _measured(decoder.use, given, where)
            if took > seconds or peak > bound:
                # Imports and compilation, which come with a first time, are no input's doing.
                took, peak, refused = _measured(decoder.use, given, where)
            assert took <= seconds, f"{where}: {took:.1f} s: {repr(given)[:2000]}"
            assert peak <= bound, f"{where}: {peak} bytes: {repr(given)[:2000]}"
            totals.accepted += not refused
            totals.refused += refused
            totals.slowest = max(totals.slowest, took)
            totals.peak = max(totals.peak, peak)
    return totals


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def _measured(use: Callable[[Any], object], given: Any, where: str) -> tuple[float, int, bool]:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    start = time.thread_time()
    try:
        use(given)
        refused = False
    except FlyNNError as error:
        refused = True
        text = str(error)
        assert text, where
        assert len(text) < 2000, f"{where}: an error of {len(text)} characters"
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}; given {repr(given)[:2000]}") from error
    return time.thread_time() - start, tracemalloc.get_traced_memory()[1] - before, refused


def _size(given: Any) -> int:
    """About how many bytes an input has."""
    if isinstance(given, bytes | str):
        return len(given)
    if isinstance(given, np.ndarray):
        return int(given.nbytes)
    if isinstance(given, Mapping):
        return sum(_size(key) + _size(value) for key, value in given.items())
    if isinstance(given, list | tuple):
        return sum(map(_size, given))
    return 8
