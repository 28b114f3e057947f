"""Schedules in crontab's notation."""

from datetime import datetime, timedelta

import pytest

from trainscout.simulators.predictor.question.errors import InputError

pytest.importorskip("apscheduler")

from trainscout.planning.schedule import _trigger, check_schedule, keep


def next_times(schedule: str, count: int) -> list[datetime]:
    trigger = _trigger(schedule)
    now, times = datetime(2026, 1, 1, tzinfo=trigger.timezone), []  # a Thursday
    for _ in range(count):
        now = trigger.get_next_fire_time(None, now)
        times.append(now)
        now += timedelta(seconds=1)
    return times


@pytest.mark.parametrize(
    ("weekday", "days"),
    [
        ("1", ["Mon"]),
        ("0", ["Sun"]),
        ("7", ["Sun"]),
        ("1-5", ["Fri", "Mon", "Thu", "Tue", "Wed"]),
        ("sat,sun", ["Sat", "Sun"]),
        ("5-7", ["Fri", "Sat", "Sun"]),
        ("sat-sun", ["Sat", "Sun"]),
        ("*/3", ["Sat", "Sun", "Wed"]),
        ("1/2", ["Fri", "Mon", "Wed"]),
    ],
)
def test_days_of_the_week_count_as_in_crontab(weekday, days):
    times = next_times(f"0 2 * * {weekday}", len(days))
    assert sorted(time.strftime("%a") for time in times) == days
    assert {(time.hour, time.minute) for time in times} == {(2, 0)}


def test_every_quarter_of_an_hour():
    times = next_times("*/15 * * * *", 4)
    assert [time.minute for time in times] == [0, 15, 30, 45]


@pytest.mark.parametrize(
    "schedule", ["", "0 2 * *", "61 * * * *", "0 2 * * 8", "0 2 * * 5-1", "0 2 1 * 1", "a b c d e"]
)
def test_what_crontab_would_not_take_is_refused(schedule):
    with pytest.raises(InputError, match="schedule="):
        check_schedule(schedule)


def test_runs_go_on_until_one_says_stop(monkeypatch):
    now = datetime(2026, 1, 1, 1, 59, 30, tzinfo=_trigger("* * * * *").timezone)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return now

    def wait(seconds):
        nonlocal now
        now += timedelta(seconds=seconds)

    def run():
        nonlocal now
        runs.append(now)
        now += timedelta(minutes=65)  # the times of this hour are let go
        return len(runs) < 3

    runs, announced = [], []
    monkeypatch.setattr("trainscout.planning.schedule.datetime", Clock)
    keep("*/10 * * * *", run, announced.append, wait)
    assert [(time.hour, time.minute) for time in runs] == [(2, 0), (3, 10), (4, 20)]
    assert announced == runs
