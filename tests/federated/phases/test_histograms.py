"""The histograms of the columns: exact, floored at the party, and refused where no samples have such histograms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.compression import pack_numbers, unpack_numbers
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.phases.histograms import HistogramsRequest
from flwr_flynn.federated.protocol import PHASE, REFUSED, TRAIN, Config, Reply
from flwr_flynn.hashing.rank_codes import KEY_BITS, values_of
from flwr_flynn.model.alignment import Reference
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.privacy import LaplaceCounts
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.federated.runs import (
    AUTO,
    DRIVERS,
    LABELS,
    NAMES,
    SPLITS,
    TRAINING,
    X,
    Y,
    exchange,
    in_process,
    options_for,
    replied,
    shares,
    statistic_of,
)

CENTER = X[TRAINING].mean(axis=0)
REQUEST = HistogramsRequest(CENTER, NAMES)
RANKS = HashPlan(4, 3, 120, "ranks", hash_dim=128)
CODES = Y.astype(np.int64)


def plain(request: HistogramsRequest, party: Party) -> ColumnHistograms:
    """The histograms that a party sends."""
    found: ColumnHistograms = statistic_of(request, party).plain
    return found


def histograms(places: Any, least: int = 1, center: Any = CENTER) -> ColumnHistograms:
    return ColumnHistograms.from_data(X[places], CODES[places], 3, list(center), least)


# ---- at a party


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("plan", [AUTO, RANKS], ids=["auto", "ranks"])
def test_histograms_of_any_split_give_the_pooled_specs(plan: HashPlan, driver: str, how: str) -> None:
    run = DRIVERS[driver](options_for(plan, decay=0.5), shares(how))
    by_class = CODES[TRAINING] if plan is AUTO else 0 * CODES[TRAINING]
    moments = ColumnMoments.from_data(X[TRAINING], by_class, 3 if plan is AUTO else 1)
    center, _ = moments.center_and_scale("center")
    result = run.state.results["histograms"]
    assert result.histograms == histograms(TRAINING, center=center)
    assert (result.missing, result.trouble) == ({}, "")
    assert run.state.run_spec.specs == plan.specs(moments, result.histograms)


def test_a_request_makes_the_round_trip() -> None:
    request = HistogramsRequest(CENTER, np.array(NAMES), list("wxyz"))
    again = HistogramsRequest.from_config(Config(request.to_config()), request.arrays(), party_of(X, LABELS))
    np.testing.assert_array_equal(again.center, CENTER)
    assert (again.classes, again.feature_names) == (NAMES, tuple("wxyz"))
    assert again.n_features == 4


@pytest.mark.parametrize("change", [{"classes": []}, {"classes": "ash"}, {"feature_names": ["a"]}])
def test_a_request_that_cannot_be_is_an_error_of_the_server(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        replace(REQUEST, **change)
    assert error.value.field in change


@pytest.mark.parametrize("convert", ["csr_matrix", "csc_array", "coo_array"])
def test_histograms_of_sparse_samples_are_those_of_dense_ones(convert: str) -> None:
    sparse = party_of(getattr(sp, convert)(X), LABELS, min_examples=1)
    found = plain(REQUEST, sparse)
    assert found == plain(REQUEST, party_of(X, LABELS, min_examples=1)) == histograms(slice(None))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("classes", "[]", "classes"),
        ("classes", None, "flynn-classes"),
        ("classes", '["setosa"]', "100 of 150"),
        ("feature-names", '["a"]', "feature_names"),
    ],
)
def test_the_fields_of_a_request_are_checked_by_the_party(name: str, value: Any, said: str) -> None:
    entries = {PHASE: "histograms", **REQUEST.to_config(), f"flynn-{name}": value}
    answer = party_of(X, LABELS).answer(entries, REQUEST.arrays())
    assert (answer.arrays, answer.n_examples) == ([], 0)
    assert said in str(answer.metrics[REFUSED])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ([], "center"),
        ([CENTER, CENTER], "center"),
        ([CENTER.astype("f4")], "center"),
        ([CENTER.astype(">f8")], "center"),
        ([CENTER.astype(int)], "center"),
        ([CENTER[None]], "center"),
        ([CENTER[:0]], "center"),
        ([np.array([0.0, np.nan, 0, 0])], "center"),
        ([np.array([0.0, np.inf, 0, 0])], "center"),
        ([CENTER[:3]], "n_features"),
        ([np.append(CENTER, 0.0)], "n_features"),
    ],
)
def test_a_wrong_centre_is_refused_by_the_party(arrays: list[Any], said: str) -> None:
    answer = party_of(X, LABELS).answer({PHASE: "histograms", **REQUEST.to_config()}, arrays)
    assert (answer.arrays, answer.n_examples) == ([], 0)
    assert said in str(answer.metrics[REFUSED])


def test_a_centre_that_leaves_float64_is_refused_without_a_value_of_the_data() -> None:
    samples = np.where(np.arange(150)[:, None] == 7, 1.2345e308, X)
    party = party_of(samples, LABELS, min_examples=1)
    answer = party.answer({PHASE: "histograms", **REQUEST.to_config()}, [np.full(4, -1.7e308)])
    assert answer.metrics.keys() == {REFUSED}
    assert "1.2345" not in str(answer.metrics[REFUSED])
    assert "failed" not in str(answer.metrics[REFUSED])


def test_a_centre_far_away_tells_less_and_breaks_nothing() -> None:
    """A server may choose any centre: bins are then wide."""
    found = plain(replace(REQUEST, center=np.full(4, 1e12)), party_of(X, LABELS))
    assert found.n_examples == 150
    assert found.counts.min() >= 5
    assert len(found.cells) == 3 * 4


def test_the_memory_limit_is_asked_before_anything_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 64 * X.size
    assert REFUSED not in replied(REQUEST, party_of(X, LABELS, memory_limit=needed)).metrics
    monkeypatch.setattr(ColumnHistograms, "from_data", lambda *_: pytest.fail("counted"))
    for limit in (REQUEST.memory_needed - 1, needed - 1):
        refused = replied(REQUEST, party_of(X, LABELS, memory_limit=limit)).metrics[REFUSED]
        assert str(refused).startswith("memory: ")


# ---- the floor


SWEPT = 1.02 ** np.arange(97)  # values of a column, two per cent apart
MET = np.random.default_rng(0).permutation(97)


def forged(party: Party, floor: Any, center: float, **entries: Any) -> ColumnHistograms | None:
    """The last histograms of a party's reply to a server that asks with a floor of its own; None: refused."""
    request = replace(REQUEST, center=np.array([center]), classes=("a",))
    config = {PHASE: "histograms", **request.to_config(), "flynn-min-examples": floor, **entries}
    answer = party.answer(config, request.arrays())
    if REFUSED in answer.metrics:
        return None
    sizes, *packed = answer.arrays[-3:]
    gaps, counts = (unpack_numbers(each, 10**6, 2**63 - 1) for each in packed)
    return ColumnHistograms(1, sizes, np.cumsum(gaps + 1) - 1, counts + 1)


