"""Exact integer sums through Flower's SecAgg+.

The server sees the sum of all vectors, and no single vector.

Flower's SecAgg+ is made for floating-point updates: it clips, rounds at random and
weights. With a weight of 1 for all and a quantisation step of exactly 1, integers of at
most `bound` in size are left as they are. They are sent with an offset of `bound`, as 0
to 2 * bound. `bound` is a public power of two; a party with larger counts refuses. The
sum of N parties is exact if ``N * 2 * bound < 2 ** 32``.

It protects against a server that follows the protocol, and against no other. Flower's
masks come from a 32-bit seed of a generator that is not cryptographic, and the server
distributes the public keys of the parties.

In Flower one reply that cannot be read ends the sum for all parties. Here a reply is
checked at each of the four stages before the protocol uses it, and a malformed one
costs its sender alone. Masked counts and shares of the right form can still be wrong,
and then spoil the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from logging import ERROR, WARNING
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Context, Error, Message, MessageType
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs

from flwr_flynn.errors import ConfigError, FlyNNError, PayloadError, clean
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import REFUSED, Entries, refusing
from flwr_flynn.federated.roster import NO_REPLY
from flwr_flynn.federated.secure_bound import (
    LEAST_PARTIES,
    MODULUS,
    check_bound,
    room,
)
from flwr_flynn.flower.records import GridProxy, Workflow
from flwr_flynn.flower.records import recorddict_compat as compat
from flwr_flynn.privacy import Mechanism

LEAST_THRESHOLD = 0.67
"""Share of the parties that must stay to the end of a secure sum, at least."""

_LONGEST = 2**12  # bytes of a public key, of an encrypted message or of a share
_SET_ASIDE = "set aside: the secure sum of its round failed"

_masked: ContextVar[tuple[int, int] | None] = ContextVar("flynn_masked", default=None)
"""Clipping bound and threshold of SecAgg+, while a party counts for a secure sum."""

# ---- at a party


def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower's `secaggplus_mod` for requests of a secure sum; other requests pass.

    ``ClientApp(client_fn=client_fn, mods=[secagg.mod])`` refuses parameters that would
    disclose more than the sum to the server. A party that declines to count fails, and
    is left out of the sum.
    """
    records = message.content.config_records
    if (
        message.metadata.message_type != MessageType.TRAIN
        or RECORD_KEY_CONFIGS not in records
    ):
        return call_next(message, context)
    configs = records[RECORD_KEY_CONFIGS]
    stage = configs.get(Key.STAGE)
    if stage == Stage.SETUP:
        check_setup(configs)
    elif stage == Stage.UNMASK:
        _check_unmasking(configs)

    def counting(request: Message, context: Context) -> Message:
        # What Flower keeps of the setup.
        agreed = context.state.config_records[RECORD_KEY_STATE]
        bound = cast(int, agreed["target_range"]) // 2
        with masking(bound, cast(int, agreed["threshold"])):
            reply = call_next(request, context)
        fitted = compat.recorddict_to_fitres(reply.content, keep_input=True)
        if REFUSED in fitted.metrics:
            raise FlyNNError(str(fitted.metrics[REFUSED]))
        return reply

    try:
        return secaggplus_mod(message, context, counting)
    except FlyNNError as error:
        # A reply, since Flower would log an exception with its traceback.
        return Message(
            Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message
        )


def _check_unmasking(configs: Entries) -> None:
    """Refuse to tell two keys of a party, with which the server could open its counts."""
    nodes: list[int] = []
    for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST):
        nodes += configs.get(name, [])
    if len(set(nodes)) < len(nodes):
        raise PayloadError(
            "secure sum",
            "one key of each party to be asked for",
            "a party named twice",
        )


def require_mask(bound: int, mechanism: Mechanism | None = None) -> None:
    """Refuse to send counts without a mask, or with one that was set up for others."""
    masked = _masked.get()
    if masked is None:
        raise PayloadError(
            "secure sum",
            "a request by SecAgg+ through flwr_flynn.secagg.mod",
            "one in clear",
        )
    clipped, threshold = masked
    if clipped != bound:
        raise PayloadError(
            "secure sum", f"SecAgg+ with the announced bound, {bound}", clipped
        )
    if mechanism is not None:
        mechanism.check_sum(threshold)


