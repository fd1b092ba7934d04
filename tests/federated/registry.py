"""Registry of the requests of all phases, over which `test_laws` runs.

A new phase adds one entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.party import Party, Samples
from flwr_flynn.federated.phases.calibration import CalibrationRequest
from flwr_flynn.federated.phases.column_sums import ColumnSumsRequest
from flwr_flynn.federated.phases.columns import BinsRequest, ColumnsRequest
from flwr_flynn.federated.phases.counts import (
    CountsRequest,
    UpdateRequest,
    WithdrawRequest,
)
from flwr_flynn.federated.phases.evaluation import (
    EvaluationRequest,
    SecureEvaluationRequest,
)
from flwr_flynn.federated.phases.selection import SelectionRequest, candidates_for
from flwr_flynn.federated.phases.table_schema import SchemaRequest
from flwr_flynn.federated.phases.trees import TreesRequest
from flwr_flynn.federated.request import Request, RunRequest
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.gram import GramMatrix
from flwr_flynn.model.growth import ClassTerms, Growth, forest_sums
from flwr_flynn.model.model import CalibratedForest
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts
from flwr_flynn.privacy.ledger import Budget, Policy, Released
from tests.fakes import evaluation_of, tally_of
from tests.federated.hostile import ANY, BASIS, REPLIES, REQUESTS, Row, Spoil
from tests.federated.runs import (
    AUTO,
    GRID,
    LABELS,
    NAMES,
    Exchange,
    X,
    Y,
    exchange,
    statistic_of,
)

BOUND = 64
SOME = np.array([0, 3, 9, 50, 51, 77, 100, 101, 102, 120, 149, 60])
"""Places of 12 samples of three classes."""
RUN = RunSpec(GRID, NAMES)
TOTALS = CountsOfSpecs(
    tuple(ClassCounts.from_data(flynn_hash(spec), X[SOME], Y[SOME], 3) for spec in GRID)
)
_SCORING = ScoringRule("balanced", 0.5, 1.0)
_COLUMNS = ColumnsRequest(4, NAMES)


class Noiseless(Budget):
    """A ledger without a file, of releases that are exact."""

    def __init__(self) -> None:
        self.policy = Policy(1.0)

    def release(self, mechanism: Any, _: str, measure: Any, **__: Any) -> Released:
        mechanism.sampler = self
        return Released(measure(), False)

    def laplace(self, size: int, scale: float) -> Any:
        return np.zeros(size, np.int64)


@dataclass(frozen=True)
class Case:
    """A request, the form in which its statistics are compared, and what is refused.

    Parameters
    ----------
    request : Request
    subtracts : bool, default=True
        False if a statistic cannot be taken out of a sum.
    hostile : dict
        Replies that cost their senders alone, see `tests.federated.hostile`.
    refused : dict
        Requests that a party refuses, likewise.
    run : dict, optional
        A run with the phase.
    """

    request: Request[Any]
    subtracts: bool = True
    hostile: dict[str, tuple[str, Spoil]] = field(default_factory=dict)
    refused: dict[str, Row] = field(default_factory=dict)
    run: dict[str, Any] | None = None

    @property
    def is_evaluation(self) -> bool:
        """True if the samples are held-out ones."""
        return isinstance(self.request, EvaluationRequest)

    @property
    def takes_counted(self) -> bool:
        """True if only parties whose counts are in the sum answer."""
        return isinstance(self.request, RunRequest) and not isinstance(
            self.request,
            CountsRequest
            | WithdrawRequest
            | UpdateRequest
            | EvaluationRequest
            | ColumnSumsRequest,
        )

    def party(self, places: Any, **options: Any) -> Party:
        """A party with some of the samples."""
        nothing = (X[:0], LABELS[:0])
        samples = (X[places], LABELS[places])
        if isinstance(self.request, UpdateRequest):
            options["previous"] = Samples(*samples)
        if isinstance(self.request, ColumnSumsRequest):
            options.setdefault("budget", Noiseless())
        options = {"min_examples": 1, "products": True, "class_prior": False, **options}
        options.setdefault("leaves", not self.request.stays)
        if self.is_evaluation:
            return party_of(*nothing, *samples, **options)
        return party_of(*samples, **options)

    def member(self, places: Any) -> Member:
        """The party with some of the samples, as a run knows it."""
        sizes = np.bincount(Y[places], minlength=3)
        return Member("", "1", sizes=tuple(sizes.tolist()))

    def of(self, places: Any) -> Any:
        """The statistic of some samples, over the wire and back."""
        statistic = statistic_of(self.request, self.party(places), self.member(places))
        if statistic is None:
            return self.zero
        return statistic

    @property
    def zero(self) -> Any:
        """The statistic of no samples."""
        if isinstance(self.request, SchemaRequest):
            return tally_of(self.request).start
        return self.request.of_parts(self.request.layout.zeros(), 0)

    def steps(self) -> Exchange:
        """A run in which this phase is due."""
        return exchange(**self.run).until(self.request.phase)

    def shown(self, statistic: Any) -> Any:
        """A value that is equal for equal statistics.

        Figures without a party, and alone, depend on the split.
        """
        parts = self.request.parts(statistic)
        if self.is_evaluation:
            parts = parts[:-4]
        return [(part.shape, part.tolist()) for part in parts]


def grown(places: Any) -> Growth:
    """A forest of two levels over some of the samples."""
    growth = Growth.planted(BASIS, 3, 5, 0)
    scores = np.zeros((len(places), 3))
    terms = ClassTerms(np.zeros(3), np.ones(3))
    for _ in range(2):
        sums = forest_sums(growth, X[places], Y[places], scores, terms)
        growth = growth.grown(sums)
    return growth


LEARNED = GramMatrix.from_data(BASIS, X, Y, 3)
_LIMITED = {"floor": 5, "max_examples_per_party": 50}
_ONE = {"spec": GRID[0], "decay": 0.5}
RUNS: dict[str, dict[str, Any]] = {
    "columns": {"spec": AUTO, **_LIMITED},
    "counts": {"spec": GRID, **_LIMITED},
    "selection": {"spec": GRID},
    "calibration": {"spec": GRID},
    "evaluation": _ONE,
}
"""Runs in which phases are asked for, by the names of the cases."""


def case(name: str, request: Request[Any], subtracts: bool = True) -> Case:
    """The case of this name, with its hostile replies and requests."""
    run = RUNS.get(name)
    if run is None:
        hostile = REPLIES.get(name, {})
    else:
        hostile = ANY | REPLIES[name]
    return Case(request, subtracts, hostile, REQUESTS.get(name, {}), run)


_TWO_MEMBERS = evaluation_of(RUN, TOTALS.parts, (_SCORING, _SCORING), (0.75, 0.25))
_ONE_MEMBER = evaluation_of(RUN.only((0,)), TOTALS.parts[:1], (_SCORING,))
LEVELS = ((1,) * 98,) * 3

_REQUESTS: dict[str, Request[Any]] = {
    "columns": _COLUMNS,
    "schema": SchemaRequest(RUN.classes),
    "column sums": ColumnSumsRequest(
        RunSpec(
            replace(GRID[0], scale=(0.5,) * 4),
            NAMES,
            LaplaceCounts(1.0, hash_nnz=GRID[0].hash_nnz, n_classes=3, n_columns=4),
        )
    ),
    "counts": CountsRequest(RUN),
    "withdraw": WithdrawRequest(RUN),
    "update": UpdateRequest(RUN),
    "selection": SelectionRequest(
        RUN, TOTALS, candidates_for(TOTALS, "balanced", "auto")
    ),
    "calibration": CalibrationRequest(RUN, _TWO_MEMBERS.model),
    "calibration with a linear part": CalibrationRequest(
        RUN.only((0,)), _ONE_MEMBER.model, LEARNED.folds
    ),
    "evaluation": _TWO_MEMBERS,
    "evaluation with a linear part": evaluation_of(
        RUN.only((0,)),
        TOTALS.parts[:1],
        (_SCORING,),
        calibration=Calibration(1.0, (0.0, 0.0, 0.0), 0.5, LEVELS),
        linear=LEARNED.scoring,
        folds=LEARNED.folds,
    ),
}
_GROWTH = grown(SOME)
_TREES = {
    "run": RUN.only((0,)),
    "model": _ONE_MEMBER.model,
    "calibration": Calibration(1.0, (0.0, 0.0, 0.0)),
    "trees": _GROWTH.forest,
}
_REQUESTS |= {
    "calibration of trees": CalibrationRequest(**_TREES),
    "trees": TreesRequest(**_TREES, growth=_GROWTH),
    "evaluation with trees": evaluation_of(
        RUN.only((0,)),
        TOTALS.parts[:1],
        (_SCORING,),
        calibration=Calibration(1.0, (0.0, 0.0, 0.0)),
        forest=CalibratedForest(
            _GROWTH.forest.pruned(_GROWTH.forest.values),
            Calibration(1.0, (0.0, 0.0, 0.0), 0.5, LEVELS),
        ),
    ),
}
CASES = {
    name: case(name, request, name != "schema") for name, request in _REQUESTS.items()
}


_IN_CLEAR = ColumnsRequest | SchemaRequest | WithdrawRequest | UpdateRequest
_IN_CLEAR |= ColumnSumsRequest  # of integers beyond the bound
SECURE: dict[str, Request[Any]] = {
    name: replace(
        case.request,
        run=replace(case.request.run, bound=BOUND),  # type: ignore[attr-defined]
    )
    for name, case in CASES.items()
    if not case.is_evaluation and not isinstance(case.request, _IN_CLEAR)
}
"""Requests of secure sums; the bins are asked for in no other run."""
_CUTS = (np.arange(8) << KEY_BITS) // 2
SECURE["bins"] = BinsRequest(**vars(_COLUMNS), cuts=_CUTS, by_class=True, bound=BOUND)
_RESULTS: Any = CASES["evaluation"].request
SECURE["evaluation"] = SecureEvaluationRequest(
    replace(RUN, bound=BOUND), _RESULTS.model
)
SECURE_CASES = {name: Case(request) for name, request in SECURE.items()}
_BINS = ColumnHistograms.from_data(X[SOME], Y[SOME], 3).table(_CUTS, True)
SECURE_TOTALS = {name: CASES[name].of(SOME) for name in SECURE if name in CASES}
SECURE_TOTALS["bins"] = ColumnHistograms.of_table(
    4, _CUTS, _BINS, np.zeros(len(_BINS), np.int64)
)
"""The statistic of all samples, from answers in clear or by hand."""
