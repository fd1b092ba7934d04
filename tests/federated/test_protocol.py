"""What the server announces is what the party reads, exactly, or it is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError, DataError, PayloadError
from flwr_flynn.federated.protocol import SumsTerms, Terms, announced_names, whole_number
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from tests.fakes import CLASSES, HASHER, SPEC, TERMS

words = st.text(st.characters(blacklist_characters="\0"), max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)


@given(st.one_of(st.lists(words, min_size=1, unique=True), st.lists(integers, min_size=1, unique=True)))
def test_classes_make_the_round_trip(classes: list[str] | list[int]) -> None:
    terms = Terms(SPEC, classes)
    config = terms.to_config()
    assert all(isinstance(value, str) and value.isascii() for value in config.values())
    assert Terms.from_config(config, SPEC.n_features) == terms
    assert Terms(SPEC, np.array(classes)) == terms
    assert [type(label) for label in terms.classes] == [type(label) for label in classes]


def test_spec_and_feature_names_make_the_round_trip() -> None:
    spec = HashSpec(2, 8, 1, 2, seed=2**64 - 1, signed=True, center=(0.1, -1e300), scale=(5e-324, 2.0))
    terms = Terms(spec, [0, 1], feature_names=np.array(["länge", "breite"]))
    again = Terms.from_config(terms.to_config(), 2)
    assert again == terms
    assert again.agree_on_rows(terms.to_config())[0].fingerprint == FlyHash(spec).fingerprint


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ([], "got nothing"),
        ("ash", "expected a list of strings or integers, got str"),
        (7, "got int"),
        ({"ash", "birch"}, "got set"),
        (["a", 1], "only strings or only integers, got int, str"),
        ([True, False], "got bool"),
        ([1.0, 2.0], "got float"),
        ([None], "got NoneType"),
        ([["a"], ["b"]], "got list"),
        (["a", "b", "a"], "expected different labels, got 1 of them again"),
        ([2**63], "within int64"),
        (["a\0"], "without NUL"),
    ],
)
def test_bad_class_lists_are_refused(classes: object, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Terms(SPEC, classes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"specs": None}, "spec: expected a HashSpec, got NoneType"),
        ({"specs": HASHER}, "got a FlyHash"),
        ({"specs": FlyHash.from_rows(HASHER.rows, 4, 3)}, "a FlyHash; parties expand the rows from the spec's seed"),
        ({"mode": "clear"}, "mode: expected one of plain, noisy, secure, got 'clear'"),
        ({"feature_names": "abcd"}, "feature_names: expected 4 strings, got str"),
        ({"feature_names": ["a"]}, "got 1 entries"),
        ({"feature_names": [1, 2, 3, 4]}, "feature_names: expected 4 strings"),
    ],
)
def test_bad_terms_are_refused(change: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Terms(**{"specs": SPEC, "classes": CLASSES, **change})


def test_whole_numbers_may_be_numpy_s() -> None:
    number = whole_number("n", np.int64(2))
    assert (number, type(number)) == (2, int)
    for bad in (0, -1, True, np.True_, 2.0, "2", None):
        with pytest.raises(ConfigError, match="n: expected a whole number of 1 or more, got"):
            whole_number("n", bad)


def spec_with(**changes: object) -> str:
    return json.dumps({**SPEC.to_dict(), **changes})


def test_the_digest_is_of_the_classes_and_features_in_their_order() -> None:
    assert TERMS.digest() == Terms(SPEC, list(CLASSES)).digest()
    named = [Terms(SPEC, CLASSES, feature_names=list(names)).digest() for names in ("abcd", "abcd", "bacd")]
    assert named[0] == named[1]
    assert len({*named, TERMS.digest()}) == 3  # columns are found by them: others make other counts
    assert TERMS.digest() != Terms(SPEC, CLASSES[::-1]).digest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flynn-spec": None}, "flynn-spec: expected a string, got nothing"),
        ({"flynn-spec": 7}, "got int"),
        ({"flynn-spec": b"{}"}, "got bytes"),
        ({"flynn-spec": "{"}, "flynn-spec: expected JSON"),
        ({"flynn-spec": "[" * 4000}, "flynn-spec: expected JSON"),
        ({"flynn-spec": "9" * 4353}, "flynn-spec: expected JSON"),
        ({"flynn-spec": " " * 70000}, "expected at most 69632 characters, got 70000"),
        ({"flynn-spec": "[]"}, "spec"),
        ({"flynn-spec": spec_with(hash_dim=0)}, "hash_dim"),
        ({"flynn-spec": spec_with(hash_dim=2.5)}, "hash_dim"),
        ({"flynn-spec": spec_with(scale=[float("nan")] * 4)}, "scale"),
        ({"flynn-spec": spec_with(surprise=1)}, "surprise"),
        ({"flynn-spec": spec_with(n_features=5)}, "n_features is 5, but the data has 4 columns"),
        ({"flynn-classes": "{}"}, "classes"),
        ({"flynn-classes": '{"a": 1}'}, "classes: expected a list"),
        ({"flynn-classes": "[NaN]"}, "classes"),
        ({"flynn-mode": "private"}, "mode: expected one of plain"),
        ({"flynn-feature-names": "3"}, "feature_names"),
    ],
)
def test_hostile_configs_are_refused(change: dict, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        Terms.from_config({**TERMS.to_config(), **change}, SPEC.n_features)


def test_another_server_hash_is_noticed() -> None:
    with pytest.raises(PayloadError, match="fingerprint: expected 0000"):
        TERMS.agree_on_rows({"flynn-fingerprint": "0" * 64})


@pytest.mark.parametrize(
    "labels",
    [
        ["cedar", "ash", "ash"],
        np.array(["cedar", "ash", "ash"]),
        np.array(["cedar", "ash", "ash"], dtype=object),
        [np.str_("cedar"), "ash", "ash"],
    ],
)
def test_strings_are_coded(labels: object) -> None:
    assert TERMS.codes(labels).tolist() == [2, 0, 0]


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "object", ">i4"])
def test_integers_are_coded_whatever_their_type(dtype: str) -> None:
    terms = Terms(SPEC, [30, 10, 20])
    codes = terms.codes(np.array([10, 30, 20]).astype(dtype))
    assert codes.dtype == np.int64
    assert codes.tolist() == [1, 0, 2]


def test_no_labels_have_no_codes() -> None:
    assert TERMS.codes([]).shape == (0,)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (["ash", "SECRET", "SECRET"], "y: 2 of 3 labels are not in the class list"),
        ([1, 2], "2 of 2 labels are not in the class list"),
        ([float("nan")], "1 of 1"),
        ([["ash"]], "got 2 dimensions"),
        (None, "got 0 dimensions"),
        (np.array([{}], object), "objects of another type"),
    ],
)
def test_labels_outside_the_class_list_are_counted_and_not_shown(labels: object, reason: str) -> None:
    with pytest.raises(DataError, match=reason) as error:
        TERMS.codes(labels)
    assert "SECRET" not in str(error.value)


# ---- several specs, and sums


GRID = [
    HashSpec(4, 24, 2, 3, seed, signed=True, n_waves=waves, wave_frequency=waves / 8)
    for seed, waves in ((1, 0), (2, 8))
]


def test_several_specs_make_the_round_trip() -> None:
    terms = Terms(GRID, CLASSES)
    config = terms.to_config()
    again = Terms.from_config(config, 4)
    assert again == terms
    assert again.specs == tuple(GRID)
    assert [hasher.fingerprint for hasher in again.agree_on_rows(config)] == [FlyHash(s).fingerprint for s in GRID]
    assert terms.only(1) == Terms(GRID[1], CLASSES)
    assert (terms.spec, terms.hasher) == (GRID[0], terms.hashers[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flynn-spec": "[]"}, "expected 1 to 16 specs, got 0"),
        ({"flynn-spec": json.dumps([{**SPEC.to_dict(), "seed": i} for i in range(17)])}, "at most 16 specs, got 17"),
        ({"flynn-spec": json.dumps([SPEC.to_dict()] * 2)}, "expected different specs, got 1 of them again"),
        ({"flynn-spec": json.dumps([SPEC.to_dict(), {**SPEC.to_dict(), "n_features": 5}])}, "the same n_features"),
        ({"flynn-spec": json.dumps([SPEC.to_dict(), 3])}, "expected a mapping, got int"),
    ],
)
def test_hostile_lists_of_specs_are_refused(change: dict, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        Terms.from_config({**TERMS.to_config(), **change}, SPEC.n_features)


def test_one_wrong_fingerprint_of_several_is_noticed() -> None:
    terms = Terms(GRID, CLASSES)
    first, second = terms.to_config()["flynn-fingerprint"].split(" ")
    for announced, reason in (
        (f"{first} {'0' * 64}", "fingerprint: expected 0000"),
        (f"{second} {first}", "fingerprint: expected"),
        (first, "flynn-fingerprint: expected 2, one for each spec"),
        (f"{first} {second} {first}", "flynn-fingerprint: expected at most 129 characters"),
    ):
        with pytest.raises(PayloadError, match=reason):
            terms.agree_on_rows({"flynn-fingerprint": announced})


def test_a_refusal_does_not_repeat_all_of_a_long_value() -> None:
    config = SumsTerms(4, ("a",), True, 5).to_config() | {"flynn-min-examples": "x" * 10**6}
    with pytest.raises(PayloadError) as error:
        SumsTerms.from_config(config, n_features=4)
    assert len(str(error.value)) < 200


def test_terms_of_sums_make_the_round_trip() -> None:
    for by_class in (True, False):
        terms = SumsTerms(4, np.array(CLASSES), by_class, np.int64(7))
        assert SumsTerms.from_config(terms.to_config(), 4) == terms
        assert terms.n_rows == (3 if by_class else 1)
        assert terms.codes(["cedar", "ash"]).tolist() == [2, 0]
        with pytest.raises(DataError, match="1 of 2 labels are not in the class list"):
            terms.codes(["cedar", "oak"])


def test_the_sums_are_of_the_features_that_the_run_announces() -> None:
    terms = SumsTerms(4, CLASSES, True, 5, list("wxyz"))
    assert SumsTerms.from_config(terms.to_config(), 4) == terms
    assert announced_names(terms.to_config()) == announced_names(TERMS.to_config() | terms.to_config()) == tuple("wxyz")
    assert announced_names(TERMS.to_config()) is None
    for text in ("7", "[1]", "{", '"ab"', 5, "[" * 100_000):
        with pytest.raises(PayloadError, match=r"^flynn-feature-names: expected"):
            announced_names({"flynn-feature-names": text})
    with pytest.raises(PayloadError, match="feature_names: expected 4 strings"):
        SumsTerms.from_config(terms.to_config() | {"flynn-feature-names": '["a"]'}, 4)
