"""The plan of a run: which phases follow from its options.

===========  ========================================================================
purpose      phases
===========  ========================================================================
train        columns, histograms, counts, selection, refinement or pairs, evaluation
join         counts (added), selection, refinement or pairs, evaluation
withdraw     counts (taken out), selection, refinement or pairs, evaluation
evaluate     evaluation
resume       the phase where a run stopped, and those after it
===========  ========================================================================

In a secure run a phase "range" comes before the columns, phases "bins 1" to "bins 4" come before the histograms, and
all but the evaluation are on the train channel. The refinement is phase "held-out" and a phase for each round, and
phase "pairs" has "pair trial" behind it; a run that stopped in one of these begins them anew, for pairs with the
selection before them. Left out are columns and histograms without a plan that derives specs from them; the selection
for one candidate, where nobody tries the model, and for noisy counts; the refinement without `refine_rounds`; pairs
without `pairs`; and the evaluation where nobody gets the model. The option `phases` takes the place of the whole plan.
"""

from __future__ import annotations

from dataclasses import replace

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases import (
    columns,
    counts,
    evaluation,
    histograms,
    pairs,
    refinement,
    secure_columns,
    selection,
)
from flwr_flynn.federated.phases.secure import collect_secure
from flwr_flynn.federated.protocol import TRAIN
from flwr_flynn.federated.run_spec import Secure


def phases_of(options: RunOptions) -> tuple[Phase, ...]:
    """The phases of a run with these options, in order."""
    plan = list(options.phases) if options.phases is not None else _default(options)
    if isinstance(options.run_spec.mode, Secure) and options.purpose == "train":
        clear = [phase.name for phase in plan if phase.channel == TRAIN and phase.collect is not collect_secure]
        if clear:
            raise ConfigError("phases", "phases of secure sums alone on the train channel", ", ".join(clear))
    if options.purpose == "evaluate":
        return tuple(phase for phase in plan if phase is evaluation.EVALUATION)
    if options.purpose == "resume" and options.federation is not None:
        return tuple(_rest(plan, options.federation.phase))
    return tuple(plan)


def _default(options: RunOptions) -> list[Phase]:
    is_secure = isinstance(options.run_spec.mode, Secure)
    saved = options.federation if options.purpose == "resume" and options.has_members else None
    is_selected = saved is not None and saved.phase not in ("counts", "selection")
    learned = [] if options.plan is None else [*([secure_columns.RANGE] if is_secure else []), columns.COLUMNS]
    if options.plan is not None and options.plan.needs_histograms:
        learned += secure_columns.BINS if is_secure else [histograms.HISTOGRAMS]
    plan = [
        *learned,
        counts.phase_for(options),
        *([selection.SELECTION] if options.selects and not is_selected else []),
        *refinement.refinements(options.refine_rounds),
        *([pairs.PAIRS, pairs.PAIR_TRIAL] if options.pairs else []),
    ]
    if is_secure:  # SecAgg+ is a protocol of the train channel
        plan = [replace(phase, channel=TRAIN, collect=collect_secure) for phase in plan]
    return plan + ([evaluation.EVALUATION] if options.is_evaluated or options.hand_out else [])


_ORDER = ("columns", "histograms", "counts", "selection", "held-out", "pairs", "evaluation")


def _rest(plan: list[Phase], stopped: str) -> list[Phase]:
    """The phases of a plan from the one where a run stopped; "" stands for a finished run."""
    names = [phase.name for phase in plan]
    if stopped.startswith("refinement "):  # the weights are not saved
        stopped = "held-out"
    elif stopped == pairs.PAIR_TRIAL.name:  # the sums neither
        stopped = pairs.PAIRS.name
    # With other options than before, the plan may leave out the very phase that was due.
    due = (stopped, *_ORDER[_ORDER.index(stopped) + 1 :]) if stopped in _ORDER else (stopped,)
    first = next((names.index(name) for name in due if name in names), None)
    if first is not None:
        return plan[first:]
    if stopped and stopped not in _ORDER:
        raise ConfigError("phases", f"a plan with {stopped}, where the run stopped", ", ".join(names) or "none")
    return []
