"""Checks of the parties' replies at the four stages of SecAgg+, before Flower's protocol uses them.

In Flower one reply that cannot be read ends the sum for everybody. Here it costs its sender alone, as if it were lost.
Masked counts and shares of the right form can still be wrong, and then spoil the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from logging import WARNING
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message
from flwr.common.logger import log
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.roster import NO_REPLY, clean
from flwr_flynn.federated.run_spec import MODULUS
from flwr_flynn.flower.compat import recorddict_compat as compat

_LONGEST = 2**12  # bytes of a public key, of an encrypted message or of a share


class Replies:
    """A grid that hands over the replies SecAgg+ can use, one of each party that was asked, and notes who gave none."""

    def __init__(
        self, grid: Grid, shape: Callable[[], tuple[int, ...]], note_failure: Callable[[str, str], object]
    ) -> None:
        self._grid, self._shape, self._note_failure = grid, shape, note_failure
        self.asked: set[int] = set()
        self.lost: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """As a grid's, for the requests of one stage."""
        messages = list(messages)
        # Before they are sent: whoever gets a message in this process may take things out of it.
        stages = {message.metadata.dst_node_id: _stage(message) for message in messages}
        self.asked |= stages.keys()
        reasons, keys = dict.fromkeys(stages, NO_REPLY), set[bytes]()
        usable: dict[int, Message] = {}
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in stages or node in usable:
                continue
            if reply.has_error():
                reasons[node] = f"failed: {reply.error.reason or 'no reason given'}"
                continue
            try:
                self._check(reply, *stages[node], keys)
                usable[node] = reply
            except PayloadError as error:
                reasons[node] = f"refused: {error}"
            except Exception as error:  # noqa: BLE001 - whatever it is, it came with one party's reply
                reasons[node] = f"refused: unreadable ({type(error).__name__})"
        for node in stages.keys() - usable.keys():
            reason = clean(reasons[node], 200)
            if node not in self.lost:
                self._note_failure(str(node), reason)
            self.lost.add(node)
            log(WARNING, "FlyNN: node %s: lost at the secure sum's stage %s: %s", node, stages[node][0], reason)
        return list(usable.values())

    def _check(self, reply: Message, stage: str, about: set[int], keys: set[bytes]) -> None:
        """`check`, and what concerns other parties' replies, whose public `keys` are given, or other records."""
        record = reply.content.config_records[RECORD_KEY_CONFIGS]
        check(stage, about, record, self._shape())
        if stage == Stage.SETUP:
            theirs: Any = {record[Key.PUBLIC_KEY_1], record[Key.PUBLIC_KEY_2]}
            if len(theirs) < 2 or keys & theirs:  # of which two are the same, parties refuse all
                raise PayloadError("pk1, pk2", "keys that nobody else has", "keys that were sent before")
            keys |= theirs
        elif stage == Stage.COLLECT_MASKED_VECTORS:
            compat.recorddict_to_fitres(reply.content, keep_input=True)


def check(stage: str, about: set[int], record: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Refuse a reply to a stage of SecAgg+ that Flower's server could not use."""
    if stage == Stage.SETUP:
        for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2):
            (key,) = _pieces(name, [record.get(name)])
            try:
                generate_shared_key(_own_key(), bytes_to_public_key(key))  # as the other parties are going to
            except Exception:  # noqa: BLE001 - of many kinds
                raise PayloadError(name, "a public key of SecAgg+'s curve", f"{len(key)} bytes that are none") from None
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        masked: Any = record.get(Key.MASKED_PARAMETERS)
        arrays = codec.read_tensors(masked) if isinstance(masked, list) else []
        if [(array.dtype.str, array.shape) for array in arrays] != [("<i8", (1,)), ("<i8", shape)]:
            got = ", ".join(f"{array.dtype.str} {array.shape}" for array in arrays) or "none"
            raise PayloadError(Key.MASKED_PARAMETERS, f"a weight and counts of shape {shape}, int64", got)
        if any(int(array.min()) < 0 or int(array.max()) >= MODULUS for array in arrays):
            raise PayloadError(Key.MASKED_PARAMETERS, "integers from 0 below 2**32", "an entry outside")
    else:
        sharing = stage == Stage.SHARE_KEYS
        name = Key.DESTINATION_LIST if sharing else Key.NODE_ID_LIST
        nodes = record.get(name)
        whole = isinstance(nodes, list) and len(nodes) == len(about) and all(type(node) is int for node in nodes)
        if not whole or set(cast(list[int], nodes)) != about:
            got = f"{len(nodes)} entries of other parties" if isinstance(nodes, list) else type(nodes).__name__
            raise PayloadError(name, f"each of the {len(about)} parties asked about once", got)
        name = Key.CIPHERTEXT_LIST if sharing else Key.SHARE_LIST
        pieces = _pieces(name, record.get(name))
        if len(pieces) != len(about):
            raise PayloadError(name, f"{len(about)}, one for each party", len(pieces))
        if not sharing and any(len(piece) < 20 or len(piece) % 16 != 4 for piece in pieces):
            raise PayloadError(name, "shares of keys (4 bytes and blocks of 16)", "a piece of another length")


def _stage(request: Message) -> tuple[str, set[int]]:
    """The stage of a request, and the nodes that an answer must name: those to send to, or whose keys to give."""
    configs = request.content.config_records[RECORD_KEY_CONFIGS]
    stage = str(configs[Key.STAGE])
    about: set[int] = set()
    if stage == Stage.SHARE_KEYS:
        about = {int(node) for node in configs if node != Key.STAGE} - {request.metadata.dst_node_id}
    elif stage == Stage.UNMASK:
        for name in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST):
            about |= set(configs[name])  # type: ignore[arg-type]
    return stage, about


def _pieces(name: str, pieces: Any) -> list[bytes]:
    for each in pieces if isinstance(pieces, list) else [pieces]:
        if not isinstance(each, bytes) or len(each) > _LONGEST or not isinstance(pieces, list):
            got = f"{len(each)} bytes" if isinstance(each, bytes) else type(each).__name__
            raise PayloadError(name, f"at most {_LONGEST} bytes for each party", got)
    return cast(list[bytes], pieces)


@cache
def _own_key() -> EllipticCurvePrivateKey:
    return generate_key_pairs()[0]
