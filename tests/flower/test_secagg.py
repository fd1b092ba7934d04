"""Secure sums have the same bits as sums in clear, through Flower's own protocol.

Nothing is lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    Key,
    Stage,
)
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_flynn import ClassCounts, FlyNNClient, FlyNNStrategy
from flwr_flynn.app.client_app import unready_client
from flwr_flynn.app.run_noise import SharedNoise
from flwr_flynn.errors import AggregationError, ConfigError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.codec import write_tensors
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import secagg
from flwr_flynn.flower.records import recorddict_compat as compat
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import GaussianCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, RUN, SPEC, TaskIdentity, counting, counts_of, points
from tests.fuzzing import VALUES
from tests.raising import raises

SECURE = RunSpec(SPEC, CLASSES, bound=256)
Client = Any
Fault = Callable[[int, str], bool]
Spoil = Callable[[int, str, Any], object]


def an_app(client: Client) -> ClientApp:
    return ClientApp(client_fn=lambda context: client, mods=[secagg.mod])


class Wire:
    """A grid of nodes with a real ClientApp each.

    `lost` says whose answer to which stage does not come; `spoil` changes the records
    of those that come.
    """

    def __init__(
        self,
        clients: list[Client],
        lost: Fault = lambda *_: False,
        spoil: Spoil = lambda *_: None,
    ) -> None:
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        TaskIdentity.task_id = 1
        self.run = SimpleNamespace(run_id=1)
        self.lost = lost
        self.spoil = spoil
        self.sent = []
        self.errors = []
        self.apps = {node: an_app(client) for node, client in enumerate(clients, 1)}
        self.contexts = {
            node: Context(1, node, {}, RecordDict(), {}) for node in self.apps
        }

    def masked(self) -> dict[int, RecordDict]:
        """The messages with masked vectors, by the nodes that sent them."""
        return {
            node: reply.content
            for node, stage, reply in self.sent
            if stage == Stage.COLLECT_MASKED_VECTORS
        }

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        stage = message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(
            Key.STAGE, ""
        )
        if self.lost(node, str(stage)):
            return Message(Error(0, "gone"), reply_to=message)
        arrived = Message(
            deepcopy(message.content), node, message.metadata.message_type, group_id="1"
        )
        arrived.metadata.__dict__.update(message.metadata.__dict__)
        try:
            reply = self.apps[node](arrived, self.contexts[node])
        except Exception as error:  # noqa: BLE001 - what Flower makes of it
            return Message(Error(1, str(error)), reply_to=message)
        if reply.has_content():
            self.spoil(
                node, str(stage), reply.content.config_records.get(RECORD_KEY_CONFIGS)
            )
            self.sent.append((node, str(stage), reply))
        else:
            self.errors.append(reply.error.code)
        return reply


def counted(
    clients: list[Client],
    lost: Fault = lambda *_: False,
    spoil: Spoil = lambda *_: None,
    wire: type[Wire] = Wire,
    workflow_bound: int | None = None,
    rounds: int = 1,
    threshold: float = 0.67,
    **more: Any,
) -> tuple[FlyNNStrategy, Wire]:
    """A run of these parties; its strategy, and what went over the wire."""
    given = {
        "secure_bound": 256,
        "min_parties": 3,
        "min_available_clients": len(clients),
        "fraction_evaluate": 0.0,
    }
    strategy = FlyNNStrategy(**{"spec": SPEC, "classes": CLASSES, **given, **more})
    grid = wire(clients, lost, spoil)
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(rounds or strategy.num_rounds),
        strategy=strategy,
    )
    bound = workflow_bound or strategy.secure_bound
    workflow = DefaultWorkflow(fit_workflow=secagg.workflow(bound, threshold, 0))
    workflow(grid, context)  # type: ignore[arg-type]
    return strategy, grid


def party(i: int, n: int = 20, **more: Any) -> Client:
    return FlyNNClient(*points(n, seed=i), name=f"site {i}", **more).to_client()


def total(*parties: int, n: int = 20) -> ClassCounts:
    counts = [counts_of(*points(n, seed=i)) for i in parties]
    return sum(counts[1:], counts[0])


@pytest.mark.parametrize("n_parties", [3, 5])
def test_the_secure_sum_is_the_plain_sum_bit_for_bit(n_parties):
    strategy, wire = counted([party(i, n=i * 10) for i in range(n_parties)])
    plain = [counts_of(*points(i * 10, seed=i)) for i in range(n_parties)]
    assert strategy.counts.sha256() == sum(plain[1:], plain[0]).sha256()
    assert [party.examples for party in strategy.parties] == [None] * n_parties
    assert sorted(party.name for party in strategy.parties) == [
        f"site {i}" for i in range(n_parties)
    ]
    assert strategy.model.counts_ == strategy.counts
    # Beside the masked numbers the name travels in clear, and the same number of examples
    # for all.
    for content in wire.masked().values():
        metrics = content.metric_records["fitres.num_examples"]
        assert dict(metrics) == {"num_examples": 1}
        assert set(content.config_records["fitres.metrics"]) == {"flynn-party"}
        assert not any(content.array_records.values())


def test_a_whole_run_is_that_in_clear_bit_for_bit():
    options: dict[str, Any] = {
        "spec": HashPlan(4, 3, 100, "auto", hash_dim=128),
        "classes": CLASSES,
    }
    parts = [points(20, seed=i) for i in range(3)]
    parties = [party_of(*part, min_examples=1, products=True) for part in parts]
    clear = federate(RunOptions(**options, min_parties=3), parties)
    clients = [
        FlyNNClient(*part, min_examples=1, secure=True).to_client() for part in parts
    ]
    strategy, _ = counted(clients, rounds=0, fraction_evaluate=1.0, **options)
    assert strategy.run.due is None
    assert strategy.run.state.run_spec.specs == clear.state.run_spec.specs
    assert strategy.run.totals == clear.totals
    assert strategy.selection == clear.state.results["selection"]
    assert strategy.model.model_.sha256() == clear.model.model_.sha256()


ASIDE = "set aside: the secure sum of its round failed"


def test_a_selection_that_comes_to_nothing_leaves_the_counts():
    asked: list[str] = []

    def lost(node: int, stage: str) -> bool:
        asked.append(stage)
        return node < 3 and asked.count(Stage.SETUP) > 4 and stage == COLLECT

    strategy, _ = counted(
        [party(i) for i in range(4)], lost, rounds=2, fraction_evaluate=1.0
    )
    assert strategy.counts == total(0, 1, 2, 3)
    assert strategy.selection.parties == 0
    reasons = ["failed: gone", "failed: gone", ASIDE, ASIDE]
    assert strategy.run.state.missing["selection"] == {
        f"site {i}": reason for i, reason in enumerate(reasons)
    }


STAGES = Stage.all()
COLLECT = Stage.COLLECT_MASKED_VECTORS


LOST_AT = {stage: {2: stage} for stage in STAGES}
LOST_AT["several"] = {
    2: Stage.SETUP,
    3: Stage.SHARE_KEYS,
    5: COLLECT,
    6: COLLECT,
    9: Stage.UNMASK,
}
"""Stages at which nodes are lost."""


@pytest.mark.parametrize("lost", LOST_AT.values(), ids=LOST_AT)
def test_parties_lost_at_any_stage_cost_the_others_no_bit(lost):
    n = 5
    if len(lost) > 1:
        n = 14
    strategy, _ = counted(
        [party(i) for i in range(n)], lambda node, at: lost.get(node) == at
    )
    # Whoever is lost in the last stage is in the sum: the others' shares do.
    gone = [node for node, at in lost.items() if at != Stage.UNMASK]
    assert strategy.model.counts_ == total(*(i for i in range(n) if i + 1 not in gone))
    assert strategy.missing == {f"node {node}": "failed: gone" for node in gone}


@pytest.mark.parametrize("stage", STAGES[:3])
def test_a_sum_of_two_stays_masked_and_all_are_told_of(stage):
    strategy, wire = counted(
        [party(i) for i in range(3)], lambda node, at: node == 2 and at == stage
    )
    assert Stage.UNMASK not in {at for _, at, _ in wire.sent}
    assert strategy.missing == {
        "node 1": ASIDE,
        "node 2": "failed: gone",
        "node 3": ASIDE,
    }
    with raises(AggregationError, counted=0, min_parties=3, missing=strategy.missing):
        _ = strategy.model
    assert strategy.federation("1").members == ()


def late(n: int) -> Fault:
    """The first nodes do not answer when they are asked for the first time."""
    asked: list[int] = []

    def lost(node: int, stage: str) -> bool:
        asked.append(node)
        return node <= n and asked.count(node) == 1

    return lost


def test_a_second_round_makes_a_sum_of_those_who_were_late():
    parties = [party(i) for i in range(10)]
    strategy, _ = counted(parties, late(3), rounds=2, min_parties=10)
    assert strategy.model.counts_ == total(*range(10))
    assert strategy.missing == {}


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_who_were_late_are_not_asked_again(n):
    parties = [party(i) for i in range(7)]
    strategy, _ = counted(parties, late(n), rounds=2, min_parties=7)
    assert strategy.counts == total(*range(n, 7))
    few = "not asked: too few are left for a secure sum"
    assert strategy.missing == {f"node {node}": few for node in range(1, n + 1)}


def spoiled(stage: str, spoil: Callable[[Any], object]) -> FlyNNStrategy:
    """A run of four parties.

    Node 2 replies at a stage with what `spoil` makes of its record.
    """

    def of_node_2(node: int, at: str, record: Any) -> None:
        if (node, at) == (2, stage):
            spoil(record)

    return counted([party(i) for i in range(4)], spoil=of_node_2)[0]


def masked(*arrays: np.ndarray) -> dict[str, Any]:
    return {Key.MASKED_PARAMETERS: write_tensors(arrays)}


WEIGHT = np.zeros(1, np.int64)
COUNTS = np.zeros(72, np.int64)


EMPTY = {}
MALFORMED = {
    "no key": (
        Stage.SETUP,
        {Key.PUBLIC_KEY_1: b"no key"},
        "pk1: expected a public key of SecAgg+'s curve, got 6 bytes",
    ),
    "a long key": (
        Stage.SETUP,
        {Key.PUBLIC_KEY_2: bytes(5000)},
        "pk2: expected at most 4096 bytes for each party",
    ),
    "a party twice": (
        Stage.SHARE_KEYS,
        {Key.DESTINATION_LIST: [1, 1, 3]},
        "dsts: expected each of the 3 parties",
    ),
    "few shares": (
        Stage.SHARE_KEYS,
        {Key.CIPHERTEXT_LIST: [b"a"]},
        "ctxts: expected 3, one for each party, got 1",
    ),
    "one count": (
        COLLECT,
        masked(WEIGHT, COUNTS[:1]),
        "masked_params: expected a weight and counts of shape",
    ),
    "a negative weight": (
        COLLECT,
        masked(WEIGHT - 1, COUNTS),
        "masked_params: expected integers from 0 below 2**32",
    ),
    "large counts": (
        COLLECT,
        masked(WEIGHT, COUNTS + 2**32),
        "masked_params: expected integers from 0 below 2**32",
    ),
    **{f"nothing at {stage}": (stage, EMPTY, "") for stage in STAGES[:3]},
}
"""Stages, entries of a reply and the refusal; a reply of no entries is empty."""


def changing(entries: dict[str, Any]) -> Callable[[Any], object]:
    """Change entries of a record, or empty it where there are none."""

    def spoil(record: Any) -> None:
        if not entries:
            record.clear()
        record.update(entries)

    return spoil


@pytest.mark.parametrize(
    ("stage", "entries", "reason"), MALFORMED.values(), ids=MALFORMED
)
def test_a_malformed_reply_costs_its_sender_alone(stage, entries, reason):
    strategy = spoiled(stage, changing(entries))
    assert strategy.model.counts_ == total(0, 2, 3)
    assert strategy.missing["node 2"].startswith("refused: " + reason)


@pytest.mark.parametrize(
    "entries",
    [EMPTY, {Key.NODE_ID_LIST: [1, 2]}, {Key.SHARE_LIST: [bytes(51)] * 4}],
    ids=["nothing", "few nodes", "short shares"],
)
def test_a_malformed_share_costs_nobody_anything(entries):
    """The counts of its sender are in already."""
    strategy = spoiled(Stage.UNMASK, changing(entries))
    assert strategy.model.counts_ == total(0, 1, 2, 3)
    assert strategy.missing == {}


@pytest.mark.parametrize("share", [bytes(20), bytes(52), b"\xff" * 52])
def test_a_forged_share_of_a_key_opens_no_sum(share):
    strategy = spoiled(
        Stage.UNMASK, lambda record: record.update({Key.SHARE_LIST: [share] * 4})
    )
    assert strategy.parties == []
    assert strategy.missing == {f"node {node}": ASIDE for node in range(1, 5)}


def test_keys_that_somebody_has_already_cost_whoever_comes_with_them_again():
    seen: list[Any] = []

    def copy(node: int, stage: str, record: Any) -> None:
        if stage != Stage.SETUP:
            return
        seen.append(record[Key.PUBLIC_KEY_1])
        if len(seen) == 3:
            record[Key.PUBLIC_KEY_2] = seen[0]
        if len(seen) == 4:
            record[Key.PUBLIC_KEY_2] = seen[-1]

    strategy, _ = counted([party(i) for i in range(6)], spoil=copy)
    assert len(strategy.parties) == 4
    assert strategy.counts == total(*in_the_sum(strategy))
    reasons = " ".join(strategy.missing.values())
    assert reasons.count("keys that nobody else has") == 2


def in_the_sum(strategy: FlyNNStrategy) -> list[int]:
    """Numbers of the parties that were counted."""
    return [int(party.node) - 1 for party in strategy.parties]


def test_replies_that_come_twice_or_from_others_are_left_out():
    class Echo(Wire):
        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> list[Message]:
            replies = super().send_and_receive(messages, timeout=timeout)
            stray = Message(replies[0].content, 99, "train")
            stray.metadata.__dict__["_src_node_id"] = 99
            return [*replies, *replies, stray]

    strategy, _ = counted([party(i) for i in range(4)], wire=Echo)
    assert strategy.counts == total(0, 1, 2, 3)


def changed(value: Any, how: str, place: int, other: Any) -> Any:
    """A value that is spoiled.

    Nothing that is drawn depends on it: keys and masks are new in every run.
    """
    if how == "other" or not isinstance(value, bytes | list) or not value:
        return other
    place %= len(value)
    if how == "cut":
        return value[:place]
    if isinstance(value, list):
        return [
            *value[:place],
            changed(value[place], how, place, other),
            *value[place + 1 :],
        ]
    return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]


# Each example is a whole run.
@settings(max_examples=max(12, settings.default.max_examples // 12))
@given(
    stage=st.sampled_from(STAGES),
    number=st.integers(0, 9),
    how=st.sampled_from(["flip", "cut", "other"]),
    place=st.integers(0, 2**12),
    other=VALUES,
)
def test_whatever_a_party_replies_the_sum_is_exact(stage, number, how, place, other):
    def spoil(record: Any) -> None:
        name = sorted(record)[number % len(record)]
        change = how
        if name == Key.MASKED_PARAMETERS:
            # Nobody can tell what masked counts were.
            change = "other"
        # There are values that no record holds.
        with suppress(TypeError, ValueError):
            record[name] = changed(record[name], change, place, other)

    strategy = spoiled(stage, spoil)
    inside = in_the_sum(strategy)
    expected = ClassCounts.zeros(SECURE.hasher, 3)
    if inside:
        expected = total(*inside)
    assert strategy.counts == expected
    assert len(inside) + len(strategy.missing) == 4


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (party(9, n=3000), "phase counts failed at this party"),
        (unready_client("site 9", "no such file").to_client(), "no such file"),
        (
            FlyNNClient(np.zeros((3, 4)), ["oak"] * 3).to_client(),
            "phase counts failed at this party",
        ),
        (
            party(9, leaves=True),
            "node-config leave: this party answers only runs with action=withdraw",
        ),
    ],
)
def test_a_party_that_cannot_count_is_left_out_and_named(odd, reason):
    strategy, _ = counted([party(0), party(1), odd, party(2), party(3)])
    assert strategy.counts == total(0, 1, 2, 3)
    assert reason in strategy.missing["node 3"]


def test_a_party_that_declines_replies_without_an_exception_which_flower_would_log():
    strategy, wire = counted([party(i, n=257) for i in range(3)])
    assert wire.errors == [ErrorCode.CLIENT_APP_RAISED_EXCEPTION] * 3
    with pytest.raises(AggregationError, match="max-examples") as caught:
        _ = strategy.model
    assert set(caught.value.missing.values()) == {
        "failed: phase counts failed at this party"
    }


@pytest.mark.parametrize("clip", [64, 512])
def test_counts_that_would_be_clipped_at_another_bound_than_announced_do_not_leave(
    clip, tmp_path
):
    # 70 equal points: clipped at 64 they would be the counts of 64.
    equal = FlyNNClient(
        np.tile([[0.0, 1.0, 2.0, 3.0]], (70, 1)), ["ash"] * 70
    ).to_client()
    noisy = replace(SECURE, mechanism=shared_noise())
    for client, run in ((equal, SECURE), (private(1, tmp_path), noisy)):
        with secagg.masking(clip, 2):
            res = client.fit(FitIns(ndarrays_to_parameters([]), counting(run)))
        assert res.parameters.tensors == []
        reason = str(res.metrics[REFUSED])
        assert reason.startswith("secure sum: ")
        assert reason.endswith(f"256, got {clip}")
    assert Budget(tmp_path / "1", Policy(1.0)).spent()[0] == 0


@pytest.mark.parametrize("again", [Key.DEAD_NODE_ID_LIST, Key.ACTIVE_NODE_ID_LIST])
def test_nobody_gives_a_server_both_keys_of_a_party(again):
    class Both(Wire):
        """A server that asks for both keys of node 1, or again and again for one."""

        def reply(self, message: Message) -> Message:
            configs = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
            if configs.get(Key.STAGE) == Stage.UNMASK:
                configs[again] = [*configs[again], 1]
            return super().reply(message)

    strategy, wire = counted([party(i) for i in range(3)], wire=Both)
    assert strategy.parties == []
    assert not [node for node, stage, _ in wire.sent if stage == Stage.UNMASK]


# ---- with noise


def private(i: int, folder: Path, **policy: Any) -> Client:
    own = Policy(
        **{
            "max_epsilon": 1.0,
            "max_delta": 1e-5,
            "mechanisms": ["simulated"],
            "secure_sum": True,
            **policy,
        }
    )
    return FlyNNClient(
        *points(20, i), name=f"site {i}", budget=Budget(folder / str(i), own)
    ).to_client()


def shared_noise(n_honest: int | None = 2) -> SimulatedRelease:
    return SimulatedRelease(
        GaussianCounts.for_spec(SPEC, 3, 1.0, delta=1e-5, n_honest=n_honest), seed=7
    )


def noisily(
    folder: Path, n: int, n_honest: int = 2, **more: Any
) -> tuple[FlyNNStrategy, Wire]:
    """A run of private parties, whose ledgers are in a folder."""
    parties = [private(i, folder, **more.pop("policy", {})) for i in range(n)]
    return counted(
        parties, **{"mechanism": shared_noise(n_honest), "secure_bound": 1024, **more}
    )


def test_each_party_adds_its_share_of_one_noise(tmp_path):
    mechanism = shared_noise(3)
    strategy, _ = noisily(tmp_path, 4, 3)
    noise = strategy.counts.array - total(0, 1, 2, 3).array
    share = mechanism.noise_sd
    assert share == pytest.approx(
        GaussianCounts.for_spec(SPEC, 3, 1.0, delta=1e-5).noise_sd / 3**0.5, rel=1e-2
    )
    assert noise.std() == pytest.approx(2 * share, rel=0.25)  # four shares
    assert sum(release.variance for release in strategy.counts.noise) == pytest.approx(
        4 * share**2
    )
    assert strategy.model.guarantee_ == mechanism.guarantee()
    assert Budget(tmp_path / "0", Policy(1.0)).spent()[0] == pytest.approx(
        1.0, abs=0.01
    )


def test_a_share_of_noise_is_drawn_anew_for_every_sum(tmp_path):
    for spent in (1.0, 2.0, 2.0):
        third, _ = noisily(tmp_path, 3, policy={"max_epsilon": 2.1, "max_delta": 3e-5})
        assert Budget(tmp_path / "0", Policy(2.1)).spent()[0] == pytest.approx(
            spent, abs=0.02
        )
    assert third.parties == []
    assert len(third.missing) == 3
    assert all("policy max-epsilon: " in reason for reason in third.missing.values())


def test_nobody_shares_noise_among_more_than_are_certain_to_be_in_the_sum(
    tmp_path,
):
    # Of 4 parties 3 are enough to unmask the sum; the noise of those must do.
    strategy, _ = noisily(tmp_path, 4, 4)
    assert strategy.parties == []
    assert all(
        "noise of at most 3 parties together (n_honest)" in reason
        for reason in strategy.missing.values()
    )
    assert Budget(tmp_path / "0", Policy(1.0)).spent()[0] == 0


@pytest.mark.parametrize(("n_lost", "n_counted"), [(1, 4), (2, 0)])
def test_a_sum_opens_without_as_many_as_may_drop_out_and_with_no_fewer(
    n_lost, n_counted, tmp_path
):
    needed = SharedNoise(5, 4).n_needed
    strategy, wire = noisily(
        tmp_path,
        5,
        4,
        lost=lambda node, stage: node <= n_lost and stage == COLLECT,
        threshold=needed,
        min_parties=needed,
        secure_bound=2**16,
    )
    assert len(strategy.parties) == n_counted
    stages = {stage for _, stage, _ in wire.sent}
    assert (Stage.UNMASK in stages) == (n_counted > 0)


def test_noisy_counts_beyond_the_bound_are_clipped_and_never_refused(
    tmp_path,
):
    strategy, _ = noisily(tmp_path, 3, secure_bound=2)
    assert np.abs(strategy.counts.array).max() <= 6


# ---- the server


@pytest.mark.parametrize("bound", [512, None])
def test_a_strategy_of_another_bound_is_refused_before_anybody_is_asked(
    bound,
):
    parties = [party(i) for i in range(3)]
    expected = "the workflow's 256"
    with raises(ConfigError, field="secure_bound", expected=expected, got=str(bound)):
        counted(parties, secure_bound=bound, workflow_bound=256)


def test_other_messages_pass_the_mod():
    """A request for counts in clear gets them through an app with the mod."""
    wire = Wire([party(1)])
    asked = compat.fitins_to_recorddict(
        FitIns(ndarrays_to_parameters([]), counting()), keep_input=True
    )
    replied = compat.recorddict_to_fitres(
        wire.reply(Message(asked, 1, "train")).content, keep_input=True
    )
    arrays = codec.read_tensors(replied.parameters.tensors)
    assert codec.decode_all(arrays, [RUN.hasher], RUN.n_classes)[0] == total(1)
