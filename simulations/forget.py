"""Samples that are forgotten: one of ten parties takes 1 % of its samples out, beside
training again.

The four runs are those of `flwr run`, in this process, over ten parties with equal
shares of MNIST (without `--data`: of Digits). The update asks one party for its counts
of before and now, and all for the choice of decays and weights; "counts alone" leaves
that choice out. A new round counts all parties again by the same hashes, and a new
training learns the hashes again, too. Seconds are CPU seconds of server and parties
together; bytes are those of all parties. "SHA-256" compares the counts with those of
the new round.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Samples
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan
from simulations.results import Row, markdown_table
from simulations.splits import read, source
from simulations.study import Study

N_PARTIES = 10


def measured(
    what: str, rows: list[Row], X: Any, y: Any, shares: list[Any], **options: Any
) -> Run:
    """A run over shares of the samples, whose time and bytes become a row."""
    previous: list[Any] = [None] * len(shares)
    previous[0] = options.pop("before", None)
    given = {"min_parties": 1, "classes": np.unique(y).tolist(), **options}
    parties = [
        party_of(X[share], y[share], name=f"party-{i}", previous=previous[i], n_jobs=-1)
        for i, share in enumerate(shares)
    ]
    start = time.process_time()
    run = federate(RunOptions(**given), parties)
    traffic = run.traffic.values()
    rows.append(
        {
            "run": what,
            "CPU s": time.process_time() - start,
            "MB up": sum(phase.arrivals.bytes for phase in traffic) / 1e6,
            "MB down": sum(phase.down for phase in traffic) / 1e6,
        }
    )
    rows[-1]["SHA-256"] = ", ".join(part.sha256()[:12] for part in run.totals.parts)
    print(markdown_table(rows[-1:]), flush=True)
    return run


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("forget", "Forgetting", __doc__, arguments)
    name = "digits"
    if study.chosen.data is not None:
        name = "mnist"
    data = read(source(name, study.chosen.data))
    order = np.random.default_rng(0).permutation(len(data.y))[
        : study.sized(len(data.y), 2000)
    ]
    X = data.X[order]
    y = data.y[order]
    shares = np.array_split(np.arange(len(y)), N_PARTIES)
    rows = list[Row]()
    plan = HashPlan(X.shape[1], len(np.unique(y)), len(y), "auto")
    saved = measured("first training", rows, X, y, shares, spec=plan).federation("1")
    then = shares[0]
    now = shares[0][len(shares[0]) // 100 :]
    shares[0] = now
    same = {"spec": saved.run_spec.specs}
    update = {
        **same,
        "federation": saved,
        "purpose": "update",
        "before": Samples(X[then], y[then]),
    }
    run = measured("update", rows, X, y, shares, **update)
    measured(
        "update, counts alone", rows, X, y, shares, fraction_evaluate=0.0, **update
    )
    rest = measured("new round", rows, X, y, shares, **same)
    measured("new training", rows, X, y, shares, spec=plan)
    if run.totals.parts != rest.totals.parts:
        raise RuntimeError("the update is not equal to the new round")
    study.write("forget", rows)
    said = (
        f"{len(then) - len(now)} of {len(then)} samples of one party, of {len(y)} "
        f"x {X.shape[1]} in all."
    )
    study.finish([study.about, said, markdown_table(rows)])
