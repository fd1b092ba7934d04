"""Specs of hashes as a request announces them: compressed, and read within bounds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.protocol import Config, Entry, from_json, key, refusing
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.basis import Basis

MAX_SPECS = 16
"""Specs of one run, at most: each costs every party a hash of all its samples."""

MAX_CHARS = 2**24
"""Characters of specs, of a class list and of names of features in a request, each: some
two seconds of parsing at most."""

SPECS = Entry(bytes, MAX_CHARS)
FINGERPRINTS = Entry(str, 65 * MAX_SPECS)
"""Entries of the specs of a request, and of the fingerprints of their hashes."""


def check_fingerprints(config: Config, hashers: Sequence[FlyHash]) -> None:
    """Refuse rows unless the server drew the same for each hash.

    It announced their fingerprints.
    """
    announced = config["fingerprints"].split(" ")
    if len(announced) != len(hashers):
        expected = f"{len(hashers)}, one for each spec"
        raise PayloadError(key("fingerprints"), expected, len(announced))
    for fingerprint, hasher in zip(announced, hashers, strict=True):
        if fingerprint != hasher.fingerprint:  # another version of flwr-flynn
            got = (
                f"{hasher.fingerprint[:12]}...; are the versions of flwr-flynn the "
                "same?"
            )
            raise PayloadError("fingerprint", f"{fingerprint[:12]}...", got)


def deflated_specs(specs: Sequence[HashSpec]) -> bytes:
    """Specs as a config entry, with references to earlier ones for equal vectors."""
    values = [
        _referring(spec.to_dict(), spec, specs[:index])
        for index, spec in enumerate(specs)
    ]
    return _deflated(values)


def announced_specs(config: Config) -> tuple[HashSpec, ...]:
    """The specs of a config entry of `deflated_specs`, which may come from anybody."""
    announced = _inflated(config, "specs")
    expected = f"a list of 1 to {MAX_SPECS} specs"
    if not isinstance(announced, list):
        raise PayloadError(key("specs"), expected, type(announced).__name__)
    if not 1 <= len(announced) <= MAX_SPECS:
        raise PayloadError(key("specs"), expected, len(announced))
    specs: list[HashSpec] = []
    for values in announced:
        specs.append(HashSpec.from_dict(_referred(values, specs)))
    return tuple(specs)


def deflated_basis(basis: Basis, known: Sequence[HashSpec]) -> bytes:
    """A basis as a config entry, with references as those of specs."""
    return _deflated(_referring(basis.to_dict(), basis, known))


def announced_basis(config: Config, known: Sequence[HashSpec]) -> Basis:
    """The basis of a config entry, which may come from anybody."""
    values = _referred(_inflated(config, "basis"), known)
    with refusing(key("basis")):
        return Basis.from_dict(values, known[0].n_features)


def _deflated(values: object) -> bytes:
    return zlib.compress(json.dumps(values).encode(), 9)


def _inflated(config: Config, name: str) -> object:
    """The JSON value in deflated specs, which may come from anybody.

    No more is expanded than a text of that size.
    """
    raw = config[name]
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(raw, MAX_CHARS + 1).decode()
        if len(text) > MAX_CHARS or not inflater.eof:
            raise ValueError
    except (zlib.error, ValueError):
        raise PayloadError(
            key(name),
            f"a deflated text of {MAX_CHARS} characters",
            f"{len(raw)} bytes that are none",
        ) from None
    return from_json(key(name), text)


_VECTORS = ("center", "scale", "edges", "row_weights")
"""Fields that specs of a run often share."""


def _referring(
    values: dict[str, object], owner: HashSpec | Basis, earlier: Sequence[HashSpec]
) -> dict[str, object]:
    """The values of a spec or a basis, with {"as": i} for a vector that an earlier spec
    i has, too.
    """
    for name in _VECTORS:
        vector = getattr(owner, name, None)
        vectors = [getattr(other, name) for other in earlier]
        if vector and vector in vectors:
            values[name] = {"as": vectors.index(vector)}
    return values


def _referred(values: object, earlier: Sequence[HashSpec]) -> object:
    """The values of a spec with the vectors that `_referring` left out.

    These are those of earlier specs, which have them checked. Anything else is left for
    `HashSpec.from_dict` to refuse.
    """
    if not isinstance(values, dict):
        return values
    whole = dict(values)
    for index, spec in enumerate(earlier):
        for name in _VECTORS:
            if values.get(name) == {"as": index}:
                whole[name] = getattr(spec, name)
    return whole


def _checked_specs(specs: object) -> tuple[HashSpec, ...]:
    if isinstance(specs, HashSpec):
        return (specs,)
    if isinstance(specs, FlyHash):
        raise ConfigError(
            "spec", "a HashSpec, from whose seed parties expand the rows", "a FlyHash"
        )
    if not isinstance(specs, Sequence) or isinstance(specs, str | bytes):
        raise ConfigError("spec", "a HashSpec", type(specs).__name__)
    if not 1 <= len(specs) <= MAX_SPECS:
        raise ConfigError("spec", f"1 to {MAX_SPECS} specs", len(specs))
    for spec in specs:
        if not isinstance(spec, HashSpec):
            raise ConfigError("spec", "only HashSpecs", f"a {type(spec).__name__}")
    n_same = len(specs) - len(set(specs))
    if n_same:
        raise ConfigError("spec", "different specs", f"{n_same} duplicates")
    widths = {spec.n_features for spec in specs}
    if len(widths) > 1:
        raise ConfigError("spec", "specs of the same n_features", sorted(widths))
    return tuple(specs)
