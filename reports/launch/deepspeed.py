"""The same job under DeepSpeed ZeRO: its JSON, and a script that trains the model with it."""

from __future__ import annotations

import json
from dataclasses import replace

from trainscout.reports.dialects import deepspeed
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.tuning import hugging_face_targets
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, shell_script, title_lines
from trainscout.reports.launch.source import call, python_module, template
from trainscout.simulators.predictor.question.job import Job

_FILL_IN = (
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data, instead of random tokens (deepspeed_train.py)",
    "settings that no speed depends on: learning rate (deepspeed.json), rotary base",
)


def launch(job: Job) -> Launch:
    """The files that launch a valid job under DeepSpeed."""
    made = Launch(
        "deepspeed",
        deepspeed.TITLE,
        _FILL_IN,
        deepspeed.unsupported(job),
        deepspeed.impossible(job),
    )
    if made.impossible:
        return made
    header = made.header(
        job,
        "Runs deepspeed_train.py with deepspeed.json beside it (DeepSpeed 0.19, Transformers 5).",
    )
    program = [('"$here/deepspeed_train.py"',), ('"$@"',)]
    files = {
        "deepspeed.sh": shell_script(header, write_environment(job), [HERE], job, program),
        "deepspeed.json": json.dumps(deepspeed.settings_of(job), indent=2) + "\n",
        "deepspeed_train.py": _script(job),
    }
    return replace(made, files=files)


def _script(job: Job) -> str:
    found = deepspeed.hugging_face(job.model)
    assert found is not None, "launch() asks first"
    name, fields = found
    attention = "eager" if job.attention == "unfused" else "sdpa"
    recompute = ""
    if job.recipe.recompute == "full":
        recompute = "    model.gradient_checkpointing_enable()\n"
    adapted, lora = "", job.training.lora
    if lora is not None:
        arguments = {
            "r": lora.rank,
            "lora_alpha": lora.rank,
            "lora_dropout": lora.dropout,
            "target_modules": hugging_face_targets(job),
            "task_type": "CAUSAL_LM",
        } | ({"use_dora": True} if lora.dora else {})
        adapted = f"    model = get_peft_model(model, {call('LoraConfig', arguments, 4)})\n"
        # The input of a recomputed layer must ask for a gradient.
        adapted += "    model.enable_input_require_grads()\n" if recompute else ""
    body = template("deepspeed").format(
        adapted=adapted,
        trained=_TRAINED if lora is not None else "model.parameters()",
        sequence=job.sequence_length,
        tokens=int(job.training.tokens),
        config=call(name, {**fields, "attn_implementation": attention}, 4),
        recompute=recompute,
    )
    known = {
        "argparse": (),
        "json": (),
        "math": (),
        "os": (),
        "time": (),
        "pathlib": ("Path",),
        "deepspeed": (),
        "torch": (),
        "torch.distributed": ("get_rank",),
        "peft": ("LoraConfig", "get_peft_model"),
        "transformers": ("AutoModelForCausalLM", name),
    }
    about = "Trains with deepspeed.json; deepspeed.sh starts it."
    return python_module([*title_lines(job), "", about], known, body)


_TRAINED = "[each for each in model.parameters() if each.requires_grad]"
