from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    OTHER,
    Alloc,
    Collective,
    Event,
    Free,
    Group,
    Header,
    Op,
    Parameters,
    Phase,
    Resize,
    Site,
    Synchronise,
    TensorSpec,
    Trace,
    ValueRead,
    Violation,
    WorkWait,
)
from trainscout.simulators.virtual_cluster.traces.invariants import (
    LOOP_LENGTH,
    check_together,
    check_trace,
)

WEIGHTS, ACTIVATION, GRADIENT, HEAD = 1, 2, 3, 20
PARAMETERS = Parameters(elements=1000, bytes=4000, storages=(WEIGHTS,))


def op(name: str) -> Op:
    return Op(name, (), (TensorSpec("float32", (10,), ACTIVATION),), 0)


def reduction(sequence: int, kind: str = "all_reduce") -> Collective:
    return Collective(kind, "dp", sequence, 4000, 4000, "float32", 0, work=sequence, site=0)


def step(number: int, optimizer: Sequence[Event] = ()) -> list[Event]:
    return [
        Phase(FORWARD, number),
        Alloc(ACTIVATION, 40, 0),
        op("aten.mm.default"),
        Phase(BACKWARD, number),
        op("aten.mm.default"),
        reduction(number),
        WorkWait(number, 0),
        Free(ACTIVATION),
        *([PARAMETERS] if number == 0 else []),
        Phase(OPTIMIZER, number),
        *(optimizer or [op("aten._fused_adam_.default")]),
        Phase(OTHER, number),
    ]


def trace(*events: Event, rank: int = 0) -> Trace:
    header = Header(2, rank, 8, "h800", 80 << 30, ("train.py",), {})
    start = (Site(0, "train.py", 7, "main"), Group("dp", "data", (0, 1)), Alloc(WEIGHTS, 4096, 0))
    return Trace(header, (*start, *events))


HEALTHY = trace(*step(0), *step(1), *step(2), *step(3))


def invariants(found: Sequence[object]) -> list[str]:
    return [finding.invariant for finding in found]  # type: ignore[attr-defined]


def test_a_healthy_trace_has_no_findings() -> None:
    assert check_trace(HEALTHY) == ()
    assert check_together([HEALTHY, trace(*HEALTHY.events[3:], rank=1)]) == ()


def test_training_that_was_skipped_is_found_with_the_value_that_did_it() -> None:
    read = ValueRead("item", False, "invented", 0, site=0)
    found = check_trace(trace(read, op("aten.mm.default")))
    assert invariants(found) == ["iterations", "iterations", "optimizer step"]
    assert "item=False at train.py:7 in main" in str(found[-1])
    assert "nothing ran on a GPU" in str(check_trace(trace(read))[-1])


def test_an_optimizer_that_launches_nothing_did_not_step() -> None:
    events = [event for event in step(0) if not (isinstance(event, Op) and "adam" in event.name)]
    (finding,) = check_trace(trace(*events))
    assert finding.invariant == "optimizer step"
    # The optimizer was called.
    assert not finding.certain
    assert "its states are on the host" in finding.likely_cause


def test_an_optimizer_that_steps_within_backward_stepped() -> None:
    within = [Phase(BACKWARD, 0), op("aten._fused_adam_.default"), Phase(OTHER, 0)]
    events = step(0, within)
    assert check_trace(trace(*events, Phase(BACKWARD, 0), op("aten.mm.default"))) == ()
    within[1] = Free(WEIGHTS)
    assert "optimizer step" in invariants(check_trace(trace(*step(0, within))))


@pytest.mark.parametrize(
    ("event", "problem"),
    [(Free(WEIGHTS), "1 of 1 storages"), (Resize(WEIGHTS, 0), "held in 0 bytes")],
)
def test_parameters_that_are_not_in_memory_are_found(event: Event, problem: str) -> None:
    (finding,) = check_trace(trace(event, *step(0)))
    assert problem in finding.problem


def test_a_trace_without_recorded_parameters_is_sound() -> None:
    events = [event for event in step(0) if not isinstance(event, Parameters)]
    assert check_trace(trace(*events)) == ()


def test_memory_that_grows_from_the_second_step_on_is_found() -> None:
    grown = [Alloc(GRADIENT + n, 8 << 20, 0) for n in range(3)]
    first = trace(*step(0), grown[0], *step(1), *step(2))
    assert check_trace(first) == ()
    (finding,) = check_trace(trace(*step(0), *step(1), grown[1], *step(2)))
    assert finding.invariant == "memory returns"
    assert finding.where == "end of step 2"
    assert str(8 << 20) in finding.problem
    once = [*step(0), *step(1), grown[1], *step(2), *step(3)]
    assert check_trace(trace(*once)) == ()
    assert len(check_trace(trace(*once, grown[2], *step(4), *step(5)))) == 2


def test_a_step_that_is_the_first_to_update_a_parameter_makes_its_state() -> None:
    head = Op("aten._fused_adam_.default", (TensorSpec("float32", (8,), HEAD),), (), 0)
    both = Parameters(elements=2000, bytes=8000, storages=(WEIGHTS, HEAD))
    start = [both if each is PARAMETERS else each for each in step(0)]
    start = [Alloc(HEAD, 4096, 0), *start, *step(1)]
    state: list[Event] = [head, Alloc(HEAD + 1, 8 << 20, 0)]
    assert check_trace(trace(*start, *step(2, state), *step(3, [head]))) == ()
    (finding,) = check_trace(trace(*start, *step(2, [head]), *step(3, state)))
    assert finding.where == "end of step 3"


