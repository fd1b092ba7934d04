"""Tables of an experiment, and the paper's comparison of two methods over many data
sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[Any]
Row = dict[str, Any]


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as a table of any objects; what a row lacks is empty."""
    empty = dict.fromkeys((name for row in rows for name in row), "")
    return pd.DataFrame([empty | row for row in rows], dtype=object)


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown, text to the left, numbers to the right and rounded
    to three digits.
    """
    frame = frame_of(rows)
    sides = [
        ":--" if all(isinstance(cell, str) for cell in frame[name]) else "--:"
        for name in frame
    ]
    lines = [frame.columns, sides, *frame.map(_short).to_numpy()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(value: object) -> str:
    if isinstance(value, float):
        if 0 < abs(value) < 0.0005:
            return f"{value:.1e}"
        return f"{value:.3f}"
    return str(value)


def with_headings(tables: Mapping[str, Sequence[Row]]) -> list[str]:
    """Paragraphs of tables by their headings; those without rows are left out."""
    return [
        part
        for heading, rows in tables.items()
        if rows
        for part in (heading, markdown_table(rows))
    ]


def mean_by(rows: Sequence[Row], by: list[str]) -> pd.DataFrame:
    """Means of all numbers of rows that are equal in `by`, in the order of the rows."""
    return pd.DataFrame(rows).groupby(by, sort=False).mean(numeric_only=True)


def chosen(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Rows that have these values."""
    return [
        row for row in rows if all(row[name] == value for name, value in values.items())
    ]


def compare(
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    reference: Mapping[str, float],
) -> Row:
    """One line of the paper's comparison, over the data sets that have all three
    accuracies.

    Parameters
    ----------
    ours, theirs : mapping of data set to accuracy
    reference : mapping of data set to accuracy
        That of tuned kNN, a_k: the paper calls 1 - a / a_k the normalised accuracy of
        a; lower is better.

    Returns
    -------
    dict
        ``won``: fraction of sets won; ``W/T/L``; ``improvement``: the median of how
        much lower our normalised accuracy is than theirs, as in the paper;
        ``median loss``, ``mean loss``: of r = 1 - ours / theirs, negative where ours is
        better; ``worst``: the largest r, and its set; ``t p``, ``Wilcoxon p``:
        two-sided paired tests on the normalised accuracies, nan for fewer than two
        sets.
    """
    from scipy.stats import ttest_1samp, wilcoxon

    names = [name for name in ours if name in theirs and name in reference]
    if not names:
        return {"sets": 0}
    a, b, k = (
        np.array([table[name] for name in names]) for table in (ours, theirs, reference)
    )
    gain = np.where(np.abs(a - b) < 1e-12, 0.0, a - b)
    normalised = gain / k
    loss = -gain / b
    t_p = wilcoxon_p = float("nan")
    if len(names) > 1:
        # Both tests divide by a spread, which equal differences do not have.
        if np.ptp(normalised):
            t_p = float(ttest_1samp(normalised, 0).pvalue)
        else:
            t_p = float(not gain.any())
        wilcoxon_p = 1.0
        if gain.any():
            wilcoxon_p = float(wilcoxon(normalised).pvalue)
    worst = int(loss.argmax())
    row: Row = {"sets": len(names), "won": float((gain > 0).mean())}
    row["W/T/L"] = "/".join(str((np.sign(gain) == sign).sum()) for sign in (1, 0, -1))
    figures = {
        "improvement": np.median(normalised),
        "median loss": np.median(loss),
        "mean loss": loss.mean(),
    }
    row |= {
        name: float(value) for name, value in (figures | {"worst": loss[worst]}).items()
    }
    return row | {"worst set": names[worst], "t p": t_p, "Wilcoxon p": wilcoxon_p}


