"""The verb `flwr-flynn certificate check`: a certificate beside the files of today, see `federated.certificate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr_flynn._validation import LARGEST, integer, is_sha256
from flwr_flynn.app.data import datasets
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.report.content import Each, checked, read
from flwr_flynn.errors import DataError, ModelFileError
from flwr_flynn.federated import certificate
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.party import Party, PartyOptions
from flwr_flynn.federated.phases import counts as phase
from flwr_flynn.federated.protocol import PHASE, REFUSED
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.federated.samples import Features, Samples
from flwr_flynn.model.classifier import FlyNNClassifier
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.tables.schema import Schema

_MOST_BYTES = 2**32  # of a model in memory

Row = tuple[str, Any, Any]
"""A field, its value in the certificate, and the one that was found."""


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise DataError(field, "a text of at most 200 characters on one line", type(value).__name__)
    return value


def _sha256(field: str, value: Any) -> str:
    if not is_sha256(value):
        raise DataError(field, "64 hexadecimal digits", type(value).__name__)
    return str(value)


def _samples(field: str, value: Any) -> int | None:
    return None if value is None else integer(field, value, -LARGEST, LARGEST, DataError)


_OF_PARTY = {"examples": _samples, "sha256": [_sha256]}
_SHAPE = {
    "format": _samples,
    "classes": lambda field, value: integer(field, value, 1, 2**20, DataError),
    **dict.fromkeys(("by", "action", "run", "time", "party"), _text),
    "hashes": [_sha256],
    **dict.fromkeys(("before", "now", "taken"), _OF_PARTY),
    "federation": {name: {"examples": _samples, "sha256": _sha256} for name in ("before", "now")},
    "traces": [_text],
    "versions": Each(_text),
    "sha256": _sha256,
}


def load(path: Path) -> dict[str, Any]:
    """A certificate from anywhere: of the right shape, and as it was written, or a `DataError`."""
    field = repr(path.name[:80])
    made: dict[str, Any] = checked(field, read(path), _SHAPE)
    if made["format"] != certificate.FORMAT:
        raise DataError(field, f"a certificate of format {certificate.FORMAT}", made["format"])
    n, parts = len(made["hashes"]), [made[name] for name in ("before", "now", "taken")]
    if parts[0] is None or parts[2] is None or any(part and len(part["sha256"]) != n for part in parts):
        raise DataError(field, f"{n} SHA-256 before, now and of what was taken", "others")
    if certificate.digest(made) != made["sha256"]:
        raise DataError(field, "the certificate as it was written", "one that was changed since")
    return made


def check(path: str, files: dict[str, str], node: dict[str, Any]) -> int:
    """Compare a certificate with `files`, by their kind; 1 if anything is not equal.

    `node` are the settings of the party that decide which rows of its file are training samples.
    """
    made, rows = load(Path(path)), list[Row]()
    if other := files.get("other"):
        theirs = load(Path(other))
        rows += [(name, made[name], theirs[name]) for name in ("action", "run", "hashes", "before", "now", "taken")]
    run: RunSpec | None = None
    if model := files.get("model"):
        made, run, found = _of_model(made, model)
        rows += found
    if "data" in files or "previous" in files:
        if run is None:
            raise DataError("model", "the federation's file or a model, which has the hashes, beside a party's file")
        rows += _of_data(made, run, files, node)
    print(f"{made['action']} of {made['party'] or 'a party'} in run {made['run']}, {made['time']}, by the {made['by']}")
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, stated, there in rows:
        verdict = "equal" if stated == there else f"NOT EQUAL: certificate {_short(stated)}, found {_short(there)}"
        print(f"  {name:<{width}}  {verdict}")
    if not rows:
        print("  unchanged since it was written; give --model, --data, --previous or --other to compare it with")
    print("The samples may still show in:", *(f"- {trace}" for trace in made["traces"]), sep="\n")
    return int(any(stated != there for _, stated, there in rows))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['examples']} samples {_short(value['sha256'])}"
    if isinstance(value, list):
        return ", ".join(map(_short, value)) or "none"
    return f"{value[:16]}..." if is_sha256(value) else str(value)


def _of_model(made: dict[str, Any], path: str) -> tuple[dict[str, Any], RunSpec, list[Row]]:
    """The certificate about the hashes of a model, or of a federation's file; its run, and its rows."""
    saved: Federation | None = None
    with suppress(ModelFileError):  # a model without a roster, or a file that the next line refuses
        saved = Federation.load(path, _MOST_BYTES)
    model = saved.shared if saved is not None else FlyNNClassifier.load(path, max_bytes=_MOST_BYTES).model_
    hashes = [member.counts.spec_fingerprint for member in model.members]
    if not set(hashes) <= set(made["hashes"]):  # fewer where the run chose among the members again
        raise DataError("model", "hashes of the certificate", "others")
    order, rows = [made["hashes"].index(each) for each in hashes], list[Row]()
    for name in ("before", "now", "taken"):
        if made[name] is not None:
            made = made | {name: made[name] | {"sha256": [made[name]["sha256"][index] for index in order]}}
    if made["federation"] is not None:
        found = certificate.of_members(model.members)
        rows.append(("federation now", made["federation"]["now"], found))
    if saved is None:
        if model.members[0].counts.noise:
            raise DataError("model", "the federation's file of such a run", "a model")
        specs = [member.spec for member in model.members]
        return made, RunSpec(specs, model.classes.tolist(), None, None, model.feature_names), rows
    kept, now = [list(member.sha256) for member in saved.members], made["now"]
    if now is not None:
        rows.append(("counts of now in the federation", True, now["sha256"] in kept))
    if now is None or now["sha256"] != made["before"]["sha256"]:
        rows.append(("counts of before in the federation", False, made["before"]["sha256"] in kept))
    return made, saved.run_spec, rows


def _of_data(made: dict[str, Any], run: RunSpec, files: dict[str, str], node: dict[str, Any]) -> Iterator[Row]:
    """Rows of the party's file of now, and of before."""
    if not run.is_plain:
        raise DataError("model", "one of exact counts: those with noise cannot be made again", run.mode)
    run = replace(run, classes=run.classes[: made["classes"]])  # that there were; later ones are behind them
    found = {name: _counted(run, files[name], node) for name in ("data", "previous") if name in files}
    now, before = found.get("data"), found.get("previous")
    if now is not None:
        yield "now", made["now"], certificate.change(run, now, now)["now"]
    if before is not None:
        yield "before", made["before"], certificate.change(run, before, None)["before"]
        if now is not None or made["now"] is None:
            yield "taken", made["taken"], certificate.change(run, before, now)["taken"]


def _counted(run: RunSpec, path: str, node: dict[str, Any]) -> CountsOfSpecs:
    """Counts of the training samples of a party's file, as the party itself would send them."""
    config = NodeConfig.parse({"data-path": path, **node})

    def samples(features: Features) -> Samples:
        if isinstance(features, Schema):
            return datasets.encoded_share(config, features)
        return datasets.own_share(config, features)

    request = {PHASE: phase.CountsRequest.phase, **run.to_config()}
    answer = Party(samples, PartyOptions(n_jobs=-1)).answer(request)
    if REFUSED in answer.metrics:
        raise DataError(Path(path).name, text=str(answer.metrics[REFUSED]))
    statistic: CountsOfSpecs = answer.statistic
    return statistic
