"""The selection is the pooled one whatever the split.

A hostile table costs its sender alone.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.phases.counts import no_counts
from flwr_flynn.federated.phases.selection import (
    Selection,
    SelectionRequest,
    candidates_for,
    select,
)
from flwr_flynn.federated.protocol import REFUSED, Reply
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.selection import fit_members
from tests.fakes import summed
from tests.federated.runs import (
    AUTO,
    GRID,
    LABELS,
    NAMES,
    TRAINING,
    X,
    Y,
    in_process,
    options_for,
    replied,
    shares,
    statistic_of,
)
from tests.raising import raises

RUN = RunSpec(GRID, NAMES)
TOTALS = CountsOfSpecs(
    tuple(ClassCounts.from_data(FlyHash(spec), X, Y, 3) for spec in GRID)
)
REQUEST = SelectionRequest(RUN, TOTALS, candidates_for(TOTALS, "balanced", "auto"))
ALL = Member("", "1", sizes=(50, 50, 50))


@pytest.mark.parametrize("spec", [AUTO, GRID, GRID[0]], ids=["auto", "grid", "one"])
def test_the_selection_of_a_split_is_the_pooled_one(spec):
    run = in_process(options_for(spec), shares("dirichlet"))
    specs = run.state.run_spec.specs
    pooled = fit_members(
        specs,
        X[TRAINING],
        Y[TRAINING],
        3,
        max_members=AUTO.max_members if spec is AUTO else 1,
    )
    selection = run.state.results["selection"]
    assert (len(pooled) > 1) == (spec is AUTO)
    assert run.model.model_.members == pooled
    assert selection.accuracy == max(map(max, selection.accuracies))
    assert selection.parties == 4
    assert selection.examples == 120
    assert run.state.missing["selection"] == {}


def test_a_party_refuses_a_selection_among_counts_that_it_is_not_in():
    empty = replace(REQUEST, totals=no_counts(RUN))
    assert replied(empty, party_of(X, LABELS)).metrics.keys() == {REFUSED}
    assert replied(REQUEST, party_of(X[:, ::-1], LABELS)).metrics.keys() == {REFUSED}
    nobody = replied(empty, party_of(X[:0], LABELS[:0]))
    assert REFUSED not in nobody.metrics
    assert nobody.n_examples == 0


def test_a_secure_sum_of_more_samples_than_are_counted_is_refused():
    request = replace(REQUEST, run=RunSpec(GRID, NAMES, bound=64))
    vector = np.zeros(request.layout.n_entries)
    vector[:3] = 51
    replies = [Reply(cid, codec.write_tensors([vector]), 1, {}) for cid in "123"]
    with raises(PayloadError, field="left out"):
        summed(request, replies)


# ---- the result


def test_classes_without_samples_do_not_count_in_the_accuracy():
    two = Y < 2
    totals = CountsOfSpecs(
        tuple(ClassCounts.from_data(FlyHash(spec), X[two], Y[two], 3) for spec in GRID)
    )
    request = SelectionRequest(RUN, totals, candidates_for(totals, "balanced", "auto"))
    found = statistic_of(
        request, party_of(X[two], LABELS[two]), Member("", "1", sizes=(50, 50, 0))
    )
    assert select(request.candidates, found, 1, 1).accuracy == 1.0


def test_what_json_gets_holds_every_candidate():
    found = statistic_of(REQUEST, party_of(X, LABELS), ALL)
    selection: Selection = select(REQUEST.candidates, found, 1, 2)
    values = selection.to_dict()
    assert values["scorings"] == [
        [scoring.rule, scoring.decay, scoring.temperature]
        for scoring in selection.scorings
    ]
    assert values["choices"] == [
        [choice.spec, choice.scoring, choice.weight] for choice in selection.choices
    ]
    assert json.loads(json.dumps(values, allow_nan=False))["examples"] == 150
    assert [len(column) for column in values["candidates"]] == [
        len(column) for column in values["accuracies"]
    ]
    assert values["accuracy"] == selection.accuracy
