"""The plan of a run: the phases that follow from its options.

Each phase is a module of `phases`.

Importing this package makes their requests known to a party.

===========  ========================================================================
purpose      phases
===========  ========================================================================
train        schema, columns, counts, selection, calibration, trees, evaluation
join         counts (added), selection, calibration, trees, evaluation
withdraw     counts (taken out), selection, calibration, trees, evaluation
update       counts (replaced), selection, calibration, trees, evaluation
evaluate     evaluation
resume       the phase where a run stopped, and those after it
===========  ========================================================================

In a secure run phases "bins 1" to "bins 5" come before the columns. Trees are phases
"trees 1" to "trees 16", of which a forest leaves out those that it does not need, and
"forest", which calibrates it. All phases but the
evaluation are on Flower's train channel. Left out are the schema without `learn_schema`;
the columns without a plan that derives specs from them; the selection for one candidate,
where nobody evaluates the model, and for noisy counts; the calibration where nothing is
selected, the decay is given, or the effort is "quick"; trees without an effort or
option that asks for some; and the evaluation where nobody
gets the model. The option `phases` takes the place of the whole plan.
"""

from __future__ import annotations

from collections.abc import Sequence

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases import (
    calibration,
    column_sums,
    columns,
    counts,
    evaluation,
    selection,
    table_schema,
    trees,
)


def phases_of(options: RunOptions) -> tuple[Phase, ...]:
    """The phases of a run with these options, in order."""
    if options.phases is not None:
        every = [*options.phases]
        plan = every
    else:
        every = every_phase(options)
        plan = [phase for phase in every if phase.applies(options)]
    if options.purpose == "evaluate":
        plan = [phase for phase in plan if phase is evaluation.EVALUATION]
    if options.purpose == "resume" and options.federation is not None:
        plan = _rest(every, plan, options.federation.phase)
    return tuple(plan)


def every_phase(options: RunOptions) -> list[Phase]:
    """All phases that a run of this kind can have, in order, and those of one's own.

    By their `applies` a run has some of them.
    """
    return [
        table_schema.SCHEMA,
        *columns.phases_for(options),
        column_sums.COLUMN_SUMS,
        counts.phase_for(options),
        selection.SELECTION,
        calibration.CALIBRATION,
        *trees.PHASES,
        evaluation.SECURE_EVALUATION,
        evaluation.EVALUATION,
        *(options.phases or ()),
    ]


def _rest(every: Sequence[Phase], plan: Sequence[Phase], stopped: str) -> list[Phase]:
    """The phases of a plan from the one where a run stopped, or from the next one.

    It is "" for a finished run.
    """
    if not stopped:
        return []
    names = [phase.name for phase in every]
    if stopped not in names:
        raise ConfigError(
            "phases",
            f"a plan with {stopped}, where the run stopped",
            ", ".join(names) or "none",
        )
    return [phase for phase in every[names.index(stopped) :] if phase in plan]
