"""From what a row says about its machines to a declared cluster."""

from __future__ import annotations

import math
import re

from trainscout.simulators.laboratory.published.reading.phrases import NOTES
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu

from .era import Era, nccl_version
from .outcome import CannotReplayError

# An InfiniBand NIC is HDR's at the least where servers usually have that: GPUs share such a NIC
# rather than having a slow one each, and NCCL takes other algorithms over fewer, faster NICs.
_SLOWEST_NIC_GBPS, _SLOWEST_INFINIBAND_GBPS = 100.0, 200.0
_COUNTS = {"one": 1, "two": 2, "four": 4, "eight": 8}
# Of a node whose ranks talk TCP over its host's adapter, as clouds' servers have one.
_HOST_ADAPTER_GBPS = 100.0

# GPUs of the boards that have NVSwitches; on the boards of half as many (HGX A100, H100 and H200
# 4-GPU) every pair has a third of the links (NVIDIA's HGX data sheets).
_SWITCHED = 8
# Makers round rates of links by less.
_OTHER_RATE, _PCIE_GEN3_BYTES_PER_S = 0.05, 16e9
_PCIE, _NVLINK = re.compile(r"\bpci-?e"), re.compile(r"nv[\s-]?(?:link|switch)")
_NOT_NVLINK = re.compile(r"(?:no|without|w/o)[\s-]*nvlink")

_FABRICS = [phrase for phrase in NOTES if phrase.fact == "fabric"]
# Whose word stands for the whole rate of a network.
_VALIDATED = {
    "maker": "the GPU's maker ran it",
    "tuned": "its operator says how it was tuned",
    "validated": "its owner's own simulator holds that rate",
    "measured": "its users measured that rate between nodes",
}
# Fabrics that go by another name, or of which nobody published measurements.
_PRICED_AS = {
    "": ("infiniband", "fabric not published: infiniband"),
    "omni-path": ("omni_path", ""),
    "ethernet": ("roce", "Ethernet is priced as RoCE of the same rate"),
    "sockets": ("roce", "Ethernet is priced as RoCE of the same rate"),
}


def cluster_of(
    row: Row, statement: Statement, era: Era, gpu: Gpu, num_gpus: int
) -> tuple[Cluster, tuple[str, ...]]:
    """The cluster of ``num_gpus`` that the row ran on, and what was assumed about it.

    Raises:
        CannotReplayError: when the GPUs do not fill whole nodes.
    """
    assumed: list[str] = []
    server = gpu.server
    per_node = row.gpus_per_node
    if per_node is None:
        per_node = server.gpus_per_node
        assumed.append(f"GPUs per node not published: {per_node}")
    per_node = min(per_node, num_gpus)
    if num_gpus % per_node:
        raise CannotReplayError(f"{num_gpus} GPUs do not fill nodes of {per_node}")
    nodes = num_gpus // per_node

    counted = _counted_nics(statement)
    rate = row.inter_link_gbps_per_gpu
    if rate is None and counted is not None:
        rate = math.prod(counted) / per_node
    # The recipes of a cloud or a framework run on a fabric of its own.
    text = f"{row.source} {row.framework}".lower()
    own = (phrase.value for phrase in _FABRICS if phrase.pattern.search(text))
    named = statement.get("fabric") or next(own, None)
    if rate is None:
        # NICs of servers that have one for each GPU run Ethernet at InfiniBand's rate (RoCE).
        rate = _HOST_ADAPTER_GBPS / per_node if named == "sockets" else server.nic_gbps
        if nodes > 1:
            assumed.append(f"node network not published: {rate:g} Gb/s per GPU")
    fabric, words = _PRICED_AS.get(named or "", (named or "", ""))
    slowest = _SLOWEST_NIC_GBPS
    if named in (None, "infiniband"):
        slowest = max(slowest, min(_SLOWEST_INFINIBAND_GBPS, server.nic_gbps))
    nics, nic_gbps = _nics(rate, per_node, slowest)
    if counted is not None and math.prod(counted) == rate * per_node:
        nics, nic_gbps = counted
    if nodes > 1 and words:
        assumed.append(words)

    validated = statement.get("network")
    if nodes > 1 and validated is not None:
        assumed.append(
            f"collectives between nodes reach a tuned network's rate: {_VALIDATED[validated]}"
        )

    domain, nvswitch = _nvlink(row, gpu, num_gpus, per_node, assumed)
    domain = per_node if statement.says("domain", "node") else domain
    version = statement.get("nccl") or nccl_version(era)
    if num_gpus > 1 and not statement.says("nccl"):
        assumed.append(f"NCCL {version}, by the year of the software ({era.why})")
    cluster = Cluster(
        name=f"{num_gpus}x{row.gpu}",
        num_nodes=nodes,
        gpus_per_node=per_node,
        nics_per_node=nics,
        nic_gbps=nic_gbps,
        fabric=fabric,
        source=row.source,
        nvlink_domain=domain,
        nvswitch=nvswitch,
        oversubscription=None if validated is None else 1.0,
        cpu=server.cpu,
        nccl_version=version,
        # What was run did fit: no reserve is asked for.
        memory_reserve=0.0,
    )
    return cluster, tuple(assumed)


