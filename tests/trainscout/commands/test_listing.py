"""``trainscout list``."""

import csv
import json

import pytest

from tests.in_process import command
from trainscout.commands.listing import kinds
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS
from trainscout.simulators.predictor.uncertainty.table import RESIDUALS

run = command("list")


@pytest.mark.parametrize("kind", kinds())
def test_every_declaration_has_a_line_that_says_what_it_is(kind, capsys):
    assert run([kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(load_catalogue().contents(kinds()[kind]))
    assert all(len(line.split()) > 1 and len(line) < 100 for line in lines)


def test_figures_are_those_of_the_declaration(capsys):
    assert run(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["llama3_8b"].startswith("8.0 B, 32 layers")
    assert run(["cluster", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["h800_96"].startswith("96 h800 in nodes of 8, 8 x 400 Gb/s infiniband a node; ")


@pytest.mark.parametrize(
    ("kind", "name", "column"),
    [("gpus", "a100_80", "gpu"), ("frameworks", "nanotron", "framework")],
)
def test_runs_are_those_that_error_bars_rest_on(kind, name, column, capsys):
    assert run([kind, "--json"]) == 0
    lines = [line for line in RESIDUALS.read_text("utf-8").splitlines() if line[0] != "#"]
    count = sum(row[column] == name for row in csv.DictReader(lines))
    assert f"{count} runs" in json.loads(capsys.readouterr().out)[name]


def test_runs_of_a_model_are_of_its_shape_and_no_other_s(capsys):
    assert run(["models", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    runs = {name: text.split("; ")[1] for name, text in told.items()}
    assert runs["deepseek_v3"] != "no run"
    # Of V3's shape, and what was run had no indexer.
    assert runs["deepseek_v3_2"] == "no run"
    assert runs["qwen3_8b"] != "no run"
    assert runs["qwen3_vl_8b"] == runs["clip_vit_l14"] == "no run"
    assert told["deepseek_v3_2"].endswith("; estimated: indexed attention")
    assert "estimated" not in told["deepseek_v3"]
    # Layers, width and heads are the same; vocabulary and MLP are not.
    assert len({runs[name] for name in ("gpt70b", "llama2_70b", "llama3_70b", "qwen2_5_72b")}) == 4


def test_what_nobody_measured_is_said(capsys):
    assert run(["gpus", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert " estimated, " in told["mi300x"]
    lines = [line for line in RESIDUALS.read_text("utf-8").splitlines() if line[0] != "#"]
    published = {row["gpu"] for row in csv.DictReader(lines)}
    unknown = {name for name, text in told.items() if text.endswith("no run")}
    assert unknown == set(told) - published != set()


def test_a_gpu_needs_no_other_16_bit_type_than_it_has(tmp_path, capsys):
    folder = tmp_path / "gpu"
    folder.mkdir()
    shipped = (DECLARATIONS / "gpu/mi300x.yaml").read_text("utf-8")
    kept = [line for line in shipped.splitlines() if not line.startswith("  fp16:")]
    folder.joinpath("ours.yaml").write_text("\n".join(kept).replace("name: mi300x", "name: ours"))
    assert run(["gpus", "--json", "--config-dir", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "1,307 TFLOP/s in 16 bit" in told["ours"]


def test_without_a_kind_all_names_are_listed(capsys):
    assert run(["--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(kinds())


def test_a_folder_of_ones_own_is_listed_too(tmp_path, capsys):
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "h100_slow.yaml").write_text(
        "defaults: [h100, _self_]\nname: h100_slow\nmemory_bandwidth_bytes_per_s: 1.0e12\n"
    )
    assert run(["gpus", "--config-dir", tmp_path]) == 0
    shown = capsys.readouterr().out
    assert "h100_slow      hopper, 79.6 GiB at 1.00 TB/s" in shown
    assert "h200 " in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["modles"], "did you mean 'models'"), (["gpus", "--config-dir", "nowhere"], "is no folder")],
)
def test_wrong_input_is_refused(arguments, told, capsys):
    assert run(arguments) == 2
    assert told in capsys.readouterr().err
