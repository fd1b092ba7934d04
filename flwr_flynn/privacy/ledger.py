"""A party's ledger of its releases, bounded by its policy.

Releases from the same records add up. The ledger, a file of the party's own, keeps
every charge, which pays for one answer for each part of a mechanism, and the answers.
The same request again gets the same answer, which discloses nothing new; a part that
was never begun is answered within an equal charge; any other request counts against the
policy. A charge and the begin of an answer are on disk before samples are looked at, and
the answer is there before it is sent: a process that dies in between has spent all the
same, and the request again is a new one. While a ledger cannot be trusted, nothing is
released until the party resets it by hand::

    flwr-flynn show /var/lib/flynn/state
    flwr-flynn reset /var/lib/flynn/state

Costs add up by the account that the policy names when the ledger is made
(`privacy.release_policy`). Beside the file lie ``<path>.exists``, the marker,
``<path>.lock`` and ``<path>.secret``; their folder must last as long. By the marker, a
ledger that is lost, altered, or an older copy is detected.

Two things are not detected: older copies of the file *and* of the marker together (so
do not restore a backup: reset the ledger and lower the policy), and two ledgers for one
data file, each of which allows all of its policy.

>>> import tempfile
>>> from pathlib import Path
>>> from flwr_flynn import ClassCounts
>>> from flwr_flynn.privacy import LaplaceCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> laplace = LaplaceCounts(0.6, hash_nnz=2, n_classes=2)
>>> def measure():
...     return laplace.release(counts).array
>>> with tempfile.TemporaryDirectory() as folder:
...     budget = Budget(Path(folder, "state"), Policy(max_epsilon=1.0))
...     first = budget.release(laplace, counts.spec_fingerprint, measure)
...     again = budget.release(laplace, counts.spec_fingerprint, measure)
...     print((first.array == again.array).all(), again.repeated, budget.spent())
...     try:
...         budget.release(laplace, counts.spec_fingerprint, measure, terms="more")
...     except PrivacyError as error:
...         print(error)
True True (0.6, 0.0)
policy max-epsilon: this release would exceed it
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from flwr_flynn._types import Integers
from flwr_flynn._validation import one_of
from flwr_flynn.errors import PrivacyError
from flwr_flynn.privacy.ledger_files import (
    ANSWER,
    BEGIN_ANSWER,
    BEGIN_CHARGE,
    Charge,
    LedgerFiles,
    as_json,
)
from flwr_flynn.privacy.mechanism import Mechanism
from flwr_flynn.privacy.noise_mechanisms import mechanism_from_dict
from flwr_flynn.privacy.release_policy import Account, Policy

__all__ = ["Budget", "Policy", "Released"]


_FACTS = "SELECT composition, delta, data_path FROM ledger"
_EQUAL = "mechanism = :mechanism AND terms = :terms AND reading = :reading"
_ANSWERED = f"""SELECT sha256, array FROM answer JOIN charge ON charge = number
    WHERE {_EQUAL} AND part = :part AND fingerprint = :fingerprint AND sha256 != ''"""
_NOT_BEGUN = f"""SELECT number FROM charge
    WHERE {_EQUAL} AND number NOT IN (SELECT charge FROM answer WHERE part = :part)"""


@dataclass(frozen=True, eq=False)
class Released:
    """An answer from the ledger."""

    array: Integers
    repeated: bool


class Budget(LedgerFiles):
    """A party's ledger of releases.

    Parameters
    ----------
    path : path-like
        The party's own file, made at the first release. A file from before counts as a
        lost ledger; the folder of a ledger of 0.8 is carried over.
    policy : Policy
    data_path : path-like, optional
        The data file of the releases. A ledger that is made with a data file serves no
        other; one that is made without serves any. Two ledgers for one file spend
        twice, which is not detected.
    reading : str
        Digest of the settings by which the file is read: with another one a request is
        a new one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        policy: Policy,
        data_path: str | os.PathLike[str] | None = None,
        reading: str = "",
    ) -> None:
        super().__init__(path)
        self.policy = policy
        self.reading = reading
        self.data_path = None
        if data_path is not None:
            self.data_path = os.path.realpath(os.fspath(data_path))

    def release(
        self,
        mechanism: Mechanism,
        fingerprint: str,
        measure: Callable[[], Integers],
        *,
        terms: str = "",
        part: str = "counts",
        prepare: Callable[[], object] = lambda: None,
    ) -> Released:
        """Answer for one part of a mechanism: the earlier one if there is one, else a
        new one, in an equal charge where this part was never begun, or in a new charge.

        Request, policy, ledger and `prepare`, which looks at no sample, decide about a
        refusal; `measure`, which gives the noisy integers, is called after the charge.
        An earlier answer needs neither.

        Parameters
        ----------
        mechanism : Mechanism
        fingerprint : str
            Fingerprint of that which is measured, such as that of a hash.
        measure : callable
        terms : str
            Digest of the request's other terms.
        part : str
            One of the mechanism's parts.
        prepare : callable
        """
        one_of("part", part, mechanism.parts)
        request = self._request(mechanism, fingerprint, terms, part)
        with self._used():
            # A share of noise is drawn anew for each sum: the difference of two sums of
            # different parties would not have enough noise if both had the same share.
            array = None
            if not mechanism.is_share:
                array = self._answer(request)
            if array is not None:
                return Released(array, True)
            self.policy.check(mechanism)
            numbers = self._rows(_NOT_BEGUN, **request)
            begin = [BEGIN_ANSWER]
            if not numbers:
                costs = [charge.cost for charge in self._charges()]
                request |= asdict(self.policy.admit(mechanism, costs))
                numbers = [(len(costs) + 1,)]
                begin = [BEGIN_CHARGE, BEGIN_ANSWER]
            mechanism.require_noise()
            prepare()
            request["number"] = numbers[0][0]
            self._write(*begin, **request)
            array = measure()
            stream = io.BytesIO()
            np.savez_compressed(stream, array=array)
            raw = stream.getvalue()
            sha256 = hashlib.sha256(raw).hexdigest()
            self._write(ANSWER, **request, array=raw, sha256=sha256)
            return Released(array, False)

    def recall(
        self,
        mechanism: Mechanism,
        fingerprint: str,
        *,
        terms: str = "",
        part: str = "counts",
    ) -> Integers:
        """Earlier answer for a request, which a party withdraws from a sum.

        There is never a new one.
        """
        if mechanism.is_share:
            # Two sums, one with the share and one without, would differ by little more
            # than the exact counts.
            text = (
                "a share of the noise goes into one secure sum only: it cannot be "
                "taken out of it"
            )
            raise PrivacyError("share", text=text)
        with self._used():
            array = self._answer(self._request(mechanism, fingerprint, terms, part))
        if array is None:
            text = "this request was never answered: there is nothing to take out"
            raise PrivacyError(
                "request", "one that was answered", "a new one", text=text
            )
        return array

    def spent(self) -> tuple[float, float]:
        """Epsilon and delta of all releases together, by the ledger's composition."""
        account, charges = self.account()
        return account.total([charge.cost for charge in charges])

    def account(self) -> tuple[Account, list[Charge]]:
        """The account of the ledger, and its charges."""
        with self._opened(self.policy.account, self.data_path):
            ((composition, delta, _),) = self._rows(_FACTS)
            if self.policy.composition == "zcdp":
                delta = self.policy.max_delta
            return Account(composition, delta), self._charges()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Open the ledger, unless it was made for a different account or data file, or
        an earlier release is one that the policy would not allow.
        """
        with self._opened(self.policy.account, self.data_path):
            self._check_use()
            yield

    def _check_use(self) -> None:
        ((mine, _, data_path),) = self._rows(_FACTS)
        if mine != self.policy.composition:
            asked = self.policy.composition
            text = (
                f"ledger {self.path.name}: its composition is {mine} until a "
                f"reset; the policy's is {asked}"
            )
            raise PrivacyError("policy composition", mine, asked, text=text)
        if data_path is not None and data_path != self.data_path:
            text = f"ledger {self.path.name}: belongs to another data file"
            error = PrivacyError("ledger", got="another data file", text=text)
            error.add_note(
                f"it was made for {data_path}; this is {self.data_path or 'not said'}"
            )
            raise error
        for charge in self._charges():
            try:
                earlier = mechanism_from_dict(json.loads(charge.mechanism))
                self.policy.check_strength(earlier)
            except (ValueError, RecursionError):
                why = (
                    ": an earlier release has a mechanism unknown to this version; "
                    "nothing is released until a reset"
                )
                raise self._trouble("mechanism", why) from None
            except PrivacyError as error:  # it was paid for by the weaker guarantee
                why = (
                    ": an earlier release protects less; nothing is released until "
                    f"it is reset ({error})"
                )
                raise self._trouble("weaker", why) from None

    def _request(
        self, mechanism: Mechanism, fingerprint: str, terms: str, part: str
    ) -> dict[str, object]:
        return {
            "mechanism": as_json(mechanism.to_dict()),
            "fingerprint": fingerprint,
            "terms": terms,
            "part": part,
            "reading": self.reading,
        }

    def _answer(self, request: Mapping[str, object]) -> Integers | None:
        """The array of an earlier answer; None if it was never written."""
        for sha256, raw in self._rows(_ANSWERED, **request):
            try:
                if hashlib.sha256(raw).hexdigest() != sha256:
                    raise ValueError
                with np.load(io.BytesIO(raw), allow_pickle=False) as file:
                    array: Integers
                    (array,) = file.values()
                return array
            except Exception:  # noqa: BLE001
                # Zipfile, its decompressors and NumPy's parser raise a dozen kinds.
                what = ": the stored release for this request is lost or altered"
                raise self._trouble("release", what) from None
        return None
