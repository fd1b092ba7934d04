"""Prediction: what a classifier does with its fitted model, by scikit-learn's interface, and its prior."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import log_softmax
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from flwr_flynn._validation import listed
from flwr_flynn.errors import DataError
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.model import Model, ModelMember, class_codes, own_prior
from flwr_flynn.model.model_html import model_html
from flwr_flynn.tables.kinds_and_levels import learned
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table

Floats = npt.NDArray[np.float64]

BATCH = 2**14  # samples whose active bits are held at a time


class _NoSuchAttribute(DataError, AttributeError):
    """A model of several members has no such part."""


class PredictionMixin:
    """Parts and predictions of the fitted model of an estimator, `model_`."""

    model_: Model
    n_jobs: int | None

    # -------- notebooks: the diagram of scikit-learn before `fit`, the model after it

    def _repr_html_inner(self) -> str:
        return model_html(self.model_) if hasattr(self, "model_") else super()._repr_html_inner()  # type: ignore[misc]

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        return bundle | {"text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

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
        return self._member.scoring.decay

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
        """Predict labels, (n,): the most probable class, the first in `classes_` among equals."""
        best = self._read_out(X, Model.scores).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Predict the probabilities of the classes, (n, L) float64, in the order of `classes_`.

        Classes are as frequent as among the counted samples; with ``class_weight="balanced"`` and rule "novelty" they
        are equally frequent. A class without samples gets 0.
        """
        scores = self._read_out(X, Model.scores)  # first, as it tells of a model that is not fitted
        return self.model_.probabilities(scores)

    def decision_function(self, X: Any) -> Floats:
        """Compute the scores by which `predict` decides, (n, L) float64: those of `Model.scores`.

        For two classes (n,): the log odds of the second one, positive for ``classes_[1]``.
        """
        scores = self._read_out(X, Model.scores)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def novelty(self, X: Any) -> Floats:
        """Compute the novelty of samples to each class, (n, L) float64: f_l(x) / rho of Algorithm 1.

        From 0 to 1: 1 where no sample of the class has any of the active bits. Compare it with a limit to abstain.
        """
        return self._read_out(X, Model.novelty)

    def _read_out(self, X: Any, read: Callable[[Model, Any, int | None], Floats]) -> Floats:
        """Apply a method of the model to the samples, batch by batch."""
        check_is_fitted(self)
        X = self._validated(X)
        return np.concatenate([read(self.model_, X[batch], self.n_jobs) for batch in batches(X.shape[0], BATCH)])

    # -------- frequencies of one party

    def with_prior(self, y: npt.ArrayLike | None = None, *, frequencies: npt.ArrayLike | None = None) -> Self:
        """Copy whose predictions weigh the classes by their frequencies; this model stays as it is.

        The frequencies take the place of those of the counted samples. Counts, scorings and `novelty` are the same, and
        a class without samples in the counts stays below the others.

        Parameters
        ----------
        y : (n,) array-like, optional
            Labels of a party's samples, whose classes occur as often as in those to come: class l gets (n_l + L p_l) /
            (n + L), with p_l its share of the samples of this model.
        frequencies : (L,) array-like of float, optional
            Instead of `y`: finite numbers above 0 in the order of `classes_`, of any sum.

        Returns
        -------
        FlyNNClassifier
            With neither `y` nor `frequencies`, one with the prior of its `class_weight`.

        Raises
        ------
        DataError
            Both are given, a label is not in `classes_`, or a frequency is not as described.

        Examples
        --------
        >>> from flwr_flynn import FlyNNClassifier, HashSpec
        >>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1, signed=True)
        >>> model = FlyNNClassifier(spec).fit([[0, 1], [3, 0]], ["a", "b"])
        >>> mostly_b = model.with_prior(["b", "b", "b", "a"])
        >>> model.predict_proba([[1, 1]]).argmax(), mostly_b.predict_proba([[1, 1]]).argmax()
        (np.int64(0), np.int64(1))
        """
        check_is_fitted(self)
        if y is not None and frequencies is not None:
            raise DataError("y, frequencies", "one of them", "both")
        prior = self._counted_prior(self.model_.members, self.classes_)  # type: ignore[attr-defined]
        if y is not None:
            codes = class_codes(self.classes_, column_or_1d(y))
            prior = own_prior(self.model_, codes)
        elif frequencies is not None:
            values = np.asarray(frequencies, np.float64)
            if values.shape != self.classes_.shape or not (np.isfinite(values) & (values > 0)).all():
                raise DataError("frequencies", f"{len(self.classes_)} finite numbers above 0", "different ones")
            prior = np.minimum(log_softmax(np.log(values)), 0.0)
        changed = copy(self)
        changed.model_ = replace(self.model_, prior=prior)
        return changed

    # -------- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, whole or not at all; an existing one is replaced.

        Parameters are not in it, so that "auto" is lost. A `ModelFileError` refuses labels that are no strings, numbers
        or booleans.
        """
        check_is_fitted(self)
        model_file.write(path, self.model_)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int = 2**30) -> Self:
        """Read a classifier from a file of `save`, with the parameters of `from_model`.

        The file may come from anybody: a `ModelFileError` refuses damage and models beyond `max_bytes` of memory.
        """
        with model_file.reading(path, max_bytes) as (model, _):
            return cls.from_model(model)  # type: ignore[attr-defined, no-any-return]

    # -------- scikit-learn

    _schema: Schema | None = None  # of the samples of the first fit, until there is a model

    def _validated(self, X: Any, y: Any = "no_validation", reset: bool = False) -> Any:
        """Validate X, or X and y, by scikit-learn's rules, or by the schema. Errors name the columns concerned."""
        schema = self._schema if reset else self.model_.schema
        if schema is not None:
            table = Table.of(X)
            numbers = schema.encode(table)
            for remark in schema.remarks(table, numbers):
                warnings.warn(remark, UserWarning, stacklevel=4)
            if not len(numbers):
                raise DataError("X", "at least 1 sample", 0)
            if isinstance(y, str):
                return numbers
            y = column_or_1d(y, warn=True)
            check_consistent_length(numbers, y)
            return numbers, y
        names = getattr(X, "columns", None)
        validated = validate_data(self, X, y, accept_sparse="csr", reset=reset, ensure_all_finite=False)
        with_gaps = not reset and all(member.hash.takes_gaps for member in self.model_.members)
        _check_finite(validated[0] if isinstance(validated, tuple) else validated, names, with_gaps)
        return validated

    def _complete(self, X: Any, y: npt.NDArray[Any], *, reset: bool = False) -> tuple[Any, npt.NDArray[Any]]:
        """Samples and labels, without samples that have gaps where the hash takes none."""
        schema, own = self._schema if reset else self.model_.schema, vars(self)
        plan = self._plan(X, 2) if reset else None  # type: ignore[attr-defined]
        specs = [own["spec"]] if reset else [member.spec for member in self.model_.members]
        if schema is None or (
            plan.scaling is not None if plan else all(flynn_hash(spec).takes_gaps for spec in specs if spec is not None)
        ):
            return X, y
        fits = schema.complete(X)
        if n_left_out := int((~fits).sum()):
            warnings.warn(f"this hash takes no gaps: {n_left_out} of {len(fits)} samples are left out", stacklevel=3)
        return X[fits], y[fits]

    def _learned(self, X: Any) -> Any:
        """Samples of which a schema is learned, where they are no plain numbers."""
        self._schema, spec = None, getattr(self, "spec", None)
        if spec is not None and np.shape(X)[1:] == (spec.n_features,):
            return X  # hashed as it stands
        X, self._schema = learned(X, *(getattr(self, name) for name in ("min_examples", "ignore", "keep")))
        if self._schema is not None:
            self.n_features_in_ = len(self._schema.columns)
            vars(self).pop("feature_names_in_", None)
            if self._schema.is_named:
                names = [name for name in X.names if name in self._schema.names]
                self.feature_names_in_ = np.array(names, dtype=object)
        return X

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags


def _check_finite(X: Any, names: Iterable[Any] | None, with_gaps: bool) -> None:
    """Refuse infinity, and NaN but `with_gaps`, in X, (n, d); `names` default to the indices of the columns."""
    values = X.data if sp.issparse(X) else X
    if values.dtype.kind != "f" or np.isfinite(np.sum(values)) or np.isfinite(values).all():
        return
    if with_gaps and not sp.issparse(X) and not np.isinf(values).any():
        return
    bad = _per_column(X)
    labels = [f"column {j}" for j in range(len(bad))] if names is None else [str(name)[:60] for name in names]
    named = [f"{labels[j]} ({bad[j]} of {X.shape[0]} samples)" for j in np.flatnonzero(bad)]
    raise DataError("X", "finite numbers", f"NaN or infinity in {len(named)} of {len(bad)} columns: {listed(named)}")


def _per_column(X: Any) -> npt.NDArray[np.int64]:
    """Number of entries of each column that are NaN or infinite, (d,) int64."""
    if not sp.issparse(X):
        return np.asarray((~np.isfinite(X)).sum(axis=0), np.int64)
    entries = sp.coo_array(X)
    return np.bincount(entries.col[~np.isfinite(entries.data)], minlength=X.shape[1]).astype(np.int64)
