"""The ClientApp that `flwr run` starts at every party.

A deployed party reads the file in its own node config, and nothing else. In a
simulation Flower numbers the parties, and each takes its share of the run's data set.
The code that calls a party decides which of the two it is (`in_simulation`), never
settings; without a proof of a simulation the party is deployed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from logging import ERROR, INFO, WARNING
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, MessageType
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log

from flwr_flynn._files import writing
from flwr_flynn.app.data import datasets, own_file
from flwr_flynn.app.disclosure_file import ENDING, recorder
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig, default_folder
from flwr_flynn.app.settings_parser import in_json
from flwr_flynn.errors import ConfigError, FlyNNError, full_text
from flwr_flynn.federated.disclosure import Disclosure
from flwr_flynn.federated.party_options import PartyOptions
from flwr_flynn.federated.purposes import PURPOSES
from flwr_flynn.flower import message, records, secagg
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.model import model_file
from flwr_flynn.privacy import SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier

OnAnswer = Callable[[Disclosure], object]

MakeClient = Callable[[OnAnswer | None], FlyNNClient]

_ACTORS = "flwr.simulation.ray_transport.ray_actor"


def unready_client(
    name: str | None, reason: str, on_answer: OnAnswer | None = None
) -> FlyNNClient:
    """Client of a party that cannot participate.

    Its replies have its name and the reason, unlike an exception.
    """
    client = FlyNNClient([], [], name=name, on_answer=on_answer)
    client.party = replace(client.party, unready=reason)
    return client


def client_fn(context: Context) -> Client:
    """The party of a node, made anew for every message; a process loads data once."""
    if in_simulation():
        return simulated_client(context)
    return deployed_client(context)


def in_simulation() -> bool:
    """True if this call comes from an actor of Flower's simulation engine.

    Settings cannot decide: Flower's tutorials give ``partition-id`` to deployed nodes
    as well, a key may be misspelt, and run settings come from the server. Nothing is
    imported: an actor of Ray has Ray, and Flower's module of actors, already. Without a
    proof of a simulation, in another version of Flower or of Ray for example, this is a
    deployment.
    """
    frame: FrameType | None = None
    try:
        ray = sys.modules["ray"]
        if (
            ray.is_initialized() is True
            and ray.get_runtime_context().get_actor_id() is not None
        ):
            # The actor runs a ClientApp by this function.
            entry = sys.modules[_ACTORS].VirtualClientEngineActor.run.__code__
            frame = sys._getframe()
            while frame is not None and frame.f_code is not entry:
                frame = frame.f_back
    except Exception:  # noqa: BLE001 - no proof, for any reason
        return False
    return frame is not None


def deployed_client(context: Context) -> Client:
    """The party of a deployed node, by its node config alone.

    Each key of the node config must be known.
    """
    name = str(context.node_config.get("party-id", "")) or None
    rows_of_answer = dict[str, int]()

    def make(on_answer: OnAnswer | None) -> FlyNNClient:
        node = NodeConfig.parse(context.node_config)
        load: Any = partial(own_file.own_share, node)
        budget = None
        if node.max_epsilon:
            data_path = os.path.expanduser(node.data_path)
            budget = Budget(node.state_path, node.policy(), data_path, node.digest())
            load = own_file.private_rows(node, budget.secret)
            load.on_read = rows_of_answer.update
        return FlyNNClient(
            load=load,
            budget=budget,
            member=_membership(context.node_config),
            on_model=_keeper(context.node_config),
            on_answer=on_answer,
            evaluates=node.evaluate,
            **node.party_options(own_file.own_share),
            **_common(node, name),
        )

    return _ready(make, name, lambda: own_record(context, rows_of_answer))


def simulated_client(context: Context) -> Client:
    """The party of a simulated node, by the run's settings.

    Programs that simulate nodes themselves may call it as well.
    """
    node = context.node_config
    name = f"party-{node.get('partition-id', '')}"

    def make(_: OnAnswer | None) -> FlyNNClient:
        others = sorted(set(node) - {"partition-id", "num-partitions"})
        if others:
            field = f"node-config {others[0][:80]}"
            raise ConfigError(field, "no such key in a simulation", "a value")
        config = RunConfig.parse(context.run_config)
        party = int(node["partition-id"])
        numbers = config.party_numbers()
        is_named = numbers is None or party in numbers
        purpose = PURPOSES[config.action]
        if not is_named and not purpose.options:
            return unready_client(name, "takes no part in this run")
        about: dict[str, Any] = dict.fromkeys(purpose.options, is_named)
        share = datasets.simulated_share(config, party, int(node["num-partitions"]))
        return FlyNNClient(
            **{name: getattr(share, name) for name in ("X", "y", "X_test", "y_test")},
            budget=simulated_budget(config, context.run_id, party),
            evaluates=config.evaluates(simulated=True),
            products=True,
            # Nodes have other ids in each run.
            member=hashlib.sha256(f"simulated {name}".encode()).hexdigest(),
            **about,
            **{**_common(config, name), "table_one": True},
        )

    return _ready(make, name)


def _common(settings: RunConfig | NodeConfig, name: str | None) -> dict[str, Any]:
    """Options of a party that both kinds of settings have."""
    return settings.options_of(PartyOptions) | {
        "name": name,
        "memory_limit": int(settings.memory_limit * 2**30),
        "keep": settings.names("keep"),
        "n_jobs": -1,  # in a simulation as many threads as Ray gives the actor
    }


def _ready(
    make: MakeClient,
    name: str | None,
    record: Callable[[], OnAnswer | None] = lambda: None,
) -> Client:
    """The client, or one that refuses with a reason.

    The reason is that of an error in making the client, or the record of its answers.
    """
    on_answer = None
    start = time.monotonic()
    try:
        on_answer = record()
        client = make(on_answer)
        # `response-seconds` hide the time of reading the file, too.
        client.party = replace(client.party, since=start)
        return client.to_client()
    except FlyNNError as error:
        log(WARNING, "FlyNN: cannot participate: %s", full_text(error))
        reason = str(error)
    except Exception as error:  # noqa: BLE001
        # Its text may have data, and must not leave this machine.
        log(ERROR, "FlyNN: cannot participate", exc_info=error)
        reason = f"failed with {type(error).__name__}"
    return unready_client(name, reason, on_answer).to_client()


def simulated_budget(config: RunConfig, run_id: int, party: int) -> Budget | None:
    """A simulated party's ledger; None without `epsilon`.

    Its policy allows the run's request once.
    """
    if not config.is_private:
        return None
    kind = config.mechanism
    if config.noise == "seeded":
        kind = SimulatedRelease.kind
    policy = Policy(
        config.epsilon,
        config.delta,
        [kind],
        config.neighbours,
        config.records_per_person,
        config.secure,
    )
    # The process of a party may have another working directory, so that a relative
    # folder would not be the server's.
    folder = Path(config.output_dir).expanduser()
    if not folder.is_absolute():
        folder = default_folder(run_id)
    return Budget(folder / "state" / str(run_id) / f"party-{party}", policy)


def own_record(context: Context, rows: Mapping[str, int]) -> OnAnswer | None:
    """A function that records a deployed party's answers, and `rows`, in its own file.

    It is None without `record-path`. The rest of the node config may be wrong: refusals
    are recorded, too.
    """
    node = context.node_config
    path = _own_file("record-path", node)
    if path is None:
        return None
    if path.suffix != ENDING:
        expected = f"a file that ends with {ENDING}"
        got = in_json(path.suffix)
        raise ConfigError("node-config record-path", expected, got)
    _own_file(_PAGE, node)
    return recorder(path, context.run_id, rows)


_PAGE = "the page of record-path"
_PATHS = {row.key for row in NodeConfig.rows() if row.key.endswith("-path")}
_FILES = ("site", *sorted(_PATHS - {"state-path"}))


def _own_file(key: str, node: Mapping[str, object]) -> Path | None:
    """The path of a file that the party writes, None if it is not given.

    An error if the party cannot write it, or if it is another one of its files.
    """
    names = {own: str(node.get(own, "")).strip() for own in _FILES}
    names[_PAGE] = ""
    if names["record-path"]:
        names[_PAGE] = str(Path(names["record-path"]).with_suffix(".html"))
    if not names[key]:
        return None
    state = str(node.get("state-path", "")).strip()
    same = ""
    is_of_ledger = False
    try:
        files = {
            own: Path(name).expanduser().absolute()
            for own, name in names.items()
            if name
        }
        path = files.pop(key)
        is_writable = (
            path.parent.is_dir()
            and os.access(path.parent, os.W_OK | os.X_OK)
            and not path.is_dir()
        )
        real = path.resolve()
        others = (own for own, file in files.items() if file.resolve() == real)
        same = next(others, "")
        is_of_ledger = bool(state) and Budget(state, Policy(1.0)).has(path)
    except (OSError, RuntimeError, ValueError):  # too long, an unknown home, a NUL
        is_writable = False
    field = f"node-config {key.rpartition(' ')[2]}"
    if same:
        raise ConfigError(field, f"a file other than {same}", "the same file")
    if is_of_ledger:
        expected = "a file other than the ledger's at state-path"
        raise ConfigError(field, expected, "one of these")
    if not is_writable:
        expected = "a file in a folder that can be written to"
        raise ConfigError(field, expected, "no such file")
    return path


def _membership(node: Mapping[str, object]) -> str:
    """The proof of membership, from the secret in the party's own file.

    It is "" without `member-path`. A file that is not there is made.
    """
    path = _own_file("member-path", node)
    if path is None:
        return ""
    if not path.exists():
        with writing(path, mode=0o600) as stream:
            stream.write(secrets.token_hex(32).encode())
    with path.open("rb") as stream:
        secret = stream.read(1025)
    if not 32 <= len(secret) <= 1024:
        raise ConfigError(
            "node-config member-path",
            "a file of 32 to 1024 bytes that nobody can guess",
            "another size",
        )
    return hashlib.sha256(b"flynn member " + secret).hexdigest()


def _keeper(node: Mapping[str, object]) -> Callable[[FlyNNClassifier], None] | None:
    """A function that writes the party's copy of the model.

    A bad path is refused before the counting.
    """
    path = _own_file("model-path", node)
    if path is None:
        return None

    def keep(model: FlyNNClassifier) -> None:
        # A file that others could read becomes the party's alone.
        model_file.write(path, model.model_, mode=0o600)
        log(INFO, "FlyNN: the model is in %s", path)

    return keep


def in_message_api(
    request: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Answer a request of the Message API, of a run with `nodes-at-a-time`.

    All other requests are left to Flower.
    """
    answers = {MessageType.TRAIN: message.train, MessageType.EVALUATE: message.evaluate}
    answer = answers.get(request.metadata.message_type)
    has_content = request.has_content()
    if answer is None or not has_content or records.CONFIG not in request.content:
        return call_next(request, context)
    return answer(request, client_fn(context))


def of_this_copy(name: str) -> Callable[..., Any]:
    """Make a function that calls one of this module, also in a worker of Ray's.

    Flower pickles the app, and a worker would look for this package in the folder in
    which `flwr run` was called, and then among installed packages: another version,
    perhaps, and compiled anew. A nested function is pickled with its code, so that the
    worker takes the copy from which the app was made.
    """
    folder = str(Path(__file__).parents[2])

    def call(*arguments: Any) -> Any:
        if "flwr_flynn" not in sys.modules:
            sys.path.insert(0, folder)
        return getattr(import_module("flwr_flynn.app.client_app"), name)(*arguments)

    return call


secure_sum = secagg.mod

app = ClientApp(
    client_fn=of_this_copy("client_fn"),
    mods=[of_this_copy("secure_sum"), of_this_copy("in_message_api")],
)
