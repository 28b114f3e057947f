"""What storages of a trace hold, and what a compiler fuses."""

from __future__ import annotations

from .events import Alloc, Event, Free, Resize

FUSED = "fused"
# Within such a region, what autograd does with its gradients as they come, such as hooks of DDP:
# it fuses with nothing, and the region goes on afterwards.
ASIDE = "aside"
# Its mask is drawn, which nothing computes again.
DROPOUT = "aten.native_dropout.default"


class Held:
    """Bytes by storage as events pass, and all of them together."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self.total_bytes = 0

    def follow(self, event: Event) -> bool:
        """Pass one event; whether it changes how much is taken."""
        if not isinstance(event, Alloc | Resize | Free):
            return False
        before = self.total_bytes
        self.total_bytes -= self.bytes.pop(event.storage, 0)
        if not isinstance(event, Free):
            self.bytes[event.storage] = event.bytes
            self.total_bytes += event.bytes
        return self.total_bytes != before


# What no compiler fuses with its neighbours: it reads and writes memory of its own.
_KERNELS = (
    *("aten._fused_ada", "aten._fused_sgd", "aten._grouped_mm", "aten._scaled_", "aten.addmm"),
    *("aten.baddbmm", "aten.bmm", "aten.convolution", "aten.mm"),
)


def is_kernel_of_its_own(name: str) -> bool:
    """Whether an operation stays a kernel of its own inside a fused region: a product,
    attention, a vendor's kernel, an operator of one's own."""
    return not name.startswith("aten.") or name.startswith(_KERNELS)
