"""
A table as it is: categories and gaps
=====================================

Real tables have texts, numbers and empty cells. ``FlyNNClassifier`` takes a data frame as it is: a level of a
category is a column of zeros and ones, a gap is one too, and nothing of a missing value enters the hash. Nothing is
filled in, so nothing has to be agreed on but names and levels, which are sums over the parties. The visits here are
generated.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from flwr_flynn import FlyNNClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from skrub import tabular_pipeline

generator = np.random.default_rng(0)
n = 2000
wards = ["surgery", "internal", "emergency", "maternity"]
ward = generator.choice(wards, n, p=[0.3, 0.4, 0.2, 0.1])
smoker = generator.choice(["yes", "no"], n, p=[0.3, 0.7])
age = generator.normal(60, 15, n).clip(18, 99).round()
crp = np.exp(generator.normal(1.5, 1.0, n)).round(1)
sodium = generator.normal(139, 4, n).round()
risk = (
    0.9 * (np.log(crp) - 1.5)
    + 0.03 * (age - 60)
    + 1.2 * ((ward == "emergency") & (smoker == "yes"))
    - 1.0 * (ward == "maternity")
    + 0.15 * np.abs(sodium - 139)
    - 0.8
)
label = np.where(risk + generator.logistic(size=n) * 0.7 > 0, "stayed", "went home")
visits = pd.DataFrame(
    {"ward": ward, "smoker": smoker, "age": age, "crp": crp, "sodium": sodium}
)
# Not everything is measured at every visit, and not everybody is asked.
visits.loc[generator.random(n) < 0.2, "sodium"] = np.nan
visits.loc[generator.random(n) < 0.1, "smoker"] = None
print(visits.head())

# %%
# What the columns become. A number stays a number; NaN stands for a gap.

train, test, y, y_test = train_test_split(visits, label, random_state=0, stratify=label)
model = FlyNNClassifier().fit(train, y)
schema = model.model_.schema
print(*schema.inputs, sep="\n")
print(schema.encode(test.head(2)))

# %%
# A level that nobody has seen is all zeros, and a row may be empty where others are not.

print(model.predict(pd.DataFrame({name: [None] for name in visits} | {"crp": [80.0]})))

# %%
# Now cells are emptied, in training and test visits alike, and not at random: the higher a value,
# the more often it is missing, as a device that overflows would do. FlyNN and gradient boosting see
# the gaps; a forest stands behind skrub's pipeline. The last line is FlyNN with the mean of a column in
# the place of its missing numbers: no more accurate, and parties would have to agree on the means first.


def emptied(table, share):
    """Numbers are emptied with a probability that grows with their rank, categories at random."""
    result = table.copy()
    noise = np.random.default_rng(1)
    for name in table:
        weight = 2 * table[name].rank(pct=True) if table[name].dtype.kind == "f" else 1.0
        result[name] = table[name].mask(noise.random(len(table)) < share * weight)
    return result


def filled(table):
    """The table with the mean of a column for its missing numbers."""
    return table.fillna(table.mean(numeric_only=True))


def as_categories(table):
    """Texts as pandas categories, which the boosting asks for."""
    return table.assign(
        ward=pd.Categorical(table["ward"], wards),
        smoker=pd.Categorical(table["smoker"], ["yes", "no"]),
    )


boosting = HistGradientBoostingClassifier(
    categorical_features="from_dtype", class_weight="balanced", random_state=0
)
forest = RandomForestClassifier(200, class_weight="balanced", random_state=0)
methods = {
    "FlyNN": (FlyNNClassifier(), lambda table: table),
    "gradient boosting": (boosting, as_categories),
    "forest behind skrub": (tabular_pipeline(forest), lambda table: table),
    "FlyNN, means for gaps": (FlyNNClassifier(), filled),
}
shares = [0, 0.1, 0.2, 0.3, 0.4]
figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, (method, prepared) in methods.items():
    scores = []
    for share in shares:
        table = prepared(emptied(visits, share))
        method.fit(table.loc[train.index], y)
        scores.append(balanced_accuracy_score(y_test, method.predict(table.loc[test.index])))
    axis.plot([100 * share for share in shares], scores, "o-", label=name)
    print(f"{name:22}", *(f"{score:.3f}" for score in scores))
axis.set(xlabel="% of the cells emptied, high values more often", ylabel="balanced accuracy")
axis.legend()
plt.show()
