"""
Accuracy against epsilon
========================

With differential privacy every party adds noise to its counts before they leave it. A small epsilon promises much and
costs accuracy; more samples pay for it. Two parties share the samples here, and each adds noise of its own. The noise
is seeded, so that this page can be built again: that protects nobody, and deployed parties refuse it.
"""

import matplotlib.pyplot as plt
from flwr_flynn import ClassCounts, FlyHash, FlyNNClassifier
from flwr_flynn.privacy import GaussianCounts, SimulatedRelease, suggest_spec
from sklearn.datasets import make_classification

X, y = make_classification(
    12000,
    n_features=20,
    n_informative=10,
    n_redundant=0,
    n_classes=3,
    class_sep=1.6,
    random_state=0,
)
X_test, y_test, X, y = X[:2000], y[:2000], X[2000:], y[2000:]


def accuracy(n, epsilon, delta=1e-5):
    """Accuracy of the summed noisy counts of two parties with n samples together."""
    public = {"n_features": 20, "n_examples": n, "n_classes": 3, "n_parties": 2}
    spec = suggest_spec(epsilon, delta, **public, signed=True)  # sizes follow from these
    hasher = FlyHash(spec)
    mechanism = GaussianCounts.for_spec(spec, n_classes=3, epsilon=epsilon, delta=delta)
    releases = [
        SimulatedRelease(mechanism, seed=i).release(
            ClassCounts.from_data(hasher, X[i:n:2], y[i:n:2], n_classes=3)
        )
        for i in range(2)
    ]
    return FlyNNClassifier.from_counts(spec, releases[0] + releases[1], range(3)).score(
        X_test, y_test
    )


# %%
# One line for each number of samples, beside exact counts.

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
epsilons = [0.25, 0.5, 1, 2, 4]
for colour, n in enumerate((1000, 3000, 10000)):
    axis.plot(
        epsilons,
        [accuracy(n, epsilon) for epsilon in epsilons],
        "o-",
        color=f"C{colour}",
        label=f"{n} samples",
    )
    exact = FlyNNClassifier(scaling=None, signed=True).fit(X[:n], y[:n]).score(X_test, y_test)
    axis.axhline(exact, color=f"C{colour}", linestyle=":")
axis.set(xscale="log", xlabel="epsilon (delta = 1e-5)", ylabel="accuracy on held-out samples")
axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
axis.minorticks_off()
axis.set_title("Dotted: exact counts of the same samples")
axis.legend()
plt.show()
