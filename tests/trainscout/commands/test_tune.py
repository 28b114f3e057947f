"""The command over a small script: results, resuming, and what is refused."""

from __future__ import annotations

import csv
import json
import re
import shutil

import pytest

from tests.in_process import command
from trainscout.simulators.virtual_cluster.trials import simulator

pytest.importorskip("torch")

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

width, batch = int(sys.argv[1]), int(sys.argv[2])
if width == 96:
    sys.exit("96 is no width")
dist.init_process_group("nccl")
model = torch.nn.Linear(width, width * int(os.environ["TIMES"]), device="cuda")
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    for micro_batch in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
        model(torch.ones(batch, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KNOBS = """
knobs:
  width: [64, 96]
  batch: [1024, 1073741824]
  times: [1, 4]
environment: {TIMES: "{times}"}
work_per_step: batch * world_size
"""
WORDS = ["--", "train.py", "{width}", "{batch}"]


def started(folder):
    return (folder / "tune" / "launch.sh").read_text().splitlines()[-1]


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """The command in a folder with a script and its knobs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "knobs.yaml").write_text(KNOBS)

    def run(*options, words=WORDS, world_size=16):
        about = ["--space", "knobs.yaml", "--world-size", world_size, "--cluster", "h100_64"]
        about += ["--executor", "serial", "--tracking", "none", *options]
        return command("tune")([*about, *words])

    return run


def rows(folder):
    with (folder / "tune" / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_launches_that_cannot_be_are_results(tune, tmp_path, capsys):
    assert tune("--search", "grid", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["launch"]["words"] == ["train.py", "64", "1024"]
    found = {(row["width"], row["batch"], row["times"]): row for row in rows(tmp_path)}
    statuses = {key: row["status"] for key, row in found.items()}
    assert statuses == {
        ("64", "1024", "1"): "ok",
        ("64", "1024", "4"): "ok",
        ("64", "1073741824", "1"): "oom",
        ("64", "1073741824", "4"): "oom",
        ("96", "1024", "1"): "invalid launch",
        ("96", "1024", "4"): "invalid launch",
        ("96", "1073741824", "1"): "invalid launch",
        ("96", "1073741824", "4"): "invalid launch",
    }
    page = (tmp_path / "tune" / "report.html").read_text(encoding="utf-8")
    assert "train.py on 16 x h100 of h100_64" in page
    sections = ["answer", "knobs", "step", "launches"]
    assert (
        re.findall('href="#(\\w+)"', page) == re.findall('section id="(\\w+)"', page) == sections
    )
    # Four times as wide a product is slower, whatever else is chosen; no width of 96 is.
    worth = page[page.index("What each choice is worth") : page.index("Where the step goes")]
    rows_of = [re.sub("<[^>]*>", " ", row).split() for row in re.findall("<tr.*?</tr>", worth)]
    assert ["96", "4", "invalid", "launch"] in rows_of
    (cost,) = (float(row[3].rstrip("%")) for row in rows_of if row[0] == "4")
    assert cost > 0
    assert page.count("96 is no width") == 4
    assert "InvalidLaunchError" not in page
    quick, slow = (found["64", "1024", times] for times in ("1", "4"))
    assert float(quick["step_time_s"]) < float(slow["step_time_s"])
    assert quick["command"] == "TIMES=1 train.py 64 1024"
    # 256 GiB of input on 80 GB, and four times that of output besides.
    assert int(found["64", "1073741824", "1"]["headroom_bytes"]) < -100 * 2**30
    assert "96 is no width" in found["96", "1024", "1"]["reason"]
    best = json.loads((tmp_path / "tune" / "top_recipes.json").read_text())
    assert [entry["knobs"]["times"] for entry in best] == [1, 4]
    script = (tmp_path / "tune" / "launch.sh").read_text()
    assert "export TIMES=1" in script
    assert "--nnodes 2 --nproc-per-node 8" in script


def test_a_launch_that_does_not_end_is_invalid(tune, tmp_path, monkeypatch):
    monkeypatch.setattr(simulator, "LAUNCH_S", 3.0)
    waiting = "import time\nprint('step 0', flush=True)\ntime.sleep(600)\n"
    (tmp_path / "train.py").write_text(waiting)
    (tmp_path / "knobs.yaml").write_text("knobs: {width: [64]}\n")
    assert tune("--search", "grid", words=["--", "train.py", "{width}"]) == 1
    (row,) = rows(tmp_path)
    assert row["status"] == "invalid launch"
    assert "rank 0 takes too long: step 0" in row["reason"]


def test_ranks_are_told_what_those_before_them_sent(tune, tmp_path, capsys):
    # As pipeline stages do with the shapes that they hand on.
    told = """
known = [width]
if dist.get_rank():
    dist.recv_object_list(known, src=0)
else:
    dist.send_object_list(known, dst=1)
width, = known
"""
    joined = 'dist.init_process_group("nccl")\n'
    (tmp_path / "train.py").write_text(SCRIPT.replace(joined, joined + told.lstrip()))
    knobs = KNOBS.replace("[64, 96]", "[64, 128]").replace("[1024, 1073741824]", "[1024]")
    (tmp_path / "knobs.yaml").write_text(knobs)
    assert tune("--search", "grid", "--rank", "0,1", world_size=2) == 0
    assert "no other side" not in capsys.readouterr().out
    assert [row["status"] for row in rows(tmp_path)] == ["ok"] * 4


def test_ranks_are_found_by_what_they_send(tune, tmp_path):
    # Three stages on groups of which none is called a pipeline, of two ranks each.
    model = 'model = torch.nn.Linear(width, width * int(os.environ["TIMES"]), device="cuda")\n'
    staged = """
groups = [dist.new_group([0, 2, 4]), dist.new_group([1, 3, 5])]
rank = dist.get_rank()
pipe = groups[rank % 2]

class Stage(torch.nn.Linear):
    def forward(self, batch):
        if rank > 1:
            dist.recv(batch, rank - 2, group=pipe)
        made = super().forward(batch)
        if rank < 4:
            dist.send(made, rank + 2, group=pipe)
        return made

model = Stage(width, width, device="cuda")
"""
    (tmp_path / "train.py").write_text(SCRIPT.replace(model, staged))
    (tmp_path / "knobs.yaml").write_text("knobs: {width: [256]}")
    words = ["--", "train.py", "{width}", "64"]
    found = []
    for more in ((), ("--rank", "0-5")):
        assert tune("--search", "grid", *more, words=words, world_size=6) == 0
        (row,) = rows(tmp_path)
        found.append(float(row["step_time_s"]))
        shutil.rmtree(tmp_path / "tune")
    assert found[0] == found[1]


def test_step_times_of_unlike_work_are_said_to_be_no_ranking(tune, tmp_path, capsys):
    knobs = 'knobs: {times: [0, 1, 4]}\nenvironment: {TIMES: "{times}"}'
    (tmp_path / "knobs.yaml").write_text(knobs)
    words = ["--", "train.py", "64", "1024"]
    assert tune("--search", "grid", words=words) == 0
    assert "unlike amounts, up to 4.0 times" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "knobs.yaml").write_text(f"{knobs}\nwork_per_step: times")
    assert tune("--search", "grid", "--output", "again", words=words) == 0
    assert "unlike amounts" not in capsys.readouterr().out


def test_the_best_launch_is_one_line_to_copy(tune, capsys):
    words = [*WORDS, "1", "words to quote", "y" * 80]
    assert tune("--search", "grid", words=words) == 0
    _, _, best = capsys.readouterr().out.partition("The best:\n")
    assert best.splitlines()[0].endswith(f"train.py 64 1024 1 'words to quote' {'y' * 80}")


def test_host_times_are_the_script_s_own_where_requested(tune, capsys):
    for host, assumed in (("traced", "CPU seconds of the script"), ("declared", "as declared")):
        assert tune("--search", "grid", "--trials", 1, "--host", host, "--output", host) == 0
        assert assumed in " ".join(capsys.readouterr().out.split())


def test_a_script_is_that_of_the_folder_one_stands_in(tune, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    (other / "knobs.yaml").write_text(KNOBS)
    (other / "train.py").write_text(SCRIPT.replace("width * int", "4096 * int"))
    (other / "prepare.py").write_text("import torch\n")
    command = 'cd .. && cd other && python prepare.py && python train.py "$@"'
    (other / "train.sh").write_text(command)
    found = []
    for folder, words in ((tmp_path, WORDS), (other, ["--", "bash", "train.sh", *WORDS[2:]])):
        monkeypatch.chdir(folder)
        assert tune("--search", "grid", "--trials", 1, words=words) == 0
        (row,) = rows(folder)
        found.append(float(row["step_time_s"]))
    assert found[1] > found[0]
    assert started(other).startswith("bash train.sh 64 ")


@pytest.mark.parametrize(
    ("file", "first", "started_by"),
    [
        ("my train.py", "", "torchrun --nnodes 2 --nproc-per-node 8 \"$@\" 'my train.py' 64 "),
        (
            "train",
            "#!/usr/bin/env python",
            'torchrun --nnodes 2 --nproc-per-node 8 "$@" train 64 ',
        ),
        ("train.sh", "python train.py $* && exit", "bash train.sh 64 "),
        ("run.sh", "#!/bin/sh\npython train.py $* && exit", "./run.sh 64 "),
    ],
)
def test_the_best_launch_starts_as_it_was_tried(tune, tmp_path, file, first, started_by):
    script = tmp_path / file
    script.write_text(f"{first}\n{SCRIPT}")
    script.chmod(0o755 if file == "run.sh" else 0o644)
    assert tune("--search", "grid", "--trials", 1, words=["--", file, *WORDS[2:]]) == 0
    assert started(tmp_path).startswith(started_by)


def test_a_search_goes_on_where_it_stopped(tune, tmp_path, capsys, monkeypatch):
    assert tune("--search", "grid", "--trials", 8) == 0
    before = rows(tmp_path)
    assert tune("--search", "grid") == 2
    assert "holds a search" in capsys.readouterr().err

    def fails(self, job):
        raise AssertionError("was run before")

    monkeypatch.setattr(simulator.ScriptSimulator, "simulate", fails)
    assert tune("--search", "grid", "--resume") == 0
    assert rows(tmp_path) == before


def test_a_search_is_tracked_as_any_other(tune, tmp_path, monkeypatch):
    trees = []

    class Recorder:
        record = staticmethod(trees.append)

    monkeypatch.setattr("trainscout.optimizer.tracking.tracker.Tracker", lambda _: Recorder())
    assert tune("--search", "grid") == 0
    (tree,) = trees
    assert tree.parent.metrics["trials/ok"] == 2
    assert tree.parent.params["words"] == "train.py {width} {batch}"
    best, second = tree.children
    assert best.params["times"] == "1"
    assert best.metrics["step_time_s"] == tree.parent.metrics["best/step_time_s"]
    assert best.metrics["step_time_s"] < second.metrics["step_time_s"]
    assert {path.name for path in tree.artifacts} >= {"report.txt", "trials.csv"}


REPEATED = """
given: {number: 24, width: 65536}
knobs: {batch: [4096], times: [1]}
environment: {TIMES: "{times}"}
repeats:
  micro_batches: {step: number, traced: %s}
  columns: {step: width, traced: %s}
"""


def test_what_repeats_itself_is_predicted_from_few(tune, tmp_path):
    """A few micro-batches tell what all take, and two sizes what a larger one does."""
    script = (tmp_path / "train.py").read_text().replace("width * int", "4096 * int")
    (tmp_path / "train.py").write_text(script)
    words = ["--", "train.py", "{columns}", "{batch}", "{micro_batches}"]
    found = {}
    for name, traced in (("short", (4, "[16384, 32768]")), ("whole", ("number", "[1, width]"))):
        (tmp_path / "knobs.yaml").write_text(REPEATED % traced)
        assert tune("--search", "grid", "--output", name, words=words) == 0
        best, *_ = json.loads((tmp_path / name / "top_recipes.json").read_text())
        found[name] = best["prediction"]
        assert best["launch"]["words"] == ["train.py", "65536", "4096", "24"]
    short, whole = found["short"], found["whole"]
    assert short["step_time_s"] == pytest.approx(whole["step_time_s"], rel=0.02)
    assert short["hfu"] == pytest.approx(whole["hfu"], rel=0.02)
    for figures in (short, whole):
        assert sum(figures["breakdown_s"].values()) == pytest.approx(figures["step_time_s"])
    needed = [figures["memory"]["peak_reserved_bytes"] for figures in (short, whole)]
    assert needed[0] == pytest.approx(needed[1], rel=0.02)


@pytest.mark.parametrize(
    ("options", "words", "named"),
    [
        ([], ["--", "train.py", "{widht}"], "width"),
        ([], ["--", "train.py", "{width}"], "batch"),
        ([], ["--", "absent.py", "{width}", "{batch}"], "absent.py"),
        ([], [], "script"),
        (["--search", "exact"], WORDS, "exact"),
        (["--cluster", "h100_46"], WORDS, "h100_64"),
        (["--world-size", "4096"], WORDS, "--world-size"),
        (["--trials", "0"], WORDS, "--trials"),
        (["--resume"], WORDS, "--resume"),
        (["--preload", "no_such_module"], WORDS, "no_such_module"),
        (["--framework", "megatron"], WORDS, "--framework"),
        (["--rank", "99"], WORDS, "--rank"),
        (["--space", "absent.yaml"], WORDS, "absent.yaml"),
    ],
)
def test_wrong_input_writes_nothing(tune, tmp_path, capsys, options, words, named):
    assert tune(*options, words=words) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "tune").exists()
