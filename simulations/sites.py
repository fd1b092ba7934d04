"""AUROC at a site by the model without its counts, beside a federation without the site.

Samples of each set are dealt out to ten sites, a fifth of each held out. Of each site
with 30 samples of each class the AUROC on all of its samples is computed by the report
of one run, in which the site takes its own counts out of the sum, and by a run of the
other sites. Edges of the columns and the choice of hashes are those of all sites in the
former. "feature shift": instruments of each site have gains and offsets of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from flwr_flynn.app.data.datasets import Dataset
from flwr_flynn.federated.samples import Samples
from flwr_flynn.model.candidates import HashPlan
from simulations.data import files
from simulations.results import Row, markdown_table
from simulations.splits import SHIFT, Parts, deal_out, federated, read, source
from simulations.study import FEDERATED, Study, code_digest

_CODE = code_digest(*FEDERATED, "simulations.sites")
SETS = (
    "qsar_biodeg",
    "kc1",
    "pc3",
    "steel_plates_1504",
    "fri_c0_1000_25",
    "fri_c3_1000_25",
    "bank32nh",
    "ailerons",
)
SPLITS = "Dirichlet 1", "Dirichlet 0.3", SHIFT
N_SITES = 10
LEAST = 30  # samples of each class


def run_of(shares: list[Samples]) -> Any:
    """A federation of some sites."""
    plan = HashPlan(shares[0].X.shape[1], 2, scaling="auto")
    _, done = federated(Parts(shares, 2), plan, min_examples=1)
    return done.run


def sites_of(data: Dataset, split: str) -> Iterator[Row]:
    """Rows of the sites of a split."""
    from sklearn.metrics import roc_auc_score

    shares = deal_out(data, split, N_SITES, 0).shares
    shares = [share for share in shares if len(share.y_test)]
    told = run_of(shares).state.results["evaluation"].sites
    for number, (own, figures) in enumerate(zip(shares, told, strict=True)):
        y = np.concatenate([own.y, own.y_test])
        if np.bincount(y, minlength=2).min() < LEAST:
            continue
        model = run_of(shares[:number] + shares[number + 1 :]).model
        p = model.predict_proba(np.concatenate([own.X, own.X_test]))
        without = np.nan  # where too few products of others are left to be told
        if figures["without"]:
            without = figures["without"]["auroc"][0]
        again = roc_auc_score(y, p[:, 1])
        yield {
            "set": data.name,
            "split": split,
            "site": number,
            "samples": len(y),
            "held out": (figures["held_out"]["auroc"] or [np.nan])[0],
            "without": without,
            "trained without": again,
            "difference": abs(without - again),
        }


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("sites", "AUROC at a site that was not in it", __doc__, arguments)
    there = files(study.chosen.data)
    most = study.sized(2500, 600)
    known = [source(name, study.chosen.data) for name in SETS if name in there]
    sets = [read(name, most) for name in known]
    if not sets:
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
        sets = [Dataset(X, y, [0, 1], "breast_cancer")]
    rows: list[Row] = []
    for data in sets:
        for split in SPLITS:
            work = partial(lambda *about: [*sites_of(*about)], data, split)
            label = f"{data.name}: {split}"
            rows += study.cells.finish(label, (data.y, most, _CODE), work)
    study.write("sites", rows)
    frame = pd.DataFrame(rows)
    means = [
        {
            "split": split,
            "sites": len(own),
            "told": own["without"].notna().sum(),
            "median difference": own["difference"].median(),
            "share above .03": (own["difference"] > 0.03).mean(),
            "largest difference": own["difference"].max(),
            "held out": own["held out"].mean(),
            "without": own["without"].mean(),
            "trained without": own["trained without"].mean(),
        }
        for split, own in [("all", frame), *frame.groupby("split", sort=False)]
    ]
    print(markdown_table(means))
    tables = [markdown_table(means), "## Each site", markdown_table(rows)]
    study.finish([*tables, study.about])
