"""Records of the Message API are those of Flower, and are read as they were."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common import ndarrays_to_parameters
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.flower import records
from tests.raising import raises

ARRAYS = st.lists(
    hnp.arrays(
        st.sampled_from([np.uint8, np.int32, np.int64, np.float64]),
        hnp.array_shapes(min_dims=1, min_side=0),
    ),
    max_size=3,
)


@given(ARRAYS)
def test_records_are_those_that_flower_makes(arrays):
    tensors = codec.write_tensors(arrays)
    assert tensors == ndarrays_to_parameters(arrays).tensors
    made = records.record(tensors)
    assert made == ArrayRecord(arrays)
    assert records.tensors_of(RecordDict({"arrays": made})) == tensors


NAMES = st.sampled_from(
    ["accuracy", "flynn-party", "flynn-seconds", "flynn-statistic", "mine"]
)
VALUES = (
    st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.integers(-(2**62), 2**62)
    | st.booleans()
)


@given(ARRAYS, st.integers(0, 2**62), st.dictionaries(NAMES, VALUES))
def test_a_reply_is_read_as_it_was_given(arrays, n_examples, metrics):
    tensors = codec.write_tensors(arrays)
    reply = records.reply_of("7", records.answer_content(tensors, n_examples, metrics))
    found = reply.cid, reply.tensors, reply.n_examples, reply.metrics, reply.fault
    assert found == ("7", tensors, n_examples, metrics, "")
    assert [type(reply.metrics[key]) for key in metrics] == [
        *map(type, metrics.values())
    ]


def test_a_request_without_counts_has_no_arrays():
    content = records.request([], {"flynn-phase": "counts", "lr": 0.5})
    assert list(content) == ["config"]
    assert records.config_of(content) == {"flynn-phase": "counts", "lr": 0.5}
    assert records.tensors_of(content) == []
    assert records.config_of(RecordDict({"config": ArrayRecord()})) == {}


def test_arrays_are_read_in_the_order_of_their_numbers():
    arrays = [np.full(1, i) for i in range(12)]
    made = records.record(codec.write_tensors(arrays))
    turned = ArrayRecord({key: made[key] for key in sorted(made)})
    assert list(turned) != list(made)
    read = codec.read_tensors(
        records.tensors_of(RecordDict({"arrays": turned, "config": ConfigRecord()}))
    )
    assert [int(array[0]) for array in read] == list(range(12))
    del turned["3"]
    with raises(PayloadError, field="arrays"):
        records.tensors_of(RecordDict({"arrays": turned}))
