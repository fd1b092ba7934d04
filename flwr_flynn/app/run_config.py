"""The settings of one run: all groups together, checked before it starts.

They come from ``[tool.flwr.app.config]`` in pyproject.toml and from ``flwr run --run-config``. Each field is one key
(``hash_dim`` is spelled ``hash-dim`` outside). The defaults in pyproject.toml and the table of the documentation follow
from them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from flwr_flynn.app.run_settings import (
    LATER,
    DataSettings,
    HashSettings,
    PartitionSettings,
    PrivacySettings,
    RunSettings,
    ScoringSettings,
    SecureSettings,
    fixed,
    simulated,
)
from flwr_flynn.app.settings_parser import entries, setting, whole_numbers
from flwr_flynn.federated.options import conflicts
from flwr_flynn.model.candidates import HashPlan

_MAX_PARTIES = 10**6  # of a simulation

_deployed = partial(setting, deployment_only=True, fixed_by_federation=LATER)


@dataclass(frozen=True)
class FederationSettings(RunSettings):
    """The action of the run, the federation that it makes or changes, and the parties that take part."""

    group = "federation"

    action: str = setting(
        "train",
        "`train` makes a new federation. The others take hash, classes and privacy from its file: `join` adds parties, "
        "`withdraw` removes parties, `update` takes over changed samples, `evaluate` distributes the model, `resume` "
        "goes on with a run that stopped",
        choices=("train", *LATER),
    )
    federation: str = setting(
        "", "the server's own file with counts and parties; not given: `federation.npz` in the output folder"
    )
    relearn: bool = fixed(False, "`train`: replace the federation in `federation`, once the new one is complete")
    parties: str = simulated(
        "", "simulation: the parties that take part, or that `withdraw` removes, as in `0-7,9`; not given: all"
    )
    min_available: int = setting(0, "parties to wait for before the first round; 0: all of the simulation", low=0)
    min_parties: int = setting(
        0,
        "parties that must be counted, and that must reply in each later phase for it to change the model; 0: "
        "`min-available`. With `join`, `withdraw` and `update` those that must join, leave or change; 0: one",
        low=0,
    )
    feature_names: str = _deployed(
        "", "deployment: the columns that each party reads as features, with commas between, or as a JSON list"
    )
    n_features: int = _deployed(
        0, "deployment: number of features, all numbers without gaps, of files without names in common", low=0
    )
    schema: str = fixed(
        "",
        "`schema.toml`, the server's own file with kinds, levels and ranges of the columns; or `learn`, in one more "
        "round from numbers of rows by level. Not given: `learn` for categories, dates or gaps of a simulation, and in "
        "a deployment without `feature-names` and `n-features`. With `epsilon` and `secure` such columns need the file",
    )
    ignore: str = fixed("", "columns that are not used where a schema is learned, with commas between, or a JSON list")
    keep: str = fixed(
        "", "columns that are used though nearly all of their values differ, which else are left out as ids or notes"
    )
    n_examples: int = _deployed(0, "deployment: rough number of samples at all parties together, if public", low=0)
    classes: str = _deployed("", "deployment: class list with commas between, or a JSON list")

    def check(self) -> None:
        super().check()
        if self.min_available and self.min_parties > self.min_available:
            raise self.refused("min_parties", f"at most min-available = {self.min_available}")
        if self.action != "train" and not self.federation:
            raise self.refused("federation", f"the server's own file with action = {self.action}", "missing")
        self.party_numbers()

    def party_numbers(self) -> frozenset[int] | None:
        """`parties` as numbers; None for all."""
        if not self.parties:
            return None
        numbers: set[int] = set()
        for part in self.parties.split(","):
            first, dash, last = part.strip().partition("-")
            ends = whole_numbers([first, last if dash else first])
            if ends is None or not 0 <= ends[0] <= ends[1] <= _MAX_PARTIES:
                raise self.refused("parties", "numbers and ranges from 0 with commas between, such as 0-7,9")
            numbers |= set(range(ends[0], ends[1] + 1))
        return frozenset(numbers)

    def class_list(self) -> list[str | int]:
        """`classes` as a list: integers where every entry is one, strings otherwise."""
        classes: list[str | int] = entries("run-config classes", self.classes, (str, int))
        if not self.classes.startswith("["):
            classes = [*(whole_numbers([str(entry) for entry in classes]) or classes)]
        if len({type(entry) for entry in classes}) > 1 or len(set(classes)) < len(classes) or "" in classes:
            raise self.refused("classes", "different names of one type")
        return classes

    def feature_list(self) -> tuple[str, ...]:
        """`feature_names` as they are in the parties' files; () where none are given."""
        names = entries("run-config feature-names", self.feature_names, (str,))
        if len(set(names)) < len(names) or "" in names:
            raise self.refused("feature_names", "different names")
        if names and self.n_features not in (0, len(names)):
            raise self.refused("n_features", f"{len(names)}, as many as feature-names")
        return tuple(names)

    def columns(self, name: str) -> tuple[str, ...]:
        """`ignore` or `keep` as names of columns."""
        return tuple(entries(f"run-config {name}", getattr(self, name), (str,)))


