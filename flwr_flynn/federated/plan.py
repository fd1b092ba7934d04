"""The plan of a run: which phases follow from its options.

===========  ==========================================================  =========================================
purpose      phases                                                      left out where
===========  ==========================================================  =========================================
train        columns, counts, selection, evaluation                      see below
join         counts (added), selection, evaluation
withdraw     counts (taken out), selection, evaluation
evaluate     evaluation
resume       the phase where a run stopped, and those after it
===========  ==========================================================  =========================================

No columns without a plan that derives specs from them; no selection where there is one candidate, where nobody tries
the model, and for noisy or secure counts, whose parties' exact figures stay at home; no evaluation where nobody gets
the model.
"""

from __future__ import annotations

from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases import columns, counts, evaluation, selection
from flwr_flynn.federated.run_spec import Plain


def phases_of(options: RunOptions) -> tuple[Phase, ...]:
    """The phases of a run with these options, in order."""
    run = options.run_spec
    selects = (
        options.is_evaluated
        and isinstance(run.mode, Plain)
        and selection.is_selection_needed(len(run.specs), options.rule, options.decay)
    )
    plan = [
        *([columns.COLUMNS] if options.plan is not None else []),
        counts.phase_for(options),
        *([selection.SELECTION] if selects else []),
        *([evaluation.EVALUATION] if options.is_evaluated or options.hand_out else []),
    ]
    if options.purpose == "evaluate":
        return tuple(phase for phase in plan if phase is evaluation.EVALUATION)
    if options.purpose == "resume" and options.federation is not None:
        names = [phase.name for phase in plan]
        stopped = options.federation.phase
        plan = plan[names.index(stopped) :] if stopped in names else []
    return tuple(plan)
