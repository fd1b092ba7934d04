"""Trees beside FlyNN: Flower's boosted trees and a federated forest, from IID parties
to those of one class each.

Five parties, balanced accuracy on a fifth of the samples held out, the same for all
splits and methods. "FlyNN quick", "FlyNN" and "FlyNN thorough" are `flwr run` with its
defaults, at each `effort`: histograms of a party's columns tell every fifth value of a
class, and leave out classes of fewer samples. "FlyNN, floor 1" is `min-examples=1`, the
same model in every split: that of the pooled samples, which a run over parties of one
class each confirms by its SHA-256.

FedXgbBagging and FedXgbCyclic are Flower's own strategies with XGBoost at the parties,
one tree of each class per message. Flower files all trees under the first class and
takes `num_parallel_tree` trees of a reply, which is right for two classes alone. So for
more, parties write the number of their trees there, and name the classes of the trees
again when the model comes back: the model is then what Flower means it to be. The
federated forest is a forest at each party, 200 trees in all, whose votes are pooled.
Pooled forest and boosting, of scikit-learn with balanced weights, see all samples:
upper bounds, not federations.

The trees get what helps them. Learning rate (0.1, 0.3), depth (2, 5), sample weights
and number of rounds (up to 25 of FedXgbBagging, 100 of FedXgbCyclic) are from a grid,
for each data set *and split*, the best on a fifth held out of the training samples of
all parties, with the first seed. Weights balance the classes of a party ("own"), or
those of all parties, which nobody tells them in a real run ("pooled"). The forest's
grid has weights, samples of a leaf (1, 5), and votes by trees or by a party's samples.
FlyNN and the pooled models have nothing tuned.

"one class": with up to five classes each party has one; with more, no two parties have
a class in common. Bytes are those of one party, up and down together, with the final
model distributed, without Flower's envelopes: of the boosted trees the models in
XGBoost's JSON as the strategy sends them, the whole one down in each round; of the
forest its pickled trees up, and all trees down. Finished cells are kept under the
output folder; those of the trees are used again with another version of the package.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import joblib
import numpy as np

from flwr_flynn.app.data.datasets import Dataset
from flwr_flynn.errors import ConfigError
from simulations import baselines
from simulations import trees_page as page
from simulations.boosted import Recipe, boosted, by_flower, classes_of, sample_weights
from simulations.data import paths
from simulations.noniid import WIDE, is_pooled
from simulations.results import Array, Row, markdown_table
from simulations.splits import (
    TEST_FRACTION,
    Parts,
    deal_out,
    defaults,
    held_out,
    read,
    source,
)
from simulations.study import (
    FEDERATED,
    FINISHED,
    SETS,
    Cells,
    NotFinished,
    Option,
    Study,
    code_digest,
)
from simulations.study import seeds as numbered
from simulations.trees_page import (
    BAGGING,
    CYCLIC,
    EFFORTS,
    FLOOR_1,
    FOREST,
    ONE_CLASS,
    POOLED,
    TREES,
)

N_PARTIES = 5
N_TREES = 200
_CODE_OF_FLYNN = code_digest(*FEDERATED, "simulations.trees")

# What the trees run, and no more: their pieces, the long ones, survive changes of the
# package.
_CODE_OF_TREES = code_digest(
    "simulations.trees",
    "simulations.boosted",
    "simulations.splits",
    "simulations.baselines",
)


@dataclass(frozen=True)
class Plan:
    """Extent of a run: seeds (wide data sets have the first alone), samples of a set,
    and the trees' grid.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    largest: int = 2500
    etas: tuple[float, ...] = (0.1, 0.3)
    depths: tuple[int, ...] = (2, 5)
    weights: tuple[str, ...] = ("own", "pooled")
    # of FedXgbBagging and FedXgbCyclic: 125 and 100 trees of each class
    rounds: tuple[int, int] = (25, 100)
    leaves: tuple[int, ...] = (1, 5)


QUICK = Plan((0,), 500, (0.1, 0.3), (4,), ("own",), (5, 20), (1,))


# ---- parties


