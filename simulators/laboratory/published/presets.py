"""What Megatron-Bridge's performance presets set, where a row does not name its preset.

Rows of a known preset carry its settings in their notes. For others of the same editions the
settings that all named presets of that edition share on NVL72 racks are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.laboratory.published.era import published_year
from trainscout.simulators.laboratory.published.rows import Row, given

_HYBRID_EP = 2025.8
_WHOLE_ITERATION_GRAPHS = 2026.4


@dataclass(frozen=True)
class MoePreset:
    """How a run exchanged tokens and launched its kernels; ``assumed`` is empty when stated.

    ``fused_experts``: grouped kernels with the activation and the quantisation in their epilogues,
    which the presets with whole-iteration graphs switch on for MXFP8.
    """

    deepep: bool
    overlapped: bool
    graphs: bool
    fused_experts: bool
    assumed: tuple[str, ...] = ()


def moe_preset(row: Row) -> MoePreset:
    """The settings of an expert model's row: as its notes say, else as its edition's presets.

    CUDA graphs of the router alone leave most launches to the host, so they count only with the
    attention's or as graphs of a whole iteration.
    """
    notes, year = row.notes.lower(), given(published_year(row), 0.0)
    stated = MoePreset(
        deepep="deepep" in notes or "hybridep" in notes,
        overlapped="moe all-to-all overlapped" in notes or "1f1b all-to-all overlap" in notes,
        graphs="full_iteration" in notes or "transformer_engine attn" in notes,
        fused_experts="full_iteration" in notes and row.dtype == "mxfp8",
    )
    if is_development(row) and row.gpu.startswith("GB") and not stated.deepep:
        words = "HybridEP and graphs, as commands published for this branch set on NVL72 racks"
        return replace(stated, deepep=True, graphs=True, assumed=(words,))
    if not is_bridge(row) or "preset" in notes:
        return stated
    if year < _HYBRID_EP:
        if "token-drop" in notes and "B200" in row.gpu:
            words = "CUDA graphs of whole iterations, as in the edition's token-drop recipes"
            return replace(stated, graphs=True, assumed=(words,))
        if "dropless" not in notes:
            return stated
        words = "tokens exchanged by DeepEP beside compute, as in the edition's dropless recipes"
        return replace(stated, deepep=True, overlapped=True, assumed=(words,))
    if not row.gpu.startswith("GB"):
        return stated
    if year < _WHOLE_ITERATION_GRAPHS:
        words = "tokens exchanged by HybridEP, as in the edition's presets"
        return replace(stated, deepep=True, assumed=(words,))
    words = "HybridEP beside compute and whole-iteration graphs, as in the edition's presets"
    return MoePreset(True, True, True, row.dtype == "mxfp8", (words,))


def is_bridge(row: Row) -> bool:
    """Whether the row is one of Megatron-Bridge's."""
    return "megatron-bridge" in row.framework.lower()


def is_development(row: Row) -> bool:
    """Whether the row ran Megatron-LM's development branch, which has experts' kernels first."""
    return "megatron-lm dev" in row.framework.lower()
