"""Stand-ins for Flower's network: parties in this very process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid

try:
    from flwr.app.message.message import make_message
except ImportError:  # before Flower 1.31
    from flwr.common.message import make_message
try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # before Flower 1.38, in which a grid names the sender

    class TaskIdentity:  # type: ignore[no-redef]
        """Place of the first value of a message in newer versions."""


from flwr_flynn import __version__, message
from flwr_flynn.errors import PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import model_of_members
from flwr_flynn.federated.phases.column_sums import ColumnSumsRequest, ColumnSumsTally
from flwr_flynn.federated.phases.columns import ColumnsRequest, ColumnsTally
from flwr_flynn.federated.phases.counts import (
    CountsRequest,
    CountsTally,
    UpdateRequest,
    WithdrawRequest,
)
from flwr_flynn.federated.phases.evaluation import EvaluationRequest, EvaluationTally
from flwr_flynn.federated.phases.table_schema import SchemaRequest, SchemaTally
from flwr_flynn.federated.protocol import NOISY_EXAMPLES, PHASE, VERSION, Reply, key
from flwr_flynn.federated.reply_fields import to_arrays
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.tally import Tally
from flwr_flynn.flower import records
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.model import ModelMember
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    mechanism_from_dict,
)

__all__ = ["TaskIdentity", "make_message"]  # of Flower, which moved them

SPEC = HashSpec(n_features=4, hash_dim=24, row_nnz=2, hash_nnz=3, seed=7)
CLASSES = ("ash", "birch", "cedar")
RUN = RunSpec(SPEC, CLASSES)
HASHER = RUN.hasher
SHAPE: dict[str, Any] = {"hash_nnz": SPEC.hash_nnz, "n_classes": len(CLASSES)}
LAPLACE = LaplaceCounts(1.0, **SHAPE)
SHARE = GaussianCounts(0.9, 1e-5, **SHAPE, n_honest=2)


def replaced(mechanism: Mechanism, **changes: Any) -> Mechanism:
    """The mechanism with other fields of its description."""
    return mechanism_from_dict(mechanism.to_dict() | changes)


def make(**changes: Any) -> RunOptions:
    """Options of a run of one spec."""
    return RunOptions(**{"spec": SPEC, "classes": CLASSES, "min_parties": 1, **changes})


def tally_of(request: Request[Any], max_examples: int | None = None) -> Tally[Any]:
    """The server's side of a request, with the defaults of its phase."""
    if isinstance(request, CountsRequest | WithdrawRequest | UpdateRequest):
        return CountsTally(request, max_examples)
    if type(request) is ColumnsRequest:
        return ColumnsTally(request, max_examples)
    if isinstance(request, ColumnSumsRequest):
        return ColumnSumsTally(request)
    if isinstance(request, EvaluationRequest):
        return EvaluationTally(request)
    if isinstance(request, SchemaRequest):
        return SchemaTally(request)
    return Tally(request)


def summed(request: Request[Any], replies: Sequence[Reply]) -> Any:
    """The sum of a secure sum from copies of its mean."""
    return request.of_parts(request.layout.summed(replies), len(replies))


def config_of(request: Request[Any]) -> dict[str, Any]:
    """The config by which a server makes a request."""
    return {PHASE: request.phase, **request.to_config()}


def counting(run: RunSpec = RUN, phase: str = "counts") -> dict[str, Any]:
    """The config by which a server asks for counts."""
    return {PHASE: phase, VERSION: __version__, **run.to_config()}


