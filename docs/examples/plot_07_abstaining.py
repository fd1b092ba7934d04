"""
Knowing what is new: abstain instead of guessing
================================================

``novelty`` says how unlike the training samples a sample is to each class, from 0 to 1. A program can abstain where the
smallest of these is large. Here the model never saw the digits 8 and 9: a limit that keeps 95 % of the known digits
turns most of the unknown ones away.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
known = y < 8
X_train, X_known, y_train, y_known = train_test_split(
    X[known], y[known], test_size=0.4, random_state=0
)

model = FlyNNClassifier(scaling=(X_train.mean(axis=0), None)).fit(X_train, y_train)
of_known = model.novelty(X_known).min(axis=1)
of_new = model.novelty(X[~known]).min(axis=1)
limit = np.quantile(of_known, 0.95)
print(f"limit {limit:.2f}: {np.mean(of_new > limit):.0%} of the unknown digits are turned away")
kept = of_known <= limit
accuracy = np.mean(model.predict(X_known)[kept] == y_known[kept])
print(
    f"accuracy {model.score(X_known, y_known):.3f} on all known digits, {accuracy:.3f} on those that are kept"
)

# %%
# The two distributions, and the limit between them.

figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
bins = np.linspace(0, 1, 41)
axis.hist(of_known, bins, alpha=0.6, density=True, label="digits 0 to 7, held out")
axis.hist(of_new, bins, alpha=0.6, density=True, label="digits 8 and 9, never seen")
axis.axvline(limit, color="black", linestyle=":", label="limit")
axis.set(xlabel="smallest novelty of a sample", ylabel="density")
axis.legend()
plt.show()
