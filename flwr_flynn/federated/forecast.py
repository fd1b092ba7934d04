"""Bytes that a run costs each party: forecast from public sizes alone, and counted while it runs.

In a forecast counts are spread evenly over the bits, and a message is as long as their entropy. Real counts pile up on
some bits, which makes messages shorter: the forecast is the most that a run takes, and up to twice what it does take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr_flynn.federated import codec
from flwr_flynn.federated.disclosure import Arrivals, Content
from flwr_flynn.federated.layout import NUMBERS, PLAIN, Field, Sizes, contents, largest_sum, n_entries
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phases.columns import ColumnsRequest
from flwr_flynn.federated.phases.evaluation import score_fields
from flwr_flynn.federated.phases.gram import evaluation_fields, gram_fields, most_figures
from flwr_flynn.federated.phases.noisy_refinement import noisy_refinements
from flwr_flynn.federated.phases.selection import leave_one_out_fields
from flwr_flynn.federated.plan import phases_of
from flwr_flynn.federated.protocol import EXACT, NOISY, NOTHING, RESULTS, SECURE, key
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.subgroups import subgroup_names
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import N_DECAYS
from flwr_flynn.model.gram import GRAM_TEMPERATURES
from flwr_flynn.model.leave_one_out_scores import TEMPERATURES
from flwr_flynn.model.ridge import MOST_DIRECTIONS, MOST_STRENGTHS
from flwr_flynn.model.score_histograms import MOST_CLASSES, N_LEVELS
from flwr_flynn.model.scoring import given_scoring

_TABLE_ENTRY = 4  # bytes of a log-loss
_VALUE = 0.6  # bytes of a value in a histogram of a party with the default floor, at most
_FINGERPRINT = 65  # bytes of a fingerprint, with the space behind it
_PRODUCT = 0.45  # bytes of a sum of products of two rows, and another byte for each factor 256 of samples
_GRAM_WEIGHT = 1.6  # bytes of a weight of a row
_DIRECTION = 1.2  # bytes of an entry of a direction
_FIGURE = 20  # bytes of an eigenvalue, a bias or a strength
_SCORE = 1.5  # bytes of a probability of a sample in the histograms of the evaluation; a quarter as many are held out
_HEADERS = 400  # bytes around them, and of the sums of scores
_DIGITS = 9  # bytes of a number of a centre or a scale, deflated
_BINS = 1024, 600, 1200, 1200, 1200  # of a column in each phase of a secure run
_CUTS = 400  # bytes of the cuts between them
_EDGE = 5  # bytes of an edge or a weight: they have three digits


@dataclass(frozen=True)
class Bytes:
    """Bytes up (from a party) and down (to it)."""

    up: int
    down: int


@dataclass
class Traffic:
    """Bytes of one phase's requests and replies, arrays and entries, over all parties and rounds of a run."""

    asked: int = 0
    replied: int = 0
    down: int = 0
    up: int = 0
    kind: str = ""  # of disclosure
    arrivals: Arrivals = field(default_factory=Arrivals)

    def ask(self, n_parties: int, tensors: Iterable[bytes], config: Mapping[str, Any]) -> None:
        """Note that so many parties get this."""
        self.asked += n_parties
        self.down += n_parties * (sum(map(len, tensors)) + codec.n_bytes(config))

    def reply(self, tensors: Iterable[bytes], metrics: Mapping[str, Any]) -> None:
        """Note a reply of one party."""
        self.replied += 1
        self.up += sum(map(len, tensors)) + codec.n_bytes(metrics)

    def add(self, answered: Traffic, arrivals: Arrivals) -> None:
        """Add the replies of an exchange."""
        self.replied += answered.replied
        self.up += answered.up
        self.arrivals += arrivals

    @property
    def per_party(self) -> dict[str, int]:
        """Bytes up (from a party) and down (to it), on average."""
        return {"up": round(self.up / max(self.replied, 1)), "down": round(self.down / max(self.asked, 1))}


