"""Exact sums through Flower's SecAgg+; `flwr_flynn.flower.secagg` has the code."""

from flwr_flynn.flower.secagg import mod, workflow

__all__ = ["mod", "workflow"]
