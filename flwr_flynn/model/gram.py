"""Gram matrix of graded responses: second-order statistics that add, and the ridge regression that follows from them.

Counts look at one bit at a time. A Gram matrix has the sums, over samples, of the products of the graded responses of
every two rows (`hashing.graded`), with the sums of the responses by class: a few million integers that add exactly, as
counts do, so they are those of the pooled samples however these are split. Ridge regression of the classes on the
responses follows from them (`model.ridge`), and its scores become part of the model (`model.gram_scoring`). Of neural
features this is known as analytic federated learning (He et al. 2025).

The hashes are those of two of the model's candidates, with half of the rows each and a quarter of these as winners: the
first with rank codes, and the first with scaled columns and neither codes nor waves; or the first of all, where none of
these is there.

Leave-one-out by the samples' own leverages decides on the ridge strength and the temperature. All classes count alike:
else a rare one would have no say in the strength. A sample that is alone in its class, or whose
leverage is above .9, counts as wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.graded import LEVELS
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.gram_scoring import BATCH, LARGEST_LEVERAGE, LARGEST_WEIGHT, UNIT, GramScoring, Table, responses
from flwr_flynn.model.metrics import mean_recall
from flwr_flynn.model.portable import exp, log
from flwr_flynn.model.ridge import MOST_DIRECTIONS, MOST_STRENGTHS, MOST_THREADS, solve
from flwr_flynn.model.scoring import TEMPERATURES, Scores
from flwr_flynn.model.selection import LOSS_UNIT, MAX_LOSS, N_LEFT_OUT, kept

LARGEST_PRODUCT = LEVELS**2
"""Largest product of two responses of a sample."""

GRAM_TEMPERATURES = tuple(each for each in TEMPERATURES if each <= 1.0)
"""Temperatures that leave-one-out chooses from: scores are about 1 for the class of a sample and 0 for the others."""

DIRECTION_UNIT = 2.0**-11
"""Entry of a direction of the integer 1."""

MEAN_UNIT = 2.0**-8
"""Mean response of the integer 1."""

_SCORED = 2**8  # samples that are scored at a time
_MOST_LEVERAGE = 0.9  # beyond, a sample counts as wrong
_NEVER = -(2**40)  # bias of a class without samples


def gram_specs(specs: Sequence[HashSpec], n_rows: int) -> tuple[HashSpec, ...]:
    """The hashes of a Gram matrix of so many rows, one or two, from the candidates of a model."""
    coded = next((spec for spec in specs if spec.coding), None)
    scaled = next((spec for spec in specs if spec.scale is not None and not spec.n_waves), None)
    bases = [spec for spec in (coded, scaled) if spec is not None] or [specs[0]]
    return tuple(replace(each, hash_dim=n_rows // len(bases), hash_nnz=n_rows // len(bases) // 4) for each in bases)


@dataclass(frozen=True, eq=False)
class GramMatrix(Tables):
    """Sums of the products of responses of every two rows, of responses by class, (L, m), and of samples, (L,).

    The products are the upper triangle of an (m, m) matrix, row by row, (m (m + 1) / 2,).
    """

    @classmethod
    def zeros(cls, n_rows: int, n_classes: int) -> GramMatrix:
        """Sums of no samples."""
        shapes = (n_rows * (n_rows + 1) // 2,), (n_classes, n_rows), (n_classes,)
        return cls(tuple(np.zeros(shape, np.int64) for shape in shapes))

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
        total = cls.zeros(n_rows, n_classes)
        for rows in batches(len(y), BATCH):
            # Integers below 2**24, whatever the order in which BLAS adds them: float32 holds each exactly. Their sums
            # pass through float64, which holds those of 10**13 samples.
            z = responses(specs, X[rows], n_jobs).astype(np.float32)
            is_of_class = (y[rows] == np.arange(n_classes)[:, None]).astype(np.float32)
            products = z.T @ z
            for row, at in _upper(n_rows):
                np.add(total.products[at], products[row, row:], out=total.products[at], casting="unsafe")
            total.sums[:] += (is_of_class @ z).astype(np.int64)
            total.n_per_class[:] += np.bincount(y[rows], minlength=n_classes)
            if progress is not None:
                progress(len(z))
        return total

    @property
    def square(self) -> Table:
        """The (m, m) matrix of the products."""
        n_rows = self.sums.shape[1]
        square = np.empty((n_rows, n_rows), np.int64)
        for row, at in _upper(n_rows):
            square[row, row:] = square[row:, row] = self.products[at]
        return square

    @property
    def products(self) -> Table:
        """Upper triangle of the products, (m (m + 1) / 2,)."""
        return self.tables[0]

    @property
    def sums(self) -> Table:
        """Sums of the responses by class, (L, m)."""
        return self.tables[1]

    @property
    def n_per_class(self) -> Table:
        """Samples of each class, (L,)."""
        return self.tables[2]


class LeverageModel(NamedTuple):
    """The leverage of a sample at S ridge strengths, from its responses, see `model.ridge`.

    The part along the directions is nearly exact. The part outside is q / (1 + q), as of any sample that is in the sums
    itself (Sherman & Morrison 1950), with q in proportion to the squared distance: below 1 however far a sample is out.
    """

    directions: npt.NDArray[np.int32]  # (m, r), in units of `DIRECTION_UNIT`
    mean: npt.NDArray[np.int32]  # (m,) mean responses of all samples, in units of `MEAN_UNIT`
    eigenvalues: Scores  # (r,) sums of the squares of all samples' coordinates on the directions
    residual: float  # sum of the squares of all samples' distances from the directions
    strengths: Scores  # (S,)
    residual_leverage: Scores  # (S,) for each unit of squared distance from the directions

    def of(self, z: Scores, n_samples: int) -> Scores:
        """Leverages of responses, (b, m), of some of so many samples: (b, S), from 1 / n."""
        # Integers below 2**53 until they are scaled: exact in any order of the sums.
        offset = self.mean @ self.directions.astype(np.float64)
        coordinates = (z @ self.directions.astype(np.float64) - offset * MEAN_UNIT) * DIRECTION_UNIT
        distances = ((z / MEAN_UNIT - self.mean) ** 2).sum(axis=1) * MEAN_UNIT**2
        found = np.empty((len(z), len(self.strengths)))
        mean = np.minimum(self.residual_leverage * (self.residual / n_samples), LARGEST_LEVERAGE)
        odds, least = self.residual_leverage / (1.0 - mean), 1.0 / n_samples  # odds of the mean: mean / (1 - mean)
        _add_up(coordinates * coordinates, distances, self.eigenvalues, self.strengths, odds, least, found)
        return found

    def mean_at(self, at: int, n_samples: int) -> float:
        """Mean leverage of all samples at one of the strengths."""
        along = math.fsum((self.eigenvalues / (self.eigenvalues + self.strengths[at])).tolist())
        return min((1.0 + along + self.residual * float(self.residual_leverage[at])) / n_samples, LARGEST_LEVERAGE)


@dataclass(frozen=True, eq=False)
class GramFit:
    """Ridge regression of the classes at S strengths: weights, (S, m, L) int32, biases, (S, L) int64, leverages.

    `n_per_class`, (L,) int64, are the samples in the sums.
    """

    weights: npt.NDArray[np.int32]
    bias: Table
    n_per_class: Table
    leverage: LeverageModel

    @classmethod
    def of(cls, matrix: GramMatrix, n_jobs: int | None = None, at: int | None = None) -> GramFit:
        """The regression that a Gram matrix leads to, or one strength of it; the same on every machine."""
        sizes = matrix.n_per_class.tolist()
        n, by_class = max(sum(sizes), 1), matrix.sums.astype(np.float64)
        totals = matrix.sums.sum(axis=0)
        mean = totals / n
        moments = np.ascontiguousarray((by_class - matrix.n_per_class[:, None] * mean).T)
        found = solve(matrix.square - mean[:, None] * totals, moments, n, n_jobs, at)
        rounded = np.clip(np.rint(found.weights / UNIT), -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int64)
        bias = []
        for each in rounded:
            reached = (totals.astype(object) @ each.astype(object)).tolist()  # Python integers: beyond int64
            bias.append([(round(1 / UNIT) * size - total) // n for size, total in zip(sizes, reached, strict=True)])
        parts = found.directions.T / DIRECTION_UNIT, mean / MEAN_UNIT
        directions, middle = (np.rint(each).astype(np.int32) for each in parts)
        leverage = LeverageModel(
            directions, middle, found.eigenvalues, found.residual, found.strengths, found.residual_leverage
        )
        return cls(rounded.astype(np.int32), np.array(bias, np.int64), matrix.n_per_class, leverage)

    @property
    def n_strengths(self) -> int:
        """Number of ridge strengths."""
        return len(self.weights)

    @property
    def log_shares(self) -> Scores:
        """Logarithms of the shares of the classes, (L,) float64; infinity for a class without samples."""
        n = max(int(self.n_per_class.sum()), 1)
        return np.array([log(size / n) if size else np.inf for size in self.n_per_class.tolist()])

    def scored(
        self, specs: Sequence[HashSpec], X: Any, n_jobs: int | None = None
    ) -> Iterator[tuple[slice, Scores, Scores]]:
        """Batches of samples with their scores, (b, S, L), and leverages, (b, S)."""
        n_strengths, m, n_classes = self.weights.shape
        weights = self.weights.transpose(1, 0, 2).reshape(m, -1).astype(np.float64)
        n_samples = max(int(self.n_per_class.sum()), 1)
        for rows in batches(X.shape[0], _SCORED):
            z = responses(specs, X[rows], n_jobs).astype(np.float64)
            scores = ((z @ weights).reshape(-1, n_strengths, n_classes) + self.bias) * UNIT
            yield rows, scores, self.leverage.of(z, n_samples)

    def tables(
        self, specs: Sequence[HashSpec], X: Any, y: npt.NDArray[np.int64], n_jobs: int | None = None
    ) -> tuple[Table, Table]:
        """Leave-one-out results of samples, (n, d), with class indices, (n,), at each strength and temperature.

        Returns
        -------
        tuple of (S, T, L) int64 arrays
            Samples of each class that are classified correctly, and their summed log-losses in units of `LOSS_UNIT`.
        """
        temperatures = np.array(GRAM_TEMPERATURES)
        correct, losses = np.zeros((2, self.n_strengths, len(temperatures), len(self.n_per_class)), np.int64)
        log_shares = self.log_shares
        for rows, scores, leverages in self.scored(specs, X, n_jobs):
            alone = self.n_per_class[y[rows]] == 1
            _add_left_out(scores, leverages, y[rows], alone, temperatures, log_shares, correct, losses)
        return correct, losses

    def scoring(
        self,
        specs: Sequence[HashSpec],
        n_per_class: npt.NDArray[np.int64],
        correct: Table,
        losses: Table,
        coverage: float = 1.0,
    ) -> GramScoring | None:
        """The regression as part of a model, by the summed tables of samples, (L,) of each class.

        None without samples, and where all weights are 0. The weight is half of `coverage`, the share of the counted
        samples that are in the Gram matrix.
        """
        filled = np.flatnonzero(n_per_class)
        if not (len(filled) and self.weights.any()):
            return None
        means = losses[:, :, filled] / n_per_class[filled]
        mean_losses = [[math.fsum(row) for row in table] for table in means.tolist()]
        at, best = min(np.ndindex(correct.shape[:2]), key=lambda index: mean_losses[index[0]][index[1]])
        own = mean_recall(correct[at, best], n_per_class)
        return self.scoring_at(at, specs, GRAM_TEMPERATURES[best], coverage / 2, own)

    def scoring_at(
        self, at: int, specs: Sequence[HashSpec], temperature: float, share: float, accuracy: float
    ) -> GramScoring:
        """The regression at one of the strengths, with the other figures of a `GramScoring` as they are given."""
        logs = [each if each < np.inf else 0.0 for each in self.log_shares.tolist()]
        bias = self.bias[at] - np.array([round(temperature * each / UNIT) for each in logs], np.int64)
        bias[self.n_per_class == 0] = _NEVER
        leverage = self.leverage.mean_at(at, int(self.n_per_class.sum()))
        return GramScoring(tuple(specs), self.weights[at], bias, temperature, share, accuracy, leverage)


@dataclass(frozen=True, eq=False)
class LearnedGram:
    """Sums of a Gram matrix, the scores that were chosen of them, and the index of their ridge strength."""

    sums: GramMatrix
    scoring: GramScoring
    at: int

    @classmethod
    def of(
        cls, specs: Sequence[HashSpec], X: Any, y: npt.NDArray[np.int64], n_classes: int, n_jobs: int | None = None
    ) -> LearnedGram | None:
        """Learn from samples in one place, (n, d), with class indices, (n,): equal to what parties with these learn.

        None without samples that may judge it.
        """
        matrix = GramMatrix.from_data(specs, X, y, n_classes, n_jobs)
        fit, left_out = GramFit.of(matrix, n_jobs), kept(X, y, matrix.n_per_class, N_LEFT_OUT)
        sizes = np.bincount(y[left_out], minlength=n_classes)
        tables = fit.tables(specs, X[left_out], y[left_out], n_jobs)
        if (scoring := fit.scoring(specs, sizes, *tables)) is None:
            return None
        return cls(matrix, scoring, [np.array_equal(each, scoring.weights) for each in fit.weights].index(True))

    def changed(self, sums: GramMatrix) -> LearnedGram | None:
        """Solve again of other sums, at the same strength, temperature and share; None without samples.

        The strength is the last one, where so few samples are left that it is not solved any more.
        """
        old, fit = self.scoring, GramFit.of(sums, at=self.at)
        if not fit.weights.any():
            return None
        return LearnedGram(sums, fit.scoring_at(0, old.specs, old.temperature, old.share, old.accuracy), self.at)


def _upper(n_rows: int) -> Iterator[tuple[int, slice]]:
    """Rows of a square matrix, each with its place in the upper triangle that is written row by row."""
    first = 0
    for row in range(n_rows):
        yield row, slice(first, first := first + n_rows - row)


def memory_of_gram(n_rows: int, n_classes: int) -> int:
    """Estimate the memory of a Gram matrix and what becomes of it, in bytes, samples not included."""
    columns = MOST_STRENGTHS * n_classes + 2 * min(MOST_DIRECTIONS, n_rows)
    return (
        (24 + 8 * MOST_THREADS) * n_rows**2
        + n_rows * (8 * BATCH + 32 * columns)
        + 8 * _SCORED * (3 * n_rows + 2 * columns)
    )


@njit(nogil=True, cache=True)
def _add_up(squares, distances, values, strengths, odds, least, out):  # type: ignore[no-untyped-def]
    """Leverages, (b, S), from squared coordinates, (b, r), and squared distances from the mean, (b,).

    `odds`, (S,), are those of the leverage for each unit of squared distance outside the directions.
    """
    for p in range(len(squares)):
        outside = distances[p]
        for j in range(len(values)):
            outside -= squares[p, j]
        for s in range(len(strengths)):
            q = max(outside, 0.0) * odds[s]
            total = least + q / (1.0 + q)
            for j in range(len(values)):
                total += squares[p, j] / (values[j] + strengths[s])
            out[p, s] = total


@njit(nogil=True, cache=True)
def _add_left_out(scores, leverages, true, alone, temperatures, log_shares, correct, losses):  # type: ignore[no-untyped-def]
    """Add each sample to those right, and its log-loss, at each strength and temperature, all classes alike frequent.

    One that is alone in its class, or of too large a leverage, is wrong, with the largest loss.
    """
    n_classes = scores.shape[2]
    odds = np.empty(n_classes)
    for p in range(scores.shape[0]):
        for s in range(scores.shape[1]):
            own = leverages[p, s]
            for t in range(len(temperatures)):
                if alone[p] or not own <= _MOST_LEVERAGE:
                    losses[s, t, true[p]] += np.int64(np.rint(MAX_LOSS / LOSS_UNIT))
                    continue
                best, highest = 0, -np.inf
                for label in range(n_classes):
                    score = scores[p, s, label] - (own if label == true[p] else 0.0)
                    odds[label] = score / (1.0 - own) / temperatures[t] - log_shares[label]
                    if odds[label] > highest:
                        best, highest = label, odds[label]
                total = 0.0
                for label in range(n_classes):
                    total += exp(odds[label] - highest)
                loss = min(log(total) - (odds[true[p]] - highest), MAX_LOSS)
                losses[s, t, true[p]] += np.int64(np.rint(loss / LOSS_UNIT))
                correct[s, t, true[p]] += best == true[p]
