"""The run's settings together: the rules between them, and the values and decisions that follow from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr_flynn.app.run_settings import (
    DataSettings,
    FederationSettings,
    HashSettings,
    PartitionSettings,
    PrivacySettings,
    ProcessSettings,
    ScoringSettings,
    SecureSettings,
)
from flwr_flynn.app.settings_parser import Rule, as_setting, entries, floats, whole_numbers
from flwr_flynn.errors import SpecError
from flwr_flynn.federated.options import conflicts
from flwr_flynn.model.candidates import HashPlan, placeholder_specs
from flwr_flynn.model.gram_scoring import MOST_ROWS

BY_ID = ("natural-id", "grouped-natural-id")
BY_COLUMN = ("continuous", *BY_ID)
"""Partitioners that split by a column other than the label."""

_FOLLOWING = frozenset({"num_partitions", "seed", "alpha", "distribution_array"})
"""Arguments of partitioners that other settings determine."""

_MAX_PARTIES = 10**6  # of a simulation
_WIDEST = 2**14  # most columns for scaling "auto": centred ones are dense


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
    """The settings of one `flwr run`, with the rules between them and the values that follow from them."""

    source = "run-config"

    def __post_init__(self) -> None:
        if self.honest_parties:
            object.__setattr__(self, "secure", True)

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        for name in ("center", "scale", "ranges"):
            yield name, self.scaling == "auto" and self.is_given(name), "none beside scaling = auto"
        yield "ranges", bool(self.ranges and (self.center or self.scale)), "none beside center and scale"
        yield "n_released", bool(self.delta and self.n_released), "0 with delta"
        yield "private_rounds", self.private_rounds > 0 and not self.delta, "0 without delta"
        needs_bound = self.secure and not (self.max_examples or self.honest_parties)
        yield "max_examples", needs_bound, "a number above 0 with secure = true"
        yield "nodes_at_a_time", self.secure and self.nodes_at_a_time > 0, "0 with secure = true"
        needs_sharing = self.secure and self.is_private and not self.honest_parties
        yield "honest_parties", needs_sharing, "the parties that share one noise with secure = true and epsilon"
        has_none = self.honest_parties > 0 and not (self.is_private and self.delta)
        yield "honest_parties", has_none, "epsilon and delta above 0 beside it, for the noise to share"
        yield "min_parties", 0 < self.min_available < self.min_parties, f"at most min-available = {self.min_available}"
        expected = f"the server's own file with action = {self.action}"
        yield "federation", self.action != "train" and not self.federation, expected
        for name in ("feature_names", "n_features"):
            yield name, bool(self.schema and getattr(self, name)), "none with schema"
        expected = f"none with action = {self.action}, which takes it from the federation's file"
        for row in self.rows():
            yield row.name, self.action in row.facts.fixed_by_federation and self.is_given(row.name), expected
        yield from conflicts(
            gram=self.gram_value(),
            is_thorough=self.effort == "thorough",
            is_evaluated=self.evaluate != "false",
            is_noisy=self.is_private,
            is_secure=self.secure,
            learns_columns=self.resolved().scaling == "auto",
            learns_schema=self.schema == "learn",
        )

    def check(self) -> None:
        super().check()
        for read in (self.party_numbers, self.options, self.decay_value, self._given_ranges):
            read()

    # ---- values of texts

    def party_numbers(self) -> frozenset[int] | None:
        """`parties` as numbers; None for all."""
        numbers: set[int] = set()
        for part in self.parties.split(",") if self.parties else ():
            first, dash, last = part.strip().partition("-")
            ends = whole_numbers([first, last if dash else first])
            if ends is None or not 0 <= ends[0] <= ends[1] <= _MAX_PARTIES:
                raise self.refused("parties", "numbers and ranges from 0 with commas between, such as 0-7,9")
            numbers |= set(range(ends[0], ends[1] + 1))
        return frozenset(numbers) or None

    def class_list(self) -> list[str | int]:
        """`classes` as a list: integers where every entry is one, strings otherwise."""
        classes: list[str | int] = entries("run-config classes", self.classes, (str, int))
        if not self.classes.startswith("["):
            classes = [*(whole_numbers([str(entry) for entry in classes]) or classes)]
        if len({type(entry) for entry in classes}) > 1 or len(set(classes)) < len(classes) or "" in classes:
            raise self.refused("classes", "different names of one type")
        return classes

    def columns(self, name: str) -> tuple[str, ...]:
        """`feature_names`, `ignore` or `keep` as names of columns; () where none are given."""
        names = self.names(name)
        if name == "feature_names" and (len(set(names)) < len(names) or "" in names):
            raise self.refused("feature_names", "different names")
        if name == "feature_names" and names and self.n_features not in (0, len(names)):
            raise self.refused("n_features", f"{len(names)}, as many as feature-names")
        return names

    def options(self) -> dict[str, Any]:
        """`partitioner_options` as keyword arguments."""
        try:
            options = json.loads(self.partitioner_options or "{}")
        except (ValueError, RecursionError):
            options = None
        following = _FOLLOWING if self.partitioner in BY_COLUMN else _FOLLOWING | {"partition_by"}
        if not isinstance(options, dict) or following & options.keys():
            raise self.refused("partitioner_options", f"a JSON object without {', '.join(sorted(following))}")
        return options

    @property
    def partition_column(self) -> str:
        """Name of the column other than the label by which samples are distributed; "" for none."""
        return str(self.options().get("partition_by", "")) if self.partitioner in BY_COLUMN else ""

    def gram_value(self) -> int | None:
        """`gram` as the strategy takes it; None for "auto"."""
        numbers = whole_numbers([self.gram])
        if self.gram != "auto" and (numbers is None or not 0 <= numbers[0] <= MOST_ROWS):
            raise self.refused("gram", f'"auto" or an integer from 0 to {MOST_ROWS}')
        return numbers[0] if numbers else None

    def decay_value(self) -> float | str:
        """`decay` as the strategy takes it: ``"auto"`` or a number in [0, 1)."""
        values = floats(self.decay, ",")
        if self.decay != "auto" and (len(values) != 1 or not 0 <= values[0] < 1):
            raise self.refused("decay", '"auto" or a number from 0 below 1')
        return values[0] if values else "auto"

    def _given_ranges(self, n_features: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Lower and upper ends of `ranges`, None without any; without `n_features` this checks their form."""
        pairs = [floats(part, ":") for part in self.ranges.split(",")] if self.ranges else []
        if not all(len(pair) == 2 and pair[0] < pair[1] for pair in pairs):
            raise self.refused("ranges", "`low:high` with finite low below high, or several with commas between")
        if not pairs:
            return None
        if n_features and len(pairs) not in (1, n_features):
            raise self.refused("ranges", f"one range or {n_features} with commas between", f"{len(pairs)}")
        lows, highs = zip(*(pairs * (n_features or 1) if len(pairs) == 1 else pairs), strict=True)
        return lows, highs

    def _vector(self, name: str, n_features: int) -> tuple[float, ...] | None:
        """`center` or `scale` as a number for each feature; None where it is not given."""
        if not (text := getattr(self, name)):
            return None
        numbers = floats(text, ",")
        if len(numbers) not in (1, n_features):
            raise self.refused(name, f"one finite number or {n_features} with commas between")
        return tuple(numbers * n_features if len(numbers) == 1 else numbers)

    # ---- decisions that follow

    @property
    def is_private(self) -> bool:
        """True if parties are asked for noisy counts."""
        return self.epsilon > 0

    @property
    def mechanism(self) -> str:
        """Kind of the noise."""
        if self.delta:
            return "gaussian-rounds" if self.private_rounds else "gaussian"
        return "top-t" if self.n_released else "laplace"

    @property
    def n_rounds(self) -> int:
        """Rounds of the mechanism, by its own name."""
        return self.private_rounds

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
        """The run's `HashPlan`: given sizes as they are, the others left to `HashSpec.suggest`."""
        scaling: Any = "auto" if self.resolved().scaling == "auto" and n_features <= _WIDEST else None
        if self.center or self.scale:
            scaling = (self._vector("center", n_features), self._vector("scale", n_features))
        given: dict[str, Any] = {"seed": self.seed, "effort": self.effort, "hash_dim": self.hash_dim or None}
        given["ranges"] = self._given_ranges(n_features)
        try:
            plan = HashPlan(n_features, n_classes, n_examples, scaling, **given)
            placeholder_specs(plan)  # sizes are checked before the parties start
        except SpecError as error:
            raise as_setting(error, self.source) from None
        return plan

    def ignored(self, simulated: bool) -> list[str]:
        """Given keys that a simulation, or a deployment, does not use."""
        other = "deployment_only" if simulated else "simulation_only"
        return [row.key for row in self.rows() if getattr(row.facts, other) and self.is_given(row.name)]


def default_folder(run_id: int) -> Path:
    """The output folder of a run where none is given."""
    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    return Path(home) / "flynn" / str(run_id)
