"""Frozen weights in 8 and 4 bits: what unpacks them, what holds them, what travels."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, MOE, make_job
from tests.simulators.predictor.workload.blocks import operations
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Dpo, Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Streaming
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
)

# Of which bitsandbytes 0.50.2 was recorded on a virtual GPU, a sequence of 2048 tokens at a time.
RECORDED = replace(
    LLAMA,
    num_layers=4,
    hidden_size=2048,
    num_heads=32,
    num_query_groups=8,
    ffn_hidden_size=8192,
    sequence_length=2048,
)
WEIGHTS = 4 * 2048 * (2048 + 2 * 512 + 2048 + 3 * 8192)


def quantised(kept, model=LLAMA, training=None, **recipe):
    given = {"lora": Lora(8, frozen_weights=kept), **(training or {})}
    return make_job(model, training=given, **recipe)


def unpacked_bytes(job, pass_):
    made = operations(job, pass_, Streaming)
    return sum(op.bytes for op in made if op.name.endswith("_dequantise"))


def stage_bytes(job):
    return ReplaySimulator().without_error_bar(job).memory.per_stage[0]


def test_weights_are_unpacked_for_both_products() -> None:
    job = quantised("nf4", RECORDED)
    # gemm_4bit and dequantize_4bit as recorded; the first layer's input had no gradient there.
    assert unpacked_bytes(job, "forward") == unpacked_bytes(job, "backward") == 623_378_432
    # Scales of scales and tables of codes are left out.
    made = unpacked_bytes(quantised("nf4_double", RECORDED), "forward")
    assert made == pytest.approx(672_880_752, rel=2e-4)
    assert unpacked_bytes(quantised("16bit", RECORDED), "forward") == 0
    # A copy in 16 bits, multiplied by its scales in place.
    assert unpacked_bytes(quantised("int8", RECORDED), "backward") == 7 * WEIGHTS
    assert unpacked_bytes(quantised("int8", RECORDED), "forward") == 0


def test_in_fp32_four_bits_are_unpacked_to_as_much_and_nothing_is_cast() -> None:
    narrow, wide = (quantised("nf4", RECORDED, {"precision": each}) for each in ("bf16", "fp32"))
    more = unpacked_bytes(wide, "forward") - unpacked_bytes(narrow, "forward")
    assert more == 2 * WEIGHTS
    casts = [op.name for op in operations(wide, "forward", Streaming) if op.name.endswith("_cast")]
    assert not [name for name in casts if "logits" not in name]
    with pytest.raises(InputError, match="in 16 bits, not in tf32"):
        check_job(quantised("int8", RECORDED, {"precision": "tf32"}))
    check_job(quantised("nf4", RECORDED, {"precision": "tf32"}))


def test_recomputation_unpacks_again() -> None:
    plain, again = (
        unpacked_bytes(quantised("nf4", recompute=each), "backward") for each in ("none", "full")
    )
    assert again == 2 * plain


@pytest.mark.parametrize(
    ("kept", "size"), [("int8", 1), ("nf4", 0.5625), ("nf4_double", 0.5 + 1 / 64 + 1 / 4096)]
)
def test_what_a_rank_holds(kept, size) -> None:
    whole, less = (stage_bytes(quantised(each, RECORDED)).kind for each in ("16bit", kept))
    # The recorded peaks of 16 bits and NF4 lie 349,685,760 bytes apart.
    assert whole["parameters"] - less["parameters"] == pytest.approx(
        (2 - size) * WEIGHTS, rel=1e-5
    )
    for kind in ("gradients", "optimizer"):
        assert less[kind] == whole[kind]


def test_a_matrix_is_held_in_16_bits_while_it_is_multiplied() -> None:
    whole, less = (
        build_workload(quantised(each, RECORDED, micro_batch=1)).stages[0].chunks[0].runs
        for each in ("16bit", "nf4")
    )
    for one, other in zip(whole, less, strict=True):
        layer = one.forward.name == "layer_forward"
        grown = other.backward.peak_bytes - one.backward.peak_bytes
        assert grown <= 2 * 2048 * 2 * 8192 * layer
        assert (grown > 0) == layer


def test_what_peft_makes_fp32_beside_packed_weights() -> None:
    plain = {"separate_projections": True, "fused_norm": False, "fusion": "eager"}
    layer = replace(LLAMA, num_layers=1)

    def held(fp32, kept="nf4", **recipe):
        training = plain | {"fp32_beside_packed": fp32, "fused_wgrad": False}
        job = quantised(kept, layer, training, micro_batch=1, **recipe)
        return stage_bytes(job).kind, build_workload(job).stages[0].chunks[0].saved_bytes

    (narrow, narrow_saved), (wide, wide_saved) = held(False), held(True)
    # The table and the head of 1,000 words and three norms: 4 bytes each instead of 2.
    rest = 2 * 1000 * 256 + 3 * 256
    assert wide["parameters"] - narrow["parameters"] == 2 * rest
    # Of 64 tokens: a copy for each of five products instead of two (256), gate, up and SiLU's
    # (704) in 4 bytes; the head in 16 bits, and casts of factors (rank 8) of seven products.
    more = 64 * 2 * (3 * 256 + 3 * 704) + 2 * 1000 * 256
    factors = 8 * (3 * 256 + (256 + 2 * 64) + 2 * (256 + 704) + (704 + 256))
    assert wide_saved - narrow_saved == more + 2 * factors
    assert held(True, zero_stage=3) == held(False, zero_stage=3)
    assert held(True, "16bit") == held(False, "16bit")


def test_experts_are_unpacked_too() -> None:
    job = quantised("nf4", MOE)
    held = build_workload(job).stages[0].parameters
    assert held.quantised is not None
    assert 0 < held.quantised.frozen_expert == held.frozen_expert
    layers = held.quantised.held.total
    assert unpacked_bytes(job, "forward") == pytest.approx(2.5625 * layers, rel=1e-3)


def test_fsdp_gathers_packed_weights_and_keeps_all_scales() -> None:
    whole, less = (quantised(each, RECORDED, zero_stage=3) for each in ("16bit", "nf4"))
    runs = build_workload(less).stages[0].chunks[0].runs
    run = next(run for run in runs if run.forward.name == "layer_forward")
    sent = [
        sum(op.bytes for op in gather_parameters(run.parameters, Transfer.of(job)).ops)
        for job in (whole, less)
    ]
    layer = WEIGHTS // 4
    assert sent[0] - sent[1] == pytest.approx(1.5 * layer, rel=1e-3)
    saved = stage_bytes(whole).kind["parameters"] - stage_bytes(less).kind["parameters"]
    scales = WEIGHTS / 16
    assert saved == pytest.approx(1.5 * (WEIGHTS / 8 + 2 * layer) - scales, rel=1e-3)


def test_a_reference_unpacks_the_weights_that_it_borrows() -> None:
    plain, pairs = (quantised("nf4", training={"dpo": dpo}) for dpo in (None, Dpo()))
    forward = unpacked_bytes(plain, "forward")
    assert unpacked_bytes(pairs, "forward") == 2 * forward
    assert unpacked_bytes(pairs, "backward") == forward


def test_fewer_bits_cost_time_and_save_memory() -> None:
    whole, less, least = (
        ReplaySimulator().without_error_bar(quantised(each, RECORDED))
        for each in ("16bit", "nf4", "nf4_double")
    )
    assert whole.step_time_s < less.step_time_s < least.step_time_s
    used = [each.memory.peak_allocated_bytes for each in (whole, less, least)]
    assert used == sorted(used, reverse=True)


def test_what_is_kept_otherwise_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        check_job(quantised("nf5"))
    assert caught.value.field == "training.lora.frozen_weights"
