"""A party without any transport: its answers to the server's requests.

An answer that cannot be given is a refusal with a reason, which holds no value of the data.

Answers, by the party's options (rows) and what a request discloses (columns):

================  ==================  ===================  ===========================  ======================
option            exact               noisy                secure                       results on held-out
================  ==================  ===================  ===========================  ======================
none              yes                 refused              yes                          yes
budget            refused             within the policy    with noise, in the policy    if `evaluates`
secure            refused             refused              yes                          if `evaluates`
leaves            withdrawal only     withdrawal only      withdrawal only, no noise    refused
================  ==================  ===================  ===========================  ======================

Results in a secure sum are answered like other secure sums, but with a budget only if the party `evaluates`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.permissions import PartyOptions as PartyOptions
from flwr_flynn.federated.permissions import SampleAccess, log
from flwr_flynn.federated.permissions import Samples as Samples
from flwr_flynn.federated.protocol import EXACT, NOTHING, PARTY, REFUSED, SECONDS, Answer, Array, Config
from flwr_flynn.federated.request import request_of
from flwr_flynn.federated.run_spec import announced_names


class Party(SampleAccess):
    """A party's samples and its answers; `SampleAccess` has the parameters."""

    def answer(self, entries: Mapping[str, Any], arrays: Sequence[Array] = (), channel: str | None = None) -> Answer:
        """The answer to a request as it arrived; a refusal is an answer, too.

        The channel must be that of the phase: mods of a ClientApp, SecAgg+ among them, look at one of the two alone.
        """
        start, what = time.monotonic(), "the request"
        with self._fixed_time():
            try:
                self._touched = False
                config, kind = Config(entries), request_of(entries)
                what = f"phase {kind.phase}"
                if channel not in (None, expected := kind.channel_of(entries)):
                    raise PayloadError("channel", f"{expected} for phase {kind.phase}", channel)
                names = announced_names(config) or ()
                if names != self._names:
                    self._samples = None  # loaded, or encoded, by other names
                self._names = names
                request = kind.from_config(config, arrays, self)
                self._admit(request.phase, request.discloses, request.is_withdrawal)
                answer = request.compute(self)
            except Exception as error:  # noqa: BLE001 - its text may hold anything, see `reason`
                answer = Answer(metrics={REFUSED: self.reason(what, error)})
            finally:
                discloses, self._admitted, self._own = self._admitted, NOTHING, None
            self.signed(answer)
            # Time tells something of the samples, which noisy counts hide.
            if discloses == EXACT and REFUSED not in answer.metrics:
                answer.metrics[SECONDS] = time.monotonic() - start
            return answer

    def signed(self, answer: Answer) -> Answer:
        """The answer with the party's name, if it has one."""
        if self.options.name is not None:
            answer.metrics[PARTY] = self.options.name
        return answer

    @contextmanager
    def _fixed_time(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            if self.options.budget is not None and self.options.response_seconds:
                rest = self.options.response_seconds - (time.monotonic() - start)
                if rest > 0:
                    time.sleep(rest)
                else:
                    log.warning("FlyNN: an answer took %.2f s longer than response-seconds: its time shows", -rest)
