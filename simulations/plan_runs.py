"""Runs with and without noise, measured for `simulations.plan`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits, make_classification

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.noisy_rounds import Descent, NoisyGradient, clipped_gradient
from flwr_flynn.model.scoring import ScoringRule, class_scores
from flwr_flynn.privacy import GaussianCounts, GaussianRounds, LaplaceCounts, planning, suggest_spec
from flwr_flynn.privacy.samplers import SeededNoise
from simulations.generated import binary, real
from simulations.results import MODEL, Cells, Row, code_digest

Array = npt.NDArray[Any]

EPSILONS, DELTA, ROUNDS, DRAWS = (0.25, 0.5, 1.0, 2.0, 4.0), 1e-5, 24, 3
SHARING = (1, 0), (2, 0), (10, 0), (10, 7)  # parties, and those that share one noise
MODES = "counts", "rounds", "laplace"
KINDS = {"counts": "gaussian", "rounds": "gaussian-rounds", "laplace": "laplace"}
IMAGES = "mnist", "fashion_mnist", "usps", "semeion", "digits"
LARGE = {
    **{"mnist": 20000, "fashion_mnist": 20000, "pol": 10000},
    **{"R^50": 20000, "two classes": 20000, "two, one rare": 12000, "ten, some rare": 12000},
}
MOST, _MOST_TEST = 3000, 4000
_PRIVACY = ("sizing", "mechanism", "gaussian_rounds", "noise_mechanisms", "accounting", "samplers")
CODE = code_digest(*MODEL, *(f"flwr_flynn.privacy.{name}" for name in _PRIVACY))


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test samples of one set."""

    name: str
    X: Array
    y: Array
    X_test: Array
    y_test: Array
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", joblib.hash((self.X, self.y, self.X_test, self.y_test)))

    @classmethod
    def of(
        cls, name: str, X: Array, y: Array, n: int, test: tuple[Array, Array] | None = None, most_test: int = _MOST_TEST
    ) -> Task:
        """At most n training samples, and the official test samples or three tenths of all."""
        y, order = np.unique(y, return_inverse=True)[1], np.random.default_rng(0).permutation(len(y))
        held = 0 if test else min(len(y) * 3 // 10, _MOST_TEST)
        X_test, y_test = test or (X[order[:held]], y[order[:held]])
        chosen = order[held : held + n]
        return cls(name, X[chosen], y[chosen], X_test[:most_test], y_test[:most_test])

    @property
    def sizes(self) -> Array:
        """Training samples of each class."""
        return np.bincount(self.y)

    @property
    def public(self) -> dict[str, Any]:
        """Centre and scale that stand for public ones."""
        if self.name in IMAGES:
            return {}
        scale = 1 / np.maximum(self.X.std(axis=0, dtype=np.float64), 1e-9)
        return {"center": tuple(self.X.mean(axis=0, dtype=np.float64).tolist()), "scale": tuple(scale.tolist())}

    def scores(self, predicted: Array) -> tuple[float, float]:
        """Mean recall of all classes, and of the smallest quarter of them."""
        hits = np.bincount(self.y_test, weights=predicted == self.y_test, minlength=len(self.sizes))
        recalls = hits / np.maximum(np.bincount(self.y_test, minlength=len(self.sizes)), 1)
        return float(recalls.mean()), float(recalls[np.argsort(self.sizes)[: -(-len(self.sizes) // 4)]].mean())


def tasks(folder: Path | None, *, quick: bool = False) -> Iterator[Task]:
    """Generated sets and those in the folder, at one size or two; quick: few small ones."""
    most, largest = (500, {}) if quick else (MOST, LARGE)

    def sizes(name: str) -> list[int]:
        return sorted({most, largest.get(name, most)})

    for name, seed in (("R^50", 0), ("R^20", 1)):
        for n in sizes(name):
            yield Task.of(name, *real(max(sizes(name)) * 10 // 7 + 1, int(name[2:]), seed), n)
    yield Task.of("bits", *binary(most + 1300, 100, 20, 0), most)
    for name, weights in (
        ("two classes", None),
        ("two, one rare", [0.9]),
        ("ten, some rare", [0.2, *[0.12] * 5, *[0.05] * 3]),
    ):
        for n in sizes(name):
            X, y = make_classification(
                n * 10 // 7 + 1, 30, n_informative=30, n_redundant=0, n_clusters_per_class=2,
                n_classes=10 if weights and len(weights) > 1 else 2, class_sep=1.5, weights=weights, random_state=1,
            )  # fmt: skip
            yield Task.of(name, X, y, n)
    yield Task.of("digits", *load_digits(return_X_y=True), most)
    for path in [] if quick or folder is None else sorted(folder.glob("*.npz")):
        if not path.stem.startswith("fri_") or path.stem == "fri_c1_1000_25":  # one of a family that is much the same
            for n in sizes(path.stem):
                yield read(path, n)


def read(path: Path, n: int, most_test: int = _MOST_TEST) -> Task:
    """A set from a file."""
    with np.load(path, allow_pickle=False) as file:
        X, y = file["X"], file["y"]
        test = (file["X_test"], np.searchsorted(np.unique(y), file["y_test"])) if "y_test" in file.files else None
    return Task.of(path.stem, X, y, n, test, most_test)


def mechanism_of(mode: str, epsilon: float, spec: HashSpec, n_classes: int, n_honest: int) -> Any:
    """The mechanism of one party."""
    given: dict[str, Any] = {"hash_nnz": spec.hash_nnz, "n_classes": n_classes}
    if mode == "laplace":
        return LaplaceCounts(epsilon, **given)
    given["n_honest"] = n_honest or None
    return (
        GaussianRounds(epsilon, DELTA, ROUNDS, **given) if mode == "rounds" else GaussianCounts(epsilon, DELTA, **given)
    )


def run(
    task: Task, mode: str, epsilon: float, n_parties: int, n_honest: int, n_draws: int, lost: int = 0
) -> Iterator[tuple[float, float]]:
    """Scores of a run, once for each draw of the noise; `lost` parties drop out with their samples."""
    n, d, n_classes, present = len(task.y), task.X.shape[1], len(task.sizes), n_parties - lost
    given = task.public | ({"signed": True} if task.public and mode != "rounds" else {})
    spec = suggest_spec(
        epsilon, 0 if mode == "laplace" else DELTA, d, n, n_classes, n_parties,
        secure_sum=bool(n_honest), n_rounds=ROUNDS if mode == "rounds" else 0, **given,
    )  # fmt: skip
    mechanism, hasher, kept = (
        mechanism_of(mode, epsilon, spec, n_classes, n_honest),
        FlyHash(spec),
        n * present // n_parties,
    )
    active, y, active_test = hasher.active(task.X[:kept]), task.y[:kept], hasher.active(task.X_test)
    exact = ClassCounts.from_active(hasher, active, y, n_classes)
    for draw in range(n_draws):
        noise = [SeededNoise(draw * 1000 + party) for party in range(present)]
        total = exact.array.copy()
        for each in noise:
            total += (
                each.laplace(total.size, mechanism.scale)
                if mode == "laplace"
                else each.gaussian(total.size, mechanism.sigma)
            ).reshape(total.shape)
        counts = mechanism.received(total, exact.spec_fingerprint, present)
        if mode != "rounds":
            rule = ScoringRule("balanced", suggest_decay(counts, "balanced"))
            yield task.scores(class_scores(counts, active_test, rule).argmax(axis=1))
            continue
        descent = Descent.of(counts, ROUNDS, mechanism.unit_noise(present))
        for _ in range(ROUNDS):
            found = clipped_gradient(descent.best, descent.centre, spec.hash_nnz, [(active, y)]).gradient
            found = found + noise[0].gaussian(found.size, mechanism.gradient_sigma * math.sqrt(present)).reshape(
                found.shape
            )
            descent = descent.advance(NoisyGradient((found,)))
        weights = descent.best.astype(np.int64)
        scores = np.stack([weights[:, label][active_test].sum(axis=1) for label in range(n_classes)], axis=1)
        yield task.scores(scores.argmax(axis=1))


def plain(task: Task) -> list[Row]:
    """Scores without noise."""
    n, d, n_classes = len(task.y), task.X.shape[1], len(task.sizes)
    hasher = FlyHash(HashSpec.suggest(d, n, n_classes, signed=bool(task.public), **task.public))
    counts, active = ClassCounts.from_data(hasher, task.X, task.y, n_classes), hasher.active(task.X_test)
    rule = ScoringRule("balanced", suggest_decay(counts, "balanced"))
    scores = task.scores(class_scores(counts, active, rule).argmax(axis=1))
    return [dict(zip(("all", "small"), scores, strict=True))]


def noisy(task: Task, mode: str, n_draws: int) -> list[Row]:
    """Scores of every draw, at every epsilon and way to share."""
    rows = []
    for epsilon, (n_parties, n_honest) in product(EPSILONS, SHARING):
        if mode == "laplace" and n_honest:
            continue
        for scores in run(task, mode, epsilon, n_parties, n_honest, n_draws):
            named = {"epsilon": epsilon, "parties": n_parties, "honest": n_honest}
            rows.append(named | dict(zip(("all", "small"), scores, strict=True)))
    return rows


def measure(task: Task, cells: Cells) -> Iterator[Row]:
    """Rows of one set: ratios to the scores without noise, and public figures."""
    n, sizes = len(task.y), np.sort(task.sizes)
    quarter = float(sizes[: -(-len(sizes) // 4)].mean())
    named: Row = {"set": task.name, "n": n, "d": task.X.shape[1], "L": len(sizes), "n smallest": quarter}
    key = {"set": f"{task.name} {n}", "data": task.digest, "code": CODE}
    (without,) = cells.finish(key | {"job": "same hash, no noise"}, partial(plain, task))
    n_draws = 1 if n > 10000 else DRAWS
    for mode in MODES:
        for row in cells.finish(key | {"job": f"{mode} {n_draws}"}, partial(noisy, task, mode, n_draws)):
            ratios = {f"{part} ratio": row[part] / max(without[part], 1e-9) for part in ("all", "small")}
            plains = {f"{part} plain": without[part] for part in ("all", "small")}
            noise = _noise(mode, row["epsilon"], row["parties"], row["honest"], n, len(sizes))
            yield named | {"mode": mode} | row | plains | ratios | {"noise": noise}


@cache
def _noise(mode: str, epsilon: float, n_parties: int, n_honest: int, n: int, n_classes: int) -> float:
    spec = HashSpec(64, 4096, 8, 16, seed=0)
    if mode == "laplace":  # its noise depends on the winners
        spec = suggest_spec(epsilon, 0, 64, n, n_classes, n_parties)
    return planning.unit_noise(mechanism_of(mode, epsilon, spec, n_classes, n_honest), n_parties)
