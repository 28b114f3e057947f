"""The enumerations of ``transformer_engine_torch``, in the order of the compiled ones."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

# As they are numbered; newer versions compare these members with their own.
_TYPES = {
    "kByte": (0, torch.uint8),
    "kInt32": (2, torch.int32),
    "kFloat32": (4, torch.float32),
    "kFloat16": (5, torch.float16),
    "kBFloat16": (6, torch.bfloat16),
    "kFloat8E4M3": (7, torch.float8_e4m3fn),
    "kFloat8E5M2": (8, torch.float8_e5m2),
    "kFloat4E2M1": (10, torch.float4_e2m1fn_x2),
}
TORCH_TYPES = dict(_TYPES.values())


def _numbered(name: str, members: dict[str, int]) -> Any:
    return IntEnum(name, members)


def _enumeration(name: str, members: str, prefix: str = "NVTE_") -> Any:
    return _numbered(name, {prefix + each: at for at, each in enumerate(members.split())})


DType = _numbered("DType", {name: number for name, (number, _) in _TYPES.items()})
NVTE_Bias_Type = _enumeration("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI")
NVTE_Mask_Type = _enumeration(
    "NVTE_Mask_Type",
    "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK"
    " PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _enumeration(
    "NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX"
)
NVTE_QKV_Format = _enumeration(
    "NVTE_QKV_Format",
    "BSHD SBHD THD SBHD_2BSHD BSHD_2SBHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET",
)
_PAGED = " ".join(
    f"Paged_KV_{queries}_{keys}_{keys}"
    for queries in ("BSHD", "SBHD", "THD")
    for keys in ("BSHD", "SBHD")
)
NVTE_QKV_Layout = _enumeration(
    "NVTE_QKV_Layout",
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D"
    " BSHD_BSHD_BSHD T3HD TH3D THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD"
    f" THD_BSHD_BSHD THD_SBHD_SBHD {_PAGED} BHSD_BHSD_BHSD",
)
NVTE_Fused_Attn_Backend = _numbered(
    "NVTE_Fused_Attn_Backend",
    {
        "NVTE_No_Backend": -1,
        "NVTE_F16_max512_seqlen": 0,
        "NVTE_F16_arbitrary_seqlen": 1,
        "NVTE_FP8": 2,
    },
)
Float8BlockScaleTensorFormat = _enumeration(
    "Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID", ""
)
CommOverlapType = _enumeration("CommOverlapType", "RS AG", "")
CommOverlapAlgo = _enumeration(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS"
    " SPLIT_PIPELINED_RS_P2P ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P"
    " EXTERNAL_BULK_OVERLAP_AG",
    "",
)
FP8FwdTensors = _enumeration(
    "FP8FwdTensors",
    " ".join(f"GEMM{n}_{part}" for n in (1, 2, 3) for part in ("INPUT", "WEIGHT", "OUTPUT")),
    "",
)
FP8BwdTensors = _enumeration(
    "FP8BwdTensors", " ".join(f"GRAD_OUTPUT{n} GRAD_INPUT{n}" for n in (1, 2, 3)), ""
)
NVTERoutingMapFormat = _enumeration("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8", "")
