"""A party without any transport: its answers to the server's requests.

An answer that cannot be given is a refusal with a reason, which holds no value of the
data.

Answers, by the party's options (rows) and what a request discloses (columns):

=======  ===============  =================  =========================  ==============
option   exact            noisy              secure                     results
=======  ===============  =================  =========================  ==============
none     yes              refused            yes                        yes
budget   refused          within the policy  with noise, in the policy  if `evaluates`
secure   refused          refused            yes                        if `evaluates`
leaves   withdrawal only  withdrawal only    withdrawal only, no noise  refused
=======  ===============  =================  =========================  ==============

Results are of held-out samples; without `budget` and `secure`, or in a secure sum, also of
training samples, by the model without the party. In a secure sum they are answered like
other secure sums, but with a budget only if the party `evaluates`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import numpy as np

from flwr_flynn._validation import freeze
from flwr_flynn.errors import PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Content, Disclosure, SentArray, n_bytes
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.loader import Load, Loader
from flwr_flynn.federated.party_options import Asked, decide
from flwr_flynn.federated.party_options import PartyOptions as PartyOptions
from flwr_flynn.federated.private_rows import STOPS, RowReader
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
    Scalars,
)
from flwr_flynn.federated.request import Request, kind_of
from flwr_flynn.federated.samples import Samples as Samples
from flwr_flynn.federated.views import (
    Mask,
    PrivateView,
    View,
    no_mask,
    reason_of,
    without_samples,
)


@dataclass(frozen=True)
class Party:
    """A party's samples and its answers. No answer changes anything but the ledger.

    Parameters
    ----------
    source : Samples, RowReader or callable
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
    since : float, optional
        The time from which an answer counts, for a party that is made for one answer.
    unready : str, default=""
        A reason without data by which all requests are declined.
    """

    source: Samples | RowReader | Load
    options: PartyOptions = field(default_factory=PartyOptions)
    mask: Mask = no_mask
    since: float | None = None
    unready: str = ""
    loader: Loader = field(init=False, repr=False)

    def __post_init__(self) -> None:
        freeze(self, loader=Loader(self.source))
        if self.options.response_seconds and self.options.on_model is not None:
            # Imported here, and not in the time that an answer takes.
            import_module("flwr_flynn.model.classifier")

    def answer(
        self,
        entries: Entries,
        arrays: Sequence[Any] = (),
        channel: str | None = None,
    ) -> Answer:
        """The answer to a request as it arrived; a refusal is an answer, too.

        Arrays may be Flower's tensors.

        The channel must be that of the phase: mods of a ClientApp, SecAgg+ among them,
        look at one of the two alone.
        """
        if self.unready:
            return self.decline(self.unready, entries, channel)
        start = time.monotonic()
        what = "the request"
        request: Request[Any] | None = None
        view: View | None = None
        with self._fixed_time():
            try:
                with without_samples():
                    kind = kind_of(entries)
                    what = f"phase {kind.phase}"
                    if channel is not None and channel != kind.channel:
                        expected = f"{kind.channel} for phase {kind.phase}"
                        raise PayloadError("channel", expected, channel)
                    config = Config(entries, kind.entries)
                    if len(arrays) > kind.n_arrays:
                        expected = f"at most {kind.n_arrays}"
                        raise PayloadError("arrays", expected, len(arrays))
                    if not all(isinstance(array, np.ndarray) for array in arrays):
                        arrays = codec.read_tensors(arrays)
                    request = kind.from_config(config, arrays, self.options)
                    view = self._granted(request)
                answer = request.answer(view)
            except STOPS:
                raise
            except BaseException as error:  # noqa: BLE001 - see `reason_of`
                hides = self.options.keeps_exact
                if view is not None:
                    hides = view.hides
                answer = Answer(metrics={REFUSED: reason_of(what, error, hides)})
            # Time tells something of the samples, which noisy counts hide.
            is_exact = view is not None and view.discloses == EXACT
            if is_exact and REFUSED not in answer.metrics:
                answer.metrics[SECONDS] = time.monotonic() - start
            return self._recorded(answer, entries, channel, request)

    def _granted(self, request: Request[Any]) -> View:
        """The view of the samples for a request, if the party answers it."""
        discloses = request.discloses
        asked = Asked(discloses, request.phase, request.stays, request.consent)
        decide(self.options, asked)
        if discloses == SECURE:
            self.mask(request.bound or 0, None)  # no mask is for a bound of 0
        if discloses != NOTHING:
            self.options.check_memory(*request.layout.memory)
        view = View
        if self.options.budget is not None:
            view = PrivateView
        features = request.features
        return view(self.loader, self.options, discloses, features, self.mask)

    def decline(self, reason: str, entries: Entries, channel: str | None) -> Answer:
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
        named: Scalars = {}
        record = self.options.on_answer
        discloses = NOTHING
        contents: Sequence[Content] = ()
        if self.options.name is not None:
            named[PARTY] = self.options.name
        answer.metrics.update(named)
        if request is not None and REFUSED not in answer.metrics:
            if request.proves and self.options.member:
                answer.metrics[MEMBER] = self.options.member
            # An answer without arrays tells nothing.
            if answer.arrays:
                discloses = request.discloses
                contents = request.layout.contents
        if channel is None and request is not None:
            channel = request.channel
        try:
            if record is not None:
                record(_disclosure(answer, entries, channel, discloses, contents))
        except Exception as error:
            log.error(
                "FlyNN: the answer stays here, as on_answer failed", exc_info=error
            )
            reason = "the record of this party's answers cannot be written"
            return Answer(metrics={REFUSED: reason, **named})
        return answer

    @contextmanager
    def _fixed_time(self) -> Iterator[None]:
        start = self.since or time.monotonic()
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
    kind: str,
    contents: Sequence[Content],
) -> Disclosure:
    """The record of an answer, as it is about to leave."""
    names = [content.fields for content in contents]
    if len(names) != len(answer.arrays):  # an app of one's own may send others
        names = [("",)] * len(answer.arrays)
    sent = []
    sha256 = hashlib.sha256()
    tensors = codec.write_tensors(answer.arrays)
    for fields, array, tensor in zip(names, answer.arrays, tensors, strict=True):
        sha256.update(tensor)
        sent.append(SentArray(fields, array.shape, array.dtype.name, len(tensor)))
    digest = None
    if sent and kind != SECURE:  # masks come on top of the arrays
        digest = sha256.hexdigest()
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
        arrays=tuple(sent),
        entries=sizes,
        bytes=sum(map(len, tensors)) + sum(sizes.values()),
        sha256=digest,
        change=answer.change,
    )
