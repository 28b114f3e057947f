"""GPUs and clusters of the public machines that the tests quote."""

from __future__ import annotations

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.workload.ir import Communicator

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def gpu(
    name: str,
    architecture: str,
    compute_capability: float,
    sms: int,
    links: int,
    nvlink: float,
    pcie: float,
    memory: float,
) -> Gpu:
    return Gpu(
        name=name,
        architecture=load_catalogue().architectures[architecture],
        compute_capability=compute_capability,
        sms=sms,
        peak_flops={"bf16": 1e14},
        memory_bytes=80 << 30,
        memory_bandwidth_bytes_per_s=memory,
        l2_bytes=40 << 20,
        nvlink_links=links,
        nvlink_bytes_per_s=nvlink,
        pcie_bytes_per_s=pcie,
        price_usd_per_hour=1.0,
    )


V100 = gpu("v100", "volta", 7.0, 80, 6, 150e9, 16e9, 0.9e12)
A40 = gpu("a40", "ampere", 8.6, 84, 4, 56e9, 32e9, 0.696e12)
A100 = gpu("a100", "ampere", 8.0, 108, 12, 300e9, 32e9, 2.039e12)
A100_PCIE = gpu("a100_pcie", "ampere", 8.0, 108, 0, 0.0, 32e9, 1.555e12)
A800 = gpu("a800", "ampere", 8.0, 108, 8, 200e9, 32e9, 2.039e12)
H100 = gpu("h100", "hopper", 9.0, 132, 18, 450e9, 64e9, 3.35e12)
H800 = gpu("h800", "hopper", 9.0, 132, 8, 200e9, 64e9, 3.35e12)
B200 = gpu("b200", "blackwell", 10.0, 148, 18, 900e9, 64e9, 8e12)
RTX5090 = gpu("rtx5090", "blackwell", 12.0, 170, 0, 0.0, 64e9, 1.79e12)


def cluster(
    nodes: int,
    gpus: int,
    nics: int = 8,
    gbps: float = 400,
    version: str = "2.22",
    *,
    fabric: str = "infiniband",
    cpu: str = "intel",
    nvswitch: bool = True,
    domain: int | None = None,
    oversubscription: float = 1.0,
) -> Cluster:
    return Cluster(
        name="test",
        num_nodes=nodes,
        gpus_per_node=gpus,
        nics_per_node=nics,
        nic_gbps=gbps,
        fabric=fabric,
        source="test",
        nvlink_domain=domain,
        nvswitch=nvswitch,
        oversubscription=oversubscription,
        cpu=cpu,
        nccl_version=version,
    )


def group(per_node: int, nodes: int = 1, siblings: int = 1) -> Communicator:
    return Communicator("group", per_node * nodes, per_node, nodes, siblings)
