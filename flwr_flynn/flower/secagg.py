"""Exact integer sums through Flower's SecAgg+: the server sees the sum of all vectors, and nobody's own.

Flower's SecAgg+ is made for floating-point updates: it clips, rounds at random and weights. With a weight of 1 for all
and a quantisation step of exactly 1, none of that touches integers of at most `bound` in size. They travel shifted by
`bound`, as 0 to 2 * bound. `bound` is a public power of two; a party with larger counts refuses. The sum of N parties
is exact if ``N * 2 * bound < 2 ** 32``.

It protects against a server that follows the protocol, and no other: Flower's masks come from a 32-bit seed of a
generator that is not cryptographic, and the server hands out the parties' public keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import ERROR
from typing import Any, cast

from flwr.app import Context, Message, MessageType
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid

from flwr_flynn.errors import ConfigError, FlyNNError, PayloadError
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.run_spec import (
    LARGEST_BOUND,
    LEAST_PARTIES,
    MODULUS,
    RunSpec,
    Secure,
    bound_for,
    check_bound,
    room,
)
from flwr_flynn.flower.compat import Workflow
from flwr_flynn.flower.compat import recorddict_compat as compat
from flwr_flynn.flower.secagg_checks import Replies

_LEAST_THRESHOLD = 0.67
_SETUP = (
    *(Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD),
    *(Key.TARGET_RANGE, Key.MOD_RANGE, Key.CLIPPING_RANGE, Key.MAX_WEIGHT),
)
_SET_ASIDE = "set aside: the secure sum of its round came to nothing"

_masked: ContextVar[tuple[int, int] | None] = ContextVar("flynn_masked", default=None)
"""While a party counts for a secure sum: SecAgg+'s clipping bound and threshold."""


def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower's `secaggplus_mod` for requests of a secure sum; all others pass.

    ``ClientApp(client_fn=client_fn, mods=[secagg.mod])`` refuses parameters by which the server could learn more than
    the sum. A party that refuses to count fails, and is left out of the sum.
    """
    records = message.content.config_records
    if message.metadata.message_type != MessageType.TRAIN or RECORD_KEY_CONFIGS not in records:
        return call_next(message, context)
    configs: dict[str, Any] = dict(records[RECORD_KEY_CONFIGS])
    if configs.get(Key.STAGE) == Stage.SETUP:
        check_setup(configs)
    elif configs.get(Key.STAGE) == Stage.UNMASK:
        # A party named twice would be asked about for both of its keys, which open its counts, or to fake a number.
        named = [node for key in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST) for node in configs.get(key, [])]
        if len(set(named)) < len(named):
            raise PayloadError("secure sum", "one key of each party to be asked for", "a party named twice")

    def count(request: Message, context: Context) -> Message:
        agreed = context.state.config_records[RECORD_KEY_STATE]  # Flower's, since the setup
        with masking(cast(int, agreed["target_range"]) // 2, cast(int, agreed["threshold"])):
            reply = call_next(request, context)
        metrics = compat.recorddict_to_fitres(reply.content, keep_input=True).metrics
        if REFUSED in metrics:
            raise FlyNNError(str(metrics[REFUSED]))
        return reply

    return secaggplus_mod(message, context, count)


def require_mask(run: RunSpec | Secure) -> None:
    """Refuse to hand over counts that nothing is going to mask, or that SecAgg+ was not set up for."""
    masked = _masked.get()
    if masked is None:
        raise PayloadError("secure sum", "a request by SecAgg+ through flwr_flynn.secagg.mod", "one in clear")
    bound, threshold = masked
    if bound != run.bound:
        raise PayloadError("secure sum", f"SecAgg+ with the announced bound, {run.bound}", bound)
    sharing = None if run.mechanism is None else run.mechanism.n_honest
    if sharing is not None and sharing > threshold:
        expected = f"noise of at most {threshold} parties together (n_honest), as no more are certain to be in the sum"
        raise PayloadError("secure sum", expected, sharing)


@contextmanager
def masking(bound: int, threshold: int) -> Iterator[None]:
    """Say that counts of the block are masked by SecAgg+ with this clipping bound and threshold."""
    token = _masked.set((bound, threshold))
    try:
        yield
    finally:
        _masked.reset(token)


def check_setup(configs: dict[str, Any]) -> None:
    """Refuse a server's parameters unless they make an exact sum of enough parties, with keys that few cannot open."""
    parties, shares, threshold = (configs.get(key) for key in (Key.SAMPLE_NUMBER, Key.SHARE_NUMBER, Key.THRESHOLD))
    clip, target, modulus = (configs.get(key) for key in (Key.CLIPPING_RANGE, Key.TARGET_RANGE, Key.MOD_RANGE))
    integers = all(type(number) is int for number in (parties, shares, threshold, target, modulus))
    if not integers or type(clip) is not float or configs.get(Key.MAX_WEIGHT) != 1.0:
        got = ", ".join(type(configs.get(name)).__name__ for name in _SETUP)
        raise PayloadError("secure sum", "SecAgg+ with integers, a float to clip at and a weight of 1", got)
    parties, shares, threshold, target = (cast(int, each) for each in (parties, shares, threshold, target))
    if parties < LEAST_PARTIES or shares < LEAST_PARTIES or 2 * threshold <= shares:
        expected = f"at least {LEAST_PARTIES} parties and shares, and a threshold above half of them"
        raise PayloadError("secure sum", expected, f"{parties}, {shares} and {threshold}")
    bound = target // 2
    power = bound_for(min(max(bound, 1), LARGEST_BOUND))
    if (modulus, clip, target, bound) != (MODULUS, bound, 2 * bound, power):
        got = f"clipping at {clip}, a target of {target} and modulus {modulus}"
        raise PayloadError("secure sum", "a step of 1, a bound that is a power of two and modulus 2**32", got)
    if parties > room(bound):
        raise PayloadError("secure sum", f"at most {room(bound)} parties", parties)


