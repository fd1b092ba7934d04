"""Conversion of Flower's records and results to arrays, numbers and entries, and back.

A request has a ConfigRecord "config", and an ArrayRecord "arrays" where it sends
counts. A reply has "arrays"; a MetricRecord "metrics" of numbers, with the
"num-examples" that Flower's strategies expect; and a "config" of the other entries.
Further records of a message are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid

from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.protocol import (
    STATISTIC,
    Answer,
    Entries,
    Reply,
    Scalars,
)

# Names that moved between versions of Flower, see docs/reference/versions.md.
try:
    from flwr.compat.common import recorddict_compat as recorddict_compat
    from flwr.compat.server.typing import Workflow as Workflow
except ImportError:  # before 1.32
    from flwr.common import (  # type: ignore[no-redef]
        recorddict_compat as recorddict_compat,
    )
    from flwr.server.typing import (  # type: ignore[import-not-found, no-redef]
        Workflow as Workflow,
    )


class GridProxy:
    """A grid that passes on all that a subclass does not change."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def is_simulated(grid: object) -> bool:
    """True for the grid of a simulation, whose module moved."""
    return type(grid).__name__ == "InMemoryGrid"


ARRAYS = "arrays"
METRICS = "metrics"
CONFIG = "config"
EXAMPLES = "num-examples"
NUMPY = "numpy.ndarray"


def request(tensors: Sequence[bytes], config: Entries) -> RecordDict:
    """Content of a message to a party."""
    content = RecordDict({CONFIG: ConfigRecord(dict(config))})
    if tensors:
        content[ARRAYS] = record(tensors)
    return content


def answer_content(
    tensors: Sequence[bytes], n_examples: int, metrics: Entries
) -> RecordDict:
    """Content of a party's reply."""
    numbers = {
        name: value for name, value in metrics.items() if type(value) in (int, float)
    }
    others = {name: value for name, value in metrics.items() if name not in numbers}
    figures = MetricRecord({EXAMPLES: n_examples, **numbers})
    return RecordDict(
        {ARRAYS: record(tensors), METRICS: figures, CONFIG: ConfigRecord(others)}
    )


def config_of(content: RecordDict) -> dict[str, Any]:
    """The entries of a request, or those of a reply that are no numbers.

    Without such a record there are none.
    """
    config = content.get(CONFIG)
    if isinstance(config, ConfigRecord):
        return dict(config)
    return {}


def reply_of_evaluation(cid: str, n_examples: int, metrics: Entries) -> Reply:
    """A party's reply on the evaluate channel; a malformed statistic is a fault."""
    others = {name: value for name, value in metrics.items() if name != STATISTIC}
    statistic = metrics.get(STATISTIC, b"")
    try:
        return Reply(cid, codec.split(statistic), n_examples, others)
    except PayloadError as error:
        return Reply(cid, (), n_examples, others, fault=str(error))


def metrics_of(answer: Answer) -> Scalars:
    """Metrics of an answer on the evaluate channel, which carry its statistic."""
    if not answer.arrays:
        return dict(answer.metrics)
    return {**answer.metrics, STATISTIC: codec.join(codec.write_tensors(answer.arrays))}


def reply_of(cid: str, content: RecordDict) -> Reply:
    """A party's reply, with a fault if its arrays do not match their description."""
    numbers = content.get(METRICS)
    metrics: dict[str, Any] = {}
    if isinstance(numbers, MetricRecord):
        metrics |= numbers
    n_examples = metrics.pop(EXAMPLES, None)
    metrics |= config_of(content)
    try:
        return Reply(cid, tensors_of(content), n_examples, metrics)
    except PayloadError as error:
        return Reply(cid, (), n_examples, metrics, fault=str(error))


def tensors_of(content: RecordDict) -> list[bytes]:
    """The arrays of a message as bytes; [] without arrays."""
    by_index = content.get(ARRAYS)
    if not isinstance(by_index, ArrayRecord):
        return []
    keys = [str(index) for index in range(len(by_index))]
    if set(by_index) != set(keys):
        raise PayloadError(
            "arrays", "keys 0, 1, ... as strings", f"{len(keys)} keys that are not"
        )
    arrays = [by_index[key] for key in keys]
    # Array.numpy() would allocate the size that a header declares.
    views = codec.read_tensors([array.data for array in arrays])
    for index, (array, view) in enumerate(zip(arrays, views, strict=True)):
        if array.stype != NUMPY:
            raise PayloadError(
                f"array {index + 1}", f"stype {NUMPY}", str(array.stype)[:40]
            )
        if array.dtype != str(view.dtype) or tuple(array.shape) != view.shape:
            got = f"{array.dtype} {tuple(array.shape)}"[:80]
            raise PayloadError(
                f"array {index + 1}", f"{view.dtype} {view.shape} as its bytes are", got
            )
    return [array.data for array in arrays]


def record(tensors: Sequence[bytes]) -> ArrayRecord:
    """The record `ArrayRecord(list of arrays)`, made without encoding the arrays again."""
    views = codec.read_tensors(tensors)
    arrays = [
        Array(str(view.dtype), view.shape, NUMPY, data)
        for view, data in zip(views, tensors, strict=True)
    ]
    return ArrayRecord({str(index): array for index, array in enumerate(arrays)})
