"""Adapters, frozen parts, packed sequences and pairs in the words of frameworks."""

from __future__ import annotations

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import OPTIMIZERS
from trainscout.simulators.predictor.question.tuning import HUGGING_FACE


def untrainable(
    job: Job, *, adapters: bool, distils: bool = False, modules: bool = False
) -> tuple[str, ...]:
    """What of a training the files of a framework do not do, with ``adapters``, a teacher or a
    precision of single layers, or without."""
    reasons = []
    if job.module_precision and not modules:
        reasons.append("training.module_precision (no precision of single layers is written)")
    if OPTIMIZERS[job.optimizer].is_8bit:
        reasons.append(
            f"training.optimizer={job.optimizer} (none of 8 bits or fewer is written for it)"
        )
    if job.training.lora is not None and not adapters:
        reasons.append("training.lora (no adapters are written for it)")
    if job.frozen_weights != "16bit":
        reasons.append("training.lora.frozen_weights (no quantised weights are written for it)")
    if job.training.frozen:
        reasons.append("training.frozen (no frozen parts are written for it)")
    if job.training.dpo is not None:
        reasons.append("training.dpo (no training on preferences is written for it)")
    taught = job.training.distillation
    if taught is not None and not (distils and taught.loss == "kl"):
        what = f"loss of {taught.loss}" if distils else "teacher"
        reasons.append(f"training.distillation (no {what} is written for it)")
    return tuple(reasons)


def unpacked(job: Job) -> tuple[str, ...]:
    """What its files leave to the data."""
    if not job.training.packed_lengths:
        return ()
    return ("training.packed_lengths (its data must be packed, and say where sequences end)",)


def hugging_face_targets(job: Job) -> list[str]:
    """The layers with adapters, by Transformers' names for models with a gate."""
    lora = job.training.lora
    return [] if lora is None else [name for each in lora.targets for name in HUGGING_FACE[each]]
