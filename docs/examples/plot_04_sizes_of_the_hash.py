"""
Accuracy against the sizes of the hash
======================================

Two sizes matter most: the length of the hash (``hash_dim``, m) and its active bits (``hash_nnz``, rho). Accuracy rises
with m and levels off; rho has a broad optimum. The defaults follow from
formulas that were fitted on public data; a line marks the default rho.
"""

import matplotlib.pyplot as plt
from flwr_flynn import FlyNNClassifier, HashSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, X_test, y, y_test = train_test_split(
    *load_digits(return_X_y=True), test_size=0.5, random_state=0
)
default = HashSpec.suggest(n_features=64, n_examples=len(X), n_classes=10)
print(f"defaults: m = {default.hash_dim}, s = {default.row_nnz}, rho = {default.hash_nnz}")

# %%
# One line for each m, over rho. The scaling is fixed, so that nothing else changes.

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for hash_dim in (256, 1024, 4096, 16384):
    sizes = [rho for rho in (2, 8, 32, 64, 128, 256) if rho <= hash_dim // 8]
    accuracies = [
        FlyNNClassifier(hash_dim=hash_dim, hash_nnz=rho, scaling=(X.mean(axis=0), None))
        .fit(X, y)
        .score(X_test, y_test)
        for rho in sizes
    ]
    axis.plot(sizes, accuracies, marker="o", label=f"m = {hash_dim}")
axis.axvline(
    default.hash_nnz, color="grey", linestyle=":", label="default rho at the default m"
)
axis.set(
    xscale="log",
    xlabel="active bits, rho",
    ylabel="accuracy on held-out samples",
    title="Digits",
)
axis.set_xticks([2, 8, 32, 64, 128, 256], ["2", "8", "32", "64", "128", "256"])
axis.legend()
plt.show()
