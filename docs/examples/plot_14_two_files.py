"""
Two sites, two files, one model
===============================

Each site has a CSV file of its own, and knows only two of three cultivars of wine. They agree on a spec, which holds
nothing of the data but public figures about the columns. Each makes a model of its own file and saves it; whoever gets
both files merges them. Only counts change hands.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from flwr_flynn import FlyNNClassifier, HashSpec
from sklearn.datasets import load_wine
from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split

wine = load_wine(as_frame=True).frame
train, test = train_test_split(wine, test_size=0.4, random_state=0, stratify=wine["target"])
folder = TemporaryDirectory()
north, south = Path(folder.name, "north.csv"), Path(folder.name, "south.csv")
at_north = (train["target"] == 0) | ((train["target"] == 1) & (train.index % 2 == 0))
train[at_north].to_csv(north, index=False)
train[~at_north].to_csv(south, index=False)

# %%
# What is agreed on beforehand: columns, classes, and for each column a public centre and scale.
# Figures from the literature would do; for brevity they are computed from all the data here, which a real federation
# must not do.

public = wine.drop(columns="target")
center, scale = tuple(public.median()), tuple(1 / public.std())
spec = HashSpec.suggest(
    13, n_examples=100, n_classes=3, seed=1, signed=True, center=center, scale=scale
)


def model_of(path):
    """The model of one site, from its own file."""
    mine = pd.read_csv(path)
    return FlyNNClassifier(spec).partial_fit(
        mine.drop(columns="target"), mine["target"], classes=[0, 1, 2]
    )


for path in (north, south):
    model_of(path).save(path.with_suffix(".npz"))
models = {path.stem: FlyNNClassifier.load(path.with_suffix(".npz")) for path in (north, south)}
models["merged"] = FlyNNClassifier.load(north.with_suffix(".npz")).merge(models["south"])

# %%
# The share of each cultivar's held-out wines that each model gets right.

figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for i, (name, model) in enumerate(models.items()):
    right = recall_score(
        test["target"], model.predict(test.drop(columns="target")), average=None
    )
    axis.bar_label(
        axis.bar(np.arange(3) + 0.27 * i, right, width=0.25, label=f"{name} model"), fmt="%.2f"
    )
axis.set_xticks(np.arange(3) + 0.27, [f"cultivar {label}" for label in range(3)])
axis.set(ylabel="share that is right", ylim=(0, 1.25))
axis.legend(loc="upper center", ncol=3)
folder.cleanup()
plt.show()