def test_a_loop_over_parameters_is_found_and_foreach_is_not() -> None:
    loop = [op("aten.addcdiv_.default")] * LOOP_LENGTH
    (finding,) = check_trace(trace(*step(0, loop), *step(1, loop)))
    assert finding.invariant == "foreach kernels"
    assert "aten.addcdiv_.default was launched 100 times" in finding.problem
    # An optimizer of the script's own is no fault of torch's.
    assert "written so" in finding.likely_cause
    assert check_trace(trace(*step(0, loop[1:]))) == ()
    assert check_trace(trace(*step(0, [op("aten._foreach_addcdiv_.Scalar")] * 200))) == ()


def test_loops_elsewhere_are_the_models_and_the_frameworks_own() -> None:
    events = step(0)
    events[4:4] = [op("aten.mul.Tensor")] * LOOP_LENGTH
    norms = [op("aten.linalg_vector_norm.default")] * LOOP_LENGTH
    assert check_trace(trace(*events, *norms)) == ()


def test_communication_that_nobody_waits_for_is_found() -> None:
    events = [event for event in step(0) if not isinstance(event, WorkWait)]
    (finding,) = check_trace(trace(*events))
    assert finding.invariant == "works end"
    assert finding.where == "train.py:7 in main"
    assert check_trace(trace(*events, Synchronise("device"))) == ()


def test_a_communication_whose_result_nobody_uses_need_not_be_waited_for() -> None:
    told = dataclasses.replace(reduction(1), outputs=(GRADIENT,))
    assert check_trace(trace(*step(0), told, op("aten.mm.default"))) == ()
    reads = Op("aten.mm.default", (TensorSpec("float32", (10,), GRADIENT),), (), 0)
    (finding,) = check_trace(trace(*step(0), told, reads))
    assert finding.invariant == "works end"


def test_calls_that_are_lost_or_of_strangers_are_found() -> None:
    (finding,) = check_trace(trace(*step(0), *step(2)))
    assert "number 2 follows 0 on data [0, 1]" in finding.problem
    strange = dataclasses.replace(reduction(1), group="tp")
    (finding,) = check_trace(trace(*step(0), strange, WorkWait(1, 0)))
    assert "which it never made or is no member of" in finding.problem


def test_a_script_whose_world_is_not_the_jobs_is_found() -> None:
    (finding,) = check_trace(trace(Group("0", "default_pg", (0,)), *step(0)))
    assert "world has 1 ranks, the job 2" in finding.problem
    assert not finding.certain
    assert check_trace(trace(Group("0", "default_pg", (0, 1)), *step(0))) == ()


def test_violations_are_findings() -> None:
    (finding,) = check_trace(trace(*step(0), Violation("wrong stream", "read too early", 0)))
    assert str(finding) == (
        "wrong stream: rank 0, train.py:7 in main: read too early; on a GPU this may be a race"
    )


def test_races_of_the_same_streams_are_one_finding() -> None:
    said = [
        "read on stream 0 of 512 bytes last written on stream 1",
        "read on stream 0 of 8 bytes last written on stream 1",
        "read on stream 0 of 8 bytes last written on stream 2",
    ]
    found = check_trace(trace(*step(0), *(Violation("wrong stream", each, 0) for each in said)))
    assert [each.problem for each in found] == [f"{said[0]} (and 1 more like it)", said[2]]


def test_ranks_that_do_not_meet_are_found() -> None:
    other = [
        reduction(event.sequence, "reduce_scatter") if isinstance(event, Collective) else event
        for event in step(0)
    ]
    (finding,) = check_together([trace(*step(0)), trace(*other, rank=1)])
    assert finding.invariant == "collectives match"
    assert "all_reduce" in finding.problem
    assert "reduce_scatter" in finding.problem
    assert finding.certain


def test_sizes_that_a_rank_could_not_know_are_no_certain_mismatch() -> None:
    def uneven(rank: int, *counts: int, grade: str = "expected") -> Trace:
        read = ValueRead("tolist", counts, grade, 0)
        sent = Collective("all_to_all", "dp", 1, 24, 24, "float32", 0, 9, None, counts, (3, 3))
        return trace(*step(0), read, sent, rank=rank)

    (finding,) = check_together([uneven(0, 2, 4), uneven(1, 4, 2)])
    assert "bytes from 0 to 1" in finding.problem
    assert not finding.certain
    assert "trainscout live" in finding.likely_cause
    (finding,) = check_together([uneven(0, 2, 4, grade="exact"), uneven(1, 4, 2, grade="exact")])
    assert finding.certain


@pytest.mark.parametrize(
    ("value", "grade", "certain"),
    [(0.0, "expected", False), (0.5, "expected", True), (1.0, "invented", True)],
)
def test_a_rank_that_could_not_know_how_many_go_on_may_have_stopped(
    value: float, grade: str, certain: bool
) -> None:
    """``Join`` sums 1.0 of every rank that has inputs left."""
    stopped = trace(*step(0), ValueRead("item", value, grade, 0))
    (finding,) = check_together([stopped, trace(*step(0), *step(1), rank=1)])
    assert "number of collectives differs" in finding.problem
    assert finding.certain is certain
