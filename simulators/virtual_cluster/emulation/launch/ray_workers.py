"""Workers that a script asks Ray for, with GPUs: Ray counts none here, and would wait for ever."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.gaps import NO_GPU_OF_RAY
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

_INSTEAD = "run a worker's own training entry as SCRIPT, its FSDP or Megatron trainer, without Ray"


def _refusal(asked: str) -> Exception:
    return refusal(f"ray.{asked}", NO_GPU_OF_RAY, _INSTEAD)


def _no_gpus(maker: Any) -> None:
    """``maker``: the class whose ``_remote`` is given all options, however they were stated."""
    own = maker._remote

    @functools.wraps(own)
    def remote(self: Any, *args: Any, **options: Any) -> Any:
        if options.get("num_gpus"):
            raise _refusal("remote(num_gpus=...)")
        return own(self, *args, **options)

    maker._remote = remote


def _no_bundles(module: ModuleType) -> None:
    own: Any = module
    make = own.placement_group

    @functools.wraps(make)
    def placement_group(bundles: Iterable[Mapping[str, float]], *args: Any, **named: Any) -> Any:
        bundles = list(bundles)
        if any(each.get("GPU") for each in bundles):
            raise _refusal("util.placement_group")
        return make(bundles, *args, **named)

    own.placement_group = placement_group


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "ray.actor": lambda module: _no_gpus(module.ActorClass),
    "ray.remote_function": lambda module: _no_gpus(module.RemoteFunction),
    "ray.util.placement_group": _no_bundles,
}
