"""One party's samples: its own file, or its share of the data set of a simulation.

In a simulation the index of a sample and the split seed decide if it is held out (`held_out`), and not the party. A
share is a list of indices into one data set (`partition`). So the federated model can equal the pooled one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import listed
from flwr_flynn.app.data.partition import IndexArray, deal, held_out, held_out_by_content
from flwr_flynn.app.data.readers import ENDINGS, Rows, ending, read_rows, read_width
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_settings import BY_ID
from flwr_flynn.app.settings_parser import whole_numbers
from flwr_flynn.errors import ConfigError, DataError, with_names
from flwr_flynn.federated.party import Samples

_ENDINGS = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


@dataclass(frozen=True)
class Share(Samples):
    """Samples of one party, from its file or from a simulation's data set."""

    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """Samples with their classes."""

    X: npt.NDArray[Any]
    y: IndexArray
    classes: list[str | int]
    name: str
    feature_names: tuple[str, ...] | None = None
    groups: npt.NDArray[Any] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def labels(self) -> npt.NDArray[Any]:
        """The class name of every sample."""
        return np.asarray(self.classes)[self.y]

    def share(self, indices: IndexArray, test: npt.NDArray[np.bool_]) -> Share:
        """The samples at `indices`, held-out ones by the mask `test` (shape (n,)) apart."""
        # In ascending order, so that neighbours in memory stay neighbours.
        indices = np.sort(indices)
        train, held = indices[~test[indices]], indices[test[indices]]
        labels = self.labels
        return Share(self.X[train], labels[train], self.X[held], labels[held], self.left_out)


def checked(rows: Rows) -> Dataset:
    """Rows as a data set of finite numbers and coded classes, for open parties and simulations."""
    name, X, names = rows.name, rows.X, rows.feature_names
    if X.dtype.kind not in "biuf":
        raise DataError(name, "numbers", f"an array of type {X.dtype}")
    if n_broken := int(rows.broken.sum()):
        raise DataError(name, "as many fields in each row as in the header", f"{n_broken} rows with more or fewer")
    if n_unlabelled := int(rows.unlabelled.sum()):
        raise DataError(name, "a label in each row", f"{n_unlabelled} rows without one")
    if rows.words.any():
        raise _in_columns(rows, "numbers", "texts", rows.words)
    if X.dtype.kind == "f" and rows.bad.any():
        if (missing := np.isnan(X).sum(axis=0)).any():
            raise _in_columns(rows, "a number in each cell", "missing values", missing)
        raise _in_columns(rows, "finite numbers that float64 holds", "others", np.isinf(X).sum(axis=0))
    values, codes = np.unique(_labels(rows.y, name), return_inverse=True)
    return Dataset(
        X, codes.astype(np.int64).reshape(-1), values.tolist(), name, names or None, rows.groups, rows.left_out
    )


def _in_columns(rows: Rows, expected: str, got: str, per_column: IndexArray) -> DataError:
    """The error about samples with a fault in some columns; a note has the names of the columns."""
    bad, names = np.flatnonzero(per_column).tolist(), rows.feature_names
    called = [names[index][:60] if names and rows.announced else f"number {index + 1}" for index in bad]
    n, d = rows.X.shape
    each = [f"{name} ({per_column[index]} of {n} samples)" for name, index in zip(called, bad, strict=True)]
    found = f"{got} in {len(bad)} of {d} features: {listed(each)}"
    error = DataError(rows.name, expected, found, text=f"{rows.name}: expected {expected}, got {found}")
    return with_names(error, [names[index] for index in bad]) if names else error