def dealt(data: Dataset, split: str, seed: int) -> Parts:
    """Deal a data set out to five parties; of "one class" see the module."""
    n_classes = len(data.classes)
    if split != ONE_CLASS:
        return deal_out(data, split, N_PARTIES, seed)
    if n_classes <= N_PARTIES:
        return deal_out(data, "1 class", N_PARTIES, seed)
    test = held_out(len(data.y), TEST_FRACTION, seed)
    return Parts(
        [
            data.share(np.flatnonzero(data.y % N_PARTIES == i), test)
            for i in range(N_PARTIES)
        ],
        n_classes,
    )


# ---- forests


def forests(parts: Parts, weights: str, leaf: int, seed: int) -> list[Any]:
    """A forest of each party that has samples, 200 trees in all."""
    from sklearn.ensemble import RandomForestClassifier

    shares = [share for share in parts.shares if len(share.y)]
    size = N_TREES // len(shares)
    return [
        RandomForestClassifier(
            size, min_samples_leaf=leaf, random_state=seed * N_PARTIES + i
        ).fit(share.X, share.y, sample_weights(share, parts.class_table, weights))
        for i, share in enumerate(shares)
    ]


def votes(parts: Parts, made: Sequence[Any], by_samples: bool) -> Array:
    """(n, L) votes for the pooled held-out samples."""
    sizes = [len(share.y) for share in parts.shares if len(share.y)]
    result = np.zeros((len(parts.pooled.y_test), parts.n_classes))
    for forest, n in zip(made, sizes, strict=True):
        weight = 1
        if by_samples:
            weight = n
        probabilities = forest.predict_proba(parts.pooled.X_test)
        result[:, forest.classes_] += weight * probabilities
    return result


# ---- cells


def _bytes(up: float, down: float, n_parties: int) -> Row:
    return {"up": round(up / n_parties), "down": round(down / n_parties)}


def pooled_flynn(parts: Parts) -> Row:
    """The model of the pooled samples; that of the parties must have the same SHA-256."""
    row, ours = defaults(parts, class_weight="balanced", min_examples=1)
    return row | is_pooled(ours, parts)


def centralised(parts: Parts, kind: str, seed: int) -> Row:
    """A classifier of the pooled samples."""
    train = parts.pooled
    model = baselines.centralised(kind, train.y, seed).fit(train.X, train.y)
    return parts.scores(model.predict(train.X_test)) | {"up": 0, "down": 0, "rounds": 0}


def forest_row(parts: Parts, recipe: Row, seed: int) -> Row:
    """The federated forest: scores, and the bytes of pickled trees."""
    made = forests(parts, recipe["weights"], recipe["leaf"], seed)
    sizes = [len(pickle.dumps(forest.estimators_)) for forest in made]
    scores = parts.scores(votes(parts, made, recipe["by samples"]).argmax(axis=1))
    return (
        scores | _bytes(sum(sizes), sum(sizes) * len(made), len(made)) | {"rounds": 1}
    )


def boosted_row(parts: Parts, method: str, recipe: Row) -> Row:
    """Boosted trees by Flower's strategy: scores and bytes."""
    margins, sites = by_flower(parts, method, Recipe(**recipe))
    return parts.scores(classes_of(margins)) | _bytes(
        sites.up, sites.down, len(sites.known)
    )


def best_recipe(parts: Parts, method: str, plan: Plan) -> Row:
    """The best recipe of the grid on the held-out samples, the first of equals."""
    tried: list[tuple[float, Row]] = []

    def note(scores: Array, recipe: Row) -> None:
        tried.append((parts.scores(scores)["balanced"], recipe))

    if method == FOREST:
        for weights, leaf in product(plan.weights, plan.leaves):
            made = forests(parts, weights, leaf, seed=0)
            for by_samples in (False, True):
                recipe = {"weights": weights, "leaf": leaf, "by samples": by_samples}
                note(votes(parts, made, by_samples).argmax(axis=1), recipe)
    else:
        for eta, depth, weights in product(plan.etas, plan.depths, plan.weights):
            n_rounds = dict(zip((BAGGING, CYCLIC), plan.rounds, strict=True))[method]
            most = Recipe(eta, depth, weights, n_rounds)
            for number, margins in enumerate(boosted(parts, method, most), 1):
                note(classes_of(margins), asdict(replace(most, rounds=number)))
    return max(tried, key=lambda pair: pair[0])[1]


