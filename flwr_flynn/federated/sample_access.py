"""Access of a request to a party's samples, which checks each time what the request was
admitted for.

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
import numpy.typing as npt

from flwr_flynn.errors import (
    ConfigError,
    DataError,
    FlyNNError,
    PayloadError,
    PrivacyError,
    with_rows,
)
from flwr_flynn.federated.permissions import PartyOptions
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
    Codes,
    Features,
    Samples,
    elsewhere,
    has_names,
    labelled,
    prepared,
)
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import add_counts
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.model import Model, own_prior
from flwr_flynn.privacy import Mechanism, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.tables.kinds_and_levels import TableSummary
from flwr_flynn.tables.schema import Schema

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

# class scores held at a time, 8 MiB, some times over; and the hashes of at most 2**12
# samples
_SCORES = 2**20

Load = Callable[[Features], Samples | RowReader]
CodesOf = Callable[[Any], Codes]


def progress(total: int = 0) -> Callable[[int], None]:
    """A function that takes numbers of samples just hashed, and logs their sum on this
    machine, every ten seconds.
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
            # here and not in the time that an answer takes
            import_module("flwr_flynn.model.classifier")
        self.mask = mask
        self._source = load
        self._reader: RowReader | None = None  # of a private party
        self._samples: Samples | None = None  # as the request asks for them
        self._names: Features = ()  # of the features that a request announced
        self._admitted = NOTHING  # what the request that is being answered discloses
        self._touched = False  # whether samples were looked at for it

    def reason(self, what: str, error: Exception) -> str:
        """The reason that the server gets: the text of our own errors, which hold no
        data; of others the kind.

        Where exact figures stay at home, an error after a look at samples gives no
        reason: one sample may decide it.
        """
        hides = (
            self.options.budget is not None
            or self.options.secure
            or self._admitted == SECURE
        )
        if isinstance(error, FlyNNError):
            log.warning(
                "FlyNN: %s refused: %s",
                what,
                "; ".join([str(error), *getattr(error, "__notes__", ())]),
            )
            if hides and self._touched:
                return f"{what} failed at this party"
            return str(error)
        log.error("FlyNN: %s failed", what, exc_info=error)
        if hides:
            return f"{what} failed at this party"
        return f"failed with {type(error).__name__}"

    def check_run(self, run: RunSpec, config: Config) -> None:
        """Raise unless the party has the memory for such a run, and draws the same rows
        as the server.
        """
        confusions = 32 * run.n_classes**2  # two matrices, and their message
        needed = (
            sum(memory_needed(spec, run.n_classes) for spec in run.specs) + confusions
        )
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
        """Raise a `PayloadError` unless the party allows so many bytes; `is_public`
        where the request decides them.
        """
        if needed > self.options.memory_limit:
            most = f"{self.options.memory_limit / 2**20:.1f}"
            got = f"{needed / 2**20:.1f}"
            text = f"memory: {what} need about {got} MiB, this party allows {most}"
            if is_public:
                raise PayloadError(
                    "memory", f"at most {most} MiB", f"{got} MiB", text=text
                )
            raise with_rows(
                PayloadError("memory", f"at most {most} MiB for {what}", "more"), text
            )

    def labelled(
        self, codes_of: CodesOf, n_features: int, before: bool = False
    ) -> tuple[Any, Codes]:
        """Training samples, in a form that can be sliced, and the codes of their
        labels; or those `before`.
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
        return self._labelled(
            self._prepared(self.options.previous), codes_of, n_features
        )

    def _labelled(
        self, samples: Samples, codes_of: CodesOf, n_features: int
    ) -> tuple[Any, Codes]:
        return labelled(
            samples, codes_of, n_features, with_gaps=isinstance(self._names, Schema)
        )

    def _complete(self, run: RunSpec, samples: Samples) -> tuple[Any, Codes]:
        """Samples without those that the run's hashes do not take, and the codes of
        their labels.
        """
        return run.complete(*self._labelled(samples, run.codes, run.spec.n_features))

    def summary(self) -> TableSummary:
        """Summary of the raw columns of the training samples, above the floor."""
        if self._admitted != EXACT or self.options.budget is not None:
            raise PrivacyError("samples", EXACT, self._admitted)
        X = self._loaded(self._source).tables()[0]
        least = self.options.min_examples
        if isinstance(X, TableSummary):
            return X.told(least)
        return TableSummary.of(X, least)

    def inputs(
        self, run: RunSpec, before: bool = False
    ) -> tuple[Any, npt.NDArray[np.int64]]:
        """Training samples, of now or `before` their change, and the codes of their
        labels.
        """
        X, codes = run.complete(*self.labelled(run.codes, run.spec.n_features, before))
        for name in (
            elsewhere(run.specs, self._names, X)
            if isinstance(self._names, Schema)
            else ()
        ):
            log.warning(
                "FlyNN: column %r: no value is near those of other parties; is the "
                "unit the same?",
                name,
            )
        return X, codes

    def warn_of_few(self, changed: Sequence[int]) -> None:
        """Warn if the difference of counts tells of so few samples of a class, gone and
        come, that it shows them.

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
        """Ledger, mechanism and digest of the terms for a noisy answer, once all that
        needs no sample is checked.
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
        # no two parties draw the same noise
        if isinstance(mechanism, SimulatedRelease):
            seed = hashlib.sha256(
                f"{mechanism.seed} {self.options.name} {digest}".encode()
            ).digest()
            mechanism = SimulatedRelease(
                mechanism.mechanism, int.from_bytes(seed[:8], "big")
            )
        return budget, mechanism, digest

    def _prepare(self, run: RunSpec) -> None:
        """Refuse a request that no row can be hashed for, before any is looked at: by
        its columns, and by zeros.
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
        for n, parts in self._parts(
            run, partial(hasher.active, n_jobs=self.options.n_jobs)
        ):
            n_rows += n
            hashed(n)
            for _, codes, active in parts:
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

    def _parts(
        self,
        run: RunSpec,
        of: Callable[[Any], npt.NDArray[Any]],
        held_out: bool = False,
    ) -> Iterator[tuple[int, list[Fitting]]]:
        """A function of the private rows that fit, see `fitting`; any failure is one of
        the machine.
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
        """The rows of a private party, loaded whatever is asked for, with the columns
        that the request asks for.
        """
        if self._reader is None:
            # until the load succeeds, any row may be why it does not
            before = self._touched
            self._touched = True
            try:
                if callable(self._source):
                    loaded: Any = self._source(())
                else:
                    loaded = self._source
                if isinstance(loaded, RowReader):
                    self._reader = loaded
                else:
                    self._reader = GivenRows(loaded)
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
        """The model to try, True if it differs by the class prior, and held-out
        samples, some at a time: numbers, class codes, and the model's shared scores.

        The model has the party's class prior. Where exact counts do not leave the party
        in clear, nothing of its own training samples is in it. Of results in a secure
        sum nobody sees the party's own: they need no consent, but with a budget, whose
        guarantee does not cover them.
        """
        options = self.options
        in_clear = self._admitted != SECURE
        if (
            options.budget is not None or (options.secure and in_clear)
        ) and not options.evaluates:
            text = (
                "policy evaluate off: results on its own samples do not leave this "
                "party"
            )
            raise PrivacyError("policy evaluate", got="off", text=text)
        if self._admitted not in (RESULTS, SECURE):
            raise PrivacyError("samples", RESULTS, self._admitted)
        is_open = not options.secure and options.budget is None and in_clear
        if is_open:
            mine = self._personalized(run, model)
        else:
            mine = model
        own = options.class_prior and is_open and run.is_plain
        scores = partial(mine.shared_scores, n_jobs=options.n_jobs)
        if options.budget is None:
            return mine, own, self._tried(run, scores)
        self._prepare(run)
        return (
            mine,
            own,
            (
                part
                for _, parts in self._parts(run, scores, held_out=True)
                for part in parts
            ),
        )

    def _tried(
        self, run: RunSpec, scores: Callable[[Any], npt.NDArray[Any]]
    ) -> Iterator[Fitting]:
        """Held-out samples of a party without a budget, refused as a whole if one does
        not fit.
        """
        samples = self._held()
        if samples.X_test is None or samples.y_test is None:
            return
        X, true = self._complete(run, Samples(samples.X_test, samples.y_test))
        for rows in batches(len(true), max(1, _SCORES // max(run.n_classes, 256))):
            yield X[rows], true[rows], scores(X[rows])

    def _personalized(self, run: RunSpec, model: Model) -> Model:
        """The model with the party's class frequencies, if it has samples."""
        if (
            self.options.budget is not None
            or run.mechanism is not None
            or not self.options.class_prior
        ):
            return model
        try:
            _, codes = self._complete(run, self._held())
            if len(codes):
                return replace(model, prior=own_prior(model, codes))
            return model
        except Exception as error:
            # ours are in the log by their refusal
            if isinstance(error, FlyNNError):
                cause = None
            else:
                cause = error
            log.warning(
                "FlyNN: the model is used without what is the party's own in it",
                exc_info=cause,
            )
            return model

    def keep(self, run: RunSpec, model: Model) -> str:
        """Give the model, personalized, to `on_model`, and return "" or the reason why
        that failed.
        """
        on_model = self.options.on_model
        if on_model is None:
            return ""
        try:
            from flwr_flynn.model.classifier import FlyNNClassifier

            on_model(
                FlyNNClassifier.from_model(
                    self._personalized(run, model), class_weight=run.class_weight
                )
            )
        except Exception as error:
            log.error("FlyNN: on_model failed", exc_info=error)
            # Of an OSError what the system calls it: the rest of its text names a file.
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
        """Refuse a run without names for columns that have some: their positions may
        differ between parties.
        """
        names = self._names
        if is_named and not (names.is_named if isinstance(names, Schema) else names):
            expected = (
                "names, as the columns here have them; or learn_schema "
                "(run-config schema: learn)"
            )
            raise DataError("feature_names", expected, "none")

    def _prepared(self, source: Any) -> Samples:
        """Samples as the request asks for them."""
        samples = self._loaded(source)
        self._check_named(bool(samples.names) or has_names(samples.X))
        return prepared(
            samples, self._names, isinstance(source, Samples), self.check_memory
        )

    def _loaded(self, source: Any) -> Samples:
        """Samples as they were given, or loaded by the names of the request."""
        self._touched = True
        if callable(source):
            samples = source(self._names)
        else:
            samples = source
        if not isinstance(samples, Samples):
            raise ConfigError(
                "load", "Samples at a party without a budget", type(samples).__name__
            )
        return samples
