"""Log lines of a run: its plan, and one line for every party and every phase.

The only facts about the data in a line are numbers of samples and accuracies; with
noisy counts there are none. `federated.roster` cleans names and reasons of parties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from logging import INFO, WARNING
from string import digits
from typing import Any

from flwr.common.logger import log

from flwr_flynn._validation import listed
from flwr_flynn.errors import clean
from flwr_flynn.federated.phase import ALL, NEW
from flwr_flynn.federated.phases.calibration import CalibrationResult
from flwr_flynn.federated.phases.columns import Columns
from flwr_flynn.federated.phases.selection import Selection
from flwr_flynn.federated.phases.table_schema import LearnedSchema
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.results import Evaluation
from flwr_flynn.federated.roster import missing_text
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.secure_bound import LEAST_PARTIES
from flwr_flynn.federated.subgroups import subgroup_names
from flwr_flynn.model.growth import Growth
from flwr_flynn.model.scoring import MAX_LOSS
from flwr_flynn.tables.remarks import MOST

Line = tuple[int, str]
"""A level of `logging`, and a text."""


def log_lines(lines: Iterator[Line]) -> None:
    """Send lines to Flower's log."""
    for level, line in lines:
        log(level, "FlyNN: %s", clean(line, 10_000))


def spans(phases: Iterable[str]) -> dict[str, list[str]]:
    """Names of phases; those in a row that only differ by a number have one name, such
    as "trees 1 to 16".
    """
    by_stem = groupby(phases, lambda name: name.rstrip(digits))
    series = [list(names) for _, names in by_stem]
    return {_span(names): names for names in series}


def _span(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]} to {names[-1].split()[-1]}"


def hash_lines(run: RunSpec) -> list[str]:
    """One line for each spec."""
    lines = []
    for spec, hasher in zip(run.specs, run.hashers, strict=True):
        entries = "0/1"
        if spec.signed:
            entries = "+1/-1"
        lines.append(
            f"hash: {spec.n_features} features, {spec.n_inputs} inputs -> "
            f"{spec.hash_dim} rows of {spec.row_nnz} {entries} entries, "
            f"{spec.hash_nnz} winners, seed {spec.seed}; "
            f"fingerprint {hasher.fingerprint[:16]}"
        )
    return lines


def plan_lines(run: Run, min_available: int, wait_timeout: float) -> Iterator[Line]:
    """The plan of a run, before a party is asked."""
    options = run.options
    spec = run.state.run_spec
    names = ", ".join(spans(phase.name for phase in run.phases))
    yield INFO, f"phases: {names}; rounds: {run.num_rounds}"
    if options.plan is not None:
        yield INFO, f"hash: from the parties' columns, scaling {options.plan.scaling}"
    else:
        yield from ((INFO, line) for line in hash_lines(spec))
    yield (
        INFO,
        f"classes: {spec.n_classes}; counts: {spec.mode}; rule {options.rule}, decay "
        f"{options.decay}",
    )
    waits = (
        f"waits for {min_available} (at most {wait_timeout:g} s), needs "
        f"{options.min_parties} counted"
    )
    yield INFO, f"parties: {waits}"
    if options.is_evaluated:
        yield INFO, "evaluation by the parties: all"
    else:
        yield INFO, "evaluation by the parties: none"
    if spec.guarantee:
        yield INFO, f"privacy: {spec.guarantee}"
        if options.is_evaluated:
            yield (
                INFO,
                "NOT COVERED: the confusion matrices that parties send in the "
                "evaluation",
            )


def result_lines(run: Run, exchange: ExchangeResult) -> Iterator[Line]:
    """The results of one exchange.

    They are a line for every party that is counted, those that are missing, and the
    phase.
    """
    phase = exchange.phase
    if phase.audience in (ALL, NEW):
        yield from _party_lines(run, exchange)
    for cid in exchange.batch.repeated:
        yield WARNING, f"{phase.name}: {exchange.names[cid]}: replied again, ignored"
    if exchange.missing:
        yield WARNING, f"{phase.name}: missing: {missing_text(exchange.missing)}"
    if phase.is_counting:
        yield from _namesake_lines(run, exchange)
    if run.state.run_spec.is_secure and phase.channel == TRAIN:
        yield from _difference_lines(run, exchange)
    following = ""
    if run.due is not None:
        following = f"; next: {run.due.name}"
    yield INFO, f"{phase.name}: {_outcome(run, exchange)}{following}"
    outcome = run.state.results.get(phase.name)
    if isinstance(outcome, LearnedSchema):
        yield from _schema_lines(run, phase.name, outcome)
    if isinstance(outcome, Columns):
        if outcome.fallback_reason:
            yield (
                WARNING,
                f"{phase.name}: COLUMNS NOT SCALED: {outcome.fallback_reason}",
            )
        # The hashes follow from the columns.
        for line in hash_lines(run.state.run_spec):
            yield INFO, line
    if isinstance(outcome, Evaluation):
        for name, reason in outcome.unkept.items():
            yield WARNING, f"evaluation: {name}: could not save the model: {reason}"


