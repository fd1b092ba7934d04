"""The data sets of the paper's evaluation: from a folder of .npz files, or from OpenML.

OpenML is asked through scikit-learn, which keeps what it has downloaded.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flwr_flynn.errors import DataError
from simulations.data import BUNDLED, Reader, files, load


class PaperSet(NamedTuple):
    """A line of the paper's table of data sets."""

    name: str
    openml_id: int
    n_classes: int
    n: int
    d: int
    """Features; the paper counts the label too."""


_TABLE = """
mfeat-fourier 14 10 2000 76; mfeat-karhunen 16 10 2000 64; mfeat-zernike 22 10 2000 47;
optdigits 28 10 5620 64; spambase 44 2 4601 57; waveform-5000 60 3 5000 40;
satimage 182 6 6430 36; fri-c3-1000-25 715 2 1000 25; fri-c4-1000-100 718 2 1000 100;
pol 722 2 15000 48; fri-c4-1000-25 723 2 1000 25; ailerons 734 2 13750 40;
puma32H 752 2 8192 32; cpu-act 761 2 8192 21; fri-c4-1000-50 797 2 1000 50;
fri-c3-1000-50 806 2 1000 50; bank32nh 833 2 8192 32; fri-c1-1000-50 837 2 1000 50;
fri-c0-1000-25 849 2 1000 25; fri-c2-1000-50 866 2 1000 50;
fri-c2-1000-25 903 2 1000 25; fri-c0-1000-50 904 2 1000 50;
fri-c1-1000-25 917 2 1000 25; mfeat-fourier 971 2 2000 76; waveform-5000 979 2 5000 40;
optdigits 980 2 5620 64; mfeat-zernike 995 2 2000 47; mfeat-karhunen 1020 2 2000 64;
pc4 1049 2 1458 37; pc3 1050 2 1563 37; kc1 1067 2 2109 21; pc1 1068 2 1109 21;
PizzaCutter3 1444 2 1043 37; PieChart3 1453 2 1077 37; cardiotocography 1466 10 2126 35;
first-order-theorem-proving 1475 6 6118 51; hill-valley 1479 2 1212 100;
ozone-level-8hr 1487 2 2534 72; qsar-biodeg 1494 2 1055 41; ringnorm 1496 2 7400 20;
wall-robot-navigation 1497 4 5456 24; steel-plates-fault 1504 2 1941 33;
twonorm 1507 2 7400 20; autoUniv-au1-1000 1547 2 1000 20;
cardiotocography 1560 3 2126 35; hill-valley 1566 2 1212 100;
GesturePhaseSegmentationProcessed 4538 5 9873 32; thyroid-ann 40497 3 3772 21;
texture 40499 11 5500 40; Satellite 40900 2 5100 36; steel-plates-fault 40982 7 1941 27;
sylvine 41146 2 5124 20; ada 41156 2 4147 48; microaggregation2 41671 5 20000 20;
Sick-numeric 41946 2 3772 29; mfeat-factors 12 10 2000 216; isolet 300 26 7797 617;
mfeat-factors 978 2 2000 216; gina-agnostic 1038 2 3468 970;
gina-prior2 1041 10 3468 784; gina-prior 1042 2 3468 784; cnae-9 1468 9 1080 856;
madelon 1485 2 2600 500; semeion 1501 10 1593 256; clean2 40666 2 6598 168;
Speech 40910 2 3686 400; mfeat-pixel 40979 10 2000 240; USPS 41082 10 9298 256;
madeline 41144 2 3140 259; philippine 41145 2 5832 308; gina 41158 2 3153 970
"""

PAPER_SETS: tuple[PaperSet, ...] = tuple(
    PaperSet(name, *map(int, numbers))
    for name, *numbers in (line.split() for line in _TABLE.split(";"))
)
"""The paper's table "OpenML datasets used in this evaluation": it speaks of 70 sets,
and has 71 lines."""

# Two sets of the table may have one name; these are the files that are not named after
# the set they hold.
_OTHER_FILES = {
    "cardiotocography3": 1560,
    "steel_plates": 40982,
    "steel_plates_1504": 1504,
}


def file_ids() -> dict[str, int]:
    """OpenML's number of each set, by the name that its file has in a folder: of two
    with one name, the first.
    """
    ids: dict[str, int] = {}
    for one in PAPER_SETS:
        stem = one.name.replace("-", "_").lower()
        ids.setdefault(stem, one.openml_id)
        ids[f"{stem}_{one.openml_id}"] = one.openml_id
    return ids | _OTHER_FILES


def readers(folder: Path | None) -> tuple[dict[str, Reader], str]:
    """Readers of the sets, by name, and their source.

    Parameters
    ----------
    folder : Path or None
        Its files that hold sets of the paper, or all if none does. Without a folder
        OpenML is tried, and if that cannot be reached, the bundled sets are all there
        is.
    """
    if folder is not None:
        there = files(folder)
        known = file_ids()
        return {
            stem: reader for stem, reader in there.items() if stem in known
        } or there, "files"
    try:
        load(f"openml:{PAPER_SETS[0].openml_id}")
    except DataError as error:
        print(
            f"{error}: bundled sets instead, none of which is the paper's; --data "
            "gives others",
            file=sys.stderr,
        )
        return BUNDLED, "bundled"
    return {
        f"{one.name} ({one.openml_id})": partial(load, f"openml:{one.openml_id}")
        for one in PAPER_SETS
    }, "OpenML"
