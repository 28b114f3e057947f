"""The same job under TorchTitan 0.3: a module with the model, and arguments with the recipe."""

from __future__ import annotations

from dataclasses import replace

from trainscout.reports.dialects import torchtitan
from trainscout.reports.dialects.environment import write_environment
from trainscout.reports.dialects.setting import command_options
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import HERE, RESUME, resumed, shell_script
from trainscout.reports.launch.torchtitan_model import module_source
from trainscout.simulators.predictor.question.job import Job

MODULE = "torchtitan_recipe"
_FILL_IN = (
    "the folder of the tokenizer (ASSETS=) and the data (--dataloader.dataset)",
    "the directory of checkpoints (CHECKPOINTS=), to save to and go on from",
    "settings that no speed depends on: learning rate, rotary base (torchtitan_recipe.py)",
)
_CHECKPOINTS = (
    '--checkpoint.enable --checkpoint.folder "$CHECKPOINTS" '
    '--checkpoint.interval "${SAVE_INTERVAL:-500}"'
)


def launch(job: Job) -> Launch:
    """The files that launch a valid job under TorchTitan."""
    made = Launch(
        "torchtitan",
        torchtitan.TITLE,
        _FILL_IN,
        torchtitan.unsupported(job),
        torchtitan.impossible(job),
    )
    if made.impossible:
        return made
    header = made.header(
        job, f"Runs TorchTitan 0.3 with {MODULE}.py beside it; arguments override both."
    )
    path = 'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"'
    program = [
        ("-m", "torchtitan.train"),
        ("--module", MODULE),
        ("--config", "recipe"),
        *command_options(torchtitan.settings_of(job)),
        ("--hf-assets-path", '"${ASSETS:-./assets/hf}"'),
        (RESUME,),
        ('"$@"',),
        # What comes after a choice of recomputation are its own settings: it stands last.
        (f"activation-checkpoint:{job.recipe.recompute}",),
    ]
    preparation = [HERE, path, *resumed(_CHECKPOINTS)]
    script = shell_script(header, write_environment(job), preparation, job, program)
    files = {"torchtitan.sh": script, f"{MODULE}.py": module_source(job)}
    return replace(made, files=files)
