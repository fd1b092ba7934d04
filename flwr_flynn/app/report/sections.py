"""Sections of a report: facts for log and page, and parts for the page alone.

A section is a function of the content of metrics.json. One without facts and parts has
nothing to tell. Those about accuracy are in `accuracy_sections`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from flwr_flynn._validation import listed
from flwr_flynn.app.disclosure_file import KINDS
from flwr_flynn.app.report.markup import (
    NONE,
    Markup,
    figure,
    in_bytes,
    shortened,
    table,
    tag,
    with_interval,
)
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.flower.logging import spans
from flwr_flynn.model.metrics import share
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.tables import table as tables

Report = dict[str, Any]
Facts = list[tuple[str, str]]
Parts = Sequence[Markup | None]


class Section(NamedTuple):
    """One section of a report."""

    title: str
    facts: Facts  # name and text, for the log and the page
    parts: Parts = ()  # below them on the page


MOST_ROWS = 100
MOST_CLASSES = 32
MOST_BARS = 24
_CELL = 45  # percent of the accent in the strongest cell, so that text can be read

EQUALITIES = {"equal": "  equal", "model_equal": "  whole model equal"}
"""Comparisons with the pooled data, and their names."""

_DONE = {
    "train": "counted",
    "join": "joined",
    "withdraw": "withdrawn",
    "update": "updated",
}
"""Verbs of the actions, for the parties that a run counts."""

_STEPS = {
    "schema": "kinds and levels of the columns",
    "columns": "histograms of the columns",
    "evaluation": "model and evaluation",
}
"""Names of phases that need other words."""


def sentence(*words: object) -> Markup:
    """A paragraph."""
    return tag("p", *words)


def more(summary: str, *parts: object) -> Markup:
    """Parts that the reader opens."""
    return tag("details", tag("summary", summary), *parts)


def left_out(n: int, noun: str, most: int = MOST_ROWS) -> Markup | None:
    """A note about rows beyond the most that are shown."""
    if n <= most:
        return None
    return tag("p", f"{figure(n - most)} more {noun} are left out.", class_="note")


def bounded(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    noun: str,
    class_: str | None = None,
) -> list[Markup | None]:
    """A table of the first rows, and a note about the others."""
    return [table(caption, head, rows[:MOST_ROWS], class_), left_out(len(rows), noun)]


def shades(
    caption: str,
    corner: str,
    classes: Sequence[str],
    rows: Sequence[tuple[str, Sequence[int]]],
) -> list[Markup | None]:
    """A table of numbers of samples by class, coloured by the row's largest."""
    lines = []
    for name, sizes in rows:
        most = max(*sizes[:MOST_CLASSES], 1)
        strengths = [f"--v:{_CELL * n / most:.0f}" for n in sizes[:MOST_CLASSES]]
        cells = [
            tag("span", figure(n), style=strength)
            for n, strength in zip(sizes, strengths, strict=False)
        ]
        lines.append((name, *cells))
    head = [corner, *(shortened(name, 24) for name in classes[:MOST_CLASSES])]
    return [
        sentence("The stronger the colour, the more samples, by row."),
        *bounded(caption, head, lines, "parties", "shades"),
        left_out(len(classes), "classes", MOST_CLASSES),
    ]


# ---- parties


