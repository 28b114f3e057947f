"""The typical step time of the job that a training's own log is of."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError, check_size
from trainscout.simulators.predictor.question.job import Job

FIELD = "--from-log"
SECONDS, TOKENS, SAMPLES = "seconds", "tokens per second and GPU", "samples per second"


@dataclass(frozen=True)
class Format:
    """What a framework's line says of a step: ``value`` in ``unit``."""

    framework: str
    line: re.Pattern[str]
    unit: str = SECONDS
    batch: re.Pattern[str] | None = None


def _format(stated: dict[str, Any]) -> Format:
    for name in ("line", "batch"):
        stated[name] = re.compile(stated[name]) if name in stated else None
    return Format(**stated)


FORMATS = tuple(map(_format, read_yaml(Path(__file__).with_suffix(".yaml"))))
# A line that begins to speak of a step: where it is wrapped, the rest follows.
_BEGINNING = re.compile(r"iteration[:\s=]\s*\d+\s*/|timer\.py:\d+:stop\]|\bsteps?:\s*\d+\s")
_MOST_WRAPPED = 5
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")
_MOST_BYTES = 512 << 20
_LONGEST = 4096


@dataclass(frozen=True)
class Step:
    """A line that says how long a step took: ``value`` in the format's unit. ``number`` and
    ``batch`` (samples; nanotron's of 2025, tokens) where it says them."""

    line: int
    value: float
    number: int | None
    batch: int | None


class _Steps:
    """The steps of one kind of line, each once: ranks may all print it, in any order as long as
    they wait for each other, and a bar is drawn again."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.since_s = 0
        self._recent: deque[int] = deque(maxlen=2)

    def add(self, step: Step, since_s: int) -> None:
        self.since_s = max(self.since_s, since_s)
        if step.number is not None:
            if step.number in self._recent:
                return
            self._recent.append(step.number)
        self.steps.append(step)


def read_steps(path: Path) -> tuple[Format, list[Step]]:
    """The steps in a log, and the format of its lines.

    Raises:
        InputError: for a log that cannot be read, or without steps of any known framework.
    """
    found: dict[tuple[str, str], _Steps] = {}
    for number, form, text, match in _matches(_lines(path)):
        parts = match.groupdict()
        # Bars of loading, evaluation and training differ in how much there is to do.
        key = form.framework, parts.get("total") or ""
        since_s = _seconds_of(parts.get("since") or "0")
        found.setdefault(key, _Steps()).add(_step(form, number, text, match), since_s)
    for form in FORMATS:
        kinds = [each for key, each in found.items() if key[0] == form.framework]
        if kinds:
            # Training is what takes longest.
            return form, max(kinds, key=lambda each: (each.since_s, len(each.steps))).steps
    names = ", ".join(each.framework for each in FORMATS)
    raise InputError(FIELD, path, "has no step of a known framework", f"a log of {names}")


def _matches(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Format, str, re.Match[str]]]:
    """Lines that say how long a step took, and those that do with what they are wrapped to."""
    begun: list[str] = []
    at = 0
    for number, line in lines:
        found = _match(line)
        if found is None and _BEGINNING.search(line):
            begun, at = [line], number
            continue
        if found is None and begun and len(begun) < _MOST_WRAPPED:
            begun.append(line)
            # Terminals wrap within words as well.
            found = _match(" ".join(begun)) or _match("".join(begun))
        if found is not None:
            yield (at if begun else number), *found
            begun = []


def _match(text: str) -> tuple[Format, str, re.Match[str]] | None:
    for form in FORMATS:
        match = form.line.search(text)
        if match is not None:
            return form, text, match
    return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        check_size(FIELD, path, _MOST_BYTES)
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                # A progress bar writes over itself.
                for part in line.rstrip("\n").split("\r"):
                    yield number, _ESCAPES.sub("", part[:_LONGEST])
    except OSError as error:
        raise InputError(FIELD, path, f"cannot be read: {error.strerror}") from error


def _step(form: Format, line: int, text: str, match: re.Match[str]) -> Step:
    parts = match.groupdict()
    value = float(parts["value"].replace(",", "")) * _SUFFIXES[parts.get("suffix") or ""]
    if parts.get("rate") == "it/s":
        value = 1 / value if value else 0.0
    number = None if parts.get("step") is None else int(float(parts["step"]))
    batch = None if form.batch is None else form.batch.search(text)
    stated = None if batch is None else round(float(batch[1]) * _SUFFIXES[batch[2]])
    return Step(line, value / 1000 if parts.get("ms") else value, number, stated)


def _seconds_of(clock: str) -> int:
    """Seconds of ``[H:]MM:SS``."""
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part or 0)
    return total


# Steps after the start that take this much longer than the rest are warm-up: allocators grow,
# kernels are chosen and compiled.
_WARM_UP = 1.1
_LEAST_STEPS = 3
# Beyond these, a step did something else as well (a checkpoint, an evaluation).
_FAR, _LEAST_FAR = 6.0, 0.03
# Parts of one log whose steps differ by more are of different jobs.
_MIXED = 0.25
_QUARTERS, _LEAST_PART = 4, 5
RECENT = 50
"""How many of the last steps say how a job runs now."""


@dataclass(frozen=True)
class LogSteps:
    """The steps of one job: seconds of the typical one, and in words what was left out."""

    framework: str
    step_time_s: float
    kept: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Timed:
    """A step of a known line, in seconds."""

    line: int
    seconds: float


def read_log(path: Path, job: Job, *, recent: bool = False) -> LogSteps:
    """The step time that a log of a job's run says; ``recent``: of the last ``RECENT`` steps.

    Raises:
        InputError: for a log that cannot be read, without steps of any known framework, of another
            batch than the job's, or of several jobs; with the line.
    """
    form, steps = read_steps(path)
    own, notes = _of_batch(path, steps, job)
    starts = [_without_warm_up(each) for each in _starts(form, own, job)]
    if not recent:
        _one_job(path, starts)
    warm = [step for first, _ in starts for step in first]
    if warm:
        times = f", after {len(starts)} starts" if len(starts) > 1 else ""
        notes.append(
            f"{len(warm)} of {len(own)} steps are warm-up (to line {warm[-1].line}{times})"
        )
    settled = [step for _, rest in starts for step in rest]
    kept, far = _near(settled[-RECENT:] if recent else settled)
    if len(kept) < _LEAST_STEPS:
        problem = f"has {len(kept)} steps of {form.framework} besides warm-up"
        raise InputError(FIELD, path, problem, f"at least {_LEAST_STEPS}")
    if far:
        lines = ", ".join(str(step.line) for step in far[:5]) + (", ..." * (len(far) > 5))
        notes.append(f"{len(far)} steps are far from the others (line {lines})")
    return LogSteps(form.framework, median(kept), len(kept), tuple(notes))


def _of_batch(path: Path, steps: list[Step], job: Job) -> tuple[list[Step], list[str]]:
    """The steps of the job's batch: those before may be of one that still grew."""
    batch = job.training.global_batch_size
    batches = (batch, job.tokens_per_step)
    own: list[Step] = []
    other: list[Step] = []
    for step in steps:
        # nanotron rounds to three digits, and since 2025 counts tokens.
        same = step.batch is None or any(abs(step.batch / n - 1) <= 0.005 for n in batches)
        (own if same else other).append(step)
    if not other:
        return own, []
    if len(own) < _LEAST_STEPS:
        problem = f"has steps of {other[0].batch} samples at line {other[0].line}"
        allowed = f"the log of the job that is given, {batch} samples a step"
        raise InputError(FIELD, path, problem, allowed)
    stated = f"{len(other)} of {len(steps)} steps are of another batch (line {other[0].line}: "
    return own, [f"{stated}{other[0].batch} samples)"]


