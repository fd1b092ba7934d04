"""Every decoder of outside input, under a fuzzer: an input is taken whole and valid, or refused by an error of ours.

Some thousand inputs in every run; ``python -m pytest tests/test_fuzz.py -m slow -s`` throws 110000 and prints what
became of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fuzz_files, fuzz_messages
from tests.fuzzing import Totals, fuzz

pytestmark = pytest.mark.filterwarnings("ignore")  # of NumPy and scikit-learn, about what is made up

QUICK, SLOW = 1500, 110_000  # inputs of all decoders together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("pandas")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("os.fsync", lambda _: None)  # which takes longer than all the rest
    logging.getLogger("flwr").disabled = True  # a line for each refusal
    yield tmp_path_factory.mktemp("fuzz")
    logging.getLogger("flwr").disabled = False
    monkeypatch.undo()


def thrown(folder: Path, inputs: int, seed: int) -> list[Totals]:
    """Inputs at every decoder; what any of them did wrong, all together."""
    every = [*fuzz_messages.decoders(folder), *fuzz_files.decoders(folder)]
    unit = inputs / sum(decoder.share for decoder in every)
    totals, wrong = [], []
    for decoder in every:
        try:
            totals.append(fuzz(decoder, math.ceil(unit * decoder.share), seed))
            print(totals[-1], flush=True)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n\n".join(wrong)
    return totals


def test_every_decoder_takes_an_input_whole_or_refuses_it(folder: Path) -> None:
    totals = thrown(folder, QUICK, seed=0)
    # A fuzzer whose inputs all fail at the first check would say nothing.
    assert not [each.name for each in totals if not (each.accepted and each.refused)]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 390 s alone on a core, more beside other work
def test_a_hundred_thousand_inputs(folder: Path) -> None:
    totals = thrown(folder, SLOW, seed=1)
    accepted, refused = (sum(getattr(each, name) for each in totals) for name in ("accepted", "refused"))
    print(f"{accepted + refused} inputs: {accepted} accepted, {refused} refused")
    assert accepted + refused >= 100_000
