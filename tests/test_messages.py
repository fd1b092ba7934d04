"""The wording of the messages that users meet most often, pinned here and nowhere else.

All other tests look at the type and the facts of an error (`tests.raising`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts, FlyNNClassifier, FlyNNStrategy, HashSpec
from flwr_flynn.app import run_plan
from flwr_flynn.app.data import datasets, own_file
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import REFUSED, Reply
from flwr_flynn.federated.roster import Roster
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import (
    CLASSES,
    HASHER,
    LAPLACE,
    RUN,
    SPEC,
    counting,
    counts_of,
    points,
    tally_of,
)


def too_few() -> None:
    roster = Roster()
    roster.ask(["1", "2"])
    roster.fail("1", "declined: y: expected labels")
    roster.require(2)


def a_csv(text: str) -> None:
    Path("site.csv").write_text(text)
    datasets.load_dataset("site.csv")


def release(epsilon: float = 1.0) -> None:
    counts = counts_of(*points(9))
    budget = Budget(Path("state").absolute(), Policy(max_epsilon=epsilon))
    budget.release(
        LAPLACE, counts.spec_fingerprint, lambda: LAPLACE.release(counts).array
    )


def lost_ledger() -> None:
    release()
    Path("state").unlink()
    release()


def refused(X: Any, y: Any, **options: Any) -> None:
    """Raise the reason that a party with these samples gives the server."""
    party = Party(lambda _: Samples(X, y), PartyOptions(**options))
    raise FlyNNError(str(party.answer(counting()).metrics[REFUSED]))


def no_model() -> None:
    Path("model.npz").write_bytes(b"no model")
    FlyNNClassifier.load("model.npz")


def a_model() -> None:
    FlyNNClassifier(SPEC).fit(*points(30)).save("model.npz")
    Federation.load("model.npz")


def merged() -> None:
    one, other = (
        FlyNNClassifier(spec).fit(*points(30)) for spec in (SPEC, replace(SPEC, seed=8))
    )
    one.merge(other)


def oversized() -> None:
    reply = Reply("1", (), 9, {})
    tally_of(CountsRequest(RUN), 8).read(
        codec.encode(counts_of(*points(9))), reply, None
    )


def run(**settings: Any) -> RunConfig:
    return RunConfig.parse(
        {name.replace("_", "-"): value for name, value in settings.items()}
    )


def plan_without_sizes() -> None:
    run_plan.training_plan(run(classes="a,b", min_available=2, scaling="none"), None)


MESSAGES: dict[str, Callable[[], object]] = {
    "run-config hash-dim: expected an integer of at least 0, got -1": partial(
        run, hash_dim=-1
    ),
    'run-config rule: expected one of balanced, novelty, got "best"': partial(
        run, rule="best"
    ),
    "run-config min-parties: expected at most min-available = 2, got 3": partial(
        run, min_available=2, min_parties=3
    ),
    "run-config n-features: expected a value in a deployment, whose server sees no "
    "data, such as n-features=30, or "
    "feature-names, got missing": plan_without_sizes,
    "run-config federation: expected the server's own file, or output-dir with its "
    "federation.npz, with action = join, got "
    "none": partial(run, action="join"),
    "node-config data-path: expected a file 'gone.csv', got no such file": lambda: (
        own_file.own_share(NodeConfig(data_path="gone.csv"))
    ),
    "node-config max-epsilon: expected a number above 0, got 0": lambda: (
        NodeConfig.parse({"data-path": "a.csv", "max-epsilon": 0})
    ),
    "site.csv: expected a column 'label', got other columns": partial(
        a_csv, "a,b\n1,2\n"
    ),
    "site.csv: expected finite numbers that float64 holds, got others in 1 of 2 "
    "features: number 2": (partial(a_csv, "a,b,label\n1,2,x\n3,inf,y\n")),
    "hash_nnz: expected an integer from 1 to 24 (hash_dim), got 25": lambda: HashSpec(
        4, 24, 2, 25, seed=0
    ),
    "X: expected shape (n, 4), got shape (2, 3)": lambda: HASHER.active(
        np.zeros((2, 3))
    ),
    "merge: expected equal specs, got differences in seed": merged,
    "array: expected integers from 0 to 4611686018427387903 of shape (1, 2), got some "
    "outside": lambda: ClassCounts([[3, -1]], hash_nnz=2, spec_fingerprint=64 * "0"),
    "counts: expected at most 8 examples, got 9": oversized,
    "0 of at least 2 parties counted; missing: node 1 (declined: y: expected labels), "
    "node 2 (no reply)": too_few,
    "0 of at least 2 parties counted; missing: nobody else was asked; too few parties "
    "were connected": lambda: (
        FlyNNStrategy(
            spec=SPEC, classes=CLASSES, min_available_clients=2, min_parties=2
        ).model
    ),
    "n_features: expected the run's 4 columns, got 3 at this party": partial(
        refused, np.zeros((2, 3)), ["ash"] * 2
    ),
    "y: some labels are not in the class list (3 strings; y has dtype <U3); "
    "node-config label-map renames labels": (
        partial(refused, np.zeros((2, 4)), np.array(["ash", "oak"]))
    ),
    "memory: n_features 4, hash_dim 24, row_nnz 2 and 3 classes need about 0.0 MiB, "
    "this party allows 0.0": (partial(refused, *points(9), memory_limit=1)),
    "policy max-epsilon: this release would exceed it": partial(release, epsilon=0.5),
    "ledger state is lost; nothing is released until it is reset": lost_ledger,
    "model.npz: not a model file, or damaged (BadZipFile)": no_model,
    "model.npz: a model without a roster: nobody can join or leave": a_model,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_say_what_they_said(message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlyNNError) as caught:
        MESSAGES[message]()
    assert str(caught.value) == message
