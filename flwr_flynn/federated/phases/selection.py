"""Phase "selection": members of the model, their scorings and weights, by the parties' own leave-one-out.

Every counted party gets the sums of the counts and the candidates. Its answer has, for each candidate and class, the
number of its training samples that the model trained without the sample classifies correctly (the diagonal of the
leave-one-out confusion matrix), and the log-losses at each of `TEMPERATURES`, which calibrate the model. Added up they
are those of the pooled samples. Of very many samples some are left out in turn, chosen by their content
(`model.subsample`); the answer has their number, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.outcome import members_of
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.phases.secure import Layout, Summed, largest_sum
from flwr_flynn.federated.protocol import EVALUATE, EXACT, SECURE, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.statistics import CountsOfSpecs, Tables
from flwr_flynn.model.candidates import candidate_scorings
from flwr_flynn.model.leave_one_out import LOSS_UNIT, MAX_LOSS, TEMPERATURES, hashed_batches, leave_one_out_tables
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.model.selection import Choice, best_temperature, choose
from flwr_flynn.model.subsample import N_LEFT_OUT, kept

_MAX_CANDIDATES = 64  # scorings of a spec
_CANDIDATE_CHARS = 64  # of one in JSON
_MAX_LOSS = int(MAX_LOSS / LOSS_UNIT)  # of a sample

Candidates = tuple[tuple[ScoringRule, ...], ...]


class SummedTables(Summed[Tables]):
    """A request for leave-one-out results."""

    def packed(self, statistic: Tables) -> list[Array]:
        return [pack_numbers(table.ravel()) for table in statistic.tables]

    def parts(self, statistic: Tables) -> list[Array]:
        return list(statistic.tables)


@register
@dataclass(frozen=True)
class SelectionRequest(SummedTables):
    """Ask for leave-one-out results of every candidate."""

    run: RunSpec
    totals: CountsOfSpecs
    candidates: Candidates  # scorings of each spec

    phase = "selection"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        pairs = [[[scoring.rule, scoring.decay] for scoring in entries] for entries in self.candidates]
        return {**self.run.to_config(), key("candidates"): json.dumps(pairs)}

    def arrays(self) -> list[Array]:
        return codec.encode(*self.totals.parts)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> SelectionRequest:
        run = RunSpec.from_config(config)
        party.check_run(run, config, cls.phase, EXACT if run.bound is None else SECURE)
        totals = codec.decode_all(arrays, run.hashers, run.n_classes)
        return cls(run, CountsOfSpecs(totals), _candidates(config, len(run.specs)))

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        inputs, codes = party.inputs(self.run)
        progress = party.progress(len(codes) * len(self.run.specs))
        left_out = kept(inputs[0], codes, self.totals.parts[0].n_per_class, N_LEFT_OUT)
        n_examples = len(codes)
        if not left_out.all():
            taken = {id(X): X[left_out] for X in inputs}
            inputs, codes = [taken[id(X)] for X in inputs], codes[left_out]
        tables: list[Array] = [np.bincount(codes, minlength=self.run.n_classes)[None].astype(np.int64)]
        for hasher, X, counts, scorings in zip(
            self.run.hashers, inputs, self.totals.parts, self.candidates, strict=True
        ):
            batches = hashed_batches(hasher, X, codes, party.options.n_jobs, progress)
            tables += leave_one_out_tables(counts, batches, scorings)
        return Tables(tuple(tables)), n_examples

    @property
    def layout(self) -> Layout:
        bound, n_classes = self.bound or 0, self.run.n_classes
        most = min(_MAX_LOSS * n_classes * bound, largest_sum(bound))
        shapes = _shapes(self.candidates, n_classes)
        return [(shape, most if i and i % 2 == 0 else bound) for i, shape in enumerate(shapes)]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        return check_tables(parts, self.totals.parts[0].n_per_class, n_parties * self.layout[-1][1])

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> Tables:
        sizes, announced = counted_sizes(member, "selection"), reply.announced
        check_all(announced, sizes, "selection")
        return unpacked_tables(arrays, _shapes(self.candidates, self.run.n_classes), sizes, announced)


def unpacked_tables(
    arrays: Sequence[Array], shapes: Sequence[tuple[int, int]], sizes: npt.NDArray[np.int64], n_examples: int
) -> Tables:
    """Tables of these shapes from a party with class sizes, (L,), and so many samples, as `check_tables` has them."""
    check_packed(arrays, len(shapes), "tables", f"{len(shapes)} packed arrays")
    flat = [unpack_numbers(array, a * b, 2**63 - 1) for array, (a, b) in zip(arrays, shapes, strict=True)]
    if any(len(each) != a * b for each, (a, b) in zip(flat, shapes, strict=True)):
        raise PayloadError("tables", "a number for each entry", "more or fewer")
    tables = [each.reshape(shape) for each, shape in zip(flat, shapes, strict=True)]
    # So that no party leaves the sum without room.
    return check_tables(tables, sizes, min(_MAX_LOSS * n_examples, (2**63 - 1) // 1024))


def check_tables(tables: list[Array], sizes: npt.NDArray[np.int64], most: int) -> Tables:
    """Samples left out, (1, L), then pairs of samples that are right, (K, L), and log-losses up to `most`, checked."""
    left_out = tables[0]
    if (left_out < 0).any() or (left_out > sizes).any():
        raise PayloadError("left out", "from 0 to the party's samples of the class", "entries outside")
    for correct, losses in zip(tables[1::2], tables[2::2], strict=True):
        if (correct < 0).any() or (correct > left_out).any():
            raise PayloadError("correct", "from 0 to the samples of the class left out", "entries outside")
        if (losses < 0).any() or (losses > most).any():
            raise PayloadError("log-losses", f"from 0 to {most}", "entries outside")
    return Tables(tuple(tables))


def counted_sizes(member: Member | None, field: str) -> npt.NDArray[np.int64]:
    """Class sizes of the sender, (L,), as counted; a `PayloadError` of this field if it is not counted."""
    if member is None or member.sizes is None:
        raise PayloadError(field, "a party whose counts are in the sum", "one that is not counted")
    return np.array(member.sizes, np.int64)


def check_all(announced: int, sizes: npt.NDArray[np.int64], field: str) -> None:
    """Raise a `PayloadError` of this field unless a reply is about all the samples that are counted."""
    if announced != (n_counted := sum(sizes.tolist())):
        raise PayloadError(field, f"{n_counted} examples as counted", announced)


@dataclass(frozen=True)
class Selection:
    """Members that a run selected, and how the candidates compare."""

    choices: tuple[Choice, ...]  # the best first
    scorings: tuple[ScoringRule, ...]  # of each; without a temperature where no party with samples replied
    candidates: Candidates
    accuracies: tuple[tuple[float, ...], ...]  # leave-one-out, balanced; () where no party with samples replied
    examples: int  # samples that the accuracies are about
    parties: int  # that replied
    missing: dict[str, str]  # reasons of counted parties without an answer, by name

    @property
    def specs(self) -> tuple[int, ...]:
        """Indices of the chosen specs."""
        return tuple(choice.spec for choice in self.choices)

    @property
    def accuracy(self) -> float | None:
        """Leave-one-out balanced accuracy of the best candidate alone."""
        if not self.accuracies:
            return None
        return self.accuracies[self.choices[0].spec][self.choices[0].scoring]

    def to_dict(self) -> dict[str, Any]:
        """The selection as JSON can hold it."""
        values = asdict(self)
        values["choices"] = [[each.spec, each.scoring, each.weight] for each in self.choices]
        values["scorings"] = [[each.rule, each.decay, each.temperature] for each in self.scorings]
        values["candidates"] = [[[each.rule, each.decay] for each in entries] for entries in self.candidates]
        values["accuracies"] = [list(entries) for entries in self.accuracies]
        return values | {"accuracy": self.accuracy}


def candidates_for(totals: CountsOfSpecs, rule: str, decay: float | str) -> Candidates:
    """Scorings of each spec to select from, see `model.candidates.candidate_scorings`."""
    return tuple(tuple(candidate_scorings(counts, rule, decay)) for counts in totals.parts)


def select(
    candidates: Candidates,
    total: Tables | None,
    parties: int,
    missing: dict[str, str],
    max_members: int,
    n_aligned: int = 0,
    before: Sequence[ModelMember] = (),
) -> Selection:
    """The best candidates by the sum of the replies.

    Without samples these are the members `before`, of a saved run, or else the first spec with the suggested decay. The
    specs of aligned samples, the last `n_aligned`, are chosen from if the best of them is better than all others.
    """
    n_per_class, correct, losses = np.zeros(1, np.int64), [np.zeros((1, 1), np.int64)], []
    if total is not None and total.tables[0].any():
        n_per_class, correct, losses = total.tables[0][0], list(total.tables[1::2]), list(total.tables[2::2])
    n_plain, first, among = len(correct) - n_aligned, 0, correct
    if losses and 0 < n_plain < len(correct):
        best = [max(mean_recall(row, n_per_class) for row in table) for table in correct]
        first = n_plain if max(best[n_plain:]) > max(best[:n_plain]) else 0
        among = correct[first:] if first else correct[:n_plain]
    choices = [replace(each, spec=each.spec + first) for each in choose(among, n_per_class, max_members)]
    scorings = [candidates[choice.spec][choice.scoring] for choice in choices]
    if before and not losses:
        choices = [Choice(i, 0, member.weight) for i, member in enumerate(before)]
        scorings = [member.scoring for member in before]
    accuracies: tuple[tuple[float, ...], ...] = ()
    if losses:
        found = [best_temperature(losses[choice.spec][choice.scoring]) for choice in choices]
        scorings = [replace(scoring, temperature=each) for scoring, each in zip(scorings, found, strict=True)]
        accuracies = tuple(tuple(mean_recall(row, n_per_class) for row in table) for table in correct)
    examples = sum(n_per_class.tolist())
    return Selection(tuple(choices), tuple(scorings), candidates, accuracies, examples, parties, missing)


def _candidates(config: Config, n_specs: int) -> Candidates:
    lists = config.json("candidates", n_specs * _MAX_CANDIDATES * _CANDIDATE_CHARS)
    try:
        candidates = tuple(tuple(ScoringRule(rule, decay) for rule, decay in entries) for entries in lists)
    except ConfigError as error:
        raise PayloadError(key("candidates"), error.expected, error.got, text=f"{key('candidates')}: {error}") from None
    except (ValueError, TypeError):
        raise PayloadError(key("candidates"), "lists of pairs (rule, decay)", type(lists).__name__) from None
    if len(candidates) != n_specs or not all(0 < len(entries) <= _MAX_CANDIDATES for entries in candidates):
        got = [len(entries) for entries in candidates]
        raise PayloadError(key("candidates"), f"1 to {_MAX_CANDIDATES} scorings for each of {n_specs} specs", got)
    return candidates


def _shapes(candidates: Candidates, n_classes: int) -> list[tuple[int, int]]:
    """Shapes of the tables of a reply: samples left out, and for each spec correct samples, then losses."""
    return [(1, n_classes)] + [(len(each), width) for each in candidates for width in (n_classes, len(TEMPERATURES))]


def _candidates_of(state: RunState, context: Context) -> Candidates:
    return candidates_for(state.results["counts"], context.options.rule, context.options.decay)


def _request(state: RunState, context: Context) -> SelectionRequest:
    return SelectionRequest(state.run_spec, state.results["counts"], _candidates_of(state, context))


def _start(state: RunState, context: Context) -> Tables:
    shapes = _shapes(_candidates_of(state, context), state.run_spec.n_classes)
    return Tables(tuple(np.zeros(shape, np.int64) for shape in shapes))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    missing = context.unanswered_by(batch.passed)
    candidates, options = _candidates_of(state, context), context.options
    before = members_of(state, options) if options.has_members else ()
    n_parties, n_aligned = len(batch.passed), state.run_spec.n_aligned
    selection = select(candidates, batch.total, n_parties, missing, options.max_members, n_aligned, before)
    return state.with_result("selection", selection)


SELECTION = Phase("selection", EVALUATE, _request, _start, _fold, audience=COUNTED)
