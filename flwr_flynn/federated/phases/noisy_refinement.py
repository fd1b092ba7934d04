"""Phases "noisy refinement 1", "noisy refinement 2" and so on, behind noisy counts; see `model.noisy_rounds`.

Each round sends weights and the mean of the hashes, both of which follow from noisy answers, and takes a sum of
gradients with noise of every party whose counts are in the sum. The mechanism, `GaussianRounds`, covers counts and
rounds together. A party's ledger is charged for all of them with the counts, and answers a round once: a run that
stopped and begins its rounds anew asks the same, and gets the same answers. A party that gives no answer is missing
from that round alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import PayloadError, PrivacyError
from flwr_flynn.federated import codec
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_signed, unpack_signed
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.options import RunOptions
from flwr_flynn.federated.phase import COUNTED, Context, Phase, RunState
from flwr_flynn.federated.protocol import NOISY, NOISY_EXAMPLES, TRAIN, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import RunRequest, announced_run, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.sample_access import SampleAccess
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.model.noisy_rounds import CENTRE, LARGEST_WEIGHT, Descent, NoisyGradient
from flwr_flynn.privacy import GaussianRounds
from flwr_flynn.privacy.release_policy import unseeded

_MOST = 2**40  # of an entry at a party; larger ones are clipped
_TAIL = 40  # standard deviations that no noise goes beyond
_NARROW = 2**31 - 1


@register
@dataclass(frozen=True, eq=False)
class NoisyRefinementRequest(RunRequest[NoisyGradient]):
    """Ask for a noisy gradient under given weights."""

    run: RunSpec
    number: int
    weights: npt.NDArray[np.int32]
    centre: npt.NDArray[np.int64]

    phase = "noisy refinement"

    @property
    def discloses(self) -> str:
        return super().discloses if self.run.is_secure else NOISY

    def to_config(self) -> dict[str, Scalar]:
        return {**super().to_config(), key("round"): self.number}

    def arrays(self) -> list[Array]:
        return [pack_signed(self.weights), pack_signed(self.centre[:, None])]

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> NoisyRefinementRequest:
        run = announced_run(config, party)
        rounds_of(run)
        codec.check_room_for_weights(run, party)
        number, m = config.integer("round", 1, rounds_of(run).n_rounds), run.spec.hash_dim
        check_packed(arrays, 2, "weights", "2 packed arrays")
        weights = unpack_signed(arrays[0], (m, run.n_classes), LARGEST_WEIGHT).astype(np.int32)
        centre = unpack_signed(arrays[1], (m, 1), CENTRE)[:, 0]
        if (centre < 0).any():
            raise PayloadError("centre", f"integers from 0 to {CENTRE}", "some below 0")
        return cls(run, number, weights, np.ascontiguousarray(centre))

    def measured(self, party: SampleAccess) -> tuple[NoisyGradient, int]:
        return NoisyGradient((party.release_round(self.run, self.number, self.weights, self.centre),)), NOISY_EXAMPLES

    def fields(self, sizes: Sizes) -> list[Field]:
        is_narrow = _TAIL * rounds_of(self.run).gradient_sigma < 2**30  # by the noise alone, which is public
        types, most = (("<i4",), _NARROW) if is_narrow else (("<i8",), _MOST)
        return [Field("gradient", self.weights.shape, most, PLAIN, True, types)]

    def parts(self, statistic: NoisyGradient) -> list[Array]:
        most = self.layout[0].largest if self.bound is not None else _MOST
        return [np.clip(table, -most, most) for table in statistic.tables]  # of a release: an error would tell of it

    def of_parts(self, parts: list[Array], n_parties: int) -> NoisyGradient:
        return NoisyGradient(tuple(parts))

    def sizes_of(self, reply: Reply, member: Member | None) -> Sizes:
        if member is None:
            raise PayloadError(self.phase, "a party whose counts are in the sum", "one that is not counted")
        if reply.announced != NOISY_EXAMPLES:
            raise PayloadError("num_examples", f"{NOISY_EXAMPLES} beside noisy gradients", reply.announced)
        return Sizes(0, 0)


def rounds_of(run: RunSpec) -> GaussianRounds:
    """The mechanism of a run with noisy rounds; a `PrivacyError` for any other."""
    mechanism = None if run.mechanism is None else unseeded(run.mechanism)
    if not isinstance(mechanism, GaussianRounds):
        raise PrivacyError("mechanism", GaussianRounds.kind, "none" if mechanism is None else mechanism.kind)
    return mechanism


def _descent(state: RunState, number: int) -> Descent:
    if number > 1:
        descent: Descent = state.results[_name(number - 1)]
        return descent
    totals: CountsOfSpecs = state.results["counts"]
    counts, mechanism = totals.parts[0], rounds_of(state.run_spec)
    n_releases = counts.noise_variance / mechanism.noise_sd**2
    return Descent.of(counts, mechanism.n_rounds, mechanism.unit_noise(n_releases))


def _ask(state: RunState, context: Context, number: int) -> NoisyRefinementRequest:
    descent = _descent(state, number)
    return NoisyRefinementRequest(state.run_spec, number, descent.best, descent.centre)


def _fold(state: RunState, batch: Batch[Any], context: Context, number: int) -> RunState:
    descent = _descent(state, number)
    if batch.passed:
        descent = descent.advance(batch.total)
    return state.with_result(_name(number), descent)


def _name(number: int) -> str:
    return f"noisy refinement {number}"


def phases_for(options: RunOptions) -> list[Phase]:
    """The phases of a run's rounds; none without such a mechanism."""
    mechanism = options.run_spec.mechanism
    n_rounds = 0 if mechanism is None else mechanism.n_rounds
    make = partial(Phase, audience=COUNTED, resumes_at=(_name(1),), content="a sum of clipped gradients")
    return [make(_name(n), TRAIN, partial(_ask, number=n), partial(_fold, number=n)) for n in range(1, n_rounds + 1)]
