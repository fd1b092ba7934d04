"""Pages of the documentation from finished experiments:
`python -m simulations publish [EXPERIMENT ...]`.

An experiment leaves a ``summary.md`` and its figures in a results folder. This turns
them into a page of docs/results with small figures, which opens with what was measured
and ends with the command, and lists all pages on its index. Nothing on these pages is
written by hand. A page of another minor version says so at its top.
"""

from __future__ import annotations

import io
import re
from argparse import ArgumentParser
from pathlib import Path

from flwr_flynn import __version__
from simulations.experiments import EXPERIMENTS
from simulations.results import markdown_table

PAGES = Path(__file__).parents[1] / "docs" / "results"
_LARGEST = 150_000  # bytes of a figure
_VERSION = re.compile(r"flwr-flynn (\d+\.\d+)\.[\w.]+, (\d{4}-\d{2}-\d{2})")
_COMMAND = re.compile(r"^(`python -m simulations .*`): (\d+) s", re.MULTILINE)
_OLD = "> Measured with version "
_IMAGE = re.compile(r"!\[([^]]*)\]\(([^)/]+\.png)\)")

_INDEX = """# Results

What was measured, how well does it do, and how do I measure it again? Every page here
is written by its command, and never by hand; it ends with the date and the machine.
Minutes are those of the last time, on two cores, without what an earlier run had
finished. `python -m simulations all --data FOLDER` makes all pages again, in a night.
Without `--data`, experiments take bundled and generated data.

{entries}

```{{toctree}}
:hidden:

{names}
```
"""


def publish(experiment: str, results: Path, pages: Path) -> Path:
    """Write the page of a finished experiment, with its figures."""
    folder = results / experiment
    text = (folder / "summary.md").read_text(encoding="utf-8")
    pages.mkdir(parents=True, exist_ok=True)
    for name in {match[2] for match in _IMAGE.finditer(text)}:
        (pages / f"{experiment}-{name}").write_bytes(small_png(folder / name))
    page = pages / f"{experiment}.md"
    page.write_text(
        as_page(_IMAGE.sub(rf"![\1]({experiment}-\2)", text), experiment),
        encoding="utf-8",
    )
    return page


def as_page(summary: str, experiment: str) -> str:
    """The summary with what was measured in the place of the command, which moves to
    the end.
    """
    title, command, *parts = summary.rstrip("\n").split("\n\n")
    measured = EXPERIMENTS[experiment].what
    return (
        "\n\n".join([title, f"{measured[0].upper()}{measured[1:]}.", *parts, command])
        + "\n"
    )


def small_png(path: Path, largest: int = _LARGEST) -> bytes:
    """A figure as a PNG of at most so many bytes: of 128 colours, and narrower where
    that is not enough.
    """
    from PIL import Image

    with Image.open(path) as original:
        figure = original.convert("RGB")
    width = min(figure.width, 1600)
    while True:
        stream = io.BytesIO()
        scaled = figure.resize(
            (width, round(figure.height * width / figure.width)),
            Image.Resampling.LANCZOS,
        )
        scaled.quantize(128).save(stream, "PNG", optimize=True)
        if stream.tell() <= largest:
            return stream.getvalue()
        width = width * 9 // 10


def version_of(page: str) -> tuple[str, str]:
    """Minor version and date of a page, from its last line; empty where it has none.

    >>> version_of("... 3 s. flwr-flynn 0.7.1, 2026-11-24, 2 cores.")
    ('0.7', '2026-11-24')
    """
    found = _VERSION.search(page.rstrip("\n").rpartition("\n\n")[2])
    if found:
        return (found[1], found[2])
    return ("", "")


def is_current(page: str) -> bool:
    """True if a page was measured with this minor version.

    Before a release the pages of the last one are current.
    """
    major, minor, rest = __version__.split(".", 2)
    current = {f"{major}.{minor}"}
    if "dev" in rest:
        current.add(f"{major}.{int(minor) - 1}")
    return version_of(page)[0] in current


def marked(page: str) -> str:
    """The page with a line at its top that says so if it was measured with another
    minor version.
    """
    title, *parts = page.split("\n\n")
    parts = [part for part in parts if not part.startswith(_OLD)]
    if not is_current(page):
        version, date = version_of(page)
        parts.insert(0, f"{_OLD}{version} ({date}), not with {__version__}.")
    return "\n\n".join([title, *parts])


def finish(pages: Path) -> None:
    """Mark the pages of other versions, and list all of them."""
    for name in EXPERIMENTS:
        page = pages / f"{name}.md"
        if page.exists():
            page.write_text(marked(page.read_text(encoding="utf-8")), encoding="utf-8")
    write_index(pages)


def write_index(pages: Path) -> None:
    """List all pages that are there, in the order of the experiments."""
    names = [name for name in EXPERIMENTS if (pages / f"{name}.md").exists()]
    rows = []
    for name in names:
        page = (pages / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
        title = page.splitlines()[0].lstrip("# ")
        command, seconds = _COMMAND.findall(page)[-1]
        rows.append(
            {
                "page": f"[{title}]({name}.md)",
                "measured": EXPERIMENTS[name].what,
                "command": command,
                "minutes": f"{float(seconds) / 60:.0f}",
                "version": version_of(page)[0],
            }
        )
    text = _INDEX.format(entries=markdown_table(rows), names="\n".join(names))
    (pages / "index.md").write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Publish the experiments that are named, or all that are finished."""
    options = ArgumentParser(prog="python -m simulations publish", description=__doc__)
    options.add_argument(
        "experiments",
        nargs="*",
        metavar="EXPERIMENT",
        help="default: all that have a summary",
    )
    options.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder with a folder for each",
    )
    options.add_argument(
        "--pages",
        type=Path,
        default=PAGES,
        help="folder to write to (default: docs/results)",
    )
    chosen = options.parse_args(arguments)
    finished = [
        name for name in EXPERIMENTS if (chosen.results / name / "summary.md").exists()
    ]
    for name in chosen.experiments:
        if name not in finished:
            options.error(
                f"{name}: expected one of "
                f"{', '.join(finished) or 'no finished experiment'}"
            )
    for name in chosen.experiments or finished:
        print(f"written: {publish(name, chosen.results, chosen.pages)}")
    finish(chosen.pages)
