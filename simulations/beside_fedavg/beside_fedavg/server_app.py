"""The server: FedAvg as it was, then FlyNN with the same parties."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from beside_fedavg.task import initial_weights
from flwr_flynn import HashSpec, message

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run both."""
    config = context.run_config
    fedavg = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    result = fedavg.start(grid, ArrayRecord(initial_weights()), num_rounds=int(config["num-server-rounds"]))
    last = result.evaluate_metrics_clientapp[int(config["num-server-rounds"])]

    # ---- what FlyNN adds
    n_parties = len(list(grid.get_node_ids()))
    flynn = message.FlyNNStrategy(
        spec=HashSpec.suggest(n_features=64, n_classes=10, seed=7),
        classes=list(range(10)),
        min_available_nodes=n_parties,
        min_parties=n_parties,
        action="flynn",
    )
    flynn.start(grid)
    flynn.model.save(str(config["output"]))
    assert flynn.evaluation is not None
    print(f"FedAvg {last['accuracy']:.4f}, FlyNN {flynn.evaluation['accuracy']:.4f} on held-out points", flush=True)
