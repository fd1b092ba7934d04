"""Verbs of `flwr-flynn` about a model file: `show` tells what it holds, `predict` classifies the rows of a file."""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._text import cell
from flwr_flynn.app.data.dialect import Dialect
from flwr_flynn.app.data.opened import existing, opened
from flwr_flynn.app.data.table_file import Batch
from flwr_flynn.errors import DataError
from flwr_flynn.model import model_file
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.model import Model
from flwr_flynn.tables.schema import Schema

_MOST_BYTES = 2**30
_MOST_NAMES = 20  # of columns, in a listing for people


def show(path: str, *, as_json: bool) -> int:
    """Print what a model file holds."""
    with model_file.reading(path, _MOST_BYTES) as (model, extra):
        facts = facts_of(model)
    if isinstance(extra, dict) and "versions" in extra:
        facts["versions"] = extra["versions"]
    with open(path, "rb") as stream:
        facts["file sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
    if as_json:
        print(json.dumps(facts, indent=1))
        return 0
    columns = facts.pop("columns")
    if columns is not None:
        shown = [_of_column(column) for column in columns[:_MOST_NAMES]]
        more = f", and {len(columns) - _MOST_NAMES} more" if len(columns) > _MOST_NAMES else ""
        facts["columns"] = f"{len(columns)}: {', '.join(shown)}{more}"
    for name, value in facts.items():
        if isinstance(value, list):
            for index, each in enumerate(value):
                print(f"{name if not index else '':14}  {_in_line(each)}")
        elif value is not None:
            print(f"{name:14}  {_in_line(value)}")
    return 0


def facts_of(model: Model) -> dict[str, Any]:
    """Contents of a model, as values for JSON."""
    schema, first = model.schema, model.members[0]
    is_exact = not first.counts.noise
    n_per_class = [int(n) for n in first.counts.n_per_class] if is_exact else None
    if schema is not None:
        columns: Any = [{"name": column.name, "kind": column.kind} for column in schema.columns]
    else:
        columns = None if model.feature_names is None else [{"name": name} for name in _names_of(model)]
    return {
        "classes": [
            {"class": label, **({} if n_per_class is None else {"samples": n})}
            for label, n in zip(model.classes.tolist(), n_per_class or [0] * len(model.classes), strict=True)
        ],
        "features": first.spec.n_features,
        "columns": columns,
        "members": [
            {
                "hash_dim": member.spec.hash_dim,
                "row_nnz": member.spec.row_nnz,
                "hash_nnz": member.spec.hash_nnz,
                "rule": member.scoring.rule,
                "decay": member.scoring.decay,
                "weight": member.weight,
            }
            for member in model.members
        ],
        "gram rows": None if model.gram is None else sum(spec.hash_dim for spec in model.gram.specs),
        "refined": model.refined is not None,
        "class prior": model.prior is not None,
        "guarantee": model.guarantee,
        "model sha256": model.sha256(),
    }


def _names_of(model: Model) -> tuple[str, ...]:
    """Names of a model without a schema; none where it has one."""
    names: Any = model.feature_names
    return () if names is None or model.schema is not None else tuple(map(str, names))


def _of_column(column: dict[str, str]) -> str:
    name = repr(column["name"])[:60]
    return f"{name} ({column['kind']})" if "kind" in column else name


def _in_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_line(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) and value.isprintable() else repr(value)


def predict(model_path: str, path: Path, least: float, dialect: Dialect, formulas: bool = False) -> int:
    """Print the class, the probabilities and the novelty of every row of a file, as CSV.

    A class that a spreadsheet would take for a formula has an apostrophe before it, unless `formulas` are wanted.
    """
    model = FlyNNClassifier.load(model_path)
    schema = model.model_.schema
    features = _names_of(model.model_)
    if schema is not None:
        features = schema.names if schema.is_named else ()
    n_columns = model.model_.members[0].spec.n_features if schema is None else len(schema.columns)
    file = opened(existing(path), None, "", features, dialect, schema)
    if len(file.reports) != n_columns:
        raise DataError(path.name, f"{n_columns} columns, as the model has no names", len(file.reports))
    file.check()
    if schema is None and file.needs_table:
        odd = {
            index: report.gaps or file.n_rows
            for index, report in enumerate(file.reports)
            if report.kind != "number" or report.gaps
        }
        raise file.error("numbers without gaps, as the model was made from", "others", odd)
    out = csv.writer(sys.stdout, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    classes = model.classes_.tolist()
    out.writerow(["class", *(f"p({label})" for label in classes), "novelty"])
    classes = [cell(label) if isinstance(label, str) and not formulas else label for label in classes]
    for batch in file.batches():
        X = _input(batch, file.names, file.is_named, schema)
        if not len(batch.columns[0]):
            continue
        probabilities = model.predict_proba(X)
        novelty = model.novelty(X).min(axis=1)
        best = probabilities.argmax(axis=1)
        for row, index, new in zip(probabilities.tolist(), best.tolist(), novelty.tolist(), strict=True):
            label = classes[index] if row[index] >= least else ""
            out.writerow([label, *(round(p, 6) for p in row), round(new, 6)])
    return 0


def _input(batch: Batch, names: tuple[str, ...], is_named: bool, schema: Schema | None) -> Any:
    if schema is None:
        return np.column_stack(batch.columns)
    return batch.table(names or tuple(map(str, range(len(batch.columns)))), is_named)
