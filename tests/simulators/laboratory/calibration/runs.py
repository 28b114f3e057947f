"""Runs whose measured times are the simulator's own under known corrections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.simulators.jobs import GPT175B, make_job
from trainscout.simulators.laboratory.calibration.runs import MeasuredRun
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.uncertainty.factors import Factors

LARGE = replace(GPT175B, name="large", num_layers=4, hidden_size=4096, num_heads=32)
# Nothing waits for a host that launches this fast.
FAST_HOST = Framework(host_launch_s=0.0)


def node_jobs() -> list[Job]:
    """One node, large kernels, a host that never lags."""
    return [
        replace(make_job(LARGE, tp=tp, micro_batch=micro_batch), framework=FAST_HOST)
        for tp in (1, 2, 4)
        for micro_batch in (1, 2)
    ]


def cluster_jobs() -> list[Job]:
    """Several nodes: much, and little, of the step is communication between them."""
    return [
        replace(make_job(LARGE, nodes=nodes, batch=batch, tp=8), framework=FAST_HOST)
        for nodes, batch in ((2, 8), (4, 8), (4, 64), (8, 8), (8, 256))
    ]


def measured(jobs: Sequence[Job], noise: float = 0.0, **factors: Any) -> list[MeasuredRun]:
    """What a machine with these corrections would measure, with relative noise."""
    errors = np.random.default_rng(0).normal(0, noise, len(jobs))
    runs = []
    for number, (job, error) in enumerate(zip(jobs, errors, strict=True)):
        simulator = ReplaySimulator(Calibration((job.gpu.name,), Factors(**factors)))
        seconds = simulator.simulate(job).step_time_s * float(np.exp(error))
        runs.append(MeasuredRun(f"run{number}", job, seconds))
    return runs
