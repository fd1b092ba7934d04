"""Calibration of a model: the share of its linear part, one temperature, and an
intercept for each class.

The parts of a model are chosen one by one, each by its own leave-one-out. Their mean is
too flat or too sharp, and gives a rare class a mean probability below its frequency; and
a linear part helps where an outcome is nearly linear, and harms where it is not. All is
mended by sums over samples that the model has not seen: leave-one-out scores of the
members, and scores of a linear part by the other fold. For each share and temperature
of `SETTINGS` the sums are log-losses, probabilities of each class and, of few
classes, products of probabilities: integers that add, so that a federation has those of
the pooled samples. So does a table of levels, of which prediction sets follow, see
`model.prediction_sets`.

Of these the ones with the lowest log-loss are taken. The intercepts bring the
mean probability of each class to its frequency, by one step of Newton's method on the
logarithms of the mean probabilities. Above `MOST_CLASSES` classes products are not
summed, and the step is shorter than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
from numba import njit

from flwr_flynn._types import Integers, Mask
from flwr_flynn._validation import finite_floats, freeze
from flwr_flynn.errors import DataError
from flwr_flynn.model.counts import ClassCounts, Tables
from flwr_flynn.model.metrics import Figures
from flwr_flynn.model.portable import exp, log, temper
from flwr_flynn.model.prediction_sets import (
    LARGEST_COUNT,
    N_LEVELS,
    Levels,
    as_levels,
    checked_levels,
    level_table,
    levels_of,
    most_levels,
    thresholds,
)
from flwr_flynn.model.prior import ClassWeight
from flwr_flynn.model.scoring import LOSS_UNIT, MAX_LOSS, Scores
from flwr_flynn.model.subsample import class_terms

RELATIVE_TEMPERATURES = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a linear part in the scores."""

_NEAR = RELATIVE_TEMPERATURES[2:-2]  # tried with a linear part: further ones never won
SETTINGS = (
    *((0.0, temperature) for temperature in RELATIVE_TEMPERATURES),
    *((share, temperature) for share in SHARES[1:] for temperature in _NEAR),
)
"""Pairs of share and temperature that are tried; without a linear part the first 9."""

LARGEST_INTERCEPT = 4.0
MOST_CLASSES = 10  # of which products of probabilities are summed
_UNCHANGED = SETTINGS.index((0.0, 1.0))
# Gains of log-loss in all, of a temperature and of a share: less may be chance. Scores
# of a linear part know a little of the samples, see `GramMatrix.scorings`.
_LEAST_GAIN = 1.0
_LEAST_SHARE_GAIN = 3.0
UNIT = 2.0**-20  # unit of the intercepts: rounded, they are the same on most machines


ScoredBatch = tuple[Scores, Scores | None, Integers]
"""Scores of some samples, (n, L), those of a linear part, and class indices, (n,)."""


@dataclass(frozen=True)
class Calibration:
    """Divisor of the scores of a model, and what is added to those of each class.

    Parameters
    ----------
    temperature : float
        One of `RELATIVE_TEMPERATURES`, with the share one of `SETTINGS`.
    intercepts : (L,) sequence of float
        From -4 to 4. Kept as a tuple.
    share : float, default=0.0
        Share of the linear part in the scores, one of `SHARES`.
    levels : tuple of L tuples of 98 int, default=()
        Samples of each class at each level for it, for prediction sets; () without.
    own_levels : tuple of L tuples of 98 int, default=()
        The same of the samples of one site, in its own copy of the model.

    Raises
    ------
    DataError
        A field is not as described.
    """

    temperature: float
    intercepts: tuple[float, ...]
    share: float = 0.0
    levels: Levels = ()
    own_levels: Levels = ()

    def __post_init__(self) -> None:
        pair = (self.share, self.temperature)
        if pair not in SETTINGS:
            raise DataError("calibration", "a pair of `SETTINGS`", str(pair)[:40])
        expected = f"finite numbers within {LARGEST_INTERCEPT}"
        values = finite_floats(
            "intercepts", self.intercepts, (None,), expected, DataError
        )
        if np.abs(values).max(initial=0) > LARGEST_INTERCEPT:
            raise DataError("intercepts", expected, "larger ones")
        freeze(
            self,
            intercepts=tuple(values.tolist()),
            levels=checked_levels("levels", self.levels, len(values)),
            own_levels=checked_levels("own_levels", self.own_levels, len(values)),
        )

    @property
    def integers(self) -> list[int]:
        """Index of share and temperature, the intercepts in units of `UNIT`, and the
        levels, if there are any, row by row. Those of a site stay there.
        """
        index = SETTINGS.index((self.share, self.temperature))
        intercepts = [round(value / UNIT) for value in self.intercepts]
        return [index, *intercepts, *chain.from_iterable(self.levels)]

    @classmethod
    def of_integers(cls, integers: Sequence[int], n_classes: int) -> Calibration:
        """The calibration with these integers, the inverse of `integers`."""
        index, *rest = integers
        intercepts = tuple(value * UNIT for value in rest[:n_classes])
        levels = as_levels(rest[n_classes:])
        if not 0 <= index < len(SETTINGS):
            raise DataError("calibration", f"an index below {len(SETTINGS)}", index)
        share, temperature = SETTINGS[index]
        return cls(temperature, intercepts, share, levels)

    @classmethod
    def unchanged(cls, n_classes: int) -> Calibration:
        """The one that changes no scores."""
        return cls(1.0, (0.0,) * n_classes)

    def facts(self) -> Figures:
        """Temperature, intercepts and share, for JSON."""
        facts = asdict(self)
        del facts["levels"], facts["own_levels"]
        return facts

    @property
    def without_levels(self) -> Calibration:
        """The same without tables: for other scores than those of the samples in them."""
        return replace(self, levels=(), own_levels=())

    def sets(self, scores: Scores, coverage: float) -> Mask:
        """Classes in the set of each sample, (n, L) bool, of calibrated scores.

        A `DataError` without a table of levels.
        """
        least = thresholds(self.levels, self.own_levels, coverage)
        is_in: Mask = levels_of(scores - np.array(self.intercepts)) >= least
        return is_in

    def applied(self, scores: Scores) -> Scores:
        """Calibrated scores, (n, L), of scores."""
        calibrated: Scores = scores / self.temperature + np.array(self.intercepts)
        return calibrated


