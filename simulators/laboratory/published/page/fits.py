"""What the fitted models of kernels, collectives and overlap say of themselves.

Every fitted file of ``simulators`` holds the errors on rows that its fit did not see; here they
are read for the accuracy page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml

BURST, SUSTAINED = "bursts", "at the power limit"
GEMM_BOUND, ATTENTION_BOUND = 0.06, 0.08
TARGET_GPUS = ("a100_80", "h100", "h200", "b200")
# Precisions that training seldom multiplies in; nothing was aimed at there.
_OTHER_PRECISIONS = ("fp32", "tf32")


@dataclass(frozen=True)
class KernelFit:
    """Median and 90th percentile of the absolute error, and the median signed one.

    ``kernel`` names the class and, for attention and grouped products, the pass; ``state`` says
    of products whether rows were bursts or runs at the power limit. ``split`` is how rows were
    kept from the fit: a fixed fifth, or cross-validation where rows are few.
    """

    gpu: str
    section: str
    kernel: str
    precision: str
    state: str
    split: str
    rows: int
    median: float
    p90: float
    bias: float

    @property
    def bound(self) -> float | None:
        """The median that was aimed at; None where nothing was."""
        if self.gpu not in TARGET_GPUS or self.precision in _OTHER_PRECISIONS:
            return None
        if self.section == "gemm":
            return GEMM_BOUND
        return ATTENTION_BOUND if self.section in ("attention", "attention_flash2") else None

    @property
    def met(self) -> bool | None:
        """Whether the median is within its bound; None without one."""
        return None if self.bound is None else self.median <= self.bound


def kernel_fits() -> list[KernelFit]:
    """Every kernel class of every fitted GPU, on rows that its fit did not see."""
    found: list[KernelFit] = []
    folder = resources.files("trainscout.simulators.predictor.kernels") / "fitted"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".yaml"):
            continue
        content: dict[str, Any] = read_yaml(file)
        gpu = content["gpu"]["name"]
        for section, parts in content.items():
            for name, part in parts.items():
                if isinstance(part, Mapping):
                    found.extend(_of_part(gpu, section, name, part))
    return found


def _of_part(gpu: str, section: str, name: str, part: Mapping[str, Any]) -> Iterator[KernelFit]:
    """A streaming part is a class, any other part the precision of its section's class."""
    kernel, precision = (name, "") if section == "streaming" else (section, name)
    residuals = part.get("residuals", {})
    if "held_out" in residuals:
        state = BURST if section == "gemm" else ""
        yield KernelFit(
            gpu, section, kernel, precision, state, "held out", **residuals["held_out"]
        )
    for pass_, figures in residuals.get("cross_validated", {}).items():
        name = f"{kernel}, {pass_}"
        yield KernelFit(gpu, section, name, precision, "", "cross-validated", **figures)
    hot = part.get("sustained", {}).get("residuals", {}).get("held_out")
    if hot:
        yield KernelFit(gpu, section, kernel, precision, SUSTAINED, "held out", **hot)


def collective_fit_errors() -> dict[str, dict[str, Any]]:
    """Of each fit in and out of sample: ``clusters``, ``by_size_band`` and ``all``."""
    errors: dict[str, dict[str, Any]] = _load("collectives", "fit_errors.yaml")["errors"]
    return errors


def overlap_residuals() -> dict[str, dict[str, Any]]:
    """Of each group of rows: ``n`` and, by predictor, hit rates and RMSE."""
    found: dict[str, dict[str, Any]] = _load("interference", "overlap_errors.yaml")["residuals"]
    return found


def _load(room: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = read_yaml(Path(__file__).parents[2] / room / name)
    return content
