"""Files and frames as people have them, and the smallest inputs.

Columns by name, types, ids and notes, cells, and headers.
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app import server_app
from flwr_flynn.app.cli import main
from flwr_flynn.app.data.held_out import HeldOut
from flwr_flynn.app.data.own_file import encoded_share, opened, own_share, private_rows
from flwr_flynn.app.data.source import Dialect, Reading
from flwr_flynn.app.try_files import FilesGrid
from flwr_flynn.errors import AggregationError, DataError, FlyNNError
from flwr_flynn.federated.algorithm import federate
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.phases.table_schema import coinciding
from flwr_flynn.federated.run import Run
from flwr_flynn.flower.progress import Progress
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.learned_schema import schema_of
from flwr_flynn.tables.row_wise import CellSettings, encode_rows
from flwr_flynn.tables.schema import Schema, read_schema
from flwr_flynn.tables.table import Table
from flwr_flynn.tables.table_summary import TableSummary
from tests.app.data.files import ENDINGS, node, table_of, written
from tests.app.data.private import private_share
from tests.raising import raises
from tests.snapshots import assert_on_record

pd = pytest.importorskip("pandas")
RAW = Path(__file__).parents[3] / "shared" / "data" / "raw"
HEART = [
    RAW / f"heart_{name}.csv"
    for name in ("cleveland", "hungarian", "switzerland", "va")
]


def party(
    source: Path | tuple[Any, Any], name: str = "", label: str = "", **options: Any
) -> Party:
    """A party with a file, read as a deployed one reads it, or with samples."""
    if not isinstance(source, Path):
        return Party(Samples(*source), PartyOptions(name or None, **options))
    own = node(source, label=label)

    def load(features: Any) -> Samples:
        if isinstance(features, Schema):
            return encoded_share(own, features)
        return own_share(own, features)

    return Party(load, PartyOptions(name or source.stem, **options))


def parties(parts: Iterable[tuple[Any, Any]], names: str = "0123") -> list[Party]:
    return [party(part, name) for part, name in zip(parts, names, strict=False)]


def plan_of(n_features: int, scaling: Any = "auto", n_classes: int = 2) -> HashPlan:
    return HashPlan(
        n_features, n_classes, 200, scaling, hash_dim=256, hash_nnz=8, effort="quick"
    )


def run_of(
    parties: Sequence[Party], classes: Any = ("no", "yes"), **options: Any
) -> Run:
    """A run that learns the schema of its parties, unless it has names."""
    given = {
        "min_parties": len(parties),
        "learn_schema": "feature_names" not in options,
        "fraction_evaluate": 0.0,
    }
    names = options.get("feature_names")
    if isinstance(names, Schema):
        width = names.width
    else:
        width = len(names or "1")
    return federate(
        RunOptions(**{"spec": plan_of(width), "classes": classes} | given | options),
        parties,
    )


def assert_one_model(
    parties: list[Party], n_samples: int, classes: Any = ("no", "yes")
) -> Run:
    """The order in which parties reply decides nothing."""
    runs = [run_of(order, classes) for order in itertools.permutations(parties)]
    assert {run.counts.n_per_class.sum() for run in runs} == {n_samples}
    assert len({run.model.model_.sha256() for run in runs}) == 1
    return runs[0]


def frame_of(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Two measurements, and labels: somebody is ill if the second one is greater."""
    values = np.random.default_rng(seed).normal(size=(n, 2)).round(2)
    return pd.DataFrame(values, columns=["before", "after"]), np.where(
        values[:, 0] > values[:, 1], "no", "yes"
    )


# -------- columns


@ENDINGS
@pytest.mark.parametrize("names", [("before", "after"), ("BEFORE", "After")])
def test_columns_are_matched_by_name_in_whatever_order_they_stand(
    ending, names, tmp_path
):
    X, y = frame_of(300)
    turned = X[["after", "before"]]
    renamed = turned.rename(columns=dict(zip(X.columns, names, strict=True)))
    sites = []
    for index, frame in enumerate((X, renamed, turned)):
        rows = frame[index::3].assign(label=y[index::3])
        sites.append(party(written(tmp_path / f"h{index}.{ending}", rows)))
    run = assert_one_model(sites, 300)
    assert (run.model.predict(X[["after", "before"]]) == y).mean() > 0.9


