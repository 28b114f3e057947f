"""Names that people and programs rely on: they stay, or an old one goes on working for a while.

What they do is tested elsewhere; here stands only what they are called.
"""

import csv
import json

import pytest

from tests.in_process import command
from tests.simulators.laboratory.collectives.test_measurements import row as nccl_row
from trainscout.cli import COMMANDS, main
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS

SCORE = {"n", "median_abs_error", "p90_abs_error"}
CALIBRATION = "gpu: a100_80\ncompute_time: 1.1\nnetwork_time: 1\nhost_time: 1\nruns: []\n"
QUESTION = ["model=gpt13b", "cluster=a800_8", "training.global_batch_size=64"]


def written(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def test_commands():
    assert set(COMMANDS) >= {
        "optimize", "simulate", "explain", "plan", "validate", "calibrate", "run", "live", "list",
        "init", "doctor", "tune", "kernels validate", "collectives validate",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("model", "gpt175b gpt3_18b4 llama3_8b llama3_70b mixtral_8x7b deepseek_v3"),
        ("cluster", "h800_96 h100_64 h100_512 h100_8192 a100_512"),
        ("space", "megatron maya_table3 moye large"),
        ("search", "exact tpe cmaes cma nsga2 gp random grid"),
    ],
)
def test_shipped_declarations(group, names):
    assert set(load_catalogue().contents(group)) >= set(names.split())


@pytest.mark.parametrize("kind", ["models", "gpus", "clusters"])
def test_list(kind):
    assert command("list")([kind]) == 0


def test_simulate(capsys):
    assert main(["simulate", *QUESTION, "format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = {"step_time_s", "mfu", "hfu", "fits", "tokens_per_s", "breakdown_s", "memory", "model"}
    assert named <= set(found)
    assert found["memory"]["peak_allocated_bytes"] > 0
    assert found["model"]["parameters"] > 12e9


def test_optimize(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = ["executor=serial", "tracking=none", "verbosity=quiet", "hydra.run.dir=found"]
    narrow = ["space.knobs.micro_batch=1", "space.knobs.recompute=none", "space.knobs.pp=1"]
    assert main(["optimize", *QUESTION, *settings, *narrow, "search=exact"]) == 0
    for name in ("report.html", "report.txt", "launch.sh", "certificate.json"):
        assert (tmp_path / "found" / name).is_file()
    assert (tmp_path / "found" / "launch").is_dir()
    best, *_ = json.loads((tmp_path / "found" / "top_recipes.json").read_text())
    assert set(best) >= {"recipe", "prediction"}
    header = (tmp_path / "found" / "trials.csv").read_text().splitlines()[0]
    assert "status" in header.split(",")
    capsys.readouterr()


def test_validate(tmp_path, capsys):
    with PUBLISHED_RUNS.open(newline="", encoding="utf-8") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(2), strict=False)]
    table, out = written(tmp_path / "runs.csv", rows), tmp_path / "out.json"
    calibration = tmp_path / "calibration.yaml"
    calibration.write_text(CALIBRATION)
    asked = [table, "--json", out, "--calibration", calibration]
    assert command("validate")(asked) == 0
    found = json.loads(out.read_text())
    assert set(found["overall"]) >= {*SCORE, "bias"}
    assert set(found["rows"][0]) >= {
        "id", "source", "group", "gpu", "model", "num_gpus", "quality", "counted", "measured",
        "predicted", "error", "fits", "interval_s", "memory_error", "assumptions",
        "unread",
    }  # fmt: skip
    capsys.readouterr()


def test_calibrate(tmp_path, capsys):
    # Exit codes 0 and 1: tests/e2e/test_calibrate.py.
    asked = [tmp_path / "absent.csv", "--output", tmp_path / "out.yaml"]
    assert command("calibrate")(asked) == 2
    assert not (tmp_path / "out.yaml").exists()
    assert "absent.csv" in capsys.readouterr().err


def test_kernels_validate(tmp_path, capsys):
    row = {"gpu": "h100", "dtype": "bf16", "m": 4096, "n": 8192, "k": 8192, "batch": 1}
    row |= {"layout": "TN", "impl": "x", "time_us": 800.0, "flag": ""}
    table, out = written(tmp_path / "gemm.csv", [row]), tmp_path / "out.json"
    assert command("kernels", "validate")([table, "--json", out]) == 0
    assert set(json.loads(out.read_text())["overall"]) >= {*SCORE, "skipped"}
    capsys.readouterr()


def test_collectives_validate(tmp_path, capsys):
    table, out = written(tmp_path / "nccl.csv", [nccl_row()]), tmp_path / "out.json"
    assert command("collectives", "validate")([table, "--json", out]) == 0
    assert set(json.loads(out.read_text())["overall"]) >= {*SCORE, "skipped"}
    capsys.readouterr()


REFUSED = """
import torch
from xformers.ops import AttentionBias, memory_efficient_attention
query = torch.ones(1, 8, 2, 16, device="cuda")
memory_efficient_attention(query, query, query, AttentionBias())
"""


@pytest.mark.parametrize(
    ("name", "script", "code"),
    [
        ("run", "raise SystemExit(7)", 1),
        ("run", REFUSED, 3),
        ("live", REFUSED, 3),
    ],
)
def test_run_and_live(name, script, code, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(script)
    options = {"run": ["--rank", "3", "--gpu", "h800", "--steps", "1"], "live": ["--ranks", "0"]}
    asked = ["--world-size", "8", *options[name], "--", "script.py"]
    assert command(name)(asked) == code
