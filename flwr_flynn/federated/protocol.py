"""The terms of a run: what the server announces, and every party counts by.

The server sends them in the config of each round, as strings that Flower's legacy config values can carry; a
party reads them back with the same care with which the server reads its replies.

>>> from flwr_flynn import HashSpec
>>> terms = Terms(HashSpec(n_features=4, hash_dim=8, row_nnz=2, hash_nnz=3, seed=7), ("cat", "dog"))
>>> sorted(terms.to_config())
['flynn-classes', 'flynn-fingerprint', 'flynn-mode', 'flynn-spec']
>>> Terms.from_config(terms.to_config(), n_features=4) == terms
True

`Terms` are those of counting and of what follows it. A round before that, in which the parties send the sums of their
columns, has `SumsTerms`.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, DataError, PayloadError, SpecError
from flwr_flynn.federated.codec import MODES, NOISY, PLAIN, SECURE
from flwr_flynn.hashing.flyhash import FlyHash, flynn_hash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy import Mechanism, mechanism_from_dict

PREFIX = "flynn-"
"""Every config and metrics key of this package starts with it."""

Label = str | int

PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer as Python prints it, within int64: not `01`, `1_0` or `1.0`."""

SUMS = "sums"
"""The mode of a request for the sums of the columns; those of counts are `payload.MODES`."""

LARGEST_BOUND = 2**29
"""Of the counts in a secure sum, with room for three parties."""
TRY = "flynn-try"
"""In a request that brings the model: false where the party is to keep it and to send nothing about it."""

UNKEPT = "flynn-unkept"
"""In the answer to it: why the party could not keep the model."""

MAX_SPECS = 16
"""More specifications than this in one run are refused: each costs every party a hash of all its points."""

_NAMES = "flynn-feature-names"

_MAX_CLASSES_CHARS = _MAX_NAMES_CHARS = 2**24

_MAX_SPEC_CHARS = 2**26  # where the party's number of features is not known yet


