"""FlyNN as a scikit-learn classifier: fitting makes a `Model`.

`model.prediction` has what is done with it.
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted

from flwr_flynn._types import Array, Integers, Matrix
from flwr_flynn.errors import DataError, SpecError, with_rows
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.basis import MOST_TERMS, Basis
from flwr_flynn.model.calibration import Calibration, CalibrationSums
from flwr_flynn.model.candidates import EFFORTS, CenterAndScale, HashPlan, suggest_decay
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.forest import MOST_TREES
from flwr_flynn.model.gram import GramMatrix, GramScoring
from flwr_flynn.model.growth import ClassTerms, Growth, forest_sums
from flwr_flynn.model.model import CalibratedForest, Model, ModelMember, class_codes
from flwr_flynn.model.prediction import FittedEstimator, without_gaps
from flwr_flynn.model.prior import ClassWeight, checked_weight
from flwr_flynn.model.scoring import RULES, SUGGESTED_TEMPERATURE, Scores, ScoringRule
from flwr_flynn.model.selection import UnseenScoring, fit_members
from flwr_flynn.model.subsample import subsample_mask
from flwr_flynn.tables.cells import is_gap
from flwr_flynn.tables.learned_schema import learned
from flwr_flynn.tables.schema import Schema

_WIDE = 2**14  # columns up to which "auto" learns a scaling: centred columns are dense


class FlyNNClassifier(FittedEstimator):
    """Federated nearest-neighbour classifier with a fruit-fly hash (Ram & Sinha, AAAI
    2022).

    The model is a matrix of counts, one row per class. Models of disjoint data `merge`
    by addition, and `forget` takes learned samples out again, both exactly.

    Parameters
    ----------
    spec : HashSpec, optional
        The hash. With it `signed`, `scaling` and `seed` are not used, and sizes that
        contradict it are refused. Models merge only if they have equal specs.
    hash_dim, row_nnz, hash_nnz : int, optional
        Sizes of the hash. Default: chosen by `HashSpec.suggest`, hash_nnz in proportion
        to hash_dim.
    signed : "auto" or bool, default="auto"
        Rows of +1 and -1 instead of the paper's ones. "auto": as for `HashPlan`.
    scaling : "auto", None or a pair (center, scale), default="auto"
        Transformation of the columns before the hash.

        - "auto": a committee of the best of five hashes by leave-one-out, see `HashPlan`
          and `model.selection`, made from the samples of `fit` or of the first
          `partial_fit`; None for more than 16384 columns.
        - None: raw columns.
        - (center, scale): (x - center) * scale with the vectors given, either of which
          may be None.
    decay : "auto" or float, default="auto"
        gamma, 0 <= gamma < 1. "auto": `fit` takes the decay of the best balanced
        accuracy by exact leave-one-out from `decay_grid`, the first among equals; other
        methods take `suggest_decay`.
    rule : {"balanced", "novelty"}, default="balanced"
        Rule that turns counts into scores, see `flwr_flynn.model.scoring`. "novelty" is
        the paper's.
    temperature : "auto" or float, default="auto"
        Divisor of log odds in `predict_proba`, above 0. "auto": `fit` takes the
        temperature of the lowest log-loss by exact leave-one-out; other methods take
        0.2.
    seed, n_jobs
        As for `HashSpec` and `FlyHash.active`.
    effort : {"quick", "default", "thorough"}, default="default"
        Time and memory that scaling "auto" may cost: a single hash, a committee, or a
        committee and trees, see `HashPlan`.
    max_members : int, default=3
        Members of the model under scaling "auto", at most; 1 keeps the best candidate
        alone.
    trees : int, optional
        Trees of the forest that `fit` adds where it helps, from 0 to 1000, see
        `model.forest`; 0 is none. Only beside sums of a linear part. Default: by
        `effort`. `partial_fit` leaves it as it is; `merge` and `forget` drop it.
    linear : int, default=512
        Terms of the linear part that `fit` adds where it helps, at most, see
        `model.basis`; 0 is none. Not with effort "quick", a given `spec`, `decay` or
        `temperature`. Its sums stay: `partial_fit` and `forget` change them and solve
        again. `merge` drops it, and so do both after `load`: files have no sums.
    min_examples : int, default=5
        Rows that a text of a category needs to become a level of the model.
    ignore, keep : sequence of str, default=()
        Columns of a data frame not to use; and those to use though they look like ids
        or notes, and would be left out.
    class_weight : dict, "balanced" or None, default=None
        None: classes are as frequent as among the counted samples, see `Model`. A dict
        has factors of these frequencies by label, as in scikit-learn. "balanced", and
        None with rule "novelty": all are equally frequent.

    Attributes
    ----------
    model_ : Model
        The fitted model; `classes_` and `guarantee_` are parts of it. Of a model with
        one member (any but that of scaling "auto") so are `counts_` and `spec_`; those
        of others are in `model_.members`.
    n_features_in_, feature_names_in_ : int, (d,) array of str
        The names only where X had names. Of tables with categories, gaps or dates the
        columns used, by their names.

    Examples
    --------
    >>> from flwr_flynn import FlyNNClassifier, HashSpec
    >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
    >>> here = FlyNNClassifier(spec).fit([[0, 1], [3, 0]], ["a", "b"])
    >>> there = FlyNNClassifier(spec).partial_fit([[0, 2]], ["a"], classes=["a", "b"])
    >>> here.merge(there).predict([[0, 5], [1, 0]])
    array(['a', 'b'], dtype='<U1')
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "spec": [HashSpec, None],
        **{
            name: [Interval(Integral, 1, None, closed="left"), None]
            for name in ("hash_dim", "row_nnz", "hash_nnz")
        },
        "signed": [StrOptions({"auto"}), "boolean"],
        "scaling": [StrOptions({"auto"}), tuple, list, None],
        "decay": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
        "rule": [StrOptions(set(RULES))],
        "temperature": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "seed": [Interval(Integral, 0, 2**64 - 1, closed="both")],
        "n_jobs": [Integral, None],
        "effort": [StrOptions(set(EFFORTS))],
        "trees": [Interval(Integral, 0, MOST_TREES, closed="both"), None],
        "linear": [Interval(Integral, 0, MOST_TERMS, closed="both")],
        **{
            name: [Interval(Integral, 1, None, closed="left")]
            for name in ("max_members", "min_examples")
        },
        "class_weight": [dict, StrOptions({"balanced"}), None],
        **{name: [tuple, list] for name in ("ignore", "keep")},
    }

    # Of `fit`, with sums that later samples change:
    _linear: GramMatrix | None = None

    def __init__(
        self,
        spec: HashSpec | None = None,
        hash_dim: int | None = None,
        row_nnz: int | None = None,
        hash_nnz: int | None = None,
        signed: str | bool = "auto",
        scaling: str | CenterAndScale | None = "auto",
        decay: str | float = "auto",
        rule: str = "balanced",
        temperature: str | float = "auto",
        seed: int = 0,
        n_jobs: int | None = None,
        effort: str = "default",
        max_members: int = 3,
        trees: int | None = None,
        linear: int = MOST_TERMS,
        min_examples: int = 5,
        ignore: Sequence[str] = (),
        keep: Sequence[str] = (),
        class_weight: dict[Any, float] | str | None = None,
    ) -> None:
        self.spec = spec
        self.hash_dim = hash_dim
        self.row_nnz = row_nnz
        self.hash_nnz = hash_nnz
        self.signed = signed
        self.scaling = scaling
        self.decay = decay
        self.rule = rule
        self.temperature = temperature
        self.seed = seed
        self.n_jobs = n_jobs
        self.effort = effort
        self.max_members = max_members
        self.trees = trees
        self.linear = linear
        self.min_examples = min_examples
        self.ignore = ignore
        self.keep = keep
        self.class_weight = class_weight

    # -------- other ways to make one

    @classmethod
    def paper(cls, **parameters: Any) -> Self:
        """Classifier of the paper: rows of ones over raw columns, novelty scores, gamma
        = 0.5.

        `parameters` replace these. The paper tunes sizes and gamma: for d features m
        from 2 d to 2048 d, s from 2 to d / 2, rho from 8 to 256, gamma from 0 to 0.8.
        """
        setting = {"signed": False, "scaling": None, "rule": "novelty", "decay": 0.5}
        return cls(**(setting | parameters))

    @classmethod
    def from_counts(
        cls,
        spec: HashSpec,
        counts: ClassCounts,
        classes: npt.ArrayLike,
        *,
        feature_names: Sequence[str] | None = None,
        guarantee: str | None = None,
        **parameters: Any,
    ) -> Self:
        """Fitted classifier of given counts.

        `classes`, (L,), has the label of each row of the counts, in any order, which
        becomes that of `classes_`. Other arguments are those of `Model` and parameters
        of the class. A `SpecError` refuses counts of a different hash.
        """
        self = cls(spec=spec, **parameters)
        member = ModelMember(spec, counts, self._scoring(counts))
        model = Model((member,), np.asarray(classes), feature_names, guarantee)
        model = replace(model, prior=self._counted_prior(model.members, model.classes))
        return cls.from_model(model, **self.get_params())

    @classmethod
    def from_model(cls, model: Model, **parameters: Any) -> Self:
        """Fitted classifier of a model.

        For a model with one member its `spec`, `rule`, `decay` and `temperature` are
        the defaults of these parameters; without a prior `class_weight` is "balanced".
        They stay when the classifier learns more, but for decay "auto".
        """
        scoring = model.members[0].scoring
        class_weight = None
        if model.prior is None:
            class_weight = "balanced"
        self = cls(rule=scoring.rule, class_weight=class_weight)
        if len(model.members) == 1:
            self.set_params(
                spec=model.member.spec,
                decay=scoring.decay,
                temperature=scoring.temperature or "auto",
            )
        self.set_params(**parameters)
        self.model_ = model
        self.n_features_in_ = model.members[0].spec.n_features
        names = model.feature_names
        schema = model.schema
        if schema is not None:
            names = None
            if schema.is_named:
                names = schema.names
            self.n_features_in_ = len(schema.columns)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = 2**30) -> Self:
        """Read a classifier from a file of `save`, with the parameters of `from_model`.

        The file may come from anybody: a `ModelFileError` refuses damage and models
        beyond `max_bytes` of memory.
        """
        with model_file.reading(path, max_bytes) as (model, *_):
            return cls.from_model(model)

    # -------- learning

    def fit(self, X: object, y: npt.ArrayLike) -> Self:
        """Learn from samples, (n, d), and labels, (n,), and forget all before.

        If this fails, nothing is forgotten.
        """
        self._validate_params()
        return self._learn(X, y)

    def partial_fit(
        self, X: object, y: npt.ArrayLike, classes: npt.ArrayLike | None = None
    ) -> Self:
        """Learn from more samples.

        For a given spec, batches in any order give the counts of one `fit` of all.

        With `decay` and `temperature` given the predictions are the same, too; "auto"
        looks at the samples in `fit` only. The first call needs `classes`, all labels
        that may ever occur, and chooses columns, sizes, scaling and members for good:
        the first batch should be large and typical. The class prior follows the counts,
        as in `merge` and `forget`. A `DataError` refuses missing or changed `classes`
        and other labels: nothing is learned.
        """
        self._validate_params()
        given = None
        if classes is not None:
            given = unique_labels(classes)
        if not hasattr(self, "model_"):
            if given is None:
                expected = "all labels at the first call of partial_fit"
                raise DataError("classes", expected, None)
            return self._learn(X, y, given)
        if given is not None and not np.array_equal(given, np.sort(self.classes_)):
            expected = "the same labels as in the first call"
            raise DataError("classes", expected, f"{len(given)} labels")
        return self._change(X, y, operator.add)

    def _learn(self, X: object, y: npt.ArrayLike, known: Array | None = None) -> Self:
        """Learn from samples of classes that are `known`, or of all classes that there
        are.
        """
        # The copy receives the attributes of `validate_data`, which must not meet counts
        # of other data.
        fresh = copy(self)
        samples, y, schema = fresh._first_samples(X, y)
        if known is None:
            classes = np.unique(y)
        else:
            classes = known
        codes = class_codes(classes, y)
        chosen, basis = fresh._select(samples, codes, classes)
        # Members stay those of the first batch; scorings follow the counts of all.
        members = []
        for member in chosen:
            selected = None
            if known is None:
                selected = member.scoring
            scoring = fresh._scoring(member.counts, selected)
            members.append(replace(member, scoring=scoring))
        names: Any = schema
        if schema is None and hasattr(fresh, "feature_names_in_"):
            names = fresh.feature_names_in_.tolist()
        prior = fresh._counted_prior(members, classes)
        model = Model(tuple(members), classes, names, prior=prior)
        fresh._linear = None
        if known is None:
            if basis is not None:
                fresh._linear = GramMatrix.from_data(
                    basis, samples, codes, len(classes)
                )
            model = fresh._calibrated(model, samples, codes)
            if model.linear is None:
                fresh._linear = None
        fresh.model_ = model
        self.__dict__ = fresh.__dict__
        return self

    def merge(self, other: FlyNNClassifier) -> Self:
        """Add the counts of another classifier: the result equals the model of the
        samples of both.

        Decay and temperature, where "auto", are chosen again from the counts, unless
        there is nothing to add. A linear part goes, with a `UserWarning`. A `SpecError`
        names fields in which the hashes differ; a `DataError` reports different classes
        or names.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        mine = self.model_.members
        theirs = other.model_.members
        if len(mine) != len(theirs):
            raise SpecError("merge", f"{len(mine)} members in both models", len(theirs))
        fields = [
            name
            for a, b in zip(mine, theirs, strict=True)
            for name in a.spec.difference(b.spec)
        ]
        if fields:
            raise SpecError(
                "merge",
                "equal specs",
                f"differences in {', '.join(dict.fromkeys(fields))}",
            )
        if self.model_.schema != other.model_.schema:
            raise DataError("merge", "equal schemas", "schemas that differ")
        names = ["classes_"]
        if self.model_.schema is None:
            names.append("feature_names_in_")
        for name in names:
            ours = getattr(self, name, None)
            others = getattr(other, name, None)
            if (
                ours is not None
                and others is not None
                and not np.array_equal(ours, others)
            ):
                raise DataError("merge", f"equal {name}", f"{len(others)} that differ")
        guarantee = None
        if self.guarantee_ == other.guarantee_:
            guarantee = self.guarantee_
        self._set_counts(
            [a.counts + b.counts for a, b in zip(mine, theirs, strict=True)]
        )
        self.model_ = replace(self.model_, guarantee=guarantee)
        return self

    def forget(self, X: object, y: npt.ArrayLike) -> Self:
        """Take samples out again: counts and class prior are then those of a model that
        never learned them.

        A `CountsError` refuses samples that were never learned, if the counts show it,
        and a `DataError` other labels. Then nothing is changed.
        """
        check_is_fitted(self)
        return self._change(X, y, operator.sub)

    def _change(
        self, X: object, y: npt.ArrayLike, combine: Callable[[Any, Any], Any]
    ) -> Self:
        """Add the statistics of samples, or take them out."""
        samples, labels = self._labelled(X, y)
        _check_labels(labels)
        codes = class_codes(self.classes_, labels)
        counts = []
        for member in self.model_.members:
            more = ClassCounts.from_data(
                member.hash, samples, codes, len(self.classes_), self.n_jobs
            )
            counts.append(combine(member.counts, more))
        linear = self._linear
        if linear is not None:
            own = GramMatrix.from_data(linear.terms, samples, codes, len(self.classes_))
            linear = combine(linear, own)
        is_more = combine is operator.add
        self._set_counts(counts, linear, keeps_forest=is_more, stacklevel=4)
        return self

    def _scoring(
        self, counts: ClassCounts, chosen: ScoringRule | None = None
    ) -> ScoringRule:
        """ScoringRule of the parameters.

        "auto" values are those of `chosen`, or else suggested from the counts.
        """
        decay: Any = self.decay
        temperature: Any = self.temperature
        if decay == "auto":
            if chosen is None:
                decay = suggest_decay(counts, self.rule)
            else:
                decay = chosen.decay
        if temperature == "auto":
            temperature = None
            if chosen is not None:
                temperature = chosen.temperature
            if temperature is None:
                temperature = SUGGESTED_TEMPERATURE
        return ScoringRule(self.rule, decay, temperature)

    def _set_counts(
        self,
        counts: Sequence[ClassCounts],
        linear: GramMatrix | None = None,
        keeps_forest: bool = False,
        stacklevel: int = 3,
    ) -> None:
        """Replace the counts of the members and choose "auto" values again.

        Equal counts change but the prior.
        """
        if counts != [member.counts for member in self.model_.members]:
            pairs = zip(self.model_.members, counts, strict=True)
            members = tuple(
                replace(member, counts=new, scoring=self._scoring(new))
                for member, new in pairs
            )
            if linear is not None and linear.scoring is None:
                linear = None
            # Intercepts stay; the temperature was that of other scorings.
            calibration = self.model_.calibration
            if calibration is not None:
                calibration = replace(calibration.without_levels, temperature=1.0)
                if linear is None:
                    calibration = replace(calibration, share=0.0)
            forest = None
            if keeps_forest and self.model_.forest is not None:
                last = self.model_.forest.calibration.without_levels
                forest = replace(self.model_.forest, calibration=last)
            if linear is None and self.model_.linear is not None:
                text = "the model has no linear part any more: fit makes one"
                warnings.warn(text, stacklevel=stacklevel)
            if forest is None and self.model_.forest is not None:
                text = "the model has no trees any more: fit grows some"
                warnings.warn(text, stacklevel=stacklevel)
            self.model_ = replace(
                self.model_,
                guarantee=None,
                members=members,
                linear=_scoring_of(linear),
                calibration=calibration,
                forest=forest,
            )
            self._linear = linear
        self.model_ = replace(
            self.model_, prior=self._counted_prior(self.model_.members, self.classes_)
        )

    def _first_samples(
        self, X: object, y: npt.ArrayLike
    ) -> tuple[Matrix, Array, Schema | None]:
        """Validated samples and labels of a first fit, and the schema learned of
        samples that are no plain numbers.
        """
        schema = None
        spec = self.spec
        raw: Any = X
        # Samples of as many features as the given spec has are hashed as they are.
        if spec is None or np.shape(raw)[1:] != (spec.n_features,):
            raw, schema = learned(X, self.min_examples, self.ignore, self.keep)
        if schema is not None:
            self.n_features_in_ = len(schema.columns)
            self.__dict__.pop("feature_names_in_", None)
            if schema.is_named:
                names = [name for name in raw.names if name in schema.names]
                self.feature_names_in_ = np.array(names, dtype=object)
        samples, labels = self._validated(raw, schema, y, reset=True)
        _check_labels(labels)
        if spec is None:
            takes_gaps = self._learned_scaling(samples) is not None
        else:
            takes_gaps = flynn_hash(spec).takes_gaps
        if schema is not None and not takes_gaps:
            samples, labels = without_gaps(schema, samples, labels)
        return samples, labels, schema

    def _select(
        self, X: Matrix, codes: Integers, classes: Array
    ) -> tuple[tuple[ModelMember, ...], Basis | None]:
        """Members for the samples, with their own scorings, and the terms of a linear
        part, None without one.
        """
        n_classes = len(classes)
        plan = self._plan(X, n_classes)
        specs: Any = (self.spec,)
        basis = None
        if plan is not None:
            columns = None
            if plan.needs_columns:
                columns = ColumnHistograms.from_data(X, codes, n_classes)
            specs = plan.specs(columns)
            if columns is not None and self.linear and self._is_calibrated(plan):
                basis = Basis.of_columns(columns, int(self.linear))
        max_members = 1
        if len(specs) > 1:
            max_members = int(self.max_members)
        members = fit_members(
            specs,
            X,
            codes,
            n_classes,
            self.rule,
            self.decay,
            self.n_jobs,
            max_members,
            checked_weight(self.class_weight, self.rule, classes),
        )
        return members, basis

    @property
    def _is_chosen(self) -> bool:
        """False where decay or temperature are given."""
        return self.decay == "auto" and self.temperature == "auto"

    def _is_calibrated(self, plan: HashPlan | None) -> bool:
        """False where decay or temperature are given, and with effort "quick"."""
        return self._is_chosen and (plan is None or plan.is_calibrated)

    def _calibrated(self, model: Model, X: Matrix, codes: Integers) -> Model:
        """A model with the calibration, and the linear part, that follow from scores of
        samples that it has not seen.
        """
        plan = self._plan(X, len(model.classes))
        if not self._is_chosen:
            return model
        if not self._is_calibrated(plan):
            unchanged = Calibration.unchanged(len(model.classes))
            scored = replace(model, calibration=unchanged)
            levels = UnseenScoring(scored, n_jobs=self.n_jobs).levels(X, codes)
            return replace(model, calibration=replace(unchanged, levels=levels))
        linear: Sequence[GramScoring] = ()
        if self._linear is not None:
            linear = self._linear.folds
        counts = model.members[0].counts
        rows = subsample_mask(X, codes, counts.n_per_class)
        unseen = UnseenScoring(model, linear, self.n_jobs)
        scores = unseen.scores(X[rows], codes[rows])
        weight = checked_weight(self.class_weight, self.rule, model.classes)
        sums = CalibrationSums.of_scores(scores, counts, weight, bool(linear))
        calibration = sums.calibration(counts, weight)
        if calibration is None:
            return model
        part = None
        if calibration.share:
            part = _scoring_of(self._linear)
        calibrated = replace(model, calibration=calibration, linear=part)
        n_trees = self.trees
        if n_trees is None and plan is not None:
            n_trees = plan.n_trees
        if not n_trees or self._linear is None:
            return calibrated
        seed = model.members[0].spec.seed
        basis = self._linear.terms
        growth = Growth.planted(basis, len(model.classes), int(n_trees), seed)
        base = unseen.calibrated(calibration, X, codes)
        forest = self._grown(growth, counts, X, codes, base, weight)
        return replace(calibrated, forest=forest)

    def _grown(
        self,
        growth: Growth,
        counts: ClassCounts,
        X: Matrix,
        codes: Integers,
        unseen: Scores,
        weight: ClassWeight,
    ) -> CalibratedForest | None:
        """A forest that is grown on samples, (n, d), and their scores by the rest of the
        model, (n, L); None where it helps nothing.
        """
        terms = ClassTerms.of(counts, weight)
        while not growth.is_complete:
            sums = forest_sums(growth, X, codes, unseen, terms, self.n_jobs)
            growth = growth.grown(sums)
        if growth.best is None:
            return None
        rows = subsample_mask(X, codes, counts.n_per_class)
        with_trees = unseen[rows] + growth.best.unseen_scores(X[rows])
        scores = [(unseen[rows], with_trees, codes[rows])]
        losses = CalibrationSums.of_scores(scores, counts, weight, True)
        calibration = losses.calibration(counts, weight)
        if calibration is None or not calibration.share:
            return None
        return CalibratedForest(growth.best, calibration)

    def _learned_scaling(self, X: Matrix) -> str | CenterAndScale | None:
        """Scaling of the parameters for the samples: none is learned of many columns."""
        is_wide = isinstance(self.scaling, str) and X.shape[1] > _WIDE
        if is_wide:
            return None
        return self.scaling

    def _plan(self, X: Matrix, n_classes: int) -> HashPlan | None:
        """Plan of the parameters for the samples; None for a given `spec`."""
        n_samples, n_features = X.shape
        names = "hash_dim", "row_nnz", "hash_nnz"
        given: dict[str, Any] = {
            name: int(getattr(self, name))
            for name in names
            if getattr(self, name) is not None
        }
        if self.spec is not None:
            for name, size in given.items():
                if size != getattr(self.spec, name):
                    raise SpecError(
                        name, f"None or the {getattr(self.spec, name)} of spec", size
                    )
            if n_features != self.spec.n_features:
                # In scikit-learn's words, which its checks look for.
                text = (
                    f"X has {n_features} features, but the spec has n_features "
                    f"{self.spec.n_features}"
                )
                raise DataError(
                    "X", f"{self.spec.n_features} features", n_features, text=text
                )
            return None
        if isinstance(self.signed, str):
            signed = None
        else:
            signed = bool(self.signed)
        given |= {
            "seed": int(self.seed),
            "effort": self.effort,
            "max_members": int(self.max_members),
        }
        return HashPlan(
            n_features, n_classes, n_samples, self._learned_scaling(X), signed, **given
        )


def _scoring_of(learned: GramMatrix | None) -> GramScoring | None:
    """The scores of the whole that follow from sums, if any do."""
    if learned is None:
        return None
    return learned.scoring


def _check_labels(labels: Array) -> None:
    """Refuse labels that are no classes, or missing."""
    n_missing = sum(map(is_gap, labels.tolist()))
    if n_missing:
        error = DataError("y", "a label for each sample", "none for some")
        raise with_rows(error, f"{n_missing} of {len(labels)} labels")
    check_classification_targets(labels)
