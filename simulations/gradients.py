"""Baselines in a federation: models trained by gradients, through Flower's FedAvg and
FedProx; SCAFFOLD, own heads.

Softmax regression and a perceptron with one hidden layer of rectified units, in NumPy,
trained by plain stochastic gradient descent on the mean cross-entropy. A party's part
of FedProx is the gradient of mu / 2 |w - w_global|^2 on top (Li et al., "Federated
optimization in heterogeneous networks", MLSys 2020). The server's part is Flower's.

SCAFFOLD (Karimireddy et al., ICML 2020) is here with option II for the control
variates, a server step of 1.0, and all parties in every round: the server's variate is
then the mean of the parties', so that Flower's FedAvg of weights and variates together
is its server. Means are by samples, as in FedAvg. Own heads are FedPer (Arivazhagan et
al., "Federated learning with personalization layers", 2019): only the hidden layer is
averaged, the last stays at its party.

>>> X = np.array([[0.0, 1.0], [1.0, 0.0]] * 8, np.float32)
>>> y = np.array([0, 1] * 8)
>>> weights = initial_weights(2, 2, hidden=0, seed=0)
>>> trained = descend(weights, X, y, Recipe(rate=1.0, epochs=20, batch=4), np.random.default_rng(0))
>>> logits(trained, X[:2]).argmax(axis=1)
array([0, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, FedProx

from flwr_flynn.federated.traffic import Traffic
from simulations.results import Array
from simulations.runner import rounds
from simulations.workers import Workers

MODELS = {"LR": 0, "MLP": 64}
"""Softmax regression and the perceptron, by their hidden units."""


@dataclass(frozen=True)
class Recipe:
    """Training of a party in one round.

    Parameters
    ----------
    rate : float
        Learning rate.
    epochs : int
        Passes over its samples.
    batch : int
        Samples to a step.
    mu : float
        Weight of FedProx's proximal term; with 0.0 the strategy is FedAvg.
    """

    rate: float
    epochs: int
    batch: int = 32
    mu: float = 0.0

    def steps(self, n_points: int) -> int:
        """Steps in a round of a party with so many samples."""
        return self.epochs * -(-n_points // self.batch)


def initial_weights(
    n_features: int, n_classes: int, hidden: int, seed: int
) -> NDArrays:
    """Weights and biases, float32, layer by layer: zeros for softmax regression, He's
    normal ones for a hidden layer.

    Parameters
    ----------
    n_features, n_classes : int
    hidden : int
        Units; 0 for softmax regression.
    seed : int
    """
    if not hidden:
        return [
            np.zeros((n_features, n_classes), np.float32),
            np.zeros(n_classes, np.float32),
        ]
    generator = np.random.default_rng([seed, 7])
    first = generator.normal(0, np.sqrt(2 / n_features), (n_features, hidden)).astype(
        np.float32
    )
    second = generator.normal(0, np.sqrt(2 / hidden), (hidden, n_classes)).astype(
        np.float32
    )
    return [
        first,
        np.zeros(hidden, np.float32),
        second,
        np.zeros(n_classes, np.float32),
    ]


def logits(weights: NDArrays, X: Array) -> Array:
    """(n, L) scores of samples."""
    if len(weights) == 4:
        X = np.maximum(X @ weights[0] + weights[1], 0)
    scores: Array = X @ weights[-2] + weights[-1]
    return scores


def gradient(weights: NDArrays, X: Array, y: Array) -> NDArrays:
    """Gradient of the mean cross-entropy of samples with classes `y`, in the shapes of
    `weights`.
    """
    if len(weights) == 4:
        inputs = np.maximum(X @ weights[0] + weights[1], 0)
    else:
        inputs = X
    scores = inputs @ weights[-2] + weights[-1]
    scores -= scores.max(axis=1, keepdims=True)
    error = np.exp(scores)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    last = [inputs.T @ error, error.sum(axis=0)]
    if len(weights) == 2:
        return last
    back = (error @ weights[2].T) * (inputs > 0)
    return [X.T @ back, back.sum(axis=0), *last]


def descend(
    weights: NDArrays,
    X: Array,
    y: Array,
    recipe: Recipe,
    generator: np.random.Generator,
    correction: NDArrays | None = None,
) -> NDArrays:
    """Weights after some epochs over the samples, in an order drawn anew for each.

    Parameters
    ----------
    weights : list of arrays
        Weights to start from, and to stay near with FedProx. They are not changed.
    X : (n, d) float32 array
    y : (n,) int array
    recipe : Recipe
    generator : numpy.random.Generator
    correction : list of arrays, optional
        Added to every gradient.
    """
    start = weights
    weights = [array.copy() for array in weights]
    for _ in range(recipe.epochs):
        order = generator.permutation(len(y))
        for first in range(0, len(y), recipe.batch):
            rows = order[first : first + recipe.batch]
            slopes = gradient(weights, X[rows], y[rows])
            for array, slope, origin, extra in zip(
                weights, slopes, start, correction or repeat(None), strict=False
            ):
                if recipe.mu:
                    slope += recipe.mu * (array - origin)
                if extra is not None:
                    slope += extra
                array -= np.float32(recipe.rate) * slope
    return weights


class GradientClient(NumPyClient):
    """A party that trains the model it gets on its own samples.

    Parameters
    ----------
    X : (n, d) float32 array
    y : (n,) int array
        Class codes. n may be 0: the model then goes back as it came, with no weight.
    recipe : Recipe
        Its `mu` comes from the server, as Flower's FedProx has it.
    seed : sequence of int
        Seed of the orders of its samples, together with the round.
    """

    def __init__(self, X: Array, y: Array, recipe: Recipe, seed: Sequence[int]) -> None:
        self.X = X
        self.y = y
        self.recipe = recipe
        self.seed = tuple(seed)

    keeps = False
    """True if the party keeps state from round to round."""

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train for one round."""
        recipe = replace(self.recipe, mu=float(config.get("proximal_mu", 0.0)))
        generator = np.random.default_rng([*self.seed, int(config["round"])])
        # a rate that is too large ends in nonsense, and is not chosen for it
        with np.errstate(all="ignore"):
            return self.train(parameters, recipe, generator), len(self.y), {}

    def train(
        self, arrays: NDArrays, recipe: Recipe, generator: np.random.Generator
    ) -> NDArrays:
        """Arrays that the party sends, from those that it got."""
        return descend(arrays, self.X, self.y, recipe, generator)

    @staticmethod
    def first(weights: NDArrays) -> NDArrays:
        """Arrays that the server sends in the first round."""
        return weights

    @staticmethod
    def weights(arrays: NDArrays, parties: Sequence[Any]) -> NDArrays:
        """The model after a round, from the means of what the parties sent."""
        return arrays


