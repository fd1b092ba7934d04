"""Law of the run spec: a party reads exactly the announced values, or refuses them."""

from __future__ import annotations

import json
import pickle
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import ConfigError, PayloadError, SpecError
from flwr_flynn.federated.announced_specs import FINGERPRINTS, check_fingerprints
from flwr_flynn.federated.labels import meaning
from flwr_flynn.federated.protocol import Config, key
from flwr_flynn.federated.run_spec import RUN_ENTRIES, RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import _CHECKS, HashSpec
from flwr_flynn.privacy import LaplaceCounts
from tests.fakes import CLASSES, HASHER, LAPLACE, RUN, SHARE, SPEC
from tests.raising import raises

words = st.text(st.characters(blacklist_characters="\0"), max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)
GRID = [
    HashSpec(4, 24, 2, 3, seed, signed=True, n_waves=waves, wave_frequency=waves / 8)
    for seed, waves in ((1, 0), (2, 8))
]


def is_clear(label: str) -> bool:
    """True for a label that means something."""
    return meaning(label) is not None


def read(run: RunSpec, **changes: Any) -> RunSpec:
    entries = {
        **run.to_config(),
        **{f"flynn-{name.replace('_', '-')}": value for name, value in changes.items()},
    }
    return RunSpec.from_config(Config(entries, RUN_ENTRIES))


@given(
    st.one_of(
        st.lists(words.filter(is_clear), min_size=1, unique_by=meaning),
        st.lists(integers, min_size=1, unique_by=meaning),
    )
)
def test_classes_make_the_round_trip(classes):
    run = RunSpec(SPEC, classes)
    config = run.to_config()
    assert isinstance(config.pop("flynn-specs"), bytes)
    assert all(isinstance(value, str) and value.isascii() for value in config.values())
    assert read(run) == run == RunSpec(SPEC, np.array(classes))
    assert [type(label) for label in run.classes] == [type(label) for label in classes]


EXTREME = HashSpec(
    2, 8, 1, 2, seed=2**64 - 1, signed=True, center=(0.1, -1e300), scale=(5e-324, 2.0)
)


@pytest.mark.parametrize(
    ("run", "mode"),
    [
        (RUN, "plain"),
        (RunSpec(SPEC, CLASSES, LAPLACE), "noisy"),
        (RunSpec(SPEC, CLASSES, None, 256), "secure"),
        (RunSpec(SPEC, CLASSES, SHARE, 2), "secure"),
        (
            RunSpec(EXTREME, [0, 1], feature_names=np.array(["länge", "breite"])),
            "plain",
        ),
        (RunSpec(GRID, CLASSES), "plain"),
    ],
)
def test_every_run_makes_the_round_trip(run, mode):
    again = read(run)
    config = Config(run.to_config(), RUN_ENTRIES)
    assert again == run
    assert again.specs == run.specs
    assert run.mode == mode
    assert run.is_plain == (mode == "plain")
    assert run.is_secure == (mode == "secure")
    check_fingerprints(config, again.hashers)
    assert [hasher.fingerprint for hasher in again.hashers] == [
        FlyHash(s).fingerprint for s in run.specs
    ]
    assert run.spec == run.specs[0]
    assert run.hasher == run.hashers[0]
    assert run.only([0]).specs == run.specs[:1]


WRONG_SPECS: list[tuple[Any, str]] = [
    (None, "NoneType"),
    (SPEC.to_dict(), "dict"),
    (HASHER, "a FlyHash"),
    ([], "0"),
]
WRONG_SPECS += [
    (FlyHash.from_rows(HASHER.rows, 4, 3), "a FlyHash"),
    ([GRID[0]] * 2, "1 duplicates"),
]
WRONG_SPECS += [
    ([GRID[0], HashSpec(5, 10, 1, 1, 0)], "[4, 5]"),
    ([GRID[0], 3], "a int"),
]


