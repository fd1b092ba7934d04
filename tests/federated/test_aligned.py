"""A run that aligns columns ends in the model of the aligned samples, and one without a call for it as ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Context
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.evaluation import EVALUATION
from flwr_flynn.federated.phases.selection import select
from flwr_flynn.federated.protocol import REFUSED, Config
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.alignment import Reference
from flwr_flynn.model.candidates import HashPlan, derive_specs
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.gram import LearnedGram, gram_specs
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.model.selection import fit_members
from tests.fakes import config_of
from tests.federated.runs import (
    DRIVERS,
    LABELS,
    NAMES,
    TRAINING,
    Exchange,
    X,
    Y,
    in_process,
    options_for,
    replied,
    shares,
    statistic_of,
)
from tests.raising import raises

PLAN = HashPlan(4, 3, 120, "auto", hash_dim=64)
OFFSETS = 0.3 * np.array([[4.0, -3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [-3.0, 2.0, 3.0, -1.0], [1.0, 5.0, -4.0, 2.0]])
GAINS = np.array([0.8, 1.0, 1.3, 1.2])


def shifted(how: str = "iid") -> list[dict[str, Any]]:
    """Parties of iris whose instruments differ; the second's are right."""
    return [
        part | {name: part[name] * gain + offset for name in ("X", "X_test")}
        for part, gain, offset in zip(shares(how), GAINS, OFFSETS, strict=True)
    ]


def pooled(parts: list[dict[str, Any]]) -> tuple[Any, Any, Any, Any]:
    """All training samples as they are and aligned, their class codes, and the reference."""
    X_all = np.concatenate([part["X"] for part in parts])
    y = np.searchsorted(NAMES, np.concatenate([part["y"] for part in parts]))
    reference = Reference.of(ColumnHistograms.from_data(X_all, y, 3))
    aligned = []
    for part in parts:
        alignment = reference.alignment(part["X"], np.searchsorted(NAMES, part["y"])) if len(part["y"]) else None
        aligned.append(part["X"] if alignment is None else alignment.applied(part["X"]))
    return X_all, np.concatenate(aligned), y, reference


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_ends_in_the_model_of_the_aligned_samples(driver: str) -> None:
    parts = shifted()
    run = DRIVERS[driver](options_for(PLAN, align=True), parts)
    _, aligned, y, _ = pooled(parts)
    specs, _ = derive_specs(PLAN, ColumnHistograms.from_data(aligned, y, 3))
    members = fit_members(specs, aligned, y, 3, max_members=3)[0]
    model = run.model.model_
    assert (model.aligned, model.alignment) == (True, None)
    assert [member.counts.sha256() for member in model.members] == [each.counts.sha256() for each in members]
    assert [member.scoring.decay for member in model.members] == [each.scoring.decay for each in members]
    assert run.state.results["aligned columns"].n_aligned >= 3
    accuracies = [max(each) for each in run.state.results["selection"].accuracies]
    assert max(accuracies[6:]) > max(accuracies[:6]) + 0.02


@pytest.mark.parametrize("how", ["iid", "dirichlet", "pathological"])
def test_where_no_column_differs_the_model_is_the_pooled_one(how: str) -> None:
    run = in_process(options_for(PLAN, align=True), shares(how))
    expected = FlyNNClassifier(hash_dim=64).fit(X[TRAINING], LABELS[TRAINING])
    assert run.state.results["aligned columns"].n_aligned == 0
    assert run.model.model_.sha256() == expected.model_.sha256()
    assert (run.state.run_spec.n_aligned, run.state.run_spec.reference) == (0, None)


def test_a_party_keeps_its_own_alignment() -> None:
    parts, kept = shifted(), {}
    parties = [
        party_of(**part, name=str(i), min_examples=1, on_model=lambda model, i=i: kept.update({i: model}))
        for i, part in enumerate(parts)
    ]
    run = federate(RunOptions(**options_for(PLAN, align=True)), parties)
    _, _, _, reference = pooled(parts)
    right = []
    for i, part in enumerate(parts):
        model = kept[i].model_
        expected = reference.alignment(part["X"], np.searchsorted(NAMES, part["y"]))
        assert model.sha256() == run.model.model_.sha256()
        assert (model.alignment is None) == (expected is None)
        if expected is not None:
            assert (model.alignment.gain == expected.gain).all()
            assert (model.alignment.offset == expected.offset).all()
        right += list(kept[i].predict(part["X_test"]) == part["y_test"])
    figures = run.state.results["evaluation"].figures
    assert figures["class_prior"]["accuracy"] == np.mean(right)


def test_a_model_with_the_gram_matrix_is_that_of_the_aligned_samples() -> None:
    parts = shifted()
    run = in_process(options_for(PLAN, align=True, gram=32), parts)
    plain = in_process(options_for(PLAN, align=True), parts).model.model_
    _, aligned, y, _ = pooled(parts)
    whole = run.state.run_spec
    own = gram_specs(whole.specs[-whole.n_aligned :], 32)
    expected = LearnedGram.of(own, aligned, y, 3, run.state.results["selection"].accuracy).scoring
    assert expected is not None
    assert run.model.model_.gram is not None
    assert run.model.model_.gram.specs == own
    assert run.model.model_.sha256() == replace(plain, gram=expected).sha256()
    assert run.model.model_.aligned


