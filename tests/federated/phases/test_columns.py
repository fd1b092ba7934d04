"""The sums of the columns: exact, without small classes, and refused where no samples have such sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.compression import pack_numbers
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.protocol import PHASE, REFUSED, TRAIN, Config, Reply
from flwr_flynn.federated.run_spec import announced_names
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.derived_specs import derive_specs, foreseen
from tests.federated.runs import (
    AUTO,
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

REQUEST = ColumnsRequest(4, NAMES, True, max_examples=50)


def moments(places: Any, by_class: bool = True) -> ColumnMoments:
    codes = Y[places].astype(np.int64)
    return ColumnMoments.from_data(X[places], codes if by_class else 0 * codes, 3 if by_class else 1)


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize("scaling", ["standard", "weighted"])
def test_sums_of_any_split_give_the_pooled_spec_to_the_last_bit(how: str, scaling: str) -> None:
    plan = HashPlan(4, 3, 150, scaling, hash_dim=64)
    run = in_process(options_for(plan, decay=0.5), shares(how))
    pooled = moments(TRAINING, by_class=scaling == "weighted")
    assert run.state.results["columns"].moments == pooled
    assert run.state.results["columns"].missing == {}
    assert run.state.run_spec.specs == plan.specs(pooled)
    hasher = FlyHash(run.state.run_spec.spec)
    assert run.model.counts_ == ClassCounts.from_data(hasher, X[TRAINING], Y[TRAINING], 3)


@pytest.mark.parametrize("by_class", [True, False])
def test_a_request_makes_the_round_trip(by_class: bool) -> None:
    request = ColumnsRequest(4, np.array(NAMES), by_class, list("wxyz"))
    config = Config(request.to_config())
    assert ColumnsRequest.from_config(config, [], party_of(X, LABELS)) == request
    assert announced_names(config) == tuple("wxyz")
    assert request.n_rows == (3 if by_class else 1)


@pytest.mark.parametrize("change", [{"classes": []}, {"classes": "ash"}, {"feature_names": ["a"]}])
def test_a_request_that_cannot_be_is_an_error_of_the_server(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        replace(REQUEST, **change)
    assert error.value.field in change


@pytest.mark.parametrize("convert", ["csr_matrix", "csc_array", "coo_array"])
def test_sums_of_sparse_samples_are_those_of_dense_ones(convert: str) -> None:
    request = replace(REQUEST, max_examples=None)
    sparse = party_of(getattr(sp, convert)(X), LABELS)
    assert statistic_of(request, sparse) == statistic_of(request, party_of(X, LABELS)) == moments(slice(None))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n-features", 5, "n_features"),
        ("n-features", "4", "flynn-n-features"),
        ("n-features", 2**40, "flynn-n-features"),
        ("by-class", 1, "flynn-by-class"),
        ("classes", "[]", "classes"),
        ("classes", '["setosa"]', "100 of 150"),
        ("feature-names", '["a"]', "feature_names"),
    ],
)
def test_a_request_is_checked_by_the_party(name: str, value: Any, said: str) -> None:
    entries = {PHASE: "columns", **REQUEST.to_config(), f"flynn-{name}": value}
    answer = party_of(X, LABELS).answer(entries)
    assert (answer.arrays, answer.n_examples) == ([], 0)
    assert said in str(answer.metrics[REFUSED])


def test_the_memory_limit_is_asked_before_anything_is_summed() -> None:
    assert REFUSED not in replied(REQUEST, party_of(X, LABELS, memory_limit=REQUEST.memory_needed)).metrics
    refused = replied(REQUEST, party_of(X, LABELS, memory_limit=REQUEST.memory_needed - 1)).metrics[REFUSED]
    assert str(refused).startswith("memory: ")


@pytest.mark.parametrize("scaling", ["weighted", "standard"])
def test_small_classes_stay_out_of_the_sums_and_are_counted(scaling: str) -> None:
    """Sums over all classes leave a small class out, too: two answers would differ by that class."""
    some = np.concatenate([np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y == 1)[:6]])
    options = options_for(HashPlan(4, 3, scaling=scaling, hash_dim=64))
    run = federate(RunOptions(**options), [party_of(X[some], LABELS[some], min_examples=5)])
    kept = moments(some[4:], by_class=False)
    found = run.state.results["columns"].moments
    assert found.n_examples == 6
    assert (found.sums.sum(axis=0) == kept.sums[0]).all()
    assert run.counts.n_examples == 10


@pytest.mark.parametrize("by_class", [True, False])
@pytest.mark.parametrize("asked", [0, 1, 3, 10**6, None, "1"])
def test_the_floor_is_the_party_s_own(by_class: bool, asked: Any) -> None:
    """A request has none: another one would have the party answer about other samples."""
    some = np.concatenate([np.flatnonzero(Y == 0)[:4], np.flatnonzero(Y == 1)[:9]])
    request = replace(REQUEST, by_class=by_class)
    config = {PHASE: "columns", **request.to_config(), "flynn-min-examples": asked}
    for floor, n in ((1, 13), (4, 13), (5, 9), (10, 0)):
        assert party_of(X[some], LABELS[some], min_examples=floor).answer(config).n_examples == n


def test_sums_of_two_samples_stay_at_home_unless_the_floor_is_one() -> None:
    """Sum and sum of squares of two values determine both."""
    for floor, n in ((1, 2), (2, 0), (3, 0)):
        for by_class in (True, False):
            request = replace(REQUEST, by_class=by_class)
            assert statistic_of(request, party_of(X[:2], LABELS[:2], min_examples=floor)).n_examples == n


def limbs(n: int = 10) -> list[np.ndarray]:
    sizes, sums, squares = ColumnMoments.from_data(X[:n], np.zeros(n, np.int64), 3).to_limbs()
    return [sizes, sums, squares]


def packed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Class sizes, and the limbs as a reply has them."""
    return [arrays[0], *(pack_numbers(array.ravel()) for array in arrays[1:])]


