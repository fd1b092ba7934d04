"""Purposes of a run, and the facts by which they differ.

A run makes a new federation; or it starts from a saved one to add parties, take them out,
replace counts of parties whose samples have changed, distribute it, or go on with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr_flynn.federated.party_options import SiteSetting

NEW_FEDERATION = "train"


@dataclass(frozen=True)
class Purpose:
    """One purpose of a run."""

    done: str = ""
    """Verb for the parties that it counts; "" where it is not about single ones."""
    adds: bool = True
    """True if samples that were not counted before may be counted."""
    scores: bool = True
    """True if it makes a model, with a scoring of its own."""
    is_exact: bool = False
    """True if it cannot be with noisy counts."""
    is_simulated: bool = True
    """True if a simulation can have it."""
    asks: tuple[SiteSetting, ...] = ()
    """The setting of the sites that it is about, where it is about some alone."""
    options: tuple[str, ...] = ()
    """Those of a simulated party that it is about."""

    def is_for_others(self, reason: str) -> bool:
        """True if a party refuses as the run is not about it."""
        return any(setting.key in reason for setting in self.asks)


PURPOSES = {
    NEW_FEDERATION: Purpose("counted"),
    "join": Purpose("joined"),
    "withdraw": Purpose(
        "withdrawn",
        adds=False,
        asks=(
            SiteSetting(
                "leave", True, "at the sites that leave; the others refuse this run"
            ),
        ),
        options=("leaves",),
    ),
    "update": Purpose(
        "updated",
        is_exact=True,
        is_simulated=False,
        asks=(
            SiteSetting(
                "previous_path",
                None,
                "the file as it was counted, where samples have changed",
            ),
        ),
    ),
    "evaluate": Purpose(adds=False, scores=False),
    "resume": Purpose(),
}
