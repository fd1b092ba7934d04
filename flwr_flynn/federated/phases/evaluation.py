"""Phase "evaluation": parties get the model, keep it, and try it on held-out samples.

An answer has the confusion matrix, histograms of the predicted probabilities, and sums
of scores, see `model.metrics`; with a `group` the latter for the samples of each of its
levels, too. A party does not tell the histograms of a class of which it has some
samples, but fewer than its floor `min_examples`, nor where so few are of other classes;
nor the sums of so few; nor figures of other levels from which those would follow.

A party may keep the model with its own class frequencies in the place of those of all,
see `own_prior`. Its answer has a second confusion matrix then, of its own copy on the
same samples. Unlike the first, the sum of these depends on the split.

In a run of secure sums the results are one more of them, by phase "secure evaluation",
in which nobody sees a party's own; this phase then distributes the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import DataError, PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import MAX_SPECS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.event import event_of
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.phase import (
    COUNTED,
    PRESENT,
    Context,
    Phase,
    RunState,
    model_of,
    model_of_members,
    run_of_members,
)
from flwr_flynn.federated.protocol import (
    EVALUATE,
    NOTHING,
    REFUSED,
    RESULTS,
    SECURE,
    TRAIN,
    UNKEPT,
    Answer,
    Config,
    Entry,
    Reply,
    Scalar,
    key,
    refusing,
)
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.federated.request import (
    Measured,
    RunRequest,
    announced_run,
    register,
)
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.subgroups import subgroup_codes, subgroup_names
from flwr_flynn.federated.tally import AnnouncedTally, Facts
from flwr_flynn.federated.views import View, reason_of
from flwr_flynn.model import metrics as figures
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.gram import GramScoring
from flwr_flynn.model.metrics import (
    LARGEST_SUM,
    MOST_CLASSES,
    N_LEVELS,
    N_SUMS,
    above_floor,
    confusion,
)
from flwr_flynn.model.model import Model

_CONTENT = (
    "confusion matrices, and histograms and sums of the probabilities, of "
    "held-out samples"
)
_PUBLIC_FLOOR = 5  # samples of a class or a subgroup, in figures from a secure sum
_LARGEST = 2**50  # a party's sum of scores; 1024 of them add up within int64
_MOST_SHOWN = 1000  # parties whose own figures are kept

Figures = dict[str, Any]
"""Figures by their names, as JSON can hold them."""


def score_fields(n_classes: int, n_groups: int, total: int) -> list[Field]:
    """Histograms and sums over at most `total` samples, and over so many subgroups.

    There are none of too many classes.
    """
    if n_classes > MOST_CLASSES:
        return []
    bounds = np.array([total] * 2 + [min(total * LARGEST_SUM, _LARGEST)] * 4)
    shape = (2 * n_classes, N_LEVELS)
    fields = [
        Field("scores", shape, total),
        Field("sums of scores", (N_SUMS,), bounds, PLAIN),
    ]
    if n_groups:
        shape = (2 * n_classes * n_groups, N_LEVELS)
        bounds = np.tile(bounds, n_groups)
        fields += [
            Field("scores by group", shape, total),
            Field("sums of scores by group", bounds.shape, bounds, PLAIN),
        ]
    return fields


def _results(shared: Array, own: Array, scores: Sequence[Array]) -> Tables:
    """Both confusion matrices, the number of second ones, and histograms and sums.

    The number is 0 for a party whose second matrix is of zeros, else 1. Such a party
    has no class prior of its own: its copy is the shared model.
    """
    has_own = own.any()
    if not has_own:
        own = shared
    return Tables((shared, own, np.full((1, 1), has_own, np.int64), *scores))


def by_group(tables: Sequence[Array]) -> list[tuple[Array, Array]]:
    """Histograms and sums of all samples, and then of each subgroup, as views."""
    groups: list[tuple[Array, Array]] = []
    for histograms, sums in zip(tables[::2], tables[1::2], strict=True):
        of_groups = histograms.reshape(-1, *tables[0].shape)
        groups += zip(of_groups, sums.reshape(-1, N_SUMS), strict=True)
    return groups


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: Figures | None  # see `evaluated`; None without any
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name


class Result(NamedTuple):
    """Result of one party."""

    right: tuple[int, int]
    """Samples that the model gets right, and those that the party's own copy does."""
    n_examples: int
    figures: Sequence[Figures] = ()
    """See `metrics.overall`, for each class that may be the event; of more than two
    once. None are there below the floor, and of parties beyond 1000."""


