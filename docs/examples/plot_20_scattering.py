"""
Images: scattering coefficients before the hash
===============================================

A hash compares pixels place by place, so a digit that is moved by a pixel looks like another one. Scattering
coefficients are averaged moduli of wavelet filters: nothing in them is learned, so every party computes them of its own
images before the run, and they cost no privacy. The function is in ``simulations/scattering.py`` of the repository,
from whose folder this example runs.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from simulations.scattering import scattered
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIDE = 12
generator = np.random.default_rng(0)
digits, y = load_digits(return_X_y=True)
digits = (digits * 15).astype(np.uint8).reshape(-1, 8, 8)


def moved(most):
    """The digits on a larger sheet, each moved by up to so many pixels both ways."""
    sheets = np.zeros((len(digits), SIDE, SIDE), np.uint8)
    for sheet, digit, (row, column) in zip(
        sheets, digits, generator.integers(2 - most, 3 + most, (len(digits), 2)), strict=True
    ):
        sheet[row : row + 8, column : column + 8] = digit
    return sheets.reshape(len(digits), -1)


X = moved(1)
Z = scattered(X, (SIDE, SIDE))
print(f"{X.shape[1]} pixels become {Z.shape[1]} coefficients")

# %%
# The first map is the image itself, blurred; the others are its edges in eight directions, and edges of edges.

figure, axes = plt.subplots(1, 8, figsize=(9, 1.8), layout="constrained")
axes[0].imshow(X[0].reshape(SIDE, SIDE), cmap="magma")
axes[0].set_title("pixels")
for axis, number in zip(axes[1:], range(0, 63, 9), strict=True):
    axis.imshow(Z[0].reshape(-1, 3, 3)[number], cmap="magma")
    axis.set_title(f"map {number}")
for axis in axes:
    axis.set_axis_off()
plt.show()

# %%
# The farther the digits are moved, the more the coefficients help.


def accuracy(X):
    """Accuracy on a quarter of the samples."""
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    return FlyNNClassifier().fit(X_train, y_train).score(X_test, y_test)


figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, features in (("pixels", None), ("scattering coefficients", (SIDE, SIDE))):
    sets = [
        moved(most) if features is None else scattered(moved(most), features)
        for most in range(3)
    ]
    axis.plot(range(3), [accuracy(each) for each in sets], "o-", label=name)
axis.set(xlabel="pixels that a digit is moved by, at most", ylabel="accuracy", ylim=(0.7, 1))
axis.set_xticks(range(3))
axis.legend()
plt.show()
