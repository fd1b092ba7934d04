"""Models that tell what a federation is worth to one of its sites.

One is the model without the site, as its counts can be taken out of the sum: tried on
the site's samples it tells how good the model is at a site that was not in it. The
other is what the site makes alone of its own samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flwr_flynn._types import Array, Integers, Matrix
from flwr_flynn.errors import FlyNNError
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.model.counts import memory_needed
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.model import Model
from flwr_flynn.model.portable import content_shares
from flwr_flynn.model.prior import ClassWeight, counted_prior
from flwr_flynn.model.scoring import Scores

MOST_TRIED = 20_000
"""Samples of a site, at most, on which the model without it is tried, and from which it
makes a model alone."""


def chosen_rows(X: Matrix, most: int = MOST_TRIED) -> Integers:
    """Indices of `most` samples, (n, d), at most, chosen by their content."""
    if X.shape[0] <= most:
        return np.arange(X.shape[0])
    return np.sort(np.argsort(content_shares(X), kind="stable")[:most])


def model_without(
    model: Model, own: CountsOfSpecs, total: CountsOfSpecs, class_weight: ClassWeight
) -> Model | None:
    """The model without what a site counted; None where none follows.

    It is of counts and linear part alone, without a forest. Edges of the columns, the
    choice of hashes, decays, weights, temperatures and intercepts stay those of all.

    Parameters
    ----------
    model : Model
    own, total : CountsOfSpecs
        Counts of the site, and of all, by the hash of each member; with the sums of a
        linear part where the model has one.
    class_weight : "balanced", optional
    """
    try:
        rest = total - own
    except FlyNNError:  # the site is not in the sum, or its samples have changed
        return None
    linear = model.linear
    # A site without samples takes nothing out.
    if linear is not None and not own.parts[0].empty_classes.all():
        sums = rest.linear
        if sums is None or sums.fewest < sums.least or sums.scoring is None:
            return None
        linear = sums.scoring
    if rest.parts[0].empty_classes.all():
        return None
    members = [
        replace(member, counts=counts)
        for member, counts in zip(model.members, rest.parts, strict=True)
    ]
    return replace(
        model,
        members=tuple(members),
        prior=counted_prior(rest.parts[0], class_weight),
        linear=linear,
        forest=None,
    )


_N_HASHES = 5  # that a fit compares, at most


def memory_of_site(X: Matrix, n_classes: int) -> int:
    """Estimate the memory of what a site makes alone, in bytes, samples not included."""
    (spec,) = HashPlan(X.shape[1], n_classes, X.shape[0]).specs()
    return _N_HASHES * memory_needed(spec, n_classes)


class SiteClassifier:
    """Classifier that a site makes of its own samples alone.

    Parameters
    ----------
    X : (n, d) array-like
    codes : (n,) int array
        Class indices.
    model : Model
        That of the federation, for its rule and effort; all else is by default.
    class_weight : "balanced", optional
    n_jobs : int, optional
    """

    def __init__(
        self,
        X: Matrix,
        codes: Integers,
        model: Model,
        class_weight: str | None,
        n_jobs: int | None,
    ) -> None:
        # The classifier is made of what these modules have.
        from flwr_flynn.model.classifier import FlyNNClassifier

        effort = "default"
        n_trees = 0
        if model.calibration is None:
            effort = "quick"
        elif model.forest is not None:
            effort = "thorough"
            n_trees = model.forest.trees.n_trees
        rows = chosen_rows(X)
        self.n_classes = len(model.classes)
        self.classifier = FlyNNClassifier(
            rule=model.members[0].scoring.rule,
            effort=effort,
            trees=n_trees,
            class_weight=class_weight,
            n_jobs=n_jobs,
        )
        self.classifier.fit(X[rows], codes[rows])

    def probabilities(self, X: Matrix) -> Scores:
        """Probabilities of the classes, (n, L); a class without samples gets 0."""
        own: Array = self.classifier.predict_proba(X)
        every = np.zeros((len(own), self.n_classes))
        every[:, self.classifier.classes_] = own
        return every
