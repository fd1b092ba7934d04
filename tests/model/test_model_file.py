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
from tests.model.forgery import put, rewrite, wrong_arrays
from tests.raising import raises

SPEC = HashSpec(n_features=5, hash_dim=200, row_nnz=2, hash_nnz=10, seed=3, signed=True)
X, CODES = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1, random_state=0
)
X = X.round(2)
Y = np.array(["ant", "bee", "cicada"])[CODES]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.npz"
    FlyNNClassifier(HashSpec(3, 20, 2, 3, seed=1, scale=(1.0, 2.0, 0.1))).fit(X[:, :3], Y).save(path)
    return path


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("max_members", [1, 3])
def test_models_come_back_from_files(rule, max_members, tmp_path):
    model = FlyNNClassifier(rule=rule, seed=5, max_members=max_members).fit(X, Y)
    members = model.model_.members
    assert len(members) == max_members
    model.save(tmp_path / "first")
    loaded = FlyNNClassifier.load(tmp_path / "first")
    assert loaded.model_.members == members  # specs, counts, scorings and weights
    assert loaded.model_.sha256() == model.model_.sha256()
    if max_members == 1:
        assert loaded.counts_ == model.counts_
        assert loaded.spec_ == model.spec_
        assert loaded.model_.member.scoring.decay == model.model_.member.scoring.decay
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    loaded.save(tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first", "second"]
    for each in (loaded, model):
        each.forget(X[:30], Y[:30])
    assert max_members == 1 or loaded.model_.sha256() == model.model_.sha256()  # of one member the decay stays
    members = model.model_.members
    merged = loaded.merge(model).model_.members
    assert [each.counts for each in merged] == [each.counts + each.counts for each in members]
    assert [each.weight for each in merged] == [each.weight for each in members]


def test_files_are_plain_npz(path):
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file) == ["counts_0", "digest", "header", "prior"]
        assert_array_equal(file["counts_0"], FlyNNClassifier.load(path).counts_.array)
        assert json.loads(file["header"].tobytes())["format"] == 10


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        FlyNNClassifier.load(tmp_path / "none.npz")


def test_truncated_files_are_refused(path):
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            FlyNNClassifier.load(path)


@pytest.mark.parametrize(
    "mask", [1, pytest.param(0x80, marks=pytest.mark.slow), pytest.param(0xFF, marks=pytest.mark.slow)]
)
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
        assert loaded.counts_ == model.counts_
        assert loaded.spec_ == model.spec_
        assert (loaded.model_.member.scoring.decay, loaded.rule) == (model.model_.member.scoring.decay, model.rule)
        assert_array_equal(loaded.classes_, model.classes_)
    assert survivors < len(content) / 4


def forge(path, header=None, counts=None, compression=zipfile.ZIP_DEFLATED, extra=(), name="counts_0"):
    """Rewrite a file with a header or counts of one's own, and a digest that fits."""
    with np.load(path) as file:
        fields, array = json.loads(file["header"].tobytes()), file[name]
    if callable(header):
        header(fields)
        header = None
    text = np.frombuffer(json.dumps(fields).encode() if header is None else header, np.uint8)
    array = array if counts is None else counts
    members = {"header": text, name: array, "digest": model_file.digest_of(text, array)}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for each, value in [*members.items(), *extra]:
            with archive.open(f"{each}.npy", "w") as member:
                np.lib.format.write_array(member, value)


def test_the_digest_covers_header_and_counts(path):
    """Checksums of the zip format can be mended by any tool; counts and header are valid, only not those saved."""
    with np.load(path) as file:
        members = dict(file)
    model = FlyNNClassifier.load(path)
    fewer = model.counts_.array.copy()
    fewer[0] = 0
    header = members["header"].tobytes().replace(b'"balanced"', b'"novelty"')
    for change in ({"counts_0": fewer.astype(np.uint8)}, {"header": np.frombuffer(header, np.uint8)}):
        with open(path, "wb") as stream:
            np.savez(stream, **(members | change))
        with raises(ModelFileError, field="digest"):
            FlyNNClassifier.load(path)
    with open(path, "wb") as stream:
        np.savez(stream, **members)
    assert FlyNNClassifier.load(path).counts_ == model.counts_


