"""Columns of a party's file, by the names that the run announces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_flynn._validation import listed
from flwr_flynn.errors import DataError
from flwr_flynn.tables.table import as_name, with_columns


@dataclass(frozen=True)
class Layout:
    """The columns of a table by their use."""

    label: int | None
    group: int | None
    order: list[int]
    names: tuple[str, ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, name: str, columns: Sequence[str], label: str | None, group: str, features: Sequence[str]) -> Layout:
        """The layout of a file's columns: the features asked for, or every column but the label and the group.

        None is a file whose labels are not read.
        """
        columns, features = [*map(as_name, columns)], [*map(as_name, features)]
        label, group = label and as_name(label), as_name(group)
        if n_same := len(columns) - len(set(columns)):
            raise DataError(name, "columns of different names", f"{len(columns)} columns, {n_same} of them named again")
        if not columns:
            raise DataError(name, "a first line with the names of the columns", "none")
        for column in (label, group):
            if column and column not in columns:
                error = DataError(name, f"a column {column!r}", f"{len(columns)} others")
                raise with_columns(error, columns, [column])
        rest = [index for index, column in enumerate(columns) if column != label and (column != group or not group)]
        others = [columns[index] for index in rest]
        order, left_out = by_name(others, features or others, name)
        chosen = [rest[index] for index in order]
        return cls(
            columns.index(label) if label else None,
            columns.index(group) if group else None,
            chosen,
            tuple(columns[index] for index in chosen),
            left_out,
        )


def by_name(columns: Sequence[str], wanted: Sequence[str], source: str) -> tuple[list[int], tuple[str, ...]]:
    """Indices of a run's features among the columns of a file, and the names of the other columns."""
    indices: dict[str, list[int]] = {name: [] for name in wanted}
    if len(indices) < len(wanted):
        raise DataError(source, "features of different names", f"{len(wanted) - len(indices)} of the run's again")
    for index, name in enumerate(columns):
        if name in indices:
            indices[name].append(index)
    for trouble, bad in (
        ("are not", [name for name in wanted if not indices[name]]),
        ("stand more than once", [name for name in wanted if len(indices[name]) > 1]),
    ):
        if bad:
            expected = f"each of the run's {len(wanted)} features once"
            got = f"{len(bad)} that {trouble} among {len(columns)} columns: {listed([name[:60] for name in bad])}"
            raise with_columns(DataError(source, expected, got), columns, bad)
    return [indices[name][0] for name in wanted], tuple(name for name in columns if name not in indices)
