"""Samples that are forgotten: one of ten parties takes 1 % of its samples out, beside training again.

The four runs are those of `flwr run`, in this process, over ten parties with equal shares of MNIST (without `--data`:
of Digits). The update asks one party for its counts of before and now, and all for the choice of decays and weights;
"counts alone" leaves that choice out. A new round counts all parties again by the same hashes, and a new training
learns the hashes again, too. Seconds are CPU seconds of server and parties together; bytes are those of all parties.
"SHA-256" compares the counts with those of the new round. The last line checks the certificate of the update: the
party's counts of before and now from its two files, and the federation's file.
"""

from __future__ import annotations

import contextlib
import io
import time
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn.app import cli_certificate
from flwr_flynn.federated import certificate
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Samples
from flwr_flynn.federated.run import Run
from flwr_flynn.model.candidates import HashPlan
from simulations.results import (
    Row,
    about,
    markdown_table,
    output_folder,
    parser,
    text_table,
    write_csv,
    write_summary,
)  # fmt: skip

N_PARTIES = 10


def load(folder: Path | None, quick: bool) -> tuple[Any, Any]:
    """Samples and labels, in random order."""
    if folder is None:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
    else:
        with np.load(folder / "mnist.npz", allow_pickle=False) as data:
            X, y = data["X"], data["y"]
    order = np.random.default_rng(0).permutation(len(y))[: 2000 if quick else None]
    return X[order], y[order]


def measured(what: str, rows: list[Row], X: Any, y: Any, shares: list[Any], **options: Any) -> Run:
    """A run over shares of the samples, whose time and bytes become a row."""
    before, given = options.pop("before", None), {"min_parties": 1, "classes": np.unique(y).tolist(), **options}
    parties = [
        party_of(X[share], y[share], name=f"party-{i}", previous=before if i == 0 else None, n_jobs=-1)
        for i, share in enumerate(shares)
    ]
    start = time.process_time()
    run = federate(RunOptions(**given), parties)
    sizes = {way: sum(getattr(each, way) for each in run.traffic.values()) / 1e6 for way in ("up", "down")}
    rows.append({"run": what, "CPU s": time.process_time() - start, "MB up": sizes["up"], "MB down": sizes["down"]})
    rows[-1]["SHA-256"] = ", ".join(part.sha256()[:12] for part in run.totals.parts)
    print(text_table(rows[-1:]), flush=True)
    return run


def checked(run: Run, folder: Path, X: Any, y: Any, then: Any, now: Any) -> Row:
    """The check of a certificate from the party's files of before and now and the federation's file."""
    paths = {name: str(folder / f"{name}.npz") for name in ("previous", "data", "model")}
    for name, share in (("previous", then), ("data", now)):
        np.savez(paths[name], X=X[share], y=y[share])
    after = run.federation("2")
    after.save(paths["model"])
    (member,) = run.counted.counted
    sums = {"before": None, "now": certificate.of_members(after.shared.members)}
    made = certificate.certificate(dict(member.change or {}), "server", "update", "2", member.name, federation=sums)
    (folder / "certificate.json").write_text(certificate.text(made), encoding="utf-8")
    start, printed = time.process_time(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = cli_certificate.check(str(folder / "certificate.json"), paths, {"test-fraction": 0.0})
    seconds = time.process_time() - start
    equal = f"{printed.getvalue().count('  equal')} of {printed.getvalue().count('equal')} fields equal"
    for path in paths.values():
        Path(path).unlink()
    return {"run": "check of the certificate", "CPU s": seconds, "SHA-256": equal if status == 0 else "NOT EQUAL"}


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    chosen = parser("forget", __doc__).parse_args(arguments)
    start, folder = time.perf_counter(), output_folder(chosen)
    X, y = load(chosen.data, chosen.quick)
    shares, rows = np.array_split(np.arange(len(y)), N_PARTIES), list[Row]()
    plan = HashPlan(X.shape[1], len(np.unique(y)), len(y), "auto")
    saved = measured("first training", rows, X, y, shares, spec=plan).federation("1")
    then, now = shares[0], shares[0][len(shares[0]) // 100 :]
    shares[0] = now
    same = {"spec": saved.run_spec.specs}
    update = {**same, "federation": saved, "purpose": "update", "before": Samples(X[then], y[then])}
    run = measured("update", rows, X, y, shares, **update)
    measured("update, counts alone", rows, X, y, shares, fraction_evaluate=0.0, **update)
    rest = measured("new round", rows, X, y, shares, **same)
    measured("new training", rows, X, y, shares, spec=plan)
    rows.append(checked(run, folder, X, y, then, now))
    if run.totals != rest.totals:
        raise RuntimeError("the update is not equal to the new round")
    write_csv(folder / "forget.csv", rows)
    said = f"{len(then) - len(now)} of {len(then)} samples of one party, of {len(y)} x {X.shape[1]} in all."
    write_summary(
        folder, "Forgetting", "forget", arguments, time.perf_counter() - start,
        [about(__doc__), said, markdown_table(rows)],
    )  # fmt: skip
