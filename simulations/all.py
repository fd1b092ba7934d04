"""All results pages, made again by one command:
`python -m simulations all --data FOLDER`.

Runs every experiment with the arguments of its page, one after the other, each in a
process of its own, and publishes them. It can be interrupted: an experiment with a
summary of this version and these arguments is not run again, and those that keep
finished cells go on where they stopped. One that fails is named at the end, and the
others run.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from flwr_flynn import __version__
from simulations import publish
from simulations.experiments import EXPERIMENTS
from simulations.study import ROOT, command_line


def with_pages() -> list[str]:
    """Experiments with a page, those with the fewest arguments first."""
    pages = {
        name: experiment.page
        for name, experiment in EXPERIMENTS.items()
        if experiment.page is not None
    }
    return sorted(pages, key=lambda name: len(pages[name]))


def arguments_of(experiment: str, data: Path) -> list[str]:
    """The arguments of an experiment with the folder of the data sets.

    >>> arguments_of("bench", Path("sets"))
    ['--data', 'sets']
    """
    arguments = []
    for word in shlex.split(EXPERIMENTS[experiment].page or ""):
        arguments.append(word)
        if word == "--data":
            arguments.append(str(data))
    return arguments


def is_finished(results: Path, experiment: str, arguments: Sequence[str]) -> bool:
    """True if there is a summary of this version for these arguments."""
    summary = results / experiment / "summary.md"
    if not summary.exists():
        return False
    head = summary.read_text(encoding="utf-8").split("\n\n")[1]
    return (
        head.startswith(f"`{command_line(experiment, arguments)}`:")
        and f"flwr-flynn {__version__}," in head
    )


def main(arguments: list[str]) -> None:
    """Run what is not finished, and publish."""
    known = with_pages()
    options = ArgumentParser(prog="python -m simulations all", description=__doc__)
    options.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help=f"default: {', '.join(known)}",
    )
    options.add_argument(
        "--data", type=Path, required=True, help="folder of .npz data sets with X and y"
    )
    options.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with a folder for each",
    )
    options.add_argument(
        "--pages",
        type=Path,
        default=publish.PAGES,
        help="folder to write to (default: docs/results)",
    )
    chosen = options.parse_args(arguments)
    for name in chosen.experiments:
        if name not in known:
            options.error(f"{name}: expected one of {', '.join(known)}")
    failed = []
    for name in chosen.experiments or known:
        given = arguments_of(name, chosen.data.resolve())
        status = 0
        if not is_finished(chosen.results, name, given):
            print(f"{name}: {command_line(name, given)}", flush=True)
            output = ["--output", str((chosen.results / name).resolve())]
            status = subprocess.run(
                [sys.executable, "-m", "simulations", name, *given, *output], cwd=ROOT
            ).returncode
        if status == 130:  # interrupted
            raise KeyboardInterrupt
        try:
            if not status:
                print(
                    f"written: {publish.publish(name, chosen.results, chosen.pages)}",
                    flush=True,
                )
        except (OSError, ValueError) as error:
            print(f"{name}: not published: {error}", file=sys.stderr, flush=True)
            status = 1
        if status:
            failed.append(name)
    publish.finish(chosen.pages)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
