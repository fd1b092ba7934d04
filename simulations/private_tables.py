"""Private runs over tables: what is left of a model at epsilon 1 and delta 1e-5.

"before" is the read-out of 0.8: counts of rank codes within public ranges, by rule
"balanced". "now" are noisy sums of the columns, a hash with a centre and a scale that
follow from them, and noisy counts, which few rows have mirrored and class means read.

Sums are of the noise of each party, drawn one by one. Who has which sample is of no
matter to them. Public are the least and largest value of each column, the number of
samples and that of the classes.

A cell is a set with half of its samples, at most 8000, for training, or with 2000 or
500, in two folds. Its share is balanced accuracy beside that of
`FlyNNClassifier(class_weight="balanced")` without noise, in the mean of ten runs: two of
the sums with five of the counts each. On "tuned" cells, those of every second set, sizes
and constants were chosen. "replace-one" and "pure epsilon" (delta 0) are three runs.
Guessing has a share, too.

Rare outcomes are 8 % of up to 2800 samples of 14 sets. For nu and the distance of the
class means beyond noise, z, they are also 8 % of up to 300, 700 and 1400.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, product
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from flwr_flynn import FlyNNClassifier, HashPlan
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_noise import nu, private_plan, run_mechanism
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.class_means import add_mirrored, both_bits
from flwr_flynn.model.column_sums import moments, spec_of_sums
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import suggest_spec
from simulations import plots
from simulations.data import BUNDLED, files, folded
from simulations.results import Array, Row, with_headings
from simulations.study import FEDERATED, Piece, Study, code_digest

_CODE = code_digest(
    *FEDERATED,
    "flwr_flynn.app.run_noise",
    "simulations.data",
    "simulations.private_tables",
)
PARTIES = 1, 3, 10
IMAGES = "mnist", "fashion_mnist"
KINDS: dict[str, Row] = {
    "add-remove": {"delta": 1e-5},
    "replace-one": {"delta": 1e-5, "neighbours": "replace-one"},
    "pure epsilon": {"delta": 0.0},
}
# Classes that are the outcome.
RARE = {
    **dict.fromkeys(["ailerons", "cpu_act", "spambase", "twonorm", "clean2"], (1,)),
    **dict.fromkeys(["letters", "sylvine", "kc1", "steel_plates_1504"], (1,)),
    **{"bank32nh": (0,), "pol": (0,), "satimage": (3,), "usps": (8,)},
    "thyroid_ann": (0, 1),
}
SHARE = 0.08
WORSE = 0.02
NU = 0, 1, 2, 6, 10, np.inf
Z = -np.inf, 1, 2, 3, np.inf


class Task(NamedTuple):
    """Training and held-out samples, with the public ranges of the columns."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    ranges: tuple[list[float], list[float]]

    @classmethod
    def of(cls, X: Array, y: Array, train: Array, test: Array) -> Task:
        values = X.astype(np.float64)
        ranges = values.min(axis=0).tolist(), values.max(axis=0).tolist()
        return cls(values[train], y[train], values[test], y[test], ranges)


# ---- runs


def summed(release: Callable[[Array], Array], array: Array, n_parties: int) -> Array:
    """The sum of what parties send, one of which has all samples."""
    total = release(array)
    for _ in range(n_parties - 1):
        total = total + release(np.zeros_like(array))
    return total


def counted(task: Task, spec: HashSpec, n_classes: int, are_mirrored: bool) -> Array:
    """Counts without noise."""
    hasher = flynn_hash(spec)
    if not are_mirrored:
        return hasher.count(task.X, task.y, n_classes, n_jobs=1)
    array = np.zeros((n_classes, spec.hash_dim), np.int64)
    add_mirrored(array, task.y, both_bits(hasher, task.X, 1))
    return array


