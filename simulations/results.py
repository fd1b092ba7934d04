"""Output of an experiment: finished cells, CSV tables and a summary under a folder."""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import numpy.typing as npt
import pandas as pd

from flwr_flynn import __version__

Array = npt.NDArray[Any]
Row = dict[str, Any]

MODEL = ("flwr_flynn.hashing", "flwr_flynn.model")
FEDERATED = (*MODEL, "flwr_flynn.privacy", "flwr_flynn.federated")
"""Layers of the package for `code_digest`, each with the layers that it imports."""

ROOT = Path(__file__).parents[1]


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
    """Write rows of one table; columns in the order in which they first appear."""
    _frame(rows).to_csv(path, index=False, na_rep="nan", lineterminator="\r\n")
    print(f"written: {path}")


def text_table(rows: Sequence[Row]) -> str:
    """Rows as lines of aligned columns: text to the left, numbers to the right, rounded to three digits."""
    frame, left = _shown(rows)
    table = pd.concat([frame.columns.to_frame().T, frame]) if rows else frame
    sides = ["right" if to_left else "left" for to_left in left]
    padded = [table[name].str.pad(table[name].str.len().max(), side) for name, side in zip(table, sides, strict=True)]
    return "\n".join(map("  ".join, zip(*padded, strict=True)))


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown: text to the left, numbers to the right."""
    frame, left = _shown(rows)
    lines = [frame.columns, [":--" if to_left else "--:" for to_left in left], *frame.to_numpy()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    empty = dict.fromkeys((name for row in rows for name in row), "")
    return pd.DataFrame([empty | row for row in rows], dtype=object)


def _shown(rows: Sequence[Row]) -> tuple[pd.DataFrame, list[bool]]:
    """Rounded cells, and for each column whether it is text."""
    frame = _frame(rows)
    return frame.map(_short), [all(isinstance(cell, str) for cell in frame[name]) for name in frame]


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.0005 else f"{value:.3f}"
    return str(value)


class Cells:
    """Finished pieces of a long experiment, kept by joblib, so that none is computed twice.

    A cell is found again only under a key that is equal in every entry: a key holds all that the result depends on.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._kept = joblib.Memory(folder, verbose=0).cache(_rows, ignore=["work"])

    def get(self, key: Mapping[str, Any]) -> list[Row] | None:
        """The rows of a finished cell; None if there are none, or only a file that is damaged."""

        def missing() -> list[Row]:
            raise LookupError

        try:
            rows: list[Row] = self._kept(json.dumps(key, sort_keys=True), missing)
            return rows
        except LookupError:
            return None

    def put(self, key: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Keep the rows of a cell. The file appears whole or not at all, even if this is interrupted."""
        self._kept.call(json.dumps(key, sort_keys=True), lambda: list(rows))

    def finish(self, key: Mapping[str, Any], work: Callable[[], Sequence[Row]]) -> list[Row]:
        """The rows of a cell: those that are kept, or else those that `work` returns, which are then kept."""
        found = self.get(key)
        if found is None:
            start = time.perf_counter()
            found = list(work())
            self.put(key, found)
            seconds = time.perf_counter() - start
            print(f"{key['set']}: {key['job']}, {seconds:.1f} s", file=sys.stderr, flush=True)
        return found


def _rows(key: str, work: Callable[[], list[Row]]) -> list[Row]:
    return work()


def about(docstring: str | None) -> str:
    """The docstring of a module without its first line."""
    return (docstring or "").partition("\n")[2].strip()


def write_summary(
    folder: Path, title: str, experiment: str, arguments: Sequence[str], seconds: float, parts: Sequence[str]
) -> None:
    """Write the summary of an experiment in Markdown: the command, its time and place, and the parts.

    Parameters
    ----------
    folder : Path
        Gets the ``summary.md``.
    title, experiment : str
    arguments : sequence of str
        Arguments of the command line; folders are shown as ``FOLDER``.
    seconds : float
        Wall time of this run, without cells that were there already.
    parts : sequence of str
        Paragraphs and tables.
    """
    head = (
        f"`{command_line(experiment, arguments)}`: {seconds:.0f} s, not counting what an earlier run had finished. "
        f"flwr-flynn {__version__}, {datetime.now(UTC):%Y-%m-%d}, {machine()}."
    )
    if "--quick" in arguments:
        head += " A quick run: fewer and smaller cases."
    path = folder / "summary.md"
    path.write_text("\n\n".join([f"# {title}", head, *parts]) + "\n", encoding="utf-8")
    print(f"written: {path}")


def command_line(experiment: str, arguments: Sequence[str]) -> str:
    """The command that makes results again, without the names of folders.

    >>> command_line("noniid", ["--quick", "--data", "here", "--output=/there", "--parties", "10"])
    'python -m simulations noniid --quick --data FOLDER --parties 10'
    """
    shown, words = [], iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--data", "--output", "--out"):
            shown.append(word)
            continue
        if not equals:
            next(words, None)
        if name == "--data":  # without it other data are used; the place of the results is of no matter
            shown += ["--data", "FOLDER"]
    return shlex.join(["python", "-m", "simulations", experiment, *shown])


def machine() -> str:
    """This machine in words: cores, processor, system and Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = " ".join((models or [platform.processor() or platform.machine()])[0].split())
    return f"{cores} cores of {processor}, {platform.system()}, Python {platform.python_version()}"


def code_digest(*names: str) -> str:
    """Digest of source files of this project, for the key of cells: results of older code are not found then.

    Parameters
    ----------
    *names : str
        Dotted names of modules, and of packages for all that is in them.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    paths = [ROOT.joinpath(*name.split(".")) for name in names]
    files = {file for path in paths for file in ([*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")])}
    return str(joblib.hash([(str(file.relative_to(ROOT)), file.read_bytes()) for file in sorted(files)]))


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
    """The paper's table: each of our variants against each other method; nothing if the reference was not measured."""
    table = by_method(rows)
    return [
        {"FlyNN": variant, "against": other} | compare(table[variant], table[other], table[reference])
        for variant in variants
        for other in table
        if other not in variants and {variant, reference} <= table.keys()
    ]


def against(rows: Sequence[Row], ours: str, others: Sequence[str]) -> list[Row]:
    """The short table: one method against each of some others, over the sets that both have.

    Parameters
    ----------
    rows : sequence of dict
        Those of `summarised`.
    ours : str
    others : sequence of str
        Methods without rows are left out.

    Returns
    -------
    list of dict
        Median of 1 - a / a_other, negative where ours is better; share of sets won; the largest, and its set; mean
        accuracies.
    """
    table = by_method(rows)
    lines: list[Row] = []
    for other in others:
        theirs = table.get(other, {})
        found = compare(table.get(ours, {}), theirs, theirs)
        if found["sets"]:
            both = np.array([(a, theirs[name]) for name, a in table[ours].items() if name in theirs])
            mine, other_mean = both.mean(axis=0).tolist()
            lines.append({
                "against": other, "sets": found["sets"], "median 1 - a/a_other": found["median loss"],
                "won": found["won"], "worst": found["worst"], "worst set": found["worst set"],
                f"mean of {ours}": mine, "mean of the other": other_mean,
            })  # fmt: skip
    return lines


def summarised(rows: Sequence[Row], **about: Any) -> list[Row]:
    """A row per set and method for the CSV, with mean and standard deviation of the scores over folds."""
    result = []
    for row in rows:
        scores = np.array(row["scores"])
        spread = float(scores.std(ddof=1)) if len(scores) > 1 else float("nan")
        figures = {"mean": float(scores.mean()), "sd": spread, "seconds": row["seconds"], "folds": len(scores)}
        rest = {key: row[key] for key in ("set", "method", "n", "d", "classes")}
        result.append(rest | figures | about | {"detail": row["detail"]})
    return result


def fold_rows(rows: Sequence[Row], sizes: Mapping[str, Sequence[tuple[int, int]]]) -> list[Row]:
    """A row per set, method and fold for the CSV.

    Seconds are nan where fit and prediction are not measured apart. Of a tuned method they are those of what was
    chosen, without the search; the nested choice of kNN is part of its fit.

    Parameters
    ----------
    rows : sequence of dict
        Those of the jobs.
    sizes : mapping of data set to a sequence of (int, int)
        Training and held-out samples of each fold.
    """
    names = ("balanced accuracy", "fit seconds", "predict seconds", "n_train", "n_test")
    result: list[Row] = []
    for row in rows:
        fit, predict = (row.get(what, itertools.repeat(float("nan"))) for what in ("fit", "predict"))
        folds = zip(row["scores"], fit, predict, sizes[row["set"]], strict=False)
        result += [
            {"set": row["set"], "method": row["method"], "fold": number}
            | dict(zip(names, (score, *seconds, *size), strict=True))
            | {"d": row["d"], "classes": row["classes"]}
            for number, (score, *seconds, size) in enumerate(folds)
        ]
    return result


def reliability(name: str, probabilities: Array, y: Array) -> Row:
    """Log-loss, and confidence against accuracy of the class that was predicted, in ten bins of equal width.

    Parameters
    ----------
    name : str
        Name of the method.
    probabilities : (n, L) float array
        Those below 1e-6 count as 1e-6 in the log-loss.
    y : (n,) int array

    Returns
    -------
    dict
        ``balanced log-loss`` is the mean over classes; ``calibration error`` the mean distance of confidence and
        accuracy over the samples, by bin; ``confidence``, ``right`` and ``in bin`` are lists over the filled bins.
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
