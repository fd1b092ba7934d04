"""The paper's synthetic data: classes of several clusters, in R^d or lifted to d bits.

Five classes, each of three clusters around corners of a hypercube, all columns informative, no noise in the labels
(paper, "Synthetic data description"). What the paper leaves open is as in the authors' programs: corners 1.2 from the
middle in each direction; bits by a fly hash of d / 10 columns, half of them in each row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def real(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """Samples in R^d and their classes, 0 to 4.

    Parameters
    ----------
    n, d, seed : int

    Returns
    -------
    X : (n, d) float64 array
    y : (n,) int64 array
    """
    from sklearn.datasets import make_classification

    X, y = make_classification(
        n, d, n_informative=d, n_redundant=0, n_classes=5, n_clusters_per_class=3, class_sep=1.2, random_state=seed
    )  # fmt: skip
    return X, y


def binary(n: int, d: int, ones: int, seed: int) -> tuple[Array, Array]:
    """Samples of d bits and their classes, 0 to 4.

    Parameters
    ----------
    n, d : int
        d is a multiple of 10, at least 50.
    ones : int
        Bits that are one in every sample.
    seed : int
        Seed of samples and lifting matrix.

    Returns
    -------
    X : (n, d) uint8 array
    y : (n,) int64 array
    """
    from flwr_flynn import FlyHash, HashSpec

    X, y = real(n, d // 10, seed)
    bits = np.zeros((n, d), np.uint8)
    spec = HashSpec(d // 10, d, d // 20, ones, seed=seed)
    np.put_along_axis(bits, FlyHash(spec).active(X), 1, axis=1)
    return bits, y
