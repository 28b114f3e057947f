"""Launch files that run: their frameworks, unmodified, on virtual GPUs."""

import importlib.util
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import emulation_misses, needs
from tests.reports.dialects.jobs import DENSE
from tests.samples import CLUSTER, GPU, TRAINING
from tests.warm.session import environment, run_python
from trainscout.reports.launch.directory import launch_texts, launches
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.recipe import Recipe

ROOT = Path(__file__).parents[3]
SMALL = replace(DENSE, num_layers=2, num_query_groups=4, vocab_size=1024, sequence_length=256)
JOB = Job(
    SMALL,
    GPU,
    CLUSTER,
    replace(TRAINING, global_batch_size=32),
    Recipe(zero_stage=3, overlap_grad_reduce=True, recompute="full", micro_batch=1),
    Framework(fusion="eager"),
)


pytestmark = [
    needs("torch"),
    pytest.mark.skipif(bool(emulation_misses()), reason=emulation_misses()),
]


def emulated(directory: Path, *words: str) -> str:
    """What a script says that runs as rank 0 of the job."""
    place = ["--world-size", str(JOB.world_size), "--rank", "0", "--gpu", GPU.name]
    variables = {
        **environment(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(directory), *sys.path]),
    }
    command = ("-m", "trainscout", "run", *place, "--", *words)
    done = run_python(*command, cwd=directory, environment=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def directory(tmp_path):
    """The launch files of the job."""
    for name, text in launch_texts(JOB, launches(JOB)).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def summary(stated: str) -> dict[str, str]:
    """The table at the end of an emulated run."""
    rows = [line.split(maxsplit=1) for line in stated.splitlines() if line.startswith(" ")]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_deepspeed_trains_in_shards(directory):
    pytest.importorskip("deepspeed")
    pytest.importorskip("transformers")
    stated = emulated(directory, "deepspeed_train.py", "--steps", "2")
    assert "step 1: " in stated
    assert summary(stated)["violations"].strip() == "0"


def test_torchtitan_trains_what_its_module_says(directory):
    for name in ("torchtitan", "triton", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    made = [sys.executable, str(ROOT / "examples" / "torchtitan_assets.py")]
    subprocess.run([*made, "--output", "assets", "--samples", "64"], cwd=directory, check=True)
    text = (directory / "torchtitan.sh").read_text()
    words = shlex.split(text[text.index("-m torchtitan.train") :].replace("\\\n", " "))
    words = [word for word in words if "$" not in word and word != "--hf-assets-path"]
    more = "--training.steps 2 --metrics.log-freq 1 --hf-assets-path assets/tokenizer "
    more += "--dataloader.dataset c4_test --dataloader.dataset-path assets/data"
    stated = emulated(directory, *words[:-1], *more.split(), words[-1])
    assert "Building llama3 tiny_llama" in stated
    assert "step:  2" in stated
    assert summary(stated)["violations"].strip() == "0"
