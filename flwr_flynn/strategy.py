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
)
from flwr.common.logger import log
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from flwr_flynn import payload
from flwr_flynn.choice import Plan
from flwr_flynn.choosing import Choice, Choosing
from flwr_flynn.classifier import FlyNNClassifier
from flwr_flynn.counts import ClassCounts
from flwr_flynn.course import Course
from flwr_flynn.errors import ConfigError
from flwr_flynn.federation import Federation
from flwr_flynn.ledger import NO_REPLY, Batch, Party, Reply, clean
from flwr_flynn.membership import Identify, unknown
from flwr_flynn.metrics import summary
from flwr_flynn.moments import ColumnSums
from flwr_flynn.privacy import Mechanism
from flwr_flynn.rounds import Traffic
from flwr_flynn.spec import HashSpec
from flwr_flynn.terms import PREFIX, Label, whole_number

ConfigFn = Callable[[int], dict[str, Scalar]]
EvaluateFn = Callable[[int, NDArrays, dict[str, Scalar]], tuple[float, dict[str, Scalar]] | None]


class FlyNNStrategy(Strategy):
    """Sums the class counts of all parties.

    Parameters
    ----------
    spec : HashSpec, sequence of HashSpec, or Plan
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
    action : {"train", "join", "withdraw", "evaluate"}, default="train"
        "train" makes a new federation. The others take one: "join" adds parties that are not in it, "withdraw" takes
        out those that ask for it, by the very counts that they were added by, and "evaluate" hands it out as it is.
    identify : callable, optional
        Gives the SHA-256 of the public key of the SuperNode with a node id, in hexadecimal, or "" where it is not
        known. Parties of a federation are known again by it, by their node id, or by the name they give.
    fraction_evaluate : float, optional
        Share of the parties that get the model and try it on the points they held out; 0 leaves that out, and the
        choice with it: the model is then of the first spec. In the choice all counted parties have a say. By default
        1.0; with a mechanism 0.0, which does not cover the confusion matrices that parties would send.
    min_evaluate_clients : int, default=1
        How many they are at least.
    wait_timeout : int, default=86400
        Seconds to wait for `min_available_clients`. Then the round starts with those that are there.
    evaluate_fn, on_fit_config_fn, on_evaluate_config_fn, accept_failures, fit_metrics_aggregation_fn, \
evaluate_metrics_aggregation_fn
        As in `flwr.server.strategy.FedAvg`. `evaluate_fn` gets the summed counts as `payload.encode` writes
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
        spec: HashSpec | Sequence[HashSpec] | Plan,
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
        action: str = "train",
        identify: Identify = unknown,
        fraction_evaluate: float | None = None,
        min_evaluate_clients: int = 1,
        wait_timeout: int = 86400,
        evaluate_fn: EvaluateFn | None = None,
        on_fit_config_fn: ConfigFn | None = None,
        on_evaluate_config_fn: ConfigFn | None = None,
        accept_failures: bool = True,
        fit_metrics_aggregation_fn: MetricsAggregationFn | None = None,
        evaluate_metrics_aggregation_fn: MetricsAggregationFn | None = None,
    ) -> None:
        self.min_available_clients = whole_number("min_available_clients", min_available_clients)
        self.min_parties = whole_number("min_parties", min_parties)
        self.min_evaluate_clients = whole_number("min_evaluate_clients", min_evaluate_clients)
        if max_examples_per_party is not None:
            max_examples_per_party = whole_number("max_examples_per_party", max_examples_per_party)
        if min_parties > min_available_clients:
            raise ConfigError(
                f"min_parties: expected at most min_available_clients = {min_available_clients}, got {min_parties}"
            )
        if fraction_evaluate is None:
            fraction_evaluate = 1.0 if mechanism is None else 0.0
        for name, share, most in (
            ("fraction_evaluate", fraction_evaluate, 1),
            ("wait_timeout", wait_timeout, 10**9),
        ):
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= most:
                raise ConfigError(f"{name}: expected a number from 0 to {most}, got {share!r}")
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
        self._course = Course(
            spec,
            classes,
            self.min_parties,
            max_examples_per_party,
            decay,
            rule,
            feature_names,
            min_examples,
            compares=fraction_evaluate > 0,
            mechanism=mechanism,
            federation=federation,
            action=action,
            identify=identify,
        )
        self._choosing: Choosing | None = None  # while the parties are asked
        self._handed_out: object = None  # the counts that were
        self._asked: list[str] = []  # in the current fit or evaluate round

    def __repr__(self) -> str:
        return (
            f"FlyNNStrategy(counted={len(self.parties)}, min_parties={self.min_parties}, "
            f"min_available_clients={self.min_available_clients})"
        )

    @property
    def num_rounds(self) -> int:
        """Rounds that a run takes if all parties are there from the start."""
        return self._course.num_rounds

    # ---- what came of it

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier that the counts of all parties make.

        Raises
        ------
        AggregationError
            Fewer than `min_parties` are counted; the message tells who is missing and why.
        """
        return self._course.model

    def federation(self, run: str) -> Federation:
        """What a later run can start from, to add parties or to take them out; not for the parties' eyes.

        Parameters
        ----------
        run : str
            How to call this run in it.

        Raises
        ------
        AggregationError
            As for `model`.
        """
        return self._course.federation(run)

    @property
    def mechanism(self) -> Mechanism | None:
        """What parties make noisy counts by."""
        return self._course.terms.mechanism

    @property
    def guarantee(self) -> str | None:
        """What the mechanism promises, in words; the model has it as `guarantee_`."""
        return self._course.guarantee

    @property
    def specs(self) -> tuple[HashSpec, ...]:
        """What the parties count by; raises an `AggregationError` while that waits for the sums of the columns."""
        return tuple(self._course.aggregator.terms.specs)

    @property
    def counts(self) -> ClassCounts:
        """The sum over the parties counted so far; of several specs that of the chosen one, the first until then."""
        return self._course.counts

    @property
    def parties(self) -> list[Party]:
        """The parties counted so far, with the number of their examples and the size of their reply."""
        return [] if self._course.is_summing else self._course.aggregator.parties

    @property
    def missing(self) -> dict[str, str]:
        """The parties that were asked and are not counted, with the reason."""
        return self._course.ledger.missing

    @property
    def choice(self) -> Choice | None:
        """What was chosen for the present counts, and how it compares.

        None until then, and where there is nothing to choose.
        """
        return self._course.choice

    @property
    def sums(self) -> ColumnSums | None:
        """The summed columns that the specs are derived from. None until then, and where they are not needed."""
        return self._course.sums

    @property
    def sums_missing(self) -> dict[str, str]:
        """The parties that were asked for the sums of their columns and are not in them, with the reason."""
        return self._course.sums_missing

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Bytes of the rounds so far: "sums", "counts", "choice" and "model", the evaluation."""
        return self._course.traffic

    # ---- Flower's calls, in the order in which they come

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """The model of no points: never None, for which Flower would ask some party."""
        self.summary()
        return _as_parameters(*(() if self._course.is_summing else self._course.aggregator.total))

    def summary(self) -> None:
        """Log what is going to happen."""
        terms, plan = self._course.terms, self._course.plan
        evaluated = f"{self.fraction_evaluate:.0%} of the parties" if self.fraction_evaluate else "left out"
        failures = "accepted" if self.accept_failures else "not accepted"
        hashes = self._hashes() if plan is None else [f"  hash: from sums of the columns, scaling {plan.scaling}"]
        for line in (
            "FlyNN: one sum of class counts, by all parties",
            *hashes,
            f"  classes: {terms.n_classes}; counts: {terms.mode}; read-out: {self._course.rule}, "
            f"decay {self._course.decay}",
            f"  parties: waits for {self.min_available_clients} (at most {self.wait_timeout} s), "
            f"needs {self.min_parties} counted; failures {failures}",
            f"  evaluation by the parties: {evaluated}; rounds: {self.num_rounds}",
            *self._promises(),
        ):
            log(INFO, line)

    def _promises(self) -> list[str]:
        if self.guarantee is None:
            return []
        uncovered = ["  NOT COVERED: the confusion matrices that parties send in the evaluation"]
        return [f"  privacy: {self.guarantee}", *(uncovered if self.fraction_evaluate else [])]

    def _hashes(self) -> list[str]:
        """A line for each spec."""
        lines = []
        for spec, hasher in zip(self._course.terms.specs, self._course.terms.hashers, strict=True):
            waves = f" and {spec.n_waves} waves" if spec.n_waves else ""
            lines.append(
                f"  hash: {spec.n_features} features{waves} -> {spec.hash_dim} rows of {spec.row_nnz} "
                f"{'+1/-1' if spec.signed else '0/1'} entries, {spec.hash_nnz} winners, seed {spec.seed}; "
                f"fingerprint {hasher.fingerprint[:16]}"
            )
        return lines

    def evaluate(self, server_round: int, parameters: Parameters) -> tuple[float, dict[str, Scalar]] | None:
        """Try the counts with `evaluate_fn`, if there is one."""
        if self.evaluate_fn is None or self._course.is_summing:
            return None
        # Not Flower's parameters: those are of all specs, and none where there was no spec yet.
        return self.evaluate_fn(server_round, payload.encode(self.counts), {})

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Ask every party that is there and not counted yet."""
        ledger = self._course.ledger
        config = _merged(self.on_fit_config_fn, server_round, ledger.config())
        clients = [client for client in self._wait_for(client_manager) if ledger.is_due(client.cid)]
        self._asked = [client.cid for client in clients]
        ledger.ask(self._asked)
        self._course.traffic_of(self._course.fit_step).ask(len(clients), [], config)
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
            All counts so far as `payload.encode` writes them; None if this round added nobody, or was for the sums of
            the columns.
        metrics : dict
            Number of parties, examples and bytes so far, and what `fit_metrics_aggregation_fn` makes of the
            replies that passed.
        """
        replies = [Reply(client.cid, res.parameters.tensors, res.num_examples, res.metrics) for client, res in results]
        course = self._course
        batch = course.ledger.check(replies)
        if course.is_summing:
            if self._settle(batch, failures, "sums of columns of "):
                self._derive_specs()
            return None, {}
        # What can raise comes before anything is changed.
        parameters = _as_parameters(*batch.total)
        metrics: dict[str, Scalar] = {}
        if self.fit_metrics_aggregation_fn is not None and batch.passed:
            metrics = self.fit_metrics_aggregation_fn(
                [(reply.n_examples, dict(reply.metrics)) for reply in batch.passed]
            )
        if not self._settle(batch, failures) or not batch.accepted:
            return None, {}
        course.recount()
        self.evaluation, self.evaluation_missing = None, {}
        parties = self.parties
        ours: dict[str, Scalar] = {
            "parties": len(parties),
            **({} if self.mechanism else {"examples": self.counts.n_examples}),
            "bytes": sum(party.bytes for party in parties),
        }
        return parameters, ours | metrics

    def _settle(self, batch: Batch[Any], failures: Iterable[Any], what: str = "") -> bool:
        """Commit a checked batch and note who is missing; or set it aside, if failures are not accepted."""
        ledger = self._course.ledger
        replied = {*batch.accepted, *batch.refused, *batch.repeated}
        failures = list(failures)
        failed = _reasons([cid for cid in self._asked if cid not in replied], failures)
        for cid, reason in failed.items():
            ledger.fail(cid, reason)
        accepted = self.accept_failures or not (failures or failed or batch.refused)
        if accepted:
            ledger.commit(batch)
        else:
            ledger.discard(batch, "set aside with its round, because others failed")
        for reply in batch.passed:
            self._course.traffic_of(self._course.fit_step).reply(reply.tensors, reply.metrics)
        self._log_round(batch, what)
        return accepted

    def _derive_specs(self) -> None:
        trouble = self._course.derive_specs()
        if trouble:
            log(WARNING, "FlyNN: THE COLUMNS ARE LEFT AS THEY ARE: %s", trouble)
        for line in self._hashes():
            log(INFO, "FlyNN:%s", line.removeprefix(" "))

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Ask for the choice, or hand the chosen model out: each once for all counts that enough parties are in."""
        course, self._choosing, self._asked = self._course, None, []
        if not self.fraction_evaluate or course.is_summing or not course.aggregator.enough:
            return []
        if course.is_choice_due:
            return self._ask_for_choice(server_round, client_manager)
        if self._handed_out is course.aggregator.total:
            return []
        model = self.model
        ours: dict[str, Scalar] = {
            **course.model_terms.to_config(),
            "flynn-decay": float(model.decay_),
            "flynn-rule": model.rule,
            "flynn-temperature": float(model.temperature_),
        }
        if self.mechanism is not None:
            ours["flynn-releases"] = sum(release.times for release in self.counts.noise)
        config = _merged(self.on_evaluate_config_fn, server_round, ours)
        if len(self.specs) > 1:
            parameters = _as_parameters(self.counts)
        clients = _present(client_manager)
        if self.fraction_evaluate < 1:
            size = max(int(len(clients) * self.fraction_evaluate), self.min_evaluate_clients)
            # Of those that are there now: FedAvg's sample would wait for parties that left after the fit.
            clients = client_manager.sample(min(size, len(clients)), min_num_clients=0)
        if clients:
            self._handed_out = course.aggregator.total
        return self._requests(clients, parameters, config, "model")

    def _ask_for_choice(
        self, server_round: int, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        aggregator = self._course.aggregator
        clients = [client for client in _present(client_manager) if aggregator.is_counted(client.cid)]
        if not clients:
            return []
        choosing = self._course.choosing()
        config = _merged(self.on_evaluate_config_fn, server_round, choosing.config())
        self._choosing = choosing
        self._course.ask(choosing)
        return self._requests(clients, _as_parameters(*aggregator.total), config, "choice")

    def _requests(
        self, clients: list[ClientProxy], parameters: Parameters, config: dict[str, Scalar], what: str
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        self._asked = [client.cid for client in clients]
        self._course.traffic_of(what).ask(len(clients), parameters.tensors, config)
        return [(client, EvaluateIns(parameters, dict(config))) for client in clients]

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
        aggregator = self._course.aggregator
        replies = {client.cid: res for client, res in reversed(results)}
        checked = [Reply(client.cid, (), res.num_examples, res.metrics) for client, res in results]
        missing = _reasons([cid for cid in self._asked if cid not in replies], failures)
        names = aggregator.names([*self._asked, *replies])
        if self._choosing is not None:
            self._choose(self._choosing, checked, missing, names, bool(failures))
            return None, {}
        matrices, refused = aggregator.check_evaluation(checked)
        for cid in matrices:
            self._course.traffic_of("model").reply((), replies[cid].metrics)
        missing |= refused
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

    def _choose(
        self,
        choosing: Choosing,
        replies: list[Reply],
        missing: dict[str, str],
        names: dict[str, str],
        failures: bool,
    ) -> None:
        """Take what the parties that replied lead to, for the counts that they were asked about."""
        ballots, refused = choosing.check(replies)
        missing |= refused
        for cid, metrics in {reply.cid: reply.metrics for reply in reversed(replies)}.items():
            if cid in ballots:
                self._course.traffic_of("choice").reply((), metrics)
        absent = {party.cid: party.name for party in self.parties if party.cid not in ballots}
        reasons = {name: missing.get(cid, "not there to be asked") for cid, name in absent.items()}
        for name, reason in {**reasons, **{names[cid]: missing[cid] for cid in missing.keys() - absent.keys()}}.items():
            log(WARNING, "FlyNN: %s: no say in the choice: %s", name, reason)
        if not self.accept_failures and (failures or missing):
            ballots = {}
        self._choosing = None
        choice = self._course.choose(choosing, ballots, reasons)
        log(
            INFO,
            "FlyNN: chose spec %s of %s and decay %.4g from %s of %s parties: %s",
            choice.spec + 1,
            len(self.specs),
            choice.decay,
            choice.parties,
            self._course.aggregator.n_parties,
            "not compared" if choice.accuracy is None else f"leave-one-out balanced accuracy {choice.accuracy:.4f}",
        )
        log(INFO, "FlyNN: the next round hands the chosen model out; without one it ends here, without figures")

    # ---- helpers

    def _wait_for(self, client_manager: ClientManager) -> list[ClientProxy]:
        """The parties that are there, once they and the counted ones that left make up `min_available_clients`."""
        here = {client.cid for client in _present(client_manager)}
        left = sum(1 for party in self._course.ledger.parties if party.cid not in here)
        if not client_manager.wait_for(self.min_available_clients - left, self.wait_timeout):
            log(
                WARNING,
                "FlyNN: waited %s s for %s parties; starting with the %s that are there",
                self.wait_timeout,
                self.min_available_clients,
                client_manager.num_available() + left,
            )
        return _present(client_manager)

    def _log_round(self, batch: Batch[Any], what: str) -> None:
        """One line for every party: what came, and what was done with it."""
        ledger = self._course.ledger
        names = ledger.names(batch.repeated)
        for party in ledger.parties:
            if party.cid in batch.accepted:
                took = "" if party.seconds is None else f", {party.seconds:.2f} s"
                points = "noisy counts" if party.examples is None else f"{party.examples} examples"
                line = f"{what}{points}, {party.bytes} bytes{took}, {ledger.outcome}"
                log(INFO, "FlyNN: %s: %s", party.name, line)
        for cid in batch.repeated:
            log(WARNING, "FlyNN: %s: replied again, ignored", names[cid])
        for name, reason in ledger.missing.items():
            log(WARNING, "FlyNN: %s: not counted: %s", name, reason)
        for name, cids in ledger.namesakes().items():
            if batch.accepted.keys() & cids:
                log(
                    WARNING,
                    "FlyNN: %s COUNTED PARTIES GIVE THE SAME NAME, %s (nodes %s): if a node restarted under a new id, "
                    "its points are counted twice",
                    len(cids),
                    name,
                    ", ".join(cids),
                )
        if not self._course.is_summing:
            enough = "" if ledger.enough else f"; at least {self.min_parties} are needed"
            log(INFO, "FlyNN: %s parties %s%s", len(self.parties), ledger.done, enough)


def _present(client_manager: ClientManager) -> list[ClientProxy]:
    # Copied before it is gone through: Flower's thread adds to and takes from this very dict.
    return list(dict(client_manager.all()).values())


def _as_parameters(*counts: ClassCounts) -> Parameters:
    return ndarrays_to_parameters(payload.encode(*counts))


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
