"""Neighbouring files of a private party, which get answers that noise makes alike.

`tests.test_neighbours` asks for some of them, and for all with ``-m slow``. Counts
without noise differ by the hash of the one row, and all else is equal byte by byte:
refused or not and why, arrays, sizes and entries.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Context, RecordDict
from flwr.client import Client
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters

from flwr_flynn.app import client_app
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.federated.phases.column_sums import ColumnSumsRequest
from flwr_flynn.federated.phases.counts import CountsRequest
from flwr_flynn.federated.protocol import REFUSED
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import secagg
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import SIZE_ENTRIES
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts, Mechanism, TopTLaplace
from flwr_flynn.privacy.ledger import Budget
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests.fakes import CLASSES, config_of
from tests.policy_table import EVALUATIONS, FITS

N_ROWS = 9
BOUND = 256
NAMES = ("age", "crp", "sex", "seen")
_AGES = [float(20 + i) for i in range(N_ROWS)]
GAP_TEXTS = '["-9", "73412", "unknown"]'
"""Texts of missing values in the site's own settings."""
BASE: list[list[Any]] = [
    [_AGES[i], i / 4, "mf"[i % 2], date(2020, 1, 1 + i), CLASSES[i % 3]]
    for i in range(N_ROWS)
]
TEXTS = [[*map(str, row)] for row in BASE]
"""Cells as texts, with an odd one in each row.

All of crp is read by a way of reading that takes plain numerals alone.
"""
_ODD = [(1, " -9"), (1, " 73412"), (0, " 25"), (0, "2.1E1"), (2, " F")]
_ODD += [(3, "03.01.2020"), (1, "1e2"), (0, "NA"), (1, "-9.0")]
for _row, (_column, _text) in zip(TEXTS, _ODD, strict=True):
    _row[_column] = _text

HOSTILE_TEXTS = json.loads(Path(__file__).with_name("hostile_texts.json").read_text())
HOSTILE_TEXTS += ["9" * 400, "x" * 5000]
"""Cells that no number, date or category has, or that somebody writes for one."""
HOSTILE_LINES = [b"", b",,,,", b'"1,2",m', b"1,\0,m,2020-01-01,ash", b"\xff,1,m,,ash"]
HOSTILE_LINES += [b"1,2,m,2020-01-01" + end for end in (b"", b",", b",oak", b",ash,9")]
HOSTILE_LINES += [b'"', b'1,"2,m,2020-01-01,ash', b'1,2,m,2020-01-01,"ash']
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
        sizes |= {"center": [1.0] * width, "scale": [0.5] * width, "signed": True}
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
    Column("crp", "number", gap_texts=["not known"]),
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
    centred = _spec(2, "centred")
    for neighbours, more in (
        ("add-remove", {"mirrored": True}),
        ("replace-one", {}),
    ):
        pair = GaussianCounts(
            0.9, 1e-5, n_columns=2, neighbours=neighbours, **more, **_shape(3)
        )
        run = RunSpec(centred, CLASSES, pair, **by_name)
        asked[f"column sums, plain, {neighbours}"] = ColumnSumsRequest(run)
        asked[f"counts of a pair, plain, {neighbours}"] = CountsRequest(run)
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


def _text_columns(rows: list[list[Any]]) -> dict[str, list[str]]:
    """The columns of some rows by name, as texts."""
    columns = [[*map(str, cells)] for cells in zip(*rows, strict=True)]
    return dict(zip([*NAMES, "label"], columns, strict=True))


def _text_parquet(path: Path, rows: list[list[Any]]) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table(_text_columns(rows)), path)


def _text_npz(path: Path, rows: list[list[Any]]) -> None:
    columns = _text_columns(rows)
    label = columns.pop("label")
    X = np.array([*columns.values()]).T
    np.savez(path, X=X, label=label, feature_names=np.array(NAMES))


