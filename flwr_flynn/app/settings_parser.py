"""Tables of settings, which are read from a flat mapping of scalars.

A table has keys with defaults, bounds, meanings and facts. `RunConfig` and `NodeConfig`
are the two tables of this package. A table is a frozen dataclass; each field is one
setting, and a base class of it may be a group of settings. The order of fields has no
meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple, Self

from flwr_flynn import _validation
from flwr_flynn.errors import ConfigError, FlyNNError, SpecError
from flwr_flynn.federated.labels import PLAIN_INTEGER


@dataclass(frozen=True)
class Facts:
    """Facts about one setting."""

    meaning: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] | None = None
    required: bool = False
    needs: tuple[str, ...] = ()
    simulation_only: bool = False
    deployment_only: bool = False
    fixed_by_federation: tuple[str, ...] = ()


def setting(default: Any, meaning: str, **facts: Any) -> Any:
    """One setting: a dataclass field with its default, its meaning and its `Facts`."""
    return field(default=default, metadata={"facts": Facts(meaning, **facts)})


Rule = tuple[str, bool, str]
"""A setting, True where it is refused, and the value that is expected."""


class Row(NamedTuple):
    """One row of a table of settings."""

    group: str
    key: str
    name: str
    default: Any
    facts: Facts


@dataclass(frozen=True)
class Settings:
    """Fields that can be read from a flat mapping of scalars."""

    source: ClassVar[str]  # the mapping's name in messages
    foreign: ClassVar[frozenset[str] | None] = None
    """Further keys that may be in the mapping; None for any."""
    gone: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, and what to write in their place."""

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> Self:
        """Check a mapping of settings against the table.

        All wrong types and bounds are refused at once.
        """
        errors = list[ConfigError]()
        rows = cls.rows()
        values = dict[str, Any]()
        keys = [row.key for row in rows]
        unknown = list[str]()
        if cls.foreign is not None:
            unknown = sorted({*raw} - {*keys} - cls.foreign - cls.gone.keys())
        if unknown:
            field = f"{cls.source} {', '.join(key[:80] for key in unknown[:10])}"
            expected = f"one of {', '.join(keys)}"
            # A reason that is cut off still says what is wrong.
            text = f"{field}: unknown; expected {expected}"
            first = f"{cls.source} {unknown[0][:80]}"
            errors.append(ConfigError(first, expected, "unknown", text=text))
        errors += [
            ConfigError(f"{cls.source} {key}", cls.gone[key], "one")
            for key in sorted(cls.gone.keys() & raw.keys())
        ]
        for row in rows:
            field = f"{cls.source} {row.key}"
            try:
                if row.key in raw:
                    values[row.name] = _checked(
                        field, raw[row.key], row.default, row.facts
                    )
                elif row.facts.required:
                    raise ConfigError(field, row.facts.meaning, "missing")
            except ConfigError as error:
                errors.append(error)
        _refuse(errors)
        settings = cls(**values)
        settings.check()
        return settings

    def options_of(self, kind: type) -> dict[str, Any]:
        """Values that options of this kind have by the same names; no empty texts."""
        own, others = ({field.name for field in fields(each)} for each in (self, kind))
        values = {name: getattr(self, name) for name in own & others}
        return {name: value for name, value in values.items() if value != ""}

    def rules(self) -> Iterator[Rule]:
        """The rules between settings. A table with further ones extends this."""
        for row in self.rows():
            for needed in row.facts.needs:
                condition = getattr(self, needed)
                least = "above 0"
                if isinstance(condition, bool):
                    least = "true"
                expected = f"{key_of(needed)} {least} beside it"
                yield row.name, self.is_given(row.name) and not condition, expected

    def check(self) -> None:
        """Refuse the settings that break a rule.

        A table whose texts have a form extends this.
        """
        _refuse(
            [
                self.refused(name, expected)
                for name, is_broken, expected in self.rules()
                if is_broken
            ]
        )

    @classmethod
    def rows(cls) -> list[Row]:
        """All settings, those of a group together."""
        groups = {
            name: group_of(owner)
            for owner in reversed(cls.__mro__)
            for name in get_annotations(owner)
        }
        return [
            Row(groups[f.name], key_of(f.name), f.name, f.default, f.metadata["facts"])
            for f in fields(cls)
        ]

    def is_given(self, name: str) -> bool:
        """True if the setting has a value other than its default."""
        return bool(getattr(self, name) != getattr(type(self), name))

    def names(self, name: str) -> tuple[str, ...]:
        """The value of a setting that is a list of texts."""
        return tuple(
            entries(f"{self.source} {key_of(name)}", getattr(self, name), (str,))
        )

    def refused(self, name: str, expected: str, got: str | None = None) -> ConfigError:
        """The error about a setting, by default with its value."""
        if got is None:
            own = getattr(self, name)
            got = "none" if own == "" else in_json(own)
        return ConfigError(f"{self.source} {key_of(name)}", expected, got)


