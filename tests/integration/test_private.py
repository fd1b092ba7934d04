"""Private runs with real processes: a simulation, and parties that hold on to their own policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.partition import held_out
from flwr_flynn.privacy import mechanism_from_dict
from flwr_flynn.privacy.ledger import Budget, Policy

from .conftest import ROOT, Flower, free_ports

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.integration

DIGITS = load_dataset("digits")
SMALL = {"hash_dim": 512, "center": "8", "seed": 7}


def test_a_private_simulation_keeps_and_prints_its_guarantee(flower: Flower, tmp_path: Path) -> None:
    run = flower.run(nodes=3, epsilon=2.0, delta=1e-5, output_dir=str(tmp_path), **SMALL)
    assert run.status == "finished:completed", run.output[-6000:]
    assert "Traceback" not in run.output
    assert run.row("parties counted") == "3 of 3"
    assert run.row("equal") == "n/a, noisy"
    assert run.row("training examples").startswith("hidden, about ")
    assert run.row("privacy").startswith("epsilon ")
    privacy = json.loads((tmp_path / "metrics.json").read_text())["privacy"]
    assert privacy["guarantee"] in " ".join(run.output.split())
    assert 1.9 < privacy["epsilon"] <= 2.0
    model = FlyNNClassifier.load(tmp_path / "model.npz")
    assert model.guarantee_ == privacy["guarantee"] == mechanism_from_dict(privacy["mechanism"]).guarantee()
    assert len(model.counts_.noise) == 3
    test = held_out(1797, 0.2, 0)
    assert np.mean(model.predict(DIGITS.X[test]) == DIGITS.y[test]) > 0.5
    for party in range(3):
        (ledger,) = tmp_path.glob(f"state/*/party-{party}")
        assert Budget(ledger, Policy(2.0)).spent() == (privacy["epsilon"], 1e-5)


@pytest.mark.slow
def test_a_seeded_simulation_can_be_repeated_and_promises_nothing(flower: Flower) -> None:
    runs = [flower.run(nodes=2, epsilon=2.0, noise="seeded", evaluate="false", **SMALL) for _ in range(2)]
    for run in runs:
        assert run.status == "finished:completed", run.output[-6000:]
        assert run.row("privacy").startswith("NONE: seeded noise")
        assert "No privacy: noise from seed" in run.output
        assert run.row("evaluation") == "none: no results leave the parties"
    assert runs[0].row("SHA-256 of the counts") == runs[1].row("SHA-256 of the counts")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """Two parties with a policy of epsilon 1 each; one has a record that does not fit."""
    flower = Flower(tmp_path_factory.mktemp("private").resolve(), superlink="loopback")
    X = DIGITS.X.astype(float)
    X[3, 5] = np.nan
    link, *ports = free_ports(3)
    home = Path(flower.env["FLWR_HOME"])
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    options = ("--insecure", "--isolation", "subprocess")
    try:
        flower.start(
            "superlink",
            *("flower-superlink", *options, "--host", "127.0.0.1", "--port", str(link)),
            "--disable-runtime-dependency-installation",
        )
        flower.wait_for_health(link)
        for i, port in enumerate(ports):
            np.savez(flower.folder / f"site{i}.npz", X=X[i::2], y=DIGITS.y[i::2])
            node = {
                "data-path": str(flower.folder / f"site{i}.npz"),
                "party-id": f"site{i}",
                "max-epsilon": 1.0,
                "max-delta": 1e-4,
                "state-path": str(flower.folder / f"state{i}"),
                "model-path": str(flower.folder / f"model{i}.npz"),
            }
            flower.start(
                f"site{i}",
                *("flower-supernode", *options, "--superlink", f"127.0.0.1:{link}", "--port", str(port)),
                *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in node.items())),
            )
        yield flower
    finally:
        flower.stop()


@pytest.mark.slow
def test_parties_spend_no_more_than_their_policies_allow(federation: Flower) -> None:
    public = {"n_features": 64, "n_examples": 1800, "classes": ",".join(map(str, range(10))), "min_available": 2}
    first = federation.run(ROOT, epsilon=0.75, delta=1e-5, **public, **SMALL)
    assert first.status == "finished:completed", first.output[-6000:]
    assert first.row("parties counted") == "2 of 2"
    assert first.row("evaluation") == "none: no results leave the parties"
    # The model reaches them all the same.
    guarantees = {FlyNNClassifier.load(federation.folder / f"model{i}.npz").guarantee_ for i in range(2)}
    assert len(guarantees) == 1
    assert guarantees.pop() in " ".join(first.output.split())
    again = federation.run(ROOT, epsilon=0.75, delta=1e-5, **public, **SMALL)
    assert again.row("SHA-256 of the counts") == first.row("SHA-256 of the counts")
    more = federation.run(ROOT, epsilon=0.5, delta=1e-5, **public, **SMALL)
    assert more.status == "finished:failed"
    assert "site0 (declined: policy max-epsilon: " in more.output
    exact = federation.run(ROOT, **{name: public[name] for name in ("n_features", "classes", "min_available")})
    assert exact.status == "finished:failed"
    assert "only noisy counts leave this party, not phase" in exact.output
    assert all("Traceback" not in run.output for run in (first, again, more, exact))
    for i in range(2):
        epsilon, delta = Budget(federation.folder / f"state{i}", Policy(1.0)).spent()
        assert (0.7 < epsilon <= 0.75, delta) == (True, 1e-5)
