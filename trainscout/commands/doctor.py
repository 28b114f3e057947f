"""``trainscout doctor``: what is installed, kept and working here, and what a GPU node is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainscout.cli import version
from trainscout.commands.init import refuse_existing, write_new
from trainscout.commands.this_machine import Machine, cluster_yaml, declared_gpu, this_machine
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.io.cache_folder import cache_folder
from trainscout.simulators.predictor.io.command_line import FAILURE, OK, command_parser
from trainscout.simulators.predictor.io.output import show_text
from trainscout.simulators.predictor.question.errors import InputError

# What is done without is said by what is then missing.
OPTIONAL = {
    "torch": "run, live, simulator=traced, search=gp",
    "megatron-core": "simulator=traced, verify=traced",
    "transformers": "scripts of Hugging Face in run, live",
    "torchtitan": "TorchTitan in run, live",
    "deepspeed": "DeepSpeed in run, live",
    "mlflow": "tracking=mlflow",
    "cmaes": "search=cmaes",
    "cma": "search=cma",
    "distributed": "executor=dask",
    "ray": "executor=ray",
    "submitit": "executor=slurm",
    "psycopg": "search.storage=postgresql://...",
    "apscheduler": "plan schedule=",
    "protobuf": "Chakra traces",
    "matplotlib": "plots of accuracy",
    "ns3": "comparison with ns-3",
}
# Where this folder's searches, studies and runs are.
CACHES = ("traced", "native", "numba")
STORES = ("mlflow.db", "outputs", "multirun", "plans")


def main(arguments: Sequence[str]) -> int:
    """Run the command: 0, or 1 when a self-test fails."""
    parser = command_parser(
        "doctor",
        "What is installed and what for, what is kept in caches and stores, and a self-test of a "
        "few seconds. On a GPU node, what its GPUs, NVLink and network cards are, as nvidia-smi "
        "and ibstat say; --cluster writes that as a cluster to search on.",
        "trainscout doctor\n"
        "trainscout doctor --cluster mine/cluster/ours.yaml\n"
        "trainscout optimize --config-dir mine cluster=ours cluster.num_nodes=16",
        "0 all works; 1 a self-test failed, or an internal failure; 2 wrong input",
        usage="[--cluster FILE]",
    )
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="write this node as a cluster"
    )
    options = parser.parse_args(arguments)
    machine = this_machine()
    if options.cluster is not None:
        if machine is None:
            problem = "cannot be written: nvidia-smi shows no GPU here"
            raise InputError("--cluster", options.cluster, problem, "trainscout init")
        refuse_existing("--cluster", options.cluster)
        gpu = declared_gpu(machine, load_catalogue().gpus)
        text = cluster_yaml(machine, gpu, options.cluster.stem)
        write_new("--cluster", options.cluster, text)
    tests = [(name, *_tried(test)) for name, test in SELF_TESTS.items()]
    show_text("".join(f"{line}\n" for line in _report(machine, tests, options.cluster)))
    return OK if all(passed for _, passed, _ in tests) else FAILURE


def _report(
    machine: Machine | None, tests: Sequence[tuple[str, bool, str]], written: Path | None
) -> Iterator[str]:
    cores = os.cpu_count() or 1
    python, system = platform.python_version(), platform.system()
    yield f"trainscout {version()}, Python {python}, {system}, {cores} cores"
    yield "\nInstalled"
    yield from (f"  {name:14}{_version(name):12}{what}" for name, what in OPTIONAL.items())
    yield "\nCaches and stores"
    yield from (f"  {path}  {_kept(path)}" for path in _places())
    yield "\nSelf-test"
    yield from (f"  {'ok' if ok else 'FAILED':8}{name}: {stated}" for name, ok, stated in tests)
    yield "\nThis machine"
    yield from (f"  {line}" for line in describe(machine, written))


def describe(machine: Machine | None, written: Path | None) -> Iterator[str]:
    """A node in words, and what to do with it."""
    if machine is None:
        yield "no NVIDIA driver answers, and none is needed: GPUs are simulated"
        return
    size = f"{machine.memory_bytes / 2**30:.1f} GiB"
    yield f"{machine.gpus} x {machine.gpu}, {size}"
    yield f"NVLink joins {machine.nvlink_domain} GPUs" if machine.nvlinks else "no NVLink"
    if machine.nics:
        nic = machine.nics[0]
        yield f"{len(machine.nics)} x {nic.rate_gbps:g} Gb/s {nic.fabric}"
    else:
        yield "no active network card that ibstat shows"
    try:
        yield f"gpu={declared_gpu(machine, load_catalogue().gpus).name}"
    except InputError as error:
        yield str(error)
    if written is None:
        yield "trainscout doctor --cluster mine/cluster/ours.yaml writes it as a cluster"
    else:
        yield f"written to {written}: say there how many such nodes there are"


def _tried(test: Callable[[], str]) -> tuple[bool, str]:
    """Whether a self-test passed, and what it says with the time it took."""
    start = time.perf_counter()
    try:
        stated = test()
    except Exception as error:  # what is broken here may fail in any way
        return False, f"{type(error).__name__}: {error}"
    return True, f"{stated} ({time.perf_counter() - start:.1f} s)"


def _predicts() -> str:
    import trainscout as ts

    question = ts.question(model="llama3_8b", cluster="h100_64", global_batch_size=512)
    step = ts.predict(question, tp=2, sp=True, recompute="selective")
    total_s = sum(step.breakdown_s.values())
    if abs(total_s / step.step_time_s - 1) > 1e-6:
        raise ArithmeticError(f"parts of {total_s} s are no step of {step.step_time_s} s")
    return f"llama3_8b on 64 H100, a step of {step.step_time_s:.2f} s"


def _searches() -> str:
    import trainscout as ts

    question = ts.question(model="gpt3_2b7", cluster="h100_64", num_nodes=1, global_batch_size=64)
    found = ts.search(question, space="maya_table3", search="exact", executor="serial")
    if found.best is None or not found.proved:
        raise ArithmeticError("the best recipe could not be proved")
    return f"gpt3_2b7 on 8 H100, the best of {len(found.found.trials):,} simulated recipes proved"


SELF_TESTS: dict[str, Callable[[], str]] = {"predict": _predicts, "search": _searches}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _places() -> tuple[Path, ...]:
    return *(cache_folder() / each for each in CACHES), *map(Path, STORES)


def _kept(place: Path) -> str:
    """What a folder or file holds, in words."""
    files = [path for path in place.rglob("*") if path.is_file()] if place.is_dir() else []
    if place.is_file():
        files = [place]
    if not files:
        return "nothing"
    size = sum(path.stat().st_size for path in files)
    return f"{len(files):,} file{'s' * (len(files) != 1)}, {size / 2**20:.1f} MiB"
