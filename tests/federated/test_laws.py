"""Laws of every statistic and every request, over the registry of all phases."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_flynn.errors import CountsError, DataError, FlyNNError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.counts import no_counts
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, TRAIN, Config, Reply
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes, to_arrays
from flwr_flynn.federated.request import _REQUESTS
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts, CountsOfSpecs, Tables
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import config_of
from tests.federated.hostile import integers
from tests.federated.registry import (
    BOUND,
    CASES,
    SECURE,
    SECURE_CASES,
    SECURE_TOTALS,
    SOME,
    TOTALS,
    Case,
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
one_class_each = Y[SOME].tolist()


def test_every_registered_request_has_a_case() -> None:
    cases = {
        case.request.phase: type(case.request)
        for case in [*CASES.values(), *SECURE_CASES.values()]
    }
    own = {
        phase: kind
        for phase, kind in _REQUESTS.items()
        if kind.__module__.startswith("flwr_flynn.")
    }
    assert cases == own
    assert len(own) == 10


# ---- sums


@pytest.mark.parametrize("name", CASES)
@given(
    owners=st.lists(st.integers(0, 5), min_size=12, max_size=12),
    order=st.permutations(range(12)),
)
@example(owners=one_class_each, order=list(range(12)))
@example(owners=list(range(12)), order=list(range(12))[::-1])
@example(owners=[0] * 12, order=list(range(12)))
@settings(max_examples=10, deadline=None)
def test_sums_of_any_partition_and_order_are_pooled(
    name: str, owners: list[int], order: list[int]
) -> None:
    case = CASES[name]
    total = case.request.zero
    for party in order:  # numbers that own nothing are parties without samples
        total = total + case.of(SOME[np.array(owners) == party])
    assert case.shown(total) == case.shown(POOLED[name])


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.subtracts]
)
@given(gone=st.sets(st.integers(0, 11)))
@settings(max_examples=10, deadline=None)
def test_what_was_added_can_be_taken_out_exactly(name: str, gone: set[int]) -> None:
    case = CASES[name]
    leaves = np.isin(np.arange(12), list(gone))
    assert POOLED[name] - case.of(SOME[leaves]) == case.of(SOME[~leaves])
    assert POOLED[name] - POOLED[name] == case.request.zero


@pytest.mark.parametrize("name", SECURE)
@given(owners=st.lists(st.integers(0, 3), min_size=12, max_size=12))
@settings(max_examples=5, deadline=None)
def test_a_secure_sum_is_the_sum_in_clear(name: str, owners: list[int]) -> None:
    case = SECURE_CASES[name]
    request = SECURE[name]
    answers = {}
    bounds = list[int]()
    for cid in range(4):
        party = case.party(SOME[np.array(owners) == cid])
        party.mask = lambda bound, *_: bounds.append(bound)
        answer = party.answer(config_of(request), request.arrays(), "train")
        assert REFUSED not in answer.metrics
        (vector,) = answer.arrays
        assert (vector.dtype, vector.shape) == (np.int64, (request.n_entries,))
        assert np.abs(vector).max(initial=0) <= BOUND
        answers[str(cid)] = answer
    assert set(bounds) == {BOUND}
    assert case.shown(request.summed(mean_of(answers))) == case.shown(
        SECURE_TOTALS[name]
    )


@pytest.mark.parametrize("name", SECURE)
def test_a_hostile_secure_sum_is_refused(name: str) -> None:
    request = SECURE[name]
    zeros = np.zeros(request.n_entries)
    for spoiled in (
        [zeros[:-1]],
        [zeros, zeros],
        [],
        [zeros.astype(int)],
        [zeros + 0.1],
        [zeros + np.nan],
    ):
        with pytest.raises(PayloadError):
            request.summed(
                [Reply(cid, codec.write_tensors(spoiled), 1, {}) for cid in "012"]
            )
    for value in (BOUND + 1.0, -BOUND - 1.0):
        with pytest.raises(PayloadError):
            request.summed(
                [
                    Reply(cid, codec.write_tensors([np.full_like(zeros, value)]), 1, {})
                    for cid in "012"
                ]
            )
    copies = [
        Reply(cid, codec.write_tensors([zeros + (cid == "2")]), 1, {}) for cid in "012"
    ]
    with pytest.raises(PayloadError):
        request.summed(copies)


THREE = Tables((np.zeros((3, 3), np.int64),))
ZEROS = ColumnHistograms.zeros(4, 3)
PAIRS: list[tuple[Any, Any]] = [
    (ZEROS, ColumnHistograms.zeros(4, 1)),
    (ZEROS, ColumnHistograms.zeros(3, 4)),
]
PAIRS += [
    (TOTALS, CountsOfSpecs(parts)) for parts in (TOTALS.parts[:1], TOTALS.parts[::-1])
]
PAIRS += [(TOTALS, no_counts(RunSpec(GRID, (*NAMES, "no iris"))))]
PAIRS += [
    (THREE, other) for other in (Tables((np.zeros((4, 4), np.int64),)), Tables(()))
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_statistics_of_different_requests_do_not_add(one: Any, other: Any) -> None:
    for combine in (lambda a, b: a + b, lambda a, b: a - b):
        with pytest.raises((CountsError, DataError)) as error:
            combine(one, other)
        assert error.value.field


def test_what_is_not_in_a_sum_cannot_be_taken_out() -> None:
    for kind in ("columns", "counts"):
        with pytest.raises((CountsError, DataError)):
            _ = CASES[kind].request.zero - POOLED[kind]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@example(-(2**63), -(2**63))
@example(0, -(2**63))
@example(2**63 - 1, 1)
def test_tables_add_exactly_or_not_at_all(a: int, b: int) -> None:
    one, other = (Tables((np.array([[value]], np.int64),)) for value in (a, b))
    for combine, exact in ((lambda: one + other, a + b), (lambda: one - other, a - b)):
        if -(2**63) <= exact < 2**63:
            assert combine().tables[0].item() == exact
        else:
            with raises(CountsError, field="tables"):
                combine()


def test_statistics_are_values() -> None:
    again = CountsOfSpecs(
        tuple(
            ClassCounts(
                part.array,
                hash_nnz=part.hash_nnz,
                spec_fingerprint=part.spec_fingerprint,
            )
            for part in TOTALS.parts
        )
    )
    assert again == TOTALS
    assert again.sha256 == tuple(part.sha256() for part in TOTALS.parts)
    assert CountsOfSpecs(TOTALS.parts[::-1]) != TOTALS
    one, same, turned = (
        Tables((np.array(table),)) for table in ([[1, 2]], [[1, 2]], [[1], [2]])
    )
    assert (one == same, one == turned, one == 3) == (True, False, False)


# ---- requests


@pytest.mark.parametrize(
    "case",
    [*CASES.values(), *SECURE_CASES.values()],
    ids=[*CASES, *(f"secure {name}" for name in SECURE_CASES)],
)
def test_a_request_survives_its_config(case: Case) -> None:
    request_: Any = case.request
    config = request_.to_config()
    arrays = request_.arrays()
    again = type(request_).from_config(Config(config), arrays, case.party(SOME))
    assert again.to_config() == config
    assert [(array.dtype, array.tolist()) for array in again.arrays()] == [
        (a.dtype, a.tolist()) for a in arrays
    ]
    assert (again.discloses, again.channel) == (request_.discloses, request_.channel)
    assert again.n_entries == request_.n_entries
    assert [each.shape for each in again.layout] == [
        each.shape for each in request_.layout
    ]


@pytest.mark.parametrize("name", CASES)
def test_a_request_with_an_entry_missing_or_of_another_type_is_refused(
    name: str,
) -> None:
    request = CASES[name].request
    party = CASES[name].party(SOME)
    for key, value in config_of(request).items():
        for other in (None, 7.5, "{", "x" * 10**6, b"\x00", [], "[[[]]]"):
            if type(other) is type(value) and key in (
                "flynn-mode",
                "flynn-fingerprints",
            ):
                continue  # their texts have tests of their own
            assert "failed" not in refusal(request, party, {key: other}), (key, other)


@pytest.mark.parametrize("name", CASES)
def test_a_request_with_other_arrays_is_refused(name: str) -> None:
    request = CASES[name].request
    party = CASES[name].party(SOME)
    arrays = request.arrays()
    for index, array in enumerate(arrays):
        for other in (
            array[:-1],
            array[None],
            array.astype("<f4"),
            np.arange(60, dtype=np.uint8),
        ):
            assert "failed" not in refusal(
                request, party, {}, [*arrays[:index], other, *arrays[index + 1 :]]
            )
    for other in (arrays[:-1], [*arrays, *arrays]) if arrays else ():
        assert "failed" not in refusal(request, party, {}, other)


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, each) for name, case in CASES.items() for each in case.refused],
)
def test_a_hostile_request_is_refused_by_the_party(name: str, change: str) -> None:
    case = CASES[name]
    start, entries, spoil = case.refused[change]
    arrays = None
    if spoil is not None:
        arrays = spoil(case.request.arrays())
    party = case.party(SOME, on_model=lambda _: pytest.fail("taken"))
    assert refusal(case.request, party, entries, arrays).startswith(start)


@pytest.mark.parametrize("name", CASES)
def test_beyond_its_memory_a_party_loads_and_draws_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        RunSpec, "agree_on_rows", lambda *_: pytest.fail("drew the rows")
    )
    for request in (CASES[name].request, SECURE.get(name)):
        if request is not None:
            options = PartyOptions(
                memory_limit=100, leaves=CASES[name].request.is_withdrawal
            )
            party = Party(lambda _: pytest.fail("loaded"), options, lambda *_: None)
            assert declined(
                party.answer(config_of(request), request.arrays())
            ).startswith("memory: ")


ONE = ["setosa"]
SECRET = 123456.789
MISFIT: list[tuple[Any, Any]] = [
    (np.full((2, 5), SECRET), ONE * 2),
    (np.full((2, 4), SECRET), [*ONE, str(SECRET)]),
]
MISFIT += [
    (np.full((2, 4), SECRET), ONE),
    (np.array([[str(SECRET), "a", "b", "c"]]), ONE),
    (None, None),
]
MISFIT += [
    (convert([[SECRET, np.nan, 0, 0]]), ONE) for convert in (np.array, sp.csr_matrix)
]
MISFIT += [
    (np.array([[SECRET, None, "b", {}]], object), ONE),
    (np.array([[SECRET, np.inf, 0, 0]]), ONE),
]


@pytest.mark.parametrize(("data", "labels"), MISFIT)
# which looks at no number and no label
@pytest.mark.parametrize("name", [name for name in CASES if name != "schema"])
def test_samples_that_do_not_fit_are_refused_without_showing_them(
    name: str, data: Any, labels: Any
) -> None:
    request = CASES[name].request
    samples = Samples(data, labels, data, labels)
    options = PartyOptions(
        min_examples=1, gram=True, leaves=request.is_withdrawal, previous=samples
    )
    answer = Party(samples, options).answer(config_of(request), request.arrays())
    # nothing held out is no fault
    is_nothing = data is None and CASES[name].is_evaluation
    assert answer.metrics.keys() == (set() if is_nothing else {REFUSED})
    assert "123456" not in str(answer.metrics)
    assert (answer.arrays, answer.n_examples) == ([], 0)


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not case.is_evaluation]
)
@pytest.mark.parametrize("kind", ["budget", "secure", "leaves"])
def test_who_gives_no_exact_figures_refuses_before_samples_are_loaded(
    kind: str, name: str, tmp_path: Path
) -> None:
    request = CASES[name].request
    why, options = {
        "budget": (
            "policy max-epsilon",
            {
                "name": "a",
                "budget": Budget(tmp_path / "a", Policy(3.0)),
                "evaluates": True,
            },
        ),
        "secure": ("node-config secure", {"secure": True, "evaluates": True}),
        "leaves": ("node-config leave", {}),
    }[kind]
    leaves = request.is_withdrawal ^ (kind == "leaves")
    party = Party(
        lambda _: pytest.fail("loaded"),
        PartyOptions(gram=True, leaves=leaves, **options),
    )
    assert declined(
        party.answer(config_of(request), request.arrays(), request.channel)
    ).startswith(why)


@pytest.mark.parametrize("name", CASES)
def test_a_request_by_the_channel_of_other_phases_is_refused(name: str) -> None:
    """SecAgg+ and other mods of a ClientApp look at one channel alone."""
    request = CASES[name].request
    if CASES[name].request.channel == TRAIN:
        other = EVALUATE
    else:
        other = TRAIN
    answer = CASES[name].party(SOME).answer(config_of(request), request.arrays(), other)
    assert declined(answer).startswith(f"channel: expected {request.channel} ")


@pytest.mark.parametrize("name", SECURE)
def test_without_a_mask_nothing_goes_into_a_secure_sum(name: str) -> None:
    request = SECURE[name]
    assert declined(
        SECURE_CASES[name].party(SOME).answer(config_of(request), request.arrays())
    )


# ---- replies


@cache
def without_one(name: str) -> Any:
    """The result of a phase in which a party is lost."""
    steps = CASES[name].steps()
    steps.step(DUE, failures={"3": "failed"})
    return made_of(steps.run)


def made_of(run: Run) -> Any:
    """The next request, and the results so far, without the reasons of missing parties."""
    ask = None
    if run.due is not None:
        ask = run.ask(run.due.channel, "0123")
    results = [run.state.results.get(name) for name in ("selection", "evaluation")]
    return (
        ask and (ask.cids, ask.config, ask.tensors),
        results,
        len(run.state.absent(*run.state.results)),
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, each) for name, case in CASES.items() if case.run for each in case.hostile],
)
def test_a_hostile_reply_costs_its_sender_alone(name: str, change: str) -> None:
    steps = CASES[name].steps()
    reason, spoil = CASES[name].hostile[change]

    def spoiled(reply: Reply) -> Reply:
        if reply.cid == "3":
            return spoil(steps.run.asked.request, reply)
        return reply

    taken = steps.step(DUE, spoil=spoiled)
    assert list(taken.missing) == ["party-3"]
    assert taken.missing["party-3"].startswith(reason)
    assert made_of(steps.run) == without_one(name)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.run])
def test_the_same_integers_written_again_pass(name: str) -> None:
    """A reply encoded anew is taken: hostile replies are refused for their content."""
    steps = CASES[name].steps()
    taken = steps.step(
        DUE, spoil=lambda reply: integers(list)(steps.run.asked.request, reply)
    )  # type: ignore[union-attr]
    assert taken.missing == {}


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.takes_counted]
)
def test_only_counted_parties_take_part(name: str) -> None:
    case = CASES[name]
    for member in (None, Member("", "1")):
        with raises(PayloadError, field=case.request.phase):
            statistic_of(case.request, case.party(SOME), member)


def read(name: str, arrays: Any, n_examples: Any) -> Any:
    """The statistic that a server reads in some arrays."""
    return CASES[name].request.read(
        arrays, Reply("1", (), n_examples, {}), CASES[name].member(SOME)
    )


@pytest.mark.parametrize("name", CASES)
def test_a_reply_of_another_form_is_refused(name: str) -> None:
    reply = replied(CASES[name].request, CASES[name].party(SOME))
    arrays = codec.read_tensors(reply.tensors)
    n = reply.n_examples
    statistic = read(name, arrays, n)
    fields = CASES[name].request.fields(Sizes(n, n))
    parts = CASES[name].request.parts(statistic)
    for index, part in enumerate(parts):
        with pytest.raises(FlyNNError):
            read(
                name,
                to_arrays(fields, [*parts[:index], part[1:], *parts[index + 1 :]]),
                n,
            )
    for number in (n + 1, n - 1, -1, float(n), True, str(n), None, 2**63):
        with pytest.raises(FlyNNError):
            read(name, arrays, number)
    for index, array in enumerate(arrays):
        others = [
            array[:-1],
            array[None],
            array.astype("<f8"),
            array.astype(">i8"),
            np.arange(60, dtype=np.uint8),
        ]
        for other in others:
            with pytest.raises(FlyNNError):
                read(name, [*arrays[:index], other, *arrays[index + 1 :]], n)
    for spoiled in ([], arrays[1:], [*arrays, arrays[-1], arrays[-1]]):
        with pytest.raises(FlyNNError):
            read(name, spoiled, n)


@pytest.mark.parametrize("name", CASES)
def test_a_reply_with_an_integer_out_of_its_bounds_is_refused(name: str) -> None:
    request = CASES[name].request
    n = replied(request, CASES[name].party(SOME)).n_examples
    sizes = request.sizes_of(Reply("1", (), n, {}), CASES[name].member(SOME))
    fields = request.fields(sizes)
    good = request.parts(POOLED[name])
    for field, part in zip(fields, good, strict=True):
        assert part.shape == field.shape or (
            field.is_open and part.ndim == 1 and part.size <= field.size
        )
    for index, field in enumerate(fields):
        for value in values_outside(field):
            part = good[index].copy()
            part.flat[0] = value
            with pytest.raises(PayloadError):
                read(
                    name,
                    to_arrays(fields, [*good[:index], part, *good[index + 1 :]]),
                    n,
                )


def values_outside(field: Field) -> list[int]:
    """Integers that no party may send in a field, as far as its form has them."""
    above = [field.largest + 1, 2**61]
    if field.is_signed:
        return [*above, -field.largest - 1]
    if field.form == PLAIN:
        return [*above, -1]
    return above


@pytest.mark.parametrize("name", CASES)
def test_a_small_reply_makes_nobody_allocate_much(name: str) -> None:
    """Arrays of zeros deflate to next to nothing; the server takes no more of them than
    it expects.
    """
    request = CASES[name].request
    fields = request.layout
    n = replied(request, CASES[name].party(SOME)).n_examples
    wide = [
        Field(f.name, (1, 10**7), 0, f.form, f.is_signed, f.types, f.fingerprint)
        for f in fields[-1:]
    ]
    if wide[0].form == PLAIN:
        return  # such an array is as large as its message
    bomb = to_arrays(wide, [np.zeros((1, 10**7), np.int64)])
    good = to_arrays(fields, request.parts(POOLED[name]))
    with traced() as memory, pytest.raises(PayloadError):
        read(name, [*good[: -len(bomb)], *bomb], n)
    assert memory.peak < 2**22