def _labels(y: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if y.dtype.kind == "f":
        if n_missing := int((~np.isfinite(y)).sum()):
            raise DataError(name, "a label in each row", f"{n_missing} rows without one")
        if (y == np.floor(y)).all():
            if (np.abs(y) >= 2**63).any():
                raise DataError(name, "labels within int64", "labels beyond")
            return y.astype(np.int64)
    if y.dtype.kind in "iu":
        return y
    labels = y.tolist()
    if any(isinstance(label, bytes) for label in labels):
        raise DataError(name, "strings or integers as labels", "bytes")
    texts = [str(label) for label in labels]
    whole = whole_numbers(texts)
    return np.array(texts, dtype=str) if whole is None else np.array(whole, dtype=np.int64)


def load_dataset(source: str, *, label: str = "", group: str = "", features: Sequence[str] = ()) -> Dataset:
    """Load a data set by name, or from a file."""
    if label and (source == "digits" or source.startswith("openml:")):
        raise ConfigError("label", f"none with {source[:80]}", label[:80])
    if source == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        # Grey values 0..16; as bytes they are hashed in exact integer arithmetic.
        X = bunch.data.astype(np.uint8)
        return Dataset(X, bunch.target.astype(np.int64), list(range(10)), "digits", tuple(bunch.feature_names))
    if source.startswith("openml:"):
        return _openml(source)
    if ending(Path(source)) not in ENDINGS:
        expected = f"digits, openml:ID or the path of a {_ENDINGS} file"
        raise ConfigError("dataset", expected, repr(Path(source).name[:80]))
    path = _existing(source)
    if path is None:
        raise ConfigError("dataset", f"a file {os.path.abspath(source)[:500]}", "no such file")
    return checked(read_rows(path, label, group, features))


def full_text(error: BaseException) -> str:
    """An error's message with its notes, in one line: for this machine's own log."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def _existing(source: str) -> Path | None:
    """The file of this name, None without one; a bad name is no error."""
    try:
        path = Path(source).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a NUL
        return None


def _openml(source: str) -> Dataset:
    from sklearn.datasets import fetch_openml, get_data_home

    number = source.removeprefix("openml:")
    if not (number.isascii() and number.isdigit()):
        raise ConfigError("dataset", "openml: and the number of a data set", repr(source[:200]))
    try:
        bunch = fetch_openml(data_id=int(number), as_frame=False, parser="liac-arff", n_retries=1, delay=1.0)
    except OSError as error:  # URLError and every other failure of the network
        expected = f"openml.org within reach, or a data set that a run with a network left in {get_data_home()}"
        raise DataError(source, expected, type(error).__name__) from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(source, "a data set that scikit-learn reads", f"{type(error).__name__}: {error}") from None
    if bunch.target is None:
        raise DataError(source, "a target column", "none")
    X = bunch.data.toarray() if hasattr(bunch.data, "toarray") else bunch.data
    names = tuple(map(str, bunch.feature_names))
    return checked(Rows(source, X, bunch.target, names))


@lru_cache(maxsize=2)
def simulated_dataset(config: RunConfig) -> Dataset:
    """The data set of a simulation, loaded once in a process."""
    group = config.partition_column if config.partitioner in BY_ID else ""
    data = load_dataset(config.dataset, label=config.label, group=group)
    if not len(data.y):
        raise DataError(data.name, "at least one sample", "none")
    return data


@lru_cache(maxsize=2)
def simulated_shares(config: RunConfig, n_parties: int) -> tuple[IndexArray, ...]:
    """The indices of every party's samples in a simulation, dealt once in a process."""
    data = simulated_dataset(config)
    return deal(config, n_parties, data.y, _partition_column(config, data))


def _partition_column(config: RunConfig, data: Dataset) -> npt.NDArray[Any] | None:
    """The column by which `continuous` and the natural-id partitioners split; None for others."""
    if config.partitioner in BY_ID:
        if data.groups is None:
            raise config.refused("partitioner_options", "partition_by: a file's column of ids")
        return data.groups
    if config.partitioner != "continuous":
        return None
    names = data.feature_names or tuple(str(i) for i in range(data.X.shape[1]))
    if config.partition_column not in names:
        error = config.refused("partitioner_options", f"partition_by: a feature of {data.name}")
        raise with_names(error, names)
    return data.X[:, names.index(config.partition_column)].astype(np.float64)


def simulated_share(config: RunConfig, party: int, n_parties: int) -> Share:
    """The share of the party with index `party` in the run's data set."""
    data = simulated_dataset(config)
    test = held_out(len(data.y), config.test_fraction, config.split_seed)
    return data.share(simulated_shares(config, n_parties)[party], test)


def n_training(config: RunConfig) -> int:
    """Number of samples of a simulation's data set that are not held out."""
    n = len(simulated_dataset(config).y)
    return n - int(held_out(n, config.test_fraction, config.split_seed).sum())


def pooled_training(
    config: RunConfig, n_parties: int, parties: Collection[int] | None = None
) -> tuple[npt.NDArray[Any], IndexArray]:
    """The training samples of all parties, or of some `parties`, as if one party had them, and their class codes."""
    data = simulated_dataset(config)
    is_train = ~held_out(len(data.y), config.test_fraction, config.split_seed)
    shares = enumerate(simulated_shares(config, n_parties))
    chosen = [share[is_train[share]] for party, share in shares if parties is None or party in parties]
    train = np.sort(np.concatenate([np.zeros(0, np.int64), *chosen]))
    return data.X[train], data.y[train]


def own_share(node: NodeConfig, features: Sequence[str] = ()) -> Share:
    """The samples of an open party: a faulty row refuses the file, and its index decides if a row is held out."""
    data = checked(read_rows(_own_file(node), node.label, features=features))
    return data.share(np.arange(len(data.y)), held_out(len(data.y), node.test_fraction, node.split_seed))


def private_share(node: NodeConfig, features: Sequence[str] = ()) -> Share:
    """The samples of a private party: every row is read by itself, and no row decides about other rows.

    Faulty rows stay in the share, with NaN for a value that is no number; `federated.samples` leaves them out. Samples
    are held out by their content, and only if results on them may leave the party.
    """
    rows = read_rows(_own_file(node), node.label, features=features, row_wise=True)
    X, y = rows.X, rows.y
    test = held_out_by_content(X, y, node.test_fraction if node.evaluate else 0.0, node.split_seed)
    return Share(X[~test], y[~test], X[test], y[test], rows.left_out)


def private_width(node: NodeConfig, features: Sequence[str] = ()) -> int:
    """The number of features that `private_share` would find, from the head of the file alone."""
    path = _own_file(node)
    width = read_width(path, node.label)
    try:
        return read_width(path, node.label, features) if features else width
    except DataError as error:
        hidden = DataError(path.name, "the run's features among its columns", "not all")
        hidden.add_note(full_text(error))
        raise hidden from None


def _own_file(node: NodeConfig) -> Path:
    """The path of the party's file, which exists and has a known ending."""
    path, name = _existing(node.data_path), repr(Path(node.data_path).name[:80])
    if path is None:
        raise ConfigError("node-config data-path", f"a file {name}", "no such file")
    if ending(path) not in ENDINGS:
        raise ConfigError("node-config data-path", f"a {_ENDINGS} file", name)
    return path
