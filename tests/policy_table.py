"""Table of the answers a party gives, by node key, kind of request and runtime.

It is computed by asking the party.

`tests.test_policy_table` compares it with an allow-list.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters

from flwr_flynn.app import client_app
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.federated.phases.calibration import CalibrationRequest
from flwr_flynn.federated.phases.column_sums import ColumnSumsRequest
from flwr_flynn.federated.phases.columns import BinsRequest, ColumnsRequest
from flwr_flynn.federated.phases.counts import (
    CountsRequest,
    UpdateRequest,
    WithdrawRequest,
)
from flwr_flynn.federated.phases.evaluation import SecureEvaluationRequest
from flwr_flynn.federated.phases.selection import SelectionRequest
from flwr_flynn.federated.phases.trees import TreesRequest
from flwr_flynn.federated.protocol import EVALUATE, REFUSED, STATISTIC
from flwr_flynn.federated.request import Request
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.flower import secagg
from flwr_flynn.hashing.rank_codes import KEY_BITS
from flwr_flynn.model.basis import Basis
from flwr_flynn.model.calibration import Calibration
from flwr_flynn.model.column_histograms import ColumnHistograms
from flwr_flynn.model.counts import ClassCounts
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.growth import Growth
from flwr_flynn.model.scoring import ScoringRule
from tests.fakes import (
    CLASSES,
    LAPLACE,
    RUN,
    SHARE,
    SPEC,
    config_of,
    evaluation_of,
    replaced,
)

_BOUND = 256
_X = np.random.default_rng(0).normal(size=(90, 4))
_CODES = np.arange(90) % 3

EXACT = RUN
NOISY = RunSpec(SPEC, CLASSES, LAPLACE)
SECURE = RunSpec(SPEC, CLASSES, None, _BOUND)
SHARED = RunSpec(SPEC, CLASSES, SHARE, _BOUND)
_RANGES = replace(SPEC, center=(0.0,) * 4, scale=(0.25,) * 4)
SUMMED = RunSpec(_RANGES, CLASSES, replaced(LAPLACE, n_columns=4))
SHARED_SUMS = RunSpec(_RANGES, CLASSES, replaced(SHARE, n_columns=4), _BOUND)
_COUNTS = ClassCounts.from_data(EXACT.hasher, _X, _CODES, 3)
_READOUT = ScoringRule("balanced", 0.5, 1.0)

_COLUMNS = ColumnsRequest(4, CLASSES)
_BINS = {**vars(_COLUMNS), "cuts": np.arange(4) << KEY_BITS, "bound": _BOUND}

_EVALUATION = evaluation_of(EXACT, (_COUNTS,), (_READOUT,), (1.0,))


def trees_of(run: RunSpec) -> TreesRequest:
    """A request for the first level of two trees."""
    columns = ColumnHistograms.from_data(_X, _CODES, 3)
    growth = Growth.planted(Basis.of_columns(columns), 3, 2, 0)
    return TreesRequest(
        run,
        _EVALUATION.model,
        calibration=Calibration(1.0, (0.0, 0.0, 0.0)),
        trees=growth.forest,
        growth=growth,
    )


FITS: dict[str, Request[Any]] = {
    "columns": _COLUMNS,
    "exact": CountsRequest(EXACT),
    "noisy": CountsRequest(NOISY),
    "noisy sums": ColumnSumsRequest(SUMMED),
    "secure exact": CountsRequest(SECURE),
    "secure share": CountsRequest(SHARED),
    "secure share of sums": ColumnSumsRequest(SHARED_SUMS),
    "secure bins": BinsRequest(**_BINS, by_class=False),
    "secure columns": BinsRequest(**_BINS, by_class=True),
    "secure candidates": SelectionRequest(
        SECURE, CountsOfSpecs((_COUNTS,)), ((ScoringRule("balanced", 0.5),),)
    ),
    "secure evaluation": SecureEvaluationRequest(SECURE, _EVALUATION.model),
    "update exact": UpdateRequest(EXACT),
    "update secure exact": UpdateRequest(SECURE),
    "leave exact": WithdrawRequest(EXACT),
    "leave noisy": WithdrawRequest(NOISY),
    "leave secure exact": WithdrawRequest(SECURE),
    "leave secure share": WithdrawRequest(SHARED),
    "candidates": SelectionRequest(
        EXACT, CountsOfSpecs((_COUNTS,)), ((ScoringRule("balanced", 0.5),),)
    ),
    "calibration": CalibrationRequest(EXACT, _EVALUATION.model),
    "secure calibration": CalibrationRequest(SECURE, _EVALUATION.model),
    "trees": trees_of(EXACT),
    "secure trees": trees_of(SECURE),
}
EVALUATIONS: dict[str, Request[Any]] = {
    "evaluation": _EVALUATION,
    "model": replace(_EVALUATION, tries=False),
}
REQUESTS = (*FITS, *EVALUATIONS)

VALUES: dict[str, Any] = {
    "data-path": "{data}",
    "label": "y",
    "separator": ";",
    "decimal": ",",
    "encoding": "latin-1",
    "label-map": "ja=yes",
    "ignore": "patient",
    "gap-texts": "unknown, -999",
    "keep": "patient",
    "accept": "patient",
    "rename": "patient=id",
    "convert": "crp:mg/dl*10",
    "synonyms": "sex:w=f",
    "site": "{site}",
    "date-format": "dd.mm.yyyy",
    "model-path": "{folder}.model.npz",
    "record-path": "{folder}.left.jsonl",
    "previous-path": "{data}",
    "held-out-key": "ids",
    "member-path": "{folder}.secret",
    "party-id": "Basel",
    "test-fraction": 0.3,
    "memory-limit": 1.0,
    "min-examples": 1,
    "class-prior": False,
    "products": True,
    "table-one": True,
    "max-epsilon": 1.0,
    "max-delta": 1e-4,
    "secure": True,
    "leave": True,
    "state-path": "{folder}/state",
    "neighbours": "replace-one",
    "records-per-person": 2,
    "composition": "basic",
    "evaluate": True,
    "response-seconds": 0.001,
}
"""A value for every node key that differs from the default where it can."""

_POLICY = ("max-epsilon", "max-delta", "state-path")


def rows() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Runtime, name and node keys of every row."""
    keys = [row.key for row in NodeConfig.rows()]
    for runtime in ("deployed", "simulated"):
        if runtime == "deployed":
            first = ("data-path",)
        else:
            first = ()
        yield runtime, "nothing", ()
        yield runtime, "data-pth", ("data-pth", *_POLICY, "secure")  # as it happens
        for key in keys:
            yield runtime, key, tuple(dict.fromkeys((*first, key)))
        yield runtime, "policy", (*first, *_POLICY)
        for key in keys:
            if key not in (*_POLICY, "data-path"):
                yield runtime, f"policy, {key}", (*first, *_POLICY, key)
        yield runtime, "policy, secure, leave", (*first, *_POLICY, "secure", "leave")