def of_party(statistic: Tables, n_before: int) -> Result:
    """The result of a party, after those of so many others."""
    shared, own, _, *scores = statistic.tables
    right = (int(np.trace(shared)), int(np.trace(own)))
    n_examples = int(shared.sum())
    if n_before < _MOST_SHOWN and _has_sums(scores):
        events: Sequence[int] = (1,)
        if len(shared) == 2:
            events = (0, 1)
        of_events = [figures.overall(scores[0], scores[1], event) for event in events]
        return Result(right, n_examples, of_events)
    return Result(right, n_examples)


def _has_sums(scores: Sequence[Array]) -> bool:
    """True if the sums of scores are those of some samples."""
    return bool(scores) and bool(scores[1][0])


def evaluated(
    total: Tables,
    parts: Mapping[str, Result],
    run: RunSpec,
    group: str,
    least: int,
    event: int | None = 1,
) -> Figures | None:
    """Figures from the sum of the answers, and results by party, by name.

    None without samples. They are those of `metrics.evaluation_figures`, under "class_prior" those
    of the parties' own models, and under "figures" those of `model.metrics`, by party
    and by subgroup as well, where classes have at least `least` samples. Of two classes
    the latter are those of the `event`.
    """
    if not total.tables[0].any():
        return None
    n_own = int(total.tables[2].item())
    class_prior = None
    if n_own:
        class_prior = _summary(total, parts, 1) | {"sent": n_own}
    scores = _shown(total.tables[3:], least)
    detailed = None
    if _has_sums(scores):
        detailed = {
            "examples": int(scores[1][0]),
            "resolution": figures.resolution(scores[0]),
            "overall": figures.overall(scores[0], scores[1], event),
            "classes": figures.by_class(scores[0], run.classes),
            "parties": _by_party(parts, event or 0),
            "groups": _by_level(scores, run, group, event),
        }
    return _summary(total, parts, 0) | {
        "class_prior": class_prior,
        "figures": detailed,
    }


def _summary(total: Tables, results: Mapping[str, Result], index: int) -> Figures:
    """Figures of the model (0), or of the parties' own copies (1)."""
    right = {
        name: (party.right[index], party.n_examples) for name, party in results.items()
    }
    return figures.evaluation_figures(total.tables[index], right)


def _by_party(results: Mapping[str, Result], event: int) -> list[Figures]:
    """Figures of parties that have some, the least accurate first."""
    shown = [
        {"name": name, **party.figures[event % len(party.figures)]}
        for name, party in results.items()
        if party.figures
    ]
    return sorted(shown, key=lambda party: (party["accuracy"], party["name"]))


def _shown(scores: Sequence[Array], least: int) -> list[Array]:
    """Histograms and sums without those of fewer samples than `least`."""
    shown: list[Array] = []
    for histograms, sums in zip(scores[::2], scores[1::2], strict=True):
        shown += above_floor(histograms, sums, least)
    return shown


def _by_level(
    scores: Sequence[Array], run: RunSpec, column: str, event: int | None
) -> Figures | None:
    """Figures of the levels of a column that have samples; None without a column."""
    if not column:
        return None
    names = subgroup_names(run.feature_names, column)
    levels = [
        {"level": name, **figures.overall(histograms, sums, event)}
        for name, (histograms, sums) in zip(names, by_group(scores)[1:], strict=True)
        if sums[0]
    ]
    return {"column": column, "levels": levels}


def _linear_of(model: Model) -> list[GramScoring]:
    """The scores of the linear part, if the model has one."""
    if model.linear is None:
        return []
    return [model.linear]


