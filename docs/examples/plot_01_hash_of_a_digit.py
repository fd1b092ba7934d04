"""
A digit and its hash
====================

The hash of a sample is the set of its active bits: the ``hash_nnz`` largest of ``hash_dim`` sums, each over a few
features that the seed picks. Similar images share many active bits, different images share few. The pictures show two
digits of each of three classes, and how many of 32 active bits every pair shares.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyHash, HashSpec
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
chosen = np.concatenate([np.flatnonzero(y == digit)[:2] for digit in (0, 1, 7)])

spec = HashSpec(n_features=64, hash_dim=4096, row_nnz=19, hash_nnz=32, seed=7)
active = FlyHash(spec).active(X[chosen])
print("active bits of the first image:", active[0, :8], "...")

# %%
# One row of bits for each image, and from these the number of bits that two images share.

bits = np.zeros((len(chosen), spec.hash_dim), dtype=int)
np.put_along_axis(bits, active.astype(np.int64), 1, axis=1)
shared = bits @ bits.T

figure = plt.figure(figsize=(8, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[1, 1.3])
for axis, index in zip(left.subplots(3, 2).flat, chosen, strict=True):
    axis.imshow(X[index].reshape(8, 8), cmap="gray_r")
    axis.set_axis_off()
axis = right.subplots()
axis.imshow(shared, cmap="Blues")
for i, j in np.ndindex(shared.shape):
    colour = "white" if shared[i, j] > 16 else "black"
    axis.text(j, i, shared[i, j], ha="center", va="center", color=colour)
labels = [f"digit {label}" for label in y[chosen]]
axis.set_xticks(range(len(chosen)), labels, rotation=45, ha="right")
axis.set_yticks(range(len(chosen)), labels)
axis.set_title("Active bits in common, of 32")
plt.show()
