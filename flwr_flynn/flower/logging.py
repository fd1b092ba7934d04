"""What a run tells its log: what is going to happen, and of every party one line of what came of it.

Nothing here depends on the data beyond numbers of points, which noisy counts and secure sums hide; names of parties
are cleaned by the `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from logging import INFO, WARNING
from typing import Any

from flwr_flynn.federated.protocol import Terms
from flwr_flynn.federated.roster import Batch, Ledger
from flwr_flynn.federated.selection_round import Choice

Line = tuple[int, str]
"""A level of `logging`, and a text."""


def hash_lines(terms: Terms) -> list[str]:
    """A line for each spec."""
    lines = []
    for spec, hasher in zip(terms.specs, terms.hashers, strict=True):
        waves = f" and {spec.n_waves} waves" if spec.n_waves else ""
        lines.append(
            f"  hash: {spec.n_features} features{waves} -> {spec.hash_dim} rows of {spec.row_nnz} "
            f"{'+1/-1' if spec.signed else '0/1'} entries, {spec.hash_nnz} winners, seed {spec.seed}; "
            f"fingerprint {hasher.fingerprint[:16]}"
        )
    return lines


def round_lines(ledger: Ledger[Any], batch: Batch[Any], what: str) -> Iterator[Line]:
    """One line for every party: what came, and what was done with it."""
    noisy = getattr(getattr(ledger, "terms", None), "mechanism", None) is not None
    names = ledger.names(batch.repeated)
    for party in ledger.parties:
        if party.cid in batch.accepted:
            took = "" if party.seconds is None else f", {party.seconds:.2f} s"
            # A party's number is hidden by noise, or by a secure sum, whose counts may be exact.
            hidden = "noisy counts" if noisy else "counts in a secure sum"
            points = hidden if party.examples is None else f"{party.examples} examples"
            yield INFO, f"FlyNN: {party.name}: {what}{points}, {party.bytes} bytes{took}, {ledger.outcome}"
    for cid in batch.repeated:
        yield WARNING, f"FlyNN: {names[cid]}: replied again, ignored"
    for name, reason in ledger.missing.items():
        yield WARNING, f"FlyNN: {name}: not counted: {reason}"
    for name, cids in ledger.namesakes().items():
        if batch.accepted.keys() & cids:
            yield (
                WARNING,
                f"FlyNN: {len(cids)} COUNTED PARTIES GIVE THE SAME NAME, {name} (nodes {', '.join(cids)}): "
                "if a node restarted under a new id, its points are counted twice",
            )


def choice_line(choice: Choice, n_specs: int, n_parties: int) -> str:
    """What was chosen."""
    compared = "not compared"
    if choice.accuracy is not None:
        compared = f"leave-one-out balanced accuracy {choice.accuracy:.4f}"
    return (
        f"FlyNN: chose spec {choice.spec + 1} of {n_specs} and decay {choice.decay:.4g} "
        f"from {choice.parties} of {n_parties} parties: {compared}"
    )


def evaluation_line(figures: dict[str, Any]) -> str:
    """What `metrics.summary` says in short."""
    return (
        f"FlyNN: accuracy {figures['accuracy']:.4f} on {figures['examples']} examples of "
        f"{len(figures['parties'])} parties, at the worst of them {figures['worst_party']['accuracy']:.4f}"
    )
