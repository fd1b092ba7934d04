"""Digests of what sites take out of a model, and reasons of figures that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flwr_flynn.federated.roster import Member
from flwr_flynn.model.metrics import Figures


class Digests(NamedTuple):
    """SHA-256 of what parties may take out of the model."""

    nothing: str
    """That of no samples."""
    of_members: Mapping[str, str]
    """Those of counts that one member alone has, or none, by its node."""

    def allow(self, digest: object, member: Member | None) -> bool:
        """True if a party may have taken this out.

        Who has the counts of a member is that member, whatever its node is now; a
        member that has no samples now had some that are in the sum.
        """
        if digest != self.nothing:
            return digest in self.of_members.values()
        return member is None or self.of_members.get(member.node) == digest


def reasons_of(
    site: Figures,
    lacks_products: bool,
    taken_out: object,
    is_allowed: bool,
    member: Member | None,
) -> dict[str, str]:
    """Reasons why a site lacks some figures, by their names.

    They follow from the request, the digest of the reply and the members alone.
    """
    sizes: Sequence[int] | None = ()  # of training samples, by class
    if member is not None:
        sizes = member.sizes
    few = "none: fewer samples than its floor, min-examples"
    without = few
    if taken_out is None and lacks_products:
        without = (
            "the sums of the linear part are of too few other sites, or samples, or "
            "have changed, and are not told; linear=0 goes without it"
        )
    elif taken_out is None:
        without = "the site's counts cannot be taken out, or no samples are left"
    elif member is not None and not is_allowed:
        without = "its counts in the sum are of other rows, or there twice"
    elif not is_allowed:
        without = (
            "its counts are not in the sum; test-fraction=1 tries the model on all rows"
        )
    alone = "a budget, or fewer held-out samples than its floor, min-examples"
    if sizes is not None and np.count_nonzero(sizes) < 2:
        alone = "no training samples of two classes"
    reasons = {"held_out": few, "without": without, "alone": alone}
    return {name: text for name, text in reasons.items() if site[name] is None}
