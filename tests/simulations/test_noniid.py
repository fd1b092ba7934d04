"""`python -m simulations noniid`, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from simulations import gradients, noniid, splits
from simulations import noniid_page as page
from simulations.gradients import Recipe
from simulations.results import behind
from tests.simulations.tables import read, run_again, run_once, shown

pytest.importorskip("flwr_datasets")

TINY = noniid.Plan(
    splits=("IID", "Dirichlet 0.1", "shards"),
    parties=(4,),
    rounds=3,
    largest=400,
    rates=(0.1, 1.0),
    epochs_at_once=(5,),
    mus=(0.1,),
)


def loss(weights, X, y):
    scores = gradients.logits(weights, X)
    return float(
        np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y])
    )


@pytest.mark.parametrize("hidden", [0, 5])
def test_gradients_are_those_of_the_loss(hidden):
    random = np.random.default_rng(0)
    X = random.normal(size=(20, 4))
    y = random.integers(0, 3, 20)
    shapes = [array.shape for array in gradients.initial_weights(4, 3, hidden, seed=0)]
    weights = [random.normal(size=shape) for shape in shapes]
    slopes = np.concatenate(
        [slope.ravel() for slope in gradients.gradient(weights, X, y)]
    )

    def moved(flat):
        parts = np.split(flat, np.cumsum([array.size for array in weights])[:-1])
        return loss(
            [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)],
            X,
            y,
        )

    np.testing.assert_allclose(
        slopes,
        approx_fprime(np.concatenate([w.ravel() for w in weights]), moved),
        atol=1e-5,
    )


def near(arrays, expected, atol=1e-6, rtol=0.0):
    """Require that arrays are equal, one by one, but for rounding."""
    for one, other in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=rtol)


def federated(parts, recipe, n_rounds, hidden=0, watch=lambda _: None, **more):
    return gradients.federate(parts, 3, hidden, recipe, n_rounds, watch, **more)


def test_the_proximal_term_pulls_towards_the_global_weights():
    """By hand: the second of two full batches."""
    random = np.random.default_rng(0)
    X = random.normal(size=(32, 4)).astype(np.float32)
    y = random.integers(0, 3, 32)
    start = gradients.initial_weights(4, 3, 0, seed=0)
    recipe = Recipe(0.5, 2, batch=32, mu=0.3)
    first = [
        w - np.float32(0.5) * g
        for w, g in zip(start, gradients.gradient(start, X, y), strict=True)
    ]
    slopes = gradients.gradient(first, X, y)
    second = [
        w - 0.5 * (g + 0.3 * (w - w0))
        for w, g, w0 in zip(first, slopes, start, strict=True)
    ]
    near(
        gradients.descend(start, X, y, recipe, np.random.default_rng(2)),
        second,
        rtol=1e-4,
    )
    assert not start[0].any()


def skewed(n_points=(90, 60, 33)):
    """Parties of one class each, and one without samples."""
    random = np.random.default_rng(0)
    parts = [
        (random.normal(i, 1, size=(n, 4)).astype(np.float32), np.full(n, i))
        for i, n in enumerate(n_points)
    ]
    return [*parts, (np.zeros((0, 4), np.float32), np.zeros(0, int))]


def scaffold(parts, start, recipe, n_rounds):
    """SCAFFOLD as its paper has it, with means by samples, in float64.

    Returns weights, the server's variates, and the parties'.
    """
    weights = [array.astype(float) for array in start]
    common = [np.zeros(array.shape) for array in start]
    own = [[np.zeros(array.shape) for array in start] for _ in parts]
    shares = np.array([len(y) for _, y in parts]) / sum(len(y) for _, y in parts)
    for number in range(1, n_rounds + 1):
        ends = []
        news = []
        for i, (X, y) in enumerate(parts):
            random = np.random.default_rng([0, i, number])
            end = [array.copy() for array in weights]
            steps = 0
            for _ in range(recipe.epochs):
                order = random.permutation(len(y))
                for at in range(0, len(y), recipe.batch):
                    rows = order[at : at + recipe.batch]
                    slopes = gradients.gradient(end, X[rows].astype(float), y[rows])
                    end = [
                        e - recipe.rate * (g - c_i + c)
                        for e, g, c_i, c in zip(
                            end, slopes, own[i], common, strict=True
                        )
                    ]
                    steps += 1
            new = own[i]
            if steps:
                new = [
                    c_i - c + (x - e) / (steps * recipe.rate)
                    for c_i, c, x, e in zip(own[i], common, weights, end, strict=True)
                ]
            ends.append(end)
            news.append(new)
        for place in range(len(start)):
            weights[place] += sum(
                p * (end[place] - weights[place])
                for p, end in zip(shares, ends, strict=True)
            )
            common[place] += sum(
                p * (new[place] - c[place])
                for p, new, c in zip(shares, news, own, strict=True)
            )
        own = news
    return weights, common, own


@pytest.mark.parametrize("hidden", [0, 5])
def test_scaffold_is_that_of_its_paper(hidden, monkeypatch):
    parts = skewed()
    recipe = Recipe(0.1, 3, batch=16)
    parties = []
    initialise = gradients.ScaffoldClient.__init__

    def noted(self, *args):
        initialise(self, *args)
        parties.append(self)

    monkeypatch.setattr(gradients.ScaffoldClient, "__init__", noted)
    start = gradients.initial_weights(4, 3, hidden, seed=0)
    got, traffic = federated(parts, recipe, 4, hidden, kind=gradients.ScaffoldClient)
    weights, common, own = scaffold(parts, start, recipe, 4)
    near(got, weights, 2e-4)
    for party, theirs in zip(parties, own, strict=True):
        near(party.own, theirs, 2e-3)
    # The server's variate is the mean of the parties', by samples.
    sizes = [len(y) for _, y in parts]
    assert sum(sizes) == 183
    for place, array in enumerate(common):
        of_parties = [party.own[place] for party in parties]
        mean = np.average(of_parties, axis=0, weights=sizes)
        np.testing.assert_allclose(mean, array, atol=2e-3)
    # It sends twice what FedAvg sends, and does better by what parties differ in.
    plain, less = federated(parts, recipe, 4, hidden)
    assert 1.7 < traffic.arrivals.bytes / less.arrivals.bytes < 2.1
    assert 1.7 < traffic.down / less.down < 2.1
    assert any(
        np.abs(one - other).max() > 1e-3 for one, other in zip(got, plain, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "n_common"), [(gradients.GradientClient, 4), (gradients.HeadClient, 2)]
)
def test_common_arrays_are_means_of_what_parties_trained_by_their_samples_and_heads_stay_there(
    kind, n_common
):
    parts = skewed()
    recipe = Recipe(0.1, 2)
    start = gradients.initial_weights(4, 3, 5, seed=3)
    seen = []
    got, traffic = federated(parts, recipe, 3, 5, watch=seen.append, seed=3, kind=kind)
    common = start[:n_common]
    own = [start[n_common:]] * 4
    for number in (1, 2, 3):
        trained = [
            gradients.descend(
                [*common, *own[i]], X, y, recipe, np.random.default_rng([3, i, number])
            )
            for i, (X, y) in enumerate(parts)
        ]
        own = [weights[n_common:] for weights in trained]
        common = [
            sum(
                len(y) * weights[k]
                for weights, (_, y) in zip(trained, parts, strict=True)
            )
            / 183
            for k in range(n_common)
        ]
    heads = [np.stack(layer) for layer in zip(*own, strict=True)]
    expected = [*common, *heads]
    near(got, expected, 1e-5)
    near(seen[-1], got, 0)
    assert [array.shape for array in got] == [array.shape for array in expected]
    assert len(seen) == 3
    assert traffic.arrivals.parties == 12
    if kind is gradients.HeadClient:
        for one, other in combinations(got[2], 2):
            assert np.abs(one - other).max() > 1e-3
        assert traffic.arrivals.bytes < federated(parts, recipe, 3, 5)[1].arrivals.bytes


@pytest.mark.parametrize("split", list(splits.SPLITS))
@pytest.mark.parametrize("n_parties", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_every_split_deals_out_points_once(split, n_parties):
    data = splits.read("digits")
    # Rows that carry their own number tell where points went.
    data = replace(data, X=np.arange(len(data.y), dtype=np.float64)[:, None])
    parts = splits.deal_out(data, split, n_parties, seed=0)
    assert len(parts.shares) == n_parties
    if split not in (splits.SHIFT, splits.MENDED):
        dealt = np.concatenate([parts.pooled.X, parts.pooled.X_test])[:, 0].astype(int)
        assert len(set(dealt)) == len(dealt) >= 0.85 * len(data.y)
        np.testing.assert_array_equal(
            data.y[dealt], np.concatenate([parts.pooled.y, parts.pooled.y_test])
        )
        inner = parts.for_validation(seed=1).pooled  # which never sees what is held out
        assert sorted([*inner.X.ravel(), *inner.X_test.ravel()]) == sorted(
            parts.pooled.X.ravel()
        )
    if split in ("1 class", "2 classes"):
        assert (parts.class_table > 0).sum(axis=1).max() == int(split[0])


def test_a_shift_differs_by_party_and_is_the_same_for_all_points_of_one():
    data = splits.read("digits")
    plain = splits.deal_out(data, "IID", 5, seed=0)
    shifted = splits.deal_out(data, splits.SHIFT, 5, seed=0)
    maps = []
    for one, other in zip(plain.shares, shifted.shares, strict=True):
        np.testing.assert_array_equal(one.y, other.y)
        gain, offset = np.polyfit(one.X[:, 20].astype(float), other.X[:, 20], 1)
        np.testing.assert_allclose(
            other.X_test[:, 20], gain * one.X_test[:, 20] + offset, atol=1e-3
        )
        maps.append((round(gain, 4), round(offset, 4)))
    assert len(set(maps)) == 5
    mended = splits.deal_out(data, splits.MENDED, 5, 0).shares[0]
    assert abs(mended.X.mean(0)).max() < 1e-5


def samples_of(y):
    """A party without training samples, and with these labels held out."""
    return splits.Samples(
        np.zeros((0, 1)), np.zeros(0, int), np.zeros((len(y), 1)), np.array(y)
    )


def test_scores_of_a_small_known_case():
    shares = [samples_of(y) for y in ([0] * 5, [0, 1, 1, 1, 1, 1], [1])]
    scores = splits.Parts(shares, 2).scores(
        np.array([0] * 5 + [0, 1, 1, 1, 0, 0] + [0])
    )
    assert scores["accuracy"] == pytest.approx(9 / 12)
    assert scores["balanced"] == pytest.approx((6 / 6 + 3 / 6) / 2)
    assert scores["worst"] == pytest.approx(4 / 6)  # not the party with one point


@given(n=st.integers(1000, 5000), n_parties=st.integers(1, 300))
def test_uneven_sizes_add_up(n, n_parties):
    sizes = splits.uneven_sizes(n, n_parties)
    assert sum(sizes) == n
    assert len(sizes) == n_parties
    assert min(sizes) >= 1
    assert sizes == sorted(sizes)


finished = run_once("noniid", "--jobs", "2", smaller=[(noniid, "QUICK", TINY)])


def test_there_is_a_row_for_every_cell_and_none_is_run_again(finished):
    rows = read(finished / "noniid.csv")
    assert len(rows) == 3 * len(noniid.METHODS)
    for row in rows:
        assert 0 < float(row["personal accuracy"]) <= 1
        assert int(row["up"]) * int(row["down"]) > 0
        if row["method"] in page.BASELINES:
            assert row["rounds"] == "3"
        if row["method"] == "own heads MLP":
            assert row["accuracy"] == "nan"
    assert "| Dirichlet 0.1 |" in shown(
        finished, "accuracy-all-4", "bytes-digits-4", "skew-digits-4"
    )
    # FlyNN has the pooled model in every cell.
    mine = [row for row in rows if row["method"] == noniid.FLYNN]
    assert len({row["accuracy"] for row in mine}) == 1
    (digest,) = {row["sha256"] for row in mine}
    assert len(digest) == 64
    for more in ([], ["--finished"]):
        run_again(
            ["noniid", "--quick", *more],
            finished,
            (noniid, "flynn"),
            (noniid, "by_gradients"),
        )


@pytest.mark.parametrize("pooled", [[50, 50], [10, 90]])
@pytest.mark.parametrize("own", [[90, 10], [90, 0], [50, 50], [0, 0]])
def test_a_party_adds_its_frequencies_less_the_pooled_ones(own, pooled):
    y = np.repeat([0, 1], [90, 10])
    X = (np.random.default_rng(0).normal(size=(100, 2)) + y[:, None] * [0.5, 0]).astype(
        np.float32
    )
    weights = [np.array([[0.0, 0.5], [0.0, 0.0]]), np.log(np.array(pooled) / 100)]
    shares = (np.array(pooled) + 1) / 102
    mine = np.repeat([0, 1], own)
    scores = gradients.logits(weights, X) + np.log(own + 2 * shares) - np.log(shares)
    predicted = noniid.with_class_prior(
        splits.Samples(X[: len(mine)], mine, X, y), weights, np.array(pooled)
    )
    np.testing.assert_array_equal(predicted, scores.argmax(axis=1))


def known_rows():
    """Two cells: ours is ahead in the first one.

    In the second it is behind on the mean, and equal at the worst party.
    """
    rows = []
    for seed, mean, worst in ((0, 0.9, 0.8), (1, 0.7, 0.5)):
        about = {
            "set": "a",
            "parties": 4,
            "split": "IID",
            "seed": seed,
            "up": 1000,
            "down": 1000,
            "rounds": 4,
        }
        harm = {
            "worse": seed,
            "better": 2,
            "judged": 4,
            "drop": 0.1 * seed,
            "drop of": 10 * seed,
        }
        ours = {
            "method": page.THOROUGH,
            "personal accuracy": mean,
            "personal worst": worst,
        }
        theirs = {name: 0.8 - i / 100 for i, name in enumerate(page.BASELINES)}
        rows.append(about | ours | harm)
        rows += [
            about
            | {
                "method": name,
                "personal accuracy": accuracy,
                "personal worst": 0.5,
                "up": 3000,
            }
            for name, accuracy in theirs.items()
        ]
    return rows


def test_cells_are_counted_where_ours_is_ahead_or_equal():
    frame = page.beside(known_rows())
    assert len(frame) == 2
    best = page.ahead(frame)[-1]
    assert best["against"] == "all of them"
    assert best["cells"] == 2
    assert best["mean: ahead or equal"] == "50 %"
    assert best["worst party: ahead or equal"] == "100 %"
    assert best["worst party: gain"] == "+0.150"
    line = page.by_set(known_rows(), frame)[0]
    assert line["mean: FlyNN thorough"] == line["mean: best baseline"] == "0.800"
    assert line["of the MLP's"] == "0.50"
    means = frame["personal accuracy"][[page.THOROUGH, *page.BASELINES]]
    (line,) = behind(means, page.THOROUGH, page.BASELINES)
    assert line["seed"] == 1
    assert line[page.THOROUGH] == 0.7
    assert line["best"] == 0.8
    assert line["by"] == "FedAvg LR"
    assert behind(means.iloc[:1], page.THOROUGH, page.BASELINES) == []
    incomplete = [
        row
        for row in known_rows()
        if (row["seed"], row["method"]) != (1, "SCAFFOLD LR")
    ]
    assert len(page.beside(incomplete)) == 1


def test_a_star_marks_figures_that_skew_cannot_touch():
    common = {"split": "IID", "accuracy": 0.5, "worst": 0.25}
    rows = [common | {"method": name, "steps": 2} for name in noniid.METHODS]
    rows[noniid.METHODS.index("FedAvg LR")]["steps"] = 1
    (line,) = page.table(rows, "accuracy", ["FedAvg LR", "FedAvg MLP", "none"], "worst")
    assert line == {
        "split": "IID",
        "FedAvg LR": "0.500 (0.25)*",
        "FedAvg MLP": "0.500 (0.25)",
        "none": "",
    }


def test_harm_is_counted_over_parties():
    line = page.harm(known_rows())[0]
    assert (line["parties"], line["worse"], line["better"]) == (8, "12.5 %", "50.0 %")
    assert line["worst loss"].startswith("0.100 of 10 samples (a, 4 parties")
    shares = [samples_of(np.zeros(n, int)) for n in (5, 10, 4, 8)]
    own = [
        np.array([0] * 5),
        np.array([0] * 7 + [1] * 3),
        np.ones(4, int),
        np.zeros(8, int),
    ]
    shared = np.concatenate([[1] * 5, [0] * 10, [0] * 4, [0] * 8]).astype(int)
    scores = noniid.with_personal(splits.Parts(shares, 2), shared, own)
    assert scores["worse"] == scores["better"] == 1
    assert scores["judged"] == 3
    assert scores["drop of"] == 10
    assert scores["drop"] == pytest.approx(0.3)
    assert scores["personal accuracy"] == pytest.approx(20 / 27)
