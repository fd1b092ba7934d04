"""Speed of the stages before the hash, and of the classifier at each effort, beside
baselines of the same run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from flwr_flynn import FlyHash, FlyNNClassifier, HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from simulations.lean import best_in_turn, lean_count, lean_matrix
from simulations.results import Array, Row

_N_FEATURES = 20
_N_CLASSES = 5
_STAGES = {"bumps": "rank codes, bumps", "steps": "rank codes, steps"}


def samples(n: int) -> tuple[Array, Array]:
    """Float samples of five classes, (n, 20), with heavy tails."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, _N_CLASSES, n)
    centers = generator.normal(size=(_N_CLASSES, _N_FEATURES))
    return np.exp(centers[y] + generator.normal(size=(n, _N_FEATURES))), y


def stages(quick: bool) -> list[Row]:
    """Hash and count by each candidate of the default, stage before the lifting matrix
    included, beside lean SciPy.
    """
    if quick:
        n = 512
        n_lean = 100
        hash_dim = 2**14
        n_turns = 2
    else:
        n = 4096
        n_lean = 200
        hash_dim = 2**16
        n_turns = 5
    X, y = samples(n)
    plan = HashPlan(
        _N_FEATURES,
        _N_CLASSES,
        n,
        "auto",
        hash_dim=hash_dim,
        hash_nnz=64,
    )
    specs = plan.specs(ColumnHistograms.from_data(X, y, _N_CLASSES))
    rows = []
    for spec in specs:
        hasher = FlyHash(spec)
        matrix = lean_matrix(
            FlyHash.from_rows(hasher.rows, spec.n_inputs, spec.hash_nnz, hasher.signs)
        )
        inputs = (
            np.random.default_rng(1)
            .normal(size=(n_lean, spec.n_inputs))
            .astype(np.float32)
        )
        hasher.count(X[:64], y[:64], _N_CLASSES)
        seconds = best_in_turn(
            {
                "lean": partial(
                    lean_count, matrix, inputs, y[:n_lean], _N_CLASSES, spec.hash_nnz
                ),
                "ours": partial(hasher.count, X, y, _N_CLASSES),
            },
            n_turns,
        )
        plain_stage = "columns"
        if spec.n_waves:
            plain_stage = "waves"
        stage = _STAGES.get(spec.coding, plain_stage)
        drawn = ""
        if spec.row_weights is not None:
            drawn = " by relevance"
        ours = seconds["ours"] / n * 1e6
        lean = seconds["lean"] / n_lean * 1e6
        row = {
            "stage": f"{stage}{drawn}, {'+-1' if spec.signed else '0/1'}",
            "inputs": spec.n_inputs,
        }
        row |= {"m": spec.hash_dim, "s": spec.row_nnz, "ours us/sample": ours}
        rows.append(
            row | {"lean us/sample, without the stage": lean, "x lean": lean / ours}
        )
    return rows


def efforts(quick: bool) -> list[Row]:
    """Fit and predict at each effort on two threads, beside a random forest of 200
    trees and brute-force kNN.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier

    n = 50000
    n_test = 2000
    if quick:
        n = 2000
        n_test = 200
    X, y = samples(n + n_test)
    train = slice(0, n)
    test = slice(n, n + n_test)
    ours = {
        effort: FlyNNClassifier(effort=effort, n_jobs=2)
        for effort in ("quick", "default", "thorough")
    }
    models = ours | {
        "forest": RandomForestClassifier(200, n_jobs=2, random_state=0),
        "kNN": KNeighborsClassifier(5, algorithm="brute", n_jobs=2),
    }
    for model in ours.values():  # compiles
        model.fit(X[:500], y[:500]).predict(X[:64])

    def trained(model: Any) -> object:
        return model.fit(X[train], y[train])

    def predicted(model: Any) -> object:
        return model.predict(X[test])

    fit = best_in_turn({name: partial(trained, m) for name, m in models.items()}, 1)
    predict = best_in_turn(
        {name: partial(predicted, m) for name, m in models.items()}, 3
    )
    rows = []
    for effort in ours:
        row = {
            "effort": effort,
            "n train": n,
            "fit s": fit[effort],
            "forest fit s": fit["forest"],
        }
        row |= {
            "fit / forest": fit[effort] / fit["forest"],
            "predict us/sample": predict[effort] / n_test * 1e6,
        }
        rows.append(
            row
            | {
                "kNN us/sample": predict["kNN"] / n_test * 1e6,
                "x kNN": predict["kNN"] / predict[effort],
            }
        )
    return rows
