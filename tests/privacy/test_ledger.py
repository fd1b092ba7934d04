"""The ledger: nothing is spent twice, and faults mean refusal.

Nothing is released that is not recorded.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts, _files
from flwr_flynn.app.cli import main
from flwr_flynn.errors import ConfigError, DataError, PrivacyError
from flwr_flynn.privacy import (
    GaussianCounts,
    LaplaceCounts,
    Mechanism,
    SimulatedRelease,
    accounting,
    ledger_files,
    mechanism,
    release_policy,
)
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.privacy.ledger_files import LedgerFiles, digest_of
from tests.raising import raises

SHAPE: dict[str, Any] = {"hash_nnz": 2, "n_classes": 2}
HERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
LATER = ClassCounts([[2, 2, 0], [0, 2, 2]], hash_nnz=2, spec_fingerprint=64 * "0")
ELSEWHERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "1")


def marker_of(path):
    return path.with_name(path.name + ".exists")


def query(path, *statement):
    """The rows that a statement gives of a ledger, after which it is closed."""
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(*statement).fetchall()


def written(path):
    """True for each answer whose array is in the ledger."""
    return [sha256 != "" for (sha256,) in query(path, "SELECT sha256 FROM answer")]


def laplace(epsilon=0.5, **kwargs):
    return LaplaceCounts(epsilon, **SHAPE, **kwargs)


Both = partial(LaplaceCounts, n_columns=3)
"""A mechanism whose charge pays for two answers."""
BothShared = partial(GaussianCounts, n_columns=3)
"""The same, of which each party of a secure sum adds a share."""


@dataclass(frozen=True)
class Answer:
    """An answer in a form that can be compared."""

    counts: tuple[int, ...]
    repeated: bool


@pytest.fixture
def path(tmp_path):
    return tmp_path / "party" / "state"


def open_budget(path, **policy):
    return Budget(path, Policy(**{"max_epsilon": 1.0, "max_delta": 1e-4} | policy))


def answer(budget, mechanism, counts=HERE, **more):
    released = budget.release(
        mechanism,
        counts.spec_fingerprint,
        lambda: mechanism.release(counts).array,
        **more,
    )
    return Answer(tuple(released.array.flat), released.repeated)


def ask(path, epsilon=0.5, **more):
    """The answer of a ledger to one request."""
    return answer(open_budget(path), laplace(epsilon), **more)


def spent(path):
    return open_budget(path).spent()


def never():
    raise AssertionError("data were touched")


def refused(field, function, *args, got=None, **more):
    """The error by which a ledger refuses."""
    expected = {"field": field}
    if got is not None:
        expected["got"] = got
    with raises(PrivacyError, **expected) as caught:
        function(*args, **more)
    return caught.value


def test_each_request_has_an_answer_of_its_own_which_stays_whatever_the_counts_become(
    path,
):
    """Sums, refusals and replays are tested in `test_release_policy`."""
    first = ask(path, 0.25).counts
    others = [
        ask(path, 0.25, terms="another run").counts,
        ask(path, 0.25, counts=ELSEWHERE).counts,
        ask(path, 0.125).counts,
    ]
    assert len({first, *others}) == 4
    assert ask(path, 0.25, counts=LATER).counts == first
    assert spent(path) == (0.875, 0.0)


def test_a_refusal_says_neither_what_is_spent_nor_what_is_left(path):
    budget = open_budget(path, max_epsilon=1.5, max_delta=1.5e-5)
    gaussian = GaussianCounts(1.0, 1e-5, **SHAPE)
    answer(budget, gaussian)
    answer(budget, laplace(0.5))
    assert budget.spent() == (gaussian.epsilon(1e-5) + 0.5, 1e-5)
    for little in (laplace(0.001), GaussianCounts(0.001, 1e-12, **SHAPE)):
        error = refused("policy max-epsilon", answer, budget, little)
        assert not re.search("[0-9]", str(error))
        assert "1.501" in error.__notes__[0]


SHARE = GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4)


@dataclass(frozen=True)
class Excess:
    """A request that a policy does not allow, and the refusal."""

    mechanism: Mechanism
    field: str
    expected: str | None = None
    got: str | None = None
    policy: dict[str, Any] = field(default_factory=dict)


OF_A_NEW_LEDGER = {
    "simulated noise": Excess(
        SimulatedRelease(laplace(), 1),
        "policy mechanisms",
        expected="gaussian, laplace, top-t",
        got="simulated",
    ),
    "weaker neighbours": Excess(
        laplace(),
        "policy neighbours",
        expected="replace-one",
        got="add-remove",
        policy={"neighbours": "replace-one"},
    ),
    "fewer records of a person": Excess(
        laplace(records_per_person=2),
        "policy records-per-person",
        expected="3",
        got="2",
        policy={"records_per_person": 3},
    ),
}
OF_ANY_LEDGER = {
    "another mechanism": Excess(
        laplace(),
        "policy mechanisms",
        expected="gaussian",
        got="laplace",
        policy={"mechanisms": ["gaussian"]},
    ),
    "a share without a secure sum": Excess(SHARE, "policy secure-sum", got="off"),
    "a policy of nothing": Excess(
        laplace(), "policy max-epsilon", policy={"max_epsilon": 0}
    ),
    "too large an epsilon": Excess(laplace(2.0), "policy max-epsilon"),
    "too large an epsilon of Gaussian noise": Excess(
        GaussianCounts(2.0, 1e-5, **SHAPE), "policy max-epsilon"
    ),
    "too large a delta": Excess(
        GaussianCounts(0.25, 1e-3, **SHAPE), "policy max-delta"
    ),
}
OF_A_BEGUN_LEDGER = {
    "more than the rest": Excess(laplace(0.75), "policy max-epsilon"),
    "more Gaussian noise than the rest": Excess(
        GaussianCounts(0.6, 1e-5, **SHAPE), "policy max-epsilon"
    ),
    "another composition": Excess(
        laplace(),
        "policy composition",
        expected="basic",
        got="zcdp",
        policy={"composition": "zcdp"},
    ),
}


def named(cases):
    return [pytest.param(case, id=name) for name, case in cases.items()]


def assert_refused_by_the_request_alone(path, excess):
    """A refusal before data are touched, and before any accounting."""

    def looked_for(_):
        pytest.fail("sigma was looked for")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianCounts, "sigma", property(looked_for))
        ledger = open_budget(path, **excess.policy)
        with raises(
            PrivacyError,
            field=excess.field,
            expected=excess.expected,
            got=excess.got,
        ):
            ledger.release(excess.mechanism, HERE.spec_fingerprint, never)


@pytest.mark.parametrize("excess", named(OF_A_NEW_LEDGER | OF_ANY_LEDGER))
def test_what_the_policy_does_not_allow_is_refused_without_a_ledger(path, excess):
    assert_refused_by_the_request_alone(path, excess)
    assert spent(path) == (0.0, 0.0)
    # To look at the costs makes no ledger either.
    assert not open_budget(path).is_begun


@pytest.mark.parametrize("excess", named(OF_A_BEGUN_LEDGER | OF_ANY_LEDGER))
def test_what_the_policy_does_not_allow_is_refused_by_a_begun_ledger(path, excess):
    ask(path, 0.5, terms="earlier")
    assert_refused_by_the_request_alone(path, excess)
    assert spent(path) == (0.5, 0.0)
    assert open_budget(path).is_begun


def test_an_answer_that_is_there_needs_no_data_and_no_room(path, monkeypatch):
    first = ask(path)
    monkeypatch.setattr(release_policy, "MOST_RELEASES", 1)
    for policy in ({}, {"mechanisms": ["gaussian"], "max_epsilon": 0.1}):
        again = open_budget(path, **policy).release(
            laplace(), HERE.spec_fingerprint, never
        )
        assert (tuple(again.array.flat), again.repeated) == (first.counts, True)
    with raises(PrivacyError, field="ledger", expected="at most 1 releases"):
        open_budget(path).release(laplace(0.25), HERE.spec_fingerprint, never)
    monkeypatch.undo()
    huge = LaplaceCounts(
        0.001, hash_nnz=2**31 - 1, n_classes=1, records_per_person=10**6
    )
    with raises(ConfigError, field="epsilon"):
        open_budget(path).release(huge, HERE.spec_fingerprint, never)
    lose(path)
    refused(
        "ledger",
        open_budget(path).release,
        laplace(),
        HERE.spec_fingerprint,
        never,
        got="lost",
    )


# Faults


def lose(path):
    path.unlink()


def lose_marker(path):
    marker_of(path).unlink()


def lose_all_but_a_file_from_before(path):
    marker_of(path).unlink()
    path.write_bytes(b"")


def lose_all_but_a_folder_from_before(path):
    lose(path)
    path.mkdir()


def swap(path):
    """Another ledger of the same request: other noise, another id."""
    ask(path.with_name("other"))
    shutil.copy(path.with_name("other"), path)


def forget_spending(path):
    query(path, "UPDATE charge SET epsilon = 0")


def forget_a_charge(path):
    query(path, "DELETE FROM charge")
    query(path, "DELETE FROM answer")


def empty(path):
    path.write_bytes(b"")


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def no_database(path):
    path.write_text("no database" * 1000)


def forge(path, *statements):
    """Rows with the marker that fits them: none is taken for more than it is."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            database.execute(statement)
        files = LedgerFiles(path)
        files._database = database
        with suppress(IndexError, TypeError):
            marker_of(path).write_text(files._mark())


