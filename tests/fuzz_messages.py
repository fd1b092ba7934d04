"""Decoders of messages for the fuzzer: arrays, requests to a party, and its replies.

Requests and replies are those of the registry of all phases.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, derive_private_key
from flwr.common import Code, EvaluateIns, FitIns, Parameters
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from hypothesis import strategies as st

from flwr_flynn import ClassCounts, HashSpec
from flwr_flynn.errors import FlyNNError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.compression import sealed
from flwr_flynn.federated.party import PartyOptions
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.counts import CountsRequest, WithdrawRequest
from flwr_flynn.federated.protocol import (
    EVALUATE,
    NOISY_EXAMPLES,
    PARTY,
    PHASE,
    REFUSED,
    STATISTIC,
    Config,
    Reply,
    key,
)
from flwr_flynn.federated.reply_fields import PLAIN, Field, to_arrays
from flwr_flynn.federated.request import Request, kind_of
from flwr_flynn.federated.roster import Failures, Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.tally import Tally
from flwr_flynn.flower import secagg
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.records import reply_of_evaluation
from flwr_flynn.model.calibration import LARGEST_INTERCEPT
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import SimulatedRelease, TopTLaplace
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import (
    CLASSES,
    LAPLACE,
    SHAPE,
    SPEC,
    config_of,
    counts_of,
    encode_release,
    evaluation_of,
    points,
    summed,
    tally_of,
)
from tests.federated.registry import BOUND, CASES, SECURE, SOME
from tests.federated.runs import (
    AUTO,
    GRID,
    LABELS,
    NAMES,
    Exchange,
    X,
    exchange,
    replied,
)
from tests.fuzzing import (
    HALF,
    HOW_OFTEN,
    QUARTER,
    SCALARS,
    Decoder,
    spoiled,
    spoiled_arrays,
    spoiled_bytes,
    spoiled_entries,
    spoiled_mapping,
    spoiled_tensors,
    taken,
)

OTHER = HashSpec(
    n_features=4,
    hash_dim=16,
    row_nnz=3,
    hash_nnz=2,
    seed=9,
    signed=True,
    center=(0.5, 0, 1e-9, -7),
)
TWO = RunSpec((SPEC, OTHER), CLASSES)
TOP_T = TopTLaplace(1.0, **SHAPE, n_released=5)
NOISY = RunSpec(SPEC, CLASSES, LAPLACE)
POINTS = [points(n, seed=n) for n in (0, 1, 5, 400)]
COUNTS = [counts_of(*samples) for samples in POINTS]
OF_TWO = [
    codec.encode(
        *(ClassCounts.from_data(hasher, X, TWO.codes(y), 3) for hasher in TWO.hashers)
    )
    for X, y in POINTS
]
RELEASES = [
    SimulatedRelease(LAPLACE, seed).release(counts)
    for seed, counts in enumerate(COUNTS)
]


def check_counts(counts: ClassCounts, hash_nnz: int = SPEC.hash_nnz) -> None:
    """The facts about counts of some set of points, which hold for no other matrix."""
    for row, n in zip(counts.array.tolist(), counts.n_per_class.tolist(), strict=True):
        assert 0 <= min(row) <= max(row) <= n
        assert sum(row) == hash_nnz * n


def as_bytes(arrays: Sequence[np.ndarray]) -> list[Any]:
    """Arrays as values that are equal for equal arrays."""
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


# -------- arrays


def use_tensors(tensors: Any) -> None:
    arrays = codec.read_tensors(tensors)
    assert sum(array.nbytes for array in arrays) <= sum(map(len, tensors))
    assert as_bytes(codec.read_tensors(codec.write_tensors(arrays))) == as_bytes(arrays)


@st.composite
def packed_counts(draw: st.DrawFn) -> Any:
    """Messages of packed counts with faults.

    Half of them have the checksum that fits: it is no use against forgers.
    """
    message = draw(st.sampled_from(OF_TWO).flatmap(spoiled_arrays))
    if not isinstance(message, list) or not draw(HALF):
        return message
    for i in range(1, len(message), 2):
        if isinstance(message[i], np.ndarray) and message[i].dtype == np.uint8:
            message[i] = np.frombuffer(sealed(message[i].tobytes()), np.uint8)
    return message


def use_counts(arrays: Any) -> None:
    blocks = codec.decode_all(arrays, TWO.hashers, TWO.n_classes)
    with taken():
        for counts, spec in zip(blocks, TWO.specs, strict=True):
            check_counts(counts, spec.hash_nnz)
        assert (
            codec.decode_all(codec.encode(*blocks), TWO.hashers, TWO.n_classes)
            == blocks
        )


def use_joined(joined: Any) -> None:
    pieces = codec.split(joined)
    assert codec.join(pieces) == joined
    use_tensors(pieces)


# -------- requests

_SCORING = ScoringRule("balanced", 0.5, 1.5)
REQUESTS: list[Request[Any]] = [
    *(case.request for case in CASES.values()),
    *SECURE.values(),
    ColumnsRequest(4, (1, 2), ("a", "b", "c", "d")),
    *(
        CountsRequest(RunSpec(SPEC, CLASSES, mechanism))
        for mechanism in (LAPLACE, SimulatedRelease(LAPLACE, 7), TOP_T)
    ),
    CountsRequest(RunSpec(SPEC, (3, -1), feature_names=("a", "b", "c", "d"))),
    WithdrawRequest(NOISY),
    evaluation_of(NOISY, (RELEASES[0],), (_SCORING,), n_releases=1),
    evaluation_of(RunSpec(SPEC, CLASSES), (COUNTS[1],), (_SCORING,), tries=False),
]
SEEDS = st.sampled_from(
    [
        (codec.write_tensors(request.arrays()), config_of(request))
        for request in REQUESTS
    ]
)
ASKED = PartyOptions(products=True, memory_limit=2**21)


@st.composite
def spoiled_requests(draw: st.DrawFn) -> Any:
    tensors, config = draw(SEEDS)
    if tensors and draw(HALF):
        return draw(spoiled_tensors(tensors)), config
    return tensors, draw(spoiled_mapping(config))


def use_request(asked: Any) -> None:
    """A request is read whole, and says the same again."""
    tensors, config = asked
    kind = kind_of(config)
    declared = kind.entries
    request = kind.from_config(
        Config(config, declared), codec.read_tensors(tensors), ASKED
    )
    with taken():
        again = kind.from_config(
            Config(config_of(request), declared), request.arrays(), ASKED
        )
        assert again.to_config() == request.to_config()
        assert as_bytes(again.arrays()) == as_bytes(request.arrays())
        assert again.discloses == request.discloses
        mechanism = getattr(getattr(request, "run", None), "mechanism", None)
        assert mechanism is None or (mechanism.noise_sd > 0 and mechanism.guarantee())


SECRET = "geheim"
GIVEN = {
    "open": {*CASES} - {"withdraw", "update"},
    "secure": {"evaluation"},
    "leaving": {"withdraw", "evaluation"},
}
"""Phases of which a party gives figures, by the kind of party."""


def asking(folder: Path) -> Callable[[Any], None]:
    """Parties of every kind, and what may leave each of them.

    `folder` is for the ledger of the private one.
    """
    limit: dict[str, Any] = {"name": "Ulm", "memory_limit": 2**21}
    held_out: dict[str, Any] = {"X_test": X[:10], "y_test": LABELS[:10], **limit}
    odd_X = X.copy()
    odd_y = LABELS.astype(object)
    odd_X[3, 1] = 1e300
    odd_y[5] = SECRET
    clients = {
        "open": FlyNNClient(X, LABELS, **held_out, products=True),
        "odd": FlyNNClient(odd_X, odd_y, X_test=odd_X, y_test=odd_y, **limit),
        "secure": FlyNNClient(X, LABELS, **held_out, secure=True),
        "leaving": FlyNNClient(X, LABELS, **held_out, leaves=True),
        "private": FlyNNClient(
            X,
            LABELS,
            **held_out,
            budget=Budget(folder, Policy(3.0, mechanisms=("laplace",))),
        ),
    }

    def use(asked: Any) -> None:
        """A party answers a request, or declines it with a reason, and never fails.

        It gives no more than it may.
        """
        kind, (tensors, config) = asked
        party = clients[kind].to_client()
        parameters = Parameters(tensors, "numpy.ndarray")
        fit = party.fit(FitIns(parameters, dict(config)))
        evaluation = party.evaluate(EvaluateIns(parameters, dict(config)))
        for answer in (fit, evaluation):
            assert answer.status.code == Code.OK
            assert "failed" not in str(answer.metrics.get(REFUSED)), answer.metrics
            assert SECRET not in str(answer.metrics)
            assert "1e+300" not in str(answer.metrics)
            assert 0 <= answer.num_examples <= len(X)
            assert answer.metrics[PARTY] == "Ulm"
        phase = config.get(PHASE)
        gave_train = bool(fit.parameters.tensors)
        gave_results = STATISTIC in evaluation.metrics
        if kind == "private":
            assert not gave_results
            assert not gave_train or (fit.num_examples, set(fit.metrics)) == (
                NOISY_EXAMPLES,
                {PARTY},
            )
        else:
            assert not gave_results or phase == "evaluation"
            assert not gave_train or phase in GIVEN.get(kind, GIVEN["open"]) - {
                "evaluation"
            }
        if kind == "odd":
            unchanged = config.get(key("classes")) == json.dumps(NAMES)
            assert not gave_train or phase in ("columns", "schema") or not unchanged
        if REFUSED in fit.metrics and REFUSED in evaluation.metrics:
            raise PayloadError("declined")

    return use


# -------- replies


@st.composite
def spoiled_reply(draw: st.DrawFn, reply: Reply) -> Reply:
    tensors = list(reply.tensors)
    n_examples = reply.n_examples
    metrics = reply.metrics
    for _ in range(draw(HOW_OFTEN)):
        kind = draw(st.integers(0, 5))
        if kind == 0:
            metrics = draw(spoiled_mapping(metrics))
        elif kind == 1:
            n_examples = draw(spoiled(n_examples))
        elif kind == 2 and draw(QUARTER):
            metrics = {**metrics, REFUSED: draw(SCALARS)}
        else:
            tensors = draw(spoiled_tensors(tensors))
    return Reply(reply.cid, tensors, n_examples, metrics)


@st.composite
def replies_to(
    draw: st.DrawFn, fields: Sequence[Field], parts: Sequence[np.ndarray], reply: Reply
) -> Reply:
    """A reply with faults in the integers of its fields, or in the message."""
    if draw(HALF):
        return draw(spoiled_reply(reply))
    parts = list(parts)
    place = draw(st.integers(0, len(parts) - 1))
    if fields[place].form != PLAIN and not fields[place].is_signed:
        least = 0
    else:
        least = -(2**61)
    parts[place] = np.clip(
        draw(spoiled_entries(parts[place].astype(np.int64))), least, 2**61
    )
    return Reply(
        reply.cid,
        codec.write_tensors(to_arrays(fields, parts)),
        reply.n_examples,
        reply.metrics,
    )


def reading(name: str, request: Request[Any], member: Member, reply: Reply) -> Decoder:
    """The server's reading of replies to a request.

    They are read as they come, or within a metric if they are of an evaluation.
    """
    known = tally_of(request).read(codec.read_tensors(reply.tensors), reply, member)
    fields = request.fields(tally_of(request).sizes_of(reply, member))

    def shown(statistic: Any) -> bytes:
        return as_bytes(request.parts(statistic))

    def use(reply: Reply) -> None:
        if request.channel == EVALUATE:
            joined = codec.join(
                [tensor for tensor in reply.tensors if isinstance(tensor, bytes)]
            )
            reply = reply_of_evaluation(
                reply.cid, reply.n_examples, {**reply.metrics, STATISTIC: joined}
            )
        statistic = tally_of(request).read(
            codec.read_tensors(reply.tensors), reply, member
        )
        if statistic is None:
            raise PayloadError("no samples")
        with taken():
            own = request.fields(tally_of(request).sizes_of(reply, member))
            for field, part in zip(own, request.parts(statistic), strict=True):
                field.check(part)
            again = tally_of(request).read(
                to_arrays(own, request.parts(statistic)), reply, member
            )
            assert shown(again) == shown(statistic)

    return Decoder(
        f"read: {name}", replies_to(fields, request.parts(known), reply), use, 2
    )


def readings() -> list[Decoder]:
    """Of every request of the registry, and of noisy counts."""
    noisy = Reply(
        "1",
        codec.write_tensors(encode_release(RELEASES[2], LAPLACE)),
        NOISY_EXAMPLES,
        {},
    )
    every = [reading("noisy counts", CountsRequest(NOISY), Member("", "1"), noisy)]
    for name, case in CASES.items():
        every.append(
            reading(
                name,
                case.request,
                case.member(SOME),
                replied(case.request, case.party(SOME)),
            )
        )
    return every


@st.composite
def secure_sums(draw: st.DrawFn, request: Request[Any]) -> list[Reply]:
    """Copies of a mean, as Flower's workflow hands them over."""
    most = draw(st.sampled_from((0, 1, 2, BOUND)))
    n = request.layout.n_entries
    total = np.resize(draw(st.lists(st.integers(0, most), min_size=9, max_size=9)), n)
    if draw(HALF):
        total[draw(st.integers(0, n - 1))] = draw(
            st.sampled_from((-1, -BOUND, 3 * BOUND, 3 * BOUND + 1, 2**40))
        )
    tensors = codec.write_tensors(
        [total * draw(st.sampled_from((1 / 3, 1.0, 0.5, 0.25)))]
    )
    copies = [tensors] * 3
    for i in range(3):
        if draw(QUARTER):
            copies[i] = draw(spoiled_tensors(tensors))
    if not draw(QUARTER):
        copies = copies[:1] * 3
    return [
        Reply(cid, tensors, 1, {PARTY: "x"})
        for cid, tensors in zip("178", copies, strict=True)
    ]


