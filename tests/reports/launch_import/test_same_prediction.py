"""What was predicted is what is predicted of the files that launch it, or they say what they lack.

Whoever reads a launch names the software and the hardware, lengths of packed sequences and a
teacher, for TorchTitan and DeepSpeed the model and what stands in Python, too.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.reports.dialects.jobs import DENSE, MODELS, jobs
from tests.reports.dialects.test_round_trip import SHIPPED, in_its_words
from tests.reports.launch_import.samples import BASE, framework, model, read_written
from trainscout.conf.catalogue import load_catalogue
from trainscout.reports.launch.directory import launches, write_launches
from trainscout.reports.launch_import.read import read_launch
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.tuning import Distillation, Lora
from trainscout.simulators.predictor.question.validity import why_invalid
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator

FRAMEWORKS = load_catalogue().frameworks
SWITCHES = (
    {},
    {},
    {"cuda_graphs": True},
    {"accumulate_grads_fp32": False},
    {"fused_wgrad": False},
    {"checks_gradients": False},
    {"divides_gradients": True},
    {"cross_entropy": "pieces"},
    {"fusion": "eager"},
    {"attention": "unfused"},
    {"host_launch_s": 1e-4},
)
READ = {
    "megatron_lm": "megatron_lm.sh",
    "megatron_bridge": "megatron_bridge.sh",
    "torchtitan": "torchtitan.sh",
    "deepspeed": "deepspeed.json",
}
SOFTWARE = {
    "megatron_lm": ("megatron_core", "megatron_bridge", "megatron_zero_bubble"),
    "megatron_bridge": ("megatron_core", "megatron_bridge"),
    "torchtitan": ("torchtitan",),
    "deepspeed": ("deepspeed",),
}


LORAS = (
    Lora(8),
    Lora(16, ("linear_qkv", "linear_fc2"), dropout=0.1),
    Lora(16, ("linear_proj",)),
    Lora(8, ("linear_qkv", "linear_proj"), dora=True),
)


@st.composite
def trainings(draw, model):
    """What of a model is trained, and on what, as fields of a training."""
    length = draw(st.sampled_from([None, 2 * model.sequence_length]))
    fields = {"sequence_length": length, "lora": draw(st.sampled_from((None, None, *LORAS)))}
    if draw(st.booleans()) and draw(st.booleans()):
        fields["packed_lengths"] = (64, 128, 128)
    elif draw(st.booleans()) and draw(st.booleans()):
        fields["distillation"] = Distillation(replace(model, name="teacher"))
    return fields


@st.composite
def launchable(draw, name):
    """A job for the framework of that name, in software that it starts."""
    models = (*MODELS, *SHIPPED) if name != "deepspeed" else (DENSE, *SHIPPED[:2])
    job = draw(jobs(models, parallel=name != "deepspeed"))
    software = FRAMEWORKS[draw(st.sampled_from(SOFTWARE[name]))]
    software = replace(software, **draw(st.sampled_from(SWITCHES)))
    single = draw(st.booleans()) and job.recipe.cp * job.recipe.pp == 1
    cluster = replace(job.cluster, num_nodes=1, gpus_per_node=job.recipe.tp) if single else None
    # What NCCL is told is in a script alone.
    recipe = job.recipe
    if name == "deepspeed":
        recipe = replace(recipe, nccl_algo=None, nccl_max_channels=None)
        recipe = replace(recipe, recompute="none", recompute_layers=None, recompute_modules=None)
    job = replace(
        job,
        framework=software,
        cluster=cluster or job.cluster,
        recipe=recipe,
        training=replace(job.training, **draw(trainings(job.model))),
    )
    job = in_its_words(job) if name == "torchtitan" else job
    assume(why_invalid(job) is None)
    return job


def read_again(job, launch, folder):
    """The job that whoever reads the launch gets, and whether something is said to be assumed."""
    write_launches(folder, job, [launch])
    described = launch.framework.startswith("megatron")
    training = replace(
        BASE.training,
        optimizer=job.optimizer,
        precision=job.precision,
        sequence_length=None if described else job.training.sequence_length,
        packed_lengths=job.training.packed_lengths,
        distillation=job.training.distillation,
        lora=None if described else job.training.lora,
    )
    whole = BASE.model if described else job.model
    software = FRAMEWORKS[job.framework.name]
    if not described:
        in_python = {name: getattr(job.framework, name) for name in ("cross_entropy", "attention")}
        software = replace(software, **in_python)
    base = Question(whole, job.gpu, job.cluster, training, software)
    given = str(folder / READ[launch.framework])
    read = read_launch(given, base, ("framework",), model, framework)
    return read.question.job(read.recipe), read.reading.not_modelled


def predicted(job):
    answer = ReplaySimulator().without_error_bar(job)
    return answer.step_time_s, answer.memory.peak_reserved_bytes


@pytest.mark.parametrize("name", READ)
@settings(max_examples=8)
@given(data=st.data())
def test_files_that_lack_nothing_are_predicted_as_what_they_launch(tmp_path_factory, name, data):
    job = data.draw(launchable(name))
    (launch,) = launches(job, name)
    assume(not launch.impossible and not launch.unsupported)
    again, not_modelled = read_again(job, launch, tmp_path_factory.mktemp("launch"))
    assert why_invalid(again) is None
    assert not_modelled or predicted(again) == pytest.approx(predicted(job), rel=1e-9)


def test_a_script_whose_settings_lie_beside_it_names_them(tmp_path):
    (tmp_path / "deepspeed.json").write_text("{}")
    with pytest.raises(InputError, match=r"did you mean '.*deepspeed.json'"):
        read_written(tmp_path, "torchrun deepspeed_train.py\n")
