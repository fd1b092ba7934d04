"""The report of a run: the content of metrics.json.

In a simulation the results are computed from the pooled data, too, and compared bit for
bit.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from flwr_flynn import __version__
from flwr_flynn._types import Array, Integers
from flwr_flynn._validation import listed
from flwr_flynn.app.answers import importance_of
from flwr_flynn.app.columns_by_site import far_apart, table_one
from flwr_flynn.app.data import datasets
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.event import event_facts, event_of
from flwr_flynn.federated.federation_file import Federation, roster_rows
from flwr_flynn.federated.gram_fields import stay
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import basis_of, federation_of, linear_sums
from flwr_flynn.federated.phases.counts import no_counts
from flwr_flynn.federated.phases.trees import TreesRequest
from flwr_flynn.federated.plan import every_phase
from flwr_flynn.federated.protocol import PHASE, Answer, Entries
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.samples import Samples
from flwr_flynn.flower.strategy import BaseStrategy
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember, counts_sha256
from flwr_flynn.privacy import Mechanism
from flwr_flynn.tables.remarks import quoted
from flwr_flynn.tables.table import Table

_MOST_LISTED = 1000  # parties whose class sizes are in the report


def run_metrics(run_plan: RunPlan, after: Federation) -> dict[str, Any]:
    """The content of metrics.json; `after` is the federation after the run."""
    config = run_plan.config
    strategy = run_plan.strategy
    counts = strategy.counts
    run = strategy.run
    run_spec = run.state.run_spec
    model = strategy.model
    members = model.model_.members
    digests = {"model": model.model_.sha256(), "federated": counts_sha256(members)}
    sections = [
        phase.report(run.state, run.options) for phase in every_phase(run.options)
    ]
    table = None
    if config.table_one:
        event = event_of(run.state, run.options)
        table = table_one(run.state, strategy.parties, event)
    report = {
        "format": 3,
        "parties": [_party(member) for member in strategy.parties],
        "missing": dict(strategy.missing),
        "absent": absences(run),
        "examples": None if counts.noise else int(counts.n_examples),
        "privacy": _privacy(strategy, run_spec.mechanism, run_plan.notes),
        "event": event_facts(run.state, run.options),
        "table_one": table,
        "sha256": digests,
        "members": [_member(member) for member in members],
        "updates": _updates(run),
        "action": config.action,
        "federation": roster_rows(after),
        "scaling": _scaling(run_plan, members[0].spec),
        "specs": [_in_short(spec) for spec in run_spec.specs],
        "traffic": {
            name: {"parties": traffic.arrivals.parties, **traffic.per_party}
            for name, traffic in run.traffic.items()
        },
        "messages": {
            name: {
                "kind": traffic.kind,
                "sentence": traffic.sentence,
                **traffic.arrivals.to_dict(),
            }
            for name, traffic in run.traffic.items()
        },
        "class_sizes": class_sizes(run),
        "class_totals": None if counts.noise else [*map(int, counts.n_per_class)],
        "classes": list(model.classes_.tolist()),
        "rule": model.rule,
        "importance": importance_of(model.model_),
        "settings": {row.key: getattr(config, row.name) for row in RunConfig.rows()},
        "versions": _versions(),
    }
    facts: dict[str, str] = {}
    for section in sections:
        report |= section.entries
        facts |= section.facts
    if table is not None:
        remarks = far_apart(table)
        schema: Any = report["schema"]
        schema["remarks"] += [remark.to_dict() for remark in remarks]
        schema["n_remarks"] += len(remarks)
        for remark in remarks:
            name = f"  {listed([*remark.parties])}: {remark.column}"
            facts[name] = f"{remark.what} --set {quoted(remark.mends()[0])}"
    report["facts"] = facts
    parties = run_plan.parties
    if parties is not None:
        report["simulation"] = _simulation(config, parties)
        if config.check_pooled and run_spec.mechanism is None:
            report["sha256"] = {**digests, **compared(run_plan, parties, after)}
    return report


def _party(member: Member) -> dict[str, object]:
    return {
        "name": str(member),
        "cid": member.node,
        "examples": member.examples,
        "bytes": member.bytes,
        "seconds": member.seconds,
    }


def _updates(run: Run) -> list[dict[str, object]]:
    """Members whose counts were replaced or taken out, and their digests."""
    return [
        {"party": str(member), **member.change}
        for member in run.counted.counted
        if member.change is not None
    ]


def _scaling(run_plan: RunPlan, spec: HashSpec) -> str:
    """The scaling of the features, as the setting of it is spelled, or "given"."""
    plan = run_plan.hashes
    if plan is not None and plan.needs_columns:
        return run_plan.config.scaling
    if spec.center is None and spec.scale is None:
        return "none"
    return "given"


def _versions() -> dict[str, str]:
    names = ("flwr", "numpy", "scipy", "numba", "scikit-learn")
    own = {"flwr-flynn": __version__, "python": platform.python_version()}
    return {name: version(name) for name in names} | own


def _simulation(config: RunConfig, parties: int) -> dict[str, int]:
    """Numbers of parties and of samples of a simulation."""
    sizes = [*map(len, datasets.simulated_shares(config, parties))]
    return {
        "parties": parties,
        "samples": len(datasets.simulated_dataset(config).y),
        "dealt": sum(sizes),
        "empty_parties": sizes.count(0),
    }


def class_sizes(run: Run) -> dict[str, list[int]] | None:
    """Training samples of each class at each counted party.

    None where they are hidden, or of very many parties.
    """
    counted = run.counted.counted
    if len(counted) > _MOST_LISTED or not run.state.run_spec.is_plain:
        return None
    return {
        str(member): list(member.sizes)
        for member in counted
        if member.sizes is not None
    }


def absences(run: Run) -> dict[str, dict[str, str]]:
    """Reasons of counted parties that were left out of other phases, by phase.

    A party that is left out of a phase is not told of again in those that follow it,
    such as levels of trees. One without a copy of the model is left out of "saving the
    model".
    """
    missing = run.state.missing
    steps = {name: {**reasons} for name, reasons in missing.items()}
    for phase in run.phases:
        before = missing.get(phase.follows)
        if before and phase.name in steps:
            steps[phase.follows] = {
                name: f"{reason}; not asked again"
                for name, reason in steps[phase.follows].items()
            }
            for name in before:
                steps[phase.name].pop(name, None)
    evaluation = run.state.results.get("evaluation")
    if evaluation is not None:
        steps["saving the model"] = evaluation.unkept
    steps.pop("counts", None)
    return {name: reasons for name, reasons in steps.items() if reasons}


def _member(member: ModelMember) -> dict[str, object]:
    return {
        **_in_short(member.spec),
        "spec": member.spec.to_dict(),
        "fingerprint": member.counts.spec_fingerprint,
        "weight": member.weight,
        "decay": member.scoring.decay,
        "temperature": member.temperature,
    }


def _privacy(
    strategy: BaseStrategy, mechanism: Mechanism | None, notes: list[str]
) -> dict[str, object] | None:
    """The guarantee of a mechanism, and an estimate of the number of samples.

    None without a mechanism. The estimate is from the noisy counts.
    """
    if mechanism is None:
        return None
    counts = strategy.counts
    epsilon = mechanism.epsilon(mechanism.delta)
    return {
        "guarantee": mechanism.guarantee(),
        "notes": notes,
        "mechanism": mechanism.to_dict(),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": mechanism.delta,
        "noise_sd": mechanism.noise_sd,
        "examples_estimate": None
        if counts.n_per_class is None
        else int(counts.n_examples),
    }


def _in_short(spec: HashSpec) -> dict[str, object]:
    """A spec with True or False instead of its vectors of a value for each column."""
    parameters: dict[str, object] = spec.to_dict()
    for name in ("center", "scale", "edges", "row_weights"):
        if name in parameters:
            parameters[name] = parameters[name] is not None
    return parameters


# ---- comparison with the pooled data


def compared(
    run_plan: RunPlan, parties: int, after: Federation
) -> dict[str, str | bool | None]:
    """Digest of the counts of the pooled samples, and equality of counts and model.

    Equality is None where the two cannot be compared.
    """
    config = run_plan.config
    strategy = run_plan.strategy
    model = strategy.model.model_
    numbers = config.party_numbers()
    is_training = config.action == "train"
    rows = datasets.training_rows(config, parties)
    n_asked = parties
    if numbers is not None:
        n_asked = len(numbers)
    if not is_training or numbers is not None:
        names = {member.name for member in after.members}
        rows = [own for party, own in enumerate(rows) if f"party-{party}" in names]
    X, codes = datasets.pooled_training(config, rows)
    pooled = counts_sha256(_pooled_members(model, X, codes))
    # Counts of some of the parties cannot be the pooled counts.
    is_complete = not is_training or len(strategy.parties) == n_asked
    is_equal = None
    if is_complete:
        is_equal = pooled == counts_sha256(model.members)
    digests = {"pooled": pooled, "equal": is_equal}
    if not is_training:
        return digests
    if not is_complete or _leaves_out_samples(strategy):
        return {**digests, "model_equal": None}
    pool = _pooled_parties(run_plan, rows)
    again = federate(_pooled_options(run_plan), pool).model.model_
    return {**digests, "model_equal": again.sha256() == model.sha256()}


def _pooled_parties(run_plan: RunPlan, rows: Sequence[Integers]) -> list[Party]:
    """The pooled samples as one party, but for those that parties keep from some phases.

    Samples of parties that have fewer than their floor, which send nothing in some
    phases, are one, and those of small classes, which are not in products, another.
    Without a linear part all are so.
    """
    config = run_plan.config
    least = config.min_examples
    strategy = run_plan.strategy
    has_products = linear_sums(strategy.run.state, strategy.run.options) is not None
    few = []
    apart = []
    together = []
    for own in map(np.sort, rows):
        if len(own) < least and not config.secure:
            few.append(own)
            continue
        stays = np.full(len(own), has_products)
        if has_products and not config.secure:
            X, codes = datasets.pooled_training(config, [own])
            model = strategy.model.model_
            stays = stay(_numbers(model, X), codes, len(model.classes), least)
        together.append(own[stays])
        apart.append(own[~stays])
    pool = []
    sides = (
        (together, 1, Party),
        (apart, 1, _Apart),
        (few, least * (1 + len(few)), Party),
    )
    for side, floor, kind in sides:
        X, codes = datasets.pooled_training(config, side)
        if len(codes):
            samples = Samples(X, strategy.model.classes_[codes])
            options = PartyOptions(min_examples=floor, products=True, n_jobs=-1)
            pool.append(kind(samples, options))
    return pool


class _Apart(Party):
    """Party whose samples are in trees, but not in products."""

    def answer(self, entries: Entries, *rest: Any) -> Answer:
        in_trees = entries[PHASE] == TreesRequest.phase
        consenting = replace(self, options=replace(self.options, products=in_trees))
        return Party.answer(consenting, entries, *rest)


def _numbers(model: Model, X: Array | Table) -> Any:
    """Samples as the numbers that a model takes."""
    if model.schema is not None:
        return model.schema.encode(X)
    return X


def _pooled_members(
    model: Model, X: Array | Table, codes: Integers
) -> list[ModelMember]:
    """The members of a model with the counts of the pooled samples."""
    numbers = _numbers(model, X)
    n_classes = len(model.classes)
    return [
        replace(
            member,
            counts=ClassCounts.from_data(
                member.hash, numbers, codes, n_classes, n_jobs=-1
            ),
        )
        for member in model.members
    ]


def _leaves_out_samples(strategy: BaseStrategy) -> bool:
    """True if a phase before the evaluation has no figures of some samples."""
    run = strategy.run
    absent = absences(run).keys() - {"evaluation", "secure evaluation"}
    return any(name in run.state.results for name in absent)


def _pooled_options(run_plan: RunPlan) -> RunOptions:
    """Options of the same run over one party with the pooled samples.

    With a disclosure floor the parties disclose other figures of the columns than the
    pool would. The run then begins at the counts, with the specs of the parties'
    columns.
    """
    options = run_plan.strategy.run.options
    state = run_plan.strategy.run.state
    alone = replace(
        options,
        min_parties=1,
        secure_bound=None,
        max_examples_per_party=None,
        on_phase=None,
    )
    if options.plan is None or run_plan.config.min_examples == 1:
        return alone
    plain = replace(state.run_spec, mechanism=None, bound=None)
    zeros = {"counts": no_counts(plain, basis_of(state, options))}
    begun = federation_of(
        replace(state, run_spec=plain, results=zeros), alone, (), "counts"
    )
    return alone.going_on(begun)
