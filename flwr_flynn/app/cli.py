"""The command `flwr-flynn`, for one's own file before a run, and the model after it.

Exit status: 0 on success, 1 where a file is refused, 2 for a wrong command line. Errors
are one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from flwr_flynn import __version__
from flwr_flynn._validation import number
from flwr_flynn.app import cli_verbs, console, ledger_verbs
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError, FlyNNError, clean, full_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, and return its exit status.

    The arguments are by default those of the process.
    """
    typed = sys.argv[1:]
    if arguments is not None:
        typed = [*arguments]
    try:
        options = _parser().parse_args(typed)
    except SystemExit as ending:
        # The parser has printed the reason, or the help.
        return int(ending.code or 0)
    options.typed = shlex.join(["flwr-flynn", *typed])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", UserWarning)
            warnings.filterwarnings("ignore", module="sklearn")
            warnings.showwarning = _in_one_line  # type: ignore[assignment]
            status: int = options.run(options)
            return status
    except BrokenPipeError:  # whoever reads the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (FlyNNError, OSError, MemoryError) as error:
        console.note(_one_line(error))
        return 1


def _in_one_line(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning of our own without the code that it came from."""
    if category is UserWarning:
        console.note(message)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, FlyNNError):
        name = os.path.basename(str(error.filename or "file"))
        return f"{name[:80]!r}: {error.strerror or type(error).__name__}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return full_text(error)


def _share(text: str) -> float:
    try:
        return number("share", float(text), 0, 1)
    except (ValueError, ConfigError):
        raise argparse.ArgumentTypeError("expected a number from 0 to 1") from None


def _try(options: argparse.Namespace) -> int:
    from flwr_flynn.app import try_files  # it takes Flower

    return try_files.run_files(
        options.files,
        cli_verbs.node_settings(options),
        options.by,
        options.out,
        [f"event={options.event}", *options.set],
        options.write_sites,
        options.typed,
    )


# ---- the command line

_OWN_FILE = "a .csv, .tsv, .txt, .gz, .parquet or .npz file"
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "model": {"help": "a model file (.npz); of show also a ledger"},
    "ledger": {"help": "the ledger at state-path"},
    "file": {"help": f"{_OWN_FILE}; columns that are not asked for are ignored"},
    "files": {"nargs": "+", "help": f"{_OWN_FILE} of each party"},
    "schema": {"help": "a schema in TOML"},
    "--label": {
        "help": "the column of labels; by default that of the schema, `label`, or `y` "
        "in NPZ"
    },
    "--min-examples": {
        "type": int,
        "default": 5,
        "help": "rows, or ids, that a level needs (default: 5)",
    },
    "--held-out-key": {
        "metavar": "COLUMN",
        "help": "the column of ids, no feature: a level needs so many of them",
    },
    "--by": {
        "metavar": "COLUMN",
        "help": "split one CSV file: a party for each value of a column",
    },
    "--event": {
        "metavar": "LABEL",
        "help": "the class whose figures are shown; by default the rarer of two",
    },
    "--set": {
        "action": "append",
        "metavar": "KEY=VALUE",
        "help": "a run setting, or PARTY:KEY=VALUE of one party",
    },
    "--out": {
        "help": "where the results are written (score: scores.csv, try: flwr-flynn-try)"
    },
    "--write-sites": {
        "metavar": "FOLDER",
        "help": "draft a file of each party's settings there, for --site",
    },
    "--threshold": {
        "type": _share,
        "metavar": "P",
        "help": "of two classes, take the rarer one from P on",
    },
    "--coverage": {
        "type": _share,
        "metavar": "P",
        "help": "add a set of classes, which has the true one in a share P, above 0 "
        "and below 1, of the rows of each class: one, several (of two: unsure), or none",
    },
    "--reasons": {
        "type": int,
        "default": 0,
        "choices": range(1, 11),
        "metavar": "N",
        "help": "add the N columns that matter most to the class of each row, 1 to 10",
    },
    "--keep": {
        "action": "append",
        "metavar": "COLUMN",
        "help": "copy this column in front; may be repeated",
    },
    "--private": {
        "action": "store_true",
        "help": "read it row by row, as a party with max-epsilon does",
    },
    "--gap-text": {
        "action": "append",
        "help": "a text of missing values; may be repeated",
    },
}
_OF_FILES = ("separator", "decimal", "encoding", "date_format", "site")


_VERBS = {
    "schema": (
        cli_verbs.draft,
        "draft a schema from one's own file",
        ["file", "--gap-text", "--label", "--min-examples", "--held-out-key"],
    ),
    "check": (
        cli_verbs.check,
        "what a schema refuses of a file",
        ["file", "schema", "--label", "--gap-text", "--private"],
    ),
    "try": (
        _try,
        "run a federation of files in this process",
        [
            "files",
            "--label",
            "--event",
            "--by",
            "--out",
            "--set",
            "--gap-text",
            "--write-sites",
        ],
    ),
    "show": (
        ledger_verbs.show,
        "what a model file holds, as JSON, or what a ledger has spent",
        ["model"],
    ),
    "reset": (ledger_verbs.reset, "delete a private party's ledger", ["ledger"]),
    "predict": (
        cli_verbs.predict,
        "classify the rows, as CSV",
        [
            "model",
            "file",
            "--gap-text",
            "--coverage",
            "--threshold",
            "--reasons",
            "--keep",
        ],
    ),
    "score": (
        cli_verbs.score,
        "figures of a model on a file with labels",
        ["model", "file", "--gap-text", "--label", "--threshold", "--out"],
    ),
}
"""The function of each verb, its meaning, and names of its arguments."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors may name a hostile file."""

    def error(self, message: str) -> NoReturn:
        super().error(clean(message, 1000))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("flwr-flynn", description="Files and models of FlyNN.")
    parser.add_argument(
        "--version", action="version", version=f"flwr-flynn {__version__}"
    )
    parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (run, meaning, arguments) in _VERBS.items():
        of_verb = parsers.add_parser(name, help=meaning)
        of_verb.set_defaults(run=run)
        for argument in arguments:
            of_verb.add_argument(argument, **_keywords(argument))
        for row in NodeConfig.rows():
            if row.name in _OF_FILES and name not in ("show", "reset"):
                of_verb.add_argument(
                    f"--{row.key}",
                    default="",
                    choices=row.facts.choices,
                    help=row.facts.meaning,
                )
    return parser


def _keywords(argument: str) -> dict[str, Any]:
    """Keywords of an argument; an option that is absent is [], None or ""."""
    keywords = _ARGUMENTS[argument]
    if not argument.startswith("-"):
        return keywords
    absent: object = ""
    if "action" in keywords:
        absent = []
    elif "type" in keywords:
        absent = None
    return {"default": absent, **keywords}
