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
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.protocol import PHASE, REFUSED, TRAIN, Config, Reply
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.candidates import HashPlan, derive_specs, placeholder_specs
from flwr_flynn.model.column_cells import coarse
from flwr_flynn.model.column_histograms import ColumnHistograms
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
    refusal,
    replied,
    shares,
    statistic_of,
)
from tests.raising import raises

REQUEST = ColumnsRequest(4, NAMES)
CODES = Y.astype(np.int64)


def histograms(places: Any, least: int = 1) -> ColumnHistograms:
    return ColumnHistograms.from_data(X[places], CODES[places], 3, least)


# ---- at a party


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_histograms_of_any_split_give_the_pooled_specs(driver: str, how: str) -> None:
    run = DRIVERS[driver](options_for(AUTO, decay=0.5), shares(how))
    result = run.state.results["columns"]
    assert result.histograms == histograms(TRAINING)
    assert (run.state.absent("columns"), result.fallback_reason) == ({}, "")
    assert run.state.run_spec.specs == AUTO.specs(result.histograms)


def test_a_request_makes_the_round_trip() -> None:
    request = ColumnsRequest(4, np.array(NAMES), list("wxyz"))
    assert ColumnsRequest.from_config(Config(request.to_config()), [], party_of(X, LABELS)) == request


@pytest.mark.parametrize("change", [{"classes": []}, {"classes": "ash"}, {"feature_names": ["a"]}])
def test_a_request_that_cannot_be_is_an_error_of_the_server(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        replace(REQUEST, **change)
    assert error.value.field in change


@pytest.mark.parametrize("convert", ["csr_matrix", "csc_array", "coo_array"])
def test_histograms_of_sparse_samples_are_those_of_dense_ones(convert: str) -> None:
    sparse = party_of(getattr(sp, convert)(X), LABELS, min_examples=1)
    assert statistic_of(REQUEST, sparse) == histograms(slice(None))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n-features", 5, "n_features"),
        ("n-features", "4", "flynn-n-features"),
        ("n-features", 2**40, "flynn-n-features"),
        ("classes", "[]", "classes"),
        ("classes", None, "flynn-classes"),
        ("classes", '["setosa"]', "some labels are not in the class list"),
        ("feature-names", '["a"]', "feature_names"),
    ],
)
def test_the_fields_of_a_request_are_checked_by_the_party(name: str, value: Any, said: str) -> None:
    assert said in refusal(REQUEST, party_of(X, LABELS), {f"flynn-{name}": value})


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
TOLD = [*range(4, 90, 5), 90]  # ranks of the values that a floor of 5 tells


def asked(party: Party, request: Any, floor: Any) -> ColumnHistograms | None:
    """The histograms in a party's reply to a server that asks with a floor of its own; None: refused."""
    answer = party.answer({PHASE: request.phase, **request.to_config(), "flynn-min-examples": floor})
    if REFUSED in answer.metrics:
        return None
    sizes, *packed = answer.arrays[:3]
    gaps, counts = (unpack_numbers(each, 10**6, 2**63 - 1) for each in packed)
    return ColumnHistograms(1, sizes, np.cumsum(gaps + 1) - 1, counts + 1)


def of_told(values: Any) -> ColumnHistograms:
    met, ranks = np.sort(SWEPT[MET]), [*range(4, 90, 5), 90]  # a thirty-second of the ranks is 3
    values = coarse(
        met[ranks],
        met[[rank - 3 for rank in ranks]],
        met[[min(rank + 3, 96) for rank in ranks]],
        met[-1] - met[0],
        False,
    )
    return ColumnHistograms.from_data(np.repeat(values, [5] * 18 + [7])[:, None], np.zeros(97, np.int64), 1)


@pytest.mark.parametrize("floor", [0, 1, 3, 5, 97, 10**6, None, "1"])
def test_the_floor_is_the_party_s_own(floor: Any) -> None:
    """A request has none: another one would have the party tell of other values."""
    party = party_of(SWEPT[MET, None], np.full(97, "a"))
    assert asked(party, ColumnsRequest(1, ("a",)), floor) == of_told(SWEPT[TOLD])


def test_bins_and_classes_of_few_samples_stay_at_home() -> None:
    some = np.concatenate([np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y == 1)[:23], np.flatnonzero(Y == 2)])
    found = statistic_of(REQUEST, party_of(X[some], LABELS[some], min_examples=5))
    assert found == histograms(some, 5)
    assert found.n_per_class.tolist() == [0, 23, 50]
    assert found.counts.min() >= 5


def test_a_party_of_too_few_samples_sends_an_empty_histogram() -> None:
    found = statistic_of(REQUEST, party_of(X[:4], LABELS[:4]))
    assert (found.n_examples, len(found.cells)) == (0, 0)
    assert statistic_of(REQUEST, party_of(X[:4], LABELS[:4], min_examples=1)).n_examples == 4


