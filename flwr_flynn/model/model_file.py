"""Model file: an .npz without pickles that is written whole or not at all, and read
whole or refused.

Its arrays are in ``docs/reference/file_formats.md``. Files come from anybody: sizes are
known, and known to fit, before anything is allocated.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import _files
from flwr_flynn._types import Array
from flwr_flynn._validation import checked_fields, listed
from flwr_flynn.errors import FlyNNError, ModelFileError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.basis import MOST_TERMS, Basis
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.counts import ClassCounts, Release, memory_needed
from flwr_flynn.model.forest import MOST_TREES, Forest, most_nodes, n_values
from flwr_flynn.model.gram import N_FOLDS, GramScoring
from flwr_flynn.model.model import (
    MOST_MEMBERS,
    CalibratedForest,
    Model,
    ModelMember,
)
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.tables.schema import Schema

_FORMAT = 10
_SINCE_0_9 = ("calibration", "linear", "forest")  # entries that files of 0.8 lack
_HEADER = {
    "format",
    "classes",
    "feature_names",
    "guarantee",
    "members",
    *_SINCE_0_9,
}
SUMS = ("linear_products", "linear_sums", "linear_sizes")
"""Arrays of a `GramMatrix` of a linear part, beside the writer's record."""

GROWTH = (
    "growth_columns",
    "growth_cuts",
    "growth_values",
    "growth_best_values",
    "growth_gains",
)
"""Arrays of a `Growth`, beside the writer's record."""
_NODES = ("forest_columns", "forest_cuts", "forest_values")

_GONE = {"aligned": False, "refined": False, "gram": None}
"""Entries of files of 0.8 for parts of a model that are gone, and what they must be."""


def write(
    path: str | os.PathLike[str],
    model: Model,
    extra: Mapping[str, object] | None = None,
    mode: int | None = None,
    further: Mapping[str, Array] | None = None,
) -> None:
    """Write a model to a file, whole or not at all. Equal models make equal files.

    An existing file keeps its permissions without a `mode`; a symbolic link is
    followed. `extra` is a record of the writer, for JSON, and `further` are arrays that
    it has, of the names in `SUMS` and `GROWTH`.
    """
    with _files.writing(path, mode) as stream:
        stream.write(to_bytes(model, extra, further))


def to_bytes(
    model: Model,
    extra: Mapping[str, object] | None = None,
    further: Mapping[str, Array] | None = None,
) -> bytes:
    """The content of a model's file."""
    header: dict[str, object] = {
        "format": _FORMAT,
        "classes": _labels_to_json(model.classes),
        "feature_names": model.feature_names,
        "guarantee": model.guarantee,
        "members": [_member_header(member) for member in model.members],
        **dict.fromkeys(_SINCE_0_9),
    }
    if model.calibration is not None:
        header["calibration"] = asdict(model.calibration)
    weights: dict[str, Array] = {}
    if model.linear is not None:
        header["linear"] = model.linear.terms.to_dict()
        weights["linear"] = _narrow_weights(model.linear.weights)
        weights["linear_bias"] = model.linear.bias.astype("<i8")
    if model.forest is not None:
        trees = model.forest.trees
        header["forest"] = {
            "basis": trees.basis.to_dict(),
            "n_trees": trees.n_trees,
            "calibration": asdict(model.forest.calibration),
        }
        nodes = (trees.columns, trees.cuts, trees.values)
        weights |= dict(zip(_NODES, map(_plain, nodes), strict=True))
    arrays = {"header": _json_bytes(header)}
    if extra is not None:
        arrays["extra"] = _json_bytes(extra)
    for index, member in enumerate(model.members):
        counts = member.counts.array
        extreme = int(counts.max())
        if member.counts.noise:
            extreme = _least(counts)
        arrays[f"counts_{index}"] = _little(counts, extreme)
    arrays |= weights
    for name, array in (further or {}).items():
        arrays[name] = _plain(array)
    if model.prior is not None:
        arrays["prior"] = model.prior.astype("<f8")
    arrays["digest"] = digest_of(*arrays.values())
    stream = io.BytesIO()
    # It writes no time stamps.
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


