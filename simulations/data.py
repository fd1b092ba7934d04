"""The data sets of all experiments on pooled samples: one record, one loader, and the
folds.

>>> iris = folded("iris", *BUNDLED["iris"](), folds=3)
>>> len(iris.y), iris.n_classes, iris.sizes
(150, 3, [(100, 50), (100, 50), (100, 50)])
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn import datasets
from sklearn.model_selection import StratifiedKFold

from flwr_flynn import FlyHash, HashSpec
from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import coded_labels
from flwr_flynn.errors import DataError
from simulations.results import Array


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples with their classes, and which of them are held out.

    Parameters
    ----------
    name : str
    X : (n, d) array
    y : (n,) int64 array
        Class numbers, 0 to L - 1, all of which occur.
    fold : (n,) int array
        The fold in which each sample is held out, -1 if it never is.
    """

    name: str
    X: Array
    y: Array
    fold: Array

    @property
    def n_classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def splits(self) -> Iterator[tuple[Array, Array]]:
        """Training and held-out indices, fold by fold."""
        for number in np.unique(self.fold[self.fold >= 0]):
            yield (
                np.flatnonzero(self.fold != number),
                np.flatnonzero(self.fold == number),
            )

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Numbers of training and held-out samples, fold by fold."""
        return [(len(train), len(test)) for train, test in self.splits]

    @property
    def shape(self) -> dict[str, Any]:
        """Name and sizes, for a table."""
        return {
            "set": self.name,
            "n": len(self.X),
            "d": self.X.shape[1],
            "classes": self.n_classes,
        }

    @cached_property
    def digest(self) -> str:
        """Digest of samples, classes and folds."""
        return str(joblib.hash((self.X, self.y, self.fold)))


# ---- samples


def load(source: str | Path) -> tuple[Array, Array, int]:
    """Samples and class numbers, and how many of the last ones are the official test
    split.

    Parameters
    ----------
    source : str or Path
        "digits", "openml:ID", or a file with X and y; X_test and y_test of an .npz file
        come behind them.

    Raises
    ------
    DataError
        The source is no classification problem, or cannot be reached.
    """
    if str(source).startswith("openml:"):
        return _openml(str(source))
    data = load_dataset(str(source))
    if not isinstance(data.X, np.ndarray):
        raise DataError(data.name, "a table of numbers without gaps", "texts or gaps")
    if Path(source).suffix != ".npz":
        return data.X, data.y, 0
    with np.load(source) as file:
        if "X_test" not in file and "y_test" not in file:
            return data.X, data.y, 0
        try:
            X_test = file["X_test"]
            y_test = file["y_test"]
            codes = {c: i for i, c in enumerate(data.classes)}
            X = np.concatenate([data.X, X_test])
            y = [*data.y, *(codes[label] for label in y_test.tolist())]
        except (KeyError, ValueError, TypeError):
            expected = "X_test and y_test with the features and classes of X and y"
            raise DataError(Path(source).name, expected, "others") from None
    return X, np.array(y), len(y_test)


def _openml(source: str) -> tuple[Array, Array, int]:
    """A data set of openml.org, from there or as a run with a network left it."""
    try:
        number = int(source.removeprefix("openml:"))
        fetched = datasets.fetch_openml(
            data_id=number, as_frame=False, parser="liac-arff", n_retries=1, delay=1.0
        )
        if hasattr(fetched.data, "toarray"):
            X = fetched.data.toarray()
        else:
            X = fetched.data.astype(np.float64)
        _, y = coded_labels(fetched.target, source)
    except OSError as error:  # URLError and every other failure of the network
        expected = (
            "openml.org within reach, or what a run with a network left in "
            f"{datasets.get_data_home()}"
        )
        raise DataError(source, expected, type(error).__name__) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            source,
            "a classification that scikit-learn reads",
            f"{type(error).__name__}: {error}",
        ) from None
    if not np.isfinite(X).all():
        raise DataError(source, "a table of numbers without gaps", "gaps")
    return X, y, 0


def real(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """The paper's synthetic data in R^d: five classes of three clusters each around
    corners of a hypercube.

    All columns are informative and no label is wrong (paper, "Synthetic data
    description"). What the paper leaves open is as in the authors' programs: corners
    are 1.2 from the middle in each direction.
    """
    kinds = {
        "n_informative": d,
        "n_redundant": 0,
        "n_classes": 5,
        "n_clusters_per_class": 3,
        "class_sep": 1.2,
    }
    X, y = datasets.make_classification(n, d, random_state=seed, **kinds)
    return X, y


def binary(n: int, d: int, ones: int, seed: int) -> tuple[Array, Array]:
    """The paper's synthetic data of d bits, `ones` of them 1: a fly hash of `real` data
    of d / 10 columns.
    """
    X, y = real(n, d // 10, seed)
    bits = np.zeros((n, d), np.uint8)
    np.put_along_axis(
        bits,
        FlyHash(HashSpec(d // 10, d, d // 20, ones, seed=seed)).active(X),
        1,
        axis=1,
    )
    return bits, y


Reader = Callable[[], Sequence[Any]]
"""Reads samples and labels; more may follow, which is not used."""


BUNDLED: dict[str, Reader] = {
    "digits": partial(load, "digits"),
    **{
        name: partial(getattr(datasets, f"load_{name}"), return_X_y=True)
        for name in ("iris", "wine", "breast_cancer")
    },
    "moons": partial(datasets.make_moons, 1000, noise=0.2, random_state=0),
    "circles": partial(
        datasets.make_circles, 1000, noise=0.1, factor=0.5, random_state=0
    ),
    "synthetic": partial(real, 1000, 50, seed=0),
    "synthetic_binary": partial(binary, 1000, 50, 20, seed=0),
}
"""Sets that need no files: scikit-learn's small sets, two in the plane, and synthetic
ones as in the paper."""


def paths(folder: Path | None) -> dict[str, Path]:
    """The .npz files of a folder, by name; none without a folder."""
    if folder is None:
        return {}
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def files(folder: Path | None) -> dict[str, Reader]:
    """Readers of the .npz files of a folder, by name; without a folder those of the
    bundled sets.
    """
    readers: dict[str, Reader] = {
        stem: partial(load, path) for stem, path in paths(folder).items()
    }
    if folder is not None and not readers:
        raise DataError("--data", ".npz files", f"none in {folder}")
    return readers or BUNDLED


# ---- folds


def drawn(codes: Array, n: int, generator: np.random.Generator) -> Array:
    """Indices of a stratified subsample of n samples, ascending: at least two of each
    class if there is room.
    """
    order = generator.permutation(len(codes))
    sizes = np.bincount(codes)
    rank = np.empty(len(codes))  # of each sample within its class, in the order drawn
    for label in range(len(sizes)):
        rank[order[codes[order] == label]] = np.arange(sizes[label])
    keep = np.where(rank < 2, 0.0, (rank + 0.5) / sizes[codes])
    return np.sort(order[np.argsort(keep[order], kind="stable")[:n]])


def folded(
    name: str,
    X: Array,
    y: Array,
    *_: Any,
    folds: int = 10,
    seed: int = 0,
    most: int = 0,
) -> DataSet:
    """A data set with its stratified folds; with more than `most` samples (0: any) a
    stratified subsample of it.

    Raises
    ------
    DataError
        Fewer than two classes with two samples each, or no class with a sample for each
        fold.
    """
    codes = np.unique(y, return_inverse=True)[1]
    if most and len(X) > most:
        rows = drawn(codes, most, np.random.default_rng(seed))
        X = X[rows]
        codes = np.unique(codes[rows], return_inverse=True)[1]
    codes = codes.astype(np.int64)
    fold = np.zeros(len(X), np.int64)
    sizes = np.bincount(codes)
    if (sizes > 1).sum() < 2 or sizes.max() < folds:
        expected = (
            f"for {folds} folds two classes with two samples each, and one "
            f"with {folds} samples"
        )
        raise DataError(name, expected, f"{len(codes)} samples in {len(sizes)} classes")
    with warnings.catch_warnings():
        # Rare classes are absent from some folds; their recall is then averaged over
        # fewer.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(X, codes)
        for number, (_, test) in enumerate(splits):
            fold[test] = number
    return DataSet(name, X, codes, fold)


def data_sets(
    known: Mapping[str, Reader], names: Sequence[str], **how: Any
) -> list[DataSet]:
    """Several data sets with their folds, all read before work on the first begins;
    `how` is as for `folded`.
    """
    return [folded(name, *known[name](), **how) for name in names]