def participation(report: Report) -> Section:
    """Parties that took part, their samples, and reasons of those that did not."""
    parties = report["parties"]
    action = report["action"]
    names = [member["party"] for member in report["federation"]]
    before = list[str]()
    if action == "join":
        new = {party["name"] for party in parties}
        before = [name for name in names if name not in new]
    facts: Facts = []
    if action in _DONE:
        facts.append((f"parties {_DONE[action]}", f"{len(parties)} of {asked(report)}"))
    for update in report["updates"]:
        facts.append((f"  {update['party']}", _change(update)))
    if action != "train":
        facts.append(("parties in all", f"{len(names)}"))
    facts += _samples(report)
    # Those who joined before are in the model all the same.
    facts += [
        (f"  left out of {step}: {name}", reason)
        for name, step, reason in absences(report)
        if name not in before and not _is_untouched(action, reason)
    ]
    parts: list[Markup | None] = []
    if before:
        marked = [(party["name"], "new") for party in parties]
        marked += [(name, "already a member") for name in before]
        parts += bounded(
            "Members of the federation", ("party", "in this run"), marked, "members"
        )
    if parties:
        tried = (report["evaluation"] or {}).get("parties", ())
        held_out = {party["name"]: party for party in tried}
        listed = [
            (
                party["name"],
                party["examples"],
                *_held_out(held_out.get(party["name"])),
                in_bytes(party["bytes"]),
                party["seconds"],
            )
            for party in parties
        ]
        columns = (
            "party",
            "rows counted",
            "held out",
            "accuracy",
            "bytes of the counts",
            "seconds",
        )
        title = "Rows of the parties that took part"
        parts.append(more(title, *bounded(title, columns, listed, "parties")))
    return Section("Who took part", facts, parts)


def _held_out(party: Report | None) -> tuple[object, str]:
    """Held-out samples of a party, and its accuracy."""
    if party is None:
        return None, NONE
    n = party["examples"]
    return n, with_interval(share(party["accuracy"] * n, n))


def status_of(report: Report, name: str) -> str:
    """What the run did to a party, in a word; nothing in one that trains."""
    action = report["action"]
    changed = [update["party"] for update in report["updates"]]
    if action == "join":
        changed = [party["name"] for party in report["parties"]]
    if action in _DONE and action != "train" and name in changed:
        return f"({_DONE[action]})"
    return ""


def asked(report: Report) -> int:
    """The number of parties that could have taken part."""
    simulation = report.get("simulation")
    if simulation:
        return int(simulation["parties"])
    return len(report["parties"]) + len(report["missing"])


def absences(report: Report) -> list[tuple[str, str, str]]:
    """Party, step and reason of each step that a party was left out of."""
    steps = {"counts": report["missing"], **report["absent"]}
    return [
        (name, step, reason)
        for step, reasons in steps.items()
        for name, reason in reasons.items()
    ]


def _is_untouched(action: str, reason: str) -> bool:
    """True for a party that declines as a withdrawal or an update is not about it."""
    settings = ("node-config leave", "node-config previous-path")
    is_other = action in ("withdraw", "update")
    return is_other and any(setting in reason for setting in settings)


def _change(update: Report) -> str:
    """Samples and digest of counts that were replaced or taken out, before and now."""
    before = update["before"]
    now = update["now"] or {"examples": 0, "sha256": ["none"]}
    sizes = ""
    if before["examples"] is not None:
        sizes = f"{before['examples']} > {now['examples']} samples; "
    return (
        f"{sizes}SHA-256 of its counts {before['sha256'][0][:12]}... > "
        f"{now['sha256'][0][:12]}"
    )


def _samples(report: Report) -> Facts:
    examples = f"{report['examples']}"
    privacy = report["privacy"]
    simulation = report.get("simulation")
    if privacy:
        estimate = privacy["examples_estimate"]
        examples = "hidden"
        if estimate is not None:
            examples = f"hidden, about {estimate} (estimate from the noisy counts)"
    facts = [("training samples", examples)]
    if simulation:
        dealt = (
            f"{simulation['dealt']} of {simulation['samples']}, training and test "
            "samples"
        )
        facts.append(("  samples distributed", dealt))
        n_empty = simulation["empty_parties"]
        if n_empty:
            facts.append(("  parties with no samples", f"{n_empty}"))
    return facts


def skew(report: Report) -> Section:
    """Samples of each class at each party."""
    by_party = report["class_sizes"] or {}
    sizes = {name: row for name, row in by_party.items() if sum(row)}
    names = report["classes"]
    if not sizes:
        return Section("Classes by party", [])
    # Of the federation: only new parties have rows in a run that joins some.
    total = report.get("class_totals")
    if total is None:
        total = [*map(sum, zip(*sizes.values(), strict=True))]
    rows = [("all parties", total), *sorted(sizes.items())]
    caption = "Training samples by party and class"
    return Section("Classes by party", [], shades(caption, "party", names, rows))


