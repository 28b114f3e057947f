"""From the GPU a row names to the declared one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainscout.simulators.laboratory.published.outcome import CannotReplayError
from trainscout.simulators.predictor.question.gpu import Gpu

# The first pattern that matches the label decides; spelling of separators does not matter.
_NAMES = (
    (r"gb300", "gb300"),
    (r"gb200", "gb200"),
    (r"b300", "b300"),
    (r"b200", "b200"),
    (r"h200.*nvl|h200.*pcie", "h200_nvl"),
    (r"h200|gh200.*14[14]", "h200"),
    (r"h100.*(hbm2e|9[46]gb)", "h100_96_hbm2e"),
    (r"h100", "h100"),
    (r"h800", "h800"),
    (r"\bh20\b", "h20"),
    (r"a100.*pcie.*80|a100.*80.*pcie", "a100_80_pcie"),
    (r"a100.*40", "a100_40"),
    (r"a100", "a100_80"),
    (r"a800", "a800_80"),
    (r"a40\b", "a40"),
    (r"v100", "v100_32"),
    (r"3090", "rtx3090"),
)
_OTHER_PARTS = (
    (r"h100.*pcie|h100.*nvl", "h100"),
    (r"a100.*40.*pcie|a100.*pcie.*40", "a100_40"),
    (r"v100.*16", "v100_32"),
    (r"v100.*pcie", "v100_32"),
    (r"a800.*40", "a800_80"),
)


def gpu_of(label: str, gpus: Mapping[str, Gpu]) -> tuple[Gpu, tuple[str, ...]]:
    """The declared GPU that ``label`` names, and what was assumed to get there.

    Raises:
        CannotReplayError: for a GPU that is not declared, or a label that fits several.
    """
    plain = label.lower().replace("_", "-")
    if "power" in plain:
        raise CannotReplayError(f"{label}: a lowered power limit is not modelled")
    if re.search(r"\w\d+/\w+\d", plain):
        raise CannotReplayError(f"{label}: which GPU it was is not published")
    if plain in gpus:
        return gpus[plain], ()
    if any(re.search(pattern, plain) for pattern, _ in _OTHER_PARTS):
        raise CannotReplayError(f"{label}: this part is not declared in conf/gpu")
    for pattern, name in _NAMES:
        if re.search(pattern, plain) and name in gpus:
            assumed: tuple[str, ...] = ()
            if name == "a100_80" and "80" not in plain:
                assumed = ("memory size of the A100 not published: 80 GB",)
            return gpus[name], assumed
    called = [name for name in gpus if re.search(rf"\b{re.escape(name)}\b", plain)]
    if called:
        return gpus[max(called, key=len)], ()
    raise CannotReplayError(f"{label}: no such GPU is declared in conf/gpu")
