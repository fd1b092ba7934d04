"""
Two hospitals, two files, one model
===================================

Each hospital has a CSV file of its own. They agree on a spec, which holds nothing of the data but public ranges of the
columns. Each makes a model of its own file and saves it; anyone who gets both files merges them. Only counts change
hands.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from flwr_flynn import FlyNNClassifier, HashSpec

table = load_breast_cancer(as_frame=True).frame
train, test = train_test_split(table, test_size=0.4, random_state=0, stratify=table["target"])
folder = TemporaryDirectory()
north, south = Path(folder.name, "north.csv"), Path(folder.name, "south.csv")
large = train["mean radius"] > 15  # the hospitals see different patients
train[large].to_csv(north, index=False)
train[~large].to_csv(south, index=False)

# %%
# What is agreed on beforehand: the columns, the classes, and for each column a public centre and scale.

public = table.drop(columns="target")  # stands for figures from the literature
center, scale = tuple(public.median()), tuple(1 / public.std())
spec = HashSpec.suggest(30, n_examples=400, n_classes=2, seed=1, signed=True, center=center, scale=scale)


def model_of(path):
    """What a hospital does with its own file."""
    mine = pd.read_csv(path)
    return FlyNNClassifier(spec).partial_fit(mine.drop(columns="target"), mine["target"], classes=[0, 1])


for path in (north, south):
    model_of(path).save(path.with_suffix(".npz"))
models = {path.stem: FlyNNClassifier.load(path.with_suffix(".npz")) for path in (north, south)}
models["merged"] = FlyNNClassifier.load(north.with_suffix(".npz")).merge(models["south"])

# %%
# The merged model is as good for both kinds of patients.

X, y = test.drop(columns="target"), test["target"]
like_north = X["mean radius"] > 15
figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for i, (name, model) in enumerate(models.items()):
    accuracies = [model.score(X[like_north], y[like_north]), model.score(X[~like_north], y[~like_north])]
    bars = axis.bar([i * 0.27, 1 + i * 0.27], accuracies, width=0.25, label=f"{name} model")
    axis.bar_label(bars, fmt="%.2f")
axis.set_xticks([0.27, 1.27], ["patients as in the north", "patients as in the south"])
axis.set(ylabel="accuracy", ylim=(0, 1.25))
axis.legend(loc="upper center", ncol=3)
folder.cleanup()
plt.show()
