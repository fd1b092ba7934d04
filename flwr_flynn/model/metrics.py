"""Figures of a classifier: from confusion matrices, and with intervals of 95 % from
histograms of its probabilities.

A confusion matrix is an (L, L) int64 array of counts with entries [true, predicted].
For the histograms one class stands against the rest: one of the probabilities for the
class of its own samples, and one of all others. Both are sums over samples, which add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import bdtr, expit, logit

from flwr_flynn._types import Floats, Integers, Mask
from flwr_flynn.model.recalibration import Z, coefficient, local_shares

Counts = Integers

Figures = dict[str, Any]
"""Figures by their names, as JSON can hold them."""


def confusion(true: Integers, predicted: Integers, n_classes: int) -> Counts:
    """Confusion matrix of class indices, (n,) int64, from 0 to `n_classes` - 1."""
    return cross_table(true, predicted, (n_classes, n_classes))


def cross_table(rows: Integers, columns: Integers, shape: tuple[int, int]) -> Counts:
    """Samples in each cell of a table of this shape, from their rows and columns, (n,)
    each.
    """
    cells = np.bincount(rows * shape[1] + columns, minlength=math.prod(shape))
    return cells.astype(np.int64, copy=False).reshape(shape)


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
    seen = occurs + predicted > 0
    return {
        "accuracy": float(correct.sum() / occurs.sum()),
        "balanced_accuracy": mean_recall(correct, occurs),
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
) -> Figures:
    """Metrics over the samples of all parties, and their spread over the parties, worst
    first, for JSON.

    `by_party` has for each party, by its name, the number of samples classified
    correctly and that of all, above 0; no party where only the sum is known.
    """
    parties: list[Figures] = [
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
    than `least`, with the sums of their probabilities; and other sums of fewer. So few
    must not follow from the figures of all either: the smallest other subgroups are
    left out with them, until there are enough. With a floor of 1 nothing is left out.
    """
    tables = histograms.reshape(len(sums), -1, N_LEVELS)
    sizes = tables.sum(axis=2).reshape(len(tables), -1, 2)
    is_shown = np.stack(
        [_shown_groups(sizes[:, c], least) for c in range(sizes.shape[1])], axis=1
    )
    shown_tables = tables * np.repeat(is_shown, 2, axis=1)[:, :, None]
    shown_sums = sums * _shown_groups(sums[:, :1], least)[:, None]
    # Observed and expected samples of a class are of the same groups.
    shown_sums[:, N_SUMS:] = sums[:, N_SUMS:] * is_shown
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

THRESHOLDS = (0.05, *(k / 10 for k in range(1, 10)), 0.95)
GRID: Floats = np.arange(1, 200) / 200
"""Thresholds at which `by_class` counts the samples from there on."""

# Group of each level in the reliability curve; groups are of equal width.
_GROUPS = np.minimum((CENTRES * 10).astype(np.int64), 9)
_LOG_ODDS = logit(CENTRES)
_MOST_POINTS = 64  # of a ROC curve


def overall(histograms: Counts, sums: Counts, event: int | None = 1) -> Figures:
    """Figures over all classes, from histograms, (2 L, N_LEVELS), and sums,
    (N_SUMS + L,).

    Of two classes discrimination and calibration are those of the `event`'s index; of
    more they are means over the classes, and there is no ratio of observed to expected
    events.
    """
    scale = UNIT
    if len(histograms) != 4:
        event = None
    if event is not None:
        # The Brier score of two classes is by custom that of one of them.
        scale = UNIT / 2
    figures, ratio = _against_rest(histograms, sums, event)
    n, correct, brier, brier_squares, loss, loss_squares = map(int, sums[:N_SUMS])
    return {
        "examples": n,
        "accuracy": share(correct, n),
        "brier": _mean(n, brier, brier_squares, scale),
        "log_loss": _mean(n, loss, loss_squares, UNIT),
        **figures,
        "observed_expected": ratio,
    }


def event_figures(histograms: Counts, sums: Counts, event: int | None) -> Figures:
    """Figures of class `event` against the rest, or means over the classes, see
    `overall`.
    """
    events = None
    figures, ratio = _against_rest(histograms, sums, event)
    if event is not None and ratio is not None:
        events = int(histograms[2 * event + 1].sum())
    return {
        "rows": int(sums[0]),
        "events": events,
        "auroc": figures["auroc"],
        "observed_expected": ratio,
        "slope": figures["calibration_slope"],
        "intercept": figures["calibration_intercept"],
    }


