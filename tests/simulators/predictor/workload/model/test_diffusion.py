"""Diffusion transformers: published counts of parameters, products counted twice, what is kept."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import CROSSING, JOINED, make_job
from tests.simulators.predictor.workload.blocks import operations, work
from trainscout.commands.listing import parameters
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.diffusion import Diffusion
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Dpo, Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Attention, Streaming, kernel_flops
from trainscout.simulators.predictor.workload.megatron import build_workload


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # WanTransformer3DModel and FluxTransformer2DModel of diffusers 0.42, built on meta.
        ("wan2_1_14b", 14_288_491_584),
        ("wan2_1_1b3", 1_418_996_800),
        ("wan2_2_5b", 4_999_787_712),
        ("flux1_dev", 11_901_408_320),
    ],
)
def test_parameters_are_those_of_diffusers(name: str, count: int) -> None:
    assert parameters(load_catalogue().models[name]) == count


@pytest.mark.parametrize("model", [CROSSING, JOINED])
def test_products_are_what_flops_count(model) -> None:
    """But for texts and conditions ahead of the layers, and what makes modulations."""
    job = make_job(model, batch=8)
    ahead = ("text", "condition", "modulation")
    counted = sum(
        kernel_flops(op) for op in operations(job, "forward") if not op.name.startswith(ahead)
    )
    text = model.diffusion.text_tokens if model is JOINED else 0
    # Patches alone go in and out, where FLOPs count every token.
    ends = 2 * 2 * model.hidden_size * model.diffusion.patch_size
    tokens = model.sequence_length
    patches = ends * (tokens - text) + 2 * model.hidden_size * model.diffusion.patch_size * text
    expected = step_flops(job).model / 3 / 8 - ends * tokens + patches
    assert counted == pytest.approx(expected, rel=1e-9)
    assert work(job, "backward") > 1.9 * work(job, "forward")
    # Attention to all tokens skips nothing.
    assert step_flops(job).causal == step_flops(job).model


def test_attention_sees_all_latents_and_across_them_the_text() -> None:
    for model, seen in ((CROSSING, {64, 16}), (JOINED, {64})):
        found = operations(make_job(model), "forward", Attention)
        assert {op.seq_k for op in found} == seen
        assert not any(op.causal for op in found)


def test_latents_are_cut_and_look_at_the_whole_text() -> None:
    job = make_job(CROSSING, cp=4)
    check_job(job)
    cores = operations(job, "forward", Attention)
    assert {op.seq_k for op in cores if op.name.startswith("cross")} == {16}


def test_the_ring_visits_every_key_whole() -> None:
    alone, cut = make_job(JOINED), make_job(JOINED, cp=4)
    one, four = (work(job, "forward", Attention) for job in (alone, cut))
    assert one == 4 * four


@pytest.mark.parametrize("model", [CROSSING, JOINED])
def test_tensor_parallel_ranks_share_layers(model) -> None:
    whole, half = (make_job(model, tp=tp, sp=tp > 1) for tp in (1, 2))
    counts = [build_workload(job).stages[0].parameters.total for job in (whole, half)]
    assert counts[0] / 2 < counts[1] < 0.62 * counts[0]
    check_job(half)
    assert ReplaySimulator().without_error_bar(half).step_time_s > 0


def test_eager_modulation_moves_and_keeps_more() -> None:
    fused, eager = (
        make_job(CROSSING, training={"fusion": fusion}) for fusion in ("fused", "eager")
    )

    def modulated(job) -> int:
        ops = operations(job, "forward", Streaming)
        return sum(op.bytes for op in ops if "modul" in op.name)

    assert modulated(fused) == 0 < modulated(eager)


@pytest.mark.parametrize("model", [CROSSING, JOINED])
def test_adapters_have_the_only_gradients_of_weights(model) -> None:
    whole, adapted = (make_job(model, training={"lora": lora}) for lora in (None, Lora(8)))
    gradients = [op for op in operations(adapted, "backward") if op.name.endswith("_wgrad")]
    assert gradients
    assert all("_lora_" in op.name for op in gradients)
    # Queries, keys and values, outputs, and both layers of the MLP: two factors a layer.
    sizes = sum(op.m * op.n for op in gradients)
    (stage,) = build_workload(adapted).stages
    runs = stage.chunks[0].runs
    assert sum(run.parameters.total * run.count for run in runs) == sizes
    frozen = sum(run.parameters.frozen_dense * run.count for run in runs)
    (stage,) = build_workload(whole).stages
    assert frozen == sum(run.parameters.total * run.count for run in stage.chunks[0].runs)
    one, other = (ReplaySimulator().without_error_bar(job) for job in (whole, adapted))
    assert other.memory.peak_allocated_bytes < one.memory.peak_allocated_bytes


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (make_job(CROSSING, pp=2), "recipe.pp"),
        (make_job(replace(CROSSING, vocab_size=9)), "model.diffusion"),
        (make_job(replace(CROSSING, kinds={}, layers=None)), "model.layers"),
        (make_job(replace(CROSSING, diffusion=None)), "model.kinds.crossing.cross"),
        (
            make_job(replace(CROSSING, diffusion=Diffusion(4, 16, (8, 9), modulation="shared"))),
            "model.diffusion.text_widths",
        ),
        (make_job(CROSSING, training={"packed_lengths": (16,)}), "training.packed_lengths"),
        (make_job(CROSSING, training={"dpo": Dpo()}), "training.dpo"),
    ],
)
def test_what_is_not_of_them_is_refused(job, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_job(job)
    assert caught.value.field == field


def test_text_that_leaves_no_latents_is_refused():
    text = JOINED.diffusion.text_tokens
    with pytest.raises(InputError, match=rf"sequence_length={text}: .*more than {text}"):
        make_job(JOINED, training={"sequence_length": text}).training.check_for(JOINED)
    make_job(JOINED, training={"sequence_length": text + 1}).training.check_for(JOINED)
    make_job(CROSSING, training={"sequence_length": 8}).training.check_for(CROSSING)
