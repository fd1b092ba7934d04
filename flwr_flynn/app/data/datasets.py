"""The data set of a simulation, and the share of each party.

A sample and the split seed decide if it is held out, as at a party (see `held_out`), and
not the party. A share is a list of indices into one data set, by the partitioners of
flwr-datasets (`deal`). So the federated model can equal the pooled one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._types import Array, Integers, Mask
from flwr_flynn.app.data.held_out import KNOWN, HeldOut, row_keys
from flwr_flynn.app.data.own_file import coded_labels, existing, labels_of, opened
from flwr_flynn.app.data.source import ENDINGS, Reading, ending
from flwr_flynn.app.run_config import NATURAL, RunConfig
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.portable import INCREMENT, mix
from flwr_flynn.tables.table import Table

_NONE = HeldOut(0.0, KNOWN)
_STREAM_ORDER = 2
_STREAM_PARTITIONER = 3


def splitmix64(x: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each counter in `x`.

    This is SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): integer arithmetic modulo
    2**64 alone, so the result is the same on every machine and with every NumPy.

    >>> [hex(int(v)) for v in splitmix64([0, 1])]
    ['0xe220a8397b1dcdaf', '0x910a2dec89025cc1']
    """
    counters = np.asarray(x, np.uint64) + INCREMENT
    return np.asarray(mix.py_func(counters))  # type: ignore[no-untyped-call]


def _sample_hash(n: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of (seed, stream, i) for i from 0 below n."""
    return splitmix64(
        np.arange(n, dtype=np.uint64)
        ^ splitmix64(splitmix64([seed]) ^ np.uint64(stream))
    )


def deal(
    config: RunConfig, n_parties: int, codes: Integers, by: Array | None = None
) -> tuple[Integers, ...]:
    """Indices of the samples of each party, by the run's partitioner.

    Held-out samples are dealt like the rest. Samples are shuffled first: some
    partitioners deal runs of neighbours, and files are often sorted by class.
    """
    n = len(codes)
    order = np.argsort(_sample_hash(n, config.split_seed, _STREAM_ORDER), kind="stable")
    given = config.options()
    given.pop("partition_by", None)
    columns = {"index": order, "label": codes[order]}
    if by is not None:
        columns["by"] = by[order]
    try:
        with warnings.catch_warnings():
            # About samples that are left out, and repeated draws; the report has the
            # number of dealt samples.
            warnings.simplefilter("ignore")
            partitioner = _partitioner(config, n_parties, given, columns)
            n_shares = partitioner.num_partitions
            if n_shares > n_parties:
                raise ValueError(f"it makes {n_shares} shares")
            shares = [partitioner.load_partition(i)["index"] for i in range(n_shares)]
    except ImportError as error:
        needed = error.name or "flwr-datasets"
        raise ConfigError(
            needed,
            "flwr-flynn[simulation]",
            "none; pip install 'flwr-flynn[simulation]'",
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        expected = (
            f"one that deals {n} samples to {n_parties} parties "
            f"({' '.join(str(error).split())})"
        )
        raise ConfigError(
            "run-config partitioner", expected, config.partitioner
        ) from None
    shares += [()] * (n_parties - n_shares)
    return tuple(np.asarray(share, dtype=np.int64) for share in shares)


def _partitioner(
    config: RunConfig,
    n_parties: int,
    given: dict[str, object],
    columns: dict[str, Array],
) -> Any:
    """The run's partitioner of flwr-datasets, over indices and labels alone."""
    name = "".join(word.capitalize() for word in config.partitioner.split("-"))
    make = getattr(import_module("flwr_datasets.partitioner"), f"{name}Partitioner")
    order = columns["index"]
    _check_options(given, n_parties, len(order))
    stream = splitmix64([config.split_seed]) ^ np.uint64(_STREAM_PARTITIONER)
    defaults = {
        "num_partitions": n_parties,
        "seed": int(splitmix64(stream)[0] >> np.uint64(32)),
        "alpha": config.alpha,
        "partition_by": "label",
        "min_partition_size": 0,  # an empty party is a valid party
        "num_classes_per_partition": 2,
        "num_shards_per_partition": 2,
        "partition_sizes": [*map(len, np.array_split(order, n_parties))],
    }
    if "by" in columns:
        defaults["partition_by"] = "by"
    if "shard_size" in given:
        defaults["num_shards_per_partition"] = None
    known = signature(make).parameters
    partitioner = make(
        **{key: defaults[key] for key in defaults if key in known} | given
    )
    dataset = import_module("datasets").Dataset.from_dict(columns)
    partitioner.dataset = dataset.with_format("numpy")
    return partitioner


def _check_options(given: dict[str, object], n_parties: int, n: int) -> None:
    """Refuse options with which a partitioner would not deal the samples as asked."""
    for key, option in given.items():
        if isinstance(option, int) and option > n:
            raise ValueError(f"{key} is more than the number of samples")
    sizes = given.get("partition_sizes")
    if isinstance(sizes, list) and len(sizes) != n_parties:
        raise ValueError(f"partition_sizes has {len(sizes)} sizes")


@dataclass(frozen=True)
class Dataset:
    """Samples with their classes."""

    X: Array | Table  # (n, d) finite numbers, or a table
    y: Integers
    classes: list[str | int]
    name: str
    feature_names: tuple[str, ...] | None = None
    groups: Array | None = None
    test: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))  # held out

    def share(self, indices: Integers, test: Mask) -> Samples:
        """The samples at `indices`, with those of the (n,) mask `test` held out."""
        # In ascending order, so that neighbours in memory stay neighbours.
        indices = np.sort(indices)
        train = indices[~test[indices]]
        held = indices[test[indices]]
        labels = labels_of(self.classes, self.y)
        return Samples(self.X[train], labels[train], self.X[held], labels[held])


