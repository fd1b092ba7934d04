"""Speed of the hash, beside a lean SciPy implementation, kNN, and the limit of the
machine.

One run measures every figure and its baseline in turn, several times, and keeps the
best of each: on a shared machine only ratios from the same minute mean anything. Shapes
and hyper-parameters are those of the paper's scaling experiment (its tables on data
sets and hyper-parameters for scaling), and larger ones: 65536 rows with 256 winners
("64k"), and 262144 with 1024 ("256k"). Baselines:

- lean SciPy: CSR times dense in batches, argpartition, bincount (`simulations.lean`);
- scikit-learn's KNeighborsClassifier, brute force as at these dimensions it must be,
  for prediction;
- the roofline: the time that reading the same operands takes, at the rate at which this
  machine adds up a buffer of the size of a block of samples, in the narrowest type that
  holds the sums.

The table has microseconds per sample to hash and count one ("ours") and to predict one,
on one thread; times as fast as lean SciPy on integers ("x lean"), as with all threads,
and as kNN; "ns" per sample and row of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn._validation import n_threads
from flwr_flynn.hashing import winner_kernels as kernels
from flwr_flynn.hashing.batching import _transpose
from flwr_flynn.model.scoring import ScoringRule, class_scores
from simulations import bench_default, plots
from simulations.data import load, paths
from simulations.lean import best_in_turn, lean_count, lean_matrix, lean_rows
from simulations.results import Array, Row, markdown_table
from simulations.study import Study


@dataclass(frozen=True)
class Shape:
    """One row of the paper's scaling tables."""

    name: str
    file: str  # of the data folder, without .npz
    n_features: int
    n_classes: int
    hash_dim: int
    row_fraction: float
    hash_nnz: int

    @property
    def spec(self) -> HashSpec:
        row_nnz = int(self.row_fraction * self.n_features)
        return HashSpec(self.n_features, self.hash_dim, row_nnz, self.hash_nnz, seed=0)


PAPER_SHAPES = [
    Shape("Digits", "digits", 64, 10, 256 * 64, 0.3, 32),
    Shape("Letters", "letters", 16, 26, 1447 * 16, 0.5, 221),
    Shape("MNIST", "mnist", 784, 10, 217 * 784, 0.025, 17),
    Shape("Fashion-MNIST", "fashion_mnist", 784, 10, 138 * 784, 0.105, 8),
    Shape("CIFAR-10", "cifar10", 1024, 10, 217 * 1024, 0.0267, 26),
    Shape("CIFAR-100", "cifar100", 1024, 100, 217 * 1024, 0.0267, 26),
]
SHAPES = PAPER_SHAPES + [
    replace(
        shape, name=f"{shape.name} {size}", hash_dim=hash_dim, hash_nnz=hash_dim // 256
    )
    for shape in (PAPER_SHAPES[0], PAPER_SHAPES[2])
    for size, hash_dim in (("64k", 2**16), ("256k", 2**18))
]


