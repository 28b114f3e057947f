"""Step times out of logs, in the words of each framework."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import make_job
from trainscout.simulators.laboratory.calibration.logs import read_log
from trainscout.simulators.predictor.question.errors import InputError

JOB = make_job(batch=64)
TOKENS = JOB.tokens_per_step

MEGATRON = (
    " [2025-10-02 22:52:07.123] iteration {step:8d}/    5000 | consumed samples: {seen:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | "
    "learning rate: 3.0E-04 | global batch size: {batch:5d} | lm loss: 4.474437E+00 | "
)
LINES = {
    "Megatron-LM": MEGATRON,
    "nanotron": "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 378950 | "
    "consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: {k:.2f}K | tokens_per_sec: 22.8K | "
    "global_batch_size: {batch} | lm_loss: 2.38",
    "NeMo": "Training epoch 0, iteration {step}/99 | lr: 4e-07 | global_batch_size: {batch} | "
    "global_step: {step} | reduced_train_loss: 10.1 | train_step_timing in s: {s:.3f}",
    "Megatron-Bridge": "Step Time : {s:.2f}s GPU utilization: 528.1TFLOP/s/GPU",
    "TorchTitan": "\x1b[31m[rank0]:[titan] 2026-02-24 - root - INFO - \x1b[31mstep: {step:2}  "
    "\x1b[32mloss:  7.6  \x1b[33mmemory: 66.91GiB(37.51%)  \x1b[34mtps: {tps:,.0f}  mfu: 13.99%",
    "DeepSpeed": "[2024-07-17 19:53:24,981] [INFO] [timer.py:258:stop] epoch=0/micro_step={step}/"
    "global_step={step}, RunningAvgSamplesPerSec=16.12, CurrSamplesPerSec={samples}, "
    "MemAllocated=0.02GB, MaxMemAllocated=0.97GB",
    "HF Trainer": " 33%|###   | {step}/1000 [05:30<49:30,  {s:.2f}s/it]",
}
OTHERS = {
    "NeMo": "Epoch 0: :   3%|3  | 9000/301500 [1:42:42<55:37:46, v_num=0-56, reduced_train_loss="
    "nan.0, global_step={step}.0, consumed_samples=6.3e+5, train_step_timing in s={s:.3f}, x=7]",
    "DeepSpeed": "[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{step}, "
    "SamplesPerSec={samples}, MemAllocated=0.26GB",
    "Megatron-LM": "samples/sec: 7.799 | iteration {step:8d}/   10000 | elapsed time per "
    "iteration (ms): {ms:.1f} | learning rate: 2.1E-06 | approx flops per GPU: 112.9TFLOPS |",
}


def log(tmp_path, line, seconds, job=JOB, batch=64, end="\n"):
    path = tmp_path / "train.log"
    text = "".join(
        line.format(
            step=step,
            seen=step * batch,
            s=each,
            ms=1e3 * each,
            k=each,
            batch=batch,
            tps=TOKENS / each / job.world_size,
            samples=batch / each,
        )
        + end
        for step, each in enumerate(seconds, 1)
    )
    path.write_text("starting\nWARNING: something else\n" + text, newline="")
    return path


STEADY = [30.0, 5.0, *[2.0, 2.02, 1.98] * 6, 9.0, 2.0]


@pytest.mark.parametrize(("framework", "line"), [*LINES.items(), *OTHERS.items()])
def test_a_log_says_its_step_without_warm_up_and_outliers(tmp_path, framework, line):
    found = read_log(log(tmp_path, line, STEADY), JOB)
    assert found.framework == framework
    assert found.step_time_s == pytest.approx(2.0, rel=0.005)
    assert found.notes == (
        "2 of 22 steps are warm-up (to line 4)",
        "1 steps are far from the others (line 23)",
    )


def test_a_bar_that_writes_over_itself_is_read(tmp_path):
    found = read_log(log(tmp_path, LINES["HF Trainer"], STEADY, end="\r"), JOB)
    assert found.step_time_s == pytest.approx(2.0)


def test_steps_a_second_are_read_as_such(tmp_path):
    line = LINES["HF Trainer"].replace("{s:.2f}s/it", "2.00it/s")
    assert read_log(log(tmp_path, line, STEADY), JOB).step_time_s == pytest.approx(0.5)


def test_lines_that_every_rank_prints_count_once(tmp_path):
    line = LINES["TorchTitan"] + "\n" + LINES["TorchTitan"]
    assert read_log(log(tmp_path, line, STEADY), JOB).kept == 19


@pytest.mark.parametrize(
    ("line", "seconds", "said"),
    [
        ("loss 1.0", [1.0] * 9, "no step of a known framework"),
        (MEGATRON, [30.0, 2.0, 2.0], "has 2 steps of Megatron-LM besides warm-up"),
    ],
)
def test_a_log_without_steps_is_refused(tmp_path, line, seconds, said):
    with pytest.raises(InputError, match=said):
        read_log(log(tmp_path, line, seconds), JOB)


def test_a_log_of_another_batch_is_refused_with_its_line(tmp_path):
    path = log(tmp_path, MEGATRON, STEADY, batch=32)
    with pytest.raises(InputError, match="has steps of 32 samples at line 3"):
        read_log(path, JOB)
    smaller = replace(JOB, training=replace(JOB.training, global_batch_size=32))
    assert read_log(path, smaller).step_time_s == pytest.approx(2.0)


def test_several_jobs_in_one_log_are_refused_and_a_restart_is_not(tmp_path):
    path = log(tmp_path, MEGATRON, STEADY)
    first = path.read_text()
    path.write_text(first + log(tmp_path, MEGATRON, STEADY).read_text())
    assert read_log(path, JOB).step_time_s == pytest.approx(2.0)
    other = log(tmp_path, MEGATRON, [2 * each for each in STEADY]).read_text()
    path.write_text(first + other)
    with pytest.raises(InputError, match="starts again at line 27, with steps of 4"):
        read_log(path, JOB)


def test_a_missing_log_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "no.log", JOB)
