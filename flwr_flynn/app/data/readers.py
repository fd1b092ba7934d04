"""Points with their classes, read out of files: CSV, Parquet and NPZ.

What a file holds is refused whole if any of it does not fit, in words that tell columns and numbers of points and no
value. (`private_data` is for where a refusal because of one record would be too much.)

>>> data = checked(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array(["cat", "dog"]), "here", None)
>>> data.classes, data.y
(['cat', 'dog'], array([0, 1]))
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.data.npz_file import read_arrays
from flwr_flynn.app.data.partition import IndexArray
from flwr_flynn.app.data.schema import by_name, where
from flwr_flynn.app.settings import whole_numbers
from flwr_flynn.errors import ConfigError, DataError, with_names
from flwr_flynn.federated.party import Samples


@dataclass(frozen=True)
class Share(Samples):
    """Samples of one party, from its file or from a simulation's data set.

    Parameters
    ----------
    X, y, X_test, y_test
        As for `Samples`.
    left_out : tuple of str
        Columns of its file that are not among the features of the run.
    """

    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """Points with their classes.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        The points, in the narrowest type that the source gives: integers stay integers and are hashed
        exactly.
    y : int64 ndarray of shape (n,)
        Class codes, positions in `classes`.
    classes : list of str or int
        The class names, sorted.
    name : str
        Where it came from, for messages and reports.
    feature_names : tuple of str, or None
    groups : ndarray of shape (n,), or None
        The ids that `natural-id` partitioners split by; not a feature.
    left_out : tuple of str
        Columns of the file that are not among the features asked for.
    """

    X: npt.NDArray[Any]
    y: IndexArray
    classes: list[str | int]
    name: str
    feature_names: tuple[str, ...] | None = None
    groups: npt.NDArray[Any] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The class name of every point, shape (n,)."""
        return np.asarray(self.classes)[self.y]

    def share(self, indices: IndexArray, test: npt.NDArray[np.bool_]) -> Share:
        """The points at `indices`, those under the mask `test` (shape (n,)) apart."""
        # Ascending, whatever order a partitioner gives: neighbours in memory stay neighbours.
        indices = np.sort(indices)
        train, held = indices[~test[indices]], indices[test[indices]]
        labels = self.labels
        return Share(self.X[train], labels[train], self.X[held], labels[held], self.left_out)


def read_npz(path: Path, label: str, group: str, features: tuple[str, ...]) -> Dataset:
    """Arrays ``X`` (n, d) and ``y`` (n,) of an .npz file, and maybe ``feature_names`` (d,)."""
    wanted = {"points": "X", "label": label or "y"} | ({"partition-by": group} if group else {})
    arrays = read_arrays(path, wanted, {"names": "feature_names"} if features else {})
    X = arrays["points"]
    if X.ndim != 2:
        raise DataError(f"{path.name}: expected X of shape (points, features), got {X.ndim} dimension(s)")
    groups = arrays.get("partition-by")
    if groups is not None and groups.shape != (len(X),):
        raise DataError(f"{path.name}: expected {group!r} of shape ({len(X)},), got {groups.shape}")
    left_out: tuple[str, ...] = ()
    if features:
        order, left_out = npz_order(path, X.shape[1], arrays.get("names"), features)
        X = X[:, order]
    return checked(X, arrays["label"], path.name, features, bool(features), groups, left_out)


def npz_order(
    path: Path, n_columns: int, names: npt.NDArray[Any] | None, features: Sequence[str]
) -> tuple[list[int], tuple[str, ...]]:
    """Which columns of an .npz file's points these features are, and what others it names.

    Parameters
    ----------
    path : Path
    n_columns : int
    names : (n_columns,) array of str, or None
        The file's own names. Without any, its columns are taken for the features as they stand.
    features : sequence of str

    Raises
    ------
    DataError
        Features are not there, or the names do not fit the points.
    """
    if names is None:
        if n_columns != len(features):
            raise DataError(
                f"{path.name}: expected the run's {len(features)} features or an array 'feature_names', got "
                f"{n_columns} columns without names"
            )
        return list(range(n_columns)), ()
    if names.dtype.kind != "U" or names.shape != (n_columns,):
        raise DataError(
            f"{path.name}: expected 'feature_names' to be {n_columns} strings, got {names.dtype.kind!r} of shape "
            f"{names.shape}"
        )
    return by_name(names.tolist(), features, path.name)