def _frame(path: Path, rows: list[list[Any]]) -> None:
    import pandas as pd

    pd.DataFrame(_text_columns(rows), dtype=object).to_pickle(path)


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
    writers = {
        ".csv": _csv,
        ".parquet": _text_parquet,
        ".npz": _text_npz,
        ".frame": _frame,
    }
    for index, text in enumerate(HOSTILE_TEXTS):
        for column in range(5):
            row: list[Any] = [30.0, 1.0, "m", date(2020, 5, 5), "ash"]
            place = (index + column) % (N_ROWS + 1)
            row[column] = text
            rows = [*TEXTS[:place], row, *TEXTS[place:]]
            for ending, write in writers.items():
                yield (
                    ending,
                    f"{column}: {text[:20]!r}",
                    partial(write, rows=TEXTS),
                    partial(write, rows=rows),
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


def _party(path: Path, node: dict[str, Any]) -> Client:
    """The private party of a file, or of the samples in a frame."""
    if path.suffix == ".frame":
        import pandas as pd

        frame = pd.read_pickle(path)
        parsed = NodeConfig.parse(node)
        return FlyNNClient(
            frame[[*NAMES]],
            frame["label"],
            budget=Budget(parsed.state_path, parsed.policy()),
            evaluates=parsed.evaluate,
            secure=parsed.secure,
        ).to_client()
    context = Context(
        run_id=1, node_id=2, node_config=node, state=RecordDict(), run_config={}
    )
    with mock.patch.object(client_app, "in_simulation", return_value=False):
        return client_app.client_fn(context)


def answer_of(
    request: Request[Any], path: Path, evaluates: bool
) -> tuple[list[Any], tuple[Any, ...]]:
    """Counts, or sums of columns, of a private party with this file before noise, and
    all else of its answer.

    In the place of noisy counts the answer has zeros.
    """
    is_secure = request.bound is not None
    node: dict[str, Any] = {
        "data-path": str(path),
        "label": "label",
        "state-path": str(path) + ".state",
        "gap-texts": GAP_TEXTS,
    }
    if path.suffix == ".frame":
        node["data-path"] = "none.csv"
    node |= {"max-epsilon": 1.0, "max-delta": 1e-4}
    masking: Any = nullcontext()
    if evaluates:
        node |= {"evaluate": True, "test-fraction": 0.3}
    if is_secure:
        node |= {"secure": True}
        masking = secagg.masking(BOUND, 2)
    counted: list[Any] = []

    def noisy(_: Mechanism, array: Any) -> Any:
        counted.append(array)
        return np.zeros_like(array)

    config = config_of(request)
    arrays = ndarrays_to_parameters(request.arrays())
    party = _party(path, node)
    kinds = {"noisy": noisy, "released_sums": noisy}
    with masking, mock.patch.multiple(Mechanism, **kinds):
        if request.channel == "train":
            fit = party.fit(FitIns(arrays, config))
            return counted, (fit.metrics, fit.num_examples, fit.parameters.tensors)
        evaluation = party.evaluate(EvaluateIns(arrays, config))
    if REFUSED in evaluation.metrics or "accuracy" not in evaluation.metrics:
        return counted, (evaluation.metrics, evaluation.num_examples, evaluation.loss)
    # These are exact results on held-out samples, which the party lets go.
    return counted, (sorted(evaluation.metrics),)


def are_neighbours(request: Any, one: list[Any], other: list[Any]) -> bool:
    """True for counts or sums of which the second have at most one row more."""
    if len(one) != len(other):
        return False
    if not one:
        return True
    more = other[0] - one[0]
    if isinstance(request, ColumnSumsRequest):
        ends, *squares = more
        is_row = all(
            np.array_equal(row, np.rint(ends**2 / 256 - 128)) for row in squares
        )
        return not more.any() or bool(is_row and abs(ends).max() <= 256)
    n_bits = request.run.spec.hash_nnz
    if request.run.mechanism.mirrored:
        more = more[more.any(axis=1)]
        hashed, sizes = np.split(more, [-SIZE_ENTRIES], axis=1)
        n_ones = np.count_nonzero(hashed)
        is_row = len(more) == 1 and (sizes == 1).all() and abs(hashed).max() <= 1
        return not len(more) or bool(is_row and n_ones <= 2 * n_bits)
    by_class = more.sum(axis=1)
    return bool(
        more.min() >= 0
        and more.max() <= 1
        and sorted(by_class)[-1] in (0, n_bits)
        and by_class.sum() in (0, n_bits)
    )


def sweep(
    chosen: Callable[[int], bool] = lambda _: True,
    names: Callable[[str], bool] = lambda _: True,
) -> tuple[int, list[str]]:
    """Number of pairs asked about, and the pairs whose answers tell the row."""
    n = 0
    different = []
    files = [pair for index, pair in enumerate(pairs()) if chosen(index)]
    with tempfile.TemporaryDirectory() as name:
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
                    answers = []
                    for path in (one, other):
                        # What is written looks through its folder for old files.
                        folder = path.with_name(str(next(numbers)))
                        folder.mkdir()
                        fresh = folder / path.name
                        fresh.symlink_to(path)
                        answers.append(answer_of(request, fresh, evaluates))
                    n += 1
                    (counts, rest), (counts_of_more, rest_of_more) = answers
                    pair = f"{ending} {hostile}, {what}"
                    if rest != rest_of_more:
                        different.append(f"{pair}: {rest} and {rest_of_more}"[:400])
                    elif not are_neighbours(request, counts, counts_of_more):
                        different.append(f"{pair}: counts")
    return n, different
