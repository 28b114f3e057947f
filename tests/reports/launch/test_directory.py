"""What a directory of launch files holds, and what is said about it."""

import subprocess
from dataclasses import replace

import pytest
from hypothesis import given

from tests.reports.dialects.jobs import DENSE, jobs
from tests.samples import job_of
from trainscout.reports.launch.directory import (
    FRAMEWORKS,
    first_launch,
    format_launch,
    launch_note,
    launch_record,
    launch_texts,
    launches,
    start_script,
    write_launches,
)
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.recipe import Recipe

ZERO = Recipe(zero_stage=3, overlap_grad_reduce=True)
PARALLEL = Recipe(tp=2, sp=True)


def test_one_framework_or_all():
    job = job_of(Recipe())
    assert [launch.framework for launch in launches(job)] == list(FRAMEWORKS)
    (only,) = launches(job, "deepspeed")
    assert only.framework == "deepspeed"
    with pytest.raises(InputError, match="did you mean 'megatron_lm'"):
        launches(job, "megatron_lmm")


def test_what_cannot_run_leaves_a_reason_and_no_file(tmp_path):
    job = job_of(Recipe(tp=2, pp=2, sp=True))
    found = launches(job)
    paths = write_launches(tmp_path / "new" / "launch", job, found)
    assert {path.name for path in paths} == {
        "README.md",
        "megatron_bridge.py",
        "megatron_bridge.sh",
        "megatron_lm.sh",
        "slurm.sbatch",
    }
    about = next(path for path in paths if path.name == "README.md").read_text()
    assert "tp=2 (ZeRO alone shards data parallelism)" in about
    assert "position=learned" in about
    note = launch_note(found, "launch/")
    assert note.startswith("launch/ has files for Megatron-LM, Megatron-Bridge, Slurm. None for")
    short = launch_note(found, "launch/", whole=False)
    assert short.endswith("TorchTitan, DeepSpeed cannot run it (launch/README.md says why)")
    assert any(line.startswith("no DeepSpeed: tp=2") for line in format_launch(found))
    record = launch_record(found)
    assert record["deepspeed"]["script"] is None
    assert record["megatron_lm"]["files"] == ["megatron_lm.sh"]


def test_files_of_an_earlier_recipe_do_not_stay(tmp_path):
    plain, parallel = (replace(job_of(recipe), model=DENSE) for recipe in (ZERO, PARALLEL))
    before = write_launches(tmp_path, plain, launches(plain))
    (tmp_path / "mine.sh").write_text("")
    after = write_launches(tmp_path, parallel, launches(parallel))
    gone = {path.name for path in before} - {path.name for path in after}
    assert gone == {"deepspeed.sh", "deepspeed.json", "deepspeed_train.py"}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in after} | {
        "mine.sh"
    }
    # Other frameworks' files stay where one is asked for.
    write_launches(tmp_path, plain, launches(plain, "deepspeed"))
    assert (tmp_path / "megatron_lm.sh").exists()


def test_a_place_that_is_no_directory_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    job = job_of(Recipe())
    with pytest.raises(InputError, match=r"launch\.directory"):
        write_launches(file, job, launches(job))


def test_nothing_to_run_leaves_no_slurm_script():
    job = job_of(Recipe(tp=2))
    assert set(launch_texts(job, launches(job, "deepspeed"))) == {"README.md"}


@given(jobs())
def test_every_file_is_what_its_name_says(job):
    for name, text in launch_texts(job, launches(job)).items():
        assert text.endswith("\n")
        if name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith((".sh", ".sbatch")):
            shell = subprocess.run(
                ["bash", "-n"], input=text, capture_output=True, text=True, check=False
            )
            assert shell.returncode == 0, shell.stderr


def test_names_that_people_give_cannot_break_a_file():
    job = job_of(Recipe(zero_stage=3))
    odd = replace(job, model=replace(job.model, name='my """best"""\\ model\n$(rm -rf x) %'))
    for name, text in launch_texts(odd, launches(odd)).items():
        if name.endswith(".py"):
            compile(text, name, "exec")
        elif name.endswith((".sh", ".sbatch")):
            commands = [line for line in text.splitlines() if not line.startswith("#")]
            assert not any("rm -rf" in line for line in commands)


def test_a_recipe_is_started_by_the_files_of_its_own_framework():
    titan = Framework(name="titan", launch=("torchtitan",), balanced_split=True)
    offered = Framework(name="core", launch=("megatron_lm",), alternatives=(titan,))
    recipe = Recipe(zero_stage=3, framework="titan")
    job = replace(job_of(recipe), model=DENSE, framework=offered)
    assert first_launch(job).framework == "torchtitan"
    assert [launch.framework for launch in launches(job) if launch.script] == ["torchtitan"]
    assert "launch/torchtitan.sh" in (start_script(job, "launch") or "")
    assert start_script(job, None) is None
    core = replace(job, recipe=replace(recipe, framework="core"))
    assert start_script(core, None) == first_launch(core).script_text
    assert first_launch(core).framework == "megatron_lm"
