"""The server's own file of a federation: its sums, spec, scoring and roster, and the
phase where the run stands.

It is a model file with a roster, so `FlyNNClassifier.load` takes the model. Unlike
``model.npz`` it tells of single parties: identity, samples of each class, and the
SHA-256 of the counts (the counts themselves are not kept). So parties can join later
and leave again, and a run can go on after any phase (`purpose="resume"`).

A party is known by its node id, the public key of its SuperNode, or the SHA-256 of its
proof of membership. Without SuperNode authentication the first two change with every
start of a node.

``flwr-flynn show federation.npz`` prints a file's roster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from flwr_flynn._types import Array
from flwr_flynn._validation import (
    boolean,
    checked_fields,
    freeze,
    integer,
    integers,
    number,
)
from flwr_flynn.errors import ConfigError, ModelFileError
from flwr_flynn.federated.gram_fields import linear_of_parts
from flwr_flynn.federated.labels import Label
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.candidates import THOROUGH_TREES
from flwr_flynn.model.counts import ClassCounts, is_sha256
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.forest import MOST_TREES, Forest
from flwr_flynn.model.gram import GramMatrix
from flwr_flynn.model.growth import LARGEST_GAINS, Growth
from flwr_flynn.model.model import Model
from flwr_flynn.model.model_file import GROWTH, SUMS
from flwr_flynn.model.prior import counted_prior
from flwr_flynn.privacy import mechanism_from_dict

if TYPE_CHECKING:
    from flwr_flynn.model.classifier import FlyNNClassifier

_FORMAT = 3
_LONGEST = 64  # characters of a name, a node or a run
_FACTS = {
    "phase": "phase",
    "selected": "is_selected",
    "max_members": "max_members",
    "trees": "n_trees",
    "calibrated": "is_calibrated",
    "min_parties": "min_parties",
    "changed": "is_changed",
}
"""Entries of the roster, and the attributes that they are."""

_RUN = {"format", "mode", "bound", "mechanism", "members", "basis", "growth"}
_ROSTER = _RUN | {*_FACTS}
_LEVELS = ("level", "best_level", "best_loss")  # of a growth
# of a member; the size and time of a reply are not
_KEPT = ("name", "node", "key", "proof", "sizes", "sha256", "run")


@dataclass(frozen=True, eq=False)
class Federation:
    """A model, the parties in its counts, and the phase where the run stands.

    Parameters
    ----------
    run_spec : RunSpec
        With a spec for each member of the model.
    shared : Model
        Before the selection of a run all candidates are its members.
    members : sequence of Member
        Kept in the order of their names.
    phase : str, default=""
        The phase that is due, "" for a finished run.
    max_members : int, default=1
        Candidates that the model keeps, at most; until the selection.
    is_selected : bool, default=True
        True if the specs are those of the model's members, and not candidates.
    n_trees : int, default=0
        Trees of the run, which later runs grow anew.
    is_calibrated : bool, default=True
        False for a run of effort "quick", whose model has no calibration.
    linear : GramMatrix, optional
        Sums of the linear part, of the members that let theirs leave.
    min_parties : int, default=1
        Members whose sums a linear part needs, at least.
    growth : Growth, optional
        A forest that is not complete yet.
    is_changed : bool, default=False
        True if parties joined the sum, left it or updated it after its first run.
    """

    run_spec: RunSpec
    shared: Model
    members: Sequence[Member]
    phase: str = ""
    max_members: int = 1
    is_selected: bool = True
    n_trees: int = 0
    is_calibrated: bool = True
    linear: GramMatrix | None = None
    min_parties: int = 1
    growth: Growth | None = None
    is_changed: bool = False

    def __post_init__(self) -> None:
        for name in ("max_members", "min_parties"):
            integer(name, getattr(self, name), error=ModelFileError)
        integer("trees", self.n_trees, 0, MOST_TREES, error=ModelFileError)
        for name in ("selected", "calibrated", "changed"):
            boolean(name, getattr(self, _FACTS[name]), ModelFileError)
        if tuple(member.spec for member in self.shared.members) != self.run_spec.specs:
            raise ModelFileError(
                "model",
                "a member for each spec of the run",
                f"{len(self.shared.members)}",
            )
        _check_line("phase", self.phase, "a name")
        members = sorted(self.members, key=lambda member: (member.name, member.node))
        freeze(self, members=tuple(members))
        self._check_members()

    def _check_members(self) -> None:
        run = self.run_spec
        if self.counts.noise and run.mechanism is None:
            raise ModelFileError(
                "roster", "a mechanism for noisy counts", f"mode {run.mode}"
            )
        if run.is_secure:
            expected = 0
        else:
            expected = len(run.specs) + (self.linear is not None)
        for member in self.members:
            if len(member.sha256) != expected:
                raise ModelFileError(
                    "sha256",
                    f"{expected} for each member in mode {run.mode}",
                    len(member.sha256),
                )
        if run.is_secure:
            return
        if not run.is_plain:
            releases = sum(release.times for release in self.counts.noise)
            if len(self.members) != releases:
                raise ModelFileError(
                    "roster",
                    f"{releases} members, one for each release",
                    len(self.members),
                )
            return
        rows = [(0,) * run.n_classes]
        for member in self.members:
            if member.sizes is None:
                raise ModelFileError(
                    "sizes",
                    f"samples of each class for every member in mode {run.mode}",
                    "none",
                )
            rows.append(member.sizes)
        sizes = np.sum(rows, axis=0, dtype=object).tolist()
        if any(counts.n_per_class.tolist() != sizes for counts in self.totals.parts):
            raise ModelFileError(
                "roster",
                "members with as many samples of each class as the counts",
                "other numbers",
            )

    @cached_property
    def totals(self) -> CountsOfSpecs:
        """The sum for each spec, and those of the linear part."""
        parts = tuple(member.counts for member in self.shared.members)
        return CountsOfSpecs(parts, self.linear)

    @property
    def basis(self) -> Basis | None:
        """Basis of the linear part; None where no party was asked for its sums."""
        if self.linear is None:
            return None
        return self.linear.terms

    @property
    def counts(self) -> ClassCounts:
        """The sum for the first spec, in a finished run that of the first member of the
        model.
        """
        return self.totals.parts[0]

    @property
    def model(self) -> FlyNNClassifier:
        """The classifier, without anything about single parties."""
        from flwr_flynn.model.classifier import FlyNNClassifier

        return FlyNNClassifier.from_model(self.shared)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all: after a crash there is the old one or
        the new one.
        """
        run = self.run_spec
        mechanism = run.mechanism
        basis = None
        further: dict[str, Array] = {}
        if self.linear is not None:
            basis = self.linear.terms.to_dict()
            further = dict(zip(SUMS, self.linear.tables, strict=True))
        growth = None
        if self.growth is not None:
            growth = {name: getattr(self.growth, name) for name in _LEVELS}
            growth["n_trees"] = self.growth.forest.n_trees
            further |= _arrays_of(self.growth)
        roster = {
            "format": _FORMAT,
            "mode": run.mode,
            "bound": run.bound,
            "mechanism": None if mechanism is None else mechanism.to_dict(),
            **{name: getattr(self, attribute) for name, attribute in _FACTS.items()},
            "members": [
                {name: getattr(member, name) for name in _KEPT}
                for member in self.members
            ],
            "basis": basis,
            "growth": growth,
        }
        model_file.write(path, self.shared, extra=roster, further=further)

    @classmethod
    def load(cls, path: str | os.PathLike[str], max_bytes: int = 2**32) -> Federation:
        """A federation from a file that `save` wrote."""
        with model_file.reading(path, max_bytes) as (model, roster, further):
            if not isinstance(roster, dict):
                raise ModelFileError(
                    "roster",
                    "one",
                    "none",
                    text="a model without a roster: nobody can join or leave",
                )
            # Of files of 0.8, whose parties did not consent to products for all sites.
            lacking: dict[str, Any] = {
                "calibrated": True,
                "min_parties": 1,
                "basis": None,
                "growth": None,
                "changed": True,
            }
            if "trees" not in roster and "thorough" in roster:  # in 0.8
                lacking["trees"] = THOROUGH_TREES * (roster.pop("thorough") is True)
            for name, value in lacking.items():
                roster.setdefault(name, value)
            if (
                set(roster) != _ROSTER
                or type(roster["format"]) is not int
                or roster["format"] != _FORMAT
            ):
                raise ModelFileError(
                    "roster",
                    f"one of format {_FORMAT}",
                    f"format {str(roster.get('format'))[:20]}",
                )
            mechanism = None
            if roster["mechanism"] is not None:
                mechanism = mechanism_from_dict(roster["mechanism"])
            classes: list[Label] = model.classes.tolist()
            specs = [member.spec for member in model.members]
            weight = None
            if model.prior is None:
                weight = "balanced"
            run = RunSpec(
                specs, classes, mechanism, roster["bound"], model.feature_names, weight
            )
            if roster["mode"] != run.mode:
                raise ModelFileError(
                    "mode",
                    f"{run.mode} with this mechanism and bound",
                    str(roster["mode"])[:40],
                )
            if not isinstance(roster["members"], list):
                raise ModelFileError(
                    "members", "a list", type(roster["members"]).__name__
                )
            members = [_member(member, len(classes)) for member in roster["members"]]
            facts = {attribute: roster[name] for name, attribute in _FACTS.items()}
            # The prior follows from the counts, and the guarantee from the mechanism:
            # neither from a file.
            prior = counted_prior(model.members[0].counts, weight)
            model = replace(model, prior=prior, guarantee=run.guarantee)
            sums = [further[name] for name in SUMS if name in further]
            linear = _linear(roster["basis"], sums, run, model.members[0].counts)
            growth = None
            if roster["growth"] is not None and linear is not None:
                growth = _growth(roster["growth"], further, linear.terms, run)
            return cls(run, model, members, **facts, linear=linear, growth=growth)


