"""The layout of an answer: its arrays come back as they were or are refused.

Vectors add like their integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.reply_fields import (
    NUMBERS,
    PLAIN,
    Field,
    of_arrays,
    to_arrays,
)
from flwr_flynn.federated.secure_bound import LARGEST_BOUND, room
from flwr_flynn.federated.secure_vector import (
    largest_sum,
    n_entries,
    of_vector,
    to_vector,
)
from tests.raising import raises

# ---- messages

PRINT = 32 * "ab"
FIELDS = [
    Field("loss", (1,), 2**40, PLAIN),
    Field("sizes", (3,), np.array([5, 0, 9]), PLAIN),
    Field("matrix", (2, 3), 100, PLAIN),
    Field("counts", (2, 4), 2**33, fingerprint=PRINT),
    Field("gradient", (2, 4), 7, is_signed=True),
    Field("tables", (2, 3), np.array([5, 0, 9]), NUMBERS),
    Field("noisy", (1, 2), 3, PLAIN, True, ("|i1", "<i2")),
]
PARTS = [
    np.array(each)
    for each in (
        [2**40],
        [5, 0, 8],
        [[0, 1, 2], [3, 4, 5]],
        [[0, 1, 0, 2**33], [0, 0, 0, 0]],
    )
]
PARTS += [
    np.array(each)
    for each in ([[-7, 0, 7, 1], [0, 0, 0, -1]], [[5, 0, 9], [0, 0, 1]], [[-3, 3]])
]


def test_bounds_of_single_classes_hold():
    # The second class has no samples.
    parts = [*PARTS[:1], np.array([5, 1, 9]), *PARTS[2:]]
    with raises(
        PayloadError,
        field="sizes",
        expected="entries from 0 to 9",
        got="an entry outside",
    ):
        of_arrays(to_arrays(FIELDS, parts), FIELDS)


@pytest.mark.parametrize("index", range(7))
def test_nothing_is_unpacked_before_all_arrays_have_their_form(index, monkeypatch):
    arrays = to_arrays(FIELDS, PARTS)
    monkeypatch.setattr(Field, "unpacked", lambda *_: pytest.fail("unpacked"))
    spoiled: list[Any] = [
        arrays[index].astype(float),
        arrays[index][:, None],
        arrays[index].tolist(),
        None,
    ]
    if index < 2:
        spoiled.append(arrays[index][:-1])
    for array in spoiled:
        with pytest.raises(PayloadError):
            of_arrays([*arrays[:index], array, *arrays[index + 1 :]], FIELDS)
    for other in (arrays[:index], [*arrays, arrays[index]], None):
        with raises(PayloadError, field="message"):
            of_arrays(other, FIELDS)  # type: ignore[arg-type]


def test_a_capped_field_keeps_its_smaller_bounds():
    assert FIELDS[0].capped(7).most == 7
    assert FIELDS[1].capped(7).most.tolist() == [5, 0, 7]  # type: ignore[union-attr]


# ---- secure sums


@st.composite
def several(draw: st.DrawFn) -> tuple[list[list[np.ndarray]], list[Field], int]:
    """The integers of some parties, and what is known of them."""
    bound = 2 ** draw(st.integers(1, 29))
    n_parties = draw(st.integers(1, min(room(bound), 5)))
    large = st.sampled_from(
        [bound, bound + 1, min(bound**2, largest_sum(bound)), largest_sum(bound)]
    )
    fields = st.builds(
        Field,
        st.just("sums"),
        st.sampled_from([(2,), (1, 3), (0, 2)]),
        large,
        is_signed=st.just(True),
    )
    layout = draw(st.lists(fields, min_size=1, max_size=4))
    parties = []
    for _ in range(n_parties):
        parts = []
        for field in layout:
            most = field.largest
            numbers = draw(
                st.lists(
                    st.integers(-most, most), min_size=field.size, max_size=field.size
                )
            )
            parts.append(np.array(numbers, np.int64).reshape(field.shape))
        parties.append(parts)
    return parties, layout, bound


@given(several())
def test_the_sum_of_vectors_is_the_vector_of_sums(
    given,
):
    parties, layout, bound = given
    vectors = [to_vector(layout, parts, bound) for parts in parties]
    assert {len(vector) for vector in vectors} == {n_entries(layout, bound)}
    assert all(np.abs(vector).max(initial=0) <= bound for vector in vectors)
    found = of_vector(layout, np.sum(vectors, axis=0), bound, len(parties))
    for i, (field, part) in enumerate(zip(layout, found, strict=True)):
        exact = sum(parts[i].astype(object) for parts in parties)
        assert part.shape == field.shape
        assert part.tolist() == exact.tolist()
        assert part.dtype == np.int64


def test_integers_beyond_what_was_agreed_do_not_leave():
    for most, number in ((8, 9), (100, -101)):
        with raises(PayloadError, field="secure sum"):
            to_vector(
                [Field("sums", (1,), most, is_signed=True)], [np.array([number])], 8
            )
    fields = [Field("sums", (1,), 100)]
    # These are sums of more than three parties, and a sum below 0.
    for digits in ([24, 24, 24], [-1, 0, 0]):
        with raises(PayloadError, field="secure sum"):
            of_vector(fields, np.array(digits), 8, 3)


def test_sums_within_int64_have_room_for_all_parties():
    for bound in (2, 2048, LARGEST_BOUND):
        assert largest_sum(bound) * room(bound) < 2**62
