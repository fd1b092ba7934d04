"""The bank: FedAvg's two functions as they were, and FlyNN's two under a name of their
own.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_flynn import FlyNNClient, message

from .task import auroc, load_data, network, scaled, weights_of

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """A round of FedAvg."""
    X, y, _, _ = load_data(context)
    model = network(msg.content.array_records["arrays"].to_numpy_ndarrays())
    model.partial_fit(scaled(X), y)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights_of(model)), "metrics": metrics}),
        reply_to=msg,
    )


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """FedAvg's model on the payments held out."""
    _, _, X_test, y_test = load_data(context)
    model = network(msg.content.array_records["arrays"].to_numpy_ndarrays())
    figure = auroc(model, X_test, y_test)
    metrics = MetricRecord({"num-examples": len(y_test), "auroc": figure})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


# ---- what FlyNN adds


def party(context: Context) -> FlyNNClient:
    """The same data, as they are."""
    X, y, X_test, y_test = load_data(context)
    return FlyNNClient(
        X,
        y,
        X_test=X_test,
        y_test=y_test,
        name=f"bank-{context.node_config['partition-id']}",
    )


@app.train("flynn")
def flynn_train(msg: Message, context: Context) -> Message:
    """FlyNN's counts."""
    return message.train(msg, party(context))


@app.evaluate("flynn")
def flynn_evaluate(msg: Message, context: Context) -> Message:
    """FlyNN's model on the payments held out."""
    return message.evaluate(msg, party(context))
