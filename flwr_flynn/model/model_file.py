"""Model file: an .npz without pickles that is written whole or not at all, and read whole or refused.

Its arrays are in ``docs/reference/file_formats.md``. Files come from anybody: sizes are known, and known to fit, before
anything is allocated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import _files
from flwr_flynn._validation import boolean, listed
from flwr_flynn.errors import FlyNNError, ModelFileError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts, Release, memory_needed
from flwr_flynn.model.gram import GramScoring, checked_gram_specs
from flwr_flynn.model.model import Model, ModelMember, ScoringRule
from flwr_flynn.tables.schema import Schema

_FORMAT = 10
_HEADER = {"format", "classes", "feature_names", "guarantee", "refined", "members", "gram"}


def write(path: str | os.PathLike[str], model: Model, extra: dict[str, Any] | None = None) -> None:
    """Write a model to a file, whole or not at all. Equal models make equal files.

    An existing file keeps its permissions; a symbolic link is followed. `extra` is a record of the writer, for JSON.
    """
    gram = model.gram
    header: dict[str, Any] = {
        "format": _FORMAT,
        "classes": _labels_to_json(model.classes),
        "feature_names": _names_to_json(model),
        "guarantee": model.guarantee,
        "refined": model.refined is not None,
        "members": [_member_header(member) for member in model.members],
        "gram": None,
    }
    if gram is not None:
        prints = [flynn_hash(spec).fingerprint for spec in gram.specs]
        header["gram"] = {"specs": [spec.to_dict() for spec in gram.specs], "fingerprints": prints}
    arrays = {"header": _json_bytes(header)}
    if extra is not None:
        arrays["extra"] = _json_bytes(extra)
    for index, member in enumerate(model.members):
        arrays[f"counts_{index}"] = _narrow(member.counts)
    if model.refined is not None:
        arrays["weights_0"] = _narrow_signed(model.refined)
    if gram is not None:
        arrays |= {"gram": _narrow_signed(gram.weights), "bias": gram.bias.astype("<i8")}
    if model.prior is not None:
        arrays["prior"] = model.prior.astype("<f8")
    arrays["digest"] = digest_of(*arrays.values())
    with _files.writing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # made by hand it bears no time stamp
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member_stream:
                np.lib.format.write_array(member_stream, array, version=(1, 0), allow_pickle=False)


@contextmanager
def reading(path: str | os.PathLike[str], max_bytes: int) -> Iterator[tuple[Model, Any]]:
    """Read a model and the writer's record, not checked or None, for use in the block.

    An error of the block about the contents becomes a `ModelFileError`, as do a damaged file and a model that takes
    more than `max_bytes`. An `OSError` is raised where the file cannot be opened.
    """
    with open(path, "rb") as stream:
        try:
            yield _read(stream, max_bytes)
        except ModelFileError as error:
            raise _about(path, error) from None
        except FlyNNError as error:
            raise _about(path, error, "inconsistent: ") from None
        except Exception as error:  # noqa: BLE001 - zipfile, json and constructors raise a dozen kinds on other files
            kind = type(error).__name__
            text = f"{os.fspath(path)}: not a model file, or damaged ({kind})"
            raise ModelFileError("file", "a model file", kind, text=text) from None


def _about(path: str | os.PathLike[str], error: FlyNNError, prefix: str = "") -> ModelFileError:
    """Error of the same field, with the path in front of its message."""
    text = f"{os.fspath(path)}: {prefix}{error}"
    if error.field is None:
        return ModelFileError(text)
    return ModelFileError(error.field, error.expected, error.got, text=text)


def _read_header(archive: zipfile.ZipFile, names: set[str], max_bytes: int) -> tuple[npt.NDArray[np.uint8], Any]:
    """Header of a model file with arrays of these names: its text, and the fields in it."""
    if not {"header", "digest"} <= names:
        raise ModelFileError("arrays", "header, counts and digest", sorted(names)[:5])
    # JSON takes up to some thirty times its length as Python objects.
    text = _read_npy(archive, "header", r"\|u1", max_bytes // 32)
    header = json.loads(text.tobytes())
    if type(header["format"]) is not int or header["format"] != _FORMAT:
        raise ModelFileError("format", str(_FORMAT), str(header["format"])[:20])
    if header.pop("aligned", False) is not False:  # in files of 0.8
        raise ModelFileError(
            "aligned", "false: alignment is gone, train on columns standardised at the parties", "true"
        )
    if set(header) != _HEADER:
        raise ModelFileError("header", ", ".join(sorted(_HEADER)), listed([name[:40] for name in sorted(header)], 8))
    if not isinstance(header["members"], list):
        raise ModelFileError("members", "a list", type(header["members"]).__name__)
    return text, header


def _read(stream: IO[bytes], max_bytes: int) -> tuple[Model, Any]:
    with zipfile.ZipFile(stream) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        text, header = _read_header(archive, names, max_bytes)
        refined = boolean("refined", header["refined"], ModelFileError)
        members, has_gram = header["members"], header["gram"] is not None
        counts_names = [f"counts_{index}" for index in range(len(members))]
        weights_names = ["weights_0"] if refined else []
        gram_names = ["gram", "bias"] if has_gram else []
        expected = ["header", "digest", *counts_names, *weights_names, *gram_names]
        expected += ["prior"] if "prior" in names else []
        if len(archive.namelist()) != len(names) or names - {"extra"} != set(expected):
            raise ModelFileError("arrays", listed(expected, 8), listed([name[:40] for name in sorted(names)], 8))
        classes = _labels_from_json(header["classes"])
        specs = [HashSpec.from_dict(member["spec"]) for member in members]
        needed = sum(memory_needed(spec, len(classes)) for spec in specs)
        needed += 4 * len(classes) * specs[0].hash_dim * refined
        gram_specs = _gram_specs(header["gram"]) if has_gram else ()
        needed += sum(memory_needed(spec, len(classes)) for spec in gram_specs)
        if needed > max_bytes:
            raise ModelFileError("memory", f"at most {max_bytes / 2**20:.2g} MiB", f"about {needed / 2**20:.2g} MiB")
        extras = [_read_npy(archive, "extra", r"\|u1", max_bytes // 32)] if "extra" in names else []
        counts = [
            _read_npy(archive, name, f"[<|]{'i' if member['noise'] else 'u'}[1248]", 8 * len(classes) * spec.hash_dim)
            for name, member, spec in zip(counts_names, members, specs, strict=True)
        ]
        weights = [
            _read_npy(archive, name, "[<|]i[124]", 4 * len(classes) * specs[0].hash_dim) for name in weights_names
        ]
        n_rows = sum(spec.hash_dim for spec in gram_specs)
        sizes = 4 * n_rows * len(classes), 8 * len(classes)
        weights += [_read_npy(archive, *each) for each in zip(gram_names, ("[<|]i[124]", "<i8"), sizes, strict=False)]
        priors = [_read_npy(archive, "prior", "<f8", 8 * len(classes))] if "prior" in names else []
        digest = _read_npy(archive, "digest", r"\|u1", 32)
    contents = digest_of(text, *extras, *counts, *weights, *priors)
    if not np.array_equal(digest, contents):
        got = f"{digest.tobytes().hex()[:12]}... in an altered file"
        raise ModelFileError("digest", f"the SHA-256 of the contents, {contents.tobytes().hex()[:12]}...", got)
    extra = json.loads(extras[0].tobytes()) if extras else None
    model = Model(
        tuple(_member(*parts, len(classes)) for parts in zip(specs, members, counts, strict=True)),
        classes,
        Schema.from_dict(names) if isinstance(names := header["feature_names"], dict) else names,
        header["guarantee"],
        weights.pop(0).astype(np.int32) if refined else None,
        priors[0] if priors else None,
        _gram(header["gram"], gram_specs, *weights) if has_gram else None,
    )
    return model, extra


def _gram_specs(values: Any) -> tuple[HashSpec, ...]:
    if not isinstance(values, dict) or set(values) != {"specs", "fingerprints"}:
        raise ModelFileError("gram", "specs and fingerprints, with no figures as in 0.8", type(values).__name__)
    return checked_gram_specs([HashSpec.from_dict(spec) for spec in values["specs"]])


def _gram(
    values: dict[str, Any], specs: tuple[HashSpec, ...], weights: npt.NDArray[Any], bias: npt.NDArray[Any]
) -> GramScoring:
    """Scores from the Gram matrix, from their entry in the header and their arrays."""
    if values["fingerprints"] != [flynn_hash(spec).fingerprint for spec in specs]:
        raise ModelFileError("fingerprints", "the rows that this version draws", str(values["fingerprints"])[:24])
    return GramScoring(specs, weights.astype(np.int32), bias.astype(np.int64))


def _member(spec: HashSpec, values: dict[str, Any], counts: npt.NDArray[Any], n_classes: int) -> ModelMember:
    """Member from its spec, its entry in the header and its counts."""
    if counts.shape != (n_classes, spec.hash_dim):
        raise ModelFileError("counts", f"shape {(n_classes, spec.hash_dim)}", f"shape {counts.shape}")
    if flynn_hash(spec).fingerprint != values["fingerprint"]:
        raise ModelFileError("fingerprint", "the rows of M that this version draws", str(values["fingerprint"])[:12])
    noise = tuple(Release.from_dict(release) for release in values["noise"])
    return ModelMember(
        spec,
        ClassCounts(counts, hash_nnz=spec.hash_nnz, spec_fingerprint=values["fingerprint"], noise=noise),
        ScoringRule(values["rule"], values["decay"], values["temperature"]),
        values["weight"],
    )


def _member_header(member: ModelMember) -> dict[str, Any]:
    scoring = {name: getattr(member.scoring, name) for name in ("rule", "decay", "temperature")}
    rest = {"weight": member.weight, "noise": [asdict(release) for release in member.counts.noise]}
    return {"spec": member.spec.to_dict(), "fingerprint": member.counts.spec_fingerprint, **scoring, **rest}


def _narrow(counts: ClassCounts) -> npt.NDArray[Any]:
    """Counts in the narrowest integer type that holds them, unsigned if they are exact."""
    if counts.noise:
        return _little(narrowed(counts.array))
    return _little(counts.array.astype(np.min_scalar_type(int(counts.array.max()))))


def narrowed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Integers in the narrowest signed type that holds them."""
    # A signed type holds as much above as below zero, and one more below.
    least = min(int(array.min(initial=0)), -int(array.max(initial=0)) - 1)
    return array.astype(np.min_scalar_type(least))