# ---- the model


def model(report: Report) -> Section:
    """Columns, hashes, and what was learned beside the counts."""
    facts: Facts = []
    if report["schema"] is not None:
        facts += _schema(report["schema"])
    columns = report["columns"]
    if columns is not None:
        made = f"from histograms of the columns of {columns['examples']} samples"
        facts.append(("scaling", f"{report['scaling']}, {made}"))
    if report["selection"] is not None:
        facts += _selected(report["selection"], report["members"])
    linear = report["linear"]
    if linear:
        facts.append(("linear part", _linear(linear)))
    if report["trees"]:
        facts.append(("trees", _trees(report["trees"])))
    if report["calibration"]:
        facts.append(("calibration", report["calibration"]["text"]))
    return Section("Model", facts)


def _linear(linear: Report) -> str:
    """The linear part, and the parties that sent no sums for it."""
    text = f"{linear['terms']} terms, {linear['examples']} samples"
    if linear["share"]:
        text += f", share {linear['share']}"
    elif linear["lack"]:
        text += f", not used: {linear['lack']}"
    else:
        text += ", not used: it makes no better probabilities"
    if linear["without"]:
        names = listed(linear["without"], 8)
        text += f"; no sums (node setting products, or few rows) from {names}"
    return text


def _trees(trees: Report) -> str:
    """The trees, and their gain, or a reason why there is none."""
    if not trees["share"]:
        lack = trees["lack"] or "they make no better probabilities"
        return f"{trees['trees']}, not used: {lack}"
    losses = " to ".join(f"{loss:.4f}" for loss in trees["log_losses"])
    return (
        f"{trees['trees']}, {trees['leaf_nodes']} leaves, share {trees['share']}, log-loss "
        f"{losses} in {trees['levels']} levels"
    )


def _schema(schema: Report) -> Facts:
    kinds = [column["kind"] for column in schema["columns"]]
    parts = [f"{kinds.count(kind)} {kind}" for kind in tables.KINDS if kind in kinds]
    with_gaps = sum(column.get("gaps", True) for column in schema["columns"])
    source = "from the server's file"
    if schema["is_learned"]:
        source = "learned from the parties"
    facts = [("columns", f"{', '.join(parts)}; {with_gaps} with gaps; {source}")]
    facts += [
        (f"  tells the site: {name}", text)
        for name, text in schema["coinciding"].items()
    ]
    return facts + [
        (f"  left out: {name}", reason) for name, reason in schema["left_out"].items()
    ]


def noticed(report: Report) -> Section:
    """Remarks on the columns of the parties, with the settings that mend them."""
    schema = report["schema"] or {}
    remarks = schema.get("remarks", [])
    if not remarks:
        return Section("What was noticed", [])
    n = schema["n_remarks"]
    facts = [("remarks", f"{n} on {len({row['column'] for row in remarks})} columns")]
    rows = [
        (
            row["column"],
            row["what"],
            row["rows"] or "",
            ", ".join(row["parties"][:10]),
            " or ".join(row["settings"][:4]),
        )
        for row in remarks
    ]
    head = ("column", "what", "rows", "parties", "setting")
    return Section("What was noticed", facts, bounded("Remarks", head, rows, "remarks"))


def _selected(selection: Report, members: list[Report]) -> Facts:
    if not selection["accuracies"]:
        return [("selection", "none: too few parties with samples replied")]
    best = [f"{max(accuracies):.4f}" for accuracies in selection["accuracies"]]
    decays = len(selection["candidates"][0])
    examples = selection["examples"]
    if len(best) == 1:
        compared = f"leave-one-out {best[0]}, {decays} compared on {examples} samples"
        return [("decay", f"{members[0]['decay']:.4g}, {compared}")]
    facts = [
        (
            "candidates",
            f"{len(best)} with {decays} decays each, compared on {examples} samples",
        )
    ]
    facts.append(("  leave-one-out", ", ".join(best)))
    for (spec, _, weight), member in zip(selection["choices"], members, strict=True):
        size = f"{member['hash_dim']} rows, {member['hash_nnz']} winners"
        facts.append(
            (
                f"  member {spec + 1}",
                f"weight {weight:.2f}, decay {member['decay']:.4g}, {size}",
            )
        )
    return facts