def n_products(n_classes: int) -> int:
    """Pairs of different classes whose products of probabilities are summed."""
    if n_classes > MOST_CLASSES:
        return 0
    return n_classes * (n_classes - 1) // 2


def mixed(scores: Scores, linear: Scores | None, share: float) -> Scores:
    """Scores, (n, L), with those of a linear part, if there is one, at its share."""
    if linear is None or not share:
        return scores
    mean: Scores = (1 - share) * scores + share * linear
    return mean


def n_settings(has_part: bool) -> int:
    """Number of shares and temperatures that are tried, T."""
    if has_part:
        return len(SETTINGS)
    return len(RELATIVE_TEMPERATURES)


class CalibrationSums(Tables):
    """Sums over samples for each of T `SETTINGS`, in units of `LOSS_UNIT`.

    `tables` are the samples of each class, (1, L), and, with weights of the classes,
    log-losses, (T, 1), probabilities, (T, L), and products of the probabilities of
    every two different classes, (T, pairs), row by row of the upper triangle. The last
    one, (T, 98 L), counts the samples of each class at each level.
    """

    @classmethod
    def zeros(cls, n_classes: int, has_part: bool = False) -> CalibrationSums:
        """Sums of no samples."""
        widths = (1, n_classes, n_products(n_classes), most_levels(n_classes))
        n = n_settings(has_part)
        sums = [np.zeros((n, width), np.int64) for width in widths]
        return cls((np.zeros((1, n_classes), np.int64), *sums))

    @classmethod
    def of_scores(
        cls,
        batches: Iterable[ScoredBatch],
        counts: ClassCounts,
        class_weight: ClassWeight = None,
        has_part: bool = False,
    ) -> CalibrationSums:
        """Sums of batches of scores, (n, L), with all classes taken for equally
        frequent, those of a linear part, and class indices, (n,).

        The counts, of all parties, tell the prior of the posterior that is calibrated.
        """
        total = cls.zeros(counts.n_classes, has_part)
        samples, *sums, levels = total.tables
        prior, weights = class_terms(counts, class_weight)
        for scores, linear, true in batches:
            samples[0] += np.bincount(true, minlength=counts.n_classes)
            for share, rows in _by_share(len(sums[0])):
                at_share = mixed(scores, linear, share)
                temperatures = np.array([pair[1] for pair in SETTINGS[rows]])
                own = [table[rows] for table in sums]
                _add(at_share, true, temperatures, prior, weights, *own)
                for at_levels, temperature in zip(
                    levels[rows], temperatures, strict=True
                ):
                    if at_levels.size:
                        table = level_table(levels_of(at_share / temperature), true)
                        at_levels += table.ravel()
        return total

    def above_floor(self, least: int) -> CalibrationSums:
        """The sums with levels of classes alone of which there are so many samples."""
        *sums, levels = self.tables
        sizes = levels.reshape(len(levels), -1, N_LEVELS).sum(axis=2, keepdims=True)
        shown = levels * (sizes >= least).repeat(N_LEVELS, axis=2).reshape(levels.shape)
        return CalibrationSums((*sums, shown))

    def with_levels_of(self, other: CalibrationSums) -> CalibrationSums:
        """The sums with the levels of other samples in the place of their own."""
        return CalibrationSums((*self.tables[:-1], other.tables[-1]))

    def calibration(
        self, counts: ClassCounts, class_weight: ClassWeight = None
    ) -> Calibration | None:
        """The calibration that follows from the sums; None without samples."""
        n_left_out, losses, probabilities, _, levels = self.tables
        if not losses.any():
            return None
        best = self._best()
        share, temperature = SETTINGS[best]
        _, weights = class_terms(counts, class_weight)
        expected = n_left_out[0] * weights
        sums = probabilities[best] * LOSS_UNIT
        has_samples = (expected > 0) & (sums > 0)
        slopes = self.slopes(best)[np.ix_(has_samples, has_samples)]
        steps = _steps(expected[has_samples], sums[has_samples], slopes)
        intercepts = np.zeros(len(expected))
        intercepts[has_samples] = np.rint(steps / UNIT) * UNIT
        return Calibration(
            temperature,
            tuple(np.clip(intercepts, -LARGEST_INTERCEPT, LARGEST_INTERCEPT).tolist()),
            share,
            # A party may claim as many samples as it likes.
            as_levels(np.minimum(levels[best], LARGEST_COUNT)),
        )

    def _best(self) -> int:
        """Index of the share and temperature with the least log-loss; without a gain,
        of share 0 and of temperature 1.
        """
        losses = self.tables[1][:, 0] * LOSS_UNIT
        best = _UNCHANGED
        for share, rows in _by_share(len(losses)):
            own = rows.start + int(np.argmin(losses[rows]))
            unchanged = SETTINGS.index((share, 1.0))
            if losses[unchanged] - losses[own] < _LEAST_GAIN:
                own = unchanged
            if share == 0 or losses[best] - losses[own] >= _LEAST_SHARE_GAIN:
                best = own
        return best

    def slopes(self, setting: int) -> Scores:
        """Slopes of the summed probabilities by the intercepts, (L, L), at one of the
        shares and temperatures.

        Of many classes the products are not known, and are taken as 0.
        """
        _, _, probabilities, products, _ = self.tables
        n_classes = probabilities.shape[1]
        if not products.shape[1]:
            return np.diag(probabilities[setting] * LOSS_UNIT)
        square = np.zeros((n_classes, n_classes))
        square[np.triu_indices(n_classes, 1)] = products[setting] * LOSS_UNIT
        square += square.T
        return np.diag(square.sum(axis=1)) - square


