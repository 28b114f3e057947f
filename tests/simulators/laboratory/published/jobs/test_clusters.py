import pytest

from tests.simulators.laboratory.published.runs import replayable
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.collectives.graph import wiring_of
from trainscout.simulators.predictor.workload.ir import Communicator


def cluster(**changes):
    return replayable(**changes).job.cluster


def test_one_nic_a_gpu():
    found = cluster()
    assert (found.num_nodes, found.gpus_per_node) == (8, 8)
    assert (found.nics_per_node, found.nic_gbps, found.fabric) == (8, 400, "infiniband")


def test_a_stated_release_of_nccl_is_used():
    outcome = replayable(notes="NCCL 2.8.3")
    assert outcome.job.cluster.nccl_version == "2.8.3"
    assert not any("NCCL" in text for text in outcome.assumptions)
    assert any("NCCL" in text for text in replayable().assumptions)


@pytest.mark.parametrize(("gbps", "nics", "each"), [(50, 4, 100), (12.5, 1, 100), (100, 8, 100)])
def test_gpus_share_slow_networks(gbps, nics, each):
    found = cluster(inter_link_gbps_per_gpu=gbps, notes="RoCE")
    assert (found.nics_per_node, found.nic_gbps) == (nics, each)


@pytest.mark.parametrize(("gbps", "nics"), [(50, 2), (100, 4), (200, 8)])
def test_gpus_share_hdr_nics_where_servers_have_those(gbps, nics):
    for notes in ("InfiniBand", ""):
        found = cluster(inter_link_gbps_per_gpu=gbps, notes=notes)
        assert (found.nics_per_node, found.nic_gbps) == (nics, 200)


def test_nics_that_are_counted_are_as_many() -> None:
    found = cluster(inter_link_gbps_per_gpu=100, notes="eight NICs of 100 Gbps a node")
    assert (found.nics_per_node, found.nic_gbps) == (8, 100)
    other = cluster(inter_link_gbps_per_gpu=50, notes="eight NICs of 100 Gbps a node")
    assert (other.nics_per_node, other.nic_gbps) == (2, 200)


@pytest.mark.parametrize(
    ("words", "divided"),
    [
        ("maker's own cluster", 1.0),
        ("Tuned network", 1.0),
        ("validated network rate", 1.0),
        ("25 GB/s all-to-all between nodes", 1.0),
        ("InfiniBand", None),
    ],
)
def test_a_network_is_whole_where_somebody_validated_it(words, divided):
    outcome = replayable(notes=words)
    assert outcome.job.cluster.oversubscription == divided
    stated = any("reach a tuned network's rate" in text for text in outcome.assumptions)
    assert stated is (divided is not None)


def test_an_unpublished_network_is_the_reference_system_s():
    outcome = replayable(inter_link_gbps_per_gpu=None)
    assert outcome.job.cluster.nic_gbps == 400
    assert any("node network not published: 400" in text for text in outcome.assumptions)


@pytest.mark.parametrize(
    ("words", "fabric"),
    [
        ("8x200G RoCE NICs per node", "roce"),
        ("on p5 instances with EFA", "efa"),
        ("32 nodes of Isambard-AI", "slingshot"),
        ("", "infiniband"),
    ],
)
def test_fabric_by_what_is_said(words, fabric):
    assert cluster(notes=words).fabric == fabric


@pytest.mark.parametrize(("gpus", "domain"), [(8, 8), (64, 64), (256, 64), (144, 72), (288, 72)])
def test_racks_of_72_in_equal_shares(gpus, domain):
    gpu, batch = {"gpu": "GB200-192GB", "gpus_per_node": 4}, {"dp": gpus, "global_batch": gpus}
    changes = {**gpu, **batch, "num_gpus": gpus, "tp": 1, "pp": 1, "sp": 0}
    assert (cluster(**changes).domain, cluster(**changes).cpu) == (domain, "arm")
    assert cluster(**changes, notes="two trays without NVLink between them").domain == 4


def test_a_part_of_a_node_is_a_smaller_node():
    found = cluster(num_gpus=4, tp=1, pp=1, sp=0, dp=4, global_batch=4)
    assert (found.num_nodes, found.gpus_per_node) == (1, 4)