def equality(report: Report) -> Section:
    """Digests, and the comparison with the pooled data."""
    sha = report["sha256"]
    facts: Facts = []
    if "model" in sha:
        facts.append(("SHA-256 of the model", sha["model"]))
    facts.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        facts.append(("  trained on pooled data", sha["pooled"]))
    for name in [name for name in EQUALITIES if name in sha]:
        reason = "some samples were left out"
        if name == "equal":
            reason = f"{len(report['missing'])} missing"
        answer = f"n/a, {reason}"
        if sha[name] is True:
            answer = "yes"
        elif sha[name] is False:
            answer = "NO"
        facts.append((EQUALITIES[name], answer))
    if report["privacy"] and report.get("simulation"):
        facts.append((EQUALITIES["equal"], "n/a, noisy"))
    return Section("Equality", facts)


# ---- traffic and privacy


def traffic(report: Report) -> Section:
    """Bytes by phase, seconds, and the figures that left the parties."""
    by_phase = report["traffic"]
    seconds = (report.get("run") or {}).get("seconds")
    facts: Facts = []
    if by_phase:
        facts.append(("bytes per party", _both_ways([*by_phase.values()])))
    for name, series in spans(by_phase).items():
        of_series = [by_phase[phase] for phase in series]
        facts.append((f"  {_STEPS.get(name, name)}", _both_ways(of_series)))
    if by_phase and seconds is not None:
        facts.append(("seconds", f"{seconds:.1f}"))
    messages = report["messages"]
    rows = [
        row
        for name, series in spans(messages).items()
        for row in _figures(name, [messages[phase] for phase in series])
    ]
    if not rows:
        return Section("What left the sites", facts)
    introduction = (
        "Every message of a party, by phase. Samples themselves stay at the "
        "parties; figures about them leave."
    )
    columns = (
        "phase",
        "kind",
        "figures",
        "shape",
        "bytes: least / mean / most",
        "parties",
    )
    parts = [sentence(introduction), *bounded("Messages", columns, rows, "messages")]
    return Section("What left the sites", facts, parts)


def _both_ways(traffic: Sequence[dict[str, float]]) -> str:
    """Bytes of some phases together."""
    up = sum(bytes_of["up"] for bytes_of in traffic)
    down = sum(bytes_of["down"] for bytes_of in traffic)
    return f"{in_bytes(up)} up, {in_bytes(down)} down"


def _figures(phase: str, messages: Sequence[Report]) -> list[Sequence[object]]:
    """Figures of the messages of a phase, or of a series; those of one name and shape
    are one row.
    """
    sent = messages[0]
    kind = KINDS.get(sent["kind"], sent["kind"])
    sizes_of: dict[tuple[str, str], list[list[float]]] = {}
    for field in [field for message in messages for field in message["fields"]]:
        sides = (field["shape"] or [])[:8]
        shape = " \N{MULTIPLICATION SIGN} ".join(map(figure, sides))
        if len(messages) > 1:
            shape = ""
        sizes = sizes_of.setdefault((field["name"], shape or "varies"), [])
        sizes.append(field["bytes"] or [])
    if not sizes_of:
        return [(phase, kind, NONE, NONE, NONE, sent["parties"])]
    rows = list[Sequence[object]]()
    for (name, shape), sizes in sizes_of.items():
        if len(sizes) > 1:
            name = f"{len(sizes)} times {name}"
        columns = zip(*sizes, strict=False)
        in_all = " / ".join(in_bytes(sum(column)) for column in columns)
        rows.append((phase, kind, name, shape, in_all or NONE, sent["parties"]))
    return rows