def forge_marker(path, content):
    marker_of(path).write_bytes(content)


def _forging(statement):
    return lambda path: forge(path, statement)


LOSSES = [
    lose,
    lose_marker,
    lose_all_but_a_file_from_before,
    lose_all_but_a_folder_from_before,
]
ALTERATIONS = {
    fault.__name__: fault
    for fault in (
        swap,
        forget_spending,
        forget_a_charge,
        empty,
        halve,
        truncate,
        no_database,
    )
}
for statement in (
    "UPDATE charge SET epsilon = -1",
    "UPDATE charge SET epsilon = NULL",
    "UPDATE charge SET epsilon = 9e999",
    "UPDATE charge SET delta = x'30'",
    "UPDATE charge SET rho = 0.5",
    "UPDATE charge SET closes = 2",
    "UPDATE charge SET closes = 1",
    "UPDATE charge SET mechanism = x'7b7d'",
    "UPDATE charge SET terms = NULL",
    "UPDATE charge SET number = 7",
    "INSERT INTO answer SELECT 7, part, fingerprint, sha256, array FROM answer",
    "UPDATE answer SET array = 'text'",
    "UPDATE answer SET sha256 = NULL",
    "UPDATE ledger SET composition = 'none'",
    "UPDATE ledger SET composition = 'zcdp'",
    "UPDATE ledger SET delta = 1",
    "UPDATE ledger SET data_path = x'00'",
    "DELETE FROM ledger",
    "INSERT INTO ledger SELECT * FROM ledger",
    "CREATE TABLE more (x)",
    "CREATE TRIGGER more AFTER INSERT ON answer BEGIN DELETE FROM charge; END",
    "PRAGMA application_id = 1",
    "PRAGMA user_version = 2",
):
    ALTERATIONS[statement] = _forging(statement)
