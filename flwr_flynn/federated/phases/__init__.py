"""The phases that a run can have, one module each; `federated.plan` has their order."""
