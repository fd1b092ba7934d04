"""The federated choice of spec and decay by leave-one-out: what a party answers, and what the server makes of it.

Every counted party gets the sums of the counts and the candidates. It answers, for each candidate and class, how many
of its own training points a model gets right that was trained without the point: whole numbers, the diagonals of the
leave-one-out confusion matrices, which is all that the choice needs and less than the matrices tell. Added up they are
those of the pooled points, and so is the choice. With them come the log-losses at each of `TEMPERATURES`, from
which the model learns how sure it may be. Held-out points play no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.aggregator import Aggregator
from flwr_flynn.federated.roster import Reply, announced_examples, first_of_each
from flwr_flynn.hashing.flyhash import FlyHash
from flwr_flynn.model.candidates import candidate_readouts
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.leave_one_out import (
    LOSS_UNIT,
    MAX_LOSS,
    TEMPERATURES,
    Table,
    hashed_batches,
    leave_one_out_tables,
)
from flwr_flynn.model.model import Readout
from flwr_flynn.model.selection import best, best_temperature

Tables = list[Table]
"""For each spec an array with a row for each of its candidates."""

CANDIDATES = "flynn-candidates"
"""The config entry by which a party tells a request for its part of the choice from an evaluation."""

_MAX_CANDIDATES = 64  # read-outs of a spec
_CANDIDATE_CHARS = 64  # of one in JSON
_MAX_LOSS = int(MAX_LOSS / LOSS_UNIT)  # of a sample


# -------- what a party answers


def read_candidates(config: Mapping[str, Any], n_specs: int) -> list[list[Readout]]:
    """The read-outs of each spec that a server wants to choose from.

    Raises
    ------
    PayloadError
        Not the JSON that `Choosing.config` writes, or a rule or decay that is none.
    """
    text = config.get(CANDIDATES)
    longest = n_specs * _MAX_CANDIDATES * _CANDIDATE_CHARS
    if not isinstance(text, str) or len(text) > longest:
        raise PayloadError(f"{CANDIDATES}: expected a text of at most {longest} characters, got another")
    try:
        lists = json.loads(text)
        pairs = [[(rule, decay) for rule, decay in entries] for entries in lists]
    except (ValueError, TypeError, RecursionError):
        raise PayloadError(f"{CANDIDATES}: expected lists of pairs (rule, decay) in JSON, got something else") from None
    if len(pairs) != n_specs or not all(0 < len(entries) <= _MAX_CANDIDATES for entries in pairs):
        raise PayloadError(f"{CANDIDATES}: expected 1 to {_MAX_CANDIDATES} read-outs for each of {n_specs} specs")
    try:
        return [[Readout(rule, decay) for rule, decay in entries] for entries in pairs]
    except ConfigError as error:
        raise PayloadError(f"{CANDIDATES} {error.field}", error.expected, error.got) from None


def ballot(
    hasher: FlyHash,
    counts: ClassCounts,
    X: Any,
    codes: npt.NDArray[np.int64],
    candidates: Sequence[Readout],
    n_jobs: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> tuple[Table, Table]:
    """One spec's hits and losses on a party's own training points, a bounded number of points at a time.

    Parameters
    ----------
    hasher : FlyHash
    counts : ClassCounts
        Of all parties, this one included.
    X : (n, d) array or scipy CSR
    codes : (n,) int64 array
    candidates : sequence of K Readout
    n_jobs : int, optional
    progress : callable, optional
        Called with numbers of points just hashed.

    Returns
    -------
    hits : (K, L) int64 array
        See `LeaveOneOutTables.correct`.
    losses : (K, T) int64 array
        See `LeaveOneOutTables.log_losses`.

    Raises
    ------
    DataError
        The points cannot be in the counts, or are not points.
    """
    tables = leave_one_out_tables(counts, hashed_batches(hasher, X, codes, n_jobs, progress), candidates)
    return tables.correct, tables.log_losses


def tables_to_bytes(tables: Tables) -> bytes:
    """Tables as a metrics value that Flower can carry: int64, little-endian, row by row, one after the other."""
    return b"".join(table.astype("<i8", copy=False).tobytes() for table in tables)


def _tables(raw: Any, name: str, shapes: list[tuple[int, int]]) -> Tables:
    size = 8 * sum(rows * columns for rows, columns in shapes)
    if not isinstance(raw, bytes) or len(raw) != size:
        got = f"{len(raw)} bytes" if isinstance(raw, bytes) else type(raw).__name__
        raise PayloadError(f"{name}: expected {size} bytes, got {got}")
    flat = np.frombuffer(raw, "<i8").astype(np.int64)
    ends = np.cumsum([rows * columns for rows, columns in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


# -------- what the server makes of it


@dataclass(frozen=True)
class Choice:
    """Which spec and which read-out a run came to, and why.

    Parameters
    ----------
    spec : int
        Place of the chosen one among the run's specs.
    rule : str
    decay : float
    temperature : float or None
        What `FlyNNClassifier.predict_proba` divides scores by; None if nothing is known of it.
    candidates : tuple, for each spec, of tuples of Readout
    accuracies : tuple, for each spec, of tuples of float
        Leave-one-out balanced accuracy of every candidate; empty where no party with points replied. Then the choice
        is the first spec and `suggest_decay`.
    examples : int
        Points that the accuracies are about.
    parties : int
        How many replied.
    missing : dict of name to reason
        Counted parties whose points had no say.
    cost : dict of str to dict
        Bytes per party, "up" and "down", on average, that the choice took beyond the counts of the one spec: "sums",
        the round for the columns; "extra_specs", requests and counts for the specs that were not chosen; "choice".
    """

    spec: int
    rule: str
    decay: float
    temperature: float | None
    candidates: tuple[tuple[Readout, ...], ...]
    accuracies: tuple[tuple[float, ...], ...]
    examples: int
    parties: int
    missing: dict[str, str]
    cost: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """Leave-one-out balanced accuracy of the one chosen."""
        if not self.accuracies:
            return None
        return self.accuracies[self.spec][self.candidates[self.spec].index(Readout(self.rule, self.decay))]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        values = asdict(self)
        values["candidates"] = [[[r.rule, r.decay] for r in entries] for entries in self.candidates]
        values["accuracies"] = [list(entries) for entries in self.accuracies]
        return values | {"accuracy": self.accuracy}


def is_choice_needed(n_specs: int, rule: str, decay: float | str) -> bool:
    """Whether there is more than one candidate. Rule "bayes" has no decay."""
    return n_specs > 1 or (decay == "auto" and rule != "bayes")


class Choosing:
    """One choice, among the candidates for the counts that an aggregator has now.

    Parameters
    ----------
    aggregator : Aggregator
    rule, decay
        As for `candidate_readouts`.
    """

    def __init__(self, aggregator: Aggregator, rule: str, decay: float | str) -> None:
        self.totals = aggregator.total
        self.candidates = [candidate_readouts(counts, rule, decay) for counts in self.totals]
        self._aggregator = aggregator

    def config(self) -> dict[str, Any]:
        """What a party is told: the terms, and the candidates."""
        return {
            **self._aggregator.terms.to_config(),
            CANDIDATES: json.dumps([[(r.rule, r.decay) for r in entries] for entries in self.candidates]),
        }

    def check(self, replies: Iterable[Reply]) -> tuple[dict[str, tuple[Tables, Tables]], dict[str, str]]:
        """Read the ballots in replies.

        Returns
        -------
        ballots : dict of cid to (hits, losses)
            The first reply of each counted party.
        refused : dict of cid to reason
        """
        return first_of_each(replies, self._read)

    def conclude(self, ballots: Mapping[str, tuple[Tables, Tables]], missing: Mapping[str, str]) -> Choice:
        """The best candidate on the points of those that replied, which are all points if nobody is missing.

        Parameters
        ----------
        ballots : mapping of cid to (hits, losses)
        missing : mapping of name to reason
        """
        sizes = np.zeros(self.totals[0].n_classes, np.int64)
        for cid in ballots:
            if (counted := self._aggregator.sizes_of(cid)) is not None:
                sizes += counted
        spec, place, temperature, accuracies = 0, 0, None, ()
        if sizes.any():
            right = [np.sum([ballot[0][i] for ballot in ballots.values()], axis=0) for i in range(len(self.totals))]
            spec, place = best(right, sizes)
            # Python's integers: the sum of losses of very many points would not fit int64.
            total = sum(ballot[1][spec][place].astype(object) for ballot in ballots.values())
            temperature = best_temperature(total)
            filled = sizes > 0
            accuracies = tuple(tuple((table[:, filled] / sizes[filled]).mean(axis=1).tolist()) for table in right)  # type: ignore[assignment]
        readout = self.candidates[spec][place]
        return Choice(
            spec=spec,
            rule=readout.rule,
            decay=readout.decay,
            temperature=temperature,
            candidates=tuple(tuple(entries) for entries in self.candidates),
            accuracies=accuracies,
            examples=sum(sizes.tolist()),
            parties=len(ballots),
            missing=dict(missing),
        )

    def _read(self, reply: Reply) -> tuple[Tables, Tables]:
        sizes = self._aggregator.sizes_of(reply.cid)
        if sizes is None:
            raise PayloadError("choice: expected a party that is counted, got another")
        n_examples, counted = announced_examples(reply), sum(sizes.tolist())
        if n_examples != counted:
            raise PayloadError(f"choice: expected {counted} examples as counted, got {n_examples}")
        n_rows = [len(entries) for entries in self.candidates]
        right = _tables(reply.metrics.get("flynn-hits"), "hits", [(n, len(sizes)) for n in n_rows])
        cold = _tables(reply.metrics.get("flynn-losses"), "losses", [(n, len(TEMPERATURES)) for n in n_rows])
        for table in right:
            if (table < 0).any() or (table > sizes).any():
                raise PayloadError("hits: expected from 0 to as many as the party has points of the class, got others")
        most = min(_MAX_LOSS * n_examples, 2**63 - 1)
        for table in cold:
            if (table < 0).any() or (table > most).any():
                raise PayloadError(f"losses: expected from 0 to {most}, got others")
        return right, cold
