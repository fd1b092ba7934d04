"""What makes counts private, and how private counts are read out.

A mechanism (`flwr_flynn.privacy`) turns exact counts into a `Release`: counts plus noise of a known variance. Counts
that contain releases are *noisy*: they are signed, their rows do not sum to rho * n_l, and they carry which releases
they are made of, so that their variance is known whatever was added and subtracted.

>>> noise = combine((Release(64 * "a", 4.0),), (Release(64 * "b", 9.0),), 1)
>>> variance(noise)
13.0
>>> combine(noise, (Release(64 * "b", 9.0),), -1)
(Release(name='aaaaaaaaaaaa...', variance=4.0, times=1, selected=False),)

How noisy counts are read out
-----------------------------
`denoised` clips counts at zero, after all sums, and takes the size of a class from its row's sum. `exponent` is the
lambda of `ClassCounts.suggest_decay`: gamma = exp(-lambda / c). Without noise a larger lambda does better the more
clearly counts tell classes apart. With noise of standard deviation sigma, an exponent lambda * count / c is wrong by
lambda * sigma / c, and gains nothing once that is well above one: lambda is at most a multiple of c / sigma. All of it
is known from what was released.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import CountsError

_LARGEST_VARIANCE = 2.0**120
_LARGEST_TIMES = 2**31


@dataclass(frozen=True, repr=False)
class Release:
    """One draw of noise that is in some counts.

    Parameters
    ----------
    name : str
        64 hexadecimal digits that tell this draw from all others: what was released has one name only.
    variance : float
        Of the noise in one entry, in points squared.
    times : int, default=1
        How often it is in the counts: -1 after counts that contain it were subtracted from others. Not 0.
    selected : bool, default=False
        Only selected entries were released; the others are 0 and have no noise.
    """

    name: str
    variance: float
    times: int = 1
    selected: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) != 64 or set(self.name) - set("0123456789abcdef"):
            raise CountsError("release: expected a name of 64 hexadecimal digits in lower case, got something else")
        if (
            isinstance(self.variance, bool)
            or not isinstance(self.variance, float | int | np.floating)
            or not 0 < self.variance <= _LARGEST_VARIANCE
        ):
            raise CountsError(f"release: expected a variance above 0, got {str(self.variance)[:40]}")
        whole = isinstance(self.times, int) and not isinstance(self.times, bool)
        if not whole or not 0 < abs(self.times) <= _LARGEST_TIMES:
            raise CountsError(f"release: expected times other than 0, got {str(self.times)[:40]}")
        if not isinstance(self.selected, bool):
            raise CountsError("release: expected selected to be True or False, got something else")
        object.__setattr__(self, "variance", float(self.variance))

    def __repr__(self) -> str:
        return (
            f"Release(name='{self.name[:12]}...', variance={self.variance}, times={self.times}, "
            f"selected={self.selected})"
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values that JSON can hold."""
        return {"name": self.name, "variance": self.variance, "times": self.times, "selected": self.selected}

    @classmethod
    def from_dict(cls, values: Any) -> Release:
        """The release that `to_dict` described.

        Raises
        ------
        CountsError
            Not such a mapping, or a field is refused.
        """
        if not isinstance(values, Mapping) or set(values) != {"name", "variance", "times", "selected"}:
            raise CountsError("release: expected name, variance, times and selected, got something else")
        return cls(**values)


Noise = tuple[Release, ...]


def release_name(array: npt.ArrayLike, spec_fingerprint: str) -> str:
    """The name of what was released: SHA-256 of the fingerprint and the array's shape and 64-bit integers.

    Whoever has the release can name it, and no two draws of noise over more than a few counts have the same.
    """
    given = np.asarray(array)
    if given.ndim != 2 or given.dtype.kind not in "iu":
        raise CountsError(f"array: expected a matrix of integers, got {given.dtype} of shape {given.shape}")
    digest = hashlib.sha256(f"flynn release 1 {spec_fingerprint} {given.shape} ".encode())
    digest.update(np.ascontiguousarray(given, "<i8").data)
    return digest.hexdigest()


def checked_noise(noise: Any) -> Noise:
    """`noise` in the order of names, if it is releases with different names."""
    if not isinstance(noise, Sequence) or not all(isinstance(release, Release) for release in noise):
        raise CountsError(f"noise: expected releases, got {type(noise).__name__}")
    if len({release.name for release in noise}) != len(noise):
        raise CountsError("noise: a release occurs twice")
    return tuple(sorted(noise, key=lambda release: release.name))


