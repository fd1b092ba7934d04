"""Decoders of settings and files for the fuzzer."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from flwr_flynn import FlyNNClassifier
from flwr_flynn.app.data import datasets
from flwr_flynn.app.node_config import NodeConfig
from flwr_flynn.app.run_config import RunConfig
from flwr_flynn.app.settings_parser import Row
from flwr_flynn.errors import FlyNNError
from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.roster import Member
from flwr_flynn.federated.run_spec import RunSpec
from flwr_flynn.model import model_file
from flwr_flynn.model.counts_of_specs import CountsOfSpecs
from flwr_flynn.model.prior import counted_prior
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import SimulatedRelease
from flwr_flynn.privacy.ledger import Budget, Policy, Released
from flwr_flynn.privacy.ledger_files import LedgerFiles
from flwr_flynn.tables.table import Table
from tests.app.data.files import npz
from tests.app.data.private import count, private_share
from tests.fakes import CLASSES, HASHER, LAPLACE, SPEC, federation_of, points
from tests.federated.runs import AUTO, GRID, exchange
from tests.fuzz_messages import COUNTS, NOISY, RELEASES, check_counts
from tests.fuzzing import (
    HALF,
    HOW_OFTEN,
    QUARTER,
    Decoder,
    spoiled,
    spoiled_array,
    spoiled_bytes,
    spoiled_mapping,
    spoiled_text,
    taken,
)

# -------- settings

RUN_SEEDS: list[dict[str, Any]] = [
    {row.key: row.default for row in RunConfig.rows()},
    {
        "epsilon": 1.0,
        "delta": 1e-5,
        "center": "8",
        "min-available": 3,
        "n-examples": 100,
    },
    {
        "classes": '["a", "b"]',
        "n-features": 4,
        "scale": "1,2,3,4",
        "decay": 0.5,
        "rule": "novelty",
    },
    {"hash-dim": 64, "seed": 2**63 - 1, "partitioner-options": '{"a": [1, 2]}'},
    {"scaling": "auto", "dataset": "synthetic:50,9,5,3", "classes": "1,2,3"},
]
NODE_SEEDS: list[dict[str, Any]] = [
    {
        "data-path": "a.csv",
        "label": "y",
        "party-id": "Ulm",
        "partition-id": 0,
        "num-partitions": 2,
    },
    {"data-path": "a.npz", "max-epsilon": 1.0, "max-delta": 1e-5, "state-path": "/a/b"},
]


@st.composite
def spoiled_settings(
    draw: st.DrawFn, seeds: list[dict[str, Any]], rows: list[Row]
) -> dict[str, Any]:
    config = dict(draw(st.sampled_from(seeds)))
    for row in draw(st.lists(st.sampled_from(rows), max_size=3)):
        config[row.key] = draw(spoiled(config.get(row.key, row.default)))
    return draw(spoiled_mapping(config))


def as_given(settings: Any) -> dict[str, Any]:
    return {
        field.name.replace("_", "-"): getattr(settings, field.name)
        for field in fields(settings)
    }


def use_run_config(given: Any) -> None:
    config = RunConfig.parse(given)
    with taken():
        assert repr(RunConfig.parse(as_given(config))) == repr(config)
    config = config.resolved()
    config.class_list()
    config.names("feature_names")
    config.options()
    config.decay_value()
    config.plan(4, 100, 3)


def use_node_config(given: Any) -> None:
    config = NodeConfig.parse(given)
    with taken():
        assert (
            NodeConfig.parse(
                {key: value for key, value in as_given(config).items() if key in given}
            )
            == config
        )
    config.policy()


# -------- files


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


@st.composite
def spoiled_npz(draw: st.DrawFn) -> bytes:
    """An .npz file of data that has faults itself, or in the arrays in it."""
    labels = draw(
        st.sampled_from(
            (np.array([1, 0, 2]), np.array(["a", "b", "a"]), np.array([0.0, 1.0, 7.5]))
        )
    )
    X = draw(
        st.sampled_from(
            (np.eye(3), np.eye(3, dtype=np.uint8), np.eye(3, 5, dtype=np.float16))
        )
    )
    arrays = {"X": X, "y": labels}
    method = draw(
        st.sampled_from((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    )
    members = {name: npy(array) for name, array in arrays.items()}
    if draw(HALF):
        return draw(spoiled_bytes(npz(members, method)))
    for _ in range(draw(HOW_OFTEN)):
        name = draw(st.sampled_from("Xy"))
        array = None
        if draw(HALF):
            array = draw(spoiled_array(arrays[name]))
        members[name] = (
            npy(array)
            if isinstance(array, np.ndarray)
            else draw(spoiled_bytes(members[name]))
        )
    return npz(members, method)


CSV = [
    b"a,b,label\n1,2.5,x\n3,-4,y\n5,1e3,x\n",
    b"label,a\n1,true\n2,false\n",
    b'a;b;label\n"1,2",3,"x ""y"""\n',
    "á,b,label\r\n1,2,é\r\n".encode(),
    "a,label\n1,x\n".encode("utf-16"),
    b"\xef\xbb\xbfa,b,label\n,nan,\ninf,-inf,z\n1e400,0x10,z\n",
    b"a,b,c,d,label\n1,2,3,4,ash\n5,6,7,8,birch\n"
    b"9223372036854775808,1_0,\xff,-0,cedar\n",
]


