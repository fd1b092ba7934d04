"""The ServerApp that `flwr run` starts: wait for the parties, add their counts, evaluate, save, report.

In a simulation the server loads the data set itself, for its shape and classes and to train on the pooled data for
comparison. In a deployment it sees no data: the run config names the number of features and the classes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message, MessageType
from flwr.common import Code, EvaluateRes, FitRes, Parameters, Status
from flwr.common.logger import log
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.server.workflow.default_workflows import default_evaluate_workflow
from flwr.serverapp import Grid, ServerApp

from flwr_flynn._files import writing
from flwr_flynn.app import failure, report
from flwr_flynn.app.config import RunConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.app.data.readers import ENDINGS, ending
from flwr_flynn.app.privacy_setup import default_folder, private_plan, run_mechanism, training_points
from flwr_flynn.errors import AggregationError, ConfigError, FlyNNError, WriteError
from flwr_flynn.federated.federation_file import Federation, exclusive
from flwr_flynn.federated.phases.columns import USUAL_BINS, ColumnsRequest
from flwr_flynn.federated.phases.evaluation import EVALUATION
from flwr_flynn.federated.phases.secure_columns import MOST_BINS
from flwr_flynn.federated.request import ENTRY_BYTES
from flwr_flynn.federated.roster import unknown
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import bound_for, check_room
from flwr_flynn.flower import message
from flwr_flynn.flower.base_strategy import BaseStrategy
from flwr_flynn.flower.compat import Workflow, is_simulated
from flwr_flynn.flower.compat import recorddict_compat as compat
from flwr_flynn.flower.secagg import workflow
from flwr_flynn.flower.strategy import FlyNNStrategy
from flwr_flynn.model.candidates import HashPlan, foreseen
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.gram import memory_of_gram
from flwr_flynn.model.weight_search import BYTES_PER_WEIGHT

_ENDLESS = 10**9  # seconds: 30 years
_WRITTEN = ("model.npz", "metrics.json")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation and leave `model.npz` and `metrics.json` in the output folder."""
    logging.getLogger("flwr").addFilter(failure.one_line)
    try:
        _main(grid, context)
    except Exception as error:
        failure.tell(error)
        raise


def _main(grid: Grid, context: Context) -> None:
    start = time.monotonic()
    config = RunConfig.parse(context.run_config).resolved()
    folder = output_folder(config, context.run_id)
    kept = _federation_file(config, folder)
    with exclusive(kept):
        # Beside model.npz, which a run into the same folder replaces, it is replaced, too.
        if config.action == "train" and config.federation and kept.exists():
            raise ConfigError("run-config federation", "none yet", f"one: {kept} (action = join adds to it)")
        unfinished = kept.with_name(f"{kept.stem}.unfinished.npz")
        source = unfinished if config.action == "resume" else kept
        if config.action != "train" and not source.is_file():
            raise ConfigError("run-config federation", "the server's own file", f"none: {source}")
        if config.action == "train" and unfinished.exists():
            expected = "no run that stopped before its end"
            raise ConfigError("run-config federation", expected, f"one: {unfinished} (action = resume goes on with it)")
        _run(grid, context, config, folder, kept, unfinished, start)


