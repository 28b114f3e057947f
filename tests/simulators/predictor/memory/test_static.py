"""What of a stage's static bytes is not there when, against peaks recorded on virtual GPUs.

A Llama of 0.37 B parameters of Transformers, plain PyTorch, 2,048 or 128 tokens a sequence; shared
out or replicated over 8 GPUs. Workspaces, 32 MiB that the emulated device lacks, are taken off.
"""

from dataclasses import replace

import pytest

from tests.simulators.jobs import GPU, MIXTRAL_8X7B, NODE, TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.memory.footprint import FRAGMENTATION, MIB
from trainscout.simulators.predictor.memory.static import Static, static_of
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.megatron import build_workload

WORKSPACE = 33_600_000
PURE = "adam_pure_bf16"
EIGHT = "adam_8bit_pure_bf16"


def llama(software, gpus, zero_stage, micro_batch, count, sequence, recompute, optimizer) -> Job:
    model = Model(
        name="llama",
        num_layers=4,
        hidden_size=2048,
        num_heads=32,
        num_query_groups=8,
        ffn_hidden_size=8192,
        vocab_size=32000,
        vocab_multiple=1,
        sequence_length=sequence,
        gated_mlp=True,
        normalization="rmsnorm",
        position="rope",
        linear_bias=False,
        tied_embeddings=False,
        dropout=False,
        source="",
    )
    declared = load_catalogue().frameworks[software]
    if software == "huggingface":
        # As recorded with torch.optim.AdamW as it comes.
        declared = replace(declared, fused_optimizer=False)
    return Job(
        model,
        GPU,
        replace(NODE, num_nodes=1, gpus_per_node=gpus),
        Training(micro_batch * count * gpus, 1e9, optimizer=optimizer),
        Recipe(micro_batch=micro_batch, zero_stage=zero_stage, recompute=recompute),
        declared,
    )


@pytest.mark.parametrize(
    ("job", "recorded"),
    [
        (llama("huggingface", 1, 0, 4, 1, 2048, "none", PURE), 9_093_203_968),
        (llama("huggingface", 1, 0, 1, 1, 2048, "none", PURE), 3_961_202_688),
        # Of so few tokens the optimizer holds most: the roots of second moments.
        (llama("huggingface", 1, 0, 1, 1, 128, "none", PURE), 3_754_088_960),
        (llama("huggingface", 1, 0, 4, 2, 2048, "none", PURE), 9_844_021_248),
        (llama("huggingface", 1, 0, 4, 1, 2048, "full", PURE), 5_663_062_016),
        (llama("huggingface", 1, 0, 4, 2, 2048, "full", PURE), 6_413_879_296),
        (llama("huggingface", 8, 0, 4, 1, 2048, "none", PURE), 9_841_924_096),
        (llama("huggingface", 8, 0, 4, 2, 2048, "none", PURE), 10_595_878_912),
        (llama("huggingface", 8, 0, 1, 1, 128, "none", PURE), 4_501_752_320),
        # bitsandbytes 0.50.2's AdamW8bit; the embedding's moments in fp32 as Trainer asks for it.
        (llama("huggingface", 1, 0, 1, 1, 128, "none", EIGHT), 2_653_860_864),
        (llama("huggingface", 1, 0, 4, 1, 2048, "none", EIGHT), 8_744_316_928),
        (llama("huggingface", 1, 0, 1, 1, 128, "none", "adam_8bit"), 4_147_631_104),
        (llama("torch_eager", 1, 0, 1, 1, 128, "none", EIGHT), 2_262_692_864),
        (llama("torch_fsdp2", 8, 3, 4, 1, 2048, "none", "adam"), 7_788_704_768),
        (llama("torch_fsdp2", 8, 3, 1, 1, 128, "none", "adam"), 1_647_443_968),
        (llama("huggingface", 8, 3, 4, 1, 2048, "none", "adam"), 7_788_178_432),
    ],
)
def test_peaks_are_those_recorded(job, recorded) -> None:
    prediction = ReplaySimulator().without_error_bar(job)
    peak = prediction.memory.peak_allocated_bytes
    assert peak - WORKSPACE == pytest.approx(recorded, rel=0.05)
    stage = prediction.memory.per_stage[0]
    inside = set(stage.kind) - {"communication_buffers", "context"}
    assert sum(stage.kind[kind] for kind in inside) == peak
    assert min(stage.kind.values()) >= 0


