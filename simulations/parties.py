"""Cost of many parties: time and memory of one federation of 10 to 1000 parties, in this process and on Ray.

Each party has as many samples of Digits, drawn at random. Counts are added in a tree of sixteen children to a node, see
`simulations.runner`, and must be those of the pooled samples. A first small federation, not shown, has Ray start its
workers and all of them load compiled code. Then each case runs once by the clock and once more with its memory watched,
which takes time itself. Memory is that of this process and of all that it started, shared pages counted once:
"in all" at its peak, with Python, Ray's own processes and what the workers have imported, and above what was there
before the run.

"whole run" is a run of all phases (counts, selection, evaluation) of parties of one sample, with a hash of 1024 rows,
which adds each reply as it comes: its memory above idle grows by what the server keeps of a party alone. "message API"
is the same run by Flower's simulation, in its own messages, 100 parties at a time; memory is that of Ray, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flwr_flynn import ClassCounts, FlyHash, FlyNNClient, HashSpec, message
from flwr_flynn.app.data.datasets import Dataset, load_dataset
from flwr_flynn.federated.algorithm import federate, party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party
from flwr_flynn.federated.run import Run
from simulations import runner
from simulations.nodes import quiet
from simulations.plots import _panels, _save
from simulations.results import Row, about, markdown_table, output_folder, parser, text_table, write_csv, write_summary
from simulations.workers import WHERE, Workers, workers

Array = npt.NDArray[Any]

_MIB = 2**20
WHOLE, MESSAGES = "whole run", "message API"
_IN_ALL = "peak MiB in all"


@contextmanager
def peak_memory(every: float = 0.25) -> Iterator[Callable[[], tuple[float, float]]]:
    """Watch the memory of this process and of all that it has started: the sum of their proportional set sizes.

    Parameters
    ----------
    every : float
        Seconds between looks.

    Yields
    ------
    callable
        Gives the highest sum seen, and how much that is above the one at the start, in MiB; nan without psutil.
    """
    try:
        import psutil

        me = psutil.Process()
        start = _held(psutil, me)
    except (ImportError, AttributeError):
        yield lambda: (float("nan"), float("nan"))
        return
    seen, stop = [start], threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            seen.append(_held(psutil, me))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: (max(seen) / _MIB, (max(seen) - start) / _MIB)
    finally:
        stop.set()
        thread.join()


def _held(psutil: Any, process: Any) -> int:
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def samples_of(data: Dataset, n_parties: int, n_samples: int, seed: int = 0) -> Array:
    """(parties, samples) rows of `data`, drawn with replacement."""
    return np.random.default_rng([seed, n_parties]).integers(0, len(data.y), (n_parties, n_samples))


def federation(data: Dataset, rows: Array) -> list[Party]:
    """A party for each row of indices into `data`."""
    return [party_of(data.X[mine], data.y[mine], name=f"party-{i}") for i, mine in enumerate(rows)]


def measure(data: Dataset, n_parties: int, n_samples: int, where: Workers, name: str) -> Row:
    """Time and memory of one federation."""
    rows = samples_of(data, n_parties, n_samples)
    parties = federation(data, rows)
    spec = HashSpec.suggest(data.X.shape[1], len(data.y), len(data.classes))
    settings: dict[str, Any] = {"spec": spec, "classes": data.classes}
    start = time.perf_counter()
    result = runner.run(parties, where, **settings)
    seconds = time.perf_counter() - start
    with peak_memory() as peak:
        runner.run(parties, where, **settings)
        in_all, above = peak()
    pooled = ClassCounts.from_data(FlyHash(spec), data.X[rows.ravel()], data.y[rows.ravel()], len(data.classes))
    return {
        "where": name,
        "parties": n_parties,
        "seconds": seconds,
        "ms per party": 1000 * seconds / n_parties,
        "of them counting": 1000 * float(np.mean(result.party_seconds)),
        "peak MiB above idle": above,
        _IN_ALL: in_all,
        "MB sent by parties": result.traffic.up / 1e6,
        "levels": result.depth,
        "sha256": result.model.counts_.sha256()[:12],
        "pooled": "the same" if result.model.counts_ == pooled else "OTHERS",
    }


class _Single(Sequence[Party]):
    """Parties of a sample each, made when they are asked."""

    def __init__(self, data: Dataset, rows: Array) -> None:
        self.data, self.rows = data, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        X, y = self.data.X[self.rows[i]], self.data.y[self.rows[i]]
        return party_of(X, y, X_test=X, y_test=y, name=f"party-{i}", min_examples=1)


def in_process(options: dict[str, Any], data: Dataset, rows: Array) -> Run:
    """A run of all phases, party by party."""
    return federate(RunOptions(**options), _Single(data, rows))


def by_messages(options: dict[str, Any], data: Dataset, rows: Array) -> Run:
    """The same through Flower's Message API."""
    from flwr.simulation import run_simulation

    server, client = ServerApp(), ClientApp()
    strategy = message.FlyNNStrategy(**options, min_available_nodes=len(rows), nodes_at_a_time=100)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, timeout=3600)

    def party(context: Context) -> FlyNNClient:
        mine = rows[int(context.node_config["partition-id"])]
        X, y = data.X[mine], data.y[mine]
        return FlyNNClient(
            X, y, X_test=X, y_test=y, min_examples=1, name=f"party-{context.node_config['partition-id']}"
        )

    @client.train()
    def train(request: Message, context: Context) -> Message:
        return message.train(request, party(context))

    @client.evaluate()
    def evaluate(request: Message, context: Context) -> Message:
        return message.evaluate(request, party(context))

    with quiet():
        resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
        run_simulation(server, client, len(rows), backend_config=resources)
    return strategy.run


