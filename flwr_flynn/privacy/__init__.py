"""Differential privacy: mechanisms, sizes that go with the noise, and the bounds on what a party gives away.

`flwr_flynn.privacy.mechanisms` has the mechanisms, `flwr_flynn.privacy.sizing` the sizes of a hash under noise, and
`flwr_flynn.privacy.ledger` a party's policy and its ledger of releases.
"""

from flwr_flynn.privacy.mechanisms import NEIGHBOURS, GaussianCounts, LaplaceCounts, Mechanism, SimulatedRelease
from flwr_flynn.privacy.sizing import MECHANISMS, clamped, mechanism_from_dict, suggest_spec
from flwr_flynn.privacy.top_t import TopTLaplace

__all__ = [
    "MECHANISMS",
    "NEIGHBOURS",
    "GaussianCounts",
    "LaplaceCounts",
    "Mechanism",
    "SimulatedRelease",
    "TopTLaplace",
    "clamped",
    "mechanism_from_dict",
    "suggest_spec",
]
