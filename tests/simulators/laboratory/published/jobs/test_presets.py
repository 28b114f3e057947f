"""Settings of Megatron-Bridge's presets, stated or by edition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import RUN
from trainscout.simulators.laboratory.published.jobs.era import era_of
from trainscout.simulators.laboratory.published.jobs.presets import MoePreset, moe_preset
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.reading.words import statement_of

EDITION = "Megatron-Bridge (NeMo {})"


def preset_of(row: Row) -> MoePreset:
    statement = statement_of(row)
    return moe_preset(row, statement, era_of(row, statement))


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("preset X; dispatcher hybridep", (True, False, False, False)),
        ("preset X; dispatcher DeepEP; 1F1B all-to-all overlap", (True, True, False, False)),
        ("preset X; CUDA graphs full_iteration", (False, False, True, True)),
        # Graphs of the router alone leave most launches to the host.
        ("preset X; CUDA graphs transformer_engine moe_router+moe_preprocess", (False,) * 4),
        (
            "preset X; CUDA graphs transformer_engine attn+moe_router+moe_preprocess",
            (False, False, True, False),
        ),
        ("preset X", (False,) * 4),
    ],
)
def test_what_a_row_states(notes: str, expected: tuple[bool, ...]) -> None:
    row = replace(RUN, framework=EDITION.format("26.08"), gpu="GB300-288GB", notes=notes)
    preset = preset_of(replace(row, dtype="mxfp8"))
    assert (preset.deepep, preset.overlapped, preset.graphs, preset.fused_experts) == expected
    assert not preset.assumed


@pytest.mark.parametrize(
    ("edition", "gpu", "notes", "expected"),
    [
        ("25.09", "GB200-192GB", "token-drop", (False, False, True, False)),
        ("25.09", "H100-80GB-SXM", "token-drop", (False,) * 4),
        ("25.09", "H100-80GB-SXM", "experts force-balanced, dropless", (True, True, False, False)),
        ("25.11", "GB200-192GB", "", (True, False, False, False)),
        ("26.08", "GB300-288GB", "", (True, True, True, True)),
        ("26.08", "H100-80GB-SXM", "", (False,) * 4),
    ],
)
def test_what_an_edition_sets(
    edition: str, gpu: str, notes: str, expected: tuple[bool, ...]
) -> None:
    row = replace(RUN, framework=EDITION.format(edition), gpu=gpu, notes=notes, dtype="mxfp8")
    preset = preset_of(row)
    assert (preset.deepep, preset.overlapped, preset.graphs, preset.fused_experts) == expected
    assert bool(preset.assumed) == any(expected)


@pytest.mark.parametrize(
    ("graphs", "left"),
    [
        ("transformer_engine attn+moe_router+moe_preprocess", True),
        ("transformer_engine attn+mamba+moe_router+moe_preprocess", True),
        ("full_iteration", False),
        ("transformer_engine moe_router+moe_preprocess", False),
        # Padded experts need no counts: nothing ends such a graph.
        ("transformer_engine attn+moe_router+moe_preprocess; token-drop", False),
    ],
)
def test_graphs_of_layers_end_before_the_experts(graphs: str, left: bool) -> None:
    row = replace(RUN, framework=EDITION.format("26.08"), notes=f"preset X; CUDA graphs {graphs}")
    assert preset_of(row).graphs_leave_experts == left


def test_the_development_branch_exchanges_by_hybridep_on_racks() -> None:
    row = replace(RUN, framework="Megatron-LM dev (2025)", notes="")
    assert not preset_of(row).deepep
    preset = preset_of(replace(row, gpu="GB300-288GB"))
    assert preset.deepep
    assert preset.assumed


def test_deepseek_exchanges_tokens_as_it_published() -> None:
    preset = preset_of(replace(RUN, framework="HAI-LLM (DeepSeek, 2024)", notes="DualPipe"))
    assert preset.deepep
    assert preset.overlapped
    assert preset.assumed
    assert not preset_of(replace(RUN, framework="HAI-LLM", notes="all-to-all dispatcher")).deepep
