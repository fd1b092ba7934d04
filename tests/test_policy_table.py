"""Every node key x kind of request x runtime: nothing leaves a party but what the allow-list says."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters

from flwr_flynn.app.node_config import POLICY_KEYS, NodeConfig
from flwr_flynn.federated.protocol import PHASE
from flwr_flynn.flower import secagg
from flwr_flynn.flower.client import FlyNNClient
from tests import policy_table

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")

GRAM = {"gram", "gram evaluation"}
SUMS = {f"secure {name}" for name in ("columns", "bins", "candidates", "evaluation")}
SUMS |= {f"secure {name}" for name in GRAM}
OPEN = {"columns", "aligned columns", "exact", "secure exact", "candidates", "evaluation", "model"} | SUMS
PRIVATE = {"noisy", "noisy refinement", "model"}
"""The model comes to the party; what it answers to that tells nothing of its records."""

DEPLOYED = {
    "data-path": OPEN,
    "label": OPEN,
    "separator": OPEN,
    "decimal": OPEN,
    "encoding": OPEN,
    "gap-texts": OPEN,
    "date-format": OPEN,
    "model-path": OPEN,
    "record-path": OPEN,
    "previous-path": OPEN | {"update exact"},
    "min-update": OPEN,
    "party-id": OPEN,
    "test-fraction": OPEN,
    "split-seed": OPEN,
    "memory-limit": OPEN,
    "min-examples": OPEN,
    "class-prior": OPEN,
    "gram": OPEN | GRAM,
    "secure": {"secure exact", "model"} | SUMS,
    "leave": {"leave exact", "leave secure exact", "model"},
    "policy": PRIVATE,
    "policy, label": PRIVATE,
    "policy, model-path": PRIVATE,
    "policy, record-path": PRIVATE,
    "policy, min-update": PRIVATE,
    "policy, party-id": PRIVATE,
    "policy, test-fraction": PRIVATE,
    "policy, split-seed": PRIVATE,
    "policy, memory-limit": PRIVATE,
    "policy, min-examples": PRIVATE,
    "policy, class-prior": PRIVATE,
    "policy, gram": PRIVATE,
    "policy, secure": {"secure share", "secure noisy refinement", "model"},
    "policy, leave": {"leave noisy", "model"},
    "policy, mechanisms": {"model"},
    "policy, neighbours": {"model"},
    "policy, records-per-person": {"model"},
    "policy, composition": PRIVATE,
    "policy, max-releases": PRIVATE,
    "policy, evaluate": PRIVATE | {"evaluation", "secure evaluation"},
    "policy, response-seconds": PRIVATE,
    "policy, secure, leave": {"model"},
}
SIMULATED = {"nothing": OPEN | GRAM}
"""What is not listed answers nothing, not even to a model."""


@pytest.mark.parametrize(("runtime", "name", "keys"), list(policy_table.rows()), ids=str)
def test_a_party_answers_what_the_allow_list_says_and_nothing_else(
    runtime: str, name: str, keys: tuple[str, ...]
) -> None:
    if runtime == "simulated":
        pytest.importorskip("flwr_datasets")
    expected = (DEPLOYED if runtime == "deployed" else SIMULATED).get(name, set())
    assert policy_table.accepted(runtime, keys) == expected


def test_no_summand_of_a_secure_sum_leaves_without_a_mask_of_its_bound() -> None:
    X, y = np.random.default_rng(0).normal(size=(90, 4)), np.array(policy_table.CLASSES)[np.arange(90) % 3]
    client = FlyNNClient(X, y).to_client()
    for name in {"secure exact", *SUMS}:
        asked = policy_table.FITS[name]
        config = {PHASE: asked.phase, **asked.to_config()}
        ins = FitIns(ndarrays_to_parameters(asked.arrays()), config)
        assert client.fit(ins).parameters.tensors == []
        for bound, answers in ((256, True), (512, False)):
            with secagg.masking(bound, 2):
                assert bool(client.fit(ins).parameters.tensors) == answers
        # Nor as if it were no secure sum.
        clear = {name: value for name, value in config.items() if name not in ("flynn-bound", "flynn-mode")}
        assert client.fit(FitIns(ins.parameters, clear)).parameters.tensors == [] or asked.phase == "columns"


def test_the_table_has_every_key_and_every_row_of_the_allow_list() -> None:
    names = {row.key for row in NodeConfig.rows()}
    assert set(policy_table.VALUES) == names
    rows = {(runtime, name) for runtime, name, _ in policy_table.rows()}
    assert {("deployed", name) for name in DEPLOYED} | {("simulated", name) for name in SIMULATED} <= rows
    assert names <= {name for _, name in rows}
    # A key that is about private answers does not make a policy by itself.
    assert not {*POLICY_KEYS, "max-epsilon", "nothing", "data-pth"} & set(DEPLOYED)
