"""FlyNN over Flower's Message API: the strategy for `strategy.start(grid, ...)`, the client for `@app.train()`.

In a ServerApp's main function::

    strategy = message.FlyNNStrategy(spec=spec, classes=range(10), min_available_nodes=10, min_parties=8)
    strategy.start(grid)
    strategy.model.save("model.npz")

and in a ClientApp::

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return message.train(msg, FlyNNClient(X, y))

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        return message.evaluate(msg, FlyNNClient(X, y, X_test=X_test, y_test=y_test))

What is asked, counted, chosen and refused is as in the module `strategy`; only the messages differ, see `contents`. An
`action` tells FlyNN's messages from those of another strategy that the same ClientApp serves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.client import Client
from flwr.common import EvaluateIns, FitIns, Parameters
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.membership import Identify, unknown
from flwr_flynn.federated.protocol import Label, whole_number
from flwr_flynn.federated.roster import Reply
from flwr_flynn.flower import records
from flwr_flynn.flower.base_strategy import Conductor, Failures, More, Request, merged
from flwr_flynn.flower.client import FlyNNClient
from flwr_flynn.flower.records import EXAMPLES, NUMPY, answer, config_of, record, reply_of, split, tensors_of
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import Mechanism

AggregationFn = Callable[[list[RecordDict], str], MetricRecord]

_DEFAULT = "default"


class FlyNNStrategy(Conductor, Strategy):
    """Sums the class counts of all parties, over Flower's Message API.

    Parameters
    ----------
    spec, classes, min_parties, max_examples_per_party, decay, rule, feature_names, min_examples, mechanism, \
