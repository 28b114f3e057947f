"""TorchTitan's own command, unmodified."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate

pytestmark = needs("torchtitan", "triton")

WORLD = 16
# TorchTitan's llama3_debugmodel.
LAYERS, HIDDEN, MLP, VOCABULARY = 6, 256, 768, 2048
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * MLP + 2 * HIDDEN
EMBEDDING = VOCABULARY * HIDDEN


@pytest.fixture(scope="module")
def titan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titan")
    write = [sys.executable, EXAMPLES / "torchtitan_assets.py", "--samples", "64"]
    subprocess.run([*write, "--output", folder / "assets"], check=True)
    settings = [
        *("-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_debugmodel"),
        *("--hf-assets-path", "assets/tokenizer", "--dataloader.dataset-path", "assets/data"),
        *(
            "--training.steps",
            "2",
            "--training.seq-len",
            "256",
            "--training.local-batch-size",
            "2",
        ),
        *("--parallelism.spmd-backend", "partial_dtensor", "--training.disable-cuda-graphs"),
        *("--checkpoint.no-enable", "--validator.no-enable"),
    ]
    return emulate(folder, settings, world_size=WORLD)


def test_its_own_log_lines(titan):
    assert "step:  1" in titan.output
    assert "tps:" in titan.output
    assert "mfu:" in titan.output


def test_layers_are_gathered_and_gradients_scattered(titan):
    gathered = [each.bytes_out for each in titan.collectives("all_gather", 1, "forward")]
    # The loss in chunks gathers final norm and head a second time.
    assert gathered == [2 * EMBEDDING, *[2 * LAYER] * LAYERS, *[2 * (EMBEDDING + HIDDEN)] * 2]
    scattered = [each.bytes_in for each in titan.collectives("reduce_scatter", step=1)]
    assert sorted(scattered) == sorted(
        [4 * EMBEDDING, *[4 * LAYER] * LAYERS, 4 * HIDDEN, 4 * EMBEDDING]
    )
