"""Neighbouring files of a private party, which get answers of the same kind.

`tests.test_neighbours` asks for some of them, and for all with ``-m slow``. The kind of
an answer is what noise does not hide: refused or not and why, shapes, types, sizes and
keys.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters

from flwr_flynn.app import client_app
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import REFUSED, STATISTIC
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import secagg
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts, TopTLaplace
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.fakes import CLASSES, config_of
from tests.policy_table import EVALUATIONS, FITS

N_ROWS = 9
BOUND = 256
NAMES = ("age", "crp", "sex", "seen")
_AGES = [float(20 + i) for i in range(N_ROWS)]
BASE: list[list[Any]] = [
    [_AGES[i], i / 4, "mf"[i % 2], date(2020, 1, 1 + i), CLASSES[i % 3]]
    for i in range(N_ROWS)
]

HOSTILE_TEXTS = [
    "",
    " ",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e999",
    "-1e308",
    "1_0",
    "0x10",
    "\uff11\uff12",
    "true",
    "73412",
    "-9",
    "1e-320",
    "9" * 400,
    "9999-12-31",
    "0000-00-00",
    "31.02.2020",
    "1+0j",
    "=cmd|'/C calc'!A0",
    "\ufffd",
    "\u202e",
    "x" * 5000,
]
# But an open quote, which damages the file as a whole: it is refused at the start,
# whatever is asked.
HOSTILE_LINES = [b"", b",,,,", b'"1,2",m', b"1,\0,m,2020-01-01,ash", b"\xff,1,m,,ash"]
HOSTILE_LINES += [b"1,2,m,2020-01-01" + end for end in (b"", b",", b",oak", b",ash,9")]
HOSTILE_LINES += [b"x" * 200_000, b'"' * 98, b"9" * (2**20 + 5)]


def _shape(n_classes: int) -> dict[str, Any]:
    return {"hash_nnz": 3, "n_classes": n_classes}


def _spec(width: int, kind: str) -> HashSpec:
    sizes: dict[str, Any] = {
        "n_features": width,
        "hash_dim": 24,
        "row_nnz": 2,
        "hash_nnz": 3,
        "seed": 7,
    }
    if kind == "centred":
        sizes |= {"center": [1.0] * width, "scale": [0.5] * width}
    if kind == "codes":
        sizes |= {
            "edges": [[0.0, 1.0, 2.0, 3.0]] * width,
            "coding": "bumps",
            "n_codes": 2,
        }
    if kind == "waves":
        sizes |= {
            "center": [0.0] * width,
            "scale": [1.0] * width,
            "n_waves": 8,
            "wave_frequency": 1.0,
        }
    return HashSpec(**sizes)


_RANGES = [
    Column("age", "number", low=0.0, high=120.0, gaps=False),
    Column("crp", "number", gap_texts=["73412", "-9"], gaps=False),
    Column("sex", "category", ["m", "f"], gap_texts=["f"], synonyms={"20": "m"}),
    Column("seen", "date"),
]
SCHEMAS: dict[str, Schema] = {
    "ranges": Schema(_RANGES),
    "numbers as texts": Schema(
        [Column("age", "category", ["20", "21"]), Column("crp", "date", gaps=False)]
    ),
    "texts as numbers": Schema(
        [Column("sex", "number", gap_texts=["m", "f"]), Column("seen", "number")]
    ),
}


def requests() -> dict[str, Request[Any]]:
    """Every request of the policy's table, and noisy ones.

    The noisy ones are of each mechanism, hash, schema and number of classes.
    """
    asked: dict[str, Request[Any]] = {**FITS, **EVALUATIONS}
    laplace = LaplaceCounts(0.9, **_shape(3))
    for kind in ("plain", "centred", "codes", "waves"):
        for name, schema in SCHEMAS.items():
            run = RunSpec(
                _spec(schema.width, kind), CLASSES, laplace, feature_names=schema
            )
            asked[f"noisy, {kind}, {name}"] = CountsRequest(run)
        for columns in (("age", "crp"), ("crp", "age"), ("seen", "sex", "age")):
            run = RunSpec(
                _spec(len(columns), kind), CLASSES, laplace, feature_names=columns
            )
            asked[f"noisy, {kind}, {columns}"] = CountsRequest(run)
    by_name = {"feature_names": ("age", "crp")}
    spec = _spec(2, "plain")
    for mechanism in (
        GaussianCounts(0.9, 1e-5, **_shape(3)),
        TopTLaplace(0.9, 5, **_shape(3)),
    ):
        asked[f"noisy, {mechanism.kind}"] = CountsRequest(
            RunSpec(spec, CLASSES, mechanism, **by_name)
        )
    one = LaplaceCounts(0.9, **_shape(1))
    asked["noisy, one class"] = CountsRequest(
        RunSpec(spec, CLASSES[:1], one, **by_name)
    )
    asked["noisy, another width"] = CountsRequest(
        RunSpec(_spec(3, "plain"), CLASSES, laplace)
    )
    missing = RunSpec(spec, CLASSES, laplace, feature_names=("age", "none"))
    asked["noisy, a missing column"] = CountsRequest(missing)
    return asked


# -------- files


def _quoted(cell: Any) -> str:
    """A cell of a CSV file, in quotes if there is a comma in it."""
    if "," in str(cell):
        return f'"{cell}"'
    return str(cell)


def _csv(
    path: Path, rows: list[list[Any]], line: tuple[int, bytes] | None = None
) -> None:
    lines = [",".join([*NAMES, "label"]).encode()]
    lines += [",".join(map(_quoted, row)).encode() for row in rows]
    if line is not None:
        lines.insert(1 + line[0], line[1])
    path.write_bytes(b"\n".join(lines) + b"\n")


def _encoded(value: Any) -> bytes:
    """A text as bytes, or bytes as they are."""
    if isinstance(value, bytes):
        return value
    return str(value).encode()


def _parquet(
    path: Path, rows: list[list[Any]], odd: tuple[int, str, Any] | None = None
) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    columns = dict(
        zip([*NAMES, "label"], map(list, zip(*rows, strict=True)), strict=True)
    )
    columns["seen"] = [(value - date(1970, 1, 1)).days for value in columns["seen"]]
    types = {"age": arrow.float64(), "crp": arrow.float32()}
    if odd is not None:
        place, column, value = odd
        for values in columns.values():
            values.insert(place, values[0])
        columns[column][place] = value
    arrays = {}
    for name, values in columns.items():
        if name == "seen":
            arrays[name] = arrow.array(values, arrow.int32()).cast(arrow.date32())
        elif any(isinstance(value, bytes) for value in values):
            # One of the texts is none.
            raw = arrow.array(list(map(_encoded, values)), arrow.binary())
            arrays[name] = arrow.Array.from_buffers(
                arrow.string(), len(raw), raw.buffers()
            )
        else:
            arrays[name] = arrow.array(values, types.get(name, arrow.string()))
    parquet.write_table(arrow.table(arrays), path, row_group_size=4)


HOSTILE_CELLS = [
    *(
        ("age", value)
        for value in (None, np.nan, np.inf, -np.inf, 1e308, -1e308, 73412.0, 1e-320)
    ),
    *(("crp", value) for value in (None, np.nan, np.inf, 73412.0, -9.0)),
    *(
        ("sex", value)
        for value in (None, "", "x", "73412", b"\xff\xfe", "=1+1", "9" * 9999)
    ),
    *(
        ("seen", value)
        for value in (None, -(2**31), 2**31 - 1, 4_000_000, -719_163, 2_932_897)
    ),
    *(("label", value) for value in (None, "", "oak", b"\xff")),
]


def _npz(
    path: Path, rows: list[list[Any]], odd: tuple[int, list[Any]] | None = None
) -> None:
    cells = [[*row[:2], row[-1]] for row in rows]
    if odd is not None:
        cells.insert(*odd)
    X = np.array([row[:2] for row in cells])
    y = np.array([row[2] for row in cells])
    np.savez(path, X=X, label=y, feature_names=np.array(["age", "crp"]))


HOSTILE_ARRAY_ROWS = [
    *(
        [value, 1.0, "ash"]
        for value in (
            np.nan,
            np.inf,
            -np.inf,
            1e308,
            -1e308,
            73412.0,
            1e-320,
            "word",
            1j,
            2**63,
        )
    ),
    *([1.0, 1.0, label] for label in ("", "oak", "nan")),
]


def pairs() -> Iterator[
    tuple[str, str, Callable[[Path], None], Callable[[Path], None]]
]:
    """Kind of file, hostile row, and functions that write the file without and with it."""
    csv, parquet, npz = (partial(write, rows=BASE) for write in (_csv, _parquet, _npz))
    for index, text in enumerate(HOSTILE_TEXTS):
        for column in range(5):
            row: list[Any] = [30.0, 1.0, "m", date(2020, 5, 5), "ash"]
            place = (index + column) % (N_ROWS + 1)
            row[column] = text
            yield (
                ".csv",
                f"{column}: {text[:20]!r}",
                csv,
                partial(_csv, rows=[*BASE[:place], row, *BASE[place:]]),
            )
    for index, line in enumerate(HOSTILE_LINES):
        yield (
            ".csv",
            repr(line[:20]),
            csv,
            partial(csv, line=(index % (N_ROWS + 1), line)),
        )
    for index, (name, value) in enumerate(HOSTILE_CELLS):
        odd = index % (N_ROWS + 1), name, value
        yield (
            ".parquet",
            f"{name}: {str(value)[:20]}",
            parquet,
            partial(parquet, odd=odd),
        )
    for index, cells in enumerate(HOSTILE_ARRAY_ROWS):
        yield (
            ".npz",
            str(cells)[:30],
            npz,
            partial(npz, odd=(index % (N_ROWS + 1), cells)),
        )


# -------- answers


def kind_of(request: Request[Any], path: Path, evaluates: bool) -> Any:
    """Kind of the answer of a private party with this file."""
    is_secure = request.bound is not None
    node: dict[str, Any] = {
        "data-path": str(path),
        "label": "label",
        "state-path": str(path) + ".state",
    }
    node |= {"max-epsilon": 1.0, "max-delta": 1e-4}
    masking: Any = mock.patch("os.fsync")
    if evaluates:
        node |= {"evaluate": True, "test-fraction": 0.3}
    if is_secure:
        node |= {"secure": True}
        masking = secagg.masking(BOUND, 2)
    context = Context(
        run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={}
    )
    config = config_of(request)
    arrays = ndarrays_to_parameters(request.arrays())
    with mock.patch.object(client_app, "in_simulation", return_value=False):
        party = client_app.client_fn(context)
    with masking:
        if request.channel == "train":
            fit = party.fit(FitIns(arrays, config))
            # The heads of the tensors tell type and shape.
            heads = [tensor[:128].split(b"}")[0] for tensor in fit.parameters.tensors]
            return (
                fit.metrics.get(REFUSED),
                sorted(fit.metrics),
                fit.num_examples,
                heads,
            )
        evaluation = party.evaluate(EvaluateIns(arrays, config))
    keys = sorted(evaluation.metrics)
    if REFUSED in evaluation.metrics or "accuracy" not in evaluation.metrics:
        return (
            evaluation.metrics.get(REFUSED),
            keys,
            evaluation.num_examples,
            STATISTIC in evaluation.metrics,
        )
    # These are exact results on held-out samples, which the party lets go.
    return None, keys


def sweep(
    chosen: Callable[[int], bool] = lambda _: True,
    names: Callable[[str], bool] = lambda _: True,
) -> tuple[int, list[str]]:
    """Number of pairs asked about, and the pairs whose answers are of different kinds."""
    n = 0
    different = []
    files = [pair for index, pair in enumerate(pairs()) if chosen(index)]
    with tempfile.TemporaryDirectory() as name, mock.patch("os.fsync"):
        numbers = itertools.count()
        for ending, hostile, without, with_it in files:
            one, other = (
                Path(name).resolve() / f"{place}{ending}" for place in ("one", "other")
            )
            without(one)
            with_it(other)
            for what, request in requests().items():
                if not names(what):
                    continue
                settings = [False]
                if "evaluation" in what:
                    settings.append(True)
                for evaluates in settings:
                    kinds = []
                    for path in (one, other):
                        fresh = path.with_name(f"{next(numbers)}{ending}")
                        fresh.symlink_to(path)
                        kinds.append(kind_of(request, fresh, evaluates))
                    n += 1
                    if kinds[0] != kinds[1]:
                        different.append(
                            f"{ending} {hostile}, {what}: {kinds[0]} and {kinds[1]}"
                        )
    return n, different
