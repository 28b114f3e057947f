"""What a GPU node says of itself, as a cluster: nvidia-smi, ibstat and the processor's vendor.

Reading is apart from running: functions here take what the programs print.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
TOPOLOGY = ("nvidia-smi", "topo", "-m")
NICS = ("ibstat",)
# What drivers show of a memory differs a little from one release to the next.
_SAME_MEMORY = 0.06
_WAIT_S = 20


@dataclass(frozen=True)
class Nic:
    """An adapter as ibstat shows its first active port."""

    name: str
    rate_gbps: float
    fabric: str
    """``infiniband`` or ``roce``, by the port's link layer."""


@dataclass(frozen=True)
class Machine:
    """One node."""

    gpu: str
    """What nvidia-smi calls each."""
    memory_bytes: int
    """Of each GPU, as the driver shows it."""
    gpus: int
    nvlink_domain: int
    """The most GPUs that NVLink joins; 1: none."""
    nvlinks: int
    """The most links to all others that the matrix shows one GPU with: through switches each link
    counts for every peer."""
    nics: tuple[Nic, ...]
    """Of the compute fabric: those with the highest rate."""
    cpu: str
    """``intel``, ``amd`` or ``arm``."""


def this_machine() -> Machine | None:
    """This node; None where no NVIDIA driver answers."""
    listed = _output(QUERY)
    if not listed.strip():
        return None
    cpuinfo = Path("/proc/cpuinfo")
    processor = cpuinfo.read_text("utf-8") if cpuinfo.exists() else ""
    return read_machine(listed, _output(TOPOLOGY), _output(NICS), processor)


def read_machine(listed: str, topology: str, nics: str, cpuinfo: str) -> Machine:
    """A node from what its programs print.

    Args:
        listed: ``nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits``: MiB.
        topology: ``nvidia-smi topo -m``.
        nics: ``ibstat``; empty where there is none.
        cpuinfo: ``/proc/cpuinfo``.

    Raises:
        InputError: for GPUs that are not all equal, or output of another form.
    """
    rows = [line.rpartition(",") for line in listed.strip().splitlines()]
    kinds = {(name.strip(), memory.strip()) for name, _, memory in rows}
    if len(kinds) != 1:
        shown = ", ".join(sorted(f"{name} with {memory} MiB" for name, memory in kinds))
        raise InputError("nvidia-smi", shown, "are different GPUs", "nodes of equal GPUs")
    ((name, memory),) = kinds
    if not memory.isdigit():
        raise InputError("nvidia-smi", memory, "is no memory size", "MiB")
    links = _links(topology, len(rows))
    domain = max(len(_joined(gpu, links)) for gpu in range(len(rows)))
    ends: Counter[int] = Counter()
    for (gpu, _), count in links.items():
        ends[gpu] += count
    return Machine(
        name,
        int(memory) << 20,
        len(rows),
        domain,
        max(ends.values(), default=0),
        read_nics(nics),
        _cpu(cpuinfo),
    )


def read_nics(shown: str) -> tuple[Nic, ...]:
    """Adapters with an active port, of those only the fastest kind, from what ibstat prints."""
    found = []
    for part in re.split(r"^CA '", shown, flags=re.MULTILINE)[1:]:
        name = part.partition("'")[0]
        for port in re.split(r"^\s*Port \d+:", part, flags=re.MULTILINE)[1:]:
            stated = dict(re.findall(r"^\s*([\w ]+): (.+?)\s*$", port, re.MULTILINE))
            if stated.get("State") == "Active" and stated.get("Rate", "").isdigit():
                fabric = "infiniband" if stated.get("Link layer") == "InfiniBand" else "roce"
                found.append(Nic(name, float(stated["Rate"]), fabric))
                break
    if not found:
        return ()
    fastest = max(nic.rate_gbps for nic in found)
    (fabric, _), *_ = Counter(n.fabric for n in found if n.rate_gbps == fastest).most_common()
    return tuple(nic for nic in found if nic.rate_gbps == fastest and nic.fabric == fabric)


def declared_gpu(machine: Machine, gpus: Mapping[str, Gpu]) -> Gpu:
    """The declaration of a machine's GPUs.

    Raises:
        InputError: where none, or several, have this name and this much memory.
    """
    called = machine.gpu.lower().replace("_", "-")
    found = [
        name
        for name, gpu in gpus.items()
        if gpu.is_published_as(called)
        and abs(gpu.memory_bytes / machine.memory_bytes - 1) < _SAME_MEMORY
    ]
    if len(found) != 1:
        size = f"{machine.gpu}, {machine.memory_bytes / 2**30:.1f} GiB"
        problem = f"may be any of {', '.join(found)}" if found else "is no GPU that is declared"
        raise InputError("nvidia-smi", size, problem, "a file in conf/gpu (docs/hardware.md)")
    return gpus[found[0]]


def switched(machine: Machine, gpu: Gpu) -> bool:
    """Whether its NVLink goes through switches: GPUs have more links to peers than links."""
    return machine.nvlinks > gpu.nvlink_links


def cluster_yaml(machine: Machine, gpu: Gpu, name: str) -> str:
    """A cluster of one such node, as a declaration."""
    rate = machine.nics[0].rate_gbps if machine.nics else 0
    fabric = machine.nics[0].fabric if machine.nics else "none"
    cards = ", ".join(nic.name for nic in machine.nics) or "ibstat shows none that is active"
    text = f"""\
# Written by trainscout doctor from what nvidia-smi and ibstat say on one node.
name: {name}
source: trainscout doctor, {machine.gpu}
gpu: {gpu.name}
num_nodes: 1                 # how many such nodes there are, this machine cannot say
gpus_per_node: {machine.gpus}
nics_per_node: {len(machine.nics)}             # {cards}
nic_gbps: {rate:g}
fabric: {fabric}
# oversubscription: 1        # collectives reach what the NICs carry; without this line half counts
cpu: {machine.cpu}
"""
    if 1 < machine.nvlink_domain < machine.gpus:
        text += f"nvlink_domain: {machine.nvlink_domain}\n"
    if switched(machine, gpu):
        text += (
            "# nvlink_domain: 72          # where NVLink leaves the node, this one cannot say\n"
        )
    elif machine.nvlinks:
        text += "nvswitch: false              # NVLink from GPU to GPU\n"
    return text


def _links(topology: str, count: int) -> dict[tuple[int, int], int]:
    """NVLinks between pairs of GPUs, from the matrix that nvidia-smi draws."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", topology)
    found = {}
    for row, cells in re.findall(r"^GPU(\d+)\s+(.*)$", plain, re.MULTILINE):
        for column, cell in enumerate(cells.split()[:count]):
            if linked := re.fullmatch(r"NV(\d+)", cell):
                found[int(row), column] = int(linked[1])
    return found


def _joined(gpu: int, links: Mapping[tuple[int, int], int]) -> set[int]:
    """The GPUs that NVLink joins with one, itself among them."""
    reached, new = {gpu}, {gpu}
    while new:
        new = {b for a, b in links if a in new} - reached
        reached |= new
    return reached


def _cpu(cpuinfo: str) -> str:
    if "AuthenticAMD" in cpuinfo:
        return "amd"
    return "arm" if "CPU implementer" in cpuinfo else "intel"


def _output(command: tuple[str, ...]) -> str:
    """What a program prints; nothing where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_WAIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
