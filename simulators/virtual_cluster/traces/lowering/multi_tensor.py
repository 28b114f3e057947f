"""Operations on lists of tensors: fused and foreach optimizers, unscaling, norms, copies."""

from __future__ import annotations

from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.virtual_cluster.traces.events import Op, TensorSpec
from trainscout.simulators.virtual_cluster.traces.lowering.lowered import FREE, Lowered
from trainscout.simulators.virtual_cluster.traces.lowering.tensors import (
    elements,
    in_place,
    moved,
    on_device,
    short_name,
)
from trainscout.simulators.virtual_cluster.traces.vocabulary import launches_over_lists

RULE = "multi_tensor"
# Operations that write lists besides the first: how many of the first lists.
_WRITTEN_LISTS = {
    "_fused_adam_": 4,
    "_fused_adamw_": 4,
    "_fused_sgd_": 3,
    "_fused_adagrad_": 3,
    "_amp_foreach_non_finite_check_and_unscale_": 1,
}
# What they read although it is written: gradients of fused optimizers are read only.
_READ_ONLY = {"_fused_adam_": (1,), "_fused_adamw_": (1,), "_fused_sgd_": (1,)}


def foreach(op: Op) -> Lowered:
    """One call over lists: all of them read, those it changes (or returns) written."""
    name = short_name(op)
    lists = [on_device(argument) for argument in op.inputs if isinstance(argument, tuple)]
    lists = [each for each in lists if each]
    if not lists:
        return FREE
    copies = name == "_foreach_copy_"
    fills = name == "_foreach_zero_"
    read = sum(moved(each) for each in (lists[1:] if copies or fills else lists))
    if in_place(op):
        untouched = _READ_ONLY.get(name, ())
        written = sum(
            moved(each)
            for place, each in enumerate(lists[: _WRITTEN_LISTS.get(name, 1)])
            if place not in untouched
        )
    else:
        written = moved(op.outputs)
    kind = _kind(name, lists)
    count = launches(lists) + ("norm" in name)
    return Lowered((Streaming(name, kind, read + written, count),), RULE)


def launches(lists: list[list[TensorSpec]]) -> int:
    """Kernels that walk equally long lists together."""
    walked = [each for each in lists if len(each) == len(lists[0])]
    # Counters of steps are single numbers that no chunk is made of.
    walked = [each for each in walked if any(elements(spec) > 1 for spec in each)] or walked[:1]
    return launches_over_lists([lists[0], *walked[1:]])


def _kind(name: str, lists: list[list[TensorSpec]]) -> str:
    if name == "_foreach_copy_":
        pairs = zip(lists[0], lists[-1], strict=False)
        casts = any(target.dtype != source.dtype for target, source in pairs)
        return "cast" if casts else "memcpy"
    if "norm" in name or name == "_foreach_max":
        return "reduce"
    return "optimizer" if name.startswith("_fused") else "elementwise"


def is_list_operation(base: str) -> bool:
    """Whether an operation (``aten.name``) works on lists."""
    return base.startswith(("aten._foreach_", "aten._fused_ad", "aten._fused_sgd", "aten._amp_fo"))
