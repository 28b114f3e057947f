import json

from tests.e2e.commands import run


def test_the_searches_of_a_multirun_are_one_group(tmp_path):
    run(
        "optimize.py",
        "-m",
        "cluster=a800_8,a40_8",
        "model=gpt3_2b7",
        "training.global_batch_size=64",
        "executor=serial",
        "space=moye",
        "search.n_trials=20",
        cwd=tmp_path,
    )
    (sweep,) = (tmp_path / "multirun").iterdir()
    directories = [sweep / "0-gpt3_2b7-a800_8", sweep / "1-gpt3_2b7-a40_8"]
    best = [json.loads((d / "top_recipes.json").read_text())[0] for d in directories]
    # Same model and batch on a slower GPU.
    assert best[0]["prediction"]["step_time_s"] < best[1]["prediction"]["step_time_s"]

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("trainscout")
    runs = client.search_runs([experiment.experiment_id], f"tags.group = '{sweep.name}'")
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert {run.data.tags["cluster"] for run in parents} == {"a800_8", "a40_8"}


def test_one_search_that_finds_nothing_does_not_stop_the_others(tmp_path):
    done = run(
        "optimize.py",
        "-m",
        "model=gpt175b,gpt3_2b7",
        "cluster=a800_8",
        "training.global_batch_size=64",
        "executor=serial",
        "space=moye",
        "search.n_trials=10",
        "tracking=none",
        cwd=tmp_path,
        code=1,
    )
    assert "No recipe fits" in done.stdout
    assert "gpt175b on a800_8 (8 x a800_80)" in done.stdout
    assert "gpt3_2b7 on a800_8 (8 x a800_80)" in done.stdout.split("Would fit")[1]
