"""The launch files of a job in one directory: a script per framework, Slurm's, what is what."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainscout.reports.launch import deepspeed, megatron_bridge, megatron_lm, torchtitan
from trainscout.reports.launch.launch import Launch
from trainscout.reports.launch.shell import comment, title_lines
from trainscout.reports.launch.source import template
from trainscout.simulators.predictor.io.command_line import NO_ROOM
from trainscout.simulators.predictor.io.output import write_texts
from trainscout.simulators.predictor.question.errors import InputError, require_choice
from trainscout.simulators.predictor.question.job import Job


def _of_its_framework(launch: Callable[[Job], Launch], job: Job) -> Launch:
    """A launch of the recipe's framework; none where it is another's."""
    made, framework = launch(job), job.framework
    if job.recipe.framework is None or made.framework in framework.launch:
        return made
    others = ", ".join(framework.launch) or "none, start it with its own"
    reason = f"framework={framework.name} (its launch files: {others})"
    return replace(made, impossible=(reason, *made.impossible), files={})


FRAMEWORKS: dict[str, Callable[[Job], Launch]] = {
    "megatron_lm": partial(_of_its_framework, megatron_lm.launch),
    "megatron_bridge": partial(_of_its_framework, megatron_bridge.launch),
    "torchtitan": partial(_of_its_framework, torchtitan.launch),
    "deepspeed": partial(_of_its_framework, deepspeed.launch),
}


def megatron_launch(job: Job) -> Launch:
    """The script for Megatron-LM alone."""
    return FRAMEWORKS["megatron_lm"](job)


def first_launch(job: Job) -> Launch:
    """What starts a job: Megatron-LM, or else the first that starts the framework it names."""
    made = megatron_launch(job)
    if made.impossible and job.recipe.framework is not None:
        return next((each for each in launches(job) if each.script is not None), made)
    return made


def start_script(job: Job, directory: str | None) -> str | None:
    """The script that starts a job, beside the ``directory`` of its launch files; None: there is
    none."""
    made = first_launch(job)
    if made.script is None or made.framework == "megatron_lm":
        return made.script_text
    if directory is None:
        return None
    script = shlex.quote(f"{directory}/{made.script}")
    place = script if Path(directory).is_absolute() else f'"$(dirname "$0")"/{script}'
    return f"""#!/usr/bin/env bash
