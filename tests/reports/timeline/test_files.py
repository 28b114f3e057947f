"""The files of a timeline: what was chosen is written, what cannot be is refused first."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reports.timeline.jobs import SIMULATOR, SPEC, job_of
from trainscout.reports.timeline.files import write_timeline_files
from trainscout.simulators.predictor.network.choice import CongestedNetwork, NetworkChoice
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.registry import SimulatorSpec


def test_memory_as_csv_peaks_at_the_prediction(tmp_path: Path) -> None:
    job = job_of("pipeline")
    path = tmp_path / "memory.csv"
    whole = job.num_micro_batches
    choice = TimelineChoice(memory=str(path), micro_batches=whole)
    write_timeline_files(job, SPEC, SIMULATOR, choice)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for stage in SIMULATOR.simulate(job).memory.per_stage:
        of_stage = [row for row in rows if int(row["stage"]) == stage.stage]
        peak = max(int(row["allocated_bytes"]) for row in of_stage)
        assert peak == stage.peak_allocated_bytes
        for row in of_stage:
            kinds = [int(value) for name, value in row.items() if name.endswith("_bytes")]
            assert sum(kinds[:-1]) == kinds[-1]


def test_plays_two_rounds_of_the_pipeline_unless_told(tmp_path: Path) -> None:
    job = job_of("gpipe")
    path = tmp_path / "t.json"

    def micro_batches(choice: TimelineChoice) -> set[int]:
        write_timeline_files(job, SPEC, SIMULATOR, choice)
        events = json.loads(path.read_text())["traceEvents"]
        found = {event.get("args", {}).get("micro_batch") for event in events}
        return {each for each in found if each is not None}

    assert micro_batches(TimelineChoice(file=str(path))) == set(range(4))
    assert micro_batches(TimelineChoice(file=str(path), micro_batches=1)) == {0}


def test_chosen_ranks_are_in_every_kind_of_file(tmp_path: Path) -> None:
    job = job_of("pipeline")
    trace, chakra = tmp_path / "t.json", tmp_path / "et"
    choice = TimelineChoice(str(trace), str(chakra), micro_batches=1, ranks=[1, 6])
    write_timeline_files(job, SPEC, SIMULATOR, choice)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 6}
    assert {path.name for path in chakra.glob("*.et")} == {"trace.1.et", "trace.6.et"}


def slices(job: Job, spec: SimulatorSpec, simulator: ReplaySimulator, path: Path) -> float:
    """Seconds of the data-parallel threads that are shown."""
    choice = TimelineChoice(file=str(path), micro_batches=2)
    write_timeline_files(job, spec, simulator, choice)
    events = json.loads(path.read_text())["traceEvents"]
    return sum(event["dur"] for event in events if event["name"] == "grad_reduce_scatter")


def test_a_declared_network_is_played_on(tmp_path: Path) -> None:
    job = job_of("one stage")
    network = CongestedNetwork(
        NetworkChoice(engine="flow"),
        SwitchFabric("narrow", "made up", 2, 8, 1e-6, oversubscription=4.0),
    )
    congested = replace(SPEC, network=network)
    alone_us = slices(job, SPEC, SIMULATOR, tmp_path / "a.json")
    shared_us = slices(job, congested, ReplaySimulator(network=network), tmp_path / "b.json")
    assert shared_us > alone_us > 0


def test_the_simulators_own_workload_is_played(tmp_path: Path) -> None:
    job = job_of("pipeline")
    other = replace(job, recipe=replace(job.recipe, recompute="full"))

    class Recomputing(ReplaySimulator):
        def workload(self, job: Job) -> Workload:
            return build_workload(other)

    path = tmp_path / "t.json"
    choice = TimelineChoice(file=str(path), micro_batches=1)
    sizes = []
    for simulator in (SIMULATOR, Recomputing()):
        write_timeline_files(job, SPEC, simulator, choice)
        sizes.append(path.stat().st_size)
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (TimelineChoice(stages=(0,)), r"timeline\.stages=\[0\]: is of no use without"),
        (TimelineChoice(micro_batches=2), r"timeline\.micro_batches=2: is of no use without"),
        (TimelineChoice(memory="m.csv", ranks=[0]), r"timeline\.ranks=.*of no use without"),
        (TimelineChoice(file="t.json", stages=(9,)), r"timeline\.stages=9"),
        (TimelineChoice(file="t.json", micro_batches=0), r"timeline\.micro_batches=0"),
        (TimelineChoice(file="no/such/t.json"), r"timeline\.file="),
        (TimelineChoice(memory="no/such/m.csv"), r"timeline\.memory="),
        (TimelineChoice(file="t.json", memory="t.json"), r"timeline\.memory=.*same file"),
    ],
)
def test_refuses_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: TimelineChoice, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        write_timeline_files(job_of("pipeline"), SPEC, SIMULATOR, choice)
    assert not list(tmp_path.iterdir())
