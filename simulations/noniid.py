"""Cost of skewed parties: FlyNN beside FedAvg, FedProx and SCAFFOLD, from IID parties to those of one class each.

"FlyNN default" is the default of `flwr run .` (the best three of six hashes, chosen by the parties), and "FlyNN
thorough" the same with a Gram matrix (`effort`), in two more exchanges. They must have the SHA-256 of the model of the
pooled samples.
"FlyNN" is a single hash: one round of exact counts, features as they are, sizes and scoring by default; the details
show the SHA-256 of its counts and of those of the pooled samples.

Beside it softmax regression (LR) and a perceptron (MLP), trained with all parties in every round by Flower's own FedAvg
and FedProx, by SCAFFOLD, by FedAvg with the last layer kept at each party (own heads, FedPer), and by FedAvg in a
single round. They get what helps them: features standardised by the pooled samples; learning rate and epochs per round
from a grid, the best after as many rounds on a fifth held out of the training samples. FedAvg is tuned on the *IID*
split. What is made for parties that differ is tuned on "Dirichlet 0.1": SCAFFOLD and own heads like FedAvg, FedProx by
mu and epochs at FedAvg's rate. Nothing is chosen on held-out samples. Accuracy is that after the last round.

"Personal" figures are of parties that add their own class frequencies to the model, smoothed towards those of the
pooled samples (`model.class_prior`). To the log probabilities of LR and MLP a party adds the logarithm of its
frequencies less that of the pooled ones, which these models have learned. Own heads have learned the party's
frequencies, and have personal figures only.

An asterisk: no party takes more than one step in a round, because it has no more samples than a batch and goes through
them once. Averaging such steps is gradient descent on the pooled samples, however they are split, and FedProx and
SCAFFOLD are then FedAvg: skew could do no harm there. The worst party is that of the lowest accuracy, of those with
five or more held-out samples; with so few its accuracy has few possible values.

Shards are of equal size: the few samples left over are in none, so that their counts are not those of other splits.
Bytes are those of one party, up and down together, with the final model distributed, without Flower's envelopes. With
Ray, SCAFFOLD and own heads run in this process all the same, as their parties keep something between rounds. Finished
pieces are kept under the output folder; those of the baselines are used again with another version of the package.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
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
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate as federate_in_process
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.model.class_prior import log_frequencies
from simulations import gradients, runner
from simulations import noniid_plots as plots
from simulations.gradients import MODELS, GradientClient, HeadClient, Recipe, ScaffoldClient, federate, logits
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

FLYNN, DEFAULT, THOROUGH, HEADS = "FlyNN", "FlyNN default", "FlyNN thorough", "own heads"
COMMITTEES: dict[str, dict[str, Any]] = {DEFAULT: {}, THOROUGH: {"effort": "thorough"}}
"""Models of several hashes, by the parameters of `FlyNNClassifier` that they have."""

ALGORITHMS: dict[str, type[GradientClient]] = {
    "FedAvg": GradientClient, "FedProx": GradientClient, "SCAFFOLD": ScaffoldClient, HEADS: HeadClient,
    "one round": GradientClient,
}  # fmt: skip
"""Kinds of parties, by the algorithm of the server."""

BASELINES = ("FedAvg LR", "SCAFFOLD LR", "FedAvg MLP", "FedProx MLP", "SCAFFOLD MLP", f"{HEADS} MLP")
"""Trained for many rounds."""

ONE_ROUND = "one round MLP"
MAIN = (*COMMITTEES, *BASELINES)
METHODS = (FLYNN, *MAIN, ONE_ROUND)

TUNED_ON, SKEW_TUNED_ON = "IID", "Dirichlet 0.1"
FIGURES = ("accuracy", "balanced", "worst", "personal accuracy", "personal worst")

WIDE = 100  # columns: data sets with more, such as images, have one seed
MANY = 50  # parties: more have one seed
ALL_SETS = "digits,satimage,letters,mnist,fashion_mnist"

_VERSION = 5  # raise it when the content of a cell changes
_CODE = {
    True: code_digest(*FEDERATED, "flwr_flynn.app.data", "simulations.splits", "simulations.runner"),
    # What the baselines run, and no more: their cells, the long ones, survive changes of the package.
    False: joblib.hash([
        inspect.getsource(each) for each in (gradients, Parts, runner.rounds, log_frequencies)
    ]),
}  # fmt: skip


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
        Seeds of split, held-out samples and training; wide data sets, and many parties, have the first alone.
    largest : int
        Samples of a data set that are used.
    rates, epochs, epochs_at_once, mus : tuple of numbers
        Grids of learning rates, of epochs per round, of epochs of a single round, and of FedProx's mu.
    """

    splits: tuple[str, ...] = tuple(SPLITS)
    parties: tuple[int, ...] = (10, 100)
    rounds: int = 50
    seeds: tuple[int, ...] = (0,)
    largest: int = 5000
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    epochs: tuple[int, ...] = (1, 5)
    epochs_at_once: tuple[int, ...] = (5, 20, 80)
    mus: tuple[float, ...] = (0.01, 0.1, 1.0)


