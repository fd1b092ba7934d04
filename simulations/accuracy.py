"""FlyNN beside tuned nearest neighbours, forests, boosting and the paper's baselines, on every data set of a folder.

Balanced accuracy, stratified folds, the same for all methods. Compared are FlyNN with its defaults and with effort
"thorough", without tuning, the paper's FlyNN and ours with 20 random configurations each, tuned kNN and 1-NN on two
scalings, SBFC, logistic regression and a perceptron for one epoch, and, with balanced class weights and no tuning, a
random forest of 200 trees, gradient boosting and logistic regression to the end (`simulations.methods`). kNN, SBFC and
the tuned FlyNNs are given their best mean score over the very folds, as in the paper; for kNN there is the honest
choice within the training folds as well.

Finished pieces are kept under the output folder and not computed again, unless data, settings or code change.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError
from simulations import methods, plots
from simulations.methods import FLYNN, KNN, PAPER, THOROUGH, TUNED, Problem, Settings
from simulations.results import (
    Cells,
    Row,
    about,
    against,
    by_method,
    code_digest,
    comparison,
    fold_rows,
    markdown_table,
    output_folder,
    parser,
    summarised,
    text_table,
    write_csv,
    write_summary,
)

Array = npt.NDArray[Any]

CALIBRATION_SETS = ("letters", "satimage", "spambase", "digits", "usps", "iris", "breast_cancer", "wine")
NOVELTY_SETS = ("digits", "usps", "satimage", "segment", "letters", "iris", "wine")


class SetError(DataError):
    """A data set cannot be used; `field` names it or its array, or the option."""


def read_set(path: Path) -> tuple[Array, Array]:
    """Samples and class numbers of an .npz file with X and y; X_test and y_test are appended if it has them."""
    X, y, _ = read_split(path)
    return X, y


def read_split(path: Path) -> tuple[Array, Array, int]:
    """Samples and class numbers of an .npz file, and how many of the last ones are its official test split.

    Raises
    ------
    SetError
        Anything about the file that keeps it from being a classification problem.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = ("X", "y", "X_test", "y_test")
            arrays = {name: file[name] for name in names if name in file}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, MemoryError) as error:
        text = f"{path.name}: cannot be read as .npz ({str(error)[:200]})"
        raise SetError(path.name, "an .npz", type(error).__name__, text=text) from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        text = f"{path.name}: damaged or unusual archive ({str(error)[:200]})"
        raise SetError(path.name, "an .npz", type(error).__name__, text=text) from None
    for pair in (("X", "y"), ("X_test", "y_test")):
        if pair[0] in arrays or pair[1] in arrays or pair == ("X", "y"):
            _check_pair(path.name, pair, arrays)
    X, y = arrays["X"], arrays["y"]
    if "X_test" in arrays:
        if arrays["X_test"].shape[1] != X.shape[1]:
            expected = f"{X.shape[1]} features as in X"
            raise SetError(f"{path.name}: X_test", expected, arrays["X_test"].shape[1])
        if (arrays["y_test"].dtype.kind in "US") != (y.dtype.kind in "US"):
            raise SetError(f"{path.name}: y_test", f"labels as in y, {y.dtype}", arrays["y_test"].dtype.name)
        X, y = np.concatenate([X, arrays["X_test"]]), np.concatenate([y, arrays["y_test"]])
    return X, y, len(y) - len(arrays["y"])


def _check_pair(name: str, pair: tuple[str, str], arrays: Mapping[str, Array]) -> None:
    for key in pair:
        if key not in arrays:
            raise SetError(name, "arrays X and y", f"no {key}")
    X, y = arrays[pair[0]], arrays[pair[1]]
    if X.ndim != 2 or X.shape[1] < 1 or X.dtype.kind not in "biuf":
        raise SetError(f"{name}: {pair[0]}", "a table of numbers", f"{X.dtype} of shape {X.shape}")
    if y.shape != (len(X),) or y.dtype.kind not in "biufUS":
        raise SetError(f"{name}: {pair[1]}", f"{len(X)} labels", f"{y.dtype} of shape {y.shape}")
    for key in pair:
        if arrays[key].dtype.kind == "f" and not np.isfinite(arrays[key]).all():
            raise SetError(f"{name}: {key}", "finite numbers", "missing or infinite values")


