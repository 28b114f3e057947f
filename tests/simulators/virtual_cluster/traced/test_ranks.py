"""Whole ranks of Megatron-Core against the built-in workload, and what verifying makes of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tests.needs import needs
from tests.simulators.jobs import GPT175B, MIXTRAL_8X7B, make_job
from tests.simulators.virtual_cluster.traced.layer_cases import HYBRID as LARGE_HYBRID
from trainscout.reports.verification import verification_json, verification_report
from trainscout.simulators.predictor.io.terminal import as_text
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import Mamba2, Mixer
from trainscout.simulators.predictor.workload.ir import Collective
from trainscout.simulators.predictor.workload.megatron import build_workload, layers_by_stage
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    Transfer,
    gather_parameters,
)
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.traced.verification import Verification
from trainscout.simulators.virtual_cluster.traced.verify import (
    Shape,
    Work,
    ask_for_ranks,
    builtin_work,
    compared,
    ranks_of_job,
    traced_work,
    verify,
)
from trainscout.simulators.virtual_cluster.traces.events import Trace

pytestmark = needs("megatron.core", "transformer_engine")

GPT = replace(
    GPT175B,
    name="small",
    num_layers=2,
    hidden_size=1024,
    num_heads=8,
    ffn_hidden_size=4096,
    vocab_size=8000,
    sequence_length=512,
    source="made up",
)
MOE = replace(
    MIXTRAL_8X7B,
    num_layers=2,
    hidden_size=512,
    num_heads=8,
    num_query_groups=4,
    ffn_hidden_size=1024,
    vocab_size=8000,
    sequence_length=256,
    moe=replace(MIXTRAL_8X7B.moe, ffn_hidden_size=1024),  # type: ignore[type-var]
)
HYBRID = replace(
    LARGE_HYBRID,
    hidden_size=512,
    num_heads=8,
    num_query_groups=4,
    ffn_hidden_size=1024,
    vocab_size=8000,
    sequence_length=256,
    kinds={"mamba": Mixer(mamba2=Mamba2(heads=256, head_dim=4, state=64, groups=8, chunk=128))},
)
CASES = {
    "1f1b": make_job(GPT, tp=2, pp=2, sp=True, batch=8),
    "1f1b, remainders": make_job(GPT, tp=2, pp=2, sp=True, batch=8, optimizer_states="remainders"),
    "1f1b, whole optimizer": make_job(GPT, tp=2, pp=2, sp=True, batch=8, zero_stage=0),
    "interleaved": make_job(
        replace(GPT, num_layers=4),
        tp=2,
        pp=2,
        vpp=2,
        sp=True,
        batch=8,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    ),
    "one stage, recomputed": make_job(GPT, tp=4, batch=4, recompute="full"),
    "experts": make_job(MOE, tp=2, ep=4, sp=True, batch=8, zero_stage=1),
    "hybrid": make_job(
        HYBRID,
        tp=2,
        pp=2,
        ep=4,
        etp=1,
        sp=True,
        batch=8,
        recompute="selective",
        recompute_modules="layernorm+moe_act",
    ),
    # Shapes that a rank on another GPU had before it in this process.
    "one stage, whole optimizer": make_job(GPT, tp=2, sp=True, batch=8, zero_stage=0),
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Trace]]:
    """One rank of every stage of every case, traced in one process."""
    asked = []
    for name, job in CASES.items():
        asked += ranks_of_job(job, tmp_path_factory.mktemp(name.replace(" ", "-")))
    answers = iter(ask_for_ranks(asked))
    return {name: [next(answers) for _ in range(job.recipe.pp)] for name, job in CASES.items()}


def works(name: str, traced: dict[str, list[Trace]], stage: int) -> tuple[Work, Work]:
    job = CASES[name]
    return builtin_work(job, build_workload(job), stage), traced_work(traced[name][stage])


STAGES = [(name, stage) for name, job in CASES.items() for stage in range(job.recipe.pp)]


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_parameters_and_products_are_equal(
    name: str, stage: int, traced: dict[str, list[Trace]]
) -> None:
    ours, theirs = works(name, traced, stage)
    assert theirs.parameter_bytes == ours.parameter_bytes
    assert theirs.gemm_flops == ours.gemm_flops
    assert _only(theirs, "gemm", "grouped", "attention") == _only(
        ours, "gemm", "grouped", "attention"
    )


def _only(work: Work, *kinds: str) -> Counter[Shape]:
    return Counter(
        {shape: n for shape, n in work.shapes.items() if str(shape[0]).startswith(kinds)}
    )


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_communicated_bytes(name: str, stage: int, traced: dict[str, list[Trace]]) -> None:
    job = CASES[name]
    ours, theirs = works(name, traced, stage)
    more = {
        key: theirs.communicated_bytes.get(key, 0) - ours.communicated_bytes.get(key, 0)
        for key in ours.communicated_bytes.keys() | theirs.communicated_bytes.keys()
    }
    assert {key: value for key, value in more.items() if value} == expected_more(job, stage)


def expected_more(job: Job, stage: int) -> dict[str, int]:
    """Bytes that Megatron-Core communicates beyond the built-in source, and why."""
    recipe, model = job.recipe, job.model
    more: dict[str, int] = {}
    if recipe.zero_stage:
        # A sharded optimizer's gradient norm is one sum over all ranks, not one over a replica
        # and one over its shards.
        more = {"world": 4, "model": -4, "dp": -4}
    if recipe.sp and stage == recipe.pp - 1:
        # The final norm is among what sequence parallelism sums over its ranks.
        vectors = 1 if model.normalization == "rmsnorm" else 2
        more["tp"] = vectors * model.hidden_size * 4
    if model.moe is not None:
        # So are routers. Their loss counts tokens of each expert, forward alone.
        ((first, last),) = layers_by_stage(job)[stage]
        experts = model.moe.num_experts
        routers = sum(model.is_moe_layer(layer) for layer in range(first, last))
        more["tp"] = more.get("tp", 0) + routers * model.hidden_size * experts * 4
        more["tp_cp"] = routers * job.num_micro_batches * experts * 8
        if not model.is_plain:
            # The built-in source counts two norms a layer, of which half a layer has one.
            more["tp"] -= (last - first) * model.hidden_size * 4
        # Experts have an optimizer of their own, and either one has all parameters gathered.
        stages = build_workload(job).stages
        gathered = gather_parameters(stages[stage].parameters, Transfer.of(job)).ops
        more["dp"] += sum(
            op.bytes for op in gathered if isinstance(op, Collective) and op.communicator == "dp"
        )
    return more


@pytest.mark.parametrize("name", CASES)
def test_traced_ranks_are_replayed_beside_the_prediction(
    name: str, traced: dict[str, list[Trace]]
) -> None:
    job, ranks = CASES[name], traced[name]
    step = replay_ranks(ranks, job.gpu, job.cluster, job.framework, host="declared")
    empty = Verification(job.recipe, job.num_micro_batches, job.num_micro_batches)
    check = compared(empty, job, ranks, step)
    assert check.problem is None
    assert check.builtin_step_s is not None
    assert check.traced_step_s is not None
    # Small layers wait for the host, and Megatron-Core launches more small kernels than priced.
    assert check.builtin_step_s < check.traced_step_s < 2 * check.builtin_step_s
    assert [each.stage for each in check.ranks] == list(range(job.recipe.pp))
    for each in check.ranks:
        assert each.traced.parameter_bytes == each.builtin.parameter_bytes
        assert each.traced.gemm_flops == each.builtin.gemm_flops
        assert each.traced.peak_reserved_bytes >= each.traced.peak_allocated_bytes > 0
    assert json.loads(verification_json([check]))[0]["micro_batches"] == job.num_micro_batches
    text = as_text(verification_report([check], lambda recipe: replace(job, recipe=recipe)))
    assert "parameters" in text
    assert "matrix products" in text
    assert "equal" in text


def test_an_optimizer_of_remainders_keeps_less_by_both_sources(
    traced: dict[str, list[Trace]],
) -> None:
    def peaks(name: str) -> list[tuple[int, int]]:
        job, ranks = CASES[name], traced[name]
        step = replay_ranks(ranks, job.gpu, job.cluster, job.framework, host="declared")
        empty = Verification(job.recipe, job.num_micro_batches, job.num_micro_batches)
        found = compared(empty, job, ranks, step).ranks
        return [(r.builtin.peak_allocated_bytes, r.traced.peak_allocated_bytes) for r in found]

    whole, halved = peaks("1f1b"), peaks("1f1b, remainders")
    for (ours, theirs), (less_ours, less_theirs) in zip(whole, halved, strict=True):
        assert ours > less_ours
        assert theirs - less_theirs == pytest.approx(ours - less_ours, rel=0.05)


def test_what_cannot_be_traced_is_a_problem_not_an_error() -> None:
    check = verify(make_job(GPT, zero_stage=3))
    assert check.problem is not None
    assert "zero_stage" in check.problem
    text = as_text(verification_report([check], lambda recipe: make_job(GPT)))
    assert "not verified" in text
