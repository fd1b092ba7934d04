"""One party's points: its own file, or its share of a data set that a simulation deals out.

A simulation must be able to say "the federated model equals the pooled one, however the points were split".
So which points are held out is a rule on the point (its index and the split seed, `held_out`) and not on the
party, and a share is a list of indices into one data set (`partition`), made by the partitioners of
flwr-datasets. A party trains on the points of its share that are not held out, and is evaluated on those that
are.

>>> data = load_dataset("digits")
>>> data.X.shape, len(data.classes)
((1797, 64), 10)
>>> test = held_out(len(data.y), fraction=0.2, split_seed=0)
>>> share = data.share(np.arange(100), test)
>>> len(share.y) + len(share.y_test)
100
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.config import NodeConfig, RunConfig, whole_numbers
from flwr_flynn.errors import ConfigError, DataError, FlyNNError
from flwr_flynn.partition import IndexArray, deal, held_out

_BY_ID = ("natural-id", "grouped-natural-id")

Refusal = TypeVar("Refusal", bound=FlyNNError)


@dataclass(frozen=True)
class Share:
    """What one party holds: points to train on and points held out, with their labels."""

    X: npt.NDArray[Any]
    y: npt.NDArray[Any]
    X_test: npt.NDArray[Any]
    y_test: npt.NDArray[Any]


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
    """

    X: npt.NDArray[Any]
    y: IndexArray
    classes: list[str | int]
    name: str
    feature_names: tuple[str, ...] | None = None
    groups: npt.NDArray[Any] | None = None

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
        return Share(self.X[train], labels[train], self.X[held], labels[held])


# -------- reading data


def load_dataset(source: str, *, label: str = "", group: str = "", config: RunConfig | None = None) -> Dataset:
    """Load a data set by name or from a file.

    Parameters
    ----------
    source : str
        ``"digits"`` (bundled with scikit-learn), ``"synthetic"`` (scikit-learn's ``make_classification`` with
        the ``synthetic-*`` settings), ``"openml:ID"``, or the path of a ``.csv``, ``.parquet`` or ``.npz``
        file.
    label : str
        Column (CSV, Parquet) or array (NPZ) that holds the classes. Not given: ``label``, or ``y`` in NPZ
        files, whose points are the array ``X``.
    group : str
        Column or array of ids for the natural-id partitioners; left out of the features.
    config : RunConfig, optional
        Where the ``synthetic-*`` settings come from.

    Raises
    ------
    ConfigError
        Unknown name, missing file, missing package (with the extra that brings it).
    DataError
        Columns that are not numbers, missing or infinite values. A file without a header has a record where the
        names of the columns should be: messages give numbers and positions, which may travel; names are a note of the
        error (`full_text`), for the log of the machine that has the file.
    """
    if label and (source in ("digits", "synthetic") or source.startswith("openml:")):
        raise ConfigError(f"label: expected none, as {source[:200]} has labels of its own; got {label[:80]!r}")
    if source == "digits":
        return _digits()
    if source == "synthetic":
        return _synthetic(config or RunConfig())
    if source.startswith("openml:"):
        return _openml(source)
    readers: dict[str, Callable[[Path, str, str], Dataset]] = {".npz": _npz, ".csv": _table, ".parquet": _table}
    suffix = Path(source).suffix
    if suffix not in readers:
        raise ConfigError(
            "dataset: expected digits, synthetic, openml:ID or the path of a .csv, .parquet or .npz file, "
            f"got {Path(source).name[:80]!r}"
        )
    path = _existing(source)
    if path is None:
        raise ConfigError(f"dataset: no such file: {os.path.abspath(source)[:500]}")
    return readers[suffix](path, label, group)


def full_text(error: BaseException) -> str:
    """An error's message with its notes, in one line: for this machine's own log."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def _named(error: Refusal, names: Iterable[object]) -> Refusal:
    """`error` with a note of at most five names and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    error.add_note(f"in this file: {', '.join(repr(str(name)[:60]) for name in names[:5])}{rest}")
    return error


