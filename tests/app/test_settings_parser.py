"""Tables of settings: groups, bounds, needs, and the forms in which files have them."""

from __future__ import annotations

from dataclasses import dataclass

from flwr_flynn.app.settings_parser import (
    Settings,
    as_setting,
    entries,
    setting,
    whole_numbers,
)
from flwr_flynn.errors import ConfigError, SpecError
from tests.raising import raises


@dataclass(frozen=True)
class Sizes(Settings):
    source = "example"

    hash_dim: int = setting(8, "rows", low=1, high=100)
    exact: bool = setting(False, "count exactly")
    share: float = setting(0.5, "a share", above=0, below=1)


@dataclass(frozen=True)
class Names(Settings):
    source = "example"

    title: str = setting("", "a title", needs=("exact",))
    mode: str = setting("fast", "a mode", choices=("fast", "slow"))


@dataclass(frozen=True)
class Example(Names, Sizes):
    foreign = frozenset({"theirs"})


def test_groups_are_the_classes_that_define_a_setting():
    groups = {"sizes": ["hash_dim", "exact", "share"], "names": ["title", "mode"]}
    assert [(row.group, row.name) for row in Example.rows()] == [
        (g, name) for g in groups for name in groups[g]
    ]


def test_all_faults_are_refused_at_once():
    faulty = {
        "hash-dim": 0,
        "exact": 2,
        "mode": "odd",
        "share": 0.5,
        "theirs": 1,
        "ours": 1,
        "more": 2,
    }
    with raises(ConfigError, field="example more") as caught:
        Example.parse(faulty)
    keys = [
        text.split(":")[0]
        for text in str(caught.value).split("; ")
        if text.startswith("example ")
    ]
    assert keys == [
        "example more, ours",
        "example hash-dim",
        "example exact",
        "example mode",
    ]


def test_an_error_of_a_value_becomes_one_of_the_setting():
    error = as_setting(SpecError("row_nnz", "an integer of at most 4", 9), "run-config")
    assert (type(error), error.field, error.got) == (
        ConfigError,
        "run-config row-nnz",
        "9",
    )
    assert as_setting(SpecError("no spec"), "run-config").field is None
    sentence = as_setting(
        SpecError("row_nnz", text="too many columns for a row"), "run-config"
    )
    assert (sentence.field, str(sentence)) == (
        "run-config row-nnz",
        "run-config too many columns for a row",
    )


def test_whole_numbers_are_those_that_python_prints():
    assert whole_numbers(["3", "-1"]) == [3, -1]
    assert all(whole_numbers([text, "1"]) is None for text in ("01", "1_0", "1.0", ""))


def test_entries_of_a_text():
    assert entries("f", "a, b,", (str,)) == ["a", "b", ""]
    assert entries("f", '["a, b", "c"]', (str,)) == ["a, b", "c"]
    with raises(ConfigError, field="f", expected="a JSON list of strings"):
        entries("f", "[1]", (str,))