def parquets() -> list[bytes]:
    """Parquet files of columns, row labels and labels of several types."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frames = [
        pandas.DataFrame(
            {"a": [True, False, True], "label": pandas.array([1, 2, 2], "Int64")},
            index=[5, 6, 9],
        ),
        pandas.DataFrame(
            {
                "a": pandas.array([1, None], "Int64"),
                "label": pandas.Categorical(["u", "v"]),
            }
        ),
        pandas.DataFrame(
            {
                "a": np.arange(4, dtype="u1"),
                "b": 0.5,
                "c": 1,
                "d": np.zeros(4, "f4"),
                "label": [*"abcd"],
            },
            index=pandas.MultiIndex.from_product([[1, 2], ["p", "q"]]),
        ),
        pandas.DataFrame(
            {
                "a": pandas.to_datetime(["2020-01-01", None]).tz_localize("UTC"),
                "label": [True, False],
            }
        ),
    ]
    return [frame.to_parquet() for frame in frames]


@st.composite
def spoiled_parquet(draw: st.DrawFn, contents: Sequence[bytes]) -> bytes:
    """A file with faults anywhere or in its footer, or a whole one.

    The whole one has faults in the notes of pandas.
    """
    from pyarrow import BufferReader, parquet

    content = draw(st.sampled_from(contents))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(spoiled_bytes(content, contents))
    if kind == 1:
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        footer = draw(spoiled_bytes(content[start:-8]))
        return content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    table = parquet.read_table(BufferReader(content))
    out = io.BytesIO()
    notes = draw(spoiled_text(table.schema.metadata[b"pandas"].decode())).encode(
        "utf-8", "replace"
    )
    parquet.write_table(table.replace_schema_metadata({b"pandas": notes}), out)
    return out.getvalue()


def federations() -> list[Federation]:
    """Of a run before each of its phases, and of noisy and of secure counts."""
    found = []
    for spec in (AUTO, GRID):
        stopped = exchange(spec, n=3)
        while stopped.run.due is not None:
            stopped.step(stopped.run.due.channel)
            if stopped.run.is_specified:
                found.append(stopped.run.federation("1"))
    for run, counts in ((NOISY, RELEASES), (RunSpec(SPEC, CLASSES, bound=256), COUNTS)):
        digests = [() if run.bound else (part.sha256(),) for part in counts]
        members = [
            Member(f"p{i}", str(i), "ab" * 32, None, each, "7")
            for i, each in enumerate(digests)
        ]
        total = CountsOfSpecs((sum(counts[1:], counts[0]),))
        found.append(federation_of(run, total, members, [ScoringRule("balanced", 0.5)]))
    return found


@st.composite
def spoiled_model(draw: st.DrawFn, contents: Sequence[bytes]) -> bytes:
    """A file with faults, or a forged one.

    The forged one has any header and counts, with the digest that fits them.
    """
    content = draw(st.sampled_from(contents))
    if draw(QUARTER):
        return draw(spoiled_bytes(content, contents))
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    for name in [
        name for name in ("header", "extra", "ledger") if name in arrays and draw(HALF)
    ]:
        text = draw(spoiled_text(arrays[name].tobytes().decode()))
        arrays[name] = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    name = draw(
        st.sampled_from(
            [name for name in arrays if name.startswith(("counts", "linear"))]
        )
    )
    array = None
    if draw(QUARTER):
        array = draw(spoiled_array(arrays[name]))
    if isinstance(array, np.ndarray) and not array.dtype.hasobject:
        arrays[name] = array
    del arrays["digest"]
    # Ledgers are in the order in which they were written.
    arrays["digest"] = model_file.digest_of(*arrays.values())
    members = {name: npy(array) for name, array in arrays.items()}
    if draw(QUARTER):  # within the zip file, whose checksums fit
        name = draw(st.sampled_from(list(members)))
        members[name] = draw(spoiled_bytes(members[name][:128])) + members[name][128:]
    return npz(members, zipfile.ZIP_DEFLATED)


class Files:
    """Users of files: each input is written to a folder first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.budget = Budget(folder / "state", Policy(10.0, mechanisms=("simulated",)))
        self.released = self.answer().array.tolist()
        self.state = {
            name: (folder / name).read_bytes() for name in ("state", "state.exists")
        }

    def answer(self) -> Released:
        request = SimulatedRelease(LAPLACE, 3)
        return self.budget.release(
            request,
            COUNTS[2].spec_fingerprint,
            lambda: request.release(COUNTS[2]).array,
        )

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def saved(self, every: Sequence[Any]) -> Iterator[bytes]:
        """The files of some models or federations."""
        for decoder in every:
            decoder.save(self.folder / "saved.npz")
            yield (self.folder / "saved.npz").read_bytes()

    def use_model(self, content: bytes) -> None:
        path = self.write("given.npz", content)
        model = FlyNNClassifier.load(path, max_bytes=2**22)
        with taken():
            model.save(path)
            again = FlyNNClassifier.load(path, max_bytes=2**22)
            assert again.model_.sha256() == model.model_.sha256()
            for member, same in zip(
                model.model_.members, again.model_.members, strict=True
            ):
                if not member.counts.noise:
                    check_counts(member.counts, member.spec.hash_nnz)
                for name in ("counts", "spec", "scoring", "temperature", "weight"):
                    assert getattr(same, name) == getattr(member, name)
            np.testing.assert_array_equal(again.classes_, model.classes_)
            if model.n_features_in_ < 100:
                names = getattr(model, "feature_names_in_", None)
                assert names is None or len(names) == model.n_features_in_
                assert (
                    len(
                        model.decision_function(
                            np.arange(2.0 * model.n_features_in_).reshape(2, -1)
                        )
                    )
                    == 2
                )

    def use_federation(self, content: bytes) -> None:
        path = self.write("given.npz", content)
        federation = Federation.load(path, max_bytes=2**22)
        with taken():
            if not federation.run_spec.is_secure and not federation.counts.noise:
                sizes = [member.examples for member in federation.members]
                assert all(
                    sum(sizes) == counts.n_examples
                    for counts in federation.totals.parts
                )
            federation.save(path)
            again = Federation.load(path, max_bytes=2**22)
            for name in (
                "run_spec",
                "totals",
                "members",
                "phase",
                "max_members",
                "is_selected",
                "n_trees",
            ):
                assert getattr(again, name) == getattr(federation, name)
            assert again.shared.sha256() == federation.shared.sha256()
            np.testing.assert_equal(
                again.shared.prior,
                counted_prior(again.counts, again.run_spec.class_weight),
            )
            assert again.shared.guarantee == again.run_spec.guarantee

    @property
    def states(self) -> st.SearchStrategy[Any]:
        """The database of the ledger or its marker with faults, or a cell of a table.

        A ledger with that cell gets a marker that fits it.
        """
        damaged = st.sampled_from([*self.state]).flatmap(
            lambda name: spoiled_bytes(self.state[name], [*self.state.values()]).map(
                lambda content: (name, content)
            )
        )
        cells = []
        with closing(sqlite3.connect(self.folder / "state")) as database:
            for table in ("ledger", "charge", "answer"):
                rows = database.execute(f"SELECT * FROM {table}")
                names = [name for name, *_ in rows.description]
                cells += [(table, *cell) for cell in zip(names, *rows, strict=True)]
        forged = st.sampled_from(cells).flatmap(
            lambda cell: spoiled(cell[2]).map(lambda value: (*cell[:2], value))
        )
        return damaged | forged

    def use_state(self, given: Any) -> None:
        is_forged = len(given) == 3
        if is_forged:
            self.forge(*given)
        else:
            self.write(*given)
        try:
            spent = self.budget.spent()
            answer = self.answer()
            # Whoever may write to the folder can forge a ledger; what merely happens to
            # a file is noticed.
            assert is_forged or (spent, answer.repeated, answer.array.tolist()) == (
                (1.0, 0.0),
                True,
                self.released,
            )
            assert all(0 <= share < np.inf for share in spent)
        finally:
            (self.folder / "state-journal").unlink(missing_ok=True)
            for known, whole in self.state.items():
                self.write(known, whole)

    def forge(self, table: str, column: str, value: Any) -> None:
        """Change a cell, and write the marker that fits."""
        if not isinstance(value, int | float | str | bytes | None):
            value = repr(value)
        forger = LedgerFiles(self.folder / "state")
        with closing(sqlite3.connect(forger.path)) as database:
            forger._database = database
            database.execute("PRAGMA ignore_check_constraints = ON")
            # SQLite does not take all integers and texts, and a digest no bytes.
            with suppress(OverflowError, UnicodeError, TypeError, sqlite3.Error):
                database.execute(f"UPDATE {table} SET {column} = ?", [value])
                database.commit()
                forger._write_marker()

    def use_data(self, suffix: str) -> Callable[[bytes], None]:
        def use(content: bytes) -> None:
            path = self.write(f"given{suffix}", content)
            private = self._private(path)
            try:
                loaded = datasets.load_dataset(str(path))
            except FlyNNError as error:
                assert str(self.folder) not in str(error)
                if private:
                    return
                raise
            assert loaded.X.shape[0] == len(loaded.y)
            # Samples refuse labels with a NUL, which NumPy's arrays do not keep at the
            # end of a text.
            is_table = isinstance(loaded.X, Table)
            if is_table or any("\0" in str(label) for label in loaded.classes):
                assert (
                    not is_table
                    or len({len(column) for column in loaded.X.columns}) == 1
                )
                return
            assert np.isfinite(loaded.X).all()
            assert not len(loaded.y) or 0 <= loaded.y.min() <= loaded.y.max() < len(
                loaded.classes
            )
            again = self.folder / "again.npz"
            np.savez(again, X=loaded.X, y=np.array(loaded.classes)[loaded.y])
            same = datasets.load_dataset(str(again))
            np.testing.assert_array_equal(same.X, loaded.X)
            np.testing.assert_array_equal(
                np.array(same.classes)[same.y], np.array(loaded.classes)[loaded.y]
            )

        return use

    def _private(self, path: Path) -> bool:
        try:
            share = private_share(NodeConfig(data_path=str(path)))
        except FlyNNError as error:
            assert str(self.folder) not in str(error)
            return False
        assert len(share.X) == len(share.y)
        if share.X.shape[1] == SPEC.n_features:
            use_records((share.X, share.y))
        return True


