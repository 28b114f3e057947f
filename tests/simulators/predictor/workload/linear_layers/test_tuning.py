"""Adapters, frozen parts and packed sequences: what has gradients, what is kept, what runs."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import LLAMA, MLA_MOE, MOE, SEEING, SPARSE, TINY, make_job
from tests.simulators.predictor.workload.blocks import PRODUCTS, operations, work
from trainscout.simulators.predictor.answer.flops import attention_core_flops, step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.megatron import build_workload

LORA = Lora(8)


def tuned(model, lora=LORA, frozen=(), packed=(), **recipe):
    training = {"lora": lora, "frozen": frozen, "packed_lengths": packed}
    training["fp32_adapters"] = training["autocast"] = recipe.pop("fp32_adapters", False)
    return make_job(model, training=training, **recipe)


def kept_bytes(model, **training):
    job = make_job(model, training=training, micro_batch=1)
    return build_workload(job).stages[0].chunks[0].saved_bytes


def parameters(job):
    return build_workload(job).stages[0].parameters


@pytest.mark.parametrize("tp", [1, 4])
def test_adapters_have_as_many_parameters_as_their_factors(tp: int) -> None:
    h, f, kv, r = 256, 704, 2 * 32, 8
    each = [(h, h + 2 * kv), (h, h), (h, 2 * f), (f, h)]
    whole = 12 * r * sum(ins + outs for ins, outs in each)
    held = parameters(tuned(LLAMA, tp=tp))
    if tp == 1:
        assert held.total == whole
    else:
        # Factors are sharded, but for the long side of A or B that meets a sharded dimension.
        assert whole / tp <= held.total < whole
    assert held.held.total - held.total == parameters(tuned(LLAMA, lora=None, tp=tp)).total


def test_experts_have_an_adapter_each() -> None:
    plain, adapted = parameters(tuned(MOE, lora=None)), parameters(tuned(MOE))
    assert adapted.frozen_expert == plain.expert
    each = 12 * 8 * ((256 + 2 * 128) + (128 + 256))
    assert adapted.expert == 8 * each
    # Megatron-Bridge's LoRA.transform builds one for each linear layer of a rank's experts.
    shared = make_job(MOE, training={"lora": LORA, "shares_expert_adapters": True})
    assert parameters(shared).expert == each
    assert parameters(shared).frozen_expert == plain.expert
    # As many FLOPs: each row passes an adapter either way.
    for way in ("forward", "backward"):
        assert work(shared, way, PRODUCTS) == work(tuned(MOE), way, PRODUCTS)


def test_adapters_of_stacked_experts_are_added_to_their_weights() -> None:
    """As recorded from PEFT 0.21 beside Transformers 5.24's Qwen3-MoE (``ParamWrapper``)."""
    job = make_job(MOE, training={"lora": LORA, "stacks_experts": True})
    # Gate and up are one adapter of twice the rank.
    layers, experts, rank, fc1, fc2 = 12, 8, 8, (256, 2 * 128), (128, 256)
    assert parameters(job).expert == layers * experts * rank * (2 * sum(fc1) + sum(fc2))
    stacks = [experts * ins * outs for ins, outs in (fc1, fc2)]

    def layer(job):
        runs = build_workload(job).stages[0].chunks[0].runs
        return next(run for run in runs if run.forward.name == "moe_layer_forward")

    adapted, apart = layer(job), layer(tuned(MOE))
    rows = job.recipe.micro_batch * job.sequence_length * MOE.moe.top_k
    more = adapted.forward.saved_bytes - apart.forward.saved_bytes
    # Sums instead of what both first factors made.
    assert more == 2 * (sum(stacks) - rows * 2 * rank)
    # Each weight is made twice forward, a product of the rank's depth.
    added = [op for op in adapted.forward.ops if isinstance(op, ir.Gemm) and "expert_" in op.name]
    assert [op.batch * op.m * op.n for op in added] == [each for each in stacks for _ in range(2)]
    assert [op.k for op in added] == [2 * rank] * 2 + [rank] * 2
    # Their gradient is that of all weights, of which a product for each factor makes its own.
    back = [op for op in adapted.backward.ops if "expert_fc" in getattr(op, "name", "")]
    whole = [op for op in back if op.name.endswith("stack_wgrad")]
    assert [op.groups * op.n * op.k for op in whole] == stacks[::-1]
    behind = [(op.k, min(op.m, op.n)) for op in back if isinstance(op, ir.Gemm)]
    assert behind == [(128, rank), (256, rank), (256, 2 * rank), (256, 2 * rank)]


