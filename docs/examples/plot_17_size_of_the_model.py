"""
The model hardly grows with the data
====================================

A nearest-neighbour classifier keeps every sample, so its size grows with the data, and to hand it out is to hand out
the samples. FlyNN keeps one count for each class and bit, and 64 times
the samples make its file about three times as large, as counts need more digits. That it
forgets single samples costs some accuracy, which is printed beside.
"""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import make_classification
from sklearn.neighbors import KNeighborsClassifier

X, y = make_classification(
    34000,
    40,
    n_informative=12,
    n_redundant=10,
    n_classes=4,
    n_clusters_per_class=1,
    class_sep=1.5,
    random_state=0,
)
X_test, y_test, X, y = X[:2000], y[:2000], X[2000:], y[2000:]
sizes = [500, 2000, 8000, 32000]
bytes_of = {"FlyNN": [], "nearest neighbour": []}
for n in sizes:
    ours = FlyNNClassifier(max_members=1, hash_dim=4096).fit(X[:n], y[:n])
    theirs = KNeighborsClassifier(1).fit(X[:n], y[:n])
    with TemporaryDirectory() as folder:
        ours.save(Path(folder, "model.npz"))
        bytes_of["FlyNN"].append(Path(folder, "model.npz").stat().st_size)
    stream = io.BytesIO()
    np.savez_compressed(stream, X=X[:n].astype(np.float32), y=y[:n])
    bytes_of["nearest neighbour"].append(stream.tell())
    print(
        f"{n:6} samples: {ours.score(X_test, y_test):.3f}, 1-NN {theirs.score(X_test, y_test):.3f}"
    )

# %%
# Both axes are logarithmic.

figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, sizes_in_bytes in bytes_of.items():
    axis.plot(sizes, sizes_in_bytes, "o-", label=name)
axis.set(
    xscale="log", yscale="log", xlabel="training samples", ylabel="bytes of the saved model"
)
axis.set_xticks(sizes, [str(n) for n in sizes])
axis.legend()
plt.show()
