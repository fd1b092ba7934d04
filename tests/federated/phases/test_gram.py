"""The Gram matrix: its rows, its memory, and who may have it.

Runs lose and resume it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_flynn import FlyNNClassifier
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import PartyOptions
from flwr_flynn.federated.party_options import Asked, decide
from flwr_flynn.federated.phases.gram import GramRequest
from flwr_flynn.federated.protocol import REFUSED, TRAIN
from flwr_flynn.federated.run import Run
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.views import View
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.gram import (
    GramMatrix,
    Responses,
    class_weights,
    fold_sizes,
    memory_of_gram,
    responses_of,
)
from flwr_flynn.model.metrics import N_LEVELS, N_SUMS
from flwr_flynn.model.portable import content_shares
from tests.fakes import config_of
from tests.federated.hostile import TWO
from tests.federated.registry import CASES
from tests.federated.runs import (
    DUE,
    GRID,
    LABELS,
    NAMES,
    TRAINING,
    Exchange,
    X,
    Y,
    digest,
    exchange,
    in_process,
    options_for,
    replied,
    saved_of,
    shares,
)
from tests.memory import traced
from tests.raising import raises

ROWS = 16
SPEC = GRID[0]
PLAN = HashPlan(4, 3, 120, "auto", hash_dim=64)
OWN = responses_of([SPEC], ROWS)
SUMS = GramRequest(RunSpec(TWO, NAMES), (1, 2, 1))
MODEL = CASES["evaluation with a Gram matrix"].request
PLAIN = in_process(options_for(SPEC, decay=0.5), shares()).model.model_.sha256()


def options(spec: Any = SPEC, **changes: Any) -> dict[str, Any]:
    return options_for(spec, **{"gram": ROWS, "decay": 0.5, **changes})


def counted(how: str = "iid") -> Exchange:
    """A run whose next phase is "gram"."""
    return exchange(SPEC, how, gram=ROWS, decay=0.5).until("gram")


def scored_by(rows: Any, sizes: Any = None) -> str:
    """SHA-256 of the scores from the samples of these rows.

    The class weights are those of samples of these sizes.
    """
    weights = class_weights(np.bincount(Y[rows]) if sizes is None else sizes)
    sums = GramMatrix.from_data(OWN, weights, X[rows], Y[rows])
    return sums.scorings(OWN, weights).whole.sha256()


PLACES = {
    (*row, label): place
    for place, (row, label) in enumerate(zip(X.tolist(), LABELS, strict=True))
}


def rows_of(*parts: dict[str, Any]) -> list[int]:
    """The places, among all samples, of the training samples of some parties."""
    return [
        PLACES[(*row, label)]
        for part in parts
        for row, label in zip(part["X"].tolist(), part["y"], strict=True)
    ]


# ---- the pooled model


@pytest.mark.parametrize(
    ("rows", "changes"),
    [(16, {}), (17, {"decay": 0.5}), (100, {"rule": "novelty"})],
    ids=str,
)
def test_a_spec_of_one_s_own_has_the_gram_matrix_alike(rows, changes):
    own = in_process(
        options_for(SPEC, gram=rows, **changes), shares()
    ).model.model_.gram
    pooled = (
        FlyNNClassifier(SPEC, gram=rows, **changes)
        .fit(X[TRAINING], LABELS[TRAINING])
        .model_.gram
    )
    assert own.sha256() == pooled.sha256()
    assert [spec.hash_dim for spec in own.terms.specs] == [rows]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes from which the number of rows of a thorough run follows.

    48 rows, by the rule 1024, take less time.
    """
    shapes: list[tuple[int, ...]] = []
    for module in ("federated.options", "model.classifier"):
        monkeypatch.setattr(
            f"flwr_flynn.{module}.gram_rows", lambda *shape: shapes.append(shape) or 48
        )
    return shapes


def test_the_rows_of_a_thorough_run_follow_from_the_samples_of_all_parties(
    asked,
):
    pooled = FlyNNClassifier(hash_dim=64, effort="thorough").fit(
        X[TRAINING], LABELS[TRAINING]
    )
    assert asked == [(4, 3, 120)]
    # Nothing but the sum tells how many samples there are.
    run = in_process(
        options_for(replace(PLAN, n_examples=None, effort="thorough")), shares()
    )
    assert set(asked) == {(4, 3, 120)}
    assert digest(run) == pooled.model_.sha256()
    assert [spec.hash_dim for spec in run.model.model_.gram.terms.specs] == [
        9,
        9,
        10,
        10,
        10,
    ]


