"""Cost of skewed parties: FlyNN beside FedAvg and FedProx, on partitions from IID to one class per party.

FlyNN is that of the package: one round of exact counts, features as they are (rows of the hash signed where some values
are below zero), sizes and read-out by default, decay suggested by the summed counts. It must equal the model of the
pooled samples bit for bit, and the table shows the SHA-256 of its counts. "FlyNN committee" is the default of
`flwr run .` (the best three of six hashes, chosen by the parties), "FlyNN refined" the same with six rounds of
refinement; in every cell they must have the SHA-256 of the model of the pooled samples.

Beside it softmax regression (LR) and a perceptron (MLP), trained through Flower's own FedAvg and FedProx with all
parties in every round, and in a single round. They get what helps them: features standardised by the pooled samples;
learning rate and epochs per round from a grid, the best after as many rounds on the *IID* split of the same training
samples, a fifth of them held out for that; for FedProx, which is there to let parties do more between rounds, mu and
epochs likewise, up to 20 of them, but on "Dirichlet 0.1", where parties differ. Nothing is chosen on held-out samples.
Accuracy is that after the last round.

A figure with an asterisk is of parties of which none takes more than one step in a round, because it has no more
samples than a batch and goes through them once. Averaging such steps is gradient descent on the pooled samples, however
they are split, and FedProx is then FedAvg: a star says that skew could do no harm there, not that the method stands it.
The grid prefers that where parties are small. Likewise, a tiny mu makes FedProx all but FedAvg: see the recipes at the
end. With few held-out samples in a party, the worst party's accuracy has few possible values.

"Personal" figures are of parties that may add their own class frequencies to the model, each by the same rule on its
own training samples (`model.personal`): FlyNN by exact leave-one-out, LR and MLP as they are trained. To the log
probabilities of LR and MLP a party adds the logarithm of its frequencies less that of the pooled ones, which these
models have learned.

Shards are of equal size: the few samples left over are in none, so that their counts are not those of other splits.
Bytes are those of one party, up and down together, with the final model handed out, without Flower's envelopes.
Finished pieces are kept under the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import pandas as pd
from flwr.common import NDArrays, ndarrays_to_parameters
from scipy.special import log_softmax

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashPlan, HashSpec
from flwr_flynn.app.data.datasets import Dataset, Share
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate as federate_in_process
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.model.personal import is_better, log_frequencies
from simulations import noniid_plots as plots
from simulations import runner
from simulations.gradients import MODELS, Recipe, federate, logits
from simulations.results import (
    FEDERATED,
    Cells,
    Row,
    about,
    code_digest,
    markdown_table,
    output_folder,
    parser,
    text_table,
    write_csv,
    write_summary,
)
from simulations.splits import LEAST, SHIFT, SPLITS, Parts, deal_out, read
from simulations.workers import WHERE, Workers, workers

Array = npt.NDArray[Any]

FLYNN = "FlyNN"
ALGORITHMS = ("FedAvg", "FedProx", "one round")
COMMITTEES = {"FlyNN committee": 0, "FlyNN refined": 6}
"""The default model by its rounds of refinement."""

METHODS = (FLYNN, *COMMITTEES, *(f"{algorithm} {model}" for model in MODELS for algorithm in ALGORITHMS))

RATES = (0.1, 0.3, 1.0, 3.0)
EPOCHS = (1, 5)
EPOCHS_AT_ONCE = (5, 20, 80, 320)
EPOCHS_NEAR = (1, 5, 20)  # of FedProx
MUS = (0.001, 0.01, 0.1, 1.0)
TUNED_ON, MU_TUNED_ON = "IID", "Dirichlet 0.1"

_VERSION = 3  # raise it when the content of a cell changes
_COMMON = ("flwr_flynn.app.data", "simulations.splits", "simulations.runner", "simulations.nodes")
_CODE = {
    True: code_digest(*FEDERATED, *_COMMON),
    False: code_digest("simulations.gradients", "flwr_flynn.model.personal", *_COMMON),
}


@dataclass(frozen=True)
class Plan:
    """Extent of a run.

    Parameters
    ----------
    splits : tuple of str
        Names in `splits.SPLITS`.
    parties : tuple of int
    rounds : int
        Rounds of FedAvg and FedProx.
    seeds : tuple of int
        Seeds of split, held-out samples and training.
    largest : int
        Samples of a data set that are used.
    """

    splits: tuple[str, ...] = tuple(SPLITS)
    parties: tuple[int, ...] = (10, 100)
    rounds: int = 50
    seeds: tuple[int, ...] = (0,)
    largest: int = 5000


QUICK = Plan(splits=("IID", "Dirichlet 0.1", "1 class", "feature shift"), parties=(10,), rounds=20)
FULL = Plan(rounds=100, seeds=(0, 1, 2))


def flynn(parts: Parts, where: str | Workers) -> Row:
    """Count at the parties and over the pooled samples; the scores, the bytes, and both SHA-256."""
    train, n_parties = parts.pooled, len(parts.shares)
    spec = HashSpec.suggest(train.X.shape[1], len(train.y), parts.n_classes, signed=bool(train.X.min() < 0))
    tree = runner.run(parts.parties(), where, spec=spec, classes=range(parts.n_classes))
    counts = tree.model.counts_
    pooled = ClassCounts.from_data(FlyHash(spec), train.X, train.y, parts.n_classes)
    if counts != pooled:
        raise AssertionError("the sum of the parties' counts is not that of the pooled samples")
    handed_out = _size(codec.encode(counts))
    scores = parts.scores(tree.model.predict(train.X_test))
    scores |= _personal(parts, lambda share: _personalized(tree.model, share).predict(share.X_test))
    traffic = tree.traffic
    shown = {"sha256": counts.sha256(), "pooled sha256": pooled.sha256()}
    return scores | _bytes(traffic.up, traffic.down, n_parties, handed_out) | {"rounds": 1} | shown


def committee(parts: Parts, refine_rounds: int) -> Row:
    """Run all phases at the parties, and fit the pooled samples; the scores, the bytes, and both SHA-256."""
    train, n_parties = parts.pooled, len(parts.shares)
    plan = HashPlan(train.X.shape[1], parts.n_classes, len(train.y), "auto")
    options = RunOptions(plan, range(parts.n_classes), n_parties, min_examples=1, refine_rounds=refine_rounds)
    run = federate_in_process(options, parts.parties(min_examples=1))
    pooled = FlyNNClassifier(refine_rounds=refine_rounds).fit(train.X, train.y)
    if set(train.y) == set(range(parts.n_classes)) and run.model.model_.sha256() != pooled.model_.sha256():
        raise AssertionError("the parties' model is not that of the pooled samples")
    scores = parts.scores(run.model.predict(train.X_test))
    scores |= _personal(parts, lambda share: _personalized(run.model, share).predict(share.X_test))
    up, down = (sum(getattr(each, way) for each in run.traffic.values()) for way in ("up", "down"))
    return scores | _bytes(up, down, n_parties, 0) | {"rounds": run.num_rounds}


def by_gradients(parts: Parts, model: str, recipe: Recipe, n_rounds: int, where: str | Workers, seed: int) -> Row:
    """Train through Flower's strategy; the scores after the last round, and the accuracy after each.

    Parameters
    ----------
    parts : Parts
        Standardised.
    model : str
        One of `MODELS`.
    recipe : Recipe
    n_rounds : int
    where : see `runner.run`
    seed : int
    """
    points, curve = parts.pooled, []

    def watch(weights: NDArrays) -> None:
        curve.append(float((logits(weights, points.X_test).argmax(axis=1) == points.y_test).mean()))

    shares = [(share.X, share.y) for share in parts.shares]
    weights, traffic = federate(shares, parts.n_classes, MODELS[model], recipe, n_rounds, watch, where, seed)
    scores = parts.scores(logits(weights, points.X_test).argmax(axis=1))
    scores |= _personal(parts, lambda share: with_own_frequencies(share, weights, parts.class_table.sum(axis=0)))
    cost = _bytes(traffic.up, traffic.down, len(shares), _size(weights))
    return scores | cost | {"rounds": n_rounds, "recipe": asdict(recipe), "curve": curve}


def _personalized(model: FlyNNClassifier, share: Share) -> FlyNNClassifier:
    return model.personalized(share.X, share.y) if len(share.y) else model


def _personal(parts: Parts, predict: Callable[[Share], Array]) -> Row:
    """Scores of each party's own predictions of its held-out samples."""
    nothing = np.zeros(0, np.int64)
    predicted = [predict(share) if len(share.y_test) else nothing for share in parts.shares]
    found = parts.scores(np.concatenate(predicted))
    return {f"personal {name}": found[name] for name in ("accuracy", "worst")}


