"""What the messages of Flower's Message API hold: records <-> arrays as bytes, numbers, and all else.

A request has a ConfigRecord "config", and an ArrayRecord "arrays" where counts travel. A reply has "arrays"; a
MetricRecord "metrics" of numbers, with the "num-examples" that Flower's own strategies ask for; and a "config" of what
is no number. What else a message holds is not looked at.

>>> content = answer([], 3, {"accuracy": 0.5, "flynn-party": "Basel"})
>>> content["metrics"]["num-examples"], content["metrics"]["accuracy"], content["config"]["flynn-party"]
(3, 0.5, 'Basel')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.roster import Reply

ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"
EXAMPLES = "num-examples"
NUMPY = "numpy.ndarray"


def request(tensors: Sequence[bytes], config: Mapping[str, Any]) -> RecordDict:
    """What a party is sent."""
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    if tensors:
        content[ARRAYS] = record(tensors)
    return content


def answer(tensors: Sequence[bytes], n_examples: int, metrics: Mapping[str, Any]) -> RecordDict:
    """What a party sends back."""
    ours, others = split(metrics)
    numbers = MetricRecord({EXAMPLES: n_examples, **ours})
    return RecordDict({ARRAYS: record(tensors), METRICS: numbers, CONFIG: ConfigRecord(others)})


def config_of(content: RecordDict) -> dict[str, Any]:
    """The entries of a message that are not numbers, or of a request; none if it has no such record."""
    found = content.get(CONFIG)
    return dict(found) if isinstance(found, ConfigRecord) else {}


def reply_of(cid: str, content: RecordDict) -> Reply:
    """A party's reply, at fault if its arrays are not what they say."""
    found = content.get(METRICS)
    metrics: dict[str, Any] = dict(found) if isinstance(found, MetricRecord) else {}
    n_examples: Any = metrics.pop(EXAMPLES, None)
    metrics |= config_of(content)
    try:
        return Reply(cid, tensors_of(content), n_examples, metrics)
    except PayloadError as error:
        return Reply(cid, (), n_examples, metrics, fault=str(error))


def tensors_of(content: RecordDict) -> list[bytes]:
    """The arrays of a message as bytes, none if it has none.

    Raises
    ------
    PayloadError
        Not the bytes of plain arrays, or of others than their record describes.
    """
    found = content.get(ARRAYS)
    if not isinstance(found, ArrayRecord):
        return []
    if set(found) != {str(place) for place in range(len(found))}:
        raise PayloadError("arrays: expected them to be numbered from 0, got other keys")
    arrays = [found[str(place)] for place in range(len(found))]
    # Array.numpy() would allocate whatever a header declares.
    views = codec.read_tensors([array.data for array in arrays])
    for place, (array, view) in enumerate(zip(arrays, views, strict=True)):
        if array.stype != NUMPY:
            raise PayloadError(f"array {place + 1}: expected stype {NUMPY}, got another")
        if array.dtype != str(view.dtype) or tuple(array.shape) != view.shape:
            raise PayloadError(f"array {place + 1}: expected the dtype and shape of its bytes, got others")
    return [array.data for array in arrays]


def record(tensors: Sequence[bytes]) -> ArrayRecord:
    """The same as `ArrayRecord(list of arrays)`, without writing them once more."""
    views = codec.read_tensors(tensors)
    arrays = [Array(str(view.dtype), view.shape, NUMPY, data) for view, data in zip(views, tensors, strict=True)]
    return ArrayRecord({str(place): array for place, array in enumerate(arrays)})


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers, for a MetricRecord, and the rest, for a ConfigRecord."""
    numbers = {key: value for key, value in metrics.items() if type(value) in (int, float)}
    return numbers, {key: value for key, value in metrics.items() if key not in numbers}
