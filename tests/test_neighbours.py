"""No record of a private party decides about more than its own hash."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn import FlyHash, FlyNNClient, HashSpec
from flwr_flynn.app.data import csv_file
from flwr_flynn.app.data.own_file import private_file
from flwr_flynn.federated import private_rows, views
from flwr_flynn.federated.private_rows import (
    Block,
    Dropped,
    each_part,
)
from flwr_flynn.federated.protocol import REFUSED, key
from flwr_flynn.federated.request import _REQUESTS
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.schema import Schema
from tests import neighbours
from tests.app.data.private import share_of
from tests.fakes import CLASSES, SPEC, counting, points

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_all_requests_are_asked():
    # The schema is exact.
    phases = {request.phase for request in neighbours.requests().values()} | {"schema"}
    ours = {
        name
        for name, kind in _REQUESTS.items()
        if kind.__module__.startswith("flwr_flynn.")
    }
    assert ours <= phases


@pytest.fixture
def libraries() -> None:
    for name in ("opendp", "pyarrow"):
        pytest.importorskip(name)


def is_plain(name: str) -> bool:
    return "plain" in name or "," not in name


# The second begins with an age that is a gap to the site, where the schema has none.
SWEEPS = [pytest.param(89, first, is_plain, 100) for first in (0, 62)]
SWEEPS += [
    pytest.param(8, 2 * part, is_plain, 1000, marks=pytest.mark.slow)
    for part in range(4)
]
SWEEPS += [
    pytest.param(29, 7 * part, bool, 1000, marks=pytest.mark.slow) for part in range(4)
]
"""Every so many of the pairs, from which one on, and which requests; how many they are."""


@pytest.mark.parametrize(("step", "first", "names", "least"), SWEEPS)
def test_one_row_more_changes_counts_by_its_hash_and_nothing_else(
    step, first, names, least, libraries
):
    n, different = neighbours.sweep(lambda i: i % step == first, names)
    assert n > least
    assert different == []


def _raising(count: Callable[..., None]) -> Callable[..., None]:
    def add_counts(array: Any, codes: Any, active: Any) -> None:
        if len(codes) > neighbours.N_ROWS:  # because of one record
            raise ValueError
        count(array, codes, active)

    return add_counts


def _without_fold(block: Block, of: Callable[[Any, Any], Any]) -> Iterator[Any]:
    yield of(*block.read(slice(0, block.n)))


@pytest.mark.parametrize("mutant", ["a line behind the fold raises", "no fold"])
def test_a_line_that_a_record_breaks_is_noticed(mutant, monkeypatch, libraries):
    if mutant == "no fold":
        monkeypatch.setattr(private_rows, "each_part", _without_fold)
        # So a row beyond the fold raises.
        monkeypatch.setattr(FlyHash, "fits", lambda _, X: np.ones(len(X), bool))
    else:
        monkeypatch.setattr(views, "add_counts", _raising(views.add_counts))
    n_texts = 4 * 5 * len(neighbours.HOSTILE_TEXTS)
    _, different = neighbours.sweep(
        lambda i: i > n_texts and i % 4 == 0,
        lambda name: name.startswith("noisy, plain, ranges"),
    )
    assert different


# ---- the fold


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_a_row_that_raises_drops_alone(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        bad = set(np.flatnonzero(rng.random(n) < 0.3).tolist())

        def of(rows: range, _: Any, bad: set[int] = bad) -> range:
            if bad & set(rows):
                raise (ZeroDivisionError, MemoryError, AssertionError, RecursionError)[
                    len(rows) % 4
                ]
            return rows

        parts = list(each_part(Block(n, lambda part: (range(n)[part], None)), of))
        seen = [row for part in parts if not isinstance(part, Dropped) for row in part]
        assert sum(isinstance(part, Dropped) for part in parts) == len(bad)
        assert seen == [index for index in range(n) if index not in bad]


def asked(features: Any, classes: tuple[str, ...] = ("ash", "birch")) -> RunSpec:
    """A request for noisy counts of some columns at epsilon 1/2."""
    if isinstance(features, tuple):
        width = len(features)
    else:
        width = features.width
    mechanism = SimulatedRelease(
        LaplaceCounts(0.5, hash_nnz=3, n_classes=len(classes)), 1
    )
    return RunSpec(
        HashSpec(width, 24, 1, 3, 7), classes, mechanism, feature_names=features
    )


FOUR = RunSpec(
    SPEC, CLASSES, SimulatedRelease(LaplaceCounts(0.5, hash_nnz=3, n_classes=3), 1)
)


def a_budget(folder: Path) -> Budget:
    return Budget(folder / "state", Policy(1.0, mechanisms=("simulated",)))


@pytest.mark.parametrize("text", ["-9", "1,5", "TRUE", "5 mg", "03/04/2024"])
def test_gap_texts_of_a_server_that_ask_about_values_are_refused_uncharged(
    text, tmp_path
):
    config = counting(asked(Schema([Column("a", "number", gap_texts=["n.d."])])))
    names = config[key("feature_names")]
    assert "n.d." in names
    config[key("feature_names")] = names.replace("n.d.", text)
    own = a_budget(tmp_path)
    client = FlyNNClient(np.zeros((9, 1)), ["ash"] * 9, budget=own)
    refusal = str(client.fit([], config)[2][REFUSED])
    assert "each site's own settings" in refusal
    assert f'gap-texts = ["{text}"]' in refusal
    assert not own.is_begun


# ---- what a review found: no row changes how another is read, nor what a request costs


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that were hashed together."""
    active = FlyHash.active
    sizes = list[int]()

    def counted(self: FlyHash, X: Any, **more: Any) -> Any:
        sizes.append(len(X))
        return active(self, X, **more)

    monkeypatch.setattr(FlyHash, "active", counted)
    return sizes


