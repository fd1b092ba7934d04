"""Specs of hashes as a request announces them: compressed, and read within bounds."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.protocol import Config, Entry, key
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec

MAX_SPECS = 16
"""Specs of one run, at most: each costs every party a hash of all its samples."""

MAX_CHARS = 2**24
"""Characters of specs, of a class list and of names of features in a request, each: some
two seconds of parsing at most."""


MAX_LISTS = 2**20
"""Lists and mappings in the specs of a request, at most: each takes as long to read as
several numbers."""

SPECS = Entry(bytes, MAX_CHARS)
FINGERPRINTS = Entry(str, 65 * MAX_SPECS)
"""Entries of the specs of a request, and of the fingerprints of their hashes."""


def check_fingerprints(config: Config, name: str, hashers: Sequence[FlyHash]) -> None:
    """Refuse rows unless the server drew the same for each hash.

    It announced their fingerprints.
    """
    announced = config[name].split(" ")
    if len(announced) != len(hashers):
        raise PayloadError(
            key(name), f"{len(hashers)}, one for each spec", len(announced)
        )
    for fingerprint, hasher in zip(announced, hashers, strict=True):
        if fingerprint != hasher.fingerprint:  # another version of flwr-flynn
            got = (
                f"{hasher.fingerprint[:12]}...; are the versions of flwr-flynn the "
                "same?"
            )
            raise PayloadError("fingerprint", f"{fingerprint[:12]}...", got)


def deflated_specs(specs: Sequence[HashSpec], known: Sequence[HashSpec] = ()) -> bytes:
    """Specs as a config entry.

    They refer to the specs `known` at the party for vectors that these have, too.
    """
    values = _referring([spec.to_dict() for spec in (*known, *specs)])
    return zlib.compress(json.dumps(values[len(known) :]).encode(), 9)


def announced_specs(
    config: Config, name: str, most: int, known: Sequence[HashSpec] = ()
) -> tuple[HashSpec, ...]:
    """The specs of a config entry of `deflated_specs`, at most so many.

    The entry may come from anybody.
    """
    specs = _inflated(config, name)
    expected = f"a list of 1 to {most} specs"
    if not isinstance(specs, list):
        raise PayloadError(key(name), expected, type(specs).__name__)
    if not 1 <= len(specs) <= most:
        raise PayloadError(key(name), expected, len(specs))
    values = _referred([*(spec.to_dict() for spec in known), *specs])
    return tuple(HashSpec.from_dict(spec) for spec in values[len(known) :])


def _inflated(config: Config, name: str) -> object:
    """The JSON value in deflated specs, which may come from anybody.

    No more is expanded than a text of that size, and no more read than so many lists.
    """
    raw = config[name]
    expected = f"a deflated text of {MAX_CHARS} characters, {MAX_LISTS} lists at most"
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(raw, MAX_CHARS + 1)
        if len(text) > MAX_CHARS or not inflater.eof:
            raise ValueError
        if text.count(b"[") + text.count(b"{") > MAX_LISTS:
            raise ValueError
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError):
        raise PayloadError(
            key(name), expected, f"{len(raw)} bytes that are none"
        ) from None


_VECTORS = ("center", "scale", "edges", "row_weights")
"""Fields that specs of a run often share."""

Values = dict[str, Any]
"""A spec as JSON has it."""


def _referring(specs: list[Values]) -> list[Values]:
    """Specs with {"as": i} in the place of a vector that an earlier spec i has, too."""
    shorter_specs: list[Values] = []
    for number, spec in enumerate(specs):
        shorter = dict(spec)
        for name in _VECTORS:
            vector = spec.get(name)
            if not vector:
                continue
            same = [
                index
                for index, earlier in enumerate(specs[:number])
                if earlier.get(name) == vector
            ]
            if same:
                shorter[name] = {"as": same[0]}
        shorter_specs.append(shorter)
    return shorter_specs


def _referred(specs: list[object]) -> list[Values]:
    """Specs with the vectors that `_referring` left out.

    Anything else is left for `HashSpec.from_dict` to refuse. They have no more numbers
    than a text of `MAX_CHARS` without references can have.
    """
    whole: list[Values] = []
    most = MAX_CHARS // 2
    n_numbers = 0
    for spec in specs:
        if not isinstance(spec, dict):
            whole.append(spec)  # type: ignore[arg-type]
            continue
        spec = dict(spec)
        for name in _VECTORS:
            earlier = _earlier(spec.get(name), whole)
            if earlier is None:
                continue
            spec[name] = earlier.get(name)
            n_numbers += _n_numbers(spec[name])
            if n_numbers > most:
                raise PayloadError(key("specs"), f"at most {most} numbers", n_numbers)
        whole.append(spec)
    return whole


def _earlier(reference: object, specs: Sequence[object]) -> Values | None:
    """The spec that {"as": i} stands for; None for anything else."""
    if not isinstance(reference, dict):
        return None
    index = reference.get("as")
    if type(index) is not int or not 0 <= index < len(specs):
        return None
    spec = specs[index]
    if isinstance(spec, dict):
        return spec
    return None


def _n_numbers(vector: object) -> int:
    """Numbers of a vector, or of a table of some rows."""
    if not isinstance(vector, list):
        return 0
    n_numbers = 0
    for row in vector:
        if isinstance(row, list):
            n_numbers += len(row)
        else:
            n_numbers += 1
    return n_numbers


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
