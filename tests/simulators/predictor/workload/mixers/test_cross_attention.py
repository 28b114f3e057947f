"""Encoders that every layer of a decoder looks at: operations, parameters and FLOPs."""

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators.jobs import LLAMA, TRANSLATING, make_job
from tests.simulators.predictor.workload.blocks import operations, work
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layers import Mixer
from trainscout.simulators.predictor.question.tuning import Lora
from trainscout.simulators.predictor.question.validity import check_job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.ir import Attention
from trainscout.simulators.predictor.workload.megatron import build_workload

# 32 words into an encoder of width 256 with 8 heads of 64; the decoder has 8 of 32, two for keys.
_WORDS, _WIDTH = 32, 256


def test_a_decoder_counts_its_encoder_and_what_looks_at_it() -> None:
    with_, without = (
        build_workload(make_job(model)).stages[0].parameters.total
        for model in (TRANSLATING, LLAMA)
    )
    h, pairs = 256, 2 * 2 * 32
    encoder = 2 * (4 * h * 8 * 64 + 3 * h * 512 + 2 * h)
    across = 2 * h * h + _WIDTH * pairs + 2 * 32
    # Of twelve layers eleven have a third norm, and one has no attention to its own tokens.
    own = h * (h + pairs) + h * h + 2 * 32
    assert with_ - without == encoder + 12 * across + 11 * h - own


def test_its_operations_do_what_flops_count() -> None:
    job = make_job(TRANSLATING, batch=8)
    flops = step_flops(job)
    assert work(job, "forward") == pytest.approx(flops.causal / 3 / 8, rel=1e-9)
    # Of a core's backward pass, which recomputes scores, kernels do five products for two.
    assert work(job, "backward") > 2 * work(job, "forward")
    cores = [op for op in operations(job, "forward", Attention) if op.name.startswith("cross")]
    assert {(op.seq_q, op.seq_k, op.causal) for op in cores} == {
        (TRANSLATING.sequence_length, _WORDS, False)
    }


def test_unfused_attention_across_multiplies_as_much() -> None:
    job = make_job(TRANSLATING, batch=8, training={"attention": "unfused"})
    check_job(job)
    assert work(job, "forward") == pytest.approx(step_flops(job).model / 3 / 8, rel=1e-9)
    assert work(job, "backward") == pytest.approx(2 * work(job, "forward"), rel=0.01)


def test_the_output_of_the_encoder_is_kept_once_and_keys_by_every_layer() -> None:
    (stage,) = build_workload(make_job(TRANSLATING)).stages
    first, *_ = stage.chunks[0].runs
    looked_at = [op.bytes for op in first.forward.ops if getattr(op, "tag", "") == "looked_at"]
    assert looked_at == [_WORDS * _WIDTH * 2]
    for run in stage.chunks[0].runs[1:]:
        assert "looked_at" not in {getattr(op, "tag", "") for op in run.forward.ops}
    fp8 = make_job(TRANSLATING, precision="fp8")
    assert "looked_at" in {
        getattr(op, "tag", "")
        for run in build_workload(fp8).stages[0].chunks[0].runs[1:]
        for op in run.forward.ops
    }


@pytest.mark.parametrize("training", [{}, {"lora": Lora(8)}, {"frozen": ("towers",)}])
def test_ranks_share_it(training: dict[str, Any]) -> None:
    whole, half = (make_job(TRANSLATING, tp=tp, sp=tp > 1, training=training) for tp in (1, 2))
    held = [build_workload(job).stages[0].parameters.held.total for job in (whole, half)]
    assert held[0] / 2 < held[1] < 0.6 * held[0]
    check_job(half)
    one, two = (ReplaySimulator().without_error_bar(job) for job in (whole, half))
    assert two.memory.peak_allocated_bytes < one.memory.peak_allocated_bytes


def test_what_looks_at_no_tower_is_refused_by_field() -> None:
    for changes in ({"towers": ()}, {"towers": 2 * TRANSLATING.towers}):
        with pytest.raises(InputError) as caught:
            replace(TRANSLATING, **changes).check()
        assert caught.value.field == "model.kinds.full.cross"
    packed = make_job(TRANSLATING, training={"packed_lengths": (16,)}).training
    with pytest.raises(InputError, match="look at an encoder"):
        packed.check_for(TRANSLATING)
    assert Mixer(cross=True).in_turn == (Mixer(cross=True),)
