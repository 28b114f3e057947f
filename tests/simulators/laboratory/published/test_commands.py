import json

import pytest

from tests.in_process import command
from tests.simulators.laboratory.published.runs import cells, write_table
from trainscout.simulators.laboratory.published.page import summaries
from trainscout.simulators.predictor.question.errors import InputError

MODULE = "trainscout.simulators.laboratory.accuracy"
validate, accuracy = command("validate"), command("accuracy")

TWO_SECONDS = ["--simulator", "tests.simulators.laboratory.published.runs:TwoSeconds"]


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "runs.csv", cells(), cells(id="strange", gpu="MI250X"))


def test_a_table_is_validated(table, tmp_path, capsys):
    path = tmp_path / "out.json"
    assert validate([str(table), "--json", str(path), *TWO_SECONDS]) == 0
    report = json.loads(path.read_text())
    assert report["overall"]["n"] == 1
    assert report["rows"][0]["error"] == pytest.approx(-0.5)
    assert "1 rows not predicted" in capsys.readouterr().out


def test_measured_collectives_are_those_of_every_row(tmp_path, capsys):
    shape = {"num_gpus": 16, "tp": 16, "sp": 1, "pp": 1, "dp": 1, "global_batch": 16}
    table = write_table(tmp_path / "runs.csv", cells(**shape))
    curve, path = tmp_path / "own.csv", tmp_path / "out.json"
    predicted = []
    for rate in (400, 40):
        curve.write_text(
            "collective,nodes,bytes,bus_GBps\n"
            f"all_gather,2,1048576,{rate}\nreduce_scatter,2,1048576,{rate}\n"
        )
        given = ["--json", str(path), "--measured-collectives", str(curve)]
        assert validate([str(table), *given]) == 0
        predicted += [row["predicted"] for row in json.loads(path.read_text())["rows"]]
    assert predicted[1] > 2 * predicted[0]
    named = write_table(tmp_path / "named.csv", cells(**shape, measured_collectives="own.csv"))
    assert validate([str(named), "--json", str(path)]) == 0
    assert json.loads(path.read_text())["rows"][0]["predicted"] == predicted[1]
    curve.write_text("collective,nodes,bus_GBps\nall_gather,none,1\n")
    capsys.readouterr()
    assert validate([str(table), "--measured-collectives", str(curve)]) == 2
    statement = capsys.readouterr().err
    assert "error: --measured-collectives=" in statement
    assert "line 2: has 'none' as its nodes (allowed: a whole number > 0)" in statement


def test_columns_that_nothing_reads_are_named_once(tmp_path, capsys):
    table = write_table(tmp_path / "runs.csv", cells(memory="7"), cells(id="two", memory="8"))
    path = tmp_path / "out.json"
    assert validate([str(table), "--json", str(path), *TWO_SECONDS]) == 0
    assert json.loads(path.read_text())["unread_columns"] == ["memory (nearest: memory_kind)"]
    out = capsys.readouterr().out
    assert out.count("Columns that were not read: memory (nearest: memory_kind).") == 1


