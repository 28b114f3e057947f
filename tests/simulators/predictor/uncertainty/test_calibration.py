from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.pruning.questions import jobs
from tests.samples import ARCHITECTURES, GPU
from tests.simulators.jobs import GPT175B, make_job
from trainscout.pruning.equivalence import canonical
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.boundary import boundary_seconds
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import (
    Calibration,
    CalibrationRun,
    calibration_text,
    columns_of,
    read_calibration,
)
from trainscout.simulators.predictor.uncertainty.factors import Factors
from trainscout.simulators.predictor.uncertainty.posterior import Posterior, traits_of
from trainscout.simulators.predictor.workload.ir import Block, Collective
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.registry import SimulatorSpec, check_simulator, get_simulator

PARTS = ("memory", "node", "network", "host", "straggler")
SHARES = (0.1, 0.05, 0.2, 0.0, 0.03)
TRAITS = traits_of(make_job(tp=2))
RUNS = (
    CalibrationRun("one", TRAITS, SHARES, 1.0, 1.02),
    CalibrationRun("two", replace(TRAITS, num_gpus=64), SHARES, 2.0, 1.98),
)
CALIBRATION = Calibration(
    (GPU.name,), Factors(1.25, network_time=2.0, host_time=3.0), RUNS, "us", 0.8
)


def test_a_calibration_comes_back_from_its_file(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text(calibration_text(CALIBRATION, ["a test"]))
    assert read_calibration(path) == CALIBRATION
    assert path.read_text().startswith("# a test\ngpu: [h100]\nmade: us\ncompute_time: 1.25\n")


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("", "is not a calibration"),
        ("[1, 2]", "is not a calibration"),
        ("gpu: h100\ncompute_time: 1\n", "is not a calibration"),
        ("gpu: h100\ncompute_tim: 1\nruns: []", "did you mean 'compute_time'"),
        ("gpu: h100\ncompute_time: x\nnetwork_time: 1\nruns: []", "not a calib"),
        ("gpu: h100\ncompute_time: 0\nnetwork_time: 1\nruns: []", "out of range"),
        ("gpu: h100\ncompute_time: 1\nnetwork_time: 99\nruns: []", "0.1 to 10"),
        ("gpu: h100\ncompute_time: .nan\nnetwork_time: 1\nruns: []", "finite"),
        ("gpu: h100\ncompute_time: 1\nnetwork_time: 1\nruns: [{}]", "not a calib"),
        ("gpu: h100\nshare: 1.5\nruns: []", "share=1.5: is no share"),
        ("gpu: [", "cannot be read"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, text, stated):
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=stated):
        read_calibration(path)


def test_no_more_is_applied_than_its_share():
    job = make_job(tp=2)
    slow = tuple(replace(run, measured_s=1.2 * run.measured_s) for run in RUNS)
    whole = replace(CALIBRATION, factors=Factors(), runs=slow, share=1.0)
    half, none = (replace(whole, share=share) for share in (0.5, 1e-9))

    def predicted_s(calibration):
        parts = [getattr(calibration.part_factors, f"{name}_time") - 1 for name in PARTS]
        return calibration.scale_of(job) * (1 + np.dot(SHARES, parts))

    assert predicted_s(half) == pytest.approx(predicted_s(whole) ** 0.5)
    assert predicted_s(none) == pytest.approx(1.0)
    assert predicted_s(whole) != pytest.approx(1.0, abs=1e-3)
    # What runs say of the measured time stays, whatever part of it is predicted with.
    lows = [each.interval(job, SHARES, 0.8)[0] * predicted_s(each) for each in (whole, half)]
    assert lows[0] == pytest.approx(lows[1])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_calibration(tmp_path / "nothing.yaml")


def test_another_gpu_is_refused_before_and_while_simulating():
    spec = SimulatorSpec("replay", CALIBRATION)
    other = replace(GPU, name="a100_80", architecture=ARCHITECTURES["ampere"])
    check_simulator(spec, GPU)
    with pytest.raises(InputError, match="was made for h100"):
        check_simulator(spec, other)
    with pytest.raises(InputError, match="was made for h100"):
        get_simulator(spec).simulate(replace(make_job(), gpu=other))


def test_a_simulator_of_your_own_takes_no_calibration():
    spec = SimulatorSpec("tests.optimizer.fake_simulator:FakeSimulator", CALIBRATION)
    with pytest.raises(InputError, match="takes no calibration"):
        get_simulator(spec)


def test_searches_with_other_calibrations_are_other_searches():
    assert SimulatorSpec("replay").identity() == "replay"
    slower = replace(CALIBRATION, factors=Factors(1.3))
    identities = [SimulatorSpec("replay", each).identity() for each in (CALIBRATION, slower)]
    assert identities[0] != identities[1]


def simulate(job, **factors):
    return ReplaySimulator(Calibration((job.gpu.name,), Factors(**factors))).simulate(job)


def test_factors_of_one_change_nothing():
    job = make_job(tp=2)
    plain = ReplaySimulator().simulate(job)
    assert replace(simulate(job), assumptions=plain.assumptions) == plain


def test_compute_time_multiplies_kernels():
    job = make_job(GPT175B, tp=8, batch=8)
    plain, slower = simulate(job), simulate(job, compute_time=1.5, memory_time=1.5)
    ratio = slower.breakdown_s["compute"] / plain.breakdown_s["compute"]
    assert ratio == pytest.approx(1.5)


