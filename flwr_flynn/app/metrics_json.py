"""The report of a run: the content of metrics.json.

In a simulation the results are computed from the pooled data, too, and compared bit for
bit.
"""

from __future__ import annotations

import math
import platform
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from flwr_flynn import __version__
from flwr_flynn._validation import listed
from flwr_flynn.app.data import datasets
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.run_plan import RunPlan
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation, summary
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import model_of_members
from flwr_flynn.federated.run import Run
from flwr_flynn.flower.strategy import BaseStrategy
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import ModelMember, counts_sha256
from flwr_flynn.model.scoring import ScoringRule, given_scoring
from flwr_flynn.privacy import Mechanism
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import form_of
from flwr_flynn.tables.texts import is_beside

_MANY = 100
_APART = 10  # samples; percentage points
_MOST_LISTED = 1000  # parties whose class sizes are in the report


def compiled(run_plan: RunPlan, after: Federation) -> dict[str, Any]:
    """The content of metrics.json; `after` is the federation after the run."""
    config = run_plan.config
    plan = run_plan.hashes
    parties = run_plan.parties
    strategy = run_plan.strategy
    counts = strategy.counts
    run = strategy.run
    model = strategy.model
    columns = run.state.results.get("columns")
    mechanism = run.state.run_spec.mechanism
    spec = model.model_.members[0].spec
    given = "given"
    if spec.center is None and spec.scale is None:
        given = "none"
    report: dict[str, Any] = {
        "format": 3,
        "parties": [
            {
                "name": str(m),
                "cid": m.node,
                "examples": m.examples,
                "bytes": m.bytes,
                "seconds": m.seconds,
            }
            for m in strategy.parties
        ],
        "missing": dict(strategy.missing),
        "absent": absences(run),
        "examples": None if counts.noise else int(counts.n_examples),
        "privacy": None
        if mechanism is None
        else _privacy(strategy, mechanism, run_plan.notes),
        "evaluates": run.options.is_evaluated,
        "evaluation": strategy.evaluation,
        "sha256": {
            "model": model.model_.sha256(),
            "federated": counts_sha256(model.model_.members),
        },
        "members": [_member(member) for member in model.model_.members],
        "updates": [
            {"party": str(m), **m.change}
            for m in run.counted.counted
            if m.change is not None
        ],
        "action": config.action,
        "federation": summary(after),
        "scaling": config.scaling if plan is not None and plan.needs_columns else given,
        "schema": _schema(run),
        "columns": columns and {"examples": columns.histograms.n_examples},
        "specs": [_in_short(spec) for spec in run.state.run_spec.specs],
        "selection": strategy.selection and strategy.selection.to_dict(),
        "gram": gram(run),
        "traffic": {
            name: {"parties": traffic.replied, **traffic.per_party}
            for name, traffic in run.traffic.items()
        },
        "messages": {
            name: {"kind": each.kind, **each.arrivals.to_dict()}
            for name, each in run.traffic.items()
        },
        "class_sizes": class_sizes(run),
        "classes": list(model.classes_.tolist()),
        "rule": model.rule,
        "settings": {row.key: getattr(config, row.name) for row in RunConfig.rows()},
        "versions": {
            name: version(name)
            for name in ("flwr", "numpy", "scipy", "numba", "scikit-learn")
        }
        | {"flwr-flynn": __version__, "python": platform.python_version()},
    }
    if parties is not None:
        shares = datasets.simulated_shares(config, parties)
        sizes = [*map(len, shares)]
        n_samples = len(datasets.simulated_dataset(config).y)
        dealt = {
            "samples": n_samples,
            "dealt": sum(sizes),
            "empty_parties": sizes.count(0),
        }
        report["simulation"] = {"parties": parties, **dealt}
        if config.check_pooled and mechanism is None:
            report["sha256"] |= compared(run_plan, parties, after)
    return report