def drawn(codes: Array, n: int, generator: np.random.Generator) -> Array:
    """Indices of a stratified subsample of n samples, ascending: at least two of each class if there is room."""
    order, sizes = generator.permutation(len(codes)), np.bincount(codes)
    rank = np.empty(len(codes))  # of each sample within its class, in the order drawn
    for label in range(len(sizes)):
        rank[order[codes[order] == label]] = np.arange(sizes[label])
    keep = np.where(rank < 2, 0.0, (rank + 0.5) / sizes[codes])
    return np.sort(order[np.argsort(keep[order], kind="stable")[:n]])


def make_problem(name: str, X: Array, y: Array, settings: Settings, max_examples: int, n_test: int = 0) -> Problem:
    """A data set with its folds; of large ones a stratified subsample, at least two samples of each class.

    With `n_test` the only fold is that of the last samples, so many before the subsampling: an official test split.

    Raises
    ------
    SetError
        Fewer than two classes with two samples each, or no class with a sample for each fold.
    """
    from sklearn.model_selection import StratifiedKFold

    generator = np.random.default_rng(settings.seed)
    codes = np.unique(y, return_inverse=True)[1].reshape(-1)
    fold = np.where(np.arange(len(X)) < len(X) - n_test, -1, 0)
    if max_examples and len(X) > max_examples:
        chosen = drawn(codes, max_examples, generator)
        X, codes, fold = X[chosen], np.unique(codes[chosen], return_inverse=True)[1], fold[chosen]
    if n_test:
        if fold.max() < 0 or len(np.unique(codes[fold < 0])) < 2:
            raise SetError(name, "two classes to learn from, and a test split", f"{(fold == 0).sum()} to test on")
        return Problem(name, X, codes.astype(np.int64), fold)
    sizes = np.bincount(codes)
    if (sizes > 1).sum() < 2 or sizes.max() < settings.folds:
        folds = settings.folds
        expected = f"for {folds} folds two classes with two samples each, and one with {folds} samples"
        raise SetError(name, expected, f"{len(codes)} samples in {len(sizes)} classes")
    with warnings.catch_warnings():
        # Rare classes are absent from some folds; their recall is then averaged over fewer.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = StratifiedKFold(settings.folds, shuffle=True, random_state=settings.seed)
        for number, (_, test) in enumerate(folds.split(X, codes)):
            fold[test] = number
    return Problem(name, X, codes.astype(np.int64), fold)


def bundled_sets() -> dict[str, Callable[[], tuple[Array, Array]]]:
    """Sets that need no files: scikit-learn's small sets, two in the plane, and synthetic ones as in the paper."""
    from sklearn import datasets

    from simulations.generated import binary, real

    return {
        "digits": lambda: datasets.load_digits(return_X_y=True),
        "iris": lambda: datasets.load_iris(return_X_y=True),
        "wine": lambda: datasets.load_wine(return_X_y=True),
        "breast_cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
        "moons": lambda: datasets.make_moons(1000, noise=0.2, random_state=0),
        "circles": lambda: datasets.make_circles(1000, noise=0.1, factor=0.5, random_state=0),
        "synthetic": lambda: real(1000, 50, seed=0),
        "synthetic_binary": lambda: binary(1000, 50, 20, seed=0),
    }


