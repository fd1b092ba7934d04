"""What a site says of its own file: its settings, `site.toml`, and what they do.

A site that writes names, units, levels and labels in its own way is one that writes
them as the others do, in all verbs and at open and private parties.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.app.cli import main
from flwr_flynn.app.data import csv_file
from flwr_flynn.app.data.own_file import (
    encoded_share,
    opened,
    opened_own,
    own_share,
    private_rows,
)
from flwr_flynn.app.data.source import Dialect, Reading
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.errors import ConfigError, DataError, full_text
from flwr_flynn.tables.column_encoding import Column
from flwr_flynn.tables.row_wise import CellSettings, encode_rows
from flwr_flynn.tables.schema import Schema
from tests.app.data.files import node, written
from tests.app.data.private import joined
from tests.app.test_try_files import QUICK, tried
from tests.raising import raises

pd = pytest.importorskip("pandas")

Rows = list[dict[str, Any]]
OWN_NAMES = {"age": "alter", "crp": "crp wert", "outcome": "diagnose"}
OWN_WORDS = {"f": "weiblich", "m": "männlich", "yes": "ja", "no": "nein"}
SITE = """
label = "outcome"
ignore = ["fallnummer"]
gap-texts = [-99]
rename = { "alter" = "age", "CRP wert" = "crp", "diagnose" = "outcome" }
label-map = { "ja" = "yes", "nein" = "no" }
[convert]
"crp" = { "mg/l" = 0.5, "µg/ml" = 0.5 }
[synonyms.sex]
"männlich" = "m"
"weiblich" = "f"
"""
SCHEMA = Schema(
    [
        Column("age", "number", low=0, high=120),
        Column("crp", "number", low=0, high=500),
        Column("sex", "category", ["f", "m"]),
    ],
    label="outcome",
    classes=["no", "yes"],
)


def patients(n: int = 80, seed: int = 0) -> Rows:
    """Rows as all sites but one write them."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(n):
        ill = int(random.integers(2))
        crp: Any = int(10 + 9 * ill + random.integers(9)) / 4
        if index % 10 == 0:
            crp = ""
        rows.append(
            {
                "age": int(40 + 20 * ill + random.normal() * 8),
                "crp": crp,
                "sex": "fm"[int(random.integers(2))],
                "outcome": ("no", "yes")[ill],
            }
        )
    return rows


def in_own_words(rows: Rows) -> Rows:
    """The same rows as one site writes them."""
    own = []
    for index, row in enumerate(rows):
        crp = "-99.0"
        if row["crp"] != "":
            crp = f"{row['crp'] * 2} {('mg/l', 'ug/mL')[index % 2]}"
        named = {OWN_NAMES.get(key, key): value for key, value in row.items()}
        words = {key: OWN_WORDS.get(value, value) for key, value in named.items()}
        own.append({"fallnummer": 7000 + index, **words, "crp wert": crp})
    return own


