"""Parts of a model as config entries and arrays of a message: scoring rules, weights, scores from the Gram matrix.

Whatever comes from a message is checked before it is used, sizes before anything is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_flynn.errors import DataError, PayloadError, SpecError
from flwr_flynn.federated import codec
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.protocol import Config, Scalar, key, refusing
from flwr_flynn.federated.run_spec import RunSpec, announced_specs, check_fingerprints, deflated_specs
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.model.counts import ClassCounts, memory_needed
from flwr_flynn.model.gram_scoring import LARGEST_BIAS, GramScoring, checked_gram_specs
from flwr_flynn.model.gram_scoring import LARGEST_WEIGHT as GRAM_WEIGHT
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.refinement import LARGEST_WEIGHT, Weights
from flwr_flynn.model.scoring import ScoringRule

_WEIGHT_BYTES = 40  # that a weight takes at a party, with its gradient, while they are packed


def members_text(members: Sequence[ModelMember]) -> str:
    """Scorings of members, with their temperatures, and their weights, as a server announces them."""
    scorings = [(each.scoring, each.weight) for each in members]
    return json.dumps([[scoring.rule, scoring.decay, scoring.temperature, weight] for scoring, weight in scorings])


def announced_members(config: Config, run: RunSpec, counts: Sequence[ClassCounts]) -> tuple[ModelMember, ...]:
    """Members with the scorings and weights that a server announced, of the specs of a run and these counts."""
    n_members, lists = len(run.specs), config.json("scorings", 200 * len(run.specs))
    expected = f"{n_members} lists of rule, decay, temperature and weight"
    if not isinstance(lists, list) or len(lists) != n_members:
        raise PayloadError(key("scorings"), expected, len(lists) if isinstance(lists, list) else type(lists).__name__)
    if any(not isinstance(values, list) or len(values) != 4 or values[2] is None for values in lists):
        raise PayloadError(key("scorings"), expected, "other lists")
    with refusing(key("scorings")):
        scorings = [ScoringRule(*values[:3]) for values in lists]
        return tuple(map(ModelMember, run.specs, counts, scorings, [values[3] for values in lists]))


def gram_entries(run: RunSpec, gram: GramScoring | None) -> dict[str, Scalar]:
    """Config entries of scores from the Gram matrix, without their weights; none without them."""
    if gram is None:
        return {}
    figures = [gram.bias.tolist(), *gram.figures.values()]
    prints = " ".join(flynn_hash(spec).fingerprint for spec in gram.specs)
    return {
        key("gram"): json.dumps(figures),
        key("gram_specs"): deflated_specs(gram.specs, run.specs),
        key("gram_fingerprints"): prints,
    }


def announced_gram(config: Config, run: RunSpec, arrays: Sequence[codec.Array], party: SampleAccess) -> GramScoring:
    """Scores from the Gram matrix in a message that may come from anybody, with their weights as the one array."""
    values = config.json("gram", 30 * run.n_classes + 200)
    expected = "biases, temperature, share, accuracy and leverage"
    if not isinstance(values, list) or len(values) != 5 or not isinstance(values[0], list):
        raise PayloadError(key("gram"), expected, type(values).__name__)
    bias, *figures = values
    if not all(type(each) is int and abs(each) <= LARGEST_BIAS for each in bias) or len(bias) != run.n_classes:
        raise PayloadError(key("gram"), f"{run.n_classes} biases up to {LARGEST_BIAS}", f"{len(bias)}, or larger ones")
    try:
        specs = checked_gram_specs(announced_specs(config, "gram_specs", 2, run.specs))
        n_rows = sum(spec.hash_dim for spec in specs)
        needed = sum(memory_needed(spec, run.n_classes) for spec in specs) + 64 * n_rows * run.n_classes
        party.check_memory(needed, f"scores from the Gram matrix of {n_rows} rows")
        check_fingerprints(config, "gram_fingerprints", [flynn_hash(spec) for spec in specs])
        check_packed(arrays, 1, "weights", "one packed array of the Gram matrix")
        weights = unpack_signed(arrays[0], (n_rows, run.n_classes), GRAM_WEIGHT).astype(np.int32)
        if any(type(each) not in (int, float) for each in figures):
            raise PayloadError(key("gram"), expected, "other types")
        return GramScoring(specs, weights, np.array(bias, np.int64), *figures)
    except (DataError, SpecError) as error:
        if isinstance(error, PayloadError):
            raise
        raise PayloadError(key("gram"), error.expected, error.got) from None


def packed_weights(weights: Weights | Sequence[Any]) -> list[codec.Array]:
    """Weights as a message has them: one array for each member."""
    return [pack_signed(each) for each in weights]


def check_room_for_weights(run: RunSpec, party: SampleAccess) -> None:
    """Raise a `PayloadError` if weights for all members of a run are more than the party has memory for."""
    n_weights = run.n_classes * sum(spec.hash_dim for spec in run.specs)
    party.check_memory(_WEIGHT_BYTES * n_weights, f"{n_weights} weights")


def unpacked_weights(run: RunSpec, arrays: Sequence[codec.Array]) -> Weights:
    """The weights of a run's members in arrays that may come from anybody."""
    check_packed(arrays, len(run.specs), "weights", f"{len(run.specs)} packed arrays")
    pairs = zip(arrays, run.specs, strict=True)
    tables = [unpack_signed(array, (spec.hash_dim, run.n_classes), LARGEST_WEIGHT) for array, spec in pairs]
    return tuple(table.astype(np.int32) for table in tables)
