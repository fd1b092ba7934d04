"""Decoders of messages for the fuzzer: arrays, what a party is asked, and what a server is answered."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, derive_private_key
from flwr.common import Code, EvaluateIns, FitIns, Parameters, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch, collect
from flwr_flynn.federated.compression import pack_numbers, sealed, unpack_numbers
from flwr_flynn.federated.layout import PLAIN, Field, Sizes, of_arrays, to_arrays
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phase import Context
from flwr_flynn.federated.phases.columns import BinsRequest, ColumnsRequest
from flwr_flynn.federated.phases.counts import CountsRequest, WithdrawRequest
from flwr_flynn.federated.phases.gram import GramRequest
from flwr_flynn.federated.phases.selection import SelectionRequest
from flwr_flynn.federated.protocol import (
    EVALUATE,
    MEMBER,
    NOISY_EXAMPLES,
    PARTY,
    PHASE,
    REFUSED,
    STATISTIC,
    TRAIN,
    Config,
    Reply,
    key,
)
from flwr_flynn.federated.request import Request, request_of
from flwr_flynn.federated.roster import Failures, Roster
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import secagg
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.records import reply_of_evaluation
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import CountsOfSpecs, memory_needed
from flwr_flynn.model.gram import LARGEST_WEIGHT as LARGEST_GRAM_WEIGHT
from flwr_flynn.model.gram import LEVELS, GramMatrix, LearnedGram
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease, TopTLaplace, mechanism_from_dict
from flwr_flynn.privacy.ledger import Budget, Policy
from tests.fakes import CLASSES, HASHER, RUN, SPEC, counts_of, decode_release, encode_release, evaluation_of, points
from tests.fuzzing import Decoder, Mutator

OTHER = HashSpec(n_features=4, hash_dim=16, row_nnz=3, hash_nnz=2, seed=9, signed=True, center=(0.5, 0, 1e-9, -7))
TWO = RunSpec((SPEC, OTHER), CLASSES)
MECHANISM = LaplaceCounts(1.0, hash_nnz=SPEC.hash_nnz, n_classes=len(CLASSES))
NOISY = RunSpec(SPEC, CLASSES, MECHANISM)
SECURE = RunSpec(SPEC, CLASSES, bound=256)
NAMED = RunSpec(SPEC, (3, -1), feature_names=("a", "b", "c", "d"))
COLUMNS = ColumnsRequest(n_features=4, classes=CLASSES)

X, Y = points(40)
CODES = RUN.codes(Y)
COUNTS = [counts_of(*points(n, seed=n)) for n in (0, 1, 5, 400)]
PAIRS = [
    tuple(ClassCounts.from_data(hasher, X[:n], CODES[:n], len(CLASSES)) for hasher in TWO.hashers) for n in (3, 40)
]
RELEASES = [SimulatedRelease(MECHANISM, seed).release(counts) for seed, counts in enumerate(COUNTS)]
WIDE = FlyHash(HashSpec(n_features=4, hash_dim=1024, row_nnz=2, hash_nnz=16, seed=1))
WIDE_COUNTS = [ClassCounts.from_data(WIDE, *wide) for wide in ((X[:1], CODES[:1], 3), (X, CODES, 3))]
WIDE_COUNTS += [sum([WIDE_COUNTS[1]] * n, WIDE_COUNTS[0]) for n in (5, 300, 3000)]
READ = LearnedGram.of(TWO.specs, X, CODES, len(CLASSES)).scoring
SECURE_SUMS: list[Request[Any]] = [
    *(BinsRequest(COLUMNS, (np.arange(8) << KEY_BITS) // 2, by_class, 256) for by_class in (False, True)),
    SelectionRequest(SECURE, CountsOfSpecs((COUNTS[3],)), ((ScoringRule("balanced", 0.5),),)),
    GramRequest(SECURE, (1, 2, 1)),
]
FLOORED = [ColumnHistograms.from_data(X[:n] * 10.0**n, CODES[:n], len(CLASSES), 2) for n in (0, 9, 40)]


def tensors(arrays: list[np.ndarray]) -> list[bytes]:
    return ndarrays_to_parameters(arrays).tensors


def check_counts(counts: ClassCounts, hash_nnz: int = SPEC.hash_nnz) -> None:
    """The facts about counts of some set of points, which hold for no other matrix."""
    for row, n in zip(counts.array.tolist(), counts.n_per_class.tolist(), strict=True):
        assert 0 <= min(row) <= max(row) <= n
        assert sum(row) == hash_nnz * n


# -------- arrays


def use_tensors(given: Any) -> None:
    arrays = codec.read_tensors(given)
    assert sum(array.nbytes for array in arrays) <= sum(map(len, given))
    again = codec.read_tensors(tensors(arrays))
    assert [(a.dtype, a.shape, a.tobytes()) for a in arrays] == [(a.dtype, a.shape, a.tobytes()) for a in again]


def use_counts(given: Any) -> None:
    counts = codec.decode_all(given, [HASHER], len(CLASSES))[0]
    check_counts(counts)
    assert codec.decode_all(codec.encode(counts), [HASHER], len(CLASSES))[0] == counts


def use_blocks(given: Any) -> None:
    blocks = codec.decode_all(given, TWO.hashers, len(CLASSES))
    for counts, spec in zip(blocks, TWO.specs, strict=True):
        check_counts(counts, spec.hash_nnz)
    assert codec.decode_all(codec.encode(*blocks), TWO.hashers, len(CLASSES)) == blocks


def use_wide_counts(given: Any) -> None:
    counts = codec.decode_all(given, [WIDE], len(CLASSES))[0]
    check_counts(counts, WIDE.hash_nnz)
    assert codec.decode_all(codec.encode(counts), [WIDE], len(CLASSES))[0] == counts


def use_release(given: Any) -> None:
    release = decode_release(given, HASHER, MECHANISM, 1000)
    assert np.abs(release.array).max() <= 1000 + 41 * MECHANISM.noise_sd
    assert decode_release(encode_release(release, MECHANISM), HASHER, MECHANISM, 1000) == release


def use_total(given: Any) -> None:
    total = codec.decode_total(given, HASHER, MECHANISM, 3)
    assert np.abs(total.array.astype(object)).max() * SPEC.hash_dim < 2**63
    assert codec.decode_total(codec.encode(total), HASHER, MECHANISM, 3) == total


def use_joined(given: Any) -> None:
    pieces = codec.split(given)
    assert codec.join(pieces) == given
    (table,) = of_arrays(codec.read_tensors(pieces), [Field("table", (3, 3), 2**62, PLAIN, is_signed=True)])
    assert (table.dtype, table.shape) == (np.int64, (3, 3))


def use_histograms(given: Any) -> None:
    n_per_class, cells, counts = given
    found = ColumnHistograms(4, n_per_class, cells, counts)
    assert (np.diff(found.cells) > 0).all()
    assert found.counts.sum() == 4 * found.n_per_class.sum()
    assert found + ColumnHistograms.zeros(4, len(n_per_class)) == found
    if found.n_examples:
        assert found.edges().shape == (4, 32)
        assert np.isfinite(found.center_and_deviation()).all()
        assert np.isfinite(found.relevance()).all()


def make_histograms(mutator: Mutator) -> Any:
    found = mutator.choice(FLOORED)
    arrays = [found.n_per_class.copy(), found.cells.copy(), found.counts.copy()]
    place = mutator.below(3)
    spoiled = mutator.array(arrays[place])
    if isinstance(spoiled, np.ndarray) and spoiled.dtype == np.int64:
        arrays[place] = np.array(spoiled)
    return arrays


def use_numbers(given: Any) -> None:
    numbers = unpack_numbers(given, 200, 2**40)
    assert len(numbers) <= 200
    assert 0 <= numbers.min(initial=0) <= numbers.max(initial=0) <= 2**40
    np.testing.assert_array_equal(unpack_numbers(pack_numbers(numbers), 200, 2**40), numbers)


def make_numbers(mutator: Mutator) -> Any:
    most = (0, 1, 200, 2**16, 2**40, *([2**63] * mutator.one_in(4)))
    numbers = np.array([mutator.choice(most) for _ in range(mutator.below(210))], np.uint64)
    packed = pack_numbers(numbers).tobytes()
    return np.frombuffer(mutator.raw(packed) if mutator.one_in(2) else packed, np.uint8)


def a_confusion(mutator: Mutator) -> np.ndarray:
    return np.array([[mutator.below(50) for _ in range(3)] for _ in range(3)], np.int64)


def make_joined(mutator: Mutator) -> Any:
    whole = tensors([a_confusion(mutator)])
    if mutator.one_in(2):
        return mutator.raw(codec.join(whole))
    spoiled = [each for each in mutator.tensors(whole) if isinstance(each, bytes)]
    return mutator.scalar() if mutator.one_in(20) else codec.join(spoiled)


# -------- requests


ASKING = Party(Samples(X, Y, X[:10], Y[:10]), PartyOptions(gram=True))
ASKING.options.__dict__["memory_limit"] = 2**21


def request_seeds() -> list[Request[Any]]:
    """A request of every phase, and of every mode."""
    totals = CountsOfSpecs((COUNTS[3],))
    pair = CountsOfSpecs(PAIRS[1])
    candidates = (ScoringRule("balanced", 0.5), ScoringRule("novelty", 0.0))
    scoring = ScoringRule("balanced", 0.5, 1.5)
    return [
        COLUMNS,
        ColumnsRequest(4, (1, 2), ("a", "b", "c", "d")),
        *(CountsRequest(run) for run in (RUN, TWO, NOISY, SECURE, NAMED)),
        *(WithdrawRequest(run) for run in (RUN, NOISY)),
        SelectionRequest(RUN, totals, (candidates,)),
        SelectionRequest(TWO, pair, (candidates[:1], candidates[1:])),
        *SECURE_SUMS,
        *(GramRequest(run, (1, 2, 1)) for run in (RUN, TWO)),
        evaluation_of(RUN, (COUNTS[3],), (scoring,), (1.0,), gram=READ),
        evaluation_of(TWO, PAIRS[1], (scoring, scoring), (0.75, 0.25), gram=READ),
        evaluation_of(RUN, (COUNTS[3],), (scoring,), (1.0,)),
        evaluation_of(TWO, PAIRS[1], (scoring, ScoringRule("balanced", 0.25, 1.0)), (0.75, 0.25)),
        evaluation_of(RUN, (COUNTS[1],), (scoring,), (1.0,), tries=False),
        evaluation_of(NOISY, (RELEASES[0],), (scoring,), (1.0,), n_releases=1),
    ]


SEEDS = [(tensors(each.arrays()), {PHASE: each.phase, **each.to_config()}) for each in request_seeds()]


def make_request(mutator: Mutator) -> Any:
    arrays, config = mutator.choice(SEEDS)
    if mutator.one_in(2) and arrays:
        return mutator.tensors(arrays), dict(config)
    return list(arrays), mutator.config(config)


def use_run_spec(given: Any) -> None:
    run = RunSpec.from_config(Config(given))
    if sum(memory_needed(spec, run.n_classes) for spec in run.specs) < 2**20:
        assert RunSpec.from_config(Config(run.to_config())) == run
        with suppress(PayloadError):
            run.agree_on_rows(Config(given))


def use_from_config(given: Any) -> None:
    """A request is read whole, and says the same again."""
    arrays, config = given
    kind = request_of(config)
    request = kind.from_config(Config(config), codec.read_tensors(arrays), ASKING)
    again = kind.from_config(Config({PHASE: request.phase, **request.to_config()}), request.arrays(), ASKING)
    assert again.to_config() == request.to_config()
    assert tensors(again.arrays()) == tensors(request.arrays())
    assert again.discloses == request.discloses


def use_mechanism(given: Any) -> None:
    mechanism = mechanism_from_dict(given)
    assert mechanism_from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism
    assert mechanism.noise_sd > 0
    assert mechanism.guarantee()


def make_mechanism(mutator: Mutator) -> Any:
    kinds = (MECHANISM, SimulatedRelease(MECHANISM, 7), TopTLaplace(1.0, hash_nnz=3, n_classes=3, n_released=5))
    values: Any = mutator.choice(kinds).to_dict()
    for _ in mutator.times():
        values = mutator.value(values)
    return values


SECRET = "geheim"


class Parties:
    """Parties of every kind, and what may leave each of them.

    Parameters
    ----------
    folder : Path
        For the ledger of the private one.
    """

    def __init__(self, folder: Path) -> None:
        budget = Budget(folder / "party", Policy(3.0, mechanisms=("laplace",)))
        limit: dict[str, Any] = {"name": "Ulm", "memory_limit": 2**21}
        held_out = {"X_test": X[:10], "y_test": Y[:10]}
        odd_X, odd_y = X.copy(), Y.astype(object)
        odd_X[3, 1], odd_y[5] = 1e300, SECRET
        self.clients = {
            "open": FlyNNClient(X, Y, **held_out, **limit, gram=True),
            "odd": FlyNNClient(odd_X, odd_y, X_test=odd_X, y_test=odd_y, **limit),
            "secure": FlyNNClient(X, Y, **held_out, **limit, secure=True),
            "leaving": FlyNNClient(X, Y, **held_out, **limit, leaves=True),
            "private": FlyNNClient(X, Y, **held_out, **limit, budget=budget),
        }

    def make(self, mutator: Mutator) -> Any:
        arrays, config = make_request(mutator) if mutator.one_in(2) else mutator.choice(SEEDS)
        return mutator.choice(list(self.clients)), arrays, config

    def use(self, given: Any) -> None:
        """A party answers a request, or declines it with a reason; it never fails, and gives what it may give."""
        kind, arrays, config = given
        client = self.clients[kind]
        party, parameters = client.to_client(), Parameters(arrays, "numpy.ndarray")
        fit = party.fit(FitIns(parameters, dict(config)))
        evaluation = party.evaluate(EvaluateIns(parameters, dict(config)))
        for answer in (fit, evaluation):
            assert answer.status.code == Code.OK
            assert "failed" not in str(answer.metrics.get(REFUSED)), answer.metrics
            assert SECRET not in str(answer.metrics)
            assert "1e+300" not in str(answer.metrics)
            assert 0 <= answer.num_examples <= len(Y)
            assert answer.metrics[PARTY] == "Ulm"
        phase = config.get(PHASE)
        gave_train, gave_results = bool(fit.parameters.tensors), STATISTIC in evaluation.metrics
        assert not gave_train or phase in ("columns", "counts", "withdraw", "selection", "gram")
        assert not gave_results or phase in RESULTING
        if kind in ("open", "odd"):
            assert phase != "withdraw" or not gave_train
        if kind == "odd":
            assert not gave_train or phase == "columns" or config.get(key("classes")) != CLASSES_SENT
        if kind == "secure":
            assert not gave_train
            assert phase == "evaluation" or not gave_results
        if kind == "leaving":
            assert phase == "withdraw" or not gave_train
            assert phase == "evaluation" or not gave_results
        if kind == "private":
            assert not gave_results
            assert not gave_train or (fit.num_examples, set(fit.metrics)) == (NOISY_EXAMPLES, {PARTY})
        if REFUSED in fit.metrics and REFUSED in evaluation.metrics:
            raise PayloadError("declined")


RESULTING = ("evaluation",)
CLASSES_SENT = json.dumps(CLASSES)


# -------- replies


class Server:
    """A run that has asked for one phase, and now gets replies.

    Parameters
    ----------
    run : Run
    channel : {"train", "evaluate"}
    """

    def __init__(self, run: Run, channel: str = TRAIN) -> None:
        ask = run.ask(channel, ["1", "7", "8"])
        assert ask is not None
        self.run, self.ask = run, ask
        known = run.state.results.get(ask.phase.name) if ask.phase.is_counting else None
        self.start = known or ask.request.start

    def context(self, names: dict[str, str] | None = None) -> Context:
        return Context(self.run.options, self.run.counted, {}, names or {}, self.ask.request)

    def checked(self, replies: list[Reply]) -> Any:
        """Check replies, and that checking changed nothing."""
        roster, before = self.run.rosters.get(self.ask.phase.name, Roster()), self._shown()
        roster = self.run.counted if self.ask.phase.is_counting else roster
        batch = Batch(self.start)
        collect(self.ask.request, batch, roster, self.run.counted, replies)
        assert self._shown() == before
        assert not any("unreadable" in reason for reason in batch.refused.values()), batch.refused
        if self.ask.phase.channel == TRAIN:
            assert {reply.cid for reply in replies} == {*batch.passed, *batch.refused, *batch.repeated}
        assert batch.passed.keys() == batch.members.keys()
        if not batch.passed:
            assert batch.total is self.start
            raise PayloadError("nobody passed")
        return batch

    def _shown(self) -> str:
        rosters = [(roster.counted, roster.missing, roster.members) for roster in self.run.rosters.values()]
        return repr((id(self.run.state), rosters, [_bytes_of(self.start)]))


def _bytes_of(total: Any) -> list[bytes]:
    if isinstance(total, CountsOfSpecs):
        return [part.array.tobytes() for part in total.parts]
    if isinstance(total, ColumnHistograms):
        return [each.tobytes() for each in (total.n_per_class, total.cells, total.counts)]
    if isinstance(total, GramMatrix):
        return [each.tobytes() for each in (total.products, total.sums, total.n_per_class)]
    return [np.asarray(each).tobytes() for each in total.tables]


def make_replies(seeds: list[tuple[list[bytes], int]]) -> Callable[[Mutator], list[Reply]]:
    def make(mutator: Mutator) -> list[Reply]:
        replies = []
        for cid in range(mutator.choice((1, 1, 1, 2, 3))):
            arrays, n_examples = mutator.choice(seeds)
            metrics: dict[str, Any] = {PARTY: f"party {cid}", key("seconds"): 0.5}
            for _ in mutator.times():
                what = mutator.below(6)
                if what == 0:
                    metrics = mutator.config(metrics)
                elif what == 1:
                    n_examples = mutator.value(n_examples)
                elif what == 2 and mutator.one_in(3):
                    metrics[REFUSED] = mutator.scalar()
                else:
                    arrays = mutator.tensors(arrays)
            replies.append(Reply(str(cid % 2 + 7), arrays, n_examples, metrics))
        return replies

    return make


def make_packed(seeds: list[tuple[list[np.ndarray], int]], first: int) -> Callable[[Mutator], list[Reply]]:
    """Replies whose arrays from `first` on are packed: with faults in the numbers, and then in the message."""

    def make(mutator: Mutator) -> list[Reply]:
        arrays, n_examples = mutator.choice(seeds)
        arrays, place = list(arrays), mutator.below(3)
        spoiled = mutator.array(arrays[place]) if mutator.one_in(2) else None
        if isinstance(spoiled, np.ndarray) and spoiled.dtype.kind in "iu":
            arrays[place] = spoiled
        packed = [each if i < first else pack_numbers(each.ravel()) for i, each in enumerate(arrays)]
        return make_replies([(tensors(packed), n_examples)])(mutator)

    return make


def counting(two: bool = True) -> Run:
    """A run with one party in its counts."""
    spec = [SPEC, OTHER] if two else SPEC
    run = Run(RunOptions(spec, CLASSES, 2 if two else 1))
    assert run.ask(TRAIN, ["1"])
    counts = PAIRS[0] if two else (counts_of(X, Y),)
    first = Reply("1", tensors(codec.encode(*counts)), counts[0].n_examples, {PARTY: "Basel", MEMBER: "its secret"})
    assert run.complete([first], Failures())
    assert [str(member) for member in run.counted.counted] == ["Basel"]
    return run


SERVER = Server(counting())
NOISY_SERVER = Server(Run(RunOptions(SPEC, CLASSES, 2, mechanism=MECHANISM)))
BINNING = Server(Run(RunOptions(HashPlan(4, 3, scaling="auto"), CLASSES, 2, max_examples_per_party=10**6)))
ONE = counting(two=False)
SELECTING = Server(ONE)
EVALUATING = Server(
    Run(RunOptions(SPEC, CLASSES, 1, decay=0.5, federation=ONE.federation("1"), purpose="evaluate")), EVALUATE
)
LEAVING = Server(
    Run(RunOptions(SPEC, CLASSES, 1, federation=ONE.federation("1"), purpose="withdraw", fraction_evaluate=0.0))
)


def use_replies(given: list[Reply]) -> None:
    batch = SERVER.checked(given)
    parts = [codec.decode_all(codec.read_tensors(r.tensors), TWO.hashers, 3) for r in batch.passed.values()]
    for place, (total, spec) in enumerate(zip(batch.total.parts, TWO.specs, strict=True)):
        check_counts(total, spec.hash_nnz)
        whole = sum((part[place].array for part in parts), SERVER.start.parts[place].array)
        np.testing.assert_array_equal(total.array, whole)
    # A party is in by the samples it gave and no more: no entry grew by more than those.
    gained = sum(reply.n_examples for reply in batch.passed.values())
    assert (batch.total.parts[0].array - SERVER.start.parts[0].array).max() <= gained


def use_taken(given: list[Reply]) -> None:
    """A whole exchange leaves the run as it was, or with the very sum that was checked."""
    server = Server(counting())
    before, members = server.run.state, server.run.counted.members
    with suppress(PayloadError):
        total = server.checked(given).total
        assert server.run.complete(given, Failures())
        assert server.run.totals == total
        return
    assert server.run.complete(given, Failures())
    assert (server.run.state, server.run.counted.members) == (before, members)
    raise PayloadError("nobody passed")


def use_noisy_replies(given: list[Reply]) -> None:
    batch = NOISY_SERVER.checked(given)
    assert len(batch.total.parts[0].noise) <= len(batch.passed)


def use_columns_replies(given: list[Reply]) -> None:
    batch = BINNING.checked(given)
    total = batch.total
    assert total.n_examples == sum(reply.n_examples for reply in batch.passed.values())
    assert (total.n_per_class != 1).all()
    assert total.counts.min(initial=2) >= 2
    state = BINNING.ask.phase.fold(BINNING.run.state, batch, BINNING.context())
    assert len(state.run_spec.specs) in (1, 6)


def use_leaving_replies(given: list[Reply]) -> None:
    """Nobody takes anything out of a sum but the very counts that were added."""
    shown = {PARTY: "Basel", MEMBER: "its secret"}
    named = [Reply(each.cid, each.tensors, each.n_examples, {**each.metrics, **shown}) for each in given]
    batch = LEAVING.checked(named)
    assert list(batch.taken_out.values()) == [0]
    assert batch.total.parts[0] == ClassCounts.zeros(HASHER, 3)


def make_means(mutator: Mutator) -> list[Reply]:
    """Copies of a mean, as Flower's workflow hands them over."""
    counts = counts_of(*points(mutator.below(40), mutator.below(9))).array.ravel()
    mean = counts * mutator.choice((1.0, 1 / 3, 2 / 3, 0.5, 40.0))
    arrays = tensors([mean])
    if mutator.one_in(2):
        arrays = mutator.tensors(arrays)
    replies = [Reply(str(cid), arrays, 1, {PARTY: "x"}) for cid in (1, 7, 8)]
    if mutator.one_in(4):
        replies[1] = Reply("7", mutator.tensors(arrays), 1, {})
    return replies


