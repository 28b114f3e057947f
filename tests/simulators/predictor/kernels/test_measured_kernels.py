"""A user's table of measured kernels, from a specification to the price of a step."""

import csv
from dataclasses import replace

import pytest

from tests.samples import GPU
from tests.simulators.jobs import make_job
from trainscout.optimizer.executors import make_executor
from trainscout.optimizer.options import ExecutorOptions
from trainscout.simulators.predictor.kernels.measured import load_measured
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.unroll import unroll
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.workload.ir import Gemm
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.registry import (
    MeasuredKernels,
    SimulatorSpec,
    check_simulator,
    get_simulator,
    measured_table,
)

# A host that launches at once, so that kernels decide how long a step takes.
JOB = replace(make_job(tp=2, batch=8), framework=Framework(host_launch_s=0.0))


@pytest.fixture
def table(tmp_path):
    """Every GEMM of the job's blocks, measured to be twice as slow as its formula says."""
    workload = build_workload(JOB)
    runs = [run for stage in workload.stages for chunk in stage.chunks for run in chunk.runs]
    blocks = [block for run in runs for block in (run.forward, run.backward)]
    gemms = {op for block in blocks for op in block.ops if isinstance(op, Gemm)}
    ops = sorted(gemms, key=repr)
    path = tmp_path / "gemm.csv"
    with path.open("w", newline="") as file:
        columns = ["gpu", "dtype", "m", "n", "k", "batch", "layout", "time_us", "flag"]
        writer = csv.writer(file)
        writer.writerow(columns)
        for op, seconds in zip(ops, price_kernels(GPU, ops).seconds, strict=True):
            sizes = [op.m, op.n, op.k, op.batch]
            row = ["H100 SXM5", op.dtype, *sizes, op.layout, 2e6 * seconds, "sustained;"]
            writer.writerow(row)
    return path


def spec_of(path):
    return SimulatorSpec(measured_kernels=MeasuredKernels(str(path), load_measured(path).digest))


def test_a_table_slows_a_step_and_shows_as_evidence(table):
    plain = get_simulator("replay").simulate(JOB)
    found = get_simulator(spec_of(table)).simulate(JOB)
    assert plain.evidence_share["measured"] == 0
    assert found.evidence_share["measured"] > 0.1
    assert found.breakdown_s["compute"] > plain.breakdown_s["compute"]
    # Prices are kept apart: without the table nothing has changed.
    assert get_simulator("replay").simulate(JOB) == plain


def test_times_that_no_gpu_takes_are_doubted(table):
    believable = get_simulator(spec_of(table)).simulate(JOB)
    assert believable.assumptions == get_simulator("replay").simulate(JOB).assumptions
    text = table.read_text().splitlines()
    cells = text[1].split(",")
    cells[7] = str(1e3 * float(cells[7]))
    table.write_text("\n".join([text[0], ",".join(cells), *text[2:]]) + "\n")
    *rest, last = get_simulator(spec_of(table)).simulate(JOB).assumptions
    assert tuple(rest) == believable.assumptions
    assert last.startswith(f"1 of {len(text) - 1} measured kernels are more than 10x off")


def test_a_table_of_another_device_is_said_to_say_nothing(table):
    table.write_text(table.read_text().replace("H100 SXM5", "cpu"))
    found = get_simulator(spec_of(table)).simulate(JOB)
    assert found.assumptions[-1] == f"no usable row of the measured kernels is about {GPU.name}"


def test_a_table_without_rows_is_refused(table):
    table.write_text(table.read_text().splitlines()[0] + "\n")
    with pytest.raises(InputError, match="holds no rows"):
        load_measured(table)


def test_the_timeline_is_slowed_too(table):
    measured = measured_table(spec_of(table).measured_kernels)
    plain, found = (
        unroll(step_program(JOB, 1, None, each)).end_s.max() for each in (None, measured)
    )
    assert found > plain


@pytest.mark.parametrize("name", ["serial", "loky"])
def test_workers_price_by_the_table(table, name):
    spec = spec_of(table)
    question = Question(JOB.model, JOB.gpu, JOB.cluster, JOB.training, JOB.framework)
    with make_executor(ExecutorOptions(name, 2), question, spec) as executor:
        (outcome,) = executor.map([JOB.recipe])
    assert outcome.prediction == get_simulator(spec).simulate(JOB)


def test_a_table_that_changes_under_a_search_is_refused(table):
    spec = spec_of(table)
    table.write_text(table.read_text().replace("sustained;", ""))
    with pytest.raises(InputError, match="has changed meanwhile"):
        get_simulator(spec)


def test_a_search_is_known_by_the_content_of_its_table(table, tmp_path):
    other = tmp_path / "copy.csv"
    other.write_bytes(table.read_bytes())
    assert spec_of(table).identity() == spec_of(other).identity()
    other.write_text(table.read_text().replace("sustained;", ""))
    assert spec_of(table).identity() != spec_of(other).identity()


def test_a_calibration_was_fitted_without_measured_kernels(table):
    spec = SimulatorSpec("replay", Calibration((GPU.name,)), spec_of(table).measured_kernels)
    with pytest.raises(InputError, match="without measured kernels"):
        check_simulator(spec, GPU)
