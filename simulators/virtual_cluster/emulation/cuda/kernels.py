"""Kernels that torch's dispatcher must find for CUDA before any dispatch mode is asked."""

from __future__ import annotations

from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.cuda.own_kernels import (
    register_kernels_of_cuda_only,
)
from trainscout.simulators.virtual_cluster.emulation.cuda.recurrent import (
    register_recurrent_shapes,
)
from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

# Operations that are one kernel on CUDA and a composition of others where no such kernel is
# registered, as in a build for CPU only.
KERNELS_OF_CUDA = ("_fused_rms_norm", "mish_backward", "silu_backward")


def register_kernels(state: RankState) -> Any:
    """Register what a CUDA build has.

    Returns:
        The registrations, which live as long as they are held.
    """
    library = torch.library.Library("aten", "IMPL")

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        # FSDP1 records streams with dispatch modes off.
        state.memory.record_stream(tensor.untyped_storage(), int(stream.stream_id))

    library.impl("record_stream", record_stream, "CUDA")
    for name in KERNELS_OF_CUDA:
        library.impl(name, _never_run, "CUDA")
    register_recurrent_shapes(library)
    register_kernels_of_cuda_only(library)
    return library


def _never_run(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("an emulated device computes nothing")
