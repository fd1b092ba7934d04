"""Time, memory and bytes of FlyNN while one size grows, beside the paper's Lemmas 1, 2 and 5."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.federated.codec import encode, write_tensors
from flwr_flynn.model.scoring import ScoringRule, class_scores
from simulations import plots
from simulations.plots import Line, Panel
from simulations.results import Row, chosen
from simulations.study import FEDERATED, Cells, code_digest

Array = npt.NDArray[Any]

_CODE = code_digest(*FEDERATED, "simulations.paper.theory_costs")


@dataclass(frozen=True)
class Sizes:
    """Sizes of samples, hash and federation."""

    n: int = 1000
    m: int = 2**14
    s: int = 16
    rho: int = 64
    L: int = 10
    tau: int = 1
    d: int = 512


TRAIN, INFER, MEMORY = "training, CPU s", "inference, CPU s/point", "memory, bytes"
DENSE, SENT = "counts of all parties, dense int64, bytes", "counts of all parties as sent, bytes"

LEMMAS: dict[tuple[str, str], str] = {
    (TRAIN, "n"): "Lemma 1: 1",
    (TRAIN, "m"): "Lemma 1: 1",
    (TRAIN, "s"): "Lemma 1: 0, above log rho 1",
    (TRAIN, "rho"): "Lemma 1: 0, above exp s that of log rho",
    (INFER, "m"): "Lemma 2: 1, below rho L less",
    (INFER, "L"): "Lemma 2: 0, above m s / rho 1",
    (MEMORY, "m"): "Lemmas 1 and 5: 1",
    (MEMORY, "s"): "Lemmas 1 and 5: 0, above L 1",
    (MEMORY, "L"): "Lemmas 1 and 5: 0, above s 1",
    (DENSE, "m"): "Lemma 5: 1",
    (DENSE, "L"): "Lemma 5: 1",
    (DENSE, "tau"): "Lemma 5: 1",
    (SENT, "m"): "Lemma 5: at most 1",
    (SENT, "L"): "Lemma 5: at most 1",
    (SENT, "tau"): "Lemma 5: at most 1",
}
"""By quantity and the size that grows: the exponent that the paper gives."""

RANGES = {"n": (250, 8000), "m": (2**12, 2**17), "s": (4, 256), "rho": (8, 512), "L": (2, 256), "tau": (1, 64)}


def sweeps(scale: int) -> Iterator[tuple[str, Sizes]]:
    """The size that grows, by factors of two, and all sizes; n and m up to a `scale`-th of their largest."""
    for name, (low, high) in RANGES.items():
        value = low
        while value <= high // (scale if name in "nm" else 1):
            yield name, replace(Sizes(), **{name: value})
            value *= 2


def cost(sizes: Sizes, wanted: Sequence[str], repeats: int) -> list[Row]:
    """Costs at one set of sizes, as rows of `quantity` and `cost`; times are the best of `repeats`."""
    generator = np.random.default_rng(0)
    X = generator.random((sizes.n, sizes.d)).astype(np.float32)
    y = np.arange(sizes.n) % sizes.L
    spec = HashSpec(sizes.d, sizes.m, sizes.s, sizes.rho, seed=0)
    ClassCounts.from_data(FlyHash(replace(spec, hash_dim=sizes.rho * 2)), X[:64], y[:64], sizes.L)  # compiled now
    found: dict[str, float] = {}
    if MEMORY in wanted:
        tracemalloc.start()
        ClassCounts.from_data(FlyHash(spec), X, y, sizes.L)
        found[MEMORY] = float(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    if TRAIN in wanted:
        found[TRAIN] = _best(lambda: ClassCounts.from_data(FlyHash(spec), X, y, sizes.L), repeats)
    hasher = FlyHash(spec)
    if INFER in wanted:
        counts, points = ClassCounts.from_data(hasher, X, y, sizes.L), X[:1000]
        scoring = ScoringRule("novelty", 0.5)
        class_scores(counts, hasher.active(points[:8]), scoring)
        found[INFER] = _best(
            lambda: class_scores(counts, hasher.active(points), ScoringRule("novelty", 0.5)), repeats
        ) / len(points)
    if DENSE in wanted:
        found[DENSE], found[SENT] = 8.0 * sizes.m * sizes.L * sizes.tau, 0.0
        for party in range(sizes.tau):
            part = slice(party, None, sizes.tau)
            counts = ClassCounts.from_data(hasher, X[part], y[part], sizes.L)
            found[SENT] += sum(len(tensor) for tensor in write_tensors(encode(counts)))
    return [{"quantity": name, "cost": value} for name, value in found.items()]


def _best(call: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()  # of this process alone: others on the machine do not count
        call()
        times.append(time.process_time() - start)
    return min(times)


def measure(cells: Cells, repeats: int, scale: int) -> list[Row]:
    """A row for each quantity and each value of the size that grows."""
    rows: list[Row] = []
    for name, sizes in sweeps(scale):
        wanted = [quantity for quantity, grows in LEMMAS if grows == name]
        label, work = f"costs: {name} {getattr(sizes, name)}", partial(cost, sizes, wanted, repeats)
        found = cells.finish(label, (sizes, repeats, _CODE), work)
        rows += [{"grows": name, "value": getattr(sizes, name)} | row | asdict(sizes) for row in found]
    return rows


def slopes(rows: Sequence[Row]) -> list[Row]:
    """Exponents: least squares in double logarithmic scale over the upper half of each range, and over the whole."""
    lines = []
    for (quantity, grows), lemma in LEMMAS.items():
        mine = chosen(rows, quantity=quantity, grows=grows)
        x, z = (np.log([row[name] for row in mine]) for name in ("value", "cost"))
        line: Row = {"quantity": quantity, "grows": grows, "from": mine[0]["value"], "to": mine[-1]["value"]}
        line["paper"] = lemma
        for name, part in {"upper half": slice(len(x) // 2 - (len(x) < 4), None), "all": slice(None)}.items():
            line[f"slope, {name}"] = f"{np.polyfit(x[part], z[part], 1)[0]:.2f}"
        lines.append(line)
    return lines


def draw(rows: Sequence[Row], path: Path) -> str:
    """Costs relative to the first of each line, in double logarithmic scale, a panel for each quantity."""
    panels = []
    for quantity in dict.fromkeys(row["quantity"] for row in rows):
        lines = []
        for grows in dict.fromkeys(row["grows"] for row in chosen(rows, quantity=quantity)):
            mine = chosen(rows, quantity=quantity, grows=grows)
            x, y = ([row[name] / mine[0][name] for row in mine] for name in ("value", "cost"))
            lines.append(Line(f"{grows} from {mine[0]['value']}", x, y))
        top = max(x for line in lines for x in line.x)
        lines.append(Line("slope 1", (1, top), (1, top), look={"color": "grey", "marker": None}))
        axes = {"xlabel": "times its first value", "ylabel": "times the first cost", "xscale": "log2", "yscale": "log2"}
        panels.append(Panel(quantity, lines, axes))
    return plots.lines(panels, path, (4.2, 3.6), legend=0)
