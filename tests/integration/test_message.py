"""Apps of the Message API as users start them: README's, and the one that has FlyNN beside FedAvg."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flwr_flynn import ClassCounts, FlyNNClassifier
from flwr_flynn.hashing.flyhash import FlyHash

from .conftest import ROOT, Flower, free_ports, write_app

pytestmark = pytest.mark.integration

SERVER, CLIENT = "message.FlyNNStrategy(", "message.train("


def is_pooled(model: FlyNNClassifier, X: np.ndarray, y: np.ndarray) -> bool:
    return model.counts_.sha256() == ClassCounts.from_data(FlyHash(model.spec_), X, y, n_classes=10).sha256()


def readme_app(folder: Path, change: Callable[[str], str] = str) -> Path:
    return write_app(folder, SERVER, CLIENT, change)


def test_the_model_of_readme_s_app_is_the_pooled_one(theirs: Flower, tmp_path: Path) -> None:
    run = theirs.run(readme_app(tmp_path), nodes=3)
    assert run.status == "finished:completed", run.output[-6000:]
    for party in range(3):
        assert re.search(rf"party-{party}: \d+ examples, .* accepted", run.output), run.output[-6000:]
    assert is_pooled(FlyNNClassifier.load(theirs.cwd / "model.npz"), *load_digits(return_X_y=True))


@pytest.mark.slow
def test_it_fails_where_a_party_refuses(theirs: Flower, tmp_path: Path) -> None:
    (theirs.cwd / "model.npz").unlink(missing_ok=True)
    run = theirs.run(readme_app(tmp_path, lambda server: server.replace("range(10)", "range(9)")), nodes=2)
    assert run.status == "finished:failed", run.output[-6000:]
    assert "0 of at least 2 parties counted; missing: party-" in run.output
    assert not (theirs.cwd / "model.npz").exists()


@pytest.mark.slow
def test_parties_that_die_or_are_late_are_named_and_cost_nobody_else(tmp_path: Path) -> None:
    """Three SuperNodes: one counts, the ClientApp of one is killed while it does, one answers after the timeout."""
    flower = Flower(tmp_path.resolve() / "flower", superlink="loopback")
    flower.env["PYTHONPATH"] = str(ROOT)
    link, *ports = free_ports(4)
    home = Path(flower.env["FLWR_HOME"])
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')

    def server(text: str) -> str:
        for old, new in (
            (
                "min_available_nodes=2, min_parties=2",
                "min_available_nodes=3, min_parties=1, decay=0.5, fraction_evaluate=0",
            ),
            ("timeout=600", "timeout=90"),
            ("    strategy.model.save", "    print('MISSING', strategy.missing)\n    strategy.model.save"),
        ):
            assert old in text
            text = text.replace(old, new)
        return text

    def client(text: str) -> str:
        fault = (
            "    import os, time\n"
            "    if context.node_config['partition-id'] == 1:\n        os.kill(os.getpid(), 9)\n"
            "    if context.node_config['partition-id'] == 2:\n        time.sleep(200)\n"
        )
        return text.replace("    return message.train(", fault + "    return message.train(")

    app = write_app(tmp_path, SERVER, CLIENT, server, client)
    try:
        flower.start("superlink", "flower-superlink", "--insecure", "--port", str(link))
        flower.wait_for_health(link)
        for i, port in enumerate(ports):
            node = ["--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)]
            flower.start(f"node{i}", "flower-supernode", *node, "--node-config", f"partition-id={i} num-partitions=3")
        run = flower.run(app)
    finally:
        flower.stop()
    assert run.status == "finished:completed", run.output[-6000:]
    (missing,) = re.findall(r"MISSING (.*)", run.output)
    assert "failed: " in missing
    assert missing.count("no reply") == 1
    X, y = load_digits(return_X_y=True)
    assert is_pooled(FlyNNClassifier.load(flower.cwd / "model.npz"), X[::3], y[::3])


@pytest.mark.slow
def test_flynn_beside_fedavg(theirs: Flower, tmp_path: Path) -> None:
    run = theirs.run(ROOT / "simulations" / "beside_fedavg", nodes=3, output=str(tmp_path / "flynn.npz"))
    assert run.status == "finished:completed", run.output[-6000:]
    fedavg, flynn = map(float, re.search(r"FedAvg (\S+), FlyNN (\S+) on", run.output).groups())
    assert 0.8 < fedavg < flynn
    X, y = load_digits(return_X_y=True)
    test = (np.arange(len(y)) // 3) % 5 == 0  # every fifth point of each of three shares
    model = FlyNNClassifier.load(tmp_path / "flynn.npz")
    assert is_pooled(model, X[~test], y[~test])
    assert flynn == pytest.approx(np.mean(model.predict(X[test]) == y[test]), abs=1e-4)
