"""
The counts of a class, seen as an image
=======================================

The model is a matrix of counts: one row for each class, one column for each bit of the hash. A bit looks at a few
pixels, so a row of counts can be drawn back onto the pixels. The drawings look like the mean digits: the counts know
what a class looks like. That is why they classify, and why the counts of few samples are no secret.
"""

import matplotlib.pyplot as plt
from flwr_flynn import ClassCounts, FlyHash, HashSpec
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
hasher = FlyHash(HashSpec(n_features=64, hash_dim=4096, row_nnz=8, hash_nnz=64, seed=7))
counts = ClassCounts.from_data(hasher, X, y, n_classes=10)
print(counts.array.shape, "counts; samples of each class:", counts.n_per_class)

# %%
# Row ``i`` of ``hasher.rows`` has the pixels that bit ``i`` looks at. Each bit adds its count to its pixels.

figure, axes = plt.subplots(2, 5, figsize=(8, 3.6), layout="constrained")
for label, axis in enumerate(axes.flat):
    image = [
        counts.array[label, (hasher.rows == pixel).any(axis=1)].sum() for pixel in range(64)
    ]
    axis.imshow([image[row : row + 8] for row in range(0, 64, 8)], cmap="magma")
    axis.set_title(f"class {label}")
    axis.set_axis_off()
figure.suptitle("Counts of each class on the pixels that their bits look at")
plt.show()
