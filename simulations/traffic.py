"""Bytes on the wire: one party's packed counts beside what there is to say in them.

The zero-order entropy of the counts is what a code must take on average that codes every entry by itself. Packed counts
(`flwr_flynn.packing`) are to take at most 1.25 times that, or 512 bytes more. Beside them the same counts as they are,
in the narrowest unsigned type that holds them and in int64. The hash is the one that `HashSpec.suggest` gives, and with
``--data`` also the paper's on MNIST and Fashion-MNIST. Times are the best of three.

What FedAvg sends until it is as accurate is in ``python -m simulations noniid``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np

from flwr_flynn import ClassCounts, FlyHash, HashSpec
from flwr_flynn.packing import entropy, pack, unpack
from simulations.results import Row, output_folder, parser, text_table, write_csv
from simulations.splits import read

SIZES = (50, 180, 600, 6000, 60000)
SETS = ("letters", "mnist", "fashion_mnist")
PAPER = {
    "mnist": {"hash_dim": 170128, "row_nnz": 19, "hash_nnz": 17},
    "fashion_mnist": {"hash_dim": 108192, "row_nnz": 82, "hash_nnz": 8},
}
"""The paper's hyper-parameters, from its tables."""


def measure(name: str, counts: ClassCounts, n: int) -> Row:
    """One line of the table."""
    array = counts.array
    least = entropy(array)
    packed = pack(array)

    def best(work: object, *given: object) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            work(*given)  # type: ignore[operator]
            times.append(time.perf_counter() - start)
        return 1000 * min(times)

    narrow = np.min_scalar_type(int(array.max())).itemsize
    return {
        "set": name,
        "points": n,
        "m L": array.size,
        "entropy": round(least),
        "packed": packed.nbytes,
        "ratio": packed.nbytes / least,
        "over": round(packed.nbytes - least),
        "as it is": narrow * array.size,
        "int64": 8 * array.size,
        "pack ms": best(pack, array),
        "unpack ms": best(unpack, packed, array.shape, n),
    }


def rows(sources: list[str], largest: int) -> Iterator[Row]:
    """All lines: every set, hash and number of points."""
    for source in sources:
        data = read(source)
        n_classes = len(data.classes)
        suggested = HashSpec.suggest(data.X.shape[1], len(data.y), n_classes)
        specs = {data.name: suggested}
        if data.name in PAPER:
            specs[f"{data.name}, the paper's hash"] = HashSpec(data.X.shape[1], **PAPER[data.name], seed=0)
        order = np.random.default_rng(0).permutation(len(data.y))
        for name, spec in specs.items():
            hasher = FlyHash(spec)
            for n in SIZES:
                if n <= min(len(order), largest):
                    counts = ClassCounts.from_data(hasher, data.X[order[:n]], data.y[order[:n]], n_classes, n_jobs=-1)
                    yield measure(name, counts, n)


def main(arguments: list[str]) -> None:
    """Measure, print, write, plot."""
    options = parser("traffic", __doc__)
    chosen = options.parse_args(arguments)
    sources = ["digits"]
    if chosen.data is not None:
        sources += [str(chosen.data / f"{name}.npz") for name in SETS if (chosen.data / f"{name}.npz").exists()]
    table = list(rows(sources, 600 if chosen.quick else SIZES[-1]))
    print(text_table(table))
    folder = output_folder(chosen)
    write_csv(folder / "traffic.csv", table)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in dict.fromkeys(row["set"] for row in table):
        mine = [row for row in table if row["set"] == name]
        (line,) = axes.loglog([row["points"] for row in mine], [row["packed"] for row in mine], "o-", label=name)
        axes.loglog([row["points"] for row in mine], [row["entropy"] for row in mine], "--", color=line.get_color())
    axes.loglog([], [], "k--", label="entropy")
    axes.set(xlabel="points at the party", ylabel="bytes", title="One party's packed counts, and their entropy")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(folder / "traffic.png", dpi=130)
    plt.close(figure)
    print(f"written: {folder / 'traffic.png'}")
