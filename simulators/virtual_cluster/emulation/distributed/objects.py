"""Collectives of Python objects: no device takes part.

Ranks that run beside this one (live) give what they have. Others are assumed to hold what this
rank holds; what only they know is listed among the invented values.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map_only

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState
from trainscout.simulators.virtual_cluster.emulation.values.shadow import Known

from .peers import ABSENT


class ObjectCollectives:
    """The functions of ``torch.distributed`` that exchange objects, as one rank calls them."""

    def __init__(self, state: RankState) -> None:
        self._state = state

    def _absent(self, operation: str, value: Any) -> None:
        self._state.recorder.invented(operation, value, f"{operation}: {ABSENT}")

    def _given(
        self, operation: str, group: Any, own: Any, giving: Sequence[int], taking: Sequence[int]
    ) -> list[tuple[bool, Any]]:
        """What each of ``giving`` has, as far as it runs: this rank always does."""
        name = f"{operation} {(group or dist.group.WORLD).group_name} {giving[0]} {taking[0]}"
        return self._state.peers.round(name, own, giving, taking)

    def _gathered(
        self, operation: str, into: list[Any] | None, own: Any, group: Any, taking: Any
    ) -> None:
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        found = self._given(operation, group, own, members, taking or members)
        if into is None or not found:
            return
        # Each a dictionary or list of its own: scripts take entries out of them.
        several = isinstance(own, (dict, list, set))
        into[:] = [value if known else own.copy() if several else own for known, value in found]
        tensors = [each for each in tree_leaves(own) if type(each) is torch.Tensor]
        where = members.index(self._state.rank), len(members)
        parts = {id(each): self._state.values.parts(each, *where) for each in tensors}
        for place, (known, _) in enumerate(found if any(parts.values()) else ()):
            if not known:
                into[place] = tree_map_only(
                    torch.Tensor, lambda each, at=place: _part(parts.get(id(each)), at, each), own
                )
        missing = sum(not known for known, _ in found)
        if missing:
            hint = f"{operation}: {missing} ranks did not run here; taken for what this one holds"
            self._state.recorder.invented(operation, own, hint)

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """Fill ``object_list`` with what every rank of the group has."""
        self._gathered("all_gather_object", object_list, obj, group, None)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        """Fill the list of rank ``dst`` with what every rank has."""
        taking = [_global(group, dst, group_dst)]
        self._gathered("gather_object", object_gather_list, obj, group, taking)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Take over what rank ``src`` has."""
        source = _global(group, src, group_src)
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        taking = [rank for rank in members if rank != source]
        found = self._given(
            "broadcast_object_list", group, list(object_list), [source], taking or [-1]
        )
        if source == self._state.rank:
            return
        ((known, value),) = found
        if known:
            object_list[:] = value
        else:
            self._absent("broadcast_object_list", object_list)

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Take this rank's part of what rank ``src`` has."""
        source = _global(group, src, group_src)
        members = dist.get_process_group_ranks(group or dist.group.WORLD)
        found = self._given("scatter", group, scatter_object_input_list, [source], members)
        ((known, value),) = found
        if known and value:
            scatter_object_output_list[0] = value[members.index(self._state.rank)]
        else:
            self._absent("scatter_object_list", scatter_object_output_list)

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
    ) -> None:
        """Give a list to another rank."""
        target = _global(group, dst, group_dst)
        self._given("send_object_list", group, list(object_list), [self._state.rank], [target])

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        use_batch: bool = False,
    ) -> int:
        """Take over what another rank gives; returns that rank.

        Raises:
            InputError: when that rank does not run.
        """
        source = _global(group, src, group_src)
        ((known, value),) = self._given(
            "send_object_list", group, None, [source], [self._state.rank]
        )
        if not known:
            # Shapes that stages tell each other: nobody goes on without. A forward pass begins
            # with it, so that a rank that is only set up has been.
            self._state.recorder.forward_begins()
            raise InputError(
                "recv_object_list",
                f"from rank {source}",
                "is what only a rank knows that does not run here",
                "trainscout live, where ranks run together, or that one first with --payloads",
            )
        object_list[:] = value
        return source


def _part(parts: Sequence[Known] | None, place: int, own: torch.Tensor) -> torch.Tensor:
    return parts[place].value.clone() if parts else own


