"""The ServerApp that `flwr run` starts: wait for the parties, add their counts, evaluate, save, report.

In a simulation the server loads the data set itself, to know its shape and classes and to train on the pooled
data for comparison. In a deployment it sees no data: the run config names the number of features and the
classes.

Nothing of Flower runs after the last round, so the app does it by hand: it runs Flower's `DefaultWorkflow`,
then asks the strategy for its model, which raises when too few parties were counted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message, MessageType
from flwr.common.logger import log
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.compat.server.typing import Workflow
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.server.workflow.default_workflows import default_evaluate_workflow
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import InMemoryGrid

import flwr_flynn
from flwr_flynn import data
from flwr_flynn.choice import Plan, select
from flwr_flynn.config import RunConfig
from flwr_flynn.counts import ClassCounts, memory_needed
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.federation import Federation, exclusive
from flwr_flynn.federation import summary as federation_summary
from flwr_flynn.hashing import flynn_hash
from flwr_flynn.mechanisms import shown_bound
from flwr_flynn.moments import ColumnSums
from flwr_flynn.privacy import Mechanism
from flwr_flynn.private_run import default_folder, private_plan, run_mechanism, training_points
from flwr_flynn.rounds import foreseen
from flwr_flynn.secagg import bound_for, check_room, workflow
from flwr_flynn.spec import HashSpec
from flwr_flynn.strategy import FlyNNStrategy
from flwr_flynn.terms import SumsTerms

_ENDLESS = 10**9  # seconds: 30 years

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation and leave `model.npz` and `metrics.json` in the output folder."""
    logging.getLogger("flwr").addFilter(_one_line)
    start = time.monotonic()
    config = RunConfig.parse(context.run_config).resolved()
    folder = _output_folder(config, context.run_id)
    kept = Path(config.federation).expanduser().resolve() if config.federation else folder / "federation.npz"
    with exclusive(kept):
        # Beside model.npz, which a run into the same folder replaces, it is replaced, too.
        if config.action == "train" and config.federation and kept.exists():
            raise ConfigError(f"run-config federation: expected none yet, got one: {kept} (action = join adds to it)")
        _run(grid, context, config, folder, kept, start)