def summing(request: Request[Any]) -> Callable[[list[Reply]], None]:
    def use(replies: list[Reply]) -> None:
        """The sum is refused, or is one that some samples can have."""
        total = summed(request, replies)
        for part, field in zip(
            request.parts(total), request.layout.fields, strict=True
        ):
            assert part.shape == field.shape
            assert (abs(part.astype(object)) <= 3 * field.most).all()

    return use


class Stop:
    """A run of three parties that stops before a phase, and gets spoiled replies there."""

    def __init__(
        self, name: str, after: Callable[[Any, Any], object], **options: Any
    ) -> None:
        self.name = name
        self.after = after
        given = {"spec": AUTO, **options}
        self.exchange: Exchange = exchange(given.pop("spec"), n=3, **given)
        for cid, party in self.exchange.parties.items():
            party.options.__dict__.update(
                member=f"secret of {cid}", leaves="federation" in options
            )
        self.channel = self.exchange.until(name).run.due.channel

    def begun(self) -> tuple[Any, Any]:
        """A run of its own, and what it asks."""
        run = copy.deepcopy(self.exchange.run)
        return run, run.ask(self.channel, list(self.exchange.parties))

    @property
    def replies(self) -> st.SearchStrategy[list[Reply]]:
        _, ask = self.begun()
        good = [self.exchange.reply(ask, cid) for cid in ask.cids]
        return st.lists(
            st.sampled_from(good).flatmap(spoiled_reply), min_size=1, max_size=3
        )

    def use(self, replies: list[Reply]) -> None:
        """A whole exchange leaves the run as it was, or with the very sum of what was
        accepted.
        """
        run, ask = self.begun()
        before = run.state
        members = run.counted.members
        request = ask.request
        known = {cid: run.counted.member(cid) for cid in ask.cids}
        result = run.complete(replies, Failures())
        batch = result.batch
        assert not any("unreadable" in reason for reason in batch.refused.values()), (
            batch.refused
        )
        assert {reply.cid for reply in replies} == {*batch.replies}
        assert batch.passed.keys() == batch.members.keys()
        total = ask.start
        for cid in batch.passed:
            total = total + read_of(ask.tally, replies, cid, known[cid])
        if ask.phase.is_counting:
            request = CountsRequest(request.run)
        assert as_bytes(request.parts(batch.total)) == as_bytes(request.parts(total))
        if not batch.passed:
            assert run.counted.members == members
            assert not ask.phase.is_counting or run.state == before
            raise PayloadError("nobody passed")
        self.after(batch.total, run.state.results[self.name])