class Pieces:
    """All pieces of one data set."""

    def __init__(self, data: Dataset, plan: Plan, cells: Cells) -> None:
        self.data = data
        self.plan = plan
        self.cells = cells
        self.parts = cache(partial(dealt, data))
        self._digest = joblib.hash((data.X, data.y))

    def rows(self, seed: int) -> Iterator[Row]:
        """A row for every split and method, and for the pooled methods one under the
        split "pooled".
        """
        seeds = self.plan.seeds
        if self.data.X.shape[1] > WIDE:
            seeds = seeds[:1]
        if seed not in seeds:
            return
        shape = {
            "n": len(self.data.y),
            "d": self.data.X.shape[1],
            "classes": len(self.data.classes),
        }
        apart = [(page.EVERYWHERE, method) for method in (FLOOR_1, *POOLED)]
        for split, method in [*product(page.SPLITS, (*EFFORTS, *TREES)), *apart]:
            try:
                row = self.row(split, method, seed)
            except NotFinished:
                continue
            yield (
                {"set": self.data.name}
                | shape
                | {"split": split, "method": method, "seed": seed}
                | row
            )

    def row(self, split: str, method: str, seed: int) -> Row:
        """The row of one piece."""
        if method in TREES:
            recipe = self.recipe(split, method)
        else:
            recipe = {}

        def work() -> Row:
            parts = self.parts(ONE_CLASS if split == page.EVERYWHERE else split, seed)
            if method in EFFORTS:
                return defaults(parts, EFFORTS[method], class_weight="balanced")[0]
            if method == FLOOR_1:
                return pooled_flynn(parts)
            if method in POOLED:
                return centralised(parts, POOLED[method], seed)
            if method == FOREST:
                return forest_row(parts, recipe, seed)
            return boosted_row(parts, method, recipe)

        return self._kept(split, method, (seed, recipe), work) | recipe

    def recipe(self, split: str, method: str) -> Row:
        """The best recipe of the grid on a fifth held out of the training samples, with
        the first seed.
        """
        plan = self.plan

        def work() -> Row:
            return best_recipe(
                self.parts(split, plan.seeds[0]).for_validation(seed=1), method, plan
            )

        return self._kept(
            split, f"recipe of {method}", replace(plan, seeds=plan.seeds[:1]), work
        )

    def _kept(self, split: str, job: str, inputs: Any, work: Any) -> Row:
        code = _CODE_OF_TREES
        if job.startswith("FlyNN"):
            code = _CODE_OF_FLYNN
        inputs = (self._digest, inputs, code)
        return self.cells.finish(f"{self.data.name}: {split}, {job}", inputs, work)


def main(arguments: list[str]) -> None:
    """Run all pieces, the first seed of all sets first; write CSV, figure and summary,
    and print.
    """
    seeds = Option("seeds of the split (default: 3; quick: 1)", numbered)
    study = Study(
        "trees",
        "Trees beside FlyNN",
        __doc__,
        arguments,
        sets=SETS,
        seeds=seeds,
        finished=FINISHED,
    )
    plan = study.sized(Plan(), QUICK, seeds=study.chosen.seeds)
    folder = study.chosen.data
    names = study.chosen.sets or [*paths(folder)] or ["digits"]
    pieces = [
        Pieces(read(source(name, folder), plan.largest), plan, study.cells)
        for name in names
    ]
    rows = [
        row for seed in plan.seeds for of_set in pieces for row in of_set.rows(seed)
    ]
    if rows:
        frame = page.complete(rows)
    else:
        frame = rows
    if not len(frame):
        raise ConfigError(
            "output", "a folder with all pieces of a data set", study.folder
        )
    study.write("trees", rows)
    title = f"{frame.index.get_level_values('set').nunique()} sets, {N_PARTIES} parties"
    study.finish(
        page.summary(
            rows,
            frame,
            study.about,
            page.draw(frame, title, study.folder / "trees.png"),
        )
    )
    print(markdown_table(page.means(frame)))