def _run(
    grid: Grid, context: Context, config: RunConfig, folder: Path, kept: Path, unfinished: Path, start: float
) -> None:
    # An error in a file, or in a setting that goes with it, is told before parties are waited for.
    if is_simulated(grid):
        datasets.simulated_dataset(config)
    trusted = _trusted(config)
    parties = _simulated_parties(grid)
    source = unfinished if config.action == "resume" else kept
    before = None if config.action == "train" else Federation.load(source, int(config.memory_limit * 2**30))
    keep = (
        None if config.action not in ("train", "resume") or config.secure else _keeper(unfinished, str(context.run_id))
    )
    plan, strategy = _strategy(grid, config, parties, before, trusted, keep)
    rounds = n_rounds(config, plan, strategy)
    trouble: list[str] = []
    if isinstance(strategy, message.FlyNNStrategy):
        _in_turns(strategy, grid, rounds, config.timeout or _ENDLESS, trouble)
    else:
        legacy = LegacyContext(context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
        counting = {}
        if strategy.secure_bound is not None and config.secure:
            counting = {"fit_workflow": workflow(strategy.secure_bound, config.secure_threshold, config.timeout)}
        together = DefaultWorkflow(**counting, evaluate_workflow=_keeping(trouble))
        together(cast(Grid, _CarefulGrid(grid, config.timeout, config.secure)), legacy)

    try:
        model = strategy.model
    except AggregationError:  # fewer parties than required were counted: the files stay as they were
        if config.action == "train":
            unfinished.unlink(missing_ok=True)
        raise
    # Saved first: the rest can be computed from it.
    after = strategy.federation(run=str(context.run_id))
    unwritten: list[WriteError] = []
    if config.action != "evaluate" and _try_to_write(unwritten, lambda: after.save(kept)) and keep is not None:
        unfinished.unlink(missing_ok=True)
    _try_to_write(unwritten, lambda: model.save(folder / "model.npz"))
    told = report.compiled(config, strategy, plan, parties, after)
    told["evaluation_trouble"] = trouble
    told["run"] = {"run_id": str(context.run_id), "seconds": round(time.monotonic() - start, 3)}
    text = json.dumps(told, indent=2, allow_nan=False) + "\n"
    if not _try_to_write(unwritten, lambda: _write(folder / "metrics.json", text)):
        print(text, flush=True)  # the log is the only place left for it
    print(report.table(told, folder), flush=True)
    wrong = [f"results: {error}" for error in unwritten]
    if unequal := [name for name in report.EQUALITIES if told["sha256"].get(name) is False]:
        listed = ", ".join(unequal)
        wrong.append(f"every party is counted, but the model is not the one trained on the pooled data ({listed})")
    if wrong:
        names = [str(error.field) for error in unwritten] + unequal
        raise FlyNNError("results", "all of them written, and equal", ", ".join(names), text="; ".join(wrong))


def _try_to_write(unwritten: list[WriteError], write: Callable[[], object]) -> bool:
    """Write a result of the run, or log and keep the reason of a failure: other results may still be written."""
    try:
        write()
    except WriteError as error:
        log(logging.ERROR, "FlyNN: %s", datasets.full_text(error))
        unwritten.append(error)
        return False
    return True


def _keeper(path: Path, run_id: str) -> Callable[[Run], None]:
    """The function that keeps the state of a run after each phase, once its candidates are known."""

    def keep(run: Run) -> None:
        # A phase whose run would begin at an earlier one has its state in the file already.
        if run.is_specified and run.due is not None and run.due_if_resumed == run.due.name:
            first = not path.exists()
            if _try_to_write([], lambda: run.federation(run_id).save(path)) and first:
                log(logging.INFO, "FlyNN: should the run stop now, action = resume goes on from %s", path)

    return keep


def _strategy(
    grid: Grid,
    config: RunConfig,
    parties: int | None,
    before: Federation | None,
    trusted: tuple[Any, Any] | None = None,
    on_phase: Callable[[Run], object] | None = None,
) -> tuple[HashPlan | None, FlyNNStrategy | message.FlyNNStrategy]:
    """The run's plan, where it makes a new federation, and its strategy, of the Message API with `nodes-at-a-time`."""
    asked = config.min_available or parties or 0
    chosen = config.party_numbers()
    most = asked if chosen is None else min(len(chosen), asked)
    given: dict[str, Any]
    if before is None:
        plan, classes, feature_names = training_plan(config, parties)
        mechanism = run_mechanism(config, foreseen(plan)[0], len(classes), asked)
        needed = config.min_parties or most
        given = {"spec": plan, "classes": classes, "feature_names": feature_names, "mechanism": mechanism}
    else:
        if parties is None:
            _require_min_available(config)
        plan, needed = None, config.min_parties or (most if config.action == "resume" else 1)
        names = ("classes", "feature_names", "mechanism")
        given = {name: getattr(before.run_spec, name) for name in names}
        given |= {"spec": before.run_spec.specs, "federation": before}  # a spec for each member of the model
    bound = None if before is None else before.run_spec.bound
    if config.secure:
        # Noise reaches beyond the largest count; what is beyond the bound is clipped.
        noise = 0 if given.get("mechanism") is None else math.ceil(8 * given["mechanism"].noise_sd)
        bound = bound_for(config.max_examples + noise)
        check_room(asked, bound)
    make: Callable[..., FlyNNStrategy | message.FlyNNStrategy] = partial(FlyNNStrategy, min_available_clients=asked)
    if config.nodes_at_a_time:
        at_a_time = config.nodes_at_a_time
        make = partial(message.FlyNNStrategy, min_available_nodes=asked, nodes_at_a_time=at_a_time)
    strategy = make(
        **given,
        secure_bound=bound,
        purpose=config.action,
        identify=_identify(grid),
        min_parties=needed,
        max_examples_per_party=config.max_examples or None,
        decay=config.decay_value(),
        rule=config.rule if before is None or config.rule != RunConfig.rule else before.scoring.rule,
        refine_rounds=config.refine_rounds,
        gram=config.gram,
        align=config.align and before is None,
        groups=config.groups,
        trusted=trusted,
        fraction_evaluate=float(config.evaluates(simulated=parties is not None)),
        distribute=parties is None,  # simulated parties keep no model
        wait_timeout=math.ceil(config.timeout) or _ENDLESS,
        on_phase=on_phase,
    )
    return plan, strategy


def _trusted(config: RunConfig) -> tuple[Any, Any] | None:
    if not config.groups:
        return None
    if ending(Path(config.trusted)) not in ENDINGS:  # not a public data set, which parties may have
        raise config.refused("trusted", f"a file that ends with one of {', '.join(ENDINGS)}")
    try:
        data = datasets.load_dataset(config.trusted, features=config.feature_list())
    except FlyNNError as error:
        raise ConfigError("run-config trusted", text=f"run-config trusted: {datasets.full_text(error)}") from None
    return data.X, data.labels


def _require_min_available(config: RunConfig) -> None:
    if not config.min_available:
        raise config.refused("min_available", "a number of parties in a deployment", "missing")


def _identify(grid: Grid) -> Callable[[str], str]:
    """The function that names a node across runs: the SHA-256 of its SuperNode's public key, "" without a key."""
    if not hasattr(grid, "get_nodes"):  # before Flower 1.38, which tells a ServerApp no keys
        return unknown
    known: dict[str, str] = {}

    def identify(cid: str) -> str:
        for node in grid.get_nodes() if cid not in known else ():
            known[str(node.node_id)] = hashlib.sha256(node.public_key).hexdigest() if node.public_key else ""
        return known.setdefault(cid, "")

    return identify


def n_rounds(config: RunConfig, plan: HashPlan | None, strategy: BaseStrategy) -> int:
    """The number of rounds, which must be enough for the counting."""
    least = strategy.run.rounds_to_count
    if 0 < config.rounds < least:
        raise config.refused("rounds", f"at least {least} with scaling = {config.scaling}")
    return config.rounds or strategy.num_rounds


def output_folder(config: RunConfig, run_id: int) -> Path:
    """Make the output folder before the work starts, so that a bad path costs nobody a round."""
    folder = Path(config.output_dir) if config.output_dir else default_folder(run_id)
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError, ValueError):  # the home of nobody, a NUL
        writable = False
    if not writable:
        raise ConfigError("run-config output-dir", "a folder that can be written to", repr(str(folder)[:200]))
    return folder