def runs(
    task: Task, kind: str, n_parties: int, is_now: bool, n_sums: int, n_draws: int
) -> Iterator[tuple[ModelMember, float]]:
    """The model of each run, and nu of the last class."""
    n, d = task.X.shape
    n_classes = int(max(task.y.max(), task.y_test.max())) + 1
    seed = crc32(task.y.tobytes()) + n_parties
    settings = {"epsilon": 1.0, "noise": "seeded", "seed": seed, **KINDS[kind]}
    config = RunConfig.parse(settings)
    plan = HashPlan(d, n_classes, n, ranges=task.ranges, seed=1)
    if is_now:
        plan = private_plan(config, plan, n_parties)
    else:
        sizes = suggest_spec(
            1.0, config.delta, d, n, n_classes, n_parties, neighbours=config.neighbours
        )
        plan = replace(plan, hash_dim=sizes.hash_dim, hash_nnz=sizes.hash_nnz)
    public = plan.specs()[0]
    mechanism: Any = run_mechanism(config, public, n_classes, n_parties, is_now)
    strength = nu(plan, float((task.y == n_classes - 1).mean()), mechanism, n_parties)
    for _ in range(n_sums):
        spec = public
        if is_now:
            parts = np.array_split(task.X, n // 5000 + 1)
            of = partial(moments, spec=public, n_moments=mechanism.n_moments)
            sums = sum(of(part).sum(axis=0) for part in parts)
            sums = summed(mechanism.released_sums, sums, n_parties)
            variance = n_parties * mechanism.sums_sd**2
            spec = spec_of_sums(public, sums, n, variance)
        array = counted(task, spec, n_classes, mechanism.mirrored)
        name = flynn_hash(spec).fingerprint
        for _ in range(n_draws):
            noisy = summed(mechanism.noisy, array, n_parties)
            counts = mechanism.received(noisy, name, n_parties)
            scoring = ScoringRule("balanced", suggest_decay(counts))
            yield ModelMember(spec, counts, scoring), strength


def accuracies(task: Task, *how: Any) -> float:
    """Balanced accuracy in the mean of runs."""
    every = [
        balanced_accuracy_score(
            task.y_test, model.log_odds(task.X_test, 1, True).argmax(axis=1)
        )
        for model, _ in runs(task, *how)
    ]
    return float(np.mean(every))


# ---- tasks


def sizes(n: int) -> list[int]:
    """Training samples of the cells of a set."""
    most = min(n // 2, 8000)
    return [most] + [
        size for size, least in ((2000, 3500), (500, 950)) if most >= least
    ]


def of_cell(name: str, X: Array, y: Array, n: int, n_runs: Row) -> list[Row]:
    """Shares of a cell, for each kind of guarantee and number of parties."""
    rows = []
    data = folded(name, X, y, folds=2, seed=crc32(name.encode()))
    generator = np.random.default_rng(crc32(name.encode()))
    for train, test in data.splits:
        few = generator.permutation(test)[:3000]
        task = Task.of(X, data.y, generator.permutation(train)[:n], few)
        model = FlyNNClassifier(class_weight="balanced", n_jobs=1)
        labels = model.fit(task.X, task.y).predict(task.X_test)
        clear = balanced_accuracy_score(task.y_test, labels)
        for kind, n_parties in product(n_runs, PARTIES):
            row = {"set": name, "n": n, "kind": kind, "parties": n_parties}
            for way in ("before", "now"):
                value = accuracies(task, kind, n_parties, way == "now", *n_runs[kind])
                row[way] = value / clear
            rows.append(row | {"clear": clear})
    return rows


def rare(X: Array, y: Array, most: int, seed: Sequence[int]) -> Task:
    """A task with 8 % of class 1 among the training samples."""
    generator = np.random.default_rng(seed)
    ones = generator.permutation(np.flatnonzero(y == 1))
    others = generator.permutation(np.flatnonzero(y == 0))
    room = 0.7 * len(ones) / SHARE, 0.85 * len(others) / (1 - SHARE)
    n = int(min(most, *room))
    n_ones = round(n * SHARE)
    n_others = n - n_ones
    train = generator.permutation(np.r_[ones[:n_ones], others[:n_others]])
    test = np.r_[ones[n_ones:][:1500], others[n_others:][:1500]]
    return Task.of(X, y, train, test)


def of_rare(name: str, X: Array, y: Array, most: int, n_runs: Any) -> list[Row]:
    """AUROC of each run on rare outcomes, with nu and z."""
    rows = []
    labels = np.isin(y, RARE[name]).astype(np.int64)
    for fold, n_parties, way in product(range(2), PARTIES, ("before", "now")):
        task = rare(X, labels, most, [crc32(name.encode()), fold])
        for model, strength in runs(
            task, "add-remove", n_parties, way == "now", *n_runs
        ):
            odds = model.log_odds(task.X_test, 1, True)
            row = {"set": name, "n": most, "parties": n_parties, "way": way}
            row |= {"AUROC": roc_auc_score(task.y_test, odds[:, 1] - odds[:, 0])}
            z = np.nan
            if model.means is not None:
                z = model.means.separation
            rows.append(row | {"nu": strength, "z": z})
    return rows


def of_images(
    X: Array, y: Array, n_test: int, classes: Sequence[int], n_runs: Any
) -> Row:
    """Accuracy on MNIST of two parties."""
    is_in = np.isin(y, classes)
    codes = np.searchsorted(classes, y[is_in])
    train, test = np.split(np.arange(len(codes)), [is_in[:-n_test].sum()])
    task = Task.of(X[is_in], codes, train, test)
    d = X.shape[1]
    task = task._replace(ranges=([0.0] * d, [255.0] * d))
    row: Row = {"digits": " v ".join(map(str, classes)), "n": len(train)}
    for way in ("before", "now"):
        row[way] = accuracies(task, "add-remove", 2, way == "now", *n_runs)
    return row


# ---- tables


def shares(name: str, frame: pd.DataFrame) -> Row:
    """A row of means by parties."""
    row: Row = {"cells": name}
    for n_parties, way in product(PARTIES, ("before", "now")):
        row[f"{n_parties}, {way}"] = frame.loc[
            frame["parties"] == n_parties, way
        ].mean()
    return row


def became(frame: pd.DataFrame, figure: str, edges: Sequence[float]) -> list[Row]:
    """Share of worthless runs, and mean AUROC, by a figure that was known of a run."""
    rows = []
    for low, high in pairwise(edges):
        own = frame.loc[(frame[figure] >= low) & (frame[figure] < high), "AUROC"]
        row: Row = {figure: f"{low:g} to {high:g}", "runs": len(own)}
        rows.append(row | {"below .6": (own < 0.6).mean(), "AUROC": own.mean()})
    return rows


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("private", "Private runs over tables", __doc__, arguments)
    there: dict[str, Any] = {}
    if study.chosen.data:
        there |= files(study.chosen.data)
    there |= {name: BUNDLED[name] for name in ("digits", "breast_cancer")}
    sets = {}
    for name, read in there.items():
        X, y, *n_test = read()
        sets[name] = X, np.unique(y, return_inverse=True)[1], *n_test
    tables = [name for name in sets if name not in IMAGES]
    tuned = tables[::2]
    most_runs, few_runs = study.sized(((2, 5), (1, 3)), ((1, 2), (1, 1)))
    n_runs = dict.fromkeys(KINDS, few_runs) | {"add-remove": most_runs}

    pieces = []
    for name in study.sized(tables, tables[-2::-11]):
        X, y = sets[name][:2]
        for n in sizes(len(y)):
            work = partial(of_cell, name, X, y, n, n_runs)
            pieces.append(Piece(f"{name}, {n}", (X, y, n_runs, _CODE), work))
    rows = [*chain.from_iterable(study.cells.run(pieces))]
    study.write("shares", rows)
    keys = ["kind", "set", "n", "parties"]
    frame = pd.DataFrame(rows).groupby(keys, sort=False).mean().reset_index()
    is_plain = frame["kind"] == "add-remove"
    plain = frame[is_plain]
    is_tuned = plain["set"].isin(tuned)
    groups = {
        "all": plain,
        "tuned": plain[is_tuned],
        "not tuned": plain[~is_tuned],
        "digits": plain[plain["set"] == "digits"],
        **{
            kind: frame[frame["kind"] == kind] for kind in KINDS if kind != "add-remove"
        },
    }
    kept = [shares(name, own) for name, own in groups.items() if len(own)]

    pieces = []
    for name, n in product(RARE, study.sized((300, 700, 1400, 2800), (300, 2800))):
        if name in study.sized(tables, ["spambase", "satimage"]) and name in sets:
            X, y = sets[name][:2]
            work = partial(of_rare, name, X, y, n, most_runs)
            pieces.append(Piece(f"rare {name}, {n}", (X, y, most_runs, _CODE), work))
    rare_rows = [*chain.from_iterable(study.cells.run(pieces))]
    by_figure = {}
    if rare_rows:
        study.write("rare", rare_rows)
        every = pd.DataFrame(rare_rows)
        keys = ["set", "parties", "way"]
        largest = every[every["n"] == 2800].groupby(keys)["AUROC"].mean()
        kept.append(shares("rare, AUROC", largest.unstack("way").reset_index()))
        # Sets without so many samples have the same runs again.
        now = every[every["way"] == "now"].drop_duplicates(every.columns.drop("n"))
        by_figure = {
            "## Rare outcomes by nu": became(now, "nu", NU),
            "## Rare outcomes by z": became(now, "z", Z),
        }

    pieces = []
    if "mnist" in sets and not study.chosen.quick:
        X, y, n_test = sets["mnist"]
        pieces = [
            Piece(
                f"mnist {len(classes)}",
                _CODE,
                partial(of_images, X, y, n_test, classes, most_runs),
            )
            for classes in ((3, 8), range(10))
        ]
    worse = plain[plain["now"] < plain["before"] - WORSE]
    tables_of = {
        "## Share kept, by parties": kept,
        f"## Cells more than {WORSE:g} below before, of {len(plain)}": worse.drop(
            columns="kind"
        ).to_dict("records"),
        "## MNIST, accuracy of two parties": study.cells.run(pieces),
        **by_figure,
    }
    panels = []
    for n_parties in PARTIES:
        own = plain[plain["parties"] == n_parties]
        names = own["set"] + " " + own["n"].astype(str)
        now, before = (
            dict(zip(names, own[way], strict=True)) for way in ("now", "before")
        )
        panels.append((f"now, parties: {n_parties}", now, "before", before))
    drawn = plots.scatter(
        panels, "Share of the clear accuracy", study.folder / "shares.png"
    )
    told = with_headings(tables_of)
    print("\n\n".join(told))
    study.finish([*told, drawn, "## The methods", study.about])
