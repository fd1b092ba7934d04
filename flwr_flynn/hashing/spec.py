"""The specification of a fruit-fly hash: everything that parties must agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from flwr_flynn.errors import SpecError

_MAX_DIM = 2**31 - 1
_MAX_WAVES = 2**16  # all of them are computed for every point


@dataclass(frozen=True)
class HashSpec:
    """All that defines a fruit-fly hash; equal specifications give equal bits on every machine.

    Parameters
    ----------
    n_features : int
        Columns of the data, d.
    hash_dim : int
        Rows of the lifting matrix, m.
    row_nnz : int
        Non-zero entries in each row of the lifting matrix, s; 1 <= s <= d, or n_waves if there are any.
    hash_nnz : int
        Ones in a hash, rho; 1 <= rho <= m.
    seed : int
        0 <= seed < 2**64.
    signed : bool, default=False
        Draw each non-zero entry as +1 or -1 rather than 1 (not in the paper).
    center, scale : sequence of n_features finite floats, optional
        Public vectors: points enter the hash as (x - center) * scale; every scale is positive (not in the paper).
    n_waves : int, default=0
        Periodic projections that are put between the columns and the lifting matrix, which then has as many columns
        (not in the paper); see `flwr_flynn.hashing.wave_features`. 0: none.
    wave_frequency : float, default=0.0
        Periods per unit of a centred and scaled column, for a slope of 1; positive if and only if there are waves.

    Raises
    ------
    SpecError
        A field has the wrong type or is out of range; the message names it.

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

    def __post_init__(self) -> None:
        bounds = {
            "n_features": _MAX_DIM,
            "hash_dim": _MAX_DIM,
            "n_waves": _MAX_WAVES,
            "row_nnz": None,
            "hash_nnz": None,
            "seed": 2**64 - 1,
        }
        limits = {"row_nnz": "n_waves" if self.n_waves else "n_features", "hash_nnz": "hash_dim"}
        for name, bound in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise SpecError(f"{name}: expected a whole number, got {type(value).__name__}")
            lowest = 0 if name in ("seed", "n_waves") else 1
            highest = getattr(self, limits[name]) if bound is None else bound
            if not lowest <= value <= highest:
                meaning = f" ({limits[name]})" if bound is None else ""
                raise SpecError(f"{name}: expected {lowest} to {highest}{meaning}, got {value}")
            object.__setattr__(self, name, int(value))
        if not isinstance(self.signed, bool | np.bool_):
            raise SpecError(f"signed: expected True or False, got {type(self.signed).__name__}")
        object.__setattr__(self, "signed", bool(self.signed))
        for name in ("center", "scale"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self._vector(name))
        frequency = self.wave_frequency
        if isinstance(frequency, bool | np.bool_) or not isinstance(frequency, float | int | np.floating | np.integer):
            raise SpecError(f"wave_frequency: expected a number, got {type(frequency).__name__}")
        if isinstance(frequency, int) and abs(frequency) >= 2**1023:  # which no float is
            raise SpecError("wave_frequency: expected a number that is not so large")
        if not (0 < frequency < np.inf if self.n_waves else frequency == 0):
            expected = "a finite number above 0" if self.n_waves else "0, as there are no waves"
            raise SpecError(f"wave_frequency: expected {expected}, got {frequency}")
        object.__setattr__(self, "wave_frequency", float(frequency))

    @property
    def n_inputs(self) -> int:
        """Columns of the lifting matrix: the waves, where there are any, else the features."""
        return self.n_waves or self.n_features

    def _vector(self, name: str) -> tuple[float, ...]:
        value = getattr(self, name)
        if isinstance(value, str | bytes) or not (
            isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim)
        ):
            raise SpecError(f"{name}: expected {self.n_features} floats, got {type(value).__name__}")
        if len(value) != self.n_features:
            raise SpecError(f"{name}: expected {self.n_features} floats (n_features), got {len(value)}")
        try:
            if any(isinstance(entry, str | bytes) for entry in value):
                raise TypeError
            vector = np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError):
            raise SpecError(f"{name}: expected {self.n_features} floats, got something else") from None
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise SpecError(f"{name}: expected {self.n_features} finite floats")
        if name == "scale" and not (vector > 0).all():
            raise SpecError("scale: expected positive numbers only")
        return tuple(vector.tolist())

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain Python values that JSON can hold."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HashSpec:
        """The specification that `to_dict` described.

        Raises
        ------
        SpecError
            Not a mapping, a field is missing or unknown, or a value is refused.
        """
        if not isinstance(values, Mapping):
            raise SpecError(f"spec: expected a mapping, got {type(values).__name__}")
        known = {field.name for field in fields(cls)}
        required = {"n_features", "hash_dim", "row_nnz", "hash_nnz", "seed"}
        unknown = sorted(str(name)[:40] for name in set(values) - known)
        if unknown:
            raise SpecError(f"spec: unknown field {', '.join(unknown[:5])}")
        missing = sorted(required - set(values))
        if missing:
            raise SpecError(f"spec: missing field {', '.join(missing)}")
        return cls(**values)

    def difference(self, other: HashSpec) -> list[str]:
        """Names of the fields in which two specifications differ."""
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

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
        signed: bool = False,
        center: tuple[float, ...] | None = None,
        scale: tuple[float, ...] | None = None,
        n_waves: int = 0,
        wave_frequency: float = 0.0,
    ) -> HashSpec:
        """Sizes for data of this shape.

        Parameters
        ----------
        n_features : int
            Columns of the data.
        n_examples, n_classes : int, optional
            Training points of all parties together, and classes; public figures, rough ones will do.
        noise_sigma : float, optional
            Standard deviation of the noise that the summed counts would carry per unit of L2 sensitivity. Fewer, larger
            counts stand out from noise better than many small ones, so rho grows with it. Needs the other two.
        hash_dim, row_nnz, hash_nnz : int, optional
            Sizes already decided; the others are chosen to go with them.
        seed, signed, center, scale, n_waves, wave_frequency
            Passed on.

        Notes
        -----
        - m: 16384, less where that many counts of all classes would take more than 64 MiB. Accuracy rises with m
          everywhere, and so do time, memory and bytes. With noise no more than 15 n / L sigma, but 512 at least: counts
          are n rho / m L on average, their noise is sigma rho**(1/2), and a larger m drowns in it.
        - s: 0.4 d (of the waves, where there are any), at least 2, at most 40.
        - rho: 64 for every 16384 of m, at least 16. With noise: 22 (m L sigma / n)**(2/3), at least 16, at most m / 10.
          At (m L sigma / n)**2 the size of a count and that of its noise would balance; the best rho grows more slowly.
        - Both rules for noise: fifteen public tables and two synthetic sets, parts of the training data held out, 300
          to 10000 points, epsilon .25 to 4, 2 and 10 parties. On average balanced accuracy was .03 below that of the
          best m and rho, some of it chance; with m = 16384 and rho at most m / 20 it was .08 below.

        Mean balanced accuracy on 36 public data sets (at most 2000 points each, 3 of 5 folds, weighted columns, decay
        by leave-one-out): .844; with rho = 32 .841, 128 .839, 16 .833, 256 .836; with s halved .834, quartered .817,
        half as large again .841; with m = 4096 .831 at best. Of twenty pairs of s and rho at m = 16384, this one is
        the best on all 36 collections that leave one set out.

        Time and memory at m = 16384: 5 to 10 us per point on one core, and 128 kB per class for the counts; a message
        takes a byte or two per count.
        """
        figures = {"n_features": n_features, "n_examples": n_examples, "n_classes": n_classes}
        for name, figure in figures.items():
            if figure is None and name != "n_features":
                continue
            if isinstance(figure, bool) or not isinstance(figure, int | np.integer) or figure < (name != "n_examples"):
                raise SpecError(f"{name}: expected a positive whole number, got {figure!r}")
        if noise_sigma is not None and not 0 <= noise_sigma < np.inf:
            raise SpecError(f"noise_sigma: expected a finite number of at least 0, got {noise_sigma!r}")
        if noise_sigma is not None and (n_examples is None or n_classes is None):
            raise SpecError("noise_sigma: needs n_examples and n_classes as well")
        if hash_dim is None:
            hash_dim = 2**14 if n_classes is None else max(min(2**14, 2**23 // int(n_classes)), 256)
            if noise_sigma and n_examples is not None and n_classes is not None:
                hash_dim = min(hash_dim, max(int(min(15 * n_examples / (n_classes * noise_sigma), 2**14)), 512))
        if row_nnz is None:
            n_inputs = int(n_waves or n_features)
            row_nnz = min(n_inputs, max(2, min(-(-2 * n_inputs // 5), 40)))
        if hash_nnz is None:
            hash_nnz = min(max(hash_dim // 256, 16), hash_dim)
            if noise_sigma is not None and n_examples is not None and n_classes is not None:
                ideal = 22 * (hash_dim * n_classes * noise_sigma / max(n_examples, 1)) ** (2 / 3)
                hash_nnz = max(int(min(max(ideal, 16), hash_dim // 10)), 1)
        return cls(int(n_features), hash_dim, row_nnz, hash_nnz, seed, signed, center, scale, n_waves, wave_frequency)
