import re
from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import declarations, replayable
from trainscout.simulators.laboratory.published.jobs.gpus import gpu_of
from trainscout.simulators.laboratory.published.jobs.outcome import CannotReplayError
from trainscout.simulators.predictor.question.errors import InputError


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("A100-80GB-SXM", "a100_80"),
        ("A100-40GB-SXM", "a100_40"),
        ("A100-PCIe-80GB", "a100_80_pcie"),
        ("H100-80GB-SXM", "h100"),
        ("H100-64GB-SXM", "h100_64_hbm2e"),
        ("H100-96GB-HBM2e-500W", "h100_96_hbm2e"),
        ("H200-141GB-SXM", "h200"),
        ("H200-NVL-141GB", "h200_nvl"),
        ("H800-80GB-SXM", "h800"),
        ("H20-96GB", "h20"),
        ("B200-180GB", "b200"),
        ("GB200-192GB", "gb200"),
        ("B300-270GB", "b300"),
        ("GB300-288GB", "gb300"),
        ("V100-32GB-SXM", "v100_32"),
        ("A800-80GB", "a800_80"),
        ("A40", "a40"),
        ("MI300X-192GB", "mi300x"),
        ("GH200 96GB", "gh200"),
        ("H100 PCIe", "h100_pcie"),
        ("H100-PCIe-80GB", "h100_pcie"),
        ("H100 80GB HBM2e PCI-E", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("H100-NVL-94GB", "h100_nvl"),
        ("H100 80GB (NVLink)", "h100"),
        ("H200 NVLink", "h200"),
        ("A100-PCIE-40GB", "a100_40_pcie"),
        ("A100 40GB PCIe", "a100_40_pcie"),
        ("V100-16GB", "v100_16"),
        ("Tesla V100-SXM2-16GB", "v100_16"),
        ("V100 (fp16)", "v100_32"),
        ("RTX A6000", "a6000"),
        ("NVIDIA RTX A6000 48GB", "a6000"),
        ("L40S-48GB", "l40s"),
        ("8x NVIDIA L40S", "l40s"),
        ("L40-48GB", "l40"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 24GB", "rtx4090"),
        ("RTX3090", "rtx3090"),
        ("GH200-144GB", "h200"),
        ("8x MI300X", "mi300x"),
        ("h100", "h100"),
    ],
)
def test_labels_name_declared_parts(label, name):
    assert gpu_of(label, declarations().gpus)[0].name == name


@pytest.mark.parametrize(
    "label",
    [
        "MI250X",
        "B200/GB200 (4 GPUs)",
        "B200-180GB (power limited)",
        "V100-PCIe-16GB",
        "RTX 4090 D",
        "RTX 4090 Laptop",
        "RTX 3090 Ti",
        "RTX 6000 Ada",
        "A800-40GB",
    ],
)
def test_what_is_not_declared_is_not_guessed(label):
    with pytest.raises(CannotReplayError, match=re.escape(label)):
        gpu_of(label, declarations().gpus)


@pytest.mark.parametrize("label", ["H100 MIG 3g.40gb", "A100-80GB (1g.10gb)"])
def test_slices_are_refused(label):
    with pytest.raises(CannotReplayError, match="a slice of a GPU"):
        gpu_of(label, declarations().gpus)


def test_ones_own_gpu_says_what_rows_call_it():
    h100 = declarations().gpus["h100"]
    own = replace(h100, name="lab", published_as=(r"prototype-\d",))
    assert gpu_of("Prototype_7 80GB", {"h100": h100, "lab": own})[0] is own


def test_a_label_that_fits_several_is_refused_with_their_names():
    h100 = declarations().gpus["h100"]
    gpus = {"h100": h100, "lab": replace(h100, name="lab")}
    with pytest.raises(CannotReplayError, match="h100, lab"):
        gpu_of("H100-80GB-SXM", gpus)


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(InputError) as refused:
        replace(declarations().gpus["h100"], published_as=("a(",)).check()
    assert refused.value.field == "gpu.published_as"


def test_an_unstated_size_is_an_assumption():
    assert gpu_of("A100-SXM", declarations().gpus)[1]
    assert not gpu_of("A100-80GB-SXM", declarations().gpus)[1]


def test_a_board_of_another_size_is_said_to_be_another():
    gpu, assumed = gpu_of("A100-64GB-SXM", declarations().gpus)
    assert gpu.name == "a100_80"
    assert "another board than a100_80 (64 GB, not 80 GiB)" in assumed[0]
    assert not gpu_of("B200-180GB", declarations().gpus)[1]


def test_what_a_board_holds_for_long_is_its_rows():
    gpu = replayable(notes="one node; its 16-bit products hold 600 TFLOPS").job.gpu
    assert gpu.sustained_fraction == pytest.approx(600e12 / gpu.peak("bf16"))
    assert replayable().job.gpu.sustained_fraction is None


@pytest.mark.parametrize(
    ("gpu", "num_gpus", "per_node", "notes", "lanes"),
    [
        ("RTX 4090", 2, 2, "", 8),
        ("RTX 4090", 2, 2, "16 PCIe 4.0 lanes per GPU", 16),
        ("RTX 4090", 2, 1, "", 16),
        ("RTX 4090", 8, 8, "", 16),
        ("A40", 2, 2, "", 16),
    ],
)
def test_two_boards_share_a_desktop_s_lanes(gpu, num_gpus, per_node, notes, lanes):
    row = {"gpu": gpu, "num_gpus": num_gpus, "gpus_per_node": per_node, "tp": 1, "pp": 1}
    outcome = replayable(**row, dp=num_gpus, global_batch=num_gpus, micro_batch=1, notes=notes)
    assert outcome.job.gpu.pcie_bytes_per_s == lanes * 2e9
    assert ("PCIe lanes" in " ".join(outcome.assumptions)) == (lanes == 8)
