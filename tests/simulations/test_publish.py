"""Pages of the documentation are made from finished experiments."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from flwr_flynn import __version__
from simulations import __main__ as command
from simulations import all as everything
from simulations import publish, results, study
from simulations.experiments import EXPERIMENTS


@pytest.fixture
def summaries(tmp_path):
    """Results of two experiments, one with a figure that does not compress."""
    noise = np.random.default_rng(0).integers(0, 256, (350, 450, 3), dtype=np.uint8)
    for name, title, figure in (
        ("theory", "Theory", "agreement.png"),
        ("noniid", "Non-IID parties", None),
    ):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        parts = [results.markdown_table([{"parties": 10, "accuracy": 0.5}])]
        if figure:
            Image.fromarray(noise).save(folder / figure)
            parts.append(f"![agreement]({figure})")
        study.write_summary(
            folder, title, name, ["--quick", "--data", "/a/secret/place"], 3.2, parts
        )
    return tmp_path / "results"


def run(summaries, *names):
    pages = summaries.parent / "pages"
    assert (
        command.main(
            ["publish", *names, "--results", str(summaries), "--pages", str(pages)]
        )
        == 0
    )
    return pages


def test_a_page_has_command_version_machine_table_and_a_small_figure(summaries):
    pages = run(summaries)
    text = (pages / "theory.md").read_text(encoding="utf-8")
    measured = EXPERIMENTS["theory"].what
    assert text.startswith(
        f"# Theory\n\n{measured[0].upper()}{measured[1:]}.\n\n| parties | accuracy |"
    )
    assert (
        text.rstrip().rpartition("\n\n")[2].startswith("`python -m simulations theory")
    )
    assert "`python -m simulations theory --quick --data FOLDER`" in text
    assert study.machine() in text
    assert "secret" not in text
    figure = pages / "theory-agreement.png"
    assert (
        0
        < figure.stat().st_size
        <= 150_000
        < (summaries / "theory" / "agreement.png").stat().st_size
    )
    assert "![agreement](theory-agreement.png)" in text


def test_the_index_lists_every_page_and_keeps_earlier_ones(summaries):
    run(summaries, "theory")
    pages = run(summaries, "noniid")
    index = (pages / "index.md").read_text(encoding="utf-8")
    assert "[Theory](theory.md)" in index
    assert "[Non-IID parties](noniid.md)" in index
    assert sorted(page.name for page in pages.glob("*.md")) == [
        "index.md",
        "noniid.md",
        "theory.md",
    ]


def test_an_experiment_without_a_summary_is_refused(summaries, capsys):
    with pytest.raises(SystemExit):
        publish.main(
            [
                "bench",
                "--results",
                str(summaries),
                "--pages",
                str(summaries.parent / "pages"),
            ]
        )
    assert "bench: expected one of noniid, theory" in capsys.readouterr().err
    assert not (summaries.parent / "pages").exists()


@pytest.mark.parametrize(
    ("own", "version", "current"),
    [
        (__version__, __version__, True),
        ("0.9.0", "0.9.0.dev0", True),
        ("0.9.0.dev0", "0.8.0", True),
        ("0.9.0.dev0", "0.7.0", False),
        ("0.9.0", "0.8.0", False),
        (__version__, "0.1.9", False),
        (__version__, "", False),
    ],
)
def test_a_page_of_another_minor_version_says_so_at_its_top(
    own, version, current, monkeypatch
):
    monkeypatch.setattr(publish, "__version__", own)
    page = (
        f"# Title\n\nMeasured.\n\n| a |\n\n`command`: 3 s. flwr-flynn {version}, "
        "2026-01-02, a machine.\n"
    )
    marked = publish.marked(page)
    assert publish.is_current(page) is publish.is_current(marked) is current
    assert (marked == page) is current
    assert publish.marked(marked) == marked
    if not current:
        assert marked.splitlines()[2].startswith("> Measured with version")
        assert marked.replace("\n\n" + marked.splitlines()[2], "", 1) == page


def test_all_runs_what_is_not_finished_in_processes_and_publishes(
    summaries, monkeypatch, tmp_path
):
    ran = []

    def process(command, **_):
        experiment = command[3]
        output = Path(command[-1])
        ran.append(experiment)
        output.mkdir(parents=True, exist_ok=True)
        if experiment != "forget":
            study.write_summary(
                output, experiment, experiment, command[4:-2], 1.0, ["text"]
            )
        return SimpleNamespace(returncode=int(experiment == "forget"))

    monkeypatch.setattr(everything.subprocess, "run", process)
    places = [
        "--data",
        "there",
        "--results",
        str(tmp_path / "found"),
        "--pages",
        str(tmp_path / "pages"),
    ]
    with pytest.raises(SystemExit, match="forget"):
        command.main(["all", "bench", "forget", "theory", *places])
    assert ran == ["bench", "forget", "theory"]
    with pytest.raises(SystemExit):
        command.main(["all", "bench", "forget", *places])
    assert ran == ["bench", "forget", "theory", "forget"]
    assert sorted(page.name for page in (tmp_path / "pages").glob("*.md")) == [
        "bench.md",
        "index.md",
        "theory.md",
    ]


def test_what_readme_and_the_landing_page_cite_was_measured_with_this_minor_version():
    for text in (study.ROOT / "README.md", study.ROOT / "docs" / "index.md"):
        cited = set(
            re.findall(r"results/([a-z]+)[-.]", text.read_text(encoding="utf-8"))
        ) - {"index"}
        old = {
            name
            for name in cited
            if not publish.is_current((publish.PAGES / f"{name}.md").read_text("utf-8"))
        }
        assert not old
    pages = {
        page.stem: page.read_text("utf-8")
        for page in publish.PAGES.glob("*.md")
        if page.stem != "index"
    }
    assert pages.keys() <= {*everything.with_pages()}
    assert all(
        publish.marked(text) == text
        for name, text in pages.items()
        if name in EXPERIMENTS
    )