def _federation_file(config: RunConfig, folder: Path) -> Path:
    """The federation file under its one real path, which the lock goes by; not a file that the run writes besides."""
    if not config.federation:
        return folder / "federation.npz"
    try:
        kept = Path(config.federation).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):  # the home of nobody, a NUL
        raise ConfigError("run-config federation", "a file", repr(config.federation[:200])) from None
    if kept in [(folder / name).resolve() for name in _WRITTEN]:
        raise ConfigError("run-config federation", f"a file other than the run's {' and '.join(_WRITTEN)}", kept.name)
    return kept


def _simulated_parties(grid: Grid) -> int | None:
    """The number of SuperNodes of a simulation, once it stands still, or None in a deployment."""
    if not is_simulated(grid):
        return None
    before, now = -1, 0
    while now == 0 or now != before:
        time.sleep(0.3)
        before, now = now, len(list(grid.get_node_ids()))
    return now


def training_plan(config: RunConfig, parties: int | None) -> tuple[HashPlan, list[str | int], tuple[str, ...] | None]:
    """The plan, the class list and the feature names of a run."""
    classes: list[str | int]
    most_bins = USUAL_BINS
    if parties is None:
        classes, feature_names = config.class_list(), config.feature_list() or None
        n_features = len(feature_names or ()) or config.n_features
        for name, given in (("n_features", n_features), ("classes", classes)):
            if not given:
                raise config.refused(name, "a value in a deployment, whose server sees no data", "missing")
        _require_min_available(config)
        if config.noise != "opendp":
            raise ConfigError("run-config noise", "opendp in a deployment", config.noise)
        plan = config.plan(n_features, config.n_examples or None, len(classes))
    else:
        for name in ("min_available", "min_parties"):
            if getattr(config, name) > parties:
                raise config.refused(name, f"at most the simulation's {parties} SuperNodes")
        dataset = datasets.simulated_dataset(config)
        datasets.simulated_shares(config, parties)  # a partitioner that cannot deal is known before the parties start
        classes, feature_names = dataset.classes, dataset.feature_names
        if dataset.X.dtype in (np.bool_, np.uint8):  # pixels
            most_bins = 256
        # Sizes follow from all training samples, never from a split of them: they are the same in every federation.
        plan = config.plan(dataset.X.shape[1], training_points(config), len(classes))
    if ignored := config.ignored(simulated=parties is not None):
        log(logging.WARNING, "FlyNN: this run does not use the settings %s", ", ".join(ignored))
    if config.is_private:
        plan = private_plan(config, plan, config.min_available or parties or 1)
    if config.scaling == "auto" and not plan.needs_columns:
        log(logging.WARNING, "FlyNN: scaling auto does not scale as many as %s columns", plan.n_features)
    specs = foreseen(plan)
    hashes = "" if len(specs) == 1 else f"{len(specs)} hashes with "
    rows = f"{hashes}{specs[0].hash_dim} rows of {specs[0].row_nnz} entries and {len(classes)} classes"
    needs = {rows: sum(memory_needed(spec, len(classes)) for spec in specs)}
    if config.groups:
        held = min(config.groups, parties or config.groups)
        # Each once more at the bits of the trusted samples, at most all of them.
        needs[f"sums of {held} groups"] = 16 * len(classes) * specs[0].hash_dim * held
    if config.secure:
        entries = len(classes) * sum(spec.hash_dim for spec in specs)
        needs[f"a secure sum of {rows}"] = max(ENTRY_BYTES, 16 * (config.min_available or parties or 1)) * entries
    if config.refine_rounds:
        largest = sorted((spec.hash_dim for spec in specs), reverse=True)[: plan.most_members]
        n_weights = len(classes) * sum(largest)
        needs[f"the refinement of {n_weights} weights"] = BYTES_PER_WEIGHT * n_weights
    if config.gram:
        needed = memory_of_gram(config.gram, len(classes))
        if config.secure:  # two digits or more for each sum
            needed += max(ENTRY_BYTES, 16 * (config.min_available or parties or 1)) * config.gram**2
        needs[f"the Gram matrix of {config.gram} rows"] = needed
    if plan.needs_columns:
        floor = 1 if parties is None else config.min_examples  # of deployed parties it is not known
        most_bins = MOST_BINS if config.secure else most_bins
        needed = ColumnsRequest(plan.n_features, classes).memory_of_sum(plan.n_examples, most_bins, floor)
        needs = {f"the histograms of {plan.n_features} columns for {len(classes)} classes": needed} | needs
    for what, needed in needs.items():
        if (size := needed / 2**30) > config.memory_limit:
            raise config.refused("memory_limit", f"at most {config.memory_limit:g} GiB", f"{size:.2f} GiB for {what}")
    return plan, classes, feature_names