def class_sizes(run: Run) -> dict[str, list[int]] | None:
    """Training samples of each class at each counted party; None where they are hidden,
    or of very many parties.
    """
    counted = run.counted.counted
    if len(counted) > _MOST_LISTED or not run.state.run_spec.is_plain:
        return None
    return {
        str(member): list(member.sizes)
        for member in counted
        if member.sizes is not None
    }


def _schema(run: Run) -> dict[str, Any] | None:
    """Columns of the schema, and those that are left out of a learned one; None without
    a schema.
    """
    schema = run.state.run_spec.feature_names
    learned = run.state.results.get("schema")
    if not isinstance(schema, Schema):
        return None
    if learned is None:
        left_out = {}
    else:
        left_out = learned.left_out
    told = {
        "is_learned": learned is not None,
        "left_out": left_out,
        "coinciding": coinciding(run),
    }
    return {**schema.to_dict(), **told}


def coinciding(run: Run) -> dict[str, str]:
    """Columns whose gaps tell the site, and so the mix of its classes, in words.

    That is where sites of at least `_MANY` samples lack more than half of the values,
    others have as many samples, and the shares of a class are over `_APART` apart. It
    is known of learned schemas and counts in clear alone.
    """
    learned: Any = run.state.results.get("schema")
    schema = run.state.run_spec.feature_names
    found = dict[str, str]()
    parties = [
        each
        for each in run.counted.counted
        if learned and each.sizes and each.node in learned.held
    ]
    if not parties or not isinstance(schema, Schema):
        return found
    sizes = np.array([each.sizes for each in parties])
    known = {*schema.names}
    for name in [name for name in schema.names if not is_beside(name, known)]:
        held = np.array([form_of(name) in learned.held[each.node] for each in parties])
        here = sizes[~held].sum(0)
        there = sizes[held].sum(0)
        is_enough = min(here.sum(), there.sum()) >= _MANY
        here = 100 * here / max(here.sum(), 1)
        there = 100 * there / max(there.sum(), 1)
        code = np.lexsort((here, abs(here - there).round(9)))[-1]
        if is_enough and abs(here[code] - there[code]) > _APART:
            sites = listed(
                [str(each) for each, has in zip(parties, held, strict=True) if not has]
            )
            of = (
                f"class {run.state.run_spec.classes[code]} is {here[code]:.0f} % in "
                f"place of {there[code]:.0f} %"
            )
            found[name] = f"mostly missing at {sites}, where {of}"
    return found


def absences(run: Run) -> dict[str, dict[str, str]]:
    """Reasons of counted parties without an answer in a later or an earlier phase, or
    without a copy of the model.
    """
    evaluation: Any = run.state.results.get("evaluation")
    steps = {
        **run.state.missing,
        "saving the model": {} if evaluation is None else evaluation.unkept,
    }
    return {
        name: dict(reasons)
        for name, reasons in steps.items()
        if reasons and name != "counts"
    }


def gram(run: Run) -> dict[str, Any] | None:
    """Size of the Gram matrix, and True if its scores are used; None without it."""
    found = run.state.results.get("gram")
    if found is None:
        return None
    return {
        "rows": found.n_rows,
        "examples": found.n_examples,
        "used": found.scoring is not None,
    }


def _member(member: ModelMember) -> dict[str, Any]:
    return {
        **_in_short(member.spec),
        "spec": member.spec.to_dict(),
        "fingerprint": member.counts.spec_fingerprint,
        "weight": member.weight,
        "decay": member.scoring.decay,
        "temperature": member.temperature,
    }


def _privacy(
    strategy: BaseStrategy, mechanism: Mechanism, notes: list[str]
) -> dict[str, Any]:
    """Privacy guarantee of the mechanism, and an estimate of the number of samples from
    the noisy counts.
    """
    epsilon = mechanism.epsilon(mechanism.delta)
    return {
        "guarantee": mechanism.guarantee(),
        "notes": notes,
        "mechanism": mechanism.to_dict(),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": mechanism.delta,
        "noise_sd": mechanism.noise_sd,
        "examples_estimate": None
        if strategy.counts.n_per_class is None
        else int(strategy.counts.n_examples),
    }


