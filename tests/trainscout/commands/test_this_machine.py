"""A GPU node from what its programs print, in the form that they print it."""

import dataclasses
import os

import pytest
import yaml

from tests.in_process import command
from trainscout.commands import this_machine
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.errors import InputError

GPUS = load_catalogue().gpus
AMD, INTEL = "vendor_id\t: AuthenticAMD\n", "vendor_id\t: GenuineIntel\n"


def topology(count, links, nics=0):
    """As ``nvidia-smi topo -m`` draws it; ``links(a, b)``: NVLinks of a pair."""
    names = [f"GPU{i}" for i in range(count)]
    cards = [f"NIC{i}" for i in range(nics)]
    lines = ["\t" + "\t".join([*names, *cards, "CPU Affinity", "NUMA Affinity"])]
    for a in range(count):
        cells = [
            "X" if a == b else f"NV{links(a, b)}" if links(a, b) else "SYS" for b in range(count)
        ]
        lines.append("\t".join([f"\x1b[4mGPU{a}\x1b[0m", *cells, *["PXB"] * nics, "0-55", "0"]))
    return "\n".join(
        [*lines, "", "Legend:", "  NV#  = Connection traversing a bonded set of # NVLinks"]
    )


def ca(name, rate, state="Active", layer="InfiniBand"):
    return f"""\
CA '{name}'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.3560
	Node GUID: 0xa088c20300a6d5ac
	Port 1:
		State: {state}
		Physical state: {"LinkUp" if state == "Active" else "Disabled"}
		Rate: {rate}
		Base lid: 0
		Capability mask: 0x00010000
		Link layer: {layer}
"""


