"""What FlyNN is compared with in a federation: models trained by gradients, through Flower's FedAvg and FedProx.

Softmax regression and a perceptron with one hidden layer of rectified units, in NumPy, trained by plain stochastic
gradient descent on the mean cross-entropy. A party's part of FedProx is the gradient of mu / 2 |w - w_global|^2 on top
(Li et al., "Federated optimization in heterogeneous networks", MLSys 2020). What the server does is Flower's.

>>> X = np.array([[0.0, 1.0], [1.0, 0.0]] * 8, np.float32)
>>> y = np.array([0, 1] * 8)
>>> weights = initial_weights(2, 2, hidden=0, seed=0)
>>> trained = descend(weights, X, y, Recipe(rate=1.0, epochs=20, batch=4), np.random.default_rng(0))
>>> logits(trained, X[:2]).argmax(axis=1)
array([0, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, FedProx

from flwr_flynn.federated.scaling_round import Traffic
from simulations.runner import rounds
from simulations.workers import Workers

Array = npt.NDArray[Any]

MODELS = {"LR": 0, "MLP": 64}
"""Softmax regression and the perceptron, by their hidden units."""


@dataclass(frozen=True)
class Recipe:
    """How a party trains in one round.

    Parameters
    ----------
    rate : float
        Of learning.
    epochs : int
        Times that it goes through its points.
    batch : int
        Points to a step.
    mu : float
        Weight of FedProx's proximal term; with 0.0 the strategy is FedAvg.
    """

    rate: float
    epochs: int
    batch: int = 32
    mu: float = 0.0

    def steps(self, n_points: int) -> int:
        """Steps in a round of a party with so many points."""
        return self.epochs * -(-n_points // self.batch)


def initial_weights(n_features: int, n_classes: int, hidden: int, seed: int) -> NDArrays:
    """Weights and biases, float32, layer by layer: zeros for softmax regression, He's normal ones for a hidden layer.

    Parameters
    ----------
    n_features, n_classes : int
    hidden : int
        Units; 0 for softmax regression.
    seed : int
    """
    if not hidden:
        return [np.zeros((n_features, n_classes), np.float32), np.zeros(n_classes, np.float32)]
    generator = np.random.default_rng([seed, 7])
    first = generator.normal(0, np.sqrt(2 / n_features), (n_features, hidden)).astype(np.float32)
    second = generator.normal(0, np.sqrt(2 / hidden), (hidden, n_classes)).astype(np.float32)
    return [first, np.zeros(hidden, np.float32), second, np.zeros(n_classes, np.float32)]


def logits(weights: NDArrays, X: Array) -> Array:
    """(n, L) scores of points."""
    if len(weights) == 4:
        X = np.maximum(X @ weights[0] + weights[1], 0)
    scores: Array = X @ weights[-2] + weights[-1]
    return scores


def gradient(weights: NDArrays, X: Array, y: Array) -> NDArrays:
    """Of the mean cross-entropy of points with classes `y`, in the shapes of `weights`."""
    inputs = np.maximum(X @ weights[0] + weights[1], 0) if len(weights) == 4 else X
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


def descend(weights: NDArrays, X: Array, y: Array, recipe: Recipe, generator: np.random.Generator) -> NDArrays:
    """Weights after some epochs over the points, in an order drawn anew for each.

    Parameters
    ----------
    weights : list of arrays
        To start from; for FedProx also what the new ones are to stay near. Left as they are.
    X : (n, d) float32 array
    y : (n,) int array
    recipe : Recipe
    generator : numpy.random.Generator
    """
    start, weights = weights, [array.copy() for array in weights]
    for _ in range(recipe.epochs):
        order = generator.permutation(len(y))
        for first in range(0, len(y), recipe.batch):
            rows = order[first : first + recipe.batch]
            for array, slope, origin in zip(weights, gradient(weights, X[rows], y[rows]), start, strict=True):
                if recipe.mu:
                    slope += recipe.mu * (array - origin)
                array -= np.float32(recipe.rate) * slope
    return weights


class GradientClient(NumPyClient):
    """A party that trains the model it gets on its own points.

    Parameters
    ----------
    X : (n, d) float32 array
    y : (n,) int array
        Class codes. n may be 0: the model then goes back as it came, with no weight.
    recipe : Recipe
        Its `mu` comes from the server, as Flower's FedProx has it.
    seed : sequence of int
        Of the orders of its points, with the round.
    """

    def __init__(self, X: Array, y: Array, recipe: Recipe, seed: Sequence[int]) -> None:
        self.X, self.y, self.recipe, self.seed = X, y, recipe, tuple(seed)

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train for one round."""
        recipe = Recipe(self.recipe.rate, self.recipe.epochs, self.recipe.batch, float(config.get("proximal_mu", 0.0)))
        generator = np.random.default_rng([*self.seed, int(config["round"])])
        with np.errstate(all="ignore"):  # a rate that is too large ends in nonsense, and is not chosen for it
            return descend(parameters, self.X, self.y, recipe, generator), len(self.y), {}


def federate(
    parts: Sequence[tuple[Array, Array]],
    n_classes: int,
    hidden: int,
    recipe: Recipe,
    n_rounds: int,
    watch: Callable[[NDArrays], object],
    where: str | Workers = "process",
    seed: int = 0,
) -> tuple[NDArrays, Traffic]:
    """Train over parties by Flower's `FedAvg`, or by its `FedProx` if the recipe has a `mu`.

    Parameters
    ----------
    parts : sequence of (X, y)
        Points of each party, float32, and their class codes.
    n_classes, hidden : int
    recipe : Recipe
    n_rounds : int
        At most.
    watch : callable
        Called with the weights after each round; one for which it gives True is the last.
    where
        As for `runner.run`.
    seed : int

    Returns
    -------
    weights : list of arrays
    traffic : Traffic
        Of all rounds; the final model still has to be handed out.
    """
    parties = [GradientClient(X, y, recipe, (seed, party)) for party, (X, y) in enumerate(parts)]
    enough = False

    def evaluate(number: int, arrays: NDArrays, config: dict[str, Scalar]) -> None:
        nonlocal enough
        enough = watch(arrays) is True

    common: dict[str, Any] = {
        "min_fit_clients": len(parties),
        "min_evaluate_clients": 0,
        "fraction_evaluate": 0.0,
        "min_available_clients": len(parties),
        "initial_parameters": ndarrays_to_parameters(initial_weights(parts[0][0].shape[1], n_classes, hidden, seed)),
        "on_fit_config_fn": lambda number: {"round": number},
        "evaluate_fn": evaluate,
    }
    strategy = FedProx(proximal_mu=recipe.mu, **common) if recipe.mu else FedAvg(**common)
    parameters, traffic = rounds(strategy, parties, n_rounds, where, until=lambda: enough)
    return parameters_to_ndarrays(parameters), traffic