def test_stacked_experts_stay_in_16_bits_and_have_no_dropout() -> None:
    packed = Lora(8, frozen_weights="nf4")
    apart, stacked = (
        make_job(MOE, training={"lora": packed, "stacks_experts": stacks})
        for stacks in (False, True)
    )
    held = [
        ReplaySimulator().without_error_bar(job).memory.per_stage[0] for job in (apart, stacked)
    ]
    experts = parameters(apart).frozen_expert
    shared = 2 * (parameters(stacked).expert - parameters(apart).expert)
    more = held[1].kind["parameters"] - held[0].kind["parameters"] - shared
    assert more == pytest.approx((2 - 1 / 2 - 4 / 64) * experts, rel=0.01)
    dropped = {"lora": Lora(8, dropout=0.1), "stacks_experts": True}
    with pytest.raises(InputError, match="stacked experts"):
        check_job(make_job(MOE, training=dropped))
    check_job(make_job(MOE, training=dropped | {"lora": Lora(8, ("linear_qkv",), dropout=0.1)}))


@pytest.mark.parametrize("model", [TINY, LLAMA, MOE, MLA_MOE])
def test_frozen_weights_have_no_gradient_products(model) -> None:
    made = operations(tuned(model), "backward", PRODUCTS)
    gradients = [op.name for op in made if op.name.endswith("_wgrad")]
    assert gradients
    assert all("_lora_" in name for name in gradients)
    forward, backward = (work(tuned(model), way, PRODUCTS) for way in ("forward", "backward"))
    plain = work(tuned(model, lora=None), "forward", PRODUCTS)
    # Weights once, adapters twice: forward is weights and adapters.
    assert backward == plain + 2 * (forward - plain)


@pytest.mark.parametrize("model", [LLAMA, MOE])
def test_only_adapters_are_reduced_updated_and_kept_twice(model) -> None:
    whole, adapted = (
        ReplaySimulator().without_error_bar(tuned(model, lora=lora)) for lora in (None, LORA)
    )
    kinds = [each.memory.per_stage[0].kind for each in (whole, adapted)]
    share = parameters(tuned(model)).total / parameters(tuned(model, lora=None)).total
    for kind in ("gradients", "optimizer"):
        assert kinds[1][kind] == pytest.approx(share * kinds[0][kind], rel=1e-3)
    assert kinds[1]["parameters"] == pytest.approx((1 + share) * kinds[0]["parameters"], rel=1e-3)


