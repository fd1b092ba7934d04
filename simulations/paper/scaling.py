"""The paper's Figure 2 and its table: training with 1 to 16 parties, the data split
evenly, hashes as in the paper.

Two different times:

- the critical path: parties train one after the other, each alone on one thread, and
  the time is that of the slowest party plus that of adding up all counts. This is what
  parties with a machine each would wait for, without a network. It is measured in CPU
  seconds, which do not depend on what else the machine does.
- the wall time: parties train at the same time on the available cores, as tasks on Ray.
  It cannot fall below one party's time divided by the number of cores; it includes what
  Ray needs to move samples to its workers.

A party draws its lifting matrix from the seed, counts, and packs; the server unpacks,
checks and adds (`simulations.runner`). All federations of a data set lead to the same
counts, bit for bit, and their SHA-256 is in the CSV.

The table has seconds, the best of the repetitions, and in brackets how many times as
fast as one party. The paper's parties are threads of one machine with 16 cores, which
share the lifting matrix; its times are means of 10. Counting is faster here, by a fused
kernel in place of a sparse product, so that what does not shrink with the number of
parties weighs more: each party draws the lifting matrix anew, and the server unpacks,
checks and adds one reply after the other. Wall times suffer from whatever else the
machine does.

Data sets are those of `python -m simulations bench`: files of `--data`, Digits bundled,
stand-ins of the same shape for what is not there. Time hardly depends on the values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.protocol import Answer
from flwr_flynn.hashing.flyhash import flynn_hash
from simulations import plots
from simulations.bench import SHAPES, Shape, points
from simulations.plots import Line, Panel
from simulations.results import Array, Row, chosen, markdown_table
from simulations.runner import Federation, run
from simulations.study import (
    FEDERATED,
    SETS,
    Cells,
    Option,
    Study,
    at_least,
    code_digest,
    n_cores,
)
from simulations.workers import Workers, workers

PARTIES = (1, 2, 4, 8, 16)
PAPER = "the paper"
PATH = "critical path"
WALL = "wall"
_STAND_INS = 2000  # different samples of a stand-in; more are repetitions of these
_CODE = code_digest(
    *FEDERATED, "simulations.runner", "simulations.bench", "simulations.paper.scaling"
)

PRINTED: dict[str, tuple[float, ...]] = {
    "Digits": (3.63, 3.26, 1.84, 1.36, 1.16),
    "Letters": (25.72, 14.74, 7.72, 4.06, 2.91),
    "MNIST": (1023.59, 518.85, 262.68, 163.75, 122.30),
    "Fashion-MNIST": (1410.29, 712.98, 360.74, 241.70, 191.15),
    "CIFAR-10": (1300.90, 644.99, 330.35, 207.57, 151.67),
    "CIFAR-100": (1268.86, 649.20, 333.33, 211.20, 162.80),
}
"""Seconds for 1, 2, 4, 8 and 16 parties in the paper's table "Raw runtimes and
speedups", on 16 cores."""

SIZES = dict(zip(PRINTED, (1797, 20000, 60000, 60000, 50000, 50000), strict=True))
"""Samples of each set in the paper."""


class LoneParty(Party):
    """A party on a machine of its own: it draws its own lifting matrix.

    Attributes
    ----------
    cpu_seconds : float
        CPU seconds of its last answer.
    """

    cpu_seconds = 0.0

    def answer(self, *request: Any) -> Answer:
        """Answer with the package's cache of hashes emptied, and note the CPU seconds."""
        start = time.process_time()
        flynn_hash.cache_clear()
        reply = super().answer(*request)
        self.cpu_seconds = time.process_time() - start
        return reply


@dataclass(frozen=True)
class Plan:
    """Samples of each set at most (0: the paper's), repetitions, and how many of the
    sets.
    """

    examples: int = 20000
    repetitions: int = 2
    sets: int = 4


QUICK = Plan(1000, 1, 3)
FULL = Plan(0, 10, 6)


