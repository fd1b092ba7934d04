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

from flwr.app import Context, Message, MessageType
from flwr.common.logger import log
from flwr.compat.common import recorddict_compat as compat
from flwr.compat.server.typing import Workflow
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.server.workflow.default_workflows import default_evaluate_workflow
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

import flwr_flynn
from flwr_flynn import data
from flwr_flynn.config import RunConfig
from flwr_flynn.counts import ClassCounts, memory_needed
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.hashing import flynn_hash
from flwr_flynn.spec import HashSpec
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
    trouble: list[str] = []
    DefaultWorkflow(evaluate_workflow=_keeping(trouble))(cast(Grid, _CarefulGrid(grid, config.timeout)), legacy)

    # AggregationError where fewer parties than asked for were counted. Saved first: all else can be had again from it.
    strategy.model.save(folder / "model.npz")
    report = _report(config, strategy, spec, parties)
    report["evaluation_trouble"] = trouble
    report["run"] = {"run_id": str(context.run_id), "seconds": round(time.monotonic() - start, 3)}
    _write(folder / "metrics.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    print(_table(report, folder), flush=True)
    if report["sha256"].get("equal") is False:
        raise FlyNNError("every party is counted, but the model is not the one trained on the pooled data")


def _one_line(record: logging.LogRecord) -> bool:
    """Flower logs an app's exception with its traceback; those raised on purpose here say it in one line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FlyNNError | MemoryError):
        record.msg, record.args, record.exc_info = f"{type(error).__name__}: {data.full_text(error)}", (), None
    return True


def _output_folder(config: RunConfig, run_id: int) -> Path:
    """Make the output folder before the work starts, so that a bad path costs nobody a round."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    folder = Path(config.output_dir) if config.output_dir else Path(home) / "flynn" / str(run_id)
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError, ValueError):  # the home of nobody, a NUL
        writable = False
    if not writable:
        raise ConfigError(f"run-config output-dir: expected a folder that can be written to, got {str(folder)[:200]!r}")
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
    classes: list[str | int]
    if parties is None:
        classes, feature_names = config.class_list(), None
        for key, given in (("n-features", config.n_features), ("classes", classes)):
            if not given:
                raise ConfigError(f"run-config {key}: a deployment's server sees no data, so it must be given")
        if not config.min_available:
            raise ConfigError("run-config min-available: how many parties to wait for must be given in a deployment")
        if ignored := config.simulation_only():
            log(logging.WARNING, "FlyNN: a deployment does not use the settings %s", ", ".join(ignored))
        spec = config.hash_spec(config.n_features, config.n_examples or None, len(classes))
    else:
        for key, given in (("min-available", config.min_available), ("min-parties", config.min_parties)):
            if given > parties:
                raise ConfigError(
                    f"run-config {key}: expected at most the simulation's {parties} SuperNodes, got {given}"
                )
        dataset = data.simulated_dataset(config)
        data.simulated_shares(config, parties)  # a partitioner that cannot do it is known before the parties start
        classes, feature_names = dataset.classes, dataset.feature_names
        # Sizes follow from the whole data set, never from a split of it: they are the same in every federation.
        spec = config.hash_spec(dataset.X.shape[1], len(dataset.y), len(classes))
    needed = memory_needed(spec, len(classes)) / 2**30
    if needed > config.memory_limit:
        raise ConfigError(
            f"run-config memory-limit: {spec.hash_dim} rows of {spec.row_nnz} entries and {len(classes)} classes need "
            f"about {needed:.2f} GiB, {config.memory_limit:g} are allowed"
        )
    return spec, classes, feature_names


class _CarefulGrid:
    """A grid that gives up on replies after `timeout` seconds, 0 for never, and drops those that Flower cannot read.

    Flower's workflows pass no timeout, and an exception while they read one party's reply would end the run of all.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout or None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        asked = {message.metadata.dst_node_id: message.metadata.message_type for message in messages}
        replies = self._grid.send_and_receive(messages, timeout=self._timeout if timeout is None else timeout)
        return [reply for reply in replies if _is_readable(reply, asked)]


def _is_readable(reply: Message, asked: dict[int, str]) -> bool:
    """Whether Flower's workflow can make a result of a reply; the strategy reports its sender as missing if not."""
    node = reply.metadata.src_node_id
    try:
        if reply.has_content():
            if asked[node] == MessageType.TRAIN:
                compat.recorddict_to_fitres(reply.content, keep_input=True)
            else:
                compat.recorddict_to_evaluateres(reply.content)
    except Exception as error:  # noqa: BLE001 - whatever it is, it came with one party's reply
        log(logging.WARNING, "FlyNN: node %s: reply dropped, it cannot be read (%s)", node, type(error).__name__)
        return False
    return True


def _keeping(trouble: list[str]) -> Workflow:
    """Flower's evaluation round. What it raises is noted in `trouble`: the model stands without figures, too."""

    def evaluate(grid: Grid, context: Context) -> None:
        try:
            default_evaluate_workflow(grid, context)
        except Exception as error:  # noqa: BLE001
            log(logging.ERROR, "FlyNN: the evaluation failed", exc_info=error)
            trouble.append(type(error).__name__)

    return evaluate


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
        "evaluation_missing": dict(strategy.evaluation_missing),
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
            # Counts of some of the parties cannot be the pooled ones.
            equal = pooled.sha256() == counts.sha256() if len(strategy.parties) == parties else None
            report["sha256"] |= {"pooled": pooled.sha256(), "equal": equal}
    return report


def _pooled_counts(config: RunConfig, spec: HashSpec, parties: int) -> ClassCounts:
    """The counts of the union of what the partitioner handed out, as one party would make them."""
    X, codes, n_classes = data.pooled_training(config, parties)
    return ClassCounts.from_data(flynn_hash(spec), X, codes, n_classes, n_jobs=-1)


def _table(report: dict[str, Any], folder: Path) -> str:
    """The report's short form, for the end of the run's log."""
    parties, evaluation, sha = report["parties"], report["evaluation"], report["sha256"]
    simulation, silent = report.get("simulation"), report["evaluation_missing"]
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
    elif trouble := report["evaluation_trouble"]:
        rows.append(("evaluation", f"failed with {', '.join(trouble)}"))
    elif silent:
        rows.append(("evaluation", f"failed at {len(silent)} parties"))
    else:
        rows.append(("evaluation", "none: no party holds test points"))
    rows += [(f"  not evaluated: {name}", reason) for name, reason in silent.items()]
    rows.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        rows.append(("  trained on pooled data", sha["pooled"]))
        unequal = "NO" if sha["equal"] is False else f"n/a, {asked - len(parties)} missing"
        rows.append(("  equal", "yes" if sha["equal"] else unequal))
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
