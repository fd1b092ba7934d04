"""
Few features: waves before the hash
===================================

A hash sees the direction of a sample, not its length. In two dimensions that is little: all samples on a ray from the
centre look the same. Wave features, triangle waves along random directions, mend it. The classifier tries them by
itself; here they are all that differs between two hashes.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier, HashSpec
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *make_moons(1000, noise=0.2, random_state=0), test_size=0.5, random_state=0
)
grid = np.stack(np.meshgrid(np.linspace(-1.8, 2.8, 120), np.linspace(-1.3, 1.8, 120)), axis=-1)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
center = X.mean(axis=0)
for axis, waves in zip(axes, (0, 64), strict=True):
    spec = HashSpec.suggest(
        2,
        signed=True,
        center=center,
        n_waves=waves,
        wave_frequency=0.3 if waves else 0.0,
    )
    model = FlyNNClassifier(spec).fit(X, y)
    surface = model.predict_proba(grid.reshape(-1, 2))[:, 1].reshape(120, 120)
    axis.contourf(
        grid[..., 0],
        grid[..., 1],
        surface,
        levels=np.linspace(0, 1, 11),
        cmap="RdBu",
        alpha=0.8,
    )
    axis.scatter(*X_test.T, c=y_test, cmap="RdBu", s=14, edgecolors="white", linewidths=0.4)
    axis.set_title(f"{waves} waves: accuracy {model.score(X_test, y_test):.3f}")
plt.show()
