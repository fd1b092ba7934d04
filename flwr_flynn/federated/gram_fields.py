"""The integers of a linear part in an answer: sizes, products and sums of two folds."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from flwr_flynn._types import Array, Mask
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.announced_specs import announced_basis, deflated_basis
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Codes
from flwr_flynn.federated.protocol import Config, Scalars, key, refusing, sent
from flwr_flynn.federated.reply_fields import PLAIN, Field, Sizes, of_arrays, to_arrays
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.basis import LARGEST, Basis
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.gram import (
    LARGEST_BIAS,
    LARGEST_WEIGHT,
    N_FOLDS,
    GramMatrix,
    GramScoring,
    fold_sizes,
)

CAPACITY = (2**63 - 1) // LARGEST**2
"""Samples up to which all sums are within int64."""

_ANY = Sizes(CAPACITY, CAPACITY)
_ROUNDED = 1 + 2.0**-40  # room for the rounding of products


def gram_fields(terms: Basis, n_classes: int, sizes: Sizes) -> list[Field]:
    """Layout of the sums of samples of these sizes.

    The products of a fold are the upper triangle row by row; its sums are those of the
    terms by class.
    """
    n_terms = terms.n_terms
    return [
        Field("class sizes", (N_FOLDS, n_classes), sizes.per_class, PLAIN),
        Field(
            "products",
            (N_FOLDS, n_terms * (n_terms + 1) // 2),
            LARGEST**2 * sizes.total,
            is_signed=True,
        ),
        Field(
            "sums",
            (N_FOLDS * n_classes, n_terms),
            LARGEST * sizes.total,
            is_signed=True,
        ),
    ]


def gram_parts(matrix: GramMatrix) -> list[Array]:
    """The integers of each field."""
    n_terms = matrix.sums.shape[2]
    return [matrix.n_per_class, matrix.products, matrix.sums.reshape(-1, n_terms)]


N_GRAM_ARRAYS = 3
"""Arrays of the sums of a linear part in a request."""


def gram_arrays(learned: GramMatrix) -> list[Array]:
    """The sums of a linear part as arrays of a request."""
    n_classes = learned.n_per_class.shape[1]
    fields = gram_fields(learned.terms, n_classes, _ANY)
    return to_arrays(fields, gram_parts(learned))


def gram_of_arrays(
    arrays: Sequence[Array], basis: Basis, counts: ClassCounts
) -> GramMatrix:
    """The sums of a linear part in a request that may come from anybody."""
    parts = of_arrays(arrays, gram_fields(basis, counts.n_classes, _ANY))
    return linear_of_parts(parts, basis, counts)


def linear_of_parts(
    parts: Sequence[Array], basis: Basis, counts: ClassCounts
) -> GramMatrix:
    """The sums of a linear part with these integers, beside the counts of its samples.

    A `PayloadError` if no samples have them, or more than are counted. False sums could
    spoil the whole.
    """
    sizes, products, sums = parts
    n_examples = sum(sizes.ravel().tolist())
    if n_examples > CAPACITY:
        raise PayloadError(
            "Gram matrix", f"that of at most {CAPACITY} samples", n_examples
        )
    by_class = sums.reshape(N_FOLDS, counts.n_classes, basis.n_terms)
    matrix = GramMatrix((products, by_class, sizes), basis)
    if not all(_is_possible(matrix, fold) for fold in range(N_FOLDS)):
        raise PayloadError(
            "Gram matrix", "products and sums that so many samples can have", "others"
        )
    if (sizes.sum(axis=0) > counts.n_per_class).any():
        raise PayloadError("class sizes", "at most the samples counted", "more")
    return matrix


def _is_possible(matrix: GramMatrix, fold: int) -> bool:
    """True if samples can have the sums of a fold, as far as single products tell: none
    is larger than its squares allow, and no square of a sum is negative.
    """
    sums = matrix.sums[fold]
    sizes = matrix.n_per_class[fold]
    if (np.abs(sums) > LARGEST * sizes[:, None]).any():
        return False
    totals = sums.sum(axis=0).astype(np.float64)
    n_examples = float(sizes.sum())
    upper = matrix.upper(fold)
    diagonal = upper.diagonal()
    most = n_examples * LARGEST**2
    if (diagonal < 0).any() or (diagonal > most).any():
        return False
    if (totals**2 > n_examples * diagonal * _ROUNDED).any():
        return False
    if (upper**2 > np.outer(diagonal, diagonal) * _ROUNDED).any():
        return False
    least = np.linalg.eigvalsh(upper, "U").min(initial=0.0)
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
        "FlyNN: %s samples are not in the products of columns: a fold has fewer "
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


def linear_entries(run: RunSpec, scorings: Sequence[GramScoring]) -> Scalars:
    """Config entries of scores of a linear part, without their weights.

    There are none without scores; several, of folds, have the same terms.
    """
    if not scorings:
        return {}
    biases = np.concatenate([own.bias for own in scorings])
    basis = deflated_basis(scorings[0].terms, run.specs)
    return sent(linear=json.dumps(biases.tolist()), basis=basis)


def weights_of(scorings: Sequence[GramScoring]) -> list[Array]:
    """Arrays of the weights of scores of a linear part."""
    return [pack_signed(scoring.weights) for scoring in scorings]


def announced_linear(
    config: Config, run: RunSpec, arrays: Sequence[Array], n_scorings: int
) -> tuple[tuple[GramScoring, ...], Sequence[Array]]:
    """Scores of a linear part in a message that may come from anybody, and the arrays
    before those of their weights; () without such scores.
    """
    if "linear" not in config:
        return (), arrays
    first = max(len(arrays) - n_scorings, 0)
    terms = announced_basis(config, run.specs)
    n_biases = n_scorings * run.n_classes
    biases = config.integers("linear", n_biases, -LARGEST_BIAS, LARGEST_BIAS)
    with refusing(key("linear")):
        if len(arrays) < n_scorings:
            raise PayloadError("weights", f"{n_scorings} arrays", len(arrays))
        for array in arrays[first:]:
            check_packed([array], "weights")
        shape = (terms.n_terms, run.n_classes)
        blocks = np.array(biases, np.int64).reshape(n_scorings, run.n_classes)
        scorings = tuple(
            GramScoring(terms, unpack_signed(array, shape, LARGEST_WEIGHT), bias)
            for array, bias in zip(arrays[first:], blocks, strict=True)
        )
    return scorings, arrays[:first]
