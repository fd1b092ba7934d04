"""The paper's tables and scatter plots on OpenML's data sets: FlyNN beside kNN, 1-NN,
SBFC, LR and a perceptron.

Everything is measured as by `python -m simulations accuracy`: balanced accuracy,
stratified folds, and for all tuned methods the best mean score over the very folds that
are reported, as in the paper. The paper's FlyNN is tuned over random configurations in
the paper's ranges; "FlyNN, defaults" is this package as it comes, with nothing tuned.
Not in the paper: random forest, gradient boosting and logistic regression to the end,
with balanced class weights, not tuned.

Data sets come from OpenML, or from `--data`, a folder of .npz files; see
`simulations.paper.sets`. The paper has 70 sets of up to 20000 samples (its table lists
71, and its wins, ties and losses add up to 71), and searches 60 configurations by a
Gaussian process, m up to 2048 d. Improvement is the median over sets of how much lower
FlyNN's normalised accuracy is; positive favours FlyNN. Other sets, fewer samples and a
smaller search may each take something from the tuned FlyNN. The paper does not say what
it does to the samples before kNN: line "kNN" has the better of rows of unit length and
standardised columns, and 1-NN, logistic regression and the perceptron may standardise
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations import plots
from simulations.accuracy import write
from simulations.baselines import CENTRALISED, KNN, KNN_AS_IS, ONE_NN_AS_IS, Settings
from simulations.data import data_sets
from simulations.methods import FLYNN, OTHERS, PAPER, run
from simulations.paper.sets import readers
from simulations.results import (
    Row,
    against,
    by_method,
    compare,
    markdown_table,
    summarised,
)
from simulations.study import JOBS, MOST, SETS, Study

METHODS = (KNN, KNN_AS_IS, "SBFC", "LR", "MLP", *CENTRALISED, FLYNN, PAPER)
VARIANTS = {PAPER: "FlyNN (paper), tuned", FLYNN: "FlyNN, defaults"}
AGAINST = {
    KNN: "kNN",
    KNN_AS_IS: "kNN, points as is",
    "kNN L2": "kNN, unit rows",
    "1-NN": "1-NN",
    ONE_NN_AS_IS: "1-NN, points as is",
    "1-NN L2": "1-NN, unit rows",
    "SBFC": "SBFC",
    "LR, one epoch": "LR",
    "MLP, one epoch": "MLP",
    **{name: name for name in CENTRALISED.values()},
}
"""kNN and 1-NN have the better of two scalings unless the name says otherwise."""

_COLUMNS = ("won", "W/T/L", "improvement", "t p", "Wilcoxon p")
PRINTED: dict[str, tuple[Any, ...]] = {
    "kNN": (0.55, "39/2/30", 0.0035, 5.3e-02, 7.6e-02),
    "1-NN": (0.66, "47/2/22", 0.0236, 1.5e-05, 2.8e-05),
    "SBFC": (0.99, "70/0/1", 0.254, "<1e-08", "<1e-08"),
    "LR": (0.62, "44/1/26", 0.018, 4.1e-02, 7.7e-03),
    "MLP": (0.75, "53/0/18", 0.0617, 7.0e-08, 1.0e-08),
}
"""The paper's tables "Evaluating FlyNN on OpenML datasets" and "Comparing FlyNN to
baselines on OpenML datasets"."""


def table(scores: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The paper's lines, each followed by ours."""
    lines: list[Row] = []
    for name, label in AGAINST.items():
        if label in PRINTED:
            printed = dict(zip(_COLUMNS, PRINTED[label], strict=True))
            lines.append(
                {"against": label, "FlyNN": "the paper, printed", "sets": 71} | printed
            )
        for variant, what in VARIANTS.items():
            found = compare(scores[variant], scores[name], scores[KNN])
            shown = {
                key: found.get(key, "")
                for key in ("sets", *_COLUMNS, "worst", "worst set")
            }
            lines.append({"against": label, "FlyNN": what} | shown)
    return lines


def draw(scores: Mapping[str, Mapping[str, float]], folder: Path) -> list[str]:
    """Draw the main paper's scatter plots, those of the appendix, and the latter for
    the untuned FlyNN.
    """
    figures = []
    for file, variant, names in (
        ("openml_main.png", PAPER, ("kNN", "1-NN", "SBFC")),
        ("openml_appendix.png", PAPER, tuple(PRINTED)),
        ("openml_defaults.png", FLYNN, tuple(PRINTED)),
    ):
        shown = [
            (label, scores[name]) for name, label in AGAINST.items() if label in names
        ]
        panels = [(VARIANTS[variant], scores[variant], *other) for other in shown]
        figures.append(
            plots.scatter(
                panels, "Balanced accuracy, a point per data set", folder / file
            )
        )
    return figures


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "openml",
        "Tables 2 and 9 and their figures: OpenML",
        __doc__,
        arguments,
        "all samples, 60 configurations, m up to 2048 d: days on two cores",
        sets=SETS,
        max_examples=MOST,
        jobs=JOBS,
    )
    if study.chosen.max_examples is None:
        most = study.sized(2000, 300, 0)
    else:
        most = study.chosen.max_examples
    quick = Settings(folds=3, draws=3, largest_dim=1024)
    settings = study.sized(
        Settings(), quick, Settings(draws=60, largest_dim=2048 * 1000)
    )
    known, source = readers(study.chosen.data)
    sets = data_sets(
        known, study.wanted(known), folds=settings.folds, seed=settings.seed, most=most
    )
    by_fold = run(
        [(data, job) for data in sets for job in METHODS],
        settings,
        study.cells,
        study.chosen.jobs,
    )
    rows = summarised(by_fold, seed=settings.seed)
    scores = by_method(rows)
    lines = table(scores)
    beaten = against(rows, FLYNN, OTHERS)
    write(
        study, by_fold, sets, {"openml": rows, "against": beaten, "comparison": lines}
    )
    shown = (VARIANTS | AGAINST).items()
    per_set: list[Row] = [
        d.shape | {label: scores[name][d.name] for name, label in shown} for d in sets
    ]
    parts = [
        markdown_table(lines),
        "FlyNN with its defaults:",
        markdown_table(beaten),
        *draw(scores, study.folder),
    ]
    extent = (
        f"{len(sets)} data sets ({source}), at most {max(len(d.X) for d in sets)} "
        f"samples of each, {settings.folds} "
        f"folds, {settings.draws} random configurations of the paper's FlyNN, m at "
        f"most {settings.largest_dim}."
    )
    study.finish([study.about, extent, *parts, markdown_table(per_set)])
    print(f"\n{markdown_table(lines)}\n\n{markdown_table(beaten)}")
