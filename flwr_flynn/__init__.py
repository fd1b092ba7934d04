"""FlyNN: nearest-neighbour classification in one federated round, as a Flower plugin.

Ram & Sinha, "Federated Nearest Neighbor Classification with a Colony of Fruit-Flies",
AAAI 2022. Every party hashes its samples with the same fruit-fly hash and counts, per
class, which bits are active; the server adds the counts. The sum is the model of the
pooled data, bit for bit.

>>> import numpy as np
>>> from flwr_flynn import FlyNNClassifier
>>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
>>> FlyNNClassifier(seed=1).fit(X, ["a", "a", "b", "b"]).predict([[0.2, 0.8]])
array(['a'], dtype='<U1')

Names are imported when first used: `import flwr_flynn` loads neither Flower nor
scikit-learn.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_flynn.errors import AggregationError, FlyNNError
    from flwr_flynn.flower import message
    from flwr_flynn.flower.client import FlyNNClient
    from flwr_flynn.flower.strategy import FlyNNStrategy
    from flwr_flynn.hashing.flyhash import FlyHash
    from flwr_flynn.hashing.spec import HashSpec
    from flwr_flynn.model.candidates import HashPlan
    from flwr_flynn.model.classifier import FlyNNClassifier
    from flwr_flynn.model.counts import ClassCounts

__version__ = "0.9.0"  # a server and its parties need the same minor version

__all__ = [
    "AggregationError",
    "ClassCounts",
    "FlyHash",
    "FlyNNClassifier",
    "FlyNNClient",
    "FlyNNError",
    "FlyNNStrategy",
    "HashPlan",
    "HashSpec",
    "message",
]

_HOMES = {
    "AggregationError": "errors",
    "ClassCounts": "model.counts",
    "FlyHash": "hashing.flyhash",
    "FlyNNClassifier": "model.classifier",
    "FlyNNClient": "flower.client",
    "FlyNNError": "errors",
    "FlyNNStrategy": "flower.strategy",
    "HashPlan": "model.candidates",
    "HashSpec": "hashing.spec",
}


def __getattr__(name: str) -> Any:
    if name == "message":
        return import_module(f"{__name__}.message")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
