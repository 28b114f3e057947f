"""A made-up answer to a published question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainscout.simulators.laboratory.searched.answer import Answer

_ANSWER = Answer(
    name="question",
    model="Llama3-8B",
    gpu="h100",
    num_gpus=64,
    global_batch=128,
    sequence_length=8192,
    precision="bf16",
    asked_software="megatron_core",
    runs=1,
    recipes=1,
    row="run",
    source="Somebody 2024",
    measured_recipe="tp2",
    measured_s=1.0,
    replayed_s=1.0,
    software="",
    inside=True,
    why="",
    predicted_s=1.0,
    fits=True,
    used_gib=40.0,
    rank=1,
    best_recipe="tp2",
    best_s=1.0,
    points=1,
    simulated=1,
    proved=True,
    wall_s=0.1,
)


def made_up(**fields: Any) -> Answer:
    return replace(_ANSWER, **fields)
