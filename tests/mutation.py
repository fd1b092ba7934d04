"""Mutants of a few modules, and whether the quick tests catch them.

They are drawn by cosmic-ray with a fixed seed.

``pip install cosmic-ray && python -m tests.mutation --number 60 --out mutants.csv``:
the same number of each module. Each mutant is written to a copy of the checkout, and
tested in a process of its own: by the tests nearest to its module, then, where it
survives, by all that are neither slow nor start processes. Mutants that differ in
annotations or in what is compiled alone are none.
"""

from __future__ import annotations

import argparse
import ast
import csv
import difflib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import flwr.server  # noqa: F401, before the fork
import hypothesis.extra.numpy  # noqa: F401
import pandas  # noqa: F401
import pytest
import sklearn.model_selection  # noqa: F401

ROOT = Path(__file__).parents[1]
NEAREST = {
    "model/counts": "model/test_counts model/test_noisy_counts federated/test_laws",
    "model/scoring": "model/test_scoring model/test_leave_one_out_scores "
    "model/test_noisy_counts model/test_model "
    "model/test_candidates",
    "federated/codec": "federated/test_codec federated/test_compression "
    "federated/phases/test_counts "
    "federated/phases/test_columns federated/phases/test_selection "
    "flower/test_noisy_runs",
    "federated/roster": "federated/test_roster federated/test_collect "
    "federated/test_run flower/test_strategy",
    "privacy/ledger": "privacy/test_ledger privacy/test_release_policy "
    "federated/test_party",
    "privacy/ledger_files": "privacy/test_ledger privacy/test_release_policy "
    "federated/test_party",
    "privacy/mechanism": "privacy/test_noise_mechanisms privacy/test_release_policy "
    "federated/test_codec",
    "privacy/noise_mechanisms": "privacy/test_noise_mechanisms "
    "privacy/test_release_policy federated/test_codec",
}
_RUN = (
    "-q",
    "-x",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow and not integration",
)
OPTIONS = (*_RUN, "-W", "ignore::pytest.PytestAssertRewriteWarning")


def meaning(code: str) -> str:
    """A module without annotations and without decorators that compile functions."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                setattr(node, name, ast.Constant(None))
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [
                decorator
                for decorator in node.decorator_list
                if "njit" not in ast.dump(decorator)
            ]
    return ast.dump(tree)


def mutants(code: str) -> Iterator[tuple[str, int]]:
    """Operators and occurrences of all mutants of a module."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(code)))
    for name in sorted(operator_names()):
        kind = get_operator(name)
        if not kind.arguments():
            places = [
                place for node in nodes for place in kind().mutation_positions(node)
            ]
            yield from ((name, occurrence) for occurrence in range(len(places)))


def drawn(code: str, number: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Operator and code of mutants in a random order, as many as asked for."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    every = list(mutants(code))
    rng.shuffle(every)
    for name, occurrence in every:
        changed = mutate_code(code, get_operator(name)(), occurrence)
        if not number:
            return
        with suppress(SyntaxError):  # an operator put where a bare * stands
            if changed is not None and meaning(changed) != meaning(code):
                number -= 1
                yield f"{name} {occurrence}", changed


def caught(copy: Path, tests: list[str], seconds: int) -> str:
    """The first test that fails, "" where all pass.

    The tests run in a fork, which has imported much.
    """
    log = copy / "log"
    log.touch()
    child = os.fork()
    if not child:
        code = 99
        try:
            # A mutant of equal size within a second would find that of the one before.
            sys.dont_write_bytecode = True
            os.chdir(copy)
            os.dup2(os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), 1)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
            sys.path[:] = [
                str(copy),
                *(folder for folder in sys.path if folder not in ("", str(ROOT))),
            ]
            for name in [
                name
                for name in sys.modules
                if name.split(".")[0] in ("tests", "flwr_flynn")
            ]:
                del sys.modules[name]
            code = pytest.main([*OPTIONS, *tests])
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    # Without such a file there are no tests.
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (4, 5):
        raise RuntimeError(
            f"pytest could not run {tests}: exit status {os.WEXITSTATUS(status)}"
        )
    failed = [
        line
        for line in log.read_text().splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    if status == 0:
        return ""
    return (failed or [f"wait status {status}"])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument(
        "--nearest",
        action="store_true",
        help="do not run all tests where a mutant survives",
    )
    parser.add_argument("--only", choices=NEAREST, action="append")
    parser.add_argument("--out", type=Path, default=Path("mutants.csv"))
    given = parser.parse_args()
    os.environ["CI"] = "1"  # the same examples each time
    with (
        tempfile.TemporaryDirectory() as folder,
        given.out.open("w", newline="", encoding="utf-8") as file,
    ):
        others = shutil.ignore_patterns(".git", ".venv", "__pycache__")
        copy = Path(shutil.copytree(ROOT, Path(folder) / "copy", ignore=others))
        table = csv.writer(file)
        table.writerow(["module", "mutant", "caught by", "diff"])
        for module in given.only or NEAREST:
            path = copy / "flwr_flynn" / f"{module}.py"
            code = path.read_text(encoding="utf-8")
            nearest = [f"tests/{name}.py" for name in NEAREST[module].split()]
            red = caught(copy, nearest, 300)
            if red:
                raise RuntimeError(f"{module} without a mutant: {red}")
            for name, changed in drawn(
                code,
                given.number // len(NEAREST),
                random.Random(f"{given.seed} {module}"),
            ):
                path.write_text(changed, encoding="utf-8")
                by = caught(copy, nearest, 300) or (
                    "" if given.nearest else caught(copy, [], 1800)
                )
                diff = difflib.unified_diff(
                    code.splitlines(), changed.splitlines(), n=0, lineterm=""
                )
                table.writerow([module, name, by, "\n".join(list(diff)[2:])])
                file.flush()
                print(f"{module} {name}: {by or 'SURVIVED'}", flush=True)
            path.write_text(code, encoding="utf-8")


if __name__ == "__main__":
    main()
