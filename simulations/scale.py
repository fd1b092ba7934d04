"""Cost of parties at the server: seconds and memory for 10, 100 and 1000 of them.

Without options, in a process for each case: the server's run gets the replies of all parties at once, as Flower hands
them over, and then as many one by one, each made when it is due. The replies, which Flower holds, are told apart from
the memory that FlyNN takes beside them. Seconds are CPU seconds, which other load of the machine changes little.

With `--supernodes N`, `flwr run` of this project on Flower's simulation with N SuperNodes: wall time, and the memory of
all processes together.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from simulations.results import Row, about, markdown_table, output_folder, parser, text_table, write_csv, write_summary

_ROOT = Path(__file__).parents[1]
_MIB = 2**20


def replies(n: int, noisy: bool = False) -> Iterator[Any]:
    """Replies of n parties with 50 samples of Digits' shape each, one after the other."""
    from flwr_flynn import ClassCounts
    from flwr_flynn.federated import codec
    from flwr_flynn.federated.phases.counts import CountsRequest
    from flwr_flynn.federated.protocol import PARTY, Reply
    from flwr_flynn.model.counts import CountsOfSpecs
    from flwr_flynn.privacy import SimulatedRelease

    run = _options(n, noisy).run_spec
    for party in range(n):
        random = np.random.default_rng(party)
        X = random.integers(0, 17, (50, 64), dtype=np.uint8)
        counts = ClassCounts.from_data(run.hasher, X, random.integers(0, 10, 50), 10)
        arrays, n_examples = codec.encode(counts), 50
        if run.mechanism is not None:
            release = SimulatedRelease(run.mechanism, party).release(counts)
            arrays, n_examples = CountsRequest(run).answer(CountsOfSpecs((release,)), 1).arrays, 1
        yield Reply(str(party), codec.write_tensors(arrays), n_examples, {PARTY: f"party-{party}"})


def _options(n: int, noisy: bool) -> Any:
    from flwr_flynn import HashSpec
    from flwr_flynn.federated.options import RunOptions
    from flwr_flynn.privacy import LaplaceCounts

    spec = HashSpec.suggest(n_features=64)
    mechanism = LaplaceCounts(1.0, hash_nnz=spec.hash_nnz, n_classes=10) if noisy else None
    return RunOptions(spec=spec, classes=range(10), min_parties=n, mechanism=mechanism)


def at_once(n: int, noisy: bool = False) -> Row:
    """Time and memory for all replies in a list, to one request."""
    from flwr_flynn.federated.protocol import TRAIN
    from flwr_flynn.federated.roster import Failures
    from flwr_flynn.federated.run import Run

    options, waiting = _options(n, noisy), list(replies(n, noisy))
    held = sum(len(tensor) for reply in waiting for tensor in reply.tensors)

    def count() -> Any:
        run = Run(options)
        run.ask(TRAIN, [reply.cid for reply in waiting])
        run.complete(waiting, Failures())
        return run.model

    count()  # imports, the rows
    start = time.process_time()
    count()
    seconds = time.process_time() - start
    peak, kept = _memory_of(count)
    return {
        "parties": n,
        "counts": options.run_spec.mode,
        "replies MiB": held / _MIB,
        "CPU s": seconds,
        "CPU ms per party": 1000 * seconds / n,
        "beside replies, peak MiB": peak,
        "kept MiB": kept,
    }


def one_by_one(n: int, noisy: bool = False) -> Row:
    """Time and memory for replies that come one by one, each made when it is due and gone when it is counted."""
    from flwr_flynn.federated.protocol import TRAIN
    from flwr_flynn.federated.roster import Failures
    from flwr_flynn.federated.run import Run

    options = _options(n, noisy)
    seconds = 0.0

    def count() -> Any:
        nonlocal seconds
        run, seconds = Run(options), 0.0
        for reply in replies(n, noisy):
            start = time.process_time()
            run.ask(TRAIN, [reply.cid])
            run.complete([reply], Failures())
            seconds += time.process_time() - start
        return run.counted.require(n)

    count()
    took = seconds
    peak, kept = _memory_of(count)
    return {
        "one by one, CPU s": took,
        "one by one, CPU ms per party": 1000 * took / n,
        "one by one, peak MiB": peak,
        "one by one, kept MiB": kept,
    }


def _memory_of(work: Any) -> tuple[float, float]:
    """MiB that a call takes at its peak, and MiB that its result keeps."""
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


@contextmanager
def superlink(home: Path) -> Iterator[dict[str, str]]:
    """A simulated SuperLink of its own, known to `flwr` as `scale`; yields the environment to call `flwr` in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.scale]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--disable-runtime-dependency-installation"], cwd=home, env=environment, stdout=log, stderr=log
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield environment
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.5)
    raise RuntimeError("the SuperLink did not start; see superlink.log")


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
                    *("flwr", "run", str(_ROOT), "scale", "--stream"),
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
