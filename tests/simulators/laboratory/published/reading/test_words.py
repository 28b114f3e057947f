"""What rows say in words is used, refused or listed as unread."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulators.laboratory.published.runs import RUN, declarations, replayable
from trainscout.simulators.laboratory.published.jobs.jobs import job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.laboratory.published.reading import phrases
from trainscout.simulators.laboratory.published.reading.words import statement_of
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.tuning import Dpo, Lora

ROOM = Path(phrases.__file__).parents[1]


def statement(**cells):
    return statement_of(replace(RUN, **cells))


def test_words_that_no_rule_read_are_listed_where_they_stand():
    assert statement(notes="quantum pistons; CUDA graphs; dropless").unread == ("quantum pistons",)
    assert statement(framework="NeMo 24.09 with Sparkle").unread == ("with sparkle",)
    assert statement(dist_optimizer="zero1 on odd days").unread == ("on odd days",)
    assert statement().unread == ()


@pytest.mark.parametrize(
    ("cells", "unread"),
    [
        ({"gpu": "NVIDIA H100_80GB (liquid-cooled)"}, ("liquid-cooled",)),
        ({"gpu": "8x NVIDIA RTX A6000 48GB"}, ()),
        ({"gpu": "Tesla V100-SXM2-16GB"}, ()),
        ({"gpu": "A100 80GB PCIe"}, ()),
        ({"intra_link": "NVLink4 900GB/s, one link broken"}, ("one link broken",)),
        ({"intra_link": "PCIe Gen4 x16, no NVLink"}, ()),
        ({"intra_link": "InfinityFabric mesh (7 links)"}, ()),
        ({"tflops_convention": "model FLOPs, experts counted twice"}, ("experts counted twice",)),
        ({"tflops_convention": "model FLOPs, full attention, MFU peak 312 TFLOPS"}, ()),
        ({"tflops_convention": "6ND; causal attention at half"}, ()),
    ],
)
def test_words_of_the_gpu_its_links_and_the_convention_are_listed_too(cells, unread):
    assert statement(**cells).unread == unread


@pytest.mark.parametrize(
    "label",
    [
        "NVIDIA/Megatron-LM @ core_r0.11.0",
        "nvcr.io/nvidia/nemo:25.04",
        "stanford-crfm/levanter",
        "EleutherAI/gpt-neox 2.0",
        "Megatron-LM core v0.9.0 (commit a1b2c3d)",
        "HuggingFace Trainer + FSDP",
    ],
)
def test_repositories_are_known_by_their_names(label):
    assert statement(framework=label).label["project"]
    assert statement(framework=label).unread == ()


def test_containers_are_dated_with_a_v_before_them_too():
    assert statement(framework="rocm/megatron-lm:v25.6").label["container"] == "25.6"
    assert statement(framework="PyTorch nightly 20240901").label["year"] == "2024"


def test_what_narrows_or_negates_is_read_first():
    assert statement(notes="no flash attention").says("attention", "unfused")
    assert statement(notes="no CUDA graphs").says("graphs", "no")
    assert statement(notes="no fp8_param_gather").says("param_gather", "no")
    for notes in ("FP8 attention", "fp8_dot_product_attention"):
        assert statement(notes=notes).says("fp8_products", "attention")
    for notes in ("no FP8 attention", "fp8_dot_product_attention=false"):
        assert statement(notes=notes).says("fp8_products", "")
    without = statement(notes="no rotary positions and no norm of queries and keys; no biases")
    assert without.says("positions", "none")
    assert without.says("qk_norm", "no")
    assert without.says("linear_biases", "no")
    assert not statement(notes="no bias-GELU fusion; no bias-dropout fusion").says("linear_biases")
    assert statement(framework="PyTorch (picotron-like, 2026)").says("states", "bf16")
    assert not without.says("norm")
    eager = statement(notes="no fused rotary positions")
    assert eager.says("positions", "rope")
    assert eager.says("rope_fusion", "no")
    assert statement(notes="1F1B non-interleaved").says("schedule", "plain")
    recipe = statement(notes="router fusion off, rope fusion off, moments in bf16")
    assert recipe.says("router_fusion", "no")
    assert recipe.says("rope_fusion", "no")
    assert recipe.says("moments", "bf16")
    assert statement(notes="FP8 params; no transpose cache").says("transposes", "no")
    assert statement(notes="no flash-linear-attention").says("delta_rule", "rows")
    for words, schedule in (
        ("zero-bubble schedule", "zb-h1"),
        ("pipeline schedule zbv-formatted", "zb-v"),
        ("pipeline schedule v-half; max memory 14 GB", "v-half"),
        ("ZB-2p", "zb-h2"),
        ("DualPipeV", "dualpipe-v"),
        ("DualPipe", "dualpipe"),
    ):
        assert statement(notes=words).says("schedule", schedule)
    assert statement(notes="not force-balanced").says("router", "real")
    assert statement(notes="even routing").says("router", "forced")
    overlapped = statement(notes="no overlap of the parameter gather")
    assert overlapped.says("overlap", "gradients")
    assert statement(notes="precision-aware optimizer off").says("remainders", "no")


@pytest.mark.parametrize(
    ("notes", "reason"),
    [
        ("Chimera schedule", "pipeline schedules"),
        ("ZeRO-Offload", "optimizer is on the CPU"),
        ("DeepSpeed ZeRO-3 offload", "optimizer is on the CPU"),
        ("video diffusion transformer", "decoder-only"),
        ("KTO with LoRA", "kto is modelled as TRL"),
    ],
)
def test_what_cannot_be_modelled_is_refused(notes, reason):
    outcome = job_of(replace(RUN, notes=notes), declarations())
    assert isinstance(outcome, NotReplayable)
    assert reason in outcome.reason


def test_adapters_are_replayed_as_adapters():
    outcome = replayable(notes="LoRA", framework="Megatron-LM")
    assert outcome.job.training.lora is not None
    assert outcome.job.training.packed_lengths == ()
    assert any("adapters not published" in text for text in outcome.assumptions)
    assert outcome.job.training.lora.rank == 16
    for framework in ("Megatron-Bridge 26.06", "NeMo 25.09"):
        packed = replayable(notes="SFT", framework=framework).job
        assert packed.training.lora is None
        assert packed.attended_length < packed.sequence_length
    reference = replayable(notes="SFT", framework="NeMo v2.3.0, MLPerf v5.1 reference").job
    assert reference.training.packed_lengths == ()
    packed = replayable(notes="varlen attention over packed documents of about 430 tokens").job
    assert packed.training.packed_lengths == (430,)


def test_dora_of_megatron_bridge_has_tensor_parallel_ranks():
    notes, framework = "DoRA rank 8 on q_proj", "Megatron-Bridge 26.06"
    job = replayable(notes=notes, framework=framework).job
    assert job.training.lora.dora
    assert job.recipe.tp > 1
    assert job.framework.dora_of_factors
    refused = job_of(replace(RUN, notes=notes, framework="Megatron-LM"), declarations())
    assert "dora is modelled as PEFT or Megatron-Bridge" in refused.reason


@pytest.mark.parametrize("framework", ["Hugging Face TRL", "Transformers, DeepSpeed ZeRO-2"])
def test_dora_and_kto_are_those_of_peft_and_trl(framework):
    notes = "KTO with DoRA rank 8 on q_proj"
    shape = {"num_gpus": 8, "tp": 1, "pp": 1, "cp": 1, "dp": 8}
    training = replayable(notes=notes, framework=framework, **shape).job.training
    assert (training.lora, training.dpo) == (Lora(8, ("linear_qkv",), dora=True), Dpo(kto=True))


@pytest.mark.parametrize(
    ("notes", "rank", "targets"),
    [
        (
            "LoRA of rank 64 on c_attn, c_proj, w1 and w2; lora_dropout 0.05",
            64,
            ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        ),
        ("LoRA rank 8 on q_proj and v_proj", 8, ("linear_qkv",)),
        ("LoRA rank=32 on linear_proj", 32, ("linear_proj",)),
        (
            "LoRA rank 32 on every linear layer and expert",
            32,
            ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        ),
    ],
)
def test_adapters_are_those_that_are_said(notes, rank, targets):
    outcome = replayable(notes=notes)
    assert outcome.job.training.lora == Lora(rank, targets, 0.05 if "dropout" in notes else 0)
    assert not any("adapters not published" in text for text in outcome.assumptions)
    assert statement(notes=notes).unread == ()


def test_frozen_weights_have_adapters():
    notes = "QLoRA rank 8 on q_proj and v_proj; NF4"
    lora = replayable(notes=notes, framework="Hugging Face").job.training.lora
    assert lora == Lora(8, ("linear_qkv",), 0, "nf4")


@pytest.mark.parametrize(
    ("notes", "name"),
    [
        ("optimizer dana-star-mk4", "dana-star-mk4"),
        ("NorMuon and AdamW", "normuon"),
        ("optimizer soap", "soap"),
    ],
)
def test_what_is_no_adam_is_said_to_be_priced_as_adam(notes, name):
    assert f"{name} priced as Adam" in replayable(notes=notes).assumptions
    assert statement(notes=notes).unread == ()


def test_an_optimizer_of_transformer_engine_is_no_norm():
    notes = "Transformer Engine's FusedAdam"
    framework = replayable(notes=notes, framework="Hugging Face").job.framework
    assert framework.fused_optimizer
    assert not framework.fused_norm
    assert statement(notes=notes).unread == ()


@pytest.mark.parametrize(
    "notes",
    [
        "weights, gradients and optimizer states in bf16",
        "weights and AdamW states in bf16",
        "optimizer in bf16 without fp32 weights",
    ],
)
def test_states_in_16_bits_leave_no_fp32_copy(notes: str):
    outcome = replayable(notes=notes, framework="Hugging Face", recompute="full")
    assert outcome.job.training.optimizer == "adam_pure_bf16"
    assert not outcome.job.framework.accumulate_grads_fp32
    assert statement(notes=notes).unread == ()


def test_whole_layers_are_checkpointed_unless_narrowed():
    assert statement(notes="checkpoint-activations").says("recompute", "full")
    assert statement(notes="activation checkpointing; eager").says("recompute", "full")
    assert statement(notes="selective activation checkpointing").says("recompute", "selective")
    assert statement(notes="no activation checkpointing").says("recompute", "none")


@pytest.mark.parametrize(
    ("notes", "on"), [("sequence parallel", True), ("sequence parallelism off", False)]
)
def test_sequence_parallelism_in_the_notes_counts_where_the_column_is_blank(notes, on):
    assert replayable(notes=notes, sp=None).job.recipe.sp is on
    assert replayable(notes=notes, sp=not on).job.recipe.sp is not on
    assert statement(notes=notes).unread == ()


def test_measured_figures_in_notes_change_nothing_and_are_read():
    notes = "43.5 GB of GPU memory given; 17.13 samples/s given; mean of steps 16-20 of 20"
    assert statement(notes=notes).unread == ()


@pytest.mark.parametrize(
    ("words", "notes", "group"),
    [
        ("zero1 within groups of 8", "", 8),
        ("fsdp4", "", 4),
        ("fsdp2", "", None),
        ("fsdp16", "", None),
        ("hsdp", "", 8),
        ("fsdp", "hybrid shard", 8),
        ("fsdp", "HSDP", 8),
        ("fsdp", "replicate = 16, shard = 4", 4),
        ("fsdp", "full shard", None),
    ],
)
def test_shards_lie_in_the_groups_that_are_said(words, notes, group):
    outcome = replayable(dist_optimizer=words, notes=notes, num_gpus=16, tp=1, pp=1, dp=16)
    assert outcome.job.recipe.zero_stage == (1 if "zero1" in words else 3)
    assert outcome.job.recipe.dp_shard == group
    assert statement(dist_optimizer=words, notes=notes).unread == ()


def test_groups_that_do_not_divide_the_replicas_are_an_assumption():
    outcome = replayable(dist_optimizer="fsdp12", num_gpus=16, tp=1, pp=1, dp=16)
    assert outcome.job.recipe.dp_shard is None
    assert any("among 12 replayed over all 16" in text for text in outcome.assumptions)


def test_a_fabric_in_the_notes_is_used():
    assert replayable(notes="nodes joined by EFA").job.cluster.fabric == "efa"
    assert replayable(notes="4 Omni-Path 100G links").job.cluster.fabric == "omni_path"
    priced = replayable(notes="Ethernet")
    assert priced.job.cluster.fabric == "roce"
    assert any("Ethernet is priced as RoCE" in text for text in priced.assumptions)
    own = replayable(notes="Ethernet", inter_link_gbps_per_gpu=None)
    assert own.job.cluster.nic_gbps == own.job.gpu.server.nic_gbps
    assert any("node network not published" in text for text in own.assumptions)
    shared = replayable(notes="NCCL_IB_DISABLE=1", inter_link_gbps_per_gpu=None).job.cluster
    assert (shared.fabric, shared.nic_gbps * shared.nics_per_node) == ("roce", 100)
    counted = replayable(notes="4x100G NICs per node", inter_link_gbps_per_gpu=None)
    assert counted.job.cluster.nic_gbps * counted.job.cluster.nics_per_node == 400


def test_every_fact_is_asked_for_by_a_reader():
    facts = {phrase.fact for phrase in (*phrases.LABEL, *phrases.NOTES, *phrases.SHARDING)}
    asked = {
        node.value
        for file in ROOM.rglob("*.py")
        if not file.name.endswith("phrases.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    stated = set(read_yaml(ROOM / "jobs/frameworks.yaml")["stated"])
    assert stated <= facts
    assert facts - {""} <= asked | stated


def test_what_only_labels_say_is_no_fact_of_other_columns():
    own = {fact for group in read_yaml(ROOM / "reading/phrases.yaml")["label"] for fact in group}
    columns = (phrases.NOTES, phrases.SHARDING, phrases.RECOMPUTE, phrases.ARITHMETIC)
    others = {phrase.fact for column in columns for phrase in column}
    # Transformer Engine's layers are the same fact, in words that notes say of other things.
    assert own & others - {""} == {"layers"}


def test_notes_are_matched_in_one_place():
    readers = {"words.py", "phrases.py", "rows.py", "presets.py", "layouts.py"}
    for file in ROOM.rglob("*.py"):
        assert file.name in readers or ".notes" not in file.read_text(), file.name


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("Selective (core attn)", ("selective", None)),
        ("selective:core_attn+mlp", ("selective", "core_attn+mlp")),
        ("layernorm", ("selective", "layernorm")),
        ("yes", ("full", None)),
        ("off", ("none", None)),
        ("activation checkpointing", ("full", None)),
    ],
)
def test_recomputation_is_written_in_many_ways(label, expected):
    recipe = replayable(recompute=label).job.recipe
    assert (recipe.recompute, recipe.recompute_modules) == expected


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        *[(word, 0) for word in ("0", "none", "false", "DDP")],
        *[
            (word, 1)
            for word in ("1", "True", "zero1", "ZeRO-1", "zero_stage=1", "Megatron DistOpt")
        ],
        *[("zero2", 2), ("fsdp(zero2)", 2), ("zero3", 3), ("fsdp", 3), ("FSDP", 3)],
    ],
)
def test_sharding_is_written_in_many_ways(label, stage):
    assert replayable(dist_optimizer=label, pp=1, dp=32).job.recipe.zero_stage == stage


def test_what_is_off_is_not_on():
    recipe = replayable(notes="overlap_grad_reduce: false", grad_overlap=None).job.recipe
    assert not recipe.overlap_grad_reduce
    assert not replayable(notes="p2p overlap off").job.framework.overlap_p2p
    assert replayable(notes="act ckpt off", recompute="").job.recipe.recompute == "none"
    assert replayable(notes="act ckpt every layer", recompute="").job.recipe.recompute == "full"
    for notes, mode in (
        ("gradient checkpointing", "full"),
        ("gradient_checkpointing: true", "full"),
        ("no gradient checkpointing", "none"),
        ("gradient checkpointing off", "none"),
        ("checkpointing that saves the outputs of linear layers", "selective"),
    ):
        assert replayable(notes=notes, recompute="").job.recipe.recompute == mode


def test_deepspeed_s_settings_in_words():
    job = replayable(notes="overlap_comm; sharding stage 1", grad_overlap=None).job
    assert job.recipe.overlap_grad_reduce
    job = replayable(notes="overlap_comm: false", grad_overlap=None).job
    assert not job.recipe.overlap_grad_reduce
    job = replayable(notes="sharding stage 3", dist_optimizer="", pp=1, dp=32).job
    assert job.recipe.zero_stage == 3
    unsaid = {"dist_optimizer": "", "sp": 0, "tp": 1}
    for year, layout, stage in (
        (2024, {"pp": 1, "dp": 64}, 1),
        (2026, {"pp": 1, "dp": 64}, 0),
        (2026, {"pp": 2, "dp": 32}, 1),
    ):
        job = replayable(framework=f"DeepSpeed ({year})", **unsaid, **layout).job
        assert job.recipe.zero_stage == stage
    for words, fp32 in (
        ("gradients accumulated in bf16", False),
        ("bf16 main grads", False),
        ("gradients in fp32", True),
    ):
        assert replayable(notes=words).job.framework.accumulate_grads_fp32 == fp32


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [
        *[(word, word) for word in ("fp8", "fp16", "bf16")],
        ("bf16-mixed", "bf16"),
        ("amp_bfloat16", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("AMP (fp16)", "fp16"),
        ("mixed", "bf16"),
        ("FP8 (TE, delayed scaling)", "fp8"),
        ("fp8_current", "fp8_current"),
        ("FP8, current scaling", "fp8_current"),
        ("float8 tensorwise", "fp8_current"),
        ("bf16 with fp8 linears", "fp8"),
    ],
)
def test_precision_is_written_in_many_ways(dtype: str, precision: str):
    assert (
        replayable(dtype=dtype, framework="Megatron-LM 2025").job.training.precision == precision
    )


def test_words_beside_a_precision_that_no_rule_read_are_listed():
    assert statement(dtype="fp8 (stochastic rounding)").unread == ("stochastic rounding",)


def test_how_many_layers_are_recomputed_or_offloaded_is_read_first():
    some = replayable(pp=1, dp=32, recompute="full", notes="full recompute of 8 of 32 layers")
    assert some.job.recipe.recompute_layers == 8
    offloaded = {"pp": 1, "dp": 32, "recompute": "none"}
    notes = "activation CPU offload of 4 layers"
    assert replayable(**offloaded, notes=notes).job.recipe.offloaded_layers == 4