def test_a_whole_run_under_a_floor_counts_all_samples() -> None:
    parts = shares()
    run = federate(RunOptions(**options_for(AUTO)), [party_of(**part, name=str(i)) for i, part in enumerate(parts)])
    result = run.state.results["columns"]
    assert result.fallback_reason == ""
    assert result.histograms.counts.min() >= 5
    assert run.counts.n_examples == 120


def test_where_all_histograms_stay_at_home_the_columns_are_left_as_they_are() -> None:
    run = in_process(options_for(AUTO), shares(), min_examples=1000)
    result = run.state.results["columns"]
    assert (result.histograms.n_examples, result.fallback_reason) == (0, "no party sent the histograms of any sample")
    assert run.state.run_spec.specs == HashPlan(4, 3, 120, None, hash_dim=128).specs()
    assert run.model.model_.members[0].counts.n_examples == 120


def test_where_no_histogram_comes_back_the_columns_are_left_as_they_are() -> None:
    steps = exchange(AUTO)
    steps.step(TRAIN, spoil=lambda reply: replace(reply, tensors=[b"junk"]))
    result = steps.run.state.results["columns"]
    assert result.fallback_reason == "no party sent the histograms of any sample"
    assert steps.run.state.absent("columns").keys() == {f"party-{i}" for i in range(4)}
    assert steps.run.state.run_spec.specs == HashPlan(4, 3, 120, None, hash_dim=128).specs()


def test_the_number_and_sizes_of_the_specs_are_foreseen() -> None:
    assert [spec.hash_dim for spec in placeholder_specs(AUTO)] == [128] * 6
    wide = replace(AUTO, row_nnz=9)  # an entry of which there is none in raw columns
    assert {spec.row_nnz for spec in placeholder_specs(wide)} == {9}
    assert derive_specs(wide, ColumnHistograms.zeros(4, 3))[0][0].row_nnz == 4


def test_columns_that_are_all_alike_have_no_waves() -> None:
    alike = ColumnHistograms.from_data(np.ones((9, 4)), np.arange(9) % 3, 3)
    specs, trouble = derive_specs(AUTO, alike)
    assert trouble == ""
    assert len(specs) == len(set(specs)) == len(placeholder_specs(AUTO)) - 1
    assert not any(spec.n_waves for spec in specs)


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
    "junk": (lambda reply: replace(reply, tensors=[reply.tensors[0], b"junk", reply.tensors[2]]), "array 2"),
    "numbers as they are": (lambda reply: replace(reply, tensors=codec.write_tensors(numbers(reply))), "gaps"),
    "narrow sizes": (lambda reply: changed(reply, lambda arrays: [arrays[0].astype("i4"), *arrays[1:]]), "class sizes"),
    "negative sizes": (lambda reply: made(reply, [-1, reply.n_examples, 1], *numbers(reply)[1:]), "class sizes"),
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
    taken = steps.step(TRAIN, spoil=lambda reply: spoil(reply) if reply.cid == "3" else reply)
    assert taken is not None
    result = steps.run.state.results["columns"]
    assert list(taken.missing) == list(steps.run.state.absent("columns")) == ["party-3"]
    assert f"refused: {field}: expected " in taken.missing["party-3"]
    silent = exchange(AUTO, floor=5, max_examples_per_party=50)
    silent.step(TRAIN, failures={"3": "failed"})
    assert result.histograms == silent.run.state.results["columns"].histograms
    assert steps.run.state.run_spec.specs == silent.run.state.run_spec.specs


def test_an_honest_reply_passes_the_checks_that_the_hostile_ones_fail() -> None:
    steps = exchange(AUTO, floor=5, max_examples_per_party=50)
    spoil = lambda reply: of_samples(reply, 45) if reply.cid == "3" else reply  # noqa: E731
    taken = steps.step(TRAIN, spoil=spoil)
    assert taken is not None
    assert taken.missing == {}


def test_gaps_that_wrap_around_are_refused() -> None:
    request, n_cells = ColumnsRequest(2**20, NAMES), 2**20
    gaps = np.full(n_cells, 2**43)  # 2**63 together
    tensors = codec.write_tensors([np.array([1, 0, 0]), pack_numbers(gaps), pack_numbers(np.zeros(n_cells))])
    with raises(PayloadError, field="histograms"):
        request.read(codec.read_tensors(tensors), Reply("1", tensors, 1, {}), None)


def test_histograms_have_room_for_the_others() -> None:
    request = ColumnsRequest(1, NAMES)
    n = request.capacity // 1024 + 1
    tensors = codec.write_tensors([np.array([n, 0, 0]), pack_numbers(np.array([5])), pack_numbers(np.array([n - 1]))])
    with raises(PayloadError, field="histograms", got=str(n)):
        request.read(codec.read_tensors(tensors), Reply("1", tensors, n, {}), None)


# ---- who gives them
