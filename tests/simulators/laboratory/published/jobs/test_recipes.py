from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import EXPERTS, RUN, declarations, replayable
from trainscout.simulators.laboratory.published.jobs.jobs import job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable, Replayable
from trainscout.simulators.laboratory.published.reading.words import statement_of
from trainscout.simulators.predictor.question.recipe import Recipe


def why_not(**changes):
    outcome = job_of(replace(RUN, **changes), declarations())
    assert isinstance(outcome, NotReplayable)
    return outcome.reason


def test_a_complete_row_is_taken_at_its_word():
    outcome = replayable()
    beside = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    assert outcome.job.recipe == Recipe(tp=2, pp=2, sp=True, zero_stage=1, **beside)
    assert outcome.job.dp == 16


@pytest.mark.parametrize("missing", ["tp", "pp", "dp", "num_gpus"])
def test_one_missing_degree_follows_from_the_others(missing):
    job = replayable(**{missing: None}).job
    assert (job.world_size, job.recipe.tp, job.recipe.pp, job.dp) == (64, 2, 2, 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": None, "pp": None}, "not published"),
        ({"num_gpus": 128}, "contradicts"),
        ({"global_batch": 3}, "3"),
        ({"dist_optimizer": "magic"}, "dist_optimizer"),
        ({"dist_optimizer": "ZeRO-3 offload"}, "optimizer is on the CPU"),
        ({"dist_optimizer": "0 + CPU offload"}, "optimizer is on the CPU"),
        ({"dist_optimizer": "ZeRO-Infinity"}, "optimizer on disks"),
        ({"recompute": "every 2 layers"}, "recompute=every 2 layers is not a known label"),
        ({"recompute": "50%"}, "recompute=50% is not a known label"),
        ({"dtype": "nvfp4"}, "nvfp4"),
        ({"dtype": "int4"}, "int4"),
        ({"dtype": "fp8", "notes": "quantization rowwise; vanilla TP"}, "rows"),
        ({"dtype": "fp8", "gpu": "A100-80GB-SXM"}, "fp8"),
    ],
)
def test_what_no_recipe_can_say_is_refused_and_not_guessed(changes, reason):
    assert reason in why_not(**changes)


def test_all_of_the_optimizer_is_on_the_host_under_zero_offload():
    deepspeed = {"framework": "Megatron-DeepSpeed (2023)", "dist_optimizer": "ZeRO1 + CPU offload"}
    assert replayable(**deepspeed).job.recipe.optimizer_offload == 100
    elsewhere = deepspeed | {"framework": "PyTorch FSDP"}
    assert "optimizer is on the CPU" in why_not(**elsewhere)


def test_as_much_of_the_optimizer_is_on_the_host_as_is_said_of_megatron_s():
    told = "share of the optimizer on the CPU not published: all"
    sharded = {"dist_optimizer": "1"}
    silent = replayable(**sharded, notes="optimizer CPU offload")
    assert silent.job.recipe.optimizer_offload == 100
    assert told in silent.assumptions
    stated = replayable(**sharded, notes="optimizer CPU offload; offload fraction 0.75")
    assert stated.job.recipe.optimizer_offload == 75
    assert told not in stated.assumptions


