"""Chakra execution traces of recipes, read back: nothing is lost, and every rank's part fits."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.reports.timeline.jobs import RECIPES, job_of, played
from trainscout.reports.timeline.chakra import write_recipe_chakra
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.priced import KERNELS
from trainscout.simulators.predictor.replay.timeline import (
    COMMUNICATION,
    COMPUTE,
    DATA_PARALLEL,
    Timeline,
)
from trainscout.simulators.predictor.workload import ir
from trainscout.simulators.predictor.workload.ir import kernel_flops
from trainscout.simulators.predictor.workload.ranks import group_of, place_of
from trainscout.simulators.virtual_cluster.traces.chakra.read import read_chakra
from trainscout.simulators.virtual_cluster.traces.chakra.schema import (
    NodeType,
    attributes,
    read_messages,
)
from trainscout.simulators.virtual_cluster.traces.collate.collated import collate
from trainscout.simulators.virtual_cluster.traces.events import (
    Collective,
    Group,
    Op,
    PointToPoint,
    Trace,
)

pytest.importorskip("google.protobuf")


@functools.cache
def written_once(name: str) -> tuple[tuple[Trace, ...], Timeline]:
    """The traces of all ranks, and what was played; several tests look at them."""
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder), name)


def written(directory: Path, name: str) -> tuple[tuple[Trace, ...], Timeline]:
    job = job_of(name)
    timeline, _ = played(job, job.recipe.pp)
    write_recipe_chakra("timeline.chakra", directory, job, timeline, range(job.world_size))
    return read_chakra(directory), timeline


def nodes_of(path: Path) -> list[tuple[object, dict[str, object]]]:
    with path.open("rb") as file:
        _, *nodes = read_messages(path, file)
    return [(node, attributes(node)) for node in nodes]


@pytest.mark.parametrize("name", RECIPES)
def test_ranks_fit_and_none_waits_for_ever(name: str) -> None:
    traces, _ = written_once(name)
    job = collate(traces)
    assert job.mismatches == ()
    assert job.order_problems == ()


@pytest.mark.parametrize("name", RECIPES)
def test_every_kernel_and_every_byte_is_there(name: str) -> None:
    traces, timeline = written_once(name)
    job = job_of(name)
    sent = {"send": Counter[tuple[int, int]](), "recv": Counter[tuple[int, int]]()}
    for rank, trace in enumerate(traces):
        expected, found = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
        here = timeline.stage == place_of(job, rank).stage
        for row in np.flatnonzero(here & np.isin(timeline.stream, (COMMUNICATION, DATA_PARALLEL))):
            priced = timeline.operations[timeline.operation[row]]
            if (
                isinstance(priced.op, ir.Collective)
                and timeline.end_s[row] > timeline.start_s[row]
            ):
                expected[group_of(job, priced.op.communicator, rank)] += priced.op.bytes
        members = {each.name: each.ranks for each in trace.events if isinstance(each, Group)}
        for event in trace.events:
            if isinstance(event, Collective):
                # NCCL's size: the larger of what goes in and comes out.
                found[members[event.group]] += max(event.bytes_in, event.bytes_out)
            elif isinstance(event, PointToPoint):
                ends = (rank, event.peer) if event.kind == "send" else (event.peer, rank)
                sent[event.kind][ends] += event.bytes
        assert found == expected
        kernels = sum(isinstance(event, Op) for event in trace.events)
        assert kernels == (here & (timeline.stream == COMPUTE)).sum()
    assert sent["send"] == sent["recv"]
    boundaries = sum(
        timeline.operations[o].op.bytes for o in timeline.operation[timeline.sends[0]]
    )
    pipelines = job.world_size // job.recipe.pp
    of_stages = sum(
        count
        for (source, to), count in sent["send"].items()
        if place_of(job, source).stage != place_of(job, to).stage
    )
    assert of_stages == boundaries * pipelines


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "fsdp", "context"])
def test_durations_work_and_order_are_those_of_the_timeline(tmp_path: Path, name: str) -> None:
    job = job_of(name)
    timeline, _ = played(job)
    write_recipe_chakra("timeline.chakra", tmp_path, job, timeline, (0,))
    nodes = nodes_of(tmp_path / "trace.0.et")
    compute = [(node, about) for node, about in nodes if node.type == NodeType.COMP_NODE]
    rows = np.flatnonzero((timeline.stage == 0) & (timeline.stream == COMPUTE))
    seconds = (timeline.end_s - timeline.start_s)[rows].sum()
    # Each end is rounded to a microsecond.
    micros = sum(node.duration_micros for node, _ in compute)
    assert micros * 1e-6 == pytest.approx(seconds, abs=1e-6 * len(rows))
    operations = [timeline.operations[each].op for each in timeline.operation[rows].tolist()]
    flops = sum(kernel_flops(op) for op in operations if isinstance(op, KERNELS))
    products = [about["num_ops"] for node, about in compute if _is_product(node.name, operations)]
    assert sum(products) == flops
    for node, _ in nodes:
        assert all(before < node.id for before in node.data_deps)


def _is_product(name: str, operations: list[object]) -> bool:
    return any(op.name == name and kernel_flops(op) for op in operations)


@pytest.mark.parametrize("name", ["pipeline", "interleaved"])
def test_a_pass_waits_for_what_it_receives_and_sends_what_it_made(
    tmp_path: Path, name: str
) -> None:
    job = job_of(name)
    timeline, _ = played(job)
    rank = group_of(job, "pp", 0)[1]
    write_recipe_chakra("timeline.chakra", tmp_path, job, timeline, (rank,))
    nodes = nodes_of(tmp_path / f"trace.{rank}.et")
    waiting = {before for node, _ in nodes for before in node.data_deps}
    by_number = {node.id: (node, about) for node, about in nodes}
    for node, about in nodes:
        if node.type == NodeType.COMM_RECV_NODE:
            assert about["comm_dst"] == rank
            assert node.id in waiting
        elif node.type == NodeType.COMM_SEND_NODE:
            assert about["comm_src"] == rank
            made = [by_number[before] for before in node.data_deps]
            # Besides what was sent to the same stage before.
            kernels = [each for each, _ in made if each.type != NodeType.COMM_SEND_NODE]
            assert kernels
            for each in kernels:
                assert by_number[each.id][1]["micro_batch"] == about["micro_batch"]


def test_refuses_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = job_of("one stage")
    timeline, _ = played(job, 1)
    with pytest.raises(InputError, match=r"timeline\.chakra"):
        write_recipe_chakra("timeline.chakra", tmp_path / "file" / "et", job, timeline, (0,))


def test_same_job_same_bytes(tmp_path: Path) -> None:
    for directory in ("a", "b"):
        written(tmp_path / directory, "pipeline")
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
