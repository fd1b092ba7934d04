"""The settings of one run, and the rules between them.

Each setting is declared once, with default, bounds and meaning. They come from
``[tool.flwr.app.config]`` in pyproject.toml and from ``flwr run --run-config``. Each
field is one key (``hash_dim`` is spelled ``hash-dim`` outside). The defaults in
pyproject.toml and the tables of the documentation follow from the fields, a section for
each class; 0 and "" mean "not given" where the meaning of a key says so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr_flynn._validation import freeze
from flwr_flynn.app.settings_parser import (
    Rule,
    Settings,
    about_settings,
    entries,
    floats,
    setting,
    whole_numbers,
)
from flwr_flynn.federated.labels import checked_classes
from flwr_flynn.federated.options import conflicts
from flwr_flynn.federated.purposes import NEW_FEDERATION, PURPOSES
from flwr_flynn.model.basis import MOST_TERMS
from flwr_flynn.model.candidates import EFFORTS, HashPlan, placeholder_specs
from flwr_flynn.model.forest import MOST_TREES
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import NEIGHBOURS

NATURAL = "natural-id"
PARTITIONERS = (
    "iid",
    "dirichlet",
    "pathological",
    "shard",
    "linear",
    "square",
    "exponential",
    "size",
    NATURAL,
)
"""Partitioners of flwr-datasets: "natural-id" is its `NaturalIdPartitioner`, by a
column other than the label."""

SCALINGS = ("default", "none", "auto")

_FOLLOWING = frozenset({"num_partitions", "seed", "alpha"})
"""Arguments of partitioners that follow from other settings."""

_MAX_PARTIES = 10**6  # of a simulation
_WIDEST = 2**14  # most columns for scaling "auto": centred ones are dense
_MAX_SEED = 2**63 - 1  # TOML integers are 64-bit and signed

LATER = tuple(name for name in PURPOSES if name != NEW_FEDERATION)
"""Actions on a federation that exists."""

_THAT_ADD_NONE = tuple(name for name in LATER if not PURPOSES[name].adds)
_WITHOUT_SCORING = tuple(name for name in LATER if not PURPOSES[name].scores)

_simulated = partial(setting, simulation_only=True)
_deployed = partial(setting, deployment_only=True, fixed_by_federation=LATER)
_fixed = partial(setting, fixed_by_federation=LATER)
_private = partial(setting, fixed_by_federation=LATER, needs=("epsilon",))
_shaped = partial(setting, fixed_by_federation=LATER, needs=("epsilon", "delta"))
_bounded = partial(setting, fixed_by_federation=_THAT_ADD_NONE)
_scored = partial(setting, fixed_by_federation=_WITHOUT_SCORING)


@dataclass(frozen=True)
class DataSettings(Settings):
    """The data set of a simulation, and its test samples.

    A deployed party has its own data in its node config.
    """

    dataset: str = _simulated(
        "digits", "`digits`, or the path of a `.csv`, `.parquet` or `.npz` file"
    )
    label: str = _simulated(
        "", "the label column of a file; not given: `label` (CSV, Parquet) or `y` (NPZ)"
    )
    test_fraction: float = _simulated(
        0.2, "share of samples held out for the evaluation", low=0, below=1
    )
    split_seed: int = _simulated(
        0, "seed of the held-out rule and of the partitioner", low=0, high=_MAX_SEED
    )


@dataclass(frozen=True)
class PartitionerSettings(Settings):
    """The partitioner that distributes the data of a simulation, and its parameters.

    It is one of flwr-datasets.
    """

    partitioner: str = _simulated(
        "dirichlet",
        "one of flwr-datasets' partitioners, see below",
        choices=PARTITIONERS,
    )
    alpha: float = _simulated(
        0.1, "`dirichlet`: concentration; small is skewed", above=0
    )
    partitioner_options: str = _simulated(
        "", "further arguments of its class, as a JSON object; see below"
    )


@dataclass(frozen=True)
class HashSettings(Settings):
    """The hash, and the scaling of the features before it.

    With `scaling = auto` hashes follow from histograms of the columns; `effort` is its
    bytes and time.
    """

    scaling: str = _fixed(
        "default",
        "`auto`: by histograms of columns, the default where it can be",
        choices=SCALINGS,
    )
    effort: str = _fixed(
        "default",
        "`quick` is one hash, `thorough` has trees as well",
        choices=EFFORTS,
    )
    min_examples: int = _simulated(
        5, "the parties' `min-examples`; a deployed party has its own", low=1
    )
    seed: int = _fixed(
        0,
        "seed of the hash: every party expands it to the same rows",
        low=0,
        high=_MAX_SEED,
    )
    hash_dim: int = _fixed(
        0, "rows of the lifting matrix (m); 0: chosen from the data's size", low=0
    )
    center: str = _fixed(
        "",
        "instead of `scaling`: public centre, one number or one per feature with "
        "commas between",
    )
    scale: str = _fixed(
        "", "public factor after the centre: one number above 0, or one per feature"
    )
    ranges: str = _fixed(
        "",
        "instead of `scaling`: public ranges `low:high`, for rank codes and, with "
        "`epsilon`, for noisy sums of the columns before the counts, one or one "
        "per feature",
    )


@dataclass(frozen=True)
class ScoringSettings(Settings):
    """The scoring of the model."""

    decay: str = _scored(
        "auto",
        "gamma, from 0 to below 1; `auto`: by leave-one-out at the parties, in one "
        "more round",
    )
    rule: str = _scored("balanced", "scoring rule", choices=RULES)
    class_weight: str = _fixed(
        "",
        "`balanced`: all classes count as equally frequent",
        choices=("", "balanced"),
    )
    trees: str = _scored(
        "auto",
        "trees of the model, up to 1000, from parties with `products`, or `secure`; "
        "0: none; `auto`: 100 with effort `thorough`",
    )
    linear: int = _fixed(
        MOST_TERMS,
        "terms of the linear part, at most; 0: none",
        low=0,
        high=MOST_TERMS,
    )


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Noise on the counts, and the privacy guarantee."""

    epsilon: float = _fixed(
        0.0,
        "bound on what counts give away of a record; 0: exact counts",
        low=0,
        high=100,
    )
    delta: float = _private(
        0.0,
        "chance that the bound fails: Gaussian noise; 0: Laplace noise",
        low=0,
        high=0.5,
    )
    n_released: int = _private(
        0,
        "counts that a party releases (T), by the paper's mechanism `top-t`; 0: all",
        low=0,
    )
    neighbours: str = _private(
        "add-remove", "data sets that are hard to tell apart", choices=NEIGHBOURS
    )
    records_per_person: int = _private(
        1, "most records of a person; epsilon is for all together", low=1, high=10**6
    )
    rarest_share: float = _private(
        0.0,
        "public share of the rarest class; 0: that of equal classes",
        low=0,
        high=0.5,
    )
    any_noise: bool = _private(
        False, "go on where noise hides nearly all of the rarest class"
    )
    noise: str = _private(
        "opendp", "`seeded`: from `seed`, without privacy", choices=("opendp", "seeded")
    )


