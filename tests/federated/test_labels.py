"""Class lists and labels: coded whatever their type, or refused without showing one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.labels import checked_classes, checked_names, codebook, codes_of
from tests.fakes import CLASSES
from tests.raising import raises


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
    assert codes_of(CLASSES, labels).tolist() == [2, 0, 0]


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "object", ">i4", "U2"])
def test_integers_are_coded_whatever_their_type(dtype: str) -> None:
    codes = codes_of([30, 10, 20], np.array([10, 30, 20]).astype(dtype))
    assert codes.dtype == np.int64
    assert codes.tolist() == [1, 0, 2]


def test_a_text_in_a_file_and_an_integer_in_the_class_list_are_one_label() -> None:
    assert codes_of(("0", "1"), [1, 0]).tolist() == [1, 0]
    assert codes_of((0, 1), ["1", "0.0"]).tolist() == [1, 0]
    assert codebook(("01", "1"))[1] == 1
    with pytest.raises(DataError):
        codes_of((1,), ["01"])


def test_no_labels_have_no_codes() -> None:
    assert codes_of(CLASSES, []).shape == (0,)


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        (["ash", "SECRET", "SECRET"], "2 of 3"),
        ([1, 2], "2 of 2"),
        ([float("nan")], "1 of 1"),
        ([["ash"]], "2 dimensions"),
        (None, "0 dimensions"),
        (np.array([{}], object), "unhashable objects"),
    ],
)
def test_labels_outside_the_class_list_are_counted_and_not_shown(labels: object, got: str) -> None:
    with raises(DataError, field="y", got=got) as error:
        codes_of(CLASSES, labels)  # type: ignore[arg-type]
    assert "SECRET" not in str(error.value)


@pytest.mark.parametrize(
    ("classes", "got"),
    [
        ([], "nothing"),
        ("ash", "str"),
        (7, "int"),
        ({"ash", "birch"}, "set"),
        ({"ash": 0}, "dict"),
        (["a", 1], "int, str"),
        ([True, False], "bool"),
        ([1.0, 2.0], "float"),
        ([None], "NoneType"),
        ([["a"], ["b"]], "list"),
        (["a", "b", "a"], "1 duplicates"),
        ([2**63], "one outside"),
        (["a\0"], "one with NUL"),
        (["a" * 1025], "one of 1025"),
    ],
)
def test_bad_class_lists_are_refused(classes: object, got: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_classes(classes)
    assert (error.value.field, error.value.got) == ("classes", got)


def test_class_lists_keep_their_order_and_become_python_s_types() -> None:
    for classes in (["b", "a"], [2, -1]):
        checked = checked_classes(np.array(classes))
        assert checked == tuple(classes)
        assert [type(label) for label in checked] == [type(label) for label in classes]


@pytest.mark.parametrize(
    ("names", "got"), [("abcd", "str"), (4, "int"), (["a"], "1 entries"), ([1, 2, 3, 4], "4 entries")]
)
def test_bad_names_of_features_are_refused(names: Any, got: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked_names(names, 4)
    assert (error.value.field, error.value.got) == ("feature_names", got)
    assert checked_names(np.array(["a", "b"]), 2) == ("a", "b")
