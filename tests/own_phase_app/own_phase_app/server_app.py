"""The server: the plan of the package, with a histogram before it."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_flynn import HashSpec, message

from .histogram import with_histogram

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    spec = HashSpec(
        n_features=4,
        hash_dim=128,
        row_nnz=2,
        hash_nnz=8,
        seed=7,
        signed=True,
        center=(5.8, 3.0, 3.8, 1.2),
    )
    options = with_histogram(
        spec=spec, classes=("setosa", "versicolor", "virginica"), min_parties=3
    )
    strategy = message.FlyNNStrategy(min_available_nodes=3, **options)
    strategy.start(grid, timeout=120)
    print("HISTOGRAM", strategy.run.state.results["histogram"].tolist())
    strategy.model.save(str(context.run_config["output"]))
