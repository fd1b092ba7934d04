"""A feature stage for few columns: periodic projections, of which the rows of M then take sums.

The hash sees only the direction in which a point lies, which in two dimensions is an angle and no more: of two
concentric circles it can tell nothing. Waves give the point a position: wave k is

    q_k(x) = rint(127 (4 |t - 1/2| - 1)),  t = u - floor(u),  u = b_k + f sum over j of w_kj z_j,

a triangle wave of period 1 / f along the direction w_k, z being the centred and scaled point. Random projections with
a periodic function after them are random Fourier features (Rahimi & Recht, "Random features for large-scale kernel
machines", NIPS 2007); a triangle does as well here as a cosine and takes only operations that are rounded exactly, in a
fixed order, so that waves are the same on every machine. They are whole numbers from -127 to 127, which the hash adds
exactly.

>>> import numpy as np
>>> waves = Waves(seed=1, n_waves=4, frequency=0.25, center=None, scale=None, n_features=2)
>>> waves(np.array([[0.0, 0.0], [1.0, 2.0]])).dtype
dtype('int8')
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from flwr_flynn.errors import DataError
from flwr_flynn.hashing.compiling import first_call
from flwr_flynn.hashing.philox import draw_waves

Floats = npt.NDArray[np.float64]

_LARGEST = 1e300  # far enough below what float64 holds for any rounding on the way


class Waves:
    """The waves of a specification.

    Parameters
    ----------
    seed : int
    n_waves : int
    frequency : float
        f of the module's description.
    center, scale : (d,) float64 arrays, or None
    n_features : int
        d.
    """

    def __init__(
        self, seed: int, n_waves: int, frequency: float, center: Floats | None, scale: Floats | None, n_features: int
    ) -> None:
        self.n_waves = n_waves
        self._frequency = frequency
        self._center = np.zeros(n_features) if center is None else center
        self._scale = np.ones(n_features) if scale is None else scale
        with first_call("draw waves"):
            self._slopes, self._phases = draw_waves(np.uint64(seed), n_waves, n_features)

    def fits(self, X: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which points have projections well within float64, each by its own values alone.

        Parameters
        ----------
        X : (n, d) array
            Finite.
        """
        with np.errstate(over="ignore"):
            sizes = np.abs((np.asarray(X, np.float64) - self._center) * self._scale).sum(axis=1)
            reach = sizes * (np.abs(self._slopes).max(initial=1.0) * max(1.0, self._frequency))
        return np.asarray(reach < _LARGEST)

    def __call__(self, X: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """The waves of points.

        Parameters
        ----------
        X : (n, d) array
            Finite, of any real dtype.

        Returns
        -------
        (n, n_waves) int8 array

        Raises
        ------
        DataError
            A projection overflows float64.
        """
        out = np.empty((len(X), self.n_waves), np.int8)
        with first_call("waves"):
            finite = _waves(
                np.ascontiguousarray(X, np.float64),
                self._center,
                self._scale,
                self._slopes,
                self._phases,
                self._frequency,
                out,
            )
        if not finite:
            raise DataError("X: values too large for the waves; rescale the columns")
        return out


@njit(nogil=True, cache=True)
def _waves(X, center, scale, slopes, phases, frequency, out):  # type: ignore[no-untyped-def]
    """Write the waves of each point; whether all projections were finite."""
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