def combine(mine: Noise, theirs: Noise, sign: int) -> Noise:
    """Noise of a sum (sign 1) or difference (-1) of counts.

    Different releases were drawn independently, so that variances add whatever the sign. The same release on both
    sides is the same noise twice: it adds up before it is squared, and cancels when what contains it is subtracted.

    Raises
    ------
    CountsError
        A name stands for different releases.
    """
    total = {release.name: release for release in mine}
    add_noise(total, theirs, sign)
    return checked_noise(list(total.values()))


def add_noise(total: dict[str, Release], noise: Noise, sign: int) -> None:
    """Add (or with sign -1 subtract) noise to releases by name, as `combine` does, in time that `total` has no part in.

    Raises
    ------
    CountsError
        A name stands for different releases.
    """
    for release in noise:
        known = total.get(release.name)
        if known is None:
            total[release.name] = replace(release, times=sign * release.times)
        elif (known.variance, known.selected) != (release.variance, release.selected):
            raise CountsError(f"release {release.name[:12]} has two different variances")
        elif known.times + sign * release.times:
            total[release.name] = replace(known, times=known.times + sign * release.times)
        else:
            del total[release.name]


def variance(noise: Noise) -> float:
    """Variance of one entry; where only selected entries were released, at most this."""
    return math.fsum(release.times**2 * release.variance for release in noise)


def is_selected(noise: Noise) -> bool:
    """Whether some entries may lack the counts of a release."""
    return any(release.selected for release in noise)


def sizes(array: npt.NDArray[np.int64], hash_nnz: int, noise: Noise) -> npt.NDArray[np.float64] | None:
    """Estimates of n_l, row sum / rho: without bias, maybe below zero; None where entries are lacking."""
    return None if is_selected(noise) else array.sum(axis=1) / hash_nnz


def denoised(
    array: npt.NDArray[np.int64], n_per_class: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Counts and class sizes as read-outs take them: none below zero, no class without points."""
    counts = np.maximum(array, 0)
    if n_per_class is None:  # all classes as large as each other: rule "balanced" is then the paper's
        return counts, np.full(len(array), max(float(counts.sum()) / len(array), 1.0))
    return counts, np.maximum(n_per_class, 1.0)


def exponent(
    array: npt.NDArray[np.int64], n_per_class: npt.NDArray[np.float64] | None, noise_variance: float, rule: str
) -> tuple[float, float]:
    """Typical count c and the lambda to go with it, from noisy counts.

    Of counts q, scaled by class as `rule` does, c is the size-biased mean sum q ** 2 / sum q with the noise's part in
    the squares taken out, and c0 the same if classes differed by chance only (`readout.typical_counts`). Lambda is the
    least of three, and at least 3/4:

    - 5 (c - c0) / sqrt(c), as without noise: no more than classes differ;
    - 2 c / sigma, sigma being the standard deviation of the noise, which then changes exponents by about two;
    - 0.8 c / q0, q0 being the mean count, of which the exponent is then 0.8. The first grows with the number of points
      without end; this one does not.

    Returns
    -------
    typical, exponent : float

    Notes
    -----
    The 2 and the 0.8 were chosen on training data alone (three synthetic sets, ten tasks from public tables; epsilon
    .25, 1 and 2 at two parties): of seven choices the balanced accuracy was within .002 of the best on average, within
    .018 always.
    """
    counts, n_classes = array.astype(np.float64), len(array)
    noisy_entries = np.full(n_classes, float(array.shape[1]))
    factors = np.ones((n_classes, 1))
    if n_per_class is None:
        noisy_entries = np.count_nonzero(array, axis=1).astype(float)
    elif rule != "novelty":
        points = np.maximum(n_per_class, 1.0)
        factors = (points.mean() / points)[:, None]
    scaled = counts * factors
    total = float(scaled.sum())
    if total <= 0:
        return 1.0, _LEAST
    noise = noise_variance * float((noisy_entries * factors[:, 0] ** 2).sum())
    typical = max((float((scaled**2).sum()) - noise) / total, 1.0)
    by_chance = (float((scaled.sum(axis=0) ** 2).sum()) - noise) / n_classes + float((factors * scaled).sum())
    clear = 5 * (typical - by_chance / total) / math.sqrt(typical)
    quiet = 2 * typical / math.sqrt(noise_variance)
    spread = 0.8 * typical / (total / array.size)
    return typical, max(min(clear, quiet, spread), _LEAST)


_LEAST = 0.75