@pytest.mark.filterwarnings("ignore:phase .* no answer of ")
def test_arrays_without_names_are_no_company_for_columns_with_names():
    X, y = frame_of(60)
    frames = party((X, y), "frame")
    arrays = party((X.to_numpy(), y), "array")
    for order in ([frames, arrays], [arrays, frames]):
        with pytest.warns(UserWarning, match="^phase columns: no answer of array "):
            run = run_of(order, min_parties=1)
        assert set(run.state.missing["columns"]) == {"array"}
    with pytest.warns(UserWarning, match="^phase counts: no answer of frame "):
        run = run_of([frames], spec=plan_of(2, None), learn_schema=False)
    assert "feature_names" in run.rosters["counts"].missing["frame"]


@pytest.mark.filterwarnings("ignore:phase .* no answer of ")
def test_gaps_and_lacking_columns_exclude_nobody_but_a_column_spelt_otherwise_does():
    whole = [frame_of(80, seed) for seed in range(2)]
    (X, y) = frame_of(80, 2)
    gaps = [X.assign(after=X["after"].where(X.index >= n)) for n in (1, 4, 30)]
    for part in (*gaps, X[["before"]]):
        assert_one_model(parties([*whole, (part, y)]), 240)
    with pytest.warns(UserWarning, match="^phase columns: no answer of 2 "):
        run = run_of(
            parties([*whole, (X[["before"]].assign(afterwards=1.0), y)]), min_parties=2
        )
    assert "'after'; 1 others" in run.state.missing["columns"]["2"]


def site_of(n: int, n_ill: int, n_gaps: int = 0, seed: int = 0) -> tuple[Any, Any]:
    """A site where so many are ill; with gaps alone it has no column of troponin."""
    X = frame_of(n, seed)[0].rename(columns={"after": "troponin"})
    X.loc[X.index < n_gaps, "troponin"] = np.nan
    if n_gaps == n:
        X = X[["before"]]
    return X, np.where(np.arange(n) < n_ill, "yes", "no")


USUAL = [site_of(150, 20), site_of(150, 20, seed=1)]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(site_of(120, 80, 120, seed=2), id="no such column"),
        pytest.param(site_of(120, 80, 100, seed=2), id="many gaps"),
    ],
)
def test_gaps_that_tell_the_site_and_its_classes_are_warned_of(odd):
    sites = parties([*USUAL, odd], "abc")
    warnings = coinciding(run_of(sites).state)
    assert set(warnings) == {"troponin"}
    for word in ("c", "67", "13"):
        assert word in warnings["troponin"]
    schema = Schema([Column("before", "number"), Column("troponin", "number")])
    assert coinciding(run_of(sites, feature_names=schema).state) == {}


@pytest.mark.parametrize(
    "site",
    [
        pytest.param(site_of(120, 80, 50, seed=2), id="few gaps"),
        pytest.param(site_of(120, 20, 120, seed=2), id="as many ill as elsewhere"),
        pytest.param(site_of(90, 80, 90, seed=2), id="few samples"),
    ],
)
def test_gaps_that_do_not_tell_the_site_are_not_warned_of(site):
    sites = parties([*USUAL, site], "abc")
    assert coinciding(run_of(sites).state) == {}
    schema = Schema([Column("before", "number"), Column("troponin", "number")])
    assert coinciding(run_of(sites, feature_names=schema).state) == {}


@pytest.mark.skipif(not RAW.exists(), reason="the data sets are elsewhere")
def test_the_four_hospitals_of_the_heart_files_are_one_model_in_every_order(caplog):
    """The log asks about the one column that is a code at one of them, 0."""
    assert_one_model(
        [party(path, label="num") for path in HEART],
        920,
        ("'not_present'", "'present'"),
    )
    warned = {
        record.args for record in caplog.records if "is the unit the same" in record.msg
    }
    assert warned == {("heart_switzerland", "chol")}


def test_a_run_of_too_few_parties_ends_after_its_first_exchange(tmp_path):
    with raises(AggregationError) as caught:
        run_of(
            [
                party(frame_of(40), "good"),
                party(written(tmp_path / "bad.csv", "a,b\n1,2\n")),
            ]
        )
    assert set(caught.value.missing) == {"bad"}


def assert_no_model_of_no_samples(X: Any, y: Any, **options: Any) -> None:
    good = party((X, y))
    empty = party((X[:0], y[:0]))
    with raises(AggregationError, counted=0, min_parties=2, missing={}):
        _ = run_of([empty, empty], **options).model
    assert run_of([good, empty], **options).counts.n_per_class.sum() == 40