@contextmanager
def masking(bound: int, threshold: int) -> Iterator[None]:
    """Declare that SecAgg+ masks the counts of the block, with a bound and a threshold."""
    token = _masked.set((bound, threshold))
    try:
        yield
    finally:
        _masked.reset(token)


def check_setup(configs: Entries) -> None:
    """Refuse a server's parameters that few parties could open, or of no exact sum.

    Few parties are fewer than the least number, and than half of those that share.
    """
    names = (
        Key.SAMPLE_NUMBER,
        Key.SHARE_NUMBER,
        Key.THRESHOLD,
        Key.TARGET_RANGE,
        Key.MOD_RANGE,
    )
    numbers: list[Any] = [configs.get(name) for name in names]
    clip = configs.get(Key.CLIPPING_RANGE)
    are_integers = all(type(number) is int for number in numbers)
    weight = configs.get(Key.MAX_WEIGHT)
    if not are_integers or type(clip) is not float or weight != 1.0:
        raise PayloadError(
            "secure sum",
            "SecAgg+ with integers, a float to clip at and a weight of 1",
            "others",
        )
    parties, shares, threshold, target, modulus = numbers
    if parties < LEAST_PARTIES or shares < LEAST_PARTIES or 2 * threshold <= shares:
        expected = (
            f"at least {LEAST_PARTIES} parties and shares, and a threshold "
            "above half of them"
        )
        raise PayloadError(
            "secure sum", expected, f"{parties}, {shares} and {threshold}"
        )
    bound = target // 2
    with refusing("secure sum"):
        check_bound(bound)
    if modulus != MODULUS or clip != bound or target != 2 * bound:
        got = f"clipping at {clip}, a target of {target} and modulus {modulus}"
        raise PayloadError(
            "secure sum",
            "a step of 1 and modulus 2**32",
            got,
        )
    if parties > room(bound):
        raise PayloadError("secure sum", f"at most {room(bound)} parties", parties)


# ---- at the server


class _Protocol(SecAggPlusWorkflow):
    """SecAgg+ that goes on without lost parties, and opens no sum of too few.

    It does so with parties that are lost before they are in the sum.
    """

    done = False

    def setup_stage(
        self, grid: Grid, context: LegacyContext, state: WorkflowState
    ) -> bool:
        return super().setup_stage(grid, context, state) and _without_lost(state)

    def share_keys_stage(
        self, grid: Grid, context: LegacyContext, state: WorkflowState
    ) -> bool:
        return super().share_keys_stage(grid, context, state) and _without_lost(state)

    def collect_masked_vectors_stage(
        self, grid: Grid, context: LegacyContext, state: WorkflowState
    ) -> bool:
        # From now on the counts of the others carry the masks of lost parties, which
        # the next stage removes.
        is_done = super().collect_masked_vectors_stage(grid, context, state)
        return is_done and _are_enough(state)

    def unmask_stage(
        self, grid: Grid, context: LegacyContext, state: WorkflowState
    ) -> bool:
        self.done = super().unmask_stage(grid, context, state)
        return self.done


def _without_lost(state: WorkflowState) -> bool:
    """Go on as if lost parties had never been asked.

    Else Flower asks later for their keys, which nobody has.
    """
    present = set(state.active_node_ids)
    state.sampled_node_ids = present
    state.nid_to_neighbours = {
        node: state.nid_to_neighbours[node] & present for node in present
    }
    return _are_enough(state)


def _are_enough(state: WorkflowState) -> bool:
    n_parties = len(state.active_node_ids)
    if n_parties >= max(LEAST_PARTIES, state.threshold):
        return True
    log(ERROR, "FlyNN: too few parties for a secure sum, %s", n_parties)
    return False


