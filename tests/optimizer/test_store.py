import dataclasses
import errno
import itertools
import json
import os
import re

import pytest

from tests.optimizer import toy_search
from tests.optimizer.fake_simulator import FAKE, SPACE, FakeSimulator, story, toy_question
from trainscout.optimizer.storage import backends
from trainscout.optimizer.storage.trials import TrialStore
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.io.values import recorded
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe


def search(storage, *, stop_at=None, **changes):
    def on_progress(progress):
        if stop_at is not None and progress.considered >= stop_at:
            raise KeyboardInterrupt

    return toy_search.search(storage=storage, on_progress=on_progress, **changes)


@pytest.fixture(params=["journal", "sqlite"])
def storage(request, tmp_path):
    path = tmp_path / "search.journal"
    return str(path) if request.param == "journal" else f"sqlite:///{tmp_path / 'search.db'}"


def test_predictions_survive_json_exactly():
    prediction = FakeSimulator().simulate(toy_question().job(Recipe(tp=2)))
    prediction = dataclasses.replace(prediction, interval_s=(0.1, 0.3), assumptions=("a",))
    assert recorded(Prediction, json.loads(json.dumps(prediction.to_dict()))) == prediction


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsga2", "random", "grid"])
def test_killed_and_resumed_equals_never_killed(tmp_path, sampler):
    whole = search(None, sampler=sampler)
    storage = str(tmp_path / "search.journal")
    first = search(storage, sampler=sampler, stop_at=32)
    assert first.stopped == "interrupted"
    resumed = search(storage, sampler=sampler, resume=True)
    assert story(resumed) == story(whole)
    assert resumed.resumed_trials == sum(t.prediction is not None for t in first.trials)


def flipped(line: bytes, figure: bytes) -> bytes:
    """One bit of the first digit behind ``figure`` is another."""
    at = line.index(figure) + len(figure)
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


@pytest.mark.parametrize("how", ["bit", "edited", "newline", "cut"])
def test_a_damaged_record_costs_its_recipe_and_is_said(tmp_path, how):
    whole = search(None)
    storage = tmp_path / "search.journal"
    search(str(storage), stop_at=32)
    lines = storage.read_bytes().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if b'"step_time_s":' in line)
    damaged = {
        "bit": flipped(lines[number], b'"step_time_s":'),
        "edited": lines[number].replace(b'"step_time_s":', b'"step_time_s":1'),
        "newline": lines[number][:-1],
        "cut": lines[number][:40] + b"\n",
    }[how]
    storage.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
    resumed = search(str(storage), resume=True)
    assert story(resumed) == story(whole)
    (note,) = [note for note in resumed.notes if "not what was written" in note]
    assert note.startswith("1 record is")
    # It is in the store again, and the journal can be written and read on.
    again = search(str(storage), resume=True)
    simulated = sum(t.prediction is not None for t in whole.trials)
    assert again.resumed_trials == simulated


def test_journals_of_earlier_versions_had_no_sums(tmp_path):
    storage = tmp_path / "search.journal"
    search(str(storage), stop_at=32)
    text = re.sub(r',"sum":"[0-9a-f]{8}"}$', "}", storage.read_text(), flags=re.MULTILINE)
    storage.write_text(text)
    assert search(str(storage), resume=True).resumed_trials > 0


def test_an_interrupted_batch_is_in_the_result(monkeypatch):
    simulate, calls = FakeSimulator.simulate, []

    def stopped(self, job):
        calls.append(job)
        if len(calls) == 21:
            raise KeyboardInterrupt
        return simulate(self, job)

    monkeypatch.setattr(FakeSimulator, "simulate", stopped)
    result = search(None)
    assert result.stopped == "interrupted"
    assert sum(t.prediction is not None for t in result.trials) == 20


def test_resuming_simulates_nothing_twice(storage, monkeypatch):
    search(storage)
    calls = []
    monkeypatch.setattr(FakeSimulator, "simulate", lambda self, job: calls.append(job))
    again = search(storage, resume=True)
    assert calls == []
    assert again.best


def test_a_resumed_search_may_go_further(storage):
    search(storage, n_trials=16)
    longer = search(storage, n_trials=48, resume=True)
    assert story(longer) == story(search(None, n_trials=48))


def test_an_existing_search_is_not_overwritten_by_accident(storage):
    search(storage, n_trials=16)
    with pytest.raises(InputError, match="resume=true"):
        search(storage)


