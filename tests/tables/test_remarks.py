"""What looks wrong in columns: ids, names, codes of missing values, units and words.

Beside each example stands an ordinary column of the same make.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import SchemaError
from flwr_flynn.tables.code_values import missing_codes
from flwr_flynn.tables.personal_columns import are_ids, are_names, are_text_ids
from flwr_flynn.tables.remarks import (
    Remark,
    compared,
    lines_of,
    nearest,
    of_parties,
    of_table,
    paired,
    raise_stops,
)
from flwr_flynn.tables.table import Table, form_of
from flwr_flynn.tables.table_summary import TableCounter, TableSummary
from flwr_flynn.tables.texts import unit_in

RANDOM = np.random.default_rng(5)


def rounded(digits: int, low: int, high: int) -> list[float]:
    return [float(f"{value:.{digits}E}") for value in RANDOM.integers(low, high, 400)]


CLUMPS = np.concatenate([1000 + np.arange(80), 5200 + np.arange(60)])
SPARSE = np.cumsum(RANDOM.integers(1, 9, 300)) + 100_000
VISITS = np.repeat(SPARSE, RANDOM.geometric(0.7, 300).clip(max=6))
IDS: dict[str, Any] = {
    "clumps": CLUMPS,
    "visits of patients": VISITS,
    "a few rows each, in no order": np.repeat(RANDOM.choice(10**5, 60, False), 6),
    "telephones": np.repeat(447900 * 10**6 + RANDOM.integers(0, 10**6, 200), 2),
    "birthday and number": RANDOM.integers(30, 99, 200) * 10**8 + 1234567,
    "as a spreadsheet shows long ones": rounded(5, 10**11, 10**12),
}
MEASURED: dict[str, Any] = {
    "age": RANDOM.integers(18, 95, 600),
    "cholesterol": RANDOM.normal(240, 50, 600).round(),
    "weight": RANDOM.normal(3300, 500, 600).round(),
    "creatinine": np.exp(RANDOM.normal(4.5, 0.5, 600)).round(),
    "rounded to ten": RANDOM.normal(1300, 300, 600).round(-1),
    "mostly rounded": np.where(RANDOM.random(600) < 0.6, 5, 1)
    * RANDOM.poisson(60, 600),
    "another unit": (RANDOM.poisson(90, 600) * 17.6).round(),
    "gains, mostly none": np.where(
        RANDOM.random(600) < 0.9, 0, RANDOM.choice([7298, 15024, 5178, 3103], 600)
    ),
    "day": RANDOM.integers(20_240_101, 20_240_131, 600),
    "negative": RANDOM.integers(-500, 500, 600),
    "not whole": RANDOM.random(600) * 10**9,
}


@pytest.mark.parametrize("name", IDS)
def test_numbers_that_name_rows_or_persons_are_ids(name):
    values = np.asarray(IDS[name], float)
    assert are_ids(RANDOM.permutation(values))


@pytest.mark.parametrize("name", MEASURED)
def test_measurements_are_no_ids(name):
    values = np.asarray(MEASURED[name], float)
    labels = (values > np.median(values)).astype(int)
    assert not are_ids(values)
    assert not are_ids(values, [labels])  # which follow from them


def test_ids_of_patients_are_told_by_their_labels():
    ids = np.repeat(np.arange(1.0, 61), 6)
    ill = RANDOM.integers(0, 2, 60)
    labels = np.repeat(ill, 6)
    assert are_ids(ids, [labels])
    assert not are_ids(ids, [RANDOM.permutation(labels)])
    assert not are_ids(ids, [np.sort(labels)])


@pytest.mark.parametrize("name", ["fall", "no", "case", "sample_no", "hospital nr"])
def test_skewed_counts_are_no_ids_by_their_name(name):
    for seed in range(20):
        random = np.random.default_rng(seed)
        counts = np.exp(random.normal(3.2, 0.9, 400)).round()
        assert not are_ids(counts, [random.integers(0, 2, 400)], name)
        assert not are_ids(random.integers(1, 60, 400) * 1.0, [], name)


def kinds(y=None, **columns):
    """The kind of each column of a table."""
    arrays = [np.asarray(column) for column in columns.values()]
    summary = TableSummary.of(Table([*columns], arrays), y=y)
    return {name: column.kind for name, column in summary.columns.items()}


PATIENTS = RANDOM.permutation(np.repeat(np.arange(201.0, 301.0), 4))
DECADES = np.array([f"from {age // 10:.0f}0" for age in PATIENTS], object)
SEX = np.where(RANDOM.random(100) < 0.5, "f", "m").astype(object)
OF_PATIENTS = SEX[PATIENTS.astype(int) - 201]
COUNTED = ("Fall", "no", "Nr", "case", "Nummer", "sample_no", "visit number", "stay nr")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        # Consecutive numbers are those of patients where the texts beside follow.
        ({"x17": PATIENTS, "sex": OF_PATIENTS}, "id"),
        ({"x17": PATIENTS, "sex": RANDOM.permutation(SEX.repeat(4))}, "number"),
        # They follow from a measurement as well, but at its neighbours, too.
        ({"age": PATIENTS, "group": DECADES}, "number"),
        *(
            ({name: PATIENTS}, "id")
            for name in ("Patient", "PatientID", "patient no", "subject_id", "MRN")
        ),
        *(({name: PATIENTS}, "id") for name in ("Fallnummer", "PLZ", "postal code")),
        *(({name: PATIENTS}, "number") for name in ("paid", "stay", "code", "height")),
        ({"patient_id": PATIENTS % 20}, "number"),
        # Counts have these names, too.
        *(({name: PATIENTS}, "number") for name in COUNTED),
        *(({name: PATIENTS + 9800}, "id") for name in COUNTED),
        *(({name: PATIENTS, "sex": OF_PATIENTS}, "id") for name in COUNTED),
    ],
)
def test_numbers_of_patients_are_told_by_their_name_or_what_follows(columns, expected):
    assert next(iter(kinds(**columns).values())) == expected


ILL = np.arange(400) % 4 == 0
ORDERED = RANDOM.random(400)
FILLED = np.where(ILL, 5.0, np.nan)


@pytest.mark.parametrize(
    ("values", "is_told"),
    [
        (FILLED, True),
        (np.where(np.arange(400) % 8 == 0, 5.0, np.nan), True),  # in half of them
        (np.where(ILL & (np.arange(400) % 5 > 0), np.nan, 5.0), False),
        (np.where(ILL, "died at home", None), True),
        (np.where(RANDOM.permutation(ILL), 5.0, np.nan), False),
        (np.where(np.arange(400) % 80 == 0, 5.0, np.nan), False),  # of few rows
        (np.where(np.arange(400) % 4 == 1, 5.0, np.nan), True),
        (np.where(np.where(ILL, 0.95, 0.02) > ORDERED, 5.0, np.nan), True),
        (np.where(np.where(ILL, 0.95, 0.15) > ORDERED, 5.0, np.nan), False),
        (np.where(ILL, 6.0, 5.0), False),  # a predictor
    ],
)
def test_a_column_that_is_filled_by_the_outcome_is_no_feature(values, is_told):
    y = np.where(ILL, "yes", "no").astype(object)
    usual = kinds(own=values)["own"]
    assert kinds(y, own=values)["own"] == ("outcome" if is_told else usual)
    beside = {"own": values, "own text": np.full(400, "<5", object)}
    assert kinds(y, **beside)["own"] == usual
    counter = TableCounter(1, ["own"])
    counter.add(Table(["own"], [values]), y=y)
    assert counter.summary().columns["own"].kind == usual


def first(n):
    """Values at the first rows alone."""
    return np.where(np.arange(400) < n, 5.0, np.nan)


@pytest.mark.parametrize(
    ("values", "least", "rows_of_an_id", "kind"),
    [
        (first(6), 1, 1, "outcome"),
        (first(6), 20, 1, "number"),
        (first(19), 20, 1, "number"),
        (first(20), 20, 1, "outcome"),
        (first(32), 20, 1, "outcome"),
        (first(32), 20, 4, "number"),  # of eight persons
        (first(32), 8, 4, "outcome"),
        (np.where(np.arange(400) < 32, np.nan, 5.0), 20, 1, "outcome"),
        (np.where(np.arange(400) < 32, np.nan, 5.0), 33, 1, "number"),
    ],
)
def test_what_a_label_decides_is_told_of_as_many_rows_as_the_floor(
    values, least, rows_of_an_id, kind
):
    y = np.where(np.arange(400) < 32, "yes", "no").astype(object)
    ids = [str(index // rows_of_an_id).encode() for index in range(400)]
    table = Table(["own"], [values])
    counter = TableCounter(least)
    counter.add(table, ids, y)
    told = counter.summary().columns["own"]
    assert told.rows == {kind: 400}
    # Its site is asked about it.
    assert counter.everything.columns["own"].is_telling == (kind == "number")
    if rows_of_an_id == 1:
        assert TableSummary.of(table, least, None, y).columns["own"] == told


def remarks_on(y, values):
    counter = TableCounter(1)
    counter.add(Table(["own"], [values]), y=y)
    local = [remark.what for remark in of_table(counter.everything)]
    return local, of_table(TableSummary.from_dict(counter.summary().to_dict()))


@pytest.mark.parametrize(
    ("values", "is_said"),
    [
        (ILL.astype(float), True),
        (np.where(ILL, "morgue", "home").astype(object), True),
        (np.where(ILL, 1 + np.arange(400) % 9, 0.0), True),
        (np.where(ILL, 2.0, 1.0) + RANDOM.random(400), True),
        (np.where(ILL, 2.0, 1.5) + RANDOM.random(400), False),
        (np.where(ILL & (np.arange(400) % 40 > 0), 1.0, 0.0), True),
        (RANDOM.permutation(np.where(ILL, "a", "b")).astype(object), False),
    ],
)
def test_a_column_that_tells_the_classes_apart_is_said_at_its_site_alone(
    values, is_said
):
    y = np.where(ILL, "yes", "no").astype(object)
    local, told = remarks_on(y, values)
    assert len(local) == is_said
    assert told == []
    # Of no class alone, or of few rows, it is nothing odd.
    assert remarks_on(np.where(np.arange(400) < 30, "x", y), values)[0] == []
    assert remarks_on(y[:16], values[:16])[0] == []


RARE = np.arange(200) % 12 == 0
THIRD = np.arange(200) % 3
NOISE = RANDOM.random(200)
WARDS = np.array(["a", "b", "c", "d"], object)


@pytest.mark.parametrize(
    ("codes", "values", "is_said"),
    [
        (RARE, RARE + 1.0, True),
        (RARE, RARE + NOISE, True),
        (RARE, np.where(RARE, WARDS[THIRD], "d"), True),
        (RARE, np.where(RARE & (np.arange(200) > 12), 1.0, 0.0), False),
        (RARE, 0.9 * RARE + NOISE, False),
        (np.arange(200) % 40 == 0, np.where(np.arange(200) % 40 == 0, 1.0, 2.0), True),
        (np.arange(200) % 50 == 0, np.where(np.arange(200) % 50 == 0, 1.0, 2.0), False),
        (np.arange(200) % 40 == 0, (np.arange(200) % 40 == 0) + NOISE, False),
        # Of three classes one is told by a code alone: some measurements do.
        (THIRD, THIRD * 1.0, True),
        (THIRD, np.where(THIRD == 1, "b", WARDS[RARE * 2]), True),
        (THIRD, (THIRD == 1) + NOISE, False),
        (THIRD, RANDOM.permutation(WARDS[THIRD]), False),
        (THIRD, np.where(NOISE < 0.9, THIRD, 5.0), False),
    ],
)
def test_of_few_rows_or_many_classes_a_value_without_an_exception_is_said(
    codes, values, is_said
):
    local, told = remarks_on(codes.astype(str).astype(object), values)
    assert (len(local), told) == (is_said, [])


@pytest.mark.parametrize(
    ("ill", "others", "n_remarks"), [(0.8, 0.3, 0), (0.95, 0.15, 1)]
)
def test_a_test_that_is_ordered_much_more_often_is_asked_about(ill, others, n_remarks):
    y = np.where(ILL, "yes", "no").astype(object)
    values = np.where(np.where(ILL, ill, others) > ORDERED, 5.0, np.nan)
    local, told = remarks_on(y, values)
    assert (len(local), told) == (n_remarks, [])


def test_of_several_rows_of_an_id_one_alone_tells_whether_a_number_names_persons():
    weights = RANDOM.normal(3300, 500, 120).round().repeat(3)
    sex = SEX[np.arange(120) % 100].repeat(3)
    table = Table(["weight", "sex"], [weights, sex])
    ids = [str(index // 3).encode() for index in range(360)]
    for given, kind in ((None, "id"), (ids, "number")):
        counter = TableCounter(1)
        counter.add(table, given)
        assert counter.summary().columns["weight"].kind == kind


def test_texts_that_repeat_as_ids_do():
    ids = {f"P-{number}": 2 for number in range(7_000_000, 7_000_100)}
    codes = {f"I{number}.1": 2 for number in range(10, 99)}
    assert are_text_ids(ids, 200)
    assert not are_text_ids(codes, 178)
    assert not are_text_ids({**ids, "P-1": 300}, 500)


NAMES = [
    "Dr. Meier|Dr. Okafor|Dr. Rossi",
    "Prof. Dr. med. Huber|PD Dr. Wyss|Dr. Graf",
    "Mr Tanaka|Ms Doe|Mrs Jones",
    "Anna Meier|Beat Huber|Carla Rossi",
    "Meier, Anna|Huber, Beat|Wyss, Eva",
    "A. Meier|B. Huber|K. Okonkwo",
    "Dr. Meier|Dr. Graf",
    "a.meier@usz.ch|b.huber@usz.ch|c.rossi@kssg.ch",
    "anna.meier|beat_huber|carla.rossi",
    "John Smith, MD|Mary Jones, MD|Ann Lee, MD",
    "Nurse Kelly|Nurse Brown|Schwester Okafor|Pfleger Smith",
    "Wei Zhang|Li Wang|Jing Chen|Min Liu",
    "Fatima Al-Sayed|Mohammed Khan|Omar Hassan",
    "Jan van der Berg|Piet de Vries|Anna Jansen",
    "M. Dupont|Mme Martin|Mlle Bernard|Dr Girard",
    "MEIER ANNA|HUBER BEAT|ROSSI CARLA",
    "anna meier|beat huber|carla rossi",
    "Meier|Huber|Schmid|Quispe|Keller|Weber|Okafor",
    "|".join(f"{chr(65 + i % 26)}ebu{chr(97 + i // 26)}or" for i in range(60)),
]
WORDS = [
    "yes|no|unknown",
    "M|F|X",
    "Mr|Mrs|Miss",
    "White|Black|Green|Brown|Gray",
    "Winter|Spring|Summer|Autumn",
    "Medicine|Surgery|Cardiology|Geriatrics",
    "Internal Medicine|General Surgery|Emergency Medicine|Urology",
    "Heart Failure|Atrial Fibrillation|Septic Shock|Hip Fracture",
    "Down Syndrome|Turner Syndrome|Marfan Syndrome",
    "Never-married|Married-civ-spouse|Widowed|Divorced",
    "Golden Retriever|Jack Russell",
    "St. Gallen|La Chaux|Le Locle|San Diego|Los Angeles|San Jose|Santa Cruz",
    "Kantonsspital Aarau|Inselspital Bern|Kantonsspital Chur|Spital Davos",
    "Blue Cross|Self Pay|Medicare Part B|Aetna|Cigna",
    "EMERGENCY ROOM ADMIT|PHYS REFERRAL|CLINIC REFERRAL|TRANSFER FROM HOSP",
    "Parkinson|Alzheimer|Huntington|Hodgkin|Crohn|Graves|Addison|Cushing",
    "Dr. Office|Hospital|Dr. Home",
    "Paris|London|Berlin|Madrid|Rome|Vienna|Zürich|Bern|Oslo",
    "Iris-setosa|Iris-versicolor|Iris-virginica",
    "Metformin|Aspirin|Ibuprofen|Paracetamol|Lisinopril",
    "Dr. Meier, day 1|Dr. Meier, day 2|Dr. Graf, day 3",
]


@pytest.mark.parametrize("texts", NAMES)
def test_names_of_persons(texts):
    assert are_names(dict.fromkeys(texts.split("|"), 6))


@pytest.mark.parametrize("texts", WORDS)
def test_other_words_are_no_names_of_persons(texts):
    assert not are_names(dict.fromkeys(texts.split("|"), 6))


BMI = RANDOM.normal(26, 5, 300).round(1)
DAYS = np.datetime64("2024-01-01", "us") + RANDOM.integers(0, 500, 300) * 86_400_000_000


def as_read(values: Any) -> Any:
    """A copy of values, numbers as a table has them."""
    if values.dtype.kind == "M":
        return values.copy()
    return values.astype(float)


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        (BMI, {-9: 30}),
        (BMI, {-9: 30, -8: 20}),
        (BMI, {99: 12}),
        (BMI, {999: 5, 998: 4}),
        (RANDOM.poisson(5, 300), {-1: 10}),
        (RANDOM.integers(1, 4, 300), {9: 20}),
        (BMI, {123456: 30}),
        (BMI, {-200: 30}),
        (DAYS, {"9999-12-31": 10}),
        (RANDOM.normal(240, 50, 300).round(), {0: 20}),
        (RANDOM.normal(37, 0.8, 300).round(1), {0: 3}),
        (RANDOM.normal(75, 15, 300).round(), {0: 120}),
        (RANDOM.integers(0, 5, 300), {9: 20, 8: 15}),
        (RANDOM.integers(1, 4, 300), {9: 20, 8: 15, 7: 10}),
        (RANDOM.integers(1, 3, 300), {9: 20, 7: 15}),
    ],
)
def test_values_far_outside_that_stand_often_are_codes(values, codes):
    coded = as_read(values)
    first = 0
    for code, n in codes.items():
        coded[first : first + n] = code
        first += n
    assert missing_codes(coded) == {str(code): n for code, n in codes.items()}
    alone = as_read(values)
    alone[0] = coded[0]
    assert missing_codes(alone) == {}


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.integers(-1, 2, 300),
        RANDOM.normal(0, 5, 300).round(),
        RANDOM.integers(18, 100, 3000),
        RANDOM.poisson(2, 300),
        np.where(RANDOM.random(300) < 0.5, 0, RANDOM.normal(1000, 10, 300)),
        np.exp(RANDOM.normal(2, 2, 300)),
        RANDOM.integers(0, 2, 300) * 100,
        RANDOM.integers(0, 10, 300),
        RANDOM.choice([0, 1, 2, 3, 4, 5, 8, 9], 300),
        DAYS,
        np.where(RANDOM.random(300) < 0.1, 0, RANDOM.integers(1, 60, 300)),
        np.where(RANDOM.random(300) < 0.1, 0, RANDOM.choice([5, 8, 10, 12], 300)),
    ],
)
def test_ordinary_values_are_no_codes(values):
    assert missing_codes(as_read(values)) == {}


def test_a_text_of_many_rows_among_dates_is_a_code():
    days = [str(day)[:10] for day in DAYS]
    coded = np.array([*days[:240], *["9999-99-99"] * 60], object)
    (remark,) = [
        remark
        for remark in of_parties({"a": TableSummary.of(Table(["seen"], [coded]))})
        if "far outside" in remark.what
    ]
    assert remark.mends() == [
        "a:synonyms=seen:9999-99-99=NA",
        "a:gap-texts=9999-99-99",
        "a:accept=seen",
    ]
    plain = TableSummary.of(Table(["seen"], [np.array(days, object)]))
    assert plain.columns["seen"].codes == {}


# -------- units in names

UNITS = {
    "g/dl": "Hb g/dl|Hb, g/dl|Hb in g/dl|Hb..g.dl.|hb_g_per_dl|Hb_gdl|Hb [g/dL]|hb-g-dl",
    "g/l": "leuko G/l|Hb(g/l)",
    "mg/l": "crp-mg-l|crp.mg.l|crp mg_l|CRP (mg/l)",
    "umol/l": "crea_\u00b5mol_l|Crea (\u03bcmol/l)",
    "kg/m2": "bmi_kg_m2|BMI (kg/m2)",
    "ml/min/1.73m2": "egfr ml/min/1.73m2|egfr (ml/min/1.73m2)",
    "10^9/l": "leuko 10^9/l",
    "kg": "weight_kg|Gewicht (kg)|weight kg|Weight..kg.|Gewicht in kg",
    "g": "weight in g|weight (g)",
    "%": "hba1c %|hba1c_percent|hba1c [%]",
    "\u00b0c": "temp_c|Temp...C.|temp (C)|temp (\u00b0C)|temp \u00b0C|temp (Celsius)",
    "\u00b0f": "temp_f|body temp F|temperature (Fahrenheit)",
    "in": "height (in)",
    "": "born_in|walk_in|checked in|days_in|attempt_c|family_st|chest pa|state_mo|il_k|"
    "vitamin_c|sex (m/f)|Geschlecht (m/w)|smoker (y/n)|score (0-10)|kg|%|sodium_na",
}


@pytest.mark.parametrize(
    ("name", "unit"),
    [(name, unit) for unit, names in UNITS.items() for name in names.split("|")],
)
def test_the_unit_in_a_name_is_known_however_it_is_written(name, unit):
    assert unit_in(name) == unit


def test_celsius_is_one_unit_in_names():
    names = ("temp (C)", "Temp (\u00b0C)", "temp (Celsius)")
    assert len({form_of(name) for name in names}) == 1


# -------- between parties


def told(least: int = 1, keep: tuple[str, ...] = (), **columns: Any) -> TableSummary:
    """The summary of a party with these columns, a number with its unit as a pair."""
    units = {}
    values = []
    for name, cells in columns.items():
        if isinstance(cells, tuple):
            cells, units[name] = cells
        read = np.asarray(cells)
        if read.dtype.kind == "U":
            read = np.asarray(cells, object)
        values.append(read)
    counter = TableCounter(least, keep)
    counter.add(Table([*columns], values, units=units))
    return counter.summary()


CRP = np.exp(RANDOM.normal(2, 1, 40)).round(1)


def settings(tables: dict[str, TableSummary]) -> list[list[str]]:
    return [remark.mends() for remark in compared(tables)]


def test_units_that_differ_stop_unless_they_are_accepted():
    mg = told(crp=(CRP, {"mg/l": 40}))
    none = told(crp=CRP)
    accepted = told(crp=(CRP, {}))
    assert settings({"a": mg, "b": mg}) == settings({"a": mg, "b": accepted}) == []
    (remark,) = compared({"a": mg, "b": mg, "c": none})
    assert remark.stops
    assert (remark.column, remark.parties) == ("crp", ["c"])
    assert remark.mends() == ["c:convert=crp:*...", "c:accept=crp"]
    with pytest.raises(SchemaError) as caught:
        raise_stops([remark])
    assert caught.value.field == "columns"
    assert "c:accept=crp" in str(caught.value)


def test_two_units_of_one_column_are_named():
    texts = np.array([f"{value} mg" for value in CRP], object)
    summary = told(crp=(texts, {"mg": 20, "g": 20}))
    (remark,) = of_parties({"a": summary})
    assert "mg in 20 rows" in remark.what
    assert "g in 20 rows" in remark.what


def test_words_of_one_party_are_named_once_with_what_they_may_mean():
    english = told(sex=["male", "female"] * 20, ill=["yes", "no"] * 20)
    german = told(sex=["männlich", "weiblich"] * 20, ill=["ja", "nein"] * 20)
    coded = told(sex=["male", "female"] * 20, ill=[1.0, 0.0] * 20)
    tables = {"a": english, "b": english, "c": german, "d": coded}
    assert settings(tables) == [
        ["c:synonyms=sex:männlich=male,sex:weiblich=female"],
        ["d:synonyms=ill:A NUMBER=no,ill:ANOTHER=yes"],
        ["c:synonyms=ill:ja=yes,ill:nein=no"],
    ]
    assert settings({"a": english, "b": english}) == []
    ones = told(sex=[1.0, 2.0] * 20)
    assert settings({"a": english, "b": english, "c": ones}) == [
        ["c:synonyms=sex:A NUMBER=female,sex:ANOTHER=male"],
    ]
    numbers = told(ill=[1.0, 0.0] * 20)
    assert settings({"a": numbers, "b": numbers, "c": german}) == [
        ["c:synonyms=ill:ja=...,ill:nein=..."],
    ]


def test_a_level_of_many_parties_is_one_remark():
    tables = {
        f"p{index}": told(ward=["a", "b", "c"] * 10 + [f"own {index}"])
        for index in range(50)
    }
    (remark,) = compared(tables)
    assert (remark.column, len(remark.parties)) == ("ward", 50)
    assert len(remark.text()) < 500


def test_a_name_that_a_terminal_obeys_is_in_no_remark():
    name = "a\x1b[2J"
    tables = {
        party: told(**{name: (CRP, {unit: 40}), "id": CLUMPS[:40] * 1.0})
        for party, unit in (("a", "mg/l"), ("b", "mg/dl"))
    }
    assert {remark.column for remark in of_parties(tables)} == {"id"}


def test_names_of_columns_that_are_near():
    for missing in (["creatinine", "age"], ["creatinine", "age", "dbp"]):
        near = nearest(missing, ["creatinina", "bmi", "sbp"])
        assert near == {"creatinine": "creatinina"}


@pytest.mark.parametrize(
    ("own", "common", "pairs"),
    [
        (["männlich", "frau"], ["male", "female"], ["male", "female"]),
        (["smokr"], ["smoker", "none"], ["smoker"]),
        (["abnormal"], ["normal"], ["..."]),
        (["no fall"], ["fall"], ["..."]),
        (["infected"], ["uninfected"], ["..."]),
        (["inpatient"], ["outpatient"], ["..."]),
    ],
)
def test_a_level_is_paired_with_what_it_means_and_never_with_its_opposite(
    own, common, pairs
):
    assert paired(own, common) == [*zip(own, pairs, strict=True)]


# -------- what leaves a site


def test_nothing_of_few_rows_and_no_name_of_a_person_leaves_a_site():
    values = np.concatenate([np.full(4, -9.0), np.full(7, -8), BMI[:40]])
    names = np.array(["Dr. Meier", "Dr. Graf", "Dr. Wyss"] * 17, object)
    counter = TableCounter(5)
    table = Table(["bmi", "doctor"], [values, names])
    counter.add(table, [bytes([index]) for index in range(51)])
    summary = counter.summary()
    assert counter.everything.columns["bmi"].codes == {"-9": 4, "-8": 7}
    assert summary.columns["bmi"].codes == {"-8": 5}
    assert summary.columns["doctor"].levels == {}
    assert TableSummary.from_dict(summary.to_dict()) == summary
    kept = TableSummary.of(table, 5, keep=["Doctor"])
    assert [*kept.columns["doctor"].levels] == ["Dr. Graf", "Dr. Meier", "Dr. Wyss"]
    # One person's code stays at home, in how many rows it may be.
    counter = TableCounter(5)
    counter.add(table, [b"same"] * 51)
    assert counter.summary().columns["bmi"].codes == {}


def test_the_table_of_a_wide_file_has_the_columns_with_remarks():
    wide = told(**{f"c{index}": CRP for index in range(200)}, id=CLUMPS[:40] * 1.0)
    lines = lines_of(wide)
    assert [line[0] for line in lines] == ["column", "id", "200 more columns"]
    assert len(lines_of(told(a=CRP, b=CRP))) == 3


def test_settings_of_a_remark_are_typed_for_each_party():
    remark = Remark("a b", "is odd", (":ignore=a b",), ("x", "y"), n_rows=7)
    assert remark.text() == (
        "column 'a b': is odd, in 7 training rows (x, y); --set 'PARTY:ignore=a b'"
    )
    assert Remark("a", "is odd", (":ignore=a",), ("x",)).mends() == ["x:ignore=a"]
