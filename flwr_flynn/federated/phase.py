"""A phase of a run, and the state that phases lead to.

A phase is a name, a request that follows from the state, and a fold that puts the total of the answers into the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.roster import Roster
from flwr_flynn.federated.run_spec import RunSpec


@dataclass(frozen=True)
class RunState:
    """Results of the phases of a run so far, and reasons of parties without an answer, by the names of the phases."""

    run_spec: RunSpec
    results: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # the reasons by name of the party

    def absent(self, *phases: str) -> dict[str, str]:
        """Reasons of parties without an answer in some phases, by name."""
        return {name: reason for phase in phases for name, reason in self.missing.get(phase, {}).items()}

    def with_result(self, name: str, result: Any) -> RunState:
        """The state with the result of a phase."""
        return replace(self, results={**self.results, name: result})

    def without(self, names: Iterable[str]) -> RunState:
        """The state without the results of some phases."""
        gone = set(names)
        return replace(self, results={name: result for name, result in self.results.items() if name not in gone})


@dataclass(frozen=True)
class Context:
    """Facts besides the state that a request or a fold may use."""

    options: RunOptions
    counted: Roster  # of the counts
    missing: Mapping[str, str] = field(default_factory=dict)  # in a fold: reasons of parties without an answer, by name
    names: Mapping[str, str] = field(default_factory=dict)  # in a fold: names of parties in reports, by cid
    request: Any = None  # in a fold: the request that was answered

    def unanswered_by(self, passed: Iterable[str]) -> dict[str, str]:
        """In a fold: reasons of counted parties without an answer, by name; `passed` are the cids of the others."""
        answered = {self.counted.member(cid) for cid in passed}
        silent = [member for member in self.counted.members if member not in answered]
        absent = {self.names.get(member.node, str(member)): "not there to be asked" for member in silent}
        return absent | dict(self.missing)


ALL, NEW, COUNTED, PRESENT = "all", "new", "counted", "present"
"""Audiences: parties that this phase has no answer of; those of them that are not in the saved federation; parties
whose counts are in the sum; parties that are there."""


def _always(_options: RunOptions) -> bool:
    return True


@dataclass(frozen=True)
class Phase:
    """One step of a run. ``tests/own_phase_app`` is a Flower app with a histogram as a phase of its own.

    Parameters
    ----------
    name : str
        Key of its result in the state.
    channel : {"train", "evaluate"}
    request : callable
        (state, context) -> Request.
    fold : callable
        (state, batch, context) -> state with the phase's result.
    is_counting : bool, default=False
        True for the counting, which goes on in the next round until enough parties are counted.
    audience : {"all", "new", "counted", "present"}, default="all"
    derives_specs : bool, default=False
        True where the specs of the run follow from the phase: before it nothing of a run can be kept.
    resumes_at : tuple of str, default=()
        Earlier phases of which the first in the plan is where a run that stopped in this phase begins anew.
    content : str, default=""
        That of a party's answer in words, for the dry run.
    applies : callable, default=always
        Options of a run -> True where its plan has the phase.
    """

    name: str
    channel: str
    request: Callable[[RunState, Context], Request[Any]]
    fold: Callable[[RunState, Batch[Any], Context], RunState]
    is_counting: bool = False
    audience: str = ALL
    derives_specs: bool = False
    resumes_at: tuple[str, ...] = ()
    content: str = ""
    applies: Callable[[RunOptions], bool] = _always

    def resumed_at(self, names: Collection[str]) -> str:
        """Name of the phase at which a run that stopped in this one begins anew; `names` are those of its plan."""
        return next((name for name in self.resumes_at if name in names), self.name)
