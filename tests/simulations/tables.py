"""Files of the experiments: tables, figures, a summary, and finished pieces."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from simulations import __main__ as command


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shown(folder: Path, *figures: str) -> str:
    """The summary in a folder, which shows these figures."""
    text = (folder / "summary.md").read_text(encoding="utf-8")
    for name in figures:
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert f"]({name}.png)" in text
    assert str(folder) not in text
    return text


def run_once(
    experiment: str, *options: str, smaller: Sequence[tuple[Any, str, Any]] = ()
) -> Any:
    """A fixture: the folder of a quick run, some parts of which are made smaller."""

    @pytest.fixture(scope="module")
    def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        folder = tmp_path_factory.mktemp(experiment)
        with pytest.MonkeyPatch.context() as patch:
            for module, name, value in smaller:
                patch.setattr(module, name, value)
            assert (
                command.main([experiment, "--quick", *options, "--out", str(folder)])
                == 0
            )
            yield folder

    return finished


def run_again(arguments: list[str], folder: Path, *parts: tuple[Any, str]) -> None:
    """Run a finished experiment: none of these parts computes, and all tables stay."""
    before = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    with pytest.MonkeyPatch.context() as patch:
        for module, name in parts:
            patch.setattr(module, name, lambda *_, **__: pytest.fail("computed again"))
        assert command.main([*arguments, "--out", str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == before
