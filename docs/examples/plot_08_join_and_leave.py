"""
Parties join, and leave
=======================

Models of different parties merge by addition, and what a party added can be taken out again. After it has left, the
counts are those of a model that never saw it, entry for entry. The curve shows the accuracy while six parties join, and
while three of them leave. In the end one of the others has a single sample forgotten.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier, HashSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *load_digits(return_X_y=True), test_size=0.4, random_state=0
)
party = np.minimum(
    y // 2 + np.random.default_rng(0).integers(0, 2, len(y)), 5
)  # each party knows two to four digits
spec = HashSpec.suggest(n_features=64, n_examples=len(X), n_classes=10, seed=3)


def model_of(i):
    """The model of one party, by the hash that all share."""
    return FlyNNClassifier(spec).partial_fit(X[party == i], y[party == i], classes=range(10))


federated, steps, after_joining = model_of(0), ["+0"], {}
accuracies = [federated.score(X_test, y_test)]
for i in range(1, 6):
    federated.merge(model_of(i))
    steps.append(f"+{i}")
    accuracies.append(federated.score(X_test, y_test))
    after_joining[i] = federated.counts_
for i in (5, 4, 3):
    federated.forget(X[party == i], y[party == i])
    steps.append(f"-{i}")
    accuracies.append(federated.score(X_test, y_test))
    assert federated.counts_ == after_joining[i - 1]
print("with 3 parties left, the counts are", federated.counts_.sha256()[:16])
print("before the others came, they were  ", after_joining[2].sha256()[:16])

# %%
# The accuracy falls as digits are lost that only those parties knew.

figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
axis.plot(accuracies, "o-")
axis.axvline(5.5, color="grey", linestyle=":")
axis.set_xticks(range(len(steps)), steps)
axis.set(
    xlabel="party that joins (+) or leaves (-)", ylabel="accuracy, all ten digits", ylim=(0, 1)
)
plt.show()

# %%
# A party that stays has one sample forgotten. The counts are those of a model that never had it: their SHA-256 is the
# same. In a federation of parties ``action="update"`` does this, see *Forget, correct and add samples*.

stay = np.flatnonzero(party < 3)
federated.forget(X[stay[:1]], y[stay[:1]])
never = FlyNNClassifier(spec).partial_fit(X[stay[1:]], y[stay[1:]], classes=range(10))
print("without the sample, the counts are", federated.counts_.sha256()[:16])
print("of a model that never had it      ", never.counts_.sha256()[:16])
assert federated.counts_ == never.counts_

# %%
# The linear part of ``fit`` is changed alike: the sample's products are taken out, and the regression is solved again.

model = FlyNNClassifier(hash_dim=256, max_members=1).fit(X[stay], y[stay])
before = model.model_.linear.sha256()
model.forget(X[stay[:1]], y[stay[:1]])
print("the regression has changed:", model.model_.linear.sha256() != before)
model.partial_fit(X[stay[:1]], y[stay[:1]])
print("and is back with the sample:", model.model_.linear.sha256() == before)