def test_a_norm_in_operations_holds_five_fp32_tensors_in_its_backward_pass() -> None:
    """Where an MLP is narrow, that is the peak of a layer that runs again."""
    job = llama("huggingface", 1, 0, 8, 1, 2048, "full", PURE)
    job = replace(job, model=replace(job.model, vocab_size=2048, ffn_hidden_size=2048))
    peak = ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes
    assert peak - WORKSPACE == pytest.approx(2_284_657_664, rel=0.03)


@pytest.mark.parametrize(
    ("software", "fp32", "layers", "recorded_gib"),
    [
        ("torch_fsdp2", True, 32, 7.71),
        # While a layer runs.
        ("torch_fsdp2", False, 8, 5.219),
        ("huggingface", True, 8, 6.538),
        ("huggingface", False, 8, 6.476),
    ],
)
def test_the_root_unit_reduces_gradients_of_both_ends_last(
    software, fp32, layers, recorded_gib
) -> None:
    """512 tokens beside a vocabulary of 128,256 on 64 virtual GPUs, FSDP2 and FSDP1."""
    job = llama(software, 8, 3, 1, 8, 512, "full", "adam")
    size = {"hidden_size": 4096, "ffn_hidden_size": 14336, "vocab_size": 128256}
    reduced = "accumulate_grads_fp32" if software == "huggingface" else "reduce_grads_fp32"
    job = replace(
        job,
        model=replace(job.model, num_layers=layers, **size),
        cluster=replace(job.cluster, num_nodes=8),
        framework=replace(job.framework, **{reduced: fp32}),
    )
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(recorded_gib * 2**30, rel=0.03)


WIDE = {"hidden_size": 4096, "ffn_hidden_size": 11008}


@pytest.mark.parametrize(
    ("layers", "sequence", "recompute", "recorded_mib"),
    [(4, 4096, "none", 6590), (8, 1024, "none", 6076), (4, 4096, "full", 4705)],
)
def test_a_layer_is_reduced_beside_the_next_one(layers, sequence, recompute, recorded_mib) -> None:
    """Llama of Transformers under FSDP2, which copies gradients to fp32, on eight virtual GPUs."""
    job = llama("huggingface", 8, 3, 1, 1, sequence, recompute, "adam")
    facts = {"reduce_grads_fp32": True, "copies_gathered": True, "autocast": False}
    job = replace(
        job,
        model=replace(job.model, num_layers=layers, **WIDE),
        framework=replace(job.framework, fused_optimizer=True, **facts),
    )
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(recorded_mib * MIB, rel=0.03)


def test_a_root_unit_is_gathered_again_before_a_loss_that_its_model_returns() -> None:
    """As above, a larger vocabulary, ``fully_shard(model, reshard_after_forward=True)``."""
    job = llama("huggingface", 8, 3, 1, 1, 4096, "none", "adam")
    facts = {"reduce_grads_fp32": True, "copies_gathered": True, "reshards_root": True}
    model = replace(job.model, vocab_size=128256, **WIDE)
    job = replace(job, model=model, framework=replace(job.framework, autocast=False, **facts))
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(13_736 * MIB, rel=0.01)


def test_autocast_keeps_copies_of_recomputed_weights_for_the_forward_pass_alone() -> None:
    """DDP on eight virtual GPUs holds most as the loss is taken, and less behind it."""
    job = llama("huggingface", 8, 0, 4, 1, 4096, "full", "adam")
    declared = replace(job.framework, fused_optimizer=True)
    job = replace(job, model=replace(job.model, **WIDE), framework=declared)
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(23_343 * MIB, rel=0.015)
    workload = build_workload(job)
    (chunk,) = workload.stages[0].chunks
    forward, backward = (max(each.bytes for each in held) for held in chunk.held)
    assert forward > chunk.saved_bytes + backward


