"""The file that a model's measured routings are in: read once, where declarations are read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

from trainscout.simulators.predictor.moe.popularity import read_histograms
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.model import Model


def with_histogram(model: Model) -> Model:
    """The model with the routings that ``model.moe.histogram``, if any, counts.

    Raises:
        InputError: for a file that cannot be read or is no such table, or routings given by hand.
    """
    moe = model.moe
    if moe is None or not (moe.histogram or moe.measured):
        return model
    if moe.histogram is None or moe.measured:
        problem = "is read from a file"
        raise InputError("model.moe.measured", "...", problem, "model.moe.histogram=FILE")
    try:
        counts = read_histograms(Path(moe.histogram))
    except InputError as error:
        field = "model.moe.histogram"
        raise InputError(field, error.value, error.problem, error.allowed) from error
    if len(counts[0]) != moe.num_experts:
        problem = f"counts routings of {len(counts[0])} experts"
        raise InputError("model.moe.histogram", moe.histogram, problem, f"{moe.num_experts}")
    return replace(model, moe=replace(moe, measured=tuple(itertools.chain(*counts))))
