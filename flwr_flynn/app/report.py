"""The report of a run: all figures for metrics.json, and a table for the end of the log.

In a simulation the same is computed from the pooled data, and compared bit for bit.
"""

from __future__ import annotations

import math
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._version import __version__
from flwr_flynn.app.config import RunConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.federated.federation_file import Federation, summary
from flwr_flynn.federated.forecast import forecast
from flwr_flynn.federated.groups import GroupedCounts
from flwr_flynn.federated.outcome import Refined, is_of_pairs, pairs_of, searched
from flwr_flynn.federated.phases.histograms import Histograms
from flwr_flynn.federated.phases.selection import Selection
from flwr_flynn.federated.run import Run
from flwr_flynn.flower.base_strategy import BaseStrategy
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.alignment import Reference
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import ModelMember, counts_sha256
from flwr_flynn.model.pairs import learn_pairs
from flwr_flynn.model.selection import fit_members
from flwr_flynn.model.weight_search import refine
from flwr_flynn.privacy import Mechanism
from flwr_flynn.privacy.accounting import shown_bound

EQUALITIES = {
    "equal": "  equal",
    "columns_equal": "  sums of the columns equal",
    "histograms_equal": "  histograms of the columns equal",
    "selection_equal": "  selection equal",
    "refined_equal": "  refinement equal",
    "pairs_equal": "  pair sums equal",
}
"""Comparisons with the pooled data, and their names in the table."""


def compiled(
    config: RunConfig, strategy: BaseStrategy, plan: HashPlan | None, parties: int | None, after: Federation
) -> dict[str, Any]:
    """The content of metrics.json."""
    counts, run = strategy.counts, strategy.run
    model, columns = strategy.model, run.state.results.get("columns")
    ranks = run.state.results.get("histograms")
    selection, evaluation = strategy.selection, run.state.results.get("evaluation")
    mechanism = run.state.run_spec.mechanism
    bytes_ahead = forecast(run.options, max(len(strategy.parties), 1))
    spec = model.model_.members[0].spec
    given = "none" if spec.center is None and spec.scale is None else "given"
    report: dict[str, Any] = {
        "format": 3,
        "parties": [
            {"name": str(m), "cid": m.node, "examples": m.examples, "bytes": m.bytes, "seconds": m.seconds}
            for m in strategy.parties
        ],
        "missing": dict(strategy.missing),
        "examples": None if counts.noise else int(counts.n_examples),
        "privacy": None if mechanism is None else _privacy(strategy, mechanism),
        "evaluates": run.options.is_evaluated,
        "evaluation": strategy.evaluation,
        "evaluation_missing": {} if evaluation is None else dict(evaluation.missing),
        "unkept": {} if evaluation is None else dict(evaluation.unkept),
        "sha256": {"model": model.model_.sha256(), "federated": counts_sha256(model.model_.members)},
        "members": [_member(member) for member in model.model_.members],
        "action": config.action,
        "federation": summary(after),
        "scaling": config.scaling if plan is not None and plan.needs_sums else given,
        "columns": None if columns is None else {"examples": columns.moments.n_examples, "missing": columns.missing},
        "histograms": None if ranks is None else {"examples": ranks.histograms.n_examples, "missing": ranks.missing},
        "specs": [_in_short(spec) for spec in run.state.run_spec.specs],
        "selection": None if selection is None else selection.to_dict(),
        "groups": _groups(run),
        "alignment": _alignment(run),
        "refinement": _refinement(run),
        "pairs": _pairs(run),
        "traffic": {name: {"parties": traffic.replied, **traffic.per_party} for name, traffic in run.traffic.items()},
        "forecast": None if bytes_ahead is None else {name: asdict(each) for name, each in bytes_ahead.items()},
        "classes": list(model.classes_.tolist()),
        "rule": model.rule,
        "settings": {row.key: getattr(config, row.name) for row in RunConfig.rows()},
        "versions": {name: version(name) for name in ("flwr", "numpy", "scipy", "numba", "scikit-learn")}
        | {"flwr-flynn": __version__, "python": platform.python_version()},
    }
    if parties is not None:
        shares = datasets.simulated_shares(config, parties)
        report["simulation"] = {
            "parties": parties,
            "points": len(datasets.simulated_dataset(config).y),
            "handed_out": sum(map(len, shares)),
            "empty_parties": sum(len(share) == 0 for share in shares),
        }
        if config.check_pooled and mechanism is None:
            report["sha256"] |= compared(config, strategy, plan, parties, after)
    return report


