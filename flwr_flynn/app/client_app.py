"""The ClientApp that `flwr run` starts at every party.

A deployed party reads the file that its own node config names, and nothing else. In a simulation Flower numbers the
parties, and each takes its share of the run's data set. Which of the two a party is follows from what runs it
(`runtime.in_simulation`), never from settings; without a proof of a simulation it is deployed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Parameters, Scalar, Status
from flwr.common.logger import log

from flwr_flynn.app.config import NodeConfig, RunConfig
from flwr_flynn.app.data import datasets
from flwr_flynn.app.data.datasets import private_share
from flwr_flynn.app.privacy_setup import own_budget, simulated_budget
from flwr_flynn.app.runtime import in_simulation
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.federated.protocol import PARTY, REFUSED
from flwr_flynn.flower import message, records, secagg
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.privacy.ledger import Budget


class UnreadyClient(Client):
    """A party that cannot take part, and gives the reason in its replies: exceptions would arrive without its name."""

    def __init__(self, name: str | None, reason: str) -> None:
        self.refusal: dict[str, Scalar] = {REFUSED: reason}
        if name:
            self.refusal[PARTY] = name

    def fit(self, ins: FitIns) -> FitRes:
        """Refuse."""
        return FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), 0, self.refusal)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Refuse."""
        return EvaluateRes(Status(Code.OK, ""), 0.0, 0, self.refusal)


def client_fn(context: Context) -> Client:
    """The party of a node, built anew for every message, from data loaded once in a process."""
    return simulated_client(context) if in_simulation() else deployed_client(context)


def deployed_client(context: Context) -> Client:
    """The party of a deployed node: by its node config alone, in which each key must be known."""
    name = str(context.node_config.get("party-id", "")) or None

    def made() -> Client:
        node = NodeConfig.parse(context.node_config)
        budget = own_budget(node)

        def load(features: tuple[str, ...]) -> datasets.Share:
            share = (private_share if budget else datasets.own_share)(node, features)
            if share.left_out:
                others = ", ".join(repr(column[:60]) for column in share.left_out[:20])
                log(INFO, "FlyNN: %s columns are not among the run's features: %s", len(share.left_out), others)
            return share

        return FlyNNClient(
            load=load,
            width=(lambda features: datasets.private_width(node, features)) if budget else None,
            budget=budget,
            evaluates=node.evaluate,
            leaves=node.leave,
            secure=node.secure,
            gram=node.gram,
            response_seconds=node.response_seconds,
            on_model=_keeper(node, budget),
            **_common(node, name),
        ).to_client()

    return _ready(made, name)


def simulated_client(context: Context) -> Client:
    """The party of a simulated node, by the run's settings; also for programs that simulate nodes themselves."""
    node = context.node_config
    name = f"party-{node.get('partition-id', '')}"

    def made() -> Client:
        if others := sorted(set(node) - {"partition-id", "num-partitions"}):
            raise ConfigError(f"node-config {others[0][:80]}", "no such key in a simulation", "a value")
        config = RunConfig.parse(context.run_config)
        party = int(node["partition-id"])
        numbers = config.party_numbers()
        if numbers is not None and party not in numbers and config.action != "withdraw":
            return UnreadyClient(name, "takes no part in this run")
        share = datasets.simulated_share(config, party, int(node["num-partitions"]))
        return FlyNNClient(
            share.X,
            share.y,
            X_test=share.X_test,
            y_test=share.y_test,
            budget=simulated_budget(config, context.run_id, party),
            evaluates=config.evaluates(simulated=True),
            leaves=config.action == "withdraw" and (numbers is None or party in numbers),
            secure=config.secure,
            gram=True,
            **_common(config, name),
        ).to_client()

    return _ready(made, name)


def _common(settings: RunConfig | NodeConfig, name: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "memory_limit": int(settings.memory_limit * 2**30),
        "min_examples": settings.min_examples,
        "class_prior": settings.class_prior,
        "n_jobs": -1,  # in a simulation as many as Ray gives the actor
    }


def _ready(made: Callable[[], Client], name: str | None) -> Client:
    """The client, or one that refuses and gives the reason why it cannot be made."""
    try:
        return made()
    except FlyNNError as error:
        log(WARNING, "FlyNN: cannot take part: %s", datasets.full_text(error))
        return UnreadyClient(name, str(error))
    except Exception as error:  # noqa: BLE001 - its text may hold anything, and must not leave this machine
        log(ERROR, "FlyNN: cannot take part", exc_info=error)
        return UnreadyClient(name, f"failed with {type(error).__name__}")


def _keeper(node: NodeConfig, budget: Budget | None) -> Callable[[FlyNNClassifier], None] | None:
    """The function that writes the party's copy of the model; a bad path is refused before counting."""
    if not node.model_path:
        return None
    try:
        path = Path(node.model_path).expanduser().absolute()
        writable = path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK) and not path.is_dir()
        taken = path.resolve() == Path(node.data_path).expanduser().resolve()
        of_ledger = budget is not None and budget.has(path)
    except (OSError, RuntimeError, ValueError):  # too long, the home of nobody, a NUL
        writable = taken = of_ledger = False
    if taken:
        raise ConfigError("node-config model-path", "a file other than data-path", "the same file")
    if of_ledger:
        raise ConfigError("node-config model-path", "a file other than the ledger's at state-path", "one of these")
    if not writable:
        raise ConfigError("node-config model-path", "a file in a folder that can be written to", "no such file")

    def keep(model: FlyNNClassifier) -> None:
        model.save(path)
        log(INFO, "FlyNN: the model is in %s", path)

    return keep


def in_message_api(request: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a request of the Message API, of a run with `nodes-at-a-time`; all others are Flower's to answer."""
    answer = {MessageType.TRAIN: message.train, MessageType.EVALUATE: message.evaluate}.get(
        request.metadata.message_type
    )
    if answer is None or not request.has_content() or records.CONFIG not in request.content:
        return call_next(request, context)
    return answer(request, client_fn(context))


app = ClientApp(client_fn=client_fn, mods=[secagg.mod, in_message_api])
