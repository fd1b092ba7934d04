"""Model: everything that predictions follow from, and nothing else.

A model is a sum of parts that each give log probabilities with all classes taken for
equally frequent. The posterior of a class is in proportion to its probability by the
parts times its frequency. The prior is the frequency of the classes among the counted
samples, which the counts tell: it is exact on any split, and nothing is sent for it. If
parties differ in nothing but how often classes occur, the frequencies of a party
replace it in the party's own copy, see `prior`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from flwr_flynn._types import Array, Integers, Mask, Matrix
from flwr_flynn._validation import finite_floats, freeze, number
from flwr_flynn.errors import DataError, FlyNNError, SpecError
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.calibration import Calibration, mixed
from flwr_flynn.model.class_means import MeanScoring, mean_scoring, reads_means
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.forest import Forest
from flwr_flynn.model.gram import GramScoring
from flwr_flynn.model.prediction_sets import Levels
from flwr_flynn.model.prior import _LARGEST_LOG
from flwr_flynn.model.scoring import (
    SUGGESTED_TEMPERATURE,
    Scores,
    ScoringRule,
    add_log_probabilities,
    class_novelty,
    class_scores,
    empty_below,
    log_odds,
)
from flwr_flynn.tables.schema import Schema

MOST_MEMBERS = 256
_LONGEST_GUARANTEE = 10000  # characters


@dataclass(frozen=True)
class ModelMember:
    """Counts with their hash and their scoring.

    Parameters
    ----------
    spec : HashSpec
    counts : ClassCounts
        Counts by the hash of `spec`.
    scoring : ScoringRule
    weight : float, default=1.0
        Factor of the member's log probabilities in a model of several, above 0 and at
        most 1.

    Raises
    ------
    SpecError
        A field is of the wrong type or out of range, or the counts are of a different
        hash.
    """

    spec: HashSpec
    counts: ClassCounts
    scoring: ScoringRule
    weight: float = 1.0

    def __post_init__(self) -> None:
        weight = number("weight", self.weight, above=0, most=1, error=SpecError)
        freeze(self, weight=weight)
        for name, kind in (
            ("spec", HashSpec),
            ("counts", ClassCounts),
            ("scoring", ScoringRule),
        ):
            if not isinstance(getattr(self, name), kind):
                raise SpecError(
                    name, f"a {kind.__name__}", type(getattr(self, name)).__name__
                )
        if self.counts.spec_fingerprint != self.hash.fingerprint:
            expected = f"counts of hash {self.hash.fingerprint[:12]}"
            raise SpecError(
                "counts",
                expected,
                f"counts of hash {self.counts.spec_fingerprint[:12]}",
            )

    @property
    def hash(self) -> FlyHash:
        """Hash of the specification, cached."""
        return flynn_hash(self.spec)

    def log_odds(
        self, X: Matrix, n_jobs: int | None = None, come_again: bool = False
    ) -> Scores:
        """Log odds of the classes, (n, L) float64, times the temperature, for samples,
        (n, d), which may come again: then their hashes are remembered.
        """
        means = self.means
        if means is not None:
            return means.scores(self.hash, X, n_jobs)
        hashed = self.hash.active
        if come_again:
            hashed = self.hash.remembered
        scores = class_scores(self.counts, hashed(X, n_jobs=n_jobs), self.scoring)
        return log_odds(scores, self.spec.hash_nnz)

    @cached_property
    def means(self) -> MeanScoring | None:
        """Scores by the class means, where noisy counts are read so."""
        if self.scoring.rule != "balanced" or not reads_means(self.spec, self.counts):
            return None
        return mean_scoring(self.counts, self.hash)

    @property
    def temperature(self) -> float:
        """Temperature of the scoring, or the suggested one where none was chosen."""
        chosen = self.scoring.temperature
        if chosen is None:
            return SUGGESTED_TEMPERATURE
        return chosen

    def novelty(self, X: Matrix, n_jobs: int | None = None) -> Scores:
        """Novelty of samples, (n, d), to each class, (n, L) float64, see
        `class_novelty`.
        """
        return class_novelty(
            self.counts, self.hash.active(X, n_jobs=n_jobs), self.scoring.decay
        )


@dataclass(frozen=True)
class CalibratedForest:
    """A forest with the share at which it is added to the rest of a model, and with the
    temperature and intercepts of the sum.
    """

    trees: Forest
    calibration: Calibration

    def added(self, scores: Scores, of_trees: Scores) -> Scores:
        """Scores of a model, (n, L), of those without the forest and those of it."""
        with_trees = mixed(scores, scores + of_trees, self.calibration.share)
        return self.calibration.applied(with_trees)


class _NoSuchMemberError(DataError, AttributeError):
    """A model of several members has no only one."""


@dataclass(frozen=True, eq=False)
class Model:
    """Members with the labels of their classes. Immutable.

    Parameters
    ----------
    members : sequence of ModelMember
        From 1 to 256, all of the same number of classes and features. Kept as a tuple.
    classes : (L,) array-like of str, int, float or bool
        Label of each row of the counts, all different, in any order. Kept as a
        read-only array.
    feature_names : sequence of n_features str, or Schema, optional
        Names, kept as a tuple; or the schema by which raw columns become n_features
        numbers.
    guarantee : str, optional
        Statement of the privacy of the counts, on one line of at most 10000 characters.
    prior : (L,) array-like of float, optional
        Logarithms of class frequencies, from -1000 to 0, see `own_prior`. Kept
        read-only. None: all classes are equally frequent.
    calibration : Calibration, optional
        Temperature and intercepts of the whole, see `model.calibration`.
    linear : GramScoring, optional
        Scores of the linear part, with the share that the calibration tells.
    forest : CalibratedForest, optional
        Trees that are added to all this, see `model.forest`.

    Raises
    ------
    DataError
        A field is not as described.

    Examples
    --------
    >>> from flwr_flynn import ClassCounts, FlyHash, HashSpec
    >>> hasher = FlyHash(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=1))
    >>> member = ModelMember(hasher.spec, ClassCounts.zeros(hasher, 2), ScoringRule("novelty", 0.5))
    >>> Model((member,), [True, False]).member.scoring.rule
    'novelty'
    """

    members: tuple[ModelMember, ...]
    classes: Array
    feature_names: Sequence[str] | Schema | None = None
    guarantee: str | None = None
    prior: Scores | None = None
    calibration: Calibration | None = None
    linear: GramScoring | None = None
    forest: CalibratedForest | None = None

    def __post_init__(self) -> None:
        members = tuple(self.members)
        if not 1 <= len(members) <= MOST_MEMBERS or not all(
            isinstance(member, ModelMember) for member in members
        ):
            raise DataError(
                "members",
                f"1 to {MOST_MEMBERS} ModelMembers",
                [type(member).__name__ for member in members[:5]],
            )
        n_classes = members[0].counts.n_classes
        n_features = members[0].spec.n_features
        for member in members[1:]:
            if (member.counts.n_classes, member.spec.n_features) != (
                n_classes,
                n_features,
            ):
                got = f"{member.counts.n_classes} and {member.spec.n_features}"
                raise DataError(
                    "members",
                    f"{n_classes} classes and {n_features} features in each",
                    got,
                )
        classes = np.array(self.classes)
        n_labels = 0
        if classes.shape == (n_classes,):
            n_labels = len(np.unique(classes))
        if n_labels != n_classes:
            if n_labels:
                got = f"{n_labels} different ones"
            else:
                got = f"shape {classes.shape}"
            raise DataError("classes", f"{n_classes} different labels", got)
        checked: dict[str, object] = {"members": members, "classes": classes}
        if self.feature_names is not None:
            checked["feature_names"] = checked_names(self.feature_names, n_features)
        text = self.guarantee
        if text is not None and not isinstance(text, str):
            raise DataError("guarantee", "a str", type(text).__name__)
        if text is not None and (
            len(text) > _LONGEST_GUARANTEE or not text.isprintable()
        ):
            expected = f"one line of at most {_LONGEST_GUARANTEE} characters"
            raise DataError("guarantee", expected, f"{len(text)} characters")
        if self.prior is not None:
            checked["prior"] = _checked_prior(self.prior, n_classes)
        shapes = {}
        if self.linear is not None:
            shapes["linear"] = (self.linear.terms.n_features, len(self.linear.bias))
        if self.forest is not None:
            trees = self.forest.trees
            shapes["forest"] = (trees.basis.n_features, trees.n_classes)
        for name, shape in shapes.items():
            if shape != (n_features, n_classes):
                expected = f"one of {n_features} features and {n_classes} classes"
                raise DataError(name, expected, shape)
        if self.forest is not None and self.calibration is None:
            raise DataError("calibration", "one beside a forest", "none")
        if self.share and self.linear is None:
            raise DataError("linear", "a linear part, as it has a share", "none")
        if self.linear is not None and not self.share:
            raise DataError("share", "one above 0 of the linear part", self.share)
        calibrations = [self.calibration]
        if self.forest is not None:
            calibrations.append(self.forest.calibration)
        for calibration in calibrations:
            if calibration is not None and len(calibration.intercepts) != n_classes:
                n_intercepts = len(calibration.intercepts)
                raise DataError("intercepts", f"{n_classes} classes", n_intercepts)
        freeze(self, **checked)

    @property
    def schema(self) -> Schema | None:
        """Schema of the raw columns, if samples become numbers by one."""
        if isinstance(self.feature_names, Schema):
            return self.feature_names
        return None

    @property
    def member(self) -> ModelMember:
        """Only member of a model of one.

        Raises a `DataError` if there are several, so that `hasattr` finds none.
        """
        if len(self.members) != 1:
            raise _NoSuchMemberError(
                "members", "1 (see model_.members)", len(self.members)
            )
        return self.members[0]

    @property
    def share(self) -> float:
        """Share of the linear part in the scores."""
        if self.calibration is None:
            return 0.0
        return self.calibration.share

    @property
    def last_calibration(self) -> Calibration | None:
        """Calibration of the whole, behind which no part is added."""
        if self.forest is not None:
            return self.forest.calibration
        return self.calibration

    @property
    def has_sets(self) -> bool:
        """True if the model has a table of levels, for prediction sets."""
        return bool(self.last_calibration and self.last_calibration.levels)

    def with_own_levels(self, levels: Levels) -> Model:
        """The copy of a site, whose prediction sets lean on its own table."""
        last = self.last_calibration
        if last is None:
            return self
        own = replace(last, own_levels=levels)
        if self.forest is None:
            return replace(self, calibration=own)
        return replace(self, forest=replace(self.forest, calibration=own))

    def sets(self, scores: Scores, coverage: float) -> Mask:
        """Classes in the prediction set of each sample, (n, L) bool, by the
        `shared_scores`, see `model.prediction_sets`.

        A `DataError` where the model has no table of levels.
        """
        empty = self.empty_classes
        calibration = self.last_calibration or Calibration.unchanged(len(empty))
        is_in = calibration.sets(np.where(empty, -np.inf, scores), coverage)
        return is_in & ~empty

    @property
    def empty_classes(self) -> Mask:
        """Classes without samples, (L,) bool."""
        return self.members[0].counts.empty_classes

    @property
    def takes_gaps(self) -> bool:
        """True if NaN is a gap for all members, and no error."""
        return all(member.hash.takes_gaps for member in self.members)

    def scores(self, X: Matrix, n_jobs: int | None = None) -> Scores:
        """Log probabilities of the classes, (n, L) float64, up to a constant of each
        sample.

        The class with the highest wins, the first among equals. A class without samples
        is below the others.
        """
        return self.posterior(self.shared_scores(X, n_jobs))

    def shared_scores(
        self, X: Matrix, n_jobs: int | None = None, come_again: bool = False
    ) -> Scores:
        """The same, (n, L), with all classes taken for equally frequent.

        The mean of the log probabilities of the members and of the linear part, by
        their weights, and what the forest adds; each sum with its calibration.
        """
        odds = (member.log_odds(X, n_jobs, come_again) for member in self.members)
        scores = self.combined(X.shape[0], odds)
        if self.linear is not None:
            linear = self.linear.log_probabilities(scores, X)
            scores = mixed(scores, linear, self.share)
        if self.calibration is not None:
            scores = self.calibration.applied(scores)
        if self.forest is not None:
            scores = self.forest.added(scores, self.forest.trees.scores(X))
        return empty_below(scores, self.empty_classes)

    def combined(self, n_samples: int, odds: Iterable[Scores]) -> Scores:
        """Scores without the linear part, (n, L), of log odds of the members, (n, L)
        each, times their temperatures.
        """
        total = np.zeros((n_samples, len(self.classes)))
        for member, own in zip(self.members, odds, strict=True):
            weight = 1.0
            if len(self.members) > 1:
                weight = member.weight
            add_log_probabilities(own, member.temperature, weight, total)
        return total

    def posterior(self, scores: Scores) -> Scores:
        """Scores with the prior, (n, L), from those without."""
        if self.prior is None:
            return scores
        return empty_below(scores + self.prior, self.empty_classes)

    def probabilities(self, scores: Scores) -> Scores:
        """Probabilities of the classes, (n, L), from `scores`.

        A class without samples gets 0.
        """
        empty = self.empty_classes
        if empty.any() and not empty.all():
            scores = np.where(empty, -np.inf, scores)
        probabilities: Scores = softmax(scores, axis=1)
        return probabilities

    def novelty(self, X: Matrix, n_jobs: int | None = None) -> Scores:
        """Novelty of samples to each class, (n, L) float64: the mean of the members, by
        their weights.
        """
        total = np.zeros((X.shape[0], len(self.classes)))
        for member in self.members:
            total += member.weight * member.novelty(X, n_jobs)
        total /= sum(member.weight for member in self.members)
        return total

    def sha256(self) -> str:
        """SHA-256 over all that probabilities follow from; the same for equal models
        everywhere.
        """
        members: list[list[object]] = []
        for member in self.members:
            scoring = member.scoring
            counts = member.counts.sha256()
            members.append([counts, scoring.rule, scoring.decay, scoring.temperature])
            if len(self.members) > 1:
                members[-1].append(member.weight)
        facts: dict[str, object] = {
            "members": members,
            "classes": [self.classes.dtype.kind, self.classes.tolist()],
            "feature_names": self.feature_names,
        }
        if self.linear is not None:
            facts["linear"] = self.linear.sha256()
        if self.forest is not None:
            facts["forest"] = [
                self.forest.trees.sha256(),
                self.forest.calibration.facts(),
            ]
        if self.prior is not None:
            facts["prior"] = self.prior.tolist()
        if self.calibration is not None:
            calibration = self.calibration.facts()
            if calibration != Calibration.unchanged(len(self.classes)).facts():
                facts["calibration"] = calibration
        text = json.dumps(facts, default=Schema.to_dict)
        return hashlib.sha256(b"flynn model 1 " + text.encode()).hexdigest()


def counts_sha256(members: Sequence[ModelMember]) -> str:
    """SHA-256 of the counts of a model: of one member `ClassCounts.sha256`, else over
    those of all members.
    """
    digests = [member.counts.sha256() for member in members]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(bytes.fromhex("".join(digests))).hexdigest()


def checked_names(
    names: object, n_features: int, error: type[FlyNNError] = DataError
) -> tuple[str, ...] | Schema:
    """Feature names as a tuple, if they are one string for each feature, or a schema of
    as many numbers.
    """
    expected = f"{n_features} strings (n_features), or a schema of as many numbers"
    if isinstance(names, Schema):
        if names.width != n_features:
            raise error("feature_names", expected, names.width)
        return names
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise error("feature_names", expected, type(names).__name__)
    given = tuple(names)
    if len(given) != n_features or not all(isinstance(name, str) for name in given):
        raise error("feature_names", expected, f"{len(given)} entries")
    # str() makes Python's strings of NumPy's.
    return tuple(map(str, given))


def _checked_prior(prior: object, n_classes: int) -> Scores:
    """Return log frequencies as an array, if they are one for each class and within
    bounds.
    """
    array = finite_floats(
        "prior", prior, (n_classes,), f"{n_classes} finite numbers", DataError
    )
    if not ((array >= -_LARGEST_LOG) & (array <= 0)).all():
        raise DataError("prior", f"numbers from {-_LARGEST_LOG} to 0", "some outside")
    return array


def class_codes(classes: Array, y: npt.ArrayLike) -> Integers:
    """Index of each label in `classes`, (n,) int64."""
    order = np.argsort(classes)
    indices = np.searchsorted(classes, y, sorter=order)
    codes: Integers = order[np.minimum(indices, len(classes) - 1)]
    n_unknown = int((classes[codes] != y).sum())
    if n_unknown:
        raise DataError(
            "y",
            f"labels among the {len(classes)} classes",
            f"{n_unknown} of {len(codes)} that are not",
        )
    return codes
