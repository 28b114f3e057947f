"""From measured runs to calibrated predictions, the way a user goes."""

import csv
import json
import subprocess
import sys
from dataclasses import replace

import pytest

import trainscout as ts
from tests.e2e.commands import ROOT, SMALLEST, environment, run
from tests.in_process import command
from trainscout.simulators.laboratory.published.jobs.jobs import shipped_declarations
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.registry import get_simulator

main = command("calibrate")

SHAPE = {
    "gpu": "a800_80",
    "gpus_per_node": 8,
    "framework": "Megatron-LM core_r0.9.0",
    "model": "GPT",
    "num_layers": 40,
    "hidden": 5120,
    "num_heads": 40,
    "ffn_hidden": 20480,
    "vocab": 51200,
    "seq_len": 2048,
    "gated_mlp": 0,
    "cp": 1,
    "vpp": 1,
    "sp": 1,
    "global_batch": 64,
    "recompute": "selective",
    "dist_optimizer": 1,
    "dtype": "bf16",
    "tp_overlap": 0,
    "grad_overlap": 0,
}
LAYOUTS = [(8, 1, 1), (8, 1, 2), (4, 2, 1), (4, 2, 2), (8, 1, 4)]


def write_runs(path, seconds, layouts=LAYOUTS, **changes):
    rows = [
        {
            **SHAPE,
            "id": f"run{number}",
            "num_gpus": 8,
            "tp": tp,
            "pp": pp,
            "dp": 1,
            "micro_batch": size,
            "measured_iter_s": measured_s,
            **changes,
        }
        for number, ((tp, pp, size), measured_s) in enumerate(zip(layouts, seconds, strict=True))
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def simulate(tmp_path, *arguments):
    shape = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64", "format=json"]
    recipe = ["recipe.tp=8", "recipe.sp=true", "recipe.recompute=selective"]
    done = run("simulate.py", *shape, *recipe, *arguments, cwd=tmp_path)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def predicted_s(tmp_path_factory):
    """What the predictor says of the five runs."""
    path = tmp_path_factory.mktemp("predicted") / "runs.csv"
    write_runs(path, [1.0] * 5)
    declarations = shipped_declarations()
    results = replay_rows(read_rows(path), declarations, get_simulator("replay"), lambda: None)
    return [result.prediction.step_time_s for result in results]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory, predicted_s):
    """A directory with a calibration from runs that all took 20 % longer than predicted."""
    directory = tmp_path_factory.mktemp("calibrated")
    write_runs(directory / "runs.csv", [1.2 * seconds for seconds in predicted_s])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "trainscout",
            "calibrate",
            str(directory / "runs.csv"),
        ],
        cwd=directory,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return directory, done.stdout


def test_the_command_shows_the_error_before_and_after(calibrated):
    directory, shown = calibrated
    assert "calibrated without it" in shown
    assert "mean, absolute" in shown
    assert "whole steps on a800_80, megatron_core" in shown
    assert "from runs.csv" in (directory / "calibration.yaml").read_text()


def test_a_calibrated_prediction_moves_and_gets_a_narrower_bar(calibrated):
    directory, _ = calibrated
    plain = simulate(directory)
    moved = simulate(directory, "simulator.calibration=calibration.yaml")
    assert moved["step_time_s"] / plain["step_time_s"] == pytest.approx(1.2, rel=0.04)
    low, high = moved["interval_s"]
    assert low < moved["step_time_s"] < high
    assert high / low < plain["interval_s"][1] / plain["interval_s"][0]
    assert any("calibrated on 5 runs" in text for text in moved["assumptions"])


def test_a_cluster_may_name_its_calibration(calibrated):
    directory, _ = calibrated
    named = simulate(directory, "cluster.calibration=calibration.yaml")
    assert named == simulate(directory, "simulator.calibration=calibration.yaml")
    cluster = ts.catalogue().clusters["a800_8"]
    file = str(directory / "calibration.yaml")
    asked = ts.question("gpt13b", "a800_8", calibration=file, global_batch_size=64)
    assert asked.cluster == replace(cluster, calibration=file)
    step = ts.predict(asked, tp=8, sp=True, recompute="selective")
    assert step.step_time_s == pytest.approx(named["step_time_s"])


