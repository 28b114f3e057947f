"""Runs that repeat on a schedule, in the notation of crontab."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALLOWED = 'minute hour day-of-month month day-of-week, as in crontab: "0 2 * * 1"'


def check_schedule(schedule: str) -> None:
    """Refuse what crontab would not take, or what cannot be kept here.

    Raises:
        InputError: naming the problem.
    """
    if importlib.util.find_spec("apscheduler") is None:
        problem = "needs APScheduler, which is not installed"
        allowed = "pip install 'trainscout[schedule]', or cron and its like (docs/planning.md)"
        raise InputError("schedule", schedule, problem, allowed)
    _trigger(schedule)


def keep(
    schedule: str,
    run: Callable[[], bool],
    announce: Callable[[datetime], None],
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``run`` whenever it is due, in this thread, until it returns false.

    Times that come while ``run`` is busy are let go, so that runs never overlap. ``announce`` is
    told the next time before ``wait`` is called with seconds until it has come.
    """
    trigger = _trigger(schedule)
    after = datetime.now(trigger.timezone)
    while (due := trigger.get_next_fire_time(None, after)) is not None:
        announce(due)
        # In short turns: the clock may be set, or the machine sleep, meanwhile.
        while (left_s := (due - datetime.now(trigger.timezone)).total_seconds()) > 0:
            wait(min(left_s, _TURN_S))
        if not run():
            return
        after = max(datetime.now(trigger.timezone), due + timedelta(seconds=1))


_TURN_S = 30.0


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
