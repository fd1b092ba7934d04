"""The ledger: nothing is spent twice, and faults mean refusal.

Nothing is released that is not recorded.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from flwr_flynn import ClassCounts
from flwr_flynn.errors import ConfigError, CountsError, DataError, PrivacyError
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
from flwr_flynn.privacy import ledger as budget
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.privacy.ledger_files import LedgerFile
from tests.raising import raises

SHAPE: dict[str, Any] = {"hash_nnz": 2, "n_classes": 2}
HERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
LATER = ClassCounts([[2, 2, 0], [0, 2, 2]], hash_nnz=2, spec_fingerprint=64 * "0")
ELSEWHERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "1")


def marker_of(path):
    return path.with_name(path.name + ".exists")


def entries_of(path):
    return json.loads((path / "ledger.json").read_text())["entries"]


def laplace(epsilon=0.5, **kwargs):
    return LaplaceCounts(epsilon, **SHAPE, **kwargs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "party" / "state"


def open_budget(path, **policy):
    return Budget(path, Policy(**{"max_epsilon": 1.0, "max_delta": 1e-4} | policy))


def answer(budget, mechanism, counts=HERE, **more):
    return budget.release(mechanism, counts.spec_fingerprint, lambda: counts, **more)


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
    assert len({release.sha256() for release in (first, *others)}) == 4
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
        assert (again.counts, again.repeated) == (first.counts, True)
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
    (path / "ledger.json").unlink()


def altered(path, change):
    """Another content of the ledger's file."""
    content = json.loads((path / "ledger.json").read_text())
    change(content)
    (path / "ledger.json").write_text(json.dumps(content))


def forge(path, change):
    """Entries with the digests that fit them: no entry is taken for more than it is."""
    content = json.loads((path / "ledger.json").read_text())
    content["entries"] = change(content["entries"])
    del content["sha256"]
    content["sha256"] = ledger_files.digest_of(content)
    (path / "ledger.json").write_text(json.dumps(content))
    with suppress(TypeError, KeyError):
        ledger = LedgerFile(
            content["composition"],
            content["delta"],
            content["data_path"],
            content["entries"],
        )
        marker_of(path).write_bytes(ledger.marker())


def lose_marker(path):
    marker_of(path).unlink()


def lose_all_but_the_folder(path):
    shutil.rmtree(path)
    path.mkdir()


def lose_all_but_a_folder_from_before(path):
    shutil.rmtree(path)
    marker_of(path).unlink()
    path.mkdir()


def swap(path):
    """Another ledger of the same request: other noise, another head."""
    ask(path.with_name("other"))
    put_back(path, path.with_name("other"))


def forget_spending(path):
    altered(path, lambda content: content["entries"][0].update(epsilon=0.0))


def empty(path):
    (path / "ledger.json").write_text('{"format": 1, "sha256": "", "entries": []}')


def empty_and_sound(path):
    (path / "ledger.json").write_bytes(LedgerFile().to_bytes())


def truncate(path):
    file = path / "ledger.json"
    file.write_bytes(file.read_bytes()[:-1])


def forge_entries(path, entries):
    forge(path, lambda _: entries)


def forge_fields(path, fields):
    forge(path, lambda entries: [entries[0] | fields])


def forge_marker(path, content):
    marker_of(path).write_bytes(content)


LOSSES = [
    lose,
    shutil.rmtree,
    lose_marker,
    lose_all_but_the_folder,
    lose_all_but_a_folder_from_before,
]
ALTERATIONS = {
    fault.__name__: fault
    for fault in (swap, forget_spending, empty, empty_and_sound, truncate)
}
for entries in (7, {"0": {}}, [7], [{}]):
    ALTERATIONS[f"entries {entries}"] = partial(forge_entries, entries=entries)
for fields in (
    {"epsilon": -1.0},
    {"epsilon": math.nan},
    {"epsilon": 10**400},
    {"delta": "0"},
    {"rho": 0.5},
    {"closes": 0},
    {"closes": True},
    {"request": {}},
    {"more": ""},
    {"file": "../ledger.json"},
):
    ALTERATIONS[f"{fields}"[:40]] = partial(forge_fields, fields=fields)
