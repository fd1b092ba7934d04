"""The announcement of a run: hashes, classes and the kind of counts."""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy.typing as npt

from flwr_flynn._types import Array, Integers
from flwr_flynn._validation import one_of
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.protocol import Config, key, refusing
from flwr_flynn.federated.samples import (
    Features,
    Label,
    checked_classes,
    checked_names,
    codes_of,
)
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy import Mechanism, mechanism_from_dict
from flwr_flynn.tables.schema import Schema

log = logging.getLogger("flwr")  # Flower's own

LARGEST_BOUND = 2**29
"""The largest bound of a secure sum: it has room for three parties."""

MODULUS = 2**32
"""Modulus of a secure sum."""

LEAST_PARTIES = 3
"""Parties of a secure sum: in a sum of two, each sees the other's counts."""

MAX_SPECS = 16
"""Specs of one run, at most: each costs every party a hash of all its samples."""

MAX_CHARS = 2**24
"""Characters of specs, of a class list and of names of features in a request, each: a
second of parsing at most."""


def check_bound(bound: object) -> None:
    """Raise a `ConfigError` unless `bound` can be the bound of a secure sum."""
    is_small = type(bound) is int and 2 <= bound <= LARGEST_BOUND
    if not is_small or cast(int, bound).bit_count() != 1:
        raise ConfigError(
            "bound", f"a power of two from 2 to {LARGEST_BOUND}", str(bound)[:40]
        )


def bound_for(most: int) -> int:
    """The least power of two that is no less than a number of samples, and at least 2."""
    if not 1 <= most <= LARGEST_BOUND:
        raise ConfigError(
            "secure sum", f"from 1 to {LARGEST_BOUND} samples at a party", most
        )
    return max(2, 1 << (most - 1).bit_length())


def check_room(n_parties: int, bound: int) -> None:
    """Raise a `ConfigError` if the sum of so many parties could wrap around.

    Their counts are at most `bound`.
    """
    if n_parties > room(bound):
        raise ConfigError(
            "secure sum",
            f"at most {room(bound)} parties with counts up to {bound}",
            n_parties,
        )


def room(bound: int) -> int:
    """Parties that a sum has room for.

    The modulus itself is too many: all weights together would be 0.
    """
    return (MODULUS - 1) // (2 * bound)