@pytest.mark.parametrize(
    ("change", "field", "got"),
    [
        *(({"specs": specs}, "spec", got) for specs, got in WRONG_SPECS),
        ({"specs": GRID, "mechanism": SHARE, "bound": 2}, "spec", "2"),
        ({"mechanism": "clear"}, "mechanism", "str"),
        ({"mechanism": LaplaceCounts(1.0, hash_nnz=3, n_classes=4)}, "mechanism", "4"),
        ({"mechanism": LaplaceCounts(1.0, hash_nnz=5, n_classes=3)}, "mechanism", "5"),
        ({"feature_names": "abcd"}, "feature_names", "str"),
        ({"classes": []}, "classes", "nothing"),
    ],
)
def test_bad_runs_are_refused(change, field, got):
    with raises(ConfigError, field=field, got=got):
        RunSpec(**{"specs": SPEC, "classes": CLASSES, **change})


NO_MODES: list[Any] = [(SHARE, None, "mechanism"), (LAPLACE, 256, "mechanism")]
NO_MODES += [(None, bound, "bound") for bound in (0, 1, 3, 2**30, 2.0, True, "2")]


@pytest.mark.parametrize(("mechanism", "bound", "field"), NO_MODES)
def test_the_noise_of_a_mode_is_one_that_it_can_have(mechanism, bound, field):
    with raises(ConfigError, field=field):
        RunSpec(SPEC, CLASSES, mechanism, bound)


def test_specs_that_share_a_vector_send_it_once():
    center = tuple((np.arange(1, 401) / 7).tolist())
    one = HashSpec(400, 24, 2, 3, seed=1, signed=True, center=center)
    specs = [one, replace(one, seed=2), replace(one, seed=3, scale=center)]
    config = RunSpec(specs, CLASSES).to_config()
    values = json.loads(zlib.decompress(config["flynn-specs"]))  # type: ignore[arg-type]
    assert [spec["center"] for spec in values] == [list(center), {"as": 0}, {"as": 0}]
    assert values[2]["scale"] == list(center)
    assert RunSpec.from_config(Config(config, RUN_ENTRIES)).specs == tuple(specs)


def test_a_vector_that_specs_share_is_checked_and_held_once(
    monkeypatch,
):
    """So a short text of references takes neither time nor memory for each."""
    coded = HashSpec(
        400, 24, 2, 3, seed=1, coding="steps", n_codes=2, edges=((0.0,) * 8,) * 400
    )
    several = replace(coded, row_weights=(3,) * 400)
    specs = [replace(several, seed=seed) for seed in range(16)]
    assert len({id(spec.edges) for spec in specs}) == 1
    config = RunSpec(specs, CLASSES).to_config()
    calls = Counter[str]()
    for name, check in [*_CHECKS.items()]:

        def counted(*values: Any, name: str = name, check: Any = check) -> Any:
            calls[name] += 1
            return check(*values)

        monkeypatch.setitem(_CHECKS, name, counted)
    read = RunSpec.from_config(Config(config, RUN_ENTRIES)).specs
    assert read == tuple(specs)
    assert calls == {"edges": 1, "row_weights": 1}
    for name in calls:
        assert len({id(getattr(spec, name)) for spec in read}) == 1


def test_a_vector_is_checked_for_each_field_and_number_of_features():
    center = HashSpec(4, 24, 2, 3, seed=1, center=(-1.0,) * 4).center
    again = pickle.loads(pickle.dumps(replace(SPEC, center=center)))
    assert again.center == center
    with raises(SpecError, field="scale"):
        HashSpec(4, 24, 2, 3, seed=1, scale=center)
    with raises(SpecError, field="center"):
        HashSpec(5, 24, 2, 3, seed=1, center=center)


def deflated(text: str) -> bytes:
    return zlib.compress(text.encode())


def specs_of(*specs: object) -> bytes:
    return deflated(json.dumps(specs))


