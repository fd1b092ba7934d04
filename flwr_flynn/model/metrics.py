"""Figures of a classifier: from confusion matrices, and with intervals of 95 % from
histograms of its probabilities.

A confusion matrix is an (L, L) int64 array of counts with entries [true, predicted].
For the histograms one class stands against the rest: one of the probabilities for the
class of its own samples, and one of all others. Both are sums over samples, which add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, logit

from flwr_flynn._types import Floats, Integers, Mask

Counts = Integers


def confusion(true: Integers, predicted: Integers, n_classes: int) -> Counts:
    """Confusion matrix of class indices, (n,) int64, from 0 to `n_classes` - 1."""
    cells = np.bincount(true * n_classes + predicted, minlength=n_classes**2)
    return cells.astype(np.int64, copy=False).reshape(n_classes, n_classes)


def accuracies(matrix: Counts) -> dict[str, float]:
    """Accuracy, balanced accuracy and macro-F1 of a confusion matrix of at least one
    sample.

    Balanced accuracy is the mean recall over the classes that occur; macro-F1 the mean
    of F1 = 2 correct / (occurrences + predictions) over the classes that occur or were
    predicted.
    """
    correct = np.diag(matrix)
    occurs = matrix.sum(axis=1)
    predicted = matrix.sum(axis=0)
    present = occurs > 0
    seen = occurs + predicted > 0
    return {
        "accuracy": float(correct.sum() / occurs.sum()),
        "balanced_accuracy": float(np.mean(correct[present] / occurs[present])),
        "macro_f1": float(np.mean(2 * correct[seen] / (occurs + predicted)[seen])),
    }


def mean_recall(correct: Integers, sizes: Integers) -> float:
    """Balanced accuracy from correct samples and sizes of the classes, (L,) both.

    It is 0 without samples.

    The same on every machine, and rounded so that ties do not depend on the order of
    the classes or on errors of division.
    """
    filled = sizes > 0
    recalls = (correct[filled] / sizes[filled]).tolist()
    if recalls:
        return round(math.fsum(recalls) / len(recalls), 12)
    return 0.0


def evaluation_figures(
    total: Counts, by_party: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """Metrics over the samples of all parties, and their spread over the parties, worst
    first, for JSON.

    `by_party` has for each party, by its name, the number of samples classified
    correctly and that of all, above 0; no party where only the sum is known.
    """
    parties: list[dict[str, Any]] = [
        {"name": name, "accuracy": right / n_examples, "examples": n_examples}
        for name, (right, n_examples) in by_party.items()
    ]
    parties.sort(key=lambda party: (party["accuracy"], party["name"]))
    worst = None
    best = None
    deviation = None
    if parties:
        worst = parties[0]
        best = parties[-1]
        deviation = float(np.std([party["accuracy"] for party in parties]))
    return {
        **accuracies(total),
        "examples": int(total.sum()),
        "parties": parties,
        "worst_party": worst,
        "best_party": best,
        "accuracy_std": deviation,
        "confusion": total.tolist(),
    }


MOST_CLASSES = 256  # classes of a model, at most, for which histograms are made

# Sums beside the histograms: samples, correct ones, and Brier score and log-loss with
# their squares; behind them the probability of each class.
N_SUMS = 6

# Unit of the sums of scores and losses, so that sums over parties are exact.
UNIT = 2.0**-20

# Upper bound of the log-loss of one sample, so that the squares of as many samples fit
# as a secure sum allows.
MAX_LOSS = 32.0

LARGEST_SUM = round(MAX_LOSS**2 / UNIT)  # bound of every sum, for one sample


# Edges of the levels: steps of 1/200, of 1/1000 below .08, where the probabilities of
# rare outcomes are, of 1/2000 below .03, and then twelve for each factor of two, and at
# last four, down to some 1e-6. Those above 1/2 are their mirror images.
_TAIL = [
    *(0.0003125 * 2.0 ** (-k / 4) for k in range(32, 0, -1)),
    *(0.005 * 2.0 ** (-k / 12) for k in range(48, 0, -1)),
    *(k / 2000 for k in range(10, 60)),
    *(k / 1000 for k in range(30, 80)),
]
EDGES: Floats = np.array(
    _TAIL + [k / 200 for k in range(16, 185)] + [1 - edge for edge in _TAIL[::-1]]
)
N_LEVELS = len(EDGES) + 1
# Middle of each level, (N_LEVELS,).
CENTRES: Floats = (np.append(EDGES, 1.0) + np.insert(EDGES, 0, 0.0)) / 2


def scored(
    probabilities: Floats, true: Counts, predicted: Counts
) -> tuple[Counts, Counts]:
    """Histograms, (2 L, N_LEVELS), and sums, (N_SUMS + L,), both int64, of samples with
    probabilities, (n, L).

    `true` and `predicted` are class indices, (n,). Row 2 c of the histograms is of the
    probabilities for class c of the samples of other classes, row 2 c + 1 of its own
    samples.
    """
    n_classes = probabilities.shape[1]
    levels = np.searchsorted(EDGES, probabilities, side="right")
    rows = 2 * np.arange(n_classes) + (true[:, None] == np.arange(n_classes))
    histograms = np.bincount(
        (rows * N_LEVELS + levels).ravel(), minlength=2 * n_classes * N_LEVELS
    )
    own = probabilities[np.arange(len(true)), true]
    brier = np.square(probabilities).sum(axis=1) - 2 * own + 1
    loss = -np.log(np.maximum(own, math.exp(-MAX_LOSS)))
    of_scores = [
        int(np.rint(score / UNIT).sum()) for score in (brier, brier**2, loss, loss**2)
    ]
    of_classes = np.rint(probabilities / UNIT).astype(np.int64).sum(axis=0)
    first = [len(true), int((predicted == true).sum()), *of_scores]
    sums = np.array([*first, *of_classes], np.int64)
    return histograms.astype(np.int64, copy=False).reshape(-1, N_LEVELS), sums


def above_floor(histograms: Counts, sums: Counts, least: int) -> tuple[Counts, Counts]:
    """Histograms, (2 G L, N_LEVELS), and sums, (G, N_SUMS + L), as a party with this
    disclosure floor tells them, of all samples (G = 1) or of G subgroups.

    Left out are classes of which, or of whose rest, some samples are there, but fewer
    than `least`; and the sums of fewer. So few must not follow from the figures of all
    either: the smallest other subgroups are left out with them, until there are enough.
    With a floor of 1 nothing is left out.
    """
    tables = histograms.reshape(len(sums), -1, N_LEVELS)
    sizes = tables.sum(axis=2).reshape(len(tables), -1, 2)
    is_shown = np.stack(
        [_shown_groups(sizes[:, c], least) for c in range(sizes.shape[1])], axis=1
    )
    shown_tables = tables * np.repeat(is_shown, 2, axis=1)[:, :, None]
    shown_sums = sums * _shown_groups(sums[:, :1], least)[:, None]
    return shown_tables.reshape(histograms.shape), shown_sums


def _shown_groups(sizes: Counts, least: int) -> Mask:
    """Mask of the subgroups whose figures may leave the party, (n,).

    `sizes`, (n, 1 or 2), are the samples of each subgroup, by class and rest where
    there are two.
    """
    is_shown: Mask = ((sizes == 0) | (sizes >= least)).all(axis=1)
    for group in np.argsort(sizes.sum(axis=1), kind="stable"):
        hidden = sizes[~is_shown].sum(axis=0)
        if ((hidden == 0) | (hidden >= least)).all():
            break
        is_shown[group] &= not sizes[group].any()
    return is_shown


Figure = list[float] | None

_Z = 1.959963984540054  # of the standard normal distribution
_THRESHOLDS = (0.05, *(k / 10 for k in range(1, 10)), 0.95)
# Group of each level in the reliability curve; groups are of equal width.
_GROUPS = np.minimum((CENTRES * 10).astype(np.int64), 9)
_MOST_POINTS = 64  # of a ROC curve
_MOST_STEPS = 100  # of Newton's method
_MOST_HALVES = 20  # of a step


def overall(histograms: Counts, sums: Counts, event: int | None = 1) -> dict[str, Any]:
    """Figures over all classes, from histograms, (2 L, N_LEVELS), and sums, (N_SUMS,).

    Of two classes discrimination and calibration are those of the `event`'s index; of
    more they are means over the classes.
    """
    curves = _Curves(histograms)
    n = int(sums[0])
    correct = int(sums[1])
    scale = UNIT
    if len(histograms) == 4:
        # The Brier score of two classes is by custom that of one of them.
        scale = UNIT / 2
    else:
        event = None
    return {
        "examples": n,
        "accuracy": share(correct, n),
        "auroc": _over_classes(curves.auroc, event),
        "auprc": _over_classes(curves.auprc, event),
        "brier": _mean(n, int(sums[2]), int(sums[3]), scale),
        "log_loss": _mean(n, int(sums[4]), int(sums[5]), UNIT),
        "calibration_error": _over_classes(curves.calibration_error, event),
        "calibration_slope": _over_classes(curves.fitted(1), event),
        "calibration_intercept": _over_classes(curves.fitted(0), event),
    }


def event_figures(
    histograms: Counts, sums: Counts, event: int | None
) -> dict[str, Any]:
    return {"rows": int(sums[0]), "auroc": overall(histograms, sums, event)["auroc"]}


def mcnemar(b: int, c: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(b, b + c).pvalue) if b + c else 1.0


def by_class(histograms: Counts, labels: Sequence[object]) -> list[dict[str, Any]]:
    """Figures and curves of each class against the rest."""
    curves = _Curves(histograms)
    slopes = curves.fitted(1)
    intercepts = curves.fitted(0)
    return [
        {
            "label": label,
            "examples": int(curves.n_own[c]),
            "others": int(curves.n_rest[c]),
            "auroc": curves.auroc[c],
            "auprc": curves.auprc[c],
            "calibration": {
                "error": curves.calibration_error[c],
                "slope": slopes[c],
                "intercept": intercepts[c],
            },
            "thresholds": [curves.at(c, threshold) for threshold in _THRESHOLDS],
            "roc": curves.roc(c),
            "reliability": curves.reliability(c),
        }
        for c, label in enumerate(labels)
    ]


def resolution(histograms: Counts) -> float:
    """The largest error of an AUROC by the width of the levels: half the share of pairs
    within one level.
    """
    own = histograms[1::2]
    rest = histograms[::2]
    pairs = own.sum(axis=1) * rest.sum(axis=1).astype(np.float64)
    within = (own * rest.astype(np.float64)).sum(axis=1)
    return float((within[pairs > 0] / pairs[pairs > 0] / 2).max(initial=0.0))


def share(part: float, n: float) -> Figure:
    """A share of n samples, with Wilson's interval."""
    if n <= 0:
        return None
    # Of more than 2**53 samples the share may be beyond by rounding.
    p = min(max(part / n, 0.0), 1.0)
    z2 = _Z**2 / n
    middle = (p + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n)) / (1 + z2)
    return [p, min(max(middle - half, 0.0), p), max(min(middle + half, 1.0), p)]