@pytest.mark.parametrize(
    ("software", "within", "recorded_gib"),
    [
        ("huggingface", True, 8.826),
        ("huggingface", False, 8.420),
        ("torch_fsdp2", True, 8.822),
        ("torch_fsdp2", False, 8.416),
    ],
)
def test_a_model_that_returns_its_loss_has_a_layer_gathered_beside_it(
    software, within, recorded_gib
) -> None:
    """Four layers on 64 virtual GPUs, 16-bit gradients, with labels or with a loss behind it."""
    job = llama(software, 8, 3, 1, 8, 4096, "full", "adam")
    size = {"hidden_size": 4096, "ffn_hidden_size": 14336, "vocab_size": 128256}
    facts = {"loss_in_model": within, "reduce_grads_fp32": False, "autocast": False}
    job = replace(
        job,
        model=replace(job.model, **size),
        cluster=replace(job.cluster, num_nodes=8),
        framework=replace(job.framework, **facts),
    )
    peak = ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes
    assert peak - WORKSPACE == pytest.approx(recorded_gib * 2**30, rel=0.01)
    later = replace(job, framework=replace(job.framework, prefetches_backward=False))
    less = peak - ReplaySimulator().without_error_bar(later).memory.peak_allocated_bytes
    layer = 2 * build_workload(job).stages[0].runs[1].parameters.total
    assert less == within * layer


@pytest.mark.parametrize(("frees", "recorded_gib"), [(False, 14.537), (True, 12.580)])
def test_a_root_unit_freed_after_the_forward_pass_is_not_beside_the_loss(
    frees, recorded_gib
) -> None:
    """Four layers on 64 virtual GPUs, two sequences of 4,096, 16-bit gradients."""
    job = llama("torch_fsdp2", 8, 3, 2, 8, 4096, "full", "adam")
    size = {"hidden_size": 4096, "ffn_hidden_size": 14336, "vocab_size": 128256}
    job = replace(
        job,
        model=replace(job.model, **size),
        cluster=replace(job.cluster, num_nodes=8),
        framework=replace(job.framework, reshards_root=frees, reduce_grads_fp32=False),
    )
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(recorded_gib * 2**30, rel=0.01)


@pytest.mark.parametrize(
    ("layers", "sequence", "recompute", "recorded_gib", "reserved_gib"),
    [
        # As the head's gradient is copied to be reduced, and at the loss.
        (8, 512, "full", 3.898, None),
        (8, 512, "none", 4.632, None),
        (8, 4096, "full", 7.715, None),
        # In expandable segments: the head's pass and all shards of gradients, never there at once.
        (24, 4096, "full", 29.958, 36.041),
    ],
)
def test_units_at_both_ends_come_and_go_with_their_passes(
    layers, sequence, recompute, recorded_gib, reserved_gib
) -> None:
    """As TorchTitan wraps a vocabulary of 128,256 under FSDP2: on 64 virtual GPUs, on 16 a wider
    model."""
    job = llama("torch_fsdp2", 8, 3, 1, 2 if reserved_gib else 8, sequence, recompute, "adam")
    wide = 2 if reserved_gib else 1
    size = {"hidden_size": 4096 * wide, "ffn_hidden_size": 14336 * wide, "num_heads": 32 * wide}
    software = {"one_root_unit": False, "expandable_segments": True, "fused_optimizer": True}
    job = replace(
        job,
        model=replace(job.model, num_layers=layers, vocab_size=128256, **size),
        cluster=replace(job.cluster, num_nodes=2 if reserved_gib else 8),
        framework=replace(job.framework, **software),
    )
    memory = ReplaySimulator().without_error_bar(job).memory
    peak = memory.peak_allocated_bytes - WORKSPACE
    assert peak == pytest.approx(recorded_gib * 2**30, rel=0.04)
    if reserved_gib:
        assert memory.peak_reserved_bytes == pytest.approx(reserved_gib * 2**30, rel=0.04)


