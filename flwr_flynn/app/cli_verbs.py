"""Verbs of `flwr-flynn`.

`schema` drafts a schema of a file, and `check` compares them. Others need a model.
"""

from __future__ import annotations

import csv
import json
import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn._files import writing
from flwr_flynn._types import Array, Floats, Integers, Mask
from flwr_flynn._validation import listed
from flwr_flynn.app import console
from flwr_flynn.app.answers import reasons_in_words, set_in_words, strangers
from flwr_flynn.app.data.own_file import (
    coded_labels,
    columns_of,
    counter_of_file,
    existing,
    label_of,
    opened,
    private_rows,
    reading_of,
)
from flwr_flynn.app.data.source import MOST_ROWS, Reading, label_gaps, unlabelled
from flwr_flynn.app.data.table_file import TableFile
from flwr_flynn.app.model_facts import schema_of_model
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.report.markup import cell
from flwr_flynn.errors import ConfigError, DataError, with_names
from flwr_flynn.federated.labels import codebook, codes_in
from flwr_flynn.federated.private_rows import Dropped, check_columns, each_part
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.model import Model
from flwr_flynn.model.prior import rarer
from flwr_flynn.tables.cells import each_once, missing
from flwr_flynn.tables.column_encoding import Column, level_codes
from flwr_flynn.tables.learned_schema import schema_of
from flwr_flynn.tables.remarks import lines_of, nearest, noticed
from flwr_flynn.tables.row_wise import ReadColumn, fitting_rows, read_columns
from flwr_flynn.tables.schema import Schema, in_toml, read_schema, to_toml
from flwr_flynn.tables.table import Table, by_name
from flwr_flynn.tables.texts import as_name, is_beside

MOST_CLASSES = 1024


def node_settings(options: Namespace) -> dict[str, object]:
    """Node settings that the command line gives, by their keys."""
    given = dict[str, object]()
    for row in NodeConfig.rows():
        setting = getattr(options, row.name, "")
        # `--keep` of predict is a list, and no setting.
        if setting != "" and not isinstance(setting, list):
            given[row.key] = setting
    if options.gap_text:
        given["gap-texts"] = json.dumps(options.gap_text)
    return given


def _node(options: Namespace, **given: object) -> NodeConfig:
    """The settings of a party with this file, by the command line and `--site`."""
    return NodeConfig.parse(
        {"data-path": options.file, **node_settings(options), **given}
    )


