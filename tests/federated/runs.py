"""Whole runs over parties that hold shares of iris, by each driver of a `Run`."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import federate, party_of, reply_of
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, TRAIN, Answer, Reply
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.roster import Failures, Member
from flwr_flynn.federated.run import Ask, Run
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.classifier import FlyNNClassifier
from tests.fakes import config_of, dealt, tally_of
from tests.flower.networks import Api, Legacy, Messages

X, Y = load_iris(return_X_y=True)
NAMES = ("setosa", "versicolor", "virginica")
LABELS = np.array(NAMES)[Y]
TRAINING = np.arange(150) % 5 != 0
AUTO = HashPlan(4, 3, 120, "auto", hash_dim=128)
GRID = [
    HashSpec(4, 100, 2, rho, seed, signed=True, center=(5.0, 3.0, 4.0, 1.0))
    for rho, seed in ((5, 0), (20, 1))
]
SPLITS = ("iid", "dirichlet", "pathological")


def shares(how: str = "iid", n: int = 4) -> list[dict[str, Any]]:
    """Samples of each party, a fifth of them held out; some parties may have none."""
    parts = []
    for share in dealt(LABELS, n, how):
        train = share[TRAINING[share]]
        test = share[~TRAINING[share]]
        parts.append(
            {
                "X": X[train],
                "y": LABELS[train],
                "X_test": X[test],
                "y_test": LABELS[test],
            }
        )
    return parts


def options_for(spec: Any, **changes: Any) -> dict[str, Any]:
    """Options of a run, as both strategies take them."""
    return {"spec": spec, "classes": NAMES, "min_parties": 1, **changes}


Driver = Callable[[dict[str, Any], Sequence[dict[str, Any]]], Run]


def in_process(
    options: dict[str, Any], parts: Sequence[dict[str, Any]], **settings: Any
) -> Run:
    """A run by `federate`."""
    settings = {"min_examples": 1, "products": True, **settings}
    parties = [
        party_of(**part, name=f"party-{i}", member=f"secret of {i}", **settings)
        for i, part in enumerate(parts)
    ]
    return federate(RunOptions(**options), parties)


def clients(parts: Sequence[dict[str, Any]], **settings: Any) -> list[FlyNNClient]:
    settings = {"min_examples": 1, "products": True, **settings}
    return [
        FlyNNClient(**part, name=f"party-{i}", **settings)
        for i, part in enumerate(parts)
    ]


def over(api: Api) -> Driver:
    """The driver of the strategy of one of Flower's APIs, in Flower's own loop."""
    return lambda options, parts, **settings: api(clients(parts, **settings)).finished(
        **options
    )


DRIVERS: dict[str, Driver] = {
    "in process": in_process,
    "legacy": over(Legacy),
    "message": over(Messages),
}


def sha256(model: FlyNNClassifier) -> str:
    """SHA-256 of a model's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.npz")
        model.save(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def digest(run: Run) -> str:
    """SHA-256 of a run's model."""
    return run.model.model_.sha256()


def saved_of(run: Run, path: Path, name: str = "1") -> Federation:
    """The run's file, written and read."""
    run.federation(name).save(path)
    return Federation.load(path)


def replied(request: Request[Any], party: Party, cid: str = "1") -> Reply:
    """A party's reply to a request, over the wire and back."""
    answer = party.answer(config_of(request), request.arrays())
    return reply_of(cid, answer)


def declined(answer: Answer) -> str:
    """The reason of an answer that is a refusal, and nothing else."""
    assert answer.metrics.keys() - {"flynn-party"} == {REFUSED}
    assert answer.arrays == []
    assert answer.n_examples == 0
    reason = str(answer.metrics[REFUSED])
    assert len(reason) < 500
    return reason


def refusal(
    request: Request[Any], party: Party, entries: Mapping[str, Any], arrays: Any = None
) -> str:
    """The reason of a party that refuses a request with other entries or arrays.

    An entry of None is left out of the config.
    """
    config = config_of(request) | dict(entries)
    config = {name: value for name, value in config.items() if value is not None}
    if arrays is None:
        arrays = request.arrays()
    return declined(party.answer(config, arrays))


def statistic_of(
    request: Request[Any], party: Party, member: Member | None = None
) -> Any:
    """The statistic that a party sends, as the server reads it."""
    reply = replied(request, party)
    return tally_of(request).read(codec.read_tensors(reply.tensors), reply, member)


DUE = ""
"""The channel of the phase that is due."""


@dataclass
class Exchange:
    """A run and its parties, driven step by step.

    Parameters
    ----------
    run : Run
    parties : dict of cid to Party
    """

    run: Run
    parties: dict[str, Party]
    lost: set[str] = field(default_factory=set)
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def step(
        self,
        channel: str,
        present: Collection[str] | None = None,
        failures: Mapping[str, str] | None = None,
        spoil: Callable[[Reply], Reply] | None = None,
    ) -> Any:
        """One exchange with the parties that are there.

        Those in `failures` answer with an error.
        """
        if present is None:
            present = self.parties
        due = self.run.due
        if channel == DUE and due is not None:
            channel = due.channel
        ask = self.run.ask(channel, list(present))
        if ask is None:
            return None
        self.asked.append((ask.phase.name, list(ask.cids)))
        failed = {
            cid: reason for cid, reason in (failures or {}).items() if cid in ask.cids
        }
        silent = self.lost.union(failed)
        replies = self.replies(ask, [cid for cid in ask.cids if cid not in silent])
        if spoil is not None:
            replies = [spoil(reply) for reply in replies]
        return self.run.complete(replies, Failures(failed))

    def spoiled(self, change: Callable[[Request[Any], Reply], Reply]) -> str:
        """One exchange in which party "3" sends another reply: why it is refused.

        It is the only one that is.
        """

        def spoil(reply: Reply) -> Reply:
            if reply.cid == "3" and self.run.asked is not None:
                return change(self.run.asked.request, reply)
            return reply

        (reason,) = self.step(DUE, spoil=spoil).missing.values()
        return str(reason)

    def until(self, phase: str) -> Exchange:
        """Go on until a phase is due, and return the same."""
        while self.run.due is not None and self.run.due.name != phase:
            self.step(DUE)
        return self

    def replies(self, ask: Ask, cids: Sequence[str]) -> list[Reply]:
        """Return the replies of some parties."""
        return [self.reply(ask, cid) for cid in cids]

    def reply(self, ask: Ask, cid: str) -> Reply:
        """Return the reply of one party."""
        arrays = codec.read_tensors(ask.tensors)
        party = self.parties[cid]
        return reply_of(cid, party.answer(dict(ask.config), arrays, ask.phase.channel))

    def rounds(self, n: int | None = None) -> Run:
        """So many of Flower's rounds, by default as many as the run takes."""
        if n is None:
            n = self.run.num_rounds
        for _ in range(n):
            self.step(TRAIN)
            self.step(EVALUATE)
        return self.run


def exchange(
    spec: Any, how: str = "iid", n: int = 4, floor: int = 1, **changes: Any
) -> Exchange:
    """A run that has not begun, with parties that hold shares of iris.

    `floor` is the `min_examples` of each.
    """
    options = {"min_examples": floor, "products": True}
    parties = {
        str(i): party_of(**part, name=f"party-{i}", **options)
        for i, part in enumerate(shares(how, n))
    }
    return Exchange(Run(RunOptions(**options_for(spec, **changes))), parties)


def renamed(reply: Reply, cid: str) -> Reply:
    """The same reply by another node."""
    return replaced(reply, cid=cid)