def by_method(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Accuracy of each method on each data set."""
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        table.setdefault(row["method"], {})[row["set"]] = row["mean"]
    return table


def comparison(
    rows: Sequence[Row], variants: Sequence[str], reference: str
) -> list[Row]:
    """The paper's table: each of our variants against each other method; nothing if the
    reference was not measured.
    """
    table = by_method(rows)
    return [
        {"FlyNN": variant, "against": other}
        | compare(table[variant], table[other], table[reference])
        for variant in variants
        for other in table
        if other not in variants and {variant, reference} <= table.keys()
    ]


def against(rows: Sequence[Row], ours: str, others: Sequence[str]) -> list[Row]:
    """The short table: one method against each of some others, over the sets that both
    have.

    Parameters
    ----------
    rows : sequence of dict
        Those of `summarised`.
    ours : str
    others : sequence of str
        Methods without rows are left out.

    Returns
    -------
    list of dict
        Median of 1 - a / a_other, negative where ours is better; share of sets won; the
        largest, and its set; mean accuracies.
    """
    table = by_method(rows)
    lines: list[Row] = []
    for other in others:
        theirs = table.get(other, {})
        found = compare(table.get(ours, {}), theirs, theirs)
        if found["sets"]:
            line = {
                "against": other,
                "sets": found["sets"],
                "median 1 - a/a_other": found["median loss"],
            }
            line |= {name: found[name] for name in ("won", "worst", "worst set")}
            means = [
                [of[name] for name in table[ours] if name in theirs]
                for of in (table[ours], theirs)
            ]
            lines.append(
                line
                | {
                    f"mean of {ours}": float(np.mean(means[0])),
                    "mean of the other": float(np.mean(means[1])),
                }
            )
    return lines


def behind(
    table: pd.DataFrame, ours: str, others: Sequence[str], most: int | None = None
) -> list[Row]:
    """The lines of a table, with a column of accuracies for each method, where the best
    other is ahead of ours.
    """
    best = table[list(others)].max(axis=1)
    which = table[list(others)].fillna(-1).idxmax(axis=1)
    gaps = (best - table[ours]).sort_values(ascending=False, kind="stable")[:most]
    return [
        dict(zip(table.index.names, cell, strict=True))
        | {
            ours: float(table.loc[cell, ours]),
            "best": float(best[cell]),
            "by": which[cell],
            "gap": float(gap),
        }
        for cell, gap in gaps[gaps > 1e-9].items()
    ]


def summarised(rows: Sequence[Row], **about: Any) -> list[Row]:
    """A row per set and method for the CSV, with mean and standard deviation of the
    scores over folds.
    """
    result = []
    for row in rows:
        scores = np.array(row["scores"])
        if len(scores) > 1:
            spread = float(scores.std(ddof=1))
        else:
            spread = float("nan")
        figures = {
            "mean": float(scores.mean()),
            "sd": spread,
            "seconds": row["seconds"],
            "folds": len(scores),
        }
        rest = {key: row[key] for key in ("set", "method", "n", "d", "classes")}
        result.append(rest | figures | about | {"detail": row["detail"]})
    return result


def fold_rows(
    rows: Sequence[Row], sizes: Mapping[str, Sequence[tuple[int, int]]]
) -> list[Row]:
    """A row per set, method and fold for the CSV.

    Seconds are nan where fit and prediction are not measured apart. Of a tuned method
    they are those of what was chosen, without the search; the nested choice of kNN is
    part of its fit.

    Parameters
    ----------
    rows : sequence of dict
        Those of the jobs.
    sizes : mapping of data set to a sequence of (int, int)
        Training and held-out samples of each fold.
    """
    names = ("balanced accuracy", "fit seconds", "predict seconds", "n_train", "n_test")
    result: list[Row] = []
    for row in rows:
        fit, predict = (
            row.get(what, itertools.repeat(float("nan"))) for what in ("fit", "predict")
        )
        folds = zip(row["scores"], fit, predict, sizes[row["set"]], strict=False)
        result += [
            {"set": row["set"], "method": row["method"], "fold": number}
            | dict(zip(names, (score, *seconds, *size), strict=True))
            | {"d": row["d"], "classes": row["classes"]}
            for number, (score, *seconds, size) in enumerate(folds)
        ]
    return result