def test_nothing_predicted_is_a_failure(tmp_path, capsys):
    table = write_table(tmp_path / "runs.csv", cells(gpu="MI250X"))
    assert validate([str(table), *TWO_SECONDS]) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--quality", "A,Z"], "--quality"),
        (["--simulator", "none"], "simulator.name"),
        (["--json", "/nowhere/at/all.json"], "--json"),
        (["--html", "."], "--html"),
        # A folder in which nobody, not even root, can make a file.
        (["--json", "/proc/out.json"], "--json"),
    ],
)
def test_wrong_input_ends_with_2_and_one_line(table, capsys, arguments, wrong):
    assert validate([str(table), *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert wrong in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_the_measured_runs_are_not_written_over(table, capsys, option):
    before = table.read_text()
    assert validate([str(table), option, str(table), *TWO_SECONDS]) == 2
    assert "is the same file as" in capsys.readouterr().err
    assert table.read_text() == before


def test_a_table_of_something_else_is_refused(tmp_path, capsys):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    assert validate([str(path), "--json", str(tmp_path / "out.json")]) == 2
    assert not (tmp_path / "out.json").exists()
    assert "no header row; found: a, b" in capsys.readouterr().err


def test_bad_rows_are_listed_and_the_others_predicted(tmp_path, capsys):
    bad = [cells(id="zero", measured_iter_s=0), cells(id="grouped", measured_iter_s="8,500")]
    table = write_table(tmp_path / "runs.csv", *bad, cells(num_experts=0))
    path = tmp_path / "out.json"
    assert validate([str(table), "--json", str(path), *TWO_SECONDS]) == 0
    capsys.readouterr()
    report = json.loads(path.read_text())
    assert [row["id"] for row in report["rows"]] == ["run"]
    reasons = {row["id"]: row["reason"] for row in report["skipped"]}
    assert set(reasons) == {"zero", "grouped"}
    assert "measured_iter_s=8,500" in reasons["grouped"]


def test_a_table_of_bad_rows_alone_is_wrong_input(tmp_path, capsys):
    table = write_table(tmp_path / "runs.csv", cells(tp="many"), cells(id="other", pp="x"))
    assert validate([str(table), *TWO_SECONDS]) == 2
    statement = capsys.readouterr().err
    assert "has no row that can be read; line 2: tp=many is not usable" in statement
    assert statement.count("\n") == 1


def test_only_the_grades_asked_for_are_counted(tmp_path, capsys):
    table = write_table(tmp_path / "runs.csv", cells(quality="C"))
    path = tmp_path / "out.json"
    for quality, counted in (("A,B", 0), ("c", 1)):
        arguments = [str(table), "--quality", quality, "--json", str(path), *TWO_SECONDS]
        assert validate(arguments) == 0
        assert json.loads(path.read_text())["overall"]["n"] == counted
    capsys.readouterr()


def test_the_accuracy_page_needs_its_folder(tmp_path, capsys):
    assert accuracy(["--docs", str(tmp_path)]) == 2
    assert "has no folder accuracy" in capsys.readouterr().err


SUMMARY = {
    "n": 2,
    "skipped": 0,
    "median_abs_error": 0.1,
    "mean_abs_error": 0.1,
    "p90_abs_error": 0.1,
    "bias": 0.0,
}


def test_other_validators_leave_their_figures_but_not_their_rows(tmp_path):
    path = tmp_path / "kernels.json"
    result = {"overall": SUMMARY, "by_class": {"gemm": SUMMARY}, "rows": [{"id": "secret"}]}
    path.write_text(json.dumps(result))
    assert summaries.read_summary(path) == {"overall": SUMMARY, "by_class": {"gemm": SUMMARY}}


def test_collectives_keep_their_average_and_nccls_own_model(tmp_path):
    path = tmp_path / "collectives.json"
    figures = {"overall": SUMMARY, summaries.AVERAGED: 0.13}
    own = {**figures, summaries.SAME_ROWS: figures}
    path.write_text(json.dumps({**figures, summaries.NCCL: own, "rows": [], "skipped": []}))
    assert summaries.read_summary(path) == {**figures, summaries.NCCL: own}
    path.write_text(json.dumps({**figures, summaries.NCCL: figures}))
    with pytest.raises(InputError):
        summaries.read_summary(path)


def test_rows_without_end_are_not_read(tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"overall": SUMMARY, "rows": []})[:-2] + "not JSON" * 10**6)
    assert summaries.read_summary(path) == {"overall": SUMMARY}


def test_too_much_before_the_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(summaries, "MAX_CHARACTERS", 20)
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps({"overall": SUMMARY}))
    with pytest.raises(InputError, match="too large"):
        summaries.read_summary(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"overall": {"n": 1}}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    path = tmp_path / "kernels.json"
    path.write_text(text)
    with pytest.raises(InputError):
        summaries.read_summary(path)


def test_figures_are_kept_only_if_all_can_be_read(tmp_path, monkeypatch, capsys):
    places = tmp_path / "collectives.json", tmp_path / "kernels.json"
    monkeypatch.setattr(f"{MODULE}.COLLECTIVES", places[0])
    monkeypatch.setattr(f"{MODULE}.KERNELS", places[1])
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"overall": SUMMARY, "rows": []}))
    bad.write_text("no JSON")
    (tmp_path / "accuracy").mkdir()
    arguments = ["--docs", str(tmp_path), "--collectives", str(good), "--kernels", str(bad)]
    assert accuracy(arguments) == 2
    assert "bad.json" in capsys.readouterr().err
    assert not any(place.exists() for place in places)


def test_runs_by_our_names_are_validated_as_published_ones(tmp_path, capsys):
    table = tmp_path / "ours.csv"
    table.write_text(
        "name,model,gpus,tp,global_batch_size,step_time_s\n"
        "a,llama3_8b,64xH100,2,512,9\nb,llama3_8b,64xH100,3,512,9\n"
    )
    options = [str(table), "--json", str(tmp_path / "o.json")]
    assert validate(options) == 0
    shown = capsys.readouterr().out
    assert "3 does not divide the 64 GPUs" in shown
    assert shown.count("ours.csv") == 1
    (row,) = json.loads((tmp_path / "o.json").read_text("utf-8"))["rows"]
    assert (row["id"], row["gpu"], row["num_gpus"], row["measured"]) == ("a", "h100", 64, 9.0)
