"""A run in this process as HTML, for notebooks: its parties, bytes and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_flynn._markup import bars, count, figure, in_bytes, shortened, table, tag
from flwr_flynn.model.model import Model
from flwr_flynn.model.model_html import model_html

_MOST = 24  # parties


def run_html(model: Model, evaluation: dict[str, Any] | None, traffic: Mapping[str, Any]) -> str:
    """A block for notebooks of a model, the figures of its evaluation, and the traffic of each phase."""
    parts = []
    if evaluation is not None:
        parties = evaluation["parties"]
        rows = [(shortened(each["name"]), each["accuracy"], each["examples"]) for each in parties[:_MOST]]
        more = f"; the worst {_MOST} of {len(parties)}" if len(parties) > _MOST else ""
        title, columns = f"Accuracy by party{more}", ("party", "accuracy", "test samples")
        over = f"Accuracy {figure(evaluation['accuracy'])} over {count(len(parties), 'party', 'parties')}."
        picture = bars(
            title, "A bar for each party, from 0 to 1", [(name, figure(value), value) for name, value, _ in rows]
        )
        numbers = tag("details", tag("summary", title), table(title, columns, rows))
        parts += [tag("p", over), picture, numbers]
        overall = (evaluation.get("figures") or {}).get("overall", {})
        found = [
            (name.replace("_", " "), *interval) for name, interval in overall.items() if isinstance(interval, list)
        ]
        if found:
            parts.append(table("Figures with intervals of 95 %", ("figure", "value", "from", "to"), found))
    sizes = [(name, in_bytes(each.per_party["up"]), in_bytes(each.per_party["down"])) for name, each in traffic.items()]
    parts.append(table("Bytes of an average party", ("phase", "sent", "received"), sizes))
    return model_html(model, *parts, title="FlyNN run")
