"""Runs that repeat on a schedule, in the notation of crontab."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALLOWED = 'minute hour day-of-month month day-of-week, as in crontab: "0 2 * * 1"'


def check_schedule(schedule: str) -> None:
    """Refuse what crontab would not take, or what cannot be kept here."""
    if importlib.util.find_spec("apscheduler") is None:
        problem = "needs APScheduler, which is not installed"
        allowed = "pip install 'trainscout[schedule]', or cron and its like (docs/planning.md)"
        raise InputError("schedule", schedule, problem, allowed)
    if _next_wall(_trigger(schedule), datetime.now()) is None:
        raise InputError("schedule", schedule, "names a day that never comes", _ALLOWED)


def keep(
    schedule: str,
    run: Callable[[], bool],
    announce: Callable[[datetime], None],
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    zone: tzinfo | None = None,
) -> None:
    """Call ``run`` whenever it is due, in this thread, until it returns false.

    Times that come while ``run`` is busy are let go, so that runs never overlap. ``announce`` is
    told the next time before ``wait`` is called with seconds until it has come. ``zone`` is the
    one of the wall clock that the schedule is read on (None: this machine's).
    """
    trigger, zone = _trigger(schedule), zone or _local_zone()
    twice = schedule.split()[1].startswith("*")
    # Seconds are counted in UTC: two wall clocks of one zone differ by an hour too much or too
    # little when summer time began or ended between them.
    after = now().astimezone(UTC)
    while (due := _next_due(trigger, after, zone, twice)) is not None:
        announce(due.astimezone(zone))
        # In short turns: the clock may be set, or the machine sleep, meanwhile.
        while (left_s := (due - now()).total_seconds()) > 0:
            wait(min(left_s, _TURN_S))
        if not run():
            return
        after = max(now().astimezone(UTC), due + timedelta(seconds=1))


_TURN_S = 30.0


def _local_zone() -> tzinfo:
    from tzlocal import get_localzone

    return get_localzone()


def _next_due(trigger: Any, after: datetime, zone: tzinfo, twice: bool) -> datetime | None:
    """The first time from ``after`` on, in UTC, that is due on the wall clock of a zone.

    As cron has it: a time that summer time skips comes as much later as the clock is put forward,
    and one that its end repeats counts once; but every hour (``twice``) is every hour there is.
    """
    day = timedelta(days=1)
    moves = abs(_offset(after + day, zone) - _offset(after - day, zone))
    wall = _next_wall(trigger, after.astimezone(zone).replace(tzinfo=None, fold=0) - moves)
    due: datetime | None = None
    # Where the clock is moved, later readings may come before earlier ones.
    while wall is not None and (
        due is None or wall <= due.astimezone(zone).replace(tzinfo=None) + moves
    ):
        for moment in _moments(wall, zone, twice):
            if after <= moment and (due is None or moment < due):
                due = moment
        wall = _next_wall(trigger, wall + timedelta(seconds=1))
    return due


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _moments(wall: datetime, zone: tzinfo, twice: bool) -> Iterator[datetime]:
    """When, in UTC, a clock of the zone reads ``wall``."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if not twice:
        yield first
        return
    for moment in {first, second}:
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall:  # not skipped
            yield moment


def _next_wall(trigger: Any, wall: datetime) -> datetime | None:
    """The next reading of a clock that is never put forward or back."""
    found: datetime | None = trigger.get_next_fire_time(None, wall.replace(tzinfo=UTC))
    return None if found is None else found.replace(tzinfo=None)


def _trigger(schedule: str) -> Any:
    from apscheduler.triggers.cron import CronTrigger

    parts = schedule.split()
    if len(parts) != 5:
        raise InputError("schedule", schedule, "is no crontab line", _ALLOWED)
    minute, hour, day, month, weekday = parts
    if "*" not in (day[0], weekday[0]):
        # cron runs when either matches, the library when both do.
        problem = "restricts the day of the month and of the week at once"
        raise InputError("schedule", schedule, problem, "one of both as *")
    try:
        return CronTrigger(
            minute=minute,
            hour=hour,
            day=day,
            month=month,
            day_of_week=",".join(_weekdays(weekday.lower())),
            timezone=UTC,
        )
    except (ValueError, TypeError) as error:
        raise InputError("schedule", schedule, f"is no crontab line: {error}", _ALLOWED) from error


def _weekdays(field: str) -> list[str]:
    """The days by name: crontab counts from Sunday (0 and 7), the library from Monday."""
    chosen: set[int] = set()
    for item in field.split(","):
        days, _, step = item.partition("/")
        first, dash, last = days.partition("-")
        start, end = (
            (0, 6) if days == "*" else (_weekday(first), _weekday(last if dash else first))
        )
        if step and not dash and days != "*":
            end = 6
        if end == 0 and dash:
            end = 7
        if start > end or (step and int(step) < 1):
            raise ValueError(f"{item} names no days")
        chosen.update(day % 7 for day in range(start, end + 1, int(step or 1)))
    return [_DAYS[day] for day in sorted(chosen)]


def _weekday(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdecimal() or int(text) > 7:
        raise ValueError(f"{text!r} is no day of the week")
    return int(text)
