"""The dry run: phases, messages, bytes and memory of a run, and the settings that it needs of each site.

Everything follows from the plan of the run. No party is asked, and no other file than `plan.json` is written.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import Any

from flwr_flynn.app.disclosure_file import KINDS
from flwr_flynn.app.run_plan import RunPlan, memory_needs
from flwr_flynn.app.settings_parser import in_json, key_of
from flwr_flynn.federated.disclosure import Content
from flwr_flynn.federated.forecast import forecast, told
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import SECURE
from flwr_flynn.federated.request import ENTRY_BYTES
from flwr_flynn.federated.run import rounds_of
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.gram import memory_of_gram
from flwr_flynn.privacy.release_policy import unseeded
from flwr_flynn.tables.schema import Schema

MOST_NAMES = 20  # of columns that the text lists


def compiled(plan: RunPlan) -> dict[str, Any]:
    """The content of plan.json."""
    run, config, options = plan.strategy.run, plan.config, plan.strategy.run.options
    n_parties = plan.parties or config.min_available or 1
    ahead, contents = forecast(options, n_parties), told(options)
    memory, costs = _memory(plan), [] if ahead is None else [asdict(each) for each in ahead.values()]
    phases = [
        {
            "name": phase.name,
            "round": rounds_of(run.phases[: index + 1]),
            "kind": contents[phase.name][0],
            "fields": _fields(contents[phase.name][1]),
            "bytes": None if ahead is None else asdict(ahead[phase.name]),
        }
        for index, phase in enumerate(run.phases)
    ]
    return {
        "format": 1,
        "action": config.action,
        "parties": n_parties,
        "rounds": plan.rounds,
        "phases": phases,
        "bytes_per_party": None if ahead is None else {way: sum(each[way] for each in costs) for way in ("up", "down")},
        "memory": memory,
        "privacy": plan.notes,
        "sites": [
            {"key": key_of(name), "value": value, "reason": why}
            for name, value, why in questions(options, max(memory["party"].values()))
        ],
    }


def _fields(contents: list[Content]) -> list[dict[str, Any]]:
    """Names, shape, and number of arrays: the most that a party sends; shape None: it depends on the samples."""
    fields: dict[tuple[str, Any], int] = {}
    for each in contents:
        name = ", ".join(each.fields), each.shape
        fields[name] = fields.get(name, 0) + 1
    return [{"name": name, "shape": shape and list(shape), "arrays": n} for (name, shape), n in fields.items()]


def _memory(plan: RunPlan) -> dict[str, dict[str, int]]:
    """Bytes at the server, and at a party beside its samples, by what for; each must allow the largest."""
    options = plan.strategy.run.options
    run, kinds = options.run_spec, told(options)
    party = {"the counts": sum(memory_needed(spec, run.n_classes) for spec in options.counted_specs(run.specs))}
    server = {"the counts of the federation": sum(memory_needed(spec, run.n_classes) for spec in run.specs)}
    if plan.hashes is not None:
        needs = memory_needs(plan.config, plan.hashes, list(run.classes), plan.parties)
        server = {name: round(needed) for name, needed in needs.items()}
    for name, (kind, contents) in kinds.items():
        if kind == SECURE and (shape := contents[0].shape) is not None:
            party[f"the secure sum of {name}"] = ENTRY_BYTES * shape[0]
    n_examples = plan.hashes and plan.hashes.n_examples
    if "gram" in kinds and (options.gram or n_examples):
        n_rows = options.gram_rows(n_examples or 0, run.spec.n_features)
        party["the Gram matrix"] = round(memory_of_gram(n_rows, run.n_classes))
    return {"server": server, "party": party}


# ---- questions to the sites

Question = tuple[str, Any, str]
"""The name of a node setting, the value that this run needs, None for one of the site's own, and the reason."""


