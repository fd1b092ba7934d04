"""Run settings and node settings: one table of keys, checked before anything runs.

The run's settings come from ``[tool.flwr.app.config]`` in pyproject.toml and from ``flwr run --run-config``;
a party's own from ``flower-supernode --node-config``. Both reach an app as flat mappings of scalars. Each
field of `RunConfig` and `NodeConfig` below is one key (``hash_dim`` is spelled ``hash-dim`` outside), with
its default, its bounds and its meaning; the table in README.md and the defaults in pyproject.toml are tested
against it.

>>> RunConfig.parse({"alpha": 0.3}).alpha
0.3
>>> RunConfig.parse({"alpha": -1})
Traceback (most recent call last):
flwr_flynn.errors.ConfigError: run-config alpha: expected a number above 0, got -1
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flwr_flynn.app.settings import Settings, entries, setting, whole_numbers
from flwr_flynn.errors import ConfigError, SpecError
from flwr_flynn.federated.options import PURPOSES
from flwr_flynn.federated.phases.columns import foreseen
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.column_moments import SCALINGS
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import ACCOUNTINGS, MECHANISMS, NEIGHBOURS
from flwr_flynn.privacy.ledger import Policy

PARTITIONERS = (
    "iid",
    "dirichlet",
    "inner-dirichlet",
    "pathological",
    "shard",
    "distribution",
    "continuous",
    "linear",
    "square",
    "exponential",
    "size",
    "natural-id",
    "grouped-natural-id",
)
CLASS_ASSIGNMENTS = ("random", "deterministic", "first-deterministic")
GROUP_MODES = ("allow-smaller", "allow-bigger", "drop-reminder", "strict")

DEFAULT_SCALING = "none"
"""What happens to the columns if neither `scaling` nor `center` or `scale` says otherwise."""

_MAX_WIDTH = 2**14  # columns up to which scaling "auto" looks at them: centred ones are dense

_PAPER: dict[str, tuple[str, Any]] = {
    # field: what preset "paper" makes of its default, and the values that it does not go with
    "scaling": ("none", tuple(name for name in (*SCALINGS, "auto"))),
    "signed": ("false", ("true",)),
    "rule": ("novelty", ("bayes",)),
    "decay": ("0.5", ()),
}

_MAX_PARTIES = 10**6  # of a simulation

_DEPLOYMENT = ("feature_names", "n_features", "n_examples", "classes")

_MAX_SEED = 2**63 - 1  # TOML integers are 64-bit and signed


@dataclass(frozen=True)
class RunConfig(Settings):
    """What `flwr run` was asked to do.

    Every field is one key, with underscores spelled as hyphens. 0 and "" mean "not given".
    """

    source = "run-config"

    # The data (in a simulation; a deployed party has its own, see NodeConfig)
    dataset: str = setting(
        "digits",
        "`digits`, `synthetic`, `openml:ID`, or the path of a `.csv`, `.parquet` or `.npz` file",
    )
    label: str = setting("", "the label column of a file; not given: `label` (CSV, Parquet) or `y` (NPZ)")
    synthetic_examples: int = setting(1000, "`synthetic`: number of points", low=1, high=10**8)
    synthetic_features: int = setting(50, "`synthetic`: number of features", low=2, high=10**6)
    synthetic_informative: int = setting(25, "`synthetic`: number of features that tell the classes apart", low=1)
    synthetic_classes: int = setting(5, "`synthetic`: number of classes", low=2, high=10**5)
    test_fraction: float = setting(0.2, "simulation: share of the points held out for the evaluation", low=0, below=1)
    split_seed: int = setting(
        0, "simulation: seed of the held-out rule, of the partitioner and of `synthetic`", low=0, high=_MAX_SEED
    )

    # How a simulation deals the data out
    partitioner: str = setting("dirichlet", "one of flwr-datasets' partitioners, see below", choices=PARTITIONERS)
    alpha: float = setting(0.1, "`dirichlet`, `inner-dirichlet`: concentration; small is skewed", above=0)
    self_balancing: bool = setting(False, "`dirichlet`: even out the sizes")
    min_partition_size: int = setting(0, "`dirichlet`: smallest share; an empty party is a valid party", low=0)
    classes_per_party: int = setting(2, "`pathological`, `distribution`: classes at each party", low=1)
    class_assignment: str = setting("random", "`pathological`: how classes are assigned", choices=CLASS_ASSIGNMENTS)
    shards_per_party: int = setting(2, "`shard`: shards at each party; 0: deal out every shard of `shard-size`", low=0)
    shard_size: int = setting(0, "`shard`: points in a shard; 0: as many as `shards-per-party` allows", low=0)
    keep_incomplete_shard: bool = setting(False, "`shard`: deal out the last, smaller shard too")
    distribution_sigma: float = setting(2.0, "`distribution`: sigma of the log-normal sizes", low=0, high=20)
    preassigned: int = setting(5, "`distribution`: points of each class a party has at least", low=0)
    strictness: float = setting(1.0, "`continuous`: 1 sorts by the feature, 0 is IID", low=0, high=1)
    partition_by: str = setting(
        "",
        "`continuous`: feature to sort by; the natural-id ones: the file's column of ids, not a feature then",
    )
    group_size: int = setting(5, "`grouped-natural-id`: ids in a group", low=1)
    group_mode: str = setting("allow-smaller", "`grouped-natural-id`: what to do with the rest", choices=GROUP_MODES)
    partition_sizes: str = setting("", "`size`, `inner-dirichlet`: sizes with commas between; not given: equal")

    # The hash and the read-out
    preset: str = setting(
        "default",
        "`paper`: raw columns, rows of ones, rule `novelty`, decay 0.5 unless given: one round, nothing to choose",
        choices=("default", "paper"),
    )
    scaling: str = setting(
        DEFAULT_SCALING,
        "what happens to the columns, learned from their exact sums in a round of its own; `auto`: up to four hashes "
        "are counted and the best by leave-one-out is kept",
        choices=("none", *SCALINGS, "auto"),
    )
    min_examples: int = setting(
        5,
        "a party leaves classes of fewer points out of its sums of columns; 1 sends sums that may be one point",
        low=1,
    )
    seed: int = setting(0, "seed of the hash: every party expands it to the same rows", low=0, high=_MAX_SEED)
    hash_dim: int = setting(0, "rows of the lifting matrix (m); 0: chosen from the data's size", low=0)
    row_nnz: int = setting(0, "ones in a row (s); 0: chosen", low=0)
    hash_nnz: int = setting(0, "winners, ones in a hash (rho); 0: chosen", low=0)
    signed: str = setting(
        "auto",
        "draw each one of a row as +1 or -1; `auto`: if the columns are scaled or centred",
        choices=("auto", "true", "false"),
    )
    center: str = setting(
        "",
        "public centre taken from the points, instead of `scaling`: one number, or one per feature with commas between",
    )
    scale: str = setting("", "public factor after the centre: one number above 0, or one per feature")
    decay: str = setting(
        "auto",
        "gamma of the read-out, from 0 to below 1; `auto`: chosen by leave-one-out at the parties, in one more round",
    )
    rule: str = setting("balanced", "read-out", choices=RULES)

    # Privacy
    epsilon: float = setting(
        0.0,
        "what a party's counts may give away of a record at most; 0: exact counts. Above 0 nothing is learned of the "
        "columns and there is nothing to choose: give public `center` and `scale`",
        low=0,
        high=100,
    )
    delta: float = setting(
        0.0,
        "probability with which that may fail, much below one over the number of people; 0: never",
        low=0,
        high=0.5,
    )
    mechanism: str = setting(
        "auto",
        "noise: `gaussian` (needs `delta`), `laplace`, or the paper's `top-t`; `auto`: `gaussian` with `delta`, else "
        "`laplace`",
        choices=("auto", *MECHANISMS),
    )
    n_released: int = setting(0, "`top-t`: counts that a party releases (T)", low=0)
    accounting: str = setting("tight", "`top-t`: how noise follows from epsilon", choices=ACCOUNTINGS)
    neighbours: str = setting(
        "add-remove", "what must be hard to tell: a record more or less, or one in another's place", choices=NEIGHBOURS
    )
    records_per_person: int = setting(
        1, "records of one person, at most, that epsilon is for together", low=1, high=10**6
    )
    noise: str = setting(
        "opendp",
        "where noise comes from; `seeded`: from `seed`, for simulations that are to be repeated, and no privacy",
        choices=("opendp", "seeded"),
    )

    secure: bool = setting(
        False,
        "count by Flower's SecAgg+: the server learns the sum alone. There is one spec then and nothing to choose; "
        "needs `max-examples`, and at least three parties",
    )
    secure_threshold: float = setting(
        0.67, "`secure`: share of the parties that must be there to the end, from .67", low=0.67, high=1
    )
    honest_parties: int = setting(
        0,
        "`secure` with `epsilon`: parties that add their noise and keep it to themselves, whatever the others do; each "
        "adds its share of the noise of one. At most `secure-threshold` of `min-available`, which leaves no room for "
        "one that tells its noise; 0: one less than that, but at least 2",
        low=0,
        high=10**6,
    )

    # The federation
    max_examples: int = setting(
        0, "points that a party may count; more are refused. 0: no limit, but not with `secure`", low=0, high=2**29
    )
    action: str = setting(
        "train",
        "`train` makes a new federation; `join` adds parties to the one in `federation`, `withdraw` takes out those "
        "that leave it, `evaluate` hands it out as it is; these three take hash, classes and privacy from the file",
        choices=PURPOSES,
    )
    federation: str = setting(
        "",
        "the server's own file, with the ledger of the parties: made by `train`, changed by `join` and `withdraw`; "
        "not given: `federation.npz` in the output folder",
    )
    parties: str = setting(
        "",
        "simulation: numbers of the parties that take part, or that `withdraw` takes out, such as `0-7,9`; not given: "
        "all",
    )
    rounds: int = setting(
        0,
        "rounds; 0: as many as the run needs; those after the counting ask only the parties not yet counted",
        low=0,
        high=1000,
    )
    timeout: float = setting(
        600.0, "seconds to wait for the parties, and for a round's replies; 0: as long as it takes", low=0, high=10**9
    )
    min_available: int = setting(0, "parties to wait for before the first round; 0: all of the simulation", low=0)
    min_parties: int = setting(0, "parties that must be counted in the end; 0: `min-available`", low=0)
    feature_names: str = setting(
        "",
        "deployment: the features by name, with commas between, or a JSON list: each party takes these columns of its "
        "file, in this order",
    )
    n_features: int = setting(
        0, "deployment: number of features, which the server cannot see; not needed with `feature-names`", low=0
    )
    n_examples: int = setting(0, "deployment: about how many points there are in all, if public", low=0)
    classes: str = setting("", "deployment: class list with commas between, or a JSON list")
    evaluate: str = setting(
        "auto",
        "whether parties try the model on held-out points, and have a say in the choice; `auto`: yes, but not where "
        "`epsilon` is given in a deployment, as it does not cover the confusion matrices",
        choices=("auto", "true", "false"),
    )
    check_pooled: bool = setting(True, "simulation: train on the pooled data too and compare the counts")
    memory_limit: float = setting(
        4.0, "GiB that the counting may take, at the server and in a simulation at each party", above=0
    )
    output_dir: str = setting(
        "", "folder for `model.npz` and `metrics.json`; not given: `flynn/<run id>` under FLWR_HOME"
    )

    def _check_together(self) -> None:
        if self.min_available and self.min_parties > self.min_available:
            raise ConfigError(
                f"run-config min-parties: expected at most min-available = {self.min_available}, got {self.min_parties}"
            )
        if self.dataset == "synthetic" and self.synthetic_examples * self.synthetic_features > 10**8:
            raise ConfigError(
                "run-config synthetic-examples: expected at most 10**8 / synthetic-features = "
                f"{10**8 // self.synthetic_features}, got {self.synthetic_examples}"
            )
        for name in ("center", "scale"):
            if getattr(self, name) and self.scaling not in ("none", DEFAULT_SCALING):
                raise ConfigError(f"run-config {name}: expected none beside scaling = {self.scaling}")
        if self.preset == "paper":
            for name, (_, others) in _PAPER.items():
                if getattr(self, name) in others and getattr(self, name) != getattr(RunConfig, name):
                    raise ConfigError(f"run-config {name}: preset = paper has another than {getattr(self, name)}")
            for name in ("center", "scale"):
                if getattr(self, name):
                    raise ConfigError(f"run-config {name}: preset = paper has none")
        if self.decay != "auto":
            self.decay_value()
        self.party_numbers()
        self._check_secure()
        self._check_privacy()
        self._check_action()

    def _check_secure(self) -> None:
        if not self.secure:
            for name in ("secure_threshold", "honest_parties"):
                if getattr(self, name) != getattr(RunConfig, name):
                    raise ConfigError(
                        f"run-config {name.replace('_', '-')}: expected secure = true beside it, got false"
                    )
            return
        if not self.max_examples:
            raise ConfigError("run-config max-examples: expected a number above 0 with secure = true, got 0")
        if self.scaling not in ("none", DEFAULT_SCALING):
            raise ConfigError(
                f"run-config scaling: expected none with secure = true, as sums of columns are not secure; got "
                f"{self.scaling} (give public center and scale)"
            )
        if self.honest_parties and not self.epsilon:
            raise ConfigError("run-config honest-parties: expected epsilon above 0 beside it, got 0")
        if self.epsilon and self.mechanism_kind != "gaussian":
            raise ConfigError(
                f"run-config mechanism: expected gaussian with secure = true, got {self.mechanism_kind} (give a delta)"
            )

    def _check_action(self) -> None:
        if self.action == "train":
            return
        if not self.federation:
            raise ConfigError(f"run-config federation: missing; action = {self.action} needs the server's own file")
        names = [each.name for each in fields(self)]
        fixed = (
            names[names.index("preset") : names.index("decay")] + names[names.index("epsilon") : names.index("action")]
        )
        if self.action == "evaluate":
            fixed += ["decay", "rule"]
        free = {"min_examples"} | ({"max_examples"} if self.action == "join" else set())
        for name in [*fixed, *_DEPLOYMENT]:
            if name not in free and getattr(self, name) != getattr(RunConfig, name):
                raise ConfigError(
                    f"run-config {name.replace('_', '-')}: expected none with action = {self.action}, which takes it "
                    "from the federation's file"
                )

    def _check_privacy(self) -> None:
        names = ("delta", "mechanism", "n_released", "accounting", "neighbours", "records_per_person", "noise")
        given = [name.replace("_", "-") for name in names if getattr(self, name) != getattr(RunConfig, name)]
        if not self.epsilon:
            if given:
                raise ConfigError(f"run-config {given[0]}: expected epsilon above 0 beside it, got 0")
            return
        kind = self.mechanism_kind
        if (kind == "gaussian") != (self.delta > 0):
            what = "a delta above 0" if kind == "gaussian" else "no delta"
            raise ConfigError(f"run-config delta: expected {what} with mechanism = {kind}, got {self.delta:g}")
        if (kind == "top-t") != (self.n_released > 0):
            what = "above 0" if kind == "top-t" else "none"
            raise ConfigError(f"run-config n-released: expected {what} with mechanism = {kind}, got {self.n_released}")
        if kind != "top-t" and self.accounting != "tight":
            raise ConfigError(f"run-config accounting: expected none with mechanism = {kind}, got {self.accounting}")
        if self.scaling not in ("none", DEFAULT_SCALING):
            raise ConfigError(
                f"run-config scaling: expected none with epsilon, which does not cover sums of columns; got "
                f"{self.scaling} (give public center and scale)"
            )

    @property
    def is_private(self) -> bool:
        """Whether parties are asked for noisy counts."""
        return self.epsilon > 0

    @property
    def mechanism_kind(self) -> str:
        """`mechanism`, with what "auto" means."""
        if self.mechanism != "auto":
            return self.mechanism
        return "gaussian" if self.delta else "laplace"

    def evaluates(self, simulated: bool) -> bool:
        """`evaluate`, with what "auto" means."""
        return self.evaluate == "true" if self.evaluate != "auto" else simulated or not self.is_private

    def resolved(self) -> RunConfig:
        """These settings with what the preset, or privacy, says in the place of defaults."""
        if self.preset != "paper":
            return replace(self, scaling="none") if self.is_private or self.secure else self
        given: dict[str, Any] = {
            name: value for name, (value, _) in _PAPER.items() if getattr(self, name) == getattr(RunConfig, name)
        }
        return replace(self, **given)

    def simulation_only(self) -> list[str]:
        """Keys that are set to another value than the default, and that only a simulation uses."""
        names = [f.name for f in fields(self)]
        names = [*names[: names.index("preset")], "parties", "check_pooled"]
        given = [name for name in names if getattr(self, name) != getattr(RunConfig, name)]
        return [name.replace("_", "-") for name in given]

    def deployment_only(self) -> list[str]:
        """Keys that are given, and that only a deployment uses."""
        return [name.replace("_", "-") for name in _DEPLOYMENT if getattr(self, name)]

    def decay_value(self) -> float | str:
        """`decay` as the strategy takes it: ``"auto"`` or a number in [0, 1)."""
        if self.decay == "auto":
            return "auto"
        try:
            value = float(self.decay)
        except ValueError:
            value = math.nan
        if not 0 <= value < 1:
            raise ConfigError(
                'run-config decay: expected "auto" or a number from 0 below 1, got ' + json.dumps(self.decay[:80])
            )
        return value

    def party_numbers(self) -> frozenset[int] | None:
        """`parties` as numbers; None for all."""
        if not self.parties:
            return None
        numbers: set[int] = set()
        for part in self.parties.split(","):
            first, dash, last = part.strip().partition("-")
            ends = whole_numbers([first, last if dash else first])
            if ends is None or not 0 <= ends[0] <= ends[1] <= _MAX_PARTIES:
                raise ConfigError(
                    "run-config parties: expected numbers and ranges from 0 with commas between, such as 0-7,9, got "
                    + json.dumps(self.parties[:80])
                )
            numbers |= set(range(ends[0], ends[1] + 1))
        return frozenset(numbers)

    def class_list(self) -> list[str | int]:
        """`classes` as a list: integers where every entry is one, strings otherwise."""
        return _class_list(self.classes)

    def feature_list(self) -> tuple[str, ...]:
        """`feature_names` as they are looked for in the parties' files; empty where none are given."""
        names = entries("feature-names", self.feature_names, (str,))
        if len(set(names)) < len(names) or "" in names:
            shown = json.dumps(self.feature_names[:80])
            raise ConfigError(f"run-config feature-names: expected different names, got {shown}")
        if names and self.n_features not in (0, len(names)):
            raise ConfigError(
                f"run-config n-features: expected {len(names)}, as many as feature-names, got {self.n_features}"
            )
        return tuple(names)

    def sizes(self) -> list[int] | None:
        """`partition_sizes` as a list, or None where none are given."""
        if not self.partition_sizes:
            return None
        try:
            sizes = [int(part) for part in self.partition_sizes.split(",")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise ConfigError(
                "run-config partition-sizes: expected integers of at least 1 with commas between, got "
                + json.dumps(self.partition_sizes[:80])
            )
        return sizes

    def plan(self, n_features: int, n_examples: int | None, n_classes: int) -> HashPlan:
        """The run's `Plan`: given sizes as they are, the others left to `HashSpec.suggest`.

        Raises
        ------
        ConfigError
            Where the settings do not make a spec for that many features.
        """
        scaling: Any = None if self.scaling == "none" else self.scaling
        if scaling == "auto" and n_features > _MAX_WIDTH:
            scaling = None
        if self.center or self.scale:
            scaling = (self._vector("center", n_features), self._vector("scale", n_features))
        try:
            plan = HashPlan(
                n_features,
                n_classes,
                n_examples,
                scaling,
                scaling is not None if self.signed == "auto" else self.signed == "true",
                hash_dim=self.hash_dim or None,
                row_nnz=self.row_nnz or None,
                hash_nnz=self.hash_nnz or None,
                seed=self.seed,
            )
            foreseen(plan)  # that the sizes fit is known before the parties start
        except SpecError as error:
            name, _, what = str(error).partition(":")
            raise ConfigError(f"run-config {name.replace('_', '-')}:{what}") from None
        return plan

    def _vector(self, name: str, n_features: int) -> tuple[float, ...] | None:
        text: str = getattr(self, name)
        if not text:
            return None
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, n_features) or not all(math.isfinite(number) for number in numbers):
            raise ConfigError(
                f"run-config {name}: expected one finite number or {n_features} with commas between, got "
                + json.dumps(text[:80])
            )
        return tuple(numbers * n_features if len(numbers) == 1 else numbers)


