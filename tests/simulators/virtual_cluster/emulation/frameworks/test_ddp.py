"""DistributedDataParallel: what it reduces follows from the parameters and its bucket sizes."""

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.virtual_cluster.emulation.frameworks.runs import EXAMPLES, emulate
from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, Op, ValueRead

pytestmark = needs("transformers")

LAYERS, HIDDEN, VOCABULARY, SEQUENCE = 2, 128, 50257, 128
# Embeddings and final norm; the head shares the token embedding.
GPT2_PARAMETERS = (
    LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + (VOCABULARY + SEQUENCE) * HIDDEN + 2 * HIDDEN
)
MIB = 2**20


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    script = [EXAMPLES / "gpt2.py", "--size", "tiny", "--seq", str(SEQUENCE), "--batch", "4"]
    return emulate(tmp_path_factory.mktemp("gpt2"), script, world_size=1024, rank=0)


def test_the_script_prints_what_it_always_prints(gpt2):
    assert f"{GPT2_PARAMETERS / 1e6:.1f} M parameters, 1024 GPUs" in gpt2.output
    assert gpt2.output.count("tokens/s/GPU") == 3


def test_every_step_reduces_every_gradient(gpt2):
    for step in range(3):
        reduced = gpt2.collectives("all_reduce", step)
        assert sum(each.bytes_in for each in reduced) == 4 * GPT2_PARAMETERS
        assert {each.dtype for each in reduced} == {"float32"}


def test_buckets_are_rebuilt_after_the_first_step(gpt2):
    first, second, third = (gpt2.collectives("all_reduce", step) for step in range(3))
    assert [each.bytes_in for each in second] == [each.bytes_in for each in third]
    assert [each.bytes_in for each in first] != [each.bytes_in for each in second]
    # The first bucket closes at 1 MiB, others at 25, or with one gradient larger than that.
    assert 1 * MIB <= second[0].bytes_in < 1 * MIB + 4 * 4 * HIDDEN**2 + 4 * 4 * HIDDEN
    assert max(each.bytes_in for each in second) >= 4 * VOCABULARY * HIDDEN


def test_reductions_start_within_the_backward_pass(gpt2):
    backward = gpt2.events(object, step=1, phase="backward")
    places = [isinstance(each, Collective) for each in backward]
    assert any(isinstance(each, Op) for each in backward[places.index(True) + 1 :])


def test_all_ranks_are_one_group(gpt2):
    (group,) = {event.ranks for event in gpt2.events(Group)}
    assert group == tuple(range(1024))


def test_attention_is_fused(gpt2):
    names = {event.name for event in gpt2.events(Op)}
    # Causal by a flag: no mask is made and no kernel that takes one.
    assert "aten._scaled_dot_product_cudnn_attention.default" in names
    assert not any(name.startswith(("aten._softmax.", "aten.tril")) for name in names)


def test_losses_are_said_to_be_invented(gpt2):
    assert "invented" in {event.grade for event in gpt2.events(ValueRead)}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    script = [EXAMPLES / "bert_ddp.py", "--size", "tiny", "--seq", "64", "--batch", "2"]
    return emulate(tmp_path_factory.mktemp("bert"), [*script, "--steps", "2"], world_size=16)


def test_bert_reduces_as_much_every_step(bert):
    first, second = (bert.collectives("all_reduce", step) for step in range(2))
    assert sum(each.bytes_in for each in first) == sum(each.bytes_in for each in second) > 0
    # BERT's token embedding is shared with its output: one gradient, larger than a bucket.
    assert max(each.bytes_in for each in second) >= 4 * 30522 * HIDDEN


def test_bert_steps_with_the_fused_optimizer(bert):
    assert bert.operations("aten._fused_adamw_.default")
