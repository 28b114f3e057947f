import subprocess
from pathlib import Path

from tests.samples import CLUSTER, GPU, MODEL, TRAINING, search_result
from trainscout.reports.tracker_runs import git_commit, search_record
from trainscout.reports.trials import decided_between
from trainscout.simulators.predictor.io.output import fingerprint
from trainscout.simulators.predictor.question.question import Question

QUESTION = Question(MODEL, GPU, CLUSTER, TRAINING)


def record(result, **changes):
    given = {
        "settings": {"a": {"b": 1}},
        "group": "sweep",
        "directory": Path(),
        "files": [],
    }
    return search_record(result, QUESTION, **{**given, **changes})


def trials(made):
    return [int(child.tags["trial"]) for child in made.children]


def test_what_the_report_compares_and_the_front_are_kept_once():
    result = search_result()  # two ok trials, the first of them on the front
    shown = [trial.number for trial in decided_between(result)]
    assert trials(record(result)) == shown
    made = record(search_result(pareto=result.best[::-1]))
    assert trials(made) == [0, 1]
    assert [child.tags["rank"] for child in made.children] == ["1", "2"]
    assert [child.tags["pareto"] for child in made.children] == ["true", "true"]


def test_a_child_has_the_whole_recipe_but_what_is_not_set():
    child = record(search_result()).children[0]
    assert (child.params["tp"], child.params["dp"], child.params["sp"]) == ("4", "2", "True")
    assert "etp" not in child.params
    assert child.params["num_gpus"] == "16"
    assert child.name == f"#1 {child.tags['recipe']}"
    assert child.tags["recipe"].startswith("tp4 pp2 dp2")
    assert child.metrics["step_time_s"] == 2.0


def test_what_a_search_is_found_by():
    settings = {
        "a": {"b": 1},
        "simulator": {"name": "replay"},
        "network": {"engine": "whitebox"},
        "search": {"sampler": "tpe"},
        "objective": {"names": ["cost", "memory"]},
        "seed": 3,
    }
    made = record(search_result(), settings=settings)
    parent = made.parent
    assert parent.name == "tiny on pair, 16 GPUs"
    assert parent.params["a.b"] == "1"
    expected = {
        "kind": "search",
        "status": "fits",
        "model": "tiny",
        "cluster": "pair",
        "gpu": "h100",
        "framework": QUESTION.framework.name,
        "simulator": "replay",
        "network": "whitebox",
        "sampler": "tpe",
        "objective": "cost,memory",
        "seed": "3",
        "stopped": "n_trials",
        "group": "sweep",
        "config_hash": fingerprint(settings),
        "mlflow.source.name": "trainscout optimize",
    }
    assert expected.items() <= parent.tags.items()
    # What holds for the search holds for its recipes.
    own = {"kind", "status", "mlflow.note.content", "recipe"}
    for child in made.children:
        assert parent.tags.items() - child.tags.items() <= {(k, parent.tags[k]) for k in own}


def test_the_description_is_the_answer():
    note = record(search_result()).parent.tags["mlflow.note.content"]
    assert note.startswith("Run **tp4 pp2 dp2")
    assert "2.000 s a step, MFU 50.0 %, $1.23 k." in note
    assert "tiny on pair (16 x h100)" in note
    assert "| 2 | tp2 pp4" in note
    assert "**Why #1:** " in note


def test_nothing_found_is_said():
    made = record(search_result(best=(), pareto=()))
    assert made.children == ()
    assert made.parent.tags["status"] == "nothing_fits"
    assert "recipe" not in made.parent.tags
    assert made.parent.tags["mlflow.note.content"].startswith("**No recipe fits.**")


def test_an_interrupted_search_is_killed():
    assert record(search_result(stopped="interrupted")).status == "KILLED"
    assert record(search_result()).status == "FINISHED"


def test_the_hash_is_of_the_content():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_the_commit_of_a_checkout(tmp_path):
    assert git_commit(tmp_path) is None
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", *author, "commit", "-q", "--allow-empty", "-m", "x"], cwd=tmp_path, check=True
    )
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
