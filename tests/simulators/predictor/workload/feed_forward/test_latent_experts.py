"""Experts that tokens reach through a narrower width (LatentMoE)."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import MOE, make_job
from trainscout.commands.listing import parameters
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.flops import step_flops
from trainscout.simulators.predictor.workload.ir import Collective, GroupedGemm
from trainscout.simulators.predictor.workload.megatron import build_workload

assert MOE.moe is not None
NARROW = replace(MOE, moe=replace(MOE.moe, latent_size=64))


def forward(model, kind):
    (stage,) = build_workload(make_job(model, ep=4)).stages
    layer = next(run for run in stage.chunks[0].runs if "moe_layer" in run.forward.name)
    return [op for op in layer.forward.ops if isinstance(op, kind)]


def test_experts_multiply_and_exchange_the_narrow_width() -> None:
    shapes = {op.name: (op.n, op.k) for op in forward(NARROW, GroupedGemm)}
    assert shapes == {"expert_fc1_fwd": (256, 64), "expert_fc2_fwd": (64, 128)}
    wide, narrow = (
        next(op.bytes for op in forward(model, Collective) if op.name == "dispatch")
        for model in (MOE, NARROW)
    )
    assert wide == 4 * narrow


def test_flops_and_parameters_are_those_of_narrow_experts_and_two_projections() -> None:
    hidden, each = MOE.hidden_size, 3 * 128
    saved = 8 * each * (hidden - 64) - 2 * hidden * 64
    counts = [build_workload(make_job(m)).stages[0].parameters.total for m in (MOE, NARROW)]
    assert counts[0] - counts[1] == MOE.num_layers * saved
    tokens = make_job(MOE).tokens_per_step
    flops = [step_flops(make_job(m)).model / 3 / tokens for m in (MOE, NARROW)]
    less = 2 * 2 * each * (hidden - 64) - 4 * hidden * 64
    assert flops[0] - flops[1] == pytest.approx(MOE.num_layers * less)


def test_nemotron_3_super_has_its_name_s_parameters() -> None:
    """120B in all, without modules that predict further tokens; 56B of the one before it."""
    models = load_catalogue().models
    assert round(parameters(models["nemotron3_super_120b_a12b"]) / 1e9) == 121
    assert round(parameters(models["nemotron_h_56b"]) / 1e9) == 56