H100_NODE = {
    "listed": "NVIDIA H100 80GB HBM3, 81559\n" * 8,
    "topology": topology(8, lambda a, b: 18, nics=10),
    # Two of storage and one that is not connected stand among those of the compute fabric.
    "nics": "".join(ca(f"mlx5_{i}", 400) for i in range(8))
    + ca("mlx5_8", 200) + ca("mlx5_9", 100, layer="Ethernet") + ca("mlx5_10", 400, "Down"),
    "cpuinfo": INTEL,
}  # fmt: skip
A40_PAIRS = {
    "listed": "NVIDIA A40, 46068\n" * 4,
    "topology": topology(4, lambda a, b: 4 if a // 2 == b // 2 else 0),
    "nics": ca("mlx5_0", 100, layer="Ethernet"),
    "cpuinfo": AMD,
}


def declared(printed, name="ours"):
    machine = this_machine.read_machine(**printed)
    gpu = this_machine.declared_gpu(machine, GPUS)
    return yaml.safe_load(this_machine.cluster_yaml(machine, gpu, name))


def test_a_node_with_switches_and_cards_of_a_kind_for_each_gpu():
    found = declared(H100_NODE)
    assert found["gpu"] == "h100"
    wanted = {"gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400, "fabric": "infiniband"}
    assert wanted.items() <= found.items()
    assert found["cpu"] == "intel"
    assert not {"nvlink_domain", "nvswitch"} & set(found)


def test_a_node_of_bridged_pairs_behind_ethernet():
    found = declared(A40_PAIRS)
    assert (found["nvlink_domain"], found["nvswitch"]) == (2, False)
    assert (found["nics_per_node"], found["fabric"], found["cpu"]) == (1, "roce", "amd")


def test_without_nvlink_and_ibstat():
    found = declared(A40_PAIRS | {"topology": topology(4, lambda a, b: 0), "nics": ""})
    assert (found["nics_per_node"], found["fabric"]) == (0, "none")
    assert "nvlink_domain" not in found


@pytest.mark.parametrize(
    ("name", "mib", "links", "has_switches"),
    [
        # Links of a pair of four GPUs: six of eighteen wired, all of them through switches.
        ("h100", 81559, 6, False),
        ("gb200", 189471, 18, True),
        ("a100_80", 81920, 4, False),
    ],
)
def test_switches_are_known_by_links_that_lead_to_several(name, mib, links, has_switches):
    shown = topology(4, lambda a, b: links)
    machine = this_machine.read_machine(f"NVIDIA {name}, {mib}\n" * 4, shown, "", "")
    assert this_machine.switched(machine, GPUS[name]) is has_switches


@pytest.mark.parametrize(
    ("shown", "mib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100_80"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100_40"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100_80_pcie"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA H20", 97871, "h20"),
        ("NVIDIA H800", 81559, "h800"),
        ("NVIDIA B200", 183359, "b200"),
        ("Tesla V100-SXM2-32GB", 32768, "v100_32"),
        ("Tesla V100-SXM2-16GB", 16160, "v100_16"),
        ("NVIDIA H100 PCIe", 81559, "h100_pcie"),
        ("NVIDIA H100 NVL", 95830, "h100_nvl"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100_40_pcie"),
        ("NVIDIA RTX A6000", 49140, "a6000"),
        ("NVIDIA L40S", 46068, "l40s"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx4090"),
    ],
)
def test_names_that_drivers_show_are_declared_gpus(shown, mib, name):
    machine = this_machine.read_machine(f"{shown}, {mib}", "", "", "")
    assert this_machine.declared_gpu(machine, GPUS).name == name


def test_a_gpu_that_nobody_declared_is_refused():
    machine = this_machine.read_machine("NVIDIA X9000, 46068", "", "", "")
    with pytest.raises(InputError, match="is no GPU that is declared"):
        this_machine.declared_gpu(machine, GPUS)
    other = dataclasses.replace(machine, gpu="NVIDIA H100", memory_bytes=64 << 30)
    with pytest.raises(InputError, match="is no GPU that is declared"):
        this_machine.declared_gpu(other, GPUS)


def test_different_gpus_are_refused():
    with pytest.raises(InputError, match="are different GPUs"):
        this_machine.read_machine("NVIDIA A40, 46068\nNVIDIA H200, 143771\n", "", "", "")


def test_cards_of_which_none_is_active():
    assert this_machine.read_nics(ca("mlx5_0", 400, "Down")) == ()


@pytest.fixture(name="node")
def fixture_node(tmp_path, monkeypatch):
    """This machine with programs that print what such a node's print."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("listed", "topology", "nics"):
        (programs / name).write_text(H100_NODE[name], encoding="utf-8")
    query = f'case "$*" in *topo*) cat {programs}/topology;; *) cat {programs}/listed;; esac'
    for program, does in (("nvidia-smi", query), ("ibstat", f"cat {programs}/nics")):
        (programs / program).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_doctor_writes_a_cluster_that_can_be_searched_on(node, capsys):
    doctor = command("doctor")
    assert doctor(["--cluster", "mine/cluster/ours.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "8 x NVIDIA H100 80GB HBM3" in shown
    assert "8 x 400 Gb/s infiniband" in shown
    assert shown.count("  ok ") == 2  # of the self-test
    cluster, gpu = load_catalogue(node / "mine").machines("ours")
    assert (cluster.num_gpus, gpu.name, cluster.nic_gbps) == (8, "h100", 400)
    assert doctor(["--cluster", "mine/cluster/ours.yaml"]) == 2
    assert "is not replaced" in capsys.readouterr().err


def test_a_failing_self_test_is_an_exit_code(node, capsys, monkeypatch):
    def broken():
        raise ArithmeticError("parts are no step")

    monkeypatch.setattr("trainscout.commands.doctor.SELF_TESTS", {"predict": broken})
    assert command("doctor")([]) == 1
    assert "FAILED  predict: ArithmeticError: parts are no step" in capsys.readouterr().out


def test_without_a_gpu_no_cluster_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("doctor")(["--cluster", tmp_path / "ours.yaml"]) == 2
    assert "nvidia-smi shows no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "ours.yaml").exists()
