"""Noisy counts from a party to the model: what leaves, and what is refused.

Neither depends on a record.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.common import (
    Code,
    EvaluateIns,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
)

from flwr_flynn import FlyNNClassifier, FlyNNClient
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.protocol import (
    NOISY_EXAMPLES,
    REFUSED,
    STATISTIC,
    TRAIN,
    Reply,
    key,
)
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import ExchangeResult, Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    SimulatedRelease,
    TopTLaplace,
)
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import (
    CLASSES,
    HASHER,
    LAPLACE,
    RUN,
    SHAPE,
    SPEC,
    config_of,
    counting,
    counts_of,
    encode_release,
    evaluation_of,
    points,
)
from tests.flower.networks import BOTH, Api
from tests.raising import raises

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")

TOP_T = TopTLaplace(1.0, n_released=5, **SHAPE)
MECHANISMS = [
    LAPLACE,
    GaussianCounts(1.0, 1e-5, **SHAPE),
    TOP_T,
    SimulatedRelease(LAPLACE, seed=3),
]
ALL = ("gaussian", "laplace", "top-t", "simulated")


def asking(mechanism: Mechanism = LAPLACE, **changes: Any) -> RunSpec:
    return RunSpec(
        **{"specs": SPEC, "classes": CLASSES, "mechanism": mechanism} | changes
    )


def party(
    path: Path, X: Any = None, y: Any = None, max_epsilon: float = 1.0, **more: Any
) -> FlyNNClient:
    """A party that allows any mechanism; one with 20 points if none are given."""
    if X is None:
        X, y = points(20)
    policy = Policy(max_epsilon, 1e-4, ALL)
    return FlyNNClient(
        X, y, name="Basel", budget=Budget(path / "state", policy), **more
    )


def answer(client: FlyNNClient, asked: RunSpec | None = None) -> FitRes:
    return client.to_client().fit(
        FitIns(ndarrays_to_parameters([]), counting(asked or asking()))
    )


def array_of(reply: FitRes) -> np.ndarray:
    return codec.read_tensors(reply.parameters.tensors)[1]


def refusal(client: FlyNNClient, asked: Any = None) -> str:
    if isinstance(asked, dict):
        config = asked
    else:
        config = counting(asked or asking())
    arrays, n_examples, metrics = client.fit([], config)
    assert arrays == []
    assert n_examples == 0
    return str(metrics[REFUSED])


def form(reply: FitRes) -> Any:
    """Everything about a reply but the noisy counts."""
    tensors = reply.parameters.tensors
    arrays = codec.read_tensors(tensors)
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    return (
        [len(tensor) for tensor in tensors],
        shapes,
        reply.num_examples,
        reply.metrics,
        reply.status,
    )


# ---- what leaves a party


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.kind)
def test_the_form_of_a_reply_depends_on_no_record(mechanism, tmp_path):
    X, y = points(40)
    odd = X.astype(object)
    wrong = y.astype(object)
    odd[3, 1] = "word"
    odd[4, 2] = np.nan
    odd[5, 3] = 1e300
    wrong[:10] = "oak"
    data = {
        "all": (X, y),
        "one less": (X[1:], y[1:]),
        "none": (X[:0], y[:0]),
        "one class": (X[y == "ash"], y[y == "ash"]),
        "ten thousand": (np.repeat(X, 250, axis=0), np.repeat(y, 250)),
        "odd": (odd, y),
        "wrong labels": (X, wrong),
        "nothing that fits": (np.full((9, 4), np.nan), ["oak"] * 9),
    }
    replies = {
        name: answer(party(tmp_path / name, *samples), asking(mechanism))
        for name, samples in data.items()
    }
    forms = {name: form(reply) for name, reply in replies.items()}
    assert forms == dict.fromkeys(data, forms["all"])
    assert forms["all"][2:4] == (NOISY_EXAMPLES, {"flynn-party": "Basel"})
    assert forms["all"][1][1] == ("<i4", (3, 24))


def test_noise_is_on_classes_that_a_party_does_not_have(tmp_path):
    empty = party(tmp_path, *points(0))
    array = array_of(answer(empty, asking(LaplaceCounts(0.1, **SHAPE))))
    assert (np.abs(array).sum(axis=1) > 0).all()
    assert array.min() < 0


@pytest.mark.parametrize(
    ("records_per_person", "kind", "least"),
    [(1, "int32", -(2**31) + 1), (10**6, "int64", -(2**40))],
    ids=["narrow", "wide"],
)
def test_wide_noise_travels_in_wide_integers(records_per_person, kind, least):
    mechanism = LaplaceCounts(0.001, **SHAPE, records_per_person=records_per_person)
    release = mechanism.received(np.full((3, 24), -(2**40)), HASHER.fingerprint)
    array = encode_release(release, mechanism)[1]
    assert array.dtype == kind
    assert array.min() == least


def test_parties_of_a_simulation_draw_different_noise(tmp_path):
    def array(name: str, folder: str) -> list[list[int]]:
        budget = Budget(tmp_path / folder, Policy(1.0, 0.0, ALL))
        client = FlyNNClient(*points(20), name=name, budget=budget)
        reply = answer(client, asking(SimulatedRelease(LAPLACE, seed=3)))
        drawn: list[list[int]] = array_of(reply).tolist()
        return drawn

    assert array("a", "1") == array("a", "2") != array("b", "3")


# ---- the request


# ---- the server


def release(
    n: int = 5, seed: int = 0, mechanism: Mechanism = LAPLACE
) -> list[np.ndarray]:
    simulated = SimulatedRelease(mechanism, seed)
    return encode_release(simulated.release(counts_of(*points(n, seed))), mechanism)


def reply(
    cid: str, arrays: list[np.ndarray], n_examples: int = NOISY_EXAMPLES
) -> Reply:
    return Reply(cid, codec.write_tensors(arrays), n_examples, {})


def a_server(mechanism: Mechanism = LAPLACE, **more: Any) -> Run:
    return Run(
        RunOptions(SPEC, CLASSES, **{"min_parties": 1, "mechanism": mechanism} | more)
    )


def take(server: Run, *replies: Reply) -> ExchangeResult:
    """Ask the parties of `replies` and one that stays silent, and return the outcome."""
    cids = dict.fromkeys(reply.cid for reply in replies)
    assert server.ask(TRAIN, [*cids, "late"])
    return server.complete(replies, Failures())


def test_releases_are_added_up_with_their_noise():
    server = a_server(min_parties=3)
    arrays = [release(seed=seed) for seed in range(3)]
    take(server, reply("0", arrays[0]), reply("1", arrays[1]))
    # The second party is not asked again.
    outcome = take(server, reply("2", arrays[2]), reply("1", arrays[1]))
    assert outcome.batch.repeated == []
    np.testing.assert_array_equal(
        server.counts.array, sum(array[1].astype(int) for array in arrays)
    )
    assert server.counts.noise_variance == pytest.approx(3 * LAPLACE.noise_sd**2)
    assert len(server.counts.noise) == 3
    assert {member.examples for member in server.counted.counted} == {None}
    assert len(server.counted.counted) == 3
    assert server.counts.array.dtype == np.int64


FINGERPRINT, NOISY = release()
HUGE = np.full((3, 24), 2**62)


HOSTILE = {
    "exact counts": (codec.encode(counts_of(*points(5))), 1, "expected type <i4"),
    "wide": ([FINGERPRINT, NOISY.astype(np.int64)], 1, "expected type <i4"),
    "another hash": ([np.zeros(32, np.uint8), NOISY], 1, "fingerprint: expected"),
    "no examples": ([FINGERPRINT, NOISY], 0, "num_examples"),
    "5 examples": ([FINGERPRINT, NOISY], 5, "num_examples"),
    "no number": ([FINGERPRINT, NOISY], True, "num_examples"),
}


@pytest.mark.parametrize(
    ("arrays", "n_examples", "reason"), HOSTILE.values(), ids=HOSTILE
)
def test_hostile_replies_are_refused(arrays, n_examples, reason):
    server = a_server()
    before = server.counts
    state = server.state
    assert reason in take(server, reply("0", arrays, n_examples)).batch.refused["0"]
    assert server.counts == before
    assert server.counted.counted == []
    assert server.state == state


MOST = 100 + math.ceil(40 * LAPLACE.noise_sd)


WIDE = LaplaceCounts(0.001, **SHAPE, records_per_person=10**6)
SIZES = [(LAPLACE, size) for size in (MOST, -MOST, MOST + 1, -MOST - 1, -(2**31))]


@pytest.mark.parametrize(
    ("mechanism", "size"), [*SIZES, (WIDE, 2**62), (WIDE, -(2**63))]
)
def test_counts_as_large_as_noise_can_make_them_are_counted_and_larger_ones_refused(
    mechanism, size
):
    server = a_server(mechanism, max_examples_per_party=100)
    dtype = np.min_scalar_type(-abs(size))  # int32, or int64 of wide ones
    arrays = [FINGERPRINT, np.full((3, 24), size, max(dtype, np.dtype(np.int32)))]
    refused = take(server, reply("0", arrays)).batch.refused.get("0", "")
    assert ("counts: expected entries from" in refused) == (abs(size) > MOST)


def ran(
    api: Api, tmp_path: Path, mechanism: Mechanism, settings: Any = None, **more: Any
) -> tuple[Any, Any]:
    """A run of three parties, and its network.

    The second party has only records that do not fit.
    """
    X, y = points(300)
    spoiled = X.copy()
    spoiled[1::3] = np.nan
    more |= {"max_epsilon": 200.0, "X_test": X, "y_test": y}
    parties = [
        party(tmp_path / str(i), spoiled[i::3], y[i::3], **more) for i in range(3)
    ]
    network = api(parties)
    made = network.make(mechanism=mechanism, decay="auto", **settings or {})
    assert made.guarantee == mechanism.guarantee()
    network.run(made)
    assert made.selection is None
    return made, network


@BOTH
def test_a_private_run_s_model_has_its_guarantee(api, tmp_path, caplog):
    mechanism = LaplaceCounts(2.0, **SHAPE)
    made, network = ran(api, tmp_path, mechanism)
    assert made.num_rounds == 1
    assert made.run.state.results.keys() == {"counts"}
    assert made.evaluation is None
    assert network.asked() == [["train"]] * 3
    assert made.guarantee == made.model.guarantee_ == mechanism.guarantee()
    assert made.guarantee in caplog.text
    X, y = points(300)
    fits = np.arange(300) % 3 != 1
    exact = counts_of(X[fits], y[fits])
    assert 0 < np.abs(made.counts.array - exact.array).max() < 100


@BOTH
@pytest.mark.parametrize(
    "mechanism", [GaussianCounts(100.0, 1e-5, **SHAPE), SimulatedRelease(LAPLACE, 4)]
)
def test_a_private_run_can_be_evaluated_where_parties_allow_it(
    api, mechanism, tmp_path
):
    received: list[FlyNNClassifier] = []
    made, _ = ran(
        api,
        tmp_path,
        mechanism,
        {"fraction_evaluate": 1.0},
        evaluates=True,
        on_model=received.append,
    )
    assert made.evaluation["examples"] == 900
    assert received[0].guarantee_ == mechanism.guarantee()
    assert (received[0].counts_.array == made.counts.array).all()
    assert received[0].counts_.noise_variance == pytest.approx(
        made.counts.noise_variance
    )
    X, y = points(300)
    assert made.evaluation["accuracy"] == pytest.approx(
        np.mean(made.model.predict(X) == y)
    )


@pytest.mark.parametrize("n_releases", [None, 0, True, 2.0, 2**31])
def test_a_model_of_no_number_of_releases_is_refused(n_releases):
    total = SimulatedRelease(LAPLACE, 1).release(counts_of(*points(20)))
    asked = evaluation_of(
        asking(), (total,), (ScoringRule("balanced", 0.5, 1.0),), n_releases=1
    )
    X, y = points(5)
    client = FlyNNClient(X, y, X_test=X, y_test=y)
    config = config_of(asked) | {key("n_releases"): n_releases}
    assert "releases: expected " in client.evaluate(asked.arrays(), config)[2][REFUSED]
    assert client.evaluate(asked.arrays(), config_of(asked))[1] == 5


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(-128, 5, "int8"), (-1, 127, "int8"), (-1, 128, "int16"), (0, 200, "int16")],
)
def test_sums_of_noisy_counts_travel_signed(low, high, kind):
    array = np.full((3, 24), low)
    array[0, 0] = high
    message = codec.encode(LAPLACE.received(array, HASHER.fingerprint, 2))
    assert message[1].dtype == kind
    assert (codec.decode_total(message, HASHER, LAPLACE, 2).array == array).all()


def test_sums_of_noisy_counts_that_are_too_large_are_refused():
    with raises(PayloadError, field="counts", got="an entry outside"):
        codec.decode_total([FINGERPRINT, HUGE], HASHER, LAPLACE, 2)


def test_evaluating_a_model_with_a_budget_leaves_out_what_does_not_fit(
    tmp_path,
):
    X, y = points(20)
    spoiled = X.copy()
    spoiled[::2] = np.nan
    asked = evaluation_of(
        RUN, (counts_of(*points(60, seed=1)),), (ScoringRule("balanced", 0.5, 1.0),)
    )
    model = ndarrays_to_parameters(asked.arrays())
    config = config_of(asked)
    client = party(tmp_path, X_test=spoiled, y_test=y, evaluates=True).to_client()
    reply = client.evaluate(EvaluateIns(model, config))
    clean = FlyNNClient(
        X, y, name="Basel", X_test=X[1::2], y_test=y[1::2], class_prior=False
    ).to_client()
    # Without a budget it tells figures without the party and alone as well.
    expected = clean.evaluate(EvaluateIns(model, config))
    tables, others = (
        codec.read_tensors(codec.split(res.metrics[STATISTIC]))
        for res in (reply, expected)
    )
    for index in (0, 1, 3, 4):
        np.testing.assert_array_equal(tables[index], others[index])
    assert not np.concatenate([tables[2].ravel(), *tables[-1:]], axis=None).any()
    assert reply.status == Status(Code.OK, "Success")