def _party_lines(run: Run, exchange: ExchangeResult) -> Iterator[Line]:
    """A line for each party that is counted."""
    done = "accepted"
    if exchange.batch.taken_out:
        done = "withdrawn"
        if run.options.purpose == "update":
            done = "updated"
    hidden = "noisy counts"
    if run.state.run_spec.mechanism is None:
        hidden = "number of samples hidden"
    for cid, member in exchange.batch.members.items():
        seconds = ""
        if member.seconds is not None:
            seconds = f", {member.seconds:.2f} s"
        samples = hidden
        if member.examples is not None:
            samples = f"{member.examples} samples"
        yield (
            INFO,
            f"{exchange.phase.name}: {exchange.names[cid]}: {samples}, "
            f"{member.bytes} bytes{seconds}, {done}",
        )


def _schema_lines(run: Run, phase: str, learned: LearnedSchema) -> Iterator[Line]:
    """Warnings of columns that are left out, and of subgroups without levels."""
    if learned.left_out:
        columns = listed(
            [f"{name[:60]!r} ({reason})" for name, reason in learned.left_out.items()]
        )
        yield WARNING, f"{phase}: columns are left out: {columns}"
    for remark in learned.remarks[:MOST]:
        yield WARNING, f"{phase}: {remark.text()}"
    column = run.options.group_column
    if column and not subgroup_names(run.state.run_spec.feature_names, column):
        yield (
            WARNING,
            f"{phase}: no category {column[:60]!r} was learned, so there are no "
            "figures by its levels",
        )


def _difference_lines(run: Run, exchange: ExchangeResult) -> Iterator[Line]:
    """Warning where two secure sums differ in few parties.

    The difference discloses their figures.
    """
    passed = exchange.batch.passed
    for name, roster in run.rosters.items():
        cids = {member.node for member in roster.counted} ^ passed.keys()
        if len(roster) and passed and 0 < len(cids) < LEAST_PARTIES:
            parties = listed(
                [exchange.names.get(cid, f"node {cid}") for cid in sorted(cids)]
            )
            yield (
                WARNING,
                f"{exchange.phase.name}: {parties}: in only one of the sums {name} and "
                f"{exchange.phase.name}: the difference discloses their figures",
            )
            return


def _namesake_lines(run: Run, exchange: ExchangeResult) -> Iterator[Line]:
    for name, cids in run.counted.namesakes().items():
        if exchange.batch.members.keys() & set(cids):
            yield (
                WARNING,
                f"{len(cids)} COUNTED PARTIES GIVE THE SAME NAME, {name} (nodes "
                f"{', '.join(cids)}): if a node restarted under a new id, its samples are "
                "counted twice",
            )


def _outcome(run: Run, exchange: ExchangeResult) -> str:
    n_passed = len(exchange.batch.passed)
    answers = f"{n_passed} of {n_passed + len(exchange.missing)} parties"
    outcome = run.state.results.get(exchange.phase.name)
    if exchange.phase.is_counting:
        enough = ""
        if not run.is_enough:
            enough = f"; at least {run.options.min_parties} are needed"
        return f"{answers}, {len(run.counted)} in all{enough}"
    if isinstance(outcome, LearnedSchema):
        return f"{run.state.run_spec.spec.n_features} numbers a row ({answers})"
    if isinstance(outcome, CalibrationResult):
        return f"{outcome.described()} ({answers})"
    if isinstance(outcome, Growth):
        return f"{_growth_text(outcome)} ({answers})"
    if isinstance(outcome, Selection):
        return _selection_text(outcome, answers)
    if isinstance(outcome, Evaluation) and outcome.figures is not None:
        return _evaluation_text(outcome.figures, answers)
    return answers


def _growth_text(growth: Growth) -> str:
    if growth.best_loss > MAX_LOSS:
        return "no sums, so no trees"
    n_leaves = len(growth.forest.leaf_nodes)
    return f"{n_leaves} leaves, least log-loss so far {growth.best_loss:.4f}"


def _selection_text(selection: Selection, answers: str) -> str:
    compared = "not compared"
    if selection.accuracy is not None:
        compared = f"best leave-one-out {selection.accuracy:.4f}"
    chosen = ", ".join(
        f"{choice.spec + 1} ({choice.weight:.2f})" for choice in selection.choices
    )
    members = ""
    if len(selection.candidates) > 1:
        members = f"candidates {chosen} of {len(selection.candidates)}, "
    return f"{members}decay {selection.scorings[0].decay:.4g} ({compared}, {answers})"


def _evaluation_text(figures: Mapping[str, Any], answers: str) -> str:
    shown = f"accuracy {figures['accuracy']:.4f} on {figures['examples']} test samples"
    worst = figures["worst_party"]
    if worst is None:
        return f"{shown} ({answers})"
    return (
        f"{shown} of {len(figures['parties'])} parties, "
        f"{worst['accuracy']:.4f} at {worst['name']}, the worst"
    )
