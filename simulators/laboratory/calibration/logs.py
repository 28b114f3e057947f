"""Step times out of the logs that training frameworks write, as they write them.

Formats, by the lines that frameworks print today and did in the past: Megatron-LM (and what
derives from it: Megatron-DeepSpeed, GPT-NeoX, Megatron-Bridge, Primus), NeMo on Lightning,
TorchTitan, DeepSpeed, nanotron, and the progress bar of HF Trainer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job

SECONDS, TOKENS, SAMPLES = "seconds", "tokens per second and GPU", "samples per second"


@dataclass(frozen=True)
class Format:
    """What a framework's line says of a step: ``value`` in ``unit`` (times ``scale``)."""

    framework: str
    line: re.Pattern[str]
    unit: str = SECONDS
    scale: float = 1.0
    batch: re.Pattern[str] | None = None


_BATCH = re.compile(r"global[ _]batch[ _]size:\s*([\d.]+)([KMB]?)")
# Where a log has lines of two kinds, those of the first format say the step's whole time.
FORMATS = (
    Format(
        "Megatron-LM",
        re.compile(
            r"iteration\s+(?P<step>\d+)\s*/\s*(?:\d+|infinity)\s*\|.*?"
            r"elapsed time per iteration \(ms\):\s*(?P<value>[\d.]+)"
        ),
        scale=1e-3,
        batch=_BATCH,
    ),
    Format(
        "nanotron",
        re.compile(
            r"iteration:\s*(?P<step>\d+)\s*/\s*\d+\s*\|.*?"
            r"elapsed_time_per_iteration_ms:\s*(?P<value>[\d.]+)(?P<suffix>[KMB]?)"
        ),
        scale=1e-3,
        batch=_BATCH,
    ),
    Format(
        "NeMo",
        re.compile(
            r"(?:global_step[=:]\s*(?P<step>[\d.e+]+).*?)?"
            r"train_step_timing in s[=:]\s*(?P<value>[\d.]+)"
        ),
        batch=_BATCH,
    ),
    Format("Megatron-Bridge", re.compile(r"Step Time\s*:\s*(?P<value>[\d.]+)s GPU utilization")),
    Format(
        "TorchTitan",
        re.compile(r"\bstep:\s*(?P<step>\d+)\s.*?\btps:\s*(?P<value>[\d,]+)"),
        unit=TOKENS,
    ),
    Format(
        "DeepSpeed",
        re.compile(
            r"(?:global_step=|\]\s\d+/)(?P<step>\d+), "
            r"(?:RunningAvgSamplesPerSec=[\d.]+, Curr)?SamplesPerSec=(?P<value>[\d.]+)"
        ),
        unit=SAMPLES,
    ),
    Format(
        "HF Trainer",
        re.compile(r"(?P<step>\d+)/\d+ \[[\d:]+<[\d:?]+,\s*(?P<value>[\d.]+)(?P<rate>s/it|it/s)"),
    ),
)
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9}
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")
_MOST_BYTES = 512 << 20
_LONGEST = 4096
# Steps after the start that take this much longer than the rest are warm-up: allocators grow,
# kernels are chosen and compiled.
_WARM_UP = 1.1
_LEAST_STEPS = 3
# Beyond these, a step did something else as well (a checkpoint, an evaluation).
_FAR, _LEAST_FAR = 6.0, 0.03
# Parts of one log whose steps differ by more are of different jobs.
_MIXED = 0.25


@dataclass(frozen=True)
class Step:
    """A line that says how long a step took: ``value`` in the format's unit. ``number`` and
    ``batch`` (samples) where it says them."""

    line: int
    value: float
    number: int | None
    batch: int | None


@dataclass(frozen=True)
class LogSteps:
    """The steps of one job: seconds of the typical one, and in words what was left out."""

    framework: str
    step_time_s: float
    kept: int
    notes: tuple[str, ...]


def read_log(path: Path, job: Job, field: str = "--from-log") -> LogSteps:
    """The step time that a log of a job's run says.

    Raises:
        InputError: for a log that cannot be read, without steps of any known framework, of another
            batch than the job's, or of several jobs; with the line.
    """
    found, steps = _steps(path, field)
    _same_batch(path, field, steps, job)
    seconds = [_seconds(found, step, job) for step in steps]
    _one_job(path, field, steps, seconds)
    kept, warm, outliers = _typical(steps, seconds)
    if len(kept) < _LEAST_STEPS:
        problem = f"has {len(kept)} steps of {found.framework} besides warm-up"
        raise InputError(field, path, problem, f"at least {_LEAST_STEPS}")
    notes = []
    if warm:
        notes.append(f"{warm} of {len(steps)} steps are warm-up (to line {steps[warm - 1].line})")
    if outliers:
        lines = ", ".join(str(line) for line in outliers[:5]) + (", ..." * (len(outliers) > 5))
        notes.append(f"{len(outliers)} steps are far from the others (line {lines})")
    return LogSteps(found.framework, median(kept), len(kept), tuple(notes))