def test_a_run_of_no_samples_has_no_model_with_a_learned_schema():
    assert_no_model_of_no_samples(*frame_of(40))


@pytest.mark.parametrize("scaling", ["auto", None])
def test_a_run_of_no_samples_has_no_model_with_names(scaling):
    X, y = frame_of(40)
    assert_no_model_of_no_samples(
        X, y, spec=plan_of(2, scaling), feature_names=("before", "after")
    )


@pytest.mark.parametrize("scaling", ["auto", None])
def test_a_run_of_no_samples_has_no_model_without_names(scaling):
    X, y = frame_of(40)
    assert_no_model_of_no_samples(
        X.to_numpy(), y, spec=plan_of(2, scaling), feature_names=None
    )


@pytest.mark.parametrize("settings", [{}, {"feature-names": "before,after"}])
def test_a_deployed_run_of_no_samples_ends_with_one_error(settings, tmp_path):
    path = written(tmp_path / "empty.csv", "before,after,label\n")
    out = tmp_path / "out"
    nodes = [{"data-path": str(path), "party-id": name} for name in "abc"]
    grid = FilesGrid(nodes, Progress(print))
    settings |= {
        "classes": "no,yes",
        "min-available": 3,
        "output-dir": str(out),
        "nodes-at-a-time": 3,
    }
    with raises(AggregationError, counted=0, min_parties=3, missing={}):
        server_app.main(grid, Context(1, 0, {}, RecordDict(), settings))
    assert not [*out.glob("*.npz")]


# -------- types


TYPES: dict[str, Any] = {
    "bool": [True, False] * 50,
    "nullable float": pd.array([1.2, 3.4] * 50, "Float64"),
    "nullable integer": pd.array([1, 2] * 50, "Int64"),
    "decimal": [Decimal("1.2"), Decimal("3.4")] * 50,
    "object": np.array([1, 2] * 50, object),
    "object bool": np.array([True, False] * 50, object),
    "timedelta": pd.to_timedelta([1, 2] * 50, "D"),
    "categorical": pd.Categorical(["a", "b"] * 50),
    "converted": pd.Series([1, 2] * 50).convert_dtypes(),
    "converted bool": pd.Series([True, False] * 50).convert_dtypes(),
}


@pytest.mark.parametrize(
    "columns", [{"own": TYPES[name], "crp": [0.5] * 100} for name in TYPES], ids=TYPES
)
def test_frames_of_any_types_are_counted_as_they_are_alone(columns):
    X = pd.DataFrame(columns)
    y = np.array(["no", "yes"] * 50)
    assert FlyNNClassifier(effort="quick").fit(X, y).score(X, y) == 1.0
    run = run_of(parties([(X[:60], y[:60]), (X[60:], y[60:])]))
    assert run.counts.n_per_class.tolist() == [50, 50]
    assert (run.model.predict(X) == y).all()


def test_levels_that_sites_write_in_other_forms_are_learned_as_one():
    frames = [
        pd.DataFrame({"d": levels * 20})
        for levels in (["Heart", "Lung"], ["heart", "lung"], ["heart", "LUNG"])
    ]
    for one, two, three in itertools.permutations(
        TableSummary.of(frame, 5) for frame in frames
    ):
        schema = schema_of(one + two + three)[0]
        assert schema.columns[0].levels == ("LUNG", "heart")
        assert all(schema.encode(frame).any(axis=1).all() for frame in frames)


def test_two_levels_of_one_form_stay_two():
    schema = Schema([Column("c", "category", ["a", "A", "1", "01"], gaps=False)])
    assert schema.encode(pd.DataFrame({"c": ["A", "a", "01"]})).argmax(
        axis=1
    ).tolist() == [1, 0, 3]
    assert not schema.encode(pd.DataFrame({"c": ["001"]})).any()


# -------- nothing personal


