"""The runner: one result wherever the parties run."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from flwr_flynn import AggregationError, ClassCounts, FlyHash, HashSpec
from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.algorithm import RunOptions, federate, party_of
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.model.candidates import HashPlan
from simulations import runner
from simulations.workers import workers
from tests.raising import raises

SPEC = HashSpec(n_features=5, hash_dim=40, row_nnz=2, hash_nnz=4, seed=3)
CLASSES = ("ash", "birch", "cedar")


def points(n, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(n, 5)).astype(np.float32), np.array(CLASSES)[
        random.integers(0, 3, n)
    ]


def parties_of(n_parties, n=90):
    """Parties of very different sizes; some have nothing."""
    X, y = points(n)
    owner = (np.random.default_rng(1).random(n) ** 2 * n_parties).astype(int)
    return [
        party_of(X[owner == i], y[owner == i], name=f"party-{i}")
        for i in range(n_parties)
    ]


def pooled(n=90):
    X, y = points(n)
    return ClassCounts.from_data(FlyHash(SPEC), X, np.searchsorted(CLASSES, y), 3)


def run(parties, where="process", **changes):
    return runner.run(parties, where, **({"spec": SPEC, "classes": CLASSES} | changes))


class Dying(Party):
    """A party at which the worker is killed, the first time it counts."""

    mark = ""

    def answer(self, *request):
        if not os.path.exists(self.mark):
            with open(self.mark, "w", encoding="utf-8"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(*request)


@pytest.fixture(scope="module")
def on_ray():
    pytest.importorskip("ray")
    with workers("ray", n_cpus=2) as place:
        yield place


def test_a_federation_of_all_phases_is_that_of_the_package():
    plan = HashPlan(5, 3, 90, "auto", hash_dim=40)
    options = RunOptions(spec=plan, classes=CLASSES, min_parties=5)
    here = runner.federate(options, parties_of(5)).run
    expected = federate(options, parties_of(5))
    assert here.model.model_.sha256() == expected.model.model_.sha256()
    # Bytes but for the parties' names, which are here those of the traffic.
    assert here.traffic.keys() == expected.traffic.keys()
    assert here.num_rounds == expected.num_rounds


def refuses_by_name(where):
    parties = parties_of(6)
    parties[5] = party_of(*points(3)[:1], ["ash", "oak", "ash"], name="Basel")
    with raises(AggregationError) as caught:
        run(parties, where)
    assert caught.value.missing.keys() == {"Basel"}
    assert caught.value.missing["Basel"].startswith("declined: y: ")


def test_a_party_that_refuses_is_named():
    refuses_by_name("process")


WRONG = [
    (parties_of(3), {"where": "cloud"}, "where"),
    (parties_of(3), {"decay": 2.0}, "decay"),
]
WRONG += [
    ([], {}, "parties"),
    ([party_of(*points(3), name="Basel")] * 2, {}, "parties"),
]


@pytest.mark.parametrize(
    ("parties", "changes", "field"),
    WRONG,
    ids=["where", "decay", "nobody", "equal names"],
)
def test_wrong_settings_and_parties_are_named(parties, changes, field):
    with raises(ConfigError, field=field):
        run(parties, **changes)


def test_a_dead_worker_is_replaced_and_no_bit_changes(on_ray, tmp_path):
    parties = parties_of(9)
    X, y = points(90)
    mine = (np.random.default_rng(1).random(90) ** 2 * 9).astype(int) == 4
    dying = Dying(lambda _: Samples(X[mine], y[mine]), PartyOptions(name="party-4"))
    dying.mark = str(tmp_path / "died")
    parties[4] = dying
    federation = run(parties, on_ray)
    assert os.path.exists(dying.mark)
    assert federation.model.counts_ == pooled()


def test_ray_gives_the_bits_of_one_process(on_ray):
    parties = parties_of(17)
    here = run(parties)
    there = run(parties, on_ray)
    assert there.model.counts_ == here.model.counts_ == pooled()
    assert (there.traffic.asked, len(there.party_seconds)) == (17, 17)
    assert there.model.model_.sha256() == here.model.model_.sha256()
    refuses_by_name(on_ray)
    options = RunOptions(
        spec=HashPlan(5, 3, 90, "auto", hash_dim=40), classes=CLASSES, min_parties=5
    )
    here, there = (
        runner.federate(options, parties_of(5), where) for where in ("process", on_ray)
    )
    assert there.model.model_.sha256() == here.model.model_.sha256()
    assert there.run.traffic == here.run.traffic


def test_what_is_under_way_ends_with_the_one_who_asks(on_ray):
    parties = [on_ray.put(party) for party in parties_of(4)]
    answers = on_ray.answers((party, on_ray.put(({}, ()))) for party in parties)
    next(answers)
    answers.close()
    assert run(parties_of(4), on_ray).model.counts_ == pooled()
