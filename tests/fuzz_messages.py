"""Decoders of messages for the fuzzer: arrays, what a party is asked, and what a server is answered."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, derive_private_key
from flwr.common import Code, EvaluateIns, FitIns, Parameters, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.aggregator import Aggregator
from flwr_flynn.federated.compression import sealed
from flwr_flynn.federated.protocol import SumsTerms, Terms
from flwr_flynn.federated.roster import Reply
from flwr_flynn.federated.scaling_round import SumsRound
from flwr_flynn.federated.selection_round import CANDIDATES, Choosing, read_candidates, tables_to_bytes
from flwr_flynn.flower import secagg_checks
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.model.column_moments import ColumnMoments
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.leave_one_out import TEMPERATURES
from flwr_flynn.model.metrics import confusion_from_bytes, confusion_to_bytes
from flwr_flynn.model.model import Readout
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease, TopTLaplace, mechanism_from_dict
from tests.fakes import CLASSES, HASHER, SPEC, TERMS, counts_of, points
from tests.fuzzing import Decoder, Mutator

OTHER = HashSpec(n_features=4, hash_dim=16, row_nnz=3, hash_nnz=2, seed=9, signed=True, center=(0.5, 0, 1e-9, -7))
TWO = Terms((SPEC, OTHER), CLASSES)
MECHANISM = LaplaceCounts(1.0, hash_nnz=SPEC.hash_nnz, n_classes=len(CLASSES))
NOISY = Terms(SPEC, CLASSES, codec.NOISY, mechanism=MECHANISM)
NAMED = Terms(SPEC, (3, -1), feature_names=("a", "b", "c", "d"))
SUMS = SumsTerms(n_features=4, classes=CLASSES, by_class=True, min_examples=2)

X, Y = points(40)
CODES = TERMS.codes(Y)
COUNTS = [counts_of(*points(n, seed=n)) for n in (0, 1, 5, 400)]
PAIRS = [
    tuple(ClassCounts.from_data(hasher, X[:n], CODES[:n], len(CLASSES)) for hasher in TWO.hashers) for n in (3, 40)
]
RELEASES = [SimulatedRelease(MECHANISM, seed).release(counts) for seed, counts in enumerate(COUNTS)]
WIDE = FlyHash(HashSpec(n_features=4, hash_dim=1024, row_nnz=2, hash_nnz=16, seed=1))
WIDE_COUNTS = [ClassCounts.from_data(WIDE, *wide) for wide in ((X[:1], CODES[:1], 3), (X, CODES, 3))]
WIDE_COUNTS += [sum([WIDE_COUNTS[1]] * n, WIDE_COUNTS[0]) for n in (5, 300, 3000)]
COLUMNS = [ColumnMoments.from_data(X[:n] * 10.0**n, CODES[:n], len(CLASSES), 2) for n in (0, 9, 40)]


def tensors(arrays: list[np.ndarray]) -> list[bytes]:
    return ndarrays_to_parameters(arrays).tensors


def check_counts(counts: ClassCounts, hash_nnz: int = SPEC.hash_nnz) -> None:
    """What is true of the counts of some set of points, and of no other matrix."""
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
    counts = codec.decode(given, HASHER, len(CLASSES))
    check_counts(counts)
    assert codec.decode(codec.encode(counts), HASHER, len(CLASSES)) == counts


def use_blocks(given: Any) -> None:
    blocks = codec.decode_all(given, TWO.hashers, len(CLASSES))
    for counts, spec in zip(blocks, TWO.specs, strict=True):
        check_counts(counts, spec.hash_nnz)
    assert codec.decode_all(codec.encode(*blocks), TWO.hashers, len(CLASSES)) == blocks


def use_wide_counts(given: Any) -> None:
    counts = codec.decode(given, WIDE, len(CLASSES))
    check_counts(counts, WIDE.hash_nnz)
    assert codec.decode(codec.encode(counts), WIDE, len(CLASSES)) == counts


def use_release(given: Any) -> None:
    release = codec.decode_release(given, HASHER, MECHANISM, 1000)
    assert np.abs(release.array).max() <= 1000 + 41 * MECHANISM.noise_sd
    assert codec.decode_release(codec.encode_release(release, MECHANISM), HASHER, MECHANISM, 1000) == release


def use_total(given: Any) -> None:
    total = codec.decode_total(given, HASHER, MECHANISM, 3)
    assert np.abs(total.array.astype(object)).max() * SPEC.hash_dim < 2**63
    assert codec.decode_total(codec.encode(total), HASHER, MECHANISM, 3) == total


def use_limbs(given: Any) -> None:
    sums = ColumnMoments.from_limbs(given, SUMS.n_features, SUMS.n_rows)
    n = sums.n_per_class.astype(object)[:, None]
    assert (n * sums.squares >= sums.sums**2).all()
    assert ColumnMoments.from_limbs(sums.to_limbs(), SUMS.n_features, SUMS.n_rows) == sums


def use_confusion(given: Any) -> None:
    raw, n_examples = given
    matrix = confusion_from_bytes(raw, 3, n_examples)
    assert matrix.min() >= 0
    assert sum(matrix.ravel().tolist()) == n_examples
    assert confusion_to_bytes(matrix) == raw


def make_confusion(mutator: Mutator) -> Any:
    matrix = np.array([[mutator.below(50) for _ in range(3)] for _ in range(3)], np.int64)
    n_examples = int(matrix.sum())
    return mutator.raw(confusion_to_bytes(matrix)), mutator.choice((n_examples, n_examples, n_examples + 1, 2**62))


# -------- requests


def use_terms(given: Any) -> None:
    terms = Terms.from_config(given, n_features=4)
    if sum(memory_needed(spec, terms.n_classes) for spec in terms.specs) < 2**20:
        assert Terms.from_config(terms.to_config(), n_features=4) == terms
        with suppress(PayloadError):
            terms.agree_on_rows(given)


def use_sums_terms(given: Any) -> None:
    terms = SumsTerms.from_config(given, n_features=4)
    assert SumsTerms.from_config(terms.to_config(), n_features=4) == terms


def use_candidates(given: Any) -> None:
    candidates = read_candidates(given, n_specs=2)
    pairs = [[(each.rule, each.decay) for each in entries] for entries in candidates]
    assert read_candidates({CANDIDATES: json.dumps(pairs)}, n_specs=2) == candidates


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


CHOOSING = Aggregator(TERMS, 1)
CHOOSING.commit(CHOOSING.check([Reply("1", tensors(codec.encode(counts_of(X, Y))), len(X), {})]))
BALLOTS = Choosing(CHOOSING, "balanced", "auto")


def requests() -> list[tuple[list[bytes], dict[str, Any]]]:
    """Each kind of request that a party gets."""
    totals = tensors(codec.encode(COUNTS[3]))
    readout = {"flynn-decay": 0.5, "flynn-rule": "balanced", "flynn-temperature": 1.5}
    return [
        ([], dict(TERMS.to_config())),
        ([], dict(TWO.to_config())),
        ([], dict(SUMS.to_config())),
        ([], dict(NOISY.to_config())),
        (totals, {**TERMS.to_config(), **readout}),
        (tensors(codec.encode(RELEASES[0])), {**NOISY.to_config(), **readout, "flynn-releases": 1}),
        (list(tensors(codec.encode(counts_of(X, Y)))), dict(BALLOTS.config())),
    ]


def make_request(mutator: Mutator) -> Any:
    arrays, config = mutator.choice(requests())
    if mutator.one_in(2):
        return mutator.tensors(arrays), config
    return arrays, mutator.config(config)


def use_request(given: Any) -> None:
    """A party answers a request, or declines it with a reason; it never fails."""
    arrays, config = given
    party = FlyNNClient(X, Y, X_test=X[:10], y_test=Y[:10], name="Ulm", memory_limit=2**20).to_client()
    parameters = Parameters(arrays, "numpy.ndarray")
    answers = [party.fit(FitIns(parameters, dict(config))), party.evaluate(EvaluateIns(parameters, dict(config)))]
    for answer in answers:
        assert answer.status.code == Code.OK
        assert "failed with" not in str(answer.metrics.get("flynn-refused")), answer.metrics
        assert 0 <= answer.num_examples <= len(Y)
    if all("flynn-refused" in answer.metrics for answer in answers):
        raise PayloadError("declined")


# -------- replies


def checked(ledger: Any, replies: list[Reply]) -> Any:
    """Check replies, and that checking changed nothing."""
    before = repr((ledger.total, ledger.parties, ledger.missing, ledger.sizes, ledger._room))
    batch = ledger.check(replies)
    assert repr((ledger.total, ledger.parties, ledger.missing, ledger.sizes, ledger._room)) == before
    assert not any("unreadable" in reason for reason in batch.refused.values()), batch.refused
    assert {reply.cid for reply in replies} == {*batch.accepted, *batch.refused, *batch.repeated}
    assert [reply.cid for reply in batch.passed] == list(batch.accepted)
    if not batch.accepted:
        assert batch.total is ledger.total
        raise PayloadError("nobody passed")
    return batch


def make_replies(seeds: list[tuple[list[bytes], int]]) -> Callable[[Mutator], list[Reply]]:
    def make(mutator: Mutator) -> list[Reply]:
        replies = []
        for cid in range(mutator.choice((1, 1, 1, 2, 3))):
            arrays, n_examples = mutator.choice(seeds)
            metrics: dict[str, Any] = {"flynn-party": f"party {cid}", "flynn-seconds": 0.5}
            for _ in mutator.times():
                what = mutator.below(6)
                if what == 0:
                    metrics = mutator.config(metrics)
                elif what == 1:
                    n_examples = mutator.value(n_examples)
                elif what == 2 and mutator.one_in(3):
                    metrics["flynn-refused"] = mutator.scalar()
                else:
                    arrays = mutator.tensors(arrays)
            replies.append(Reply(str(cid % 2 + 7), arrays, n_examples, metrics))
        return replies

    return make


SERVER = Aggregator(TWO, 2)
SERVER.commit(SERVER.check([Reply("1", tensors(codec.encode(*PAIRS[0])), 3, {"flynn-party": "Basel"})]))
SERVER.ask(["7", "8"])
NOISY_SERVER = Aggregator(NOISY, 2)
SUMMING = SumsRound(SUMS, max_examples_per_party=10**6)


def use_replies(given: list[Reply]) -> None:
    batch = checked(SERVER, given)
    parts = [codec.decode_all(codec.read_tensors(r.tensors), TWO.hashers, 3) for r in batch.passed]
    for place, (total, spec) in enumerate(zip(batch.total, TWO.specs, strict=True)):
        check_counts(total, spec.hash_nnz)
        whole = sum((part[place].array for part in parts), SERVER.total[place].array)
        np.testing.assert_array_equal(total.array, whole)
    # A party is in by the points it gave and no more: no entry grew by more than those.
    gained = sum(reply.n_examples for reply in batch.passed)
    assert (batch.total[0].array - SERVER.total[0].array).max() <= gained


def use_noisy_replies(given: list[Reply]) -> None:
    batch = checked(NOISY_SERVER, given)
    assert len(batch.total[0].noise) <= len(batch.passed)


def use_sums_replies(given: list[Reply]) -> None:
    batch = checked(SUMMING, given)
    assert batch.total.n_examples == sum(reply.n_examples for reply in batch.passed)
    assert (batch.total.n_per_class != 1).all()


def make_evaluation(mutator: Mutator) -> list[Reply]:
    raw, n_examples = make_confusion(mutator)
    metrics = mutator.config({"flynn-confusion": raw, "accuracy": 0.5})
    return [Reply("1", [], mutator.value(n_examples) if mutator.one_in(6) else n_examples, metrics)]


def use_evaluation(given: list[Reply]) -> None:
    matrices, refused = SERVER.check_evaluation(given)
    assert not any("unreadable" in reason for reason in refused.values()), refused
    if refused:
        raise PayloadError(refused["1"])
    for matrix in matrices.values():
        assert matrix.sum() == given[0].n_examples


def make_ballot(mutator: Mutator) -> list[Reply]:
    n = len(BALLOTS.candidates[0])
    sizes = CHOOSING.sizes["1"].tolist()
    right = np.array([[mutator.below(size + 1) for size in sizes] for _ in range(n)], np.int64)
    cold = np.array([[mutator.below(10**6) for _ in range(len(TEMPERATURES))] for _ in range(n)], np.int64)
    metrics = {
        "flynn-hits": mutator.raw(tables_to_bytes([right])),
        "flynn-losses": mutator.raw(tables_to_bytes([cold])) if mutator.one_in(2) else tables_to_bytes([cold]),
    }
    n_examples = mutator.value(len(X)) if mutator.one_in(10) else len(X)
    return [Reply(mutator.choice("11111x"), [], n_examples, mutator.config(metrics) if mutator.one_in(4) else metrics)]


def use_ballot(given: list[Reply]) -> None:
    ballots, refused = BALLOTS.check(given)
    assert not any("unreadable" in reason for reason in refused.values()), refused
    if not ballots:
        raise PayloadError("no ballot")
    choice = BALLOTS.conclude(ballots, {})
    assert Readout(choice.rule, choice.decay) in choice.candidates[0]
    json.dumps(choice.to_dict(), allow_nan=False)


# -------- secure sums

PUBLIC_KEYS = [public_key_to_bytes(derive_private_key(n, SECP384R1()).public_key()) for n in (7, 8)]
STAGES: list[tuple[str, dict[str, Any]]] = [
    (Stage.SETUP, {Key.PUBLIC_KEY_1: PUBLIC_KEYS[0], Key.PUBLIC_KEY_2: PUBLIC_KEYS[1]}),
    (Stage.SHARE_KEYS, {Key.DESTINATION_LIST: [1, 2, 3], Key.CIPHERTEXT_LIST: [b"secret"] * 3}),
    (Stage.COLLECT_MASKED_VECTORS, {Key.MASKED_PARAMETERS: tensors([np.array([9]), np.full((3, 24), 2**32 - 1)])}),
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
    secagg_checks.check(stage, {1, 2, 3}, record, (3, 24))
    if stage in (Stage.SHARE_KEYS, Stage.UNMASK):
        assert sorted(record[Key.DESTINATION_LIST if stage == Stage.SHARE_KEYS else Key.NODE_ID_LIST]) == [1, 2, 3]
    if stage == Stage.COLLECT_MASKED_VECTORS:
        weight, counts = (np.load(io.BytesIO(each), allow_pickle=False) for each in record[Key.MASKED_PARAMETERS])
        assert (weight.shape, counts.shape) == ((1,), (3, 24))
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


def decoders() -> list[Decoder]:
    """Of messages."""
    plain = [codec.encode(counts) for counts in COUNTS]
    wide = [codec.encode(counts) for counts in WIDE_COUNTS]
    pairs = [codec.encode(*pair) for pair in PAIRS]
    released = [codec.encode_release(release, MECHANISM) for release in RELEASES]
    limbs = [sums.to_limbs() for sums in COLUMNS]
    floats = [np.array(1.5), np.arange(6, dtype="<f2").reshape(1, 2, 3)]
    every = [tensors(arrays) for arrays in (*plain, *pairs, *released, *limbs, floats)]
    terms = [dict(each.to_config()) for each in (TERMS, TWO, NOISY, NAMED)]
    candidates = [{CANDIDATES: json.dumps([[["novelty", 0.5]], [["balanced", 0.0], ["bayes", 0.0]]])}]
    replies = [(tensors(codec.encode(*pair)), pair[0].n_examples) for pair in PAIRS]
    sums_replies = [(tensors(each.to_limbs()), each.n_examples) for each in COLUMNS]
    return [
        Decoder("payload.read_tensors", of(every, "tensors"), use_tensors, 3),
        Decoder("payload.decode", packed(plain, [(3, 24)]), use_counts, 3),
        Decoder("payload.decode, wide", packed(wide, [(3, 1024)]), use_wide_counts, 3),
        Decoder("payload.decode_all", packed(pairs, [(3, 24), (3, 16)]), use_blocks, 3),
        Decoder("payload.decode_release", of(released, "arrays"), use_release, 2),
        Decoder("payload.decode_total", of([codec.encode(r) for r in RELEASES], "arrays"), use_total, 2),
        Decoder("ColumnMoments.from_limbs", of(limbs, "arrays"), use_limbs, 2),
        Decoder("Terms.from_config", of(terms, "config"), use_terms, 3),
        Decoder("SumsTerms.from_config", of([dict(SUMS.to_config())], "config"), use_sums_terms, 2),
        Decoder("choosing.read_candidates", of(candidates, "config"), use_candidates, 2),
        Decoder("privacy.mechanism_from_dict", make_mechanism, use_mechanism, 2),
        Decoder("confusion_from_bytes", make_confusion, use_confusion, 2),
        Decoder("Aggregator.check", make_replies(replies), use_replies, 4),
        Decoder("Aggregator.check, noisy", make_replies([(tensors(r), 1) for r in released]), use_noisy_replies, 2),
        Decoder("Aggregator.check_evaluation", make_evaluation, use_evaluation, 2),
        Decoder("SumsRound.check", make_replies(sums_replies), use_sums_replies, 3),
        Decoder("Choosing.check", make_ballot, use_ballot, 2),
        Decoder("secagg_replies.check", make_stage, use_stage, 2),
        Decoder("client: any request", make_request, use_request, 2, memory=2**22),
    ]
