"""Class counts and parts of a model on the wire, as config entries and as arrays.

Nothing is assumed of an array that arrives. Sizes, types and shapes are checked before
anything is allocated, and a message is used whole or refused with a `PayloadError`.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flwr_flynn._files import npy_header
from flwr_flynn._types import Array
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated.announced_specs import (
    MAX_CHARS,
    MAX_SPECS,
    announced_basis,
    deflated_basis,
)
from flwr_flynn.federated.compression import (
    check_packed,
    pack_numbers,
    pack_signed,
    unpack_numbers,
    unpack_signed,
)
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.protocol import Config, Entry, Scalars, key, refusing, sent
from flwr_flynn.federated.reply_fields import COUNTS, PLAIN, Field, of_arrays, to_arrays
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.calibration import LARGEST_INTERCEPT, UNIT, Calibration
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.forest import (
    LARGEST_VALUE,
    MOST_TREES,
    N_BINS,
    OPEN,
    Forest,
    memory_of_forest,
    most_nodes,
    n_values,
)
from flwr_flynn.model.model import ModelMember
from flwr_flynn.model.prediction_sets import most_levels
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import Mechanism

_MOST_DIMENSIONS = 4
_TAIL = 40
"""Standard deviations that no noise goes beyond: Laplace noise does so with probability
exp(-56)."""
_SIGNED = ("|i1", "<i2", "<i4", "<i8")


def counts_fields(
    hashers: Sequence[FlyHash], n_classes: int, n_examples: int | None = None
) -> list[Field]:
    """Layout of the exact counts of samples, up to so many, by several hashes."""
    fields = []
    for hasher in hashers:
        most = capacity(hasher)
        if n_examples is not None:
            most = min(most, n_examples)
        shape = (n_classes, hasher.hash_dim)
        fields.append(Field("counts", shape, most, fingerprint=hasher.fingerprint))
    return fields


def counts_of(
    parts: Sequence[Array], hashers: Sequence[FlyHash]
) -> tuple[ClassCounts, ...]:
    """Counts of the same samples by several hashes.

    A `PayloadError` if no samples make them.
    """
    pairs = zip(parts, hashers, strict=True)
    with refusing("counts"):
        counts = [
            ClassCounts(part, hash_nnz=h.hash_nnz, spec_fingerprint=h.fingerprint)
            for part, h in pairs
        ]
    for block in counts[1:]:
        if not np.array_equal(block.n_per_class, counts[0].n_per_class):
            raise PayloadError(
                "counts",
                "the same samples of each class in all blocks",
                "different numbers",
            )
    return tuple(counts)


def encode(*counts: ClassCounts) -> list[Array]:
    """Counts as a message of one block each.

    Sums of noisy counts have the narrowest signed type that holds them.
    """
    form = COUNTS
    if counts[0].noise:
        form = PLAIN
    fields = [
        Field(
            "counts",
            block.array.shape,
            0,
            form,
            types=_SIGNED,
            fingerprint=block.spec_fingerprint,
        )
        for block in counts
    ]
    return to_arrays(fields, [block.array for block in counts])


def decode_all(
    arrays: Sequence[Array], hashers: Sequence[FlyHash], n_classes: int
) -> tuple[ClassCounts, ...]:
    """The exact counts of the same samples by several hashes.

    A `PayloadError` for counts that no samples make.
    """
    return counts_of(of_arrays(arrays, counts_fields(hashers, n_classes)), hashers)


def capacity(hasher: FlyHash) -> int:
    """The number of samples up to which the sum of any row of counts is within int64."""
    return (2**63 - 1) // int(hasher.hash_dim)


def noisy_capacity(hasher: FlyHash) -> int:
    """The size up to which an entry of a sum of noisy counts may grow.

    See `ClassCounts`.
    """
    return capacity(hasher) // 2


def release_field(hasher: FlyHash, mechanism: Mechanism, most: int) -> Field:
    """Layout of the noisy counts of one party.

    Without the noise, entries are at most `most`.
    """
    largest_noise = _TAIL * mechanism.noise_sd
    # The type follows from the noise alone, which is public: the number of bytes must
    # not show what the counts are.
    if largest_noise < 2**30:
        dtype = "<i4"
    else:
        dtype = "<i8"
    return Field(
        "counts",
        (mechanism.n_classes, hasher.hash_dim),
        min(noisy_capacity(hasher), most + math.ceil(largest_noise)),
        PLAIN,
        is_signed=True,
        types=(dtype,),
        fingerprint=hasher.fingerprint,
    )


def decode_total(
    arrays: Sequence[Array], hasher: FlyHash, mechanism: Mechanism, n_releases: int
) -> ClassCounts:
    """The sum of releases that a server distributes, as `encode` writes it."""
    field = replace(
        release_field(hasher, mechanism, 0), most=noisy_capacity(hasher), types=_SIGNED
    )
    return released(of_arrays(arrays, [field])[0], hasher, mechanism, n_releases)


def released(
    array: Array, hasher: FlyHash, mechanism: Mechanism, n_releases: int
) -> ClassCounts:
    """Noisy counts with this array, of so many releases.

    A `PayloadError` if there are none such.
    """
    with refusing("counts"):
        return mechanism.received(array, hasher.fingerprint, n_releases)


def write_tensors(arrays: Sequence[Array]) -> list[bytes]:
    """Arrays as Flower carries them: the bytes of `numpy.save`."""
    tensors = []
    for array in arrays:
        stream = io.BytesIO()
        np.save(stream, array, allow_pickle=False)
        tensors.append(stream.getvalue())
    return tensors


def read_tensors(tensors: Sequence[bytes]) -> list[Array]:
    """Flower's tensors as views of their bytes.

    `numpy.load` would allocate whatever a header declares.
    """
    arrays = []
    for number, tensor in enumerate(tensors, start=1):
        name = f"array {number}"
        if not isinstance(tensor, bytes):
            raise PayloadError(name, "the bytes of numpy.save", type(tensor).__name__)
        stream = io.BytesIO(tensor)  # it shares the bytes, without a copy
        header = npy_header(stream, name, PayloadError, r"[<|](?:[iu][1248]|f[248])")
        if len(header.shape) > _MOST_DIMENSIONS:
            raise PayloadError(
                name, f"at most {_MOST_DIMENSIONS} dimensions", len(header.shape)
            )
        start = stream.tell()
        n_bytes = len(tensor) - start
        if header.n_bytes != n_bytes:
            raise PayloadError(
                name, f"{header.n_bytes} bytes as its header declares", n_bytes
            )
        arrays.append(header.array(tensor, start))
    return arrays


def join(tensors: Sequence[bytes]) -> bytes:
    """Tensors as one value.

    Flower's evaluate channel carries no arrays back, but bytes.
    """
    return b"".join(struct.pack("<Q", len(tensor)) + tensor for tensor in tensors)


def split(joined: object) -> list[bytes]:
    """The tensors in a value that `join` made."""
    if not isinstance(joined, bytes):
        raise PayloadError("statistic", "bytes", type(joined).__name__)
    tensors = []
    start = 0
    while start < len(joined):
        n_left = len(joined) - start
        if n_left < 8:
            raise PayloadError("statistic", "8 bytes with the size of a tensor", n_left)
        (size,) = struct.unpack_from("<Q", joined, start)
        start += 8
        n_left -= 8
        if size > n_left:
            raise PayloadError("statistic", f"{size} bytes of a tensor", n_left)
        tensors.append(joined[start : start + size])
        start += size
    return tensors


N_FOREST_ARRAYS = 3  # columns, cuts and values

# -------- parts of a model: scoring rules, weights, scores of a linear part

MODEL_ENTRIES = {
    "scorings": Entry(str, 200 * MAX_SPECS),
    "linear": Entry(str, MAX_CHARS, is_needed=False),
    "trees": Entry(int, MOST_TREES, least=1, is_needed=False),
    "basis": Entry(bytes, MAX_CHARS, is_needed=False),
}
"""Entries of the parts of a model that are no counts."""


def announced_members(
    config: Config, run: RunSpec, counts: Sequence[ClassCounts]
) -> tuple[ModelMember, ...]:
    """Members of a model with the scorings and weights that a server announced.

    They have the specs of the run and these counts.
    """
    lists = config.json("scorings")
    n_specs = len(run.specs)
    if (
        not isinstance(lists, list)
        or len(lists) != n_specs
        or not all(
            isinstance(values, list) and len(values) == 4 and values[2] is not None
            for values in lists
        )
    ):
        expected = f"{n_specs} lists of rule, decay, temperature and weight"
        raise PayloadError(key("scorings"), expected, "others")
    rows = zip(run.specs, counts, lists, strict=True)
    with refusing(key("scorings")):
        return tuple(
            ModelMember(spec, block, ScoringRule(rule, decay, temperature), weight)
            for spec, block, (rule, decay, temperature, weight) in rows
        )


def scoring_entries(members: Sequence[ModelMember]) -> Scalars:
    """Config entries of the scorings and weights of members."""
    scorings = []
    for member in members:
        scoring = member.scoring
        scorings.append(
            [scoring.rule, scoring.decay, scoring.temperature, member.weight]
        )
    return sent(scorings=json.dumps(scorings))


def forest_entries(run: RunSpec, trees: Forest | None) -> Scalars:
    """Config entries of a forest, without its nodes; none without one."""
    if trees is None:
        return {}
    basis = deflated_basis(trees.basis, run.specs)
    return sent(trees=trees.n_trees, basis=basis)


def forest_arrays(trees: Forest | None) -> list[Array]:
    """Arrays of the nodes of a forest: columns of all, cuts of splits, values of leaves."""
    if trees is None:
        return []
    is_split = trees.columns >= 0
    return [
        pack_numbers(trees.columns.astype(np.int64) - OPEN),
        pack_numbers(trees.cuts[is_split]),
        pack_signed(trees.values[~is_split]),
    ]


def announced_forest(
    config: Config, run: RunSpec, arrays: Sequence[Array], options: PartyOptions
) -> tuple[Forest | None, Sequence[Array]]:
    """A forest in a message that may come from anybody, and the arrays before those of
    its nodes.
    """
    if "trees" not in config:
        return None, arrays
    n_trees = config["trees"]
    most = most_nodes(n_trees, run.n_classes)
    basis = announced_basis(config, run.specs)
    nodes = arrays[-N_FOREST_ARRAYS:]
    with refusing(key("trees")):
        if len(nodes) != N_FOREST_ARRAYS:
            raise PayloadError("trees", f"{N_FOREST_ARRAYS} arrays", len(nodes))
        for array in nodes:
            check_packed([array], "trees")
        columns = unpack_numbers(nodes[0], most, len(basis.columns) - OPEN) + OPEN
        needed = memory_of_forest(len(columns), run.n_classes)
        options.check_memory(needed, f"trees of {len(columns)} nodes")
        is_split = columns >= 0
        cuts = np.zeros(len(columns), np.int64)
        of_splits = unpack_numbers(nodes[1], int(is_split.sum()), N_BINS)
        if len(of_splits) != is_split.sum():
            raise PayloadError("trees", f"{is_split.sum()} cuts", len(of_splits))
        cuts[is_split] = of_splits
        values = np.zeros((len(columns), n_values(run.n_classes)), np.int64)
        shape = (int((~is_split).sum()), values.shape[1])
        values[~is_split] = unpack_signed(nodes[2], shape, LARGEST_VALUE)
        trees = Forest(basis, run.n_classes, n_trees, columns, cuts, values)
    return trees, arrays[:-N_FOREST_ARRAYS]


CALIBRATION_ENTRIES = {
    name: Entry(str, MAX_CHARS, is_needed=False)
    for name in ("calibration", "forest_calibration")
}


def calibration_entries(
    calibration: Calibration | None, name: str = "calibration"
) -> Scalars:
    """Config entry of a calibration, none without one."""
    if calibration is None:
        return {}
    return {key(name): json.dumps(calibration.integers)}


def announced_calibration(
    config: Config, n_classes: int, name: str = "calibration"
) -> Calibration | None:
    """Calibration in a message that may come from anybody."""
    if name not in config:
        return None
    most = round(LARGEST_INTERCEPT / UNIT)
    needed = 1 + n_classes
    integers = config.integers(name, needed, -most, most, most_levels(n_classes))
    with refusing(key(name)):
        return Calibration.of_integers(integers, n_classes)
