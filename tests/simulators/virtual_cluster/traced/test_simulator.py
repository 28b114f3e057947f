"""``simulator=traced`` on blocks that somebody else traced: the built-in ones, so no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulators.jobs import GPT175B, LLAMA, MLA_MOE, MOE, TINY, make_job
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layers import plain_layer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.workload.model.ends import head_blocks
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_blocks
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.registry import (
    check_simulator,
    get_simulator,
    prepare_simulator,
    simulator_names,
)
from trainscout.simulators.virtual_cluster.traced import cache as cache_module
from trainscout.simulators.virtual_cluster.traced import recorder, tracer
from trainscout.simulators.virtual_cluster.traced.cache import (
    Refused,
    TracedLayer,
    TracedLayerCache,
)
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    EMBEDDING,
    HEAD,
    MOE_LAYER,
    LayerSpec,
    layer_specs_of,
)
from trainscout.simulators.virtual_cluster.traced.simulator import TracedSimulator

VERSIONS = {"torch": "2.13.0", "megatron-core": "0.16.1"}
JOBS = {
    "plain": make_job(TINY, tp=2, pp=2, sp=True),
    "interleaved": make_job(TINY, pp=2, vpp=3, zero_stage=0, recompute="full", recompute_layers=1),
    "tied on one stage": make_job(TINY, tp=2, recompute="selective"),
    "untied": make_job(LLAMA, tp=4, sp=True, micro_batch=2),
    "experts": make_job(MOE, ep=4, tp=2, sp=True),
    "DeepEP": make_job(MOE, ep=4, tp=2, sp=True, etp=1, moe_dispatcher="deepep"),
    "dense and experts": make_job(MLA_MOE, ep=2, pp=2),
    "large": make_job(GPT175B, tp=8, pp=4, sp=True, nodes=4, training={"attention": "unfused"}),
    "userbuffers": make_job(TINY, tp=4, sp=True, tp_comm_overlap=True),
}


def built(spec: LayerSpec, job: Job) -> TracedLayer:
    """What a trace would give if Megatron-Core did exactly what the built-in source says."""
    shard = replace(Shard.of(job), tp_comm_overlap=False)
    if spec.kind == EMBEDDING:
        blocks, parameters = embedding_blocks(shard), embedding_parameters(shard)
    elif spec.kind == HEAD:
        blocks, parameters = head_blocks(shard), head_parameters(shard, owns_weight=True)
    else:
        is_moe = spec.kind == MOE_LAYER
        modules = spec.modules or "core_attn"
        blocks = layer_blocks(shard, plain_layer(is_moe), spec.recompute, modules)
        parameters = layer_parameters(shard, plain_layer(is_moe))
    return TracedLayer(*blocks, parameters, VERSIONS)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TracedLayerCache:
    monkeypatch.setattr(cache_module, "installed_versions", lambda: VERSIONS)
    monkeypatch.setenv("TRAINSCOUT_CACHE", str(tmp_path))
    return TracedLayerCache()


@pytest.mark.parametrize("name", JOBS)
def test_equal_blocks_predict_the_same(name: str, cache: TracedLayerCache) -> None:
    job = JOBS[name]
    for spec in layer_specs_of(job):
        cache.write(spec, built(spec, job))
    traced = TracedSimulator(cache=cache).without_error_bar(job)
    plain = ReplaySimulator().without_error_bar(job)
    assert traced.step_time_s == pytest.approx(plain.step_time_s, rel=1e-9)
    assert traced.memory == plain.memory
    stated = set(traced.assumptions) - set(plain.assumptions)
    assert len(stated) == 1
    assert "Megatron-Core 0.16.1" in stated.pop()


def test_nothing_is_traced_for_what_is_cached(
    cache: TracedLayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS["plain"]
    for spec in layer_specs_of(job):
        cache.write(spec, built(spec, job))
    monkeypatch.setattr(recorder, "ask", lambda *_: pytest.fail("a process was started"))
    assert TracedSimulator().simulate(job).step_time_s > 0


def test_jobs_of_a_batch_are_traced_together(
    cache: TracedLayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [make_job(TINY, tp=2, micro_batch=size) for size in (1, 2, 4)]
    refused = make_job(TINY, zero_stage=3)
    asked: list[list[LayerSpec]] = []

    def ask(gpu: Gpu, specs: list[LayerSpec], node: None) -> list[TracedLayer]:
        asked.append(specs)
        by_size = {job.recipe.micro_batch: job for job in jobs}
        return [built(spec, by_size[spec.micro_batch]) for spec in specs]

    monkeypatch.setattr(recorder, "ask", ask)
    monkeypatch.setattr(tracer, "check_installed", lambda: None)
    prepare_simulator("traced", [*jobs, refused])
    assert len(asked) == 1
    assert len(asked[0]) == 9
    for job in jobs:
        assert get_simulator("traced").simulate(job).step_time_s > 0
    assert len(asked) == 1


def test_what_megatron_refuses_costs_only_the_jobs_that_need_it(
    cache: TracedLayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = make_job(TINY, tp=2), make_job(TINY, tp=4)

    def ask(gpu: Gpu, specs: list[LayerSpec], node: None) -> list[TracedLayer | Refused]:
        return [Refused("ValueError: no") if p.tp == 4 else built(p, good) for p in specs]

    monkeypatch.setattr(recorder, "ask", ask)
    monkeypatch.setattr(tracer, "check_installed", lambda: None)
    simulator = TracedSimulator()
    simulator.prepare([good, bad])
    assert simulator.simulate(good).step_time_s > 0
    with pytest.raises(InputError, match="ValueError: no"):
        simulator.simulate(bad)


def test_without_the_extra_the_entry_point_names_what_to_install(
    cache: TracedLayerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS["plain"]
    monkeypatch.setattr(tracer, "_is_installed", lambda module: False)
    with pytest.raises(InputError, match=r"pip install '\.\[megatron\]'"):
        check_simulator("traced", job.gpu)
    for spec in layer_specs_of(job)[1:]:
        cache.write(spec, built(spec, job))
    # Something may be cached: only what is asked tells whether that is enough.
    check_simulator("traced", job.gpu)
    with pytest.raises(InputError, match="torch is not installed"):
        get_simulator("traced").simulate(job)
    first = layer_specs_of(job)[0]
    cache.write(first, built(first, job))
    assert get_simulator("traced").simulate(job).step_time_s > 0


def test_it_is_a_choice() -> None:
    assert "traced" in simulator_names()


def test_answers_of_several_processes_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "ask", lambda gpu, share, node: [len(share), *share[1:]])
    answers = recorder.ask_several(make_job(TINY).gpu, [1, 2, 3, 4, 5], 2)
    assert list(answers) == [3, 2, 3, 2, 5]
