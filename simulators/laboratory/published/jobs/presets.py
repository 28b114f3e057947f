"""What Megatron-Bridge's performance presets set, where a row does not name its preset.

Rows of a known preset carry its settings in their notes. For others of the same editions the
settings that all named presets of that edition share on NVL72 racks are assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.reading.words import Statement

from .era import Era

_HYBRID_EP = 2025.8
_WHOLE_ITERATION_GRAPHS = 2026.4


@dataclass(frozen=True)
class MoePreset:
    """How a run exchanged tokens and launched its kernels; ``assumed`` is empty when stated.

    ``graphs_leave_experts``: graphs of layers that end where tokens go to experts.
    ``fused_experts``: grouped kernels with the activation and the quantisation in their epilogues,
    which the presets with whole-iteration graphs switch on for MXFP8.
    """

    deepep: bool
    overlapped: bool
    graphs: bool
    fused_experts: bool
    graphs_leave_experts: bool = False
    assumed: tuple[str, ...] = ()


def moe_preset(row: Row, statement: Statement, era: Era) -> MoePreset:
    """The settings of an expert model's row: as its words say, else as its edition's presets.

    CUDA graphs of the router alone leave most launches to the host, so they count only with the
    attention's or as graphs of a whole iteration.
    """
    whole = statement.says("graphs", "whole")
    stated = MoePreset(
        deepep=statement.says("dispatcher", "deepep"),
        overlapped=statement.says("experts_overlap", "yes"),
        graphs=whole or statement.says("graphs", "layers"),
        fused_experts=whole and statement.arithmetic == "mxfp8",
        # Nothing is read from the device where experts are padded to a capacity, and a graph holds
        # the whole layer (Megatron-LM, token_dispatcher.py, "no_sync").
        graphs_leave_experts=not whole
        and statement.says("graphs", "layers")
        and not statement.says("tokens", "dropped"),
    )
    named = statement.says("dispatcher") or statement.says("graphs", "no")
    # Megatron-LM's development branch has experts' kernels first.
    young = statement.label.get("project") == "megatron" and "development" in statement.label
    if young and row.gpu.startswith("GB") and not named:
        words = "HybridEP and graphs, as commands published for this branch set on NVL72 racks"
        return replace(stated, deepep=True, graphs=True, assumed=(words,))
    # What DeepEP published is what HAI-LLM had (arXiv 2412.19437, 3.2).
    if statement.label.get("project") == "hai_llm" and not statement.says("dispatcher"):
        words = "tokens exchanged as by DeepEP beside compute, as DeepSeek describes"
        return replace(stated, deepep=True, overlapped=True, assumed=(words,))
    told = named or is_library(statement) or "preset" in row.notes.lower()
    if not is_bridge(statement) or told:
        return stated
    if era.before(_HYBRID_EP):
        if statement.says("tokens", "dropped") and "B200" in row.gpu:
            words = "CUDA graphs of whole iterations, as in the edition's token-drop recipes"
            return replace(stated, graphs=True, assumed=(words,))
        if not statement.says("tokens", "kept"):
            return stated
        words = "tokens exchanged by DeepEP beside compute, as in the edition's dropless recipes"
        return replace(stated, deepep=True, overlapped=True, assumed=(words,))
    if not row.gpu.startswith("GB"):
        return stated
    if era.before(_WHOLE_ITERATION_GRAPHS):
        words = "tokens exchanged by HybridEP, as in the edition's presets"
        return replace(stated, deepep=True, assumed=(words,))
    words = "HybridEP beside compute and whole-iteration graphs, as in the edition's presets"
    return MoePreset(True, True, True, statement.arithmetic == "mxfp8", assumed=(words,))


def is_bridge(statement: Statement) -> bool:
    """Whether the row is one of Megatron-Bridge's."""
    return statement.label.get("project") == "bridge"


def is_library(statement: Statement) -> bool:
    """Whether the row ran the recipes of Megatron-Bridge's library: it names a release of the
    package, or no edition nor month. Those for performance come with an edition of NeMo's
    container, and set what the library's leave: 16-bit gradients, fused routers and rotary
    positions, balanced experts (``perf_recipes/_common.py`` against ``recipes/common.py``)."""
    label = statement.label
    undated = set(label) <= {"project", "year"}
    return is_bridge(statement) and ("bridge_release" in label or undated)