SECURE_SERVER = Server(Run(RunOptions(SPEC, CLASSES, 3, secure_bound=256, fraction_evaluate=0.0)))


def use_means(given: list[Reply]) -> None:
    batch = SECURE_SERVER.checked(given)
    assert len(batch.passed) == 3
    (mean,) = codec.read_tensors(given[0].tensors)
    assert np.abs(batch.total.parts[0].array.ravel() - 3 * mean).max() <= 1e-3
    assert np.abs(batch.total.parts[0].array).max() <= 3 * 256


def make_sums(mutator: Mutator) -> tuple[Request[Any], list[Reply]]:
    """Copies of a mean of anything, in the form of the statistic of a phase."""
    asked = mutator.choice(SECURE_SUMS)
    most = mutator.choice((0, 1, 2, 256))
    total = np.array([mutator.below(most + 1) for _ in range(asked.n_entries)], np.int64)
    if mutator.one_in(2):
        total[mutator.below(len(total))] = mutator.choice((-1, -256, 3 * 256, 3 * 256 + 1, 2**40))
    arrays = tensors([total / 3])
    if mutator.one_in(4):
        arrays = mutator.tensors(arrays)
    return asked, [Reply(str(cid), arrays, 1, {PARTY: "x"}) for cid in (1, 7, 8)]


