"""FlyNN beside tuned nearest neighbours, forests, boosting and the paper's baselines,
on every data set of a folder.

Balanced accuracy, stratified folds, the same for all methods. Compared are FlyNN with
its defaults and with effort "thorough", without tuning, the paper's FlyNN with 20
random configurations, tuned kNN and 1-NN on two scalings, SBFC, logistic regression and
a perceptron for one epoch, and, with balanced class weights and no tuning, a random
forest of 200 trees, gradient boosting and logistic regression to the end
(`simulations.methods`). kNN, SBFC and the paper's FlyNN are given their best mean score
over the very folds, as in the paper; for kNN there is the honest choice within the
training folds as well.

Finished pieces are kept under the output folder and not computed again, unless data,
settings or code change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from simulations import plots
from simulations.baselines import CENTRALISED, KNN, Settings
from simulations.data import DataSet, data_sets, files
from simulations.methods import (
    ABLATION,
    COMPARED,
    FLYNN,
    MAIN,
    OTHERS,
    PAPER,
    THOROUGH,
    run,
)
from simulations.results import (
    Row,
    against,
    by_method,
    comparison,
    fold_rows,
    markdown_table,
    summarised,
    with_headings,
)
from simulations.study import JOBS, MOST, SETS, Option, Study, at_least, names

SHARED = {
    "sets": SETS,
    "max_examples": MOST,
    "folds": Option("default: 10, quick: 3, full: 5", at_least(2)),
    "jobs": JOBS,
    "threads": Option("threads of each method (default: 1)", at_least(1), 1),
}
_SHOWN = (
    KNN,
    *CENTRALISED.values(),
    "1-NN standardised",
    "SBFC",
    "LR, one epoch",
    "MLP, one epoch",
)


def started(
    experiment: str,
    title: str,
    docstring: str | None,
    arguments: Sequence[str],
    **more: Option,
) -> Any:
    """The study, its settings and its data sets."""
    full = (
        f"all samples, 5 folds, and only {', '.join(MAIN)}, unless other options "
        "say otherwise: hours"
    )
    study = Study(experiment, title, docstring, arguments, full, **SHARED, **more)
    chosen = study.chosen
    settings = Settings(
        folds=chosen.folds or study.sized(10, 3, 5), threads=chosen.threads
    )
    if chosen.quick:
        settings = replace(settings, draws=3, largest_dim=1024)
    if chosen.max_examples is None:
        most = study.sized(2000, 300, 0)
    else:
        most = chosen.max_examples
    known = files(chosen.data)
    return (
        study,
        settings,
        data_sets(
            known,
            study.wanted(known),
            folds=settings.folds,
            seed=settings.seed,
            most=most,
        ),
    )


def main(arguments: list[str]) -> None:
    """Compare, print, write."""
    what = f"some of {', '.join(COMPARED)}, with commas between (default: all)"
    study, settings, sets = started(
        "accuracy", "Accuracy", __doc__, arguments, methods=Option(what, names, ())
    )
    jobs = study.wanted(COMPARED, "methods")
    if study.chosen.full and not study.chosen.methods:
        jobs = [*MAIN]
    by_fold = run(
        [(data, job) for job in COMPARED if job in jobs for data in sets],
        settings,
        study.cells,
        study.chosen.jobs,
    )
    rows = summarised(by_fold, seed=settings.seed)
    beaten = against(rows, FLYNN, OTHERS)
    compared = comparison(rows, (FLYNN, THOROUGH, PAPER), KNN)
    tables = {
        "FlyNN with its defaults:": beaten,
        f"{THOROUGH}:": against(rows, THOROUGH, (FLYNN, *OTHERS)),
        "All methods:": compared,
    }
    print("\n".join(with_headings(tables)))
    write(
        study,
        by_fold,
        sets,
        {"accuracy": rows, "against": beaten, "comparison": compared},
    )
    means = by_method(rows)
    tables["Balanced accuracy:"] = [
        {"set": d.name} | {name: of[d.name] for name, of in means.items()} for d in sets
    ]
    study.finish([study.about, *with_headings(tables), *draw(means, study.folder)])


def write(
    study: Study,
    by_fold: Sequence[Row],
    sets: Sequence[DataSet],
    tables: Mapping[str, Sequence[Row]],
) -> None:
    """Write the tables that have rows, and one of all folds."""
    folds = fold_rows(by_fold, {data.name: data.sizes for data in sets})
    for name, table in {**tables, "folds": folds}.items():
        if table:
            study.write(name, table)


def draw(means: dict[str, dict[str, float]], folder: Any) -> list[str]:
    """Draw two scatter plots: default FlyNN against the baselines, and each FlyNN
    against tuned kNN.

    Methods that were not measured are left out. Returns the figures in Markdown.
    """
    figures = []
    for what, title, pairs in (
        (
            "baselines",
            "Balanced accuracy, a point per data set",
            [(FLYNN, other) for other in _SHOWN],
        ),
        (
            "variants",
            "Balanced accuracy against tuned kNN",
            [(ours, KNN) for ours in (FLYNN, THOROUGH, PAPER)],
        ),
    ):
        panels = [
            (x, means[x], y, means[y]) for x, y in pairs if {x, y} <= means.keys()
        ]
        if panels:
            figures.append(
                plots.scatter(panels, title, folder / f"accuracy_{what}.png")
            )
    return figures


def ablation(arguments: list[str]) -> None:
    """Gain by each part of the default.

    Default FlyNN with scoring rule, committee, scaling and choice of decay switched off
    in turn:
    """
    sets: list[DataSet]
    study, settings, sets = started("ablation", "Ablation", ablation.__doc__, arguments)
    measured = run(
        [(data, job) for job in ABLATION for data in sets],
        settings,
        study.cells,
        study.chosen.jobs,
    )
    table = by_method(summarised(measured))
    scores = pd.DataFrame(
        {name: table[name] for name in ABLATION}, index=[data.name for data in sets]
    )
    change = scores.sub(scores[FLYNN], axis=0)
    whole = [
        scores.mean(),
        scores.median(),
        change.mean(),
        change.median(),
        change.min(),
    ]
    names = ["mean", "median", "mean change", "median change", "worst change"]
    lines = [
        {"set": name} | row.to_dict()
        for name, row in [*scores.iterrows(), *zip(names, whole, strict=True)]
    ]
    study.write("ablation", lines)
    print(markdown_table(lines))
    study.finish([study.about, markdown_table(lines)])
