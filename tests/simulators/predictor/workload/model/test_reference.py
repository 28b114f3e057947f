"""A frozen reference beside the model that is trained: what it runs, holds and gathers."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, MOE, SEEING, TINY, make_job
from tests.simulators.predictor.workload.blocks import PRODUCTS, work
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Distillation, Dpo, Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.workload.ir import Collective
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.schedules.schedule import BACKWARD, FORWARD


def tuned(model, dpo=None, lora=None, packed=(), batch=16, **recipe):
    training = {"dpo": dpo, "lora": lora, "packed_lengths": packed}
    return make_job(model, batch=batch, training=training, **recipe)


def product_flops(job):
    """Of the products of one micro-batch's passes: forward, backward."""
    return [work(job, way, PRODUCTS) for way in ("forward", "backward")]


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


@pytest.mark.parametrize("zero_stage", [0, 3])
def test_kto_passes_other_answers_through_both_models(zero_stage: int) -> None:
    unit = product_flops(tuned(LLAMA))[0]
    one = step_flops(tuned(LLAMA)).model
    plain = tuned(LLAMA, zero_stage=zero_stage)
    for precomputed, beside in ((False, 3), (True, 1)):
        job = tuned(LLAMA, Dpo(precomputed, kto=True), zero_stage=zero_stage)
        assert sum(product_flops(job)) == (3 + beside) * unit
        assert step_flops(job).model == pytest.approx((3 + beside) / 3 * one)
        # Before activations are kept (TRL 0.9.6 and later).
        assert build_workload(job).stages[0].chunks[0].runs[0].reference
        if zero_stage == 0:
            copies = static(job)["parameters"] / static(plain)["parameters"]
            assert copies == 1 + (not precomputed)
        else:
            assert gathered_bytes(job) == pytest.approx((2 + beside) / 2 * gathered_bytes(plain))
    adapted = tuned(LLAMA, Dpo(kto=True), Lora(8), zero_stage=zero_stage)
    held = static(tuned(LLAMA, None, Lora(8), zero_stage=zero_stage))["parameters"]
    assert static(adapted)["parameters"] == held


def test_a_teacher_reads_sequences_as_long_as_the_model_does() -> None:
    twice = 2 * LLAMA.sequence_length
    taught = {"distillation": Distillation(replace(LLAMA, name="teacher"))}
    longer = make_job(LLAMA, training={**taught, "sequence_length": twice})
    trained_so = make_job(replace(LLAMA, sequence_length=twice), training=taught)
    assert product_flops(longer) == product_flops(trained_so)
    assert step_flops(longer) == step_flops(trained_so)


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


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("model", [LLAMA, replace(TINY, tied_embeddings=True)])
def test_a_pipeline_cuts_a_reference_where_it_cuts_the_policy(model, vpp: int) -> None:
    alone, cut = tuned(model, Dpo()), tuned(model, Dpo(), pp=2, vpp=vpp)
    assert sum(product_flops(cut)) == sum(product_flops(alone))
    stages = build_workload(cut).stages
    for stage in stages:
        held = [run for chunk in stage.chunks for run in chunk.runs if run.reference]
        layers = sum(run.count for run in held if "layer" in run.forward.name)
        assert layers == model.num_layers // 2
    # Each of both ends has its own copy of what they share.
    copies = 2 if model.tied_embeddings else 1
    ends = copies * model.padded_vocab_size(1) * model.hidden_size
    frozen = sum(stage.parameters.held.total - stage.parameters.total for stage in stages)
    one = build_workload(alone).stages[0].parameters
    tied = model.padded_vocab_size(1) * model.hidden_size
    assert frozen == one.held.total - one.total + (ends - tied if copies == 2 else 0)


def test_hidden_states_of_both_travel_forward_in_one_message() -> None:
    job, ready = (tuned(LLAMA, dpo, pp=2) for dpo in (Dpo(), Dpo(True)))
    both, one = (step_program(each, 4).assembler for each in (job, ready))
    assert both.sent_s(0, 0, FORWARD) == 2 * one.sent_s(0, 0, FORWARD) > 0
    assert both.sent_s(1, 0, BACKWARD) == one.sent_s(1, 0, BACKWARD) > 0


def test_pairs_of_packs_attend_as_packs_do() -> None:
    packed, padded = tuned(LLAMA, Dpo(), packed=(8,)), tuned(LLAMA, Dpo())
    check_job(packed)
    assert step_flops(packed).model < step_flops(padded).model


TEACHER = replace(LLAMA, name="teacher", num_layers=24, hidden_size=512)


def taught(model=LLAMA, teacher=TEACHER, how=None, facts=None, **recipe):
    training = {"distillation": Distillation(teacher, **(how or {})), **(facts or {})}
    return make_job(model, batch=16, training=training, **recipe)


def test_a_borrowed_teacher_has_no_weights_of_its_own() -> None:
    alone = tuned(LLAMA, lora=Lora(8))
    apart, same = (
        taught(teacher=LLAMA, how={"borrowed": borrowed}, facts={"lora": Lora(8)})
        for borrowed in (False, True)
    )
    check_job(same)
    assert product_flops(same) == product_flops(apart)
    assert product_flops(same)[0] > product_flops(alone)[0]
    assert static(same)["parameters"] == static(alone)["parameters"] < static(apart)["parameters"]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_teacher_passes_forward_once(tp: int) -> None:
    own, teachers = (tuned(model, tp=tp) for model in (LLAMA, TEACHER))
    forward, backward = product_flops(taught(tp=tp))
    assert forward == product_flops(own)[0] + product_flops(teachers)[0]
    assert backward == product_flops(own)[1]
    flops = [step_flops(job).model for job in (taught(), own, teachers)]
    assert flops[0] == pytest.approx(flops[1] + flops[2] / 3)
    assert step_flops(taught()).causal == pytest.approx(
        step_flops(own).causal + step_flops(teachers).causal / 3
    )


