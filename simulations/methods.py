"""The methods that `python -m simulations accuracy` compares, each a job: data set and settings in, rows out.

A job is a plain function, so that it can run in another process, and its rows hold plain values. All jobs on a data set
use the same folds. "Tuned" means as in the paper: the best mean score over the very folds that are reported, which
flatters; "nested" means chosen within each training fold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import make_constraint

from flwr_flynn import FlyNNClassifier, HashPlan, HashSpec
from flwr_flynn.model.column_histograms import ColumnHistograms
from simulations import baselines
from simulations.baselines import (
    KNNScores,
    Trained,
    balanced_accuracy,
    cross_validated_classifier,
    cross_validated_knn,
    knn_probabilities,
    neighbours,
    standardised,
    unit_rows,
)
from simulations.paper_flynn import cross_validated
from simulations.results import MODEL, Row, reliability

Array = npt.NDArray[Any]

FLYNN, THOROUGH = "FlyNN", "FlyNN thorough"
PAPER, TUNED = "FlyNN paper", "FlyNN tuned"
KNN, KNN_NESTED = "kNN", "kNN, nested"  # the better of two scalings: on the folds, or within each training fold
CENTRALISED = {"forest": "random forest", "boosting": "gradient boosting", "logistic": "logistic regression"}
KNN_COLUMNS = "kNN on FlyNN's columns"
KNN_AS_IS, ONE_NN_AS_IS = "kNN as is", "1-NN as is"  # on unscaled samples, as in the paper's tables, it seems
PAPER_PRESET: dict[str, Any] = {"signed": False, "scaling": None, "rule": "novelty"}
TUNED_OPTIONS: dict[str, tuple[Any, ...]] = {  # options that the classifier does not accept are left out
    "signed": (True, False),
    "scaling": (None, "auto"),
    "rule": ("balanced", "novelty"),
}
VERSION = 8  # in the key of every cell; raise it when a job computes something new
PAPER_DECAY = 0.8  # the upper end of the paper's range, and its best
ABLATION: dict[str, dict[str, Any]] = {  # changes of the default; left out where the classifier does not accept them
    FLYNN: {},
    "scoring rule off": {"rule": "novelty"},
    "decay off": {"decay": PAPER_DECAY},
    "committee off": {"max_members": 1},
    "scaling off": {"scaling": None},
    "all off": PAPER_PRESET | {"decay": PAPER_DECAY},
}


@dataclass(frozen=True)
class Settings:
    """Settings that the results depend on.

    Parameters
    ----------
    folds : int
    seed : int
        Seed of subsample, folds, hashes and random configurations.
    draws : int
        Random configurations of FlyNN, and sizes of SBFC.
    largest_dim : int
        The paper tunes m up to 2048 d; no m goes beyond this, so that a run stays affordable.
    largest_k : int
        Largest k of kNN.
    threads : int
        Threads of each method.
    """

    folds: int = 10
    seed: int = 0
    draws: int = 20
    largest_dim: int = 2**14
    largest_k: int = 64
    threads: int = 1


@dataclass(frozen=True, eq=False)
class Problem:
    """A data set and its folds.

    Parameters
    ----------
    name : str
    X : (n, d) array
    y : (n,) int64 array
        Class numbers, 0 to L - 1, all of which occur.
    fold : (n,) int array
        The fold in which each sample is held out, -1 if it never is.
    """

    name: str
    X: Array
    y: Array
    fold: Array

    @property
    def n_classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def splits(self) -> Iterator[tuple[Array, Array]]:
        """Training and held-out indices, fold by fold."""
        return baselines.blocks_of(self.fold)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Numbers of training and held-out samples, fold by fold."""
        return [(len(train), len(test)) for train, test in self.splits]

    def digest(self) -> str:
        """Digest of samples, classes and folds."""
        return str(joblib.hash((self.X, self.y, self.fold)))


@dataclass(frozen=True)
class Job:
    """Methods that are computed together, and the settings and modules that their results depend on."""

    run: Callable[[Problem, Settings], list[Row]]
    uses: tuple[str, ...] = ()
    modules: tuple[str, ...] = MODEL
    about: dict[str, Any] = field(default_factory=dict)

    def settings(self, settings: Settings) -> Row:
        """Settings for the key of a cell."""
        used = {name: value for name, value in asdict(settings).items() if name in self.uses}
        return used | self.about | {"version": VERSION}