def load_problems(
    folder: Path | None, wanted: Sequence[str], settings: Settings, max_examples: int, official: bool = False
) -> list[Problem]:
    """All problems of a run, checked before the first of them costs time; bundled ones where there is no folder.

    If `official`, sets with a test split of their own have this one instead of folds.
    """
    readers: dict[str, Callable[[], tuple[Any, ...]]] = {**bundled_sets()}
    if folder is not None:
        if not folder.is_dir():
            raise SetError("--data", "a folder", str(folder))
        readers = {path.stem: lambda path=path: read_split(path) for path in sorted(folder.glob("*.npz"))}  # type: ignore[misc]
        if not readers:
            raise SetError("--data", ".npz files", f"none in {folder}")
    unknown = [name for name in wanted if name not in readers]
    if unknown:
        raise SetError("--sets", f"some of {', '.join(readers)}", ", ".join(unknown))
    names = list(dict.fromkeys(wanted)) or list(readers)
    problems = []
    for name in names:
        X, y, *n_test = readers[name]()
        problems.append(make_problem(name, X, y, settings, max_examples, *(n_test if official else ())))
    return problems


# Of the code as it was when this started: somebody may edit it before the run is over.
_CODE = {job.modules: code_digest(*job.modules) for job in methods.JOBS.values()}


def call(task: tuple[str, Problem, Settings]) -> tuple[list[Row], float]:
    from threadpoolctl import threadpool_limits

    name, problem, settings = task
    start = time.perf_counter()
    try:
        with threadpool_limits(settings.threads):
            return methods.JOBS[name].run(problem, settings), time.perf_counter() - start
    except Exception as error:
        error.add_note(f"in {name} on {problem.name}")
        raise


def run(
    plan: Sequence[tuple[Problem, str]], settings: Settings, cells: Cells, workers: int = 1
) -> dict[str, list[Row]]:
    """Do the jobs of a plan, or take their rows from `cells` where they are already there.

    Parameters
    ----------
    plan : sequence of (problem, name of a job)
    settings : Settings
    cells : Cells
    workers : int
        Processes.

    Returns
    -------
    dict of list of dict
        The rows of each job, with name and shape of their data set added.
    """
    data = {problem.name: problem.digest() for problem, _ in plan}
    keys = [
        {
            "set": problem.name,
            "job": name,
            "data": data[problem.name],
            "code": _CODE[methods.JOBS[name].modules],
            "settings": methods.JOBS[name].settings(settings),
        }
        for problem, name in plan
    ]
    found = [cells.get(key) for key in keys]
    todo = [i for i, rows in enumerate(found) if rows is None]
    print(f"{len(todo)} of {len(found)} cells to compute", file=sys.stderr, flush=True)
    results = _results([(plan[i][1], plan[i][0], settings) for i in todo], workers)
    for number, (position, rows, seconds) in enumerate(results, 1):
        i = todo[position]
        cells.put(keys[i], rows)
        found[i] = rows
        print(f"[{number}/{len(todo)}] {plan[i][0].name}: {plan[i][1]}, {seconds:.1f} s", file=sys.stderr, flush=True)
    by_job: dict[str, list[Row]] = {name: [] for _, name in plan}
    for (problem, name), cell in zip(plan, found, strict=True):
        shape = {"set": problem.name, "n": len(problem.X), "d": problem.X.shape[1], "classes": problem.n_classes}
        by_job[name] += [shape | row for row in cell or []]
    return by_job


