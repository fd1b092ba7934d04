"""Every decoder of outside input, under a fuzzer.

An input is read whole and valid, or refused by an error of ours.

Some hundred inputs in every run; ``python -m pytest tests/test_fuzz.py -m slow -s``
throws 10000 and prints what became of them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator

import pytest

from tests import fuzz_files, fuzz_messages
from tests.fuzzing import Decoder, fuzz

# NumPy and scikit-learn warn about what is made up.
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = 600
SLOW = 10_000  # inputs of all decoders together


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Decoder]]:
    pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        # Each refusal would have a line.
        patch.setattr(logging.getLogger("flwr"), "disabled", True)
        yield [*fuzz_messages.decoders(folder), *fuzz_files.decoders(folder)]


@pytest.mark.parametrize(
    ("inputs", "seed"),
    [
        (QUICK, 0),
        pytest.param(SLOW, 1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_every_decoder_takes_an_input_whole_or_refuses_it(decoders, inputs, seed):
    unit = inputs / sum(decoder.share for decoder in decoders)
    total = Counter[str]()
    for decoder in decoders:
        outcomes = fuzz(decoder, math.ceil(unit * decoder.share), seed)
        print(f"{decoder.name:28} {dict(outcomes)}", flush=True)
        # A fuzzer whose inputs all fail at the first check would say nothing.
        assert outcomes["accepted"], decoder.name
        assert outcomes["refused"], decoder.name
        total += outcomes
    # Where there are so few inputs, none comes twice.
    assert total.total() >= 0.91 * inputs
    print(f"{total.total()} inputs: {dict(total)}")
