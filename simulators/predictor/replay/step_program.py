"""A step as it is replayed, with all that it was made from: what timelines are drawn of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.uncertainty.calibration import Calibration, factors_of
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.predictor.workload.program import Workload

from .assemble import Assembler, Program
from .prices import Pricer

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable


@dataclass(frozen=True)
class StepProgram:
    """``micro_batches`` of a step as engine tasks, with the workload and its prices."""

    job: Job
    workload: Workload
    pricer: Pricer
    assembler: Assembler
    program: Program
    micro_batches: int


def step_program(
    job: Job,
    micro_batches: int | None = None,
    calibration: Calibration | None = None,
    measured: MeasuredTable | None = None,
    workload: Workload | None = None,
    network: CongestedNetwork | None = None,
) -> StepProgram:
    """The program of a valid job's step, as ``ReplaySimulator`` plays it.

    Args:
        job: the question.
        micro_batches: how many per replica, default all; a multiple of ``pp`` in interleaved 1F1B.
        calibration, measured, network: as in ``ReplaySimulator``.
        workload: the job's, where it is not the built-in source's.

    Raises:
        InputError: for a number of micro-batches the schedule cannot run.
    """
    count = job.num_micro_batches if micro_batches is None else micro_batches
    unit, least = job.micro_batch_round, job.least_micro_batches
    if count < least or count % unit or count > job.num_micro_batches:
        allowed = f"{least}..{job.num_micro_batches}, in multiples of {unit}"
        raise InputError("timeline.micro_batches", count, "cannot be scheduled", allowed)
    workload = workload or build_workload(job)
    factors = factors_of(calibration)
    if calibration is not None:
        factors = factors.slowed(calibration.scale_of(job))
    pricer = Pricer.of(job, workload.communicators, factors, measured, network)
    assembler = Assembler(job, workload, pricer)
    return StepProgram(job, workload, pricer, assembler, assembler.assemble(count), count)