def _against_rest(
    histograms: Counts, sums: Counts, event: int | None
) -> tuple[dict[str, Figure], Figure]:
    """Discrimination and calibration of class `event`, and its observed samples over
    the sum of its probabilities; or means over the classes.
    """
    ratio = None
    curves = _curves(histograms)
    if event is not None:
        curves = [curves[event]]
        n_own = curves[0].n_own
        expected = sums[N_SUMS + event] * UNIT
        ratio = observed_expected(n_own, n_own + curves[0].n_rest, expected)
    rows = [curve.figures() for curve in curves]
    return {name: _mean_figure(row[name] for row in rows) for name in rows[0]}, ratio


def of_level(histograms: Counts, sums: Counts, event: int | None) -> Figures:
    """Figures of a subgroup, see `overall`, and of an event the rates at thresholds."""
    figures = overall(histograms, sums, event)
    if event is not None:
        curve = _curves(histograms)[event]
        figures["thresholds"] = [curve.at(level) for level in THRESHOLDS]
    return figures


def by_class(histograms: Counts, labels: Sequence[object]) -> list[Figures]:
    """Figures and curves of each class against the rest.

    "flagged" has for each threshold of `GRID` the samples of the class and the others
    with a probability from there on.
    """
    return [
        {
            "label": label,
            "examples": int(curve.n_own),
            "others": int(curve.n_rest),
            **curve.figures(),
            "thresholds": [curve.at(threshold) for threshold in THRESHOLDS],
            "flagged": [[*curve.flagged(threshold)] for threshold in GRID],
            "roc": curve.roc(),
            "reliability": curve.reliability(),
            "smooth": curve.smooth(),
        }
        for curve, label in zip(_curves(histograms), labels, strict=True)
    ]


def share(part: float, n: float) -> Figure:
    """A share of n samples, with Wilson's interval."""
    if n <= 0:
        return None
    # Of more than 2**53 samples the share may be beyond by rounding.
    p = min(max(part / n, 0.0), 1.0)
    z2 = Z**2 / n
    middle = (p + z2 / 2) / (1 + z2)
    half = Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n)) / (1 + z2)
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
        factor = math.exp(min(Z * math.sqrt(variance / (n - 1)) / mean, 50.0))
    # The interval is that of the logarithm, as losses are skewed.
    return [mean * scale, mean * scale / factor, mean * scale * factor]


def _mean_figure(figures: Iterable[Figure]) -> Figure:
    """The mean over the classes that have a figure."""
    defined = [figure for figure in figures if figure is not None]
    if not defined:
        return None
    return [math.fsum(ends) / len(defined) for ends in zip(*defined, strict=True)]


def observed_expected(n_own: float, n: float, expected: float) -> Figure:
    """Ratio of the samples of a class, `n_own` of n, to the sum of its probabilities,
    with Wilson's interval of the former.
    """
    observed = share(n_own, n)
    if observed is None or expected <= 0:
        return None
    return [end * n / float(expected) for end in observed]


def rates(
    threshold: float, hit: float, false_alarm: float, n_own: float, n_rest: float
) -> Figures:
    """Figures of a rule that flags so many samples of a class and of the rest."""
    missed = n_own - hit
    passed = n_rest - false_alarm
    return {
        "threshold": threshold,
        "sensitivity": share(hit, n_own),
        "specificity": share(passed, n_rest),
        "ppv": share(hit, hit + false_alarm),
        "npv": share(passed, missed + passed),
    }


def net_benefit(threshold: float, hit: float, false_alarm: float, n: float) -> float:
    """Share of samples that a rule finds, less that of false alarms at their price.

    >>> net_benefit(0.2, 30, 20, 100)
    0.25
    """
    return (hit - false_alarm * threshold / (1 - threshold)) / n


def mcnemar(first: int, second: int) -> float:
    """Exact p-value of samples that only the first or only the second of two models gets
    right.

    >>> mcnemar(1, 6)
    0.125
    """
    return min(1.0, 2 * float(bdtr(min(first, second), first + second, 0.5)))


def _curves(histograms: Counts) -> list[_Curve]:
    return [_Curve(*pair) for pair in histograms.reshape(-1, 2, N_LEVELS)]


