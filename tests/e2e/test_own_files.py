"""A user's own declarations, in a directory of theirs."""

import json

import pytest
import yaml

import trainscout as ts
from tests.docs.blocks import FILE, blocks
from tests.e2e.commands import run
from trainscout.simulators.predictor.question.knobs.recomputation import (
    RECOMPUTE_MODES,
)

MODEL = """
name: ours
source: made up
num_layers: 8
hidden_size: 2048
num_heads: 16
ffn_hidden_size: 8192
vocab_size: 32000
sequence_length: 2048
"""
CLUSTER = """
defaults:
  - override /gpu@_global_.gpu: h100
  - _self_
name: ours_16
source: made up
num_nodes: 2
gpus_per_node: 8
nics_per_node: 4
nic_gbps: 400
fabric: roce
"""


def test_own_model_cluster_and_space(tmp_path):
    files = [block for block in blocks("docs/howto/own-declarations.md") if block.kind == FILE]
    (space,) = [block.text for block in files if block.file == "mine/space/layouts.yaml"]
    for group, name, text in (
        ("model", "ours", MODEL),
        ("cluster", "ours_16", CLUSTER),
        ("space", "layouts", space),
    ):
        (tmp_path / "mine" / group).mkdir(parents=True)
        (tmp_path / "mine" / group / f"{name}.yaml").write_text(text)
    run(
        "optimize.py",
        *("--config-dir", "mine", "model=ours", "cluster=ours_16", "space=layouts"),
        *("search=grid", "executor=serial", "tracking=none", "training.global_batch_size=64"),
        cwd=tmp_path,
    )
    (path,) = tmp_path.glob("outputs/ours-ours_16/*/top_recipes.json")
    for row in json.loads(path.read_text()):
        assert row["recipe"]["tp"] in (1, 2, 4)
        assert row["recipe"]["micro_batch"] in (1, 2)
        # Of a knob that the space only names, the choices are those it comes with.
        assert row["recipe"]["recompute"] in RECOMPUTE_MODES
        assert row["recipe"]["tp"] * row["recipe"]["pp"] * row["recipe"]["dp"] == 16
    # The command that gives the same report again.
    stated = f"trainscout optimize --config-dir {tmp_path / 'mine'} model=ours cluster=ours_16 "
    assert stated in (path.parent / "report.html").read_text("utf-8")


def test_an_own_file_hides_what_ships_under_its_name(tmp_path):
    """For commands as for the Python API."""
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    (tmp_path / "mine" / "cluster" / "h800_96.yaml").write_text(CLUSTER)
    done = run(
        "simulate.py",
        *("--config-dir", "mine", "--cfg", "job", "model=gpt175b", "cluster=h800_96"),
        cwd=tmp_path,
    )
    question = ts.question(model="gpt175b", cluster="h800_96", config_dir=tmp_path / "mine")
    assert yaml.safe_load(done.stdout)["cluster"]["name"] == question.cluster.name == "ours_16"


@pytest.mark.parametrize(
    ("wrong", "stated"),
    [
        (MODEL.replace("num_layers", "num_layer"), "did you mean 'num_layers'"),
        ("num_layers: 4\n", "model.name=???: is missing, and so are ffn_hidden_size, hidden_size"),
    ],
)
def test_a_field_that_is_misspelt_or_left_out_of_an_own_file_is_named(wrong, stated, tmp_path):
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "ours.yaml").write_text(wrong)
    done = run("optimize.py", "--config-dir", "mine", "model=ours", cwd=tmp_path, code=2)
    assert stated in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
