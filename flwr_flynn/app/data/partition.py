"""The held-out rule of simulations, and the partitioners of flwr-datasets over indices and labels.

The rule gives the same result in every process of a run: the index of a sample and the split seed decide. Of a party's
file the rows themselves decide, see `held_out`.
"""

from __future__ import annotations

import math
import warnings
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_settings import BY_COLUMN
from flwr_flynn.errors import ConfigError

IndexArray = npt.NDArray[np.int64]


_STREAM_TEST, _STREAM_ORDER, _STREAM_PARTITIONER = 1, 2, 3


def splitmix64(x: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) at the counters `x`: a 64-bit hash for each.

    Integer arithmetic modulo 2**64 alone, so the result is the same on every machine and with every NumPy.

    >>> [hex(int(v)) for v in splitmix64([0, 1])]
    ['0xe220a8397b1dcdaf', '0x910a2dec89025cc1']
    """
    z = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _sample_hash(n: int, seed: int, stream: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of (seed, stream, i) for n numbers i from `first` on."""
    key = splitmix64(splitmix64([seed]) ^ np.uint64(stream))
    return splitmix64(np.arange(first, first + n, dtype=np.uint64) ^ key)


def held_out(n: int, fraction: float, split_seed: int, first: int = 0) -> npt.NDArray[np.bool_]:
    """(n,) mask of the held-out samples from index `first` on, by a hash in the first `fraction` of 64-bit numbers."""
    # 53 bits are exact in a float64, so the comparison rounds nothing.
    return (_sample_hash(n, split_seed, _STREAM_TEST, first) >> np.uint64(11)) < np.uint64(math.ceil(fraction * 2**53))


def deal(
    config: RunConfig, n_parties: int, codes: IndexArray, by: npt.NDArray[Any] | None = None
) -> tuple[IndexArray, ...]:
    """Indices of the samples of each party, by the run's partitioner; held-out samples are dealt like the rest.

    Samples are shuffled first: some partitioners deal runs of neighbours, and files are often sorted by class.
    """
    n = len(codes)
    seed = int(splitmix64(splitmix64([config.split_seed]) ^ np.uint64(_STREAM_PARTITIONER))[0] >> np.uint64(32))
    order = np.argsort(_sample_hash(n, config.split_seed, _STREAM_ORDER), kind="stable")
    columns = {"index": order, "label": codes[order]} | ({} if by is None else {"by": by[order]})
    try:
        with warnings.catch_warnings():
            # About samples that are left out, and repeated draws; the report has the number of dealt samples.
            warnings.simplefilter("ignore")
            name = "".join(word.capitalize() for word in config.partitioner.split("-"))
            make = getattr(import_module("flwr_datasets.partitioner"), f"{name}Partitioner")
            defaults = _defaults(n_parties, n, len(np.unique(codes)), seed) | {"alpha": config.alpha}
            defaults["partition_by"] = "by" if config.partitioner in BY_COLUMN else "label"
            given = {key: value for key, value in config.options().items() if key != "partition_by"}
            if too_large := [key for key, value in given.items() if isinstance(value, int) and value > n]:
                raise ValueError(f"{too_large[0]} is more than the number of samples")
            if isinstance(sizes := given.get("partition_sizes"), list) and len(sizes) != n_parties:
                raise ValueError(f"partition_sizes has {len(sizes)} sizes")
            if config.partitioner == "distribution" and n_parties % (n_classes := len(np.unique(codes))):
                raise ValueError(f"the number of parties must be a multiple of the number of classes, {n_classes}")
            if "shard_size" in given:
                defaults["num_shards_per_partition"] = None
            arguments = {key: value for key, value in defaults.items() if key in signature(make).parameters} | given
            partitioner = make(**arguments)
            # Indices and labels only: the features stay one NumPy array.
            datasets = import_module("datasets")
            partitioner.dataset = datasets.Dataset.from_dict(columns).with_format("numpy")
            n_shares = partitioner.num_partitions
            if n_shares > n_parties:
                raise ValueError(f"it makes {n_shares} shares")
            shares = [partitioner.load_partition(i)["index"] for i in range(n_shares)]
    except ImportError as error:
        needed = error.name or "flwr-datasets"
        raise ConfigError(needed, "flwr-flynn[simulation]", "none; pip install 'flwr-flynn[simulation]'") from None
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        expected = f"one that deals {n} samples to {n_parties} parties ({reason})"
        raise ConfigError("run-config partitioner", expected, config.partitioner) from None
    empty = [np.empty(0)] * (n_parties - n_shares)
    return tuple(np.asarray(share, dtype=np.int64) for share in shares + empty)


def _defaults(n_parties: int, n_samples: int, n_classes: int, seed: int) -> dict[str, Any]:
    """Default arguments of all partitioners of flwr-datasets together, which `partitioner-options` can override."""
    sizes = n_classes, -(-2 * n_parties // n_classes)  # of two classes at each party, a row for each class
    return {
        "num_partitions": n_parties,
        "seed": seed,
        "min_partition_size": 0,  # an empty party is a valid party
        "num_classes_per_partition": 2,
        "num_shards_per_partition": 2,
        "strictness": 1.0,
        "group_size": 5,
        "mode": "allow-smaller",
        "sort_unique_ids": True,
        "partition_sizes": [len(part) for part in np.array_split(np.arange(n_samples), n_parties)],
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 5,
        "distribution_array": np.random.default_rng(seed).lognormal(0.0, 2.0, sizes),
    }
