"""Samples and labels of a party, and the class list that its labels are looked up in.

Where exact figures leave the party, samples are refused as a whole if one does not fit. Where counts are private, a
refusal because of one sample would give it away: samples are read one by one. A sample with a value that is missing,
infinite, no number or beyond the hash, or with an unknown label, is left out. No sample changes how another is read:
types are not inferred from all of them together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.tables.schema import Schema

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""


Codes = npt.NDArray[np.int64]

HELD = 2**22  # values or active bits held at a time
_TRUTHS = {"False": 0.0, "True": 1.0}  # texts of booleans
_MISSING = ("NAType", "NaTType")  # pandas' own, which is not imported here
_LONGEST_NUMBER = 400  # characters of a label that can be a number; longer ones are texts


# -------- labels and names


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The class code, 0 to L - 1, of every label."""
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError("y", "shape (samples,)", f"{labels.ndim} dimensions")
    code_of = codebook(classes)
    try:
        codes = np.fromiter((code_of.get(label, -1) for label in labels.tolist()), np.int64, len(labels))
    except TypeError:
        raise DataError("y", "strings or integers as labels", "unhashable objects") from None
    if unknown := int((codes < 0).sum()):
        kind = f"{len(classes)} {'strings' if isinstance(classes[0], str) else 'integers'}"
        got = f"{unknown} of {len(codes)}"
        text = f"y: {got} labels are not in the class list ({kind}; y has dtype {labels.dtype})"
        raise DataError("y", f"labels among {kind}", got, text=text)
    return codes


def codebook(classes: Sequence[Label]) -> dict[Any, int]:
    """The code of every form in which a label of the class list may come."""
    code_of: dict[Any, int] = {}
    for code, label in enumerate(classes):
        if isinstance(label, int):
            code_of |= {label: code, str(label): code, f"{label}.0": code}
        else:
            code_of[label] = code
            if PLAIN_INTEGER.fullmatch(label):
                code_of[int(label)] = code
    return code_of


def checked_classes(classes: Any) -> tuple[Label, ...]:
    """A class list as a tuple of different strings or different integers."""
    if isinstance(classes, str | bytes | Mapping | Set) or not isinstance(classes, Iterable):
        raise ConfigError("classes", "a list of strings or integers", type(classes).__name__)
    # item() makes Python's values of NumPy's scalars.
    labels = [label.item() if isinstance(label, np.generic) else label for label in classes]
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ConfigError("classes", "only strings or only integers", got)
    if len(set(labels)) < len(labels):
        raise ConfigError("classes", "different labels", f"{len(labels) - len(set(labels))} duplicates")
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ConfigError("classes", "integers within int64", "one outside")
    # NumPy drops a trailing NUL, which would make two labels one.
    if kinds == {str} and any("\0" in label for label in labels):
        raise ConfigError("classes", "labels without NUL", "one with NUL")
    if kinds == {str} and (longest := max(map(len, labels))) > 1024:
        raise ConfigError("classes", "labels of at most 1024 characters", f"one of {longest}")
    return tuple(labels)


Features = tuple[str, ...] | Schema
"""Names of the columns that are hashed as they stand, or the schema by which columns become numbers."""


def checked_names(names: Any, n_features: int) -> Features:
    """Names as a tuple of `n_features` strings, or a schema of as many numbers; a `ConfigError` for anything else."""
    if isinstance(names, Schema):
        if names.width != n_features:
            raise ConfigError("feature_names", f"a schema of {n_features} numbers a row (n_features)", names.width)
        return names.without_labels()
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ConfigError("feature_names", f"{n_features} strings", type(names).__name__)
    # str() makes Python's strings of NumPy's.
    checked = tuple(str(name) if isinstance(name, str) else name for name in names)
    if len(checked) != n_features or not all(isinstance(name, str) for name in checked):
        raise ConfigError("feature_names", f"{n_features} strings (n_features)", f"{len(checked)} entries")
    return checked


# -------- samples as a whole


@dataclass(frozen=True)
class Samples:
    """Samples of one party."""

    X: Any  # (n, d) array-like or scipy sparse
    y: Any  # (n,) labels
    X_test: Any = None  # held-out samples for the evaluation
    y_test: Any = None


