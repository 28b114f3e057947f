"""What DeepSpeed would compile is there; what is not emulated is built as ever."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def test_builders_hand_out_what_is_made_here() -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES
    from trainscout.simulators.virtual_cluster.emulation.vendor import (
        compiled_kernels as multi_tensor,
    )

    class OpBuilder:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self, verbose: bool = False) -> Any:
            return f"built {self.name}"

    module = ModuleType("builder")
    module.OpBuilder = OpBuilder  # type: ignore[attr-defined]
    PATCHES["deepspeed.ops.op_builder.builder"](module)
    assert OpBuilder("fused_adam").load().multi_tensor_adam is multi_tensor.multi_tensor_adam
    adam = OpBuilder("cpu_adam").load()
    assert adam.create_adam(0, 1e-3) == adam.destroy_adam(0) == 0
    assert adam.adam_update(0, 1, 1e-3, 0.9, 0.95, 1e-8, 0.0, True, *torch.ones(4, 8)) == 0
    flat = OpBuilder("utils").load().flatten([torch.ones(2), torch.zeros(1)])
    assert flat.tolist() == [1, 1, 0]
    assert OpBuilder("async_io").load(verbose=True) == "built async_io"


def test_graphs_of_megatron_take_tensors_without_data_for_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES

    class ArgMetadata:
        def __init__(self, arg: Any) -> None:
            self.type = type(arg)

    module = ModuleType("cuda_graphs")
    module.ArgMetadata = ArgMetadata  # type: ignore[attr-defined]
    PATCHES["megatron.core.transformer.cuda_graphs"](module)
    with FakeTensorMode():
        assert ArgMetadata(torch.empty(2)).type is torch.Tensor
    assert [ArgMetadata(each).type for each in (1, None)] == [int, type(None)]
    # Releases without that class are left as they are.
    PATCHES["megatron.core.transformer.cuda_graphs"](ModuleType("cuda_graphs"))


def test_groups_of_megatron_are_made_at_once_as_one_by_one() -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES

    module: Any = ModuleType("parallel_state")
    PATCHES["megatron.core.parallel_state"](module)
    assert not hasattr(module, "generate_masked_orthogonal_rank_groups")
    module.generate_masked_orthogonal_rank_groups = lambda *_: "one by one"
    PATCHES["megatron.core.parallel_state"](module)
    groups = module.generate_masked_orthogonal_rank_groups
    # Its docstring's example, and every group of a job by who is in it.
    assert groups(24, [2, 3, 4], [False, True, False])[7] == [19, 21, 23]
    sizes = [2, 1, 3, 4]
    places = [
        [rank // math.prod(sizes[:at]) % size for at, size in enumerate(sizes)]
        for rank in range(24)
    ]
    for mask in itertools.product((False, True), repeat=len(sizes)):
        expected: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(places):
            outside = [at for at, within in zip(place, mask, strict=True) if not within]
            expected.setdefault(tuple(outside), []).append(rank)
        assert groups(24, sizes, list(mask)) == list(expected.values())
    assert groups(25, sizes, [True] * 4) == "one by one"


def test_whether_all_ranks_shards_are_a_whole_is_not_asked_of_one() -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES

    def incomplete(*_: Any) -> None:
        raise RuntimeError("parts are missing")

    module = ModuleType("validation")
    module.validate_sharding_integrity = incomplete  # type: ignore[attr-defined]
    PATCHES["megatron.core.dist_checkpointing.validation"](module)
    module.validate_sharding_integrity([], {})


def test_megatron_shares_out_its_shards_only_among_ranks_that_run() -> None:
    from trainscout.simulators.virtual_cluster.emulation.distributed.objects import (
        checkpoint_patches,
    )

    class Wrapper:
        def apply_saving_parallelization(self, shards: list[int]) -> None:
            del shards[1:]

        def apply_loading_parallelization(self, shards: list[int]) -> list[int]:
            return shards[:1]

    module: Any = ModuleType("fully_parallel")
    module.FullyParallelSaveStrategyWrapper = module.FullyParallelLoadStrategyWrapper = Wrapper
    state: Any = SimpleNamespace(peers=SimpleNamespace(run=None, ranks=(0, 1)), world_size=2)
    name = "megatron.core.dist_checkpointing.strategies.fully_parallel"
    checkpoint_patches(state)[name](module)
    shards = [0, 1]
    Wrapper().apply_saving_parallelization(shards)
    assert shards == [0, 1]
    assert Wrapper().apply_loading_parallelization(shards) is None
    state.peers.run = object()
    assert Wrapper().apply_loading_parallelization(shards) == [0]
    Wrapper().apply_saving_parallelization(shards)
    assert shards == [0]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [((3,), [(0, 2, True), (1, 2, False)]), ((1, 3, 9), [(2, 6, False), (3, 6, False)])],
    ids=["alone", "beside others, one of another node"],
)
def test_workers_of_ranks_that_run_share_the_memory_of_one_node(
    ranks: tuple[int, ...], expected: list[tuple[int, int, bool]]
) -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import node_patches

    class World:
        def __init__(self, worker: int) -> None:
            self.worker_of_node, self.workers_per_node = worker, 16
            self.worker_of_rank, self.workers_per_rank = worker % 2, 2

    module = ModuleType("world")
    module.World = World  # type: ignore[attr-defined]
    state: Any = SimpleNamespace(rank=3, peers=SimpleNamespace(ranks=ranks))
    node_patches(state)["streaming.base.world"](module)
    leading = [
        (each.worker_of_node, each.workers_per_node, each.is_local_leader)  # type: ignore[attr-defined]
        for each in map(World, (6, 7))
    ]
    assert leading == expected


def test_positions_on_the_device_are_read_as_one_sequence_and_waited_for() -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES

    read: list[Any] = []
    module = ModuleType("masking_utils")
    module.find_packed_sequence_indices = lambda at: read.append(at) or "packed"  # type: ignore[attr-defined]
    PATCHES["transformers.masking_utils"](module)
    host, device = (SimpleNamespace(is_cuda=cuda) for cuda in (False, True))
    assert [module.find_packed_sequence_indices(at) for at in (host, device)] == ["packed", None]
    # Dynamic control flow: without the call the device would not be waited for.
    assert read == [host, device]


def test_copies_that_packages_carry_are_patched_as_what_they_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainscout.simulators.virtual_cluster.emulation import framework_patches

    folder = tmp_path / "carrier" / "third_party"
    folder.mkdir(parents=True)
    for name in ("copied_binding", "other_binding"):
        (folder / f"{name}.py").write_text("GPUS = 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = framework_patches._PatchingFinder(
        {"copied_binding": lambda module: vars(module).update(GPUS=8)}
    )
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    found = [
        importlib.import_module(f"carrier.third_party.{name}").GPUS
        for name in ("copied_binding", "other_binding")
    ]
    assert found == [8, 0]


def test_the_models_of_transformers_are_looked_through_once(tmp_path: Path) -> None:
    from trainscout.simulators.virtual_cluster.emulation.framework_patches import PATCHES

    module, read = ModuleType("import_utils"), list[str]()
    module.create_import_structure_from_path = read.append  # type: ignore[attr-defined]
    PATCHES["transformers.utils.import_utils"](module)
    (tmp_path / "__init__.py").touch()
    for place in (tmp_path, str(tmp_path), str(tmp_path / "__init__.py")):
        module.create_import_structure_from_path(place)
    assert read == [str(tmp_path)] * 3
