"""Membership inference: how well an attacker tells who was among the training samples,
with and without noise.

The attack is the likelihood-ratio test of Carlini and others (LiRA, 2022), in its
strong form: the attacker knows the data, the label of the sample asked about, the hash,
and many models of the same kind with and without that sample. A statistic of the sample
is taken to be normal in both cases; its log likelihood ratio is the score. "model"
takes the log odds of the true label by the model that all parties get. "server" takes
what one party sends in clear: the counts at the sample's active bits, the cells of the
histograms where its values fall; with noise, the noisy counts.

Each of the models learns from a random half of the samples. Every sample is asked about
for every model, by the other models. Shown are the rate of members that are found at .1
% and 1 % of false alarms, and the advantage: the largest difference of both rates.
"allowed" is what the guarantee allows any attack at 1 % and as an advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashSpec
from flwr_flynn.privacy import GaussianCounts, SimulatedRelease, suggest_spec
from simulations import plots
from simulations.plots import Line, Panel
from simulations.results import Array, Row, chosen, markdown_table
from simulations.splits import read, source
from simulations.study import (
    FEDERATED,
    Cells,
    Option,
    Study,
    at_least,
    code_digest,
    names,
)

Statistic = Callable[[Array], Array]
"""Statistic of all samples, (n,), for the model of some: a mask, (n,)."""

RATES = (0.001, 0.01)
DELTA = 1e-5
_CURVE = np.logspace(-4, 0, 60)  # false alarms in the picture
_CODE = code_digest(*FEDERATED, "simulations.membership")


def of_probabilities(shares: Array, y: Array) -> Array:
    """Log odds of the true labels, (n,)."""
    own = np.clip(shares[np.arange(len(y)), y], 1e-12, 1 - 1e-12)
    return np.asarray(np.log(own) - np.log1p(-own))


def by_model(X: Array, y: Array, **parameters: Any) -> Statistic:
    """Log odds by a classifier of these parameters."""

    def statistic(some: Array) -> Array:
        return of_probabilities(
            FlyNNClassifier(n_jobs=1, **parameters)
            .fit(X[some], y[some])
            .predict_proba(X),
            y,
        )

    return statistic


def by_counts(
    X: Array, y: Array, spec: HashSpec, epsilon: float, is_seen: bool
) -> Statistic:
    """Of one hash, with noise if epsilon is above 0: counts as the server sees them, or
    log odds of the model.
    """
    hasher = FlyHash(spec)
    n_classes = int(y.max()) + 1
    seeds = iter(range(10**9))
    active = hasher.active(X)

    def statistic(some: Array) -> Array:
        counts = ClassCounts.from_active(hasher, active[some], y[some], n_classes)
        if epsilon:
            noise = GaussianCounts(
                epsilon, DELTA, hash_nnz=spec.hash_nnz, n_classes=n_classes
            )
            counts = SimulatedRelease(noise, next(seeds)).release(counts)
        if not is_seen:
            model = FlyNNClassifier.from_counts(spec, counts, range(n_classes))
            return of_probabilities(model.predict_proba(X), y)
        of_bits = counts.array[y[:, None], active]
        if not epsilon:
            # Without noise a count of 0 is a proof, and a count of 1 nearly one.
            of_bits = np.log(of_bits + 1e-3)
        return np.asarray(of_bits.sum(axis=1), np.float64)

    return statistic


def by_histograms(X: Array, y: Array) -> Statistic:
    """Columns in which the sample's value is the only one of its class, or none: -log
    of the counts of its cells.
    """
    # three digits and more of each value
    cells = np.asarray(X, "<f8").view(np.uint64) >> np.uint64(32)

    def statistic(some: Array) -> Array:
        total = np.zeros(len(y))
        for column in cells.T:
            keys = column * np.uint64(64) + y.astype(np.uint64)
            values, counts = np.unique(keys[some], return_counts=True)
            at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
            total += np.log(np.where(values[at] == keys, counts[at], 0) + 1e-3)
        return total

    return statistic


def attacked(statistic: Statistic, n: int, n_models: int, seed: int = 0) -> Row:
    """Rates and advantage of the likelihood-ratio attack with this statistic."""
    rng = np.random.default_rng(seed)
    members = np.array([rng.permutation(n) < n // 2 for _ in range(n_models)])
    values = np.array([statistic(some) for some in members])
    scores = np.empty(values.shape)
    for own in range(n_models):
        others = np.arange(n_models) != own
        inside, outside = (
            np.ma.masked_array(values[others], mask=members[others] != is_in)
            for is_in in (True, False)
        )
        spread = (inside.var(axis=0) + outside.var(axis=0)).filled(0.0) / 2
        # few models: no variance is known to be tiny
        spread = np.maximum(spread, spread.mean() / 10) + 1e-12
        distance = [
            (values[own] - side.mean(axis=0).filled(0.0)) ** 2
            for side in (inside, outside)
        ]
        scores[own] = (distance[1] - distance[0]) / (2 * spread)
    order = np.argsort(-scores, axis=None, kind="stable")
    is_member = members.ravel()[order]
    hits = np.cumsum(is_member) / is_member.sum()
    alarms = np.cumsum(~is_member) / (~is_member).sum()
    at = [
        float(hits[max(np.searchsorted(alarms, rate, side="right") - 1, 0)])
        for rate in (*RATES, *_CURVE)
    ]
    rates = {
        f"found at {rate:.1%}": value for rate, value in zip(RATES, at, strict=False)
    }
    return rates | {
        "advantage": float((hits - alarms).max()),
        "curve": at[len(RATES) :],
    }


def allowed(epsilon: float, rate: float | None = None) -> float:
    """The largest rate of members found that the guarantee allows at a rate of false
    alarms; None: the advantage.
    """
    if not epsilon:
        return 1.0
    if rate is None:
        return (math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1)
    return min(
        math.exp(epsilon) * rate + DELTA,
        1 - math.exp(-epsilon) * (1 - DELTA - rate),
        1.0,
    )


def attacks(X: Array, y: Array) -> dict[str, tuple[float, Callable[[], Statistic]]]:
    """Epsilon (0: no noise) and maker of the statistic, by name."""
    d = X.shape[1]
    n = len(y) // 2
    n_classes = int(y.max()) + 1
    plain = HashSpec.suggest(d, n, n_classes)
    by_name: dict[str, tuple[float, Callable[[], Statistic]]] = {
        "model, single hash": (0, partial(by_counts, X, y, plain, 0.0, False)),
        "model, committee (default)": (0, partial(by_model, X, y)),
        "model, thorough": (0, partial(by_model, X, y, effort="thorough")),
        "server, counts": (0, partial(by_counts, X, y, plain, 0.0, True)),
        "server, histograms of columns": (0, partial(by_histograms, X, y)),
    }
    for epsilon in (4.0, 1.0):
        spec = suggest_spec(epsilon, DELTA, d, n, n_classes, 1)
        by_name[f"server, counts, epsilon {epsilon:g}"] = (
            epsilon,
            partial(by_counts, X, y, spec, epsilon, True),
        )
        by_name[f"model, epsilon {epsilon:g}"] = (
            epsilon,
            partial(by_counts, X, y, spec, epsilon, False),
        )
    return by_name


def measure(source: str, n_samples: int, n_models: int, cells: Cells) -> list[Row]:
    """A row for each attack on a data set."""
    data = read(source, n_samples)
    rows = []
    X = np.asarray(data.X, np.float64)
    y = np.asarray(data.y)
    for name, (epsilon, make) in attacks(X, y).items():
        work = lambda make=make: attacked(make(), len(y), n_models)  # noqa: E731
        figures = cells.finish(f"{data.name}: {name}", (X, y, n_models, _CODE), work)
        rows.append(
            {"set": data.name, "attack": name, "epsilon": epsilon or "", **figures}
        )
    return rows


def shown(row: Row) -> Row:
    """A row as text."""
    epsilon = row["epsilon"] or 0.0
    rates = {
        name: f"{value:.3f}" for name, value in row.items() if name.startswith("found")
    }
    bounds = {
        "allowed at 1.0%": f"{allowed(epsilon, 0.01):.3f}",
        "advantage": f"{row['advantage']:.3f}",
    }
    return (
        {name: row[name] for name in ("set", "attack")}
        | rates
        | bounds
        | {"allowed": f"{allowed(epsilon):.3f}"}
    )


def draw(rows: Sequence[Row], path: Path) -> str:
    """Members found against false alarms, a panel for each data set."""
    plain = {"marker": None}
    panels = []
    axes = {
        "xscale": "log",
        "yscale": "log",
        "xlabel": "false alarms",
        "ylabel": "members found",
        "ylim": (1e-4, 1),
    }
    for name in dict.fromkeys(row["set"] for row in rows):
        lines = [
            Line(r["attack"], _CURVE, np.maximum(r["curve"], 1e-4), look=plain)
            for r in chosen(rows, set=name)
        ]
        lines.append(
            Line(
                "allowed by epsilon 1",
                _CURVE,
                [allowed(1.0, rate) for rate in _CURVE],
                look=plain,
            )
        )
        panels.append(
            Panel(name, [*lines, Line("guessing", _CURVE, _CURVE, look=plain)], axes)
        )
    return plots.lines(panels, path, (5.2, 4.6), legend=3)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "membership", "Membership inference", __doc__, arguments,
        sets=Option("data sets, with commas between (default: digits)", names, ["digits"]),
        samples=Option("samples of a set, at most (default: 2000)", at_least(2), 2000),
        models=Option("models of each kind (default: 64, quick: 8)", at_least(2)),
    )  # fmt: skip
    n_models = study.chosen.models or study.sized(64, 8)
    rows = list[Row]()
    for name in study.chosen.sets:
        rows += measure(
            source(name, study.chosen.data), study.chosen.samples, n_models, study.cells
        )
    study.write("membership", rows)
    table = markdown_table([shown(row) for row in rows])
    print(table)
    study.finish([study.about, table, draw(rows, study.folder / "membership.png")])
