from dataclasses import replace

import pytest

from tests.samples import prediction
from tests.simulators.laboratory.published.runs import RUN, replayable
from trainscout.simulators.laboratory.published.measured import (
    about_measured,
    convention_flops,
    measured_memory,
    measured_step,
    predicted_memory_bytes,
    printed_stage,
)

UNMEASURED = replace(RUN, measured_iter_s=None)
GPT175B = {
    "model": "GPT-175B",
    "num_layers": 96,
    "hidden": 12288,
    "ffn_hidden": 49152,
    "num_heads": 96,
    "num_query_groups": 96,
    "vocab": 51200,
    "seq_len": 2048,
    "gated_mlp": 0,
}


def test_printed_seconds_come_first():
    row = replace(RUN, derived_iter_s=9.0, measured_tokens_per_s_per_gpu=1.0)
    found = measured_step(row, replayable().job)
    assert found is not None
    assert (found.step_time_s, found.derived) == (4.0, "")


def test_seconds_from_tokens_per_second():
    job = replayable().job
    found = measured_step(replace(UNMEASURED, measured_tokens_per_s_per_gpu=8192.0), job)
    assert found is not None
    assert found.step_time_s == pytest.approx(128 * 8192 / (8192 * 64))


def test_hardware_flops_as_narayanan_et_al_count_them():
    # 96 B s L h^2 (1 + s/6h + V/16Lh), equation 4 of arXiv 2104.04473.
    job = replayable(**GPT175B, recompute="full").job
    batch, s, layers, h, v = 128, 2048, 96, 12288, 51200
    expected = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    words, flops = convention_flops("hardware FLOPs incl. full recompute: 96*B*s*L*h^2", job)
    assert "runs again" in words
    assert flops == pytest.approx(expected, rel=1e-9)
    assert convention_flops("HFU", job)[1] == flops
    assert convention_flops("MFU beside HFU", job)[1] < flops


def test_hardware_flops_hold_no_gradients_of_frozen_weights():
    notes = "LoRA rank 16 on q_proj, v_proj, k_proj, o_proj"
    cells = {"framework": "TRL SFTTrainer", "tp": 1, "pp": 1, "dp": 64, "notes": notes}
    whole, adapters = replayable(**(cells | {"notes": ""})).job, replayable(**cells).job
    share = convention_flops("HFU", adapters)[1] / convention_flops("HFU", whole)[1]
    assert 2 / 3 < share < 0.75


def test_model_flops_as_korthikanti_et_al_count_them():
    # 72 B s L h^2 (1 + s/6h + V/12Lh), appendix A of arXiv 2205.05198.
    job = replayable(**GPT175B).job
    batch, s, layers, h, v = 128, 2048, 96, 12288, 51200
    expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert convention_flops("model FLOPs, vs 312", job)[1] == pytest.approx(expected, rel=1e-9)


def test_causal_attention_at_half_is_less():
    job = replayable().job
    full = convention_flops("model FLOPs", job)[1]
    half = convention_flops("3x forward GEMMs + causal attention at half", job)[1]
    attention = 3 * 4 * 8192 * 4096 * 32 * job.tokens_per_step
    assert full - half == pytest.approx(attention / 2)


def test_six_flops_a_parameter_leave_attention_out():
    job = replayable().job
    body = convention_flops("8*params", job)[1] * 6 / 8
    head = 6 * job.model.hidden_size * job.model.vocab_size * job.tokens_per_step
    for words in ("6ND", "6*N*D, no attention", "6 FLOPs per parameter and token"):
        assert convention_flops(words, job)[1] == pytest.approx(body + head)
    full = convention_flops("model FLOPs", job)[1]
    assert convention_flops("6*N per token + 12*L*h*s, model FLOPs", job)[1] == full
    assert convention_flops("PaLM appendix B", job)[1] == full
    assert convention_flops("half of the attention (causal)", job)[1] < full


def test_hardware_utilisation_counts_the_passes_that_ran():
    plain, again = (replayable(recompute=mode).job for mode in ("none", "full"))
    assert convention_flops("HFU", plain)[1] == convention_flops("model FLOPs", plain)[1]
    assert convention_flops("HFU", again)[1] == convention_flops("hardware FLOPs", again)[1]
    assert convention_flops("MFU (HFU is 50%)", again)[0] == "model FLOPs, full attention"


def test_mfu_is_relative_to_the_stated_peak():
    job = replayable().job
    row = replace(UNMEASURED, measured_mfu=50.0, tflops_convention="model FLOPs / 989.5 TFLOPS")
    found = measured_step(row, job)
    assert found is not None
    flops = convention_flops("model FLOPs", job)[1]
    assert found.step_time_s == pytest.approx(flops / (0.5 * 989.5e12 * 64))


