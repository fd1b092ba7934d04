"""
Beside other classifiers
========================

Scikit-learn's bundled tables, three folds, all with their defaults; FlyNN's choose its hashes and decays by leave-one-
out. FlyNN stands beside a nearest-neighbour classifier on standardised columns, a random forest and logistic
regression, all of which see the pooled samples. FlyNN's model is a matrix of counts that parties can add up; those of
the others are not.
"""

import matplotlib.pyplot as plt
from flwr_flynn import FlyNNClassifier
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

methods = {
    "FlyNN": FlyNNClassifier(),
    "5-NN": make_pipeline(StandardScaler(), KNeighborsClassifier()),
    "random forest": RandomForestClassifier(random_state=0),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}
tables = {
    "Digits": load_digits,
    "Wine": load_wine,
    "Iris": load_iris,
    "Breast cancer": load_breast_cancer,
}
folds = StratifiedKFold(3, shuffle=True, random_state=0)

figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for i, (name, method) in enumerate(methods.items()):
    scores = [
        cross_val_score(method, *load(return_X_y=True), cv=folds) for load in tables.values()
    ]
    places = [table + 0.2 * i for table in range(len(tables))]
    axis.bar(
        places,
        [score.mean() for score in scores],
        0.18,
        yerr=[score.std() for score in scores],
        label=name,
    )
    print(f"{name:20}", *(f"{score.mean():.3f}" for score in scores))
axis.set_xticks([table + 0.3 for table in range(len(tables))], list(tables))
axis.set(ylabel="accuracy, three folds", ylim=(0.85, 1.04))
axis.legend(ncol=4, loc="upper center")
plt.show()
