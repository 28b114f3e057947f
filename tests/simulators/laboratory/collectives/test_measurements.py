"""Rows of a table become machines, with what had to be assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.simulators.laboratory.collectives.measurements import (
    UnusableRowError,
    describe,
    read_table,
)
from trainscout.simulators.predictor.question.errors import InputError

H100_TWO_NODES = {
    "source": "somebody",
    "collective": "all_reduce",
    "gpu": "H100-SXM5-80GB",
    "num_gpus": "16",
    "num_nodes": "2",
    "gpus_per_node": "8",
    "intra_link": "NVLink4-NVSwitch",
    "nic_gbps_per_gpu": "400",
    "nccl_version": "2.26.2",
    "algo": "",
    "bytes": "1048576",
    "time_us": "71.9",
    "notes": "cluster=mine;q=A;8xCX7 400G IB",
}


def row(**changes: str) -> dict[str, str]:
    return {**H100_TWO_NODES, **changes}


def test_a_complete_row_assumes_only_its_fabric() -> None:
    found = describe("1", row())
    assert (found.cluster_id, found.kind, found.size_bytes) == ("mine", "all_reduce", 1 << 20)
    assert found.seconds == pytest.approx(71.9e-6)
    assert (found.communicator.nodes, found.communicator.ranks_per_node) == (2, 8)
    assert (found.gpu.architecture.name, found.gpu.nvlink_links) == ("hopper", 18)
    cluster = found.cluster
    assert (cluster.fabric, cluster.nics_per_node, cluster.nic_gbps) == ("infiniband", 8, 400)
    assert cluster.nccl_version == "2.26.2"
    assert len(found.assumptions) == 1
    assert found.assumptions[0].startswith("infiniband")


@pytest.mark.parametrize(
    ("wording", "gpu", "fabric", "nics", "gbps"),
    [
        ("2x p5, EFA 3200G/node", "H100", "efa", 8, 400),
        ("p4d.24xlarge", "A100-SXM4", "efa", 4, 100),
        ("Slingshot-11 aws-ofi-nccl 1.9.2", "GH200", "slingshot", 4, 200),
        ("TCPXO (GPUDirect-TCP, not RDMA)", "H100", "tcpx", 8, 200),
        ("A3 Ultra = 8 H200, 8x400G RoCE", "H200", "roce", 8, 400),
        ("OCI BM.GPU.H100", "H100", "roce", 8, 400),
        ("a cluster in a room", "A100-SXM4", "infiniband", 8, 200),
    ],
)
def test_wording_names_the_fabric(
    wording: str, gpu: str, fabric: str, nics: int, gbps: float
) -> None:
    per_gpu = {"efa": "400" if gpu == "H100" else "50"}.get(fabric, "")
    ranks = "8" if gpu == "GH200" else "16"
    found = describe("1", row(notes=wording, gpu=gpu, num_gpus=ranks, nic_gbps_per_gpu=per_gpu))
    cluster = found.cluster
    assert (cluster.fabric, cluster.nics_per_node, cluster.nic_gbps) == (fabric, nics, gbps)
    assert found.assumptions


@pytest.mark.parametrize(
    ("notes", "per_gpu", "nics"),
    [("Polaris", "", 2), ("Perlmutter", "", 4), ("2 NIC x 200G Slingshot per 4 GPUs", "100", 2)],
)
def test_nics_are_printed_or_of_a_named_machine(notes: str, per_gpu: str, nics: int) -> None:
    links = "NVLink3-direct(4 GPU mesh)"
    changes = {"gpu": "A100-SXM4", "intra_link": links, "num_gpus": "8"}
    cluster = describe("1", row(notes=notes, nic_gbps_per_gpu=per_gpu, **changes)).cluster
    assert (cluster.nics_per_node, cluster.nic_gbps, cluster.nvswitch) == (nics, 200, False)


def test_a_stated_protocol_is_not_imposed() -> None:
    assert any("protocol LL128" in text for text in describe("1", row(proto="LL128")).assumptions)
    assert not any("protocol" in text for text in describe("1", row(proto="")).assumptions)


def test_a_version_that_is_not_printed_is_assumed() -> None:
    found = describe("1", row(nccl_version=""))
    assert found.cluster.nccl_version == "2.22"
    assert any("NCCL 2.22" in text for text in found.assumptions)
    named = describe("1", row(nccl_version="", notes="not printed (2.10.3 in multi-node logs)"))
    assert named.cluster.nccl_version == "2.10.3"


def test_nvl72_trays_are_one_nvlink_domain() -> None:
    found = describe(
        "1", row(gpu="GB200", num_gpus="128", num_nodes="32", gpus_per_node="4", intra_link="")
    )
    assert (found.communicator.nodes, found.communicator.ranks_per_node) == (2, 64)
    assert found.cluster.domain == 72


def test_bridged_pairs_are_domains_of_two() -> None:
    found = describe("1", row(gpu="A100-PCIE(pair NVLink)", num_gpus="4", num_nodes="1"))
    assert (found.communicator.nodes, found.communicator.ranks_per_node) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"notes": "q=X;degraded"}, "graded X"),
        ({"collective": "gather"}, "gather"),
        ({"gpu": "?", "intra_link": ""}, "gpus.yaml"),
        ({"num_nodes": "?"}, "num_nodes"),
        ({"num_nodes": "0.5"}, "not a whole number"),
        ({"nic_gbps_per_gpu": "fast"}, "nic_gbps_per_gpu"),
        ({"time_us": "0"}, "not positive"),
        ({"time_us": "nan"}, "not positive"),
        ({"num_gpus": "1", "num_nodes": "1"}, "one GPU"),
        ({"num_gpus": "15"}, "do not divide"),
        ({"algo": "tree_component"}, "part of a collective"),
    ],
)
def test_unusable_rows_say_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(UnusableRowError, match=reason):
        describe("1", row(**changes))


def test_a_table_keeps_skipped_rows_apart(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [row(), row(gpu="unheard of", intra_link="")]
    lines = [",".join(rows[0]), *(",".join(each.values()) for each in rows)]
    table.write_text("\n".join(lines))
    measurements, skipped = read_table(table)
    assert [each.id for each in measurements] == ["line 2"]
    assert [each.id for each in skipped] == ["line 3"]


@pytest.mark.parametrize(
    ("content", "reason"), [("a,b\n1,2\n", "lacks"), ("", "lacks"), (None, "none")]
)
def test_a_table_without_its_columns_is_refused(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    table = tmp_path / "none.csv"
    if content is not None:
        table.write_text(content)
    with pytest.raises(InputError, match=reason):
        read_table(table)


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("AllReduce", "all_reduce"),
        ("ALL_GATHER", "all_gather"),
        ("reduce-scatter", "reduce_scatter"),
        ("all_reduce_perf", "all_reduce"),
        ("ncclBroadcast", "broadcast"),
        ("alltoall", "all_to_all"),
        ("sendrecv_perf", "send_recv"),
    ],
)
def test_collectives_are_known_however_they_are_spelt(spelling: str, kind: str) -> None:
    assert describe("1", row(collective=spelling)).kind == kind


@pytest.mark.parametrize("spelling", ["NVLSTree", "nvls_tree", "NVLS-Tree"])
def test_algorithms_are_known_however_they_are_spelt(spelling: str) -> None:
    assert describe("1", row(algo=spelling)).algorithm == "nvls_tree"


@pytest.mark.parametrize("version", ["9.99", "2.31.1", "2.9", "1.3.4"])
def test_releases_that_nobody_knows_are_priced_as_the_nearest(version: str) -> None:
    stated = describe("1", row(nccl_version=version)).assumptions
    assert f"NCCL {version} is not among the known 2.10 to 2.30: priced as the nearest" in stated


@pytest.mark.parametrize("version", ["2.10", "2.10.3", "2.30.7-1"])
def test_known_releases_assume_nothing(version: str) -> None:
    assert not any("NCCL" in text for text in describe("1", row(nccl_version=version)).assumptions)