def _mean(n: int, total: int, squares: int, scale: float) -> Figure:
    """A mean of n values from their sum and that of their squares, both in units of
    `UNIT`, times scale / UNIT.
    """
    if n <= 1:  # one value has no spread
        return None
    mean = total / n
    variance = max(squares * UNIT / n - (mean * UNIT) ** 2, 0.0) / UNIT**2
    factor = 1.0
    if mean:
        factor = math.exp(min(_Z * math.sqrt(variance / (n - 1)) / mean, 50.0))
    # The interval is that of the logarithm, as losses are skewed.
    return [mean * scale, mean * scale / factor, mean * scale * factor]


def _over_classes(figures: Sequence[Figure], event: int | None) -> Figure:
    """The figure of the event, or the mean over the classes that have one."""
    if event is not None:
        return figures[event]
    defined = [figure for figure in figures if figure is not None]
    if not defined:
        return None
    return [math.fsum(ends) / len(defined) for ends in zip(*defined, strict=True)]


class _Curves:
    """Histograms of each class against the rest, (L, N_LEVELS) both."""

    def __init__(self, histograms: Counts) -> None:
        self.own = histograms[1::2].astype(np.float64)
        self.rest = histograms[::2].astype(np.float64)
        self.n_own = self.own.sum(axis=1)
        self.n_rest = self.rest.sum(axis=1)
        self.is_defined = (self.n_own > 0) & (self.n_rest > 0)

    @cached_property
    def auroc(self) -> list[Figure]:
        """Probability that a sample of the class gets more than one of the rest.

        A tie counts half.
        """
        below = np.cumsum(self.rest, axis=1) - self.rest / 2
        pairs = np.where(self.is_defined, self.n_own * self.n_rest, 1.0)
        area = (self.own * below).sum(axis=1) / pairs
        low, high = _area_interval(area, self.n_own, self.n_rest)
        return self._figures(area, low, high)

    @cached_property
    def auprc(self) -> list[Figure]:
        """Average precision: the mean of the precision at each sample of the class."""
        own = _from_here_on(self.own)
        flagged = _from_here_on(self.own + self.rest)
        hits = self.own * own / np.maximum(flagged, 1)
        area = hits.sum(axis=1) / np.maximum(self.n_own, 1)
        figures: list[Figure] = [None] * len(area)
        for c in np.flatnonzero(self.is_defined).tolist():
            n = float(self.n_own[c])
            figures[c] = share(area[c] * n, n)
        return figures

    @cached_property
    def calibration_error(self) -> list[Figure]:
        """Mean distance between predicted and observed shares, over ten groups of equal
        width.
        """
        own, n, predicted = self._groups
        total = np.maximum(n.sum(axis=1), 1)
        error = np.abs(own - predicted).sum(axis=1) / total
        # The variance to expect counts where few samples are all of one class.
        expected = predicted * (1 - predicted / np.maximum(n, 1))
        variance = np.maximum(own * (1 - own / np.maximum(n, 1)), expected)
        half = _Z * np.sqrt(variance.sum(axis=1)) / total
        # The mean distance by chance, where the error is 0.
        most = math.sqrt(2 / math.pi) * np.sqrt(variance).sum(axis=1) / total
        return self._figures(error, np.maximum(error - most - half, 0.0), error + half)

    def fitted(self, index: int) -> list[Figure]:
        """Slope (1) of a logistic regression of the class on the log odds, or intercept
        (0).

        The intercept is that of a regression with a slope of 1.
        """
        y = self.own
        n = self.own + self.rest
        log_odds = logit(CENTRES)
        design = np.stack([np.ones(N_LEVELS), log_odds])[: index + 1]
        is_solvable = self.is_defined
        if index == 1:  # there is no slope where the samples do not overlap
            is_solvable = _is_above(self.own, self.rest)
            is_solvable &= _is_above(self.rest, self.own)
        # The coefficients beyond an intercept of 0 and a slope of 1.
        at = np.zeros((len(n), len(design)))
        for _ in range(_MOST_STEPS):
            p = expit(log_odds + at @ design)
            hessian = (design * (n * p * (1 - p))[:, None]) @ design.T
            inverse = np.linalg.pinv(hessian, hermitian=True)
            step = (inverse @ (design @ (y - n * p)[..., None]))[..., 0]
            is_done = np.abs(step).sum(axis=1) < 1e-6
            if (is_done | ~is_solvable).all():
                break
            step[~is_solvable] = 0.0
            # Newton's method may go beyond the minimum: a step is halved as long as it
            # makes the loss larger, but for rounding.
            most = self._loss(log_odds + at @ design) * (1 + 1e-12)
            for _ in range(_MOST_HALVES):
                is_beyond = self._loss(log_odds + (at + step) @ design) > most
                if not is_beyond.any():
                    break
                step[is_beyond] /= 2
            at += step
        variance = inverse[:, index, index]
        if index == 0:  # right whatever the slope is
            variance = (y * (1 - p) ** 2 + (n - y) * p**2).sum(axis=1) * variance**2
        value = at[:, index] + index
        half = _Z * np.sqrt(variance)
        is_solved = is_solvable & is_done & (half < 1e3)
        return self._figures(value, value - half, value + half, is_solved)

    def _loss(self, log_odds: Floats) -> Floats:
        """Log loss of each class, (L,), by the log odds of each level."""
        hits = self.own * log_expit(log_odds)
        return np.asarray(-(hits + self.rest * log_expit(-log_odds)).sum(axis=1))

    def at(self, c: int, threshold: float) -> dict[str, Any]:
        """Figures of the rule that takes class c from this probability on."""
        first = int(np.searchsorted(EDGES, threshold, side="right"))
        hit = self.own[c, first:].sum()
        false_alarm = self.rest[c, first:].sum()
        missed = self.n_own[c] - hit
        passed = self.n_rest[c] - false_alarm
        return {
            "threshold": threshold,
            "sensitivity": share(hit, self.n_own[c]),
            "specificity": share(passed, self.n_rest[c]),
            "ppv": share(hit, hit + false_alarm),
            "npv": share(passed, missed + passed),
        }

    def roc(self, c: int) -> list[list[float]]:
        """Points (false, true positive rate), from (0, 0) to (1, 1)."""
        if not self.is_defined[c]:
            return []
        rates = [
            np.append(0.0, np.cumsum(samples[c, ::-1]) / samples[c].sum())
            for samples in (self.rest, self.own)
        ]
        points = np.unique(np.round(rates, 5).T, axis=0)
        chosen = np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int)
        roc: list[list[float]] = points[np.unique(chosen)].tolist()
        return roc

    def reliability(self, c: int) -> list[dict[str, Any]]:
        """Mean prediction and observed share of the groups that have samples."""
        own, n, predicted = (sums[c] for sums in self._groups)
        return [
            {
                "predicted": float(predicted[group] / n[group]),
                "observed": share(own[group], n[group]),
                "examples": int(n[group]),
            }
            for group in np.flatnonzero(n)
        ]

    @cached_property
    def _groups(self) -> tuple[Floats, Floats, Floats]:
        """Samples of the class, all samples and the sum of their predictions in ten
        groups of equal width, (L, 10) each.
        """
        is_in_group = _GROUPS[:, None] == np.arange(10)
        both = self.own + self.rest
        return self.own @ is_in_group, both @ is_in_group, both * CENTRES @ is_in_group

    def _figures(
        self,
        value: Floats,
        low: Floats,
        high: Floats,
        is_solved: Mask | bool = True,
    ) -> list[Figure]:
        figures: list[Figure] = [None] * len(value)
        for c in np.flatnonzero(self.is_defined & is_solved).tolist():
            figures[c] = [float(value[c]), float(low[c]), float(high[c])]
        return figures


