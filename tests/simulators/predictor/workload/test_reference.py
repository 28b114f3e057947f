"""A frozen reference beside the model that is trained: what it runs, holds and gathers."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, MOE, SEEING, TINY, make_job
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Dpo, Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.workload.ir import Collective, Gemm, GroupedGemm
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.work import kernel_flops


def tuned(model, dpo=None, lora=None, packed=(), batch=16, **recipe):
    training = {"dpo": dpo, "lora": lora, "packed_lengths": packed}
    return make_job(model, batch=batch, training=training, **recipe)


def product_flops(job):
    """Of the products of one micro-batch's passes on a rank: forward, backward."""
    (stage,) = build_workload(job).stages
    return [
        sum(
            kernel_flops(op) * run.count
            for run in stage.chunks[0].runs
            for op in getattr(run, way).ops
            if isinstance(op, Gemm | GroupedGemm)
        )
        for way in ("forward", "backward")
    ]


def static(job):
    return ReplaySimulator().without_error_bar(job).memory.per_stage[0].kind


@pytest.mark.parametrize("model", [TINY, LLAMA, MOE])
@pytest.mark.parametrize("tp", [1, 4])
def test_a_pair_is_two_sequences_three_times_through_the_policy_and_once_through_the_reference(
    model, tp: int
) -> None:
    sp = tp > 1 and model.moe is not None
    unit = product_flops(tuned(model, tp=tp, sp=sp))[0]
    pairs = product_flops(tuned(model, Dpo(), tp=tp, sp=sp))
    assert sum(pairs) == 2 * (3 + 1) * unit
    assert sum(product_flops(tuned(model, Dpo(True), tp=tp, sp=sp))) == 2 * 3 * unit
    one, two = step_flops(tuned(model)).model, step_flops(tuned(model, Dpo())).model
    assert two == pytest.approx(2 * 4 / 3 * one)


def test_recomputation_repeats_the_policy_alone() -> None:
    unit = product_flops(tuned(LLAMA, Dpo(True)))[0]
    forward, backward = product_flops(tuned(LLAMA, Dpo(), recompute="full"))
    assert forward == 2 * unit
    assert 2 * unit < backward < 3 * unit


def test_precomputed_pairs_are_twice_the_sequences() -> None:
    pairs = tuned(LLAMA, Dpo(True), batch=16)
    sequences = tuned(LLAMA, batch=32, micro_batch=2)
    one, other = (ReplaySimulator().without_error_bar(job) for job in (pairs, sequences))
    assert pairs.num_micro_batches == sequences.num_micro_batches
    assert one.step_time_s == pytest.approx(other.step_time_s)
    assert one.tokens_per_s == pytest.approx(other.tokens_per_s)
    assert one.memory == other.memory


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
def test_a_reference_is_held_in_16_bits_without_gradients_or_states(zero_stage: int) -> None:
    plain = static(tuned(MOE, Dpo(True), zero_stage=zero_stage))
    with_it = static(tuned(MOE, Dpo(), zero_stage=zero_stage))
    assert with_it["parameters"] == 2 * plain["parameters"]
    for kind in ("gradients", "optimizer"):
        assert with_it[kind] == plain[kind]


def test_fsdp_shards_a_reference_and_gathers_it_forward_alone() -> None:
    job, plain = (tuned(LLAMA, dpo, zero_stage=3) for dpo in (Dpo(), Dpo(True)))
    count = build_workload(plain).stages[0].parameters.total
    ends = 2 * LLAMA.padded_vocab_size(1) * LLAMA.hidden_size + LLAMA.hidden_size
    # A shard in 16 bits on each of eight ranks, and the ends that stay gathered.
    grown = static(job)["parameters"] - static(plain)["parameters"]
    assert grown == pytest.approx(2 * (count / 8 + ends), abs=4)

    def gathers(given) -> int:
        return gathered_bytes(given) // (2 * count)

    assert (gathers(plain), gathers(job)) == (2, 3)
    assert gathers(tuned(LLAMA, Dpo(), Lora(8), zero_stage=3)) == 3


def gathered_bytes(job) -> int:
    """What one micro-batch's passes gather."""
    program = step_program(job, 1).program
    return sum(
        op.bytes
        for block in program.blocks.values()
        for op in block.ops
        if isinstance(op, Collective) and op.kind == "all_gather"
    )


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_under_lora_the_reference_is_the_frozen_weights(zero_stage: int) -> None:
    with_it = tuned(LLAMA, Dpo(), Lora(8), zero_stage=zero_stage)
    without = tuned(LLAMA, Dpo(True), Lora(8), zero_stage=zero_stage)
    assert static(with_it)["parameters"] == static(without)["parameters"]
    base = product_flops(tuned(LLAMA))[0]
    more = sum(product_flops(with_it)) - sum(product_flops(without))
    assert more == 2 * base


def test_a_reference_takes_its_time_in_the_forward_pass_and_keeps_nothing() -> None:
    job, plain = tuned(TINY, Dpo()), tuned(TINY, Dpo(True))
    chunks = [build_workload(each).stages[0].chunks[0] for each in (job, plain)]
    assert chunks[0].saved_bytes == chunks[1].saved_bytes
    assert "dropout" not in {
        getattr(op, "kind", "")
        for run in chunks[0].runs
        if run.reference
        for op in run.forward.ops
    }
    one, other = (ReplaySimulator().without_error_bar(each) for each in (job, plain))
    assert 1.15 * other.step_time_s < one.step_time_s < 1.5 * other.step_time_s


def test_a_reference_sees_images_too() -> None:
    unit = product_flops(tuned(SEEING, Dpo(True)))[0]
    assert product_flops(tuned(SEEING, Dpo()))[0] == 2 * unit


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (tuned(LLAMA, Dpo(), pp=2), "recipe.pp"),
        (tuned(LLAMA, Dpo(), packed=(8,)), "training.packed_lengths"),
    ],
)
def test_what_is_not_modelled_is_refused(job, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_job(job)
    assert caught.value.field == field
    check_job(replace(job, training=replace(job.training, dpo=Dpo(True), packed_lengths=())))