def questions(options: RunOptions, memory: int) -> list[Question]:
    """Settings of a deployed site's node config that this run looks at; it needs so many bytes of memory there."""
    run, names, purpose = options.run_spec, set(told(options)), options.purpose
    classes = ", ".join(map(str, run.classes[:MOST_NAMES]))
    is_clear, is_exact = not run.is_secure, run.mechanism is None
    looks = is_clear and "columns" in names
    entries = [
        (True, "data_path", None, f"the site's own file, with {_columns(options)}"),
        (True, "label", None, f"its label column, of the classes {classes}"),
        (True, "memory_limit", None, f"GiB; the run needs {memory / 2**30:.3g}"),
        (purpose == "update", "previous_path", None, "the file as it was counted, where samples have changed"),
        (purpose == "withdraw", "leave", True, "at the sites that leave; the others refuse this run"),
        (looks or "schema" in names, "min_examples", None, "classes and levels of fewer samples stay at home"),
        (is_clear and "gram" in names, "gram", True, "consent to the Gram matrix in clear"),
        (run.is_secure and is_exact, "secure", None, "may be true: statistics leave in secure sums alone"),
        (run.is_plain and "counts" in names, "secure", False, "exact figures leave in clear; a site with true refuses"),
        (options.is_evaluated, "test_fraction", None, "share of the samples that the model is evaluated on"),
        (options.is_evaluated and not (is_clear and is_exact), "evaluate", True, "where exact results may leave"),
        ("evaluation" in names, "model_path", None, "file for the site's copy of the model, if it wants one"),
        (True, "record_path", None, "file for the site's own record of what leaves it, if it wants one"),
    ]
    return [(name, value, why) for is_asked, name, value, why in entries if is_asked] + _policy(options)


def _policy(options: RunOptions) -> list[Question]:
    """Bounds that a site's policy must allow for noisy counts; none for exact ones."""
    mechanism = options.run_spec.mechanism
    if options.purpose == "evaluate":
        return []
    if mechanism is None:
        return [("max_epsilon", None, "must not be given: such a site answers with noisy counts alone")]
    noise = unseeded(mechanism)
    asked: list[Question] = [
        ("max_epsilon", noise.target_epsilon, "at least, beyond what earlier answers spent"),
        ("max_delta", noise.delta, "at least, likewise"),
        ("state_path", None, "the site's own folder for the record of its private answers"),
        ("mechanisms", noise.kind, "among them"),
        ("neighbours", noise.neighbours, "this, or a weaker one"),
        ("records_per_person", noise.records_per_person, "at most"),
    ]
    return [*asked, ("secure", True, "its noise is a share of that of the sum")] if noise.is_share else asked


def _columns(options: RunOptions) -> str:
    """Columns that a file must have, in words."""
    names: Any = options.run_spec.feature_names
    if options.learn_schema:
        return "any columns; the run learns which, and of what kind"
    if isinstance(names, Schema):
        names = names.names
    if not names:
        return f"{options.run_spec.spec.n_features} columns of numbers beside the label"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"the columns {', '.join(names[:MOST_NAMES])}{more}"


# ---- text


def text(made: dict[str, Any]) -> str:
    """The plan for the log."""
    lines = ["", f"FlyNN, dry run: action {made['action']}, {made['parties']} parties, {made['rounds']} rounds"]
    for number, phases in groupby(made["phases"], key=lambda phase: phase["round"]):
        for phase in phases:
            lines.append(f"  round {number}, {phase['name']}: {KINDS[phase['kind']]}; {_bytes(phase['bytes'])}")
            for field in phase["fields"]:
                shape = " x ".join(map(str, field["shape"] or ["as many as the samples need"]))
                times = f", up to {field['arrays']} times" if field["arrays"] > 1 else ""
                lines.append(f"    {field['name']}: {shape}{times}")
    lines.append(f"  bytes per party, at most: {_bytes(made['bytes_per_party'])}")
    for where, needs in made["memory"].items():
        lines += [f"  memory at {where}: {needed / 2**20:.1f} MiB for {what}" for what, needed in needs.items()]
    lines += [f"  {note}" for note in made["privacy"]]
    lines.append("  each site's node config:")
    for each in made["sites"]:
        value = "" if each["value"] is None else f" = {in_json(each['value'])}"
        lines.append(f"    {each['key']}{value}: {each['reason']}")
    return "\n".join([*lines, ""])


def _bytes(each: dict[str, int] | None) -> str:
    return "bytes not known beforehand" if each is None else f"{each['up']} bytes up, {each['down']} down"
