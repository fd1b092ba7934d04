"""The integers of a Gram matrix in an answer: sizes, products and sums of two folds."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.gram import (
    LARGEST_CLASS_WEIGHT,
    N_FOLDS,
    GramMatrix,
    LearnedGram,
    Terms,
    fold_sizes,
)

log = logging.getLogger("flwr")  # Flower's own, which is not imported here

_ROUNDED = 1 + 2.0**-40  # room for the rounding of products


def capacity(terms: Terms) -> int:
    """Samples up to which all sums are within int64."""
    weight = LARGEST_CLASS_WEIGHT
    if isinstance(terms, Basis):
        weight = 1
    return (2**63 - 1) // (terms.largest**2 * weight)


def gram_fields(terms: Terms, weights: Sequence[int], sizes: Sizes) -> list[Field]:
    """Layout of the sums of samples of these sizes.

    The products of a fold are the upper triangle row by row; its sums are those of the
    terms by class.
    """
    n_terms = terms.n_terms
    n_classes = len(weights)
    is_signed = isinstance(terms, Basis)
    return [
        Field("class sizes", (N_FOLDS, n_classes), sizes.per_class, PLAIN),
        Field(
            "products",
            (N_FOLDS, n_terms * (n_terms + 1) // 2),
            terms.largest**2 * max(weights) * sizes.total,
            is_signed=is_signed,
        ),
        Field(
            "sums",
            (N_FOLDS * n_classes, n_terms),
            terms.largest * sizes.total,
            is_signed=is_signed,
        ),
    ]


def gram_parts(matrix: GramMatrix) -> list[Array]:
    """The integers of each field."""
    n_terms = matrix.sums.shape[2]
    return [matrix.n_per_class, matrix.products, matrix.sums.reshape(-1, n_terms)]


def gram_of_parts(
    parts: Sequence[Array], terms: Terms, weights: Sequence[int]
) -> GramMatrix:
    """The Gram matrix with these integers; a `PayloadError` if no samples have it.

    False sums could spoil the whole matrix.
    """
    sizes, products, sums = parts
    n_examples = sum(sizes.ravel().tolist())
    most = capacity(terms)
    if n_examples > most:
        raise PayloadError("Gram matrix", f"that of at most {most} samples", n_examples)
    by_class = sums.reshape(N_FOLDS, len(weights), terms.n_terms)
    folds = zip(products, by_class, sizes, strict=True)
    factors = np.array(weights)
    if not all(_is_possible(terms, factors, *fold) for fold in folds):
        raise PayloadError(
            "Gram matrix", "products and sums that so many samples can have", "others"
        )
    return GramMatrix((products, by_class, sizes))


def linear_of_parts(
    parts: Sequence[Array], basis: Basis, counts: ClassCounts
) -> LearnedGram:
    """The sums of a linear part with these integers, beside the counts of its samples.

    A `PayloadError` if no samples have them, or more than are counted.
    """
    zeros = LearnedGram.zeros(basis, counts.n_classes)
    sums = gram_of_parts(parts, basis, zeros.weights)
    if (sums.n_per_class.sum(axis=0) > counts.n_per_class).any():
        raise PayloadError("class sizes", "at most the samples counted", "more")
    return replace(zeros, sums=sums)


def _is_possible(
    terms: Terms, weights: Array, products: Array, sums: Array, sizes: Array
) -> bool:
    """True if samples can have the sums of a fold, as far as single products tell: none
    is larger than its squares allow. Of a basis no square of a sum is negative, either.
    """
    if (np.abs(sums) > terms.largest * sizes[:, None]).any():
        return False
    totals = (weights @ sums).astype(np.float64)
    n_weighted = float((weights * sizes).sum())
    n_terms = terms.n_terms
    steps = np.arange(n_terms, 0, -1)
    diagonal = products[np.cumsum(steps) - steps].astype(np.float64)
    most = n_weighted * terms.largest**2
    if (diagonal < 0).any() or (diagonal > most).any():
        return False
    if (totals**2 > n_weighted * diagonal * _ROUNDED).any():
        return False
    start = 0
    for index, square in enumerate(diagonal.tolist()):
        row = products[start : start + n_terms - index].astype(np.float64)
        start += len(row)
        if (row**2 > square * diagonal[index:] * _ROUNDED).any():
            return False
    if not isinstance(terms, Basis):
        return True
    square = np.zeros((n_terms, n_terms))
    square[np.triu_indices(n_terms)] = products
    least = np.linalg.eigvalsh(square, "U").min(initial=0.0)
    return bool(least >= -1e-9 * diagonal.sum())


def stay(X: Array, codes: Codes, n_classes: int, least: int) -> Mask:
    """Samples that are left where small classes are left out, (n,) bool."""
    if least <= 1:
        return np.ones(len(codes), np.bool_)
    sizes = fold_sizes(X, codes, n_classes)
    is_small: Mask = np.any((sizes > 0) & (sizes < least), axis=0)
    return ~is_small[codes]


def without_few(
    X: Array, codes: Codes, n_classes: int, least: int
) -> tuple[Array, Codes]:
    """Samples and class codes without small classes.

    Of these a fold has some samples, but fewer than `least`.
    """
    stays = stay(X, codes, n_classes, least)
    if stays.all():
        return X, codes
    text = (
        "FlyNN: %s samples are not in the products of columns or rows: a fold has fewer "
        "than %s of a class, see min-examples"
    )
    log.warning(text, int((~stays).sum()), least)
    return X[stays], codes[stays]


def check_sizes(matrix: GramMatrix, sizes: Sizes) -> None:
    """Raise a `PayloadError` unless a party's classes are in its sums whole, or not."""
    n_per_class = matrix.n_per_class.sum(axis=0)
    if not ((n_per_class == sizes.per_class) | (n_per_class == 0)).all():
        raise PayloadError(
            "Gram matrix",
            "the party's samples of each class as counted, or none",
            "other numbers",
        )