def set_to(*keys, value):
    def change(fields):
        for key in keys[:-1]:
            fields = fields[key]
        fields[keys[-1]] = value

    return change


def test_forging_works(path):
    expected = FlyNNClassifier.load(path).counts_
    forge(path)
    assert FlyNNClassifier.load(path).counts_ == expected


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (b"", "file"),
        (b"[]", "file"),
        (b"[" * 10**5, "file"),
        (b"\xff", "file"),
        (b"{}", "file"),
        *[(set_to("format", value=other), "format") for other in (4, 9, 11, "10", None)],
        *[(set_to("refined", value=bad), "refined") for bad in (None, 1, "yes", True)],  # in 0.8
        (set_to("gram", value={}), "arrays"),
        (set_to("format", value=True), "format"),
        (set_to("members", value=[]), "arrays"),
        (set_to("members", value=None), "members"),
        (set_to("members", value={"a": 1}), "members"),
        (set_to("guarantee", value="two\nlines"), "guarantee"),
        (set_to("members", 0, "spec", value=None), "spec"),
        (set_to("members", 0, "spec", "seed", value=2), "fingerprint"),
        (set_to("members", 0, "spec", "center", value=[0, 0, float("nan")]), "center"),
        (set_to("members", 0, "spec", "hash_dim", value=21), "counts"),
        (set_to("members", 0, "spec", "hash_nnz", value=2), "fingerprint"),
        (set_to("members", 0, "spec", "row_nnz", value=2**40), "row_nnz"),
        (set_to("members", 0, "fingerprint", value=64 * "0"), "fingerprint"),
        (set_to("classes", value=None), "file"),
        (set_to("classes", "values", value=["ant", "bee"]), "counts"),
        (set_to("classes", "values", value=["ant", "bee", "bee"]), "classes"),
        (set_to("classes", "values", value=["ant", "bee", ["cicada"]]), "file"),
        (set_to("classes", "values", value=[1, 2, 3]), "classes"),
        (set_to("classes", "dtype", value="<U1000000000"), "classes"),
        (set_to("classes", "dtype", value="V1000000000"), "classes"),
        (set_to("feature_names", value="abc"), "feature_names"),
        (set_to("feature_names", value=["a", "b", 3]), "feature_names"),
        *[(set_to("members", 0, "decay", value=bad), "decay") for bad in (1.0, None, float("nan"), "auto", True)],
        *[(set_to("members", 0, "temperature", value=bad), "temperature") for bad in (0, float("inf"), "auto")],
        (set_to("members", 0, "rule", value="best"), "rule"),
        (set_to("members", 0, "rule", value=["balanced"]), "rule"),
    ],
)
def test_forged_headers_are_refused(path, header, field):
    forge(path, header)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize(
    ("counts", "field"),
    [
        (np.zeros((3, 19), np.uint8), "counts"),
        (np.zeros(60, np.uint8), "counts"),
        (np.zeros((3, 20), np.int64), "counts_0"),
        (np.zeros((3, 20)), "counts_0"),
        (np.zeros((3, 20), ">u2"), "counts_0"),
        (np.ones((3, 20), np.uint8), "array"),
        (np.full((3, 20), 2**63, np.uint64), "array"),
        (np.asfortranarray(np.zeros((3, 20), np.uint8)), "counts_0"),
        (np.zeros((3, 20), "u1,u1"), "counts_0"),
    ],
)
def test_forged_counts_are_refused(path, counts, field):
    forge(path, counts=counts)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(path, compression):
    forge(path, compression=compression)
    with raises(ModelFileError, field="header", expected="a stored or deflated array"):
        FlyNNClassifier.load(path)


