"""The methods of `rivals` at 8000 and 26,000 training samples.

One fold of five is held out, the same for all, and counts in n. Sets with fewer samples
than that in all are left out; bank32nh and cpu_act have 6554 to train on. Generated
ones are added: 20 columns, of which eight are informative. Methods, figures and bytes
are those of `rivals`, see there.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import pandas as pd

from simulations.data import DataSet, data_sets, files, folded
from simulations.results import Row, with_headings
from simulations.rivals import CODE, METHODS, measured, table
from simulations.study import Study

LARGE = ("ailerons", "bank32nh", "cpu_act", "fashion_mnist", "letters", "mnist", "pol")


def generated(n_classes: int, n: int) -> DataSet:
    """A set of scikit-learn's generator with twenty columns, eight of them informative."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n, 20, n_informative=8, n_classes=n_classes, random_state=n_classes
    )
    return folded(f"generated, {n_classes} classes", X, y, folds=5)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("large", "Rivals at 8000 and 26,000 samples", __doc__, arguments)
    known = files(study.chosen.data)
    names = [name for name in LARGE if name in known]
    by_size: dict[int, list[Row]] = {}
    for n in study.sized((8000, 26_000), (400, 800)):
        most = n * 5 // 4
        sets = [
            *data_sets(known, names, folds=5, most=most),
            *(generated(n_classes, most) for n_classes in (2, 3, 4)),
        ]
        by_size[n] = []
        for data, method in product(sets, METHODS):
            if len(data.y) >= n:
                label = f"{data.name}, {n} samples: {method}"
                work = partial(measured, data, method, 1)
                by_size[n] += study.cells.finish(label, (data.digest, CODE), work)
    rows = [row for of_size in by_size.values() for row in of_size]
    study.write("large", rows)
    few, many = by_size
    both = {row["set"] for row in by_size[many]}
    alike = [row for row in by_size[few] if row["set"] in both]
    tables = {
        f"## {few} samples": table(by_size[few]),
        f"## {many} samples": table(by_size[many]),
        f"## The sets of {many} samples, at {few}": table(alike),
        "## Each set": pd.DataFrame(rows).drop(columns="fold").to_dict("records"),
    }
    parts = with_headings(tables)
    print(*parts, sep="\n\n")
    study.finish([*parts, "## The methods", study.about])
