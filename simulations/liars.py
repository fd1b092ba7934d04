"""Parties that lie: FlyNN's sum with caps, groups and the server's own samples, beside Krum and trimmed means.

30 parties, of which a share lies, all liars in the same way. *Flippers* give each class the name of the next.
*Inventors* do so, too, and claim ten times the samples that they have. *Claimers* claim ten times their samples, all of
one class. *Hiders* call class 1 class 2 and tell the truth about all else. In FlyNN a sample that is claimed ten times
is counted ten times; in FedAvg the party's weight is ten times as large. Liars and split are the same for all methods.

FlyNN is one round of exact counts with public ranges (those of the data set) and a suggested decay. "sum": no defence.
"cap": `max-examples` is the number of samples of the largest party before anybody lies; liars claim it. "median": each
of 10 random groups makes a model, and the median of their log probabilities decides; nobody is left out. "groups of N":
at most N random groups, and those that make the model worse on five samples of each class that the server owns are left
out (`groups=N`, `trusted`); the samples are taken from the data set before it is dealt out. "server alone" is the model
of these samples, and no party's.

FedAvg trains the perceptron of `simulations.gradients` on features standardised by the honest pooled samples, with all
parties in every round, and the better of two learning rates, by the test samples of the honest run. Krum (MultiKrum:
the mean of as many as are honest) and the trimmed mean are Flower's own strategies. They are told the true share of
liars, and have no samples of the server's. The trimmed mean, and Krum's choice, do not look at numbers of samples.

"FlyNN Gram" has a Gram matrix of 1024 rows beside the counts, "FlyNN counts" none. Both have the defaults of `flwr
run`: scaling by the columns, candidates that the parties choose from by their leave-one-out, and liars have a say in
all of it. "cap" is as above. The Gram matrix has no groups, see docs/how_to/liars.md.

Accuracy is that on the held-out samples of all parties. "left out" are honest parties in groups that "groups" left out,
"let in" liars in groups that stayed, both of 30.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from flwr.common import NDArrays, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, FedTrimmedAvg, Krum

from flwr_flynn import FlyNNClassifier, HashPlan
from flwr_flynn.app.data.datasets import Dataset, Share
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.groups import GroupedCounts
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.run import Run
from flwr_flynn.model.model import Model
from simulations import runner
from simulations.gradients import MODELS, GradientClient, Recipe, initial_weights, logits
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
from simulations.traffic import source_of

Array = npt.NDArray[Any]

FLIPPERS, INVENTORS, CLAIMERS, HIDERS = "flippers", "inventors", "claimers", "hiders"
KINDS = (FLIPPERS, INVENTORS, CLAIMERS, HIDERS)
HIDDEN = 1
"""The class that hiders hide."""

SUM, CAP, MEDIAN, ALONE, LARGEST = "FlyNN sum", "FlyNN cap", "FlyNN median", "server alone", 128
GROUPS = {f"FlyNN groups of {n}": n for n in (10, LARGEST)}
BASELINES = ("FedAvg", "FedAvg Krum", "FedAvg trimmed")
METHODS = (SUM, CAP, MEDIAN, *GROUPS, ALONE, *BASELINES)
COUNTS, GRAM = "FlyNN counts", "FlyNN Gram"
TWO_ORDERS = (COUNTS, f"{COUNTS} cap", GRAM, f"{GRAM} cap")
TIMES = 10
"""Samples that an inventor claims for each that it has."""

_CODE = code_digest(*FEDERATED, "flwr_flynn.app.data", *(f"simulations.{name}" for name in (
    "liars", "gradients", "splits", "runner")))  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Extent of a run: splits, shares of liars, samples of a set at most, rounds of FedAvg, seeds.

    Those of runs with the Gram matrix, which take longer, are their own.
    """

    splits: tuple[str, ...] = ("IID", "Dirichlet 0.3", "2 classes")
    shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)
    parties: int = 30
    largest: int = 3000
    rounds: int = 30
    rates: tuple[float, ...] = (0.1, 0.3)
    seeds: tuple[int, ...] = (0,)
    per_class: int = 5
    gram: int = 1024
    pair_splits: tuple[str, ...] = ("IID", "Dirichlet 0.3")
    pair_shares: tuple[float, ...] = (0.2, 0.4)
    pair_seeds: tuple[int, ...] = (0, 1, 2)