def read_of(
    tally: Tally[Any], replies: Sequence[Reply], cid: str, member: Member | None
) -> Any:
    """The statistic of the first readable reply of a party."""
    for reply in replies:
        with suppress(FlyNNError):
            if reply.cid == cid and REFUSED not in reply.metrics and not reply.fault:
                return tally.read(codec.read_tensors(reply.tensors), reply, member)
    raise AssertionError(f"no reply of {cid} can be read")


def after_columns(total: Any, result: Any) -> None:
    assert total.edges().shape == (4, 32)
    assert np.isfinite(total.center_and_deviation()).all()
    assert np.isfinite(total.relevance()).all()


def after_counts(total: Any, result: Any) -> None:
    assert result == total
    for counts, spec in zip(total.parts, GRID[: len(total.parts)], strict=True):
        check_counts(counts, spec.hash_nnz)


def after_selection(total: Any, selection: Any) -> None:
    weight = sum(choice.weight for choice in selection.choices)
    assert abs(weight - 1.0) < 1e-12
    for choice, scoring in zip(selection.choices, selection.scorings, strict=True):
        assert (
            ScoringRule(scoring.rule, scoring.decay)
            == selection.candidates[choice.spec][choice.scoring]
        )
    assert selection.examples <= len(X)
    json.dumps(selection.to_dict(), allow_nan=False)


