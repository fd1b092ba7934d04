"""Phase "evaluation": parties get the model, keep it, and try it on held-out samples.

An answer has the confusion matrix, histograms of the predicted probabilities, and sums
of scores, see `model.metrics`; with a `group` the latter for the samples of each of its
levels, too. A party does not tell the histograms of a class of which it has some
samples, but fewer than its floor `min_examples`, nor where so few are of other classes;
nor the sums of so few; nor figures of other levels from which those would follow.

The same is told of two further models, see `model.site_models`: of that without the
party's own counts, on all of its samples, training samples too, and of what the party
makes alone. A party with a budget tries the former on held-out samples only, without
the noisy counts that it sent, and makes no model alone. One without held-out samples
tells nothing. No party knows whether it is counted: beside an answer in clear goes the
SHA-256 of the counts that were taken out, and the server keeps the figures where these
are those of one member alone, or of no samples, and the party is no member.

A party may keep the model with its own class frequencies in the place of those of all,
see `own_prior`. Its answer has a second confusion matrix then, of its own copy on the
same samples. Unlike the first, the sum of these depends on the split.

In a run of secure sums the results are one more of them, by phase "secure evaluation",
in which nobody sees a party's own; this phase then distributes the model alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import DataError, PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.announced_specs import MAX_SPECS
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.event import event_of
from flwr_flynn.federated.gram_fields import (
    N_GRAM_ARRAYS,
    announced_linear,
    gram_arrays,
    gram_of_arrays,
    linear_entries,
    weights_of,
)
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.own_copy import keep, tried
from flwr_flynn.federated.party_options import PartyOptions, SiteSetting
from flwr_flynn.federated.phase import (
    COUNTED,
    PRESENT,
    Context,
    Description,
    Phase,
    RunState,
    Section,
    counted_members,
    is_changed,
    linear_sums,
    member_indices,
    model_of,
    model_of_members,
    run_of_members,
    senders_of_linear,
)
from flwr_flynn.federated.phases import counts as counting
from flwr_flynn.federated.phases.counts import no_counts
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
    Scalars,
    key,
    refusing,
    sent,
)
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.federated.request import Measured, RunRequest, announced_run, register
from flwr_flynn.federated.results import (
    FIRST_SCORES,
    Evaluation,
    Scores,
    evaluated,
    of_party,
    site_figures,
)
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.federated.score_tables import (
    ALONE,
    HELD_OUT,
    WITHOUT,
    add_scored,
    by_group,
    check_held_out,
    check_sums,
    n_samples,
    score_fields,
    shown,
)
from flwr_flynn.federated.set_tables import add_sets, check_sets, set_field, shown_sets
from flwr_flynn.federated.site_trial import SiteTrial, most_tried
from flwr_flynn.federated.subgroups import subgroup_codes, subgroup_names
from flwr_flynn.federated.taken_out import Digests, reasons_of
from flwr_flynn.federated.tally import AnnouncedTally, Facts
from flwr_flynn.federated.views import View, reason_of
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.gram import N_FOLDS, GramMatrix, GramScoring
from flwr_flynn.model.metrics import confusion
from flwr_flynn.model.model import CalibratedForest, Model
from flwr_flynn.model.selection import UnseenScoring

_CONTENT = (
    "confusion matrices, the coverage of prediction sets, and histograms and sums of "
    "the probabilities, of held-out samples, of all samples by the model without the "
    "party, and of the held-out ones by its own, with a table of right and wrong by both"
)
_PUBLIC_FLOOR = 5  # samples of a class or a subgroup, in figures from a secure sum
_LEAST_OTHERS = 2  # parties in the products without any one, so that none stands alone
_TAKEN_OUT = key("taken_out")


def _results(
    shared: Array, own: Array, paired: Array, sets: Array, scores: Sequence[Array]
) -> Tables:
    """Both confusion matrices, the number of second ones, the coverage of sets, and
    histograms and sums.

    The number is 0 for a party whose second matrix is of zeros, else 1. Such a party
    has no class prior of its own: its copy is the shared model.
    """
    has_own = own.any()
    if not has_own:
        own = shared
    n_own = np.full((1, 1), has_own, np.int64)
    return Tables((shared, own, n_own, paired, sets, *scores))


def _scorings(model: Model, folds: Sequence[GramScoring]) -> list[GramScoring]:
    """Scores of the linear part, if there is one: of the whole, and by fold."""
    if model.linear is None:
        return []
    return [model.linear, *folds]


@register
@dataclass(frozen=True)
class EvaluationRequest(RunRequest[Tables]):
    """Distribute the model, and ask for results on held-out samples."""

    run: RunSpec  # it has the specs of the model's members alone
    model: Model
    n_releases: int = 0  # noises in the counts
    tries: bool = True  # False: parties only keep the model
    group: str = ""  # a column of the schema
    products: GramMatrix | None = None
    """Sums of the linear part, for the model without the site; None where they may not
    be told, or the model has no such part."""
    folds: tuple[GramScoring, ...] = ()
    """Scores of the linear part for the samples of each fold, for the sets of a site."""

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
            "products": Entry(bool, is_needed=False),
            "folds": Entry(bool, is_needed=False),
        }
    )
    n_arrays = 2 * MAX_SPECS + 1 + N_FOLDS + N_GRAM_ARRAYS + codec.N_FOREST_ARRAYS

    def to_config(self) -> Scalars:
        config = {
            **super().to_config(),
            **codec.scoring_entries(self.model.members),
            **linear_entries(self.run, _scorings(self.model, self.folds)),
            **codec.calibration_entries(self.model.calibration),
            **sent(
                n_releases=self.n_releases, tries=self.tries, group=self.group or None
            ),
        }
        if self.model.forest is not None:
            config |= codec.forest_entries(self.run, self.model.forest.trees)
            last = self.model.forest.calibration
            config |= codec.calibration_entries(last, "forest_calibration")
        if self.products is not None:
            config[key("products")] = True
        if self.folds:
            config[key("folds")] = True
        return config

    def arrays(self) -> list[Array]:
        counts = [member.counts for member in self.model.members]
        arrays = codec.encode(*counts)
        if self.products is not None:
            arrays += gram_arrays(self.products)
        arrays += weights_of(_scorings(self.model, self.folds))
        if self.model.forest is not None:
            arrays += codec.forest_arrays(self.model.forest.trees)
        return arrays

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Array], options: PartyOptions
    ) -> EvaluationRequest:
        run = announced_run(config, options)
        n_releases = config["n_releases"]
        trees, arrays = codec.announced_forest(config, run, arrays, options)
        last = codec.announced_calibration(config, run.n_classes, "forest_calibration")
        if (trees is None) != (last is None):
            raise PayloadError(key("trees"), "trees with a calibration", "one alone")
        forest = None
        if trees is not None and last is not None:
            forest = CalibratedForest(trees, last)
        n_folds = 0
        if config.get("folds"):
            n_folds = N_FOLDS
        scorings, arrays = announced_linear(config, run, arrays, 1 + n_folds)
        linear = next(iter(scorings), None)
        sums = None
        if config.get("products"):
            if linear is None or run.mechanism is not None:
                raise PayloadError(key("products"), "a linear part", "none")
            sums = arrays[-N_GRAM_ARRAYS:]
            arrays = arrays[:-N_GRAM_ARRAYS]
        products = None
        if run.mechanism is None:
            counts = codec.decode_all(arrays, run.hashers, run.n_classes)
            if sums is not None and linear is not None:
                products = gram_of_arrays(sums, linear.terms, counts[0])
        else:
            total = codec.decode_total(arrays, run.hasher, run.mechanism, n_releases)
            counts = (total,)
        with refusing():
            members = codec.announced_members(config, run, counts)
            calibration = codec.announced_calibration(config, run.n_classes)
            model = model_of_members(run, members, calibration, linear, forest)
        tries = config["tries"]
        group = config.get("group", "")
        folds = tuple(scorings[1:])
        return cls(run, model, n_releases, tries, group, products, folds)

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
        matrices.append(Field("paired", (2, 2), sizes.total, PLAIN))
        if self.model.has_sets:
            matrices.append(set_field(self.model, sizes.total))
        n_groups = len(subgroup_names(self.run.feature_names, self.group))
        most = max(sizes.total, most_tried(self.run.bound))
        return matrices + score_fields(n_classes, n_groups, sizes.total, most)

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
        if answer.n_examples:
            n_right = float(np.trace(answer.arrays[0]))
            answer.metrics["accuracy"] = n_right / answer.n_examples
        elif answer.arrays:
            answer = Answer()
        reason = keep(view, self.run, UnseenScoring(self.model, self.folds))
        if reason:
            answer.metrics[UNKEPT] = reason
        return answer

    def measured(self, view: View) -> Measured[Tables]:
        """Confusion matrices, and histograms and sums.

        The second matrix is of zeros without a class prior of the party's own.
        """
        unseen = UnseenScoring(self.model, self.folds)
        mine, has_own, batches = tried(view, self.run, unseen)
        run = self.run
        n_classes = run.n_classes
        names = subgroup_names(run.feature_names, self.group)
        matrices = np.zeros((2, n_classes, n_classes), np.int64)
        nothing = self.of_parts(self.layout.zeros(), 0)
        _, _, _, paired, sets, *tables = nothing.tables
        groups = by_group(tables)
        site = None
        for X, true, scores in batches:
            posterior = self.model.posterior(scores)
            predicted = posterior.argmax(axis=1)
            matrices[0] += confusion(true, predicted, n_classes)
            if not view.options.related_rows:  # else these rows made the thresholds
                add_sets(sets, mine, scores, true)
            if has_own:
                own = mine.posterior(scores).argmax(axis=1)
                matrices[1] += confusion(true, own, n_classes)
            if tables:
                probabilities = self.model.probabilities(posterior)
                add_scored(groups[HELD_OUT], probabilities, true, predicted)
                if names:
                    codes = subgroup_codes(run.feature_names, self.group, X)
                    for index, pair in enumerate(groups[HELD_OUT + 1 : WITHOUT]):
                        rows = codes == index
                        add_scored(
                            pair, probabilities[rows], true[rows], predicted[rows]
                        )
                if site is None:
                    counts = tuple(member.counts for member in self.model.members)
                    total = CountsOfSpecs(counts, self.products)
                    site = SiteTrial.of(run, self.model, total, view)
                site.add_held_out(X, true, predicted, groups, paired)
            del scores, posterior  # those of the next batch take as much memory
        if site is not None:
            site.add_training(groups[WITHOUT])
        least = view.options.min_examples
        if self.is_summed:
            least = 1
        told = shown(tables, least)
        if tables and not told[-1].any():
            paired[:] = 0
        sets = shown_sets(sets, least)
        results = _results(matrices[0], matrices[1], paired, sets, told)
        metrics: Scalars = {}
        if site is not None and site.taken_out and not self.is_summed:
            metrics[_TAKEN_OUT] = site.taken_out
        return Measured(results, int(matrices[0].sum()), metrics=metrics)

    def parts(self, statistic: Tables) -> list[Array]:
        shared, own, n_own, paired, sets, *scores = statistic.tables
        rest = [paired, *scores]
        if self.model.has_sets:
            rest.insert(1, sets)
        if self.is_summed:
            return [shared, *rest]
        if not n_own.any():
            own = np.zeros_like(own)
        return [shared, own, *rest]

    def of_parts(self, parts: list[Array], n_parties: int) -> Tables:
        own = np.zeros_like(parts[0])
        if not self.is_summed:
            own = parts.pop(1)
        sets = np.zeros(set_field(self.model, 0).shape, np.int64)
        if self.model.has_sets:
            sets = parts.pop(2)
        shared, paired, *scores = parts
        has_same_sizes = np.array_equal(shared.sum(axis=1), own.sum(axis=1))
        if own.any() and not (self.run.is_plain and has_same_sizes):
            raise PayloadError(
                "confusion matrix",
                "the same samples of each class in both, or one alone",
                "others",
            )
        return _results(shared, own, paired, sets, scores)


@dataclass(frozen=True, eq=False)
class EvaluationTally(AnnouncedTally[Tables]):
    """Results that are added up."""

    request: EvaluationRequest
    event: int | None = None
    """Index of the class that figures by site are of; None: means over the classes."""
    digests: Digests | None = None
    """Those of what may have been taken out of the model."""

    what = "confusion matrix"
    max_examples = 2**48  # 32768 matrices of so many samples add up within int64

    def load(self, statistic: Tables) -> int:
        return sum(statistic.tables[0].ravel().tolist())

    def check(self, statistic: Tables, sizes: Sizes) -> None:
        super().check(statistic, sizes)
        matrix, _, _, paired, sets, *scores = statistic.tables
        check_sets(sets, matrix)
        groups = by_group(scores)
        if not groups:
            return
        check_held_out(groups[HELD_OUT], matrix, np.trace(matrix))
        for pair in groups[HELD_OUT + 1 : WITHOUT]:
            check_held_out(pair, matrix)
        check_sums(groups[WITHOUT])
        n_right = paired.sum(axis=1)[0]
        check_held_out(groups[ALONE], matrix, paired.sum(axis=0)[0])
        tried_alone = n_samples(groups[ALONE]), np.trace(matrix)
        if paired.any() and (paired.sum(), n_right) != tried_alone:
            raise PayloadError("paired", "the samples tried alone", "others")

    def facts(self, statistic: Tables, n_before: int) -> Facts:
        classes = self.request.run.classes
        return Facts(result=of_party(statistic, n_before, self.event, classes))

    def read(
        self, arrays: Sequence[Array], reply: Reply, member: Member | None
    ) -> Tables | None:
        # What nobody asked for is not looked at.
        if not self.request.tries or reply.announced == 0:
            return None
        statistic = super().read(arrays, reply, member)
        if statistic is None or self.digests is None:
            return statistic
        if not self.digests.allow(reply.metrics.get(_TAKEN_OUT), member):
            for table in statistic.tables[FIRST_SCORES:][2 * WITHOUT : 2 * ALONE]:
                table[:] = 0
        return statistic


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
    products = None
    if tries:
        column = options.group_column
        products = _told_products(state, options, model)
    sums = linear_sums(state, options)
    folds: tuple[GramScoring, ...] = ()
    if sums is not None and model.linear is not None and model.has_sets:
        folds = sums.folds
    request = kind(run, model, n_releases, tries, column, products, folds)
    digests = _digests(state, context, products)
    event = event_of(state, options)
    return EvaluationTally(request, event=event, digests=digests)


def _told_products(
    state: RunState, options: RunOptions, model: Model
) -> GramMatrix | None:
    """The products that sites may get, to take their own out.

    Without those of any site they are of two others at least, and of enough samples.
    They are those of one total: two would differ by the products of few samples.
    """
    sums = linear_sums(state, options)
    if sums is None or model.linear is None or is_changed(options):
        return None
    senders = senders_of_linear(counted_members(state, options))
    sizes = [member.examples for member in senders if member.examples != 0]
    if len(sizes) <= _LEAST_OTHERS:
        return None
    most = max(size or 0 for size in sizes)
    if None in sizes:  # hidden by a secure sum, whose bound they keep
        most = state.run_spec.bound or sums.n_examples
    if sums.fewest - most < sums.least:
        return None
    return sums


def _digests(state: RunState, context: Context, products: GramMatrix | None) -> Digests:
    """Digests of what parties may take out of the model."""
    indices = member_indices(state, context.options)
    n_specs = len(state.run_spec.specs)
    run = run_of_members(state, context.options)
    basis = None
    if products is not None:
        basis = products.terms
    of_members = {}
    for member in counted_members(state, context.options):
        if member.sha256:
            own = [member.sha256[index] for index in indices]
            if products is not None:
                own += member.sha256[n_specs:]
            of_members[member.node] = " ".join(own)
    times = Counter(of_members.values())
    nothing = " ".join(no_counts(run, basis).sha256)
    # A party that was counted twice is still in the sum without its counts.
    return Digests(
        nothing,
        {
            node: digest
            for node, digest in of_members.items()
            if digest == nothing or times[digest] == 1
        },
    )


def _fold(state: RunState, batch: Batch[Tables], context: Context) -> RunState:
    request: EvaluationRequest = context.request
    unkept = {
        context.names[cid]: clean(reply.metrics[UNKEPT], 200) or "no reason given"
        for cid, reply in batch.replies.items()
        if UNKEPT in reply.metrics
    }
    summed = state.results.get(SECURE_EVALUATION.name)
    if summed is not None:
        return state.with_result(request.phase, replace(summed, unkept=unkept))
    event = event_of(state, context.options)
    by_party = {context.names[cid]: party for cid, party in batch.parts.items()}
    least = 1
    if request.is_summed:
        least = _PUBLIC_FLOOR
    names = subgroup_names(request.run.feature_names, request.group)
    levels = (request.group, names)
    summary = evaluated(
        batch.total, by_party, request.run.classes, levels, least, event
    )
    sites = []
    lacks_products = request.model.linear is not None and request.products is None
    if summary is not None and request.is_summed:
        figures = site_figures(
            Scores.of(batch.total, least), event, request.run.classes
        )
        reasons = reasons_of(figures, lacks_products, None, True, None)
        sites.append({"name": "all sites together", **figures, "reasons": reasons})
    digests = _digests(state, context, request.products)
    for cid, party in batch.parts.items():
        if party.site is not None:
            taken_out = batch.passed[cid].metrics.get(_TAKEN_OUT)
            member = context.counted.member(cid)
            is_allowed = digests.allow(taken_out, member)
            reasons = reasons_of(
                party.site, lacks_products, taken_out, is_allowed, member
            )
            sites.append(
                {
                    "name": context.names[cid],
                    **party.site,
                    "is_validation": is_allowed and taken_out == digests.nothing,
                    "reasons": reasons,
                }
            )
    evaluation = Evaluation(summary, unkept, tuple(sites))
    return state.with_result(request.phase, evaluation)


def _describe(state: RunState, options: RunOptions, name: str) -> Description:
    """Accuracy, of all and of the worst party, and parties that kept no model."""
    evaluation: Evaluation = state.results[name]
    warnings = [
        f"{party}: could not save the model: {reason}"
        for party, reason in evaluation.unkept.items()
    ]
    figures = evaluation.figures
    if figures is None:
        return Description("", warnings)
    text = f"accuracy {figures['accuracy']:.4f} on {figures['examples']} test samples"
    worst = figures["worst_party"]
    if worst is not None:
        text += (
            f" of {len(figures['parties'])} parties, {worst['accuracy']:.4f} at "
            f"{worst['name']}, the worst"
        )
    return Description(text, warnings)


def _report(state: RunState, options: RunOptions) -> Section:
    evaluation: Evaluation = state.results.get("evaluation", Evaluation(None, {}))
    return Section(
        {
            "evaluates": options.is_evaluated,
            "evaluation": evaluation.figures,
            "sites": [*evaluation.sites],
        }
    )


def _announce(options: RunOptions) -> list[str]:
    if not options.is_evaluated:
        return ["evaluation by the parties: none"]
    lines = ["evaluation by the parties: all"]
    if options.run_spec.guarantee:
        lines.append(
            "NOT COVERED: the confusion matrices that parties send in the evaluation"
        )
    return lines


def _discloses(options: RunOptions) -> str:
    if options.is_evaluated and not options.sums_results:
        return RESULTS
    return NOTHING


def _asks(options: RunOptions) -> list[SiteSetting]:
    asked = []
    if options.is_evaluated:
        why = "share of the samples that the model is evaluated on"
        asked.append(SiteSetting("test_fraction", None, why))
    if options.is_evaluated and not options.run_spec.is_plain:
        asked.append(SiteSetting("evaluate", True, "where exact results may leave"))
    why = "file for the site's copy of the model, if it wants one"
    return [*asked, SiteSetting("model_path", None, why)]


EVALUATION = Phase(
    "evaluation",
    EVALUATE,
    partial(_ask, kind=EvaluationRequest),
    _fold,
    audience=PRESENT,
    content=_CONTENT,
    applies=lambda options: options.is_evaluated or options.distribute,
    describe=partial(_describe, name="evaluation"),
    report=_report,
    announce=_announce,
    discloses=_discloses,
    asks=_asks,
    memory=counting.memory,
)
SECURE_EVALUATION = replace(
    EVALUATION,
    name="secure evaluation",
    channel=TRAIN,
    tally=partial(_ask, kind=SecureEvaluationRequest),
    audience=COUNTED,
    applies=lambda options: options.sums_results,
    describe=partial(_describe, name="secure evaluation"),
    announce=Phase.announce,
)
