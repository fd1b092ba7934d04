"""FlyNN as a scikit-learn classifier.

Fitting counts (`ClassCounts`), predicting reads the counts out (`readout`); this module adds what scikit-learn expects
around that. Hash and read-out are chosen in `choice`, model files are read and written in `modelfile`.

>>> from sklearn.datasets import load_iris
>>> from sklearn.model_selection import cross_val_score
>>> X, y = load_iris(return_X_y=True)
>>> bool(cross_val_score(FlyNNClassifier(), X, y).mean() > 0.9)
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import copy
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from flwr_flynn.errors import DataError, SpecError
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.column_checks import check_columns, check_finite
from flwr_flynn.model.column_moments import SCALINGS, ColumnSums
from flwr_flynn.model.counts import ClassCounts, check_readout
from flwr_flynn.model.scoring import RULES, log_odds
from flwr_flynn.model.selection import Pair, Plan, select

Floats = npt.NDArray[np.float64]

_BATCH = 2**14  # points whose active bits are held at a time when predicting
_WIDE = 2**14  # columns up to which "auto" looks at them: centred ones are dense


class FlyNNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Federated nearest-neighbour classifier with a fruit-fly hash (Ram & Sinha, AAAI 2022).

    The model is a matrix of counts, one row per class: models of disjoint data `merge` by addition, and points that
    were learned can be taken out again (`forget`), both exactly.

    Parameters
    ----------
    spec : HashSpec, optional
        The hash. It fixes everything about it: `signed`, `scaling` and `seed` are then not used, and sizes that
        contradict it are refused. Models merge only if they have the same.
    hash_dim, row_nnz, hash_nnz : int, optional
        Sizes of the hash; those left out are chosen by `HashSpec.suggest`, hash_nnz in proportion to hash_dim.
    signed : "auto" or bool, default="auto"
        Rows of +1 and -1 rather than the paper's ones. "auto": where columns are centred or scaled, except that one of
        the four hashes of ``scaling="auto"`` has ones.
    scaling : str, None or a pair (center, scale), default="auto"
        What happens to the columns first. None: nothing. "center": the mean is subtracted. "standard": the result is
        also divided by the standard deviation. "weighted": and multiplied by how much the column tells about the
        classes. "weighted-center": centred and weighted, not standardised. "auto": the best of four hashes by
        leave-one-out, see `choice.Plan`. Or (x - center) * scale with the vectors given, either
        of which may be None. All of it is learned from the points of `fit`, or of the first `partial_fit`, and stays;
        means, deviations and weights do not depend on the order of the rows, on the dtype, or on sparse or dense. More
        than 16384 columns are left as they are by "auto".
    waves : bool, optional
        Put periodic projections between the columns and the hash (`hashing.wave_features`), which sees only directions
        otherwise. None: if `scaling` is a name, where there are 7 columns or fewer; with "auto", where leave-one-out
        says so. True needs a `scaling` by name.
    decay : "auto" or float, default="auto"
        gamma, 0 <= gamma < 1. "auto": `fit` takes the decay of the best balanced accuracy by exact leave-one-out from
        `ClassCounts.decay_grid`, the first of equals; everything else takes `ClassCounts.suggest_decay`.
    rule : {"balanced", "novelty", "bayes"}, default="balanced"
        How counts become scores, see `model.scoring`. "novelty" is the paper's. Like `decay_`, it plays no part in
        what is counted.
    reject_above : float, optional
        Abstain from points whose novelty to every class is above this, from 0 to 1: `predict` gives them
        `reject_label`. A quantile of ``novelty(X).min(axis=1)`` over points that were not trained on is a good choice.
        Novelty depends on the decay, so give that, too, where the model is going to learn more.
    reject_label : str, int or float, optional
        Of the kind of the classes, and none of them. None: "rejected", or for numbers -1, or one below the lowest class
        where that is one.
    temperature : "auto" or float, default="auto"
        What `predict_proba` divides logarithms by, above 0. "auto": `fit` takes the one with the lowest log-loss by
        exact leave-one-out from `choice.TEMPERATURES`; everything else takes
        `ClassCounts.suggest_temperature`.
    seed : int, default=0
        0 <= seed < 2**64.
    n_jobs : int, optional
        Threads for hashing: None for one, -1 for all that this process may use. Results do not depend on it.

    Attributes
    ----------
    counts_ : ClassCounts
        What was learned.
    classes_ : (L,) array
        Labels; of classes with equal scores the first here wins.
    spec_ : HashSpec
    hash_ : FlyHash
    decay_ : float
    temperature_ : float
    n_features_in_ : int
    feature_names_in_ : (d,) array of str
        Where X had names.
    guarantee_ : str or None
        What `privacy.Mechanism.guarantee` says about the counts; None once points were learned or taken out here.

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

    counts_: ClassCounts
    classes_: npt.NDArray[Any]
    spec_: HashSpec
    hash_: FlyHash
    decay_: float
    temperature_: float
    guarantee_: str | None

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
        "reject_above": [Interval(Real, 0, 1, closed="both"), None],
        "reject_label": "no_validation",
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
        scaling: str | Pair | None = "auto",
        waves: bool | None = None,
        decay: str | float = "auto",
        rule: str = "balanced",
        reject_above: float | None = None,
        reject_label: Any = None,
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
        self.reject_above = reject_above
        self.reject_label = reject_label
        self.temperature = temperature
        self.seed = seed
        self.n_jobs = n_jobs

    @classmethod
    def paper(cls, **parameters: Any) -> Self:
        """The classifier of the paper: rows of ones over raw columns, novelty scores, gamma = 0.5.

        Parameters
        ----------
        **parameters
            Of the class, instead of these. Sizes left out are those of `HashSpec.suggest`; the paper tunes them and
            gamma, for d features within m 2 d to 2048 d, s 2 to d / 2, rho 8 to 256, gamma 0 to 0.8.

        Examples
        --------
        >>> FlyNNClassifier.paper(decay=0.1).rule
        'novelty'
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
        reject_above: float | None = None,
        reject_label: Any = None,
        feature_names: Sequence[str] | None = None,
        guarantee: str | None = None,
    ) -> Self:
        """A fitted classifier of counts made elsewhere.

        Parameters
        ----------
        spec : HashSpec
            The hash that made them.
        counts : ClassCounts
        classes : (L,) array-like of str or int
            Label of each row of the counts, in any order, which becomes that of `classes_`.
        decay, rule, temperature, reject_above, reject_label
            As for the class.
        feature_names : sequence of n_features str, optional
        guarantee : str, optional
            Kept as `guarantee_`.

        Raises
        ------
        SpecError, DataError, ValueError
            The counts are of another hash; classes or names do not fit; decay or rule is not as described.

        Examples
        --------
        >>> from flwr_flynn import ClassCounts, FlyHash
        >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
        >>> counts = ClassCounts.from_data(FlyHash(spec), [[0, 1], [3, 0]], [1, 0], n_classes=2)
        >>> FlyNNClassifier.from_counts(spec, counts, ["b", "a"]).predict([[0, 2]])
        array(['a'], dtype='<U1')
        """
        check_readout(rule, 0.0 if decay == "auto" else decay, 1.0 if temperature == "auto" else temperature)
        hasher = flynn_hash(spec)
        if counts.spec_fingerprint != hasher.fingerprint:
            raise SpecError(
                f"counts: expected those of hash {hasher.fingerprint[:12]}, got of {counts.spec_fingerprint[:12]}"
            )
        labels = np.asarray(classes)
        if labels.shape != (counts.n_classes,) or len(np.unique(labels)) != counts.n_classes:
            raise DataError(f"classes: expected {counts.n_classes} different labels, got shape {labels.shape}")
        names = None
        if feature_names is not None:
            names = np.asarray(feature_names, dtype=object)
            if names.shape != (spec.n_features,) or not all(isinstance(name, str) for name in names):
                raise DataError(f"feature_names: expected {spec.n_features} strings, got shape {names.shape}")
        self = cls(
            spec=spec,
            decay=decay,
            rule=rule,
            temperature=temperature,
            reject_above=reject_above,
            reject_label=reject_label,
        )
        self.n_features_in_ = spec.n_features
        if names is not None:
            self.feature_names_in_ = names
        self.hash_, self.spec_, self.classes_ = hasher, spec, labels
        self._set_counts(counts)
        self.guarantee_ = guarantee
        return self

    def fit(self, X: Any, y: npt.ArrayLike) -> Self:
        """Learn from labelled points, and forget everything learned before; if this fails, nothing is forgotten.

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
        fresh = copy(self)  # for what `validate_data` sets, which must not meet counts of other data
        X, y = fresh._validated(X, y, reset=True)
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        fresh._learn(X, codes, classes)
        self._become(fresh)
        return self

    def partial_fit(self, X: Any, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> Self:
        """Learn from more points. For a given spec, batches in any order give the counts that one `fit` of all gives.

        So do predictions with `decay` and `temperature` given; "auto" looks at the points in `fit` only.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like
        classes : (L,) array-like, optional
            All labels that may ever occur; needed at the first call. Sizes and scaling are chosen then, and stay: the
            first batch should be large and look like what is to come, or `scaling` be a pair of vectors.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            `classes` is missing at first or different later, or a label is not among them. Nothing was learned.
        """
        self._validate_params()
        first = not hasattr(self, "counts_")
        if first and classes is None:
            raise ValueError("classes: must be given at the first call of partial_fit")
        known = unique_labels(classes) if first else self.classes_
        if classes is not None and not np.array_equal(unique_labels(classes), np.sort(known)):
            raise ValueError("classes: expected the same as before, got others")
        fresh = copy(self)
        X, y = fresh._validated(X, y, reset=first)
        check_classification_targets(y)
        codes = _codes(known, y)
        if first:
            fresh._learn(X, codes, known)
            # What comes later has no say in leave-one-out, so nothing has.
            fresh._set_counts(fresh.counts_, fresh.counts_.suggest_decay(self.rule))
            self._become(fresh)
        else:
            self._set_counts(self.counts_ + self._count(X, codes))
        return self

    def merge(self, other: FlyNNClassifier) -> Self:
        """Add what another classifier learned: the counts are then those of a model that learned its points, too.

        Decay and temperature, where "auto", are chosen anew from the counts, unless there is nothing to add.

        Parameters
        ----------
        other : FlyNNClassifier
            Fitted, with the same `spec_` and `classes_`. Left as it is.

        Returns
        -------
        self

        Raises
        ------
        SpecError
            The hashes differ; the message names the fields.
        DataError
            The classes or the feature names differ.
        """
        check_is_fitted(self)
        check_is_fitted(other)
        fields = self.spec_.difference(other.spec_)
        if fields:
            raise SpecError(f"merge: the specs differ in {', '.join(fields)}")
        for name in ("classes_", "feature_names_in_"):
            mine, theirs = getattr(self, name, None), getattr(other, name, None)
            if mine is not None and theirs is not None and not np.array_equal(mine, theirs):
                raise DataError(f"merge: {name} differ")
        guarantee = self.guarantee_ if self.guarantee_ == other.guarantee_ else None
        self._set_counts(self.counts_ + other.counts_)
        self.guarantee_ = guarantee
        return self

    def forget(self, X: Any, y: npt.ArrayLike) -> Self:
        """Take points out again: the counts are then those of a model that never learned them.

        Points that were not learned are refused where the counts show it, which those of similar points may not.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like

        Returns
        -------
        self

        Raises
        ------
        CountsError
            These points cannot all have been learned. Nothing was changed.
        ValueError
            A label is not among `classes_`.
        """
        check_is_fitted(self)
        X, y = self._validated(X, y)
        self._set_counts(self.counts_ - self._count(X, _codes(self.classes_, y)))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Labels of points: the class with the highest score, the first in `classes_` of those that tie.

        With `reject_above`, points that are too novel get `reject_label` instead.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n,) array
        """
        if self.reject_above is None:
            best = self._scores(X).argmax(axis=1)
            labels: npt.NDArray[Any] = self.classes_[best]
            return labels
        check_is_fitted(self)
        limit, label = self.reject_above, self._reject_label()

        def read(active: npt.NDArray[np.int32]) -> Floats:
            best = self.counts_.scores(active, self.decay_, self.rule).argmax(axis=1)
            novel = self.counts_.novelty(active, self.decay_).min(axis=1) > limit
            return np.where(novel, len(self.classes_), best)

        labels = np.append(self.classes_, label)[self._read_out(X, read)]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes, in the order of `classes_`.

        Proportional to exp(d_l / temperature_), d_l being the values of `decision_function`. Every class counts as
        equally frequent, and one without points gets 0.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array
            Rows sum to 1.
        """
        odds = self._log_odds(X)
        empty = self.counts_.without_points
        if not empty.all():
            odds[:, empty] = -np.inf
        probabilities: Floats = softmax(odds / self.temperature_, axis=1)
        return probabilities

    def decision_function(self, X: Any) -> Floats:
        """The scores by which `predict` decides, on a scale on which they are about log odds: `readout.log_odds`.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array, or (n,) if there are two classes
            With two classes the second's minus the first's: positive for ``classes_[1]``.
        """
        odds = self._log_odds(X)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds

    def novelty(self, X: Any) -> Floats:
        """How new points are to each class: f_l(x) / rho of the paper's Algorithm 1, with gamma = `decay_`.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array
            Between 0 and 1: 1 where a class saw none of a point's active bits.
        """
        return self._read_out(X, lambda active: self.counts_.novelty(active, self.decay_))

    def _log_odds(self, X: Any) -> Floats:
        return log_odds(self._scores(X), self.spec_.hash_nnz, self.rule)

    def _scores(self, X: Any) -> Floats:
        return self._read_out(X, lambda active: self.counts_.scores(active, self.decay_, self.rule))

    def _read_out(self, X: Any, read: Callable[[npt.NDArray[np.int32]], Floats]) -> Floats:
        check_is_fitted(self)
        X = self._validated(X)
        batches = gen_batches(X.shape[0], _BATCH)
        return np.concatenate([read(self.hash_.active(X[batch], n_jobs=self.n_jobs)) for batch in batches])

    def _validated(self, X: Any, y: Any = "no_validation", reset: bool = False) -> Any:
        """X, or X and y, as scikit-learn wants them; what is wrong with columns is said by their names."""
        check_columns(X)
        names = getattr(X, "columns", None)
        validated = validate_data(self, X, y, accept_sparse="csr", reset=reset, ensure_all_finite=False)
        check_finite(validated[0] if isinstance(validated, tuple) else validated, names)
        return validated

    def _become(self, other: Self) -> None:
        learned = other.__dict__.copy()
        self.__dict__.clear()
        self.__dict__.update(learned)

    def _learn(self, X: Any, codes: npt.NDArray[np.int64], classes: npt.NDArray[Any]) -> None:
        """Choose hash and read-out, and count."""
        specs = self._candidates(X, codes, len(classes))
        chosen = select(specs, X, codes, len(classes), self.rule, self.decay, self.n_jobs)
        self.classes_, self.spec_, self.hash_ = classes, chosen.spec, flynn_hash(chosen.spec)
        self._set_counts(chosen.counts, chosen.readout.decay, chosen.temperature)

    def _count(self, X: Any, codes: npt.NDArray[np.int64]) -> ClassCounts:
        return ClassCounts.from_data(self.hash_, X, codes, len(self.classes_), n_jobs=self.n_jobs)

    def _set_counts(self, counts: ClassCounts, decay: float | None = None, temperature: float | None = None) -> None:
        if self.reject_above is not None:
            self._reject_label()  # better refused now than when it is needed
        if decay is None and temperature is None and getattr(self, "counts_", None) == counts:
            return  # nothing was learned or forgotten
        decay = counts.suggest_decay(self.rule) if decay is None else decay
        temperature = counts.suggest_temperature(self.rule) if temperature is None else temperature
        self.counts_, self.guarantee_ = counts, None
        self.decay_ = decay if isinstance(self.decay, str) else float(self.decay)
        self.temperature_ = temperature if isinstance(self.temperature, str) else float(self.temperature)

    def _candidates(self, X: Any, codes: npt.NDArray[np.int64], n_classes: int) -> Sequence[HashSpec]:
        n_examples, n_features = X.shape
        sizes = {"hash_dim": self.hash_dim, "row_nnz": self.row_nnz, "hash_nnz": self.hash_nnz}
        given: dict[str, Any] = {name: int(size) for name, size in sizes.items() if size is not None}
        if self.spec is not None:
            for name, size in given.items():
                if size != getattr(self.spec, name):
                    raise SpecError(f"{name}: the spec has {getattr(self.spec, name)}, but {size} was given as well")
            if n_features != self.spec.n_features:
                raise DataError(f"X has {n_features} features, but the spec has n_features {self.spec.n_features}")
            return [self.spec]
        scaling = None if self.scaling == "auto" and n_features > _WIDE else self.scaling
        if self.waves and not isinstance(scaling, str):
            what = (
                f'"auto" leaves {n_features} columns as they are' if self.scaling == "auto" else "got another scaling"
            )
            raise ValueError(f"waves: expected a scaling by name, by which their frequency is chosen; {what}")
        plan = Plan(
            n_features,
            n_classes,
            n_examples,
            scaling,
            None if isinstance(self.signed, str) else bool(self.signed),
            **given,
            seed=int(self.seed),
            waves=None if self.waves is None else bool(self.waves),
        )
        return plan.specs(ColumnSums.from_data(X, codes, n_classes) if plan.needs_sums else None)

    def _reject_label(self) -> npt.NDArray[Any]:
        """What stands for "rejected" in predictions, as an array of one that goes with the classes."""
        classes, label = self.classes_, self.reject_label
        texts = classes.dtype.kind in "OUT"
        if label is None and texts:
            label = "rejected"
        elif label is None and classes.dtype.kind != "b":
            label = -1 if -1 not in classes else classes.min() - 1
        right = isinstance(label, str) if texts else isinstance(label, Real) and not isinstance(label, bool)
        if not right or classes.dtype.kind == "b" or label in classes.tolist():
            raise ValueError(
                "reject_label: expected a label of the kind of the classes that is none of them; booleans have none"
            )
        joined = np.append(classes, [label])
        if joined[:-1].tolist() != classes.tolist() or joined[-1] != label:
            raise ValueError("reject_label: no array can hold it beside the classes")
        return joined[-1:]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "counts_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, whole or not at all.

        The file is an .npz without pickles: ``header`` (JSON, as bytes), ``counts`` and ``digest``, the SHA-256 of the
        other two. Equal models make equal files.

        Parameters
        ----------
        path : path-like
            Taken as it is; an existing file is replaced and its permissions kept, a symbolic link followed.

        Raises
        ------
        ModelFileError
            Labels are neither strings, numbers nor booleans.
        WriteError
            The file cannot be written, for example on a full disk. An existing one is as it was.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        model = model_file.Model(
            spec=self.spec_,
            counts=self.counts_,
            classes=self.classes_,
            feature_names=None if names is None else names.tolist(),
            decay=self.decay,
            decay_=self.decay_,
            rule=self.rule,
            temperature=self.temperature,
            temperature_=self.temperature_,
            reject_above=self.reject_above,
            reject_label=self.reject_label,
            guarantee=self.guarantee_,
        )
        model_file.write(path, model)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = 2**30) -> Self:
        """A classifier from a file that `save` wrote.

        Its parameter `spec` is the spec it was fitted with. The file may come from anybody: it is read whole, or
        refused.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default=1 GiB
            Refuse models that would need more memory than that.

        Raises
        ------
        ModelFileError
            Not a model file, truncated, altered, of another format version, or too large.
        OSError
            The file cannot be opened.
        """
        with model_file.reading(path, max_bytes) as model:
            self = cls.from_counts(
                model.spec,
                model.counts,
                model.classes,
                decay=model.decay,
                rule=model.rule,
                temperature=model.temperature,
                reject_above=model.reject_above,
                reject_label=model.reject_label,
                feature_names=model.feature_names,
                guarantee=model.guarantee,
            )
            self.decay_, self.temperature_ = model.decay_, model.temperature_  # leave-one-out may have chosen them
            return self


def _codes(classes: npt.NDArray[Any], y: Any) -> npt.NDArray[np.int64]:
    """Position of each label in `classes`."""
    order = np.argsort(classes)
    places = np.searchsorted(classes, y, sorter=order)
    codes: npt.NDArray[np.int64] = order[np.minimum(places, len(classes) - 1)]
    unknown = int((classes[codes] != y).sum())
    if unknown:
        raise DataError(f"y: {unknown} of {len(y)} labels are not among the {len(classes)} classes")
    return codes
