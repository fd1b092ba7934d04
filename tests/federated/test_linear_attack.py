"""Single rows in sums of products: why these leave with consent alone.

An attack by the server, which keeps to the protocol and has all requests and replies.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn import HashSpec
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.party import Samples
from flwr_flynn.federated.phases.counts import CountsRequest, UpdateRequest
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.gram import folds_of
from tests.federated.runs import statistic_of

RAW = Path(__file__).parents[3] / "shared" / "data" / "raw"


def samples_of(name):
    """Samples and classes of a hospital; or made ones, of which one has a rare level."""
    if name == "made":
        random = np.random.default_rng(2)
        samples = np.exp(random.normal(size=(90, 4)))
        samples[:, 3] = np.arange(90) == ROW
        return samples, random.integers(0, 2, 90)
    path = RAW / f"heart_{name}.csv"
    if not path.exists():
        pytest.skip("the data sets are elsewhere")
    table = np.genfromtxt(path, str, delimiter=",", skip_header=1)
    samples = np.char.replace(table[:, :13], "?", "-9").astype(float)
    return samples, (table[:, 13] == "'present'").astype(int)


ROW = 11
"""Index of the sample that is attacked."""


class Site:
    """A party's samples, and the run of which it is the only one."""

    def __init__(self, name):
        self.X, self.y = samples_of(name)
        self.basis = Basis.of_columns(ColumnHistograms.from_data(self.X, self.y, 2))
        spec = HashSpec(self.X.shape[1], 64, 2, 8, seed=1)
        self.asked = RunSpec([spec], (0, 1)), self.basis
        self.terms = self.basis.integers(self.X)[ROW]
        self.fold = folds_of(self.X)[ROW]

    def sums(self, rows=slice(None), **options):
        """Sums of products in the reply of the party with these samples."""
        party = party_of(self.X[rows], self.y[rows], **options)
        return statistic_of(CountsRequest(*self.asked), party).linear

    def update(self, samples, **options):
        """The change of the sums when the samples of before become those of now."""
        party = party_of(self.X, self.y, previous=Samples(samples, self.y), **options)
        change = statistic_of(UpdateRequest(*self.asked), party)
        return change.now.linear - change.before.linear


@pytest.fixture(
    params=["made", "cleveland", "hungarian", "switzerland", "va"], scope="module"
)
def site(request):
    return Site(request.param)


def square(products):
    """The symmetric matrix with this upper triangle."""
    n_terms = int((2 * len(products)) ** 0.5)
    upper = np.zeros((n_terms, n_terms))
    upper[np.triu_indices(n_terms)] = products
    return upper + np.triu(upper, 1).T


def test_a_row_in_one_of_two_runs_tells_its_terms(site):
    others = np.arange(len(site.y)) != ROW
    change = site.sums(products=True) - site.sums(others, products=True)
    products = square(change.products[site.fold])
    largest = products.diagonal().argmax()
    rebuilt = products[largest] / products[largest, largest] ** 0.5
    assert_array_equal(rebuilt * np.sign(site.terms[largest]), site.terms)
    # The sums by class tell the sign, and the class.
    assert_array_equal(change.sums[site.fold, site.y[ROW]], site.terms)


def test_a_row_that_changes_tells_its_terms_before_and_after(site):
    before = site.X.copy()
    # Another value of the first column with which the row is in the same fold.
    while (before == site.X).all() or folds_of(before)[ROW] != site.fold:
        before[ROW, 0] += 1
    change = site.update(before, products=True)
    step = change.sums[site.fold, site.y[ROW]]
    products = square(change.products[site.fold])
    # Products are now now' - before before', and the step is now - before.
    size = step @ step
    along = (step @ products @ step / size + size) / 2
    now = (products @ step - along * step) / size + step
    assert_array_equal(now.round(), site.terms)
    assert_array_equal((now - step).round(), site.basis.integers(before)[ROW])


def test_a_level_that_a_row_alone_has_tells_its_terms():
    site = Site("made")
    sums = site.sums(products=True)
    level = np.nonzero(site.basis._terms)[1].tolist().index(3)
    # The basis tells the terms of both levels.
    common, rare = site.basis.integers(np.eye(4)[2:])[:, level].tolist()
    totals = sums.sums[site.fold].sum(axis=0)
    pairs = square(sums.products[site.fold])[level]
    rebuilt = (pairs - common * totals) / (rare - common)
    assert_array_equal(rebuilt, site.terms)


def test_without_consent_there_is_nothing_to_attack(site):
    for own in (site.sums(), site.update(site.X + 1)):
        assert not any(table.any() for table in own.tables)