def test_other_contents_are_refused(path):
    forge(path, extra=[("more", np.zeros(1))])
    with raises(ModelFileError, field="arrays", expected="header, digest, counts_0"):
        FlyNNClassifier.load(path)


def test_pickles_are_refused(path):
    forge(path, counts=np.array([[{}]], object))
    with raises(ModelFileError, field="counts_0"):
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


def test_small_files_do_not_take_much_memory(path):
    """Each of these would need gigabytes if it were believed."""
    wide = SPEC.to_dict() | {"n_features": 2**31 - 1}
    forgeries = [
        {"header": set_to("members", 0, "spec", "hash_dim", value=2**31 - 1)},
        {"header": set_to("members", 0, "spec", value=wide | {"row_nnz": 2**31 - 1})},
        {"header": set_to("members", 0, "spec", value=wide)},
        {"header": b'{"format": 10, "members": ' + b" " * 2**26 + b"}"},
        {"counts": np.zeros((3, 2**24), np.uint8)},
    ]
    content = path.read_bytes()
    for forgery in forgeries:
        path.write_bytes(content)
        forge(path, **forgery)
        assert path.stat().st_size < 10**6
        with traced() as memory, pytest.raises(ModelFileError):
            FlyNNClassifier.load(path)
        assert memory.peak < 10**7


def test_the_memory_limit_can_be_moved(tmp_path):
    model = FlyNNClassifier(HashSpec.suggest(5, len(X), 3)).fit(X, Y)
    model.save(tmp_path / "model")
    with raises(ModelFileError, field="memory", expected="at most 0.95 MiB", got="about 1.9 MiB"):
        FlyNNClassifier.load(tmp_path / "model", max_bytes=10**6)
    assert FlyNNClassifier.load(tmp_path / "model", max_bytes=2 * 10**6).counts_ == model.counts_


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


@pytest.fixture
def noisy_path(tmp_path):
    path = tmp_path / "noisy.npz"
    model = FlyNNClassifier(SPEC).fit(X, Y)
    mechanism = LaplaceCounts.for_spec(SPEC, 3, 2.0)
    release = SimulatedRelease(mechanism, seed=1).release(model.counts_)
    FlyNNClassifier.from_counts(SPEC, release, model.classes_, guarantee=mechanism.guarantee()).save(path)
    return path


@pytest.mark.parametrize("largest", [127, 128, 32767, 32768])
def test_noisy_counts_at_the_end_of_a_type_come_back(noisy_path, tmp_path, largest):
    model = FlyNNClassifier.load(noisy_path)
    array = np.clip(model.counts_.array, -100, 100)
    array[0, 0] = largest
    counts = replace(model.counts_, array=array)
    FlyNNClassifier.from_counts(SPEC, counts, model.classes_).save(tmp_path / "edge")
    assert FlyNNClassifier.load(tmp_path / "edge").counts_ == counts


def test_noisy_models_come_back_with_their_noise_and_guarantee(noisy_path, tmp_path):
    model = FlyNNClassifier.load(noisy_path)
    assert (model.counts_.array < 0).any()
    assert model.counts_.noise_variance == LaplaceCounts.for_spec(SPEC, 3, 2.0).noise_sd ** 2
    assert model.guarantee_.startswith("Differential privacy with epsilon 2")
    assert model.predict_proba(X).shape == (120, 3)
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == noisy_path.read_bytes()
    same = FlyNNClassifier.load(noisy_path)
    assert same.counts_ == model.counts_
    assert model.merge(same).guarantee_ == same.guarantee_
    assert model.forget(X[:1], Y[:1]).guarantee_ is None


RELEASE = {"name": 64 * "a", "variance": 1.0, "times": 1, "selected": False}


@pytest.mark.parametrize(
    ("keys", "bad"),
    [
        *[(("format",), bad) for bad in (1, 4, 11, True, None)],
        *[
            (("members", 0, "noise"), bad)
            for bad in ([], None, [{}], [RELEASE | {"variance": -1.0}], [RELEASE, RELEASE], {"a": 1})
        ],
        *[(("guarantee",), bad) for bad in (5, "two\nlines", 10001 * "a", ["a"])],
    ],
)
def test_forged_noise_is_refused(noisy_path, keys, bad):
    forge(noisy_path, set_to(*keys, value=bad))
    with pytest.raises(ModelFileError):
        FlyNNClassifier.load(noisy_path)


