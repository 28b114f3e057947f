"""Memory of every pipeline stage by what occupies it."""

from __future__ import annotations

from typing import Any

from trainscout.simulators.predictor.answer.prediction import Memory

# What the allocator holds of the device beyond its live tensors.
FRAGMENTATION = "fragmentation"


def memory_stages(memory: Memory) -> dict[str, Any]:
    """``kinds`` in words, and the bytes of each for every stage.

    They sum to what a stage needs of the device; for the worst stage, to the capacity less the
    headroom.
    """
    kinds = list(dict.fromkeys(kind for stage in memory.per_stage for kind in stage.kind))
    return {
        "kinds": [*(kind.replace("_", " ") for kind in kinds), FRAGMENTATION],
        "capacity_bytes": memory.capacity_bytes,
        "worst_stage": memory.worst_stage,
        "stages": [
            {
                "stage": stage.stage,
                "bytes": [
                    *(stage.kind.get(kind, 0) for kind in kinds),
                    max(0, stage.peak_reserved_bytes - stage.peak_allocated_bytes),
                ],
            }
            for stage in memory.per_stage
        ],
    }