def points(shape: Shape, folder: Path | None, n: int) -> tuple[Array, Array, str]:
    """n samples as they come (integers) and their classes; a stand-in of the same shape
    where there is no file.
    """
    there = {"digits": "digits"} | paths(folder)
    if shape.file in there:
        X, y, _ = load(there[shape.file])
        return X[:n], y[:n], "bundled" if shape.file == "digits" else "real"
    # Smooth grey pictures: neighbouring pixels alike, like photographs; letters are 16
    # numbers of 0 to 15.
    generator = np.random.default_rng(0)
    if shape.n_features == 16:
        return (
            generator.integers(0, 16, (n, 16), np.uint8),
            np.arange(n) % shape.n_classes,
            "stand-in",
        )
    side = int(shape.n_features**0.5)
    coarse = generator.normal(size=(n, side // 4, side // 4))
    picture = np.kron(coarse, np.ones((1, 4, 4))) + 0.5 * generator.normal(
        size=(n, side, side)
    )
    grey = (120 + 50 * picture).clip(0, 255).astype(np.uint8).reshape(n, -1)
    return grey, np.arange(n) % shape.n_classes, "stand-in"


@njit(nogil=True, cache=True)
def _add_up(buffer: Array, times: int) -> int:
    total = np.int64(0)
    for _ in range(times):
        for i in range(buffer.shape[0]):
            total += buffer[i]
        buffer[0] = total  # so that no turn can be left out
    return int(total)


def bytes_per_second(block_bytes: int) -> float:
    """Rate at which one thread adds up a buffer of the size of a block, from the cache
    that holds it.
    """
    buffer = np.ones(max(block_bytes // 8, 64), np.int64)
    times = max(1, 2**24 // buffer.size)
    _add_up(buffer, 1)
    return (
        buffer.nbytes
        * times
        / best_in_turn({"": lambda: _add_up(buffer, times)}, 5)[""]
    )


@njit(nogil=True)
def _project(
    block: Array, columns: Array, threshold: Array, sums: Array, lanes_above: Array
) -> int:
    return kernels._next_hit(  # type: ignore[call-arg]  # Numba gives the context
        block, columns, np.uint64(0), threshold, sums, lanes_above
    )


def projection(hasher: FlyHash, X: Array, dtype: str) -> Callable[[], object]:
    """One block of samples through all rows, with thresholds that nothing passes: adds
    and comparisons alone.
    """
    lanes = kernels.LANES[dtype]
    block = _transpose(X[:lanes], dtype, None)[0]
    total = kernels.accumulator(dtype)
    if total.kind == "f":
        top = np.inf
    else:
        top = np.iinfo(total).max
    threshold = np.full(lanes, top, total)
    sums = np.empty(lanes, total)
    lanes_above = np.empty(1, np.uint64)
    _project(block, hasher._columns, threshold, sums, lanes_above)
    return lambda: _project(block, hasher._columns, threshold, sums, lanes_above)


def hashing(shape: Shape, options: Any) -> Row:
    """One row of the table: generation of M, hash and count, and the limit."""
    spec = shape.spec
    n, n_lean = (512, 100) if options.quick else (4096, 200)
    X, y, source = points(shape, options.data, n)
    X32 = (X / X.max()).astype(np.float32)  # the same samples, not integers any more
    hasher = FlyHash(spec)
    matrix = lean_matrix(hasher)
    everything = n_threads(-1)
    for warm in (X[:64], X32[:64]):
        hasher.count(warm, y[:64], shape.n_classes)
    calls: dict[str, Callable[[], object]] = {
        "lean": lambda: lean_count(
            matrix, X[:n_lean], y[:n_lean], shape.n_classes, spec.hash_nnz
        ),
        "ours": lambda: hasher.count(X, y, shape.n_classes),
        "float32": lambda: hasher.count(X32, y, shape.n_classes),
        "all": lambda: hasher.count(X, y, shape.n_classes, n_jobs=everything),
    }
    seconds = best_in_turn(calls, 2 if options.quick else 5)
    rows = min(spec.hash_dim, 2000)
    drawn = best_in_turn(
        {
            "ours": lambda: FlyHash(spec),
            "choice": lambda: lean_rows(spec.n_features, rows, spec.row_nnz),
        },
        2,
    )
    narrow = "uint8"
    if int(X.max()) * spec.row_nnz < 2**7:
        narrow = "int8"
    kinds = {"narrow": narrow, "int16": "int16", "float32": "float32"}
    adds = best_in_turn(
        {kind: projection(hasher, X, dtype) for kind, dtype in kinds.items()}, 10
    )
    row: Row = {
        "shape": shape.name,
        "data": source,
        "d": spec.n_features,
        "m": spec.hash_dim,
        "s": spec.row_nnz,
    }
    row |= {"rho": spec.hash_nnz, "lean us/point": seconds["lean"] / n_lean * 1e6}
    row |= {
        f"{name} us/point": seconds[name] / len(X) * 1e6 for name in ("ours", "float32")
    }
    row |= {"x lean": row["lean us/point"] / row["ours us/point"]}
    row |= {"float32 x lean": row["lean us/point"] / row["float32 us/point"]}
    row |= {
        f"x with {everything} threads": seconds["ours"] / seconds["all"],
        "M ms": drawn["ours"] * 1e3,
    }
    row["M x choice"] = drawn["choice"] / rows * spec.hash_dim / drawn["ours"]
    # per sample and row of M, as all that follow
    row["ns"] = seconds["ours"] / (len(X) * spec.hash_dim) * 1e9
    for kind, dtype in kinds.items():
        lanes = kernels.LANES[dtype]
        size = np.dtype(dtype).itemsize
        rate = bytes_per_second(spec.n_features * lanes * size)
        row[f"{kind} adds ns"] = adds[kind] / (lanes * spec.hash_dim) * 1e9
        row[f"{kind} roofline ns"] = spec.row_nnz * size / rate * 1e9
    return row


def prediction(shape: Shape, options: Any) -> Row:
    """Prediction of a trained model beside scikit-learn's nearest neighbours on the
    same training samples.
    """
    from sklearn.neighbors import KNeighborsClassifier
    from threadpoolctl import threadpool_limits

    n_train, n_test = (500, 100) if options.quick else (5000, 500)
    X, y, _ = points(shape, options.data, n_train + n_test)
    train = slice(0, len(X) - n_test)
    hasher = FlyHash(shape.spec)
    counts = ClassCounts.from_data(hasher, X[train], y[train], shape.n_classes)
    test = X[train.stop :]
    active = hasher.active(test)
    neighbours = KNeighborsClassifier(5, algorithm="brute", n_jobs=1).fit(
        X[train].astype(np.float32), y[train]
    )
    scoring = ScoringRule("balanced", 0.9)
    class_scores(counts, active, scoring)
    calls: dict[str, Callable[[], object]] = {
        "knn": lambda: neighbours.predict(test.astype(np.float32)),
        "ours": lambda: class_scores(counts, hasher.active(test), scoring),
        "scores": lambda: class_scores(counts, active, scoring),
    }
    # one thread each; idle ones of a matrix library would also spin in our turns
    with threadpool_limits(1):
        seconds = best_in_turn(calls, 2 if options.quick else 5)
    row = {
        "shape": shape.name,
        "n train": train.stop,
        "predict us/point": seconds["ours"] / n_test * 1e6,
    }
    row |= {
        "of it scores": seconds["scores"] / n_test * 1e6,
        "kNN us/point": seconds["knn"] / n_test * 1e6,
    }
    return row | {"x kNN": seconds["knn"] / seconds["ours"]}


_IN_SHORT = ("shape", "data", "d", "m", "ours us/point", "predict us/point", "ns")


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    study = Study("bench", "Speed", __doc__, arguments)
    rows: list[Row] = []
    for number, shape in enumerate(SHAPES, 1):
        print(f"[{number}/{len(SHAPES)}] {shape.name} ...", flush=True)
        rows.append(hashing(shape, study.chosen) | prediction(shape, study.chosen))
        study.write("bench", rows)
    short = [
        {name: row[name] for name in row if name.startswith("x ") or name in _IN_SHORT}
        for row in rows
    ]
    parts = [markdown_table(short)]
    bars = {
        key: [(row["shape"], row[key]) for row in rows]
        for key in ("x lean", "float32 x lean")
    }
    panels = [
        (title, {name: [value] for name, value in pairs})
        for title, pairs in bars.items()
    ]
    label = "times as fast as lean SciPy, one thread"
    parts.append(plots.bars(panels, study.folder / "bench.png", label, size=(6.5, 3.5)))
    for name, measured in (
        ("stages", bench_default.stages),
        ("efforts", bench_default.efforts),
    ):
        table = measured(study.chosen.quick)
        study.write(name, table)
        caption, _, _ = (measured.__doc__ or "").partition("\n\n")
        parts += [" ".join(caption.split()), markdown_table(table)]
    print("\n\n".join(parts))
    study.finish([study.about, *parts])
