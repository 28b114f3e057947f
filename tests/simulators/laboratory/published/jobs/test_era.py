from dataclasses import replace

import pytest

from trainscout.simulators.laboratory.published.jobs.era import Era, era_of, nccl_version
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.reading.words import statement_of

ROW = Row(id="x", gpu="h100")


def year(**cells):
    row = replace(ROW, **cells)
    return era_of(row, statement_of(row)).year


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("Megatron-LM (Jan 2021)", 2021.0),
        ("Megatron-LM (2022)", 2022.5),
        ("GPT-NeoX (DeepSpeed, early 2023)", 2023.15),
        ("TorchTitan (late 2025)", 2025.85),
        ("TorchTitan, mid-2024", 2024.5),
        ("NeMo 24.07", 2024.5),
        ("NeMo (MLPerf v4.1)", 2024.8),
        ("Megatron-LM (mcore r0.8.0)", 2024.5),
        ("Megatron-LM core_v0.6.0", 2024.17),
        ("Megatron-LM (core 0.6.0)", 2024.17),
        ("megatron-core v0.12.1", 2025.17),
        ("Megatron-LM 23e00ed + TE 2.11, torch 2.10", 2026.05),
        ("our trainer, PyTorch 2.3", 2024.3),
        ("Megatron-Bridge 2026-08", 2026.58),
        ("Primus/Megatron-LM (ROCm 25.9-25.11)", 2025.67),
        ("Megatron-DeepSpeed", None),
    ],
)
def test_labels_carry_years(label, expected):
    found = year(framework=label)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.01))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Narayanan et al. 2021 (arXiv 2104.04473) Table 1", 2021.5),
        ("Somebody (arXiv 2504.14960) Table 3", 2024.95),
        ("MegaScale (NSDI 2024) Figure 9", 2023.7),
    ],
)
def test_the_paper_s_year_when_the_label_has_none(source, expected):
    assert year(framework="Megatron-LM", source=source) == pytest.approx(expected)


def test_the_notes_year_comes_last():
    assert year(notes="64 x H100; Dec 2024") == pytest.approx(2024.917, abs=0.01)
    assert year(framework="NeMo 24.07", notes="Dec 2023") == pytest.approx(2024.5)


@pytest.mark.parametrize(
    "notes", ["HFU 29.06", "mfu 24.7", "24.9% of the peak", "22.12 GB a GPU", "25.04 s a step"]
)
def test_no_figure_is_a_container(notes):
    assert year(framework="llm-foundry", notes=notes) is None
    assert year(framework="llm-foundry", notes=f"{notes}; image 24.07") == pytest.approx(2024.5)


@pytest.mark.parametrize("gpu", ["A100-80GB-SXM", "H100-80GB-SXM", "V100-32GB", "B200"])
def test_no_gpu_tells_the_year(gpu):
    assert year(gpu=gpu, framework="Megatron-LM") is None


def test_what_a_row_did_outranks_its_year():
    assert year(framework="Megatron-LM (2022)", cp=2) == 2024.0
    assert year(framework="Megatron-LM (2022)", cp=1) == 2022.5


def test_unknown_software_is_of_today():
    unknown = Era(None, "not published")
    assert not unknown.before(2000)
    assert nccl_version(unknown) == "2.27"
    assert nccl_version(Era(2023.5, "its label")) == "2.18"
