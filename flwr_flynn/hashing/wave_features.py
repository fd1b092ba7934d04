"""Wave features: periodic projections of a sample that take the place of its features.

The hash sees only the direction of a sample. Wave features carry the position: feature k of a sample x is

    q_k(x) = rint(127 (4 |t - 1/2| - 1)),  t = u - floor(u),  u = b_k + f sum over j of w_kj z_j,

a triangle wave of period 1 / f along the direction w_k, where z is the centred and scaled sample: random Fourier
features (Rahimi & Recht, NIPS 2007) with a triangle for the cosine, as it takes only operations that are rounded
exactly, in a fixed order. So wave features, integers from -127 to 127, are the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.philox import draw_waves

Floats = npt.NDArray[np.float64]

_LARGEST = 1e300  # far enough below what float64 holds for any rounding on the way


class TriangleFeatures:
    """Wave features of a specification; `center` and `scale` are (n_features,) float64 or None."""

    def __init__(
        self, seed: int, n_waves: int, frequency: float, center: Floats | None, scale: Floats | None, n_features: int
    ) -> None:
        self.n_waves = n_waves
        self._frequency = frequency
        self._center = np.zeros(n_features) if center is None else center
        self._scale = np.ones(n_features) if scale is None else scale
        self._slopes, self._phases = draw_waves(np.uint64(seed), n_waves, n_features)

    def fits(self, X: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Tell the finite samples whose projections are well within float64, each by its own values alone."""
        with np.errstate(over="ignore"):
            sizes = np.abs((np.asarray(X, np.float64) - self._center) * self._scale).sum(axis=1)
            reach = sizes * (np.abs(self._slopes).max(initial=1.0) * max(1.0, self._frequency))
        return np.asarray(reach < _LARGEST)

    def __call__(self, X: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """Compute the wave features, (n, n_waves) int8, of finite samples, (n, d) of any real dtype."""
        out = np.empty((len(X), self.n_waves), np.int8)
        X = np.ascontiguousarray(X, np.float64)
        if not _waves(X, self._center, self._scale, self._slopes, self._phases, self._frequency, out):
            raise DataError("X", "values whose projections fit float64 (rescale the features)", "larger values")
        return out


@njit(nogil=True, cache=True)
def _waves(X, center, scale, slopes, phases, frequency, out):  # type: ignore[no-untyped-def]
    """Write the wave features of each sample to `out`; return False at the first projection that is not finite."""
    n_waves = slopes.shape[1]
    sums = np.empty(n_waves)
    for p in range(X.shape[0]):
        sums[:] = 0.0
        for j in range(X.shape[1]):
            z = (X[p, j] - center[j]) * scale[j]
            for k in range(n_waves):
                sums[k] += z * slopes[j, k]
        for k in range(n_waves):
            u = phases[k] + frequency * sums[k]
            if not np.isfinite(u):
                return False
            out[p, k] = np.rint(127.0 * (4.0 * abs(u - np.floor(u) - 0.5) - 1.0))
    return True