IDS = np.random.default_rng(1).permutation(900_000)[:200] + 100_000
PERSONAL: dict[str, Any] = {
    "sequence": np.arange(1, 201),
    "numbers": IDS,
    "texts": [f"P{number}" for number in IDS],
    "notes": [f"seen on day {number}, no complaints since" for number in IDS],
}
MEASURED: dict[str, Any] = {
    "age": np.random.default_rng(2).integers(18, 99, 200),
    "platelets": np.random.default_rng(3).normal(250_000, 60_000, 200).round(-3),
    "ck": np.exp(np.random.default_rng(4).normal(6, 1, 200)).round(),
    "weight": np.random.default_rng(5).normal(3300, 500, 200).round(),
    "ratio": np.random.default_rng(6).random(200),
    "two groups": np.random.default_rng(7)
    .normal([[5000], [12000]], [[1000], [1440]], (2, 100))
    .ravel()
    .round(),
}


@pytest.mark.parametrize("kind", PERSONAL)
def test_columns_of_ids_and_notes_are_left_out_everywhere_unless_they_are_named(
    kind, tmp_path
):
    X = pd.DataFrame(
        {
            "crp": np.random.default_rng(0).normal(size=200).round(2),
            "own": PERSONAL[kind],
        }
    )
    X = pd.concat([X, X[:15]], ignore_index=True)  # some patients came twice
    y = np.where(X["crp"] > 0, "no", "yes")
    with pytest.warns(UserWarning, match="'own'"):
        model = FlyNNClassifier(effort="quick").fit(X, y)
    assert list(model.feature_names_in_) == ["crp"]
    model.save(tmp_path / "model.npz")
    content = (tmp_path / "model.npz").read_bytes()
    assert not [
        value
        for value in X["own"]
        if str(value).encode() in content and len(str(value)) > 4
    ]
    sites = parties((X[index::2], y[index::2]) for index in range(2))
    run = run_of(sites)
    assert run.state.run_spec.feature_names.names == ("crp",)
    assert set(run.state.results["schema"].left_out) == {"own"}
    # Though the column stands in the frame, predictions do not need it.
    assert (run.model.predict(X) == y).mean() > 0.9
    if kind in ("sequence", "numbers"):
        named = run_of(sites, keep=("own",))
        assert named.state.run_spec.feature_names.names == ("crp", "own")
        alone = FlyNNClassifier(effort="quick", keep=["own"]).fit(X, y)
        assert list(alone.feature_names_in_) == ["crp", "own"]


@pytest.mark.parametrize("kind", MEASURED)
def test_measurements_are_no_ids(kind):
    summary = TableSummary.of(Table.of(pd.DataFrame({"own": MEASURED[kind]})), 5)
    schema, left_out = schema_of(summary)
    assert (schema.names, left_out) == (("own",), {})


def test_columns_to_ignore_are_no_features_in_any_place(tmp_path):
    X, y = frame_of(60)
    alone = FlyNNClassifier(effort="quick", ignore=["after"]).fit(X, y)
    assert list(alone.feature_names_in_) == ["before"]
    run = run_of([party((X, y))], ignore=("After",))
    assert run.state.run_spec.feature_names.names == ("before",)
    for name in ("own.csv", "own.npz"):
        path = written(tmp_path / name, X.assign(label=y))
        assert own_share(node(path, ignore="after")).names == ("before",)
        assert private_rows(node(path, ignore="after"), bytes).names == ("before",)
        # A column whose name is misspelt would be used.
        with raises(DataError, field=name, expected="the columns to ignore"):
            own_share(node(path, ignore="aftr"))
    with raises(FlyNNError, field="ignore, keep"):
        FlyNNClassifier(ignore=["afterwards"]).fit(X, y)


def test_a_level_needs_five_rows_in_a_model_of_one():
    X = pd.DataFrame({"c": ["a"] * 20 + ["b"] * 4 + ["c"] * 16})

    def levels(**options: Any) -> tuple[str, ...]:
        model = FlyNNClassifier(effort="quick", **options).fit(X, X["c"] == "a")
        return model.model_.schema.columns[0].levels

    assert levels() == ("a", "c")
    assert levels(min_examples=1) == ("a", "b", "c")


def test_edges_have_no_more_digits_than_they_need():
    X = pd.DataFrame(
        {
            "own": IDS.astype(float) + 0.5,
            "shared": np.repeat([0.1, 0.7, 123.4, 999.9], 50),
        }
    )
    model = FlyNNClassifier().fit(X, IDS > 500_000)
    specs = [member.spec for member in model.model_.members]
    edges = np.array(next(spec.edges for spec in specs if spec.edges is not None))
    assert not np.isin(edges[0], X["own"]).any()
    assert (edges[0] % 256 == 0).all()  # of a spread of some 800,000
    np.testing.assert_allclose(np.unique(edges[1]), [0.1, 0.7, 123.4, 999.9], rtol=1e-5)


