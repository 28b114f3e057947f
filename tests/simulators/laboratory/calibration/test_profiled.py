"""What a profile states of a GPU, and when it is believed beside runs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.in_process import command
from tests.simulators.laboratory.calibration.runs import measured, node_jobs
from trainscout.simulators.laboratory.calibration.profiled import read_profiled
from trainscout.simulators.laboratory.calibration.questions import job_of_settings
from trainscout.simulators.laboratory.calibration.runs import with_predictions
from trainscout.simulators.predictor.io.measurements import FORMAT, VERSION
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.factors import Factors

calibrate = command("calibrate")
DATA = Path(__file__).parents[4] / "benchmarks/data"


def observed(path, classes, gpu="h100", changes=None):
    """A file as ``explain profile.file=`` writes it, with seconds (measured, priced) by class."""
    record = {
        "format": FORMAT,
        "version": VERSION,
        "gpu": gpu,
        "classes": {
            name: {"measured_s": took_s, "priced_s": priced_s}
            for name, (took_s, priced_s) in classes.items()
        },
    }
    path.write_text(json.dumps(record | (changes or {})), encoding="utf-8")
    return path


def test_seconds_are_summed_by_what_bounds_them(tmp_path):
    classes = {"gemm": (2.4, 2.0), "attention": (1.2, 1.0), "norm": (1.0, 2.0), "other": (0, 0)}
    stated = read_profiled(observed(tmp_path / "kept.json", classes))
    assert stated.gpus == ("h100",)
    assert stated.factors.compute_time == pytest.approx(1.2)
    assert stated.factors.memory_time == pytest.approx(0.5)
    assert stated.factors.network_time == 1.0


def test_of_what_differs_from_shape_to_shape_less_is_stated(tmp_path):
    apart = {"gemm": (4.0, 4.0), "attention": (1.8, 1.0), "norm": (3.0, 2.0)}
    stated = read_profiled(observed(tmp_path / "kept.json", apart))
    # Attention alone is slower, which says nothing of products.
    assert stated.factors.compute_time == 1
    assert stated.factors.memory_time == pytest.approx(1.5)
    scattered = {"norm": {"measured_s": 3.0, "priced_s": 2.0, "log_spread": 0.3}}
    path = observed(tmp_path / "scattered.json", {}, changes={"classes": scattered})
    assert 1 < read_profiled(path).factors.memory_time < 1.5


def calls(size, measured_s, priced_s, leaves_node=False, waits_included=False):
    return {
        "bytes": size,
        "calls": 2.0,
        "measured_s": measured_s,
        "priced_s": priced_s,
        "leaves_node": leaves_node,
        "waits_included": waits_included,
    }


def test_host_collectives_and_overlap_are_learned(tmp_path):
    changes = {
        "host": {"measured_s": 3.0, "predicted_s": 2.0},
        "collectives": [
            *(calls(size, 1.2e-9 * size, 1e-9 * size) for size in (10**6, 10**7, 10**8)),
            *(calls(size, 2e-9 * size, 1e-9 * size, True) for size in (10**6, 10**7, 10**8)),
        ],
        "overlap": {"operations": 9, "shapes": 3, "slowdown": 1.3, "priced": 1.2},
    }
    factors = read_profiled(observed(tmp_path / "kept.json", {}, changes=changes)).factors
    assert factors.host_time == pytest.approx(1.5)
    assert factors.node_time == pytest.approx(1.2)
    assert factors.network_time == pytest.approx(2.0)
    assert factors.overlap_time == pytest.approx(1.5)
    assert factors.compute_time == factors.memory_time == factors.straggler_time == 1


def test_a_step_beside_its_prediction_says_what_is_launched_too(tmp_path):
    compared = {
        "gemm": {"measured_s": 0.9, "predicted_s": 1.0},
        "norms, elementwise, copies": {"measured_s": 3.0, "predicted_s": 2.0},
        "optimizer": {"measured_s": 1.5, "predicted_s": 1.0},
        "collective": {"measured_s": 9.0, "predicted_s": 1.0},
    }
    # The kernels themselves are as priced: there are more of them.
    classes = {"gemm": (1.0, 1.0), "elementwise": (2.0, 2.0)}
    path = observed(tmp_path / "kept.json", classes, changes={"compared": compared})
    factors = read_profiled(path).factors
    assert factors.compute_time == pytest.approx(0.9)
    assert factors.memory_time == pytest.approx(1.5)
    assert factors.node_time == factors.network_time == 1


def test_a_profile_of_one_step_spoils_no_other_of_its_script():
    """As measured on an H100: of other sizes than the one profiled, where the GPU is busy. What it
    says is priced as it comes, so it has little to mend."""
    stated = read_profiled(DATA / "h100_qwen3_1_7b_profile.json")
    with (DATA / "h100_transformers_steps.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["sequence_length"]) > 1024]
    errors = []
    for row in rows:
        names = ("model", "micro_batch", "sequence_length", "recompute")
        batch = {"global_batch_size": row["micro_batch"], "training.optimizer": "adam_pure_bf16"}
        fixed = {"gpus": "1xH100", "framework": "huggingface", "framework.attention": "flash"}
        # Those scripts took torch.optim.AdamW as it comes.
        fixed |= {"framework.fused_optimizer": "false"}
        job = job_of_settings({name: row[name] for name in names} | batch | fixed)
        times = [
            ReplaySimulator(each).without_error_bar(job).step_time_s / float(row["step_time_s"])
            for each in (None, stated)
        ]
        errors.append(np.abs(np.array(times) - 1))
    before, after = np.mean(errors, axis=0)
    assert len(errors) == 5
    assert before < 0.01
    assert after < 0.025


def test_what_no_machine_explains_is_left_out_and_said(tmp_path):
    changes = {"host": {"measured_s": 30.0, "predicted_s": 1.0}}
    stated = read_profiled(observed(tmp_path / "k.json", {"gemm": (1.2, 1.0)}, changes=changes))
    assert stated.factors == Factors(compute_time=pytest.approx(1.2))
    assert "host takes 30 times its price" in stated.made


def test_a_wait_for_other_ranks_is_not_the_networks(tmp_path):
    # One rank was profiled: its calls took longer, which they may have waited; or less, which
    # nothing but a faster network explains.
    sizes = (10**6, 10**7, 10**8)
    for times, factor in ((5e-9, 1.0), (0.5e-9, 0.5)):
        waited = [calls(size, times * size, 1e-9 * size, waits_included=True) for size in sizes]
        path = observed(tmp_path / "kept.json", {}, changes={"collectives": waited})
        assert read_profiled(path).factors.node_time == pytest.approx(factor)
    # One size says nothing of others; kernels that ran faster beside communication, nothing.
    changes = {
        "collectives": [calls(10**6, 2.0, 1.0)],
        "overlap": {"slowdown": 0.9, "priced": 1.2},
    }
    path = observed(tmp_path / "one.json", {"gemm": (1.0, 1.0)}, changes=changes)
    assert read_profiled(path).factors == Factors()


@pytest.mark.parametrize(
    ("classes", "changes", "statement"),
    [
        ({"other": (0.0, 0.0)}, {}, "nothing in it has a price"),
        ({}, {"classes": {"gemm": 3}}, "is damaged"),
        ({"gemm": (30.0, 1.0)}, {}, "compute takes 30 times its price"),
        ({}, {"classes": []}, "lacks classes or gpu"),
        ({}, {"classes": {"gemm": {"measured_s": "much"}}}, "is damaged"),
        ({}, {"version": 2}, "is of version 2"),
        ({}, {"host": {"measured_s": "much"}}, "is damaged"),
        ({}, {"compared": {"gemm": {}}}, "is damaged"),
        ({}, {"collectives": [{"priced_s": 1.0}]}, "is damaged"),
    ],
)
def test_what_states_nothing_is_refused(tmp_path, classes, changes, statement):
    path = observed(tmp_path / "kept.json", classes, changes=changes)
    output = tmp_path / "calibration.yaml"
    with pytest.raises(InputError, match=statement):
        read_profiled(path)
    assert calibrate(["--from-profile", str(path), "--output", str(output)]) == 2
    assert not output.exists()


def test_runs_are_predicted_with_what_a_profile_states(tmp_path):
    runs = measured(node_jobs()[:3], compute_time=1.3)
    gpu = runs[0].job.gpu.name
    stated = read_profiled(observed(tmp_path / "kept.json", {"gemm": (1.3, 1.0)}, gpu))
    informed = with_predictions(runs, stated)
    assert np.array([run.log_residual for run in informed]) == pytest.approx(0, abs=1e-9)
    other = read_profiled(observed(tmp_path / "other.json", {"gemm": (1.3, 1.0)}, "b200"))
    with pytest.raises(InputError, match="was made for b200"):
        with_predictions(runs, other)