@dataclass(frozen=True)
class ProcessSettings(RunSettings):
    """The rounds of the run, its limits and its output."""

    group = "run"

    rounds: int = setting(
        0, "rounds; 0: as many as the run needs. Later rounds ask parties that are not counted yet", low=0, high=1000
    )
    timeout: float = setting(
        600.0, "seconds to wait for the parties, and for the replies of a round; 0: no limit", low=0, high=10**9
    )
    nodes_at_a_time: int = setting(
        0,
        "for thousands of parties: ask so many at a time, by Flower's Message API, and add each reply as it comes; 0: "
        "all at once, by its `Strategy` API; must be 0 with `secure`",
        low=0,
        high=10**6,
    )
    evaluate: str = setting(
        "auto",
        "evaluate the model on held-out samples of the parties, and select by their leave-one-out; `auto`: yes, but "
        "not beside noisy counts in a deployment, whose epsilon does not cover the confusion matrices, unless `action` "
        "is `evaluate`",
        choices=("auto", "true", "false"),
    )
    group_column: str = setting(
        "", "a category among the columns (sex, scanner, ward): the report has figures by its levels, too"
    )
    check_pooled: bool = simulated(True, "simulation: train on the pooled data, too, and compare the counts")
    dry_run: bool = setting(
        False, "ask nobody: print phases, what would leave, memory and node settings, also to `plan.json`, and end"
    )
    memory_limit: float = setting(4.0, "most GiB for the counting, at the server and at each simulated party", above=0)
    output_dir: str = setting("", "folder for `model.npz`, `metrics.json`; not given: `flynn/<run id>` under FLWR_HOME")


@dataclass(frozen=True)
class RunConfig(
    ProcessSettings,
    FederationSettings,
    SecureSettings,
    PrivacySettings,
    ScoringSettings,
    HashSettings,
    PartitionSettings,
    DataSettings,
):
    """The settings of one `flwr run`: all groups together, and the checks between groups.

    0 and "" mean "not given" where the meaning of a key says so.
    """

    def check(self) -> None:
        super().check()
        if self.secure:
            if self.nodes_at_a_time:
                raise self.refused("nodes_at_a_time", "0 with secure = true")
            if self.is_private and not self.honest_parties:
                raise self.refused("honest_parties", "the parties that share one noise with secure = true and epsilon")
            if self.honest_parties and not (self.is_private and self.delta):
                raise self.refused("honest_parties", "epsilon and delta above 0 beside it, for the noise to share")
        for name in ("feature_names", "n_features"):
            if self.schema and getattr(self, name):
                raise self.refused(name, "none with schema")
        decisions = conflicts(
            gram=self.gram_value(),
            is_thorough=self.effort == "thorough",
            is_evaluated=self.evaluate != "false",
            is_noisy=self.is_private,
            is_secure=self.secure,
            learns_columns=self.resolved().scaling == "auto",
            learns_schema=self.schema == "learn",
        )
        for name, is_violated, expected in decisions:
            if is_violated:
                raise self.refused(name, expected)
        expected = f"none with action = {self.action}, which takes it from the federation's file"
        for row in self.rows():
            if self.action in row.facts.fixed_by_federation and self.is_given(row.name):
                raise self.refused(row.name, expected)

    def evaluates(self, simulated: bool, goes_on_with_noise: bool = False) -> bool:
        """`evaluate`, with "auto" resolved: no exact results beside noisy counts, of this run or of its federation."""
        is_noisy = self.is_private or (goes_on_with_noise and self.action != "evaluate")
        return self.evaluate == "true" if self.evaluate != "auto" else simulated or not is_noisy

    def resolved(self) -> RunConfig:
        """These settings, with the value of `scaling="default"` in place."""
        if self.scaling != "default":
            return self
        return replace(self, scaling="none" if self.is_private or self.center or self.scale or self.ranges else "auto")

    def plan(self, n_features: int, n_examples: int | None, n_classes: int) -> HashPlan:
        """The run's `HashPlan`, of these settings as `resolved`."""
        return super(RunConfig, self.resolved()).plan(n_features, n_examples, n_classes)

    def ignored(self, simulated: bool) -> list[str]:
        """Given keys that a simulation, or a deployment, does not use."""
        other = "deployment_only" if simulated else "simulation_only"
        return [row.key for row in self.rows() if getattr(row.facts, other) and self.is_given(row.name)]


def default_folder(run_id: int) -> Path:
    """The output folder of a run where none is given."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return Path(home) / "flynn" / str(run_id)