for content in (
    b"",
    b"7",
    b"[]",
    b"{",
    b"{}",
    b'{"format": 2, "entries": 1, "head": ""}',
    b'{"format": 2, "entries": 1.0, "head": ""}',
    b'{"format": 2, "entries": -1, "head": ""}',
):
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
    assert f"python -m flwr_flynn.privacy.ledger reset {path}" in error.__notes__[0]
    open_budget(path).reset()
    assert spent(path) == (0.0, 0.0)
    assert not ask(path).repeated


def test_a_lost_altered_or_forged_release_is_neither_sent_nor_made_again(path):
    released = ask(path)
    (file,) = path.glob("*.npz")
    whole = file.read_bytes()
    other = io.BytesIO()
    np.savez(other, counts=HERE.array)
    for content in (whole[:-1], other.getvalue(), b"", b"PK\x03\x04", whole[:-30]):
        file.write_bytes(content)
        refused("ledger", ask, path, got="release")
        assert spent(path) == (0.5, 0.0)
    # The ledger vouches for these, and no parser reads them.
    for content in (b"", b"PK\x03\x04", whole[:-30]):
        file.write_bytes(content)
        forge(
            path,
            lambda entries, raw=content: [
                entries[0] | {"sha256": hashlib.sha256(raw).hexdigest()}
            ],
        )
        refused("ledger", ask, path, got="release")
    file.unlink()
    refused("ledger", ask, path, got="release")
    assert released.counts.noise


def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_cannot_be_recorded_is_not_released(path, monkeypatch):
    ask(path, 0.25)
    monkeypatch.setattr(os, "fsync", full)
    refused("ledger", ask, path, got="not written")
    (path.parent / "file").write_text("")
    refused("ledger", spent, path.parent / "file" / "state", got="not opened")


# Processes


def ask_one_of_five(path, place, queue):
    try:
        queue.put(
            (place % 5, ask(path, 0.25, terms=f"run {place % 5}").counts.sha256())
        )
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
    ask(path)
    files = [
        *path.iterdir(),
        path.with_name("state.exists"),
        path.with_name("state.lock"),
    ]
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_new_folders_are_on_the_disk_before_a_ledger_counts_on_them(
    tmp_path, monkeypatch
):
    """Otherwise the ledger and the marker that there was one would vanish together."""
    settled = []
    settle = ledger_files.settle

    def noting(folder):
        settled.append(folder)
        settle(folder)

    monkeypatch.setattr(ledger_files, "settle", noting)
    ask(tmp_path / "new" / "newer" / "state")
    assert settled[:2] == [tmp_path, tmp_path / "new"]
    assert tmp_path / "new" / "newer" in settled


REQUESTED = "ledger with the request"
RELEASED = "release"
ANSWERED = "ledger with the release"
LATER_RELEASE = [
    REQUESTED,
    "marker with the request",
    RELEASED,
    ANSWERED,
    "marker with the release",
]
FIRST_RELEASE = ["marker of a new ledger", "new ledger", *LATER_RELEASE]
"""The files that a release puts in their places, in this order."""

KILLED = pytest.mark.parametrize("when", ["before", "after"])


