"""What a party costs the server: seconds and memory for 10, 100 and 1000 of them.

Without options, in a process for each case: `FlyNNStrategy.aggregate_fit` gets the replies of so many parties at once,
as Flower hands them over, and then a server's `Aggregator` gets as many one by one, each made when it is due. What
Flower holds, the replies, is told apart from what FlyNN takes beside them. Seconds are those of the processor, which
others on the machine do not change much.

With `--supernodes N`, `flwr run` of this project on Flower's simulation with N SuperNodes: wall time, and the memory of
all processes together.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from simulations.overhead import superlink
from simulations.results import Row, about, markdown_table, output_folder, parser, text_table, write_csv, write_summary

_ROOT = Path(__file__).parents[1]
_MIB = 2**20


def replies(n: int, noisy: bool = False) -> Iterator[Any]:
    """Replies of n parties with 50 points of Digits' shape each, one after the other."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

    from flwr_flynn import ClassCounts
    from flwr_flynn.federated import codec
    from flwr_flynn.privacy import SimulatedRelease

    terms = _terms(noisy)
    for party in range(n):
        random = np.random.default_rng(party)
        X = random.integers(0, 17, (50, 64), dtype=np.uint8)
        counts = ClassCounts.from_data(terms.hasher, X, random.integers(0, 10, 50), 10)
        arrays, n_examples = codec.encode(counts), 50
        if terms.mechanism is not None:
            release = SimulatedRelease(terms.mechanism, party).release(counts)
            arrays, n_examples = codec.encode_release(release, terms.mechanism), 1
        metrics: dict[str, Any] = {"flynn-party": f"party-{party}"}
        yield FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), n_examples, metrics)


def _terms(noisy: bool) -> Any:
    from flwr_flynn import HashSpec
    from flwr_flynn.federated.codec import NOISY, PLAIN
    from flwr_flynn.federated.protocol import Terms
    from flwr_flynn.privacy import LaplaceCounts

    spec = HashSpec.suggest(n_features=64)
    mechanism = LaplaceCounts(1.0, hash_nnz=spec.hash_nnz, n_classes=10) if noisy else None
    return Terms(spec, range(10), NOISY if noisy else PLAIN, mechanism=mechanism)


def at_once(n: int, noisy: bool = False) -> Row:
    """`aggregate_fit` of all replies in a list."""
    from flwr_flynn import FlyNNStrategy

    terms = _terms(noisy)
    waiting = [(_Client(str(party)), reply) for party, reply in enumerate(replies(n, noisy))]
    held = sum(len(tensor) for _, reply in waiting for tensor in reply.parameters.tensors)

    def aggregate() -> Any:
        strategy = FlyNNStrategy(
            spec=terms.spec, classes=range(10), min_available_clients=n, min_parties=n, mechanism=terms.mechanism
        )
        strategy.aggregate_fit(1, waiting, [])
        return strategy.model

    aggregate()  # imports, the rows
    start = time.process_time()
    aggregate()
    seconds = time.process_time() - start
    peak, kept = _memory_of(aggregate)
    return {
        "parties": n,
        "counts": terms.mode,
        "replies MiB": held / _MIB,
        "CPU s": seconds,
        "CPU ms per party": 1000 * seconds / n,
        "beside replies, peak MiB": peak,
        "kept MiB": kept,
    }


def one_by_one(n: int, noisy: bool = False) -> Row:
    """Replies that are made when they are due, and gone when they are counted."""
    from flwr_flynn.federated.aggregator import Aggregator
    from flwr_flynn.federated.roster import Reply

    terms = _terms(noisy)
    seconds = 0.0

    def aggregate() -> Any:
        nonlocal seconds
        server, seconds = Aggregator(terms, n), 0.0
        for party, reply in enumerate(replies(n, noisy)):
            start = time.process_time()
            server.commit(
                server.check([Reply(str(party), reply.parameters.tensors, reply.num_examples, reply.metrics)])
            )
            seconds += time.process_time() - start
        server.require_enough()
        return server

    aggregate()
    took = seconds
    peak, kept = _memory_of(aggregate)
    return {
        "one by one, CPU s": took,
        "one by one, CPU ms per party": 1000 * took / n,
        "one by one, peak MiB": peak,
        "one by one, kept MiB": kept,
    }


