"""Has missing layers traced by processes that emulate a GPU, and keeps what they answer."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .cache import FOLDER, Refused, TracedLayer, TracedLayerCache
from .layer_spec import LayerSpec
from .recorder import ask_several

# A process costs as much to start as this many layers to trace (5 s against 0.2 s each).
LAYERS_PER_PROCESS = 24
# What a tracing process may come to hold.
PROCESS_BYTES = 10**9


def check_traces_possible() -> None:
    """Refuse where layers can neither be traced nor read."""
    if not any((cache_folder() / FOLDER).glob("*.json")):
        check_installed()


def check_installed(field: str = "simulator.name") -> None:
    """Refuse where nothing can be traced."""
    if sys.platform != "linux":
        raise InputError(
            field, "traced", f"needs virtual GPUs, which {sys.platform} has not", "linux"
        )
    for module in ("torch", "megatron.core", "transformer_engine"):
        if not _is_installed(module):
            problem = f"traces Megatron-Core, and {module} is not installed"
            raise InputError(field, "traced", problem, "pip install '.[megatron]'")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def traced_layers(
    specs: Sequence[LayerSpec], gpu: Gpu, cache: TracedLayerCache
) -> dict[LayerSpec, TracedLayer | Refused]:
    """Every layer, from the cache or traced now; processes that need the same one share it.

    ``gpu`` is the one that layers are of.

    Raises:
        InputError: when something is missing that cannot be traced here.
        RuntimeError: when a tracing process ends early.
    """
    found: dict[LayerSpec, TracedLayer | Refused | None] = {p: cache.read(p) for p in specs}
    missing = [spec for spec, traced in found.items() if traced is None]
    if missing:
        check_installed()
        with cache.claimed(missing):
            # Another process may have traced them while this one waited.
            found |= {spec: cache.read(spec) for spec in missing}
            missing = [spec for spec in missing if found[spec] is None]
            for spec, answer in _trace(missing, gpu):
                if isinstance(answer, TracedLayer):
                    cache.write(spec, answer)
                found[spec] = answer
    return {spec: answer for spec, answer in found.items() if answer is not None}


def _trace(
    specs: Sequence[LayerSpec], gpu: Gpu
) -> Iterator[tuple[LayerSpec, TracedLayer | Refused]]:
    if not specs:
        return
    # Equal layouts one after another: groups are made anew when the layout changes.
    ordered = sorted(specs, key=lambda p: (p.world_size, p.tp, p.cp, p.ep, p.etp, repr(p)))
    answers = ask_several(gpu, ordered, _processes(len(ordered)))
    yield from zip(ordered, answers, strict=True)


def _processes(specs: int) -> int:
    """No more than there are cores and memory for, nor than pay for their start."""
    affordable = _free_bytes() // PROCESS_BYTES
    return max(1, min(os.cpu_count() or 1, affordable, -(-specs // LAYERS_PER_PROCESS)))


def _free_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return PROCESS_BYTES
