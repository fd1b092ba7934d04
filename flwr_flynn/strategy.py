"""FlyNN as a Flower strategy: ask every party once for its counts, add them up, hand the model back.

One round does all of it. More rounds are for stragglers: they ask only the parties that are not counted yet.

In a ServerApp's main function::

    spec = HashSpec.suggest(n_features=64)
    strategy = FlyNNStrategy(spec=spec, classes=range(10), min_available_clients=10, min_parties=8)
    config = ServerConfig(num_rounds=1)
    DefaultWorkflow()(grid, LegacyContext(context, config=config, strategy=strategy))
    strategy.model.save("model.npz")

Nothing of Flower runs after the last round, so whoever wants the model asks for `FlyNNStrategy.model`; where
fewer parties than `min_parties` were counted, that raises an `AggregationError` that tells who is missing and
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
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
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import payload
from flwr_flynn.aggregation import NO_REPLY, Aggregator, Batch, Party, Reply, clean
from flwr_flynn.classifier import FlyNNClassifier
from flwr_flynn.counts import ClassCounts
from flwr_flynn.errors import ConfigError
from flwr_flynn.metrics import summary
from flwr_flynn.spec import HashSpec
from flwr_flynn.terms import PREFIX, Label, Terms, whole_number

ConfigFn = Callable[[int], dict[str, Scalar]]
EvaluateFn = Callable[[int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class FlyNNStrategy(Strategy):
    """Sums the class counts of all parties.

    Parameters
    ----------
    spec : HashSpec
        The hash that all parties use.
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
        The model's gamma, 0 <= gamma < 1; "auto" has it picked from the summed counts.
    rule : str, default="balanced"
        The model's read-out, see `FlyNNClassifier`.
    feature_names : sequence of str, optional
        Names of the columns, for the model.
    fraction_evaluate : float, default=1.0
        Share of the parties that get the model and try it on the points they held out; 0 leaves that out.
    min_evaluate_clients : int, default=1
        How many they are at least.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_clients`. Then the round starts with those that are there.
    evaluate_fn, on_fit_config_fn, on_evaluate_config_fn, accept_failures, fit_metrics_aggregation_fn, \
evaluate_metrics_aggregation_fn
        As in `flwr.server.strategy.FedAvg`. `evaluate_fn` gets the summed counts as `payload.encode` writes
        them, in round 0 those of no points. A reply that is refused, or does not come, is a failure too.

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

    def __init__(
        self,
        *,
        spec: HashSpec,
        classes: Sequence[Label],
        min_available_clients: int,
        min_parties: int,
        max_examples_per_party: int | None = None,
        decay: float | str = "auto",
        rule: str = "balanced",
        feature_names: Sequence[str] | None = None,
        fraction_evaluate: float = 1.0,
        min_evaluate_clients: int = 1,
        wait_timeout: int = 86400,
        evaluate_fn: EvaluateFn | None = None,
        on_fit_config_fn: ConfigFn | None = None,
        on_evaluate_config_fn: ConfigFn | None = None,
        accept_failures: bool = True,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
    ) -> None:
        terms = Terms(spec, classes, feature_names=feature_names)
        self.min_available_clients = whole_number("min_available_clients", min_available_clients)
        self.min_parties = whole_number("min_parties", min_parties)
        self.min_evaluate_clients = whole_number("min_evaluate_clients", min_evaluate_clients)
        if max_examples_per_party is not None:
            max_examples_per_party = whole_number("max_examples_per_party", max_examples_per_party)
        if min_parties > min_available_clients:
            raise ConfigError(
                f"min_parties: expected at most min_available_clients = {min_available_clients}, got {min_parties}"
            )
        for name, share, most in (
            ("fraction_evaluate", fraction_evaluate, 1),
            ("wait_timeout", wait_timeout, 10**9),
        ):
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= most:
                raise ConfigError(f"{name}: expected a number from 0 to {most}, got {share!r}")
        self.decay = decay
        self.rule = rule
        self.fraction_evaluate = fraction_evaluate
        self.wait_timeout = wait_timeout
        self.evaluate_fn = evaluate_fn
        self.on_fit_config_fn = on_fit_config_fn
        self.on_evaluate_config_fn = on_evaluate_config_fn
        self.accept_failures = accept_failures
        self.fit_metrics_aggregation_fn = fit_metrics_aggregation_fn
        self.evaluate_metrics_aggregation_fn = evaluate_metrics_aggregation_fn
        self.evaluation: dict[str, Any] | None = None
        self.evaluation_missing: dict[str, str] = {}
        self._aggregator = Aggregator(terms, self.min_parties, max_examples_per_party)
        self._model: FlyNNClassifier | None = None  # of the present counts
        self._handed_out: ClassCounts | None = None
        self._asked: list[str] = []  # in the current fit or evaluate round
        try:
            self._build_model()
        except ValueError as error:  # a decay or a rule that it does not know: better now than in the end
            raise ConfigError(str(error)) from None

    def __repr__(self) -> str:
        return (
            f"FlyNNStrategy(counted={len(self.parties)}, min_parties={self.min_parties}, "
            f"min_available_clients={self.min_available_clients})"
        )

    # ---- what came of it

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that the counts of all parties make.

        Raises
        ------
        AggregationError
            Fewer than `min_parties` are counted; the message tells who is missing and why.
        """
        self._aggregator.require_enough()
        if self._model is None:
            self._model = self._build_model()
        return self._model

    @property
    def counts(self) -> ClassCounts:
        """The sum over the parties counted so far."""
        return self._aggregator.counts

    @property
    def parties(self) -> list[Party]:
        """The parties counted so far, with the number of their examples and the size of their reply."""
        return self._aggregator.parties

    @property
    def missing(self) -> dict[str, str]:
        """The parties that were asked and are not counted, with the reason."""
        return self._aggregator.missing

    def _build_model(self) -> FlyNNClassifier:
        terms = self._aggregator.terms
        return FlyNNClassifier.from_counts(
            terms.spec,
            self.counts,
            list(terms.classes),
            decay=self.decay,
            rule=self.rule,
            feature_names=terms.feature_names,
        )

    # ---- Flower's calls, in the order in which they come

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """The model of no points: never None, for which Flower would ask some party."""
        self.summary()
        return _as_parameters(self.counts)

    def summary(self) -> None:
        """Log what is going to happen."""
        terms = self._aggregator.terms
        spec = terms.spec
        kind = "+1/-1" if spec.signed else "0/1"
        evaluated = f"{self.fraction_evaluate:.0%} of the parties" if self.fraction_evaluate else "left out"
        failures = "accepted" if self.accept_failures else "not accepted"
        for line in (
            "FlyNN: one sum of class counts, by all parties",
            f"  hash: {spec.n_features} features -> {spec.hash_dim} rows of {spec.row_nnz} {kind} entries, "
            f"{spec.hash_nnz} winners, seed {spec.seed}; fingerprint {terms.hasher.fingerprint[:16]}",
            f"  classes: {terms.n_classes}; counts: {terms.mode}; read-out: {self.rule}, decay {self.decay}",
            f"  parties: waits for {self.min_available_clients} (at most {self.wait_timeout} s), "
            f"needs {self.min_parties} counted; failures {failures}",
            f"  evaluation by the parties: {evaluated}",
        ):
            log(INFO, line)

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Try the counts with `evaluate_fn`, if there is one."""
        if self.evaluate_fn is None:
            return None
        return self.evaluate_fn(server_round, parameters_to_ndarrays(parameters), {})

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask every party that is there and not counted yet."""
        config = _merged(self.on_fit_config_fn, server_round, self._aggregator.terms.to_config())
        clients = [client for client in self._wait_for(client_manager) if not self._aggregator.is_counted(client.cid)]
        self._asked = [client.cid for client in clients]
        self._aggregator.ask(self._asked)
        # No parameters, as a party counts from nothing. To each its own config: what a client does to it stays there.
        return [(client, FitIns(ndarrays_to_parameters([]), dict(config))) for client in clients]

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
            All counts so far as `payload.encode` writes them; None if this round added nobody.
        metrics : dict
            Number of parties, examples and bytes so far, and what `fit_metrics_aggregation_fn` makes of the
            replies that passed.
        """
        aggregator = self._aggregator
        batch = aggregator.check(
            Reply(client.cid, res.parameters.tensors, res.num_examples, res.metrics) for client, res in results
        )
        # What can raise comes before anything is changed.
        parameters = _as_parameters(batch.total)
        metrics: dict[str, Scalar] = {}
        if self.fit_metrics_aggregation_fn is not None and batch.passed:
            metrics = self.fit_metrics_aggregation_fn(
                [(reply.n_examples, dict(reply.metrics)) for reply in batch.passed]
            )

        replied = {client.cid for client, _ in results}
        failed = _reasons([cid for cid in self._asked if cid not in replied], failures)
        for cid, reason in failed.items():
            aggregator.fail(cid, reason)
        if not self.accept_failures and (failures or failed or batch.refused):
            aggregator.discard(batch, "set aside with its round, because others failed")
            self._log_round(batch)
            return None, {}
        aggregator.commit(batch)
        self._log_round(batch)
        if not batch.accepted:
            return None, {}
        self._model = self.evaluation = None
        self.evaluation_missing = {}
        parties = self.parties
        ours: dict[str, Scalar] = {
            "parties": len(parties),
            "examples": self.counts.n_examples,
            "bytes": sum(party.bytes for party in parties),
        }
        return parameters, ours | metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Hand the model to the parties, once for every model that enough parties are counted in."""
        if not self.fraction_evaluate or not self._aggregator.enough or self._handed_out is self.counts:
            return []
        model = self.model
        config = _merged(
            self.on_evaluate_config_fn,
            server_round,
            {
                **self._aggregator.terms.to_config(),
                "flynn-decay": float(model.decay_),
                "flynn-rule": self.rule,
            },
        )
        clients = _present(client_manager)
        if self.fraction_evaluate < 1:
            size = max(int(len(clients) * self.fraction_evaluate), self.min_evaluate_clients)
            # Of those that are there now: FedAvg's sample would wait for parties that left after the fit.
            clients = client_manager.sample(min(size, len(clients)), min_num_clients=0)
        if clients:
            self._handed_out = self.counts
        self._asked = [client.cid for client in clients]
        return [(client, EvaluateIns(parameters, dict(config))) for client in clients]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add up the confusion matrices.

        Returns
        -------
        loss : float or None
            1 - accuracy over all parties' points; None without any.
        metrics : dict
            The figures of `evaluation` that Flower's history can hold, and what
            `evaluate_metrics_aggregation_fn` makes of the replies of parties with points.
        """
        aggregator = self._aggregator
        replies = {client.cid: res for client, res in reversed(results)}
        matrices, refused = aggregator.check_evaluation(
            Reply(client.cid, (), res.num_examples, res.metrics) for client, res in results
        )
        missing = _reasons([cid for cid in self._asked if cid not in replies], failures) | refused
        names = aggregator.names([*self._asked, *replies, *missing])
        for cid, reason in missing.items():
            log(WARNING, "FlyNN: %s: did not evaluate: %s", names[cid], reason)
        usable = matrices and (self.accept_failures or not (failures or missing))
        figures = summary({names[cid]: matrix for cid, matrix in matrices.items()}) if usable else None
        self.evaluation = figures
        self.evaluation_missing = {names[cid]: reason for cid, reason in missing.items()}
        if figures is None:
            return None, {}
        metrics: dict[str, Scalar] = {}
        if self.evaluate_metrics_aggregation_fn is not None:
            metrics = self.evaluate_metrics_aggregation_fn(
                [(replies[cid].num_examples, replies[cid].metrics) for cid in matrices]
            )
        log(
            INFO,
            "FlyNN: accuracy %.4f on %s examples of %s parties, at the worst of them %.4f",
            figures["accuracy"],
            figures["examples"],
            len(figures["parties"]),
            figures["worst_party"]["accuracy"],
        )
        same = ("accuracy", "balanced_accuracy", "macro_f1", "accuracy_std", "examples")
        ours: dict[str, Scalar] = {
            **{name: figures[name] for name in same},
            "worst_accuracy": figures["worst_party"]["accuracy"],
            "best_accuracy": figures["best_party"]["accuracy"],
            "worst_party": figures["worst_party"]["name"],
        }
        return 1 - figures["accuracy"], ours | metrics

    # ---- helpers

    def _wait_for(self, client_manager: ClientManager) -> list[ClientProxy]:
        """The parties that are there, once they and the counted ones that left make up `min_available_clients`."""
        here = {client.cid for client in _present(client_manager)}
        left = sum(1 for party in self.parties if party.cid not in here)
        if not client_manager.wait_for(self.min_available_clients - left, self.wait_timeout):
            log(
                WARNING,
                "FlyNN: waited %s s for %s parties; starting with the %s that are there",
                self.wait_timeout,
                self.min_available_clients,
                client_manager.num_available() + left,
            )
        return _present(client_manager)

    def _log_round(self, batch: Batch) -> None:
        """One line for every party: what came, and what was done with it."""
        aggregator = self._aggregator
        names = aggregator.names(batch.repeated)
        for party in aggregator.parties:
            if party.cid in batch.accepted:
                took = "" if party.seconds is None else f", {party.seconds:.2f} s"
                log(INFO, "FlyNN: %s: %s examples, %s bytes%s, accepted", party.name, party.examples, party.bytes, took)
        for cid in batch.repeated:
            log(WARNING, "FlyNN: %s: replied again, ignored", names[cid])
        for name, reason in aggregator.missing.items():
            log(WARNING, "FlyNN: %s: not counted: %s", name, reason)
        for name, cids in aggregator.namesakes().items():
            if batch.accepted.keys() & cids:
                log(
                    WARNING,
                    "FlyNN: %s COUNTED PARTIES GIVE THE SAME NAME, %s (nodes %s): if a node restarted under a new id, "
                    "its points are counted twice",
                    len(cids),
                    name,
                    ", ".join(cids),
                )
        enough = "" if aggregator.enough else f"; at least {self.min_parties} are needed"
        log(INFO, "FlyNN: %s parties counted%s", len(self.parties), enough)


def _present(client_manager: ClientManager) -> list[ClientProxy]:
    # Copied before it is gone through: Flower's thread adds to and takes from this very dict.
    return list(dict(client_manager.all()).values())


def _as_parameters(counts: ClassCounts) -> Parameters:
    return ndarrays_to_parameters(payload.encode(counts))


def _merged(theirs: ConfigFn | None, server_round: int, ours: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Our config entries beside those of the user's function."""
    config = {} if theirs is None else theirs(server_round)
    taken = sorted(str(key) for key in config if str(key).startswith(PREFIX))
    if taken:
        raise ConfigError(f"config of round {server_round}: keys with {PREFIX} are taken, got {', '.join(taken[:5])}")
    return {**config, **ours}


def _reasons(unanswered: list[str], failures: Iterable[Any]) -> dict[str, str]:
    """Why parties that were asked are not among the results, by cid."""
    failures = list(failures)
    told = {client.cid: res.status.message for client, res in (f for f in failures if isinstance(f, tuple))}
    # A client's exception arrives without its sender: whose it is, is certain only where a single one is missing.
    texts = [str(failure) for failure in failures if isinstance(failure, BaseException)]
    unknown = NO_REPLY
    if texts and len(set(unanswered) - told.keys()) == 1:
        unknown = f"failed: {texts[0]}"
    elif texts:
        unknown = f"{NO_REPLY} or a failure ({len(texts)} without a name, the first: {texts[0][:100]})"
    reasons = dict.fromkeys(unanswered, unknown) | {cid: f"failed: {text}" for cid, text in told.items()}
    return {cid: clean(reason, 200) for cid, reason in reasons.items()}
