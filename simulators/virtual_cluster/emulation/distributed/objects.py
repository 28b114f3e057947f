"""Collectives of Python objects: no device takes part, and only this rank's objects are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


def object_functions(state: RankState) -> dict[str, Callable[..., Any]]:
    """Name in ``torch.distributed`` to a version in which all others hold what this rank holds.

    What only another rank knows is listed among the invented values.
    """

    def invented(operation: str, value: Any) -> None:
        hint = f"{operation}: comes from a rank that did not run here; what was there is kept"
        state.recorder.invented(operation, value, hint)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = src if src is not None or group_src is None else _global(group, group_src)
        if (source or 0) != state.rank:
            invented("broadcast_object_list", object_list)

    def recv_object_list(
        object_list: list[Any], src: int | None = None, *_: Any, **__: Any
    ) -> int:
        invented("recv_object_list", object_list)
        return src or 0

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]
        else:
            invented("scatter_object_list", scatter_object_output_list)

    return {
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "broadcast_object_list": broadcast_object_list,
        "scatter_object_list": scatter_object_list,
        "send_object_list": lambda *args, **kwargs: None,
        "recv_object_list": recv_object_list,
    }


def _global(group: Any, position: int) -> int:
    return int(dist.get_global_rank(group or dist.group.WORLD, position))


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)
