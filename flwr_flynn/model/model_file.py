"""The model file: an .npz without pickles that is written whole or not at all, and read whole or refused.

Three arrays: ``header`` (JSON, as bytes), ``counts`` in the narrowest type that holds them, and ``digest``, the SHA-256
of the others; a fourth, ``ledger`` (JSON), where the file is a federation's own and says who is in the counts, see
`flwr_flynn.federation`. Exact counts are unsigned and make a file of format 2. Noisy ones are signed and make one of
format 3, the header of which also has their ``noise`` and ``guarantee``. Files come from anybody: sizes are known, and
known to fit, before anything is allocated.

>>> import tempfile
>>> from pathlib import Path
>>> from flwr_flynn import FlyHash
>>> hasher = FlyHash(HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=8, seed=1))
>>> counts = ClassCounts.from_data(hasher, [[0, 1], [3, 0]], [1, 0], n_classes=2)
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "model.npz")
...     write(path, Model(hasher.spec, counts, np.array(["a", "b"]), decay=0.5, decay_=0.5, rule="novelty"))
...     with reading(path, max_bytes=2**20) as model:
...         print(model.spec == hasher.spec, model.counts == counts, model.classes, model.rule)
True True ['a' 'b'] novelty
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flwr_flynn import _files
from flwr_flynn.errors import FlyNNError, ModelFileError
from flwr_flynn.hashing.flyhash import flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts, check_readout, memory_needed
from flwr_flynn.model.noise_record import Release

_FORMAT = 2
_NOISY_FORMAT = 3
_LONGEST_GUARANTEE = 10000


@dataclass(frozen=True, eq=False)
class Model:
    """What a model file holds.

    Parameters
    ----------
    spec : HashSpec
    counts : ClassCounts
        Of this hash.
    classes : (L,) array
        Label of each row of the counts: strings, numbers or booleans.
    decay : "auto" or float
        As the user asked for it.
    decay_ : float
        As it was chosen.
    rule : str
        One of `readout.RULES`.
    temperature, temperature_ : "auto" or float, float
        As the user asked for it, and as it was chosen.
    reject_above, reject_label : float and label, optional
        As the user gave them.
    feature_names : sequence of str, optional
    guarantee : str, optional
        What protects the points, in words.
    ledger : dict, optional
        As JSON can hold it. What stands in one that was read is for whoever reads it to check, within the block.
    """

    spec: HashSpec
    counts: ClassCounts
    classes: npt.NDArray[Any]
    decay: str | float
    decay_: float
    rule: str
    temperature: str | float = "auto"
    temperature_: float = 1.0
    reject_above: float | None = None
    reject_label: Any = None
    feature_names: Sequence[str] | None = None
    guarantee: str | None = None
    ledger: dict[str, Any] | None = None


def write(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model to a file, whole or not at all. Equal models make equal files.

    Parameters
    ----------
    path : path-like
        Taken as it is; an existing file is replaced and its permissions kept, a symbolic link followed.
    model : Model

    Raises
    ------
    ModelFileError
        Labels are neither strings, numbers nor booleans.
    WriteError
        The file cannot be written. An existing one is as it was.
    """
    header = {
        "format": _NOISY_FORMAT if model.counts.noise else _FORMAT,
        "spec": model.spec.to_dict(),
        "fingerprint": model.counts.spec_fingerprint,
        "classes": _labels_to_json(model.classes),
        "feature_names": None if model.feature_names is None else list(model.feature_names),
        "decay": model.decay if isinstance(model.decay, str) else float(model.decay),
        "decay_": model.decay_,
        "rule": model.rule,
        "temperature": model.temperature if isinstance(model.temperature, str) else float(model.temperature),
        "temperature_": model.temperature_,
        "reject_above": None if model.reject_above is None else float(model.reject_above),
        "reject_label": model.reject_label.item() if isinstance(model.reject_label, np.generic) else model.reject_label,
    }
    if model.counts.noise:
        header["noise"] = [release.to_dict() for release in model.counts.noise]
        header["guarantee"] = _checked_guarantee(model.guarantee)
    arrays = {"header": _json_bytes(header)}
    if model.ledger is not None:
        arrays["ledger"] = _json_bytes(model.ledger)
    counts = model.counts.array
    extreme = int(counts.max())
    if model.counts.noise:
        extreme = min(int(counts.min()), -extreme, -1)
    arrays["counts"] = counts.astype(np.min_scalar_type(extreme).newbyteorder("<"))
    _write_npz(path, arrays | {"digest": _digest(*arrays.values())})


@contextmanager
def reading(path: str | os.PathLike[str], max_bytes: int) -> Iterator[Model]:
    """Read a model for the block to make use of; what the block then finds wrong with it is the file's error, too.

    Parameters
    ----------
    path : path-like
    max_bytes : int
        Refuse models that would need more memory than that.

    Yields
    ------
    Model
        Digest, counts, `decay_`, `temperature_` and `rule` are in order. Whether classes, feature names, `decay` and
        `temperature` are remains to be checked by whoever uses them, within the block.

    Raises
    ------
    ModelFileError
        Not a model file, truncated, altered, of another format version, too large, or refused by the block.
    OSError
        The file cannot be opened.
    """
    with open(path, "rb") as stream:
        try:
            yield _read(stream, max_bytes)
        except ModelFileError as error:
            raise ModelFileError(f"{os.fspath(path)}: {error}") from None
        except FlyNNError as error:
            raise ModelFileError(f"{os.fspath(path)}: inconsistent: {error}") from None
        except Exception as error:  # noqa: BLE001 - zipfile, json and constructors raise a dozen kinds on other files
            kind = type(error).__name__
            raise ModelFileError(f"{os.fspath(path)}: not a model file, or damaged ({kind})") from None


