"""Stand-ins for Flower's network: parties in this very process."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from flwr_flynn import payload
from flwr_flynn.client import FlyNNClient
from flwr_flynn.counts import ClassCounts
from flwr_flynn.spec import HashSpec
from flwr_flynn.terms import Terms

SPEC = HashSpec(n_features=4, hash_dim=24, row_nnz=2, hash_nnz=3, seed=7)
CLASSES = ("ash", "birch", "cedar")
TERMS = Terms(SPEC, CLASSES)
HASHER = TERMS.hasher


class Proxy(ClientProxy):
    """A party in this process. It goes through Flower's own NumPyClient wrapper, bytes included."""

    def __init__(self, cid: str, client: FlyNNClient | None = None, fails: BaseException | None = None) -> None:
        super().__init__(cid)
        self.client = client.to_client() if client else None
        self.fails = fails
        self.fits = self.evaluations = 0

    def fit(self, ins: Any, timeout: float | None = None, group_id: int | None = None) -> Any:
        self.fits += 1
        if self.fails:
            raise self.fails
        return self.client.fit(ins)

    def evaluate(self, ins: Any, timeout: float | None = None, group_id: int | None = None) -> Any:
        self.evaluations += 1
        if self.fails:
            raise self.fails
        return self.client.evaluate(ins)

    def get_properties(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def get_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the strategy has initial parameters of its own")

    def reconnect(self, *args: Any, **kwargs: Any) -> Any:
        return None


def manager(*proxies: Proxy) -> SimpleClientManager:
    """A client manager to which these parties are connected."""
    clients = SimpleClientManager()
    for proxy in proxies:
        clients.register(proxy)
    return clients


def points(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some points with labels of `CLASSES`."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, SPEC.n_features)), np.array(CLASSES)[random.integers(0, len(CLASSES), n)]


def counts_of(X: np.ndarray, y: np.ndarray) -> ClassCounts:
    """What one party that holds these points counts."""
    return ClassCounts.from_data(HASHER, X, TERMS.codes(y), TERMS.n_classes)


def fit_res(arrays: list[np.ndarray], n_examples: Any, **metrics: Any) -> FitRes:
    """A reply that Flower delivers."""
    named = {key.replace("_", "-"): value for key, value in metrics.items()}
    return FitRes(Status(Code.OK, "Success"), ndarrays_to_parameters(arrays), n_examples, named)


def good_res(n: int = 5, seed: int = 0, **metrics: Any) -> FitRes:
    """The reply of a party that counted `n` points."""
    return fit_res(payload.encode(counts_of(*points(n, seed))), n, **metrics)


def dealt(y: np.ndarray, n_parties: int, how: str, seed: int = 0) -> list[np.ndarray]:
    """Shares of points: "iid", "dirichlet" (alpha 0.1) or "pathological" (two classes each); some may be empty."""
    random = np.random.default_rng(seed)
    if how == "iid":
        return np.array_split(random.permutation(len(y)), n_parties)
    owner = np.empty(len(y), int)
    for label in np.unique(y):
        places = random.permutation(np.flatnonzero(y == label))
        if how == "dirichlet":
            share = random.dirichlet(np.full(n_parties, 0.1))
            owner[places] = random.choice(n_parties, len(places), p=share)
        else:
            owner[places] = random.choice(random.choice(n_parties, 2, replace=False), len(places))
    return [np.flatnonzero(owner == party) for party in range(n_parties)]
