"""The plan of a run: which phases follow from its options.

===========  ========================================================================
purpose      phases
===========  ========================================================================
train        schema, columns, counts, selection, gram, evaluation
join         counts (added), selection, gram, evaluation
withdraw     counts (taken out), selection, gram, evaluation
update       counts (replaced), selection, gram, evaluation
evaluate     evaluation
resume       the phase where a run stopped, and those after it
===========  ========================================================================

With a mechanism of several rounds the phases "noisy refinement 1", "noisy refinement 2" and so on come behind the
counts. In a secure run phases "bins 1" to "bins 5" come before the columns, and all phases but the evaluation are on
the train channel. A run that stopped in phase "gram" begins anew with the selection, one that stopped in a noisy round
with the first of these. Left out are the schema without `learn_schema`; the columns without a plan that derives specs
from them; the selection for one candidate, where nobody evaluates the model, and for noisy counts; gram without `gram`
or effort "thorough"; and the evaluation where nobody gets the model. The option `phases` takes the place of the whole
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.collect import collect_secure
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import Phase
from flwr_flynn.federated.phases import columns, counts, evaluation, gram, noisy_refinement, selection, table_schema
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE, TRAIN

SAID = {
    "schema": "Columns and frequent texts: nobody is singled out, as min-examples rows must have a text.",
    "columns": "Every min-examples-th value of a column, by class: no row follows, but a value may be one person's.",
    "counts": "Sums by class: who is alone in a class is singled out, and a known row found, unless epsilon or secure.",
    "selection": "Scores summed over all rows: nobody is singled out of many.",
    "gram": "Products of rows: a person may be singled out where rows are few, so they need gram=true or secure.",
    NOISY: "Sums with noise: nobody is singled out beyond the bound epsilon, which max-epsilon keeps.",
    SECURE: "A masked summand: nobody is singled out, as a server that follows the protocol (secure) reads sums alone.",
    RESULTS: "Results on held-out rows: only who knows all others can single one out; test-fraction=0 keeps them.",
    NOTHING: "Nothing about the rows: nobody is singled out.",
    EXACT: "Exact figures of another app about the rows: ask its authors whether a person is singled out.",
}
"""A sentence about a message, for a data-protection officer, by its phase where figures are exact, else by its kind."""


def phases_of(options: RunOptions) -> tuple[Phase, ...]:
    """The phases of a run with these options, in order."""
    entries = [(phase, True) for phase in options.phases] if options.phases is not None else _entries(options)
    plan = [phase for phase, is_included in entries if is_included]
    if options.run_spec.is_secure and options.purpose == "train":
        clear = [phase.name for phase in plan if phase.channel == TRAIN and phase.collect is not collect_secure]
        if clear:
            raise ConfigError("phases", "phases of secure sums alone on the train channel", ", ".join(clear))
    if options.purpose == "evaluate":
        plan = [phase for phase in plan if phase is evaluation.EVALUATION]
    if options.purpose == "resume" and options.federation is not None:
        plan = _rest(entries, options.federation.phase)
    return tuple(plan)


def _entries(options: RunOptions) -> list[tuple[Phase, bool]]:
    """All phases that a run can have, in order, each with True where this run has it."""
    is_secure, is_planned = options.run_spec.is_secure, options.plan is not None
    saved = options.federation if options.purpose == "resume" and options.has_members else None
    is_selected = saved is not None and saved.is_past_selection  # it goes on behind its selection
    before = [
        (table_schema.SCHEMA, options.learn_schema),
        *((phase, is_planned) for phase in (columns.BINS if is_secure else [columns.COLUMNS])),
        (counts.phase_for(options), True),
        (selection.SELECTION, options.selects and not is_selected),
        *((phase, True) for phase in noisy_refinement.noisy_refinements(options.run_spec)),
        (gram.GRAM, options.has_gram),
    ]
    if is_secure:  # SecAgg+ is a protocol of the train channel
        before = [(replace(phase, channel=TRAIN, collect=collect_secure), is_in) for phase, is_in in before]
    before.append((evaluation.SECURE_EVALUATION, options.sums_results))
    return [*before, (evaluation.EVALUATION, options.is_evaluated or options.distribute)]


def _rest(entries: Sequence[tuple[Phase, bool]], stopped: str) -> list[Phase]:
    """The phases of a plan from the one where a run stopped, or from the next that there is; "": a finished run."""
    names = [phase.name for phase, _ in entries]
    if stopped and stopped not in names:
        raise ConfigError("phases", f"a plan with {stopped}, where the run stopped", ", ".join(names) or "none")
    first = names.index(stopped) if stopped else len(names)
    if stopped:
        first = names.index(entries[first][0].resumed_at([phase.name for phase, is_in in entries if is_in]))
    return [phase for phase, is_included in entries[first:] if is_included]