def with_spec(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config with other fields in each of its specs."""
    specs = json.loads(zlib.decompress(config[key("specs")]))
    return {
        **config,
        key("specs"): zlib.compress(
            json.dumps([{**spec, **changes} for spec in specs]).encode()
        ),
    }


class Proxy(ClientProxy):
    """A party in this process.

    It goes through Flower's own NumPyClient wrapper, bytes included.
    """

    def __init__(
        self,
        cid: str,
        client: FlyNNClient | None = None,
        fails: BaseException | None = None,
    ) -> None:
        super().__init__(cid)
        self.client = None
        if client:
            self.client = client.to_client()
        self.fails = fails
        self.fits = self.evaluations = 0

    def fit(self, ins: Any, *_: Any, **__: Any) -> Any:
        self.fits += 1
        return self._answer("fit", ins)

    def evaluate(self, ins: Any, *_: Any, **__: Any) -> Any:
        self.evaluations += 1
        return self._answer("evaluate", ins)

    def _answer(self, name: str, ins: Any) -> Any:
        if self.fails:
            raise self.fails
        return getattr(self.client, name)(ins)

    def get_properties(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the strategy has initial parameters of its own")

    get_parameters = get_properties

    def reconnect(self, *args: Any, **kwargs: Any) -> Any:
        return None


def manager(*proxies: Proxy) -> SimpleClientManager:
    """A client manager to which these parties are connected."""
    clients = SimpleClientManager()
    for proxy in proxies:
        clients.register(proxy)
    return clients


class Node:
    """A party behind a ClientApp of the Message API.

    Parameters
    ----------
    client : FlyNNClient, optional
    fails : str, optional
        It answers with this error.
    spoil : callable, optional
        What becomes of the content of its replies on the way.
    """

    def __init__(
        self,
        client: FlyNNClient | None = None,
        fails: str | None = None,
        spoil: Callable[[RecordDict], RecordDict | None] | None = None,
    ) -> None:
        self.app = ClientApp()
        self.asked: list[str] = []
        self.fails = fails
        self.spoil = spoil

        @self.app.train()
        def train(msg: Message, context: Context) -> Message:
            return message.train(msg, client)

        @self.app.evaluate()
        def evaluate(msg: Message, context: Context) -> Message:
            return message.evaluate(msg, client)

    def answers(self, msg: Message) -> list[Message]:
        self.asked.append(msg.metadata.message_type)
        if self.fails is not None:
            return [Message(Error(0, self.fails), reply_to=msg)]
        reply = self.app(
            msg, Context(1, msg.metadata.dst_node_id, {}, RecordDict(), {})
        )
        if self.spoil is not None:
            spoiled = self.spoil(reply.content)
            if spoiled is None:
                return []
            return [Message(spoiled, reply_to=msg)]
        return [reply]


class FakeGrid(Grid):
    """A grid in this process.

    Parameters
    ----------
    nodes : dict of int to Node
    gives_ids : bool, default=True
        Whether requests get ids, as real grids give them.
    between : callable, optional
        Called with the messages to send; what it returns comes in addition to the
        replies.
    """

    run: Any = None

    def __init__(
        self,
        nodes: dict[int, Node],
        gives_ids: bool = True,
        between: Callable[[list[Message]], Iterable[Message]] = lambda messages: (),
    ) -> None:
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        TaskIdentity.task_id = 1
        self.nodes = nodes
        self.gives_ids = gives_ids
        self.between = between
        self.timeouts: list[float | None] = []

    def set_run(self, run: Any) -> None: ...

    create_message = push_messages = pull_messages = set_run  # type: ignore[assignment]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        messages = list(messages)
        self.timeouts.append(timeout)
        if self.gives_ids:
            for msg in messages:
                msg.metadata.__dict__["_message_id"] = msg.object_id
        more = list(self.between(messages))
        return [
            *(
                reply
                for msg in messages
                for reply in self.nodes[msg.metadata.dst_node_id].answers(msg)
            ),
            *more,
        ]


def content_of(res: FitRes) -> RecordDict:
    """A reply of the legacy API as one of the Message API.

    Its arrays may be broken in any way.
    """
    content = records.answer_content([], res.num_examples, res.metrics)
    for place, tensor in enumerate(res.parameters.tensors):
        try:
            (view,) = codec.read_tensors([tensor])
            dtype = str(view.dtype)
            shape = view.shape
        except PayloadError:
            dtype = "uint8"
            shape = (1,)
        content[records.ARRAYS][str(place)] = Array(dtype, shape, records.NUMPY, tensor)
    return content


def points(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Some points with labels of `CLASSES`."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, SPEC.n_features)), np.array(CLASSES)[
        random.integers(0, len(CLASSES), n)
    ]


def counts_of(X: np.ndarray, y: np.ndarray) -> ClassCounts:
    """Counts of a party that holds these points."""
    return ClassCounts.from_data(HASHER, X, RUN.codes(y), RUN.n_classes)


def encode_release(release: ClassCounts, mechanism: Mechanism) -> list[np.ndarray]:
    """A party's noisy counts as a message."""
    field = codec.release_field(HASHER, mechanism, 0)
    return to_arrays(
        [replace(field, fingerprint=release.spec_fingerprint)], [release.array]
    )


def decode_release(
    arrays: Any, hasher: FlyHash, mechanism: Mechanism, max_examples: int
) -> ClassCounts:
    """The noisy counts of one party in a message."""
    run = RunSpec(hasher.spec, tuple(range(mechanism.n_classes)), mechanism)
    counts = tally_of(CountsRequest(run), max_examples).read(
        arrays, Reply("1", (), NOISY_EXAMPLES, {}), None
    )
    return counts.parts[0]


def fit_res(arrays: list[np.ndarray], n_examples: Any, **metrics: Any) -> FitRes:
    """A reply that Flower delivers."""
    named = {key.replace("_", "-"): value for key, value in metrics.items()}
    return FitRes(
        Status(Code.OK, "Success"), ndarrays_to_parameters(arrays), n_examples, named
    )


def good_res(n: int = 5, seed: int = 0, **metrics: Any) -> FitRes:
    """The reply of a party that counted `n` points."""
    return fit_res(codec.encode(counts_of(*points(n, seed))), n, **metrics)


def good_reply(cid: str, n: int = 5, seed: int = 0, **metrics: Any) -> Reply:
    """The same as the strategies hand it to a `Run`."""
    res = good_res(n, seed, **metrics)
    return Reply(cid, res.parameters.tensors, res.num_examples, res.metrics)


def dealt(y: np.ndarray, n_parties: int, how: str, seed: int = 0) -> list[np.ndarray]:
    """Shares of points, of which some may be empty.

    They are dealt "iid", "dirichlet" (alpha 0.1) or "pathological" (two classes each).
    """
    random = np.random.default_rng(seed)
    if how == "iid":
        return np.array_split(random.permutation(len(y)), n_parties)
    owner = np.empty(len(y), int)
    for label in np.unique(y):
        places = random.permutation(np.flatnonzero(y == label))
        if how == "dirichlet":
            share = random.dirichlet(np.full(n_parties, 0.1))
            owner[places] = random.choice(n_parties, len(places), p=share)
        else:
            owner[places] = random.choice(
                random.choice(n_parties, 2, replace=False), len(places)
            )
    return [np.flatnonzero(owner == party) for party in range(n_parties)]


def evaluation_of(
    run: RunSpec,
    counts: Any,
    scorings: Any,
    weights: Any = (1.0,),
    n_releases: int = 0,
    calibration: Any = None,
    linear: Any = None,
    forest: Any = None,
    **more: Any,
) -> EvaluationRequest:
    """A request to evaluate the model of these members; `more` may be `tries`."""
    members = list(map(ModelMember, run.specs, counts, scorings, weights))
    model = model_of_members(run, members, calibration, linear, forest)
    return EvaluationRequest(run, model, n_releases, **{"tries": True, **more})


def federation_of(
    run: RunSpec,
    totals: CountsOfSpecs,
    members: Any,
    scorings: Any,
    weights: Any = (1.0,),
    phase: str = "",
    max_members: int = 1,
) -> Federation:
    """A federation of these sums; without weights, before its selection."""
    weighed = map(
        ModelMember,
        run.specs,
        totals.parts,
        scorings,
        weights or (1.0,) * len(run.specs),
    )
    return Federation(
        run,
        model_of_members(run, list(weighed)),
        members,
        phase,
        max_members,
        bool(weights),
    )
