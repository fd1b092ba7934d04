"""All jobs that `accuracy`, `ablation`, `synthetic` and `openml` share, by name, and
how they are run.

See `simulations.baselines` for what a job is; those of FlyNN are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flwr_flynn import FlyNNClassifier, HashSpec
from simulations import baselines
from simulations.baselines import (
    CENTRALISED,
    KNN,
    KNN_AS_IS,
    KNN_NESTED,
    Settings,
    row_of,
    trained,
)
from simulations.data import DataSet
from simulations.paper.flynn import cross_validated
from simulations.results import Row
from simulations.study import MODEL, Cells, Piece, code_digest

FLYNN = "FlyNN"
THOROUGH = "FlyNN thorough"
PAPER = "FlyNN paper"
PAPER_PRESET: dict[str, Any] = {"signed": False, "scaling": None, "rule": "novelty"}
PAPER_DECAY = 0.8  # the upper end of the paper's range, and its best
ABLATION: dict[str, dict[str, Any]] = {  # changes of the default
    FLYNN: {},
    "scoring rule off": {"rule": "novelty"},
    "decay off": {"decay": PAPER_DECAY},
    "committee off": {"max_members": 1},
    "scaling off": {"scaling": None},
    "all off": PAPER_PRESET | {"decay": PAPER_DECAY},
}


def flynn(
    data: DataSet, settings: Settings, name: str = FLYNN, **parameters: Any
) -> list[Row]:
    """FlyNN with given parameters and no tuning."""
    given: Row = {
        "seed": settings.seed,
        "n_jobs": settings.threads,
        "class_weight": "balanced",
    } | parameters
    return [trained(name, data, lambda y: FlyNNClassifier(**given), _sizes)]


def _sizes(fitted: Any) -> Row:
    """Sizes of the hash and the decay, of a classifier with one hash."""
    spec = getattr(fitted, "spec_", None)
    names = (
        ("m", "hash_dim"),
        ("s", "row_nnz"),
        ("rho", "hash_nnz"),
        ("signed", "signed"),
    )
    return {k: getattr(spec, name, None) for k, name in names} | {
        "decay": spec and fitted.model_.member.scoring.decay
    }


def paper_configurations(n_features: int, settings: Settings) -> list[Row]:
    """Random configurations, uniform over the paper's ranges, with m up to
    `largest_dim`.
    """
    generator = np.random.default_rng([settings.seed, 1])
    low = 2 * n_features
    high = max(2 * n_features, min(2048 * n_features, settings.largest_dim))
    drawn = []
    for _ in range(settings.draws):
        m = int(generator.integers(low, high, endpoint=True))
        s = int(generator.integers(2, max(2, n_features // 2), endpoint=True))
        rho = int(generator.integers(8, 256, endpoint=True))
        sizes = {"hash_dim": m, "row_nnz": min(s, n_features), "hash_nnz": min(rho, m)}
        drawn.append(PAPER_PRESET | sizes | {"decay": float(generator.uniform(0, 0.8))})
    return drawn


def flynn_paper(data: DataSet, settings: Settings) -> list[Row]:
    """The paper's FlyNN, tuned as in the paper."""
    start = time.perf_counter()
    d = data.X.shape[1]
    scores = []
    configurations = paper_configurations(d, settings)
    for one in configurations:
        spec = HashSpec(
            d, one["hash_dim"], one["row_nnz"], one["hash_nnz"], seed=settings.seed
        )
        scores.append(cross_validated(data, spec, [one["decay"]])[0])
    best = int(np.mean(scores, axis=1).argmax())
    detail = configurations[best] | {"of": len(configurations)}
    return [row_of(PAPER, scores[best], time.perf_counter() - start, detail)]


JOBS: dict[str, Callable[[DataSet, Settings], list[Row]]] = {
    KNN: baselines.knn,
    KNN_AS_IS: baselines.knn_as_is,
    **{kind: partial(baselines.pooled, kind=kind) for kind in CENTRALISED},
    "SBFC": baselines.sbfc,
    "LR": partial(baselines.one_epoch, kind="LR"),
    "MLP": partial(baselines.one_epoch, kind="MLP"),
    FLYNN: flynn,
    THOROUGH: partial(flynn, name=THOROUGH, effort="thorough"),
    PAPER: flynn_paper,
    **{
        name: partial(flynn, name=name, **changes)
        for name, changes in ABLATION.items()
        if name != FLYNN
    },
}
"""All jobs; the ablation's are named as in `ABLATION`, and its default is the
comparison's."""

MAIN = (FLYNN, KNN, *CENTRALISED)
"""The jobs that are quick enough for data sets of any size: nothing is tuned but kNN.
"""

COMPARED = (KNN, *CENTRALISED, "SBFC", "LR", "MLP", FLYNN, THOROUGH, PAPER)
"""The jobs of the comparison."""

OTHERS = (KNN, KNN_NESTED, *CENTRALISED.values())
"""The methods, in the order of the short table, that the default FlyNN is to beat."""

# Of the code as it was when this started: somebody may edit it before the run is over.
_THEIRS = code_digest("simulations.baselines", "simulations.data")
_OURS = code_digest(
    *MODEL,
    "simulations.baselines",
    "simulations.data",
    "simulations.methods",
    "simulations.paper.flynn",
)


def call(name: str, data: DataSet, settings: Settings) -> list[Row]:
    """The rows of a job, with name and shape of the data set."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(settings.threads):
        return [data.shape | row for row in JOBS[name](data, settings)]


def run(
    plan: Sequence[tuple[DataSet, str]], settings: Settings, cells: Cells, jobs: int = 1
) -> list[Row]:
    """The rows of a plan, (data set, name of a job), ordered by job; `jobs` processes
    do what is missing.
    """
    pieces = []
    for data, name in plan:
        if name in (FLYNN, THOROUGH, PAPER, *ABLATION):
            code = _OURS
        else:
            code = _THEIRS
        pieces.append(
            Piece(
                f"{data.name}: {name}",
                (data.digest, settings, code),
                partial(call, name, data, settings),
            )
        )
    done = dict(
        zip(
            ((name, data.name) for data, name in plan),
            cells.run(pieces, jobs),
            strict=True,
        )
    )
    order = dict.fromkeys(name for _, name in plan)
    return [
        row
        for job in order
        for (name, _), rows in done.items()
        if name == job
        for row in rows
    ]