@pytest.mark.parametrize(
    ("zero_stage", "micro_batch", "count", "overlaps", "recorded"),
    [
        (1, 1, 1, False, 3_441_584_640),
        (2, 1, 1, False, 3_366_091_264),
        # Two buckets of 1 GB, from the first gradient on.
        (2, 1, 1, True, 4_366_432_768),
        (2, 1, 2, False, 3_498_211_840),
        # Activations' peak, before it.
        (2, 4, 1, False, 8_152_062_464),
        # Where micro-batches wait to be reduced, it is beside later ones' activations, too.
        (1, 4, 2, False, 9_901_831_168),
        # One bucket, always.
        (3, 1, 1, True, 4_211_510_784),
        (3, 4, 1, True, 9_342_463_488),
    ],
)
def test_deepspeed_holds_whole_buckets(zero_stage, micro_batch, count, overlaps, recorded) -> None:
    """DeepSpeed 0.19.8 with PyTorch's Adam."""
    job = llama("deepspeed", 8, zero_stage, micro_batch, count, 2048, "none", "adam")
    changes = {"fused_optimizer": False, "waits_for_reductions": not overlaps}
    recipe = replace(job.recipe, overlap_grad_reduce=overlaps)
    job = replace(job, recipe=recipe, framework=replace(job.framework, **changes))
    peak = ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes
    assert peak - WORKSPACE == pytest.approx(recorded, rel=0.03)
    # Until version 0.18.3 it came before the backward pass.
    earlier = replace(job, framework=replace(job.framework, gradient_bucket="backward"))
    more = ReplaySimulator().without_error_bar(earlier).memory.peak_allocated_bytes - peak
    assert (more > 0) == (zero_stage < 3 and (zero_stage, count) != (1, 2))


@pytest.mark.parametrize(("micro_batch", "adds"), [(2, True), (4, False)])
def test_a_bucket_that_logits_left_no_place_for_has_its_own(micro_batch, adds) -> None:
    """DeepSpeed 0.19.8 reserves 7,077,888,000 bytes for two sequences: their logits are small."""
    job = llama("deepspeed", 8, 1, micro_batch, 1, 2048, "none", "adam")
    model = replace(
        job.model, num_layers=6, ffn_hidden_size=5632, num_heads=16, num_query_groups=4
    )
    job = replace(job, model=model)
    memory = ReplaySimulator().without_error_bar(job).memory
    expands = replace(job, framework=replace(job.framework, expandable_segments=True))
    less = ReplaySimulator().without_error_bar(expands).memory.peak_reserved_bytes
    beside = memory.peak_reserved_bytes - less - int(memory.peak_allocated_bytes * FRAGMENTATION)
    assert beside == pytest.approx(1e9 * adds, abs=2**22)
    if adds:
        assert memory.peak_reserved_bytes == pytest.approx(7_077_888_000, rel=0.03)


def test_experts_that_no_other_rank_has_are_in_no_bucket() -> None:
    facts = {"zero_stage": 0, "training": {"torch_wrappers": True}}
    alone, shared = (make_job(MIXTRAL_8X7B, nodes=1, ep=ep, **facts) for ep in (8, 4))
    held = [build_workload(job).stages[0].parameters for job in (alone, shared)]
    buckets = [static_of(job, build_workload(job).stages[0]).buckets for job in (alone, shared)]
    assert buckets == [held[0].dense * 4, held[1].total * 4]


def test_deepspeed_gathers_what_comes_next_and_no_more() -> None:
    """Llama 3 8B on 64 virtual GPUs, trained by its launch file: at the loss neither the embedding
    nor a layer's gradient is there."""
    job = llama("deepspeed", 8, 3, 1, 2, 8192, "full", "adam")
    model = load_catalogue().models["llama3_8b"]
    job = replace(job, model=model, cluster=replace(job.cluster, num_nodes=8))
    job = replace(job, training=replace(job.training, global_batch_size=128))
    peak = ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes - WORKSPACE
    assert peak == pytest.approx(18.70 * 2**30, rel=0.01)