def use_sums(given: tuple[Request[Any], list[Reply]]) -> None:
    """The sum is refused, or is one that some samples can have."""
    asked, replies = given
    found = asked.summed(replies)
    parts = [part.astype(object) for part in asked.parts(found)]
    for part, field in zip(parts, asked.layout, strict=True):
        assert part.shape == field.shape
        assert (abs(part) <= 3 * field.most).all()


def stopped(n_exchanges: int, **options: Any) -> Run:
    """A run after the counting and so many exchanges behind it."""
    run = Run(RunOptions(SPEC, CLASSES, 1, decay=0.5, **options))
    party = Party(Samples(X, Y), PartyOptions(min_examples=1, gram=True))
    for channel in (TRAIN, *[EVALUATE] * n_exchanges):
        ask = run.ask(channel, ["1"])
        assert ask is not None
        answer = party.answer(ask.config, codec.read_tensors(ask.tensors))
        taken = run.complete([Reply("1", tensors(answer.arrays), answer.n_examples, answer.metrics)], Failures())
        assert taken is not None
        assert not taken.missing
    return run


def make_layout(server: Server) -> Callable[[Mutator], list[Reply]]:
    """Replies over the evaluate channel with faults in their integers, and then in the arrays and the message."""
    answer = ASKING.answer(server.ask.config, codec.read_tensors(server.ask.tensors))
    fields, n = fields_of(server), answer.n_examples
    good = of_arrays(answer.arrays, fields)

    def make(mutator: Mutator) -> list[Reply]:
        parts = list(good)
        if mutator.one_in(2):
            spoiled = mutator.array(parts[place := mutator.below(len(parts))])
            if isinstance(spoiled, np.ndarray) and spoiled.dtype == np.int64 and spoiled.ndim == parts[place].ndim:
                least = 0 if fields[place].form != PLAIN and not fields[place].is_signed else -(2**61)
                parts[place] = np.clip(spoiled, least, 2**61)
        sent: list[Any] = tensors(to_arrays(fields, parts))
        if mutator.one_in(3):
            sent = mutator.tensors(sent)
        statistic = codec.join([each for each in sent if isinstance(each, bytes)])
        metrics: dict[str, Any] = {STATISTIC: mutator.raw(statistic) if mutator.one_in(3) else statistic}
        metrics = mutator.config(metrics) if mutator.one_in(6) else metrics
        cid = "x" if mutator.one_in(20) else "1"
        return [reply_of_evaluation(cid, mutator.value(n) if mutator.one_in(10) else n, metrics)]

    return make


