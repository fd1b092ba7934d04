"""Sizes of a hash that go with the noise of a mechanism, from public figures."""

from __future__ import annotations

import math
from typing import Any

from flwr_flynn._validation import integer
from flwr_flynn.hashing.spec import HashSpec
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
        Each adds its own noise; 1 where all share one (`n_honest` of `GaussianCounts`).
    neighbours, records_per_person
        As for `Mechanism`.
    **sizes
        Further arguments of `HashSpec.suggest`, which must be public, too.

    Examples
    --------
    >>> suggest_spec(1.0, 1e-5, n_features=30, n_examples=10000, n_classes=2, n_parties=2, hash_dim=9600).hash_nnz
    103
    """
    n_parties = integer("n_parties", n_parties, most=LARGEST_SIZE)
    common: dict[str, Any] = {"neighbours": neighbours, "records_per_person": records_per_person}
    common["n_classes"] = n_classes
    given = {name: value for name, value in sizes.items() if value is not None}
    per_unit = None
    if delta:
        per_unit = GaussianCounts(epsilon, delta, hash_nnz=16, **common).unit_noise(n_parties)
    else:
        if "hash_dim" not in given:
            n_examples = integer("n_examples", n_examples, most=LARGEST_SIZE)
            per_record = 1 / LaplaceCounts(epsilon, hash_nnz=1, **common).scale
            ideal = n_examples * per_record * math.sqrt(2 / n_parties) / (2.5 * n_classes)
            given["hash_dim"] = int(min(max(ideal, 64), 2**14))
        given.setdefault("hash_nnz", min(math.isqrt(given["hash_dim"]), 24))
    return HashSpec.suggest(n_features, n_examples, n_classes, per_unit, **given)