def _existing(source: str) -> Path | None:
    """The file of this name, if there is one; no name is so odd that asking raises."""
    try:
        path = Path(source).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, the home of nobody, a NUL
        return None


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # Grey values 0..16; as bytes they are hashed in exact integer arithmetic.
    X = bunch.data.astype(np.uint8)
    return Dataset(X, bunch.target.astype(np.int64), list(range(10)), "digits", tuple(bunch.feature_names))


def _synthetic(config: RunConfig) -> Dataset:
    from sklearn.datasets import make_classification

    informative = min(config.synthetic_informative, config.synthetic_features)
    if config.synthetic_classes > 2**informative or config.synthetic_classes > config.synthetic_examples:
        raise ConfigError(
            f"run-config synthetic-classes: expected at most 2**synthetic-informative = 2**{informative} and "
            f"at most synthetic-examples = {config.synthetic_examples}, got {config.synthetic_classes}"
        )
    X, y = make_classification(
        n_samples=config.synthetic_examples,
        n_features=config.synthetic_features,
        n_informative=informative,
        n_redundant=0,
        n_classes=config.synthetic_classes,
        n_clusters_per_class=1,
        random_state=config.split_seed % 2**32,
    )
    return Dataset(X, y.astype(np.int64), list(range(config.synthetic_classes)), "synthetic")


