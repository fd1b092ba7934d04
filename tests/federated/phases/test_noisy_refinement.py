"""Noisy refinement: of any split the pooled one with the parties' noise; rounds are paid for, and answered once."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn import HashSpec
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phase import descent_of
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.phases.noisy_refinement import NoisyRefinementRequest, rounds_of
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.noisy_rounds import CENTRE, Descent, clipped_gradient, gradient_bound
from flwr_flynn.privacy import GaussianCounts, GaussianRounds, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy, Released
from flwr_flynn.privacy.mechanism import Mechanism, OpenDPNoise, SeededNoise
from tests import audit
from tests.fakes import config_of
from tests.federated.runs import DRIVERS, LABELS, NAMES, X, Y, refusal, replied, statistic_of
from tests.federated.secure_runs import as_it_is, secretly

SPEC = HashSpec(4, 64, 2, 6, 0, signed=True, center=(5.8, 3.0, 3.7, 1.2))
HASHER = flynn_hash(SPEC)
MECHANISM = GaussianRounds(4.0, 1e-5, 3, hash_nnz=6, n_classes=3)
RUN = RunSpec(SPEC, NAMES, MECHANISM)
SIMULATED = SimulatedRelease(MECHANISM, 1)
RNG = np.random.default_rng(0)
WEIGHTS, CENTRES = RNG.integers(-300, 300, (64, 3)).astype(np.int32), RNG.integers(0, CENTRE + 1, 64)


def budget(folder: Path, epsilon: float = 4.0, **changes: Any) -> Budget:
    mechanisms = ("gaussian", "gaussian-rounds", "simulated")
    return Budget(folder, Policy(epsilon, 1e-5, **{"mechanisms": mechanisms, **changes}))


def parts(n: int = 2) -> list[dict[str, Any]]:
    return [{"X": X[i::n], "y": LABELS[i::n]} for i in range(n)]


def options(**changes: Any) -> dict[str, Any]:
    return {"spec": SPEC, "classes": NAMES, "min_parties": 1, "mechanism": SIMULATED, **changes}


def party(folder: Path, **changes: Any) -> Party:
    return party_of(**parts(1)[0], name="one", budget=budget(folder / "state", **changes))


def parties(folder: Path, n: int = 2) -> list[Party]:
    return [party_of(**each, name=f"{i}", budget=budget(folder / str(i))) for i, each in enumerate(parts(n))]


# -------- what a sample adds


@pytest.mark.parametrize("hash_nnz", [1, 6, 64])
@pytest.mark.parametrize("n_classes", [2, 3, 11])
@pytest.mark.parametrize("size", [0, 100, 2**20])
def test_no_sample_adds_more_than_the_bound_whatever_the_weights_and_the_centre_are(hash_nnz, n_classes, size):
    rng = np.random.default_rng(hash_nnz + n_classes)
    bound, longest = gradient_bound(hash_nnz), 0.0
    for kind in ("zeros", "any", "ends", "the sample"):
        weights = rng.integers(-size, size + 1, (64, n_classes)).astype(np.int32)
        active = np.array([rng.permutation(64)[:hash_nnz]], np.int32)
        centre = {
            "zeros": np.zeros(64, np.int64),
            "any": rng.integers(0, CENTRE + 1, 64),
            "ends": CENTRE * rng.integers(0, 2, 64),
            "the sample": CENTRE * np.isin(np.arange(64), active[0]).astype(np.int64),
        }[kind]
        for label in range(n_classes):
            found = clipped_gradient(weights, centre, hash_nnz, [(active, np.array([label]))]).gradient
            square = sum(int(entry) ** 2 for entry in found.ravel())
            assert square <= bound**2
            longest = max(longest, square**0.5)
            assert kind != "the sample" or not square  # it has no direction
    assert size or longest > 0.8 * bound  # the bound is used


def test_neighbours_differ_by_no_more_than_the_sensitivity():
    active, own = HASHER.active(X), MECHANISM.gradient_sensitivity
    replacing = GaussianRounds(4.0, 1e-5, 3, hash_nnz=6, n_classes=3, neighbours="replace-one", records_per_person=2)

    def gradient(rows: Any) -> np.ndarray[Any, Any]:
        return clipped_gradient(WEIGHTS, CENTRES, 6, [(active[rows], Y[rows])]).gradient.astype(float)

    whole = gradient(np.arange(40))
    for removed in range(40):
        less = gradient(np.delete(np.arange(40), removed))
        assert np.linalg.norm(whole - less) <= own
        for added in (50, 99, 149):
            other = gradient([*np.delete(np.arange(40), removed), added])
            assert np.linalg.norm(whole - other) <= 2 * own
    other = gradient([*range(2, 40), 60, 149])
    assert np.linalg.norm(whole - other) <= replacing.gradient_sensitivity == 4 * own


def test_gradients_add_whatever_the_split_and_the_batches_are():
    active = HASHER.active(X)
    pooled = clipped_gradient(WEIGHTS, CENTRES, 6, [(active, Y)])
    for n in (1, 2, 7):
        split = [clipped_gradient(WEIGHTS, CENTRES, 6, [(active[i::n], Y[i::n])]) for i in range(n)]
        assert_array_equal(sum(each.gradient for each in split), pooled.gradient)
        batches = clipped_gradient(WEIGHTS, CENTRES, 6, [(active[i::n], Y[i::n]) for i in range(n)])
        assert_array_equal(batches.gradient, pooled.gradient)


def test_the_gradient_is_that_of_the_softmax_loss():
    active, y = HASHER.active(X), Y
    found = clipped_gradient(WEIGHTS, CENTRES, 6, [(active, y)]).gradient
    h = np.zeros((len(y), 64))
    np.put_along_axis(h, active, 1, axis=1)
    unit = h * CENTRE - CENTRES
    norms = np.linalg.norm(unit, axis=1)
    typical = np.sqrt(6 * CENTRE**2 - (CENTRES**2).sum()) if (CENTRES**2).sum() + CENTRE**2 < 6 * CENTRE**2 else CENTRE
    scores = h @ WEIGHTS / 1024 * typical / norms[:, None]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    residuals = p / p.sum(axis=1, keepdims=True) - np.eye(3)[y]
    most = np.sqrt(2 / 3)
    residuals /= np.maximum(np.linalg.norm(residuals, axis=1, keepdims=True), most)
    wanted = gradient_bound(6) * (unit / norms[:, None]).T @ residuals
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()


# -------- runs


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_is_the_sum_of_the_parties_gradients_and_noise(driver, tmp_path):
    settings = [{**each, "budget": budget(tmp_path / f"{driver}{i}")} for i, each in enumerate(parts())]
    run = DRIVERS[driver](options(), settings)
    assert [phase.name for phase in run.phases] == ["counts", *(f"noisy refinement {k}" for k in (1, 2, 3))]
    assert run.due is None
    descent = descent_of(run.state)
    assert isinstance(descent, Descent)
    refined = run.model.model_.refined
    assert refined is not None
    assert_array_equal(refined, descent.best)
    assert "4 releases of a run" in run.model.model_.guarantee
    for settings_of in settings:
        assert settings_of["budget"].spent()[0] == pytest.approx(4.0, rel=1e-3)


def test_answers_without_their_seeded_noise_add_up_to_the_gradient_of_the_pooled_samples(tmp_path):
    run, total = RunSpec(SPEC, NAMES, SIMULATED), np.zeros((64, 3), np.int64)
    request = NoisyRefinementRequest(run, 2, WEIGHTS, CENTRES)
    for name, member in enumerate(parties(tmp_path, 3)):
        replied(CountsRequest(run), member)
        found = statistic_of(request, member, Member("", str(name))).gradient
        seed = first_bytes(f"{SIMULATED.seed} {name} {run.digest()}")
        noise = SeededNoise(first_bytes(f"{seed} round 2")).gaussian(found.size, MECHANISM.gradient_sigma)
        assert noise.any()
        total += found - noise.reshape(found.shape)
    assert_array_equal(total, clipped_gradient(WEIGHTS, CENTRES, 6, [(HASHER.active(X), Y)]).gradient)


def first_bytes(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def test_without_noise_to_speak_of_rounds_are_those_of_the_pooled_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianRounds, "noisy_gradient", lambda self, gradient, sampler=None: gradient)
    monkeypatch.setattr(GaussianRounds, "_draw", lambda self, array, sampler: array)
    models = []
    for n in (1, 2, 5):
        members = parties(tmp_path / f"{n}", n)
        # The steps follow from the noise, which is of as many releases: the same for all, here.
        monkeypatch.setattr(GaussianRounds, "unit_noise", lambda self, n_releases: 1.0)
        monkeypatch.setattr(ClassCounts, "noise_variance", 1.0)
        models.append(federate(RunOptions(**options()), members).model.model_.refined)
    for model in models[1:]:
        assert_array_equal(model, models[0])
    accuracy = (np.argmax([(models[0][bits]).sum(axis=0) for bits in HASHER.active(X)], axis=1) == Y).mean()
    assert accuracy > 0.8  # of three rounds


def test_the_same_run_again_gets_the_same_answers_and_spends_nothing(tmp_path):
    once = federate(RunOptions(**options(mechanism=MECHANISM)), parties(tmp_path))
    spent = [each.options.budget.spent() for each in parties(tmp_path)]
    again = federate(RunOptions(**options(mechanism=MECHANISM)), parties(tmp_path))
    assert again.model.model_.sha256() == once.model.model_.sha256()
    assert [each.options.budget.spent() for each in parties(tmp_path)] == spent


def test_a_run_that_stopped_goes_on_with_its_rounds(tmp_path):
    saved: list[Any] = []

    def keep(run: Run) -> None:
        if run.due is not None:
            saved.append((run.due.name, run.due_if_resumed, run.federation("x")))

    once = federate(RunOptions(**options(mechanism=MECHANISM, on_phase=keep)), parties(tmp_path))
    assert [names[:2] for names in saved] == [(f"noisy refinement {k}", "noisy refinement 1") for k in (1, 2, 3)]
    for *_, federation in saved:
        resumed = RunOptions(**options(mechanism=MECHANISM, federation=federation, purpose="resume", min_parties=2))
        again = federate(resumed, parties(tmp_path))
        assert_array_equal(again.model.model_.refined, once.model.model_.refined)


@pytest.mark.parametrize("purpose", ["join", "withdraw"])
def test_nobody_joins_or_leaves_behind_rounds(purpose, tmp_path):
    run = federate(RunOptions(**options()), parties(tmp_path))
    with pytest.raises(ConfigError, match="mechanism"):
        RunOptions(**options(federation=run.federation("x"), purpose=purpose))


# -------- one noise, shared in a secure sum


def shared(tmp_path: Path, spoil: Any = as_it_is) -> tuple[Run, list[Budget]]:
    mechanism = SimulatedRelease(GaussianRounds(4.0, 1e-5, 3, hash_nnz=6, n_classes=3, n_honest=2), 1)
    own = [budget(tmp_path / f"s{i}", secure_sum=True) for i in range(3)]
    taken = iter([*own])
    with mock.patch("tests.federated.secure_runs.PartyOptions", lambda **kw: PartyOptions(**kw, budget=next(taken))):
        return secretly(options(mechanism=mechanism), parts(3), spoil, bound=2**14, evaluates=False), own


def test_parties_share_one_noise_in_secure_sums(tmp_path):
    run, own = shared(tmp_path)
    assert run.due is None
    assert isinstance(descent_of(run.state), Descent)
    assert run.model.model_.refined is not None
    assert "securely computed sums" in run.model.model_.guarantee
    assert [each.spent()[0] for each in own] == pytest.approx([4.0] * 3, rel=1e-3)


def test_a_secure_round_of_too_few_parties_is_set_aside_alone(tmp_path):
    def lost(ask: Any, cid: str, vector: Any) -> Any:
        return None if ask.phase.name == "noisy refinement 2" and cid == "2" else vector

    run, _ = shared(tmp_path, lost)
    assert run.due is None
    assert run.model.model_.refined is not None
    assert [len(run.state.absent(f"noisy refinement {k}")) for k in (1, 2, 3)] == [0, 3, 0]


def test_a_share_is_drawn_anew_and_only_once_for_each_release_of_counts(tmp_path):
    mechanism = GaussianRounds(0.9, 1e-5, 2, hash_nnz=6, n_classes=3, n_honest=2)
    ledger = Budget(tmp_path / "state", Policy(4.0, 1e-4, secure_sum=True))
    counts = ClassCounts.from_active(HASHER, HASHER.active(X), Y, 3)
    ask = (mechanism, counts.spec_fingerprint, 1, "w", lambda: np.zeros((64, 3), np.int64))
    for _ in range(2):
        ledger.release(mechanism, counts.spec_fingerprint, lambda: counts)
        ledger.release_round(*ask)
        with pytest.raises(PrivacyError, match="round 1 was answered before"):
            ledger.release_round(*ask)
    assert ledger.spent() == pytest.approx((1.8, 2e-5), rel=1e-3)


# -------- what a party refuses


def asked(number: int = 1, weights: Any = WEIGHTS, run: RunSpec = RUN) -> NoisyRefinementRequest:
    return NoisyRefinementRequest(run, number, weights, CENTRES)


def counted(member: Party) -> Party:
    assert REFUSED not in replied(CountsRequest(RUN), member).metrics
    return member


def test_rounds_without_counts_are_refused_before_any_sample_is_touched(tmp_path, monkeypatch):
    member = party(tmp_path)
    monkeypatch.setattr(Party, "_held", lambda self: pytest.fail("samples were touched"))
    assert refusal(asked(), member, {}) == "round 1 has no counts that it is paid for with"


def test_a_round_is_answered_once_and_the_same_question_the_same(tmp_path):
    member = counted(party(tmp_path))
    first, second = replied(asked(2), member), replied(asked(2), member)
    assert REFUSED not in first.metrics
    assert first.tensors == second.tensors
    assert refusal(asked(2, WEIGHTS + 1), member, {}) == "round 2 was answered before, for other weights"
    other = NoisyRefinementRequest(RUN, 2, WEIGHTS, CENTRE - CENTRES)
    assert refusal(other, member, {}) == "round 2 was answered before, for other weights"
    assert REFUSED not in replied(asked(3, WEIGHTS + 1), member).metrics
    assert member.options.budget.spent() == pytest.approx((4.0, 1e-5), rel=1e-3)


def test_the_whole_plan_is_charged_with_the_counts_and_kept(tmp_path):
    member = counted(party(tmp_path))
    assert member.options.budget.spent() == pytest.approx((4.0, 1e-5), rel=1e-3)
    run = RunSpec(HashSpec(4, 64, 2, 6, 1), NAMES, MECHANISM)
    text = refusal(asked(run=run), member, {})
    assert text == "round 1 has no counts that it is paid for with"


@pytest.mark.parametrize(
    ("entries", "text"),
    [({"flynn-round": 0}, "round"), ({"flynn-round": 4}, "round"), ({"flynn-round": None}, "round")],
)
def test_other_rounds_are_refused(entries, text, tmp_path):
    assert text in refusal(asked(), counted(party(tmp_path)), entries)


def test_other_arrays_are_refused(tmp_path):
    member, request = counted(party(tmp_path)), asked()
    for arrays in ([], request.arrays()[:1], [*request.arrays(), request.arrays()[0]], request.arrays()[::-1]):
        assert refusal(request, member, {}, arrays)
    for centre in (-1, CENTRE + 1):
        wrong = NoisyRefinementRequest(RUN, 1, WEIGHTS, np.full(64, centre))
        assert refusal(wrong, member, {})


def test_a_mechanism_of_counts_alone_has_no_rounds(tmp_path):
    run = RunSpec(SPEC, NAMES, GaussianCounts(1.0, 1e-5, hash_nnz=6, n_classes=3))
    with pytest.raises(PrivacyError, match="mechanism"):
        rounds_of(run)
    assert refusal(asked(run=run), party(tmp_path), {}).startswith("mechanism")


def test_parties_without_a_ledger_or_of_another_policy_refuse(tmp_path):
    assert refusal(asked(), party_of(**parts(1)[0]), {}).startswith("policy max-epsilon not set")
    member = party(tmp_path, mechanisms=("gaussian",))
    assert refusal(asked(), member, {}).startswith("policy mechanisms")


def test_a_broken_machine_ends_the_round_in_the_same_words_and_the_round_is_used_up(tmp_path, monkeypatch):
    member = counted(party(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr("flwr_flynn.federated.sample_access.fitting", lambda *_, **__: 1 / 0)
        assert refusal(asked(), member, {}) == "phase noisy refinement failed at this party"
    assert "was answered before" in refusal(asked(), member, {})


def test_samples_that_do_not_fit_are_left_out(tmp_path):
    good = party(tmp_path / "a")
    wrong = {"X": np.vstack([X, [[np.nan] * 4]]), "y": [*LABELS, "setosa"]}
    other = party_of(**wrong, name="one", budget=budget(tmp_path / "b" / "state"))
    run = RunSpec(SPEC, NAMES, SIMULATED)
    found = []
    for member in (good, other):
        replied(CountsRequest(run), member)
        found.append(replied(asked(run=run), member).tensors)
    assert found[0] == found[1]


def test_counts_are_enough_for_a_start():
    counts = ClassCounts.from_active(HASHER, HASHER.active(X), Y, 3)
    for noise, n_rounds in product((1e-3, 1.0, 1e6), (1, 24)):
        descent = Descent.of(MECHANISM.received(counts.array, counts.spec_fingerprint), n_rounds, noise)
        assert descent.n_samples == 150
        assert (descent.centre >= 0).all()
        assert (descent.centre <= CENTRE).all()
        assert 0 <= descent.momentum < 1
    empty = MECHANISM.received(0 * counts.array, counts.spec_fingerprint)
    assert not Descent.of(empty, 3, 1.0).best.any()


# -------- audit


class Buffered(OpenDPNoise):
    """OpenDP's noise, drawn many at a time; `factor` below 1 is a mistake that an audit must notice."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self._left = factor, dict[float, Any]()

    def gaussian(self, size: int, sigma: float) -> Any:
        if len(self._left.get(sigma, ())) < size:
            self._left[sigma] = super().gaussian(2**18, sigma * self.factor)
        drawn, self._left[sigma] = self._left[sigma][:size], self._left[sigma][size:]
        return drawn


