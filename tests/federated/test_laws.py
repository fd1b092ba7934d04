"""Laws of every statistic and every request, over the registry of all phases."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_flynn.errors import CountsError, DataError, FlyNNError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.loader import Loader
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.counts import UpdateRequest, WithdrawRequest, no_counts
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, TRAIN, Config, Reply, key
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes, to_arrays
from flwr_flynn.federated.request import _REQUESTS
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from tests.fakes import config_of, summed, tally_of
from tests.federated.registry import (
    BOUND,
    CASES,
    SECURE,
    SECURE_CASES,
    SECURE_TOTALS,
    SOME,
    TOTALS,
)
from tests.federated.runs import (
    DUE,
    GRID,
    NAMES,
    Y,
    declined,
    refusal,
    replied,
    statistic_of,
)
from tests.federated.secure_runs import mean_of
from tests.memory import traced
from tests.raising import raises

POOLED = {name: case.of(SOME) for name, case in CASES.items()}
ONE_CLASS_EACH = Y[SOME].tolist()
EVALUATIONS = [name for name, case in CASES.items() if case.is_evaluation]
IN_RUNS = [name for name, case in CASES.items() if case.run]


def test_every_registered_request_has_a_case():
    requests = [case.request for case in [*CASES.values(), *SECURE_CASES.values()]]
    kinds = {request.phase: type(request) for request in requests}
    own = {
        phase: kind
        for phase, kind in _REQUESTS.items()
        if kind.__module__.startswith("flwr_flynn.")
    }
    assert kinds == own
    assert len(own) == 12


# ---- sums


@pytest.mark.parametrize("name", CASES)
@given(
    owners=st.lists(st.integers(0, 5), min_size=12, max_size=12),
    order=st.permutations(range(12)),
)
@example(owners=ONE_CLASS_EACH, order=list(range(12)))
@example(owners=list(range(12)), order=list(range(12))[::-1])
@example(owners=[0] * 12, order=list(range(12)))
@settings(max_examples=10, deadline=None)
def test_sums_of_any_partition_and_order_are_pooled(name, owners, order):
    case = CASES[name]
    total = case.zero
    # Numbers that own nothing are parties without samples.
    for party in order:
        total = total + case.of(SOME[np.array(owners) == party])
    assert case.shown(total) == case.shown(POOLED[name])


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.subtracts]
)
@given(gone=st.sets(st.integers(0, 11)))
@settings(max_examples=10, deadline=None)
def test_what_was_added_can_be_taken_out_exactly(name, gone):
    case = CASES[name]
    leaves = np.isin(np.arange(12), list(gone))
    assert POOLED[name] - case.of(SOME[leaves]) == case.of(SOME[~leaves])
    assert POOLED[name] - POOLED[name] == case.zero


@pytest.mark.parametrize("name", SECURE)
@given(owners=st.lists(st.integers(0, 3), min_size=12, max_size=12))
@settings(max_examples=5, deadline=None)
def test_a_secure_sum_is_the_sum_in_clear(name, owners):
    case = SECURE_CASES[name]
    request = SECURE[name]
    answers = {}
    bounds = list[int]()
    for cid in range(4):
        party = case.party(SOME[np.array(owners) == cid])
        party = replace(party, mask=lambda bound, *_: bounds.append(bound))
        answer = party.answer(config_of(request), request.arrays(), "train")
        assert REFUSED not in answer.metrics
        (vector,) = answer.arrays
        assert vector.dtype == np.int64
        assert vector.shape == (request.layout.n_entries,)
        assert np.abs(vector).max(initial=0) <= BOUND
        answers[str(cid)] = answer
    assert set(bounds) == {BOUND}
    total = summed(request, mean_of(answers))
    assert case.shown(total) == case.shown(SECURE_TOTALS[name])


def reply_with(cid: str, *arrays: np.ndarray) -> Reply:
    """A reply with some arrays."""
    return Reply(cid, codec.write_tensors(arrays), 1, {})


HOSTILE_SUMS = {
    "an entry less": lambda zeros: [zeros[:-1]],
    "two vectors": lambda zeros: [zeros, zeros],
    "no vector": lambda _: [],
    "integers": lambda zeros: [zeros.astype(int)],
    "fractions": lambda zeros: [zeros + 0.1],
    "NaN": lambda zeros: [zeros + np.nan],
    "above the bound": lambda zeros: [zeros + BOUND + 1.0],
    "below the bound": lambda zeros: [zeros - BOUND - 1.0],
}


@pytest.mark.parametrize("change", HOSTILE_SUMS)
@pytest.mark.parametrize("name", SECURE)
def test_a_hostile_secure_sum_is_refused(name, change):
    request = SECURE[name]
    arrays = HOSTILE_SUMS[change](np.zeros(request.layout.n_entries))
    with pytest.raises(PayloadError):
        summed(request, [reply_with(cid, *arrays) for cid in "012"])


@pytest.mark.parametrize("name", SECURE)
def test_a_secure_sum_that_differs_between_its_copies_is_refused(name):
    request = SECURE[name]
    zeros = np.zeros(request.layout.n_entries)
    copies = [
        reply_with("0", zeros),
        reply_with("1", zeros),
        reply_with("2", zeros + 1),
    ]
    with pytest.raises(PayloadError):
        summed(request, copies)


def squares(size: int) -> Tables:
    """A table of zeros."""
    return Tables((np.zeros((size, size), np.int64),))


HISTOGRAMS = ColumnHistograms.zeros(4, 3)
OTHER_CLASSES = no_counts(RunSpec(GRID, (*NAMES, "no iris")))
PAIRS = {
    "classes of columns": (HISTOGRAMS, ColumnHistograms.zeros(4, 1)),
    "numbers of columns": (HISTOGRAMS, ColumnHistograms.zeros(3, 4)),
    "numbers of specs": (TOTALS, CountsOfSpecs(TOTALS.parts[:1])),
    "orders of specs": (TOTALS, CountsOfSpecs(TOTALS.parts[::-1])),
    "classes of counts": (TOTALS, OTHER_CLASSES),
    "shapes of tables": (squares(3), squares(4)),
    "numbers of tables": (squares(3), Tables(())),
}
"""Statistics that differ in these."""


@pytest.mark.parametrize("combine", [operator.add, operator.sub])
@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_statistics_of_different_requests_do_not_add(one, other, combine):
    with pytest.raises((CountsError, DataError)) as error:
        combine(one, other)
    assert error.value.field


@pytest.mark.parametrize("kind", ["columns", "counts"])
def test_what_is_not_in_a_sum_cannot_be_taken_out(kind):
    with pytest.raises((CountsError, DataError)):
        _ = CASES[kind].zero - POOLED[kind]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@example(-(2**63), -(2**63))
@example(0, -(2**63))
@example(2**63 - 1, 1)
def test_tables_add_exactly_or_not_at_all(a, b):
    one = Tables((np.array([[a]], np.int64),))
    other = Tables((np.array([[b]], np.int64),))
    for combine in (operator.add, operator.sub):
        exact = combine(a, b)
        if -(2**63) <= exact < 2**63:
            assert combine(one, other).tables[0].item() == exact
        else:
            with raises(CountsError, field="tables"):
                combine(one, other)


def test_counts_are_values():
    parts = [
        ClassCounts(
            part.array, hash_nnz=part.hash_nnz, spec_fingerprint=part.spec_fingerprint
        )
        for part in TOTALS.parts
    ]
    again = CountsOfSpecs(tuple(parts))
    assert again == TOTALS
    assert again.sha256 == tuple(part.sha256() for part in TOTALS.parts)
    assert CountsOfSpecs(TOTALS.parts[::-1]) != TOTALS


def test_tables_are_values():
    table = Tables((np.array([[1, 2]]),))
    assert table == Tables((np.array([[1, 2]]),))
    assert table != Tables((np.array([[1], [2]]),))
    assert table != 3


# ---- requests


@pytest.mark.parametrize(
    "case",
    [*CASES.values(), *SECURE_CASES.values()],
    ids=[*CASES, *(f"secure {name}" for name in SECURE_CASES)],
)
def test_a_request_survives_its_config(case):
    before: Any = case.request
    config = before.to_config()
    arrays = before.arrays()
    declared = Config(config, before.entries)
    again = type(before).from_config(declared, arrays, case.party(SOME).options)
    assert again.to_config() == config
    assert list(map(written, again.arrays())) == list(map(written, arrays))
    assert again.discloses == before.discloses
    assert again.channel == before.channel
    assert again.layout.n_entries == before.layout.n_entries
    shapes = [field.shape for field in before.layout.fields]
    assert [field.shape for field in again.layout.fields] == shapes


DECLARED = sorted({name for case in CASES.values() for name in case.request.entries})


@pytest.mark.parametrize("name", [*CASES, *SECURE_CASES])
def test_an_entry_of_other_requests_is_refused_and_no_sample_loaded(name):
    """In 0.8 a schema request with names of features passed the floor by ids."""
    case = {**CASES, **SECURE_CASES}[name]
    request = case.request
    party = case.party(SOME)
    for entry in {*DECLARED, "bound", "by_class", "anything"} - {*request.entries}:
        refused = refusal(request, party, {key(entry): "x"})
        assert refused.startswith(f"{key(entry)}: ")
    assert vars(party.loader) == vars(Loader(party.source))


@pytest.mark.parametrize("name", [*CASES, *SECURE_CASES])
def test_arrays_that_a_request_does_not_declare_are_refused_and_none_is_decoded(
    name, monkeypatch
):
    case = {**CASES, **SECURE_CASES}[name]
    kind = type(case.request)
    assert len(case.request.arrays()) <= kind.n_arrays
    party = case.party(SOME)
    monkeypatch.setattr(codec, "read_tensors", None)
    monkeypatch.setattr(kind, "from_config", None)
    for junk in (b"junk", np.zeros(3)):
        refused = refusal(case.request, party, {}, [junk] * (kind.n_arrays + 1))
        assert refused == (
            f"arrays: expected at most {kind.n_arrays}, got {kind.n_arrays + 1}"
        )
    assert vars(party.loader) == vars(Loader(party.source))


@pytest.mark.parametrize("name", CASES)
def test_a_party_decodes_the_tensors_of_a_request(name):
    request = CASES[name].request
    party = CASES[name].party(SOME)
    tensors = codec.write_tensors(request.arrays())
    answer = party.answer(config_of(request), tensors)
    expected = party.answer(config_of(request), request.arrays())
    assert REFUSED not in answer.metrics
    assert [*map(written, answer.arrays)] == [*map(written, expected.arrays)]
    for index in range(len(tensors)):
        spoiled = with_other(tensors, index, b"junk")
        reason = refusal(request, party, {}, spoiled)
        assert reason.startswith(f"array {index + 1}: ")


def functions_of(kind: type) -> set[str]:
    """Names of the functions of a class of the package, inherited ones included."""
    return {
        name
        for own in kind.__mro__
        if own.__module__.startswith("flwr_flynn.")
        for name, value in vars(own).items()
        if isinstance(value, FunctionType | property | classmethod | staticmethod)
        and not name.startswith("__")
    }


def functions_that_take(kinds: Sequence[type]) -> set[str]:
    """Functions of the package's modules that take an instance of these classes."""
    names = {kind.__name__ for kind in kinds}
    takers = set()
    for name, module in [*sys.modules.items()]:
        if not name.startswith("flwr_flynn."):
            continue
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == name:
                hints = {**function.__annotations__}
                hints.pop("return", None)
                texts = [text.split("[")[0] for text in map(str, hints.values())]
                if names & {*texts}:
                    takers.add(f"{name}.{function.__name__}")
    return takers


