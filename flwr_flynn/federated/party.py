"""A party without any transport: its answers to the server's requests.

An answer that cannot be given is a refusal with a reason, which holds no value of the
data.

Answers, by the party's options (rows) and what a request discloses (columns):

=======  ===============  =================  =========================  ==============
option   exact            noisy              secure                     held-out rows
=======  ===============  =================  =========================  ==============
none     yes              refused            yes                        yes
budget   refused          within the policy  with noise, in the policy  if `evaluates`
secure   refused          refused            yes                        if `evaluates`
leaves   withdrawal only  withdrawal only    withdrawal only, no noise  refused
=======  ===============  =================  =========================  ==============

Results in a secure sum are answered like other secure sums, but with a budget only if
the party `evaluates`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.permissions import Disclosure, SentArray, n_bytes
from flwr_flynn.federated.permissions import PartyOptions as PartyOptions
from flwr_flynn.federated.protocol import (
    EXACT,
    MEMBER,
    NOTHING,
    PARTY,
    PHASE,
    REFUSED,
    SECONDS,
    SECURE,
    Answer,
    Config,
    Scalar,
)
from flwr_flynn.federated.request import Request, request_of
from flwr_flynn.federated.run_spec import announced_names
from flwr_flynn.federated.sample_access import SampleAccess, log
from flwr_flynn.federated.samples import Samples as Samples


class Party(SampleAccess):
    """A party's samples and its answers; `SampleAccess` has the parameters."""

    # the time, where samples are loaded for an answer before it is asked for
    since: float | None = None

    def answer(
        self,
        entries: Mapping[str, Any],
        arrays: Sequence[Array] = (),
        channel: str | None = None,
    ) -> Answer:
        """The answer to a request as it arrived; a refusal is an answer, too.

        The channel must be that of the phase: mods of a ClientApp, SecAgg+ among them,
        look at one of the two alone.
        """
        start = time.monotonic()
        what = "the request"
        request = None
        with self._fixed_time():
            try:
                self._touched = False
                config = Config(entries)
                kind = request_of(entries)
                what = f"phase {kind.phase}"
                if channel not in (None, expected := kind.channel):
                    raise PayloadError(
                        "channel", f"{expected} for phase {kind.phase}", channel
                    )
                names = announced_names(config) or ()
                if names != self._names:
                    self._samples = None  # loaded, or encoded, by other names
                self._names = names
                request = kind.from_config(config, arrays, self)
                request.admit(self.options)
                self._admitted = request.discloses
                answer = request.compute(self)
            except Exception as error:  # noqa: BLE001 - its text may hold anything, see `reason`
                answer = Answer(metrics={REFUSED: self.reason(what, error)})
            finally:
                discloses = self._admitted
                self._admitted = NOTHING
            # Time tells something of the samples, which noisy counts hide.
            if discloses == EXACT and REFUSED not in answer.metrics:
                answer.metrics[SECONDS] = time.monotonic() - start
            return self._recorded(answer, entries, channel, request)

    def decline(self, reason: str, entries: Mapping[str, Any], channel: str) -> Answer:
        """The refusal of a request that is not looked at, for a reason without data."""
        with self._fixed_time():
            return self._recorded(Answer(metrics={REFUSED: reason}), entries, channel)

    def _recorded(
        self,
        answer: Answer,
        entries: Mapping[str, Any],
        channel: str | None,
        request: Request[Any] | None = None,
    ) -> Answer:
        """The answer with the party's name, if it has one; a refusal where `on_answer`
        fails to record it.
        """
        name = self.options.name
        record = self.options.on_answer
        if name is not None:
            answer.metrics[PARTY] = name
        if (
            self.options.member
            and request is not None
            and request.proves
            and REFUSED not in answer.metrics
        ):
            answer.metrics[MEMBER] = self.options.member
        try:
            if record is not None:
                record(_disclosure(answer, entries, channel, request))
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing leaves without a record
            log.error(
                "FlyNN: the answer stays here, as on_answer failed", exc_info=error
            )
            refusal: dict[str, Scalar] = {
                REFUSED: "the record of what leaves this party cannot be written"
            }
            return Answer(metrics=refusal if name is None else {**refusal, PARTY: name})
        return answer

    @contextmanager
    def _fixed_time(self) -> Iterator[None]:
        start = self.since or time.monotonic()
        self.since = None
        try:
            yield
        finally:
            if self.options.budget is not None and self.options.response_seconds:
                rest = self.options.response_seconds - (time.monotonic() - start)
                if rest > 0:
                    time.sleep(rest)
                else:
                    log.warning(
                        "FlyNN: an answer took %.2f s longer than response-seconds: "
                        "its time shows",
                        -rest,
                    )


def _disclosure(
    answer: Answer,
    entries: Mapping[str, Any],
    channel: str | None,
    request: Request[Any] | None,
) -> Disclosure:
    """The record of an answer, as it is about to leave."""
    # others tell nothing
    told = None
    if answer.arrays:
        told = request
    if told is None or answer.statistic is None:
        contents = []
    else:
        contents = told.contents
    names = [content.fields for content in contents] or [("",)] * len(answer.arrays)
    tensors = codec.write_tensors(answer.arrays)
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor)
    rows = zip(names, answer.arrays, tensors, strict=True)
    arrays = tuple(
        SentArray(fields, array.shape, array.dtype.name, len(tensor))
        for fields, array, tensor in rows
    )
    others = {name: n_bytes({name: value}) for name, value in answer.metrics.items()}
    if told is None:
        kind = NOTHING
    else:
        kind = told.discloses
    return Disclosure(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        phase=clean(entries.get(PHASE), 64),
        channel=channel or ("" if request is None else request.channel),
        kind=kind,
        refused=clean(answer.metrics[REFUSED], 1000)
        if REFUSED in answer.metrics
        else None,
        examples=answer.n_examples,
        arrays=arrays,
        entries=others,
        bytes=sum(each.bytes for each in arrays) + sum(others.values()),
        # masks come on top
        sha256=digest.hexdigest() if arrays and kind != SECURE else None,
        change=None
        if told is None or answer.statistic is None
        else told.change(answer.statistic),
    )
