"""The server."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_flynn import HashPlan, message
from flynn_digits.task import CLASSES, N_FEATURES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation and save its model."""
    plan = HashPlan(
        n_features=N_FEATURES, n_classes=len(CLASSES), scaling="auto", seed=7
    )
    nodes = int(context.run_config["min-nodes"])
    strategy = message.FlyNNStrategy(
        spec=plan, classes=CLASSES, min_available_nodes=nodes, min_parties=nodes
    )
    strategy.start(grid, timeout=600)  # seconds for each round
    strategy.model.save(str(context.run_config["output"]))
    assert strategy.evaluation is not None
    print(
        f"accuracy {strategy.evaluation['accuracy']:.4f} on the parties' held-out "
        "samples",
        flush=True,
    )
