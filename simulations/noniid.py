"""Cost of skewed parties: FlyNN beside FedAvg, FedProx and SCAFFOLD, from IID parties
to those of one class each.

"FlyNN default" is the default of `flwr run .` (the best three of six hashes, chosen by
the parties), and "FlyNN thorough" that of effort "thorough". They must have the SHA-256
of the model of the pooled samples. "FlyNN" is a single hash: one round of exact counts,
features as they are, sizes and scoring by default; the sum of the counts must be that
of the pooled samples, and the CSV has its SHA-256.

Beside it softmax regression (LR) and a perceptron (MLP), trained with all parties in
every round by Flower's own FedAvg and FedProx, by SCAFFOLD, by FedAvg with the last
layer kept at each party (own heads, FedPer), and by FedAvg in a single round. They get
what helps them: features standardised by the pooled samples; learning rate and epochs
per round from a grid, the best after as many rounds on a fifth held out of the training
samples. FedAvg is tuned on the *IID* split. What is made for parties that differ is
tuned on "Dirichlet 0.1": SCAFFOLD and own heads like FedAvg, FedProx by mu and epochs
at FedAvg's rate. Nothing is chosen on held-out samples. Accuracy is that after the last
round.

"Personal" figures are of parties that add their own class frequencies to the model,
smoothed towards those of the pooled samples (`model.model`). To the log probabilities
of LR and MLP a party adds the logarithm of its frequencies less that of the pooled
ones, which these models have learned. Own heads have learned the party's frequencies,
and have personal figures only.

An asterisk: no party takes more than one step in a round, because it has no more
samples than a batch and goes through them once. Averaging such steps is gradient
descent on the pooled samples, however they are split, and FedProx and SCAFFOLD are then
FedAvg: skew could do no harm there. The worst party is that of the lowest accuracy, of
those with five or more held-out samples; with so few its accuracy has few possible
values.

"Feature shift" gives the instruments of each party gains and offsets of their own; in
"feature shift, standardised" each party gives its columns mean 0 and deviation 1 by its
own training samples before it takes part.

Shards are of equal size: the few samples left over are in none, so that their counts
are not those of other splits. Bytes are those of one party, up and down together, with
the final model distributed, without Flower's envelopes. With Ray, SCAFFOLD and own
heads run in this process all the same, as their parties keep something between rounds.
Finished pieces are kept under the output folder; those of the baselines are used again
with another version of the package.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import joblib
import numpy as np
from flwr.common import NDArrays, ndarrays_to_parameters
from scipy.special import log_softmax

from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashSpec
from flwr_flynn.app.data.datasets import Dataset
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated import codec
from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.prior import log_frequencies
from simulations import gradients, runner
from simulations import noniid_page as page
from simulations.gradients import (
    MODELS,
    GradientClient,
    HeadClient,
    Recipe,
    ScaffoldClient,
    federate,
    logits,
)
from simulations.noniid_page import (
    COMMITTEES,
    FIGURES,
    FLYNN,
    HEADS,
    METHODS,
    ONE_ROUND,
)
from simulations.results import Array, Row, markdown_table
from simulations.splits import (
    LEAST,
    MENDED,
    SHIFT,
    SPLITS,
    Parts,
    deal_out,
    defaults,
    read,
    source,
)
from simulations.study import (
    FEDERATED,
    FINISHED,
    JOBS,
    Cells,
    NotFinished,
    Option,
    Study,
    code_digest,
    integers,
    names,
)
from simulations.workers import WHERE, Workers, workers

ALGORITHMS: dict[str, type[GradientClient]] = {
    "FedAvg": GradientClient,
    "FedProx": GradientClient,
    "SCAFFOLD": ScaffoldClient,
    HEADS: HeadClient,
    "one round": GradientClient,
}
"""Kinds of parties, by the algorithm of the server."""

TUNED_ON = "IID"
SKEW_TUNED_ON = "Dirichlet 0.1"
WIDE = 100  # columns: data sets with more, such as images, have one seed
MANY = 50  # parties: more have one seed
ALL_SETS = ("digits", "satimage", "letters", "mnist", "fashion_mnist")

_CODE_OF_FLYNN = code_digest(*FEDERATED, "simulations.runner")

# What the baselines run, and no more: their pieces, the long ones, survive changes of
# the package.
_CODE_OF_BASELINES = joblib.hash(
    [
        inspect.getsource(source)
        for source in (gradients, Parts, runner.rounds, log_frequencies)
    ]
)


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
        Seeds of split, held-out samples and training; wide data sets, and many parties,
        have the first alone.
    largest : int
        Samples of a data set that are used.
    rates, epochs, epochs_at_once, mus : tuple of numbers
        Grids of learning rates, of epochs per round, of epochs of a single round, and
        of FedProx's mu.
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
    """Count with a single hash at the parties and over the pooled samples; the scores,
    the bytes, and the SHA-256.
    """
    train = parts.pooled
    n_parties = len(parts.shares)
    spec = HashSpec.suggest(
        train.X.shape[1], len(train.y), parts.n_classes, signed=bool(train.X.min() < 0)
    )
    done = runner.run(parts.parties(), where, spec=spec, classes=range(parts.n_classes))
    counts = done.model.counts_
    traffic = done.run.traffic["counts"]
    if counts != ClassCounts.from_data(
        FlyHash(spec), train.X, train.y, parts.n_classes
    ):
        raise AssertionError(
            "the sum of the parties' counts is not that of the pooled samples"
        )
    own = [personalized(done.model, share) for share in parts.shares]
    scores = with_personal(parts, done.model.predict(train.X_test), own)
    down = round(traffic.down / n_parties) + _size(codec.encode(counts))
    return scores | {
        "up": round(traffic.arrivals.bytes / n_parties),
        "down": down,
        "rounds": 1,
        "sha256": counts.sha256(),
    }


def committee(parts: Parts, where: str | Workers, effort: str) -> Row:
    """Run all phases at the parties, and fit the pooled samples; the scores, the bytes,
    and the SHA-256.
    """
    row, model = defaults(parts, effort, where, min_examples=1)
    same = is_pooled(model, parts, effort)
    own = [personalized(model, share) for share in parts.shares]
    return row | with_personal(parts, model.predict(parts.pooled.X_test), own) | same


_POOLED: dict[Any, str] = {}


def is_pooled(model: FlyNNClassifier, parts: Parts, effort: str = "default") -> Row:
    """The SHA-256 of the pooled model, which is fitted once for all splits, and whether
    the parties' model has it.

    It must have it, unless a class has no training sample: parties then name a class
    that the pooled samples lack.
    """
    train = parts.pooled
    weight = None
    if model.model_.prior is None:
        weight = "balanced"
    key = (
        effort,
        weight,
        tuple(
            sorted(
                hash((row.tobytes(), y))
                for row, y in zip(train.X, train.y, strict=True)
            )
        ),
    )
    if key not in _POOLED:
        _POOLED[key] = (
            FlyNNClassifier(effort=effort, class_weight=weight)
            .fit(train.X, train.y)
            .model_.sha256()
        )
    same = model.model_.sha256() == _POOLED[key]
    if not same and set(train.y) == set(range(parts.n_classes)):
        raise AssertionError("the parties' model is not that of the pooled samples")
    return {"sha256": _POOLED[key], "same": same}


def by_gradients(
    parts: Parts,
    method: str,
    recipe: Recipe,
    n_rounds: int,
    where: str | Workers,
    seed: int,
) -> Row:
    """Train through Flower's strategy; the scores after the last round, and the
    accuracy after each.

    Parameters
    ----------
    parts : Parts
        Standardised.
    method : str
        An algorithm and a model, one of `ALGORITHMS` and one of `MODELS`.
    recipe : Recipe
    n_rounds : int
    where : see `runner.federate`
    seed : int
    """
    (algorithm, model) = method.rsplit(" ", 1)
    points = parts.pooled
    curve = []
    kind = ALGORITHMS[algorithm]
    n_per_class = parts.class_table.sum(axis=0)

    def predict(weights: NDArrays) -> Array:
        if kind is not HeadClient:
            return np.asarray(logits(weights, points.X_test).argmax(axis=1))
        heads = zip(*weights[2:], strict=True)
        by_party = [
            logits([*weights[:2], *head], share.X_test)
            for head, share in zip(heads, parts.shares, strict=True)
        ]
        return np.asarray(np.concatenate(by_party).argmax(axis=1))

    def watch(weights: NDArrays) -> None:
        curve.append(float((predict(weights) == points.y_test).mean()))

    shares = [(share.X, share.y) for share in parts.shares]
    weights, traffic = federate(
        shares,
        parts.n_classes,
        MODELS[model],
        recipe,
        n_rounds,
        watch,
        where,
        seed,
        kind,
    )
    predicted = predict(weights)
    if kind is HeadClient:
        nothing = dict.fromkeys(FIGURES, float("nan"))
        scores = nothing | {
            f"personal {k}": v
            for k, v in parts.scores(predicted).items()
            if k != "balanced"
        }
        weights = weights[:2]
    else:
        own = [with_class_prior(share, weights, n_per_class) for share in parts.shares]
        scores = with_personal(parts, predicted, own)
    n = len(shares)
    cost = {
        "up": round(traffic.arrivals.bytes / n),
        "down": round(traffic.down / n) + _size(weights),
    }
    return (
        scores | cost | {"rounds": n_rounds, "recipe": asdict(recipe), "curve": curve}
    )


def personalized(model: FlyNNClassifier, share: Samples) -> Array:
    """Predicted classes of a party's held-out samples."""
    if not len(share.y_test):
        return np.zeros(0, np.int64)
    if len(share.y):
        model = model.with_prior(share.y)
    return np.asarray(model.predict(share.X_test))