def _linear(
    values: object, sums: Sequence[Array], run: RunSpec, counts: ClassCounts
) -> GramMatrix | None:
    """Sums of a linear part, with a basis in the roster."""
    if values is None and not sums:
        return None
    if run.mechanism is not None:
        raise ModelFileError("basis", "none beside noisy counts", "one")
    basis = Basis.from_dict(values, run.spec.n_features)
    zeros = GramMatrix.zeros(basis, run.n_classes)
    shapes = [table.shape for table in zeros.tables]
    if [table.shape for table in sums] != shapes:
        raise ModelFileError(
            "linear", f"arrays of shapes {shapes}", f"{len(sums)} others"
        )
    products, by_class, sizes = (table.astype(np.int64) for table in sums)
    return linear_of_parts([sizes, products, by_class], basis, counts)


def _arrays_of(growth: Growth) -> dict[str, Array]:
    """Arrays of a growth, by their names in a file."""
    forest = growth.forest
    best_values = forest.values[:0]
    if growth.best is not None:
        best_values = growth.best.values
    arrays = (forest.columns, forest.cuts, forest.values, best_values, growth.gains)
    return dict(zip(GROWTH, arrays, strict=True))


def _growth(
    values: Any, arrays: Mapping[str, Array], basis: Basis, run: RunSpec
) -> Growth:
    """A growth with an entry in the roster, and its arrays."""
    checked_fields("growth", values, {"n_trees", *_LEVELS}, error=ModelFileError)
    n_trees = integer("n_trees", values["n_trees"], error=ModelFileError)
    levels = {
        name: integer(name, values[name], least=0, error=ModelFileError)
        for name in ("level", "best_level")
    }
    loss = number("best_loss", values["best_loss"], least=0, error=ModelFileError)
    columns, cuts, leaf_nodes, best_values, gains = map(arrays.__getitem__, GROWTH)
    forest = Forest(basis, run.n_classes, n_trees, columns, cuts, leaf_nodes)
    shape = (len(basis.columns),)
    gains = integers("gains", gains, shape, 0, LARGEST_GAINS, ModelFileError)
    best = None
    if len(best_values):
        best = forest.pruned(best_values)
    seed = run.spec.seed
    return Growth(forest, seed, gains, best=best, best_loss=loss, **levels)