def fields_of(server: Server) -> list[Field]:
    """The layout of the answers of a party with all samples."""
    request = server.ask.request
    return request.fields(Sizes(np.bincount(CODES), len(X)))


def use_layout(server: Server, after: Callable[[Any, Any], object]) -> Callable[[list[Reply]], None]:
    """Check that integers of a reply that passed are within their bounds, and that `after` holds for its results."""

    def use(given: list[Reply]) -> None:
        batch, request = server.checked(given), server.ask.request
        for field, part in zip(fields_of(server), request.parts(batch.total), strict=True):
            field.check(part)
        state = server.ask.phase.fold(server.run.state, batch, server.context({"1": "Basel", "x": "Ulm"}))
        after(batch.total, state.results[server.ask.phase.name])

    return use


PAIRING = Server(stopped(0, gram=24))


def after_evaluation(total: Any, result: Any) -> None:
    assert result.figures["examples"] == total.tables[0].sum() == total.tables[1].sum()


def after_selection(total: Any, selection: Any) -> None:
    (choice,), (scoring,) = selection.choices, selection.scorings
    assert (choice.spec, choice.weight) == (0, 1.0)
    assert ScoringRule(scoring.rule, scoring.decay) == selection.candidates[0][choice.scoring]
    assert selection.examples <= len(X)
    json.dumps(selection.to_dict(), allow_nan=False)


