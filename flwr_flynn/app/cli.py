"""The command `flwr-flynn`: look at one's own file before a run, and use the model after it.

Exit status: 0 on success, 1 where a file is refused, 2 for a wrong command line. Errors are one line on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from flwr_flynn import __version__
from flwr_flynn._validation import number
from flwr_flynn.app import cli_verbs
from flwr_flynn.app.data.dialect import ENCODINGS, SEPARATOR_NAMES, Dialect
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.tables.texts import DATE_FORMATS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return its exit status."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as ending:  # of argparse, which has printed the reason, or the help
        return int(ending.code or 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", UserWarning)
            warnings.showwarning = _in_one_line  # type: ignore[assignment]
            return _run(options)
    except BrokenPipeError:  # whoever reads the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (FlyNNError, OSError, MemoryError) as error:
        print(f"flwr-flynn: {_one_line(error)}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    verb = options.verb
    if verb == "show":
        return cli_verbs.show(options.model, as_json=options.json)
    separator = SEPARATOR_NAMES.get(options.separator, "")
    dialect = Dialect(separator, options.decimal, options.encoding, tuple(options.gap_text), options.date_format)
    if verb == "try":
        from flwr_flynn.app import try_files  # it takes Flower

        keys = "label", "separator", "decimal", "encoding", "date_format"
        node = {key.replace("_", "-"): value for key in keys if (value := getattr(options, key))}
        node |= {"gap-texts": json.dumps(options.gap_text)} if options.gap_text else {}
        return try_files.run_files(options.files, node, options.by, options.out, options.set)
    if verb == "score":
        return cli_verbs.score(
            options.model, Path(options.file), options.label, Path(options.out), dialect, options.threshold
        )
    if verb == "schema":
        return cli_verbs.draft(Path(options.file), options.label, options.min_examples, dialect)
    if verb == "check":
        return cli_verbs.check(Path(options.file), options.schema, options.label, dialect)
    path = Path(options.file)
    given = options.formulas, options.keep, options.threshold
    return cli_verbs.predict(options.model, path, options.abstain, dialect, *given)


def _in_one_line(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning of our own without the code that it came from."""
    if category is UserWarning:
        print(f"flwr-flynn: {message}", file=sys.stderr)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and not isinstance(error, FlyNNError):
        name = os.path.basename(str(error.filename)) if error.filename else "file"
        return f"{name[:80]!r}: {error.strerror or type(error).__name__}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    notes = getattr(error, "__notes__", ())
    return " ".join("; ".join([str(error), *notes]).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("flwr-flynn", description="Files and models of FlyNN.")
    parser.add_argument("--version", action="version", version=f"flwr-flynn {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    of_files = argparse.ArgumentParser(add_help=False)
    group = of_files.add_argument_group("CSV files; what is not given is detected")
    group.add_argument("--separator", default="", choices=tuple(SEPARATOR_NAMES))
    group.add_argument("--decimal", default="", choices=(".", ","), help="decimal mark")
    group.add_argument("--encoding", default="", choices=ENCODINGS)
    group.add_argument("--gap-text", action="append", default=[], help="a text of missing values; may be repeated")
    group.add_argument("--date-format", default="", choices=DATE_FORMATS, metavar="|".join(DATE_FORMATS[:4]))

    labelled = argparse.ArgumentParser(add_help=False)
    labelled.add_argument("--label", default="", help="the column of labels; `label` (`y` in NPZ) by default")

    verb = verbs.add_parser("schema", parents=[of_files, labelled], help="draft a schema from one's own file")
    verb.add_argument("file", help="a .csv, .parquet or .npz file")
    help_ = "rows that a level needs to be named (default: 5)"
    verb.add_argument("--min-examples", type=_at_least_1, default=5, help=help_)
    verb = verbs.add_parser("check", parents=[of_files], help="what a schema refuses of a file")
    verb.add_argument("file", help="a .csv, .parquet or .npz file")
    verb.add_argument("schema", help="a schema in TOML")
    verb.add_argument("--label", default="", help="the column of labels; that of the schema by default")

    verb = verbs.add_parser("try", parents=[of_files, labelled], help="run a federation of files in this process")
    verb.add_argument("files", nargs="+", help="a .csv, .parquet or .npz file of each party")
    verb.add_argument("--by", default="", metavar="COLUMN", help="split one file: a party for each value of a column")
    verb.add_argument("--out", default="", metavar="FOLDER", help="folder of the results (default: flwr-flynn-try)")
    help_ = "a run setting, or PARTY:KEY=VALUE for a node setting of one party; may be repeated"
    verb.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=help_)

    verb = verbs.add_parser("show", help="what a model file holds")
    verb.add_argument("model", help="a model file (.npz)")
    verb.add_argument("--json", action="store_true", help="as JSON")

    decided = argparse.ArgumentParser(add_help=False)
    help_ = "of two classes, take the rarer one from this probability on (default: the more probable one)"
    decided.add_argument("--threshold", type=_share, metavar="P", help=help_)

    verb = verbs.add_parser("predict", parents=[of_files, decided], help="classify the rows of a file, as CSV")
    verb.add_argument("model", help="a model file (.npz)")
    verb.add_argument("file", help="a .csv, .parquet or .npz file; further columns are ignored")
    verb.add_argument(
        "--abstain", type=_share, default=0.0, metavar="P", help="leave the class empty below this probability"
    )
    help_ = "leave classes such as =A1 as they are, which a spreadsheet computes"
    verb.add_argument("--formulas", action="store_true", help=help_)
    help_ = "copy this column of the file in front; may be repeated"
    verb.add_argument("--keep", action="append", default=[], metavar="COLUMN", help=help_)

    verb = verbs.add_parser(
        "score", parents=[of_files, labelled, decided], help="figures of a model on a file with labels"
    )
    verb.add_argument("model", help="a model file (.npz)")
    verb.add_argument("file", help="a .csv, .parquet or .npz file with labels; further columns are ignored")
    verb.add_argument("--out", default="scores.csv", help="file of the figures (default: scores.csv)")
    return parser


def _at_least_1(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= 1):
        raise argparse.ArgumentTypeError("expected an integer of at least 1")
    return int(text[:9])


def _share(text: str) -> float:
    try:
        return number("abstain", float(text), 0, 1)
    except (ValueError, ConfigError):
        raise argparse.ArgumentTypeError("expected a number from 0 to 1") from None
