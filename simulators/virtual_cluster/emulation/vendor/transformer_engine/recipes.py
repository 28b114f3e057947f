"""``transformer_engine.common.recipe``: how tensors become 8 bits."""

from __future__ import annotations

from enum import Enum
from typing import Any

from trainscout.simulators.virtual_cluster.emulation.vendor.extension.enumerations import DType
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal, refused


class Format(Enum):
    """Types of the forward and the backward pass."""

    E4M3 = (DType.kFloat8E4M3, DType.kFloat8E4M3)
    HYBRID = (DType.kFloat8E4M3, DType.kFloat8E5M2)
    E5M2 = (DType.kFloat8E5M2, DType.kFloat8E5M2)

    @property
    def forward_type(self) -> Any:
        return self.value[0]

    @property
    def backward_type(self) -> Any:
        return self.value[1]


class Recipe:
    """A recipe; ``kind`` is its name in the emulated kernels."""

    kind = ""
    default_format = Format.HYBRID

    def __init__(
        self,
        *,
        fp8_format: Format | None = None,
        fp8_dpa: bool = False,
        fp8_mha: bool = False,
        **others: Any,
    ) -> None:
        if fp8_dpa or fp8_mha:
            raise refusal("fp8_dot_product_attention", "attention in 8 bits", "False")
        self.fp8_format = fp8_format or self.default_format
        self.fp8_dpa = fp8_dpa
        self.fp8_mha = fp8_mha

    def delayed(self) -> bool:
        return self.kind == "delayed"

    def float8_current_scaling(self) -> bool:
        return self.kind == "current"

    def float8_per_tensor_scaling(self) -> bool:
        return self.kind in ("delayed", "current")

    def mxfp8(self) -> bool:
        return self.kind == "mxfp8"

    def float8_block_scaling(self) -> bool:
        return self.kind == "blockwise"

    def nvfp4(self) -> bool:
        return False

    def custom(self) -> bool:
        return False


class DelayedScaling(Recipe):
    """Scales from the largest values of earlier steps, agreed on by all ranks of a group."""

    kind = "delayed"

    def __init__(
        self,
        margin: int = 0,
        fp8_format: Format = Format.HYBRID,
        amax_history_len: int = 1024,
        amax_compute_algo: Any = "max",
        scaling_factor_compute_algo: Any = None,
        reduce_amax: bool = True,
        override_linear_precision: tuple[bool, bool, bool] = (False, False, False),
        **others: Any,
    ) -> None:
        super().__init__(fp8_format=fp8_format, **others)
        if any(override_linear_precision):
            raise refusal("fp8_wgrad", "weight gradients in high precision", "the default")
        self.margin = margin
        self.amax_history_len = amax_history_len
        self.amax_compute_algo = amax_compute_algo
        self.reduce_amax = reduce_amax


class Float8CurrentScaling(Recipe):
    """A scale from the tensor itself."""

    kind = "current"


class MXFP8BlockScaling(Recipe):
    """A scale for 32 elements, in 8 bits; what Blackwell multiplies."""

    kind = "mxfp8"
    default_format = Format.E4M3


class Float8BlockScaling(Recipe):
    """fp32 scales for 1 x 128 (activations) or 128 x 128 (weights) elements."""

    kind = "blockwise"
    default_format = Format.E4M3


NVFP4BlockScaling = refused("NVFP4BlockScaling", "training in four bits")