def test_fsdp_gathers_what_it_does_not_reduce() -> None:
    job = tuned(LLAMA, zero_stage=3)
    static = ReplaySimulator().without_error_bar(job).memory.per_stage[0].kind
    held = parameters(job)
    # Shards of frozen weights in 16 bits, those of adapters in 32.
    gathered = static["parameters"] - 2 * -(-held.frozen_dense // 8) - 4 * -(-held.dense // 8)
    ends = 2 * 2 * LLAMA.padded_vocab_size(1) * LLAMA.hidden_size
    assert gathered > ends


def test_an_adapter_keeps_its_input_and_a_frozen_layer_does_not() -> None:
    def kept(lora: Lora) -> int:
        runs = build_workload(tuned(LLAMA, lora=lora)).stages[0].chunks[0].runs
        return next(run for run in runs if run.forward.name == "layer_forward").forward.saved_bytes

    everywhere, attention = kept(LORA), kept(Lora(8, ("linear_qkv",)))
    # 64 tokens, 2 bytes: inputs of both MLP layers (256, 704), and what first factors made. What
    # the projection out reads, attention keeps.
    assert everywhere - attention == 2 * 64 * (256 + 704 + 3 * 8)


def test_the_input_of_an_adapter_is_dropped_both_ways() -> None:
    def ran(lora):
        runs = build_workload(tuned(LLAMA, lora)).stages[0].chunks[0].runs
        run = next(run for run in runs if run.forward.name == "layer_forward")
        ops = [*run.forward.ops, *run.backward.ops]
        return sum(op.bytes for op in ops if "lora_drop" in getattr(op, "name", ""))

    # Two bytes in, two out and one of the mask, of each input of a layer's four adapters.
    tokens = tuned(LLAMA).recipe.micro_batch * tuned(LLAMA).sequence_length
    assert ran(Lora(8, dropout=0.1)) == 2 * 5 * tokens * (3 * 256 + 704)
    assert ran(LORA) == 0


def test_adapters_in_fp32_cast_what_they_read_and_their_factors() -> None:
    def casts(lora=LORA, optimizer="adam", **recipe):
        training = {"lora": lora, "optimizer": optimizer, "fp32_adapters": True, "autocast": True}
        job = make_job(LLAMA, training=training, **recipe)
        runs = build_workload(job).stages[0].chunks[0].runs
        run = next(run for run in runs if run.forward.name == "layer_forward")
        ops = [op for op in run.forward.ops if "_lora_" in getattr(op, "name", "")]
        return sum(op.bytes for op in ops if "cast" in op.name)

    tokens, read = tuned(LLAMA).recipe.micro_batch * tuned(LLAMA).sequence_length, 3 * 256 + 704
    factors = 8 * (read + 256 + 2 * 64 + 256 + 2 * 704 + 256)
    # Between 4 bytes and 2, what is read there and back.
    assert casts(zero_stage=0) == 6 * (2 * tokens * read + factors)
    # Casts of whole shards, weights without an fp32 copy, and bitsandbytes' layers have none.
    assert casts(zero_stage=3) == casts(zero_stage=0, optimizer="adam_pure_bf16") == 0
    assert casts(zero_stage=0, lora=Lora(8, frozen_weights="nf4")) == 0


def test_adapters_in_fp32_compute_in_it_without_autocast() -> None:
    def adapters(way, autocast):
        training = {"lora": LORA, "fp32_adapters": True, "autocast": autocast}
        job = make_job(LLAMA, training=training, zero_stage=0)
        made = operations(job, way, ir.Gemm | ir.Streaming)
        return [op for op in made if "_lora_" in op.name]

    def types(autocast):
        ops = [op for way in ("forward", "backward") for op in adapters(way, autocast)]
        return {op.dtype for op in ops if isinstance(op, ir.Gemm)}

    assert (types(True), types(False)) == ({"bf16"}, {"fp32"})
    tokens = tuned(LLAMA).recipe.micro_batch * tuned(LLAMA).sequence_length
    read, made = 3 * 256 + 704, 256 + 2 * 64 + 256 + 2 * 704 + 256
    # Inputs are cast; what is made is scaled (8), added (10) and cast back (6).
    moved = sum(op.bytes for op in adapters("forward", False) if isinstance(op, ir.Streaming))
    assert moved == 12 * tokens * (6 * read + 24 * made)
    facts = {"lora": LORA, "fp32_adapters": True}
    with pytest.raises(InputError, match="multiplies no fp32 adapters"):
        check_job(make_job(LLAMA, training=facts, zero_stage=0))


# Of a value that a layer made, forward and backward; of a weight; of the square of the inputs:
# bytes that PEFT 0.21's operations read and write on a virtual GPU, with magnitudes in 16 bits and
# in 32.
@pytest.mark.parametrize(
    ("fp32", "values", "weights", "squares"), [(False, 58, 12, 2), (True, 130, 36, 10)]
)
def test_dora_norms_and_scales_as_peft_does(fp32, values, weights, squares) -> None:
    recipe = {"fp32_adapters": fp32, "zero_stage": 0}
    plain, dora = (tuned(LLAMA, lora, **recipe) for lora in (LORA, Lora(8, dora=True)))
    layer = [(256, 256 + 2 * 64), (256, 256), (256, 2 * 704), (704, 256)]
    rows = sum(outputs for _, outputs in layer)
    assert parameters(dora).total - parameters(plain).total == 12 * rows
    tokens = plain.recipe.micro_batch * plain.sequence_length

    def moved(job) -> int:
        runs = build_workload(job).stages[0].chunks[0].runs
        run = next(run for run in runs if run.forward.name == "layer_forward")
        ops = [*run.forward.ops, *run.backward.ops]
        return sum(op.bytes for op in ops if isinstance(op, ir.Streaming))

    more = values * tokens * rows + weights * sum(ins * outs for ins, outs in layer)
    more += squares * sum(ins**2 for ins, _ in layer)
    # In place of a sum and of a scaling: seven values read or written, of two bytes.
    assert moved(dora) - moved(plain) == more - 7 * 2 * tokens * rows
    saved = [build_workload(job).stages[0].chunks[0].saved_bytes for job in (dora, plain)]
    assert saved[0] - saved[1] == 12 * 2 * 2 * tokens * rows


# Of a value that a layer made and of a weight, in elements, as autograd runs Megatron-Bridge's
# ``DoRALinear.forward``; a rank holds all magnitudes of row-parallel layers.
@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, False), (2, True)])
def test_dora_of_factors_norms_each_ranks_share_of_a_weight(tp: int, sp: bool) -> None:
    def ran(lora):
        job = make_job(LLAMA, training={"lora": lora, "dora_of_factors": True}, tp=tp, sp=sp)
        check_job(job)
        stage = build_workload(job).stages[0]
        run = next(run for run in stage.chunks[0].runs if run.forward.name == "layer_forward")
        ops = [*run.forward.ops, *run.backward.ops]
        moved = sum(op.bytes for op in ops if isinstance(op, ir.Streaming))
        factors = [op for op in run.forward.ops if getattr(op, "name", "").endswith("lora_factor")]
        saved = stage.chunks[0].saved_bytes
        return moved, sum(op.bytes for op in factors), saved, stage.parameters.total

    columns, rows = [(256, 256 + 2 * 64), (256, 2 * 704)], [(256, 256), (704, 256)]
    weights = sum(ins * outs for ins, outs in columns + rows) // tp
    made = sum(outs for _, outs in columns) // tp + sum(outs for _, outs in rows) // (
        tp if sp else 1
    )
    tokens = tuned(LLAMA).recipe.micro_batch * tuned(LLAMA).sequence_length
    more = [dora - plain for dora, plain in zip(ran(Lora(8, dora=True)), ran(LORA), strict=True)]
    assert more[0] == 2 * (10 * tokens * made + 4 * weights)
    assert more[1] == (tp > 1) * 2 * 8 * sum([ins for ins, _ in columns] + [o for _, o in rows])
    assert more[2] == 12 * 2 * tokens * made
    held = sum(outs for _, outs in columns) // tp + sum(outs for _, outs in rows)
    assert more[3] == 12 * held


