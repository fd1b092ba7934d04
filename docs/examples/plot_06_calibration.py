"""
Probabilities that mean what they say
=====================================

Each member's scores are divided by a temperature that leave-one-out picks, and the log probabilities of the members are
added up. Where the model says 80 %, about 80 % of its predictions should be right. The plot compares it with a naive
Bayes classifier, whose probabilities are far too sure.
"""

import matplotlib.pyplot as plt
import numpy as np
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import make_classification
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

X, y = make_classification(
    6000,
    n_features=20,
    n_informative=6,
    n_redundant=10,
    n_classes=3,
    class_sep=1.0,
    flip_y=0,
    random_state=0,
)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0)

figure, axis = plt.subplots(figsize=(5, 4.5), layout="constrained")
axis.plot([0.3, 1], [0.3, 1], color="grey", linestyle=":", label="as sure as right")
for name, model in (("FlyNN", FlyNNClassifier()), ("naive Bayes", GaussianNB())):
    probabilities = model.fit(X, y).predict_proba(X_test)
    sure = probabilities.max(axis=1)
    right = model.classes_[probabilities.argmax(axis=1)] == y_test
    bins = np.digitize(sure, np.linspace(0.4, 1, 7)[:-1])
    filled = [b for b in np.unique(bins) if (bins == b).sum() >= 30]
    axis.plot(
        [sure[bins == b].mean() for b in filled],
        [right[bins == b].mean() for b in filled],
        "o-",
        label=name,
    )
    print(f"{name}: accuracy {right.mean():.3f}, mean confidence {sure.mean():.3f}")
axis.set(xlabel="confidence in the predicted class", ylabel="share that is right")
axis.legend()
plt.show()
