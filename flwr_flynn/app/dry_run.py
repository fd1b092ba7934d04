"""The dry run: phases of a run, its disclosures and memory, and settings of the sites.

Everything follows from the plan of the run. No party is asked, and no other file than
`plan.json` is written.
"""

from __future__ import annotations

from typing import Any

from flwr_flynn._validation import listed
from flwr_flynn.app.disclosure_file import KINDS
from flwr_flynn.app.run_plan import RunPlan, memory_of
from flwr_flynn.app.settings_parser import in_json, key_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases.evaluation import EVALUATION
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE, TRAIN
from flwr_flynn.federated.run import rounds_of
from flwr_flynn.flower.logging import spans
from flwr_flynn.privacy import Mechanism
from flwr_flynn.privacy.release_policy import unseeded
from flwr_flynn.tables.schema import Schema

MOST_NAMES = 20  # of columns that the text lists


PlanJson = dict[str, Any]
"""The content of plan.json, as `docs/reference/file_formats.md` has it."""


def plan_json(plan: RunPlan) -> PlanJson:
    """The content of plan.json."""
    run = plan.strategy.run
    config = plan.config
    options = plan.strategy.run.options
    memory = {
        where: {what: round(n) for what, n in needs.items()}
        for where, needs in memory_of(plan).items()
    }
    phases = []
    done = 0
    for name, series in spans(phase.name for phase in run.phases).items():
        phase = run.phases[done]
        n_rounds = rounds_of(run.phases[: done + 1])
        done += len(series)
        kind = _kind_of(phase, options)
        content = "" if kind == NOTHING else phase.content
        phases.append(
            {"name": name, "round": n_rounds, "kind": kind, "content": content}
        )
    questions_of = questions(options, max(memory["party"].values()))
    return {
        "format": 2,
        "action": config.action,
        "parties": plan.parties or config.min_available or 1,
        "rounds": run.num_rounds,
        "phases": phases,
        "memory": memory,
        "privacy": plan.notes,
        "sites": [
            {"key": key_of(name), "value": needed, "reason": why}
            for name, needed, why in questions_of
        ],
    }


def _kind_of(phase: Phase, options: RunOptions) -> str:
    """Kind of disclosure of a phase."""
    if options.run_spec.is_secure and phase.channel == TRAIN:
        return SECURE
    if phase is EVALUATION:
        if options.is_evaluated and not options.sums_results:
            return RESULTS
        return NOTHING
    if options.run_spec.mechanism is None:
        return EXACT
    return NOISY


# ---- questions to the sites

Question = tuple[str, object, str]
"""The name of a node setting, the value that this run needs, and the reason.

The value is None where the site has one of its own.
"""


def questions(options: RunOptions, memory: int) -> list[Question]:
    """Settings of a deployed site's node config that this run looks at.

    The run needs so many bytes of memory at the site.
    """
    run = options.run_spec
    names = {phase.name for phase in phases_of(options)}
    purpose = options.purpose
    classes = ", ".join(map(str, run.classes[:MOST_NAMES]))
    is_clear = not run.is_secure
    is_exact = run.mechanism is None
    looks = is_clear and "columns" in names
    entries = [
        (True, "data_path", None, f"the site's own file, with {_columns(options)}"),
        (True, "label", None, f"its label column, of the classes {classes}"),
        (True, "memory_limit", None, f"GiB; the run needs {memory / 2**30:.3g}"),
        (
            purpose == "update",
            "previous_path",
            None,
            "the file as it was counted, where samples have changed",
        ),
        (
            purpose == "withdraw",
            "leave",
            True,
            "at the sites that leave; the others refuse this run",
        ),
        (
            looks or "schema" in names,
            "min_examples",
            None,
            "classes and levels of fewer samples stay at home",
        ),
        (
            looks,
            "table_one",
            None,
            "true lets the report show the site's columns",
        ),
        (
            is_clear and options.has_linear and "counts" in names,
            "products",
            None,
            "true lets the sums of the linear part, and of trees, leave in clear",
        ),
        (
            run.is_secure and is_exact,
            "secure",
            None,
            "may be true: statistics leave in secure sums alone",
        ),
        (
            run.is_plain and "counts" in names,
            "secure",
            False,
            "exact figures leave in clear; a site with true refuses",
        ),
        (
            options.is_evaluated,
            "test_fraction",
            None,
            "share of the samples that the model is evaluated on",
        ),
        (
            options.is_evaluated and not (is_clear and is_exact),
            "evaluate",
            True,
            "where exact results may leave",
        ),
        (
            "evaluation" in names,
            "model_path",
            None,
            "file for the site's copy of the model, if it wants one",
        ),
        (
            True,
            "record_path",
            None,
            "file for the site's own record of what leaves it, if it wants one",
        ),
    ]
    asked: list[Question] = [
        (name, needed, why) for is_asked, name, needed, why in entries if is_asked
    ]
    if purpose == "evaluate":
        return asked
    return asked + _policy(run.mechanism)


def _policy(mechanism: Mechanism | None) -> list[Question]:
    """Bounds that a site's policy must allow for noisy counts; none for exact ones."""
    if mechanism is None:
        return [
            (
                "max_epsilon",
                None,
                "must not be given: such a site answers with noisy counts alone",
            )
        ]
    noise = unseeded(mechanism)
    epsilon = noise.target_epsilon
    asked: list[Question] = [
        ("max_epsilon", epsilon, "at least, beyond what earlier answers spent"),
        ("max_delta", noise.delta, "at least, likewise"),
        (
            "state_path",
            None,
            "the site's own folder for the record of its private answers",
        ),
        ("neighbours", noise.neighbours, "this, or a weaker one"),
        ("records_per_person", noise.records_per_person, "at most"),
    ]
    if noise.is_share:
        asked.append(("secure", True, "its noise is a share of that of the sum"))
    return asked


def _columns(options: RunOptions) -> str:
    """Columns that a file must have, in words."""
    names = options.run_spec.feature_names
    if options.learn_schema:
        return "any columns; the run learns which, and of what kind"
    if not names:
        return f"{options.run_spec.spec.n_features} columns of numbers beside the label"
    if isinstance(names, Schema):
        names = names.names
    return f"the columns {listed([*names], MOST_NAMES)}"


# ---- text


def lines(made: PlanJson) -> list[str]:
    """The plan for the log."""
    said = [
        "",
        f"FlyNN, dry run: action {made['action']}, {made['parties']} parties, "
        f"{made['rounds']} rounds",
    ]
    for phase in made["phases"]:
        content = ""
        if phase["content"]:
            content = f": {phase['content']}"
        said.append(
            f"  round {phase['round']}, {phase['name']}: "
            f"{KINDS[phase['kind']]}{content}"
        )
    for where, needs in made["memory"].items():
        said += [
            f"  memory at {where}: {n_bytes / 2**20:.1f} MiB for {what}"
            for what, n_bytes in needs.items()
        ]
    said += [f"  {note}" for note in made["privacy"]]
    said.append("  each site's node config:")
    for question in made["sites"]:
        needed = ""
        if question["value"] is not None:
            needed = f" = {in_json(question['value'])}"
        said.append(f"    {question['key']}{needed}: {question['reason']}")
    return [*said, ""]