def test_a_request_and_its_tally_have_twelve_functions_at_most():
    requests = [case.request for case in [*CASES.values(), *SECURE_CASES.values()]]
    for sides in (
        [*map(type, requests)],
        [type(tally_of(request)) for request in requests],
    ):
        bases = {base for kind in sides for base in kind.__mro__} - {object}
        takers = functions_that_take([*bases])
        for kind in sides:
            n_functions = len(functions_of(kind)) + len(takers)
            assert n_functions <= 12, (kind, functions_of(kind), takers)


def test_to_leave_or_to_change_is_no_kind_of_being_counted():
    for kind in (WithdrawRequest, UpdateRequest):
        assert CASES["counts"].request.__class__ not in kind.__mro__


def written(array: np.ndarray) -> Any:
    """All that an array says."""
    return array.dtype, array.tolist()


@pytest.mark.parametrize("name", CASES)
def test_a_request_with_an_entry_missing_or_of_another_type_is_refused(
    name,
):
    request = CASES[name].request
    party = CASES[name].party(SOME)
    for entry, value in config_of(request).items():
        for other in (None, 7.5, "{", "x" * 10**6, b"\x00", [], "[[[]]]"):
            # Texts of these two have tests of their own.
            has_tests = entry in ("flynn-mode", "flynn-fingerprints")
            if has_tests and type(other) is type(value):
                continue
            reason = refusal(request, party, {entry: other})
            assert "failed" not in reason, (entry, other)