class Unwritten(Budget):
    """A budget that keeps no ledger: an audit takes many releases of the same samples."""

    def release(self, mechanism, spec_fingerprint, count, *, terms="", prepare=None):
        return Released(mechanism.release(count()), False)

    def release_round(self, mechanism, spec_fingerprint, number, weights, measure, *, terms="", prepare=None):
        return measure()


def shown_by_messages(neighbours: str, runs: int, folder: Path) -> tuple[float, float]:
    """Lower bound on epsilon by the messages of counts and a round that leave a party, and the epsilon promised."""
    # A record less, or the same one of the other class: nothing changes more.
    labels = {"add-remove": ([0, 1], [0, 1, 1]), "replace-one": ([0, 1, 0], [0, 1, 1])}[neighbours]
    mechanism = GaussianRounds(4.0, 1e-5, 1, hash_nnz=3, n_classes=2, neighbours=neighbours)
    run = RunSpec(HashSpec(4, 12, 2, 3, 0), NAMES[:2], mechanism)
    weights, centre = np.zeros((12, 2), np.int32), np.zeros(12, np.int64)  # residuals are as long as they may be
    requests = [CountsRequest(run), NoisyRefinementRequest(run, 1, weights, centre)]
    exact, outputs = [], []
    for y in map(np.array, labels):
        samples = X[[0, 60, 120]][: len(y)]
        active = run.hasher.active(samples)
        gradient = clipped_gradient(weights, centre, 3, [(active, y)]).gradient
        exact.append([ClassCounts.from_active(run.hasher, active, y, 2).array, gradient])
        policy = Policy(8.0, 1e-5, mechanisms=(mechanism.kind,), neighbours=neighbours)
        member = party_of(samples, np.array(NAMES)[y], budget=Unwritten(folder / "state", policy))
        asked = [(config_of(each), each.arrays()) for each in requests]
        outputs.append([[member.answer(*each).arrays[-1] for each in asked] for _ in range(runs)])
    sigmas = mechanism.sigma, mechanism.gradient_sigma
    along = [(after.astype(float) - before) / sigma**2 for before, after, sigma in zip(*exact, sigmas, strict=True)]

    def projected(messages: Any) -> Any:
        return sum(float((line * part).sum()) for line, part in zip(along, messages, strict=True))

    without, with_person = (np.array([projected(each) for each in side]) for side in outputs)
    half = (projected(exact[0]) + projected(exact[1])) / 2
    return audit.gaussian_epsilon(with_person, without, half, mechanism.delta), mechanism.epsilon(mechanism.delta)


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_audit_of_the_messages_of_counts_and_a_round(neighbours, tmp_path, monkeypatch):
    monkeypatch.setattr(Mechanism, "sampler", Buffered())
    shown, promised = shown_by_messages(neighbours, 4000, tmp_path)
    print(f"{neighbours}: at least {shown:.3f} of {promised:.3f}")
    assert 0.6 * promised <= shown <= promised


@pytest.mark.slow
def test_an_audit_of_messages_notices_halved_noise(tmp_path, monkeypatch):
    monkeypatch.setattr(Mechanism, "sampler", Buffered(0.5))
    shown, promised = shown_by_messages("add-remove", 2000, tmp_path)
    assert shown > promised