# ---- sums that some parties are not in


def test_the_scores_are_from_the_sums_of_those_who_answer():
    steps = counted()
    steps.step(DUE, failures={"3": "failed: no"})
    # The weights are of all that are counted.
    others = scored_by(rows_of(*shares()[:3]), np.bincount(Y[TRAINING]))
    assert steps.rounds(1).model.model_.gram.sha256() == others


@pytest.mark.parametrize(("how", "lost"), [("iid", "0123"), ("pathological", "012")])
def test_without_the_sums_of_a_class_that_is_counted_there_is_no_gram_matrix(how, lost):
    """They would speak against the class, whatever the sample."""
    steps = counted(how)
    plain = in_process(options(gram=0), shares(how))
    steps.step(DUE, failures=dict.fromkeys(lost, "failed: gone"))
    run = steps.rounds(1)
    assert run.state.absent("gram") == {f"party-{cid}": "failed: gone" for cid in lost}
    assert run.model.model_.gram is None
    assert digest(run) == digest(plain)


@pytest.mark.parametrize(
    ("kept", "has_scores"), [(("versicolor", "virginica"), True), ((), False)]
)
def test_a_class_without_samples_anywhere_is_in_no_one_s_way(kept, has_scores):
    parts = [
        {**part, **{name: part[name][np.isin(part["y"], kept)] for name in "Xy"}}
        for part in shares()
    ]
    run = in_process(options(), parts)
    assert (run.state.results["gram"].scoring is not None) == has_scores
    assert not run.state.absent("gram")


# ---- hostile requests


@pytest.mark.parametrize("request_", [SUMS, MODEL], ids=["sums", "evaluation"])
def test_what_is_beyond_the_memory_of_a_party_is_refused(request_):
    model_needs = max(
        memory_needed(SPEC, 3) + 32 * 9,
        sum(memory_needed(spec, 3) for spec in TWO) + 64 * 64 * 3,
    )
    results = 24 * (2 * 9 + 6 * N_LEVELS + N_SUMS)
    if request_ is MODEL:
        needed = max(model_needs, results)
    else:
        needed = memory_of_gram(64, 3)
    enough, little = (
        party_of(X, LABELS, X, LABELS, products=True, memory_limit=needed - less)
        for less in (0, 1)
    )
    assert REFUSED not in replied(request_, enough).metrics
    assert str(replied(request_, little).metrics[REFUSED]).startswith("memory: ")


def test_a_party_takes_no_more_memory_than_it_was_asked_for():
    request = GramRequest(RunSpec(responses_of([SPEC], 256).specs, NAMES), (1, 1, 1))
    party = party_of(X, LABELS, products=True)
    config = config_of(request)
    # The first time rows are drawn and code is compiled.
    assert REFUSED not in party.answer(config).metrics
    with traced() as memory:
        party.answer(config)
    assert memory.peak < memory_of_gram(256, 3)


# ---- who may have the Gram matrix


@pytest.mark.parametrize(
    "changes",
    [{"fraction_evaluate": 0}, {"fraction_evaluate": 0, "distribute": True}],
    ids=str,
)
def test_where_there_is_no_gram_matrix_a_thorough_plan_is_refused(
    changes,
):
    plan = replace(PLAN, effort="thorough")
    with raises(ConfigError, field="spec"):
        RunOptions(**options(plan, gram=None, **changes))
    assert not RunOptions(**options(plan, gram=0, **changes)).has_gram
    assert not RunOptions(**options(PLAN, gram=None, **changes)).has_gram


def test_a_run_that_hands_a_model_out_has_no_exchange_of_the_gram_matrix():
    saved = in_process(options(), shares()).federation("1")
    with raises(ConfigError, field="gram"):
        RunOptions(
            **options(saved.run_spec.specs, federation=saved, purpose="evaluate")
        )


def test_the_gram_matrix_leaves_in_clear_only_where_the_party_allows_it():
    steps = counted()
    options = PartyOptions(name="party-3", min_examples=1)
    steps.parties["3"] = replace(steps.parties["3"], options=options)
    steps.step(DUE)
    missing = steps.run.state.absent("gram")
    assert list(missing) == ["party-3"]
    assert "node-config products" in missing["party-3"]
    masked = party_of(X, LABELS, secure=True, evaluates=True)
    masked = replace(masked, mask=lambda *_: None)
    secure = GramRequest(RunSpec(OWN.specs, NAMES, bound=1024), (1, 1, 1))
    assert REFUSED not in masked.answer(config_of(secure), (), TRAIN).metrics