@register
@dataclass(frozen=True)
class EvaluationRequest(RunRequest[Tables]):
    """Distribute the model, and ask for results on held-out samples."""

    run: RunSpec  # it has the specs of the model's members alone
    model: Model
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # False: parties only keep the model
    group: str = ""  # a column of the schema

    phase = "evaluation"
    channel = EVALUATE
    is_summed: ClassVar[bool] = False  # True if the results are learned in a secure sum

    entries = (
        RUN_ENTRIES
        | codec.MODEL_ENTRIES
        | codec.CALIBRATION_ENTRIES
        | {
            "n_releases": Entry(int, 2**31 - 1),
            "tries": Entry(bool),
            "group": Entry(str, 200, is_needed=False),
        }
    )
    n_arrays = 2 * MAX_SPECS + 1 + codec.N_FOREST_ARRAYS

    def to_config(self) -> dict[str, Scalar]:
        config = {
            **super().to_config(),
            **codec.scoring_entries(self.model.members),
            **codec.linear_entries(self.run, _linear_of(self.model)),
            **codec.calibration_entries(self.model.calibration),
            **codec.calibrated_forest_entries(self.run, self.model.forest),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
        }
        if self.group:
            config[key("group")] = self.group
        return config

    def arrays(self) -> list[Array]:
        counts = [member.counts for member in self.model.members]
        arrays = codec.encode(*counts)
        arrays += codec.weights_of(_linear_of(self.model))
        if self.model.forest is not None:
            arrays += codec.forest_arrays(self.model.forest.trees)
        return arrays

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> EvaluationRequest:
        run = announced_run(config, options)
        n_releases = config["n_releases"]
        forest, arrays = codec.announced_calibrated_forest(config, run, arrays, options)
        scorings, arrays = codec.announced_linear(config, run, arrays)
        linear = next(iter(scorings), None)
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        else:
            total = codec.decode_total(arrays, run.hasher, run.mechanism, n_releases)
            counts = (total,)
        with refusing():
            members = codec.announced_members(config, run, counts)
            calibration = codec.announced_calibration(config, run.n_classes)
            model = model_of_members(run, members, calibration, linear, forest)
        return cls(run, model, n_releases, config["tries"], config.get("group", ""))

    @property
    def bound(self) -> int | None:
        if self.is_summed:
            return self.run.bound
        return None

    @property
    def discloses(self) -> str:
        if self.is_summed:
            return SECURE
        if self.tries:
            return RESULTS
        return NOTHING

    def fields(self, sizes: Sizes) -> list[Field]:
        n_classes = self.run.n_classes
        shape = (n_classes, n_classes)
        matrices = [Field("confusion matrix", shape, sizes.total, PLAIN)]
        if not self.is_summed:
            # It is packed: zeros are next to nothing.
            matrices.append(Field("own confusion matrix", shape, sizes.total))
        n_groups = len(subgroup_names(self.run.feature_names, self.group))
        return matrices + score_fields(n_classes, n_groups, sizes.total)

    def answer(self, view: View) -> Answer:
        answer = Answer()
        if self.is_summed:
            return super().answer(view)
        try:
            if self.tries:
                answer = super().answer(view)
        except Exception as error:  # noqa: BLE001
            # Its text may hold anything; `reason_of` tells the kind alone.
            shown: Exception = error
            fields = ("X", "y", "n_features")
            if isinstance(error, DataError | PayloadError) and error.field in fields:
                shown = DataError("X_test, y_test", text=f"X_test, y_test: {error}")
                shown.is_public = error.is_public
            answer = Answer(
                metrics={REFUSED: reason_of("the evaluation", shown, view.hides)}
            )
        if answer.arrays and not answer.n_examples:
            answer = Answer()
        if answer.arrays:
            n_right = float(np.trace(answer.arrays[0]))
            answer.metrics["accuracy"] = n_right / answer.n_examples
        reason = view.keep(self.run, self.model)
        if reason:
            answer.metrics[UNKEPT] = reason
        return answer

    def measured(self, view: View) -> Measured[Tables]:
        """Confusion matrices, and histograms and sums.

        The second matrix is of zeros without a class prior of the party's own.
        """
        mine, has_own, batches = view.tried(self.run, self.model)
        n_classes = self.run.n_classes
        names = subgroup_names(self.run.feature_names, self.group)
        matrices = np.zeros((2, n_classes, n_classes), np.int64)
        tables = [
            np.zeros(field.shape, np.int64)
            for field in score_fields(n_classes, len(names), 0)
        ]
        for X, true, scores in batches:
            posterior = self.model.posterior(scores)
            shared = posterior.argmax(axis=1)
            matrices[0] += confusion(true, shared, n_classes)
            if has_own:
                own = mine.posterior(scores).argmax(axis=1)
                matrices[1] += confusion(true, own, n_classes)
            if tables:
                probabilities = self.model.probabilities(posterior)
                groups = [np.ones(len(true), bool)]
                if names:
                    codes = subgroup_codes(self.run.feature_names, self.group, X)
                    groups += [codes == index for index in range(len(names))]
                for rows, (histograms, sums) in zip(
                    groups, by_group(tables), strict=True
                ):
                    new_histograms, new_sums = figures.scored(
                        probabilities[rows], true[rows], shared[rows]
                    )
                    histograms += new_histograms
                    sums += new_sums
            del scores, posterior  # those of the next batch take as much memory
        least = view.options.min_examples
        if self.is_summed:
            least = 1
        results = _results(matrices[0], matrices[1], _shown(tables, least))
        return Measured(results, int(matrices[0].sum()))

    def parts(self, statistic: Tables) -> list[Array]:
        shared, own, n_own, *scores = statistic.tables
        if self.is_summed:
            return [shared, *scores]
        if not n_own.any():
            own = np.zeros_like(own)
        return [shared, own, *scores]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        if self.is_summed:
            shared, *scores = parts
            own = np.zeros_like(shared)
        else:
            shared, own, *scores = parts
        has_same_sizes = np.array_equal(shared.sum(axis=1), own.sum(axis=1))
        if own.any() and not (self.run.is_plain and has_same_sizes):
            raise PayloadError(
                "confusion matrix",
                "the same samples of each class in both, or one alone",
                "others",
            )
        return _results(shared, own, scores)


