"""Megatron-LM's arguments and defaults, one by one."""

from dataclasses import replace

import pytest

from tests.reports.launch_import.samples import SHAPE, model, read, read_written, written
from tests.samples import MODEL, TRAINING
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.reports.launch.directory import launches
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import Mla
from trainscout.simulators.predictor.question.recipe import Recipe

MODELS = load_catalogue().models


def shape(more: str = ""):
    return read(SHAPE + more)


def test_absent_arguments_are_megatron_s_defaults():
    imported = shape()
    model, recipe = imported.question.model, imported.recipe
    assert (model.ffn_hidden_size, model.kv_heads, model.qk_head_dim) == (4 * 768, 12, 64)
    assert (model.gated_mlp, model.normalization, model.position) == (
        False,
        "layernorm",
        "learned",
    )
    assert model.linear_bias
    assert model.qkv_bias
    assert model.dropout
    assert model.tied_embeddings
    assert (model.moe, model.mla, model.num_mtp_layers) == (None, None, 0)
    assert model.sequence_length == 2048
    assert imported.question.training.sequence_length == 1024
    assert imported.question.training.precision == "fp32"
    assert recipe == Recipe(micro_batch=2, zero_stage=0)


def test_a_gated_mlp_is_narrower_by_default():
    # int(4 x 768 x 2/3 / 64) x 64.
    assert shape("--swiglu").question.model.ffn_hidden_size == 2048
    assert shape("--swiglu --ffn-hidden-size 3000").question.model.ffn_hidden_size == 3000


def test_query_groups_count_only_when_asked_for():
    assert shape("--num-query-groups 4").question.model.kv_heads == 12
    assert shape("--group-query-attention --num-query-groups 4").question.model.kv_heads == 4
    assert shape("--group-query-attention").question.model.kv_heads == 1


def test_sequence_parallelism_needs_tensor_parallelism():
    alone = shape("--sequence-parallel")
    assert not alone.recipe.sp
    assert any("does nothing" in note for note in alone.reading.notes)
    assert shape("--sequence-parallel --tensor-model-parallel-size 2").recipe.sp


def test_without_a_global_batch_each_replica_takes_one_micro_batch():
    arguments = SHAPE.replace("--global-batch-size 32", "--tensor-model-parallel-size 2")
    imported = read(arguments)
    # 16 GPUs / tp 2 = 8 replicas x 2.
    assert imported.question.training.global_batch_size == 16
    assert any("no --global-batch-size" in note for note in imported.reading.notes)


@pytest.mark.parametrize(
    ("arguments", "states"),
    [
        ("--bf16 --use-distributed-optimizer", None),
        ("--bf16 --use-distributed-optimizer --use-precision-aware-optimizer", "remainders"),
        (
            "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer "
            "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            "remainders",
        ),
        ("--fp16 --use-distributed-optimizer --use-precision-aware-optimizer", None),
    ],
)
def test_a_precision_aware_optimizer_keeps_remainders(arguments, states):
    assert shape(arguments).recipe.optimizer_states == states


@pytest.mark.parametrize(
    ("arguments", "fp32"),
    [
        ("--bf16", True),
        ("--bf16 --grad-reduce-in-bf16", False),
        ("--fp16", False),
        ("--fp16 --fp8-format hybrid", False),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", True),
        ("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16", False),
    ],
)
def test_type_of_accumulated_gradients(arguments, fp32):
    assert shape(arguments).question.framework.accumulate_grads_fp32 is fp32


@pytest.mark.parametrize(
    ("arguments", "graphs", "leaves"),
    [
        ("--enable-cuda-graph", True, False),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True, False),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp", True, True),
        ("--cuda-graph-impl local --cuda-graph-scope attn moe_router moe_preprocess", True, True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope moe_router", False, False),
    ],
)
def test_cuda_graphs(arguments, graphs, leaves):
    found = shape(arguments).question.framework
    assert (found.cuda_graphs, found.graphs_leave_experts) == (graphs, leaves)


