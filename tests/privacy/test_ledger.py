"""The ledger: nothing is spent twice by mistake, nothing is released that is not recorded, and faults mean refusal."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import stat
import time
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from flwr_flynn import ClassCounts
from flwr_flynn.errors import ConfigError, CountsError, DataError, MissingExtraError, PrivacyError
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts, SimulatedRelease, ledger_files, mechanism, release_policy
from flwr_flynn.privacy import ledger as budget
from flwr_flynn.privacy.ledger import Budget, Policy
from flwr_flynn.privacy.ledger_files import LedgerFile
from tests.raising import raises

SHAPE = {"hash_nnz": 2, "n_classes": 2}
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


def answer(budget, mechanism, counts, **more):
    return budget.release(mechanism, counts.spec_fingerprint, lambda: counts, **more)


def test_the_same_request_gets_the_same_answer_and_spends_nothing(path):
    first = answer(open_budget(path), laplace(), HERE, terms="run")
    again = answer(open_budget(path), laplace(), HERE, terms="run")
    assert again.counts == first.counts
    assert (first.repeated, again.repeated) == (False, True)
    later = answer(open_budget(path), laplace(), LATER, terms="run")
    assert later.counts == first.counts
    assert later.repeated
    assert open_budget(path).spent() == (0.5, 0.0)


def test_different_requests_add_up_to_the_policy(path):
    budget = open_budget(path)
    releases = [
        answer(budget, laplace(0.25), HERE).counts,
        answer(budget, laplace(0.25), HERE, terms="another run").counts,
        answer(budget, laplace(0.25), ELSEWHERE).counts,
        answer(budget, laplace(0.125), HERE).counts,
    ]
    assert len({release.sha256() for release in releases}) == 4
    assert budget.spent() == (0.875, 0.0)
    with raises(PrivacyError, field="policy max-epsilon"):
        answer(budget, laplace(0.25), HERE, terms="a third run")
    assert budget.spent() == (0.875, 0.0)
    answer(budget, laplace(0.125), HERE, terms="what is left")
    assert answer(budget, laplace(0.25), HERE).counts == releases[0]


def test_pure_and_approximate_releases_add_up_and_so_do_their_deltas(path):
    budget = open_budget(path, max_epsilon=1.5, max_delta=1.5e-5)
    gaussian = GaussianCounts(1.0, 1e-5, **SHAPE)
    answer(budget, gaussian, HERE)
    answer(budget, laplace(0.5), HERE)
    assert budget.spent() == (gaussian.epsilon(1e-5) + 0.5, 1e-5)
    with raises(PrivacyError, field="policy max-delta"):
        answer(open_budget(path, max_epsilon=10.0, max_delta=1.5e-5), gaussian, HERE, terms="more")
    for little in (laplace(0.001), GaussianCounts(0.001, 1e-12, **SHAPE)):
        with raises(PrivacyError, field="policy max-epsilon") as caught:
            answer(budget, little, HERE)
        assert not re.search("[0-9]", str(caught.value))  # neither what is spent nor what is left
        assert "1.501" in caught.value.__notes__[0]


def never():
    raise AssertionError("data were touched")


SHARE = GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4)
TOO_MUCH = [  # policy, mechanism, field, expected, got
    ({"mechanisms": ["gaussian"]}, laplace(), "policy mechanisms", "gaussian", "laplace"),
    ({}, SimulatedRelease(laplace(), 1), "policy mechanisms", "gaussian, laplace, top-t", "simulated"),
    ({"neighbours": "replace-one"}, laplace(), "policy neighbours", "replace-one", "add-remove"),
    ({"records_per_person": 3}, laplace(records_per_person=2), "policy records-per-person", "3", "2"),
    ({}, SHARE, "policy secure-sum", None, "off"),
    ({"max_epsilon": 0}, laplace(), "policy max-epsilon", None, None),
    ({}, laplace(2.0), "policy max-epsilon", None, None),
    ({}, GaussianCounts(2.0, 1e-5, **SHAPE), "policy max-epsilon", None, None),
    ({}, GaussianCounts(0.25, 1e-3, **SHAPE), "policy max-delta", None, None),
]
TOO_MUCH_AFTER_ONE = [  # of epsilon .5
    ({}, laplace(0.75), "policy max-epsilon", None, None),
    ({}, GaussianCounts(0.6, 1e-5, **SHAPE), "policy max-epsilon", None, None),
    ({"composition": "zcdp"}, laplace(), "policy composition", "basic", "zcdp"),
    *TOO_MUCH[:1],
    *TOO_MUCH[4:],
]


@pytest.mark.parametrize(
    ("begun", "case"),
    [*((False, case) for case in TOO_MUCH), *((True, case) for case in TOO_MUCH_AFTER_ONE)],
    ids=lambda value: str(value[2]) if isinstance(value, tuple) else str(value),
)
def test_what_the_policy_does_not_allow_is_refused_by_the_request_alone(path, begun, case, monkeypatch):
    """Before data are touched, before any accounting, and without a ledger."""
    policy, mechanism, field, expected, got = case
    if begun:
        answer(open_budget(path), laplace(), HERE, terms="earlier")

    def accounting(self):
        raise AssertionError("sigma was looked for")

    monkeypatch.setattr(GaussianCounts, "sigma", property(accounting))
    with raises(PrivacyError, field=field, expected=expected, got=got):
        open_budget(path, **policy).release(mechanism, HERE.spec_fingerprint, never)
    assert open_budget(path).is_begun == begun
    assert open_budget(path).spent() == ((0.5, 0.0) if begun else (0.0, 0.0))


def test_a_ledger_that_is_full_gives_earlier_answers_alone(path, monkeypatch):
    first = answer(open_budget(path), laplace(0.25), HERE)
    monkeypatch.setattr(release_policy, "MOST_RELEASES", 1)
    with raises(PrivacyError, field="ledger", expected="at most 1 releases"):
        open_budget(path).release(laplace(0.25), HERE.spec_fingerprint, never, terms="another")
    assert open_budget(path).release(laplace(0.25), HERE.spec_fingerprint, never).counts == first.counts


def test_an_answer_that_is_there_needs_no_data_and_no_room(path):
    first = answer(open_budget(path), laplace(), HERE)
    for policy in ({}, {"mechanisms": ["gaussian"], "max_epsilon": 0.1}):
        again = open_budget(path, **policy).release(laplace(), HERE.spec_fingerprint, never)
        assert (again.counts == first.counts, again.repeated) == (True, True)
    huge = LaplaceCounts(0.001, hash_nnz=2**31 - 1, n_classes=1, records_per_person=10**6)
    with raises(ConfigError, field="epsilon"):
        open_budget(path).release(huge, HERE.spec_fingerprint, never)
    lose(path)
    with raises(PrivacyError, field="ledger", got="lost"):
        open_budget(path).release(laplace(), HERE.spec_fingerprint, never)


def test_what_the_policy_allows(path):
    policy = {"mechanisms": ["simulated", "gaussian"], "secure_sum": True, "neighbours": "add-remove"}
    budget = open_budget(path, **policy)
    answer(budget, SimulatedRelease(laplace(0.25, neighbours="replace-one"), 1), HERE)
    answer(budget, GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4), HERE)
    assert budget.spent()[0] == pytest.approx(0.75, rel=1e-2)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_epsilon": -1},
        {"max_epsilon": math.nan},
        {"max_epsilon": math.inf},
        {"max_epsilon": "1"},
        {"max_delta": True},
        {"mechanisms": "gaussian"},
        {"mechanisms": ["best"]},
        {"neighbours": "all"},
        {"records_per_person": 0},
        {"secure_sum": "no"},
        {"composition": "best"},
        {"max_delta": 0.0, "composition": "zcdp"},
        {"max_delta": 1.0, "composition": "zcdp"},
    ],
)
def test_policies_are_checked(bad):
    with raises(ConfigError, field=next(iter(bad))):
        Policy(**{"max_epsilon": 1.0} | bad)


def lose(path):
    (path / "ledger.json").unlink()


def lose_all(path):
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def forget_spending(path):
    ledger = json.loads((path / "ledger.json").read_text())
    ledger["entries"][0]["epsilon"] = 0.0
    (path / "ledger.json").write_text(json.dumps(ledger))


def empty(path):
    (path / "ledger.json").write_text('{"format": 1, "sha256": "", "entries": []}')


def forge(change):
    """A fault that comes with the digests that fit it: no entry is taken for more than it is."""

    def fault(path):
        content = json.loads((path / "ledger.json").read_text())
        content["entries"] = change(content["entries"])
        del content["sha256"]
        content["sha256"] = ledger_files.digest_of(content)
        (path / "ledger.json").write_text(json.dumps(content))
        with suppress(TypeError, KeyError):
            ledger = LedgerFile(content["composition"], content["delta"], content["data_path"], content["entries"])
            marker_of(path).write_bytes(ledger.marker())

    return fault


FORGED = [
    forge(lambda entries: 7),
    forge(lambda entries: {"0": entries[0]}),
    forge(lambda entries: [7]),
    forge(lambda entries: [{}]),
    forge(lambda entries: [entries[0] | {"epsilon": -1.0}]),
    forge(lambda entries: [entries[0] | {"epsilon": math.nan}]),
    forge(lambda entries: [entries[0] | {"epsilon": 10**400}]),
    forge(lambda entries: [entries[0] | {"delta": "0"}]),
    forge(lambda entries: [entries[0] | {"rho": 0.5}]),
    forge(lambda entries: [entries[0] | {"closes": 1}]),
    forge(lambda entries: [entries[0] | {"closes": True}]),
    forge(lambda entries: [entries[0] | {"request": {}}]),
    forge(lambda entries: [entries[0] | {"more": ""}]),
    forge(lambda entries: [entries[0] | {"file": "../ledger.json"}]),
]


def truncate(path):
    raw = (path / "ledger.json").read_bytes()
    (path / "ledger.json").write_bytes(raw[:-1])


def lose_marker(path):
    marker_of(path).unlink()


def spoil_marker(content):
    def fault(path):
        marker_of(path).write_bytes(content)

    return fault


MARKERS = [
    spoil_marker(content)
    for content in (
        b"",
        b"7",
        b"[]",
        b"{",
        b"{}",
        b'{"format": 2, "entries": 1, "head": ""}',
        b'{"format": 2, "entries": 1.0, "head": ""}',
        b'{"format": 2, "entries": -1, "head": ""}',
    )
]


LOST = (lose, lose_all, lose_marker)


@pytest.mark.parametrize("fault", [lose, lose_all, forget_spending, empty, truncate, lose_marker, *FORGED, *MARKERS])
def test_a_lost_or_altered_ledger_means_refusal_until_it_is_reset(path, fault):
    answer(open_budget(path), laplace(), HERE)
    fault(path)
    for _ in range(2):
        with raises(PrivacyError, field="ledger", got="lost" if fault in LOST else "altered"):
            answer(open_budget(path), laplace(), HERE)
        with pytest.raises(PrivacyError) as caught:
            open_budget(path).spent()
    assert str(path.parent) not in str(caught.value)
    assert f"python -m flwr_flynn.privacy.ledger reset {path}" in caught.value.__notes__[0]
    open_budget(path).reset()
    assert open_budget(path).spent() == (0.0, 0.0)
    assert not answer(open_budget(path), laplace(), HERE).repeated


def test_a_forged_release_is_not_sent(path):
    """One that the ledger vouches for and no parser reads."""
    answer(open_budget(path), laplace(), HERE)
    (file,) = path.glob("*.npz")
    for content in (b"", b"PK\x03\x04", file.read_bytes()[:-30]):
        file.write_bytes(content)
        forge(lambda entries, raw=content: [entries[0] | {"sha256": hashlib.sha256(raw).hexdigest()}])(path)
        with raises(PrivacyError, field="ledger", got="release"):
            answer(open_budget(path), laplace(), HERE)


@pytest.mark.parametrize("fault", ["lost", "altered", "another"])
def test_a_lost_or_altered_release_is_not_made_again(path, fault):
    released = answer(open_budget(path), laplace(), HERE)
    (file,) = path.glob("*.npz")
    if fault == "lost":
        file.unlink()
    elif fault == "altered":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        np.savez(file, counts=HERE.array)
    with raises(PrivacyError, field="ledger", got="release"):
        answer(open_budget(path), laplace(), HERE)
    assert open_budget(path).spent() == (0.5, 0.0)
    assert released.counts.noise


def test_what_cannot_be_recorded_is_not_released(path, monkeypatch):
    answer(open_budget(path), laplace(0.25), HERE)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises(PrivacyError, field="ledger", got="not written"):
        answer(open_budget(path), laplace(), HERE)
    (path.parent / "file").write_text("")
    with raises(PrivacyError, field="ledger", got="not opened"):
        open_budget(path.parent / "file" / "state").spent()


def ask(path, place, queue):
    try:
        released = answer(open_budget(path), laplace(0.25), HERE, terms=f"run {place % 5}")
        queue.put((place % 5, released.counts.sha256()))
    except PrivacyError as error:
        queue.put((place % 5, error.field))


def test_processes_take_turns(path):
    """Ten at once ask for five releases, two each, of which the policy allows four."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=ask, args=(path, place, queue)) for place in range(10)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    by_run = {}
    for run, answer in answers:
        by_run.setdefault(run, set()).add(answer)
    assert all(len(same) == 1 for same in by_run.values())
    assert sum(same == {"policy max-epsilon"} for same in by_run.values()) == 1
    assert open_budget(path).spent() == (1.0, 0.0)