_SMALL: dict[str, Any] = {"rates": (0.1, 0.3), "epochs_at_once": (20,), "mus": (0.1,)}
QUICK = Plan((TUNED_ON, SKEW_TUNED_ON, SHIFT), (10,), 10, largest=1000, **_SMALL)
FULL = Plan(seeds=(0, 1, 2))


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
    scores = _scores(parts, tree.model.predict(train.X_test), lambda i: _personalized(tree.model, parts.shares[i]))
    traffic = tree.traffic
    shown = {"sha256": counts.sha256(), "pooled sha256": pooled.sha256()}
    return scores | _bytes(traffic.up, traffic.down, n_parties, handed_out) | {"rounds": 1} | shown


def committee(parts: Parts, given: dict[str, Any]) -> Row:
    """Run all phases at the parties, and fit the pooled samples; the scores, the bytes, and both SHA-256."""
    train, n_parties = parts.pooled, len(parts.shares)
    plan = HashPlan(train.X.shape[1], parts.n_classes, len(train.y), "auto", **given)
    options = RunOptions(plan, range(parts.n_classes), n_parties)
    run = federate_in_process(options, parts.parties(min_examples=1))
    model, all_classes = run.model, set(train.y) == set(range(parts.n_classes))
    if all_classes and model.model_.sha256() != _pooled(train, given):
        raise AssertionError("the parties' model is not that of the pooled samples")
    scores = _scores(parts, model.predict(parts.pooled.X_test), lambda i: _personalized(model, parts.shares[i]))
    up, down = (sum(getattr(each, way) for each in run.traffic.values()) for way in ("up", "down"))
    return scores | _bytes(up, down, n_parties, 0) | {"rounds": run.num_rounds}


_POOLED: dict[Any, str] = {}


def _pooled(train: Share, given: dict[str, Any]) -> str:
    """SHA-256 of the model of the pooled samples, fitted once for all splits with the same samples."""
    key = str(given), tuple(sorted(hash((row.tobytes(), y)) for row, y in zip(train.X, train.y, strict=True)))
    if key not in _POOLED:
        _POOLED[key] = FlyNNClassifier(**given).fit(train.X, train.y).model_.sha256()
    return _POOLED[key]