# Two more for queries, keys and values (none where they are latent) of 12 layers, and one for gate
# and up of those without experts.
@pytest.mark.parametrize(
    ("model", "copies"),
    [(LLAMA, 36), (MOE, 24), (MLA_MOE, 2), (SPARSE, 2), (SEEING, 36)],
)
def test_adapters_of_projections_apart_drop_a_copy_of_the_input_each(model, copies) -> None:
    def dropped(*, apart: bool) -> int:
        with_dropout, without = (
            kept_bytes(model, lora=Lora(8, dropout=chance), separate_projections=apart)
            for chance in (0.1, 0)
        )
        return with_dropout - without

    more = dropped(apart=True) - dropped(apart=False)
    # Of two bytes, and a mask's.
    assert more == copies * (2 + 1) * 64 * model.hidden_size


def test_a_norm_keeps_what_a_frozen_weight_is_multiplied_by_no_more() -> None:
    def written(**training: object) -> int:
        one, other = (
            kept_bytes(LLAMA, fusion="eager", fused_norm=fused, **training)
            for fused in (False, True)
        )
        return one - other

    assert written() >= (2 * 12 + 1) * 4 * 64 * 256
    assert written(lora=LORA) == written() / 2


def test_packed_sequences_attend_to_themselves() -> None:
    job = tuned(LLAMA, lora=None, packed=(8, 16, 24), micro_batch=2)
    # (64 + 256 + 576) / 48 = 18.67: seven sequences of 18 tokens are nearest to 128.
    assert job.attended_length == 19
    ops = build_workload(job).stages[0].chunks[0].runs[1].forward.ops
    (core,) = (op for op in ops if isinstance(op, ir.Attention))
    assert (core.batch, core.seq_q, core.seq_k) == (7, 18, 18)
    whole = replace(job, training=replace(job.training, packed_lengths=()))
    saved = step_flops(whole).model - step_flops(job).model
    attention = [attention_core_flops(LLAMA, length) for length in (64, 19)]
    assert saved == pytest.approx(3 * 12 * (attention[0] - attention[1]) * job.tokens_per_step)
    seconds = [
        ReplaySimulator()
        .without_error_bar(replace(each, training=replace(each.training, sequence_length=16384)))
        .step_time_s
        for each in (job, whole)
    ]
    assert seconds[0] < 0.9 * seconds[1]