for content in (b"", b"7", b"{}", b"\xff", 64 * b"0"):
    ALTERATIONS[f"marker {content}"] = partial(forge_marker, content=content)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_ledger_means_refusal_until_it_is_reset(path, loss):
    assert_refused_until_reset(path, loss, got="lost")


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_ledger_means_refusal_until_it_is_reset(path, name):
    assert_refused_until_reset(path, ALTERATIONS[name], got="altered")


def assert_refused_until_reset(path, fault, got):
    ask(path)
    fault(path)
    for _ in range(2):
        refused("ledger", ask, path, got=got)
        error = refused("ledger", spent, path)
    assert str(path.parent) not in str(error)
    assert f"flwr-flynn reset {path}" in error.__notes__[0]
    if path.exists() and not path.stat().st_size and not marker_of(path).exists():
        # Nothing tells that it was a ledger.
        refused("ledger", open_budget(path).reset, got="none")
        path.unlink()
    else:
        open_budget(path).reset()
    assert spent(path) == (0.0, 0.0)
    assert not ask(path).repeated


def test_a_lost_altered_or_forged_release_is_neither_sent_nor_made_again(path):
    ask(path)
    ((whole,),) = query(path, "SELECT array FROM answer")
    other = io.BytesIO()
    np.savez(other, array=HERE.array)
    set_array = "UPDATE answer SET array = ?"
    for content in (whole[:-1], other.getvalue(), b"", b"PK\x03\x04", None):
        query(path, set_array, [content])
        refused("ledger", ask, path, got="release")
        assert spent(path) == (0.5, 0.0)
    objects = io.BytesIO()
    np.savez(objects, array=np.array([None]))
    two = io.BytesIO()
    np.savez(two, array=HERE.array, more=HERE.array)
    # The ledger vouches for these, and no parser reads them.
    for content in (
        b"",
        b"PK\x03\x04",
        whole[:-30],
        objects.getvalue(),
        two.getvalue(),
    ):
        query(path, set_array, [content])
        sha256 = hashlib.sha256(content).hexdigest()
        forge(path, f"UPDATE answer SET sha256 = '{sha256}'")
        refused("ledger", ask, path, got="release")


def test_a_database_of_another_program_is_no_ledger(path):
    path.parent.mkdir()
    query(path, "CREATE TABLE ledger (id TEXT)")
    refused("ledger", ask, path, got="lost")
    refused("ledger", open_budget(path).reset, got="none")
    marker_of(path).write_text("")
    refused("ledger", ask, path, got="altered")
    assert query(path, "SELECT * FROM ledger") == []


def test_what_cannot_be_recorded_is_not_released(path, monkeypatch):
    ask(path, 0.25)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN EXCLUSIVE")
        error = refused("ledger", ask, path, got="not read")
    assert str(path.parent) not in str(error)
    assert spent(path) == (0.25, 0.0)
    (path.parent / "file").write_text("")
    refused("ledger", spent, path.parent / "file" / "state", got="not opened")


# Processes


def ask_one_of_five(path, place, queue):
    try:
        queue.put((place % 5, ask(path, 0.25, terms=f"run {place % 5}").counts))
    except PrivacyError as error:
        queue.put((place % 5, error.field))