def test_a_link_is_the_same_ledger(path):
    open_budget(path).spent()
    link = path.with_name("link")
    link.symlink_to(path)
    assert open_budget(link).path == open_budget(path).path
    answer(open_budget(link), laplace(0.75), HERE)
    with raises(PrivacyError, field="policy max-epsilon"):
        answer(open_budget(path), laplace(0.75), HERE, terms="more")


def test_a_ledger_is_the_partys_own_to_read(path):
    answer(open_budget(path), laplace(), HERE)
    files = [*path.iterdir(), path.with_name("state.exists"), path.with_name("state.lock")]
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_new_folders_are_on_the_disk_before_a_ledger_counts_on_them(tmp_path, monkeypatch):
    """With a folder that vanishes, both the ledger and what tells that there was one would."""
    settled, settle = [], ledger_files.settle
    monkeypatch.setattr(ledger_files, "settle", lambda folder: (settled.append(folder), settle(folder)))
    answer(open_budget(tmp_path / "new" / "newer" / "state"), laplace(), HERE)
    assert settled[:2] == [tmp_path, tmp_path / "new"]
    assert tmp_path / "new" / "newer" in settled


def die_at(path, step, before):
    """Release, and be killed before or after the step-th time that a file is put in its place."""
    steps, replace = [], os.replace

    def replace_and_die(source, target):
        steps.append(target)
        if before and len(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if len(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace_and_die
    answer(open_budget(path), laplace(0.25), HERE, terms="more")
    os._exit(0)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("first", "step"), [*((True, step) for step in range(1, 8)), *((False, step) for step in range(1, 6))]
)
def test_a_process_killed_at_any_step_leaves_a_ledger_that_counts(path, first, step, before):
    """Steps: for a first release marker and new ledger; ledger and marker with the request; release, ledger, marker."""
    earlier = None if first else answer(open_budget(path), laplace(0.25), HERE)
    process = multiprocessing.get_context("fork").Process(target=die_at, args=(path, step, before))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if first and (step, before) in ((1, False), (2, True)):  # there was a ledger, or might have been
        with raises(PrivacyError, field="ledger", got="lost"):
            open_budget(path).spent()
        return
    written = step - 2 * first - before  # steps that were done
    charged, answered = written >= 1, written >= 4
    spent = 0.25 * charged + 0.25 * (not first)
    assert open_budget(path).spent() == (spent, 0.0)
    if path.exists():
        left = {file.name for file in path.iterdir()}
        assert left - {"ledger.json"} <= {entry["file"] for entry in entries_of(path)}
        assert len(left) == 1 + (not first) + (written >= 3)
        assert json.loads(marker_of(path).read_text())["entries"] == len(entries_of(path)) == 4 * spent
    if earlier is not None:
        assert answer(open_budget(path), laplace(0.25), HERE).counts == earlier.counts
    assert answer(open_budget(path), laplace(0.25), HERE, terms="more").repeated == answered
    assert open_budget(path).spent() == (spent + 0.25 * (not answered), 0.0)


def release_many(path, pipe):
    for run in range(1000):
        pipe.send(answer(open_budget(path), laplace(0.001), HERE, terms=f"run {run}").counts.sha256())


def test_a_killed_process_has_recorded_all_it_answered(path):
    open_budget(path).spent()
    context = multiprocessing.get_context("fork")
    draw = random.Random(5)
    for _ in range(4):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=release_many, args=(path, theirs))
        process.start()
        theirs.close()
        answers = [mine.recv()]
        time.sleep(0.2 * draw.random())
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while True:
            try:
                answers.append(mine.recv())
            except (EOFError, OSError):
                break
        spent = open_budget(path).spent()[0]
        again = [answer(open_budget(path), laplace(0.001), HERE, terms=f"run {run}") for run in range(len(answers))]
        assert not list(path.glob(".*"))
        answered = [entry["file"] for entry in entries_of(path) if entry["sha256"]]
        assert {file.name for file in path.glob("*.npz")} >= {*answered}
        assert len(answered) >= len(entries_of(path)) - 4  # one at most of each process
        assert all(answer.repeated for answer in again)
        assert [answer.counts.sha256() for answer in again] == answers
        assert open_budget(path).spent()[0] == spent >= 0.00099 * len(answers)


