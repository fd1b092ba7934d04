"""The ServerApp that `flwr run` starts: wait for the parties, add their counts, evaluate, save, report.

In a simulation the server loads the data set itself, to know its shape and classes and to train on the pooled
data for comparison. In a deployment it sees no data: the run config names the number of features and the
classes.

Nothing of Flower runs after the last round, so the app does it by hand: it runs Flower's `DefaultWorkflow`,
then asks the strategy for its model, which raises when too few parties were counted.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

import flwr_flynn
from flwr_flynn import data
from flwr_flynn.config import RunConfig
from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.hashing import HashSpec, flynn_hash
from flwr_flynn.strategy import FlyNNStrategy

_ENDLESS = 10**9  # seconds: 30 years

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation and leave `model.npz` and `metrics.json` in the output folder."""
    logging.getLogger("flwr").addFilter(_one_line)
    start = time.monotonic()
    config = RunConfig.parse(context.run_config)
    folder = _output_folder(config, context.run_id)
    parties = _simulated_parties(grid)
    spec, classes, feature_names = _what_to_train(config, parties)

    strategy = FlyNNStrategy(
        spec=spec,
        classes=classes,
        min_available_clients=config.min_available or parties or 0,
        min_parties=config.min_parties or config.min_available or parties or 0,
        decay=config.decay_value(),
        rule=config.rule,
        feature_names=feature_names,
        wait_timeout=math.ceil(config.timeout) or _ENDLESS,
    )
    legacy = LegacyContext(context, config=ServerConfig(num_rounds=config.rounds), strategy=strategy)
    DefaultWorkflow()(_with_timeout(grid, config.timeout), legacy)

    model = strategy.model  # AggregationError where fewer parties than asked for were counted
    report = _report(config, strategy, spec, parties)
    report["run"] = {"run_id": str(context.run_id), "seconds": round(time.monotonic() - start, 3)}
    model.save(folder / "model.npz")
    _write(folder / "metrics.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    print(_table(report, folder), flush=True)


def _one_line(record: logging.LogRecord) -> bool:
    """Flower logs an app's exception with its traceback; those raised on purpose here say it in one line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FlyNNError):
        record.msg, record.args, record.exc_info = f"{type(error).__name__}: {error}", (), None
    return True


def _output_folder(config: RunConfig, run_id: int) -> Path:
    """Make the output folder before the work starts, so that a bad path costs nobody a round."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    folder = Path(config.output_dir).expanduser() if config.output_dir else Path(home) / "flynn" / str(run_id)
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(f"run-config output-dir: expected a folder that can be written to, got {folder}")
    return folder


def _simulated_parties(grid: Grid) -> int | None:
    """The number of SuperNodes of a simulation, or None in a deployment.

    A simulation registers all its nodes at once while this app starts: wait until their number stands still.
    """
    if not isinstance(grid, InMemoryGrid):
        return None
    before, now = -1, 0
    while now == 0 or now != before:
        time.sleep(0.3)
        before, now = now, len(list(grid.get_node_ids()))
    return now


def _what_to_train(config: RunConfig, parties: int | None) -> tuple[HashSpec, list[str | int], tuple[str, ...] | None]:
    """The spec, the class list and the feature names of a run."""
    if parties is None:
        classes = config.class_list()
        for key, given in (("n-features", config.n_features), ("classes", classes)):
            if not given:
                raise ConfigError(f"run-config {key}: a deployment's server sees no data, so it must be given")
        if not config.min_available:
            raise ConfigError("run-config min-available: how many parties to wait for must be given in a deployment")
        spec = config.hash_spec(config.n_features, config.n_examples or None, len(classes))
        return spec, classes, None
    for key, given in (("min-available", config.min_available), ("min-parties", config.min_parties)):
        if given > parties:
            raise ConfigError(f"run-config {key}: expected at most the simulation's {parties} SuperNodes, got {given}")
    dataset = data.simulated_dataset(config)
    data.simulated_shares(config, parties)  # a partitioner that cannot do it is known before the parties start
    # Sizes follow from the whole data set, never from a split of it: they are the same in every federation.
    spec = config.hash_spec(dataset.X.shape[1], len(dataset.y), len(dataset.classes))
    return spec, dataset.classes, dataset.feature_names


class _TimedGrid:
    """A grid whose `send_and_receive` gives up after `timeout` seconds: Flower's workflows pass none."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=self._timeout if timeout is None else timeout)


def _with_timeout(grid: Grid, timeout: float) -> Grid:
    return cast(Grid, _TimedGrid(grid, timeout)) if timeout else grid


def _report(config: RunConfig, strategy: FlyNNStrategy, spec: HashSpec, parties: int | None) -> dict[str, Any]:
    """Everything that the run has to tell, as it stands in metrics.json."""
    counts = strategy.counts
    model = strategy.model
    settings = {name: default for name, default, _ in RunConfig.table()}
    settings = {key: getattr(config, key.replace("-", "_")) for key in settings}
    report: dict[str, Any] = {
        "format": 1,
        "parties": [asdict(party) for party in strategy.parties],
        "missing": dict(strategy.missing),
        "examples": int(counts.n_examples),
        "evaluation": strategy.evaluation,
        "sha256": {"federated": counts.sha256()},
        "spec": spec.to_dict(),
        "fingerprint": counts.spec_fingerprint,
        "classes": list(model.classes_.tolist()),
        "decay": float(model.decay_),
        "rule": config.rule,
        "settings": settings,
        "versions": {name: version(name) for name in ("flwr", "numpy", "scipy", "numba", "scikit-learn")}
        | {"flwr-flynn": flwr_flynn.__version__, "python": platform.python_version()},
    }
    if parties is not None:
        shares = data.simulated_shares(config, parties)
        report["simulation"] = {
            "parties": parties,
            "points": len(data.simulated_dataset(config).y),
            "handed_out": sum(map(len, shares)),
            "empty_parties": sum(len(share) == 0 for share in shares),
        }
        if config.check_pooled:
            pooled = _pooled_counts(config, spec, parties)
            report["sha256"] |= {"pooled": pooled.sha256(), "equal": pooled.sha256() == counts.sha256()}
    return report


def _pooled_counts(config: RunConfig, spec: HashSpec, parties: int) -> ClassCounts:
    """The counts of the union of what the partitioner handed out, as one party would make them."""
    X, codes, n_classes = data.pooled_training(config, parties)
    return ClassCounts.from_data(flynn_hash(spec), X, codes, n_classes, n_jobs=-1)


def _table(report: dict[str, Any], folder: Path) -> str:
    """The report's short form, for the end of the run's log."""
    parties, evaluation, sha = report["parties"], report["evaluation"], report["sha256"]
    simulation = report.get("simulation")
    asked = simulation["parties"] if simulation else len(parties) + len(report["missing"])
    sizes = [party["bytes"] for party in parties]
    rows = [("parties counted", f"{len(parties)} of {asked}")]
    rows += [(f"  not counted: {name}", reason) for name, reason in report["missing"].items()]
    rows.append(("training examples", f"{report['examples']}"))
    if simulation:
        handed_out, points = simulation["handed_out"], simulation["points"]
        rows.append(("  points dealt out", f"{handed_out} of {points}; those not trained on are held out"))
        if simulation["empty_parties"]:
            rows.append(("  parties with no points", f"{simulation['empty_parties']}"))
    upload = f"{_bytes(sum(sizes) / len(sizes))} on average, {_bytes(max(sizes))} at most"
    rows.append(("upload per party", upload))
    if evaluation:
        rows += [(name, f"{evaluation[key]:.4f}") for name, key in _SCORES]
        worst = evaluation["worst_party"]
        seen = f"{worst['accuracy']:.4f} ({worst['name']}, {worst['examples']} held-out points)"
        rows.append(("worst party", seen))
    else:
        rows.append(("evaluation", "none: no party holds test points"))
    rows.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        rows.append(("  trained on pooled data", sha["pooled"]))
        rows.append(("  equal", "yes" if sha["equal"] else "NO"))
    rows.append(("output folder", str(folder)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(["", "FlyNN", *(f"  {name:<{width}}  {text}" for name, text in rows), ""])


_SCORES = (("accuracy", "accuracy"), ("balanced accuracy", "balanced_accuracy"), ("macro-F1", "macro_f1"))


def _bytes(n: float) -> str:
    return f"{n:.0f} B" if n < 1000 else f"{n / 1e3:.1f} kB" if n < 1e6 else f"{n / 1e6:.1f} MB"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: beside it first, then over it in one step."""
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with beside.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
