"""Sizes of a hash under noise, and noisy counts within a bound.

>>> from flwr_flynn import ClassCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> from flwr_flynn.privacy import SimulatedRelease
>>> mechanism = LaplaceCounts(epsilon=1.0, hash_nnz=2, n_classes=2)
>>> mechanism.epsilon(), round(mechanism.noise_sd, 2)
(1.0, 2.8)
>>> release = SimulatedRelease(mechanism, seed=7).release(counts)
>>> round(release.noise_variance, 2), (counts + release - release) == counts
(7.84, True)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flwr_flynn._validation import integer
from flwr_flynn.errors import ConfigError, CountsError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy.mechanism import LARGEST_SIZE
from flwr_flynn.privacy.noise_mechanisms import GaussianCounts, LaplaceCounts


def suggest_spec(
    epsilon: float,
    delta: float,
    n_features: int,
    n_examples: int,
    n_classes: int,
    n_parties: int,
    *,
    neighbours: str = "add-remove",
    records_per_person: int = 1,
    secure_sum: bool = False,
    **sizes: Any,
) -> HashSpec:
    """Sizes of a hash for counts with the noise of `GaussianCounts`, or of `LaplaceCounts` where delta is 0.

    The sizes are those of `HashSpec.suggest` with the amount of noise: m falls with the number of samples. Laplace
    noise grows with rho, and not with its square root. There rho is m ** (1/2), at most 24, and m is n epsilon / 2.5 L
    for two parties, at least 64.

    Parameters
    ----------
    epsilon, delta : float
    n_features, n_examples, n_classes : int
        Public figures of all parties together; rough ones are enough.
    n_parties : int
        Each adds its own noise.
    neighbours, records_per_person
        As for `Mechanism`.
    secure_sum : bool, default=False
        Parties share one noise instead (`n_honest` of `GaussianCounts`). Not with delta 0.
    **sizes
        Further arguments of `HashSpec.suggest`, which must be public, too.

    Examples
    --------
    >>> suggest_spec(1.0, 1e-5, n_features=30, n_examples=10000, n_classes=2, n_parties=2, hash_dim=9600).hash_nnz
    103
    """
    n_parties = integer("n_parties", n_parties, most=LARGEST_SIZE)
    people = {"neighbours": neighbours, "records_per_person": records_per_person}
    common: dict[str, Any] = {"n_classes": n_classes, **people}
    if delta == 0:
        if secure_sum:
            raise ConfigError("secure_sum", "False where delta is 0", secure_sum)
        per_record = 1 / LaplaceCounts(epsilon, hash_nnz=1, **common).scale
        if (hash_dim := sizes.pop("hash_dim", None)) is None:
            n_examples = integer("n_examples", n_examples, most=LARGEST_SIZE)
            ideal = n_examples * per_record * math.sqrt(2 / n_parties) / (2.5 * n_classes)
            hash_dim = int(min(max(ideal, 64), 2**14))
        if (hash_nnz := sizes.pop("hash_nnz", None)) is None:
            hash_nnz = min(math.isqrt(hash_dim), 24)
        return HashSpec.suggest(n_features, n_examples, n_classes, hash_dim=hash_dim, hash_nnz=hash_nnz, **sizes)
    noise = GaussianCounts(epsilon, delta, hash_nnz=16, **common)
    per_unit = noise.sigma / math.sqrt(16) * (1 if secure_sum else math.sqrt(n_parties))
    return HashSpec.suggest(n_features, n_examples, n_classes, per_unit, **sizes)


def clamped(counts: ClassCounts, bound: int) -> ClassCounts:
    """Noisy counts with every entry clipped to -bound to bound, for a sum modulo a larger number.

    An entry beyond the bound raises no error, which would disclose it.
    """
    if not counts.noise:
        raise CountsError("clamped", "noisy counts", "exact ones")
    array = np.clip(counts.array, -integer("bound", bound, most=2**62), bound)
    return ClassCounts(array, hash_nnz=counts.hash_nnz, spec_fingerprint=counts.spec_fingerprint, noise=counts.noise)
