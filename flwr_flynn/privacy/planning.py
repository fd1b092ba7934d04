"""Accuracy that a private run is expected to keep, by public figures alone, before any epsilon is spent.

A guess has a balanced accuracy of 1 / L. Of what a run without noise has beyond that, one with noise keeps a share: a
logistic function of the logarithm of a class's samples over the noise. Data sets of the same public figures differ,
mostly by a shift in that function; intervals are the shifts of 80 % of the sets that were measured. One ratio that is
known of the data, or of data of the same kind, tells the shift and makes the interval narrow.
docs/results/plan.md has the measurements, the error on sets that the constants were not fitted to, and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flwr_flynn._markup import STYLE, Markup, table, tag
from flwr_flynn._validation import integer, number
from flwr_flynn.errors import ConfigError
from flwr_flynn.hashing.spec import HashSpec
from flwr_flynn.privacy.gaussian_rounds import MOST_HONEST, GaussianRounds
from flwr_flynn.privacy.mechanism import LARGEST_SIZE, Mechanism
from flwr_flynn.privacy.noise_mechanisms import GaussianCounts, LaplaceCounts
from flwr_flynn.privacy.release_policy import unseeded
from flwr_flynn.privacy.sizing import suggest_spec

TYPICAL = 0.85  # accuracy without noise: a public figure it is not
SLACK = 0.02  # that the test samples add to an interval at both ends
ROUNDS = 24  # that were measured
BASIS = f"by 35 data sets of 700 to 20000 samples, at most ten parties and {ROUNDS} rounds, see docs/results/plan.md"
"""Behind every expectation: beyond these figures it is a guess."""

_UNEVEN = 0.7  # of the mean number of samples, below which the smallest classes are small, as on the page
_LOST = 0.5  # of the accuracy of the smallest classes, below which they count as lost

# From `python -m simulations plan --data FOLDER`, docs/results/plan.md. For each mechanism: middle, slope and exponent
# of the classes; the shifts at the lower end, the median and the upper end; those of the smallest quarter of classes;
# and those around a shift that is known.
CURVES: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian": ((3.517, 1.009, 0.266), (-1.68, -0.16, 0.986), (-4.603, 0.498, 4.067), (-0.575, -0.075, 0.304)),
    "gaussian-rounds": ((3.223, 0.967, 0.252), (-1.619, 0.044, 0.982), (-7.138, -0.007, 2.96), (-0.476, -0.038, 0.221)),
    "laplace": ((3.101, 0.781, -0.006), (-1.275, -0.043, 1.073), (-1.585, 0.688, 2.909), (-0.45, -0.021, 0.168)),
}


def relative(curve: Sequence[float], shift: Any, n_per_class: Any, noise: Any, n_classes: Any) -> Any:
    """Accuracy as a ratio to that without noise; all but the curve may be arrays.

    `noise` is the standard deviation that the sum of all releases has for an L2 sensitivity of 1.
    """
    guess = 1 / n_classes
    kept = 1 / (1 + np.exp(-(_score(curve, n_per_class, noise, n_classes) + shift)))
    return (guess + kept * (TYPICAL - guess)) / TYPICAL


def shift_of(curve: Sequence[float], ratio: Any, n_per_class: Any, noise: Any, n_classes: Any) -> Any:
    """The shift that gives a ratio; one near the ends that gives less or more."""
    guess = 1 / n_classes
    kept = np.clip((ratio * TYPICAL - guess) / (TYPICAL - guess), 0.001, 0.999)
    return np.log(kept / (1 - kept)) - _score(curve, n_per_class, noise, n_classes)


def _score(curve: Sequence[float], n_per_class: Any, noise: Any, n_classes: Any) -> Any:
    middle, slope, classes = curve
    return slope * (np.log(n_per_class / noise) + classes * np.log(n_classes) - middle)


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


def expected(
    mechanism: Mechanism, n_examples: int, n_parties: int, n_smallest: float = 0.0, shift: float | None = None
) -> Expected | None:
    """The accuracy to expect of a run with these public figures; None for a mechanism that was not measured.

    Parameters
    ----------
    mechanism : Mechanism
        Of one party.
    n_examples, n_parties : int
    n_smallest : float, optional
        Mean number of samples of the smallest quarter of the classes; the result is about these then.
    shift : float, optional
        The shift of data of this kind, for all classes.
    """
    noise = unseeded(mechanism)
    if noise.kind not in CURVES or noise.n_classes < 2:
        return None
    curve, of_all, of_smallest, around = CURVES[noise.kind]
    shifts = of_smallest if n_smallest else of_all if shift is None else tuple(shift + each for each in around)
    given = n_smallest or n_examples / noise.n_classes, unit_noise(noise, n_parties), noise.n_classes
    low, ratio, high = (float(relative(curve, each, *given)) for each in shifts)
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
    shift: float | None = None

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

    def at(self, epsilon: float, ratio: float) -> Figures:
        """The figures with the shift of data that had this ratio at this epsilon."""
        ratio, other = number("measured ratio", ratio, above=0, most=1.5), replace(self, epsilon=epsilon)
        mechanism = other.mechanism(other.spec())
        noise, per_class = unit_noise(mechanism, self.n_parties), self.n_examples / self.n_classes
        return replace(self, shift=float(shift_of(CURVES[mechanism.kind][0], ratio, per_class, noise, self.n_classes)))

    def expected(self, mechanism: Mechanism, n_smallest: float = 0.0) -> Expected:
        """The accuracy to expect with this mechanism."""
        found = expected(mechanism, self.n_examples, self.n_parties, n_smallest, self.shift)
        assert found is not None
        return found

    def others(self) -> Iterator[tuple[str, Figures]]:
        """Other figures that a user may have the choice of, by their names."""
        for epsilon in (self.epsilon * factor for factor in (0.25, 0.5, 2, 4)):
            if 0.001 <= epsilon <= 100:
                yield f"epsilon {epsilon:g}", replace(self, epsilon=epsilon)
        n, honest = self.n_parties, self.honest_parties
        four = replace(self, n_parties=4 * n, n_examples=4 * self.n_examples, honest_parties=honest and 4 * honest)
        if (honest or 0) * 4 <= MOST_HONEST:
            yield f"{4 * n} parties of this kind", four
        if honest is not None:
            yield "noise of its own at each party", replace(self, honest_parties=None)
        elif self.delta and 2 < n <= MOST_HONEST:
            least = -(-2 * n // 3)
            yield f"one noise for all, honest-parties {least}", replace(self, honest_parties=least)
        if self.delta:
            name = "one release, no rounds" if self.rounds else f"private-rounds {ROUNDS}"
            name += "" if self.shift is None else ", by public figures alone"
            yield name, replace(self, rounds=0 if self.rounds else ROUNDS, shift=None)


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
        if self.smallest is None:
            return ""
        found, given = [], self.figures
        if self.smallest.ratio < _LOST:
            found.append("The smallest classes will be lost: less than half of their accuracy is expected to be left.")
        if given.rounds and given.n_smallest < _UNEVEN * given.n_examples / given.n_classes:
            found.append("Rounds weigh samples, not classes: of such uneven ones one release may keep more.")
        return " ".join(found)

    @property
    def rows(self) -> list[tuple[str, Expected]]:
        """Expectations with these settings, of the smallest classes, and with other settings."""
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
        lines += ["  balanced accuracy relative to no noise, with an 80 % interval,", f"  {BASIS}:"]
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
            "div",
            tag("style", Markup(STYLE)),
            said,
            table(f"Balanced accuracy to expect, {BASIS}", head, rows),
            class_="flynn",
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
    measured: tuple[float, float] | None = None,
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
        Public sizes of the classes, about `n_examples` in all, for the smallest quarter of them.
    measured : (float, float), optional
        An epsilon, and the ratio to no noise that was measured with it: by an earlier private run, or by simulations
        of public data of the same kind, with all other figures as here. The interval is less than half as wide.

    Examples
    --------
    >>> print(plan(n_examples=60000, n_features=784, n_classes=10, n_parties=2, epsilon=1, rounds=24).settings)
    gaussian-rounds, private-rounds 24, hash-dim 8192, hash-nnz 399
    """
    for name, value in (("n_examples", n_examples), ("n_features", n_features), ("n_parties", n_parties)):
        integer(name, value, most=LARGEST_SIZE // 4)
    n_classes = integer("n_classes", n_classes, least=2, most=LARGEST_SIZE)
    if honest_parties is not None and not (delta and n_parties > 2):
        raise ConfigError("honest_parties", "none without delta and at least 3 parties", honest_parties)
    if honest_parties is not None:
        integer("honest_parties", honest_parties, least=2, most=min(n_parties, MOST_HONEST))
    sizes = sorted(integer("class_sizes", size) for size in class_sizes or ())
    if sizes and len(sizes) != n_classes:
        raise ConfigError("class_sizes", f"{n_classes} integers, one for each class", len(sizes))
    if sizes and not n_examples / 2 <= sum(sizes) <= 2 * n_examples:
        raise ConfigError("class_sizes", f"numbers of samples, about {n_examples} in all", sum(sizes))
    quarter = sizes[: -(-n_classes // 4)]
    n_smallest = sum(quarter) / len(quarter) if quarter else 0.0
    counted = n_examples, n_features, n_classes, n_parties
    given = Figures(*counted, epsilon, delta, honest_parties, rounds, n_smallest)
    if measured is not None:
        given = given.at(*measured)
    spec = given.spec()
    mechanism = given.mechanism(spec)
    others = tuple((name, each.expected(each.mechanism(each.spec()))) for name, each in given.others())
    smallest = given.expected(mechanism, given.n_smallest) if given.n_smallest else None
    return PrivacyPlan(given, spec, mechanism, given.expected(mechanism), smallest, others)