@pytest.mark.parametrize(
    ("label", "dtype", "pp", "sharded"),
    [
        ("Megatron-DeepSpeed (August 2024)", "bf16", 2, True),
        ("Megatron-DeepSpeed (August 2024)", "fp16", 2, False),
        ("Megatron-DeepSpeed (2021)", "bf16", 2, False),
        ("DeepSpeed, 2024", "bf16", 1, True),
        ("Megatron-DeepSpeed (2026)", "bf16", 1, False),
        ("Megatron-DeepSpeed (2026)", "bf16", 2, True),
        ("Megatron-LM (2024)", "bf16", 2, False),
    ],
)
def test_bf16_without_zero_is_sharded_in_deepspeed(label, dtype, pp, sharded):
    cells = {"framework": label, "dtype": dtype, "dist_optimizer": "zero0", "grad_overlap": None}
    outcome = replayable(**cells, tp=1, sp=0, pp=pp, dp=64 // pp)
    assert outcome.job.recipe.zero_stage == sharded
    assert any("BF16 optimizer" in text for text in outcome.assumptions) == sharded


def test_megatron_fsdp_shards_all_in_bridge_s_recipes():
    cells = {"dist_optimizer": "", "notes": "Megatron-FSDP", "pp": 1, "tp": 1, "sp": 0, "dp": 64}
    assert replayable(framework="Megatron-Bridge (2026)", **cells).job.recipe.zero_stage == 3
    # Megatron-LM's own flag shards nothing until told (--data-parallel-sharding-strategy).
    assert replayable(framework="Megatron-LM (2026)", **cells).job.recipe.zero_stage == 1


def test_fsdp_overlaps_under_a_pipeline_too():
    recipe = replayable(dist_optimizer="fsdp", grad_overlap=None).job.recipe
    assert (recipe.pp, recipe.zero_stage) == (2, 1)
    assert recipe.overlap_grad_reduce
    assert not replayable(dist_optimizer="1", grad_overlap=None).job.recipe.overlap_grad_reduce


@pytest.mark.parametrize(("label", "last"), [("DeepSpeed", True), ("PyTorch FSDP", False)])
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_gathers_beside_the_passes_in_stage_3_alone(label, last, stage):
    degrees = {"pp": 1, "dp": 32, "grad_overlap": None}
    row = replayable(framework=label, dist_optimizer=f"zero{stage}", **degrees)
    assert row.job.recipe.zero_stage == stage
    assert row.job.recipe.overlap_grad_reduce
    assert row.job.recipe.overlap_param_gather is (stage == 3 or not last)


@pytest.mark.parametrize(
    ("label", "parallel"),
    [
        ("Megatron-LM (2021)", False),
        ("Megatron-LM (2023)", True),
        ("Megatron-DeepSpeed", False),
        ("TorchTitan", True),
    ],
)
def test_whose_tensor_parallel_ranks_share_sequences_where_no_row_says(label, parallel):
    assert replayable(framework=label, sp=None).job.recipe.sp is parallel


@pytest.mark.parametrize(
    ("label", "sharding", "overlaps"),
    [
        ("PyTorch DDP", "0", True),
        ("TorchTitan", "0", True),
        ("PyTorch Lightning", "0", True),
        ("Megatron-LM (2023)", "0", False),
        ("Megatron-LM (April 2024)", "1", False),
        ("Megatron-LM (June 2024)", "1", True),
        ("DeepSpeed", "1", False),
    ],
)
def test_whose_gradients_are_reduced_beside_compute_and_since_when(label, sharding, overlaps):
    whole = {"tp": 1, "pp": 1, "sp": 0, "dp": 64, "grad_overlap": None}
    recipe = replayable(framework=label, dist_optimizer=sharding, **whole).job.recipe
    assert recipe.overlap_grad_reduce is overlaps


@pytest.mark.parametrize(
    "label",
    ["FP8 blockwise", "fp8-sc", "fp8 (1x128 tiles, 128x128 blocks)", "FP8 (DeepSeek recipe)"],
)
def test_scales_of_blocks_of_128(label):
    assert replayable(dtype=label).job.precision == "fp8_block"
    assert statement_of(replace(RUN, dtype=label)).unread == ()


@pytest.mark.parametrize(
    ("label", "dp", "precision"),
    [
        ("TorchTitan (February 2026)", 1, "fp32"),
        ("TorchTitan (February 2026)", 2, "bf16"),
        ("TorchTitan (May 2026)", 1, "bf16"),
        ("PyTorch FSDP2 (February 2026)", 1, "bf16"),
    ],
)
def test_torchtitan_mixed_precisions_of_shards_alone(label, dp, precision):
    split = {"tp": 8, "pp": 2, "dp": dp, "num_gpus": 16 * dp}
    assert replayable(framework=label, dtype="bf16", **split).job.precision == precision


@pytest.mark.parametrize(
    ("notes", "label", "precision"),
    [
        ("QLoRA rank 8 on all-linear; no autocast", "Transformers 4.49", "fp32"),
        ("QLoRA rank 8 on all-linear; no autocast", "Transformers 5.1", "bf16"),
        ("QLoRA rank 8 on all-linear", "Transformers 4.49", "bf16"),
        ("LoRA rank 8 on all-linear; no autocast", "Transformers 4.49", "bf16"),
    ],
)
def test_packed_weights_are_multiplied_in_fp32_where_no_autocast_was(notes, label, precision):
    outcome = replayable(framework=f"Hugging Face {label}", dtype="bf16", notes=notes)
    assert outcome.job.precision == precision


def test_experts_with_tensor_parallelism_need_sequence_parallelism():
    outcome = job_of(replace(EXPERTS, sp=0), declarations())
    assert isinstance(outcome, Replayable)
    assert outcome.job.recipe.sp


def test_checkpointing_every_other_layer():
    cells = {"recompute": "selective", "notes": "checkpoint every other layer"}
    recipe = replayable(**cells, framework="TorchTitan").job.recipe
    assert (recipe.recompute, recipe.recompute_layers) == ("full", 8)


@pytest.mark.parametrize(
    ("words", "mode", "layers", "modules"),
    [
        ("AC off", "none", None, None),
        ("gradient checkpointing", "full", None, None),
        ("activation checkpointing: full", "full", None, None),
        ("activation checkpointing (selective)", "selective", None, None),
        ("op-level SAC", "selective", None, "operations"),
        ("full (12 of 32 layers)", "full", 6, None),
        ("full/block/3", "full", 3, None),
    ],
)
def test_recomputation_in_words(words, mode, layers, modules):
    recipe = replayable(recompute=words).job.recipe
    found = (recipe.recompute, recipe.recompute_layers, recipe.recompute_modules)
    assert found == (mode, layers, modules)
    assert statement_of(replace(RUN, recompute=words)).unread == ()


def test_126_layers_on_64_chunks_leave_a_place_for_each_end():
    job = replayable(model="Llama3.1-405B", num_layers=126, pp=8, vpp=8, dp=4).job
    assert sum(job.layers_per_stage) == 126
    assert job.layers_per_chunk[0][0] == job.layers_per_chunk[-1][-1] == 1
    assert set(job.layers_per_chunk[1]) == {2}


def test_layers_that_come_out_uneven_are_dealt_out():
    outcome = replayable(num_layers=33)
    assert sorted(outcome.job.layers_per_stage) == [16, 17]
    assert any("dealt out" in text for text in outcome.assumptions)


def test_multi_token_prediction_takes_a_place_in_the_split():
    # Ett|(tt|)*6mL: the embedding takes none.
    shape = {"num_layers": 14, "pp": 4, "vpp": 2, "dp": 8, "notes": "1 MTP layer"}
    outcome = replayable(framework="Megatron-LM (July 2026)", **shape)
    recipe = outcome.job.recipe
    assert (recipe.embedding_as_layer, recipe.loss_as_layer) == (False, True)
    assert recipe.pipeline_layout == "balanced"


def test_interleaving_without_a_number_of_chunks():
    outcome = replayable(vpp=None, notes="interleaved schedule", global_batch=256)
    assert outcome.job.recipe.vpp == 8
    assert any("virtual stages" in text for text in outcome.assumptions)


def test_fsdp_that_keeps_parameters_after_the_forward_pass_shares_out_gradients():
    changes = {"tp": 1, "pp": 1, "sp": 0, "dp": 64, "dist_optimizer": "fsdp2"}
    kept = replayable(**changes, notes="parameters not resharded after forward").job.recipe
    assert (kept.zero_stage, replayable(**changes).job.recipe.zero_stage) == (2, 3)
    # As NeMo AutoModel does where ranks have experts of their own.
    experts = {"num_experts": 8, "topk": 2, "ep": 8, "dist_optimizer": "fsdp"}
    labels = ("NeMo AutoModel", "TorchTitan")
    recipes = [replayable(**changes | experts, framework=name).job.recipe for name in labels]
    assert [recipe.zero_stage for recipe in recipes] == [2, 3]


def test_fsdp_takes_the_whole_share_as_one_micro_batch():
    changes = {"tp": 1, "pp": 1, "sp": 0, "dp": 64, "dist_optimizer": "fsdp", "micro_batch": None}
    assert replayable(**changes, framework="TorchTitan").job.recipe.micro_batch == 2
    assert replayable(**changes, framework="NeMo 24.09").job.recipe.micro_batch == 1
    old = "PyTorch FSDP with Megatron-LM's layers, 2021"
    assert replayable(**changes, framework=old).job.recipe.micro_batch == 2


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"dtype": "mxfp8", "gpu": "B200-180GB"}, "mxfp8"),
        ({"dtype": "nvfp4", "gpu": "B200-180GB"}, "nvfp4"),
        ({"dtype": "fp8", "notes": "precision label FP8-CS"}, "fp8_current"),
        ({"dtype": "fp8", "notes": "preset H100_FP8_CS_V1 at v0.4.0"}, "fp8_current"),
        ({"dtype": "fp8", "notes": "tensorwise; compile"}, "fp8_current"),
        ({"dtype": "fp8", "framework": "TorchTitan (PyTorch FSDP2)"}, "fp8_current"),
    ],
)
def test_scaling_recipes_of_8_bits(changes, precision):
    assert replayable(**changes).job.precision == precision


