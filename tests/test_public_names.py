"""The public names, which change with a deprecation only (docs/contributing.md)."""

from __future__ import annotations

from importlib import import_module

import pytest

import flwr_flynn

PUBLIC = {
    "flwr_flynn": "AggregationError ClassCounts FlyHash FlyNNClassifier FlyNNClient FlyNNError FlyNNStrategy HashPlan "
    "HashSpec message",
    "flwr_flynn.message": "FlyNNStrategy evaluate train",
    "flwr_flynn.privacy": "MECHANISMS NEIGHBOURS GaussianCounts LaplaceCounts Mechanism SimulatedRelease TopTLaplace "
    "clamped mechanism_from_dict suggest_spec",
    "flwr_flynn.secagg": "mod workflow",
    "flwr_flynn.federation": "Federation Member",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_those_of_the_last_release(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module].split())
    assert all(hasattr(found, name) for name in found.__all__)


def test_a_former_name_works_with_a_warning_for_one_release() -> None:
    with pytest.warns(FutureWarning, match="HashPlan"):
        assert flwr_flynn.Plan is flwr_flynn.HashPlan


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = flwr_flynn.ClassCount
