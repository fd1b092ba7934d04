"""Pages of the documentation are made from finished experiments."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from simulations import __main__ as command
from simulations import publish, results
from simulations.experiments import EXPERIMENTS


@pytest.fixture
def summaries(tmp_path):
    """Results of two experiments, one with a figure that does not compress."""
    noise = np.random.default_rng(0).integers(0, 256, (350, 450, 3), dtype=np.uint8)
    for name, title, figure in (("theory", "Theory", "agreement.png"), ("noniid", "Non-IID parties", None)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        parts = [results.markdown_table([{"parties": 10, "accuracy": 0.5}])]
        if figure:
            Image.fromarray(noise).save(folder / figure)
            parts.append(f"![agreement]({figure})")
        results.write_summary(folder, title, name, ["--quick", "--data", "/a/secret/place"], 3.2, parts)
    return tmp_path / "results"


def run(summaries, *names):
    pages = summaries.parent / "pages"
    assert command.main(["publish", *names, "--results", str(summaries), "--pages", str(pages)]) == 0
    return pages


def test_a_page_has_command_version_machine_and_table(summaries):
    text = (run(summaries) / "theory.md").read_text(encoding="utf-8")
    measured = EXPERIMENTS["theory"]
    assert text.startswith(f"# Theory\n\n{measured[0].upper()}{measured[1:]}.\n\n| parties")
    assert text.rstrip().rpartition("\n\n")[2].startswith("`python -m simulations theory")
    assert "`python -m simulations theory --quick --data FOLDER`" in text
    assert results.machine() in text
    assert "| parties | accuracy |" in text
    assert "secret" not in text


def test_figures_are_copied_small_and_linked(summaries):
    pages = run(summaries)
    figure = pages / "theory-agreement.png"
    assert 0 < figure.stat().st_size <= 150_000 < (summaries / "theory" / "agreement.png").stat().st_size
    assert "![agreement](theory-agreement.png)" in (pages / "theory.md").read_text(encoding="utf-8")


def test_the_index_lists_every_page_and_keeps_earlier_ones(summaries):
    run(summaries, "theory")
    pages = run(summaries, "noniid")
    index = (pages / "index.md").read_text(encoding="utf-8")
    assert "[Theory](theory.md)" in index
    assert "[Non-IID parties](noniid.md)" in index
    assert sorted(page.name for page in pages.glob("*.md")) == ["index.md", "noniid.md", "theory.md"]


def test_an_experiment_without_a_summary_is_refused(summaries, capsys):
    with pytest.raises(SystemExit):
        publish.main(["bench", "--results", str(summaries), "--pages", str(summaries.parent / "pages")])
    assert "bench: expected one of noniid, theory" in capsys.readouterr().err
    assert not (summaries.parent / "pages").exists()
