"""Phase "evaluation": the model goes to the parties, which keep it and try it on
samples they held out.

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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import DataError, PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import pack_signed
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
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
    Reply,
    Scalar,
    key,
    refusing,
)
from flwr_flynn.federated.request import RunRequest, announced_run, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.sample_access import SampleAccess
from flwr_flynn.federated.samples import subgroup_codes, subgroup_names
from flwr_flynn.model import metrics as figures
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.metrics import (
    LARGEST_SUM,
    MOST_CLASSES,
    N_LEVELS,
    N_SUMS,
    above_floor,
    confusion,
)
from flwr_flynn.model.model import Model

# of a party; 32768 matrices of so many samples add up within int64
_MAX_EXAMPLES = 2**48
_CONTENT = (
    "confusion matrices, and histograms and sums of the probabilities, of "
    "held-out samples"
)
_PUBLIC_FLOOR = 5  # samples of a class or a subgroup, in figures from a secure sum
_LARGEST = 2**50  # of a sum of scores of a party; 1024 of them add up within int64
_MOST_SHOWN = 1000  # parties whose own figures are kept


def score_fields(n_classes: int, n_groups: int, total: int) -> list[Field]:
    """Histograms and sums over at most `total` samples, and of each of so many
    subgroups.
    """
    bounds = np.array([total] * 2 + [min(total * LARGEST_SUM, _LARGEST)] * 4)
    if n_classes > MOST_CLASSES:
        return []
    return [
        field
        for name, times in (("", 1), (" by group", n_groups))
        for field in (
            Field(f"scores{name}", (2 * n_classes * times, N_LEVELS), total),
            Field(
                f"sums of scores{name}",
                (N_SUMS * times,),
                np.tile(bounds, times),
                PLAIN,
            ),
        )
        if times
    ]


def _results(shared: Array, own: Array, scores: Sequence[Array]) -> Tables:
    """Both confusion matrices, the number of parties with a second one, 0 or 1, and
    histograms and sums.

    A party whose second matrix is of zeros has no class prior of its own: its copy is
    the shared model.
    """
    has_own = own.any()
    return Tables(
        (
            shared,
            own if has_own else shared,
            np.full((1, 1), has_own, np.int64),
            *scores,
        )
    )


def by_group(
    tables: Sequence[Array], rows: Sequence[Any]
) -> list[tuple[Array, Array, Any]]:
    """Histograms and sums of all samples, and then of each subgroup, as views, each
    with the entry of `rows`.
    """
    if not tables:
        return []
    found = [(tables[0], tables[1], rows[0])]
    if len(tables) > 2:
        n = len(rows) - 1
        found += zip(
            tables[2].reshape(n, *tables[0].shape),
            tables[3].reshape(n, N_SUMS),
            rows[1:],
            strict=True,
        )
    return found


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: dict[str, Any] | None  # see `evaluated`; None without any
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name


class Result(NamedTuple):
    """Result of one party."""

    # samples that the model gets right, and those that the party's own copy does
    right: tuple[int, int]
    n_examples: int
    # see `metrics.overall`; None below the floor, and of parties beyond 1000
    figures: dict[str, Any] | None = None


def of_party(statistic: Tables, n_before: int) -> Result:
    """The result of a party, after those of so many others."""
    shared, own, _, *scores = statistic.tables
    has_figures = n_before < _MOST_SHOWN and scores and scores[1][0]
    found = None
    if has_figures:
        found = figures.overall(scores[0], scores[1])
    return Result((int(np.trace(shared)), int(np.trace(own))), int(shared.sum()), found)


def evaluated(
    total: Tables,
    parts: Mapping[str, Result],
    labels: Sequence[Any] = (),
    groups: Sequence[str] = (),
    group: str = "",
    least: int = 1,
) -> dict[str, Any] | None:
    """Figures from the sum of the answers, and results by party, by name; None without
    samples.

    They are those of `metrics.summary`, under "class_prior" those of the parties' own
    models, and under "figures" those of `model.metrics`, by party and by subgroup as
    well, where classes have at least `least` samples.
    """
    if not total.tables[0].any():
        return None

    def counted(index: int) -> dict[str, Any]:
        right = {
            name: (part.right[index], part.n_examples) for name, part in parts.items()
        }
        return figures.summary(total.tables[index], right)

    sent = int(total.tables[2].item())
    tables = total.tables[3:]
    scores = [
        each
        for pair in zip(tables[::2], tables[1::2], strict=True)
        for each in above_floor(*pair, least)
    ]
    found = None
    if scores and scores[1][0]:
        entries = by_group(scores, ["", *groups])
        levels = [
            {"level": name, **figures.overall(table, sums)}
            for table, sums, name in entries[1:]
            if sums[0]
        ]
        shown = [
            {"name": name, **part.figures}
            for name, part in parts.items()
            if part.figures
        ]
        found = {
            "examples": int(scores[1][0]),
            "resolution": figures.resolution(scores[0]),
            "overall": figures.overall(scores[0], scores[1]),
            "classes": figures.by_class(scores[0], labels),
            "parties": sorted(shown, key=lambda each: (each["accuracy"], each["name"])),
            "groups": {"column": group, "levels": levels} if group else None,
        }
    return counted(0) | {
        "class_prior": counted(1) | {"sent": sent} if sent else None,
        "figures": found,
    }


@register
@dataclass(frozen=True)
class EvaluationRequest(RunRequest[Tables]):
    """Distribute the model, and ask for results on held-out samples."""

    run: RunSpec  # with the specs of the model's members
    model: Model
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # else parties only keep the model
    group: str = ""  # a column of the schema

    phase = "evaluation"
    channel = EVALUATE
    is_summed: ClassVar[bool] = False  # True if the results are learned in a secure sum

    def to_config(self) -> dict[str, Scalar]:
        rows = [(each.scoring, each.weight) for each in self.model.members]
        members = [
            [scoring.rule, scoring.decay, scoring.temperature, weight]
            for scoring, weight in rows
        ]
        return {
            **super().to_config(),
            key("scorings"): json.dumps(members),
            key("n_releases"): self.n_releases,
            key("tries"): self.tries,
            **({key("group"): self.group} if self.group else {}),
            **codec.gram_entries(self.run, self.model.gram),
        }

    def arrays(self) -> list[Array]:
        if self.model.gram is None:
            packed = []
        else:
            packed = [pack_signed(self.model.gram.weights)]
        return codec.encode(*(each.counts for each in self.model.members)) + packed

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], party: SampleAccess
    ) -> EvaluationRequest:
        tries = config.boolean("tries")
        run = announced_run(config, party)
        n_releases = config.integer("n_releases", 0, 2**31 - 1)
        group = ""
        if "group" in config:
            group = config.text("group", 200)
        gram = None
        if "gram" in config:
            arrays, gram = (
                arrays[:-1],
                codec.announced_gram(config, run, arrays[-1:], party),
            )
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
        else:
            counts = (
                codec.decode_total(arrays, run.hasher, run.mechanism, n_releases),
            )
        with refusing():
            model = model_of_members(
                run, codec.announced_members(config, run, counts), gram
            )
        found = cls(run, model, n_releases, tries, group)
        if tries:
            n_integers = sum(
                field.size
                for field in score_fields(run.n_classes, len(found.groups), 0)
            )
            party.check_memory(24 * n_integers, f"results of {n_integers} integers")
        return found

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

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the subgroups."""
        return subgroup_names(self.run.feature_names, self.group)

    def fields(self, sizes: Sizes) -> list[Field]:
        # the second is packed: zeros are next to nothing
        shape = (self.run.n_classes,) * 2
        matrices = [Field("confusion matrix", shape, sizes.total, PLAIN)]
        if not self.is_summed:
            matrices.append(Field("own confusion matrix", shape, sizes.total))
        return matrices + score_fields(
            self.run.n_classes, len(self.groups), sizes.total
        )

    def compute(self, party: SampleAccess) -> Answer:
        if self.is_summed:
            return super().compute(party)
        if self.tries:
            answer = self._evaluated(party)
        else:
            answer = Answer()
        reason = party.keep(self.run, self.model)
        if reason:
            answer.metrics[UNKEPT] = reason
        return answer

    def _evaluated(self, party: SampleAccess) -> Answer:
        try:
            statistic, n_examples = self.measured(party)
        except Exception as error:  # noqa: BLE001
            # Its text may hold anything; `Party.reason` tells the kind alone.
            is_ours = isinstance(error, DataError | PayloadError) and error.field in (
                "X",
                "y",
                "n_features",
            )
            if is_ours:
                shown: Exception = DataError(
                    "X_test, y_test", text=f"X_test, y_test: {error}"
                )
            else:
                shown = error
            return Answer(metrics={REFUSED: party.reason("the evaluation", shown)})
        if not n_examples:
            return Answer()
        answer = self.answer(statistic, n_examples)
        answer.metrics["accuracy"] = float(np.trace(statistic.tables[0]) / n_examples)
        return answer

    def measured(self, party: SampleAccess) -> tuple[Tables, int]:
        """Confusion matrices, the second of zeros without a class prior of its own, and
        histograms and sums.
        """
        mine, has_own, batches = party.tried(self.run, self.model)
        n_classes = self.run.n_classes
        names = self.groups
        if self.is_summed:
            least = 1
        else:
            least = party.options.min_examples
        matrices = np.zeros((2, n_classes, n_classes), np.int64)
        tables = [
            np.zeros(field.shape, np.int64)
            for field in score_fields(n_classes, len(names), 0)
        ]
        for X, true, scores in batches:
            posterior = self.model.posterior(scores)
            shared = posterior.argmax(axis=1)
            matrices[0] += confusion(true, shared, n_classes)
            matrices[1] += (
                confusion(true, mine.posterior(scores).argmax(axis=1), n_classes)
                if has_own
                else 0
            )
            if tables:
                probabilities = self.model.probabilities(posterior)
                groups = [np.ones(len(true), bool)]
                if names:
                    codes = subgroup_codes(self.run.feature_names, self.group, X)
                    groups += [codes == index for index in range(len(names))]
                for table, sums, rows in by_group(tables, groups):
                    parts = figures.scored(
                        probabilities[rows], true[rows], shared[rows]
                    )
                    table += parts[0]
                    sums += parts[1]
            del scores, posterior  # those of the next batch take as much memory
        for table, sums in zip(tables[::2], tables[1::2], strict=True):
            table[:], sums[:] = above_floor(table, sums, least)
        return _results(matrices[0], matrices[1], tables), int(matrices[0].sum())

    def parts(self, statistic: Tables) -> list[Array]:
        shared, own, n_own, *scores = statistic.tables
        if self.is_summed:
            return [shared, *scores]
        return [shared, own * (n_own > 0), *scores]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        shared, own, *scores = (
            parts
            if not self.is_summed
            else (parts[0], np.zeros_like(parts[0]), *parts[1:])
        )
        if own.any() and not (
            self.run.is_plain and np.array_equal(shared.sum(axis=1), own.sum(axis=1))
        ):
            raise PayloadError(
                "confusion matrix",
                "the same samples of each class in both, or one alone",
                "others",
            )
        return _results(shared, own, scores)

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        if reply.announced > _MAX_EXAMPLES:
            raise PayloadError(
                "confusion matrix", f"at most {_MAX_EXAMPLES} examples", reply.announced
            )
        return Sizes(reply.announced, reply.announced)

    def check(self, statistic: Tables, sizes: Sizes) -> None:
        matrix, _, _, *scores = statistic.tables
        total = sum(matrix.ravel().tolist())
        if total != sizes.total:
            raise PayloadError(
                "confusion matrix", f"{sizes.total} examples as announced", total
            )
        n_per_class = matrix.sum(axis=1)
        for index, (table, sums, _) in enumerate(
            by_group(scores, [None] * (1 + len(self.groups)))
        ):
            found = table.sum(axis=1).reshape(-1, 2)
            expected = np.stack([sizes.total - n_per_class, n_per_class], axis=1)
            is_whole = (found == expected).all(axis=1) | (found == 0).all(axis=1)
            is_part = (found <= expected).all(axis=1)
            if not (is_part if index else is_whole).all():
                raise PayloadError(
                    "scores", "the samples of the confusion matrix", "others"
                )
            if sums[0] == 0:
                whole = [0, 0]
            else:
                whole = [sizes.total, np.trace(matrix)]
            if sums[1] > sums[0] or (index == 0 and sums[:2].tolist() != whole):
                raise PayloadError(
                    "sums of scores", "the samples of the confusion matrix", "others"
                )

    def party_result(self, statistic: Tables, n_before: int) -> Result:
        return of_party(statistic, n_before)

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> Tables | None:
        # What nobody asked for is not looked at.
        if not self.tries or reply.announced == 0:
            return None
        return super().read(arrays, reply, member)


