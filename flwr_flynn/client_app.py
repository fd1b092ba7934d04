"""The ClientApp that `flwr run` starts at every party.

A deployed party reads its own file, named in the node config that it was started with. In a simulation Flower numbers
the parties (``partition-id`` and ``num-partitions`` in the node config) and each takes its share of the run's data set.
"""

from __future__ import annotations

from logging import ERROR, WARNING

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, Status
from flwr.common.logger import log

from flwr_flynn import data
from flwr_flynn.client import FlyNNClient
from flwr_flynn.config import NodeConfig, RunConfig
from flwr_flynn.errors import FlyNNError
from flwr_flynn.private_data import private_share
from flwr_flynn.private_run import own_budget, simulated_budget


class UnreadyClient(Client):
    """A party that cannot take part. It says why in its replies: an exception would arrive without its name.

    Parameters
    ----------
    name : str or None
        What the server calls this party.
    reason : str
        Tells settings, positions and counts, never what a file holds.
    """

    def __init__(self, name: str | None, reason: str) -> None:
        self.refusal: dict[str, Scalar] = {"flynn-refused": reason}
        if name:
            self.refusal["flynn-party"] = name

    def fit(self, ins: FitIns) -> FitRes:
        """Refuse."""
        return FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), 0, self.refusal)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Refuse."""
        return EvaluateRes(Status(Code.OK, ""), 0.0, 0, self.refusal)


def client_fn(context: Context) -> Client:
    """The party that a node plays: built anew for every message, from data loaded once in a process."""
    node = context.node_config
    simulated = "data-path" not in node and "partition-id" in node and "num-partitions" in node
    name = f"party-{node['partition-id']}" if simulated else str(node.get("party-id", "")) or None
    try:
        settings: RunConfig | NodeConfig
        if simulated:
            settings = config = RunConfig.parse(context.run_config)
            party = int(node["partition-id"])
            numbers = config.party_numbers()
            if numbers is not None and party not in numbers and config.action != "withdraw":
                return UnreadyClient(name, "takes no part in this run")
            leaves = config.action == "withdraw" and (numbers is None or party in numbers)
            share = data.simulated_share(config, party, int(node["num-partitions"]))
            budget, evaluates = simulated_budget(config, context.run_id, party), config.evaluates(simulated=True)
        else:
            settings = own = NodeConfig.parse(node)
            budget, evaluates, leaves = own_budget(own), own.evaluate, own.leave
            share = private_share(own) if budget else data.own_share(own)
        return FlyNNClient(
            share.X,
            share.y,
            X_test=share.X_test,
            y_test=share.y_test,
            name=name,
            memory_limit=int(settings.memory_limit * 2**30),
            min_examples=settings.min_examples,
            n_jobs=-1,  # in a simulation as many as Ray gives the actor
            budget=budget,
            evaluates=evaluates,
            leaves=leaves,
        ).to_client()
    except FlyNNError as error:
        log(WARNING, "FlyNN: cannot take part: %s", data.full_text(error))
        return UnreadyClient(name, str(error))
    except Exception as error:  # noqa: BLE001 - its text may hold anything, and must not leave this machine
        log(ERROR, "FlyNN: cannot take part", exc_info=error)
        return UnreadyClient(name, f"failed with {type(error).__name__}")


app = ClientApp(client_fn=client_fn)
