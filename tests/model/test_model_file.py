"""Model files come back as they were, and altered ones are refused."""

from __future__ import annotations

import json
import time
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.model import model_file
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.gram import GramMatrix
from flwr_flynn.model.model import MOST_MEMBERS, Model
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.memory import traced
from tests.model.forgery import put, rewrite, set_to, wrong_arrays
from tests.model.samples import CODES, LABELS, SPEC, X, Y
from tests.raising import raises
from tests.snapshots import assert_refused_as_on_record

CODED = HashSpec(
    5,
    40,
    3,
    4,
    seed=9,
    signed=True,
    coding="steps",
    n_codes=4,
    edges=((-1.0, 0.5),) * 5,
)
EDGES = np.linspace(-3.0, 3.0, 32)
BASIS = Basis(5, range(5), [0.0] * 5, [1.0] * 5, [EDGES] * 5, [False] * 5)
SCORING = GramMatrix.from_data(BASIS, X, CODES, 3).scoring
assert SCORING is not None


def two_members(*weights):
    first = FlyNNClassifier(SPEC).fit(X, Y).model_
    second = FlyNNClassifier(HashSpec(5, 40, 2, 4, seed=9), decay=0.3).fit(X, Y).model_
    weight, other_weight = weights or (0.75, 0.25)
    members = (
        replace(first.member, weight=weight),
        replace(second.member, weight=other_weight),
    )
    return Model(members, first.classes, list("abcde"), "nothing")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.npz"
    FlyNNClassifier(HashSpec(3, 20, 2, 3, seed=1, scale=(1.0, 2.0, 0.1))).fit(
        X[:, :3], Y
    ).save(path)
    return path


def noisy():
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 2.0)
    release = SimulatedRelease(mechanism, seed=1).release(
        FlyNNClassifier(SPEC).fit(X, Y).counts_
    )
    return FlyNNClassifier.from_counts(
        SPEC, release, LABELS, guarantee=mechanism.guarantee()
    ).model_


def noisy_up_to(largest):
    """Noisy counts of a type that just holds them."""
    model = noisy()
    array = np.clip(model.member.counts.array, -100, 100)
    array[0, 0] = largest
    return replace(
        model,
        members=(
            replace(model.member, counts=replace(model.member.counts, array=array)),
        ),
    )


def linear_of(model, scoring=SCORING):
    """The model with a linear part."""
    calibration = Calibration(1.0, (0.0, 0.0, 0.0), 0.5)
    return replace(model, calibration=calibration, linear=scoring)


def linear_up_to(extreme):
    """A linear part with the largest weight and biases that their types hold."""
    weights = np.zeros((10, 3), np.int32)
    bias = np.array([2**44, -(2**44), 0])
    weights[3, 1] = extreme
    return linear_of(two_members(), replace(SCORING, weights=weights, bias=bias))


def coded():
    return FlyNNClassifier(CODED).fit(X, Y).model_


def linear():
    return linear_of(two_members())


def saved(made):
    """A fixture: the file of a model."""

    def path(tmp_path):
        model_file.write(tmp_path / f"{made.__name__}.npz", made())
        return tmp_path / f"{made.__name__}.npz"

    return pytest.fixture(path, name=f"{made.__name__}_path")


noisy_path, coded_path, linear_path = map(saved, (noisy, coded, linear))


# ---- files come back