def by_gradients(parts: Parts, method: str, recipe: Recipe, n_rounds: int, where: str | Workers, seed: int) -> Row:
    """Train through Flower's strategy; the scores after the last round, and the accuracy after each.

    Parameters
    ----------
    parts : Parts
        Standardised.
    method : str
        An algorithm and a model, one of `ALGORITHMS` and one of `MODELS`.
    recipe : Recipe
    n_rounds : int
    where : see `runner.run`
    seed : int
    """
    (algorithm, model), points, curve = method.rsplit(" ", 1), parts.pooled, []
    kind, n_per_class = ALGORITHMS[algorithm], parts.class_table.sum(axis=0)

    def by_heads(weights: NDArrays) -> Array:
        body, heads = weights[:2], zip(*weights[2:], strict=True)
        each = [logits([*body, *head], s.X_test) for head, s in zip(heads, parts.shares, strict=True)]
        predicted: Array = np.concatenate(each).argmax(axis=1)
        return predicted

    def predict(weights: NDArrays) -> Array:
        if kind is HeadClient:
            return by_heads(weights)
        predicted: Array = logits(weights, points.X_test).argmax(axis=1)
        return predicted

    def watch(weights: NDArrays) -> None:
        curve.append(float((predict(weights) == points.y_test).mean()))

    shares = [(share.X, share.y) for share in parts.shares]
    weights, traffic = federate(
        shares, parts.n_classes, MODELS[model], recipe, n_rounds, watch, where, seed, kind
    )  # fmt: skip
    predicted = predict(weights)
    if kind is HeadClient:
        nothing = dict.fromkeys(FIGURES, float("nan"))
        scores = nothing | {f"personal {k}": v for k, v in parts.scores(predicted).items() if k != "balanced"}
        weights = weights[:2]
    else:
        own = [with_class_prior(share, weights, n_per_class) for share in parts.shares]
        scores = _with_personal(parts, predicted, own)
    cost = _bytes(traffic.up, traffic.down, len(shares), _size(weights))
    return scores | cost | {"rounds": n_rounds, "recipe": asdict(recipe), "curve": curve}


def _personalized(model: FlyNNClassifier, share: Share) -> Array:
    """Predicted classes of a party's held-out samples."""
    if not len(share.y_test):
        return np.zeros(0, np.int64)
    mine = model.with_prior(share.y) if len(share.y) else model
    predicted: Array = mine.predict(share.X_test)
    return predicted


def _scores(parts: Parts, predicted: Array, own: Callable[[int], Array]) -> Row:
    return _with_personal(parts, predicted, [own(i) for i in range(len(parts.shares))])


def _with_personal(parts: Parts, predicted: Array, own: Sequence[Array]) -> Row:
    """Scores of predictions, (n,), and of those that each party makes itself; what the parties gain and lose by these.

    ``worse`` and ``better`` are numbers of parties among the ``judged``, those with `LEAST` or more held-out samples;
    ``drop`` is the largest loss of accuracy of one of them, and ``drop of`` the number of its held-out samples.
    """
    personal = np.concatenate(own)
    scores: Row = dict(parts.scores(predicted))
    scores |= {f"personal {k}": v for k, v in parts.scores(personal).items() if k != "balanced"}
    before, after = (parts.right_by_party(each) for each in (predicted, personal))
    change = [(float(b.mean() - a.mean()), len(a)) for a, b in zip(before, after, strict=True) if len(a) >= LEAST]
    drop, of = min(change, default=(0.0, 0))
    counted = {"worse": sum(c < 0 for c, _ in change), "better": sum(c > 0 for c, _ in change), "judged": len(change)}
    return scores | counted | {"drop": max(-drop, 0.0), "drop of": of if drop < 0 else 0}


def with_class_prior(share: Share, weights: NDArrays, n_per_class: Array) -> Array:
    """Predicted classes of a party's held-out samples, (n,), with its own class frequencies.

    `n_per_class`, (L,), are the samples that the weights were trained on.
    """
    test = log_softmax(logits(weights, share.X_test), axis=1)
    own = np.bincount(share.y, minlength=len(n_per_class))
    if len(share.y):
        test = test + log_frequencies(own, n_per_class) - log_frequencies(0 * own, n_per_class)
    predicted: Array = test.argmax(axis=1)
    return predicted


def _size(arrays: NDArrays) -> int:
    return sum(map(len, ndarrays_to_parameters(arrays).tensors))


def _bytes(up: int, down: int, n_parties: int, handed_out: int) -> Row:
    return {"up": round(up / n_parties), "down": round(down / n_parties) + handed_out}


