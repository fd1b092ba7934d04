"""The paper's Theorem 2, measured: agreement with kNN beside its bound.

Theorem 2 speaks of two classes, gamma = 0, the distance L-infinity, test samples from a
permutation-invariant distribution, and of neighbours nearer than half the margin
between the classes. So test samples are drawn evenly from the unit cube, each gets
three training samples around it within a given distance, all of one class, and classes
are dealt out at random. The test sample must not be mistaken for the training samples
of the other clusters. The bound is that of the theorem's proof, with its constants:
FlyNN agrees with kNN with probability at least 1 - (4 rho n_0 / m + exp(-rho / 150) +
exp(-rho / 96)), n_0 being the samples of the other class. It holds where neighbours are
no further than Delta / s, Delta = (tau_x(rho / 2m) - tau_x(rho / m)) / 2, which is
measured too. It says something only where rho is in the hundreds and m in the hundred
thousands, for a few dozen samples; there FlyNN never errs. So everything is measured
twice: around a setting where the theorem speaks, and around one that is hard, picked
after trying ten so that agreement is neither whole nor a coin's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model.scoring import ScoringRule, class_scores
from simulations import plots
from simulations.plots import Line, Panel
from simulations.results import Array, Row, chosen, markdown_table
from simulations.study import MODEL, Cells, Study, code_digest

K = 3  # neighbours, all of a test sample's own cluster
N_FEATURES = 50


@dataclass(frozen=True)
class Setting:
    """One point of a curve.

    Parameters
    ----------
    m, rho, s : int
    clusters : int
        Test samples; K times as many training samples.
    distance : float
        Largest distance of a test sample's own training samples from it, in L-infinity.
    """

    m: int
    rho: int
    clusters: int
    distance: float
    s: int = 5

    @property
    def bound(self) -> float:
        """Bound of Theorem 2, by the constants of its proof; 0 where it is negative."""
        other_class = K * self.clusters / 2
        failure = (
            4 * self.rho * other_class / self.m
            + math.exp(-self.rho / 150)
            + math.exp(-self.rho / 96)
        )
        return max(0.0, 1 - failure)


def clusters(
    setting: Setting, generator: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Training samples, their classes, and test samples, one at the middle of each
    cluster.
    """
    middles = generator.random((setting.clusters, N_FEATURES))
    around = generator.uniform(
        -setting.distance, setting.distance, (setting.clusters, K, N_FEATURES)
    )
    labels = generator.permutation(np.arange(setting.clusters) % 2)
    return (
        (middles[:, None] + around).reshape(-1, N_FEATURES),
        np.repeat(labels, K),
        middles,
    )


