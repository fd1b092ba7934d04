"""FlyNN with other versions of Flower, each in an environment of its own.

The outcome is a table of what works.

``python -m tests.flower_versions 1.23.0 1.36.0 1.42.0`` makes environments below
`--folder` by uv, runs the tests of strategies, clients and messages there, and the two
apps of a how-to guide, one for each API, with four parties: two are counted, one
declines, one is lost. From 1.32 on that is `flwr run`, and the app of this repository
runs, too; before, Flower's simulation by a function. `--quick` leaves the runs out. The
rows go to `versions.csv` in docs/reference, beside those of other versions.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from tests.integration.conftest import (
    MESSAGE_API,
    OLDER_API,
    ROOT,
    Flower,
    Run,
    write_app,
)

TABLE = ROOT / "docs" / "reference" / "versions.csv"
FIELDS = (
    "flwr",
    "python",
    "numpy",
    "ray",
    "installed",
    "tests",
    "runs by",
    "Strategy",
    "Message API",
    "flwr run .",
)
TOOLS = ("uv", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil")
PAGE = "docs/how_to/own_app.md"
PARTY = "    return FlyNNClient("
FAULTS = f"""    if mine.start == 2:
        y = y + 10  # labels that are not in the run's list
    if mine.start == 3:
        raise OSError("gone")
{PARTY}"""

OUTCOME = """import json, pathlib
    told = {
        "sha256": strategy.counts.sha256(),
        "counted": len(strategy.parties),
        "missing": strategy.missing,
    }
    pathlib.Path("outcome.json").write_text(json.dumps(told))"""

SIMULATION = """import sys
from flwr.simulation import run_simulation
from my_app.client_app import app as client_app
from my_app.server_app import app as server_app
resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
run_simulation(server_app, client_app, num_supernodes=4, backend_config=resources)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+")
    parser.add_argument(
        "--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}"
    )
    parser.add_argument(
        "--with",
        dest="others",
        nargs="*",
        default=[],
        help="further requirements, such as numpy<2",
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--quick", action="store_true", help="the tests alone")
    given = parser.parse_args()
    for version in given.versions:
        name = re.sub(r"[^\w.-]", "", "-".join([version, given.python, *given.others]))
        row = tried(
            version,
            given.python,
            given.others,
            given.folder.resolve() / name,
            given.quick,
        )
        print(json.dumps(row), flush=True)
        keep(row)


def tried(
    version: str, python: str, others: list[str], folder: Path, quick: bool
) -> dict[str, str]:
    """The row of one version."""
    row = {"flwr": version, "installed": installed(version, python, others, folder)}
    here = str(folder / "bin" / "python")
    packages = json.loads(
        output(here, "-m", "uv", "pip", "list", "--format", "json", "--python", here)
    )
    versions = {package["name"]: package["version"] for package in packages}
    row |= {
        "python": output(
            here, "-c", "import platform; print(platform.python_version())"
        ).strip()
    }
    row |= {"numpy": versions["numpy"], "ray": versions.get("ray", "")}
    told = output(
        here,
        "-m",
        "pytest",
        str(ROOT / "tests" / "flower"),
        "-q",
        "-n2",
        "-p",
        "no:cacheprovider",
        cwd=ROOT,
    )
    row["tests"] = re.sub(r" in .*|=+ ?", "", told.strip().splitlines()[-1]).strip()
    if quick:
        return row
    by_command = tuple(map(int, version.split(".")[:2])) >= (1, 32)
    row["runs by"] = "flwr run" if by_command else "run_simulation"
    for api, marks in (("Strategy", OLDER_API), ("Message API", MESSAGE_API)):
        row[api] = outcome(folder, marks, by_command)
    if by_command:
        row["flwr run ."] = in_flower(
            folder,
            lambda flower: "equal " + run_by_command(flower, ROOT, 3).row("equal"),
        )
    return row


def installed(version: str, python: str, others: list[str], folder: Path) -> str:
    """Make an environment, and say by which way it could be made.

    The ways are the extra `simulation`, no extra, and no pins of Flower's own.
    """
    uv = (sys.executable, "-m", "uv")
    subprocess.run(
        [*uv, "venv", "-q", "--clear", "--seed", "--python", python, str(folder)],
        check=True,
    )
    install = [
        *uv,
        "pip",
        "install",
        "-q",
        "--compile-bytecode",
        "--python",
        str(folder / "bin" / "python"),
    ]
    install += [*TOOLS, *others]
    ways = {
        "[simulation]": [[f"{ROOT}[simulation,privacy]", f"flwr=={version}"]],
        "without [simulation]": [
            [f"{ROOT}[privacy]", f"flwr[simulation]=={version}", "pandas"]
        ],
        "--no-deps": [
            [f"{ROOT}[simulation,privacy]", f"flwr<{version}"],
            ["--no-deps", f"flwr=={version}"],
        ],
    }
    for way, commands in ways.items():
        if all(
            subprocess.run([*install, *command], capture_output=True).returncode == 0
            for command in commands
        ):
            return way
    raise SystemExit(f"flwr {version} cannot be installed here with Python {python}")


def outcome(folder: Path, marks: tuple[str, str], by_command: bool) -> str:
    """The result of the page's app with four parties, two of which are not counted."""

    def run(flower: Flower) -> str:
        result = flower.cwd / "outcome.json"
        app = write_app(
            flower.folder,
            PAGE,
            change_server,
            lambda text: text.replace(PARTY, FAULTS),
            marks,
        )
        if by_command:
            printed = run_by_command(flower, app, nodes=4).output
        else:
            flower.env["PYTHONPATH"] = str(app)
            printed = flower.call("python", "-c", SIMULATION)
        if not result.is_file():
            return (
                "failed: " + (re.findall(r"\w+Error.*", printed) or ["no outcome"])[-1]
            )
        report = json.loads(result.read_text())
        equal = report["sha256"] == expected()
        refused = sum("label" in reason for reason in report["missing"].values())
        lost = len(report["missing"]) - refused
        sha256 = "OTHER COUNTS"
        if equal:
            sha256 = report["sha256"][:8]
        return f"{report['counted']} counted, {refused} declined, {lost} lost; {sha256}"

    return in_flower(folder, run)


def run_by_command(flower: Flower, app: Path, nodes: int) -> Run:
    """`flwr run`, once more where the SuperLink was slow to start on a busy machine."""
    resources = f"num-supernodes={nodes} client-resources-num-cpus=1"
    for _ in range(3):
        printed = flower.call(
            "flwr",
            "run",
            str(app),
            "local",
            "--stream",
            "--federation-config",
            resources,
        )
        if "Failed to start local SuperLink" not in printed:
            break
    return Run(printed)


def change_server(text: str) -> str:
    """The server of a page, which waits for four parties and writes its outcome."""
    text = re.sub(r"min_available_(\w+)=2", r"min_available_\1=4", text)
    return re.sub(r'strategy.model.save\("model.npz"\)', OUTCOME, text)


def expected() -> str:
    """SHA-256 of the counts of the first two of four parties, made without Flower."""
    X, y = load_digits(return_X_y=True)
    mine = np.arange(len(y)) % 4 < 2
    spec = HashSpec(n_features=64, hash_dim=4096, row_nnz=19, hash_nnz=32, seed=7)
    return ClassCounts.from_data(FlyHash(spec), X[mine], y[mine], 10).sha256()


def in_flower(folder: Path, run: Callable[[Flower], str]) -> str:
    """Call `run` with a Flower of the environment, and end all that it started."""
    number = len(list(folder.glob("run-*")))
    flower = Flower(folder / f"run-{number}")
    flower.env["PATH"] = f"{folder / 'bin'}:{flower.env['PATH']}"
    flower.env.pop("PYTHONPATH", None)
    try:
        return run(flower)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return (
            "failed: "
            + (re.findall(r"\w+Error.*", str(error)) or [type(error).__name__])[-1]
        )
    finally:
        flower.stop()


def output(*command: str, cwd: Path | None = None) -> str:
    """The standard output of a command."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=cwd).stdout


def keep(row: dict[str, str]) -> None:
    """Write a row in the place of the one of the same versions."""
    with TABLE.open(newline="") as stream:
        rows = [*csv.DictReader(stream), row]
    rows = [
        *{
            tuple(row[name] for name in ("flwr", "python", "numpy")): row
            for row in rows
        }.values()
    ]
    with TABLE.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            sorted(
                rows,
                key=lambda each: [
                    int(part) for part in re.findall(r"\d+", each["flwr"])
                ],
            )
        )


if __name__ == "__main__":
    main()