@pytest.mark.parametrize(
    ("layers", "recompute", "recorded_gib", "within"),
    [(4, "none", 13.763, 0.02), (8, "none", 23.466, 0.02), (4, "full", 9.920, 0.13)],
)
def test_views_of_stacked_experts_hold_what_zero_3_gathered(
    layers, recompute, recorded_gib, within
) -> None:
    """256 experts of Transformers 5.24's Qwen3 on 16 virtual GPUs under DeepSpeed 0.19.8."""
    model = replace(
        load_catalogue().models["qwen3_30b_a3b"],
        num_layers=layers,
        num_heads=16,
        num_query_groups=2,
        vocab_size=32000,
        sequence_length=1024,
    )
    model = replace(model, moe=replace(model.moe, num_experts=256, ffn_hidden_size=512))
    job = llama("deepspeed", 8, 3, 1, 2, 1024, recompute, "adam")
    job = replace(job, model=model, cluster=replace(job.cluster, num_nodes=2))
    peak = ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes - WORKSPACE
    assert peak == pytest.approx(recorded_gib * 2**30, rel=within)


@pytest.mark.parametrize(
    ("zero_stage", "recompute", "recorded"),
    [(3, "full", 21_220_909_568), (3, "none", 29_744_816_640), (2, "full", 30_343_852_032)],
)
def test_deepspeed_updates_with_copies_of_gradients(zero_stage, recompute, recorded) -> None:
    """6.7 B parameters: recomputed, the optimizer holds most."""
    job = llama("deepspeed", 8, zero_stage, 1, 1, 2048, recompute, "adam")
    size = {"num_layers": 32, "hidden_size": 4096, "num_query_groups": 32}
    model = replace(job.model, ffn_hidden_size=11008, **size)
    changes = {"fused_optimizer": False, "waits_for_reductions": zero_stage < 3}
    job = replace(job, model=model, framework=replace(job.framework, **changes))
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes - WORKSPACE == pytest.approx(recorded, rel=0.01)


@pytest.mark.parametrize(
    ("recompute", "modules", "recorded_gib"),
    [("selective", "operations", 113.74), ("full", None, 63.82)],
)
def test_torchtitan_keeps_what_exchanges_brought(recompute, modules, recorded_gib) -> None:
    """TorchTitan 0.3.0's Qwen3-30B-A3B, not compiled, on eight virtual H200: 16 of 21 layer inputs
    that a layer keeps of its operations are the tokens that came, to their experts and back."""
    job = llama("torchtitan", 8, 3, 4, 1, 4096, recompute, "adam")
    catalogue = load_catalogue()
    model = replace(catalogue.models["qwen3_30b_a3b"], sequence_length=4096)
    recipe = replace(job.recipe, ep=8, recompute_modules=modules)
    # Eagerly, what experts made is weighed in fp32.
    written = replace(job.framework, written_dispatch="fp32")
    job = replace(job, model=model, recipe=recipe, gpu=catalogue.gpus["h200"], framework=written)
    memory = ReplaySimulator().without_error_bar(job).memory
    assert memory.peak_allocated_bytes == pytest.approx(recorded_gib * 2**30, rel=0.05)
    earlier = replace(job, framework=replace(job.framework, saves_exchanges=False))
    less = memory.peak_allocated_bytes - (
        ReplaySimulator().without_error_bar(earlier).memory.peak_allocated_bytes
    )
    # Every copy of a token there and back, its weight there.
    exchanged = 48 * 8 * 4 * 4096 * (2 * 2048 + 1) * 2
    assert less == (exchanged if modules else 0)


@pytest.mark.parametrize("sequence", [128, 2048])
def test_nothing_is_less_than_none(sequence) -> None:
    """Where all gradients are there, at a step's end, layers' activations are not."""
    job = llama("huggingface", 1, 0, 4, 1, sequence, "full", "sgd")
    kinds = ReplaySimulator().without_error_bar(job).memory.per_stage[0].kind
    assert min(kinds.values()) >= 0


