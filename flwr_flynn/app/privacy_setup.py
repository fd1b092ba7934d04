"""Sizes of the hash, mechanism and ledgers that follow from the settings of a private run.

A deployed party has a policy and a folder for its ledger in its own node config. A simulated party has neither: its
policy allows the run's request, and its ledger lies under the run's output folder.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from flwr_flynn.app.config import NodeConfig, RunConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.app.data.partition import held_out
from flwr_flynn.app.settings import as_setting
from flwr_flynn.errors import ConfigError, SpecError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import MECHANISMS, Mechanism, SimulatedRelease, suggest_spec
from flwr_flynn.privacy.ledger import Budget, Policy

_LOG = logging.getLogger("flwr")  # Flower's own


def private_plan(config: RunConfig, plan: HashPlan, n_parties: int) -> HashPlan:
    """The plan with the sizes that the noise calls for; those that are given stay."""
    if not plan.n_examples:
        raise config.refused("n_examples", "a rough and public number with epsilon", "missing")
    try:
        spec = suggest_spec(
            config.epsilon,
            config.delta,
            plan.n_features,
            plan.n_examples,
            plan.n_classes,
            1 if config.secure else n_parties,
            neighbours=config.neighbours,
            records_per_person=config.records_per_person,
            hash_dim=plan.hash_dim,
            row_nnz=plan.row_nnz,
            hash_nnz=plan.hash_nnz,
        )
    except (SpecError, ConfigError) as error:
        raise as_setting(error, "run-config") from None
    # Rows over rank codes have fewer entries than those over the columns, which `suggest_spec` is about.
    row_nnz = spec.row_nnz if plan.ranges is None else plan.row_nnz
    return replace(plan, hash_dim=spec.hash_dim, row_nnz=row_nnz, hash_nnz=spec.hash_nnz)


def run_mechanism(config: RunConfig, spec: HashSpec, n_classes: int, n_parties: int) -> Mechanism | None:
    """The mechanism by which the parties of this run make noisy counts; None for exact counts."""
    if not config.is_private:
        return None
    kind = config.mechanism_kind
    parameters = {"neighbours": config.neighbours, "records_per_person": config.records_per_person}
    own: dict[str, object] = {"delta": config.delta} if kind == "gaussian" else {}
    if config.secure:
        # As many as are certain to be in a sum: SecAgg+ unmasks none of fewer.
        most = max(2, round(config.secure_threshold * n_parties))
        if config.honest_parties > most:
            raise config.refused("honest_parties", f"at most {most}, secure-threshold of {n_parties} parties")
        # With enough parties, one may tell the server its noise: that of the others must still be enough.
        own["n_honest"] = n_honest = config.honest_parties or max(2, most - 1)
        _LOG.log(
            logging.INFO if n_honest < most else logging.WARNING,
            "FlyNN: parties share one noise: that of any %s of them is enough, at least %s are in the sum: %s",
            n_honest,
            most,
            f"{most - n_honest} of them may tell theirs" if n_honest < most else "NONE OF THEM MAY TELL ITS OWN",
        )
    if kind == "top-t":
        own = {"n_released": config.n_released}
    try:
        mechanism = MECHANISMS[kind].for_spec(spec, n_classes, config.epsilon, **parameters, **own)
    except ConfigError as error:
        raise as_setting(error, "run-config") from None
    return SimulatedRelease(mechanism, config.seed) if config.noise == "seeded" else mechanism


def training_points(config: RunConfig) -> int:
    """Number of samples of a simulation's data set that are not held out."""
    n_points = len(datasets.simulated_dataset(config).y)
    return n_points - int(held_out(n_points, config.test_fraction, config.split_seed).sum())


def own_budget(node: NodeConfig) -> Budget | None:
    """A deployed party's ledger, with its policy; None for one that gives no private counts."""
    if not node.max_epsilon:
        return None
    return Budget(node.state_path, node.policy(), data_path=os.path.expanduser(node.data_path))


def simulated_budget(config: RunConfig, run_id: int, party: int) -> Budget | None:
    """A simulated party's ledger, with a policy that allows the run's request once; None without `epsilon`."""
    if not config.is_private:
        return None
    kind = SimulatedRelease.kind if config.noise == "seeded" else config.mechanism_kind
    policy = Policy(config.epsilon, config.delta, [kind], config.neighbours, config.records_per_person, config.secure)
    # A party's process may have a working directory of its own, so that a relative folder would not be the server's.
    folder = Path(config.output_dir).expanduser()
    folder = folder if folder.is_absolute() else default_folder(run_id)
    return Budget(folder / "state" / str(run_id) / f"party-{party}", policy)


def default_folder(run_id: int) -> Path:
    """The folder of a run's output if none is given."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return Path(home) / "flynn" / str(run_id)