def test_where_the_samples_as_they_are_do_better_so_are_the_gram_matrix() -> None:
    run = in_process(options_for(PLAN, align=True, gram=32), shares())
    expected = FlyNNClassifier(hash_dim=64, gram=32).fit(X[TRAINING], LABELS[TRAINING])
    assert run.model.model_.sha256() == expected.model_.sha256()


def test_a_party_joins_and_leaves_an_aligned_run(tmp_path: Path) -> None:
    parts = shifted()
    before = in_process(options_for(PLAN, align=True), parts[:3]).federation("first")
    before.save(tmp_path / "federation.npz")
    saved = Federation.load(tmp_path / "federation.npz")
    assert saved.run_spec == before.run_spec
    assert saved.run_spec.n_aligned == len(saved.run_spec.specs)
    options = {"federation": saved, "purpose": "join"}
    joined = in_process(options_for(saved.run_spec.specs, **options), parts)
    assert len(joined.counted.members) == 4
    assert joined.model.model_.aligned
    reference = saved.run_spec.reference
    y = np.searchsorted(NAMES, parts[3]["y"])
    own = reference.alignment(parts[3]["X"], y)
    again = FlyNNClassifier.from_model(saved.model.model_).partial_fit(own.applied(parts[3]["X"]), parts[3]["y"])
    shas = {member.counts.sha256() for member in again.model_.members}
    assert {member.counts.sha256() for member in joined.model.model_.members} <= shas


def test_the_better_group_is_chosen_whole() -> None:
    candidates = tuple((ScoringRule("balanced", 0.5),) for _ in range(4))

    def chosen(*right: int) -> tuple[int, ...]:
        tables = [np.array([[10, 10]])]
        for each in right:
            tables += [np.array([[each, each]]), np.ones((1, 12), np.int64)]
        return select(candidates, Tables(tuple(tables)), 1, {}, 3, n_aligned=2).specs

    assert chosen(9, 9, 9, 9) == (0, 1)
    assert chosen(9, 8, 9, 9) == (0,)
    assert chosen(8, 9, 7, 10) == (3,)
    assert chosen(9, 9, 10, 10) == (2, 3)
    assert select(candidates, None, 0, {}, 3, n_aligned=2).specs == (0,)


@pytest.mark.parametrize("options", [{"spec": HashPlan(4, 3, 120)}, {"fraction_evaluate": 0}, {"align": 1}], ids=str)
def test_other_plans_are_not_aligned(options: dict[str, Any]) -> None:
    with raises(ConfigError, field="align"):
        RunOptions(**{**options_for(PLAN, align=True), **options})


# ---- on the wire

REFERENCE = Reference.of(ColumnHistograms.from_data(X[TRAINING], Y[TRAINING], 3))
REQUEST = ColumnsRequest(4, NAMES, reference=REFERENCE)


def test_histograms_of_a_party_without_alignment_are_as_they_are() -> None:
    part = shares()[0]
    party = party_of(part["X"], part["y"], min_examples=1)
    found = statistic_of(REQUEST, party)
    assert (found.histograms, found.n_aligned) == (statistic_of(replace(REQUEST, reference=None), party), 0)


def test_an_answer_tells_if_the_party_has_an_alignment() -> None:
    reply = replied(REQUEST, party_of(X[TRAINING] + 7, LABELS[TRAINING], min_examples=1))
    arrays = codec.read_tensors(reply.tensors)
    assert REQUEST.read(arrays, reply, None).n_aligned == 1
    for flag in ([], [np.array([2])], [np.array([1], np.int8)], [np.array([1, 1])], [np.array(1)], arrays[3:] * 2):
        with raises(PayloadError, field="alignments" if len(flag) == 1 else "message"):
            REQUEST.read([*arrays[:3], *flag], reply, None)


def test_a_party_refuses_what_is_no_reference() -> None:
    party = party_of(X, LABELS)
    config = config_of(REQUEST)
    for wrong in (b"", REFERENCE.data[:-1], b"\xff" * len(REFERENCE.data), "text", 5):
        bad = {name: wrong if value == REFERENCE.data else value for name, value in config.items()}
        assert REFUSED in party.answer(bad, REQUEST.arrays()).metrics or wrong == b"\xff" * len(REFERENCE.data)