def after_calibration(total: Any, result: Any) -> None:
    assert result.n_examples <= len(X)
    if result.calibration is not None:
        assert np.abs(result.calibration.intercepts).max() <= LARGEST_INTERCEPT


def after_evaluation(total: Any, result: Any) -> None:
    assert result.figures["examples"] == total.tables[0].sum() == total.tables[1].sum()


def stops() -> list[Stop]:
    """A run before each of its phases, and one that parties leave."""
    counted = Stop("evaluation", after_evaluation, spec=GRID[0], decay=0.5)
    saved = {
        "federation": counted.exchange.run.federation("1"),
        "purpose": "withdraw",
        "fraction_evaluate": 0.0,
    }
    return [
        Stop("columns", after_columns),
        Stop("counts", after_counts, spec=GRID),
        Stop("selection", after_selection),
        Stop("calibration", after_calibration),
        Stop("evaluation", after_evaluation),
        Stop("counts", after_counts, spec=GRID[0], decay=0.5, **saved),
    ]


# -------- secure sums

PUBLIC_KEYS = [
    public_key_to_bytes(derive_private_key(n, SECP384R1()).public_key()) for n in (7, 8)
]
STAGES: list[tuple[str, dict[str, Any]]] = [
    (Stage.SETUP, {Key.PUBLIC_KEY_1: PUBLIC_KEYS[0], Key.PUBLIC_KEY_2: PUBLIC_KEYS[1]}),
    (
        Stage.SHARE_KEYS,
        {Key.DESTINATION_LIST: [1, 2, 3], Key.CIPHERTEXT_LIST: [b"secret"] * 3},
    ),
    (
        Stage.COLLECT_MASKED_VECTORS,
        {
            Key.MASKED_PARAMETERS: codec.write_tensors(
                [np.array([9]), np.full(72, 2**32 - 1)]
            )
        },
    ),
    (
        Stage.UNMASK,
        {
            Key.NODE_ID_LIST: [1, 2, 3],
            Key.SHARE_LIST: [bytes(52), bytes(52), bytes(324)],
        },
    ),
]