SIZES, SUMS, SQUARES = limbs()
GOOD = packed(limbs())
HOSTILE: dict[str, tuple[Any, Any, str]] = {
    "nothing": ([], 0, "column sums"),
    "two arrays": (GOOD[:2], 10, "column sums"),
    "four arrays": ([*GOOD, GOOD[2]], 10, "column sums"),
    "limbs as they are": ([SIZES, SUMS, SQUARES], 10, "column sums"),
    "another width": (packed([SIZES, SUMS[:, :3], SQUARES[:, :3]]), 10, "column sums"),
    "another number of classes": (packed([SIZES[:2], SUMS[:2], SQUARES[:2]]), 10, "column sums"),
    "other sizes": (packed([SIZES[:2], SUMS, SQUARES]), 10, "column moments"),
    "too many limbs": (packed([SIZES, np.zeros((3, 4, 999)), SQUARES]), 10, "numbers"),
    "no limbs": (packed([SIZES, SUMS[:, :, :0], SQUARES]), 10, "column sums"),
    "wide limbs": (packed([SIZES, SUMS.astype(np.uint64) + 2**32, SQUARES]), 10, "numbers"),
    "half of the bytes": ([SIZES, GOOD[1][:9], GOOD[2]], 10, "counts"),
    "bytes behind": ([SIZES, np.append(GOOD[1], np.uint8(0)), GOOD[2]], 10, "numbers"),
    "an endless number": ([SIZES, np.append(np.full(8, 255, np.uint8), GOOD[1][8:]), GOOD[2]], 10, "numbers"),
    "floats": ([SIZES, SUMS.astype(float), SQUARES], 10, "column sums"),
    "sizes of floats": ([SIZES.astype(float), *GOOD[1:]], 10, "column moments"),
    "negative sizes": (packed([-SIZES, SUMS, SQUARES]), 10, "column moments"),
    "sums of no samples": (packed([0 * SIZES, SUMS, SQUARES]), 0, "column moments"),
    "impossible squares": (packed([SIZES, SUMS, SQUARES * np.uint32(0)]), 10, "column moments"),
    "another number": (GOOD, 11, "column sums"),
    "no number": (GOOD, 10.0, "num_examples"),
    "too many": (packed(limbs(60)), 60, "column sums"),
    "junk": (None, 10, "array 2"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_costs_its_sender_alone(name: str) -> None:
    arrays, n, field = HOSTILE[name]
    steps = exchange(AUTO, floor=5, max_examples_per_party=50)
    good = codec.write_tensors(GOOD)
    tensors = [good[0], b"junk", good[2]] if arrays is None else codec.write_tensors(arrays)

    def spoil(reply: Reply) -> Reply:
        return replace(reply, tensors=tensors, n_examples=n) if reply.cid == "3" else reply

    taken = steps.step(TRAIN, spoil=spoil)
    others = steps.run.state.results["columns"]
    assert taken is not None
    assert list(taken.missing) == list(others.missing) == ["party-3"]
    assert f"refused: {field}: expected " in others.missing["party-3"]
    rest = in_process(options_for(AUTO), shares()[:3], min_examples=5)
    assert others.moments == rest.state.results["columns"].moments


def test_sums_have_room_for_the_others() -> None:
    request = ColumnsRequest(1, NAMES, False)
    n = request.capacity // 1024 + 1
    sums = ColumnMoments(np.array([n]), np.array([[0]], object), np.array([[0]], object))
    reply = Reply("1", codec.write_tensors(packed(sums.to_limbs())), n, {})
    with pytest.raises(PayloadError) as error:
        request.read(codec.read_tensors(reply.tensors), reply, None)
    assert (error.value.field, error.value.got) == ("column sums", str(n))


# ---- specs


def test_where_no_party_sends_sums_the_columns_are_left_as_they_are() -> None:
    run = in_process(options_for(AUTO), shares(), min_examples=1000)
    result = run.state.results["columns"]
    assert (result.moments.n_examples, result.trouble) == (0, "no party sent the sums of any sample")
    assert run.state.run_spec.specs == HashPlan(4, 3, 120, None, hash_dim=128).specs()
    assert run.model.counts_.n_examples == 120


def test_the_number_and_sizes_of_the_specs_are_foreseen() -> None:
    assert [spec.hash_dim for spec in foreseen(AUTO)] == [128] * 6
    waves = HashPlan(4, 3, scaling="standard", row_nnz=9)
    assert foreseen(waves)[0].n_waves == 64
    assert derive_specs(waves, ColumnMoments.zeros(4, 1))[0][0].row_nnz == 4


def test_columns_that_are_all_alike_make_fewer_specs() -> None:
    same = ColumnMoments.from_data(np.ones((9, 4)), np.arange(9) % 3, 3)
    plan = replace(AUTO, signed=True)  # without rank codes: its first two differ by waves alone, which need distances
    specs, trouble = derive_specs(plan, same)
    assert trouble == ""
    assert len(specs) == len(set(specs)) == len(foreseen(plan)) - 1
    alike = ColumnHistograms.from_data(np.ones((9, 4)), np.arange(9) % 3, 3, [1.0] * 4)
    specs, trouble = derive_specs(AUTO, same, alike)
    assert trouble == ""
    assert len(specs) == len(set(specs)) == len(foreseen(AUTO))
    assert not any(spec.n_waves for spec in specs)