def _steps(path: Path, field: str) -> tuple[Format, list[Step]]:
    found: dict[str, list[Step]] = {each.framework: [] for each in FORMATS}
    for number, line in _lines(path, field):
        for each in FORMATS:
            match = each.line.search(line)
            if match is not None:
                step = _step(each, number, line, match)
                # Every rank may print the same step.
                same = found[each.framework] and step.number is not None
                if not (same and found[each.framework][-1].number == step.number):
                    found[each.framework].append(step)
                break
    for each in FORMATS:
        if found[each.framework]:
            return each, found[each.framework]
    names = ", ".join(each.framework for each in FORMATS)
    raise InputError(field, path, "has no step of a known framework", f"a log of {names}")


def _lines(path: Path, field: str) -> Iterator[tuple[int, str]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(field, path, "is too large", f"at most {_MOST_BYTES} bytes")
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                # A progress bar writes over itself.
                for part in line.split("\r"):
                    yield number, _ESCAPES.sub("", part[:_LONGEST])
    except OSError as error:
        raise InputError(field, path, f"cannot be read: {error.strerror}") from error


def _step(form: Format, line: int, text: str, match: re.Match[str]) -> Step:
    parts = match.groupdict()
    value = float(parts["value"].replace(",", "")) * _SUFFIXES[parts.get("suffix") or ""]
    if parts.get("rate") == "it/s":
        value = 1 / value if value else 0.0
    number = None if parts.get("step") is None else int(float(parts["step"]))
    batch = None if form.batch is None else form.batch.search(text)
    said = None if batch is None else round(float(batch[1]) * _SUFFIXES[batch[2]])
    return Step(line, value * form.scale, number, said)


def _seconds(form: Format, step: Step, job: Job) -> float:
    if form.unit == SECONDS or step.value <= 0:
        return step.value
    if form.unit == TOKENS:
        return job.tokens_per_step / (step.value * job.world_size)
    return job.training.global_batch_size / step.value


def _same_batch(path: Path, field: str, steps: list[Step], job: Job) -> None:
    """Refuse steps of another size: of another job, or of a batch that is still growing."""
    batch = job.training.global_batch_size
    for step in steps:
        # nanotron rounds to three digits.
        if step.batch is not None and abs(step.batch / batch - 1) > 0.005:
            problem = f"has steps of {step.batch} samples at line {step.line}"
            allowed = f"the log of the job that is given, {batch} samples a step"
            raise InputError(field, path, problem, allowed)


def _one_job(path: Path, field: str, steps: list[Step], seconds: list[float]) -> None:
    """Refuse a log whose parts, each counting its steps from the start, differ in speed."""
    starts = [0]
    for at, (before, step) in enumerate(pairwise(steps), 1):
        if before.number is not None and step.number is not None and step.number < before.number:
            starts.append(at)
    parts = [seconds[a:b] for a, b in pairwise([*starts, len(steps)])]
    typical = [median(part) for part in parts]
    for at, found in enumerate(typical):
        if not typical[0] / (1 + _MIXED) <= found <= typical[0] * (1 + _MIXED):
            problem = (
                f"starts again at line {steps[starts[at]].line}, with steps of {found:.4g} s "
                f"after {typical[0]:.4g} s: several jobs in one log"
            )
            raise InputError(field, path, problem, "one log for each job")


def _typical(steps: list[Step], seconds: list[float]) -> tuple[list[float], int, list[int]]:
    """Seconds without the first steps and those far off, how many were first, lines far off."""
    positive = [each for each in seconds if each > 0]
    middle = median(positive) if positive else 0.0
    warm = 1 if len(seconds) > _LEAST_STEPS else 0
    while warm < len(seconds) // 2 and not 0 < seconds[warm] <= middle * _WARM_UP:
        warm += 1
    rest = list(zip(steps[warm:], seconds[warm:], strict=True))
    middle = median(each for _, each in rest) if rest else 0.0
    spread = median(abs(each - middle) for _, each in rest) if rest else 0.0
    reach = max(_FAR * spread, _LEAST_FAR * middle)
    kept = [each for _, each in rest if each > 0 and abs(each - middle) <= reach]
    far = [step.line for step, each in rest if each <= 0 or abs(each - middle) > reach]
    return kept, warm, far