# -------- cells


def test_texts_beside_numbers_are_encoded_alike_where_a_site_has_one_of_them_alone(
    tmp_path,
):
    cells = [f"{i / 10} mg/dl" for i in range(30)] + ["<5"] * 6 + ["n.d."] + ["", "?"]
    path = written(
        tmp_path / "a.csv", "crp,label\n" + "".join(f"{cell},x\n" for cell in cells)
    )
    table = table_of(path)
    schema = schema_of(TableSummary.of(table, 5))[0]
    assert schema.inputs == ("crp", "crp missing", "crp text=<5")
    np.testing.assert_array_equal(
        schema.encode(pd.read_csv(path)[["crp"]]), schema.encode(table)
    )
    alone = table_of(written(tmp_path / "b.csv", "crp,label\n<5,x\n"), schema=schema)
    for X in (table[30:31], pd.DataFrame({"crp": ["<5"]}), alone):
        np.testing.assert_array_equal(schema.encode(X), [[np.nan, 1, 1]])
    np.testing.assert_array_equal(
        schema.encode(pd.DataFrame({"crp": [1.5]})), [[1.5, 0, 0]]
    )


def test_labels_can_be_mapped_at_one_site(tmp_path):
    own = node(
        written(tmp_path / "a.csv", "a,label\n1,ja\n2,nein\n3,other\n"),
        label_map="ja=yes, nein=no",
    )
    assert (
        own_share(own).y.tolist()
        == private_share(own).y.tolist()
        == ["yes", "no", "other"]
    )