def values_told(party: Party, floors: Any, centers: Any) -> set[int]:
    """Ranks of the values that such a server knows within .2 per cent in the end."""
    told = []
    for floor in floors:
        for center in centers:
            if (found := forged(party, floor, center)) is not None:
                told += (values_of(found.cells) + center).tolist()
    return {rank for rank, value in enumerate(SWEPT) if any(abs(each - value) <= 0.002 * value for each in told)}


def test_a_server_that_sweeps_floors_and_centres_learns_every_fifth_value_and_no_end() -> None:
    """A centre beside a value tells further digits of it; that no floor and no centre tells of another is the law."""
    party = party_of(SWEPT[MET, None], np.full(97, "a"))
    once = values_told(party, [5], [0.0])
    assert once == {*range(4, 90, 5), 90}
    assert values_told(party, range(1, 101), [0.0]) == once
    assert values_told(party, [1, 20, 97, None, "1"], [0.0, *(SWEPT * 1.0001).tolist()]) == once
    assert len(once) == 19


@pytest.mark.parametrize("center", [0.0, -3.0, 2.5])
@pytest.mark.parametrize("mean", [-40.0, 1.0, 900.0])
def test_an_alignment_of_the_server_s_choice_leads_to_the_same_ranks(center: float, mean: float) -> None:
    party = party_of(SWEPT[MET, None], np.full(97, "a"))
    samples = np.random.default_rng(1).normal(mean, 3, size=(500, 1))
    reference = Reference.of(ColumnMoments.from_data(samples, np.zeros(500, np.int64), 1))
    found = forged(party, 1, center, **{"flynn-reference": reference.data})
    alignment = reference.alignment(SWEPT[:, None], np.zeros(97, np.int64))
    assert found is not None
    assert alignment is not None
    told = alignment.applied(SWEPT[[*range(4, 90, 5), 90], None])
    expected = ColumnHistograms.from_data(np.repeat(told, [5] * 18 + [7], axis=0), np.zeros(97, np.int64), 1, [center])
    assert found == expected


def test_bins_and_classes_of_few_samples_stay_at_home() -> None:
    some = np.concatenate([np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y == 1)[:23], np.flatnonzero(Y == 2)])
    found = plain(REQUEST, party_of(X[some], LABELS[some], min_examples=5))
    assert found == histograms(some, 5)
    assert found.n_per_class.tolist() == [0, 23, 50]
    assert found.counts.min() >= 5


