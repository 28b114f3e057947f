"""Scripts that ask Ray for GPUs, of which it has none: with a stand-in for Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate_text
from trainscout.simulators.virtual_cluster.emulation.gaps import NO_GPU_OF_RAY, is_gap, reason

pytest.importorskip("torch")

MAKER = """
class {name}:
    def __init__(self, made, **options):
        self.made, self.stated = made, options
    def remote(self, *args):
        return self._remote(args=args, kwargs={{}}, **self.stated)
    def options(self, **options):
        return {name}(self.made, **self.stated | options)
    def _remote(self, args=None, kwargs=None, **options):
        return "started"
"""
RAY = {
    "__init__.py": """
from ray.actor import ActorClass
from ray.remote_function import RemoteFunction

def remote(**options):
    return lambda made: (ActorClass if isinstance(made, type) else RemoteFunction)(made, **options)
""",
    "actor.py": MAKER.format(name="ActorClass"),
    "remote_function.py": MAKER.format(name="RemoteFunction"),
    "util/__init__.py": "from ray.util.placement_group import placement_group",
    "util/placement_group.py": """
def placement_group(bundles, strategy="PACK"):
    return "started"
""",
}
SCRIPT = """
import sys
sys.path.insert(0, {packages!r})
import ray, torch
from ray.util import placement_group

@ray.remote(num_cpus=1, num_gpus={gpus})
class Trainer: pass

@ray.remote(num_cpus=1)
def generate(): pass

assert {call} == "started"
"""
CALLS = {
    "Trainer.remote()": "remote(num_gpus=...)",
    "generate.options(num_gpus={gpus}).remote()": "remote(num_gpus=...)",
    "placement_group(bundles=[dict(CPU=1)] + [dict(GPU={gpus})] * 2)": "util.placement_group",
}


def _script(folder: Path, call: str, gpus: float) -> str:
    packages = folder / "site-packages"
    for name, text in RAY.items():
        (packages / "ray" / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / "ray" / name).write_text(text)
    return SCRIPT.format(packages=str(packages), call=call.format(gpus=gpus), gpus=gpus)


@pytest.mark.parametrize(("call", "asked"), CALLS.items())
def test_what_asks_ray_for_gpus_is_named(call: str, asked: str, tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "job.py", _script(tmp_path, call, 0.5), "--world-size", "8")
    assert run.code == 3, run.output
    line = run.output.partition("gap of the emulator: ")[2].partition("\n")[0]
    assert "job.py:13 in <module>: " in line
    assert f"ray.{asked}=used: is not emulated" in line
    assert "run a worker's own training entry" in line


def test_workers_of_ray_without_gpus_are_the_scripts_own(tmp_path: Path) -> None:
    calls = " == ".join(CALLS)
    run = emulate_text(tmp_path, "job.py", _script(tmp_path, calls, 0), "--world-size", "8")
    assert run.code == 0, run.output


STARTER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, {worker!r}], stdout=-1, stderr=-1, text=True)
said, failed = worker.communicate()
assert int(said) == worker.pid, failed
assert "is not emulated: workers of Ray" in failed.splitlines()[-1], failed
"""


def test_a_worker_of_ray_stays_the_process_that_ray_started(tmp_path: Path) -> None:
    text = _script(tmp_path, "(print(os.getpid()), Trainer.remote())", 1)
    worker = tmp_path / "site-packages/ray/_private/workers/default_worker.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(f"import os\n{text}")
    starter = STARTER.format(worker=str(worker))
    run = emulate_text(tmp_path, "starter.py", starter, "--world-size", "8")
    assert run.code == 0, run.output


@pytest.mark.parametrize("before", ["", "trainscout.errors.InputError: "])
def test_what_ray_repeats_of_a_worker_is_a_gap(before: str) -> None:
    # Below a line of its own, by the name of the error or not.
    told = f"ray.remote=used: is not emulated: {NO_GPU_OF_RAY} (without Ray)"
    error = RuntimeError(f"ray::Runner.run() (pid=1)\n{before}{told}")
    assert is_gap(error, [])
    assert reason(error) == told
