"""Layers of Megatron-Core beside attention and an MLP or experts, as its arguments and back."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.dialects.megatron_parser import parser
from tests.reports.launch_import.samples import BASE, framework
from tests.reports.launch_import.samples import model as plain_model
from tests.simulators.jobs import make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.dialects import megatron_hybrid, megatron_lm
from trainscout.reports.launch.directory import launches
from trainscout.reports.launch_import.read import read_launch
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import AttentionMixer, Mixer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.megatron import build_workload

MODELS = load_catalogue().models


def written(name: str, **recipe: object) -> dict[str, object]:
    return dict(megatron_lm.settings_of(make_job(MODELS[name], **recipe)))


def test_a_hybrid_model_is_said_by_letters() -> None:
    stated = written("nemotron_h_8b", tp=8, sp=True)
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    assert stated["--hybrid-override-pattern"] == pattern
    assert stated["--num-layers"] == len(pattern) == 52
    sizes = [stated[f"--mamba-{each}"] for each in ("num-heads", "head-dim", "num-groups")]
    assert sizes == [128, 64, 8]
    # A layer of two halves is two letters.
    assert (
        written("granite4_h_small")["--hybrid-override-pattern"]
        == "ME" * 5 + "*E" + ("ME" * 9 + "*E") * 3 + "ME" * 4
    )


def test_windows_and_sinks_have_arguments() -> None:
    stated = written("gpt_oss_20b")
    assert stated["--window-size"] == "127,0"
    assert stated["--softmax-type"] == "learnable"
    given = parser().parse_args(
        ["--window-attn-skip-freq", str(stated["--window-attn-skip-freq"])]
    )
    assert given.window_attn_skip_freq == [1, 0] * 12


@pytest.mark.parametrize("name", ["nemotron_h_8b", "nemotron3_nano_30b_a3b", "gpt_oss_20b"])
def test_what_is_launched_is_read_back(name: str, tmp_path: Path) -> None:
    job = make_job(MODELS[name], tp=2, sp=True, pp=2)
    job = replace(job, framework=framework("megatron_core"))
    (launch,) = launches(job, "megatron_lm")
    assert launch.impossible == ()
    script = tmp_path / "run.sh"
    script.write_text(launch.script_text)
    is_hybrid = megatron_hybrid.is_hybrid(job.model)
    assert ("pretrain_mamba.py" if is_hybrid else "pretrain_gpt.py") in launch.script_text
    read = read_launch(str(script), BASE, (), plain_model, framework)
    assert read.reading.unknown == read.reading.not_modelled == ()
    found = read.question.model
    found.check()
    assert [found.mixer(layer) for layer in found.pattern] == [
        job.model.mixer(layer) for layer in job.model.pattern
    ]
    # No argument that is written says these.
    unsaid = ("linear_bias", "scaled_rope")
    unsaid_fields = {name: getattr(job.model, name) for name in unsaid}
    again = replace(job, model=replace(found, **unsaid_fields))
    workloads = [build_workload(each).stages for each in (job, again)]
    counts = {sum(stage.parameters.total for stage in stages) for stages in workloads}
    assert len(counts) == 1
    times = {ReplaySimulator().without_error_bar(one).step_time_s for one in (job, again)}
    assert len(times) == 1


def test_dense_layers_beside_windows_are_read_back(tmp_path: Path) -> None:
    kinds = {"near": Mixer(attention=AttentionMixer(window=128))}
    layers = "near/dense, 2*near/moe, attention/moe, 11*(3*near/moe, attention/moe)"
    model = replace(MODELS["qwen3_30b_a3b"], layers=layers, kinds=kinds)
    job = replace(make_job(model), framework=framework("megatron_core"))
    script = tmp_path / "run.sh"
    script.write_text(str(launches(job, "megatron_lm")[0].script_text))
    found = read_launch(str(script), BASE, (), plain_model, framework).question.model
    found.check()
    assert [(each.mlp, found.mixer(each)) for each in found.pattern] == [
        (each.mlp, model.mixer(each)) for each in model.pattern
    ]


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("falcon_h1_7b", {}, "layers of kind full"),
        ("qwen3_next_80b_a3b", {}, "layers of kind linear"),
        ("gemma3_1b", {}, "norms behind"),
        ("minimax_m2", {}, "norms over all heads"),
        ("nemotron_h_8b", {"pp": 2, "vpp": 2}, "virtual stages"),
    ],
)
def test_what_megatron_has_no_arguments_for_is_not_written(
    name: str, recipe: dict[str, object], words: str
) -> None:
    (launch,) = launches(make_job(MODELS[name], **recipe), "megatron_lm")
    assert launch.script is None
    assert any(words in reason for reason in launch.impossible)


@pytest.mark.parametrize("field", [{"masked_head": True}, {"value_head_dim": 64}])
def test_what_no_argument_of_megatron_lm_says_is_not_written(field: dict[str, object]) -> None:
    model = replace(MODELS["llama3_8b"], **field)
    (launch,) = launches(make_job(model), "megatron_lm")
    assert launch.script is None
    assert set(model.special_parts) <= {each.removeprefix("model: ") for each in launch.impossible}


@pytest.mark.parametrize(
    ("pattern", "vpp"), [("MEM*MEM*", 1), ("ME|M*|ME|M*", 2), ("MEM*|MEM*/*E/*E", 1)]
)
def test_letters_of_later_releases_say_layers_chunks_and_further_tokens(
    pattern: str, vpp: int, tmp_path: Path
) -> None:
    """Megatron-LM core 0.18, whose launch has no --num-layers."""
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 pretrain_hybrid.py --hidden-size 64 --num-experts 8 "
        "--num-attention-heads 4 --micro-batch-size 1 --global-batch-size 8 --seq-length 64 "
        f"--bf16 --pipeline-model-parallel-size 2 --hybrid-layer-pattern '{pattern}'\n"
    )
    launch = read_launch(str(script), BASE, (), plain_model, framework)
    model = launch.question.model
    assert (megatron_hybrid.letters(model), model.num_layers) == ("MEM*MEM*", 8)
    assert launch.recipe.vpp == vpp
    said = any("further tokens" in instead for _, instead in launch.reading.not_modelled)
    assert said is ("/" in pattern)


@pytest.mark.parametrize("arguments", ["--hybrid-override-pattern MX*", "--window-size wide"])
def test_patterns_that_megatron_refuses_are_refused(arguments: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc-per-node 8 pretrain_mamba.py --num-layers 4 --hidden-size 64 "
        f"--num-attention-heads 4 --micro-batch-size 1 --global-batch-size 8 --seq-length 64 "
        f"--bf16 {arguments}\n"
    )
    with pytest.raises(InputError, match=arguments.split()[0]):
        read_launch(str(script), BASE, (), plain_model, framework)


def test_other_frameworks_say_which_layers_they_lack() -> None:
    for launch in launches(make_job(MODELS["nemotron_h_8b"])):
        if launch.framework != "megatron_lm":
            assert any("layers of kind linear" in reason for reason in launch.impossible)
