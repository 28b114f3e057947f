"""One emulated rank in this process: everything installed, events flowing into a sink."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.virtual_cluster.allocator.allocator_settings import AllocatorSettings
from trainscout.simulators.virtual_cluster.traces.codec import MOST_RANKS

from . import native
from .launch.programs import set_environment
from .recorder import Recorder
from .sink import Sink
from .stream_order import StreamOrder
from .vendor import refuse


class VirtualRank:
    """The rank this process is. One per process; made by ``emulate``.

    ``state`` is what the emulation's parts share.
    """

    def __init__(self, state: Any, mode: Any, registration: Any) -> None:
        self.state = state
        self._mode = mode
        self._registration = registration

    def restart(self, sink: Sink, *, world_size: int, rank: int) -> None:
        """Begin a new trace, as another rank of another job, with everything still installed.

        Process groups are destroyed, to be initialised again, and what vendor packages kept of the
        last rank is let go. Tensors that still live keep their memory and are announced as the
        trace's first allocations.
        """
        import torch

        from .distributed.peers import Peers
        from .vendor.packages import forget_tensors

        forget_tensors()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        state = self.state
        state.world_size, state.rank, state.peers = world_size, rank, Peers(None, rank, (rank,))
        set_environment(world_size, rank, state.local_world_size)
        state.recorder.restart(sink)
        state.order.restart()
        state.numbers.restart()
        state.values.restart()
        state.functional.restart()
        state.backward.clear()
        state.shim.restart()
        state.memory.restart()
        torch.cuda.set_device(0)
        state.shim.set_stream(0)

    def close(self) -> None:
        """No more events: leave the mode and close the sink."""
        self._mode.__exit__(None, None, None)
        refuse.listeners.remove(self.state.recorder.failed)
        self.state.recorder.sink.close()


def emulate(
    sink: Sink,
    *,
    world_size: int,
    rank: int,
    gpu: Gpu,
    local_world_size: int = 8,
    memory_bytes: int | None = None,
    values: Any = None,
) -> VirtualRank:
    """Make this process rank ``rank`` of ``world_size`` on virtual GPUs, once, before torch.

    Args:
        sink: takes the rank's events.
        gpu: what each device is; ``local_world_size`` of them make a node.
        memory_bytes: of each device, by default the GPU's own.
        values: what tensors hold (``emulation.values.Values``), by default balanced.

    Raises:
        InputError: for a rank outside the world, or when the native part cannot be had.
    """
    check_ranks(world_size, rank, local_world_size)
    local_world_size = min(local_world_size, world_size)
    # Refused here if it was set outside; a script may still set its own.
    allocator_settings()
    set_environment(world_size, rank, local_world_size)
    shim = native.load()
    capacity = int(memory_bytes or gpu.memory_bytes)

    import torch

    from .compiled import CompiledBackward, install_compiled
    from .cuda.graphs import install_graphs
    from .cuda.install import install_accelerator, install_cuda
    from .cuda.kernels import install_losses, install_recurrent, register_kernels
    from .cuda.streams import EngineNotices
    from .distributed.install import install_distributed
    from .distributed.objects import checkpoint_patches
    from .framework_patches import install_framework_patches, node_patches
    from .launch.script_processes import install_spawn, install_threads, launch_patches
    from .memory import DeviceMemory
    from .rank_state import Numbers, RankState
    from .tensors.device_mode import DeviceMode
    from .tensors.fake import DatalessMode, prepare_fake_tensors
    from .tensors.host import install_checkpoints, install_host_tensors
    from .training_loop import install_foreach, install_loaders, install_phases
    from .values import Values
    from .vendor.opaque import install_element_kernels
    from .vendor.triton_kernels import triton_patches

    recorder = Recorder(
        sink, (str(Path(torch.__file__).parent) + os.sep,), torch._C._current_graph_task_id
    )
    refuse.listeners.append(recorder.failed)
    order = StreamOrder()
    context_bytes = gpu.architecture.context_bytes
    memory = DeviceMemory(
        recorder, order, capacity, context_bytes, allocator_settings, shim.memory
    )
    state = RankState(
        rank=rank,
        world_size=world_size,
        local_world_size=local_world_size,
        gpu=gpu,
        capacity_bytes=capacity,
        shim=shim,
        recorder=recorder,
        order=order,
        memory=memory,
        dataless=DatalessMode(),
        values=values or Values(),
        numbers=Numbers(),
    )
    state.notices = EngineNotices(state)
    state.backward = recorder.backward = CompiledBackward(
        recorder.emit, memory, torch._C._current_autograd_node, torch._C._current_graph_task_id
    )
    shim.configure(local_world_size, state.notices)
    if "OMP_NUM_THREADS" not in os.environ:
        # As torchrun has it; what is computed here is too little to share.
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    set_threads = torch.set_num_threads
    # This machine's cores, shared out among a node's virtual GPUs, may be none for each.
    torch.set_num_threads = lambda threads: set_threads(threads or 1)
    prepare_fake_tensors()
    install_cuda(state)
    install_accelerator()
    install_graphs(state)
    install_recurrent()
    install_losses()
    install_element_kernels()
    install_host_tensors(state)
    install_foreach()
    install_distributed(state)
    install_phases(state)
    install_compiled(state)
    install_checkpoints(state)
    install_threads(state)
    install_loaders(state.recorder)
    install_spawn(state)
    install_framework_patches(
        {
            **triton_patches(state),
            **checkpoint_patches(state),
            **launch_patches(state),
            **node_patches(state),
        }
    )
    registration = register_kernels(state)
    mode = DeviceMode(state)
    mode.__enter__()
    recorder.leave()
    return VirtualRank(state, mode, registration)


def allocator_settings() -> AllocatorSettings:
    """What the environment tells the caching allocator, under torch's new or old name.

    Raises:
        InputError: for settings torch does not know.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if os.environ.get(name):
            return AllocatorSettings.parse(os.environ[name])
    return AllocatorSettings()


def check_platform() -> None:
    """Refuse a machine that virtual GPUs are not made for."""
    if sys.platform != "linux":
        raise InputError("platform", sys.platform, "has no virtual GPUs", "linux")


def check_ranks(world_size: int, rank: int, local_world_size: int) -> None:
    """Refuse worlds and ranks that cannot be."""
    if not 1 <= world_size <= MOST_RANKS:
        raise InputError("--world-size", world_size, "is no number of ranks", f"1..{MOST_RANKS}")
    if not 0 <= rank < world_size:
        raise InputError("--rank", rank, "is not in the world", f"0..{world_size - 1}")
    if local_world_size < 1:
        raise InputError("--local-world-size", local_world_size, "is no number of ranks", ">= 1")