def test_a_reset_removes_a_ledger_and_nothing_else(path, capsys):
    answer(open_budget(path), laplace(), HERE)
    (path / "notes.txt").write_text("mine")
    before = sorted(path.iterdir())
    for wrong in (path, path.parent):
        assert budget.main(["reset", str(wrong)]) == 1
        assert capsys.readouterr().err.startswith(f"ledger {wrong.name}: ")
    assert budget.main(["reset", str(path / "notes.txt")]) == 1
    assert sorted(path.iterdir()) == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["state", "state.exists", "state.lock"]
    assert not list(path.parent.parent.glob("*.lock"))
    (path / "notes.txt").unlink()
    left_by_a_killed_process = [path / ".ledger.json.partial", path.with_name(".state.exists.partial")]
    for file in left_by_a_killed_process:
        file.touch()
    assert budget.main(["reset", str(path)]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["state.lock"]


def test_a_folder_that_was_there_before_counts_as_a_lost_ledger(path):
    path.mkdir(parents=True)
    with raises(PrivacyError, field="ledger", got="lost"):
        answer(open_budget(path), laplace(), HERE)
    open_budget(path).reset()
    answer(open_budget(path), laplace(), HERE)


def test_a_party_shows_and_resets_its_ledger_by_hand(path, capsys):
    assert budget.main(["show", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    assert not path.parent.exists()
    answer(open_budget(path), laplace(), HERE)
    assert budget.main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    facts = ["composition basic", "releases 1", "epsilon 0.5", "delta 0 spent"]
    assert shown.removeprefix(f"{path}: ").strip().split(", ") == facts
    lose(path)
    assert budget.main(["show", str(path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"reset {path}")
    assert budget.main(["reset", str(path)]) == 0
    assert not open_budget(path).is_begun
    assert open_budget(path).spent() == (0.0, 0.0)
    assert budget.main(["forget", str(path)]) == budget.main([]) == 2


# Before data are touched


@pytest.mark.parametrize("error", [DataError("X"), OSError(5, "input"), ValueError(), KeyboardInterrupt()])
def test_a_count_that_fails_is_charged_all_the_same(path, error):
    """Else whatever fails because of one record would answer questions about it for nothing."""

    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        open_budget(path).release(laplace(), HERE.spec_fingerprint, fail)
    assert caught.value is error
    assert [file.name for file in path.iterdir()] == ["ledger.json"]
    assert open_budget(path).spent() == (0.5, 0.0)
    assert not answer(open_budget(path), laplace(), HERE).repeated
    assert open_budget(path).spent() == (1.0, 0.0)
    with raises(PrivacyError, field="policy max-epsilon"):
        open_budget(path).release(laplace(), ELSEWHERE.spec_fingerprint, never)


def test_what_no_sample_decides_is_refused_before_the_charge(path):
    def refuse():
        raise DataError("columns", "others", "these")

    with raises(DataError, field="columns"):
        open_budget(path).release(laplace(), HERE.spec_fingerprint, never, prepare=refuse)
    assert not open_budget(path).is_begun


def test_noise_that_cannot_be_drawn_is_found_before_the_charge(path, monkeypatch):
    def missing(*_):
        raise MissingExtraError("opendp")

    monkeypatch.setattr(mechanism, "privacy_extra", missing)
    with pytest.raises(MissingExtraError):
        open_budget(path).release(laplace(), HERE.spec_fingerprint, never)
    assert not open_budget(path).is_begun


@pytest.mark.parametrize("step", range(1, 6))
def test_a_ledger_is_made_whole_or_not_at_all_on_a_full_disk(path, step, monkeypatch):
    """0.8 left a marker without a ledger, which counted as lost."""
    steps, fsync = [], os.fsync

    def full(descriptor):
        steps.append(descriptor)
        if len(steps) == step:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    path.parent.mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", full)
    with suppress(PrivacyError):
        answer(open_budget(path), laplace(0.25), HERE)
    monkeypatch.setattr(os, "fsync", fsync)
    assert open_budget(path).spent()[0] in (0.0, 0.25)
    assert answer(open_budget(path), laplace(0.25), HERE, terms="more").counts.noise


def test_counts_that_do_not_fit_are_not_released(path):
    noisy = laplace().release(HERE)
    for wrong in (ELSEWHERE, noisy, ClassCounts([[2, 2, 0]], hash_nnz=2, spec_fingerprint=64 * "0")):
        with pytest.raises(CountsError):
            open_budget(path).release(laplace(0.25), HERE.spec_fingerprint, lambda wrong=wrong: wrong)
    assert [entry["sha256"] for entry in entries_of(path)] == ["", "", ""]


def test_nothing_on_the_disk_depends_on_the_counts_but_the_release(path, tmp_path):
    """No digest of exact counts or of data: with the noise the same, so is all else."""
    texts = []
    for place, counts in enumerate((HERE, LATER)):
        answer(open_budget(tmp_path / str(place)), laplace(), counts)
        (entry,) = json.loads((tmp_path / str(place) / "ledger.json").read_text())["entries"]
        del entry["file"], entry["sha256"]  # of the release, which may leave
        texts.append(json.dumps(entry))
    assert texts[0] == texts[1]
    assert "data" not in entry


def test_a_share_is_not_sent_again_to_be_taken_out(path):
    """Two sums, one with it and one without, would leave the others with too little noise between them."""
    share = GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4)
    budget = open_budget(path, secure_sum=True)
    answer(budget, share, HERE)
    with raises(PrivacyError, field="share"):
        budget.recall(share, HERE.spec_fingerprint)
    whole = answer(budget, laplace(0.25), HERE)
    assert budget.recall(laplace(0.25), HERE.spec_fingerprint) == whole.counts
    with raises(PrivacyError, field="request"):
        budget.recall(laplace(0.125), HERE.spec_fingerprint)


def test_looking_makes_no_ledger(path):
    assert open_budget(path).spent() == (0.0, 0.0)
    with raises(PrivacyError, field="request"):
        open_budget(path).recall(laplace(), HERE.spec_fingerprint)
    assert not open_budget(path).is_begun


# Older copies


def copies(path, tmp_path, n_releases):
    """Folder and marker as they were after each release."""
    kept = []
    for run in range(n_releases):
        answer(open_budget(path), laplace(0.125), HERE, terms=f"run {run}")
        kept.append((tmp_path / f"folder {run}", marker_of(path).read_bytes()))
        shutil.copytree(path, kept[-1][0])
    return kept


def put_back(path, folder):
    shutil.rmtree(path)
    shutil.copytree(folder, path)


def test_an_older_copy_of_the_folder_is_noticed(path, tmp_path):
    kept = copies(path, tmp_path, 3)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for folder, _ in kept[:2]:
        put_back(path, folder)
        with raises(PrivacyError, field="ledger", got="altered"):
            answer(open_budget(path), laplace(0.125), HERE, terms="run 0")
        with raises(PrivacyError, field="ledger", got="altered"):
            open_budget(path).spent()
    put_back(path, kept[2][0])
    assert open_budget(path).spent() == (0.375, 0.0)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files


def test_another_ledger_swapped_in_is_noticed(path, tmp_path):
    answer(open_budget(path), laplace(0.125), HERE)
    other = tmp_path / "other" / "state"
    answer(open_budget(other), laplace(0.125), HERE)  # of the same request: other noise, another head
    put_back(path, other)
    with raises(PrivacyError, field="ledger", got="altered"):
        open_budget(path).spent()
    shutil.rmtree(path)
    path.mkdir()
    with raises(PrivacyError, field="ledger", got="lost"):
        open_budget(path).spent()
    (path / "ledger.json").write_bytes(LedgerFile().to_bytes())  # empty, and sound by itself
    with raises(PrivacyError, field="ledger", got="altered"):
        open_budget(path).spent()


def test_a_ledger_with_a_release_by_a_mechanism_of_0_8_shows_what_was_spent_and_releases_nothing(path):
    answer(open_budget(path), laplace(0.125), HERE)
    rounds = {"mechanism": "gaussian-rounds", "epsilon": 0.125, "delta": 1e-5, "n_rounds": 2, **SHAPE}
    forge(lambda entries: [entries[0] | {"request": entries[0]["request"] | {"mechanism": rounds}}])(path)
    with raises(PrivacyError, field="ledger", got="mechanism"):
        answer(open_budget(path), laplace(0.125), HERE, terms="another run")
    assert open_budget(path).spent() == (0.125, 0.0)


def test_a_ledger_may_be_one_entry_ahead_of_its_marker_and_no_more(path, tmp_path):
    kept = copies(path, tmp_path, 3)
    marker_of(path).write_bytes(kept[1][1])  # as if a process had died
    assert open_budget(path).spent() == (0.375, 0.0)
    assert marker_of(path).read_bytes() == kept[2][1]
    marker_of(path).write_bytes(kept[0][1])
    with raises(PrivacyError, field="ledger", got="altered"):
        open_budget(path).spent()


def test_folder_and_marker_put_back_together_are_not_noticed(path, tmp_path):
    """As the module says."""
    kept = copies(path, tmp_path, 2)
    put_back(path, kept[0][0])
    marker_of(path).write_bytes(kept[0][1])
    assert open_budget(path).spent() == (0.125, 0.0)


def test_what_a_killed_process_left_is_removed(path):
    answer(open_budget(path), laplace(), HERE)
    stale = [path / ".ledger.json.partial", path / f"{32 * 'b'}.npz", path / f".{32 * 'b'}.npz.partial"]
    others = [path / "notes.txt", path.parent / ".ledger.json.partial"]
    for file in [*stale, *others]:
        file.write_text("")
    assert open_budget(path).spent() == (0.5, 0.0)
    assert [file.exists() for file in [*stale, *others]] == 3 * [False] + 2 * [True]
    assert answer(open_budget(path), laplace(), HERE).repeated


# One data file


def test_a_ledger_serves_one_data_file(path, tmp_path):
    data, other = tmp_path / "data.csv", tmp_path / "other.csv"
    (tmp_path / "link.csv").symlink_to(data)
    first = answer(Budget(path, Policy(1.0), data), laplace(), HERE)
    assert answer(Budget(path, Policy(1.0), str(tmp_path / "link.csv")), laplace(), HERE).counts == first.counts
    for wrong in (other, None):
        budget = Budget(path, Policy(1.0), wrong)
        for ask in (partial(budget.release, count=never), budget.recall):
            with raises(PrivacyError, field="ledger", got="another data file") as caught:
                ask(laplace(), HERE.spec_fingerprint)
            assert str(tmp_path) not in str(caught.value)
            assert str(data) in caught.value.__notes__[0]
    assert Budget(path, Policy(1.0)).spent() == (0.5, 0.0)  # for the party's own eyes
    Budget(path, Policy(1.0), other).reset()
    answer(Budget(path, Policy(1.0), other), laplace(), LATER)


def test_a_ledger_without_a_data_file_stays_so(path, tmp_path):
    answer(open_budget(path), laplace(0.25), HERE)
    answer(Budget(path, Policy(1.0), tmp_path / "data.csv"), laplace(0.5), HERE)
    assert json.loads((path / "ledger.json").read_text())["data_path"] is None


@pytest.mark.parametrize("epsilon", [0.001, pytest.param(0.006, marks=pytest.mark.slow)])
def test_no_request_takes_minutes_to_account_for(epsilon):
    start = time.process_time()
    mechanism = GaussianCounts(epsilon, 1e-12, hash_nnz=1, n_classes=2)
    assert 0.99 * epsilon < mechanism.epsilon(1e-12) <= epsilon
    assert time.process_time() - start < 20  # a second or two on an idle machine


# Policies that become stricter


@pytest.mark.parametrize("stricter", [{"neighbours": "replace-one"}, {"records_per_person": 2}])
def test_a_policy_that_becomes_stricter_releases_nothing_until_the_ledger_is_reset(path, stricter):
    strong = laplace(0.25, neighbours="replace-one", records_per_person=2)
    answer(open_budget(path), laplace(0.25), HERE)
    budget = open_budget(path, **stricter)
    for asked in (strong, laplace(0.25)):
        with raises(PrivacyError, field="ledger", got="weaker"):
            answer(budget, asked, HERE)
    with raises(PrivacyError, field="ledger", got="weaker"):
        budget.recall(laplace(0.25), HERE.spec_fingerprint)
    budget.reset()
    answer(budget, strong, HERE)
    assert not answer(open_budget(path), laplace(0.25), HERE).repeated  # a weaker policy takes what is there


# The lock


def test_a_lock_that_was_replaced_is_noticed_before_the_ledger_is_written(path):
    answer(open_budget(path), laplace(0.25), HERE)
    lock = path.with_name(path.name + ".lock")

    def replaced():
        lock.unlink()
        lock.touch()
        return HERE

    with raises(PrivacyError, field="ledger", got="lock"):
        open_budget(path).release(laplace(0.5), HERE.spec_fingerprint, replaced)
    lock.unlink()
    with raises(PrivacyError, field="ledger", got="not written"):
        open_budget(path).release(laplace(0.25), HERE.spec_fingerprint, lambda: lock.unlink() or HERE, terms="more")
    assert [bool(entry["sha256"]) for entry in entries_of(path)] == [True, False, False]
    assert open_budget(path).spent() == (1.0, 0.0)
