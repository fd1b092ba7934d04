"""Log lines of a run: its plan at the start, one line for every party, one for every
phase.

The only facts about the data in a line are numbers of samples and accuracies; with
noisy counts there are none. `federated.roster` cleans names and reasons of parties.
"""

from __future__ import annotations

from collections.abc import Iterator
from logging import INFO, WARNING
from typing import Any

from flwr.common.logger import log

from flwr_flynn._validation import listed
from flwr_flynn.federated.phase import ALL, NEW
from flwr_flynn.federated.phases.columns import Columns
from flwr_flynn.federated.phases.evaluation import Evaluation
from flwr_flynn.federated.phases.selection import Selection
from flwr_flynn.federated.phases.table_schema import LearnedSchema
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.roster import missing_text
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.federated.run_spec import LEAST_PARTIES, RunSpec
from flwr_flynn.federated.samples import subgroup_names

Line = tuple[int, str]
"""A level of `logging`, and a text."""


def log_lines(lines: Iterator[Line]) -> None:
    """Send lines to Flower's log."""
    for level, line in lines:
        log(level, "FlyNN: %s", line)


def hash_lines(run: RunSpec) -> list[str]:
    """One line for each spec."""
    lines = []
    for spec, hasher in zip(run.specs, run.hashers, strict=True):
        lines.append(
            f"hash: {spec.n_features} features, {spec.n_inputs} inputs -> "
            f"{spec.hash_dim} rows of {spec.row_nnz} "
            f"{'+1/-1' if spec.signed else '0/1'} entries, {spec.hash_nnz} winners, "
            f"seed {spec.seed}; "
            f"fingerprint {hasher.fingerprint[:16]}"
        )
    return lines


def plan_lines(run: Run, min_available: int, wait_timeout: float) -> Iterator[Line]:
    """The plan of a run, before a party is asked."""
    options = run.options
    spec = run.state.run_spec
    yield (
        INFO,
        f"phases: {', '.join(phase.name for phase in run.phases)}; rounds: "
        f"{run.num_rounds}",
    )
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
    yield (
        INFO,
        f"evaluation by the parties: {'all' if options.is_evaluated else 'none'}",
    )
    if spec.guarantee:
        yield INFO, f"privacy: {spec.guarantee}"
        if options.is_evaluated:
            yield (
                INFO,
                "NOT COVERED: the confusion matrices that parties send in the "
                "evaluation",
            )


def result_lines(run: Run, result: ExchangeResult) -> Iterator[Line]:
    """The results of one exchange: a line for every party that is counted, those that
    are missing, and the phase.
    """
    phase = result.phase
    batch = result.batch
    names = result.names
    if phase.audience in (ALL, NEW):
        done = (
            ("updated" if run.options.purpose == "update" else "withdrawn")
            if batch.taken_out
            else "accepted"
        )
        hidden = "noisy counts"
        if run.state.run_spec.mechanism is None:
            hidden = "number of samples hidden"
        for cid, member in batch.members.items():
            seconds = ""
            if member.seconds is not None:
                seconds = f", {member.seconds:.2f} s"
            if member.examples is None:
                samples = hidden
            else:
                samples = f"{member.examples} samples"
            yield (
                INFO,
                f"{phase.name}: {names[cid]}: {samples}, {member.bytes} "
                f"bytes{seconds}, {done}",
            )
    for cid in batch.repeated:
        yield WARNING, f"{phase.name}: {names[cid]}: replied again, ignored"
    if result.missing:
        yield WARNING, f"{phase.name}: missing: {missing_text(result.missing)}"
    if phase.is_counting:
        yield from _namesake_lines(run, result)
    if run.state.run_spec.is_secure and phase.channel == TRAIN:
        yield from _difference_lines(run, result)
    following = ""
    if run.due is not None:
        following = f"; next: {run.due.name}"
    yield INFO, f"{phase.name}: {_outcome(run, result)}{following}"
    found = run.state.results.get(phase.name)
    if isinstance(found, LearnedSchema) and found.left_out:
        named = listed(
            [f"{name[:60]!r} ({reason})" for name, reason in found.left_out.items()]
        )
        yield WARNING, f"{phase.name}: columns are left out: {named}"
    column = ""
    if isinstance(found, LearnedSchema):
        column = run.options.group_column
    if column and not subgroup_names(run.state.run_spec.feature_names, column):
        yield (
            WARNING,
            f"{phase.name}: no category {column[:60]!r} was learned, so there are no "
            "figures by its levels",
        )
    if isinstance(found, Columns):  # from which the hashes follow
        if found.fallback_reason:
            yield WARNING, f"{phase.name}: COLUMNS NOT SCALED: {found.fallback_reason}"
        for line in hash_lines(run.state.run_spec):
            yield INFO, line
    if isinstance(found, Evaluation):
        for name, reason in found.unkept.items():
            yield WARNING, f"evaluation: {name}: could not save the model: {reason}"


def _difference_lines(run: Run, result: ExchangeResult) -> Iterator[Line]:
    """Warning where two secure sums differ in few parties: the difference discloses
    their figures.
    """
    for name, roster in run.rosters.items():
        others = {member.node for member in roster.counted} ^ result.batch.passed.keys()
        if len(roster) and result.batch.passed and 0 < len(others) < LEAST_PARTIES:
            parties = listed(
                [result.names.get(cid, f"node {cid}") for cid in sorted(others)]
            )
            text = (
                f"in only one of the sums {name} and {result.phase.name}: the "
                "difference discloses their figures"
            )
            yield WARNING, f"{result.phase.name}: {parties}: {text}"
            return


def _namesake_lines(run: Run, result: ExchangeResult) -> Iterator[Line]:
    for name, cids in run.counted.namesakes().items():
        if result.batch.members.keys() & set(cids):
            parties = (
                f"{len(cids)} COUNTED PARTIES GIVE THE SAME NAME, {name} (nodes "
                f"{', '.join(cids)})"
            )
            yield (
                WARNING,
                f"{parties}: if a node restarted under a new id, its samples are "
                "counted twice",
            )


def _outcome(run: Run, result: ExchangeResult) -> str:
    answers = (
        f"{len(result.batch.passed)} of "
        f"{len(result.batch.passed) + len(result.missing)} parties"
    )
    found = run.state.results.get(result.phase.name)
    if result.phase.is_counting:
        if run.is_enough:
            enough = ""
        else:
            enough = f"; at least {run.options.min_parties} are needed"
        return f"{answers}, {len(run.counted)} in all{enough}"
    if isinstance(found, LearnedSchema):
        return f"{run.state.run_spec.spec.n_features} numbers a row ({answers})"
    if isinstance(found, Selection):
        compared = "not compared"
        if found.accuracy is not None:
            compared = f"best leave-one-out {found.accuracy:.4f}"
        chosen = ", ".join(
            f"{choice.spec + 1} ({choice.weight:.2f})" for choice in found.choices
        )
        members = ""
        if len(found.candidates) > 1:
            members = f"candidates {chosen} of {len(found.candidates)}, "
        return f"{members}decay {found.scorings[0].decay:.4g} ({compared}, {answers})"
    if isinstance(found, Evaluation) and found.figures is not None:
        figures: dict[str, Any] = found.figures
        worst = figures["worst_party"]
        shown = (
            f"accuracy {figures['accuracy']:.4f} on {figures['examples']} test samples"
        )
        if worst is None:
            return f"{shown} ({answers})"
        return (
            f"{shown} of {len(figures['parties'])} parties, "
            f"{worst['accuracy']:.4f} at {worst['name']}, the worst"
        )
    return answers
