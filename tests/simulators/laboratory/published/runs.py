"""Made-up measured runs and a simulator that answers at once."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.samples import prediction
from trainscout.simulators.laboratory.published.jobs.jobs import (
    Declarations,
    job_of,
    shipped_declarations,
)
from trainscout.simulators.laboratory.published.jobs.outcome import Replayable
from trainscout.simulators.laboratory.published.reading.rows import Row
from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.question.job import Job

RUN = Row(
    id="run",
    gpu="H100-80GB-SXM",
    source="Somebody 2024 Table 1",
    num_gpus=64,
    gpus_per_node=8,
    inter_link_gbps_per_gpu=400.0,
    framework="NeMo 24.09",
    model="Llama3-8B",
    num_layers=32,
    hidden=4096,
    ffn_hidden=14336,
    num_heads=32,
    num_query_groups=8,
    vocab=128256,
    seq_len=8192,
    gated_mlp=1,
    tp=2,
    pp=2,
    dp=16,
    cp=1,
    vpp=1,
    sp=1,
    micro_batch=1,
    global_batch=128,
    recompute="none",
    dist_optimizer="1",
    dtype="bf16",
    tp_overlap=0,
    grad_overlap=1,
    measured_iter_s=4.0,
)
EXPERTS = replace(
    RUN,
    id="experts",
    model="Mixtral-8x7B",
    vocab=32000,
    num_experts=8,
    topk=2,
    moe_ffn_hidden=14336,
    num_dense_layers=0,
    ep=4,
)


@cache
def declarations() -> Declarations:
    return shipped_declarations()


def replayable(**changes: Any) -> Replayable:
    """``RUN`` with ``changes`` as a job."""
    outcome = job_of(replace(RUN, **changes), declarations())
    assert isinstance(outcome, Replayable), outcome
    return outcome


class TwoSeconds:
    """Predicts two seconds for every job; counts how often it was asked."""

    name = "two_seconds"

    def __init__(self) -> None:
        self.asked: list[Job] = []

    def simulate(self, job: Job) -> Prediction:
        self.asked.append(job)
        return prediction(2.0)


def write_table(path: Path, *rows: dict[str, Any]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names, restval="")
        table.writeheader()
        table.writerows(rows)
    return path


def cells(row: Row = RUN, **changes: Any) -> dict[str, Any]:
    """The CSV cells of a run; None and blanks stay away."""
    given = {
        name: value
        for name, value in vars(row).items()
        if value not in (None, "") and name != "extrapolated"
    }
    return given | changes
