"""A party's own file, read so that no record decides whether or how the others are read.

`own_share` refuses a file with a missing value, and infers types from all rows: what happens then tells something
about single records. Here only what no record decides is refused (no file, no such column, a file that no parser
reads). Values that are no numbers become NaN, and labels stay as they are: `records` drops what does not fit.

Which points are held out does not depend on their place either, since with one record less all after it would move up:
a digest of the record itself decides.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.config import NodeConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.app.data.npz_file import read_arrays
from flwr_flynn.app.data.readers import Share, npz_order, parquet_frame
from flwr_flynn.app.data.schema import by_name
from flwr_flynn.errors import ConfigError, DataError, with_names

_Read = tuple[npt.NDArray[Any], npt.NDArray[Any], tuple[str, ...]]  # points, labels, columns left out

_NONE: tuple[str, ...] = ()
_TRUTHS = {"false": "0", "true": "1"}


def private_share(node: NodeConfig, features: Sequence[str] = ()) -> Share:
    """A deployed party's own points; all of them to train on, unless its results may leave it.

    Parameters
    ----------
    node : NodeConfig
    features : sequence of str, optional
        What the run announces: the columns to take, in this order. Not given: all but the label.

    Raises
    ------
    ConfigError, DataError
        There is no such file or column, or it cannot be read at all. The message names no folder.
    """
    path = datasets._existing(node.data_path)
    if path is None:
        raise ConfigError(f"node-config data-path: no such file: {Path(node.data_path).name[:80]!r}")
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ConfigError(f"node-config data-path: expected a .csv, .parquet or .npz file, got {path.name[:80]!r}")
    X, y, left_out = readers[path.suffix](path, node.label, features)
    if X.ndim != 2 or X.shape[1] == 0 or y.shape != (len(X),) or X.dtype.kind not in "biuf":
        raise DataError(f"{path.name}: expected a matrix of numbers with a label for each row, got something else")
    test = held_out_by_content(X, y, node.test_fraction if node.evaluate else 0.0, node.split_seed)
    return Share(X[~test], y[~test], X[test], y[test], left_out)


def held_out_by_content(
    X: npt.NDArray[Any], y: npt.NDArray[Any], fraction: float, split_seed: int
) -> npt.NDArray[np.bool_]:
    """Which points are held out, each by a digest of its own values, as float64, and its label.

    Parameters
    ----------
    X : (n, d) array of numbers
    y : (n,) array
    fraction : float
    split_seed : int

    Examples
    --------
    >>> X, y = np.arange(1000.0)[:, None], np.zeros(1000, int)
    >>> test = held_out_by_content(X, y, 0.2, split_seed=0)
    >>> int(test.sum()), np.array_equal(held_out_by_content(X[1:], y[1:], 0.2, split_seed=0), test[1:])
    (200, True)
    """
    if not fraction:
        return np.zeros(len(y), bool)
    key, most = str(split_seed).encode(), fraction * 2.0**64
    places = (
        # One label that is missing makes 3.0 of all 3.
        hashlib.blake2b(
            np.asarray(row, "<f8").tobytes() + str(label).removesuffix(".0").encode(), digest_size=8, key=key
        ).digest()
        for row, label in zip(X, y.tolist(), strict=True)
    )
    return np.fromiter((int.from_bytes(place, "big") < most for place in places), bool, len(y))


def _npz(path: Path, label: str, features: Sequence[str]) -> _Read:
    arrays = read_arrays(path, {"points": "X", "label": label or "y"}, {"names": "feature_names"} if features else {})
    X, left_out = arrays["points"], _NONE
    if X.dtype.kind == "U" and X.ndim == 2:  # one value that is no number makes texts of all
        X = np.array([[_number(text) for text in row] for row in X.tolist()], np.float64).reshape(X.shape)
    if features and X.ndim == 2:
        order, left_out = npz_order(path, X.shape[1], arrays.get("names"), features)
        X = X[:, order]
    return X, arrays["label"], left_out


def _csv(path: Path, label: str, features: Sequence[str]) -> _Read:
    """Every line a record by itself: parsers of whole files let a line too long or an open quote spoil others."""
    label, left_out = label or "label", _NONE
    try:
        with path.open("rb") as stream:
            names = _fields(stream.readline().decode("utf-8-sig", "replace"))
            if names is None or names.count(label) != 1:
                error = DataError(f"{path.name}: no column {label!r} for the label among {len(names or ())}")
                raise with_names(error, names or ())
            place = names.index(label)
            del names[place]
            width, order = len(names) + 1, list(range(len(names)))
            if features:
                order, left_out = by_name(names, features, path.name)
            rows, labels = [], []
            for line in stream:
                fields = _fields(line.decode("utf-8", "replace"))
                if fields == []:
                    continue
                if fields is None or len(fields) != width:
                    fields = [""] * width
                labels.append(fields.pop(place))
                rows.append(np.array([_number(fields[column]) for column in order]))
    except OSError as error:
        raise DataError(f"{path.name}: not a readable .csv file ({type(error).__name__})") from None
    y = np.empty(len(labels), object)
    y[:] = labels
    return np.array(rows, np.float64).reshape(len(rows), len(order)), y, left_out


def _fields(line: str) -> list[str] | None:
    """The fields of a line, none in a blank one; None if it cannot be read."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return None


def _number(text: str) -> float:
    try:
        return float(_TRUTHS.get(text.lower(), text))
    except ValueError:
        return np.nan


def _parquet(path: Path, label: str, features: Sequence[str]) -> _Read:
    label, left_out = label or "label", _NONE
    # One label that is missing would make floats of all integers, and of large ones others.
    pandas, frame = parquet_frame(path, "data-path", integer_object_nulls=True)
    columns = frame.columns = [str(column) for column in frame.columns]
    if columns.count(label) != 1:
        raise with_names(DataError(f"{path.name}: no column {label!r} for the label among {len(columns)}"), columns)
    points = frame.drop(columns=label)
    order = list(range(points.shape[1]))
    if features:
        order, left_out = by_name(list(points.columns), features, path.name)
    X = np.empty((len(frame), len(order)))
    for place, column in enumerate(order):
        values = points.iloc[:, column]
        if not pandas.api.types.is_numeric_dtype(values.dtype):
            values = pandas.Series([_number(str(value)) for value in values])
        X[:, place] = values.to_numpy(dtype=np.float64, na_value=np.nan)
    return X, frame[label].to_numpy(dtype=object), left_out
