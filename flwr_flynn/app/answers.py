"""Answers of a model in words: prediction sets, the columns that matter most, and values
that it cannot know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from flwr_flynn._types import Floats, Mask
from flwr_flynn.app.model_facts import schema_of_model
from flwr_flynn.federated.unit_warnings import FAR, apart, are_of_samples
from flwr_flynn.model.model import Model
from flwr_flynn.model.reasons import contributions, edges_of, importance, places
from flwr_flynn.tables.cells import missing
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.texts import is_beside

_FAR_OUT = 90  # percent of all samples that a value lies beyond


def importance_of(model: Model) -> list[dict[str, Any]]:
    """Columns and their mean absolute contributions, the largest first, for JSON."""
    columns = [column.name for column in schema_of_model(model).columns]
    rows = zip(columns, importance(model, -1).tolist(), strict=True)
    largest = sorted(rows, key=lambda row: -row[1])
    return [{"column": name, "log_odds": mean} for name, mean in largest]


def strangers(model: Model, X: Table | Floats) -> Counter[str]:
    """Rows with values that the model cannot know, by what is to be said of them.

    They are far from the edges that it has of a column, or none of its levels.
    """
    found = Counter[str]()
    numbers = _numbers(model, X)
    edges = edges_of(model)
    schema = schema_of_model(model)
    for column, (_, place) in zip(schema.columns, places(model), strict=True):
        own = numbers[:, place]
        if column.kind == "category":
            what = "none of its levels"
            is_strange = ~own.any(axis=1)
            if isinstance(X, Table) and is_beside(column.name, schema.names):
                # Where there is no text, a number stands, or a gap.
                texts = dict(zip(X.names, X.columns, strict=True)).get(column.name)
                is_strange &= texts is not None and ~missing(texts)
        else:
            what = "far from the counted values; is it a code, or another unit?"
            low = edges[place.start, 0]
            high = edges[place.start, -1]
            # Many columns are skewed, with a few values far above all others.
            beyond = np.maximum(low - own[:, 0], (own[:, 0] - high) / 3)
            is_strange = (beyond > high - low) & (high > low)
            if column.kind == "number" and apart(own[:, 0], edges[place.start]) > FAR:
                is_strange = ~np.isnan(own[:, 0])
        if is_strange.any():
            found[f"column {column.name!r}: {what}"] += int(is_strange.sum())
    return found


def _numbers(model: Model, X: Table | Floats) -> Any:
    """The rows of a file as numbers of the model."""
    if model.schema is None:
        return X
    return model.schema.encode(X)


def set_in_words(classes: Sequence[object], is_in: Mask) -> str:
    """The classes in a set; of two classes both are "unsure"."""
    labels = [str(label) for label, own in zip(classes, is_in, strict=True) if own]
    if not labels:
        return "none"
    if len(labels) == len(classes) == 2:
        return "unsure"
    return " | ".join(labels)


def reasons_in_words(
    model: Model, X: Table | Floats, turned: Mask, most: int
) -> Iterator[list[str]]:
    """The columns that add the most to the log odds of each row's class, in words.

    The class of a row that is `turned` is the less probable one of two.
    """
    numbers = _numbers(model, X)
    added = contributions(model, numbers)
    added[turned] *= -1
    edges = edges_of(model)
    schema = schema_of_model(model)
    texts = [
        _texts_of(column, schema.names, numbers[:, place], edges[place])
        for column, (_, place) in zip(schema.columns, places(model), strict=True)
    ]
    order = np.argsort(-np.abs(added), axis=1, kind="stable")
    for row, indices in enumerate(order.tolist()):
        words = (
            f"{texts[j][row]}: {added[row, j]:+.1f}" for j in indices if texts[j][row]
        )
        yield [*islice(chain(words, repeat("")), most)]


def _texts_of(
    column: Column, names: Sequence[str], numbers: Floats, edges: Floats
) -> list[str]:
    """Name and value of a column in each row, and its place among all at an end.

    Of texts beside a number, as `names` tell, "" where there is none.
    """
    name = column.name
    if column.kind == "category":
        other = f"{name} other"
        if is_beside(name, names):
            other = ""
        words = [*column.inputs, other]
        others = np.ones((len(numbers), 1))
        return [words[at] for at in np.hstack([numbers, others]).argmax(axis=1)]
    values = numbers[:, 0]
    own = edges[0]
    texts = [f"{name} {value:.7g}" for value in values]
    if column.kind == "date":
        texts = [f"{name} {day}" for day in values.astype("datetime64[D]")]
    elif are_of_samples(own):
        for side, sign in {"above": 1, "below": -1}.items():
            n_beyond = np.searchsorted(np.sort(sign * own), sign * values)
            percent = (100 * n_beyond - 50) // len(own)
            for row in np.flatnonzero(percent >= _FAR_OUT):
                texts[row] += f" ({side} {percent[row]} % of all)"
    for row in np.flatnonzero(np.isnan(values)):
        texts[row] = f"{name} missing"
    return texts