def forecast(options: RunOptions, n_parties: int) -> dict[str, Bytes] | None:
    """Bytes of each phase for a party with an equal share of the samples, by the names of the phases.

    None where the number of samples is not known, or counts are noisy: their messages have a fixed size.
    """
    n_examples = None if options.plan is None else options.plan.n_examples
    run = options.run_spec
    if not n_examples or options.learn_schema or run.mechanism is not None or options.federation is not None:
        return None
    specs, n_classes, share = options.counted_specs(run.specs), run.n_classes, n_examples / n_parties
    n_columns = run.spec.n_features
    announced = _bytes_of_run(replace(run, specs=specs))
    sums = sum(_bytes_of_counts(spec, n_classes, n_examples) for spec in specs)
    scores = _HEADERS + _SCORE * n_classes * min(share / 4, 2 * N_LEVELS) * (n_classes <= MOST_CLASSES)
    n_groups = len(subgroup_names(options.feature_names, options.group_column))
    scores += min(n_groups, 1) * scores + 48 * n_groups  # each sample once more, and the sums
    members = sums * min(options.max_members, len(specs)) / len(specs)
    found = {
        "columns": (_VALUE * share * n_columns, 0.0),
        "counts": (sum(_bytes_of_counts(spec, n_classes, share) for spec in specs), announced),
        "selection": (N_DECAYS * len(TEMPERATURES) * _TABLE_ENTRY * len(specs), announced + sums),
        "evaluation": (16 * n_classes**2 + scores, announced + members),
    }
    n_rows = options.gram_rows(n_examples, n_columns) if options.has_gram else 0
    product = _PRODUCT + math.log2(share + 1) / 8
    found["gram"] = (product * n_rows * (n_rows + 1) / 2 + 2 * n_classes * n_rows, announced)
    n_results = MOST_STRENGTHS * len(GRAM_TEMPERATURES) * n_classes
    regressions = n_rows * (_GRAM_WEIGHT * MOST_STRENGTHS * n_classes + _DIRECTION * (MOST_DIRECTIONS + 2))
    found["gram evaluation"] = (
        2 * _TABLE_ENTRY * n_results,
        announced + regressions + _FIGURE * most_figures(n_classes),
    )
    if n_rows:
        up, down = found["evaluation"]
        found["evaluation"] = up, down + _GRAM_WEIGHT * n_classes * n_rows
    if run.bound is not None:
        found["secure evaluation"] = found["evaluation"]
        sizes = {name: _secure_entries(fields, run.bound) for name, fields in layouts(options).items() if fields}
        sizes |= {f"bins {number}": n_columns * entries for number, entries in enumerate(_BINS, 1)}
        sizes["columns"] = 70 * n_classes * n_columns
        for name, size in sizes.items():
            if name != "evaluation":
                found[name] = 8.0 * size + 512, found.get(name, (0, (8.0 + _CUTS) * n_columns))[1]
    names = [phase.name for phase in phases_of(options)]
    return {name: Bytes(round(up), round(down)) for name, (up, down) in found.items() if name in names}