def after_pairs(total: Any, result: Any) -> None:
    np.testing.assert_array_equal(total.n_per_class.sum(axis=0), np.bincount(CODES))
    assert (total.sums <= LEVELS * total.n_per_class[:, :, None]).all()
    scoring = result.scoring
    assert scoring is None or np.abs(scoring.weights.astype(np.int64)).max() <= LARGEST_GRAM_WEIGHT


LAYOUTS: dict[str, tuple[Server, Callable[[Any, Any], object]]] = {
    "selection": (SELECTING, after_selection),
    "gram": (PAIRING, after_pairs),
    "evaluation": (EVALUATING, after_evaluation),
}


# -------- secure sums

PUBLIC_KEYS = [public_key_to_bytes(derive_private_key(n, SECP384R1()).public_key()) for n in (7, 8)]
STAGES: list[tuple[str, dict[str, Any]]] = [
    (Stage.SETUP, {Key.PUBLIC_KEY_1: PUBLIC_KEYS[0], Key.PUBLIC_KEY_2: PUBLIC_KEYS[1]}),
    (Stage.SHARE_KEYS, {Key.DESTINATION_LIST: [1, 2, 3], Key.CIPHERTEXT_LIST: [b"secret"] * 3}),
    (Stage.COLLECT_MASKED_VECTORS, {Key.MASKED_PARAMETERS: tensors([np.array([9]), np.full(72, 2**32 - 1)])}),
    (Stage.UNMASK, {Key.NODE_ID_LIST: [1, 2, 3], Key.SHARE_LIST: [bytes(52), bytes(52), bytes(324)]}),
]