def test_levels_can_be_mapped_for_all_sites_in_the_schema(tmp_path, capsys):
    synonyms = 'synonyms = { ja = "yes", Y = "yes", "0" = "no" }'
    text = (
        '[[column]]\nname = "smoker"\nkind = "category"\nlevels = ["no", "yes"]\n'
        f"{synonyms}\n"
    )
    schema = read_schema(written(tmp_path / "schema.toml", text))
    path = written(
        tmp_path / "a.csv",
        "smoker,label\nyes,x\nJa,x\nY,x\n0,x\nno,x\nvielleicht,x\n,x\n",
    )
    expected = [[0, 1, 0]] * 3 + [[1, 0, 0]] * 2 + [[0, 0, 0], [0, 0, 1]]
    assert encoded_share(node(path), schema).X.tolist() == expected
    assert schema.encode(pd.read_csv(path)[["smoker"]]).tolist() == expected
    rows_of_a_private_party, fits = encode_rows(schema, pd.read_csv(path)[["smoker"]])
    assert rows_of_a_private_party.tolist() == expected
    assert fits.all()
    numbers = node(written(tmp_path / "b.csv", "smoker,label\n0,x\n0,x\n"))
    assert encoded_share(numbers, schema).X.tolist() == [[1, 0, 0]] * 2
    assert main(["check", str(path), str(tmp_path / "schema.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    of_smoker = next(line for line in lines if "smoker" in line)
    assert "1" in of_smoker.split()
    X = pd.DataFrame({"smoker": ["ja", "0"] * 20})
    y = np.array(["a", "b"] * 20)
    sites = parties([(X, y), (X.replace({"ja": "Y", "0": "no"}), y)])
    run_of(sites, ("a", "b"), feature_names=schema).model.save(tmp_path / "model.npz")
    loaded = FlyNNClassifier.load(tmp_path / "model.npz")
    assert loaded.predict(pd.DataFrame({"smoker": ["JA", "no"]})).tolist() == ["a", "b"]


def test_the_console_takes_gaps_as_python_does(tmp_path, capsys):
    X, y = frame_of(100)
    FlyNNClassifier().fit(X, y).save(tmp_path / "model.npz")
    path = written(
        tmp_path / "new.csv", "after,before\n1.5,\n2,n.d.\n" + "0.5,1.5\n" * 4
    )
    assert main(["predict", str(tmp_path / "model.npz"), str(path)]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 7
    assert "before: 4 numbers, 1 others" in printed.err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FlyNNClassifier.load(tmp_path / "model.npz").predict(X[:1].assign(after=np.nan))


@pytest.mark.filterwarnings(
    "ignore:this hash takes no gaps:UserWarning", "ignore:phase counts:UserWarning"
)
def test_rows_with_gaps_are_left_out_where_the_hash_takes_none():
    """A model by the paper's hash is that of the rows without gaps.

    Alone, and in a federation with a learned schema.
    """
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    X[::7, 1] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    has_gap = np.isnan(X).any(axis=1)
    with pytest.warns(UserWarning, match=f"{has_gap.sum()} of 300"):
        model = FlyNNClassifier.paper().fit(frame, y)
    schema = model.model_.schema
    spec = model.spec_
    expected = ClassCounts.from_data(
        flynn_hash(spec), schema.encode(frame)[~has_gap], y[~has_gap], 2
    )
    assert model.counts_ == expected
    model.forget(frame[:50], y[:50])
    assert model.counts_.n_per_class.sum() == (~has_gap[50:]).sum()
    parts = [(frame[rows], y[rows]) for rows in (slice(0, 120), slice(120, 300))]
    options = {
        "spec": spec,
        "classes": [0, 1],
        "feature_names": schema,
        "min_parties": 1,
    }
    assert run_of(parties(parts), **options).model.counts_ == expected
    run = run_of(
        parties([parts[0], (parts[1][0].assign(b=np.nan), parts[1][1])]), **options
    )
    assert "1 without any" in run.rosters["counts"].missing["1"]


# -------- private parties

STAGED = Schema(
    [
        Column("crp", "number", gaps=False),
        Column("stage", "category", ["1", "2"], gaps=False),
    ]
)


def private_rows_of(path: Path, text: str, settings: dict[str, Any]) -> list[str]:
    """The rows of a file as a private party reads them by a schema, or the refusal.

    A row may be dropped.
    """
    try:
        share = private_share(
            node(written(path, text.encode("latin-1")), **settings), STAGED
        )
    except DataError as error:
        return [f"REFUSED: {error}"]
    rows = []
    for X, y in zip(share.X.tolist(), share.y, strict=True):
        if y is None:
            rows.append("dropped")
        else:
            rows.append(f"{X}: {y}")
    return rows


def test_at_a_private_party_no_rule_looks_at_other_rows(tmp_path):
    """All comes from schema and settings.

    A cell that is no value drops its row, whatever the other rows are, or without them.
    """
    record = Path(__file__).parent / "private_rows.txt"
    path = tmp_path / "own.csv"
    made = ""
    cases = re.findall(
        r"^## (.*?) (\{.*\})\n((?s:.*?))^=>$", record.read_text("utf-8"), re.MULTILINE
    )
    for name, settings, text in cases:
        rows = private_rows_of(path, text, json.loads(settings))
        head, *lines = text.splitlines(keepends=True)
        assert [
            private_rows_of(path, head + line, json.loads(settings))[0]
            for line in lines
        ] == rows
        made += "\n".join([f"## {name} {settings}", f"{text}=>", *rows, "", ""])
    assert_on_record(record, made)


def test_a_private_party_takes_texts_beside_numbers_row_by_row(tmp_path):
    path = written(tmp_path / "own.csv", "crp,label\n1.5,x\n<5,x\nNA,x\n1.5 mg,x\n")
    schema = Schema(
        [Column("crp", "number"), Column("crp text", "category", ["<5"], gaps=False)]
    )
    share = private_share(node(path), schema)
    gap = np.nan
    # The columns are the number, its gap bit, and the level.
    np.testing.assert_array_equal(
        share.X, [[1.5, 0, 0], [gap, 1, 1], [gap, 1, 0], [gap, 1, 0]]
    )
    assert share.y.tolist() == ["x"] * 4


# -------- dates, gaps and marks


def test_no_row_of_a_frame_decides_how_another_is_read():
    """More different numbers in a batch make no numbers of a category.

    The form of a date is found in each text alone.
    """
    wards = ["1", "2", "3", "4A"] * 20
    model = FlyNNClassifier(effort="quick").fit(
        pd.DataFrame({"ward": wards}), [ward == "4A" for ward in wards]
    )
    batch = pd.DataFrame({"ward": ["4A", *map(str, range(1, 13))]})
    assert model.predict(batch)[0] == model.predict(batch[:1])[0] == np.True_
    schema = Schema([Column("day", "date", gaps=False)])
    days = pd.DataFrame(
        {"day": ["2024-01-05", "09/03/2023", "31.12.2023", "12/31/2023"]}
    )
    together = schema.encode(days)[:, 0]
    assert np.isnan(together).tolist() == [False, True, False, True]
    assert [schema.encode(days[i : i + 1])[0, 0] for i in (0, 2)] == together[
        [0, 2]
    ].tolist()


@pytest.mark.parametrize("cell", ["-99,9", " 999", "Unk"])
def test_texts_of_gaps_are_gaps_whatever_they_look_like(cell, tmp_path):
    path = written(
        tmp_path / "a.csv", "dose;label\n" + "1,5;x\n2,25;x\n" * 20 + f"{cell};x\n" * 3
    )
    file = opened(path, Reading(dialect=Dialect(gap_texts=(cell.strip().lower(),))))
    values = next(iter(file.batches())).table.columns[0]
    assert file.reports[0].kind == "number"
    assert np.isnan(values).sum() == 3
    assert np.nanmax(values) == 2.25
    frame = pd.DataFrame({"dose": ["1.5", cell.strip(), cell.strip().upper()]})
    schema = Schema([Column("dose", "number")])
    numbers, fits = encode_rows(schema, frame, CellSettings([cell]))
    assert np.isnan(numbers[:, 0]).tolist() == [False, True, True]
    assert fits.all()
    if cell == "Unk":
        schema = Schema([Column("dose", "number", gap_texts=[cell])])
        np.testing.assert_array_equal(schema.encode(frame), numbers)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "frame"])
def test_one_column_has_one_decimal_mark(ending, tmp_path):
    frame = pd.DataFrame({"dose": ["1,234", "12,34", "0,567", "2,5"] * 9, "label": "x"})
    if ending == "frame":
        table = Table.of(frame[["dose"]].assign(more=range(36)))
    else:
        options = {}
        if ending == "csv":
            options["sep"] = ";"
        path = written(tmp_path / f"a.{ending}", frame, **options)
        table = next(iter(opened(path).batches())).table
    # Few different integers would be codes; these are numbers.
    assert table.kinds[0] == "number"
    assert table.columns[0].tolist() == [1.234, 12.34, 0.567, 2.5] * 9


def test_texts_that_have_no_column_of_their_own_are_refused(tmp_path):
    np.savez(
        tmp_path / "a.npz",
        X=[[f"{i / 4}"] for i in range(40)] + [["<5"]] * 5,
        y=[0] * 45,
    )
    with raises(DataError, field="a.npz", expected="numbers"):
        opened(tmp_path / "a.npz").check()


def test_categories_of_parquet_stay_categories(tmp_path):
    frame = pd.DataFrame(
        {"dose": pd.Categorical([f"{i / 2}" for i in range(40)]), "label": "x"}
    )
    path = written(tmp_path / "a.parquet", frame)
    assert opened(path).reports[0].kind == "category"
    assert Table.of(frame[["dose"]]).kinds[0] == "category"


def test_dates_of_private_arrays_are_dates(tmp_path):
    days = np.array(["2024-01-05", "2024-01-06"], "datetime64[ns]")
    np.savez(tmp_path / "a.npz", X=days[:, None], y=[0, 1], feature_names=["day"])
    share = private_share(
        node(tmp_path / "a.npz"), Schema([Column("day", "date", gaps=False)])
    )
    assert (share.X[:, 0].tolist(), share.y.tolist()) == ([19727.0, 19728.0], [0, 1])


def test_a_site_whose_codes_nobody_knows_is_warned_of(tmp_path, caplog):
    path = written(tmp_path / "a.csv", "sex,age,label\nweiblich,1,x\nmaennlich,2,y\n")
    encoded_share(
        node(path),
        Schema([Column("sex", "category", ["f", "m"]), Column("age", "number")]),
    )
    assert "column 'sex': no value is one of its levels" in caplog.text


def test_a_column_of_an_unread_type_is_in_no_key(tmp_path):
    """A value of a type that is not read, in an empty column, moves no other row."""
    frame = pd.DataFrame({"a": range(40), "label": "x"})
    rule = HeldOut(0.5, b"known")
    path = written(tmp_path / "a.parquet", frame.assign(more=None))
    one = opened(path, Reading(held_out=rule, ignore=("more",)))
    path = written(tmp_path / "b.parquet", frame.assign(more=[[i] for i in range(40)]))
    other = opened(path, Reading(held_out=rule, ignore=("more",)))
    assert one.whole()[3].tolist() == other.whole()[3].tolist()