def load_dataset(
    source: str,
    *,
    label: str = "",
    group: str = "",
    rule: HeldOut = _NONE,
) -> Dataset:
    """Load a data set by name, or from a file, with the samples that a rule holds out."""
    if label and source == "digits":
        raise ConfigError("label", "none with digits", label[:80])
    if source == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        # Grey values 0..16; as bytes they are hashed in exact integer arithmetic.
        X = bunch.data.astype(np.uint8)
        y = bunch.target.astype(np.int64)
        names = tuple(bunch.feature_names)
        # The rows are those of a file with these columns.
        test = rule.mask(row_keys([*X.T, y], None, [*names, "label"]))
        return Dataset(X, y, [*range(10)], "digits", names, None, test)
    if ending(Path(source)) not in ENDINGS:
        expected = f"digits, or the path of a file that ends in {', '.join(ENDINGS)}"
        raise ConfigError("dataset", expected, repr(Path(source).name[:80]))
    file = opened(
        existing(source, "dataset", os.path.abspath(source)[:500]),
        Reading(label, group, held_out=rule),
    )
    X, y, groups, test = file.whole()  # a faulty row refuses the file
    classes, codes = coded_labels(y, file.name)
    own_names = None
    if file.is_named:
        own_names = file.names
    return Dataset(X, codes, classes, file.name, own_names, groups, test)


@lru_cache(maxsize=2)
def simulated_dataset(config: RunConfig) -> Dataset:
    """The data set of a simulation, loaded once in a process."""
    secret = KNOWN
    if config.split_seed:
        secret += str(config.split_seed).encode()
    dataset = load_dataset(
        config.dataset,
        label=config.label,
        group=config.partition_column,
        rule=HeldOut(config.test_fraction, secret, has_ids=False),
    )
    if not len(dataset.y):
        raise DataError(dataset.name, "at least one sample", "none")
    return dataset


@lru_cache(maxsize=2)
def simulated_shares(config: RunConfig, n_parties: int) -> tuple[Integers, ...]:
    """The indices of every party's samples in a simulation, dealt once in a process."""
    dataset = simulated_dataset(config)
    if config.partitioner == NATURAL and dataset.groups is None:
        raise config.refused(
            "partitioner_options", "partition_by: a file's column of ids"
        )
    return deal(config, n_parties, dataset.y, dataset.groups)


def simulated_share(config: RunConfig, party: int, n_parties: int) -> Samples:
    """The share of the party with index `party` in the run's data set."""
    dataset = simulated_dataset(config)
    return dataset.share(simulated_shares(config, n_parties)[party], dataset.test)


def n_training(config: RunConfig) -> int:
    """Number of samples of a simulation's data set that are not held out."""
    return int((~simulated_dataset(config).test).sum())


def training_rows(config: RunConfig, n_parties: int) -> list[Integers]:
    """Rows of the data set that each party trains with."""
    is_train = ~simulated_dataset(config).test
    return [share[is_train[share]] for share in simulated_shares(config, n_parties)]


def pooled_training(
    config: RunConfig, rows: Sequence[Integers]
) -> tuple[Array | Table, Integers]:
    """The training samples in some rows as if one party had them, and their codes."""
    dataset = simulated_dataset(config)
    train = np.sort(np.concatenate([np.zeros(0, np.int64), *rows]))
    return dataset.X[train], dataset.y[train]
