"""Data, hashes and figures of the paper for `python -m simulations privacy`; figures
are read off the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import joblib
import numpy as np

from flwr_flynn import HashSpec
from flwr_flynn.errors import DataError
from flwr_flynn.privacy import suggest_spec
from simulations.data import load, paths
from simulations.results import Array
from simulations.scattering import scattered

PARTIES = 2
DELTA = 1e-5  # of `GaussianCounts`; all others promise pure epsilon
PAPER_DECAY = 0.9
SHOWN = (0.25, 0.5, 1.0, 2.0)  # epsilons of the printed table
_SEED = 5489  # of the data and of their split, as in the authors' programs


@dataclass(frozen=True)
class Plan:
    """Settings that the results depend on.

    Parameters
    ----------
    repetitions : int
        Draws of noise; the hash stays.
    epsilons : tuple of float
    released : tuple of int
        The T that the paper's mechanism tries.
    noise : {"simulated", "opendp"}
    seed : int
        Seed of hashes and simulated noise.
    """

    repetitions: int = 10
    epsilons: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    released: tuple[int, ...] = (4, 8, 16, 32, *range(50, 601, 50))
    noise: str = "simulated"
    seed: int = 0


QUICK = Plan(repetitions=3, epsilons=SHOWN, released=(4, 16, 50, 200, 600))


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test samples of one data set.

    Parameters
    ----------
    name : str
    X, y, X_test, y_test : array
        Labels are class numbers, 0 to n_classes - 1.
    sizes : tuple of (m, s, rho)
        The paper's hyper-parameters for these data.
    """

    name: str
    X: Array
    y: Array
    X_test: Array
    y_test: Array
    sizes: tuple[tuple[int, int, int], ...]
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "digest", joblib.hash((self.X, self.y, self.X_test, self.y_test))
        )

    @property
    def n_classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def parties(self) -> list[tuple[Array, Array]]:
        """The training samples, in halves."""
        cuts = np.linspace(0, len(self.X), PARTIES + 1).astype(int)
        return [(self.X[a:b], self.y[a:b]) for a, b in pairwise(cuts)]

    def paper_specs(self, seed: int) -> list[HashSpec]:
        """The paper's hashes."""
        return [
            HashSpec(self.X.shape[1], m, s, rho, seed=seed) for m, s, rho in self.sizes
        ]

    def spec(self, epsilon: float | None, delta: float, seed: int) -> HashSpec:
        """The hash that the package suggests, from public figures alone; without noise
        where epsilon is None.
        """
        d = self.X.shape[1]
        n = len(self.X)
        n_classes = self.n_classes
        if epsilon is None:
            return HashSpec.suggest(d, n, n_classes, seed=seed)
        return suggest_spec(epsilon, delta, d, n, n_classes, PARTIES, seed=seed)


def synthetic(n: int) -> Task:
    """The paper's synthetic data: 30 columns, two classes of five clusters, and as many
    clusters in a hypercube.

    Notes
    -----
    The paper names columns, classes and clusters; the rest (all columns informative,
    `class_sep` 1.2, the seed, 5000 held-out samples drawn by class) is as in the
    authors' programs. The paper speaks of 1000 held-out samples.
    """
    from sklearn.datasets import make_classification
    from sklearn.model_selection import train_test_split

    X, y = make_classification(
        n + 5000,
        30,
        n_informative=30,
        n_redundant=0,
        n_classes=2,
        n_clusters_per_class=5,
        class_sep=1.2,
        random_state=_SEED,
    )
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=5000, random_state=_SEED, stratify=y
    )
    sizes = tuple((m, 3, rho) for m in (300, 600) for rho in (15, 30))
    name = f"synthetic n=1e{len(str(n)) - 1}"
    return Task(
        name,
        X.astype(np.float32),
        y.astype(np.int64),
        X_test.astype(np.float32),
        y_test,
        sizes,
    )


def mnist(path: Path, digits: tuple[int, ...]) -> Task:
    """Samples of some digits, official training and test set.

    Raises
    ------
    DataError
        Not an .npz file with these digits in X, y, X_test and y_test.
    """
    X, y, n_test = load(path)
    kept = np.isin(y, digits)
    is_test = np.arange(len(y)) >= len(y) - n_test
    if not (kept & is_test).any() or len(np.unique(y[kept & ~is_test])) < len(digits):
        raise DataError(
            path.name, f"training and test samples of the digits {digits}", "others"
        )
    codes = np.searchsorted(digits, y)
    d = X.shape[1]
    name = "MNIST 10 classes"
    if len(digits) != 10:
        name = f"MNIST {' v '.join(map(str, digits))}"
    X, y, X_test, y_test = (
        array[kept & side] for side in (~is_test, is_test) for array in (X, codes)
    )
    # m = 30 d, s = .00625 d, rho = .1 m.
    sizes = ((30 * d, max(round(0.00625 * d), 1), 3 * d),)
    return Task(name, X, y, X_test, y_test, sizes)


def behind_scattering(path: Path, name: str) -> Task:
    """Images behind their scattering coefficients, which are public: no hash of the
    paper's for these.
    """
    raw = mnist(path, tuple(range(10)))
    X, X_test = (scattered(images, (28, 28)) for images in (raw.X, raw.X_test))
    return Task(name, X, raw.y, X_test, raw.y_test, ())


def readers(folder: Path | None, quick: bool) -> dict[str, Callable[[], Task]]:
    """Readers of the data sets, by the name on the command line."""
    path, fashion = (
        paths(folder).get(name, Path("/nowhere")) for name in ("mnist", "fashion_mnist")
    )
    if not path.exists():
        print(
            "MNIST is left out: there is no mnist.npz in a folder --data",
            file=sys.stderr,
        )
    found = {
        "synthetic-1e4": partial(synthetic, 10**4),
        "synthetic-1e5": partial(synthetic, 10**5),
        "mnist-3v8": partial(mnist, path, (3, 8)),
        "mnist": partial(mnist, path, tuple(range(10))),
        "mnist-scattering": partial(behind_scattering, path, "MNIST, scattering"),
        "fashion_mnist-scattering": partial(
            behind_scattering, fashion, "Fashion, scattering"
        ),
    }
    wanted = tuple(found)
    if quick:
        wanted = ("synthetic-1e4", "mnist-3v8")
    return {
        name: found[name]
        for name in wanted
        if name.startswith("synthetic") or found[name].args[0].exists()
    }


def label(task: Task, spec: HashSpec) -> str:
    """Name of a data set with one of the paper's hashes."""
    return f"{task.name}, m={spec.hash_dim}, rho={spec.hash_nnz}"


READ_OFF: dict[str, dict[float | None, float]] = {
    "synthetic n=1e4, m=300, rho=30": {
        0.25: 0.57,
        0.5: 0.59,
        1.0: 0.61,
        2.0: 0.64,
        None: 0.69,
    },
    "synthetic n=1e5, m=300, rho=30": {
        0.25: 0.65,
        0.5: 0.67,
        1.0: 0.70,
        2.0: 0.715,
        None: 0.72,
    },
    "MNIST 3 v 8, m=23520, rho=2352": {
        0.25: 0.74,
        0.5: 0.76,
        1.0: 0.77,
        2.0: 0.79,
        None: 0.86,
    },
}
"""The paper's Figures 8 and 9, to about .01; None stands for no privacy."""
