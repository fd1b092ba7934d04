"""Settings of a run in groups: data, partitioner, hash, scoring, privacy and secure.

Each group has its settings, the checks among them, and the values that follow from them. `RunConfig` in
`flwr_flynn.app.run_config` adds the groups federation and run, and the checks between groups.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from flwr_flynn.app.settings_parser import Settings, as_setting, setting, whole_numbers
from flwr_flynn.errors import SpecError
from flwr_flynn.model.candidates import EFFORTS, HashPlan, placeholder_specs
from flwr_flynn.model.gram import MOST_ROWS
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import NEIGHBOURS
from flwr_flynn.privacy.noise_mechanisms import MOST_ROUNDS

PARTITIONERS = (
    *("iid", "dirichlet", "inner-dirichlet", "pathological", "shard", "distribution", "continuous", "linear", "square"),
    *("exponential", "size", "natural-id", "grouped-natural-id"),
)
"""Partitioners of flwr-datasets, by names in the run config: "natural-id" is its `NaturalIdPartitioner`."""

BY_ID = ("natural-id", "grouped-natural-id")
BY_COLUMN = ("continuous", *BY_ID)
"""Partitioners that split by a column other than the label."""

FOLLOWING = frozenset({"num_partitions", "seed", "alpha", "distribution_array"})
"""Arguments of partitioners that other settings determine."""

MAX_SEED = 2**63 - 1  # TOML integers are 64-bit and signed

LATER = ("join", "withdraw", "update", "evaluate", "resume")  # actions on a federation that exists

_WIDEST = 2**14  # most columns for scaling "auto": centred ones are dense

simulated = partial(setting, simulation_only=True)
fixed = partial(setting, fixed_by_federation=LATER)
_private = partial(setting, fixed_by_federation=LATER, needs=("epsilon",))
_scored = partial(setting, fixed_by_federation=("evaluate",))


class RunSettings(Settings):
    """A group of settings of a run."""

    source = "run-config"


@dataclass(frozen=True)
class DataSettings(RunSettings):
    """The data set of a simulation, and its test samples; a deployed party has its own data in its node config."""

    group = "data"

    dataset: str = simulated("digits", "`digits`, `openml:ID`, or the path of a `.csv`, `.parquet` or `.npz` file")
    label: str = simulated("", "the label column of a file; not given: `label` (CSV, Parquet) or `y` (NPZ)")
    test_fraction: float = simulated(0.2, "simulation: share of samples held out for the evaluation", low=0, below=1)
    split_seed: int = simulated(0, "simulation: seed of the held-out rule and of the partitioner", low=0, high=MAX_SEED)


@dataclass(frozen=True)
class PartitionSettings(RunSettings):
    """The partitioner of flwr-datasets that distributes the data of a simulation, and its parameters."""

    group = "partitioner"

    partitioner: str = simulated("dirichlet", "one of flwr-datasets' partitioners, see below", choices=PARTITIONERS)
    alpha: float = simulated(0.1, "`dirichlet`, `inner-dirichlet`: concentration; small is skewed", above=0)
    partitioner_options: str = simulated(
        "",
        'further arguments of the class of flwr-datasets as a JSON object, such as `{"num_classes_per_partition": 1}`; '
        "`partition_by` is a feature for `continuous`, and the file's column of ids for the natural-id ones",
    )

    def options(self) -> dict[str, Any]:
        """`partitioner_options` as keyword arguments."""
        try:
            options = json.loads(self.partitioner_options or "{}")
        except (ValueError, RecursionError):
            options = None
        following = FOLLOWING if self.partitioner in BY_COLUMN else FOLLOWING | {"partition_by"}
        if not isinstance(options, dict) or following & options.keys():
            raise self.refused("partitioner_options", f"a JSON object without {', '.join(sorted(following))}")
        return options

    @property
    def partition_column(self) -> str:
        """Name of the column other than the label by which samples are distributed; "" for none."""
        return str(self.options().get("partition_by", "")) if self.partitioner in BY_COLUMN else ""

    def check(self) -> None:
        super().check()
        self.options()


@dataclass(frozen=True)
class HashSettings(RunSettings):
    """The hash, and the scaling of the features before it."""

    group = "hash"

    scaling: str = fixed(
        "default",
        "`auto`: the best by leave-one-out of six hashes, made from histograms of columns, are the model's members; "
        "`none`: raw columns; `default`: `auto`, but `none` with `epsilon`, `center`, `scale` or `ranges`",
        choices=("default", "none", "auto"),
    )
    effort: str = fixed(
        "default",
        "bytes and time of `auto`: `quick` is a single hash, `default` a committee, `thorough` that and a Gram matrix",
        choices=EFFORTS,
    )
    max_members: int = fixed(3, "members of the model of `auto`, at most; 1: the best candidate alone", low=1, high=16)
    min_examples: int = simulated(5, "simulation: the parties' `min-examples`; a deployed party has its own", low=1)
    seed: int = fixed(0, "seed of the hash: every party expands it to the same rows", low=0, high=MAX_SEED)
    hash_dim: int = fixed(0, "rows of the lifting matrix (m); 0: chosen from the data's size", low=0)
    row_nnz: int = fixed(0, "ones in a row (s); 0: chosen", low=0)
    hash_nnz: int = fixed(0, "winners, ones in a hash (rho); 0: chosen", low=0)
    center: str = fixed("", "instead of `scaling`: public centre, one number or one per feature with commas between")
    scale: str = fixed("", "public factor after the centre: one number above 0, or one per feature")
    ranges: str = fixed("", "instead of `scaling`: public ranges `low:high` for rank codes, one or one per feature")

    def check(self) -> None:
        super().check()
        for name in ("center", "scale", "ranges"):
            if self.is_given(name) and self.scaling not in ("default", "none"):
                raise self.refused(name, f"none beside scaling = {self.scaling}")
        if self.ranges and (self.center or self.scale):
            raise self.refused("ranges", "none beside center and scale")
        self._given_ranges()

    def plan(self, n_features: int, n_examples: int | None, n_classes: int) -> HashPlan:
        """The run's `HashPlan`: given sizes as they are, the others left to `HashSpec.suggest`."""
        scaling: Any = None if self.scaling == "none" else self.scaling
        if scaling == "auto" and n_features > _WIDEST:
            scaling = None
        if self.center or self.scale:
            scaling = (self._vector("center", n_features), self._vector("scale", n_features))
        given: dict[str, Any] = {name: getattr(self, name) for name in ("seed", "effort", "max_members")}
        given |= {name: getattr(self, name) or None for name in ("hash_dim", "row_nnz", "hash_nnz")}
        given["ranges"] = self._given_ranges(n_features)
        try:
            plan = HashPlan(n_features, n_classes, n_examples, scaling, **given)
            placeholder_specs(plan)  # sizes are checked before the parties start
        except SpecError as error:
            raise as_setting(error, self.source) from None
        return plan

    def _given_ranges(self, n_features: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Lower and upper ends of `ranges`, None without any; without `n_features` this checks their form."""
        if not self.ranges:
            return None
        pairs = [_floats(part, ":") for part in self.ranges.split(",")]
        if not all(len(pair) == 2 and pair[0] < pair[1] for pair in pairs):
            raise self.refused("ranges", "`low:high` with finite low below high, or several with commas between")
        if n_features and len(pairs) not in (1, n_features):
            raise self.refused("ranges", f"one range or {n_features} with commas between", f"{len(pairs)}")
        lows, highs = zip(*(pairs * (n_features or 1) if len(pairs) == 1 else pairs), strict=True)
        return lows, highs

    def _vector(self, name: str, n_features: int) -> tuple[float, ...] | None:
        text: str = getattr(self, name)
        if not text:
            return None
        numbers = _floats(text, ",")
        if len(numbers) not in (1, n_features):
            raise self.refused(name, f"one finite number or {n_features} with commas between")
        return tuple(numbers * n_features if len(numbers) == 1 else numbers)


def _floats(text: str, separator: str) -> list[float]:
    """The numbers in a text; [] if a part is no finite number."""
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


@dataclass(frozen=True)
class ScoringSettings(RunSettings):
    """The scoring of the model."""

    group = "scoring"

    decay: str = _scored("auto", "gamma, from 0 to below 1; `auto`: by leave-one-out at the parties, in one more round")
    rule: str = _scored("balanced", "scoring rule", choices=RULES)
    class_weight: str = fixed("", "`balanced`: all classes count as equally frequent", choices=("", "balanced"))
    gram: str = _scored(
        "auto",
        "rows of the hashes of a Gram matrix, 16 to 4096; 0: none; `auto`: by `effort`. A more accurate model by one "
        "more exchange, about 1.5 bytes for each pair of rows; not with `epsilon`",
    )
    class_prior: bool = simulated(True, "simulated parties have their own class prior; deployed ones as they set it")

    def check(self) -> None:
        super().check()
        self.decay_value()
        self.gram_value()

    def gram_value(self) -> int | None:
        """`gram` as the strategy takes it; None for "auto"."""
        if self.gram == "auto":
            return None
        numbers = whole_numbers([self.gram])
        if numbers is None or not 0 <= numbers[0] <= MOST_ROWS:
            raise self.refused("gram", f'"auto" or an integer from 0 to {MOST_ROWS}')
        return numbers[0]

    def decay_value(self) -> float | str:
        """`decay` as the strategy takes it: ``"auto"`` or a number in [0, 1)."""
        if self.decay == "auto":
            return "auto"
        values = _floats(self.decay, ",")
        if len(values) != 1 or not 0 <= values[0] < 1:
            raise self.refused("decay", '"auto" or a number from 0 below 1')
        return values[0]


@dataclass(frozen=True)
class PrivacySettings(RunSettings):
    """Noise on the counts, and the privacy guarantee."""

    group = "privacy"

    epsilon: float = fixed(
        0.0, "bound on what counts give away of a record, with public `center` and `scale`; 0: exact", low=0, high=100
    )
    delta: float = _private(
        0.0, "chance that the bound fails, far below 1 / people. Above 0: Gaussian noise; 0: Laplace", low=0, high=0.5
    )
    n_released: int = _private(
        0, "counts that a party releases (T), by the paper's mechanism `top-t`; 0: all; not with `delta`", low=0
    )
    private_rounds: int = _private(
        0, "rounds to refine the noisy model within epsilon and `delta`; 24 is enough; 0: none", low=0, high=MOST_ROUNDS
    )
    neighbours: str = _private(
        "add-remove", "data sets hard to tell apart: with and without one record, or one replaced", choices=NEIGHBOURS
    )
    records_per_person: int = _private(1, "most records of a person; epsilon is for all together", low=1, high=10**6)
    rarest_share: float = _private(
        0.0,
        "share of the rarest class in the samples, if public, such as 0.08; 0: one of as many as there are classes",
        low=0,
        high=0.5,
    )
    any_noise: bool = _private(False, "go on where the noise leaves next to nothing of the rarest class")
    noise: str = _private(
        "opendp", "its source; `seeded`: from `seed`, for simulations, without privacy", choices=("opendp", "seeded")
    )

    def check(self) -> None:
        super().check()
        if self.delta and self.n_released:
            raise self.refused("n_released", "0 with delta")
        if self.private_rounds and not self.delta:
            raise self.refused("private_rounds", "0 without delta")

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


@dataclass(frozen=True)
class SecureSettings(RunSettings):
    """Secure sums, and one noise that their parties share."""

    group = "secure"

    secure: bool = fixed(
        False,
        "all statistics of training samples go through Flower's SecAgg+: the server learns sums alone, while two "
        "thirds of the parties, and three, stay to the end. Needs `max-examples`, or `honest-parties` with `epsilon`",
    )
    honest_parties: int = fixed(
        0,
        "with `epsilon` and `delta`: share one noise in secure sums, which this turns on, where so many of the parties "
        "follow the protocol, keep their share of the noise to themselves and stay to the end. Epsilon is that of the "
        "sums; a server that invents parties breaks it. The log says how many may drop out. 0: a noise for each party",
        low=0,
        high=10**6,
    )
    max_examples: int = setting(
        0,
        "most samples of a party, which is refused beyond; 0: no limit; needed with `secure` but for `honest-parties`",
        low=0,
        high=2**29,
        fixed_by_federation=("withdraw", "evaluate"),
    )

    def __post_init__(self) -> None:
        if self.honest_parties:
            object.__setattr__(self, "secure", True)

    def check(self) -> None:
        super().check()
        if self.secure and not (self.max_examples or self.honest_parties):
            raise self.refused("max_examples", "a number above 0 with secure = true")