@dataclass(frozen=True)
class RunSpec:
    """Specs, classes, mode and names of features of a run.

    A wrong one is the field of a `ConfigError`.

    Counts are exact without a `mechanism`, and travel in clear without a `bound`. With
    a bound, a power of two from 2 to 2**29 that no count exceeds, the server learns
    sums alone; a mechanism then has `n_honest`, so that each party adds a share of one
    noise. `class_weight` is None, for the class frequencies of the counts as prior, or
    "balanced".
    """

    specs: Sequence[HashSpec]
    """One spec; or several of the same `n_features` to select from, without a
    mechanism."""
    classes: Sequence[Label]
    """Labels, all different; class l is row l of the counts."""
    mechanism: Mechanism | None = None
    """For the spec's `hash_nnz` and for as many classes."""
    bound: int | None = None
    feature_names: Sequence[str] | Schema | None = None
    class_weight: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", _checked_specs(self.specs))
        object.__setattr__(self, "classes", checked_classes(self.classes))
        if self.feature_names is not None:
            names = checked_names(self.feature_names, self.spec.n_features)
            object.__setattr__(self, "feature_names", names)
        if self.class_weight is not None:
            one_of("class_weight", self.class_weight, ("balanced",))
        if self.bound is not None:
            check_bound(self.bound)
        self._check_mechanism()

    def _check_mechanism(self) -> None:
        mechanism: object = self.mechanism
        if mechanism is None:
            return
        if not isinstance(mechanism, Mechanism):
            raise ConfigError(
                "mechanism",
                "a Mechanism of flwr_flynn.privacy",
                type(mechanism).__name__,
            )
        # In clear a share of the noise would not protect.
        if mechanism.is_share != self.is_secure:
            expected = "one without n_honest"
            if self.is_secure:
                expected = "GaussianCounts with n_honest"
            raise ConfigError(
                "mechanism", f"{expected} in mode {self.mode}", repr(mechanism)
            )
        if len(self.specs) > 1:
            raise ConfigError("spec", "one with a mechanism", len(self.specs))
        needed = self.spec.hash_nnz
        if mechanism.hash_nnz != needed:
            raise ConfigError("mechanism", f"hash_nnz {needed}", mechanism.hash_nnz)
        needed = self.n_classes
        if mechanism.n_classes != needed:
            raise ConfigError("mechanism", f"n_classes {needed}", mechanism.n_classes)

    @property
    def n_classes(self) -> int:
        """Number of classes, L."""
        return len(self.classes)

    @property
    def mode(self) -> str:
        """Plain, noisy or secure."""
        if self.is_secure:
            return "secure"
        if self.mechanism is None:
            return "plain"
        return "noisy"

    @property
    def is_plain(self) -> bool:
        """True for exact counts in clear."""
        return self.mechanism is None and self.bound is None

    @property
    def is_secure(self) -> bool:
        """True if the server learns sums alone."""
        return self.bound is not None

    @property
    def guarantee(self) -> str | None:
        """The privacy guarantee of the mechanism, see `Mechanism.guarantee`."""
        if self.mechanism is None:
            return None
        return self.mechanism.guarantee()

    @property
    def spec(self) -> HashSpec:
        """The first of `specs`."""
        return self.specs[0]

    @property
    def hasher(self) -> FlyHash:
        """The hash of `spec`, drawn once in a process."""
        return flynn_hash(self.spec)

    def complete(self, X: Array, codes: Integers) -> tuple[Array, Integers]:
        """Samples and codes of their labels, without samples that have gaps.

        All are left where the hashes take gaps, and in a run without a schema.
        """
        if not isinstance(self.feature_names, Schema):
            return X, codes
        if all(hasher.takes_gaps for hasher in self.hashers):
            return X, codes
        fits = self.feature_names.complete(X)
        if not fits.all():
            log.warning(
                "FlyNN: %s of %s samples have gaps, and are left out",
                int((~fits).sum()),
                len(fits),
            )
        return X[fits], codes[fits]

    @property
    def hashers(self) -> tuple[FlyHash, ...]:
        """The hashes of `specs`."""
        return tuple(flynn_hash(spec) for spec in self.specs)

    def only(self, indices: Sequence[int]) -> RunSpec:
        """The same run with some of its specs, in their order."""
        return replace(self, specs=tuple(self.specs[index] for index in indices))

    def to_config(self) -> dict[str, str | bytes]:
        """Config entries for a party."""
        config: dict[str, str | bytes] = {
            key("specs"): deflated_specs(self.specs),
            key("classes"): json.dumps(self.classes),
            key("mode"): self.mode,
        }
        if self.class_weight is not None:
            config[key("class_weight")] = self.class_weight
        if self.feature_names is not None:
            config[key("feature_names")] = names_to_json(self.feature_names)
        if self.mechanism is not None:
            config[key("mechanism")] = json.dumps(self.mechanism.to_dict())
        if self.bound is not None:
            config[key("bound")] = str(self.bound)
        config[key("fingerprints")] = " ".join(
            hasher.fingerprint for hasher in self.hashers
        )
        return config

    def digest(self) -> str:
        """SHA-256 of classes and names of features.

        With others, the same samples make other counts.
        """
        terms: object = self.classes
        if self.feature_names is not None:
            terms = [self.classes, _jsonable(self.feature_names)]
        return hashlib.sha256(json.dumps(terms).encode()).hexdigest()

    @classmethod
    def from_config(cls, config: Config) -> RunSpec:
        """The run that a server announced; its rows are drawn by `agree_on_rows`."""
        with refusing():
            parsed = announced_specs(config, "specs", MAX_SPECS)
            classes = config.json("classes", MAX_CHARS)
            mechanism = None
            if "mechanism" in config:
                mechanism = mechanism_from_dict(config.json("mechanism", 4096))
            bound = None
            if "bound" in config:
                bound = announced_bound(config)
            weight = config.entries.get(key("class_weight"))
            run = cls(
                parsed, classes, mechanism, bound, announced_names(config), weight
            )
        mode = config.text("mode", 40)
        if mode != run.mode:
            raise PayloadError(
                key("mode"), f"{run.mode} with this mechanism and bound", mode
            )
        return run

    def agree_on_rows(self, config: Config) -> tuple[FlyHash, ...]:
        """Draw the rows, and refuse them unless the server drew the same."""
        check_fingerprints(config, "fingerprints", self.hashers)
        return self.hashers

    def codes(self, y: npt.ArrayLike) -> Integers:
        """The class code, 0 to L - 1, of every label, see `samples.codes_of`."""
        return codes_of(self.classes, y)


def check_fingerprints(config: Config, name: str, hashers: Sequence[FlyHash]) -> None:
    """Refuse rows unless the server drew the same for each hash.

    It announced their fingerprints.
    """
    announced = config.text(name, 65 * len(hashers) - 1).split(" ")
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

    No more is expanded than a text of that size.
    """
    raw = config.entries.get(key(name))
    expected = f"a deflated text of at most {MAX_CHARS} characters"
    if raw is None:
        raise PayloadError(key(name), expected, "nothing")
    if not isinstance(raw, bytes):
        raise PayloadError(key(name), expected, type(raw).__name__)
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(raw, MAX_CHARS + 1)
        if len(text) > MAX_CHARS or not inflater.eof:
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


def announced_bound(config: Config) -> int:
    """The bound of the secure sum that a request is for."""
    bound = config.json("bound", 20)
    with refusing(key("bound")):
        check_bound(bound)
    return int(bound)


def names_to_json(names: Sequence[str] | Schema) -> str:
    """Names of features, or a schema, as a config entry."""
    return json.dumps(_jsonable(names))


def _jsonable(names: Sequence[str] | Schema) -> object:
    if isinstance(names, Schema):
        return names.to_dict()
    return names


def announced_names(config: Config) -> Features | None:
    """Names of features in the order of hashing, or a schema, as a server announced.

    None without any.
    """
    if "feature_names" not in config:
        return None
    names = config.json("feature_names", MAX_CHARS)
    if isinstance(names, dict):
        with refusing(key("feature_names")):
            return Schema.from_dict(names)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PayloadError(
            key("feature_names"), "a list of strings", type(names).__name__
        )
    return tuple(names)


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
