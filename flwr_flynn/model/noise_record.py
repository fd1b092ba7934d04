"""Record of the noise in class counts, and the reading of noisy counts.

A mechanism (`flwr_flynn.privacy`) turns exact counts into a release: counts plus noise of a known variance. Noisy
counts carry a record of their releases, so that their variance is known after any additions and subtractions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn._validation import boolean, integer, is_sha256, number
from flwr_flynn.errors import CountsError

_LARGEST_VARIANCE = 2.0**120
_LARGEST_TIMES = 2**31


@dataclass(frozen=True, repr=False)
class Release:
    """Record of one draw of noise in some counts, named by 64 hexadecimal digits (`release_name`).

    `variance` is that of one entry, in samples squared, above 0. `times` is the multiplicity of the draw, -1 after a
    subtraction, not 0. `selected`: only selected entries were released; the others are 0 and have no noise.
    """

    name: str
    variance: float
    times: int = 1
    selected: bool = False

    def __post_init__(self) -> None:
        if not is_sha256(self.name):
            raise CountsError("release name", "64 hexadecimal digits in lower case", self.name)
        variance = number("release variance", self.variance, most=_LARGEST_VARIANCE, above=0, error=CountsError)
        integer("release times", self.times, -_LARGEST_TIMES, _LARGEST_TIMES, error=CountsError)
        if self.times == 0:
            raise CountsError("release times", "an integer other than 0", 0)
        boolean("release selected", self.selected, error=CountsError)
        object.__setattr__(self, "variance", variance)

    def __repr__(self) -> str:
        return (
            f"Release(name='{self.name[:12]}...', variance={self.variance}, times={self.times}, "
            f"selected={self.selected})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Fields as plain values that JSON can hold."""
        return {"name": self.name, "variance": self.variance, "times": self.times, "selected": self.selected}

    @classmethod
    def from_dict(cls, values: Any) -> Release:
        """Release from the values of `to_dict`, of which nothing is assumed."""
        if not isinstance(values, Mapping) or set(values) != {"name", "variance", "times", "selected"}:
            got = (
                sorted(str(name)[:20] for name in values)[:8] if isinstance(values, Mapping) else type(values).__name__
            )
            raise CountsError("release", "the fields name, variance, times and selected", got)
        return cls(**values)


Noise = tuple[Release, ...]


def release_name(array: npt.ArrayLike, spec_fingerprint: str) -> str:
    """Name of a release, as anybody who has it can compute: SHA-256 of fingerprint, shape and int64 noisy counts."""
    given = np.asarray(array)
    if given.ndim != 2 or given.dtype.kind not in "iu":
        raise CountsError("array", "a matrix of integers", f"{given.dtype} of shape {given.shape}")
    digest = hashlib.sha256(f"flynn release 1 {spec_fingerprint} {given.shape} ".encode())
    digest.update(np.ascontiguousarray(given, "<i8").data)
    return digest.hexdigest()


def checked_noise(noise: Any) -> Noise:
    """Return releases in the order of their names; refuse anything else, and a name that occurs twice."""
    if not isinstance(noise, Sequence) or not all(isinstance(release, Release) for release in noise):
        raise CountsError("noise", "a sequence of Release", type(noise).__name__)
    n_names = len({release.name for release in noise})
    if n_names != len(noise):
        raise CountsError("noise", "releases of different names", f"{n_names} names of {len(noise)} releases")
    return tuple(sorted(noise, key=lambda release: release.name))


def combine(mine: Noise, theirs: Noise, sign: int) -> Noise:
    """Record of the noise in a sum (sign 1) or difference (sign -1) of counts.

    Different releases were drawn independently, so their variances add whatever the sign. The same release on both
    sides is the same noise twice: it adds before it is squared, and cancels in a difference.
    """
    total = {release.name: release for release in mine}
    add_noise(total, theirs, sign)
    return checked_noise(list(total.values()))


def add_noise(total: dict[str, Release], noise: Noise, sign: int) -> None:
    """Add noise to a record by name, in place, as `combine` does, in a time that does not depend on its size."""
    for release in noise:
        if (known := total.get(release.name)) is None:
            total[release.name] = replace(release, times=sign * release.times)
        elif (known.variance, known.selected) != (release.variance, release.selected):
            expected = f"variance {known.variance} and selected {known.selected} as before"
            raise CountsError(f"release {release.name[:12]}", expected, f"{release.variance} and {release.selected}")
        elif known.times + sign * release.times:
            total[release.name] = replace(known, times=known.times + sign * release.times)
        else:
            del total[release.name]


def variance(noise: Noise) -> float:
    """Variance of the noise in one entry; an upper bound where only selected entries were released."""
    return math.fsum(release.times**2 * release.variance for release in noise)


def sizes(array: npt.NDArray[np.int64], hash_nnz: int, noise: Noise) -> npt.NDArray[np.float64] | None:
    """Unbiased estimates of n_l, row sum / rho, (L,) float64, possibly negative; None where entries are lacking."""
    return None if any(release.selected for release in noise) else array.sum(axis=1) / hash_nnz


def denoised(
    array: npt.NDArray[np.int64], n_per_class: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Noisy counts, (L, m) int64, and class sizes, (L,) float64, as the decision rules take them.

    Counts are clipped at 0, after all sums. A class has at least 1 sample. Where sizes are unknown, all classes have
    the same: rule "balanced" is then rule "novelty".
    """
    counts = np.maximum(array, 0)
    if n_per_class is None:
        return counts, np.full(len(array), max(float(counts.sum()) / len(array), 1.0))
    return counts, np.maximum(n_per_class, 1.0)
