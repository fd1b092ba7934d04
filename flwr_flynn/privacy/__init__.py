"""Differential privacy: mechanisms, sizes that go with the noise, and bounds on the
releases of a party.

A mechanism turns counts into noisy counts that may leave their party.

==================  ========================================  ========================
mechanism           release                                   guarantee
==================  ========================================  ========================
`GaussianCounts`    all counts with discrete Gaussian noise   (epsilon, delta)
`LaplaceCounts`     all counts with discrete Laplace noise    epsilon
`TopTLaplace`       T selected counts with discrete Laplace   epsilon (the paper's)
                    noise, the others 0
`SimulatedRelease`  as one of these, with noise from a seed   none: for simulations
==================  ========================================  ========================

A mechanism is bound to the shape of the counts (rho and the number of classes) and to
its guarantee: epsilon, delta, the kind of neighbours, the records of a person. One
record changes rho counts of one class by one ("add-remove"), or twice as many
("replace-one"). A person with up to k records changes k times as much. Parties hold
different records, so the releases of all parties together have the epsilon of one
(parallel composition). Releases of one party add up in its ledger.

Entries of a release are signed: clipping them before they are summed would bias the
sum. Scoring clips them.

`flwr_flynn.privacy.ledger` has a party's policy and its ledger of releases.
"""

from flwr_flynn.privacy.mechanism import NEIGHBOURS, Mechanism, SimulatedRelease
from flwr_flynn.privacy.noise_mechanisms import (
    MECHANISMS,
    GaussianCounts,
    LaplaceCounts,
    TopTLaplace,
    mechanism_from_dict,
    suggest_spec,
)

__all__ = [
    "MECHANISMS",
    "NEIGHBOURS",
    "GaussianCounts",
    "LaplaceCounts",
    "Mechanism",
    "SimulatedRelease",
    "TopTLaplace",
    "mechanism_from_dict",
    "suggest_spec",
]