WIDTHS = {
    0: 1,
    127: 1,
    128: 2,
    -128: 2,
    -129: 2,
    2**15: 4,
    -(2**15): 4,
    2**24: 4,
    -(2**24): 4,
}
MODELS = {
    **{
        f"{rule}, {n}": lambda rule=rule, n=n: (
            FlyNNClassifier(rule=rule, seed=5, max_members=n).fit(X, Y).model_
        )
        for rule in RULES
        for n in (1, 3)
    },
    "noisy": noisy,
    **{f"counts up to {n}": partial(noisy_up_to, n) for n in (127, 128, 32767, 32768)},
    "coded, without a prior": lambda: replace(coded(), prior=None),
    "coded and linear": lambda: replace(linear_of(coded()), prior=None),
    "linear, with another prior": lambda: replace(
        linear(), prior=np.log([0.5, 0.25, 0.25])
    ),
    **{f"weights up to {n}": partial(linear_up_to, n) for n in WIDTHS},
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_come_back_from_files(make, tmp_path):
    model = make()
    first = tmp_path / "first"
    second = tmp_path / "second"
    model_file.write(first, model)
    loaded = FlyNNClassifier.load(first)
    # Members have specs, counts with their noise, scorings and weights.
    assert loaded.model_.members == model.members
    assert loaded.model_.sha256() == model.sha256()
    assert loaded.guarantee_ == model.guarantee
    assert_array_equal(loaded.model_.scores(X), model.scores(X))
    if len(model.members) == 1:
        assert loaded.counts_ == model.member.counts
        assert loaded.spec_ == model.member.spec
    loaded.save(second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first", "second"]
    arrays = {"header", "digest"}
    arrays |= {f"counts_{i}" for i in range(len(model.members))}
    if model.prior is not None:
        arrays.add("prior")
    if model.linear is not None:
        arrays |= {"linear", "linear_bias"}
    with np.load(first, allow_pickle=False) as file:
        assert {*file} == arrays
        header = json.loads(file["header"].tobytes())
    assert header["format"] == 10
    assert (header["linear"] is None) == (model.linear is None)


@pytest.mark.parametrize(("extreme", "width"), WIDTHS.items())
def test_weights_of_the_linear_part_have_the_narrowest_type_and_biases_int64(
    extreme, width, tmp_path
):
    model_file.write(tmp_path / "m", linear_up_to(extreme))
    with np.load(tmp_path / "m") as file:
        assert (file["linear"].dtype, file["linear_bias"].dtype) == (
            np.dtype(f"<i{width}"),
            np.dtype("<i8"),
        )


def test_a_guarantee_is_that_of_the_noisy_counts_alone(noisy_path):
    model = FlyNNClassifier.load(noisy_path)
    same = FlyNNClassifier.load(noisy_path)
    assert (model.counts_.array < 0).any()
    assert (
        model.counts_.noise_variance
        == LaplaceCounts.for_spec(SPEC, 3, 2.0).noise_sd ** 2
    )
    assert model.guarantee_.startswith("Differential privacy with epsilon 2")
    assert model.merge(same).guarantee_ == same.guarantee_
    assert model.forget(X[:1], Y[:1]).guarantee_ is None


def test_records_of_the_writer_come_back(tmp_path):
    model_file.write(tmp_path / "both.npz", two_members(), extra={"parties": ["Ulm"]})
    with model_file.reading(tmp_path / "both.npz", 2**24) as (model, extra, _):
        assert (model.sha256(), extra) == (two_members().sha256(), {"parties": ["Ulm"]})
    loaded = FlyNNClassifier.load(tmp_path / "both.npz")
    assert (loaded.spec, hasattr(loaded, "spec_")) == (None, False)


@pytest.mark.parametrize("weighted", [0.25, 1.0])
@pytest.mark.parametrize(
    "word",
    [{}, {"aligned": False, "gram": None}],
    ids=["as written", "as in 0.8"],
)
def test_rewritten_files_are_read(linear_path, weighted, word):
    """Forging works: so each forged file below is refused for what is forged."""
    rewrite(
        linear_path,
        lambda fields, _: (
            fields.update(word) or fields["members"][0].update(weight=weighted)
        ),
    )
    model = FlyNNClassifier.load(linear_path).model_
    assert model.linear.sha256() == SCORING.sha256()
    assert model.members[0].weight == weighted


# ---- damaged files


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        FlyNNClassifier.load(tmp_path / "none.npz")


def test_truncated_files_are_refused(path):
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            FlyNNClassifier.load(path)


SLOW = (pytest.param(mask, marks=pytest.mark.slow) for mask in (0x80, 0xFF))


@pytest.mark.parametrize("mask", [1, *SLOW])
def test_altered_files_are_refused_or_say_the_same(path, mask):
    """Nothing but what no reader looks at, such as a time stamp, can be altered."""
    model = FlyNNClassifier.load(path)
    content = path.read_bytes()
    survivors = 0
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= mask
        path.write_bytes(altered)
        try:
            loaded = FlyNNClassifier.load(path)
        except ModelFileError:
            continue
        survivors += 1
        assert loaded.model_.members == model.model_.members
        assert_array_equal(loaded.classes_, model.classes_)
    assert survivors < len(content) / 4


def fewer(array):
    return np.vstack([0 * array[:1], array[1:]])


def one_more(array):
    return array + array.dtype.type(1)


ALTERED = {
    "counts": ("path", put("counts_0", fewer)),
    "header": ("path", set_to("members", 0, "rule", value="novelty")),
    "prior": ("path", put("prior", lambda prior: prior - 1)),
    "lost prior": ("path", lambda _, arrays: arrays.pop("prior")),
    **{
        name: ("linear_path", put(name, one_more)) for name in ("linear", "linear_bias")
    },
}


@pytest.mark.parametrize(("kind", "change"), ALTERED.values(), ids=ALTERED)
def test_the_digest_covers_what_is_valid_and_not_what_was_saved(kind, change, request):
    path = request.getfixturevalue(kind)
    rewrite(path, change, seal=False)
    with raises(ModelFileError, field="digest"):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(path, compression):
    rewrite(path, lambda *_: None, compression=compression)
    with raises(ModelFileError, field="header", expected="a stored or deflated array"):
        FlyNNClassifier.load(path)


HEADERS = {
    "bracket": lambda npy: npy.replace(b")", b" "),
    "quote": lambda npy: npy.replace(b"'descr'", b"'descr "),
    "nothing": lambda npy: b"",
}


@pytest.mark.parametrize("member", ["header", "counts_0", "digest", "extra"])
@pytest.mark.parametrize("change", HEADERS)
def test_members_whose_npy_header_is_none_are_refused(path, change, member):
    """The checksums of the zip file fit: the reader of the array finds the fault."""
    with model_file.reading(path, 2**20) as (model, *_):
        model_file.write(path, model, extra={})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = HEADERS[change](members[f"{member}.npy"])
    assert changed != members[f"{member}.npy"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {f"{member}.npy": changed}).items():
            archive.writestr(name, content)
    for load in (FlyNNClassifier.load, Federation.load):
        with raises(ModelFileError, field=member):
            load(path)


def test_what_the_block_refuses_the_file_is_refused_for(path):
    content = path.read_bytes()
    for error, facts in [
        (ModelFileError("format", "new", "old"), ("format", "new", "old")),
        (DataError("classes", "3", 2), ("classes", "3", "2")),
        (TypeError("unhashable"), ("file", "a model file", "TypeError")),
    ]:
        field, expected, got = facts
        with (
            raises(ModelFileError, field=field, expected=expected, got=got) as caught,
            model_file.reading(path, 2**20),
        ):
            raise error
        assert str(caught.value).startswith(f"{path}: ")
    with model_file.reading(path, 2**20) as (model, extra, _):
        assert extra is None
        model_file.write(path, model)
    assert path.read_bytes() == content


# ---- forged files


def header(text):
    return lambda *_: text


def counts(array):
    return put("counts_0", lambda _: array)


def prior(array):
    return put("prior", lambda _: np.array(array))


def spec(values):
    return set_to("members", 0, "spec", value=values)


def weight(value):
    return set_to("members", 0, "weight", value=value)


# What the headers of files may not say is in `forged.txt`; what a spec refuses else in
# `tests.hashing`.
PLAIN = [
    *((header(text), "file") for text in (b"", b"[]", b"[" * 10**5, b"\xff", b"{}")),
    *[
        (set_to("guarantee", value=10001 * "a"), "guarantee"),
        (weight(10**400), "weight"),
    ],
    (lambda fields, _: fields["members"][0].pop("weight"), "file"),
    *(
        (counts(bad), "counts")
        for bad in (np.zeros((3, 19), np.uint8), np.zeros(60, np.uint8))
    ),
    *(
        (counts(np.zeros((3, 20), dtype)), "counts_0")
        for dtype in (np.int64, float, ">u2", "u1,u1")
    ),
    *(
        (counts(bad), "array")
        for bad in (np.ones((3, 20), np.uint8), np.full((3, 20), 2**63, np.uint64))
    ),
    (counts(np.asfortranarray(np.zeros((3, 20), np.uint8))), "counts_0"),
    (counts(np.array([[{}]], object)), "counts_0"),  # a pickle
    (put("more", lambda array: array), "arrays"),
    *(
        (prior(bad), "prior")
        for bad in (np.zeros(2), np.zeros((3, 1)), np.zeros((2, 3)), np.zeros(10**6))
    ),
    *((prior(np.zeros(3, dtype)), "prior") for dtype in ("<f4", ">f8", "<i8")),
    *((prior([0, 0, bad]), "prior") for bad in (np.nan, -np.inf, 1e-9, -1e300)),
]


def first_value(value):
    def change(array):
        dtype = np.int32
        if array.ndim == 1:
            dtype = np.int64
        wide = array.astype(dtype)
        wide[(0,) * wide.ndim] = value
        return wide

    return change


def basis(name, value):
    return set_to("linear", name, value=value)


NOT_LINEAR = {
    "no weights": (lambda _, arrays: arrays.pop("linear"), "arrays"),
    "no biases": (lambda _, arrays: arrays.pop("linear_bias"), "arrays"),
    "one more": (put("linear_1", lambda array: array), "arrays"),
    **wrong_arrays("linear", "linear", 2**24),
    "a column less": (
        put("linear", lambda array: np.ascontiguousarray(array[:, 1:])), "linear"
    ),
    "a bias more": (
        put("linear_bias", lambda array: np.append(array, array[:1])), "linear_bias"
    ),
    "a table of biases": (put("linear_bias", lambda array: array[None]), "linear"),
    "narrow biases": (
        put("linear_bias", lambda array: array.astype(np.int32)), "linear_bias"
    ),
    "biases of floats": (
        put("linear_bias", lambda array: array.astype(float)), "linear_bias"
    ),
    "a bias too large": (put("linear_bias", first_value(2**44 + 1)), "linear"),
    "a bias too small": (put("linear_bias", first_value(-(2**63))), "linear"),
    "columns of other features": (basis("columns", [0, 1, 2, 3, 5]), "columns"),
    "a column less of the basis": (basis("columns", [0, 1, 2, 3]), "center"),
    "no share": (set_to("calibration", "share", value=0.0), "share"),
    "a share of nothing": (
        lambda fields, arrays: (
            fields.update(linear=None), arrays.pop("linear"), arrays.pop("linear_bias")
        ),
        "linear",
    ),
    "a Gram matrix of rows": (set_to("gram", value={"specs": []}), "gram"),
}  # fmt: skip


_LINEAR = [
    pytest.param("linear_path", *row, id=name) for name, row in NOT_LINEAR.items()
]
FORGED = [*(("path", *row) for row in PLAIN), *_LINEAR]


@pytest.mark.parametrize(("kind", "change", "field"), FORGED)
def test_forged_files_are_refused(kind, change, field, request):
    path = request.getfixturevalue(kind)
    rewrite(path, change)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


def test_values_that_a_header_may_not_have_are_refused_as_it_is_on_record(
    path, noisy_path, coded_path, linear_path
):
    def load_with(file, content, change):
        *keys, value = change
        file.write_bytes(content)
        rewrite(file, set_to(*keys, value=value))
        FlyNNClassifier.load(file)

    files = {
        "plain": path,
        "noisy": noisy_path,
        "coded": coded_path,
        "linear": linear_path,
    }
    takes = {
        kind: partial(load_with, file, file.read_bytes())
        for kind, file in files.items()
    }
    assert_refused_as_on_record(Path(__file__).parent / "forged.txt", takes)


# ---- time and memory

MANY = 100_000
NUMBERED = [str(number) for number in range(MANY)]
SHORT_MEMBER: dict[str, object] = {"spec": {}, "noise": []}
CROWDED = {
    "members": set_to("members", value=[SHORT_MEMBER] * MANY),
    "counts": set_to("classes", "values", value=NUMBERED),
    "feature_names": set_to("feature_names", value=NUMBERED),
    "header": lambda fields, _: fields.update(dict.fromkeys(NUMBERED, 0)),
    "spec": spec(SPEC.to_dict() | dict.fromkeys(NUMBERED, 0)),
    "center": spec(SPEC.to_dict() | {"center": [0.0] * MANY}),
    "row_weights": spec(SPEC.to_dict() | {"row_weights": [1] * MANY}),
    "counts_0": set_to("members", 0, "noise", value=[{}] * MANY),
}


@pytest.mark.parametrize("field", CROWDED)
def test_a_list_that_is_too_long_is_refused_before_work_is_done_on_it(path, field):
    rewrite(path, CROWDED[field])
    start = time.process_time()
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)
    assert time.process_time() - start < 1


def test_a_model_has_no_more_members_than_its_file_may_have(path):
    model = FlyNNClassifier.load(path).model_
    with raises(DataError, field="members"):
        replace(model, members=model.members * (MOST_MEMBERS + 1))
    crowd = replace(model, members=model.members * MOST_MEMBERS)
    model_file.write(path, crowd)
    assert len(FlyNNClassifier.load(path).model_.members) == MOST_MEMBERS


WIDE = SPEC.to_dict() | {"n_features": 2**31 - 1}
SHORT = CODED.to_dict() | {"n_features": 10**5, "n_codes": 64, "edges": [[0.0]] * 10**5}


LARGE = {
    "rows": set_to("members", 0, "spec", "hash_dim", value=2**31 - 1),
    "entries": spec(WIDE | {"row_nnz": 2**31 - 1}),
    "features": spec(WIDE),
    "header": header(b'{"format": 10, "members": ' + b" " * 2**26 + b"}"),
    "counts": counts(np.zeros((3, 2**24), np.uint8)),
    "codes": spec(SHORT),  # a short list of edges would become gigabytes of codes
}


@pytest.mark.parametrize("large", LARGE)
def test_small_files_do_not_take_much_memory(path, large):
    """Each of these would need gigabytes if it were believed."""
    rewrite(path, LARGE[large])
    assert path.stat().st_size < 10**6
    field = {"header": "header", "counts": "counts_0"}.get(large, "memory")
    most = {"codes": 10**8}.get(large, 10**7)
    with traced() as memory, raises(ModelFileError, field=field):
        FlyNNClassifier.load(path, max_bytes=2**27)
    assert memory.peak < most


def test_the_memory_limit_counts_members_and_the_linear_part(tmp_path):
    wide = HashSpec(5, 4000, 2, 4, seed=9)
    path = tmp_path / "m"
    model_file.write(path, linear_of(FlyNNClassifier(wide).fit(X, Y).model_))
    limit = memory_needed(wide, 3) + 12 * 3 * BASIS.n_terms
    assert FlyNNClassifier.load(path, max_bytes=limit).model_.linear is not None
    with traced() as memory, raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=limit - 1)
    assert memory.peak < 10**6
