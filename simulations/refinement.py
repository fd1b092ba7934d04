"""Accuracy against bytes: one round of counts, the Gram matrix, rounds that refine the counts, and FedAvg.

Ten parties with Dirichlet 0.1 labels. FlyNN is that of `flwr run .` with ``refine-rounds``: its accuracy after each
round is that of the model that a run of so many rounds ends with, and its bytes are all messages of a party so far, up
and down, with those of handing the model out at the end. "FlyNN pairs" has a Gram matrix of 2048 rows in their place.
FedAvg trains softmax regression (LR) and a perceptron with one hidden layer of 64 (MLP) in float32 on the same parts.
It gets what helps it: features standardised by the pooled samples, and the learning rate and epochs of a grid that are
best on the very test samples after ten rounds; of its messages only the arrays count. Tested on the test split of a
set that has one, else on a fifth of the samples, the same for all methods."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import joblib
import numpy as np
import numpy.typing as npt
from flwr.common import NDArrays

from flwr_flynn import HashPlan
from flwr_flynn.app.data.datasets import Share
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.codec import packed_weights, write_tensors
from flwr_flynn.federated.options import RunOptions, RunOptionsDict
from flwr_flynn.federated.run import ExchangeResult, Run
from simulations import gradients
from simulations.baselines import balanced_accuracy
from simulations.gradients import MODELS, Recipe, logits
from simulations.plots import _panels, _save
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
from simulations.splits import Parts, deal_out, read
from simulations.traffic import EPOCHS, PARTIES, RATES, SPLIT, source_of

SETS = ("digits", "letters", "mnist", "fashion_mnist")
_SHOWN = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 30, 40, 50)  # rounds in the table
_CODE = code_digest(*FEDERATED, "flwr_flynn.app.data", "simulations.refinement", "simulations.gradients")


@dataclass(frozen=True)
class Plan:
    """Rounds of each method, rounds by which a recipe is chosen, samples of a set at most, efforts of FlyNN."""

    refine: int = 12
    average: int = 50
    trial: int = 10
    largest: int | None = None
    efforts: tuple[str, ...] = ("default",)
    gram: int = 2048


QUICK = Plan(refine=3, average=5, trial=2, largest=1500, gram=256)


@dataclass(frozen=True, eq=False)
class Task:
    """Parties and the samples that test."""

    parts: Parts
    X_test: npt.NDArray[np.float64]
    y_test: npt.NDArray[np.int64]

    def score(self, predicted: npt.NDArray[np.int64]) -> float:
        """Balanced accuracy of predictions of the test samples."""
        return float(balanced_accuracy(self.y_test, predicted, self.parts.n_classes))


def task_of(source: str, plan: Plan) -> Task:
    """The parties of a data set, and its test split or a fifth of it."""
    data = read(source, plan.largest)
    parts = deal_out(data, SPLIT, PARTIES, seed=0)
    if source.endswith(".npz"):
        with np.load(source, allow_pickle=False) as archive:
            if "X_test" in archive.files:
                shares = [_taught(share) for share in parts.shares]
                y_test = np.searchsorted(np.unique(archive["y"]), archive["y_test"])
                return Task(replace(parts, shares=shares), archive["X_test"], y_test)
    return Task(parts, parts.pooled.X_test, parts.pooled.y_test)


def _taught(share: Share) -> Share:
    """The share with its held-out samples among those that it trains on."""
    X, y = np.concatenate([share.X, share.X_test]), np.concatenate([share.y, share.y_test])
    return replace(share, X=X, y=y, X_test=X[:0], y_test=y[:0])


def refined(task: Task, n_rounds: int, effort: str) -> list[Row]:
    """A row for the counts alone, and one for each round of the refinement."""
    parts, rows = task.parts, []
    options = RunOptions(**_given(parts, effort), refine_rounds=n_rounds)

    def watch(run: Run, taken: ExchangeResult) -> None:
        name = taken.phase.name
        if name != "selection" and not name.startswith("refinement"):
            return
        number = 0 if name == "selection" else int(name.split()[1])
        up, down = (sum(getattr(each, way) for each in run.traffic.values()) / PARTIES for way in ("up", "down"))
        accuracy = task.score(run.model.predict(task.X_test))
        rows.append({"round": 1 + number, "up": up, "down": down, "accuracy": accuracy})

    run = federate(options, parts.parties(), watch)
    weights = sum(map(len, write_tensors(packed_weights(run.model.model_.refined or ()))))
    for row in rows:  # the model goes out at the end: the counts, and after a refinement the weights
        row["down"] += run.traffic["evaluation"].down / PARTIES - (weights if row["round"] == 1 else 0)
    return rows


def _given(parts: Parts, effort: str = "default") -> RunOptionsDict:
    n_samples, n_features = parts.pooled.X.shape
    plan = HashPlan(n_features, parts.n_classes, n_samples, "auto", effort=effort)
    return {"spec": plan, "classes": range(parts.n_classes), "min_parties": PARTIES}


def paired(task: Task, n_rows: int) -> list[Row]:
    """The row of a run with the Gram matrix."""
    run = federate(RunOptions(**_given(task.parts), gram=n_rows), task.parts.parties())
    up = sum(each.up for name, each in run.traffic.items() if name != "evaluation") / PARTIES
    down = sum(each.down for each in run.traffic.values()) / PARTIES
    return [{"round": 1, "up": up, "down": down, "accuracy": task.score(run.model.predict(task.X_test))}]


def averaged(task: Task, model: str, recipe: Recipe, n_rounds: int) -> list[Row]:
    """A row for each round of FedAvg."""
    train = task.parts.pooled.X
    mean, deviation = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    deviation[deviation == 0] = 1.0
    X_test, rows = ((task.X_test - mean) / deviation).astype(np.float32), []

    def watch(weights: NDArrays) -> None:
        size = sum(map(len, write_tensors(weights)))
        number = len(rows) + 1
        accuracy = task.score(logits(weights, X_test).argmax(axis=1))
        rows.append({"round": number, "up": number * size, "down": (number + 1) * size, "accuracy": accuracy})

    shares = [(share.X, share.y) for share in task.parts.standardised().shares]
    gradients.federate(shares, task.parts.n_classes, MODELS[model], recipe, n_rounds, watch, seed=0)
    return rows


def curves(source: str, plan: Plan, cells: Cells) -> Iterator[Row]:
    """Rows of all methods."""
    task, name = task_of(source, plan), Path(source).stem
    key = {"set": name, "data": joblib.hash((task.parts.pooled.X, task.X_test)), "code": _CODE}
    for effort in plan.efforts:
        method = "FlyNN" if effort == "default" else f"FlyNN {effort}"
        job = {"job": f"{method} {plan.refine}"}
        for row in cells.finish(key | job, partial(refined, task, plan.refine, effort)):
            yield {"set": name, "method": method} | row
    for row in cells.finish(key | {"job": f"pairs {plan.gram}"}, partial(paired, task, plan.gram)):
        yield {"set": name, "method": "FlyNN pairs"} | row
    for model in MODELS:
        tried = []
        for recipe in (Recipe(rate, epochs) for rate, epochs in product(RATES, EPOCHS)):
            about_it = key | {"job": f"{model} {plan.trial}", "recipe": asdict(recipe)}
            found = cells.finish(about_it, partial(averaged, task, model, recipe, plan.trial))
            tried.append((found[-1]["accuracy"], recipe))
        recipe = max(tried, key=lambda pair: pair[0])[1]
        about_it = key | {"job": f"{model} {plan.average}", "recipe": asdict(recipe)}
        for row in cells.finish(about_it, partial(averaged, task, model, recipe, plan.average)):
            yield {"set": name, "method": f"FedAvg {model}"} | row


def in_short(rows: Sequence[Row]) -> list[Row]:
    """The rounds of `_SHOWN`, in kB, with the accuracy gained since the first for each MB."""
    first = {(row["set"], row["method"]): row for row in reversed(rows)}
    lines = []
    for row in rows:
        if row["round"] not in _SHOWN:
            continue
        start = first[row["set"], row["method"]]
        spent = row["up"] + row["down"] - start["up"] - start["down"]
        gain = f"{(row['accuracy'] - start['accuracy']) / spent * 1e6:.4f}" if spent else ""
        line = {name: row[name] for name in ("set", "method", "round")}
        line |= {"kB up": round(row["up"] / 1e3), "kB down": round(row["down"] / 1e3)}
        lines.append(line | {"balanced accuracy": f"{row['accuracy']:.4f}", "gain per MB": gain})
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """For each set, balanced accuracy against the bytes of a party."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    plt, figure, axes = _panels(len(sets), 4.6, 3.6, most=2)
    for axis, name in zip(axes, sets, strict=True):
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if (row["set"], row["method"]) == (name, method)]
            spent, accuracy = [(row["up"] + row["down"]) / 1e3 for row in mine], [row["accuracy"] for row in mine]
            (line,) = axis.plot(spent, accuracy, ".-", label=method, linewidth=1, markersize=4)
            if method.startswith("FlyNN"):
                label = "_" if len(mine) == 1 else f"{method}, one round"
                axis.plot(spent[:1], accuracy[:1], "*", color=line.get_color(), markersize=14, label=label)
        axis.set(xscale="log", xlabel="kB of a party, up and down", ylabel="balanced accuracy", title=name)
        axis.legend(fontsize=8, loc="lower right")  # curves rise from the left
    _save(plt, figure, path)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("refinement", __doc__)
    options.add_argument("--sets", default=",".join(SETS), help="names of data sets, separated by commas")
    options.add_argument("--rounds", type=int, help="rounds of the refinement (default: 12, quick: 3)")
    options.add_argument("--efforts", default="default", help="efforts of FlyNN, separated by commas")
    chosen = options.parse_args(arguments)
    if chosen.data is not None and not chosen.data.is_dir():
        options.error(f"--data: expected a folder, got {chosen.data}")
    plan = QUICK if chosen.quick else Plan()
    if chosen.rounds is not None:
        if chosen.rounds < 1:
            options.error(f"--rounds: expected at least 1, got {chosen.rounds}")
        plan = replace(plan, refine=chosen.rounds)
    plan = replace(plan, efforts=tuple(chosen.efforts.split(",")))
    if wrong := set(plan.efforts) - {"quick", "default"}:  # with a Gram matrix there is no refinement
        options.error(f"--efforts: expected quick, default or both, got {sorted(wrong)[0]!r}")
    start, folder = time.perf_counter(), output_folder(chosen)
    cells, rows = Cells(folder / "cells"), []
    for name in chosen.sets.split(","):
        source = source_of(name, chosen.data)
        if source is not None:
            rows += list(curves(source, plan, cells))
            write_csv(folder / "rounds.csv", rows)
    print("\n" + text_table(in_short(rows)) + "\n")
    draw(rows, folder / "refinement.png")
    parts = [about(__doc__), markdown_table(in_short(rows)), "![accuracy against bytes](refinement.png)"]
    write_summary(folder, "Refinement", "refinement", arguments, time.perf_counter() - start, parts)
