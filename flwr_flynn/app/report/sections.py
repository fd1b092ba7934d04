"""Sections of a report: facts for log and page, and parts for the page alone.

A section is a function of the content of metrics.json that yields its items. One
without items has nothing to tell. Those about accuracy are in `accuracy_sections`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

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
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.flower.logging import spans
from flwr_flynn.model.metrics import share
from flwr_flynn.privacy.accounting import shown_bound

Report = dict[str, Any]
Fact = tuple[str, str]
"""Name and text, for the log and the page."""
Part = Markup | None
"""Of the page alone."""
Items = Iterator[Fact | Part]


_QUOTED = "\ue000"  # a private character in place of a quotation mark

MOST_ROWS = 100
MOST_CLASSES = 32
MOST_BARS = 24
_CELL = 45  # percent of the accent in the strongest cell, so that text can be read

EQUALITIES = {"equal": "  equal", "model_equal": "  whole model equal"}
"""Comparisons with the pooled data, and their names."""


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
) -> list[Part]:
    """A table of the first rows, and a note about the others."""
    return [table(caption, head, rows[:MOST_ROWS], class_), left_out(len(rows), noun)]


def shades(
    caption: str,
    corner: str,
    classes: Sequence[str],
    rows: Sequence[tuple[str, Sequence[int]]],
) -> list[Part]:
    """A table of numbers of samples by class, coloured by the row's largest."""
    lines = []
    for name, sizes in rows:
        most = max(*sizes[:MOST_CLASSES], 1)
        cells = [
            tag("span", figure(n), style=f"--v:{_CELL * n / most:.0f}")
            for n in sizes[:MOST_CLASSES]
        ]
        lines.append((name, *cells))
    head = [corner, *(shortened(name, 24) for name in classes[:MOST_CLASSES])]
    return [
        sentence("The stronger the colour, the more samples, by row."),
        *bounded(caption, head, lines, "parties", "shades"),
        left_out(len(classes), "classes", MOST_CLASSES),
    ]


# ---- parties