def test_a_teacher_is_held_in_16_bits_and_kept_out_of_the_optimizer() -> None:
    with_it, without = static(taught()), static(tuned(LLAMA))
    held = build_workload(tuned(TEACHER)).stages[0].parameters.total
    assert with_it["parameters"] - without["parameters"] == 2 * held
    assert with_it["optimizer"] == without["optimizer"]
    fsdp = static(taught(zero_stage=3))["parameters"]
    assert fsdp < with_it["parameters"]
    assert static(taught(how={"fp32": True}))["parameters"] - with_it["parameters"] == 2 * held
    # Beside weights that autocast keeps in fp32 it has 16 bits still.
    casting = {"autocast": True, "fused_wgrad": False}
    own = static(make_job(LLAMA, batch=16, training=casting))["parameters"]
    assert static(taught(facts=casting))["parameters"] - own == 2 * held


def test_a_teacher_that_is_not_sharded_is_whole_everywhere_and_never_gathered() -> None:
    sharded, whole = taught(zero_stage=3), taught(how={"sharded": False}, zero_stage=3)
    held = build_workload(tuned(TEACHER)).stages[0].parameters.total
    each = static(sharded)["parameters"] - static(tuned(LLAMA, zero_stage=3))["parameters"]
    largest = static(tuned(TEACHER, zero_stage=3))["parameters"]
    more = static(whole)["parameters"] - static(sharded)["parameters"]
    assert 2 * held - each <= more < 2 * held < largest + more
    simulate = ReplaySimulator().without_error_bar
    times = [simulate(job).breakdown_s["dp_communication"] for job in (whole, sharded)]
    assert times[0] <= times[1]
    check_job(whole)


@pytest.mark.parametrize(
    ("loss", "autocasts", "bytes_a_logit"),
    [("kl", False, 36), ("jsd", True, 68), ("jsd", False, 34), ("jsd_pieces", False, 27)],
)
def test_what_a_divergence_holds(loss: str, autocasts: bool, bytes_a_logit: int) -> None:
    """As recorded on a virtual GPU: 68, 34 and 26.75 bytes a logit at the peak of the forward."""
    large, teacher = (replace(each, vocab_size=100_000) for each in (LLAMA, TEACHER))
    facts = {"autocast": autocasts, "fused_wgrad": not autocasts}
    job = taught(large, teacher, {"loss": loss}, facts)
    forward = build_workload(job).stages[0].runs[-1].forward
    logits = LLAMA.sequence_length * large.padded_vocab_size(1)
    assert forward.peak_bytes == pytest.approx(bytes_a_logit * logits, rel=0.02)


def test_the_divergence_holds_several_fp32_copies_of_both_logits() -> None:
    """Two log-probabilities, what they come of and both 16-bit logits at once."""
    large = replace(LLAMA, vocab_size=100_000)
    teacher = replace(TEACHER, vocab_size=100_000)
    peaks = [
        ReplaySimulator().without_error_bar(job).memory.per_stage[0].kind
        for job in (taught(large, teacher), tuned(large))
    ]
    logits = LLAMA.sequence_length * large.padded_vocab_size(1)
    dynamic = [kind["activations"] + kind["temporary"] for kind in peaks]
    # The loss of the next token holds an fp32 softmax beside 16-bit logits.
    assert dynamic[0] - dynamic[1] == pytest.approx((36 - 6) * logits, rel=0.05)


@pytest.mark.parametrize("recipe", [{"zero_stage": 3}, {"zero_stage": 3, "dp_shard": 2}])
def test_a_teacher_may_have_experts_where_the_student_has_none(recipe) -> None:
    job = taught(replace(LLAMA, vocab_size=MOE.vocab_size), MOE, **recipe)
    check_job(job)
    gathered, whole = (
        ReplaySimulator().without_error_bar(each).breakdown_s["dp_communication"]
        for each in (job, taught(job.model, MOE, {"sharded": False}, **recipe))
    )
    assert gathered >= whole


def test_a_teacher_goes_through_the_same_pipeline() -> None:
    assert sum(product_flops(taught(pp=2))) == sum(product_flops(taught()))
    for stage in build_workload(taught(pp=2, vpp=2)).stages:
        frozen = [run for chunk in stage.chunks for run in chunk.runs if run.reference]
        assert sum(run.count for run in frozen if "layer" in run.forward.name) == 12


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (taught(teacher=replace(TEACHER, num_layers=30), pp=4), "recipe.pp"),
        (taught(teacher=replace(TEACHER, num_heads=6, head_dim=64), tp=4), "recipe.tp"),
        (taught(teacher=replace(TEACHER, vocab_size=999)), "training.distillation.teacher"),
        (taught(teacher=LLAMA, how={"borrowed": True}), "training.distillation.teacher"),
        (taught(replace(LLAMA, num_mtp_layers=1)), "training.distillation.teacher"),
    ],
)
def test_teachers_that_do_not_go_with_the_student_are_refused(job, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_job(job)
    assert caught.value.field == field
    check_job(taught())