def with_personal(parts: Parts, predicted: Array, own: Sequence[Array]) -> Row:
    """Scores of predictions, (n,), and of those that each party makes itself; what the
    parties gain and lose by these.

    ``worse`` and ``better`` are numbers of parties among the ``judged``, those with
    `LEAST` or more held-out samples; ``drop`` is the largest loss of accuracy of one of
    them, and ``drop of`` the number of its held-out samples.
    """
    personal = np.concatenate(own)
    scores: Row = dict(parts.scores(predicted))
    scores |= {
        f"personal {k}": v for k, v in parts.scores(personal).items() if k != "balanced"
    }
    before = parts.right_by_party(predicted)
    after = parts.right_by_party(personal)
    change = [
        (float(b.mean() - a.mean()), len(a))
        for a, b in zip(before, after, strict=True)
        if len(a) >= LEAST
    ]
    lowest, n_samples = min(change, default=(0.0, 0))
    drop = {"drop": max(-lowest, 0.0), "drop of": 0}
    if lowest < 0:
        drop["drop of"] = n_samples
    counted = {
        "worse": sum(c < 0 for c, _ in change),
        "better": sum(c > 0 for c, _ in change),
        "judged": len(change),
    }
    return scores | counted | drop


def with_class_prior(share: Samples, weights: NDArrays, n_per_class: Array) -> Array:
    """Predicted classes of a party's held-out samples, (n,), with its own class
    frequencies.

    `n_per_class`, (L,), are the samples that the weights were trained on.
    """
    test = log_softmax(logits(weights, share.X_test), axis=1)
    own = np.bincount(share.y, minlength=len(n_per_class))
    if len(share.y):
        test = (
            test
            + log_frequencies(own, n_per_class)
            - log_frequencies(0 * own, n_per_class)
        )
    predicted: Array = test.argmax(axis=1)
    return predicted