def agreement(setting: Setting, draws: int, seed: int) -> Row:
    """Shares of test samples on which FlyNN and kNN agree, over several data sets, each
    with its own hash.
    """
    agreed: dict[float, list[float]] = {0.0: [], 0.5: []}
    margins = []
    reaches = []
    for draw in range(draws):
        X, y, tests = clusters(setting, np.random.default_rng([seed, draw]))
        hasher = FlyHash(
            HashSpec(N_FEATURES, setting.m, setting.s, setting.rho, seed=seed + draw)
        )
        counts = ClassCounts.from_data(hasher, X, y, 2)
        active = hasher.active(tests)
        distances = cdist(tests, X, "chebyshev")
        nearest = np.argsort(distances, axis=1, kind="stable")[:, :K]
        knn = np.round(y[nearest].mean(axis=1)).astype(int)
        for gamma, shares in agreed.items():
            scores = class_scores(counts, active, ScoringRule("novelty", gamma))
            # Between classes that score alike FlyNN would take the first, and be right
            # by chance: half each.
            own = (
                scores[np.arange(len(tests)), knn]
                - scores[np.arange(len(tests)), 1 - knn]
            )
            shares.append(float(np.select([own > 0, own == 0], [1.0, 0.5]).mean()))
        margins.append(float(cdist(X[y == 0], X[y == 1], "chebyshev").min()))
        sums = np.sort(tests[0][hasher.rows].sum(axis=1))[::-1]
        half = sums[max(setting.rho // 2, 1) - 1] - sums[setting.rho - 1]
        reaches.append(float(half / 2 / setting.s))
    figures = {
        "agreement": np.mean(agreed[0.0]),
        "sd": np.std(agreed[0.0]),
        "agreement, gamma=0.5": np.mean(agreed[0.5]),
    }
    figures |= {"margin": np.mean(margins), "Delta / s": np.mean(reaches)}
    return {"test points": draws * setting.clusters} | {
        name: float(value) for name, value in figures.items()
    }


_CODE = code_digest(*MODEL, "simulations.paper.theory")

SPEAKS = "the theorem speaks"
HARD = "hard"
BASES = {
    SPEAKS: Setting(m=2**17, rho=512, clusters=20, distance=0.01),
    HARD: Setting(m=2**12, rho=32, clusters=200, distance=0.25),
}
RANGES: dict[tuple[str, str], tuple[float, float]] = {
    (SPEAKS, "m"): (2**13, 2**20), (SPEAKS, "rho"): (64, 2048), (SPEAKS, "clusters"): (4, 256),
    (SPEAKS, "distance"): (0.0025, 0.04), (HARD, "m"): (2**9, 2**16), (HARD, "rho"): (2, 512),
    (HARD, "clusters"): (16, 2048), (HARD, "distance"): (0.05, 0.8),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Extent of a run.

    Parameters
    ----------
    tests : int
        Test samples for each point of a curve, about; at least two data sets.
    points : int
        Points of each curve.
    seed : int
    scale : int
        Largest sizes are divided by it.
    """

    tests: int = 600
    points: int = 8
    seed: int = 0
    scale: int = 1


QUICK = Plan(tests=200, points=5, scale=8)
FULL = Plan(tests=10000, points=15)


def sweeps(plan: Plan) -> Iterator[tuple[str, str, Setting]]:
    """Base setting, the size that grows, and the setting, curve by curve."""
    for (base, name), (low, high) in RANGES.items():
        if name in ("m", "clusters"):
            high /= plan.scale
        for value in np.geomspace(low, high, plan.points):
            if name == "distance":
                number = float(value)
            else:
                number = round(value)
            yield base, name, replace(BASES[base], **{name: number})  # type: ignore[arg-type]


def measure(plan: Plan, cells: Cells) -> list[Row]:
    """A row for each point of each curve."""
    rows: list[Row] = []
    for base, name, setting in sweeps(plan):
        draws = plan.tests // setting.clusters
        if base == SPEAKS:
            draws //= 5
        draws = max(2, draws)
        label = f"{base}: {name} {getattr(setting, name):.4g}"
        n = K * setting.clusters
        figures = cells.finish(
            label,
            (setting, draws, plan.seed, _CODE),
            partial(agreement, setting, draws, plan.seed),
        )
        grows = name
        value = getattr(setting, name)
        if name == "clusters":
            grows = "n"
            value = n
        elif name == "distance":
            grows = "margin"
            value = figures["margin"] / (2 * setting.distance)
        about: Row = {
            "m": setting.m,
            "rho": setting.rho,
            "s": setting.s,
            "d": N_FEATURES,
            "n": n,
            "k": K,
        }
        about |= {"distance": setting.distance, "draws": draws, "seed": plan.seed}
        rows.append(
            {"base": base, "grows": grows, "value": value}
            | about
            | figures
            | {"bound": setting.bound}
        )
    return rows


_SHOWN = (
    "base",
    "grows",
    "value",
    "m",
    "rho",
    "n",
    "distance",
    "bound",
    "agreement",
    "agreement, gamma=0.5",
    "Delta / s",
)


def remarks(rows: Sequence[Row]) -> str:
    """Our measurements beside the paper's statement."""
    said = [row for row in rows if row["bound"] > 0]
    agreeing = sum(row["agreement"] >= row["bound"] for row in said)
    promised = sum(row["distance"] <= row["Delta / s"] for row in said)
    silent = [row for row in rows if row["bound"] == 0 and row["agreement"] >= 0.99]
    within = sum(row["distance"] <= row["Delta / s"] for row in rows)
    return (
        f"The bound says something (is above 0) at {len(said)} of {len(rows)} "
        f"settings; at {agreeing} of these agreement "
        f"is at least as high ({promised} of them meet its condition on the distance, "
        f"too). At {len(silent)} others, "
        "where the bound says nothing, agreement is .99 or more. The condition on "
        f"the distance holds at {within}."
    )


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    full = "10000 test samples for each of 15 values of a curve: about half an hour"
    study = Study("theory", "Theorem 2: agreement with kNN", __doc__, arguments, full)
    plan = study.sized(Plan(), QUICK, FULL)
    rows = measure(plan, study.cells)
    study.write("agreement", rows)
    said = f"d = {N_FEATURES}, k = {K}, s = {Setting.s}, seed {plan.seed}."
    figure = _draw(rows, study.folder / "agreement.png")
    study.finish(
        [
            study.about,
            said,
            figure,
            remarks(rows),
            markdown_table([{name: row[name] for name in _SHOWN} for row in rows]),
        ]
    )
    print("\n" + remarks(rows))


def _draw(rows: Sequence[Row], path: Path) -> str:
    labels = {
        "m": "m",
        "rho": "rho",
        "n": "training points n",
        "margin": "margin / (2 x neighbours' distance)",
    }
    panels = []
    for base in BASES:
        for name, label in labels.items():
            mine = sorted(
                chosen(rows, base=base, grows=name), key=lambda row: row["value"]
            )
            x = [row["value"] for row in mine]
            shown = {
                "agreement": "FlyNN, gamma = 0",
                "agreement, gamma=0.5": "FlyNN, gamma = 0.5",
            }
            lines = [
                Line(label, x, [row[key] for row in mine])
                for key, label in shown.items()
            ]
            lines.append(
                Line(
                    "Theorem 2: at least",
                    x,
                    [row["bound"] for row in mine],
                    look={"color": "black"},
                )
            )
            axes = {
                "xlabel": label,
                "ylabel": "share of test points",
                "ylim": (-0.04, 1.06),
                "xscale": "log2",
            }
            panels.append(Panel(base, lines, axes, [("by chance", 0.5)]))
    return plots.lines(panels, path, (3.6, 3.2), 4, "Agreement of FlyNN with 3-NN")
