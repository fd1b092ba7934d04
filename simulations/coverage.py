"""Coverage of prediction sets: on samples like the counted ones, and at sites that differ.

"data sets": five folds of each set, pooled. Beside the sets of the classifier are those
of split conformal prediction with the same model, which takes half of the held-out
samples for its thresholds, by class, with one threshold of all classes, and by class
as here. "sites": a federation of twenty made sites, whose levels of the columns and
frequencies of the classes differ, each with 60 to 600 training samples and 1000 others,
and the four hospitals of heart disease (`raw/heart_*.csv` in the folder of data), a
fifth of each held out, twenty times. Beside the thresholds of a site's own copy are
those of all sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flwr_flynn import FlyNNClassifier, HashPlan
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.prediction_sets import (
    as_levels,
    level_table,
    levels_of,
    thresholds,
)
from simulations.data import DataSet, data_sets, files
from simulations.results import Array, Row, markdown_table
from simulations.splits import Parts
from simulations.study import FEDERATED, SETS, Study, code_digest

_CODE = code_digest(*FEDERATED, "simulations.coverage")
COVERAGE = 0.9
LOW = COVERAGE - 0.03
FIGURES = "covered", "worst class", "several", "none", "size"
N_SITES = 20
N_NEW = 1000
HOSPITALS = "cleveland", "hungarian", "switzerland", "va"
N_SPLITS = 20


def figures(is_in: Array, y: Array) -> Row:
    """Figures of sets, (n, L), of samples with class codes, (n,)."""
    covered = is_in[np.arange(len(y)), y]
    sizes = is_in.sum(axis=1)
    by_class = [covered[y == c].mean() for c in np.unique(y) if (y == c).sum() >= 10]
    return {
        "covered": covered.mean(),
        "worst class": min(by_class, default=np.nan),
        "several": (sizes > 1).mean(),
        "none": (sizes == 0).mean(),
        "size": sizes.mean(),
    }


def split_sets(scores: Array, y: Array, by_class: bool) -> Array:
    """Sets by thresholds of the other half of the samples, (n, L)."""
    half = np.random.default_rng(0).permutation(len(y)) % 2
    levels = levels_of(scores)
    is_in = np.empty(levels.shape, bool)
    for number in (0, 1):
        rows = half == number
        table = level_table(levels[rows], y[rows])
        if not by_class:
            table = table.sum(axis=0, keepdims=True)
        least = thresholds(as_levels(table), (), COVERAGE)
        is_in[~rows] = levels[~rows] >= least
    return is_in


def of_set(data: DataSet, effort: str) -> Iterator[Row]:
    """Figures of each fold."""
    for train, test in data.splits:
        model = FlyNNClassifier(effort=effort).fit(data.X[train], data.y[train])
        X = np.asarray(data.X[test], float)
        y = data.y[test]
        scores = model.model_.shared_scores(X)
        last = model.model_.last_calibration
        assert last is not None  # it has the levels of `predict_set`
        scores -= np.array(last.intercepts)
        for method, is_in in (
            ("FlyNN", model.predict_set(X, COVERAGE)),
            ("split, by class", split_sets(scores, y, True)),
            ("split, one threshold", split_sets(model.model_.scores(X), y, False)),
        ):
            yield {"set": data.name, "effort": effort, "method": method} | figures(
                is_in, y
            )


# ---- sites


def made_sites(seed: int) -> list[Samples]:
    """Twenty sites of two or three classes."""
    generator = np.random.default_rng([seed, 20])
    n_columns = 12
    n_classes = 2 + seed % 2
    weights = 0.6 * generator.normal(size=(n_columns, n_classes))
    pairs = generator.integers(0, n_columns, (4, 2))
    of_pairs = 0.6 * np.eye(n_classes)[[0, 1, 0, n_classes - 1]]
    shares = []
    for _ in range(N_SITES):
        n = int(generator.integers(60, 600))
        X = generator.normal(size=(n + N_NEW, n_columns))
        X += 0.7 * generator.normal(size=n_columns)
        odds = X @ weights + (X[:, pairs[:, 0]] * X[:, pairs[:, 1]]) @ of_pairs
        odds[:, 0] += 1.5 * generator.normal()
        y = (odds + generator.gumbel(size=odds.shape)).argmax(axis=1)
        shares.append(Samples(X[:n], y[:n], X[n:], y[n:]))
    return shares


def hospitals(folder: Path, seed: int) -> list[Samples]:
    """Four hospitals with a fifth of their patients held out."""
    generator = np.random.default_rng([seed, 4])
    shares = []
    for name in HOSPITALS:
        frame = pd.read_csv(folder / f"heart_{name}.csv", na_values="?")
        y = (frame.pop("num") == "'present'").to_numpy().astype(int)
        order = generator.permutation(len(y))
        test, train = np.split(order, [len(y) // 5])
        shares.append(Samples(frame.iloc[train], y[train], frame.iloc[test], y[test]))
    return shares


def of_sites(name: str, shares: Sequence[Samples]) -> Iterator[Row]:
    """Figures of each site by its own copy of the model, and by that of all."""
    n_classes = int(max(share.y.max() for share in shares)) + 1
    learns = isinstance(shares[0].X, pd.DataFrame)
    plan = HashPlan(shares[0].X.shape[1], n_classes, scaling="auto")
    kept: list[Any] = []
    parties = Parts([*shares], n_classes).parties(on_model=kept.append)
    federate(
        RunOptions(plan, range(n_classes), len(shares), learn_schema=learns), parties
    )
    for number, (share, own) in enumerate(zip(shares, kept, strict=True)):
        of_all = FlyNNClassifier.from_model(own.model_.with_own_levels(()))
        for method, model in (("own", own), ("all", of_all)):
            row = {"sites": name, "site": number, "thresholds": method}
            is_in = model.predict_set(share.X_test, COVERAGE)
            yield row | figures(is_in, share.y_test)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "coverage", "Coverage of prediction sets", __doc__, arguments, sets=SETS
    )
    known = files(study.chosen.data)
    sets = data_sets(known, study.wanted(known), folds=5, most=study.sized(2500, 300))
    rows: list[Row] = []
    for effort in study.sized(("default", "thorough"), ("quick",)):
        for data in sets:
            work = partial(lambda *about: [*of_set(*about)], data, effort)
            rows += study.cells.finish(
                f"{data.name}: {effort}", (data.digest, _CODE), work
            )
    study.write("coverage", rows)
    frame = pd.DataFrame(rows)
    keys = ["effort", "method"]
    by_set = frame.groupby([*keys, "set"], sort=False).mean().reset_index()
    means = [
        {
            **dict(zip(keys, key, strict=True)),
            **own[[*FIGURES]].mean(),
            "sets below .87": int((own["covered"] < LOW).sum()),
        }
        for key, own in by_set.groupby(keys, sort=False)
    ]
    federations = {
        f"made {seed}": made_sites(seed) for seed in range(study.sized(6, 1))
    }
    folder = (study.chosen.data or Path()) / "raw"
    if (folder / "heart_va.csv").exists():
        for seed in range(study.sized(N_SPLITS, 2)):
            federations[f"hospitals {seed}"] = hospitals(folder, seed)
    rows = []
    for name, shares in federations.items():
        work = partial(lambda *about: [*of_sites(*about)], name, shares)
        rows += study.cells.finish(name, _CODE, work)
    study.write("sites", rows)
    told = markdown_table(means), markdown_table(sites_table(rows))
    print("\n\n".join(told))
    study.finish(
        [*told, "## Each set", markdown_table(by_set.to_dict("records")), study.about]
    )


def sites_table(rows: Sequence[Row]) -> list[Row]:
    """Means over the sites of each federation that was made, and of each hospital."""
    frame = pd.DataFrame(rows)
    is_made = frame["sites"].str.startswith("made")
    frame["of"] = np.where(
        is_made, frame["sites"], frame["site"].map(dict(enumerate(HOSPITALS)))
    )
    lines = []
    for (name, method), own in frame.groupby(["of", "thresholds"], sort=False):
        line = {"sites": name, "thresholds": method, **own[[*FIGURES]].mean()}
        below = np.nan
        if name not in HOSPITALS:
            below = int((own["covered"] < LOW).sum())
        lines.append(line | {"sites below .87": below})
    return lines
