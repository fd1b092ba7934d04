"""The experiment on forgetting: the update equals a new round."""

from __future__ import annotations

import csv

import pytest

from simulations import forget


@pytest.mark.slow
def test_the_update_is_cheaper_than_the_new_round_that_it_equals(
    tmp_path,
):
    forget.main(["--quick", "--out", str(tmp_path)])
    with (tmp_path / "forget.csv").open(newline="") as stream:
        rows = {row["run"]: row for row in csv.DictReader(stream)}
    update, counts, rest = (
        rows[name] for name in ("update", "update, counts alone", "new round")
    )
    assert update["SHA-256"] == counts["SHA-256"] == rest["SHA-256"]
    assert float(counts["MB up"]) < float(update["MB up"]) < float(rest["MB up"])