def _read(stream: IO[bytes], max_bytes: int) -> Model:
    with zipfile.ZipFile(stream) as archive:
        names = sorted(archive.namelist())
        has_ledger = "ledger.npy" in names
        if names != ["counts.npy", "digest.npy", "header.npy", *(["ledger.npy"] if has_ledger else [])]:
            raise ModelFileError("expected header, counts and digest, got other contents")
        # JSON takes up to some thirty times its length once it is Python objects.
        text = _read_npy(archive, "header", r"\|u1", max_bytes // 32)
        header = json.loads(text.tobytes())
        if header["format"] not in (_FORMAT, _NOISY_FORMAT) or isinstance(header["format"], bool):
            raise ModelFileError(
                f"format {str(header['format'])[:20]}, this version reads format {_FORMAT} and {_NOISY_FORMAT}"
            )
        is_noisy = header["format"] == _NOISY_FORMAT
        spec = HashSpec.from_dict(header["spec"])
        classes = _labels_from_json(header["classes"])
        shape = (len(classes), spec.hash_dim)
        needed = memory_needed(spec, len(classes))
        if needed > max_bytes:
            raise ModelFileError(f"needs about {needed / 2**20:.2g} MiB, the limit is {max_bytes / 2**20:.2g} MiB")
        counts = _read_npy(archive, "counts", f"[<|]{'i' if is_noisy else 'u'}[1248]", 8 * shape[0] * shape[1])
        ledgers = [_read_npy(archive, "ledger", r"\|u1", max_bytes // 32)] if has_ledger else []
        expected = _read_npy(archive, "digest", r"\|u1", 32)
    if not np.array_equal(expected, _digest(text, *ledgers, counts)):
        raise ModelFileError("altered: the digest does not fit the contents")
    if counts.shape != shape:
        raise ModelFileError(f"counts: expected shape {shape}, got {counts.shape}")
    if flynn_hash(spec).fingerprint != header["fingerprint"]:
        raise ModelFileError("made by a version whose rows of M are others")
    check_readout(header["rule"], header["decay_"], header["temperature_"])
    noise = tuple(Release.from_dict(release) for release in header["noise"]) if is_noisy else ()
    if is_noisy and not noise:
        raise ModelFileError("noise: expected releases, got none")
    return Model(
        spec=spec,
        counts=ClassCounts(counts, hash_nnz=spec.hash_nnz, spec_fingerprint=header["fingerprint"], noise=noise),
        classes=classes,
        decay=header["decay"],
        decay_=float(header["decay_"]),
        rule=header["rule"],
        temperature=header["temperature"],
        temperature_=float(header["temperature_"]),
        reject_above=_checked_limit(header["reject_above"]),
        reject_label=_checked_label(header["reject_label"]),
        feature_names=header["feature_names"],
        guarantee=_checked_guarantee(header["guarantee"]) if is_noisy else None,
        ledger=json.loads(ledgers[0].tobytes()) if has_ledger else None,
    )


def _checked_guarantee(guarantee: Any) -> str | None:
    if guarantee is None:
        return None
    if not isinstance(guarantee, str) or len(guarantee) > _LONGEST_GUARANTEE or not guarantee.isprintable():
        raise ModelFileError(f"guarantee: expected at most {_LONGEST_GUARANTEE} characters on one line, got others")
    return guarantee


def _checked_limit(limit: Any) -> float | None:
    if limit is not None and not (isinstance(limit, float) and 0 <= limit <= 1):
        raise ModelFileError("reject_above: expected a number from 0 to 1, got something else")
    return limit


def _checked_label(label: Any) -> Any:
    # Where there is no limit, nobody looks at the label before the model is saved again.
    is_finite = isinstance(label, float) and math.isfinite(label)
    if not (label is None or is_finite or isinstance(label, str | int)):
        raise ModelFileError("reject_label: expected a string or a number, got something else")
    return label


def _write_npz(path: str | os.PathLike[str], arrays: dict[str, npt.NDArray[Any]]) -> None:
    with _files.writing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # made by hand it bears no time stamp
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)


def _read_npy(archive: zipfile.ZipFile, name: str, types: str, max_bytes: int) -> npt.NDArray[Any]:
    array = _files.npz_array(archive, f"{name}.npy", name, ModelFileError, types, max_bytes)
    if not array.flags.c_contiguous:
        raise ModelFileError(f"{name}: expected an array in C order, got Fortran order")
    return array


def _json_bytes(values: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(json.dumps(values, allow_nan=False).encode(), np.uint8)


def _digest(*arrays: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The SHA-256 of all as they stand in the file, with their types and shapes."""
    sha256 = hashlib.sha256(b"flynn model 1")
    for array in arrays:
        sha256.update(f"{array.dtype.str} {array.shape} ".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return np.frombuffer(sha256.digest(), np.uint8)


def _labels_to_json(classes: npt.NDArray[Any]) -> dict[str, Any]:
    kind = classes.dtype.kind
    values = classes.tolist()
    if kind not in "OUbiuf" or (kind == "O" and not all(type(value) is str for value in values)):
        raise ModelFileError(f"classes of dtype {classes.dtype} cannot be saved")
    return {"dtype": "object" if kind == "O" else "str" if kind == "U" else classes.dtype.name, "values": values}


def _labels_from_json(labels: dict[str, Any]) -> npt.NDArray[Any]:
    name, values = labels["dtype"], labels["values"]
    if not re.fullmatch("object|str|bool|u?int(8|16|32|64)|float(16|32|64)", name):
        raise ModelFileError("classes: of an unknown type")
    array = np.array(values, name)
    if array.tolist() != values:
        raise ModelFileError("classes: not of the type that the file says")
    return array
