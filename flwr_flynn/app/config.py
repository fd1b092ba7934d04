"""Run settings and node settings: two tables of keys, checked before anything runs.

The run's settings come from ``[tool.flwr.app.config]`` in pyproject.toml and from ``flwr run --run-config``; a party's
own from ``flower-supernode --node-config``. Each field is one key (``hash_dim`` is spelled ``hash-dim`` outside). The
defaults in pyproject.toml (`toml_block`) and the tables of the documentation follow from these.

>>> RunConfig.parse({"alpha": 0.3}).alpha
0.3
>>> RunConfig.parse({"alpha": -1})
Traceback (most recent call last):
flwr_flynn.errors.ConfigError: run-config alpha: expected a number above 0, got -1
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr_flynn.app.data.partition import PARTITIONERS
from flwr_flynn.app.run_settings import (
    MAX_SEED,
    DataSettings,
    FederationSettings,
    HashSettings,
    PartitionSettings,
    PrivacySettings,
    ProcessSettings,
    ReadoutSettings,
    SecureSettings,
)
from flwr_flynn.app.settings import Settings, as_setting, in_json, setting
from flwr_flynn.errors import ConfigError
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import MECHANISMS, NEIGHBOURS
from flwr_flynn.privacy.ledger import Policy
from flwr_flynn.privacy.policy import COMPOSITIONS

__all__ = ["PARTITIONERS", "POLICY_KEYS", "NodeConfig", "RunConfig"]

_PAPER = {"scaling": "none", "signed": "false", "rule": "novelty", "center": "", "scale": "", "ranges": ""}
"""Settings that preset "paper" fixes, with their values."""

_PAPER_DECAY = "0.5"  # unless the run gives one


@dataclass(frozen=True)
class RunConfig(
    ProcessSettings,
    FederationSettings,
    SecureSettings,
    PrivacySettings,
    ReadoutSettings,
    HashSettings,
    PartitionSettings,
    DataSettings,
):
    """The settings of one `flwr run`: all groups together, and the checks between groups.

    Every field is one key, with underscores spelled as hyphens. 0 and "" mean "not given" where the meaning of a
    key says so.
    """

    def check(self) -> None:
        super().check()
        if self.preset == "paper":
            for name, fixed in _PAPER.items():
                if self.is_given(name) and getattr(self, name) != fixed:
                    raise self.refused(name, f"{fixed or 'none'} with preset = paper")
        if self.secure:
            if self.nodes_at_a_time:
                raise self.refused("nodes_at_a_time", "0 with secure = true")
            if self.align:
                raise self.refused("align", "false with secure = true")
            if self.is_private and self.mechanism_kind != "gaussian":
                raise self.refused("mechanism", "gaussian with secure = true (give a delta)", self.mechanism_kind)
        if self.is_private:
            if self.refine_rounds:
                raise self.refused("refine_rounds", "0 with epsilon")
            self._require_unscaled("epsilon, which covers no sums of columns")
        if self.groups:
            self._require_unscaled("groups, as any party can spoil sums of columns")
            for name in ("refine_rounds", "align", "epsilon", "secure"):
                if getattr(self, name):
                    raise self.refused(name, "none with groups")
        expected = f"none with action = {self.action}, which takes it from the federation's file"
        for row in self.rows():
            if self.action in row.facts.fixed_by_federation and self.is_given(row.name):
                raise self.refused(row.name, expected)

    def _require_unscaled(self, setting: str) -> None:
        if self.scaling not in ("default", "none"):
            raise self.refused(
                "scaling", f"none with {setting} (give public center and scale, or ranges)", self.scaling
            )

    def evaluates(self, simulated: bool) -> bool:
        """`evaluate`, with "auto" resolved."""
        return self.evaluate == "true" if self.evaluate != "auto" else simulated or not self.is_private

    def resolved(self) -> RunConfig:
        """These settings with the preset's values, or those that others call for, instead of defaults."""
        if self.preset != "paper":
            learns = not (self.is_private or self.is_public or self.groups)
            return replace(self, scaling="auto" if learns else "none") if self.scaling == "default" else self
        given: dict[str, Any] = {**_PAPER, "decay": self.decay if self.is_given("decay") else _PAPER_DECAY}
        return replace(self, **given)

    def plan(self, n_features: int, n_examples: int | None, n_classes: int) -> HashPlan:
        """The run's `HashPlan`, of these settings as `resolved`."""
        return super(RunConfig, self.resolved()).plan(n_features, n_examples, n_classes)

    def simulation_only(self) -> list[str]:
        """Keys that are given, and that only a simulation uses."""
        return [row.key for row in self.rows() if row.facts.simulation_only and self.is_given(row.name)]

    def deployment_only(self) -> list[str]:
        """Keys that are given, and that only a deployment uses."""
        return [row.key for row in self.rows() if row.facts.deployment_only and self.is_given(row.name)]


_of_policy = partial(setting, needs=("max_epsilon",))


