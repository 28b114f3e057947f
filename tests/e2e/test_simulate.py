import json
import subprocess

import pytest

from tests.e2e.commands import command, environment, run

SHAPE = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"]
FITTING = [*SHAPE, "recipe.tp=4", "recipe.pp=2", "recipe.sp=true", "recipe.recompute=selective"]


def test_json_is_one_object_and_nothing_else(tmp_path):
    done = run("simulate.py", *FITTING, "format=json", cwd=tmp_path)
    assert done.stderr == ""
    prediction = json.loads(done.stdout)  # fails on anything before or after the object
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_time_s"])
    assert prediction["fits"] is True
    assert 0 < prediction["mfu"] <= prediction["hfu"] < 1
    tokens = 64 * 2048
    assert prediction["tokens_per_s"] == pytest.approx(tokens / prediction["step_time_s"])
    assert prediction["tokens_per_s_per_gpu"] == pytest.approx(prediction["tokens_per_s"] / 8)
    assert prediction["cost_per_step_usd"] > 0
    memory = prediction["memory"]
    assert 0 < memory["peak_allocated_bytes"] <= memory["peak_reserved_bytes"]
    assert [stage["stage"] for stage in memory["per_stage"]] == [0, 1]
    for stage in memory["per_stage"]:
        assert stage["kind"]["parameters"] > 0
    assert not list(tmp_path.iterdir())


def test_the_table_is_for_people(tmp_path):
    done = run("simulate.py", *FITTING, cwd=tmp_path)
    for shown in ("gpt13b on a800_8 (8 x a800_80)", "tp4 pp2 dp1", "MFU", "fits:", "compute"):
        assert shown in done.stdout
    assert "\x1b" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [[*FITTING, "format=json"], ["--help"]], ids=["json", "help"]
)
def test_a_reader_that_leaves_early_is_no_failure(tmp_path, arguments):
    process = subprocess.Popen(
        command("simulate.py", *arguments),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 0


def test_launch_files_are_written_where_asked(tmp_path):
    place = "launch.directory=new/launch"
    done = run("simulate.py", *FITTING, place, cwd=tmp_path)
    assert "Launch files in new/launch:" in done.stdout
    assert "no DeepSpeed: tp=4" in done.stdout
    text = (tmp_path / "new" / "launch" / "megatron_lm.sh").read_text()
    assert "--tensor-model-parallel-size 4 " in text
    done = run("simulate.py", *FITTING, place, "format=json", cwd=tmp_path)
    launch = json.loads(done.stdout)["launch"]
    assert launch["megatron_bridge"]["script"] == "megatron_bridge.sh"
    assert launch["deepspeed"]["script"] is None
    assert any("tp=4" in reason for reason in launch["deepspeed"]["impossible"])


def test_running_out_of_memory_is_an_answer(tmp_path):
    done = run(
        "simulate.py",
        "model=gpt175b",
        "cluster=a800_8",
        "recipe.tp=8",
        "format=json",
        cwd=tmp_path,
    )
    prediction = json.loads(done.stdout)
    assert prediction["fits"] is False
    assert prediction["memory"]["headroom_bytes"] < 0


def test_a_sweep_predicts_every_recipe(tmp_path):
    done = run("simulate.py", "-m", *SHAPE, "recipe.tp=4,8", cwd=tmp_path)
    assert "tp4 pp1 dp2" in done.stdout
    assert "tp8 pp1 dp1" in done.stdout


def test_debug_shows_the_traceback_too(tmp_path):
    done = run("simulate.py", *SHAPE, "recipe.tp=3", "debug=true", cwd=tmp_path, code=2)
    assert "Traceback" in done.stderr
    assert "does not divide" in done.stderr.splitlines()[-1]


def test_a_timeline_is_written_only_where_asked(tmp_path):
    file = tmp_path / "step.json"
    run("simulate.py", *FITTING, f"timeline.file={file}", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step.json"]
    events = json.loads(file.read_text())["traceEvents"]
    assert {"launch", "qkv_fwd", "update"} <= {event["name"] for event in events}
