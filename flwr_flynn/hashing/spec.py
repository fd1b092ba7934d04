"""Specification of a fruit-fly hash: everything that parties must agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flwr_flynn._validation import (
    checked_fields,
    finite_floats,
    freeze,
    integer,
    number,
)
from flwr_flynn.errors import SpecError
from flwr_flynn.hashing.rank_codes import CODINGS

_MAX_DIM = 2**31 - 1
_MAX_WAVES = 2**16  # all of them are computed for every sample
_MAX_CODES = 64  # of a feature
_MAX_EDGES = 256  # of a feature
_MAX_WEIGHT = 255
# Fields that `to_dict` leaves out where they have their defaults.
_OPTIONAL = ("edges", "coding", "n_codes", "row_weights")


Vector = tuple[Any, ...]


class _Checked(Vector):
    """A vector that a specification has checked, with its field and n_features."""

    fits: tuple[str, int]


@dataclass(frozen=True)
class HashSpec:
    """Specification of a fruit-fly hash.

    Equal specifications give equal bits on every machine.

    Parameters
    ----------
    n_features, hash_dim : int
        Features of a sample, d, and rows of the lifting matrix, m.
    row_nnz : int
        Nonzero entries in each row of the lifting matrix, s. 1 <= s <= `n_inputs`: d,
        n_waves with waves, or d * n_codes with rank codes.
    hash_nnz : int
        Active bits of a hash, rho. 1 <= rho <= m.
    seed : int
        0 <= seed < 2**64.
    signed : bool, default=False
        Draw each nonzero entry as +1 or -1 instead of 1 (not in the paper).
    center, scale : sequence of n_features finite floats, optional
        Public vectors. A sample enters the hash as (x - center) * scale. Every scale is
        positive (not in the paper).
    n_waves : int, default=0
        Wave features between sample and lifting matrix, see `hashing.philox`; 0 for
        none (not in the paper).
    wave_frequency : float, default=0.0
        Periods per unit of a centred and scaled feature at slope 1. Positive if and
        only if there are waves.
    coding : {"", "bumps", "steps"}, default=""
        Shape of the rank codes that take the place of the features, see
        `hashing.rank_codes`; "" for none (not in the paper). Not with waves, a centre
        or a scale.
    n_codes : int, default=0
        Codes of a feature, from 2 to 64 with a coding, else 0.
    edges : (n_features, K) sequence of finite floats, optional
        With a coding: edges of the ranks of each feature, not descending, 1 <= K <=
        256.
    row_weights : sequence of n_features int from 1 to 255, optional
        Draw the features of a row in proportion to these (not in the paper); `row_nnz`
        is then at most half of `n_inputs`, rounded up. Default: all alike.

    Raises
    ------
    SpecError
        A field has the wrong type or is out of range. `field` names it.

    Examples
    --------
    >>> spec = HashSpec(n_features=64, hash_dim=16384, row_nnz=19, hash_nnz=32, seed=7)
    >>> HashSpec.from_dict(spec.to_dict()) == spec
    True
    """

    n_features: int
    hash_dim: int
    row_nnz: int
    hash_nnz: int
    seed: int
    signed: bool = False
    center: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    n_waves: int = 0
    wave_frequency: float = 0.0
    coding: str = ""
    n_codes: int = 0
    edges: tuple[tuple[float, ...], ...] | None = None
    row_weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        bounds = {
            "n_waves": (0, _MAX_WAVES),
            "n_codes": (0, _MAX_CODES),
            "seed": (0, 2**64 - 1),
        }
        for name in (
            "n_features",
            "hash_dim",
            "n_waves",
            "n_codes",
            "row_nnz",
            "hash_nnz",
            "seed",
        ):
            least, most = bounds.get(name, (1, _MAX_DIM))
            size = integer(name, getattr(self, name), least, most, error=SpecError)
            freeze(self, **{name: size})
        self._check_coding()
        if self.n_waves:
            limits = "n_waves"
        elif self.coding:
            limits = "n_inputs"
        else:
            limits = "n_features"
        for name, limit in (("row_nnz", limits), ("hash_nnz", "hash_dim")):
            value = getattr(self, name)
            most = getattr(self, limit)
            # The last of many columns would take long to be drawn.
            if name == "row_nnz" and self.row_weights is not None:
                most = (most + 1) // 2
                limit = f"half of {limit}, with row_weights"
            if value > most:
                raise SpecError(name, f"an integer from 1 to {most} ({limit})", value)
        if not isinstance(self.signed, bool | np.bool_):
            raise SpecError("signed", "True or False", self.signed)
        freeze(self, signed=bool(self.signed))
        for name, check in _CHECKS.items():
            self._check_vector(name, check)
        frequency = number("wave_frequency", self.wave_frequency, error=SpecError)
        if self.n_waves and frequency <= 0:
            raise SpecError("wave_frequency", "a finite number above 0", frequency)
        if not self.n_waves and frequency != 0:
            raise SpecError("wave_frequency", "0, as n_waves is 0", frequency)
        freeze(self, wave_frequency=frequency)

    @property
    def n_inputs(self) -> int:
        """Columns of the lifting matrix: `n_waves` if there are waves, else
        `n_features` or its codes.
        """
        return self.n_waves or self.n_features * max(self.n_codes, 1)

    def _check_coding(self) -> None:
        if self.coding not in ("", *CODINGS):
            raise SpecError("coding", f'"" or one of {", ".join(CODINGS)}', self.coding)
        if bool(self.coding) != (self.n_codes >= 2) or (
            not self.coding and self.n_codes
        ):
            expected = "0 without a coding"
            if self.coding:
                expected = f"from 2 to {_MAX_CODES}"
            raise SpecError("n_codes", expected, self.n_codes)
        if bool(self.coding) != (self.edges is not None):
            raise SpecError(
                "edges",
                "edges of each feature with a coding, and none without",
                type(self.edges).__name__,
            )
        if self.n_inputs > _MAX_DIM:
            raise SpecError(
                "n_codes", f"at most {_MAX_DIM} codes in all", self.n_inputs
            )
        others = {
            "n_waves": self.n_waves,
            "center": self.center is not None,
            "scale": self.scale is not None,
        }
        for name, given in others.items():
            if self.coding and given:
                raise SpecError(name, "none beside a coding", name)
        if self.row_weights is not None and self.n_waves:
            raise SpecError("row_weights", "none beside waves", "some")

    def _check_vector(self, name: str, check: Callable[[Any, int], Vector]) -> None:
        """Check a vector, once for all specifications that have the very same."""
        vector = getattr(self, name)
        if vector is None or getattr(vector, "fits", None) == (name, self.n_features):
            return
        checked = _Checked(check(vector, self.n_features))
        checked.fits = (name, self.n_features)
        freeze(self, **{name: checked})

    def to_dict(self) -> dict[str, object]:
        """Fields as plain Python values that JSON can hold."""
        return {
            name: value
            for name, value in vars(self).items()
            if value or name not in _OPTIONAL
        }

    @classmethod
    def from_dict(cls, values: object) -> HashSpec:
        """Specification from the values of `to_dict`.

        Raises a `SpecError` for missing, unknown or refused fields.
        """
        known = {field.name for field in fields(cls)}
        required = {"n_features", "hash_dim", "row_nnz", "hash_nnz", "seed"}
        return cls(**checked_fields("spec", values, required, known, SpecError))

    def difference(self, other: HashSpec) -> list[str]:
        """Names of the fields in which two specifications differ."""
        return [
            name for name, value in vars(self).items() if value != getattr(other, name)
        ]

    @classmethod
    def suggest(
        cls,
        n_features: int,
        n_examples: int | None = None,
        n_classes: int | None = None,
        noise_sigma: float | None = None,
        *,
        hash_dim: int | None = None,
        row_nnz: int | None = None,
        hash_nnz: int | None = None,
        seed: int = 0,
        **fields: Any,
    ) -> HashSpec:
        """Specification with sizes for data of this shape.

        Parameters
        ----------
        n_features : int
        n_examples, n_classes : int, optional
            Training samples of all parties together, and classes. Public figures; rough
            ones will do.
        noise_sigma : float, optional
            Standard deviation of the noise in the summed counts per unit of L2
            sensitivity. Needs both figures above.
        hash_dim, row_nnz, hash_nnz, seed, **fields
            Further fields of the specification, which may raise a `SpecError`:
            `signed`, `center`, `scale` and so on. Other sizes follow from those given.

        Notes
        -----
        - m: 16384, or less where all counts would exceed 64 MiB. With noise at most 15
          n / (L sigma), at least 512.
        - s: 0.4 d, or 0.4 n_waves with waves, from 2 to 40.
        - rho: 64 for every 16384 of m, at least 16. With noise 22 (m L sigma /
          n)**(2/3), at least 16, at most m / 10.

        Examples
        --------
        >>> spec = HashSpec.suggest(64, n_examples=1000, n_classes=10)
        >>> spec.hash_dim, spec.row_nnz, spec.hash_nnz
        (16384, 26, 64)
        """
        n_features = integer("n_features", n_features, error=SpecError)
        if n_examples is not None:
            n_examples = integer("n_examples", n_examples, least=0, error=SpecError)
        if n_classes is not None:
            n_classes = integer("n_classes", n_classes, error=SpecError)
        if noise_sigma is not None:
            noise_sigma = number("noise_sigma", noise_sigma, least=0, error=SpecError)
            if n_examples is None or n_classes is None:
                raise SpecError(
                    "noise_sigma",
                    "n_examples and n_classes with it",
                    "one of them missing",
                )
        if hash_dim is None:
            hash_dim = _suggested_rows(n_examples, n_classes, noise_sigma)
        if row_nnz is None:
            n_inputs = fields.get("n_waves") or n_features * (
                fields.get("n_codes") or 1
            )
            row_nnz = min(n_inputs, max(2, min(-(-2 * n_inputs // 5), 40)))
        if hash_nnz is None:
            hash_nnz = _suggested_winners(hash_dim, n_examples, n_classes, noise_sigma)
        return cls(n_features, hash_dim, row_nnz, hash_nnz, seed, **fields)


def _suggested_rows(
    n_examples: int | None, n_classes: int | None, noise_sigma: float | None
) -> int:
    if n_classes is None:
        rows = 2**14
    else:
        rows = max(min(2**14, 2**23 // n_classes), 256)
    if noise_sigma and n_examples is not None and n_classes is not None:
        rows = min(
            rows, max(int(min(15 * n_examples / (n_classes * noise_sigma), 2**14)), 512)
        )
    return rows


def _suggested_winners(
    hash_dim: int,
    n_examples: int | None,
    n_classes: int | None,
    noise_sigma: float | None,
) -> int:
    if noise_sigma is None or n_examples is None or n_classes is None:
        return min(max(hash_dim // 256, 16), hash_dim)
    ideal = 22 * (hash_dim * n_classes * noise_sigma / max(n_examples, 1)) ** (2 / 3)
    return max(int(min(max(ideal, 16), hash_dim // 10)), 1)


def _checked_center(
    value: object, n_features: int, name: str = "center"
) -> tuple[float, ...]:
    """Finite floats as a tuple."""
    expected = f"{n_features} finite floats (n_features)"
    floats = finite_floats(name, value, (n_features,), expected, SpecError)
    return tuple(floats.tolist())


def _checked_scale(value: object, n_features: int) -> tuple[float, ...]:
    """Positive floats as a tuple."""
    scale = _checked_center(value, n_features, "scale")
    if min(scale) <= 0:
        index = scale.index(min(scale))
        raise SpecError("scale", "positive floats", f"{scale[index]} at index {index}")
    return scale


def _checked_edges(value: object, n_features: int) -> tuple[tuple[float, ...], ...]:
    """Edges as a tuple of tuples, if they are as described."""
    expected = (
        f"{n_features} rows (n_features) of 1 to {_MAX_EDGES} finite floats "
        "each, not descending"
    )
    edges = finite_floats("edges", value, (n_features, None), expected, SpecError)
    if not 1 <= edges.shape[1] <= _MAX_EDGES or (edges[:, 1:] < edges[:, :-1]).any():
        raise SpecError(
            "edges", expected, f"shape {edges.shape}, or values that descend"
        )
    return tuple(map(tuple, (edges + 0.0).tolist()))


def _checked_weights(value: object, n_features: int) -> tuple[int, ...]:
    """Weights as a tuple, if they are as described."""
    expected = f"{n_features} integers (n_features) from 1 to {_MAX_WEIGHT}"
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        raise SpecError("row_weights", expected, type(value).__name__)
    if len(value) != n_features:
        raise SpecError("row_weights", expected, f"{len(value)} entries")
    return tuple(
        integer("row_weights", weight, 1, _MAX_WEIGHT, error=SpecError)
        for weight in value
    )


_CHECKS: dict[str, Callable[[Any, int], Vector]] = {
    "center": _checked_center,
    "scale": _checked_scale,
    "edges": _checked_edges,
    "row_weights": _checked_weights,
}
"""Checks of the vectors of a specification."""
