"""Model files: they come back as they were, and those that somebody tampered with do not come in."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.datasets import make_classification

from flwr_flynn import FlyNNClassifier, HashSpec
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model import model_file
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.gram import LearnedGram
from flwr_flynn.model.model import Model
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import LaplaceCounts, SimulatedRelease
from tests.memory import traced
from tests.model.forgery import put, rewrite, set_to, wrong_arrays
from tests.raising import raises

SPEC = HashSpec(n_features=5, hash_dim=200, row_nnz=2, hash_nnz=10, seed=3, signed=True)
X, CODES = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
)
X = X.round(2)
Y = np.array(["ant", "bee", "cicada"])[CODES]
CODED = HashSpec(5, 40, 3, 4, seed=9, signed=True, coding="steps", n_codes=4, edges=((-1.0, 0.5),) * 5)
OWN = tuple(HashSpec(5, 16, 2, 4, seed, signed=True) for seed in (0, 1))
PAIRS = LearnedGram.of(OWN, X, CODES, 3).scoring
assert PAIRS is not None


def two_members(*weights):
    first = FlyNNClassifier(SPEC).fit(X, Y).model_
    second = FlyNNClassifier(HashSpec(5, 40, 2, 4, seed=9), decay=0.3).fit(X, Y).model_
    members = [
        replace(each.member, weight=weight)
        for each, weight in zip((first, second), weights or (0.75, 0.25), strict=True)
    ]
    return Model(tuple(members), first.classes, list("abcde"), "nothing")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.npz"
    FlyNNClassifier(HashSpec(3, 20, 2, 3, seed=1, scale=(1.0, 2.0, 0.1))).fit(X[:, :3], Y).save(path)
    return path


@pytest.fixture
def noisy_path(tmp_path):
    path = tmp_path / "noisy.npz"
    model = FlyNNClassifier(SPEC).fit(X, Y)
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 2.0)
    release = SimulatedRelease(mechanism, seed=1).release(model.counts_)
    FlyNNClassifier.from_counts(SPEC, release, model.classes_, guarantee=mechanism.guarantee()).save(path)
    return path


@pytest.fixture
def coded_path(tmp_path):
    FlyNNClassifier(CODED).fit(X, Y).save(tmp_path / "coded.npz")
    return tmp_path / "coded.npz"


@pytest.fixture
def paired(tmp_path):
    path = tmp_path / "paired.npz"
    model_file.write(path, replace(two_members(), gram=PAIRS))
    return path


# ---- files come back


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("max_members", [1, 3])
def test_models_come_back_from_files(rule, max_members, tmp_path):
    model = FlyNNClassifier(rule=rule, seed=5, max_members=max_members).fit(X, Y)
    model.save(tmp_path / "first")
    loaded = FlyNNClassifier.load(tmp_path / "first")
    assert len(loaded.model_.members) == max_members
    assert loaded.model_.members == model.model_.members  # specs, counts, scorings and weights
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first", "second"]
    assert max_members > 1 or (loaded.counts_, loaded.spec_) == (model.counts_, model.spec_)
    twice = [(each.counts + each.counts, each.weight) for each in model.model_.members]
    assert [(each.counts, each.weight) for each in loaded.merge(model).model_.members] == twice


@pytest.mark.parametrize(("scored", "n_members"), [("members", 1), ("members", 2), ("gram", 1), ("gram", 2)])
@pytest.mark.parametrize("prior", [None, np.log([0.5, 0.25, 0.25])])
def test_models_come_back_with_all_their_parts(tmp_path, scored, n_members, prior):
    both = two_members()
    members = both.members if n_members == 2 else (replace(both.members[0], weight=1.0),)
    parts = {"gram": PAIRS} if scored == "gram" else {}
    model = replace(both, members=members, prior=prior, **parts)
    model_file.write(tmp_path / "m", model)
    found = FlyNNClassifier.load(tmp_path / "m").model_
    assert found.sha256() == model.sha256()
    assert_array_equal(found.scores(X), model.scores(X))
    model_file.write(tmp_path / "again", found)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()
    with np.load(tmp_path / "m", allow_pickle=False) as file:
        names = ["header", "digest", *["prior"] * (prior is not None)]
        names += ["gram", "bias"] * (scored == "gram")
        names += [f"counts_{i}" for i in range(n_members)]
        assert sorted(file) == sorted(names)
        header = json.loads(file["header"].tobytes())
    assert header["format"] == 10
    if scored == "gram":
        assert found.gram.sha256() == PAIRS.sha256()
        assert header["gram"].keys() == {"specs", "fingerprints"}


def test_noisy_and_coded_models_come_back(noisy_path, coded_path, tmp_path):
    model = FlyNNClassifier.load(noisy_path)
    assert (model.counts_.array < 0).any()
    assert model.counts_.noise_variance == LaplaceCounts.for_spec(SPEC, 3, 2.0).noise_sd ** 2
    assert model.guarantee_.startswith("Differential privacy with epsilon 2")
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == noisy_path.read_bytes()
    same = FlyNNClassifier.load(noisy_path)
    assert same.counts_ == model.counts_
    assert model.merge(same).guarantee_ == same.guarantee_
    assert model.forget(X[:1], Y[:1]).guarantee_ is None
    assert FlyNNClassifier.load(coded_path).spec_ == CODED


@pytest.mark.parametrize("largest", [127, 128, 32767, 32768])
def test_noisy_counts_at_the_end_of_a_type_come_back(noisy_path, tmp_path, largest):
    model = FlyNNClassifier.load(noisy_path)
    array = np.clip(model.counts_.array, -100, 100)
    array[0, 0] = largest
    counts = replace(model.counts_, array=array)
    FlyNNClassifier.from_counts(SPEC, counts, model.classes_).save(tmp_path / "edge")
    assert FlyNNClassifier.load(tmp_path / "edge").counts_ == counts


def test_records_of_the_writer_come_back(tmp_path):
    both = two_members()
    model_file.write(tmp_path / "both.npz", both, extra={"parties": ["Ulm"]})
    with model_file.reading(tmp_path / "both.npz", 2**24) as (model, extra):
        assert (model.sha256(), model.guarantee, extra) == (both.sha256(), "nothing", {"parties": ["Ulm"]})
    loaded = FlyNNClassifier.load(tmp_path / "both.npz")
    assert (loaded.model_.members, loaded.spec, hasattr(loaded, "spec_")) == (both.members, None, False)


@pytest.mark.parametrize("weighted", [0.25, 1.0])
@pytest.mark.parametrize("word", [{}, {"aligned": False}], ids=["as written", "as in 0.8"])
def test_rewritten_files_are_read(paired, weighted, word):
    """Forging works: so each forged file below is refused for what is forged."""
    rewrite(paired, lambda fields, _: fields.update(word) or fields["members"][0].update(weight=weighted))
    model = FlyNNClassifier.load(paired).model_
    assert (model.gram.sha256(), model.members[0].weight) == (PAIRS.sha256(), weighted)


@pytest.mark.parametrize("extreme", [0, 127, 128, -128, -129, 2**15, -(2**15), 2**24, -(2**24)])
def test_weights_of_the_gram_matrix_have_the_narrowest_type_and_biases_int64(extreme, tmp_path):
    weights, bias = np.zeros((32, 3), np.int32), np.array([2**44, -(2**44), 0])
    weights[3, 1] = extreme
    model = replace(two_members(), gram=replace(PAIRS, weights=weights, bias=bias))
    model_file.write(tmp_path / "m", model)
    assert FlyNNClassifier.load(tmp_path / "m").model_.sha256() == model.sha256()
    with np.load(tmp_path / "m") as file:
        width = 1 if -128 < extreme < 128 else 2 if -(2**15) < extreme < 2**15 else 4
        assert (file["gram"].dtype, file["bias"].dtype) == (np.dtype(f"<i{width}"), np.dtype("<i8"))


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
    model, content = FlyNNClassifier.load(path), path.read_bytes()
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


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("path", put("counts_0", fewer)),
        ("path", set_to("members", 0, "rule", value="novelty")),
        ("path", put("prior", lambda prior: prior - 1)),
        ("path", lambda _, arrays: arrays.pop("prior")),
        ("paired", put("gram", one_more)),
        ("paired", put("bias", one_more)),
    ],
    ids=["counts", "header", "prior", "lost prior", "gram", "bias"],
)
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
    "brace": lambda npy: npy.replace(b"}", b" "),
    "NUL": lambda npy: npy.replace(b"shape", b"sh\0pe"),
    "NUL at the end": lambda npy: npy.replace(b" \n", b"\0\n", 1),
    "quote": lambda npy: npy.replace(b"'descr'", b"'descr "),
    "indent": lambda npy: npy.replace(b"{", b"\n", 1),
    "line": lambda npy: npy.replace(b" \n", b"\\\n", 1),
    "deep": lambda npy: npy[:10] + b"(" * (npy.index(b"\n") - 10) + npy[npy.index(b"\n") :],
    "version": lambda npy: npy[:6] + b"\3\0" + npy[8:],
    "nothing": lambda npy: b"",
}


@pytest.mark.parametrize("member", ["header", "counts_0", "digest", "extra"])
@pytest.mark.parametrize("change", HEADERS)
def test_members_whose_npy_header_is_none_are_refused(path, change, member):
    """The checksums of the zip file fit: what is wrong is found by whoever reads the array."""
    with model_file.reading(path, 2**20) as (model, _):
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
        with raises(ModelFileError, field=field, expected=expected, got=got) as caught, model_file.reading(path, 2**20):
            raise error
        assert str(caught.value).startswith(f"{path}: ")
    with model_file.reading(path, 2**20) as (model, extra):
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


def member(name, value):
    return set_to("members", 0, name, value=value)


def spec(name, value):
    return set_to("members", 0, "spec", name, value=value)


def classes(values):
    return set_to("classes", "values", value=values)


NAN, INF = float("nan"), float("inf")
PLAIN = [
    *((header(text), "file") for text in (b"", b"[]", b"[" * 10**5, b"\xff", b"{}")),
    *[(set_to("format", value=other), "format") for other in (4, 9, 11, "10", None, True)],
    *[(set_to("refined", value=bad), "refined") for bad in (None, 1, "yes", True)],  # in 0.8
    *[(set_to("gram", value={}), "arrays"), (set_to("members", value=[]), "arrays")],
    *((set_to("members", value=bad), "members") for bad in (None, {"a": 1})),
    *((set_to("guarantee", value=bad), "guarantee") for bad in (5, "two\nlines", 10001 * "a", ["a"])),
    *[(member("spec", None), "spec"), (spec("center", [0, 0, NAN]), "center"), (spec("row_nnz", 2**40), "row_nnz")],
    *((bad, "fingerprint") for bad in (spec("seed", 2), spec("hash_nnz", 2), member("fingerprint", 64 * "0"))),
    *[(spec("hash_dim", 21), "counts"), (set_to("classes", value=None), "file"), (classes(["ant", "bee"]), "prior")],
    *((classes(bad), "classes") for bad in (["ant", "bee", "bee"], [1, 2, 3])),
    (classes(["ant", "bee", ["cicada"]]), "file"),
    *((set_to("classes", "dtype", value=bad), "classes") for bad in ("<U1000000000", "V1000000000")),
    *((set_to("feature_names", value=bad), "feature_names") for bad in ("abc", ["a", "b", 3])),
    *((member("decay", bad), "decay") for bad in (None, NAN, "auto")),
    *[(member("temperature", 0), "temperature"), (member("rule", ["balanced"]), "rule")],
    *((member("weight", bad), "weight") for bad in (0.0, -0.5, 1.5, NAN, INF, "0.5", True, None, [0.5], 10**400)),
    (lambda fields, _: fields["members"][0].pop("weight"), "file"),
    *((counts(bad), "counts") for bad in (np.zeros((3, 19), np.uint8), np.zeros(60, np.uint8))),
    *((counts(np.zeros((3, 20), dtype)), "counts_0") for dtype in (np.int64, float, ">u2", "u1,u1")),
    *((counts(bad), "array") for bad in (np.ones((3, 20), np.uint8), np.full((3, 20), 2**63, np.uint64))),
    (counts(np.asfortranarray(np.zeros((3, 20), np.uint8))), "counts_0"),
    (counts(np.array([[{}]], object)), "counts_0"),  # a pickle
    (put("more", lambda array: array), "arrays"),
    *((prior(bad), "prior") for bad in (np.zeros(2), np.zeros((3, 1)), np.zeros((2, 3)), np.zeros(10**6))),
    *((prior(np.zeros(3, dtype)), "prior") for dtype in ("<f4", ">f8", "<i8")),
    *((prior([0, 0, bad]), "prior") for bad in (NAN, -INF, 1e-9, -1e300)),
]
RELEASE = {"name": 64 * "a", "variance": 1.0, "times": 1, "selected": False}
NOISY = [
    *((member("noise", bad), "counts_0") for bad in ([], None)),
    *((member("noise", bad), "release") for bad in ([{}], {"a": 1})),
    (member("noise", [RELEASE | {"variance": -1.0}]), "release variance"),
    (member("noise", [RELEASE, RELEASE]), "noise"),
]
# What a spec refuses else is in `tests.hashing.test_spec`.
CODED_ROWS = [
    *[(spec("edges", [[0.0, -1.0]] * 5), "edges"), (spec("coding", ["steps"]), "coding")],
    *[(spec("edges", [[0.0, 1.0]] * 5), "fingerprint"), (spec("row_weights", [1] * 5), "fingerprint")],
]


def of_gram(name, value):
    return lambda fields, _: fields["gram"].update({name: value})


def with_specs(*specs):
    def change(fields, _):
        fields["gram"] |= {
            "specs": [spec.to_dict() for spec in specs],
            "fingerprints": [FlyHash(spec).fingerprint for spec in specs],
        }

    return change


def first_value(value):
    def change(array):
        wide = array.astype(np.int64 if array.ndim == 1 else np.int32)
        wide[(0,) * wide.ndim] = value
        return wide

    return change


NOT_GRAM = {
    "no weights": (lambda _, arrays: arrays.pop("gram"), "arrays"),
    "no biases": (lambda _, arrays: arrays.pop("bias"), "arrays"),
    "one more": (put("pairs_1", lambda array: array), "arrays"),
    "weights of bits": (put("weights_0", lambda array: array), "arrays"),
    "an alignment, as in 0.8": (lambda fields, _: fields.update(aligned=True), "aligned"),
    **wrong_arrays("gram", "gram", 2**24),
    "a column less": (put("gram", lambda array: np.ascontiguousarray(array[:, 1:])), "gram"),
    "a bias more": (put("bias", lambda array: np.append(array, array[:1])), "bias"),
    "a table of biases": (put("bias", lambda array: array[None]), "gram"),
    "narrow biases": (put("bias", lambda array: array.astype(np.int32)), "bias"),
    "biases of floats": (put("bias", lambda array: array.astype(float)), "bias"),
    "a bias too large": (put("bias", first_value(2**44 + 1)), "gram"),
    "a bias too small": (put("bias", first_value(-(2**63))), "gram"),
    "no figures": (lambda fields, _: fields.update(gram=None), "arrays"),
    "a list of figures": (lambda fields, _: fields.update(gram=[]), "gram"),
    "a temperature, as in 0.8": (of_gram("temperature", 1.0), "gram"),
    "no spec": (with_specs(), "gram"),
    "six specs": (with_specs(*(replace(OWN[0], seed=seed) for seed in range(6))), "gram"),
    "specs of different features": (with_specs(OWN[0], HashSpec(4, 16, 2, 4, 1)), "gram"),
    "specs of other features": (with_specs(*(replace(spec, n_features=4) for spec in OWN)), "gram"),
    "specs of fewer rows": (with_specs(OWN[0]), "gram"),
    "too many rows": (with_specs(OWN[0], replace(OWN[1], hash_dim=4081)), "gram"),
    "specs that are none": (of_gram("specs", [None]), "spec"),
    "specs that are nothing": (of_gram("specs", None), "file"),
    "other rows": (lambda fields, _: fields["gram"]["specs"][0].update(seed=5), "fingerprints"),
    "other fingerprints": (of_gram("fingerprints", [64 * "0"] * 2), "fingerprints"),
}  # fmt: skip


FORGED = [
    *(("path", *row) for row in PLAIN),
    *(("noisy_path", *row) for row in NOISY),
    *(("coded_path", *row) for row in CODED_ROWS),
    *(pytest.param("paired", *row, id=name) for name, row in NOT_GRAM.items()),
]


@pytest.mark.parametrize(("kind", "change", "field"), FORGED)
def test_forged_files_are_refused(kind, change, field, request):
    path = request.getfixturevalue(kind)
    rewrite(path, change)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


# ---- memory


WIDE = SPEC.to_dict() | {"n_features": 2**31 - 1}
SHORT = CODED.to_dict() | {"n_features": 10**5, "n_codes": 64, "edges": [[0.0]] * 10**5}


@pytest.mark.parametrize(
    ("change", "peak"),
    [
        (spec("hash_dim", 2**31 - 1), 10**7),
        (member("spec", WIDE | {"row_nnz": 2**31 - 1}), 10**7),
        (member("spec", WIDE), 10**7),
        (header(b'{"format": 10, "members": ' + b" " * 2**26 + b"}"), 10**7),
        (counts(np.zeros((3, 2**24), np.uint8)), 10**7),
        (member("spec", SHORT), 10**8),  # a short list of edges would become gigabytes of codes
    ],
    ids=["rows", "entries", "features", "header", "counts", "codes"],
)
def test_small_files_do_not_take_much_memory(path, change, peak):
    """Each of these would need gigabytes if it were believed."""
    rewrite(path, change)
    assert path.stat().st_size < 10**6
    with traced() as memory, pytest.raises(ModelFileError):
        FlyNNClassifier.load(path, max_bytes=2**27)
    assert memory.peak < peak


def test_the_memory_limit_counts_members_and_the_gram_matrix(tmp_path):
    wide = replace(OWN[0], hash_dim=4000)
    pairs = replace(PAIRS, specs=(wide,), weights=np.zeros((4000, 3), np.int32))
    model, path = replace(two_members(), gram=pairs), tmp_path / "m"
    model_file.write(path, model)
    limit = sum(memory_needed(each.spec, 3) for each in model.members) + memory_needed(wide, 3)
    assert FlyNNClassifier.load(path, max_bytes=limit).model_.gram is not None
    with traced() as memory, raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=limit - 1)
    assert memory.peak < 10**6
