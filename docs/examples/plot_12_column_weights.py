"""
The weights of columns
======================

With ``scaling="weighted"`` each column is standardised and multiplied by a weight that is large where the column tells
the classes apart. The weights follow from sums and sums of squares of each class, which add up over parties exactly.
Here half of the columns are noise, and the weights find that out.
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

models = {
    scaling: FlyNNClassifier(scaling=scaling, waves=False).fit(X, y)
    for scaling in ("standard", "weighted")
}
for scaling, model in models.items():
    print(f"{scaling}: accuracy {model.score(X_test, y_test):.3f}")

# %%
# The scale of a spec is one over the standard deviation, times the weight. Dividing the two leaves the weights.

weights = np.array(models["weighted"].spec_.scale) / np.array(models["standard"].spec_.scale)
figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
order = np.argsort(weights)
axis.barh(
    [names[i] for i in order],
    weights[order],
    color=["C1" if "noise" in names[i] else "C0" for i in order],
)
axis.tick_params(axis="y", labelsize=7)
axis.set(xlabel="weight", title="Wine: 13 measured columns (blue), 13 of noise (orange)")
plt.show()