def test_a_party_of_too_few_samples_sends_an_empty_histogram() -> None:
    found = plain(REQUEST, party_of(X[:4], LABELS[:4]))
    assert (found.n_examples, len(found.cells)) == (0, 0)
    assert plain(REQUEST, party_of(X[:4], LABELS[:4], min_examples=1)).n_examples == 4


def test_a_whole_run_under_a_floor_counts_all_samples() -> None:
    parts = shares()
    run = federate(RunOptions(**options_for(AUTO)), [party_of(**part, name=str(i)) for i, part in enumerate(parts)])
    result = run.state.results["histograms"]
    assert result.trouble == ""
    assert result.histograms.counts.min() >= 5
    assert run.counts.n_examples == 120


@pytest.mark.parametrize("plan", [AUTO, RANKS], ids=["auto", "ranks"])
def test_where_all_histograms_stay_at_home_the_columns_are_left_as_they_are(plan: HashPlan) -> None:
    run = in_process(options_for(plan), shares(), min_examples=1000)
    result = run.state.results["histograms"]
    assert (result.histograms.n_examples, result.trouble) == (0, "no party sent the sums of any sample")
    assert run.state.run_spec.specs == HashPlan(4, 3, 120, None, hash_dim=128).specs()
    assert run.model.model_.members[0].counts.n_examples == 120


def test_where_no_histogram_comes_back_the_columns_are_left_as_they_are() -> None:
    steps = exchange(RANKS)
    steps.step(TRAIN)
    steps.step(TRAIN, spoil=lambda reply: replace(reply, tensors=[b"junk"]))
    result = steps.run.state.results["histograms"]
    assert result.trouble == "no party sent the histograms of any sample"
    assert result.missing.keys() == {f"party-{i}" for i in range(4)}
    assert steps.run.state.run_spec.specs == HashPlan(4, 3, 120, None, hash_dim=128).specs()


# ---- hostile replies


def numbers(reply: Reply) -> list[np.ndarray]:
    sizes, *packed = codec.read_tensors(reply.tensors)
    return [sizes.copy(), *(unpack_numbers(each, 10**6, 2**63 - 1) for each in packed)]


def made(reply: Reply, sizes: Any, gaps: Any, counts: Any, n: Any = None) -> Reply:
    tensors = codec.write_tensors([np.asarray(sizes), pack_numbers(np.asarray(gaps)), pack_numbers(np.asarray(counts))])
    return replace(reply, tensors=tensors, n_examples=reply.n_examples if n is None else n)


def shifted(reply: Reply, place: int, values: dict[int, int]) -> Reply:
    parts = numbers(reply)
    for index, value in values.items():
        parts[place][index] += value
    return made(reply, *parts)


def changed(reply: Reply, change: Any) -> Reply:
    return replace(reply, tensors=codec.write_tensors(change(list(codec.read_tensors(reply.tensors)))))


def of_samples(reply: Reply, n: int) -> Reply:
    found = histograms(slice(100 - n, 100))
    gaps = np.diff(found.cells, prepend=-1) - 1
    return made(reply, found.n_per_class, gaps, found.counts - 1, found.n_examples)