def test_a_run_with_aligned_specs_comes_over_the_wire() -> None:
    spec = PLAN.specs(ColumnHistograms.from_data(X, Y, 3))
    run = RunSpec([*spec, *spec[:2]], NAMES, n_aligned=2, reference=REFERENCE)
    assert RunSpec.from_config(Config(run.to_config())) == run
    assert run.only([7, 6]).n_aligned == 2
    assert run.only([0, 1]) == RunSpec(spec[:2], NAMES)
    for wrong in ({"n_aligned": 0}, {"n_aligned": 9}, {"reference": None}, {"n_aligned": 1}):
        with pytest.raises(ConfigError):
            RunSpec(**{"specs": run.specs, "classes": NAMES, "n_aligned": 2, "reference": REFERENCE, **wrong})
    with raises(ConfigError, field="reference"):
        RunSpec(spec, NAMES[:2], n_aligned=1, reference=REFERENCE)


def test_the_party_needs_memory_for_its_aligned_samples() -> None:
    party = party_of(X, LABELS, memory_limit=2**14)
    answer = party.answer(config_of(REQUEST), REQUEST.arrays())
    assert "memory" in str(answer.metrics[REFUSED])


# ---- what stays at a party


def test_a_secure_party_tells_nothing_of_its_training_samples_in_an_evaluation() -> None:
    run = in_process(options_for(PLAN, align=True), shifted())
    request = EVALUATION.request(run.state, Context(run.options, run.counted))
    assert request.run.reference is not None
    test = X[~TRAINING], LABELS[~TRAINING]
    seen = []
    for step in (0.0, 1.0, 3.0):
        party = party_of(X[TRAINING] + step, LABELS[TRAINING], *test, secure=True, evaluates=True)
        answer = party.answer(config_of(request), request.arrays())
        assert REFUSED not in answer.metrics
        seen.append([matrix.tolist() for matrix in answer.arrays])
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 3  # one matrix, histograms and sums


def test_histograms_of_aligned_columns_have_the_party_s_floor() -> None:
    party = party_of(X[TRAINING] + 7, LABELS[TRAINING], min_examples=5)
    alignment = REFERENCE.alignment(X[TRAINING] + 7, Y[TRAINING], 5)
    aligned = ColumnHistograms.from_data(alignment.applied(X[TRAINING] + 7), Y[TRAINING], 3, 5)
    assert statistic_of(REQUEST, party).histograms == aligned


def test_an_alignment_tells_nothing_of_classes_that_are_left_out() -> None:
    """A server chooses the classes by which parties are aligned, and could have those below the floor measured."""
    some = np.concatenate([np.flatnonzero(Y == 0)[:12], np.flatnonzero(Y > 0)])
    party = party_of(X[some] + 7, LABELS[some], min_examples=20)
    only = Reference.of(ColumnHistograms.from_data(X[Y == 0], Y[Y == 0], 3))
    assert statistic_of(replace(REQUEST, reference=only), party).n_aligned == 0
    alignment = REFERENCE.alignment(X[some[12:]] + 7, Y[some[12:]], 20)
    aligned = ColumnHistograms.from_data(alignment.applied(X[some] + 7), Y[some], 3, 20)
    assert statistic_of(REQUEST, party).histograms == aligned


@pytest.mark.parametrize("min_examples", [1, 5])
def test_parties_of_one_instrument_are_not_aligned_whatever_the_floor(min_examples: int) -> None:
    run = in_process(options_for(PLAN, align=True), shares(), min_examples=min_examples)
    assert run.state.results["aligned columns"].n_aligned == 0


# ---- saved and resumed


def test_an_aligned_run_may_stop_after_every_phase(tmp_path: Path) -> None:
    parts = shifted()
    whole = in_process(options_for(PLAN, align=True, gram=16), parts)
    parties = {str(i): party_of(**part, name=f"party-{i}", min_examples=1, gram=True) for i, part in enumerate(parts)}
    stopped = Exchange(Run(RunOptions(**options_for(PLAN, align=True, gram=16))), parties)
    names = [phase.name for phase in whole.phases]
    for stop, phase in enumerate(whole.phases[:-1], 1):
        stopped.step(phase.channel)
        if stop == 1:  # the candidates are not known yet
            continue
        stopped.run.federation("1").save(tmp_path / "f.npz")
        saved = Federation.load(tmp_path / "f.npz")
        # The Gram matrix follows from all candidates, which are there until the selection.
        assert saved.phase == whole.phases[stop].resumed_at(names)
        options = options_for(saved.run_spec.specs, federation=saved, purpose="resume", gram=16)
        steps = Exchange(Run(RunOptions(**options)), parties)
        assert steps.rounds().model.model_.sha256() == whole.model.model_.sha256()
    assert len(names) == 7


@pytest.mark.parametrize("n_aligned", ["2", None, [2], {}, True, 1.5, -1])
def test_other_numbers_of_aligned_specs_are_refused(n_aligned: Any) -> None:
    with raises(ConfigError, field="n_aligned"):
        RunSpec(PLAN.specs(ColumnHistograms.from_data(X, Y, 3)), NAMES, n_aligned=n_aligned)
    with raises(ConfigError, field="reference"):
        RunSpec(HashSpec(4, 16, 2, 4, 0), NAMES, n_aligned=1, reference=b"x")
