"""When a run was made, as far as its framework label tells; software facts depend on it."""

from __future__ import annotations

import re

from trainscout.simulators.laboratory.published.rows import Row
from trainscout.simulators.predictor.question.gpu import Gpu

_MLPERF = {
    "3.0": 2023.4,
    "3.1": 2023.8,
    "4.0": 2024.4,
    "4.1": 2024.8,
    "5.0": 2025.4,
    "5.1": 2025.8,
}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

# Release years of NCCL as they reached PyTorch and NGC containers (NCCL release notes).
_NCCL = ((2021.0, "2.7"), (2022.0, "2.10"), (2023.0, "2.12"), (2024.0, "2.18"), (2025.0, "2.22"))
# Jiang et al. 2024 (arXiv 2402.15627) measured in the second half of 2023.
_MEGASCALE = 2023.7
# NVIDIA's NeMo-Framework-Launcher ended with the 24.05 containers.
_LAST_LAUNCHER = 2024.3
_NCCL_LATEST = "2.27"


def published_year(row: Row) -> float | None:
    """The year in the framework's label (2024.5 is mid 2024), else that of the paper it was
    published in, else None.

    Labels carry a year, perhaps a month (``Megatron-LM (Feb 2022)``; the middle of the year
    otherwise), a container (``NeMo 24.09``), an MLPerf
    round (``NeMo (MLPerf v3.1)``) or a Megatron-Core release (``mcore r0.8.0``).
    """
    label = row.framework
    if match := re.search(r"MLPerf v(\d\.\d)", label):
        return _MLPERF.get(match[1])
    if match := re.search(r"(?:(\w{3})\w* )?\b(20[12]\d)\b", label):
        month = (match[1] or "").lower()
        passed = _MONTHS.index(month) / 12 if month in _MONTHS else 0.5
        return int(match[2]) + passed
    if match := re.search(r"\b(2[2-9])\.(0[1-9]|1[0-2])\b", label):
        return 2000 + int(match[1]) + (int(match[2]) - 1) / 12
    if match := re.search(r"mcore r0\.(\d+)", label):
        # Core 0.8 came out in July 2024, a release about every two months after it.
        return 2024.5 + (int(match[1]) - 8) / 6
    if match := re.search(r"et al\. (20[12]\d)", row.source):
        return int(match[1]) + 0.5
    if "megascale" in row.source.lower():
        return _MEGASCALE
    if "framework-launcher" in row.source.lower():
        return _LAST_LAUNCHER
    return None


def year_of(row: Row, gpu: Gpu) -> float:
    """``published_year``, else when the GPU's generation was what people trained on."""
    year = published_year(row)
    return gpu.architecture.usual_server.year if year is None else year


def nccl_version(year: float) -> str:
    """The NCCL release that software of that year shipped with."""
    return next((version for before, version in _NCCL if year < before), _NCCL_LATEST)
