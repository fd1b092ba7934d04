"""Matrix scaling of pair sums over the wire: what comes from others is checked; see also `test_pairs`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn.errors import FlyNNError, PayloadError
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.collect import Reply
from flwr_flynn.federated.compression import pack_signed, unpack_signed
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.pair_scaling import PairScalingRequest
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, TRAIN, Config, key
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.matrix_scaling import (
    LARGEST_WEIGHT,
    Scaling,
    identity,
    largest,
    memory_of_scaling,
    shapes,
    statistic_of,
)
from flwr_flynn.model.pair_readout import PairReadout
from flwr_flynn.model.pairs import PairFit, PairSums, learn_pairs, memory_of_pairs, pair_specs
from tests.federated.phases.test_pairs import (
    EVALUATION,
    EXCHANGES,
    LABELS,
    LEARNED,
    NAMES,
    OWN,
    SPEC,
    TWO,
    X,
    Y,
    changed,
    counted,
    digest,
    options,
    parts,
    party_of,
)
from tests.federated.runs import Exchange
from tests.federated.runs import statistic_of as answered
from tests.memory import traced
from tests.raising import raises

assert LEARNED is not None
RUN, READOUT = RunSpec(TWO, NAMES), replace(LEARNED, matrix=None)
SIZES = np.bincount(Y)
FIRST = PairScalingRequest(RUN, READOUT, SIZES, identity(3), identity(3))
OTHER = replace(FIRST, readout=replace(READOUT, specs=[replace(spec, seed=99) for spec in READOUT.specs]))
START, SCORES = identity(3), READOUT.left_out(X, Y, SIZES)
READOUT_OF_RUN = replace(learn_pairs(OWN, X, Y, 3, None), matrix=None)
LATER = replace(FIRST, matrix=identity(3) + np.int32(5), best=identity(3) + np.int32(2))


@pytest.mark.parametrize("request_", [FIRST, LATER], ids=["first", "later"])
@pytest.mark.parametrize("batch", [2**10, 28])
def test_a_request_makes_the_round_trip_and_is_answered(
    request_: PairScalingRequest, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flwr_flynn.federated.phases.pair_scaling._BATCH", batch)
    config = request_.to_config()
    again = PairScalingRequest.from_config(Config(config), request_.arrays(), party_of(X, LABELS))
    assert again.to_config() == config
    assert all(map(np.array_equal, again.arrays(), request_.arrays()))
    found = answered(request_, party_of(X, LABELS), Member("", "1", sizes=tuple(SIZES.tolist())))
    expected = statistic_of(READOUT.left_out(X, Y, SIZES), Y, SIZES, request_.matrix, request_.best)
    for one, other in zip(found.parts, expected.parts, strict=True):
        assert_array_equal(one, other)


def test_only_counted_parties_are_heard() -> None:
    for member in (None, Member("", "1")):
        with pytest.raises(PayloadError):
            answered(FIRST, party_of(X, LABELS), member)


CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no sizes": lambda config: config.pop(key("sizes")),
    **{
        f"sizes {values}": lambda config, values=values: config.update({key("sizes"): json.dumps(values)})
        for values in (
            [80, 80],
            [80] * 4,
            [0, 0, 0],
            [-1, 80, 80],
            [80.0, 80, 80],
            [True, 1, 1],
            [2**48, 1, 1],
            "80",
            {},
        )
    },
    "other specs": lambda config: config.update(
        {key(name): OTHER.to_config()[key(name)] for name in ("pairs", "pair_specs", "pair_fingerprints")}
    ),
    "no scores": lambda config: config.pop(key("pairs")),
    "a matrix already": lambda config: config.update(
        {key("pairs"): json.dumps([*json.loads(config[key("pairs")]), identity(3).tolist()])}
    ),
    "too many figures": lambda config: config.update(
        {key("pairs"): json.dumps([*json.loads(config[key("pairs")]), None, None])}
    ),
}
ARRAYS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "none": lambda _: [],
    "no matrix": lambda arrays: arrays[:1],
    "one matrix": lambda arrays: arrays[:2],
    "one more": lambda arrays: [*arrays, arrays[0]],
    "floats": lambda arrays: [*arrays[:2], np.eye(4, 3)],
    "of another shape": lambda arrays: [arrays[0], pack_signed(np.eye(3, dtype=np.int32)), arrays[2]],
    "too large": lambda arrays: [*arrays[:2], pack_signed(identity(3) + LARGEST_WEIGHT)],
    "weights of another shape": lambda arrays: [pack_signed(np.zeros((3, 3), np.int32)), *arrays[1:]],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_hostile_request_is_refused(name: str) -> None:
    config = dict(FIRST.to_config())
    CONFIGS[name](config)
    with pytest.raises(FlyNNError):
        PairScalingRequest.from_config(Config(config), FIRST.arrays(), party_of(X, LABELS))


@pytest.mark.parametrize("name", ARRAYS)
def test_hostile_arrays_are_refused(name: str) -> None:
    with pytest.raises(PayloadError):
        PairScalingRequest.from_config(Config(FIRST.to_config()), ARRAYS[name](FIRST.arrays()), party_of(X, LABELS))


def test_a_party_that_allows_no_pair_sums_refuses() -> None:
    party = party_of(X, LABELS, pairs=False)
    answer = party.answer({key("phase"): FIRST.phase, **FIRST.to_config()}, FIRST.arrays(), EVALUATE)
    assert "pairs" in str(answer.metrics[REFUSED])
    assert answer.arrays == []


def test_a_party_takes_no_more_memory_than_its_limit_whatever_class_sizes_it_is_told() -> None:
    """Of small classes all samples are kept; announced as small, the whole of a large party would be at once."""
    n, n_classes, specs = 20_000, 32, pair_specs([SPEC], 32)
    readout = PairReadout(specs, np.ones((32, n_classes), np.int32), np.zeros(n_classes, np.int64), 1.0, 0.5)
    run = RunSpec(specs, tuple(range(n_classes)))
    start = identity(n_classes)
    request = PairScalingRequest(run, readout, np.full(n_classes, 60), start, start)
    limit = memory_of_pairs(32, n_classes) + memory_of_scaling(n_classes, 2**10)
    points, labels = np.random.default_rng(0).normal(size=(n, 4)), np.arange(n) % n_classes
    party, config = party_of(points, labels, memory_limit=limit), {key("phase"): request.phase, **request.to_config()}
    assert REFUSED not in party.answer(config, request.arrays(), EVALUATE).metrics  # code is compiled
    with traced() as memory:
        party.answer(config, request.arrays(), EVALUATE)
    assert memory.peak < limit < 8 * n * n_classes
    answer = party_of(points, labels, memory_limit=limit - 1).answer(config, request.arrays(), EVALUATE)
    assert str(answer.metrics[REFUSED]).startswith("memory: ")


@pytest.mark.parametrize(
    "matrix", [[[1.0] * 3] * 4, [[True] * 3] * 4, [[1] * 3] * 3, [[2**17] * 3] * 4, [[1], [1, 2]], 7]
)
def test_a_hostile_matrix_of_a_model_is_refused(matrix: Any) -> None:
    figures = json.loads(str(EVALUATION.to_config()[key("pairs")]))
    config = {**EVALUATION.to_config(), key("pairs"): json.dumps([*figures[:5], matrix])}
    with raises(PayloadError, field=key("pairs")):
        type(EVALUATION).from_config(Config(config), EVALUATION.arrays(), party_of(X, LABELS))


@pytest.mark.parametrize(("n_classes", "has_matrix"), [(64, True), (65, False)])
def test_up_to_64_classes_get_a_matrix_at_one_place_and_in_a_federation(n_classes: int, has_matrix: bool) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(4 * n_classes) % n_classes
    points = rng.normal(size=(n_classes, 4))[labels] + 0.3 * rng.normal(size=(len(labels), 4))
    alone = learn_pairs(pair_specs([SPEC], 32), points, labels, n_classes, None)
    given = RunOptions(SPEC, range(n_classes), 2, decay=0.5, pairs=32)
    parties = [party_of(points[i::2], labels[i::2], min_examples=1) for i in range(2)]
    found = federate(given, parties).model.model_.pairs
    assert alone is not None
    assert found is not None
    assert found.sha256() == alone.sha256()
    assert (found.matrix is not None) == has_matrix


def test_what_the_matrix_was_taught_by_does_not_judge_it() -> None:
    """Samples that taught 40 times 41 numbers are nearly all right by them, which fresh ones are not."""
    rng, n_classes = np.random.default_rng(0), 40
    centres, labels = rng.normal(size=(n_classes, 20)), np.arange(400) % n_classes
    made = [centres[labels] + rng.normal(size=(400, 20)) for _ in range(2)]
    spec = HashSpec(n_features=20, hash_dim=256, row_nnz=4, hash_nnz=64, seed=0)
    specs = pair_specs([spec], 256)
    found = learn_pairs(specs, made[0], labels, n_classes, 0.8)
    sums = PairSums.from_data(specs, made[0], labels, n_classes)
    fit = PairFit.of(sums)
    without = fit.readout(specs, sums.n_per_class, fit.tables(specs, made[0], labels), 0.8)
    assert found is not None
    assert without is not None
    assert found.matrix is not None
    assert (found.accuracy, found.share) == (without.accuracy, without.share)
    fresh = np.mean(found.log_odds(made[1]).argmax(axis=1) == labels)
    assert abs(found.accuracy - fresh) < 0.06  # 3 standard deviations


def part(place: int, value: int, entry: tuple[int, int] = (0, 0)) -> Callable[[list[Any], bool], list[Any]]:
    """Put a value into an array of the answer: loss, gradient, curvature."""

    def change(arrays: list[Any], is_first: bool) -> list[Any]:
        shape = shapes(3, is_first)[place]
        table = unpack_signed(arrays[place], shape if len(shape) == 2 else (1, shape[0]), 2**60)
        table[entry] = value
        return [*arrays[:place], pack_signed(table), *arrays[place + 1 :]]

    return change


MOST = largest(60)  # of a party's 60 samples
HOSTILE: dict[str, Callable[[list[Any], bool], list[Any]]] = {
    "nothing": lambda _arrays, _: [],
    "an array less": lambda arrays, _: arrays[:-1],
    "an array more": lambda arrays, _: [*arrays, arrays[0]],
    "floats": lambda arrays, _: [arrays[0], np.ones((4, 3)), *arrays[2:]],
    "negative loss": part(0, -1),
    "negative loss before": part(0, -1, (0, 1)),
    "too large a loss": part(0, MOST[0] + 1),
    "too large a gradient": part(1, MOST[1] + 1),
    "too small a gradient": part(1, -MOST[1] - 1, (3, 2)),
}


@pytest.mark.parametrize(
    ("name", "number"),
    [*product(HOSTILE, (1, 2)), ("negative curvature", 1), ("too large a curvature", 1)],
)
def test_a_hostile_reply_costs_its_sender_s_say_alone(name: str, number: int) -> None:
    changes = HOSTILE | {"negative curvature": part(2, -1, (1, 4)), "too large a curvature": part(2, MOST[2] + 1)}

    def spoil(reply: Reply) -> Reply:
        return changed(reply, lambda arrays: changes[name](arrays, number == 1)) if reply.cid == "3" else reply

    steps, silent = counted(), counted()
    phase = f"pair scaling {number}"
    for each in (steps, silent):
        for _ in EXCHANGES[: EXCHANGES.index(phase)]:
            each.step(EVALUATE)
    taken = steps.step(EVALUATE, spoil=spoil)
    assert taken is not None
    assert taken.phase.name == phase
    assert list(taken.missing) == ["party-3"]
    assert "unreadable" not in taken.missing["party-3"]
    silent.step(EVALUATE, failures={"3": "failed"})
    assert digest(steps.rounds()) == digest(silent.rounds())


def test_a_sum_beyond_its_capacity_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    most = max(int(np.abs(each).max()) for each in statistic_of(SCORES, Y, SIZES, START, START).parts)
    monkeypatch.setattr(PairScalingRequest, "capacity", most // 2)
    steps = counted()
    for _ in EXCHANGES[:2]:
        steps.step(EVALUATE)
    taken = steps.step(EVALUATE)
    assert taken is not None
    assert 0 < len(taken.missing) < 4
    assert all("no room" in reason for reason in taken.missing.values())


# ---- exchanges without answers


def scaling(lost: dict[str, str]) -> Run:
    """A run in which some parties, by the names of the exchanges, give no answer."""
    steps = counted()
    for name in EXCHANGES:
        if name not in steps.run.state.results:
            steps.step(EVALUATE, failures=dict.fromkeys(lost.get(name, ""), "failed: no"))
    return steps.rounds(1)


def test_an_exchange_without_answers_is_as_none() -> None:
    search, scores = Scaling.of(3), READOUT_OF_RUN.left_out(X, Y, SIZES)
    for _ in range(len(EXCHANGES) - 3):
        search = search.take(statistic_of(scores, Y, SIZES, search.trial, search.known))
    run = scaling({"pair scaling 2": "0123"})
    found = run.model.model_.pairs
    assert found is not None
    assert_array_equal(found.matrix, search.best)
    assert len(run.state.results["pair scaling 2"].missing) == 4
    # The next exchange asks the same, and so of nobody twice.
    assert run.state.results["pair scaling 2"].search.trial is run.state.results["pair scaling 1"].search.trial


def test_without_any_answer_there_is_no_matrix() -> None:
    found = scaling(dict.fromkeys(EXCHANGES[2:], "0123")).model.model_.pairs
    assert found is not None
    assert found.matrix is None
    assert found.sha256() == READOUT_OF_RUN.sha256()


def test_a_party_without_samples_alone_ends_nothing() -> None:
    empty = [*parts()[:3], {**parts()[3], "X": X[:0], "y": LABELS[:0]}]
    steps = Exchange(
        Run(RunOptions(**options(SPEC, decay=0.5))),
        {str(i): party_of(**part, name=f"party-{i}", min_examples=1) for i, part in enumerate(empty)},
    )
    steps.step(TRAIN)
    for name in EXCHANGES:
        steps.step(EVALUATE, failures=dict.fromkeys("012", "failed: no") if name == "pair scaling 1" else None)
    assert steps.run.state.results["pair scaling 2"].search.best is not None
    assert not steps.run.state.results["pair scaling 1"].search.is_done


def test_no_gradient_is_asked_of_different_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two secure sums at one matrix the difference is what the parties in one of them sent."""
    asked: list[bytes] = []
    take = Scaling.take

    def spy(self: Scaling, *given: Any) -> Scaling:
        asked.append(self.trial.tobytes())
        return take(self, *given)

    monkeypatch.setattr(Scaling, "take", spy)
    for lost in ({"pair scaling 1": "1"}, {"pair scaling 2": "1", "pair scaling 4": "2"}, {"pair scaling 3": "12"}):
        asked.clear()
        scaling(lost)
        assert len(set(asked)) == len(asked) == 5


def test_a_search_that_is_done_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Scaling.take
    monkeypatch.setattr(Scaling, "take", lambda *given: replace(found := take(*given), trial=found.best))
    run = scaling({"pair scaling 1": "1"})
    assert [name for name in EXCHANGES if name in run.traffic] == EXCHANGES[:3]
    missing = {name: list(run.state.results[name].missing) for name in EXCHANGES[2:]}
    assert missing == {name: ["party-1"] if name == "pair scaling 1" else [] for name in EXCHANGES[2:]}
