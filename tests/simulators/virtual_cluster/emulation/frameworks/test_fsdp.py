"""FSDP and FSDP2: gathers, scatters and memory follow from the parameters."""

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate
from trainscout.simulators.virtual_cluster.traces.events import Op

pytestmark = needs("transformers")

WORLD = 16
LAYERS, HIDDEN, MLP, VOCABULARY = 2, 128, 256, 1024
KV = HIDDEN // 2
LAYER = 2 * HIDDEN**2 + 2 * HIDDEN * KV + 3 * HIDDEN * MLP + 2 * HIDDEN
OUTSIDE = 2 * VOCABULARY * HIDDEN + HIDDEN


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    script = [EXAMPLES / "llama_fsdp2.py", "--size", "tiny", "--seq", "256", "--checkpoint"]
    return emulate(tmp_path_factory.mktemp("llama"), script, world_size=WORLD)


def test_the_script_prints_what_it_always_prints(llama):
    assert "Llama tiny: 0.00 B parameters, 16 GPUs" in llama.output
    assert llama.output.count("tokens/s/GPU") == 3


def test_layers_are_gathered_forward_and_backward(llama):
    for step in range(3):
        forward = llama.collectives("all_gather", step, "forward")
        assert [each.bytes_out for each in forward] == [2 * OUTSIDE, *[2 * LAYER] * LAYERS]
        assert all(each.bytes_out == WORLD * each.bytes_in for each in forward)
        backward = llama.collectives("all_gather", step, "backward")
        # The parameters outside the layers stay from the forward pass.
        assert [each.bytes_out for each in backward] == [2 * LAYER] * LAYERS


def test_gradients_are_scattered_in_full_precision(llama):
    scattered = llama.collectives("reduce_scatter", step=1)
    assert [each.bytes_in for each in scattered] == [*[4 * LAYER] * LAYERS, 4 * OUTSIDE]
    assert {each.dtype for each in scattered} == {"float32"}


def test_gathers_wait_on_streams_of_their_own(llama):
    gathers = llama.collectives("all_gather", step=1)
    compute = {op.stream for op in llama.operations("aten.mm.default")}
    assert not compute & {each.stream for each in gathers}


def test_attention_is_fused_and_makes_no_mask(llama):
    attention = llama.operations("aten._scaled_dot_product_cudnn_attention.default")
    # Every layer forward and again for its backward pass, in three steps.
    assert len(attention) == 3 * 2 * LAYERS


def test_checkpointing_repeats_the_forward_products(llama):
    products = [op for op in llama.events(Op, 1, "backward") if op.name == "aten.mm.default"]
    # Seven a layer again (the last ones are needed by nobody and may be skipped), two gradients
    # of each, and of the head.
    assert len(products) in range(2 * (7 * LAYERS + 1) + 6 * LAYERS, 3 * 7 * LAYERS + 3)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    script = [EXAMPLES / "gpt2.py", "--size", "tiny", "--seq", "128", "--steps", "2"]
    script += ["--parallel", "fsdp"]
    return emulate(tmp_path_factory.mktemp("gpt2"), script, world_size=WORLD)


def test_first_fsdp_gathers_flat_parameters(gpt2):
    hidden = 128
    layer = 12 * hidden**2 + 13 * hidden
    gathered = gpt2.collectives("all_gather", step=1, phase="forward")
    assert [each.bytes_out for each in gathered][1:] == [2 * layer] * 2
    scattered = gpt2.collectives("reduce_scatter", step=1)
    assert [each.bytes_in for each in scattered][:2] == [4 * layer] * 2
