"""Fitted estimator: what a classifier does with its model, by scikit-learn's interface,
and with its samples.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from flwr_flynn._types import Array, Floats, Mask, Matrix
from flwr_flynn._validation import listed, number
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember, class_codes
from flwr_flynn.model.prior import checked_weight, counted_prior, own_prior
from flwr_flynn.model.reasons import contributions
from flwr_flynn.tables.schema import Schema

A = TypeVar("A", bound=Array)

BATCH = 2**14  # samples whose active bits are held at a time


class FittedEstimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier with a fitted model, `model_`: its parts, predictions, files, and
    checks of samples.
    """

    model_: Model
    n_jobs: int | None
    rule: str
    class_weight: dict[Any, float] | str | None

    # -------- the parts of the model

    @property
    def classes_(self) -> Array:
        """Labels of the classes, (L,), in the order of the counts. Read-only."""
        return self.model_.classes

    @property
    def guarantee_(self) -> str | None:
        """Statement of the privacy of the counts, if there is one."""
        return self.model_.guarantee

    @property
    def counts_(self) -> ClassCounts:
        """Learned counts of the only member."""
        return self.model_.member.counts

    @property
    def spec_(self) -> HashSpec:
        """Specification of the hash of the only member."""
        return self.model_.member.spec

    # -------- predicting

    def predict(self, X: object) -> Array:
        """Predict labels, (n,): the most probable class, the first in `classes_` among
        equals.
        """
        best = self._read_out(X, Model.scores).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels

    def predict_proba(self, X: object) -> Floats:
        """Predict the probabilities of the classes, (n, L) float64, in the order of
        `classes_`.

        Classes are as frequent as among the counted samples; with
        ``class_weight="balanced"`` and rule "novelty" they are equally frequent. A
        class without samples gets 0.
        """
        # The check comes first, as it tells of a model that is not fitted.
        scores = self._read_out(X, Model.scores)
        return self.model_.probabilities(scores)

    def predict_set(self, X: object, coverage: float = 0.9) -> Mask:
        """Predict the classes that hold the true one with a probability, (n, L) bool, in
        the order of `classes_`.

        Of the samples of each class to come, that differ from the counted ones in
        nothing but how often classes occur, about this share has it in its set, on
        average over all counted samples that there might have been. It is no share of
        the samples with some set: of those with that of a rare class alone most may be
        of others. A set may have several classes, or none: both are of samples between
        classes, and no check of X. A class of fewer samples than such a share can be
        told of, 9 at coverage 0.9, is in all sets. It is conformal prediction by scores
        of models without the sample, see `flwr_flynn.model.prediction_sets`.

        Parameters
        ----------
        X : (n, d) array-like
        coverage : float, default=0.9
            Above 0 and below 1.

        Returns
        -------
        (n, L) array of bool

        Raises
        ------
        DataError
            The coverage is not as described, or the model has no table of levels: it
            comes with `fit` and with a calibration by all parties, and goes with
            `partial_fit`, `merge`, `forget` and noise.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from flwr_flynn import FlyNNClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = FlyNNClassifier().fit(X, y)
        >>> model.predict_set(X[[0, 83]], coverage=0.95).tolist()
        [[True, False, False], [False, True, True]]
        """
        number("coverage", coverage, above=0, below=1, error=DataError)

        def sets(model: Model, samples: Matrix, n_jobs: int | None) -> Mask:
            return model.sets(model.shared_scores(samples, n_jobs), coverage)

        return self._read_out(X, sets)

    def decision_function(self, X: object) -> Floats:
        """Compute the scores by which `predict` decides, (n, L) float64: those of
        `Model.scores`.

        For two classes (n,): the log odds of the second one, positive for
        ``classes_[1]``.
        """
        scores = self._read_out(X, Model.scores)
        if scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores

    def novelty(self, X: object) -> Floats:
        """Compute the novelty of samples to each class, (n, L) float64: f_l(x) / rho of
        Algorithm 1.

        From 0 to 1: 1 where no sample of the class has any of the active bits. Compare
        it with a limit to abstain.
        """
        return self._read_out(X, Model.novelty)

    def contributions(self, X: object) -> Floats:
        """Compute what each column adds to the log odds of the class that `predict`
        gives a sample, against all other classes: (n, d) float64, by the whole model.

        The value of one column is replaced, and the others stay: the contribution is
        the fall of the log odds, log(p / (1 - p)), in the mean of four quantiles of the
        column, or of its levels, and of a gap, each as frequent as among the samples of
        the model [1]_. Columns of which the model has no edges get a gap instead, or 0
        where the hash takes no gaps. Positive contributions speak for the class.

        Parameters
        ----------
        X : (n, d) array-like, sparse matrix or table
            As for `predict`. A column of a table with categories, gaps or dates is
            replaced as a whole.

        Returns
        -------
        (n, d) float64
            In the order of ``feature_names_in_``.

        Notes
        -----
        They tell what the model does, not what causes the class.

        - Columns that say the same have small contributions, as each stays when the
          other is replaced; and a value may replace one that never occurs beside the
          others.
        - They add up to the difference from the log odds of typical samples only
          where columns do not interact.
        - With noise in the counts, there is noise in them, and with public ranges the
          values are at equal distances within these.
        - The time is that of `predict` for four samples a column, or one for each
          level, about 3 ms for 20 columns and 150 ms for the 784 of an image. A value
          that is its own substitute costs nothing. 32 MiB of samples are held beside X.

        References
        ----------
        .. [1] Robnik-Šikonja, M. and Kononenko, I. "Explaining classifications for
           individual instances." IEEE Transactions on Knowledge and Data Engineering
           20.5 (2008).

        Examples
        --------
        >>> from flwr_flynn import FlyNNClassifier
        >>> X = [[i % 7, i % 5] for i in range(70)]
        >>> model = FlyNNClassifier().fit(X, [a > 3 for a, _ in X])
        >>> added = model.contributions([[6, 2], [0, 2]])
        >>> added.shape, added.argmax(axis=1)
        ((2, 2), array([0, 0]))
        """
        check_is_fitted(self)
        schema = self.model_.schema
        samples = self._validated(X, schema)
        added = contributions(self.model_, samples, self.n_jobs)
        if schema is None or not schema.is_named:
            return added
        # Those of a learned schema are sorted by name.
        return added[:, [*map(schema.names.index, self.feature_names_in_)]]

    def _read_out(self, X: object, read: Callable[[Model, Matrix, int | None], A]) -> A:
        """Apply a method of the model to the samples, batch by batch."""
        check_is_fitted(self)
        samples = self._validated(X, self.model_.schema)
        parts = np.concatenate(
            [
                read(self.model_, samples[batch], self.n_jobs)
                for batch in batches(samples.shape[0], BATCH)
            ]
        )
        return cast(A, parts)

    # -------- frequencies of one party

    def with_prior(
        self,
        y: npt.ArrayLike | None = None,
        *,
        frequencies: npt.ArrayLike | None = None,
    ) -> Self:
        """Copy whose predictions weigh the classes by their frequencies.

        This model stays as it is.

        The frequencies take the place of those of the counted samples. Counts, scorings
        and `novelty` are the same, and a class without samples in the counts stays
        below the others.

        Parameters
        ----------
        y : (n,) array-like, optional
            Labels of a party's samples, whose classes occur as often as in those to
            come: class l gets (n_l + m p_l) / (n + m), with p_l its share of the
            samples of this model, and m as likely as it makes all n_l.
        frequencies : (L,) array-like of float, optional
            Instead of `y`: finite numbers above 0 in the order of `classes_`, of any
            sum.

        Returns
        -------
        FlyNNClassifier
            With neither `y` nor `frequencies`, one with the prior of its
            `class_weight`.

        Raises
        ------
        DataError
            Both are given, a label is not in `classes_`, or a frequency is not as
            described.

        Examples
        --------
        >>> from flwr_flynn import FlyNNClassifier, HashSpec
        >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
        >>> model = FlyNNClassifier(spec).fit([[0, 1], [3, 0]], ["a", "b"])
        >>> mostly_b = model.with_prior(8 * ["b"])
        >>> model.predict_proba([[1, 1]]).argmax(), mostly_b.predict_proba([[1, 1]]).argmax()
        (np.int64(0), np.int64(1))
        """
        check_is_fitted(self)
        if y is not None and frequencies is not None:
            raise DataError("y, frequencies", "one of them", "both")
        if y is not None:
            codes = class_codes(self.classes_, column_or_1d(y))
            prior: Floats | None = own_prior(self.model_.members[0].counts, codes)
        elif frequencies is not None:
            values = np.asarray(frequencies, np.float64)
            if (
                values.shape != self.classes_.shape
                or not (np.isfinite(values) & (values > 0)).all()
            ):
                raise DataError(
                    "frequencies",
                    f"{len(self.classes_)} finite numbers above 0",
                    "different ones",
                )
            prior = np.minimum(log_softmax(np.log(values)), 0.0)
        else:
            prior = self._counted_prior(self.model_.members, self.classes_)
        changed = copy(self)
        changed.model_ = replace(self.model_, prior=prior)
        return changed

    def _counted_prior(
        self, members: Sequence[ModelMember], classes: Array
    ) -> Floats | None:
        """Prior of the counts by the estimator's `class_weight`."""
        return counted_prior(
            members[0].counts, checked_weight(self.class_weight, self.rule, classes)
        )

    # -------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, whole or not at all; an existing one is replaced.

        Parameters are not in it, so that "auto" is lost. A `ModelFileError` refuses
        labels that are no strings, numbers or booleans.
        """
        check_is_fitted(self)
        model_file.write(path, self.model_)

    # -------- samples

    def _validated(
        self,
        X: object,
        schema: Schema | None,
        y: Any = "no_validation",
        reset: bool = False,
    ) -> Any:
        """Validate X, or X and y, by scikit-learn's rules, or by the schema.

        Errors name the columns concerned.
        """
        if schema is not None:
            numbers, remarks = schema.encoded(X)
            for remark in remarks:
                warnings.warn(remark, UserWarning, stacklevel=4)
            if not len(numbers):
                raise DataError("X", "at least 1 sample", 0)
            if isinstance(y, str):
                return numbers
            y = column_or_1d(y, warn=True)
            check_consistent_length(numbers, y)
            return numbers, y
        names = getattr(X, "columns", None)
        validated = validate_data(
            self, X, y, accept_sparse="csr", reset=reset, ensure_all_finite=False
        )
        samples = validated
        if isinstance(validated, tuple):
            samples = validated[0]
        _check_finite(samples, names, not reset and self.model_.takes_gaps)
        return validated

    def _labelled(self, X: object, y: npt.ArrayLike) -> tuple[Matrix, Array]:
        """Samples and labels for the fitted model, without samples that have gaps where
        its hash takes none.
        """
        schema = self.model_.schema
        samples, labels = self._validated(X, schema, y)
        if schema is None or self.model_.takes_gaps:
            return (samples, labels)
        return without_gaps(schema, samples, labels)

    # -------- scikit-learn

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        for name in ("sparse", "allow_nan", "categorical", "string"):
            setattr(tags.input_tags, name, True)
        return tags


def without_gaps(schema: Schema, X: Array, y: Array) -> tuple[Array, Array]:
    """Samples by a schema, and labels, without samples that have gaps."""
    fits = schema.complete_rows(X)
    n_left_out = int((~fits).sum())
    if n_left_out:
        warnings.warn(
            f"this hash takes no gaps: {n_left_out} of {len(fits)} samples are left "
            "out",
            stacklevel=3,
        )
    return X[fits], y[fits]


def _check_finite(X: Any, names: Iterable[object] | None, with_gaps: bool) -> None:
    """Refuse infinity, and NaN but `with_gaps`, in X, (n, d).

    `names` default to the indices of the columns.
    """
    if sp.issparse(X):
        values = X.data
    else:
        values = X
    if (
        values.dtype.kind != "f"
        or np.isfinite(np.sum(values))
        or np.isfinite(values).all()
    ):
        return
    if with_gaps and not sp.issparse(X) and not np.isinf(values).any():
        return
    is_bad = ~np.isfinite(values)
    if sp.issparse(X):
        is_bad = sp.csr_array((is_bad, X.indices, X.indptr), X.shape)
    bad = np.asarray(is_bad.sum(axis=0)).ravel()
    if names is None:
        labels = [f"column {j}" for j in range(len(bad))]
    else:
        labels = [str(name)[:60] for name in names]
    named = [
        f"{labels[j]} ({bad[j]} of {X.shape[0]} samples)" for j in np.flatnonzero(bad)
    ]
    raise DataError(
        "X",
        "finite numbers",
        f"NaN or infinity in {len(named)} of {len(bad)} columns: {listed(named)}",
    )
