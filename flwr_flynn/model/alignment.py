"""Alignment of a party's columns to those of the federation, where its instruments have a gain and an offset.

The party compares centres and deviations of its columns with those that the federation's classes would have at the
party's own class frequencies: so parties that differ in nothing but how often classes occur are not aligned. Shrinkage
after James & Stein (1961) makes an alignment that could be chance a small one, and below a threshold there is none. A
sample is then aligned by what the party learned from its training samples, without a look at its class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from flwr_flynn.errors import DataError
from flwr_flynn.model.column_cells import floor_of
from flwr_flynn.model.column_histograms import ColumnHistograms

Floats = npt.NDArray[np.float64]

_LEAST = 10  # samples from which a party is aligned: each is a tenth of what it is aligned by
_THRESHOLD = (3.0, 8.0)  # of the mean squared z-score, which is 1 by chance; the latter over the number of columns


@dataclass(frozen=True)
class Reference:
    """Sizes of the classes of a federation, and centre and deviation of each column in each class.

    Parameters
    ----------
    n_classes, n_features : int
    data : bytes
        L sizes as int64, then (2, L, d) float64, the centres first and 0 for classes without samples; little-endian.

    Raises
    ------
    DataError
        The data are of another size, or not as described.
    """

    n_classes: int
    n_features: int
    data: bytes

    def __post_init__(self) -> None:
        needed = 8 * self.n_classes * (1 + 2 * self.n_features)
        if not isinstance(self.data, bytes) or len(self.data) != needed:
            got = len(self.data) if isinstance(self.data, bytes) else type(self.data).__name__
            raise DataError("reference", f"{needed} bytes", got)
        if (self.sizes < 0).any() or not np.isfinite(self.arrays).all() or (self.arrays[1] < 0).any():
            raise DataError("reference", "sizes from 0, finite centres, and deviations from 0", "others")

    @classmethod
    def of(cls, columns: ColumnHistograms) -> Reference:
        """Reference of the histograms of all parties together."""
        found = np.zeros((2, len(columns.n_per_class), columns.n_features))
        for label in np.flatnonzero(columns.n_per_class > 0):
            found[:, label] = columns.of_classes(np.array([label])).center_and_deviation()
        sizes = columns.n_per_class.astype("<i8").tobytes()
        return cls(len(columns.n_per_class), columns.n_features, sizes + found.astype("<f8").tobytes())

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Samples of each class, (L,)."""
        return np.frombuffer(self.data, "<i8", self.n_classes)

    @property
    def arrays(self) -> Floats:
        """Centres and standard deviations, (2, L, d)."""
        return np.frombuffer(self.data, "<f8", -1, 8 * self.n_classes).reshape(2, self.n_classes, self.n_features)

    def alignment(self, X: Any, y: npt.NDArray[np.int64], min_examples: int = 1) -> Alignment | None:
        """Alignment of a party with these training samples, (n, d), and class indices; None where none is called for.

        Party and federation are compared on the classes that both have, less those of fewer samples at the party than
        `min_examples`: of these the aligned samples would tell mean and deviation. The mean squared z-score of the
        columns, T, decides: below 3 + 8 / d, as with fewer than 10 samples, there is no alignment. Otherwise the means
        move by 1 - 1 / T of the way to those of the federation; the gain likewise by the mean squared z-score of the
        deviations. Columns that do not vary stay as they are.
        """
        means, deviations = self.arrays
        n_per_class = np.bincount(y, minlength=self.n_classes)
        is_shared = (n_per_class >= floor_of(min_examples)) & (n_per_class > 0) & (self.sizes > 0)
        shared, n = np.flatnonzero(is_shared), int(n_per_class[is_shared].sum())
        if n < _LEAST:
            return None
        X, y, shares = X[is_shared[y]], y[is_shared[y]], n_per_class / n
        # A party moves by what its floor lets it tell, so aligned columns disclose no more of the values than columns
        # as they are; whether it is another instrument is judged by the deviation that a floor has not made smaller.
        own = {  # counted once where there is no floor
            least: Reference.of(ColumnHistograms.from_data(X, y, self.n_classes, least)).arrays[:, shared]
            for least in {min_examples, 1}
        }
        error = np.zeros(self.n_features)
        with np.errstate(all="ignore"):
            mean, own_within, own_between = _pooled(shares[shared], *own[min_examples])
            _, exact_within, _ = _pooled(shares[shared], *own[1])
            wanted, within, between = _pooled(shares[shared], means[shared], deviations[shared])
            for label in shared:
                share = shares[label]  # of which a power would be the C library's, with roundings of its own
                error += share * share / self.sizes[label] * deviations[label] ** 2
            deviation = np.sqrt(own_within + own_between)
            squares, judged = (
                (wanted - mean) ** 2 / (np.maximum(within, each) / n + error) for each in (own_within, exact_within)
            )
            ratios = np.sqrt(within + between) / deviation
            varies = (deviation > 1e-12 * np.abs(mean)) & np.isfinite(squares + judged + ratios) & (ratios > 0)
            d = int(varies.sum())
            if not d or math.fsum(judged[varies]) / d < _THRESHOLD[0] + _THRESHOLD[1] / d:
                return None
            shift = max(1.0, math.fsum(squares[varies]) / d)
            stretch = math.fsum(2 * n * (ratios[varies] - 1) ** 2) / d
            gain = np.where(varies, 1 + max(0.0, 1 - 1 / max(stretch, 1.0)) * (ratios - 1), 1.0)
            offset = np.where(varies, mean + (1 - 1 / shift) * (wanted - mean) - gain * mean, 0.0)
        return Alignment(gain, offset) if np.isfinite(gain).all() and np.isfinite(offset).all() else None


@dataclass(frozen=True, eq=False)
class Alignment:
    """Gain and offset of each column, (d,) finite floats each; read-only. A `DataError` refuses others."""

    gain: Floats
    offset: Floats

    def __post_init__(self) -> None:
        for name in ("gain", "offset"):
            array = np.array(getattr(self, name))
            if array.dtype != np.float64 or array.ndim != 1 or array.shape != np.shape(self.gain):
                raise DataError("alignment", "gain and offset, (d,) float64 each", f"{array.dtype} {array.shape}")
            if not np.isfinite(array).all():
                raise DataError("alignment", "finite numbers", "NaN or infinity")
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def applied(self, X: Any) -> Floats:
        """Aligned samples, (n, d) float64, dense, from dense or sparse ones; a `DataError` where they overflow."""
        dense = X.toarray() if sp.issparse(X) else np.asarray(X)
        with np.errstate(over="ignore", invalid="ignore"):
            aligned: Floats = dense * self.gain
            aligned += self.offset
        if np.isinf(aligned).any() or np.isnan(aligned).sum() > np.isnan(dense).sum():
            raise DataError("X", "finite values that can be aligned", "others")
        return aligned


def _pooled(shares: Floats, means: Floats, deviations: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean of each column over some classes, and its variances within and between these, (d,) each.

    One class after the other: the order of NumPy's sums is not the same everywhere.
    """
    mean, within, between = np.zeros((3, means.shape[1]))
    for share, each, deviation in zip(shares, means, deviations, strict=True):
        mean += share * each
        within += share * deviation**2
    for share, each in zip(shares, means, strict=True):
        between += share * (each - mean) ** 2
    return mean, within, between
