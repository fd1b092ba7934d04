"""Data sets dealt out to parties, from even to extremely skewed.

All partitions are made by flwr-datasets' partitioners, see `app.data.partition`; only
the feature shift, for which it has none, is made here.

>>> parts = deal_out(read("digits"), "Dirichlet 0.1", n_parties=10, seed=0)
>>> len(parts.shares), sum(len(share.y) for share in parts.shares)
(10, 1444)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn import FlyNNClassifier, HashPlan
from flwr_flynn._types import Mask
from flwr_flynn.app.data.datasets import Dataset, deal, load_dataset, splitmix64
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import DataError
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.samples import Samples
from simulations import runner
from simulations.baselines import balanced_accuracy
from simulations.results import Array
from simulations.workers import Workers

QUANTITY = "quantity skew"
SHIFT = "feature shift"
MENDED = "feature shift, standardised"


def pathological(n_classes: int) -> dict[str, Any]:
    """Settings of a split in which each party has samples of so many classes."""
    options = {
        "num_classes_per_partition": n_classes,
        "class_assignment_mode": "first-deterministic",
    }
    return {"partitioner": "pathological", "partitioner_options": json.dumps(options)}


SPLITS: dict[str, dict[str, Any]] = {
    "IID": {"partitioner": "iid"},
    **{
        f"Dirichlet {a:g}": {"partitioner": "dirichlet", "alpha": a}
        for a in (10.0, 1.0, 0.3, 0.1, 0.01)
    },
    "shards": {"partitioner": "shard"},
    "2 classes": pathological(2),
    "1 class": pathological(1),
    QUANTITY: {"partitioner": "size"},
    SHIFT: {"partitioner": "iid"},
    MENDED: {"partitioner": "iid"},
}
"""Settings of `RunConfig` by the name of the split.

