"""The Gram matrix: what the responses of the rows say together, learned from sums in a few more exchanges.

Counts look at one bit at a time. The Gram matrix are the sums, over samples, of the products of the graded responses of every
two rows of a hash (`hashing.graded`), with the sums of the responses by class: a few million integers that add exactly,
as counts do, so they are those of the pooled samples however these are split. Ridge regression of the classes on the
responses follows from them (`model.ridge`), and its scores become part of the model (`model.gram_scoring`).

The hashes are those of two of the model's candidates, with half of the rows each and a quarter of these as winners: the
first with rank codes, and the first with scaled columns and neither codes nor waves; or the first of all, where none of
these is there.

Samples give the leave-one-out accuracy of the scores, which decides on their weight, and the temperature. The only
sample of its class is never right, as by the counts. The leverage of a sample is that of the mean of its class, which
follows from the sums, and that of its distance from the mean. Of the latter only the mean over all samples is known.
Each class of n_k samples gets the same, less a share of 1 / n_k**2: none for a single sample, which is the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit
from sklearn.utils import gen_batches

from flwr_flynn.errors import CountsError
from flwr_flynn.hashing.graded import LEVELS
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.gram_scoring import (
    BATCH,
    LARGEST_LEVERAGE,
    LARGEST_WEIGHT,
    UNIT,
    GramScoring,
    Table,
    logs_of_shares,
    responses,
    scored,
    share_of,
)
from flwr_flynn.model.leave_one_out import LOSS_UNIT, MAX_LOSS, TEMPERATURES, LeaveOneOutTables
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.portable import exp, log
from flwr_flynn.model.ridge import solve
from flwr_flynn.model.scoring import Scores
from flwr_flynn.model.subsample import N_LEFT_OUT, kept

LARGEST_PRODUCT = LEVELS**2
"""Largest product of two responses of a sample."""

_LEVERAGES = 2**10  # leverages are multiples of its inverse
_NEVER = -(2**40)  # bias of a class without samples


def gram_specs(specs: Sequence[HashSpec], n_rows: int) -> tuple[HashSpec, ...]:
    """The hashes of the Gram matrix of so many rows, one or two, from the candidates of a model."""
    coded = next((spec for spec in specs if spec.coding), None)
    scaled = next((spec for spec in specs if spec.scale is not None and not spec.n_waves), None)
    bases = [spec for spec in (coded, scaled) if spec is not None] or [specs[0]]
    return tuple(replace(each, hash_dim=n_rows // len(bases), hash_nnz=n_rows // len(bases) // 4) for each in bases)


@dataclass(frozen=True, eq=False)
class GramMatrix:
    """Sums of the products of responses of every two rows, of responses by class, (L, m), and of samples, (L,).

    All int64. `products` is the upper triangle of an (m, m) matrix, row by row, (m (m + 1) / 2,). The sums of disjoint
    sets of samples add.
    """

    products: Table
    sums: Table
    n_per_class: Table

    @classmethod
    def zeros(cls, n_rows: int, n_classes: int) -> GramMatrix:
        """Sums of no samples."""
        shapes = (n_rows * (n_rows + 1) // 2,), (n_classes, n_rows), (n_classes,)
        return cls(*(np.zeros(shape, np.int64) for shape in shapes))

    @classmethod
    def from_data(
        cls,
        specs: Sequence[HashSpec],
        X: Any,
        y: npt.NDArray[np.int64],
        n_classes: int,
        n_jobs: int | None = None,
        progress: Any = None,
    ) -> GramMatrix:
        """Sums of samples, (n, d), with class indices, (n,)."""
        n_rows = sum(spec.hash_dim for spec in specs)
        total, products = cls.zeros(n_rows, n_classes), np.zeros((n_rows, n_rows), np.int64)
        for rows in gen_batches(len(y), BATCH) if len(y) else ():
            # Whole numbers below 2**24, whatever the order in which BLAS adds them: float32 holds each exactly.
            z = responses(specs, X[rows], n_jobs).astype(np.float32)
            is_of_class = (y[rows] == np.arange(n_classes)[:, None]).astype(np.float32)
            products += (z.T @ z).astype(np.int64)
            total.sums[:] += (is_of_class @ z).astype(np.int64)
            total.n_per_class[:] += np.bincount(y[rows], minlength=n_classes)
            if progress is not None:
                progress(len(z))
        total.products[:] = products[np.triu_indices(n_rows)]
        return total

    @property
    def square(self) -> Table:
        """The (m, m) matrix of the products."""
        n_rows = self.sums.shape[1]
        square = np.zeros((n_rows, n_rows), np.int64)
        square[np.triu_indices(n_rows)] = self.products
        return square + np.triu(square, 1).T

    @property
    def _parts(self) -> tuple[Table, ...]:
        return self.products, self.sums, self.n_per_class

    def __add__(self, other: GramMatrix) -> GramMatrix:
        if self.sums.shape != other.sums.shape:
            raise CountsError("Gram matrix", f"shape {self.sums.shape} on both sides", other.sums.shape)
        return GramMatrix(*map(np.add, self._parts, other._parts))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GramMatrix):
            return NotImplemented
        return all(map(np.array_equal, self._parts, other._parts))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class GramFit:
    """Ridge regression of the classes: weights, (m, L) int32, and of each class bias, samples and mean leverage, (L,).

    Biases and samples are int64, leverages float64.
    """

    weights: npt.NDArray[np.int32]
    bias: Table
    n_per_class: Table
    leverages: Scores

    @classmethod
    def of(cls, sums: GramMatrix) -> GramFit:
        """The regression that the sums lead to; the same on every machine."""
        sizes = sums.n_per_class.tolist()
        n, by_class = max(sum(sizes), 1), sums.sums.astype(np.float64)
        totals = sums.sums.sum(axis=0)
        mean = totals / n
        products = sums.square - mean[:, None] * totals
        moments = np.ascontiguousarray((by_class - sums.n_per_class[:, None] * mean).T)
        variance = n - math.fsum(size * size for size in sizes) / n
        weights, leverage = solve(products, moments, variance, n)
        rounded = np.clip(np.rint(weights / UNIT), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int64)
        reached = (totals.astype(object) @ rounded.astype(object)).tolist()  # Python integers: beyond int64
        bias = [(round(1 / UNIT) * size - total) // n for size, total in zip(sizes, reached, strict=True)]
        leverages = _leverages(weights, by_class, mean, sizes, leverage)
        return cls(rounded.astype(np.int32), np.array(bias, np.int64), sums.n_per_class, leverages)

    @property
    def log_shares(self) -> Scores:
        """Logarithms of the shares of the classes, (L,) float64; infinity for a class without samples."""
        return logs_of_shares(self.n_per_class)

    def tables(
        self, specs: Sequence[HashSpec], X: Any, y: npt.NDArray[np.int64], n_jobs: int | None = None
    ) -> LeaveOneOutTables:
        """Tables of about leave-one-out for samples, (n, d), with class indices, (n,), at each of `TEMPERATURES`.

        `correct` is (T, L), `log_losses` (1, T).
        """
        temperatures, n_classes = np.array(TEMPERATURES), len(self.n_per_class)
        correct, losses = np.zeros((len(temperatures), n_classes), np.int64), np.zeros(len(temperatures), np.int64)
        log_shares = self.log_shares
        for rows, scores in scored(specs, self.weights, self.bias, X, n_jobs):
            own = self.leverages[y[rows]]
            scores[np.arange(len(scores)), y[rows]] -= own
            scores /= 1.0 - own[:, None]
            _add_trials(scores, y[rows], temperatures, log_shares, self.n_per_class == 1, correct, losses)
        return LeaveOneOutTables(correct, losses[None])

    def scoring(
        self,
        specs: Sequence[HashSpec],
        n_per_class: npt.NDArray[np.int64],
        tables: LeaveOneOutTables,
        accuracy: float | None,
    ) -> GramScoring | None:
        """The regression as part of a model, by the summed tables of samples, (L,) of each class.

        None without samples, and where all weights are 0.

        `accuracy` is the leave-one-out balanced accuracy of the model's best member; without it both sides weigh the
        same.
        """
        if not (n_per_class.any() and self.weights.any()):
            return None
        best = int(np.argmin(tables.log_losses[0]))
        temperature, own = TEMPERATURES[best], mean_recall(tables.correct[best], n_per_class)
        logs = [each if each < np.inf else 0.0 for each in self.log_shares.tolist()]
        bias = self.bias - np.array([round(temperature * each / UNIT) for each in logs], np.int64)
        bias[self.n_per_class == 0] = _NEVER
        share = share_of(own, accuracy)
        return GramScoring(tuple(specs), self.weights, bias, temperature, share, own, self.leverages)


def learn_gram(
    specs: Sequence[HashSpec],
    X: Any,
    y: npt.NDArray[np.int64],
    n_classes: int,
    accuracy: float | None,
    n_jobs: int | None = None,
) -> GramScoring | None:
    """Scores from the Gram matrix of samples in one place, (n, d), with class indices, (n,).

    Equal to what parties with these samples learn, by construction. None without samples that may judge it.
    """
    sums = GramMatrix.from_data(specs, X, y, n_classes, n_jobs)
    fit, left_out = GramFit.of(sums), kept(X, y, sums.n_per_class, N_LEFT_OUT)
    tables = fit.tables(specs, X[left_out], y[left_out], n_jobs)
    return fit.scoring(specs, np.bincount(y[left_out], minlength=n_classes), tables, accuracy)


def _leverages(weights: Scores, by_class: Scores, mean: Scores, sizes: Sequence[int], leverage: float) -> Scores:
    """Mean leverage of each class, (L,), from the weights, (m, L), and the mean of all; see the module."""
    means = [  # of the mean of each class: its distance from that of all, times weights that grew from that distance
        math.fsum(weights[:, label] * (by_class[label] / size - mean)) / size if size else 0.0
        for label, size in enumerate(sizes)
    ]
    between = math.fsum(size * each for size, each in zip(sizes, means, strict=True))
    shares = [1.0 - 1.0 / size**2 if size else 0.0 for size in sizes]
    spread = math.fsum(size * share for size, share in zip(sizes, shares, strict=True))
    within = max(leverage * sum(sizes) - between, 0.0) / spread if spread else 0.0
    found = [each + within * share for each, share in zip(means, shares, strict=True)]
    return np.array([math.floor(min(max(each, 0.0), LARGEST_LEVERAGE) * _LEVERAGES) / _LEVERAGES for each in found])


def memory_of_gram(n_rows: int, n_classes: int) -> int:
    """Estimate the memory of the Gram matrix and what becomes of them, in bytes, samples not included."""
    return 32 * n_rows**2 + 64 * n_rows * (n_classes + BATCH // 16) + 8 * BATCH * n_rows


@njit(nogil=True, cache=True)
def _add_trials(scores, true, temperatures, log_shares, alone, correct, losses):  # type: ignore[no-untyped-def]
    """Add each sample to those right, and its log-loss, at each temperature, all classes being equally frequent.

    One that is alone in its class is wrong, with the largest loss, at all of them.
    """
    n_classes = scores.shape[1]
    odds = np.empty(n_classes)
    for p in range(scores.shape[0]):
        for t in range(len(temperatures)):
            if alone[true[p]]:
                losses[t] += np.int64(np.rint(MAX_LOSS / LOSS_UNIT))
                continue
            best, highest = 0, -np.inf
            for label in range(n_classes):
                odds[label] = scores[p, label] / temperatures[t] - log_shares[label]
                if odds[label] > highest:
                    best, highest = label, odds[label]
            total = 0.0
            for label in range(n_classes):
                total += exp(odds[label] - highest)
            loss = min(log(total) - (odds[true[p]] - highest), MAX_LOSS)
            losses[t] += np.int64(np.rint(loss / LOSS_UNIT))
            correct[t, true[p]] += best == true[p]
