"""The settings of one run, each declared once: default, bounds and meaning; `run_config` has the rules between them.

They come from ``[tool.flwr.app.config]`` in pyproject.toml and from ``flwr run --run-config``. Each field is one key
(``hash_dim`` is spelled ``hash-dim`` outside). The defaults in pyproject.toml and the tables of the documentation
follow from the fields, a section for each class; 0 and "" mean "not given" where the meaning of a key says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flwr_flynn.app.settings_parser import Settings, setting
from flwr_flynn.model.candidates import EFFORTS
from flwr_flynn.model.scoring import RULES
from flwr_flynn.privacy import NEIGHBOURS
from flwr_flynn.privacy.gaussian_rounds import MOST_ROUNDS

PARTITIONERS = (
    *("iid", "dirichlet", "inner-dirichlet", "pathological", "shard", "distribution", "continuous", "linear", "square"),
    *("exponential", "size", "natural-id", "grouped-natural-id"),
)
"""Partitioners of flwr-datasets, by names in the run config: "natural-id" is its `NaturalIdPartitioner`."""

_MAX_SEED = 2**63 - 1  # TOML integers are 64-bit and signed

LATER = ("join", "withdraw", "update", "evaluate", "resume")  # actions on a federation that exists

_simulated = partial(setting, simulation_only=True)
_deployed = partial(setting, deployment_only=True, fixed_by_federation=LATER)
_fixed = partial(setting, fixed_by_federation=LATER)
_private = partial(setting, fixed_by_federation=LATER, needs=("epsilon",))
_scored = partial(setting, fixed_by_federation=("evaluate",))


@dataclass(frozen=True)
class DataSettings(Settings):
    """The data set of a simulation, and its test samples; a deployed party has its own data in its node config."""

    group = "data"

    dataset: str = _simulated("digits", "`digits`, `openml:ID`, or the path of a `.csv`, `.parquet` or `.npz` file")
    label: str = _simulated("", "the label column of a file; not given: `label` (CSV, Parquet) or `y` (NPZ)")
    test_fraction: float = _simulated(0.2, "share of samples held out for the evaluation", low=0, below=1)
    split_seed: int = _simulated(0, "seed of the held-out rule and of the partitioner", low=0, high=_MAX_SEED)


@dataclass(frozen=True)
class PartitionSettings(Settings):
    """The partitioner of flwr-datasets that distributes the data of a simulation, and its parameters."""

    group = "partitioner"

    partitioner: str = _simulated("dirichlet", "one of flwr-datasets' partitioners, see below", choices=PARTITIONERS)
    alpha: float = _simulated(0.1, "`dirichlet`, `inner-dirichlet`: concentration; small is skewed", above=0)
    partitioner_options: str = _simulated("", "further arguments of its class, as a JSON object; see below")


@dataclass(frozen=True)
class HashSettings(Settings):
    """The hash, and the scaling of the features before it."""

    group = "hash"

    scaling: str = _fixed(
        "default",
        "`auto`: hashes from histograms of columns; `none`: raw columns; `default`: `auto`, where nothing forbids it",
        choices=("default", "none", "auto"),
    )
    effort: str = _fixed(
        "default",
        "bytes and time of `auto`: `quick` is one hash, `default` a committee, `thorough` that and a Gram matrix",
        choices=EFFORTS,
    )
    min_examples: int = _simulated(5, "the parties' `min-examples`; a deployed party has its own", low=1)
    seed: int = _fixed(0, "seed of the hash: every party expands it to the same rows", low=0, high=_MAX_SEED)
    hash_dim: int = _fixed(0, "rows of the lifting matrix (m); 0: chosen from the data's size", low=0)
    center: str = _fixed("", "instead of `scaling`: public centre, one number or one per feature with commas between")
    scale: str = _fixed("", "public factor after the centre: one number above 0, or one per feature")
    ranges: str = _fixed("", "instead of `scaling`: public ranges `low:high` for rank codes, one or one per feature")


@dataclass(frozen=True)
class ScoringSettings(Settings):
    """The scoring of the model."""

    group = "scoring"

    decay: str = _scored("auto", "gamma, from 0 to below 1; `auto`: by leave-one-out at the parties, in one more round")
    rule: str = _scored("balanced", "scoring rule", choices=RULES)
    class_weight: str = _fixed("", "`balanced`: all classes count as equally frequent", choices=("", "balanced"))
    gram: str = _scored("auto", "rows of a Gram matrix, 16 to 4096, without `epsilon`; 0: none; `auto`: by `effort`")


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """Noise on the counts, and the privacy guarantee."""

    group = "privacy"

    epsilon: float = _fixed(0.0, "bound on what counts give away of a record; 0: exact counts", low=0, high=100)
    delta: float = _private(0.0, "chance that the bound fails: Gaussian noise; 0: Laplace noise", low=0, high=0.5)
    n_released: int = _private(0, "counts that a party releases (T), by the paper's mechanism `top-t`; 0: all", low=0)
    private_rounds: int = _private(0, "rounds that refine the noisy model; 24 do; 0: none", low=0, high=MOST_ROUNDS)
    neighbours: str = _private("add-remove", "data sets that are hard to tell apart", choices=NEIGHBOURS)
    records_per_person: int = _private(1, "most records of a person; epsilon is for all together", low=1, high=10**6)
    rarest_share: float = _private(0.0, "public share of the rarest class; 0: that of equal classes", low=0, high=0.5)
    any_noise: bool = _private(False, "go on where the noise leaves next to nothing of the rarest class")
    noise: str = _private("opendp", "`seeded`: from `seed`, without privacy", choices=("opendp", "seeded"))


@dataclass(frozen=True)
class SecureSettings(Settings):
    """Secure sums, and one noise that their parties share."""

    group = "secure"

    secure: bool = _fixed(
        False,
        "statistics of training samples go through Flower's SecAgg+, while two thirds of the parties, and three, stay; "
        "needs `max-examples`, or `honest-parties` with `epsilon`",
    )
    honest_parties: int = _fixed(
        0,
        "with `epsilon` and `delta`: share one noise in secure sums, which this turns on, where so many parties follow "
        "the protocol, keep their share to themselves and stay to the end; 0: a noise for each party",
        low=0,
        high=10**6,
    )
    max_examples: int = setting(
        0, "most samples of a party; 0: no limit", low=0, high=2**29, fixed_by_federation=("withdraw", "evaluate")
    )


@dataclass(frozen=True)
class FederationSettings(Settings):
    """The action of the run, the federation that it makes or changes, and the parties that take part."""

    group = "federation"

    action: str = setting(
        "train",
        "`train`: make a new federation. Others start from its file: `join` adds parties, `withdraw` removes some, "
        "`update` takes over changed samples, `evaluate` distributes the model, `resume` goes on with a stopped run",
        choices=("train", *LATER),
    )
    federation: str = setting("", "the server's own file of it; not given: `federation.npz` in the output folder")
    parties: str = _simulated("", "those that take part, or that `withdraw` removes, as in `0-7,9`; not given: all")
    min_available: int = setting(0, "parties to wait for before the first round; 0: all of the simulation", low=0)
    min_parties: int = setting(
        0,
        "parties that must be counted, and reply in each later phase, or that must join, leave or change; 0: "
        "`min-available`, or one with `join`, `withdraw` and `update`",
        low=0,
    )
    feature_names: str = _deployed("", "the columns that each party reads as features, as a list")
    n_features: int = _deployed(0, "number of columns, all numbers without gaps and without names in common", low=0)
    schema: str = _fixed(
        "",
        "`schema.toml`, the server's own file; or `learn`, in one more round. Not given: `learn` for categories, dates "
        "or gaps of a simulation, and in a deployment without `feature-names` and `n-features`",
    )
    ignore: str = _fixed("", "columns that are not used where a schema is learned, as a list")
    keep: str = _fixed("", "columns that are used though they look like ids or notes, as a list")
    n_examples: int = _deployed(0, "rough number of samples at all parties together, if public", low=0)
    classes: str = _deployed("", "the classes, as a list with commas between, or in JSON")


@dataclass(frozen=True)
class ProcessSettings(Settings):
    """The rounds of the run, its limits and its output."""

    group = "run"

    rounds: int = setting(0, "rounds, later ones for parties that came late; 0: as many as needed", low=0, high=1000)
    timeout: float = setting(600.0, "seconds to wait for parties, and for replies; 0: no limit", low=0, high=10**9)
    nodes_at_a_time: int = setting(
        0, "for thousands of parties: ask so many at a time, by Flower's Message API; 0: all at once", low=0, high=10**6
    )
    evaluate: str = setting(
        "auto",
        "evaluate the model on held-out samples, and select by leave-one-out; `auto`: yes, but not beside noisy counts "
        "in a deployment, whose epsilon does not cover the results, unless `action` is `evaluate`",
        choices=("auto", "true", "false"),
    )
    group_column: str = setting("", "a category among the columns: the report has figures by its levels, too")
    check_pooled: bool = _simulated(True, "train on the pooled data, too, and compare the counts")
    dry_run: bool = setting(False, "ask nobody: print the plan, and what would leave, also to `plan.json`, and end")
    memory_limit: float = setting(4.0, "most GiB for the counting, at the server and at each simulated party", above=0)
    output_dir: str = setting("", "folder for `model.npz`, `metrics.json`; not given: `flynn/<run id>` under FLWR_HOME")
