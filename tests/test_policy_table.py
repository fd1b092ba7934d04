"""Every node key x kind of request x runtime.

Nothing leaves a party but what the allow-list says.
"""

from __future__ import annotations

import pytest

from flwr_flynn.app.node_config import POLICY_KEYS, NodeConfig
from tests import policy_table

pytest.importorskip("opendp")
pytest.importorskip("dp_accounting")

SUMS = {
    f"secure {name}"
    for name in (
        "columns",
        "bins",
        "candidates",
        "calibration",
        "trees",
        "evaluation",
    )
}
OPEN = {"columns", "exact", "secure exact", "candidates", "calibration"}
OPEN |= {"evaluation", "model"} | SUMS
PRIVATE = {"noisy", "noisy sums", "model"}
"""The model comes to the party; what it answers to that tells nothing of its records.
"""

OTHERS = (
    "separator",
    "decimal",
    "encoding",
    "date-format",
    "keep",
    "accept",
    "site",
    "label",
    "model-path",
    "record-path",
    "party-id",
    "test-fraction",
    "label-map",
    "gap-texts",
    "memory-limit",
    "min-examples",
    "class-prior",
    "table-one",
    "held-out-key",
    "member-path",
)
"""Keys that change nothing about who gets an answer."""

DEPLOYED = {
    **dict.fromkeys(("data-path", *OTHERS), OPEN),
    "products": OPEN | {"trees"},
    "previous-path": OPEN | {"update exact"},
    # The file does not have this column: nothing of the file is told.
    **{key: {"model"} for key in ("ignore", "rename", "convert", "synonyms")},
    "secure": {"secure exact", "model"} | SUMS,
    "leave": {"leave exact", "leave secure exact", "model"},
    "policy": PRIVATE,
    **{
        f"policy, {key}": PRIVATE
        for key in (*OTHERS, "products", "composition", "response-seconds")
        if key != "accept"  # which is refused
    },
    **{
        f"policy, {key}": {"model"}
        for key in ("neighbours", "records-per-person", "secure, leave")
    },
    "policy, secure": {"secure share", "secure share of sums", "model"},
    "policy, leave": {"leave noisy", "model"},
    "policy, evaluate": PRIVATE | {"evaluation", "secure evaluation"},
}
SIMULATED = {"nothing": OPEN | {"trees"}}
"""What is not listed answers nothing, not even to a model."""
ALLOWED = {"deployed": DEPLOYED, "simulated": SIMULATED}


@pytest.mark.parametrize(
    ("runtime", "name", "keys"), list(policy_table.rows()), ids=str
)
def test_a_party_answers_what_the_allow_list_says_and_no_more(runtime, name, keys):
    if runtime == "simulated":
        pytest.importorskip("flwr_datasets")
    allowed = ALLOWED[runtime].get(name, set())
    assert policy_table.accepted(runtime, keys) == allowed


def test_the_table_has_every_key_and_every_row_of_the_allow_list():
    names = {row.key for row in NodeConfig.rows()}
    assert set(policy_table.VALUES) == names
    rows = {(runtime, name) for runtime, name, _ in policy_table.rows()}
    for runtime, names_of_rows in ALLOWED.items():
        assert {(runtime, name) for name in names_of_rows} <= rows
    assert names <= {name for _, name in rows}
    # A key that is about private answers does not make a policy by itself.
    assert not {*POLICY_KEYS, "max-epsilon", "nothing", "data-pth"} & set(DEPLOYED)