@pytest.mark.parametrize("executor", ["serial", "loky"])
def test_a_search_uses_the_calibration_in_every_worker(calibrated, tmp_path, executor, capsys):
    directory, _ = calibrated
    file = directory / "calibration.yaml"
    run(
        "optimize.py",
        *(each for each in SMALLEST if not each.startswith("executor")),
        f"executor={executor}",
        "search.n_trials=8",
        "tracking=none",
        f"simulator.calibration={file}",
        "hydra.run.dir=out",
        cwd=tmp_path,
    )
    best = json.loads((tmp_path / "out" / "top_recipes.json").read_text())[0]
    assert any("calibrated on 5 runs" in text for text in best["prediction"]["assumptions"])
    low, high = best["prediction"]["interval_s"]
    assert 0 < low < high
    if executor == "serial":
        shown = suggested(tmp_path, file, capsys)
        assert "2 short runs (30 steps each) take" in shown
        assert f"those of {tmp_path / 'out'}" in " ".join(shown.split())


def suggested(directory, calibration, capsys):
    capsys.readouterr()
    asked = ["suggest", str(directory), "--runs", "2", "--calibration", str(calibration)]
    assert main(asked) == 0
    return capsys.readouterr().out


def test_a_calibration_of_another_gpu_is_bad_input(calibrated, tmp_path):
    directory, _ = calibrated
    file = directory / "calibration.yaml"
    for program in ("simulate.py", "optimize.py"):
        chosen = ["model=llama3_8b", "cluster=h100_64", f"simulator.calibration={file}"]
        done = run(program, *chosen, cwd=tmp_path, code=2)
        assert "was made for a800_80" in done.stderr
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_rows_on_other_gpus_are_validated_as_they_come(calibrated, tmp_path, capsys):
    directory, _ = calibrated
    write_runs(tmp_path / "runs.csv", [9.0], LAYOUTS[:1], gpu="h100")
    asked = [str(tmp_path / "runs.csv"), "--json", str(tmp_path / "out.json")]
    assert command("validate")([*asked, "--calibration", f"{directory}/calibration.yaml"]) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert "not calibrated: that is of a800_80" in row["assumptions"]
    capsys.readouterr()


def test_one_mistake_in_all_rows_is_said_once(tmp_path, capsys):
    row = "lama3_8b,64xH100,1,5\n"
    (tmp_path / "runs.csv").write_text("model,gpus,tp,step_time_s\n" + 6 * row)
    assert main([str(tmp_path / "runs.csv")]) == 2
    stated = capsys.readouterr().err
    assert "line 5, line 6, ...: model=lama3_8b" in stated
    assert stated.count("did you mean 'llama3_8b'") == 1


GIVEN = "--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --sequence-parallel"
SETTINGS = ("model=gpt13b", "cluster=a800_8", "global_batch_size=64", "recompute=selective")


def logged(tmp_path, factor, layouts=((8, 1), (4, 2))):
    """Options for logs of runs that took ``factor`` times what is predicted."""
    options = [each for text in SETTINGS for each in ("--set", text)]
    asked = ts.question("gpt13b", "a800_8", global_batch_size=64)
    for tp, pp in layouts:
        step = ts.predict(asked, tp=tp, pp=pp, sp=True, recompute="selective")
        ms = 1e3 * factor * step.step_time_s
        path = tmp_path / f"tp{tp}.log"
        path.write_text(
            "".join(
                f" iteration {n:8d}/ 500 | elapsed time per iteration (ms): {ms:.1f} |\n"
                for n in range(1, 9)
            )
        )
        options += ["--from-log", str(path), "--given", GIVEN.format(tp=tp, pp=pp)]
    return options