def _refuse(errors: Sequence[ConfigError]) -> None:
    """Raise the first of these errors, if there is one, with the texts of all."""
    if errors:
        raise ConfigError(
            str(errors[0].field),
            errors[0].expected,
            errors[0].got,
            text="; ".join(map(str, errors)),
        )


def group_of(owner: type) -> str:
    """The name of a group: that of its class."""
    return owner.__name__.removesuffix("Settings").removesuffix("Config").lower()


def key_of(name: str) -> str:
    """The key that users type for a field: ``key_of("hash_dim")`` is ``"hash-dim"``."""
    return name.replace("_", "-")


def as_setting(error: FlyNNError, source: str) -> ConfigError:
    """An error about a value that follows from a setting, as one about the setting."""
    if error.field is None:
        return ConfigError(f"{source} {error}")
    if error.expected is None or error.got is None:
        return ConfigError(f"{source} {key_of(error.field)}", text=f"{source} {error}")
    return ConfigError(f"{source} {key_of(error.field)}", error.expected, error.got)


@contextmanager
def about_settings(source: str) -> Iterator[None]:
    """Make errors about values that follow from settings errors about the settings."""
    try:
        yield
    except (SpecError, ConfigError) as error:
        raise as_setting(error, source) from None


def _checked(field: str, value: Any, default: object, facts: Facts) -> object:
    """`value` in the type of `default`; refused in one line beyond its bounds."""
    try:
        if isinstance(default, bool):
            return _validation.boolean(field, value)
        if isinstance(default, str):
            # "" may stand for none
            return _text(field, value, None if value == default else facts.choices)
        if isinstance(default, int):
            # A command line has 2.0 where a program computed the number.
            whole = value
            if isinstance(value, float) and value.is_integer():
                whole = int(value)
            least = int(max(facts.low, 0))
            most = int(min(facts.high, _validation.LARGEST))
            return _validation.integer(field, whole, least, most)
        return _validation.number(
            field, value, facts.low, facts.high, above=facts.above, below=facts.below
        )
    except ConfigError as error:
        expected = str(error.expected).replace("True or False", "true or false")
        raise ConfigError(field, expected, in_json(value)) from None


def _text(field: str, value: object, choices: tuple[str, ...] | None) -> str:
    """A text, also of a number or a truth value that stands for one."""
    # `classes=1,2` and `decay=0.8` are natural to type, and TOML reads the second as a
    # number.
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, bool) and choices and "true" in choices:
        value = str(value).lower()
    if choices:
        return _validation.one_of(field, value, choices)
    if not isinstance(value, str):
        raise ConfigError(field, "a string", value)
    return value.strip()


def in_json(value: object) -> str:
    """A value as a user would type it, shortened; else the name of its type."""
    if isinstance(value, bool | int | float | str):
        return json.dumps(value)[:80]
    return type(value).__name__[:80]


def whole_numbers(texts: Sequence[str]) -> list[int] | None:
    """The integers that the texts spell; None if one is no integer.

    An integer is spelled as Python prints it, and not as `01`, `1_0` or `1.0`.
    """
    if all(map(PLAIN_INTEGER.fullmatch, texts)):
        return [int(text) for text in texts]
    return None


def floats(text: str, separator: str) -> list[float]:
    """The numbers in a text; [] if a part is no finite number."""
    try:
        numbers = [float(part) for part in text.split(separator)]
    except ValueError:
        return []
    if all(map(math.isfinite, numbers)):
        return numbers
    return []


def entries(field: str, text: str, kinds: tuple[type, ...]) -> list[Any]:
    """The entries of a JSON list, each of one of these types.

    A text of another form is strings with commas between them.
    """
    if not text.startswith("["):
        if text:
            return [part.strip() for part in text.split(",")]
        return []
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not all(
        type(entry) in kinds for entry in parsed
    ):
        called = " or ".join({str: "strings", int: "integers"}[kind] for kind in kinds)
        raise ConfigError(field, f"a JSON list of {called}", in_json(text))
    return parsed