class _NotFinished(Exception):
    """A cell is not there, and is not to be computed."""


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
    finished : bool, default=False
        Leave out the cells that are not finished.
    """

    def __init__(self, data: Dataset, plan: Plan, cells: Cells, where: str | Workers, finished: bool = False) -> None:
        self.data, self.plan, self.cells, self.where, self.finished = data, plan, cells, where, finished
        self._dealt = lru_cache(None)(self._deal)  # dealing takes longer than finding a cell

    def rows(self) -> Iterator[Row]:
        """A row for every number of parties, split, method and seed."""
        for n_parties, split in product(self.plan.parties, self.plan.splits):
            for seed in self.seeds(n_parties):
                yield from self._rows(n_parties, split, seed)

    def seeds(self, n_parties: int) -> tuple[int, ...]:
        """Seeds of the cells with so many parties."""
        return self.plan.seeds[:1] if self.data.X.shape[1] > WIDE or n_parties > MANY else self.plan.seeds

    def _rows(self, n_parties: int, split: str, seed: int) -> Iterator[Row]:
        largest = int(self.parts(split, n_parties, seed).class_table.sum(axis=1).max())
        for method in METHODS:
            about = {"set": self.data.name, "parties": n_parties, "split": split, "method": method, "seed": seed}
            try:
                row = self.cell(n_parties, split, method, seed)
            except _NotFinished:
                continue
            steps = Recipe(**row["recipe"]).steps(largest) if "recipe" in row else 0
            yield about | row | {"steps": steps}

    def cell(self, n_parties: int, split: str, method: str, seed: int) -> Row:
        """The row of one cell."""
        key: Row = {"job": f"{n_parties} parties, {split}, {method}", "seed": seed}
        dealt = (split, n_parties, seed)
        if method == FLYNN:
            return self._kept(key, True, dealt, lambda: [flynn(self.parts(*dealt), self.where)])[0]
        if method in COMMITTEES:
            return self._kept(key, True, dealt, lambda: [committee(self.parts(*dealt), COMMITTEES[method])])[0]
        n_rounds = 1 if method == ONE_ROUND else self.plan.rounds
        recipe = self.recipe(n_parties, method)

        def compute() -> list[Row]:
            parts = self.parts(*dealt).standardised()
            return [by_gradients(parts, method, recipe, n_rounds, self.where, seed)]

        return self._kept(key | {"recipe": asdict(recipe), "rounds": n_rounds}, False, dealt, compute)[0]

    def recipe(self, n_parties: int, method: str) -> Recipe:
        """The best recipe of the grid, see the module."""
        algorithm, model = method.rsplit(" ", 1)
        plan, split = self.plan, TUNED_ON if algorithm in ("FedAvg", "one round") else SKEW_TUNED_ON
        if algorithm == "FedProx":
            found = self.recipe(n_parties, f"FedAvg {model}")
            candidates = [replace(found, epochs=n, mu=mu) for n in plan.epochs for mu in plan.mus]
        else:
            epochs = plan.epochs_at_once if method == ONE_ROUND else plan.epochs
            candidates = [Recipe(rate, each) for rate in plan.rates for each in epochs]
        n_rounds = 1 if method == ONE_ROUND else plan.rounds
        goal = "personal accuracy" if algorithm == HEADS else "accuracy"

        def compute() -> list[Row]:
            parts = self.parts(split, n_parties, 0).for_validation(seed=1).standardised()
            rows = [by_gradients(parts, method, recipe, n_rounds, self.where, 0) for recipe in candidates]
            return [{"score": row[goal], "recipe": row["recipe"]} for row in rows]

        grid = [asdict(recipe) for recipe in candidates]
        key = {"job": f"{n_parties} parties, recipe of {method}", "grid": grid, "rounds": n_rounds}
        tried = self._kept(key, False, (split, n_parties, 0), compute)
        return Recipe(**max(tried, key=lambda row: row["score"])["recipe"])

    def _deal(self, split: str, n_parties: int, seed: int) -> tuple[Parts, str]:
        parts = deal_out(self.data, split, n_parties, seed)
        return parts, str(joblib.hash([(s.X, s.y, s.X_test, s.y_test) for s in parts.shares]))

    def parts(self, split: str, n_parties: int, seed: int) -> Parts:
        """The samples of all parties."""
        return self._dealt(split, n_parties, seed)[0]

    def _kept(self, key: Row, is_flynn: bool, dealt: tuple[str, int, int], compute: Any) -> list[Row]:
        data = self._dealt(*dealt)[1]
        key |= {"set": self.data.name, "data": data, "code": _CODE[is_flynn], "version": _VERSION}

        def timed() -> list[Row]:
            if self.finished:
                raise _NotFinished
            start = time.perf_counter()
            rows = compute()
            seconds = time.perf_counter() - start
            return [row | {"seconds": seconds} for row in rows]

        return self.cells.finish(key, timed)


# ---- what is shown

_CELL = ["set", "parties", "split", "seed"]
_PERSONAL = {"personal accuracy": "mean", "personal worst": "worst party"}


def table(rows: Sequence[Row], figure: str, methods: Sequence[str], beside: str = "") -> list[Row]:
    """A line for every split, a column for every method: the mean over seeds of a figure, in brackets that of the one
    beside it, with an asterisk where no party takes more than one step in a round (see the module)."""
    frame = pd.DataFrame(rows)
    lines = []
    for split, mine in frame[frame["method"].isin(methods)].groupby("split", sort=False):
        line = {"split": split} | dict.fromkeys(methods, "")
        for method, of in mine.groupby("method", sort=False):
            more = f" ({of[beside].mean():.2f})" if beside else ""
            line[method] = f"{of[figure].mean():.3f}{more}" + "*" * bool((of["steps"] == 1).all())
        lines.append(line)
    return lines


def checksums(rows: Sequence[Row]) -> list[Row]:
    """A line for every split: the SHA-256 of FlyNN's counts for the first seed, and whether all are as they must be."""
    lines: list[Row] = []
    for split in dict.fromkeys(row["split"] for row in rows):
        mine = [row for row in rows if row["split"] == split and row["method"] == FLYNN]
        same = all(row["sha256"] == row["pooled sha256"] for row in mine)
        first = mine[0]["sha256"][:12] if mine else ""
        lines.append({"FlyNN's counts": first, "those of the pooled samples": "the same" if same else "OTHERS"})
    return lines