def test_models_of_several_members_and_records_of_the_writer_come_back(tmp_path):
    both = two_members()
    model_file.write(tmp_path / "both.npz", both, extra={"parties": ["Ulm"]})
    with model_file.reading(tmp_path / "both.npz", 2**24) as (model, extra):
        assert (model.members, model.sha256(), model.guarantee) == (both.members, both.sha256(), "nothing")
        assert extra == {"parties": ["Ulm"]}
    loaded = FlyNNClassifier.load(tmp_path / "both.npz")
    assert (loaded.model_.members, loaded.spec) == (both.members, None)
    assert not hasattr(loaded, "spec_")


def two_members(*weights):
    first = FlyNNClassifier(SPEC).fit(X, Y).model_
    second = FlyNNClassifier(HashSpec(5, 40, 2, 4, seed=9), decay=0.3).fit(X, Y).model_
    members = [
        replace(each.member, weight=weight)
        for each, weight in zip((first, second), weights or (0.75, 0.25), strict=True)
    ]
    return Model(tuple(members), first.classes, list("abcde"), "nothing")


# Weights


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, 1e308, float("nan"), float("inf"), "0.5", True, None, [0.5], 10**400])
def test_forged_weights_are_refused(tmp_path, bad):
    path = tmp_path / "model.npz"
    model_file.write(path, replace(two_members(), members=two_members().members[:1]))
    forge(path, set_to("members", 0, "weight", value=0.25))
    assert FlyNNClassifier.load(path).model_.member.weight == 0.25
    forge(path, set_to("members", 0, "weight", value=bad))
    with raises(ModelFileError, field="weight"):
        FlyNNClassifier.load(path)


def test_a_missing_weight_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    model_file.write(path, replace(two_members(), members=two_members().members[:1]))
    forge(path, lambda header: header["members"][0].pop("weight"))
    with raises(ModelFileError, field="file"):
        FlyNNClassifier.load(path)


CODED = HashSpec(5, 40, 3, 4, seed=9, signed=True, coding="steps", n_codes=4, edges=((-1.0, 0.5),) * 5)


@pytest.mark.parametrize(
    ("name", "bad", "field"),
    [
        ("edges", [[0.0, -1.0]] * 5, "edges"),
        ("edges", [[0.0]] * 4, "edges"),
        ("edges", [[float("nan")]] * 5, "edges"),
        ("edges", None, "edges"),
        ("edges", [[0.0, 1.0]] * 5, "fingerprint"),
        ("coding", "stairs", "coding"),
        ("coding", ["steps"], "coding"),
        ("n_codes", 65, "n_codes"),
        ("n_codes", 1, "n_codes"),
        ("row_weights", [0] * 5, "row_weights"),
        ("row_weights", [256] * 5, "row_weights"),
        ("row_weights", [1.5] * 5, "row_weights"),
        ("row_weights", [1] * 5, "fingerprint"),
    ],
)
def test_forged_codes_are_refused(tmp_path, name, bad, field):
    path = tmp_path / "model.npz"
    FlyNNClassifier(CODED).fit(X, Y).save(path)
    assert FlyNNClassifier.load(path).spec_ == CODED
    forge(path, set_to("members", 0, "spec", name, value=bad))
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(path)


def test_the_tables_of_codes_count_as_memory(tmp_path):
    """A short list of edges would become gigabytes of codes."""
    path = tmp_path / "model.npz"
    FlyNNClassifier(CODED).fit(X, Y).save(path)
    wide = CODED.to_dict() | {"n_features": 10**5, "n_codes": 64, "edges": [[0.0]] * 10**5}
    forge(path, set_to("members", 0, "spec", value=wide))
    with raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=2**27)


