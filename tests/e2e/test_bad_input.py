"""Bad input is met at the door: exit code 2, one line that says what would do, nothing written."""

import shlex

import pytest

from tests.e2e.commands import SMALL, files_in
from tests.e2e.test_plan import ARGUMENTS, STUDY
from tests.in_process import run_here

SHAPE = SMALL[:3]
# What stands where the command runs.
FILES = {"mine/sweep/ours.yaml": STUDY.encode(), "file": b""}
ASKED = {
    "optimize": SMALL,
    "simulate": [*SHAPE, "format=json"],
    "explain": SHAPE,
    "plan": ARGUMENTS,
    "network show": ["cluster=h100_64"],
}
WRONG = {
    "optimize": {
        "cluster=h100": "h100_64",
        "serch=tpe": "did you mean 'search'",
        "given=run.sh": "trainscout explain given=run.sh",
        "cluster.num_nodes=0": "cluster.num_nodes=0",
        "cluster.num_nodes=125000000": "out of range (allowed: 1..131072)",
        "training.global_batch_size=-4": "training.global_batch_size=-4",
        "cluster.nic_gbps=nan": "finite",
        "search=cmaes objective=time_memory": "takes one objective",
        "objective.names=[speed]": "step_time",
        "space.knobs.tpp.choices=[1,2]": "did you mean 'tp'",
        "space.knobs.tensor_parallel=4": "did you mean 'tp'",
        "space.knobs.tp.choice=[1,2]": "did you mean 'choices'",
        "recipe.tp=8": "a search chooses the recipe",
        "cluster=v100_16": "training.precision=bf16: v100_32 has no bf16",
        "cluster.nccl_version=latest": "cluster.nccl_version=latest",
        "space.knobs.micro_batch.choices=[7]": "no launchable recipe",
        "space.knobs.tp.choices=[16]": "16 does not divide the 8 GPUs",
        "space.knobs.tp=3 framework=any": "space.knobs.tp=3: tp x pp x cp = 3",
        "tracking.uri=mlflow": "tracking.uri=mlflow",
        "format=jsn": "did you mean 'json'",
        "\u2013seed=3": "'\u2013' is no plain character",
        "objective=cost,mfu": "objective.names=[cost,mfu], for their Pareto front",
        "simulator.measured_kernels=no.csv": "simulator.measured_kernels=no.csv: cannot be",
        "resume=true hydra.run.dir=nowhere": "no search in nowhere",
        "verbosity=quite": "did you mean 'quiet'",
        "hydra.run.dir=/dev/null/here": "/dev/null is not a directory",
        "resume=true": "no search in outputs/gpt13b-a800_8",
        "launch.framework=torchtitn": "did you mean 'torchtitan'",
        "-m cluster=a800_8,h100x": "h100x",
        "-m cluster=a800_8,h100_64 training.global_batch_size=64,0": "out of range",
        "--config-dir nowhere": "--config-dir",
    },
    "simulate": {
        "recipe.vpp=2": "recipe.vpp=2: virtual pipeline stages need pp > 1",
        "model=": "model=: is no model that ships",
        "recipe.recompute=Full": "did you mean 'full'",
        "gpu.memory_bytes=80GB": "did you mean '80000000000'",
        "cluster.nic_gbps=400Gbps": "did you mean '400'",
        "cluster.nic_gbps=50GB/s": "did you mean '400'",
        "training.packed_lengths=80,150": "a list as [80,150]",
        "gpu=h100,h200": "each in turn: -m gpu=h100,h200",
        "recipe.tp=0": "recipe.tp=0: tp=0 must be a whole number >= 1",
        "format=yaml": "format=yaml: is not a known choice (allowed: csv, json, table)",
        "+recipies=1": "recipies=1: is not a known name; did you mean 'recipe'",
        "training.tokens=nan": "training.tokens=nan: is out of range (allowed: a finite number)",
        "gpu.memory_bytes=-1": "gpu.memory_bytes=-1: is out of range (allowed: a whole number > 0",
        "simulator.name=reply": "name=reply: is not a known choice; did you mean 'replay'",
        "launch.framework=megatron": "did you mean 'megatron_lm'",
        "launch.directory=file": "launch.directory=file: cannot be written",
        "launch.folder=x": "launch.folder",
        "timeline.file=missing/step.json": "timeline.file",
    },
    "explain": {
        "a.tp=5": "a.tp=5: ",
        "a.tpp=4": "did you mean 'tp'?",
        "a.tp=4 b.pp=3": "b.pp=3: ",
        "b.tp=2 against=best": "is given beside b.*",
        "against=nowhere": "against=nowhere",
        "against=bset": "did you mean 'best'",
        "given=nothing.sh": "given=nothing.sh: cannot be read",
        "given='--tensor-model-parallel-size 5'": "cannot be launched",
        "format=yaml": "format=yaml",
        "c.tp=4": "c.tp=4: is not a known name",
        "tracking=none": "leave it out",
    },
    "plan": {
        "sweep=llama3_8b sweep.what_ifs={}": "~sweep.what_ifs, which takes all of them away",
        "sweep.num_gpus=64": "did you mean '[64]'",
        "num_gpus=[64]": "did you mean 'sweep.num_gpus'",
        "training.tokens=1T": "did you mean 'sweep.training.tokens'",
        "targets.budget.usd=2M": "did you mean 'sweep.targets.budget.usd'",
        "gpu.price_usd_per_hour=2": "did you mean 'sweep.prices_usd_per_hour.GPU'",
        "sweep.num_gpu=8": "did you mean 'num_gpus'",
        "sweep.num_gpus=[1000000000]": "sweep.num_gpus=1000000000: is out of range",
        "sweep.clusters=[h200]": "did you mean '8xh200'",
        "sweep.models=[llama3]": "model=llama3: is not a known choice",
        "space.knobs.tp.choises=[1]": "space.knobs.tp=choises: is not a known choice",
        "format=yaml": "format=yaml",
        "sweep.targets.day.days=2020-01-01": "2020-01-01: is past",
        "sweep.price_scenarios.spot.b200=1": "is of a GPU that no cluster has",
        "tracking.uri=mlflow": "tracking.uri=mlflow",
    },
    "network show": {
        "network=flow topology.oversubscription=-1": "topology.oversubscription",
        "network=flow cluster.num_nodes=10000000": "cluster.num_nodes",
        "network=packet network.packet.congestion=magic": "network.packet.congestion",
        "network=flow +topology.link_health.leaf0-spine999=0": "link_health.leaf0-spine999",
        "network=flow topology.switch_ports=16": "topology.nics_per_leaf",
    },
}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, cases in WRONG.items() for wrong in cases],
)
def test_bad_input_is_one_line_and_code_2(name, wrong, tmp_path):
    for place, content in FILES.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    # A setting may be given once.
    words = shlex.split(wrong)
    given = {word.partition("=")[0] for word in words}
    asked = [each for each in ASKED[name] if each.partition("=")[0] not in given]
    flags = ["-m"] if words[0] == "-m" else []
    done = run_here(name, *flags, *asked, *words[len(flags) :], cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert WRONG[name][wrong] in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before
    assert files_in(tmp_path) == FILES
