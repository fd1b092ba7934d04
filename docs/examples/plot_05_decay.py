"""
The decay is chosen without held-out data
=========================================

A class gets ``decay ** count`` points for each active bit, with counts scaled to equal class sizes, and the class
with the fewest points wins. Counts do not depend on the decay, so all decays can be compared after training. ``fit``
picks one by exact leave-one-out over the training samples. The curve is the accuracy on held-out samples, which the
choice has not seen.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
decays = 1 - np.geomspace(1, 0.003, 13)
for colour, load in enumerate((load_digits, load_breast_cancer, load_wine)):
    X, X_test, y, y_test = train_test_split(
        *load(return_X_y=True), test_size=0.4, random_state=1
    )
    chosen = FlyNNClassifier(max_members=1).fit(X, y)
    # The counts stay as they are: only the scoring changes.
    curve = [
        FlyNNClassifier.from_counts(
            chosen.spec_, chosen.counts_, chosen.classes_, decay=decay
        ).score(X_test, y_test)
        for decay in decays
    ]
    name = load.__name__.removeprefix("load_").replace("_", " ")
    axis.plot(1 - decays, curve, color=f"C{colour}", label=name)
    decay = chosen.model_.member.scoring.decay
    axis.plot(1 - decay, chosen.score(X_test, y_test), "o", color=f"C{colour}")
    print(f"{name}: decay {decay:.3f}, accuracy {chosen.score(X_test, y_test):.3f}")

axis.set(
    xscale="log",
    xlabel="1 - decay",
    ylabel="accuracy on held-out samples",
    title="Points: the decay of fit",
)
axis.legend()
plt.show()
