"""The event of a run: the class whose probability, thresholds and curves are shown."""

from __future__ import annotations

from flwr_flynn.federated.labels import codebook
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import RunState
from flwr_flynn.model.prior import rarer


def event_of(state: RunState, options: RunOptions) -> int | None:
    """Index of the event's class; None for means over more than two classes.

    Without the option `event` it is the rarer of two classes among the counted samples,
    as far as noise lets them be known, and the second of two that are equally frequent.
    """
    run = state.run_spec
    if options.event is not None:
        return codebook(run.classes).code(options.event)
    if run.n_classes != 2:
        return None
    return rarer(state.results["counts"].parts[0].n_per_class)


def event_facts(state: RunState, options: RunOptions) -> dict[str, object] | None:
    """Label and index of the event, and "set" or "rarer" as its reason, for JSON."""
    index = event_of(state, options)
    if index is None:
        return None
    why = "set"
    if options.event is None:
        why = "rarer"
    return {"label": state.run_spec.classes[index], "index": index, "why": why}