def check_apart(results: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse results that would replace a file that is read, by whatever name."""
    read = {os.path.realpath(os.path.expanduser(path)) for path in inputs}
    replaced = [path.name for path in results if os.path.realpath(path) in read]
    if replaced:
        raise ConfigError(
            "--out", "another place than that of a file that is read", replaced[0]
        )


def draft(options: Namespace) -> int:
    """Print a schema that follows from a file, with comments on what it discloses."""
    path = Path(options.file)
    least = options.min_examples
    node = _node(options)
    file = opened(existing(path), reading_of(node))
    file.check()
    counter = counter_of_file(file, least)
    schema, left_out = schema_of(counter.summary(), keep=node.names("keep"))
    labels = [*_labels(file)] or [np.zeros(0, object)]
    classes, _ = coded_labels(np.concatenate(labels), file.name)
    n_classes = len(classes)
    if n_classes > MOST_CLASSES:
        classes = []
    label = ""
    if schema.is_named:
        label = as_name(label_of(path, node.label))
    notes = {("", "classes"): "Discloses which classes your file has."}
    if not classes:
        notes["", "classes"] = f"Not listed: {n_classes} classes. Are these labels?"
    floor = f"{least} rows"
    if node.held_out_key:
        floor = f"{least} ids"
    for column in schema.columns:
        for key, comment in _notes(column, floor).items():
            notes[column.name, key] = comment
    if left_out:
        reasons = [f"{name[:60]!r}: {reason}" for name, reason in left_out.items()]
        notes["", ""] = "\n".join(["Left out:", *reasons])
    drafted = replace(schema, label=label, classes=classes)
    console.note(file.described())
    for line in noticed(counter.everything):
        console.note(f"NOTICED: {line}")
    console.say(
        "# Comments say what an entry discloses of this file. Delete what should not "
        "be told."
    )
    console.say(*to_toml(drafted, notes).rstrip().split("\n"))
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
            "low and high: the plausible range, from the meaning of the column as the "
            "clinic knows it.\nNot drafted, since the least and the greatest value of "
            "your file would show. Values beyond are refused.\n"
            "They need not be given, but with epsilon.\nlow =\nhigh ="
        )
    return notes


def check(options: Namespace) -> int:
    """Print what a schema refuses of a file, by column and count.

    The exit status is 1 if the schema refuses something. With `--private` the file is
    read as a private party reads it, and the status is 1 unless all rows fit.
    """
    path = Path(options.file)
    schema = read_schema(options.schema)
    node = _node(options)
    label = node.label or schema.label
    if options.private:
        return _check_private(options, schema, label)
    reading = replace(reading_of(node), label=label or None)
    names = columns_of(existing(path), reading)
    missing_columns = list[str]()
    n_refused = 0
    if schema.is_named and names is not None:
        missing_columns = _missing_columns(schema, names)
        if _refuses_names(schema, names, [label, reading.group, *reading.ignore]):
            n_refused = len(missing_columns)
    present = [
        column for column in schema.columns if column.name not in missing_columns
    ]
    if not present:
        raise DataError(path.name, "some of the schema's columns", "none of them")
    rest = replace(schema, columns=present, label="")
    file = opened(path, replace(reading, schema=rest))
    if not schema.is_named and len(file.reports) != len(present):
        raise DataError(path.name, f"{len(present)} columns", len(file.reports))
    for error, _ in file.other_units():
        raise error
    tables = (_counts_of(read_columns(rest, rows.table)) for rows in file.batches())
    counts = sum(tables, np.zeros((len(present), 4), np.int64))
    own_names = rest.names
    if file.is_named:
        own_names = file.names
    texts = {
        name: report.texts
        for name, report in zip(own_names, file.reports, strict=True)
        if not report.has_beside
    }
    n_texts = np.array([texts.get(name, 0) for name in rest.names])
    counts[:, 0] -= n_texts  # which are gaps in the table
    counts[:, 1] += n_texts
    lines = _column_lines(rest, counts)
    lines += [[repr(name)[:60], "", "missing", "", "", ""] for name in missing_columns]
    console.print_table([_CHECK_TITLES, *lines])
    console.say("", file.described())
    counter = counter_of_file(opened(path, reading))
    console.say("")
    console.print_table(lines_of(counter.everything))
    for line in noticed(counter.everything):
        console.say(f"NOTICED: {line}")
    n_unknown = 0
    if label:
        n_unknown = _n_unknown_labels(file, schema)
    else:
        console.say(
            "labels: not checked; the schema names no label column, and --label does "
            "not either"
        )
    faults = _faults(file, counts, n_refused, n_unknown)
    for fault, n in faults.items():
        if n:
            console.say(f"REFUSED: {n} {fault}")
    return int(any(faults.values()))


_CHECK_TITLES = [
    "column",
    "kind",
    "gaps",
    "of another kind",
    "beyond range",
    "other levels",
]


def _check_private(options: Namespace, schema: Schema, label: str) -> int:
    """Print how many rows a private party would count, and why not the others.

    The exit status is 1 unless all rows fit.
    """
    policy = {"max-epsilon": 1.0, "state-path": os.path.abspath("state")}
    rows = private_rows(_node(options, label=label, **policy), bytes)
    check_columns(rows, schema, schema.width)
    book = codebook(schema.classes)
    gaps = label_gaps(rows.settings)

    def read(X: Any, y: Any) -> Integers:
        """Rows that fit, rows with a class, and below the numbers of the cells."""
        are_known = ~unlabelled(y, gaps)
        if book:
            are_known = codes_in(book, y) >= 0
        columns = [*read_columns(schema, X, rows.settings)]
        n_fitting = (fitting_rows(columns) & are_known).sum()
        return np.vstack([[n_fitting, are_known.sum(), 0, 0], _counts_of(columns)])

    total = np.zeros((1 + len(schema.columns), 4), np.int64)
    for block in rows.blocks(MOST_ROWS):
        for part in each_part(block, read):
            if not isinstance(part, Dropped):
                total += part
    n_fitting, n_known = total[0, :2].tolist()
    console.print_table([_CHECK_TITLES, *_column_lines(schema, total[1:])])
    console.say("", f"{rows.n_rows} rows: {n_known} have a class, {n_fitting} fit")
    return int(n_fitting < rows.n_rows)


def _missing_columns(schema: Schema, names: list[str]) -> list[str]:
    """Columns of a schema that a file with these names does not have."""
    indices = dict(zip(schema.names, by_name(names, schema.names), strict=True))
    return [
        name
        for name, index in indices.items()
        if index is None and not is_beside(name, indices)
    ]


def _refuses_names(schema: Schema, names: list[str], others: list[str]) -> bool:
    """True where a schema refuses a file by the names of its columns.

    The `others` are label, ids, and what is ignored.
    """
    try:
        schema.found([name for name in names if {*by_name([name], others)} == {None}])
    except DataError:
        return True
    return False


def _n_unknown_labels(file: TableFile, schema: Schema) -> int:
    """Number of rows whose label is none of a schema's classes, if it has classes."""
    book = codebook(schema.classes)
    if not book:
        return 0
    return sum(int((codes_in(book, labels) < 0).sum()) for labels in _labels(file))


def _faults(
    file: TableFile, counts: Integers, n_refused: int, n_unknown: int
) -> dict[str, int]:
    """Numbers of columns or rows that are refused, by the reason in words."""
    without_values = sum(report.unfit > 0 or not report.kind for report in file.reports)
    n_gaps, _, n_beyond, n_others = counts.T
    n_levels = file.n_rows - file.n_unlabelled - n_gaps
    without_levels = (n_others > 0) & (n_others == n_levels)
    return {
        "columns are missing, beside others that the schema does not have": n_refused,
        "rows have more or fewer fields than the header": file.n_broken,
        "rows have a label that is none of the schema's classes": n_unknown,
        "columns have no value of their kind": without_values,
        "columns have values beyond their range": int((n_beyond > 0).sum()),
        "columns have no value that is one of their levels": int(without_levels.sum()),
    }


def _counts_of(columns: Iterable[ReadColumn]) -> Integers:
    """Numbers of gaps, cells of another kind, values beyond the range, and unknown
    levels, (columns, 4).
    """
    counts = []
    for column, values, good in columns:
        codes = list[int]()
        if column.kind == "category":
            codes += each_once(level_codes(column), values.tolist())
        masks = (good & missing(values), ~good, column.refused(values))
        counts.append([*(int(mask.sum()) for mask in masks), codes.count(-1)])
    return np.array(counts)


def _column_lines(schema: Schema, counts: Integers) -> list[list[str]]:
    """The line of each column: name, kind, and the numbers of its cells."""
    return [
        [repr(column.name)[:60], column.kind, *map(str, numbers)]
        for column, numbers in zip(schema.columns, counts.tolist(), strict=True)
    ]


def _labels(file: TableFile) -> Iterator[Array]:
    """The labels of a file, some at a time."""
    return (batch.labels for batch in file.batches() if batch.labels is not None)


def predict(options: Namespace) -> int:
    """Print class, probabilities and novelty of every row of a file, as CSV.

    With a threshold the class is the rarer of two from this probability on. With a
    coverage there is the set of each row, see `FlyNNClassifier.predict_set`. Reasons
    are the columns with the largest contributions to the log odds of this class. In
    front are the columns to keep, as they stand in the file, but that each row is one
    line. A text that a spreadsheet would take for a formula has an apostrophe before
    it.
    """
    model = FlyNNClassifier.load(options.model)
    threshold = options.threshold
    keep = options.keep
    rarer = _rarer(model.model_, threshold)
    node = _node(options)
    # These are no features, where they are there.
    others = (node.label, node.held_out_key, *node.names("ignore"))
    reading = replace(
        reading_of(node), label=None, group="", ignore=[*filter(None, others)]
    )
    file = _opened_for(model, Path(options.file), reading)
    copied: Iterator[Sequence[object]] = repeat(())
    if keep:
        expected = f"{listed([*map(repr, keep)])} for --keep"
        copied = file.source.cells(file.indices(keep, expected))
    head = [*keep, "class", *(f"p({label})" for label in model.classes_), "novelty"]
    coverage = options.coverage
    if coverage is not None:
        head.append("set")
    most = min(options.reasons, model.n_features_in_)
    head += [f"reason {number + 1}" for number in range(most)]
    answers = _answers(file, model, (rarer, threshold), coverage, most)
    first = [*islice(answers, 1)]  # a refusal comes before any line
    out = csv.writer(console, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    out.writerow(map(cell, head))
    for answer in chain(first, answers):
        out.writerow(map(cell, [*next(copied), *answer]))
    return 0


def _answers(
    file: TableFile,
    model: FlyNNClassifier,
    decision: tuple[int, float | None],
    coverage: float | None,
    most: int,
) -> Iterator[list[object]]:
    """Class, figures, set and reasons of each row."""
    classes = model.classes_.tolist()
    rarer, threshold = decision
    for X, _, are_empty in _rows(file, model.model_):
        probabilities = model.predict_proba(X)
        novelty = model.novelty(X).min(axis=1)
        best = _decided(probabilities, rarer, threshold)
        reasons: Iterator[Sequence[object]] = repeat(())
        if most:
            turned = best != probabilities.argmax(axis=1)
            reasons = reasons_in_words(model.model_, X, turned, most)
        columns = (probabilities, best, novelty, are_empty)
        sets: Iterator[Sequence[object]] = repeat(())
        if coverage is not None:
            are_in = model.predict_set(X, coverage)
            sets = ([set_in_words(classes, is_in)] for is_in in are_in)
        for row, index, new, is_empty in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            label = classes[index]
            figures = [round(p, 6) for p in [*row, new]]
            words = [*next(sets), *next(reasons)]
            if is_empty:  # nothing is known of it
                label = ""
                words = ["" for _ in words]
            yield [label, *figures, *words]


def _decided(p: Floats, rarer: int, threshold: float | None) -> Integers:
    """Index of the most probable class, (n,).

    With a threshold it is the rarer of two classes from this probability on.
    """
    if threshold is None:
        best: Integers = p.argmax(axis=1)
        return best
    return np.where(p[:, rarer] >= threshold, rarer, 1 - rarer)


def _rarer(model: Model, threshold: float | None) -> int:
    """Index of the rarer of two classes by the counts, the second among equals.

    A threshold of more classes is refused.
    """
    if threshold is not None and len(model.classes) != 2:
        raise ConfigError("--threshold", "a model of two classes", len(model.classes))
    return rarer(model.members[0].counts.n_per_class)


def _opened_for(model: FlyNNClassifier, path: Path, reading: Reading) -> TableFile:
    """A file with the columns of a model, checked but for rows without a label.

    Settings may name columns that it does not have.
    """
    schema = schema_of_model(model.model_)
    reading = replace(reading, schema=schema, is_strict=False)
    try:
        file = opened(existing(path), reading)
    except DataError as error:
        names = [*(columns_of(path, reading) or [])]
        used = {*schema.names, *schema.ignore, reading.label or "label"}
        own = [name for name in names if name not in used]
        near = nearest(_missing_columns(schema, names), own)
        settings = "label, rename and others"
        if near:
            renames = in_toml({there: name for name, there in near.items()})
            settings = f"rename = {renames}"
        remedy = f"--site names a file with settings of this one: {settings}"
        error.add_note(f"{path.name}: {remedy}")
        raise
    if not schema.is_named and len(file.reports) != len(schema.columns):
        raise DataError(
            path.name,
            f"{len(schema.columns)} columns, as the model has no names",
            len(file.reports),
        )
    file.check(needs_labels=False)
    if any(report.texts or report.numerals.unit for report in file.reports):
        console.note(file.described())
    return file


def _rows(file: TableFile, model: Model) -> Iterator[tuple[Table | Floats, Any, Mask]]:
    """The rows of a file as the model takes them, their labels, and a mask of those
    without any value, some at a time.

    Labels are an array, or None in a file without a column of labels. At the end it is
    noted what the model cannot know.
    """
    schema = schema_of_model(model)
    noticed = Counter[str]()
    for batch in file.batches(labelled=False):
        if len(batch.table):
            X: Table | Floats = batch.table
            are_empty = np.all([*map(missing, batch.table.columns)], axis=0)
            if model.schema is None:
                X = schema.encode(X)
            noticed += strangers(model, X)
            yield X, batch.labels, are_empty
    for text, n_rows in noticed.items():
        if n_rows > file.n_rows / 200:
            console.note(f"{text} ({n_rows} of {file.n_rows} rows)")


def score(options: Namespace) -> int:
    """Print the figures of a model on labelled rows of a file, and write them as CSV.

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
    file = _opened_for(model, path, reading_of(_node(options)))
    p, codes, unknown = _predictions(file, model)
    y = codes[codes >= 0]
    best = _decided(p, rarer, threshold)
    figures: dict[str, float] = {
        "rows": len(y),
        "rows without a label": int((codes == _UNLABELLED).sum()),
        "rows with an unknown label": len(unknown),
        "unknown labels": len(set(unknown)),
        **_figures(p, y, best, len(model.classes_)),
    }
    if threshold is not None:
        flagged = best == rarer
        positive = y == rarer
        figures |= {
            "threshold": threshold,
            "flagged": int(flagged.sum()),
            "flagged rightly": int((flagged & positive).sum()),
            "missed": int((positive & ~flagged).sum()),
        }
    console.print_table([[name, f"{figure:.6g}"] for name, figure in figures.items()])
    lines = [f"{name},{figure}\n" for name, figure in figures.items()]
    with writing(out) as stream:
        stream.write("".join(["figure,value\n", *lines]).encode())
    console.say(out)
    return 0


_UNKNOWN = -1
_UNLABELLED = -2


def _predictions(
    file: TableFile, model: FlyNNClassifier
) -> tuple[Floats, Integers, list[object]]:
    """Probabilities of the rows whose label is a class, codes of all, other labels.

    Codes are indices of classes, `_UNKNOWN` or `_UNLABELLED`.
    """
    book = codebook(model.classes_.tolist())
    probabilities = list[Floats]()
    codes = list[Integers]()
    unknown = list[object]()
    gaps = label_gaps(file.reading.dialect)
    for X, labels, _ in _rows(file, model.model_):
        own = codes_in(book, labels)
        own[(own < 0) & unlabelled(labels, gaps)] = _UNLABELLED
        unknown += labels[own == _UNKNOWN].tolist()
        is_known = own >= 0
        if is_known.any():
            probabilities.append(model.predict_proba(X[is_known]))
        codes.append(own)
    if not probabilities:
        classes = listed([repr(label)[:60] for label in model.classes_.tolist()])
        expected = f"labels {classes}, or others with label-map in --site FILE"
        raise with_names(DataError(file.name, expected, "none"), dict.fromkeys(unknown))
    return np.concatenate(probabilities), np.concatenate(codes), unknown


def _figures(
    p: Floats, y: Integers, best: Integers, n_classes: int
) -> dict[str, float]:
    """Figures of probabilities, (n, L), and decisions for class indices, (n,)."""
    from sklearn import metrics

    brier = ((p - np.eye(n_classes)[y]) ** 2).sum(axis=1).mean()
    compared = range(n_classes)
    if n_classes == 2:
        # The Brier score and the AUROC of one class are those of the other.
        brier = brier / 2
        compared = compared[-1:]
    areas = [
        metrics.roc_auc_score(y == code, p[:, code])
        for code in compared
        if 0 < (y == code).sum() < len(y)
    ]
    auroc = np.nan
    if areas:
        auroc = np.mean(areas)
    return {
        "accuracy": metrics.accuracy_score(y, best),
        "balanced accuracy": metrics.balanced_accuracy_score(y, best),
        "log-loss": metrics.log_loss(y, p, labels=range(n_classes)),
        "Brier score": brier,
        "AUROC": auroc,
    }
