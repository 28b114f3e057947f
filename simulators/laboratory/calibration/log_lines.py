"""The lines in which training frameworks say how long a step took (``log_lines.yaml``)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError

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


def read_steps(path: Path, field: str) -> tuple[Format, list[Step]]:
    """The steps in a log, and the format of its lines.

    Raises:
        InputError: for a log that cannot be read, or without steps of any known framework.
    """
    found: dict[tuple[str, str], _Steps] = {}
    for number, form, text, match in _matches(_lines(path, field)):
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
    raise InputError(field, path, "has no step of a known framework", f"a log of {names}")


def _matches(
    lines: Iterator[tuple[int, str]],
) -> Iterator[tuple[int, Format, str, re.Match[str]]]:
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


def _lines(path: Path, field: str) -> Iterator[tuple[int, str]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(field, path, "is too large", f"at most {_MOST_BYTES} bytes")
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                # A progress bar writes over itself.
                for part in line.rstrip("\n").split("\r"):
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
    stated = None if batch is None else round(float(batch[1]) * _SUFFIXES[batch[2]])
    return Step(line, value / 1000 if parts.get("ms") else value, number, stated)


def _seconds_of(clock: str) -> int:
    """Seconds of ``[H:]MM:SS``."""
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part or 0)
    return total
