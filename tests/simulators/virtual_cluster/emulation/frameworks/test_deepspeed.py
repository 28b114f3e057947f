"""DeepSpeed: what each ZeRO stage keeps and moves."""

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate
from trainscout.simulators.virtual_cluster.emulation.launch.programs import find_program
from trainscout.simulators.virtual_cluster.traces.events import HostWork

pytestmark = needs("transformers", "deepspeed")

WORLD, ACCUMULATE = 16, 2
LAYERS, HIDDEN, MLP, VOCABULARY = 2, 128, 256, 1024
PARAMETERS = (
    LAYERS * (2 * HIDDEN**2 + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * MLP + 2 * HIDDEN)
    + 2 * VOCABULARY * HIDDEN
    + HIDDEN
)


def run(folder, stage: int):
    launcher = [find_program("deepspeed"), "--no_local_rank"]
    script = [*launcher, EXAMPLES / "deepspeed_zero.py", "--stage", str(stage), "--size", "tiny"]
    options = ["--seq", "128", "--steps", "2", "--accumulate", str(ACCUMULATE)]
    return emulate(folder, [*script, *options], world_size=WORLD)


# The others call fewer of its collectives.
@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.deep), pytest.param(2, marks=pytest.mark.deep), 3],
)
def stage(request, tmp_path_factory):
    return request.param, run(tmp_path_factory.mktemp(f"zero{request.param}"), request.param)


def test_gradients_are_reduced_once_or_every_micro_batch(stage):
    number, found = stage
    reduced = [
        event.bytes_in
        for kind in ("all_reduce", "reduce", "reduce_scatter")
        for event in found.collectives(kind, step=1)
        if event.dtype == "bfloat16"
    ]
    times = 1 if number == 1 else ACCUMULATE
    assert sum(reduced) == pytest.approx(times * 2 * PARAMETERS, rel=0.02)


def test_parameters_are_gathered_after_the_step_or_when_used(stage):
    number, found = stage
    gathered = [event.bytes_out for event in found.collectives("all_gather", step=1)]
    if number == 3:
        # Parameters of less than 100,000 elements stay from one step to the next
        # (stage3_param_persistence_threshold); only embedding and head are larger here.
        large = 2 * VOCABULARY * HIDDEN
        assert sum(gathered) == 2 * (PARAMETERS - large) + ACCUMULATE * 2 * large
    else:
        assert sum(gathered) == pytest.approx(2 * PARAMETERS, rel=0.02)


ON_HOST = """
import os
import deepspeed
import torch

deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
away = {"stage": STAGE, "offload_optimizer": {"device": "cpu"}}
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": away,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
model = torch.nn.Linear(4096, 4096, bias=False)
engine, *_ = deepspeed.initialize(
    model=model, config=config, model_parameters=model.parameters()
)
for step in range(2):
    loss = engine(torch.randn(1, 8, 4096, device="cuda", dtype=torch.bfloat16)).float().mean()
    engine.backward(loss)
    engine.step()
"""


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_an_offloaded_optimizer_moves_the_memory_of_the_host(tmp_path, stage):
    script = tmp_path / "train.py"
    script.write_text(ON_HOST.replace("STAGE", str(stage)))
    found = emulate(tmp_path, [script], world_size=8)
    moved = [event.bytes / (4096**2 / 8) for event in found.events(HostWork, step=1)]
    # Gradients clipped; weight and moments read and written, gradient read; and, of stage 2, cast
    # there to 16 bits.
    assert moved == pytest.approx([8, 28, 6] if stage == 2 else [8, 28], rel=1e-4)
