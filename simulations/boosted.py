"""Federated XGBoost for `python -m simulations trees`: Flower's strategies over parties
in this process.

Flower files all trees under the first class and takes `num_parallel_tree` trees of a
reply; see `simulations.trees`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # before Flower 1.38, in which a grid names the sender

    class TaskIdentity:  # type: ignore[no-redef]
        """Place of the sender in newer versions."""


from flwr_flynn.federated.samples import Samples
from simulations.results import Array, Row
from simulations.splits import Parts
from simulations.trees_page import BAGGING, CYCLIC
from simulations.workers import quiet


@dataclass(frozen=True)
class Recipe:
    """Settings of boosted trees. `weights` is "own" or "pooled"."""

    eta: float
    depth: int
    weights: str
    rounds: int


def sample_weights(share: Samples, table: Array, weights: str) -> Array:
    """Weights of a party's samples that balance classes, its "own" or "pooled" ones by
    the counts of all parties.
    """
    if weights == "pooled":
        counts = table.sum(axis=0)
    else:
        counts = np.bincount(share.y, minlength=table.shape[1])
    balanced = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    result: Array = balanced[share.y]
    return result


def parameters(recipe: Recipe, n_classes: int) -> Row:
    """XGBoost's parameters.

    The start is fixed: by default each party would take its own class frequencies for
    it.
    """
    several = {"objective": "multi:softprob", "num_class": n_classes, "base_score": 0.0}
    if n_classes > 2:
        kind = several
    else:
        kind = {"objective": "binary:logistic", "base_score": 0.5}
    return kind | {
        "eta": recipe.eta,
        "max_depth": recipe.depth,
        "nthread": 1,
        "verbosity": 0,
    }


def matrices(parts: Parts, weights: str) -> list[Any]:
    """The samples of each party that has any."""
    import xgboost

    return [
        xgboost.DMatrix(
            share.X.astype(np.float32),
            share.y,
            weight=sample_weights(share, parts.class_table, weights),
            nthread=1,
        )
        for share in parts.shares
        if len(share.y)
    ]


def classes_of(margins: Array) -> Array:
    """Predicted classes by the margins of a model: (n, L), or (n,) for two classes."""
    if margins.ndim == 1:
        predicted: Array = (margins > 0).astype(np.int64)
    else:
        predicted = margins.argmax(axis=1)
    return predicted


def boosted(parts: Parts, method: str, recipe: Recipe) -> list[Array]:
    """Margins of the pooled held-out samples after each round of a strategy, without
    messages.

    A party's tree is fitted to the margins of the common model, which is what training
    that model further does.
    """
    import xgboost

    known = matrices(parts, recipe.weights)
    wanted = parts.pooled.X_test.astype(np.float32)
    points = [
        *(share.X.astype(np.float32) for share in parts.shares if len(share.y)),
        wanted,
    ]
    settings = parameters(recipe, parts.n_classes)
    shape: tuple[int, ...] = ()
    if parts.n_classes != 2:
        shape = (parts.n_classes,)
    margins = [np.zeros((len(X), *shape), np.float32) for X in points]
    after = []
    for number in range(recipe.rounds):
        asked: Sequence[int] = range(len(known))
        if method != BAGGING:
            asked = [number % len(known)]
        for i in asked:
            known[i].set_base_margin(margins[i])
        new = [xgboost.train(settings, known[i], 1) for i in asked]
        for i, X in enumerate(points):
            margins[i] = sum(
                (tree.inplace_predict(X, predict_type="margin") for tree in new),
                margins[i],
            )
        after.append(margins[-1])
    return after


def to_flower(model: bytes, n_classes: int) -> bytes:
    """A reply of which Flower takes the trees of all classes, see the module."""
    if n_classes == 2:
        return model
    content = json.loads(model)
    sizes = content["learner"]["gradient_booster"]["model"]["gbtree_model_param"]
    sizes["num_parallel_tree"] = sizes["num_trees"]
    return json.dumps(content).encode()


@lru_cache(maxsize=1)
def from_flower(model: bytes, n_classes: int) -> bytes:
    """A model of Flower's with the classes of its trees."""
    if n_classes == 2:
        return model
    content = json.loads(model)
    trees = content["learner"]["gradient_booster"]["model"]
    trees["gbtree_model_param"]["num_parallel_tree"] = "1"
    trees["tree_info"] = [i % n_classes for i in range(len(trees["trees"]))]
    return json.dumps(content).encode()


