"""Accuracy that a private run is expected to keep, by public figures alone, before any epsilon is spent.

A guess has a balanced accuracy of 1 / L. Of what a run without noise has beyond that, one with noise keeps a share: a
logistic function of the logarithm of a class's samples over the noise. Data sets of the same public figures differ,
mostly by a shift in that function; intervals are the shifts of 80 % of the sets that were measured.
docs/results/plan.md has the measurements, the error on sets that the constants were not fitted to, and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn._markup import STYLE, Markup, table, tag
from flwr_flynn._validation import integer
from flwr_flynn.errors import ConfigError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy.gaussian_rounds import GaussianRounds
from flwr_flynn.privacy.mechanism import LARGEST_SIZE, Mechanism
from flwr_flynn.privacy.noise_mechanisms import GaussianCounts, LaplaceCounts
from flwr_flynn.privacy.release_policy import unseeded
from flwr_flynn.privacy.sizing import suggest_spec

TYPICAL = 0.85  # accuracy without noise: a public figure it is not
SLACK = 0.02  # that the test samples add to an interval at both ends
ROUNDS = 24  # that were measured
_LOST = 0.5  # of the accuracy of the smallest classes, below which they count as lost

# From `python -m simulations plan --data FOLDER`, docs/results/plan.md. For each mechanism: middle, slope and exponent
# of the classes; the shifts at the lower end, the median and the upper end; those of the smallest quarter of classes.
CURVES: dict[str, tuple[tuple[float, ...], ...]] = {}


def relative(curve: Sequence[float], shift: Any, n_per_class: Any, noise: Any, n_classes: Any) -> Any:
    """Accuracy as a ratio to that without noise; all but the curve may be arrays.

    `noise` is the standard deviation that the sum of all releases has for an L2 sensitivity of 1.
    """
    middle, slope, classes = curve
    score = np.log(n_per_class / noise) + classes * np.log(n_classes) - middle
    kept, guess = 1 / (1 + np.exp(-(slope * score + shift))), 1 / n_classes
    return (guess + kept * (TYPICAL - guess)) / TYPICAL


def unit_noise(mechanism: Mechanism, n_parties: int) -> float:
    """The `noise` of `relative` for the releases of so many parties."""
    if isinstance(mechanism, GaussianRounds):
        return mechanism.unit_noise(n_parties)
    return mechanism.noise_sd * math.sqrt(n_parties / mechanism.hash_nnz)


@dataclass(frozen=True)
class Expected:
    """Balanced accuracy to expect as a ratio to that without noise, with an 80 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def expected(mechanism: Mechanism, n_examples: int, n_parties: int, n_smallest: float = 0.0) -> Expected | None:
    """The accuracy to expect of a run with these public figures; None for a mechanism that was not measured.

    Parameters
    ----------
    mechanism : Mechanism
        Of one party.
    n_examples, n_parties : int
    n_smallest : float, optional
        Mean number of samples of the smallest quarter of the classes; the result is about these then.
    """
    noise = unseeded(mechanism)
    if noise.kind not in CURVES or noise.n_classes < 2:
        return None
    curve, of_all, of_smallest = CURVES[noise.kind]
    given = n_smallest or n_examples / noise.n_classes, unit_noise(noise, n_parties), noise.n_classes
    low, ratio, high = (float(relative(curve, shift, *given)) for shift in (of_smallest if n_smallest else of_all))
    return Expected(min(ratio, 1.0), max(low - SLACK, 0.0), min(high + SLACK, 1.0))