def csv_of(rows: Rows, separator: str = ",", above: str = "") -> str:
    stream = io.StringIO()
    out = csv.DictWriter(stream, [*rows[0]], delimiter=separator, lineterminator="\n")
    out.writeheader()
    out.writerows(rows)
    return above + stream.getvalue()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two clean files, and one site in its own words."""
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("basel", "clean")):
        written(Path(f"{name}.csv"), csv_of(patients(seed=index)))
    written(Path("bern.csv"), csv_of(in_own_words(patients(seed=1)), ";"))
    written(Path("bern.toml"), SITE)
    return tmp_path


def site(**settings: Any) -> NodeConfig:
    raw = {key.replace("_", "-"): value for key, value in settings.items()}
    return NodeConfig.parse({"data-path": "bern.csv", "test-fraction": 0.0, **raw})


PRIVATE = {"max-epsilon": 1.0, "state-path": "/nowhere/state"}


def privately(config: NodeConfig, schema: Schema = SCHEMA) -> tuple[Any, Any]:
    """The numbers and labels of the rows of a private party that fit."""
    rows = private_rows(config, lambda: b"secret")
    made = []
    names = []
    for block in rows.blocks(2**14):
        X, y = block.read(slice(0, block.n))
        numbers, fits = encode_rows(schema, X, rows.settings)
        made.append(numbers[fits])
        names.append(y[fits])
    return joined(made, None), joined(names, None)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """What a verb prints."""
    assert main([*arguments]) == status
    printed = capsys.readouterr()
    if status:
        return printed.err
    return printed.out


# -------- the settings do what they say


def test_a_site_in_its_own_words_is_one_in_the_words_of_the_others():
    own = encoded_share(site(site="bern.toml"), SCHEMA)
    others = encoded_share(node(Path("clean.csv"), label="outcome"), SCHEMA)
    np.testing.assert_array_equal(own.X, others.X)
    assert own.y.tolist() == others.y.tolist()
    X, y = privately(site(site="bern.toml", separator=";", **PRIVATE))
    np.testing.assert_array_equal(X, others.X)
    assert y.tolist() == others.y.tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_settings_hold_for_files_of_all_kinds_at_open_and_private_parties(
    ending,
):
    rows = [
        {"a": 3, "weight": 150.0, "sex": 1, "label": "x"},
        {"a": 4, "weight": -99.0, "sex": 2, "label": "y"},
        {"a": 5, "weight": 180.0, "sex": 2, "label": "x"},
    ]
    written(Path(f"own.{ending}"), rows)  # type: ignore[arg-type]
    settings = {
        "data_path": f"own.{ending}",
        "rename": "weight=kilos",
        "convert": "kilos:*0.5",
        "synonyms": "sex:1=m,sex:2=f",
        "gap_texts": "-99",
        "ignore": "a",
    }
    schema = Schema(
        [Column("kilos", "number", gaps=False), Column("sex", "category", ["f", "m"])]
    )
    expected = [[75, 0, 1, 0], [np.nan, 1, 0, 0], [90, 1, 0, 0]]
    open_party = site(**settings)
    np.testing.assert_array_equal(encoded_share(open_party, schema).X, expected)
    # Without a schema, too, the column is one of levels, and one of numbers.
    columns = own_share(open_party).X.columns
    assert columns[1].tolist() == ["m", "f", "f"]
    np.testing.assert_array_equal(columns[0], [75, np.nan, 90])
    X, _ = privately(site(**settings, **PRIVATE), schema)
    np.testing.assert_array_equal(X, expected)


@pytest.mark.parametrize(
    ("cell", "convert", "value"),
    [
        ("1.5 mg/dl", "crp:mg/dl*88.4", 132.6),
        ("1.5", "crp:mg/dl*88.4", None),
        ("1.5", "crp:mg/dl*88.4,crp:*2", 3.0),
        ("106 µmol/L", "crp:mg/dl*88.4,crp:umol/l*1", 106.0),
        ("106 \u03bcmol/l", "crp:umol/l*2", 212.0),
        ("45%", "crp:%*1e-2", 0.45),
        ("98.6 °F", "crp:°f*0.5556-17.78", 37.00216),
        ("48", "crp:*.0915+2.15", 6.542),
        ("48 mmol/mol", '{"crp": {"mmol/mol": "0.0915+2.15"}}', 6.542),
        ("7 mg/l", "crp:mg/dl*88.4", None),
        ("7 mg/l", "", None),
    ],
)
def test_a_number_is_converted_as_its_unit_says(cell, convert, value):
    scales = site(convert=convert).dialect().convert
    settings = CellSettings(convert={key.upper(): own for key, own in scales.items()})
    schema = Schema([Column("crp", "number", gaps=False)])
    numbers, fits = encode_rows(schema, pd.DataFrame({"crp": [cell]}), settings)
    assert fits.tolist() == [value is not None]
    if value is not None:
        assert numbers[0, 0] == pytest.approx(value)
    filler = "".join(f"{index}.5,x\n" for index in range(9))
    written(Path("own.csv"), f"crp,label\n{filler}{cell},x\n")
    dialect = Dialect(convert=scales)
    file = opened(Path("own.csv"), Reading(dialect=dialect))
    read = next(iter(file.batches())).table.columns[0][-1]
    if value is not None:
        assert read == pytest.approx(value)
    elif convert:
        assert np.isnan(read)


@pytest.mark.parametrize(
    ("own", "common", "convert", "value"),
    [
        ("HbA1c (mmol/mol)", "HbA1c (%)", "", None),
        ("HbA1c (mmol/mol)", "HbA1c (%)", "HbA1c (%):mg/dl*2", None),
        ("HbA1c (mmol/mol)", "HbA1c (%)", "HbA1c (%):mmol/mol*0.0915+2.15", 6.542),
        ("HbA1c (mmol/mol)", "HbA1c (%)", "HbA1c (%):mmol/mol*2,HbA1c (%):*3", 144.0),
        ("weight_lb", "weight_kg", "", None),
        ("weight [lb]", "weight_kg", "weight_kg:lb*0.5", 24.0),
        ("weight", "weight_kg", "", None),
        ("weight", "weight_kg", "weight_kg:*1", 48.0),
        ("weight [lb]", "weight", "", None),
        ("weight [lb]", "weight", "weight:lb*0.5", 24.0),
        ("crea_mg_dl", "crea_umol_l", "", None),
        ("crea_mg_dl", "crea_umol_l", "crea_umol_l:mg/dl*88.4", 4243.2),
        ("temp_f", "temp_c", "", None),
        ("weight_pounds", "weight_kilos", "", None),
        ("hb_gdl", "hb_gl", "hb_gl:g/dl*10", 480.0),
        ("hepatitis", "hepatitis_c", "", 48.0),
        ("Gewicht (kg)", "weight_kg", "", 48.0),
        ("score (0-10)", "score (%)", "", None),
        ("score (0-10)", "score (1-5)", "", 48.0),
    ],
)
def test_a_column_of_another_unit_is_renamed_with_a_factor_alone(
    own, common, convert, value
):
    settings = {"rename": f"{own}={common}", "convert": convert}
    settings["data_path"] = "own.csv"
    if value is None:
        with pytest.raises(ConfigError, match="factor") as error:
            site(**settings)
        assert error.value.field == "node-config convert"
        return
    written(Path("own.csv"), f"{own},label\n48,x\n5.5,y\n")
    table = opened_own(site(**settings)).in_one().table
    assert table.names == (common,)
    assert table.columns[0][0] == pytest.approx(value)


def test_the_unit_of_a_schema_is_taken_off_at_a_private_party():
    frame = pd.DataFrame({"crp": ["106 µmol/L", "1.2 mg/dl", "7"]})
    for unit, expected in (("", [7]), ("umol/l", [106, 7])):
        column = Column("crp", "number", gaps=False, unit=unit)
        numbers, fits = encode_rows(Schema([column]), frame)
        assert numbers[fits, 0].tolist() == expected


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "frame"])
def test_a_gap_text_is_compared_as_a_number_and_said_where_it_stands_nowhere(
    ending,
):
    """Case 10."""
    rows = pd.DataFrame({"dose": [1.5, -99.0, 2.5] * 6, "label": ["x", "y"] * 9})
    settings = CellSettings(["-99", "-7"])
    if ending == "frame":
        schema = Schema([Column("dose", "number", gaps=False)])
        numbers, fits = encode_rows(schema, rows[["dose"]], settings)
        assert np.isnan(numbers[:, 0]).sum() == 6
        assert fits.all()
        return
    written(Path(f"own.{ending}"), rows)
    file = opened_own(site(data_path=f"own.{ending}", gap_texts="-99,-7"))
    assert np.isnan(next(iter(file.batches())).table.columns[0]).sum() == 6
    assert "gap-texts that stand nowhere: -7" in file.described()


# -------- what is refused


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rename", "age", "entries such as"),
        ("rename", "a=", "entries such as"),
        ("rename", '{"a": ["b"]}', "entries such as"),
        ("rename", '{"a": {"b": "c"}}', "entries such as"),
        ("rename", "a=b,A =c", "different meanings"),
        ("convert", "crp", "entries such as"),
        ("convert", "crp:mg/dl*x", "a factor"),
        ("convert", "crp:mg/dl*0", "a factor"),
        ("convert", "crp:mm Hg*2", "units without blanks"),
        ("convert", "crp:mg*2,CRP:MG*3", "different meanings"),
        ("synonyms", "männlich=male", "entries such as"),
        ("synonyms", "sex:m=male,sex: m =man", "different meanings"),
        ("label-map", "{", "entries such as"),
        ("label-map", "1=yes,2=...", "filled in"),
        ("rename", "years=...", "filled in"),
        ("synonyms", "sex:A NUMBER=m,sex:ANOTHER=f", "filled in"),
        ("label-map", "ja=yes,1=a,1.0=b", "different meanings"),
        ("keep", "[1]", "a JSON list of strings"),
    ],
)
def test_settings_that_say_nothing_are_refused(key, value, words):
    """In the node config, and in the file, whose name the error has."""
    with raises(ConfigError, field=f"node-config {key}") as caught:
        site(**{key: value})
    assert words in str(caught.value)
    written(Path("own.toml"), f"{key} = {json.dumps(value)}\n")
    with raises(ConfigError, field=f"own.toml {key}"):
        site(site="own.toml")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('max-epsilon = 1.0\ndata-path = "x"\n', "own.toml data-path"),
        ('label = ["a"]\n', "own.toml label"),
        ('separator = "x"\n', "own.toml separator"),
        ('synonyms = { männlich = "m" }\n', "own.toml"),
        ("# " + "x" * 2**20, "own.toml"),
        (b"\xff", "own.toml"),
        (None, "node-config site"),
    ],
)
def test_a_file_that_is_none_is_refused(text, field):
    if text is not None:
        written(Path("own.toml"), text)
    with raises(ConfigError, field=field) as caught:
        site(site="own.toml")
    if "männlich" in str(text):
        assert '"männlich" = "male"' in str(caught.value)  # case 30


@pytest.mark.parametrize(
    ("rename", "wrong"),
    [
        ("gone=age,missing=x", ["gone", "missing"]),
        ("alter=sex", ["sex"]),
        ("alter=Sex,gone=x", ["gone", "Sex"]),
        ("alter=age,sex=Age", ["age", "Age"]),
    ],
)
@pytest.mark.parametrize("private", [{}, PRIVATE])
def test_names_that_are_not_there_or_clash_are_refused_all_at_once(
    rename, wrong, private
):
    config = site(rename=rename, separator=";", label="diagnose", **private)
    with raises(DataError, field="bern.csv", got=f"{len(wrong)} others") as caught:
        if private:
            private_rows(config, bytes)
        else:
            opened_own(config)
    text = full_text(caught.value)
    assert all(repr(name) in text for name in (*wrong, "fallnummer"))
    # A server is told no name.
    assert "alter" not in str(caught.value)


@pytest.mark.parametrize("key", ["convert", "synonyms"])
def test_a_column_of_a_setting_that_is_not_there_is_refused(key):
    value = {"convert": "gone:mg*2", "synonyms": "gone:a=b"}[key]
    with raises(DataError, field="bern.csv") as caught:
        opened_own(site(label="diagnose", **{key: value}))
    assert f"the columns of the setting {key}" in str(caught.value)


def test_a_setting_given_directly_comes_before_the_file_s():
    written(Path("own.toml"), 'label = "outcome"\ndecimal = ","\nkeep = ["a", "b"]\n')
    config = site(site="own.toml", decimal=".")
    assert (config.label, config.decimal) == ("outcome", ".")
    assert config.names("keep") == ("a", "b")
    assert Path("own.toml").name in str(config.site)


# -------- the ledger


def test_a_changed_map_is_a_new_request_and_the_same_one_is_not():
    """However it is written; and nothing else has a part in it."""
    plain = site().digest()
    assert plain == "" == site(keep="a", accept="b", memory_limit=2).digest()
    written(Path("own.toml"), '[synonyms.sex]\n"w" = "f"\n')
    own = site(site="own.toml").digest()
    assert own == site(synonyms="sex:w=f").digest() != plain
    values = {
        "rename": "a=b",
        "convert": "a:mg*2",
        "synonyms": "sex:w=m",
        "gap-texts": "-9",
        "label": "outcome",
        "label-map": "ja=yes",
        "ignore": "a",
        "decimal": ",",
        "separator": ";",
        "encoding": "latin-1",
        "date-format": "dd/mm/yyyy",
        "held-out-key": "a",
    }
    digests = {site(**{key: value}).digest() for key, value in values.items()}
    assert len(digests | {plain, own}) == len(values) + 2


# -------- the verbs


def test_predict_score_schema_and_check_take_a_site_s_own_file(
    capsys,
):
    """Case 18: other names, more columns, another word for the label."""
    tried("basel.csv", "clean.csv", out="made")
    model = "made/model.npz"
    capsys.readouterr()
    own = run(capsys, "predict", model, "bern.csv", "--site", "bern.toml")
    assert own == run(capsys, "predict", model, "clean.csv")
    own = run(capsys, "score", model, "bern.csv", "--site", "bern.toml")
    assert own == run(capsys, "score", model, "clean.csv", "--label", "outcome")
    # New patients have no label yet, and no id.
    rows = [
        {key: row[key] for key in ("alter", "crp wert", "sex")}
        for row in in_own_words(patients(seed=1))
    ]
    written(Path("new.csv"), csv_of(rows))
    new = run(capsys, "predict", model, "new.csv", "--site", "bern.toml")
    assert new == run(capsys, "predict", model, "clean.csv")
    said = run(capsys, "score", model, "bern.csv", "--site", "bern.toml", status=0)
    assert "AUROC" in said
    draft = run(capsys, "schema", "bern.csv", "--site", "bern.toml")
    written(Path("schema.toml"), draft)
    ways: list[list[str]] = [[], ["--private", "--separator", ";"]]
    for more in ways:
        run(capsys, "check", "bern.csv", "schema.toml", "--site", "bern.toml", *more)


def test_labels_in_other_words_are_refused_with_the_model_s_and_the_setting(
    capsys,
):
    tried("basel.csv", "clean.csv", out="made")
    text = csv_of(patients()).replace(",yes", ",ja").replace(",no", ",nein")
    written(Path("own.csv"), text)
    arguments = ("score", "made/model.npz", "own.csv", "--label", "outcome")
    capsys.readouterr()
    refusal = run(capsys, *arguments, status=1)
    assert all(word in refusal for word in ("'no', 'yes'", "label-map", "'ja'"))
    written(Path("own.toml"), 'label-map = { "ja" = "yes", "nein" = "no" }\n')
    run(capsys, *arguments, "--site", "own.toml")


def test_drafts_of_sites_make_the_same_model_again(folder, capsys):
    # The draft has the form of dates that was detected.
    rows = patients(seed=3)
    for index, row in enumerate(rows):
        row["seen"] = f"{index % 28 + 1:02}/0{index % 9 + 1}/2024"
    written(Path("basel.csv"), csv_of(rows, "\t"))
    first = tried(
        *("basel.csv", "bern.csv", "--set", "bern:site=bern.toml"),
        *("--set", "basel:gap-texts=-9", "--write-sites", "sites", "--out", "one"),
        out="one",
    )
    texts = {path.name: path.read_text() for path in (folder / "sites").iterdir()}
    assert texts.keys() == {"basel.toml", "bern.toml"}
    for line in ('separator = "tab"', 'date-format = "dd/mm/yyyy"', 'gap-texts = "-9"'):
        assert line in texts["basel.toml"]
    assert '"männlich" = "m"' in texts["bern.toml"]
    # Each example of a comment is one.
    shown = re.sub(r"^# ([a-z-]+ = )", r"\1", texts["basel.toml"], flags=re.MULTILINE)
    written(Path("examples.toml"), re.sub('^gap-texts = "-9"$', "", shown, flags=re.M))
    assert site(site="examples.toml").names("ignore") == ("crp",)
    again = [
        part for name in texts for part in ("--set", f"{name[:-5]}:site=sites/{name}")
    ]
    command = ["try", "basel.csv", "bern.csv", *again, "--set", "effort=quick"]
    assert main([*command, "--out", "two"]) == 0
    second = json.loads(Path("two", "metrics.json").read_text())
    assert second["sha256"] == first["sha256"]
    capsys.readouterr()
    # What a person has confirmed is not replaced.
    refusal = run(capsys, *command, "--write-sites", "sites", status=1)
    assert "--write-sites" in refusal


def test_every_party_may_have_the_same_site_file():
    for name in ("a", "b"):
        text = csv_of(in_own_words(patients(seed=ord(name))), ";")
        written(Path(f"{name}.csv"), text)
    report = tried("a.csv", "b.csv", "--site", "bern.toml")
    assert report["classes"] == ["no", "yes"]
    names = [column["name"] for column in report["schema"]["columns"]]
    assert names == ["age", "crp", "sex"]


# -------- endings, and lines above the header


@pytest.mark.parametrize("name", ["t.tsv", "t.TXT", "t.csv.gz", "t.tsv.gz", "t.gz"])
@pytest.mark.parametrize("separator", [",", "\t"])
def test_texts_of_other_endings_are_read_as_csv(name, separator):
    """Case 21."""
    content = csv_of(patients(seed=1), separator).encode()
    if name.endswith("gz"):
        content = gzip.compress(content)
    own = {"label": "outcome", "data_path": str(written(Path(name), content))}
    expected = encoded_share(node(Path("clean.csv"), label="outcome"), SCHEMA).X
    np.testing.assert_array_equal(encoded_share(site(**own), SCHEMA).X, expected)
    mark = {",": ",", "\t": "tab"}[separator]
    X, _ = privately(site(separator=mark, **own, **PRIVATE))
    np.testing.assert_array_equal(X, expected)


def test_a_private_party_takes_separator_encoding_and_decimal_mark():
    text = "größe;sex;label\n1,5;männlich;x\n1.234,5;weiblich;y\n2.5;f;x\n"
    written(Path("t.csv"), text.encode("windows-1252"))
    schema = Schema(
        [Column("größe", "number"), Column("sex", "category", ["männlich", "weiblich"])]
    )
    form = {"separator": ";", "encoding": "windows-1252", "decimal": ","}
    X, y = privately(site(data_path="t.csv", **form, **PRIVATE), schema)
    assert X.tolist() == [[1.5, 0, 1, 0, 0], [1234.5, 0, 0, 1, 0], [2.5, 0, 0, 0, 0]]
    assert y.tolist() == ["x", "y", "x"]
    with raises(ConfigError, field="node-config encoding"):
        site(**form | {"encoding": "utf-16"}, **PRIVATE)


@pytest.mark.parametrize("private", [{}, PRIVATE])
def test_a_file_that_unpacks_to_more_than_it_may_is_refused(private, monkeypatch):
    monkeypatch.setattr(csv_file, "_UNPACKED", 10_000)
    bomb = gzip.compress(b"a,label\n" + b"0" * 10**7)
    config = site(data_path=str(written(Path("bomb.gz"), bomb)), **private)
    with raises(DataError, field="bomb.gz") as caught:
        if private:
            private_rows(config, bytes)
        else:
            opened_own(config)
    assert "200 times its size" in str(caught.value)
    broken = gzip.compress(csv_of(patients()).encode())[:-20]
    with raises(DataError, field="cut.csv.gz"):
        opened_own(site(data_path=str(written(Path("cut.csv.gz"), broken))))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.xlsx", "save a sheet as CSV UTF-8"),
        ("a.XLS", "save a sheet as CSV UTF-8"),
        ("a.sav", "pandas.read_spss('a.sav').to_csv('a.csv', index=False)"),
        ("a.dta", "pandas.read_stata('a.dta').to_csv('a.csv', index=False)"),
        ("a.sas7bdat", "pandas.read_sas('a.sas7bdat').to_csv('a.csv', index=False)"),
    ],
)
def test_other_files_are_refused_with_what_makes_csv_of_them(name, words):
    written(Path(name), "x")
    with raises(ConfigError, field="node-config data-path") as caught:
        opened_own(site(data_path=name))
    assert words in str(caught.value)
    remedy = re.search(r"pandas\..*\)", words)
    if name == "a.dta" and remedy is not None:
        frame = pd.DataFrame(patients(seed=1))
        frame["crp"] = pd.to_numeric(frame["crp"])
        frame.to_stata(name)
        exec(f"import pandas; {remedy[0]}")
        assert opened_own(site(data_path="a.csv", label="outcome")).n_rows == 80


def test_columns_of_fixed_width_are_refused_with_what_makes_csv_of_them(
    capsys,
):
    rows = patients(seed=1)
    lines = [[*rows[0]], *([str(cell) for cell in row.values()] for row in rows)]
    text = "".join("".join(f"{cell:<9}" for cell in line) + "\n" for line in lines)
    written(Path("wide.txt"), text)
    command = ["try", "basel.csv", "wide.txt", *QUICK]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert "pandas.read_fwf(FILE)" in printed
    assert "label=" not in printed
    pd.read_fwf("wide.txt").to_csv("wide.csv", index=False)
    tried("basel.csv", "wide.csv")


@pytest.mark.parametrize(
    "above",
    ["sep=;\n", "# export\n", "# export, of 2024\n# ward 3\n\n", "Export of ward 3\n"],
)
@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_lines_above_the_header_are_no_header(above, separator):
    """Case 19. A private party skips those of one field."""
    text = csv_of(patients(seed=1), separator, above.replace(";", separator))
    config = {"data_path": str(written(Path("t.csv"), text)), "label": "outcome"}
    expected = encoded_share(node(Path("clean.csv"), label="outcome"), SCHEMA).X
    np.testing.assert_array_equal(encoded_share(site(**config), SCHEMA).X, expected)
    if "," not in above or separator != ",":
        mark = separator.replace("\t", "tab")
        X, _ = privately(site(separator=mark, **config, **PRIVATE))
        np.testing.assert_array_equal(X, expected)


def test_a_title_of_several_fields_is_refused_as_such():
    text = csv_of(patients(seed=1), ";", "Export; of ward 3\n")
    written(Path("t.csv"), text)
    expected = "a first line with a name for each of 4 fields"
    with raises(DataError, field="t.csv", expected=expected):
        opened_own(site(data_path="t.csv", label="outcome"))


@pytest.mark.parametrize("text", ["a,label\n1.5,x\n2.5,y\n", ",a\n0,1.5\n1,2.5\n"])
def test_a_header_is_no_title(text):
    file = opened(written(Path("t.csv"), text), Reading(label=None))
    assert "a" in file.names
    assert file.n_rows == 2


# -------- what was refused without a remedy


def columns(**own: Callable[[int], object]) -> Rows:
    rows = patients(seed=1)
    for index, row in enumerate(rows):
        row |= {name: make(index) for name, make in own.items()}
    return rows


def test_inf_beside_words_is_a_word_and_what_is_ignored_comes_first():
    """Case 20."""
    rows = columns(
        route=lambda i: ["inf", "inf", "inf", "po"][i % 4],
        dose=lambda i: ["inf", f"{i}.5"][i % 2],
    )
    config = {"data_path": str(written(Path("t.csv"), csv_of(rows)))}
    file = opened_own(site(label="outcome", ignore="dose", **config))
    file.check()
    kinds = dict(zip(file.names, (report.kind for report in file.reports), strict=True))
    assert kinds["route"] == "category"
    table = next(iter(file.batches())).table
    assert {*table.columns[table.names.index("route")]} == {"inf", "po"}


def test_what_a_refusal_of_try_prints_mends_it(
    capsys,
):
    """Each setting is typed as it is printed."""
    pytest.importorskip("pyarrow")
    rows = columns(
        ward=lambda i: f"ward {i % 3}",
        dose=lambda i: [np.inf, i / 2][i % 2],
        times=lambda i: pd.Timestamp(2024, 1, 1, i % 24).time(),
        lists=lambda i: [i, i],
        both=lambda i: {"a": i},
    )
    for row in rows:
        row["crp"] = row["crp"] or np.nan
    written(Path("t.parquet"), rows)  # type: ignore[arg-type]
    written(Path("words.csv"), csv_of(columns(crp=lambda i: f"text {i % 9}")))
    written(Path("third.csv"), csv_of(patients(seed=2)))
    names = ("basel.csv", "clean.csv", "third.csv", "t.parquet", "words.csv")
    command = ["try", *names, *QUICK]
    settings: list[str] = []
    for _ in range(3):
        status = main([*command, *settings])
        printed = capsys.readouterr().out
        mends = re.findall(r"^REFUSED.*; --set (\S+:.*)$", printed, re.MULTILINE)
        settings += [part for mend in mends for part in ("--set", mend)]
    assert status == 0, printed
    assert {mend.partition("=")[0] for mend in settings[1::2]} == {
        "t:ignore",
        "t:gap-texts",
        "words:ignore",
    }


def test_a_draft_fits_the_file_that_it_is_of(
    capsys,
):
    """Case 23: a column of texts beside numbers."""
    rows = columns(crp=lambda i: ["<5", "1.5", "2.5", "3.5"][i % 4])
    written(Path("t.csv"), csv_of(rows))
    draft = run(capsys, "schema", "t.csv", "--label", "outcome")
    assert 'name = "crp text"' in draft
    written(Path("s.toml"), draft)
    printed = run(capsys, "check", "t.csv", "s.toml")
    assert re.search(r"^'crp' +number +\d+ +0 +0", printed, re.MULTILINE)


def test_columns_without_a_range_are_named_and_a_draft_has_lines_to_fill_in(
    capsys,
):
    """Case 24."""
    draft = run(capsys, "schema", "clean.csv", "--label", "outcome")
    written(Path("s.toml"), draft)
    given = ["--set", f"schema={Path('s.toml').absolute()}", "--set", "scaling=none"]
    assert main(["try", "basel.csv", "clean.csv", *QUICK, *given]) == 1
    assert "without them: age, crp" in capsys.readouterr().err
    assert draft.count("# low =\n# high =\n") == 2
    filled = draft.replace("# low =\n# high =\n", "low = 0\nhigh = 200\n")
    written(Path("s.toml"), filled)
    tried("basel.csv", "clean.csv", *given)


def test_rows_without_values_have_no_class_and_scikit_learn_is_silent(
    capsys,
):
    """Case 32, and `?` among the texts of `--by`."""
    tried("basel.csv", "clean.csv", out="made")
    capsys.readouterr()
    written(Path("new.csv"), "age,crp,sex\n,,\n50,2.5,f\nNA,?,-\n")
    assert main(["predict", "made/model.npz", "new.csv"]) == 0
    printed = capsys.readouterr()
    classes = [row["class"] for row in csv.DictReader(io.StringIO(printed.out))]
    assert [bool(label) for label in classes] == [False, True, False]
    rows = [row for row in patients() if row["outcome"] == "yes"]
    written(Path("one.csv"), csv_of(rows))
    assert main(["score", "made/model.npz", "one.csv", "--label", "outcome"]) == 0
    assert "sklearn" not in (printed.err + capsys.readouterr().err)
    assert "arning" not in printed.err
    sites = columns(site=lambda i: ["a", "b", "?", ""][i % 4])
    written(Path("all.csv"), csv_of(sites))
    report = tried("all.csv", "--by", "site")
    assert [party["name"] for party in report["parties"]] == ["a", "b"]


def test_settings_of_names_hold_for_a_file_that_is_split():
    rows = in_own_words(patients(160, seed=1))
    for index, row in enumerate(rows):
        row["haus"] = "AB"[index % 2]
    written(Path("all.csv"), csv_of(rows, ";"))
    text = SITE.replace('"alter" =', '"haus" = "house", "alter" =')
    written(Path("all.toml"), text)
    report = tried("all.csv", "--by", "house", "--site", "all.toml")
    assert [party["name"] for party in report["parties"]] == ["A", "B"]


@pytest.mark.parametrize("path", ["no.toml", " no.toml ", 0, 1.5])
def test_a_site_that_is_not_there_is_refused_whatever_its_type(path):
    with raises(ConfigError, field="node-config site", got="no such file"):
        NodeConfig.parse({"data-path": "a.csv", "site": path})
