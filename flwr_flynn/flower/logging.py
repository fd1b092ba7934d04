"""Log lines of a run: its plan at the start, one line for every party, one for every phase.

Nothing in a line depends on the data beyond numbers of samples, which noisy counts hide; names and reasons of parties
are cleaned by `federated.roster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from logging import INFO, WARNING
from typing import Any

from flwr.common.logger import log

from flwr_flynn._validation import listed
from flwr_flynn.federated.forecast import forecast
from flwr_flynn.federated.outcome import Refined, searched
from flwr_flynn.federated.phases.columns import AlignedColumns, Columns
from flwr_flynn.federated.phases.evaluation import Evaluation
from flwr_flynn.federated.phases.selection import Selection
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.federated.run_spec import LEAST_PARTIES, RunSpec, Secure

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
        waves = f" and {spec.n_waves} waves" if spec.n_waves else ""
        waves += f" in {spec.n_codes} {spec.coding} each" if spec.coding else ""
        lines.append(
            f"hash: {spec.n_features} features{waves} -> {spec.hash_dim} rows of {spec.row_nnz} "
            f"{'+1/-1' if spec.signed else '0/1'} entries, {spec.hash_nnz} winners, seed {spec.seed}; "
            f"fingerprint {hasher.fingerprint[:16]}"
        )
    return lines


def plan_lines(run: Run, min_available: int, wait_timeout: float) -> Iterator[Line]:
    """The plan of a run, before anybody is asked."""
    options, spec = run.options, run.state.run_spec
    evaluated = f"{options.fraction_evaluate:.0%} of the parties" if options.fraction_evaluate else "left out"
    if options.distribute and not options.fraction_evaluate:
        evaluated += ", they only get the model"
    scaling = None if options.plan is None else f"hash: from the parties' columns, scaling {options.plan.scaling}"
    failures = "accepted" if options.accept_failures else "not accepted"
    for line in (
        f"phases: {', '.join(phase.name for phase in run.phases)}; rounds: {run.num_rounds}",
        *([scaling] if scaling else hash_lines(spec)),
        f"classes: {spec.n_classes}; counts: {spec.mode.name}; rule {options.rule}, decay {options.decay}",
        f"parties: waits for {min_available} (at most {wait_timeout:g} s), needs {options.min_parties} counted; "
        f"failures {failures}",
        f"evaluation by the parties: {evaluated}",
    ):
        yield INFO, line
    if (found := forecast(options, max(min_available, 1))) is not None:
        phases = ", ".join(f"{name} {each.up / 1e3:.0f} / {each.down / 1e3:.0f}" for name, each in found.items())
        total = sum(each.up + each.down for each in found.values()) / 1e3
        share = "a party with an equal share of the samples"
        yield INFO, f"forecast: at most about {total:.0f} kB for {share} (kB up / down: {phases})"
    if spec.guarantee:
        yield INFO, f"privacy: {spec.guarantee}"
        if options.fraction_evaluate:
            yield INFO, "NOT COVERED: the confusion matrices that parties send in the evaluation"


def result_lines(run: Run, taken: ExchangeResult, told: dict[str, str] | None = None) -> Iterator[Line]:
    """The results of one exchange: a line for every party, then one for the phase.

    `told`: newest reasons of missing parties in earlier lines, by name, which are not told again; brought up to date.
    """
    phase, batch, names = taken.phase, taken.batch, taken.names
    if phase.channel == TRAIN:
        done = "taken out" if batch.taken_out else "accepted"
        hidden = "examples hidden" if run.state.run_spec.mechanism is None else "noisy counts"
        for cid, member in batch.members.items():
            took = "" if member.seconds is None else f", {member.seconds:.2f} s"
            samples = hidden if member.examples is None else f"{member.examples} examples"
            yield INFO, f"{phase.name}: {names[cid]}: {samples}, {member.bytes} bytes{took}, {done}"
    for cid in batch.repeated:
        yield WARNING, f"{phase.name}: {names[cid]}: replied again, ignored"
    told = {} if told is None else told
    again = [name for name, reason in taken.missing.items() if told.get(name) == reason]
    for name, reason in taken.missing.items():
        if name not in again:
            yield WARNING, f"{phase.name}: {name}: missing: {reason}"
    if again:
        yield WARNING, f"{phase.name}: missing for the same reason as before: {listed(again)}"
    told.update(taken.missing)
    if not taken.accepted:
        yield WARNING, f"{phase.name}: set aside, because failures are not accepted"
    if phase.is_counting:
        yield from _namesake_lines(run, taken)
    if isinstance(run.state.run_spec.mode, Secure) and phase.channel == TRAIN:
        yield from _difference_lines(run, taken)
    following = "" if run.due is None else f"; next: {run.due.name}"
    yield INFO, f"{phase.name}: {_result(run, taken)}{following}"
    result = run.state.results.get(phase.name)
    if isinstance(result, Columns):  # from which the hashes follow
        if result.trouble:
            yield WARNING, f"{phase.name}: THE COLUMNS ARE LEFT AS THEY ARE: {result.trouble}"
        for line in hash_lines(run.state.run_spec):
            yield INFO, line
    if isinstance(result, Evaluation):
        for name, reason in result.unkept.items():
            yield WARNING, f"evaluation: {name}: could not keep the model: {reason}"


def _difference_lines(run: Run, taken: ExchangeResult) -> Iterator[Line]:
    for name, roster in run.rosters.items():
        others = {member.node for member in roster.counted} ^ taken.batch.passed.keys()
        if len(roster) and taken.batch.passed and 0 < len(others) < LEAST_PARTIES:
            who = listed([taken.names.get(cid, f"node {cid}") for cid in sorted(others)])
            both = f"in this sum or in that of {name}, not in both: what differs is theirs alone"
            yield WARNING, f"{taken.phase.name}: {who}: {both}"
            return


def _namesake_lines(run: Run, taken: ExchangeResult) -> Iterator[Line]:
    for name, cids in run.counted.namesakes().items():
        if taken.batch.members.keys() & set(cids):
            who = f"{len(cids)} COUNTED PARTIES GIVE THE SAME NAME, {name} (nodes {', '.join(cids)})"
            yield WARNING, f"{who}: if a node restarted under a new id, its samples are counted twice"


def _result(run: Run, taken: ExchangeResult) -> str:
    asked = len(taken.batch.passed) + len(taken.missing)
    answers = f"{len(taken.batch.passed)} of {asked} parties"
    result = run.state.results.get(taken.phase.name)
    if taken.phase.is_counting:
        enough = "" if run.is_enough else f"; at least {run.options.min_parties} are needed"
        gone = f"; {len(run.left_out)} in groups that are left out" if run.options.grouping else ""
        return f"{answers}, {len(run.counted)} in all{enough}{gone}"
    if isinstance(result, AlignedColumns):
        return f"{answers}; {result.n_aligned} align their columns"
    if isinstance(result, Selection):
        compared = "not compared" if result.accuracy is None else f"best leave-one-out {result.accuracy:.4f}"
        n_specs = len(result.candidates)
        specs = [f"{choice.spec + 1} ({choice.weight:.2f})" for choice in result.choices]
        members = f"candidates {', '.join(specs)} of {n_specs}, " if n_specs > 1 else ""
        return f"{members}decay {result.scorings[0].decay:.4g} ({compared}, {answers})"
    search = searched(run.state)
    if isinstance(result, Refined) and search is not None and search.accuracies:
        before, latest = search.accuracies[0], search.accuracies[-1]
        return f"balanced accuracy on held-out samples {latest:.4f}, {before:.4f} without refinement ({answers})"
    if isinstance(result, Evaluation) and result.figures is not None:
        figures: dict[str, Any] = result.figures
        worst, own = figures["worst_party"], figures.get("class_prior")
        class_prior = ""
        if own:
            class_prior = f"; with class prior {own['accuracy']:.4f}, worst {own['worst_party']['accuracy']:.4f}"
        return (
            f"accuracy {figures['accuracy']:.4f} on {figures['examples']} examples of "
            f"{len(figures['parties'])} parties, {worst['accuracy']:.4f} at {worst['name']}, the worst{class_prior}"
        )
    return answers


def progress(total: int) -> Callable[[int], None]:
    """A function of numbers of samples just hashed, which logs every ten seconds how many of `total` they are by now.

    Numbers of samples stay on this machine: of a private party nobody else may know them.
    """
    done, start = 0, time.monotonic()
    last = start

    def hashed(n_samples: int) -> None:
        nonlocal done, last
        done, now = done + n_samples, time.monotonic()
        if now - last >= 10:
            last = now
            log(INFO, "FlyNN: %d of %d samples hashed, %.0f s", done, total, now - start)

    return hashed
