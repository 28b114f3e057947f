"""Step times out of logs, in the words of each framework."""

from dataclasses import replace
from itertools import pairwise

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
    "DeepSpeed's pipeline": "steps: {step} loss: 5.5508 iter time (s): {s:.3f} samples/sec: 1.0",
    "TorchTitan": "[rank0]:2024-04-01 17:54:52,734 - root - INFO - step: {step:2}  loss: 10.9746  "
    "memory:  9.53GiB(10.03%)  wps: {tps:,.0f}  mfu: 0.02%",
    "NeMo": "Epoch 0: :   3%|3  | 9000/301500 [1:42:42<55:37:46, v_num=0-56, reduced_train_loss="
    "nan.0, global_step={step}.0, consumed_samples=6.3e+5, train_step_timing in s={s:.3f}, x=7]",
    "DeepSpeed": "[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{step}, "
    "SamplesPerSec={samples}, MemAllocated=0.26GB",
    "Megatron-LM": "samples/sec: 7.799 | iteration {step:8d}/   10000 | elapsed time per "
    "iteration (ms): {ms:.1f} | learning rate: 2.1E-06 | approx flops per GPU: 112.9TFLOPS |",
    "Megatron-Bridge": "Step Time: {s:.2f}s , 32680.36 tok/s/gpu, GPU utilization: 257.1 TFLOP/s",
    # Since 2025 its batch is in tokens.
    "nanotron": "[INFO|DP=0|PP=0|TP=0]: iteration: {step} / 2000 | consumed_tokens: 0.26M | "
    f"time_per_iteration_ms: {{k:.2f}}K | global_batch_size: {TOKENS / 1e3:.3g}K | eta: 1:03:00",
}
# BigScience's Megatron-DeepSpeed says seconds.
SECONDS = (
    "[default7]: iteration {step:8d}/  115311 | consumed samples: {seen:12d} | elapsed time per "
    "iteration (s): {s:.2f} | global batch size: {batch:5d} | samples per second: 19.463 |"
)


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


@pytest.mark.parametrize(
    ("framework", "line"), [*LINES.items(), *OTHERS.items(), ("Megatron-LM", SECONDS)]
)
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


def test_lines_that_every_rank_prints_count_once_in_any_order(tmp_path):
    path = log(tmp_path, LINES["TorchTitan"], STEADY)
    lines = path.read_text().splitlines()[2:]
    # The second rank is a step behind the first.
    path.write_text("\n".join(each for pair in pairwise(lines) for each in reversed(pair)))
    assert read_log(path, JOB).kept == 19


def test_lines_that_a_terminal_has_wrapped_are_read(tmp_path):
    path = log(tmp_path, MEGATRON, STEADY)
    text = path.read_text()
    wrapped = [line[at : at + 99] for line in text.splitlines() for at in range(0, len(line), 99)]
    path.write_text("\n".join(wrapped))
    assert "elapsed time per iteration" not in path.read_text()
    assert read_log(path, JOB).kept == 19


def test_validation_is_no_training_step(tmp_path):
    line = LINES["TorchTitan"]
    other = line.replace("mstep:", "mvalidate step:").replace("{tps:,.0f}", "999,999,999")
    assert read_log(log(tmp_path, f"{line}\n{other}", STEADY), JOB).kept == 19


def test_bars_of_loading_and_evaluation_are_not_the_trainings(tmp_path):
    path = log(tmp_path, LINES["HF Trainer"], STEADY)
    loading = "".join(f"{n}/4 [00:0{n}<00:01,  1.00s/it]\r" for n in range(1, 5))
    judged = "".join(f"{n}/99 [00:{n}<00:99,  3.33it/s]\r" for n in range(10, 60))
    path.write_text(loading + "\n" + path.read_text() + judged)
    assert read_log(path, JOB).step_time_s == pytest.approx(2.0)


def test_steps_of_a_batch_that_still_grew_are_left_out(tmp_path):
    growing = log(tmp_path, MEGATRON, [0.5] * 9, batch=16).read_text()
    path = log(tmp_path, MEGATRON.replace("{step:8d}", "1{step:07d}"), STEADY)
    path.write_text(growing + path.read_text())
    found = read_log(path, JOB)
    assert found.step_time_s == pytest.approx(2.0)
    assert found.notes[0] == "9 of 31 steps are of another batch (line 3: 16 samples)"


def test_a_crash_soon_after_a_restart_is_no_other_job(tmp_path):
    path = log(tmp_path, MEGATRON, STEADY)
    restarted = log(tmp_path, MEGATRON, [35.0]).read_text()
    path.write_text(log(tmp_path, MEGATRON, STEADY).read_text() + restarted)
    found = read_log(path, JOB)
    assert found.step_time_s == pytest.approx(2.0)
    assert "3 of 23 steps are warm-up (to line 27, after 2 starts)" in found.notes


def test_a_job_that_changed_is_refused_with_the_line_and_watched_as_it_is_now(tmp_path):
    path = log(tmp_path, MEGATRON, [2.0] * 60 + [3.0] * 60)
    with pytest.raises(InputError, match=r"changes at line 64, with steps of 3 s after 2 s"):
        read_log(path, JOB)
    assert read_log(path, JOB, recent=True).step_time_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("line", "seconds", "stated"),
    [
        ("loss 1.0", [1.0] * 9, "no step of a known framework"),
        (MEGATRON, [30.0, 2.0, 2.0], "has 2 steps of Megatron-LM besides warm-up"),
    ],
)
def test_a_log_without_steps_is_refused(tmp_path, line, seconds, stated):
    with pytest.raises(InputError, match=stated):
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