OWN = SPEC.to_dict()
NO_TEXTS = [
    b"[]",
    b"",
    deflated("{}")[:-1],
    zlib.compress(b"\xff"),
    deflated(" " * (2**26 + 1)),
]
NO_JSON = ["{", "[" * 100_000, "9" * 4353]
SPECS: list[tuple[Any, str, str]] = [
    *((text, "flynn-specs", f"{len(text)} bytes that are none") for text in NO_TEXTS),
    *(
        (deflated(text), "flynn-specs", f"{len(text)} characters that are none")
        for text in NO_JSON
    ),
    (deflated("{}"), "flynn-specs", "dict"),
    (deflated("[]"), "flynn-specs", "0"),
    (specs_of(*({**OWN, "seed": i} for i in range(17))), "flynn-specs", "17"),
    (specs_of(OWN, OWN), "spec", "1 duplicates"),
    (specs_of(OWN, {**OWN, "n_features": 5}), "spec", "[4, 5]"),
    (specs_of(OWN, 3), "spec", "int"),
    (specs_of(3, {**OWN, "center": {"as": 0}}), "spec", "int"),
]
LISTS = [
    "[" + "[]," * 5_000_000 + "[]]",
    "[" + "{}," * 5_000_000 + "{}]",
    '[{"center":[' + "[{}]," * 3_000_000 + "{}]}]",
]


@pytest.mark.parametrize("text", LISTS, ids=["lists", "mappings", "both"])
@pytest.mark.parametrize("name", ["specs", "classes", "feature_names"])
def test_too_many_lists_are_refused_before_they_are_read(name, text, monkeypatch):
    value: Any = text
    if name == "specs":
        value = deflated(text)
    loads = json.loads

    def watched(text: str) -> Any:
        assert len(text) < 10**6
        return loads(text)

    monkeypatch.setattr(json, "loads", watched)
    with raises(PayloadError, field=key(name), expected=f"at most {2**20} lists"):
        read(RUN, **{name: value})


DEEP = (
    "feature_names",
    "[" * 100_000,
    "flynn-feature-names",
    "100000 characters that are none",
)


@pytest.mark.parametrize(
    ("name", "value", "field", "got"), [*(("specs", *row) for row in SPECS), DEEP]
)
def test_hostile_requests_are_refused(name, value, field, got):
    with raises(PayloadError, field=field, got=got) as error:
        read(RUN, **{name: value})
    assert len(str(error.value)) < 500


PRINTS = [FlyHash(spec).fingerprint for spec in GRID]


@pytest.mark.parametrize(
    "announced",
    [
        "0" * 64,
        PRINTS[:1],
        PRINTS[::-1],
        [PRINTS[0], "0" * 64],
        [*PRINTS, PRINTS[0]],
        3,
        None,
    ],
)
def test_a_hash_drawn_otherwise_at_the_server_is_noticed(announced):
    if isinstance(announced, list):
        text = " ".join(announced)
    else:
        text = announced
    hashers = RunSpec(GRID, CLASSES).hashers

    def read() -> None:
        config = Config({"flynn-fingerprints": text}, {"fingerprints": FINGERPRINTS})
        check_fingerprints(config, hashers)

    with pytest.raises(PayloadError) as error:
        read()
    assert error.value.field in ("fingerprint", "flynn-fingerprints")


def test_the_digest_is_of_the_classes_and_features_in_their_order():
    assert RUN.digest() == RunSpec(SPEC, list(CLASSES)).digest()
    named = [
        RunSpec(SPEC, CLASSES, feature_names=list(names)).digest()
        for names in ("abcd", "abcd", "bacd")
    ]
    assert named[0] == named[1]
    # Columns are found by their names: others make other counts.
    assert len({*named, RUN.digest()}) == 3
    assert RUN.digest() != RunSpec(SPEC, CLASSES[::-1]).digest()