def with_other(parts: Sequence[Any], index: int, other: Any) -> list[Any]:
    """A sequence in which one is replaced."""
    return [*parts[:index], other, *parts[index + 1 :]]


def with_faults(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """Arrays of which one has another form, and fewer and more of them."""
    for index, array in enumerate(arrays):
        for other in (
            array[:-1],
            array[None],
            array.astype("<f4"),
            array.astype(">i8"),
            np.arange(60, dtype=np.uint8),
        ):
            yield with_other(arrays, index, other)
    for others in (arrays[:-1], arrays[1:], [*arrays, *arrays]):
        if arrays:
            yield list(others)


@pytest.mark.parametrize("name", CASES)
def test_a_request_with_other_arrays_is_refused(name):
    request = CASES[name].request
    party = CASES[name].party(SOME)
    for spoiled in with_faults(request.arrays()):
        assert "failed" not in refusal(request, party, {}, spoiled)


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, case in CASES.items() for change in case.refused],
)
def test_a_hostile_request_is_refused_by_the_party(name, change):
    case = CASES[name]
    row = case.refused[change]
    arrays = None
    if row.change is not None:
        arrays = row.change(case.request.arrays())
    party = case.party(SOME, on_model=lambda _: pytest.fail("kept the model"))
    reason = refusal(case.request, party, row.entries, arrays)
    assert reason.startswith(row.start)