def read_table(path: Path, label: str, group: str, features: tuple[str, ...]) -> Dataset:
    """A CSV or Parquet file: the features asked for, or every column but the label (and the group)."""
    label = label or "label"
    pandas, frame = _csv_frame(path, label, group) if path.suffix == ".csv" else parquet_frame(path, "dataset")
    columns = frame.columns = [str(column) for column in frame.columns]
    if len(set(columns)) < len(columns):
        raise DataError(f"{path.name}: expected columns of different names, got {len(columns)} columns")
    for role, column in (("label", label), ("partition-by", group)):
        if column and column not in columns:
            raise with_names(
                DataError(f"{path.name}: no column {column!r} for the {role} among {len(columns)}"), columns
            )
    if missing := int(frame[label].isna().sum()):
        raise DataError(f"{path.name}: {missing} rows have no {label!r}")
    y = frame[label].to_numpy(dtype=object if path.suffix == ".csv" else None)
    groups = frame[group].to_numpy() if group else None
    points = frame.drop(columns=[column for column in {label, group} if column])
    left_out: tuple[str, ...] = ()
    if features:
        order, left_out = by_name(list(points.columns), features, path.name)
        points = points.iloc[:, order]
    X = _numbers(pandas, points, path.name, bool(features))
    return checked(X, y, path.name, tuple(points.columns), bool(features), groups, left_out)


def parquet_frame(path: Path, setting: str, **options: bool) -> tuple[Any, Any]:
    """pandas, and a data frame of a Parquet file's columns in Arrow's types.

    The notes of pandas in the file (types and row labels) may have been altered, and pandas believes them. Only the
    names of the columns that are row labels are taken from them, and these columns are left out.

    Parameters
    ----------
    path : Path
    setting : str
        The setting that named the file, for the error of a missing package.
    **options : bool
        Of ``pyarrow.Table.to_pandas``.

    Raises
    ------
    ConfigError
        A package is missing.
    DataError
        The file cannot be read.
    """
    try:
        pandas = import_module("pandas")
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise _missing(path, setting, error) from None
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)  # texts that are none would be found later, by whoever looks at them
        noted = json.loads((table.schema.metadata or {}).get(b"pandas", b'{"index_columns": []}'))
        row_labels = [name for name in noted["index_columns"] if isinstance(name, str)]
        kept = [i for i, name in enumerate(table.column_names) if name not in row_labels]
        return pandas, table.select(kept).replace_schema_metadata(None).to_pandas(**options)
    except Exception as error:  # noqa: BLE001 - Arrow and json raise a dozen kinds
        raise DataError(f"{path.name}: not a readable {path.suffix} file ({type(error).__name__})") from None


def _missing(path: Path, setting: str, error: ImportError) -> ConfigError:
    needed = error.name or "pandas and pyarrow"
    return ConfigError(f"{setting}: {path.suffix} files need {needed}: pip install 'flwr-flynn[data]'")


def _csv_frame(path: Path, label: str, group: str) -> tuple[Any, Any]:
    """pandas, and the file as pandas reads it."""
    try:
        pandas = import_module("pandas")
        # pandas would give columns of the same name others.
        header = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
        if header.duplicated().any():
            raise DataError(f"{path.name}: expected columns of different names, got {len(header)} columns")
        # Labels are texts: what they look like to pandas depends on the rows that this party happens to have.
        texts = dict.fromkeys((label, group), str)
        with warnings.catch_warnings():
            # Of rows with more fields than the header has, pandas would drop the last or make the first an index.
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""], index_col=False)
    except DataError:
        raise
    except Warning:
        raise DataError(f"{path.name}: expected {len(header)} fields in each row, as in the header, got more") from None
    except ImportError as error:
        raise _missing(path, "dataset", error) from None
    except (ValueError, OSError, MemoryError) as error:  # pandas' parser raises these
        raise DataError(f"{path.name}: not a readable {path.suffix} file ({type(error).__name__})") from None
    return pandas, frame


