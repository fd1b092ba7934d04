"""
Federated equals pooled, however the classes are spread
=======================================================

Six parties get shares of Digits by a Dirichlet partition. A small alpha gives each party few classes. Every party
counts its own samples, and the counts are added. The sum has the same SHA-256 as the counts of the pooled data, so the
model and its accuracy are the same for every split.
"""

from functools import reduce
from operator import add

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *load_digits(return_X_y=True), test_size=0.25, random_state=0
)
spec = HashSpec.suggest(n_features=64, n_examples=len(X), n_classes=10, seed=7)
hasher = FlyHash(spec)
pooled = ClassCounts.from_data(hasher, X, y, n_classes=10)


def dirichlet(alpha, n_parties=6):
    """The party of every sample: the shares of each class are drawn from a Dirichlet distribution."""
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.full(n_parties, alpha), size=10)
    return np.array([generator.choice(n_parties, p=shares[label]) for label in y])


# %%
# One row of bars for each party, one colour for each class.

figure, axes = plt.subplots(1, 3, figsize=(9, 3.6), sharey=True, layout="constrained")
for axis, alpha in zip(axes, (100, 1, 0.05), strict=True):
    party = dirichlet(alpha)
    parts = [
        ClassCounts.from_data(hasher, X[party == i], y[party == i], n_classes=10)
        for i in range(6)
    ]
    total = reduce(add, parts)
    assert total.sha256() == pooled.sha256()
    model = FlyNNClassifier.from_counts(spec, total, classes=range(10))
    sizes = np.array([part.n_per_class for part in parts])
    for label, start in enumerate(sizes.cumsum(axis=1).T - sizes.T):
        axis.barh(range(6), sizes[:, label], left=start, color=f"C{label}")
    accuracy = model.score(X_test, y_test)
    axis.set(
        title=f"alpha = {alpha}\naccuracy {accuracy:.3f}\nSHA-256 {total.sha256()[:8]}",
        xlabel="samples",
    )
axes[0].set_ylabel("party")
plt.show()