@register
@dataclass(frozen=True)
class SecureEvaluationRequest(EvaluationRequest):
    """Ask for results on held-out samples in a secure sum; without a disclosure floor,
    as nobody sees a party's own.
    """

    phase = "secure evaluation"
    channel = TRAIN
    is_summed = True


def _ask(
    state: RunState, context: Context, kind: type[EvaluationRequest]
) -> EvaluationRequest:
    run = run_of_members(state, context.options)
    model = model_of(state, context.options)
    options = context.options
    n_releases = sum(release.times for release in model.members[0].counts.noise)
    if run.is_secure:
        n_releases = len(context.counted.members)  # each added a share of the noise
    tries = kind.is_summed or (options.is_evaluated and not options.sums_results)
    return kind(run, model, n_releases, tries, options.group_column if tries else "")


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
    parts = {context.names[cid]: part for cid, part in batch.parts.items()}
    classes = list(request.run.classes)
    least = 1
    if request.is_summed:
        least = _PUBLIC_FLOOR
    found = evaluated(batch.total, parts, classes, request.groups, request.group, least)
    return state.with_result(request.phase, Evaluation(found, unkept))


_asks, _asks_in_secret = (
    partial(_ask, kind=kind) for kind in (EvaluationRequest, SecureEvaluationRequest)
)
EVALUATION = Phase(
    "evaluation",
    EVALUATE,
    _asks,
    _fold,
    audience=PRESENT,
    content=_CONTENT,
    applies=lambda options: options.is_evaluated or options.distribute,
)
SECURE_EVALUATION = replace(
    EVALUATION,
    name="secure evaluation",
    channel=TRAIN,
    request=_asks_in_secret,
    audience=COUNTED,
    applies=lambda options: options.sums_results,
)
