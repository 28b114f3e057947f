"""``torch.accelerator``'s memory functions, which ask an allocator that is not there."""

from __future__ import annotations

from typing import Any

import torch


def install_accelerator() -> None:
    """``torch.accelerator`` tells what ``torch.cuda`` tells."""
    cuda = torch.cuda
    functions: dict[str, Any] = {
        "empty_cache": cuda.empty_cache,
        "memory_stats": cuda.memory_stats,
        "memory_allocated": cuda.memory_allocated,
        "max_memory_allocated": cuda.max_memory_allocated,
        "memory_reserved": cuda.memory_reserved,
        "max_memory_reserved": cuda.max_memory_reserved,
        "reset_accumulated_memory_stats": cuda.reset_accumulated_memory_stats,
        "reset_peak_memory_stats": cuda.reset_peak_memory_stats,
        "get_memory_info": cuda.mem_get_info,
    }
    for name, function in functions.items():
        setattr(torch.accelerator, name, function)
        setattr(torch.accelerator.memory, name, function)
