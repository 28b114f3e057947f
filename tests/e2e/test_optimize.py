import csv
import io
import json
import re
import subprocess

import pytest

from tests.e2e.commands import SMALL, SMALLEST, command, environment, run
from tests.in_process import run_here
from trainscout.simulators.predictor.question.recipe import KNOBS


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """One small search, tracked in MLflow: the process and its one run directory."""
    cwd = tmp_path_factory.mktemp("search")
    done = run("optimize.py", *SMALL, "search=tpe", "search.n_trials=40", cwd=cwd)
    (directory,) = (cwd / "outputs" / "gpt13b-a800_8").iterdir()
    return done, directory


def test_the_answer_is_shown_and_kept(searched):
    done, directory = searched
    lines = done.stdout.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    begin = [line.split("  ")[0] for line in lines]
    for shown in ("Run", "Step", "Cost", "Memory", "Otherwise", "Sure", "Start", "Look"):
        assert shown in begin
    assert "(length assumed)" in lines[0]
    start = next(line for line in lines if line.startswith("Start"))
    assert start.split()[-1] == str((directory / "launch.sh").relative_to(directory.parents[2]))
    # The file has all there is to say.
    report = (directory / "report.txt").read_text("utf-8")
    for kept in ("Best recipes", "against memory", "Why #1", "Error bar", "Trials"):
        assert kept in report
        assert kept not in done.stdout
    assert "--tensor-model-parallel-size" in report
    assert "--tensor-model-parallel-size" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_top_recipes_are_best_first_and_fit(searched):
    rows = json.loads((searched[1] / "top_recipes.json").read_text())
    assert 1 < len(rows) <= 10
    costs = [row["prediction"]["cost_of_run_usd"] for row in rows]
    assert costs == sorted(costs)
    for row in rows:
        recipe, prediction = row["recipe"], row["prediction"]
        assert prediction["fits"]
        assert recipe["tp"] * recipe["pp"] * recipe["dp"] * recipe["cp"] == 8
        total = sum(prediction["breakdown_s"].values())
        assert total == pytest.approx(prediction["step_time_s"])


def test_every_point_asked_is_one_row(searched):
    rows = list(csv.DictReader(io.StringIO((searched[1] / "trials.csv").read_text())))
    by_status: dict[str, int] = {}
    for row in rows:
        by_status[row["status"]] = by_status.get(row["status"], 0) + 1
    assert set(by_status) <= {"ok", "tight", "oom", "pruned", "invalid", "failed"}
    assert sum(count for status, count in by_status.items() if status != "invalid") == 40
    considered = [row for row in rows if row["status"] != "invalid"]
    assert len({tuple(row[name] for name in KNOBS) for row in considered}) == 40
    for row in considered:
        assert (row["step_time_s"] != "") == (row["status"] in ("ok", "tight", "oom"))