def _size(arrays: NDArrays) -> int:
    return sum(map(len, ndarrays_to_parameters(arrays).tensors))


class Pieces:
    """All pieces of one data set, with the parties in `where`."""

    def __init__(
        self, data: Dataset, plan: Plan, cells: Cells, where: str | Workers
    ) -> None:
        self.data = data
        self.plan = plan
        self.cells = cells
        self.where = where
        self.dealt = cache(self._dealt)  # dealing takes longer than finding a piece

    def rows(self) -> Iterator[Row]:
        """A row for every number of parties, split, seed and method."""
        for n_parties, split in product(self.plan.parties, self.plan.splits):
            for seed, method in product(self.seeds(n_parties), METHODS):
                about = {
                    "set": self.data.name,
                    "parties": n_parties,
                    "split": split,
                    "method": method,
                    "seed": seed,
                }
                try:
                    row = self.row(n_parties, split, method, seed)
                except NotFinished:
                    continue
                largest = int(
                    self.dealt(split, n_parties, seed)[0].class_table.sum(axis=1).max()
                )
                steps = 0
                if "recipe" in row:
                    steps = Recipe(**row["recipe"]).steps(largest)
                yield about | row | {"steps": steps}

    def seeds(self, n_parties: int) -> tuple[int, ...]:
        """Seeds of the pieces with so many parties."""
        if self.data.X.shape[1] > WIDE or n_parties > MANY:
            return self.plan.seeds[:1]
        return self.plan.seeds

    def row(self, n_parties: int, split: str, method: str, seed: int) -> Row:
        """The row of one piece."""
        (parts, digest) = self.dealt(split, n_parties, seed)
        label = f"{self.data.name}: {n_parties} parties, {split}"
        if method == FLYNN or method in COMMITTEES:
            if method == FLYNN:
                measured = flynn
            else:
                measured = partial(committee, effort=COMMITTEES[method])
            return self.cells.finish(
                f"{label}, {method}",
                (digest, seed, _CODE_OF_FLYNN),
                lambda: measured(parts, self.where),
            )
        n_rounds = 1
        if method != ONE_ROUND:
            n_rounds = self.plan.rounds
        recipe = self.recipe(n_parties, method)
        inputs = (digest, seed, recipe, n_rounds, _CODE_OF_BASELINES)
        work = partial(
            by_gradients,
            parts.standardised(),
            method,
            recipe,
            n_rounds,
            self.where,
            seed,
        )
        return self.cells.finish(f"{label}, {method}", inputs, work)

    def recipe(self, n_parties: int, method: str) -> Recipe:
        """The best recipe of the grid, see the module."""
        algorithm, model = method.rsplit(" ", 1)
        plan = self.plan
        if algorithm in ("FedAvg", "one round"):
            split = TUNED_ON
        else:
            split = SKEW_TUNED_ON
        if algorithm == "FedProx":
            base = self.recipe(n_parties, f"FedAvg {model}")
            candidates = [
                replace(base, epochs=n, mu=mu) for n in plan.epochs for mu in plan.mus
            ]
        else:
            if method == ONE_ROUND:
                epochs = plan.epochs_at_once
            else:
                epochs = plan.epochs
            candidates = [Recipe(rate, n) for rate in plan.rates for n in epochs]
        n_rounds = 1
        if method != ONE_ROUND:
            n_rounds = plan.rounds
        goal = "accuracy"
        if algorithm == HEADS:
            goal = "personal accuracy"
        dealt, digest = self.dealt(split, n_parties, 0)

        def work() -> Recipe:
            parts = dealt.for_validation(seed=1).standardised()
            scores = [
                by_gradients(parts, method, recipe, n_rounds, self.where, 0)[goal]
                for recipe in candidates
            ]
            best = max(zip(candidates, scores, strict=True), key=lambda pair: pair[1])
            return best[0]

        label = f"{self.data.name}: {n_parties} parties, recipe of {method}"
        inputs = (digest, candidates, n_rounds, _CODE_OF_BASELINES)
        return self.cells.finish(label, inputs, work)

    def _dealt(self, split: str, n_parties: int, seed: int) -> tuple[Parts, str]:
        parts = deal_out(self.data, split, n_parties, seed)
        return parts, str(
            joblib.hash([(s.X, s.y, s.X_test, s.y_test) for s in parts.shares])
        )