# Starts it with {made.title}, by the files beside it.
exec bash {place} "$@"
"""


# Whatever each may write: what an earlier recipe left must not stay beside another one's.
_FILES = {
    "megatron_lm": ("megatron_lm.sh",),
    "megatron_bridge": ("megatron_bridge.sh", "megatron_bridge.py"),
    "torchtitan": ("torchtitan.sh", "torchtitan_recipe.py"),
    "deepspeed": ("deepspeed.sh", "deepspeed.json", "deepspeed_train.py"),
}
ALL = "all"
ABOUT = "README.md"


def check_framework(name: str) -> None:
    """Refuse a framework that no launch files are written for."""
    require_choice("launch.framework", name, [ALL, *FRAMEWORKS])


def launches(job: Job, framework: str = ALL) -> tuple[Launch, ...]:
    """How each framework, or the one asked for, launches a valid job.

    Raises:
        InputError: for a framework that is not known.
    """
    check_framework(framework)
    names = FRAMEWORKS if framework == ALL else [framework]
    return tuple(FRAMEWORKS[name](job) for name in names)


def launch_texts(job: Job, found: Sequence[Launch]) -> dict[str, str]:
    """The directory's files by name: those of each launch, Slurm's, and what they are."""
    texts = {name: text for launch in found for name, text in launch.files.items()}
    scripts = [launch.script for launch in found if launch.script is not None]
    if scripts:
        texts[SLURM] = slurm_script(job, scripts[0])
    texts[ABOUT] = _about(job, found)
    return texts


def write_launches(directory: Path, job: Job, found: Sequence[Launch]) -> list[Path]:
    """Write the launch files of a valid job into a directory, which is made; returns their paths.

    Files of the same frameworks that were there before, for another recipe, are removed.

    Raises:
        InputError: when the directory cannot be written.
        OSError: when there is no room for its files.
    """
    texts = launch_texts(job, found)
    try:
        written = write_texts(directory, texts)
        for launch in found:
            for name in set(_FILES[launch.framework]).difference(texts):
                (directory / name).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        problem = f"cannot be written: {error.strerror}"
        raise InputError("launch.directory", str(directory), problem) from error
    return written


def format_launch(found: Sequence[Launch]) -> list[str]:
    """One line per framework: its script and what it runs without, or why there is none."""
    lines = []
    for launch in found:
        if launch.impossible:
            lines.append(f"no {launch.title}: {'; '.join(launch.impossible)}")
        else:
            missing = f", without {'; '.join(launch.unsupported)}" if launch.unsupported else ""
            lines.append(f"{launch.title}: {launch.script}{missing}")
    return lines


def launch_note(found: Sequence[Launch], directory: str, *, whole: bool = True) -> str:
    """The same in one paragraph: what ``directory`` has files for, what they run without, and who
    cannot; why the latter cannot only when ``whole``."""
    able = [launch.title for launch in found if launch.script is not None]
    sentences = [f"{directory} has files for {', '.join([*able, 'Slurm'])}"] if able else []
    unable = [launch for launch in found if launch.impossible]
    if whole:
        for launch in unable:
            sentences.append(f"None for {launch.title}: {'; '.join(launch.impossible)}")
    elif unable:
        names = ", ".join(launch.title for launch in unable)
        sentences.append(f"{names} cannot run it ({directory}README.md says why)")
    for launch in found:
        if launch.unsupported and not launch.impossible:
            sentences.append(f"{launch.title} runs it without {'; '.join(launch.unsupported)}")
    return ". ".join(sentences)


def launch_record(found: Sequence[Launch]) -> dict[str, object]:
    """The same for programs: by framework, ``script`` (None: it cannot), ``files``,
    ``unsupported`` and ``impossible``."""
    return {
        launch.framework: {
            "script": launch.script,
            "files": list(launch.files),
            "unsupported": list(launch.unsupported),
            "impossible": list(launch.impossible),
        }
        for launch in found
    }


def _about(job: Job, found: Sequence[Launch]) -> str:
    lines = ["# Launch files", "", *title_lines(job), ""]
    for launch in found:
        lines += [f"## {launch.title}", ""]
        if launch.impossible:
            lines += ["Cannot run this recipe:", "", *_listed(launch.impossible), ""]
            continue
        lines += [
            f"Run `bash {launch.script}` on every node, or `sbatch {SLURM} {launch.script}`."
        ]
        lines += ["", "To fill in:", "", *_listed(launch.fill_in), ""]
        if launch.unsupported:
            lines += ["What the recipe asks for and it does otherwise:", ""]
            lines += [*_listed(launch.unsupported), ""]
    return "\n".join(lines)


def _listed(words: Sequence[str]) -> list[str]:
    return [textwrap.fill(f"- {word}", 98, subsequent_indent="  ") for word in words]


SLURM = "slurm.sbatch"


def slurm_script(job: Job, script: str) -> str:
    """A batch script; ``script`` is the launch script it runs unless it is told another.

    One task a node starts torchrun there. A run that fails is put back in the queue, where it
    goes on from its last checkpoint, MAX_RESTARTS times (3).
    """
    cluster = job.cluster
    name = "".join(letter if letter.isalnum() else "_" for letter in job.model.name)
    header = [
        *title_lines(job),
        f"From its directory: sbatch {SLURM} [{script}]",
        "Add what your site asks for: --account, --partition, --time, a container.",
    ]
    directives = [
        f"--job-name={name}",
        f"--nodes={cluster.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={cluster.gpus_per_node}",
        "--exclusive",
        "--mem=0",
        "--requeue",
        "--open-mode=append",
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {directive}" for directive in directives),
            *comment(header),
            template("slurm").format(script=script),
        ]
    )
