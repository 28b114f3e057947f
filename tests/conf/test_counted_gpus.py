"""A cluster said by its GPUs alone."""

import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.conf.counted_gpus import counted_gpus
from trainscout.simulators.predictor.question.errors import InputError

NAMED = load_catalogue()


def test_gpus_come_in_their_usual_servers():
    cluster, gpu = counted_gpus("gpus", "64xH100", NAMED.gpus)
    assert gpu == "h100"
    assert (cluster.name, cluster.num_gpus, cluster.num_nodes) == ("64xh100", 64, 8)
    assert cluster.nic_gbps == NAMED.gpus["h100"].server.nic_gbps
    cluster.check()
    assert counted_gpus("gpus", "4 x A100-80", NAMED.gpus)[0].num_nodes == 1
    assert counted_gpus("gpus", "16xV100-32", NAMED.gpus)[1] == "v100_32"
    assert counted_gpus("gpus", "144xGB200", NAMED.gpus)[0].nvlink_domain == 72


def test_nodes_may_be_counted_too():
    for text, gpus, nodes in (("2x8xH200", 16, 2), ("3 x 4 x H100", 12, 3), ("1x1xA40", 1, 1)):
        cluster = NAMED.machines(text)[0]
        cluster.check()
        assert (cluster.num_gpus, cluster.num_nodes) == (gpus, nodes)
    assert counted_gpus("gpus", "2x8xH200", NAMED.gpus) == counted_gpus(
        "gpus", "16xH200", NAMED.gpus
    )


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("A100-SXM4-80GB", "a100_80"),
        ("NVIDIA A100-PCIE-40GB", "a100_40_pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("RTX 4090", "rtx4090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_gpus_may_be_called_as_their_drivers_call_them(called, name):
    assert counted_gpus("gpus", f"8x{called}", NAMED.gpus)[1] == name


def test_a_count_is_a_cluster_wherever_one_is_named():
    cluster, gpu = NAMED.machines("64xH100")
    assert (cluster.num_gpus, gpu.name) == (64, "h100")
    assert NAMED.machines("64xH100", "h200")[1].name == "h200"


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("64xMI250X", "names no supported GPU"),
        ("64xH1000", "names no supported GPU; did you mean '64xh100'"),
        ("2x8xA100", "2x8xA100: names several GPUs; did you mean '2x8xa100_40'.*a100_80"),
        ("60xH100", "a multiple of 8: 64xh100"),
        ("9000000xH100", "at most 1048576"),
        ("0xH100", "does not say how many"),
        ("0x8xH100", "does not say how many"),
        ("2x16xH100", "more GPUs a node than the 8 .*did you mean '32xh100'"),
        ("H100", "a number and a GPU: 64xH100"),
        ("H100x64", "did you mean '64xH100'"),
        ("64*H100", "did you mean '64xH100'"),
        ("16 A100 80GB", "did you mean '16xA100 80GB'"),
        ("2x4090", "did you mean '2xrtx4090'"),
        ("8xA100-SXM4", "names no supported GPU"),
    ],
)
def test_what_cannot_be_says_what_can(text, stated):
    with pytest.raises(InputError, match=stated) as refused:
        counted_gpus("gpus", text, NAMED.gpus)
    assert refused.value.field == "gpus"