def _run(grid: Grid, context: Context, config: RunConfig, folder: Path, kept: Path, start: float) -> None:
    parties = _simulated_parties(grid)
    before = None if config.action == "train" else Federation.load(kept, int(config.memory_limit * 2**30))
    plan, strategy = _strategy(grid, config, parties, before)
    rounds = _rounds(config, plan, strategy)
    legacy = LegacyContext(context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    trouble: list[str] = []
    counting = {}
    if config.secure:
        bound = strategy.secure_bound
        assert bound is not None
        counting = {"fit_workflow": workflow(bound, config.secure_threshold, config.timeout)}
    together = DefaultWorkflow(**counting, evaluate_workflow=_keeping(trouble))
    together(cast(Grid, _CarefulGrid(grid, config.timeout, config.secure)), legacy)

    # AggregationError where fewer parties than asked for were counted. Saved first: all else can be had again from it.
    after = strategy.federation(run=str(context.run_id))
    if config.action != "evaluate":
        after.save(kept)
    strategy.model.save(folder / "model.npz")
    report = _report(config, strategy, plan, parties, after)
    report["evaluation_trouble"] = trouble
    report["run"] = {"run_id": str(context.run_id), "seconds": round(time.monotonic() - start, 3)}
    _write(folder / "metrics.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    print(_table(report, folder), flush=True)
    unequal = [name for name in _EQUALITIES if report["sha256"].get(name) is False]
    if unequal:
        raise FlyNNError(
            f"every party is counted, but the model is not the one trained on the pooled data ({', '.join(unequal)})"
        )


_EQUALITIES = {
    "equal": "  equal",
    "sums_equal": "  sums of the columns equal",
    "choice_equal": "  choice equal",
}
"""What is compared with the pooled data, and how the table calls it."""


def _strategy(
    grid: Grid, config: RunConfig, parties: int | None, before: Federation | None
) -> tuple[Plan | None, FlyNNStrategy]:
    """The run's plan, where it makes a new federation, and its strategy."""
    asked = config.min_available or parties or 0
    chosen = config.party_numbers()
    most = asked if chosen is None else min(len(chosen), asked)
    given: dict[str, Any]
    if before is None:
        plan, classes, feature_names = _what_to_train(config, parties)
        mechanism = run_mechanism(config, foreseen(plan)[0], len(classes), asked)
        needed = config.min_parties or most
        given = {"spec": plan, "classes": classes, "feature_names": feature_names, "mechanism": mechanism}
    else:
        if parties is None:
            _require_min_available(config)
        plan, needed = None, config.min_parties or 1
        names = ("spec", "classes", "feature_names", "mechanism")
        given = {name: getattr(before.terms, name) for name in names} | {"federation": before}
    bound = None if before is None else before.terms.bound
    if config.secure:
        # Noise reaches beyond the largest count; what is beyond the bound is clipped.
        noise = 0 if given.get("mechanism") is None else math.ceil(8 * given["mechanism"].noise_sd)
        bound = bound_for(config.max_examples + noise)
        check_room(asked, bound)
    strategy = FlyNNStrategy(
        **given,
        secure_bound=bound,
        purpose=config.action,
        identify=_identify(grid),
        min_available_clients=asked,
        min_parties=needed,
        max_examples_per_party=config.max_examples or None,
        decay=config.decay_value() if before is None or config.decay != RunConfig.decay else before.decay,
        rule=config.rule if before is None or config.rule != RunConfig.rule else before.rule,
        min_examples=config.min_examples,
        fraction_evaluate=float(config.evaluates(simulated=parties is not None)),
        hand_out=parties is None,  # simulated parties keep no model
        wait_timeout=math.ceil(config.timeout) or _ENDLESS,
    )
    return plan, strategy


def _require_min_available(config: RunConfig) -> None:
    if not config.min_available:
        raise ConfigError("run-config min-available: how many parties to wait for must be given in a deployment")


def _identify(grid: Grid) -> Callable[[str], str]:
    """What tells a node in another run: the SHA-256 of its SuperNode's public key; "" for one that has none."""
    known: dict[str, str] = {}

    def identify(cid: str) -> str:
        if cid not in known:
            known.update(
                (str(node.node_id), hashlib.sha256(node.public_key).hexdigest() if node.public_key else "")
                for node in grid.get_nodes()
            )
        return known.setdefault(cid, "")

    return identify


def _rounds(config: RunConfig, plan: Plan | None, strategy: FlyNNStrategy) -> int:
    """How many rounds the run takes, which must do for the counting."""
    least = 1 + (plan is not None and plan.needs_sums)
    if 0 < config.rounds < least:
        raise ConfigError(
            f"run-config rounds: expected at least {least} with scaling = {config.scaling}, got {config.rounds}"
        )
    return config.rounds or strategy.num_rounds


def _one_line(record: logging.LogRecord) -> bool:
    """Flower logs an app's exception with its traceback; those raised on purpose here say it in one line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FlyNNError | MemoryError):
        record.msg, record.args, record.exc_info = f"{type(error).__name__}: {data.full_text(error)}", (), None
    return True


def _output_folder(config: RunConfig, run_id: int) -> Path:
    """Make the output folder before the work starts, so that a bad path costs nobody a round."""
    folder = Path(config.output_dir) if config.output_dir else default_folder(run_id)
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


def _what_to_train(config: RunConfig, parties: int | None) -> tuple[Plan, list[str | int], tuple[str, ...] | None]:
    """The plan, the class list and the feature names of a run."""
    classes: list[str | int]
    if parties is None:
        classes, feature_names = config.class_list(), config.feature_list() or None
        n_features = len(feature_names or ()) or config.n_features
        for key, given in (("n-features", n_features), ("classes", classes)):
            if not given:
                raise ConfigError(f"run-config {key}: a deployment's server sees no data, so it must be given")
        _require_min_available(config)
        if ignored := config.simulation_only():
            log(logging.WARNING, "FlyNN: a deployment does not use the settings %s", ", ".join(ignored))
        if config.noise != "opendp":
            raise ConfigError(f"run-config noise: expected opendp in a deployment, got {config.noise}, for simulations")
        plan = config.plan(n_features, config.n_examples or None, len(classes))
    else:
        for key, given in (("min-available", config.min_available), ("min-parties", config.min_parties)):
            if given > parties:
                raise ConfigError(
                    f"run-config {key}: expected at most the simulation's {parties} SuperNodes, got {given}"
                )
        if ignored := config.deployment_only():
            log(logging.WARNING, "FlyNN: a simulation does not use the settings %s", ", ".join(ignored))
        dataset = data.simulated_dataset(config)
        data.simulated_shares(config, parties)  # a partitioner that cannot do it is known before the parties start
        classes, feature_names = dataset.classes, dataset.feature_names
        # Sizes follow from the whole data set, never from a split of it: they are the same in every federation.
        plan = config.plan(dataset.X.shape[1], len(dataset.y), len(classes))
    if config.is_private:
        n_examples = plan.n_examples if parties is None else training_points(config)
        plan = private_plan(config, replace(plan, n_examples=n_examples), config.min_available or parties or 1)
    if config.scaling == "auto" and not plan.needs_sums:
        log(logging.WARNING, "FlyNN: scaling auto leaves %s columns as they are, that many", plan.n_features)
    specs = foreseen(plan)
    if plan.needs_sums:
        sums = SumsTerms(plan.n_features, classes, plan.needs_classes, config.min_examples).memory_needed / 2**30
        if sums > config.memory_limit:
            raise ConfigError(
                f"run-config memory-limit: the sums of {plan.n_features} columns for {len(classes)} classes need about "
                f"{sums:.2f} GiB, {config.memory_limit:g} are allowed"
            )
    needed = sum(memory_needed(spec, len(classes)) for spec in specs) / 2**30
    if needed > config.memory_limit:
        hashes = "" if len(specs) == 1 else f"{len(specs)} hashes with "
        raise ConfigError(
            f"run-config memory-limit: {hashes}{specs[0].hash_dim} rows of {specs[0].row_nnz} entries and "
            f"{len(classes)} classes need about {needed:.2f} GiB, {config.memory_limit:g} are allowed"
        )
    return plan, classes, feature_names


class _CarefulGrid:
    """A grid that gives up on replies after `timeout` seconds, 0 for never, and drops those that Flower cannot read.

    Flower's workflows pass no timeout, and an exception while they read one party's reply would end the run of all.
    """

    def __init__(self, grid: Grid, timeout: float, secure: bool = False) -> None:
        self._grid = grid
        self._timeout = timeout or None
        self._secure = secure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        asked = {message.metadata.dst_node_id: message.metadata.message_type for message in messages}
        replies = self._grid.send_and_receive(messages, timeout=self._timeout if timeout is None else timeout)
        return [reply for reply in replies if _is_readable(reply, asked, self._secure)]


def _is_readable(reply: Message, asked: dict[int, str], secure: bool) -> bool:
    """Whether Flower's workflow can make a result of a reply; the strategy reports its sender as missing if not."""
    node = reply.metadata.src_node_id
    try:
        if reply.has_content():
            if asked[node] == MessageType.TRAIN and secure:
                reply.content.config_records[RECORD_KEY_CONFIGS]  # the protocol's own, of four kinds
            elif asked[node] == MessageType.TRAIN:
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


def _report(
    config: RunConfig, strategy: FlyNNStrategy, plan: Plan | None, parties: int | None, after: Federation
) -> dict[str, Any]:
    """Everything that the run has to tell, as it stands in metrics.json."""
    counts = strategy.counts
    model, choice, sums = strategy.model, strategy.choice, strategy.sums
    settings = {name: default for name, default, _ in RunConfig.table()}
    settings = {key: getattr(config, key.replace("-", "_")) for key in settings}
    mechanism = strategy.mechanism
    report: dict[str, Any] = {
        "format": 1,
        "parties": [asdict(party) for party in strategy.parties],
        "missing": dict(strategy.missing),
        "examples": None if counts.noise else int(counts.n_examples),
        "privacy": None if mechanism is None else _privacy(strategy, mechanism),
        "evaluates": strategy.fraction_evaluate > 0,
        "evaluation": strategy.evaluation,
        "evaluation_missing": dict(strategy.evaluation_missing),
        "unkept": dict(strategy.unkept),
        "sha256": {"federated": counts.sha256()},
        "spec": model.spec_.to_dict(),
        "fingerprint": counts.spec_fingerprint,
        "action": config.action,
        "federation": federation_summary(after),
        "scaling": _scaling(config, plan, model.spec_),
        "sums": None if sums is None else {"examples": sums.n_examples, "missing": dict(strategy.sums_missing)},
        "specs": [_in_short(spec) for spec in strategy.specs],
        "choice": None if choice is None else choice.to_dict(),
        "traffic": {
            name: {"parties": traffic.replied, **traffic.per_party} for name, traffic in strategy.traffic.items()
        },
        "classes": list(model.classes_.tolist()),
        "decay": float(model.decay_),
        "temperature": float(model.temperature_),
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
        if config.check_pooled and mechanism is None:
            report["sha256"] |= _compared(config, strategy, plan, parties, after)
    return report


def _privacy(strategy: FlyNNStrategy, mechanism: Mechanism) -> dict[str, Any]:
    """What is promised, and about how many points there are by what was released."""
    epsilon = mechanism.epsilon(mechanism.delta)
    return {
        "guarantee": strategy.guarantee,
        "mechanism": mechanism.to_dict(),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": mechanism.delta,
        "noise_sd": mechanism.noise_sd,
        "examples_estimate": None if strategy.counts.n_per_class is None else int(strategy.counts.n_examples),
        "covers_evaluation": not strategy.fraction_evaluate,
    }


def _in_short(spec: HashSpec) -> dict[str, Any]:
    """A spec without the vectors of as many numbers as there are columns."""
    values = spec.to_dict()
    return {name: value is not None if name in ("center", "scale") else value for name, value in values.items()}


def _in_the_counts(config: RunConfig, parties: int, after: Federation) -> list[int] | None:
    """Numbers of the simulated parties in the counts; None for all."""
    if config.action == "train" and not config.parties:
        return None
    numbers = {f"party-{party}": party for party in range(parties)}
    return [numbers[member.name] for member in after.members if member.name in numbers]


def _scaling(config: RunConfig, plan: Plan | None, spec: HashSpec) -> str:
    if plan is not None and plan.needs_sums:
        return config.scaling
    return "none" if spec.center is None and spec.scale is None else "given"


def _compared(
    config: RunConfig, strategy: FlyNNStrategy, plan: Plan | None, parties: int, after: Federation
) -> dict[str, Any]:
    """What the union of what the parties in the counts were dealt leads to, as if one held it; None: not comparable."""
    X, codes, n_classes = data.pooled_training(config, parties, _in_the_counts(config, parties, after))
    spec, choice, sums = strategy.model.spec_, strategy.choice, strategy.sums
    chosen = config.party_numbers()
    wanted = parties if chosen is None else len(chosen)
    # Counts of some of those who were to be counted cannot be the pooled ones.
    complete = config.action != "train" or len(strategy.parties) == wanted
    compared: dict[str, Any] = {}
    pooled = None
    if sums is not None:
        compared["sums_equal"] = None
        if plan is not None and sums.n_examples == len(codes):  # no class was left out at any party
            rows = n_classes if plan.needs_classes else 1
            compared["sums_equal"] = sums == ColumnSums.from_data(X, codes if plan.needs_classes else 0 * codes, rows)
    if choice is not None:
        compared["choice_equal"] = None
        if complete and choice.accuracies and not choice.missing:
            best = select(strategy.specs, X, codes, n_classes, config.rule, config.decay_value(), n_jobs=-1)
            compared["choice_equal"] = (best.spec, *best.readout) == (spec, choice.rule, choice.decay)
            pooled = best.counts if best.spec == spec else None
    pooled = pooled or ClassCounts.from_data(flynn_hash(spec), X, codes, n_classes, n_jobs=-1)
    equal = pooled.sha256() == strategy.counts.sha256() if complete else None
    return {"pooled": pooled.sha256(), "equal": equal, **compared}


def _table(report: dict[str, Any], folder: Path) -> str:
    """The report's short form, for the end of the run's log."""
    parties, evaluation, sha = report["parties"], report["evaluation"], report["sha256"]
    simulation, silent = report.get("simulation"), report["evaluation_missing"]
    asked = simulation["parties"] if simulation else len(parties) + len(report["missing"])
    sizes = [party["bytes"] for party in parties]
    rows = []
    if done := _DONE[report["action"]]:
        rows.append((f"parties {done}", f"{len(parties)} of {asked}"))
        rows += [(f"  not {done}: {name}", reason) for name, reason in report["missing"].items()]
    if report["action"] != "train":
        rows.append(("parties in all", f"{len(report['federation'])}"))
    rows.append(("training examples", _examples(report)))
    if simulation:
        handed_out, points = simulation["handed_out"], simulation["points"]
        rows.append(("  points dealt out", f"{handed_out} of {points}; those not trained on are held out"))
        if simulation["empty_parties"]:
            rows.append(("  parties with no points", f"{simulation['empty_parties']}"))
    rows += _hash_rows(report)
    rows += _privacy_rows(report)
    if sizes:
        upload = f"{_bytes(sum(sizes) / len(sizes))} on average, {_bytes(max(sizes))} at most"
        rows.append(("upload per party", upload))
    for name, each in report["traffic"].items():
        called = _STEPS[name]
        rows.append((f"  {called}", f"{_bytes(each['up'])} up, {_bytes(each['down'])} down"))
    if choice := report["choice"]:
        extra = choice["cost"]["extra_specs"]
        if extra["up"]:
            rows.append(("  of which specs not chosen", f"{_bytes(extra['up'])} up, {_bytes(extra['down'])} down"))
    if evaluation:
        rows += [(name, f"{evaluation[key]:.4f}") for name, key in _SCORES]
        worst = evaluation["worst_party"]
        seen = f"{worst['accuracy']:.4f} ({worst['name']}, {worst['examples']} held-out points)"
        rows.append(("worst party", seen))
    elif trouble := report["evaluation_trouble"]:
        rows.append(("evaluation", f"failed with {', '.join(dict.fromkeys(trouble))}"))
    elif not report["evaluates"]:
        rows.append(("evaluation", "none: no results leave the parties"))
    elif silent:
        rows.append(("evaluation", f"failed at {len(silent)} parties"))
    else:
        rows.append(("evaluation", "none: no party holds test points"))
    missed = "not evaluated" if report["evaluates"] else "has no model"
    rows += [(f"  {missed}: {name}", reason) for name, reason in silent.items()]
    rows += [(f"  could not keep the model: {name}", reason) for name, reason in report["unkept"].items()]
    rows.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        rows.append(("  trained on pooled data", sha["pooled"]))
        unknown = {"equal": f"n/a, {len(report['missing'])} missing"}
        for name, called in _EQUALITIES.items():
            if name in sha:
                answers = {True: "yes", False: "NO", None: unknown.get(name, "n/a, some points had no say")}
                rows.append((called, answers[sha[name]]))
    if report["privacy"] and simulation:
        rows.append((_EQUALITIES["equal"], "n/a, noisy"))
    rows.append(("output folder", str(folder)))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    if report["privacy"]:
        lines += ["", *textwrap.wrap(report["privacy"]["guarantee"], 110, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(["", "FlyNN", *lines, ""])


def _examples(report: dict[str, Any]) -> str:
    if not report["privacy"]:
        return f"{report['examples']}"
    estimate = report["privacy"]["examples_estimate"]
    return "hidden" if estimate is None else f"hidden, about {estimate} by the noisy counts"


def _privacy_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    privacy = report["privacy"]
    if not privacy:
        return []
    promise = "NONE: seeded noise, for simulations"
    if privacy["epsilon"] is not None:
        promise = f"epsilon {shown_bound(privacy['epsilon'])}, delta {shown_bound(privacy['delta'])}"
    rows = [("privacy", f"{promise}; noise of standard deviation {privacy['noise_sd']:.4g} at each party")]
    if report["evaluation"]:
        rows.append(("  not covered", "the confusion matrices that make the figures below"))
    return rows


_DONE = {"train": "counted", "join": "joined", "withdraw": "taken out", "evaluate": ""}
"""What a run does with the parties that its counting is for."""

_STEPS = {
    "sums": "sums of the columns",
    "counts": "counts",
    "choice": "choice",
    "model": "model and evaluation",
}


def _hash_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What was learned of the columns and chosen among the hashes."""
    rows, sums, choice = [], report["sums"], report["choice"]
    if sums is not None:
        rows.append(("scaling", f"{report['scaling']}, from sums of the columns of {sums['examples']} examples"))
        rows += [(f"  no sums: {name}", reason) for name, reason in sums["missing"].items()]
    if choice is None:
        return rows
    if not choice["accuracies"]:
        return [*rows, ("choice", "none: no party with points replied; the first spec, and a suggested decay")]
    if len(report["specs"]) > 1:
        best = [f"{max(each):.4f}" for each in choice["accuracies"]]
        rows.append(("hash", f"number {choice['spec'] + 1} of {len(best)}, leave-one-out {', '.join(best)}"))
    compared = f"{len(choice['candidates'][choice['spec']])} compared on {choice['examples']} examples"
    rows.append(("decay", f"{choice['decay']:.4g}, leave-one-out {choice['accuracy']:.4f}, {compared}"))
    rows += [(f"  no say: {name}", reason) for name, reason in choice["missing"].items()]
    return rows


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