@dataclass(frozen=True)
class Terms:
    """Hashes, classes and kind of counts of a run.

    Parameters
    ----------
    specs : HashSpec or sequence of HashSpec
        One, or several different ones for data of the same width, of which the run will choose one.
    classes : sequence of str or of int
        The class labels, all different and all of one kind; NumPy's strings and integers are taken as
        Python's. Class l is row l of the counts. One class is enough: novelty scores need no second.
    mode : str, default="plain"
        The kind of counts that parties send; one of `payload.MODES`.
    mechanism : Mechanism, optional
        By which parties make noisy counts; for mode "noisy", which has one spec. In mode "secure", which has one spec,
        too, it is a `GaussianCounts` with `n_honest`, or none.
    bound : int, optional
        For mode "secure" alone: a power of two that no count exceeds in size, see `flwr_flynn.secagg`.
    feature_names : sequence of str, optional
        Names of the columns, for the model that comes of it.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.
    """

    specs: Sequence[HashSpec]
    classes: Sequence[Label]
    mode: str = PLAIN
    feature_names: Sequence[str] | None = None
    mechanism: Mechanism | None = None
    bound: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", _checked_specs(self.specs))
        if self.mode not in MODES:
            raise ConfigError(f"mode: expected one of {', '.join(MODES)}, got {str(self.mode)[:40]!r}")
        object.__setattr__(self, "classes", _checked_classes(self.classes))
        if self.feature_names is not None:
            object.__setattr__(self, "feature_names", _checked_names(self.feature_names, self.spec.n_features))
        if self.mode == SECURE or self.bound is not None:
            self._check_bound()
        if self.mode == NOISY or (self.mode == SECURE and self.mechanism is not None):
            self._check_mechanism()
        elif self.mechanism is not None:
            raise ConfigError(f"mechanism: expected none in mode {self.mode}, got {type(self.mechanism).__name__}")

    def _check_bound(self) -> None:
        if self.mode != SECURE:
            raise ConfigError(f"bound: expected none in mode {self.mode}, got {str(self.bound)[:40]}")
        check_bound(self.bound)
        if len(self.specs) > 1:
            raise ConfigError(f"spec: expected one in mode secure, got {len(self.specs)}")

    def _check_mechanism(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise ConfigError(f"mechanism: expected one in mode noisy, got {type(self.mechanism).__name__}")
        # A share of the noise protects nobody outside a secure sum; in one, a whole noise of each would be too much.
        if self.mechanism.is_share != (self.mode == SECURE):
            what = "GaussianCounts with n_honest" if self.mode == SECURE else "one without n_honest"
            raise ConfigError(f"mechanism: expected {what} in mode {self.mode}, got another")
        if len(self.specs) > 1:
            raise ConfigError(f"spec: expected one in mode noisy, got {len(self.specs)}")
        for name, needed in (("hash_nnz", self.spec.hash_nnz), ("n_classes", self.n_classes)):
            if getattr(self.mechanism, name) != needed:
                raise ConfigError(f"mechanism: expected {name} {needed}, got {getattr(self.mechanism, name)}")

    @property
    def n_classes(self) -> int:
        """Number of classes, L."""
        return len(self.classes)

    @property
    def spec(self) -> HashSpec:
        """The first of `specs`."""
        return self.specs[0]

    @property
    def hasher(self) -> FlyHash:
        """The hash of `spec`, drawn once in a process."""
        return flynn_hash(self.spec)

    @property
    def hashers(self) -> tuple[FlyHash, ...]:
        """The hashes of `specs`."""
        return tuple(flynn_hash(spec) for spec in self.specs)

    def only(self, place: int) -> Terms:
        """The terms with none but one of the specs."""
        return replace(self, specs=(self.specs[place],))

    def to_config(self) -> dict[str, str]:
        """The terms as config entries for a party: a single spec as it is, several as a list."""
        specs = [spec.to_dict() for spec in self.specs]
        config = {
            "flynn-spec": json.dumps(specs if len(specs) > 1 else specs[0]),
            "flynn-classes": json.dumps(self.classes),
            "flynn-fingerprint": " ".join(hasher.fingerprint for hasher in self.hashers),
            "flynn-mode": self.mode,
        }
        if self.feature_names is not None:
            config[_NAMES] = json.dumps(self.feature_names)
        if self.mechanism is not None:
            config["flynn-mechanism"] = json.dumps(self.mechanism.to_dict())
        if self.bound is not None:
            config["flynn-bound"] = str(self.bound)
        return config

    def digest(self) -> str:
        """SHA-256 over what makes counts by these terms what they are, beside hash and mechanism."""
        # With other features than these, or in another order, the same records make other counts.
        named = self.classes if self.feature_names is None else [self.classes, self.feature_names]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], n_features: int | None) -> Terms:
        """The terms that a server announced, without drawing the rows yet: see `agree_on_rows`.

        Parameters
        ----------
        config : mapping
            What arrived. Nothing is assumed of it.
        n_features : int or None
            The number of columns of the party's own data, which the spec must fit. None where the data are not to be
            looked at yet: `check_width` is for later.

        Raises
        ------
        PayloadError
            An entry is missing, too long, not JSON, or refused by `HashSpec` or `Terms`.
        """
        try:
            # A centre and a scale are two vectors of at most 25 characters a number.
            longest = _MAX_SPEC_CHARS if n_features is None else MAX_SPECS * (4096 + 64 * n_features)
            specs = _from_json(config, "flynn-spec", longest)
            specs = specs if isinstance(specs, list) else [specs]
            if len(specs) > MAX_SPECS:
                raise PayloadError(f"flynn-spec: expected at most {MAX_SPECS} specs, got {len(specs)}")
            specs = [HashSpec.from_dict(spec) for spec in specs]
            names = announced_names(config)
            classes = _from_json(config, "flynn-classes", _MAX_CLASSES_CHARS)
            mode, mechanism = _text(config, "flynn-mode", 40), None
            if mode == NOISY or (mode == SECURE and "flynn-mechanism" in config):
                mechanism = mechanism_from_dict(_from_json(config, "flynn-mechanism", 4096))
            bound = _from_json(config, "flynn-bound", 20) if mode == SECURE else None
            terms = cls(specs, classes, mode, names, mechanism, bound)
        except (SpecError, ConfigError) as error:
            raise PayloadError(f"config: {error}") from None
        if n_features is not None:
            terms.check_width(n_features)
        return terms

    def check_width(self, n_features: int) -> None:
        """Refuse data of another number of columns than the hash is for.

        Raises
        ------
        PayloadError
            Naming both.
        """
        _check_width(self.spec.n_features, n_features)

    def agree_on_rows(self, config: Mapping[str, Any]) -> tuple[FlyHash, ...]:
        """Draw the rows, and make sure that the server drew the same.

        Raises
        ------
        PayloadError
            A fingerprint in `config` is not that of the rows drawn here.
        """
        announced = _text(config, "flynn-fingerprint", 65 * len(self.specs) - 1).split(" ")
        if len(announced) != len(self.specs):
            raise PayloadError(f"flynn-fingerprint: expected {len(self.specs)}, one for each spec")
        for fingerprint, hasher in zip(announced, self.hashers, strict=True):
            if fingerprint != hasher.fingerprint:
                raise PayloadError(
                    f"fingerprint: expected {fingerprint[:12]}... as the server announced, the spec gives "
                    f"{hasher.fingerprint[:12]}... here; are the versions of flwr-flynn the same?"
                )
        return self.hashers

    def codes(self, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The class code, 0 to L - 1, of every label, see `codes_of`."""
        return codes_of(self.classes, y)


@dataclass(frozen=True)
class SumsTerms:
    """What the parties are to sum up before there is a hash: their columns and the squares of them.

    Parameters
    ----------
    n_features : int
    classes : sequence of str or of int
        As in `Terms`.
    by_class : bool
        Whether each class has sums of its own. If not, all points together are summed up as one class.
    min_examples : int
        A party leaves out classes of fewer points, even where all are summed up as one: else the difference of two
        answers would be what one of them leaves out.
    feature_names : sequence of str, optional
        Of the columns, where the run announces them.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.

    Examples
    --------
    >>> terms = SumsTerms(n_features=4, classes=("cat", "dog"), by_class=True, min_examples=5)
    >>> SumsTerms.from_config(terms.to_config(), n_features=4) == terms
    True
    """

    n_features: int
    classes: Sequence[Label]
    by_class: bool
    min_examples: int
    feature_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_features", whole_number("n_features", self.n_features))
        object.__setattr__(self, "classes", _checked_classes(self.classes))
        object.__setattr__(self, "min_examples", whole_number("min_examples", self.min_examples))
        if self.feature_names is not None:
            object.__setattr__(self, "feature_names", _checked_names(self.feature_names, self.n_features))
        if not isinstance(self.by_class, bool):
            raise ConfigError(f"by_class: expected True or False, got {type(self.by_class).__name__}")

    @property
    def n_rows(self) -> int:
        """Rows of the sums: a class each, or one for all."""
        return len(self.classes) if self.by_class else 1

    @property
    def memory_needed(self) -> int:
        """About how many bytes making the sums takes, to be asked before they are made.

        4096 for each: the limbs in which values of very different size are added up, and whole numbers of some hundred
        bits.
        """
        return 4096 * self.n_rows * self.n_features

    def to_config(self) -> dict[str, str | int | bool]:
        """The terms as config entries for a party."""
        names = {} if self.feature_names is None else {_NAMES: json.dumps(self.feature_names)}
        return {
            "flynn-mode": SUMS,
            "flynn-features": self.n_features,
            "flynn-classes": json.dumps(self.classes),
            "flynn-by-class": self.by_class,
            "flynn-min-examples": self.min_examples,
            **names,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], n_features: int) -> SumsTerms:
        """The terms that a server announced.

        Parameters
        ----------
        config : mapping
            What arrived. Nothing is assumed of it.
        n_features : int
            The number of columns of the party's own data.

        Raises
        ------
        PayloadError
            An entry is missing, too long, not JSON, or refused by `SumsTerms`.
        """
        try:
            classes = _from_json(config, "flynn-classes", _MAX_CLASSES_CHARS)
            least, by_class = config.get("flynn-min-examples"), config.get("flynn-by-class")
            names = announced_names(config)
            terms = cls(config.get("flynn-features"), classes, by_class, least, names)  # type: ignore[arg-type]
        except ConfigError as error:
            raise PayloadError(f"config: {error}") from None
        _check_width(terms.n_features, n_features)
        return terms

    def codes(self, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The class code of every label, see `codes_of`."""
        return codes_of(self.classes, y)


def check_bound(bound: Any) -> None:
    """Refuse what cannot be the bound of a secure sum with a `ConfigError`."""
    if type(bound) is not int or not 2 <= bound <= LARGEST_BOUND or bound & (bound - 1):
        raise ConfigError(f"bound: expected a power of two from 2 to {LARGEST_BOUND}, got {str(bound)[:40]!r}")


def announced_names(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of the features that a server announced, in the order in which they are hashed; None without any.

    Parameters
    ----------
    config : mapping
        What arrived. Nothing is assumed of it.

    Raises
    ------
    PayloadError
        Not a list of strings in JSON.
    """
    if _NAMES not in config:
        return None
    names = _from_json(config, _NAMES, _MAX_NAMES_CHARS)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PayloadError(f"{_NAMES}: expected feature_names as a list of strings, got something else")
    return tuple(names)


def codes_of(classes: Sequence[Label], y: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The class code, 0 to L - 1, of every label.

    Parameters
    ----------
    classes : sequence of str or of int
    y : array-like of shape (n,)
        Labels: strings or numbers. What a file holds as text and a class list as an integer is the same label,
        ``"1"`` and 1; ``"01"`` is another.

    Raises
    ------
    DataError
        Not one-dimensional, or labels outside the class list; the message tells how many, not which.
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"y: expected shape (points,), got {labels.ndim} dimensions")
    code_of = codebook(classes)
    try:
        codes = np.fromiter((code_of.get(label, -1) for label in labels.tolist()), np.int64, len(labels))
    except TypeError:
        raise DataError("y: expected strings or integers as labels, got objects of another type") from None
    unknown = int((codes < 0).sum())
    if unknown:
        kind = "strings" if isinstance(classes[0], str) else "integers"
        raise DataError(
            f"y: {unknown} of {len(codes)} labels are not in the class list ({len(classes)} {kind}; "
            f"y has dtype {labels.dtype})"
        )
    return codes


def codebook(classes: Sequence[Label]) -> dict[Any, int]:
    """The code of every form in which a label of the class list may come."""
    code_of: dict[Any, int] = {}
    for code, label in enumerate(classes):
        if isinstance(label, int):
            code_of |= {label: code, str(label): code, f"{label}.0": code}
        else:
            code_of[label] = code
            if PLAIN_INTEGER.fullmatch(label):
                code_of[int(label)] = code
    return code_of


def whole_number(name: str, value: Any) -> int:
    """`value` as Python's integer, NumPy's included, if it is 1 or more; else a ConfigError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise ConfigError(f"{name}: expected a whole number of 1 or more, got {repr(value)[:80]}")
    return number


def _checked_specs(specs: Any) -> tuple[HashSpec, ...]:
    if isinstance(specs, HashSpec):
        return (specs,)
    if isinstance(specs, FlyHash):
        raise ConfigError("spec: expected a HashSpec, got a FlyHash; parties expand the rows from the spec's seed")
    if not isinstance(specs, Sequence) or isinstance(specs, str | bytes):
        raise ConfigError(f"spec: expected a HashSpec, got {type(specs).__name__}")
    if not 1 <= len(specs) <= MAX_SPECS:
        raise ConfigError(f"spec: expected 1 to {MAX_SPECS} specs, got {len(specs)}")
    for spec in specs:
        if not isinstance(spec, HashSpec):
            raise ConfigError(f"spec: expected only HashSpecs, got a {type(spec).__name__}")
    if len(set(specs)) < len(specs):
        raise ConfigError(f"spec: expected different specs, got {len(specs) - len(set(specs))} of them again")
    if len({spec.n_features for spec in specs}) > 1:
        raise ConfigError("spec: expected specs of the same n_features")
    return tuple(specs)


def _check_width(announced: int, n_features: int) -> None:
    if announced != n_features:
        raise PayloadError(f"spec: n_features is {announced}, but the data has {n_features} columns")


def _checked_classes(classes: Any) -> tuple[Label, ...]:
    # The order gives each class its row, so a set or a mapping will not do.
    if isinstance(classes, str | bytes | Mapping | Set) or not isinstance(classes, Iterable):
        raise ConfigError(f"classes: expected a list of strings or integers, got {type(classes).__name__}")
    # NumPy's scalars say what they are in Python by item().
    labels = [label.item() if isinstance(label, np.generic) else label for label in classes]
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise ConfigError(f"classes: expected only strings or only integers, got {got}")
    if len(set(labels)) < len(labels):
        raise ConfigError(f"classes: expected different labels, got {len(labels) - len(set(labels))} of them again")
    if kinds == {int} and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ConfigError("classes: expected integers within int64, got one outside")
    if kinds == {str} and any("\0" in label or len(label) > 1024 for label in labels):
        # NumPy would drop a trailing NUL, and so make two labels one.
        raise ConfigError("classes: expected labels of at most 1024 characters without NUL, got another")
    return tuple(labels)


def _checked_names(names: Any, n_features: int) -> tuple[str, ...]:
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ConfigError(f"feature_names: expected {n_features} strings, got {type(names).__name__}")
    # str() makes Python's strings of NumPy's.
    checked = tuple(str(name) if isinstance(name, str) else name for name in names)
    if len(checked) != n_features or not all(isinstance(name, str) for name in checked):
        raise ConfigError(f"feature_names: expected {n_features} strings (n_features), got {len(checked)} entries")
    return checked


def _text(config: Mapping[str, Any], key: str, longest: int) -> str:
    value = config.get(key)
    if not isinstance(value, str):
        raise PayloadError(f"{key}: expected a string, got {'nothing' if value is None else type(value).__name__}")
    if len(value) > longest:
        raise PayloadError(f"{key}: expected at most {longest} characters, got {len(value)}")
    return value


def _from_json(config: Mapping[str, Any], key: str, longest: int) -> Any:
    try:
        return json.loads(_text(config, key, longest))
    except PayloadError:
        raise
    except (ValueError, RecursionError):
        raise PayloadError(f"{key}: expected JSON, got something else") from None
