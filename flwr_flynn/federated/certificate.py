"""Certificates of a change: what a federation was before and is now, after samples of a party went, came or changed.

Server and party make one each, of the same request, as JSON for people. Nothing signs it but SHA-256 of counts: whoever
has the party's file or the federation's makes them again, see `app.cli_certificate`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from flwr_flynn import __version__
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.model.model import ModelMember, counts_sha256
from flwr_flynn.tables.schema import Schema

FORMAT = 1


def change(run: RunSpec, before: CountsOfSpecs, now: CountsOfSpecs | None) -> dict[str, Any]:
    """A party's counts before and now, and their difference; `now` is None of a party that leaves."""
    first = before.parts[0]
    pairs = [(part, None) for part in before.parts] if now is None else zip(before.parts, now.parts, strict=True)
    n_taken = first.n_examples - (0 if now is None else now.parts[0].n_examples)
    return {
        "classes": first.n_classes,
        "hashes": [part.spec_fingerprint for part in before.parts],
        "before": _of_counts(before),
        "now": None if now is None else _of_counts(now),
        "taken": {
            "examples": None if first.noise else n_taken,
            "sha256": [part.sha256() if after is None else part.sha256_without(after) for part, after in pairs],
        },
        "traces": _traces(run),
    }


def _of_counts(counts: CountsOfSpecs) -> dict[str, Any]:
    first = counts.parts[0]
    return {"examples": None if first.noise else first.n_examples, "sha256": list(counts.sha256)}


def _traces(run: RunSpec) -> list[str]:
    """In words, where samples that are not counted any more may still show."""
    found = [
        "models that were distributed before, and copies of the federation's file",
        "the server has seen the counts of before and of now: their difference shows the samples that went and came",
    ]
    if any(vector is not None for spec in run.specs for vector in (spec.edges, spec.center, spec.scale)):
        found.append("edges, centre and scale of the hashes, unless they were given: kept as they were learned")
    if len(run.specs) > 1:
        found.append(f"the choice of the {len(run.specs)} hashes, of which the members of the model are: kept")
        found.append("decays and weights of the members, unless parties have chosen them anew in this run")
    if isinstance(run.feature_names, Schema):
        found.append("kinds, levels and gaps of the columns, unless the schema was given: kept as they were learned")
    return found


def certificate(of: dict[str, Any], by: str, action: str, run: str, party: str, **more: Any) -> dict[str, Any]:
    """The certificate of a `change`; `more` is what the server alone knows."""
    made = {
        "format": FORMAT,
        "by": by,
        "action": action,
        "run": run,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "party": party,
        **of,
        "federation": None,
        **more,
        "versions": {"flwr-flynn": __version__, **{name: version(name) for name in ("flwr", "numpy")}},
    }
    return {**made, "sha256": digest(made)}


def digest(made: dict[str, Any]) -> str:
    """SHA-256 of a certificate without its own."""
    rest = {name: value for name, value in made.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def of_members(members: Sequence[ModelMember]) -> dict[str, Any]:
    """Samples and SHA-256 of the counts of a model, the latter as in `metrics.json`."""
    counts = members[0].counts
    return {"examples": None if counts.noise else counts.n_examples, "sha256": counts_sha256(members)}


def text(made: dict[str, Any]) -> str:
    """A certificate as the text of its file."""
    return json.dumps(made, indent=2, allow_nan=False) + "\n"
