"""A metrics.json with every part that the page shows."""

from __future__ import annotations

from typing import Any

import numpy as np


def interval(value: float) -> list[float]:
    return [value, round(value - 0.03, 4), round(min(value + 0.02, 1.0), 4)]


def metrics(n_parties: int = 10, n_classes: int = 3) -> dict[str, Any]:
    """The content of a run's metrics.json, drawn from a seed."""
    rng = np.random.default_rng(5)
    names = [f"Clinic {i}" for i in range(n_parties)]
    classes = ["benign", "malignant", "unclear", *(f"kind {i}" for i in range(n_classes))][:n_classes]
    sizes = rng.multinomial(200, rng.dirichlet(np.full(n_classes, 0.6)), size=n_parties)
    sizes = np.array(
        [
            rng.multinomial(n, p)
            for n, p in zip(sizes.sum(axis=1), rng.dirichlet(np.full(n_classes, 0.6), n_parties), strict=True)
        ]
    )
    rates = np.round(rng.beta(30, 4, n_parties), 4).tolist()
    keys = ("auroc", "auprc", "brier", "log_loss", "calibration_error", "calibration_slope", "calibration_intercept")
    values = (0.9312, 0.8871, 0.1034, 0.3127, 0.0213, 0.9412, -0.0312)

    def figures(accuracy: float, examples: int = 40) -> dict[str, Any]:
        known = {key: interval(value) for key, value in zip(keys, values, strict=True)}
        return {"examples": examples, **known, "accuracy": interval(accuracy)}

    grid = np.linspace(0, 1, 33)
    by_class = [
        {
            "label": label,
            "examples": 120 + i,
            "others": 280 - i,
            "auroc": interval(0.9 + 0.002 * (i % 40)),
            "auprc": interval(0.85),
            "calibration": {"error": interval(0.0212), "slope": interval(0.97), "intercept": None},
            "thresholds": [
                {"threshold": t, **dict.fromkeys(("sensitivity", "specificity", "ppv", "npv"), interval(0.8 + t / 10))}
                for t in (0.25, 0.5, 0.75)
            ],
            "roc": [[float(x), float(x ** (0.12 + 0.05 * (i % 5)))] for x in grid],
            "reliability": [
                {
                    "predicted": (b + 0.5) / 10,
                    "observed": interval(min(0.97, (b + 0.5) / 10 + 0.03 * (-1) ** b)),
                    "examples": 20 + 9 * abs(b - 5),
                }
                for b in range(10)
            ],
        }
        for i, label in enumerate(classes)
    ]
    matrix = np.diag(rng.integers(80, 120, n_classes)) + rng.integers(0, 12, (n_classes, n_classes))
    evaluated = sorted(
        ({"name": n, "accuracy": a, "examples": 40} for n, a in zip(names, rates, strict=True)),
        key=lambda p: p["accuracy"],
    )
    member = {"row_nnz": 19, "hash_nnz": 32, "decay": 0.1234, "hash_dim": 4096}
    return {
        "format": 3,
        "action": "train",
        "run": {"run_id": "7213", "seconds": 41.27},
        "simulation": {"parties": n_parties + 1, "dealt": 2500, "samples": 2500, "empty_parties": 0},
        "parties": [
            {"name": name, "cid": str(i), "examples": int(row.sum()), "bytes": 60_000 + i, "seconds": 0.5 + i / 100}
            for i, (name, row) in enumerate(zip(names, sizes, strict=True))
        ],
        "federation": [{"party": name} for name in names],
        "missing": {"Harbour": "refused: counts: expected at most 19 examples, got 20"},
        "absent": {
            "evaluation": {"Clinic 3": "failed: its reply cannot be read (KeyError)"},
            "saving the model": {"Clinic 5": "no space left on the device"},
        },
        "updates": [],
        "scaling": "auto",
        "evaluation_errors": [],
        "examples": int(sizes.sum()),
        "classes": classes,
        "class_sizes": dict(zip(names, sizes.tolist(), strict=True)),
        "evaluates": True,
        "evaluation": {
            "accuracy": 0.8731,
            "balanced_accuracy": 0.8642,
            "macro_f1": 0.8587,
            "accuracy_std": 0.05,
            "examples": 40 * n_parties,
            "parties": evaluated,
            "worst_party": evaluated[0],
            "best_party": evaluated[-1],
            "confusion": matrix.tolist(),
            "class_prior": {
                **{"accuracy": 0.8912, "balanced_accuracy": 0.88, "macro_f1": 0.87, "sent": 10},
                "worst_party": evaluated[0],
            },
            "figures": {
                "examples": 40 * n_parties,
                "resolution": 0.0021,
                "overall": figures(0.8731, 40 * n_parties),
                "classes": by_class,
                "parties": [{"name": name, **figures(a)} for name, a in zip(names, rates, strict=True)],
                "groups": {
                    "column": "ward",
                    "levels": [
                        {"level": level, **figures(a)}
                        for level, a in (("surgery", 0.91), ("intensive care", 0.82), ("unknown", 0.75))
                    ],
                },
            },
        },
        "schema": None,
        "columns": {"examples": 9},
        "members": [{**member, "weight": 0.625}, {**member, "decay": 0.2321, "weight": 0.375}],
        "specs": [{"hash_dim": 4096}] * 6,
        "selection": {
            "candidates": [[["balanced", 0.5], ["balanced", 0.25]]] * 6,
            "choices": [[3, 7, 0.625], [1, 4, 0.375]],
            "accuracies": [[0.71, 0.72], [0.8612, 0.85], [0.7], [0.8731, 0.87], [0.84], [0.8]],
            "examples": 1900,
        },
        "refinement": 24,
        "gram": None,
        "traffic": {
            "columns": {"parties": n_parties, "up": 15_570, "down": 980},
            "counts": {"parties": n_parties, "up": 60_040, "down": 2_039},
            "selection": {"parties": n_parties, "up": 7_615, "down": 241_217},
            "evaluation": {"parties": n_parties, "up": 1_432, "down": 80_927},
        },
        "messages": {
            "columns": {
                "kind": "exact",
                "parties": n_parties,
                "fields": [{"name": "quantiles", "shape": [12, 32], "bytes": [900, 1010.5, 1200]}],
            },
            "counts": {
                "kind": "exact",
                "parties": n_parties,
                "fields": [{"name": "counts", "shape": [n_classes, 4096], "bytes": [9_000, 10_000.0, 12_000]}],
            },
            "evaluation": {"kind": "results", "parties": n_parties, "fields": []},
        },
        "sha256": {"model": "ab" * 32, "federated": "cd" * 32, "pooled": "cd" * 32, "equal": True, "model_equal": None},
        "privacy": None,
        "rule": "balanced",
        "settings": {
            "dataset": "digits",
            "alpha": 0.3,
            "effort": "thorough",
            "epsilon": 0.0,
            "secure": False,
            "output-dir": "out",
        },
        "versions": {"flwr": "1.41.0", "numpy": "2.4.6", "flwr-flynn": "0.8.0", "python": "3.11.7"},
    }
