"""What must come before what in an assembled step, read off the replayed times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.simulators.jobs import LLAMA, TINY, make_job
from tests.simulators.predictor.replay.conftest import Machine, Rates
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.collectives.price import CollectivePrice
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay import boundary
from trainscout.simulators.predictor.replay.assemble import Assembler
from trainscout.simulators.predictor.replay.boundary import boundary_seconds
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.steady import Step, replay_step
from trainscout.simulators.predictor.replay.structure import LAYERS_IN_FLIGHT
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.schedules.passes import BACKWARD, FORWARD
from trainscout.simulators.predictor.workload.schedules.schedule import stage_order

SEND_S = 2e-3
ROUNDING_S = 1e-12


def full_step(job: Job) -> Step:
    workload = build_workload(job)
    pricer = Pricer(job.gpu, job.cluster, job.framework, workload.communicators)
    return replay_step(job, Assembler(job, workload, pricer).assemble, full=True)


def pass_times(job: Job, step: Step) -> dict[tuple[int, int, int, int], tuple[float, float]]:
    """Start and end of every (stage, direction, chunk, micro-batch)."""
    recipe, found = job.recipe, {}
    for stage in range(recipe.pp):
        tasks = step.program.structure.compute_tasks[stage]
        starts = step.program.structure.pass_start[stage]
        after = np.append(starts[1:], step.program.structure.pass_tasks[stage])
        order = stage_order(recipe.schedule, stage, recipe.pp, recipe.vpp, job.num_micro_batches)
        for column, first, stop in zip(order.T.tolist(), starts, after, strict=True):
            begin, end = step.times.start[tasks[first]], step.times.end[tasks[stop - 1]]
            found[stage, *column] = (float(begin), float(end))
    return found


@pytest.mark.parametrize(
    "recipe",
    [
        {"pp": 4},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 2, "vpp": 3},
        {"pp": 4, "vpp": 3, "overlap_grad_reduce": True, "overlap_param_gather": True},
    ],
)
def test_every_pass_follows_the_one_that_feeds_it(
    machine: Machine, recipe: dict[str, Any]
) -> None:
    # Transfers far longer than passes expose every missing dependency.
    machine(Rates(send_s=SEND_S, wire_bytes_per_s=1e10, slowdown=1.3))
    job = make_job(TINY, batch=8 // recipe["pp"] * 12, **recipe)
    times = pass_times(job, full_step(job))
    last_stage, last_chunk = job.recipe.pp - 1, job.recipe.vpp - 1
    # A blocking transfer is part of the pass that sends.
    lag_s = SEND_S if job.recipe.vpp > 1 else 0.0
    checked = 0
    for (stage, direction, chunk, micro), (start, _) in times.items():
        if direction == FORWARD:
            before = (stage - 1, chunk) if stage else (last_stage, chunk - 1)
        elif (stage, chunk) == (last_stage, last_chunk):
            assert start >= times[stage, FORWARD, chunk, micro][1] - ROUNDING_S
            continue
        else:
            before = (stage + 1, chunk) if stage < last_stage else (0, chunk + 1)
        feeding = times.get((before[0], direction, before[1], micro))
        if feeding is not None:
            assert start >= feeding[1] + lag_s - ROUNDING_S
            checked += 1
    # All but the first chunk's forward.
    chunks = job.recipe.pp * job.recipe.vpp
    assert checked == 2 * (chunks - 1) * job.num_micro_batches


def test_no_stage_updates_before_all_have_finished(machine: Machine) -> None:
    machine(Rates())
    job = make_job(TINY, pp=4, tp=2, first_stage_layers=6, last_stage_layers=2)
    step = full_step(job)
    ends = [
        tasks[count:]
        for tasks, count in zip(
            step.program.structure.compute_tasks, step.program.structure.pass_tasks, strict=True
        )
    ]
    assert all(len(tasks) == 2 for tasks in ends)
    finished = max(step.times.end[tasks[0]] for tasks in ends)
    assert all(step.times.start[tasks[1]] >= finished for tasks in ends)
    # The first stage's long passes end last.
    assert step.times.end[ends[-1][0]] < finished


@pytest.mark.parametrize("wire_bytes_per_s", [1e9, 1e12])
def test_fully_sharded_layers_arrive_just_in_time(
    machine: Machine, wire_bytes_per_s: float
) -> None:
    machine(Rates(wire_bytes_per_s=wire_bytes_per_s))
    job = make_job(LLAMA, zero_stage=3, batch=8 * 3)
    step = full_step(job)
    passes = step.program.structure.compute_tasks[0][
        : step.program.structure.pass_tasks[0]
    ].tolist()
    before, after, _ = step.program.edges
    gathered = reduced = 0
    for first, second in zip(before.tolist(), after.tolist(), strict=True):
        if step.program.structure.communication[first] and second in passes:
            name = step.program.blocks[first].name
            place = passes.index(second)
            assert step.times.end[first] <= step.times.start[second]
            if name == "gather_parameters":
                gathered += 1
                ahead = place - LAYERS_IN_FLIGHT
                # No more parameters are held than those of the layers in flight.
                if ahead >= 0:
                    assert step.times.start[first] >= step.times.end[passes[ahead]]
            else:
                reduced += 1
    # Embedding, twelve layers and head, for both passes of three micro-batches; gradients once
    # each, of which the last have no pass to hold up.
    assert gathered == len(passes) == 14 * 2 * 3
    assert reduced == 14 * 3 - LAYERS_IN_FLIGHT


@pytest.mark.parametrize(
    ("nodes", "pp", "nvlink_domain", "crossing"),
    [
        (1, 2, None, [0, 0]),
        (2, 2, None, [1, 1]),
        # Two stages on each node; the interleaved schedule wraps around between nodes.
        (2, 4, None, [0, 1, 0, 1]),
        (4, 2, None, [1, 1]),
        (2, 4, 16, [0, 0, 0, 0]),
        (2, 1, None, [0]),
    ],
)
def test_transfers_cross_nodes_where_stages_do(
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    pp: int,
    nvlink_domain: int | None,
    crossing: list[int],
) -> None:
    def price_send_recv(size: int, crosses: bool, *_: object) -> CollectivePrice:
        assert size == 64 * 256 * 2
        return CollectivePrice(float(crosses), 1, "", "", Evidence.FITTED, 0)

    monkeypatch.setattr(boundary, "price_send_recv", price_send_recv)
    job = make_job(TINY, nodes=nodes, pp=pp)
    job = replace(job, cluster=replace(job.cluster, nvlink_domain=nvlink_domain))
    workload = build_workload(job)
    assert boundary_seconds(job, workload).tolist() == crossing
    polls = replace(job, framework=Framework(p2p_poll_s=0.5))
    assert boundary_seconds(polls, workload).tolist() == [1.5 * each for each in crossing]


def test_stages_of_one_server_without_nvlink_send_past_its_network() -> None:
    job = make_job(TINY, nodes=2, pp=4)
    islands = replace(job, cluster=replace(job.cluster, nvlink_domain=1, nic_gbps=1))
    inside, between, *rest = boundary_seconds(islands, build_workload(islands)).tolist()
    assert rest == [inside, between]
    assert between > 10 * inside


def test_direction_of_a_pass_decides_who_sends(machine: Machine) -> None:
    machine(Rates(send_s=SEND_S))
    job = make_job(TINY, pp=2)
    workload = build_workload(job)
    assembler = Assembler(
        job, workload, Pricer(job.gpu, job.cluster, job.framework, workload.communicators)
    )
    sent = [[assembler.sent_s(stage, 0, way) for way in (FORWARD, BACKWARD)] for stage in (0, 1)]
    assert sent == [[SEND_S, 0], [0, SEND_S]]
