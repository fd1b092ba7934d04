"""Contents of a model file: the verb `show`."""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import numpy as np

from flwr_flynn.app import console
from flwr_flynn.federated.federation_file import Federation, roster_rows
from flwr_flynn.model import model_file
from flwr_flynn.model.metrics import Figures
from flwr_flynn.model.model import Model, counts_sha256
from flwr_flynn.tables.column_encoding import Column, is_nameable
from flwr_flynn.tables.schema import Schema
from flwr_flynn.tables.texts import as_name

_MOST_BYTES = 2**30


def show(options: Namespace) -> int:
    """Print the contents of a model file, as JSON.

    Of a federation's file the members are among them.
    """
    with model_file.reading(options.model, _MOST_BYTES) as (model, extra, _):
        facts = facts_of(model)
    if isinstance(extra, dict) and "members" in extra:
        facts["parties"] = roster_rows(Federation.load(options.model))
    facts["file sha256"] = hashlib.sha256(Path(options.model).read_bytes()).hexdigest()
    console.say(*json.dumps(facts, indent=1).split("\n"))
    return 0


def facts_of(model: Model) -> Figures:
    """Contents of a model, as values for JSON."""
    names = ("hash_dim", "row_nnz", "hash_nnz")
    members = [
        {name: getattr(member.spec, name) for name in names}
        | asdict(member.scoring)
        | {"weight": member.weight}
        for member in model.members
    ]
    calibration = None
    if model.calibration is not None:
        calibration = model.calibration.facts()
    trees = None
    if model.forest is not None:
        forest = model.forest.trees
        trees = {"trees": forest.n_trees, "leaf_nodes": len(forest.leaf_nodes)}
        trees |= model.forest.calibration.facts()
    return {
        "classes": _class_facts(model),
        "features": model.members[0].spec.n_features,
        "columns": _column_facts(model),
        "members": members,
        "linear terms": model.linear and model.linear.terms.n_terms,
        "calibration": calibration,
        "trees": trees,
        "guarantee": model.guarantee,
        "model sha256": model.sha256(),
        "counts sha256": counts_sha256(model.members),
    }


def _class_facts(model: Model) -> list[dict[str, object]]:
    """Classes of a model with priors, and numbers of samples, None beside noise."""
    counts = model.members[0].counts
    n_classes = len(model.classes)
    sizes: list[int | None] = [None] * n_classes
    if not counts.noise:
        sizes = [*map(int, counts.n_per_class)]
    if model.prior is None:
        prior = np.full(n_classes, 1 / n_classes)
    else:
        prior = np.exp(model.prior)
    rows = zip(model.classes.tolist(), sizes, prior.tolist(), strict=True)
    return [{"class": label, "samples": n, "prior": p} for label, n, p in rows]


def _column_facts(model: Model) -> list[Figures] | None:
    """Columns of a model, those of numbers with their range; None without names."""
    columns: list[Figures] = [{"name": name} for name in names_of_model(model)]
    if model.schema is not None:
        columns = [
            {"name": column.name, "kind": column.kind, **column.to_dict()}
            for column in model.schema.columns
        ]
    if not columns:
        return None
    edges_of_members = [
        member.spec.edges for member in model.members if member.spec.edges is not None
    ]
    if not edges_of_members:
        return columns
    edges = edges_of_members[0]
    index = 0
    for facts, column in zip(columns, schema_of_model(model).columns, strict=True):
        if column.kind != "category":
            facts["edges"] = [edges[index][0], edges[index][-1]]
        index += column.width
    return columns


def names_of_model(model: Model) -> tuple[str, ...]:
    """Names of a model without a schema; none where it has one."""
    names = model.feature_names
    if names is None or isinstance(names, Schema):
        return ()
    return tuple(map(str, names))


def schema_of_model(model: Model) -> Schema:
    """The schema of a model; of numbers where it has names alone, or nothing."""
    if model.schema is not None:
        return model.schema
    names = [*map(as_name, names_of_model(model))]
    if not all(map(is_nameable, names)) or len({*names}) < len(names):
        names = []  # then columns have positions
    columns = names or map(str, range(model.members[0].spec.n_features))
    return Schema([Column(name, "number", gaps=False) for name in columns], bool(names))
