import json

import pytest

from tests.in_process import command
from tests.simulators.laboratory.published.runs import cells, write_table

questions = command("questions")
SMALL = {"model": "Small", "num_layers": 8, "num_gpus": 8, "dp": 8, "tp": 1, "pp": 1, "sp": 0}


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """One small question, answered once, in every form; and its table."""
    folder = tmp_path_factory.mktemp("questions")
    table = write_table(folder / "runs.csv", cells(**SMALL), cells(id="two", gpu="MI250X"))
    names = {each: folder / f"out.{each}" for each in ("json", "page")}
    outputs = [word for each, path in names.items() for word in (f"--{each}", str(path))]
    assert questions([str(table), *outputs]) == 0
    return table, names


def test_a_question_is_answered_and_written(answered):
    _, names = answered
    report = json.loads(names["json"].read_text())
    (one,) = report["answers"]
    assert (one["row"], one["inside"], one["proved"]) == ("run", True, True)
    assert one["slower"] == pytest.approx(one["best_s"] / 4.0 - 1)
    assert [target["met"] for target in report["targets"]] == [True, True, True, True]
    assert one["model"] in names["page"].read_text()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--only", "gpt9"], "--only=gpt9: names no question"),
        (["--workers", "0"], "--workers"),
        (["--json", "/nowhere/at/all.json"], "--json"),
        (["--page", "{table}"], "--page"),
    ],
)
def test_wrong_input_ends_with_2(answered, capsys, arguments, wrong):
    table, _ = answered
    given = [each.format(table=table) for each in arguments]
    assert questions([str(table), *given]) == 2
    assert wrong in capsys.readouterr().err


def test_small_published_questions_are_not_lost(tmp_path, capsys):
    path = tmp_path / "out.json"
    names = ("gpt-2b_v100_32x2", "gpt-4b_v100_32x4")
    only = [word for name in names for word in ("--only", name)]
    assert questions([*only, "--workers", "1", "--json", str(path)]) == 0
    capsys.readouterr()
    answers = json.loads(path.read_text())["answers"]
    assert len(answers) == len(names)
    assert all(one["inside"] and one["fits"] and one["verdict"] == "as fast" for one in answers)
