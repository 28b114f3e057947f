import math
from dataclasses import replace

import pytest

from tests.samples import ARCHITECTURES, GPU
from tests.simulators.jobs import GPT175B, make_job
from tests.simulators.predictor.uncertainty.rows import FEATURES
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.prices import Pricer
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty import features_of
from trainscout.simulators.predictor.uncertainty.calibration import (
    Calibration,
    CalibrationRun,
    calibration_text,
    read_calibration,
)
from trainscout.simulators.predictor.uncertainty.interval import calibrated_interval
from trainscout.simulators.predictor.workload.ir import Block, Collective
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.registry import SimulatorSpec, check_simulator, get_simulator

RUNS = (CalibrationRun(FEATURES, 0.02), CalibrationRun(replace(FEATURES, num_gpus=8), -0.01))
CALIBRATION = Calibration(GPU.name, 1.25, 2.0, 3.0, RUNS)


def test_a_calibration_comes_back_from_its_file(tmp_path):
    path = tmp_path / "calibration.yaml"
    path.write_text(calibration_text(CALIBRATION, {"header": "a test", "host_time": "why"}))
    assert read_calibration(path) == CALIBRATION
    assert path.read_text().startswith("# a test\ngpu: h100\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a calibration"),
        ("[1, 2]", "is not a calibration"),
        ("gpu: h100\ncompute_time: 1\nnetwork_time: 1\nhost_time: 1\n", "is not a calibration"),
        ("gpu: h100\ncompute_time: x\nnetwork_time: 1\nhost_time: 1\nruns: []", "not a calib"),
        ("gpu: h100\ncompute_time: 0\nnetwork_time: 1\nhost_time: 1\nruns: []", "out of range"),
        ("gpu: h100\ncompute_time: 1\nnetwork_time: 99\nhost_time: 1\nruns: []", "0.1 to 10"),
        ("gpu: h100\ncompute_time: .nan\nnetwork_time: 1\nhost_time: 1\nruns: []", "finite"),
        ("gpu: h100\ncompute_time: 1\nnetwork_time: 1\nhost_time: 1\nruns: [{}]", "not a calib"),
        ("gpu: [", "cannot be read"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused(tmp_path, text, said):
    path = tmp_path / "calibration.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_calibration(path)


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
    slower = replace(CALIBRATION, compute_time=1.3)
    identities = [SimulatorSpec("replay", each).identity() for each in (CALIBRATION, slower)]
    assert identities[0] != identities[1]


def simulate(job, **factors):
    return ReplaySimulator(Calibration(job.gpu.name, **factors)).simulate(job)


def test_factors_of_one_change_nothing():
    job = make_job(tp=2)
    plain = ReplaySimulator().simulate(job)
    assert replace(simulate(job), assumptions=plain.assumptions) == plain


def test_compute_time_multiplies_kernels():
    job = make_job(GPT175B, tp=8, batch=8)
    plain, slower = simulate(job), simulate(job, compute_time=1.5)
    ratio = slower.breakdown_s["compute"] / plain.breakdown_s["compute"]
    assert ratio == pytest.approx(1.5)


def test_network_time_multiplies_what_leaves_a_node():
    inside, across = make_job(tp=8), make_job(nodes=2, tp=8)
    assert simulate(inside, network_time=2.0).breakdown_s == simulate(inside).breakdown_s
    ops = tuple(Collective("sum", "all_reduce", 2**20, group) for group in ("tp", "dp"))
    block = Block("test", ops)
    groups = build_workload(across).communicators

    def seconds(calibration):
        pricer = Pricer(across.gpu, across.cluster, across.framework, groups, calibration)
        return [op.seconds for op in pricer.operations(block)]

    tp_s, dp_s = seconds(None)
    assert seconds(Calibration(GPU.name, network_time=2.0)) == [tp_s, pytest.approx(2 * dp_s)]


def test_host_time_multiplies_launches():
    job = make_job()
    workload = build_workload(job)

    def launch_s(calibration):
        return Pricer(
            job.gpu, job.cluster, job.framework, workload.communicators, calibration
        ).host_launch_s

    slower = Calibration(job.gpu.name, host_time=3.0)
    assert launch_s(slower) == pytest.approx(3 * launch_s(None))


def test_prices_of_two_calibrations_are_kept_apart():
    job = make_job(GPT175B, tp=8, batch=8)
    first = simulate(job, compute_time=1.5)
    simulate(job, compute_time=2.0)
    assert simulate(job, compute_time=1.5) == first


def test_the_bar_beside_a_calibrating_run_is_that_of_the_runs_left_out():
    runs = [(FEATURES, 0.01), (FEATURES, -0.01), (FEATURES, 0.01), (FEATURES, -0.01)]
    low, high = calibrated_interval((-0.02, 0.04), FEATURES, runs)
    # The published half width of 0.03 is 1.2816 standard deviations; with five degrees of freedom
    # Student's t leaves 10 % above 1.4759.
    spread = math.sqrt(((0.03 / 1.2816) ** 2 + 4 * 0.01**2) / 5)
    assert (low, high) == pytest.approx((-1.4759 * spread, 1.4759 * spread), rel=1e-4)


def test_the_bar_far_from_every_calibrating_run_is_as_wide_as_without():
    far = replace(FEATURES, num_gpus=100_000, layer_s=1e-5, bits=8)
    low, high = calibrated_interval((-0.2, 0.5), far, [(FEATURES, 0.01)] * 4)
    assert (low, high) == pytest.approx((-0.35, 0.35), abs=1e-3)


def test_a_calibrated_prediction_has_the_narrower_bar_and_says_what_it_is():
    job = make_job(tp=2)
    plain = ReplaySimulator().simulate(job)
    features = features_of(job, plain.step_time_s, plain.breakdown_s)
    runs = (CalibrationRun(features, 0.01), CalibrationRun(features, -0.01))
    found = ReplaySimulator(Calibration(job.gpu.name, runs=runs)).simulate(job)
    assert found.step_time_s == plain.step_time_s
    low, high = found.interval_s
    assert low < found.step_time_s < high
    assert high / low < plain.interval_s[1] / plain.interval_s[0]
    assert any("calibrated on 2 runs" in text for text in found.assumptions)
