"""Verbs of `flwr-flynn`: `schema` drafts one of a file, `check` compares them; the
others need a model.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._files import writing
from flwr_flynn._validation import listed
from flwr_flynn.app.data.own_file import (
    check_apart,
    coded_labels,
    columns_of,
    counted,
    existing,
    opened,
)
from flwr_flynn.app.data.source import Dialect, Reading, unlabelled
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.report.markup import cell
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.federation_file import Federation, summary
from flwr_flynn.federated.samples import codebook
from flwr_flynn.model import model_file
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.model import Model, counts_sha256
from flwr_flynn.tables.column_encoding import Column, LevelCodes, is_nameable
from flwr_flynn.tables.raw_column import missing
from flwr_flynn.tables.schema import Schema, read_schema, to_toml
from flwr_flynn.tables.table import by_name
from flwr_flynn.tables.texts import as_name, is_beside

MOST_CLASSES = 1024


def node_settings(options: Namespace) -> dict[str, Any]:
    """Node settings that the command line gives, by their keys."""
    given = {
        row.key: value
        for row in NodeConfig.rows()
        if (value := getattr(options, row.name, "")) != ""
    }
    return given | (
        {"gap-texts": json.dumps(options.gap_text)} if options.gap_text else {}
    )


def dialect_of(options: Namespace) -> Dialect:
    """The dialect of CSV files, as far as the command line gives it."""
    return NodeConfig.parse(
        {"data-path": options.file, **node_settings(options)}
    ).dialect()


def draft(options: Namespace) -> int:
    """Print a schema that follows from a file, with comments on what it discloses."""
    path = Path(options.file)
    least = options.min_examples
    dialect = dialect_of(options)
    file = opened(
        existing(path), Reading(options.label, options.held_out_key, dialect=dialect)
    )
    file.check()
    schema, left_out = counted(file, least).schema()
    classes, _ = coded_labels(
        np.concatenate([*_labels(file)] or [np.zeros(0, object)]), file.name
    )
    label = options.label or ("y" if path.suffix.lower() == ".npz" else "label")
    if len(classes) <= MOST_CLASSES:
        shown = classes
    else:
        shown = []
    schema = replace(
        schema, label=as_name(label) if schema.is_named else "", classes=shown
    )
    unlisted = f"Not listed: {len(classes)} classes. Are these labels?"
    notes = {
        ("", "classes"): "Discloses which classes your file has." if shown else unlisted
    }
    floor = f"{least} {'ids' if options.held_out_key else 'rows'}"
    for column in schema.columns:
        notes |= {
            (column.name, key): text for key, text in _notes(column, floor).items()
        }
    if left_out:
        notes["", ""] = "\n".join(
            [
                "Left out:",
                *(f"{name[:60]!r}: {reason}" for name, reason in left_out.items()),
            ]
        )
    print(f"flwr-flynn: {file.described()}", file=sys.stderr)
    print(
        "# Comments say what an entry discloses of this file. Delete what should not "
        "be told."
    )
    columns = [
        replace(column, gap_texts=dialect.gap_texts) for column in schema.columns
    ]
    print(to_toml(replace(schema, columns=columns), notes), end="")
    return 0


def _notes(column: Column, floor: str) -> dict[str, str]:
    """Comments on a column of a draft, by key; levels below the floor are not in it."""
    notes = {
        "gaps": "Discloses whether your file has missing values here; true is always "
        "right."
    }
    if column.kind == "category":
        rare = f"those of fewer than {floor} are left out"
        notes["levels"] = (
            f"Discloses that your file has these {len(column.levels)} levels; {rare}."
        )
    elif column.kind == "number":
        notes[""] = (
            "low and high: not drafted, since the least and the greatest value of "
            "your file would show.\nTake them "
            "from the meaning of the column; values beyond are refused. They need not "
            "be given.\nlow =\nhigh ="
        )
    return notes


def check(options: Namespace) -> int:
    """Print what a schema refuses of a file, by column and count; 1 if that is
    something.
    """
    path = Path(options.file)
    schema = read_schema(options.schema)
    dialect = dialect_of(options)
    there = columns_of(existing(path), dialect)
    label = options.label or schema.label
    missing = []
    refused = 0
    if schema.is_named and there is not None:
        indices = dict(zip(schema.names, by_name(there, schema.names), strict=True))
        missing = [
            name
            for name, index in indices.items()
            if index is None and not is_beside(name, indices)
        ]
        with contextlib.suppress(DataError):
            refused = len(missing)
            schema.found([name for name in there if by_name([name], [label]) == [None]])
            refused = 0
    present = [column for column in schema.columns if column.name not in missing]
    if not present:
        raise DataError(path.name, "some of the schema's columns", "none of them")
    rest = replace(schema, columns=present, label="")
    file = opened(
        path,
        Reading(
            label or None, "", rest.names if schema.is_named else (), dialect, rest
        ),
    )
    if len(file.reports) != len(present):
        raise DataError(path.name, f"{len(present)} columns", len(file.reports))
    rows = _checked_rows(file, rest)
    rows += [[repr(name)[:60], "", "missing", "", "", "", ""] for name in missing]
    titles = [
        "column",
        "kind",
        "gaps",
        "of another kind",
        "beyond range",
        "other levels",
    ]
    _print_table([titles, *(row[: len(titles)] for row in rows)])
    if label:
        book = codebook(list(schema.classes or ()))
    else:
        book = {}
    unknown = 0
    if book:
        unknown = sum(
            value not in book for some in _labels(file) for value in some.tolist()
        )
    faults = [
        (refused, "columns are missing, beside others that the schema does not have"),
        (file.n_broken, "rows have more or fewer fields than the header"),
        (unknown, "rows have a label that is none of the schema's classes"),
        (
            sum(report.unfit > 0 or not report.kind for report in file.reports),
            "columns have no value of their kind",
        ),
        (
            sum(row[4] not in ("", "0") for row in rows),
            "columns have values beyond their range",
        ),
        (
            sum(bool(row[6]) for row in rows),
            "columns have no value that is one of their levels",
        ),
    ]
    print(f"\n{file.described()}")
    if not label:
        print(
            "labels: not checked; the schema names no label column, and --label does "
            "not either"
        )
    for n, what in faults:
        if n:
            print(f"REFUSED: {n} {what}")
    return int(any(n for n, _ in faults))


def _checked_rows(file: TableFile, schema: Schema) -> list[list[str]]:
    """A row for each column: its name and kind, and how many values are gaps, or would
    be refused.
    """
    counts = np.zeros((len(schema.columns), 3), np.int64)
    rows = []
    for table, *_ in file.tables():
        for n, column, values, kind in zip(
            counts, schema.columns, table.columns, table.kinds, strict=True
        ):
            n[0] += missing(values).sum()
            if kind == column.kind == "number":
                n[1] += column.refused(values).sum()
            elif kind == column.kind == "category":
                n[2] += sum(
                    code == -1 for code in map(LevelCodes(column), values.tolist())
                )
    for (gaps, beyond, others), column, report in zip(
        counts.tolist(), schema.columns, file.reports, strict=True
    ):
        is_read = report.kind == column.kind or (report.kind, column.kind) == (
            "number",
            "category",
        )
        if is_read:
            unfit = report.texts
        else:
            unfit = file.n_rows - gaps
        out_of = {"number": [str(beyond), ""], "category": ["", str(others)]}.get(
            column.kind, ["", ""]
        )
        is_strange = 0 < others == file.n_rows - file.n_unlabelled - gaps
        row = [
            repr(column.name)[:60],
            column.kind,
            str(gaps - report.texts),
            str(unfit),
            *out_of,
        ]
        rows.append([*row, "none" if is_strange else ""])
    return rows


def _labels(file: TableFile) -> Iterator[Any]:
    """The labels of a file, some at a time."""
    return (batch.labels for batch in file.batches() if batch.labels is not None)


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(
                f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
            ).rstrip()
        )


_MOST_BYTES = 2**30


def show(options: Namespace) -> int:
    """Print what a model file holds, as JSON; of a federation's file its members as
    well.
    """
    with model_file.reading(options.model, _MOST_BYTES) as (model, extra):
        facts = facts_of(model)
    if isinstance(extra, dict) and "versions" in extra:
        facts["versions"] = extra["versions"]
    if isinstance(extra, dict) and "members" in extra:
        facts["parties"] = summary(Federation.load(options.model))
    facts["file sha256"] = hashlib.sha256(Path(options.model).read_bytes()).hexdigest()
    print(json.dumps(facts, indent=1))
    return 0


def facts_of(model: Model) -> dict[str, Any]:
    """Contents of a model, as values for JSON."""
    counts: Any = model.members[0].counts
    if counts.noise:
        sizes: list[int | None] = [None] * len(model.classes)
    else:
        sizes = [*map(int, counts.n_per_class)]
    if model.prior is None:
        prior = np.full(len(model.classes), 1 / len(model.classes))
    else:
        prior = np.exp(model.prior)
    columns: Any = [{"name": name} for name in _names_of(model)] or None
    if model.schema is not None:
        columns = [
            {"name": column.name, "kind": column.kind, **column.to_dict()}
            for column in model.schema.columns
        ]
    edges = next(
        (
            member.spec.edges
            for member in model.members
            if member.spec.edges is not None
        ),
        None,
    )
    index = 0
    for entry, column in zip(
        columns or (), _schema_of(model).columns, strict=bool(columns)
    ):
        if edges is not None and column.kind != "category":
            entry["edges"] = [edges[index][0], edges[index][-1]]
        index += column.width
    rows = zip(model.classes.tolist(), sizes, prior.tolist(), strict=True)
    names = ("hash_dim", "row_nnz", "hash_nnz")
    members = [
        {name: getattr(member.spec, name) for name in names}
        | asdict(member.scoring)
        | {"weight": member.weight}
        for member in model.members
    ]
    return {
        "classes": [{"class": label, "samples": n, "prior": p} for label, n, p in rows],
        "features": model.members[0].spec.n_features,
        "columns": columns,
        "members": members,
        "gram rows": None
        if model.gram is None
        else sum(spec.hash_dim for spec in model.gram.specs),
        "guarantee": model.guarantee,
        "model sha256": model.sha256(),
        "counts sha256": counts_sha256(model.members),
    }


def _names_of(model: Model) -> tuple[str, ...]:
    """Names of a model without a schema; none where it has one."""
    names: Any = model.feature_names
    if names is None or model.schema is not None:
        return ()
    return tuple(map(str, names))


def predict(options: Namespace) -> int:
    """Print the class, the probabilities and the novelty of every row of a file, as
    CSV.

    With a threshold the class is the rarer of two from this probability on. A class
    that a spreadsheet would take for a formula has an apostrophe before it. In front
    are the columns to keep, as they stand in the file.
    """
    model = FlyNNClassifier.load(options.model)
    threshold = options.threshold
    keep = options.keep
    rarer = _rarer(model.model_, threshold)
    file = _opened_for(model, Path(options.file), None, dialect_of(options))
    if keep:
        kept = file.source.cells(
            file.indices(keep, f"{listed([*map(repr, keep)])} for --keep")
        )
    else:
        kept = repeat(())
    out = csv.writer(sys.stdout, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    classes = model.classes_.tolist()
    out.writerow([*keep, "class", *(f"p({label})" for label in classes), "novelty"])
    classes = [cell(label) if isinstance(label, str) else label for label in classes]
    for X, _ in _rows(file, model.model_):
        probabilities = model.predict_proba(X)
        novelty = model.novelty(X).min(axis=1)
        best = _decided(probabilities, rarer, threshold)
        for row, index, new in zip(
            probabilities.tolist(), best.tolist(), novelty.tolist(), strict=True
        ):
            label = ""
            if row[index] >= options.abstain:
                label = classes[index]
            out.writerow(
                [*next(kept), label, *(round(p, 6) for p in row), round(new, 6)]
            )
    return 0


def _decided(p: Any, rarer: int, threshold: float | None) -> Any:
    """Index of the most probable class, (n,); with a threshold the rarer of two from
    this probability on.
    """
    if threshold is None:
        return p.argmax(axis=1)
    return np.where(p[:, rarer] >= threshold, rarer, 1 - rarer)


def _rarer(model: Model, threshold: float | None) -> int:
    """Index of the rarer of two classes by the counts, the second among equals; refuses
    a threshold of more classes.
    """
    if threshold is not None and len(model.classes) != 2:
        raise ConfigError("--threshold", "a model of two classes", len(model.classes))
    sizes = model.members[0].counts.n_per_class
    if sizes is not None and sizes[0] < sizes[1]:
        return 0
    return 1


def _opened_for(
    model: FlyNNClassifier, path: Path, label: str | None, dialect: Dialect
) -> TableFile:
    """A file with the columns of a model, checked but for rows without a label."""
    schema = _schema_of(model.model_)
    file = opened(existing(path), Reading(label, "", (), dialect, schema))
    if not schema.is_named and len(file.reports) != len(schema.columns):
        raise DataError(
            path.name,
            f"{len(schema.columns)} columns, as the model has no names",
            len(file.reports),
        )
    file.n_unlabelled = 0
    file.check()
    if any(report.texts or report.numerals.unit for report in file.reports):
        print(f"flwr-flynn: {file.described()}", file=sys.stderr)
    return file


def _schema_of(model: Model) -> Schema:
    """The schema of a model; of numbers where it has names alone, or nothing."""
    if model.schema is not None:
        return model.schema
    names = [*map(as_name, _names_of(model))]
    if not all(map(is_nameable, names)) or len({*names}) < len(names):
        names = []  # then columns have positions
    columns = names or map(str, range(model.members[0].spec.n_features))
    return Schema([Column(name, "number", gaps=False) for name in columns], bool(names))


def _rows(file: TableFile, model: Model) -> Iterator[tuple[Any, Any]]:
    """The rows of a file as the model takes them, and their labels, some at a time."""
    schema = _schema_of(model)
    for batch in file.batches(labelled=False):
        if len(batch.columns[0]):
            table = file.table(batch.columns)
            yield (
                table if model.schema is not None else schema.encode(table),
                batch.labels,
            )


def score(options: Namespace) -> int:
    """Print the figures of a model on the rows of a file with labels, and write them as
    CSV.

    With a threshold, predictions are those of `predict`, and the rows that it flags are
    counted. Rows without a label, and rows with one that the model does not know, are
    counted and left out.
    """
    path = Path(options.file)
    out = Path(options.out or "scores.csv")
    threshold = options.threshold
    check_apart([out], [path, options.model])
    model = FlyNNClassifier.load(options.model)
    rarer = _rarer(model.model_, threshold)
    file = _opened_for(model, path, options.label, dialect_of(options))
    classes = model.classes_.tolist()
    book = codebook(classes)
    parts = list[Any]()
    codes = list[int]()
    unknown = list[Any]()
    for X, labels in _rows(file, model.model_):
        found = np.array([book.get(value, -1) for value in labels.tolist()])
        found[unlabelled(labels)] = -2
        unknown += labels[found == -1].tolist()
        parts += [model.predict_proba(X[found >= 0])] if (found >= 0).any() else []
        codes += found.tolist()
    if not parts:
        raise DataError(path.name, "rows with a label that the model knows", "none")
    p = np.concatenate(parts)
    y = np.array([code for code in codes if code >= 0])
    best = _decided(p, rarer, threshold)
    figures: dict[str, Any] = {
        "rows": len(y),
        "rows without a label": codes.count(-2),
        "rows with an unknown label": len(unknown),
        "unknown labels": len(set(unknown)),
        **_figures(p, y, best, len(classes)),
    }
    if threshold is not None:
        flagged = best == rarer
        positive = y == rarer
        counts = {
            "flagged": flagged,
            "flagged rightly": flagged & positive,
            "missed": positive & ~flagged,
        }
        figures |= {"threshold": threshold} | {
            name: int(rows.sum()) for name, rows in counts.items()
        }
    _print_table([[name, f"{value:.6g}"] for name, value in figures.items()])
    with writing(out) as stream:
        stream.write(
            "".join(
                f"{name},{value}\n"
                for name, value in [("figure", "value"), *figures.items()]
            ).encode()
        )
    print(out)
    return 0


def _figures(p: Any, y: Any, best: Any, n_classes: int) -> dict[str, Any]:
    """Figures of probabilities, (n, L), and decisions, (n,), for class indices, (n,)."""
    from sklearn import metrics

    # Of two classes the Brier score and the AUROC of one are those of the other.
    of = [
        c
        for c in range(n_classes)[-1 if n_classes == 2 else 0 :]
        if 0 < (y == c).sum() < len(y)
    ]
    brier = ((p - np.eye(n_classes)[y]) ** 2).sum(axis=1).mean() / (
        2 if n_classes == 2 else 1
    )
    return {
        "accuracy": metrics.accuracy_score(y, best),
        "balanced accuracy": metrics.balanced_accuracy_score(y, best),
        "log-loss": metrics.log_loss(y, p, labels=range(n_classes)),
        "Brier score": brier,
        "AUROC": np.mean([metrics.roc_auc_score(y == c, p[:, c]) for c in of])
        if of
        else np.nan,
    }