def _numbers(pandas: Any, points: Any, name: str, announced: bool) -> npt.NDArray[Any]:
    """The columns of a data frame as one array, or a DataError that tells which are not numbers."""
    if points.empty:
        points = points.astype(np.float64)  # no row tells what a column holds
    words = [i for i, kind in enumerate(points.dtypes) if not pandas.api.types.is_numeric_dtype(kind)]
    if words:
        others = [_not_numbers(pandas, points.iloc[:, i]) for i in words]
        told = where(words, others, points.shape[1], len(points), points.columns if announced else None)
        raise with_names(DataError(f"{name}: expected numbers, got other values in {told}"), points.columns[words])
    # pandas' own nullable columns become float64 with NaN, which _checked then reports. The others get a common type
    # from NumPy: pandas would have a column of booleans turn them all to objects.
    nullable = any(pandas.api.types.is_extension_array_dtype(kind) for kind in points.dtypes)
    dtype = np.float64 if nullable or points.shape[1] == 0 else np.result_type(*set(points.dtypes))
    array: npt.NDArray[Any] = points.to_numpy(dtype=dtype, **({"na_value": np.nan} if nullable else {}))
    return array


def _not_numbers(pandas: Any, column: Any) -> int:
    """How many values of a column are there, and are no numbers."""
    there = column.dropna()
    if pandas.api.types.is_object_dtype(there) or pandas.api.types.is_string_dtype(there):
        there = there[pandas.to_numeric(there.astype(str), errors="coerce").isna()]
    return len(there)


def checked(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    name: str,
    feature_names: tuple[str, ...] | None,
    announced: bool = False,
    groups: npt.NDArray[Any] | None = None,
    left_out: tuple[str, ...] = (),
) -> Dataset:
    """A Dataset of finite numbers and coded classes, or a DataError that tells columns and numbers of points.

    Columns are called by their names where the run announced these, and by position elsewhere.
    """
    if X.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, got an array of type {X.dtype}")
    if y.shape != (len(X),):
        raise DataError(f"{name}: expected one label for each of {len(X)} points, got an array of shape {y.shape}")
    if X.shape[1] == 0:
        raise DataError(f"{name}: expected at least one feature, got shape {X.shape}")
    if X.dtype.kind == "f" and not (finite := np.isfinite(X)).all():
        per_column = (~finite).sum(axis=0)
        bad = np.flatnonzero(per_column).tolist()
        rows = int((~finite.all(axis=1)).sum())
        told = where(bad, per_column[bad].tolist(), X.shape[1], len(X), feature_names if announced else None)
        error = DataError(f"{name}: {rows} points have missing or infinite values, in {told}")
        raise with_names(error, np.array(feature_names)[bad]) if feature_names else error
    values, codes = np.unique(_labels(y, name), return_inverse=True)
    classes = codes.astype(np.int64).reshape(-1)
    return Dataset(X, classes, values.tolist(), name, feature_names or None, groups, left_out)


def _labels(y: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Labels as classes can be: integers or strings."""
    if y.dtype.kind == "f":
        if missing := int((~np.isfinite(y)).sum()):
            raise DataError(f"{name}: {missing} points have no label")
        if (y == np.floor(y)).all():
            if (np.abs(y) >= 2**63).any():
                raise DataError(f"{name}: expected labels within int64, got others")
            return y.astype(np.int64)
    if y.dtype.kind in "iu":
        return y
    labels = y.tolist()
    if any(isinstance(label, bytes) for label in labels):
        raise DataError(f"{name}: expected strings or integers as labels, got bytes")
    texts = [str(label) for label in labels]
    whole = whole_numbers(texts)
    return np.array(texts, dtype=str) if whole is None else np.array(whole, dtype=np.int64)
