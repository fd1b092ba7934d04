"""Sizes of a hash under noise, and the table of mechanisms.

A mechanism turns counts into noisy counts that may leave their party. It is bound to the shape of the counts (rho and
the number of classes) and to its promise: epsilon, delta, the kind of neighbours, the records of a person.

===================  ===========================================================  ======================
mechanism            what it releases                                             guarantee
===================  ===========================================================  ======================
`GaussianCounts`     all counts with discrete Gaussian noise                      (epsilon, delta)
`LaplaceCounts`      all counts with discrete Laplace noise                       epsilon
`TopTLaplace`        T selected counts with discrete Laplace noise, the others 0  epsilon (the paper's)
`SimulatedRelease`   as one of these, with noise from a seed                      none: for simulations
===================  ===========================================================  ======================

Changes by one record: with neighbours "add-remove", rho counts of one class by one; with "replace-one", twice as many.
A person with up to k records changes k times as much. Parties hold different records, so releases of all parties with
epsilon each have epsilon together for every record (parallel composition). Releases of one party add up (its ledger).

Entries of a release are signed: clipping them before they are summed would bias the sum, and scorings clip.

>>> from flwr_flynn import ClassCounts
>>> counts = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
>>> mechanism = LaplaceCounts(epsilon=1.0, hash_nnz=2, n_classes=2)
>>> mechanism.epsilon(), round(mechanism.noise_sd, 2)
(1.0, 2.8)
>>> release = SimulatedRelease(mechanism, seed=7).release(counts)
>>> round(release.noise_variance, 2), (counts + release - release) == counts
(7.84, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_flynn._validation import integer, one_of
from flwr_flynn.errors import ConfigError, CountsError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.privacy.mechanisms import LARGEST_SIZE, GaussianCounts, LaplaceCounts, Mechanism, SimulatedRelease
from flwr_flynn.privacy.top_t import TopTLaplace

MECHANISMS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism for mechanism in (GaussianCounts, LaplaceCounts, TopTLaplace)
}


def mechanism_from_dict(values: Any) -> Mechanism:
    """The mechanism of a description by `Mechanism.to_dict`, which may come from anybody."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ConfigError("mechanism", "a mapping", type(values).__name__)
    given = dict(values)
    kind = given.pop("mechanism", None)
    if kind == SimulatedRelease.kind:
        if set(given) != {"seed", "of"} or not isinstance(given["of"], Mapping):
            raise ConfigError("mechanism", "the fields seed and of for a simulated one", ", ".join(sorted(given)))
        if given["of"].get("mechanism") == SimulatedRelease.kind:
            raise ConfigError("mechanism", "one that is not simulated", kind)
        return SimulatedRelease(mechanism_from_dict(given["of"]), given["seed"])
    kind = one_of("mechanism", kind, tuple(MECHANISMS))
    own, optional = _FIELDS[kind]
    needed = {"epsilon", "hash_nnz", "n_classes", "neighbours", "records_per_person", *own}
    if missing := sorted(needed - set(given)):
        raise ConfigError(f"mechanism {kind}", f"the fields {', '.join(sorted(needed))}", f"none named {missing[0]}")
    if unknown := sorted(set(given) - needed - {*optional}):
        raise ConfigError(f"mechanism {kind}", f"the fields {', '.join(sorted(needed))}", f"also {unknown[0][:40]}")
    return MECHANISMS[kind](**given)


_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gaussian": (("delta",), ("n_honest",)),
    "laplace": ((), ()),
    "top-t": (("n_released",), ()),
}
"""Fields that only one kind of mechanism has: those needed, and those that may be there."""


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
    """Sizes of a hash for counts that get `GaussianCounts`' noise, or `LaplaceCounts`' where delta is 0.

    `HashSpec.suggest` with the amount of noise: the fewer samples for the noise, the smaller m. Laplace noise
    grows with rho, not with its square root: there rho is m ** (1/2), at most 24, and m is n epsilon / 2.5 L for two
    parties, at least 64.

    Parameters
    ----------
    epsilon, delta : float
    n_features, n_examples, n_classes : int
        Of all parties together. Public figures: rough ones will do, and exact ones would have to be public.
    n_parties : int
        Each adds noise of its own.
    neighbours, records_per_person
        As for `Mechanism`.
    secure_sum : bool, default=False
        Parties share one noise instead (`GaussianCounts`' `n_honest`). Not with delta 0.
    **sizes
        Further arguments of `HashSpec.suggest`. Centre and scale must be public, too.

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
    """Noisy counts with every entry in -bound to bound, for a sum that is computed modulo something larger.

    Never an error: an entry beyond the bound must not show in anything but the release.
    """
    if not counts.noise:
        raise CountsError("clamped", "noisy counts", "exact ones")
    array = np.clip(counts.array, -integer("bound", bound, most=2**62), bound)
    return ClassCounts(array, hash_nnz=counts.hash_nnz, spec_fingerprint=counts.spec_fingerprint, noise=counts.noise)
