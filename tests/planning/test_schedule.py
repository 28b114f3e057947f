"""Schedules in crontab's notation."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

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


class Day:
    """A machine's clock, which waiting and working move on; when its runs began."""

    def __init__(self, start: datetime, zone: str, takes: timedelta, until: datetime) -> None:
        self.now, self.zone, self.takes, self.until = start, ZoneInfo(zone), takes, until
        self.began: list[datetime] = []
        self.announced: list[datetime] = []

    def keep(self, schedule: str) -> list[datetime]:
        keep(schedule, self.run, self.announced.append, self.wait, lambda: self.now, self.zone)
        return self.began

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        # The turns until a run is due are not what is tested.
        self.now = max(self.now + timedelta(seconds=seconds), self.announced[-1].astimezone(UTC))

    def run(self) -> bool:
        self.began.append(self.now)
        self.now += self.takes
        return self.now < self.until


def test_runs_go_on_until_one_says_stop():
    start = datetime(2026, 1, 1, 1, 59, 30, tzinfo=UTC)
    # The times of the hour that a run takes are let go.
    day = Day(start, "UTC", timedelta(minutes=65), start + timedelta(hours=3))
    runs = day.keep("*/10 * * * *")
    assert [(time.hour, time.minute) for time in runs] == [(2, 0), (3, 10), (4, 20)]
    assert day.announced == runs


ZONES = {  # of 2026: when the clock is moved, and by how many hours
    "Europe/Berlin": [("2026-03-29T01:00", 1), ("2026-10-25T01:00", -1)],
    "America/New_York": [("2026-03-08T07:00", 1), ("2026-11-01T06:00", -1)],
    "Australia/Lord_Howe": [("2026-04-04T15:00", -0.5), ("2026-10-03T15:30", 0.5)],
    "America/Santiago": [("2026-04-05T03:00", -1), ("2026-09-06T04:00", 1)],
    "Africa/Casablanca": [("2026-02-15T02:00", -1), ("2026-03-22T02:00", 1)],
    "Asia/Kolkata": [],
}


@pytest.mark.parametrize("zone", ZONES)
def test_every_day_of_a_year(zone):
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    runs = Day(start, zone, timedelta(minutes=5), end).keep("30 2 * * *")
    days = [time.astimezone(ZoneInfo(zone)).date() for time in runs]
    assert all((b - a).days == 1 for a, b in pairwise(days))


def test_every_hour_of_a_year():
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    runs = Day(start, "Europe/Berlin", timedelta(minutes=5), end).keep("0 * * * *")
    assert {b - a for a, b in pairwise(runs)} == {timedelta(hours=1)}


@pytest.mark.parametrize(
    ("zone", "moment", "hours"), [(zone, *move) for zone, moves in ZONES.items() for move in moves]
)
@pytest.mark.parametrize("takes_min", [1, 40, 100])
def test_around_the_hour_that_the_clock_is_moved(zone, moment, hours, takes_min):
    """Never more runs than there are times, whatever a run takes; the first and last as due."""
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert abs((offset(at, zone) - offset(at - timedelta(minutes=1), zone)).total_seconds()) == (
        abs(hours) * 3600
    )
    start, end = at - timedelta(hours=5), at + timedelta(hours=5)
    takes = timedelta(minutes=takes_min)
    runs = Day(start, zone, takes, end).keep("*/15 * * * *")
    for before, after in pairwise(runs):
        # The next quarter of an hour after a run has ended: zones move by whole quarters.
        quarters = -(-takes // timedelta(minutes=15))
        assert after - before == timedelta(minutes=15) * quarters
    local = (at + timedelta(minutes=20)).astimezone(ZoneInfo(zone))
    # A time that comes twice counts once, and one that is skipped is made up for.
    day = Day(at - timedelta(hours=5), zone, takes, at + timedelta(hours=20))
    assert len([t for t in day.keep(f"{local.minute} {local.hour} * * *") if t < day.until]) == 1


def offset(moment: datetime, zone: str) -> timedelta:
    return moment.astimezone(ZoneInfo(zone)).utcoffset()


def test_a_time_that_summer_time_skips_comes_later():
    at = datetime(2026, 3, 29, 0, tzinfo=UTC)
    (run,) = Day(at, "Europe/Berlin", timedelta(minutes=1), at).keep("30 2 * * *")
    assert f"{run.astimezone(ZoneInfo('Europe/Berlin')):%H:%M}" == "03:30"


def test_a_day_that_never_comes_is_refused():
    with pytest.raises(InputError, match="never comes"):
        check_schedule("0 0 30 2 *")
