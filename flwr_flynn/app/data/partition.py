"""Which point goes where: the held-out rule, and flwr-datasets' partitioners over indices and labels.

Both are rules on points, made to be the same on every machine and in every process of a run: no file, no
feature and no state is involved, only a point's index, its class and the split seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.app.config import RunConfig
from flwr_flynn.errors import ConfigError

IndexArray = npt.NDArray[np.int64]

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


def _point_hash(n: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of (seed, stream, i) for every i < n."""
    key = splitmix64(splitmix64([seed]) ^ np.uint64(stream))
    return splitmix64(np.arange(n, dtype=np.uint64) ^ key)


def held_out(n: int, fraction: float, split_seed: int) -> npt.NDArray[np.bool_]:
    """Which of n points are held out: those whose hash falls into the first `fraction` of all 64-bit numbers.

    Parameters
    ----------
    n : int
        Number of points.
    fraction : float
        Share of the points to hold out, from 0 to 1 (on average: every point is decided on its own).
    split_seed : int
        Another seed holds out other points.

    Returns
    -------
    bool ndarray of shape (n,)

    Examples
    --------
    >>> mask = held_out(1797, fraction=0.2, split_seed=0)
    >>> bool((mask[:100] == held_out(100, fraction=0.2, split_seed=0)).all())
    True
    """
    # 53 bits are exact in a float64, so the comparison rounds nothing.
    return (_point_hash(n, split_seed, _STREAM_TEST) >> np.uint64(11)) < np.uint64(math.ceil(fraction * 2**53))


def deal(
    config: RunConfig, n_parties: int, codes: IndexArray, by: npt.NDArray[Any] | None = None
) -> tuple[IndexArray, ...]:
    """Deal points out to parties.

    Held-out points are dealt out like the others; `held_out` tells them apart. As `FederatedDataset` does,
    the points are shuffled first: some partitioners hand out runs of neighbours, and files are often sorted
    by class.

    Parameters
    ----------
    config : RunConfig
        The partitioner and its parameters.
    n_parties : int
        Number of parties.
    codes : int64 ndarray of shape (n,)
        The points' classes, 0 to L - 1, each there at least once.
    by : ndarray of shape (n,), optional
        The column that `continuous` and the natural-id partitioners split by.

    Returns
    -------
    tuple of n_parties int64 ndarrays
        Disjoint indices of points. Some may be empty, and some partitioners leave points out.

    Raises
    ------
    ConfigError
        Where the partitioner cannot do what it was asked to do, or flwr-datasets is not installed.

    Examples
    --------
    >>> shares = deal(RunConfig(partitioner="iid"), 4, np.arange(12) % 3)
    >>> [len(share) for share in shares]
    [3, 3, 3, 3]
    """
    n = len(codes)
    order = np.argsort(_point_hash(n, config.split_seed, _STREAM_ORDER), kind="stable")
    columns = {"index": order, "label": codes[order]} | ({} if by is None else {"by": by[order]})
    try:
        with warnings.catch_warnings():
            # About points left out and draws repeated; a run's report says how many points are dealt.
            warnings.simplefilter("ignore")
            partitioner = _partitioner(config, n_parties, n, len(np.unique(codes)))
            # Indices and labels only: the features stay one NumPy array.
            datasets = import_module("datasets")
            partitioner.dataset = datasets.Dataset.from_dict(columns).with_format("numpy")
            n_shares = partitioner.num_partitions
            if n_shares > n_parties:
                raise ValueError(f"it makes {n_shares} shares")
            shares = [partitioner.load_partition(i)["index"] for i in range(n_shares)]
    except ImportError as error:
        raise ConfigError(
            f"a simulation needs {error.name or 'flwr-datasets'}: pip install 'flwr-flynn[simulation]'"
        ) from None
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"run-config partitioner: {config.partitioner} cannot deal {n} points to {n_parties} parties: {reason}"
        ) from None
    empty = [np.empty(0)] * (n_parties - n_shares)
    return tuple(np.asarray(share, dtype=np.int64) for share in shares + empty)


def _partitioner(config: RunConfig, n_parties: int, n_points: int, n_classes: int) -> Any:
    """The flwr-datasets partitioner that the run asks for."""
    module = import_module("flwr_datasets.partitioner")
    c = config
    seed = int(splitmix64(splitmix64([c.split_seed]) ^ np.uint64(_STREAM_PARTITIONER))[0] >> np.uint64(32))
    by_label = {"partition_by": "label", "seed": seed}

    def sizes() -> list[int]:
        given = c.sizes() or [len(part) for part in np.array_split(np.arange(n_points), n_parties)]
        if len(given) != n_parties:
            raise ValueError(f"partition-sizes gives {len(given)} sizes")
        return given

    def shard() -> Any:
        if c.shards_per_party * n_parties > n_points:
            raise ValueError(f"expected at most {n_points // n_parties} shards-per-party, got {c.shards_per_party}")
        return module.ShardPartitioner(
            n_parties,
            num_shards_per_partition=c.shards_per_party or None,
            shard_size=c.shard_size or None,
            keep_incomplete_shard=c.keep_incomplete_shard,
            **by_label,
        )

    def distribution() -> Any:
        if n_parties % n_classes:
            raise ValueError(f"the number of parties must be a multiple of the number of classes, {n_classes}")
        draws = np.random.default_rng(seed).lognormal(0.0, c.distribution_sigma, n_parties * c.classes_per_party)
        return module.DistributionPartitioner(
            draws.reshape(n_classes, -1),
            n_parties,
            c.classes_per_party,
            preassigned_num_samples_per_label=c.preassigned,
            **by_label,
        )

    builders: dict[str, Callable[[], Any]] = {
        "iid": lambda: module.IidPartitioner(n_parties),
        "linear": lambda: module.LinearPartitioner(n_parties),
        "square": lambda: module.SquarePartitioner(n_parties),
        "exponential": lambda: module.ExponentialPartitioner(n_parties),
        "size": lambda: module.SizePartitioner(sizes()),
        "dirichlet": lambda: module.DirichletPartitioner(
            n_parties,
            alpha=c.alpha,
            min_partition_size=c.min_partition_size,
            self_balancing=c.self_balancing,
            **by_label,
        ),
        "inner-dirichlet": lambda: module.InnerDirichletPartitioner(sizes(), alpha=c.alpha, **by_label),
        "pathological": lambda: module.PathologicalPartitioner(
            n_parties,
            num_classes_per_partition=c.classes_per_party,
            class_assignment_mode=c.class_assignment,
            **by_label,
        ),
        "shard": shard,
        "distribution": distribution,
        "continuous": lambda: module.ContinuousPartitioner(n_parties, "by", c.strictness, seed=seed),
        "natural-id": lambda: module.NaturalIdPartitioner("by"),
        "grouped-natural-id": lambda: module.GroupedNaturalIdPartitioner(
            "by", group_size=c.group_size, mode=c.group_mode, sort_unique_ids=True
        ),
    }
    return builders[c.partitioner]()
