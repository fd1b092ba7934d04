"""Every node key x kind of request x runtime: nothing leaves a party but what the allow-list says."""

from __future__ import annotations

import pytest

from flwr_flynn.app.config import POLICY_KEYS, NodeConfig
from tests import policy_table

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")

REFINEMENT = {"held-out", "refinement", "refinement, later"}
OPEN = {"columns", "histograms", "exact", "secure exact", "candidates", "evaluation", "model"} | REFINEMENT
PRIVATE = {"noisy", "model"}  # the model comes to the party; what it answers to that tells nothing of its records

DEPLOYED = {
    "data-path": OPEN,
    "label": OPEN,
    "model-path": OPEN,
    "party-id": OPEN,
    "test-fraction": OPEN,
    "split-seed": OPEN,
    "memory-limit": OPEN,
    "min-examples": OPEN,
    "personal": OPEN,
    "secure": {"secure exact", "model"},
    "leave": {"leave exact", "leave secure exact", "model"},
    "policy": PRIVATE,
    "policy, label": PRIVATE,
    "policy, model-path": PRIVATE,
    "policy, party-id": PRIVATE,
    "policy, test-fraction": PRIVATE,
    "policy, split-seed": PRIVATE,
    "policy, memory-limit": PRIVATE,
    "policy, min-examples": PRIVATE,
    "policy, personal": PRIVATE,
    "policy, secure": {"secure share", "model"},
    "policy, leave": {"leave noisy", "model"},
    "policy, mechanisms": {"model"},
    "policy, neighbours": {"model"},
    "policy, records-per-person": {"model"},
    "policy, composition": PRIVATE,
    "policy, max-releases": PRIVATE,
    "policy, evaluate": PRIVATE | {"evaluation"},
    "policy, response-seconds": PRIVATE,
    "policy, secure, leave": {"model"},
}
SIMULATED = {"nothing": OPEN}
"""What is not listed answers nothing, not even to a model."""


@pytest.mark.parametrize(("runtime", "name", "keys"), list(policy_table.rows()), ids=str)
def test_a_party_answers_what_the_allow_list_says_and_nothing_else(
    runtime: str, name: str, keys: tuple[str, ...]
) -> None:
    if runtime == "simulated":
        pytest.importorskip("flwr_datasets")
    expected = (DEPLOYED if runtime == "deployed" else SIMULATED).get(name, set())
    assert policy_table.accepted(runtime, keys) == expected


def test_the_table_has_every_key_and_every_row_of_the_allow_list() -> None:
    names = {row.key for row in NodeConfig.rows()}
    assert set(policy_table.VALUES) == names
    rows = {(runtime, name) for runtime, name, _ in policy_table.rows()}
    assert {("deployed", name) for name in DEPLOYED} | {("simulated", name) for name in SIMULATED} <= rows
    assert names <= {name for _, name in rows}
    # A key that is about private answers does not make a policy by itself.
    assert not {*POLICY_KEYS, "max-epsilon", "nothing", "data-pth"} & set(DEPLOYED)
