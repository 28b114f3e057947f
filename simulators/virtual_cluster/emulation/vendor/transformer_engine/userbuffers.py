"""Which products run in pieces beside their communication (user buffers, ``extension.overlap``)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.enumerations import (
    CommOverlapType,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.extension.overlap import (
    CommOverlap,
    CommOverlapHelper,
    CommOverlapP2P,
)
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

# The products that have a buffer, and in how many pieces a scatter runs.
_GATHERS = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad")
_SCATTERS = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
_PIECES = 4
# By product, and whether in 8 bits.
_buffers: dict[tuple[str, bool], CommOverlap] = {}
# Options of a module that cut its communication: how it is sharded, its product, what is cut. In
# bulk a communication runs beside one product, as it does without user buffers.
_CUT = {
    "ub_overlap_rs_dgrad": {"column": ("dgrad", CommOverlapType.RS)},
    "ub_overlap_ag": {
        "column": ("forward", CommOverlapType.AG),
        "row": ("dgrad", CommOverlapType.AG),
    },
    "ub_overlap_rs": {"row": ("forward", CommOverlapType.RS)},
    "ub_bulk_dgrad": {"column": ("bulk", None)},
    "ub_bulk_wgrad": {"column": ("bulk", None)},
}


class UserBufferQuantizationMode(Enum):
    """What buffers of gathers hold."""

    NONE = "none"
    FP8 = "fp8"


def overlaps(options: dict[str, Any], parallel_mode: str | None) -> dict[str, Any]:
    """By product of a module, what of its communication is cut; ``bulk`` where none is."""
    cut = dict(
        places[parallel_mode]
        for option, places in _CUT.items()
        if options.get(option) is True and parallel_mode in places
    )
    if cut:
        assert _buffers, "initialize_ub() must be called before layer construction."
    return cut


def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Sequence[UserBufferQuantizationMode] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: Any = None,
    bootstrap_backend: Any = None,
) -> None:
    """Allocate buffers of ``shape`` (tokens, width) for each product that has one.

    Raises:
        InputError: for another method than the default for a product.
    """
    for configuration in ub_cfgs if isinstance(ub_cfgs, list) else [ub_cfgs]:
        for name, options in (configuration or {}).items():
            if "method" in (options or {}):
                raise refusal(f"ub_cfgs.{name}.method", "another method", "the default")
    if _buffers:
        raise RuntimeError("UB communicators are already initialized.")
    default = UserBufferQuantizationMode.FP8 if use_fp8 else UserBufferQuantizationMode.NONE
    for mode in quantization_modes or [default]:
        eight = mode is UserBufferQuantizationMode.FP8
        for name in _GATHERS:
            held = torch.uint8 if eight else dtype
            _buffers[name, eight] = CommOverlapP2P(shape, held, CommOverlapHelper(), tp_size)
        for name in _SCATTERS:
            _buffers[name, eight] = CommOverlap(
                shape, dtype, CommOverlapHelper(), tp_size, num_splits=_PIECES
            )


def destroy_ub() -> None:
    """Free the buffers."""
    _buffers.clear()


def buffer_of(name: str, use: str, eight: bool, group: Any) -> CommOverlap:
    """The buffer of a product, among the ranks of ``group``."""
    key = f"{name}_{'fprop' if use == 'forward' else use}", eight
    assert key in _buffers, f"UB manager for {key[0]} is not initialized."
    _buffers[key].group = group
    return _buffers[key]
