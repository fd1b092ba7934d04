"""A CSV file larger than memory: rows and bytes a second, and memory, while its samples are counted.

The file, with numbers, a category, dates and gaps, is made in a temporary folder and deleted at the end. It is read
twice as a party reads it: kinds of the columns, then values some rows at a time, which a fixed schema makes numbers of
and a fixed hash of the paper's kind counts. Memory is that of the process without what is mapped from files.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from simulations.results import Row, about, markdown_table, output_folder, parser, text_table, write_csv, write_summary

_BLOCK = 50_000  # rows


def write_file(path: Path, n_rows: int) -> None:
    """Write a CSV file of so many rows; blocks of rows repeat in another order."""
    blocks = [_block(np.random.default_rng(seed)) for seed in range(8)]
    order = np.random.default_rng(0)
    with path.open("wb") as stream:
        stream.write(b"age;weight;dose;pressure;pulse;sugar;sodium;ward;since;label\n")
        left = n_rows
        while left > 0:
            lines = blocks[order.integers(len(blocks))]
            stream.write(b"".join(lines[:left]))
            left -= len(lines)


def _block(rng: np.random.Generator) -> list[bytes]:
    wards = np.array(["cardiology", "surgery", "neurology", "", "paediatrics"])[rng.integers(5, size=_BLOCK)]
    ages, numbers = rng.integers(18, 99, _BLOCK), rng.normal(50, 20, (_BLOCK, 6))
    days = np.datetime64("2015-01-01") + rng.integers(3000, size=_BLOCK)
    labels = np.where(numbers[:, 0] + ages + rng.normal(0, 9, _BLOCK) > 108, "ill", "well")
    gaps = rng.random((_BLOCK, 6)) < 0.02
    lines = []
    for age, row, gone, ward, day, label in zip(ages, numbers, gaps, wards, days, labels, strict=True):
        cells = ["" if gap else f"{x:.5f}" for x, gap in zip(row, gone, strict=True)]
        lines.append(f"{age};{';'.join(cells)};{ward};{day};{label}\n".encode())
    return lines


def count(path: Path) -> Row:
    """Read and count a file; the figures."""
    from flwr_flynn import ClassCounts, FlyHash, HashSpec
    from flwr_flynn.app.data.opened import opened
    from flwr_flynn.app.data.table_file import Reading
    from flwr_flynn.federated.samples import codes_of
    from flwr_flynn.tables.column_encoding import Column
    from flwr_flynn.tables.schema import Schema

    numbers = ["age", "weight", "dose", "pressure", "pulse", "sugar", "sodium"]
    wards = ["cardiology", "neurology", "paediatrics", "surgery"]
    schema = Schema(
        [*(Column(name, "number") for name in numbers), Column("ward", "category", wards), Column("since", "date")]
    )
    classes = ("ill", "well")
    center = np.zeros(schema.width)  # in the place of a gap
    hasher = FlyHash(HashSpec(schema.width, hash_dim=1024, row_nnz=4, hash_nnz=32, seed=0, center=center))
    total = ClassCounts.zeros(hasher, len(classes))
    total += ClassCounts.from_data(hasher, np.zeros((1, schema.width)), [0], len(classes))  # compiles the kernels
    before, start = _own_memory(), time.perf_counter()
    file = opened(path, Reading(schema=schema))
    file.check()
    surveyed, most = time.perf_counter(), _own_memory()
    hashing = 0.0
    for table, labels, _ in file.tables():
        X, codes = schema.encode(table), codes_of(classes, labels)
        begun = time.perf_counter()
        total += ClassCounts.from_data(hasher, X, codes, len(classes))
        hashing += time.perf_counter() - begun
        most = max(most, _own_memory())
    seconds, size = time.perf_counter() - start, path.stat().st_size
    assert int(total.n_per_class.sum()) == file.n_rows + 1
    return {
        "GB": size / 1e9,
        "rows": file.n_rows,
        "s": seconds,
        "of these first pass": surveyed - start,
        "of these hashing": hashing,
        "rows per s": file.n_rows / seconds,
        "MB per s": size / 1e6 / seconds,
        "own memory before, MiB": before,
        "own memory at most, MiB": most,
        "peak RSS, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _own_memory() -> float:
    """MiB of this process that are no pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def main(arguments: list[str]) -> None:
    """Measure, print, write."""
    options = parser("large_file", __doc__)
    options.add_argument("--rows", type=int, nargs="+", help="rows of the files, one file after the other")
    options.add_argument("--folder", type=Path, help="a folder with room for the file; the system's by default")
    chosen = options.parse_args(arguments)
    start, folder, rows = time.perf_counter(), output_folder(chosen), []
    for n_rows in chosen.rows or ([100_000] if chosen.quick else [10_000_000]):
        with tempfile.TemporaryDirectory(dir=chosen.folder) as place:
            path = Path(place) / "large.csv"
            write_file(path, n_rows)
            rows.append(count(path))
        print(text_table(rows[-1:]), flush=True)
    write_csv(folder / "large_file.csv", rows)
    parts = [about(__doc__), markdown_table(rows)]
    write_summary(folder, "A file larger than memory", "large_file", arguments, time.perf_counter() - start, parts)