def data(shape: Shape, folder: Path | None, plan: Plan) -> tuple[Array, Array, str]:
    """Samples, classes, and whether they are real."""
    n = min(SIZES[shape.name], plan.examples or SIZES[shape.name])
    X, y, source = points(shape, folder, n)
    if source == "stand-in":
        few = np.arange(n) % min(n, _STAND_INS)
        X = X[few]
        y = np.arange(n) % shape.n_classes
    return X[:n], y[:n], source


def parties(X: Array, y: Array, tau: int) -> list[LoneParty]:
    """`tau` parties that have every `tau`-th sample each."""

    def party(i: int) -> LoneParty:
        mine = Samples(X[i::tau].copy(), y[i::tau].copy())
        return LoneParty(lambda _names: mine, PartyOptions(name=f"party-{i}"))

    return [party(i) for i in range(tau)]


def federation(
    shape: Shape, asked: Sequence[LoneParty], where: str | Workers
) -> Federation:
    """Train a federation."""
    classes = list(range(shape.n_classes))
    return run(
        asked,
        where,
        spec=shape.spec,
        classes=classes,
        rule="novelty",
        decay=0.5,
        show_progress=False,
    )


def timed(
    shape: Shape, asked: Sequence[LoneParty], where: str | Workers
) -> tuple[float, Federation]:
    """Train; wall time on workers, else the seconds of the critical path: the slowest
    party and the server.
    """
    start = time.process_time()
    done = federation(shape, asked, where)
    if isinstance(where, Workers):
        return done.seconds, done
    everything = time.process_time() - start
    return critical_path(everything, [party.cpu_seconds for party in asked]), done


def critical_path(everything: float, by_party: Sequence[float]) -> float:
    """Seconds of the slowest party and of the server."""
    return max(by_party) + max(everything - sum(by_party), 0.0)


def measure(
    shape: Shape,
    folder: Path | None,
    plan: Plan,
    cells: Cells,
    on_ray: Workers | None,
    cores: int,
) -> list[Row]:
    """A row for each number of parties and way of measuring."""
    X, y, source = data(shape, folder, plan)
    federation(shape, parties(X[:64], y[:64], 1), "process")  # compiled now
    rows: list[Row] = []
    ways: list[tuple[str, str | Workers]] = [(PATH, "process")]
    if on_ray is not None:
        ways.append((WALL, on_ray))
    for what, where in ways:
        for tau in PARTIES:

            def work(where: str | Workers = where, tau: int = tau) -> Row:
                done = [
                    timed(shape, parties(X, y, tau), where)
                    for _ in range(plan.repetitions)
                ]
                # of all the same
                (digest,) = {
                    federation.model.counts_.sha256() for _, federation in done
                }
                times = [seconds for seconds, _ in done]
                traffic = done[-1][1].traffic
                figures = {
                    "seconds": min(times),
                    "sd": float(np.std(times)),
                    "repetitions": len(times),
                }
                return figures | {
                    "sha256": digest,
                    "bytes up": traffic.arrivals.bytes,
                    "bytes down": traffic.down,
                }

            used = 1
            if what == WALL:
                used = cores
            inputs = (len(X), source, plan.repetitions, used, _CODE)
            times = cells.finish(f"{shape.name}: {what} {tau}", inputs, work)
            row: Row = {
                "set": shape.name,
                "data": source,
                "n": len(X),
                "measured": what,
                "cores": used,
            }
            rows.append(row | {"parties": tau, "seed": shape.spec.seed} | times)
    return rows


def speed_ups(rows: Sequence[Row], what: str) -> dict[str, dict[int, float]]:
    """Speed-ups over one party, by data set and number of parties."""
    lines: dict[str, dict[int, float]] = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        times = {
            row["parties"]: row["seconds"]
            for row in chosen(rows, set=name, measured=what)
        }
        if times:
            lines[name] = {tau: times[1] / seconds for tau, seconds in times.items()}
    return lines