def test_an_unknown_convention_determines_nothing():
    row = replace(UNMEASURED, measured_tflops_per_gpu=400.0, tflops_convention="causal unclear")
    assert measured_step(row, replayable().job) is None
    assert measured_step(UNMEASURED, replayable().job) is None


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "allocated"),
        ({"notes": "memory is nvidia-smi max in GB"}, "device"),
        ({"framework": "TorchTitan (PyTorch FSDP2)"}, "reserved"),
        ({"framework": "nanotron"}, "reserved"),
        ({"framework": "Megatron-SWIFT (Megatron-Core 0.14)"}, "reserved"),
        ({"memory_kind": "reserved"}, "reserved"),
        ({"memory_kind": "nvidia-smi"}, "device"),
        ({"memory_kind": "torch.cuda.max_memory_allocated", "framework": "nanotron"}, "allocated"),
    ],
)
def test_what_a_memory_figure_counts(changes, kind):
    row = replace(RUN, measured_peak_mem_gib=40.0, **changes)
    assert measured_memory(row) == (kind, 40 * 2**30)
    assert measured_memory(replace(row, memory_kind="mean of what is allocated")) is None
    one = "one figure for eager, compiled and 8-bit runs"
    assert measured_memory(replace(row, memory_kind=one)) is None


def test_the_device_holds_what_is_reserved_and_what_the_allocator_does_not_see():
    memory = prediction().memory
    outside = {"communication_buffers": 2, "context": 5}
    stages = tuple(replace(each, kind=each.kind | outside) for each in memory.per_stage)
    memory = replace(memory, per_stage=stages)
    assert predicted_memory_bytes("device", memory) == memory.peak_reserved_bytes + 7


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        ("Megatron-LM main (release CI)", -1),
        ("Megatron-LM dev (2025)", None),
        ("nanotron", 0),
    ],
)
def test_whose_memory_a_row_has(label, stage):
    assert printed_stage(replace(RUN, framework=label)) == stage


@pytest.mark.parametrize("kind", ["allocated", "reserved"])
def test_memory_of_a_stage(kind):
    memory = prediction().memory
    first = replace(memory.per_stage[0], peak_allocated_bytes=5, peak_reserved_bytes=6)
    last = replace(first, peak_allocated_bytes=3, peak_reserved_bytes=4)
    memory = replace(memory, per_stage=(first, last))
    figures = [predicted_memory_bytes(kind, memory, stage) for stage in (0, -1)]
    assert figures == ([5, 3] if kind == "allocated" else [6, 4])
    assert predicted_memory_bytes(kind, memory) == getattr(memory, f"peak_{kind}_bytes")


def about(predicted_s=4.0, **changes):
    outcome = replayable(**changes)
    row = replace(RUN, **changes)
    measured = measured_step(row, outcome.job)
    return about_measured(row, outcome.job, measured, prediction(predicted_s))


def test_a_step_that_contradicts_the_tokens_is_told_with_both_figures():
    # 128 sequences of 8192 tokens on 64 GPUs in 4 s.
    rate = 128 * 8192 / 64 / 4.0
    assert about(measured_tokens_per_s_per_gpu=rate * 1.15) == ()
    (statement,) = about(measured_tokens_per_s_per_gpu=rate * 2)
    assert "a step of 4 s" in statement
    assert "make it 2 s" in statement


def test_flops_of_another_batch_and_more_than_the_peak_are_told():
    flops = convention_flops("model FLOPs", replayable().job)[1] / 64 / 4.0 / 1e12
    assert about(measured_tflops_per_gpu=flops * 1.4) == ()
    (statement,) = about(measured_tflops_per_gpu=flops * 2)
    assert "the printed FLOP/s make it 2 s, as another batch would" in statement
    (statement,) = about(0.8, measured_iter_s=0.8)
    assert statement.startswith("faster than these GPUs multiply: ")


@pytest.mark.parametrize(("predicted_s", "flagged"), [(79, 0), (81, 1), (0.21, 0), (0.19, 1)])
def test_a_ratio_beyond_twenty_is_a_likely_unit_error(predicted_s, flagged):
    assert len(about(predicted_s)) == flagged
    assert all("likely unit error" in text for text in about(predicted_s))


@pytest.mark.parametrize(
    ("label", "convention", "half"),
    [
        ("Megatron-Core (2025)", "model FLOPs / 989.5 TFLOPS", True),
        ("Megatron-Core v0.12", "", True),
        ("Megatron-Core (2025)", "model FLOPs, full attention", False),
        ("Megatron-LM (2022)", "", False),
        ("Megatron-LM", "", False),
        ("PyTorch FSDP2 (2025)", "", False),
    ],
)
def test_recent_megatron_counts_half_of_a_causal_attention(label, convention, half):
    row = replace(
        UNMEASURED, framework=label, measured_tflops_per_gpu=400.0, tflops_convention=convention
    )
    found = measured_step(row, replayable(framework=label).job)
    assert found is not None
    assert ("attention at half" in found.derived) is half