def _groups(run: Run) -> dict[str, Any] | None:
    """Groups of parties, those left out, and accuracy on the samples that decided; None in a run without groups."""
    grouping, total, trusted = run.options.grouping, run.state.results.get("counts"), run.options.trusted
    if grouping is None or trusted is None or not isinstance(total, GroupedCounts):
        return None
    model, (X, y) = run.model.model_, trusted
    return {
        "seed": grouping.seed,
        "n_groups": grouping.n_groups,
        "groups": sorted(total.groups),
        "left_out": sorted(total.left_out),
        "parties_left_out": [str(member) for member in run.left_out],
        "samples": len(y),
        "accuracy": float((model.scores(X).argmax(axis=1) == run.state.run_spec.codes(y)).mean()),
    }


def _alignment(run: Run) -> dict[str, Any] | None:
    """Parties whose columns were aligned, and leave-one-out without and with it; None in a run without alignment."""
    ranks: Histograms | None = run.state.results.get("histograms")
    is_used = run.model.model_.aligned
    if not (run.options.align or is_used):
        return None
    selection: Selection | None = run.state.results.get("selection")
    n_aligned, accuracies = run.state.run_spec.n_aligned, None
    if selection is not None and selection.accuracies and 0 < n_aligned < len(run.state.run_spec.specs):
        best = [max(each) for each in selection.accuracies]
        accuracies = max(best[:-n_aligned]), max(best[-n_aligned:])
    return {"parties": None if ranks is None else ranks.n_aligned, "is_used": is_used, "accuracies": accuracies}


def _refinement(run: Run) -> dict[str, Any] | None:
    """Balanced accuracy on the samples held out of the refinement, and parties that missed a round; None without it."""
    search = searched(run.state)
    if search is None:
        return None
    found = {name: each.missing for name, each in run.state.results.items() if isinstance(each, Refined)}
    return {
        "accuracy_before": search.accuracies[0] if search.accuracies else None,
        "accuracies": list(search.accuracies[1:]),
        "is_used": search.best is not None,
        "missing": {name: missing for name, missing in found.items() if missing},
    }