class Sites:
    """Parties in this process, as the `Grid` of one of Flower's strategies: they train,
    and bytes are counted.
    """

    def __init__(self, parts: Parts, method: str, recipe: Recipe) -> None:
        self.known = matrices(parts, recipe.weights)
        self.method = method
        self.n_classes = parts.n_classes
        self.settings = parameters(recipe, parts.n_classes)
        self.up = self.down = 0

    def get_node_ids(self) -> list[int]:
        """Numbers of the parties, from 1 on."""
        return list(range(1, len(self.known) + 1))

    def trained(self, node: int, model: bytes) -> bytes:
        """A party's reply: its new trees, or for FedXgbCyclic the whole model with
        them.
        """
        import xgboost

        data = self.known[node - 1]
        if not model:
            return self._packed(xgboost.train(self.settings, data, 1))
        booster = xgboost.Booster(
            self.settings, model_file=bytearray(self.unpacked(model))
        )
        n_rounds = booster.num_boosted_rounds()
        booster.update(data, n_rounds)
        if self.method != CYCLIC:
            booster = booster[n_rounds : n_rounds + 1]
        return self._packed(booster)

    def _packed(self, booster: Any) -> bytes:
        raw = bytes(booster.save_raw("json"))
        if self.method == CYCLIC:
            return raw
        return to_flower(raw, self.n_classes)

    def unpacked(self, model: bytes) -> bytes:
        """A model of the strategy, for XGBoost."""
        if self.method == CYCLIC:
            return model
        return from_flower(model, self.n_classes)

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        """Have the parties reply in the order of their numbers; only training is asked
        for.
        """
        replies = []
        for message in sorted(
            messages, key=lambda message: message.metadata.dst_node_id
        ):
            if message.metadata.message_type != MessageType.TRAIN:
                continue
            node = message.metadata.dst_node_id
            model = message.content.array_records["arrays"]["0"].numpy().tobytes()
            reply = self.trained(node, model)
            self.down += len(model)
            self.up += len(reply)
            metrics = MetricRecord({"num-examples": self.known[node - 1].num_row()})
            content = RecordDict(
                {
                    "arrays": ArrayRecord([np.frombuffer(reply, np.uint8)]),
                    "metrics": metrics,
                }
            )
            replies.append(Message(content, reply_to=message))
        return replies


def by_flower(parts: Parts, method: str, recipe: Recipe) -> tuple[Array, Sites]:
    """Margins of the pooled held-out samples by the model of Flower's strategy, and the
    parties.
    """
    import xgboost

    sites = Sites(parts, method, recipe)
    # messages name their sender
    TaskIdentity.run_id = 1
    TaskIdentity.node_id = 1
    TaskIdentity.task_id = 1
    kind: type[FedXgbBagging | FedXgbCyclic] = FedXgbCyclic
    if method == BAGGING:
        kind = FedXgbBagging
    with quiet():
        strategy = kind(fraction_evaluate=0.0)
        strategy.min_train_nodes = strategy.min_evaluate_nodes = (
            strategy.min_available_nodes
        ) = 1
        # the order of `boosted` in the place of a random one: who is last matters
        if isinstance(strategy, FedXgbCyclic):
            strategy.registered_nodes = {node: node for node in sites.get_node_ids()}
        result = strategy.start(
            sites,  # type: ignore[arg-type]  # has what a strategy calls of a grid
            ArrayRecord([np.zeros(0, np.uint8)]),
            num_rounds=recipe.rounds,
        )
    model = result.arrays["0"].numpy().tobytes()
    sites.down += len(model) * len(sites.known)  # it is of use where it is
    booster = xgboost.Booster(
        sites.settings, model_file=bytearray(sites.unpacked(model))
    )
    return booster.inplace_predict(
        parts.pooled.X_test.astype(np.float32), predict_type="margin"
    ), sites