@pytest.mark.parametrize(("strategy", "held"), [("optim", True), ("optim_grads", False)])
def test_megatron_fsdp_that_shards_no_gradients_is_said_beside_zero(strategy, held):
    arguments = f"--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}"
    assert shape(arguments).question.framework.megatron_fsdp is held


def test_gradients_are_searched_for_nans_unless_it_is_said():
    checks = replace(read(SHAPE).question.framework, checks_gradients=True)
    assert read(SHAPE, framework=checks).question.framework.checks_gradients
    said = read(f"{SHAPE} --no-check-for-nan-in-loss-and-grad", framework=checks)
    assert not said.question.framework.checks_gradients
    assert not said.reading.unknown


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("--bf16", "bf16"),
        ("--fp16", "fp16"),
        ("--bf16 --fp8-format hybrid", "fp8"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe tensorwise", "fp8_current"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "fp8_block"),
        ("--bf16 --fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4"),
    ],
)
def test_precision(arguments, precision):
    assert shape(arguments).question.training.precision == precision


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity selective", {"recompute": "selective"}),
        (
            "--recompute-granularity selective --recompute-modules mlp core_attn",
            {"recompute": "selective", "recompute_modules": "mlp+core_attn"},
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": "full"},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            {"recompute": "full", "recompute_layers": 3},
        ),
        ("--use-distributed-optimizer", {"zero_stage": 1}),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
            {"zero_stage": 3},
        ),
        ("--use-torch-fsdp2", {"zero_stage": 3}),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
            {"zero_stage": 2, "overlap_grad_reduce": True},
        ),
        ("--use-distributed-optimizer --overlap-grad-reduce", {"overlap_grad_reduce": True}),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            {"pp": 2, "vpp": 2},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettttt|tttttttL",
            {"pp": 2, "first_stage_layers": 5, "last_stage_layers": 7},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E(t*3|)*3t*3L",
            {"pp": 2, "vpp": 2},
        ),
    ],
)
def test_recipes(arguments, fields):
    found = shape(arguments).recipe
    assert {name: getattr(found, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("arguments", "stated"),
    [
        (SHAPE.replace("--micro-batch-size 2", ""), "--micro-batch-size"),
        (f"{SHAPE} --recompute-granularity full", "--recompute-method"),
        *(
            (f"{SHAPE} --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout {each}",
             "layout")
            for each in ("Et|tL", "E(t|)*9999999999L", "Ex|tL", "t*99999999")
        ),
    ],
)  # fmt: skip
def test_what_megatron_would_refuse_is_refused(arguments, stated):
    with pytest.raises(InputError, match=stated):
        read(arguments)


MOE = "--num-experts 8 --bf16 --moe-grouped-gemm "


@pytest.mark.parametrize(
    ("more", "written"),
    [
        ("", "atomic"),
        ("--moe-permute-fusion", ""),
        # HybridEP's own kernels put tokens in order.
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", ""),
    ],
)
def test_tokens_are_put_in_order_by_kernels_where_asked_for(more, written):
    assert shape(MOE + more).question.framework.written_dispatch == written


def test_defaults_of_experts():
    moe = shape(MOE).question.model.moe
    assert (moe.top_k, moe.ffn_hidden_size, moe.dispatcher) == (2, 4 * 768, "allgather")
    assert (moe.num_dense_layers, moe.layer_period, moe.capacity_factor) == (0, 1, None)


@pytest.mark.parametrize(
    ("more", "padded"), [("", False), ("--moe-pad-expert-input-to-capacity", True)]
)
def test_experts_are_padded_where_it_is_said(more, padded):
    moe = shape(f"{MOE} --moe-expert-capacity-factor 1.5 {more}").question.model.moe
    assert (moe.capacity_factor, moe.padded) == (1.5, padded)


@pytest.mark.parametrize(
    ("pattern", "dense", "period", "exact"),
    [
        ("1", 0, 1, True),
        ("([0]*2+[1]*10)", 2, 1, True),
        ("([0]+[1])*6", 0, 2, True),
        ("([0]*4+[1]+[0]+[1]+[0]+[1]+[0]+[1]+[0])", 3, 2, True),
        # Megatron's period begins with an expert layer, here it ends with one.
        ("2", 0, 2, False),
        ("([1]*6+[0]*6)", 0, 2, False),
    ],
)
def test_which_layers_have_experts(pattern, dense, period, exact):
    imported = shape(f"{MOE} --moe-layer-freq {pattern}")
    moe = imported.question.model.moe
    assert (moe.num_dense_layers, moe.layer_period) == (dense, period)
    stated = [argument for argument, _ in imported.reading.not_modelled]
    assert (f"--moe-layer-freq {pattern}" in stated) is not exact


@pytest.mark.parametrize(
    "pattern", ["[0]*12", "[1]*9", "__import__('os')", "[1]*99999999999", "0"]
)
def test_impossible_patterns_are_refused(pattern):
    words = [*SHAPE.split(), *MOE.split(), "--moe-layer-freq", pattern]
    with pytest.raises(InputError, match="--moe-layer-freq"):
        MegatronReader(words, {}).model(MODEL)


def test_latent_attention_has_defaults():
    model = shape("--multi-latent-attention").question.model
    assert model.mla == Mla(32, 128, 64, 128)


def test_vocabularies():
    assert shape("--tokenizer-type GPT2BPETokenizer").question.model.vocab_size == 50257
    null = shape("--tokenizer-type NullTokenizer --vocab-size 1000").question.model
    assert null.vocab_size == 1001
    unsaid = shape("--tokenizer-type HuggingFaceTokenizer --tokenizer-model x")
    assert unsaid.question.model.vocab_size == MODEL.vocab_size
    assert any("vocabulary" in note for note in unsaid.reading.notes)
    named = shape("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/Llama-3.1-8B")
    assert named.question.model.vocab_size == 128256
    assert not any("do not say the vocabulary" in note for note in named.reading.notes)
    assert shape("--padded-vocab-size 51200").question.model.padded_vocab_size(8) == 51200


def test_masks_of_long_sequences_are_said_not_to_be_modelled():
    def assumed(more):
        return dict(shape(f"--bf16 {more}").reading.not_modelled)

    maskless, long = "--no-create-attention-mask-in-dataloader", "--seq-length 32768"
    assert "GPUs copy 2.0 GiB" in assumed(long)[f"no {maskless}"]
    split = assumed(f"{long} --pipeline-model-parallel-size 2")
    assert "first and last stages copy 2.0 GiB" in split[f"no {maskless}"]
    assert assumed(f"{long} {maskless}") == assumed("--seq-length 16384") == {}


def test_every_argument_ends_in_one_list():
    imported = shape("--bf16 --lr 1e-4 --rope-type yarn --sequence-paralel --novel 3 4")
    reading = imported.reading
    assert "--lr 1e-4" in reading.no_effect
    assert ("--rope-type yarn", "rotary positions are plain") in reading.not_modelled
    unknown = {each.argument: each.nearest for each in reading.unknown}
    assert unknown == {"--sequence-paralel": "--sequence-parallel", "--novel 3 4": None}
    listed = len(reading.used) + len(reading.no_effect) + len(reading.not_modelled)
    words = SHAPE + "--bf16 --lr --window-size --sequence-paralel --novel"
    assert listed + len(unknown) == words.count("--")


def test_an_excerpt_leaves_the_rest_as_declared():
    degrees = "--tensor-model-parallel-size 2 --sequence-parallel"
    imported = read(f"{degrees} --use-distributed-optimizer")
    assert imported.question.model == MODEL
    assert imported.question.training == TRAINING
    assert imported.recipe == Recipe(tp=2, sp=True)
    assert any("no --num-layers" in note for note in imported.reading.notes)


def test_the_same_shape_keeps_its_name():
    words = (
        "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64"
    )
    assert read(words).question.model == MODEL
    assert read(words.replace("1024 --num", "2048 --num")).question.model.name == "given"


def test_what_the_command_line_says_counts_more():
    imported = read(SHAPE, stated=("model.num_layers", "training.global_batch_size"))
    assert imported.question.model.num_layers == MODEL.num_layers
    assert imported.question.training.global_batch_size == TRAINING.global_batch_size


def test_a_file_of_arguments(tmp_path):
    path = written(tmp_path, SHAPE.replace(" --", "\n--") + "\n# --bf16\n")
    assert read(path).recipe.micro_batch == 2
    assert read(path).question.training.precision == "fp32"


@pytest.mark.parametrize("given", ["", "nothing.sh", "echo"])
def test_what_cannot_be_read_is_refused(given):
    with pytest.raises(InputError, match="given"):
        read(given)


@pytest.mark.parametrize(
    ("script", "stated"),
    [
        ("main() {\n  torchrun pretrain_gpt.py --num-layers 2\n}\nmain\n", "function in line 1"),
        ("echo hello\n", "starts no training"),
    ],
)
def test_a_script_that_starts_no_training_that_is_read_is_refused(tmp_path, script, stated):
    with pytest.raises(InputError, match=stated):
        read_written(tmp_path, script)


def test_declared_software_is_kept_where_arguments_are_silent():
    slow = replace(read(SHAPE).question.framework, host_launch_s=1e-3)
    assert read(SHAPE, framework=slow).question.framework.host_launch_s == 1e-3


def test_long_arguments_are_no_file_name():
    assert read(SHAPE + "--data-path " + "x" * 5000).recipe.micro_batch == 2


def test_a_model_that_contradicts_the_arguments_is_said():
    named = model("llama3_8b")
    (contradiction,) = (
        note
        for note in read(SHAPE, ("model",), model=named).reading.notes
        if "contradicts" in note
    )
    assert contradiction.startswith("model=llama3_8b contradicts the arguments, which count")
    assert "hidden_size 4096, not 768" in contradiction
    # Nobody said it: the declaration only fills gaps.
    assert not any("contradicts" in note for note in read(SHAPE, model=named).reading.notes)


def test_an_excerpt_contradicts_no_model():
    found = read("--tensor-model-parallel-size 2", ("model",), model=model("llama3_8b"))
    assert not any("contradicts" in note for note in found.reading.notes)


def test_a_script_whose_settings_lie_elsewhere_is_refused(tmp_path):
    """Such as Megatron-Bridge's, or one's own: nothing of it would be in the answer."""
    for command in ('torchrun "$here/megatron_bridge.py" "$@"\n', "python train.py --epochs 3\n"):
        with pytest.raises(InputError, match="no argument of Megatron-LM that is known"):
            read_written(tmp_path, command)


@pytest.mark.parametrize("name", [name for name, one in MODELS.items() if not one.kinds])
@pytest.mark.parametrize("framework", ["megatron_lm", "torchtitan"])
def test_what_is_written_of_a_model_that_ships_is_read_again(tmp_path, name, framework):
    declared = MODELS[name]
    question = replace(read(SHAPE).question, model=declared)
    training = replace(question.training, global_batch_size=256, sequence_length=4096)
    job = replace(question, training=training).job(Recipe(zero_stage=3))
    (launch,) = launches(job, framework)
    if launch.impossible:
        pytest.skip(f"{launch.impossible}")
    (tmp_path / launch.script).write_text(launch.script_text)
    for other, text in launch.files.items():
        (tmp_path / other).write_text(text)
    found = read(str(tmp_path / launch.script), model=declared).question.model
    aside = {
        "name": declared.name,
        "source": declared.source,
        "sequence_length": declared.sequence_length,
        "head_dim": declared.head_dim,
        # Latent queries and keys are normalised anyway.
        "qk_norm": declared.qk_norm if declared.mla else found.qk_norm,
    }
    assert replace(found, **aside) == declared
    assert found.qk_head_dim == declared.qk_head_dim


def test_a_launch_of_a_few_steps_is_read_with_the_declared_length():
    trial, run = shape("--train-iters 3"), shape("--train-iters 300")
    assert trial.question.training.tokens == TRAINING.tokens
    assert any("a trial of 98,304 tokens" in note for note in trial.reading.notes)
    assert run.question.training.tokens == 300 * 32 * 1024
    assert not any("a trial" in note for note in run.reading.notes)