def use_records(given: Any) -> None:
    """Whatever records hold, those that fit are counted and the others dropped."""
    X, y = given
    counts, dropped = count(HASHER, CLASSES, X, y)
    check_counts(counts)
    assert counts.n_examples + dropped == len(y)


def decoders(folder: Path) -> list[Decoder]:
    """Of settings and files; `folder` is where the files go."""
    files = Files(folder)
    saved = federations()
    labelled = [
        (["a", "b", "c"], COUNTS[2]),
        ([1, 2, 30], COUNTS[3]),
        ([0.5, 1.5, 2.5], RELEASES[0]),
    ]
    names = ("p", "q", "r", "s")
    models = [
        FlyNNClassifier.from_counts(SPEC, counts, labels, feature_names=names)
        for labels, counts in labelled
    ]
    models += [federation.model for federation in saved[2:4]]
    X, y = points(6)
    return [
        Decoder(
            "RunConfig.parse",
            spoiled_settings(RUN_SEEDS, RunConfig.rows()),
            use_run_config,
            3,
        ),
        Decoder(
            "NodeConfig.parse",
            spoiled_settings(NODE_SEEDS, NodeConfig.rows()),
            use_node_config,
            2,
        ),
        Decoder(
            "FlyNNClassifier.load",
            spoiled_model([*files.saved(models)]),
            files.use_model,
            2,
            memory=2**24,
        ),
        Decoder(
            "Federation.load",
            spoiled_model([*files.saved(saved)]),
            files.use_federation,
            2,
            memory=2**24,
        ),
        Decoder("Budget", files.states, files.use_state, 0.5),
        Decoder(
            "private rows",
            st.tuples(spoiled_array(X), spoiled_array(y)),
            use_records,
            1,
        ),
        Decoder(
            "data: CSV",
            st.sampled_from(CSV).flatmap(spoiled_bytes),
            files.use_data(".csv"),
            1,
            memory=2**23,
        ),
        Decoder(
            "data: Parquet",
            spoiled_parquet(parquets()),
            files.use_data(".parquet"),
            0.5,
            memory=2**23,
        ),
        Decoder("data: NPZ", spoiled_npz(), files.use_data(".npz"), 1, memory=2**23),
    ]