def _by_share(n: int) -> Iterator[tuple[float, slice]]:
    """Each share among the first n of `SETTINGS`, with the places of its pairs."""
    start = 0
    for share, pairs in groupby(SETTINGS[:n], key=itemgetter(0)):
        end = start + len(list(pairs))
        yield share, slice(start, end)
        start = end


def _steps(expected: Scores, sums: Scores, slopes: Scores) -> Scores:
    """Intercepts of classes that have samples, by a step of Newton's method.

    The logarithms of the mean probabilities are compared with their mean, as a common
    intercept changes nothing. The ridge, of one sample, keeps the step small where few
    samples are uncertain.
    """
    ratios = np.log(expected / sums)
    gradient = sums * (ratios - sums @ ratios / sums.sum())
    steps: Scores = np.linalg.solve(slopes + np.eye(len(sums)), gradient)
    return steps


@njit(nogil=True, cache=True)
def _add(  # type: ignore[no-untyped-def]
    scores, true, temperatures, prior, weights, losses, sums, products
):
    """Add log-loss, probabilities and products of each sample to those of each
    temperature.

    Each is rounded to units first: sums over parties equal the pooled ones.
    """
    n_classes = scores.shape[1]
    shares = np.empty(n_classes)
    posterior = np.empty(n_classes)
    for p in range(scores.shape[0]):
        weight = weights[true[p]] / LOSS_UNIT
        for t in range(len(temperatures)):
            top = temper(scores[p], temperatures[t], prior, posterior)
            total = 0.0
            for label in range(n_classes):
                shares[label] = exp(posterior[label] - top)
                total += shares[label]
            loss = min(log(total) - (posterior[true[p]] - top), MAX_LOSS)
            losses[t, 0] += np.int64(np.rint(loss * weight))
            for label in range(n_classes):
                shares[label] /= total
                sums[t, label] += np.int64(np.rint(shares[label] * weight))
            if products.shape[1]:
                pair = 0
                for label in range(n_classes):
                    for other in range(label + 1, n_classes):
                        both = shares[label] * shares[other]
                        products[t, pair] += np.int64(np.rint(both * weight))
                        pair += 1
