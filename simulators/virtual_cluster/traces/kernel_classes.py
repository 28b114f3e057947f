"""Which class of device work a kernel belongs to, by its name and the operation that launched it.

One set of classes for what a profiler saw and for what was predicted, so that they compare:
profilers name kernels (``sm90_xmma_gemm_bf16...``), traces name operations (``aten.mm.default``).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from trainscout.simulators.predictor.io.yaml_files import read_yaml

from .vocabulary import KERNELS, NAMESPACE

CLASSES = (
    "gemm", "attention", "convolution", "norm", "softmax", "cross_entropy", "embedding",
    "optimizer", "reduce", "elementwise", "copy", "collective", "point_to_point", "other",
)  # fmt: skip
COMMUNICATION = ("collective", "point_to_point")

_PATTERNS = read_yaml(Path(__file__).with_suffix(".yaml"))


# A profile names some hundred kernels and operations, ten thousand times each.
@functools.lru_cache(maxsize=1 << 14)
def class_of_operation(name: str) -> str | None:
    """The class of ``aten.mm.default``, ``aten::mm`` or ``emulated.<kernel>``; None if unknown."""
    namespace, _, rest = name.replace("::", ".").partition(".")
    base = rest.partition(".")[0] or namespace
    if namespace == NAMESPACE:
        kernel = KERNELS.get(base)
        return (
            None
            if kernel is None
            else _PATTERNS["streaming"].get(kernel.stands_for, kernel.stands_for)
        )
    # A backward is of the class of its forward, and what works in place of what does not.
    plain = base.removesuffix("_backward").rstrip("_") or base
    for found, pattern in _patterns("operations"):
        if re.fullmatch(pattern, base) or re.fullmatch(pattern, plain):
            return found
    return None


@functools.lru_cache(maxsize=1 << 14)
def class_of_kernel(name: str, operation: str | None = None) -> str:
    """The class of a kernel that a profiler saw, launched by ``operation`` if that is known."""
    lowered = name.lower()
    for found, pattern in _patterns("telling"):
        if re.search(pattern, lowered):
            return found
    by_operation = None if operation is None else class_of_operation(operation)
    if by_operation is not None:
        return by_operation
    for found, pattern in _patterns("shared"):
        if re.search(pattern, lowered):
            return found
    return "other"


@functools.cache
def _patterns(kind: str) -> list[tuple[str, str]]:
    return [(found, "".join(pattern)) for found, pattern in _PATTERNS[kind].items()]
