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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Disclosure, SentArray, n_bytes
from flwr_flynn.federated.party_options import PartyOptions as PartyOptions
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
    Entries,
    Scalar,
)
from flwr_flynn.federated.request import Request, request_of
from flwr_flynn.federated.run_spec import announced_names
from flwr_flynn.federated.sample_access import SampleAccess, log
from flwr_flynn.federated.samples import Samples as Samples


class Party(SampleAccess):
    """A party's samples and its answers; `SampleAccess` has the parameters."""

    since: float | None = None
    """The time, where samples are loaded for an answer before it is asked for."""

    def answer(
        self,
        entries: Entries,
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
                if channel is not None and channel != kind.channel:
                    expected = f"{kind.channel} for phase {kind.phase}"
                    raise PayloadError("channel", expected, channel)
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

    def decline(self, reason: str, entries: Entries, channel: str) -> Answer:
        """The refusal of a request that is not looked at, for a reason without data."""
        with self._fixed_time():
            return self._recorded(Answer(metrics={REFUSED: reason}), entries, channel)

    def _recorded(
        self,
        answer: Answer,
        entries: Entries,
        channel: str | None,
        request: Request[Any] | None = None,
    ) -> Answer:
        """The answer with the party's name, if it has one.

        It is a refusal where `on_answer` fails to record the answer.
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
            if name is not None:
                refusal[PARTY] = name
            return Answer(metrics=refusal)
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
    entries: Entries,
    channel: str | None,
    request: Request[Any] | None,
) -> Disclosure:
    """The record of an answer, as it is about to leave."""
    kind = NOTHING
    change = None
    names: list[tuple[str, ...]] = []
    # An answer without arrays tells nothing.
    if answer.arrays and request is not None:
        kind = request.discloses
        if answer.statistic is not None:
            names = [content.fields for content in request.contents]
            change = request.change(answer.statistic)
    arrays, digest = _sent_arrays(answer.arrays, names)
    if kind == SECURE:
        digest = None  # masks come on top of the arrays
    if channel is None and request is not None:
        channel = request.channel
    refused = None
    if REFUSED in answer.metrics:
        refused = clean(answer.metrics[REFUSED], 1000)
    sizes = {name: n_bytes({name: figure}) for name, figure in answer.metrics.items()}
    return Disclosure(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        phase=clean(entries.get(PHASE), 64),
        channel=channel or "",
        kind=kind,
        refused=refused,
        examples=answer.n_examples,
        arrays=arrays,
        entries=sizes,
        bytes=sum(array.bytes for array in arrays) + sum(sizes.values()),
        sha256=digest,
        change=change,
    )


def _sent_arrays(
    arrays: Sequence[Array], names: Sequence[tuple[str, ...]]
) -> tuple[tuple[SentArray, ...], str | None]:
    """Arrays with the names of their fields, and the SHA-256 of all of their bytes.

    It is None without arrays.
    """
    if not arrays:
        return (), None
    sent = []
    digest = hashlib.sha256()
    unnamed = [("",)] * len(arrays)
    tensors = codec.write_tensors(arrays)
    for fields, array, tensor in zip(names or unnamed, arrays, tensors, strict=True):
        digest.update(tensor)
        sent.append(SentArray(fields, array.shape, array.dtype.name, len(tensor)))
    return tuple(sent), digest.hexdigest()