def make_stage(mutator: Mutator) -> Any:
    stage, record = mutator.choice(STAGES)
    name = mutator.choice(list(record))
    if stage == Stage.SETUP and mutator.one_in(2):
        return stage, {**record, name: mutator.raw(record[name], PUBLIC_KEYS)}
    if stage == Stage.COLLECT_MASKED_VECTORS and not mutator.one_in(4):
        return stage, {name: mutator.tensors(record[name])}
    return stage, mutator.config(record)


def use_stage(given: Any) -> None:
    stage, record = given
    secagg.check_reply(stage, {1, 2, 3}, record, (72,))
    if stage in (Stage.SHARE_KEYS, Stage.UNMASK):
        assert sorted(record[Key.DESTINATION_LIST if stage == Stage.SHARE_KEYS else Key.NODE_ID_LIST]) == [1, 2, 3]
    if stage == Stage.COLLECT_MASKED_VECTORS:
        weight, counts = (np.load(io.BytesIO(each), allow_pickle=False) for each in record[Key.MASKED_PARAMETERS])
        assert (weight.shape, counts.shape) == ((1,), (72,))
        assert 0 <= min(weight.min(), counts.min()) <= max(weight.max(), counts.max()) < 2**32


# -------- all of them


def of(seeds: list[Any], spoil: str) -> Callable[[Mutator], Any]:
    """Inputs made of valid ones by one of the mutator's methods."""
    return lambda mutator: getattr(mutator, spoil)(mutator.choice(seeds))


