"""Apps of the Message API as users start them.

They are that of the how-to guide, and the one with FlyNN beside FedAvg.
"""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from flwr_flynn import ClassCounts, FlyNNClassifier
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.metrics import overall, scored
from simulations.beside_fedavg.beside_fedavg.task import payments
from tests.docs.pages import blocks

from .conftest import ROOT, replaced, write_app

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/how_to/own_app.md"


def test_parties_that_die_or_are_late_cost_nobody_else(deployment, tmp_path):
    """Of three SuperNodes one counts, one is killed, and one is late.

    The killed one has its ClientApp ended while it counts; the late one answers after
    the timeout.
    """
    flower = deployment(
        {f"node{i}": {"partition_id": i, "num_partitions": 3} for i in range(3)},
        PYTHONPATH=str(ROOT),
    )

    def server(text: str) -> str:
        new = {
            "min_available_nodes=2,": "min_available_nodes=3,",
            "min_parties=2,": "min_parties=1, decay=0.5, fraction_evaluate=0,",
            "timeout=600": "timeout=90",
        }
        new["    strategy.model.save"] = (
            "    print('MISSING', strategy.missing)\n    strategy.model.save"
        )
        assert all(old in text for old in new)
        return replaced(text, new)

    def client(text: str) -> str:
        fault = (
            "    import os, time\n"
            "    if context.node_config['partition-id'] == 1:\n        "
            "os.kill(os.getpid(), 9)\n"
            "    if context.node_config['partition-id'] == 2:\n        "
            "time.sleep(200)\n"
        )
        return text.replace(
            "    return message.train(", fault + "    return message.train("
        )

    run = flower.run(write_app(tmp_path, PAGE, server, client))
    (missing,) = re.findall(r"MISSING (.*)", run.output)
    assert "failed: " in missing
    assert missing.count("no reply") == 1
    X, y = load_digits(return_X_y=True)
    model = FlyNNClassifier.load(flower.cwd / "model.npz")
    assert model.counts_ == ClassCounts.from_data(
        FlyHash(model.spec_), X[::3], y[::3], n_classes=10
    )


def test_flynn_beside_fedavg(theirs, tmp_path):
    (command,) = blocks(PAGE, "bash")
    assert "num-supernodes=4 " in command
    given = shlex.quote(
        f"output={json.dumps(str(tmp_path / 'flynn.npz'))} num-server-rounds=3"
    )
    run = theirs.finished(
        theirs.shell(
            f"cd {shlex.quote(str(ROOT))}\n{command.rstrip()} --run-config {given}"
        )
    )
    fedavg, flynn = map(
        float,
        re.search(
            r"FedAvg (\S+) after 3 rounds, FlyNN (\S+) after 4", run.output
        ).groups(),
    )
    assert 0.5 < fedavg < flynn
    banks = [payments(bank) for bank in range(4)]
    test = np.arange(5000) % 5 == 0
    model = FlyNNClassifier.load(tmp_path / "flynn.npz")
    mine, labels = (np.concatenate([bank[k][~test] for bank in banks]) for k in (0, 1))
    counts = [
        ClassCounts.from_data(member.hash, mine, labels, 2)
        for member in model.model_.members
    ]
    assert counts == [member.counts for member in model.model_.members]
    exact = []
    of_levels = []
    for X, y in banks:
        p = model.predict_proba(X[test])
        exact.append(roc_auc_score(y[test], p[:, 1]))
        told = overall(*scored(p, y[test], p.argmax(axis=1)))
        of_levels.append(told["auroc"][0])
    assert flynn == pytest.approx(np.mean(of_levels), abs=1e-4)
    assert flynn == pytest.approx(np.mean(exact), abs=1e-2)  # two of 100 are positive
