"""Time that FlyNN adds to a Flower run: `flwr run .` beside an app that does nothing with the same partitions.

Both run on one simulated SuperLink, in turn: ten parties, one round of training, one of evaluation. The one that does
nothing loads and partitions the data as ours does; its parties return a single zero. What is left of the difference is
hashing, the counts on their way, the model file, and training on the pooled data for comparison.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulations.results import about, markdown_table, output_folder, parser, write_csv, write_summary

_ROOT = Path(__file__).parents[1]

_SERVER = """
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow
from flwr.common import ndarrays_to_parameters
from flwr.serverapp import ServerApp
import numpy as np

app = ServerApp()

@app.main()
def main(grid, context):
    zero = ndarrays_to_parameters([np.zeros(1)])
    strategy = FedAvg(min_fit_clients=10, min_evaluate_clients=10, min_available_clients=10, initial_parameters=zero)
    DefaultWorkflow()(grid, LegacyContext(context, config=ServerConfig(num_rounds=1), strategy=strategy))
"""

_CLIENT = """
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
import numpy as np
from flwr_flynn.app.data import datasets
from flwr_flynn.app.run_config import RunConfig

class Nothing(NumPyClient):
    def fit(self, parameters, config):
        return [np.zeros(1)], 1, {}
    def evaluate(self, parameters, config):
        return 0.0, 1, {}

def client_fn(context):
    node = context.node_config
    config = RunConfig.parse(context.run_config)
    datasets.simulated_share(config, int(node["partition-id"]), int(node["num-partitions"]))
    return Nothing().to_client()

app = ClientApp(client_fn=client_fn)
"""


def write_idle_app(folder: Path) -> None:
    """Write the app that does nothing, with our run-config."""
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r"serverapp = .*", 'serverapp = "idle.server:app"', text)
    text = re.sub(r"clientapp = .*", 'clientapp = "idle.client:app"', text)
    text = text.replace('name = "flwr-flynn"', 'name = "idle"').replace("flwr_flynn/**/*.py", "idle/**/*.py")
    (folder / "idle").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    for name in ("README.md", "LICENSE"):
        (folder / name).write_bytes((_ROOT / name).read_bytes())
    for name, source in (("__init__", ""), ("server", _SERVER), ("client", _CLIENT)):
        (folder / "idle" / f"{name}.py").write_text(source, encoding="utf-8")


@contextmanager
def superlink(home: Path) -> Iterator[dict[str, str]]:
    """A simulated SuperLink of its own, known to `flwr` as `overhead`; yields the environment to call `flwr` in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.overhead]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": str(_ROOT),  # for the idle app; ours travels in its bundle
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--disable-runtime-dependency-installation"], cwd=home, env=environment, stdout=log, stderr=log
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield environment
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.5)
    raise RuntimeError("the SuperLink did not start; see superlink.log")


def seconds_of(app: Path, environment: dict[str, str]) -> float:
    """Wall time of one run of an app to its end."""
    nodes = "num-supernodes=10 client-resources-num-cpus=1"
    start = time.perf_counter()
    done = subprocess.run(
        ["flwr", "run", str(app), "overhead", "--stream", "--federation-config", nodes],
        cwd=environment["FLWR_HOME"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    if "Run finished" not in done.stdout + done.stderr:
        raise RuntimeError(f"the run of {app.name} did not finish:\n{(done.stdout + done.stderr)[-2000:]}")
    return seconds


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("overhead", __doc__).parse_args(arguments)
    start, folder = time.perf_counter(), output_folder(options)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        idle = Path(name) / "idle-app"
        write_idle_app(idle)
        with superlink(Path(name) / "home") as environment:
            for turn in range(2 if options.quick else 6):
                row = {"turn": turn, "flynn s": seconds_of(_ROOT, environment), "idle s": seconds_of(idle, environment)}
                rows.append(row)
                first = ", the first: kernels are compiled" if turn == 0 else ""
                print(f"flynn {row['flynn s']:.1f} s, idle {row['idle s']:.1f} s{first}", flush=True)
    write_csv(folder / "overhead.csv", rows)
    later = [row["flynn s"] - row["idle s"] for row in rows[1:]]
    remark = f"FlyNN adds {statistics.median(later):.1f} s (median; {min(later):.1f} to {max(later):.1f})."
    print(remark)
    parts = [about(__doc__), remark, "The first turn compiles the kernels:", markdown_table(rows)]
    write_summary(folder, "Overhead", "overhead", arguments, time.perf_counter() - start, parts)
