"""FlyNN as a scikit-learn classifier.

Fitting counts samples (`ClassCounts`) and selects hash and readout (`selection`). The result is a `Model`. This module
adds the interface that scikit-learn expects.

>>> from sklearn.datasets import load_iris
>>> from sklearn.model_selection import cross_val_score
>>> X, y = load_iris(return_X_y=True)
>>> bool(cross_val_score(FlyNNClassifier(), X, y).mean() > 0.9)
True
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted

from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import CenterAndScale, HashPlan, suggest_decay, suggest_temperature
from flwr_flynn.model.column_moments import SCALINGS, ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember, Readout
from flwr_flynn.model.predictor import Predictor, class_codes
from flwr_flynn.model.scoring import RULES
from flwr_flynn.model.selection import select

_WIDE = 2**14  # columns up to which "auto" learns a scaling: centred columns are dense


class FlyNNClassifier(Predictor):
    """Federated nearest-neighbour classifier with a fruit-fly hash (Ram & Sinha, AAAI 2022).

    The model is a matrix of counts, one row per class. Models of disjoint data `merge` by addition, and learned samples
    can be taken out again (`forget`), both exactly.

    Parameters
    ----------
    spec : HashSpec, optional
        The hash. It fixes everything about it: `signed`, `scaling`, `waves` and `seed` are not used, and sizes that
        contradict it are refused. Models merge only if they have equal specs.
    hash_dim, row_nnz, hash_nnz : int, optional
        Sizes of the hash. Default: chosen by `HashSpec.suggest`, hash_nnz in proportion to hash_dim.
    signed : "auto" or bool, default="auto"
        Rows of +1 and -1 instead of the paper's ones. "auto": where columns are centred or scaled, except for one of
        the four hashes of ``scaling="auto"``.
    scaling : str, None or a pair (center, scale), default="auto"
        Transformation of the columns before the hash, learned from the samples of `fit` or of the first `partial_fit`.
        It does not depend on the order of the rows, the dtype or the container.

        - None: none.
        - "center": subtract the mean.
        - "standard": also divide by the standard deviation.
        - "weighted": also multiply by a weight, large for columns that tell the classes apart.
        - "weighted-center": subtract the mean and multiply by the weight.
        - "auto": the best of four hashes by leave-one-out, see `HashPlan`; None for more than 16384 columns.
        - (center, scale): (x - center) * scale with the vectors given, either of which may be None.
    waves : bool, optional
        Put wave features between the columns and the hash, which sees only directions otherwise. Default: with a
        scaling by name, where there are 7 columns or fewer; with "auto", where leave-one-out chooses them. True needs a
        scaling by name.
    decay : "auto" or float, default="auto"
        gamma, 0 <= gamma < 1. "auto": `fit` takes the decay of the best balanced accuracy by exact leave-one-out from
        `decay_grid`, the first among equals; other methods take `suggest_decay`.
    rule : {"balanced", "novelty", "bayes"}, default="balanced"
        Rule that turns counts into scores, see `flwr_flynn.model.scoring`. "novelty" is the paper's. Like the decay, it
        plays no part in the counts.
    temperature : "auto" or float, default="auto"
        Divisor of log odds in `predict_proba`, above 0. "auto": `fit` takes the temperature of the lowest log-loss by
        exact leave-one-out; other methods take `suggest_temperature`.
    seed : int, default=0
        0 <= seed < 2**64.
    n_jobs : int, optional
        Threads for hashing: None for one, -1 for all that this process may use. Results do not depend on it.

    Attributes
    ----------
    model_ : Model
        The fitted model. The attributes below, but for the last two, are parts of it.
    counts_ : ClassCounts
    classes_ : (L,) array
        Labels. The first class here wins among equal scores.
    spec_ : HashSpec
    hash_ : FlyHash
    decay_ : float
    temperature_ : float
    guarantee_ : str or None
        `privacy.Mechanism.guarantee` of the counts; None once samples were learned or taken out here.
    n_features_in_ : int
    feature_names_in_ : (d,) array of str
        Only where X had names.

    Examples
    --------
    >>> from flwr_flynn import FlyNNClassifier, HashSpec
    >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
    >>> here = FlyNNClassifier(spec).fit([[0, 1], [3, 0]], ["a", "b"])
    >>> there = FlyNNClassifier(spec).partial_fit([[0, 2]], ["a"], classes=["a", "b"])
    >>> here.merge(there).predict([[0, 5], [1, 0]])
    array(['a', 'b'], dtype='<U1')
    >>> here.counts_.n_per_class
    array([2, 1])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "spec": [HashSpec, None],
        "hash_dim": [Interval(Integral, 1, None, closed="left"), None],
        "row_nnz": [Interval(Integral, 1, None, closed="left"), None],
        "hash_nnz": [Interval(Integral, 1, None, closed="left"), None],
        "signed": [StrOptions({"auto"}), "boolean"],
        "scaling": [StrOptions({*SCALINGS, "auto"}), tuple, list, None],
        "waves": ["boolean", None],
        "decay": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
        "rule": [StrOptions(set(RULES))],
        "temperature": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "seed": [Interval(Integral, 0, 2**64 - 1, closed="both")],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        spec: HashSpec | None = None,
        hash_dim: int | None = None,
        row_nnz: int | None = None,
        hash_nnz: int | None = None,
        signed: str | bool = "auto",
        scaling: str | CenterAndScale | None = "auto",
        waves: bool | None = None,
        decay: str | float = "auto",
        rule: str = "balanced",
        temperature: str | float = "auto",
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.spec = spec
        self.hash_dim = hash_dim
        self.row_nnz = row_nnz
        self.hash_nnz = hash_nnz
        self.signed = signed
        self.scaling = scaling
        self.waves = waves
        self.decay = decay
        self.rule = rule
        self.temperature = temperature
        self.seed = seed
        self.n_jobs = n_jobs

    # -------- other ways to make one

    @classmethod
    def paper(cls, **parameters: Any) -> Self:
        """Classifier of the paper: rows of ones over raw columns, novelty scores, gamma = 0.5.

        Parameters
        ----------
        **parameters
            Parameters of the class, instead of these. Sizes left out are those of `HashSpec.suggest`. The paper tunes
            them and gamma: for d features m from 2 d to 2048 d, s from 2 to d / 2, rho from 8 to 256, gamma from 0 to
            0.8.

        """
        setting = {"signed": False, "scaling": None, "waves": False, "rule": "novelty", "decay": 0.5}
        return cls(**(setting | parameters))

    @classmethod
    def from_counts(
        cls,
        spec: HashSpec,
        counts: ClassCounts,
        classes: npt.ArrayLike,
        *,
        decay: str | float = "auto",
        rule: str = "balanced",
        temperature: str | float = "auto",
        feature_names: Sequence[str] | None = None,
        guarantee: str | None = None,
    ) -> Self:
        """Fitted classifier of given counts.

        Parameters
        ----------
        spec : HashSpec
            The hash of the counts.
        counts : ClassCounts
        classes : (L,) array-like of str or int
            Label of each row of the counts, in any order, which becomes that of `classes_`.
        decay, rule, temperature
            Parameters of the class.
        feature_names : sequence of n_features str, optional
        guarantee : str, optional
            Kept as `guarantee_`.

        Returns
        -------
        FlyNNClassifier

        Raises
        ------
        SpecError, DataError, ConfigError
            The counts are of a different hash; classes or names do not fit; decay, rule or temperature is out of range.

        Examples
        --------
        >>> from flwr_flynn import FlyHash
        >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
        >>> counts = ClassCounts.from_data(FlyHash(spec), [[0, 1], [3, 0]], [1, 0], n_classes=2)
        >>> FlyNNClassifier.from_counts(spec, counts, ["b", "a"]).predict([[0, 2]])
        array(['a'], dtype='<U1')
        """
        self = cls(spec=spec, decay=decay, rule=rule, temperature=temperature)
        member = ModelMember(spec, counts, self._readout(counts))
        model = Model((member,), np.asarray(classes), feature_names, guarantee)
        return cls.from_model(model, decay=decay, temperature=temperature)

    # -------- learning

    def fit(self, X: Any, y: npt.ArrayLike) -> Self:
        """Learn from labelled samples and forget everything learned before. If this fails, nothing is forgotten.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like
            Class labels.

        Returns
        -------
        self
        """
        self._validate_params()
        fresh = copy(self)  # receives the attributes of `validate_data`, which must not meet counts of other data
        X, y = fresh._validated(X, y, reset=True)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        chosen = fresh._select(X, codes, len(classes))
        fresh._set_model(replace(chosen, readout=fresh._readout(chosen.counts, chosen.readout)), classes)
        self.__dict__ = fresh.__dict__
        return self

    def partial_fit(self, X: Any, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> Self:
        """Learn from more samples. For a given spec, batches in any order give the counts of one `fit` of all.

        So do predictions with `decay` and `temperature` given; "auto" looks at the samples in `fit` only.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like
            Class labels.
        classes : (L,) array-like, optional
            All labels that may ever occur, required at the first call. Sizes and scaling are chosen then, and stay: the
            first batch should be large and typical, or `scaling` a pair of vectors.

        Returns
        -------
        self

        Raises
        ------
        DataError
            `classes` is missing at first or different later, or a label is not in it. Nothing was learned.
        """
        self._validate_params()
        first = not hasattr(self, "model_")
        if first and classes is None:
            raise DataError("classes", "all labels at the first call of partial_fit", None)
        known = unique_labels(classes) if first else self.classes_
        if classes is not None and not np.array_equal(unique_labels(classes), np.sort(known)):
            raise DataError("classes", "the same labels as in the first call", f"{len(unique_labels(classes))} labels")
        fresh = copy(self)
        X, y = fresh._validated(X, y, reset=first)
        check_classification_targets(y)
        codes = class_codes(known, y)
        if first:
            chosen = fresh._select(X, codes, len(known))
            # Samples that come later would have no say in a choice by leave-one-out, so none is made.
            fresh._set_model(replace(chosen, readout=fresh._readout(chosen.counts)), known)
            self.__dict__ = fresh.__dict__
        else:
            self._set_counts(self.counts_ + self._count(X, codes))
        return self

    def merge(self, other: FlyNNClassifier) -> Self:
        """Add the counts of another classifier: the result equals the model of the samples of both.

        Decay and temperature, where "auto", are chosen again from the counts, unless there is nothing to add.

        Parameters
        ----------
        other : FlyNNClassifier
            Fitted, with the same `spec_` and `classes_`. Not changed.

        Returns
        -------
        self

        Raises
        ------
        SpecError
            The hashes differ. The message names the fields.
        DataError
            The classes or the feature names differ.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        fields = self.spec_.difference(other.spec_)
        if fields:
            raise SpecError("merge", "equal specs", f"differences in {', '.join(fields)}")
        for name in ("classes_", "feature_names_in_"):
            mine, theirs = getattr(self, name, None), getattr(other, name, None)
            if mine is not None and theirs is not None and not np.array_equal(mine, theirs):
                raise DataError("merge", f"equal {name}", f"{len(theirs)} that differ")
        guarantee = self.guarantee_ if self.guarantee_ == other.guarantee_ else None
        self._set_counts(self.counts_ + other.counts_)
        self.model_ = replace(self.model_, guarantee=guarantee)
        return self

    def forget(self, X: Any, y: npt.ArrayLike) -> Self:
        """Take samples out again: the counts are then those of a model that never learned them.

        Samples that were not learned are refused where the counts show it. The counts of similar samples may hide it.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like
            Class labels.

        Returns
        -------
        self

        Raises
        ------
        CountsError
            These samples cannot all have been learned. Nothing was changed.
        DataError
            A label is not in `classes_`.

        Examples
        --------
        >>> clf = FlyNNClassifier(seed=1).fit([[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], ["a", "b", "b"])
        >>> clf.forget([[0.9, 0.1]], ["b"]).counts_.n_per_class
        array([1, 1])
        """
        check_is_fitted(self)
        X, y = self._validated(X, y)
        self._set_counts(self.counts_ - self._count(X, class_codes(self.classes_, y)))
        return self

    def _count(self, X: Any, codes: npt.NDArray[np.int64]) -> ClassCounts:
        return ClassCounts.from_data(self.hash_, X, codes, len(self.classes_), n_jobs=self.n_jobs)

    def _readout(self, counts: ClassCounts, chosen: Readout | None = None) -> Readout:
        """Readout of the parameters; "auto" values are those of `chosen`, or else suggested from the counts."""
        decay: Any = self.decay
        temperature: Any = self.temperature
        if decay == "auto":
            decay = suggest_decay(counts, self.rule) if chosen is None else chosen.decay
        if temperature == "auto":
            temperature = None if chosen is None else chosen.temperature
            temperature = suggest_temperature(counts, self.rule) if temperature is None else temperature
        return Readout(self.rule, decay, temperature)

    def _set_counts(self, counts: ClassCounts) -> None:
        """Replace the counts and choose "auto" values again; equal counts change nothing."""
        if counts != self.counts_:
            self._set_model(ModelMember(self.spec_, counts, self._readout(counts)), self.classes_)

    def _set_model(self, member: ModelMember, classes: npt.NDArray[Any]) -> None:
        names = getattr(self, "feature_names_in_", None)
        self.model_ = Model((member,), classes, None if names is None else names.tolist())

    def _select(self, X: Any, codes: npt.NDArray[np.int64], n_classes: int) -> ModelMember:
        """Choose hash and readout by leave-one-out."""
        specs = self._specs(X, codes, n_classes)
        return select(specs, X, codes, n_classes, self.rule, self.decay, self.n_jobs)

    def _specs(self, X: Any, codes: npt.NDArray[np.int64], n_classes: int) -> Sequence[HashSpec]:
        """Candidate specifications for the samples."""
        n_samples, n_features = X.shape
        sizes = {"hash_dim": self.hash_dim, "row_nnz": self.row_nnz, "hash_nnz": self.hash_nnz}
        given: dict[str, Any] = {name: int(size) for name, size in sizes.items() if size is not None}
        if self.spec is not None:
            for name, size in given.items():
                if size != getattr(self.spec, name):
                    raise SpecError(name, f"None or the {getattr(self.spec, name)} of spec", size)
            if n_features != self.spec.n_features:
                # In scikit-learn's words, which its checks look for.
                raise DataError(f"X has {n_features} features, but the spec has n_features {self.spec.n_features}")
            return [self.spec]
        wide = isinstance(self.scaling, str) and self.scaling == "auto" and n_features > _WIDE
        scaling = None if wide else self.scaling
        if self.waves and not isinstance(scaling, str):
            got = f"auto, which scales no {n_features} columns" if wide else "vectors or None"
            raise DataError("waves", "a scaling by name, which gives their frequency", got)
        plan = HashPlan(
            n_features,
            n_classes,
            n_samples,
            scaling,
            None if isinstance(self.signed, str) else bool(self.signed),
            **given,
            seed=int(self.seed),
            waves=None if self.waves is None else bool(self.waves),
        )
        return plan.specs(ColumnMoments.from_data(X, codes, n_classes) if plan.needs_sums else None)