@contextmanager
def reading(
    path: str | os.PathLike[str], max_bytes: int
) -> Iterator[tuple[Model, Any, dict[str, Array]]]:
    """Read a model, the writer's record, not checked or None, and its further arrays,
    for use in the block.

    An error of the block about the contents becomes a `ModelFileError`, as do a damaged
    file and a model that takes more than `max_bytes`. An `OSError` is raised where the
    file cannot be opened.
    """
    with open(path, "rb") as stream:
        try:
            yield _read(stream, max_bytes)
        except FlyNNError as error:
            prefix = "inconsistent: "
            if isinstance(error, ModelFileError):
                prefix = ""
            text = f"{os.fspath(path)}: {prefix}{error}"
            raise ModelFileError(
                error.field or "file", error.expected, error.got, text=text
            ) from None
        except Exception as error:  # noqa: BLE001
            # Zipfile, json and constructors raise a dozen kinds on other files.
            kind = type(error).__name__
            text = f"{os.fspath(path)}: not a model file, or damaged ({kind})"
            raise ModelFileError("file", "a model file", kind, text=text) from None


def _read_header(
    archive: zipfile.ZipFile, names: list[str], max_bytes: int
) -> tuple[npt.NDArray[np.uint8], Any]:
    """Header of a model file with arrays of these names: its text, and the fields in
    it.
    """
    if not {"header", "digest"} <= {*names}:
        raise ModelFileError("arrays", "header, counts and digest", sorted(names)[:5])
    text = _read_npy(archive, "header", r"\|u1", max_bytes // 32)
    header = json.loads(text.tobytes())
    if type(header["format"]) is not int or header["format"] != _FORMAT:
        raise ModelFileError("format", str(_FORMAT), str(header["format"])[:20])
    for name, only in _GONE.items():
        value = header.pop(name, only)
        if value is not only:
            expected = (
                f"{json.dumps(only)}, as this part is gone since 0.8 (train anew)"
            )
            raise ModelFileError(name, expected, json.dumps(value)[:20])
    for name in _SINCE_0_9:
        header.setdefault(name, None)
    checked_fields("header", header, _HEADER, error=ModelFileError)
    members = header["members"]
    if not isinstance(members, list):
        raise ModelFileError("members", "a list", type(members).__name__)
    if len(members) > MOST_MEMBERS:
        raise ModelFileError("members", f"at most {MOST_MEMBERS}", len(members))
    return text, header


def _read(stream: IO[bytes], max_bytes: int) -> tuple[Model, Any, dict[str, Array]]:
    with zipfile.ZipFile(stream) as archive:
        present = [name.removesuffix(".npy") for name in archive.namelist()]
        text, header = _read_header(archive, present, max_bytes)
        classes = _labels_from_json(header["classes"])
        specs = [HashSpec.from_dict(member["spec"]) for member in header["members"]]
        n_classes = len(classes)
        limits = _limits(header, present, specs, n_classes, max_bytes)
        needed = sum(memory_needed(spec, n_classes) for spec in specs)
        basis = None
        if header["linear"] is not None:
            basis = Basis.from_dict(header["linear"], specs[0].n_features)
            needed += 12 * n_classes * basis.n_terms
            types, _ = limits["linear"]
            limits["linear"] = (types, 4 * n_classes * basis.n_terms)
        if SUMS[0] in limits:
            needed += 16 * N_FOLDS * MOST_TERMS * (MOST_TERMS + n_classes)
        if _NODES[0] in limits or GROWTH[0] in limits:
            of_node = 16 + 2 * n_values(n_classes)
            needed += most_nodes(MOST_TREES, n_classes) * of_node
        if needed > max_bytes:
            raise ModelFileError(
                "memory",
                f"at most {max_bytes / 2**20:.2g} MiB",
                f"about {needed / 2**20:.2g} MiB",
            )
        arrays = {name: _read_npy(archive, name, *limits[name]) for name in limits}
        digest = _read_npy(archive, "digest", r"\|u1", 32)
    contents = digest_of(text, *arrays.values())
    if not np.array_equal(digest, contents):
        got = f"{digest.tobytes().hex()[:12]}... in an altered file"
        raise ModelFileError(
            "digest",
            f"the SHA-256 of the contents, {contents.tobytes().hex()[:12]}...",
            got,
        )
    linear = None
    if basis is not None:
        linear = GramScoring(basis, arrays["linear"], arrays["linear_bias"])
    forest = None
    if header["forest"] is not None:
        nodes = [arrays[name] for name in _NODES]
        forest = _forest(header["forest"], nodes, specs[0].n_features, n_classes)
    calibration = None
    if header["calibration"] is not None:
        calibration = Calibration(**header["calibration"])
    features = header["feature_names"]
    if isinstance(features, dict):
        features = Schema.from_dict(features)
    members = [
        _member(spec, entry, arrays[f"counts_{index}"], n_classes)
        for index, (spec, entry) in enumerate(
            zip(specs, header["members"], strict=True)
        )
    ]
    model = Model(
        tuple(members),
        classes,
        feature_names=features,
        guarantee=header["guarantee"],
        prior=arrays.get("prior"),
        calibration=calibration,
        linear=linear,
        forest=forest,
    )
    extra = None
    if "extra" in arrays:
        extra = json.loads(arrays["extra"].tobytes())
    further = {name: arrays[name] for name in (*SUMS, *GROWTH) if name in arrays}
    return model, extra, further


def _limits(
    header: Mapping[str, Any],
    present: list[str],
    specs: Sequence[HashSpec],
    n_classes: int,
    max_bytes: int,
) -> dict[str, tuple[str, int]]:
    """Arrays of a model with this header, in the order of their digest, if these are
    present: types of each, as a pattern, and the most bytes of it.
    """
    limits: dict[str, tuple[str, int]] = {}
    for index, (member, spec) in enumerate(zip(header["members"], specs, strict=True)):
        types = "[<|]u[1248]"
        if member["noise"]:
            types = "[<|]i[1248]"
        limits[f"counts_{index}"] = (types, 8 * n_classes * spec.hash_dim)
    if header["linear"] is not None:
        limits["linear"] = ("[<|]i[124]", 4 * n_classes * MOST_TERMS)
        limits["linear_bias"] = ("<i8", 8 * n_classes)
    nodes = most_nodes(MOST_TREES, n_classes)
    values = (r"\|i1", nodes * n_values(n_classes))
    of_trees = (("<i2", 2 * nodes), (r"\|u1", nodes), values)
    if header["forest"] is not None:
        limits |= dict(zip(_NODES, of_trees, strict=True))
    most_products = MOST_TERMS * (MOST_TERMS + 1) // 2
    most_integers = (most_products, MOST_TERMS * n_classes, n_classes)
    of_sums = [("<i8", 8 * N_FOLDS * most) for most in most_integers]
    of_growth = [*of_trees, values, ("<i8", 8 * MOST_TERMS)]
    for names, of_arrays in ((SUMS, of_sums), (GROWTH, of_growth)):
        if "extra" in present and names[0] in present:
            limits |= dict(zip(names, of_arrays, strict=True))
    if "prior" in present:
        limits["prior"] = ("<f8", 8 * n_classes)
    expected = ["header", "digest", *limits]
    if len(present) != len({*present}) or {*present} - {"extra"} != {*expected}:
        raise ModelFileError(
            "arrays",
            listed(expected, 8),
            listed([name[:40] for name in sorted(present)], 8),
        )
    if "extra" in present:
        # JSON takes up to some thirty times its length as Python objects.
        return {"extra": (r"\|u1", max_bytes // 32), **limits}
    return limits


def _forest(
    values: Mapping[str, Any], nodes: Sequence[Array], n_features: int, n_classes: int
) -> CalibratedForest:
    """Forest of its entry in the header of a file, and of its arrays."""
    basis = Basis.from_dict(values["basis"], n_features)
    trees = Forest(basis, n_classes, values["n_trees"], *nodes)
    return CalibratedForest(trees, Calibration(**values["calibration"]))


def _member(
    spec: HashSpec, values: Mapping[str, Any], counts: Array, n_classes: int
) -> ModelMember:
    """Member from its spec, its entry in the header and its counts."""
    if counts.shape != (n_classes, spec.hash_dim):
        raise ModelFileError(
            "counts", f"shape {(n_classes, spec.hash_dim)}", f"shape {counts.shape}"
        )
    if flynn_hash(spec).fingerprint != values["fingerprint"]:
        raise ModelFileError(
            "fingerprint",
            "the rows of M that this version draws",
            str(values["fingerprint"])[:12],
        )
    noise = tuple(Release.from_dict(release) for release in values["noise"])
    return ModelMember(
        spec,
        ClassCounts(
            counts,
            hash_nnz=spec.hash_nnz,
            spec_fingerprint=values["fingerprint"],
            noise=noise,
        ),
        ScoringRule(values["rule"], values["decay"], values["temperature"]),
        values["weight"],
    )


def _member_header(member: ModelMember) -> dict[str, object]:
    return {
        "spec": member.spec.to_dict(),
        "fingerprint": member.counts.spec_fingerprint,
        **asdict(member.scoring),
        "weight": member.weight,
        "noise": [asdict(release) for release in member.counts.noise],
    }


def narrowed(array: Array) -> Array:
    """Integers in the narrowest signed type that holds them."""
    return array.astype(np.min_scalar_type(_least(array)))


def _least(array: Array) -> int:
    """The least integer of a signed type that holds all of an array."""
    # A signed type holds as much above as below zero, and one more below.
    return min(int(array.min(initial=0)), -int(array.max(initial=0)) - 1)


def _narrow_weights(weights: npt.NDArray[np.int32]) -> Array:
    """Weights in the narrowest type that holds them and their negatives: -128 fits a
    byte, 128 does not.
    """
    return _little(weights, -int(np.abs(weights).max(initial=0)) - 1)


def _plain(array: Array) -> Array:
    """An array as little-endian integers of its size."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _little(array: Array, extreme: int) -> Array:
    """Integers in the narrowest little-endian type that holds one that is as extreme."""
    return array.astype(np.min_scalar_type(extreme).newbyteorder("<"), copy=False)


def _read_npy(
    archive: zipfile.ZipFile, name: str, dtypes: str, max_bytes: int
) -> Array:
    array = _files.npz_array(
        archive, f"{name}.npy", name, ModelFileError, dtypes, max_bytes
    )
    if not array.flags.c_contiguous:
        raise ModelFileError(name, "an array in C order", "Fortran order")
    return array


def _json_bytes(values: object) -> npt.NDArray[np.uint8]:
    text = json.dumps(values, allow_nan=False, default=Schema.to_dict)
    return np.frombuffer(text.encode(), np.uint8)


def digest_of(*arrays: Array) -> npt.NDArray[np.uint8]:
    """SHA-256 of arrays as they stand in the file, with their types and shapes, 32
    bytes.
    """
    sha256 = hashlib.sha256(b"flynn model 1")
    for array in arrays:
        sha256.update(f"{array.dtype.str} {array.shape} ".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return np.frombuffer(sha256.digest(), np.uint8)


def _labels_to_json(classes: Array) -> dict[str, object]:
    kind = classes.dtype.kind
    values = classes.tolist()
    if kind not in "OUbiuf" or (
        kind == "O" and not all(type(value) is str for value in values)
    ):
        raise ModelFileError(
            "classes", "strings, numbers or booleans", f"dtype {classes.dtype}"
        )
    names = {"O": "object", "U": "str"}
    return {"dtype": names.get(kind, classes.dtype.name), "values": values}


def _labels_from_json(labels: Mapping[str, Any]) -> Array:
    name = labels["dtype"]
    values = labels["values"]
    if not re.fullmatch("object|str|bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise ModelFileError(
            "classes", "a dtype of strings, numbers or booleans", name[:40]
        )
    array = np.array(values, name)
    if array.tolist() != values:
        raise ModelFileError(
            "classes", f"values of dtype {name}", "values of a different type"
        )
    return array
