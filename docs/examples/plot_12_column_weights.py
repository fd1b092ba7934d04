"""
The weights of columns
======================

Columns that tell the classes apart are drawn more often into the rows of a hash, and enter it with more weight. What a
column tells follows from its histogram in each class, and histograms add up over parties exactly. Here half of the
columns are noise, and the weights find that out.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

wine = load_wine()
noise = np.random.default_rng(0).normal(size=wine.data.shape)
X = np.hstack([wine.data, noise])
names = [*wine.feature_names, *(f"noise {i}" for i in range(noise.shape[1]))]
X, X_test, y, y_test = train_test_split(X, wine.target, test_size=0.5, random_state=0)

model = FlyNNClassifier(max_members=6).fit(X, y)
print(f"accuracy {model.score(X_test, y_test):.3f}")

# %%
# A hash of rank codes has the weights as integers, up to 255 for the column that tells most.

specs = [member.spec for member in model.model_.members]
weights = np.array(next(spec.row_weights for spec in specs if spec.row_weights))
figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
order = np.argsort(weights)
axis.barh(
    [names[i] for i in order],
    weights[order],
    color=["C1" if "noise" in names[i] else "C0" for i in order],
)
axis.tick_params(axis="y", labelsize=7)
axis.set(
    xlabel="weight of a column", title="Wine: 13 measured columns (blue), 13 of noise (orange)"
)
plt.show()
