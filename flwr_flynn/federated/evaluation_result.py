"""Results of an evaluation: figures over all parties, by party and by subgroup, from the sum of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flwr_flynn.model import metrics as figures
from flwr_flynn.model.counts import Tables
from flwr_flynn.model.metrics import N_SUMS, above_floor, summary
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema

OTHER, MISSING = "(other)", "(missing)"
"""Names of the subgroups of no level."""


def subgroup_names(features: Any, column: str) -> tuple[str, ...]:
    """Names of the subgroups by a column; () where it is no category of a schema."""
    found = _found(features, column)
    return () if found is None else (*found[0].levels, OTHER, MISSING)


def subgroup_codes(features: Any, column: str, X: Any) -> npt.NDArray[np.int64]:
    """Index of each sample among `subgroup_names`, (n,) int64, from the numbers of the rows."""
    found = _found(features, column)
    assert found is not None  # else there are no names
    category, first = found
    n_levels = len(category.levels)
    numbers = np.asarray(X[:, first : first + category.width])
    is_level = numbers[:, :n_levels] > 0
    codes = np.where(is_level.any(axis=1), is_level.argmax(axis=1) if n_levels else 0, n_levels)
    if category.gaps:
        codes[numbers[:, -1] > 0] = n_levels + 1
    return codes.astype(np.int64, copy=False)


def _found(features: Any, name: str) -> tuple[Column, int] | None:
    """The category of this name, and the index of its first number."""
    first = 0
    for column in features.columns if isinstance(features, Schema) else ():
        if column.name == name:
            return (column, first) if column.kind == "category" else None
        first += column.width
    return None


Array = npt.NDArray[Any]

_MOST_SHOWN = 1000  # parties whose own figures are kept


def by_group(tables: Sequence[Array], rows: Sequence[Any]) -> list[tuple[Array, Array, Any]]:
    """Histograms and sums of all samples, and then of each subgroup, as views, each with the entry of `rows`."""
    if not tables:
        return []
    found = [(tables[0], tables[1], rows[0])]
    if len(tables) > 2:
        n = len(rows) - 1
        found += zip(tables[2].reshape(n, *tables[0].shape), tables[3].reshape(n, N_SUMS), rows[1:], strict=True)
    return found


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation."""

    figures: dict[str, Any] | None  # see `evaluated`; None without any
    unkept: dict[str, str]  # reasons of parties that could not keep the model, by name


class Result(NamedTuple):
    """Result of one party."""

    right: tuple[int, int]  # samples that the model gets right, and those that the party's own copy does
    n_examples: int
    figures: dict[str, Any] | None = None  # see `metrics.overall`; None below the floor, and of parties beyond 1000


def of_party(statistic: Tables, n_before: int) -> Result:
    """The result of a party, after those of so many others."""
    shared, own, _, *scores = statistic.tables
    has_figures = n_before < _MOST_SHOWN and scores and scores[1][0]
    found = figures.overall(scores[0], scores[1]) if has_figures else None
    return Result((int(np.trace(shared)), int(np.trace(own))), int(shared.sum()), found)


def evaluated(
    total: Tables,
    parts: Mapping[str, Result],
    labels: Sequence[Any] = (),
    groups: Sequence[str] = (),
    group: str = "",
    least: int = 1,
) -> dict[str, Any] | None:
    """Figures from the sum of the answers, and results by party, by name; None without samples.

    They are those of `metrics.summary`, under "class_prior" those of the parties' own models, and under "figures" those
    of `model.metrics`, by party and by subgroup as well, where classes have at least `least` samples.
    """
    if not total.tables[0].any():
        return None

    def counted(index: int) -> dict[str, Any]:
        right = {name: (part.right[index], part.n_examples) for name, part in parts.items()}
        return summary(total.tables[index], right)

    sent, tables = int(total.tables[2].item()), total.tables[3:]
    scores = [each for pair in zip(tables[::2], tables[1::2], strict=True) for each in above_floor(*pair, least)]
    found = None
    if scores and scores[1][0]:
        entries = by_group(scores, ["", *groups])
        levels = [{"level": name, **figures.overall(table, sums)} for table, sums, name in entries[1:] if sums[0]]
        shown = [{"name": name, **part.figures} for name, part in parts.items() if part.figures]
        found = {
            "examples": int(scores[1][0]),
            "resolution": figures.resolution(scores[0]),
            "overall": figures.overall(scores[0], scores[1]),
            "classes": figures.by_class(scores[0], labels),
            "parties": sorted(shown, key=lambda each: (each["accuracy"], each["name"])),
            "groups": {"column": group, "levels": levels} if group else None,
        }
    return counted(0) | {"class_prior": counted(1) | {"sent": sent} if sent else None, "figures": found}
