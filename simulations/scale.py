"""Cost of parties at the server: seconds and memory for 10, 100 and 1000 of them.

Without options, in a process for each case: the server's run gets the replies of all
parties at once, as Flower hands them over, and then as many one by one, each made when
it is due. The replies, which Flower holds, are told apart from the memory that FlyNN
takes beside them. Seconds are CPU seconds, which other load of the machine changes
little.

With `--supernodes N`, `flwr run` of this project on Flower's simulation with N
SuperNodes: wall time, and the memory of all processes together.

With `--where ray`, or `--ray-address` of a cluster, one federation of as many parties
on Ray, by the clock: its counts must be those of the pooled samples.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.federated import codec
from flwr_flynn.federated.algorithm import party_of
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import PARTY, TRAIN, Reply
from flwr_flynn.federated.roster import Failures
from flwr_flynn.federated.run import Run
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from simulations import runner
from simulations.results import Row, markdown_table
from simulations.splits import read
from simulations.study import ROOT, Option, Study, integers
from simulations.workers import WHERE, workers

_MIB = 2**20


def replies(n: int, noisy: bool = False) -> Iterator[Any]:
    """Replies of n parties with 50 samples of Digits' shape each, one after the other."""
    run = _options(n, noisy).run_spec
    for party in range(n):
        random = np.random.default_rng(party)
        X = random.integers(0, 17, (50, 64), dtype=np.uint8)
        counts = ClassCounts.from_data(run.hasher, X, random.integers(0, 10, 50), 10)
        arrays = codec.encode(counts)
        n_examples = 50
        if run.mechanism is not None:
            release = SimulatedRelease(run.mechanism, party).release(counts)
            request = CountsRequest(run)
            parts = request.parts(CountsOfSpecs((release,)))
            arrays = request.layout.packed(parts)
            n_examples = 1
        yield Reply(
            str(party),
            codec.write_tensors(arrays),
            n_examples,
            {PARTY: f"party-{party}"},
        )


def _options(n: int, noisy: bool) -> Any:
    spec = HashSpec.suggest(n_features=64)
    mechanism = None
    if noisy:
        mechanism = LaplaceCounts(1.0, hash_nnz=spec.hash_nnz, n_classes=10)
    return RunOptions(spec=spec, classes=range(10), min_parties=n, mechanism=mechanism)


def counted(options: RunOptions, groups: Iterable[list[Reply]]) -> tuple[Run, float]:
    """A run that counts groups of replies, one after the other, and its CPU seconds."""
    run = Run(options)
    seconds = 0.0
    for group in groups:
        start = time.process_time()
        run.ask(TRAIN, [reply.cid for reply in group])
        run.complete(group, Failures())
        seconds += time.process_time() - start
    return run, seconds


def at_once(n: int, noisy: bool = False) -> Row:
    """Time and memory for all replies in a list, to one request."""
    options = _options(n, noisy)
    waiting = list(replies(n, noisy))
    held = sum(len(tensor) for reply in waiting for tensor in reply.tensors)
    counted(options, [waiting])  # imports, the rows
    seconds = counted(options, [waiting])[1]
    peak, lasting = _memory_of(lambda: counted(options, [waiting])[0].model)
    row = {
        "parties": n,
        "counts": options.run_spec.mode,
        "replies MiB": held / _MIB,
        "CPU s": seconds,
    }
    return row | {
        "CPU ms per party": 1000 * seconds / n,
        "beside replies, peak MiB": peak,
        "kept MiB": lasting,
    }


def one_by_one(n: int, noisy: bool = False) -> Row:
    """Time and memory for replies that come one by one, each made when it is due and
    gone when it is counted.
    """
    options = _options(n, noisy)
    seconds = counted(options, ([reply] for reply in replies(n, noisy)))[1]
    peak, lasting = _memory_of(
        lambda: counted(options, ([reply] for reply in replies(n, noisy)))[
            0
        ].counted.require(n)
    )
    figures = {
        "CPU s": seconds,
        "CPU ms per party": 1000 * seconds / n,
        "peak MiB": peak,
        "kept MiB": lasting,
    }
    return {f"one by one, {name}": value for name, value in figures.items()}


