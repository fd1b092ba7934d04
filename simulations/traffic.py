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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import joblib
import numpy as np
from flwr.common import NDArrays
from scipy.stats import entropy

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.federated import compression
from flwr_flynn.federated.codec import write_tensors
from simulations import gradients, plots
from simulations.bench import PAPER_SHAPES, Shape
from simulations.data import paths
from simulations.gradients import MODELS, Recipe, logits
from simulations.lean import best_in_turn
from simulations.plots import Line, Panel
from simulations.results import Row, chosen, markdown_table
from simulations.splits import Parts, deal_out, federated, read, source
from simulations.study import FEDERATED, Cells, Option, Study, code_digest
from simulations.study import seeds as numbered

PARTY_SIZES = (50, 180, 600, 6000, 60000)
FLYNN = "FlyNN"
PARTIES, SPLIT = 10, "Dirichlet 0.1"
RATES, EPOCHS = (0.3, 1.0, 0.1, 3.0, 0.03), (5, 1)  # what tends to be best comes first
COMPARED = ("digits", "letters", "mnist", "fashion_mnist")

_CODE = code_digest(*FEDERATED, "simulations.traffic", "simulations.gradients")


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
    sizes = {"entropy": round(least), "packed": packed.nbytes, "packed / entropy": packed.nbytes / least}
    sizes["on target"] = packed.nbytes <= max(1.25 * least, least + 512)
    sizes["dense, narrow"] = array.size * np.min_scalar_type(int(array.max())).itemsize
    sizes |= {"dense, int64": array.size * 8, "bits, packed": compression.pack(array > 0).nbytes}
    return sizes | {f"{name} ms": 1e3 * value for name, value in seconds.items()}


def party_rows(shape: Shape, folder: Path | None, most: int) -> Iterator[Row]:
    """A row for each size of a party, up to `most` samples and to what there is; none where there is no file."""
    if shape.file not in ("digits", *paths(folder)):
        return
    data = load_dataset(source(shape.file, folder))
    order = np.random.default_rng(0).permutation(len(data.y))
    hasher = FlyHash(shape.spec)
    hasher.count(data.X[:64], data.y[:64], shape.n_classes)  # compiles
    for n in sorted({min(size, most, len(data.y)) for size in PARTY_SIZES}):
        start = time.perf_counter()
        counts = ClassCounts.from_data(hasher, data.X[order[:n]], data.y[order[:n]], shape.n_classes)
        hashing = time.perf_counter() - start
        about = {"set": shape.name, "L x m": f"{shape.n_classes} x {shape.hash_dim}", "points": n}
        yield about | sizes_of(counts) | {"hashing ms": 1e3 * hashing}


# ---- a federation until it is as accurate


def flynn(parts: Parts) -> Row:
    """Accuracy on the held-out samples of all parties, and bytes of all rounds by party, on average."""
    spec = HashSpec.suggest(parts.pooled.X.shape[1], len(parts.pooled.y), parts.n_classes)
    row, done = federated(parts, spec)
    evaluation = done.run.state.results["evaluation"].figures
    shown = {name: row[name] for name in ("rounds", "up", "down")} | {"accuracy": float(evaluation["accuracy"])}
    dense = done.run.counts.array.size  # in the narrowest type of all
    return shown | {"counts up": done.run.traffic["counts"].per_party["up"], "dense up": dense}


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
    digest = joblib.hash((data.X, data.y))
    for seed in plan.seeds:
        about = {"set": data.name, "points": len(data.y), "parties": PARTIES, "seed": seed, "most": plan.rounds}
        parts, label = deal_out(data, SPLIT, PARTIES, seed), f"{data.name}: seed {seed}"
        scaled = parts.standardised()
        ours = cells.finish(f"{label}, {FLYNN}", (digest, seed, _CODE), partial(flynn, parts))
        yield about | {"method": FLYNN, "reached": True} | ours
        for model in MODELS:
            tried: list[Row] = []
            for recipe in (Recipe(rate, epochs) for rate, epochs in product(RATES, EPOCHS)):
                # Another recipe can only be better in as many rounds as the best so far took.
                most = min([plan.rounds, *(row["rounds"] for row in tried if row["reached"])])
                asked = model, recipe, ours["accuracy"], most, seed
                name = f"{label}, FedAvg {model}, {_words(asdict(recipe))}"
                tried.append(cells.finish(name, (digest, asked, _CODE), partial(by_averaging, scaled, *asked)))
            yield about | {"method": f"FedAvg {model}"} | best_of(tried)