def participation(report: Report) -> Items:
    """Parties that took part, their samples, and reasons of those that did not."""
    parties = report["parties"]
    action = report["action"]
    names = [member["party"] for member in report["federation"]]
    before = list[str]()
    if action == "join":
        new = {party["name"] for party in parties}
        before = [name for name in names if name not in new]
    n_asked = len(parties) + len(report["missing"])
    if report.get("simulation"):
        n_asked = report["simulation"]["parties"]
    purpose = PURPOSES[action]
    if purpose.done:
        yield f"parties {purpose.done}", f"{len(parties)} of {n_asked}"
    for update in report["updates"]:
        yield f"  {update['party']}", _change(update)
    if action != "train":
        yield "parties in all", f"{len(names)}"
    yield from _samples(report)
    steps = {"counts": report["missing"], **report["absent"]}
    # Those who joined before are in the model all the same, and so are those whom a
    # withdrawal or an update is not about.
    for step, reasons in steps.items():
        for name, reason in reasons.items():
            if name not in before and not purpose.is_for_others(reason):
                yield f"  left out of {step}: {name}", reason
    if before:
        marked = [(party["name"], "new") for party in parties]
        marked += [(name, "already a member") for name in before]
        head = ("party", "in this run")
        yield from bounded("Members of the federation", head, marked, "members")
    if parties:
        tried = (report["evaluation"] or {}).get("parties", ())
        held_out = {party["name"]: party for party in tried}
        rows = [
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
        yield more(title, *bounded(title, columns, rows, "parties"))


def _held_out(party: Report | None) -> tuple[object, str]:
    """Held-out samples of a party, and its accuracy."""
    if party is None:
        return None, NONE
    n = party["examples"]
    return n, with_interval(share(party["accuracy"] * n, n))


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


def _samples(report: Report) -> Iterator[Fact]:
    examples = f"{report['examples']}"
    privacy = report["privacy"]
    simulation = report.get("simulation")
    if privacy:
        estimate = privacy["examples_estimate"]
        examples = "hidden"
        if estimate is not None:
            examples = f"hidden, about {estimate} (estimate from the noisy counts)"
    yield "training samples", examples
    if simulation:
        dealt = (
            f"{simulation['dealt']} of {simulation['samples']}, training and test "
            "samples"
        )
        yield "  samples distributed", dealt
        n_empty = simulation["empty_parties"]
        if n_empty:
            yield "  parties with no samples", f"{n_empty}"


def skew(report: Report) -> Items:
    """Samples of each class at each party."""
    by_party = report["class_sizes"] or {}
    sizes = {name: row for name, row in by_party.items() if sum(row)}
    if sizes:
        # Of the federation: only new parties have rows in a run that joins some.
        rows = [("all parties", report["class_totals"]), *sorted(sizes.items())]
        caption = "Training samples by party and class"
        yield from shades(caption, "party", report["classes"], rows)


# ---- the model


def model(report: Report) -> Items:
    """Columns, hashes, and what was learned beside the counts."""
    yield from report["facts"].items()
    rows = [(row["column"], figure(row["log_odds"])) for row in report["importance"]]
    if any(row["log_odds"] for row in report["importance"]):
        caption = "Columns by what they add to the log odds of the class, in the mean"
        head = ("column", "log odds")
        yield from bounded(caption, head, rows, "columns")


def noticed(report: Report) -> Items:
    """Remarks on the columns of the parties, with the settings that mend them."""
    schema = report["schema"]
    if not schema or not schema["remarks"]:
        return
    rows = [
        (
            row["column"],
            row["what"],
            row["rows"] or "",
            ", ".join(row["parties"][:10]),
            " or ".join(row["settings"][:4]),
        )
        for row in schema["remarks"]
    ]
    n_columns = len({column for column, *_ in rows})
    yield "remarks", f"{schema['n_remarks']} on {n_columns} columns"
    head = ("column", "what", "rows", "parties", "setting")
    yield from bounded("Remarks", head, rows, "remarks")


def equality(report: Report) -> Items:
    """Digests, and the comparison with the pooled data."""
    sha = report["sha256"]
    names = {
        "model": "SHA-256 of the model",
        "federated": "SHA-256 of the counts",
        "pooled": "  trained on pooled data",
    }
    for key, name in names.items():
        if key in sha:
            yield name, sha[key]
    reasons = (f"{len(report['missing'])} missing", "some samples were left out")
    for (key, name), reason in zip(EQUALITIES.items(), reasons, strict=True):
        if key in sha:
            answer = f"n/a, {reason}"
            if sha[key]:
                answer = "yes"
            elif sha[key] is False:
                answer = "NO"
            yield name, answer
    if report["privacy"] and report.get("simulation"):
        yield EQUALITIES["equal"], "n/a, noisy"


# ---- traffic and privacy


def traffic(report: Report) -> Items:
    """Bytes by phase, seconds, and the figures that left the parties."""
    by_phase = report["traffic"]
    if by_phase:
        yield "bytes per party", _both_ways([*by_phase.values()])
        for name, series in spans(by_phase).items():
            of_series = [by_phase[phase] for phase in series]
            yield f"  {name}", _both_ways(of_series)
        yield "seconds", f"{report['run']['seconds']:.1f}"
    messages = report["messages"]
    rows = [
        row
        for name, series in spans(messages).items()
        for row in _figures(name, [messages[phase] for phase in series])
    ]
    if rows:
        yield sentence(
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
        yield from bounded("Messages", columns, rows, "messages")


def _both_ways(traffic: Sequence[dict[str, float]]) -> str:
    """Bytes of some phases together."""
    up = sum(bytes_of["up"] for bytes_of in traffic)
    down = sum(bytes_of["down"] for bytes_of in traffic)
    return f"{in_bytes(up)} up, {in_bytes(down)} down"


def _figures(phase: str, messages: Sequence[Report]) -> Iterator[Sequence[object]]:
    """Figures of the messages of a phase, or of a series; those of one name and shape
    are one row.
    """
    kind = KINDS[messages[0]["kind"]]
    n_parties = messages[0]["parties"]
    sizes_of: dict[tuple[str, str], list[list[float]]] = {}
    for field in [field for message in messages for field in message["fields"]]:
        shape = "varies"
        if field["shape"] and len(messages) == 1:
            shape = " \N{MULTIPLICATION SIGN} ".join(map(figure, field["shape"]))
        sizes_of.setdefault((field["name"], shape), []).append(field["bytes"])
    for (name, shape), sizes in sizes_of.items():
        if len(sizes) > 1:
            name = f"{len(sizes)} times {name}"
        in_all = [in_bytes(sum(column)) for column in zip(*sizes, strict=True)]
        yield phase, kind, name, shape, " / ".join(in_all), n_parties
    if not sizes_of:
        yield phase, kind, NONE, NONE, NONE, n_parties


def privacy(report: Report) -> Items:
    """The guarantee in plain words, or that there is none."""
    if report["privacy"]:
        yield from _noise(report)
        return
    first = (
        "There is no privacy guarantee: exact figures left the parties without noise, "
        "for the server to see."
    )
    if report["settings"].get("secure") is True:
        first = (
            "Secure sums without noise: a server that keeps to the protocol sees sums "
            "over the parties alone, and another one can break the masks."
        )
    yield sentence(first)
    messages = report["messages"].values()
    yield from map(sentence, dict.fromkeys(row["sentence"] for row in messages))
    yield sentence("The setting epsilon adds noise, with a guarantee.")


def _noise(report: Report) -> Items:
    """The guarantee of noisy counts."""
    private = report["privacy"]
    yield from map(sentence, guarantee(report))
    bound = "NONE: seeded noise, for simulations"
    if private["epsilon"] is not None:
        epsilon = shown_bound(private["epsilon"])
        bound = f"epsilon {epsilon}, delta {shown_bound(private['delta'])}"
        yield sentence(
            "Whether one record is among a party's samples changes the "
            "probability of what is seen by a factor of "
            "at most e to the power of epsilon, but for a probability of delta."
        )
    noise = f"noise of standard deviation {private['noise_sd']:.4g} at each party"
    yield "privacy", f"{bound}; {noise}"
    if report["evaluation"]:
        yield "  not covered", "the confusion matrices behind the figures above"


def guarantee(report: Report) -> list[str]:
    """The guarantee of noisy counts with its assumptions; nothing without one."""
    private = report["privacy"]
    if private:
        return [private["guarantee"], *private["notes"]]
    return []


# ---- settings


def settings(report: Report) -> Items:
    """Versions, and the command that runs it again."""
    command = report["run"].get("command") or _flower_command(report)
    versions = [f"{name} {version}" for name, version in report["versions"].items()]
    yield "versions", ", ".join(versions)
    yield sentence("The same run again, with the same data:")
    yield tag("pre", command)


def _flower_command(report: Report) -> str:
    """The command of Flower for a run with these settings."""
    defaults = {row.key: row.default for row in RunConfig.rows()}
    places = {"output-dir"}  # settings of the machine, not of the run
    if report["action"] == "train":
        places.add("federation")  # with which later actions go on
    config = " ".join(
        f"{key}={_typed(value)}"
        for key, value in report["settings"].items()
        if key not in places and value != defaults.get(key, value)
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
    if isinstance(setting, str):
        setting = setting.replace('"', _QUOTED)
    return json.dumps(setting, ensure_ascii=False).replace(_QUOTED, "\\u0022")
