"""The plan of a run follows from its options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.phases.counts import phase_for
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.model.candidates import HashPlan
from tests.fakes import LAPLACE, SPEC, make, points

AUTO = HashPlan(4, 3, 60, "auto", hash_dim=64)
LARGE = HashPlan(4, 3, 5000, "auto")
TWO = [SPEC, HashPlan(4, 3).specs()[0]]
SECURE = {"secure_bound": 256, "min_parties": 3}
BINS = "bins-1 bins-2 bins-3 bins-4 bins-5"


def names(**changes: Any) -> list[str]:
    """Phases of a plan, in one word each."""
    return [phase.name.replace(" ", "-") for phase in phases_of(make(**changes))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "counts selection calibration evaluation"),
        ({"decay": 0.5}, "counts evaluation"),
        ({"spec": TWO, "decay": 0.5}, "counts selection evaluation"),
        ({"spec": TWO, "fraction_evaluate": 0}, "counts"),
        ({"fraction_evaluate": 0}, "counts"),
        ({"fraction_evaluate": 0, "distribute": True}, "counts evaluation"),
        ({"spec": HashPlan(4, 3)}, "counts selection calibration evaluation"),
        ({"spec": AUTO}, "columns counts selection calibration evaluation"),
        (
            {"spec": replace(AUTO, effort="quick")},
            "columns counts selection evaluation",
        ),
        ({"spec": AUTO, "fraction_evaluate": 0}, "columns counts"),
        (
            {"spec": AUTO, **SECURE},
            f"{BINS} columns counts selection calibration secure-evaluation evaluation",
        ),
        ({"spec": LARGE}, "columns counts selection calibration evaluation"),
        ({"mechanism": LAPLACE}, "counts"),
        ({"mechanism": LAPLACE, "fraction_evaluate": 1.0}, "counts evaluation"),
        ({**SECURE}, "counts selection calibration secure-evaluation evaluation"),
        ({**SECURE, "decay": 0.5}, "counts secure-evaluation evaluation"),
    ],
    ids=str,
)
def test_phases_of_a_new_federation(changes, expected):
    assert names(**changes) == expected.split()


@pytest.fixture(scope="module")
def federation() -> Federation:
    return federate(make(), [party_of(*points(30), name="a")]).federation("1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"purpose": "join"}, "counts selection calibration evaluation"),
        ({"purpose": "withdraw"}, "counts selection calibration evaluation"),
        ({"purpose": "evaluate"}, "evaluation"),
        ({"purpose": "evaluate", "fraction_evaluate": 0}, ""),
        ({"purpose": "resume"}, ""),
        ({"phase": "calibration", "purpose": "resume"}, "calibration evaluation"),
        (
            {"phase": "selection", "purpose": "resume"},
            "selection calibration evaluation",
        ),
    ],
    ids=str,
)
def test_phases_from_a_saved_run(federation, changes, expected):
    options = dict(changes)
    saved = replace(federation, phase=options.pop("phase", ""))
    assert names(federation=saved, **options) == expected.split()


def test_the_counting_asks_those_who_can_be_in_it(federation):
    assert phase_for(make()).audience == "new"
    assert phase_for(make(federation=federation, purpose="withdraw")).audience == "all"
