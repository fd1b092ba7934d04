"""Phase "selection": members of the committee, by the parties' leave-one-out.

Their scorings and weights are selected as well.

Every counted party gets the sums of the counts and the candidates. Its answer has, for
each candidate and class, the number of its training samples that the model trained
without the sample classifies correctly (the diagonal of the leave-one-out confusion
matrix), and the log-losses at each of `TEMPERATURES`, which calibrate the model. Added
up they are those of the pooled samples. Of very many samples some are left out in turn,
chosen by their content (`model.selection`); the answer has their number, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import MAX_SPECS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import (
    COUNTED,
    Context,
    Description,
    Phase,
    RunState,
    Section,
    members_of,
)
from flwr_flynn.federated.protocol import (
    TRAIN,
    Config,
    Entry,
    Scalars,
    key,
    refusing,
    sent,
)
from flwr_flynn.federated.reply_fields import NUMBERS, Field, Sizes
from flwr_flynn.federated.request import Measured, RunRequest, announced_run, register
from flwr_flynn.federated.run_spec import RUN_ENTRIES
from flwr_flynn.federated.tally import Tally
from flwr_flynn.federated.views import View
from flwr_flynn.model.candidates import candidate_scorings
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.scoring import LOSS_UNIT, MAX_LOSS, TEMPERATURES, ScoringRule
from flwr_flynn.model.selection import (
    Candidates,
    Choice,
    Selection,
    best_temperature,
    choose,
    hashed_batches,
    leave_one_out_tables,
    pairs_of,
)
from flwr_flynn.model.subsample import subsample_mask

_MAX_CANDIDATES = 64  # scorings of a spec
_CONTENT = "correct samples and log-losses by leave-one-out, for each candidate"
_MOST_CHARS = MAX_SPECS * _MAX_CANDIDATES * 64  # of all candidates in JSON
MAX_SAMPLE_LOSS = int(MAX_LOSS / LOSS_UNIT)
"""The largest log-loss of a sample, in units of `LOSS_UNIT`."""


@register
@dataclass(frozen=True)
class SelectionRequest(RunRequest[Tables]):
    """Ask for leave-one-out results of every candidate."""

    totals: CountsOfSpecs
    candidates: Candidates  # scorings of each spec

    phase = "selection"
    sentence = (
        "Right answers by class, and sums of scores: of a class of one row "
        "they are those of that row."
    )

    entries = RUN_ENTRIES | {"candidates": Entry(str, _MOST_CHARS)}
    n_arrays = 2 * MAX_SPECS

    def to_config(self) -> Scalars:
        candidates = json.dumps(pairs_of(self.candidates))
        return super().to_config() | sent(candidates=candidates)

    def arrays(self) -> list[Array]:
        return codec.encode(*self.totals.parts)

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> SelectionRequest:
        run = announced_run(config, options)
        totals = codec.decode_all(arrays, run.hashers, run.n_classes)
        return cls(run, CountsOfSpecs(totals), _candidates(config, len(run.specs)))

    def measured(self, view: View) -> Measured[Tables]:
        X, codes = view.samples_of(self.run)
        subsample = subsample_mask(X, codes, self.totals.parts[0].n_per_class)
        n_examples = len(codes)
        if not subsample.all():
            chosen = X[subsample]
            for hasher in self.run.hashers:
                hasher.remember_rows(X, subsample, chosen)
            X = chosen
            codes = codes[subsample]
        tables: list[Array] = [
            np.bincount(codes, minlength=self.run.n_classes)[None].astype(np.int64)
        ]
        for hasher, counts, scorings in zip(
            self.run.hashers, self.totals.parts, self.candidates, strict=True
        ):
            batches = hashed_batches(hasher, X, codes, view.options.n_jobs)
            tables += leave_one_out_tables(
                counts, batches, scorings, class_weight=self.run.class_weight
            )
        return Measured(Tables(tuple(tables)), n_examples)

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = self.run.n_classes
        most = MAX_SAMPLE_LOSS * int(np.broadcast_to(sizes.per_class, n_classes).sum())
        fields = [Field("left out", (1, n_classes), sizes.per_class, NUMBERS)]
        for scorings in self.candidates:
            n = len(scorings)
            fields.append(Field("correct", (n, n_classes), sizes.per_class, NUMBERS))
            fields.append(Field("log-losses", (n, len(TEMPERATURES)), most, NUMBERS))
        return fields

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        if (parts[0] > self.totals.parts[0].n_per_class).any():
            raise PayloadError("left out", "at most the samples of the class", "more")
        if any((correct > parts[0]).any() for correct in parts[1::2]):
            raise PayloadError(
                "correct",
                "from 0 to the samples of the class left out",
                "entries outside",
            )
        return Tables(tuple(parts))


def candidates_for(totals: CountsOfSpecs, rule: str, decay: float | str) -> Candidates:
    """Scorings of each spec to select from, see `model.candidates.candidate_scorings`."""
    return tuple(
        tuple(candidate_scorings(counts, rule, decay)) for counts in totals.parts
    )


def select(
    candidates: Candidates,
    total: Tables | None,
    parties: int,
    max_members: int,
    before: Sequence[ModelMember] = (),
) -> Selection:
    """The best candidates by the sum of the replies.

    Without samples these are the members `before`, of a saved run, or else the first
    spec with the suggested decay.
    """
    n_per_class = np.zeros(1, np.int64)
    correct = [np.zeros((1, 1), np.int64)]
    losses = []
    if total is not None and total.tables[0].any():
        n_per_class = total.tables[0][0]
        correct = list(total.tables[1::2])
        losses = list(total.tables[2::2])
    choices = choose(correct, n_per_class, max_members)
    scorings = [candidates[choice.spec][choice.scoring] for choice in choices]
    if before and not losses:
        choices = [
            Choice(index, 0, member.weight) for index, member in enumerate(before)
        ]
        scorings = [member.scoring for member in before]
    accuracies: tuple[tuple[float, ...], ...] = ()
    if losses:
        temperatures = [
            best_temperature(losses[choice.spec][choice.scoring]) for choice in choices
        ]
        scorings = [
            replace(scoring, temperature=temperature)
            for scoring, temperature in zip(scorings, temperatures, strict=True)
        ]
        accuracies = tuple(
            tuple(mean_recall(row, n_per_class) for row in table) for table in correct
        )
    return Selection(
        tuple(choices),
        tuple(scorings),
        candidates,
        accuracies,
        int(n_per_class.sum()),
        parties,
    )


def _candidates(config: Config, n_specs: int) -> Candidates:
    name = key("candidates")
    lists = config.json("candidates")
    if (
        not isinstance(lists, list)
        or len(lists) != n_specs
        or not all(
            isinstance(entries, list) and 0 < len(entries) <= _MAX_CANDIDATES
            for entries in lists
        )
    ):
        expected = f"1 to {_MAX_CANDIDATES} scorings for each of {n_specs} specs"
        raise PayloadError(name, expected, "others")
    if not all(
        isinstance(pair, list) and len(pair) == 2
        for entries in lists
        for pair in entries
    ):
        raise PayloadError(name, "pairs of rule and decay", "others")
    with refusing(name):
        return tuple(tuple(ScoringRule(*pair) for pair in entries) for entries in lists)


def _ask(state: RunState, context: Context) -> Tally[Tables]:
    totals = state.results["counts"]
    options = context.options
    candidates = candidates_for(totals, options.rule, options.decay)
    return Tally(SelectionRequest(state.run_spec, totals, candidates))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    options = context.options
    n_parties = len(batch.passed)
    candidates = context.request.candidates
    before: Sequence[ModelMember] = ()
    if options.has_members:
        before = members_of(state, options)
    selection = select(candidates, batch.total, n_parties, options.max_members, before)
    return state.with_result("selection", selection)


def _describe(state: RunState, options: RunOptions) -> Description:
    """The members, their decay, and how well the best of them does."""
    selection: Selection = state.results[SELECTION.name]
    compared = "not compared"
    if selection.accuracy is not None:
        compared = f"best leave-one-out {selection.accuracy:.4f}"
    chosen = ", ".join(
        f"{choice.spec + 1} ({choice.weight:.2f})" for choice in selection.choices
    )
    members = ""
    if len(selection.candidates) > 1:
        members = f"candidates {chosen} of {len(selection.candidates)}, "
    decay = selection.scorings[0].decay
    return Description(f"{members}decay {decay:.4g}, {compared}")


def _report(state: RunState, options: RunOptions) -> Section:
    selection = state.result_of(Selection)
    if selection is None:
        return Section({"selection": None})
    entries = {"selection": selection.to_dict()}
    if not selection.accuracies:
        reason = "none: too few parties with samples replied"
        return Section(entries, {"selection": reason})
    best = [f"{max(accuracies):.4f}" for accuracies in selection.accuracies]
    decays = f"{len(selection.candidates[0])} decays each"
    compared = f"compared on {selection.examples} samples"
    facts = {
        "candidates": f"{len(best)} with {decays}, {compared}",
        "  leave-one-out": ", ".join(best),
    }
    members = members_of(state, options)
    for choice, member in zip(selection.choices, members, strict=True):
        size = f"{member.spec.hash_dim} rows, {member.spec.hash_nnz} winners"
        decay = f"decay {member.scoring.decay:.4g}"
        text = f"weight {choice.weight:.2f}, {decay}, {size}"
        facts[f"  member {choice.spec + 1}"] = text
    return Section(entries, facts)


SELECTION = Phase(
    "selection",
    TRAIN,
    _ask,
    _fold,
    audience=COUNTED,
    content=_CONTENT,
    applies=lambda options: options.selects,
    describe=_describe,
    report=_report,
)
