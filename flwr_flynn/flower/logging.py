"""Log lines of a run: its plan, and one line for every party and every phase.

The only facts about the data in a line are numbers of samples and accuracies; with
noisy counts there are none. `federated.roster` cleans names and reasons of parties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from logging import INFO, WARNING
from string import digits

from flwr.common.logger import log

from flwr_flynn._validation import listed
from flwr_flynn.errors import clean
from flwr_flynn.federated.phase import ALL, NEW
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.federated.roster import missing_text
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.federated.secure_bound import LEAST_PARTIES

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


def plan_lines(run: Run, min_available: int, wait_timeout: float) -> Iterator[Line]:
    """The plan of a run, before a party is asked."""
    options = run.options
    spec = run.state.run_spec
    names = ", ".join(spans(phase.name for phase in run.phases))
    yield INFO, f"phases: {names}; rounds: {run.num_rounds}"
    if options.plan is not None:
        yield INFO, f"hash: from the parties' columns, scaling {options.plan.scaling}"
    else:
        yield from ((INFO, line) for line in spec.hash_lines)
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
    if spec.guarantee:
        yield INFO, f"privacy: {spec.guarantee}"
    for phase in run.phases:
        yield from ((INFO, line) for line in phase.announce(options))


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
    told = phase.described(run.state, run.options)
    yield from ((WARNING, f"{phase.name}: {text}") for text in told.warnings)
    yield from ((INFO, text) for text in told.details)


def _party_lines(run: Run, exchange: ExchangeResult) -> Iterator[Line]:
    """A line for each party that is counted."""
    done = "accepted"
    if exchange.batch.taken_out:
        done = PURPOSES[run.options.purpose].done
    hidden = "noisy sums"
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
    phase = exchange.phase
    n_passed = len(exchange.batch.passed)
    answers = f"{n_passed} of {n_passed + len(exchange.missing)} parties"
    if phase.is_counting:
        enough = ""
        if not run.is_enough:
            enough = f"; at least {run.options.min_parties} are needed"
        return f"{answers}, {len(run.counted)} in all{enough}"
    text = phase.described(run.state, run.options).text
    if text:
        return f"{text} ({answers})"
    return answers
