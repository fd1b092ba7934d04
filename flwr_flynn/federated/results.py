"""Results of an evaluation: figures of all samples, by party, by level, and by site with
the model without it and the site alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flwr_flynn._types import Array
from flwr_flynn.federated.score_tables import (
    ALONE,
    HELD_OUT,
    WITHOUT,
    Pair,
    by_group,
    n_samples,
    shown,
)
from flwr_flynn.federated.set_tables import set_figures, shown_sets
from flwr_flynn.model import metrics
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.metrics import Figures

FIRST_SCORES = 5  # tables of a statistic before histograms and sums

_MOST_SHOWN = 1000  # parties whose own figures are kept


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: Figures | None  # see `evaluated`; None without any
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name
    sites: tuple[Figures, ...] = ()
    """See `site_figures`, with their names; of a secure sum those of all together."""

    @property
    def metrics(self) -> Figures:
        """Figures that Flower keeps of a round."""
        if self.figures is None:
            return {}
        summary = self.figures
        metrics = {
            name: summary[name]
            for name in ("accuracy", "balanced_accuracy", "macro_f1", "examples")
        }
        if summary["parties"]:  # unknown in a secure sum
            worst = summary["worst_party"]
            metrics["accuracy_std"] = summary["accuracy_std"]
            metrics["worst_accuracy"] = worst["accuracy"]
            metrics["best_accuracy"] = summary["best_party"]["accuracy"]
            metrics["worst_party"] = worst["name"]
        prior = summary["class_prior"]
        if prior:
            metrics["class_prior_accuracy"] = prior["accuracy"]
            metrics["class_prior_worst_accuracy"] = prior["worst_party"]["accuracy"]
        return metrics


class Result(NamedTuple):
    """Result of one party."""

    right: tuple[int, int]
    """Samples that the model gets right, and those that the party's own copy does."""
    n_examples: int
    site: Figures | None = None
    """See `site_figures`; None of parties beyond 1000."""


class Scores(NamedTuple):
    """The statistic of an evaluation, by its parts."""

    shared: Array
    """Confusion matrix, (L, L)."""
    own: Array
    """That of the party's own copy, which is the shared model without a class prior."""
    n_own: Array
    """Number of own copies that differ, (1, 1)."""
    paired: Array
    """Samples by the model, right or wrong, and by the site alone, (2, 2)."""
    sets: Array
    """See `set_tables`."""
    groups: list[Pair]
    """See `by_group`; none of too many classes."""

    @classmethod
    def of(cls, statistic: Tables, least: int = 1) -> Scores:
        """The parts of a statistic; histograms of at least so many samples."""
        shared, own, n_own, paired, sets, *scores = statistic.tables
        groups = by_group(shown(scores, least))
        return cls(shared, own, n_own, paired, shown_sets(sets, least), groups)

    @property
    def has_sums(self) -> bool:
        """True if the sums of scores are those of some samples."""
        return bool(self.groups) and n_samples(self.groups[HELD_OUT]) > 0


def of_party(
    statistic: Tables, n_before: int, event: int | None, classes: Sequence[object]
) -> Result:
    """The result of a party, after those of so many others."""
    scores = Scores.of(statistic)
    right = (int(np.trace(scores.shared)), int(np.trace(scores.own)))
    n_examples = int(scores.shared.sum())
    if n_before >= _MOST_SHOWN:
        return Result(right, n_examples)
    return Result(right, n_examples, site_figures(scores, event, classes))


def site_figures(
    scores: Scores, event: int | None, classes: Sequence[object]
) -> Figures:
    """Figures of a site: held out, without the site, and alone; each may be None.

    "sets" are the coverages of its prediction sets.

    Those alone have a table of samples by the federation's model, right or wrong, and
    by the site alone, McNemar's p-value, and the federation's AUROC of the same
    samples.
    """
    figures: Figures = {"held_out": None, "without": None, "alone": None}
    figures["sets"] = set_figures(scores.sets, classes)
    if not scores.groups:
        return figures
    for name, index in (("held_out", HELD_OUT), ("without", WITHOUT), ("alone", ALONE)):
        pair = scores.groups[index]
        if n_samples(pair):
            figures[name] = metrics.event_figures(*pair, event)
    held_out = figures["held_out"]
    alone = figures["alone"]
    if alone is not None:
        auroc = None
        # In a secure sum some sites may have no model alone.
        if held_out is not None and held_out["rows"] == alone["rows"]:
            auroc = held_out["auroc"]
        alone |= {
            "paired": scores.paired.tolist(),
            "mcnemar": metrics.mcnemar(*map(int, scores.paired[[0, 1], [1, 0]])),
            "federation_auroc": auroc,
        }
    return figures


def evaluated(
    total: Tables,
    parts: Mapping[str, Result],
    classes: Sequence[object],
    levels: tuple[str, Sequence[str]],
    least: int,
    event: int | None,
) -> Figures | None:
    """Figures from the sum of the answers, and results by party, by name.

    None without samples. They are those of `metrics.evaluation_figures`, under
    "class_prior" those of the parties' own models, and under "figures" those of
    `model.metrics`, by subgroup as well, where classes have at least `least` samples; of
    two classes they are about the `event`.
    """
    if not total.tables[0].any():
        return None
    scores = Scores.of(total, least)
    n_own = int(scores.n_own.item())
    class_prior = None
    if n_own:
        class_prior = _summary(scores.own, parts, 1) | {"sent": n_own}
    detailed = None
    if scores.has_sums:
        everyone = scores.groups[HELD_OUT]
        detailed = {
            "examples": n_samples(everyone),
            "overall": metrics.overall(*everyone, event),
            "classes": metrics.by_class(everyone[0], classes),
            "groups": _by_level(scores.groups, *levels, event),
        }
    return _summary(scores.shared, parts, 0) | {
        "sets": set_figures(scores.sets, classes),
        "class_prior": class_prior,
        "figures": detailed,
    }


def _summary(matrix: Array, results: Mapping[str, Result], index: int) -> Figures:
    """Figures of the model (0), or of the parties' own copies (1)."""
    right = {
        name: (party.right[index], party.n_examples) for name, party in results.items()
    }
    return metrics.evaluation_figures(matrix, right)


def _by_level(
    groups: list[Pair], column: str, names: Sequence[str], event: int | None
) -> Figures | None:
    """Figures of the levels of a column that have samples; None without a column."""
    if not names:
        return None
    levels = [
        {"level": name, **metrics.of_level(*pair, event)}
        for name, pair in zip(names, groups[HELD_OUT + 1 : WITHOUT], strict=True)
        if n_samples(pair)
    ]
    return {"column": column, "levels": levels}