def _in_short(spec: HashSpec) -> dict[str, Any]:
    """A spec with True or False instead of its vectors of a value for each column."""
    values = spec.to_dict()
    vectors = ("center", "scale", "edges", "row_weights")
    return {
        name: value is not None if name in vectors else value
        for name, value in values.items()
    }


# ---- comparison with the pooled data


def compared(run_plan: RunPlan, parties: int, after: Federation) -> dict[str, Any]:
    """Digest of the counts of the pooled training samples, and equality of counts and
    model; None: not comparable.
    """
    config = run_plan.config
    strategy = run_plan.strategy
    model = run_plan.strategy.model.model_
    numbers = config.party_numbers()
    among = None  # None: all parties
    if config.action != "train" or numbers is not None:
        known = {f"party-{party}": party for party in range(parties)}
        among = [known[member.name] for member in after.members if member.name in known]
    # Counts of some of the parties cannot be the pooled counts.
    complete = config.action != "train" or len(strategy.parties) == (
        parties if numbers is None else len(numbers)
    )
    raw, codes = datasets.pooled_training(config, parties, among)
    if model.schema is None:
        X = raw
    else:
        X = model.schema.encode(raw)
    counts = [
        ClassCounts.from_data(each.hash, X, codes, len(model.classes), n_jobs=-1)
        for each in model.members
    ]
    pooled = counts_sha256(
        [
            replace(each, counts=found)
            for each, found in zip(model.members, counts, strict=True)
        ]
    )
    found = {
        "pooled": pooled,
        "equal": pooled == counts_sha256(model.members) if complete else None,
    }
    if config.action != "train":
        return found
    second = gram(strategy.run)
    absent = absences(strategy.run).keys() - {"evaluation", "secure evaluation"}
    # small classes stayed at home
    is_partial = second is not None and second["examples"] < strategy.counts.n_examples
    if (
        not complete
        or is_partial
        or any(name in strategy.run.state.results for name in absent)
    ):
        return {**found, "model_equal": None}
    party = party_of(
        raw,
        model.classes[codes],
        min_examples=config.min_examples,
        gram=True,
        n_jobs=-1,
    )
    again = federate(_pooled_options(run_plan), [party]).model.model_
    return {**found, "model_equal": again.sha256() == model.sha256()}


def _pooled_options(run_plan: RunPlan) -> RunOptions:
    """Options of the same run over one party with the pooled samples.

    With a disclosure floor the parties disclose other figures of the columns than the
    pool would. The run then begins at the counts, with the specs of the parties'
    columns.
    """
    options = run_plan.strategy.run.options
    run_spec = run_plan.strategy.run.state.run_spec
    n_examples = run_plan.strategy.counts.n_examples
    alone: dict[str, Any] = {
        # The effort is lost with the plan.
        "gram": options.gram_rows(n_examples, run_spec.spec.n_features)
        if options.has_gram
        else 0,
        "min_parties": 1,
        "secure_bound": None,
        "max_examples_per_party": None,
        "on_phase": None,
    }
    if options.plan is None or run_plan.config.min_examples == 1:
        return replace(options, **alone)
    plain = replace(run_spec, mechanism=None, bound=None)
    scoring = given_scoring(options.rule, options.decay) or ScoringRule(
        options.rule, 0.5
    )
    zeros = [
        ModelMember(spec, ClassCounts.zeros(flynn_hash(spec), plain.n_classes), scoring)
        for spec in plain.specs
    ]
    begun = Federation(
        plain,
        model_of_members(plain, zeros),
        (),
        "counts",
        options.max_members,
        is_selected=False,
    )
    names: dict[str, Any] = {
        "learn_schema": False,
        "feature_names": run_spec.feature_names,
    }
    return replace(
        options, **alone, **names, spec=plain.specs, federation=begun, purpose="resume"
    )