# The Gram matrix

OWN = tuple(HashSpec(5, 16, 2, 4, seed, signed=True) for seed in (0, 1))
PAIRS = LearnedGram.of(OWN, X, CODES, 3).scoring
assert PAIRS is not None


@pytest.fixture
def paired(tmp_path):
    path = tmp_path / "paired.npz"
    model_file.write(path, replace(two_members(), gram=PAIRS))
    return path


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


@pytest.mark.parametrize("change", [lambda fields, _: fields.update(aligned=False, refined=False), lambda *_: None])
def test_files_with_a_word_of_what_is_gone_as_in_0_8_are_read(paired, change):
    rewrite(paired, change)
    assert FlyNNClassifier.load(paired).model_.gram.sha256() == PAIRS.sha256()


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
    **{f"in format {n}": (lambda fields, _, n=n: fields.update(format=n), "format") for n in (4, 9, 11, True, "10")},
    "an alignment, as in 0.8": (lambda fields, _: fields.update(aligned=True), "aligned"),
    "an odd word of alignment": (lambda fields, _: fields.update(aligned=1), "aligned"),
    "an alignment without a word of it": (put("gain", lambda _: np.ones(5)), "arrays"),
    **wrong_arrays("gram", "gram", 2**24),
    "a column less": (put("gram", lambda array: np.ascontiguousarray(array[:, 1:])), "gram"),
    "a bias less": (put("bias", lambda array: array[1:]), "gram"),
    "a bias more": (put("bias", lambda array: np.append(array, array[:1])), "bias"),
    "a table of biases": (put("bias", lambda array: array[None]), "gram"),
    "narrow biases": (put("bias", lambda array: array.astype(np.int32)), "bias"),
    "biases of floats": (put("bias", lambda array: array.astype(float)), "bias"),
    "a bias too large": (put("bias", first_value(2**44 + 1)), "gram"),
    "a bias too small": (put("bias", first_value(-(2**63))), "gram"),
    "no figures": (lambda fields, _: fields.update(gram=None), "arrays"),
    "a list of figures": (lambda fields, _: fields.update(gram=[]), "gram"),
    "no specs": (lambda fields, _: fields["gram"].pop("specs"), "gram"),
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
    "one fingerprint": (lambda fields, _: fields["gram"]["fingerprints"].pop(), "fingerprints"),
    "no fingerprints": (of_gram("fingerprints", None), "fingerprints"),
}  # fmt: skip


def test_rewriting_works(paired):
    rewrite(paired, lambda *_: None)
    assert FlyNNClassifier.load(paired).model_.gram.sha256() == PAIRS.sha256()


@pytest.mark.parametrize("name", NOT_GRAM)
def test_forged_the_gram_matrix_are_refused(paired, name):
    change, field = NOT_GRAM[name]
    rewrite(paired, change)
    with raises(ModelFileError, field=field):
        FlyNNClassifier.load(paired)


@pytest.mark.parametrize("name", ["gram", "bias"])
def test_the_digest_covers_the_gram_matrix(paired, name):
    rewrite(paired, put(name, lambda array: array + array.dtype.type(1)), seal=False)
    with raises(ModelFileError, field="digest"):
        FlyNNClassifier.load(paired)


def test_the_memory_limit_counts_the_gram_matrix(tmp_path):
    wide = replace(OWN[0], hash_dim=4000)
    pairs = replace(PAIRS, specs=(wide,), weights=np.zeros((4000, 3), np.int32))
    model, path = replace(two_members(), gram=pairs), tmp_path / "m"
    model_file.write(path, model)
    limit = sum(memory_needed(each.spec, 3) for each in model.members) + memory_needed(wide, 3)
    assert FlyNNClassifier.load(path, max_bytes=limit).model_.gram is not None
    with traced() as memory, raises(ModelFileError, field="memory"):
        FlyNNClassifier.load(path, max_bytes=limit - 1)
    assert memory.peak < 10**6
