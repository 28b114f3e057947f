"""What the emulated device cannot do: refused in words, not by a failure inside torch."""

from __future__ import annotations

from typing import Any

import torch

from trainscout.simulators.predictor.question.errors import InputError


class CUDAGraph:
    """Replaying recorded kernels is not emulated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise InputError(
            "torch.cuda.CUDAGraph",
            "",
            "graph capture is not emulated",
            "a run without CUDA graphs",
        )


def install_refusals() -> None:
    """Refuse CUDA graphs and cuDNN's recurrent layers. Once per process."""
    torch.cuda.CUDAGraph = CUDAGraph
    torch.cuda.graphs.CUDAGraph = CUDAGraph
    for name in ("gru", "lstm", "rnn_relu", "rnn_tanh"):
        setattr(torch._VF, name, _on_host_only(name, getattr(torch._VF, name)))


def _on_host_only(name: str, original: Any) -> Any:
    def recurrent(tensor: torch.Tensor, *args: Any) -> Any:
        if tensor.is_cuda:
            raise InputError(
                f"torch.nn ({name})",
                "",
                "cuDNN's recurrent layers are not emulated",
                "other layers",
            )
        return original(tensor, *args)

    return recurrent
