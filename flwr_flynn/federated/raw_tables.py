"""Raw columns of a party as the numbers that a run asks for: by its schema, or by the names of its features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError, with_rows
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.tables.column import Column
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.table import Table, as_name, is_frame

_MANY = 10  # values that are no matter of chance


def prepared(samples: Samples, features: Features, is_given: bool, check_memory: Callable[[int, str], None]) -> Samples:
    """Samples as a run asks for them; those that were loaded by a schema may be numbers already."""
    is_table = isinstance(samples.X, Table) or is_frame(samples.X)
    if isinstance(features, Schema):
        if not (is_given or is_table):
            return samples
        n = len(samples.X) + (0 if samples.X_test is None else len(samples.X_test))
        check_memory(16 * n * features.width, f"{features.width} numbers a row")
        X_test = None if samples.X_test is None else features.encode(samples.X_test)
        return Samples(features.encode(samples.X), samples.y, X_test, samples.y_test)
    if isinstance(samples.X, Table):
        return as_plain(samples, features)
    return by_names(samples, features) if features and is_table else samples


def as_plain(samples: Samples, names: Sequence[str]) -> Samples:
    """Samples of raw columns as numbers without gaps, for a run without a schema; all columns without names."""
    parts: list[Any] = []
    for table in (samples.X, samples.X_test):
        if table is None:
            parts.append(None)
            continue
        schema = Schema([Column(name, "number", gaps=False) for name in names or table.names], table.is_named)
        X = schema.encode(table)
        for name, n_gaps in zip(schema.names, np.isnan(X).sum(axis=0).tolist(), strict=True):
            if n_gaps:
                error = DataError(f"column {name[:60]!r}", "no gaps in a run without a schema", "some")
                raise with_rows(error, f"{n_gaps} of {len(X)} rows")
        parts.append(X)
    return Samples(parts[0], samples.y, parts[1], samples.y_test)


def by_names(samples: Samples, names: Sequence[str]) -> Samples:
    """Samples in data frames with the columns of these names, in this order; frames without any keep theirs."""

    def chosen(X: Any) -> Any:
        known = {as_name(name): name for name in X.columns}
        missing = [name for name in names if name not in known]
        if len(missing) == len(names):  # such as the numbers of pandas
            return X
        if missing:
            raise DataError("columns", "the features of the run", f"{len(missing)} of {len(names)} missing")
        return X[[known[name] for name in names]]

    X_test = None if samples.X_test is None else chosen(samples.X_test)
    return Samples(chosen(samples.X), samples.y, X_test, samples.y_test)


def elsewhere(specs: Sequence[HashSpec], schema: Schema, X: npt.NDArray[np.float64]) -> list[str]:
    """Names of the columns whose values, numbers or dates, are all far from those of the others: another unit?

    Between them and the edges beyond is a gap of three times the range of these edges, at least a quarter of all.
    """
    edges = next((np.array(spec.edges) for spec in specs if spec.edges is not None), None)
    found, index = [], 0
    if edges is None:
        return []
    for column in schema.columns:
        if column.kind != "category" and len(values := X[~np.isnan(X[:, index]), index]) >= _MANY:
            low, high, row = values.min(), values.max(), edges[index]
            below, above = row[row < low], row[row > high]
            is_far = len(below) >= len(row) // 4 and low - below[-1] > 3 * (below[-1] - below[0]) > 0
            is_far |= len(above) >= len(row) // 4 and above[0] - high > 3 * (above[-1] - above[0]) > 0
            found += [column.name] if is_far else []
        index += column.width
    return found
