"""Prior of one party: its own class frequencies beside a model that takes all classes for equally frequent.

If parties differ in nothing but how often classes occur, the posterior of a class at a party is in proportion to its
probability by the shared model times its frequency at the party. A party learns the frequencies from its own training
samples, and smooths them towards those of the federation. Nothing is sent for that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from flwr_flynn.hashing.batching import batches
from flwr_flynn.model.model import Model
from flwr_flynn.model.scoring import Scores

Table = npt.NDArray[np.int64]

_PART = 2**17  # scores worked on at a time


def log_frequencies(n_per_class: npt.ArrayLike, everyone: npt.ArrayLike) -> Scores:
    """Logarithms of the frequencies of a party's classes, (L,), from its class sizes and those of the federation.

    The m-estimate of Cestnik (1990), of a strength of L samples: as if the party had L more samples, as frequent as in
    the federation, and the federation one more of each class.
    """
    own, all_sizes = np.asarray(n_per_class, np.float64), np.asarray(everyone, np.float64) + 1
    sizes = own + len(own) * all_sizes / all_sizes.sum()
    logs: Scores = np.log(sizes / sizes.sum())
    return logs


def own_prior(model: Model, y: Table) -> Scores:
    """Log frequencies, (L,), of the classes of a party's samples with class indices, (n,).

    Beside noisy counts those of the federation are taken for equal.
    """
    counts, n_classes = model.members[0].counts, len(model.classes)
    everyone = np.zeros(n_classes) if counts.noise else counts.n_per_class
    return log_frequencies(np.bincount(y, minlength=n_classes), everyone)


def predicted(model: Model, scores: Scores) -> Table:
    """Class indices, (n,), by a model with its prior, if it has one, from the scores by its shared part."""
    best: Table = scores.argmax(axis=1)
    if model.prior is not None and len(best):
        best = np.concatenate([model.posterior(scores[part]).argmax(axis=1) for part in _parts(scores)])
    return best


def _parts(scores: Scores) -> Iterator[slice]:
    """Slices of at least one sample, so that work on them takes little memory."""
    return batches(len(scores), max(1, _PART // scores.shape[1]))
