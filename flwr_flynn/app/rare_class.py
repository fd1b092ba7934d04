"""The rarest class of a run beside the noise on its counts, by public figures alone, before anything is spent."""

from __future__ import annotations

import math

from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.privacy import Mechanism

LEAST_STRENGTH = 15
"""Least strength of a class of which a model is expected to tell something.

In simulations of outcomes with classes that overlap, models below it kept a third, at most a half, of their balanced
accuracy above chance; of an outcome of 8 % of 2,400 samples at three parties with epsilon 1 a tenth.
"""


def strength(plan: HashPlan, share: float, mechanism: Mechanism, n_parties: int) -> float:
    """Strength of a class of this share beside the noise: in simulations the best measure of what is left of a model.

    A score adds rho counts, to each of which a sample adds 1 at most, so n samples stand out of the noise by
    n sqrt(rho) / sd at most. Times the root of the share among equal classes 1, that is the strength.
    """
    n_samples = (plan.n_examples or 0) * share
    return n_samples / mechanism.unit_noise(n_parties) * math.sqrt(share * plan.n_classes)


def beside_noise(config: RunConfig, plan: HashPlan, mechanism: Mechanism, n_parties: int) -> str:
    """Noise and rarest class in words; refused where nothing would be left of it, unless the run is to go on."""
    share = config.rarest_share or 1 / plan.n_classes
    n, per_bit = (plan.n_examples or 0) * share, mechanism.hash_nnz / placeholder_specs(plan)[0].hash_dim
    at_party, found = mechanism.noise_sd, strength(plan, share, mechanism, n_parties)
    beside = f"{n:.0f} samples of the rarest class beside noise of {at_party * math.sqrt(n_parties):.3g} in a count"
    if found < LEAST_STRENGTH and not config.any_noise and config.noise == "opendp":
        times = LEAST_STRENGTH / max(found, 0.01)
        expected = f"about {config.epsilon * times:.2g}, {times:.2g} times the samples, or any-noise = true"
        raise config.refused("epsilon", expected, f"{config.epsilon:g} ({beside})")
    return (
        f"By public figures: {beside} of all {n_parties} parties, as standard deviation ({at_party:.3g} at a party); "
        f"on average {n * per_bit:.3g} of the samples are in a count. Strength {found:.3g}; below {LEAST_STRENGTH} "
        "next to nothing is left of a class that overlaps with others."
    )