@pytest.mark.parametrize("name", CASES)
def test_beyond_its_memory_a_party_loads_and_draws_nothing(name, monkeypatch):
    monkeypatch.setattr(
        "flwr_flynn.federated.request.check_fingerprints",
        lambda *_: pytest.fail("drew the rows"),
    )
    requests = [CASES[name].request]
    if name in SECURE:
        requests.append(SECURE[name])
    options = PartyOptions(memory_limit=100, leaves=not CASES[name].request.stays)
    for request in requests:
        party = Party(lambda _: pytest.fail("loaded"), options, lambda *_: None)
        answer = party.answer(config_of(request), request.arrays())
        assert declined(answer).startswith("memory: ")


SECRET = 123456.789
FITS = np.full((2, 4), SECRET)
MISFITS = {
    "a feature more": (np.full((2, 5), SECRET), ["setosa"] * 2),
    "a label of no class": (FITS, ["setosa", str(SECRET)]),
    "a label less": (FITS, ["setosa"]),
    "texts": (np.array([[str(SECRET), "a", "b", "c"]]), ["setosa"]),
    "nothing": (None, None),
    "a gap": (np.array([[SECRET, np.nan, 0, 0]]), ["setosa"]),
    "a sparse gap": (sp.csr_matrix([[SECRET, np.nan, 0, 0]]), ["setosa"]),
    "objects": (np.array([[SECRET, None, "b", {}]], object), ["setosa"]),
    "infinity": (np.array([[SECRET, np.inf, 0, 0]]), ["setosa"]),
}
READS_SAMPLES = [name for name in CASES if name not in ("schema", "column sums")]


@pytest.mark.parametrize(("data", "labels"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("name", READS_SAMPLES)
def test_samples_that_do_not_fit_are_refused_without_showing_them(name, data, labels):
    request = CASES[name].request
    samples = Samples(data, labels, data, labels)
    options = PartyOptions(
        min_examples=1, products=True, leaves=not request.stays, previous=samples
    )
    answer = Party(samples, options).answer(config_of(request), request.arrays())
    if data is None and name in EVALUATIONS:
        # Nothing held out is no fault.
        assert answer.metrics == {}
    else:
        assert answer.metrics.keys() == {REFUSED}
    assert "123456" not in str(answer.metrics)
    assert answer.arrays == []
    assert answer.n_examples == 0


@pytest.mark.parametrize("name", CASES)
def test_a_request_by_the_channel_of_other_phases_is_refused(name):
    """SecAgg+ and other mods of a ClientApp look at one channel alone."""
    request = CASES[name].request
    if request.channel == TRAIN:
        other = EVALUATE
    else:
        other = TRAIN
    answer = CASES[name].party(SOME).answer(config_of(request), request.arrays(), other)
    assert declined(answer).startswith(f"channel: expected {request.channel} ")


@pytest.mark.parametrize("name", SECURE)
def test_without_a_mask_nothing_goes_into_a_secure_sum(name):
    request = SECURE[name]
    party = SECURE_CASES[name].party(SOME)
    assert declined(party.answer(config_of(request), request.arrays()))


# ---- replies


@cache
def without_one(name: str) -> Any:
    """The result of a phase in which a party is lost."""
    steps = CASES[name].steps()
    steps.step(DUE, failures={"3": "failed"})
    return made_of(steps.run)


def made_of(run: Run) -> Any:
    """The next request, and the results so far, without the reasons of missing parties."""
    due = None
    if run.due is not None:
        ask = run.ask(run.due.channel, "0123")
        due = (ask.cids, ask.config, ask.tensors)
    results = [run.state.results.get(name) for name in ("selection", "evaluation")]
    n_absent = len(set().union(*run.state.missing.values()))
    return due, results, n_absent


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in IN_RUNS for change in CASES[name].hostile],
)
def test_a_hostile_reply_costs_its_sender_alone(name, change):
    steps = CASES[name].steps()
    reason, spoil = CASES[name].hostile[change]

    def spoiled(reply: Reply) -> Reply:
        if reply.cid == "3":
            return spoil(steps.run.asked.request, reply)
        return reply

    outcome = steps.step(DUE, spoil=spoiled)
    assert list(outcome.missing) == ["party-3"]
    assert outcome.missing["party-3"].startswith(reason)
    assert made_of(steps.run) == without_one(name)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.takes_counted]
)
def test_only_counted_parties_take_part(name):
    case = CASES[name]
    for member in (None, Member("", "1")):
        with raises(PayloadError, field=case.request.phase):
            statistic_of(case.request, case.party(SOME), member)