class _Curve:
    """Samples of all other classes and of one class by level, (N_LEVELS,) both."""

    def __init__(self, rest: Counts, own: Counts) -> None:
        self.own = own.astype(np.float64)
        self.rest = rest.astype(np.float64)
        self.n_own = float(self.own.sum())
        self.n_rest = float(self.rest.sum())
        # Samples of each level and those above it.
        self.own_from = np.cumsum(self.own[::-1])[::-1]
        self.rest_from = np.cumsum(self.rest[::-1])[::-1]
        self.is_defined = self.n_own > 0 and self.n_rest > 0

    def figures(self) -> dict[str, Figure]:
        """Discrimination and calibration, by their names."""
        return {
            "auroc": self.auroc(),
            "auprc": self.auprc(),
            "calibration_error": self.error(),
            "calibration_slope": self.fitted(1),
            "calibration_intercept": self.fitted(0),
        }

    def auroc(self) -> Figure:
        """Probability that a sample of the class gets more than one of the rest.

        A tie counts half. The interval is that of the log odds by DeLong's variance, or
        Wilson's, of the samples of the smaller class, where all are in order, or none.
        """
        if not self.is_defined:
            return None
        # Shares of the rest below each level, and of the class above it.
        below = (self.n_rest - self.rest_from + self.rest / 2) / self.n_rest
        above = (self.own_from - self.own / 2) / self.n_own
        area = float(self.own @ below) / self.n_own
        variance = 0.0
        for samples, shares in ((self.own, below), (self.rest, above)):
            n = samples.sum()
            variance += samples @ (shares - area) ** 2 / n / max(n - 1, 1)
        if variance <= 0:
            fewest = min(self.n_own, self.n_rest)
            return share(area * fewest, fewest)
        half = Z * math.sqrt(variance) / (area * (1 - area))
        ends = expit([logit(area) - half, logit(area) + half])
        return [area, *ends.tolist()]

    def auprc(self) -> Figure:
        """Average precision: the mean of the precision at each sample of the class."""
        if not self.is_defined:
            return None
        precision = self.own_from / np.maximum(self.own_from + self.rest_from, 1)
        return share(float(self.own @ precision), self.n_own)

    def error(self) -> Figure:
        """Mean distance between predicted and observed shares, over ten groups of equal
        width.
        """
        if not self.is_defined:
            return None
        own, n, predicted = self._groups()
        total = n.sum()
        error = float(np.abs(own - predicted).sum() / total)
        # The variance to expect counts where few samples are all of one class.
        expected = predicted * (1 - predicted / np.maximum(n, 1))
        variance = np.maximum(own * (1 - own / np.maximum(n, 1)), expected)
        half = Z * math.sqrt(variance.sum()) / total
        # The mean distance by chance, where the error is 0.
        most = math.sqrt(2 / math.pi) * np.sqrt(variance).sum() / total
        return [error, max(float(error - most - half), 0.0), float(error + half)]

    def fitted(self, index: int) -> Figure:
        """Slope (1) of a logistic regression of the class on the log odds, or intercept
        (0).

        The intercept is that of a regression with a slope of 1. There is no slope where
        the samples do not overlap.
        """
        rising = self.own @ (self.n_rest - self.rest_from)
        falling = self.rest @ (self.n_own - self.own_from)
        if not self.is_defined or (index == 1 and min(rising, falling) <= 0):
            return None
        return coefficient(self.own, self.rest, _LOG_ODDS, index)

    def flagged(self, threshold: float) -> tuple[int, int]:
        """Samples of the class and of the rest with this probability for it or more."""
        first = int(np.searchsorted(EDGES, threshold, side="right"))
        return int(self.own_from[first]), int(self.rest_from[first])

    def at(self, threshold: float) -> Figures:
        """Figures of the rule that takes the class from this probability on."""
        return rates(threshold, *self.flagged(threshold), self.n_own, self.n_rest)

    def roc(self) -> list[list[float]]:
        """Points (false, true positive rate), from (0, 0) to (1, 1)."""
        if not self.is_defined:
            return []
        shares = (self.rest_from / self.n_rest, self.own_from / self.n_own)
        none = np.zeros((2, 1))
        points = np.unique(np.hstack([none, np.round(shares, 5)]), axis=1).T
        chosen = np.linspace(0, len(points) - 1, _MOST_POINTS).round().astype(int)
        roc: list[list[float]] = points[np.unique(chosen)].tolist()
        return roc

    def reliability(self) -> list[Figures]:
        """Mean prediction and observed share of the groups that have samples."""
        own, n, predicted = self._groups()
        return [
            {
                "predicted": float(predicted[group] / n[group]),
                "observed": share(own[group], n[group]),
                "examples": int(n[group]),
            }
            for group in np.flatnonzero(n)
        ]

    def smooth(self) -> list[Figures]:
        """Observed share over the prediction, by local regression."""
        if not self.is_defined:
            return []
        points, shares, sizes = local_shares(self.own, self.rest, CENTRES)
        return [
            {"predicted": float(at), "observed": share(float(part * n), float(n))}
            for at, part, n in zip(points, shares, sizes, strict=True)
        ]

    def _groups(self) -> tuple[Floats, Floats, Floats]:
        """Samples of the class, all samples and the sum of their predictions in ten
        groups of equal width, (10,) each.
        """
        is_in_group = _GROUPS[:, None] == np.arange(10)
        both = self.own + self.rest
        return self.own @ is_in_group, both @ is_in_group, both * CENTRES @ is_in_group