def printed(names: Sequence[str]) -> list[Row]:
    """The paper's rows of these sets."""
    return [
        {
            "set": name,
            "measured": PAPER,
            "n": SIZES[name],
            "data": "",
            "cores": 16,
            "parties": tau,
            "seconds": seconds,
        }
        for name in names
        for tau, seconds in zip(PARTIES, PRINTED[name], strict=True)
    ]


def table(rows: Sequence[Row]) -> list[Row]:
    """Seconds, and speed-ups in brackets: a line for each set and way of measuring."""
    lines = []
    for name, what in product(
        dict.fromkeys(row["set"] for row in rows), (PAPER, PATH, WALL)
    ):
        mine = chosen(rows, set=name, measured=what)
        if mine:
            shown = name
            if mine[0]["data"] == "stand-in":
                shown = f"{name} (stand-in)"
            measured = PATH
            if what != PATH:
                measured = f"{what}, {mine[0]['cores']} cores"
            line = {"set": shown, "points": mine[0]["n"], "measured": measured}
            times = {
                row["parties"]: (row["seconds"], mine[0]["seconds"] / row["seconds"])
                for row in mine
            }
            lines.append(
                line
                | {
                    f"tau={tau}": f"{s:.2f} s ({ratio:.2f})"
                    for tau, (s, ratio) in times.items()
                }
            )
    return lines


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "scaling",
        "Figure 2 and its table: scaling",
        __doc__,
        arguments,
        "all samples of each set, 10 repetitions: about two hours on two cores",
        sets=SETS._replace(
            what="names of data sets, with commas between (default: the first four, "
            "quick: three)"
        ),
        examples=Option(
            "samples of each set, 0 for all (default: 20000, quick: 1000)", at_least(0)
        ),
        no_wall=Option("the critical path alone, without Ray", bool),
    )
    folder = study.chosen.data
    no_wall = study.chosen.no_wall
    plan = study.sized(Plan(), QUICK, FULL, examples=study.chosen.examples)
    wanted = study.wanted(SIZES)
    if not study.chosen.sets:
        wanted = wanted[: plan.sets]
    cores = n_cores()
    rows = printed(wanted)
    titles = {
        PAPER: "the paper, 16 cores",
        PATH: "ours, critical path (parties one by one)",
    }
    where = "process"
    if not no_wall:
        where = "ray"
        titles[WALL] = f"ours, wall time on {cores} cores"
    with workers(where, n_cpus=cores) as place:
        on_ray = None
        if not no_wall:
            on_ray = place
            # The workers start, and compile what they run.
            X, y, _ = data(SHAPES[0], folder, Plan(64, 1))
            federation(SHAPES[0], parties(X, y, 2 * cores), place)
        for shape in (shape for shape in SHAPES if shape.name in wanted):
            rows += measure(shape, folder, plan, study.cells, on_ray, cores)
            study.write("scaling", rows)
    sources = {title: speed_ups(rows, what) for what, title in titles.items()}
    axes = {
        "xlabel": "parties",
        "ylabel": "times as fast as one party",
        "xscale": "log2",
        "yscale": "log2",
    }
    linear = Line("linear", PARTIES, PARTIES, look={"color": "grey", "marker": None})
    panels = [
        Panel(
            title,
            [
                linear,
                *(Line(name, [*line], [*line.values()]) for name, line in of.items()),
            ],
            axes,
        )
        for title, of in sources.items()
    ]
    figure = plots.lines(panels, study.folder / "scaling.png", (4.2, 4.0), legend=7)
    same = all(
        len({row["sha256"] for row in chosen(rows, set=name) if "sha256" in row}) == 1
        for name in wanted
    )
    led = "did NOT all lead"
    if same:
        led = "led"
    counts = f"All federations of a set {led} to the same counts, by SHA-256."
    study.finish([study.about, markdown_table(table(rows)), figure, counts])
    print("\n" + markdown_table(table(rows)))
