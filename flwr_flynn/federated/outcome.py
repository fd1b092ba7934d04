"""The model, and the federation file, that the results of a run's phases make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flwr_flynn.federated.federation_file import BEHIND_MODEL, Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import RunState
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.candidates import suggest_decay
from flwr_flynn.model.gram import GramScoring
from flwr_flynn.model.model import Model, ModelMember, counted_prior
from flwr_flynn.model.noisy_rounds import Descent, Weights
from flwr_flynn.model.scoring import ScoringRule, given_scoring


@dataclass(frozen=True)
class Refined:
    """The result of a round of the noisy refinement."""

    descent: Descent | None  # of the newest round alone


def member_indices(state: RunState, options: RunOptions) -> tuple[int, ...]:
    """Indices, among the run's specs, of the model's members; the first where nothing is selected, or not yet."""
    selection, n_specs = state.results.get("selection"), len(state.run_spec.specs)
    if selection is None:
        return tuple(range(n_specs)) if options.has_members else (0,)
    return tuple(selection.specs)


def members_of(state: RunState, options: RunOptions) -> tuple[ModelMember, ...]:
    """The members of the model that the results so far make."""
    selection, saved, totals = state.results.get("selection"), options.federation, state.results["counts"]
    indices = member_indices(state, options)
    parts = [totals.parts[index] for index in indices]
    is_chosen = saved is not None and (saved.is_selected or options.purpose == "evaluate" or saved.is_past_selection)
    weights: Sequence[float] = (1.0,)
    scorings: Sequence[ScoringRule]
    if selection is not None:
        scorings = selection.scorings
        weights = tuple(choice.weight for choice in selection.choices)
    elif saved is not None and totals is saved.totals and is_chosen:
        chosen = [saved.shared.members[index] for index in indices]  # for these very counts
        scorings, weights = [each.scoring for each in chosen], [each.weight for each in chosen]
    else:
        given = given_scoring(options.rule, options.decay)
        scorings = [given or ScoringRule(options.rule, suggest_decay(counts, options.rule)) for counts in parts]
        if saved is not None and saved.is_selected:
            weights = [each.weight for each in saved.shared.members]
    specs = [state.run_spec.specs[index] for index in indices]
    if len(specs) == 1:
        weights = (1.0,)
    members = tuple(map(ModelMember, specs, parts, scorings, weights))
    scorings = [replace(member.scoring, temperature=member.temperature) for member in members]  # as the parties get it
    return tuple(replace(member, scoring=scoring) for member, scoring in zip(members, scorings, strict=True))


def descent_of(state: RunState) -> Descent | None:
    """The descent of the noisy refinement, as far as it came; None without one."""
    found = [result.descent for result in state.results.values() if isinstance(result, Refined)]
    return next((descent for descent in reversed(found) if descent is not None), None)


def refined_of(state: RunState, options: RunOptions) -> Weights | None:
    """The weights of the model, if it is refined: in this run, or in the saved one whose counts it has."""
    descent, saved = descent_of(state), options.federation
    if descent is not None:
        return descent.best
    return saved.shared.refined if saved is not None and state.results["counts"] is saved.totals else None


def gram_of(state: RunState, options: RunOptions) -> GramScoring | None:
    """Scores from the Gram matrix, if there are any: of this run, or of the saved one whose counts it has."""
    result, saved = state.results.get("gram"), options.federation
    if result is not None:
        found: GramScoring | None = result.scoring
        return found
    return saved.shared.gram if saved is not None and state.results["counts"] is saved.totals else None


def run_of_members(state: RunState, options: RunOptions) -> RunSpec:
    """The run with the specs of the model's members alone."""
    return state.run_spec.only(member_indices(state, options))


def model_of(state: RunState, options: RunOptions) -> Model:
    """The model that the results so far make."""
    run, members = run_of_members(state, options), members_of(state, options)
    return model_of_members(run, members, refined_of(state, options), gram_of(state, options))


def model_of_members(
    run: RunSpec, members: Sequence[ModelMember], refined: Weights | None = None, gram: GramScoring | None = None
) -> Model:
    """The model of some members, with the classes, the privacy guarantee and the class weight of a run."""
    facts = np.array(run.classes), run.feature_names, run.guarantee, refined
    return Model(tuple(members), *facts, counted_prior(members[0].counts, run.class_weight), gram)


def federation_of(state: RunState, options: RunOptions, members: Sequence[Member], phase: str) -> Federation:
    """The state of a run as a file, at the phase where a later run goes on; after the selection of its specs alone."""
    run, chosen = state.run_spec, members_of(state, options)
    is_selected = phase == "" or "selection" in state.results or options.has_members
    if is_selected:
        indices = member_indices(state, options)
        run = run.only(indices)
        members = [replace(m, sha256=tuple(m.sha256[i] for i in indices)) if m.sha256 else m for m in members]
    else:
        totals, scoring = state.results["counts"], chosen[0].scoring
        chosen = tuple(ModelMember(spec, part, scoring) for spec, part in zip(run.specs, totals.parts, strict=True))
    # A descent that is not over is not saved: a later run begins it anew.
    has_all = phase in BEHIND_MODEL and (is_selected or len(chosen) == 1)
    refined, gram = (refined_of(state, options), gram_of(state, options)) if has_all else (None, None)
    most = 1 if is_selected else options.max_members
    model = model_of_members(run, chosen, refined, gram)
    return Federation(run, model, members, phase, most, is_selected, options.is_thorough)