@pytest.mark.parametrize(
    ("notes", "modules"),
    [
        ("recompute modules layernorm+moe_act", "layernorm+moe_act"),
        ("recompute norm+act", "layernorm+moe_act"),
        ("recompute modules mla_up_proj", "mla_up_proj"),
        ("remat policy save_qkv_proj", "layernorm+core_attn+attn_out+mlp"),
        ("YAML has selective recompute", None),
        ("selective (per-op) activation checkpointing", "operations"),
    ],
)
def test_what_selective_recomputation_covers(notes, modules):
    recipe = replayable(recompute="selective", notes=notes).job.recipe
    assert (recipe.recompute, recipe.recompute_modules) == ("selective", modules)


def test_without_flash_attention_selective_recomputation_is_of_the_core_attention():
    old = replayable(framework="Hugging Face Transformers 4.20", recompute="selective").job
    assert (old.framework.attention, old.recipe.recompute_modules) == ("unfused", None)


def test_torchtitan_pipelines_cut_a_batch_by_their_stages():
    run = {"micro_batch": None, "pp": 4, "tp": 1, "sp": 0, "dp": 16}
    for month, sequences in (("March 2025", 2), ("May 2025", 1)):
        titan = replayable(**run, framework=f"TorchTitan ({month})")
        assert titan.job.recipe.micro_batch == sequences