def _openml(source: str) -> Dataset:
    from sklearn.datasets import fetch_openml, get_data_home

    number = source.removeprefix("openml:")
    if not (number.isascii() and number.isdigit()):
        raise ConfigError(f"dataset: expected openml: and the number of a data set, got {source[:200]!r}")
    try:
        bunch = fetch_openml(data_id=int(number), as_frame=False, parser="liac-arff", n_retries=1, delay=1.0)
    except OSError as error:  # URLError and every other failure of the network
        raise DataError(
            f"{source}: not in scikit-learn's data folder ({get_data_home()}), and openml.org cannot be "
            f"reached ({type(error).__name__}); run once where there is a network, or give a file"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{source}: scikit-learn cannot read it: {error}") from None
    if bunch.target is None:
        raise DataError(f"{source}: has no target column to use as the class")
    X = bunch.data.toarray() if hasattr(bunch.data, "toarray") else bunch.data
    names = tuple(map(str, bunch.feature_names))
    return _checked(X, bunch.target, source, names)


def _npz(path: Path, label: str, group: str) -> Dataset:
    """Arrays ``X`` (n, d) and ``y`` (n,) of an .npz file; pickled objects and lying headers are refused."""
    wanted = {"points": "X", "label": label or "y"} | ({"partition-by": group} if group else {})
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for role, key in wanted.items():
                if key not in members:
                    error = DataError(f"{path.name}: no array {key!r} for the {role} among {len(members)}")
                    raise _named(error, members)
                arrays[role] = _npy_member(archive, members[key])
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, its decompressors and NumPy's parser raise a dozen kinds
        raise DataError(f"{path.name}: not a readable .npz file of plain arrays ({type(error).__name__})") from None
    X = arrays["points"]
    if X.ndim != 2:
        raise DataError(f"{path.name}: expected X of shape (points, features), got {X.ndim} dimension(s)")
    groups = arrays.get("partition-by")
    if groups is not None and groups.shape != (len(X),):
        raise DataError(f"{path.name}: expected {group!r} of shape ({len(X)},), got {groups.shape}")
    return _checked(X, arrays["label"], path.name, None, groups)


def _npy_member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """One array of an open .npz, its header checked against the bytes there before anything is allocated."""
    header = np.lib.format
    # What np.savez writes. Other methods allocate as the file pleases, and deflate makes of a byte 1032 at most.
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("compressed by another method")
    if info.file_size > 1032 * os.fstat(archive.fp.fileno()).st_size:  # type: ignore[union-attr]
        raise ValueError("a size that the file cannot hold")
    with archive.open(name) as stream:
        version = header.read_magic(stream)
        read = header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
        shape, _, dtype = read(stream)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > archive.getinfo(name).file_size:
            raise ValueError("pickled objects, or a header that promises more than the file holds")
    with archive.open(name) as stream:
        array = header.read_array(stream, allow_pickle=False)
    # NumPy takes any 32 bits for a character, and Python then fails to make a text of them.
    if array.dtype.kind == "U" and array.size and array.itemsize:
        characters = np.ascontiguousarray(array).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if int(characters.max()) > sys.maxunicode:
            raise ValueError("texts of characters that there are not")
    return array


def _table(path: Path, label: str, group: str) -> Dataset:
    """A CSV or Parquet file: every column but the label (and the group) is a feature."""
    label = label or "label"
    try:
        pandas = import_module("pandas")
        if path.suffix == ".csv":
            # Labels are texts: what they look like to pandas depends on the rows that this party happens to have.
            texts = dict.fromkeys((label, group), str)
            frame = pandas.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
        else:
            frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ConfigError(
            f"dataset: {path.suffix} files need {error.name or 'pandas and pyarrow'}: pip install 'flwr-flynn[data]'"
        ) from None
    except (ValueError, OSError, MemoryError) as error:  # pandas' and pyarrow's parsers raise these
        raise DataError(f"{path.name}: not a readable {path.suffix} file ({type(error).__name__})") from None
    columns = frame.columns = [str(column) for column in frame.columns]
    if len(set(columns)) < len(columns):
        raise DataError(f"{path.name}: expected columns of different names, got {len(columns)} columns")
    for role, column in (("label", label), ("partition-by", group)):
        if column and column not in columns:
            raise _named(DataError(f"{path.name}: no column {column!r} for the {role} among {len(columns)}"), columns)
    if missing := int(frame[label].isna().sum()):
        raise DataError(f"{path.name}: {missing} rows have no {label!r}")
    features = frame.drop(columns=[column for column in {label, group} if column])
    if features.empty:
        features = features.astype(np.float64)  # no row tells what a column holds
    is_number = [pandas.api.types.is_numeric_dtype(kind) for kind in features.dtypes]
    if not all(is_number):
        words = [i for i, number in enumerate(is_number) if not number]
        where = _positions(words, is_number)
        raise _named(DataError(f"{path.name}: expected numbers, got other values in {where}"), features.columns[words])
    # pandas' own nullable columns become float64 with NaN, which _checked then reports. The others get a common type
    # from NumPy: pandas would have a column of booleans turn them all to objects.
    nullable = any(pandas.api.types.is_extension_array_dtype(kind) for kind in features.dtypes)
    dtype = np.float64 if nullable or not len(is_number) else np.result_type(*set(features.dtypes))
    X = features.to_numpy(dtype=dtype, **({"na_value": np.nan} if nullable else {}))
    y = frame[label].to_numpy(dtype=object if path.suffix == ".csv" else None)
    return _checked(X, y, path.name, tuple(features.columns), frame[group].to_numpy() if group else None)


def _positions(indices: Sequence[int], features: Sized) -> str:
    """Which features these are, at most five of them by position."""
    shown = ", ".join(str(i + 1) for i in indices[:5]) + (", ..." if len(indices) > 5 else "")
    return f"{len(indices)} of {len(features)} features (number {shown})"


def _checked(
    X: npt.NDArray[Any],
    y: npt.NDArray[Any],
    name: str,
    feature_names: tuple[str, ...] | None,
    groups: npt.NDArray[Any] | None = None,
) -> Dataset:
    """A Dataset of finite numbers and coded classes, or a DataError that tells positions and numbers of points."""
    if X.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected numbers, got an array of type {X.dtype}")
    if y.shape != (len(X),):
        raise DataError(f"{name}: expected one label for each of {len(X)} points, got an array of shape {y.shape}")
    if X.shape[1] == 0:
        raise DataError(f"{name}: expected at least one feature, got shape {X.shape}")
    if X.dtype.kind == "f" and not (finite := np.isfinite(X)).all():
        bad = np.flatnonzero(~finite.all(axis=0))
        rows = int((~finite.all(axis=1)).sum())
        where = _positions(bad.tolist(), X[0])
        error = DataError(f"{name}: {rows} points have missing or infinite values, in {where}")
        raise _named(error, np.array(feature_names)[bad]) if feature_names else error
    values, codes = np.unique(_labels(y, name), return_inverse=True)
    return Dataset(X, codes.astype(np.int64).reshape(-1), values.tolist(), name, feature_names, groups)


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


# -------- what the parties hold


@lru_cache(maxsize=2)
def _loaded(config: RunConfig) -> Dataset:
    group = config.partition_by if config.partitioner in _BY_ID else ""
    data = load_dataset(config.dataset, label=config.label, group=group, config=config)
    if not len(data.y):
        raise DataError(f"{data.name}: expected at least one point, got none")
    return data


def simulated_dataset(config: RunConfig) -> Dataset:
    """The data set of a simulated run, loaded once in a process."""
    return _loaded(config)


@lru_cache(maxsize=2)
def simulated_shares(config: RunConfig, n_parties: int) -> tuple[IndexArray, ...]:
    """The points of every party of a simulated run, dealt out once in a process: see `partition.deal`."""
    data = _loaded(config)
    return deal(config, n_parties, data.y, _partition_column(config, data))


def _partition_column(config: RunConfig, data: Dataset) -> npt.NDArray[Any] | None:
    """The column that `continuous` and the natural-id partitioners split by; None for all others."""
    if config.partitioner in _BY_ID:
        if data.groups is None:
            raise ConfigError(
                f"run-config partition-by: {config.partitioner} needs a file's column of ids, "
                f"got {config.partition_by!r} for {data.name}"
            )
        return data.groups
    if config.partitioner != "continuous":
        return None
    names = data.feature_names or tuple(str(i) for i in range(data.X.shape[1]))
    if config.partition_by not in names:
        error = ConfigError(f"run-config partition-by: expected a feature of {data.name}, got {config.partition_by!r}")
        raise _named(error, names)
    return data.X[:, names.index(config.partition_by)].astype(np.float64)


def simulated_share(config: RunConfig, party: int, n_parties: int) -> Share:
    """Party number `party`'s share of the run's data set."""
    data = _loaded(config)
    test = held_out(len(data.y), config.test_fraction, config.split_seed)
    return data.share(simulated_shares(config, n_parties)[party], test)


def pooled_training(
    config: RunConfig, n_parties: int, among: Collection[int] | None = None
) -> tuple[npt.NDArray[Any], IndexArray, int]:
    """The training points of everything that the partitioner handed out, as if one party held it all.

    Parameters
    ----------
    config : RunConfig
    n_parties : int
    among : collection of int, optional
        Only what these parties have.

    Returns
    -------
    X : ndarray of shape (n, d)
    codes : int64 ndarray of shape (n,)
    n_classes : int
    """
    data = _loaded(config)
    shares = [
        share for party, share in enumerate(simulated_shares(config, n_parties)) if among is None or party in among
    ]
    dealt = np.sort(np.concatenate([np.zeros(0, np.int64), *shares]))
    train = dealt[~held_out(len(data.y), config.test_fraction, config.split_seed)[dealt]]
    return data.X[train], data.y[train], len(data.classes)


def own_share(node: NodeConfig) -> Share:
    """A deployed party's own file, its points held out by the same rule on the row's number.

    Errors name the file without its folder: they travel to the server.
    """
    if _existing(node.data_path) is None:
        raise ConfigError(f"node-config data-path: no such file: {Path(node.data_path).name[:80]!r}")
    data = load_dataset(node.data_path, label=node.label)
    return data.share(np.arange(len(data.y)), held_out(len(data.y), node.test_fraction, node.split_seed))
