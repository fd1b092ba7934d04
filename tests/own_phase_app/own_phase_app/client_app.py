"""A party: it finds the histogram's request because its module is imported."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from sklearn.datasets import load_iris

from flwr_flynn import FlyNNClient, message

from . import histogram

app = ClientApp()


def party(context: Context) -> FlyNNClient:
    """Every third sample of iris."""
    assert histogram.HistogramRequest.phase == "histogram"
    X, y = load_iris(return_X_y=True)
    labels = np.array(("setosa", "versicolor", "virginica"))[y]
    mine = slice(
        int(context.node_config["partition-id"]),
        None,
        int(context.node_config["num-partitions"]),
    )
    return FlyNNClient(X[mine], labels[mine], name=f"party-{mine.start}")


@app.train()
def train(msg: Message, context: Context) -> Message:
    return message.train(msg, party(context))


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    return message.evaluate(msg, party(context))