def _row(method: str, scores: Sequence[float] | Array, seconds: float, **detail: Any) -> Row:
    return {"method": method, "scores": [float(s) for s in scores], "seconds": seconds, "detail": json.dumps(detail)}


def _cross_validate(
    problem: Problem, make: Callable[[Array], Any], note: Callable[[Any], Any] = lambda fitted: None
) -> Trained:
    return cross_validated_classifier(problem.X, problem.y, problem.fold, make, note)


def _trained_row(method: str, trained: Trained, seconds: float, **detail: Any) -> Row:
    return _row(method, trained.scores, seconds, **detail) | {"fit": trained.fit, "predict": trained.predict}


def _flynn(settings: Settings, parameters: Row) -> Callable[[Array], FlyNNClassifier]:
    given = {"seed": settings.seed, "n_jobs": settings.threads, "class_weight": "balanced"} | parameters
    return lambda y: FlyNNClassifier(**given)


def _sizes(fitted: Any) -> Row:
    """Sizes of the hash and the decay, of a classifier with one hash."""
    spec = getattr(fitted, "spec_", None)
    names = (("m", "hash_dim"), ("s", "row_nnz"), ("rho", "hash_nnz"), ("signed", "signed"))
    return {short: getattr(spec, name, None) for short, name in names} | {"decay": getattr(fitted, "decay_", None)}


def flynn(problem: Problem, settings: Settings, name: str = FLYNN, parameters: Row | None = None) -> list[Row]:
    """FlyNN with given parameters and no tuning."""
    start = time.perf_counter()
    trained = _cross_validate(problem, _flynn(settings, parameters or {}), _sizes)
    return [_trained_row(name, trained, time.perf_counter() - start, folds=trained.notes)]


def centralised(problem: Problem, settings: Settings, kind: str) -> list[Row]:
    """A classifier of `baselines.centralised`, with no tuning."""
    start = time.perf_counter()
    make = partial(baselines.centralised, kind, seed=settings.seed, threads=settings.threads)
    trained = _cross_validate(problem, make)
    return [_trained_row(CENTRALISED[kind], trained, time.perf_counter() - start)]


def knn_on_columns(problem: Problem, settings: Settings) -> list[Row]:
    """KNN on columns that are centred and weighted as for the candidate of weighted columns of the default FlyNN."""
    start = time.perf_counter()
    n_classes = len(np.unique(problem.y))

    def columns(X: Array, number: int, train: Array) -> Array:
        found = ColumnHistograms.from_data(X[train], problem.y[train], n_classes)
        specs = HashPlan(X.shape[1], n_classes, scaling="auto", hash_dim=256).specs(found)
        spec = next(spec for spec in specs if spec.scale is not None and not spec.n_waves and spec.signed)
        return (X.astype(np.float64) - np.array(spec.center)) * np.array(spec.scale)

    result = cross_validated_knn(problem.X, problem.y, problem.fold, columns, settings.largest_k)
    seconds = time.perf_counter() - start
    return [_best_k(KNN_COLUMNS, result.tuned, seconds, result), _nested(f"{KNN_COLUMNS}, nested", seconds, result)]


def _best(name: str, problem: Problem, settings: Settings, configurations: Sequence[Row]) -> list[Row]:
    start = time.perf_counter()
    trained = [_cross_validate(problem, _flynn(settings, configuration)) for configuration in configurations]
    best = int(np.mean([one.scores for one in trained], axis=1).argmax())
    detail = configurations[best] | {"of": len(configurations)}
    return [_trained_row(name, trained[best], time.perf_counter() - start, **detail)]


