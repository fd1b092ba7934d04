"""Phase "selection": spec and readout chosen by the parties' own leave-one-out.

Every counted party gets the sums of the counts and the candidates. Its answer has, for each candidate and class, the
number of its training samples that the model trained without the sample classifies correctly (the diagonal of the
leave-one-out confusion matrix), and the log-losses at each of `TEMPERATURES`, which calibrate the model. Added up they
are those of the pooled samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.protocol import EVALUATE, EXACT, Answer, Array, Config, Reply, Request, Scalar, key, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.statistics import CountsOfSpecs, Tables
from flwr_flynn.model.candidates import candidate_readouts
from flwr_flynn.model.leave_one_out import LOSS_UNIT, MAX_LOSS, TEMPERATURES, hashed_batches, leave_one_out_tables
from flwr_flynn.model.scoring import Readout
from flwr_flynn.model.selection import best, best_temperature

_MAX_CANDIDATES = 64  # readouts of a spec
_CANDIDATE_CHARS = 64  # of one in JSON
_MAX_LOSS = int(MAX_LOSS / LOSS_UNIT)  # of a sample

Candidates = tuple[tuple[Readout, ...], ...]


@register
@dataclass(frozen=True)
class SelectionRequest(Request[Tables]):
    """Ask for leave-one-out results of every candidate."""

    run: RunSpec
    totals: CountsOfSpecs
    candidates: Candidates  # readouts of each spec

    phase = "selection"
    channel = EVALUATE

    def to_config(self) -> dict[str, Scalar]:
        pairs = [[[readout.rule, readout.decay] for readout in entries] for entries in self.candidates]
        return {**self.run.to_config(), key("candidates"): json.dumps(pairs)}

    def arrays(self) -> list[Array]:
        return codec.encode(*self.totals.parts)

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: Party) -> SelectionRequest:
        run = RunSpec.from_config(config)
        party.check_run(run, config, cls.phase, EXACT)
        totals = codec.decode_all(arrays, run.hashers, run.n_classes)
        return cls(run, CountsOfSpecs(totals), _candidates(config, len(run.specs)))

    def compute(self, party: Party) -> Answer:
        X, codes = party.labelled(self.run.codes, self.run.spec.n_features)
        progress = party.progress(len(codes) * len(self.run.specs))
        tables: list[Array] = []
        for hasher, counts, readouts in zip(self.run.hashers, self.totals.parts, self.candidates, strict=True):
            batches = hashed_batches(hasher, X, codes, party.options.n_jobs, progress)
            tables += leave_one_out_tables(counts, batches, readouts)
        return Answer(tables, len(codes))

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> Tables:
        if member is None or member.sizes is None:
            raise PayloadError("selection", "a party whose counts are in the sum", "one that is not counted")
        announced, sizes = reply.announced, np.array(member.sizes, np.int64)
        if announced != member.examples:
            raise PayloadError("selection", f"{member.examples} examples as counted", announced)
        tables = codec.tables(arrays, _shapes(self.candidates, self.run.n_classes))
        most = min(_MAX_LOSS * announced, (2**63 - 1) // 1024)  # so that no party leaves the sum without room
        for correct, losses in zip(tables[::2], tables[1::2], strict=True):
            if (correct < 0).any() or (correct > sizes).any():
                raise PayloadError("correct", "from 0 to the party's samples of the class", "entries outside")
            if (losses < 0).any() or (losses > most).any():
                raise PayloadError("log-losses", f"from 0 to {most}", "entries outside")
        return Tables(tuple(tables))


@dataclass(frozen=True)
class Selection:
    """Spec and readout that a run selected, and how the candidates compare."""

    spec: int  # index of the selected one
    readout: Readout  # without a temperature where no party with samples replied
    candidates: Candidates
    accuracies: tuple[tuple[float, ...], ...]  # leave-one-out, balanced; () where no party with samples replied
    examples: int  # samples that the accuracies are about
    parties: int  # that replied
    missing: dict[str, str]  # reasons of counted parties without an answer, by name

    @property
    def accuracy(self) -> float | None:
        """Leave-one-out balanced accuracy of the selected candidate."""
        if not self.accuracies:
            return None
        index = self.candidates[self.spec].index(replace(self.readout, temperature=None))
        return self.accuracies[self.spec][index]

    def to_dict(self) -> dict[str, Any]:
        """The selection as JSON can hold it."""
        values = asdict(self)
        values["readout"] = [self.readout.rule, self.readout.decay, self.readout.temperature]
        values["candidates"] = [[[each.rule, each.decay] for each in entries] for entries in self.candidates]
        values["accuracies"] = [list(entries) for entries in self.accuracies]
        return values | {"accuracy": self.accuracy}


def is_selection_needed(n_specs: int, rule: str, decay: float | str) -> bool:
    """True if there is more than one candidate. Rule "bayes" has no decay."""
    return n_specs > 1 or (decay == "auto" and rule != "bayes")


def candidates_for(totals: CountsOfSpecs, rule: str, decay: float | str) -> Candidates:
    """Readouts of each spec to select from, see `model.candidates.candidate_readouts`."""
    return tuple(tuple(candidate_readouts(counts, rule, decay)) for counts in totals.parts)


def select(
    candidates: Candidates, total: Tables | None, sizes: Sequence[int], parties: int, missing: dict[str, str]
) -> Selection:
    """The best candidate by the sum of the replies; `sizes` are samples of each class of the parties that replied.

    Without samples it is the first spec with the suggested decay.
    """
    n_per_class = np.array(sizes, np.int64)
    spec, index, temperature, accuracies = 0, 0, None, ()
    if total is not None and n_per_class.any():
        correct, losses = list(total.tables[::2]), total.tables[1::2]
        spec, index = best(correct, n_per_class)
        temperature = best_temperature(losses[spec][index])
        filled = n_per_class > 0
        accuracies = tuple(tuple((table[:, filled] / n_per_class[filled]).mean(axis=1).tolist()) for table in correct)  # type: ignore[assignment]
    readout = replace(candidates[spec][index], temperature=temperature)
    return Selection(spec, readout, candidates, accuracies, sum(n_per_class.tolist()), parties, missing)


def _candidates(config: Config, n_specs: int) -> Candidates:
    """The readouts of each spec that a server announced."""
    lists = config.json("candidates", n_specs * _MAX_CANDIDATES * _CANDIDATE_CHARS)
    try:
        candidates = tuple(tuple(Readout(rule, decay) for rule, decay in entries) for entries in lists)
    except ConfigError as error:
        raise PayloadError(key("candidates"), error.expected, error.got, text=f"{key('candidates')}: {error}") from None
    except (ValueError, TypeError):
        raise PayloadError(key("candidates"), "lists of pairs (rule, decay)", type(lists).__name__) from None
    if len(candidates) != n_specs or not all(0 < len(entries) <= _MAX_CANDIDATES for entries in candidates):
        got = [len(entries) for entries in candidates]
        raise PayloadError(key("candidates"), f"1 to {_MAX_CANDIDATES} readouts for each of {n_specs} specs", got)
    return candidates


def _shapes(candidates: Candidates, n_classes: int) -> list[tuple[int, int]]:
    """Shapes of the tables of a reply: for each spec correct samples by class, then losses by temperature."""
    return [(len(entries), width) for entries in candidates for width in (n_classes, len(TEMPERATURES))]


def _candidates_of(state: RunState, context: Context) -> Candidates:
    return candidates_for(state.results["counts"], context.options.rule, context.options.decay)


def _request(state: RunState, context: Context) -> SelectionRequest:
    return SelectionRequest(state.run_spec, state.results["counts"], _candidates_of(state, context))


def _start(state: RunState, context: Context) -> Tables:
    shapes = _shapes(_candidates_of(state, context), state.run_spec.n_classes)
    return Tables(tuple(np.zeros(shape, np.int64) for shape in shapes))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    sizes = np.zeros(state.run_spec.n_classes, np.int64)
    heard = [context.counted.member(cid) for cid in batch.passed]
    for member in heard:
        if member is not None and member.sizes is not None:
            sizes += np.array(member.sizes, np.int64)
    silent = [member for member in context.counted.members if member not in heard]
    absent = {context.names.get(member.node, str(member)): "not there to be asked" for member in silent}
    missing = absent | dict(context.missing)
    selection = select(_candidates_of(state, context), batch.total, sizes.tolist(), len(batch.passed), missing)
    return state.with_result("selection", selection)


SELECTION = Phase("selection", EVALUATE, _request, _start, _fold, audience=COUNTED)