def read(name: str, arrays: Any, n_examples: Any) -> Any:
    """The statistic that a server reads in some arrays."""
    case = CASES[name]
    reply = Reply("1", (), n_examples, {})
    return tally_of(case.request).read(arrays, reply, case.member(SOME))


@cache
def good_reply(name: str) -> Reply:
    """The reply of a party with all samples."""
    return replied(CASES[name].request, CASES[name].party(SOME))


def arrays_of(name: str) -> list[np.ndarray]:
    """The arrays of that reply."""
    return codec.read_tensors(good_reply(name).tensors)


def assert_refused(name: str, arrays: Any) -> None:
    """The server refuses these arrays in the place of those of the reply."""
    with pytest.raises(FlyNNError):
        read(name, arrays, good_reply(name).n_examples)


@pytest.mark.parametrize("name", CASES)
def test_a_reply_with_a_field_too_short_is_refused(name):
    request = CASES[name].request
    n = good_reply(name).n_examples
    fields = request.fields(Sizes(n, n))
    parts = request.parts(read(name, arrays_of(name), n))
    for index, part in enumerate(parts):
        spoiled = with_other(parts, index, part[1:])
        assert_refused(name, to_arrays(fields, spoiled))


@pytest.mark.parametrize("name", CASES)
def test_a_reply_with_another_number_of_examples_is_refused(name):
    arrays = arrays_of(name)
    n = good_reply(name).n_examples
    for number in (n + 1, n - 1, -1, float(n), True, str(n), None, 2**63):
        with pytest.raises(FlyNNError):
            read(name, arrays, number)


@pytest.mark.parametrize("name", CASES)
def test_a_reply_with_other_arrays_is_refused(name):
    for spoiled in ([], *with_faults(arrays_of(name))):
        assert_refused(name, spoiled)


@pytest.mark.parametrize("name", CASES)
def test_a_reply_with_an_integer_out_of_its_bounds_is_refused(name):
    request = CASES[name].request
    n = good_reply(name).n_examples
    sizes = tally_of(request).sizes_of(Reply("1", (), n, {}), CASES[name].member(SOME))
    fields = request.fields(sizes)
    good = request.parts(POOLED[name])
    for field, part in zip(fields, good, strict=True):
        if field.is_open:
            assert part.ndim == 1
            assert part.size <= field.size
        else:
            assert part.shape == field.shape
    for index, field in enumerate(fields):
        for value in values_outside(field):
            part = good[index].copy()
            part.flat[0] = value
            spoiled = with_other(good, index, part)
            with pytest.raises(PayloadError):
                read(name, to_arrays(fields, spoiled), n)


def values_outside(field: Field) -> list[int]:
    """Integers that no party may send in a field, as far as its form has them."""
    above = [field.largest + 1, 2**61]
    if field.is_signed:
        return [*above, -field.largest - 1]
    if field.form == PLAIN:
        return [*above, -1]
    return above


PACKED = [
    name for name, case in CASES.items() if case.request.layout.fields[-1].form != PLAIN
]
"""Requests whose last array is packed; any other is as large as its message."""


@pytest.mark.parametrize("name", PACKED)
def test_a_small_reply_makes_nobody_allocate_much(name):
    """Arrays of zeros deflate to next to nothing.

    The server reads no more of them than it expects.
    """
    request = CASES[name].request
    fields = request.layout.fields
    wide = replace(fields[-1], shape=(1, 10**7), most=0, is_open=False)
    bomb = to_arrays([wide], [np.zeros((1, 10**7), np.int64)])
    good = to_arrays(fields, request.parts(POOLED[name]))
    n = good_reply(name).n_examples
    with traced() as memory, pytest.raises(PayloadError):
        read(name, [*good[: -len(bomb)], *bomb], n)
    assert memory.peak < 2**22