@dataclass(frozen=True)
class SecureSettings(Settings):
    """Secure sums, and one noise that their parties share.

    Statistics of training samples go through Flower's SecAgg+, while two thirds of the
    parties, and three, stay. With `epsilon` and `delta` they share one noise, where
    `honest-parties` of them follow the protocol, keep their share to themselves and
    stay to the end.
    """

    secure: bool = _fixed(
        False,
        "sum by Flower's SecAgg+; needs `max-examples`, or `honest-parties` with "
        "`epsilon`",
    )
    honest_parties: int = _shaped(
        0, "parties that share one noise in secure sums; 0: one each", low=0, high=10**6
    )
    max_examples: int = _bounded(
        0, "most samples of a party; 0: no limit", low=0, high=2**29
    )


@dataclass(frozen=True)
class FederationSettings(Settings):
    """The action of the run, its federation, and the parties that take part.

    `train` makes a new federation. Others start from its file: `join` adds parties,
    `withdraw` removes some, `update` takes over changed samples, `evaluate` distributes
    the model, and `resume` goes on with a stopped run. A schema is learned, in one more
    round, for categories, dates or gaps of a simulation, and in a deployment without
    `feature-names` and `n-features`.
    """

    action: str = setting(
        "train",
        "`train` makes a federation, others go on with its file",
        choices=tuple(PURPOSES),
    )
    federation: str = setting(
        "",
        "the server's own file of it; not given: `federation.npz` in the output folder",
    )
    parties: str = _simulated(
        "", "those that take part, or leave, as in `0-7,9`; not given: all"
    )
    min_available: int = setting(
        0, "parties to wait for before the first round; 0: all of the simulation", low=0
    )
    min_parties: int = setting(
        0,
        "parties that must reply; 0: `min-available`, or one to join, leave or change",
        low=0,
    )
    feature_names: str = _deployed(
        "", "the columns that each party reads as features, as a list"
    )
    n_features: int = _deployed(
        0,
        "number of columns, all numbers without gaps and without names in common",
        low=0,
    )
    schema: str = _fixed(
        "",
        "the server's own `schema.toml`, or `learn`; not given: `learn`, where "
        "columns need it",
    )
    ignore: str = _fixed(
        "", "columns that are not used where a schema is learned, as a list"
    )
    keep: str = _fixed(
        "", "columns that are used though they look like ids or notes, as a list"
    )
    n_examples: int = _deployed(
        0, "rough number of samples at all parties together, if public", low=0
    )
    classes: str = _deployed(
        "", "the classes, as a list with commas between, or in JSON"
    )