# ---- what is shown


def in_short(rows: Sequence[Row]) -> list[Row]:
    """A line for every set and method: medians over seeds, of bytes until the accuracy is reached, or of all rounds."""
    lines = []
    for name, method in dict.fromkeys((row["set"], row["method"]) for row in rows):
        mine = chosen(rows, set=name, method=method)
        reached = sum(row["reached"] for row in mine)
        up, down, accuracy = (float(np.median([row[key] for row in mine])) for key in ("up", "down", "accuracy"))
        never = f"not reached in {mine[0]['most']:g}"
        reached_in = f"{np.median([row['rounds'] for row in mine if row['reached']]):g}" if reached else never
        if 0 < reached < len(mine):
            reached_in += f" in {reached} of {len(mine)} seeds, else {never}"
        line = {"set": name, "method": method, "rounds": reached_in, "kB up": f"{up / 1000:.1f}"}
        recipes = "; ".join(dict.fromkeys(_words(row["recipe"]) for row in mine if "recipe" in row))
        lines.append(line | {"kB down": f"{down / 1000:.1f}", "accuracy": f"{accuracy:.3f}", "recipes": recipes})
    return lines


def _words(recipe: Row) -> str:
    return f"rate {recipe['rate']:g}, epochs {recipe['epochs']}"


def draw(sizes: Sequence[Row], rows: Sequence[Row], path: Path) -> str:
    """One panel of bytes against samples, and for each set one of accuracy against bytes (first seed)."""
    of = {name: chosen(sizes, set=name) for name in dict.fromkeys(row["set"] for row in sizes)}
    lines = [
        Line(f"{name}, {form}", [row["points"] for row in mine], [row[form] for row in mine])
        for (name, mine), form in product(of.items(), ("packed", "entropy", "dense, narrow"))
    ]
    log = {"xscale": "log", "yscale": "log", "xlabel": "samples of the party", "ylabel": "bytes"}
    panels = [Panel("one party's counts", lines, log)]
    for name in dict.fromkeys(row["set"] for row in rows):
        mine, lines = chosen(rows, set=name), []
        for row in chosen(mine, seed=mine[0]["seed"]):
            curve = row.get("curve", [row["accuracy"]])
            size = row["up"] / len(curve) / 1000
            spent = [(2 * done + 1) * size for done in range(1, len(curve) + 1)]
            x = spent if "curve" in row else [(row["up"] + row["down"]) / 1000]
            lines.append(Line(row["method"], x, curve, look={} if "curve" in row else {"markersize": 12}))
        axes = {"xscale": "log", "xlabel": "kB of a party, up and down", "ylabel": "accuracy"}
        panels.append(Panel(name, lines, axes))
    return plots.lines(panels, path, (5.0, 4.2), legend=0)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    seeds = Option("splits of the second table (default: 3, quick: 1)", numbered)
    study = Study("traffic", "Bytes", __doc__, arguments, seeds=seeds)
    plan, folder = study.sized(Plan(), QUICK, seeds=study.chosen.seeds), study.chosen.data
    sizes = [row for shape in PAPER_SHAPES for row in party_rows(shape, folder, study.sized(60000, 600))]
    study.write("sizes", sizes)
    rows: list[Row] = []
    for name in (name for name in COMPARED if name in ("digits", *paths(folder))):
        rows += federations(source(name, folder), plan, study.cells)
        study.write("federations", rows)
    tables = markdown_table(sizes), markdown_table(in_short(rows))
    print(*tables, sep="\n\n")
    study.finish([study.about, *tables, draw(sizes, rows, study.folder / "traffic.png")])