def _memory_of(work: Any) -> tuple[float, float]:
    """MiB that a call takes at its peak, and MiB that its result keeps."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    result = work()
    peak = tracemalloc.get_traced_memory()[1]
    gc.collect()
    lasting = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del result
    return (peak - before) / _MIB, (lasting - before) / _MIB


def _in_a_process(n: int, noisy: bool) -> Row:
    """The figures for n parties, from a process of their own: nothing is left from
    another case.
    """
    code = (
        "import json, logging; from simulations import scale; "
        "logging.disable(logging.CRITICAL); "
        f"print(json.dumps(scale.at_once({n}, {noisy}) | scale.one_by_one({n}, "
        f"{noisy})))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


# -------- SuperNodes


class Watch(threading.Thread):
    """The largest sum of the proportional memory of all processes with this FLWR_HOME,
    looked at twice a second.
    """

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.mark = f"FLWR_HOME={home}".encode()
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.5):
            self.peak = max(self.peak, sum(self.sizes().values()))

    def sizes(self) -> dict[int, int]:
        """Bytes of each process.

        What processes have in common, such as Ray's object store, is shared out (Pss).
        """
        found = {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            try:
                if self.mark in Path(f"/proc/{pid}/environ").read_bytes():
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                    found[pid] = 1024 * next(
                        (
                            int(line.split()[1])
                            for line in lines
                            if line.startswith("Pss:")
                        ),
                        0,
                    )
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
        return found


def free_port() -> str:
    """A port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def simulated(supernodes: int, settings: str) -> Row:
    """One `flwr run` with so many SuperNodes, on a SuperLink of its own, which is ended
    with all that it started.
    """
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        out = Path(name) / "out"
        home.mkdir()
        environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        environment |= {
            f"FLWR_LOCAL_{which}_API_PORT": free_port()
            for which in ("SUPERLINK_HTTP", "CONTROL")
        }
        environment["PATH"] = (
            f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        command = ["flwr", "run", str(ROOT), "--stream", "--federation-config"]
        command += [
            f"num-supernodes={supernodes} client-resources-num-cpus=1",
            "--run-config",
        ]
        command.append(f"output-dir={json.dumps(str(out))} {settings}")
        watch = Watch(home)
        start = time.perf_counter()
        watch.start()
        done = subprocess.run(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        watch.done.set()
        watch.join()
        for pid in watch.sizes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        if not (out / "metrics.json").exists():
            raise RuntimeError(
                f"the run left no metrics.json:\n{(done.stdout + done.stderr)[-3000:]}"
            )
        report = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    row = {
        "SuperNodes": supernodes,
        "counted": len(report["parties"]),
        "equal": str(report["sha256"].get("equal")),
    }
    return row | {
        "s": seconds,
        "s per SuperNode": seconds / supernodes,
        "all processes, peak MiB": watch.peak / _MIB,
    }


# -------- a federation, in this process or on Ray


def federation(n: int, where: str, address: str | None = None) -> Row:
    """One federation of n parties with 60 samples of Digits each, drawn at random, and
    its counts beside the pooled.
    """
    data = read("digits")
    drawn = np.random.default_rng([0, n]).integers(0, len(data.y), (n, 60))
    parties = [
        party_of(data.X[rows], data.y[rows], name=f"party-{i}")
        for i, rows in enumerate(drawn)
    ]
    spec = HashSpec.suggest(data.X.shape[1], len(data.y), len(data.classes))
    rows = drawn.ravel()
    with workers(where, address=address) as place:
        # workers start, and load compiled code
        runner.run(parties[:8], place, spec=spec, classes=data.classes)
        done = runner.run(parties, place, spec=spec, classes=data.classes)
    pooled = ClassCounts.from_data(
        FlyHash(spec), np.asarray(data.X[rows]), data.y[rows], len(data.classes)
    )
    counts = done.model.counts_
    row = {
        "where": where,
        "parties": n,
        "s": done.seconds,
        "ms per party": 1000 * done.seconds / n,
    }
    row |= {
        "of them counting": 1000 * float(np.mean(done.party_seconds)),
        "MB sent by parties": done.traffic.arrivals.bytes / 1e6,
    }
    same = "OTHERS"
    if counts == pooled:
        same = "the same"
    return row | {"sha256": counts.sha256()[:12], "pooled": same}


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study(
        "scale",
        "Scale",
        __doc__,
        arguments,
        supernodes=Option(
            "Flower's simulation with so many SuperNodes instead, with commas between",
            integers,
            (),
        ),
        run_config=Option("with --supernodes: settings of the run", str, ""),
        where=Option(
            "one federation of so many parties here, or on Ray, instead",
            str,
            None,
            WHERE,
        ),
        ray_address=Option(
            "address of a Ray cluster: one federation here and one there, instead"
        ),
    )
    chosen = study.chosen
    rows = list[Row]()
    numbers = study.sized((10, 100, 1000), (10, 100))
    places: tuple[str, ...] = ()
    if chosen.where:
        places = (chosen.where,)
    elif chosen.ray_address:
        places = WHERE
    if chosen.supernodes:
        name = "supernodes"
        cases = [partial(simulated, n, chosen.run_config) for n in chosen.supernodes]
    elif places:
        cases = [
            partial(federation, n, place, chosen.ray_address)
            for place in places
            for n in numbers
        ]
        name = "federations"
    else:
        name = "scale"
        cases = [
            partial(_in_a_process, n, noisy) for noisy in (False, True) for n in numbers
        ]
    for case in cases:
        rows.append(case())
        print(markdown_table(rows[-1:]), flush=True)
    study.write(name, rows)
    study.finish([study.about, markdown_table(rows)])