def test_processes_take_turns(path):
    """Ten at once ask for five releases, two each, of which the policy allows four."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=ask_one_of_five, args=(path, place, queue))
        for place in range(10)
    ]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    by_run = {
        run: {answer for asked, answer in answers if asked == run} for run in range(5)
    }
    assert all(len(same) == 1 for same in by_run.values())
    assert sum(same == {"policy max-epsilon"} for same in by_run.values()) == 1
    assert spent(path) == (1.0, 0.0)


def test_a_link_is_the_same_ledger(path):
    spent(path)
    link = path.with_name("link")
    link.symlink_to(path)
    assert open_budget(link).path == open_budget(path).path
    ask(link, 0.75)
    refused("policy max-epsilon", ask, path, 0.75, terms="more")


def test_a_ledger_is_the_partys_own_to_read(path):
    modes = {}

    def measure():
        for file in path.parent.iterdir():
            modes[file.name] = stat.S_IMODE(file.stat().st_mode)
        return HERE.array

    for terms in ("first", "later"):
        budget = open_budget(path)
        budget.release(laplace(), HERE.spec_fingerprint, measure, terms=terms)
    names = ("state", "state-journal", "state.exists", "state.lock")
    assert modes == dict.fromkeys(names, 0o600)


def test_a_charge_is_synced_to_the_disk(path):
    budget = open_budget(path)

    def measure():
        for pragma, value in (("synchronous", 2), ("journal_mode", "delete")):
            assert budget._rows(f"PRAGMA {pragma}") == [(value,)]
        return HERE.array

    for terms in ("first", "later"):
        budget.release(laplace(0.25), HERE.spec_fingerprint, measure, terms=terms)


def test_new_folders_are_on_the_disk_before_a_ledger_counts_on_them(
    tmp_path, monkeypatch
):
    """Otherwise the ledger and the marker that there was one would vanish together."""
    settled = []
    settle = ledger_files.settle

    def noting(folder):
        settled.append(folder)
        settle(folder)

    for module in (_files, ledger_files):
        monkeypatch.setattr(module, "settle", noting)
    ask(tmp_path / "new" / "newer" / "state")
    assert settled[:2] == [tmp_path, tmp_path / "new"]
    assert str(tmp_path / "new" / "newer") in map(str, settled)


class Dying(sqlite3.Connection):
    """A connection whose process may be killed around each statement and commit."""

    def execute(self, *statement):
        reach()
        rows = super().execute(*statement)
        reach()
        return rows

    def __exit__(self, *error):
        reach()
        super().__exit__(*error)
        reach()


points = []
"""Points that a child process has reached; it is killed at the last one it may reach."""


def reach():
    points.append(None)
    if len(points) == reach.most:
        os.kill(os.getpid(), signal.SIGKILL)


def before(function):
    def killing(*args, **more):
        reach()
        return function(*args, **more)

    return killing


def noisy_of(mechanism, looks):
    """Noisy counts, of which the file `looks` notes that samples were looked at."""
    with looks.open("ab") as stream:
        stream.write(b"1")
    return mechanism.release(HERE).array


def release_25(path, mechanism=None, part="counts", looks=None):
    mechanism = mechanism or laplace(0.25)
    looks = looks or path.with_name("looks")
    return open_budget(path).release(
        mechanism,
        HERE.spec_fingerprint,
        partial(noisy_of, mechanism, looks),
        terms="more",
        part=part,
    )


BOTH = Both(0.25, **SHAPE)


def columns_first(path):
    release_25(path, BOTH, "columns", path.with_name("columns"))


def of_0_8(path):
    """A folder with one answer in 0.8."""
    write_0_8(path, [entry_of_0_8(path, laplace(0.25), "run 0")])


STARTS = {
    "a first release": (lambda path: path.parent.mkdir(parents=True), 0.0, {}),
    "a later release": (partial(ask, epsilon=0.25), 0.25, {}),
    "the second part of a charge": (columns_first, 0.0, {"mechanism": BOTH}),
    "a ledger of 0.8": (of_0_8, 0.25, {}),
}
"""By name: what was before, what it spent beside the charge of the release, and the
arguments of the release."""


def ended(child, *args):
    """Exit code of a child process that calls the function."""
    process = multiprocessing.get_context("fork").Process(target=child, args=args)
    process.start()
    process.join()
    return process.exitcode


def die_at(most, path, arguments):
    reach.most = most
    for name in ("replace", "rename", "unlink", "fsync", "mkdir", "open"):
        setattr(os, name, before(getattr(os, name)))
    sqlite3.connect = partial(sqlite3.connect, factory=Dying)
    release_25(path, **arguments)
    os._exit(0)


def assert_charged(path, earlier, arguments, is_first):
    """Require a ledger that opens, has charged each look at the samples, and goes on."""
    looks = path.with_name("looks")

    looks.touch()

    def n_looks():
        return looks.stat().st_size

    is_marked = marker_of(path).exists()
    try:
        (total, _) = spent(path)
    except PrivacyError as error:
        # There was a ledger, or might have been.
        assert error.got == "lost"
        assert is_first
        assert not is_marked
        assert not n_looks()
        return "lost"
    charged = (total - earlier) / 0.25
    assert charged in (0, 1)
    assert charged >= n_looks()
    done = n_looks()
    again = release_25(path, **arguments)
    assert again.repeated == (n_looks() == done)
    assert spent(path)[0] - earlier >= 0.25 * n_looks()
    assert release_25(path, **arguments).array.tolist() == again.array.tolist()
    assert sum(written(path)) <= len(written(path)) <= 3
    return charged, again.repeated


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTS)
def test_a_process_killed_at_any_point_has_spent_what_it_looked_at(tmp_path, name):
    start, earlier, arguments = STARTS[name]
    ends = set()
    for most in itertools.count(1):
        path = tmp_path / str(most) / "party" / "state"
        start(path)
        status = ended(die_at, most, path, arguments)
        ends.add(assert_charged(path, earlier, arguments, name == "a first release"))
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert most > 30
    assert ends - {"lost"} >= {(1, False), (1, True)}
    assert ("lost" in ends) == (name == "a first release")


def limit_files(size, action, path, arguments):
    """Release on a disk that takes files of so many bytes only."""
    signal.signal(signal.SIGXFSZ, action)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        release_25(path, **arguments)
    except PrivacyError as error:
        assert error.got == "not written"
        os._exit(2)
    os._exit(0)


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
@pytest.mark.parametrize("name", STARTS)
def test_a_full_disk_or_a_kill_within_a_write_leaves_a_database_that_opens(
    tmp_path, name, action
):
    """0.8 left a marker without a ledger, which counted as lost."""
    start, earlier, arguments = STARTS[name]
    statuses = set()
    for size in range(0, 64_000, 1500):
        path = tmp_path / str(size) / "party" / "state"
        start(path)
        status = ended(limit_files, size, action, path, arguments)
        statuses.add(status)
        is_first = action == signal.SIG_DFL and name == "a first release"
        assert_charged(path, earlier, arguments, is_first)
        if status == 0:
            break
    failure = {signal.SIG_IGN: 2, signal.SIG_DFL: -signal.SIGXFSZ}[action]
    assert statuses == {0, failure}


# By hand


def test_a_reset_removes_a_ledger_and_nothing_else(path, capsys):
    ask(path)
    open_budget(path).secret()
    notes = path.parent / "notes.txt"
    notes.write_text("mine" * 100)
    for wrong in (path.parent, notes):
        assert main(["reset", str(wrong)]) == 1
        assert f"ledger {wrong.name}: " in capsys.readouterr().err
    names = ["notes.txt", "state", "state.exists", "state.lock", "state.secret"]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    assert not list(path.parent.parent.glob("*.lock"))
    path.with_name("state-journal").touch()
    assert main(["reset", str(path)]) == 0
    left = ["notes.txt", "state.lock", "state.secret"]
    assert sorted(file.name for file in path.parent.iterdir()) == left


def shown(path, capsys):
    """The rows of the command about a ledger, and the words about their sum."""
    assert main(["show", str(path)]) == 0
    titles, *rows, total = capsys.readouterr().out.splitlines()
    assert titles.split() == ["epsilon", "delta", "answered", "mechanism"]
    return [row.split("  ")[0] for row in rows], total


def test_a_party_shows_and_resets_its_ledger_by_hand(path, capsys):
    for verb in ("show", "reset"):
        assert main([verb, str(path)]) == 1
    assert not path.parent.exists()
    ask(path)
    sum_of_one = "composition basic, charges 1, epsilon 0.5, delta 0 spent"
    assert shown(path, capsys) == (["0.5"], sum_of_one)
    lose(path)
    assert main(["show", str(path)]) == 1
    assert f"reset {path}" in capsys.readouterr().err
    assert main(["reset", str(path)]) == 0
    assert (open_budget(path).is_begun, spent(path)) == (False, (0.0, 0.0))
    assert main(["reset"]) == 2


# Before data are touched


@pytest.mark.parametrize(
    "error", [DataError("X"), OSError(5, "input"), ValueError(), KeyboardInterrupt()]
)
def test_a_count_that_fails_is_charged_all_the_same(path, error):
    """Otherwise a failure because of one record would answer questions for nothing."""

    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        open_budget(path).release(laplace(), HERE.spec_fingerprint, fail)
    assert caught.value is error
    assert written(path) == [False]
    assert spent(path) == (0.5, 0.0)
    assert not ask(path).repeated
    assert spent(path) == (1.0, 0.0)
    refused(
        "policy max-epsilon",
        open_budget(path).release,
        laplace(),
        ELSEWHERE.spec_fingerprint,
        never,
    )


def test_what_no_sample_decides_is_refused_before_the_charge(path, monkeypatch):
    def refuse(*_):
        raise DataError("columns", "others", "these")

    with raises(DataError, field="columns"):
        open_budget(path).release(
            laplace(), HERE.spec_fingerprint, never, prepare=refuse
        )
    # Noise cannot be drawn.
    monkeypatch.setattr(mechanism, "privacy_extra", refuse)
    with raises(DataError, field="columns"):
        open_budget(path).release(laplace(), HERE.spec_fingerprint, never)
    refused("request", open_budget(path).recall, laplace(), HERE.spec_fingerprint)
    assert not open_budget(path).is_begun


def test_nothing_on_the_disk_depends_on_the_counts_but_the_release(tmp_path):
    """No digest of exact counts or of data: with the noise the same, so is all else."""
    rows = []
    for place, counts in enumerate((HERE, LATER)):
        path = tmp_path / str(place)
        ask(path, counts=counts)
        rows.append(
            [
                query(path, "SELECT composition, delta, data_path FROM ledger"),
                query(path, "SELECT * FROM charge"),
                query(path, "SELECT charge, part, fingerprint FROM answer"),
            ]
        )
    assert rows[0] == rows[1]


def test_a_share_is_not_sent_again_to_be_taken_out(path):
    """Two sums, with it and without it, would leave the others with too little noise."""
    budget = open_budget(path, secure_sum=True)
    answer(budget, SHARE)
    refused("share", budget.recall, SHARE, HERE.spec_fingerprint)
    whole = answer(budget, laplace(0.25))
    recalled = budget.recall(laplace(0.25), HERE.spec_fingerprint)
    assert tuple(recalled.flat) == whole.counts
    refused("request", budget.recall, laplace(0.125), HERE.spec_fingerprint)


# Older copies


@pytest.fixture
def copies(path):
    """Database and marker as they were after each of three releases."""
    copies = []
    for run in range(3):
        ask(path, 0.125, terms=f"run {run}")
        copies.append((path.read_bytes(), marker_of(path).read_bytes()))
    return copies


def test_an_older_copy_of_the_database_is_noticed(path, copies):
    for database, _ in copies[:2]:
        path.write_bytes(database)
        refused("ledger", ask, path, 0.125, terms="run 0", got="altered")
        refused("ledger", spent, path, got="altered")
    path.write_bytes(copies[2][0])
    assert spent(path) == (0.375, 0.0)


def test_two_copies_that_went_apart_are_told_from_each_other(path):
    """They have one id, and as many steps."""
    ask(path, 0.125)
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    shutil.copy(marker_of(path), marker_of(copy))
    for ledger in (path, copy):
        ask(ledger, 0.125, terms="more")
    shutil.copy(copy, path)
    refused("ledger", spent, path, got="altered")


def test_a_ledger_with_a_release_by_a_mechanism_of_0_8_shows_what_was_spent_and_releases_nothing(
    path, capsys
):
    ask(path, 0.125)
    for text in (json.dumps(ROUNDS), "{", "[]", "{}", 9999 * "["):
        forge(path, f"UPDATE charge SET mechanism = '{text}'")
        refused("ledger", ask, path, 0.25, got="mechanism")
        assert spent(path) == (0.125, 0.0)
        assert shown(path, capsys)[0] == ["0.125"]


def test_a_ledger_may_be_one_step_ahead_of_its_marker_and_no_more(path):
    marks = []

    def measure():
        marks.append(marker_of(path).read_bytes())
        return HERE.array

    for terms in ("first", "later"):
        budget = open_budget(path)
        budget.release(laplace(0.125), HERE.spec_fingerprint, measure, terms=terms)
        marks.append(marker_of(path).read_bytes())
    marker_of(path).write_bytes(marks[2])  # as if a process had died
    assert spent(path) == (0.25, 0.0)
    assert marker_of(path).read_bytes() == marks[3]
    for earlier in marks[:2]:
        marker_of(path).write_bytes(earlier)
        refused("ledger", spent, path, got="altered")


def test_database_and_marker_put_back_together_are_not_noticed(path, copies):
    """As the module says."""
    path.write_bytes(copies[0][0])
    marker_of(path).write_bytes(copies[0][1])
    assert spent(path) == (0.125, 0.0)


# Two parts


def test_a_charge_pays_for_one_answer_of_each_part(path):
    both = Both(0.25, **SHAPE)
    columns = answer(open_budget(path), both, ELSEWHERE, part="columns")
    assert spent(path) == (0.25, 0.0)
    counts = answer(open_budget(path), both)
    assert spent(path) == (0.25, 0.0)
    assert not counts.repeated
    for fingerprint, part, first in (
        (ELSEWHERE, "columns", columns),
        (HERE, "counts", counts),
    ):
        again = answer(open_budget(path), both, fingerprint, part=part)
        assert (again.counts, again.repeated) == (first.counts, True)
        recalled = open_budget(path).recall(
            both, fingerprint.spec_fingerprint, part=part
        )
        assert tuple(recalled.flat) == first.counts
    assert spent(path) == (0.25, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        {"counts": ELSEWHERE},
        {"terms": "more"},
        {"mechanism": Both(0.125, **SHAPE)},
    ],
)
def test_a_part_that_was_begun_is_never_begun_again_in_its_charge(path, other):
    """And a charge of another request pays for nothing."""
    asked = {"mechanism": Both(0.25, **SHAPE), "counts": HERE}
    answer(open_budget(path), **asked)
    answer(open_budget(path), **asked | other)
    epsilon = (asked | other)["mechanism"].target_epsilon
    assert spent(path) == (0.25 + epsilon, 0.0)
    answer(open_budget(path), **asked | other, part="columns")
    assert spent(path) == (0.25 + epsilon, 0.0)


def test_shares_are_drawn_anew_but_one_of_each_part_is_of_one_charge(path):
    budget = open_budget(path, secure_sum=True, max_epsilon=10.0)
    both = BothShared(0.5, 1e-5, **SHAPE, n_honest=4)
    for number in (1, 2):
        for part in both.parts:
            assert not answer(budget, both, part=part).repeated
            assert budget.spent()[0] == pytest.approx(number * both.epsilon(1e-5))


def test_a_pair_costs_its_zcdp_parameter_once_and_may_be_the_last_of_all(path):
    pair = GaussianCounts(0.5, 1e-6, **SHAPE, n_columns=3)
    for max_epsilon in (1.0, 0.5):
        folder = path / str(max_epsilon)
        policy = {"composition": "zcdp", "max_delta": 1e-6, "max_epsilon": max_epsilon}
        for part in pair.parts:
            answer(open_budget(folder, **policy), pair, part=part)
            ((rho,),) = query(folder, "SELECT rho FROM charge")
            assert rho == pair.zcdp_rho
            assert open_budget(folder, **policy).spent()[0] <= 0.5


@pytest.mark.parametrize(
    ("part", "rest"), [("columns", "counts"), ("counts", "columns")]
)
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_part_that_fails_or_is_killed_is_spent(part, rest, error, path):
    both = Both(0.25, **SHAPE)

    def fail():
        raise error

    with pytest.raises(error):
        open_budget(path).release(both, HERE.spec_fingerprint, fail, part=part)
    assert not answer(open_budget(path), both, part=rest).repeated
    assert spent(path) == (0.25, 0.0)
    assert not answer(open_budget(path), both, part=part).repeated
    assert spent(path) == (0.5, 0.0)
    assert answer(open_budget(path), both, part=rest).repeated


def test_a_policy_that_changes_holds_for_the_parts_that_are_left(path):
    both = Both(0.25, **SHAPE)
    answer(open_budget(path), both, part="columns")
    refused(
        "policy mechanisms",
        open_budget(path, mechanisms=["gaussian"]).release,
        both,
        HERE.spec_fingerprint,
        never,
    )
    assert not answer(open_budget(path, max_epsilon=0.25), both).repeated


def test_a_part_is_one_of_the_mechanism(path):
    with raises(ConfigError, field="part", got="columns"):
        open_budget(path).release(
            laplace(), HERE.spec_fingerprint, never, part="columns"
        )
    simulated = SimulatedRelease(Both(0.25, **SHAPE), 1)
    assert simulated.parts == ("columns", "counts")


# Ledgers of 0.8


ROUNDS = {
    "mechanism": "gaussian-rounds",
    "epsilon": 0.125,
    "delta": 1e-5,
    "n_rounds": 2,
    **SHAPE,
}


def entry_of_0_8(path, mechanism, terms, is_answered=True, **more):
    """An entry, whose counts are in the folder."""
    path.mkdir(parents=True, exist_ok=True)
    name = f"{hashlib.md5(terms.encode()).hexdigest()}.npz"
    file = io.BytesIO()
    np.savez_compressed(file, counts=mechanism.release(HERE).array)
    sha256 = ""
    if is_answered:
        (path / name).write_bytes(file.getvalue())
        sha256 = hashlib.sha256(file.getvalue()).hexdigest()
    request = {"mechanism": mechanism.to_dict(), "spec": HERE.spec_fingerprint}
    return {
        "request": request | {"terms": terms} | more,
        "epsilon": mechanism.epsilon(),
        "delta": 0.0,
        "rho": None,
        "closes": False,
        "file": name,
        "sha256": sha256,
    }


def marker_of_0_8(entries):
    head = digest_of(["basic", 0.0, None])
    for entry in entries:
        head = digest_of([head, entry])
    return json.dumps({"format": 2, "entries": len(entries), "head": head})


def write_0_8(path, entries, marked=None):
    """Write a ledger as 0.8 did, with the marker of the same or of other entries."""
    path.mkdir(parents=True, exist_ok=True)
    facts = {"composition": "basic", "delta": 0.0, "data_path": None}
    content = {"format": 2, **facts, "entries": entries}
    text = json.dumps({**content, "sha256": digest_of(content)})
    (path / "ledger.json").write_text(text)
    if marked is None:
        marked = entries
    marker_of(path).write_text(marker_of_0_8(marked))


def three_of_0_8(path):
    return [
        entry_of_0_8(path, laplace(0.25), "run 0"),
        entry_of_0_8(path, laplace(0.25), "run 1", is_answered=False),
        entry_of_0_8(path, laplace(0.125), "run 2", reading="other"),
    ]


def last_begun(entries):
    return [*entries[:-1], entries[-1] | {"sha256": ""}]


@pytest.mark.parametrize(
    "marked", [list, last_begun, lambda entries: entries[:-1]], ids=["same", "b", "c"]
)
def test_a_ledger_of_0_8_goes_on(path, marked):
    entries = three_of_0_8(path)
    write_0_8(path, entries, marked(entries))
    with np.load(path / entries[0]["file"]) as file:
        counts = tuple(file["counts"].flat)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    for _ in range(2):
        assert spent(path) == (0.625, 0.0)
        assert ask(path, 0.25, terms="run 0") == Answer(counts, True)
    assert path.is_file()
    left = path.with_name("state.before")
    assert {file.name: file.read_bytes() for file in left.iterdir()} == before
    assert not ask(path, 0.25, terms="run 1").repeated
    again = Budget(path, Policy(1.0), reading="other")
    assert answer(again, laplace(0.125), terms="run 2").repeated
    assert not ask(path, 0.125, terms="run 2").repeated
    assert spent(path) == (1.0, 0.0)
    # An older copy of the marker brings nothing back.
    marker_of(path).write_text(marker_of_0_8(entries))
    refused("ledger", spent, path, got="altered")


def test_a_ledger_of_0_8_without_releases_goes_on(path):
    write_0_8(path, [])
    assert spent(path) == (0.0, 0.0)
    assert not ask(path).repeated
    assert ask(path).repeated


def shorter(path, entries):
    write_0_8(path, entries[:-1], entries)


def two_steps_ahead(path, entries):
    write_0_8(path, entries, entries[:-2])


def spent_less(path, entries):
    write_0_8(path, [entries[0] | {"epsilon": 0.0}, *entries[1:]], entries)


def digest_of_others(path, entries):
    write_0_8(path, entries)
    text = (path / "ledger.json").read_text()
    (path / "ledger.json").write_text(text.replace("run 0", "run 7"))


def forged_amount(path, entries):
    write_0_8(path, [entries[0] | {"epsilon": -1.0}])


def no_json(path, entries):
    write_0_8(path, entries)
    (path / "ledger.json").write_text("[7]")


def new_marker(path, entries):
    write_0_8(path, entries)
    marker_of(path).write_text("7 7 7")


@pytest.mark.parametrize(
    "fault",
    [
        shorter,
        two_steps_ahead,
        spent_less,
        digest_of_others,
        forged_amount,
        no_json,
        new_marker,
    ],
)
def test_an_altered_ledger_of_0_8_means_refusal_until_it_is_reset(path, fault):
    fault(path, three_of_0_8(path))
    for _ in range(2):
        refused("ledger", spent, path, got="altered")
    assert path.is_dir()
    open_budget(path).reset()
    assert path.with_name("state.before").is_dir()
    assert spent(path) == (0.0, 0.0)
    assert not ask(path).repeated


@pytest.mark.parametrize("lost", ["state.exists", "state/ledger.json"])
def test_a_lost_ledger_of_0_8_means_refusal(path, lost):
    write_0_8(path, three_of_0_8(path))
    (path.parent / lost).unlink()
    refused("ledger", spent, path, got="lost")


def test_a_release_of_0_8_that_is_lost_is_not_made_again(path):
    entries = three_of_0_8(path)
    write_0_8(path, entries)
    (path / entries[0]["file"]).unlink()
    refused("ledger", ask, path, 0.25, terms="run 0", got="release")
    assert spent(path) == (0.625, 0.0)


def test_a_folder_that_was_kept_before_is_not_replaced(path):
    write_0_8(path, three_of_0_8(path))
    kept = path.with_name("state.before")
    kept.mkdir()
    (kept / "ledger.json").write_text("")
    refused("ledger", spent, path, got="not written")
    assert path.is_dir()
    shutil.rmtree(kept)
    assert spent(path) == (0.625, 0.0)


# One data file


def test_a_ledger_serves_one_data_file(path, tmp_path):
    data = tmp_path / "data.csv"
    other = tmp_path / "other.csv"
    (tmp_path / "link.csv").symlink_to(data)
    first = answer(Budget(path, Policy(1.0), data), laplace())
    assert (
        answer(Budget(path, Policy(1.0), str(tmp_path / "link.csv")), laplace()).counts
        == first.counts
    )
    for wrong in (other, None):
        budget = Budget(path, Policy(1.0), wrong)
        for function in (partial(budget.release, measure=never), budget.recall):
            error = refused(
                "ledger",
                function,
                laplace(),
                HERE.spec_fingerprint,
                got="another data file",
            )
            assert str(tmp_path) not in str(error)
            assert str(data) in error.__notes__[0]
    assert Budget(path, Policy(1.0)).spent() == (0.5, 0.0)  # for the party's own eyes
    Budget(path, Policy(1.0), other).reset()
    answer(Budget(path, Policy(1.0), other), laplace(), LATER)


def test_a_ledger_without_a_data_file_stays_so(path, tmp_path):
    ask(path, 0.25)
    answer(Budget(path, Policy(1.0), tmp_path / "data.csv"), laplace(0.5))
    assert query(path, "SELECT data_path FROM ledger") == [(None,)]


@pytest.mark.parametrize(
    "epsilon", [0.001, pytest.param(0.006, marks=pytest.mark.slow)]
)
def test_no_request_takes_minutes_to_account_for(epsilon):
    start = time.process_time()
    mechanism = GaussianCounts(epsilon, 1e-12, hash_nnz=1, n_classes=2)
    assert 0.99 * epsilon < mechanism.epsilon(1e-12) <= epsilon
    assert time.process_time() - start < 20  # a second or two on an idle machine


# Policies that become stricter


@pytest.mark.parametrize(
    "stricter", [{"neighbours": "replace-one"}, {"records_per_person": 2}]
)
def test_a_policy_that_becomes_stricter_releases_nothing_until_the_ledger_is_reset(
    path, stricter
):
    strong = laplace(0.25, neighbours="replace-one", records_per_person=2)
    ask(path, 0.25)
    budget = open_budget(path, **stricter)
    for asked in (strong, laplace(0.25)):
        refused("ledger", answer, budget, asked, got="weaker")
    refused("ledger", budget.recall, laplace(0.25), HERE.spec_fingerprint, got="weaker")
    budget.reset()
    answer(budget, strong)
    assert not ask(path, 0.25).repeated  # a weaker policy takes what is there


# Accounts


ZCDP = {"max_delta": 1e-5, "composition": "zcdp"}
WHOLE = GaussianCounts(1.0, 1e-5, **SHAPE)


def test_one_release_of_all_the_policy_allows_is_admitted_and_the_last(path, capsys):
    assert accounting.zcdp_epsilon(WHOLE.zcdp_rho, 1e-5) > 1.0
    first = answer(open_budget(path, **ZCDP), WHOLE)
    epsilon = WHOLE.epsilon(1e-5)
    assert open_budget(path, **ZCDP).spent() == (epsilon, 1e-5)
    for max_epsilon in (1.0, 10.0):  # closed for good
        refused(
            "policy max-epsilon",
            answer,
            open_budget(path, **ZCDP, max_epsilon=max_epsilon),
            laplace(0.001),
        )
    assert answer(open_budget(path, **ZCDP), WHOLE).counts == first.counts
    assert query(path, "SELECT closes FROM charge") == [(1,)]
    facts = f"charges 1, closed, epsilon {shown_bound(epsilon, 6)}, delta 1e-05 spent"
    assert shown(path, capsys)[1] == f"composition zcdp, {facts}"


@pytest.mark.parametrize(
    ("mine", "other", "epsilon", "delta"),
    [
        ("zcdp", "basic", accounting.zcdp_epsilon(laplace(0.1).zcdp_rho, 1e-4), 1e-4),
        ("basic", "zcdp", 0.1, 0.0),
    ],
    ids=["zcdp", "basic"],
)
def test_a_ledger_keeps_to_its_composition(mine, other, epsilon, delta, path, capsys):
    noise = laplace(0.1)
    answer(open_budget(path, composition=mine), noise)
    budget = open_budget(path, composition=other)
    refused("policy composition", answer, budget, noise)
    refused(
        "policy composition", budget.recall, noise, HERE.spec_fingerprint, got=other
    )
    # The costs are told by the ledger's own composition.
    assert budget.spent() == (epsilon, delta)
    costs = f"epsilon {shown_bound(epsilon, 6)}, delta {shown_bound(delta, 6)} spent"
    assert shown(path, capsys)[1] == f"composition {mine}, charges 1, {costs}"
    budget.reset()
    answer(budget, noise)


# The lock


def in_a_thread(function, *args):
    """Result of the function in another thread: one does not wait for its own lock."""
    with ThreadPoolExecutor() as threads:
        return threads.submit(function, *args).result()


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_process_that_does_not_wait_for_the_lock_is_refused(path, is_begun):
    """Its lock was replaced, so that only the database itself keeps it out."""
    if is_begun:
        ask(path, 0.25, terms="before")
    lock = path.with_name(path.name + ".lock")

    def measure():
        lock.unlink()
        for function in (spent, ask):
            refused("ledger", in_a_thread, function, path, got="not read")
        return HERE.array

    released = open_budget(path).release(laplace(), HERE.spec_fingerprint, measure)
    assert not released.repeated
    assert ask(path).repeated
    assert all(written(path))


def test_a_ledger_that_another_process_made_meanwhile_stays_as_it_is(path):
    lock = path.with_name(path.name + ".lock")

    def prepare():
        lock.unlink()
        in_a_thread(ask, path, 0.25)

    refused(
        "ledger",
        open_budget(path).release,
        laplace(),
        HERE.spec_fingerprint,
        never,
        prepare=prepare,
        got="lock",
    )
    assert spent(path) == (0.25, 0.0)
    assert ask(path, 0.25).repeated
