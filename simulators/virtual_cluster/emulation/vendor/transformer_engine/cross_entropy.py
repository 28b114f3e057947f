"""``te.pytorch.parallel_cross_entropy``: loss over logits sharded by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainscout.simulators.virtual_cluster.emulation.vendor.gradients import differentiable
from trainscout.simulators.virtual_cluster.emulation.vendor.kernels import kernel
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal


@differentiable
def _cross_entropy(
    logits: Tensor, target: Tensor, reduce: bool, group: Any
) -> tuple[Tensor, list[Tensor], Callable[..., Any]]:
    """Keeps the gradient, which the forward pass writes over the logits."""
    stats = kernel("cross_entropy_stats")(logits, target)
    size = 1 if group is None else dist.get_world_size(group)
    if size > 1:
        whole = torch.empty((size * stats.shape[0],), dtype=stats.dtype, device=stats.device)
        dist.all_gather_into_tensor(whole, stats, group=group)
        stats = whole
    loss = kernel("cross_entropy_fwd")(logits, target, stats, reduce)

    def gradient(made: Tensor, grad: Tensor) -> Tensor:
        kernel("cross_entropy_bwd")(made, grad)
        return made

    return loss, [logits.detach()], gradient


def parallel_cross_entropy(
    inp: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: Any = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
    **others: Any,
) -> Tensor:
    """Loss of ``inp[batch, sequence, vocabulary shard]``, for each token or their mean."""
    if "_input" in others:
        raise refusal("parallel_cross_entropy._input", "the name inp had", "inp")
    loss: Tensor = _cross_entropy(inp, target, reduce_loss, dist_process_group)
    return loss
