"""Files of every kind, written for a test; the two ways in which a party reads its own."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_flynn.app.data.own_file import opened, own_share
from flwr_flynn.app.data.source import Reading
from flwr_flynn.app.node_config import NodeConfig
from tests.app.data.private import private_share

ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
READERS = pytest.mark.parametrize(
    "read", [own_share, private_share], ids=["open", "private"]
)


def written(
    path: Path, content: str | bytes | Mapping[str, Any], **options: Any
) -> Path:
    """The path of a file of this text, or of these columns, as its ending says.

    Labels are the last column, or y.
    """
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, bytes):
        path.write_bytes(content)
        return path
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(content)
    ending = path.suffix.lower()
    with path.open("wb") as stream:
        if ending == ".csv":
            frame.to_csv(stream, index=False, **options)
        elif ending == ".parquet":
            frame.to_parquet(stream, index=False, **options)
        else:
            others = {
                name: np.array(frame[name].tolist())
                for name in ("label", "patient")
                if name in frame
            }
            names = [name for name in frame if name not in others]
            X = frame[names].to_numpy()
            if X.dtype == object:
                X = X.astype(str)
            if "label" in others:
                others["y"] = others.pop("label")
            np.savez(stream, X=X, feature_names=names, **others)
    return path


def npz(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The content of a file of such arrays."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def node(path: Path, **settings: Any) -> NodeConfig:
    """The settings of a party that holds no rows of its file out."""
    return NodeConfig(data_path=str(path), **{"test_fraction": 0.0} | settings)


def table_of(path: Path, **reading: Any) -> Any:
    """The features of a checked file: a table, or an array of numbers."""
    file = opened(path, Reading(**reading))
    file.check()
    return file.whole()[0]