class ScaffoldClient(GradientClient):
    """A party that corrects its gradients by how they differ from those of all parties;
    see the module.
    """

    keeps = True
    own: NDArrays | None = None

    def train(
        self, arrays: NDArrays, recipe: Recipe, generator: np.random.Generator
    ) -> NDArrays:
        start = arrays[: len(arrays) // 2]
        common = arrays[len(arrays) // 2 :]
        own = self.own or [np.zeros_like(array) for array in start]
        correction = [c - c_own for c, c_own in zip(common, own, strict=True)]
        end = descend(start, self.X, self.y, recipe, generator, correction)
        if len(self.y):
            scale = np.float32(1 / (recipe.steps(len(self.y)) * recipe.rate))
            own = [
                scale * (x - y) - c
                for x, y, c in zip(start, end, correction, strict=True)
            ]
        self.own = own
        return [*end, *own]

    @staticmethod
    def first(weights: NDArrays) -> NDArrays:
        return [*weights, *(np.zeros_like(array) for array in weights)]

    @staticmethod
    def weights(arrays: NDArrays, parties: Sequence[Any]) -> NDArrays:
        return arrays[: len(arrays) // 2]


class HeadClient(GradientClient):
    """A party that keeps the last layer to itself; of the perceptron only."""

    keeps = True
    head: NDArrays

    def train(
        self, arrays: NDArrays, recipe: Recipe, generator: np.random.Generator
    ) -> NDArrays:
        trained = descend([*arrays, *self.head], self.X, self.y, recipe, generator)
        self.head = trained[-2:]
        return trained[:-2]

    @staticmethod
    def first(weights: NDArrays) -> NDArrays:
        return weights[:-2]

    @staticmethod
    def weights(arrays: NDArrays, parties: Sequence[Any]) -> NDArrays:
        """The common layer, and the last of all parties: (parties, hidden, L) and
        (parties, L).
        """
        return [
            *arrays,
            *map(np.stack, zip(*(party.head for party in parties), strict=True)),
        ]


def federate(
    parts: Sequence[tuple[Array, Array]],
    n_classes: int,
    hidden: int,
    recipe: Recipe,
    n_rounds: int,
    watch: Callable[[NDArrays], object],
    where: str | Workers = "process",
    seed: int = 0,
    kind: type[GradientClient] = GradientClient,
) -> tuple[NDArrays, Traffic]:
    """Train over parties by Flower's `FedAvg`, or by its `FedProx` if the recipe has a
    `mu`.

    Parameters
    ----------
    parts : sequence of (X, y)
        Samples of each party, float32, and their class codes.
    n_classes, hidden : int
    recipe : Recipe
    n_rounds : int
    watch : callable
        Called with the weights after each round.
    where
        As for `runner.run`; parties of a kind that keeps something run in this process.
    seed : int
    kind : type of the parties

    Returns
    -------
    weights : list of arrays
        As `kind.weights` has them.
    traffic : Traffic
        Bytes of all rounds, without the hand-out of the final model.
    """
    parties = [kind(X, y, recipe, (seed, party)) for party, (X, y) in enumerate(parts)]
    start = initial_weights(parts[0][0].shape[1], n_classes, hidden, seed)
    for party in parties:
        if isinstance(party, HeadClient):
            party.head = start[-2:]

    def evaluate(number: int, arrays: NDArrays, config: dict[str, Scalar]) -> None:
        watch(kind.weights(arrays, parties))

    common: dict[str, Any] = {
        "min_fit_clients": len(parties),
        "min_evaluate_clients": 0,
        "fraction_evaluate": 0.0,
        "min_available_clients": len(parties),
        "initial_parameters": ndarrays_to_parameters(kind.first(start)),
        "on_fit_config_fn": lambda number: {"round": number},
        "evaluate_fn": evaluate,
    }
    if recipe.mu:
        strategy: FedAvg = FedProx(proximal_mu=recipe.mu, **common)
    else:
        strategy = FedAvg(**common)
    place = where
    if kind.keeps:
        place = "process"
    parameters, traffic = rounds(strategy, parties, n_rounds, place)
    return kind.weights(parameters_to_ndarrays(parameters), parties), traffic
