"""Collectives of Python objects: no device takes part.

Ranks that run beside this one (live) give what they have. Others are assumed to hold what this
rank holds; what only they know is listed among the invented values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState


def object_functions(state: RankState) -> dict[str, Callable[..., Any]]:
    """Name in ``torch.distributed`` to what is there instead."""

    def absent(operation: str, value: Any) -> None:
        hint = f"{operation}: comes from a rank that did not run here; what was there is kept"
        state.recorder.invented(operation, value, hint)

    def given(
        operation: str, group: Any, own: Any, giving: Sequence[int], taking: Sequence[int]
    ) -> list[tuple[bool, Any]]:
        """What each of ``giving`` has, as far as it runs: this rank always does."""
        if state.peers is None:
            return [(rank == state.rank, own) for rank in giving]
        name = f"{operation} {(group or dist.group.WORLD).group_name} {giving[0]} {taking[0]}"
        return state.peers.round(name, own, giving, taking)  # type: ignore[no-any-return]

    def gathered(
        operation: str, into: list[Any] | None, own: Any, group: Any, taking: Any
    ) -> None:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        found = given(operation, group, own, members, taking or members)
        if into is None or not found:
            return
        into[:] = [value if known else own for known, value in found]
        missing = sum(not known for known, _ in found)
        if missing:
            hint = f"{operation}: {missing} ranks did not run here; taken for what this one holds"
            state.recorder.invented(operation, own, hint)

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        gathered("all_gather_object", object_list, obj, group, None)

    def gather_object(
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        taking = [_global(group, dst, group_dst)]
        gathered("gather_object", object_gather_list, obj, group, taking)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _global(group, src, group_src)
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        taking = [rank for rank in members if rank != source]
        found = given("broadcast_object_list", group, list(object_list), [source], taking or [-1])
        if source == state.rank:
            return
        ((known, value),) = found
        if known:
            object_list[:] = value
        else:
            absent("broadcast_object_list", object_list)

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        source = _global(group, src, group_src)
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        found = given("scatter", group, scatter_object_input_list, [source], members)
        ((known, value),) = found
        if known and value:
            scatter_object_output_list[0] = value[members.index(state.rank)]
        else:
            absent("scatter_object_list", scatter_object_output_list)

    def send_object_list(
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
    ) -> None:
        target = _global(group, dst, group_dst)
        given("send_object_list", group, list(object_list), [state.rank], [target])

    def recv_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        source = _global(group, src, group_src)
        ((known, value),) = given("send_object_list", group, None, [source], [state.rank])
        if not known:
            # Shapes that stages tell each other: nobody goes on without.
            raise InputError(
                "recv_object_list",
                f"from rank {source}",
                "is what only a rank knows that does not run here",
                "trainscout live, where ranks run together",
            )
        object_list[:] = value
        return source

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "broadcast_object_list": broadcast_object_list,
        "scatter_object_list": scatter_object_list,
        "send_object_list": send_object_list,
        "recv_object_list": recv_object_list,
    }


def _global(group: Any, rank: int | None, position: int | None) -> int:
    if rank is None and position is not None:
        return int(dist.get_global_rank(group or dist.group.WORLD, position))
    return rank or 0