def test_as_many_rows_are_hashed_whether_they_fit_or_not(tmp_path, hashed):
    """The time tells no server whether a row is in a range that the server chose."""
    run = asked(
        Schema(
            [Column("0", "number", gaps=False, low=73412.0, high=73412.0)],
            is_named=False,
        ),
        ("ash",),
    )
    for value in (1.0, 73412.0):
        own = a_budget(tmp_path / str(value))
        FlyNNClient(np.array([[1.0]] * 20 + [[value]]), ["ash"] * 21, budget=own).fit(
            [], counting(run)
        )
    X, y = points(21)
    X[3:10, 1] = 1e300
    FlyNNClient(X, y, budget=a_budget(tmp_path)).fit([], counting(FOUR))
    assert hashed == [1, 21] * 3  # one of zeros, before the charge


def test_the_inputs_of_coded_features_count_against_the_memory_limit(
    tmp_path,
):
    width = 4000
    coded: dict[str, Any] = {
        "coding": "bumps",
        "n_codes": 64,
        "edges": ((0.5,),) * width,
        "signed": True,
    }
    spec = HashSpec(
        n_features=width, hash_dim=16, row_nnz=9, hash_nnz=1, seed=1, **coded
    )
    run = RunSpec(spec, ("ash",), LaplaceCounts.for_spec(spec, 1, 0.1))
    own = Budget(tmp_path / "state", Policy(1.0))
    client = FlyNNClient(
        np.zeros((9, width)), ["ash"] * 9, budget=own, memory_limit=2**27
    )
    assert str(client.fit([], counting(run))[2][REFUSED]).startswith("memory: ")


def test_features_of_one_name_are_refused_and_not_charged(tmp_path):
    frame = pytest.importorskip("pandas").DataFrame({"age": [1.0]})
    own = a_budget(tmp_path)
    metrics = FlyNNClient(frame, ["ash"], budget=own).fit(
        [], counting(asked(("age", "age")))
    )[2]
    assert str(metrics[REFUSED]).startswith(
        "features: expected features of different names"
    )
    assert not own.is_begun