def test_logs_with_what_was_launched_are_enough(tmp_path, capsys):
    output = tmp_path / "ours.yaml"
    assert main([*logged(tmp_path, 1.15), "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "tp8.log: 1 of 8 steps are warm-up" in shown
    assert "from tp8.log (Megatron-LM, 7 steps)" in output.read_text()
    # As they were: inside; a third longer: outside.
    watch = ["watch", "--calibration", str(output)]
    assert main([*watch, *logged(tmp_path, 1.15)]) == 0
    assert "All runs are inside their error bars" in capsys.readouterr().out
    assert main([*watch, *logged(tmp_path, 1.5)]) == 1
    assert "whole steps x 1.3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ([], "runs=None: is missing"),
        (["--given", "x.sh"], "--from-log LOG beside it"),
        (["--from-log", "no.log"], "model=None: is missing"),
        (["--from-log", "no.log", "--set", "model"], "is no setting"),
        (["--from-log", "no.log", *(e for t in SETTINGS for e in ("--set", t))], "cannot be read"),
    ],
)
def test_sources_that_leave_something_open_are_refused(tmp_path, capsys, options, stated):
    assert main([*options, "--output", str(tmp_path / "out.yaml")]) == 2
    assert stated in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.yaml").exists()


def refused(tmp_path, capsys, *arguments):
    code = main([str(tmp_path / "runs.csv"), "--output", str(tmp_path / "out.yaml"), *arguments])
    assert code == 2
    assert not (tmp_path / "out.yaml").exists()
    return capsys.readouterr().err


def test_one_run_says_nothing_of_others(tmp_path, capsys, predicted_s):
    write_runs(tmp_path / "runs.csv", [1.2 * predicted_s[0]], LAYOUTS[:1])
    output = tmp_path / "out.yaml"
    assert main([str(tmp_path / "runs.csv"), "--output", str(output)]) == 1
    assert "One run says nothing of others" in capsys.readouterr().out
    assert not output.exists()


def test_runs_without_a_time_are_refused(tmp_path, capsys):
    write_runs(tmp_path / "runs.csv", [""] * 5)
    assert "none can be predicted" in refused(tmp_path, capsys)


@pytest.mark.parametrize("factor", [1000, 5, 0.2])
def test_another_unit_is_refused(tmp_path, capsys, predicted_s, factor):
    write_runs(tmp_path / "runs.csv", [factor * seconds for seconds in predicted_s])
    assert "step times in seconds" in refused(tmp_path, capsys)


def test_corrections_that_do_not_help_are_not_written(tmp_path, capsys, predicted_s):
    off = (1.3, 0.75, 1.25, 0.8, 1.0)
    write_runs(tmp_path / "runs.csv", [f * s for f, s in zip(off, predicted_s, strict=True)])
    old = tmp_path / "out.yaml"
    old.write_text("what was there")
    assert main([str(tmp_path / "runs.csv"), "--output", str(old)]) == 1
    shown = capsys.readouterr().out
    assert "nothing written" in shown
    assert "Written to" not in shown
    assert old.read_text() == "what was there"


def test_the_runs_are_not_written_over(tmp_path, capsys, predicted_s):
    path = tmp_path / "runs.csv"
    write_runs(path, [1.2 * seconds for seconds in predicted_s])
    before = path.read_text()
    assert main([str(path), "--output", str(path)]) == 2
    assert "is the same file as" in capsys.readouterr().err
    assert path.read_text() == before


def test_a_launch_script_that_describes_its_model_needs_no_other(tmp_path):
    from trainscout.simulators.laboratory.calibration.questions import job_of_settings
    from trainscout.simulators.predictor.question.errors import InputError

    shape = "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
    launch = f"torchrun pretrain_gpt.py {shape} --global-batch-size 64 --micro-batch-size 1"
    job = job_of_settings({"cluster": "h100_64"}, f"{launch} --num-layers 24")
    assert (job.model.num_layers, job.model.hidden_size) == (24, 4096)
    # One that leaves it open does.
    with pytest.raises(InputError, match="model=None: is missing"):
        job_of_settings({"cluster": "h100_64"}, launch.replace(shape, ""))
