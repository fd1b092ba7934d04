"""Labels of the files of the verb `try`, compared between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flwr_flynn.app.console import say
from flwr_flynn.app.try_site import Site, in_quotes
from flwr_flynn.federated.labels import codebook, form, meaning
from flwr_flynn.tables.remarks import UNKNOWN, Remark, named, paired, renamed
from flwr_flynn.tables.texts import as_name

_FEW_ROWS = 5  # of a class
_MANY_ROWS = 30  # of a file
_APART = 0.6  # between shares of a class


def _rows_of_all(sites: Sequence[Site]) -> Counter[str]:
    """Rows of each label in all files."""
    return sum((site.labels for site in sites), Counter[str]())


def spell_alike(sites: Sequence[Site]) -> None:
    """Give labels that differ in capitals and blanks the spelling of most rows."""
    rows = _rows_of_all(sites)
    usual: dict[object, str] = {}
    for label, _ in rows.most_common():
        usual.setdefault(form(meaning(label)), label)
    for site in sites:
        labels = Counter[str]()
        for label, n in site.labels.items():
            labels[usual[form(meaning(label))]] += n
        site.labels = labels
    other = sorted({*rows} - {*usual.values()})
    if other:
        say(f"labels that differ in spelling alone are one class: {in_quotes(other)}")


def compare_labels(
    sites: Sequence[Site], classes: Sequence[str | int], is_split: bool
) -> None:
    """Note labels that are no classes, or that no other file has.

    Without classes, labels that one file alone has are usual. A file that shares no
    label with the others probably has another code for them: its setting has those of
    most files.
    """
    book = codebook(classes)
    usual = [*map(str, classes)]
    if not classes:
        usual = _usual_labels(sites)
    n_usual = sum(sorted(site.labels) == usual for site in sites)
    are_pairs = all(len(site.labels) == 2 for site in sites)
    are_two = (n_usual > 1 or are_pairs) and len(usual) == 2 and not is_split
    for site in sites:
        where = "the classes"
        odd = sorted(label for label in site.labels if book.code(label) < 0)
        if not classes:
            labels = [other.labels for other in sites if other is not site]
            others = set[str]().union(*labels)
            where = "those of the other files"
            odd = sorted({*site.labels} - others)
            if not others:
                continue
        if not odd:
            continue
        fault = (
            f"{len(odd)} of {len(site.labels)} label values are not among "
            f"{where}: {in_quotes(odd)}"
        )
        shares_none = len(odd) == len(site.labels) and not is_split
        if classes or shares_none:
            # The others are asked to take the labels of most files.
            if classes or usual != odd:
                site.note(fault, f":label-map={_map_of(odd, usual)}")
            continue
        n_rows = max(site.labels[label] for label in odd)
        label = as_name(site.node.label or "label")
        is_accepted = label in site.node.names("accept")
        if are_two and n_rows >= _FEW_ROWS and not is_accepted:
            # Of two that others share one is another code here, or none is known.
            own = odd
            if len(site.labels) == len(usual):
                own = sorted(site.labels)
            mends = (f":label-map={_map_of(own, ())}", f":accept={named(label)}")
            site.note(fault, *mends)
        else:
            say(f"{site.name}: note: {fault}")


def _usual_labels(sites: Sequence[Site]) -> list[str]:
    """The labels that most files have together, and of as many files most rows."""
    n_files = Counter(tuple(sorted(site.labels)) for site in sites if site.labels)
    n_rows = Counter[tuple[str, ...]]()
    for site in sites:
        n_rows[tuple(sorted(site.labels))] += site.labels.total()
    return [*max(n_files, key=lambda own: (n_files[own], n_rows[own]), default=())]


def _map_of(labels: Sequence[str], usual: Sequence[str]) -> str:
    """The setting that gives labels the names that they have elsewhere.

    Where one is not known, none is: half a guess would be the opposite.
    """
    pairs = dict(paired(labels, usual))
    if UNKNOWN in pairs.values() or len({*pairs.values()}) < len(pairs):
        pairs = dict.fromkeys(pairs, UNKNOWN)
    codes = [label for label in pairs if label.startswith("-")]
    return renamed(pairs | dict.fromkeys(codes, "NA"))


def compare_sizes(sites: Sequence[Site]) -> None:
    """Note classes of very few rows of all files: totals, or a misspelt label."""
    rows = _rows_of_all(sites)
    for site in sites:
        if site.file is None:
            continue
        odd = [label for label in sorted(site.labels) if rows[label] < _FEW_ROWS]
        label = as_name(site.node.label or "label")
        if odd and len(rows) > 2 and label not in site.node.names("accept"):
            usual = [other for other in sorted(rows) if rows[other] >= _FEW_ROWS]
            mends = (f":label-map={_map_of(odd, usual)}", f":accept={named(label)}")
            where = f"fewer than {_FEW_ROWS} rows of all files"
            site.note(f"{where} have the label {in_quotes(odd)}", *mends)


def compare_shares(sites: Sequence[Site]) -> None:
    """Notice a file in which the other one of two classes is frequent."""
    rows = _rows_of_all(sites)
    if len(rows) != 2:
        return
    label = min(rows)
    for site in sites:
        rest = rows - site.labels
        if min(site.labels.total(), rest.total()) < _MANY_ROWS:
            continue
        share = site.labels[label] / site.labels.total()
        other = rest[label] / rest.total()
        if abs(share - other) > _APART:
            text = (
                f"{share:.0%} of the rows are {label[:30]!r}, of the others {other:.0%}"
            )
            remark = Remark("", f"{text}: is label-map the right way round?")
            site.remarks.append(remark)
            say(f"NOTICED: {site.name}: {remark.text()}")
