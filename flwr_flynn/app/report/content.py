"""The content of a metrics.json from anywhere: checked, and cut to what the page shows, or refused with an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flwr_flynn import _validation
from flwr_flynn._markup import shortened
from flwr_flynn._validation import LARGEST
from flwr_flynn.errors import DataError

_MOST_BYTES = 2**26
_LONGEST = 4000  # characters of a guarantee or a setting

Leaf = Callable[[str, Any], Any]


class Each(NamedTuple):
    """An object with any names, whose values have one shape."""

    shape: Any


def read(path: Path) -> Any:
    """Values of a JSON file, whose size is checked before it is read."""
    field = repr(path.name[:80])
    if not path.is_file():
        raise DataError(field, "a file", "none")
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise DataError(field, f"at most {_MOST_BYTES} bytes", size)
    try:
        return json.loads(path.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise DataError(field, "JSON with finite numbers", "something else") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


# ---- values


def _a(kind: type | tuple[type, ...], words: str, most: int = 200) -> Leaf:
    def leaf(field: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise DataError(field, words, type(value).__name__)
        return shortened(value, most) if isinstance(value, str) else value

    return leaf


def _figure(field: str, value: Any) -> float:
    _NUMBER(field, value)
    return _validation.number(field, value, error=DataError)


def _count(field: str, value: Any) -> int:
    _NUMBER(field, value)
    return _validation.integer(field, value, 0, LARGEST, DataError)


def _scalar(field: str, value: Any) -> Any:
    value = _a((str, bool, int, float), "a text, a number or a boolean", _LONGEST)(field, value)
    if isinstance(value, float):
        return _figure(field, value)
    return value if isinstance(value, str | bool) else _validation.integer(field, value, -LARGEST, error=DataError)


def _label(field: str, value: Any) -> str:
    return shortened(_scalar(field, value))


def _row(n: int) -> Leaf:
    """A leaf of so many figures."""

    def leaf(field: str, value: Any) -> list[float]:
        found = checked(field, value, [_figure])
        if len(found) != n:
            raise DataError(field, f"{n} numbers", len(found))
        return list(found)

    return leaf


def _maybe(leaf: Leaf) -> Leaf:
    return lambda field, value: None if value is None else leaf(field, value)


_NUMBER, _TEXT, _FLAG = _a((int, float), "a number"), _a(str, "a text"), _a(bool, "a boolean")
_LONG = _a(str, "a text", _LONGEST)
_MAYBE, _MAYBE_COUNT, _MAYBE_TEXT, _MAYBE_FLAG = _maybe(_figure), _maybe(_count), _maybe(_TEXT), _maybe(_FLAG)
_INTERVAL, _POINT = _maybe(_row(3)), _row(2)
_REASONS = Each(_TEXT)

# ---- the shape

_NAMES = ("auroc", "auprc", "brier", "log_loss", "calibration_error", "calibration_slope", "calibration_intercept")
FIGURES = {"examples": _MAYBE_COUNT, **dict.fromkeys((*_NAMES, "accuracy"), _INTERVAL)}
_PARTIES = [{"name": _TEXT, "accuracy": _figure, "examples": _count}]
_CLASS = {
    "label": _label,
    "examples": _MAYBE_COUNT,
    "others": _MAYBE_COUNT,
    "auroc": _INTERVAL,
    "auprc": _INTERVAL,
    "calibration": {"error": _INTERVAL, "slope": _INTERVAL, "intercept": _INTERVAL},
    "thresholds": [{"threshold": _figure, **dict.fromkeys(("sensitivity", "specificity", "ppv", "npv"), _INTERVAL)}],
    "roc": [_POINT],
    "reliability": [{"predicted": _figure, "observed": _INTERVAL, "examples": _count}],
}
_EVALUATION = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "accuracy_std"), _MAYBE),
    "examples": _MAYBE_COUNT,
    "parties": _PARTIES,
    "confusion": [[_count]],
    "class_prior": {"accuracy": _MAYBE, "balanced_accuracy": _MAYBE, "macro_f1": _MAYBE},
    "figures": {
        "examples": _MAYBE_COUNT,
        "resolution": _MAYBE,
        "overall": FIGURES,
        "classes": [_CLASS],
        "parties": [{"name": _TEXT, **FIGURES}],
        "groups": {"column": _TEXT, "levels": [{"level": _label, **FIGURES}]},
    },
}
_FIELD = {"name": _TEXT, "shape": [_count], "bytes": _maybe(_row(3))}
SHAPE: dict[str, Any] = {
    "action": _MAYBE_TEXT,
    "run": {"run_id": _MAYBE_TEXT, "seconds": _MAYBE},
    "simulation": {"parties": _count, "dealt": _MAYBE_COUNT, "samples": _MAYBE_COUNT},
    "parties": [{"name": _TEXT, "examples": _MAYBE_COUNT, "bytes": _MAYBE_COUNT, "seconds": _MAYBE}],
    "federation": [{"party": _MAYBE_TEXT}],
    "missing": _REASONS,
    "evaluation_missing": _REASONS,
    "unkept": _REASONS,
    "evaluation_errors": [_TEXT],
    "examples": _MAYBE_COUNT,
    "classes": [_label],
    "class_sizes": Each([_count]),
    "evaluation": _EVALUATION,
    "schema": {"missing": _REASONS},
    "columns": {"missing": _REASONS},
    "members": [{"hash_dim": _count, "row_nnz": _count, "hash_nnz": _count, "weight": _figure, "decay": _figure}],
    "specs": [{"hash_dim": _MAYBE_COUNT}],
    "selection": {"choices": [_row(3)], "accuracies": [[_figure]], "examples": _MAYBE_COUNT, "missing": _REASONS},
    "refinement": {"rounds": _count, "missing": Each(_REASONS)},
    "gram": {"rows": _count, "accuracy": _MAYBE, "share": _MAYBE, "missing": Each(_REASONS)},
    "traffic": Each({"parties": _count, "up": _figure, "down": _figure}),
    "messages": Each({"kind": _TEXT, "parties": _MAYBE_COUNT, "fields": [_FIELD]}),
    "sha256": {
        **dict.fromkeys(("model", "federated", "pooled"), _MAYBE_TEXT),
        **dict.fromkeys(("equal", "model_equal"), _MAYBE_FLAG),
    },
    "privacy": {
        "guarantee": _LONG,
        "notes": [_LONG],
        "epsilon": _MAYBE,
        "delta": _MAYBE,
        "noise_sd": _MAYBE,
        "examples_estimate": _maybe(lambda field, value: _validation.integer(field, value, -LARGEST, error=DataError)),
        "covers_evaluation": _FLAG,
    },
    "settings": Each(_scalar),
    "versions": Each(_TEXT),
}
"""The parts of metrics.json that the page shows. An object may be missing, and is None then; lists are empty."""


def checked(field: str, value: Any, shape: Any) -> Any:
    """The value, with nothing but the entries of the shape; a `DataError` where an entry is of another kind."""
    if isinstance(shape, dict):
        _a(dict, "an object")(field, value)
        return {name: _entry(f"{field}.{name}", value.get(name), each) for name, each in shape.items()}
    if isinstance(shape, list):
        _a((list, tuple), "a list")(field, value)
        return [checked(f"{field}[{i}]", each, shape[0]) for i, each in enumerate(value)]
    if isinstance(shape, Each):
        _a(dict, "an object")(field, value)
        named = {_TEXT(f"a name in {field}", name): each for name, each in value.items()}
        return {name: checked(f"{field}[{name[:40]!r}]", each, shape.shape) for name, each in named.items()}
    return shape(field, value)


def _entry(field: str, value: Any, shape: Any) -> Any:
    if value is None and isinstance(shape, dict | list | Each):
        return None if isinstance(shape, dict) else [] if isinstance(shape, list) else {}
    return checked(field, value, shape)