def _pairs(run: Run) -> dict[str, Any] | None:
    """Size, accuracy and weight of the pair sums, and parties that missed an exchange; None without them."""
    found = {name: result for name, result in run.state.results.items() if is_of_pairs(name)}
    if "pair trial" not in found:
        return None
    scoring = pairs_of(run.state, run.options)
    return {
        "rows": len(found["pairs"].fit.weights),
        "accuracy": None if scoring is None else scoring.accuracy,
        "share": None if scoring is None else scoring.share,
        "missing": {name: each.missing for name, each in found.items() if each.missing},
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


def _privacy(strategy: BaseStrategy, mechanism: Mechanism) -> dict[str, Any]:
    """The promise of the mechanism, and the number of samples that the noisy counts suggest."""
    epsilon = mechanism.epsilon(mechanism.delta)
    return {
        "guarantee": mechanism.guarantee(),
        "mechanism": mechanism.to_dict(),
        "epsilon": epsilon if math.isfinite(epsilon) else None,
        "delta": mechanism.delta,
        "noise_sd": mechanism.noise_sd,
        "examples_estimate": None if strategy.counts.n_per_class is None else int(strategy.counts.n_examples),
        "covers_evaluation": not strategy.run.options.is_evaluated,
    }


def _in_short(spec: HashSpec) -> dict[str, Any]:
    """A spec without the vectors of as many numbers as there are columns."""
    values = spec.to_dict()
    vectors = ("center", "scale", "edges", "row_weights")
    return {name: value is not None if name in vectors else value for name, value in values.items()}


def compared(
    config: RunConfig, strategy: BaseStrategy, plan: HashPlan | None, parties: int, after: Federation
) -> dict[str, Any]:
    """Digest and equalities of a model of the pooled training samples of the counted parties; None: not comparable."""
    among = None  # all
    if config.action != "train" or config.parties or strategy.run.left_out:
        numbers = {f"party-{party}": party for party in range(parties)}
        among = [numbers[member.name] for member in after.members if member.name in numbers]
    X, codes, n_classes = datasets.pooled_training(config, parties, among)
    model, selection, results = strategy.model.model_, strategy.selection, strategy.run.state.results
    chosen = config.party_numbers()
    wanted = parties if chosen is None else len(chosen)
    # Counts of some of the parties cannot be the pooled counts.
    complete = config.action != "train" or len(strategy.parties) == wanted
    found: dict[str, Any] = {}
    columns: Any = results.get("columns")
    if columns is not None and plan is not None:
        found["columns_equal"] = None
        if columns.moments.n_examples == len(codes):  # no class was left out at any party
            rows, labels = (n_classes, codes) if plan.needs_classes else (1, 0 * codes)
            found["columns_equal"] = columns.moments == ColumnMoments.from_data(X, labels, rows)
    if (ranks := results.get("histograms")) is not None:
        found["histograms_equal"] = None
        if ranks.histograms.n_examples == len(codes) and config.min_examples == 1:  # all values are in them
            center, _ = columns.moments.center_and_scale("center")
            both: Any = ranks.histograms, ColumnHistograms.from_data(X, codes, n_classes, center)
            if config.secure:  # of which no more is known
                both = tuple((each.edges().tolist(), each.relevance()) for each in both)
            found["histograms_equal"] = both[0] == both[1]
    run_spec = strategy.run.state.run_spec
    specs, kept_by = run_spec.specs, X
    if (reference := run_spec.reference) is not None:
        n_plain = len(specs) - run_spec.n_aligned
        specs = specs[n_plain:] if model.aligned else specs[:n_plain]
        if model.aligned:  # that of the aligned samples of all parties
            shares = datasets.training_shares(config, parties, among)
            X, codes = _aligned(reference, shares, config.min_examples)
            kept_by = np.concatenate([rows for rows, _ in shares]) if n_plain else X
    parts = None
    if selection is not None:
        found["selection_equal"] = None
        if complete and selection.accuracies and not selection.missing:
            most = strategy.run.options.max_members
            best, _ = fit_members(specs, X, codes, n_classes, config.rule, config.decay_value(), -1, most, kept_by)
            facts = [[(each.spec, each.scoring, each.weight) for each in members] for members in (best, model.members)]
            found["selection_equal"] = facts[0] == facts[1]
            parts = best if found["selection_equal"] else None
    if parts is None:
        parts = tuple(
            replace(each, counts=ClassCounts.from_data(each.hash, X, codes, n_classes, n_jobs=-1))
            for each in model.members
        )
    if (refinement := _refinement(strategy.run)) is not None:
        found["refined_equal"] = None
        if complete and found.get("selection_equal", True) and not refinement["missing"]:
            unrefined = replace(model, members=tuple(parts), refined=None)
            pooled_model = refine(unrefined, X, codes, config.refine_rounds, -1)
            found["refined_equal"] = pooled_model.sha256() == model.sha256()
    if (pairs := _pairs(strategy.run)) is not None and model.pairs is not None:
        found["pairs_equal"] = None
        if complete and found.get("selection_equal", True) and not pairs["missing"]:
            accuracy = None if selection is None else selection.accuracy
            pooled_pairs = learn_pairs(model.pairs.specs, X, codes, n_classes, accuracy, -1)
            found["pairs_equal"] = pooled_pairs is not None and pooled_pairs.sha256() == model.pairs.sha256()
    pooled, federated = counts_sha256(parts), counts_sha256(model.members)
    return {"pooled": pooled, "equal": pooled == federated if complete else None, **found}


def _aligned(reference: Reference, shares: Sequence[tuple[Any, Any]], min_examples: int) -> tuple[Any, Any]:
    """The samples of parties, each aligned as it aligns them itself, and their class codes."""
    alignments = [reference.alignment(X, y, min_examples) if len(y) else None for X, y in shares]
    rows = [X if each is None else each.applied(X) for each, (X, _) in zip(alignments, shares, strict=True)]
    return np.concatenate(rows), np.concatenate([y for _, y in shares])


def table(report: dict[str, Any], folder: Path) -> str:
    """The report's short form, for the end of the run's log."""
    parties, evaluation, sha, privacy = (report[name] for name in ("parties", "evaluation", "sha256", "privacy"))
    simulation, silent = report.get("simulation"), report["evaluation_missing"]
    asked = simulation["parties"] if simulation else len(parties) + len(report["missing"])
    rows = []
    if done := _DONE[report["action"]]:
        rows.append((f"parties {done}", f"{len(parties)} of {asked}"))
        rows += [(f"  not {done}: {name}", reason) for name, reason in report["missing"].items()]
    if report["action"] != "train":
        rows.append(("parties in all", f"{len(report['federation'])}"))
    if groups := report["groups"]:
        shown = f"{len(groups['left_out'])} of {len(groups['groups'])}"
        rows.append(("groups left out", f"{shown}; accuracy {groups['accuracy']:.4f} on the server's samples"))
        rows += [(f"  left out: {name}", "its group makes the model worse") for name in groups["parties_left_out"]]
    examples = f"{report['examples']}"
    if privacy:
        estimate = privacy["examples_estimate"]
        examples = "hidden" if estimate is None else f"hidden, about {estimate} by the noisy counts"
    rows.append(("training examples", examples))
    if simulation:
        handed_out, points = simulation["handed_out"], simulation["points"]
        rows.append(("  samples dealt out", f"{handed_out} of {points}; those not trained on are held out"))
        if simulation["empty_parties"]:
            rows.append(("  parties with no samples", f"{simulation['empty_parties']}"))
    rows += _hash_rows(report) + _refinement_rows(report) + _pairs_rows(report)
    if privacy:
        promise = "NONE: seeded noise, for simulations"
        if privacy["epsilon"] is not None:
            promise = f"epsilon {shown_bound(privacy['epsilon'])}, delta {shown_bound(privacy['delta'])}"
        rows.append(("privacy", f"{promise}; noise of standard deviation {privacy['noise_sd']:.4g} at each party"))
        if evaluation:
            rows.append(("  not covered", "the confusion matrices behind the figures below"))
    if traffic := report["traffic"]:
        total = {way: sum(each[way] for each in traffic.values()) for way in ("up", "down")}
        rows += [
            (name, f"{_bytes(each['up'])} up, {_bytes(each['down'])} down")
            for name, each in (("bytes per party", total), *((f"  {_STEPS.get(k, k)}", v) for k, v in traffic.items()))
        ]
    if evaluation:
        names = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1"}
        rows += [(name, f"{evaluation[key]:.4f}") for key, name in names.items()]
        worst = evaluation["worst_party"]
        seen = f"{worst['accuracy']:.4f} ({worst['name']}, {worst['examples']} held-out samples)"
        rows.append(("worst party", seen))
        if own := evaluation.get("class_prior"):
            worst = own["worst_party"]
            found = f"{own['accuracy']:.4f}, worst party {worst['accuracy']:.4f} ({worst['name']})"
            rows.append(("with class prior", found))
    else:
        why = f"failed at {len(silent)} parties" if silent else "none: no party holds test samples"
        why = why if report["evaluates"] else "none: no results leave the parties"
        trouble = ", ".join(dict.fromkeys(report["evaluation_trouble"]))
        rows.append(("evaluation", f"failed with {trouble}" if trouble else why))
    missed = "not evaluated" if report["evaluates"] else "has no model"
    rows += [(f"  {missed}: {name}", reason) for name, reason in silent.items()]
    rows += [(f"  could not keep the model: {name}", reason) for name, reason in report["unkept"].items()]
    rows += [("SHA-256 of the model", sha["model"])] if "model" in sha else []
    rows.append(("SHA-256 of the counts", sha["federated"]))
    if "pooled" in sha:
        rows.append(("  trained on pooled data", sha["pooled"]))
        for name in [name for name in EQUALITIES if name in sha]:
            unknown = f"{len(report['missing'])} missing" if name == "equal" else "not all samples took part"
            rows.append((EQUALITIES[name], {True: "yes", False: "NO", None: f"n/a, {unknown}"}[sha[name]]))
    if privacy and simulation:
        rows.append((EQUALITIES["equal"], "n/a, noisy"))
    rows.append(("output folder", str(folder)))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    if privacy:
        lines += ["", *textwrap.wrap(privacy["guarantee"], 110, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(["", "FlyNN", *lines, ""])


_DONE = {"train": "counted", "join": "joined", "withdraw": "taken out", "evaluate": "", "resume": ""}
"""Verbs of the actions, for the parties that a run counts."""

_STEPS = {
    "columns": "sums of the columns",
    "histograms": "histograms of the columns",
    "evaluation": "model and evaluation",
}


def _hash_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows, columns, selection = [], report["columns"], report["selection"]
    if columns is not None:
        rows.append(("scaling", f"{report['scaling']}, from sums of the columns of {columns['examples']} samples"))
        rows += [(f"  no sums: {name}", reason) for name, reason in columns["missing"].items()]
    if (histograms := report["histograms"]) is not None:
        rows.append(("rank codes", f"from histograms of the columns of {histograms['examples']} samples"))
        rows += [(f"  no histograms: {name}", reason) for name, reason in histograms["missing"].items()]
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
        if (alignment := report["alignment"]) is not None:
            rows.append(("alignment", _aligned_text(alignment)))
        for (spec, _, weight), member in zip(selection["choices"], report["members"], strict=True):
            size = f"{member['hash_dim']} rows, {member['hash_nnz']} winners"
            rows.append((f"  member {spec + 1}", f"weight {weight:.2f}, decay {member['decay']:.4g}, {size}"))
    rows += [(f"  not in the selection: {name}", reason) for name, reason in selection["missing"].items()]
    return rows


def _aligned_text(alignment: dict[str, Any]) -> str:
    if alignment["accuracies"] is None:
        return "that of the saved run" if alignment["is_used"] else "none: no party's columns differ beyond chance"
    plain, aligned = alignment["accuracies"]
    used = "used by parties; the server's model has none" if alignment["is_used"] else "not used"
    return f"{used}: leave-one-out {aligned:.4f}, {plain:.4f} without; {alignment['parties']} parties have one"


def _refinement_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    refinement = report["refinement"]
    if refinement is None:
        can_be = report["selection"] is not None and report["action"] != "evaluate"
        text = "none; pairs=1024, or refine-rounds=6, would make the model more accurate, for more bytes"
        return [("refinement", text)] if can_be and report["pairs"] is None else []
    if not refinement["accuracies"]:
        return [("refinement", "none: no party with samples replied")]
    before, found = refinement["accuracy_before"], refinement["accuracies"]
    used = "" if refinement["is_used"] else "; the model is left as it was"
    text = f"{before:.4f} before, {max(found):.4f} in round {found.index(max(found)) + 1} of {len(found)}{used}"
    rows = [("refinement, held out", text)]
    return rows + _missing_rows(refinement["missing"])


def _pairs_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = report["pairs"]
    if pairs is None:
        return []
    rows = [("pair sums", "none: too few parties replied, or their sums lead to no regression")]
    if pairs["accuracy"] is not None:
        text = f"{pairs['rows']} rows, leave-one-out {pairs['accuracy']:.4f}, weight {pairs['share']:.2f}"
        rows = [("pair sums", text)]
    return rows + _missing_rows(pairs["missing"])


def _missing_rows(missing: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """Reasons of the parties that missed each of some phases."""
    return [(f"  {phase}: {name}", reason) for phase, reasons in missing.items() for name, reason in reasons.items()]


def _bytes(n: float) -> str:
    return f"{n:.0f} B" if n < 1000 else f"{n / 1e3:.1f} kB" if n < 1e6 else f"{n / 1e6:.1f} MB"
