"""The table of a report, for the end of the run's log."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from flwr_flynn.app.metrics_json import EQUALITIES
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.tables.table import KINDS

Report = dict[str, Any]
Row = tuple[str, str]

_DONE = {"train": "counted", "join": "joined", "withdraw": "withdrawn", "update": "updated"}
"""Verbs of the actions, for the parties that a run counts."""

_STEPS = {
    "schema": "kinds and levels of the columns",
    "columns": "histograms of the columns",
    "evaluation": "model and evaluation",
}
"""Names of phases that need other words."""


def table(report: Report, folder: Path) -> str:
    """Short form of a report, as text."""
    sections = (_party_rows, _sample_rows, _hash_rows, _refinement_rows, _gram_rows, _privacy_rows, _traffic_rows)
    rows = [row for section in (*sections, _evaluation_rows, _digest_rows) for row in section(report)]
    rows.append(("output folder", str(folder)))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    if privacy := report["privacy"]:
        for text in (privacy["guarantee"], *privacy["notes"]):
            lines += ["", *textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(["", "FlyNN", *lines, ""])


def _party_rows(report: Report) -> list[Row]:
    parties, missing, simulation = report["parties"], report["missing"], report.get("simulation")
    asked = simulation["parties"] if simulation else len(parties) + len(missing)
    rows = []
    if done := _DONE.get(report["action"]):
        rows.append((f"parties {done}", f"{len(parties)} of {asked}"))
        rows += _reasons(f"not {done}", missing)
    for each in report.get("updates", ()):
        before, now = each["before"], each["now"] or {"examples": 0, "sha256": ["none"]}
        digests = f"SHA-256 of its counts {before['sha256'][0][:12]}... > {now['sha256'][0][:12]}"
        sizes = "" if before["examples"] is None else f"{before['examples']} > {now['examples']} samples; "
        rows.append((f"  {each['party']}", sizes + digests))
    if report["action"] != "train":
        rows.append(("parties in all", f"{len(report['federation'])}"))
    return rows


def _sample_rows(report: Report) -> list[Row]:
    examples, privacy, simulation = f"{report['examples']}", report["privacy"], report.get("simulation")
    if privacy:
        estimate = privacy["examples_estimate"]
        examples = "hidden" if estimate is None else f"hidden, about {estimate} (estimate from the noisy counts)"
    rows = [("training samples", examples)]
    if simulation:
        dealt = f"{simulation['dealt']} of {simulation['samples']}, training and test samples"
        rows.append(("  samples distributed", dealt))
        if simulation["empty_parties"]:
            rows.append(("  parties with no samples", f"{simulation['empty_parties']}"))
    return rows


def _schema_rows(schema: dict[str, Any]) -> list[Row]:
    kinds = [column["kind"] for column in schema["columns"]]
    parts = [f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds]
    with_gaps = sum(column.get("gaps", True) for column in schema["columns"])
    source = "learned from the parties" if schema["is_learned"] else "from the server's file"
    text = f"{', '.join(parts)}; {with_gaps} with gaps; {source}"
    rows = [("columns", text)]
    rows += _reasons("tells the site", schema["coinciding"])
    return rows + _reasons("left out", schema["left_out"]) + _reasons("no kinds and levels", schema["missing"])


def _hash_rows(report: Report) -> list[Row]:
    columns, selection = report["columns"], report["selection"]
    rows = [] if report["schema"] is None else _schema_rows(report["schema"])
    if columns is not None:
        made = f"from histograms of the columns of {columns['examples']} samples"
        rows += [("scaling", f"{report['scaling']}, {made}"), *_reasons("no histograms", columns["missing"])]
    if selection is None:
        return rows
    if not selection["accuracies"]:
        return [*rows, ("selection", "none: too few parties with samples replied")]
    best = [f"{max(each):.4f}" for each in selection["accuracies"]]
    decays, examples = len(selection["candidates"][0]), selection["examples"]
    if len(best) == 1:
        found = f"{report['members'][0]['decay']:.4g}, leave-one-out {best[0]}, {decays} compared on {examples} samples"
        rows.append(("decay", found))
    else:
        rows.append(("candidates", f"{len(best)} with {decays} decays each, compared on {examples} samples"))
        rows.append(("  leave-one-out", ", ".join(best)))
        for (spec, _, weight), member in zip(selection["choices"], report["members"], strict=True):
            size = f"{member['hash_dim']} rows, {member['hash_nnz']} winners"
            rows.append((f"  member {spec + 1}", f"weight {weight:.2f}, decay {member['decay']:.4g}, {size}"))
    return rows + _reasons("not in the selection", selection["missing"])


def _refinement_rows(report: Report) -> list[Row]:
    if (refinement := report["refinement"]) is None:
        return []
    text = f"{refinement['rounds']} noisy rounds under the guarantee of the counts, judged on no samples"
    return [("refinement", text), *_phase_reasons(refinement["missing"])]


def _gram_rows(report: Report) -> list[Row]:
    if (gram := report["gram"]) is None:
        return []
    none = "none: too few parties replied, or the regression failed"
    text = f"{gram['rows']} rows, {gram['examples']} samples, half of the weight" if gram["used"] else none
    return [("Gram matrix", text), *_phase_reasons(gram["missing"])]


def _privacy_rows(report: Report) -> list[Row]:
    privacy = report["privacy"]
    if not privacy:
        return []
    guarantee = "NONE: seeded noise, for simulations"
    if privacy["epsilon"] is not None:
        guarantee = f"epsilon {shown_bound(privacy['epsilon'])}, delta {shown_bound(privacy['delta'])}"
    rows = [("privacy", f"{guarantee}; noise of standard deviation {privacy['noise_sd']:.4g} at each party")]
    if report["evaluation"]:
        rows.append(("  not covered", "the confusion matrices behind the figures below"))
    return rows


def _traffic_rows(report: Report) -> list[Row]:
    if not (traffic := report["traffic"]):
        return []
    total = {way: sum(each[way] for each in traffic.values()) for way in ("up", "down")}
    steps = {f"  {_STEPS.get(name, name)}": each for name, each in traffic.items()}
    return [
        (name, f"{_bytes(each['up'])} up, {_bytes(each['down'])} down")
        for name, each in {"bytes per party": total, **steps}.items()
    ]


def _evaluation_rows(report: Report) -> list[Row]:
    evaluation, silent = report["evaluation"], report["evaluation_missing"]
    rows = []
    if evaluation:
        names = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
        rows += [(name, f"{evaluation[key]:.4f}") for key, name in names.items()]
        rows += _figure_rows(evaluation.get("figures"))
        if worst := evaluation["worst_party"]:
            shown = f"{worst['accuracy']:.4f} ({worst['name']}, {worst['examples']} test samples)"
            rows.append(("worst party", shown))
        if prior := evaluation.get("class_prior"):
            worst = prior["worst_party"]
            shown = f"{prior['accuracy']:.4f}, worst party {worst['accuracy']:.4f} ({worst['name']})"
            rows.append(("with class prior", shown))
    else:
        why = f"failed at {len(silent)} parties" if silent else "none: no party holds test samples"
        why = why if report["evaluates"] else "none: parties send no results"
        errors = ", ".join(dict.fromkeys(report["evaluation_errors"]))
        rows.append(("evaluation", f"failed with {errors}" if errors else why))
    rows += _reasons("not evaluated" if report["evaluates"] else "has no model", silent)
    return rows + _reasons("could not save the model", report["unkept"])


def _figure_rows(figures: dict[str, Any] | None) -> list[Row]:
    if figures is None:
        return []
    names = {"auroc": "AUROC", "brier": "Brier score", "calibration_error": "calibration error"}
    found = {name: figures["overall"][key] for key, name in names.items() if figures["overall"][key]}
    return [(name, f"{value:.4f} ({low:.4f} to {high:.4f})") for name, (value, low, high) in found.items()]


def _digest_rows(report: Report) -> list[Row]:
    sha = report["sha256"]
    rows = [("SHA-256 of the model", sha["model"])] if "model" in sha else []
    rows.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        rows.append(("  trained on pooled data", sha["pooled"]))
        for name in [name for name in EQUALITIES if name in sha]:
            unknown = f"{len(report['missing'])} missing" if name == "equal" else "some samples were left out"
            rows.append((EQUALITIES[name], {True: "yes", False: "NO", None: f"n/a, {unknown}"}[sha[name]]))
    if report["privacy"] and report.get("simulation"):
        rows.append((EQUALITIES["equal"], "n/a, noisy"))
    return rows


def _reasons(what: str, reasons: dict[str, str]) -> list[Row]:
    return [(f"  {what}: {name}", reason) for name, reason in reasons.items()]


def _phase_reasons(missing: dict[str, dict[str, str]]) -> list[Row]:
    """Reasons of the parties that missed each of some phases."""
    return [row for phase, reasons in missing.items() for row in _reasons(phase, reasons)]


def _bytes(n: float) -> str:
    return f"{n:.0f} B" if n < 1000 else f"{n / 1e3:.1f} kB" if n < 1e6 else f"{n / 1e6:.1f} MB"