class _Protocol(SecAggPlusWorkflow):
    """SecAgg+ that goes on without parties that are lost before they are in the sum, and opens no sum of too few."""

    done = False

    def setup_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        return super().setup_stage(grid, context, state) and _without_the_lost(state)

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        return super().share_keys_stage(grid, context, state) and _without_the_lost(state)

    def collect_masked_vectors_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        # Masks of those who are lost from now on are in the others' counts, and taken off in the next stage.
        return super().collect_masked_vectors_stage(grid, context, state) and _are_enough(state)

    def unmask_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        self.done = super().unmask_stage(grid, context, state)
        return self.done


def _without_the_lost(state: WorkflowState) -> bool:
    """Go on as if the others had never been asked; else Flower asks for their keys later, which nobody has."""
    present = set(state.active_node_ids)
    state.sampled_node_ids = present
    state.nid_to_neighbours = {node: state.nid_to_neighbours[node] & present for node in present}
    return _are_enough(state)


def _are_enough(state: WorkflowState) -> bool:
    few = len(state.active_node_ids) < LEAST_PARTIES
    if few:
        log(ERROR, "FlyNN: too few parties for a secure sum, %s", len(state.active_node_ids))
    return not few


def workflow(bound: int, threshold: float, timeout: float) -> Workflow:
    """The fit workflow of a `DefaultWorkflow` that counts by a secure sum."""
    check_bound(bound)
    if isinstance(threshold, bool) or not _LEAST_THRESHOLD <= threshold <= 1:
        raise ConfigError("threshold", f"a number from {_LEAST_THRESHOLD} to 1", threshold)
    protocol = _Protocol(
        1.0,
        float(threshold),
        max_weight=1.0,
        clipping_range=float(bound),
        quantization_range=2 * bound,
        timeout=timeout or None,
    )

    def fit(grid: Grid, context: Context) -> None:
        strategy: Any = cast(LegacyContext, context).strategy
        own = getattr(strategy, "secure_bound", None)
        if own != bound:
            raise ConfigError("secure_bound", f"the workflow's {bound}", own)
        protocol.done = False
        replies = Replies(grid, lambda: (strategy.run.n_secure_entries,), strategy.note_failure)
        try:
            protocol(cast(Grid, replies), context)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a party sent, or did not
            log(ERROR, "FlyNN: the secure sum failed", exc_info=error)
        finally:
            # Flower tells a strategy nothing at all where the protocol ends early.
            if not protocol.done:
                for node in replies.asked - replies.lost:
                    strategy.note_failure(str(node), _SET_ASIDE)
                strategy.aggregate_fit(0, [], [])

    return fit
