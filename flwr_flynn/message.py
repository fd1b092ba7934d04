"""FlyNN over Flower's Message API; `flwr_flynn.flower.message` has the code."""

from flwr_flynn.flower.message import FlyNNStrategy, evaluate, train

__all__ = ["FlyNNStrategy", "evaluate", "train"]
