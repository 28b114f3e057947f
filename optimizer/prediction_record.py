"""A prediction read back from what ``Prediction.to_dict`` wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainscout.simulators.predictor.answer.prediction import Memory, Prediction, StageMemory


def prediction_from_dict(record: Mapping[str, Any]) -> Prediction:
    """The prediction that ``record`` (JSON, units as in the field names) describes.

    Raises:
        ValueError, TypeError, KeyError: when the record is not one that ``to_dict`` wrote.
    """
    memory = dict(_exact(Memory, record["memory"]))
    memory["per_stage"] = tuple(
        StageMemory(**_exact(StageMemory, stage)) for stage in memory["per_stage"]
    )
    fields = dict(_exact(Prediction, record))
    fields["memory"] = Memory(**memory)
    fields["estimated_operations"] = tuple(fields["estimated_operations"])
    fields["assumptions"] = tuple(fields["assumptions"])
    if fields["interval_s"] is not None:
        low, high = fields["interval_s"]
        fields["interval_s"] = (low, high)
    return Prediction(**fields)


def _exact(cls: type, record: Mapping[str, Any]) -> Mapping[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    if set(record) != names:
        raise ValueError(f"{cls.__name__} record has fields {sorted(record)}")
    return record
