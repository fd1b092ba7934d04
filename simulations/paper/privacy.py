"""Cost of privacy: the paper's Figures 3, 7, 8 and 9 again, and the new mechanisms
beside its own.

Two parties have half of the training samples each; each adds its own noise to its
counts, and what is summed is read out. Balanced accuracy on held-out samples, mean and
standard deviation over ten draws of the noise with one hash.

The paper's mechanism, `TopTLaplace` with the authors' exponent, is shown as the paper
shows it: entries clipped before the sum, rule "novelty", decay 0.9, and of many T the
best on the test set, which is not private and flatters. For the new mechanisms nothing
is picked on test data: the hash is `suggest_spec`'s, from public figures, and the
scoring rule that of every private model, "balanced" with `suggest_decay`. "the paper's
hash" is the same mechanism and scoring rule with the paper's hash, which tells what the
mechanism is worth from what the hash is worth.

"scattering" is behind scattering coefficients of the images, public features
(`simulations/scattering.py`).

The paper's figures are read off, to about .01. Its text gives half the exponent for the
choice of entries that its figures are made with, and 1000 held-out samples where its
programs have 5000; ours follow the programs. Its MNIST program sums bytes modulo 256,
which costs it accuracy without noise. Data sets and draws of the noise are not the
same. Its epsilon is divided among the parties, though no sample is at two of them:
"gives away" in the CSV is what a release really costs.

Noise comes from a seeded generator by default: of the same distributions, but
protecting nobody. `--noise opendp` draws it as real parties do, which takes hours.
Finished pieces are kept under the output folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.scoring import ScoringRule, class_scores
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    SimulatedRelease,
)
from simulations import plots
from simulations.baselines import balanced_accuracy
from simulations.paper.privacy_settings import (
    DELTA,
    PAPER_DECAY,
    PARTIES,
    QUICK,
    READ_OFF,
    SHOWN,
    Plan,
    Task,
    label,
    readers,
)
from simulations.paper.top_t import PaperTopT
from simulations.plots import Line, Panel
from simulations.results import Row, chosen, markdown_table
from simulations.study import MODEL, Cells, Option, Study, at_least, code_digest, names

PAPER = "paper"
BEST = "paper, best T on the test set"
NONE = "non-private"
GAUSSIAN = "Gaussian"
LAPLACE = "Laplace"
OLD_HASH = ", the paper's hash"

_CODE = code_digest(
    *MODEL, "flwr_flynn.privacy", "simulations.paper", "simulations.baselines"
)


@lru_cache(maxsize=1)
def counted(
    task: Task, spec: HashSpec
) -> tuple[list[ClassCounts], npt.NDArray[np.int32]]:
    """Exact counts of each party, and the active bits of the test samples."""
    hasher = FlyHash(spec)
    counts = [
        ClassCounts.from_data(hasher, X, y, task.n_classes) for X, y in task.parties
    ]
    return counts, hasher.active(task.X_test)


def _accuracy(
    task: Task, counts: ClassCounts, active: npt.NDArray[np.int32], paper: bool
) -> float:
    rule = "balanced"
    if paper:
        rule = "novelty"
    if paper:
        decay = PAPER_DECAY
    else:
        decay = suggest_decay(counts, rule)
    predicted = class_scores(counts, active, ScoringRule(rule, decay)).argmax(axis=1)
    return float(balanced_accuracy(task.y_test, predicted, task.n_classes))


def releases(
    counts: ClassCounts, mechanism: Mechanism, plan: Plan, *about: object
) -> Iterator[ClassCounts]:
    """One party's releases, one for each repetition.

    Parameters
    ----------
    counts : ClassCounts
    mechanism : Mechanism
    plan : Plan
    *about : object
        Simulated noise is drawn from a seed that depends on these and on the mechanism,
        so that no two cells share it.
    """
    if plan.noise == "simulated":
        mechanism = SimulatedRelease(
            mechanism, _seed(repr((plan.seed, mechanism, about)))
        )
    return (mechanism.release(counts) for _ in range(plan.repetitions))


def clipped(counts: ClassCounts) -> ClassCounts:
    """A release without entries below zero, as line 17 of the paper's Algorithm 2 has
    it.
    """
    array = np.maximum(counts.array, 0)
    return ClassCounts(
        array,
        hash_nnz=counts.hash_nnz,
        spec_fingerprint=counts.spec_fingerprint,
        noise=counts.noise,
    )


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def mechanisms(
    kind: str, task: Task, spec: HashSpec, epsilon: float, plan: Plan
) -> list[tuple[int, Mechanism]]:
    """The mechanisms of one cell, each behind its T (0 where it has none)."""
    common: dict[str, Any] = {"hash_nnz": spec.hash_nnz, "n_classes": task.n_classes}
    if kind == PAPER:
        return [
            (t, PaperTopT(epsilon, t, accounting="code", n_parties=PARTIES, **common))
            for t in plan.released
        ]
    if kind == LAPLACE:
        return [(0, LaplaceCounts(epsilon, **common))]
    return [(0, GaussianCounts(epsilon, DELTA, **common))]


def private(
    kind: str, task: Task, spec: HashSpec, epsilon: float, plan: Plan
) -> list[Row]:
    """Scores of every repetition, for one mechanism, hash and epsilon.

    Returns
    -------
    list of dict
        One for each T: ``T``, ``scores``, and ``gives away``, the epsilon that a
        release really costs.
    """
    parts, active = counted(task, spec)
    rows = []
    for released, mechanism in mechanisms(kind, task, spec, epsilon, plan):
        by_party = [
            releases(part, mechanism, plan, task.name, party)
            for party, part in enumerate(parts)
        ]
        scores = []
        for drawn in zip(*by_party, strict=True):
            if kind == PAPER:
                summed = reduce(add, map(clipped, drawn))
            else:
                summed = reduce(add, drawn)
            scores.append(_accuracy(task, summed, active, kind == PAPER))
        rows.append(
            {
                "T": released,
                "scores": scores,
                "gives away": mechanism.epsilon(mechanism.delta),
            }
        )
    return rows


def exact(task: Task, spec: HashSpec, paper: bool) -> list[Row]:
    """Scores without noise, as `private` has them."""
    parts, active = counted(task, spec)
    return [
        {
            "T": 0,
            "scores": [_accuracy(task, reduce(add, parts), active, paper)],
            "gives away": math.inf,
        }
    ]


def jobs(task: Task, plan: Plan) -> Iterator[tuple[str, str, HashSpec, float]]:
    """Cells of one data set: setting, mechanism, hash and epsilon (0.0 without noise)."""
    yield task.name, NONE, task.spec(None, 0.0, plan.seed), 0.0
    for epsilon in plan.epsilons:
        yield task.name, GAUSSIAN, task.spec(epsilon, DELTA, plan.seed), epsilon
        yield task.name, LAPLACE, task.spec(epsilon, 0.0, plan.seed), epsilon
    for spec in task.paper_specs(plan.seed):
        setting = label(task, spec)
        yield setting, NONE, spec, 0.0
        for epsilon in plan.epsilons:
            for mechanism in (PAPER, GAUSSIAN + OLD_HASH, LAPLACE + OLD_HASH):
                yield setting, mechanism, spec, epsilon


def measure(task: Task, plan: Plan, cells: Cells) -> list[Row]:
    """All rows of one data set, from `cells` where they are there already.

    Returns
    -------
    list of dict
        ``setting`` names the data and, where it is the paper's, the hash;
        ``mechanism``, ``epsilon`` (0.0 without noise), ``T``, ``mean``, ``sd``,
        ``repetitions``, and more about the hash.
    """
    rows: list[Row] = []
    for setting, name, spec, epsilon in jobs(task, plan):
        if epsilon:
            work = partial(
                private, name.removesuffix(OLD_HASH), task, spec, epsilon, plan
            )
            released: Sequence[int] = ()
            if name == PAPER:
                released = plan.released
            drawn: tuple[Any, ...] = (
                plan.noise,
                plan.seed,
                plan.repetitions,
                released,
            )
        else:
            work = partial(exact, task, spec, paper=setting != task.name)
            drawn = ()
        measured = cells.finish(
            f"{setting}: {name} {epsilon:g}",
            (task.digest, spec.to_dict(), drawn, _CODE),
            work,
        )
        sizes = {"m": spec.hash_dim, "s": spec.row_nnz, "rho": spec.hash_nnz}
        for row in measured:
            scores = np.array(row["scores"])
            figures = {"mean": float(scores.mean()), "sd": 0.0}
            if len(scores) > 1:
                figures["sd"] = float(scores.std(ddof=1))
            about = {
                "setting": setting,
                "n": len(task.X),
                "mechanism": name,
                "epsilon": epsilon,
                "T": row["T"] or "",
            }
            rows.append(
                about
                | figures
                | {"repetitions": len(scores), "gives away": row["gives away"]}
                | sizes
            )
    return rows + best(rows)


def best(rows: Sequence[Row]) -> list[Row]:
    """Rows of the paper's mechanism for the T with the best mean on the test set, for
    each setting and epsilon.
    """
    mine = chosen(rows, mechanism=PAPER)
    pairs = dict.fromkeys((row["setting"], row["epsilon"]) for row in mine)
    groups = [
        chosen(mine, setting=setting, epsilon=epsilon) for setting, epsilon in pairs
    ]
    return [
        max(group, key=lambda row: row["mean"]) | {"mechanism": BEST}
        for group in groups
    ]


def table(rows: Sequence[Row]) -> list[Row]:
    """The printed comparison: lines for the paper's hashes, each data set's new ones
    below them.
    """
    lines: list[Row] = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        if setting in READ_OFF:
            figures = READ_OFF[setting]
            shown = {f"{e:g}": f"{figures[e]:.3f}" for e in SHOWN}
            lines.append(
                {"setting": setting, "mechanism": "paper, read off"}
                | shown
                | {NONE: f"{figures[None]:.3f}"}
            )
        mine = chosen(rows, setting=setting)
        plain = f"{chosen(mine, mechanism=NONE)[0]['mean']:.3f}"
        for name in (BEST, GAUSSIAN, LAPLACE, GAUSSIAN + OLD_HASH, LAPLACE + OLD_HASH):
            means = {
                row["epsilon"]: f"{row['mean']:.3f} ± {row['sd']:.3f}"
                for row in chosen(mine, mechanism=name)
            }
            if means:
                shown = {f"{e:g}": means.get(e, "") for e in SHOWN}
                # Without noise: the paper's hash with the paper's scoring rule, else
                # ours with ours.
                lines.append(
                    {"setting": setting, "mechanism": name} | shown | {NONE: plain}
                )
    return lines


def _line(name: str, along: str, rows: Sequence[Row]) -> Line:
    rows = sorted(rows, key=lambda row: row[along] or 0)
    x, mean, sd = ([row[key] for row in rows] for key in (along, "mean", "sd"))
    return Line(name, x, mean, sd)


def _panels(rows: Sequence[Row], setting: str) -> tuple[Panel, Panel]:
    """Accuracy of the paper's mechanism against T, a line for each epsilon; that of all
    against epsilon.
    """
    mine = chosen(rows, setting=setting)
    ours = chosen(rows, setting=setting.split(",")[0])
    of_paper = chosen(mine, mechanism=PAPER)
    by_t = [
        _line(f"epsilon {epsilon:g}", "T", chosen(of_paper, epsilon=epsilon))
        for epsilon in sorted({row["epsilon"] for row in of_paper})
    ]
    names = (BEST, GAUSSIAN, LAPLACE, GAUSSIAN + OLD_HASH, LAPLACE + OLD_HASH)
    by_epsilon = [
        _line(name, "epsilon", chosen([*mine, *ours], mechanism=name)) for name in names
    ]
    read = [
        (epsilon, value)
        for epsilon, value in READ_OFF.get(setting, {}).items()
        if epsilon is not None
    ]
    if read:
        x, y = zip(*read, strict=True)
        by_epsilon.append(
            Line(
                "paper, read off its figure",
                x,
                y,
                look={"linestyle": "none", "marker": "x"},
            )
        )
    plain = [
        (
            "non-private, the paper's hash and scoring rule",
            chosen(mine, mechanism=NONE)[0]["mean"],
        )
    ]
    plain += [
        ("non-private, ours", row["mean"]) for row in chosen(ours, mechanism=NONE)
    ]
    axes = {"ylabel": "balanced accuracy"}
    first = Panel(
        setting, by_t, axes | {"xlabel": "T, entries released by each party"}, plain[:1]
    )
    return first, Panel(
        setting,
        [line for line in by_epsilon if line.x],
        axes | {"xlabel": "epsilon"},
        plain,
    )


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """The paper's Figures 3, 7, 8 and 9, and one like it for all ten digits, as far as
    there are data for them.
    """
    panels = {
        row["setting"]: _panels(rows, row["setting"])
        for row in chosen(rows, mechanism=PAPER)
    }
    made = [name for name in panels if name.startswith("synthetic")]
    figures = []
    for number, kind in ((7, 0), (8, 1)):
        if made:
            path = folder / f"figure{number}.png"
            figures.append(
                plots.lines([panels[name][kind] for name in made], path, (3.4, 3.1), 4)
            )
    pairs = [("figure3", "synthetic n=1e5, m=300, rho=30")]
    for name in panels:
        if name.startswith("MNIST") and "3 v 8" in name:
            pairs.append(("figure9", name))
        elif name.startswith("MNIST"):
            pairs.append(("mnist10", name))
    for name, setting in pairs:
        if setting in panels:
            figures.append(
                plots.lines(
                    panels[setting], folder / f"{name}.png", (4.6, 4.2), legend=0
                )
            )
    return figures


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    known = (
        "synthetic-1e4, synthetic-1e5, mnist-3v8, mnist, mnist-scattering, "
        "fashion_mnist-scattering"
    )
    study = Study(
        "privacy", "Privacy: Figures 3, 7, 8 and 9", __doc__, arguments,
        noise=Option("default: simulated", str, "simulated", ("simulated", "opendp")),
        sets=Option(f"{known}; default: all", names, ()),
        repetitions=Option("draws of the noise (default: 10, quick: 3)", at_least(1)),
    )  # fmt: skip
    plan = study.sized(
        Plan(), QUICK, noise=study.chosen.noise, repetitions=study.chosen.repetitions
    )
    tasks = readers(study.chosen.data, study.chosen.quick)
    rows = list[Row]()
    for name in study.wanted(tasks):
        task = tasks[name]()
        rows += measure(task, plan, study.cells)
    source = "OpenDP's"
    if plan.noise == "simulated":
        source = "from a seed: for simulations, no privacy"
    what = (
        f"Balanced accuracy, {PARTIES} parties, mean ± sd of {plan.repetitions} draws "
        f"of the noise ({source}), "
        f"by epsilon\n{GAUSSIAN}: delta {DELTA:g}; others pure. Nothing but the "
        "paper's T is "
        "picked on test data."
    )
    shown = markdown_table(table(rows))
    print(what, shown, sep="\n\n")
    study.write("privacy", rows)
    study.finish([study.about, what, shown, *draw(rows, study.folder)])
