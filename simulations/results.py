"""Where an experiment leaves its results: one CSV and one PNG under an output folder."""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parser(experiment: str, description: str | None) -> ArgumentParser:
    """An argument parser with the options that all experiments share."""
    options = ArgumentParser(prog=f"python -m simulations {experiment}", description=description)
    options.add_argument("--quick", action="store_true", help="fewer and smaller cases, about a minute")
    options.add_argument(
        "--data", type=Path, help="folder of .npz data sets with X and y; stand-ins are made without it"
    )
    options.add_argument("--output", type=Path, help=f"folder for the results (default: ./results/{experiment})")
    options.set_defaults(experiment=experiment)
    return options


def output_folder(options: Any) -> Path:
    """The folder to write to, made if it is not there."""
    folder = (options.output or Path("results") / options.experiment).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder)


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of one table; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(f"written: {path}")