def beside(rows: Sequence[Row], ours: str = THOROUGH) -> pd.DataFrame:
    """A line for every cell that `ours` and all of `BASELINES` have: the personal figures of all, and the ``best`` of
    the baselines; columns are (figure, method)."""
    cells = pd.DataFrame(rows)
    frame = cells.pivot(index=_CELL, columns="method", values=list(_PERSONAL))
    frame = frame.reindex(pd.MultiIndex.from_frame(cells[_CELL].drop_duplicates()))  # in the order of the rows
    frame = frame.reindex(columns=pd.MultiIndex.from_product([_PERSONAL, (ours, *BASELINES)]))
    frame = frame[frame["personal accuracy"].notna().all(axis=1)].astype(float)
    for figure in _PERSONAL:
        frame[figure, "best"] = frame[figure][list(BASELINES)].max(axis=1)
        frame[figure, "of"] = frame[figure][list(BASELINES)].fillna(-1).idxmax(axis=1)
    return frame


def ahead(frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every baseline, and one for all of them: share of the cells where `ours` is ahead or equal."""
    lines: list[Row] = []
    for other in (*BASELINES, "best"):
        line: Row = {"against": "all of them" if other == "best" else other, "cells": len(frame)}
        for figure, name in _PERSONAL.items():
            gain = (frame[figure][ours] - frame[figure][other]).dropna()  # no party may have enough held-out samples
            line |= {f"{name}: ahead or equal": _percent(gain >= -1e-9), f"{name}: gain": f"{gain.mean():+.3f}"}
        lines.append(line)
    return lines


def _percent(which: pd.Series) -> str:
    return f"{100 * which.mean():.0f} %"


def by_set(rows: Sequence[Row], frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every data set and number of parties: `ours` against the best baseline of each cell, and bytes."""
    spent = pd.DataFrame(rows)
    spent["kB"] = (spent["up"] + spent["down"]) / 1000
    lines: list[Row] = []
    for group, mine in frame.groupby(["set", "parties"], sort=False):
        kilobytes = spent[(spent["set"] == group[0]) & (spent["parties"] == group[1])].groupby("method")["kB"].mean()
        line: Row = {"set": group[0], "parties": group[1], "cells": len(mine)}
        for figure, name in _PERSONAL.items():
            both = mine[figure].dropna(subset=[ours, "best"])
            line |= {
                f"{name}: {ours}": f"{both[ours].mean():.3f}",
                f"{name}: best baseline": f"{both['best'].mean():.3f}",
                f"{name}: ahead or equal": _percent(both[ours] - both["best"] >= -1e-9),
            }
        mlp = kilobytes["FedAvg MLP"]
        lines.append(line | {f"kB: {ours}": f"{kilobytes[ours]:.0f}", "of the MLP's": f"{kilobytes[ours] / mlp:.2f}"})
    return lines


def losses(frame: pd.DataFrame, ours: str = THOROUGH) -> list[Row]:
    """A line for every data set, number of parties and split with a cell where `ours` is behind a baseline, the mean
    over the seeds of these cells."""
    lines: list[Row] = []
    for (name, n_parties, split), mine in frame.groupby(_CELL[:3], sort=False):
        line: Row = {"set": name, "parties": n_parties, "split": split}
        for figure, what in _PERSONAL.items():
            behind = mine[figure][mine[figure][ours] < mine[figure]["best"] - 1e-9]
            line[what] = ""
            if len(behind):
                seeds = f", {len(behind)} of {len(mine)} seeds" if len(mine) > 1 else ""
                of = ", ".join(dict.fromkeys(behind["of"]))
                line[what] = f"{behind[ours].mean():.3f}, {behind['best'].mean():.3f} by {of}{seeds}"
        if line["mean"] or line["worst party"]:
            lines.append(line)
    return lines


def harm(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: parties that are worse and better off with their own frequencies, and the worst loss."""
    lines: list[Row] = []
    for method in (*COMMITTEES, *BASELINES):
        mine = [row for row in rows if row["method"] == method and "drop" in row]
        judged = sum(row["judged"] for row in mine)
        if judged:
            worst = max(mine, key=lambda row: row["drop"])
            share = {name: f"{100 * sum(row[name] for row in mine) / judged:.1f} %" for name in ("worse", "better")}
            where = f"{worst['set']}, {worst['parties']} parties, {worst['split']}"
            drop = f"{worst['drop']:.3f} of {worst['drop of']} samples ({where})" if worst["drop"] else "none"
            lines.append({"method": method, "parties": judged} | share | {"worst loss": drop})
    return lines


def kilobytes(rows: Sequence[Row]) -> list[Row]:
    """A line for every method: rounds, and kilobytes of a party by data set and number of parties."""
    lines: dict[str, Row] = {method: {"method": method, "rounds": ""} for method in METHODS}
    for (name, n_parties), mine in _grouped(rows):
        for method, line in lines.items():
            spent = [(row["up"] + row["down"]) / 1000 for row in mine if row["method"] == method]
            line[f"{name}, {n_parties}"] = f"{np.mean(spent):.0f}" if spent else ""
            line["rounds"] = next((str(row["rounds"]) for row in mine if row["method"] == method), line["rounds"])
    return list(lines.values())


def results(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Summaries of the cells: sentences, each with its table."""
    frame = beside(rows)
    if len(frame):
        what = "a cell is a data set, number of parties, split and seed"
        yield f"{THOROUGH} beside the baselines of many rounds, with class prior; {what}:", ahead(frame)
        yield "By data set, beside the best of these baselines in each cell:", by_set(rows, frame)
    if len(other := beside(rows, DEFAULT)):
        yield f"{DEFAULT} beside them:", ahead(other, DEFAULT)[-1:]
        yield f"{DEFAULT} by data set:", by_set(rows, other, DEFAULT)
    yield f"Effect of the class prior on parties with {LEAST} or more held-out samples, over all cells:", harm(rows)
    if len(frame) and (lost := losses(frame)):
        yield f"Where {THOROUGH} is behind: its figure, then that of the best baseline:", lost


def headline(rows: Sequence[Row], ours: str = THOROUGH) -> str:
    """The results in two sentences."""
    frame = beside(rows)
    if not len(frame):
        return f"No cell has {ours} and all baselines."
    best, mine = ahead(frame)[-1], next(line for line in harm(rows) if line["method"] == ours)
    spent = pd.DataFrame(rows).assign(bytes=lambda table: table["up"] + table["down"])
    both = spent.pivot(index=_CELL, columns="method", values="bytes")
    return (
        f"{ours} is ahead of all baselines of many rounds, or equal to the best, in {best['mean: ahead or equal']} of "
        f"{len(frame)} cells in mean accuracy and in {best['worst party: ahead or equal']} at the worst party, at "
        f"{(both[ours] / both['FedAvg MLP']).median():.2f} times the bytes of FedAvg's MLP (median of the cells). The "
        f"class prior makes {mine['worse']} of its parties worse and {mine['better']} better; the worst loss is "
        f"{mine['worst loss']}."
    )


def summary(rows: Sequence[Row], recipes: Sequence[Row], plan: Plan) -> list[str]:
    """The results, paragraph by paragraph."""
    ran = [
        f"{name} with {n_parties}: {len({row['seed'] for row in mine})}" for (name, n_parties), mine in _grouped(rows)
    ]
    parts = [f"{plan.rounds} rounds. Seeds by data set and number of parties: {'; '.join(ran)}.", "## Summary"]
    parts.append(headline(rows))
    for sentence, lines in results(rows):
        parts += [sentence, markdown_table(lines)]
    parts += ["## Accuracy by split", "With the parties' class prior, and in brackets at the worst party."]
    for n_parties in dict.fromkeys(row["parties"] for row in rows):
        parts.append(f"![accuracy by split, {n_parties} parties]({plots.name_of('accuracy', 'all', n_parties)})")
    for (name, n_parties), mine in _grouped(rows):
        shown = table(mine, "personal accuracy", MAIN, "personal worst")
        parts += [f"### {name}, {n_parties} parties", markdown_table(shown)]
    parts += ["## What it costs", "Kilobytes of a party, up and down:", markdown_table(kilobytes(rows))]
    for name, n_parties in dict(reversed([group for group, _ in _grouped(rows)])).items():
        parts.append(f"![accuracy by bytes, {name}]({plots.name_of('bytes', name, n_parties)})")
    parts += ["## The methods", about(__doc__)]
    first = rows[0]["set"], rows[0]["parties"]
    parts.append(f"![label skew]({plots.name_of('skew', *first)})")
    parts += ["## Details", "Accuracy of the shared model on all held-out samples; more in `noniid.csv`."]
    methods = [method for method in METHODS if not method.startswith(HEADS)]
    for (name, n_parties), mine in _grouped(rows):
        both = zip(table(mine, "accuracy", methods), checksums(mine), strict=True)
        parts += [f"### {name}, {n_parties} parties, shared model", markdown_table([a | b for a, b in both])]
    return [*parts, "Recipes that the grid led to:", markdown_table(recipes)]


def _grouped(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, int], list[Row]]]:
    for group in dict.fromkeys((row["set"], row["parties"]) for row in rows):
        yield group, [row for row in rows if (row["set"], row["parties"]) == group]


