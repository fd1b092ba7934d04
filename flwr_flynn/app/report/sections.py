"""Sections of the page about parties, the model, messages and settings; those about accuracy are in `results`.

A section is a function of the checked report: the parts below its heading, or none where there is nothing to tell.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from flwr_flynn._markup import NONE, Markup, bars, count, figure, in_bytes, shortened, table, tag
from flwr_flynn.app.disclosure_file import KINDS
from flwr_flynn.app.report.pictures import shades
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.privacy.accounting import shown_bound

Report = dict[str, Any]
Parts = Sequence[Markup | None]

MOST_ROWS, MOST_CLASSES, MOST_BARS = 100, 32, 24
_PLACES = ("output-dir", "federation")  # settings of the machine, not of the run


def sentence(*words: Any) -> Markup:
    """A paragraph."""
    return tag("p", *words)


def more(summary: str, *parts: Any) -> Markup:
    """Parts that the reader opens."""
    return tag("details", tag("summary", summary), *parts)


def left_out(n: int, noun: str, most: int = MOST_ROWS, order: str = "") -> Markup | None:
    """A note about rows beyond the most that are shown."""
    return None if n <= most else tag("p", f"{figure(n - most)} more {noun} are left out{order}.", class_="note")


def quantiles(values: Iterable[float]) -> str:
    """Minimum, quartiles and maximum in words."""
    ordered = sorted(values)
    points = [figure(ordered[round(i * (len(ordered) - 1) / 4)]) for i in range(5)]
    return f"lowest {points[0]}, quartiles {points[1]}, {points[2]} and {points[3]}, highest {points[4]}"


# ---- parties


def participation(report: Report) -> Parts:
    """Parties that took part, and reasons of those that did not."""
    steps = [("training", report["missing"])]
    phases = {name: (report[name] or {}).get("missing", {}) for name in ("schema", "columns", "selection")}
    for each in ("refinement", "gram"):
        phases |= (report[each] or {}).get("missing", {})
    steps += [*phases.items(), ("evaluation", report["evaluation_missing"]), ("saving the model", report["unkept"])]
    rows = [(name, step, reason) for step, reasons in steps for name, reason in reasons.items()]
    parties, before = report["parties"], list[str | None]()
    if report["action"] == "join":  # the others are in the model all the same
        new = {each["name"] for each in parties}
        before = [each["party"] for each in report["federation"] if each["party"] not in new]
        rows = [row for row in rows if row[0] not in before]
    if not (rows or parties):
        return []
    said = f"{count(len(rows), 'time')} a party was left out of a step." if rows else "No party was left out of a step."
    found: list[Markup | None] = [sentence(f"{count(len(parties), 'party', 'parties')} took part. {said}")]
    if rows:
        found.append(table("Parties that were left out", ("party", "step", "reason"), rows[:MOST_ROWS]))
        found += [left_out(len(rows), "reasons")]
    if before:
        marked = [(each["name"], "new") for each in parties] + [(name, "already a member") for name in before]
        shown = table("Members of the federation", ("party", "in this run"), marked[:MOST_ROWS])
        found += [shown, left_out(len(marked), "members")]
    if parties:
        sent = [NONE if each["bytes"] is None else in_bytes(each["bytes"]) for each in parties]
        pairs = zip(parties, sent, strict=True)
        listed = [(each["name"], each["examples"], size, each["seconds"]) for each, size in pairs]
        columns = "party", "samples", "bytes sent", "seconds"
        shown = table("Parties that took part", columns, listed[:MOST_ROWS])
        found.append(more("Parties that took part", shown, left_out(len(parties), "parties")))
    return found


def skew(report: Report) -> Parts:
    """Samples of each class at each party."""
    sizes = {name: row for name, row in report["class_sizes"].items() if sum(row)}
    names = report["classes"]
    if not sizes or not names or any(len(row) != len(names) for row in sizes.values()):
        return []
    pooled = [sum(column) for column in zip(*sizes.values(), strict=True)]
    total = sum(pooled)

    def distance(row: Sequence[int]) -> float:
        return sum((abs(n / sum(row) - each / total) for n, each in zip(row, pooled, strict=True)), 0.0) / 2

    far = {name: distance(row) for name, row in sizes.items()}
    order = sorted(sizes, key=lambda name: (-far[name], name))
    rows = [(name, sizes[name][:MOST_CLASSES]) for name in order[:MOST_ROWS]]
    first, rest, head = rows[:MOST_BARS], rows[MOST_BARS:], names[:MOST_CLASSES]
    said = (
        "Samples of each class at each party. The stronger the colour, the more samples, by row. "
        f"The party furthest from the mix of all comes first: at {order[0]}, {100 * far[order[0]]:.0f} % of the "
        "samples would have to be of another class."
    )
    warned = ((report["schema"] or {}).get("coinciding") or {}).items()
    return [
        sentence(said),
        *(sentence(f"Column {name!r} tells the site, and so its classes: it is {text}.") for name, text in warned),
        shades("Training samples by party and class", "party", head, [("all parties", pooled[:MOST_CLASSES]), *first]),
        more(f"{len(rest)} more parties", shades("More training samples", "party", head, rest)) if rest else None,
        left_out(len(sizes), "parties", order=", those nearest to the mix of all"),
        left_out(len(names), "classes", MOST_CLASSES),
    ]


# ---- the model


def model(report: Report) -> Parts:
    """Candidates, members and what was tried beside them."""
    members, selection = report["members"], report["selection"]
    rows = [
        (f"member {i}", each["hash_dim"], each["row_nnz"], each["hash_nnz"], each["decay"], each["weight"])
        for i, each in enumerate(members, start=1)
    ]
    if not rows:
        return []
    said = "A member of the model is a hash with its counts. The scores of the members add, by their weights."
    columns = "member", "rows", "nonzeros per row", "winners", "decay", "weight"
    found = [sentence(said), table("Members of the model", columns, rows[:MOST_ROWS]), *_tried(report)]
    best = [max(each) for each in (selection or {}).get("accuracies", ()) if each]
    if selection and best:
        chosen = {int(choice[0]) for choice in selection["choices"]}
        named = [f"candidate {i + 1}{', a member' if i in chosen else ''}" for i in range(len(best))]
        shown = [(name, figure(value)) for name, value in zip(named, best, strict=True)][:MOST_BARS]
        said = f"The parties compared {count(len(best), 'candidate')} by leave-one-out balanced accuracy"
        samples = selection["examples"]
        found += [
            sentence(said + (f" on {count(samples, 'sample')}." if samples is not None else ".")),
            bars("Candidates", said, [(name, value, best[i]) for i, (name, value) in enumerate(shown)]),
            left_out(len(best), "candidates", MOST_BARS),
        ]
    return found


def _tried(report: Report) -> Parts:
    said = []
    if refined := report["refinement"]:
        said.append(f"Refinement: {count(refined['rounds'], 'noisy round')} under the guarantee of the counts.")
    if gram := report["gram"]:
        none = "not used, as too few parties replied or the regression failed"
        sizes = f"{count(gram['rows'], 'row')} of {count(gram['examples'], 'sample')}"
        text = f"{sizes}, half of the weight" if gram["used"] else none
        said.append(f"Gram matrix: {text}.")
    return [sentence(each) for each in said]


def equality(report: Report) -> Parts:
    """Digests, and the comparison with the pooled data."""
    sha = report["sha256"] or {}
    names = {"model": "model", "federated": "counts", "pooled": "counts of the pooled data"}
    rows = [(name, sha[key]) for key, name in names.items() if sha.get(key)]
    if not rows:
        return []
    said = "Equal files have equal SHA-256 digests."
    checks = {"equal": "The sum of the parties' counts", "model_equal": "The whole model"}
    results = {True: "equals", False: "DIFFERS from", None: "was not compared with"}
    if sha.get("pooled"):
        compared = [f" {what} {results[sha[key]]} that of the pooled data." for key, what in checks.items()]
        said += "".join(compared)
    is_unequal = any(sha.get(key) is False for key in checks)
    return [tag("p", said, class_="fault" if is_unequal else None), table("SHA-256", ("of", "digest"), rows, "digest")]


# ---- messages and privacy


def costs(report: Report) -> Parts:
    """Bytes and seconds."""
    traffic = dict(list(report["traffic"].items())[:MOST_BARS])
    if not traffic:
        return []
    up, down = (sum(each[way] for each in report["traffic"].values()) for way in ("up", "down"))
    longest = max((each["up"] + each["down"] for each in traffic.values()), default=0) or 1
    drawn = [
        (name, in_bytes(each["up"] + each["down"]), (each["up"] + each["down"]) / longest)
        for name, each in traffic.items()
    ]
    run = (report["run"] or {}).get("seconds")
    said = f"On average a party sent {in_bytes(up)} and received {in_bytes(down)}."
    took = f" The run took {run:.1f} seconds." if run is not None else ""
    return [
        sentence(said, took),
        bars("Bytes by phase", "Bytes sent and received by an average party in each phase", drawn),
        left_out(len(report["traffic"]), "phases", MOST_BARS),
    ]


def messages(report: Report) -> Parts:
    """Figures that left the parties; equal ones of a phase are one row."""
    rows = []
    for phase, each in report["messages"].items():
        found: dict[tuple[Any, ...], list[list[float]]] = {}
        for field in each["fields"]:
            key = field["name"], " \N{MULTIPLICATION SIGN} ".join(map(figure, field["shape"][:8]))
            found.setdefault(key, []).append(field["bytes"] or [])
        for (name, shape), sizes in (found or {(NONE, NONE): [[]]}).items():
            sent = " / ".join(in_bytes(sum(column)) for column in zip(*sizes, strict=False)) or NONE
            named = f"{len(sizes)} times {name}" if len(sizes) > 1 else name
            kind = KINDS.get(each["kind"], each["kind"])
            rows.append((phase, kind, named, shape or "varies", sent, each["parties"]))
    if not rows:
        return []
    said = "Every message of a party, by phase. Samples themselves stay at the parties; figures about them leave."
    columns = "phase", "kind", "figures", "shape", "bytes: least / mean / most", "parties"
    return [sentence(said), table("Messages", columns, rows[:MOST_ROWS]), left_out(len(rows), "messages")]


def privacy(report: Report) -> Parts:
    """The guarantee in plain words, or that there is none."""
    found, settings = report["privacy"], report["settings"]
    if found:
        epsilon, delta = found["epsilon"], found["delta"] or 0.0
        said = [found["guarantee"], *found["notes"]]
        if epsilon is None:
            said.append("There is no guarantee: the noise comes from a seed, for simulations.")
        else:
            said.append(
                f"With epsilon {shown_bound(epsilon)} and delta {shown_bound(delta)}, whether one record is among a "
                "party's samples changes the probability of what is seen by little: by a factor of at most e to the "
                "power of epsilon, but for a probability of delta."
            )
        if not found["covers_evaluation"]:
            said.append("The figures of the evaluation have no noise; the guarantee does not cover them.")
        return list(map(sentence, said))
    if settings.get("secure") is True:
        counted = (
            "Secure sums without noise: a server that keeps to the protocol sees sums over the parties alone. Another "
            "server can break the masks of SecAgg+."
        )
    else:
        counted = (
            "There is no privacy guarantee: exact figures left the parties without noise. Whoever reads the messages, "
            "the server first of all, sees each party's number of samples of each class."
        )
    meaning = (
        "Counts of few samples say much about them. A class with one sample at a party discloses that sample's hash, "
        "which allows guesses at the sample. The model is the sum of the counts: whoever has the model can test "
        "whether a given sample fits it. A sum of hashes is not anonymous."
    )
    further = []
    if report["columns"]:
        further.append(
            "Histograms of the columns disclose every k-th value of each column, by class; k is min-examples."
        )
    if report["gram"]:
        further.append("A Gram matrix of few samples discloses as much as the samples themselves.")
    further.append("The setting epsilon adds noise, with a guarantee.")
    return [sentence(counted), sentence(meaning), sentence(" ".join(further))]


# ---- settings


def settings(report: Report) -> Parts:
    """Settings and versions, and the command that runs it again."""
    defaults = {row.key: row.default for row in RunConfig.rows()}
    found = report["settings"]
    if not found:
        return []
    given = {key: value for key, value in found.items() if key not in defaults or value != defaults[key]}
    places = _PLACES[: 2 - (found.get("action", "train") != "train")]  # which others go on with their federation
    known = {key: value for key, value in given.items() if key in defaults and key not in places}
    config = " ".join(f"{key}={_typed(value)}" for key, value in known.items())
    nodes = f" --federation-config num-supernodes={report['simulation']['parties']}" if report["simulation"] else ""
    command = f"flwr run .{nodes}" + (f" --run-config {shlex.quote(config)}" if config else "")
    versions = list(report["versions"].items())[:MOST_ROWS]

    rows = [(key, shortened(json.dumps(value, ensure_ascii=False))) for key, value in given.items()][:MOST_ROWS]
    return [
        sentence(f"{count(len(given), 'setting')} differ from the defaults. The same run again, with the same data:"),
        tag("pre", command),
        more("Settings that differ from the defaults", table("Given settings", ("setting", "value"), rows))
        if given
        else None,
        more("Versions", table("Versions", ("package", "version"), versions)),
    ]


def _typed(value: Any) -> str:
    """A value in TOML. Flower looks for the end of a text at the next quotation mark, so those inside are escaped."""
    parts = value.split('"') if isinstance(value, str) else [value]
    typed = [json.dumps(part, ensure_ascii=False) for part in parts]
    return '"' + "\\u0022".join(part[1:-1] for part in typed) + '"' if isinstance(value, str) else typed[0]
