"""Traces layers of models on an emulated GPU, by their specs: ``traced.recorder``.

Standard input holds the GPU on its first line and a layer on each that follows
(``LayerSpec.to_json``). Every layer is answered with a line: ``{"traced": ...}``, or
``{"failed": reason}`` where Megatron-Core does not run it so.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.emulation import emulate
from trainscout.simulators.virtual_cluster.traced.answers import serve
from trainscout.simulators.virtual_cluster.traced.cache import TracedLayer, installed_versions
from trainscout.simulators.virtual_cluster.traced.layer_spec import LayerSpec
from trainscout.simulators.virtual_cluster.traced.trace_to_blocks import EventList, blocks_of

# No layer alone runs out of memory: whether all of them fit is the replay's to say.
MEMORY_BYTES = 2**50


def main() -> int:
    return serve(lambda gpu: LayerTracer(typed_value(Gpu, "gpu", gpu)).answer)


class LayerTracer:
    """The one that makes this process an emulated rank; for all layers of one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._traced = False
        self._rank = emulate(EventList(), world_size=1, rank=0, gpu=gpu, memory_bytes=MEMORY_BYTES)
        from trainscout.simulators.virtual_cluster.emulation.vendor import install_vendor

        install_vendor()

    def answer(self, asked: Any) -> dict[str, Any]:
        """The layer's trace, as it is sent."""
        return {"traced": self.trace(LayerSpec.from_json(asked)).to_json()}

    def restart(self, world_size: int) -> EventList:
        """Become the first of so many ranks; what it does from now on."""
        # The last layer's modules go in cycles: what they hold must be gone before this one.
        gc.collect()
        events = EventList()
        self._rank.restart(events, world_size=world_size, rank=0)
        return events

    def trace(self, spec: LayerSpec) -> TracedLayer:
        """Trace one layer; raises what Megatron-Core raises."""
        from trainscout.simulators.virtual_cluster.traced.layer_run import record

        if not self._traced:
            # Modules and functions stay: no collection need look at them again.
            gc.freeze()
            self._traced = True
        events = self.restart(spec.world_size)
        recording, parameters = record(spec, events)
        versions = installed_versions()
        assert versions is not None
        return TracedLayer(*blocks_of(recording), parameters, versions)


if __name__ == "__main__":
    sys.exit(main())
