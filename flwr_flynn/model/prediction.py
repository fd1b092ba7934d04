"""Prediction: what a classifier does with its fitted model, by scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.utils import Tags, gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.column_checks import check_columns, check_finite
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember

Floats = npt.NDArray[np.float64]

BATCH = 2**14  # samples whose active bits are held at a time


class _NoSuchAttribute(DataError, AttributeError):
    """A model of several members has no such part."""


class PredictionMixin:
    """Parts and predictions of the fitted model of an estimator, `model_`."""

    model_: Model
    n_jobs: int | None

    # -------- the parts of the model

    @property
    def _member(self) -> ModelMember:
        try:
            return self.model_.member
        except DataError as error:  # so that hasattr and getattr find no such attribute
            raise _NoSuchAttribute(str(error.field), error.expected, error.got) from None

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
        return self._member.temperature

    @property
    def guarantee_(self) -> str | None:
        """Statement of the privacy of the counts, if there is one."""
        return self.model_.guarantee

    # -------- predicting

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict labels, (n,): the class with the highest score, the first in `classes_` among equals."""
        best = self._read_out(X, Model.scores).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Predict the probabilities of the classes, (n, L) float64, in the order of `classes_`.

        Proportional to exp(d_l / T), with the values d_l of `Model.log_odds` and T the temperature of the model. All
        classes count as equally frequent, unless the model has a prior, and a class without samples gets 0.
        """
        odds = self._log_odds(X)
        empty = self.model_.empty_classes
        if not empty.all():
            odds[:, empty] = -np.inf
        probabilities: Floats = softmax(odds / self.model_.temperature, axis=1)
        return probabilities

    def decision_function(self, X: Any) -> Floats:
        """Compute the scores by which `predict` decides, (n, L) float64, on the scale of `Model.log_odds`.

        For two classes (n,): the difference of the second and the first, positive for ``classes_[1]``.
        """
        odds = self._log_odds(X)
        return odds[:, 1] - odds[:, 0] if odds.shape[1] == 2 else odds

    def novelty(self, X: Any) -> Floats:
        """Compute the novelty of samples to each class, (n, L) float64: f_l(x) / rho of Algorithm 1.

        From 0 to 1: 1 where no sample of the class has any of the active bits. Compare it with a limit to abstain.
        """
        return self._read_out(X, Model.novelty)

    def _log_odds(self, X: Any) -> Floats:
        scores = self._read_out(X, Model.scores)  # first, as it tells of a model that is not fitted
        return self.model_.log_odds(scores)

    def _read_out(self, X: Any, read: Callable[[Model, Any, int | None], Floats]) -> Floats:
        """Apply a method of the model to the samples, batch by batch."""
        check_is_fitted(self)
        X = self._validated(X)
        return np.concatenate([read(self.model_, X[batch], self.n_jobs) for batch in gen_batches(X.shape[0], BATCH)])

    # -------- scikit-learn

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
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags
