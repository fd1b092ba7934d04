"""The server: FedAvg as it was, then FlyNN with the same banks."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flwr_flynn import HashPlan, message

from .task import COLUMNS, network, weights_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run both."""
    config = context.run_config
    rounds = int(config["num-server-rounds"])
    fedavg = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    result = fedavg.start(grid, ArrayRecord(weights_of(network())), num_rounds=rounds)
    of_fedavg = result.evaluate_metrics_clientapp[rounds]["auroc"]

    # ---- what FlyNN adds
    n_banks = len(list(grid.get_node_ids()))
    plan = HashPlan(n_features=len(COLUMNS), n_classes=2, scaling="auto", seed=7)
    flynn = message.FlyNNStrategy(
        spec=plan,
        classes=[0, 1],
        min_available_nodes=n_banks,
        min_parties=n_banks,
        action="flynn",
    )
    flynn.start(grid)
    flynn.model.save(str(config["output"]))
    sites = flynn.run.state.results["evaluation"].sites
    banks = [site["held_out"]["auroc"][0] for site in sites]
    of_flynn = f"{sum(banks) / len(banks):.4f} after {flynn.num_rounds}"
    print(
        f"AUROC, mean of the banks: FedAvg {of_fedavg:.4f} after {rounds} rounds, "
        f"FlyNN {of_flynn}",
        flush=True,
    )