def workflow(bound: int, threshold: float, timeout: float) -> Workflow:
    """The fit workflow for a `DefaultWorkflow` that counts by a secure sum.

    `threshold` is the least number of parties to open one, or a float: a share of those
    that are asked. Parties that share a noise need the number, which does not fall with
    the parties that a later sum still asks.
    """
    check_bound(bound)
    protocol = _Protocol(
        1.0,
        _checked_threshold(threshold),
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
        replies = Replies(
            grid,
            lambda: (strategy.run.asked.request.layout.n_entries,),
            strategy.note_failure,
        )
        try:
            protocol(cast(Grid, replies), context)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a party may have sent anything
            log(ERROR, "FlyNN: the secure sum failed", exc_info=error)
        finally:
            # Flower does not call the strategy where the protocol ends early.
            if not protocol.done:
                for node in replies.asked - replies.lost:
                    strategy.note_failure(str(node), _SET_ASIDE)
                strategy.aggregate_fit(0, [], [])

    return fit


def _checked_threshold(threshold: float) -> float:
    """A number of parties as it is, or a share of them as a float."""
    if type(threshold) is int and threshold >= LEAST_PARTIES:
        return threshold
    if isinstance(threshold, bool) or not LEAST_THRESHOLD <= threshold <= 1:
        raise ConfigError(
            "threshold",
            f"a number of parties, or a share from {LEAST_THRESHOLD} to 1",
            threshold,
        )
    return float(threshold)


class Replies(GridProxy):
    """A grid that returns one valid reply of each party, and notes other failures."""

    def __init__(
        self,
        grid: Grid,
        shape: Callable[[], tuple[int, ...]],
        note_failure: Callable[[str, str], object],
    ) -> None:
        super().__init__(grid)
        self._shape = shape
        self._note_failure = note_failure
        self.asked: set[int] = set()
        self.lost: set[int] = set()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send the requests of one stage, and return the replies that can be used."""
        messages = list(messages)
        # Before they are sent: a receiver in this process may change a message.
        stages = {message.metadata.dst_node_id: _stage(message) for message in messages}
        self.asked |= stages.keys()
        reasons = dict.fromkeys(stages, NO_REPLY)
        keys = set[bytes]()
        usable: dict[int, Message] = {}
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in stages or node in usable:
                continue
            if reply.has_error():
                reasons[node] = f"failed: {reply.error.reason or 'no reason given'}"
                continue
            try:
                stage, about = stages[node]
                self._check(reply, stage, about, keys)
                usable[node] = reply
            except PayloadError as error:
                reasons[node] = f"refused: {error}"
            except Exception as error:  # noqa: BLE001 - a malformed reply may raise anything
                reasons[node] = f"refused: unreadable ({type(error).__name__})"
        for node in stages.keys() - usable.keys():
            reason = clean(reasons[node], 200)
            if node not in self.lost:
                self._note_failure(str(node), reason)
            self.lost.add(node)
            log(
                WARNING,
                "FlyNN: node %s: lost at the secure sum's stage %s: %s",
                node,
                stages[node][0],
                reason,
            )
        return list(usable.values())

    def _check(
        self, reply: Message, stage: str, about: set[int], keys: set[bytes]
    ) -> None:
        """Check a reply, also against the public `keys` of parties before."""
        record = reply.content.config_records[RECORD_KEY_CONFIGS]
        check_reply(stage, about, record, self._shape())
        if stage == Stage.SETUP:
            own: Any = {record[Key.PUBLIC_KEY_1], record[Key.PUBLIC_KEY_2]}
            # Parties refuse all keys if two of them are equal.
            if len(own) < 2 or keys & own:
                raise PayloadError(
                    "pk1, pk2",
                    "keys that nobody else has",
                    "keys that were sent before",
                )
            keys |= own
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            compat.recorddict_to_fitres(reply.content, keep_input=True)


def check_reply(
    stage: str, about: set[int], record: Entries, shape: tuple[int, ...]
) -> None:
    """Refuse a reply to a stage of SecAgg+ that Flower's server cannot use."""
    if stage == Stage.SETUP:
        for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2):
            _check_key(name, record.get(name))
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        _check_masked(record.get(Key.MASKED_PARAMETERS), shape)
    elif stage == Stage.SHARE_KEYS:
        _pieces_by_node(Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST, about, record)
    else:
        shares = _pieces_by_node(Key.NODE_ID_LIST, Key.SHARE_LIST, about, record)
        if any(len(share) < 20 or len(share) % 16 != 4 for share in shares):
            raise PayloadError(
                Key.SHARE_LIST,
                "shares of keys (4 bytes and blocks of 16)",
                "a piece of another length",
            )


