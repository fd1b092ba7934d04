"""Predictions and file of a fitted `Model`, by scikit-learn's interface. `FlyNNClassifier` inherits them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.candidates import suggest_temperature
from flwr_flynn.model.column_checks import check_columns, check_finite
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember
from flwr_flynn.model.scoring import log_odds

Floats = npt.NDArray[np.float64]

_BATCH = 2**14  # samples whose active bits are held at a time


class Predictor(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the classifier: predictions, parts and file of `model_`, a `Model` with one member."""

    model_: Model
    n_jobs: int | None

    @classmethod
    def from_model(cls, model: Model, **parameters: Any) -> Self:
        """Fitted classifier of a model with one member.

        Parameters
        ----------
        model : Model
            Without a temperature, that of `suggest_temperature` is used.
        **parameters
            Parameters of the class. Default: `spec`, `rule`, `decay` and `temperature` of the model, so that these stay
            when the classifier learns more. Give ``decay="auto"`` to have it chosen again then.

        Returns
        -------
        FlyNNClassifier

        Raises
        ------
        DataError
            The model has several members.

        Examples
        --------
        >>> from flwr_flynn import FlyNNClassifier
        >>> fitted = FlyNNClassifier(seed=1).fit([[0.0, 1.0], [1.0, 0.0], [0.9, 0.1]], ["a", "b", "b"])
        >>> FlyNNClassifier.from_model(fitted.model_).predict([[0.2, 0.8]])
        array(['a'], dtype='<U1')
        """
        spec, readout = model.member.spec, model.member.readout
        self = cls(spec=spec, rule=readout.rule, decay=readout.decay, temperature=readout.temperature or "auto")
        self.set_params(**parameters)
        self.model_ = model
        self.n_features_in_ = spec.n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)
        return self

    # -------- the parts of the model

    @property
    def _member(self) -> ModelMember:
        return self.model_.member

    @property
    def counts_(self) -> ClassCounts:
        """Learned counts."""
        return self._member.counts

    @property
    def classes_(self) -> npt.NDArray[Any]:
        """Labels of the classes, (L,), in the order of the counts. Read-only."""
        return self.model_.classes

    @property
    def spec_(self) -> HashSpec:
        """Specification of the hash."""
        return self._member.spec

    @property
    def hash_(self) -> FlyHash:
        """Hash of `spec_`."""
        return self._member.hash

    @property
    def decay_(self) -> float:
        """Decay in use."""
        return self._member.readout.decay

    @property
    def temperature_(self) -> float:
        """Temperature in use."""
        temperature = self._member.readout.temperature
        return suggest_temperature(self.counts_, self._member.readout.rule) if temperature is None else temperature

    @property
    def guarantee_(self) -> str | None:
        """Statement of the privacy of the counts, if there is one."""
        return self.model_.guarantee

    # -------- predicting

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the labels of samples: the class with the highest score, the first in `classes_` among equals.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n,) array of the dtype of `classes_`
        """
        best = self._read_out(X, self._scores).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Predict the probabilities of the classes, in the order of `classes_`.

        Proportional to exp(d_l / temperature_), with the values d_l of `log_odds`. All classes count as equally
        frequent, and a class without samples gets 0.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array
            Rows sum to 1.
        """
        odds = self._log_odds(X)
        empty = self.counts_.empty_classes
        if not empty.all():
            odds[:, empty] = -np.inf
        probabilities: Floats = softmax(odds / self.temperature_, axis=1)
        return probabilities

    def decision_function(self, X: Any) -> Floats:
        """Compute the scores by which `predict` decides, on the scale of `log_odds`.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array, or (n,) for two classes
            For two classes the difference of the second and the first: positive for ``classes_[1]``.
        """
        odds = self._log_odds(X)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds

    def novelty(self, X: Any) -> Floats:
        """Compute the novelty of samples to each class: f_l(x) / rho of Algorithm 1, with gamma = `decay_`.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array
            From 0 to 1: 1 where no sample of the class has any of the active bits.

        Examples
        --------
        Abstain from samples that are novel to every class:

        >>> from flwr_flynn import FlyNNClassifier
        >>> clf = FlyNNClassifier(seed=1).fit([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]], ["a", "a", "b", "b"])
        >>> X = np.array([[0.2, 0.8], [50.0, -70.0]])
        >>> np.where(clf.novelty(X).min(axis=1) > 0.9, "?", clf.predict(X))
        array(['a', '?'], dtype='<U1')
        """
        return self._read_out(X, lambda active: self._member.novelty(active))

    def _log_odds(self, X: Any) -> Floats:
        return log_odds(self._read_out(X, self._scores), self.spec_.hash_nnz, self._member.readout.rule)

    def _scores(self, active: npt.NDArray[np.int32]) -> Floats:
        return self._member.scores(active)

    def _read_out(self, X: Any, read: Callable[[npt.NDArray[np.int32]], Floats]) -> Floats:
        """Apply `read` to the active bits of the samples, batch by batch."""
        check_is_fitted(self)
        X = self._validated(X)
        batches = gen_batches(X.shape[0], _BATCH)
        return np.concatenate([read(self.hash_.active(X[batch], n_jobs=self.n_jobs)) for batch in batches])

    # -------- scikit-learn and files

    def _validated(self, X: Any, y: Any = "no_validation", reset: bool = False) -> Any:
        """Validate X, or X and y, by scikit-learn's rules. Errors name the columns concerned."""
        check_columns(X)
        names = getattr(X, "columns", None)
        validated = validate_data(self, X, y, accept_sparse="csr", reset=reset, ensure_all_finite=False)
        check_finite(validated[0] if isinstance(validated, tuple) else validated, names)
        return validated

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, whole or not at all, see `flwr_flynn.model.model_file`.

        The parameters of the classifier are not in it, so that "auto" is lost.

        Parameters
        ----------
        path : path-like
            Taken as it is. An existing file is replaced.

        Raises
        ------
        ModelFileError
            Labels are neither strings, numbers nor booleans.
        """
        check_is_fitted(self)
        model_file.write(path, self.model_)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = 2**30) -> Self:
        """Read a classifier from a file of `save`, with the parameters of `from_model`.

        The file may come from anybody: it is read whole, or refused.

        Parameters
        ----------
        path : path-like
        max_bytes : int, default=1 GiB
            Memory limit: larger models are refused.

        Returns
        -------
        FlyNNClassifier

        Raises
        ------
        ModelFileError
            Not a model file, truncated, altered, of an unknown format, or too large.
        OSError
            The file cannot be opened.
        """
        with model_file.reading(path, max_bytes) as (model, _):
            return cls.from_model(model)


def class_codes(classes: npt.NDArray[Any], y: Any) -> npt.NDArray[np.int64]:
    """Index of each label in `classes`, (n,) int64."""
    order = np.argsort(classes)
    indices = np.searchsorted(classes, y, sorter=order)
    codes: npt.NDArray[np.int64] = order[np.minimum(indices, len(classes) - 1)]
    unknown = int((classes[codes] != y).sum())
    if unknown:
        raise DataError("y", f"labels among the {len(classes)} classes", f"{unknown} of {len(y)} that are not")
    return codes
