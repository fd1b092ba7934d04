"""The one way by which the tests look at an error: its type and its facts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(kind: type[E], **facts: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Require an error of this kind with these attributes.

    Attributes are `field`, `expected`, `got` or `errno`, for example.

    A number as `got` is the text of it, which the error keeps.

    >>> from flwr_flynn.errors import ConfigError
    >>> with raises(ConfigError, field="hash_dim", got=0):
    ...     raise ConfigError("hash_dim", "an integer of at least 1", 0)
    """
    with pytest.raises(kind) as caught:
        yield caught
    wanted = facts | {
        name: str(facts[name]) for name in ("got",) if facts.get(name) is not None
    }
    assert {name: getattr(caught.value, name) for name in wanted} == wanted, (
        caught.value
    )
