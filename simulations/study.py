"""One run of an experiment: its options, its finished pieces, and the tables, figures
and summary that it leaves.

A study is a table of pieces, each a function with what its result depends on. A piece
is computed once and kept under the output folder, so that a study can be interrupted at
any time.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import joblib
from joblib.externals.loky import get_reusable_executor

from flwr_flynn import __version__
from flwr_flynn.errors import DataError
from simulations.results import Row, frame_of

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
MODEL = ("flwr_flynn.hashing", "flwr_flynn.model")
FEDERATED = (
    *MODEL,
    "flwr_flynn.privacy",
    "flwr_flynn.federated",
    "flwr_flynn.app.data",
    "simulations.splits",
)
"""Code for `code_digest`: what a model follows from, and what a federation follows
from."""


# ---- options


def names(text: str) -> list[str]:
    """Different names with commas between.

    >>> names("a, b,a")
    ['a', 'b']
    """
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def at_least(low: int) -> Callable[[str], int]:
    """Parser of an integer of at least `low`."""

    def parsed(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < low:
            raise ArgumentTypeError(
                f"expected an integer of at least {low}, got {text}"
            )
        return int(text)

    return parsed


def seeds(text: str) -> tuple[int, ...]:
    """So many seeds, from 0 on."""
    return tuple(range(at_least(1)(text)))


def integers(text: str) -> tuple[int, ...]:
    """Different integers of at least 1 with commas between."""
    return tuple(map(at_least(1), names(text)))


def existing_folder(text: str) -> Path:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"expected a folder, got {text}")
    return Path(text)


class Option(NamedTuple):
    """An option of an experiment; one of type bool is a flag."""

    what: str
    type: Any = str
    default: Any = None
    choices: tuple[str, ...] | None = None


SETS = Option("names of data sets, with commas between (default: all)", names, ())
JOBS = Option("processes (default: 1)", at_least(1), 1)
MOST = Option("samples of each set, 0 for all (default: 2000, quick: 300)", at_least(0))
FINISHED = Option("show the finished pieces, and compute none", bool)


class Study:
    """One run of an experiment.

    Parameters
    ----------
    experiment, title : str
        Name on the command line, and heading of the page.
    docstring : str
        That of the module; all but its first line describes the methods on the page.
    arguments : sequence of str
        The command line.
    full : str, optional
        Effect of `--full`, where there is such an option.
    **options : Option
        By name, with an underscore in the place of a hyphen.
    """

    def __init__(
        self,
        experiment: str,
        title: str,
        docstring: str | None,
        arguments: Sequence[str],
        full: str = "",
        **options: Option,
    ) -> None:
        self.experiment = experiment
        self.title = title
        self.arguments = arguments
        # The first paragraph is the title in a sentence.
        self.about = cleandoc(docstring or "").partition("\n\n")[2]
        self.parser = ArgumentParser(
            prog=f"python -m simulations {experiment}", description=docstring
        )
        size = self.parser.add_mutually_exclusive_group()
        size.add_argument(
            "--quick",
            action="store_true",
            help="fewer and smaller cases, about a minute",
        )
        if full:
            size.add_argument("--full", action="store_true", help=full)
        what = (
            "folder of .npz data sets with X and y; bundled and generated data "
            "without it"
        )
        self.parser.add_argument("--data", type=existing_folder, help=what)
        what = f"folder for the results (default: ./results/{experiment})"
        self.parser.add_argument("--output", "--out", type=Path, help=what)
        for name, (what, kind, default, choices) in options.items():
            flag: Row = {"type": kind, "default": default, "choices": choices}
            if kind is bool:
                flag = {"action": "store_true"}
            self.parser.add_argument(f"--{name.replace('_', '-')}", help=what, **flag)
        self.chosen = self.parser.parse_args(arguments)
        self.start = time.perf_counter()

    def sized(self, usual: T, quick: T, full: T | None = None, **changes: Any) -> T:
        """One of three plans, as the options have it, with the changes that are not
        None.
        """
        is_full = full is not None and getattr(self.chosen, "full", False)
        if is_full:
            plan: Any = full
        elif self.chosen.quick:
            plan = quick
        else:
            plan = usual
        given = {name: value for name, value in changes.items() if value is not None}
        return cast(T, replace(plan, **given) if given else plan)

    def wanted(self, known: Iterable[str], option: str = "sets") -> list[str]:
        """Names that an option has, among those that are known; all without the option."""
        known = list(known)
        given = getattr(self.chosen, option)
        unknown = [name for name in given if name not in known]
        if unknown:
            raise DataError(
                f"--{option}", f"some of {', '.join(known)}", ", ".join(unknown)
            )
        return list(given) or known

    @cached_property
    def folder(self) -> Path:
        """The folder to write to, made when it is first needed."""
        folder: Path = (
            self.chosen.output or Path("results") / self.experiment
        ).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @cached_property
    def cells(self) -> Cells:
        """The pieces that are finished."""
        return Cells(self.folder / "cells", getattr(self.chosen, "finished", False))

    def write(self, name: str, rows: Sequence[Row]) -> None:
        """Write rows of one table, columns in the order in which they first appear;
        lists stay out.
        """
        path = self.folder / f"{name}.csv"
        plain = [
            {
                key: value
                for key, value in row.items()
                if not isinstance(value, list | dict)
            }
            for row in rows
        ]
        frame_of(plain).to_csv(path, index=False, na_rep="nan", lineterminator="\r\n")
        print(f"written: {path}")

    def finish(self, parts: Iterable[str]) -> None:
        """Write the summary in Markdown: the command, its time and place, and the
        parts, paragraphs and tables.
        """
        seconds = time.perf_counter() - self.start
        write_summary(
            self.folder, self.title, self.experiment, self.arguments, seconds, parts
        )


def write_summary(
    folder: Path,
    title: str,
    experiment: str,
    arguments: Sequence[str],
    seconds: float,
    parts: Iterable[str],
) -> None:
    """Write a summary; see `Study.finish`."""
    head = (
        f"`{command_line(experiment, arguments)}`: {seconds:.0f} s, not counting what "
        "an earlier run had finished. "
        f"flwr-flynn {__version__}, {datetime.now(UTC):%Y-%m-%d}, {machine()}."
    )
    if "--quick" in arguments:
        head += " A quick run: fewer and smaller cases."
    (folder / "summary.md").write_text(
        "\n\n".join([f"# {title}", head, *parts]) + "\n", encoding="utf-8"
    )
    print(f"written: {folder / 'summary.md'}")


# ---- finished pieces


class NotFinished(LookupError):
    """A piece is not there, and is not to be computed."""


class Piece(NamedTuple):
    """A part of a study: its name, all that its result depends on, and the call that
    computes it.
    """

    label: str
    inputs: Any
    work: Callable[[], Any]


class Cells:
    """Finished pieces of a study, kept by joblib, so that none is computed twice.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    finished : bool, default=False
        Pieces that are missing are refused with `NotFinished`.
    """

    def __init__(self, folder: Path, finished: bool = False) -> None:
        self.finished = finished
        self._kept = joblib.Memory(folder, verbose=0).cache(_computed, ignore=["work"])

    def finish(self, label: str, inputs: Any, work: Callable[[], T]) -> T:
        """The result of a piece: the one that is kept, or else that of `work`, which is
        then kept.

        The file of a result appears whole or not at all, even if this is interrupted.
        """

        def timed() -> T:
            if self.finished:
                raise NotFinished(label)
            start = time.perf_counter()
            try:
                result = work()
            except Exception as error:
                error.add_note(f"in {label}")
                raise
            print(
                f"{label}, {time.perf_counter() - start:.1f} s",
                file=sys.stderr,
                flush=True,
            )
            return result

        result: T = self._kept(joblib.hash((label, inputs)), timed)
        return result

    def run(self, pieces: Sequence[Piece], jobs: int = 1) -> list[Any]:
        """The results of several pieces, in so many processes."""
        there = sum(
            self._kept.check_call_in_cache(joblib.hash(piece[:2]), None)
            for piece in pieces
        )
        print(
            f"{len(pieces) - there} of {len(pieces)} pieces to compute",
            file=sys.stderr,
            flush=True,
        )
        try:
            return list(
                joblib.Parallel(jobs)(
                    joblib.delayed(self.finish)(*piece) for piece in pieces
                )
            )
        finally:
            if jobs > 1:
                get_reusable_executor().shutdown()


def _computed(key: str, work: Callable[[], Any]) -> Any:
    return work()


def code_digest(*names: str) -> str:
    """Digest of source files of this project, for the inputs of pieces: results of
    older code are not found then.

    Parameters
    ----------
    *names : str
        Dotted names of modules, and of packages for all that is in them.
    """
    paths = [ROOT.joinpath(*name.split(".")) for name in names]
    files = {
        file
        for path in paths
        for file in (
            [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
        )
    }
    return str(
        joblib.hash(
            [(str(file.relative_to(ROOT)), file.read_bytes()) for file in sorted(files)]
        )
    )


# ---- the command and its place


def command_line(experiment: str, arguments: Sequence[str]) -> str:
    """The command that makes results again, without the names of folders.

    >>> command_line("noniid", ["--quick", "--data", "here", "--output=/there", "--parties", "10"])
    'python -m simulations noniid --quick --data FOLDER --parties 10'
    """
    shown = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--data", "--output", "--out"):
            shown.append(word)
            continue
        if not equals:
            next(words, None)
        # without it other data are used; the place of the results is of no matter
        if name == "--data":
            shown += ["--data", "FOLDER"]
    return shlex.join(["python", "-m", "simulations", experiment, *shown])


def machine() -> str:
    """This machine in words: cores, processor, system and Python."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
    else:
        lines = []
    models = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    processor = " ".join(
        (models or [platform.processor() or platform.machine()])[0].split()
    )
    return (
        f"{n_cores()} cores of {processor}, {platform.system()}, Python "
        f"{platform.python_version()}"
    )


def n_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
