"""A party answers every request, and gives no sample that it does not declare.

It shows none in a refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, dataclass, replace
from dataclasses import fields as fields_of
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated import views
from flwr_flynn.federated.own_copy import tried
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.columns import BinsRequest, ColumnsRequest
from flwr_flynn.federated.phases.counts import CountsRequest, WithdrawRequest
from flwr_flynn.federated.phases.evaluation import EvaluationRequest
from flwr_flynn.federated.phases.selection import SelectionRequest
from flwr_flynn.federated.private_rows import GivenRows
from flwr_flynn.federated.protocol import (
    EXACT,
    MEMBER,
    NOISY,
    NOTHING,
    REFUSED,
    RESULTS,
    SECURE,
    UNKEPT,
    Answer,
    Config,
    Entry,
)
from flwr_flynn.federated.reply_fields import Field, Sizes
from flwr_flynn.federated.request import Request, register
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.views import View, no_mask
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.model.selection import UnseenScoring
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.texts import BESIDE
from tests.fakes import (
    CLASSES,
    RUN,
    SHAPE,
    SHARE,
    SPEC,
    config_of,
    counts_of,
    evaluation_of,
    points,
)
from tests.raising import raises

X, Y = points(60)
NOISE = SimulatedRelease(LaplaceCounts(1.0, **SHAPE), 3)
SECRET = 123456.789


def party(
    folder: Path | None = None,
    mask: Callable[[RunSpec], None] = no_mask,
    **options: Any,
) -> Party:
    """A party with 60 samples.

    It has a budget where there is a folder for its ledger.
    """
    if folder is not None:
        policy = Policy(
            10.0, 1e-4, mechanisms=["simulated", "laplace", "gaussian"], secure_sum=True
        )
        options["budget"] = Budget(folder, policy)
    return Party(lambda _: Samples(X, Y, X, Y), PartyOptions(**options), mask)


def ask(who: Party, request: Request[Any]) -> Answer:
    return who.answer(config_of(request), request.arrays())


def evaluation(tries: bool = True) -> EvaluationRequest:
    return evaluation_of(
        RUN,
        (counts_of(X, Y),),
        (ScoringRule("balanced", 0.5, 1.0),),
        (1.0,),
        tries=tries,
    )


REQUESTS: dict[str, Request[Any]] = {
    "columns": ColumnsRequest(4, CLASSES),
    "exact": CountsRequest(RUN),
    "noisy": CountsRequest(RunSpec(SPEC, CLASSES, NOISE)),
    "secure": CountsRequest(RunSpec(SPEC, CLASSES, bound=256)),
    "selection": SelectionRequest(
        RUN, CountsOfSpecs((counts_of(X, Y),)), ((ScoringRule("balanced", 0.5),),)
    ),
    "evaluation": evaluation(),
    "model": evaluation(tries=False),
}

# ---- samples that a request did not declare


TAKES: dict[str, Callable[[Any], object]] = {
    "labelled": lambda who: who.labelled(RUN.codes, 4),
    "release": lambda who: who.release(RunSpec(SPEC, CLASSES, NOISE)),
    "tried": lambda who: tried(who, RUN, UnseenScoring(evaluation().model)),
}


@register
@dataclass(frozen=True)
class Greedy(Request[Tables]):
    """Declares one thing and wants another."""

    declares: str
    wants: str

    phase: ClassVar[str] = "greedy"
    got: ClassVar[list[str]] = []

    def to_config(self) -> dict[str, Any]:
        return {"flynn-declares": self.declares, "flynn-wants": self.wants}

    entries: ClassVar = {"declares": Entry(str, 20), "wants": Entry(str, 20)}

    @classmethod
    def from_config(
        cls, config: Config, arrays: Sequence[Any], options: PartyOptions
    ) -> Greedy:
        return cls(config["declares"], config["wants"])

    @property
    def discloses(self) -> str:
        return self.declares

    @property
    def bound(self) -> int | None:
        if self.declares == SECURE:
            return 256
        return None

    def answer(self, view: View) -> Answer:
        TAKES[self.wants](view)
        self.got.append(self.wants)
        return Answer()

    def fields(self, sizes: Sizes) -> list[Field]:
        return []

    measured = of_parts = None  # type: ignore[assignment]


def any_party(is_private: bool, folder: Path, **options: Any) -> Party:
    """A party with or without a budget."""
    if is_private:
        return party(folder / "state", **options)
    return party(**options)


IN_CLEAR = {
    "labelled": (EXACT, SECURE, RESULTS),
    "release": (),
    "tried": (RESULTS, SECURE),
}
"""Declarations by which a party without a budget gives its samples."""
PRIVATE = {"labelled": (), "release": (NOISY, SECURE), "tried": ()}
"""The same of a party with a budget."""


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize(
    "declares", [EXACT, NOISY, SECURE, RESULTS, NOTHING, "", "everything"]
)
@pytest.mark.parametrize("wants", TAKES)
def test_a_request_gets_what_it_declares(declares, wants, is_private, tmp_path):
    Greedy.got.clear()
    who = any_party(is_private, tmp_path, mask=lambda *_: None)
    answer = ask(who, Greedy(declares, wants))
    allowed = IN_CLEAR
    if is_private:
        allowed = PRIVATE
    if declares in allowed[wants]:
        assert Greedy.got == [wants]
        assert REFUSED not in answer.metrics
    else:
        assert Greedy.got == []
        assert REFUSED in answer.metrics


@pytest.mark.parametrize("is_private", [False, True])
def test_an_answer_changes_nothing_of_a_party_or_its_views(
    is_private, tmp_path, monkeypatch
):
    """Whatever is asked: samples are cached in the loader, and nothing else is kept."""
    who = any_party(is_private, tmp_path, mask=lambda *_: None)
    views: list[View] = []
    granted = Party._granted

    def noted(self: Party, request: Any) -> View:
        views.append(granted(self, request))
        return views[-1]

    monkeypatch.setattr(Party, "_granted", noted)
    before = dict(vars(who))
    for request in REQUESTS.values():
        ask(who, request)
    assert vars(who) == before
    for view in views:
        fields = {field.name: getattr(view, field.name) for field in fields_of(view)}
        assert vars(view) == fields
        assert view.loader is who.loader
        with pytest.raises(FrozenInstanceError):
            view.features = view.features  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        who.loader = who.loader  # type: ignore[misc]


def test_samples_are_loaded_whatever_the_names_and_not_for_the_same_answer_again(
    tmp_path,
):
    loaded: list[tuple[str, ...]] = []

    def load(names: tuple[str, ...]) -> Samples:
        loaded.append(names)
        return Samples(X, Y)

    budget = Budget(tmp_path / "state", Policy(1.0, mechanisms=["simulated"]))
    options = PartyOptions(budget=budget)
    request = CountsRequest(RunSpec(SPEC, CLASSES, NOISE, feature_names=tuple("wxyz")))
    for _ in range(2):
        assert REFUSED not in ask(Party(load, options), request).metrics
    assert loaded == [()]  # so that a failure tells nothing


def test_a_private_party_tells_why_where_no_sample_has_a_part_in_it(
    tmp_path,
):
    who = party(tmp_path / "state", mask=lambda *_: None, secure=True, evaluates=True)
    cuts = np.arange(4) << KEY_BITS
    bins = BinsRequest(4, CLASSES, cuts=cuts, by_class=True, bound=256)
    assert str(ask(who, bins).metrics[REFUSED]).startswith("samples: ")
    spec = replace(SPEC, n_features=5)
    run = RunSpec(spec, CLASSES)
    model = evaluation_of(
        run,
        (ClassCounts.from_data(run.hasher, X[:0].repeat(2, 1)[:, :5], [], 3),),
        (ScoringRule("balanced", 0.5, 1.0),),
        (1.0,),
    )
    assert "columns of the request" in str(ask(who, model).metrics[REFUSED])


# ---- answers


def test_counts_alone_come_with_the_proof_of_a_member():
    member = party(member="its secret")
    answers = [
        ask(member, request)
        for request in (ColumnsRequest(4, CLASSES), CountsRequest(RUN), evaluation())
    ]
    assert [MEMBER in answer.metrics for answer in answers] == [False, True, False]


ERRORS = {
    "failed with OSError": OSError(f"cannot read {SECRET}"),
    "label: expected a column of the file, got y": ConfigError(
        "label", "a column of the file", "y"
    ),
}


@pytest.mark.parametrize("reason", ERRORS)
def test_what_an_error_shows(reason, caplog):
    def load(_: tuple[str, ...]) -> Samples:
        ERRORS[reason].add_note(f"in the folder {SECRET}")
        raise ERRORS[reason]

    assert ask(Party(load), CountsRequest(RUN)).metrics == {REFUSED: reason}
    assert str(SECRET) in caplog.text  # in the party's own log it is told in full


# ---- the model


def test_a_model_that_cannot_be_kept_is_tried_all_the_same(
    caplog,
):
    def disk_full(model: FlyNNClassifier) -> None:
        raise OSError(28, "No space left on device", "/secret/folder/model.npz")

    with caplog.at_level(logging.ERROR, logger="flwr"):
        answer = ask(party(on_model=disk_full), REQUESTS["evaluation"])
    assert answer.n_examples == 60
    assert answer.metrics.keys() == {"accuracy", UNKEPT}
    assert answer.metrics[UNKEPT] == "failed with OSError: No space left on device"
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info[0] is OSError
    answer = ask(party(on_model=lambda model: {}["no such key"]), REQUESTS["model"])
    assert answer.metrics == {UNKEPT: "failed with KeyError"}


def test_the_check_of_memory_tells_what_is_needed_and_allowed():
    with raises(
        PayloadError, field="memory", expected="at most 1.0 MiB", got="2.0 MiB"
    ):
        PartyOptions(memory_limit=2**20).check_memory(2**21, "all of it")


def test_long_hashing_is_logged(monkeypatch, caplog):
    seconds = iter([0.0, 9.0, 12.0, 13.0, 30.0])
    monkeypatch.setattr(views, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    hashed = views.progress(4000)
    for _ in range(4):
        hashed(1000)
    assert [record.args for record in caplog.records] == [(2000, 4000), (4000, 4000)]


# ---- columns, by name, whatever the samples come in

UV = RunSpec(HashSpec(2, 64, 1, 8, seed=1), CLASSES)
FRAME = pd.DataFrame(X[:, :2], columns=["u", "v"])

U = Column("u", "number", gaps=False)
V = Column("v", "number", gaps=False)
NAMED = Schema([U, V], is_named=True)
UNNAMED = Schema([U, V], is_named=False)


def answered(run: RunSpec, samples: Any) -> Answer:
    """The counts of samples."""
    return ask(Party(samples, PartyOptions()), CountsRequest(run))


def answered_with_noise(run: RunSpec, samples: Any, folder: Path) -> Answer:
    """The noisy counts of samples; that a refusal costs nothing is checked."""
    budget = Budget(folder, Policy(10.0, mechanisms=["simulated"]))
    mechanism = SimulatedRelease(LaplaceCounts(1.0, hash_nnz=8, n_classes=3), 3)
    request = CountsRequest(replace(run, mechanism=mechanism))
    answer = ask(Party(samples, PartyOptions(budget=budget)), request)
    if REFUSED in answer.metrics:
        assert budget.spent() == (0.0, 0.0)
    return answer


MISFITS = {
    "an array for a schema with names": (NAMED, Samples(X[:, :2], Y)),
    "names for a schema without": (UNNAMED, Samples(FRAME, Y)),
    "names beside an array for a schema without": (
        UNNAMED,
        Samples(X[:, :2], Y, names=["u", "v"]),
    ),
    "names for a run without": (None, Samples(X[:, :2], Y, names=["u", "v"])),
    "other names beside an array": (("u", "v"), Samples(X[:, :2], Y, names=["q", "r"])),
    "a column of texts beside, without a schema": (
        ("u", "u" + BESIDE),
        Samples(FRAME, Y),
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_other_columns_are_refused_before_anything_is_spent(name, tmp_path):
    features, samples = MISFITS[name]
    run = replace(UV, feature_names=features)
    for answer in (
        answered(run, samples),
        answered_with_noise(run, samples, tmp_path / "state"),
    ):
        assert REFUSED in answer.metrics
        assert answer.arrays == []


A = Column("a", "number", gaps=False)
B = Column("b", "number", gaps=False)
LACKING: list[tuple[Any, Any]] = [
    *((("u", *names), FRAME) for names in ("a", "ab", "abc", "abcd")),
    (("a", "b"), FRAME),
    (Schema([U, A]), FRAME),
    (Schema([A, B, V]), FRAME),
    (NAMED, X[:, :2]),
    (UNNAMED, X),
    (Schema([U, V, A], is_named=False), X),
]


@pytest.mark.parametrize(("features", "own"), LACKING)
def test_a_private_refusal_of_columns_is_one_bit(features, own, tmp_path):
    """It counts neither the columns that are missing nor those that are there."""
    width = len(getattr(features, "columns", features))
    run = RunSpec(HashSpec(width, 64, 1, 8, seed=1), CLASSES, feature_names=features)
    answer = answered_with_noise(run, Samples(own, Y), tmp_path / "state")
    expected = "columns: expected all columns of the request, got other columns"
    assert answer.metrics == {REFUSED: expected}


FORMS = (
    Samples(X[:, :2], Y, names=["u", "v"]),
    Samples(FRAME, Y),
    Samples(FRAME[["v", "u"]], Y),
)


def contents(answer: Answer) -> list[Any]:
    """The arrays of an answer."""
    return [array.tolist() for array in answer.arrays]


@pytest.mark.parametrize("features", [("v", "u"), Schema([V, U])])
def test_names_beside_an_array_mean_what_those_of_a_frame_do(features, tmp_path):
    run = replace(UV, feature_names=features)
    first, *others = (contents(answered(run, samples)) for samples in FORMS)
    assert others == [first] * 2
    first, *others = (
        contents(answered_with_noise(run, samples, tmp_path / str(i)))
        for i, samples in enumerate(FORMS)
    )
    assert others == [first] * 2


def test_a_loader_of_a_private_party_says_nothing_to_the_server(tmp_path):
    def load(_: Any) -> Samples:
        raise DataError("y", text="y: row 17 has no label")

    answer = answered_with_noise(UV, load, tmp_path / "state")
    assert answer.metrics == {REFUSED: "phase counts failed at this party"}


class Panic(BaseException):
    """A panic of Rust code as Python gets it, which is no `Exception`."""


def test_a_panic_while_loading_is_a_refusal_without_its_text(tmp_path):
    def load(_: Any) -> Samples:
        raise Panic("row 17")

    answer = answered_with_noise(UV, load, tmp_path / "state")
    assert answer.metrics == {REFUSED: "phase counts failed at this party"}
    assert answered(UV, load).metrics == {REFUSED: "failed with Panic"}

    def stopped(_: Any) -> Samples:
        raise KeyboardInterrupt

    for ask_for in (answered, partial(answered_with_noise, folder=tmp_path / "s")):
        with pytest.raises(KeyboardInterrupt):
            ask_for(UV, stopped)


def test_a_hook_that_fails_costs_no_answer(tmp_path):
    rows = GivenRows(Samples(X[:, :2], Y))
    expected = answered_with_noise(UV, rows, tmp_path / "first")

    def on_read(_: Any) -> None:
        raise BaseException("a panic")

    rows.on_read = on_read
    answer = answered_with_noise(UV, rows, tmp_path / "second")
    assert REFUSED not in answer.metrics
    assert contents(answer) == contents(expected)


def test_a_share_of_the_noise_of_a_sum_is_not_taken_out_of_it(tmp_path):
    who = party(tmp_path / "state", mask=lambda *_: None, leaves=True)
    answer = ask(who, WithdrawRequest(RunSpec(SPEC, CLASSES, SHARE, 256)))
    assert "cannot be taken out of it" in str(answer.metrics[REFUSED])


def test_rows_that_are_read_one_by_one_are_for_private_parties(tmp_path):
    rows = GivenRows(Samples(X[:, :2], Y))
    sources = {"rows": rows, "a loader": lambda _: rows}
    for name, source in sources.items():
        refused = answered(UV, source)
        assert str(refused.metrics[REFUSED]).startswith("load: ")
        answer = answered_with_noise(UV, source, tmp_path / name)
        assert REFUSED not in answer.metrics