@pytest.mark.parametrize(
    ("hidden", "experts", "mode"),
    [(4096, None, "selective"), (5120, None, "full"), (5120, 8, "selective")],
)
def test_torchtitan_recomputes_as_its_configurations_of_that_size(hidden, experts, mode):
    cells = {"tp": 1, "pp": 1, "dp": 64, "hidden": hidden, "recompute": ""}
    if experts:
        cells |= {"num_experts": experts, "topk": 2, "moe_ffn_hidden": 1024, "ep": 8}
    titan = replayable(**cells, framework="TorchTitan (January 2026)")
    assert titan.job.recipe.recompute == mode
    assert f"recomputation not published: {mode}" in titan.assumptions


def test_unsaid_virtual_stages_are_a_layer_each():
    notes = "micro batch, VPP and recompute not published"
    unsaid = replayable(pp=4, dp=8, vpp=None, notes=notes)
    assert unsaid.job.recipe.vpp == 8
    assert any("virtual stages" in words for words in unsaid.assumptions)
    assert replayable(pp=4, dp=8, vpp=None).job.recipe.vpp == 1


def test_offloading_of_so_many_layers_is_modelled_and_of_who_knows_how_many_is_told():
    told = "activations offloaded to the CPU replayed as kept by the GPU"
    of_20 = "FP8; CPU activation offload of 20 layers"
    counted = replayable(notes=of_20, pp=1, dp=None, recompute="none")
    assert counted.job.recipe.offloaded_layers == 20
    assert told not in counted.assumptions
    assert told in replayable(notes="FP8; CPU activation offload").assumptions
    # Transformers recompute whole layers, whose inputs are what is left to offload.
    trainer = {"framework": "Hugging Face Transformers (2026)", "recompute": "full"}
    whole = {"tp": 1, "pp": 1, "sp": 0, "dp": 64, "dist_optimizer": "fsdp"}
    every = replayable(**trainer, **whole, notes="activation offload")
    assert every.job.recipe.offloaded_layers == every.job.model.num_layers
    assert told in replayable(notes=of_20).assumptions