def packed(seeds: list[list[np.ndarray]], shapes: list[tuple[int, int]]) -> Callable[[Mutator], Any]:
    """Messages of packed counts with faults, half of them with the checksum that fits: it is no use against forgers."""

    def make(mutator: Mutator) -> Any:
        message = mutator.arrays(mutator.choice(seeds))
        if mutator.one_in(2) or not isinstance(message, list) or len(message) != 2 * len(shapes):
            return message
        for place in range(1, len(message), 2):
            array = message[place]
            if isinstance(array, np.ndarray) and array.dtype == np.uint8:
                message[place] = np.frombuffer(sealed(array.tobytes()), np.uint8)
        return message

    return make


def decoders(folder: Path) -> list[Decoder]:
    """Of messages; `folder` is where the ledger of a private party goes."""
    plain = [codec.encode(counts) for counts in COUNTS]
    wide = [codec.encode(counts) for counts in WIDE_COUNTS]
    pairs = [codec.encode(*pair) for pair in PAIRS]
    released = [encode_release(release, MECHANISM) for release in RELEASES]
    floats = [np.array(1.5), np.arange(6, dtype="<f2").reshape(1, 2, 3)]
    every = [tensors(arrays) for arrays in (*plain, *pairs, *released, floats)]
    specs = [dict(each.to_config()) for each in (RUN, TWO, NOISY, SECURE, NAMED)]
    replies = [(tensors(codec.encode(*pair)), pair[0].n_examples) for pair in PAIRS]
    binned = [
        ([each.n_per_class.copy(), np.diff(each.cells, prepend=-1) - 1, each.counts - 1], each.n_examples)
        for each in FLOORED
    ]
    left = [(tensors(codec.encode(counts_of(X, Y))), len(Y)), (tensors(plain[2]), 5)]
    parties = Parties(folder)
    return [
        Decoder("codec.read_tensors", of(every, "tensors"), use_tensors, 3),
        Decoder("codec.decode", packed(plain, [(3, 24)]), use_counts, 3),
        Decoder("codec.decode, wide", packed(wide, [(3, 1024)]), use_wide_counts, 3),
        Decoder("codec.decode_all", packed(pairs, [(3, 24), (3, 16)]), use_blocks, 3),
        Decoder("codec.decode_release", of(released, "arrays"), use_release, 2),
        Decoder("codec.decode_total", of([codec.encode(r) for r in RELEASES], "arrays"), use_total, 2),
        Decoder("codec.split, of_arrays", make_joined, use_joined, 2),
        Decoder("ColumnHistograms", make_histograms, use_histograms, 2),
        Decoder("compression.unpack_numbers", make_numbers, use_numbers, 2),
        Decoder("RunSpec.from_config", of(specs, "config"), use_run_spec, 3),
        Decoder("Request.from_config", make_request, use_from_config, 4, memory=2**22),
        Decoder("privacy.mechanism_from_dict", make_mechanism, use_mechanism, 2),
        Decoder("collect: counts", make_replies(replies), use_replies, 4),
        Decoder("collect: noisy counts", make_replies([(tensors(r), 1) for r in released]), use_noisy_replies, 2),
        Decoder("collect: columns", make_packed(binned, 1), use_columns_replies, 3),
        Decoder("collect: withdraw", make_replies(left), use_leaving_replies, 2),
        Decoder("collect: secure sum", make_means, use_means, 2),
        Decoder("collect: secure sums of other phases", make_sums, use_sums, 2),
        *(
            Decoder(f"collect: {name}", make_layout(server), use_layout(server, after), 2)
            for name, (server, after) in LAYOUTS.items()
        ),
        Decoder("Run.complete", make_replies(replies), use_taken, 1, memory=2**22),
        Decoder("secagg.check_reply", make_stage, use_stage, 2),
        Decoder("Party: any request", parties.make, parties.use, 4, memory=2**22),
    ]