def _results(tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, list[Row], float]]:
    """Position of each task, rows and seconds, in the order in which tasks end."""
    numbered = list(enumerate(tasks))
    if workers == 1 or len(tasks) < 2:
        yield from map(_numbered_call, numbered)
        return
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is for this process alone: leaving the block ends the workers.
    with context.Pool(min(workers, len(tasks)), signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap_unordered(_numbered_call, numbered)


def _numbered_call(numbered: tuple[int, tuple[str, Problem, Settings]]) -> tuple[int, list[Row], float]:
    return numbered[0], *call(numbered[1])


def _options(experiment: str, arguments: list[str]) -> tuple[Any, Settings, list[Problem]]:
    full = f"all samples, 5 folds, and only {', '.join(methods.MAIN)}, unless other options say otherwise: hours"
    options = parser(experiment, __doc__, full)
    options.add_argument("--sets", default="", help="names of data sets, separated by commas (default: all)")
    options.add_argument("--max-examples", type=int, help="samples of each set, 0 for all (default: 2000, quick: 300)")
    options.add_argument("--folds", type=int, help="default: 10, quick: 3, full: 5")
    options.add_argument("--official", action="store_true", help="no folds where a set has a test split, but that")
    options.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options.add_argument("--threads", type=int, default=1, help="threads of each method (default: 1)")
    if experiment == "accuracy":
        what = f"some of {', '.join(_JOBS)}, separated by commas (default: all)"
        options.add_argument("--methods", default="", help=what)
    options.add_argument(
        "--ablation", action="store_true", help="the ablation instead: `python -m simulations ablation`"
    )
    chosen = options.parse_args(arguments)
    folds = chosen.folds if chosen.folds is not None else 3 if chosen.quick else 5 if chosen.full else 10
    most = chosen.max_examples
    if most is None:
        most = 300 if chosen.quick else 0 if chosen.full else 2000
    if folds < 2 or most < 0 or min(chosen.jobs, chosen.threads) < 1:
        options.error("expected --folds of at least 2, --max-examples of at least 0, --jobs, --threads of at least 1")
    settings = Settings(folds=folds, threads=chosen.threads)
    if chosen.quick:
        settings = replace(settings, draws=3, largest_dim=1024)
    try:
        if experiment == "accuracy":
            chosen.methods = _names(chosen.methods) or (methods.MAIN if chosen.full else _JOBS)
            unknown = [name for name in chosen.methods if name not in _JOBS]
            if unknown:
                raise SetError("--methods", f"some of {', '.join(_JOBS)}", ", ".join(unknown))
        return chosen, settings, load_problems(chosen.data, _names(chosen.sets), settings, most, chosen.official)
    except SetError as error:
        options.error(str(error))


_JOBS = (*methods.COMPARED, "calibration", "novelty")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(arguments: list[str]) -> None:
    """Compare, print, write."""
    options, settings, problems = _options("accuracy", arguments)
    if options.ablation:
        _ablation(options, settings, problems, arguments)
        return
    start = time.perf_counter()
    folder = output_folder(options)
    cells = Cells(folder / "cells")
    chosen = [name for name in methods.COMPARED if name in options.methods]
    plan = [(problem, name) for problem in problems for name in chosen]
    if "calibration" in options.methods:
        plan += [(problem, "calibration") for problem in _some(problems, CALIBRATION_SETS, 6, n_classes=2)]
    if "novelty" in options.methods:
        plan += [(problem, "novelty") for problem in _some(problems, NOVELTY_SETS, 3, n_classes=3)]
    measured = run(plan, settings, cells, options.jobs)
    by_fold = [row for name in chosen for row in measured.get(name, [])]
    rows = summarised(by_fold, seed=settings.seed)
    reliability, novelty = measured.get("calibration", []), _with_means(measured.get("novelty", []))
    calibration = [{key: value for key, value in row.items() if not isinstance(value, list)} for row in reliability]
    beaten, compared = against(rows, FLYNN, methods.OTHERS), comparison(rows, (FLYNN, THOROUGH, PAPER, TUNED), KNN)
    tables = {
        "FlyNN with its defaults:": beaten,
        f"{THOROUGH}:": against(rows, THOROUGH, (FLYNN, *methods.OTHERS)),
        "All methods:": compared,
        "Probabilities:": calibration,
        "Samples of classes never seen, mean over classes:": [row for row in novelty if row["class"] == "mean"],
    }
    for heading, table in tables.items():
        if table:
            print(f"{heading}\n{text_table(table)}\n")
    folds = fold_rows(by_fold, {problem.name: problem.sizes for problem in problems})
    files = {
        "accuracy": rows, "folds": folds, "against": beaten, "comparison": compared, "calibration": calibration,
        "novelty": novelty,
    }  # fmt: skip
    for name, table in files.items():
        if table:
            write_csv(folder / f"{name}.csv", table)
    figures = draw(rows, folder)
    if reliability:
        plots.reliability(reliability, folder / "calibration.png")
        figures.append("![calibration](calibration.png)")
    means = by_method(rows)
    per_set: list[Row] = [{"set": p.name} | {name: of[p.name] for name, of in means.items()} for p in problems]
    tables["Balanced accuracy:"] = per_set
    parts = [part for heading, table in tables.items() if table for part in (heading, markdown_table(table))]
    parts = [about(__doc__), *parts, *figures]
    write_summary(folder, "Accuracy", "accuracy", arguments, time.perf_counter() - start, parts)


def _some(problems: Sequence[Problem], preferred: Sequence[str], most: int, n_classes: int) -> list[Problem]:
    """At most so many problems with at least so many classes, the preferred ones first."""
    fit = [problem for problem in problems if problem.n_classes >= n_classes]
    return sorted(fit, key=lambda p: preferred.index(p.name) if p.name in preferred else len(preferred))[:most]


def draw(rows: Sequence[Row], folder: Path) -> list[str]:
    """Draw two scatter plots: default FlyNN against the baselines, and each FlyNN against tuned kNN.

    Methods that were not measured are left out. Returns the figures in Markdown.
    """
    table = by_method(rows)
    others = {KNN: "kNN, tuned"} | {name: name for name in methods.CENTRALISED.values()}
    others |= {"1-NN standardised": "1-NN, standardised", "SBFC": "SBFC, tuned"}
    others |= {name: name for name in ("LR, one epoch", "MLP, one epoch")}
    names = {
        FLYNN: "FlyNN, defaults",
        THOROUGH: "FlyNN, thorough",
        PAPER: "FlyNN of the paper, tuned",
        TUNED: "FlyNN, tuned",
    }
    baselines = [(FLYNN, names[FLYNN], name, label) for name, label in others.items()]
    variants = [(name, label, KNN, others[KNN]) for name, label in names.items()]
    figures = []
    for what, title, pairs in (
        ("baselines", "Balanced accuracy, a point per data set", baselines),
        ("variants", "Balanced accuracy against tuned kNN", variants),
    ):
        panels = [(a, table[x], b, table[y]) for x, a, y, b in pairs if {x, y} <= table.keys()]
        if panels:
            plots.scatter(panels, title, folder / f"accuracy_{what}.png")
            figures.append(f"![{what}](accuracy_{what}.png)")
    return figures


def _with_means(rows: Sequence[Row]) -> list[Row]:
    result: list[Row] = list(rows)
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        scores = {key: float(np.mean([row[key] for row in mine])) for key in mine[0] if "AUC" in key}
        result.append(mine[0] | {"class": "mean"} | scores)
    return result


def ablation(arguments: list[str]) -> None:
    """Default FlyNN with scoring rule, committee, scaling and choice of decay switched off in turn: print, write."""
    _ablation(*_options("ablation", arguments), arguments)


def _ablation(options: Any, settings: Settings, problems: Sequence[Problem], arguments: Sequence[str]) -> None:
    start = time.perf_counter()
    folder = output_folder(options)
    names = list(methods.ABLATED)
    plan = [(problem, name) for problem in problems for name in names]
    measured = run(plan, settings, Cells(folder / "cells"), options.jobs)
    table = by_method(summarised([row for rows in measured.values() for row in rows]))
    lines: list[Row] = [{"set": p.name} | {name: table[name][p.name] for name in names} for p in problems]
    scores = np.array([[line[name] for name in names] for line in lines])
    change = scores - scores[:, :1]
    summaries = {
        "mean": scores.mean(axis=0),
        "median": np.median(scores, axis=0),
        "mean change": change.mean(axis=0),
        "median change": np.median(change, axis=0),
        "worst change": change.min(axis=0),
    }
    lines += [{"set": what} | dict(zip(names, values.tolist(), strict=True)) for what, values in summaries.items()]
    print(text_table(lines) + "\n")
    write_csv(folder / "ablation.csv", lines)
    arguments = [each for each in arguments if each != "--ablation"]
    parts = [(ablation.__doc__ or "").removesuffix(": print, write.") + ":", markdown_table(lines)]
    write_summary(folder, "Ablation", "ablation", arguments, time.perf_counter() - start, parts)