def test_a_thorough_run_in_process_says_which_parties_do_not_consent_and_how_they_would():
    parties = [party_of(**part, min_examples=1) for part in shares()]
    with pytest.warns(
        UserWarning,
        match=r"phase gram: no answer of node 0 .*products: expected true .*products=True",
    ):
        run = federate(
            RunOptions(**options(replace(PLAN, effort="thorough"), gram=None)), parties
        )
    assert run.model.model_.gram is None


def test_a_class_of_few_samples_stays_at_home_in_clear_and_not_in_a_secure_sum():
    fold = content_shares(X) >= 0.5
    few = np.zeros(0, int)
    for label, sizes in enumerate(([4, 20], [5, 20], [0, 5])):
        for in_second, n in enumerate(sizes):
            few = np.append(few, np.flatnonzero((label == Y) & (fold == in_second))[:n])
    rest = few[Y[few] != 0]
    known, everything = (
        GramMatrix.from_data(Responses(TWO), SUMS.weights, X[rows], Y[rows])
        for rows in (rest, few)
    )
    assert sorted(map(sorted, known.n_per_class.T.tolist())) == [
        [0, 0],
        [0, 5],
        [5, 20],
    ]
    assert (fold_sizes(X[rest], Y[rest], 3) == known.n_per_class).all()
    secure = replace(SUMS, run=replace(SUMS.run, bound=64))
    for request, least, expected in (
        (SUMS, 5, known),
        (secure, 5, everything),
        (SUMS, 1, everything),
    ):
        party = party_of(X[few], LABELS[few], min_examples=least, products=True)
        decide(party.options, Asked(request.discloses, request.phase))
        kind = request.discloses
        view = View(party.loader, party.options, kind, (), party.mask)
        assert request.measured(view)[:2] == (expected, 54)


def test_the_server_takes_sums_without_a_class_that_stayed_at_home():
    steps = counted()
    parts = shares()
    # Three of the first class are left.
    few = np.cumsum(parts[3]["y"] == "setosa") * (parts[3]["y"] == "setosa") < 4
    parts[3] = {**parts[3], "X": parts[3]["X"][few], "y": parts[3]["y"][few]}
    steps.parties["3"] = party_of(
        **parts[3], name="party-3", min_examples=4, products=True
    )
    steps.run = Run(RunOptions(**options()))
    run = steps.rounds()
    assert not run.state.absent("gram")
    others = rows_of(
        *parts[:3], {name: parts[3][name][parts[3]["y"] != "setosa"] for name in "Xy"}
    )
    assert (
        run.state.results["gram"].n_examples == len(others) == run.counts.n_examples - 3
    )
    assert run.model.model_.gram.sha256() == scored_by(
        others, np.bincount(Y[rows_of(*parts)])
    )


# ---- saved and resumed


def resumed(saved: Federation, purpose: str = "resume", **changes: Any) -> Run:
    return Run(
        RunOptions(
            **options(
                saved.run_spec.specs, federation=saved, purpose=purpose, **changes
            )
        )
    )


def test_a_run_that_goes_on_without_the_gram_matrix_has_none(tmp_path):
    steps = counted()
    steps.run = resumed(saved_of(steps.run, tmp_path / "f.npz"), gram=0)
    assert [phase.name for phase in steps.run.phases] == ["evaluation"]
    assert digest(steps.rounds(1)) == PLAIN


def test_a_thorough_run_that_goes_on_is_as_thorough(tmp_path, asked):
    stopped = exchange(replace(PLAN, effort="thorough"))
    files = []
    while stopped.run.due is not None:
        stopped.step(DUE)
        # Before the counts there is no file.
        if stopped.run.due is None or stopped.run.due.name != "counts":
            files.append(saved_of(stopped.run, tmp_path / "f.npz"))
    assert stopped.run.model.model_.gram is not None
    assert [saved.is_thorough for saved in files] == [True] * 5
    for saved in files:
        steps = Exchange(resumed(saved, gram=None, decay="auto"), stopped.parties)
        assert digest(steps.rounds(6)) == digest(stopped.run)
        assert not resumed(saved, gram=0).options.has_gram
        assert steps.run.federation("2").is_thorough
    assert set(asked) == {(4, 3, 120)}