def run(
    study: Study, sources: Sequence[str], plan: Plan, where: str | Workers
) -> list[Row]:
    """Finish all pieces, and write CSV, figures and summary.

    With `--jobs` above 1 so many processes finish the pieces first, a data set each,
    with the parties in them.
    """
    # All are read before the first is worked on: a name that is wrong shows at once.
    pieces = [
        Pieces(read(name, plan.largest), plan, study.cells, where) for name in sources
    ]
    if study.chosen.jobs > 1 and not study.chosen.finished:
        joblib.Parallel(study.chosen.jobs)(
            joblib.delayed(_finished)(name, plan, study.cells) for name in sources
        )
    rows = [row for of_set in pieces for row in of_set.rows()]
    if not rows:
        raise ConfigError("output", "a folder with finished pieces", study.folder)
    study.write("noniid", rows)
    # whose labels are those of IID
    splits = [split for split in plan.splits if split not in (SHIFT, MENDED)]
    first = pieces[0]
    n_parties = plan.parties[0]
    seed = plan.seeds[0]
    dealt = {
        split: first.dealt(split, n_parties, seed)[0].class_table for split in splits
    }
    skew = f"{first.data.name}: training samples of {n_parties} parties by class", dealt
    study.finish(page.summary(rows, plan.rounds, study.about, skew, study.folder))
    return rows


def _finished(name: str, plan: Plan, cells: Cells) -> None:
    """Compute the pieces of a data set that are not there."""
    deque(Pieces(read(name, plan.largest), plan, cells, "process").rows(), 0)


def main(arguments: list[str]) -> None:
    """Run, print, write."""
    study = Study(
        "noniid",
        "Non-IID parties",
        __doc__,
        arguments,
        f"seeds {', '.join(map(str, FULL.seeds))} for few columns and parties",
        sets=Option(
            f"digits or sets of --data (default: digits, or {', '.join(ALL_SETS)})",
            names,
            (),
        ),
        parties=Option(
            "numbers of parties, with commas between (default: 10,100)", integers
        ),
        jobs=JOBS._replace(what="processes, a data set each (default: 1)"),
        finished=FINISHED,
        where=Option("where parties run", str, "process", WHERE),
        ray_address=Option("address of a Ray cluster; with --where ray"),
    )
    chosen = study.chosen
    plan = study.sized(Plan(), QUICK, FULL, parties=chosen.parties)
    if chosen.jobs > 1 and chosen.where != "process":
        raise DataError("--jobs", "1 with --where ray", chosen.jobs)
    usual: Sequence[str] = ("digits",)
    if chosen.data:
        usual = ALL_SETS
    wanted = chosen.sets or usual
    with workers(chosen.where, address=chosen.ray_address) as where:
        rows = run(study, [source(name, chosen.data) for name in wanted], plan, where)
    for sentence, lines in page.results(rows):
        print(f"\n{sentence}\n{markdown_table(lines)}")
