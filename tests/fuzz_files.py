"""Decoders of settings and files for the fuzzer."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
from flwr_flynn.model.counts import CountsOfSpecs
from flwr_flynn.model.model import counted_prior
from flwr_flynn.model.scoring import ScoringRule
from flwr_flynn.privacy import SimulatedRelease, ledger_files
from flwr_flynn.privacy import ledger as budgets
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.privacy.ledger_files import LedgerFile
from flwr_flynn.tables.table import Table
from tests.app.data.private import count, private_share
from tests.fakes import CLASSES, HASHER, RUN, SPEC, federation_of
from tests.fuzz_messages import COUNTS, MECHANISM, NOISY, PAIRS, READ, RELEASES, SECURE, TWO, X, Y, check_counts
from tests.fuzzing import Decoder, Mutator

# -------- settings


RUN_SEEDS: list[dict[str, Any]] = [
    {row.key: row.default for row in RunConfig.rows()},
    {"epsilon": 1.0, "delta": 1e-5, "center": "8", "min-available": 3, "n-examples": 100},
    {"classes": '["a", "b"]', "n-features": 4, "scale": "1,2,3,4", "decay": 0.5, "rule": "novelty"},
    {"hash-dim": 64, "row-nnz": 2, "hash-nnz": 8, "seed": 2**63 - 1, "partitioner-options": '{"a": [1, 2]}'},
    {"scaling": "auto", "dataset": "synthetic:50,9,5,3", "classes": "1,2,3"},
]
NODE_SEEDS: list[dict[str, Any]] = [
    {"data-path": "a.csv", "label": "y", "party-id": "Ulm", "partition-id": 0, "num-partitions": 2},
    {"data-path": "a.npz", "max-epsilon": 1.0, "max-delta": 1e-5, "state-path": "/a/b"},
]


def make_settings(seeds: list[dict[str, Any]], rows: list[Row]) -> Callable[[Mutator], Any]:
    def make(mutator: Mutator) -> Any:
        config = dict(mutator.choice(seeds))
        for _ in range(mutator.below(4)):
            row = mutator.choice(rows)
            config[row.key] = mutator.value(config.get(row.key, row.default))
        return mutator.config(config)

    return make


def as_given(settings: Any) -> dict[str, Any]:
    return {field.name.replace("_", "-"): getattr(settings, field.name) for field in fields(settings)}


def use_run_config(given: Any) -> None:
    config = RunConfig.parse(given)
    assert repr(RunConfig.parse(as_given(config))) == repr(config)
    config = config.resolved()
    config.class_list()
    config.names("feature_names")
    config.options()
    config.decay_value()
    config.plan(4, 100, 3)


def use_node_config(given: Any) -> None:
    config = NodeConfig.parse(given)
    assert NodeConfig.parse(as_given(config)) == config
    config.policy()


# -------- files


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # made by hand it bears no time stamp
            info.compress_type = method
            archive.writestr(info, content)
    return out.getvalue()


def make_npz(mutator: Mutator, arrays: dict[str, np.ndarray]) -> bytes:
    """An .npz file that has faults itself, or in the arrays in it."""
    members = {name: npy(array) for name, array in arrays.items()}
    method = mutator.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    if mutator.one_in(2):
        return mutator.raw(npz(members, method))
    for _ in mutator.times():
        name = mutator.choice(list(members))
        spoiled = mutator.array(arrays[name]) if mutator.one_in(2) else None
        members[name] = npy(spoiled) if isinstance(spoiled, np.ndarray) else mutator.raw(members[name])
    return npz(members, method)


CSV = [
    b"a,b,label\n1,2.5,x\n3,-4,y\n5,1e3,x\n",
    b"label,a\n1,true\n2,false\n",
    b'a;b;label\n"1,2",3,"x ""y"""\n',
    "á,b,label\r\n1,2,é\r\n".encode(),
    "a,label\n1,x\n".encode("utf-16"),
    b"\xef\xbb\xbfa,b,label\n,nan,\ninf,-inf,z\n1e400,0x10,z\n",
    b"a,b,c,d,label\n1,2,3,4,ash\n5,6,7,8,birch\n9223372036854775808,1_0,\xff,-0,cedar\n",
]


