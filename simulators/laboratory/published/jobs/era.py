"""When a run was made, as far as it says; software facts depend on it, and no GPU tells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.io.yaml_files import read_yaml

_RELEASES = read_yaml(Path(__file__).with_name("frameworks.yaml"))["releases"]
_PARTS = {"ear": 0.15, "mid": 0.5, "lat": 0.85}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# From measuring to publishing.
_WRITING = 0.3
_CONFERENCE = (
    r"\b(?:nsdi|osdi|sosp|mlsys|asplos|isca|sc|ppopp|eurosys|atc|micro|icml|neurips|iclr)"
)
_CONFERENCE += r"['\s]*(20[12]\d)\b"
# NVIDIA's NeMo-Framework-Launcher ended with the 24.05 containers.
_LAST_LAUNCHER = 2024.3

# Nothing can have had a feature before its software did: context parallelism (Megatron-Core and
# Transformer Engine from the end of 2023, PyTorch later), 8-bit operands (Transformer Engine, end
# of 2022; with scales of blocks, early 2025).
_CONTEXT_PARALLEL = 2024.0
_EIGHT_BITS = 2022.9
_BLOCK_SCALES = 2025.1


@dataclass(frozen=True)
class Era:
    """The year of a row's software (2024.5 is mid 2024) and in words what tells it; None where
    nothing does, and the software counts as today's."""

    year: float | None
    why: str

    def before(self, year: float) -> bool:
        """Whether the software is known to be older."""
        return self.year is not None and self.year < year


def era_of(row: Row, statement: Statement) -> Era:
    """When the software of a row is from: by its label, its publication, its notes; never before
    what the row says it did."""
    told = _told(row, statement)
    least, feature = _least(row, statement)
    if told.year is not None and told.year < least:
        return Era(least, f"{feature}, which {told.why} predates")
    if told.year is None and least > _EIGHT_BITS:
        return Era(None, f"not published, but with {feature}")
    return told


def nccl_version(era: Era) -> str:
    """The NCCL release that software of that year shipped with."""
    *older, latest = _RELEASES["nccl"].items()
    return str(next((release for release, year in older if era.before(year)), latest[0]))


def _told(row: Row, statement: Statement) -> Era:
    if (year := _version(statement.label)) is not None:
        return Era(year, "its label")
    source = row.source.lower()
    if match := re.search(r"et al\.,? \(?(20[12]\d)", source):
        return Era(int(match[1]) + 0.5, "its paper")
    if match := re.search(r"arxiv[: ]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", source):
        return Era(_month(2000 + int(match[1]), int(match[2])) - _WRITING, "its paper")
    if match := re.search(_CONFERENCE, source):
        return Era(int(match[1]) - _WRITING, "its paper")
    if "framework-launcher" in source:
        return Era(_LAST_LAUNCHER, "the launcher's last release")
    if (year := _version(statement.facts)) is not None:
        return Era(year, "its notes")
    return Era(None, "not published")


def _least(row: Row, statement: Statement) -> tuple[float, str]:
    """The earliest year of what a row's columns say, and that in words."""
    found = [(0.0, "")]
    if given(row.cp, 1) > 1:
        found.append((_CONTEXT_PARALLEL, "context parallelism"))
    if statement.arithmetic == "fp8":
        found.append((_EIGHT_BITS, "8-bit operands"))
    if statement.arithmetic in ("mxfp8", "nvfp4", "fp4"):
        found.append((_BLOCK_SCALES, "block-scaled operands"))
    return max(found)


def _version(facts: Mapping[str, str]) -> float | None:
    """The year of the most telling version or date among facts, None without any."""
    torch = _RELEASES["torch"]
    readers: tuple[tuple[str, Callable[[str], float | None]], ...] = (
        ("mlperf_round", _RELEASES["mlperf"].get),
        ("month", _date),
        ("container", lambda text: _month(2000 + int(text.split(".")[0]), _minor(text))),
        # Core 0.8 came out in July 2024, a release about every two months around it.
        ("core", lambda minor: 2024.5 + (int(minor) - 8) / 6),
        ("torch", lambda text: torch.get("1" if text[0] == "1" else text, torch["latest"])),
        # Transformer Engine 1.0 is of December 2023, 2.0 of February 2025, a minor every month.
        ("engine", lambda text: (2023.0, 2023.9, 2025.1)[int(text[0])] + _minor(text) / 12),
        # DeepSpeed 0.6 is of March 2022, a minor about every three and a half months.
        ("deepspeed_release", lambda text: 2022.2 + (_minor(text) - 6) * 0.29),
        # Transformers 4.12 is of October 2021, 4.36 of December 2023, 5.0 of early 2026.
        ("transformers_release", _transformers_release),
        # Megatron-Bridge 0.1 is of October 2025, a minor about every two months.
        ("bridge_release", lambda text: 2025.65 + int(text[2:]) * 0.15),
        # NeMo 1.20 is of July 2023; NeMo 2.0 of autumn 2024, a minor every two or three months.
        ("nemo_release", _nemo_release),
        ("megatron_release", lambda major: {"2": 2021.5, "3": 2022.5}[major]),
        ("year", lambda text: int(text) + 0.5),
    )
    for fact, year in readers:
        if fact in facts:
            return year(facts[fact])
    return None


def _nemo_release(text: str) -> float:
    minor = _minor(text)
    return 2021.4 + minor * 0.11 if text[0] == "1" else 2024.8 + minor * 0.2


def _transformers_release(text: str) -> float:
    minor = _minor(text)
    return 2020.75 + 0.089 * minor if text[0] == "4" else 2026.0 + 0.05 * minor


def _minor(text: str) -> int:
    return int(text.split(".")[1])


def _month(year: int, month: int) -> float:
    return year + (month - 1) / 12


def _date(text: str) -> float:
    if match := re.match(r"(\d{4})-(\d\d)", text):
        return _month(int(match[1]), int(match[2]))
    if text[:3] in _PARTS:
        return int(text[-4:]) + _PARTS[text[:3]]
    return _month(int(text[-4:]), _MONTHS.index(text[:3]) + 1)
