"""The phases that a run can have; one module each. Importing this package makes their requests known to a party."""

from flwr_flynn.federated.phases import columns, counts, evaluation, gram, noisy_refinement, selection, table_schema

__all__ = ["columns", "counts", "evaluation", "gram", "noisy_refinement", "selection", "table_schema"]