federation, purpose, identify, hand_out, wait_timeout, accept_failures
        As for `strategy.FlyNNStrategy`.
    min_available_nodes : int
        How many parties to wait for before a round starts.
    fraction_evaluate : float, optional
        As for `strategy.FlyNNStrategy`: 1.0 by default, with a mechanism 0.0.
    min_evaluate_nodes : int, default=1
        How many parties try the model at least, if `fraction_evaluate` is not 0.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in `flwr.serverapp.strategy.FedAvg`: (replies, "num-examples") -> MetricRecord. They see the replies that
        passed, of counts and of evaluations only. By default the figures are FlyNN's own alone.
    action : str, default="default"
        The name under which parties registered: "flynn" for `@app.train("flynn")` and `@app.evaluate("flynn")`.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.

    Attributes
    ----------
    evaluation, evaluation_missing, unkept
        As for `strategy.FlyNNStrategy`.

    References
    ----------
    Ram & Sinha, "Federated Nearest Neighbor Classification with a Colony of Fruit-Flies", AAAI 2022,
    Algorithm 2.

    Examples
    --------
    >>> from flwr_flynn import HashSpec
    >>> from flwr_flynn.flower import message
    >>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
    >>> message.FlyNNStrategy(spec=spec, classes=["cat", "dog"], min_available_nodes=3, min_parties=2)
    FlyNNStrategy(counted=0, min_parties=2, min_available_nodes=3)
    """

    _members = "nodes"

    def __init__(
        self,
        *,
        spec: HashSpec | Sequence[HashSpec] | HashPlan,
        classes: Sequence[Label],
        min_available_nodes: int,
        min_parties: int,
        max_examples_per_party: int | None = None,
        decay: float | str = "auto",
        rule: str = "balanced",
        feature_names: Sequence[str] | None = None,
        min_examples: int = 5,
        mechanism: Mechanism | None = None,
        federation: Federation | None = None,
        purpose: str = "train",
        identify: Identify = unknown,
        fraction_evaluate: float | None = None,
        min_evaluate_nodes: int = 1,
        hand_out: bool = False,
        wait_timeout: int = 86400,
        accept_failures: bool = True,
        train_metrics_aggr_fn: AggregationFn | None = None,
        evaluate_metrics_aggr_fn: AggregationFn | None = None,
        action: str = _DEFAULT,
    ) -> None:
        if not isinstance(action, str) or not action.isidentifier():
            raise ConfigError(f"action: expected a name as of a Python variable, got {action!r}")
        self.min_available_nodes = whole_number("min_available_nodes", min_available_nodes)
        self.min_evaluate_nodes = whole_number("min_evaluate_nodes", min_evaluate_nodes)
        super().__init__(
            spec=spec,
            classes=classes,
            min_parties=min_parties,
            max_examples_per_party=max_examples_per_party,
            decay=decay,
            rule=rule,
            feature_names=feature_names,
            min_examples=min_examples,
            mechanism=mechanism,
            federation=federation,
            purpose=purpose,
            identify=identify,
            secure_bound=None,  # Flower has SecAgg+ for its legacy API only
            fraction_evaluate=fraction_evaluate,
            wait_timeout=wait_timeout,
            accept_failures=accept_failures,
            hand_out=hand_out,
        )
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.action = action
        self._sent: list[Metadata] = []  # of the requests of the current round; the grid gives them their ids

    @property
    def _min_available(self) -> int:
        return self.min_available_nodes

    @property
    def _min_evaluate(self) -> int:
        return self.min_evaluate_nodes

    @property
    def arrays(self) -> ArrayRecord:
        """The summed counts as `codec.encode` writes them; of several specs those of the chosen one."""
        return record(codec.write_tensors(codec.encode(self.counts)))

    # ---- Flower's calls

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            Not used: counting starts from nothing.
        num_rounds : int, optional
            By default as many as the run takes, `num_rounds`. In more rounds those parties are asked that are not
            counted yet.
        timeout : float, default=3600
            Seconds to wait for the replies of a round. A later reply is lost; its party is asked again if there is
            another round.
        train_config, evaluate_config : ConfigRecord, optional
            Entries for your own client code. Keys with ``flynn-`` are taken.
        evaluate_fn : callable, optional
            (server_round, arrays) -> MetricRecord or None. It gets `arrays`, in round 0 those of no points. It is not
            called before there is a spec.

        Returns
        -------
        Result
            Its `arrays` are the attribute `arrays`, or empty where fewer parties than `min_parties` are counted. Then
            asking for `model` raises an `AggregationError` that tells who is missing and why.
        """
        theirs = evaluate_fn

        def tried(server_round: int, _: ArrayRecord) -> MetricRecord | None:
            return None if theirs is None or self._course.is_summing else theirs(server_round, self.arrays)

        result = super().start(
            grid,
            ArrayRecord() if self._course.is_summing else self.arrays,
            self.num_rounds if num_rounds is None else num_rounds,
            timeout,
            train_config,
            evaluate_config,
            None if theirs is None else tried,
        )
        # Flower's own are the sums for all specs.
        counted = not self._course.is_summing and self._course.aggregator.enough
        result.arrays = self.arrays if counted else ArrayRecord()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask every party that is there and not counted yet."""
        ours = {"server-round": server_round, **self._course.ledger.config()}
        config_of_all = merged(config, server_round, ours)
        return self._messages(self._ask_to_count(self._wait_for(grid), config_of_all), MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies and add up those that pass.

        Returns
        -------
        arrays : ArrayRecord or None
            All counts so far as `codec.encode` writes them; None if this round added nobody, or was for the sums of
            the columns.
        metrics : MetricRecord or None
            Number of parties, examples (not of noisy counts) and bytes so far, and what `train_metrics_aggr_fn` makes
            of the replies that passed.
        """
        if not self._asked:  # Flower calls this in every round
            return None, None
        read, found, failures = self._received(replies)
        tensors, metrics = self._take_counts(read, failures, _more(self.train_metrics_aggr_fn, found))
        if tensors is None:
            return None, None
        return record(tensors), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Ask for the choice, or hand the chosen model out: each once for all counts that enough parties are in."""
        present = _present(grid)
        request = self._ask_about_model(
            server_round,
            present,
            lambda: {**config, "server-round": server_round},
            lambda size: random.sample(present, size),
        )
        return [] if request is None else self._messages(request, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add up the confusion matrices, or make the choice.

        Returns
        -------
        MetricRecord or None
            The numbers of `evaluation`, and what `evaluate_metrics_aggr_fn` makes of the replies of parties with
            points. None without any, and after a choice.
        """
        if not self._asked:
            return None
        read, found, failures = self._received(replies)
        figures = self._take_answers(read, failures, _more(self.evaluate_metrics_aggr_fn, found))
        return None if figures is None else MetricRecord(split(figures)[0])

    # ---- messages

    def _wait_for(self, grid: Grid) -> list[str]:
        """The parties that are there, once they and the counted ones that left make up `min_available_nodes`."""
        end = time.monotonic() + self.wait_timeout
        while len(present := _present(grid)) + self._left(present) < self.min_available_nodes:
            rest = end - time.monotonic()
            if rest <= 0:
                self._warn_of_few(len(present) + self._left(present))
                break
            time.sleep(min(rest, 1))
        return present

    def _messages(self, request: Request, category: str) -> list[Message]:
        kind = category if self.action == _DEFAULT else f"{category}.{self.action}"
        # One content for all, as in FedAvg: a grid sends what is the same once.
        content = records.request(request.tensors, request.config)
        messages = [Message(content, dst_node_id=int(cid), message_type=kind) for cid in request.cids]
        self._sent = [each.metadata for each in messages]
        return messages

    def _received(self, messages: Iterable[Message]) -> tuple[list[Reply], dict[int, RecordDict], Failures]:
        """Replies of parties that were asked, their contents by the id of the reply, and what is no reply."""
        asked = set(self._asked)
        requests = {sent.message_id: str(sent.dst_node_id) for sent in self._sent if sent.message_id}
        replies: list[Reply] = []
        found: dict[int, RecordDict] = {}
        failures = Failures()
        for each in messages:
            sender = str(each.metadata.src_node_id)
            addressee = requests.get(each.metadata.reply_to_message_id)
            if each.has_error():
                # Errors that the SuperLink makes up for a party that is gone do not name it, but what they are about.
                cid = addressee or sender
                if cid in asked:
                    failures.named[cid] = f"failed: {each.error.reason}"
                else:
                    failures.unnamed.append(str(each.error.reason))
            elif sender not in asked or (requests and addressee != sender):
                # A party wrote all of this itself: it may speak for no other, and only to what it is asked now.
                log(WARNING, "FlyNN: node %s: replied to nothing that it was asked in this round, ignored", sender)
            else:
                content = each.content if each.has_content() else RecordDict()
                replies.append(reply_of(sender, content))
                found[id(replies[-1])] = content
        return replies, found, failures


