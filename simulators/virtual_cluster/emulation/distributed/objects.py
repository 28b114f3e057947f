"""Collectives of Python objects: no device takes part, and only this rank's objects are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def object_functions() -> dict[str, Callable[..., Any]]:
    """Name in ``torch.distributed`` to a version in which all others hold what this rank holds."""
    return {
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "broadcast_object_list": _broadcast_object_list,
        "scatter_object_list": _scatter_object_list,
        "send_object_list": _broadcast_object_list,
        "recv_object_list": _recv_object_list,
    }


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


def _broadcast_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> None:
    """What the source holds is what this rank holds already."""


def _recv_object_list(object_list: list[Any], *args: Any, **kwargs: Any) -> int:
    return 0


def _scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    if scatter_object_input_list:
        scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank(group)]
