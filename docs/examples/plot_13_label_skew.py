"""
What a party gains where it lacks classes
=========================================

Ten parties hold two digits each. Alone, a party knows nothing of the other eight. With the summed counts every party
classifies all ten digits, without another round and without its samples leaving it.
"""

from functools import reduce
from operator import add

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier, HashSpec
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *load_digits(return_X_y=True), test_size=0.4, random_state=0
)
party = (
    y + np.random.default_rng(0).integers(0, 2, len(y))
) % 10  # party i holds the digits i - 1 and i
spec = HashSpec.suggest(n_features=64, n_examples=len(X), n_classes=10, seed=7)
hasher = FlyHash(spec)
parts = [
    ClassCounts.from_data(hasher, X[party == i], y[party == i], n_classes=10) for i in range(10)
]

alone = [FlyNNClassifier.from_counts(spec, part, range(10)) for part in parts]
together = FlyNNClassifier.from_counts(spec, reduce(add, parts), range(10))
print(
    f"party 3 alone: {alone[3].score(X_test, y_test):.3f}; together: {together.score(X_test, y_test):.3f}"
)

# %%
# Confusion matrices over all ten digits: a party alone, and the federated model.

figure, axes = plt.subplots(1, 2, figsize=(8, 4), sharey=True, layout="constrained")
for axis, model, title in zip(
    axes, (alone[3], together), ("party 3 alone", "all parties together"), strict=True
):
    axis.imshow(
        confusion_matrix(y_test, model.predict(X_test), normalize="true"),
        cmap="Blues",
        vmin=0,
        vmax=1,
    )
    axis.set(title=title, xlabel="predicted digit", xticks=range(10), yticks=range(10))
axes[0].set_ylabel("true digit")
plt.show()