def _starts(form: Format, steps: list[Step], job: Job) -> list[list[_Timed]]:
    """The steps from every start of a run: they are counted from the last checkpoint again."""
    found: list[list[_Timed]] = [[]]
    for before, step in pairwise([None, *steps]):
        assert step is not None
        again = before is not None and None not in (before.number, step.number)
        if again and step.number < before.number:  # type: ignore[operator, union-attr]
            found.append([])
        found[-1].append(_Timed(step.line, _seconds(form, step, job)))
    return found


def _seconds(form: Format, step: Step, job: Job) -> float:
    if form.unit == SECONDS or step.value <= 0:
        return step.value
    if form.unit == TOKENS:
        return job.tokens_per_step / (step.value * job.world_size)
    return job.training.global_batch_size / step.value


def _without_warm_up(steps: list[_Timed]) -> tuple[list[_Timed], list[_Timed]]:
    positive = [each.seconds for each in steps if each.seconds > 0]
    middle = median(positive) if positive else 0.0
    warm = min(1, len(steps)) if len(steps) != _LEAST_STEPS else 0
    while warm < len(steps) // 2 and not 0 < steps[warm].seconds <= middle * _WARM_UP:
        warm += 1
    return steps[:warm], steps[warm:]


def _one_job(path: Path, starts: list[tuple[list[_Timed], list[_Timed]]]) -> None:
    """Refuse a log whose parts (from one start of a run to the next, in quarters) differ in
    speed."""
    usual = 0.0
    for number, (warm, steps) in enumerate(starts):
        size = max(_LEAST_PART, -(-len(steps) // _QUARTERS))
        for at in range(0, len(steps), size):
            part = steps[at : at + size]
            if len(part) < (_LEAST_PART if at else _LEAST_STEPS):
                continue
            found = median(each.seconds for each in part)
            usual = usual or found
            if _alike(found, usual):
                continue
            again = number > 0 and at == 0
            began = "starts again" if again else "changes"
            other = next(each for each in part if not _alike(each.seconds, usual))
            line = (warm or part)[0].line if again else other.line
            problem = (
                f"{began} at line {line}, with steps of {found:.4g} s after {usual:.4g} s: "
                "several jobs in one log"
            )
            raise InputError(FIELD, path, problem, "one log for each job, as it runs now")


def _alike(seconds: float, usual: float) -> bool:
    return usual / (1 + _MIXED) <= seconds <= usual * (1 + _MIXED)


def _near(steps: list[_Timed]) -> tuple[list[float], list[_Timed]]:
    """Seconds of steps that are not far from the others, and those that are."""
    middle = median(each.seconds for each in steps) if steps else 0.0
    spread = median(abs(each.seconds - middle) for each in steps) if steps else 0.0
    reach = max(_FAR * spread, _LEAST_FAR * middle)
    kept: list[float] = []
    far: list[_Timed] = []
    for step in steps:
        if step.seconds > 0 and abs(step.seconds - middle) <= reach:
            kept.append(step.seconds)
        else:
            far.append(step)
    return kept, far