def measure_whole(data: Dataset, n_parties: int, name: str = WHOLE) -> Row:
    """Time and memory of a whole run of many parties."""
    run_of = {WHOLE: in_process, MESSAGES: by_messages}[name]
    rows = samples_of(data, n_parties, 1)
    spec = HashSpec(data.X.shape[1], 1024, 6, 16, seed=1)
    options: dict[str, Any] = {"spec": spec, "classes": data.classes, "min_parties": n_parties}
    start = time.perf_counter()
    with peak_memory() as peak:
        run = run_of(options, data, rows)
        in_all, above = peak()
    seconds = time.perf_counter() - start
    pooled = ClassCounts.from_data(FlyHash(spec), data.X[rows.ravel()], data.y[rows.ravel()], len(data.classes))
    return {
        "where": name,
        "parties": n_parties,
        "seconds": seconds,
        "ms per party": 1000 * seconds / n_parties,
        "peak MiB above idle": above,
        **({"kB above idle per party": above * _MIB / n_parties / 1000} if name == WHOLE else {}),
        _IN_ALL: in_all,
        "MB sent by parties": sum(each.up for each in run.traffic.values()) / 1e6,
        "sha256": run.counts.sha256()[:12],
        "pooled": "the same" if run.counts == pooled else "OTHERS",
    }


def draw(rows: Sequence[Row], path: Path) -> None:
    """Seconds and memory against the number of parties."""
    plt, figure, axes = _panels(2, 4.8, 3.8)
    looks = {
        "process": ("one process", "tab:blue", "o"),
        "ray": ("Ray", "tab:orange", "s"),
        WHOLE: ("whole run, one sample each", "tab:green", "^"),
        MESSAGES: ("the same by Flower's messages", "tab:red", "v"),
    }
    for axis, what, label in zip(axes, ("seconds", _IN_ALL), ("seconds", "peak memory in all, MiB"), strict=True):
        for where, (name, colour, marker) in looks.items():
            mine = [row for row in rows if row["where"] == where]
            if mine:
                axis.plot(
                    [r["parties"] for r in mine], [r[what] for r in mine], color=colour, marker=marker, label=name
                )
        axis.set(xscale="log", xlabel="parties", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=9, frameon=False)
    axes[1].set_ylim(bottom=0)
    _save(plt, figure, path)


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("parties", __doc__)
    options.add_argument("--parties", default="", help="numbers of parties, with commas between")
    options.add_argument("--points", type=int, default=60, help="samples of each party (default: 60)")
    options.add_argument("--where", default="process,ray", help="process, ray or both (default)")
    options.add_argument("--whole", default="", help="numbers of parties of whole runs, with commas between")
    options.add_argument("--messages", default="", help="the same through Flower's Message API")
    options.add_argument("--ray-address", help="address of a Ray cluster")
    chosen = options.parse_args(arguments)
    try:
        numbers = [int(n) for n in (chosen.parties or ("10,100" if chosen.quick else "10,30,100,300,1000")).split(",")]
        whole = [int(n) for n in (chosen.whole or ("100" if chosen.quick else "1000,10000")).split(",")]
        messages = [int(n) for n in chosen.messages.split(",") if n]
    except ValueError:
        got = f"{chosen.parties} {chosen.whole} {chosen.messages}"
        options.error(f"--parties: expected integers with commas between, got {got}")
    if chosen.points < 1 or min(numbers + whole + messages) < 1:
        options.error(f"--parties, --points: expected at least 1, got {chosen.parties}, {chosen.points}")
    places = chosen.where.split(",")
    if set(places) - set(WHERE):
        options.error(f"--where: expected {' or '.join(WHERE)}, got {chosen.where}")
    start = time.perf_counter()
    folder, data, rows = output_folder(chosen), load_dataset("digits"), []
    for place in places:
        with workers(place, address=chosen.ray_address) as there:
            measure(data, 8, chosen.points, there, place)
            for n in numbers:
                rows.append(measure(data, n, chosen.points, there, place))
                print(text_table(rows[-1:]), flush=True)
    measure_whole(data, 10)
    for n, name in [*((n, WHOLE) for n in whole), *((n, MESSAGES) for n in messages)]:
        rows.append(measure_whole(data, n, name))
        print(text_table(rows[-1:]), flush=True)
    print(f"\n{text_table(rows)}\n")
    write_csv(folder / "parties.csv", rows)
    draw(rows, folder / "parties.png")
    parts = [about(__doc__), markdown_table(rows), "![time and memory](parties.png)"]
    write_summary(folder, "Many parties", "parties", arguments, time.perf_counter() - start, parts)
