"""Views of a party's samples, each granted for one request.

A view has no field that an answer changes. Samples are reached through it alone, and by
`own_copy` for the copy of the model that stays there. No text of an error holds a value
of the data.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flwr_flynn._types import Array, Integers
from flwr_flynn.errors import FlyNNError, PrivacyError, full_text
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.loader import Loader, Withheld, check_named, withholding
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.private_rows import Fitting, check_columns, fitting
from flwr_flynn.federated.protocol import EXACT, NOISY, RESULTS, SECURE
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import Features, Samples, labelled
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import FlyHash, add_counts
from flwr_flynn.model.class_means import add_mirrored, both_bits
from flwr_flynn.model.column_sums import moments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy import Mechanism, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget

SCORES = 2**20
"""Class scores held at a time, 8 MiB, some times over; and the hashes of at most 2**12
samples."""

CodesOf = Callable[[Any], Codes]
Mask = Callable[[int, Mechanism | None], None]


def progress(total: int = 0) -> Callable[[int], None]:
    """A function that takes numbers of samples just hashed.

    It logs their sum on this machine, every ten seconds.
    """
    done = 0
    last = time.monotonic()

    def hashed(n_samples: int) -> None:
        nonlocal done, last
        done += n_samples
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


def _no_private_counts() -> PrivacyError:
    """The refusal of a party that gives none."""
    text = "policy max-epsilon not set: this party gives no private counts"
    return PrivacyError("policy max-epsilon", got="not set", text=text)


@contextmanager
def without_samples() -> Iterator[list[str]]:
    """Mark errors of the block, which looks at no sample: their text may leave.

    From the first entry of the list on it does.
    """
    looks: list[str] = []
    try:
        yield looks
    except FlyNNError as error:
        error.is_public = not looks and not isinstance(error, Withheld)
        raise


@dataclass(frozen=True)
class View:
    """The samples of a party, as one request that it answers may see them.

    Parameters
    ----------
    loader : Loader
    options : PartyOptions
    discloses : str
        Kind of disclosure that the party allows, see `protocol`.
    features : tuple of str or Schema
        Those of the request.
    mask : callable
        See `party.Party`.
    """

    loader: Loader
    options: PartyOptions
    discloses: str
    features: Features
    mask: Mask

    @property
    def hides(self) -> bool:
        """True where an error after a look at samples may not leave."""
        return self.options.keeps_exact or self.discloses == SECURE

    @property
    def shows_training(self) -> bool:
        """True if figures of training samples may leave with those of held-out ones.

        They stay at a party with a budget, and one whose exact figures leave in secure
        sums alone shows them there.
        """
        stays = self.options.secure and self.discloses != SECURE
        return self.options.budget is None and not stays

    def labelled(self, codes_of: CodesOf, n_features: int) -> tuple[Array, Codes]:
        """Training samples in a form that can be sliced, and the codes of their labels."""
        kinds = [EXACT, SECURE]
        if self.shows_training:
            kinds.append(RESULTS)
        self.require(*kinds)
        return labelled(self._samples, codes_of, n_features, self.features)

    @property
    def _samples(self) -> Samples:
        return self.loader.samples(self.features, self.options.check_memory)

    def samples_of(self, run: RunSpec) -> tuple[Array, Codes]:
        """Training samples that the run's hashes take, and the codes of their labels."""
        X, codes = self.labelled(run.codes, run.spec.n_features)
        return run.without_gaps(X, codes)

    def release(self, run: RunSpec, recall: bool = False) -> ClassCounts:
        """Noisy counts, within the party's policy. No sample decides a refusal."""
        array, mechanism = self._released(run, "counts", recall)
        return mechanism.received(array, run.hasher.fingerprint)

    def release_sums(self, run: RunSpec) -> Integers:
        """Noisy sums of the columns, likewise."""
        array, _ = self._released(run, "columns")
        return array

    def _released(
        self, run: RunSpec, part: str, recall: bool = False
    ) -> tuple[Integers, Mechanism]:
        """Noisy integers of a part of the run's mechanism, and the mechanism.

        A party without a budget gives none.
        """
        with without_samples():
            raise _no_private_counts()

    def held_out_batches(
        self, run: RunSpec, scores: Callable[[Array], Array]
    ) -> Iterator[Fitting]:
        """Held-out samples, which are refused as a whole if one does not fit."""
        X, true = self.held_out_samples(run)
        for rows in batches(len(true), max(1, SCORES // max(run.n_classes, 256))):
            yield X[rows], true[rows], scores(X[rows])

    def _complete(self, run: RunSpec, samples: Samples) -> tuple[Array, Codes]:
        """Samples that the run's hashes take, and the codes of their labels."""
        X, codes = labelled(samples, run.codes, run.spec.n_features, self.features)
        return run.without_gaps(X, codes)

    def own_samples(self, run: RunSpec) -> tuple[Array, Codes]:
        """Training samples as by `samples_of`, for a use that tells nothing of them."""
        return self._complete(run, self._samples)

    def held_out_samples(self, run: RunSpec) -> tuple[Array, Codes]:
        """Held-out samples that the run's hashes take, and the codes of their labels."""
        samples = self._samples
        if samples.X_test is None or samples.y_test is None:
            return np.empty((0, run.spec.n_features)), np.empty(0, np.int64)
        return self._complete(run, Samples(samples.X_test, samples.y_test))

    def require(self, *kinds: str) -> None:
        """Raise a `PrivacyError` unless the party allows one of these disclosures."""
        is_private = self.options.budget is not None and EXACT in kinds
        if is_private or self.discloses not in kinds:
            with without_samples():
                raise PrivacyError("samples", kinds[0], self.discloses)


class PrivateView(View):
    """The rows of a party with a budget, each read by itself."""

    def _released(
        self, run: RunSpec, part: str, recall: bool = False
    ) -> tuple[Integers, Mechanism]:
        """Noisy integers of a part of the run's mechanism, and the mechanism.

        All that can be refused is refused before the ledger charges the request, and it
        is charged before any sample is looked at; what follows is a fold over rows that
        cannot fail, see `private_rows`.
        """
        with without_samples() as looks:

            def measure() -> Integers:
                looks.append("rows")
                if part == "columns":
                    return mechanism.released_sums(self._summed(run, mechanism))
                return mechanism.noisy(self._counted(run, mechanism))

            budget, mechanism, digest = self._before_release(run, recall)
            fingerprint = run.hasher.fingerprint
            if recall:
                return budget.recall(mechanism, fingerprint, terms=digest), mechanism
            released = budget.release(
                mechanism,
                fingerprint,
                measure,
                terms=digest,
                part=part,
                prepare=partial(self._prepare, run),
            )
        if released.repeated:
            log.info(
                "FlyNN: this request was answered before; the same answer again "
                "spends nothing"
            )
        return released.array, mechanism

    def _before_release(
        self, run: RunSpec, recall: bool
    ) -> tuple[Budget, Mechanism, str]:
        """Ledger, mechanism and digest of the terms for a noisy answer.

        All that needs no sample is checked before.
        """
        budget = self.options.budget
        mechanism = run.mechanism
        kinds = [NOISY, SECURE]
        if recall:  # nothing leaves that has not left before
            kinds.append(RESULTS)
        if budget is None or mechanism is None or self.discloses not in kinds:
            raise _no_private_counts()
        budget.policy.check(mechanism)
        if self.discloses == SECURE:
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
        rows = self.loader.rows
        check_named(rows.names is not None, self.features)
        check_columns(rows, self.features, run.spec.n_features)
        for hasher in run.hashers:
            hasher.active(np.zeros((1, hasher.n_features)))

    def _counted(self, run: RunSpec, mechanism: Mechanism) -> Integers:
        """The party's counts without noise, (L, m), of the rows that fit."""
        hasher = run.hasher
        array = np.zeros((run.n_classes, run.spec.hash_dim), np.int64)
        bits: Callable[..., Array] = FlyHash.active
        add: Callable[..., None] = add_counts
        if mechanism.mirrored:
            bits = both_bits
            add = add_mirrored
        self._fold(
            run,
            partial(bits, hasher, n_jobs=self.options.n_jobs),
            partial(add, array),
        )
        return array

    def _summed(self, run: RunSpec, mechanism: Mechanism) -> Integers:
        """The sums of the columns without noise, (n_moments, d), likewise."""
        sums = np.zeros((mechanism.n_moments, run.spec.n_features), np.int64)

        def add(_codes: Codes, values: Integers) -> None:
            np.add(sums, values.sum(axis=0), out=sums)

        of = partial(moments, spec=run.spec, n_moments=mechanism.n_moments)
        self._fold(run, of, add)
        return sums

    def _fold(
        self,
        run: RunSpec,
        of: Callable[[Array], Array],
        add: Callable[[Codes, Array], None],
    ) -> None:
        """Add a function of the rows that fit, chunk by chunk."""
        n_rows = 0
        n_fitting = 0
        hashed = progress()
        for n, chunks in self._chunks(run, of):
            n_rows += n
            hashed(n)
            for _, codes, values in chunks:
                n_fitting += len(codes)
                add(codes, values)
        if n_rows > n_fitting:
            log.warning(
                "FlyNN: %s of %s samples do not fit, and are left out",
                n_rows - n_fitting,
                n_rows,
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
        with withholding("counting failed at this party"):
            yield from fitting(
                self.loader.rows,
                run.hashers,
                run.classes,
                self.features,
                self.options.memory_limit,
                held_out=held_out,
                of=of,
            )

    def held_out_batches(
        self, run: RunSpec, scores: Callable[[Array], Array]
    ) -> Iterator[Fitting]:
        """Held-out samples that fit."""
        with without_samples():
            self._prepare(run)
        for _, chunks in self._chunks(run, scores, held_out=True):
            yield from chunks


def reason_of(what: str, error: BaseException, hides: bool) -> str:
    """The reason of a refusal as the server gets it.

    It is the text of our own errors, which hold no data, and the kind of others. Where
    exact figures stay at home, an error that is not public gives no reason: one sample
    may decide it.
    """
    if isinstance(error, FlyNNError):
        log.warning("FlyNN: %s refused: %s", what, full_text(error))
        if error.is_public or not hides:
            return str(error)
        return f"{what} failed at this party"
    log.error("FlyNN: %s failed", what, exc_info=error)
    if hides:
        return f"{what} failed at this party"
    return f"failed with {type(error).__name__}"
