"""The announcement of a run: hashes, classes and the kind of counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy.typing as npt

from flwr_flynn._types import Array, Integers
from flwr_flynn._validation import freeze, one_of
from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.announced_specs import (
    FINGERPRINTS,
    MAX_CHARS,
    SPECS,
    _checked_specs,
    announced_specs,
    deflated_specs,
)
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.labels import Label, checked_classes, codes_of
from flwr_flynn.federated.protocol import Config, Entry, Scalars, key, refusing, sent
from flwr_flynn.federated.samples import Features, checked_names
from flwr_flynn.federated.secure_bound import check_bound
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.class_means import has_mirror
from flwr_flynn.privacy import Mechanism, mechanism_from_dict
from flwr_flynn.tables.schema import Schema

NAMES = Entry(str, MAX_CHARS, is_needed=False)
"""Names of features, or a schema, in JSON."""

RUN_ENTRIES = {
    "specs": SPECS,
    "fingerprints": FINGERPRINTS,
    "classes": Entry(str, MAX_CHARS),
    "mode": Entry(str, 40),
    "mechanism": Entry(str, 4096, is_needed=False),
    "bound": Entry(str, 20, is_needed=False),
    "feature_names": NAMES,
    "class_weight": Entry(str, 40, is_needed=False),
}
"""Entries of the announcement of a run."""


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
        specs = _checked_specs(self.specs)
        freeze(self, specs=specs, classes=checked_classes(self.classes))
        if self.feature_names is not None:
            names = checked_names(self.feature_names, self.spec.n_features)
            freeze(self, feature_names=names)
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
        mechanism.check_mode(self.mode, self.is_secure)
        if len(self.specs) > 1:
            raise ConfigError("spec", "one with a mechanism", len(self.specs))
        needed = self.spec.hash_nnz
        if mechanism.hash_nnz != needed:
            raise ConfigError("mechanism", f"hash_nnz {needed}", mechanism.hash_nnz)
        needed = self.n_classes
        if mechanism.n_classes != needed:
            raise ConfigError("mechanism", f"n_classes {needed}", mechanism.n_classes)
        if mechanism.n_columns not in (None, self.spec.n_features):
            expected = f"n_columns {self.spec.n_features}, or none"
            raise ConfigError("mechanism", expected, mechanism.n_columns)
        if mechanism.mirrored and not has_mirror(self.spec):
            expected = "few signed rows over columns with a center, for mirrored counts"
            raise ConfigError("spec", expected, "another")

    def require_sums(self) -> Mechanism:
        """The mechanism, if it releases sums of the columns of a spec with ranges."""
        mechanism = self.mechanism
        has_ranges = self.spec.center is not None and self.spec.scale is not None
        if mechanism is None or not mechanism.n_columns or not has_ranges:
            expected = "n_columns, for a spec with a center and a scale"
            raise ConfigError("mechanism", expected, repr(mechanism))
        return mechanism

    @property
    def n_classes(self) -> int:
        """Number of classes, L."""
        return len(self.classes)

    @property
    def features(self) -> Features:
        """Names of the features, or their schema; () without."""
        return cast(Features, self.feature_names or ())

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

    def without_gaps(self, X: Array, codes: Integers) -> tuple[Array, Integers]:
        """Samples and codes of their labels, without samples that have gaps.

        All are left where the hashes take gaps, and in a run without a schema.
        """
        if not isinstance(self.feature_names, Schema):
            return X, codes
        if all(hasher.takes_gaps for hasher in self.hashers):
            return X, codes
        fits = self.feature_names.complete_rows(X)
        if not fits.all():
            log.warning(
                "FlyNN: %s of %s samples have gaps, and are left out",
                int((~fits).sum()),
                len(fits),
            )
        return X[fits], codes[fits]

    @property
    def hash_lines(self) -> list[str]:
        """Each spec in a line."""
        lines = []
        for spec, hasher in zip(self.specs, self.hashers, strict=True):
            entries = "0/1"
            if spec.signed:
                entries = "+1/-1"
            lines.append(
                f"hash: {spec.n_features} features, {spec.n_inputs} inputs -> "
                f"{spec.hash_dim} rows of {spec.row_nnz} {entries} entries, "
                f"{spec.hash_nnz} winners, seed {spec.seed}; "
                f"fingerprint {hasher.fingerprint[:16]}"
            )
        return lines

    @property
    def hashers(self) -> tuple[FlyHash, ...]:
        """The hashes of `specs`."""
        return tuple(flynn_hash(spec) for spec in self.specs)

    def only(self, indices: Sequence[int]) -> RunSpec:
        """The same run with some of its specs, in their order."""
        return replace(self, specs=tuple(self.specs[index] for index in indices))

    def to_config(self) -> Scalars:
        """Config entries for a party."""
        mechanism = None
        if self.mechanism is not None:
            mechanism = json.dumps(self.mechanism.to_dict())
        bound = None
        if self.bound is not None:
            bound = str(self.bound)
        return sent(
            specs=deflated_specs(self.specs),
            classes=json.dumps(self.classes),
            mode=self.mode,
            class_weight=self.class_weight,
            feature_names=names_in_json(self.features),
            mechanism=mechanism,
            bound=bound,
            fingerprints=" ".join(hasher.fingerprint for hasher in self.hashers),
        )

    def digest(self) -> str:
        """SHA-256 of classes and names of features.

        With others, the same samples make other counts.
        """
        terms: object = self.classes
        if self.feature_names is not None:
            terms = [self.classes, self.feature_names]
        text = json.dumps(terms, default=Schema.to_dict)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_config(cls, config: Config) -> RunSpec:
        """The run that a server announced; its rows are not drawn."""
        with refusing():
            parsed = announced_specs(config)
            classes = config.json("classes")
            mechanism = None
            if "mechanism" in config:
                mechanism = mechanism_from_dict(config.json("mechanism"))
            run = cls(
                parsed,
                classes,
                mechanism,
                announced_bound(config),
                announced_names(config),
                config.get("class_weight"),
            )
        mode = config["mode"]
        if mode != run.mode:
            raise PayloadError(
                key("mode"), f"{run.mode} with this mechanism and bound", mode
            )
        return run

    def codes(self, y: npt.ArrayLike) -> Integers:
        """The class code, 0 to L - 1, of every label, see `labels.codes_of`."""
        return codes_of(self.classes, y)


def announced_bound(config: Config) -> int | None:
    """The bound of the secure sum that a request is for; None in clear."""
    if "bound" not in config:
        return None
    bound = config.json("bound")
    with refusing(key("bound")):
        check_bound(bound)
    return int(bound)


def names_in_json(features: Features) -> str | None:
    """Names of features, or their schema, as a request has them; None without any."""
    if not features:
        return None
    return json.dumps(features, default=Schema.to_dict)


def announced_names(config: Config) -> Any:
    """Names of features in the order of hashing, which are not checked, or a schema, as
    a server announced.

    None without any.
    """
    if "feature_names" not in config:
        return None
    names = config.json("feature_names")
    if not isinstance(names, dict):
        return names
    with refusing(key("feature_names")):
        return Schema.from_dict(names)
