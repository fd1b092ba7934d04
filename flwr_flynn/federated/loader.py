"""The samples of a party, loaded when a granted request first needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from flwr_flynn._types import T
from flwr_flynn.errors import ConfigError, DataError
from flwr_flynn.federated.flower_log import log
from flwr_flynn.federated.private_rows import STOPS, GivenRows, RowReader
from flwr_flynn.federated.samples import Features, Samples, has_names, prepared
from flwr_flynn.tables.schema import Schema

Load = Callable[[Features], Samples | RowReader]
CheckMemory = Callable[[int, str, bool], None]


class Withheld(DataError):
    """An error after a look at samples, in whose text nothing of them is."""


@contextmanager
def withholding(text: str) -> Iterator[None]:
    """Make a `Withheld` with this text of whatever fails in the block."""
    try:
        yield
    except STOPS:
        raise
    except BaseException as error:
        log.error("FlyNN: %s", text, exc_info=error)
        raise Withheld(text) from None


class Loader:
    """Samples as they were given, or as a function loads them.

    Those that were asked for last stay in memory: the next phase of a run asks for the
    same.
    """

    def __init__(self, source: Samples | RowReader | Load) -> None:
        self.source = source
        self._last: tuple[Features, Samples] | None = None
        self._made: tuple[object, Any] = (None, None)

    def made(self, terms: object, make: Callable[[], T]) -> T:
        """The value that `make` returns, or did before on the same terms."""
        if self._made[0] != terms:
            self._made = (terms, make())
        value: T = self._made[1]
        return value

    @cached_property
    def rows(self) -> RowReader:
        """The rows of a private party, loaded whatever is asked for.

        Any row may be why that fails, so that the error is `Withheld`.
        """
        with withholding("loading failed at this party"):
            loaded = self.source
            if callable(loaded):
                loaded = loaded(())
            if not isinstance(loaded, RowReader):
                loaded = GivenRows(loaded)
        return loaded

    def raw(self, features: Features = ()) -> Samples:
        """Samples as they were given, or loaded by the names of features or a schema."""
        samples = self.source
        if callable(samples):
            samples = samples(features)
        if not isinstance(samples, Samples):
            raise ConfigError(
                "load", "Samples at a party without a budget", type(samples).__name__
            )
        return samples

    def samples(self, features: Features, check_memory: CheckMemory) -> Samples:
        """Samples as numbers of these features."""
        if self._last is None or self._last[0] != features:
            self._last = None  # let go of them before others are loaded
            samples = self.raw(features)
            check_named(bool(samples.names) or has_names(samples.X), features)
            is_given = isinstance(self.source, Samples)
            numbers = prepared(samples, features, is_given, check_memory)
            self._last = (features, numbers)
        return self._last[1]


def check_named(is_named: bool, features: Features) -> None:
    """Refuse a run without names for columns that have some.

    The positions of columns may differ between parties.
    """
    run_has_names = bool(features)
    if isinstance(features, Schema):
        run_has_names = features.is_named
    if is_named and not run_has_names:
        expected = (
            "names, as the columns here have them; or learn_schema "
            "(run-config schema: learn)"
        )
        raise DataError("feature_names", expected, "none")
