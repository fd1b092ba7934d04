"""`python -m simulations gram`: generated families, the table of sets, and that of the parts."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import __main__ as command
from simulations import families, gram
from simulations.families import FAMILIES
from tests.simulations.tables import read


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_a_function_of_the_seed(name):
    X, y = FAMILIES[name](200, 1)
    again, other = FAMILIES[name](200, 1), FAMILIES[name](200, 2)
    assert np.array_equal(X, again[0])
    assert np.array_equal(y, again[1])
    assert not np.array_equal(X, other[0])
    assert X.shape[0] == len(y) == 200
    assert y.min() >= 0
    assert len(np.unique(y)) > 1


def test_the_experiment_writes_sets_and_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gram, "FAMILIES", {"parity": families.parity})
    assert command.main(["gram", "--quick", "--sets", "iris", "--gram", "64", "--out", str(tmp_path)]) == 0
    lines = {line["set"]: line for line in read(tmp_path / "sets.csv")}
    assert [*lines] == ["iris", "generated: parity"]
    draws = read(tmp_path / "draws.csv")
    assert len(draws) == 4
    for name, line in lines.items():
        of_set = [draw for draw in draws if draw["set"] == name]
        mean = np.mean([float(draw[gram.BUILT]) for draw in of_set])
        assert float(line["with Gram matrix"]) == pytest.approx(mean)
        assert float(line["change"]) == pytest.approx(mean - float(line["committee"]))
        changes = [float(draw[gram.BUILT]) - float(draw["committee"]) for draw in of_set]
        assert float(line["its error"]) == pytest.approx(np.std(changes, ddof=1) / len(changes) ** 0.5, abs=1e-9)
    assert (lines["iris"]["forest"], float(lines["generated: parity"]["forest"]) > 0.4) == ("", True)
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert all(f"| 100 | {name} |" in summary for name in gram.VARIANTS)
    capsys.readouterr()
    assert command.main(["gram", "--quick", "--sets", "iris", "--gram", "64", "--out", str(tmp_path)]) == 0
    assert "samples," not in capsys.readouterr().err  # all cells were there