def test_network_time_multiplies_what_leaves_a_node():
    inside, across = make_job(tp=8), make_job(nodes=2, tp=8)
    assert simulate(inside, network_time=2.0).breakdown_s == simulate(inside).breakdown_s
    ops = tuple(Collective("sum", "all_reduce", 2**20, group) for group in ("tp", "dp"))
    block = Block("test", ops)
    groups = build_workload(across).communicators

    def seconds(**factors):
        pricer = Pricer(across.gpu, across.cluster, across.framework, groups, Factors(**factors))
        return [op.seconds for op in pricer.operations(block)]

    tp_s, dp_s = seconds()
    assert seconds(network_time=2.0) == [tp_s, pytest.approx(2 * dp_s)]
    assert seconds(node_time=2.0) == [pytest.approx(2 * tp_s), dp_s]


def test_network_time_multiplies_what_stages_send_each_other():
    job = make_job(GPT175B, nodes=2, tp=8, pp=2, batch=8)
    workload = build_workload(job)
    plain_s, slower_s = (
        boundary_seconds(job, workload, factors)
        for factors in (Factors(), Factors(network_time=2))
    )
    assert slower_s == pytest.approx(2 * plain_s)


def test_memory_and_straggler_time_multiply_theirs():
    job = make_job(nodes=2, tp=8)
    plain = simulate(job)
    slower = simulate(job, memory_time=2.0)
    assert slower.breakdown_s["optimizer"] == pytest.approx(2 * plain.breakdown_s["optimizer"])
    share, twice = (
        each.breakdown_s["stragglers"] / each.breakdown_s["compute"]
        for each in (plain, simulate(job, straggler_time=2.0))
    )
    assert twice == pytest.approx(2 * share)


def test_overlap_time_multiplies_by_how_much_kernels_and_communication_slow_each_other():
    beside = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    job = make_job(GPT175B, nodes=16, tp=8, batch=16, sp=True, **beside)
    less, plain, more = (
        simulate(job, overlap_time=factor).step_time_s for factor in (0.5, 1.0, 1.5)
    )
    assert plain - less == pytest.approx(more - plain, rel=0.1)
    assert more > 1.001 * plain
    assert Factors(overlap_time=2.0).slowed(1.5).overlap_time == 2.0


def test_host_time_multiplies_launches():
    job = make_job()
    workload = build_workload(job)

    def launch_s(factors):
        return Pricer(
            job.gpu, job.cluster, job.framework, workload.communicators, factors
        ).host_launch_s

    assert launch_s(Factors(host_time=3.0)) == pytest.approx(3 * launch_s(Factors()))


def test_prices_of_two_calibrations_are_kept_apart():
    job = make_job(GPT175B, tp=8, batch=8)
    first = simulate(job, compute_time=1.5)
    simulate(job, compute_time=2.0)
    assert simulate(job, compute_time=1.5) == first


@given(jobs())
def test_recipes_that_mean_the_same_have_the_same_traits(job):
    assert traits_of(job) == traits_of(replace(job, recipe=canonical(job)))


@pytest.mark.parametrize("recipe", [{"batch": 8}, {"nodes": 8, "pp": 8, "batch": 64, "sp": True}])
def test_runs_that_scatter_leave_a_bar_as_wide_as_without(recipe):
    job = make_job(GPT175B, tp=8, **recipe)
    plain = ReplaySimulator().simulate(job)
    _, shares = ReplaySimulator().with_shares(job)
    runs = tuple(
        CalibrationRun("x", traits_of(job), shares, 1.0, each) for each in (0.5, 0.7, 1.4, 2.0) * 3
    )
    found = ReplaySimulator(Calibration((job.gpu.name,), runs=runs)).simulate(job)
    widths = [each.interval_s[1] / each.interval_s[0] for each in (found, plain)]
    assert widths[0] == pytest.approx(widths[1], rel=1e-3)


def test_a_calibrated_prediction_has_the_narrower_bar_and_says_what_it_is():
    job = make_job(GPT175B, tp=8, batch=8)
    plain = ReplaySimulator().simulate(job)
    _, shares = ReplaySimulator().with_shares(job)
    seconds = plain.step_time_s
    runs = tuple(
        CalibrationRun("x", traits_of(job), shares, seconds, seconds * each) for each in (1.1, 1.1)
    )
    found = ReplaySimulator(Calibration((job.gpu.name,), runs=runs)).simulate(job)
    # Shrunk: two runs leave it open how much of it is theirs alone.
    columns = columns_of(runs)
    expected = np.exp(Posterior(columns, np.log([1.1, 1.1])).errors(columns)[0])
    assert 1.07 < expected < 1.1
    # The step is replayed with longer parts, whose sum is not quite what logarithms add up to.
    assert found.step_time_s / seconds == pytest.approx(expected, rel=0.005)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    assert found.tokens_per_s * found.step_time_s == pytest.approx(job.tokens_per_step)
    low, high = found.interval_s
    assert low < found.step_time_s < high
    assert high / low < plain.interval_s[1] / plain.interval_s[0]
    assert any("calibrated on 2 runs" in text for text in found.assumptions)
