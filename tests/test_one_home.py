"""Names of a capability occur in its home and in the registry of phases; exceptions are
a list that only shrinks.

Its home are the module of its phase and the modules that it computes with.
``one_home.txt`` lists each other module that names it, one a line: the capability and
the module. A new line is a commit of its own that says why.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.code import bare, modules

REGISTRY = "federated/plan.py"
EXCEPTIONS = Path(__file__).with_name("one_home.txt")

CAPABILITIES = {
    "class-prior": (
        r"class[-_]prior|ClassPrior|own_prior",
        "model/prior.py federated/own_copy.py",
    ),
    "columns": (
        r"ColumnsRequest|ColumnHistograms|phases\.columns|\bCOLUMNS\b|derive_specs|derives_specs",
        "federated/phases/columns.py model/column_histograms.py model/column_cells.py",
    ),
    "evaluation": (
        r"EvaluationRequest|\bEVALUATION\b|evaluates\b|is_evaluated|sums_results|fraction_evaluate",
        "federated/phases/evaluation.py federated/own_copy.py",
    ),
    "gram": (
        r"(?i)(?<![a-z])gram",
        "federated/gram_fields.py model/gram.py",
    ),
    "group-column": (r"group[-_]column|subgroup", "federated/subgroups.py"),
    "honest-parties": (
        r"honest[-_]parties|n_honest|shared_noise",
        "app/run_noise.py privacy/noise_mechanisms.py",
    ),
    "schema-learning": (
        r"learn_schema|table_schema|SchemaRequest|TableSummary|LEARNED_LEVELS",
        "federated/phases/table_schema.py tables/table_summary.py tables/learned_schema.py",
    ),
    "secure-columns": (
        r"secure_columns|BinsRequest|MOST_BINS|\bBINS\b|['\"]bins",
        "federated/phases/columns.py",
    ),
    "selection": (
        r"SelectionRequest|\bSELECTION\b|phases\.selection|['\"]selection"
        r"|is_past_selection|\.selects\b|leave_one_out",
        "federated/phases/selection.py model/selection.py",
    ),
    "top-t": (r"(?i)\btop[-_]?t\b|\bn[-_]released", "privacy/noise_mechanisms.py"),
    "update": (
        r"UpdateRequest|['\"]update['\"]|is_update\b|previous\b|previous_path",
        "federated/phases/counts.py federated/purposes.py",
    ),
    "withdrawal": (
        r"(?i)withdraw|\bleaves\b|['\"]leave['\"]",
        "federated/phases/counts.py federated/purposes.py",
    ),
}
"""Names of each capability, as a regular expression, and its home."""


def test_each_capability_has_one_home():
    listed = {tuple(line.split()) for line in EXCEPTIONS.read_text().splitlines()}
    found = set()
    for module, path in modules().items():
        code = bare(path.read_text(), imports=True)
        for name, (pattern, home) in CAPABILITIES.items():
            if module not in (REGISTRY, *home.split()) and re.search(pattern, code):
                found.add((name, module))
    new = sorted(found - listed)
    gone = sorted(listed - found)
    assert not new, f"capabilities named outside their home: {new}"
    assert not gone, f"lines of {EXCEPTIONS.name} to take out: {gone}"


def test_every_home_is_a_module():
    homes = {
        REGISTRY,
        *(module for _, home in CAPABILITIES.values() for module in home.split()),
    }
    assert homes <= modules().keys()
