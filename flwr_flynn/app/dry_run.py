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
from flwr_flynn.federated.party_options import SiteSetting
from flwr_flynn.federated.protocol import NOTHING, TRAIN
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.federated.run import Run, rounds_of
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
    options = run.options
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
        kind = phase.kind(options)
        content = "" if kind == NOTHING else phase.content
        phases.append(
            {"name": name, "round": n_rounds, "kind": kind, "content": content}
        )
    most = max(memory["party"].values(), default=0)
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
            for name, needed, why in questions(run, most)
        ],
    }


# ---- questions to the sites


def questions(run: Run, memory: float) -> list[SiteSetting]:
    """Settings of a deployed site's node config that a run looks at.

    The run needs so many bytes of memory at the site.
    """
    options = run.options
    spec = options.run_spec
    classes = ", ".join(map(str, spec.classes[:MOST_NAMES]))
    asked = [
        SiteSetting(
            "data_path", None, f"the site's own file, with {_columns(options)}"
        ),
        SiteSetting("label", None, f"its label column, of the classes {classes}"),
        SiteSetting("memory_limit", None, f"GiB; the run needs {memory / 2**30:.3g}"),
        *PURPOSES[options.purpose].asks,
    ]
    for phase in run.phases:
        asked += phase.asks(options)
    if spec.is_secure and spec.mechanism is None:
        why = "may be true: statistics leave in secure sums alone"
        asked.append(SiteSetting("secure", None, why))
    why = "file for the site's own record of its answers, if it wants one"
    asked.append(SiteSetting("record_path", None, why))
    if any(phase.channel == TRAIN for phase in run.phases):
        asked += _policy(spec.mechanism)
    return [*{setting.name: setting for setting in asked}.values()]


def _policy(mechanism: Mechanism | None) -> list[SiteSetting]:
    """Bounds that a site's policy must allow for noisy counts; none for exact ones."""
    if mechanism is None:
        return [
            SiteSetting(
                "max_epsilon",
                None,
                "must not be given: such a site answers with noisy counts alone",
            )
        ]
    noise = unseeded(mechanism)
    epsilon = noise.target_epsilon
    asked: list[SiteSetting] = [
        SiteSetting(
            "max_epsilon", epsilon, "at least, beyond what earlier answers spent"
        ),
        SiteSetting("max_delta", noise.delta, "at least, likewise"),
        SiteSetting(
            "state_path",
            None,
            "the site's own folder for the record of its private answers",
        ),
        SiteSetting("neighbours", noise.neighbours, "this, or a weaker one"),
        SiteSetting("records_per_person", noise.records_per_person, "at most"),
    ]
    if noise.is_share:
        why = "its noise is a share of that of the sum"
        asked.append(SiteSetting("secure", True, why))
    return asked


def _columns(options: RunOptions) -> str:
    """Columns that a file must have, in words."""
    names = options.run_spec.feature_names
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
