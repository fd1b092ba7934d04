"""The noise of a run by its settings, and the strength of a class beside it.

All follows from public figures alone, before anything is spent.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from flwr.common.logger import log

from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.settings_parser import about_settings
from flwr_flynn.federated.secure_bound import LEAST_PARTIES
from flwr_flynn.flower.secagg import LEAST_THRESHOLD
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.privacy import MECHANISMS, Mechanism, SimulatedRelease, suggest_spec


def private_plan(config: RunConfig, plan: HashPlan, n_parties: int) -> HashPlan:
    """The plan with the sizes that suit the noise; given sizes stay."""
    names = "hash_dim", "row_nnz", "hash_nnz", "n_features", "n_examples", "n_classes"
    given: dict[str, Any] = {name: getattr(plan, name) for name in names}
    given |= {
        name: getattr(config, name) for name in ("neighbours", "records_per_person")
    }
    given["n_parties"] = 1 if config.secure else n_parties
    with about_settings("run-config"):
        spec = suggest_spec(config.epsilon, config.delta, **given)
    row_nnz: int | None = spec.row_nnz
    if plan.ranges is not None:
        # Rows over rank codes have fewer entries than rows over columns.
        row_nnz = plan.row_nnz
    return replace(
        plan, hash_dim=spec.hash_dim, row_nnz=row_nnz, hash_nnz=spec.hash_nnz
    )


def run_mechanism(
    config: RunConfig, spec: HashSpec, n_classes: int, n_parties: int
) -> Mechanism | None:
    """The mechanism of the parties' noisy counts; None for exact counts."""
    if not config.is_private:
        return None
    given: dict[str, Any] = {
        "neighbours": config.neighbours,
        "records_per_person": config.records_per_person,
    }
    given |= {name: getattr(config, name) for name in MECHANISMS[config.mechanism].own}
    if config.secure:
        if not 2 <= config.honest_parties <= n_parties:
            raise config.refused(
                "honest_parties", f"from 2 to the {n_parties} parties of the run"
            )
        given["n_honest"] = config.honest_parties
        log(logging.INFO, "FlyNN: %s", SharedNoise(n_parties, config.honest_parties))
    with about_settings("run-config"):
        mechanism = MECHANISMS[config.mechanism].for_spec(
            spec, n_classes, config.epsilon, **given
        )
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

LEAST_STRENGTH = 15
"""Least strength of a class of which a model is expected to tell something.

In simulations of outcomes with classes that overlap, models below it kept a third, at
most a half, of their balanced accuracy above chance; of an outcome of 8 % of 2,400
samples at three parties with epsilon 1 a tenth.
"""


def strength(
    plan: HashPlan, share: float, mechanism: Mechanism, n_parties: int
) -> float:
    """Strength of a class of this share beside the noise.

    In simulations it is the best measure of what is left of a model. A score adds rho
    counts, to each of which a sample adds 1 at most, so n samples stand out of the
    noise by n sqrt(rho) / sd at most. Times the root of the share among equal classes
    1, that is the strength.
    """
    n = (plan.n_examples or 0) * share
    return n / mechanism.unit_noise(n_parties) * math.sqrt(share * plan.n_classes)


def beside_noise(
    config: RunConfig, plan: HashPlan, mechanism: Mechanism, n_parties: int
) -> str:
    """Noise and rarest class in words.

    The run is refused where nothing would be left of the class, unless it is to go on.
    """
    share = config.rarest_share or 1 / plan.n_classes
    n = (plan.n_examples or 0) * share
    per_bit = mechanism.hash_nnz / placeholder_specs(plan)[0].hash_dim
    at_party = mechanism.noise_sd
    strength_of_rarest = strength(plan, share, mechanism, n_parties)
    beside = (
        f"{n:.0f} samples of the rarest class beside noise of "
        f"{at_party * math.sqrt(n_parties):.3g} in a count"
    )
    if (
        strength_of_rarest < LEAST_STRENGTH
        and not config.any_noise
        and config.noise == "opendp"
    ):
        times = LEAST_STRENGTH / max(strength_of_rarest, 0.01)
        expected = (
            f"about {config.epsilon * times:.2g}, {times:.2g} times the "
            "samples, or any-noise = true"
        )
        raise config.refused("epsilon", expected, f"{config.epsilon:g} ({beside})")
    return (
        f"By public figures: {beside} of all {n_parties} parties, as standard "
        f"deviation ({at_party:.3g} at a party); "
        f"on average {n * per_bit:.3g} of the samples are in a count. Strength "
        f"{strength_of_rarest:.3g}; below {LEAST_STRENGTH} "
        "next to nothing is left of a class that overlaps with others."
    )