@dataclass(frozen=True)
class Figures:
    """Public figures of a run, as for `plan`."""

    n_examples: int
    n_features: int
    n_classes: int
    n_parties: int
    epsilon: float
    delta: float
    honest_parties: int | None
    rounds: int
    n_smallest: float

    def spec(self) -> HashSpec:
        """The hash that suits the noise."""
        counted = self.n_features, self.n_examples, self.n_classes, self.n_parties
        shared = self.honest_parties is not None
        return suggest_spec(self.epsilon, self.delta, *counted, secure_sum=shared, n_rounds=self.rounds)

    def mechanism(self, spec: HashSpec) -> Mechanism:
        """The mechanism of one party."""
        given: dict[str, Any] = {"hash_nnz": spec.hash_nnz, "n_classes": self.n_classes}
        if self.delta == 0:
            return LaplaceCounts(self.epsilon, **given)
        given["n_honest"] = self.honest_parties
        if self.rounds:
            return GaussianRounds(self.epsilon, self.delta, self.rounds, **given)
        return GaussianCounts(self.epsilon, self.delta, **given)

    def expected(self, mechanism: Mechanism, n_smallest: float = 0.0) -> Expected:
        """The accuracy to expect with this mechanism."""
        found = expected(mechanism, self.n_examples, self.n_parties, n_smallest)
        assert found is not None
        return found

    def others(self) -> Iterator[tuple[str, Figures]]:
        """Other figures that a user may have the choice of, by their names."""
        for epsilon in (self.epsilon * factor for factor in (0.25, 0.5, 2, 4)):
            if 0.001 <= epsilon <= 100:
                yield f"epsilon {epsilon:g}", replace(self, epsilon=epsilon)
        n, honest = self.n_parties, self.honest_parties
        four = replace(self, n_parties=4 * n, n_examples=4 * self.n_examples, honest_parties=honest and 4 * honest)
        yield f"{4 * n} parties of this kind", four
        if honest is not None:
            yield "noise of its own at each party", replace(self, honest_parties=None)
        elif self.delta and n > 2:
            least = -(-2 * n // 3)
            yield f"one noise for all, honest-parties {least}", replace(self, honest_parties=least)
        if self.delta:
            name = "one release, no rounds" if self.rounds else f"private-rounds {ROUNDS}"
            yield name, replace(self, rounds=0 if self.rounds else ROUNDS)


@dataclass(frozen=True)
class PrivacyPlan:
    """Settings of a private run, the accuracy to expect, and that of other choices. Made by `plan`."""

    figures: Figures
    spec: HashSpec
    mechanism: Mechanism
    expected: Expected
    smallest: Expected | None  # of the smallest quarter of the classes
    others: tuple[tuple[str, Expected], ...]

    @property
    def settings(self) -> str:
        """The settings in words."""
        given, spec = self.figures, self.spec
        rounds = f", private-rounds {given.rounds}" if given.rounds else ""
        share = f", honest-parties {given.honest_parties}" if given.honest_parties else ""
        return f"{self.mechanism.kind}{rounds}{share}, hash-dim {spec.hash_dim}, hash-nnz {spec.hash_nnz}"

    @property
    def warning(self) -> str:
        """The warning about small classes; empty without a reason."""
        if self.smallest is None or self.smallest.ratio >= _LOST:
            return ""
        return "The smallest classes will be lost: less than half of their accuracy is expected to be left."

    @property
    def rows(self) -> list[tuple[str, Expected]]:
        """What is expected with these settings, of the smallest classes, and with other settings."""
        first = [("these settings", self.expected)]
        return first + ([("  smallest quarter of classes", self.smallest)] if self.smallest else []) + [*self.others]

    @property
    def title(self) -> str:
        """The figures in words."""
        of = self.figures
        held = (
            f"{of.n_examples} samples of {of.n_features} features and {of.n_classes} classes at {of.n_parties} parties"
        )
        return f"{held}, epsilon {of.epsilon:g}, delta {of.delta:g}"

    def __str__(self) -> str:
        lines = [f"FlyNN privacy plan: {self.title}", f"  {self.settings}", ""]
        lines.append("  balanced accuracy relative to no noise, with an 80 % interval:")
        width = max(len(name) for name, _ in self.rows)
        lines += [f"    {name:<{width}}  {found}" for name, found in self.rows]
        return "\n".join([*lines, "", f"  {self.warning}"] if self.warning else lines)

    def _repr_html_(self) -> str:
        rows = [(name.strip(), f"{each.ratio:.2f}", f"{each.low:.2f} to {each.high:.2f}") for name, each in self.rows]
        head = "choice", "ratio to no noise", "80 % interval"
        said = tag(
            "p", tag("b", self.title), tag("br"), self.settings, tag("br") if self.warning else None, self.warning
        )
        return tag(
            "div", tag("style", Markup(STYLE)), said, table("Balanced accuracy to expect", head, rows), class_="flynn"
        )


def plan(
    n_examples: int,
    n_features: int,
    n_classes: int,
    n_parties: int,
    epsilon: float,
    delta: float = 1e-5,
    *,
    honest_parties: int | None = None,
    rounds: int = 0,
    class_sizes: Sequence[int] | None = None,
) -> PrivacyPlan:
    """Predict what a private run would reach, with which settings, before anything is spent.

    Parameters
    ----------
    n_examples, n_features, n_classes, n_parties : int
        Public figures of all parties together; rough ones are enough.
    epsilon, delta : float
        With delta 0 the noise is Laplace's.
    honest_parties : int, optional
        The parties share one noise in secure sums, of which so many are honest and stay. Default: each its own noise.
    rounds : int, default=0
        Noisy rounds behind the counts; none with delta 0.
    class_sizes : sequence of int, optional
        Public sizes of the classes, for the smallest quarter of them.

    Examples
    --------
    >>> print(plan(n_examples=60000, n_features=784, n_classes=10, n_parties=2, epsilon=1, rounds=24).settings)
    gaussian-rounds, private-rounds 24, hash-dim 8192, hash-nnz 360
    """
    for name, value in (("n_examples", n_examples), ("n_features", n_features), ("n_parties", n_parties)):
        integer(name, value, most=LARGEST_SIZE // 4)
    n_classes = integer("n_classes", n_classes, least=2, most=LARGEST_SIZE)
    if honest_parties is not None and not (delta and n_parties > 2):
        raise ConfigError("honest_parties", "none without delta and at least 3 parties", honest_parties)
    if honest_parties is not None:
        integer("honest_parties", honest_parties, least=2, most=n_parties)
    sizes = sorted(integer("class_sizes", size) for size in class_sizes or ())
    if sizes and len(sizes) != n_classes:
        raise ConfigError("class_sizes", f"{n_classes} integers, one for each class", len(sizes))
    quarter = sizes[: -(-n_classes // 4)]
    n_smallest = sum(quarter) / len(quarter) if quarter else 0.0
    counted = n_examples, n_features, n_classes, n_parties
    given = Figures(*counted, epsilon, delta, honest_parties, rounds, n_smallest)
    spec = given.spec()
    mechanism = given.mechanism(spec)
    others = tuple((name, each.expected(each.mechanism(each.spec()))) for name, each in given.others())
    smallest = given.expected(mechanism, given.n_smallest) if given.n_smallest else None
    return PrivacyPlan(given, spec, mechanism, given.expected(mechanism), smallest, others)