def privacy(report: Report) -> Section:
    """The guarantee in plain words, or that there is none."""
    if report["privacy"]:
        return _noise(report)
    first = (
        "There is no privacy guarantee: exact figures left the parties without noise, "
        "for the server to see."
    )
    if report["settings"].get("secure") is True:
        first = (
            "Secure sums without noise: a server that keeps to the protocol sees sums "
            "over the parties alone, and another one can break the masks."
        )
    sentences = [
        first,
        "Counts of few samples say much about them: who is alone in a class discloses "
        "the hash of the sample. A sum of "
        "hashes is not anonymous: whoever has the model can test whether a given "
        "sample fits it.",
    ]
    if report["columns"]:
        sentences.append(
            "Histograms of the columns disclose every k-th value of each column, by "
            "class; k is min-examples."
        )
    linear = report["linear"]
    if linear and linear["examples"]:
        sentences.append(
            "Sums of products of few samples disclose as much as the samples "
            "themselves."
        )
    trees = report["trees"]
    if trees and trees["log_losses"]:
        sentences.append(
            "Most leaves of trees hold fewer than five samples: their sums tell the "
            "class of each, and where its values lie."
        )
    sentences.append("The setting epsilon adds noise, with a guarantee.")
    return Section("Privacy", [], [*map(sentence, sentences)])


def _noise(report: Report) -> Section:
    """The guarantee of noisy counts."""
    private = report["privacy"]
    sentences = guarantee(report)
    bound = "NONE: seeded noise, for simulations"
    if private["epsilon"] is not None:
        epsilon = shown_bound(private["epsilon"])
        bound = f"epsilon {epsilon}, delta {shown_bound(private['delta'])}"
        sentences.append(
            "Whether one record is among a party's samples changes the "
            "probability of what is seen by a factor of "
            "at most e to the power of epsilon, but for a probability of delta."
        )
    noise = f"noise of standard deviation {private['noise_sd']:.4g} at each party"
    facts = [("privacy", f"{bound}; {noise}")]
    if report["evaluation"]:
        behind = "the confusion matrices behind the figures above"
        facts.append(("  not covered", behind))
    return Section("Privacy", facts, [*map(sentence, sentences)])


def guarantee(report: Report) -> list[str]:
    """The guarantee of noisy counts with its assumptions; nothing without one."""
    private = report["privacy"]
    if private:
        return [private["guarantee"], *private["notes"]]
    return []


# ---- settings


def settings(report: Report) -> Section:
    """Versions, and the command that runs it again."""
    command = report.get("run", {}).get("command") or _flower_command(report)
    versions = ", ".join(
        f"{name} {version}" for name, version in report["versions"].items()
    )
    parts = sentence("The same run again, with the same data:"), tag("pre", command)
    return Section("Settings", [("versions", versions)], parts)


def _flower_command(report: Report) -> str:
    """The command of Flower for a run with these settings."""
    defaults = {row.key: row.default for row in RunConfig.rows()}
    own = report["settings"]
    places = {"output-dir"}  # settings of the machine, not of the run
    if own.get("action", "train") == "train":
        places.add("federation")  # with which later actions go on
    changed = [key for key in own if key in defaults and own[key] != defaults[key]]
    config = " ".join(
        f"{key}={_typed(own[key])}" for key in changed if key not in places
    )
    command = "flwr run ."
    simulation = report.get("simulation")
    if simulation:
        command += f" --federation-config num-supernodes={simulation['parties']}"
    if config:
        command += f" --run-config {shlex.quote(config)}"
    return command


def _typed(setting: object) -> str:
    """A setting in TOML.

    Flower looks for the end of a text at the next quotation mark, so those inside are
    escaped.
    """
    if not isinstance(setting, str):
        return json.dumps(setting, ensure_ascii=False)
    quoted = [json.dumps(text, ensure_ascii=False) for text in setting.split('"')]
    return '"' + "\\u0022".join(text[1:-1] for text in quoted) + '"'
