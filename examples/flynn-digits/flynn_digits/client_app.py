"""The party."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_flynn import FlyNNClient, message
from flynn_digits.task import load_data

app = ClientApp()


def party(context: Context) -> FlyNNClient:
    """The samples of this node."""
    X, y, X_test, y_test = load_data(context)
    return FlyNNClient(X, y, X_test=X_test, y_test=y_test)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Its counts."""
    return message.train(msg, party(context))


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Its part of the choice of the model, and the model on its held-out samples."""
    return message.evaluate(msg, party(context))