COMPOSITIONS = ("basic", "zcdp")

POLICY_KEYS = (
    "state-path",
    "max-delta",
    "mechanisms",
    "neighbours",
    "records-per-person",
    "composition",
    "max-releases",
    "evaluate",
    "response-seconds",
)
"""Keys of a node config that say something about private answers, and nothing where there are none."""


@dataclass(frozen=True)
class NodeConfig(Settings):
    """What a deployed party was started with.

    Every field is one key of ``flower-supernode --node-config``, with underscores spelled as hyphens.
    """

    source = "node-config"
    others = frozenset({"partition-id", "num-partitions"})  # Flower's tutorials give them to every node

    data_path: str = setting("", "the party's own `.csv`, `.parquet` or `.npz` file", required=True)
    label: str = setting("", "its label column; not given: `label` (CSV, Parquet) or `y` (NPZ)")
    model_path: str = setting(
        "", "file to which the party's own copy of the model is written, whole or not at all; one there is replaced"
    )
    party_id: str = setting("", "the name under which the server reports this party")
    test_fraction: float = setting(0.2, "share of the party's points held out for the evaluation", low=0, below=1)
    split_seed: int = setting(0, "seed of the held-out rule", low=0, high=_MAX_SEED)
    memory_limit: float = setting(4.0, "GiB that the counting may take; a spec that needs more is refused", above=0)
    min_examples: int = setting(5, "classes of fewer points are left out of the party's sums of columns", low=1)
    max_epsilon: float = setting(
        0.0,
        "what the party gives away at most, all private answers together; nothing but noisy counts leaves it then. Not "
        "given: no private answers, and none of the keys that say how they are to be",
        above=0,
    )
    max_delta: float = setting(0.0, "likewise, the sum of their `delta`", low=0, high=1)
    secure: bool = setting(False, "counts leave the party in secure sums only; other requests are refused")
    leave: bool = setting(
        False,
        "the party leaves: it answers runs with `action = withdraw`, by the counts it was counted by, and no others",
    )
    state_path: str = setting("", "folder in which the party keeps its private answers; needed with `max-epsilon`")
    mechanisms: str = setting("gaussian, laplace, top-t", "what may be asked for")
    neighbours: str = setting(
        "add-remove", "what an answer must protect at least; `replace-one` is the stronger", choices=NEIGHBOURS
    )
    records_per_person: int = setting(
        1, "records of one person that an answer must protect at least", low=1, high=10**6
    )
    composition: str = setting(
        "basic",
        "account by which private answers add up, fixed when the ledger is made: `basic` sums, or `zcdp`, by which "
        "many answers with much noise cost less, and which needs `max-delta`",
        choices=COMPOSITIONS,
    )
    max_releases: int = setting(100, "private answers at most, old ones again not counted", low=1, high=10**6)
    evaluate: bool = setting(
        False,
        "with `max-epsilon`: try models on points held out, and let the confusion matrix leave the party",
    )
    response_seconds: float = setting(
        0.0,
        "with `max-epsilon`: seconds that every answer takes, be it a release, an old one again or a refusal, so that "
        "its time tells nothing; 0: as long as it takes",
        low=0,
        high=86400,
    )

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> NodeConfig:
        """As `Settings.parse`; and what only private answers have is refused where there is no `max-epsilon`.

        Raises
        ------
        ConfigError
            One line: the key, what was expected, what came.
        """
        node = super().parse(raw)
        # Whoever names one of them wants a policy. Without a bound there is none, and exact counts would leave.
        if "max-epsilon" not in raw and (given := [key for key in POLICY_KEYS if key in raw]):
            raise ConfigError(f"node-config max-epsilon: expected a number above 0 beside {given[0]}, got none")
        return node

    def _check_together(self) -> None:
        if not self.max_epsilon:
            return
        if not Path(self.state_path).is_absolute():
            got = json.dumps(self.state_path[:80]) if self.state_path else "none"
            raise ConfigError(f"node-config state-path: expected an absolute path beside max-epsilon, got {got}")
        self.policy()

    def policy(self) -> Policy:
        """What the party gives away at most."""
        kinds = [kind.strip() for kind in self.mechanisms.split(",")]
        if unknown := [kind for kind in kinds if kind not in MECHANISMS]:
            raise ConfigError(
                f"node-config mechanisms: expected some of {', '.join(MECHANISMS)}, got {json.dumps(unknown[0][:40])}"
            )
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
            name, _, what = str(error).partition(":")
            raise ConfigError(f"node-config {name.replace('_', '-')}:{what}") from None


def _class_list(text: str) -> list[str | int]:
    """Class names from a JSON list or from a text with commas between them."""
    classes: list[str | int] = entries("classes", text, (str, int))
    if not text.startswith("["):
        classes = [*(whole_numbers([str(entry) for entry in classes]) or classes)]
    if len({type(entry) for entry in classes}) > 1 or len(set(classes)) < len(classes) or "" in classes:
        raise ConfigError(f"run-config classes: expected different names of one type, got {json.dumps(text[:80])}")
    return classes
