"""Sizes of a hash under noise.

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

from flwr_flynn._validation import integer
from flwr_flynn.errors import ConfigError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.noisy_rounds import n_steps
from flwr_flynn.privacy.gaussian_rounds import GaussianRounds
from flwr_flynn.privacy.mechanism import LARGEST_SIZE
from flwr_flynn.privacy.noise_mechanisms import GaussianCounts, LaplaceCounts

_SIGNED_FROM = 8  # full steps: with fewer the mean of signed bits is not learned well enough


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
    n_rounds: int = 0,
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
    n_rounds : int, default=0
        Rounds of `GaussianRounds`, whose sizes are others, see docs/explanation/noisy_refinement.md. Not with delta 0.
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
    if n_rounds:
        if delta == 0:
            raise ConfigError("n_rounds", "0 where delta is 0", n_rounds)
        n_examples = integer("n_examples", n_examples, most=LARGEST_SIZE)
        rounds = GaussianRounds(epsilon, delta, n_rounds, hash_nnz=16, **common)
        per_unit = rounds.unit_noise(n_parties)
        return HashSpec.suggest(n_features, n_examples, n_classes, **_of_rounds(n_examples, n_classes, per_unit, sizes))
    if delta == 0:
        found = _of_laplace(epsilon, common, n_examples, n_parties, sizes)
        return HashSpec.suggest(n_features, n_examples, n_classes, **found)
    noise = GaussianCounts(epsilon, delta, hash_nnz=16, **common)
    per_unit = noise.sigma / math.sqrt(16) * math.sqrt(n_parties)
    return HashSpec.suggest(n_features, n_examples, n_classes, per_unit, **sizes)


def _of_laplace(
    epsilon: float, common: dict[str, Any], n_examples: int, n_parties: int, sizes: dict[str, Any]
) -> dict[str, Any]:
    """Sizes for Laplace noise, but for those that are given."""
    found = dict(sizes)
    if found.get("hash_dim") is None:
        n_examples = integer("n_examples", n_examples, most=LARGEST_SIZE)
        per_record = 1 / LaplaceCounts(epsilon, hash_nnz=1, **common).scale
        ideal = n_examples * per_record * math.sqrt(2 / n_parties) / (2.5 * common["n_classes"])
        found["hash_dim"] = int(min(max(ideal, 64), 2**14))
    if found.get("hash_nnz") is None:
        found["hash_nnz"] = min(math.isqrt(found["hash_dim"]), 24)
    return found


def _of_rounds(n_examples: int, n_classes: int, noise: float, sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes for rounds with the noise of a gradient that is the only release, but for those that are given."""
    found = dict(sizes)
    if found.get("hash_dim") is None:
        found["hash_dim"] = int(min(max(2 * n_examples / noise, 512), 8192))
    if found.get("hash_nnz") is None:
        share = 0.05 * math.sqrt(1000 * n_classes * noise / n_examples)
        found["hash_nnz"] = max(int(found["hash_dim"] * min(max(share, 1 / 64), 0.1)), 1)
    if found.get("signed") is None:
        # Sums without signs tell classes on both sides of a centre apart badly; a shift of all features they ignore.
        is_centred = len(set(found.get("center") or ())) > 1
        found["signed"] = is_centred or n_steps(n_examples, n_classes, noise) >= _SIGNED_FROM
    return found
