import subprocess
from pathlib import Path

from optimizer.question import Declared
from reports.record import config_hash, git_commit, search_record
from tests.samples import CLUSTER, GPU, MODEL, TRAINING, search_result

DECLARED = Declared(MODEL, GPU, CLUSTER, TRAINING)


def record(result, **changes):
    given = {
        "settings": {"a": {"b": 1}},
        "top_k": 10,
        "group": "sweep",
        "directory": Path(),
        "files": [],
    }
    return search_record(result, DECLARED, **{**given, **changes})


def test_the_best_and_the_front_are_kept_once():
    result = search_result()  # two ok trials, the first of them on the front
    assert [trial.number for trial, _ in record(result).kept] == [0, 1]
    assert [trial.number for trial, _ in record(result, top_k=1).kept] == [0]
    front = search_result(pareto=result.best[::-1])
    assert [trial.number for trial, _ in record(front, top_k=1).kept] == [0, 1]


def test_a_child_has_the_whole_recipe():
    _, recipe = record(search_result()).kept[0]
    assert recipe["tp"] == 4
    assert recipe["dp"] == 2


def test_what_a_search_is_found_by():
    made = record(search_result())
    assert made.name == "tiny on pair"
    assert made.params == {"a.b": 1}
    assert made.tags["model"] == "tiny"
    assert made.tags["cluster"] == "pair"
    assert made.tags["group"] == "sweep"
    assert made.tags["config_hash"] == config_hash({"a": {"b": 1}})


def test_the_hash_is_of_the_content():
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


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
