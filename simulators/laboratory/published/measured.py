"""What was measured: seconds of a step and bytes of memory, from whatever a row publishes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainscout.simulators.predictor.answer.flops import (
    attention_core_flops,
    layer_flops,
    step_flops,
)
from trainscout.simulators.predictor.answer.prediction import Memory, Prediction
from trainscout.simulators.predictor.question.job import Job

from .jobs.era import era_of
from .jobs.frameworks import MEGATRONS, project_of
from .reading.rows import Row
from .reading.words import statement_of

GIB = 2**30
# Two figures of one run that differ by more are not rounding. A ratio of predicted to measured
# beyond this is that of milliseconds, or of one GPU's share, to what was asked for.
CONTRADICTION = 0.2
UNIT_ERROR = 20
# Counts of FLOPs differ by a third, with whole recomputation; other batches by a factor. No
# published step multiplies at more of the peak than products of matrices alone do.
_OTHER_WORK = 1.6
_MOST_OF_PEAK = 0.9
# Found by the rows of MoE Parallel Folding (April 2025), whose long contexts tell.
_HALF_ATTENTION = 2024.9
_FULL_ATTENTION = ("full", "non-causal", "korthikanti", "72*b", "12*l", "palm", "nanogpt")
_HALVED = re.compile(r"causal.{0,20}hal[fv]|hal[fv]\w*.{0,20}(?:causal|attention)")
_SIX_A_PARAMETER = re.compile(r"\b6 ?[*x]? ?(?:nd?|p|params?|parameters)\b|6 flops per param")
_HARDWARE = re.compile(r"hardware|96\*b|^(?!.*mfu).*hfu")
MEMORY_KINDS = {
    "reserved": re.compile(r"reserv|cached"),
    "allocated": re.compile("alloc"),
    "device": re.compile(r"device|\bsmi\b|nvidia|rocm|driver"),
}
"""What the words of a memory figure tell it to be."""
# What logs say, where a row does not. TorchTitan's metrics and nanotron's log lines have the
# reserved peak. So has nanotron's table of benchmarks, whatever is made of it: the allocated peak
# in its other column is reset after the passes (``log_memory``, in ``training_step``) and is the
# optimizer's, 17 GiB for a layout that was published with 66.
_LOG_RESERVED = ("torchtitan", "nanotron")
# ms-swift logs the reserved peak as "memory(GiB)" (swift/trainers/patcher.py, megatron/callbacks).
_SWIFT = re.compile(r"\bswift\b")
_NO_PEAK = re.compile(r"\bmean\b|\bone figure for\b")


@dataclass(frozen=True)
class Measured:
    """A measured step in seconds, and in words how it was derived ("" when it was printed)."""

    step_time_s: float
    derived: str


def measured_step(row: Row, job: Job) -> Measured | None:
    """The step time of a row, or None when nothing it publishes determines one.

    In this order: the printed time; the time its collector derived; tokens per second; FLOP/s
    or utilisation under the row's stated FLOP convention.
    """
    if row.measured_iter_s is not None:
        return Measured(row.measured_iter_s, "")
    if row.derived_iter_s is not None:
        return Measured(row.derived_iter_s, "step time derived by the collector of the row")
    if row.measured_tokens_per_s_per_gpu is not None:
        rate = row.measured_tokens_per_s_per_gpu * job.world_size
        return Measured(job.tokens_per_step / rate, "step time from tokens/s")
    found = _by_flops(row, job)
    return found and Measured(found[1], f"step time from FLOP/s, counting {found[0]}")


def about_measured(
    row: Row, job: Job, measured: Measured, prediction: Prediction
) -> tuple[str, ...]:
    """What a reader should know of a row's step time: how it was derived, and doubts about it."""
    words = [measured.derived] if measured.derived else []
    step_s, by_flops_s = measured.step_time_s, _by_flops(row, job)
    contradictory = f"contradictory: a step of {step_s:.4g} s, but"
    if by_flops_s and not 1 / _OTHER_WORK <= by_flops_s[1] / step_s <= _OTHER_WORK:
        told = f"the printed FLOP/s make it {by_flops_s[1]:.4g} s, as another batch would"
        words.append(f"{contradictory} {told}; the step counts")
    peak = job.gpu.peak(job.precision) * job.world_size
    share = step_flops(job).causal / step_s / peak
    if share > _MOST_OF_PEAK:
        words.append(f"faster than these GPUs multiply: {share:.0%} of their peak in model FLOPs")
    rate = row.measured_tokens_per_s_per_gpu
    if rate is not None:
        by_rate_s = job.tokens_per_step / (rate * job.world_size)
        if abs(step_s / by_rate_s - 1) > CONTRADICTION:
            told = f"{rate:g} tokens/s per GPU make it {by_rate_s:.4g} s"
            words.append(f"{contradictory} {told}; the step counts")
    predicted_s = prediction.step_time_s
    if not 1 / UNIT_ERROR <= predicted_s / step_s <= UNIT_ERROR:
        words.append(
            f"a likely unit error: {step_s:.4g} s measured, {predicted_s:.4g} s predicted"
        )
    return tuple(words)