def _nvlink(
    row: Row, gpu: Gpu, num_gpus: int, per_node: int, assumed: list[str]
) -> tuple[int | None, bool]:
    """GPUs that NVLink joins (None: a node's), and whether switches do."""
    server, links = gpu.server, row.intra_link.lower()
    domain = server.nvlink_domain
    if num_gpus > 1:
        assumed.extend(_other_links(links, gpu))
    if _PCIE.search(links) and "nvlink" not in _NOT_NVLINK.sub("", links):
        # Bridges that a board may have, and SXM's links, are not what the row has.
        if gpu.nvlink_links and num_gpus > 1:
            assumed.append("PCIe alone joins the GPUs of a node")
        return 1, False
    if domain is not None and domain > server.gpus_per_node:
        rack, domain = domain, _rack_share(num_gpus, per_node, domain)
        if num_gpus > rack:
            assumed.append(f"NVLink domain: {domain} GPUs of each rack of {rack}")
    elif domain is not None:
        domain = min(domain, per_node)
        assumed.append(f"NVLink bridges join {domain} GPUs")
    wired = server.nvswitch and 2 * (row.gpus_per_node or 0) == _SWITCHED == server.gpus_per_node
    nvswitch = "nvswitch" in links or (server.nvswitch and not wired)
    if wired and not nvswitch and num_gpus > 1:
        # A job on part of a board has its links to the rest as well, and cannot use them.
        domain = row.gpus_per_node
        assumed.append(f"NVLink joins the {row.gpus_per_node} GPUs of a node without switches")
    return domain, nvswitch


def _other_links(links: str, gpu: Gpu) -> tuple[str, ...]:
    """What a row says of links inside a node that the declared GPU does not have."""
    statement_nvlink = _NVLINK.search(_NOT_NVLINK.sub("", links))
    if statement_nvlink and not gpu.nvlink_links:
        return (f"NVLink, which {gpu.name} is declared without: PCIe joins its GPUs",)
    words = []
    rate = re.search(r"(\d+(?:\.\d+)?) ?gb/s", links)
    if rate and statement_nvlink:
        # Printed per direction or for both.
        own_gbs = gpu.nvlink_bytes_per_s / 1e9
        ratios = (float(rate[1]) / own_gbs, float(rate[1]) / own_gbs / 2)
        if all(abs(ratio - 1) > _OTHER_RATE for ratio in ratios):
            words.append(f"NVLink of {gpu.name}, {own_gbs:g} GB/s each way, not {rate[1]} GB/s")
    slot = 3 + round(math.log2(gpu.pcie_bytes_per_s / _PCIE_GEN3_BYTES_PER_S))
    generation = re.search(r"pci-?e ?(?:gen ?)?([3-6])", links)
    if generation and int(generation[1]) != slot:
        words.append(f"PCIe Gen{slot} of {gpu.name}, not Gen{generation[1]}")
    return tuple(words)


def _nics(gbps_per_gpu: float, per_node: int, slowest_gbps: float) -> tuple[int, float]:
    """NICs of a node and the rate of one, of which the slowest that exists is known."""
    nics, rate = per_node, gbps_per_gpu
    while rate < slowest_gbps and nics % 2 == 0:
        nics, rate = nics // 2, rate * 2
    return nics, rate


def _counted_nics(statement: Statement) -> tuple[int, float] | None:
    """The node's NICs and Gb/s of each, where the notes count them (``8x400G``)."""
    numbers = re.findall(rf"\d+|{'|'.join(_COUNTS)}", statement.facts.get("nics", ""))
    if len(numbers) != 2:
        return None
    return _COUNTS.get(numbers[0]) or int(numbers[0]), float(numbers[1])


def _rack_share(num_gpus: int, per_node: int, rack: int) -> int:
    """GPUs of one NVLink domain: jobs take equal shares of every rack they touch."""
    if num_gpus <= rack:
        return num_gpus
    shares = range(rack - rack % per_node, 0, -per_node)
    return next((share for share in shares if num_gpus % share == 0), per_node)