def test_the_page_has_the_same_answer(searched):
    page = (searched[1] / "report.html").read_text("utf-8")
    text = re.search(r'<script type="application/json" id="record">(.*?)</script>', page)[1]
    record = json.loads(text)
    best = json.loads((searched[1] / "top_recipes.json").read_text())
    with (searched[1] / "trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    # The best, then what else there is to decide between: the layouts of the first screen.
    shown = [row["step_time_s"] for row in record["recipes"]]
    assert shown[0] == best[0]["prediction"]["step_time_s"]
    fitting = {float(row["step_time_s"]) for row in trials if row["status"] == "ok"}
    assert shown == sorted(shown)
    assert fitting.issuperset(shown)
    others = [line.split("  ")[0] for line in searched[0].stdout.splitlines() if " x PP " in line]
    assert len(shown) <= len(others)
    assert record["trials"]["count"] == len(trials)
    assert record["launch"][0]["text"] == (searched[1] / "launch.sh").read_text()


def test_the_best_recipe_is_what_simulate_predicts(searched, tmp_path):
    best = json.loads((searched[1] / "top_recipes.json").read_text())[0]
    recipe = [
        f"recipe.{name}={'null' if value is None else value}"
        for name, value in best["recipe"].items()
        if name != "dp"
    ]
    done = run("simulate.py", *SMALL[:3], *recipe, "format=json", cwd=tmp_path)
    predicted = json.loads(done.stdout)
    assert predicted.pop("evidence") == best["evidence"]
    assert predicted.pop("model")["name"] == "gpt13b"
    assert predicted == best["prediction"]


def test_the_launch_script_is_valid_shell(searched):
    script = searched[1] / "launch.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    best = json.loads((searched[1] / "top_recipes.json").read_text())[0]["recipe"]
    assert f"--tensor-model-parallel-size {best['tp']} " in script.read_text()


def test_launch_files_of_every_framework_that_can(searched):
    _, directory = searched
    assert "launch/" in (directory / "report.txt").read_text("utf-8")
    scripts = sorted((directory / "launch").glob("*.s*"))
    assert {"megatron_lm.sh", "megatron_bridge.sh", "slurm.sbatch"} <= {s.name for s in scripts}
    for script in scripts:
        subprocess.run(["bash", "-n", str(script)], check=True)
    same = directory / "launch" / "megatron_lm.sh"
    assert (directory / "launch.sh").read_text() == same.read_text()


@pytest.mark.parametrize("storage", [[], ["search.storage=another.journal"]])
def test_results_are_not_written_over_those_of_another_search(searched, storage, tmp_path):
    _, directory = searched
    done = run_here("optimize", *SMALL, *storage, f"hydra.run.dir={directory}", cwd=tmp_path)
    assert done.returncode == 2
    assert "already holds a search" in done.stderr


def test_the_search_is_in_mlflow(searched):
    done, directory = searched
    assert "Tracked: sqlite:///mlflow.db" in done.stdout
    from mlflow.tracking import MlflowClient

    cwd = directory.parents[2]
    client = MlflowClient(tracking_uri=f"sqlite:///{cwd}/mlflow.db")
    experiment = client.get_experiment_by_name("trainscout")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    rows = json.loads((directory / "top_recipes.json").read_text())
    # The recipes that the report compares, ranked as there.
    ranks = sorted(int(run.data.tags["rank"]) for run in children)
    assert ranks == [*range(1, len(children) + 1)]
    assert len({(run.data.params["tp"], run.data.params["pp"]) for run in children}) > 1
    first = next(run for run in children if run.data.tags["rank"] == "1")
    assert first.data.params["tp"] == str(rows[0]["recipe"]["tp"])
    step_time_s = rows[0]["prediction"]["step_time_s"]
    assert first.data.metrics["step_time_s"] == pytest.approx(step_time_s)
    assert parent.data.params["model.name"] == "gpt13b"
    assert parent.data.tags["cluster"] == "a800_8"
    names = {file.path for file in client.list_artifacts(parent.info.run_id)}
    # All that it left but its own state.
    left = {path.name for path in directory.iterdir()}
    assert names == left - {"trials.journal", ".hydra"}
    inside = {file.path for file in client.list_artifacts(parent.info.run_id, "launch")}
    assert inside == {f"launch/{path.name}" for path in (directory / "launch").iterdir()}
    assert "report.html" in names


def test_the_answer_does_not_depend_on_the_workers(searched, tmp_path):
    arguments = [*SMALL[:-1], "executor=loky", "executor.n_jobs=2", "search=tpe"]
    arguments.append("search.n_trials=40")
    run("optimize.py", *arguments, "tracking=none", cwd=tmp_path)
    (path,) = tmp_path.glob("outputs/*/*/top_recipes.json")
    assert path.read_text() == (searched[1] / "top_recipes.json").read_text()
    assert not (tmp_path / "mlflow.db").exists()


@pytest.fixture(scope="module")
def as_data(tmp_path_factory):
    """The same small search for programs, twice in a multirun: the process and its folder."""
    cwd = tmp_path_factory.mktemp("data")
    arguments = ["-m", *SMALLEST, "search.n_trials=10,12", "tracking=none", "format=json"]
    return run("optimize.py", *arguments, cwd=cwd), cwd


def test_data_is_alone_on_stdout(as_data):
    done, cwd = as_data
    decoder, rest, found = json.JSONDecoder(), done.stdout, []
    while rest.strip():
        record, end = decoder.raw_decode(rest)
        found.append(record)
        rest = rest[end:].lstrip()
    assert [
        sum(record["counts"][s] for s in ("ok", "tight", "oom", "pruned")) for record in found
    ] == [
        10,
        12,
    ]
    for record in found:
        kept = json.loads((cwd / record["directory"] / "top_recipes.json").read_text("utf-8"))
        assert record["recipes"] == kept
        assert {"report.html", "launch.sh", "launch/README.md"} <= set(record["files"])
        assert all((cwd / record["directory"] / name).is_file() for name in record["files"])
    assert "Launching 2 jobs" in done.stderr


def test_a_reader_that_leaves_ends_nothing_badly(as_data):
    _, cwd = as_data
    arguments = [*SMALLEST, "search.n_trials=10", "tracking=none", "format=json"]
    with subprocess.Popen(
        command("optimize.py", *arguments),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.read(20)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(timeout=120) == 0


def test_quiet_says_the_answer_and_nothing_else(tmp_path):
    arguments = [*SMALLEST, "search.n_trials=10", "tracking=none", "verbosity=quiet"]
    done = run("optimize.py", *arguments, cwd=tmp_path)
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines()[1:] if not line.startswith(" ")]
    labels = {line.split("  ")[0] for line in lines if "  " in line}
    figures = {"recipe", "step time", "MFU / HFU", "throughput", "memory", "cost", "launch"}
    # A claim beyond what was ever published is part of the answer too.
    assert figures <= labels <= {*figures, "measure first"}
    assert done.stdout.splitlines()[-1].startswith("launch      bash outputs/gpt13b-a800_8/")


def test_nothing_found_for_programs_is_said_beside_the_data(tmp_path):
    arguments = ["model=gpt175b", "cluster=a800_8", "executor=serial", "search.timeout_s=1e-6"]
    done = run("optimize.py", *arguments, "tracking=none", "format=csv", cwd=tmp_path, code=1)
    assert len(done.stdout.splitlines()) == 1
    assert "No recipe was looked at" in done.stderr
    assert "search.timeout_s" in done.stderr


def test_several_objectives_give_a_front(tmp_path):
    arguments = [*SMALL, "objective=time_memory", "search=nsga2", "search.n_trials=40"]
    done = run("optimize.py", *arguments, "tracking=none", cwd=tmp_path)
    assert "Pareto-optimal recipes" in done.stdout
    (path,) = tmp_path.glob("outputs/*/*/top_recipes.json")
    front = [row["prediction"] for row in json.loads(path.read_text())]
    pairs = [(p["step_time_s"], p["memory"]["peak_reserved_bytes"]) for p in front]
    for one in pairs:
        assert not any(other[0] < one[0] and other[1] < one[1] for other in pairs)


def test_nothing_fits_says_what_was_closest(tmp_path):
    arguments = ["model=gpt175b", "cluster=a800_8", "executor=serial", "space=moye"]
    done = run("optimize.py", *arguments, "tracking=none", cwd=tmp_path, code=1)
    assert "No recipe fits" in done.stdout
    assert "Closest miss" in done.stdout
    assert "GiB on stage" in done.stdout
    stated = " ".join(done.stdout.split())
    assert "Would fit (simulated): cluster.num_nodes=" in stated
    (directory,) = tmp_path.glob("outputs/*/*")
    assert json.loads((directory / "top_recipes.json").read_text()) == []


def test_a_dead_tracking_server_costs_a_warning(tmp_path):
    arguments = [*SMALLEST, "search.n_trials=20", "tracking.uri=http://127.0.0.1:9"]
    done = run("optimize.py", *arguments, cwd=tmp_path)
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "http://127.0.0.1:9" in warning
    assert "refused" in warning
    assert list(tmp_path.glob("outputs/*/*/top_recipes.json"))


def test_an_exact_search_shows_and_keeps_its_proof(tmp_path):
    arguments = [*SMALL, "space=moye", "tracking=none", "verbosity=verbose"]
    done = run("optimize.py", *arguments, cwd=tmp_path)
    stated = " ".join(done.stdout.split())
    assert "Proof: No other recipe of the space beats one of these 10 best" in stated
    assert "ended because nothing left can be among the best" in stated
    (directory,) = (tmp_path / "outputs" / "gpt13b-a800_8").iterdir()
    proof = json.loads((directory / "certificate.json").read_text())
    assert proof["proved"]
    best = json.loads((directory / "top_recipes.json").read_text())[0]["prediction"]
    assert proof["best"] == proof["bound"] == best["cost_of_run_usd"]
    (tmp_path / "grid").mkdir()
    arguments += ["search=grid", "search.pruning=[]"]
    grid = run("optimize.py", *arguments, cwd=tmp_path / "grid")
    best, of_grid = (
        each.stdout.split("Best recipes")[1].split("Step time")[0] for each in (done, grid)
    )
    assert best == of_grid