QUICK = Plan(
    ("IID",), (0.2,), largest=800, rounds=5, rates=(0.1,),
    gram=256, pair_splits=("IID",), pair_shares=(0.2,), pair_seeds=(0,),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Task:
    """Honest parties, the server's samples, and the order in which parties become liars."""

    parts: Parts
    trusted: tuple[Array, Array]
    order: Array
    plan: HashPlan

    @cached_property
    def standard(self) -> Parts:
        """Parties with standardised features."""
        return self.parts.standardised()

    @property
    def cap(self) -> int:
        """Samples of the largest honest party."""
        return max(len(share.y) for share in self.parts.shares)

    def liars(self, share: float) -> frozenset[int]:
        """Numbers of the parties that lie."""
        return frozenset(self.order[: round(share * len(self.order))].tolist())

    def score(self, predicted: Array) -> Row:
        """Accuracy of predictions of the held-out samples, and of those of the class that hiders hide."""
        y = self.parts.pooled.y_test
        right = predicted == y
        return {"accuracy": float(right.mean()), "hidden": float(right[y == HIDDEN].mean())}


def task_of(data: Dataset, split: str, plan: Plan, seed: int) -> Task:
    """The parties of a data set, less the samples that the server gets."""
    rng, n_classes = np.random.default_rng([seed, 41]), len(data.classes)
    shuffled = rng.permutation(len(data.y))
    own = np.concatenate([shuffled[data.y[shuffled] == label][: plan.per_class] for label in range(n_classes)])
    rest = np.setdiff1d(np.arange(len(data.y)), own)
    parts = deal_out(replace(data, X=data.X[rest], y=data.y[rest]), split, plan.parties, seed)
    ranges = tuple(tuple(map(float, ends)) for ends in (data.X.min(axis=0), data.X.max(axis=0) + 1))
    hashes = HashPlan(data.X.shape[1], n_classes, len(rest), ranges=ranges)
    return Task(parts, (data.X[own], data.y[own]), rng.permutation(plan.parties), hashes)


def labels_of(share: Share, kind: str, n_classes: int) -> Array:
    """The labels that a liar gives its samples."""
    if kind == HIDERS:
        return np.where(share.y == HIDDEN, HIDDEN + 1, share.y)
    lied: Array = (share.y + 1) % n_classes if kind != CLAIMERS else 0 * share.y
    return lied


def n_claimed(share: Share, kind: str, cap: int | None) -> int:
    """The samples that a liar claims."""
    if kind in (FLIPPERS, HIDERS) or not len(share.y):
        return len(share.y)
    return TIMES * len(share.y) if cap is None else cap


@dataclass(frozen=True, eq=False)
class Counted:
    """A party that counts once for all runs of one request for counts."""

    X: Array
    y: Array
    name: str
    kept: dict[str, Any]

    def answer(self, config: Any, arrays: Any, channel: str) -> Any:
        """The party's answer."""
        if not self.kept:
            self.kept["answer"] = party_of(self.X, self.y, name=self.name).answer(config, arrays, channel)
        return self.kept["answer"]


def honest_parties(task: Task) -> list[Counted]:
    """The parties as they are."""
    return [Counted(share.X, share.y, f"party-{i}", {}) for i, share in enumerate(task.parts.shares)]


def lying_parties(
    task: Task, honest: Sequence[Counted], liars: frozenset[int], kind: str, cap: int | None
) -> list[Counted]:
    """The parties, of which some lie. A claimed sample is one of the party's own again."""
    parties = list(honest)
    for i in liars:
        share = task.parts.shares[i]
        rows = np.resize(np.arange(len(share.y)), n_claimed(share, kind, cap))
        y = labels_of(share, kind, task.parts.n_classes)
        parties[i] = Counted(share.X[rows], y[rows], f"party-{i}", {})
    return parties


def summed(task: Task, parties: Sequence[Any], n_groups: int = 0) -> Run:
    """A run over parties, in groups or not. Its groups are drawn by a fixed key, so that they can be drawn again."""
    groups = {"groups": n_groups, "trusted": task.trusted, "group_seed": 32 * "0"} if n_groups else {}
    options = RunOptions(task.plan, range(task.parts.n_classes), len(parties), fraction_evaluate=0.0, **groups)
    return federate(options, parties)


def median_scores(run: Run, X: Array) -> Array:
    """(n, L) medians of the log probabilities of the groups' models, of each class those of groups that have it."""
    total = run.state.results["counts"]
    assert isinstance(total, GroupedCounts)
    scores = []
    for (counts,) in (each.parts for each in total.groups.values()):
        model: Model = FlyNNClassifier.from_counts(run.state.run_spec.spec, counts, np.arange(counts.n_classes)).model_
        found = model.posterior(model.scores(X), np.zeros(counts.n_classes))
        found[:, counts.empty_classes] = np.nan
        scores.append(found)
    table = np.stack(scores)
    known = ~np.isnan(table).all(axis=(0, 1))
    medians = np.full(table.shape[1:], -np.inf)
    medians[:, known] = np.nanmedian(table[:, :, known], axis=0)
    return medians


def by_counts(task: Task, honest: Sequence[Counted], kind: str, share: float) -> list[Row]:
    """A row for each of FlyNN's methods."""
    X_test, liars = task.parts.pooled.X_test, task.liars(share)
    parties = lying_parties(task, honest, liars, kind, None)
    rows = [{"method": SUM} | task.score(summed(task, parties).model.predict(X_test))]
    capped = lying_parties(task, honest, liars, kind, task.cap)
    rows.append({"method": CAP} | task.score(summed(task, capped).model.predict(X_test)))
    for name, n_groups in GROUPS.items():
        run = summed(task, parties, n_groups)
        if n_groups != LARGEST:
            rows.append({"method": MEDIAN} | task.score(median_scores(run, X_test).argmax(axis=1)))
        gone = {int(member.node) for member in run.left_out}
        found = {"left out": len(gone - liars), "let in": len(liars - gone)}
        rows.append({"method": name} | task.score(run.model.predict(X_test)) | found)
    return rows


def by_gram(task: Task, kind: str, share: float, plan: Plan) -> list[Row]:
    """A row for the counts of a run with the defaults, with and without a cap, and one each with the Gram matrix."""
    n_features, n_classes = task.parts.shares[0].X.shape[1], task.parts.n_classes
    hashes = HashPlan(n_features, n_classes, task.plan.n_examples, "auto")
    honest, rows = honest_parties(task), []
    for name, n_rows in ((COUNTS, 0), (GRAM, plan.gram)):
        for cap in (None, task.cap):
            method = name if cap is None else f"{name} cap"
            if cap is not None and kind in (FLIPPERS, HIDERS):  # nobody claims more than that anyway
                rows.append(rows[-1] | {"method": method})
                continue
            lying = lying_parties(task, honest, task.liars(share), kind, cap)
            parties = [party_of(each.X, each.y, name=each.name, gram=True) for each in lying]
            run = federate(RunOptions(hashes, range(n_classes), len(parties), gram=n_rows), parties)
            rows.append({"method": method} | task.score(run.model.predict(task.parts.pooled.X_test)))
    return rows


class Liar(GradientClient):
    """A party that claims to have more samples than it trained on."""

    claimed = 0

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        return super().fit(parameters, config)[0], self.claimed, {}


def by_gradients(task: Task, kind: str, share: float, method: str, recipe: Recipe, plan: Plan, seed: int) -> list[Row]:
    """The row of FedAvg, with Flower's Krum or trimmed mean in its place."""
    parts, liars = task.standard, task.liars(share)
    parties = []
    for i, mine in enumerate(parts.shares):
        y = labels_of(mine, kind, parts.n_classes) if i in liars else mine.y
        party = Liar(mine.X, y, recipe, (seed, i))
        party.claimed = n_claimed(mine, kind if i in liars else FLIPPERS, None)
        parties.append(party)
    start = initial_weights(parts.shares[0].X.shape[1], parts.n_classes, MODELS["MLP"], seed)
    common: dict[str, Any] = {
        "min_fit_clients": len(parties), "min_available_clients": len(parties), "fraction_evaluate": 0.0,
        "min_evaluate_clients": 0, "initial_parameters": ndarrays_to_parameters(start),
        "on_fit_config_fn": lambda number: {"round": number},
    }  # fmt: skip
    make: Callable[..., FedAvg] = FedAvg
    if method == "FedAvg Krum":
        make = partial(Krum, num_malicious_clients=len(liars), num_clients_to_keep=len(parties) - len(liars))
    elif method == "FedAvg trimmed":
        make = partial(FedTrimmedAvg, beta=share)
    parameters, _ = runner.rounds(make(**common), parties, plan.rounds)
    found = logits(parameters_to_ndarrays(parameters), parts.pooled.X_test).argmax(axis=1)
    return [{"method": method} | task.score(found)]


def alone(task: Task) -> list[Row]:
    """The row of the server's own samples."""
    party = Counted(*task.trusted, "server", {})
    return [{"method": ALONE} | task.score(summed(task, [party]).model.predict(task.parts.pooled.X_test))]


def cells_of(source: str, plan: Plan, cells: Cells) -> Iterator[Row]:
    """Rows of all splits, kinds and shares of liars of a data set."""
    data, name = read(source, plan.largest), Path(source).stem
    key = {"set": name, "data": joblib.hash((data.X, data.y)), "code": _CODE, "plan": asdict(plan)}
    for split in plan.splits:
        for seed in plan.seeds:
            task = task_of(data, split, plan, seed)
            honest = honest_parties(task)
            where = {"set": name, "split": split, "seed": seed}
            none = {"kind": "none", "share": 0.0}

            def done(job: str, work: Callable[[], Sequence[Row]], where: Row = where) -> list[Row]:
                return cells.finish(key | {"split": where["split"], "seed": where["seed"], "job": job}, work)

            for row in done(f"{split} {seed}, {ALONE}", partial(alone, task)):
                yield where | none | row
            # The honest run decides the learning rate, so it comes first.
            cases = [("none", 0.0), *((kind, share) for kind in KINDS for share in plan.shares)]
            recipes = {}
            for kind, share in cases:
                lied = FLIPPERS if kind == "none" else kind
                job = f"{split} {seed}, {kind} {share:g}"
                case = where | {"kind": kind, "share": share}
                for row in done(job, partial(by_counts, task, honest, lied, share)):
                    yield case | row
                for method in BASELINES:
                    tried = [
                        (rate, done(f"{job}, {method} {rate:g}", partial(
                            by_gradients, task, lied, share, method, Recipe(rate, 2), plan, seed)))
                        for rate in ([recipes[method]] if method in recipes else plan.rates)
                    ]  # fmt: skip
                    rate, rows = max(tried, key=lambda pair: pair[1][0]["accuracy"])
                    recipes.setdefault(method, rate)
                    yield from (case | row | {"rate": rate} for row in rows)
    lies = [("none", 0.0), *((kind, share) for kind in (FLIPPERS, INVENTORS) for share in plan.pair_shares)]
    for split, seed, (kind, share) in product(plan.pair_splits, plan.pair_seeds, lies):
        task, lied = task_of(data, split, plan, seed), FLIPPERS if kind == "none" else kind
        job = {"split": split, "seed": seed, "job": f"{split} {seed}, Gram, {kind} {share:g}"}
        for row in cells.finish(key | job, partial(by_gram, task, lied, share, plan)):
            yield {"set": name, "split": split, "seed": seed, "kind": kind, "share": share} | row


def table(
    rows: Sequence[Row], by: Sequence[str] = ("kind", "share"), what: str = "accuracy", methods: Sequence[str] = METHODS
) -> list[Row]:
    """Mean accuracy of each of some methods, a line for each case."""
    lines: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in (row for row in rows if row["method"] in methods):
        line = lines.setdefault(tuple(row[name] for name in by), {})
        line.setdefault(row["method"], []).append(row[what])
    return [
        dict(zip(by, case, strict=True))
        | {name: f"{np.mean(line[name]):.3f}" if name in line else "" for name in methods}
        for case, line in lines.items()
    ]


def judged(rows: Sequence[Row]) -> list[Row]:
    """Means of honest parties left out and liars let in, for each kind and share of liars."""
    lines: dict[tuple[str, float], Row] = {}
    for row in rows:
        if row["method"] in GROUPS:
            line = lines.setdefault((row["kind"], row["share"]), {"kind": row["kind"], "share": row["share"]})
            for name in ("left out", "let in"):
                line.setdefault(f"{name}, {GROUPS[row['method']]}", []).append(row[name])
    return [
        {name: f"{np.mean(cell):.1f}" if isinstance(cell, list) else cell for name, cell in line.items()}
        for line in lines.values()
    ]


def draw(rows: Sequence[Row], path: Path, methods: Sequence[str] = METHODS, kinds: Sequence[str] = KINDS) -> None:
    """Accuracy against the share of liars, a panel for each kind of liar and split, means over sets and seeds."""
    rows = [row for row in rows if row["method"] in methods]
    splits = list(dict.fromkeys(row["split"] for row in rows))
    plt, figure, axes = _panels(len(kinds) * len(splits), 4.2, 3.2, most=len(splits))
    for axis, (kind, split) in zip(axes, product(kinds, splits), strict=True):
        for number, method in enumerate(name for name in methods if name != ALONE):
            mine = [r for r in rows if (r["split"], r["method"]) == (split, method) and r["kind"] in ("none", kind)]
            shares = sorted({row["share"] for row in mine})
            means = [np.mean([row["accuracy"] for row in mine if row["share"] == share]) for share in shares]
            style = "--" if method in BASELINES or (method.endswith(" cap") and methods is TWO_ORDERS) else "-"
            axis.plot(shares, means, f"o{style}", color=f"C{number}", label=method, linewidth=1, markersize=3)
        own = [row["accuracy"] for row in rows if (row["split"], row["method"]) == (split, ALONE)]
        if own:
            axis.axhline(float(np.mean(own)), color="grey", linestyle=":", label=ALONE)
        axis.set(xlabel="share of liars", ylabel="accuracy", title=f"{kind}, {split}", ylim=(0, 1))
    axes[-1].legend(fontsize=6)
    _save(plt, figure, path)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("liars", __doc__)
    options.add_argument("--sets", default="digits,satimage", help="names of data sets, separated by commas")
    chosen = options.parse_args(arguments)
    if chosen.data is not None and not chosen.data.is_dir():
        options.error(f"--data: expected a folder, got {chosen.data}")
    plan = QUICK if chosen.quick else Plan()
    start, folder = time.perf_counter(), output_folder(chosen)
    cells, rows = Cells(folder / "cells"), []
    for name in chosen.sets.split(","):
        source = source_of(name, chosen.data)
        if source is not None:
            rows += list(cells_of(source, plan, cells))
            write_csv(folder / "liars.csv", rows)
    lines, hidden = table(rows), table([row for row in rows if row["kind"] in ("none", HIDERS)], what="hidden")
    paired = table(rows, methods=TWO_ORDERS)
    print("\n" + "\n\n".join(map(text_table, (lines, paired, hidden, judged(rows)))) + "\n")
    draw(rows, folder / "liars.png")
    draw(rows, folder / "gram.png", TWO_ORDERS, (FLIPPERS, INVENTORS))
    shown = [row for row in rows if row["share"] in (0.0, 0.2, 0.4)]
    parts = [
        about(__doc__),
        "Means over data sets, splits and seeds:",
        markdown_table(lines),
        f"With a Gram matrix and without, means over data sets, splits ({', '.join(plan.pair_splits)}) and "
        f"{len(plan.pair_seeds)} seeds:",
        markdown_table(paired),
        "Accuracy on the samples of the class that hiders hide:",
        markdown_table(hidden),
        "Groups by the server's samples, means of parties:",
        markdown_table(judged(rows)),
        "By data set and split:",
        markdown_table(table(shown, ("set", "split", "kind", "share"))),
        "With a Gram matrix and without, by data set and split:",
        markdown_table(table(rows, ("set", "split", "kind", "share"), methods=TWO_ORDERS)),
        "![accuracy against the share of liars](liars.png)",
        "![accuracy with the Gram matrix and without](gram.png)",
    ]
    write_summary(folder, "Parties that lie", "liars", arguments, time.perf_counter() - start, parts)
