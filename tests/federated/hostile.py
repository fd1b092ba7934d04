"""Replies and requests that a phase must refuse, by the names of its cases.

The cases themselves are in `registry`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flwr_flynn.federated import codec
from flwr_flynn.federated.compression import pack_signed
from flwr_flynn.federated.protocol import REFUSED, Reply
from flwr_flynn.federated.reply_fields import Sizes, of_arrays, to_arrays
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.gram import LARGEST_WEIGHT
from flwr_flynn.model.metrics import N_SUMS
from tests.federated.runs import GRID, NAMES, X, Y

Spoil = Callable[[Request[Any], Reply], Reply]
Change = Callable[[list[Any]], Sequence[Any]]

# ---- replies


def integers(change: Change) -> Spoil:
    """Put other integers into the fields of a reply."""

    def spoil(request: Request[Any], reply: Reply) -> Reply:
        fields = request.fields(Sizes(reply.n_examples, reply.n_examples))
        parts = of_arrays(codec.read_tensors(reply.tensors), fields)
        changed = change([part.copy() for part in parts])
        return replace(reply, tensors=codec.write_tensors(to_arrays(fields, changed)))

    return spoil


def plus(index: int, *entries: tuple[int, int]) -> Spoil:
    """Add numbers to some integers of a field, each by its index."""

    def change(parts: list[Any]) -> list[Any]:
        for place, value in entries:
            parts[index].flat[place] += value
        return parts

    return integers(change)


def filled(index: int, times: int) -> Spoil:
    """Make all integers of a field so many times the number of samples."""

    def change(parts: list[Any]) -> list[Any]:
        n_samples = parts[0].sum()
        parts[index] = 0 * parts[index] + times * n_samples
        return parts

    return integers(change)


def counting(n: int, *parts: ClassCounts) -> Spoil:
    """Put other counts into a reply, and their number of samples."""
    return lambda _, reply: replace(
        reply, tensors=codec.write_tensors(codec.encode(*parts)), n_examples=n
    )


def counted(spec: HashSpec, n: int = 10, codes: Any = Y) -> ClassCounts:
    """Counts of some samples."""
    return ClassCounts.from_data(FlyHash(spec), X[:n], codes[:n], 3)


def histograms_of(n: int) -> Spoil:
    """Put the histograms of so many samples into a reply of the columns."""
    histograms = ColumnHistograms.from_data(
        X[100 - n : 100], Y[100 - n : 100].astype(np.int64), 3
    )

    def spoil(request: Request[Any], reply: Reply) -> Reply:
        arrays = to_arrays(request.fields(Sizes(n, n)), request.parts(histograms))
        return replace(reply, tensors=codec.write_tensors(arrays), n_examples=n)

    return spoil


def one_less(parts: list[Any]) -> list[Any]:
    """A sample less in the confusion matrix, and no second one."""
    parts[0].flat[0] -= 1
    parts[1][:] = 0
    return parts


def without_row(parts: list[Any]) -> list[Any]:
    """No probabilities of a class for its own samples."""
    parts[3][3] = 0
    return parts


def longer(*indices: int) -> Spoil:
    """Add a zero at the end of some fields of open length."""

    def change(parts: list[Any]) -> list[Any]:
        for index in indices:
            parts[index] = np.append(parts[index], 0)
        return parts

    return integers(change)


ANY: dict[str, tuple[str, Spoil]] = {
    "junk": (
        "refused: array 1: ",
        lambda _, reply: replace(reply, tensors=[b"junk", *reply.tensors[1:]]),
    ),
    "a refusal": (
        "declined: no",
        lambda _, reply: replace(reply, metrics={**reply.metrics, REFUSED: "no"}),
    ),
    "a fault of form": (
        "refused: statistic: no",
        lambda _, reply: replace(reply, fault="statistic: no"),
    ),
}
"""Reasons, and changes of a reply of any phase."""

REPLIES: dict[str, dict[str, tuple[str, Spoil]]] = {
    "columns": {
        "more counts than cells": ("refused: histograms: ", longer(2)),
        "a cell more": ("refused: histograms: ", longer(1, 2)),
        "a count more": ("refused: histograms: ", plus(2, (0, 1))),
        "a count moved to a class of others": (
            "refused: histograms: ",
            plus(2, (0, 1), (-1, -1)),
        ),
        "a cell beyond": ("refused: histograms: ", plus(1, (-1, 1 << KEY_BITS))),
        "more cells than values": (
            "refused: numbers: ",
            integers(lambda parts: [parts[0], *[np.zeros(999, int)] * 2, parts[3]]),
        ),
        "too many samples": ("refused: histograms: ", histograms_of(90)),
    },
    "counts": {
        "another order": (
            "refused: fingerprint: ",
            counting(10, *map(counted, GRID[::-1])),
        ),
        "other samples": (
            "refused: counts: ",
            counting(
                10,
                counted(GRID[0], codes=np.full(10, 0)),
                counted(GRID[1], codes=np.full(10, 1)),
            ),
        ),
        "too many samples": (
            "refused: counts: ",
            counting(60, *(counted(spec, 60) for spec in GRID)),
        ),
    },
    "selection": {
        "fewer left out than correct": ("refused: correct: ", filled(0, 0)),
    },
    "calibration": {
        "probabilities of another sample": (
            "refused: probabilities: ",
            plus(2, (0, 2**21)),
        ),
        "products above the probabilities": (
            "refused: probabilities: ",
            filled(3, 2**19),
        ),
        "probabilities of nobody": ("refused: probabilities: ", filled(2, 0)),
    },
    "evaluation": {
        "another number of samples": (
            "refused: confusion matrix: ",
            integers(one_less),
        ),
        "too many samples": (
            "refused: confusion matrix: ",
            lambda _, reply: replace(reply, n_examples=2**48 + 1),
        ),
        "other samples in the second": (
            "refused: confusion matrix: ",
            plus(1, (0, 1), (4, -1)),
        ),
        "a score less of a class": ("refused: scores: ", integers(without_row)),
        "sums of another number": ("refused: sums of scores: ", plus(4, (0, -1))),
        "more right than in the matrix": (
            "refused: sums of scores: ",
            plus(4, (1, -1)),
        ),
        "probabilities of another sum": (
            "refused: sums of scores: ",
            plus(4, (N_SUMS, 2**22)),
        ),
        "more right than without the site": (
            "refused: sums of scores: ",
            plus(6, (1, 99)),
        ),
        "other samples alone": ("refused: ", plus(8, (0, 1))),
        "other samples paired": ("refused: sums of scores: ", plus(2, (0, 1))),
    },
}

# ---- requests


class Row(NamedTuple):
    """A request that a party refuses.

    Parameters
    ----------
    start : str
        Start of the refusal.
    entries : dict
        Changed entries of the config.
    change : callable, optional
        Change of the arrays.
    """

    start: str
    entries: dict[str, Any]
    change: Change | None = None


def spoiled(start: str, change: Change) -> Row:
    """A request that is refused for its arrays."""
    return Row(start, {}, change)


BASIS = Basis.of_columns(ColumnHistograms.from_data(X, Y.astype(np.int64), 3))
"""Basis of the linear part in the requests that are changed."""


def weights(value: int, n_terms: int = BASIS.n_terms) -> Change:
    """Put other weights of the linear part behind the counts of a model."""
    table = np.zeros((n_terms, 3), np.int64)
    table[1, 1] = value
    return lambda arrays: [*arrays[:-1], pack_signed(table)]


_ENDLESS = "[" + " " * 10**6 + "1, 1, 1]"

REQUESTS: dict[str, dict[str, Row]] = {
    "selection": {
        "many candidates": Row(
            "flynn-candidates",
            {"flynn-candidates": json.dumps([[["balanced", 0.5]] * 65] * 2)},
        ),
        "counts of one spec": spoiled("message", lambda arrays: arrays[:2]),
        "counts in another order": spoiled(
            "fingerprint", lambda arrays: [*arrays[2:], *arrays[:2]]
        ),
    },
    "calibration with a linear part": {
        "no arrays": spoiled("weights", lambda _: []),
        "weights of one fold": spoiled("weights", lambda arrays: arrays[-1:]),
        "biases of one fold": Row("flynn-linear", {"flynn-linear": "[1, 2, 3]"}),
        "fewer counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1][:2], *arrays[2:]]
        ),
        "two specs": Row("message", RunSpec(GRID, NAMES).to_config()),
        "weights too large": spoiled("counts", weights(LARGEST_WEIGHT + 1)),
    },
    "evaluation": {
        "a share of no linear part": Row(
            "config: linear", {"flynn-calibration": "[9, 0, 0, 0]"}
        ),
    },
    "evaluation with a linear part": {
        "no arrays": spoiled("weights", lambda _: []),
        "no weights": spoiled("counts", lambda arrays: arrays[:-1]),
        "fewer counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1][:2], *arrays[2:]]
        ),
        "damaged counts": spoiled(
            "counts", lambda arrays: [arrays[0], arrays[1] // 2, *arrays[2:]]
        ),
        "counts of another hash": spoiled(
            "fingerprint", lambda arrays: [arrays[0] ^ 1, *arrays[1:]]
        ),
        "two specs": Row("message", RunSpec(GRID, NAMES).to_config()),
        "weights of a term less": spoiled("counts", weights(1, BASIS.n_terms - 1)),
        "weights too large": spoiled("counts", weights(LARGEST_WEIGHT + 1)),
        "weights too small": spoiled("counts", weights(-LARGEST_WEIGHT - 1)),
        "junk": spoiled(
            "counts", lambda arrays: [*arrays[:-1], np.arange(60, dtype=np.uint8)]
        ),
        "a temperature that is none": Row(
            "flynn-calibration", {"flynn-calibration": "[29, 0, 0, 0]"}
        ),
        "a linear part of no share": Row(
            "config: share", {"flynn-calibration": "[4, 0, 0, 0]"}
        ),
        "an intercept too large": Row(
            "flynn-calibration", {"flynn-calibration": f"[4, 0, 0, {2**22 + 1}]"}
        ),
        "intercepts of two classes": Row(
            "flynn-calibration", {"flynn-calibration": "[4, 0, 0]"}
        ),
        "endless biases": Row("flynn-linear", {"flynn-linear": _ENDLESS}),
        "a basis of junk": Row("flynn-basis", {"flynn-basis": b"junk"}),
    },
}
"""Requests that a party refuses, by the names of the cases and of the changes.

`refused.txt` has those that other entries of plain values make.
"""