def _check_key(name: str, key: object) -> None:
    """Refuse a public key with which the other parties could make no shared one."""
    (checked,) = _pieces(name, [key])
    try:
        generate_shared_key(_own_key(), bytes_to_public_key(checked))
    except Exception:  # noqa: BLE001 - of many kinds
        raise PayloadError(
            name,
            "a public key of SecAgg+'s curve",
            f"{len(checked)} bytes that are none",
        ) from None


def _check_masked(masked: object, shape: tuple[int, ...]) -> None:
    """Refuse masked parameters other than a weight and counts, below the modulus."""
    name = Key.MASKED_PARAMETERS
    if not isinstance(masked, list):
        masked = []
    arrays = codec.read_tensors(masked)
    forms = [(array.dtype.str, array.shape) for array in arrays]
    if forms != [("<i8", (1,)), ("<i8", shape)]:
        got = ", ".join(f"{dtype} {dimensions}" for dtype, dimensions in forms)
        raise PayloadError(
            name, f"a weight and counts of shape {shape}, int64", got or "none"
        )
    if any(int(array.min()) < 0 or int(array.max()) >= MODULUS for array in arrays):
        raise PayloadError(name, "integers from 0 below 2**32", "an entry outside")


def _pieces_by_node(
    nodes_name: str, pieces_name: str, about: set[int], record: Entries
) -> list[bytes]:
    """The pieces of a reply, one for each node that was asked about, named once."""
    nodes = record.get(nodes_name)
    expected = f"each of the {len(about)} parties asked about once"
    if not isinstance(nodes, list):
        raise PayloadError(nodes_name, expected, type(nodes).__name__)
    are_integers = all(type(node) is int for node in nodes)
    if not are_integers or sorted(nodes) != sorted(about):
        got = f"{len(nodes)} entries of other parties"
        raise PayloadError(nodes_name, expected, got)
    pieces = _pieces(pieces_name, record.get(pieces_name))
    if len(pieces) != len(about):
        expected = f"{len(about)}, one for each party"
        raise PayloadError(pieces_name, expected, len(pieces))
    return pieces


def _stage(request: Message) -> tuple[str, set[int]]:
    """The stage of a request, and the nodes that an answer must name.

    They are destinations, or owners of keys.
    """
    configs = request.content.config_records[RECORD_KEY_CONFIGS]
    stage = str(configs[Key.STAGE])
    about: set[int] = set()
    if stage == Stage.SHARE_KEYS:
        about = {int(node) for node in configs if node != Key.STAGE}
        about.discard(request.metadata.dst_node_id)
    elif stage == Stage.UNMASK:
        for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST):
            about |= set(configs[name])  # type: ignore[arg-type]
    return stage, about


def _pieces(name: str, pieces: object) -> list[bytes]:
    """A list of byte strings; a `PayloadError` names the first one that is too long."""
    wrong: list[object] = [pieces]
    if isinstance(pieces, list):
        wrong = [
            piece
            for piece in pieces
            if not isinstance(piece, bytes) or len(piece) > _LONGEST
        ]
        if not wrong:
            return pieces
    got = type(wrong[0]).__name__
    if isinstance(wrong[0], bytes):
        got = f"{len(wrong[0])} bytes"
    raise PayloadError(name, f"at most {_LONGEST} bytes for each party", got)


@cache
def _own_key() -> EllipticCurvePrivateKey:
    return generate_key_pairs()[0]