def test_v100_has_a_switch_only_where_the_row_says_so():
    v100 = {"gpu": "V100-32GB-SXM", "dtype": "fp16", "framework": "Megatron-LM (2020)"}
    assert cluster(**v100, intra_link="NVLink2/NVSwitch 300GB/s").nvswitch
    assert not cluster(**v100, intra_link="NVLink2 300GB/s").nvswitch


@pytest.mark.parametrize(
    ("gpu", "per_node", "link", "switches"),
    [
        ("H200-141GB-SXM", 4, "NVLink4 900GB/s", False),
        ("A100-80GB-SXM", 4, "", False),
        ("H100-80GB-SXM", 4, "NVSwitch", True),
        ("H100-80GB-SXM", 8, "NVLink4 900GB/s", True),
        ("GB200-192GB", 4, "", True),
    ],
)
def test_boards_of_four_have_no_switches(gpu, per_node, link, switches):
    row = {"gpu": gpu, "gpus_per_node": per_node, "intra_link": link}
    outcome = replayable(**row)
    assert outcome.job.cluster.nvswitch == switches
    assert any("without switches" in text for text in outcome.assumptions) != switches


@pytest.mark.parametrize(
    ("link", "domain"),
    [
        ("PCIe Gen4", 1),
        ("PCIe 5.0 x16, no NVLink", 1),
        ("NVLink bridges + PCIe", 2),
        ("", 2),
    ],
)
def test_gpus_that_a_row_joins_by_pcie_have_no_nvlink(link, domain):
    found = cluster(gpu="A100-PCIe-80GB", intra_link=link)
    assert (found.domain, found.nvswitch) == (domain, False)


@pytest.mark.parametrize(
    ("gpu", "link", "statement"),
    [
        ("H100-80GB-SXM", "NVLink4 900GB/s", None),
        ("H100-80GB-SXM", "NVSwitch 450 GB/s", None),
        ("H100-80GB-SXM", "NVLink 400GB/s", "NVLink of h100, 450 GB/s each way, not 400 GB/s"),
        ("A100-PCIe-80GB", "PCIe Gen4", None),
        ("A100-PCIe-80GB", "PCIe 3.0 x16", "PCIe Gen4 of a100_80_pcie, not Gen3"),
        ("RTX 4090", "", None),
        (
            "RTX 4090",
            "NVSwitch 450 GB/s",
            "NVLink, which rtx4090 is declared without: PCIe joins its GPUs",
        ),
        ("RTX 3090", "NVLink", "NVLink, which rtx3090 is declared without: PCIe joins its GPUs"),
    ],
)
def test_links_that_the_declared_gpu_does_not_have_are_said(gpu, link, statement):
    about = replayable(gpu=gpu, intra_link=link).assumptions
    told = [text for text in about if "NVLink of" in text or "PCIe" in text]
    assert [text for text in told if "alone" not in text] == (
        [] if statement is None else [statement]
    )


def test_a_card_without_links_has_pcie():
    for gpu in ("RTX 4090", "L40S-48GB"):
        found = replayable(gpu=gpu).job
        pair = Communicator("tp", 2, 2, 1)
        assert wiring_of(pair, found.gpu, found.cluster).link == "pci"


def test_a_job_on_half_a_board_has_no_use_of_the_links_to_the_rest():
    whole, half = (
        cluster(gpu="H200-141GB-SXM", gpus_per_node=4, num_gpus=gpus, tp=2, pp=1, dp=gpus // 2)
        for gpus in (4, 2)
    )
    assert (half.gpus_per_node, half.domain) == (2, 4)
    assert whole.domain == 4
    pair, gpu = Communicator("tp", 2, 2, 1), load_catalogue().gpus["h200"]
    assert wiring_of(pair, gpu, half).link_gbs == wiring_of(pair, gpu, whole).link_gbs


@pytest.mark.parametrize(
    ("framework", "version"),
    [
        ("Megatron-LM (2020)", "2.7"),
        ("Megatron-LM (Feb 2022)", "2.12"),
        ("NeMo 24.09", "2.22"),
        ("NeMo (MLPerf v3.1)", "2.18"),
        ("Megatron-Bridge (NeMo 26.04)", "2.27"),
    ],
)
def test_nccl_by_the_year_of_the_software(framework, version):
    assert cluster(framework=framework).nccl_version == version
