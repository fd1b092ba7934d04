"""Federated averaging in a plain loop: what FlyNN's traffic is held against.

Softmax regression, or perceptrons with layers of rectified units, in NumPy: plain stochastic gradient descent on the
mean cross-entropy at each party, then the mean of the parties' weights in proportion to their points (McMahan et al.,
"Communication-efficient learning of deep networks from decentralized data", AISTATS 2017). All parties take part in
every round.

>>> X = np.eye(3, dtype=np.float32).repeat(4, axis=0)
>>> y = np.arange(3).repeat(4)
>>> parties = [(X[y == label], y[y == label]) for label in range(3)]
>>> models = rounds(parties, (3, 3), Recipe(rate=1.0), seed=0)
>>> weights = [next(models) for _ in range(9)][-1]
>>> bool((scores(weights, X).argmax(axis=1) == y).all())
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Weights = list[Array]
"""Weights and biases, float32, layer after layer."""


@dataclass(frozen=True)
class Recipe:
    """How a party trains in a round.

    Parameters
    ----------
    rate : float
        Of learning.
    epochs : int
        How often it goes through its points.
    batch : int
        Points to a step.
    """

    rate: float
    epochs: int = 1
    batch: int = 32


def initial(widths: Sequence[int], seed: int) -> Weights:
    """Weights to begin with: normal ones of variance 2 / inputs (He et al., 2015), and zeros in the last layer.

    Parameters
    ----------
    widths : sequence of int
        Columns, units of each hidden layer, classes.
    seed : int
    """
    generator = np.random.default_rng([seed, 1])
    weights: Weights = []
    for place, (n_in, n_out) in enumerate(pairwise(widths)):
        sd = np.sqrt(2 / n_in) if place < len(widths) - 2 else 0.0
        weights += [generator.normal(0, sd, (n_in, n_out)).astype(np.float32), np.zeros(n_out, np.float32)]
    return weights


def scores(weights: Weights, X: Array) -> Array:
    """(n, L) logits of points."""
    return _layers(weights, X)[-1]


def gradient(weights: Weights, X: Array, y: Array) -> Weights:
    """Gradient of the mean cross-entropy of points with classes `y`, array by array."""
    *inputs, logits = _layers(weights, X)
    error = np.exp(logits - logits.max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    slopes: Weights = []
    for layer in reversed(range(len(inputs))):
        slopes = [inputs[layer].T @ error, error.sum(axis=0), *slopes]
        if layer:
            error = (error @ weights[2 * layer].T) * (inputs[layer] > 0)
    return slopes


def _layers(weights: Weights, X: Array) -> list[Array]:
    """What goes into each layer, and the logits behind the last."""
    layers = [X]
    for place in range(0, len(weights), 2):
        out = layers[-1] @ weights[place] + weights[place + 1]
        layers.append(np.maximum(out, 0) if place < len(weights) - 2 else out)
    return layers


def trained(weights: Weights, X: Array, y: Array, recipe: Recipe, generator: np.random.Generator) -> Weights:
    """Weights after a round at one party, its points in a new order for each epoch. `weights` stay as they are."""
    weights = [array.copy() for array in weights]
    for _ in range(recipe.epochs):
        order = generator.permutation(len(y))
        for first in range(0, len(y), recipe.batch):
            rows = order[first : first + recipe.batch]
            for array, slope in zip(weights, gradient(weights, X[rows], y[rows]), strict=True):
                array -= np.float32(recipe.rate) * slope
    return weights


def rounds(
    parties: Sequence[tuple[Array, Array]], widths: Sequence[int], recipe: Recipe, seed: int
) -> Iterator[Weights]:
    """The averaged model after each round, without end.

    Parameters
    ----------
    parties : sequence of (X, y)
        float32 points and their class codes. A party without points has no weight.
    widths : sequence of int
        As for `initial`.
    recipe : Recipe
    seed : int
        Of the first weights, and of the order of points.
    """
    weights, total = initial(widths, seed), sum(len(y) for _, y in parties)
    for number in count():
        mean = [np.zeros(array.shape) for array in weights]
        for party, (X, y) in enumerate(parties):
            if len(y):
                generator = np.random.default_rng([seed, 2, number, party])
                with np.errstate(all="ignore"):  # a rate that is too high ends in nonsense, and is not chosen
                    theirs = trained(weights, X, y, recipe, generator)
                    for sums, array in zip(mean, theirs, strict=True):
                        sums += array * (len(y) / total)
        weights = [array.astype(np.float32) for array in mean]
        yield weights