@dataclass(frozen=True)
class RunSettings(Settings):
    """The limits of the run, and its output.

    By default the model is evaluated on held-out samples, and selected by
    leave-one-out, but not beside noisy counts in a deployment, whose epsilon does not
    cover the results, unless `action` is `evaluate`.
    """

    timeout: float = setting(
        600.0,
        "seconds to wait for parties, and for replies; 0: no limit",
        low=0,
        high=10**9,
    )
    nodes_at_a_time: int = setting(
        0, "ask so many, by Flower's Message API; 0: all at once", low=0, high=10**6
    )
    evaluate: str = setting(
        "auto",
        "evaluate it, and select by leave-one-out",
        choices=("auto", "true", "false"),
    )
    group_column: str = setting(
        "", "a category among the columns: the report has figures by its levels, too"
    )
    table_one: bool = setting(
        True, "the report shows columns by party, of those that agree"
    )
    event: str = setting(
        "",
        "the class whose probability and curves are shown; not given: the rarer of two",
    )
    thresholds: str = setting(
        "",
        "thresholds of the report, such as `.02 .05 .2`, in steps of .005; the first is "
        "that of its first sentence",
    )
    check_pooled: bool = _simulated(
        True, "train on the pooled data, too, and compare the counts"
    )
    dry_run: bool = setting(
        False,
        "ask nobody: print the plan, and what would leave, also to `plan.json`, and "
        "end",
    )
    memory_limit: float = setting(
        4.0,
        "most GiB for the counting, at the server and at each simulated party",
        above=0,
    )
    output_dir: str = setting(
        "",
        "folder for `model.npz`, `metrics.json`; not given: `flynn/<run id>` under "
        "FLWR_HOME",
    )