def with_own_frequencies(share: Share, weights: NDArrays, n_per_class: Array) -> Array:
    """Predicted classes of a party's held-out samples, (n,), with its own class frequencies where it decides for them.

    `n_per_class`, (L,), are the samples that the weights were trained on.
    """
    train, test = (log_softmax(logits(weights, X), axis=1) for X in (share.X, share.X_test))
    own = np.bincount(share.y, minlength=len(n_per_class))
    if len(share.y) > 1:
        prior = log_frequencies(own) - log_frequencies(n_per_class)
        rows, after = np.arange(len(share.y)), log_softmax(train + prior, axis=1)
        right = (after.argmax(axis=1) == share.y) * 1.0 - (train.argmax(axis=1) == share.y)
        if is_better(right, after[rows, share.y] - train[rows, share.y]):
            test = test + prior
    predicted: Array = test.argmax(axis=1)
    return predicted


def _size(arrays: NDArrays) -> int:
    return sum(map(len, ndarrays_to_parameters(arrays).tensors))


def _bytes(up: int, down: int, n_parties: int, handed_out: int) -> Row:
    return {"up": round(up / n_parties), "down": round(down / n_parties) + handed_out}


class Study:
    """All cells of one data set.

    Parameters
    ----------
    data : Dataset
    plan : Plan
    cells : Cells
        Finished cells.
    where : str or Workers
        As for `runner.run`.
    """

    def __init__(self, data: Dataset, plan: Plan, cells: Cells, where: str | Workers) -> None:
        self.data, self.plan, self.cells, self.where = data, plan, cells, where
        self._digest = joblib.hash((data.X, data.y))

    def rows(self) -> Iterator[Row]:
        """A row for every number of parties, split, method and seed."""
        for n_parties, split, seed in product(self.plan.parties, self.plan.splits, self.plan.seeds):
            largest = int(self._parts(split, n_parties, seed).class_table.sum(axis=1).max())
            for method in METHODS:
                about = {"set": self.data.name, "parties": n_parties, "split": split, "method": method, "seed": seed}
                row = self.cell(n_parties, split, method, seed)
                steps = Recipe(**row["recipe"]).steps(largest) if "recipe" in row else 0
                yield about | row | {"steps": steps}

    def cell(self, n_parties: int, split: str, method: str, seed: int) -> Row:
        """The row of one cell."""
        key: Row = {"job": f"{n_parties} parties, {split}, {method}", "seed": seed}
        if method == FLYNN:
            return self._kept(key, True, lambda: [flynn(self._parts(split, n_parties, seed), self.where)])[0]
        if method in COMMITTEES:
            rounds = COMMITTEES[method]
            return self._kept(key, True, lambda: [committee(self._parts(split, n_parties, seed), rounds)])[0]
        algorithm, model = method.rsplit(" ", 1)
        n_rounds = 1 if algorithm == "one round" else self.plan.rounds
        recipe = self.recipe(n_parties, algorithm, model)

        def compute() -> list[Row]:
            parts = self._parts(split, n_parties, seed).standardised()
            return [by_gradients(parts, model, recipe, n_rounds, self.where, seed)]

        return self._kept(key | {"recipe": asdict(recipe), "rounds": n_rounds}, False, compute)[0]

    def recipe(self, n_parties: int, algorithm: str, model: str) -> Recipe:
        """The best recipe of the grid, see the module."""
        if algorithm == "FedProx":
            found = self.recipe(n_parties, "FedAvg", model)
            candidates, split = [replace(found, epochs=n, mu=mu) for n in EPOCHS_NEAR for mu in MUS], MU_TUNED_ON
        else:
            epochs = EPOCHS_AT_ONCE if algorithm == "one round" else EPOCHS
            candidates, split = [Recipe(rate, each) for rate in RATES for each in epochs], TUNED_ON
        n_rounds = 1 if algorithm == "one round" else self.plan.rounds

        def compute() -> list[Row]:
            parts = self._parts(split, n_parties, 0).for_validation(seed=1).standardised()
            rows = [by_gradients(parts, model, recipe, n_rounds, self.where, 0) for recipe in candidates]
            return [{name: row[name] for name in ("accuracy", "recipe")} for row in rows]

        grid = [asdict(recipe) for recipe in candidates]
        key = {"job": f"{n_parties} parties, recipe of {algorithm} {model}", "grid": grid, "rounds": n_rounds}
        tried = self._kept(key, False, compute)
        return Recipe(**max(tried, key=lambda row: row["accuracy"])["recipe"])

    def _parts(self, split: str, n_parties: int, seed: int) -> Parts:
        return deal_out(self.data, split, n_parties, seed)

    def _kept(self, key: Row, is_flynn: bool, compute: Any) -> list[Row]:
        key |= {"set": self.data.name, "data": self._digest, "code": _CODE[is_flynn], "version": _VERSION}

        def timed() -> list[Row]:
            start = time.perf_counter()
            rows = compute()
            seconds = time.perf_counter() - start
            return [row | {"seconds": seconds} for row in rows]

        return self.cells.finish(key, timed)