def allowed(runtime: str, keys: tuple[str, ...], request: str, folder: Path) -> bool:
    """Return whether a party with these node keys answers a request.

    A party that leaves was counted before.
    """
    values = VALUES | {"data-pth": VALUES["data-path"]}
    places = {
        "folder": folder,
        "data": folder.parent / "mine.npz",
        "site": folder.parent / "site.toml",
    }
    places["site"].write_text("gap-texts = [-999]\n")
    node = {}
    for key in keys:
        node[key] = values[key]
        if isinstance(values[key], str):
            node[key] = values[key].format(**places)
    if runtime == "deployed" and request.startswith("leave") and "leave" in node:
        stays = {key: value for key, value in node.items() if key != "leave"}
        for earlier in ("noisy", "secure share"):
            _asked(runtime, stays, earlier, folder)
    return _asked(runtime, node, request, folder)


def _asked(runtime: str, node: dict[str, Any], request: str, folder: Path) -> bool:
    """True if arrays are given, or the evaluation is no refusal."""
    # Flower's numbers are in every node, and the server names the party's own file.
    run = {row.key: row.default for row in RunConfig.rows()} | {
        "dataset": str(folder.parent / "mine.npz")
    }
    numbered = node | {"partition-id": 0, "num-partitions": 1}
    context = Context(
        run_id=1, node_id=2, node_config=numbered, state=RecordDict(), run_config=run
    )
    asked = (FITS | EVALUATIONS)[request]
    config = config_of(asked)
    arrays = ndarrays_to_parameters(asked.arrays())
    with mock.patch.object(
        client_app, "in_simulation", return_value=runtime == "simulated"
    ):
        party = client_app.client_fn(context)
        masking: AbstractContextManager[Any] = nullcontext()
        if "secure" in request:
            masking = secagg.masking(_BOUND, 2)
        with masking:
            # A server may ask for anything by either of Flower's channels.
            fit = party.fit(FitIns(arrays, config))
            evaluation = party.evaluate(EvaluateIns(arrays, config))
    by_other_channel = evaluation.metrics
    if asked.channel == EVALUATE:
        by_other_channel = fit.metrics
    assert REFUSED in by_other_channel
    assert request == "evaluation" or STATISTIC not in evaluation.metrics
    if request in FITS:
        return len(fit.parameters.tensors) > 0
    assert not fit.parameters.tensors
    # A model comes to a party, which sends nothing about it.
    return REFUSED not in evaluation.metrics and (
        request == "model" or STATISTIC in evaluation.metrics
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder, "mine.npz"),
            X=_X,
            y=np.array(CLASSES)[_CODES],
            ids=np.arange(90) // 2,
        )
        yield Path(folder).resolve()


def accepted(runtime: str, keys: tuple[str, ...]) -> set[str]:
    """The kinds of request that such a party answers."""
    with _folder() as folder:
        return {
            name
            for i, name in enumerate(REQUESTS)
            if allowed(runtime, keys, name, folder / str(i))
        }
