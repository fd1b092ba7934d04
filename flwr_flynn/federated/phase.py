"""A phase of a run, and the state that phases lead to.

A phase is a name, a request that follows from the state, and a fold that puts the total of the answers into the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flwr_flynn.federated.collect import Batch, Collect, collect_each
from flwr_flynn.federated.protocol import Request
from flwr_flynn.federated.roster import Roster
from flwr_flynn.federated.run_spec import RunSpec

if TYPE_CHECKING:
    from flwr_flynn.federated.options import RunOptions


@dataclass(frozen=True)
class RunState:
    """Results of the phases of a run so far."""

    run_spec: RunSpec
    results: Mapping[str, Any] = field(default_factory=dict)

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
    counted: Roster
    missing: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


ALL, NEW, COUNTED, SAMPLE = "all", "new", "counted", "sample"
"""Audiences: every party that this phase has no answer of; those of them that are in no saved run either; the parties
whose counts are in the sum; a share of the parties, by the option `fraction_evaluate`."""


@dataclass(frozen=True)
class Phase:
    """One step of a run.

    Parameters
    ----------
    name : str
        Under which the state holds its result.
    channel : {"train", "evaluate"}
        Flower's channel that carries its request.
    request : callable
        (state, context) -> Request.
    start : callable
        (state, context) -> the total of nobody's answers.
    fold : callable
        (state, batch, context) -> state with the phase's result. The batch holds the total, and who is in it.
    collect : callable, default=collect_each
    is_counting : bool, default=False
        Whether it is the counting, which goes on in later rounds for parties that are not counted yet.
    audience : {"all", "new", "counted", "sample"}, default="all"

    Examples
    --------
    A histogram as a phase of one's own is ``tests/own_phase_app``, a Flower app.
    """

    name: str
    channel: str
    request: Callable[[RunState, Context], Request[Any]]
    start: Callable[[RunState, Context], Any]
    fold: Callable[[RunState, Batch[Any], Context], RunState]
    collect: Collect = collect_each
    is_counting: bool = False
    audience: str = ALL