class _CarefulGrid:
    """A grid that gives up on replies after `timeout` seconds, 0 for never, and tells whose reply is none.

    Flower's workflows pass no timeout, an exception while they read one party's reply would end the run of all, and
    errors of parties lose their sender there.
    """

    def __init__(self, grid: Grid, timeout: float, secure: bool = False) -> None:
        self._grid = grid
        self._timeout = timeout or None
        self._secure = secure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        replies = self._grid.send_and_receive(messages, timeout=self._timeout if timeout is None else timeout)
        asked = {message.metadata.dst_node_id: message for message in messages}
        requests = {message.metadata.message_id: message for message in messages if message.metadata.message_id}
        return [each for reply in replies for each in self._readable(reply, asked, requests)]

    def _readable(self, reply: Message, asked: dict[int, Message], requests: dict[str, Message]) -> list[Message]:
        """A reply of which Flower's workflow can make a result: itself, or one of its sender that tells the failure."""
        request = asked.get(reply.metadata.src_node_id)
        if reply.has_error():
            # Those that the SuperLink makes up for a party that is gone do not name it, but their request.
            request = requests.get(reply.metadata.reply_to_message_id, request)
        if request is None:
            return [reply] if reply.has_error() else []
        trains = request.metadata.message_type == MessageType.TRAIN
        if trains and self._secure:
            return [reply]  # the protocol's own, of four kinds: see `flwr_flynn.flower.secagg_checks`
        try:
            if reply.has_error():
                reason = str(reply.error.reason)
            elif trains:
                compat.recorddict_to_fitres(reply.content, keep_input=True)
                return [reply]
            else:
                compat.recorddict_to_evaluateres(reply.content)
                return [reply]
        except Exception as error:  # noqa: BLE001 - whatever it is, it came with one party's reply
            reason = f"its reply cannot be read ({type(error).__name__})"
        status = Status(Code.FIT_NOT_IMPLEMENTED, reason)  # any code but OK
        if trains:
            content = compat.fitres_to_recorddict(FitRes(status, Parameters([], ""), 0, {}), False)
        else:
            content = compat.evaluateres_to_recorddict(EvaluateRes(status, 0.0, 0, {}))
        return [Message(content, reply_to=request)]


def _in_turns(strategy: message.FlyNNStrategy, grid: Grid, rounds: int, timeout: float, trouble: list[str]) -> None:
    """A run through the Message API, in which the model stands without figures, too."""
    try:
        strategy.start(grid, num_rounds=rounds, timeout=timeout)
    except Exception as error:
        if strategy.run.due is not EVALUATION or not strategy.run.is_enough:
            raise
        log(logging.ERROR, "FlyNN: the evaluation failed", exc_info=error)
        trouble.append(type(error).__name__)


def _keeping(trouble: list[str]) -> Workflow:
    """Flower's evaluation round, with its exceptions noted in `trouble`: the model stands without figures, too."""

    def evaluate(grid: Grid, context: Context) -> None:
        try:
            default_evaluate_workflow(grid, context)
        except Exception as error:  # noqa: BLE001
            log(logging.ERROR, "FlyNN: the evaluation failed", exc_info=error)
            trouble.append(type(error).__name__)

    return evaluate


def _write(path: Path, text: str) -> None:
    with writing(path) as stream:
        stream.write(text.encode())
