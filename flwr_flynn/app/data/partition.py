"""The two held-out rules, and flwr-datasets' partitioners over indices and labels.

All are rules on samples, the same in every process of a run. In simulations and open files a sample's index, its class
and the split seed decide; in private files its content, since its index depends on other samples.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.row_wise import meaning

if TYPE_CHECKING:
    from flwr_flynn.app.config import RunConfig

IndexArray = npt.NDArray[np.int64]

_WIRING = {
    "iid": ("IidPartitioner", "num_partitions"),
    "dirichlet": ("DirichletPartitioner", "num_partitions partition_by alpha min_partition_size self_balancing seed"),
    "inner-dirichlet": ("InnerDirichletPartitioner", "partition_sizes partition_by alpha seed"),
    "pathological": (
        "PathologicalPartitioner",
        "num_partitions partition_by num_classes_per_partition class_assignment_mode seed",
    ),
    "shard": (
        "ShardPartitioner",
        "num_partitions partition_by num_shards_per_partition shard_size keep_incomplete_shard seed",
    ),
    "distribution": (
        "DistributionPartitioner",
        "distribution_array num_partitions num_unique_labels_per_partition partition_by "
        "preassigned_num_samples_per_label seed",
    ),
    "continuous": ("ContinuousPartitioner", "num_partitions partition_by strictness seed"),
    "linear": ("LinearPartitioner", "num_partitions"),
    "square": ("SquarePartitioner", "num_partitions"),
    "exponential": ("ExponentialPartitioner", "num_partitions"),
    "size": ("SizePartitioner", "partition_sizes"),
    "natural-id": ("NaturalIdPartitioner", "partition_by"),
    "grouped-natural-id": ("GroupedNaturalIdPartitioner", "partition_by group_size mode sort_unique_ids"),
}
"""Classes of flwr-datasets and their arguments (see `_ARGUMENTS`), by the partitioner's name in the run config."""

PARTITIONERS = tuple(_WIRING)
BY_ID = ("natural-id", "grouped-natural-id")
BY_COLUMN = ("continuous", *BY_ID)
"""Partitioners that split by a column other than the label."""

CLASS_ASSIGNMENTS = ("random", "deterministic", "first-deterministic")
GROUP_MODES = ("allow-smaller", "allow-bigger", "drop-reminder", "strict")

_STREAM_TEST, _STREAM_ORDER, _STREAM_PARTITIONER = 1, 2, 3


def splitmix64(x: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) at the counters `x`: one 64-bit hash for each.

    Integer arithmetic modulo 2**64 only, so the result is the same on every machine and with every NumPy.

    >>> [hex(int(v)) for v in splitmix64([0, 1])]
    ['0xe220a8397b1dcdaf', '0x910a2dec89025cc1']
    """
    z = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _sample_hash(n: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of (seed, stream, i) for every i < n."""
    key = splitmix64(splitmix64([seed]) ^ np.uint64(stream))
    return splitmix64(np.arange(n, dtype=np.uint64) ^ key)


def held_out(n: int, fraction: float, split_seed: int) -> npt.NDArray[np.bool_]:
    """Mark the samples to hold out: those whose hash falls into the first `fraction` of all 64-bit numbers."""
    # 53 bits are exact in a float64, so the comparison rounds nothing.
    return (_sample_hash(n, split_seed, _STREAM_TEST) >> np.uint64(11)) < np.uint64(math.ceil(fraction * 2**53))


def deal(
    config: RunConfig, n_parties: int, codes: IndexArray, by: npt.NDArray[Any] | None = None
) -> tuple[IndexArray, ...]:
    """Deal samples out to parties, held-out ones like the rest.

    They are shuffled first: some partitioners hand out runs of neighbours, and files are often sorted by class.
    """
    n = len(codes)
    seed = int(splitmix64(splitmix64([config.split_seed]) ^ np.uint64(_STREAM_PARTITIONER))[0] >> np.uint64(32))
    order = np.argsort(_sample_hash(n, config.split_seed, _STREAM_ORDER), kind="stable")
    columns = {"index": order, "label": codes[order]} | ({} if by is None else {"by": by[order]})
    try:
        with warnings.catch_warnings():
            # About samples left out and draws repeated; a run's report says how many samples are dealt.
            warnings.simplefilter("ignore")
            partitioner = _partitioner(_Deal(config, n_parties, n, len(np.unique(codes)), seed))
            # Indices and labels only: the features stay one NumPy array.
            datasets = import_module("datasets")
            partitioner.dataset = datasets.Dataset.from_dict(columns).with_format("numpy")
            n_shares = partitioner.num_partitions
            if n_shares > n_parties:
                raise ValueError(f"it makes {n_shares} shares")
            shares = [partitioner.load_partition(i)["index"] for i in range(n_shares)]
    except ImportError as error:
        needed = error.name or "flwr-datasets"
        raise ConfigError(needed, "flwr-flynn[simulation]", "no such package") from None
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        expected = f"one that deals {n} samples to {n_parties} parties ({reason})"
        raise ConfigError("run-config partitioner", expected, config.partitioner) from None
    empty = [np.empty(0)] * (n_parties - n_shares)
    return tuple(np.asarray(share, dtype=np.int64) for share in shares + empty)