def die_at(path, step, when):
    """Release, and be killed before or after the step-th file is put in its place."""
    steps = []
    replace = os.replace

    def replace_and_die(source, target):
        steps.append(target)
        if len(steps) == step and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if len(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_and_die
    ask(path, 0.25, terms="more")
    os._exit(0)


def done_by_a_killed_process(path, steps, last, when):
    """The steps of a release of which a process is killed before or after the last."""
    index = steps.index(last)
    process = multiprocessing.get_context("fork").Process(
        target=die_at, args=(path, index + 1, when)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if when == "before":
        return steps[:index]
    return steps[: index + 1]


def assert_counted(path, done, n_earlier):
    """Requests are charged once they are recorded, and answers cost nothing again."""
    n_entries = n_earlier
    if REQUESTED in done:
        n_entries += 1
    n_releases = n_earlier
    if RELEASED in done:
        n_releases += 1
    assert spent(path) == (0.25 * n_entries, 0.0)
    if path.exists():
        names = {file.name for file in path.iterdir()}
        assert names - {"ledger.json"} <= {entry["file"] for entry in entries_of(path)}
        assert len(names) == 1 + n_releases
        assert json.loads(marker_of(path).read_text())["entries"] == n_entries
        assert len(entries_of(path)) == n_entries
    is_answered = ANSWERED in done
    assert ask(path, 0.25, terms="more").repeated == is_answered
    if not is_answered:
        n_entries += 1
    assert spent(path) == (0.25 * n_entries, 0.0)


@KILLED
@pytest.mark.parametrize("last", FIRST_RELEASE)
def test_a_process_killed_at_any_step_of_a_first_release_leaves_a_ledger_that_counts(
    path, last, when
):
    done = done_by_a_killed_process(path, FIRST_RELEASE, last, when)
    if done == FIRST_RELEASE[:1]:
        # There was a ledger, or might have been.
        refused("ledger", spent, path, got="lost")
    else:
        assert_counted(path, done, n_earlier=0)


@KILLED
@pytest.mark.parametrize("last", LATER_RELEASE)
def test_a_process_killed_at_any_step_of_a_later_release_leaves_a_ledger_that_counts(
    path, last, when
):
    earlier = ask(path, 0.25)
    done = done_by_a_killed_process(path, LATER_RELEASE, last, when)
    assert_counted(path, done, n_earlier=1)
    assert ask(path, 0.25).counts == earlier.counts


# By hand


def test_a_reset_removes_a_ledger_and_nothing_else(path, capsys):
    ask(path)
    (path / "notes.txt").write_text("mine")
    before = sorted(path.iterdir())
    for wrong in (path, path.parent, path / "notes.txt"):
        assert budget.main(["reset", str(wrong)]) == 1
        assert capsys.readouterr().err.startswith(f"ledger {wrong.name}: ")
    assert sorted(path.iterdir()) == before
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "state",
        "state.exists",
        "state.lock",
    ]
    assert not list(path.parent.parent.glob("*.lock"))
    (path / "notes.txt").unlink()
    for left_by_a_killed_process in (
        path / ".ledger.json.partial",
        path.with_name(".state.exists.partial"),
    ):
        left_by_a_killed_process.touch()
    assert budget.main(["reset", str(path)]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["state.lock"]


def shown(path, capsys):
    """The words of the command about a ledger."""
    assert budget.main(["show", str(path)]) == 0
    return capsys.readouterr().out.removeprefix(f"{path}: ").removesuffix("\n")


def test_a_party_shows_and_resets_its_ledger_by_hand(path, capsys):
    assert budget.main(["show", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    assert not path.parent.exists()
    ask(path)
    assert (
        shown(path, capsys)
        == "composition basic, releases 1, epsilon 0.5, delta 0 spent"
    )
    lose(path)
    assert budget.main(["show", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"reset {path}")
    assert budget.main(["reset", str(path)]) == 0
    assert (open_budget(path).is_begun, spent(path)) == (False, (0.0, 0.0))
    assert budget.main(["forget", str(path)]) == budget.main([]) == 2


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
    assert [file.name for file in path.iterdir()] == ["ledger.json"]
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


@pytest.mark.parametrize("step", range(1, 6))
def test_a_ledger_is_made_whole_or_not_at_all_on_a_full_disk(path, step, monkeypatch):
    """0.8 left a marker without a ledger, which counted as lost."""
    steps = []
    fsync = os.fsync

    def full_at_the_step(descriptor):
        steps.append(descriptor)
        if len(steps) == step:
            full(descriptor)
        fsync(descriptor)

    path.parent.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_at_the_step)
        with suppress(PrivacyError):
            ask(path, 0.25)
    assert spent(path)[0] in (0.0, 0.25)
    assert ask(path, 0.25, terms="more").counts.noise


def test_counts_that_do_not_fit_are_not_released(path):
    noisy = laplace().release(HERE)
    for wrong in (
        ELSEWHERE,
        noisy,
        ClassCounts([[2, 2, 0]], hash_nnz=2, spec_fingerprint=64 * "0"),
    ):
        with pytest.raises(CountsError):
            open_budget(path).release(
                laplace(0.25), HERE.spec_fingerprint, lambda wrong=wrong: wrong
            )
    assert [entry["sha256"] for entry in entries_of(path)] == ["", "", ""]


def test_nothing_on_the_disk_depends_on_the_counts_but_the_release(tmp_path):
    """No digest of exact counts or of data: with the noise the same, so is all else."""
    texts = []
    for place, counts in enumerate((HERE, LATER)):
        ask(tmp_path / str(place), counts=counts)
        (entry,) = entries_of(tmp_path / str(place))
        del entry["file"], entry["sha256"]  # of the release, which may leave
        texts.append(json.dumps(entry))
    assert texts[0] == texts[1]
    assert "data" not in entry


def test_a_share_is_not_sent_again_to_be_taken_out(path):
    """Two sums, with it and without it, would leave the others with too little noise."""
    budget = open_budget(path, secure_sum=True)
    answer(budget, SHARE)
    refused("share", budget.recall, SHARE, HERE.spec_fingerprint)
    whole = answer(budget, laplace(0.25))
    assert budget.recall(laplace(0.25), HERE.spec_fingerprint) == whole.counts
    refused("request", budget.recall, laplace(0.125), HERE.spec_fingerprint)


# Older copies


@pytest.fixture
def copies(path, tmp_path):
    """Folder and marker as they were after each of three releases, which made a ledger."""
    copies = []
    for run in range(3):
        ask(path, 0.125, terms=f"run {run}")
        folder = tmp_path / f"folder {run}"
        shutil.copytree(path, folder)
        copies.append((folder, marker_of(path).read_bytes()))
    return copies


def put_back(path, folder):
    shutil.rmtree(path)
    shutil.copytree(folder, path)


def test_an_older_copy_of_the_folder_is_noticed(path, copies):
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for folder, _ in copies[:2]:
        put_back(path, folder)
        refused("ledger", ask, path, 0.125, terms="run 0", got="altered")
        refused("ledger", spent, path, got="altered")
    put_back(path, copies[2][0])
    assert spent(path) == (0.375, 0.0)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files


def test_a_ledger_with_a_release_by_a_mechanism_of_0_8_shows_what_was_spent_and_releases_nothing(
    path,
):
    ask(path, 0.125)
    rounds = {
        "mechanism": "gaussian-rounds",
        "epsilon": 0.125,
        "delta": 1e-5,
        "n_rounds": 2,
        **SHAPE,
    }
    forge(
        path,
        lambda entries: [
            entries[0] | {"request": entries[0]["request"] | {"mechanism": rounds}}
        ],
    )
    refused("ledger", ask, path, 0.25, got="mechanism")
    assert spent(path) == (0.125, 0.0)


def test_a_ledger_may_be_one_entry_ahead_of_its_marker_and_no_more(path, copies):
    marker_of(path).write_bytes(copies[1][1])  # as if a process had died
    assert spent(path) == (0.375, 0.0)
    assert marker_of(path).read_bytes() == copies[2][1]
    marker_of(path).write_bytes(copies[0][1])
    refused("ledger", spent, path, got="altered")
    # Folder and marker put back together are not noticed, as the module says.
    put_back(path, copies[0][0])
    assert spent(path) == (0.125, 0.0)


def test_what_a_killed_process_left_is_removed(path):
    ask(path)
    stale = [
        path / ".ledger.json.partial",
        path / f"{32 * 'b'}.npz",
        path / f".{32 * 'b'}.npz.partial",
    ]
    others = [path / "notes.txt", path.parent / ".ledger.json.partial"]
    for file in [*stale, *others]:
        file.write_text("")
    assert spent(path) == (0.5, 0.0)
    assert not any(file.exists() for file in stale)
    assert all(file.exists() for file in others)
    assert ask(path).repeated


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
        for function in (partial(budget.release, count=never), budget.recall):
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
    assert json.loads((path / "ledger.json").read_text())["data_path"] is None


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
    assert entries_of(path)[0]["closes"] is True
    facts = f"releases 1, closed, epsilon {shown_bound(epsilon, 6)}, delta 1e-05 spent"
    assert shown(path, capsys) == f"composition zcdp, {facts}"


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
    assert shown(path, capsys) == f"composition {mine}, releases 1, {costs}"
    budget.reset()
    answer(budget, noise)


# The lock


def test_a_lock_that_was_replaced_is_noticed_before_the_ledger_is_written(path):
    ask(path, 0.25)
    lock = path.with_name(path.name + ".lock")
    release = open_budget(path).release

    def replaced():
        lock.unlink()
        lock.touch()
        return HERE

    refused(
        "ledger", release, laplace(0.5), HERE.spec_fingerprint, replaced, got="lock"
    )

    def gone():
        lock.unlink()
        return HERE

    lock.unlink()
    refused(
        "ledger",
        release,
        laplace(0.25),
        HERE.spec_fingerprint,
        gone,
        terms="more",
        got="not written",
    )
    assert [bool(entry["sha256"]) for entry in entries_of(path)] == [True, False, False]
    assert spent(path) == (1.0, 0.0)
