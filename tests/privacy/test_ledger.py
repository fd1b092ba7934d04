"""The ledger: nothing is spent twice by mistake, nothing is released that is not recorded, and faults mean refusal."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import signal
import stat
import time

import numpy as np
import pytest

from flwr_flynn import ClassCounts
from flwr_flynn.errors import ConfigError, PrivacyError
from flwr_flynn.privacy import GaussianCounts, LaplaceCounts, SimulatedRelease
from flwr_flynn.privacy import ledger as budget
from flwr_flynn.privacy.ledger import Budget, Policy

SHAPE = {"hash_nnz": 2, "n_classes": 2}
HERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "0")
LATER = ClassCounts([[2, 2, 0], [0, 2, 2]], hash_nnz=2, spec_fingerprint=64 * "0")
ELSEWHERE = ClassCounts([[2, 2, 0], [0, 1, 1]], hash_nnz=2, spec_fingerprint=64 * "1")


def laplace(epsilon=0.5, **kwargs):
    return LaplaceCounts(epsilon, **SHAPE, **kwargs)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "party" / "state"


def open_budget(path, **policy):
    return Budget(path, Policy(**{"max_epsilon": 1.0, "max_delta": 1e-4} | policy))


def test_the_same_request_gets_the_same_answer_and_spends_nothing(path):
    first = open_budget(path).release(laplace(), HERE, terms="run")
    again = open_budget(path).release(laplace(), HERE, terms="run")
    assert again.counts == first.counts
    assert (first.repeated, first.data_changed) == (False, False)
    assert (again.repeated, again.data_changed) == (True, False)
    later = open_budget(path).release(laplace(), LATER, terms="run")
    assert later.counts == first.counts
    assert (later.repeated, later.data_changed) == (True, True)
    assert open_budget(path).spent() == (0.5, 0.0)


def test_different_requests_add_up_to_the_policy(path):
    budget = open_budget(path)
    releases = [
        budget.release(laplace(0.25), HERE).counts,
        budget.release(laplace(0.25), HERE, terms="another run").counts,
        budget.release(laplace(0.25), ELSEWHERE).counts,
        budget.release(laplace(0.125), HERE).counts,
    ]
    assert len({release.sha256() for release in releases}) == 4
    assert budget.spent() == (0.875, 0.0)
    with pytest.raises(PrivacyError, match=r"policy max-epsilon 1: with this release it would be 1\.125"):
        budget.release(laplace(0.25), HERE, terms="a third run")
    assert budget.spent() == (0.875, 0.0)
    budget.release(laplace(0.125), HERE, terms="what is left")
    assert budget.release(laplace(0.25), HERE).counts == releases[0]


def test_deltas_add_up_too(path):
    budget = open_budget(path, max_epsilon=10.0, max_delta=1.5e-5)
    budget.release(GaussianCounts(1.0, 1e-5, **SHAPE), HERE)
    with pytest.raises(PrivacyError, match=r"policy max-delta 1\.5e-05"):
        budget.release(GaussianCounts(1.0, 1e-5, **SHAPE), HERE, terms="more")
    assert budget.spent()[1] == 1e-5


def test_pure_and_approximate_releases_add_up(path):
    budget = open_budget(path, max_epsilon=1.5)
    gaussian = GaussianCounts(1.0, 1e-5, **SHAPE)
    budget.release(gaussian, HERE)
    budget.release(laplace(0.5), HERE)
    assert budget.spent() == (gaussian.epsilon(1e-5) + 0.5, 1e-5)
    for little in (laplace(0.001), GaussianCounts(0.001, 1e-12, **SHAPE)):
        with pytest.raises(PrivacyError, match=r"policy max-epsilon 1\.5: with this release it would be 1\.501"):
            budget.release(little, HERE)


@pytest.mark.parametrize(
    ("policy", "mechanism", "message"),
    [
        ({"mechanisms": ["gaussian"]}, laplace(), "policy mechanisms gaussian: laplace"),
        ({}, SimulatedRelease(laplace(), 1), "simulated is not among"),
        ({"neighbours": "replace-one"}, laplace(), "policy neighbours replace-one"),
        ({"records_per_person": 3}, laplace(records_per_person=2), "policy records-per-person 3"),
        ({}, GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4), "policy secure-sum off"),
        ({"max_epsilon": 0}, laplace(), "policy max-epsilon 0"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(path, policy, mechanism, message):
    with pytest.raises(PrivacyError, match=message):
        open_budget(path, **policy).release(mechanism, HERE)
    assert open_budget(path).spent() == (0.0, 0.0)


def test_what_the_policy_allows(path):
    policy = {"mechanisms": ["simulated", "gaussian"], "secure_sum": True, "neighbours": "add-remove"}
    budget = open_budget(path, **policy)
    budget.release(SimulatedRelease(laplace(0.25, neighbours="replace-one"), 1), HERE)
    budget.release(GaussianCounts(0.5, 1e-5, **SHAPE, n_honest=4), HERE)
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
    ],
)
def test_policies_are_checked(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
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
    """A fault that comes with the digest that fits it: no entry is taken for more than it is."""

    def fault(path):
        entries = json.loads((path / "ledger.json").read_text())["entries"]
        (path / "ledger.json").write_bytes(budget._ledger(change(entries)))

    return fault


FORGED = [
    forge(lambda entries: 7),
    forge(lambda entries: {"0": entries[0]}),
    forge(lambda entries: [7]),
    forge(lambda entries: [{}]),
    forge(lambda entries: [entries[0] | {"epsilon": -1.0}]),
    forge(lambda entries: [entries[0] | {"epsilon": math.nan}]),
    forge(lambda entries: [entries[0] | {"delta": "0"}]),
    forge(lambda entries: [entries[0] | {"data": None}]),
    forge(lambda entries: [entries[0] | {"file": "../ledger.json"}]),
]


def truncate(path):
    raw = (path / "ledger.json").read_bytes()
    (path / "ledger.json").write_bytes(raw[:-1])


def lose_marker(path):
    path.with_name(path.name + ".exists").unlink()


@pytest.mark.parametrize("fault", [lose, lose_all, forget_spending, empty, truncate, lose_marker, *FORGED])
def test_a_lost_or_altered_ledger_means_refusal_until_it_is_reset(path, fault):
    open_budget(path).release(laplace(), HERE)
    fault(path)
    for _ in range(2):
        with pytest.raises(PrivacyError, match=r"is lost; nothing is released|was altered; nothing is released"):
            open_budget(path).release(laplace(), HERE)
        with pytest.raises(PrivacyError):
            open_budget(path).spent()
    open_budget(path).reset()
    assert open_budget(path).spent() == (0.0, 0.0)
    assert not open_budget(path).release(laplace(), HERE).repeated


def test_a_forged_release_is_not_handed_out(path):
    """One that the ledger vouches for and no parser reads."""
    open_budget(path).release(laplace(), HERE)
    (file,) = path.glob("*.npz")
    for content in (b"", b"PK\x03\x04", file.read_bytes()[:-30]):
        file.write_bytes(content)
        forge(lambda entries, raw=content: [entries[0] | {"sha256": hashlib.sha256(raw).hexdigest()}])(path)
        with pytest.raises(PrivacyError, match="is lost or altered"):
            open_budget(path).release(laplace(), HERE)


@pytest.mark.parametrize("fault", ["lost", "altered", "another"])
def test_a_lost_or_altered_release_is_not_made_again(path, fault):
    released = open_budget(path).release(laplace(), HERE)
    (file,) = path.glob("*.npz")
    if fault == "lost":
        file.unlink()
    elif fault == "altered":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        np.savez(file, counts=HERE.array)
    with pytest.raises(PrivacyError, match="is lost or altered"):
        open_budget(path).release(laplace(), HERE)
    assert open_budget(path).spent() == (0.5, 0.0)
    assert released.counts.noise


@pytest.mark.parametrize("dies_at", range(4))
def test_dying_between_steps_never_spends_too_little(path, monkeypatch, dies_at):
    """Steps that write: the marker, the new ledger, the release, the ledger with it."""
    steps, write = [], budget._write

    def dying(file, content):
        if len(steps) == dies_at:
            raise KeyboardInterrupt
        steps.append(file)
        write(file, content)

    monkeypatch.setattr(budget, "_write", dying)
    with pytest.raises(KeyboardInterrupt):  # nothing was handed out
        open_budget(path).release(laplace(), HERE)
    monkeypatch.undo()
    if dies_at == 1:  # there was a ledger, or might have been
        with pytest.raises(PrivacyError, match="is lost"):
            open_budget(path).spent()
        return
    assert open_budget(path).spent() == (0.0, 0.0)
    assert not open_budget(path).release(laplace(), HERE).repeated
    assert open_budget(path).spent() == (0.5, 0.0)


def test_what_cannot_be_recorded_is_not_released(path, monkeypatch):
    open_budget(path).spent()

    def full(file, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(budget, "_write", full)
    with pytest.raises(PrivacyError, match="cannot be written"):
        open_budget(path).release(laplace(), HERE)
    (path.parent / "file").write_text("")
    with pytest.raises(PrivacyError, match="cannot be opened"):
        open_budget(path.parent / "file" / "state").spent()


def ask(path, place, queue):
    try:
        answer = open_budget(path).release(laplace(0.25), HERE, terms=f"run {place % 5}")
        queue.put((place % 5, answer.counts.sha256()))
    except PrivacyError as error:
        queue.put((place % 5, str(error)))


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
    assert sum("policy max-epsilon" in next(iter(same)) for same in by_run.values()) == 1
    assert open_budget(path).spent() == (1.0, 0.0)


def test_a_link_is_the_same_ledger(path):
    open_budget(path).spent()
    link = path.with_name("link")
    link.symlink_to(path)
    assert open_budget(link).path == open_budget(path).path
    open_budget(link).release(laplace(0.75), HERE)
    with pytest.raises(PrivacyError, match="policy max-epsilon 1"):
        open_budget(path).release(laplace(0.75), HERE, terms="more")


def test_a_ledger_is_the_partys_own_to_read(path):
    open_budget(path).release(laplace(), HERE)
    files = [*path.iterdir(), path.with_name("state.exists"), path.with_name("state.lock")]
    assert len(files) == 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_new_folders_are_on_the_disk_before_a_ledger_counts_on_them(tmp_path, monkeypatch):
    """With a folder that vanishes, both the ledger and what tells that there was one would."""
    settled, settle = [], budget._settle
    monkeypatch.setattr(budget, "_settle", lambda folder: (settled.append(folder), settle(folder)))
    open_budget(tmp_path / "new" / "newer" / "state").spent()
    assert settled[:2] == [tmp_path, tmp_path / "new"]
    assert tmp_path / "new" / "newer" in settled


def release_many(path, pipe):
    for run in range(1000):
        pipe.send(open_budget(path).release(laplace(0.001), HERE, terms=f"run {run}").counts.sha256())


def test_a_killed_process_has_recorded_all_it_handed_out(path):
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
        again = [open_budget(path).release(laplace(0.001), HERE, terms=f"run {run}") for run in range(len(answers))]
        assert all(answer.repeated for answer in again)
        assert [answer.counts.sha256() for answer in again] == answers
        assert open_budget(path).spent()[0] == spent >= 0.00099 * len(answers)


def test_a_reset_removes_a_ledger_and_nothing_else(path, capsys):
    open_budget(path).release(laplace(), HERE)
    (path / "notes.txt").write_text("mine")
    before = sorted(path.iterdir())
    for wrong in (path, path.parent):
        assert budget.main(["reset", str(wrong)]) == 1
        assert "are not a ledger's; none is removed" in capsys.readouterr().err
    assert budget.main(["reset", str(path / "notes.txt")]) == 1
    assert sorted(path.iterdir()) == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["state", "state.exists", "state.lock"]
    assert not list(path.parent.parent.glob("*.lock"))
    (path / "notes.txt").unlink()
    (path / f".ledger.json.{32 * 'a'}").write_text("left by a process that died")
    assert budget.main(["reset", str(path)]) == 0
    assert not path.exists()


def test_a_folder_that_was_there_before_counts_as_a_lost_ledger(path):
    path.mkdir(parents=True)
    with pytest.raises(PrivacyError, match="is lost"):
        open_budget(path).release(laplace(), HERE)
    open_budget(path).reset()
    open_budget(path).release(laplace(), HERE)


def test_a_party_shows_and_resets_its_ledger_by_hand(path, capsys):
    assert budget.main(["show", str(path)]) == 1
    assert "no ledger" in capsys.readouterr().err
    assert not path.parent.exists()
    open_budget(path).release(laplace(), HERE)
    assert budget.main(["show", str(path)]) == 0
    assert "epsilon 0.5, delta 0 spent" in capsys.readouterr().out
    lose(path)
    assert budget.main(["show", str(path)]) == 1
    assert "is lost" in capsys.readouterr().err
    assert budget.main(["reset", str(path)]) == 0
    assert not open_budget(path).is_begun
    assert open_budget(path).spent() == (0.0, 0.0)
    assert budget.main(["forget", str(path)]) == budget.main([]) == 2


def test_an_error_names_no_folder_but_notes_how_to_reset(path):
    open_budget(path).release(laplace(), HERE)
    lose(path)
    with pytest.raises(PrivacyError) as caught:
        open_budget(path).spent()
    assert str(path.parent) not in str(caught.value)
    assert f"python -m flwr_flynn.privacy.ledger reset {path}" in caught.value.__notes__[0]
