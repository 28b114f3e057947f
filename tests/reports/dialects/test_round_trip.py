"""What is launched is what is imported: job -> launch text -> the same job, in every dialect."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.reports.dialects.jobs import DENSE, EXPERTS, jobs
from tests.reports.launch_import.samples import BASE, framework, model
from trainscout.pruning.equivalence import canonical
from trainscout.reports import dialects
from trainscout.reports.dialects import megatron_bridge, megatron_core
from trainscout.reports.dialects.megatron_layers import LAYOUT
from trainscout.reports.dialects.setting import Code
from trainscout.reports.dialects.torchtitan import equal_chunks
from trainscout.reports.launch.directory import launches
from trainscout.reports.launch_import.read import ImportedLaunch, read_launch
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import ENVIRONMENT, MEGATRON_BRIDGE
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.recipe import KNOBS
from trainscout.simulators.predictor.question.validity import why_invalid

DIALECTS = Path(dialects.__file__).parent
KNOWN = {"megatron_lm": "megatron", "torchtitan": "torchtitan"}
# Shipped models, whose launch scripts people write themselves.
SHIPPED = tuple(
    map(
        model,
        ("gpt22b", "llama3_8b", "mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3", "llama4_maverick"),
    )
)


def launched(job: Job, name: str, tmp_path_factory, base: Question) -> ImportedLaunch:
    """A job that the framework runs as it is asked to, as its script is read."""
    (launch,) = launches(job, name)
    assume(not launch.impossible)
    assume(not launch.unsupported)
    script = tmp_path_factory.mktemp("launch") / launch.script
    script.write_text(launch.script_text)
    read = read_launch(str(script), base, (), model, framework)
    assert read.reading.unknown == ()
    assumed = [argument for argument, _ in read.reading.not_modelled]
    # A split that no field of a recipe says is said to be assumed otherwise.
    assume(not any(argument.startswith(LAYOUT) for argument in assumed))
    assert assumed == []
    # What is written and not read is known to have no effect.
    table = yaml.safe_load((DIALECTS / f"{KNOWN[name]}_arguments.yaml").read_text("utf-8"))
    patterns = [each for names in table["no_effect"].values() for each in names]
    arguments = (each for each in read.reading.no_effect if each.startswith("--"))
    for argument in arguments:
        assert any(fnmatchcase(argument.split()[0], pattern) for pattern in patterns)
    assert read.question.cluster.num_gpus == job.world_size
    return read


def check_model(shape: Model, found: Model) -> None:
    assert found.qk_head_dim == shape.qk_head_dim
    # Megatron norms queries and keys of latent attention on its own switch.
    spelt = {"head_dim": found.head_dim, "qk_norm": found.qk_norm}
    spelt["num_query_groups"] = found.num_query_groups
    assert found.kv_heads == shape.kv_heads or shape.mla is not None
    named = {"name": shape.name, "source": shape.source}
    assert replace(found, **named) == replace(shape, **spelt)


def check_training_and_recipe(job: Job, read: ImportedLaunch) -> None:
    training = read.question.training
    assert training.global_batch_size == job.training.global_batch_size
    # Frameworks count whole steps.
    more = training.tokens - job.training.tokens
    assert 0 <= more < job.tokens_per_step
    # A recipe's own precision is the training's of the command.
    assert training.precision == job.precision
    assert training.optimizer == job.training.optimizer
    again = replace(read.question, model=job.model, cluster=job.cluster).job(read.recipe)
    assert again.sequence_length == job.sequence_length
    recipe = replace(job.recipe, precision=None)
    # What has no effect is what has none in the framework that is launched.
    wanted = replace(job, training=training, framework=again.framework, recipe=recipe)
    assert canonical(again) == canonical(wanted)


@pytest.mark.parametrize("shipped", [False, True])
@given(data=st.data())
def test_megatron_lm(tmp_path_factory, shipped, data):
    job = data.draw(jobs(SHIPPED) if shipped else jobs())
    read = launched(job, "megatron_lm", tmp_path_factory, replace(BASE, framework=job.framework))
    check_model(job.model, read.question.model)
    check_training_and_recipe(job, read)
    shape, software = job.model, read.question.framework
    # Said only where they mean something.
    of_experts = ("fused_router", "written_dispatch")
    unsaid = {} if shape.moe else {name: getattr(job.framework, name) for name in of_experts}
    unsaid |= {} if shape.position == "rope" else {"fused_rope": job.framework.fused_rope}
    unsaid |= {} if job.recipe.vpp > 1 else {"overlap_p2p": job.framework.overlap_p2p}
    assert replace(software, **unsaid) == job.framework


@given(data=st.data())
def test_megatron_bridge(tmp_path_factory, data):
    job = data.draw(jobs(SHIPPED))
    # What its script exports is no part of the file.
    exported = {name: each.default for name, each in KNOBS.items() if ENVIRONMENT in each.flags}
    job = replace(job, recipe=replace(job.recipe, **exported))
    assume(not megatron_bridge.impossible(job) and not megatron_core.impossible(job))
    assume(not megatron_core.unsupported(job, MEGATRON_BRIDGE))
    assume(not megatron_bridge.unsupported(job))
    kept = tmp_path_factory.mktemp("launch") / "run_config.yaml"
    kept.write_text(yaml.safe_dump(plain(megatron_bridge.configuration(job))))
    base = replace(BASE, framework=job.framework, cluster=job.cluster)
    read = read_launch(str(kept), base, ("framework",), model, framework)
    assert read.framework == "Megatron-Bridge"
    assume(not any(argument.startswith(LAYOUT) for argument, _ in read.reading.not_modelled))
    assert read.reading.not_modelled == ()
    check_model(job.model, read.question.model)
    check_training_and_recipe(job, read)


def plain(value):
    """A configuration as the framework keeps it: names in place of code."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value.text if isinstance(value, Code) else value


def in_its_words(job: Job) -> Job:
    """The job without what TorchTitan has no setting for, so that most that are drawn count."""
    recipe = job.recipe
    shards = recipe.zero_stage if recipe.zero_stage != 1 or recipe.pp > 1 else 3
    changes = {
        "zero_stage": 3 if recipe.cp > 1 and recipe.pp == 1 else shards,
        "overlap_grad_reduce": True,
        "overlap_param_gather": shards in (1, 2),
        "recompute_layers": None,
        "recompute_taper": 0,
        "recompute_modules": "operations" if recipe.recompute == "selective" else None,
        "cp_comm_type": "p2p",
        "use_tp_pp_dp_mapping": False,
        "overlap_moe_expert_parallel_comm": False,
        "precision": "fp32" if recipe.precision == "fp32" else None,
    }
    return replace(job, recipe=replace(recipe, **changes))


@given(jobs((DENSE, *EXPERTS)))
def test_torchtitan(tmp_path_factory, job):
    job = in_its_words(job)
    assume(why_invalid(job) is None)
    # The model and its optimizer are in the module beside the script, which is not read.
    training = replace(BASE.training, optimizer=job.training.optimizer)
    base = replace(BASE, model=job.model, training=training)
    # So is a split of the pipeline that is uneven.
    assume(job.recipe.pp == 1 or equal_chunks(job) is not None)
    read = launched(job, "torchtitan", tmp_path_factory, base)
    assert read.question.model == job.model
    check_training_and_recipe(job, read)