@st.composite
def spoiled_stages(draw: st.DrawFn) -> Any:
    stage, record = draw(st.sampled_from(STAGES))
    name = draw(st.sampled_from(list(record)))
    if stage == Stage.SETUP and draw(HALF):
        return stage, {**record, name: draw(spoiled_bytes(record[name], PUBLIC_KEYS))}
    if stage == Stage.COLLECT_MASKED_VECTORS and not draw(QUARTER):
        return stage, {name: draw(spoiled_tensors(record[name]))}
    return stage, draw(spoiled_mapping(record))


def use_stage(reply: Any) -> None:
    stage, record = reply
    secagg.check_reply(stage, {1, 2, 3}, record, (72,))
    if stage in (Stage.SHARE_KEYS, Stage.UNMASK):
        lists = (
            (Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST),
            (Key.NODE_ID_LIST, Key.SHARE_LIST),
        )
        nodes, pieces = (record[name] for name in lists[stage == Stage.UNMASK])
        assert sorted(nodes) == [1, 2, 3]
        assert [type(piece) for piece in pieces] == [bytes] * 3
        assert (
            all(len(piece) % 16 == 4 for piece in pieces) or stage == Stage.SHARE_KEYS
        )
    if stage == Stage.COLLECT_MASKED_VECTORS:
        weight, counts = (
            np.load(io.BytesIO(each), allow_pickle=False)
            for each in record[Key.MASKED_PARAMETERS]
        )
        assert weight.shape == (1,)
        assert counts.shape == (72,)
        assert (
            0
            <= min(weight.min(), counts.min())
            <= max(weight.max(), counts.max())
            < 2**32
        )