def test_what_may_have_been_recomputed_where_a_row_does_not_say():
    earlier = replayable(framework="Megatron-LM (2023)", recompute="")
    assert [each.recompute for each in earlier.heavier] == ["full"]
    assert earlier.picking == ()
    later = replayable(framework="Megatron-Bridge (NeMo 26.06)", recompute="")
    assert later.heavier == ()
    assert [each.recompute_modules for each in later.picking] == ["layernorm", "layernorm+mlp"]
    stated = replayable(framework="Megatron-Bridge (NeMo 26.06)", recompute="none")
    assert stated.heavier == stated.picking == ()
    # What a collector inferred says what is predicted, and no more of what fitted.
    inferred = {"recompute": "none", "inferred_fields": "shape, recompute"}
    guessed = replayable(framework="Megatron-LM (2023)", **inferred)
    assert guessed.job.recipe.recompute == "none"
    assert guessed.heavier == ()
    assert [each.recompute for each in guessed.picking] == ["selective", "full"]
    blocks = replayable(framework="fms-fsdp (PyTorch FSDP1 + compile)", recompute="selective")
    layers = blocks.job.model.num_layers
    shares = [each.recompute_layers for each in (blocks.job.recipe, *blocks.heavier)]
    assert shares == [-(-layers // apart) for apart in (4, 3, 2, 1)]
    published = {"recompute": "selective", "notes": "HFU 49%", "measured_mfu": 42.0}
    counted = replayable(framework="fms-fsdp (PyTorch FSDP1 + compile)", **published)
    assert counted.job.recipe.recompute_layers == layers // 2
    assert counted.heavier == ()


@pytest.mark.parametrize(
    ("framework", "etp", "split"),
    [("Megatron-Bridge", None, 1), ("Megatron-Bridge", 2, None), ("Megatron-LM", None, None)],
)
def test_experts_are_split_as_software_does_unless_told(framework, etp, split):
    outcome = job_of(replace(EXPERTS, framework=framework, etp=etp), declarations())
    assert outcome.job.recipe.etp == split


def test_experts_are_not_split_where_there_are_not_gpus_for_it():
    crowded = replace(EXPERTS, num_gpus=None, tp=2, pp=1, dp=4, cp=1, ep=8, etp=None)
    assert job_of(crowded, declarations()).job.recipe.etp == 1
    assert job_of(replace(crowded, dp=8), declarations()).job.recipe.etp is None
