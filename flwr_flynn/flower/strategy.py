"""FlyNN as a Flower strategy: ask every party once for its counts, add them up, hand the model back.

In a ServerApp's main function::

    spec = HashSpec.suggest(n_features=64)
    strategy = FlyNNStrategy(spec=spec, classes=range(10), min_available_clients=10, min_parties=8)
    config = ServerConfig(num_rounds=strategy.num_rounds)
    DefaultWorkflow()(grid, LegacyContext(context, config=config, strategy=strategy))
    strategy.model.save("model.npz")

With a mechanism of `flwr_flynn.privacy` the parties' counts come with noise, in that one round, and the model has a
guarantee. Without one:

The parties count once, in one round. There is a round before it if centre and scale of the hash are to come from sums
of the parties' columns (a `choice.Plan` as the `spec`). If there is something to choose, a decay or one of several
specs, the evaluation of the counting round is for the choice, and the chosen model is handed out in the next round;
where no round is left, there is a chosen model, but no figures on held-out points. `FlyNNStrategy.num_rounds` tells how
many rounds all of it takes. More rounds are for stragglers: they ask only the parties that are not counted yet.

Nothing of Flower runs after the last round, so whoever wants the model asks for `FlyNNStrategy.model`; where
fewer parties than `min_parties` were counted, that raises an `AggregationError` that tells who is missing and
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    MetricsAggregationFn,
    NDArrays,
    Parameters,
    Scalar,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn.federated import codec
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.membership import Identify, unknown
from flwr_flynn.federated.protocol import Label, whole_number
from flwr_flynn.federated.roster import Reply
from flwr_flynn.flower.base_strategy import Conductor, Failures, More, merged
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.model.candidates import HashPlan
from flwr_flynn.privacy import Mechanism

ConfigFn = Callable[[int], dict[str, Scalar]]
EvaluateFn = Callable[[int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class FlyNNStrategy(Conductor, Strategy):
    """Sums the class counts of all parties.

    Parameters
    ----------
    spec : HashSpec, sequence of HashSpec, or HashPlan
        The hash that all parties use. Of several, all are counted in the one round, and the parties' leave-one-out
        chooses. A plan leaves it to the run to derive one or several from the sums of the parties' columns.
    classes : sequence of str or of int
        The class labels, all different. A party with a label outside the list refuses.
    min_available_clients : int
        How many parties to wait for before a round starts.
    min_parties : int
        How many parties must be counted in the end, at most `min_available_clients`.
    max_examples_per_party : int, optional
        Refuse counts of more points. By default only such are refused as would leave
        the int64 sum without room for others, see `aggregation.Aggregator`.
    decay : float or "auto", default="auto"
        The model's gamma, 0 <= gamma < 1; "auto" has it chosen by leave-one-out at the parties, or, if
        `fraction_evaluate` is 0 or nobody replies, suggested by the summed counts.
    rule : str, default="balanced"
        The model's read-out, see `FlyNNClassifier`.
    feature_names : sequence of str, optional
        Names of the columns, for the model.
    min_examples : int, default=5
        Sums of columns: a party leaves out classes of fewer points, by the larger of this number and its own. With 1,
        sums may be a single point.
    mechanism : Mechanism, optional
        One of `flwr_flynn.privacy`, for the spec's `hash_nnz` and as many classes: parties send noisy counts only, and
        only those whose own policy allows it (`FlyNNClient`'s `budget`). There is one spec then, nothing is learned of
        columns, and there is nothing to choose.
    federation : Federation, optional
        What was saved of a federation before, with its `spec`, `classes`, `mechanism` and `feature_names`, to go on
        from. `min_parties` is then how many must join or leave.
    purpose : {"train", "join", "withdraw", "evaluate"}, default="train"
        "train" makes a new federation. The others take one: "join" adds parties that are not in it, "withdraw" takes
        out those that ask for it, by the very counts that they were added by, and "evaluate" hands it out as it is.
    identify : callable, optional
        Gives the SHA-256 of the public key of the SuperNode with a node id, in hexadecimal, or "" where it is not
        known. Parties of a federation are known again by it, by their node id, or by the name they give.
    secure_bound : int, optional
        Count by a secure sum, of which the server learns no more than the total: a power of two that no party's counts
        exceed. The workflow must be `secagg.workflow`, and the parties' ClientApp have `secagg.mod`. There is one spec
        then and nothing to choose; a `mechanism` is a `GaussianCounts` with `n_honest`.
    fraction_evaluate : float, optional
        Share of the parties that get the model and try it on the points they held out; 0 leaves that out, and the
        choice with it: the model is then of the first spec. In the choice all counted parties have a say. By default
        1.0; with a mechanism 0.0, which does not cover the confusion matrices that parties would send.
    min_evaluate_clients : int, default=1
        How many they are at least.
    hand_out : bool, default=False
        Where `fraction_evaluate` is 0: whether all parties get the model nevertheless. They then send nothing about it
        but, if they could not keep it, why.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_clients`. Then the round starts with those that are there.
    evaluate_fn, on_fit_config_fn, on_evaluate_config_fn, accept_failures, fit_metrics_aggregation_fn, \
evaluate_metrics_aggregation_fn
        As in `flwr.server.strategy.FedAvg`. `evaluate_fn` gets the summed counts as `codec.encode` writes
        them, in round 0 those of no points; of several specs those of the chosen one, the first until then. It is not
        called before there is a spec. The functions for metrics see those of counts and of evaluations only. A reply
        that is refused, or does not come, is a failure too.

    Raises
    ------
    ConfigError
        A parameter is not as described; the message names it.

    Attributes
    ----------
    evaluation : dict or None
        What `metrics.summary` tells of the parties' evaluation of the present counts. None until there is one.
    evaluation_missing : dict of name to reason
        The parties that were asked to evaluate the present counts and reported nothing usable. If it is empty
        and `evaluation` is None, then nobody was asked, or no party holds points to test on.
    unkept : dict of name to reason
        The parties that got the present model and could not keep it, by their own account.

    References
    ----------
    Ram & Sinha, "Federated Nearest Neighbor Classification with a Colony of Fruit-Flies", AAAI 2022,
    Algorithm 2.

    Examples
    --------
    >>> from flwr_flynn import HashSpec
    >>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
    >>> FlyNNStrategy(spec=spec, classes=["cat", "dog"], min_available_clients=3, min_parties=2)
    FlyNNStrategy(counted=0, min_parties=2, min_available_clients=3)
    """

    _members = "clients"

    def __init__(
        self,
        *,
        spec: HashSpec | Sequence[HashSpec] | HashPlan,
        classes: Sequence[Label],
        min_available_clients: int,
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
        secure_bound: int | None = None,
        fraction_evaluate: float | None = None,
        min_evaluate_clients: int = 1,
        hand_out: bool = False,
        wait_timeout: int = 86400,
        evaluate_fn: EvaluateFn | None = None,
        on_fit_config_fn: ConfigFn | None = None,
        on_evaluate_config_fn: ConfigFn | None = None,
        accept_failures: bool = True,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
    ) -> None:
        self.min_available_clients = whole_number("min_available_clients", min_available_clients)
        self.min_evaluate_clients = whole_number("min_evaluate_clients", min_evaluate_clients)
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
            secure_bound=secure_bound,
            fraction_evaluate=fraction_evaluate,
            wait_timeout=wait_timeout,
            accept_failures=accept_failures,
            hand_out=hand_out,
        )
        self.evaluate_fn = evaluate_fn
        self.on_fit_config_fn = on_fit_config_fn
        self.on_evaluate_config_fn = on_evaluate_config_fn
        self.fit_metrics_aggregation_fn = fit_metrics_aggregation_fn
        self.evaluate_metrics_aggregation_fn = evaluate_metrics_aggregation_fn

    @property
    def _min_available(self) -> int:
        return self.min_available_clients

    @property
    def _min_evaluate(self) -> int:
        return self.min_evaluate_clients

    # ---- Flower's calls, in the order in which they come

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """The model of no points: never None, for which Flower would ask some party."""
        self.summary()
        nothing = () if self._course.is_summing else self._course.aggregator.total
        return _parameters(codec.write_tensors(codec.encode(*nothing)))

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Try the counts with `evaluate_fn`, if there is one."""
        if self.evaluate_fn is None or self._course.is_summing:
            return None
        # Not Flower's parameters: those are of all specs, and none where there was no spec yet.
        return self.evaluate_fn(server_round, codec.encode(self.counts), {})

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask every party that is there and not counted yet."""
        config = merged(_own(self.on_fit_config_fn, server_round), server_round, self._course.ledger.config())
        clients = self._wait_for(client_manager)
        request = self._ask_to_count(clients, config)
        # To each its own config: what a client does to it stays there.
        return [(clients[cid], FitIns(_parameters(request.tensors), dict(request.config))) for cid in request.cids]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Check the replies and add up those that pass.

        Returns
        -------
        parameters : Parameters or None
            All counts so far as `codec.encode` writes them; None if this round added nobody, or was for the sums of
            the columns.
        metrics : dict
            Number of parties, examples and bytes so far, and what `fit_metrics_aggregation_fn` makes of the
            replies that passed.
        """
        replies = [Reply(client.cid, res.parameters.tensors, res.num_examples, res.metrics) for client, res in results]
        tensors, metrics = self._take_counts(replies, _failures(failures), _more(self.fit_metrics_aggregation_fn))
        return None if tensors is None else _parameters(tensors), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask for the choice, or hand the chosen model out: each once for all counts that enough parties are in."""
        clients = _present(client_manager)

        def sample(size: int) -> list[str]:
            drawn = {client.cid: client for client in client_manager.sample(size, min_num_clients=0)}
            clients.update(drawn)
            return list(drawn)

        def theirs() -> dict[str, Scalar]:
            return _own(self.on_evaluate_config_fn, server_round)

        request = self._ask_about_model(server_round, list(clients), theirs, sample)
        if request is None:
            return []
        sent = _parameters(request.tensors)
        return [(clients[cid], EvaluateIns(sent, dict(request.config))) for cid in request.cids]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add up the confusion matrices, or make the choice.

        Returns
        -------
        loss : float or None
            1 - accuracy over all parties' points; None without any, and after a choice.
        metrics : dict
            The figures of `evaluation` that Flower's history can hold, and what
            `evaluate_metrics_aggregation_fn` makes of the replies of parties with points.
        """
        replies = [Reply(client.cid, (), res.num_examples, res.metrics) for client, res in results]
        more = _more(self.evaluate_metrics_aggregation_fn)
        metrics = self._take_answers(replies, _failures(failures), more)
        if metrics is None or self.evaluation is None:
            return None, {}
        return 1 - self.evaluation["accuracy"], metrics

    def _wait_for(self, client_manager: ClientManager) -> dict[str, ClientProxy]:
        """The parties that are there, once they and the counted ones that left make up `min_available_clients`."""
        left = self._left(_present(client_manager))
        if not client_manager.wait_for(self.min_available_clients - left, self.wait_timeout):
            self._warn_of_few(client_manager.num_available() + left)
        return _present(client_manager)


def _present(client_manager: ClientManager) -> dict[str, ClientProxy]:
    # Copied before it is gone through: Flower's thread adds to and takes from this very dict.
    return {client.cid: client for client in dict(client_manager.all()).values()}


def _parameters(tensors: list[bytes]) -> Parameters:
    return Parameters(tensors, "numpy.ndarray")


def _own(config_fn: ConfigFn | None, server_round: int) -> dict[str, Scalar]:
    return {} if config_fn is None else config_fn(server_round)


def _more(aggregation_fn: MetricsAggregationFn | None) -> More | None:
    if aggregation_fn is None:
        return None
    return lambda replies: aggregation_fn([(reply.n_examples, dict(reply.metrics)) for reply in replies])


def _failures(failures: Iterable[Any]) -> Failures:
    """A client's exception arrives without its sender."""
    failures = list(failures)
    named = {
        client.cid: f"failed: {res.status.message}" for client, res in (f for f in failures if isinstance(f, tuple))
    }
    return Failures(named, [str(failure) for failure in failures if isinstance(failure, BaseException)])
