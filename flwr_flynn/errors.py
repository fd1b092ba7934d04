"""Errors that this package raises on purpose.

All derive from `FlyNNError`. Errors about an argument are `ValueError`, too, which code
for scikit-learn catches. No message has a value of the data.

An error about one value has the facts as attributes, and its message follows from them:

>>> error = ConfigError("hash_dim", "an integer of at least 1", 0)
>>> error.field, error.expected, error.got
('hash_dim', 'an integer of at least 1', '0')
>>> print(error)
hash_dim: expected an integer of at least 1, got 0
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import TypeVar

_LONGEST = 200  # characters of a value in a message
_MOST = 10_000  # of a message


class FlyNNError(Exception):
    """Base class of the errors of `flwr_flynn`.

    Parameters
    ----------
    field : str
        Name of the wrong value; without further arguments the whole message.
    expected : str, optional
        Values that would be right.
    got : object, optional
        The value; of a party's data its kind, number or position. It is shortened in
        the message.
    text : str, optional
        The message, by default ``field: expected X, got Y``.

    Attributes
    ----------
    field : str or None
        None for an error about no single value.
    expected, got : str or None
    is_public : bool
        True for an error that no sample of a party had a part in.
    """

    is_public = False

    def __init__(
        self,
        field: str,
        expected: str | None = None,
        got: object = None,
        *,
        text: str | None = None,
    ) -> None:
        self.field: str | None = field
        if expected is None and text is None:
            self.field = None
        self.expected = expected
        if isinstance(got, str):
            shown = got
        else:
            shown = repr(got)
        if len(shown) > _LONGEST:
            shown = shown[: _LONGEST - 1] + "…"
        self.got: str | None = shown
        if got is None and (expected is None or text is not None):
            self.got = None
        if text is None:
            if expected is None:
                text = field
            else:
                text = f"{field}: expected {expected}, got {self.got}"
        # it may hold texts from anybody, and goes to logs
        super().__init__(clean(text, _MOST))


Refusal = TypeVar("Refusal", bound=FlyNNError)


class SpecError(FlyNNError, ValueError):
    """A hash specification is malformed, or two specifications do not fit together."""


class DataError(FlyNNError, ValueError):
    """Samples or labels cannot be used as they are: wrong shape or type, NaN, infinity,
    an unknown label.
    """


class SchemaError(FlyNNError, ValueError):
    """A schema of columns is malformed, or a part of it is out of range."""


class CountsError(FlyNNError, ValueError):
    """An array is not a count matrix of any set of hashes, or two count matrices do not
    fit together.
    """


class PayloadError(FlyNNError, ValueError):
    """A message is malformed or inconsistent; nothing of it was used."""


class ModelFileError(FlyNNError, ValueError):
    """A model file is truncated, altered, of an unknown version, or not a model file."""


class WriteError(FlyNNError, OSError):
    """A file cannot be written, for example on a full disk.

    An earlier file stays as it was.

    `errno` is that of the cause. `field` is the name of the file without its folder,
    which is in a note.
    """


class ConfigError(FlyNNError, ValueError):
    """A run or node setting is missing, unknown, or out of range."""


class AggregationError(FlyNNError, RuntimeError):
    """Fewer parties were counted than the run requires, so there is no model.

    Parameters
    ----------
    text : str
        The message.
    counted : int, default=0
        Parties that were counted.
    min_parties : int, default=1
        Parties that the run requires.
    missing : mapping of str to str, optional
        Reasons why parties that were asked are not counted, by name.
    """

    def __init__(
        self,
        text: str,
        counted: int = 0,
        min_parties: int = 1,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.counted = counted
        self.min_parties = min_parties
        self.missing = dict(missing or {})


class MissingExtraError(FlyNNError, ImportError):
    """An optional package is not installed.

    `field` is its name, and the message names the extra to install.
    """


class PrivacyError(FlyNNError, RuntimeError):
    """A private release is refused: it exceeds a party's policy, or the party's ledger
    cannot be trusted.
    """


def with_rows(error: Refusal, rows: str) -> Refusal:
    """`error` with a note of numbers of rows.

    They say how many samples have what a server asked for, so a note, which stays in
    this machine's log, has them.
    """
    error.add_note(rows)
    return error


def with_names(error: Refusal, names: Iterable[object], most: int = 5) -> Refusal:
    """`error` with a note of at most so many names in a file, and of the number of the
    others.

    In a file without a header the names are a record; a note stays in the log of the
    machine with the file.
    """
    names = list(names)
    rest = ""
    if len(names) > most:
        rest = f" and {len(names) - most} more"
    error.add_note(
        "in this file: "
        f"{', '.join(repr(str(name)[:60]) for name in names[:most])}{rest}"
    )
    return error


def full_text(error: BaseException) -> str:
    """An error's message with its notes, in one line: for this machine's own log."""
    return clean("; ".join([str(error), *getattr(error, "__notes__", ())]), _MOST)


def clean(text: object, longest: int, ends: bool = False) -> str:
    """A text from outside as one short line that can be printed: no control or
    direction characters.

    `ends`: of a longer text the beginning and the end, where a traceback has its cause.

    >>> clean("Basel\\n[ERROR] \\u202eall is lost", longest=20)
    'Basel [ERROR] all i…'
    >>> clean("Traceback of an error:\\n  in line 7\\nValueError", longest=20, ends=True)
    'Tra … e 7 ValueError'
    """
    if not isinstance(text, str):
        return ""
    # Cut first, it may be huge.
    line = " ".join(printable(text[: 4 * longest]).split())
    if len(line) <= longest:
        return line
    tail = ""
    if ends:
        tail = clean(text[-4 * longest :], 4 * longest)[-2 * longest // 3 :]
    if tail:
        return f"{line[: longest - len(tail) - 3]} … {tail}"
    return line[: longest - 1] + "…"


def printable(text: str, has_escapes: bool = False) -> str:
    """A text as one line, without characters that a terminal obeys or that show nothing.

    They are those of Unicode's category C (control, format, surrogates, unassigned),
    and line breaks. `has_escapes`: with an escape of TOML in the place of each.
    """
    if text.isprintable():
        return text
    characters = []
    for character in re.sub("[\n\u2028\u2029]", " ", text):
        if character == "\t" or unicodedata.category(character)[0] != "C":
            characters.append(character)
        elif has_escapes and character < "\U00010000":
            characters.append(f"\\u{ord(character):04x}")
        elif has_escapes:
            characters.append(f"\\U{ord(character):08x}")
    return "".join(characters)