# ---- what is shown


def table(rows: Sequence[Row], figure: str) -> list[Row]:
    """A line for every split, a column for every method: the mean over seeds of a figure, with an asterisk where no
    party takes more than one step in a round (see the module)."""
    lines = []
    for split, mine in pd.DataFrame(rows).groupby("split", sort=False):
        of = mine.groupby("method", sort=False)
        stars = of["steps"].agg(lambda steps: "*" if (steps == 1).all() else "")
        shown = of[figure].mean().map("{:.3f}".format) + stars
        lines.append({"split": split} | shown.to_dict() | _checksums([row for row in rows if row["split"] == split]))
    return lines


def _checksums(rows: Sequence[Row]) -> Row:
    first = next(row for row in rows if row["method"] == FLYNN)
    same = all(row["sha256"] == row["pooled sha256"] for row in rows if row["method"] == FLYNN)
    return {"FlyNN's counts": first["sha256"][:12], "those of the pooled points": "the same" if same else "OTHERS"}


def costs(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: rounds, bytes of a party, mean and lowest accuracy over the splits, and how often and
    when it was as accurate as FlyNN on the same split."""
    goal = {(row["split"], row["seed"]): row["accuracy"] for row in rows if row["method"] == FLYNN}
    lines = []
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        reached = [first_round_at(row.get("curve", [row["accuracy"]]), goal[row["split"], row["seed"]]) for row in mine]
        there = [number for number in reached if number]
        per_round = np.mean([(row["up"] + row["down"]) / len(row.get("curve", [0])) for row in mine])
        lines.append(
            {
                "method": method,
                "rounds": str(mine[0]["rounds"]),
                "kB per party": round(float(np.mean([row["up"] + row["down"] for row in mine])) / 1000),
                "accuracy, mean of splits": float(np.mean([row["accuracy"] for row in mine])),
                "lowest": min(row["accuracy"] for row in mine),
                "worst party, mean of splits": float(np.mean([row["worst"] for row in mine])),
                "with own frequencies": float(np.mean([row["personal accuracy"] for row in mine])),
                "worst party with them": float(np.mean([row["personal worst"] for row in mine])),
                "reached FlyNN's": f"{len(there)} of {len(mine)}",
                "rounds until then (median)": f"{_rounds_of(mine[0], np.median(there)):g}" if there else "-",
                "kB until then": f"{np.median(there) * per_round / 1000:.0f}" if there else "-",
            }
        )
    return lines


def _rounds_of(row: Row, n_points: float) -> float:
    """Rounds up to a point of the curve; all of them where there is no curve."""
    return n_points if "curve" in row else float(row["rounds"])


def first_round_at(curve: Sequence[float], goal: float) -> int | None:
    """The first round with at least the accuracy `goal`."""
    return next((number for number, accuracy in enumerate(curve, 1) if accuracy >= goal), None)


def summary(rows: Sequence[Row], recipes: Sequence[Row], plan: Plan) -> list[str]:
    """The results, paragraph by paragraph."""
    parts = [about(__doc__)]
    parts.append(f"Seeds {', '.join(map(str, plan.seeds))}; FedAvg and FedProx: {plan.rounds} rounds.")
    for (name, n_parties), mine in _grouped(rows):
        parts.append(f"## {name}, {n_parties} parties")
        parts += ["Accuracy on all held-out samples:", markdown_table(table(mine, "accuracy"))]
        worst, personal, both = (
            [{k: v for k, v in line.items() if k == "split" or k in METHODS} for line in table(mine, figure)]
            for figure in ("worst", "personal accuracy", "personal worst")
        )
        parts += [
            f"At the party where it is lowest, of those with {LEAST} or more held-out samples:", markdown_table(worst),
            "With the parties' own frequencies:", markdown_table(personal),
            "With these, at the party where it is lowest:", markdown_table(both),
            "What it costs (balanced accuracy, and every cell: `noniid.csv`):", markdown_table(costs(mine)),
            f"![accuracy by split]({plots.name_of('accuracy', name, n_parties)})",
            f"![accuracy by bytes]({plots.name_of('bytes', name, n_parties)})",
            f"![label skew]({plots.name_of('skew', name, n_parties)})",
        ]  # fmt: skip
    return [*parts, "## Recipes that the grid led to", markdown_table(recipes)]


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, int], list[Row]]]:
    for group in dict.fromkeys((row["set"], row["parties"]) for row in rows):
        yield group, [row for row in rows if (row["set"], row["parties"]) == group]


def run(sources: Sequence[str], plan: Plan, folder: Path, where: str | Workers, arguments: Sequence[str]) -> list[Row]:
    """Run all cells, and write CSV, figures and summary."""
    start = time.perf_counter()
    rows: list[Row] = []
    recipes: list[Row] = []
    cells = Cells(folder / "cells")
    # All are read before the first is worked on: a name that is wrong shows at once.
    for data in [read(source, plan.largest) for source in sources]:
        study = Study(data, plan, cells, where)
        rows += study.rows()
        for n_parties in plan.parties:
            for method in METHODS[1 + len(COMMITTEES) :]:
                recipe = study.recipe(n_parties, *method.rsplit(" ", 1))
                recipes.append({"set": study.data.name, "parties": n_parties, "method": method} | asdict(recipe))
            splits = [split for split in plan.splits if split != SHIFT]  # whose labels are those of IID
            dealt = {split: deal_out(study.data, split, n_parties, plan.seeds[0]).class_table for split in splits}
            plots.skew(dealt, f"{study.data.name}: training samples of {n_parties} parties by class", folder /
                       plots.name_of("skew", study.data.name, n_parties))  # fmt: skip
    hidden = ("curve", "recipe")
    write_csv(folder / "noniid.csv", [{k: v for k, v in row.items() if k not in hidden} for row in rows])
    for (name, n_parties), mine in _grouped(rows):
        title = f"{name}, {n_parties} parties"
        plots.accuracy(mine, METHODS, title, folder / plots.name_of("accuracy", name, n_parties))
        plots.by_bytes(mine, METHODS, title, folder / plots.name_of("bytes", name, n_parties))
    parts = summary(rows, recipes, plan)
    write_summary(folder, "Non-IID parties", "noniid", arguments, time.perf_counter() - start, parts)
    return rows


def main(arguments: list[str]) -> None:
    """Run, print, write."""
    options = parser("noniid", __doc__)
    options.add_argument("--full", action="store_true", help=f"{len(FULL.seeds)} seeds and {FULL.rounds} rounds")
    options.add_argument("--sets", default="", help="sets of --data, with commas between (default: satimage, mnist)")
    options.add_argument("--parties", default="", help="numbers of parties, with commas between (default: 10,100)")
    options.add_argument("--where", choices=WHERE, default="process", help="where parties run")
    options.add_argument("--ray-address", help="address of a Ray cluster; with --where ray")
    chosen = options.parse_args(arguments)
    plan = QUICK if chosen.quick else FULL if chosen.full else Plan()
    if chosen.parties:
        try:
            plan = replace(plan, parties=tuple(int(n) for n in chosen.parties.split(",")))
        except ValueError:
            options.error(f"--parties: expected integers with commas between, got {chosen.parties}")
        if min(plan.parties) < 1:
            options.error(f"--parties: expected at least 1, got {min(plan.parties)}")
    sources = ["digits"]
    if chosen.data:
        names = [name.strip() for name in (chosen.sets or "satimage,mnist").split(",")]
        sources += [str(chosen.data / f"{name}.npz") for name in names]
    folder = output_folder(chosen)
    try:
        with workers(chosen.where, address=chosen.ray_address) as where:
            rows = run(sources, plan, folder, where, arguments)
    except FlyNNError as error:
        options.error(str(error))
    for (name, n_parties), mine in _grouped(rows):
        print(f"\n{name}, {n_parties} parties: accuracy")
        print(text_table(table(mine, "accuracy")))
        print(text_table(costs(mine)))