@dataclass(frozen=True)
class RunConfig(
    RunSettings,
    FederationSettings,
    SecureSettings,
    PrivacySettings,
    ScoringSettings,
    HashSettings,
    PartitionerSettings,
    DataSettings,
):
    """The settings of one `flwr run`, with rules and values that follow from them."""

    source = "run-config"
    gone = dict.fromkeys(
        [
            "align",
            "groups",
            "hash-nnz",
            "max-members",
            "mechanism",
            "new-classes",
            "preset",
            "private-rounds",
            "record-sites",
            "relearn",
            "rounds",
            "row-nnz",
            "secure-threshold",
            "trusted",
        ],
        "no such setting any more, see CHANGELOG.md",
    )

    def __post_init__(self) -> None:
        if self.honest_parties:
            freeze(self, secure=True)

    def rules(self) -> Iterator[Rule]:
        yield from super().rules()
        for name in ("center", "scale", "ranges"):
            yield (
                name,
                self.scaling == "auto" and self.is_given(name),
                "none beside scaling = auto",
            )
        yield (
            "ranges",
            bool(self.ranges and (self.center or self.scale)),
            "none beside center and scale",
        )
        yield "n_released", bool(self.delta and self.n_released), "0 with delta"
        is_wrong = not re.fullmatch(r"(0?\.\d{1,2}[05]?[ ,]*)*", self.thresholds)
        yield "thresholds", is_wrong, "multiples of .005 below 1, such as .02 .05 .2"
        needs_bound = self.secure and not (self.max_examples or self.honest_parties)
        yield "max_examples", needs_bound, "a number above 0 with secure = true"
        yield (
            "nodes_at_a_time",
            self.secure and self.nodes_at_a_time > 0,
            "0 with secure = true",
        )
        needs_sharing = self.secure and self.is_private and not self.honest_parties
        yield (
            "honest_parties",
            needs_sharing,
            "the parties that share one noise with secure = true and epsilon",
        )
        yield (
            "min_parties",
            0 < self.min_available < self.min_parties,
            f"at most min-available = {self.min_available}",
        )
        yield from self._federation_rules()
        yield from conflicts(
            trees=self.trees_value(),
            is_thorough=self.effort == "thorough",
            is_evaluated=self.evaluate != "false",
            is_noisy=self.is_private,
            is_secure=self.secure,
            learns_columns=self.resolved().scaling == "auto",
            learns_schema=self.schema == "learn",
        )

    def _federation_rules(self) -> Iterator[Rule]:
        """The rules about the columns of the run, and about its federation."""
        names = self.names("feature_names")
        yield (
            "feature_names",
            len(set(names)) < len(names) or "" in names,
            "different names",
        )
        expected = f"{len(names)}, as many as feature-names"
        yield (
            "n_features",
            bool(names) and self.n_features not in (0, len(names)),
            expected,
        )
        expected = (
            f"the server's own file, or output-dir with its federation.npz, with "
            f"action = {self.action}"
        )
        is_new = self.action == "train"
        yield "federation", not (is_new or self.federation or self.output_dir), expected
        for name in ("feature_names", "n_features"):
            yield name, bool(self.schema and getattr(self, name)), "none with schema"
        expected = (
            f"none with action = {self.action}, which takes it from the "
            "federation's file"
        )
        for row in self.rows():
            is_fixed = self.action in row.facts.fixed_by_federation
            yield row.name, is_fixed and self.is_given(row.name), expected

    def check(self) -> None:
        super().check()
        for read in (
            self.party_numbers,
            self.class_list,
            self.options,
            self.decay_value,
            self._given_ranges,
        ):
            read()

    # ---- values of texts

    def party_numbers(self) -> frozenset[int] | None:
        """`parties` as numbers; None for all."""
        if not self.parties:
            return None
        numbers: set[int] = set()
        for text in self.parties.split(","):
            first, dash, last = text.strip().partition("-")
            if not dash:
                last = first
            ends = whole_numbers([first, last])
            if ends is None or not 0 <= ends[0] <= ends[1] <= _MAX_PARTIES:
                raise self.refused(
                    "parties",
                    "numbers and ranges from 0 with commas between, such as 0-7,9",
                )
            numbers |= {*range(ends[0], ends[1] + 1)}
        return frozenset(numbers)

    def class_list(self) -> list[str | int]:
        """`classes` as a list: integers where every entry is one, strings otherwise."""
        classes = entries("run-config classes", self.classes, (str, int))
        if not self.classes.startswith("["):
            classes = whole_numbers(classes) or classes
        if "" in classes:
            raise self.refused("classes", "no empty name")
        if classes:
            checked_classes(classes, "run-config classes")
        return classes

    def options(self) -> dict[str, Any]:
        """`partitioner_options` as keyword arguments."""
        try:
            options = json.loads(self.partitioner_options or "{}")
        except (ValueError, RecursionError):
            options = None
        following = _FOLLOWING
        if self.partitioner != NATURAL:
            following |= {"partition_by"}
        if not isinstance(options, dict) or following & options.keys():
            raise self.refused(
                "partitioner_options",
                f"a JSON object without {', '.join(sorted(following))}",
            )
        return options

    @property
    def partition_column(self) -> str:
        """Name of a column by which samples are distributed; "" for the label."""
        if self.partitioner == NATURAL:
            return str(self.options().get("partition_by", ""))
        return ""

    def trees_value(self) -> int | None:
        """`trees` as the strategy takes it; None for "auto"."""
        if self.trees == "auto":
            return None
        numbers = whole_numbers([self.trees])
        if numbers is None or not 0 <= numbers[0] <= MOST_TREES:
            raise self.refused("trees", f'"auto" or an integer from 0 to {MOST_TREES}')
        return numbers[0]

    def decay_value(self) -> float | str:
        """`decay` as the strategy takes it: ``"auto"`` or a number in [0, 1)."""
        if self.decay == "auto":
            return "auto"
        numbers = floats(self.decay, ",")
        if len(numbers) != 1 or not 0 <= numbers[0] < 1:
            raise self.refused("decay", '"auto" or a number from 0 below 1')
        return numbers[0]

    def _given_ranges(
        self, n_features: int = 0
    ) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Lower and upper ends of `ranges`, None without any.

        Without `n_features` this checks their form.
        """
        if not self.ranges:
            return None
        pairs = [floats(text, ":") for text in self.ranges.split(",")]
        if not all(len(pair) == 2 and pair[0] < pair[1] for pair in pairs):
            raise self.refused(
                "ranges",
                "`low:high` with finite low below high, or several with commas between",
            )
        lows, highs = zip(*self._per_feature("ranges", pairs, n_features), strict=True)
        return lows, highs

    def _vector(self, name: str, n_features: int) -> tuple[float, ...] | None:
        """`center` or `scale` as a number for each feature, None if not given."""
        text = getattr(self, name)
        if text:
            return tuple(self._per_feature(name, floats(text, ","), n_features))
        return None

    def _per_feature(self, name: str, given: list[Any], n_features: int) -> list[Any]:
        """One of the given for each feature, from one for all or as many.

        Of 0 features the form alone is checked.
        """
        if not given or (n_features and len(given) not in (1, n_features)):
            expected = f"one finite value or {n_features} with commas between"
            raise self.refused(name, expected)
        if len(given) == 1:
            return given * (n_features or 1)
        return given

    @property
    def is_private(self) -> bool:
        """True if parties are asked for noisy counts."""
        return self.epsilon > 0

    @property
    def mechanism(self) -> str:
        """Kind of the noise."""
        if self.delta:
            return "gaussian"
        if self.n_released:
            return "top-t"
        return "laplace"

    def evaluates(self, simulated: bool, goes_on_with_noise: bool = False) -> bool:
        """`evaluate`, with "auto" resolved.

        Exact results do not go beside noisy counts, of this run or of its federation.
        """
        if self.evaluate != "auto":
            return self.evaluate == "true"
        is_noisy = self.is_private or (goes_on_with_noise and self.action != "evaluate")
        return simulated or not is_noisy

    def resolved(self) -> RunConfig:
        """These settings, with the value of `scaling="default"` in place."""
        if self.scaling != "default":
            return self
        scaling = "auto"
        if self.is_private or self.center or self.scale or self.ranges:
            scaling = "none"
        return replace(self, scaling=scaling)

    def plan(self, n_features: int, n_examples: int | None, n_classes: int) -> HashPlan:
        """The run's `HashPlan`.

        Sizes that are not given are left to `HashSpec.suggest`.
        """
        scaling: Any = None
        if self.resolved().scaling == "auto" and n_features <= _WIDEST:
            scaling = "auto"
        if self.center or self.scale:
            center = self._vector("center", n_features)
            scaling = (center, self._vector("scale", n_features))
        ranges = self._given_ranges(n_features)
        with about_settings(self.source):
            plan = HashPlan(
                n_features,
                n_classes,
                n_examples,
                scaling,
                seed=self.seed,
                effort=self.effort,
                hash_dim=self.hash_dim or None,
                ranges=ranges,
            )
            placeholder_specs(plan)  # sizes are checked before the parties start
        return plan

    def ignored(self, simulated: bool) -> list[str]:
        """Given keys that a simulation, or a deployment, does not use."""
        unused = "simulation_only"
        if simulated:
            unused = "deployment_only"
        rows = [row for row in self.rows() if getattr(row.facts, unused)]
        return [row.key for row in rows if self.is_given(row.name)]


def default_folder(run_id: int) -> Path:
    """The output folder of a run where none is given."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return home / "flynn" / str(run_id)