@pytest.mark.parametrize(
    ("text", "n_open"),
    [
        ('2,"two\nlines",ash\n', 1),
        ('2,"open,ash\n', 1),
        ('2,"a"b,c,"d\n', 1),
        ('2,"a,b\n,,"\n', 2),
        ('2,"', 1),
    ],
)
def test_an_open_quote_takes_no_other_row_and_refuses_nothing(
    text, n_open, tmp_path, caplog
):
    """In 0.8 one such line refused the file, whatever was asked."""
    (tmp_path / "a.csv").write_text(f"a,note,label\n1,x,ash\n{text}\n3,y,ash\n")
    with caplog.at_level("WARNING", "flwr"):
        share = share_of(private_file(tmp_path / "a.csv"), ("a",))
    fits = np.isfinite(share.X)
    assert share.X[fits].tolist() == [1, 3]
    assert [record.args for record in caplog.records] == [("a.csv", n_open)]


def test_a_character_beyond_unicode_refuses_no_array(tmp_path):
    codes = np.array([[ord("1")], [0x110000], [ord("3")]], np.uint32)
    np.savez(tmp_path / "a.npz", X=codes.view("<U1"), y=codes.view("<U1")[:, 0])
    share = share_of(private_file(tmp_path / "a.npz"))
    np.testing.assert_array_equal(share.X, [[1], [np.nan], [3]])
    assert share.y.tolist() == ["1", "\ufffd", "3"]


@pytest.mark.parametrize("cell", ["x" * 200_000, "two\rlines", 'a ""word""\rmore'])
@pytest.mark.parametrize("quotes", ['"', ""])
def test_a_line_that_cannot_be_read_is_a_row_that_does_not_fit(cell, quotes, tmp_path):
    lines = ["a,note,label", "1,x,ash", f"2,{quotes}{cell}{quotes}\rx,ash", "3,,ash"]
    (tmp_path / "a.csv").write_text("\n".join(lines), newline="")
    share = share_of(private_file(tmp_path / "a.csv"), ("a",))
    assert share.X.tolist() == [[1], [3]]
    assert share.y.tolist() == ["ash", "ash"]


@given(
    st.text('",;ab \x00', max_size=12),
    st.binary(max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_quotes_are_open_where_csv_says_so(text, more, mark):
    closed = csv_file._closed(mark)
    for line in (text.encode(), more.replace(b"\n", b"").replace(b"\r", b"")):
        lines = [line.decode("utf-8", "replace"), "behind"]
        rows = [*csv.reader(lines, delimiter=mark)]
        assert (len(rows) == 1) == (closed.fullmatch(line) is None)


# ---- rows that are left out are in the party's own log, and a broken machine
# refuses before the charge


def test_rows_that_are_left_out_are_counted_in_the_log(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("a,b,label\n" + "1,2,ash\n" * 50 + "1;2;ash\n" * 40)
    with caplog.at_level("WARNING", "flwr"):
        client = FlyNNClient(
            load=private_file(tmp_path / "a.csv"), budget=a_budget(tmp_path)
        )
        metrics = client.fit([], counting(asked(("a", "b"), ("ash",))))[2]
    assert REFUSED not in metrics
    assert [record.args for record in caplog.records] == [(40, 90)]


def test_a_broken_hash_is_found_before_the_charge(tmp_path, monkeypatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no cache")

    monkeypatch.setattr(FlyHash, "active", broken)
    own = a_budget(tmp_path)
    assert REFUSED in FlyNNClient(*points(9), budget=own).fit([], counting(FOUR))[2]
    assert not own.is_begun


def test_a_row_that_fails_is_in_the_log_by_the_kind_of_its_error(
    tmp_path, monkeypatch, caplog
):
    active = FlyHash.active

    def fails(self: FlyHash, X: Any, **more: Any) -> Any:
        if (np.asarray(X) == 73412).any():
            raise RuntimeError("73412")
        return active(self, X, **more)

    monkeypatch.setattr(FlyHash, "active", fails)
    X, y = points(20)
    X[3] = 73412
    with caplog.at_level("WARNING", "flwr"):
        assert (
            REFUSED
            not in FlyNNClient(X, y, budget=a_budget(tmp_path)).fit([], counting(FOUR))[
                2
            ]
        )
    assert [record.args for record in caplog.records] == [("RuntimeError",), (1, 20)]
    assert "73412" not in caplog.text