HOSTILE: dict[str, tuple[Any, str]] = {
    "nothing": (lambda reply: replace(reply, tensors=[]), "histograms"),
    "two arrays": (lambda reply: changed(reply, lambda arrays: arrays[:2]), "histograms"),
    "four arrays": (lambda reply: changed(reply, lambda arrays: [*arrays, arrays[2]]), "histograms"),
    "junk": (lambda reply: replace(reply, tensors=[reply.tensors[0], b"junk", reply.tensors[2]]), "array 2"),
    "numbers as they are": (
        lambda reply: replace(reply, tensors=codec.write_tensors(numbers(reply))),
        "histograms",
    ),
    "floats": (lambda reply: changed(reply, lambda arrays: [arrays[0].astype(float), *arrays[1:]]), "histograms"),
    "narrow sizes": (lambda reply: changed(reply, lambda arrays: [arrays[0].astype("i4"), *arrays[1:]]), "histograms"),
    "a class less": (lambda reply: changed(reply, lambda arrays: [arrays[0][:2], *arrays[1:]]), "histograms"),
    "negative sizes": (lambda reply: made(reply, [-1, reply.n_examples, 1], *numbers(reply)[1:]), "histograms"),
    "another number": (lambda reply: replace(reply, n_examples=reply.n_examples + 1), "histograms"),
    "no number": (lambda reply: replace(reply, n_examples=float(reply.n_examples)), "num_examples"),
    "cut off": (lambda reply: changed(reply, lambda arrays: [arrays[0], arrays[1][:8], arrays[2]]), "numbers"),
    "half of the bytes": (
        lambda reply: changed(reply, lambda arrays: [arrays[0], arrays[1][:20], arrays[2]]),
        "counts",
    ),
    "bytes behind": (
        lambda reply: changed(reply, lambda arrays: [*arrays[:2], np.append(arrays[2], np.uint8(0))]),
        "numbers",
    ),
    "more counts than cells": (
        lambda reply: made(reply, *numbers(reply)[:2], np.append(numbers(reply)[2], 0)),
        "histograms",
    ),
    "more cells than values": (lambda reply: made(reply, numbers(reply)[0], np.zeros(999), np.zeros(999)), "numbers"),
    "a cell more": (
        lambda reply: made(reply, numbers(reply)[0], *(np.append(each, 0) for each in numbers(reply)[1:])),
        "histograms",
    ),
    "a count more": (lambda reply: shifted(reply, 2, {0: 1}), "histograms"),
    "a count moved to a class of others": (lambda reply: shifted(reply, 2, {0: 1, -1: -1}), "histograms"),
    "a cell beyond": (lambda reply: shifted(reply, 1, {-1: 1 << KEY_BITS}), "histograms"),
    "a gap too wide": (lambda reply: shifted(reply, 1, {-1: 2**40}), "numbers"),
    "a count of all the numbers": (lambda reply: shifted(reply, 2, {0: 2**62}), "numbers"),
    "too many": (lambda reply: of_samples(reply, 90), "histograms"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_costs_its_sender_alone(name: str) -> None:
    spoil, field = HOSTILE[name]
    steps = exchange(AUTO, floor=5, max_examples_per_party=50)
    steps.step(TRAIN)
    before = steps.run.state.results["columns"]
    taken = steps.step(TRAIN, spoil=lambda reply: spoil(reply) if reply.cid == "3" else reply)
    assert taken is not None
    result = steps.run.state.results["histograms"]
    assert list(taken.missing) == list(result.missing) == ["party-3"]
    assert f"refused: {field}: expected " in result.missing["party-3"]
    silent = exchange(AUTO, floor=5, max_examples_per_party=50)
    silent.step(TRAIN)
    silent.step(TRAIN, failures={"3": "failed"})
    assert result.histograms == silent.run.state.results["histograms"].histograms
    assert steps.run.state.run_spec.specs == silent.run.state.run_spec.specs
    assert steps.run.state.results["columns"] == before


def test_an_honest_reply_passes_the_checks_that_the_hostile_ones_fail() -> None:
    steps = exchange(AUTO, floor=5, max_examples_per_party=50)
    steps.step(TRAIN)
    spoil = lambda reply: of_samples(reply, 45) if reply.cid == "3" else reply  # noqa: E731
    taken = steps.step(TRAIN, spoil=spoil)
    assert taken is not None
    assert taken.missing == {}


def test_gaps_that_wrap_around_are_refused() -> None:
    request, n_cells = HistogramsRequest(np.zeros(2**20), NAMES), 2**20
    gaps = np.full(n_cells, 2**43)  # 2**63 together
    tensors = codec.write_tensors([np.array([1, 0, 0]), pack_numbers(gaps), pack_numbers(np.zeros(n_cells))])
    with pytest.raises(PayloadError) as error:
        request.read(codec.read_tensors(tensors), Reply("1", tensors, 1, {}), None)
    assert error.value.field == "histograms"


def test_histograms_have_room_for_the_others() -> None:
    request = HistogramsRequest(np.zeros(1), NAMES)
    n = request.capacity // 1024 + 1
    tensors = codec.write_tensors([np.array([n, 0, 0]), pack_numbers(np.array([5])), pack_numbers(np.array([n - 1]))])
    with pytest.raises(PayloadError) as error:
        request.read(codec.read_tensors(tensors), Reply("1", tensors, n, {}), None)
    assert (error.value.field, error.value.got) == ("histograms", str(n))


# ---- who gives them


def test_private_secure_and_leaving_parties_give_none(tmp_path: Any) -> None:
    budget = Budget(tmp_path / "state", Policy(5.0, mechanisms=["laplace"]))
    for options in ({"budget": budget}, {"secure": True}, {"leaves": True}):
        answer = party_of(X, LABELS, **options).answer({PHASE: "histograms", **REQUEST.to_config()}, REQUEST.arrays())
        assert (answer.arrays, answer.n_examples) == ([], 0)
        assert REFUSED in answer.metrics
    assert budget.spent() == (0.0, 0.0)


@pytest.mark.parametrize("plan", [AUTO, RANKS], ids=["auto", "ranks"])
def test_private_runs_have_no_such_phase(plan: HashPlan) -> None:
    with pytest.raises(ConfigError) as error:
        RunOptions(**options_for(plan, mechanism=LaplaceCounts(1.0, hash_nnz=16, n_classes=3)))
    assert error.value.field == "spec"
