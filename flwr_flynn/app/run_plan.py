"""The plan of a run by its settings, and the strategy that runs it.

It has hashes, classes, noise and memory. In a simulation the server reads the data set
itself, for its shape and classes. In a deployment it sees no data: the run settings
have the number of features and the classes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.common.logger import log
from flwr.serverapp import Grid

from flwr_flynn._validation import listed
from flwr_flynn.app.data import datasets
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_noise import (
    SharedNoise,
    beside_noise,
    private_plan,
    run_mechanism,
)
from flwr_flynn.app.settings_parser import key_of
from flwr_flynn.errors import ConfigError, FlyNNError, full_text
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Scale
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.federated.roster import unknown
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.samples import Features
from flwr_flynn.federated.secure_bound import bound_for, check_room
from flwr_flynn.flower import message
from flwr_flynn.flower.records import is_simulated
from flwr_flynn.flower.strategy import FlyNNStrategy
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.model.column_sums import UNIT
from flwr_flynn.privacy import Mechanism
from flwr_flynn.tables.schema import Schema, read_schema
from flwr_flynn.tables.table import Table

NO_LIMIT = 10**9  # seconds: 30 years

_UNKNOWN = 64  # numbers of a row, where the schema is to be learned

OnPhase = Callable[[Run], object]

Strategy = FlyNNStrategy | message.FlyNNStrategy


class Data(NamedTuple):
    """Facts about the data of a new federation."""

    plan: HashPlan
    classes: list[str | int]
    features: Features | None  # names, or a schema
    learns: bool  # True if a schema is to be learned


@dataclass(frozen=True)
class RunPlan:
    """The strategy of a run, and the facts behind it."""

    config: RunConfig
    parties: int | None  # SuperNodes of a simulation; None in a deployment
    hashes: HashPlan | None  # None for a federation that exists
    strategy: Strategy
    beside_noise: str = ""  # the rarest class, where its counts get noise

    @property
    def shared(self) -> SharedNoise | None:
        """The sharing of one noise; None where no noise is shared."""
        mechanism = self.strategy.run.options.run_spec.mechanism
        return SharedNoise.of(mechanism, self.config.min_available or self.parties or 0)

    @property
    def notes(self) -> list[str]:
        """Assumptions of the guarantee and strength of the noise, in words."""
        return [str(note) for note in (self.shared, self.beside_noise) if note]


def plan_run(
    config: RunConfig, grid: Grid, saved: Federation | None, on_phase: OnPhase | None
) -> RunPlan:
    """The plan of a run, which goes on with a federation where one is saved.

    Errors in files, and in settings about them, are raised before parties are waited
    for.
    """
    if is_simulated(grid):
        datasets.simulated_dataset(config)
    parties = _simulated_parties(grid)
    hashes, strategy = _strategy(config, grid, parties, saved, on_phase)
    plan = RunPlan(config, parties, hashes, strategy)
    if hashes is None:
        return plan
    check_memory(plan)
    mechanism = strategy.run.options.run_spec.mechanism
    if mechanism is None:
        return plan
    said = beside_noise(config, hashes, mechanism, config.min_available or parties or 1)
    log(logging.INFO, "FlyNN: %s", said)
    return replace(plan, beside_noise=said)


def _strategy(
    config: RunConfig,
    grid: Grid,
    parties: int | None,
    saved: Federation | None,
    on_phase: OnPhase | None = None,
) -> tuple[HashPlan | None, Strategy]:
    """The plan of the hashes, and the strategy.

    The strategy is that of the Message API with `nodes-at-a-time`.
    """
    asked = config.min_available or parties or 0
    most = asked
    numbers = config.party_numbers()
    if numbers is not None:
        most = min(len(numbers), asked)
    plan = None
    if saved is None:
        plan, given = _options_of_new(config, parties, asked, most)
    else:
        given = _options_of_saved(config, parties, saved, most)
    if config.secure:
        given["secure_bound"] = _secure_bound(config, plan, given["mechanism"])
        check_room(asked, given["secure_bound"])
    is_noisy = given["mechanism"] is not None
    is_evaluated = config.evaluates(parties is not None, is_noisy)
    values = {
        "decay": config.decay_value(),
        "trees": config.trees_value(),
        "federation": saved,
    }
    make: Callable[..., Strategy] = partial(FlyNNStrategy, min_available_clients=asked)
    at_a_time = config.nodes_at_a_time
    if at_a_time:
        make = partial(
            message.FlyNNStrategy, min_available_nodes=asked, nodes_at_a_time=at_a_time
        )
    strategy = make(
        **{**config.options_of(RunOptions), **given, **values},
        on_phase=on_phase,
        purpose=config.action,
        identify=_identify(grid),
        max_examples_per_party=config.max_examples or None,
        fraction_evaluate=float(is_evaluated),
        distribute=parties is None,  # simulated parties keep no model
        wait_timeout=math.ceil(config.timeout) or NO_LIMIT,
    )
    return plan, strategy


def _options_of_new(
    config: RunConfig, parties: int | None, asked: int, most: int
) -> tuple[HashPlan, dict[str, Any]]:
    """The plan of the hashes, and options of the strategy for a new federation."""
    plan, classes, features, learns = training_plan(config, parties)
    spec = placeholder_specs(plan)[0]
    sums_columns = plan.scaling is not None and not (config.center or config.scale)
    mechanism = run_mechanism(config, spec, len(classes), asked, sums_columns)
    shared = SharedNoise.of(mechanism, asked)
    n_needed = most
    if config.min_parties:
        n_needed = config.min_parties
    elif shared is not None:
        n_needed = min(shared.n_needed, most)
    return plan, {
        "spec": plan,
        "classes": classes,
        "feature_names": features,
        "mechanism": mechanism,
        "learn_schema": learns,
        "ignore": config.names("ignore"),
        "keep": config.names("keep"),
        "min_parties": n_needed,
    }


def _options_of_saved(
    config: RunConfig, parties: int | None, saved: Federation, most: int
) -> dict[str, Any]:
    """Options of the strategy for a federation that exists."""
    if parties is None:
        _require(config)
    elif not PURPOSES[config.action].is_simulated:
        expected = "another in a simulation, whose samples do not change"
        raise config.refused("action", expected)
    n_needed = config.min_parties or 1
    if config.action == "resume":
        n_needed = config.min_parties or most
    rule = config.rule
    if rule == RunConfig.rule:
        rule = saved.shared.members[0].scoring.rule
    run = saved.run_spec
    return {
        "spec": run.specs,  # one for each member of the model
        "classes": run.classes,
        "feature_names": run.feature_names,
        "mechanism": run.mechanism,
        "class_weight": run.class_weight,
        "secure_bound": run.bound,
        "min_parties": n_needed,
        "rule": rule,
    }


def _secure_bound(
    config: RunConfig, plan: HashPlan | None, mechanism: Mechanism | None
) -> int:
    """Bound of the entries of a secure sum, with room for the noise."""
    most = config.max_examples
    if not most and plan is not None:
        most = plan.n_examples or 0
    if mechanism is not None:
        # Noise exceeds the largest count; beyond the bound it is clipped.
        of_sums = 0
        if mechanism.n_columns is not None:
            of_sums = UNIT * most + math.ceil(8 * mechanism.sums_sd)
        most = max(most + math.ceil(8 * mechanism.noise_sd), of_sums)
    return bound_for(most)


_ASKED = {
    "n_features": "n-features=30, or feature-names",
    "classes": 'classes="no,yes"',
    "min_available": "min-available=3",
    "n_examples": "n-examples=3000, rough and public",
    "ranges": 'ranges="0:120", one or one per feature and public',
}
"""Settings that a server which sees no data must be given, with an example of each."""


def _require(config: RunConfig, **needed: object) -> None:
    """Refuse a run for all settings together that are missing.

    They are the parties to wait for, and those `needed` beside.
    """
    settings = {"min_available": config.min_available, **needed}
    missing = [name for name in _ASKED if name in settings and not settings[name]]
    if missing:
        keys = ", ".join(map(key_of, missing))
        examples = "; ".join(_ASKED[name] for name in missing)
        expected = (
            f"a value in a deployment, whose server sees no data, such as {examples}"
        )
        raise ConfigError(f"run-config {keys}", expected, "missing")


def _identify(grid: Grid) -> Callable[[str], str]:
    """A function for the identity of a node in all runs.

    It is the SHA-256 of the node's public key, and "" without a key.
    """
    # Flower before 1.38 shows a ServerApp no keys.
    if not hasattr(grid, "get_nodes"):
        return unknown
    known: dict[str, str] = {}

    def identify(cid: str) -> str:
        if cid in known:
            return known[cid]
        for node in grid.get_nodes():
            identity = ""
            if node.public_key:
                identity = hashlib.sha256(node.public_key).hexdigest()
            known[str(node.node_id)] = identity
        return known.setdefault(cid, "")

    return identify


def _simulated_parties(grid: Grid) -> int | None:
    """The number of SuperNodes of a simulation, once it does not change any more.

    It is None in a deployment.
    """
    if not is_simulated(grid):
        return None
    before = -1
    now = 0
    while now == 0 or now != before:
        time.sleep(0.3)
        before = now
        now = len(list(grid.get_node_ids()))
    return now


# ---- a new federation


def training_plan(config: RunConfig, parties: int | None) -> Data:
    """The hashes, classes and features of a run that makes a new federation."""
    if parties is None:
        data = _announced(config)
    else:
        data = _simulated(config, parties)
    plan = data.plan
    schema = data.features
    if isinstance(schema, Schema) and plan.scaling is None and plan.ranges is None:
        ranges = schema.ranges
        if ranges is None:
            expected = (
                "low and high of each number, and no dates, where nothing is "
                f"learned of columns; without them: {listed(schema.without_range)}"
            )
            raise config.refused("schema", expected)
        plan = replace(plan, ranges=ranges)
    ignored = config.ignored(simulated=parties is not None)
    if ignored:
        log(
            logging.WARNING,
            "FlyNN: this run does not use the settings %s",
            ", ".join(ignored),
        )
    if config.is_private:
        plan = private_plan(config, plan, config.min_available or parties or 1)
    if config.scaling == "auto" and not plan.needs_columns:
        log(
            logging.WARNING,
            "FlyNN: scaling auto does not scale the columns: %s are too many",
            plan.n_features,
        )
    return data._replace(plan=plan)


def own_schema(config: RunConfig) -> Schema | None:
    """The schema of the run's setting, a file of the server's own; None without one."""
    if config.schema in ("", "learn"):
        return None
    try:
        return read_schema(Path(config.schema).expanduser())
    except FlyNNError as error:
        reason = full_text(error)
    except OSError as error:
        name = type(error).__name__
        reason = f"expected learn or the server's own schema.toml, got {name}"
    raise ConfigError("run-config schema", text=f"run-config schema: {reason}")


def _learns(config: RunConfig) -> bool:
    """True if columns may be learned of in clear."""
    return config.resolved().scaling == "auto" and not config.secure


def _n_numbers(schema: Schema | None, learns: bool, n_columns: int) -> int:
    """Numbers of a row."""
    if schema is not None:
        return schema.width
    if learns:
        return _UNKNOWN
    return n_columns


def _announced(config: RunConfig) -> Data:
    """The data of a deployment by its settings."""
    schema = own_schema(config)
    names = config.names("feature_names")
    n_columns = len(names) or config.n_features
    classes = config.class_list()
    if schema is not None and not classes:
        classes = list(schema.classes)
    is_described = schema is not None or n_columns
    learns = config.schema == "learn" or (not is_described and _learns(config))
    n_features = _n_numbers(schema, learns, n_columns)
    needed: dict[str, object] = {"n_features": n_features, "classes": classes}
    if config.is_private:
        needed["n_examples"] = config.n_examples
        needed["ranges"] = schema or config.ranges or config.center or config.scale
    _require(config, **needed)
    if config.noise != "opendp":
        raise ConfigError("run-config noise", "opendp in a deployment", config.noise)
    plan = config.plan(n_features, config.n_examples or None, len(classes))
    return Data(plan, classes, schema or names or None, learns)


def _simulated(config: RunConfig, parties: int) -> Data:
    """The data of a simulation by its data set."""
    for name in ("min_available", "min_parties"):
        if getattr(config, name) > parties:
            raise config.refused(name, f"at most the simulation's {parties} SuperNodes")
    dataset = datasets.simulated_dataset(config)
    schema = own_schema(config)
    # A partitioner that cannot deal is refused before the parties start.
    shares = datasets.simulated_shares(config, parties)
    numbers = config.party_numbers()
    sizes = sorted(
        int((~dataset.test[rows]).sum())
        for party, rows in enumerate(shares)
        if numbers is None or party in numbers
    )
    needed = sizes[: config.min_parties or len(sizes)]
    if 0 < config.max_examples < max(needed, default=0) and not config.is_private:
        expected = f"at least {max(needed)}, of the largest of {len(needed)} parties"
        raise config.refused("max_examples", expected)
    # Sizes follow from all training samples, never from a split of them: they are the
    # same in every federation.
    learns = config.schema == "learn"
    if schema is None and not learns:
        learns = bool(config.ignore or config.keep) or isinstance(dataset.X, Table)
    if learns and not _learns(config):
        expected = (
            "a schema.toml for categories, dates and gaps, where nothing is "
            "learned of the columns in clear"
        )
        raise config.refused("schema", expected, config.schema or "none")
    features = schema or dataset.feature_names
    if learns:
        features = None
    n_features = _n_numbers(schema, learns, dataset.X.shape[1])
    plan = config.plan(n_features, datasets.n_training(config), len(dataset.classes))
    return Data(plan, dataset.classes, features, learns)


# ---- memory


def memory_of(plan: RunPlan) -> dict[str, dict[str, float]]:
    """Bytes at the server, and at a party beside its samples, by their use.

    The memory at each must allow the largest of its numbers.
    """
    run = plan.strategy.run
    scale = Scale(plan.config.min_available or plan.parties or 1)
    if plan.parties is not None:
        X = datasets.simulated_dataset(plan.config).X
        n_values = None
        if isinstance(X, np.ndarray) and X.dtype in (np.bool_, np.uint8):
            n_values = 256
        scale = scale._replace(min_examples=plan.config.min_examples, n_values=n_values)
    server: dict[str, float] = {}
    party: dict[str, float] = {}
    for phase in run.phases:
        needs = phase.memory(run.options, scale)
        server |= needs.server
        party |= needs.party
    return {"server": server, "party": party}


def check_memory(plan: RunPlan) -> None:
    """Refuse a run that needs more memory at the server than the limit."""
    limit = plan.config.memory_limit
    what, needed = max(memory_of(plan)["server"].items(), key=lambda need: need[1])
    size = needed / 2**30
    if size > limit:
        raise plan.config.refused(
            "memory_limit", f"at most {limit:g} GiB", f"{size:.2f} GiB for {what}"
        )
