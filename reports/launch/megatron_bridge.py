"""The same job under Megatron-Bridge: NVIDIA's training loop, NeMo's since 2025."""

from __future__ import annotations

from dataclasses import replace

from trainscout.reports.dialects import megatron_bridge, megatron_core
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.setting import Code
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, shell_script, title_lines
from trainscout.reports.launch.source import TEMPLATES, call, python_module, template
from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import MEGATRON_BRIDGE

_FILL_IN = (
    "settings that no speed depends on (optimizer.lr, model.rotary_base)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data and tokenizer (dataset.blend, tokenizer)",
)
_ABOUT = {
    "PRETRAINED": "the checkpoint to start from (PRETRAINED=), in Megatron's format",
    "DATASET": "the directory of the data to pack (DATASET=)",
    "TEACHER": "the teacher, on the Hub or as its directory (TEACHER=)",
}
_CLASSES = {
    "train": "TrainingConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dist": "DistributedInitConfig",
    "comm_overlap": "CommOverlapConfig",
    "mixed_precision": "MixedPrecisionConfig",
    "dataset": "GPTDatasetConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "rng": "RNGConfig",
    "rerun_state_machine": "RerunStateMachineConfig",
}


def launch(job: Job) -> Launch:
    """The files that launch a valid job under Megatron-Bridge."""
    made = Launch(
        "megatron_bridge",
        megatron_bridge.TITLE,
        (*_FILL_IN, *(_ABOUT[name] for name in _places(job))),
        megatron_core.unsupported(job, MEGATRON_BRIDGE) + megatron_bridge.unsupported(job),
        megatron_core.impossible(job) + megatron_bridge.impossible(job),
    )
    if made.impossible:
        return made
    recent = job.recipe.fp8_output_proj or megatron_bridge.adapts_each(job)
    version = "0.6" if recent else "0.3"
    header = made.header(
        job,
        f"Runs megatron_bridge.py beside it, with Megatron-Bridge {version}, NeMo's training.",
        "Arguments override its configuration: train.train_iters=10",
    )
    environment = megatron_core.environment(job) | write_environment(job)
    if megatron_bridge.fuses_experts(job):
        environment["NVTE_CUTEDSL_FUSED_GROUPED_MLP"] = "1"
    program = [('"$here/megatron_bridge.py"',), ('"$@"',)]
    script = shell_script(header, environment, [HERE], job, program)
    return replace(made, files={"megatron_bridge.sh": script, "megatron_bridge.py": _module(job)})


def _module(job: Job) -> str:
    lora = job.training.lora
    classes = {
        "model": "GPTModelProvider" if job.model.mla is None else "MLAModelProvider",
        "peft": "DoRA" if lora is not None and lora.dora else "LoRA",
        **_CLASSES,
        **({"dataset": "FinetuningDatasetConfig"} if job.training.packed_lengths else {}),
    }
    sections = {
        name: Code(call(classes[name], fields, 8))
        for name, fields in megatron_bridge.configuration(job).items()
    }
    sections["logger"] = Code("LoggerConfig(log_interval=1)")
    tunes = megatron_bridge.is_finetuning(job)
    distils = job.training.distillation is not None
    body = template("megatron_bridge").format(
        config=call("ConfigContainer", sections, 4),
        run=_RUN.format("finetune" if tunes else "pretrain") if not distils else _DISTIL,
        taught=template("distillation") if distils else "",
        places="".join(f'{name} = os.environ["{name}"]\n' for name in _places(job)),
    )
    known = read_yaml(TEMPLATES / "megatron_bridge_imports.yaml")
    about = "A Megatron-Bridge configuration and what runs it; megatron_bridge.sh starts it."
    return python_module([*title_lines(job), "", about], known, body)


def _places(job: Job) -> list[str]:
    """What whoever starts it must say where to find."""
    packed = ["DATASET"] if job.training.packed_lengths else []
    taught = ["TEACHER"] if job.training.distillation is not None else []
    return (["PRETRAINED"] if megatron_bridge.is_finetuning(job) else []) + packed + taught


_RUN, _DISTIL = "{}(config, forward_step)", "distill(taught(config))"
