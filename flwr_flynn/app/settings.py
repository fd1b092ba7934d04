"""What a table of settings is: keys with defaults, bounds and meanings, read from a flat mapping of scalars.

`flwr_flynn.app.config` holds the two tables there are.

>>> @dataclass(frozen=True)
... class Example(Settings):
...     source = "example"
...     hash_dim: int = setting(16384, "rows of the hash", low=1)
>>> Example.parse({"hash-dim": 0})
Traceback (most recent call last):
flwr_flynn.errors.ConfigError: example hash-dim: expected an integer of at least 1, got 0
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from flwr_flynn.errors import ConfigError
from flwr_flynn.federated.labels import PLAIN_INTEGER

Self = TypeVar("Self", bound="Settings")


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    required: bool = False,
) -> Any:
    """One setting: its default, what it means, and the values it takes."""
    bounds = {
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "choices": choices,
        "required": required,
    }
    return field(default=default, metadata={"meaning": meaning, **bounds})


@dataclass(frozen=True)
class Settings:
    """Fields that can be read from a flat mapping of scalars."""

    source: ClassVar[str]  # how messages call the mapping
    others: ClassVar[frozenset[str] | None] = None  # keys that may stand beside ours; None: any

    @classmethod
    def parse(cls: type[Self], raw: Mapping[str, Any]) -> Self:
        """Check a mapping of settings against the table of keys.

        Parameters
        ----------
        raw : mapping of str to bool, int, float or str
            What Flower hands to an app. `flwr run` refuses keys that pyproject.toml does not declare; nobody does so
            for a node's, so a misspelled one is refused here.

        Raises
        ------
        ConfigError
            One line: the key, what was expected, what came.
        """
        values = {}
        known = [key for key, _, _ in cls.table()]
        if cls.others is not None and (unknown := sorted(set(raw) - set(known) - cls.others)):
            raise ConfigError(f"{cls.source} {unknown[0][:80]}: unknown; expected one of {', '.join(known)}")
        for spec in fields(cls):
            key = spec.name.replace("_", "-")
            if key in raw:
                values[spec.name] = _checked(cls.source, key, raw[key], spec.default, spec.metadata)
            elif spec.metadata["required"]:
                raise ConfigError(f"{cls.source} {key}: missing; {spec.metadata['meaning']}")
        settings = cls(**values)
        settings._check_together()
        return settings

    def _check_together(self) -> None:
        """Check what no single key can tell."""

    @classmethod
    def table(cls) -> list[tuple[str, Any, str]]:
        """Every key with its default and its meaning, in order."""
        return [(f.name.replace("_", "-"), f.default, f.metadata["meaning"]) for f in fields(cls)]


def _checked(source: str, key: str, value: Any, default: Any, meta: Mapping[str, Any]) -> Any:
    """`value` in the type of `default` and within its bounds, or a ConfigError of one line."""

    def refuse(expected: str) -> ConfigError:
        shown = json.dumps(value) if isinstance(value, (bool, int, float, str)) else type(value).__name__
        return ConfigError(f"{source} {key}: expected {expected}, got {shown[:80]}")

    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise refuse("true or false")
        return value
    if isinstance(default, str):
        # `classes=1,2` and `decay=0.8` are natural to type, and TOML reads the second as a number.
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        choices = meta["choices"]
        if isinstance(value, bool) and choices and "true" in choices:
            value = str(value).lower()
        if not isinstance(value, str) or (choices and value not in choices):
            raise refuse(f"one of {', '.join(choices)}" if choices else "a string")
        return value.strip()
    kind, number = ("an integer", int) if isinstance(default, int) else ("a number", float)
    expected = kind + _bounds(meta)
    # Not isfinite, which raises on integers that no float holds.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e308 < value < 1e308:
        raise refuse(expected)
    if number is int and value != int(value):
        raise refuse(expected)
    if not _within(value, meta):
        raise refuse(expected)
    return number(value)


def _bounds(meta: Mapping[str, Any]) -> str:
    """The bounds of a number in words: `` above 0``, `` from 0 to 1``."""
    words = []
    if meta["above"] is not None:
        words.append(f"above {meta['above']:g}")
    if meta["low"] is not None:
        open_ended = meta["high"] is None and meta["below"] is None
        words.append(f"of at least {meta['low']:g}" if open_ended else f"from {meta['low']:g}")
    if meta["high"] is not None:
        words.append(f"to {meta['high']:g}")
    if meta["below"] is not None:
        words.append(f"below {meta['below']:g}")
    return " " + " ".join(words) if words else ""


def _within(value: float, meta: Mapping[str, Any]) -> bool:
    return (
        (meta["above"] is None or value > meta["above"])
        and (meta["low"] is None or value >= meta["low"])
        and (meta["high"] is None or value <= meta["high"])
        and (meta["below"] is None or value < meta["below"])
    )


def whole_numbers(texts: Sequence[str]) -> list[int] | None:
    """The integers that the texts spell, if each spells one as Python prints it: not as `01`, `1_0` or `1.0`.

    >>> whole_numbers(["3", "-1"]), whole_numbers(["01", "1"])
    ([3, -1], None)
    """
    return [int(text) for text in texts] if all(map(PLAIN_INTEGER.fullmatch, texts)) else None


def entries(key: str, text: str, kinds: tuple[type, ...]) -> list[Any]:
    """The entries of a JSON list, each of one of these types, or the strings of a text with commas between them."""
    if not text.startswith("["):
        return [part.strip() for part in text.split(",")] if text else []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list) or not all(type(entry) in kinds for entry in entries):
        called = " or ".join({str: "strings", int: "integers"}[kind] for kind in kinds)
        raise ConfigError(f"run-config {key}: expected a JSON list of {called}, got {json.dumps(text[:80])}")
    return entries
