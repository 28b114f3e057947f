"""``apex.parallel``: what torch has by now, and an optimizer's rates by layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class LARC:
    """Rates of layers by the norms of their parameters and gradients (You et al. 2017).

    Args:
        optimizer: steps with the gradients that are scaled here.
        trust_coefficient: rate times norm of the gradient per norm of the parameter.
        clip: no layer's rate becomes larger than the optimizer's.
    """

    def __init__(
        self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8
    ) -> None:
        self.optim = optimizer
        self.trust_coefficient, self.clip, self.eps = trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    def step(self) -> None:
        """Scale all gradients, with the decay of weights in them, and step."""
        decays = []
        with torch.no_grad():
            for group in self.optim.param_groups:
                decays.append(group.get("weight_decay", 0))
                group["weight_decay"] = 0
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._scale(parameter, decays[-1], group["lr"])
        self.optim.step()
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def _scale(self, parameter: Any, decay: float, rate: float) -> None:
        size, slope = torch.norm(parameter), torch.norm(parameter.grad)
        if size == 0 or slope == 0:
            return
        own = self.trust_coefficient * size / (slope + size * decay + self.eps)
        if self.clip:
            own = min(own / rate, 1)
        parameter.grad.add_(parameter, alpha=decay).mul_(own)


def convert_syncbn_model(module: Any, process_group: Any = None, **_: Any) -> Any:
    """The module with batch norms whose statistics are those of all ranks."""
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)


def create_syncbn_process_group(group_size: int) -> Any:
    """This rank's group of so many neighbours, None for all ranks."""
    if not group_size:
        return None
    made = [
        dist.new_group(range(first, first + group_size))
        for first in range(0, dist.get_world_size(), group_size)
    ]
    return made[dist.get_rank() // group_size]


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """Torch's; how Apex's cuts its buckets is not followed."""

    def __init__(self, module: Any, *_: Any, **__: Any) -> None:
        super().__init__(module)
