"""Published runs that did the same work on the same GPUs: each group is one question."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from trainscout.simulators.laboratory.published.jobs.jobs import Declarations, job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.laboratory.published.measured import measured_step
from trainscout.simulators.laboratory.published.reading.groups import source_group
from trainscout.simulators.laboratory.published.reading.rows import TRUSTED, Row
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.experts import Moe
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.training import operand_of

FROM_ONE_PUBLICATION = 3
# A run asks for no reserve, since it did fit; who asks before a run has the default's.
_RESERVE = Cluster.memory_reserve
# Software before FlashAttention-2 (mid 2023): nobody starts a run with it today.
_OF_THE_PAST = ("unfused", "flash1", "flash1_triton")


@dataclass(frozen=True)
class Run:
    """One published run: its row, the job it describes, and its measured step in seconds."""

    row: Row
    job: Job
    measured_s: float


@dataclass(frozen=True)
class PublishedQuestion:
    """What was trained on what, and the runs that answer it, fastest first.

    ``question`` is as somebody asks today: today's software, unless the fastest run had software
    of the past, and memory with the usual reserve.
    """

    name: str
    question: Question
    runs: tuple[Run, ...]

    @property
    def best(self) -> Run:
        return self.runs[0]

    @property
    def recipes(self) -> int:
        """How many different recipes were measured."""
        return len({run.job.recipe for run in self.runs})

    @property
    def kind(self) -> tuple[str, str, str, str]:
        """Publication, model, GPU and class of precision: questions of one kind differ in size."""
        job = self.best.job
        precision = precision_class(job.precision)
        return source_group(self.best.row), self.best.row.model, job.gpu.name, precision


def precision_class(precision: str) -> str:
    """``16-bit``, ``8-bit`` or ``4-bit`` where tensor cores have such, else the type's name."""
    operand = operand_of(precision)
    bits = {"bf16": 16, "fp16": 16, "fp8": 8, "fp8_block": 8, "mxfp8": 8, "fp4": 4}
    return f"{bits[operand]}-bit" if operand in bits else operand


def published_questions(
    rows: Iterable[Row], declarations: Declarations, software: Framework
) -> tuple[PublishedQuestion, ...]:
    """Every question that runs of grades A and B answer, in the order of the table.

    Args:
        rows: measured runs; those that describe no job, or have no step time, answer nothing.
        declarations: what rows refer to.
        software: the framework that somebody has who asks today.
    """
    groups: dict[Hashable, list[Run]] = {}
    for row in rows:
        if row.quality not in TRUSTED or row.extrapolated:
            continue
        outcome = job_of(row, declarations)
        if isinstance(outcome, NotReplayable):
            continue
        measured = measured_step(row, outcome.job)
        if measured is not None:
            run = Run(row, outcome.job, measured.step_time_s)
            groups.setdefault(_question_key(outcome.job), []).append(run)
    return tuple(_question(runs, software) for runs in groups.values())


def most_telling(questions: Sequence[PublishedQuestion]) -> tuple[PublishedQuestion, ...]:
    """One question of each kind, and of what a publication has on one architecture of GPUs the
    ``FROM_ONE_PUBLICATION`` that tell most: those with the most recipes, then the most GPUs."""
    chosen: dict[Hashable, PublishedQuestion] = {}
    order = attrgetter("recipes", "question.cluster.num_gpus")
    for each in sorted(questions, key=order, reverse=True):
        chosen.setdefault(each.kind, each)
    by_publication: dict[tuple[str, str], list[PublishedQuestion]] = {}
    for each in chosen.values():
        place = each.kind[0], each.question.gpu.architecture.name
        by_publication.setdefault(place, []).append(each)
    kept = {
        each.name for group in by_publication.values() for each in group[:FROM_ONE_PUBLICATION]
    }
    return tuple(each for each in questions if each.name in kept)


def _question_key(job: Job) -> Hashable:
    """What runs of one question have in common."""
    return (
        _plain(job.model),
        job.gpu.name,
        job.world_size,
        job.training.global_batch_size,
        job.sequence_length,
        precision_class(job.precision),
    )


def _plain(model: Model) -> Model:
    """The model alone: how tokens are sent to its experts is the software's."""
    moe = model.moe and replace(model.moe, dispatcher=Moe.dispatcher)
    return replace(model, name="", source="", moe=moe)


def _question(runs: list[Run], software: Framework) -> PublishedQuestion:
    runs = sorted(runs, key=lambda run: run.measured_s)
    job = runs[0].job
    optimizer = job.training.optimizer
    if optimizer == "adam_pure_bf16":
        # No launchable framework keeps as little; with moments in 16 bits it is nearest.
        optimizer = "adam_bf16"
    moe = job.model.moe and replace(job.model.moe, dispatcher=Moe.dispatcher)
    question = Question(
        model=replace(job.model, moe=moe),
        gpu=job.gpu,
        cluster=replace(job.cluster, memory_reserve=_RESERVE),
        training=replace(job.training, optimizer=optimizer),
        framework=job.framework if job.framework.attention in _OF_THE_PAST else software,
    )
    return PublishedQuestion(_name(job), question, tuple(runs))


def _name(job: Job) -> str:
    """The question in a word; equal shapes under one label differ in the last letters."""
    shape = hashlib.sha256(repr(_question_key(job)).encode()).hexdigest()[:4]
    words = (
        re.sub(r"[^a-z0-9.]+", "-", job.model.name.lower()).strip("-"),
        f"{job.gpu.name}x{job.world_size}",
        f"{job.training.global_batch_size}x{job.sequence_length}",
        precision_class(job.precision).replace("-", ""),
        shape,
    )
    return "_".join(words)
