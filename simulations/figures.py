"""Figures of a run from histograms of scores: beside scikit-learn on the pooled scores, and the intervals' coverage.

Equality. Each data set is dealt out to five parties by three splits; a run of the default learns the model, and the
figures follow from the sum of the parties' histograms (disclosure floor 1). scikit-learn computes them from the
probabilities of all held-out samples, pooled. Largest differences over the splits; the figures of the three splits are
equal to the last bit where their models are. "AUROC, at most" is what the width of the levels allows, as the report
tells it.

Coverage. Scores of two classes, normal with means 0 and d, of which a class is a given share; probabilities are right
(distortion 1), too extreme (above) or too timid (below). The share of 1000 draws whose interval of 95 % has the figure
that two million samples have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.metrics import overall, scored
from simulations.results import Row, about, markdown_table, output_folder, parser, text_table, write_csv, write_summary
from simulations.splits import deal_out, read

Array = npt.NDArray[Any]

SPLITS = ("IID", "Dirichlet 0.1", "quantity skew")
SETS = "kc1,pc3,qsar_biodeg,spambase,sylvine,thyroid_ann,segment,satimage,mfeat_zernike"  # beside Digits
SETTINGS = ((1.0, 0.5, 1.0), (2.0, 0.2, 1.5), (3.0, 0.5, 1.0), (1.5, 0.05, 0.7))
"""Distance of the classes, share of the second, distortion."""


def equality(source: str, largest: int) -> Row:
    """Largest differences between figures from histograms and scikit-learn's, over the splits."""
    data = read(source, largest)
    row: Row = {"set": data.name, "classes": len(data.classes)}
    seen: set[str] = set()
    for split in SPLITS:
        parts = deal_out(data, split, 5, 0)
        n = sum(len(share.y) for share in parts.shares)
        plan = HashPlan(data.X.shape[1], parts.n_classes, n_examples=n, scaling="auto")
        options = RunOptions(spec=plan, classes=data.classes, min_parties=5)
        run = federate(options, parts.parties(min_examples=1))
        found = run.state.results["evaluation"].figures["figures"]
        seen.add(f"{run.model.model_.sha256()} {found['overall']}")
        test = parts.pooled
        proba = run.model.predict_proba(test.X_test)
        for name, value in by_sklearn(test.y_test, proba).items():
            row[name] = max(row.get(name, 0.0), abs(found["overall"][name][0] - value))
        row["AUROC, at most"] = max(row.get("AUROC, at most", 0.0), found["resolution"])
    return {**row, "different figures in three splits": len(seen)}


def by_sklearn(y: Array, proba: Array) -> dict[str, float]:
    """The figures of pooled probabilities by scikit-learn; over several classes means of each against the rest."""
    two = proba.shape[1] == 2
    classes = [1] if two else [c for c in range(proba.shape[1]) if (y == c).any()]
    pairs = [(y == c, proba[:, c]) for c in classes]
    one_hot = np.eye(proba.shape[1])[y]
    return {
        "auroc": float(np.mean([roc_auc_score(*pair) for pair in pairs])),
        "auprc": float(np.mean([average_precision_score(*pair) for pair in pairs])),
        "brier": float(np.square(proba - one_hot).sum(axis=1).mean()) / (2 if two else 1),
        "log_loss": float(log_loss(y, np.clip(proba, np.exp(-32), 1), labels=range(proba.shape[1]))),
        "calibration_error": float(np.mean([_calibration_error(*pair) for pair in pairs])),
    }


def _calibration_error(true: Array, p: Array) -> float:
    observed, predicted = calibration_curve(true, p, n_bins=10)
    n = np.histogram(p, np.linspace(0, 1, 11))[0]
    return float((np.abs(observed - predicted) * n[n > 0]).sum() / len(p))


def draw(rng: np.random.Generator, n: int, setting: tuple[float, float, float]) -> tuple[Array, Array]:
    """Histograms and sums of n samples."""
    distance, share, distortion = setting
    y = (rng.random(n) < share).astype(np.int64)
    x = rng.normal(size=n) + distance * y
    p = expit(distortion * (distance * x - distance**2 / 2 + np.log(share / (1 - share))))
    proba = np.stack([1 - p, p], axis=1)
    return scored(proba, y, proba.argmax(axis=1))


def coverage(setting: tuple[float, float, float], n: int, draws: int, n_true: int = 2_000_000) -> Row:
    """Share of the draws whose intervals have the true figure; of those in which the figure is defined."""
    true = overall(*draw(np.random.default_rng(1), n_true, setting))
    hits: dict[str, list[bool]] = {}
    rng = np.random.default_rng(2)
    for _ in range(draws):
        for name, figure in overall(*draw(rng, n, setting)).items():
            if name != "examples" and figure is not None:
                hits.setdefault(name, []).append(figure[1] <= true[name][0] <= figure[2])
    distance, share, distortion = setting
    return {"distance": distance, "share": share, "distortion": distortion, "samples": n} | {
        name: float(np.mean(found)) for name, found in hits.items()
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    import matplotlib.pyplot as plt

    names = [name for name in rows[0] if name not in ("distance", "share", "distortion", "samples")]
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for offset, n in enumerate(sorted({row["samples"] for row in rows})):
        points = [
            (i + 0.2 * offset - 0.2, row[name]) for i, name in enumerate(names) for row in rows if row["samples"] == n
        ]
        axes.plot(*zip(*points, strict=True), "o", label=f"{n} samples")
    axes.axhline(0.95, color="grey", linewidth=1)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.set_ylabel("coverage of the 95 % interval")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("figures", __doc__)
    options.add_argument("--sets", default=SETS, help="names of data sets in it (default: %(default)s)")
    chosen = options.parse_args(arguments)
    start, folder = time.perf_counter(), output_folder(chosen)
    sources = ["digits"]
    if chosen.data:
        sources += [str(chosen.data / f"{name}.npz") for name in chosen.sets.split(",")]
    rows = []
    for source in sources:
        rows.append(equality(source, 500 if chosen.quick else 2500))
        print(text_table(rows[-1:]), flush=True)
    draws = 100 if chosen.quick else 1000
    found = [coverage(setting, n, draws) for setting in SETTINGS for n in (50, 200, 1000)]
    print(text_table(found), flush=True)
    write_csv(folder / "equality.csv", rows)
    write_csv(folder / "coverage.csv", found)
    _plot(found, folder / "coverage.png")
    parts = [
        about(__doc__),
        "## Differences from scikit-learn",
        markdown_table([{k: f"{v:.1e}" if isinstance(v, float) else v for k, v in row.items()} for row in rows]),
        "## Coverage of intervals of 95 %",
        "![coverage](coverage.png)",
        markdown_table([{k: f"{v:.3f}" if isinstance(v, float) else v for k, v in row.items()} for row in found]),
    ]
    write_summary(folder, "Figures of a run", "figures", arguments, time.perf_counter() - start, parts)