# -------- all of them


def decoders(folder: Path) -> list[Decoder]:
    """Of messages; `folder` is where the ledger of a private party goes."""
    arrays = [
        [np.array(1.5), np.arange(6, dtype="<f2").reshape(1, 2, 3)],
        *map(codec.encode, COUNTS),
        *OF_TWO,
    ]
    tensors = st.sampled_from([*map(codec.write_tensors, arrays)])
    joined = tensors.flatmap(lambda each: spoiled(codec.join(each)))
    parties = st.sampled_from(["open", "odd", "secure", "leaving", "private"])
    asked = st.tuples(parties, SEEDS | spoiled_requests())
    return [
        Decoder("codec.read_tensors", tensors.flatmap(spoiled_tensors), use_tensors, 3),
        Decoder("codec.decode_all", packed_counts(), use_counts, 5),
        Decoder("codec.split", joined, use_joined, 2),
        Decoder(
            "Request.from_config", spoiled_requests(), use_request, 9, memory=2**22
        ),
        *readings(),
        *(
            Decoder(f"sum: {name}", secure_sums(request), summing(request))
            for name, request in SECURE.items()
        ),
        *(
            Decoder(
                f"Run.complete: {stop.name}", stop.replies, stop.use, 0.5, memory=2**23
            )
            for stop in stops()
        ),
        Decoder("secagg.check_reply", spoiled_stages(), use_stage, 4),
        Decoder("Party: any request", asked, asking(folder / "party"), 4, memory=2**22),
    ]