def labelled(
    samples: Samples, codes_of: Callable[[Any], Codes], n_features: int, *, with_gaps: bool = False
) -> tuple[Any, Codes]:
    """Samples in a form that can be sliced, and the codes of their labels; refused as a whole if one does not fit."""
    X: Any = samples.X.tocsr() if sp.issparse(samples.X) else np.asarray(samples.X)
    if X.ndim != 2:
        raise DataError("X", "shape (samples, features)", f"{X.ndim} dimension(s)")
    check_width(X.shape[1], n_features)
    codes = codes_of(samples.y)
    if len(codes) != X.shape[0]:
        raise DataError("y", f"{X.shape[0]} labels, one for every sample", len(codes))
    values = X.data if sp.issparse(X) else X
    if not with_gaps and values.dtype.kind == "f" and np.isnan(np.sum(values)) and np.isnan(values).any():
        raise DataError("X", "no gaps in a run without a schema", "NaN")
    return X, codes


def check_samples(samples: Samples, n_features: int | None) -> None:
    """Refuse samples and labels by their dimensions, number and, where known, width, which no single sample decides."""
    X, y = samples.X, samples.y
    if len(getattr(X, "shape", ())) != 2:
        raise DataError("X", "a two-dimensional array, sparse matrix or data frame", type(X).__name__)
    if len(getattr(y, "shape", (0,))) != 1 or not hasattr(y, "__len__"):
        raise DataError("y", "a sequence of labels", type(y).__name__)
    if len(y) != X.shape[0]:
        raise DataError("y", "one label for every sample", "more or fewer")
    if n_features is not None:
        check_width(X.shape[1], n_features)


def check_width(n_columns: int, n_features: int) -> None:
    """Refuse samples of another number of columns than the server's."""
    if n_columns != n_features:
        raise PayloadError("n_features", f"{n_columns}, the number of columns of the data", n_features)


# -------- samples one by one


def count(
    hasher: FlyHash,
    classes: Sequence[Label],
    X: Any,
    y: Any,
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
    *,
    with_gaps: bool = False,
) -> tuple[ClassCounts, int]:
    """Counts of the samples that fit, and how many do not."""
    array, n_counted = np.zeros((len(classes), hasher.hash_dim), np.int64), 0
    for samples, codes in fitting(hasher, classes, X, y, with_gaps=with_gaps):
        np.add.at(array, (codes[:, None], hasher.active(samples, n_jobs=n_jobs)), 1)
        n_counted += len(codes)
        if progress is not None:
            progress(len(codes))
    counts = ClassCounts(array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint)
    return counts, len(y) - n_counted