def _check_line(field: str, text: object, what: str) -> None:
    """Refuse anything but a short text on one line."""
    if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
        expected = f"{what} of at most {_LONGEST} characters on one line"
        raise ModelFileError(field, expected, type(text).__name__)


def _member(values: Any, n_classes: int) -> Member:
    if isinstance(values, dict):
        values.setdefault("proof", "")  # there was none in 0.8
    checked_fields("members", values, {*_KEPT}, error=ModelFileError)
    for name in ("name", "node", "run"):
        _check_line(name, values[name], "a text")
    sizes = values["sizes"]
    sha256 = values["sha256"]
    for name in ("key", "proof"):
        if values[name] != "" and not is_sha256(values[name]):
            raise ModelFileError(
                name, "64 hexadecimal digits or none", str(values[name])[:64]
            )
    if not isinstance(sha256, list) or not all(map(is_sha256, sha256)):
        raise ModelFileError(
            "sha256", "a list of 64 hexadecimal digits each", type(sha256).__name__
        )
    if sizes is not None:
        # 0.8 added classes to a federation
        is_list = isinstance(sizes, list) and len(sizes) == n_classes
        if not is_list or not all(
            type(size) is int and 0 <= size < 2**63 for size in sizes
        ):
            raise ModelFileError(
                "sizes",
                f"{n_classes} integers (with other classes train anew), or none",
                "others",
            )
        values["sizes"] = tuple(sizes)
    values["sha256"] = tuple(sha256)
    return Member(**values)


@contextmanager
def exclusive(
    path: str | os.PathLike[str], field: str = "federation"
) -> Iterator[None]:
    """Keep other runs off a federation's file for the block.

    A lock file beside it stays, and locks nothing once its process is gone. `field` is
    the setting that the path follows from.
    """
    file = Path(path)
    try:
        file.parent.stat()  # the lock would make a folder
        held = FileLock(file.with_name(f".{file.name}.lock"), mode=0o600).acquire(
            timeout=0
        )
    except Timeout:
        name = file.name[:80]
        text = (
            f"{field}: another run writes {name!r}; wait until it ends, or give another"
        )
        raise ConfigError(field, got=name, text=text) from None
    except OSError as error:
        raise ConfigError(field, "a file that can be locked", error.strerror) from None
    with held:
        yield


def roster_rows(federation: Federation) -> list[Mapping[str, Any]]:
    """The roster as rows of a table."""
    return [
        {
            "party": str(member),
            "node": member.node,
            "key": member.key[:16] or "-",
            "examples": "hidden" if member.examples is None else member.examples,
            "sha256": member.sha256[0][:16] if member.sha256 else "hidden",
            "run": member.run,
        }
        for member in federation.members
    ]