def _narrow_signed(weights: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    """Weights in the narrowest little-endian type that holds them and their negatives."""
    extreme = int(np.abs(weights).max(initial=0))
    return _little(weights.astype(np.min_scalar_type(-extreme - 1)))  # -128 fits a byte, 128 does not


def _little(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _read_npy(archive: zipfile.ZipFile, name: str, dtypes: str, max_bytes: int) -> npt.NDArray[Any]:
    array = _files.npz_array(archive, f"{name}.npy", name, ModelFileError, dtypes, max_bytes)
    if not array.flags.c_contiguous:
        raise ModelFileError(name, "an array in C order", "Fortran order")
    return array


def _json_bytes(values: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(values, allow_nan=False).encode(), np.uint8)


def digest_of(*arrays: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """SHA-256 of arrays as they stand in the file, with their types and shapes, 32 bytes."""
    sha256 = hashlib.sha256(b"flynn model 1")
    for array in arrays:
        sha256.update(f"{array.dtype.str} {array.shape} ".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return np.frombuffer(sha256.digest(), np.uint8)


def _names_to_json(model: Model) -> Any:
    names = model.feature_names
    return names.to_dict() if isinstance(names, Schema) else None if names is None else list(names)


def _labels_to_json(classes: npt.NDArray[Any]) -> dict[str, Any]:
    kind = classes.dtype.kind
    values = classes.tolist()
    if kind not in "OUbiuf" or (kind == "O" and not all(type(value) is str for value in values)):
        raise ModelFileError("classes", "strings, numbers or booleans", f"dtype {classes.dtype}")
    return {"dtype": "object" if kind == "O" else "str" if kind == "U" else classes.dtype.name, "values": values}


def _labels_from_json(labels: dict[str, Any]) -> npt.NDArray[Any]:
    name, values = labels["dtype"], labels["values"]
    if not re.fullmatch("object|str|bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise ModelFileError("classes", "a dtype of strings, numbers or booleans", name[:40])
    array = np.array(values, name)
    if array.tolist() != values:
        raise ModelFileError("classes", f"values of dtype {name}", "values of a different type")
    return array
