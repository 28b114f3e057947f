"""Convolutional networks: their convolutions reach the workload, and their gradients the wire."""

import pytest

pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate
from trainscout.simulators.predictor.workload.ir import Convolution
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower

# He et al. 2015: 25.6 M parameters, 4.1e9 multiply-adds an image (stride in the 3 x 3's).
PARAMETERS, MULTIPLY_ADDS = 25_557_032, 4.09e9
BATCH = 8


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    script = [EXAMPLES / "vision_ddp.py", "--model", "resnet50", "--batch", str(BATCH)]
    options = ["--precision", "bf16", "--channels-last", "--steps", "2"]
    return emulate(tmp_path_factory.mktemp("resnet"), [*script, *options], world_size=8)


def convolutions(run, name: str) -> list[Convolution]:
    operations = run.operations(name)
    kernels = [kernel for op in operations for kernel in lower(op).kernels]
    return [kernel for kernel in kernels if isinstance(kernel, Convolution)]


def test_forward_flops(resnet):
    forward = convolutions(resnet, "aten.convolution.default")
    assert len(forward) == 2 * 53
    assert sum(op.flops for op in forward) / 2 == pytest.approx(
        2 * BATCH * MULTIPLY_ADDS, rel=0.01
    )
    assert {op.dtype for op in forward} == {"bf16"}
    assert all(op.channels_last for op in forward if op.in_channels > 3)


def test_backward_passes(resnet):
    backward = convolutions(resnet, "aten.convolution_backward.default")
    passes = [op.pass_ for op in backward]
    # Nobody asks for the gradient of the images.
    assert passes.count("wgrad") == 2 * 53
    assert passes.count("dgrad") == 2 * 52


def test_gradients_are_reduced(resnet):
    reduced = resnet.collectives("all_reduce", step=1)
    assert sum(each.bytes_in for each in reduced) == 4 * PARAMETERS


def test_normalisation_buffers_are_broadcast(resnet):
    # Running mean and variance of 53 normalisations, 26,560 channels together, and their counters.
    sent = resnet.collectives("broadcast", step=1)
    assert [each.bytes_in for each in sent if each.dtype == "float32"] == [2 * 4 * 26_560]
    assert [each.bytes_in for each in sent if each.dtype == "int64"] == [8 * 53]