def parquets() -> list[bytes]:
    """Parquet files of columns, row labels and labels of several types."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frames = [
        pandas.DataFrame({"a": [1, 3, 5], "b": [2.5, -4, 1e3], "label": ["x", "y", "x"]}),
        pandas.DataFrame({"a": [1.0, 2.0], "label": [3, 1]}, index=pandas.Index([7, 8], name="id")),
        pandas.DataFrame({"a": [True, False, True], "label": pandas.array([1, 2, 2], "Int64")}, index=[5, 6, 9]),
        pandas.DataFrame({"a": pandas.array([1, None], "Int64"), "label": pandas.Categorical(["u", "v"])}),
        pandas.DataFrame(
            {"a": np.arange(4, dtype="u1"), "b": 0.5, "c": 1, "d": np.zeros(4, "f4"), "label": [*"abcd"]},
            index=pandas.MultiIndex.from_product([[1, 2], ["p", "q"]]),
        ),
        pandas.DataFrame({"a": pandas.to_datetime(["2020-01-01", None]).tz_localize("UTC"), "label": [True, False]}),
    ]
    return [frame.to_parquet() for frame in frames]


def _member(run: RunSpec, number: int, counts: CountsOfSpecs) -> Member:
    sizes = tuple(counts.parts[0].n_per_class.tolist()) if run.mode == "plain" else None
    return Member(f"p{number}", str(number), "ab" * 32, sizes, () if run.bound else counts.sha256, "7")


class Files:
    """Decoders of files: each input is written to a folder first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = []
        for place, (labels, counts) in enumerate(
            [(["a", "b", "c"], COUNTS[2]), ([1, 2, 30], COUNTS[3]), ([0.5, 1.5, 2.5], RELEASES[0])]
        ):
            model = FlyNNClassifier.from_counts(SPEC, counts, labels, feature_names=("p", "q", "r", "s"))
            model.save(folder / f"{place}.npz")
            self.models.append((folder / f"{place}.npz").read_bytes())
        paired = replace(FlyNNClassifier.from_counts(SPEC, COUNTS[3], ["a", "b", "c"]).model_, gram=READ)
        FlyNNClassifier.from_model(paired).save(folder / "paired.npz")
        self.models.append((folder / "paired.npz").read_bytes())
        self.federations = []
        one, two = ([CountsOfSpecs((each,)) for each in some] for some in (COUNTS, RELEASES))
        runs: list[tuple[RunSpec, list[CountsOfSpecs], str]] = [
            (RUN, one, ""), (RUN, one, "evaluation"), (NOISY, two, ""), (SECURE, one, ""),
            (TWO, [CountsOfSpecs(pair) for pair in PAIRS], "selection"), (TWO, [CountsOfSpecs(PAIRS[0])], "counts"),
        ]  # fmt: skip
        for place, (run, parts, phase) in enumerate(runs):
            members = [_member(run, i, part) for i, part in enumerate(parts)]
            scorings = [ScoringRule("balanced", 0.5)] * len(run.specs)
            weights = [1.0] if len(run.specs) == 1 else []
            pairs = READ if place == 1 else None
            made = federation_of(run, sum(parts[1:], parts[0]), members, scorings, weights, phase, gram=pairs)
            made.save(folder / f"f{place}.npz")
            self.federations.append((folder / f"f{place}.npz").read_bytes())
        self.parquets = parquets()
        self.budget = Budget(folder / "state", Policy(10.0, mechanisms=("simulated",)))
        self.request = SimulatedRelease(MECHANISM, 3)
        self.released = self._answer().counts
        files = [folder / "state.exists", *(folder / "state").iterdir()]
        self.state = {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def _answer(self) -> budgets.Released:
        return self.budget.release(self.request, COUNTS[2].spec_fingerprint, lambda: COUNTS[2])

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    # ---- models

    def make_model(self, mutator: Mutator) -> bytes:
        """A file with faults, or a forged one: any header and counts with the digest that fits them."""
        return self._spoiled_model(mutator, mutator.choice(self.models))

    def make_federation(self, mutator: Mutator) -> bytes:
        return self._spoiled_model(mutator, mutator.choice(self.federations))

    def _spoiled_model(self, mutator: Mutator, content: bytes) -> bytes:
        if mutator.one_in(3):
            return mutator.raw(content, self.models)
        with np.load(io.BytesIO(content)) as file:
            arrays = dict(file)
        for name in [name for name in ("header", "extra", "ledger") if name in arrays and mutator.one_in(2)]:
            text = mutator.json(arrays[name].tobytes().decode())
            arrays[name] = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        counts = mutator.choice([name for name in arrays if name.startswith(("counts", "gram", "bias"))])
        spoiled = mutator.array(arrays[counts]) if mutator.one_in(3) else None
        if isinstance(spoiled, np.ndarray) and not spoiled.dtype.hasobject:
            arrays[counts] = spoiled
        del arrays["digest"]
        digest = model_file.digest_of(*arrays.values())  # in the order in which they were written
        members = {name: npy(array) for name, array in (arrays | {"digest": digest}).items()}
        if mutator.one_in(3):  # within the zip file, whose checksums fit
            name = mutator.choice(list(members))
            members[name] = mutator.raw(members[name][:128]) + members[name][128:]
        return npz(members)

    def use_model(self, content: bytes) -> None:
        path = self.write("given.npz", content)
        model = FlyNNClassifier.load(path, max_bytes=2**22)
        if not model.counts_.noise:
            check_counts(model.counts_, model.spec_.hash_nnz)
        model.save(path)
        again = FlyNNClassifier.load(path, max_bytes=2**22)
        assert (again.counts_, again.spec_, again.rule) == (model.counts_, model.spec_, model.rule)
        assert (again.model_.member.scoring.decay, again.model_.member.temperature) == (
            model.model_.member.scoring.decay,
            model.model_.member.temperature,
        )
        assert again.model_.sha256() == model.model_.sha256()
        np.testing.assert_array_equal(again.classes_, model.classes_)
        if model.n_features_in_ < 100:
            names = getattr(model, "feature_names_in_", None)
            rows = np.arange(2.0 * model.n_features_in_).reshape(2, -1)
            assert names is None or len(names) == model.n_features_in_
            assert len(model.decision_function(rows)) == 2

    def use_federation(self, content: bytes) -> None:
        path = self.write("given.npz", content)
        federation = Federation.load(path, max_bytes=2**22)
        if not federation.run_spec.is_secure and not federation.counts.noise:
            sizes = [member.examples for member in federation.members]
            assert all(sum(sizes) == counts.n_examples for counts in federation.totals.parts)
        federation.save(path)
        again = Federation.load(path, max_bytes=2**22)
        for name in ("run_spec", "totals", "members", "phase", "max_members", "is_selected", "is_thorough"):
            assert getattr(again, name) == getattr(federation, name)
        assert again.shared.sha256() == federation.shared.sha256()
        prior = counted_prior(again.counts, again.run_spec.class_weight)
        np.testing.assert_equal(again.shared.prior, prior)
        assert again.shared.guarantee == again.run_spec.guarantee

    # ---- a party's ledger of private answers

    def make_state(self, mutator: Mutator) -> Any:
        """A file of the ledger or its marker with faults, a forged ledger with digests that fit it, or no change."""
        if mutator.one_in(6):
            return {}, False
        name = mutator.choice(list(self.state))
        content = self.state[name]
        if name != "state/ledger.json" or mutator.one_in(2):
            return {name: mutator.raw(content, list(self.state.values()))}, False
        ledger: Any = json.loads(content)
        for _ in mutator.times():
            ledger["entries"] = mutator.value(ledger["entries"])
        del ledger["sha256"]
        ledger = json.loads(json.dumps(ledger, default=repr))
        files = {name: json.dumps({**ledger, "sha256": ledger_files.digest_of(ledger)}).encode()}
        with suppress(TypeError, KeyError):
            forged = LedgerFile(ledger["composition"], ledger["delta"], ledger["data_path"], ledger["entries"])
            files["state.exists"] = forged.marker()
        return files, True

    def use_state(self, given: Any) -> None:
        files, forged = given
        for name, content in files.items():
            self.write(name, content)
        try:
            spent = self.budget.spent()
            answer = self._answer()
            # Whoever may write to the folder can forge a ledger; what merely happens to a file is noticed.
            assert forged or (spent, answer.repeated, answer.counts) == ((1.0, 0.0), True, self.released)
            assert 0 <= spent[0] < np.inf
            assert 0 <= spent[1] < np.inf
        finally:
            for path in (self.folder / "state").iterdir():
                if f"state/{path.name}" not in self.state:
                    path.unlink()
            for known, whole in self.state.items():
                self.write(known, whole)

    # ---- data

    def make_csv(self, mutator: Mutator) -> bytes:
        return mutator.raw(mutator.choice(CSV), CSV)

    def make_npz(self, mutator: Mutator) -> bytes:
        labels = mutator.choice((np.array([1, 0, 2]), np.array(["a", "b", "a"]), np.array([0.0, 1.0, 7.5])))
        points = mutator.choice((np.eye(3), np.eye(3, dtype=np.uint8), np.eye(3, 5, dtype=np.float16)))
        return make_npz(mutator, {"X": points, "y": labels})

    def make_parquet(self, mutator: Mutator) -> bytes:
        """A file with faults anywhere, or in its footer, or a whole one with faults in what pandas notes in it."""
        content = mutator.choice(self.parquets)
        kind = mutator.below(4)
        if kind == 0:
            return mutator.raw(content, self.parquets)
        if kind == 1:
            start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
            footer = mutator.raw(content[start:-8])
            return content[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
        from pyarrow import BufferReader, parquet

        table = parquet.read_table(BufferReader(content))
        notes = mutator.json(table.schema.metadata[b"pandas"].decode()).encode("utf-8", "replace")
        out = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata({b"pandas": notes}), out)
        return out.getvalue()

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
            if isinstance(loaded.X, Table):
                assert len({len(column) for column in loaded.X.columns}) == 1
                return
            assert np.isfinite(loaded.X).all()
            assert not len(loaded.y) or 0 <= loaded.y.min() <= loaded.y.max() < len(loaded.classes)
            again = self.folder / "again.npz"
            np.savez(again, X=loaded.X, y=np.array(loaded.classes)[loaded.y])
            same = datasets.load_dataset(str(again))
            np.testing.assert_array_equal(same.X, loaded.X)
            np.testing.assert_array_equal(np.array(same.classes)[same.y], np.array(loaded.classes)[loaded.y])

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


def make_records(mutator: Mutator) -> Any:
    return mutator.array(X[:6]), mutator.array(Y[:6])


def use_records(given: Any) -> None:
    """Whatever records hold, those that fit are counted and the others dropped."""
    points, labels = given
    counts, dropped = count(HASHER, CLASSES, points, labels)
    check_counts(counts)
    assert counts.n_examples + dropped == len(labels)


def decoders(folder: Path) -> list[Decoder]:
    """Of settings and files; `folder` is where the files go."""
    files = Files(folder)
    return [
        Decoder("RunConfig.parse", make_settings(RUN_SEEDS, RunConfig.rows()), use_run_config, 3),
        Decoder("NodeConfig.parse", make_settings(NODE_SEEDS, NodeConfig.rows()), use_node_config, 2),
        Decoder("FlyNNClassifier.load", files.make_model, files.use_model, 2, memory=2**24),
        Decoder("Federation.load", files.make_federation, files.use_federation, 2, memory=2**24),
        Decoder("Budget", files.make_state, files.use_state, 0.5),
        Decoder("private rows", make_records, use_records, 1),
        Decoder("data: CSV", files.make_csv, files.use_data(".csv"), 1, memory=2**23),
        Decoder("data: Parquet", files.make_parquet, files.use_data(".parquet"), 0.5, memory=2**23),
        Decoder("data: NPZ", files.make_npz, files.use_data(".npz"), 1, memory=2**23),
    ]
