"""Several processes, one search: real processes, forked from one that has imported what they
need; who kills the client of one kills it."""

import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest

from tests.optimizer import postgres, toy_search
from tests.optimizer.fake_simulator import FAKE, story
from tests.warm import client
from tests.warm.session import warm_python
from trainscout.optimizer.storage import claims as claims_module
from trainscout.optimizer.storage.backends import open_storage
from trainscout.optimizer.storage.claims import Claims
from trainscout.simulators.predictor.question.errors import InputError

ROOT = Path(__file__).parents[2]
SLOW = FAKE.replace("FakeSimulator", "Slow")


def search(storage, **changes):
    return toy_search.search(simulator=SLOW, seed=3, storage=storage, **changes)


@pytest.fixture(scope="module")
def alone():
    return story(search(None))


def start(storage, answer):
    """A process that joins the search at ``storage`` and leaves its story in ``answer``."""
    code = (
        "import pickle, sys\n"
        "from tests.optimizer.test_sharing import search, story\n"
        "result = search(sys.argv[1], join=True)\n"
        "pickle.dump(story(result), open(sys.argv[2], 'wb'))\n"
        "print(result.notes)\n"
    )
    given = [storage, str(answer)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", client.__file__, warm_python(), "-c", code, *given],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def recipes_in(storage) -> Counter:
    """How often each recipe is stored as complete."""
    opened = open_storage(storage)
    (name,) = [n for n in optuna.get_all_study_names(opened) if not n.endswith("-claims")]
    trials = optuna.load_study(storage=opened, study_name=name).get_trials(deepcopy=False)
    return Counter(
        json.dumps(t.user_attrs["recipe"]) for t in trials if t.state.name == "COMPLETE"
    )


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def storage(request, tmp_path):
    if request.param == "journal":
        yield str(tmp_path / "search.journal")
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'search.db'}"
    elif (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    else:
        with postgres.server() as url:
            yield url


def test_processes_that_join_share_the_work_and_the_answer(storage, tmp_path, alone):
    processes = [start(storage, tmp_path / f"{number}") for number in range(2)]
    for number, process in enumerate(processes):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        assert pickle.loads((tmp_path / f"{number}").read_bytes()) == alone
        assert "simulated by other processes" in stdout
    counts = recipes_in(storage)
    assert set(counts.values()) == {1}
    simulated = {json.dumps(vars(recipe)) for _, recipe, _, _, _, found in alone if found}
    assert set(counts) == simulated


def test_a_killed_process_is_replaced_by_the_others(tmp_path, alone):
    storage = str(tmp_path / "search.journal")
    first = start(storage, tmp_path / "first")
    while not (tmp_path / "search.journal").exists() or len(recipes_at(storage)) < 10:
        time.sleep(0.02)
    second = start(storage, tmp_path / "second")
    time.sleep(random.Random(0).uniform(0.3, 0.6))
    first.kill()
    first.communicate()
    _, stderr = second.communicate(timeout=120)
    assert second.returncode == 0, stderr
    assert pickle.loads((tmp_path / "second").read_bytes()) == alone
    assert set(recipes_in(storage).values()) == {1}


def recipes_at(storage):
    text = Path(storage).read_bytes()
    return [line for line in text.splitlines() if b'"prediction"' in line]


def test_killed_at_any_moment_nothing_is_lost_or_done_twice(tmp_path, alone):
    storage, moments = str(tmp_path / "search.journal"), random.Random(1)
    kept: set[str] = set()
    for _ in range(3):
        process = start(storage, tmp_path / "answer")
        enough = size_of(storage) + moments.randint(1, 60_000)
        while size_of(storage) < enough:
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
        process.communicate()
        now = set(recipes_in(storage))
        assert kept <= now
        kept = now
    assert 0 < len(kept) < len(alone)
    last = start(storage, tmp_path / "answer")
    _, stderr = last.communicate(timeout=60)
    assert last.returncode == 0, stderr
    assert pickle.loads((tmp_path / "answer").read_bytes()) == alone
    counts = recipes_in(storage)
    assert kept <= set(counts)
    assert set(counts.values()) == {1}


def size_of(storage):
    return os.path.getsize(storage) if os.path.exists(storage) else 0


class TestClaims:
    KEYS = ("a", "b", "c", "d")

    @pytest.fixture
    def two(self, tmp_path):
        """Two parties at one journal, each reading for itself."""
        path = str(tmp_path / "claims.journal")
        with Claims(open_storage(path), "s") as one, Claims(open_storage(path), "s") as other:
            yield one, other

    def test_nothing_is_held_twice(self, two):
        one, other = two
        taken = []
        for party in (one, other, one, other, one, other):
            taken += [self.KEYS[position] for position in party.take(self.KEYS)]
        assert sorted(taken) == sorted(self.KEYS)

    def test_claims_made_at_once_go_to_the_first(self, two):
        one, other = two
        other._sync()
        # Neither has read the other's claim when it makes its own.
        other._log({"owner": other.owner, "keys": list(self.KEYS)})
        one._log({"owner": one.owner, "keys": list(self.KEYS)})
        assert one.take(self.KEYS) == other.take(self.KEYS) == []
        assert {one.holder(key) for key in self.KEYS} == {other.owner}

    def test_what_a_party_held_is_free_when_it_has_left(self, tmp_path):
        path = str(tmp_path / "claims.journal")
        with Claims(open_storage(path), "s") as one:
            assert one.take(self.KEYS) == [0, 1, 2, 3]
        with Claims(open_storage(path), "s") as other:
            assert other.take(self.KEYS) == [0, 1, 2, 3]

    def test_a_silent_party_on_another_machine_is_dead_after_its_lease(self, two, monkeypatch):
        one, other = two
        monkeypatch.setattr(claims_module, "_is_of_this_machine", lambda owner: False)
        while one.take(self.KEYS):
            pass
        assert other.take(self.KEYS) == []
        monkeypatch.setattr(claims_module, "LEASE_S", 0.3)
        other.wait(self.KEYS)
        assert other.take(self.KEYS) == []  # not yet
        for _ in range(5):
            other.wait(self.KEYS)
        assert other.take(self.KEYS)
        # The other one learns that it was given up, and goes on as somebody new.
        was = one.owner
        one.take(self.KEYS)
        assert one.owner != was

    def test_a_party_that_beats_is_alive(self, two, monkeypatch):
        one, other = two
        monkeypatch.setattr(claims_module, "_is_of_this_machine", lambda owner: False)
        monkeypatch.setattr(claims_module, "LEASE_S", 0.3)
        while one.take(self.KEYS):
            pass
        for beat in range(8):
            one._study.set_user_attr(f"beat:{one.owner}", beat)
            other.wait(self.KEYS)
        assert other.take(self.KEYS) == []


def test_a_line_torn_by_a_killed_writer_hinders_nobody(tmp_path):
    path = tmp_path / "search.journal"
    study = optuna.create_study(storage=open_storage(str(path)))
    study.set_user_attr("whole", 1)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code":4,"study_id":0,"trial')
    # A reader that was there, and one that comes, both read on and write on.
    study.set_user_attr("next", 2)
    again = optuna.load_study(storage=open_storage(str(path)), study_name=study.study_name)
    assert again.user_attrs == study.user_attrs == {"whole": 1, "next": 2}


def test_a_first_line_that_was_torn_is_begun_again(tmp_path):
    path = tmp_path / "search.journal"
    path.write_bytes(b'{"op_code":0,"work')
    optuna.create_study(storage=open_storage(str(path)))
    assert path.read_bytes().startswith(b'{"op_code":0,"worker_id"')


def test_a_database_that_is_not_there_is_refused_without_its_password():
    url = "postgresql://me:secret@127.0.0.1:9/db"
    with pytest.raises(InputError) as refused:
        open_storage(url)
    assert "***" in str(refused.value)
    assert "secret" not in str(refused.value)
