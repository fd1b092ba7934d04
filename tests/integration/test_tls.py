"""The federation of docs/how_to/deploy_tls.md with TLS and SuperNode keys.

It is made by the commands that stand there.
"""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from tests.docs.pages import blocks

from .conftest import Flower, command_of, free_ports, replaced

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = "docs/how_to/deploy_tls.md"
SITES = ("site1", "site2", "site3")
NAMES = ["sepal_length", "sepal_width", "petal_length", "petal_width"]


def shared_part(model: Path) -> str:
    """SHA-256 of a party's model without the class frequencies.

    Those are the party's own.
    """
    return replace(FlyNNClassifier.load(model).model_, prior=None).sha256()


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")),
    reason="the page makes certificates by openssl and keys by ssh-keygen",
)
def test_three_parties_with_keys_of_their_own_get_a_model_of_their_own(
    tmp_path,
):
    pd = pytest.importorskip("pandas")
    flower = Flower(tmp_path.resolve() / "flower", superlink="secure")
    flower.cwd = folder = flower.folder / "flowers"
    folder.mkdir()
    link, *ports = free_ports(5)
    places = {"29000": link, "/srv/flowers": folder} | {
        f"2910{i + 1}": port for i, port in enumerate(ports)
    }

    *scripts, superlink, register, supernodes, run = blocks(PAGE, "sh")
    (Path(flower.env["FLWR_HOME"]) / "config.toml").write_text(
        replaced(blocks(PAGE, "toml")[1], places)
    )
    command = command_of(run, places)
    try:
        for script in scripts:
            flower.shell(replaced(script, places))
        flower.start("superlink", *command_of(superlink, places))
        flower.wait_for_health(link, ca=folder / "ca.crt")
        flower.shell(replaced(register, places))
        nodes = [command_of(line, places) for line in supernodes.splitlines()]
        for site, node in zip(SITES, nodes, strict=True):
            flower.start(site, *node)
        # Somebody who has the certificate, and a key that was not admitted.
        flower.shell(
            "mkdir mallory && cp site1/flowers.csv mallory && ssh-keygen -q -t ecdsa "
            '-N "" -f mallory/node'
        )
        stranger = [
            word.replace("site1", "mallory").replace(str(ports[0]), str(ports[3]))
            for word in nodes[0]
        ]
        flower.start("mallory", *stranger)

        first = flower.finished(flower.call(*command))
        print(first.output)  # the transcript, for pytest -s
        assert first.row("parties counted") == "3 of 3"
        assert first.row("output folder") == str(folder / "server")
        for site in SITES:
            assert f"FlyNN: counts: {site}: " in first.output
        for hidden in ("mallory", "Anna", "picked_by", "Traceback"):
            assert hidden not in first.output
        left_out = "1 columns are not among the run's features: 'picked_by'"
        assert [
            left_out in (flower.folder / f"{site}.log").read_text() for site in SITES
        ] == [False, False, True]
        report = json.loads((folder / "server" / "metrics.json").read_text())
        assert sorted(party["name"] for party in report["parties"]) == list(SITES)

        served = FlyNNClassifier.load(folder / "server" / "model.npz")
        assert list(served.feature_names_in_) == NAMES
        own = {site: shared_part(folder / site / "model.npz") for site in SITES}
        assert len(set(own.values())) == 1

        # A file with a column less: its party declines, and the others go on.
        spoiled = folder / "site2" / "flowers.csv"
        pd.read_csv(spoiled).drop(columns="petal_width").to_csv(spoiled, index=False)
        second = flower.finished(
            flower.call(*command[:-1], f"{command[-1]} min-parties=2 decay=0.5")
        )
        assert second.row("parties counted") == "2 of 3"
        reason = (
            "expected each of the run's 4 features, got 1 of 4 missing: petal_width"
        )
        assert reason in second.row("left out of counts: site2")
        # It gets its copy of the model all the same.
        again = {site: shared_part(folder / site / "model.npz") for site in SITES}
        assert len(set(again.values())) == 1
        assert again["site1"] != own["site1"]
    finally:
        flower.stop()

    with (
        pytest.raises(OSError),  # noqa: PT011
        socket.create_connection(("127.0.0.1", link), timeout=1),
    ):
        pass
    for site in SITES:
        model = FlyNNClassifier.load(folder / site / "model.npz")
        assert tuple(model.classes_) == ("setosa", "versicolor", "virginica")
        flowers = pd.concat(
            [pd.read_csv(folder / site / "flowers.csv") for site in ("site1", "site3")]
        )
        assert np.mean(model.predict(flowers[NAMES]) == flowers["species"]) > 0.9