def test_flops_of_lora_leave_out_what_nobody_computes() -> None:
    whole, adapted = step_flops(tuned(LLAMA, lora=None)), step_flops(tuned(LLAMA))
    attention = 12 * attention_core_flops(LLAMA, 64) * tuned(LLAMA).tokens_per_step
    assert adapted.model == pytest.approx((whole.model - 3 * attention) * 2 / 3 + 3 * attention)


@pytest.mark.parametrize(
    ("frozen", "gradients"),
    [
        (("towers",), {"projector", "layers"}),
        (("towers", "projectors"), {"layers"}),
        (("language_model",), {"towers", "projector"}),
        (("language_model", "towers"), {"projector"}),
    ],
)
def test_frozen_parts_have_no_gradients(frozen, gradients) -> None:
    job = tuned(SEEING, lora=None, frozen=frozen)
    first, *rest = build_workload(job).stages[0].chunks[0].runs
    made = {op.name for op in first.backward.ops if isinstance(op, ir.Gemm)}
    assert ("projector_wgrad" in made) == ("projector" in gradients)
    assert ("patches_wgrad" in made) == ("towers" in gradients)
    later = {op.name for run in rest for op in run.backward.ops if isinstance(op, ir.Gemm)}
    assert ("fc1_wgrad" in later) == ("layers" in gradients)
    counts, whole = parameters(job), parameters(tuned(SEEING, lora=None))
    assert 0 < counts.total < whole.total == counts.held.total
    prediction = ReplaySimulator().without_error_bar(job)
    plain = ReplaySimulator().without_error_bar(tuned(SEEING, lora=None))
    assert prediction.step_time_s < plain.step_time_s


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (tuned(LLAMA, Lora(0)), "training.lora.rank"),
        (tuned(LLAMA, Lora(8, ("qkv",))), "training.lora.targets"),
        (tuned(LLAMA, Lora(8, ())), "training.lora.targets"),
        (tuned(LLAMA, Lora(8, dropout=1.0)), "training.lora.dropout"),
        (tuned(LLAMA, Lora(6), tp=4), "recipe.tp"),
        (tuned(LLAMA, Lora(8, dora=True), tp=2), "recipe.tp"),
        (
            make_job(
                LLAMA,
                training={"lora": Lora(8, dropout=0.1, dora=True), "dora_of_factors": True},
                tp=2,
            ),
            "recipe.tp",
        ),
        (tuned(MOE, Lora(8, dora=True)), "training.lora.dora"),
        (tuned(LLAMA, None, ("towers",)), "training.frozen"),
        (tuned(LLAMA, None, ("language_model",)), "training.frozen"),
        (tuned(SEEING, LORA, ("language_model",)), "training.frozen"),
        (tuned(LLAMA, None, (), (65,)), "training.packed_lengths"),
        (tuned(LLAMA, None, (), (0,)), "training.packed_lengths"),
        (tuned(SPARSE, None, (), (8,)), "training.packed_lengths"),
    ],
)
def test_what_cannot_be_tuned_is_refused(job, field: str) -> None:
    with pytest.raises(InputError) as caught:
        check_job(job)
    assert caught.value.field == field


@pytest.mark.parametrize(("name", "target"), [("q_proj", "linear_qkv"), ("up_proj", "linear_fc1")])
def test_layers_by_their_names_in_transformers_hint_at_what_holds_them(name, target):
    with pytest.raises(InputError, match=f"did you mean '{target}'"):
        Lora(8, (name,)).check()