@pytest.mark.parametrize(
    ("zero_stage", "fp32", "whole"), [(3, True, 4), (3, False, 2), (2, True, 4), (2, False, 2)]
)
def test_gradients_that_wait_for_the_last_micro_batch_are_whole(zero_stage, fp32, whole) -> None:
    """On eight virtual GPUs 332.4 M parameters under FSDP2 take 1,163.4 MB more so where they are
    reduced in fp32, 498.6 MB where not: all of them in that type, and no shards in fp32."""
    given = {"sums_whole_grads": True, "reduce_grads_fp32": fp32, "accumulate_grads_fp32": False}
    one, two = (
        make_job(TINY, batch=8 * count, zero_stage=zero_stage, training=given) for count in (1, 2)
    )
    stage = build_workload(two).stages[0]
    total = stage.parameters.total
    assert static_of(two, stage).gradients == whole * total
    assert static_of(one, stage).gradients < whole * total / 2


def test_gradients_come_as_layers_go() -> None:
    static = Static(
        10, 8, 4, layers=2, ends=1, reduced=3, copies=2, weight=1, buckets=5, made=4, in_turn=True
    )
    assert static.kinds == {"parameters": 13, "gradients": 16, "optimizer": 4}
    behind = [
        static.absent(made, in_layer=True, own=1, reduces=True).gradients for made in (0, 1, 4)
    ]
    assert behind == [8, 6, 0]
    # Copies are there behind the first layer, a layer's own gradients as they come.
    first = [static.absent(0, in_layer=True, own=own).gradients for own in (0, 1, 9)]
    assert first == [11, 10, 10]
    assert static.absent(4, in_layer=False) == (2, 3)
    assert static.most_absent == (2, 11)
    # While the optimizer runs gradients are there, and what was gathered for passes is not.
    assert static.absent_at_update == (3, 3)
    ends = replace(static, head=7, joined=9)
    assert ends.kinds["gradients"] == 25
    last = {"in_layer": True, "own": 1, "reduces": True}
    assert [ends.absent(made, **last).gradients for made in (0, 4)] == [10, 2]
    assert [ends.absent(made, in_layer=False).gradients for made in (0, 4)] == [20, 3]
    assert ends.absent_at_update.gradients == 12
    apart = replace(ends, apart=3)
    assert [apart.absent(made, **last) for made in (0, 3, 4)] == [(1, 17), (1, 4), (1, 9)]
    assert apart.absent(3, in_layer=True, own=1) == (1, 4)
    assert apart.absent(4, in_layer=False) == ends.absent(4, in_layer=False)
    there = {"parameters": 10, "gradients": 13, "optimizer": 4}
    assert static.kinds_without(static.absent_at_update) == there


def test_layers_gathered_again_stay_behind_a_backward_pass() -> None:
    """A step of 16 such layers of 512 tokens on eight virtual GPUs, in checkpoints that reenter:
    1,737.6 MB more where FSDP's prefetch is PyTorch 2.9's."""
    static = Static(10, 8, 4, layers=2, ends=1, in_turn=True, behind=6, trained=4)
    assert static.kinds["parameters"] == 19
    behind = [6 - static.absent(made, in_layer=True).parameters for made in (0, 2, 4)]
    assert behind == [0, 3, 6]
    assert static.absent_at_update == (9, 0)
    new = llama("huggingface", 8, 3, 1, 1, 512, "full", "adam")
    new = replace(new, model=replace(new.model, num_layers=16))
    old = replace(new, framework=replace(new.framework, leaves_regathered=True))
    peaks = [
        ReplaySimulator().without_error_bar(job).memory.peak_allocated_bytes for job in (new, old)
    ]
    assert peaks[1] - peaks[0] == pytest.approx(1_737_605_120, rel=0.11)


def test_what_is_there_stays_where_a_framework_keeps_it() -> None:
    kept = Static(10, 8, 4)
    assert kept.most_absent == kept.absent_at_update == (0, 0)
