"""The ClientApp that `flwr run` starts at every party.

In a simulation Flower numbers the parties (``partition-id`` and ``num-partitions`` in the node config) and
each takes its share of the run's data set. A deployed party reads its own file, named in the node config that
it was started with.
"""

from __future__ import annotations

from logging import WARNING

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Scalar
from flwr.common.logger import log

from flwr_flynn import data
from flwr_flynn.client import FlyNNClient
from flwr_flynn.config import NodeConfig, RunConfig
from flwr_flynn.errors import FlyNNError


class UnreadyClient(NumPyClient):
    """A party that cannot take part. It says why in its replies: an exception would arrive without its name.

    Parameters
    ----------
    name : str or None
        What the server calls this party.
    reason : str
        Names settings, columns and counts, never a value of the data.
    """

    def __init__(self, name: str | None, reason: str) -> None:
        self.refusal: dict[str, Scalar] = {"flynn-refused": reason}
        if name:
            self.refusal["flynn-party"] = name

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Refuse."""
        return [], 0, self.refusal

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Refuse."""
        return 0.0, 0, self.refusal


def client_fn(context: Context) -> Client:
    """The party that a node plays: built anew for every message, from data loaded once in a process."""
    node = context.node_config
    simulated = "partition-id" in node and "num-partitions" in node
    name = f"party-{node['partition-id']}" if simulated else str(node.get("party-id", "")) or None
    try:
        if simulated:
            config = RunConfig.parse(context.run_config)
            share = data.simulated_share(config, int(node["partition-id"]), int(node["num-partitions"]))
            memory_limit = NodeConfig.memory_limit
        else:
            own = NodeConfig.parse(node)
            share = data.own_share(own)
            memory_limit = own.memory_limit
    except FlyNNError as error:
        log(WARNING, "FlyNN: cannot take part: %s", error)
        return UnreadyClient(name, str(error)).to_client()
    return FlyNNClient(
        share.X,
        share.y,
        X_test=share.X_test,
        y_test=share.y_test,
        name=name,
        memory_limit=int(memory_limit * 2**30),
        n_jobs=-1,  # in a simulation as many as Ray gives the actor
    ).to_client()


app = ClientApp(client_fn=client_fn)