def run(
    sources: Sequence[str],
    plan: Plan,
    folder: Path,
    where: str | Workers,
    arguments: Sequence[str],
    finished: bool = False,
    jobs: int = 1,
) -> list[Row]:
    """Run all cells, and write CSV, figures and summary; of the finished cells alone, if so.

    With `jobs` above 1 so many processes finish the cells first, a data set each, with the parties in them.
    """
    start = time.perf_counter()
    rows: list[Row] = []
    cells = Cells(folder / "cells")
    # All are read before the first is worked on: a name that is wrong shows at once.
    studies = [Study(read(source, plan.largest), plan, cells, where, finished) for source in sources]
    if jobs > 1 and not finished:
        joblib.Parallel(jobs)(joblib.delayed(_finish)(source, plan, folder) for source in sources)
    for study in studies:
        rows += study.rows()
    if not rows:
        raise ConfigError("output", "a folder with finished cells", folder)
    recipes: list[Row] = []
    for row in rows:
        if "recipe" in row:
            line = {name: row[name] for name in ("set", "parties", "method")} | row["recipe"]
            recipes += [line] if line not in recipes else []
    hidden = ("curve", "recipe")
    write_csv(folder / "noniid.csv", [{k: v for k, v in row.items() if k not in hidden} for row in rows])
    study, n_parties = studies[0], plan.parties[0]
    splits = [split for split in plan.splits if split != SHIFT]  # whose labels are those of IID
    dealt = {split: study.parts(split, n_parties, plan.seeds[0]).class_table for split in splits}
    name = study.data.name
    plots.skew(dealt, f"{name}: training samples of {n_parties} parties by class", folder /
               plots.name_of("skew", name, n_parties))  # fmt: skip
    for n_parties in dict.fromkeys(row["parties"] for row in rows):
        mine = [row for row in rows if row["parties"] == n_parties]
        plots.accuracy(mine, MAIN, f"{n_parties} parties", folder / plots.name_of("accuracy", "all", n_parties))
    for (name, n_parties), mine in _grouped(rows):
        title = f"{name}, {n_parties} parties"
        plots.by_bytes(mine, METHODS, title, folder / plots.name_of("bytes", name, n_parties))
    parts = summary(rows, recipes, plan)
    write_summary(folder, "Non-IID parties", "noniid", arguments, time.perf_counter() - start, parts)
    return rows


