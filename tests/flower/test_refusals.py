"""Refused settings of strategies, workflows and requests of SecAgg+, on record."""

from __future__ import annotations

from pathlib import Path

from flwr.common.secure_aggregation.secaggplus_constants import Key

from flwr_flynn.flower import secagg
from tests.flower.networks import Legacy, Messages, federation
from tests.snapshots import assert_refused_as_on_record

SETUP = {
    Key.SAMPLE_NUMBER: 5,
    Key.SHARE_NUMBER: 5,
    Key.THRESHOLD: 3,
    Key.CLIPPING_RANGE: 256.0,
    Key.TARGET_RANGE: 512,
    Key.MOD_RANGE: 2**32,
    Key.MAX_WEIGHT: 1.0,
}
"""A protocol that shows no more than the sum; of 2**23 parties all weights would be 0."""
TAKES = {
    "setup": lambda change: secagg.check_setup(SETUP | change),
    "threshold": lambda threshold: secagg.workflow(256, threshold, 0),
    "bound": lambda bound: secagg.workflow(bound, 0.67, 0),
    "message": lambda change: Messages(federation(2)).make(**change),
    "legacy": lambda change: Legacy(federation(2)).make(**change),
}


def test_values_that_are_none_are_refused_as_it_is_on_record():
    secagg.check_setup(SETUP)
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", TAKES)
