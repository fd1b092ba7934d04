"""The public names, and the version."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module

import pytest

import flwr_flynn
from tests.docs.pages import ROOT

PUBLIC = {
    "flwr_flynn": "AggregationError ClassCounts FlyHash FlyNNClassifier FlyNNClient "
    "FlyNNError FlyNNStrategy HashPlan "
    "HashSpec message",
    "flwr_flynn.message": "FlyNNStrategy evaluate train",
    "flwr_flynn.privacy": "GaussianCounts LaplaceCounts MECHANISMS Mechanism "
    "NEIGHBOURS "
    "SimulatedRelease TopTLaplace mechanism_from_dict suggest_spec",
    "flwr_flynn.secagg": "mod workflow",
    "flwr_flynn.federation": "Federation Member",
    "flwr_flynn.tables": "Column Schema read_schema",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_those_of_the_last_release(module):
    imported = import_module(module)
    assert sorted(imported.__all__) == sorted(PUBLIC[module].split())
    assert all(
        hasattr(imported, name) and name in dir(imported) for name in imported.__all__
    )


# The one is a former name, gone as announced; the other never was.
@pytest.mark.parametrize("name", ["Plan", "ClassCount"])
def test_other_names_are_attribute_errors(name):
    with pytest.raises(AttributeError):
        getattr(flwr_flynn, name)


def test_version_and_date_of_the_release_are_the_same_everywhere():
    """Between releases the version is the next minor one with ``.dev0``.

    A party and a server of the release then decline each other's successors.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    newest = re.search(
        r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    cited = re.search(r"^version: (\S+)\ndate-released: (\S+)$", citation, re.MULTILINE)
    assert newest.groups() == cited.groups()
    released = newest[1]
    major, minor, _ = released.split(".")
    version = released
    if "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text():
        version = f"{major}.{int(minor) + 1}.0.dev0"
    assert flwr_flynn.__version__ == project["version"] == version