def test_another_question_is_refused(storage):
    search(storage, n_trials=16)
    for changed in (
        {"question": toy_question(batch=128)},
        {"space": {**SPACE, "constants": {"overlap_grad_reduce": True}}},
        {"objective": "mfu"},
        {"seed": 1},
        {"sampler": "random"},
    ):
        with pytest.raises(InputError, match="another search"):
            search(storage, resume=True, **changed)


def test_a_torn_last_line_loses_one_trial(tmp_path):
    path = tmp_path / "search.journal"
    whole = search(str(path))
    text = path.read_bytes()
    last = text.rindex(b'"step_time_s"')
    path.write_bytes(text[:last])
    resumed = search(str(path), resume=True)
    assert story(resumed) == story(whole)
    simulated = sum(t.prediction is not None for t in whole.trials)
    assert resumed.resumed_trials == simulated - 1
    # What the resumed search appended is readable in turn.
    assert search(str(path), resume=True).resumed_trials == simulated


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"hello, I am no journal\n" * 3,
        lambda text: b"\x00" * 500,
    ],
    ids=["text", "zeros"],
)
def test_a_damaged_store_is_named_and_left_alone(tmp_path, damage):
    path = tmp_path / "search.journal"
    search(str(path))
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(InputError) as refused:
        search(str(path), resume=True)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b'"step_time_s"', b'"step_time"'),
        lambda text: text[: len(text) // 2] + b"garbage\n" + text[len(text) // 2 :],
    ],
    ids=["renamed field", "garbage inside"],
)
def test_damaged_records_cost_their_recipes(tmp_path, damage):
    path = tmp_path / "search.journal"
    whole = search(str(path))
    path.write_bytes(damage(path.read_bytes()))
    resumed = search(str(path), resume=True)
    assert story(resumed) == story(whole)
    assert any("not what was written to" in note for note in resumed.notes)


@pytest.mark.parametrize("room", [0, 7, 20])
def test_a_disk_that_fills_costs_no_answer(tmp_path, monkeypatch, room):
    append, written = TrialStore.add, itertools.count()

    def add(self, *trial):
        if next(written) >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, *trial)

    monkeypatch.setattr(TrialStore, "add", add)
    storage = str(tmp_path / "search.journal")
    full = search(storage)
    assert story(full) == story(search(None))
    assert (full.unstored.errno, full.unstored.filename) == (errno.ENOSPC, storage)
    monkeypatch.undo()
    again = search(storage, resume=True)
    assert again.resumed_trials == room
    assert again.unstored is None
    assert story(again) == story(full)


def test_an_unwritable_place_is_refused_before_searching(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        search(str(tmp_path / "missing" / "search.journal"))


def test_a_failed_recipe_is_tried_again(tmp_path):
    storage = str(tmp_path / "search.journal")
    failing = FAKE.replace("FakeSimulator", "SometimesFailing")
    first = search(storage, simulator=failing)
    again = search(storage, simulator=failing, resume=True)
    assert first.counts()["failed"] > 0
    assert again.resumed_trials == sum(t.prediction is not None for t in first.trials)
    assert story(again) == story(first)


def test_a_prediction_that_is_no_number_is_a_failure(tmp_path):
    result = search(
        None,
        simulator=FAKE.replace("FakeSimulator", "NotANumber"),
        objective="step_time",
    )
    failed = [t for t in result.trials if t.status == "failed"]
    assert failed
    assert all(t.recipe.tp == 2 and "nan" in t.reason for t in failed)
    assert all(t.recipe.tp != 2 for t in result.best)


def test_the_disk_is_waited_for_once_a_second_and_records_are_there_at_once(tmp_path, monkeypatch):
    path, waited, now = tmp_path / "journal", [], [0.0]
    path.touch()
    monkeypatch.setattr(backends.os, "fsync", lambda handle: waited.append(now[0]))
    monkeypatch.setattr(backends.time, "monotonic", lambda: now[0])
    journal = backends.Journal(str(path))
    for moment in (0.0, 0.4, 0.9, 1.1, 2.0, 2.2):
        now[0] = moment
        journal.append_logs([{"op_code": 0, "moment": moment}])
        *_, last = backends.Journal(str(path)).read_logs(0)
        assert last["moment"] == moment
    assert waited == [0.0, 1.1, 2.2]