def _finish(source: str, plan: Plan, folder: Path) -> None:
    """Compute the cells of a data set that are not there."""
    for _ in Study(read(source, plan.largest), plan, Cells(folder / "cells"), "process").rows():
        pass


def main(arguments: list[str]) -> None:
    """Run, print, write."""
    options = parser("noniid", __doc__, f"seeds {', '.join(map(str, FULL.seeds))} for few columns and parties")
    options.add_argument(
        "--sets", default="", help=f"digits or sets of --data, with commas between (default: digits, or {ALL_SETS})"
    )
    options.add_argument("--parties", default="", help="numbers of parties, with commas between (default: 10,100)")
    options.add_argument("--jobs", type=int, default=1, help="processes, a data set each (default: 1)")
    options.add_argument("--finished", action="store_true", help="show the finished cells, and compute none")
    options.add_argument("--where", choices=WHERE, default="process", help="where parties run")
    options.add_argument("--ray-address", help="address of a Ray cluster; with --where ray")
    chosen = options.parse_args(arguments)
    plan = QUICK if chosen.quick else FULL if chosen.full else Plan()
    if chosen.parties:
        try:
            plan = replace(plan, parties=tuple(dict.fromkeys(int(n) for n in chosen.parties.split(","))))
        except ValueError:
            options.error(f"--parties: expected integers with commas between, got {chosen.parties}")
        if min(plan.parties) < 1:
            options.error(f"--parties: expected at least 1, got {min(plan.parties)}")
    given = (chosen.sets or (ALL_SETS if chosen.data else "digits")).split(",")
    names = list(dict.fromkeys(name.strip() for name in given))
    if chosen.jobs < 1 or (chosen.jobs > 1 and chosen.where != "process"):
        options.error(f"--jobs: expected at least 1, and 1 with --where ray, got {chosen.jobs}")
    if not chosen.data and names != ["digits"]:
        options.error(f"--sets: expected --data with it, got {chosen.sets}")
    sources = [name if name == "digits" else str(chosen.data / f"{name}.npz") for name in names]
    folder = output_folder(chosen)
    try:
        with workers(chosen.where, address=chosen.ray_address) as where:
            rows = run(sources, plan, folder, where, arguments, chosen.finished, chosen.jobs)
    except FlyNNError as error:
        options.error(str(error))
    for (name, n_parties), mine in _grouped(rows):
        print(f"\n{name}, {n_parties} parties: accuracy with class prior (worst party)")
        print(text_table(table(mine, "personal accuracy", MAIN, "personal worst")))
    for sentence, lines in results(rows):
        print(f"\n{sentence}\n{text_table(lines)}")
