"""Scores of a model from a Gram matrix, beside those of its members (`model.gram`).

The log probability of class l, up to a constant of each sample, is bias_l + W'z, in units of 2**-18, with z the graded
responses of the rows. The log probabilities of both sides are averaged, with half of the weight for each side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import DataError
from flwr_flynn.hashing import graded
from flwr_flynn.hashing.batching import batches
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.scoring import Scores

Table = npt.NDArray[np.int64]

LEAST_ROWS, MOST_ROWS = 16, 4096
"""Rows of the hashes of a Gram matrix together: bounds."""

UNIT = 2.0**-18
"""Weight of the integer 1."""

LARGEST_WEIGHT = 2**24
"""Largest magnitude of a weight. Sums of such weights times responses are exact in float64."""

LARGEST_BIAS = 2**44
"""Largest magnitude of a bias."""

MOST_SPECS = 5
"""Hashes of a Gram matrix, at most."""

SHARE = 0.5
"""Weight of the log probabilities beside those of the members."""

LEVELS = graded.LEVELS // 2
"""Largest response: half of the grade, for fewer bytes."""

BATCH = 2**12
"""Samples whose responses are held at a time, at most."""


@dataclass(frozen=True, eq=False)
class GramScoring:
    """Scores of a model from a Gram matrix, with all classes taken for equally frequent.

    Parameters
    ----------
    specs : sequence of HashSpec
        One to five, of the same number of features.
    weights : (m, L) int32 array
        Of the rows of all hashes, in units of `UNIT`. Kept read-only.
    bias : (L,) int64 array
        Likewise.

    Raises
    ------
    DataError
        A field is not as described.
    """

    specs: Sequence[HashSpec]
    weights: npt.NDArray[np.int32]
    bias: Table

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", checked_gram_specs(self.specs))
        n_rows, weights, bias = sum(spec.hash_dim for spec in self.specs), np.array(self.weights), np.array(self.bias)
        shape = n_rows, len(bias)
        if weights.shape != shape or weights.dtype != np.int32 or bias.ndim != 1 or bias.dtype != np.int64:
            got = f"{weights.dtype} {weights.shape} and {bias.dtype} {bias.shape}"
            raise DataError("gram", f"int32 weights of shape {shape}, and as many int64 biases", got)
        sizes = np.abs(weights.astype(np.int64)).max(initial=0), np.abs(bias).max(initial=0)
        if sizes[0] > LARGEST_WEIGHT or sizes[1] > LARGEST_BIAS or bias.min(initial=0) < -LARGEST_BIAS:
            expected = f"weights up to {LARGEST_WEIGHT} and biases up to {LARGEST_BIAS}"
            raise DataError("gram", expected, f"{int(sizes[0])} and {int(sizes[1])}")
        weights.flags.writeable = bias.flags.writeable = False
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bias", bias)

    def log_odds(self, X: Any, n_jobs: int | None = None) -> Scores:
        """Log probabilities of the classes up to a constant of each sample, (n, L) float64, for samples, (n, d)."""
        out = np.empty((X.shape[0], len(self.bias)))
        for rows in batches(len(out), BATCH // 4):
            z = responses(self.specs, X[rows], n_jobs).astype(np.float64)  # scores are integers of units, and so exact
            out[rows] = (z @ self.weights + self.bias) * UNIT
        return out

    def sha256(self) -> str:
        """SHA-256 over all of it; the same for equal ones everywhere."""
        facts = [[spec.to_dict() for spec in self.specs], self.bias.tolist()]
        sha256 = hashlib.sha256(b"flynn gram 2 " + json.dumps(facts).encode())
        sha256.update(np.ascontiguousarray(self.weights, "<i4").data)
        return sha256.hexdigest()


def checked_gram_specs(specs: Any) -> tuple[HashSpec, ...]:
    """Specs of a Gram matrix as a tuple, if they can be some; else a `DataError`."""
    found = tuple(specs)
    if not 1 <= len(found) <= MOST_SPECS or not all(isinstance(spec, HashSpec) for spec in found):
        raise DataError(
            "gram", f"1 to {MOST_SPECS} HashSpecs", [type(spec).__name__ for spec in found[: MOST_SPECS + 1]]
        )
    if len({spec.n_features for spec in found}) > 1:
        raise DataError("gram", "specs of the same n_features", sorted({spec.n_features for spec in found}))
    if (n_rows := sum(spec.hash_dim for spec in found)) > MOST_ROWS:
        raise DataError("gram", f"at most {MOST_ROWS} rows", n_rows)
    return found


def responses(specs: Sequence[HashSpec], X: Any, n_jobs: int | None = None) -> npt.NDArray[np.uint8]:
    """Halves of the grades of samples by all the hashes, (n, m) uint8, rounded down, side by side."""
    found = np.concatenate([flynn_hash(spec).graded(X, n_jobs) for spec in specs], axis=1)
    found >>= 1
    return found
