import pytest

from tests.reports.launch_import.samples import framework, model, read, read_written, written
from trainscout.reports.dialects.torchtitan import TITLE
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.recipe import Recipe

TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
steps = 100
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""


def toml(tmp_path, text: str = TOML) -> str:
    return written(tmp_path, text, "llama.toml")


def test_a_toml_file(tmp_path):
    imported = read(toml(tmp_path))
    assert imported.framework == TITLE
    assert imported.question.model == model("llama3_8b")
    assert imported.recipe == Recipe(
        tp=2,
        sp=True,
        micro_batch=2,
        zero_stage=3,
        recompute="selective",
        recompute_modules="operations",
    )
    training = imported.question.training
    # 16 GPUs / tp 2 = 8 replicas of 2.
    assert training.global_batch_size == 16
    assert training.tokens == 100 * 16 * 8192
    assert training.precision == "bf16"
    software = imported.question.framework
    assert (software.name, software.fusion) == ("torchtitan", "eager")


def test_compiled(tmp_path):
    imported = read(toml(tmp_path, TOML.replace("steps = 100", "steps = 100\ncompile = true")))
    assert imported.question.framework == framework("torchtitan")


def test_arguments_count_more_than_the_file_they_name(tmp_path):
    toml(tmp_path)
    start = "NGPU=16\ntorchrun --nproc_per_node=8 -m torchtitan.train --job.config_file"
    recipe = read_written(tmp_path, f"{start} llama.toml --training.local_batch_size 1").recipe
    assert (recipe.micro_batch, recipe.tp) == (1, 2)
    with pytest.raises(InputError, match=r"elsewhere\.toml"):
        read_written(tmp_path, f"{start} elsewhere.toml")


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ("data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1", {"zero_stage": 0}),
        ('fsdp_reshard_after_forward = "never"', {"zero_stage": 2, "overlap_param_gather": True}),
        ("pipeline_parallel_degree = 2", {"pp": 2, "zero_stage": 1, "micro_batch": 1, "vpp": 1}),
        (
            'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"',
            {"pp": 2, "vpp": 2, "embedding_as_layer": True, "loss_as_layer": True},
        ),
        (
            "pipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 2",
            {"micro_batch": 2},
        ),
        ("enable_sequence_parallel = false", {"sp": False}),
        ("context_parallel_degree = 2", {"cp": 2}),
        ("enable_async_tensor_parallel = true", {"tp_comm_overlap": True}),
    ],
)
def test_parallelism(tmp_path, change, fields):
    text = TOML.replace("[parallelism]", f"[parallelism]\n{change}")
    recipe = read(toml(tmp_path, text)).recipe
    assert {name: getattr(recipe, name) for name in fields} == fields


def test_degrees_must_make_up_the_gpus(tmp_path):
    text = TOML.replace("[parallelism]", "[parallelism]\ndata_parallel_shard_degree = 3")
    with pytest.raises(InputError, match="16 GPUs"):
        read(toml(tmp_path, text))


def test_every_second_layer_is_half_of_them(tmp_path):
    recipe = read(toml(tmp_path, TOML.replace('"op"', '"2"'))).recipe
    assert (recipe.recompute, recipe.recompute_layers) == ("full", 16)


@pytest.mark.parametrize(("name", "precision"), [("float8", "fp8_current"), ("mx", "mxfp8")])
def test_converters(tmp_path, name, precision):
    converters = f'converters = ["{name}"]'
    section = f"[{name}]\nfilter_fqns = ['output']"
    text = TOML.replace('flavor = "8B"', f'flavor = "8B"\n{converters}') + section
    imported = read(toml(tmp_path, text))
    assert imported.question.training.precision == precision
    assert [argument for argument, _ in imported.reading.not_modelled] == [
        f"--{name}.filter-fqns output"
    ]
    # Without the converter its section does nothing.
    plain = read(toml(tmp_path, TOML + section))
    assert plain.question.training.precision == "bf16"
    assert plain.reading.not_modelled == ()


RECENT = "torchrun --nnodes 2 --nproc-per-node 8 -m torchtitan.train --module llama3 "


def recent(tmp_path, arguments: str):
    return read_written(tmp_path, RECENT + arguments)


def test_configurations_of_0_3_bring_their_settings(tmp_path):
    imported = recent(tmp_path, "--config llama3_70b")
    assert imported.question.model == model("llama3_70b")
    assert (imported.recipe.tp, imported.recipe.micro_batch, imported.recipe.recompute) == (
        8,
        8,
        "full",
    )
    assert imported.question.framework.cuda_graphs
    changed = recent(
        tmp_path,
        "--config llama3_70b --parallelism.tensor-parallel-degree 4 "
        "--training.disable-cuda-graphs activation-checkpoint:none",
    )
    assert (changed.recipe.tp, changed.recipe.recompute) == (4, "none")
    assert not changed.question.framework.cuda_graphs


def test_0_3_recomputes_whole_layers(tmp_path):
    assert not recent(tmp_path, "--config llama3_70b").question.framework.recompute_stops_early
    compiled = recent(tmp_path, "--config llama3_70b --compile.enable")
    assert compiled.question.framework.recompute_stops_early
    assert read(toml(tmp_path, TOML)).question.framework.recompute_stops_early


def test_a_configuration_that_compiles_the_loss_alone(tmp_path):
    software = recent(tmp_path, "--config deepseek_v3_671b").question.framework
    assert (software.fusion, software.cross_entropy) == ("eager", "pieces")


def test_an_unknown_configuration_is_said(tmp_path):
    imported = recent(tmp_path, "--config mine --training.local-batch-size 1")
    assert any("configuration mine" in note for note in imported.reading.notes)


def test_every_setting_ends_in_one_list(tmp_path):
    more = "[metrics]\nlog_freq = 1\n[experimental]\nnovel = 3\n"
    text = TOML.replace("steps = 100", "steps = 100\nenable_cpu_offload = true") + more
    reading = read(toml(tmp_path, text)).reading
    assert "--metrics.log-freq 1" in reading.no_effect
    assert reading.not_modelled == (
        ("--training.enable-cpu-offload true", "nothing is offloaded"),
    )
    assert [each.argument for each in reading.unknown] == ["--experimental.novel 3"]


def test_broken_toml_is_refused(tmp_path):
    with pytest.raises(InputError, match="is no TOML"):
        read(toml(tmp_path, "[model\n"))
