"""Access of a request to a party's samples.

It checks each time what the request was admitted for.

Samples are reached through `SampleAccess.labelled`, `inputs`, `summary`, `release` and
`tried` alone, and by `keep` for the party's own copy of the model. No text of an error
holds a value of the data.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.errors import (
    ConfigError,
    DataError,
    FlyNNError,
    PayloadError,
    PrivacyError,
    with_rows,
)
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.private_rows import (
    INPUT_BYTES,
    LEAST_ROWS,
    ROW_BYTES,
    Fitting,
    GivenRows,
    RowReader,
    check_classes,
    check_columns,
    fitting,
    inputs_of,
)
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE, Config
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import (
    Features,
    Samples,
    has_names,
    labelled,
    prepared,
)
from flwr_flynn.federated.unit_warnings import elsewhere
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import add_counts
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.model import Model
from flwr_flynn.model.prior import own_prior
from flwr_flynn.privacy import Mechanism, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table_summary import TableSummary

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

_SCORES = 2**20
"""Class scores held at a time, 8 MiB, some times over; and the hashes of at most 2**12
samples."""

Load = Callable[[Features], Samples | RowReader]
CodesOf = Callable[[Any], Codes]


def progress(total: int = 0) -> Callable[[int], None]:
    """A function that takes numbers of samples just hashed.

    It logs their sum on this machine, every ten seconds.
    """
    done = 0
    last = time.monotonic()

    def hashed(n_samples: int) -> None:
        nonlocal done, last
        done = done + n_samples
        now = time.monotonic()
        if now - last >= 10:
            last = now
            log.info("FlyNN: %d of %s samples hashed", done, total or "so many")

    return hashed


def no_mask(_bound: int, _mechanism: Mechanism | None = None) -> None:
    """The mask of a party that takes part in no secure sum."""
    raise PrivacyError(
        "secure sum",
        "a request by SecAgg+ through flwr_flynn.secagg.mod",
        "one in clear",
    )


class SampleAccess:
    """A party's samples, and the checks between them and a request.

    Parameters
    ----------
    load : Samples, RowReader or callable
        The samples, of any kind that `Table.of` takes; or a function of the names of
        the features, or of the schema, of a run (() without either) -> Samples. With a
        schema their X may be numbers, of the schema's width, or a raw table; without
        one, of a file that is not held in memory, its summary. With a budget it is
        called once the ledger has admitted a request, with () whatever is asked; it may
        return a `private_rows.RowReader`, which a party with a budget may also be
        given.
    options : PartyOptions
    mask : callable, default=`no_mask`
        Called with the bound, and the mechanism if any, before anything leaves in a
        secure sum; raises where nothing will mask it.
    """

    def __init__(
        self,
        load: Samples | RowReader | Load,
        options: PartyOptions | None = None,
        mask: Callable[[int, Mechanism | None], None] = no_mask,
    ) -> None:
        self.options = options or PartyOptions()
        if self.options.response_seconds and self.options.on_model is not None:
            # Imported here, and not in the time that an answer takes.
            import_module("flwr_flynn.model.classifier")
        self.mask = mask
        self._source = load
        self._reader: RowReader | None = None  # rows of a private party
        self._samples: Samples | None = None  # samples as the request asks for them
        self._names: Features = ()  # names of features that the request announced
        self._admitted = NOTHING  # kind of disclosure that the request was admitted for
        self._touched = False  # True if samples were looked at for it

    def reason(self, what: str, error: Exception) -> str:
        """The reason that the server gets.

        It is the text of our own errors, which hold no data, and the kind of others.
        Where exact figures stay at home, an error after a look at samples gives no
        reason: one sample may decide it.
        """
        is_private = self.options.budget is not None or self.options.secure
        hides = is_private or self._admitted == SECURE
        if isinstance(error, FlyNNError):
            texts = [str(error), *getattr(error, "__notes__", ())]
            log.warning("FlyNN: %s refused: %s", what, "; ".join(texts))
            if hides and self._touched:
                return f"{what} failed at this party"
            return str(error)
        log.error("FlyNN: %s failed", what, exc_info=error)
        if hides:
            return f"{what} failed at this party"
        return f"failed with {type(error).__name__}"

    def check_run(self, run: RunSpec, config: Config) -> None:
        """Raise unless the party has the memory for a run, and draws the same rows."""
        needed = 32 * run.n_classes**2  # two confusion matrices, and their message
        needed += sum(memory_needed(spec, run.n_classes) for spec in run.specs)
        inputs = max(map(inputs_of, run.specs))
        needed += LEAST_ROWS * (ROW_BYTES * run.spec.n_features + INPUT_BYTES * inputs)
        several = ""
        if len(run.specs) > 1:
            several = f", the first of {len(run.specs)} specs"
        sizes = (
            f"n_features {run.spec.n_features}, hash_dim {run.spec.hash_dim}, "
            f"row_nnz {run.spec.row_nnz}"
        )
        self.check_memory(needed, f"{sizes} and {run.n_classes} classes{several}")
        run.agree_on_rows(config)

    def check_memory(self, needed: int, what: str, is_public: bool = True) -> None:
        """Raise a `PayloadError` unless the party allows so many bytes.

        The number is public where the request decides it.
        """
        if needed <= self.options.memory_limit:
            return
        most = f"{self.options.memory_limit / 2**20:.1f}"
        got = f"{needed / 2**20:.1f}"
        text = f"memory: {what} need about {got} MiB, this party allows {most}"
        if is_public:
            raise PayloadError("memory", f"at most {most} MiB", f"{got} MiB", text=text)
        error = PayloadError("memory", f"at most {most} MiB for {what}", "more")
        raise with_rows(error, text)

    def labelled(
        self, codes_of: CodesOf, n_features: int, before: bool = False
    ) -> tuple[Array, Codes]:
        """Training samples in a form that can be sliced, and the codes of their labels.

        They are the samples of now, or those `before` their change.
        """
        if self._admitted not in (EXACT, SECURE) or self.options.budget is not None:
            raise PrivacyError("samples", EXACT, self._admitted)
        self._touched = True
        if not before:
            return self._labelled(self._held(), codes_of, n_features)
        if self.options.previous is None:
            expected = (
                "the samples as they were counted, at a party whose samples "
                "have changed"
            )
            raise ConfigError("node-config previous-path", expected, "none")
        previous = self._prepared(self.options.previous)
        return self._labelled(previous, codes_of, n_features)

    def _labelled(
        self, samples: Samples, codes_of: CodesOf, n_features: int
    ) -> tuple[Array, Codes]:
        with_gaps = isinstance(self._names, Schema)
        return labelled(samples, codes_of, n_features, with_gaps=with_gaps)

    def _complete(self, run: RunSpec, samples: Samples) -> tuple[Array, Codes]:
        """Samples that the run's hashes take, and the codes of their labels."""
        X, codes = self._labelled(samples, run.codes, run.spec.n_features)
        return run.without_gaps(X, codes)

    def table_summary(self) -> TableSummary:
        """Summary of the raw columns of the training samples, above the floor."""
        if self._admitted != EXACT or self.options.budget is not None:
            raise PrivacyError("samples", EXACT, self._admitted)
        X = self._loaded(self._source).tables()[0]
        least = self.options.min_examples
        if isinstance(X, TableSummary):
            return X.floored(least)
        return TableSummary.of(X, least)

    def samples_of(self, run: RunSpec, before: bool = False) -> tuple[Array, Codes]:
        """Training samples that the run's hashes take, and the codes of their labels.

        They are the samples of now, or those `before` their change.
        """
        X, codes = self.labelled(run.codes, run.spec.n_features, before)
        X, codes = run.without_gaps(X, codes)
        far_columns: list[str] = []
        if isinstance(self._names, Schema):
            far_columns = elsewhere(run.specs, self._names, X)
        for name in far_columns:
            log.warning(
                "FlyNN: column %r: no value is near those of other parties; is the "
                "unit the same?",
                name,
            )
        return X, codes

    def warn_of_few(self, changed: Sequence[int]) -> None:
        """Warn if the difference of counts is of so few samples that it shows them.

        `changed` are samples of each class that do not cancel out in the difference: at
        least as many have changed.
        """
        few = min((n for n in changed if n), default=0)
        if 0 < few < self.options.min_examples:
            log.warning(
                "FlyNN: the difference is that of %s samples in a class: it shows "
                "them to the server",
                few,
            )

    def release(self, run: RunSpec, recall: bool = False) -> ClassCounts:
        """Noisy counts, within the party's policy. No sample decides a refusal.

        All that can be refused is refused before the ledger charges the request, and it
        is charged before any sample is looked at; what follows is a fold over rows that
        cannot fail, see `private_rows`.
        """
        budget, mechanism, digest = self._before_release(run, recall)
        fingerprint = run.hasher.fingerprint
        if recall:
            return budget.recall(mechanism, fingerprint, terms=digest)
        prepare = partial(self._prepare, run)
        released = budget.release(
            mechanism,
            fingerprint,
            lambda: self._counted(run),
            terms=digest,
            prepare=prepare,
        )
        if released.repeated:
            log.info(
                "FlyNN: this request was answered before; the same answer again "
                "spends nothing"
            )
        return released.counts

    def _before_release(
        self, run: RunSpec, recall: bool = False
    ) -> tuple[Budget, Mechanism, str]:
        """Ledger, mechanism and digest of the terms for a noisy answer.

        All that needs no sample is checked before.
        """
        budget = self.options.budget
        mechanism = run.mechanism
        if budget is None or mechanism is None or self._admitted not in (NOISY, SECURE):
            text = "policy max-epsilon not set: this party gives no private counts"
            raise PrivacyError("policy max-epsilon", got="not set", text=text)
        if recall and mechanism.is_share:
            # Taken out of a sum, a share of noise leaves the other parties with less
            # than was promised.
            raise PrivacyError(
                "leave",
                text="leave: a share of the noise of a secure sum cannot be taken out "
                "of it",
            )
        budget.policy.check(mechanism)
        check_classes(run.classes)
        if self._admitted == SECURE:
            self.mask(run.bound or 0, mechanism)  # before anything is spent
        digest = run.digest()
        if isinstance(mechanism, SimulatedRelease):
            # No two parties draw the same noise.
            text = f"{mechanism.seed} {self.options.name} {digest}"
            seed = hashlib.sha256(text.encode()).digest()
            mechanism = SimulatedRelease(
                mechanism.mechanism, int.from_bytes(seed[:8], "big")
            )
        return budget, mechanism, digest

    def _prepare(self, run: RunSpec) -> None:
        """Refuse a request that no row can be hashed for.

        It is tried by the columns, and by zeros, before any row is looked at.
        """
        self._check_named(self._rows().names is not None)
        check_columns(self._rows(), self._names, run.spec.n_features)
        for hasher in run.hashers:
            hasher.active(np.zeros((1, hasher.n_features)))

    def _counted(self, run: RunSpec) -> ClassCounts:
        """The party's counts without noise, of the rows that fit."""
        hasher = run.hasher
        array = np.zeros((run.n_classes, run.spec.hash_dim), np.int64)
        n_rows = 0
        n_fitting = 0
        hashed = progress()
        active_bits = partial(hasher.active, n_jobs=self.options.n_jobs)
        for n, chunks in self._chunks(run, active_bits):
            n_rows += n
            hashed(n)
            for _, codes, active in chunks:
                n_fitting += len(codes)
                add_counts(array, codes, active)
        if n_rows > n_fitting:
            log.warning(
                "FlyNN: %s of %s samples do not fit, and are left out",
                n_rows - n_fitting,
                n_rows,
            )
        return ClassCounts(
            array, hash_nnz=hasher.hash_nnz, spec_fingerprint=hasher.fingerprint
        )

    def _chunks(
        self,
        run: RunSpec,
        of: Callable[[Array], Array],
        held_out: bool = False,
    ) -> Iterator[tuple[int, list[Fitting]]]:
        """A function of the private rows that fit, see `fitting`.

        Any failure is one of the machine.
        """
        self._touched = True
        try:
            memory = self.options.memory_limit
            yield from fitting(
                self._rows(),
                run.hashers,
                run.classes,
                self._names,
                memory,
                held_out=held_out,
                of=of,
            )
        except Exception as error:
            log.error("FlyNN: reading samples failed", exc_info=error)
            raise DataError("counting failed at this party") from None

    def _rows(self) -> RowReader:
        """The rows of a private party, loaded whatever is asked for.

        They have the columns that the request asks for.
        """
        if self._reader is None:
            # Until the load succeeds, any row may be why it does not.
            before = self._touched
            self._touched = True
            try:
                loaded: Samples | RowReader | Load = self._source
                if callable(loaded):
                    loaded = loaded(())
                if not isinstance(loaded, RowReader):
                    loaded = GivenRows(loaded)
                self._reader = loaded
            except FlyNNError:
                raise
            except Exception as error:
                log.error("FlyNN: loading samples failed", exc_info=error)
                raise DataError("loading failed at this party") from None
            self._touched = before
        return self._reader

    def tried(
        self, run: RunSpec, model: Model
    ) -> tuple[Model, bool, Iterator[Fitting]]:
        """The model to try, True if it differs by the class prior, and held-out samples.

        These come some at a time: numbers, class codes, and the model's shared scores.
        The model has the party's class prior. Where exact counts do not leave the party
        in clear, nothing of its own training samples is in it. Of results in a secure
        sum nobody sees the party's own: they need no consent, but with a budget, whose
        guarantee does not cover them.
        """
        options = self.options
        in_clear = self._admitted != SECURE
        needs_consent = options.budget is not None or (options.secure and in_clear)
        if needs_consent and not options.evaluates:
            text = (
                "policy evaluate off: results on its own samples do not leave this "
                "party"
            )
            raise PrivacyError("policy evaluate", got="off", text=text)
        if self._admitted not in (RESULTS, SECURE):
            raise PrivacyError("samples", RESULTS, self._admitted)
        is_open = not options.secure and options.budget is None and in_clear
        mine = model
        if is_open:
            mine = self._personalized(run, model)
        has_own = options.class_prior and is_open and run.is_plain
        scores = partial(mine.shared_scores, n_jobs=options.n_jobs)
        if options.budget is None:
            return mine, has_own, self._tried(run, scores)
        self._prepare(run)
        chunks_of_blocks = self._chunks(run, scores, held_out=True)
        return (
            mine,
            has_own,
            (chunk for _, chunks in chunks_of_blocks for chunk in chunks),
        )

    def _tried(
        self, run: RunSpec, scores: Callable[[Array], Array]
    ) -> Iterator[Fitting]:
        """Held-out samples of a party without a budget.

        They are refused as a whole if one does not fit.
        """
        samples = self._held()
        if samples.X_test is None or samples.y_test is None:
            return
        X, true = self._complete(run, Samples(samples.X_test, samples.y_test))
        for rows in batches(len(true), max(1, _SCORES // max(run.n_classes, 256))):
            yield X[rows], true[rows], scores(X[rows])

    def _personalized(self, run: RunSpec, model: Model) -> Model:
        """The model with the party's class frequencies, if it has samples."""
        is_private = self.options.budget is not None or run.mechanism is not None
        if is_private or not self.options.class_prior:
            return model
        text = "FlyNN: the model is used without what is the party's own in it"
        try:
            _, codes = self._complete(run, self._held())
            if len(codes):
                return replace(model, prior=own_prior(model.members[0].counts, codes))
        except FlyNNError:
            log.warning(text)  # the error is in the log by its refusal
        except Exception as error:
            log.warning(text, exc_info=error)
        return model

    def keep(self, run: RunSpec, model: Model) -> str:
        """Give the model, personalized, to `on_model`; "" or a reason why that failed."""
        on_model = self.options.on_model
        if on_model is None:
            return ""
        try:
            from flwr_flynn.model.classifier import FlyNNClassifier

            own = self._personalized(run, model)
            classifier = FlyNNClassifier.from_model(own, class_weight=run.class_weight)
            on_model(classifier)
        except Exception as error:
            log.error("FlyNN: on_model failed", exc_info=error)
            # The reason has the system's name of an OSError: the rest of its text names
            # a file.
            cause = ""
            if isinstance(error, OSError) and error.errno:
                cause = f": {os.strerror(error.errno)}"
            return f"failed with {type(error).__name__}{cause}"
        return ""

    def _held(self) -> Samples:
        """The samples, loaded when they are first needed."""
        self._touched = True
        if self._samples is None:
            self._samples = self._prepared(self._source)
        return self._samples

    def _check_named(self, is_named: bool) -> None:
        """Refuse a run without names for columns that have some.

        The positions of columns may differ between parties.
        """
        names = self._names
        run_has_names = bool(names)
        if isinstance(names, Schema):
            run_has_names = names.is_named
        if is_named and not run_has_names:
            expected = (
                "names, as the columns here have them; or learn_schema "
                "(run-config schema: learn)"
            )
            raise DataError("feature_names", expected, "none")

    def _prepared(self, source: object) -> Samples:
        """Samples as the request asks for them."""
        samples = self._loaded(source)
        self._check_named(bool(samples.names) or has_names(samples.X))
        is_given = isinstance(source, Samples)
        return prepared(samples, self._names, is_given, self.check_memory)

    def _loaded(self, source: object) -> Samples:
        """Samples as they were given, or loaded by the names of the request."""
        self._touched = True
        samples = source
        if callable(source):
            samples = source(self._names)
        if not isinstance(samples, Samples):
            raise ConfigError(
                "load", "Samples at a party without a budget", type(samples).__name__
            )
        return samples