"shards": the samples, sorted by class, are cut into two pieces for each party.
"quantity skew": party i of 1, 2, ... has samples in proportion to i squared, and one at
least. "feature shift": IID, but each party's instruments are off, see `shifted`;
"standardised": each party gives its columns mean 0 and deviation 1 by its own training
samples before.
"""

TEST_FRACTION = 0.2

LEAST = 5
"""Fewest held-out samples of a party that can be the worst one: on a single sample
accuracy is 0 or 1."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Samples of the parties of one federation. Labels are class codes.

    Parameters
    ----------
    shares : list of Samples
    n_classes : int
    """

    shares: list[Samples]
    n_classes: int

    def parties(self, **options: Any) -> list[Party]:
        """Parties with these samples and `PartyOptions`, which answer all requests."""
        options["products"] = True
        return [
            party_of(
                share.X,
                share.y,
                X_test=share.X_test,
                y_test=share.y_test,
                name=f"party-{i}",
                **options,
            )
            for i, share in enumerate(self.shares)
        ]

    @cached_property
    def pooled(self) -> Samples:
        """All samples, as if one party held them."""
        X, y, X_test, y_test = (
            np.concatenate([getattr(share, name) for share in self.shares])
            for name in ("X", "y", "X_test", "y_test")
        )
        return Samples(X, y, X_test, y_test)

    @cached_property
    def class_table(self) -> Array:
        """(parties, L) training samples of each class."""
        return np.stack(
            [np.bincount(share.y, minlength=self.n_classes) for share in self.shares]
        )

    def standardised(self) -> Parts:
        """The same parties with features standardised by all training samples, in
        float32.
        """
        mean = self.pooled.X.mean(axis=0, dtype=np.float64)
        deviation = self.pooled.X.std(axis=0, dtype=np.float64)
        deviation[deviation == 0] = 1.0

        def scaled(X: Array) -> Array:
            result: Array = ((X - mean) / deviation).astype(np.float32)
            return result

        return replace(
            self,
            shares=[
                replace(s, X=scaled(s.X), X_test=scaled(s.X_test)) for s in self.shares
            ],
        )

    def for_validation(self, seed: int) -> Parts:
        """The training samples alone, a fifth of them held out; present held-out
        samples are left out.
        """
        shares = []
        outside = held_out(len(self.pooled.y), TEST_FRACTION, seed)
        ends = np.cumsum([len(share.y) for share in self.shares])
        for share, out in zip(self.shares, np.split(outside, ends[:-1]), strict=True):
            shares.append(
                Samples(share.X[~out], share.y[~out], share.X[out], share.y[out])
            )
        return replace(self, shares=shares)

    def right_by_party(self, predicted: Array) -> list[Array]:
        """True where a prediction of the pooled held-out samples is right, for each
        party.
        """
        ends = np.cumsum([len(share.y_test) for share in self.shares])
        return np.split(predicted == self.pooled.y_test, ends[:-1])

    def scores(self, predicted: Array) -> dict[str, float]:
        """Figures for predictions of the pooled held-out samples.

        Returns
        -------
        dict
            ``accuracy`` and ``balanced`` accuracy over all of them; ``worst``, the
            accuracy at the party where it is lowest, of those with `LEAST` or more; nan
            if there are none.
        """
        right = predicted == self.pooled.y_test
        by_party = [
            part.mean() for part in self.right_by_party(predicted) if len(part) >= LEAST
        ]
        balanced = balanced_accuracy(self.pooled.y_test, predicted, self.n_classes)
        worst = float(min(by_party, default=np.nan))
        return {
            "accuracy": float(right.mean()),
            "balanced": float(balanced),
            "worst": worst,
        }


def federated(
    parts: Parts,
    spec: Any,
    where: str | Workers = "process",
    class_weight: str | None = None,
    **options: Any,
) -> tuple[dict[str, Any], runner.Federation]:
    """Run all phases over parties with `PartyOptions`: scores of the held-out samples,
    bytes of a party, rounds.
    """
    n_parties = len(parts.shares)
    about: dict[str, Any] = {
        "classes": range(parts.n_classes),
        "class_weight": class_weight,
    }
    run_options = RunOptions(spec=spec, min_parties=n_parties, **about)
    done = runner.federate(
        run_options, parts.parties(**options), where, show_progress=False
    )
    traffic = done.run.traffic.values()
    up = sum(phase.arrivals.bytes for phase in traffic)
    down = sum(phase.down for phase in traffic)
    spent = {"up": round(up / n_parties), "down": round(down / n_parties)}
    scores = parts.scores(done.model.predict(parts.pooled.X_test))
    return scores | spent | {
        "rounds": done.run.num_rounds,
        "exchanges": len(done.run.traffic),
    }, done


def defaults(
    parts: Parts,
    effort: str = "default",
    where: str | Workers = "process",
    **options: Any,
) -> tuple[dict[str, Any], FlyNNClassifier]:
    """A run with the defaults of `flwr run`: what `federated` returns, and the model."""
    plan = HashPlan(
        parts.pooled.X.shape[1],
        parts.n_classes,
        len(parts.pooled.y),
        "auto",
        effort=effort,
    )
    row, done = federated(parts, plan, where, **options)
    return row, done.model


def source(name: str, folder: Path | None) -> str:
    """A data set for `read`: Digits, or a file of the folder.

    >>> source("letters", Path("sets"))
    'sets/letters.npz'
    """
    if name == "digits":
        return name
    if folder is None:
        raise DataError("--sets", "digits, or --data with other names", name)
    return (folder / f"{name}.npz").as_posix()


def read(source: str, largest: int | None = None, seed: int = 0) -> Dataset:
    """A data set with class codes for labels; if it is larger than asked for, some of
    its samples.

    Parameters
    ----------
    source : str
        As for `flwr_flynn.app.data.datasets.load_dataset`.
    largest : int, optional
    seed : int
    """
    data = load_dataset(source)
    chosen = np.arange(len(data.y))
    if largest is not None and len(chosen) > largest:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(chosen))[:largest])
    classes, codes = np.unique(data.y[chosen], return_inverse=True)
    return Dataset(
        data.X[chosen],
        codes.astype(np.int64),
        list(range(len(classes))),
        Path(source).stem,
    )


def deal_out(data: Dataset, split: str, n_parties: int, seed: int) -> Parts:
    """Deal a data set out to parties.

    Parameters
    ----------
    data : Dataset
    split : str
        One of `SPLITS`.
    n_parties : int
    seed : int
        Seed of the split, of the held-out samples, and of the shift of the features.
    """
    settings = dict(SPLITS[split])
    if split == QUANTITY:
        settings["partitioner_options"] = json.dumps(
            {"partition_sizes": uneven_sizes(len(data.y), n_parties)}
        )
    config = RunConfig(split_seed=seed, test_fraction=TEST_FRACTION, **settings)
    test = held_out(len(data.y), TEST_FRACTION, seed)
    shares = [data.share(indices, test) for indices in deal(config, n_parties, data.y)]
    if split in (SHIFT, MENDED):
        deviation = np.asarray(data.X[~test]).std(axis=0, dtype=np.float64)
        shares = [
            shifted(share, deviation, (seed, party))
            for party, share in enumerate(shares)
        ]
    if split == MENDED:
        alone = [Parts([share], len(data.classes)) for share in shares]
        shares = [parts.standardised().shares[0] for parts in alone]
    return Parts(shares, len(data.classes))


def held_out(n: int, fraction: float, seed: int) -> Mask:
    """(n,) mask of the held-out samples, by their indices."""
    stream = splitmix64(splitmix64([seed]) ^ np.uint64(1))
    hashes = splitmix64(np.arange(n, dtype=np.uint64) ^ stream) >> np.uint64(11)
    return hashes < np.uint64(math.ceil(fraction * 2**53))


def uneven_sizes(n: int, n_parties: int) -> list[int]:
    """Sizes that add up to n, in proportion to 1, 4, 9, ..., and 1 at least;
    flwr-datasets' own of this kind give small parties nothing, and refuse.

    >>> uneven_sizes(100, 4)
    [3, 13, 30, 54]
    """
    squares = np.arange(1, n_parties + 1) ** 2
    sizes = np.maximum(n * squares // squares.sum(), 1)
    sizes[-1] += n - sizes.sum()
    return [int(size) for size in sizes]


def shifted(share: Samples, deviation: Array, seed: tuple[int, int]) -> Samples:
    """A party's samples as its own instruments would have measured them: each column
    with a gain and an offset.

    Gains are log-normal with sigma 0.2, offsets normal with half of the column's
    standard deviation. The samples that the party holds out are measured alike.
    """
    generator = np.random.default_rng([*seed, 31])
    gain = np.exp(generator.normal(0, 0.2, len(deviation)))
    offset = generator.normal(0, 0.5, len(deviation)) * deviation
    X, X_test = (
        (points * gain + offset).astype(np.float32)
        for points in (share.X, share.X_test)
    )
    return replace(share, X=X, X_test=X_test)