def _from_here_on(samples: Floats) -> Floats:
    """Sums of each level and those above it, of samples by class and level."""
    return np.cumsum(samples[:, ::-1], axis=1)[:, ::-1]


def _is_above(samples: Floats, others: Floats) -> Mask:
    """True for a class if one of its samples is in a higher level than one of others."""
    below = np.cumsum(others, axis=1) - others
    is_above: Mask = (samples * below).sum(axis=1) > 0
    return is_above


def _area_interval(
    area: Floats, n_own: Floats, n_rest: Floats
) -> tuple[Floats, Floats]:
    """Ends of the score interval of an AUROC."""
    pairs = np.maximum(n_own * n_rest, 1)
    most = (n_own + n_rest) / 2 - 1

    def is_within(other: Floats) -> Mask:
        spread = (
            other
            * (1 - other)
            * (1 + most * ((1 - other) / (2 - other) + other / (1 + other)))
            / pairs
        )
        return np.asarray(np.abs(area - other) <= _Z * np.sqrt(np.maximum(spread, 0.0)))

    # The low end comes first, then the high one.
    inside = np.stack([area, area])
    outside = np.repeat([[0.0], [1.0]], len(area), axis=1)
    for _ in range(60):
        middle = (inside + outside) / 2
        ok = is_within(middle)
        inside = np.where(ok, middle, inside)
        outside = np.where(ok, outside, middle)
    return inside[0], inside[1]
