"""Where an experiment leaves its results: finished cells, CSV tables and PNG files under an output folder."""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Row = dict[str, Any]

_ROOT = Path(__file__).parents[1]


def parser(experiment: str, description: str | None, full: str = "") -> ArgumentParser:
    """An argument parser with the options that all experiments share; and `--full` where `full` says what it does."""
    options = ArgumentParser(prog=f"python -m simulations {experiment}", description=description)
    size = options.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer and smaller cases, about a minute")
    if full:
        size.add_argument("--full", action="store_true", help=full)
    options.add_argument(
        "--data", type=Path, help="folder of .npz data sets with X and y; stand-ins are made without it"
    )
    options.add_argument(
        "--output", "--out", type=Path, help=f"folder for the results (default: ./results/{experiment})"
    )
    options.set_defaults(experiment=experiment)
    return options


def output_folder(options: Any) -> Path:
    """The folder to write to, made if it is not there."""
    folder = (options.output or Path("results") / options.experiment).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows of one table; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written: {path}")


def text_table(rows: Sequence[Row]) -> str:
    """Rows as lines of aligned columns: text to the left, numbers to the right with three digits that count."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_short(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    left = [all(isinstance(row.get(name, ""), str) for row in rows) for name in columns]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if to_left else cell.rjust(w) for cell, w, to_left in zip(line, widths, left, strict=True)
        )
        for line in [columns, *cells]
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown: text to the left, numbers to the right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    left = [all(isinstance(row.get(name, ""), str) for row in rows) for name in columns]
    lines = [columns, [":--" if to_left else "--:" for to_left in left]]
    lines += [[_short(row.get(name, "")) for name in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
    return str(value)


class Cells:
    """Finished pieces of a long experiment, one JSON file each, so that none is computed twice.

    A cell is found again only under a key that is equal in every entry: put into it whatever the result depends on.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def _path(self, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        # The head is for people who look into the folder.
        head = "-".join(str(key[name]) for name in ("set", "job") if name in key)
        return self._folder / f"{''.join(c if c.isalnum() or c in '-_' else '_' for c in head)[:80]}-{digest[:16]}.json"

    def get(self, key: Mapping[str, Any]) -> list[Row] | None:
        """The rows of a finished cell; None if there are none, or only a file that is damaged."""
        try:
            cell = json.loads(self._path(key).read_text(encoding="utf-8"))
            rows: list[Row] = cell["rows"]
            return rows if cell["key"] == json.loads(json.dumps(key)) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def finish(self, key: Mapping[str, Any], work: Callable[[], Sequence[Row]]) -> list[Row]:
        """The rows of a cell: those that are kept, or else what `work` returns, which is kept then."""
        found = self.get(key)
        if found is None:
            start = time.perf_counter()
            self.put(key, work())
            seconds = time.perf_counter() - start
            print(f"{key['set']}: {key['job']}, {seconds:.1f} s", file=sys.stderr, flush=True)
            found = self.get(key)  # as JSON gives it back, so that a run and its repetition are the same
        return found or []

    def put(self, key: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Keep the rows of a cell. The file appears whole or not at all, whenever this is interrupted."""
        path = self._path(key)
        half = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            half.write_text(json.dumps({"key": key, "rows": rows}, indent=1), encoding="utf-8")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)


def about(docstring: str | None) -> str:
    """What a module says of itself below its first line."""
    return (docstring or "").partition("\n")[2].strip()


def write_summary(
    folder: Path, title: str, experiment: str, arguments: Sequence[str], seconds: float, parts: Sequence[str]
) -> None:
    """What came of an experiment, as a page in Markdown: the command, its time, and what the experiment has to say.

    Parameters
    ----------
    folder : Path
        Gets the ``summary.md``.
    title, experiment : str
    arguments : sequence of str
        Of the command line, without paths in it: it is meant for others.
    seconds : float
        Of this run, by the clock; cells that were there already took none of it.
    parts : sequence of str
        Paragraphs and tables.
    """
    shown = [f"{Path(word).name or word}" if "/" in word or "\\" in word else word for word in arguments]
    command = " ".join(["python -m simulations", experiment, *shown])
    head = f"`{command}`: {seconds:.0f} s, not counting what an earlier run had finished."
    path = folder / "summary.md"
    path.write_text("\n\n".join([f"# {title}", head, *parts]) + "\n", encoding="utf-8")
    print(f"written: {path}")


def code_digest(*modules: str) -> str:
    """Digest of the code of modules of this project and of all of the project that they import.

    Comments and docstrings do not count, nor does a package's ``__init__``. It goes into the key of cells: results
    of yesterday's code must not pass for today's.

    Parameters
    ----------
    *modules : str
        Dotted names, as in ``"flwr_flynn.model.classifier"``.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    todo, done = list(modules), {}
    while todo:
        name = todo.pop()
        path = _ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name in done or not path.exists():
            continue
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = None  # a docstring
        done[name] = ast.dump(tree)
    return hashlib.sha256("\n".join(f"{name} {done[name]}" for name in sorted(done)).encode()).hexdigest()[:16]


def compare(ours: Mapping[str, float], theirs: Mapping[str, float], reference: Mapping[str, float]) -> Row:
    """One line of the paper's comparison, over the data sets that have all three accuracies.

    Parameters
    ----------
    ours, theirs : mapping of data set to accuracy
    reference : mapping of data set to accuracy
        That of tuned kNN, a_k: the paper calls 1 - a / a_k the normalised accuracy of a; lower is better.

    Returns
    -------
    dict
        ``won``: fraction of sets won; ``W/T/L``; ``improvement``: the median of how much lower our normalised accuracy
        is than theirs, as in the paper; ``median loss``, ``mean loss``: of r = 1 - ours / theirs, negative where ours
        is better; ``worst``: the largest r, and its set; ``t p``, ``Wilcoxon p``: two-sided paired tests on the
        normalised accuracies, nan for fewer than two sets.
    """
    from scipy.stats import ttest_1samp, wilcoxon

    names = [name for name in ours if name in theirs and name in reference]
    if not names:
        return {"sets": 0}
    a, b, k = (np.array([table[name] for name in names]) for table in (ours, theirs, reference))
    gain = np.where(np.abs(a - b) < 1e-12, 0.0, a - b)
    normalised, loss = gain / k, -gain / b
    t_p = wilcoxon_p = float("nan")
    if len(names) > 1:
        # Both tests divide by a spread, which equal differences do not have.
        t_p = float(ttest_1samp(normalised, 0).pvalue) if np.ptp(normalised) else float(not gain.any())
        wilcoxon_p = float(wilcoxon(normalised).pvalue) if gain.any() else 1.0
    worst = int(loss.argmax())
    return {
        "sets": len(names),
        "won": float((gain > 0).mean()),
        "W/T/L": f"{(gain > 0).sum()}/{(gain == 0).sum()}/{(gain < 0).sum()}",
        "improvement": float(np.median(normalised)),
        "median loss": float(np.median(loss)),
        "mean loss": float(loss.mean()),
        "worst": float(loss[worst]),
        "worst set": names[worst],
        "t p": t_p,
        "Wilcoxon p": wilcoxon_p,
    }


def by_method(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Accuracy of each method on each data set."""
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        table.setdefault(row["method"], {})[row["set"]] = row["mean"]
    return table


def comparison(rows: Sequence[Row], variants: Sequence[str], reference: str) -> list[Row]:
    """The paper's table, for each of our variants against each method that is none of them."""
    table = by_method(rows)
    return [
        {"FlyNN": variant, "against": other} | compare(table[variant], table[other], table[reference])
        for variant in variants
        for other in table
        if other not in variants
    ]


def summarised(rows: Sequence[Row], **about: Any) -> list[Row]:
    """A row per set and method as it goes to the CSV: for the scores, their mean and standard deviation over folds."""
    result = []
    for row in rows:
        scores = np.array(row["scores"])
        figures = {"mean": float(scores.mean()), "sd": float(scores.std(ddof=1)), "seconds": row["seconds"]}
        rest = {key: row[key] for key in ("set", "method", "n", "d", "classes")}
        result.append(rest | figures | about | {"detail": row["detail"]})
    return result


def reliability(name: str, probabilities: Array, y: Array) -> Row:
    """Log-loss, and confidence against accuracy of the class that was predicted, in ten bins of equal width.

    Parameters
    ----------
    name : str
        Of the method.
    probabilities : (n, L) float array
        Those below 1e-6 count as 1e-6 in the log-loss.
    y : (n,) int array

    Returns
    -------
    dict
        ``balanced log-loss`` is the mean over classes; ``calibration error`` the mean distance of confidence and
        accuracy over the points, by bin; ``confidence``, ``right`` and ``in bin`` are lists over the bins with points.
    """
    losses = -np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-6))
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    bins = np.minimum((confidence * 10).astype(np.int64), 9)
    sizes = np.bincount(bins, minlength=10)
    sums = [np.bincount(bins, weights=values, minlength=10) for values in (confidence, right.astype(np.float64))]
    filled = sizes > 0
    return {
        "method": name,
        "points": len(y),
        "accuracy": float(right.mean()),
        "log-loss": float(losses.mean()),
        "balanced log-loss": float(np.mean([losses[y == label].mean() for label in np.unique(y)])),
        "calibration error": float(np.abs(sums[0] - sums[1]).sum() / len(y)),
        "confidence": (sums[0][filled] / sizes[filled]).tolist(),
        "right": (sums[1][filled] / sizes[filled]).tolist(),
        "in bin": sizes[filled].tolist(),
    }
