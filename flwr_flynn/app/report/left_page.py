"""The page for a data-protection officer: what left the sites of a run, and who has it."""

from __future__ import annotations

from flwr_flynn._validation import listed
from flwr_flynn.app.disclosure_file import DUTIES, KINDS
from flwr_flynn.app.report.markup import NONE, plural
from flwr_flynn.app.report.sections import Items, Report, bounded, sentence
from flwr_flynn.tables.column_encoding import Column

_WIDTHS = {"number": 1, "date": Column("date", "date", gaps=False).width}
"""Numbers that a value becomes, but for a category."""


def words(report: Report) -> Items:
    """Names, kinds, levels and other words of the columns, which leave with a schema."""
    schema = report["schema"]
    if not schema:
        return
    rows = [
        (
            column["name"],
            column["kind"],
            ", ".join(column.get("levels", ())) or NONE,
            ", ".join([*column.get("gap_texts", ()), *column.get("synonyms", ())]),
            column.get("unit", ""),
        )
        for column in schema["columns"]
    ]
    rows += [(name, "left out", NONE, "", "") for name in schema["left_out"]]
    source = "They are from the server's file: no site told them."
    if schema["is_learned"]:
        source = (
            "Sites told them: names and kinds of all columns, also of those that were left "
            "out, and levels of at least min-examples rows."
        )
    head = ("column", "kind", "levels", "gaps and synonyms", "unit")
    yield sentence(source)
    yield from bounded("Names, levels and words", head, rows, "columns")


def edges(report: Report) -> Items:
    """Values between the codes of a column, which are ranks of all sites' values."""
    schema = report["schema"]
    if not schema:
        return
    of_inputs = report["members"][0]["spec"].get("edges") or []
    rows = []
    first = 0
    for column in schema["columns"]:
        width = _WIDTHS.get(column["kind"], len(column.get("levels", ())))
        if column["kind"] in _WIDTHS and first < len(of_inputs):
            values = [*dict.fromkeys(of_inputs[first])]
            text = ", ".join(f"{value:.6g}" for value in values)
            rows.append((column["name"], f"at {text}"))
        first += width + column.get("gaps", True)
    if rows:
        yield sentence(
            "Edges of the columns, from ranks of the values of all sites. They stand in "
            "the model, which every site has. With min-examples of 1 they are values of "
            "rows."
        )
        head = ("column", "edges")
        yield from bounded("Values of columns", head, rows, "columns", "facts")


def recipients(report: Report) -> Items:
    """Recipients, places of the model, the way to take rows out, and limits."""
    sees = "the figures of each site, in clear"
    if report["settings"].get("secure") is True:
        sees = "sums over the sites alone, if it keeps to the protocol"
    if report["privacy"]:
        sees += ", with noise in the counts"
    unkept = report["absent"].get("saving the model", {})
    n_sites = plural(len(report["federation"]), "site")
    copies = f"a copy at each of {n_sites} that has a model-path"
    if unkept:
        copies += f", but not at {len(unkept)}"
    messages = report["messages"].items()
    for kind, text in KINDS.items():
        phases = [name for name, row in messages if row["kind"] == kind]
        if phases:
            yield text, listed(phases)
    if str(report.get("run", {}).get("command", "")).startswith("flwr-flynn try"):
        yield (
            "a trial",
            "one machine had all files, and nothing left it; between sites what "
            "follows would leave",
        )
    yield "the server gets", sees
    yield "each site gets", "sums over the sites, and the model"
    yield "copies of the model", f"model.npz beside this page; {copies}"
    yield "sums by site", "federation.npz at the server"
    yield from DUTIES.items()