def fitting(
    hasher: FlyHash, classes: Sequence[Label], X: Any, y: Any, *, with_gaps: bool = False
) -> Iterator[tuple[Any, Codes]]:
    """Samples that fit, as numbers, and their class codes, some at a time."""
    codes = _codes(classes, y)
    samples = X.tocsr() if sp.issparse(X) else X
    step = max(1, HELD // max(hasher.hash_nnz, int(samples.shape[1])))
    for first in range(0, len(codes), step):
        rows = slice(first, first + step)
        part, finite = _numbers(samples, rows, with_gaps)
        part, labels = part[finite], codes[rows][finite]
        keep = hasher.fits(part) & (labels >= 0)
        if keep.any():
            yield part[keep], labels[keep]


def check_classes(classes: Sequence[Label]) -> dict[Any, int]:
    """The class code of every label as `_meaning` gives it; all must be different whatever container they come in."""
    book = {_meaning(label): code for code, label in enumerate(classes)}
    if len(book) < len(classes):
        raise DataError("classes", "labels that are different as numbers for private counts", "equal ones")
    if None in book:
        raise DataError("classes", "texts or real numbers for private counts", "nan or a complex number")
    return book


def _codes(classes: Sequence[Label], y: Any) -> Codes:
    """The class code of every label, -1 for those not in the class list."""
    book = check_classes(classes)
    known: dict[Any, int] = {}  # of types whose equal values mean the same

    def code(label: Any) -> int:
        plain = type(label) in (str, int, bool, float)
        if plain and label in known:
            return known[label]
        found = book.get(meaning(label), -1)
        if plain:
            known[label] = found
        return found

    return np.fromiter(map(code, label_values(y)), np.int64, len(y))


def label_values(y: Any) -> Any:
    """The labels one by one, as Python's where NumPy's type has such."""
    dtype = getattr(y, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        return plain(np.asarray(y)).tolist()
    return y.tolist() if hasattr(y, "tolist") else y


def meaning(label: Any) -> float | str | None:
    """The number or the text that a label means, in whatever form (1.0 for True and "1"); None for others."""
    try:
        return _meaning(label)
    except Exception:  # noqa: BLE001 - what cannot be looked up is no label, whatever keeps it
        return None


def _meaning(label: Any) -> float | str | None:
    """As `meaning`, but it may raise."""
    if isinstance(label, bytes | str):
        text = _text(label)
        if len(text) > _LONGEST_NUMBER:
            return text
        number = _printed(text)
        return text if number is None else _number_or_none(number)
    if isinstance(label, np.timedelta64 | np.datetime64):
        return _number_or_none(_number(label))
    if label is None or isinstance(label, date | time | timedelta) or type(label).__name__ in _MISSING:
        return None
    if isinstance(label, complex):
        return _number_or_none(label.real) if label.imag == 0 else None
    if isinstance(label, bool | int | float | np.generic):
        return _number_or_none(float(label))
    return _meaning(str(label))


def _text(value: bytes | str) -> str:
    return (value.decode("ascii") if isinstance(value, bytes) else str(value)).rstrip("\0")  # NumPy's texts have no NUL


def _number_or_none(number: float) -> float | None:
    return None if math.isnan(number) else number + 0.0  # -0.0 + 0.0 is 0.0


def _printed(text: str) -> float | None:
    """The number that Python or NumPy prints as this text, NaN for a complex one; None for other texts."""
    if text in _TRUTHS:
        return _TRUTHS[text]
    kinds: tuple[Callable[[str], Any], ...] = (int, float, complex)
    for kind in kinds:
        try:
            value = kind(text)
            if str(value) == text:
                return _number(value)
        except ValueError:
            continue
    return None


def _numbers(X: Any, rows: slice, with_gaps: bool) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Some rows, in a type that does not depend on other samples, and a mask of the finite ones, up to gaps."""
    if sp.issparse(X):
        part = X[rows]
        part = sp.csr_array((plain(part.data), part.indices, part.indptr), shape=part.shape)
        finite = np.ones(part.shape[0], bool)
        finite[np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))[~np.isfinite(part.data)]] = False
        return part, finite
    if hasattr(X, "iloc"):
        part = X.iloc[rows].to_numpy()
        # Durations of a data frame are no numbers: in a column with a word they would be none either.
        part = np.full(part.shape, np.nan) if part.dtype.kind == "m" else plain(part)
    else:
        part = plain(np.asarray(X[rows]))
    return part, ~(np.isinf(part) if with_gaps else ~np.isfinite(part)).any(axis=1)


def plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values as real numbers, each by itself; NaN for a value that is no real number."""
    kind = values.dtype.kind
    if kind == "M":
        return np.full(values.shape, np.nan)
    if kind == "m":
        return np.where(np.isnat(values), np.nan, values.astype(np.int64))
    if kind == "c":
        return np.where(values.imag == 0, values.real, np.nan).astype(np.float64)
    if kind not in "biuf":
        return np.fromiter(map(_number, values.ravel().tolist()), np.float64, values.size).reshape(values.shape)
    # Wider integers than these are not exact in the floats that other samples would make of them.
    if (kind in "iu" and values.dtype.itemsize > 4) or values.dtype.itemsize > 8:
        return values.astype(np.float64)
    return values


def _number(value: Any) -> float:
    try:
        if isinstance(value, np.datetime64):
            return np.nan
        if isinstance(value, np.timedelta64):
            return np.nan if np.isnat(value) else float(value.astype(np.int64))
        if isinstance(value, bytes | str):
            text = _text(value)
            if text in _TRUTHS:
                return _TRUTHS[text]
            try:
                return float(text)
            except ValueError:
                value = complex(text)
        if isinstance(value, complex):
            return value.real if value.imag == 0 else np.nan
        return float(value)
    except Exception:  # noqa: BLE001 - what is no number is missing, whatever keeps it
        return np.nan