def checkpoint_patches(state: RankState) -> dict[str, Callable[[Any], None]]:
    """Distributed checkpoints: a rank beside which not all others run plans for itself. Plans of
    others, taken for its own, would leave it parts of what it holds, and its parts no whole."""

    def alone(module: Any) -> None:
        begin = module._DistWrapper.__init__

        def init(self: Any, group: Any, use_dist: bool, coordinator_rank: int) -> None:
            begin(self, group, use_dist and _all_run(state), coordinator_rank)

        module._DistWrapper.__init__ = init

    def whole(module: Any) -> None:
        for act, sharing in (("Save", "apply_saving"), ("Load", "apply_loading")):
            wrapper = getattr(module, f"FullyParallel{act}StrategyWrapper")
            _only_beside_others(wrapper, f"{sharing}_parallelization", state)

    def written(module: Any) -> None:
        finish = module.save_state_dict_async_finalize

        def save_state_dict_async_finalize(*args: Any, **kwargs: Any) -> None:
            # Whether all wrote their parts: the rank that plans for itself knows of its own.
            with contextlib.nullcontext() if _all_run(state) else state.agreement():
                finish(*args, **kwargs)

        module.save_state_dict_async_finalize = save_state_dict_async_finalize

    def shards(name: str, partition: str, group: str, kept: str) -> Callable[[Any], None]:
        """Of an optimizer that is spread over ranks, the states that one of them collects."""

        def patch(module: Any) -> None:
            def consolidate_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
                self._sync_param_groups(self.param_groups, self.optim.param_groups)
                parts, own = getattr(self, partition)(), self.optim.state_dict()
                states = [_states_like(own, parts[self.rank], part) for part in parts]
                states[self.rank] = own
                to, members = next(iter((*args, *kwargs.values())), 0), getattr(self, group)
                for rank, each in enumerate(states):
                    values = [value for one in each["state"].values() for value in one.values()]
                    sizes = [value.nbytes for value in values if isinstance(value, torch.Tensor)]
                    for size in (8, sum(sizes)) if rank != to else ():
                        data = torch.empty(size, dtype=torch.uint8, device=self._default_device)
                        dist.broadcast(data, dist.get_global_rank(members, rank), members)
                # -1: on every rank.
                if to in (self.rank, -1):
                    setattr(self, kept, tree_map_only(torch.Tensor, torch.Tensor.cpu, states))
                    state.recorder.invented("consolidate_state_dict", "as large as theirs", ABSENT)

            getattr(module, name).consolidate_state_dict = consolidate_state_dict

        return patch

    return {
        "torch.distributed.checkpoint.utils": alone,
        "torch.distributed.optim.zero_redundancy_optimizer": shards(
            *("ZeroRedundancyOptimizer", "_partition_parameters", "process_group"),
            "_all_state_dicts",
        ),
        "fairscale.optim.oss": shards("OSS", "partition_parameters", "group", "_all_states"),
        "megatron.core.dist_checkpointing.strategies.fully_parallel": whole,
        "megatron.core.dist_checkpointing.strategies.state_dict_saver": written,
    }


def _states_like(
    own: dict[str, Any], held: Sequence[Any], groups: Sequence[Any]
) -> dict[str, Any]:
    """What an optimizer of ``groups`` would have, where that of ``held`` has ``own``."""
    parameters, others = (
        [p for group in side for p in group["params"]] for side in (held, groups)
    )
    first, known = next(iter(own["state"].items()), (0, {}))
    numbers = itertools.count()

    def shaped(value: Any, parameter: torch.Tensor) -> Any:
        if not isinstance(value, torch.Tensor) or value.shape != parameters[first].shape:
            return value
        return torch.zeros(parameter.shape, dtype=value.dtype)

    made = [{name: shaped(known[name], other) for name in known} for other in others]
    places = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in groups]
    return {"state": dict(enumerate(made)), "param_groups": places}


def _all_run(state: RankState) -> bool:
    return state.peers.run and len(state.peers.ranks) == state.world_size


def _only_beside_others(wrapper: Any, name: str, state: RankState) -> None:
    share = getattr(wrapper, name)
    setattr(wrapper, name, lambda *args: share(*args) if _all_run(state) else None)


def _global(group: Any, rank: int | None, position: int | None) -> int:
    if rank is None and position is not None:
        return int(dist.get_global_rank(group or dist.group.WORLD, position))
    return rank or 0
