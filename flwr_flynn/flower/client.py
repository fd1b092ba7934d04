"""Flower's client of one party; `federated.party` has the logic.

Every failure is a reply with a reason and without arrays. An exception would reach the
server without its sender.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from logging import INFO
from pathlib import Path
from typing import Any

import numpy.typing as npt
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Scalar,
    Status,
    ndarrays_to_parameters,
)
from flwr.common.logger import log

from flwr_flynn import __version__
from flwr_flynn.errors import ConfigError, FlyNNError
from flwr_flynn.federated import plan as plan  # makes the requests of its phases known
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.private_rows import RowReader
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Entries
from flwr_flynn.federated.samples import Features
from flwr_flynn.federated.views import reason_of
from flwr_flynn.flower import secagg
from flwr_flynn.flower.records import metrics_of

_OK = Status(Code.OK, "Success")


class FlyNNClient(NumPyClient):
    """Flower client of one party and its samples.

    Parameters
    ----------
    X : (n, d) array-like, data frame or scipy sparse, optional
        Training samples. Categories, gaps and dates take a run with a schema. n may be
        0; such a party sends zeros and is counted.
    y : (n,) array-like, optional
        Their labels, strings or integers.
    X_test, y_test : like `X` and `y`, optional
        Test samples for the evaluation of the federated model. Without them the party
        receives the model and reports no results.
    load : callable or RowReader, optional
        Function that returns `federated.party.Samples`, instead of samples. Its
        argument is the names of the run's features or its schema, () without either.
        With a budget the client calls it after the ledger has admitted a request, with
        () whatever is asked, so that the request has no part in a failure. With a
        budget also a `federated.private_rows.RowReader`, or a function that returns
        one.
    **options
        Fields of `federated.party.PartyOptions`: `name`, `member`, `memory_limit`,
        `min_examples`, `keep`, `n_jobs`, `budget`, `evaluates`, `secure`, `products`,
        `table_one`, `class_prior`, `related_rows`, `leaves`, `previous`,
        `response_seconds`, `on_model` and `on_answer`.

    Raises
    ------
    ConfigError
        A setting is not as described; the message names it. Samples are checked when
        the server asks.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_flynn import HashSpec
    >>> from flwr_flynn.federated import codec
    >>> from flwr_flynn.federated.protocol import PHASE
    >>> from flwr_flynn.federated.run_spec import RunSpec
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> client = FlyNNClient(X, ["cat", "dog"], name="Basel")
    >>> spec = HashSpec(n_features=2, hash_dim=8, row_nnz=1, hash_nnz=2, seed=7)
    >>> run = RunSpec(spec, ["cat", "dog"])
    >>> message, n_examples, metrics = client.fit([], {PHASE: "counts", **run.to_config()})
    >>> counts = codec.decode_all(message, [run.hasher], run.n_classes)[0]
    >>> counts.n_per_class, n_examples, metrics["flynn-party"]
    (array([1, 1]), 2, 'Basel')

    In a ``client_fn``: ``return FlyNNClient(X, y).to_client()``.
    """

    def __init__(
        self,
        X: Any = None,
        y: npt.ArrayLike | None = None,
        *,
        X_test: Any = None,
        y_test: npt.ArrayLike | None = None,
        load: RowReader | Callable[[Features], Samples | RowReader] | None = None,
        **options: Any,
    ) -> None:
        given = [array is not None for array in (X, y)]
        tests = [array is not None for array in (X_test, y_test)]
        if load is not None and any(given + tests):
            raise ConfigError(
                "load", "none of X, y, X_test and y_test beside it", "both"
            )
        if load is None and not all(given):
            got = "neither"
            if any(given):
                got = "one of them"
            raise ConfigError("X, y", "both, or load", got)
        if any(tests) and not all(tests):
            raise ConfigError("X_test, y_test", "both or neither", "one of them")
        checked = PartyOptions(**options)
        self.name = checked.name
        self.party = Party(
            load or Samples(X, y, X_test, y_test), checked, secagg.require_mask
        )

    def fit(
        self, parameters: Sequence[Any], config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Answer a request of the train channel.

        `parameters` are arrays or, through `to_client`, Flower's tensors as bytes.
        """
        _log_package()
        answer = self.party.answer(config, parameters, channel=TRAIN)
        return answer.arrays, answer.n_examples, answer.metrics

    def evaluate(
        self, parameters: Sequence[Any], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Answer a request of the evaluate channel: receive the model, and evaluate it."""
        _log_package()
        answer = self.party.answer(config, parameters, EVALUATE)
        accuracy = answer.metrics.get("accuracy")
        loss = 0.0
        if isinstance(accuracy, float):
            loss = 1 - accuracy
        return loss, answer.n_examples, metrics_of(answer)

    def to_client(self) -> Client:
        """Client for Flower that checks the sizes that a server declares.

        Flower's own wrapper does not.
        """
        return _Wire(self)


@cache
def _log_package() -> None:
    """Log version and folder of the package once in a process.

    An app may bring a version of its own.
    """
    folder = Path(__file__).resolve().parents[1]
    log(
        INFO,
        "FlyNN: flwr-flynn %s in %s, Flower %s",
        __version__,
        folder,
        version("flwr"),
    )


class _Wire(Client):
    """A client as Flower wraps it, whose party decodes the arrays that arrive."""

    def __init__(self, client: FlyNNClient) -> None:
        self.client = client

    def declined(
        self, error: FlyNNError, config: Entries, channel: str
    ) -> dict[str, Scalar]:
        """The refusal of a malformed request, recorded."""
        reason = reason_of("the request", error, hides=False)
        return self.client.party.decline(reason, config, channel).metrics

    def fit(self, ins: FitIns) -> FitRes:
        tensors = ins.parameters.tensors
        fitted, n_examples, metrics = self.client.fit(tensors, ins.config)
        return FitRes(_OK, ndarrays_to_parameters(fitted), n_examples, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        tensors = ins.parameters.tensors
        loss, n_examples, metrics = self.client.evaluate(tensors, ins.config)
        return EvaluateRes(_OK, loss, n_examples, metrics)
