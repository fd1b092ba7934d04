"""Contents of a metrics.json: nothing but parties, and every part of the page."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn.federated.set_tables import set_figures
from flwr_flynn.model import metrics as model_metrics
from flwr_flynn.model.metrics import GRID, THRESHOLDS
from flwr_flynn.model.prediction_sets import COVERAGES

FOLDER = Path(__file__).parent
KNOWN: dict[str, Any] = json.loads((FOLDER / "reports.json").read_text())
REPORT: dict[str, Any] = KNOWN["empty"]


def interval(value: float) -> list[float]:
    return [value, round(value - 0.03, 4), round(min(value + 0.02, 1.0), 4)]


def class_figures(number: int, label: str) -> dict[str, Any]:
    """The figures of one class, with its curves."""
    roc = [
        [float(x), float(x ** (0.12 + 0.05 * (number % 5)))]
        for x in np.linspace(0, 1, 33)
    ]
    bins = [((b + 0.5) / 10, 0.03 * (-1) ** b, 20 + 9 * abs(b - 5)) for b in range(10)]
    reliability = [
        {"predicted": p, "observed": interval(min(0.97, p + off)), "examples": n}
        for p, off, n in bins
    ]
    own = 120 + number
    rest = 280 - number
    sizes = {"label": label, "examples": own, "others": rest}
    shares = 1 - GRID
    flagged = [
        [round(own * part**0.5), round(rest * part**2)] for part in shares.tolist()
    ]
    smooth = [
        {"predicted": at, "observed": interval(at)} for at in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    return {
        **copy.deepcopy(KNOWN["class"]),
        **sizes,
        "roc": roc,
        "reliability": reliability,
        "smooth": smooth,
        "flagged": flagged,
    }


def sets(number: int, classes: list[str]) -> list[dict[str, Any]]:
    """Coverage of prediction sets; that of the last class is not told."""
    table = np.zeros((len(COVERAGES), len(classes), 7), np.int64)
    for block, coverage in zip(table, COVERAGES, strict=True):
        for index in range(len(classes) - 1):
            n = 10 * (number + index + 1)
            covered = round(n * coverage)
            block[index] = [n, covered, n - 4, 1, n - 3, covered - 4, n + 2]
    return set_figures(table.reshape(-1, 7), classes)


def site(number: int, name: str, classes: list[str]) -> dict[str, Any]:
    """Figures of a site: of the last it is not known what it makes alone."""
    area = 0.92 - 0.05 * (number % 5)
    figures = {
        "rows": 40 + number,
        "events": 17,
        "auroc": interval(area),
        "observed_expected": [1.1, 0.9, 1.4],
        "slope": [0.9, 0.7, 1.1],
        "intercept": None,
    }
    alone = figures | {
        "paired": [[30, 5], [1, 4 + number]],
        "mcnemar": 0.21875,
        "federation_auroc": figures["auroc"],
    }
    made = {
        "name": name,
        "held_out": figures,
        "without": figures | {"rows": 200, "auroc": interval(area - 0.1)},
        "alone": alone,
        "sets": sets(number, classes),
        "reasons": {},
        "is_validation": False,
    }
    if number % 3 == 2:
        made |= {"alone": None, "reasons": {"alone": "fewer than 5 rows of a class"}}
        made["is_validation"] = True
    return made


def metrics(n_parties: int = 10, n_classes: int = 3) -> dict[str, Any]:
    """The content of a run's metrics.json, of any size."""
    made = copy.deepcopy(KNOWN["full"])
    names = [f"Clinic {i}" for i in range(n_parties)]
    classes = [
        "benign",
        "malignant",
        "unclear",
        *(f"kind {i}" for i in range(n_classes)),
    ][:n_classes]
    sizes = [
        [3 + (5 * i * i + 7 * i * j + 3 * j) % 17 for j in range(n_classes)]
        for i in range(n_parties)
    ]
    rates = [round(0.8 + 7 * i % 19 / 100, 4) for i in range(n_parties)]
    matrix = [
        [(5 * i + 3 * j) % 12 for j in range(n_classes)] for i in range(n_classes)
    ]
    for i in range(n_classes):
        matrix[i][i] = 80 + i % 40
    rows = [
        {"name": name, "accuracy": rate, "examples": 40}
        for name, rate in zip(names, rates, strict=True)
    ]
    made |= {
        "federation": [{"party": name} for name in names],
        "classes": classes,
        "examples": sum(map(sum, sizes)),
    }
    made["parties"] = [
        {
            "name": name,
            "cid": str(i),
            "examples": sum(row),
            "bytes": 60_000 + i,
            "seconds": 0.5 + i / 100,
        }
        for i, (name, row) in enumerate(zip(names, sizes, strict=True))
    ]
    if n_classes == 2:
        made["event"] = {"label": classes[0], "index": 0, "why": "rarer"}
    made["sites"] = [site(i, name, classes) for i, name in enumerate(names)]
    made["class_sizes"] = dict(zip(names, sizes, strict=True))
    made["class_totals"] = [sum(column) for column in zip(*sizes, strict=True)]
    made["simulation"]["parties"] = n_parties + 1
    evaluation = made["evaluation"]
    known = KNOWN["figures"]
    evaluation |= {
        "parties": sorted(rows, key=lambda row: row["accuracy"]),
        "confusion": matrix,
        "sets": sets(n_parties, classes),
    }
    evaluation |= {
        "worst_party": evaluation["parties"][0],
        "best_party": evaluation["parties"][-1],
    }
    evaluation["class_prior"]["worst_party"] = evaluation["parties"][0]
    figures = evaluation["figures"]
    figures["overall"] = {**copy.deepcopy(known), "examples": 40 * n_parties}
    figures["classes"] = [class_figures(i, label) for i, label in enumerate(classes)]
    figures["groups"]["levels"] = [
        known
        | {"thresholds": [model_metrics.rates(at, 8, 5, 10, 20) for at in THRESHOLDS]}
        | level
        for level in figures["groups"]["levels"]
    ]
    return made
