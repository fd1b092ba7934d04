"""Phase "columns": exact sums of the columns and of their squares, from which the server derives the specs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flwr_flynn.errors import ConfigError, PayloadError
from flwr_flynn.federated.access import SampleAccess
from flwr_flynn.federated.collect import Batch
from flwr_flynn.federated.compression import check_packed, pack_numbers, unpack_numbers
from flwr_flynn.federated.layout import PLAIN, Field, Sizes
from flwr_flynn.federated.phase import Context, Phase, RunState
from flwr_flynn.federated.protocol import TRAIN, Array, Config, Reply, Scalar, key
from flwr_flynn.federated.request import LayoutRequest, announced_bound, register
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import MAX_CHARS, announced_names
from flwr_flynn.federated.samples import Label, checked_classes, checked_names, codes_of
from flwr_flynn.model.column_moments import MOST_LIMBS, ColumnMoments, floor_of
from flwr_flynn.model.derived_specs import derive_specs, no_samples


@register
@dataclass(frozen=True)
class ColumnsRequest(LayoutRequest[ColumnMoments]):
    """Ask for the sums of the columns and of their squares.

    A party leaves classes out that have fewer samples than its own floor; a request has none.
    """

    n_features: int
    classes: Sequence[Label]
    by_class: bool  # sums of each class, or of all samples
    feature_names: Sequence[str] | None = None
    max_examples: int | None = None  # of a party; a 1024th of the capacity by default
    bound: int | None = None
    window: tuple[int, ...] = (0, 1, 0, 1)  # in a secure sum: first digit and number of digits of sums, and of squares

    phase = "columns"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", checked_classes(self.classes))
        if self.feature_names is not None:
            object.__setattr__(self, "feature_names", checked_names(self.feature_names, self.n_features))

    @property
    def n_rows(self) -> int:
        """Rows of the sums: one for each class, or one for all."""
        return len(self.classes) if self.by_class else 1

    @property
    def memory_needed(self) -> int:
        """Bytes that making the sums takes, roughly: 4096 for the limbs and the large integers of each sum."""
        return 4096 * self.n_rows * self.n_features

    def to_config(self) -> dict[str, Scalar]:
        names = self.feature_names
        return {
            key("n_features"): self.n_features,
            key("classes"): json.dumps(self.classes),
            key("by_class"): self.by_class,
            **({} if names is None else {key("feature_names"): json.dumps(names)}),
            **({} if self.bound is None else {key("bound"): str(self.bound), key("window"): json.dumps(self.window)}),
        }

    @classmethod
    def from_config(cls, config: Config, arrays: Sequence[Array], party: SampleAccess) -> ColumnsRequest:
        try:
            n_features, classes = config.integer("n_features", 1, 2**31 - 1), config.json("classes", MAX_CHARS)
            request = cls(n_features, classes, config.boolean("by_class"), announced_names(config))
            if (bound := announced_bound(config)) is not None:
                request = replace(request, bound=bound, window=_window(config))
        except ConfigError as error:
            raise PayloadError(error.field or "config", error.expected, error.got, text=f"config: {error}") from None
        party.check_memory(request.memory_needed, f"sums of {request.n_features} columns, {request.n_rows} classes")
        return request

    def measured(self, party: SampleAccess) -> tuple[ColumnMoments, int]:
        X, codes = party.labelled(lambda y: codes_of(self.classes, y), self.n_features)
        least = floor_of(party.options.min_examples)
        if not self.by_class:
            keep = (np.bincount(codes, minlength=len(self.classes)) >= least)[codes]
            X, codes = (X if keep.all() else X[keep]), np.zeros(int(keep.sum()), np.int64)
        sums = ColumnMoments.from_data(X, codes, self.n_rows, least)
        return sums, sums.n_examples

    def packed(self, statistic: ColumnMoments) -> list[Array]:
        sizes, *limbs = statistic.to_limbs()
        return [sizes, *(pack_numbers(array.ravel()) for array in limbs)]

    @property
    def digit_bits(self) -> int:
        """Bits of a digit in a secure sum."""
        return (self.bound or 2).bit_length() - 1

    def fields(self, sizes: Sizes) -> list[Field]:
        bound, shape = self.bound or 2, (self.n_rows, self.n_features)
        most = [bound**n_digits - 1 for n_digits in self.window[1::2]]
        return [
            Field("class sizes", (self.n_rows,), sizes.total, PLAIN),
            Field("sums", shape, most[0], is_signed=True, is_wide=True),
            Field("squares", shape, most[1], is_wide=True),
        ]

    def parts(self, statistic: ColumnMoments) -> list[npt.NDArray[Any]]:
        shifts = [self.digit_bits * first for first in self.window[::2]]
        sums = [statistic.sums >> shifts[0], statistic.squares >> shifts[1]]
        exact = (sums[0] << shifts[0] == statistic.sums).all() and (sums[1] << shifts[1] == statistic.squares).all()
        fits = all((np.abs(each) <= field.most).all() for each, field in zip(sums, self.layout[1:], strict=True))
        if not (exact and fits):
            raise PayloadError("secure sum", "sums of columns within the range of the parties asked before", "others")
        return [statistic.n_per_class, *sums]

    def of_parts(self, parts: list[npt.NDArray[Any]], n_parties: int) -> ColumnMoments:
        shifts = [self.digit_bits * first for first in self.window[::2]]
        sums, squares = (each.astype(object) << by for each, by in zip(parts[1:], shifts, strict=True))
        return ColumnMoments(parts[0], np.asarray(sums, object), np.asarray(squares, object))

    def read(self, arrays: Sequence[Array], reply: Reply, member: Member | None) -> ColumnMoments:
        announced = reply.announced
        check_packed(arrays, 3, "column sums", "class sizes and two packed arrays", first=1)
        n_sums = self.n_rows * self.n_features
        limbs = [unpack_numbers(packed, n_sums * MOST_LIMBS, 2**32 - 1) for packed in arrays[1:]]
        if any(not len(each) or len(each) % n_sums for each in limbs):
            raise PayloadError("column sums", f"limbs of {n_sums} sums", f"{len(limbs[0])} and {len(limbs[1])}")
        shape = (self.n_rows, self.n_features, -1)
        wide = [each.astype(np.uint32).reshape(shape) for each in limbs]
        sums = ColumnMoments.from_limbs([arrays[0], *wide], self.n_features, self.n_rows)
        most = self.max_examples or self.capacity // 1024
        check_sizes(sums.n_per_class, announced, most, "column sums")
        return sums

    def sizes(self, statistic: ColumnMoments) -> npt.NDArray[np.int64]:
        return statistic.n_per_class


def _window(config: Config) -> tuple[int, ...]:
    window = config.json("window", 100)
    if not isinstance(window, list) or len(window) != 4 or not all(type(n) is int and 0 <= n <= 2**13 for n in window):
        raise PayloadError(key("window"), "four integers from 0 to 8192", type(window).__name__)
    return tuple(window)


def check_sizes(sizes: npt.NDArray[np.int64], announced: int, most: int, field: str) -> None:
    """Raise a `PayloadError` unless class sizes are 0 or more and have the announced sum, up to `most`."""
    if sizes.min() < 0:
        raise PayloadError(field, "class sizes from 0", "a negative one")
    n_examples = sum(sizes.tolist())
    if n_examples != announced:
        raise PayloadError(field, f"{announced} examples as announced", n_examples)
    if n_examples > most:
        raise PayloadError(field, f"at most {most} examples", n_examples)


@dataclass(frozen=True)
class Columns:
    """The result of the phase."""

    moments: ColumnMoments
    missing: dict[str, str]  # reasons of parties without an answer, by name
    trouble: str  # the reason why the columns are not scaled, or ""


def request_of(state: RunState, context: Context) -> ColumnsRequest:
    """The request for the columns; of a secure sum as far as the range of the sums is known."""
    plan, options = context.options.plan, context.options
    if plan is None:
        raise ConfigError("spec", "a plan that needs the sums of the columns", type(options.spec).__name__)
    run, by_class, most = state.run_spec, plan.needs_classes, options.max_examples_per_party
    request = ColumnsRequest(plan.n_features, run.classes, by_class, run.feature_names, most)
    window = state.results.get("range", request.window)
    return replace(request, bound=options.secure_bound, window=window)


def _fold(state: RunState, batch: Batch[ColumnMoments], context: Context) -> RunState:
    plan = context.options.plan
    assert plan is not None  # request_of raises without one
    trouble = no_samples(batch.total)
    if not plan.needs_histograms:
        specs, trouble = derive_specs(plan, batch.total)
        state = replace(state, run_spec=replace(state.run_spec, specs=context.options.counted_specs(specs)))
    return state.with_result(COLUMNS.name, Columns(batch.total, dict(context.missing), trouble))


COLUMNS = Phase("columns", TRAIN, request_of, _fold, derives_specs=True)