def held_out_by_content(
    X: npt.NDArray[Any], y: npt.NDArray[Any], fraction: float, split_seed: int
) -> npt.NDArray[np.bool_]:
    """Mark the samples to hold out, each by a digest of its own values, as float64, and the meaning of its label.

    The rule of private parties: by `held_out`, one sample less would move all after it.
    """
    if not fraction:
        return np.zeros(len(y), bool)
    key, most = str(split_seed).encode(), fraction * 2.0**64
    digests = (
        hashlib.blake2b(np.asarray(row, "<f8").tobytes() + _label_bytes(label), digest_size=8, key=key).digest()
        for row, label in zip(X, y.tolist(), strict=True)
    )
    return np.fromiter((int.from_bytes(digest, "big") < most for digest in digests), bool, len(y))


def _label_bytes(label: Any) -> bytes:
    # By its meaning: one missing label makes floats of all integers, and 3 becomes 3.0.
    return str(meaning(label)).removesuffix(".0").encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class _Deal:
    """The facts that the arguments of a partitioner follow from."""

    config: RunConfig
    n_parties: int
    n_samples: int
    n_classes: int
    seed: int

    def sizes(self) -> list[int]:
        """`partition-sizes`, one for each party, or equal ones."""
        equal = [len(part) for part in np.array_split(np.arange(self.n_samples), self.n_parties)]
        sizes = self.config.sizes() or equal
        if len(sizes) != self.n_parties:
            raise self.config.refused(
                "partition_sizes", f"{self.n_parties} sizes, one for each party", f"{len(sizes)} sizes"
            )
        return sizes

    def shards(self) -> int | None:
        """`shards-per-party`, if there are enough samples."""
        shards, most = self.config.shards_per_party, self.n_samples // self.n_parties
        if shards * self.n_parties > self.n_samples:
            raise self.config.refused("shards_per_party", f"at most {most}")
        return shards or None

    def log_normal(self) -> npt.NDArray[np.float64]:
        """Log-normal sizes, a row for each class."""
        if self.n_parties % self.n_classes:
            raise ValueError(f"the number of parties must be a multiple of the number of classes, {self.n_classes}")
        n_draws = self.n_parties * self.config.classes_per_party
        draws = np.random.default_rng(self.seed).lognormal(0.0, self.config.distribution_sigma, n_draws)
        return draws.reshape(self.n_classes, -1)


_ARGUMENTS: dict[str, Callable[[_Deal], Any]] = {
    "num_partitions": lambda deal: deal.n_parties,
    "seed": lambda deal: deal.seed,
    "num_classes_per_partition": lambda deal: deal.config.classes_per_party,
    "num_unique_labels_per_partition": lambda deal: deal.config.classes_per_party,
    "class_assignment_mode": lambda deal: deal.config.class_assignment,
    "num_shards_per_partition": _Deal.shards,
    "shard_size": lambda deal: deal.config.shard_size or None,
    "distribution_array": _Deal.log_normal,
    "preassigned_num_samples_per_label": lambda deal: deal.config.preassigned,
    "partition_by": lambda deal: "by" if deal.config.partitioner in BY_COLUMN else "label",
    "mode": lambda deal: deal.config.group_mode,
    "sort_unique_ids": lambda deal: True,
    "partition_sizes": _Deal.sizes,
}
"""Arguments of flwr-datasets' partitioners that are no setting of the same name."""


def _partitioner(deal: _Deal) -> Any:
    """The flwr-datasets partitioner that the run asks for."""
    name, arguments = _WIRING[deal.config.partitioner]
    given = {
        each: _ARGUMENTS[each](deal) if each in _ARGUMENTS else getattr(deal.config, each) for each in arguments.split()
    }
    return getattr(import_module("flwr_datasets.partitioner"), name)(**given)
