"""Settings of Megatron-Bridge's presets, stated or by edition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports.validation.presets import moe_preset
from tests.reports.validation.runs import RUN

EDITION = "Megatron-Bridge (NeMo {})"


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("preset X; dispatcher hybridep", (True, False, False)),
        ("preset X; dispatcher DeepEP; 1F1B all-to-all overlap", (True, True, False)),
        ("preset X; CUDA graphs full_iteration", (False, False, True)),
        # Graphs of parts of a layer leave the experts to the host.
        ("preset X; CUDA graphs transformer_engine attn+moe_router", (False, False, False)),
        ("preset X", (False, False, False)),
    ],
)
def test_what_a_row_states(notes: str, expected: tuple[bool, bool, bool]) -> None:
    row = replace(RUN, framework=EDITION.format("26.08"), gpu="GB300-288GB", notes=notes)
    preset = moe_preset(row)
    assert (preset.deepep, preset.overlapped, preset.graphs) == expected
    assert not preset.assumed


@pytest.mark.parametrize(
    ("edition", "gpu", "expected"),
    [
        ("25.09", "GB200-192GB", (False, False, False)),
        ("25.11", "GB200-192GB", (True, False, False)),
        ("26.08", "GB300-288GB", (True, True, True)),
        ("26.08", "H100-80GB-SXM", (False, False, False)),
    ],
)
def test_what_an_edition_sets_on_racks(
    edition: str, gpu: str, expected: tuple[bool, bool, bool]
) -> None:
    row = replace(RUN, framework=EDITION.format(edition), gpu=gpu, notes="")
    preset = moe_preset(row)
    assert (preset.deepep, preset.overlapped, preset.graphs) == expected
    assert bool(preset.assumed) == any(expected)
