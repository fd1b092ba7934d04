"""Bytes: packed counts beside their entropy, and FlyNN's traffic beside FedAvg's until it is as accurate.

First table: the counts of one party of 50 to 60000 samples, at the hyper-parameters of the paper's scaling experiment:
their zero-order entropy (what a code takes that codes every entry by itself), the bytes of `federated.compression`, how
long packing takes, the dense matrix in the narrowest type that holds it and in int64, and what the bits alone would
take, which is all that decay 0 reads.

Second table: ten parties, Dirichlet 0.1, a fifth of the samples held out. FlyNN is that of the package: sizes by
default, features as they are, the decay selected by the parties, all of its messages counted, the evaluation of the
model included. FedAvg trains softmax regression (LR) and a perceptron with one hidden layer of 64 (MLP) in float32 on
the same parts until it first has FlyNN's accuracy on the same held-out samples. It gets what helps it: features
standardised by the pooled samples, learning rate and epochs per round from a grid by the very held-out samples (fewest
bytes to FlyNN's accuracy, else the highest accuracy), and of its messages only the arrays count: the weights down and
up in every round, and the final ones down. Envelopes of Flower and of the network are in no figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from flwr.common import NDArrays
from scipy.stats import entropy

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.federated import compression
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.codec import write_tensors
from flwr_flynn.federated.options import RunOptions
from simulations import gradients
from simulations import traffic_plots as plots
from simulations.bench import PAPER_SHAPES, Shape, best_in_turn
from simulations.gradients import MODELS, Recipe, logits
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

PARTY_SIZES = (50, 180, 600, 6000, 60000)
FLYNN = "FlyNN"
PARTIES, SPLIT = 10, "Dirichlet 0.1"
RATES, EPOCHS = (0.3, 1.0, 0.1, 3.0, 0.03), (5, 1)  # what tends to be best comes first
COMPARED = ("digits", "letters", "mnist", "fashion_mnist")

_CODE = code_digest(
    *FEDERATED, "flwr_flynn.app.data", "simulations.traffic", "simulations.splits", "simulations.gradients"
)


@dataclass(frozen=True)
class Plan:
    """Extent of a run.

    Parameters
    ----------
    rounds : int
        Largest number of rounds of FedAvg.
    seeds : tuple of int
        Seeds of split, held-out samples and training.
    largest : int
        Samples of a data set that are dealt out.
    """

    rounds: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)
    largest: int = 10000


QUICK = Plan(rounds=30, seeds=(0,), largest=2000)


# ---- one party's counts


def sizes_of(counts: ClassCounts) -> Row:
    """Bytes of counts in several forms, and the seconds that packing and unpacking them takes."""
    array = counts.array
    packed = compression.pack(array)
    calls = {
        "pack": lambda: compression.pack(array),
        "unpack": lambda: compression.unpack(packed, array.shape, array.max()),
    }
    seconds = best_in_turn(calls, 3)
    least = entropy(np.unique(array, return_counts=True)[1], base=2) * array.size / 8  # of single entries, in bytes
    return {
        "entropy": round(least),
        "packed": packed.nbytes,
        "packed / entropy": packed.nbytes / least,
        "on target": packed.nbytes <= max(1.25 * least, least + 512),
        "dense, narrow": array.size * np.min_scalar_type(int(array.max())).itemsize,
        "dense, int64": array.size * 8,
        "bits, packed": compression.pack(array > 0).nbytes,
        **{f"{name} ms": 1e3 * value for name, value in seconds.items()},
    }


def party_rows(shape: Shape, folder: Path | None, most: int) -> Iterator[Row]:
    """A row for each size of a party, up to `most` samples and to what there is; none where there is no file."""
    source = source_of(shape.file, folder)
    if source is None:
        return
    data = load_dataset(source)
    order = np.random.default_rng(0).permutation(len(data.y))
    hasher = FlyHash(shape.spec)
    hasher.count(data.X[:64], data.y[:64], shape.n_classes)  # compiles
    for n in sorted({min(size, most, len(data.y)) for size in PARTY_SIZES}):
        start = time.perf_counter()
        counts = ClassCounts.from_data(hasher, data.X[order[:n]], data.y[order[:n]], shape.n_classes)
        hashing = time.perf_counter() - start
        about = {"set": shape.name, "L x m": f"{shape.n_classes} x {shape.hash_dim}", "points": n}
        yield about | sizes_of(counts) | {"hashing ms": 1e3 * hashing}


def source_of(name: str, folder: Path | None) -> str | None:
    """Name of a data set for `load_dataset`; None where there is no file. Digits is always there."""
    if name == "digits":
        return name
    path = None if folder is None else folder / f"{name}.npz"
    return str(path) if path is not None and path.exists() else None


# ---- a federation until it is as accurate


def flynn(parts: Parts) -> Row:
    """Accuracy on the held-out samples of all parties, and bytes of all rounds by party, on average."""
    n_parties = len(parts.shares)
    spec = HashSpec.suggest(parts.pooled.X.shape[1], len(parts.pooled.y), parts.n_classes)
    run = federate(RunOptions(spec=spec, classes=range(parts.n_classes), min_parties=n_parties), parts.parties())
    evaluation = run.state.results["evaluation"]
    return {
        "accuracy": float(evaluation.figures["accuracy"]),
        "rounds": run.num_rounds,
        "up": round(sum(phase.up for phase in run.traffic.values()) / n_parties),
        "down": round(sum(phase.down for phase in run.traffic.values()) / n_parties),
        "counts up": run.traffic["counts"].per_party["up"],
        "dense up": run.counts.array.size,  # in the narrowest type of all
    }


def by_averaging(parts: Parts, model: str, recipe: Recipe, goal: float, most: int, seed: int) -> Row:
    """FedAvg until it has the accuracy `goal`, for `most` rounds at most; ``curve`` is the accuracy by round."""
    points, curve = parts.pooled, []

    def watch(weights: NDArrays) -> bool:
        curve.append(float((logits(weights, points.X_test).argmax(axis=1) == points.y_test).mean()))
        return curve[-1] >= goal

    shares = [(share.X, share.y) for share in parts.shares]
    weights, _ = gradients.federate(shares, parts.n_classes, MODELS[model], recipe, most, watch, seed=seed)
    size = sum(map(len, write_tensors(weights)))
    best = {"accuracy": max(curve), "reached": curve[-1] >= goal, "rounds": len(curve)}
    return best | {"up": len(curve) * size, "down": (len(curve) + 1) * size, "curve": curve, "recipe": asdict(recipe)}


def best_of(tried: Sequence[Row]) -> Row:
    """The row that reached the goal with the fewest bytes; if none did, the most accurate row."""
    return max(tried, key=lambda row: (row["reached"], -row["rounds"] if row["reached"] else 0, row["accuracy"]))


def federations(source: str, plan: Plan, cells: Cells) -> Iterator[Row]:
    """A row for every method and seed."""
    data = read(source, plan.largest)
    for seed in plan.seeds:
        about = {"set": data.name, "points": len(data.y), "parties": PARTIES, "seed": seed}
        key = about | {"data": joblib.hash((data.X, data.y)), "code": _CODE}
        parts = deal_out(data, SPLIT, PARTIES, seed)
        scaled = parts.standardised()
        ours = cells.finish(key | {"job": f"seed {seed}, {FLYNN}"}, partial(_row, flynn, parts))[0]
        yield about | {"method": FLYNN, "reached": True} | ours
        goal = ours["accuracy"]
        for model in MODELS:
            tried: list[Row] = []
            for recipe in (Recipe(rate, epochs) for rate, epochs in product(RATES, EPOCHS)):
                # Another recipe can only be better in as many rounds as the best so far took.
                most = min([plan.rounds, *(row["rounds"] for row in tried if row["reached"])])
                job = f"seed {seed}, FedAvg {model}, {_words(asdict(recipe))}"
                mine = key | {"job": job, "recipe": asdict(recipe), "most": most, "goal": goal}
                tried += cells.finish(mine, partial(_row, by_averaging, scaled, model, recipe, goal, most, seed))
            yield about | {"method": f"FedAvg {model}"} | best_of(tried)


def _row(work: Callable[..., Row], *arguments: Any) -> list[Row]:
    return [work(*arguments)]


# ---- what is shown


def in_short(rows: Sequence[Row]) -> list[Row]:
    """A line for every set and method: medians over seeds, of bytes until the accuracy is reached, or of all rounds."""
    lines = []
    for name, method in dict.fromkeys((row["set"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        reached = sum(row["reached"] for row in mine)
        middle = {key: float(np.median([row[key] for row in mine])) for key in ("up", "down", "accuracy")}
        never = f"not reached in {mine[0]['most']:g}"
        there = f"{np.median([row['rounds'] for row in mine if row['reached']]):g}" if reached else never
        if 0 < reached < len(mine):
            there += f" in {reached} of {len(mine)} seeds, else {never}"
        lines.append(
            {
                "set": name,
                "method": method,
                "rounds": there,
                "kB up": f"{middle['up'] / 1000:.1f}",
                "kB down": f"{middle['down'] / 1000:.1f}",
                "accuracy": f"{middle['accuracy']:.3f}",
                "recipes": "; ".join(dict.fromkeys(_words(row["recipe"]) for row in mine if "recipe" in row)),
            }
        )
    return lines


def _words(recipe: Row) -> str:
    return f"rate {recipe['rate']:g}, epochs {recipe['epochs']}"


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("traffic", __doc__)
    options.add_argument("--seeds", type=int, help="splits of the second table (default: 3, quick: 1)")
    chosen = options.parse_args(arguments)
    if chosen.seeds is not None and chosen.seeds < 1:
        options.error(f"--seeds: expected at least 1, got {chosen.seeds}")
    if chosen.data is not None and not chosen.data.is_dir():
        options.error(f"--data: expected a folder, got {chosen.data}")
    plan = QUICK if chosen.quick else Plan()
    if chosen.seeds is not None:
        plan = replace(plan, seeds=tuple(range(chosen.seeds)))
    start = time.perf_counter()
    folder = output_folder(chosen)
    sizes = [row for shape in PAPER_SHAPES for row in party_rows(shape, chosen.data, 600 if chosen.quick else 60000)]
    print(text_table(sizes) + "\n")
    write_csv(folder / "sizes.csv", sizes)
    cells = Cells(folder / "cells")
    rows: list[Row] = []
    for name in COMPARED:
        source = source_of(name, chosen.data)
        if source is not None:
            rows += [row | {"most": plan.rounds} for row in federations(source, plan, cells)]
            write_csv(folder / "federations.csv", [{k: v for k, v in r.items() if k != "curve"} for r in rows])
    print("\n" + text_table(in_short(rows)) + "\n")
    plots.draw(sizes, rows, folder / "traffic.png")
    parts = [about(__doc__), markdown_table(sizes), markdown_table(in_short(rows)), "![bytes](traffic.png)"]
    write_summary(folder, "Bytes", "traffic", arguments, time.perf_counter() - start, parts)
