"""A fitted model as HTML, for notebooks: classes, samples, members, size and guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_flynn._markup import STYLE, Markup, bars, count, figure, in_bytes, shortened, table, tag
from flwr_flynn.model.model import Model

_MOST = 32  # classes and members


def model_html(model: Model, *parts: Any, title: str = "FlyNN model") -> str:
    """A block for notebooks, with further parts at its end. The picture's numbers are in a table, too."""
    members, sizes = model.members, _samples(model)
    labels = [shortened(label) for label in model.classes.tolist()]
    n_bytes = sum(member.counts.array.nbytes for member in members)
    hidden = "a hidden number of samples" if sizes is None else count(sum(sizes), "sample")
    said = f"{count(len(labels), 'class', 'classes')}, {hidden}, {in_bytes(n_bytes)} of counts. "
    rows = [
        (f"member {i}", each.spec.hash_dim, each.spec.hash_nnz, float(each.scoring.decay), float(each.weight))
        for i, each in enumerate(members[:_MOST], start=1)
    ]
    columns = "member", "rows", "winners", "decay", "weight"
    shown = class_bars(labels, sizes) if sizes is not None else [tag("p", ", ".join(labels[:_MOST]))]
    head = tag("p", tag("b", title), tag("br"), said, model.guarantee or "No privacy guarantee.")
    body = tag("style", Markup(STYLE)), head, shown, table("Members", columns, rows)
    return tag("div", *body, *parts, class_="flynn", style="max-width:40rem")


def class_bars(labels: Sequence[str], sizes: Sequence[int]) -> list[Markup]:
    """Samples of each class, as a picture and as a table."""
    rows, longest = list(zip(labels, sizes, strict=True))[:_MOST], max([*sizes, 1])
    drawn = [(label, figure(n), n / longest) for label, n in rows]
    more = f" (the first {_MOST} of {len(labels)} classes)" if len(labels) > _MOST else ""
    title = f"Training samples by class{more}"
    numbers = tag("details", tag("summary", title), table(title, ("class", "samples"), rows))
    return [bars(title, "A bar for each class", drawn), numbers]


def _samples(model: Model) -> list[int] | None:
    counts = model.members[0].counts
    return None if counts.noise or counts.n_per_class is None else [int(n) for n in counts.n_per_class]
