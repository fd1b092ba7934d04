"""The noise of a run by its settings, and the strength of a class beside it.

All follows from public figures alone, before anything is spent.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.common.logger import log

from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.settings_parser import about_settings
from flwr_flynn.federated.secure_bound import LEAST_PARTIES
from flwr_flynn.flower.secagg import LEAST_THRESHOLD
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.class_means import has_mirror
from flwr_flynn.privacy import MECHANISMS, Mechanism, SimulatedRelease, suggest_spec


def private_plan(config: RunConfig, plan: HashPlan, n_parties: int) -> HashPlan:
    """The plan with the sizes that suit the noise; given sizes stay."""
    names = "hash_dim", "row_nnz", "hash_nnz", "n_features", "n_examples", "n_classes"
    given: dict[str, Any] = {name: getattr(plan, name) for name in names}
    given |= {
        name: getattr(config, name) for name in ("neighbours", "records_per_person")
    }
    given["n_parties"] = 1 if config.secure else n_parties
    reads_all = not MECHANISMS[config.mechanism].is_partial
    if plan.ranges is not None and reads_all:
        plan = replace(plan, ranges=None, scaling=_middle_and_inverse(plan.ranges))
    if isinstance(plan.scaling, tuple) and reads_all:
        given["center"] = plan.scaling[0]
    with about_settings("run-config"):
        spec = suggest_spec(config.epsilon, config.delta, **given)
    row_nnz: int | None = spec.row_nnz
    if plan.ranges is not None:
        # Rows over rank codes have fewer entries than rows over columns.
        row_nnz = plan.row_nnz
    return replace(
        plan, hash_dim=spec.hash_dim, row_nnz=row_nnz, hash_nnz=spec.hash_nnz
    )


def _middle_and_inverse(ranges: Any) -> tuple[list[float], list[float]]:
    """The middles of public ranges, and one over half of their widths; 1 for a column
    without width.
    """
    low, high = map(np.array, ranges)
    half = (high - low) / 2
    inverse = 1 / np.where(half > 0, half, 1.0)
    return (low + half).tolist(), inverse.tolist()


def run_mechanism(
    config: RunConfig,
    spec: HashSpec,
    n_classes: int,
    n_parties: int,
    sums_columns: bool = False,
) -> Mechanism | None:
    """The mechanism of the parties' noisy counts; None for exact counts.

    `sums_columns`: noisy sums of the columns come first, as their ranges alone are
    public.
    """
    if not config.is_private:
        return None
    made = MECHANISMS[config.mechanism]
    names = ("neighbours", "records_per_person", *made.own)
    given: dict[str, Any] = {name: getattr(config, name) for name in names}
    if sums_columns and made.n_moments:
        given["n_columns"] = spec.n_features
    reads_means = config.rule == "balanced" and has_mirror(spec)
    if reads_means and "mirrored" in made.optional:
        given["mirrored"] = config.neighbours == "add-remove"
    if config.secure:
        if not 2 <= config.honest_parties <= n_parties:
            raise config.refused(
                "honest_parties", f"from 2 to the {n_parties} parties of the run"
            )
        given["n_honest"] = config.honest_parties
        log(logging.INFO, "FlyNN: %s", SharedNoise(n_parties, config.honest_parties))
    with about_settings("run-config"):
        mechanism = made.for_spec(spec, n_classes, config.epsilon, **given)
    if config.noise == "seeded":
        return SimulatedRelease(mechanism, config.seed)
    return mechanism


@dataclass(frozen=True)
class SharedNoise:
    """Parties of a secure sum, and the honest ones, whose shares make one noise.

    >>> SharedNoise(10, 8).n_needed
    8
    """

    n_parties: int
    n_honest: int

    @classmethod
    def of(cls, mechanism: Mechanism | None, n_parties: int) -> SharedNoise | None:
        """The sharing of a run's mechanism; None where no noise is shared."""
        if mechanism is None or mechanism.n_honest is None:
            return None
        return cls(n_parties, mechanism.n_honest)

    @property
    def n_needed(self) -> int:
        """Parties that must stay for a sum to be opened.

        They are as many in every sum of a run, however many are asked.
        """
        return max(
            LEAST_PARTIES, self.n_honest, round(LEAST_THRESHOLD * self.n_parties)
        )

    def __str__(self) -> str:
        n = self.n_parties
        honest = self.n_honest
        needed = self.n_needed
        spare = ""
        if needed > honest:
            spare = (
                f"; of those that stay, {needed - honest} may then disclose their share"
            )
        return (
            f"One noise is shared. Epsilon holds while at least {honest} of {n} "
            "parties follow the protocol, keep "
            "their share of the noise to themselves and stay to the end, and the "
            "server follows it, too. "
            f"Up to {n - needed} may drop out{spare}; if more do, no sum is opened, "
            "and ledgers may be charged."
        )


# ---- what it leaves of a model

LEAST_NU = 1
"""Strength of the rarest class below which two of five runs tell it apart with an AUROC
below .6, see docs/results/private.md."""


def nu(plan: HashPlan, share: float, mechanism: Mechanism, n_parties: int) -> float:
    """Strength of a class of this share, against the others, beside the noise.

    One over s sqrt(d (1 / n1 ** 2 + 1 / n0 ** 2)): s is the noise of all parties for a
    norm of 1 of a sample, and a class mean has d directions. In simulations it is the
    best public measure of what is left of a model.
    """
    n = plan.n_examples or 0
    noise = mechanism.unit_noise(n_parties)
    sizes = [max(n * part, 1e-9) for part in (share, 1 - share)]
    inverse = sum(1 / size**2 for size in sizes)
    return 1 / (noise * math.sqrt(plan.n_features * inverse))


def meaning_of_nu(strength: float) -> str:
    """The strength in words, as runs of docs/results/private.md ended."""
    if strength < LEAST_NU:
        return "two of five such runs end below AUROC .6: worthless"
    if strength < 2:
        return "one of eight such runs ends below AUROC .6"
    if strength < 6:
        return "one of twenty such runs ends below AUROC .6"
    return "hardly any such run ends below AUROC .6"


def beside_noise(
    config: RunConfig, plan: HashPlan, mechanism: Mechanism, n_parties: int
) -> str:
    """Noise and rarest class in words.

    The run is refused where too many such runs would be worthless, unless it is to go
    on.
    """
    share = config.rarest_share or 1 / plan.n_classes
    n = (plan.n_examples or 0) * share
    at_party = mechanism.noise_sd
    strength = nu(plan, share, mechanism, n_parties)
    meaning = meaning_of_nu(strength)
    beside = (
        f"{n:.0f} samples of the rarest class beside noise of "
        f"{at_party * math.sqrt(n_parties):.3g} in a count"
    )
    is_real = config.noise == "opendp"
    if strength < LEAST_NU and is_real and not config.any_noise:
        times = LEAST_NU / max(strength, 0.01)
        expected = (
            f"about {config.epsilon * times:.2g}, {times:.2g} times the "
            f"samples, or any-noise = true, as {meaning}"
        )
        raise config.refused("epsilon", expected, f"{config.epsilon:g} ({beside})")
    return (
        f"By public figures: {beside} of all {n_parties} parties, as standard "
        f"deviation ({at_party:.3g} at a party). "
        f"nu = {strength:.2g}: {meaning}."
    )
