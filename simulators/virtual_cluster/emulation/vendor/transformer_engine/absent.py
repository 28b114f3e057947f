"""Parts of Transformer Engine that are there by name and refuse to be used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal, refused

make_graphed_callables = refused("make_graphed_callables", "CUDA graphs are not captured")
set_capture_start = refused("set_capture_start", "CUDA graphs are not captured")
set_capture_end = refused("set_capture_end", "CUDA graphs are not captured")
make_weak_ref = refused("make_weak_ref", "CUDA graphs are not captured")
cast_master_weights_to_fp8 = refused("cast_master_weights_to_fp8", "parameters in 8 bits")
replace_raw_data = refused("replace_raw_data", "parameters in 8 bits")
post_all_gather_processing = refused("post_all_gather_processing", "parameters in 8 bits")

TransformerLayer = refused("TransformerLayer", "whole layers; their parts are")
MultiheadAttention = refused("MultiheadAttention", "whole attention layers; their parts are")


def get_cpu_offload_context(
    enabled: bool = False, *arguments: Any, **keywords: Any
) -> tuple[Any, Callable[[Any], Any]]:
    """Offloading of activations to the host: refused unless disabled."""
    if enabled:
        raise refusal("cpu_offloading", "activations moved to the host", "False")
    return nullcontext(), lambda tensor: tensor
