"""Permissions of a party: what it allows, and access to its samples, which checks the current request each time.

Samples are reached through `SampleAccess.labelled`, `release`, `release_round` and `tried` alone, and by `keep` for the
party's own copy of the model. No text of an error holds a value of the data.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, DataError, FlyNNError, PayloadError, PrivacyError
from flwr_flynn.federated.party_options import PartyOptions as PartyOptions
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE, Config
from flwr_flynn.federated.raw_tables import elsewhere, prepared
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import Features, check_classes, check_samples, check_width, count, fitting, labelled
from flwr_flynn.federated.samples import Samples as Samples
from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.alignment import Alignment, Reference
from flwr_flynn.model.class_prior import own_prior
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.model import Model
from flwr_flynn.model.noisy_rounds import clipped_gradient, weights_sha256
from flwr_flynn.privacy import GaussianRounds, Mechanism, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.privacy.release_policy import unseeded
from flwr_flynn.privacy.samplers import SeededNoise
from flwr_flynn.tables.kinds_and_levels import TableSummary
from flwr_flynn.tables.schema import Schema

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

NOISY_EXAMPLES = 1
"""`num_examples` beside noisy and secure counts: the same for every party, so that it tells nothing."""

_SCORES = 2**22  # class scores held at a time, 32 MiB; and the hashes of at most 2**14 samples

Progress = Callable[[int], object]
V = TypeVar("V")
Codes = npt.NDArray[np.int64]
CodesOf = Callable[[Any], Codes]


def no_progress(_total: int) -> Progress:
    """A progress report that reports nothing."""
    return lambda _done: None


def no_mask(_bound: int, _mechanism: Mechanism | None = None) -> None:
    """The mask of a party that takes part in no secure sum."""
    raise PrivacyError("secure sum", "a request by SecAgg+ through flwr_flynn.secagg.mod", "one in clear")


class SampleAccess:
    """A party's samples, and the checks between them and a request.

    Parameters
    ----------
    load : Samples or callable
        The samples, of any kind that `Table.of` takes; or a function of the names of the features, or of the schema, of
        a run (() without either) -> Samples. With a schema their X may be numbers, of the schema's width, or a raw
        table; without one, of a file that is not held in memory, its summary. With a budget it is called only once the
        ledger has admitted a request.
    options : PartyOptions
    mask : callable, default=`no_mask`
        Called with the bound, and the mechanism if any, before anything leaves in a secure sum; raises where nothing
        will mask it.
    progress : callable, default=`no_progress`
        Number of samples to be hashed -> callable that takes numbers of samples just hashed.
    width : callable, optional
        Names of features -> number of columns, without a look at samples. With a budget it is asked before the ledger.
    """

    def __init__(
        self,
        load: Samples | Callable[[Features], Samples],
        options: PartyOptions | None = None,
        mask: Callable[[int, Mechanism | None], None] = no_mask,
        progress: Callable[[int], Progress] = no_progress,
        width: Callable[[Features], int] | None = None,
    ) -> None:
        self.options = options or PartyOptions()
        if self.options.response_seconds and self.options.on_model is not None:
            import_module("flwr_flynn.model.classifier")  # here and not in the time that an answer takes
        self.progress = progress
        self.mask = mask
        self._given = load if isinstance(load, Samples) else None
        self._load = None if isinstance(load, Samples) else load
        self._samples: Samples | None = None  # as the request asks for them
        self._width = width
        self._names: Features = ()  # of the features that a request announced
        self._admitted = NOTHING  # what the request that is being answered discloses
        self._touched = False  # whether samples were looked at for it
        self._own: tuple[Model, Model] | None = None  # a model, and the party's copy of it

    def reason(self, what: str, error: Exception) -> str:
        """The reason that the server gets: the text of our own errors, which hold no data; of others the kind.

        Where exact figures stay at home, an error after a look at samples gives no reason: one sample may decide it.
        """
        hides = self.options.budget is not None or self.options.secure or self._admitted == SECURE
        if isinstance(error, FlyNNError):
            log.warning("FlyNN: %s refused: %s", what, "; ".join([str(error), *getattr(error, "__notes__", ())]))
            return f"{what} failed at this party" if hides and self._touched else str(error)
        log.error("FlyNN: %s failed", what, exc_info=error)
        return f"{what} failed at this party" if hides else f"failed with {type(error).__name__}"

    def _admit(self, phase: str, discloses: str, is_withdrawal: bool) -> None:
        """Raise unless the party's options allow what the answer to a request discloses."""
        options = self.options
        if discloses not in (EXACT, NOISY, SECURE, RESULTS, NOTHING):
            raise ConfigError("discloses", "a kind of disclosure that this party knows", discloses)
        if is_withdrawal != options.leaves and discloses != NOTHING:
            expected = "only runs with action=withdraw" if options.leaves else "no run with action=withdraw"
            raise ConfigError("node-config leave", expected, text=f"node-config leave: this party answers {expected}")
        if options.secure and discloses in (EXACT, NOISY):
            raise ConfigError("node-config secure", "a secure sum, in which alone counts leave this party", discloses)
        if discloses == EXACT and options.budget is not None:
            text = f"policy max-epsilon set: only noisy counts leave this party, not phase {phase}"
            raise PrivacyError("policy max-epsilon", NOISY, discloses, text=text)
        self._admitted = discloses

    def check_run(self, run: RunSpec, config: Config, phase: str, discloses: str, is_withdrawal: bool = False) -> None:
        """Raise unless the party admits such a request, has the memory, and draws the same rows as the server."""
        self._admit(phase, discloses, is_withdrawal)
        confusions = 32 * run.n_classes**2  # two matrices, and their message
        needed = sum(memory_needed(spec, run.n_classes) for spec in run.specs) + confusions
        several = f", the first of {len(run.specs)} specs" if len(run.specs) > 1 else ""
        what = f"hash_dim {run.spec.hash_dim}, row_nnz {run.spec.row_nnz} and {run.n_classes} classes{several}"
        self.check_memory(needed, what)
        run.agree_on_rows(config)

    def check_memory(self, needed: int, what: str) -> None:
        """Raise a `PayloadError` if the party does not allow so many bytes."""
        if needed > self.options.memory_limit:
            most, got = f"{self.options.memory_limit / 2**20:.1f}", f"{needed / 2**20:.1f}"
            text = f"memory: {what} need about {got} MiB, this party allows {most}"
            raise PayloadError("memory", f"at most {most} MiB", f"{got} MiB", text=text)

    def labelled(self, codes_of: CodesOf, n_features: int, before: bool = False) -> tuple[Any, Codes]:
        """Training samples, in a form that can be sliced, and the codes of their labels; or those `before`."""
        if self._admitted not in (EXACT, SECURE) or self.options.budget is not None:
            raise PrivacyError("samples", EXACT, self._admitted)
        return self._labelled(self._before() if before else self._held(), codes_of, n_features)

    def _labelled(self, samples: Samples, codes_of: CodesOf, n_features: int) -> tuple[Any, npt.NDArray[np.int64]]:
        return labelled(samples, codes_of, n_features, with_gaps=self._has_schema)

    @property
    def _has_schema(self) -> bool:
        return isinstance(self._names, Schema)

    def summary(self) -> TableSummary:
        """Summary of the raw columns of the training samples, above the floor."""
        if self._admitted != EXACT or self.options.budget is not None:
            raise PrivacyError("samples", EXACT, self._admitted)
        X, least = self._loaded().X, self.options.min_examples
        return X.told(least) if isinstance(X, TableSummary) else TableSummary.of(X, least)

    def inputs(self, run: RunSpec, before: bool = False) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """Training samples for each spec of a run, aligned where it has that, and the codes of their labels.

        Those of now, or `before` their change.
        """
        X, codes = self.labelled(run.codes, run.spec.n_features, before)
        for name in elsewhere(run.specs, self._names, X) if isinstance(self._names, Schema) else ():
            log.warning("FlyNN: column %r: no value is near those of other parties; is the unit the same?", name)
        alignment = self.alignment(run.reference, X, codes)
        n_plain = len(run.specs) - run.n_aligned
        return [X] * n_plain + [X if alignment is None else alignment.applied(X)] * run.n_aligned, codes

    def admit_update(self, changed: Sequence[int]) -> None:
        """Raise if the difference of counts tells of so few samples of a class, gone and come, that it shows them.

        `changed` are samples of each class that do not cancel out in the difference: at least as many have changed.
        """
        few, options = min((n for n in changed if n), default=0), self.options
        if 0 < few < options.min_update:
            expected = f"changes of at least {options.min_update} samples in each class that changes"
            raise ConfigError("node-config min-update", expected, "fewer")
        if 0 < few < options.min_examples:
            log.warning("FlyNN: the difference is that of %s samples in a class: it shows them to the server", few)

    def alignment(self, reference: Reference | None, X: Any, codes: npt.NDArray[np.int64]) -> Alignment | None:
        """The party's alignment to what a run announced, if anything, and if its samples call for it."""
        if reference is None:
            return None
        # An aligned copy of the samples, and the histograms of their columns.
        needed = 80 * X.shape[0] * X.shape[1] + 1024 * reference.n_classes * X.shape[1]
        self.check_memory(needed, f"the alignment of {X.shape[1]} columns")
        return reference.alignment(X, codes, self.options.min_examples)

    def release(self, run: RunSpec, recall: bool = False) -> ClassCounts:
        """Noisy counts, within the party's policy. No sample decides a refusal, nor its time.

        So no sample is touched before the ledger has admitted the request.
        """
        budget, mechanism, digest = self._before_release(run, recall)
        fingerprint = run.hasher.fingerprint
        if recall:
            return budget.recall(mechanism, fingerprint, terms=digest)
        released = budget.release(mechanism, fingerprint, lambda: self._counted_row_wise(run), terms=digest)
        if released.repeated:
            log.info("FlyNN: this request was answered before; the same answer again spends nothing")
        return released.counts

    def release_round(
        self, run: RunSpec, number: int, weights: npt.NDArray[np.int32], centre: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Noisy gradient, (m, L), of a round that was paid for with the run's counts; as `release` has it."""
        budget, mechanism, digest = self._before_release(run)
        rounds = unseeded(mechanism)
        if not isinstance(rounds, GaussianRounds) or number > rounds.n_rounds:
            raise PrivacyError("round", f"1 to {mechanism.n_rounds} by the run's mechanism", number)
        sampler = None
        if isinstance(mechanism, SimulatedRelease):
            seed = hashlib.sha256(f"{mechanism.seed} round {number}".encode()).digest()
            sampler = SeededNoise(int.from_bytes(seed[:8], "big"))

        def measure() -> npt.NDArray[np.int64]:
            parts = ((run.hasher.active(X, n_jobs=self.options.n_jobs), codes) for X, codes in self._fitting(run))
            found = self._row_wise(lambda: clipped_gradient(weights, centre, run.spec.hash_nnz, parts))
            return rounds.noisy_gradient(found.gradient, sampler)

        asked = hashlib.sha256(f"{weights_sha256(weights)} {centre.tolist()}".encode()).hexdigest()
        return budget.release_round(mechanism, run.hasher.fingerprint, number, asked, measure, terms=digest)

    def _before_release(self, run: RunSpec, recall: bool = False) -> tuple[Budget, Mechanism, str]:
        """Ledger, mechanism and digest of the terms for a noisy answer, once all that needs no sample is checked."""
        budget, mechanism = self.options.budget, run.mechanism
        if budget is None or mechanism is None or self._admitted not in (NOISY, SECURE):
            text = "policy max-epsilon not set: this party gives no private counts"
            raise PrivacyError("policy max-epsilon", got="not set", text=text)
        if recall and mechanism.is_share:
            # Taken out of a sum, a share of noise leaves the other parties with less than was promised.
            raise PrivacyError("leave", text="leave: a share of the noise of a secure sum cannot be taken out of it")
        if self._given is not None:
            check_samples(self._given, None if self._has_schema else run.spec.n_features)  # by their shape alone
        elif self._width is not None:
            check_width(self._width(self._names), run.spec.n_features)
        budget.policy.check(mechanism)
        check_classes(run.classes)
        if self._admitted == SECURE:
            self.mask(run.bound or 0, mechanism)  # before anything is spent
        digest = run.digest()
        if isinstance(mechanism, SimulatedRelease):  # no two parties draw the same noise
            seed = hashlib.sha256(f"{mechanism.seed} {self.options.name} {digest}".encode()).digest()
            mechanism = SimulatedRelease(mechanism.mechanism, int.from_bytes(seed[:8], "big"))
        return budget, mechanism, digest

    def _counted_row_wise(self, run: RunSpec) -> ClassCounts:
        """The party's counts without noise, of the samples that fit."""

        def counted() -> ClassCounts:
            samples = self._held()
            check_samples(samples, run.spec.n_features)
            n, n_jobs = len(samples.y), self.options.n_jobs
            counts, dropped = count(
                run.hasher, run.classes, samples.X, samples.y, n_jobs, self.progress(n), with_gaps=self._has_schema
            )
            if dropped:
                log.warning("FlyNN: %s of %s samples do not fit, and are left out", dropped, n)
            return counts

        return self._row_wise(counted)

    def _fitting(self, run: RunSpec) -> Iterator[tuple[Any, Codes]]:
        """Training samples that fit, and their class codes, some at a time."""
        samples = self._held()
        check_samples(samples, run.spec.n_features)
        yield from fitting(run.hasher, run.classes, samples.X, samples.y, with_gaps=self._has_schema)

    def _row_wise(self, measure: Callable[[], V]) -> V:
        """The value of a function of the samples.

        Any failure ends the request, charges nothing, and is reported in the same words whatever the cause: to the
        server that is a machine that went offline, and the guarantee is about answers.
        """
        try:
            return measure()
        except Exception as error:
            log.error("FlyNN: counting failed", exc_info=error)
            raise DataError("counting failed at this party") from None

    def tried(self, run: RunSpec, model: Model) -> tuple[Model, bool, Iterator[tuple[Any, Codes]]]:
        """The model to try, True if it differs by the class prior, and held-out samples with codes, some at a time.

        The model has the party's alignment and class prior. Where exact counts do not leave the party in clear, nothing
        of its own training samples is in it. Of results in a secure sum nobody sees the party's own: they need no
        consent, but with a budget, whose guarantee does not cover them.
        """
        options, in_clear = self.options, self._admitted != SECURE
        if (options.budget is not None or (options.secure and in_clear)) and not options.evaluates:
            text = "policy evaluate off: results on its own samples do not leave this party"
            raise PrivacyError("policy evaluate", got="off", text=text)
        if self._admitted not in (RESULTS, SECURE):
            raise PrivacyError("samples", RESULTS, self._admitted)
        is_open = not options.secure and options.budget is None and in_clear
        mine = self._personalized(run, model) if is_open else model
        samples, own = self._held(), options.class_prior and is_open and run.is_plain
        if samples.X_test is None or samples.y_test is None:
            return mine, own, iter(())
        return mine, own, self._tried(run, Samples(samples.X_test, samples.y_test))

    def _tried(self, run: RunSpec, samples: Samples) -> Iterator[tuple[Any, Codes]]:
        """Samples and their class codes, some at a time; with a budget those that fit."""
        if self.options.budget is None:
            parts = iter([self._labelled(samples, run.codes, run.spec.n_features)])
        else:
            check_samples(samples, run.spec.n_features)
            parts = fitting(run.hasher, run.classes, samples.X, samples.y, with_gaps=self._has_schema)
        for X, true in parts:
            for rows in batches(len(true), max(1, _SCORES // max(run.n_classes, 256))):
                yield X[rows], true[rows]

    def _personalized(self, run: RunSpec, model: Model) -> Model:
        """The model with the party's alignment and, where it decides for them, its frequencies; once for a request."""
        has_prior = self.options.class_prior and run.mechanism is None
        if self.options.budget is not None or not (has_prior or run.n_aligned):
            return model
        if self._own is None or self._own[0] is not model:
            own = model
            try:
                X, codes = self._labelled(self._held(), run.codes, run.spec.n_features)
                own = replace(own, alignment=self.alignment(run.reference, X, codes))
                if has_prior:
                    in_gram = self.options.gram or run.is_secure
                    own = replace(own, prior=own_prior(own, X, codes, self.options.n_jobs, in_gram))
            except Exception as error:
                cause = None if isinstance(error, FlyNNError) else error  # ours are in the log by their refusal
                log.warning("FlyNN: the model is used without what is the party's own in it", exc_info=cause)
            self._own = model, own
        return self._own[1]

    def keep(self, run: RunSpec, model: Model) -> str:
        """Give the model, personalized, to `on_model`, and return "" or the reason why that failed."""
        if self.options.on_model is None:
            return ""
        try:
            from flwr_flynn.model.classifier import FlyNNClassifier

            self.options.on_model(FlyNNClassifier.from_model(self._personalized(run, model)))
        except Exception as error:
            log.error("FlyNN: on_model failed", exc_info=error)
            # Of an OSError what the system calls it: the rest of its text names a file.
            cause = f": {os.strerror(error.errno)}" if isinstance(error, OSError) and error.errno else ""
            return f"failed with {type(error).__name__}{cause}"
        return ""

    def _held(self) -> Samples:
        """The samples, loaded when they are first needed."""
        self._touched = True
        if self._samples is None:
            samples = self._loaded()
            row_wise, is_given = self.options.budget is not None, self._load is None
            self._samples = prepared(samples, self._names, row_wise, is_given, self.check_memory)
        return self._samples

    def _before(self) -> Samples:
        """The samples as they were counted."""
        given, self._touched = self.options.previous, True
        if given is None:
            expected = "the samples as they were counted, at a party whose samples have changed"
            raise ConfigError("node-config previous-path", expected, "none")
        is_given = isinstance(given, Samples)
        samples = given if isinstance(given, Samples) else given(self._names)
        return prepared(samples, self._names, False, is_given, self.check_memory)

    def _loaded(self) -> Samples:
        """The samples as they were given, or as they are loaded by the names of the request."""
        self._touched = True
        samples = self._given if self._load is None else self._load(self._names)
        assert samples is not None  # there is one or the other
        return samples
