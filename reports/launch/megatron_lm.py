"""The script that starts a job under Megatron-LM, on mock data as printed."""

from __future__ import annotations

from dataclasses import replace

import yaml

from trainscout.reports.dialects import megatron_core, megatron_hybrid, megatron_lm
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.setting import command_options
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, RESUME, resumed, shell_script
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knob import MEGATRON_LM

_FILL_IN = (
    "settings that no speed depends on (--lr, --rotary-base)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "data and tokenizer (--mock-data, --tokenizer-type)",
)
_PRECISION = "te_precision.yaml"
_CHECKPOINTS = (
    '--save "$CHECKPOINTS" --load "$CHECKPOINTS" --save-interval "${SAVE_INTERVAL:-500}"'
)


def launch(job: Job) -> Launch:
    """The script to run in a checkout of Megatron-LM, on every node, for a valid job."""
    made = Launch(
        "megatron_lm",
        megatron_lm.TITLE,
        _FILL_IN,
        megatron_core.unsupported(job, MEGATRON_LM) + megatron_lm.unsupported(job),
        megatron_core.impossible(job) + megatron_lm.impossible(job),
    )
    if made.impossible:
        return made
    program = "pretrain_mamba.py" if megatron_hybrid.is_hybrid(job.model) else "pretrain_gpt.py"
    words = [(program,), *command_options(megatron_lm.settings_of(job))]
    before, files = resumed(_CHECKPOINTS), {}
    if own := megatron_core.module_precision(job):
        words.append((f'--te-precision-config-file "$here/{_PRECISION}"',))
        before = [HERE, *before]
        files[_PRECISION] = yaml.safe_dump(own, sort_keys=False)
    script = shell_script(
        made.header(job, "Runs in a checkout of Megatron-LM (core 0.13 or later)."),
        megatron_core.environment(job) | write_environment(job),
        before,
        job,
        [*words, (RESUME,)],
    )
    return replace(made, files={"megatron_lm.sh": script, **files})