def train(message: Message, party: FlyNNClient | Client) -> Message:
    """Answer a message to `@app.train()`: a party's counts, or the sums of its columns.

    Parameters
    ----------
    message : Message
    party : FlyNNClient

    Returns
    -------
    Message
        With the records "arrays", "metrics" and "config"; or without arrays and with the reason, if the party refuses.

    Notes
    -----
    Whatever goes wrong in here is told without a value of the data. What your own code raises, while it loads them for
    example, Flower sends to the server with its text.

    Examples
    --------
    >>> from flwr_flynn import HashSpec
    >>> from flwr_flynn.federated.protocol import Terms
    >>> terms = Terms(HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7), ["cat", "dog"])
    >>> now = time.time()
    >>> envelope = Metadata(1, "request-1", 0, 17, "", "", now, 60, "train")  # by the server, for node 17
    >>> request = Message(content=records.request([], terms.to_config()), metadata=envelope)
    >>> reply = train(request, FlyNNClient([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"], name="Basel"))
    >>> [array.dtype for array in reply.content["arrays"].values()], reply.content["metrics"]["num-examples"]
    (['uint8', 'uint8'], 2)
    """
    res = _client(party).fit(FitIns(Parameters([], NUMPY), config_of(_content(message))))
    return Message(answer(res.parameters.tensors, res.num_examples, res.metrics), reply_to=message)


def evaluate(message: Message, party: FlyNNClient | Client) -> Message:
    """Answer a message to `@app.evaluate()`: take the model and try it, or take part in the choice of one.

    Parameters
    ----------
    message : Message
    party : FlyNNClient

    Returns
    -------
    Message
        With the records "metrics" and "config"; or with the reason, if the party refuses.
    """
    content = _content(message)
    try:
        tensors = tensors_of(content)
    except PayloadError as error:
        name = getattr(party, "name", None)
        refusal = {"flynn-refused": str(error)} | ({"flynn-party": name} if name else {})
        return Message(answer([], 0, refusal), reply_to=message)
    res = _client(party).evaluate(EvaluateIns(Parameters(tensors, NUMPY), config_of(content)))
    return Message(answer([], res.num_examples, res.metrics), reply_to=message)


def _client(party: FlyNNClient | Client) -> Client:
    return party.to_client() if isinstance(party, FlyNNClient) else party


def _content(message: Message) -> RecordDict:
    return message.content if message.has_content() else RecordDict()


def _more(aggregation_fn: AggregationFn | None, contents: Mapping[int, RecordDict]) -> More | None:
    if aggregation_fn is None:
        return None
    return lambda replies: aggregation_fn([contents[id(reply)] for reply in replies], EXAMPLES)


def _present(grid: Grid) -> list[str]:
    return [str(node_id) for node_id in grid.get_node_ids()]
