"""A party: it counts its points for the server, and tries the model that comes back on those it held out.

Where the run wants it, it first sends the sums of its columns, from which the server derives the hash, and after the
counting its part of the choice of hash and decay.

Whatever goes wrong comes back as a reply without counts and with a reason. (An exception would reach the
server without its sender, see the strategy.) Reasons name fields, shapes and numbers of points, never a value
of the data.

Where the run asks for noisy counts, and the party has a `budget` that allows them, they are all that leaves it, in a
reply that has the same form whatever the party holds: see `FlyNNClient` and `records`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from logging import ERROR, INFO, WARNING
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Scalar,
    Status,
    ndarrays_to_parameters,
)
from flwr.common.logger import log
from sklearn.utils import gen_batches

from flwr_flynn._validation import n_threads
from flwr_flynn.errors import ConfigError, DataError, FlyNNError, PayloadError, PrivacyError
from flwr_flynn.federated import codec
from flwr_flynn.federated.aggregator import NOISY_EXAMPLES
from flwr_flynn.federated.membership import LEAVE
from flwr_flynn.federated.party import check_form, count, hashed
from flwr_flynn.federated.protocol import SUMS, TRY, UNKEPT, SumsTerms, Terms, whole_number
from flwr_flynn.federated.selection_round import CANDIDATES, Tables, ballot, read_candidates, tables_to_bytes
from flwr_flynn.flower import secagg
from flwr_flynn.flower.progress import Progress
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.metrics import Confusion, confusion, confusion_to_bytes
from flwr_flynn.privacy import Mechanism, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget

Metrics = dict[str, Scalar]

_OK = Status(Code.OK, "Success")

_SCORES = 2**22  # class scores held at a time, 32 MiB; and the hashes of at most 2**14 points


class FlyNNClient(NumPyClient):
    """Flower client that takes part with the points of one party.

    Parameters
    ----------
    X : array-like or scipy sparse of shape (n, d)
        Points to train on. n may be 0: such a party sends zeros, and is counted.
    y : array-like of shape (n,)
        Their labels, strings or integers.
    X_test, y_test : like `X` and `y`, optional
        Points to try the federated model on. Without them the party takes the model, and reports nothing on
        it.
    name : str, optional
        What the server's log and report call this party; its node id by default.
    memory_limit : int, default=4 GiB
        Bytes. A hash that would need more for its rows, its counts and the confusion matrix is refused before
        anything is allocated. What the points themselves need comes on top.
    min_examples : int, default=5
        Of classes with fewer points the party sends no sums of columns, whatever the server asks for: those of a
        single point are that point. It counts them all the same.
    n_jobs : int, optional
        Threads for hashing: None for one, -1 for all.
    budget : Budget, optional
        The party's own ledger and policy of what it gives away. With one, nothing but noisy counts leaves it, and no
        more of them than the policy allows; records that do not fit are left out of them, and the party's own log tells
        how many. Points are then an array, a sparse matrix or a data frame. Without one, requests for noisy counts are
        refused.
    evaluates : bool, default=False
        With a budget: whether results on the points held out may leave the party all the same.
    secure : bool, default=False
        Whether counts leave this party in secure sums only, see `flwr_flynn.secagg`; requests for others are refused.
    leaves : bool, default=False
        Whether this party leaves a federation: it then sends its counts to be taken out of it, where a run is for that,
        and takes part in no other counting. Noisy counts are those it sent before, from its `budget`.
    on_model : callable, optional
        Called with the federated model, a `FlyNNClassifier`, when it arrives and was tried; for example
        ``lambda model: model.save("model.npz")``. From then on the party predicts alone. If it fails, the party's
        own log tells, and its reply tells the kind of the failure.

    Raises
    ------
    ConfigError
        A setting is not as described; the message names it. The data are looked at when the server asks for them.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_flynn import HashSpec
    >>> from flwr_flynn.federated.protocol import TRY, UNKEPT, SUMS, SumsTerms, Terms, whole_number
    >>> client = FlyNNClient(np.array([[0.0, 1.0], [1.0, 0.0]]), ["cat", "dog"], name="Basel")
    >>> terms = Terms(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7), ["cat", "dog"])
    >>> message, n_examples, metrics = client.fit([], terms.to_config())
    >>> codec.decode(message, terms.hasher, terms.n_classes).n_per_class, n_examples, metrics["flynn-party"]
    (array([1, 1]), 2, 'Basel')

    In a ``client_fn``: ``return FlyNNClient(X, y).to_client()``.
    """

    def __init__(
        self,
        X: Any,
        y: npt.ArrayLike,
        *,
        X_test: Any = None,
        y_test: npt.ArrayLike | None = None,
        name: str | None = None,
        memory_limit: int = 4 * 2**30,
        min_examples: int = 5,
        n_jobs: int | None = None,
        budget: Budget | None = None,
        evaluates: bool = False,
        secure: bool = False,
        leaves: bool = False,
        on_model: Callable[[FlyNNClassifier], object] | None = None,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ConfigError(f"budget: expected a Budget, got {type(budget).__name__}")
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"name: expected a string, got {type(name).__name__}")
        try:
            n_threads(n_jobs)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if (X_test is None) != (y_test is None):
            raise ConfigError("X_test, y_test: expected both or neither, got one of them")
        self.X = X
        self.y = y
        self.X_test = X_test
        self.y_test = y_test
        self.name = name
        self.memory_limit = whole_number("memory_limit", memory_limit)
        self.min_examples = whole_number("min_examples", min_examples)
        self.n_jobs = n_jobs
        self.budget = budget
        self.evaluates = evaluates
        self.secure = secure
        self.leaves = leaves
        self.on_model = on_model

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, Metrics]:
        """Count the party's points by the terms in `config`, or sum up their columns.

        Parameters
        ----------
        parameters : list of arrays
            Not used: counting starts from nothing.
        config : dict
            The run's terms, see `terms.Terms` and `terms.SumsTerms`.

        Returns
        -------
        arrays : list of arrays
            The counts as `codec.encode` writes them, noisy ones as `codec.encode_release` does, or the sums by
            `ColumnMoments.to_limbs`; empty if the party refuses.
        num_examples : int
            Points in them; beside noisy counts always `aggregation.NOISY_EXAMPLES`.
        metrics : dict
            ``flynn-party`` (the name, if it has one) and, not beside noisy counts, ``flynn-seconds``; or
            ``flynn-refused``, the reason.
        """
        if config.get("flynn-mode") == codec.SECURE:
            try:
                self._check_stay(config)
                return self._count_in_secret(config), NOISY_EXAMPLES, self._signed({})
            except Exception as error:  # noqa: BLE001 - see `_refusal`
                return [], 0, self._refusal("the secure sum", error)
        if config.get("flynn-mode") == codec.NOISY:
            try:
                self._check_stay(config)
                self._check_secrecy()
                return self._release(config), NOISY_EXAMPLES, self._signed({})
            except Exception as error:  # noqa: BLE001 - see `_refusal`
                return [], 0, self._refusal("private counting", error)
        start = time.perf_counter()
        summing = config.get("flynn-mode") == SUMS
        try:
            self._check_stay(config)
            self._check_secrecy()
            self._check_openness("sums of columns" if summing else "exact counts")
            message, n_examples = self._sum(config) if summing else self._count(config)
        except Exception as error:  # noqa: BLE001 - see `_refusal`
            return [], 0, self._refusal("summing" if summing else "counting", error)
        return message, n_examples, self._signed({"flynn-seconds": time.perf_counter() - start})

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, Metrics]:
        """Take the federated model, and try it on the points held out; or take part in the choice of one.

        Parameters
        ----------
        parameters : list of arrays
            The summed counts as `codec.encode` writes them.
        config : dict
            The run's terms, and how to read the counts: ``flynn-decay``, ``flynn-rule`` and ``flynn-temperature``; or
            ``flynn-candidates``, the read-outs to choose from.

        Returns
        -------
        loss : float
            1 - accuracy; 0.0 without points held out, and in a choice.
        num_examples : int
            Points held out; in a choice points trained on.
        metrics : dict
            ``flynn-confusion``, the confusion matrix (see `metrics.confusion_to_bytes`), and ``accuracy``;
            neither without points held out. In a choice ``flynn-hits`` and ``flynn-losses`` (see
            `choosing.tables_to_bytes`). With ``flynn-try`` false in `config` none of them: the party takes the model,
            and that is all. Or ``flynn-refused``, the reason. In any case ``flynn-unkept`` if `on_model` failed.
        """
        if CANDIDATES in config:
            try:
                self._check_secrecy()
                self._check_openness("a part in the choice")
                right, cold, n_examples = self._choose(parameters, config)
            except Exception as error:  # noqa: BLE001 - see `_refusal`
                return 0.0, 0, self._refusal("the choice", error)
            tables: Metrics = {"flynn-hits": tables_to_bytes(right), "flynn-losses": tables_to_bytes(cold)}
            return 0.0, n_examples, self._signed(tables)
        try:
            terms = self._terms(config)
            model = _received_model(terms, parameters, config)
        except Exception as error:  # noqa: BLE001 - see `_refusal`
            return 0.0, 0, self._refusal("the evaluation", error)
        loss, n_examples, metrics = 0.0, 0, self._signed({})
        if config.get(TRY) is not False:
            loss, n_examples, metrics = self._try_model(terms, model)
        return loss, n_examples, {**metrics, **self._hand_over(model)}

    def to_client(self) -> Client:
        """The party as Flower calls it. Unlike Flower's own wrapper it allocates nothing that a server declares."""
        return _Wire(self)

    def _sum(self, config: dict[str, Scalar]) -> tuple[NDArrays, int]:
        terms = SumsTerms.from_config(config, _points(self.X).shape[1])
        if terms.memory_needed > self.memory_limit:
            raise PayloadError(
                f"memory: the sums of {terms.n_features} columns for {terms.n_rows} classes need about "
                f"{terms.memory_needed / 2**20:.1f} MiB, this party allows {self.memory_limit / 2**20:.1f}"
            )
        X, codes = _labelled(terms, self.X, self.y)
        least = max(terms.min_examples, self.min_examples)
        if not terms.by_class:
            keep = (np.bincount(codes, minlength=len(terms.classes)) >= least)[codes]
            X, codes = (X if keep.all() else X[keep]), np.zeros(int(keep.sum()), np.int64)
        sums = ColumnMoments.from_data(X, codes, terms.n_rows, least)
        return sums.to_limbs(), sums.n_examples

    def _count(self, config: dict[str, Scalar]) -> tuple[NDArrays, int]:
        terms = self._terms(config)
        X, codes = _labelled(terms, self.X, self.y)
        progress = Progress(len(codes) * len(terms.specs))
        counts = [
            ClassCounts.from_data(hasher, X, codes, terms.n_classes, n_jobs=self.n_jobs, progress=progress)
            for hasher in terms.hashers
        ]
        return codec.encode(*counts), counts[0].n_examples

    def _count_in_secret(self, config: dict[str, Scalar]) -> NDArrays:
        """Counts for SecAgg+ to mask."""
        if "flynn-mechanism" in config:
            terms, released = self._released(config)
            assert terms.bound is not None
            return [np.clip(released.array, -terms.bound, terms.bound)]
        self._check_openness("exact counts")
        terms = self._terms(config)
        secagg.require_mask(terms)
        assert terms.bound is not None
        X, codes = _labelled(terms, self.X, self.y)
        counts = ClassCounts.from_data(terms.hasher, X, codes, terms.n_classes, n_jobs=self.n_jobs)
        return [*secagg.encode(counts.array, terms.bound)]

    def _release(self, config: dict[str, Scalar]) -> NDArrays:
        terms, released = self._released(config)
        assert terms.mechanism is not None
        return codec.encode_release(released, terms.mechanism)

    def _released(self, config: dict[str, Scalar]) -> tuple[Terms, ClassCounts]:
        """Noisy counts. Whether they are refused, and all else about them that shows, depends on no record."""
        if self.budget is None:
            raise PrivacyError("policy max-epsilon not set: this party gives no private counts")
        check_form(self.X, self.y)
        terms = self._terms(config)
        if terms.mode == codec.SECURE:
            secagg.require_mask(terms)  # before anything is spent
        assert terms.mechanism is not None
        mechanism = _seeded_here(terms.mechanism, f"{self.name} {terms.digest()}")
        if self.leaves:
            return terms, self.budget.recall(mechanism, terms.hasher.fingerprint, terms=terms.digest())
        self.budget.policy.check(mechanism)
        try:
            progress = Progress(len(self.y))  # type: ignore[arg-type]
            counts, dropped = count(terms.hasher, terms.classes, self.X, self.y, self.n_jobs, progress)
            if dropped:
                log(WARNING, "FlyNN: %s of %s records do not fit, and are left out", dropped, len(self.y))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - a refusal could be some record's doing
            log(ERROR, "FlyNN: THE COUNTS ARE OF NO RECORD, as counting failed", exc_info=error)
            counts = ClassCounts.zeros(terms.hasher, terms.n_classes)
        released = self.budget.release(mechanism, counts, terms=terms.digest(), processes=n_threads(self.n_jobs))
        if released.data_changed:
            log(WARNING, "FlyNN: the answer to this request is the one before, of other data than there are now")
        elif released.repeated:
            log(INFO, "FlyNN: this request was answered before; the same answer again spends nothing")
        return terms, released.counts

    def _check_secrecy(self) -> None:
        if self.secure:
            raise ConfigError("secure: counts leave this party in secure sums only")

    def _check_stay(self, config: dict[str, Scalar]) -> None:
        if (config.get("flynn-action") == LEAVE["flynn-action"]) != self.leaves:
            raise ConfigError("leave: takes part in nothing else" if self.leaves else "stays (leave is not set)")

    def _check_openness(self, what: str) -> None:
        if self.budget is not None:
            raise PrivacyError(f"policy max-epsilon set: only noisy counts leave this party, not {what}")

    def _choose(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[Tables, Tables, int]:
        """Hits and losses of every spec's candidates on the points trained on, and the number of those."""
        terms = self._terms(config)
        candidates = read_candidates(config, len(terms.specs))
        totals = codec.decode_all(parameters, terms.hashers, terms.n_classes)
        X, codes = _labelled(terms, self.X, self.y)
        progress = Progress(len(codes) * len(terms.specs))
        ballots = [
            ballot(hasher, counts, X, codes, entries, self.n_jobs, progress)
            for hasher, counts, entries in zip(terms.hashers, totals, candidates, strict=True)
        ]
        return [right for right, _ in ballots], [cold for _, cold in ballots], len(codes)

    def _try_model(self, terms: Terms, model: FlyNNClassifier) -> tuple[float, int, Metrics]:
        try:
            if self.budget is not None and not self.evaluates:
                raise PrivacyError("policy evaluate off: results on its own points do not leave this party")
            matrix = self._confusion(terms, model)
        except DataError as error:
            return 0.0, 0, self._refusal("the evaluation", DataError(f"X_test, y_test: {error}"))
        except Exception as error:  # noqa: BLE001 - see `_refusal`
            return 0.0, 0, self._refusal("the evaluation", error)
        if matrix is None:
            return 0.0, 0, self._signed({})
        n_examples = int(matrix.sum())
        accuracy = float(np.trace(matrix) / n_examples)
        figures: Metrics = {"flynn-confusion": confusion_to_bytes(matrix), "accuracy": accuracy}
        return 1 - accuracy, n_examples, self._signed(figures)

    def _confusion(self, terms: Terms, model: FlyNNClassifier) -> Confusion | None:
        """How the model does on the points held out; None if there are none."""
        if self.X_test is None or self.y_test is None:
            return None
        if self.budget is not None:
            return self._private_confusion(terms, model)
        X, true = _labelled(terms, self.X_test, self.y_test)
        if not len(true):
            return None
        predicted = np.empty_like(true)
        for rows in gen_batches(len(true), max(1, _SCORES // max(terms.n_classes, 256))):
            active = terms.hasher.active(X[rows], n_jobs=self.n_jobs)
            predicted[rows] = model.model_.member.scores(active).argmax(axis=1)
        return confusion(true, predicted, terms.n_classes)

    def _private_confusion(self, terms: Terms, model: FlyNNClassifier) -> Confusion | None:
        """The same on the records that fit."""
        check_form(self.X_test, self.y_test)
        matrix = np.zeros((terms.n_classes, terms.n_classes), np.int64)
        for active, true in hashed(terms.hasher, terms.classes, self.X_test, self.y_test, self.n_jobs):
            for rows in gen_batches(len(true), max(1, _SCORES // max(terms.n_classes, 256))):
                predicted = model.model_.member.scores(active[rows]).argmax(axis=1)
                matrix += confusion(true[rows], predicted, terms.n_classes)
        return matrix if matrix.any() else None

    def _hand_over(self, model: FlyNNClassifier) -> Metrics:
        """Give the model to `on_model`; what a reply says of it if that fails, which costs the party nothing else."""
        if self.on_model is None:
            return {}
        try:
            self.on_model(model)
        except Exception as error:  # noqa: BLE001 - see above
            log(ERROR, "FlyNN: on_model failed", exc_info=error)
            # Of an OSError what the system calls it: all else of its text names a file.
            cause = f": {os.strerror(error.errno)}" if isinstance(error, OSError) and error.errno else ""
            return {UNKEPT: f"failed with {type(error).__name__}{cause}"}
        return {}

    def _terms(self, config: dict[str, Scalar]) -> Terms:
        """The run's terms, once it is clear that the party can afford them and means the same hash."""
        terms = Terms.from_config(config, _points(self.X).shape[1])
        needed = sum(memory_needed(spec, terms.n_classes) for spec in terms.specs)
        needed += 16 * terms.n_classes**2  # the confusion matrix, and its message
        if needed > self.memory_limit:
            several = f" in the first of {len(terms.specs)} specs" if len(terms.specs) > 1 else ""
            raise PayloadError(
                f"memory: hash_dim {terms.spec.hash_dim}, row_nnz {terms.spec.row_nnz} and {terms.n_classes} classes"
                f"{several} need about {needed / 2**20:.1f} MiB, this party allows {self.memory_limit / 2**20:.1f}"
            )
        terms.agree_on_rows(config)
        return terms

    def _signed(self, metrics: Metrics) -> Metrics:
        return metrics if self.name is None else {**metrics, "flynn-party": self.name}

    def _refusal(self, what: str, error: Exception) -> Metrics:
        """What the server learns of an error: the text of our own, which hold no data; of others the kind."""
        if isinstance(error, FlyNNError):
            reason = str(error)
            log(WARNING, "FlyNN: %s refused: %s", what, "; ".join([reason, *getattr(error, "__notes__", ())]))
        else:
            reason = f"failed with {type(error).__name__}"
            log(ERROR, "FlyNN: %s failed", what, exc_info=error)
        return self._signed({"flynn-refused": reason})


class _Wire(Client):
    """What Flower makes of a NumPyClient, but with `codec.read_tensors` for what comes from the server."""

    def __init__(self, party: FlyNNClient) -> None:
        self.party = party

    def fit(self, ins: FitIns) -> FitRes:
        arrays, n_examples, metrics = self.party.fit([], ins.config)
        return FitRes(_OK, ndarrays_to_parameters(arrays), n_examples, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        try:
            arrays = codec.read_tensors(ins.parameters.tensors)
        except PayloadError as error:
            return EvaluateRes(_OK, 0.0, 0, self.party._refusal("the evaluation", error))
        return EvaluateRes(_OK, *self.party.evaluate(arrays, ins.config))


def _received_model(terms: Terms, parameters: NDArrays, config: dict[str, Scalar]) -> FlyNNClassifier:
    if len(terms.specs) > 1:
        raise PayloadError(f"spec: expected the one of the model, got {len(terms.specs)}")
    guarantee = None
    if terms.mechanism is None:
        counts = codec.decode(parameters, terms.hasher, terms.n_classes)
    else:
        n_releases = config.get("flynn-releases")
        if type(n_releases) is not int or not 1 <= n_releases < 2**31:
            raise PayloadError("flynn-releases: expected a whole number from 1, got something else")
        counts = codec.decode_total(parameters, terms.hasher, terms.mechanism, n_releases)
        guarantee = terms.mechanism.guarantee()
    decay, rule, temperature = (config.get(f"flynn-{name}") for name in ("decay", "rule", "temperature"))
    if not isinstance(decay, float) or not isinstance(rule, str):
        raise PayloadError("flynn-decay, flynn-rule: expected a float and a string, got something else")
    if temperature is not None and not isinstance(temperature, float):
        raise PayloadError(f"flynn-temperature: expected a float, got {type(temperature).__name__}")
    return FlyNNClassifier.from_counts(
        terms.spec,
        counts,
        list(terms.classes),
        decay=decay,
        rule=rule,
        temperature="auto" if temperature is None else temperature,
        feature_names=terms.feature_names,
        guarantee=guarantee,
    )


def _seeded_here(mechanism: Mechanism, who: str) -> Mechanism:
    """A simulated mechanism with a seed for one party, so that no two draw the same noise; others as they are."""
    if not isinstance(mechanism, SimulatedRelease):
        return mechanism
    digest = hashlib.sha256(f"{mechanism.seed} {who}".encode()).digest()
    return SimulatedRelease(mechanism.mechanism, int.from_bytes(digest[:8], "big"))


def _points(X: Any) -> Any:
    """`X` as an array or a sparse matrix with two dimensions."""
    points = X if sp.issparse(X) else np.asarray(X)
    if points.ndim != 2:
        raise DataError(f"X: expected shape (points, features), got {points.ndim} dimension(s)")
    return points


def _labelled(terms: Terms | SumsTerms, X: Any, y: npt.ArrayLike) -> tuple[Any, npt.NDArray[np.int64]]:
    """Points, in a form that can be sliced, and the codes of their labels."""
    points, codes = _points(X), terms.codes(y)
    if len(codes) != points.shape[0]:
        raise DataError(f"y: expected {points.shape[0]} labels, one for every point, got {len(codes)}")
    return (points.tocsr() if sp.issparse(points) else points), codes