def _by_flops(row: Row, job: Job) -> tuple[str, float] | None:
    """What a row's FLOP/s count, in words, and the seconds of a step by them; None without any."""
    speed = _flops_per_s_per_gpu(row, job)
    counted = convention_flops(row.tflops_convention, job, counts_half=_counts_half(row))
    if speed is None or counted is None:
        return None
    return counted[0], counted[1] / (speed * job.world_size)


def _flops_per_s_per_gpu(row: Row, job: Job) -> float | None:
    if row.measured_tflops_per_gpu is not None:
        return row.measured_tflops_per_gpu * 1e12
    if row.measured_mfu is None:
        return None
    peak = job.gpu.peak(job.precision)
    stated = re.search(r"(\d{3,4}(?:\.\d)?) TFLOPS\)?$", row.tflops_convention)
    if stated is not None:
        peak = float(stated[1]) * 1e12
    return row.measured_mfu / 100 * peak


def _counts_half(row: Row) -> bool:
    """Whether a row's software counts half of a causal attention where nobody says otherwise:
    Megatron-Core's own log does from core 0.12 on, which its papers used from its main branch."""
    statement, stated = statement_of(row), row.tflops_convention.lower()
    era = era_of(row, statement)
    recent = era.year is not None and not era.before(_HALF_ATTENTION)
    if statement.says("flops"):
        return statement.says("flops", "half")
    silent = not any(words in stated for words in _FULL_ATTENTION)
    return recent and silent and project_of(statement) in MEGATRONS


def convention_flops(
    convention: str, job: Job, *, counts_half: bool = False
) -> tuple[str, float] | None:
    """FLOPs of one step as a publisher counts them, and the count in words.

    The conventions are listed in ``docs/validation.md``; one that is blank, or says no more than
    model FLOPs, counts full attention, or half of it where the software does (``counts_half``).
    None for a text that names no known convention.
    """
    text = convention.lower()
    layers = [layer_flops(job.model, job.sequence_length, layer) for layer in job.model.pattern]
    mixers = filter(None, map(job.model.mixer, job.model.pattern))
    attention = sum(
        attention_core_flops(job.model, job.sequence_length, mixer.attention)
        for mixer in mixers
        if mixer.attention is not None
    )
    head = 2.0 * job.model.hidden_size * job.model.vocab_size
    tokens = job.tokens_per_step
    if _HARDWARE.search(text):
        return "hardware FLOPs, with what runs again", step_flops(job).hardware
    if "8*params" in text:
        return "8 FLOPs per parameter and token", 8 / 6 * 3 * (sum(layers) - attention) * tokens
    if "unclear" in text or "only" in text:
        return None
    if _SIX_A_PARAMETER.search(text) and "12" not in text:
        return "6 FLOPs per parameter and token", 3 * (sum(layers) - attention + head) * tokens
    if counts_half or _HALVED.search(text):
        return "model FLOPs, attention at half", step_flops(job).causal
    full = any(words in text for words in _FULL_ATTENTION)
    if full or not text or "model flops" in text or "mfu" in text or "tflops" in text:
        return "model FLOPs, full attention", step_flops(job).model
    return None


def measured_memory(row: Row) -> tuple[str, float] | None:
    """Kind and bytes of the row's memory figure, or None when it publishes no peak.

    ``allocated`` and ``reserved`` are the framework's caching allocator, ``device`` is what
    ``nvidia-smi`` shows. Where the row does not say, the notes and the framework's habit do:
    TorchTitan, nanotron and ms-swift log reserved memory, Megatron-LM allocated.
    """
    if row.measured_peak_mem_gib is None or _NO_PEAK.search(row.memory_kind.lower()):
        return None
    return memory_kind(row), row.measured_peak_mem_gib * GIB


def memory_kind_statement(row: Row) -> str | None:
    """What the column's own words tell, None where they do not."""
    words = row.memory_kind.lower()
    return next((kind for kind, told in MEMORY_KINDS.items() if told.search(words)), None)


def memory_kind(row: Row) -> str:
    if (kind := memory_kind_statement(row)) is not None:
        return kind
    statement = statement_of(row)
    if statement.says("memory_of", "device"):
        return "device"
    logs = statement.says("project", *_LOG_RESERVED) or _SWIFT.search(row.framework.lower())
    return "reserved" if logs else "allocated"


def printed_stage(row: Row) -> int | None:
    """The pipeline stage whose memory a row has, as an index; None: the worst one's.

    Megatron-LM logs to TensorBoard, where its CI takes golden values from, on the last rank;
    nanotron's table of benchmarks is written by the first (``log_throughput``).
    """
    label = statement_of(row).label
    if label.get("project") == "megatron" and label.get("test") == "ci":
        return -1
    return 0 if label.get("project") == "nanotron" else None


def predicted_memory_bytes(kind: str, memory: Memory, stage: int | None = None) -> int:
    """The predicted figure that counts what ``kind`` does, of the worst stage or of ``stage``."""
    counted = memory if stage is None else memory.per_stage[stage]
    if kind != "device":
        return counted.peak_allocated_bytes if kind == "allocated" else counted.peak_reserved_bytes
    # What the allocator reserved, in use or not, is taken from the device.
    kinds = memory.per_stage[0].kind
    return counted.peak_reserved_bytes + kinds["communication_buffers"] + kinds["context"]