@dataclass(frozen=True, eq=False)
class EvaluationTally(AnnouncedTally[Tables]):
    """Results that are added up."""

    request: EvaluationRequest

    what = "confusion matrix"
    max_examples = 2**48  # 32768 matrices of so many samples add up within int64

    def load(self, statistic: Tables) -> int:
        return sum(statistic.tables[0].ravel().tolist())

    def check(self, statistic: Tables, sizes: Sizes) -> None:
        super().check(statistic, sizes)
        matrix, _, _, *scores = statistic.tables
        for index, (histograms, sums) in enumerate(by_group(scores)):
            _check_scores(histograms, sums, matrix, sizes.total, is_all=index == 0)

    def facts(self, statistic: Tables, n_before: int) -> Facts:
        return Facts(result=of_party(statistic, n_before))

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> Tables | None:
        # What nobody asked for is not looked at.
        if not self.request.tries or reply.announced == 0:
            return None
        return super().read(arrays, reply, member)


def _check_scores(
    histograms: Array, sums: Array, matrix: Array, total: int, is_all: bool
) -> None:
    """Refuse histograms and sums that a confusion matrix does not allow.

    They are those of all samples, or of a subgroup. Those of all are left out where
    they are of few.
    """
    sizes = histograms.sum(axis=1).reshape(-1, 2)
    n_per_class = matrix.sum(axis=1)
    most = np.stack([total - n_per_class, n_per_class], axis=1)
    if is_all:
        is_possible = (sizes == most).all(axis=1) | (sizes == 0).all(axis=1)
    else:
        is_possible = (sizes <= most).all(axis=1)
    if not is_possible.all():
        raise PayloadError("scores", "the samples of the confusion matrix", "others")
    n_examples, n_right = sums[:2].tolist()
    is_wrong = n_right > n_examples
    if is_all:
        known = ((0, 0), (total, int(np.trace(matrix))))
        is_wrong = (n_examples, n_right) not in known
    if is_wrong:
        raise PayloadError(
            "sums of scores", "the samples of the confusion matrix", "others"
        )


@register
@dataclass(frozen=True)
class SecureEvaluationRequest(EvaluationRequest):
    """Ask for results on held-out samples in a secure sum.

    It has no disclosure floor, as nobody sees a party's own results.
    """

    phase = "secure evaluation"
    channel = TRAIN
    is_summed = True


def _ask(
    state: RunState, context: Context, kind: type[EvaluationRequest]
) -> EvaluationTally:
    run = run_of_members(state, context.options)
    model = model_of(state, context.options)
    options = context.options
    n_releases = sum(release.times for release in model.members[0].counts.noise)
    if run.is_secure:
        n_releases = len(context.counted.members)  # each added a share of the noise
    tries = kind.is_summed or (options.is_evaluated and not options.sums_results)
    column = ""
    if tries:
        column = options.group_column
    return EvaluationTally(kind(run, model, n_releases, tries, column))


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    request: EvaluationRequest = context.request
    unkept = {
        context.names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
        for cid, reply in batch.replies.items()
        if UNKEPT in reply.metrics
    }
    summed = state.results.get(SECURE_EVALUATION.name)
    if summed is not None:
        return state.with_result(request.phase, Evaluation(summed.figures, unkept))
    by_party = {context.names[cid]: party for cid, party in batch.parts.items()}
    least = 1
    if request.is_summed:
        least = _PUBLIC_FLOOR
    event = event_of(state, context.options, batch.total.tables[0])
    summary = evaluated(batch.total, by_party, request.run, request.group, least, event)
    return state.with_result(request.phase, Evaluation(summary, unkept))


EVALUATION = Phase(
    "evaluation",
    EVALUATE,
    partial(_ask, kind=EvaluationRequest),
    _fold,
    audience=PRESENT,
    content=_CONTENT,
    applies=lambda options: options.is_evaluated or options.distribute,
)
SECURE_EVALUATION = replace(
    EVALUATION,
    name="secure evaluation",
    channel=TRAIN,
    tally=partial(_ask, kind=SecureEvaluationRequest),
    audience=COUNTED,
    applies=lambda options: options.sums_results,
)