def paper_configurations(n_features: int, settings: Settings) -> list[Row]:
    """Random configurations, uniform over the paper's ranges, with m up to `largest_dim`."""
    generator = np.random.default_rng([settings.seed, 1])
    low, high = 2 * n_features, max(2 * n_features, min(2048 * n_features, settings.largest_dim))
    drawn = []
    for _ in range(settings.draws):
        m = int(generator.integers(low, high, endpoint=True))
        s = int(generator.integers(2, max(2, n_features // 2), endpoint=True))
        rho = int(generator.integers(8, 256, endpoint=True))
        sizes = {"hash_dim": m, "row_nnz": min(s, n_features), "hash_nnz": min(rho, m)}
        drawn.append(PAPER_PRESET | sizes | {"decay": float(generator.uniform(0, 0.8))})
    return drawn


def tuned_configurations(n_features: int, settings: Settings) -> list[Row]:
    """Random configurations of the options that our classifier adds: largest m, s at most 64, its own decay."""
    generator = np.random.default_rng([settings.seed, 2])
    options = {name: [value for value in values if accepts(name, value)] for name, values in TUNED_OPTIONS.items()}
    options = {name: values for name, values in options.items() if values}
    m = settings.largest_dim
    drawn = []
    for _ in range(settings.draws):
        chosen = {name: values[int(generator.integers(len(values)))] for name, values in options.items()}
        s = min(int(generator.integers(2, max(2, min(n_features // 2, 64)), endpoint=True)), n_features)
        rho = round(float(16 * 32 ** generator.random()))
        drawn.append(chosen | {"hash_dim": m, "row_nnz": s, "hash_nnz": min(rho, m // 4)})
    return drawn


def accepts(name: str, value: object) -> bool:
    """True if the classifier's own table of parameters allows a value."""
    constraints = FlyNNClassifier._parameter_constraints.get(name, [])
    return any(make_constraint(constraint).is_satisfied_by(value) for constraint in constraints)


def flynn_paper(problem: Problem, settings: Settings) -> list[Row]:
    """The paper's FlyNN, tuned as in the paper."""
    start = time.perf_counter()
    configurations = paper_configurations(problem.X.shape[1], settings)
    scores = []
    for one in configurations:
        sizes = (problem.X.shape[1], one["hash_dim"], one["row_nnz"], one["hash_nnz"])
        spec = HashSpec(*sizes, seed=settings.seed)
        scores.append(cross_validated(problem.X, problem.y, problem.fold, spec, [one["decay"]])[0])
    best = int(np.mean(scores, axis=1).argmax())
    return [_row(PAPER, scores[best], time.perf_counter() - start, **configurations[best], of=len(configurations))]


def flynn_tuned(problem: Problem, settings: Settings) -> list[Row]:
    """The package's FlyNN, tuned with the same budget."""
    return _best(TUNED, problem, settings, tuned_configurations(problem.X.shape[1], settings))


def _best_k(name: str, scores: Array, seconds: float, result: KNNScores) -> Row:
    best = int(scores.mean(axis=0).argmax())
    return _row(name, scores[:, best], seconds, k=best + 1) | {"fit": result.scaling, "predict": result.predicting}


def _nested(name: str, seconds: float, result: KNNScores) -> Row:
    fit = np.add(result.scaling, result.choosing).tolist()
    return _row(name, result.nested, seconds, k=result.nested_k) | {"fit": fit, "predict": result.predicting}


def knn(problem: Problem, settings: Settings) -> list[Row]:
    """KNN and 1-NN on rows of unit length and on standardised columns.

    "balanced votes" is tuned like "kNN", the better of the two scalings: part of what FlyNN gains over kNN in balanced
    accuracy is that it weighs classes alike, and this shows how much.
    """
    tuned, balanced, nested, single, results = [], [], [], [], []
    scalings = {"L2": lambda X, _, train: unit_rows(X), "standardised": lambda X, _, train: standardised(X, train)}
    for name, scale in scalings.items():
        start = time.perf_counter()
        result = cross_validated_knn(problem.X, problem.y, problem.fold, scale, settings.largest_k)
        seconds = time.perf_counter() - start
        results.append(result)
        tuned.append(_best_k(f"kNN {name}", result.tuned, seconds, result))
        balanced.append(_best_k(name, result.balanced, seconds, result))
        nested.append(_nested(f"kNN {name}, nested", seconds, result))
        single.append(_best_k(f"1-NN {name}", result.tuned[:, :1], seconds, result))
    scaling = np.argmax([result.inside for result in results], axis=0)
    scores, predict = ([nested[i][key][number] for number, i in enumerate(scaling)] for key in ("scores", "predict"))
    fit = np.sum([row["fit"] for row in nested], axis=0).tolist()
    both = sum(row["seconds"] for row in tuned)
    chosen = _row(KNN_NESTED, scores, both, scaling=[list(scalings)[i] for i in scaling])
    return [
        _better(KNN, tuned),
        *tuned,
        chosen | {"fit": fit, "predict": predict},
        *nested,
        _better("kNN, balanced votes", balanced),
        *single,
    ]


def knn_as_is(problem: Problem, settings: Settings) -> list[Row]:
    """KNN and 1-NN on samples as they are."""
    start = time.perf_counter()
    result = cross_validated_knn(problem.X, problem.y, problem.fold, lambda X, number, train: X, settings.largest_k)
    seconds = time.perf_counter() - start
    methods = ((KNN_AS_IS, result.tuned), (ONE_NN_AS_IS, result.tuned[:, :1]))
    return [_best_k(name, scores, seconds, result) for name, scores in methods]


def _better(name: str, rows: Sequence[Row]) -> Row:
    better = max(rows, key=lambda row: float(np.mean(row["scores"])))
    detail = json.dumps({"is": better["method"]} | json.loads(better["detail"]))
    return better | {"method": name, "seconds": sum(row["seconds"] for row in rows), "detail": detail}


def sbfc(problem: Problem, settings: Settings) -> list[Row]:
    """SBFC, tuned over its dimension."""
    start = time.perf_counter()
    d = problem.X.shape[1]
    sizes = baselines.sbfc_sizes(d, settings.draws, settings.largest_dim)
    planes = np.random.default_rng([settings.seed, 3]).standard_normal((d, max(sizes)), np.float32)
    predicted = baselines.sbfc_predictions(problem.X, problem.y, problem.fold, planes, sizes, settings.seed)
    scores = np.array(
        [balanced_accuracy(problem.y[test], predicted[test], problem.n_classes) for _, test in problem.splits]
    )
    best = int(scores.mean(axis=0).argmax())
    return [_row("SBFC", scores[:, best], time.perf_counter() - start, m=sizes[best], of=len(sizes))]


def one_epoch(problem: Problem, settings: Settings, kind: str) -> list[Row]:
    """Logistic regression or a perceptron for one epoch, tuned over a small grid."""
    start = time.perf_counter()
    grid = baselines.LR_GRID if kind == "LR" else baselines.MLP_GRID
    scores = np.empty((len(grid), problem.fold.max() + 1))
    for number, (train, test) in enumerate(problem.splits):
        X = standardised(problem.X, train)
        for i, parameters in enumerate(grid):
            predicted = baselines.one_epoch(kind, parameters, X[train], problem.y[train], X[test], settings.seed)
            scores[i, number] = balanced_accuracy(problem.y[test], predicted, problem.n_classes)
    best = int(scores.mean(axis=1).argmax())
    return [_row(f"{kind}, one epoch", scores[best], time.perf_counter() - start, **grid[best], of=len(grid))]


def _split(problem: Problem) -> tuple[Array, Array]:
    """About 70 % of the samples to learn from, 30 % to ask about, at least one fold of each; or the official split."""
    test = (problem.fold >= 0) & (problem.fold < max(1, round(0.3 * (problem.fold.max() + 1))))
    return np.flatnonzero(~test), np.flatnonzero(test)


def calibration(problem: Problem, settings: Settings) -> list[Row]:
    """Calibration of the probabilities of FlyNN, kNN and logistic regression, on one split.

    kNN: standardised columns, see `knn_probabilities`; logistic regression: the same columns, trained to the end.
    ``balanced log-loss`` is the mean over classes of theirs. Probabilities below 1e-6 count as 1e-6.
    """
    from sklearn.linear_model import LogisticRegression

    train, test = _split(problem)
    y, n_classes = problem.y, problem.n_classes
    X = standardised(problem.X, train)
    probabilities = {"kNN standardised": knn_probabilities(X[train], y[train], X[test], n_classes, settings.largest_k)}
    flynn = FlyNNClassifier(seed=settings.seed).fit(problem.X[train], y[train])
    regression = LogisticRegression(max_iter=2000).fit(X[train], y[train])
    for name, model, points in ((FLYNN, flynn, problem.X[test]), ("logistic regression", regression, X[test])):
        probabilities[name] = np.zeros((len(test), n_classes))
        probabilities[name][:, model.classes_] = model.predict_proba(points)
    return [reliability(name, probabilities[name], y[test]) for name in sorted(probabilities)]


def novelty(problem: Problem, settings: Settings) -> list[Row]:
    """ROC-AUC of FlyNN's novelty score for samples of a class that nobody has seen, one class at a time (ten at most).

    Beside it the distance to the nearest training sample on standardised columns.
    """
    from sklearn.metrics import roc_auc_score

    train, test = _split(problem)
    rows = []
    for label in range(min(problem.n_classes, 10)):
        known = train[problem.y[train] != label]
        unseen = problem.y[test] == label
        if not unseen.any() or unseen.all() or len(np.unique(problem.y[known])) < 2:
            continue
        flynn = FlyNNClassifier(seed=settings.seed).fit(problem.X[known], problem.y[known])
        X = standardised(problem.X, known)
        nearest = X[known][neighbours(X[known], X[test], 1)[:, 0]]
        scores = {
            "FlyNN ROC-AUC": flynn.novelty(problem.X[test]).min(axis=1),
            "1-NN ROC-AUC": ((X[test] - nearest) ** 2).sum(axis=1),
        }
        rows.append({"class": label} | {name: float(roc_auc_score(unseen, score)) for name, score in scores.items()})
    return rows


_BASELINES = ("simulations.baselines",)
_BOTH = (*MODEL, "simulations.baselines")
_DRAWN = ("seed", "draws", "largest_dim")

JOBS: dict[str, Job] = {
    KNN: Job(knn, ("largest_k", "threads"), _BASELINES),
    KNN_AS_IS: Job(knn_as_is, ("largest_k", "threads"), _BASELINES),
    "SBFC": Job(sbfc, _DRAWN, _BASELINES),
    "LR": Job(partial(one_epoch, kind="LR"), ("seed",), _BASELINES),
    "MLP": Job(partial(one_epoch, kind="MLP"), ("seed",), _BASELINES),
    FLYNN: Job(flynn, ("seed", "threads"), _BOTH),
    THOROUGH: Job(partial(flynn, name=THOROUGH, parameters={"effort": "thorough"}), ("seed", "threads"), _BOTH),
    KNN_COLUMNS: Job(knn_on_columns, ("seed", "largest_k", "threads"), _BOTH),
    PAPER: Job(flynn_paper, _DRAWN, (*_BOTH, "simulations.paper_flynn")),
    TUNED: Job(flynn_tuned, _DRAWN, about={"options": TUNED_OPTIONS}),
    "calibration": Job(calibration, ("seed", "largest_k"), _BOTH),
    "novelty": Job(novelty, ("seed",), _BOTH),
    **{kind: Job(partial(centralised, kind=kind), ("seed", "threads"), _BASELINES) for kind in CENTRALISED},
    **{
        name: Job(partial(flynn, name=name, parameters=changes), ("seed", "threads"), about={"parameters": changes})
        for name, changes in ABLATION.items()
        if name != FLYNN and all(accepts(*item) for item in changes.items())
    },
}
"""All jobs; the ablation's are named as in `ABLATION`, and its default is the comparison's."""

MAIN = (FLYNN, KNN, *CENTRALISED)
"""The jobs that are quick enough for data sets of any size: nothing is tuned but kNN."""

COMPARED = (KNN, *CENTRALISED, "SBFC", "LR", "MLP", FLYNN, THOROUGH, KNN_COLUMNS, PAPER, TUNED)
"""The jobs of the comparison."""

OTHERS = (KNN, KNN_NESTED, *CENTRALISED.values())
"""The methods, in the order of the short table, that the default FlyNN is to beat."""

ABLATED = tuple(name for name in ABLATION if name in JOBS)
"""The jobs of the ablation."""
