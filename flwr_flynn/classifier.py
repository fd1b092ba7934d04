"""FlyNN as a scikit-learn classifier.

Fitting counts (`ClassCounts`), predicting reads the counts out (`readout`); this module adds what scikit-learn expects
around that, learns the scaling of the columns, and reads and writes model files.

>>> from sklearn.datasets import load_iris
>>> from sklearn.model_selection import cross_val_score
>>> X, y = load_iris(return_X_y=True)
>>> bool(cross_val_score(FlyNNClassifier(), X, y).mean() > 0.8)
True
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, ClassVar, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data

from flwr_flynn.counts import ClassCounts, check_readout
from flwr_flynn.errors import DataError, FlyNNError, ModelFileError, SpecError
from flwr_flynn.hashing import FlyHash, HashSpec, flynn_hash
from flwr_flynn.readout import RULES

Floats = npt.NDArray[np.float64]

_BATCH = 2**14  # points whose active bits are held at a time when predicting


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
    signed : bool, default=True
        Rows of +1 and -1 rather than the paper's ones.
    scaling : None, "center", "standard" or a pair (center, scale), default="standard"
        What happens to the columns first: nothing; the mean is subtracted; the result is also divided by the standard
        deviation (constant columns are not); (x - center) * scale with the vectors given, either of which may be
        None. Means and deviations are those of the points of `fit`, or of the first `partial_fit`, and stay. They do
        not depend on the order of the rows, on the dtype, or on sparse or dense.
    decay : "auto" or float, default="auto"
        gamma, 0 <= gamma < 1. "auto": `fit` takes the decay of the best balanced accuracy by exact leave-one-out from
        `ClassCounts.decay_grid`, the first of equals; everything else takes `ClassCounts.suggest_decay`.
    rule : {"balanced", "novelty", "bayes"}, default="balanced"
        How counts become scores, see `flwr_flynn.readout`. "novelty" is the paper's. Like `decay_`, it plays no part in
        what is learned.
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
    n_features_in_ : int
    feature_names_in_ : (d,) array of str
        Where X had names.

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "spec": [HashSpec, None],
        "hash_dim": [Interval(Integral, 1, None, closed="left"), None],
        "row_nnz": [Interval(Integral, 1, None, closed="left"), None],
        "hash_nnz": [Interval(Integral, 1, None, closed="left"), None],
        "signed": ["boolean"],
        "scaling": [StrOptions({"center", "standard"}), tuple, list, None],
        "decay": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
        "rule": [StrOptions(set(RULES))],
        "seed": [Interval(Integral, 0, 2**64 - 1, closed="both")],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        spec: HashSpec | None = None,
        hash_dim: int | None = None,
        row_nnz: int | None = None,
        hash_nnz: int | None = None,
        signed: bool = True,
        scaling: str | tuple[Sequence[float] | None, Sequence[float] | None] | None = "standard",
        decay: str | float = "auto",
        rule: str = "balanced",
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.spec = spec
        self.hash_dim = hash_dim
        self.row_nnz = row_nnz
        self.hash_nnz = hash_nnz
        self.signed = signed
        self.scaling = scaling
        self.decay = decay
        self.rule = rule
        self.seed = seed
        self.n_jobs = n_jobs

    @classmethod
    def from_counts(
        cls,
        spec: HashSpec,
        counts: ClassCounts,
        classes: npt.ArrayLike,
        *,
        decay: str | float = "auto",
        rule: str = "balanced",
        feature_names: Sequence[str] | None = None,
    ) -> Self:
        """A fitted classifier of counts made elsewhere.

        Parameters
        ----------
        spec : HashSpec
            The hash that made them.
        counts : ClassCounts
        classes : (L,) array-like of str or int
            Label of each row of the counts, in any order, which becomes that of `classes_`.
        decay, rule
            As for the class.
        feature_names : sequence of n_features str, optional

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
        check_readout(rule, 0.0 if decay == "auto" else decay)
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
        self = cls(spec=spec, decay=decay, rule=rule)
        self.n_features_in_ = spec.n_features
        if names is not None:
            self.feature_names_in_ = names
        self.hash_, self.spec_, self.classes_ = hasher, spec, labels
        self._set_counts(counts)
        return self

    def fit(self, X: Any, y: npt.ArrayLike) -> Self:
        """Learn from labelled points, and forget everything learned before.

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
        X, y = validate_data(self, X, y, accept_sparse="csr")
        check_classification_targets(y)
        classes, codes = np.unique(y, return_inverse=True)
        spec = self._choose_spec(X, len(classes))
        hasher = flynn_hash(spec)
        decay = None
        if self.decay == "auto" and self.rule != "bayes":
            active = hasher.active(X, n_jobs=self.n_jobs)
            counts = ClassCounts.from_active(hasher, active, codes, len(classes))
            decay = _best_decay(counts, active, codes, self.rule)
        else:
            counts = ClassCounts.from_data(hasher, X, codes, len(classes), n_jobs=self.n_jobs)
        self.hash_, self.spec_, self.classes_ = hasher, spec, classes
        self._set_counts(counts, decay)
        return self

    def partial_fit(self, X: Any, y: npt.ArrayLike, classes: npt.ArrayLike | None = None) -> Self:
        """Learn from more points. For a given spec, batches in any order give what one `fit` of all points gives.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse
        y : (n,) array-like
        classes : (L,) array-like, optional
            All labels that may ever occur; needed at the first call. Sizes and scaling are chosen then, and stay.

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
        X, y = validate_data(self, X, y, accept_sparse="csr", reset=first)
        check_classification_targets(y)
        codes = _codes(known, y)
        spec = self._choose_spec(X, len(known)) if first else self.spec_
        hasher = flynn_hash(spec)
        counts = ClassCounts.from_data(hasher, X, codes, len(known), n_jobs=self.n_jobs)
        if first:
            self.hash_, self.spec_, self.classes_ = hasher, spec, known
        self._set_counts(counts if first else self.counts_ + counts)
        return self

    def merge(self, other: FlyNNClassifier) -> Self:
        """Add what another classifier learned, as if its points had been learned here.

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
        self._set_counts(self.counts_ + other.counts_)
        return self

    def forget(self, X: Any, y: npt.ArrayLike) -> Self:
        """Take points out again, as if they had never been learned.

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
        X, y = validate_data(self, X, y, accept_sparse="csr", reset=False)
        codes = _codes(self.classes_, y)
        self._set_counts(
            self.counts_ - ClassCounts.from_data(self.hash_, X, codes, len(self.classes_), n_jobs=self.n_jobs)
        )
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Labels of points: the class with the highest score, the first in `classes_` of those that tie.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n,) array
        """
        best = self._scores(X).argmax(axis=1)
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Probabilities of the classes, in the order of `classes_`.

        Proportional to exp(score): to 1 / f_l under the rules "balanced" and "novelty", to the likelihood under
        "bayes", which is too sure of itself because bits are not independent. Every class counts as equally frequent;
        one without points gets 0.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array
            Rows sum to 1.
        """
        scores = self._scores(X)
        empty = self.counts_.n_per_class == 0
        if not empty.all():
            scores[:, empty] = -np.inf
        probabilities: Floats = softmax(scores, axis=1)
        return probabilities

    def decision_function(self, X: Any) -> Floats:
        """The scores by which `predict` decides.

        Parameters
        ----------
        X : (n, n_features) array-like or scipy sparse

        Returns
        -------
        (n, L) float64 array, or (n,) if there are two classes
            With two classes the second's score minus the first's: positive for ``classes_[1]``.
        """
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

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

    def _scores(self, X: Any) -> Floats:
        return self._read_out(X, lambda active: self.counts_.scores(active, self.decay_, self.rule))

    def _read_out(self, X: Any, read: Callable[[npt.NDArray[np.int32]], Floats]) -> Floats:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        batches = gen_batches(X.shape[0], _BATCH)
        return np.concatenate([read(self.hash_.active(X[batch], n_jobs=self.n_jobs)) for batch in batches])

    def _set_counts(self, counts: ClassCounts, decay: float | None = None) -> None:
        self.counts_ = counts
        if self.decay != "auto":
            self.decay_ = float(self.decay)
        else:
            self.decay_ = counts.suggest_decay(self.rule) if decay is None else decay

    def _choose_spec(self, X: Any, n_classes: int) -> HashSpec:
        n_examples, n_features = X.shape
        sizes = {"hash_dim": self.hash_dim, "row_nnz": self.row_nnz, "hash_nnz": self.hash_nnz}
        given: dict[str, Any] = {name: int(size) for name, size in sizes.items() if size is not None}
        if self.spec is not None:
            for name, size in given.items():
                if size != getattr(self.spec, name):
                    raise SpecError(f"{name}: the spec has {getattr(self.spec, name)}, but {size} was given as well")
            if n_features != self.spec.n_features:
                raise DataError(f"X has {n_features} features, but the spec has n_features {self.spec.n_features}")
            return self.spec
        center, scale = self._choose_scaling(X)
        spec = HashSpec.suggest(
            n_features,
            n_examples,
            n_classes,
            seed=int(self.seed),
            signed=bool(self.signed),
            center=center,
            scale=scale,
        )
        if "hash_dim" in given and "hash_nnz" not in given:
            share = spec.hash_nnz * given["hash_dim"] // spec.hash_dim
            given["hash_nnz"] = min(max(share, 16), given["hash_dim"])
        return replace(spec, **given)

    def _choose_scaling(self, X: Any) -> tuple[Any, Any]:
        if self.scaling is None:
            return None, None
        if isinstance(self.scaling, str):
            mean, deviation = _column_statistics(X)
            return tuple(mean), tuple(1 / deviation) if self.scaling == "standard" else None
        if len(self.scaling) != 2:
            raise SpecError(f"scaling: expected a pair (center, scale), got {len(self.scaling)} entries")
        return self.scaling

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
            Taken as it is; an existing file is replaced.

        Raises
        ------
        ModelFileError
            Labels are neither strings, numbers nor booleans.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        header = {
            "format": _FORMAT,
            "spec": self.spec_.to_dict(),
            "fingerprint": self.hash_.fingerprint,
            "classes": _labels_to_json(self.classes_),
            "feature_names": None if names is None else names.tolist(),
            "decay": self.decay if self.decay == "auto" else float(self.decay),
            "decay_": self.decay_,
            "rule": self.rule,
        }
        text = np.frombuffer(json.dumps(header, allow_nan=False).encode(), np.uint8)
        counts = self.counts_.array
        counts = counts.astype(np.min_scalar_type(int(counts.max())).newbyteorder("<"))
        _write_npz(Path(path), {"header": text, "counts": counts, "digest": _digest(text, counts)})

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
        with open(path, "rb") as stream:
            try:
                return cls._read(stream, max_bytes)
            except ModelFileError as error:
                raise ModelFileError(f"{os.fspath(path)}: {error}") from None
            except FlyNNError as error:
                raise ModelFileError(f"{os.fspath(path)}: inconsistent: {error}") from None
            except _UNREADABLE:
                raise ModelFileError(f"{os.fspath(path)}: not a model file, or damaged") from None

    @classmethod
    def _read(cls, stream: IO[bytes], max_bytes: int) -> Self:
        with zipfile.ZipFile(stream) as archive:
            if sorted(archive.namelist()) != ["counts.npy", "digest.npy", "header.npy"]:
                raise ModelFileError("expected header, counts and digest, got other contents")
            # JSON takes up to some thirty times its length once it is Python objects.
            text = _read_npy(archive, "header", r"\|u1", max_bytes // 32)
            header = json.loads(text.tobytes())
            if header["format"] != _FORMAT:
                raise ModelFileError(f"format {str(header['format'])[:20]}, this version reads format {_FORMAT}")
            spec = HashSpec.from_dict(header["spec"])
            classes = _labels_from_json(header["classes"])
            shape = (len(classes), spec.hash_dim)
            needed = 24 * spec.hash_dim * (spec.row_nnz + shape[0]) + 8 * spec.n_features
            if needed > max_bytes:
                raise ModelFileError(f"needs about {needed / 2**20:.2g} MiB, the limit is {max_bytes / 2**20:.2g} MiB")
            counts = _read_npy(archive, "counts", "[<|]u[1248]", 8 * shape[0] * shape[1])
            digest = _read_npy(archive, "digest", r"\|u1", 32)
        if not np.array_equal(digest, _digest(text, counts)):
            raise ModelFileError("altered: the digest does not fit the contents")
        if counts.shape != shape:
            raise ModelFileError(f"counts: expected shape {shape}, got {counts.shape}")
        if flynn_hash(spec).fingerprint != header["fingerprint"]:
            raise ModelFileError("made by a version whose rows of M are others")
        model = cls.from_counts(
            spec,
            ClassCounts(counts, hash_nnz=spec.hash_nnz, spec_fingerprint=header["fingerprint"]),
            classes,
            decay=header["decay"],
            rule=header["rule"],
            feature_names=header["feature_names"],
        )
        check_readout(model.rule, header["decay_"])
        model.decay_ = float(header["decay_"])  # leave-one-out may have chosen it
        return model


def _codes(classes: npt.NDArray[Any], y: Any) -> npt.NDArray[np.int64]:
    """Position of each label in `classes`."""
    order = np.argsort(classes)
    places = np.searchsorted(classes, y, sorter=order)
    codes: npt.NDArray[np.int64] = order[np.minimum(places, len(classes) - 1)]
    unknown = int((classes[codes] != y).sum())
    if unknown:
        raise DataError(f"y: {unknown} of {len(y)} labels are not among the {len(classes)} classes")
    return codes


def _best_decay(counts: ClassCounts, active: npt.NDArray[np.int32], codes: npt.NDArray[np.int64], rule: str) -> float:
    """The decay of the grid with the best leave-one-out balanced accuracy, the first of equals."""
    decays = counts.decay_grid(rule)
    matrices = counts.leave_one_out(active, codes, decays, rule)
    recalls = np.diagonal(matrices, axis1=1, axis2=2) / counts.n_per_class
    return decays[int(recalls.mean(axis=1).argmax())]


def _column_statistics(X: Any) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each column, the same for every order of the rows, dtype, and sparse or dense.

    Sums are of whole numbers, which have no order: values, and then squared deviations from the mean, are scaled by a
    power of two to at most 1 in magnitude and rounded to multiples of 2 ** -(60 - log2(n)). A deviation of 1 is given
    for columns that are constant, and their very value for the mean.
    """
    n, d = X.shape
    sparse = sp.issparse(X)
    if sparse and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    low, high = (
        np.asarray(sp.coo_array(edge).todense() if sparse else edge, np.float64).reshape(d)
        for edge in (X.min(0), X.max(0))
    )
    exponent = _exponent(low, high)
    places = 60 - n.bit_length()

    def mean_of(term: Callable[[Floats, Any], Floats]) -> Floats:
        sums = np.zeros(d, np.int64)
        if sparse:
            zeros = n - np.bincount(X.indices, minlength=d)
            sums += zeros * _fixed(term(np.zeros(d), slice(None)), places)
            values = np.ldexp(X.data.astype(np.float64), -exponent[X.indices])
            np.add.at(sums, X.indices, _fixed(term(values, X.indices), places))
        else:
            for rows in gen_batches(n, max(1, 2**20 // d)):
                values = np.ldexp(X[rows].astype(np.float64), -exponent)
                sums += _fixed(term(values, slice(None)), places).sum(axis=0)
        means: Floats = np.ldexp(sums / n, -places)
        return means

    mean = mean_of(lambda values, columns: values)
    reach = _exponent(np.ldexp(low, -exponent) - mean, np.ldexp(high, -exponent) - mean)
    variance = mean_of(lambda values, columns: np.ldexp(values - mean[columns], -reach[columns]) ** 2)
    deviation = np.ldexp(np.sqrt(variance), exponent + reach)
    constant = (low == high) | (deviation < np.finfo(np.float64).tiny)
    return np.where(constant, low, np.ldexp(mean, exponent)), np.where(constant, 1.0, deviation)


def _exponent(low: Floats, high: Floats) -> npt.NDArray[np.int32]:
    """The power of two that scales what lies between the two into [-1, 1]."""
    exponent: npt.NDArray[np.int32] = np.frexp(np.maximum(np.abs(low), np.abs(high)))[1]
    return exponent


def _fixed(values: Floats, places: int) -> npt.NDArray[np.int64]:
    return np.rint(np.ldexp(values, places)).astype(np.int64)


_FORMAT = 1

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What zipfile, json and our own constructors raise on files that `save` did not write."""


def _write_npz(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(beside, "xb") as stream:
            with zipfile.ZipFile(stream, "w") as archive:
                for name, array in arrays.items():
                    info = zipfile.ZipInfo(f"{name}.npy")  # made by hand it bears no time stamp
                    info.compress_type = zipfile.ZIP_DEFLATED
                    with archive.open(info, "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _read_npy(archive: zipfile.ZipFile, name: str, dtypes: str, max_bytes: int) -> npt.NDArray[Any]:
    """A plain array whose size is known, and known to fit, before anything is allocated."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others allocate as the file pleases
        raise ModelFileError(f"{name}: compressed by another method")
    with archive.open(info) as member:
        if np.lib.format.read_magic(member) != (1, 0):
            raise ModelFileError(f"{name}: of another npy version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(member, max_header_size=1024)
        size = math.prod(shape) * dtype.itemsize
        if fortran or not re.fullmatch(dtypes, dtype.str) or info.file_size != member.tell() + size:
            raise ModelFileError(f"{name}: expected a plain array, got another")
        if size > max_bytes:
            raise ModelFileError(f"{name}: expected at most {max_bytes} bytes, got {size}")
        return np.frombuffer(member.read(size), dtype).reshape(shape)


def _digest(header: npt.NDArray[np.uint8], counts: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    digest = hashlib.sha256(b"flynn model 1")
    for array in (header, counts):
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return np.frombuffer(digest.digest(), np.uint8)


def _labels_to_json(classes: npt.NDArray[Any]) -> dict[str, Any]:
    kind = classes.dtype.kind
    values = classes.tolist()
    if kind not in "OUbiuf" or (kind == "O" and not all(type(value) is str for value in values)):
        raise ModelFileError(f"classes of dtype {classes.dtype} cannot be saved")
    return {"dtype": "object" if kind == "O" else "str" if kind == "U" else classes.dtype.name, "values": values}


def _labels_from_json(labels: dict[str, Any]) -> npt.NDArray[Any]:
    name, values = labels["dtype"], labels["values"]
    if not re.fullmatch("object|str|bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise ModelFileError("classes: of an unknown type")
    array = np.array(values, name)
    if array.tolist() != values:
        raise ModelFileError("classes: not of the type that the file says")
    return array
