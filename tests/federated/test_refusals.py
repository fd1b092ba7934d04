"""Refused options, class lists, announced runs, rosters and requests, on record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated.labels import checked_classes
from flwr_flynn.federated.party import PartyOptions
from flwr_flynn.federated.samples import checked_names
from tests.fakes import LAPLACE, RUN, SHARE, SPEC, make
from tests.federated.registry import CASES, SOME
from tests.federated.runs import refusal
from tests.federated.test_federation_file import FIRST, ROSTER, SECOND, load_with
from tests.federated.test_run_spec import read, specs_of
from tests.snapshots import assert_refused_as_on_record


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields but for one."""
    return {other: value for other, value in fields.items() if other != name}


def with_got(act: Callable[[Any], object]) -> Callable[[Any], str]:
    """The type, the field and the value of the error by which a value is refused."""

    def take(value: Any) -> str:
        with pytest.raises(FlyNNError) as caught:
            act(value)
        error = caught.value
        return f"{type(error).__name__} {error.field}, got {error.got}"

    return take


def asked(name: str, entries: dict[str, Any]) -> str:
    """What a party refuses of a request with these entries; None: without them."""
    party = CASES[name].party(SOME, on_model=lambda _: pytest.fail("kept the model"))
    reason = refusal(CASES[name].request, party, entries)
    return reason.partition(": expected")[0].partition(" (")[0]


SHARED = {"secure_bound": 256, "min_parties": 3, "mechanism": SHARE}


def test_values_that_are_none_are_refused_as_it_is_on_record(tmp_path):
    path = tmp_path / "f.npz"
    takes = {
        "options": lambda change: make(**change),
        "noisy-options": lambda change: make(mechanism=LAPLACE, **change),
        "shared-options": lambda change: make(**SHARED, **change),
        "party": lambda change: PartyOptions(**change),
        "classes": with_got(checked_classes),
        "names": with_got(lambda names: checked_names(names, 4)),
        "run": with_got(lambda changes: read(RUN, **changes)),
        "spec": with_got(
            lambda change: read(RUN, specs=specs_of(SPEC.to_dict() | change))
        ),
        "roster": lambda change: load_with(path, ROSTER | change),
        "roster-without": lambda name: load_with(path, without(ROSTER, name)),
        "member": lambda change: load_with(
            path, ROSTER | {"members": [FIRST | change, SECOND]}
        ),
        "member-without": lambda name: load_with(
            path, ROSTER | {"members": [without(FIRST, name), SECOND]}
        ),
    }
    for name in ("schema", "columns", "selection", "evaluation with a linear part"):
        takes[name.replace(" ", "-")] = partial(asked, name)
    assert_refused_as_on_record(Path(__file__).parent / "refused.txt", takes)
