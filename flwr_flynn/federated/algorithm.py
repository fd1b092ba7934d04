"""The whole algorithm on one page: a federation in one process, without Flower.

Ram & Sinha, "Federated Nearest Neighbor Classification with a Colony of Fruit-Flies",
AAAI 2022, Algorithm 2, with the phases of this package around it. Simulations and the
tests of exactness call it; ``flwr run`` does the same with messages in between, and
ends with the same model, bit for bit.

>>> import numpy as np
>>> from flwr_flynn import HashSpec
>>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
>>> y = np.array([0, 0, 1, 1])
>>> spec = HashSpec(n_features=2, hash_dim=64, row_nnz=1, hash_nnz=4, seed=7)
>>> options = RunOptions(spec=spec, classes=(0, 1), min_parties=2)
>>> run = federate(options, [party_of(X[i::2], y[i::2]) for i in range(2)])
>>> run.model.predict([[0.2, 0.8]]), run.counts.n_per_class
(array([0]), array([2, 2]))
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from threading import Thread
from typing import Any

import numpy as np

from flwr_flynn.federated import codec
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.party import Party, PartyOptions, Samples
from flwr_flynn.federated.protocol import EVALUATE, TRAIN, Answer, Reply
from flwr_flynn.federated.roster import Failures, missing_text
from flwr_flynn.federated.run import Run


def federate(options: RunOptions, parties: Sequence[Party]) -> Run:
    """Run all phases over some parties, one after the other.

    Parameters
    ----------
    options : RunOptions
    parties : sequence of Party

    Returns
    -------
    Run
        With the classifier as `model` and the results of all phases in `state`. A
        `UserWarning` names parties of a new federation that gave no answer in a phase,
        and why: the model may lack what the phase is for.
    """
    run = Run(options)
    cids = [str(number) for number in range(len(parties))]
    for _ in range(run.num_rounds):
        for channel in (TRAIN, EVALUATE):
            ask = run.ask(channel, cids)
            if ask is None:
                continue
            for cid in ask.cids:
                answer = parties[int(cid)].answer(ask.config, ask.tensors, channel)
                run.receive([reply_of(cid, answer)])
            exchange = run.complete([], Failures())
            if exchange is None or options.purpose != "train":
                continue
            if exchange.missing:
                missing = missing_text(exchange.missing)
                warnings.warn(
                    f"phase {exchange.phase.name}: no answer of {missing}",
                    stacklevel=2,
                )
    return run


def party_of(
    X: Any, y: Any, X_test: Any = None, y_test: Any = None, **options: Any
) -> Party:
    """A party with these samples; `options` are those of `PartyOptions`."""
    return Party(Samples(X, y, X_test, y_test), PartyOptions(**options))


def compile_kernels() -> None:
    """Start to compile what a default run needs, by a small table of .1 s if it is
    compiled.

    The thread imports nothing: of two that import the same package one may find half
    of it.
    """
    from flwr_flynn.model.classifier import FlyNNClassifier

    X = np.arange(40)[:, None] * np.arange(3, 19) % 17
    y = np.arange(40) % 2
    Thread(target=FlyNNClassifier().fit, args=(X, y), daemon=True).start()


def reply_of(cid: str, answer: Answer) -> Reply:
    """A party's answer as the server gets it."""
    return Reply(
        cid, codec.write_tensors(answer.arrays), answer.n_examples, answer.metrics
    )