@dataclass(frozen=True)
class NodeConfig(Settings):
    """The settings with which a deployed party was started.

    Every field is one key of ``flower-supernode --node-config``, with underscores spelled as hyphens.
    """

    source = "node-config"
    group = "party"
    foreign = frozenset({"partition-id", "num-partitions"})  # Flower's tutorials give them to every node

    data_path: str = setting("", "the party's own `.csv`, `.parquet` or `.npz` file", required=True)
    label: str = setting("", "its label column; not given: `label` (CSV, Parquet) or `y` (NPZ)")
    model_path: str = setting(
        "", "file to which the party's own copy of the model is written, whole or not at all; one there is replaced"
    )
    party_id: str = setting("", "the name under which the server reports this party")
    test_fraction: float = setting(0.2, "share of the party's samples held out for the evaluation", low=0, below=1)
    split_seed: int = setting(0, "seed of the held-out rule", low=0, high=MAX_SEED)
    memory_limit: float = setting(4.0, "GiB that the counting may take; a spec that needs more is refused", above=0)
    min_examples: int = setting(
        5, "classes of fewer samples are left out of the party's sums and histograms of columns", low=1
    )
    personal: bool = setting(
        True,
        "the party's copy of the model gets the class frequencies of its own training samples beside it, where "
        "leave-one-out over these decides for them; not with `max-epsilon`",
    )
    max_epsilon: float = setting(
        0.0,
        "bound on what all private answers together give away; nothing but noisy counts leaves the party then. Not "
        "given: no private answers, and none of the keys that say how they are to be",
        above=0,
    )
    max_delta: float = _of_policy(0.0, "likewise, the sum of their `delta`", low=0, high=0.01)
    secure: bool = setting(
        False,
        "nothing about training samples leaves the party but in secure sums; other requests are refused. With "
        "`max-epsilon` that bounds the epsilon of the sum, while as many parties are honest as the request says; a "
        "server that invents parties breaks that, and a share alone has a larger epsilon",
    )
    leave: bool = setting(
        False,
        "the party leaves: it answers runs with `action = withdraw`, by the counts it was counted by, and no others",
    )
    state_path: str = _of_policy("", "folder in which the party keeps its private answers; needed with `max-epsilon`")
    mechanisms: str = _of_policy("gaussian, laplace, top-t", "mechanisms that may be asked for")
    neighbours: str = _of_policy(
        "add-remove", "protection that an answer must give at least; `replace-one` is the stronger", choices=NEIGHBOURS
    )
    records_per_person: int = _of_policy(
        1, "records of one person that an answer must protect at least", low=1, high=10**6
    )
    composition: str = _of_policy(
        "basic",
        "account by which private answers add up, fixed when the ledger is made: `basic` sums, or `zcdp`, by which "
        "many answers with much noise cost less, and which needs `max-delta`",
        choices=COMPOSITIONS,
    )
    max_releases: int = _of_policy(100, "private answers at most, old ones again not counted", low=1, high=10**6)
    evaluate: bool = setting(
        False,
        "with `max-epsilon` or `secure`: try models on samples held out, and let the confusion matrix leave the party",
    )
    response_seconds: float = _of_policy(
        0.0,
        "with `max-epsilon`: seconds that every answer takes, be it a release, an old one again or a refusal, so that "
        "its time tells nothing; 0: as long as it takes",
        low=0,
        high=86400,
    )

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> NodeConfig:
        """Check a mapping as `Settings.parse` does, and refuse settings of a policy without `max-epsilon`."""
        # Whoever names one of them wants a policy. Without a bound there is none, and exact counts would leave.
        if "max-epsilon" not in raw and (given := [key for key in POLICY_KEYS if key in raw]):
            raise ConfigError("node-config max-epsilon", f"a number above 0 beside {given[0]}", "none")
        node = super().parse(raw)
        if "evaluate" in raw and not (node.max_epsilon or node.secure):
            raise ConfigError("node-config max-epsilon", "a number above 0, or secure = true, beside evaluate", "none")
        return node

    def check(self) -> None:
        super().check()
        if not self.max_epsilon:
            return
        if not Path(self.state_path).is_absolute():
            got = in_json(self.state_path) if self.state_path else "none"
            raise self.refused("state_path", "an absolute path beside max-epsilon", got)
        if not Path(os.path.normpath(self.state_path)).name:
            raise self.refused("state_path", "a folder of its own below the root")
        self.policy()

    def policy(self) -> Policy:
        """The bounds on what the party gives away."""
        kinds = [kind.strip() for kind in self.mechanisms.split(",")]
        if unknown := [kind for kind in kinds if kind not in MECHANISMS]:
            raise self.refused("mechanisms", f"some of {', '.join(MECHANISMS)}", in_json(unknown[0]))
        try:
            return Policy(
                self.max_epsilon,
                self.max_delta,
                kinds,
                self.neighbours,
                self.records_per_person,
                self.secure,
                max_releases=self.max_releases,
                composition=self.composition,
            )
        except ConfigError as error:
            raise as_setting(error, self.source) from None


POLICY_KEYS = tuple(row.key for row in NodeConfig.rows() if "max_epsilon" in row.facts.needs)
"""Keys of a node config that say something about private answers, and nothing where there are none."""