def layouts(options: RunOptions) -> dict[str, list[Field]]:
    """Fields of an answer by the names of the phases, as many as there can be; open ones where sizes are not known."""
    run, bound = options.run_spec, options.secure_bound or 0
    n_classes, sizes = run.n_classes, Sizes(bound, bound)
    specs = options.counted_specs(run.specs)
    n_decays = 1 if given_scoring(options.rule, options.decay) else N_DECAYS
    columns = ColumnsRequest(run.spec.n_features, run.classes).fields(sizes)
    n_examples = None if options.plan is None or options.learn_schema else options.plan.n_examples
    n_rows = options.gram or (options.gram_rows(n_examples, run.spec.n_features) if n_examples else 0)
    gram = gram_fields(n_rows, n_classes, sizes)
    shape = (n_classes, n_classes)
    names = ("confusion matrix", "own confusion matrix") if run.is_plain else ("confusion matrix",)
    bins = Field("bins", (1, 0), 0, is_open=True)
    results = [Field(name, shape, bound, PLAIN) for name in names]
    results += score_fields(n_classes, len(subgroup_names(options.feature_names, options.group_column)), bound)
    found = {
        "schema": [Field("summary", (0,), 0, NUMBERS, is_open=True)],
        **{f"bins {number}": [bins] for number in range(1, len(_BINS) + 1)},
        "columns": [bins] if run.is_secure else columns,
        "counts": [Field("counts", (n_classes, spec.hash_dim), bound, fingerprint="0" * 64) for spec in specs],
        "selection": leave_one_out_fields([n_decays] * len(specs), n_classes, sizes),
        **{
            phase.name: [Field("gradient", (run.spec.hash_dim, n_classes), 0, PLAIN, True)]
            for phase in noisy_refinements(run)
        },
        "gram": gram if n_rows else [gram[0], *(replace(each, is_open=True) for each in gram[1:])],
        "gram evaluation": evaluation_fields(MOST_STRENGTHS, n_classes, sizes),
        "secure evaluation": results,
        "evaluation": results if options.is_evaluated and not options.sums_results else [],
    }
    if options.learn_schema:  # all sizes follow from it
        found |= {name: [replace(each, is_open=True) for each in found[name]] for name in ("counts", "selection")}
    return {phase.name: found[phase.name] for phase in phases_of(options) if phase.name in found}


def told(options: RunOptions) -> dict[str, tuple[str, list[Content]]]:
    """Kind of disclosure, and content of each array, by the names of the phases."""
    run, found = options.run_spec, dict[str, tuple[str, list[Content]]]()
    for name, fields in layouts(options).items():
        if name == "evaluation":
            found[name] = RESULTS if fields else NOTHING, contents(fields, [None] * len(fields))
        elif run.bound is not None:
            is_open = any(field.is_open for field in fields)
            shape = None if is_open else (_secure_entries(fields, run.bound),)
            found[name] = SECURE, [Content(tuple(dict.fromkeys(each.name for each in fields)), shape, None)]
        else:
            kind = EXACT if run.mechanism is None else NOISY
            found[name] = kind, contents(fields, [None] * len(fields))
    return found


def _secure_entries(fields: Sequence[Field], bound: int) -> int:
    """Entries of the vector of a secure sum."""
    return n_entries([each.capped(largest_sum(bound)) for each in fields], bound)


def _bytes_of_run(run: RunSpec) -> int:
    """Bytes of the config entries of a run, whose rows are not drawn for it.

    The vectors of its specs are placeholders, which deflate to nothing; the parties' columns give longer ones.
    """
    found = codec.n_bytes(run.entries()) + len(key("fingerprints")) + _FINGERPRINT * len(run.specs)
    found += _DIGITS * run.spec.n_features  # the centre, the same for all specs
    found += sum(_DIGITS * len(spec.scale) for spec in run.specs if spec.scale is not None)
    edges = [spec.edges for spec in run.specs if spec.edges is not None]  # the same, too
    return found + (_EDGE * len(edges[0]) * (len(edges[0][0]) + 1) if edges else 0)


def _bytes_of_counts(spec: HashSpec, n_classes: int, n_examples: float) -> float:
    n_entries = n_classes * spec.hash_dim
    return n_entries * _poisson_entropy(n_examples * spec.hash_nnz / n_entries) / 8


def _poisson_entropy(mean: float) -> float:
    if mean <= 0:
        return 0.0
    if mean > 50:
        return 0.5 * math.log2(2 * math.pi * math.e * mean)
    probability, entropy = math.exp(-mean), 0.0
    for k in range(1, 200):
        entropy -= probability * math.log2(probability) if probability > 0 else 0.0
        probability *= mean / k
    return entropy