def _memory_of(work: Any) -> tuple[float, float]:
    """MiB that a call takes at its peak, and that what it returns keeps."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del result
    return (peak - before) / _MIB, (kept - before) / _MIB


class _Client:
    """All that a strategy asks of Flower's client in `aggregate_fit`."""

    def __init__(self, cid: str) -> None:
        self.cid = cid


def _in_a_process(n: int, noisy: bool) -> Row:
    """The figures for n parties, from a process of their own: nothing is left from another case."""
    code = (
        "import json, logging; from simulations import scale; logging.disable(logging.CRITICAL); "
        f"print(json.dumps(scale.at_once({n}, {noisy}) | scale.one_by_one({n}, {noisy})))"
    )
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


# -------- SuperNodes


class Memory(threading.Thread):
    """The largest sum of the proportional memory of all processes with this FLWR_HOME, looked at twice a second."""

    def __init__(self, home: str) -> None:
        super().__init__(daemon=True)
        self.home, self.peak, self.processes = home, 0, 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.5):
            sizes = [size for pid in os.listdir("/proc") if pid.isdigit() and (size := self._size(int(pid)))]
            self.peak, self.processes = max(self.peak, sum(sizes)), max(self.processes, len(sizes))

    def stop(self) -> None:
        """Look no more."""
        self._done.set()
        self.join()

    def _size(self, pid: int) -> int:
        # Pss shares out what processes have in common, such as Ray's object store: the sum counts it once.
        try:
            if f"FLWR_HOME={self.home}".encode() not in Path(f"/proc/{pid}/environ").read_bytes():
                return 0
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def simulated(supernodes: int, settings: str) -> Row:
    """One `flwr run` with so many SuperNodes."""
    with tempfile.TemporaryDirectory() as name:
        home, out = Path(name) / "home", Path(name) / "out"
        with superlink(home) as environment:
            memory = Memory(str(home))
            memory.start()
            start = time.perf_counter()
            done = subprocess.run(
                [
                    *("flwr", "run", str(_ROOT), "overhead", "--stream"),
                    *("--federation-config", f"num-supernodes={supernodes} client-resources-num-cpus=1"),
                    *("--run-config", f"output-dir={json.dumps(str(out))} {settings}"),
                ],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.perf_counter() - start
            memory.stop()
        if not (out / "metrics.json").exists():
            raise RuntimeError(f"the run left no metrics.json:\n{(done.stdout + done.stderr)[-3000:]}")
        report = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return {
        "SuperNodes": supernodes,
        "counted": len(report["parties"]),
        "equal to pooled": str(report["sha256"].get("equal")),
        "s": seconds,
        "s per SuperNode": seconds / supernodes,
        "processes": memory.processes,
        "all processes, peak MiB": memory.peak / _MIB,
    }


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("scale", __doc__)
    options.add_argument(
        "--supernodes", type=int, nargs="+", help="Flower's simulation with so many SuperNodes instead"
    )
    options.add_argument("--run-config", default="", help="with --supernodes: settings of the run")
    chosen = options.parse_args(arguments)
    start = time.perf_counter()
    folder = output_folder(chosen)
    rows: list[Row] = []
    if chosen.supernodes:
        for supernodes in chosen.supernodes:
            rows.append(simulated(supernodes, chosen.run_config))
            print(text_table(rows[-1:]), flush=True)
        write_csv(folder / "supernodes.csv", rows)
    else:
        for noisy in (False, True):
            for n in (10, 100) if chosen.quick else (10, 100, 1000):
                rows.append(_in_a_process(n, noisy))
                print(f"{rows[-1]['counts']}, {n} parties: {rows[-1]['CPU ms per party']:.2f} ms each", flush=True)
        write_csv(folder / "scale.csv", rows)
        print(text_table(rows))
    parts = [about(__doc__), markdown_table(rows)]
    write_summary(folder, "Scale", "scale", arguments, time.perf_counter() - start, parts)
