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

import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.config import NodeConfig, RunConfig
from flwr_flynn.app.data.partition import BY_ID, IndexArray, deal, held_out
from flwr_flynn.app.data.readers import Dataset, Share, checked, read_npz, read_table
from flwr_flynn.errors import ConfigError, DataError, with_names

__all__ = [
    "Dataset",
    "Share",
    "full_text",
    "load_dataset",
    "own_share",
    "pooled_training",
    "simulated_dataset",
    "simulated_share",
    "simulated_shares",
]

# -------- reading data


def load_dataset(
    source: str,
    *,
    label: str = "",
    group: str = "",
    config: RunConfig | None = None,
    features: Sequence[str] = (),
) -> Dataset:
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
    features : sequence of str, optional
        Of a file: the columns to take, in this order; NPZ files name those of ``X`` in an array ``feature_names``, or
        are taken as they are. Not given: all that are there.

    Raises
    ------
    ConfigError
        Unknown name, missing file, missing package (with the extra that brings it).
    DataError
        Columns that are not there or not numbers, missing or infinite values. A file without a header has a record
        where the names of the columns should be: messages give numbers and positions, or the names in `features`, which
        may travel; other names are a note of the error (`full_text`), for the log of the machine that has the file.
    """
    if label and (source in ("digits", "synthetic") or source.startswith("openml:")):
        raise ConfigError(f"label: expected none, as {source[:200]} has labels of its own; got {label[:80]!r}")
    if source == "digits":
        return _digits()
    if source == "synthetic":
        return _synthetic(config or RunConfig())
    if source.startswith("openml:"):
        return _openml(source)
    readers = {".npz": read_npz, ".csv": read_table, ".parquet": read_table}
    suffix = Path(source).suffix
    if suffix not in readers:
        raise ConfigError(
            "dataset: expected digits, synthetic, openml:ID or the path of a .csv, .parquet or .npz file, "
            f"got {Path(source).name[:80]!r}"
        )
    path = _existing(source)
    if path is None:
        raise ConfigError(f"dataset: no such file: {os.path.abspath(source)[:500]}")
    return readers[suffix](path, label, group, tuple(features))


def full_text(error: BaseException) -> str:
    """An error's message with its notes, in one line: for this machine's own log."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


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
    return checked(X, bunch.target, source, names)


# -------- what the parties hold


@lru_cache(maxsize=2)
def _loaded(config: RunConfig) -> Dataset:
    group = config.partition_by if config.partitioner in BY_ID else ""
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
    if config.partitioner in BY_ID:
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
        raise with_names(error, names)
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


def own_share(node: NodeConfig, features: Sequence[str] = ()) -> Share:
    """A deployed party's own file, its points held out by the same rule on the row's number.

    Parameters
    ----------
    node : NodeConfig
    features : sequence of str, optional
        What the run announces, see `load_dataset`.

    Raises
    ------
    ConfigError, DataError
        As `load_dataset`. The message names the file without its folder: it travels to the server.
    """
    if _existing(node.data_path) is None:
        raise ConfigError(f"node-config data-path: no such file: {Path(node.data_path).name[:80]!r}")
    data = load_dataset(node.data_path, label=node.label, features=features)
    return data.share(np.arange(len(data.y)), held_out(len(data.y), node.test_fraction, node.split_seed))
